// ListOps in the files of the Long Range Arena; see data/listops.h.

#include <unistd.h>

#include "longspan/base/error.h"
#include "longspan/data/listops.h"
#include "longspan/tasks/kinds.h"

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

Examples read_file_of(const Task& task, const std::string& path) {
  Examples examples;
  for (const auto& [expression, label] : read_listops(path))
    examples.add(listops_ids(expression), label, task.longest);
  return examples;
}

std::shared_ptr<const Dataset> read(const Task& task, const TaskOptions&,
                                    const std::string& path) {
  return std::make_shared<Examples>(read_file_of(task, path));
}

Task outline(const TaskOptions& options) {
  constexpr int64_t kArena = 2000;  // the Long Range Arena's longest, rounded
  Task task = restore(options, {}, {});
  if (task.longest == 0) task.longest = kArena;
  return task;
}

Task open(const TaskOptions& options) {
  if (options.data.empty())
    throw UsageError(
        "listops needs the folder of its files: --data DIR (`longspan data "
        "listops --out DIR` makes them)");
  Task task = restore(options, {}, {});
  const std::string release = in_data(options, "listops-1000/");
  const std::string folder = access((release + "basic_train.tsv").c_str(), F_OK) == 0
                                 ? release
                                 : in_data(options, "");
  task.train = read_file_of(task, folder + "basic_train.tsv");
  task.valid = read_file_of(task, folder + "basic_val.tsv");
  task.test = read_file_of(task, folder + "basic_test.tsv");
  task.references = {{"the commonest label of the outermost operator",
                      guess_accuracy(task.train, task.test, /*by_first=*/true)}};
  task.facts.emplace_back("split as in the files basic_train, basic_val, basic_test");
  return task;
}

}  // namespace

const TaskKind kListOps{.name = "listops",
                        .open = open,
                        .outline = outline,
                        .restore = restore,
                        .read = read};

}  // namespace longspan
