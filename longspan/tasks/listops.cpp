// ListOps in the files of the Long Range Arena, or in those of the original data set;
// see data/listops.h.

#include <unistd.h>

#include "longspan/base/error.h"
#include "longspan/data/listops.h"
#include "longspan/data/packed_file.h"
#include "longspan/tasks/kinds.h"
#include "longspan/tasks/parts.h"

namespace longspan {
namespace {

Task restore(const TaskOptions& options, const std::string&, const std::string&) {
  Task task{.name = "listops",
            .ids = kListOpsIds,
            .longest = options.longest,
            .text_column = "Source"};
  for (int digit = 0; digit < 10; ++digit) task.labels.push_back(std::to_string(digit));
  task.encode = [](const std::string& text) {
    return listops_ids(parse_listops(text));
  };
  task.decode = [](std::span<const int32_t> ids) {
    static const std::vector<std::string> words = {
        "",  "0", "1",    "2",    "3",    "4",   "5", "6", "7",
        "8", "9", "[MIN", "[MAX", "[MED", "[SM", "]", "?"};
    std::string text;
    for (const int32_t id : ids) {
      if (!text.empty()) text += ' ';
      text += words.at(static_cast<size_t>(id));
    }
    return text;
  };
  task.facts = {"expressions as 17 ids"};
  return task;
}

Examples encoded(const Task& task, const std::vector<ListOpsExample>& all,
                 const Numbers& numbers) {
  Examples examples;
  for (const int64_t number : numbers) {
    const auto& [expression, label] = all[static_cast<size_t>(number)];
    examples.add(listops_ids(expression), label, task.longest);
  }
  return examples;
}

std::shared_ptr<const Dataset> read(const Task& task, const TaskOptions&,
                                    const std::string& path) {
  const auto all = read_listops(path);
  return std::make_shared<Examples>(encoded(task, all, all_numbers(std::ssize(all))));
}

Task outline(const TaskOptions& options) {
  constexpr int64_t kArena = 2000;  // the Long Range Arena's longest, rounded
  Task task = restore(options, {}, {});
  if (task.longest == 0) task.longest = kArena;
  return task;
}

// The original data set's test set with the operators of the Arena.
constexpr char kOriginal[] = "test_d20s.tsv";

bool is_there(const TaskOptions& options, const char* file) {
  return access(found_file(in_data(options, file)).c_str(), F_OK) == 0;
}

// All is drawn from that, or, where the training set is beside it, but the test.
void open_original(Task& task, const TaskOptions& options) {
  constexpr char kTrain[] = "train_d20s.tsv";
  const Key key{static_cast<uint64_t>(options.split_seed)};
  const auto judged = read_listops(in_data(options, kOriginal));
  const bool whole = is_there(options, kTrain);
  const auto all = whole ? read_listops(in_data(options, kTrain)) : judged;
  const auto count = std::ssize(all);
  Numbers learned = all_numbers(count);
  Numbers test =
      whole ? all_numbers(std::ssize(judged))
            : draw_out(learned, share_of(options.test_share, count), mix(key, 1));
  Numbers valid = draw_out(learned, share_of(options.valid_share, count), mix(key, 2));
  const std::string drawn = drawn_from(whole ? kTrain : kOriginal, options);
  require(!learned.empty() && !valid.empty() && !test.empty(),
          "listops: too few expressions to split, ", drawn);
  const auto part = [&](const char* split, Numbers numbers, const auto& of,
                        const std::string& from) {
    return encoded(task, of, limited(std::move(numbers), options, split, from, task));
  };
  task.train = part("train", std::move(learned), all, drawn);
  task.valid = part("valid", std::move(valid), all, drawn);
  task.test = part("test", std::move(test), judged, whole ? kOriginal : drawn);
  task.facts.emplace_back(
      "other expressions than the Long Range Arena's: not to be compared with "
      "published numbers");
}

void open_arena(Task& task, const TaskOptions& options) {
  const std::string folder = folder_with(
      options,
      {"", "listops-1000", "lra_release/listops-1000",
       "lra_release/lra_release/listops-1000"},
      "basic_train.tsv", "`longspan data listops --out DIR` makes such files");
  const auto part = [&](const char* split, const std::string& file) {
    const auto all = read_listops(folder + file);
    return encoded(task, all,
                   limited(all_numbers(std::ssize(all)), options, split, file, task));
  };
  task.train = part("train", "basic_train.tsv");
  task.valid = part("valid", "basic_val.tsv");
  task.test = part("test", "basic_test.tsv");
}

Task open(const TaskOptions& options) {
  if (options.data.empty())
    throw UsageError(
        "listops needs the folder of its files: --data DIR (`longspan data "
        "listops --out DIR` makes them)");
  Task task = restore(options, {}, {});
  if (is_there(options, kOriginal) && !is_there(options, "basic_train.tsv"))
    open_original(task, options);
  else
    open_arena(task, options);
  task.references = {{"the commonest label of the outermost operator",
                      guess_accuracy(task.train, task.test, /*by_first=*/true)}};
  return task;
}

}  // namespace

const TaskKind kListOps{.name = "listops",
                        .open = open,
                        .outline = outline,
                        .restore = restore,
                        .read = read};

}  // namespace longspan
