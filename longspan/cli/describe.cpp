#include <iomanip>
#include <iostream>
#include <memory>

#include "longspan/base/words.h"
#include "longspan/cli/commands.h"
#include "longspan/cli/row.h"

namespace longspan::cli {
namespace {

void print(const Mechanism& mechanism) {
  const auto line = [](std::string_view label, const auto& value) {
    std::cout << "  " << std::left << std::setw(13) << label << value << '\n';
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
    std::cout << "    " << std::left << std::setw(16) << setting.name << setting.help
              << " (" << name(setting.kind) << ", " << setting.standard << ")\n";
  }
  for (const Preset& preset : mechanism.presets)
    line("preset " + std::string(preset.name), preset.settings);
}

}  // namespace

void add_describe(CLI::App& program) {
  auto* const verb = program.add_subcommand(
      "describe", "all about one mechanism: claims and settings");
  const auto name = std::make_shared<std::string>();
  verb->add_option("name", *name, "a mechanism, as in `longspan list`")->required();
  verb->callback([=] { print(*argument([&] { return &find_mechanism(*name); })); });
}

}  // namespace longspan::cli
