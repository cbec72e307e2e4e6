// Several ways to see a grid: the mean of the vertical and the horizontal form, as in
// the paper, or one softmax over all their keys and summaries, as released. Ren et al.
// 2021, arXiv:2107.05768, "Combiner-Mixture".
//
// In the one softmax a key outside the query's row and column is in two summaries. Not
// causal, each other column is one of them, without the query's row; the released code
// has the column above and below.

#include "longspan/attention/combiner_axial.h"

namespace longspan {
namespace {

constexpr Setting kSettings[] = {kGridWidth,
                                 kSummary,
                                 {.name = "joint",
                                  .kind = Kind::boolean,
                                  .standard = "false",
                                  .help = "one softmax in place of the mean of two"}};

std::vector<Axial> parts(const Settings& settings) {
  if (settings.flag("joint")) return {Axial::joint};
  return {Axial::vertical, Axial::horizontal};
}

std::shared_ptr<Attention> made(const Settings& settings, const Sizes& sizes,
                                const std::shared_ptr<Shared>&) {
  return std::make_shared<CombinerAxial>(settings, sizes, parts(settings));
}

int64_t state_size(const Settings& settings, const Sizes& sizes, int64_t tokens) {
  return CombinerAxial::state_size(settings, sizes, tokens, parts(settings));
}

}  // namespace

constinit const Mechanism catalogue::combiner_mixture{
    .name = "combiner_mixture",
    .summary = "the rows and the columns of a grid, and the summaries of both",
    .paper = "Ren et al. 2021, arXiv:2107.05768",
    .classes = "fixed patterns, low rank",
    .time = {"N*(width + N/width)*d", 2},
    .memory = {"N*d", 1},
    .can = kCombinerAbilities,
    .state = kAxialState,
    .state_size = state_size,
    .full = true,
    .settings = kSettings,
    .test_settings = "{width: 9, joint: true, summary: mean}",
    .make = Mechanism::Make<Attention>(made),
};

}  // namespace longspan
