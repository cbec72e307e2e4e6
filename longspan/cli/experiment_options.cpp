#include "longspan/cli/experiment_options.h"

#include <iostream>

#include "longspan/base/words.h"
#include "longspan/cli/commands.h"

namespace longspan::cli {

ExperimentOptions::ExperimentOptions(CLI::App& verb) : verb_(verb) {
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
  shorthand("--seed", "train.seed", "train.seed");
  shorthand("--device", "train.device", "cpu or cuda: train.device");
  verb.add_flag("--dump-config", dump_,
                "print the configuration, with what every key means, and stop");
  add_threads(verb);
  verb.allow_extras();
}

Experiment ExperimentOptions::resolved(const std::string& first) const {
  return argument([&] {
    Experiment experiment;
    ConfigReader reader(fields(experiment));
    if (!first.empty()) reader.read_file(first);
    for (const std::string& file : files_) reader.read_file(file);
    for (const auto& [name, value] : shorthands_) reader.set(name, value);
    const auto extras = verb_.remaining();
    for (size_t i = 0; i < extras.size(); ++i) {
      std::string name = extras[i];
      require(name.starts_with('-'), "'", name, "' is one argument too many");
      if (!name.starts_with("--") || name.find('.') == std::string::npos) {
        std::vector<std::string> known;
        for (const auto* option : verb_.get_options())
          for (const auto& long_name : option->get_lnames())
            known.push_back("--" + long_name);
        fail("no option ", name, hint(name, known),
             ", and any key of the configuration, such as --model.layers");
      }
      name = name.substr(2);
      std::string value;
      if (const size_t equals = name.find('='); equals != std::string::npos) {
        value = name.substr(equals + 1);
        name = name.substr(0, equals);
      } else {
        require(i + 1 < extras.size(), "--", name, " needs a value");
        value = extras[++i];
      }
      reader.set(name, value);
    }
    return experiment;
  });
}

bool ExperimentOptions::dumped(Experiment experiment) const {
  if (dump_) std::cout << config_text(fields(experiment), /*helpful=*/true);
  return dump_;
}

}  // namespace longspan::cli
