// Two ways of doing one thing, timed in turn in one process: machines are shared and
// clocks move, so only their ratio means something.

#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <utility>
#include <vector>

namespace longspan {

// Seconds. `cpu` is of all threads of the process: where others compute, it tells more.
struct Spent {
  double wall = 0;
  double cpu = 0;
};

template <class Work>
Spent spent_on(const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  const std::clock_t cpu_start = std::clock();
  work();
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - start;
  return {wall.count(), static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC};
}

inline double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

inline Spent medians(const std::vector<Spent>& times) {
  std::vector<double> wall, cpu;
  for (const Spent& spent : times) {
    wall.push_back(spent.wall);
    cpu.push_back(spent.cpu);
  }
  return {median(std::move(wall)), median(std::move(cpu))};
}

// Medians over the turns.
struct Interleaved {
  Spent ours, theirs;
  Spent ratio;  // theirs / ours, turn by turn: how many times faster ours is
};

template <class Ours, class Theirs>
Interleaved interleaved(const Ours& ours, const Theirs& theirs, int64_t turns) {
  ours();
  theirs();
  std::vector<Spent> our_times, their_times, ratios;
  for (int64_t turn = 0; turn < turns; ++turn) {
    const Spent one = spent_on(ours), other = spent_on(theirs);
    our_times.push_back(one);
    their_times.push_back(other);
    ratios.push_back({other.wall / one.wall, other.cpu / one.cpu});
  }
  return {medians(our_times), medians(their_times), medians(ratios)};
}

}  // namespace longspan
