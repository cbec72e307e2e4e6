// A value of a configuration: a whole number, a number, a boolean, a word, a list, or
// a map from names to values.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace longspan {

class Value {
 public:
  using List = std::vector<Value>;
  using Map = std::map<std::string, Value, std::less<>>;

  Value(int64_t value) : held_(value) {}
  Value(int value) : held_(int64_t{value}) {}
  Value(double value) : held_(value) {}
  Value(bool value) : held_(value) {}
  Value(std::string value) : held_(std::move(value)) {}
  Value(const char* value) : held_(std::string(value)) {}
  Value(List value) : held_(std::move(value)) {}
  Value(Map value) : held_(std::move(value)) {}

  // Reads YAML: `128`, `0.5`, `true`, `max`, `[1, 2]`, `{from: 0.2, to: 0.35}`.
  static Value parse(const std::string& yaml);

  // The value if it is a T (int64_t, double, bool, std::string, List or Map), else
  // null.
  template <class T>
  const T* as() const {
    return std::get_if<T>(&held_);
  }

  // The value of a number, whole or not.
  std::optional<double> as_number() const {
    if (const auto* whole = as<int64_t>()) return static_cast<double>(*whole);
    if (const auto* number = as<double>()) return *number;
    return std::nullopt;
  }

  // As YAML on one line; parse() reads it back.
  std::string text() const;

  bool operator==(const Value& other) const = default;

 private:
  std::variant<int64_t, double, bool, std::string, List, Map> held_;
};

}  // namespace longspan
