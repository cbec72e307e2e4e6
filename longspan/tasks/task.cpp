#include "longspan/tasks/task.h"

#include <algorithm>
#include <map>

#include "longspan/base/error.h"
#include "longspan/base/words.h"
#include "longspan/tasks/kinds.h"

namespace longspan {
namespace {

const TaskKind* const kKinds[] = {&kListOps,    &kImdb,     &kRetrieval, &kCifar10,
                                  &kPathfinder, &kClassify, &kText};

const TaskKind& find_kind(const std::string& name) {
  std::vector<std::string> names;
  for (const TaskKind* kind : kKinds) {
    if (kind->name == name) return *kind;
    names.emplace_back(kind->name);
  }
  throw UsageError("task.name: no task called '" + name + "'" + hint(name, names));
}

size_t commonest(const std::map<int64_t, int64_t>& counts) {
  return static_cast<size_t>(
      std::ranges::max_element(counts, {}, [](const auto& entry) {
        return entry.second;
      })->first);
}

}  // namespace

Fields fields(TaskOptions& o) {
  return {
      {"name", &o.name, "the task",
       "listops|imdb|retrieval|cifar10|pathfinder|classify|text"},
      {"data", &o.data, "the folder of its files; also --data"},
      {"longest",
       &o.longest,
       "sequences are cut to so many tokens, text into windows of so many; 0: the "
       "longest of the data, windows of 1024",
       {},
       0},
      {"examples",
       &o.examples,
       "listops, imdb, retrieval, cifar10, pathfinder: so many are drawn to train on; "
       "0: "
       "all",
       {},
       0},
      {"judged",
       &o.judged,
       "the same: so many are drawn to choose by, and as many to judge by; 0: all",
       {},
       0},
      {"size", &o.size, "pathfinder: pixels a side, 32, 64, 128 or 256", {}, 32, 256},
      {"difficulty", &o.difficulty, "pathfinder: length of the curves",
       "easy|intermediate|hard"},
      {"train", &o.train,
       "the file to train on; classify: .tsv, .csv or .jsonl; text: any text, a folder "
       "of texts, or tokens"},
      {"valid", &o.valid, "the file to choose by; empty: a share of train"},
      {"test", &o.test, "the file to judge by; empty: a share of train"},
      {"valid_share",
       &o.valid_share,
       "that share; imdb, 0: chosen by the test set, as published",
       {},
       0,
       0.9},
      {"test_share", &o.test_share, "that share", {}, 0, 0.9},
      {"split_seed", &o.split_seed, "chooses shares and drawn examples", {}, 0},
      {"text", &o.text, "column of the text, by name, or number from 1"},
      {"label", &o.label, "classify: column of the label, by name, or number from 1"},
      {"tokens", &o.tokens, "what a text is cut into", "bytes|words|sentencepiece"},
      {"vocabulary",
       &o.vocabulary,
       "ids at most, of words and sentencepiece",
       {},
       3,
       1e7},
      {"least_count", &o.least_count, "rarer words are unknown", {}, 1},
      {"lower_case", &o.lower_case, "classify, imdb: words without capital letters"},
      {"sentencepiece_model", &o.sentencepiece_model,
       "a model file; empty: one is trained"},
      {"goal", &o.goal, "text: what a model says, the next token or hidden ones",
       "next|masked"},
      {"context",
       &o.context,
       "text: to choose and to judge, windows begin with so many tokens of the one "
       "before, of which nothing is asked",
       {},
       0},
      {"documents", &o.documents,
       "text: whether tokens see the documents before their own in a window",
       "joined|apart"},
      {"masked_share",
       &o.masked_share,
       "text, masked: share of tokens that are hidden",
       {},
       0.001,
       0.999},
      {"pairs", &o.pairs,
       "text, masked: a window is two texts, the second going on with the first"},
  };
}

std::string in_data(const TaskOptions& options, const std::string& file) {
  if (file.starts_with('/') || options.data.empty()) return file;
  return options.data + (options.data.ends_with('/') ? "" : "/") + file;
}

const Dataset& Task::split(std::string_view split_name) const {
  if (const auto found = texts.find(split_name); found != texts.end())
    return *found->second;
  if (split_name == "train") return train;
  if (split_name == "valid") return valid;
  require(split_name == "test", "no split '", split_name, "'",
          hint(split_name, {"train", "valid", "test"}));
  return test;
}

Batch random_batch(const Task& task, int64_t examples, int64_t length) {
  const int64_t texts = task.pairs ? 2 * examples : examples;
  Batch batch{.ids = torch::randint(1, task.ids, {texts, length}, torch::kLong),
              .tokens = torch::ones({texts, length}, torch::kBool),
              .real_tokens = texts * length};
  if (task.goal == Goal::label) {
    const auto classes = static_cast<int64_t>(task.labels.size());
    batch.labels = torch::randint(0, classes, {examples}, torch::kLong);
    batch.answers = examples;
  } else {
    batch.targets = torch::randint(1, task.ids, {examples, length}, torch::kLong);
    batch.answers = examples * length;
  }
  return batch;
}

Task open_task(const TaskOptions& options) {
  Task task = find_kind(options.name).open(options);
  if (task.longest == 0) {
    task.longest = 1;
    for (const char* split : {"train", "valid", "test"})
      task.longest = std::max(task.longest, task.split(split).longest());
  }
  task.facts.push_back("at most " + std::to_string(task.longest) + " tokens");
  if (task.goal == Goal::label)
    task.references.insert(task.references.begin(),
                           {"always the commonest label",
                            guess_accuracy(task.split("train"), task.split("test"))});
  return task;
}

Task outline_task(const TaskOptions& options) {
  return find_kind(options.name).outline(options);
}

Task restore_task(const TaskOptions& options, const std::string& saved_labels,
                  const std::string& saved_vocabulary) {
  return find_kind(options.name).restore(options, saved_labels, saved_vocabulary);
}

void read_test(Task& task, const TaskOptions& options, const std::string& path) {
  task.texts["test"] = read_examples(task, options, path);
}

std::shared_ptr<const Dataset> read_examples(const Task& task,
                                             const TaskOptions& options,
                                             const std::string& path) {
  return find_kind(options.name).read(task, options, path);
}

std::vector<std::vector<int32_t>> encode_all(const Task& task,
                                             const std::string& text) {
  if (!task.pairs) return {task.encode(text)};
  const size_t tab = text.find('\t');
  require(tab != text.npos && text.find('\t', tab + 1) == text.npos, task.name,
          " is about two texts: one tab must stand between them");
  return {task.encode(text.substr(0, tab)), task.encode(text.substr(tab + 1))};
}

double guess_accuracy(const Dataset& train, const Dataset& test) {
  std::map<int64_t, int64_t> counts;
  for (int64_t i = 0; i < train.size(); ++i) ++counts[train.label(i)];
  if (counts.empty() || test.size() == 0) return 0;
  const auto guess = static_cast<int64_t>(commonest(counts));
  int64_t right = 0;
  for (int64_t i = 0; i < test.size(); ++i) right += test.label(i) == guess ? 1 : 0;
  return static_cast<double>(right) / static_cast<double>(test.size());
}

double guess_accuracy(const Examples& train, const Examples& test, bool by_first) {
  const auto first = [&](const Examples& examples, int64_t i) {
    return by_first && examples.length(i) > 0 ? examples.ids(i)[0] : 0;
  };
  std::map<int64_t, int64_t> overall;
  std::map<int32_t, std::map<int64_t, int64_t>> counts;
  for (int64_t i = 0; i < train.size(); ++i) {
    ++overall[train.label(i)];
    ++counts[first(train, i)][train.label(i)];
  }
  if (overall.empty() || test.size() == 0) return 0;
  int64_t right = 0;
  for (int64_t i = 0; i < test.size(); ++i) {
    const auto same = counts.find(first(test, i));
    const size_t guess = commonest(same == counts.end() ? overall : same->second);
    right += test.label(i) == static_cast<int64_t>(guess) ? 1 : 0;
  }
  return static_cast<double>(right) / static_cast<double>(test.size());
}

}  // namespace longspan
