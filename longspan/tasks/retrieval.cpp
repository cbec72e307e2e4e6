// Do two papers cite one another? The Retrieval task of the Long Range Arena, in its
// files: pairs of texts of the ACL Anthology Network (Radev et al. 2013); or in files
// of pairs of numbers beside the texts they stand for.

#include <unistd.h>

#include <string_view>
#include <unordered_map>

#include "longspan/base/error.h"
#include "longspan/data/byte_source.h"
#include "longspan/data/packed_file.h"
#include "longspan/data/pairs.h"
#include "longspan/tasks/kinds.h"
#include "longspan/tasks/parts.h"

namespace longspan {
namespace {

constexpr int64_t kArena = 4000;      // the Long Range Arena's longest, of each text
constexpr size_t kMostBytes = 10000;  // that its pipeline reads of a text
constexpr char kMake[] = "`longspan data retrieval` says where they come from";

std::vector<std::string_view> columns(std::string_view line) {
  std::vector<std::string_view> found;
  while (true) {
    const size_t tab = line.find('\t');
    found.push_back(line.substr(0, tab));
    if (tab == line.npos) return found;
    line.remove_prefix(tab + 1);
  }
}

// 0 or 1, which may be written 0.0 and 1.0; else -1.
int64_t label_of(std::string_view text) {
  if (text == "0" || text == "0.0") return 0;
  return text == "1" || text == "1.0" ? 1 : -1;
}

// The documents read so far, each once.
class Library {
 public:
  Library(const Task& task, int64_t longest)
      : encode_(task.encode), longest_(longest) {}

  // The number of a document. Another text under a known name is another document.
  int64_t add(std::string_view name, std::string_view text) {
    const auto ids = encode_(std::string(text.substr(0, kMostBytes)));
    auto& known = numbers_[std::string(name)];
    for (const int64_t number : known) {
      const auto other = documents_->ids(number);
      const size_t cut =
          longest_ > 0 ? std::min<size_t>(ids.size(), longest_) : ids.size();
      if (std::equal(other.begin(), other.end(), ids.begin(), ids.begin() + cut))
        return number;
    }
    documents_->add(ids, 0, longest_);
    known.push_back(documents_->size() - 1);
    return known.back();
  }
  // -1: no document has this name.
  int64_t find(std::string_view name) const {
    const auto found = numbers_.find(std::string(name));
    return found == numbers_.end() ? -1 : found->second.front();
  }
  std::shared_ptr<const Examples> documents() const { return documents_; }

