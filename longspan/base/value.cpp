#include "longspan/base/value.h"

#include <algorithm>
#include <charconv>

#include "longspan/base/error.h"
#include "longspan/base/words.h"
#include "longspan/base/yaml.h"

namespace longspan {
namespace {

template <class T>
bool read_all(const std::string& text, T& number) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && stop == end;
}

// What a word without quotes means.
Value plain_scalar(const std::string& text) {
  if (text == "true") return true;
  if (text == "false") return false;
  if (int64_t whole; read_all(text, whole)) return whole;
  if (double number; read_all(text, number)) return number;
  return text;
}

std::string number_text(double number) {
  char buffer[32];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, number);
  std::string text(buffer, end);
  if (text.find_first_not_of("-0123456789") == std::string::npos) text += ".0";
  return text;
}

// Quoted where plain text would be read as something else.
std::string word_text(const std::string& word) {
  static const std::vector<std::string> kOther = {"null", "Null", "NULL", "-", "?"};
  const bool plain =
      !word.empty() && plain_scalar(word).as<std::string>() &&
      std::ranges::find(kOther, word) == kOther.end() &&
      word.find_first_of(" \t\n\"'\\,:[]{}#&*!|>%@`~") == std::string::npos;
  if (plain) return word;
  std::string text = "\"";
  for (const char letter : word) {
    if (letter == '"' || letter == '\\') text += '\\';
    if (letter == '\n')
      text += "\\n";
    else if (letter == '\t')
      text += "\\t";
    else
      text += letter;
  }
  return text + '"';
}

std::string enclosed(char open, const std::vector<std::string>& items, char close) {
  std::string text(1, open);
  text += joined(items);
  text += close;
  return text;
}

// `depth`: how many lists and maps it is in.
Value from_yaml(const YAML::Node& node, int depth) {
  constexpr int kDeepest = 100;  // an alias inside its own anchor has no end
  require(depth < kDeepest, "a value is nested too deep");
  switch (node.Type()) {
    case YAML::NodeType::Scalar:
      return node.Tag() == "!" ? Value(node.Scalar()) : plain_scalar(node.Scalar());
    case YAML::NodeType::Sequence: {
      Value::List list;
      for (const auto& item : node) list.push_back(from_yaml(item, depth + 1));
      return list;
    }
    case YAML::NodeType::Map: {
      Value::Map map;
      for (const auto& entry : node) {
        require(entry.first.IsScalar(), "a key must be a word");
        const std::string& name = entry.first.Scalar();
        require(map.emplace(name, from_yaml(entry.second, depth + 1)).second, "'", name,
                "' is given twice");
      }
      return map;
    }
    default: fail("a value is missing");
  }
}

}  // namespace

Value from_yaml(const YAML::Node& node) { return from_yaml(node, 0); }

Value Value::parse(const std::string& yaml) {
  try {
    return from_yaml(YAML::Load(yaml));
  } catch (const YAML::Exception& error) {
    fail("'", yaml, "' is not YAML: ", error.msg);
  } catch (const Error& error) {
    fail("cannot read '", yaml, "': ", error.what());
  }
}

std::string Value::text() const {
  if (const auto* whole = as<int64_t>()) return std::to_string(*whole);
  if (const auto* number = as<double>()) return number_text(*number);
  if (const auto* flag = as<bool>()) return *flag ? "true" : "false";
  if (const auto* word = as<std::string>()) return word_text(*word);
  std::vector<std::string> items;
  if (const auto* list = as<List>()) {
    for (const auto& item : *list) items.push_back(item.text());
    return enclosed('[', items, ']');
  }
  for (const auto& [name, value] : *as<Map>())
    items.push_back(word_text(name) + ": " + value.text());
  return enclosed('{', items, '}');
}

}  // namespace longspan
