#include "longspan/cli/attention_speed.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <torch/csrc/autograd/generated/variable_factories.h>

#include "longspan/base/memory.h"

namespace longspan::cli {
namespace {

constexpr double kWithBackward = 3.5;  // times the FLOPs of forward, for softmax

Form form_of(const Mechanism& mechanism) {
  if (mechanism.seam() == "stack") return Form::blocks;
  return mechanism.seam() == "attention" ? Form::heads : Form::tokens;
}

// Freed memory is kept up to what lived at once: let all find theirs again.
void keep_memory(int64_t bytes, torch::Device device) {
  if (device.is_cpu()) torch::empty({bytes * 5 / 4}, torch::kByte);
}

// The slope of the line through the logarithms.
std::optional<double> exponent(const std::vector<std::pair<double, double>>& points) {
  double x_mean = 0, y_mean = 0;
  for (const auto& [x, y] : points) {
    x_mean += std::log(x) / static_cast<double>(points.size());
    y_mean += std::log(y) / static_cast<double>(points.size());
  }
  double together = 0, spread = 0;
  for (const auto& [x, y] : points) {
    const double offset = std::log(x) - x_mean;
    together += offset * (std::log(y) - y_mean);
    spread += offset * offset;
  }
  if (points.size() < 2) return std::nullopt;
  return together / spread;
}

}  // namespace

Spent timed(AttentionLayer& layer, int64_t turns) {
  keep_memory(layer.peak_bytes(), layer.device());
  const auto nothing = [] {};
  return layer.of_one_pass(interleaved([&] { layer.turn(); }, nothing, turns).ours);
}

Interleaved timed(AttentionLayer& ours, AttentionLayer& theirs, int64_t turns) {
  keep_memory(ours.peak_bytes() + theirs.peak_bytes(), ours.device());
  const Interleaved times =
      interleaved([&] { ours.turn(); }, [&] { theirs.turn(); }, turns);
  const double scale = static_cast<double>(ours.passes()) / theirs.passes();
  return {.ours = ours.of_one_pass(times.ours),
          .theirs = theirs.of_one_pass(times.theirs),
          .ratio = {scale * times.ratio.wall, scale * times.ratio.cpu}};
}

AttentionBench::AttentionBench(const Mechanism& mechanism, Value::Map settings,
                               const AttentionSetup& setup, const Turns& turns)
    : mechanism_(mechanism),
      settings_(std::move(settings)),
      setup_(setup),
      turns_(turns) {}

AttentionLayer AttentionBench::layer(int64_t length) const {
  return {mechanism_, settings_, form_of(mechanism_), length, setup_};
}

AttentionLayer AttentionBench::dense_layer(int64_t length, int64_t blocks) const {
  return {catalogue::dense, {}, form_of(mechanism_), length, setup_, blocks};
}

AttentionSpeed AttentionBench::measured(int64_t length) {
  AttentionSpeed speed{.length = length};
  const bool is_dense = &mechanism_ == &catalogue::dense;
  const bool with_dense = length <= turns_.dense_until;
  if (is_dense && !with_dense) {
    extrapolate_dense(speed, /*blocks=*/0);
    speed.ours = speed.dense;
    speed.ratio = {1, 1};
    return speed;
  }
  release_cached_memory();
  AttentionLayer ours = layer(length);
  speed.peak_bytes = ours.peak_bytes();
  if (is_dense) {
    speed.ours = speed.dense = timed(ours, turns_.count);
    speed.dense_peak_bytes = speed.peak_bytes;
    speed.ratio = {1, 1};
  } else if (with_dense) {
    AttentionLayer dense = dense_layer(length, ours.blocks());
    speed.dense_peak_bytes = dense.peak_bytes();
    const Interleaved times = timed(ours, dense, turns_.count);
    speed.ours = times.ours;
    speed.dense = times.theirs;
    speed.ratio = times.ratio;
  } else {
    speed.ours = timed(ours, turns_.count);
    extrapolate_dense(speed, ours.blocks());
    speed.ratio = {speed.dense.wall / speed.ours.wall,
                   speed.dense.cpu / speed.ours.cpu};
  }
  if (with_dense) longest_dense_ = {length, speed.dense};
  speed.flops = ours.forward_flops();
  speed.useful_gflops =
      (setup_.backward ? kWithBackward : 1) * speed.flops / speed.ours.wall / 1e9;
  return speed;
}

void AttentionBench::extrapolate_dense(AttentionSpeed& speed, int64_t blocks) {
  auto& [length, spent] = longest_dense_;
  if (length == 0) {
    AttentionLayer dense = dense_layer(turns_.dense_until, blocks);
    length = turns_.dense_until;
    spent = timed(dense, turns_.count);
  }
  const double longer = static_cast<double>(speed.length) / static_cast<double>(length);
  speed.dense = {longer * longer * spent.wall, longer * longer * spent.cpu};
  speed.extrapolated = true;
}

Growth growth(const std::vector<AttentionSpeed>& speeds) {
  Growth growth;
  std::vector<std::pair<double, double>> times, bytes;
  for (const AttentionSpeed& speed : speeds) {
    if (speed.peak_bytes <= 0) continue;  // dense, extrapolated
    const auto length = static_cast<double>(speed.length);
    times.emplace_back(length, speed.ours.wall);
    bytes.emplace_back(length, static_cast<double>(speed.peak_bytes));
  }
  growth.time = exponent(times);
  growth.memory = exponent(bytes);

  size_t first = speeds.size();  // from here on all are faster
  while (first > 0 && speeds[first - 1].ratio.wall > 1) --first;
  const bool anywhere = std::ranges::any_of(
      speeds, [](const AttentionSpeed& speed) { return speed.ratio.wall > 1; });
  if (!anywhere) return growth;
  growth.faster = first == 0               ? Faster::always
                  : first == speeds.size() ? Faster::sometimes
                                           : Faster::from_crossover;
  if (growth.faster != Faster::from_crossover) return growth;
  const AttentionSpeed &slower = speeds[first - 1], &faster = speeds[first];
  const double from = std::log(slower.length), to = std::log(faster.length);
  const double below = std::log(slower.ratio.wall), above = std::log(faster.ratio.wall);
  growth.crossover = std::exp(from - (to - from) * below / (above - below));
  growth.extrapolated = slower.extrapolated || faster.extrapolated;
  return growth;
}

}  // namespace longspan::cli
