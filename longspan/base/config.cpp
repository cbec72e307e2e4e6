#include "longspan/base/config.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iomanip>
#include <sstream>

#include "longspan/base/error.h"
#include "longspan/base/read_file.h"
#include "longspan/base/words.h"
#include "longspan/base/yaml.h"

namespace longspan {
namespace {

// The last part of a dotted name, and what is before it.
std::pair<std::string_view, std::string_view> cut(std::string_view name) {
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return {"", name};
  return {name.substr(0, dot), name.substr(dot + 1)};
}

std::string bounds(const Field& field) {
  std::ostringstream text;
  text << std::setprecision(12);
  const bool low = field.least > -std::numeric_limits<double>::infinity();
  const bool high = field.most < std::numeric_limits<double>::infinity();
  if (low && high)
    text << " between " << field.least << " and " << field.most;
  else if (low)
    text << " of " << field.least << " or more";
  else if (high)
    text << " of " << field.most << " or less";
  return text.str();
}

void store(const Field& field, const Value& value, const std::string& where) {
  const auto refuse = [&] {
    fail(where, field.name, " must be ", field.kind(), ", got ", value.text());
  };
  const auto check_bounds = [&](double number) {
    const bool fits = number >= field.least && number <= field.most;
    if (!fits || std::isinf(number)) refuse();
  };
  if (auto* const* place = std::get_if<bool*>(&field.place)) {
    if (!value.as<bool>()) refuse();
    **place = *value.as<bool>();
  } else if (auto* const* whole = std::get_if<int64_t*>(&field.place)) {
    if (!value.as<int64_t>()) refuse();
    check_bounds(static_cast<double>(*value.as<int64_t>()));
    **whole = *value.as<int64_t>();
  } else if (auto* const* number = std::get_if<double*>(&field.place)) {
    if (!value.as_number()) refuse();
    check_bounds(*value.as_number());
    **number = *value.as_number();
  } else if (auto* const* word = std::get_if<std::string*>(&field.place)) {
    // A name that looks like a number is a name all the same.
    const bool scalar = !value.as<Value::List>() && !value.as<Value::Map>();
    if (!scalar) refuse();
    const std::string text =
        value.as<std::string>() ? *value.as<std::string>() : value.text();
    if (const auto words = split_choices(field.choices);
        !words.empty() && std::ranges::find(words, text) == words.end())
      fail(where, field.name, ": no choice '", text, "'", hint(text, words));
    **word = text;
  } else {
    **std::get_if<Value*>(&field.place) = value;
  }
}

}  // namespace

Value Field::value() const {
  return std::visit([](const auto* held) { return Value(*held); }, place);
}

std::string Field::kind() const {
  if (std::holds_alternative<bool*>(place)) return "true or false";
  if (std::holds_alternative<int64_t*>(place)) return "a whole number" + bounds(*this);
  if (std::holds_alternative<double*>(place)) return "a number" + bounds(*this);
  if (std::holds_alternative<Value*>(place)) return "a value";
  return choices.empty() ? "a word" : "one of " + joined(split_choices(choices));
}

Fields within(std::string_view section, Fields fields) {
  for (Field& field : fields) field.name = std::string(section) + '.' + field.name;
  return fields;
}

const Field* ConfigReader::find(std::string_view name) const {
  const auto found = std::ranges::find(fields_, name, &Field::name);
  return found == fields_.end() ? nullptr : &*found;
}

void ConfigReader::unknown(const std::string& name, const std::string& where) const {
  const auto [section, last] = cut(name);
  std::vector<std::string> all, here, ends_here;
  std::string meant;
  for (const Field& field : fields_) {
    const auto [its_section, its_last] = cut(field.name);
    all.push_back(field.name);
    if (its_section == section) {
      here.push_back(field.name);
      ends_here.emplace_back(its_last);
    } else if (its_last == last) {
      meant = field.name;  // the right word in the wrong section
    }
  }
  if (const std::string near = nearest(last, ends_here); meant.empty() && !near.empty())
    meant = (section.empty() ? "" : std::string(section) + '.') + near;
  if (meant.empty()) meant = nearest(name, all);
  if (!meant.empty()) fail(where, "no key '", name, "'; did you mean '", meant, "'?");
  fail(where, "no key '", name, "'; there are: ", joined(here.empty() ? all : here));
}

void ConfigReader::set(const std::string& name, const Value& value,
                       const std::string& where) {
  if (const Field* field = find(name)) return store(*field, value, where);
  // A key of a Value, or all keys of a section.
  if (const Field* field = find(cut(name).first)) {
    auto* const* place = std::get_if<Value*>(&field->place);
    if (!place) unknown(name, where);
    Value::Map map;
    const auto* word = (*place)->as<std::string>();
    const auto* held = (*place)->as<Value::Map>();
    if (!word && !held) unknown(name, where);
    if (word) map.emplace("name", *word);
    if (held) map = *held;
    map.insert_or_assign(std::string(cut(name).second), value);
    **place = map;
    return;
  }
  unknown(name, where);
}

void ConfigReader::set(const std::string& name, const std::string& yaml) {
  const std::string where = "the command line: ";
  Value value(std::string{});
  // A path or a sentence need not be YAML.
  const Field* field = find(name);
  if (field && std::holds_alternative<std::string*>(field->place)) {
    value = yaml;
  } else {
    try {
      value = Value::parse(yaml);
    } catch (const Error& error) {
      fail(where, name, ": ", error.what());
    }
  }
  set(name, value, where);
}

void ConfigReader::read_text(const std::string& yaml, const std::string& source) {
  const auto at = [&](const YAML::Mark& mark) {
    return mark.is_null() ? source + ": "
                          : source + ", line " + std::to_string(mark.line + 1) + ": ";
  };
  std::vector<std::string> seen;
  const std::function<void(const YAML::Node&, const std::string&)> descend =
      [&](const YAML::Node& node, const std::string& section) {
        for (const auto& entry : node) {
          const std::string where = at(entry.first.Mark());
          require(entry.first.IsScalar(), where, "a key must be a word");
          const std::string name = section.empty()
                                       ? entry.first.Scalar()
                                       : section + '.' + entry.first.Scalar();
          require(std::ranges::find(seen, name) == seen.end(), where, "'", name,
                  "' is given twice");
          seen.push_back(name);
          const bool is_section = std::ranges::any_of(fields_, [&](const Field& field) {
            return field.name.starts_with(name + '.');
          });
          if (is_section) {
            require(entry.second.IsMap() || entry.second.IsNull(), where, "'", name,
                    "' must be a section with keys of its own");
            descend(entry.second, name);
            continue;
          }
          if (!find(name) && !find(cut(name).first)) unknown(name, where);
          try {
            const Field* field = find(name);
            const bool as_written = field && entry.second.IsScalar() &&
                                    std::holds_alternative<std::string*>(field->place);
            set(name,
                as_written ? Value(entry.second.Scalar()) : from_yaml(entry.second),
                where);
          } catch (const Error& error) {
            const std::string message = error.what();
            if (message.starts_with(where)) throw;
            fail(where, name, ": ", message);
          }
        }
      };
  try {
    const auto documents = YAML::LoadAll(yaml);
    if (documents.empty()) return;
    require(documents.size() == 1, source, ": must be one YAML document, got ",
            documents.size());
    const YAML::Node& root = documents.front();
    if (root.IsNull()) return;
    require(root.IsMap(), at(root.Mark()), "a configuration must be keys with values");
    descend(root, "");
  } catch (const YAML::Exception& error) {
    fail(at(error.mark), "this is not YAML: ", error.msg);
  }
}

void ConfigReader::read_file(const std::string& path) {
  read_text(longspan::read_file(path), path);
}

std::string config_text(const Fields& fields, bool helpful) {
  std::string text, section;
  for (const Field& field : fields) {
    const auto [before, last] = cut(field.name);
    if (before != section) {
      section = before;
      text += section + ":\n";
    }
    const std::string indent = section.empty() ? "" : "  ";
    if (helpful) text += indent + "# " + field.help + " (" + field.kind() + ")\n";
    text += indent + std::string(last) + ": " + field.value().text() + "\n";
  }
  return text;
}

std::vector<std::string> differing(const Fields& a, const Fields& b) {
  std::vector<std::string> names;
  for (size_t i = 0; i < a.size(); ++i)
    if (a[i].value() != b[i].value()) names.push_back(a[i].name);
  return names;
}

}  // namespace longspan
