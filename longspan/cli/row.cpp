#include "longspan/cli/row.h"

#include "longspan/base/words.h"

namespace longspan::cli {

using nlohmann::ordered_json;

std::string_view name(Causal causal) {
  switch (causal) {
    case Causal::never: return "never";
    case Causal::optional: return "optional";
    case Causal::always: return "always";
  }
  TORCH_INTERNAL_ASSERT(false);
}

std::string_view name(Projections projections) {
  switch (projections) {
    case Projections::qkv: return "qkv";
    case Projections::qkv_global: return "qkv_global";
    case Projections::qk_v: return "qk_v";
    case Projections::v: return "v";
    case Projections::none: return "none";
  }
  TORCH_INTERNAL_ASSERT(false);
}

namespace {

constexpr Ability kAbilities[] = {
    {"padding", "tokens that do not count, anywhere",
     [](const Abilities& can) { return can.padding; }},
    {"cross", "keys and values of another sequence",
     [](const Abilities& can) { return can.cross; }},
    {"causal_cross", "keys and values of another sequence, causal",
     [](const Abilities& can) { return can.causal_cross; }},
    {"decoding", "tokens one after the other, with a state",
     [](const Abilities& can) { return can.decoding; }},
    {"positions", "positions other than 0, 1, 2, ..",
     [](const Abilities& can) { return can.positions; }},
    {"bias", "a bias of the scores, by distance or by key",
     [](const Abilities& can) { return can.bias; }},
    {"segments", "several sequences in one, which do not see each other",
     [](const Abilities& can) { return can.segments; }},
    {"global", "tokens that see all and are seen by all",
     [](const Abilities& can) { return can.global; }},
    {"side", "a second stream beside the tokens",
     [](const Abilities& can) { return can.side; }},
    {"carry", "something kept from batch to batch",
     [](const Abilities& can) { return can.carry != Carry::none; }},
    {"dropout", "dropout of attention weights",
     [](const Abilities& can) { return can.dropout; }},
    {"grouped", "fewer heads of keys than of queries",
     [](const Abilities& can) { return can.grouped; }},
};

}  // namespace

std::span<const Ability> ability_table() { return kAbilities; }

std::vector<std::pair<std::string, bool>> abilities(const Mechanism& mechanism) {
  std::vector<std::pair<std::string, bool>> all;
  for (const Ability& ability : kAbilities)
    all.emplace_back(ability.name, ability.is_in(mechanism.can));
  return all;
}

std::string kept(const Keeps& keeps) {
  std::vector<std::string> parts;
  if (keeps.residual) parts.push_back("residual");
  if (keeps.norm) parts.push_back("norm");
  if (keeps.feed_forward) parts.push_back("feed-forward");
  return parts.empty() ? "nothing" : joined(parts);
}

ordered_json json(const Mechanism& mechanism) {
  ordered_json row;
  row["name"] = mechanism.name;
  row["summary"] = mechanism.summary;
  row["paper"] = mechanism.paper;
  row["class"] = mechanism.classes;
  row["time"] = {{"formula", mechanism.time.formula}, {"power", mechanism.time.power}};
  row["memory"] = {{"formula", mechanism.memory.formula},
                   {"power", mechanism.memory.power}};
  row["seam"] = mechanism.seam();
  row["projections"] = name(mechanism.projections);
  row["causal"] = name(mechanism.can.causal);
  row["order"] = mechanism.order.empty() ? "sequence" : mechanism.order;
  for (const auto& [ability, able] : abilities(mechanism)) row[ability] = able;
  row["state"] = mechanism.state;
  row["keeps"] = {{"residual", mechanism.keeps.residual},
                  {"norm", mechanism.keeps.norm},
                  {"feed_forward", mechanism.keeps.feed_forward}};
  row["full"] = mechanism.full;
  row["zero_weights"] = mechanism.zero_weights;
  row["by_content"] = mechanism.by_content;
  row["training"] = mechanism.training;
  row["settings"] = ordered_json::array();
  for (const Setting& setting : mechanism.settings)
    row["settings"].push_back({{"name", setting.name},
                               {"kind", name(setting.kind)},
                               {"default", setting.standard},
                               {"choices", setting.choices},
                               {"help", setting.help}});
  row["presets"] = ordered_json::object();
  for (const Preset& preset : mechanism.presets)
    row["presets"][std::string(preset.name)] = preset.settings;
  return row;
}

}  // namespace longspan::cli
