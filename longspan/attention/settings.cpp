#include "longspan/attention/settings.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include <c10/util/Exception.h>

#include "longspan/base/error.h"
#include "longspan/base/words.h"

namespace longspan {
namespace {

std::string_view expected(Kind kind) {
  switch (kind) {
    case Kind::integer: return "a whole number";
    case Kind::number: return "a number";
    case Kind::boolean: return "true or false";
    case Kind::word: return "a word";
    case Kind::list: return "a list";
    case Kind::mechanism: return "the name of a mechanism or {name: .., setting: ..}";
  }
  TORCH_INTERNAL_ASSERT(false);
}

// {from: a, to: b} at this layer.
std::optional<Value> spread(const Setting& setting, const Value& value, int64_t layer,
                            int64_t layers) {
  const auto* map = value.as<Value::Map>();
  const bool is_number = setting.kind == Kind::integer || setting.kind == Kind::number;
  if (!map || !is_number || map->size() != 2 || !map->contains("from") ||
      !map->contains("to"))
    return std::nullopt;
  const auto from = map->at("from").as_number(), to = map->at("to").as_number();
  if (!from || !to) return std::nullopt;
  const double part = layers > 1 ? static_cast<double>(layer) / (layers - 1) : 0;
  const double number = *from + (*to - *from) * part;
  if (setting.kind == Kind::integer)
    return Value(static_cast<int64_t>(std::llround(number)));
  return Value(number);
}

// The value of this layer where `value` says one for each, else `value`.
Value at_layer(const std::string& who, const Setting& setting, const Value& value,
               int64_t layer, int64_t layers) {
  if (auto number = spread(setting, value, layer, layers)) return *number;
  const auto* list = value.as<Value::List>();
  if (!list) return value;
  const bool of_lists =
      !list->empty() && std::ranges::all_of(*list, [](const Value& item) {
        return item.as<Value::List>() != nullptr;
      });
  if (setting.kind == Kind::list && !of_lists) return value;
  require(static_cast<int64_t>(list->size()) == layers, who,
          " as a list must have one value for each of the ", layers, " layers, got ",
          value.text());
  return (*list)[layer];
}

Value checked(const std::string& who, const Setting& setting, const Value& value) {
  const auto refuse = [&] {
    fail(who, " must be ", expected(setting.kind), ", got ", value.text());
  };
  switch (setting.kind) {
    case Kind::integer:
      if (!value.as<int64_t>()) refuse();
      break;
    case Kind::number:
      if (!value.as_number()) refuse();
      break;
    case Kind::boolean:
      if (!value.as<bool>()) refuse();
      break;
    case Kind::word:
      if (!value.as<std::string>()) refuse();
      break;
    case Kind::list:
      if (!value.as<Value::List>()) refuse();
      break;
    case Kind::mechanism: Chosen::from(value, who); break;
  }
  if (const auto number = value.as_number())
    require(*number >= setting.least, who, " must be ", setting.least, " or more, got ",
            value.text());
  if (const auto words = split_choices(setting.choices); !words.empty()) {
    const auto& word = *value.as<std::string>();
    require(std::ranges::find(words, word) != words.end(), who, ": no choice '", word,
            "'", hint(word, words));
  }
  return value;
}

}  // namespace

std::string_view name(Kind kind) {
  switch (kind) {
    case Kind::integer: return "integer";
    case Kind::number: return "number";
    case Kind::boolean: return "boolean";
    case Kind::word: return "word";
    case Kind::list: return "list";
    case Kind::mechanism: return "mechanism";
  }
  TORCH_INTERNAL_ASSERT(false);
}

Chosen Chosen::from(const Value& value, std::string_view who) {
  if (const auto* word = value.as<std::string>()) return {.name = *word};
  const auto* map = value.as<Value::Map>();
  const auto* word =
      map && map->contains("name") ? map->at("name").as<std::string>() : nullptr;
  require(word != nullptr, who, " must be ", expected(Kind::mechanism), ", got ",
          value.text());
  Chosen chosen{.name = *word, .settings = *map};
  chosen.settings.erase("name");
  return chosen;
}

double Settings::number(std::string_view name) const {
  const auto found = values_.find(name);
  TORCH_INTERNAL_ASSERT(found != values_.end(), "no setting ", name);
  const auto number = found->second.as_number();
  TORCH_INTERNAL_ASSERT(number, name, " is not a number");
  return *number;
}

Chosen Settings::mechanism(std::string_view name) const {
  const auto found = values_.find(name);
  TORCH_INTERNAL_ASSERT(found != values_.end(), "no setting ", name);
  return Chosen::from(found->second, name);
}

template <class T>
const T& Settings::get(std::string_view name) const {
  const auto found = values_.find(name);
  TORCH_INTERNAL_ASSERT(found != values_.end(), "no setting ", name);
  const T* value = found->second.as<T>();
  TORCH_INTERNAL_ASSERT(value, name, " is of another kind");
  return *value;
}

template const int64_t& Settings::get(std::string_view) const;
template const bool& Settings::get(std::string_view) const;
template const std::string& Settings::get(std::string_view) const;
template const Value::List& Settings::get(std::string_view) const;

Settings Settings::complete(std::string_view who, std::span<const Setting> declared,
                            const Value::Map& given, int64_t layer, int64_t layers) {
  std::vector<std::string> known;
  for (const Setting& setting : declared) known.emplace_back(setting.name);
  for (const auto& [name, value] : given)
    require(std::ranges::find(known, name) != known.end(), who, ": no setting '", name,
            "'", hint(name, known));

  Settings settings;
  for (const Setting& setting : declared) {
    const std::string label = std::string(who) + ": " + std::string(setting.name);
    const auto found = given.find(setting.name);
    const Value value = found == given.end()
                            ? Value::parse(std::string(setting.standard))
                            : found->second;
    settings.values_.emplace(
        setting.name,
        checked(label, setting, at_layer(label, setting, value, layer, layers)));
  }
  return settings;
}

}  // namespace longspan
