// Film reviews, good or bad (Maas et al. 2011, "Learning word vectors for sentiment
// analysis"), as the Text task of the Long Range Arena has them: bytes; or words.

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "longspan/base/error.h"
#include "longspan/base/read_file.h"
#include "longspan/data/packed_file.h"
#include "longspan/tasks/kinds.h"
#include "longspan/tasks/parts.h"

namespace longspan {
namespace {

struct Review {
  std::string text;
  int64_t label = 0;
};
using Reviews = std::vector<Review>;

constexpr const char* kLabels[] = {"negative", "positive"};
constexpr char kMake[] = "`longspan data imdb` says where the reviews come from";

// imdb_train.tsv: label, rating, number and text between tabs.
Reviews read_table_of_reviews(const std::string& path) {
  Reviews reviews;
  for_each_line(path, [&](std::string_view line, int64_t number) {
    if (line.empty()) return;
    size_t at = 0;
    for (int column = 0; column < 3 && at != line.npos; ++column) {
      at = line.find('\t', at);
      at = at == line.npos ? at : at + 1;
    }
    const bool fits = at != line.npos && line[1] == '\t' &&
                      (line[0] == '0' || line[0] == '1') &&
                      line.find('\t', at) == line.npos;
    require(fits, found_file(path), ", line ", number,
            ": must be a label of 0 or 1, a rating, a number and a text between tabs, "
            "got '",
            line.substr(0, 60), "'");
    reviews.push_back({std::string(line.substr(at)), line[0] - '0'});
  });
  require(!reviews.empty(), found_file(path), " has no reviews");
  return reviews;
}

// The numbers of files such as 17_8.txt, review 17 with the rating 8, and their names.
std::vector<std::pair<int64_t, std::string>> numbered(const std::string& folder) {
  std::vector<std::pair<int64_t, std::string>> files;
  DIR* const handle = opendir(folder.c_str());
  require(handle != nullptr, "cannot read ", folder, ": there is no such folder; ",
          kMake);
  while (const dirent* entry = readdir(handle)) {
    const std::string name = entry->d_name;
    int64_t number = 0;
    const auto [stop, error] =
        std::from_chars(name.data(), name.data() + name.size(), number);
    if (error == std::errc() && *stop == '_' && name.ends_with(".txt"))
      files.emplace_back(number, name);
  }
  closedir(handle);
  std::ranges::sort(files);
  require(!files.empty(), folder, " has no files such as 0_9.txt");
  return files;
}

// aclImdb/train: neg/0_3.txt, pos/0_9.txt, neg/1_1.txt ..
Reviews read_folder_of_reviews(const std::string& folder) {
  const auto negative = numbered(folder + "/neg"), positive = numbered(folder + "/pos");
  Reviews reviews;
  for (size_t i = 0; i < std::max(negative.size(), positive.size()); ++i) {
    if (i < negative.size())
      reviews.push_back({read_file(folder + "/neg/" + negative[i].second), 0});
    if (i < positive.size())
      reviews.push_back({read_file(folder + "/pos/" + positive[i].second), 1});
  }
  return reviews;
}

struct Source {
  std::string folder;
  bool table = false;

  Reviews read(const std::string& split) const {
    return table ? read_table_of_reviews(folder + name(split))
                 : read_folder_of_reviews(folder + split);
  }
  std::string name(const std::string& split) const {
    return table ? "imdb_" + split + ".tsv" : "aclImdb/" + split;
  }
};

Source source_of(const TaskOptions& options) {
  for (const char* const folder : {"", "aclImdb"}) {
    std::string path = in_data(options, folder);
    if (!path.ends_with('/')) path += '/';
    if (access((path + "train/neg").c_str(), F_OK) == 0) return {path, false};
  }
  return {folder_with(options, {""}, "imdb_train.tsv", kMake), true};
}

Task blank(const TaskOptions& options) {
  constexpr int64_t kBytes = 1000, kWords = 500;  // the arena's, and the wide study's
  Task task{.name = "imdb", .longest = options.longest, .text_column = "text"};
  if (task.longest == 0) task.longest = options.tokens == "bytes" ? kBytes : kWords;
  task.labels.assign(std::begin(kLabels), std::end(kLabels));
  return task;
}

void prepare(Task& task, std::shared_ptr<const Tokenizer> tokenizer) {
  task.ids = tokenizer->ids();
  task.saved_vocabulary = tokenizer->saved();
  task.facts.push_back(tokenizer->describe());
  task.encode = [tokenizer](const std::string& text) {
    return tokenizer->encode(text);
  };
}

Examples encoded(const Task& task, const Reviews& reviews, const Numbers& numbers) {
  Examples examples;
  for (const int64_t number : numbers) {
    const auto& [text, label] = reviews[static_cast<size_t>(number)];
    examples.add(task.encode(text), label, task.longest);
  }
  return examples;
}

Task open(const TaskOptions& options) {
  if (options.data.empty())
    throw UsageError(std::string("imdb needs the folder of its files: --data DIR; ") +
                     kMake);
  Task task = blank(options);
  const Source source = source_of(options);
  const Reviews train = source.read("train"), test = source.read("test");
  Numbers learned = all_numbers(std::ssize(train)), valid;
  const int64_t share = share_of(options.valid_share, std::ssize(train));
  require(share > 0 || options.valid_share == 0, "imdb: task.valid_share ",
          options.valid_share, " of ", train.size(),
          " reviews leaves none to choose by; 0 chooses by the test set");
  const Key key{static_cast<uint64_t>(options.split_seed)};
  if (share > 0) valid = draw_out(learned, share, key);
  learned = limited(std::move(learned), options, "train", source.name("train"), task);
  Numbers judged = all_numbers(std::ssize(test));
  if (share > 0)
    valid = limited(std::move(valid), options, "valid",
                    drawn_from(source.name("train"), options), task);
  judged = limited(std::move(judged), options, "test", source.name("test"), task);
  if (share == 0)
    task.facts.emplace_back(
        "valid: the test set itself, as the Long Range Arena has it");

  std::vector<std::string_view> texts;
  for (const int64_t number : learned)
    texts.emplace_back(train[static_cast<size_t>(number)].text);
  prepare(task, build_tokenizer(
                    {.kind = options.tokens,
                     .vocabulary = options.vocabulary,
                     .least_count = options.least_count,
                     .lower_case = options.lower_case,
                     .model = options.sentencepiece_model.empty()
                                  ? std::string()
                                  : in_data(options, options.sentencepiece_model)},
                    texts));
  task.train = encoded(task, train, learned);
  task.test = encoded(task, test, judged);
  task.valid = share > 0 ? encoded(task, train, valid) : task.test;
  return task;
}

Task outline(const TaskOptions& options) {
  constexpr int64_t kByteIds = 257;
  Task task = blank(options);
  task.ids = options.tokens == "bytes" ? kByteIds : options.vocabulary;
  return task;
}

Task restore(const TaskOptions& options, const std::string&,
             const std::string& vocabulary) {
  Task task = blank(options);
  prepare(task, restore_tokenizer(options.tokens, vocabulary));
  return task;
}

std::shared_ptr<const Dataset> read(const Task& task, const TaskOptions&,
                                    const std::string& path) {
  const Reviews reviews = read_table_of_reviews(path);
  return std::make_shared<Examples>(
      encoded(task, reviews, all_numbers(std::ssize(reviews))));
}

}  // namespace

const TaskKind kImdb{
    .name = "imdb", .open = open, .outline = outline, .restore = restore, .read = read};

}  // namespace longspan
