// The settings of a mechanism: declared in its row, given by the user, completed and
// checked for one layer.

#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>

#include "longspan/base/value.h"

namespace longspan {

enum class Kind { integer, number, boolean, word, list, mechanism };

std::string_view name(Kind kind);

// Declared in a row. Any setting may also be given as a list with one value a layer,
// and a number as {from: a, to: b}, spread evenly over the layers.
struct Setting {
  std::string_view name;
  Kind kind = Kind::integer;
  std::string_view standard;  // the value unless another is given, as YAML
  std::string_view help;
  std::string_view choices = {};  // of a word: "max|mean"
  double least = -std::numeric_limits<double>::infinity();
};

// A mechanism by name, with what differs from its standard settings: as YAML `local`,
// or `{name: local, window: 64}`.
struct Chosen {
  std::string name;
  Value::Map settings = {};

  // `who` begins the message if `value` is neither of the two.
  static Chosen from(const Value& value, std::string_view who);
};

// Complete values for one layer. Asking for a name or kind the row does not declare is
// a mistake of the mechanism, not of the user.
class Settings {
 public:
  int64_t integer(std::string_view name) const { return get<int64_t>(name); }
  double number(std::string_view name) const;
  bool flag(std::string_view name) const { return get<bool>(name); }
  const std::string& word(std::string_view name) const {
    return get<std::string>(name);
  }
  const Value::List& list(std::string_view name) const {
    return get<Value::List>(name);
  }
  Chosen mechanism(std::string_view name) const;

  const Value::Map& values() const { return values_; }

  // The standard values replaced by `given`, for layer `layer` of `layers`. `who`
  // begins every message.
  static Settings complete(std::string_view who, std::span<const Setting> declared,
                           const Value::Map& given, int64_t layer = 0,
                           int64_t layers = 1);

 private:
  template <class T>
  const T& get(std::string_view name) const;

  Value::Map values_;
};

}  // namespace longspan
