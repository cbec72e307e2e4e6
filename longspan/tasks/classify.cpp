// Texts of a user's own files, in classes.

#include <algorithm>
#include <set>

#include <nlohmann/json.hpp>

#include "longspan/base/error.h"
#include "longspan/base/words.h"
#include "longspan/data/order.h"
#include "longspan/data/table.h"
#include "longspan/tasks/kinds.h"

namespace longspan {
namespace {

using Rows = std::vector<LabelledText>;

TableOptions columns(const TaskOptions& options) {
  return {.text = options.text, .label = options.label};
}

void prepare(Task& task, std::shared_ptr<const Tokenizer> tokenizer) {
  task.ids = tokenizer->ids();
  task.saved_vocabulary = tokenizer->saved();
  task.facts.push_back(tokenizer->describe());
  task.encode = [tokenizer](const std::string& text) {
    return tokenizer->encode(text);
  };
}

int64_t label_number(const Task& task, const std::string& label,
                     const std::string& path) {
  const auto found = std::ranges::lower_bound(task.labels, label);
  require(found != task.labels.end() && *found == label, path, ": no label '", label,
          "' was trained on", hint(label, task.labels));
  return found - task.labels.begin();
}

Examples encoded(const Task& task, const Rows& rows, const std::string& path) {
  Examples examples;
  for (const auto& [text, label] : rows)
    examples.add(task.encode(text), label_number(task, label, path), task.longest);
  return examples;
}

// Takes a share of `rows`, in a drawn order, out of them.
Rows take_share(Rows& rows, double share, Key key) {
  const auto count = static_cast<int64_t>(rows.size());
  const auto wanted = static_cast<int64_t>(share * static_cast<double>(count));
  const auto order = permutation(count, key);
  Rows taken, left;
  std::vector<bool> chosen(rows.size());
  for (int64_t i = 0; i < wanted; ++i) chosen[static_cast<size_t>(order[i])] = true;
  for (size_t i = 0; i < rows.size(); ++i)
    (chosen[i] ? taken : left).push_back(std::move(rows[i]));
  rows = std::move(left);
  return taken;
}

std::shared_ptr<const Dataset> read(const Task& task, const TaskOptions& options,
                                    const std::string& path) {
  return std::make_shared<Examples>(
      encoded(task, read_table(path, columns(options)), path));
}

Task open(const TaskOptions& options) {
  argument([&] {
    const double taken = (options.valid.empty() ? options.valid_share : 0) +
                         (options.test.empty() ? options.test_share : 0);
    require(taken < 1, "task.valid_share and task.test_share must leave something to ",
            "train on, got ", options.valid_share, " and ", options.test_share);
  });
  Task task{
      .name = "classify", .longest = options.longest, .text_column = options.text};
  const std::string path = in_data(options, options.train);
  Rows rows = read_table(path, columns(options));
  std::set<std::string> labels;
  for (const auto& row : rows) labels.insert(row.label);
  task.labels.assign(labels.begin(), labels.end());
  require(task.labels.size() >= 2, path, ": needs two labels or more, got only '",
          task.labels.front(), "'");
  Rows valid, test;
  const Key key{static_cast<uint64_t>(options.split_seed)};
  const auto part = [&](const std::string& file, double share, uint64_t number,
                        const char* name) {
    const auto all = static_cast<double>(rows.size());
    Rows taken = file.empty() ? take_share(rows, share, mix(key, number))
                              : read_table(in_data(options, file), columns(options));
    task.facts.push_back(std::string(name) + ": " +
                         (file.empty() ? std::to_string(taken.size()) + " of " +
                                             std::to_string(static_cast<int64_t>(all)) +
                                             " drawn from the training file, seed " +
                                             std::to_string(options.split_seed)
                                       : file));
    return taken;
  };
  test = part(options.test, options.test_share, 1, "test");
  // The share is of the whole file, of which the test has gone.
  const double left = options.test.empty() ? 1 - options.test_share : 1;
  valid = part(options.valid, options.valid_share / left, 2, "valid");
  require(!rows.empty() && !valid.empty() && !test.empty(), path,
          ": too few rows to split: ", rows.size(), " to train on, ", valid.size(),
          " to choose by and ", test.size(), " to judge by");

  task.saved_labels = nlohmann::json(task.labels).dump();

  std::vector<std::string_view> texts;
  for (const auto& row : rows) texts.emplace_back(row.text);
  prepare(task, build_tokenizer(
                    {.kind = options.tokens,
                     .vocabulary = options.vocabulary,
                     .least_count = options.least_count,
                     .lower_case = options.lower_case,
                     .model = options.sentencepiece_model.empty()
                                  ? std::string()
                                  : in_data(options, options.sentencepiece_model)},
                    texts));
  task.train = encoded(task, rows, path);
  task.valid = encoded(task, valid,
                       options.valid.empty() ? path : in_data(options, options.valid));
  task.test =
      encoded(task, test, options.test.empty() ? path : in_data(options, options.test));
  return task;
}

Task outline(const TaskOptions& options) {
  argument([&] {
    require(options.longest > 0,
            "classify without data needs task.longest, in tokens, to be given");
  });
  constexpr int64_t kBytes = 257;
  return {.name = "classify",
          .ids = options.tokens == "bytes" ? kBytes : options.vocabulary,
          .longest = options.longest,
          .labels = {"first", "second"}};
}

Task restore(const TaskOptions& options, const std::string& labels,
             const std::string& vocabulary) {
  Task task{
      .name = "classify", .longest = options.longest, .text_column = options.text};
  const auto list = nlohmann::json::parse(labels, nullptr, /*allow_exceptions=*/false);
  require(list.is_array() && list.size() >= 2 &&
              std::ranges::all_of(list, [](const auto& x) { return x.is_string(); }),
          "the saved labels are not a JSON list of two words or more");
  for (const auto& label : list) task.labels.push_back(label.get<std::string>());
  task.saved_labels = labels;
  prepare(task, restore_tokenizer(options.tokens, vocabulary));
  return task;
}

}  // namespace

const TaskKind kClassify{.name = "classify",
                         .open = open,
                         .outline = outline,
                         .restore = restore,
                         .read = read};

}  // namespace longspan