 private:
  std::function<std::vector<int32_t>(const std::string&)> encode_;
  int64_t longest_;
  std::shared_ptr<Examples> documents_ = std::make_shared<Examples>();
  std::unordered_map<std::string, std::vector<int64_t>> numbers_;
};

struct Pair {
  int64_t first = 0, second = 0, label = 0;
};

// A file of label, two names and, in the release, two texts.
std::vector<Pair> read_pairs(const std::string& path, bool with_texts,
                             Library& library) {
  std::vector<Pair> pairs;
  for_each_line(path, [&](std::string_view line, int64_t number) {
    if (line.empty()) return;
    const auto parts = columns(line);
    const size_t expected = with_texts ? 5 : 3;
    const int64_t label = label_of(parts.front());
    require(parts.size() == expected && label >= 0, found_file(path), ", line ", number,
            ": must be a label of 0 or 1, two names",
            with_texts ? " and two texts" : "", " between tabs, got '",
            line.substr(0, 60), "'");
    const auto document = [&](size_t which) {
      if (with_texts) return library.add(parts[1 + which], parts[3 + which]);
      const int64_t found = library.find(parts[1 + which]);
      require(found >= 0, found_file(path), ", line ", number,
              ": there is no document '", parts[1 + which], "' in docs.tsv");
      return found;
    };
    const int64_t first = document(0);
    pairs.push_back({first, document(1), label});
  });
  require(!pairs.empty(), found_file(path), " has no pairs");
  return pairs;
}

void read_documents(const std::string& path, Library& library) {
  for_each_line(path, [&](std::string_view line, int64_t number) {
    const size_t tab = line.find('\t');
    require(tab != line.npos, found_file(path), ", line ", number,
            ": must be a name and a text with a tab between, got '", line.substr(0, 60),
            "'");
    library.add(line.substr(0, tab), line.substr(tab + 1));
  });
}

Task restore(const TaskOptions& options, const std::string&, const std::string&) {
  const auto bytes = restore_tokenizer("bytes", "");
  Task task{.name = "retrieval",
            .ids = bytes->ids(),
            .longest = options.longest > 0 ? options.longest : kArena,
            .labels = {"apart", "cited"},
            .pairs = true};
  task.facts = {"two texts in " + bytes->describe()};
  task.encode = [bytes](const std::string& text) { return bytes->encode(text); };
  return task;
}

Task outline(const TaskOptions& options) {
  argument([&] {
    require(options.tokens == "bytes",
            "retrieval cuts texts into bytes: task.tokens must be bytes, got ",
            options.tokens);
  });
  return restore(options, {}, {});
}

std::shared_ptr<const Dataset> pairs_of(const std::vector<Pair>& pairs,
                                        const Numbers& numbers,
                                        const Library& library) {
  auto made = std::make_shared<Pairs>(library.documents());
  for (const int64_t number : numbers) {
    const auto& [first, second, label] = pairs[static_cast<size_t>(number)];
    made->add(first, second, label);
  }
  return made;
}

// Where the files are and what they are called.
struct Layout {
  std::string folder;
  bool with_texts = false;
  const char *train = "", *valid = "", *test = "";
};

Layout layout_of(const TaskOptions& options) {
  const Layout of_numbers = {"", false, "pairs_train.tsv", "pairs_valid.tsv",
                             "pairs_test.tsv"};
  const Layout release = {"", true, "new_aan_pairs.train.tsv", "new_aan_pairs.eval.tsv",
                          "new_aan_pairs.test.tsv"};
  const std::string docs = found_file(in_data(options, "docs.tsv"));
  const bool numbers = access(docs.c_str(), F_OK) == 0;
  Layout layout = numbers ? of_numbers : release;
  layout.folder = numbers ? folder_with(options, {""}, layout.train, kMake)
                          : folder_with(options,
                                        {"", "tsv_data", "lra_release/tsv_data",
                                         "lra_release/lra_release/tsv_data"},
                                        layout.train, kMake);
  return layout;
}

Task open(const TaskOptions& options) {
  if (options.data.empty())
    throw UsageError(
        std::string("retrieval needs the folder of its files: --data DIR; ") + kMake);
  Task task = outline(options);
  const Layout layout = layout_of(options);
  Library library(task, task.longest);
  if (!layout.with_texts) read_documents(layout.folder + "docs.tsv", library);
  const auto add = [&](const char* split, const char* file) {
    const auto pairs = read_pairs(layout.folder + file, layout.with_texts, library);
    const Numbers numbers =
        limited(all_numbers(std::ssize(pairs)), options, split, file, task);
    task.texts[split] = pairs_of(pairs, numbers, library);
  };
  add("train", layout.train);
  add("valid", layout.valid);
  add("test", layout.test);
  task.facts.emplace_back(
      layout.with_texts ? "the pairs of the Long Range Arena"
                        : "pairs of other papers than the Long Range Arena's: not "
                          "to be compared with published numbers");
  return task;
}

// Whether a file of pairs has their texts, by its first line: a line of names is short.
bool has_texts(const std::string& path) {
  std::string line(1 << 12, '\0');
  line.resize(open_bytes(found_file(path))->read(line.data(), line.size()));
  const size_t end = line.find('\n');
  return end == line.npos || columns(line.substr(0, end)).size() != 3;
}

std::shared_ptr<const Dataset> read(const Task& task, const TaskOptions& options,
                                    const std::string& path) {
  Library library(task, task.longest);
  const bool with_texts = has_texts(path);
  if (!with_texts) {
    std::string docs = path.substr(0, path.rfind('/') + 1) + "docs.tsv";
    if (access(found_file(docs).c_str(), F_OK) != 0)
      docs = in_data(options, "docs.tsv");
    require(access(found_file(docs).c_str(), F_OK) == 0, path,
            " has names of texts: docs.tsv, name and text between tabs, must be beside "
            "it or in the folder that --data names");
    read_documents(docs, library);
  }
  const auto pairs = read_pairs(path, with_texts, library);
  return pairs_of(pairs, all_numbers(std::ssize(pairs)), library);
}

}  // namespace

const TaskKind kRetrieval{.name = "retrieval",
                          .open = open,
                          .outline = outline,
                          .restore = restore,
                          .read = read};

}  // namespace longspan
