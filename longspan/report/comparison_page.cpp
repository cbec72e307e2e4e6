#include "longspan/report/comparison_page.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <map>
#include <set>
#include <sstream>

#include "longspan/base/words.h"
#include "longspan/report/comparison_charts.h"
#include "longspan/report/page.h"
#include "longspan/report/pattern_gallery.h"
#include "longspan/report/published.h"
#include "longspan/report/svg_words.h"

namespace longspan::report {
namespace {

std::string figure(const std::string& picture) {
  return "<figure>" + picture + "</figure>\n";
}

std::string fixed(double value, int digits) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(digits) << value;
  return text.str();
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

// Of an accuracy, by the number of answers alone; 0 where it is none.
double standard_error(const Comparison& comparison, const Contender& contender) {
  const ArenaRun* const run = whole_run(contender.entry);
  if (!run || run->answers == 0 || !comparison.more_is_better()) return 0;
  return std::sqrt(run->accuracy * (1 - run->accuracy) /
                   static_cast<double>(run->answers));
}

// What an accuracy is worth.
std::string error_text(const Comparison& comparison) {
  for (const Contender& contender : comparison.contenders) {
    const double error = standard_error(comparison, contender);
    if (error == 0) continue;
    return "An accuracy has a standard error of about " + percent(error) + ", by the " +
           std::to_string(whole_run(contender.entry)->answers) +
           " answers of the test set alone" +
           (contender.entry.runs.size() > 1
                ? "; its ± is the standard deviation over the runs."
                : ".");
  }
  return "";
}

std::string counted(const std::string& number, const std::string& what) {
  return number + " " + what + (number == "1" ? "" : "s");
}

// How tokens per second and latencies came about.
std::string speed_text(const Comparison& comparison) {
  std::string text;
  for (const Contender& contender : comparison.contenders) {
    const auto fact = [&](std::string_view name) -> std::string {
      for (const auto& [known, value] : contender.environment)
        if (known == name) return value;
      return "";
    };
    if (const std::string many = fact("trainings at once");
        !many.empty() && many != "1") {
      std::string threads = fact("threads of a training");
      if (threads.empty()) threads = fact("threads");  // of a single run
      text = "Tokens/s are of " + many + " trainings at once, with " +
             counted(threads, "thread") + " each. ";
    }
    if (const auto& latency = contender.entry.latency)
      return text + "A latency is the mean ± standard deviation of " +
             std::to_string(latency->passes) + " passes, each over " +
             counted(std::to_string(latency->batch), "random sequence") + " of " +
             std::to_string(latency->length) + " tokens, alone on " +
             counted(std::to_string(latency->threads), "thread") + ".";
  }
  return text;
}

// Who is first in what.
std::string highlights(const Comparison& comparison) {
  std::vector<const Contender*> all;
  for (const Contender& contender : comparison.contenders)
    if (contender.is_judged()) all.push_back(&contender);
  if (all.size() < 2) return "";
  std::string html;
  const auto add = [&](const char* what, const auto& number, bool more_is_better,
                       const auto& text) {
    const Contender* best = nullptr;
    for (const Contender* const one : all) {
      const double value = number(*one);
      if (!std::isfinite(value) || value <= 0) continue;
      if (!best || (more_is_better ? value > number(*best) : value < number(*best)))
        best = one;
    }
    if (best)
      html += "<div class=\"card\"><span>" + escaped(what) + "</span><b>" +
              escaped(best->name()) + "</b><span>" + escaped(text(*best)) +
              "</span></div>\n";
  };
  const auto mean = [](double (*of)(const ArenaRun&)) {
    return [of](const Contender& one) { return mean_of(one, of).mean; };
  };
  const auto score = [&](const Contender& one) { return judged(comparison, one).mean; };
  add(comparison.more_is_better() ? "most accurate" : "best", score,
      comparison.more_is_better(), [&](const Contender& one) {
        std::string text = judged_text(comparison, judged(comparison, one));
        const double error = standard_error(comparison, one);
        const auto near = std::ranges::count_if(all, [&](const Contender* other) {
          return other != &one && score(*other) >= score(one) - error;
        });
        if (error > 0 && near > 0)
          text += "; " + std::to_string(near) + " more within its standard error";
        return text;
      });
  const auto speed = mean([](const ArenaRun& run) { return run.tokens_per_second; });
  add("fastest in training", speed, true,
      [&](const Contender& one) { return short_number(speed(one)) + " tokens/s"; });
  const auto latency = [](const Contender& one) {
    return one.entry.latency ? one.entry.latency->timing.mean : NAN;
  };
  add("shortest latency", latency, false,
      [&](const Contender& one) { return time_text(latency(one)); });
  const auto memory =
      mean([](const ArenaRun& run) { return static_cast<double>(run.peak_bytes); });
  add("least memory in training", memory, false,
      [&](const Contender& one) { return bytes_text(memory(one)); });
  return "<div class=\"cards\">\n" + html + "</div>\n";
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

Place place(const Contender& contender) {
  return place_of(contender.experiment, whole_run(contender.entry)->facts);
}

// "62.7", "36.05"
std::string as_printed(double accuracy) {
  std::string text = fixed(accuracy, 2);
  if (text.ends_with('0')) text.pop_back();
  return text;
}

// In what ours may differ from those of papers, and which stand beside none.
std::string settings_text(const Comparison& comparison) {
  std::map<std::string, std::vector<std::string>> alone;  // by the reason
  bool any = false;
  for (const Contender& contender : comparison.contenders) {
    if (!contender.is_judged()) continue;
    const std::string reason = place(contender).reason;
    any = any || reason.empty();
    if (!reason.empty()) alone[reason].push_back(contender.name());
  }
  std::string text;
  if (any)
    text =
        "Published numbers are of the papers' data and budgets, ours of the "
        "configuration below.";
  for (const auto& [reason, names] : alone)
    text += (text.empty() ? "" : " ") + std::string("Beside no number of the ") +
            "Long Range Arena or of other papers: " + joined(names, ", ") + " (" +
            reason + ").";
  return text;
}

}  // namespace

Table depth_table(const Comparison& comparison) {
  Table table;
  const auto kinds = shapes_of(comparison);
  if (kinds.empty()) return table;
  table.columns = {{"mechanism"},
                   {"deep", "layers x heads"},
                   {"wide", "layers x heads"},
                   {comparison.measure + ", deep"},
                   {comparison.measure + ", wide"},
                   {"difference", comparison.more_is_better() ? "in points" : ""},
                   {"training speed", "wide / deep"},
                   {"latency", "deep / wide: how many times faster the wide one is"},
                   {"parameters", "wide / deep"},
                   {"checkpoint", "wide / deep"}};
  const auto add_row = [&](const Contender& deep, const Contender& wide) {
    const Spread of_deep = judged(comparison, deep), of_wide = judged(comparison, wide);
    const double scale = comparison.more_is_better() ? 100 : 1;
    const double gain = scale * (of_wide.mean - of_deep.mean);
    const auto times = [](double value) {
      return std::isfinite(value) ? number_cell(value, fixed(value, 2) + "x")
                                  : Cell{.text = "-"};
    };
    const auto ratio = [&](double (*of)(const ArenaRun&)) {
      const double below = mean_of(deep, of).mean;
      return times(below > 0 ? mean_of(wide, of).mean / below : NAN);
    };
    const auto &slow = deep.entry.latency, &fast = wide.entry.latency;
    table.rows.push_back(
        {{.text = deep.mechanism()},
         {.text = deep.shape()},
         {.text = wide.shape()},
         number_cell(of_deep.mean, judged_text(comparison, of_deep)),
         number_cell(of_wide.mean, judged_text(comparison, of_wide)),
         number_cell(gain, (gain > 0 ? "+" : "") + fixed(gain, 2)),
         ratio([](const ArenaRun& run) { return run.tokens_per_second; }),
         times(slow && fast ? slow->timing.mean / fast->timing.mean : NAN),
         ratio([](const ArenaRun& run) { return static_cast<double>(run.parameters); }),
         ratio([](const ArenaRun& run) {
           return static_cast<double>(run.checkpoint_bytes);
         })});
  };
  for (const Shapes& kind : kinds)
    for (size_t i = 1; i < kind.size(); ++i) add_row(*kind[0], *kind[i]);
  return table;
}

namespace {

// What papers report of a task beside `ours` by mechanism. Empty if they do not.
Table published_table(const std::string& task,
                      const std::map<std::string, std::vector<std::string>>& ours) {
  Table table;
  std::vector<std::string> mechanisms;
  table.columns = {{.title = task}, {.title = "ours"}};
  std::vector<std::map<std::string, double, std::less<>>> columns;
  for (const Source& source : published()) {
    std::map<std::string, double, std::less<>> numbers;
    for (const auto& [mechanism, of, accuracy] : source.numbers)
      if (of == task && accuracy > 0) numbers.emplace(mechanism, accuracy);
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
                        : number_cell(found->second, as_printed(found->second) + " %"));
    }
    table.rows.push_back(row);
  }
  return table;
}

}  // namespace

