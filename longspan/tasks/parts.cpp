#include "longspan/tasks/parts.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "longspan/base/error.h"
#include "longspan/data/order.h"
#include "longspan/data/packed_file.h"
#include "longspan/tasks/kinds.h"

namespace longspan {

Numbers all_numbers(int64_t count) {
  Numbers numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

int64_t share_of(double share, int64_t count) {
  return std::lround(share * static_cast<double>(count));
}

Numbers draw_out(Numbers& numbers, int64_t count, Key key) {
  const auto order = permutation(std::ssize(numbers), key);
  std::vector<bool> chosen(numbers.size());
  for (int64_t i = 0; i < std::min(count, std::ssize(numbers)); ++i)
    chosen[static_cast<size_t>(order[static_cast<size_t>(i)])] = true;
  Numbers taken, left;
  for (size_t i = 0; i < numbers.size(); ++i)
    (chosen[i] ? taken : left).push_back(numbers[i]);
  numbers = std::move(left);
  return taken;
}

Numbers limited(Numbers numbers, const TaskOptions& options, const std::string& split,
                const std::string& from, Task& task) {
  const bool trains = split == "train";
  const int64_t most = trains ? options.examples : options.judged;
  const auto all = std::ssize(numbers);
  std::string fact = split + ": " + std::to_string(all);
  if (most > 0 && most < all) {
    constexpr uint64_t kTrain = 11, kValid = 12, kTest = 13;
    const uint64_t part = trains ? kTrain : split == "valid" ? kValid : kTest;
    numbers = draw_out(numbers, most,
                       mix(Key{static_cast<uint64_t>(options.split_seed)}, part));
    fact = split + ": " + std::to_string(most) + " drawn (seed " +
           std::to_string(options.split_seed) + ") of " + std::to_string(all);
  }
  task.facts.push_back(fact + ", " + from);
  return numbers;
}

std::string drawn_from(const std::string& source, const TaskOptions& options) {
  return "drawn from " + source + ", seed " + std::to_string(options.split_seed);
}

std::string folder_with(const TaskOptions& options,
                        const std::vector<std::string>& folders,
                        const std::string& file, const std::string& make) {
  for (const std::string& folder : folders) {
    const std::string path =
        in_data(options, folder + (folder.empty() || folder.ends_with('/') ? "" : "/"));
    if (access(found_file(path + file).c_str(), F_OK) == 0) return path;
  }
  fail("cannot read ", in_data(options, file), ": there is no such file there; ", make);
}

}  // namespace longspan
