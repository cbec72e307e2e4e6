#include "longspan/cli/experiment_options.h"

#include <algorithm>
#include <iostream>
#include <utility>

#include "longspan/base/words.h"
#include "longspan/cli/commands.h"

namespace longspan::cli {

ExperimentOptions::ExperimentOptions(CLI::App& verb, size_t words)
    : verb_(verb), words_(words) {
  verb.add_option("-c,--config", files_,
                  "a YAML file; of several, later ones count more")
      ->allow_extra_args(false);
  const auto shorthand = [&](const char* option, const std::string& name,
                             const char* help) {
    verb.add_option_function<std::string>(
        option,
        [this, name](const std::string& value) {
          shorthands_.emplace_back(name, value);
        },
        help);
  };
  shorthand("--data", "task.data", "the folder of the data: task.data");
  shorthand("--attention", "model.attention", "the mechanism: model.attention");
  shorthand("--preset", "model.preset",
            "published settings of the mechanism: model.preset");
  shorthand("--seed", "train.seed", "train.seed");
  shorthand("--device", "train.device", "cpu or cuda: train.device");
  verb.add_flag("--dump-config", dump_,
                "print the configuration, with what every key means, and stop");
  add_threads(verb);
  verb.allow_extras();
}

ExperimentOptions::Extras ExperimentOptions::extras() const {
  Extras extras;
  const auto rest = verb_.remaining();
  for (size_t i = 0; i < rest.size(); ++i) {
    std::string name = rest[i];
    if (!name.starts_with('-')) {
      if (extras.words.size() == words_)
        throw UsageError("'" + name + "' is one argument too many");
      extras.words.push_back(name);
      continue;
    }
    if (!name.starts_with("--") || name.find('.') == std::string::npos) {
      std::vector<std::string> known;
      for (const auto* option : verb_.get_options())
        for (const auto& long_name : option->get_lnames())
          known.push_back("--" + long_name);
      throw UsageError("no option " + name + hint(name, known) +
                       ", and any key of the configuration, such as --model.layers");
    }
    name = name.substr(2);
    if (const size_t equals = name.find('='); equals != std::string::npos) {
      extras.values.emplace_back(name.substr(0, equals), name.substr(equals + 1));
      continue;
    }
    if (i + 1 == rest.size()) throw UsageError("--" + name + " needs a value");
    extras.values.emplace_back(name, rest[++i]);
  }
  return extras;
}

void ExperimentOptions::resolve(Fields into, const std::string& first) const {
  const Extras given = extras();
  argument([&] {
    ConfigReader reader(std::move(into));
    if (!first.empty()) reader.read_file(first);
    for (const std::string& file : files_) reader.read_file(file);
    for (const auto& [name, value] : shorthands_) reader.set(name, value);
    for (const auto& [name, value] : given.values) reader.set(name, value);
  });
}

Experiment ExperimentOptions::resolved(const std::string& first) const {
  Experiment experiment;
  resolve(fields(experiment), first);
  return experiment;
}

bool ExperimentOptions::gives(const std::string& name) const {
  return std::ranges::any_of(extras().values,
                             [&](const auto& given) { return given.first == name; });
}

bool ExperimentOptions::dumped(const Fields& fields) const {
  if (dump_) std::cout << config_text(fields, /*helpful=*/true);
  return dump_;
}

}  // namespace longspan::cli
