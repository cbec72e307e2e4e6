#include "longspan/data/listops.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <unordered_set>

#include <ATen/Parallel.h>

#include "longspan/base/error.h"
#include "longspan/base/random.h"
#include "longspan/base/whole_file.h"
#include "longspan/data/packed_file.h"
#include "longspan/data/random_words.h"

namespace longspan {
namespace {

constexpr uint8_t kFirstOperator = static_cast<uint8_t>(ListOp::min);
constexpr uint8_t kClose = static_cast<uint8_t>(ListOp::close);
constexpr std::string_view kWords[] = {"[MIN",   "[MAX",  "[MED", "[SM",
                                       "[FIRST", "[LAST", "]"};

bool is_digit(uint8_t token) { return token < kFirstOperator; }

std::string_view word(uint8_t token) {
  static constexpr char kDigits[] = "0123456789";
  if (is_digit(token)) return {kDigits + token, 1};
  return kWords[token - kFirstOperator];
}

// Grows one expression; gives up where it becomes too long to be kept.
class Grower {
 public:
  Grower(Key key, const ListOpsOptions& options) : random_(key), options_(options) {}

  // True if the expression has a length that is kept.
  bool grow(Expression& expression) {
    expression.clear();
    return add(expression, 1) &&
           static_cast<int64_t>(expression.size()) > options_.min_length;
  }

 private:
  bool add(Expression& expression, int64_t depth) {
    const bool is_operator =
        depth < options_.max_depth && random_.next() < word_limit(0.25);
    if (!is_operator) {
      expression.push_back(static_cast<uint8_t>(random_.below(10)));
      return fits(expression);
    }
    const auto arguments =
        2 + random_.below(static_cast<uint32_t>(options_.max_args - 1));
    const size_t place = expression.size();
    expression.push_back(kFirstOperator);
    for (uint32_t i = 0; i < arguments; ++i)
      if (!add(expression, depth + 1)) return false;
    expression[place] = static_cast<uint8_t>(kFirstOperator + random_.below(4));
    expression.push_back(kClose);
    return fits(expression);
  }

  bool fits(const Expression& expression) const {
    return static_cast<int64_t>(expression.size()) < options_.max_length;
  }

  RandomWords random_;
  const ListOpsOptions& options_;
};

int apply(ListOp operation, std::vector<int>& values) {
  switch (operation) {
    case ListOp::min: return *std::ranges::min_element(values);
    case ListOp::max: return *std::ranges::max_element(values);
    case ListOp::median: {
      std::ranges::sort(values);
      const size_t half = values.size() / 2;
      return values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
    }
    case ListOp::sum: return std::accumulate(values.begin(), values.end(), 0) % 10;
    case ListOp::first: return values.front();
    case ListOp::last: return values.back();
    case ListOp::close: break;
  }
  fail("ListOps: a closing bracket is not an operator");
}

// The number of arguments of every operator, by its place.
std::vector<int64_t> argument_counts(std::span<const uint8_t> expression) {
  std::vector<int64_t> counts(expression.size());
  std::vector<size_t> open;
  for (size_t i = 0; i < expression.size(); ++i) {
    if (expression[i] == kClose) {
      open.pop_back();
      continue;
    }
    if (!open.empty()) ++counts[open.back()];
    if (!is_digit(expression[i])) open.push_back(i);
  }
  return counts;
}

uint8_t token_of(std::string_view text) {
  if (text.size() == 1 && text[0] >= '0' && text[0] <= '9')
    return static_cast<uint8_t>(text[0] - '0');
  const auto found = std::ranges::find(kWords, text);
  require(found != std::end(kWords), "ListOps: no token '", text, "'");
  return static_cast<uint8_t>(kFirstOperator + (found - std::begin(kWords)));
}

}  // namespace

std::vector<ListOpsExample> generate_listops(int64_t count, uint64_t seed,
                                             const ListOpsOptions& options) {
  require(count >= 0, "ListOps: the number of examples must be 0 or more, got ", count);
  require(options.max_args >= 2 && options.max_depth >= 1 && options.min_length >= 0 &&
              options.max_length - 2 >= options.min_length,
          "ListOps: max_args must be 2 or more, max_depth 1 or more and max_length ",
          "min_length + 2 or more, got ", options.max_args, ", ", options.max_depth,
          ", ", options.max_length, " and min_length ", options.min_length);

  // Candidates are numbered; blocks of them are grown at once and taken in order.
  constexpr int64_t kBlock = 1 << 14;
  constexpr int64_t kMostBlocksWithoutOne = 256;
  std::vector<ListOpsExample> examples;
  std::unordered_set<std::string> known;
  int64_t barren = 0;
  for (int64_t block = 0; static_cast<int64_t>(examples.size()) < count; ++block) {
    std::vector<Expression> grown(kBlock);
    at::parallel_for(0, kBlock, 64, [&](int64_t begin, int64_t end) {
      Expression expression;
      for (int64_t i = begin; i < end; ++i) {
        const Key key = mix(mix(Key{seed}, /*purpose=*/1),
                            static_cast<uint64_t>(block * kBlock + i));
        if (Grower(key, options).grow(expression)) grown[i] = expression;
      }
    });
    const size_t before = examples.size();
    for (auto& expression : grown) {
      if (expression.empty() || static_cast<int64_t>(examples.size()) == count)
        continue;
      if (!known.emplace(expression.begin(), expression.end()).second) continue;
      const int label = evaluate(expression);
      examples.push_back({std::move(expression), label});
    }
    barren = examples.size() == before ? barren + 1 : 0;
    require(barren < kMostBlocksWithoutOne, "ListOps: only ", examples.size(),
            " different expressions found between the lengths ", options.min_length,
            " and ", options.max_length, " at max_depth ", options.max_depth,
            " and max_args ", options.max_args, ", asked for ", count);
  }
  return examples;
}

int evaluate(std::span<const uint8_t> expression) {
  struct Open {
    uint8_t operation;
    std::vector<int> values;
  };
  std::vector<Open> open;
  for (size_t i = 0; i < expression.size(); ++i) {
    require(expression[i] <= kClose, "ListOps: no token ", int{expression[i]});
    int value = expression[i];
    if (!is_digit(expression[i]) && expression[i] != kClose) {
      open.push_back({expression[i], {}});
      continue;
    }
    if (expression[i] == kClose) {
      require(!open.empty(), "ListOps: a bracket closes that was not opened");
      require(!open.back().values.empty(), "ListOps: ", word(open.back().operation),
              " has no arguments");
      value = apply(static_cast<ListOp>(open.back().operation), open.back().values);
      open.pop_back();
    }
    if (!open.empty()) {
      open.back().values.push_back(value);
      continue;
    }
    require(i + 1 == expression.size(),
            "ListOps: the expression goes on after its end");
    return value;
  }
  fail("ListOps: ",
       expression.empty() ? "the expression is empty" : "a bracket is not closed");
}

std::string listops_text(std::span<const uint8_t> expression) {
  evaluate(expression);  // refuses what is not an expression
  const auto counts = argument_counts(expression);
  std::string text;
  int64_t depth = 0;
  for (size_t i = 0; i < expression.size(); ++i) {
    const uint8_t token = expression[i];
    if (!text.empty()) text += ' ';
    if (!is_digit(token) && token != kClose) {
      for (int64_t open = 0; open <= counts[i]; ++open) text += "( ";
      text += word(token);
      ++depth;
      continue;
    }
    text += word(token);
    if (token == kClose) {
      text += " )";
      --depth;
    }
    if (depth > 0) text += " )";
  }
  return text;
}

Expression parse_listops(std::string_view text) {
  Expression expression;
  int64_t open = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    const std::string_view part = text.substr(at, end - at);
    at = end + 1;
    if (part.empty()) continue;
    if (part == "(" || part == ")") {
      open += part == "(" ? 1 : -1;
      require(open >= 0, "ListOps: a parenthesis closes that was not opened");
      continue;
    }
    expression.push_back(token_of(part));
  }
  require(open == 0, "ListOps: a parenthesis is not closed");
  evaluate(expression);  // refuses what is not an expression
  return expression;
}

