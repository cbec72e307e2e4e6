// On what a run is trained.

#pragma once

#include <string>
#include <utility>
#include <vector>

#include <torch/types.h>

namespace longspan {

// Names and what stands for them: versions, the device, the processor, threads.
using Environment = std::vector<std::pair<std::string, std::string>>;

Environment environment(torch::Device device);

// environment.json of the run in `folder`; empty where there is none.
void write_environment(const std::string& folder, const Environment& environment);
Environment read_environment(const std::string& folder);

}  // namespace longspan
