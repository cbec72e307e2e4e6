// The sequence as rows of a grid: a token sees its row and its column. The "Axial"
// pattern of Ren et al. 2021, arXiv:2107.05768.

#include "longspan/attention/pattern_attention.h"
#include "longspan/base/error.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr Setting kSettings[] = {
    {.name = "columns",
     .standard = "0",
     .help = "tokens in a row; 0: the square root of an example's length, in causal "
             "models of the longest",
     .least = 0},
};

class SparseAxial final : public PatternAttention {
 public:
  SparseAxial(const Settings& settings, const Sizes& sizes)
      : PatternAttention(sizes.longest), columns_(settings.integer("columns")) {}

 private:
  int64_t size_for(std::optional<int64_t> length) const override {
    if (columns_ > 0) return 0;
    require(length.has_value(),
            "columns must be given for decoding, where the length is not known");
    return square_root(*length);
  }

  int64_t columns(const Extent& extent) const {
    return columns_ > 0 ? columns_ : extent.size;
  }

  HeadPatterns patterns(const Extent& extent) const override {
    const int64_t width = columns(extent), tokens = extent.tokens;
    const auto seen = [&](Pattern pattern) {
      return extent.causal ? both_of(pattern, past_keys()) : pattern;
    };
    const Pattern column = but_not(stride_of_keys(width, tokens), window_of_keys(0, 0));
    return {.distinct = {{{.keys = seen(block_of_keys(width))},
                          {.keys = seen(column),
                           .order = [=] { return by_residue(width, tokens); }}}}};
  }

  Tensor visible(const Extent& extent) const override {
    const int64_t width = columns(extent);
    const Positions at(extent.tokens);
    const Tensor row = at.query.div(width, "floor") == at.key.div(width, "floor");
    const Tensor column = at.query.remainder(width) == at.key.remainder(width);
    const Tensor seen = row.logical_or(column);
    return (extent.causal ? seen.logical_and(at.key <= at.query) : seen).unsqueeze(0);
  }

  int64_t columns_;
};

}  // namespace

constinit const Mechanism catalogue::sparse_axial{
    .name = "sparse_axial",
    .summary = "the row and the column of a token on a grid",
    .paper = "Ren et al. 2021, arXiv:2107.05768",
    .classes = "fixed patterns",
    .time = {"N*sqrt(N)*d", 1.5},
    .memory = {"N*d", 1},
    .can = kPatternAbilities,
    .state = "keys and values of all tokens",
    .state_size = PatternAttention::all_numbers_kept,
    .settings = kSettings,
    .test_settings = "{columns: 9}",
    .make = made_as<Attention, SparseAxial>(),
};

}  // namespace longspan