std::vector<int32_t> listops_ids(std::span<const uint8_t> expression) {
  std::vector<int32_t> ids;
  ids.reserve(expression.size());
  for (const uint8_t token : expression) {
    if (token == kClose)
      ids.push_back(15);
    else
      ids.push_back(token <= static_cast<uint8_t>(ListOp::sum) ? token + 1 : 16);
  }
  return ids;
}

void write_listops(const std::string& path, std::span<const ListOpsExample> examples) {
  WholeFile file(path);
  file.write("Source\tTarget\r\n");
  for (const auto& example : examples)
    file.write(listops_text(example.expression) + '\t' + std::to_string(example.label) +
               "\r\n");
  file.commit();
}

std::vector<ListOpsExample> read_listops(const std::string& path) {
  const std::string found = found_file(path);
  require(access(found.c_str(), F_OK) == 0, "cannot read ", path, ": ",
          std::strerror(errno), "; `longspan data listops --out DIR` makes such files");
  std::vector<ListOpsExample> examples;
  bool empty = true, label_first = false;
  for_each_line(path, [&](std::string_view line, int64_t number) {
    const std::string where = found + ", line " + std::to_string(number) + ": ";
    const auto is_digit = [&](size_t at) { return line[at] >= '0' && line[at] <= '9'; };
    empty = false;
    if (number == 1) {
      label_first = line.size() > 2 && is_digit(0) && line[1] == '\t';
      require(label_first || line == "Source\tTarget", where,
              "must be 'Source', tab, 'Target', or a digit, tab, an expression, got '",
              line.substr(0, 60), "'");
      if (!label_first) return;
    }
    const size_t tab = line.find('\t');
    const bool fits =
        tab != line.npos && (label_first ? tab == 1 && is_digit(0)
                                         : tab + 2 == line.size() && is_digit(tab + 1));
    require(fits, where, "must be ",
            label_first ? "a digit, tab, an expression" : "an expression, tab, a digit",
            ", got '", line.substr(line.size() - std::min<size_t>(line.size(), 60)),
            "'");
    try {
      const auto text = label_first ? line.substr(2) : line.substr(0, tab);
      ListOpsExample example{parse_listops(text),
                             line[label_first ? 0 : tab + 1] - '0'};
      const int value = evaluate(example.expression);
      require(value == example.label, "the label is ", example.label,
              " but the expression gives ", value);
      examples.push_back(std::move(example));
    } catch (const Error& error) {
      fail(where, error.what());
    }
  });
  require(!empty, found, " is empty; it must begin with 'Source', tab, 'Target'");
  require(!examples.empty(), found, " has no examples after its first line");
  return examples;
}

}  // namespace longspan
