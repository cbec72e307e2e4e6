// What an option lists: values between commas, or a YAML list.

#pragma once

#include <set>
#include <string>

#include "longspan/base/value.h"

namespace longspan::cli {

constexpr int64_t kLongest = int64_t{1} << 24;  // tokens of a sequence

Value::List list_of(const std::string& option, const std::string& text);

// Whole numbers of tokens, 1 to kLongest.
std::set<int64_t> lengths_of(const std::string& option, const std::string& text);

}  // namespace longspan::cli
