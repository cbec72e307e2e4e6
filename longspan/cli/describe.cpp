#include <iomanip>
#include <iostream>
#include <map>
#include <memory>

#include "longspan/base/whole_file.h"
#include "longspan/base/words.h"
#include "longspan/cli/commands.h"
#include "longspan/cli/experiment_options.h"
#include "longspan/cli/reference_pages.h"
#include "longspan/cli/row.h"
#include "longspan/report/picture.h"

namespace longspan::cli {
namespace {

void print(const Mechanism& mechanism) {
  const auto line = [](std::string_view label, const auto& value) {
    std::cout << "  " << std::left << std::setw(12) << label << ' ' << value << '\n';
  };
  std::cout << mechanism.name << ": " << mechanism.summary << '\n';
  line("paper", mechanism.paper);
  line("class", mechanism.classes);
  line("time", mechanism.time.formula);
  line("memory", mechanism.memory.formula);
  line("seam", mechanism.seam());
  line("projections", name(mechanism.projections));
  line("causal", name(mechanism.can.causal));
  if (!mechanism.order.empty()) line("causal order", mechanism.order);
  std::vector<std::string> can, cannot;
  for (const auto& [ability, able] : abilities(mechanism))
    (able ? can : cannot).push_back(ability);
  line("takes", joined(can));
  line("refuses", joined(cannot));
  if (!mechanism.state.empty()) line("state", mechanism.state);
  line("block keeps", kept(mechanism.keeps));
  if (!mechanism.training.empty()) line("in training", mechanism.training);
  if (mechanism.settings.empty()) {
    line("settings", "none");
    return;
  }
  std::cout << "  settings\n";
  for (const Setting& setting : mechanism.settings) {
    std::cout << "    " << std::left << std::setw(15) << setting.name << ' '
              << setting.help << " (" << name(setting.kind) << ", " << setting.standard
              << ")\n";
  }
  for (const Preset& preset : mechanism.presets)
    line("preset " + std::string(preset.name), preset.settings);
}

// The model of a configuration: its parts, sizes and arithmetic.
void print(const Experiment& experiment) {
  const Task task = outline_task(experiment.task);
  const auto model = make_model(experiment, task);
  const TransformerOptions& options = experiment.model;
  std::cout << options.layers << " layers of " << options.attention.text() << ", "
            << options.heads << " heads, " << options.embedding << " wide; "
            << task.name << " with " << task.ids << " ids, " << task.longest
            << " tokens at most\n";
  std::map<std::string, int64_t> parts;
  for (const auto& entry : model.module().named_parameters()) {
    std::string part = entry.key();
    for (const std::string_view outer : {"encoder.", "transformer."})
      if (part.starts_with(outer)) part = part.substr(outer.size());
    part = part.substr(0, part.find('.'));
    parts[part] += entry.value().numel();
  }
  for (const auto& [part, count] : parts)
    std::cout << "  " << std::left << std::setw(24) << part << std::right
              << std::setw(12) << count << '\n';
  std::cout << "  " << std::left << std::setw(24) << "parameters" << std::right
            << std::setw(12) << parameter_count(model.module()) << '\n';
  const auto flops = static_cast<double>(
      forward_flops(model, task, task.longest, device_of(experiment.train)));
  std::cout << "  forward pass of one sequence of " << task.longest
            << " tokens: " << std::setprecision(4) << flops / 1e9
            << " GFLOP; a training step of " << experiment.train.batch << ": "
            << 3 * flops * static_cast<double>(experiment.train.batch) / 1e9
            << " GFLOP\n";
}

// The options of pictures and pages.
class Drawn {
 public:
  explicit Drawn(CLI::App& verb) {
    picture_ =
        verb.add_option("--picture", file_, "draw who sees whom into this SVG file");
    tokens_ = verb.add_option("--tokens", options_.tokens, "of the picture")
                  ->check(CLI::Range(1, 256))
                  ->capture_default_str();
    causal_ = verb.add_flag("--causal", options_.causal, "draw the causal form");
    settings_ =
        verb.add_option("--settings", given_,
                        "of the mechanism in the picture, as YAML; else small ones");
    pages_ =
        verb.add_option("--pages", folder_,
                        "write a reference page for every mechanism into this folder");
  }

  bool has_picture() const { return !picture_->empty(); }
  bool has_pages() const { return !pages_->empty(); }

  // Refuses what does not go together.
  void check(bool has_name, bool has_files) const {
    if (has_pages() && (has_name || has_files || has_picture()))
      throw UsageError(
          "--pages writes about all mechanisms; leave out names, -c and --picture");
    if (has_picture() && (!has_name || has_files))
      throw UsageError(
          "--picture draws one mechanism: longspan describe NAME --picture " + file_);
    for (const auto* option : {tokens_, causal_, settings_})
      if (!option->empty() && !has_picture())
        throw UsageError(option->get_name() + " is for --picture FILE");
  }

  void draw(const Mechanism& mechanism) {
    const std::string svg = argument([&] {
      if (!settings_->empty()) {
        const Value value = Value::parse(given_);
        const auto* const map = value.as<Value::Map>();
        require(map, "--settings must be like {window: 4}, got ", given_);
        options_.settings = *map;
      }
      return report::picture(mechanism, options_);
    });
    write_whole(file_, svg);
    std::cout << file_ << ": who sees whom in " << mechanism.name << ", "
              << options_.tokens << " tokens\n";
  }

  void write_pages() const {
    const int64_t count = write_reference_pages(folder_);
    std::cout << folder_ << ": " << count << " files\n";
  }

 private:
  std::string file_, given_, folder_;
  report::PictureOptions options_;
  CLI::Option *picture_, *tokens_, *causal_, *settings_, *pages_;
};

}  // namespace

void add_describe(CLI::App& program) {
  auto* const verb =
      program.add_subcommand("describe",
                             "all about one mechanism (describe NAME), or about the "
                             "model of a configuration (describe -c CONFIG)");
  verb->footer(
      "Examples:\n"
      "  longspan describe dense\n"
      "  longspan describe dense --picture dense.svg --causal\n"
      "  longspan describe --pages docs/mechanisms\n"
      "  longspan describe -c configs/lra/listops/dense.yaml --model.layers 1");
  const auto options = std::make_shared<ExperimentOptions>(*verb, /*words=*/1);
  const auto drawn = std::make_shared<Drawn>(*verb);
  verb->callback([=] {
    const auto words = options->words();
    drawn->check(!words.empty(), options->has_files());
    if (drawn->has_pages()) {
      options->resolved();  // refuses what is no option
      drawn->write_pages();
      return;
    }
    if (!words.empty()) {
      if (options->has_files())
        throw UsageError(
            "describe takes the name of a mechanism or -c CONFIG, not both");
      options->resolved();  // refuses what is no option
      const auto& row = *argument([&] { return &find_mechanism(words.front()); });
      if (drawn->has_picture())
        drawn->draw(row);
      else
        print(row);
      return;
    }
    if (!options->has_files())
      throw UsageError("describe needs the name of a mechanism, or -c CONFIG");
    Experiment experiment = options->resolved();
    if (!options->dumped(fields(experiment))) print(experiment);
  });
}

}  // namespace longspan::cli
