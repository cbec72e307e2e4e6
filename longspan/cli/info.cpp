#include <iomanip>
#include <iostream>

#include <ATen/Parallel.h>
#include <torch/cuda.h>
#include <torch/version.h>

#include "longspan/base/build.h"
#include "longspan/base/threads.h"
#include "longspan/cli/commands.h"
#include "longspan/kernels/cpu/isa.h"

namespace longspan::cli {
namespace {

void print() {
  const auto line = [](std::string_view label, const auto&... parts) {
    std::cout << std::left << std::setw(24) << label;
    (std::cout << ... << parts);
    std::cout << '\n';
  };
  line("longspan", kVersion);
  line("LibTorch", TORCH_VERSION);
  line("CPU threads", at::get_num_threads());
  line("CPU instruction set", cpu::name(cpu::isa()), " in use, ",
       cpu::name(cpu::best_isa()), " is the best of this CPU");
  const BlasFacts blas = blas_facts();
  line("BLAS", blas.name);
  if (blas.slow)
    line("", "slow: install libopenblas0-openmp for matrix products at full speed");
  if (blas.own_threads)
    line("", "has threads of its own beside OpenMP's: libopenblas0-openmp shares them");
  if constexpr (!kHasCuda)
    line("CUDA", "not in this build; configure with the preset cuda");
  else if (!torch::cuda::is_available())
    line("CUDA", "in this build, but no device is found");
  else
    line("CUDA", static_cast<int>(torch::cuda::device_count()), " device(s)");

  std::cout << "\nkernels                 CPU                       CUDA\n";
  const auto kernel = [&](std::string_view name, std::string_view on_cpu) {
    std::cout << std::left << std::setw(24) << name << std::setw(26) << on_cpu
              << (kHasCuda ? "tensor operations" : "-") << '\n';
  };
  kernel("block attention", "fused");
  kernel("linear attention", "fused");
  kernel("LSE merge", "fused");
  kernel("pooling", "fused");
  kernel("activation", "fused");
  kernel("layer norm", "fused");
  kernel("dropout", "fused");
  kernel("total", "fused");
  kernel("matmul", "BLAS by tiles");
}

}  // namespace

void add_info(CLI::App& program) {
  program.add_subcommand("info", "what this build has and which kernels it would use")
      ->callback(print);
}

}  // namespace longspan::cli
