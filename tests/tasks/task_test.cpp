#include "longspan/tasks/task.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "longspan/data/listops.h"
#include "tests/support/folder.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

const Examples& labelled(const Task& task, std::string_view split) {
  return dynamic_cast<const Examples&>(task.split(split));
}

using Texts = std::multiset<std::string>;

// The text of an example in bytes.
std::string text_of(const Examples& examples, int64_t number) {
  std::string text;
  for (const int32_t id : examples.ids(number)) text += static_cast<char>(id - 1);
  return text;
}

Texts texts_of(const Examples& examples) {
  Texts texts;
  for (int64_t i = 0; i < examples.size(); ++i) texts.insert(text_of(examples, i));
  return texts;
}

Examples examples_of(
    const std::vector<std::pair<std::vector<int32_t>, int64_t>>& list) {
  Examples examples;
  for (const auto& [ids, label] : list) examples.add(ids, label);
  return examples;
}

class ATask : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  // "row 0" to "row 59", one of three labels each.
  std::string rows(int count, int first = 0) const {
    std::string text = "text\tlabel\n";
    const char* const labels[] = {"red", "blue", "green"};
    for (int i = first; i < first + count; ++i)
      text += "row " + std::to_string(i) + "\t" + labels[i % 3] + "\n";
    return text;
  }
  TaskOptions classify() const { return {.name = "classify", .data = folder_ / ""}; }

  std::vector<ListOpsExample> write_examples(const std::string& name, int count,
                                             uint64_t seed) const {
    auto examples = generate_listops(count, seed, {.min_length = 5, .max_length = 40});
    write_listops(folder_ / name, examples);
    return examples;
  }

  const Folder folder_;
};

using Classify = ATask;
using ListOpsTask = ATask;

TEST_F(ListOpsTask, IsOfItsThreeFiles) {
  const std::vector<ListOpsExample> all[] = {write_examples("basic_train.tsv", 30, 1),
                                             write_examples("basic_val.tsv", 7, 2),
                                             write_examples("basic_test.tsv", 9, 3)};
  const Task task = open_task({.name = "listops", .data = folder_ / ""});
  const char* const names[] = {"train", "valid", "test"};
  int64_t longest = 0;
  for (int split = 0; split < 3; ++split) {
    const Examples& examples = labelled(task, names[split]);
    ASSERT_EQ(examples.size(), std::ssize(all[split]));
    for (int64_t i = 0; i < examples.size(); ++i) {
      const auto ids = examples.ids(i);
      EXPECT_EQ(std::vector<int32_t>(ids.begin(), ids.end()),
                listops_ids(all[split][i].expression));
      EXPECT_EQ(examples.label(i), all[split][i].label);
    }
    longest = std::max(longest, examples.longest());
  }
  EXPECT_EQ(task.name, "listops");
  EXPECT_EQ(task.ids, 17);
  EXPECT_EQ(task.longest, longest);
  EXPECT_EQ(task.labels.size(), 10u);
  EXPECT_EQ(task.labels[9], "9");
  EXPECT_EQ(task.facts, (std::vector<std::string>{
                            "expressions as 17 ids", "train: 30, basic_train.tsv",
                            "valid: 7, basic_val.tsv", "test: 9, basic_test.tsv",
                            "at most " + std::to_string(longest) + " tokens"}));
  ASSERT_EQ(task.references.size(), 2u);
  EXPECT_EQ(task.references[0].name, "always the commonest label");
  EXPECT_EQ(task.references[0].accuracy, guess_accuracy(task.train, task.test, false));
  EXPECT_EQ(task.references[1].name, "the commonest label of the outermost operator");
  EXPECT_EQ(task.references[1].accuracy, guess_accuracy(task.train, task.test, true));
}

TEST_F(ListOpsTask, IsInTheFoldersOfTheArenaAndDrawnInPart) {
  for (const char* const place : {"listops-1000", "lra_release/listops-1000",
                                  "lra_release/lra_release/listops-1000"}) {
    const std::string base = place;
    const Folder root;
    std::filesystem::create_directories(root / base);
    for (const char* const name :
         {"basic_train.tsv", "basic_val.tsv", "basic_test.tsv"})
      write_listops(root / (base + "/" + name),
                    generate_listops(9, 4, {.min_length = 5, .max_length = 40}));
    const Task task =
        open_task({.name = "listops", .data = root / "", .examples = 3, .judged = 2});
    EXPECT_EQ(task.train.size(), 3);
    EXPECT_EQ(task.valid.size(), 2);
    EXPECT_EQ(task.test.size(), 2);
    EXPECT_EQ(task.facts[1], "train: 3 drawn (seed 1) of 9, basic_train.tsv");
  }
}

