#include "longspan/cli/value_list.h"

#include <optional>

#include "longspan/base/error.h"

namespace longspan::cli {

Value::List list_of(const std::string& option, const std::string& text) {
  std::optional<Value> read;
  try {
    // As the value of a key it must end where the list does.
    read = Value::parse("list: [" + text + "]").as<Value::Map>()->at("list");
  } catch (const Error&) {
    fail(option, " must be a list, separated by commas, got '", text, "'");
  }
  const auto* list = read->as<Value::List>();
  if (list->size() == 1 && list->front().as<Value::List>())
    list = list->front().as<Value::List>();
  require(!list->empty(), option, " must be one or more, separated by commas");
  return *list;
}

std::set<int64_t> lengths_of(const std::string& option, const std::string& text) {
  std::set<int64_t> found;
  for (const Value& value : list_of(option, text)) {
    const auto* length = value.as<int64_t>();
    require(length && *length >= 1 && *length <= kLongest, option,
            " must be whole numbers between 1 and ", kLongest, ", got ", value.text());
    found.insert(*length);
  }
  return found;
}

}  // namespace longspan::cli
