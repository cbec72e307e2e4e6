// Pictures of who sees whom in the models of a comparison.

#pragma once

#include <string>

#include "longspan/report/comparison.h"

namespace longspan::report {

// As HTML, one for each mechanism and its settings: those of the entry, where so few
// tokens as fit show what it leaves out, else small ones, which the caption says. Empty
// where nothing came to its end.
std::string pattern_gallery(const Comparison& comparison);

}  // namespace longspan::report
