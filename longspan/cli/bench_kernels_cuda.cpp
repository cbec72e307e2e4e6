// The kernels on CUDA, in turn with what they are compared with. LibTorch's attention
// takes no part in ours.

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <iostream>
#include <optional>
#include <sstream>

#include <ATen/cuda/Sleep.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/cuda.h>
#include <torch/version.h>
#include <nlohmann/json.hpp>

#include "longspan/base/interleaved.h"
#include "longspan/base/memory.h"
#include "longspan/cli/bench_kernels.h"
#include "longspan/cli/commands.h"
#include "longspan/cli/info_cuda.h"
#include "longspan/cli/kernel_cases_cuda.h"
#include "longspan/kernels/block_attention.h"

namespace longspan::cli {
namespace {

using nlohmann::ordered_json;

void check(cudaError_t error) {
  require(error == cudaSuccess, "CUDA: ", cudaGetErrorString(error));
}

class Event {
 public:
  Event() { check(cudaEventCreate(&event_)); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record() {
    check(cudaEventRecord(event_, c10::cuda::getCurrentCUDAStream().stream()));
  }

  double seconds_since(const Event& start) const {
    check(cudaEventSynchronize(event_));
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, start.event_, event_));
    return milliseconds / 1e3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// Steps, so many in a row that their time can be measured.
class Timed {
 public:
  explicit Timed(CudaStep step) : step_(std::move(step)) {
    constexpr double kTurn = 4e-3, kMostSteps = 20;
    for (int i = 0; i < 3; ++i) step_();
    torch::cuda::synchronize();
    const double host = spent_on([&] { step_(); }).wall;
    torch::cuda::synchronize();
    const double whole = spent_on([&] {
                           step_();
                           torch::cuda::synchronize();
                         }).wall;
    steps_ = static_cast<int>(std::clamp(std::ceil(kTurn / whole), 1.0, kMostSteps));
    constexpr double kLongestWait = 0.05, kClock = 2e9;
    wait_ = static_cast<int64_t>(kClock * std::min(2 * steps_ * host, kLongestWait));
  }

  // Of one step. The GPU first waits as long as the host needs to hand it all of them.
  double seconds() const {
    Event start, end;
    at::cuda::sleep(wait_);
    start.record();
    for (int i = 0; i < steps_; ++i) step_();
    end.record();
    return end.seconds_since(start) / steps_;
  }

