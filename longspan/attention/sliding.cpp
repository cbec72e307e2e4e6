// A window around every token, with gaps of its own for every head. Beltagy et al.
// 2020, arXiv:2004.05150, without global tokens; Child et al. 2019, arXiv:1904.10509.

#include "longspan/attention/windows.h"

namespace longspan {
constinit const Mechanism catalogue::sliding{
    .name = "sliding",
    .summary = "a window around every token, dilated by head",
    .paper = "Beltagy et al. 2020, arXiv:2004.05150",
    .classes = "fixed patterns",
    .time = {"N*window*d", 1},
    .memory = {"N*d", 1},
    .can = kPatternAbilities,
    .state = "keys and values of the last window*dilation tokens",
    .state_size = Windows::state_size,
    .settings = kWindowSettings,
    .test_settings = "{window: 5, dilation: [1, 2, 3, 1]}",
    .make = made_as<Attention, Windows>(),
};

}  // namespace longspan
