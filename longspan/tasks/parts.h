// Which examples a task trains on, chooses by and judges by; used by tasks alone.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "longspan/base/random.h"
#include "longspan/tasks/task.h"

namespace longspan {

using Numbers = std::vector<int64_t>;

Numbers all_numbers(int64_t count);  // 0 .. count - 1

// So many of `count`, rounded.
int64_t share_of(double share, int64_t count);

// Takes `count` drawn members out of `numbers`. Both keep their order.
Numbers draw_out(Numbers& numbers, int64_t count, Key key);

// As many drawn members as task.examples, for "train", or task.judged allow, and a line
// about them for the facts: "train: 500 of 1000, " and what `from` says.
Numbers limited(Numbers numbers, const TaskOptions& options, const std::string& split,
                const std::string& from, Task& task);

// `from` with a drawn share of "valid" or "test" named: "drawn from a.tsv, seed 1".
std::string drawn_from(const std::string& source, const TaskOptions& options);

// The first of options.data + "/" + one of `folders` that has `file`, also packed, with
// "/" behind it. An Error, which begins with the name of the task, says what was looked
// for and where `make` says it comes from.
std::string folder_with(const TaskOptions& options,
                        const std::vector<std::string>& folders,
                        const std::string& file, const std::string& make);

}  // namespace longspan