 private:
  CudaStep step_;
  int steps_ = 1;
  int64_t wait_ = 0;
};

struct Beside {
  Contender contender;
  std::string refused = {};  // why; empty if it was measured
  double seconds = 0, ratio = 0;
};

struct Row {
  double seconds = 0;
  double teraflops = 0, gigabytes = 0;  // a second; 0: not counted
  int64_t peak_bytes = 0;               // of ours, beside what it works on
  std::vector<Beside> beside;
};

// Why something could not be done, or nothing.
template <class Work>
std::string refusal(const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  } catch (const c10::Error& error) {
    const std::string reason = error.what_without_backtrace();
    return reason.substr(0, reason.find('\n'));
  }
  return "";
}

// What `make` gives, warm, and compared with `result`; a refusal is noted.
std::optional<Timed> entered(Beside& beside, const Tensors& result,
                             const std::string& name) {
  const Contender& contender = beside.contender;
  CudaStep step;
  Tensors theirs;
  beside.refused = refusal([&] {
    step = contender.make();
    theirs = step();
  });
  if (!beside.refused.empty()) return std::nullopt;
  for (size_t i = 0; contender.alike && i < result.size(); ++i) {
    const auto expected = theirs[i].to(torch::kFloat);
    const auto error =
        ((result[i].to(torch::kFloat) - expected).norm() / expected.norm())
            .item<double>();
    constexpr double kLimit = 2e-2;  // bfloat16 has 8 bits
    require(error < kLimit, name, ": result ", i, " differs from that of ",
            contender.name, " by ", error, " of its size");
  }
  return Timed(step);
}

Row measured(const CudaCase& one, int64_t turns) {
  c10::cuda::CUDACachingAllocator::emptyCache();
  torch::manual_seed(1);
  const CudaWork work = one.prepare();
  Row row;
  Tensors result = work.ours();
  {
    const PeakBytes peak(torch::Device(torch::kCUDA, 0));
    const Tensors again = work.ours();
    row.peak_bytes = peak.newly();
    for (size_t i = 0; i < result.size(); ++i)
      require(result[i].equal(again[i]), one.name, ": result ", i,
              " was another in the second run");
  }
  std::vector<Timed> timed{Timed(work.ours)};
  std::vector<size_t> numbers;  // of the contenders that are timed
  for (const Contender& contender : work.contenders) {
    row.beside.push_back({.contender = contender});
    if (auto entry = entered(row.beside.back(), result, one.name)) {
      timed.push_back(std::move(*entry));
      numbers.push_back(row.beside.size() - 1);
    }
  }
  result.clear();
  std::vector<std::vector<double>> seconds(timed.size()), ratios(timed.size());
  for (int64_t turn = 0; turn < turns; ++turn)
    for (size_t i = 0; i < timed.size(); ++i) {
      seconds[i].push_back(timed[i].seconds());
      ratios[i].push_back(seconds[i].back() / seconds[0].back());
    }
  row.seconds = median(seconds[0]);
  row.teraflops = work.flop / row.seconds / 1e12;
  row.gigabytes = work.bytes / row.seconds / 1e9;
  for (size_t i = 1; i < timed.size(); ++i) {
    Beside& beside = row.beside[numbers[i - 1]];
    beside.seconds = median(seconds[i]);
    beside.ratio = beside.contender.scale * median(ratios[i]);
  }
  return row;
}

void print_json(const CudaCase& one, const Row& row) {
  const auto if_set = [](double value) {
    return value > 0 ? ordered_json(value) : ordered_json();
  };
  ordered_json beside = ordered_json::object();
  for (const auto& [contender, refused, seconds, ratio] : row.beside) {
    if (!refused.empty()) {
      beside[contender.name] = {{"refused", refused}};
      continue;
    }
    beside[contender.name] = {{"ratio", ratio},
                              {"must", if_set(contender.target.must)},
                              {"good", if_set(contender.target.good)},
                              {"seconds", seconds}};
  }
  std::cout << ordered_json{{"case", one.name},
                            {"seconds", row.seconds},
                            {"useful_tflops", if_set(row.teraflops)},
                            {"gigabytes_per_second", if_set(row.gigabytes)},
                            {"peak_bytes", row.peak_bytes},
                            {"beside", beside}}
                   .dump()
            << std::endl;
}

constexpr int kNameWidth = 44, kCellWidth = 11;

void print_columns(const CudaCase& one) {
  std::cout << '\n' << std::left << std::setw(kNameWidth) << "case" << std::right;
  for (const char* column : {"ms", "TFLOP/s", "GB/s", "peak MB"})
    std::cout << std::setw(kCellWidth) << column;
  for (const std::string& name : one.contenders)
    std::cout << std::setw(kCellWidth) << name;
  std::cout << std::endl;
}

void print(const CudaCase& one, const Row& row) {
  const auto cell = [](double value, int digits, const std::string& ending = "") {
    std::ostringstream text;
    text << std::fixed << std::setprecision(digits) << value << ending;
    std::cout << std::setw(kCellWidth) << (value > 0 ? text.str() : "-");
  };
  std::cout << std::left << std::setw(kNameWidth) << one.name << std::right;
  cell(1e3 * row.seconds, 3);
  cell(row.teraflops, 1);
  cell(row.gigabytes, 0);
  cell(static_cast<double>(row.peak_bytes) / 1e6, 1);
  for (const std::string& name : one.contenders) {
    const auto found = std::ranges::find(
        row.beside, name, [](const Beside& beside) { return beside.contender.name; });
    if (found == row.beside.end()) {
      cell(0, 0);
      continue;
    }
    const auto& [must, good] = found->contender.target;
    const bool is_low = found->ratio<must, is_good = good> 0 && found->ratio >= good;
    cell(found->ratio, 2, is_low ? "x!" : is_good ? "x+" : "x ");
  }
  std::cout << std::endl;
}

// Lets only kernels of ours compute what is ours.
class OwnAttention {
 public:
  OwnAttention() { use_torch_attention(false); }
  ~OwnAttention() { use_torch_attention(before_); }
  OwnAttention(const OwnAttention&) = delete;
  OwnAttention& operator=(const OwnAttention&) = delete;

 private:
  bool before_ = uses_torch_attention();
};

}  // namespace

void bench_cuda_kernels(const KernelOptions& options) {
  std::vector<CudaCase> cases = main_cuda_cases(options.length);
  if (options.all)
    for (CudaCase& one : sweep_cuda_cases(options.length))
      if (std::ranges::none_of(
              cases, [&](const CudaCase& other) { return other.name == one.name; }))
        cases.push_back(std::move(one));
  std::erase_if(cases, [&](const CudaCase& one) {
    return one.name.find(options.only) == std::string::npos;
  });
  if (cases.empty())
    throw UsageError("--only: no case has '" + options.only + "' in its name");
  const OwnAttention only_ours;
  const CudaFacts gpu = cuda_facts();
  if (!options.json)
    std::cout << gpu.name << " (sm_" << gpu.architecture << "), LibTorch "
              << TORCH_VERSION
              << "\nratios: how many times faster than flash, cuDNN and efficient (of "
                 "LibTorch), than the\nsame in LibTorch's operations (torch), than own "
                 "dense attention times the share of the\ntiles that are visited, or "
                 "without a gather (own), than copying the bytes moved (copy)\nor the "
                 "bytes of the tensors (least); !: less than it must be, +: good"
              << std::endl;
  const CudaCase* before = nullptr;
  bool any_failed = false;
  for (const CudaCase& one : cases) {
    if (!options.json && (!before || before->contenders != one.contenders))
      print_columns(one);
    before = &one;
    const std::string failure = refusal([&] {
      const Row row = measured(one, options.turns);
      options.json ? print_json(one, row) : print(one, row);
    });
    if (failure.empty()) continue;
    any_failed = true;
    if (options.json)
      std::cout << ordered_json{{"case", one.name}, {"failed", failure}}.dump()
                << std::endl;
    else
      std::cout << std::left << std::setw(kNameWidth) << one.name << "  " << failure
                << std::endl;
  }
  if (any_failed) throw Failed();
}

}  // namespace longspan::cli