std::vector<Table> published_tables(const Comparison& comparison) {
  std::vector<Table> tables;
  if (!comparison.more_is_better()) return tables;
  using Ours = std::map<std::string, std::vector<std::string>>;  // by mechanism
  std::vector<std::pair<std::string, Ours>> tasks;
  for (const Contender& contender : comparison.contenders) {
    if (!contender.is_judged()) continue;
    const Place of = place(contender);
    if (!of.reason.empty()) continue;
    auto at = std::ranges::find(tasks, of.task, &std::pair<std::string, Ours>::first);
    if (at == tasks.end()) at = tasks.insert(at, {of.task, {}});
    at->second[of.mechanism].push_back(
        judged_text(comparison, judged(comparison, contender)) + " (" +
        contender.name() + ")");
  }
  for (const auto& [task, ours] : tasks)
    if (Table table = published_table(task, ours); !table.rows.empty())
      tables.push_back(std::move(table));
  return tables;
}

namespace {

void add_sections(Page& page, const Comparison& comparison, const std::string& group) {
  const auto add = [&](const char* heading, const std::string& html) {
    if (!html.empty()) page.sections.push_back({heading, html, group});
  };
  const Table results = result_table(comparison);
  std::string first;
  if (!group.empty())
    first = "<p class=\"soft\">" + escaped(lead_text(comparison)) + "</p>\n";
  if (!results.rows.empty())
    first += highlights(comparison) + as_html(results) + "<p class=\"soft\">" +
             escaped(error_text(comparison)) + " " + escaped(speed_text(comparison)) +
             " The best of a column is bold; a title sorts.</p>\n";
  if (const auto refused = refusals(comparison); !refused.empty())
    first += "<h3>Without a result</h3>\n" + list_of(refused);
  add("Results", first);
  if (const std::string chart = speed_chart(comparison); !chart.empty())
    add(comparison.more_is_better() ? "Accuracy against speed"
                                    : "Quality against speed",
        figure(chart));
  if (const Table depth = depth_table(comparison); !depth.rows.empty())
    add("Wide against deep",
        paragraph(
            "Brown et al. 2022, arXiv:2210.00640: as many heads in few layers, or "
            "in one, as in all layers of a deep model. Above 1x the wide model is "
            "faster, or larger.") +
            as_html(depth) + figure(depth_chart(comparison)));
  std::string curves;
  for (const std::string& chart : curve_charts(comparison)) curves += figure(chart);
  add("Curves", curves);
  add("Who sees whom", pattern_gallery(comparison));
  if (comparison.more_is_better()) {
    std::string beside = paragraph(settings_text(comparison));
    const auto papers = published_tables(comparison);
    for (const Table& table : papers) beside += as_html(table);
    if (!papers.empty())
      beside += "<p class=\"soft\">" + escaped(sources_text()) + "</p>\n";
    add("Published numbers", beside);
  }
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
}

// What stands before the titles of each of several.
std::vector<std::string> groups_of(const std::vector<Comparison>& comparisons) {
  std::vector<std::string> groups;
  for (const Comparison& comparison : comparisons) {
    const TaskOptions& task = comparison.contenders.front().experiment.task;
    std::string group = task.name;
    if (std::ranges::find(groups, group) != groups.end() && !task.data.empty())
      group += " of " + task.data;
    while (std::ranges::find(groups, group) != groups.end()) group += " again";
    groups.push_back(group);
  }
  return groups;
}

}  // namespace

