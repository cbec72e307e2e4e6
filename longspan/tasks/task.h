// What a model is to learn: sequences with labels, and how to read new ones.

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "longspan/base/config.h"
#include "longspan/data/dataset.h"
#include "longspan/data/examples.h"
#include "longspan/data/tokenizer.h"

namespace longspan {

struct TaskOptions {
  std::string name = "listops";
  std::string data = {};
  int64_t longest = 0;
  // How many examples are drawn to train on, and to choose and to judge by; 0: all.
  int64_t examples = 0;
  int64_t judged = 0;
  // Of `pathfinder`.
  int64_t size = 32;
  std::string difficulty = "hard";
  // The rest is for some of the tasks alone.
  std::string train = "train.tsv";
  std::string valid = {};
  std::string test = {};
  double valid_share = 0.1;
  double test_share = 0.1;
  int64_t split_seed = 1;
  std::string text = "text";
  std::string label = "label";
  std::string tokens = "bytes";
  int64_t vocabulary = 30000;
  int64_t least_count = 1;
  bool lower_case = true;
  std::string sentencepiece_model = {};
  std::string goal = "next";
  int64_t context = 0;
  std::string documents = "joined";
  double masked_share = 0.15;
  bool pairs = true;
};

// The names of the options, without section. See there what each means.
Fields fields(TaskOptions& options);

// A line to judge scores by: how often a guess without a model is right.
struct Reference {
  std::string name;
  double accuracy = 0;
};

// What a model says: the label of a sequence; at every token, which one comes next; or
// which tokens stood where some were hidden.
enum class Goal : uint8_t { label, next_token, masked_tokens };

// A program may fill it with examples of its own.
struct Task {
  std::string name = {};
  Goal goal = Goal::label;
  int64_t ids = 0;      // that tokens may have, padding, 0, included
  int64_t longest = 0;  // in tokens; longer sequences are cut. 0: not known yet
  std::vector<std::string> labels = {};
  Examples train = {}, valid = {}, test = {};  // with labels
  // In place of the three where they are no Examples, by the names of the splits.
  std::map<std::string, std::shared_ptr<const Dataset>, std::less<>> texts = {};
  std::vector<Reference> references = {};  // learned from train, judged on test
  // Where examples come from, how they were split and cut into tokens; stated with
  // every result.
  std::vector<std::string> facts = {};
  bool pairs = false;            // labels are of two texts
  std::string text_column = {};  // of texts in a user's file
  // Text that a user gives to the ids that the model reads.
  std::function<std::vector<int32_t>(const std::string& text)> encode = {};
  // The same of a text of which tokens are missing between its parts.
  std::function<std::vector<std::vector<int32_t>>(
      std::span<const std::string_view> parts)>
      encode_parts = {};
  // And back, for tasks whose answers are tokens.
  std::function<std::string(std::span<const int32_t> ids)> decode = {};
  // Ids that are no text; -1: there is none.
  int32_t end_of_text = -1;  // between documents
  int32_t mask = -1;         // stands for a hidden token
  int32_t unwritten = -1;    // stands for text, but decode() leaves it out
  // What restore_task() needs beside the options: two small files.
  std::string saved_labels = {}, saved_vocabulary = {};

  const Dataset& split(std::string_view name) const;  // train, valid or test
};

// A batch of sequences of `length` real tokens for a model of `task`, drawn by
// LibTorch.
Batch random_batch(const Task& task, int64_t examples, int64_t length);

// Reads the data of a task.
Task open_task(const TaskOptions& options);

// The sizes of a task as far as its options say them, without data: to count and to
// measure models.
Task outline_task(const TaskOptions& options);

// The task without its examples, to read new ones, from what open_task() saved.
Task restore_task(const TaskOptions& options, const std::string& saved_labels,
                  const std::string& saved_vocabulary);

// Examples of a file the user has beside those of the task, in its format.
std::shared_ptr<const Dataset> read_examples(const Task& task,
                                             const TaskOptions& options,
                                             const std::string& path);

// The same as the split "test" of the task.
void read_test(Task& task, const TaskOptions& options, const std::string& path);

// The texts that are to be labelled, one or two with a tab between; an Error where
// there are more or less of them.
std::vector<std::vector<int32_t>> encode_all(const Task& task, const std::string& text);

// The share of right answers of the guess "always the commonest label of train", and,
// with `by_first`, of the commonest among those that begin with the same token.
double guess_accuracy(const Examples& train, const Examples& test, bool by_first);

// The former, of any examples with labels.
double guess_accuracy(const Dataset& train, const Dataset& test);

}  // namespace longspan
