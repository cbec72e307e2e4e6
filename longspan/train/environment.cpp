#include "longspan/train/environment.h"

#include <unistd.h>

#include <fstream>

#include <ATen/Parallel.h>
#include <torch/version.h>
#include <nlohmann/json.hpp>

#include "longspan/base/build.h"
#include "longspan/base/error.h"
#include "longspan/base/read_file.h"
#include "longspan/base/threads.h"
#include "longspan/base/whole_file.h"
#include "longspan/kernels/cpu/isa.h"
#include "longspan/train/cuda/arithmetic.h"

namespace longspan {
namespace {

std::string processor() {
  std::ifstream facts("/proc/cpuinfo");
  for (std::string line; std::getline(facts, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos)
      return line.substr(colon + 2);
  }
  return "unknown";
}

std::string path_in(const std::string& folder) { return folder + "/environment.json"; }

}  // namespace

Environment environment(torch::Device device) {
  Environment all = {{"longspan", kVersion}, {"LibTorch", TORCH_VERSION}};
  if constexpr (kHasCuda)
    if (device.is_cuda()) all.emplace_back("GPU", cuda::device_name());
  all.emplace_back("device", device.str());
  all.emplace_back("processor", processor());
  all.emplace_back("cores", std::to_string(usable_cores()));
  all.emplace_back("threads", std::to_string(at::get_num_threads()));
  all.emplace_back("instruction set", cpu::name(cpu::isa()));
  all.emplace_back("BLAS", blas_facts().name);
  return all;
}

void write_environment(const std::string& folder, const Environment& environment) {
  nlohmann::ordered_json out;
  for (const auto& [name, value] : environment) out[name] = value;
  write_whole(path_in(folder), out.dump(2) + "\n");
}

Environment read_environment(const std::string& folder) {
  const std::string path = path_in(folder);
  if (access(path.c_str(), F_OK) != 0) return {};
  Environment all;
  try {
    const auto read = nlohmann::ordered_json::parse(read_file(path));
    for (const auto& [name, value] : read.items())
      all.emplace_back(name, value.get<std::string>());
  } catch (const nlohmann::json::exception&) {
    fail(path, " is not what a run wrote");
  }
  return all;
}

}  // namespace longspan
