#include "longspan/train/timing.h"

#include <cmath>
#include <numeric>
#include <vector>

#include <ATen/Parallel.h>
#include <torch/cuda.h>

#include "longspan/base/interleaved.h"
#include "longspan/base/memory.h"

namespace longspan {

Timing timed(int64_t repeat, torch::Device device, const std::function<void()>& work) {
  const auto wait = [&] {
    if (device.is_cuda()) torch::cuda::synchronize();
  };
  work();  // warm
  wait();
  const PeakBytes peak(device);
  std::vector<double> seconds;
  for (int64_t i = 0; i < repeat; ++i) {
    const Spent spent = spent_on([&] {
      work();
      wait();
    });
    seconds.push_back(spent.wall);
  }
  const auto count = static_cast<double>(repeat);
  const double mean = std::accumulate(seconds.begin(), seconds.end(), 0.0) / count;
  double square = 0;
  for (const double one : seconds) square += (one - mean) * (one - mean);
  return {mean, std::sqrt(square / std::max(1.0, count - 1)), peak.total()};
}

Latency latency(const TaskModel& model, const Task& task, torch::Device device,
                const LatencyOptions& options) {
  Latency found{.passes = options.passes,
                .batch = options.batch > 0  ? options.batch
                         : device.is_cuda() ? 32
                                            : 1,
                .length = options.length > 0 ? options.length : task.longest,
                .threads = at::get_num_threads()};
  found.flops = forward_flops(model, task, found.length, device);
  const Batch input = random_batch(task, found.batch, found.length).to(device);
  const auto objective = model.objective(task);
  const torch::NoGradGuard without_gradients;
  found.timing = timed(options.passes, device, [&] {
    Pass pass;
    Record kept;
    if (options.carry && is_of_model(objective->carry())) {
      kept = *options.carry;
      pass.carry = &kept;
    }
    objective->evaluate(input, pass);
  });
  return found;
}

}  // namespace longspan