std::string title_of(const std::vector<Comparison>& comparisons) {
  size_t count = 0;
  std::vector<std::string> tasks;
  for (const Comparison& comparison : comparisons) {
    count += comparison.contenders.size();
    const std::string& task = comparison.contenders.front().experiment.task.name;
    if (std::ranges::find(tasks, task) == tasks.end()) tasks.push_back(task);
  }
  return (count == 1 ? comparisons.front().contenders.front().name()
                     : std::to_string(count) + " models") +
         " on " + joined(tasks);
}

std::string comparison_page(const std::vector<Comparison>& comparisons,
                            const std::string& title) {
  Page page{.title = title};
  const bool is_one = comparisons.size() == 1;
  if (is_one)
    page.lead =
        "<p class=\"soft\">" + escaped(lead_text(comparisons.front())) + "</p>\n";
  const auto groups = groups_of(comparisons);
  for (size_t i = 0; i < comparisons.size(); ++i)
    add_sections(page, comparisons[i], is_one ? "" : groups[i]);
  return html(page);
}

namespace {

void add_markdown(std::ostream& text, const Comparison& comparison,
                  const std::string& group) {
  const auto head = [&](const char* heading) {
    text << "## " << (group.empty() ? "" : group + ": ") << heading << "\n\n";
  };
  text << lead_text(comparison) << "\n\n";
  const auto add = [&](const char* heading, const Table& table) {
    if (table.rows.empty()) return;
    head(heading);
    text << as_markdown(table) << '\n';
  };
  add("Results", result_table(comparison));
  if (const std::string words = error_text(comparison); !words.empty())
    text << words << "\n\n";
  if (const std::string words = speed_text(comparison); !words.empty())
    text << words << "\n\n";
  if (const auto refused = refusals(comparison); !refused.empty()) {
    head("Without a result");
    for (const std::string& line : refused) text << "- " << line << '\n';
    text << '\n';
  }
  add("Wide against deep", depth_table(comparison));
  const auto papers = published_tables(comparison);
  const std::string beside =
      comparison.more_is_better() ? settings_text(comparison) : "";
  if (!beside.empty()) head("Published numbers");
  for (const Table& table : papers) text << as_markdown(table) << '\n';
  if (!beside.empty()) text << beside << "\n\n";
  if (!papers.empty()) text << sources_text() << "\n\n";
  const auto [common, differing] = configuration(comparison);
  const auto add_facts = [&](const char* heading, const Facts& facts) {
    if (facts.empty()) return;
    head(heading);
    text << "| | |\n| --- | --- |\n";
    for (const auto& [name, value] : facts)
      text << "| " << name << " | " << value << " |\n";
    text << '\n';
  };
  add_facts("Configuration of all", common);
  if (differing.columns.size() > 1) add("In what they differ", differing);
  add_facts("Environment", environment_of(comparison));
}

}  // namespace

std::string comparison_markdown(const std::vector<Comparison>& comparisons,
                                const std::string& title) {
  std::ostringstream text;
  text << "# " << title << "\n\n";
  const auto groups = groups_of(comparisons);
  for (size_t i = 0; i < comparisons.size(); ++i)
    add_markdown(text, comparisons[i], comparisons.size() == 1 ? "" : groups[i]);
  return text.str();
}

}  // namespace longspan::report
