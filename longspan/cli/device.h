#pragma once

#include <string>

#include <torch/types.h>

namespace longspan::cli {

// The device of `--device NAME`, cpu or cuda; an Error if this machine or build has it
// not.
torch::Device usable_device(const std::string& name);

}  // namespace longspan::cli
