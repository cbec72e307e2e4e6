#include "longspan/report/comparison_page.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <map>
#include <set>
#include <sstream>

#include "longspan/attention/settings.h"
#include "longspan/base/words.h"
#include "longspan/report/chart.h"
#include "longspan/report/page.h"
#include "longspan/report/picture.h"
#include "longspan/report/published.h"
#include "longspan/report/svg_words.h"

namespace longspan::report {
namespace {

std::string figure(const std::string& picture, const std::string& caption = "") {
  std::string html = "<figure>" + picture;
  if (!caption.empty()) html += "<figcaption>" + escaped(caption) + "</figcaption>";
  return html + "</figure>\n";
}

// The mechanism of all layers, or of all but some.
std::string mechanism_of(const Experiment& experiment) {
  return Chosen::from(experiment.model.attention, "model.attention").name;
}

std::string fixed(double value, int digits) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(digits) << value;
  return text.str();
}

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
  std::vector<Series> all;
  for (const Contender& contender : comparison.contenders)
    for (const History& history : contender.histories) {
      Series series{.name = contender.name(), .has_marks = !is_train};
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

std::string curve_charts(const Comparison& comparison) {
  const auto panel = [](const char* title, const char* x, const char* y,
                        std::vector<Series> series) {
    return Panel{.title = title,
                 .x = {.label = x},
                 .y = {.label = y},
                 .series = std::move(series)};
  };
  const Chart losses{
      .title = "Loss",
      .panels = {panel("training", "step", "cross-entropy",
                       curves(comparison, &History::train, step, loss)),
                 panel("validation", "step", "cross-entropy",
                       curves(comparison, &History::valid, step, loss))}};
  Chart scores{
      .title = "Accuracy on the validation set",
      .panels = {panel("by step", "step", "%",
                       curves(comparison, &History::valid, step, accuracy)),
                 panel("by time", "seconds of training", "%",
                       curves(comparison, &History::valid, seconds, accuracy))}};
  if (comparison.more_is_better())
    for (Panel& one : scores.panels) add_references(comparison, one.series);
  if (losses.panels[0].series.empty() && losses.panels[1].series.empty()) return "";
  return figure(svg(losses)) + figure(svg(scores));
}

// Tay et al. 2020, arXiv:2011.04006, figure 3.
std::string speed_chart(const Comparison& comparison) {
  const bool is_accuracy = comparison.more_is_better();
  double most_memory = 0;
  for (const Contender& contender : comparison.contenders)
    for (const ArenaRun& run : contender.entry.runs)
      most_memory = std::max(most_memory, static_cast<double>(run.peak_bytes));
  constexpr double kMargin = 0.2;
  const Axis score{.label = is_accuracy ? "accuracy on the test set, %"
                                        : comparison.measure + " on the test set",
                   .margin = kMargin};
  Panel speed{.title = "training speed",
              .x = {.label = "tokens per second",
                    .scale = Scale::logarithmic,
                    .margin = kMargin},
              .y = score};
  Panel wait{.title = "latency",
             .x = {.label = "milliseconds for a forward pass",
                   .scale = Scale::logarithmic,
                   .margin = kMargin},
             .y = score};
  for (const Contender& contender : comparison.contenders) {
    if (!contender.is_judged()) continue;
    const double height = judged(comparison, contender).mean * (is_accuracy ? 100 : 1);
    const double memory = mean_of(contender, [](const ArenaRun& run) {
                            return static_cast<double>(run.peak_bytes);
                          }).mean;
    const auto add = [&](Panel& panel, double x) {
      if (x <= 0 || !std::isfinite(height)) return;
      Series series{.name = contender.name(), .has_line = false};
      series.points.push_back({.x = x,
                               .y = height,
                               .area = most_memory > 0 ? memory / most_memory : 0.1,
                               .label = contender.name()});
      panel.series.push_back(series);
    };
    add(speed, mean_of(contender, [](const ArenaRun& run) {
                 return run.tokens_per_second;
               }).mean);
    if (contender.entry.latency) add(wait, 1e3 * contender.entry.latency->timing.mean);
  }
  if (speed.series.empty()) return "";
  Chart chart{.title = is_accuracy ? "Accuracy against speed" : "Quality against speed",
              .note = "area of a bubble: peak memory in training, the largest " +
                      short_number(most_memory) + "B",
              .panels = {speed}};
  if (!wait.series.empty()) chart.panels.push_back(wait);
  return figure(svg(chart));
}

// The deepest and the widest of models that differ in nothing but layers and heads.
struct Shapes {
  const Contender *deep, *wide;
};

std::vector<Shapes> shapes_of(const Comparison& comparison) {
  static const std::set<std::string> free = {"model.layers",     "model.heads",
                                             "model.head_width", "model.key_heads",
                                             "train.seed",       "task.data"};
  std::vector<std::vector<const Contender*>> kinds;
  for (const Contender& contender : comparison.contenders) {
    if (!contender.is_judged()) continue;
    const auto is_of = [&](const std::vector<const Contender*>& kind) {
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
  std::vector<Shapes> all;
  for (const auto& kind : kinds) {
    const auto by_layers = [](const Contender* a, const Contender* b) {
      return a->experiment.model.layers < b->experiment.model.layers;
    };
    const auto [wide, deep] = std::ranges::minmax_element(kind, by_layers);
    if (by_layers(*wide, *deep)) all.push_back({.deep = *deep, .wide = *wide});
  }
  return all;
}

std::string shape_text(const Contender& contender) {
  const TransformerOptions& model = contender.experiment.model;
  return std::to_string(model.layers) + " x " + std::to_string(model.heads);
}

std::string depth_chart(const Comparison& comparison) {
  if (!comparison.more_is_better()) return "";
  Panel panel{.x = {.label = "deep: accuracy on the test set, %", .margin = 0.1},
              .y = {.label = "wide: accuracy on the test set, %", .margin = 0.1}};
  double least = INFINITY, most = -INFINITY;
  for (const auto& [deep, wide] : shapes_of(comparison)) {
    const double x = 100 * judged(comparison, *deep).mean,
                 y = 100 * judged(comparison, *wide).mean;
    least = std::min({least, x, y});
    most = std::max({most, x, y});
    const std::string name = mechanism_of(deep->experiment);
    panel.series.push_back({.name = name,
                            .points = {{.x = x, .y = y, .area = 0.03, .label = name}},
                            .has_line = false});
  }
  panel.series.push_back({.name = "equal",
                          .points = {{least, least}, {most, most}},
                          .dashed = true,
                          .has_marks = false});
  return figure(svg({.title = "Wide against deep",
                     .note = "above the line the wide model is right more often",
                     .panels = {panel}}));
}

std::string patterns(const Comparison& comparison) {
  std::set<std::string> drawn;
  std::string html;
  for (const Contender& contender : comparison.contenders) {
    if (!contender.is_judged()) continue;
    const std::string name = mechanism_of(contender.experiment);
    if (!drawn.insert(name).second) continue;
    const Mechanism& row = find_mechanism(name);
    html += figure(embedded(picture(row, {.tokens = tokens_that_tell(row)}),
                            "who sees whom in " + name),
                   std::string(row.summary));
  }
  if (html.empty()) return "";
  return paragraph(
             "With small settings, so that the pattern is seen; a row is a query, a "
             "column a key.") +
         "<div class=\"gallery\">" + html + "</div>\n";
}

using Facts = std::vector<std::pair<std::string, std::string>>;

// The options in which a contender is not the standard, by name.
std::map<std::string, std::string> chosen_options(const Contender& contender) {
  Experiment standard, mine = contender.experiment;
  std::map<std::string, std::string> chosen;
  const auto names = differing(fields(standard), fields(mine));
  for (const Field& field : fields(mine))
    if (std::ranges::find(names, field.name) != names.end())
      chosen[field.name] = field.value().text();
  return chosen;
}

// Options that all have in common, and a table of those in which they differ.
std::pair<Facts, Table> configuration(const Comparison& comparison) {
  std::vector<std::pair<const Contender*, std::map<std::string, std::string>>> all;
  std::set<std::string> names;
  for (const Contender& contender : comparison.contenders) {
    if (!contender.is_judged()) continue;
    all.emplace_back(&contender, chosen_options(contender));
    for (const auto& [name, value] : all.back().second) names.insert(name);
  }
  Experiment standard;
  std::map<std::string, std::string> standards;
  for (const Field& field : fields(standard))
    standards[field.name] = field.value().text();
  const auto value_of = [&](const auto& options, const std::string& name) {
    const auto found = options.find(name);
    return found == options.end() ? standards.at(name) : found->second;
  };
  Facts common;
  Table differing{.columns = {{.title = "entry"}}};
  for (const auto& [contender, options] : all)
    differing.rows.push_back({{.text = contender->name()}});
  for (const std::string& name : names) {
    std::set<std::string> values;
    for (const auto& [contender, options] : all) values.insert(value_of(options, name));
    if (values.size() == 1) {
      common.emplace_back(name, *values.begin());
      continue;
    }
    if (name == "train.seed" || name == "task.data") continue;
    differing.columns.push_back({.title = name});
    for (size_t i = 0; i < all.size(); ++i)
      differing.rows[i].push_back({.text = value_of(all[i].second, name)});
  }
  return {common, differing};
}

// That of the first; where others have another, theirs as well.
Facts environment_of(const Comparison& comparison) {
  std::vector<std::string> names;
  std::map<std::string, std::vector<std::string>> values;
  for (const Contender& contender : comparison.contenders)
    for (const auto& [name, value] : contender.environment) {
      if (!values.contains(name)) names.push_back(name);
      auto& all = values[name];
      if (std::ranges::find(all, value) == all.end()) all.push_back(value);
    }
  Facts facts;
  for (const std::string& name : names)
    facts.emplace_back(name, joined(values[name], "; "));
  return facts;
}

std::string lead_text(const Comparison& comparison) {
  std::string task;
  for (const Contender& contender : comparison.contenders)
    if (contender.is_judged()) {
      task = contender.experiment.task.name + ", up to " +
             std::to_string(contender.experiment.task.longest) + " tokens";
      if (const auto answers = whole_run(contender.entry)->answers; answers > 0)
        task += ", judged by " + std::to_string(answers) + " answers";
      break;
    }
  std::string text = task;
  for (const std::string& fact : comparison.facts)
    text += (text.empty() ? "" : "; ") + fact;
  return text;
}

// What an accuracy is worth.
std::string error_text(const Comparison& comparison) {
  for (const Contender& contender : comparison.contenders) {
    const ArenaRun* const run = whole_run(contender.entry);
    if (!run || run->answers == 0 || !comparison.more_is_better()) continue;
    const double share = std::sqrt(run->accuracy * (1 - run->accuracy) /
                                   static_cast<double>(run->answers));
    return "An accuracy has a standard error of about " + percent(share) + ", by the " +
           std::to_string(run->answers) +
           " answers of the test set alone; ± is the standard deviation over the runs.";
  }
  return "";
}

std::string list_of(const std::vector<std::string>& lines) {
  std::string html = "<ul>\n";
  for (const std::string& line : lines) html += "<li>" + escaped(line) + "</li>\n";
  return html + "</ul>\n";
}

std::string sources_text() {
  std::vector<std::string> parts;
  for (const Source& source : published())
    parts.push_back(std::string(source.name) + ": " + std::string(source.paper));
  return joined(parts, "; ") + ".";
}

// In what ours may differ from those of papers.
std::string settings_text(const Comparison& comparison) {
  for (const Contender& contender : comparison.contenders) {
    if (!contender.is_judged()) continue;
    const Experiment& ours = contender.experiment;
    return "Published numbers are of the papers' data and budgets (ListOps: up to 2000 "
           "tokens, 96,000 examples); ours of up to " +
           std::to_string(ours.task.longest) + " tokens, with the configuration below.";
  }
  return "";
}

}  // namespace

Table depth_table(const Comparison& comparison) {
  Table table;
  const auto pairs = shapes_of(comparison);
  if (pairs.empty()) return table;
  table.columns = {{"mechanism"},
                   {"layers x heads, deep"},
                   {"wide"},
                   {comparison.measure + ", deep"},
                   {comparison.measure + ", wide"},
                   {"difference", comparison.more_is_better() ? "in points" : ""},
                   {"training speed", "wide / deep"},
                   {"latency", "deep / wide: how many times faster the wide one is"},
                   {"parameters", "wide / deep"},
                   {"checkpoint", "wide / deep"}};
  for (const auto& [deep, wide] : pairs) {
    const Spread of_deep = judged(comparison, *deep),
                 of_wide = judged(comparison, *wide);
    const double scale = comparison.more_is_better() ? 100 : 1;
    const double gain = scale * (of_wide.mean - of_deep.mean);
    const auto ratio = [&, wide = wide, deep = deep](double (*of)(const ArenaRun&)) {
      const double below = mean_of(*deep, of).mean;
      const double value = below > 0 ? mean_of(*wide, of).mean / below : NAN;
      return std::isfinite(value) ? number_cell(value, fixed(value, 2) + "x")
                                  : Cell{.text = "-"};
    };
    Cell latency{.text = "-"};
    if (deep->entry.latency && wide->entry.latency) {
      const double value =
          deep->entry.latency->timing.mean / wide->entry.latency->timing.mean;
      latency = number_cell(value, fixed(value, 2) + "x");
    }
    table.rows.push_back(
        {{.text = mechanism_of(deep->experiment)},
         {.text = shape_text(*deep)},
         {.text = shape_text(*wide)},
         number_cell(of_deep.mean, judged_text(comparison, of_deep)),
         number_cell(of_wide.mean, judged_text(comparison, of_wide)),
         number_cell(gain, (gain > 0 ? "+" : "") + fixed(gain, 2)),
         ratio([](const ArenaRun& run) { return run.tokens_per_second; }),
         latency,
         ratio([](const ArenaRun& run) { return static_cast<double>(run.parameters); }),
         ratio([](const ArenaRun& run) {
           return static_cast<double>(run.checkpoint_bytes);
         })});
  }
  return table;
}

Table published_table(const Comparison& comparison) {
  Table table;
  if (!comparison.more_is_better()) return table;
  std::string task;
  std::map<std::string, std::vector<std::string>> ours;  // by mechanism
  for (const Contender& contender : comparison.contenders) {
    if (!contender.is_judged()) continue;
    task = contender.experiment.task.name;
    ours[mechanism_of(contender.experiment)].push_back(
        judged_text(comparison, judged(comparison, contender)) + " (" +
        contender.name() + ")");
  }
  std::vector<std::string> mechanisms;
  table.columns = {{.title = "mechanism"}, {.title = "ours"}};
  std::vector<std::map<std::string, double, std::less<>>> columns;
  for (const Source& source : published()) {
    std::map<std::string, double, std::less<>> numbers;
    for (const auto& [mechanism, of, accuracy] : source.numbers)
      if (of == task) numbers.emplace(mechanism, accuracy);
    if (numbers.empty()) continue;
    table.columns.push_back(
        {std::string(source.name), std::string(source.paper), Best::most});
    for (const auto& [mechanism, accuracy] : numbers)
      if (std::ranges::find(mechanisms, mechanism) == mechanisms.end())
        mechanisms.push_back(mechanism);
    columns.push_back(std::move(numbers));
  }
  if (columns.empty()) return {};
  // Those we have first.
  std::ranges::stable_partition(
      mechanisms, [&](const std::string& name) { return ours.contains(name); });
  for (const std::string& mechanism : mechanisms) {
    const auto mine = ours.find(mechanism);
    Row row = {{.text = mechanism},
               {.text = mine == ours.end() ? "" : joined(mine->second)}};
    for (const auto& numbers : columns) {
      const auto found = numbers.find(mechanism);
      row.push_back(found == numbers.end()
                        ? Cell{.text = ""}
                        : number_cell(found->second, fixed(found->second, 1) + " %"));
    }
    table.rows.push_back(row);
  }
  return table;
}

std::string comparison_page(const Comparison& comparison, const std::string& title) {
  Page page{.title = title};
  if (const std::string text = lead_text(comparison); !text.empty())
    page.lead = "<p class=\"soft\">" + escaped(text) + "</p>\n";
  const auto add = [&](const char* heading, const std::string& html) {
    if (!html.empty()) page.sections.push_back({heading, html});
  };
  const Table results = result_table(comparison);
  std::string first;
  if (!results.rows.empty())
    first = as_html(results) + "<p class=\"soft\">" + escaped(error_text(comparison)) +
            " The best of a column is bold; a title sorts.</p>\n";
  if (const auto refused = refusals(comparison); !refused.empty())
    first += "<h3>Without a result</h3>\n" + list_of(refused);
  add("Results", first);
  add("Accuracy against speed", speed_chart(comparison));
  if (const Table depth = depth_table(comparison); !depth.rows.empty())
    add("Wide against deep",
        paragraph(
            "Brown et al. 2022, arXiv:2210.00640: as many heads in one layer as in "
            "all layers of a deep model.") +
            as_html(depth) + depth_chart(comparison));
  add("Curves", curve_charts(comparison));
  add("Who sees whom", patterns(comparison));
  if (const Table papers = published_table(comparison); !papers.rows.empty())
    add("Published numbers", paragraph(settings_text(comparison)) + as_html(papers) +
                                 "<p class=\"soft\">" + escaped(sources_text()) +
                                 "</p>\n");
  const auto [common, differing] = configuration(comparison);
  std::string configured;
  if (!common.empty())
    configured =
        paragraph("Of all entries, where it is not the standard:") + html_of(common);
  if (differing.columns.size() > 1)
    configured += paragraph("In what they differ:") + as_html(differing);
  add("Configuration", configured);
  if (const Facts facts = environment_of(comparison); !facts.empty())
    add("Environment", html_of(facts));
  return html(page);
}

std::string comparison_markdown(const Comparison& comparison,
                                const std::string& title) {
  std::ostringstream text;
  text << "# " << title << "\n\n" << lead_text(comparison) << "\n\n";
  const auto add = [&](const char* heading, const Table& table) {
    if (!table.rows.empty())
      text << "## " << heading << "\n\n" << as_markdown(table) << '\n';
  };
  add("Results", result_table(comparison));
  if (const std::string words = error_text(comparison); !words.empty())
    text << words << "\n\n";
  if (const auto refused = refusals(comparison); !refused.empty()) {
    text << "## Without a result\n\n";
    for (const std::string& line : refused) text << "- " << line << '\n';
    text << '\n';
  }
  add("Wide against deep", depth_table(comparison));
  const Table papers = published_table(comparison);
  add("Published numbers", papers);
  if (!papers.rows.empty())
    text << settings_text(comparison) << "\n\n" << sources_text() << "\n\n";
  const auto [common, differing] = configuration(comparison);
  const auto add_facts = [&](const char* heading, const Facts& facts) {
    if (facts.empty()) return;
    text << "## " << heading << "\n\n| | |\n| --- | --- |\n";
    for (const auto& [name, value] : facts)
      text << "| " << name << " | " << value << " |\n";
    text << '\n';
  };
  add_facts("Configuration of all", common);
  if (differing.columns.size() > 1) add("In what they differ", differing);
  add_facts("Environment", environment_of(comparison));
  return text.str();
}

}  // namespace longspan::report
