#include "longspan/cli/reference_pages.h"

#include <filesystem>
#include <limits>
#include <map>
#include <sstream>

#include "longspan/base/error.h"
#include "longspan/base/whole_file.h"
#include "longspan/base/words.h"
#include "longspan/cli/row.h"
#include "longspan/contract/subject.h"
#include "longspan/report/markdown.h"
#include "longspan/report/picture.h"

namespace longspan::cli {
namespace {

using report::code, report::markdown, report::picture, report::sentence,
    report::tokens_that_tell, report::with_links;

std::string cost(const Cost& cost) {
  std::ostringstream text;
  text << code(cost.formula) << ", ";
  if (cost.power == 0)
    text << "whatever N";
  else if (cost.power == 1)
    text << "linear in N";
  else if (cost.power == 2)
    text << "quadratic in N";
  else
    text << "grows like N to the power of " << cost.power;
  return text.str();
}

// Whether it is a layer around others that its settings name.
bool is_wrapper(const Mechanism& mechanism) {
  return mechanism.classes.find("wrapper") != std::string_view::npos &&
         std::ranges::any_of(mechanism.settings, [](const Setting& setting) {
           return setting.kind == Kind::mechanism || setting.name == "parts";
         });
}

std::string met_keys(const Mechanism& mechanism) {
  if (is_wrapper(mechanism)) return "those that what it wraps meets";
  std::string text = mechanism.full ? "all it may see" : "some of those it may see";
  if (mechanism.by_content) text += ", by content";
  if (mechanism.zero_weights) text += "; a weight may be 0";
  return text;
}

std::string decoding_state(const Mechanism& mechanism) {
  if (!mechanism.can.decoding) return "none: it does not decode token by token";
  return mechanism.state.empty() ? "none" : markdown(mechanism.state);
}

std::string_view carried(Carry carry) {
  switch (carry) {
    case Carry::none: return "nothing";
    case Carry::per_example: return "something of each example";
    case Carry::per_model: return "something of the model";
    case Carry::both: return "something of each example and of the model";
  }
  TORCH_INTERNAL_ASSERT(false);
}

bool is_layer(const Mechanism& mechanism) {
  return mechanism.seam() == "attention" || mechanism.seam() == "mixer";
}

void add_facts(std::ostream& page, const Mechanism& mechanism) {
  const auto row = [&](std::string_view what, const std::string& words) {
    page << "| " << what << " | " << words << " |\n";
  };
  page << "| | |\n| --- | --- |\n";
  row("paper", with_links(mechanism.paper));
  row("class", markdown(mechanism.classes));
  row("time", cost(mechanism.time));
  row("memory", cost(mechanism.memory));
  row("causal", std::string(name(mechanism.can.causal)));
  if (!mechanism.order.empty()) row("causal order", markdown(mechanism.order));
  row("keys a query meets", met_keys(mechanism));
  row("decoding state", decoding_state(mechanism));
  row("from batch to batch", std::string(carried(mechanism.can.carry)));
  row("seam", std::string(mechanism.seam()));
  if (mechanism.seam() == "attention")
    row("projections", code(name(mechanism.projections)));
  row("the block keeps", kept(mechanism.keeps));
  if (!mechanism.training.empty()) row("in training", markdown(mechanism.training));
  page << '\n';
}

void add_pictures(std::ostream& page, const Mechanism& mechanism, int64_t tokens) {
  page << "## Who sees whom\n\nAmong " << tokens << " tokens, ";
  if (mechanism.settings.empty())
    page << "a row a query and a column a key.";
  else
    page << "a row a query and a column a key, with the settings "
         << code(Value(test_settings(mechanism)).text()) << '.';
  if (mechanism.by_content) page << " Which keys it meets depends on the data.";
  page << "\n\n![" << mechanism.name << "](" << mechanism.name << ".svg)\n";
  if (mechanism.can.causal == Causal::optional)
    page << "![" << mechanism.name << ", causal](" << mechanism.name
         << "-causal.svg)\n";
  page << '\n';
}

void add_abilities(std::ostream& page, const Mechanism& mechanism) {
  page << "## What it takes and refuses\n\n| | | |\n| --- | --- | --- |\n";
  for (const Ability& ability : ability_table())
    page << "| " << ability.name << " | "
         << (ability.is_in(mechanism.can) ? "yes" : "refused") << " | "
         << markdown(ability.meaning) << " |\n";
  page << '\n';
}

std::string allowed(const Setting& setting) {
  std::vector<std::string> choices;
  for (const auto& choice : split_choices(setting.choices))
    choices.push_back(code(choice));
  if (!choices.empty()) return joined(choices);
  if (setting.least == -std::numeric_limits<double>::infinity()) return "";
  std::ostringstream text;
  text << setting.least << " or more";
  return text.str();
}

void add_settings(std::ostream& page, const Mechanism& mechanism) {
  page << "## Settings\n\n";
  if (mechanism.settings.empty()) {
    page << "None.\n\n";
    return;
  }
  page << "| name | kind | default | meaning | choices |\n"
       << "| --- | --- | --- | --- | --- |\n";
  for (const Setting& setting : mechanism.settings)
    page << "| " << code(setting.name) << " | " << name(setting.kind) << " | "
         << code(setting.standard) << " | " << markdown(setting.help) << " | "
         << allowed(setting) << " |\n";
  page << "\nEach may be a list with a value for every layer, and a number "
          "`{from: a, to: b}`, spread evenly over the layers.\n\n";
}

void add_presets(std::ostream& page, const Mechanism& mechanism) {
  if (mechanism.presets.empty()) return;
  page << "## Presets\n\n";
  for (const Preset& one : mechanism.presets) {
    page << code(one.name) << ":\n\n```yaml\n";
    for (const auto& [key, value] : preset(mechanism, one.name))
      page << key << ": " << value.text() << '\n';
    page << "```\n\n";
  }
}

// The setting that the examples give, at its default: the first that is one word.
const Setting* example_of(const Mechanism& mechanism) {
  for (const Setting& setting : mechanism.settings)
    if (setting.kind == Kind::integer || setting.kind == Kind::number ||
        setting.kind == Kind::boolean)
      return &setting;
  return nullptr;
}

void add_use(std::ostream& page, const Mechanism& mechanism) {
  const Setting* const setting = example_of(mechanism);
  std::string given;
  if (setting)
    given = ", {{\"" + std::string(setting->name) + "\", " +
            std::string(setting->standard) + "}}";
  const std::string row =
      "longspan::find_mechanism(\"" + std::string(mechanism.name) + "\"), sizes";
  page << "## From C++\n\n```cpp\n#include <longspan/attention/projected.h>\n\n"
       << "const longspan::Sizes sizes{.embedding = 64, .heads = 4, .head_width = 16, "
          ".longest = 1024};\n";
  const auto made = [&](const char* what, const char* seam) {
    page << "const auto " << what << " = longspan::make<longspan::" << seam << ">("
         << row << given << ");\n";
  };
  if (mechanism.seam() == "attention") made("attention", "Attention");
  if (mechanism.seam() == "feed_forward") made("feed_forward", "FeedForward");
  if (mechanism.seam() == "stack") made("stack", "Stack");
  if (is_layer(mechanism))
    page << "const auto layer = longspan::make_mixer(" << row << given << ");"
         << (mechanism.seam() == "attention" ? "  // with projections" : "") << '\n';
  page << "```\n\n## From the command line\n\n```sh\n";
  if (is_layer(mechanism)) {
    const std::string train = "longspan train -c CONFIG --out RUN --model.attention ";
    page << train << mechanism.name << '\n';
    if (setting)
      page << train << "'{name: " << mechanism.name << ", " << setting->name << ": "
           << setting->standard << "}'\n";
    if (!mechanism.presets.empty())
      page << train << mechanism.name << " --model.preset " << mechanism.presets[0].name
           << '\n';
  }
  page << "longspan check " << mechanism.name << "\nlongspan describe "
       << mechanism.name << " --picture " << mechanism.name
       << ".svg --tokens 64\n```\n";
}

std::string page_of(const Mechanism& mechanism, int64_t tokens) {
  std::ostringstream page;
  page << "# " << mechanism.name << "\n\n" << sentence(mechanism.summary) << "\n\n";
  add_facts(page, mechanism);
  add_pictures(page, mechanism, tokens);
  add_abilities(page, mechanism);
  add_settings(page, mechanism);
  add_presets(page, mechanism);
  add_use(page, mechanism);
  return page.str();
}

std::string index() {
  std::ostringstream page;
  page
      << "# The mechanisms\n\nWritten by `longspan describe --pages DIR` from the "
         "catalogue. Letters: N queries, M keys, H heads of queries, Hk of keys, d the "
         "width of a key, dv of a value, E of the model; others are settings.\n\n"
      << "| name | what it is | class | causal | decoding | time | memory |\n"
      << "| --- | --- | --- | --- | --- | --- | --- |\n";
  for (const Mechanism* row : mechanisms())
    page << "| [" << row->name << "](" << row->name << ".md) | "
         << markdown(row->summary) << " | " << markdown(row->classes) << " | "
         << name(row->can.causal) << " | " << (row->can.decoding ? "yes" : "no")
         << " | " << code(row->time.formula) << " | " << code(row->memory.formula)
         << " |\n";
  return page.str();
}

}  // namespace

int64_t write_reference_pages(const std::string& folder) {
  std::map<std::string, std::string> files = {{"README.md", index()}};
  for (const Mechanism* row : mechanisms()) {
    const std::string name(row->name);
    const int64_t tokens = tokens_that_tell(*row);
    files[name + ".md"] = page_of(*row, tokens);
    files[name + ".svg"] = picture(*row, {.tokens = tokens});
    if (row->can.causal == Causal::optional)
      files[name + "-causal.svg"] = picture(*row, {.tokens = tokens, .causal = true});
  }
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  require(!error, "cannot make the folder ", folder, ": ", error.message());
  for (const auto& [name, text] : files)
    write_whole((std::filesystem::path(folder) / name).string(), text);
  return static_cast<int64_t>(files.size());
}

}  // namespace longspan::cli
