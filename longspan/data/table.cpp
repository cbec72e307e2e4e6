#include "longspan/data/table.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include <nlohmann/json.hpp>

#include "longspan/base/error.h"
#include "longspan/base/words.h"
#include "longspan/data/byte_source.h"

namespace longspan {
namespace {

using Json = nlohmann::json;

bool continues_character(char byte) { return (byte & 0xc0) == 0x80; }

// The bytes of the UTF-8 character `text` begins with; 0 where it begins with none.
size_t character_size(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  if (byte(0) < 0x80) return 1;
  const size_t size = byte(0) >= 0xc2 && byte(0) <= 0xdf   ? 2
                      : byte(0) >= 0xe0 && byte(0) <= 0xef ? 3
                      : byte(0) >= 0xf0 && byte(0) <= 0xf4 ? 4
                                                           : 0;
  if (size == 0 || text.size() < size) return 0;
  for (size_t i = 1; i < size; ++i)
    if (!continues_character(text[i])) return 0;
  const bool is_too_long =
      (byte(0) == 0xe0 && byte(1) < 0xa0) || (byte(0) == 0xf0 && byte(1) < 0x90);
  const bool is_surrogate = byte(0) == 0xed && byte(1) > 0x9f;
  const bool is_above_unicode = byte(0) == 0xf4 && byte(1) > 0x8f;
  return is_too_long || is_surrogate || is_above_unicode ? 0 : size;
}

// How many bytes of `text`, from its beginning, are UTF-8.
size_t utf8_size(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const size_t size = character_size(text.substr(at));
    if (size == 0) break;
    at += size;
  }
  return at;
}

// What a message shows of a text that may be long.
std::string beginning(std::string_view text) {
  constexpr size_t kMost = 60;
  if (text.size() <= kMost) return std::string(text);
  size_t size = kMost;
  while (size > 0 && continues_character(text[size])) --size;
  return std::string(text.substr(0, size)) + "..";
}

std::vector<std::string> beginnings(std::vector<std::string> names) {
  for (auto& name : names) name = beginning(name);
  return names;
}

// Moves through the rows of a file, and knows which line it is at.
class Scanner {
 public:
  explicit Scanner(const std::string& path)
      : path_(path), contents_(read_unpacked(path)), rest_(contents_) {
    const size_t good = utf8_size(rest_);
    if (good < rest_.size()) {
      const auto lines = std::count(rest_.begin(), rest_.begin() + good, '\n');
      const size_t line_begin = rest_.substr(0, good).rfind('\n') + 1;
      constexpr char kDigits[] = "0123456789abcdef";
      const auto byte = static_cast<uint8_t>(rest_[good]);
      refuse(lines + 1, "must be UTF-8, but byte ", good - line_begin + 1, ", 0x",
             kDigits[byte >> 4], kDigits[byte & 15], ", is not");
    }
    take("\xef\xbb\xbf");
  }
  Scanner(const Scanner&) = delete;
  Scanner& operator=(const Scanner&) = delete;

  int64_t line() const { return line_; }

  // Passes empty lines; true if a row follows.
  bool at_row() {
    while (take_line_end()) {
    }
    return !rest_.empty();
  }

  // The line as it is.
  std::string_view take_line() {
    const auto line = take_until("\n");
    take_line_end();
    return line;
  }

  // The row, which may be of several lines if fields may be in quotes.
  std::vector<std::string> take_fields(char separator, bool quotes) {
    const char ends[] = {separator, '\n'};
    const std::string_view any_end(ends, 2);
    std::vector<std::string> fields;
    do {
      if (quotes && rest_.starts_with('"')) {
        fields.push_back(take_quoted());
        const auto after = take_until(any_end);
        if (!after.empty())
          refuse(line_, "after a closing quote must come '", separator,
                 "' or the end of the line, got '", beginning(after), "'");
        continue;
      }
      const auto field = take_until(any_end);
      if (quotes && field.find('"') != field.npos)
        refuse(line_, "a field with a quote must be in quotes, with that quote doubled",
               ", got '", beginning(field), "'");
      fields.emplace_back(field);
    } while (take({ends, 1}));
    take_line_end();
    return fields;
  }

  template <class... Parts>
  [[noreturn]] void refuse(int64_t line, const Parts&... parts) const {
    fail(path_, ", line ", line, ": ", parts...);
  }

 private:
  bool take(std::string_view text) {
    if (!rest_.starts_with(text)) return false;
    rest_.remove_prefix(text.size());
    return true;
  }

  bool take_line_end() {
    if (!take("\n") && !take("\r\n")) return false;
    ++line_;
    return true;
  }

  // Up to one of `ends`, without the first half of a CRLF.
  std::string_view take_until(std::string_view ends) {
    const size_t size = std::min(rest_.find_first_of(ends), rest_.size());
    auto taken = rest_.substr(0, size);
    const bool at_line_end = size == rest_.size() || rest_[size] == '\n';
    rest_.remove_prefix(size);
    if (at_line_end && taken.ends_with('\r')) taken.remove_suffix(1);
    return taken;
  }

  std::string take_quoted() {
    const int64_t opened = line_;
    std::string field;
    for (take("\""); true; field += '"') {
      const size_t size = rest_.find('"');
      if (size == rest_.npos) refuse(opened, "a quote is not closed");
      field += rest_.substr(0, size);
      line_ += std::count(rest_.begin(), rest_.begin() + size, '\n');
      rest_.remove_prefix(size + 1);
      if (!take("\"")) return field;
    }
  }

