// A window around every token, dilated by head, and global tokens that see and are seen
// by all. Beltagy et al. 2020, arXiv:2004.05150.
//
// Global tokens are those of pass.mask.global. As columns they have the projections of
// all tokens; their own rows have projections of their own, which the adapter makes
// (Projections::qkv_global). In causal passes they are seen by the tokens after them
// and see what is before them in their window, because a row that sees all would look
// ahead.

#include "longspan/attention/windows.h"

namespace longspan {
namespace {

constexpr Preset kPresets[] = {{"lra", "{window: 256}"}};

}  // namespace

constinit const Mechanism catalogue::longformer{
    .name = "longformer",
    .summary = "a window around every token, and global tokens with their own weights",
    .paper = "Beltagy et al. 2020, arXiv:2004.05150",
    .classes = "fixed patterns, memory",
    .time = {"N*(window + global)*d", 1},
    .memory = {"N*d", 1},
    .can = {.causal = Causal::optional,
            .padding = true,
            .decoding = true,
            .bias = true,
            .segments = true,
            .global = true,
            .dropout = true,
            .grouped = true},
    .state =
        "keys and values of the last window*dilation tokens; those of global tokens "
        "come "
        "on top",
    .state_size = Windows::state_size,
    .projections = Projections::qkv_global,
    .settings = kWindowSettings,
    .presets = kPresets,
    .test_settings = "{window: 5, dilation: [1, 2, 1, 3]}",
    .make = made_as<Attention, Windows>(),
};

}  // namespace longspan
