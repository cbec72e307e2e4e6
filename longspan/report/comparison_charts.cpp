#include "longspan/report/comparison_charts.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "longspan/base/words.h"
#include "longspan/report/chart.h"

namespace longspan::report {
namespace {

constexpr double kWidth = 460;  // of a panel

// Mechanisms have colours. In what else the entries of one differ, layers and heads if
// that tells them apart, is told by shapes and strokes. Where there is but one
// mechanism, or an entry of each, every entry has a colour.
class Looks {
 public:
  explicit Looks(const Comparison& comparison) {
    const auto& all = comparison.contenders;
    std::map<std::string, std::set<std::string>> shapes;
    std::map<std::string, int> counts;
    std::map<std::string, int64_t> layers;
    for (const Contender& contender : all) {
      const std::string mechanism = contender.mechanism();
      if (counts[mechanism]++ == 0) mechanisms_.push_back(mechanism);
      shapes[mechanism].insert(contender.shape());
      if (contender.is_judged())
        layers[contender.shape()] = contender.experiment.model.layers;
    }
    by_mechanism_ = mechanisms_.size() > 1 && mechanisms_.size() < all.size();
    const bool by_shape = std::ranges::all_of(counts, [&](const auto& count) {
      return shapes[count.first].size() == static_cast<size_t>(count.second);
    });
    std::vector<std::string> order;
    for (const auto& [shape, count] : layers) order.push_back(shape);
    std::ranges::stable_sort(order, std::greater(),
                             [&](const auto& shape) { return layers[shape]; });
    counts.clear();
    for (const Contender& contender : all) {
      const int variant =
          by_shape ? static_cast<int>(std::ranges::find(order, contender.shape()) -
                                      order.begin())
                   : counts[contender.mechanism()]++;
      looks_.emplace(contender.name(),
                     by_mechanism_
                         ? std::pair(number_of(contender.mechanism()), variant)
                         : std::pair(static_cast<int>(looks_.size()), -1));
    }
  }

  Series series(const Contender& contender) const {
    const auto& [colour, variant] = looks_.at(contender.name());
    return {.name = contender.name(), .colour = colour, .variant = variant};
  }

  // Of a line through several entries, of which `first` is one.
  Series line(const std::string& name, const Contender& first) const {
    return {.name = name, .colour = by_mechanism_ ? number_of(first.mechanism()) : -1};
  }

 private:
  int number_of(const std::string& mechanism) const {
    return static_cast<int>(std::ranges::find(mechanisms_, mechanism) -
                            mechanisms_.begin());
  }