  std::string path_, contents_;
  std::string_view rest_;
  int64_t line_ = 1;
};

bool is_number(std::string_view name) {
  return !name.empty() && std::ranges::all_of(name, [](char letter) {
    return letter >= '0' && letter <= '9';
  });
}

// The place of the column `name` in the first row, which is the header unless `name` is
// a number.
size_t place_of(std::string_view name, const std::vector<std::string>& row,
                const Scanner& scanner, int64_t line) {
  if (is_number(name)) {
    size_t number = 0;
    const auto parsed = std::from_chars(name.data(), name.data() + name.size(), number);
    if (parsed.ec != std::errc{} || number < 1 || number > row.size())
      scanner.refuse(line, "no column ", name, "; there are ", row.size(),
                     ", counted from 1");
    return number - 1;
  }
  const auto found = std::ranges::find(row, name);
  if (found == row.end())
    scanner.refuse(line, "no column '", name, "'", hint(name, beginnings(row)));
  if (std::find(found + 1, row.end(), name) != row.end())
    scanner.refuse(line, "more than one column '", name,
                   "'; there are: ", joined(beginnings(row)));
  return static_cast<size_t>(found - row.begin());
}

std::vector<LabelledText> read_columns(Scanner& scanner, const TableOptions& options,
                                       char separator, bool quotes) {
  const bool has_header = !is_number(options.text);
  argument([&] {
    require(!options.labels || has_header == !is_number(options.label),
            "the columns must be two names or two numbers, got text '", options.text,
            "' and label '", options.label, "'");
  });
  std::vector<LabelledText> rows;
  size_t columns = 0, text = 0, label = 0;
  int64_t first_line = 0;
  while (scanner.at_row()) {
    const int64_t line = scanner.line();
    auto fields = scanner.take_fields(separator, quotes);
    if (columns == 0) {
      columns = fields.size();
      first_line = line;
      text = place_of(options.text, fields, scanner, line);
      if (options.labels) label = place_of(options.label, fields, scanner, line);
      if (has_header) continue;
    }
    if (fields.size() != columns)
      scanner.refuse(line, "must have ", columns, " columns like line ", first_line,
                     ", got ", fields.size());
    auto& row = rows.emplace_back();
    row.text = std::move(fields[text]);
    if (!options.labels) continue;
    row.label = std::move(fields[label]);
    if (row.label.empty()) scanner.refuse(line, "the label is empty");
  }
  return rows;
}

// A line of JSON with the names of its keys, as often as each is there.
struct JsonLine {
  Json object;
  std::vector<std::string> keys;
};

JsonLine parse_json(std::string_view text, const Scanner& scanner, int64_t line) {
  JsonLine parsed;
  const auto note_key = [&](int depth, Json::parse_event_t event, const Json& value) {
    if (event == Json::parse_event_t::key && depth == 1)
      parsed.keys.push_back(value.get<std::string>());
    return true;
  };
  try {
    parsed.object = Json::parse(text, note_key);
  } catch (const Json::parse_error& error) {
    scanner.refuse(line, "must be one JSON object, but goes wrong at byte ",
                   error.byte);
  } catch (const Json::out_of_range&) {
    scanner.refuse(line, "has a number that is too large");
  }
  if (!parsed.object.is_object())
    scanner.refuse(line, "must be one JSON object, got '", beginning(text), "'");
  return parsed;
}

const Json& value_of(std::string_view key, const JsonLine& parsed,
                     const Scanner& scanner, int64_t line) {
  const auto times = std::ranges::count(parsed.keys, key);
  if (times == 0)
    scanner.refuse(line, "no key '", key, "'", hint(key, beginnings(parsed.keys)));
  if (times > 1)
    scanner.refuse(line, "more than one key '", key,
                   "'; there are: ", joined(beginnings(parsed.keys)));
  return parsed.object.find(key).value();
}

// A value as a message shows it.
std::string shown(const Json& value) {
  return value.is_structured() ? std::string("an ") + value.type_name()
                               : beginning(value.dump());
}

std::vector<LabelledText> read_json_lines(Scanner& scanner,
                                          const TableOptions& options) {
  std::vector<LabelledText> rows;
  while (scanner.at_row()) {
    const int64_t line = scanner.line();
    const auto parsed = parse_json(scanner.take_line(), scanner, line);
    const Json& text = value_of(options.text, parsed, scanner, line);
    if (!text.is_string())
      scanner.refuse(line, "'", options.text, "' must be a string, got ", shown(text));
    auto& row = rows.emplace_back();
    row.text = text.get<std::string>();
    if (!options.labels) continue;
    const Json& label = value_of(options.label, parsed, scanner, line);
    if (!label.is_string() && !label.is_number_integer() && !label.is_boolean())
      scanner.refuse(line, "'", options.label,
                     "' must be a string, whole number or boolean, got ", shown(label));
    row.label = label.is_string() ? label.get<std::string>() : label.dump();
    if (row.label.empty()) scanner.refuse(line, "the label is empty");
  }
  return rows;
}

}  // namespace

std::vector<LabelledText> read_table(const std::string& path,
                                     const TableOptions& options) {
  const std::string name = unpacked_name(path);
  const bool is_tsv = name.ends_with(".tsv");
  const bool is_json = name.ends_with(".jsonl") || name.ends_with(".json");
  argument([&] {
    require(is_tsv || is_json || name.ends_with(".csv"), "cannot tell the layout of ",
            path, ": its name must end in .tsv, .csv or .jsonl");
    require(!options.labels || options.text != options.label,
            "text and label must be different columns, got '", options.text,
            "' for both");
  });
  Scanner scanner(path);
  auto rows = is_json ? read_json_lines(scanner, options)
                      : read_columns(scanner, options, is_tsv ? '\t' : ',',
                                     /*quotes=*/!is_tsv);
  require(!rows.empty(), path, " has no rows");
  return rows;
}

}  // namespace longspan
