// What the command lines of several verbs have in common.

#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "longspan/base/value.h"

namespace longspan::cli {

inline constexpr int64_t kLongest = int64_t{1} << 24;  // tokens

// What stands between commas, or in a YAML list; at least one.
Value::List list_of(const std::string& option, const std::string& text);

// Numbers of tokens.
std::set<int64_t> lengths_of(const std::string& option, const std::string& text);

// Fails now rather than after the work whose result is to be written.
void check_writable(const std::string& path);

}  // namespace longspan::cli
