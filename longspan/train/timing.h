// How long a model takes, by the clock.

#pragma once

#include <cstdint>
#include <functional>

#include "longspan/train/experiment.h"

namespace longspan {

struct Timing {
  double mean = 0, deviation = 0;  // in seconds
  int64_t peak_bytes = 0;
};

// `work` so many times, after once to warm up; each time to its end on the device.
Timing timed(int64_t repeat, torch::Device device, const std::function<void()>& work);

// The protocol of Brown et al. 2022, arXiv:2210.00640, appendix C: forward passes over
// random sequences of full length, one at a time on the CPU and 32 on a GPU.
struct LatencyOptions {
  int64_t passes = 100;
  int64_t batch = 0;              // 0: 1, on CUDA 32
  int64_t length = 0;             // in tokens; 0: the longest of the task
  const Record* carry = nullptr;  // what the model carries, if it is of the model
};

struct Latency {
  Timing timing = {};
  int64_t passes = 0, batch = 0, length = 0;
  int64_t flops = 0;  // of one sequence
  int64_t threads = 0;
};

// Of a model in evaluation mode.
Latency latency(const TaskModel& model, const Task& task, torch::Device device,
                const LatencyOptions& options = {});

}  // namespace longspan