  std::vector<std::string> mechanisms_;
  std::map<std::string, std::pair<int, int>> looks_;  // colour and variant
  bool by_mechanism_ = false;
};

// Few enough points to be drawn, each the mean of some.
std::vector<Point> thinned(const std::vector<Point>& points) {
  constexpr size_t kMost = 160;
  const size_t each = points.size() / kMost + 1;
  std::vector<Point> few;
  for (size_t first = 0; first < points.size(); first += each) {
    const size_t count = std::min(each, points.size() - first);
    Point mean;
    for (size_t i = first; i < first + count; ++i) {
      mean.x += points[i].x / static_cast<double>(count);
      mean.y += points[i].y / static_cast<double>(count);
    }
    few.push_back(mean);
  }
  return few;
}

using Number = double (*)(const Moment&);

// A line for each run; those of one contender look alike.
std::vector<Series> curves(const Comparison& comparison,
                           std::vector<Moment> History::*events, Number x, Number y) {
  const bool is_train = events == &History::train;
  const Looks looks(comparison);
  std::vector<Series> all;
  for (const Contender& contender : comparison.contenders)
    for (const History& history : contender.histories) {
      Series series = looks.series(contender);
      series.has_marks = !is_train;
      for (const Moment& moment : history.*events)
        if (std::isfinite(x(moment)) && std::isfinite(y(moment)))
          series.points.push_back({x(moment), y(moment)});
      if (series.points.empty()) continue;
      if (is_train) series.points = thinned(series.points);
      all.push_back(series);
    }
  return all;
}

double step(const Moment& moment) { return static_cast<double>(moment.step); }
double seconds(const Moment& moment) { return moment.seconds; }
double loss(const Moment& moment) { return moment.loss; }
double accuracy(const Moment& moment) { return 100 * moment.accuracy; }

// Lines to judge scores by, as wide as the series.
void add_references(const Comparison& comparison, std::vector<Series>& series) {
  double least = INFINITY, most = -INFINITY;
  for (const Series& one : series)
    for (const Point& point : one.points) {
      least = std::min(least, point.x);
      most = std::max(most, point.x);
    }
  if (!(least <= most)) return;
  for (const Reference& reference : comparison.references)
    series.push_back({.name = reference.name,
                      .points = {{least, 100 * reference.accuracy},
                                 {most, 100 * reference.accuracy}},
                      .dashed = true});
}

// What a mechanism is judged by, as charts have it.
double height_of(const Comparison& comparison, const Contender& contender) {
  return judged(comparison, contender).mean * (comparison.more_is_better() ? 100 : 1);
}

std::string height_label(const Comparison& comparison) {
  return (comparison.more_is_better() ? "accuracy" : comparison.measure) +
         std::string(" on the test set") + (comparison.more_is_better() ? ", %" : "");
}

}  // namespace

std::vector<std::string> curve_charts(const Comparison& comparison) {
  const auto panel = [](const char* title, const char* x, const char* y,
                        std::vector<Series> series) {
    return Panel{.title = title,
                 .x = {.label = x},
                 .y = {.label = y},
                 .series = std::move(series)};
  };
  const Chart losses{.title = "Loss",
                     .panels = {panel("training loss", "step", "cross-entropy",
                                      curves(comparison, &History::train, step, loss)),
                                panel("validation loss", "step", "cross-entropy",
                                      curves(comparison, &History::valid, step, loss))},
                     .shows_title = false,
                     .width = kWidth};
  Chart scores{
      .title = "Accuracy on the validation set",
      .panels = {panel("validation accuracy by step", "step", "%",
                       curves(comparison, &History::valid, step, accuracy)),
                 panel("validation accuracy by time",
                       "seconds of training, without evaluations", "%",
                       curves(comparison, &History::valid, seconds, accuracy))},
      .shows_title = false,
      .width = kWidth};
  if (comparison.more_is_better())
    for (Panel& one : scores.panels) add_references(comparison, one.series);
  if (losses.panels[0].series.empty() && losses.panels[1].series.empty()) return {};
  return {svg(losses), svg(scores)};
}

std::string speed_chart(const Comparison& comparison) {
  const auto memory_of = [](const Contender& contender) {
    return mean_of(
               contender,
               [](const ArenaRun& run) { return static_cast<double>(run.peak_bytes); })
        .mean;
  };
  double most_memory = 0;
  for (const Contender& contender : comparison.contenders)
    most_memory = std::max(most_memory, memory_of(contender));
  constexpr double kMargin = 0.15;
  const auto panel = [&](const char* title, const char* x) {
    return Panel{.title = title,
                 .x = {.label = x, .scale = Scale::logarithmic, .margin = kMargin},
                 .y = {.label = height_label(comparison), .margin = kMargin}};
  };
  Panel speed = panel("training", "tokens per second"),
        wait = panel("inference", "milliseconds for a forward pass");
  const Looks looks(comparison);
  for (const Contender& contender : comparison.contenders) {
    if (!contender.is_judged()) continue;
    const double height = height_of(comparison, contender);
    const auto add = [&](Panel& to, double x) {
      if (x <= 0 || !std::isfinite(height)) return;
      Series series = looks.series(contender);
      series.has_line = false;
      series.points.push_back(
          {.x = x,
           .y = height,
           .area = most_memory > 0 ? memory_of(contender) / most_memory : 0.1,
           .label = contender.name()});
      to.series.push_back(series);
    };
    add(speed, mean_of(contender, [](const ArenaRun& run) {
                 return run.tokens_per_second;
               }).mean);
    if (contender.entry.latency) add(wait, 1e3 * contender.entry.latency->timing.mean);
  }
  if (speed.series.empty()) return "";
  Chart chart{.title = "Accuracy against speed",
              .note = "the area of a mark is the peak memory in training, at most " +
                      bytes_text(most_memory),
              .panels = {speed},
              .shows_title = false,
              .width = kWidth};
  if (!wait.series.empty()) chart.panels.push_back(wait);
  return svg(chart);
}

std::vector<Shapes> shapes_of(const Comparison& comparison) {
  static const std::set<std::string> free = {"model.layers",     "model.heads",
                                             "model.head_width", "model.key_heads",
                                             "train.seed",       "task.data"};
  std::vector<Shapes> kinds;
  for (const Contender& contender : comparison.contenders) {
    if (!contender.is_judged()) continue;
    const auto is_of = [&](const Shapes& kind) {
      Experiment a = kind.front()->experiment, b = contender.experiment;
      auto names = differing(fields(a), fields(b));
      std::erase_if(names, [](const std::string& name) { return free.contains(name); });
      return names.empty() &&
             a.model.layers * a.model.heads == b.model.layers * b.model.heads;
    };
    const auto kind = std::ranges::find_if(kinds, is_of);
    if (kind == kinds.end())
      kinds.push_back({&contender});
    else
      kind->push_back(&contender);
  }
  const auto layers = [](const Contender* one) { return one->experiment.model.layers; };
  std::erase_if(kinds, [&](Shapes& kind) {
    std::ranges::stable_sort(kind, std::greater(), layers);
    return layers(kind.front()) == layers(kind.back());
  });
  return kinds;
}

std::string depth_chart(const Comparison& comparison) {
  const auto kinds = shapes_of(comparison);
  std::set<double> layers;
  std::set<std::string> names;
  for (const Shapes& kind : kinds) {
    for (const Contender* one : kind)
      layers.insert(static_cast<double>(one->experiment.model.layers));
    names.insert(kind.front()->mechanism());
  }
  const auto panel = [&](const char* title, const std::string& label, Scale scale) {
    return Panel{.title = title,
                 .x = {.label = "layers (the heads in all are as many)",
                       .scale = Scale::logarithmic,
                       .ticks = {layers.begin(), layers.end()},
                       .margin = 0.1},
                 .y = {.label = label, .scale = scale, .margin = 0.1}};
  };
  const Looks looks(comparison);
  Panel score =
            panel(comparison.measure.c_str(), height_label(comparison), Scale::linear),
        wait =
            panel("inference", "milliseconds for a forward pass", Scale::logarithmic);
  for (const Shapes& kind : kinds) {
    const Contender& deep = *kind.front();
    const bool is_only = names.size() == kinds.size();
    Series scores = looks.line(is_only ? deep.mechanism() : deep.name(), deep),
           waits = scores;
    for (const Contender* one : kind) {
      const Point point{.x = static_cast<double>(one->experiment.model.layers),
                        .y = height_of(comparison, *one),
                        .label = one->name()};
      scores.points.push_back(point);
      if (!one->entry.latency) continue;
      waits.points.push_back(point);
      waits.points.back().y = 1e3 * one->entry.latency->timing.mean;
    }
    score.series.push_back(scores);
    if (!waits.points.empty()) wait.series.push_back(waits);
  }
  if (kinds.empty()) return "";
  Chart chart{.title = "Wide against deep",
              .panels = {score},
              .shows_title = false,
              .width = kWidth};
  if (!wait.series.empty()) chart.panels.push_back(wait);
  return svg(chart);
}

}  // namespace longspan::report
