// The kernels on the CPU, in turn with what they are compared with.

#include <algorithm>
#include <iomanip>
#include <iostream>
#include <memory>

#include <ATen/Parallel.h>
#include <nlohmann/json.hpp>

#include "longspan/base/build.h"
#include "longspan/base/interleaved.h"
#include "longspan/base/memory.h"
#include "longspan/base/threads.h"
#include "longspan/cli/bench_kernels.h"
#include "longspan/cli/commands.h"
#include "longspan/cli/device.h"
#include "longspan/cli/kernel_cases.h"
#include "longspan/kernels/layout.h"

namespace longspan::cli {
namespace {

void print_header() {
  std::cout << at::get_num_threads() << " threads, " << cpu::name(cpu::isa()) << ", "
            << blas_facts().name
            << "\nratio: how many times faster than the reference, in "
            << "FLOP of visible pairs where that is sgemm\n\n"
            << std::left << std::setw(40) << "case" << std::setw(26) << "reference"
            << std::right << std::setw(10) << "ms" << std::setw(10) << "CPU ms"
            << std::setw(14) << "reference ms" << std::setw(9) << "GFLOP/s"
            << std::setw(10) << "executed" << std::setw(9) << "peak MB" << std::setw(8)
            << "ratio" << std::setw(8) << "by CPU" << std::setw(7) << "must"
            << std::setw(7) << "good" << std::endl;
}

struct Row {
  Interleaved times = {};
  double ratio = 0, cpu_ratio = 0;
  double useful = 0, executed = 0;  // GFLOP/s; 0: not counted
  int64_t peak_bytes = 0;           // of ours, beside what it works on
  int threads = 0;
  cpu::Isa isa = {};
};

Row measured(const Case& one, int64_t count) {
  release_cached_memory();
  torch::manual_seed(1);
  const Work work = one.prepare();
  Row row{.threads = one.threads > 0 ? one.threads : at::get_num_threads(),
          .isa = one.isa.value_or(cpu::isa())};
  const Step ours = [&] {
    const UseThreads with_threads(row.threads);
    const cpu::UseIsa with_isa(row.isa);
    return work.ours();
  };
  const auto peak_bytes = [](const Step& step, torch::Tensor& result) {
    const PeakBytes peak(torch::kCPU);
    result = step();
    return peak.newly();
  };
  torch::Tensor result, expected;
  row.peak_bytes = peak_bytes(ours, result);
  const int64_t reference_bytes = peak_bytes(work.reference, expected);
  if (work.alike) {
    expected = expected.view_as(result);
    const auto error = ((result - expected).norm() / expected.norm()).item<double>();
    require(error < 1e-3, one.name, ": differs from ", one.reference, " by ", error,
            " of its size");
  }
  // Freed memory is kept up to what lived at once: let both find theirs again.
  torch::empty({(row.peak_bytes + reference_bytes) * 5 / 4}, torch::kByte);
  row.times = interleaved(ours, work.reference, count);
  row.ratio = work.scale * row.times.ratio.wall;
  row.cpu_ratio = work.scale * row.times.ratio.cpu;
  row.useful = work.useful / row.times.ours.wall / 1e9;
  row.executed = work.executed / row.times.ours.wall / 1e9;
  return row;
}

void print_json(const Case& one, const Row& row) {
  const auto if_set = [](double value) {
    return value > 0 ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
  };
  std::cout << nlohmann::ordered_json{{"case", one.name},
                                      {"reference", one.reference},
                                      {"ratio", row.ratio},
                                      {"cpu_ratio", row.cpu_ratio},
                                      {"must", if_set(one.target.must)},
                                      {"good", if_set(one.target.good)},
                                      {"seconds", row.times.ours.wall},
                                      {"cpu_seconds", row.times.ours.cpu},
                                      {"reference_seconds", row.times.theirs.wall},
                                      {"reference_cpu_seconds", row.times.theirs.cpu},
                                      {"useful_gflops", if_set(row.useful)},
                                      {"executed_gflops", if_set(row.executed)},
                                      {"peak_bytes", row.peak_bytes},
                                      {"threads", row.threads},
                                      {"isa", cpu::name(row.isa)}}
                   .dump()
            << std::endl;
}

void print(const Case& one, const Row& row) {
  const auto cell = [](int width, int digits, double value) {
    std::cout << std::setw(width) << std::setprecision(digits) << value;
  };
  const auto cell_if_set = [&](int width, int digits, double value) {
    if (value > 0)
      cell(width, digits, value);
    else
      std::cout << std::setw(width) << "-";
  };
  std::cout << std::left << std::setw(40) << one.name << std::setw(26) << one.reference
            << std::right << std::fixed;
  cell(10, 2, 1e3 * row.times.ours.wall);
  cell(10, 2, 1e3 * row.times.ours.cpu);
  cell(14, 2, 1e3 * row.times.theirs.wall);
  cell_if_set(9, 1, row.useful);
  cell_if_set(10, 1, row.executed);
  cell(9, 1, static_cast<double>(row.peak_bytes) / 1e6);
  cell(8, 2, row.ratio);
  cell(8, 2, row.cpu_ratio);
  cell_if_set(7, 2, one.target.must);
  cell_if_set(7, 2, one.target.good);
  std::cout << std::defaultfloat << std::endl;
}

void bench_cpu_kernels(const KernelOptions& options) {
  std::vector<Case> cases = main_cases(options.length);
  if (options.all)
    for (Case& one : sweep_cases(options.length))
      if (std::ranges::none_of(cases, [&](const Case& other) {
            return other.name == one.name && other.reference == one.reference;
          }))
        cases.push_back(std::move(one));
  std::erase_if(cases, [&](const Case& one) {
    return (one.name + ", " + one.reference).find(options.only) == std::string::npos;
  });
  if (cases.empty())
    throw UsageError("--only: no case has '" + options.only +
                     "' in its name or that of its reference");
  if (!options.json) print_header();
  for (const Case& one : cases) {
    const Row row = measured(one, options.turns);
    options.json ? print_json(one, row) : print(one, row);
  }
}

void bench_kernels(const KernelOptions& options) {
  if (options.length % Layout::kTile != 0)
    throw UsageError("--length must be a multiple of 64, got " +
                     std::to_string(options.length));
  const torch::Device device = argument([&] { return usable_device(options.device); });
  if constexpr (kHasCuda)
    if (device.is_cuda()) return bench_cuda_kernels(options);
  bench_cpu_kernels(options);
}

}  // namespace

void add_bench_kernels(CLI::App& bench) {
  auto* const verb = bench.add_subcommand(
      "kernels",
      "the kernels, each in turn with what it is compared with: on the CPU large "
      "matrix products, forms in tensor operations (with reused memory: warm; with "
      "LibTorch's own: as shipped), memcpy, or another kernel; on CUDA LibTorch's own "
      "attention, which takes no part in ours here, and copies of memory. Ratios are "
      "medians over the turns; more is better. must and good: what to reach, where it "
      "is set");
  verb->footer(
      "Examples:\n"
      "  longspan bench kernels                        takes about a minute\n"
      "  longspan bench kernels --only 'window 256' --threads 1\n"
      "  longspan bench kernels --all --only sgemm --json > kernels.jsonl\n"
      "  longspan bench kernels --device cuda          takes two minutes");
  const auto options = std::make_shared<KernelOptions>();
  verb->add_flag("--all", options->all,
                 "also every pattern, and more lengths and widths; on the CPU the "
                 "longest take minutes each");
  verb->add_option("--only", options->only,
                   "cases with these words in their name or that of the reference");
  verb->add_option("--length", options->length,
                   "tokens of every case, a multiple of 64; 0: what suits the case")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 20));
  verb->add_option("--turns", options->turns, "how often each pair is timed")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  verb->add_option("--device", options->device, "cpu or cuda")->capture_default_str();
  verb->add_flag("--json", options->json, "a line of JSON for each case");
  add_threads(*verb);
  verb->callback([=] { bench_kernels(*options); });
}

}  // namespace longspan::cli