TEST_F(ListOpsTask, IsDrawnFromTheOriginalTestSet) {
  std::string lines;
  for (int i = 0; i < 40; ++i)
    lines += std::to_string(i % 10) + "\t[MAX 0 " + std::to_string(i % 10) + " ]\n";
  write("test_d20s.tsv", lines);
  TaskOptions options{.name = "listops", .data = folder_ / ""};
  const Task task = open_task(options);
  EXPECT_EQ(task.train.size(), 32);
  EXPECT_EQ(task.valid.size(), 4);
  EXPECT_EQ(task.test.size(), 4);
  EXPECT_EQ(task.facts[1], "train: 32, drawn from test_d20s.tsv, seed 1");
  EXPECT_EQ(open_task(options).train.fingerprint(), task.train.fingerprint());
  write("train_d20s.tsv", lines);
  const Task whole = open_task(options);
  EXPECT_EQ(whole.train.size(), 36);
  EXPECT_EQ(whole.test.size(), 40);
}

TEST_F(ListOpsTask, IsCutAndRestored) {
  for (const char* const name : {"basic_train.tsv", "basic_val.tsv", "basic_test.tsv"})
    write_examples(name, 10, 4);
  const TaskOptions options{.name = "listops", .data = folder_ / "", .longest = 4};
  const Task task = open_task(options);
  EXPECT_EQ(task.longest, 4);
  EXPECT_EQ(task.train.longest(), 4);
  const Task again = restore_task(options, task.saved_labels, task.saved_vocabulary);
  EXPECT_EQ(again.labels, task.labels);
  EXPECT_EQ(again.ids, task.ids);
  EXPECT_EQ(again.longest, 4);
  const std::string text = "( ( ( [MAX 2 ) 9 ) ] )";
  EXPECT_EQ(again.encode(text), (std::vector<int32_t>{12, 3, 10, 15}));
  EXPECT_EQ(task.encode(text), again.encode(text));
  EXPECT_EQ(refusal([&] { again.encode("[MAX 2"); }),
            "ListOps: a bracket is not closed");
  EXPECT_EQ(read_examples(again, options, folder_ / "basic_val.tsv")->fingerprint(),
            task.valid.fingerprint());
}

TEST_F(ListOpsTask, NeedsItsFiles) {
  EXPECT_THROW(open_task({.name = "listops"}), UsageError);
  EXPECT_EQ(refusal([] { open_task({.name = "listops"}); }),
            "listops needs the folder of its files: --data DIR (`longspan data listops "
            "--out DIR` makes them)");
  const auto message =
      refusal([&] { open_task({.name = "listops", .data = folder_ / "none"}); });
  EXPECT_TRUE(message.starts_with("cannot read " + (folder_ / "none/basic_train.tsv")))
      << message;
}

TEST_F(Classify, SplitsItsFileByShares) {
  struct Case {
    double valid, test;
    int64_t train_rows, valid_rows, test_rows;
  };
  constexpr Case kCases[] = {{0.1, 0.1, 48, 6, 6},
                             {0.5, 0.25, 15, 30, 15},
                             {0.2, 0.7, 6, 12, 42},
                             {0.02, 0.02, 58, 1, 1}};
  write("train.tsv", rows(60));
  for (const auto& [valid, test, train_rows, valid_rows, test_rows] : kCases) {
    TaskOptions options = classify();
    options.valid_share = valid;
    options.test_share = test;
    const Task task = open_task(options);
    EXPECT_EQ(task.train.size(), train_rows) << valid << " " << test;
    EXPECT_EQ(task.valid.size(), valid_rows) << valid << " " << test;
    EXPECT_EQ(task.test.size(), test_rows) << valid << " " << test;
    Texts all = texts_of(task.train);
    all.merge(texts_of(task.valid));
    all.merge(texts_of(task.test));
    EXPECT_EQ(all.size(), 60u);
    for (int i = 0; i < 60; ++i) EXPECT_EQ(all.count("row " + std::to_string(i)), 1u);
    for (const char* const split : {"train", "valid", "test"})
      for (int64_t i = 0; i < labelled(task, split).size(); ++i) {
        const int row = std::stoi(text_of(labelled(task, split), i).substr(4));
        const char* const labels[] = {"red", "blue", "green"};
        EXPECT_EQ(task.labels.at(labelled(task, split).label(i)), labels[row % 3]);
      }
  }
}

