// Two ways of doing one thing, timed in turn in one process: machines are shared and
// clocks move, so only their ratio means something.

#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <iomanip>
#include <iostream>
#include <string>
#include <vector>

namespace longspan::bench {

inline double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
      .count();
}

inline double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// Prints a row: the median times, and how many times faster `ours` is than `theirs`,
// as the median over the turns.
inline void compare(const std::string& what, const std::function<void()>& ours,
                    const std::function<void()>& theirs, int turns = 31) {
  ours();
  theirs();
  std::vector<double> our_times, their_times, ratios;
  for (int turn = 0; turn < turns; ++turn) {
    our_times.push_back(seconds_of(ours));
    their_times.push_back(seconds_of(theirs));
    ratios.push_back(their_times.back() / our_times.back());
  }
  std::cout << std::left << std::setw(52) << what << std::right << std::fixed
            << std::setprecision(3) << std::setw(10) << median(our_times) * 1e3
            << std::setw(10) << median(their_times) * 1e3 << std::setw(8)
            << std::setprecision(2) << median(ratios) << "x\n";
}

inline void print_header() {
  std::cout << std::left << std::setw(52) << "what" << std::right << std::setw(10)
            << "ours ms" << std::setw(10) << "theirs ms" << std::setw(9) << "ratio\n";
}

}  // namespace longspan::bench
