// Options that a user may set by name: in YAML files, on the command line, in code.
//
// A struct of options says what its fields are called; everything else (reading,
// writing, the page of all keys) goes by that list. Standard values stand in the struct
// alone.

#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "longspan/base/value.h"

namespace longspan {

// A place of an options struct, and what may stand there.
struct Field {
  std::string name;  // dotted: "train.steps"
  // A Value takes whatever YAML has; its own keys may be set as well:
  // "model.attention.window".
  std::variant<bool*, int64_t*, double*, std::string*, Value*> place;
  std::string help;
  std::string choices = {};  // of a word: "pre|post"
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();

  Value value() const;
  // "a whole number", "true or false", ..
  std::string kind() const;
};

using Fields = std::vector<Field>;

// The fields of a part under the name of its section.
Fields within(std::string_view section, Fields fields);

// Reads one source after the other, later ones replacing what earlier ones said.
// Unknown keys and wrong values are Errors that name the key, the place and, for an
// unknown key, the nearest known one.
class ConfigReader {
 public:
  explicit ConfigReader(Fields fields) : fields_(std::move(fields)) {}

  void read_file(const std::string& path);
  void read_text(const std::string& yaml, const std::string& source);

  // One value by its dotted name, as YAML: ("model.layers", "2").
  void set(const std::string& name, const std::string& yaml);

  // The same with a value; `where` begins the message if it does not fit.
  void set(const std::string& name, const Value& value, const std::string& where);

 private:
  const Field* find(std::string_view name) const;
  [[noreturn]] void unknown(const std::string& name, const std::string& where) const;

  Fields fields_;
};

// All fields as a YAML file, with their help as comments if `helpful`.
std::string config_text(const Fields& fields, bool helpful = false);

// The names of the fields whose values differ. Both lists are of one struct.
std::vector<std::string> differing(const Fields& a, const Fields& b);

}  // namespace longspan