TEST_F(Classify, SplitsByTheSeedOfTheSplitAlone) {
  write("train.tsv", rows(60));
  const Task task = open_task(classify());
  TaskOptions options = classify();
  options.tokens = "words";
  options.longest = 1;
  const Task words = open_task(options);
  for (const char* const split : {"train", "valid", "test"}) {
    ASSERT_EQ(labelled(words, split).size(), labelled(task, split).size());
    for (int64_t i = 0; i < labelled(task, split).size(); ++i)
      EXPECT_EQ(labelled(words, split).label(i), labelled(task, split).label(i));
  }
  EXPECT_EQ(texts_of(open_task(classify()).test), texts_of(task.test));
  options = classify();
  options.split_seed = 2;
  EXPECT_NE(texts_of(open_task(options).test), texts_of(task.test));
  EXPECT_NE(texts_of(open_task(options).valid), texts_of(task.valid));
}

TEST_F(Classify, SortsItsLabels) {
  write("train.tsv", rows(60));
  const Task task = open_task(classify());
  EXPECT_EQ(task.labels, (std::vector<std::string>{"blue", "green", "red"}));
  EXPECT_EQ(task.saved_labels, "[\"blue\",\"green\",\"red\"]");
  EXPECT_EQ(task.name, "classify");
  EXPECT_EQ(task.ids, 257);
  EXPECT_EQ(task.longest, 6);
  EXPECT_EQ(task.facts, (std::vector<std::string>{
                            "test: 6 of 60 drawn from the training file, seed 1",
                            "valid: 6 of 54 drawn from the training file, seed 1",
                            "bytes, 257 ids", "at most 6 tokens"}));
  ASSERT_EQ(task.references.size(), 1u);
  EXPECT_EQ(task.references[0].accuracy, guess_accuracy(task.train, task.test, false));
}

TEST_F(Classify, TakesFilesForItsSplits) {
  write("mine.tsv", rows(20));
  write("choose.csv", "label,text\nred,row 100\nblue,\"a, b\"\n");
  write("judge.jsonl", "{\"text\": \"row 200\", \"label\": \"green\"}\n");
  TaskOptions options = classify();
  options.train = folder_ / "mine.tsv";
  options.valid = "choose.csv";
  options.test = "judge.jsonl";
  options.valid_share = options.test_share = 0;
  const Task task = open_task(options);
  EXPECT_EQ(task.train.size(), 20);
  EXPECT_EQ(texts_of(task.valid), (Texts{"row 100", "a, b"}));
  EXPECT_EQ(texts_of(task.test), (Texts{"row 200"}));
  EXPECT_EQ(task.test.label(0), 1);
  EXPECT_EQ(task.facts[0], "test: judge.jsonl");
  EXPECT_EQ(task.facts[1], "valid: choose.csv");
  EXPECT_EQ(read_examples(task, options, folder_ / "choose.csv")->fingerprint(),
            task.valid.fingerprint());
  // A share beside one file is of all rows.
  options.valid = "";
  options.valid_share = 0.25;
  EXPECT_EQ(open_task(options).valid.size(), 5);
  EXPECT_EQ(open_task(options).train.size(), 15);
}

TEST_F(Classify, TakesOtherColumns) {
  std::string text;
  for (int i = 0; i < 20; ++i) text += i % 2 == 0 ? "b\tsome\n" : "r\tthing\n";
  write("train.tsv", text);
  TaskOptions options = classify();
  options.text = "2";
  options.label = "1";
  const Task task = open_task(options);
  EXPECT_EQ(task.train.size(), 16);
  for (int64_t i = 0; i < 16; ++i)
    EXPECT_EQ(text_of(task.train, i), task.train.label(i) == 0 ? "some" : "thing");
  EXPECT_EQ(task.labels, (std::vector<std::string>{"b", "r"}));
}

