#include "longspan/report/pattern_gallery.h"

#include <exception>
#include <set>

#include "longspan/attention/settings.h"
#include "longspan/report/page.h"
#include "longspan/report/picture.h"
#include "longspan/report/svg_words.h"

namespace longspan::report {
namespace {

// The settings of the mechanism, with those of a preset.
Value::Map settings_of(const Mechanism& row, const Experiment& experiment) {
  const Chosen chosen = Chosen::from(experiment.model.attention, "model.attention");
  Value::Map settings = experiment.model.preset.empty()
                            ? Value::Map{}
                            : preset(row, experiment.model.preset);
  for (const auto& [name, value] : chosen.settings)
    settings.insert_or_assign(name, value);
  return settings;
}

// A language model that goes on with texts sees the past alone.
bool is_causal(const Mechanism& row, const Experiment& experiment) {
  return experiment.task.name == "text" && experiment.task.goal == "next" &&
         row.can.causal != Causal::never;
}

// With its own settings, of all tokens of the task or of as many as fit; empty where so
// few would not tell.
std::string own_picture(const Mechanism& row, const Experiment& experiment,
                        const Value::Map& settings) {
  constexpr int64_t kLeast = 8, kMost = 128;
  const int64_t longest = experiment.task.longest;
  PictureOptions options{
      .tokens = longest, .causal = is_causal(row, experiment), .settings = settings};
  try {
    if (longest >= kLeast && longest <= kMost) return picture(row, options);
    for (const int64_t tokens : {kMost / 4, kMost / 2, kMost}) {
      options.tokens = tokens;
      if (tokens <= longest && tells(row, options)) return picture(row, options);
    }
  } catch (const std::exception&) {  // settings of other heads, or by layer
  }
  return "";
}

}  // namespace

std::string pattern_gallery(const Comparison& comparison) {
  constexpr std::string_view kOnePanel = "viewBox=\"0 0 3";  // at most 399 pixels
  std::set<std::string> drawn;
  std::string small, wide;
  for (const Contender& contender : comparison.contenders) {
    if (!contender.is_judged()) continue;
    const Experiment& experiment = contender.experiment;
    const std::string name = contender.mechanism();
    const Mechanism& row = find_mechanism(name);
    const Value::Map settings = settings_of(row, experiment);
    if (!drawn.insert(name + Value(settings).text()).second) continue;
    std::string drawing = own_picture(row, experiment, settings),
                caption = std::string(row.summary);
    if (drawing.empty()) {
      drawing = picture(
          row, {.tokens = tokens_that_tell(row), .causal = is_causal(row, experiment)});
      caption += "; not with the settings of " + contender.name() +
                 ", which so few tokens would not show";
    }
    (drawing.find(kOnePanel) == std::string::npos ? wide : small) +=
        "<figure>" + embedded(drawing, "who sees whom in " + name) + "<figcaption>" +
        escaped(caption) + "</figcaption></figure>\n";
  }
  if (small.empty() && wide.empty()) return "";
  return paragraph(
             "A row is a query, a column a key; with the settings of the entries, in 4 "
             "heads, unless a caption says otherwise.") +
         "<div class=\"gallery\">" + small + "</div>\n" + wide;
}

}  // namespace longspan::report
