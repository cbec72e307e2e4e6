#include <iomanip>
#include <iostream>
#include <memory>

#include "longspan/cli/commands.h"
#include "longspan/cli/device.h"
#include "longspan/contract/contract.h"

namespace longspan::cli {
namespace {

bool print(const Mechanism& mechanism, torch::Device device) {
  std::cout << mechanism.name << " on " << device.str() << '\n';
  bool in_order = true;
  for (const Clause& clause : contract()) {
    std::cout << "  " << clause.number << "  " << std::left << std::setw(28)
              << clause.title << std::flush;
    const Verdict verdict = clause.check(mechanism, device);
    switch (verdict.state) {
      case Verdict::State::holds: std::cout << "holds\n"; break;
      case Verdict::State::refused: std::cout << "not claimed, refused\n"; break;
      case Verdict::State::broken:
        std::cout << "BROKEN: " << verdict.detail << '\n';
        in_order = false;
        break;
    }
  }
  return in_order;
}

}  // namespace

void add_check(CLI::App& program) {
  auto* const verb = program.add_subcommand(
      "check", "holds mechanisms against the contract, clause by clause");
  const auto names = std::make_shared<std::vector<std::string>>();
  const auto device_name = std::make_shared<std::string>("cpu");
  verb->add_option("names", *names, "mechanisms; all if none is named");
  verb->add_option("--device", *device_name, "cpu or cuda")->capture_default_str();
  verb->callback([=] {
    std::vector<const Mechanism*> rows;
    for (const auto& name : *names)
      rows.push_back(argument([&] { return &find_mechanism(name); }));
    if (rows.empty()) rows.assign(mechanisms().begin(), mechanisms().end());
    const auto device = argument([&] { return usable_device(*device_name); });
    bool in_order = true;
    for (const Mechanism* row : rows) in_order = print(*row, device) && in_order;
    if (!in_order) throw Failed();
  });
}

}  // namespace longspan::cli
