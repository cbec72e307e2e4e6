// The state of a training in a folder, whole or not at all:
//
//   step-40/model.safetensors      the weights to use
//   step-40/optimizer.safetensors  what else training needs to go on
//   step-40/state.json             numbers: step, examples, best so far, ..
//   step-40/DONE                   sizes and checksums of the others, written last
//
// A checkpoint is written under another name, flushed and renamed; one without DONE, or
// that does not fit it, does not count.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "longspan/base/tensor_file.h"

namespace longspan {

struct Checkpoint {
  NamedTensors model = {};
  NamedTensors optimizer = {};
  std::string state = {};  // JSON
};

class Checkpoints {
 public:
  explicit Checkpoints(std::string folder) : folder_(std::move(folder)) {}

  std::string path(int64_t step) const;

  // Replaces one of the same step.
  void write(int64_t step, const Checkpoint& checkpoint) const;

  // The steps of those that are finished, ascending. Nothing is checked.
  std::vector<int64_t> steps() const;

  // Of those up to `step`, removes all but the last `keep` and those of `always`; and
  // what a killed process left unfinished. Later ones, which a training that goes on
  // from `step` has found damaged, do not count and stay until it replaces them.
  void prune(int64_t step, int64_t keep, const std::vector<int64_t>& always) const;

 private:
  std::string folder_;
};

// Reads a checkpoint after checking it. An Error names the folder and what is wrong.
Checkpoint read_checkpoint(const std::string& path);

// The same without the optimizer's state.
NamedTensors read_weights(const std::string& path);

}  // namespace longspan
