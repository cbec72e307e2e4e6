#include <iomanip>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>

#include <ATen/Parallel.h>
#include <torch/cuda.h>
#include <torch/version.h>

#include "longspan/base/build.h"
#include "longspan/base/threads.h"
#include "longspan/cli/commands.h"
#include "longspan/cli/info_cuda.h"
#include "longspan/kernels/block_attention.h"
#include "longspan/kernels/cpu/isa.h"

namespace longspan::cli {
namespace {

void line(std::string_view label, const auto&... parts) {
  std::cout << std::left << std::setw(24) << label;
  (std::cout << ... << parts);
  std::cout << '\n';
}

// Nothing where there is no CUDA, in the build or on the machine.
std::optional<CudaFacts> cuda_device() {
  if constexpr (kHasCuda)
    if (torch::cuda::is_available()) return cuda_facts();
  return {};
}

std::string why_not_wgmma(const CudaFacts& gpu) {
  if (gpu.uses_wgmma()) return "";
  if (!gpu.has_wgmma)
    return "; refused: not in this build, LONGSPAN_CUDA_ARCHITECTURES has no 90a";
  return "; refused: needs sm_90, this GPU is sm_" + std::to_string(gpu.architecture);
}

// The kernels in the order in which they are asked.
void print_attention_on(const CudaFacts& gpu) {
  std::cout << "\nblock attention on CUDA, the first that serves a call\n";
  line("  wgmma", "bfloat16, half; one source, heads up to 128 wide",
       why_not_wgmma(gpu));
  if (gpu.torch_has_attention)
    line("  LibTorch's SDPA", "bfloat16, half; plain dense or causal",
         uses_torch_attention()
             ? "; LONGSPAN_TORCH_ATTENTION=0 or use_torch_attention(false) turns it off"
             : "; off, LONGSPAN_TORCH_ATTENTION=1 or use_torch_attention(true) turns "
               "it on");
  line("  mma.sync", "bfloat16, half; up to 8 sources");
  line("  plain", "float, double; up to 8 sources");
}

void print() {
  const auto gpu = cuda_device();
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
  if (cpu::best_isa() >= cpu::Isa::avx512 &&
      blas.name.find("Haswell") != std::string::npos)
    line("", "takes products for AVX2, though this CPU has AVX-512: ",
         "OPENBLAS_CORETYPE=SkylakeX in the environment makes them faster");
  if constexpr (!kHasCuda)
    line("CUDA", "not in this build; configure with the preset cuda");
  else if (!gpu)
    line("CUDA", "in this build, but no device is found");
  else
    line("CUDA", static_cast<int>(torch::cuda::device_count()), " device(s), ",
         gpu->name, " (sm_", gpu->architecture, ")");
  const bool is_refused = gpu && !gpu->is_served();
  if (is_refused) line("", "refused: the kernels need sm_80 or later");

  std::cout << "\nkernels                 CPU                       CUDA\n";
  const auto kernel = [&](std::string_view name, std::string_view on_cpu,
                          std::string_view on_cuda) {
    std::cout << std::left << std::setw(24) << name << std::setw(26) << on_cpu
              << (kHasCuda ? on_cuda : "-") << '\n';
  };
  for (const char* const name : {"block attention", "linear attention", "LSE merge",
                                 "pooling", "activation", "layer norm", "dropout"})
    kernel(name, "fused", is_refused ? "refused" : "fused");
  kernel("entmax attention", "fused", is_refused ? "refused" : "fused weights, cuBLAS");
  kernel("total", "fused", "tensor operations");
  kernel("matmul", "BLAS by tiles", "cuBLAS");
  if (gpu && !is_refused) print_attention_on(*gpu);
}

}  // namespace

void add_info(CLI::App& program) {
  program.add_subcommand("info", "what this build has and which kernels it would use")
      ->callback(print);
}

}  // namespace longspan::cli
