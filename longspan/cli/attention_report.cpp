#include "longspan/cli/attention_report.h"

#include <algorithm>
#include <iomanip>
#include <iostream>
#include <map>
#include <set>
#include <sstream>
#include <string_view>

#include <ATen/Parallel.h>

namespace longspan::cli {

using report::Axis, report::Panel, report::Scale, report::Series;
namespace {

using nlohmann::ordered_json;

std::string_view name(torch::Dtype type) {
  return type == torch::kFloat ? "float" : "bfloat16";
}

std::string_view name(Faster faster) {
  switch (faster) {
    case Faster::never: return "never";
    case Faster::sometimes: return "sometimes";
    case Faster::from_crossover: return "from crossover";
    case Faster::always: return "always";
  }
  TORCH_INTERNAL_ASSERT(false);
}

ordered_json json(const Value& value) {
  if (const auto* whole = value.as<int64_t>()) return *whole;
  if (const auto* number = value.as<double>()) return *number;
  if (const auto* flag = value.as<bool>()) return *flag;
  if (const auto* word = value.as<std::string>()) return *word;
  if (const auto* list = value.as<Value::List>()) {
    auto items = ordered_json::array();
    for (const Value& item : *list) items.push_back(json(item));
    return items;
  }
  auto items = ordered_json::object();
  for (const auto& [key, item] : *value.as<Value::Map>()) items[key] = json(item);
  return items;
}

template <class Number>
ordered_json if_measured(Number number) {
  return number > 0 ? ordered_json(number) : ordered_json();
}

ordered_json if_known(const std::optional<double>& number) {
  return number ? ordered_json(*number) : ordered_json();
}

void print_cell(double value, int digits, std::string_view mark = "") {
  constexpr double kWide = 1e5;
  if (value >= kWide) digits = 0;
  std::ostringstream text;
  text << mark << std::fixed << std::setprecision(digits) << value;
  std::cout << std::setw(10) << (value > 0 ? text.str() : "-");
}

double megabytes(int64_t bytes) { return static_cast<double>(bytes) / 1e6; }

}  // namespace

std::string Candidate::name() const {
  const std::string word(mechanism.name);
  return given.empty() ? word : word + " " + Value(given).text();
}

std::string words(const AttentionSetup& setup) {
  std::ostringstream text;
  text << (setup.backward ? "forward and backward" : "forward")
       << (setup.causal ? ", causal" : "") << "; batch " << setup.batch << ", "
       << setup.heads << " heads of " << setup.head_width << ", " << name(setup.type)
       << " on " << setup.device.str() << ", " << at::get_num_threads() << " threads";
  return text.str();
}

AttentionReport::AttentionReport(const AttentionSetup& setup,
                                 const std::vector<Candidate>& candidates, Style style)
    : setup_(setup), style_(style) {
  if (style == Style::json) return;
  const std::string heading = "mechanism";
  name_width_ = heading.size();
  for (const Candidate& candidate : candidates)
    name_width_ = std::max(name_width_, candidate.name().size());
  std::cout << words(setup) << "\nratio: how many times faster than dense; "
            << "~: dense was not timed, but extrapolated\n\n";
  print_name(heading);
  for (const char* column : {"tokens", "ms", "CPU ms", "dense ms", "ratio", "by CPU",
                             "GFLOP", "GFLOP/s", "peak MB", "dense MB"})
    std::cout << std::setw(10) << column;
  std::cout << std::endl;
}

void AttentionReport::print_name(const std::string& name) const {
  std::cout << std::left << std::setw(static_cast<int>(name_width_)) << name
            << std::right;
}

ordered_json AttentionReport::common(const Candidate& candidate) const {
  return {{"mechanism", candidate.mechanism.name},
          {"settings", json(candidate.settings)},
          {"seam", candidate.mechanism.seam()},
          {"causal", setup_.causal},
          {"backward", setup_.backward},
          {"batch", setup_.batch},
          {"heads", setup_.heads},
          {"head_width", setup_.head_width},
          {"type", name(setup_.type)},
          {"device", setup_.device.str()},
          {"threads", at::get_num_threads()}};
}

void AttentionReport::refused(const Candidate& candidate, int64_t length,
                              const std::string& reason) const {
  if (style_ == Style::json) {
    ordered_json line = common(candidate);
    if (length > 0) line["length"] = length;
    line["refused"] = reason;
    std::cout << line.dump() << std::endl;
    return;
  }
  print_name(candidate.name());
  if (length > 0) std::cout << std::setw(10) << length;
  std::cout << "  refused: " << reason << std::endl;
}

void AttentionReport::speed(const Candidate& candidate) const {
  const AttentionSpeed& speed = candidate.speeds.back();
  if (style_ == Style::json) {
    ordered_json line = common(candidate);
    line["length"] = speed.length;
    line["seconds"] = speed.ours.wall;
    line["cpu_seconds"] = speed.ours.cpu;
    line["dense_seconds"] = speed.dense.wall;
    line["dense_cpu_seconds"] = speed.dense.cpu;
    line["extrapolated"] = speed.extrapolated;
    line["ratio"] = speed.ratio.wall;
    line["cpu_ratio"] = speed.ratio.cpu;
    line["flops"] = if_measured(static_cast<int64_t>(speed.flops));
    line["useful_gflops"] = if_measured(speed.useful_gflops);
    line["peak_bytes"] = if_measured(speed.peak_bytes);
    line["dense_peak_bytes"] = if_measured(speed.dense_peak_bytes);
    std::cout << line.dump() << std::endl;
    return;
  }
  const std::string_view mark = speed.extrapolated ? "~" : "";
  const std::string_view own_mark = candidate.is_dense() ? mark : "";
  print_name(candidate.name());
  std::cout << std::setw(10) << speed.length;
  print_cell(1e3 * speed.ours.wall, 2, own_mark);
  print_cell(1e3 * speed.ours.cpu, 2, own_mark);
  print_cell(1e3 * speed.dense.wall, 2, mark);
  print_cell(speed.ratio.wall, 2, mark);
  print_cell(speed.ratio.cpu, 2, mark);
  print_cell(speed.flops / 1e9, 2);
  print_cell(speed.useful_gflops, 1);
  print_cell(megabytes(speed.peak_bytes), 2);
  print_cell(megabytes(speed.dense_peak_bytes), 2);
  std::cout << std::endl;
}

void AttentionReport::growth(const Candidate& candidate) const {
  const Growth growth = longspan::cli::growth(candidate.speeds);
  if (style_ == Style::json) {
    ordered_json line = common(candidate);
    line["time_exponent"] = if_known(growth.time);
    line["memory_exponent"] = if_known(growth.memory);
    line["crossover"] = if_known(growth.crossover);
    line["faster"] = candidate.is_dense() ? ordered_json() : name(growth.faster);
    line["extrapolated"] = growth.extrapolated;
    std::cout << line.dump() << std::endl;
    return;
  }
  std::cout << "  " << std::fixed << std::setprecision(2);
  if (growth.time)
    std::cout << "time grows as N^" << *growth.time << ", memory as N^"
              << *growth.memory << "; ";
  if (candidate.is_dense()) {
    std::cout << "what the others are compared with";
  } else if (growth.faster == Faster::from_crossover) {
    std::cout << "faster than dense from " << (growth.extrapolated ? "~" : "")
              << std::setprecision(0) << *growth.crossover << " tokens on";
  } else {
    std::cout << (growth.faster == Faster::never ? "never faster than dense"
                  : growth.faster == Faster::always
                      ? "faster than dense at all measured lengths"
                      : "faster than dense at some lengths, but not at the longest");
  }
  std::cout << std::defaultfloat << std::endl;
}

report::Chart attention_chart(const AttentionSetup& setup,
                              const std::vector<Candidate>& candidates) {
  std::set<double> lengths;
  std::vector<Series> times, bytes;
  std::map<std::string, std::map<int64_t, AttentionSpeed>> dense;  // by name, length
  for (const Candidate& candidate : candidates) {
    const bool mixes = candidate.mechanism.seam() == "mixer";
    Series time{.name = candidate.name()}, memory = time;
    for (const AttentionSpeed& speed : candidate.speeds) {
      const auto length = static_cast<double>(speed.length);
      lengths.insert(length);
      time.points.push_back({length, 1e3 * speed.ours.wall});
      memory.points.push_back({length, megabytes(speed.peak_bytes)});
      dense[mixes ? "dense with projections" : "dense"].emplace(speed.length, speed);
    }
    if (candidate.is_dense() || candidate.speeds.empty()) continue;
    times.push_back(time);
    bytes.push_back(memory);
  }
  bool extrapolated = false;
  for (const auto& [name, speeds] : dense) {
    Series time{.name = name, .dashed = true}, memory = time;
    for (const auto& [length, speed] : speeds) {
      const auto x = static_cast<double>(length);
      time.points.push_back({x, 1e3 * speed.dense.wall, speed.extrapolated});
      memory.points.push_back({x, megabytes(speed.dense_peak_bytes)});
      extrapolated = extrapolated || speed.extrapolated;
    }
    times.push_back(time);
    bytes.push_back(memory);
  }
  const Axis tokens{.label = "tokens",
                    .scale = Scale::logarithmic,
                    .ticks = {lengths.begin(), lengths.end()}};
  const auto panel = [&](const char* title, const char* unit,
                         const std::vector<Series>& series) {
    return Panel{.title = title,
                 .x = tokens,
                 .y = {.label = unit, .scale = Scale::logarithmic},
                 .series = series};
  };
  return {.title = "Attention over length",
          .note = words(setup) + (extrapolated ? "; hollow: extrapolated as N^2" : ""),
          .panels = {panel("Time", "milliseconds", times),
                     panel("Peak memory beside the input", "MB", bytes)}};
}

}  // namespace longspan::cli
