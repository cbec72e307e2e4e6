// Tables of text, and their cells.

#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace longspan::cli {

using TextTable = std::vector<std::vector<std::string>>;

// With so many digits after the point, "-" for what is not there.
std::string cell(std::optional<double> value, int digits);

nlohmann::ordered_json or_null(std::optional<double> value);

// Columns as wide as their widest cell; the first `words` of them on the left.
void print_table(const TextTable& lines, size_t words = 1);

}  // namespace longspan::cli