TEST_F(Classify, RefusesALabelItWasNotTrainedOn) {
  write("train.tsv", rows(20));
  write("valid.tsv", "text\tlabel\na\tred\nb\tgren\n");
  TaskOptions options = classify();
  options.valid = "valid.tsv";
  const std::string message =
      "valid.tsv: no label 'gren' was trained on; did you mean 'green'? there are: "
      "blue, green, red";
  EXPECT_EQ(refusal([&] { open_task(options); }), folder_ / message);
  const Task task = open_task(classify());
  EXPECT_EQ(refusal([&] { read_examples(task, classify(), folder_ / "valid.tsv"); }),
            folder_ / message);
}

TEST_F(Classify, NeedsRowsForEverySplit) {
  const std::string path = folder_ / "train.tsv";
  write("train.tsv", rows(9));
  EXPECT_EQ(refusal([&] { open_task(classify()); }),
            path +
                ": too few rows to split: 8 to train on, 1 to choose by and 0 to "
                "judge by");
  write("train.tsv", rows(2));
  EXPECT_EQ(refusal([&] { open_task(classify()); }),
            path +
                ": too few rows to split: 2 to train on, 0 to choose by and 0 to "
                "judge by");
  write("train.tsv", "text\tlabel\n");
  EXPECT_EQ(refusal([&] { open_task(classify()); }), path + " has no rows");
  write("train.tsv", rows(20));
  TaskOptions options = classify();
  options.valid_share = options.test_share = 0.5;
  EXPECT_THROW(open_task(options), UsageError);
  EXPECT_EQ(
      refusal([&] { open_task(options); }),
      "task.valid_share and task.test_share must leave something to train on, got "
      "0.5 and 0.5");
}

TEST_F(Classify, NeedsTwoLabels) {
  std::string text = "text\tlabel\n";
  for (int i = 0; i < 20; ++i) text += "a\tonly\n";
  write("train.tsv", text);
  EXPECT_EQ(refusal([&] { open_task(classify()); }),
            (folder_ / "train.tsv") + ": needs two labels or more, got only 'only'");
}

TEST_F(Classify, IsCutAtTheLongest) {
  write("train.tsv", rows(30));
  TaskOptions options = classify();
  options.longest = 3;
  const Task task = open_task(options);
  EXPECT_EQ(task.longest, 3);
  for (const char* const split : {"train", "valid", "test"})
    for (int64_t i = 0; i < labelled(task, split).size(); ++i)
      EXPECT_EQ(text_of(labelled(task, split), i), "row");
  EXPECT_EQ(task.train.cut(), task.train.size());
}

TEST_F(Classify, LearnsItsWordsFromWhatItTrainsOn) {
  write("train.tsv", "text\tlabel\na A b\tx\nb c\ty\n");
  write("valid.tsv", "text\tlabel\nd a\tx\n");
  TaskOptions options = classify();
  options.valid = options.test = "valid.tsv";
  options.tokens = "words";
  const Task task = open_task(options);
  EXPECT_EQ(task.ids, 5);  // padding, unknown, a, b, c
  EXPECT_EQ(task.encode("a b c d"), (std::vector<int32_t>{2, 3, 4, 1}));
  EXPECT_EQ(task.valid.ids(0)[0], 1);
  options.vocabulary = 4;
  EXPECT_EQ(open_task(options).encode("a b c d"), (std::vector<int32_t>{2, 3, 1, 1}));
  options.least_count = 2;
  EXPECT_EQ(open_task(options).ids, 4);
  options.lower_case = false;
  EXPECT_EQ(open_task(options).encode("A b"), (std::vector<int32_t>{1, 2}));
}

