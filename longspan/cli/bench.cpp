#include <iomanip>
#include <iostream>
#include <memory>

#include <nlohmann/json.hpp>

#include "longspan/cli/commands.h"
#include "longspan/cli/experiment_options.h"
#include "longspan/train/timing.h"

namespace longspan::cli {
namespace {

struct BenchOptions {
  int64_t batch = 0, length = 0, repeat = 100, steps = 5;
  bool json = false;
};

void bench_model(const Experiment& experiment, const BenchOptions& options) {
  Experiment one = experiment;
  if (options.length > 0) one.task.longest = options.length;
  const Task task = outline_task(one.task);
  const auto model = make_model(one, task);
  const torch::Device device = device_of(one.train);
  torch::manual_seed(static_cast<uint64_t>(one.train.seed));
  model.module().eval();
  const auto [forward, passes, batch, length, flops, threads] =
      latency(model, task, device, {.passes = options.repeat, .batch = options.batch});
  const auto drawn_batch = [&](int64_t examples) {
    return random_batch(task, examples, length).to(device);
  };

  const auto objective = model.objective(task);
  model.module().train();
  AdamW optimizer(named_parameters(model.module()), one.train.adamw);
  const int64_t whole = one.train.batch;
  const int64_t micro = one.train.micro_batch > 0 ? one.train.micro_batch : whole;
  std::vector<Batch> parts;
  for (int64_t first = 0; first < whole; first += micro)
    parts.push_back(drawn_batch(std::min(micro, whole - first)));
  uint64_t step = 0;
  const Timing training = timed(options.steps, device, [&] {
    model.module().zero_grad();
    for (const Batch& part : parts) {
      Pass pass;
      pass.training = true;
      pass.draw = Draw(1, step);
      pass.sampling = true;
      const auto answers = static_cast<double>(part.answers);
      const double share =
          static_cast<double>(part.examples()) / static_cast<double>(whole);
      (objective->evaluate(part, pass).loss * (share / answers)).backward();
    }
    optimizer.step(1e-6);
    ++step;
  });

  const auto tokens_per_second = [&](int64_t examples, const Timing& timing) {
    return static_cast<double>(examples * length) / timing.mean;
  };
  const auto flops_per_second = [&](double factor, int64_t examples,
                                    const Timing& timing) {
    return factor * static_cast<double>(flops * examples) / timing.mean;
  };
  if (options.json) {
    const auto of = [&](const Timing& timing, int64_t examples, double factor) {
      return nlohmann::ordered_json{
          {"batch", examples},
          {"seconds", timing.mean},
          {"deviation", timing.deviation},
          {"tokens_per_second", tokens_per_second(examples, timing)},
          {"flops_per_second", flops_per_second(factor, examples, timing)},
          {"peak_bytes", timing.peak_bytes}};
    };
    std::cout << nlohmann::ordered_json{{"device", device.str()},
                                        {"length", length},
                                        {"parameters", parameter_count(model.module())},
                                        {"forward_flops", flops},
                                        {"forward", of(forward, batch, 1)},
                                        {"training_step", of(training, whole, 3)}}
                     .dump()
              << '\n';
    return;
  }
  std::cout << parameter_count(model.module()) << " parameters; "
            << std::setprecision(3) << static_cast<double>(flops) / 1e9
            << " GFLOP forward for one sequence of " << length << " tokens; on "
            << device.str() << '\n';
  const auto line = [&](const char* what, int64_t examples, double factor,
                        const Timing& timing) {
    std::cout << std::left << std::setw(14) << what << " batch " << std::setw(4)
              << examples << std::right << std::fixed << std::setprecision(2)
              << std::setw(10) << 1e3 * timing.mean << " ms +- " << std::setw(7)
              << 1e3 * timing.deviation << std::setprecision(0) << std::setw(12)
              << tokens_per_second(examples, timing) << " tokens/s"
              << std::setprecision(1) << std::setw(9)
              << flops_per_second(factor, examples, timing) / 1e9 << " GFLOP/s"
              << std::setw(9) << static_cast<double>(timing.peak_bytes) / 1e6
              << " MB peak\n"
              << std::defaultfloat;
  };
  line("forward", batch, 1, forward);
  line("training step", whole, 3, training);
}

}  // namespace

void add_bench(CLI::App& program) {
  auto* const verb = program.add_subcommand("bench", "measures speed and memory");
  verb->require_subcommand(1);
  auto* const model = verb->add_subcommand(
      "model",
      "a model of a configuration: mean of many forward passes on random sequences of "
      "full length (one on the CPU, 32 on a GPU), and of training steps");
  model->footer(
      "Examples:\n"
      "  longspan bench model -c configs/lra/listops/dense.yaml --repeat 10 --steps 1\n"
      "  longspan bench model -c mine.yaml --length 4096 --json");
  const auto experiment = std::make_shared<ExperimentOptions>(*model);
  const auto options = std::make_shared<BenchOptions>();
  const auto count = [&](const char* name, int64_t& value, int64_t least,
                         const char* help) {
    model->add_option(name, value, help)
        ->capture_default_str()
        ->check(CLI::Range(least, int64_t{1} << 30));
  };
  count("--batch", options->batch, 0, "sequences of a forward pass; 0: 1, on CUDA 32");
  count("--length", options->length, 0, "tokens; 0: the longest of the task");
  count("--repeat", options->repeat, 1, "forward passes");
  count("--steps", options->steps, 1, "training steps, of train.batch sequences");
  model->add_flag("--json", options->json, "one line of JSON");
  model->callback([=] {
    Experiment resolved = experiment->resolved();
    if (!experiment->dumped(fields(resolved))) bench_model(resolved, *options);
  });
  add_bench_kernels(*verb);
  add_bench_attention(*verb);
  add_bench_decode(*verb);
}

}  // namespace longspan::cli
