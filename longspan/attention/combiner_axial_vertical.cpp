// A query sees its row and its column, and the other columns in summaries. Ren et al.
// 2021, arXiv:2107.05768, "Combiner-Axial", vertical.

#include "longspan/attention/combiner_axial.h"

namespace longspan {
namespace {

constexpr Setting kSettings[] = {kGridWidth, kSummary};

}  // namespace

constinit const Mechanism catalogue::combiner_axial_vertical{
    .name = "combiner_axial_vertical",
    .summary = "a row and a column of a grid, and the summaries of the other columns",
    .paper = "Ren et al. 2021, arXiv:2107.05768",
    .classes = "fixed patterns, low rank",
    .time = {"N*(width + N/width)*d", 2},
    .memory = {"N*d", 1},
    .can = kCombinerAbilities,
    .state = kAxialState,
    .state_size = axial_state_size_of<Axial::vertical>(),
    .full = true,
    .settings = kSettings,
    .test_settings = "{width: 9, summary: deepsets_mean}",
    .make = axial_made_of<Axial::vertical>(),
};

}  // namespace longspan