TEST_F(Classify, IsRestored) {
  write("train.tsv", rows(40));
  for (const char* const tokens : {"bytes", "words"}) {
    TaskOptions options = classify();
    options.tokens = tokens;
    const Task task = open_task(options);
    const Task again = restore_task(options, task.saved_labels, task.saved_vocabulary);
    EXPECT_EQ(again.labels, task.labels);
    EXPECT_EQ(again.ids, task.ids);
    EXPECT_EQ(again.saved_labels, task.saved_labels);
    EXPECT_EQ(again.saved_vocabulary, task.saved_vocabulary);
    for (const char* const text : {"", "row 7", "Row 100, ünknown"})
      EXPECT_EQ(again.encode(text), task.encode(text)) << tokens;
  }
  for (const char* const labels :
       {"", "[", "{}", "[]", "[\"a\"]", "[\"a\", 3]", "\"ab\""})
    EXPECT_EQ(refusal([&] { restore_task(classify(), labels, ""); }),
              "the saved labels are not a JSON list of two words or more");
}

TEST_F(ATask, HasAnOutlineWithoutData) {
  TaskOptions options{.name = "listops"};
  EXPECT_EQ(outline_task(options).longest, 2000);
  EXPECT_EQ(outline_task(options).ids, 17);
  EXPECT_EQ(outline_task(options).labels.size(), 10u);
  options.longest = 100;
  EXPECT_EQ(outline_task(options).longest, 100);
  options.name = "classify";
  EXPECT_EQ(outline_task(options).longest, 100);
  EXPECT_EQ(outline_task(options).ids, 257);
  EXPECT_EQ(outline_task(options).labels.size(), 2u);
  options.tokens = "words";
  options.vocabulary = 500;
  EXPECT_EQ(outline_task(options).ids, 500);
  options.longest = 0;
  EXPECT_THROW(outline_task(options), UsageError);
  EXPECT_EQ(refusal([&] { outline_task(options); }),
            "classify without data needs task.longest, in tokens, to be given");
}

TEST_F(ATask, IsKnownByName) {
  const std::string message =
      "task.name: no task called 'listop'; did you mean 'listops'? there are: listops, "
      "imdb, retrieval, cifar10, pathfinder, classify, ";
  const TaskOptions options{.name = "listop"};
  EXPECT_THROW(open_task(options), UsageError);
  EXPECT_TRUE(refusal([&] { open_task(options); }).starts_with(message));
  EXPECT_TRUE(refusal([&] { outline_task(options); }).starts_with(message));
  EXPECT_TRUE(refusal([&] { restore_task(options, "", ""); }).starts_with(message));
  EXPECT_TRUE(refusal([&] { read_examples({}, options, ""); }).starts_with(message));
  EXPECT_EQ(refusal([] { Task().split("val"); }),
            "no split 'val'; there are: train, valid, test");
}

TEST_F(ATask, HasOptionsInItsFields) {
  TaskOptions options, standard;
  EXPECT_TRUE(differing(fields(options), fields(standard)).empty());
  ConfigReader(fields(options))
      .read_text(
          "{name: classify, data: d, longest: 1, examples: 7, judged: 8, size: 64, "
          "difficulty: easy, train: t, valid: v, test: e, "
          "valid_share: 0.2, test_share: 0.3, split_seed: 4, text: x, label: l, "
          "tokens: words, vocabulary: 5, least_count: 6, lower_case: false, "
          "sentencepiece_model: m, goal: masked, context: 7, documents: apart, "
          "masked_share: 0.4, pairs: false}",
          "a.yaml");
  EXPECT_EQ(differing(fields(options), fields(standard)).size(),
            fields(options).size());
}

TEST(AGuess, IsTheCommonestLabel) {
  const Examples train =
      examples_of({{{1}, 0}, {{1}, 0}, {{2}, 1}, {{2}, 1}, {{2}, 1}, {{3}, 2}});
  const Examples test =
      examples_of({{{1}, 0}, {{2}, 1}, {{2}, 0}, {{3, 9}, 2}, {{4}, 1}});
  EXPECT_DOUBLE_EQ(guess_accuracy(train, test, false), 2.0 / 5);
  // By the first token 1, 2 and 3 are right once each; 4 is guessed as overall.
  EXPECT_DOUBLE_EQ(guess_accuracy(train, test, true), 4.0 / 5);
  EXPECT_EQ(guess_accuracy({}, test, false), 0);
  EXPECT_EQ(guess_accuracy(train, {}, true), 0);
  const Examples empty = examples_of({{{}, 1}});
  EXPECT_EQ(guess_accuracy(train, empty, true), 1);
  EXPECT_EQ(guess_accuracy(empty, empty, true), 1);
}

}  // namespace
}  // namespace longspan::testing
