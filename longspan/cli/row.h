// A row of the catalogue as words.

#pragma once

#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "longspan/attention/mechanism.h"

namespace longspan::cli {

std::string_view name(Causal causal);
std::string_view name(Projections projections);

// The abilities with their names, in the order of Abilities.
std::vector<std::pair<std::string, bool>> abilities(const Mechanism& mechanism);

// "residual, norm, feed-forward": what the block around the mechanism still does.
std::string kept(const Keeps& keeps);

nlohmann::ordered_json json(const Mechanism& mechanism);

}  // namespace longspan::cli
