// A row a comparison: how two ways of doing one thing, timed in turn, compare.

#pragma once

#include <iomanip>
#include <iostream>
#include <string>

#include "longspan/base/interleaved.h"

namespace longspan::bench {

// Prints a row: the median times, and how many times faster `ours` is than `theirs`,
// as the median over the turns.
template <class Ours, class Theirs>
void compare(const std::string& what, const Ours& ours, const Theirs& theirs,
             int turns = 31) {
  const Interleaved medians = interleaved(ours, theirs, turns);
  std::cout << std::left << std::setw(52) << what << std::right << std::fixed
            << std::setprecision(3) << std::setw(10) << medians.ours.wall * 1e3
            << std::setw(10) << medians.theirs.wall * 1e3 << std::setw(8)
            << std::setprecision(2) << medians.ratio.wall << "x\n";
}

inline void print_header() {
  std::cout << std::left << std::setw(52) << "what" << std::right << std::setw(10)
            << "ours ms" << std::setw(10) << "theirs ms" << std::setw(9) << "ratio\n";
}

}  // namespace longspan::bench
