// A row of the catalogue as words.

#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "longspan/attention/mechanism.h"

namespace longspan::cli {

std::string_view name(Causal causal);
std::string_view name(Projections projections);

// An ability that is there or not.
struct Ability {
  std::string_view name, meaning;
  bool (*is_in)(const Abilities& can);
};

// In the order of Abilities.
std::span<const Ability> ability_table();

// Their names, with what the mechanism has of them.
std::vector<std::pair<std::string, bool>> abilities(const Mechanism& mechanism);

// "residual, norm, feed-forward": what the block around the mechanism still does.
std::string kept(const Keeps& keeps);

nlohmann::ordered_json json(const Mechanism& mechanism);

}  // namespace longspan::cli
