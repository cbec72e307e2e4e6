#include "longspan/data/tokenizer.h"

#include <algorithm>
#include <limits>

#include "longspan/base/error.h"
#include "longspan/base/read_file.h"
#include "longspan/base/words.h"
#include "longspan/data/sentencepiece.h"
#include "longspan/data/word_counts.h"

namespace longspan {
namespace {

class Bytes final : public Tokenizer {
 public:
  int64_t ids() const override { return 257; }

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids(text.size());
    std::ranges::transform(text, ids.begin(),
                           [](char byte) { return static_cast<uint8_t>(byte) + 1; });
    return ids;
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids)
      if (id > 0 && id < 257) text += static_cast<char>(id - 1);
    return text;
  }

  std::string describe() const override { return "bytes, 257 ids"; }
  std::string saved() const override { return ""; }
};

bool is_letter_or_digit(char byte) {
  return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
         (byte >= '0' && byte <= '9') || (byte & 0x80);
}

std::string lower(std::string_view text) {
  std::string lowered(text);
  for (char& byte : lowered)
    if (byte >= 'A' && byte <= 'Z') byte = static_cast<char>(byte - 'A' + 'a');
  return lowered;
}

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> words;
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    while (end < text.size() && is_letter_or_digit(text[end])) ++end;
    end = std::max(end, at + 1);
    if (!is_space(text[at])) words.push_back(text.substr(at, end - at));
    at = end;
  }
  return words;
}

constexpr int32_t kUnknown = 1, kFirstWord = 2;

// The first line of what is saved.
constexpr std::string_view kLowerCase = "lower case", kAsWritten = "as written";

class Words final : public Tokenizer {
 public:
  Words(std::vector<std::string> words, bool lower_case)
      : words_(std::move(words)), lower_case_(lower_case) {
    for (size_t i = 0; i < words_.size(); ++i)
      ids_.emplace(words_[i], kFirstWord + static_cast<int32_t>(i));
  }

  int64_t ids() const override { return kFirstWord + std::ssize(words_); }

  std::vector<int32_t> encode(std::string_view text) const override {
    const std::string lowered = lower_case_ ? lower(text) : "";
    const auto words = split(lower_case_ ? lowered : text);
    std::vector<int32_t> ids(words.size());
    std::ranges::transform(words, ids.begin(), [&](std::string_view word) {
      const auto found = ids_.find(word);
      return found == ids_.end() ? kUnknown : found->second;
    });
    return ids;
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) {
      if (id < kFirstWord || id >= this->ids()) continue;
      if (!text.empty()) text += ' ';
      text += words_[static_cast<size_t>(id - kFirstWord)];
    }
    return text;
  }

  int32_t unknown() const override { return kUnknown; }

  std::string describe() const override {
    return "words " + std::string(lower_case_ ? "in lower case" : "as written") + ", " +
           std::to_string(ids()) + " ids";
  }

  std::string saved() const override {
    std::string text(lower_case_ ? kLowerCase : kAsWritten);
    for (const auto& word : words_) text += '\n' + word;
    return text;
  }

 private:
  std::vector<std::string> words_;
  bool lower_case_;
  ByWord<int32_t> ids_;
};

void check_vocabulary(const TokenizerOptions& options) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  require(options.vocabulary >= 3 && options.vocabulary <= kMost, options.kind,
          ": the vocabulary must be 3 .. ", kMost,
          " ids (padding, unknown and one more), got ", options.vocabulary);
}

std::shared_ptr<const Tokenizer> count_words(const TokenizerOptions& options,
                                             std::span<const std::string_view> texts) {
  check_vocabulary(options);
  require(options.least_count >= 1, "words: least_count must be 1 or more, got ",
          options.least_count);
  WordCounts counts;
  for (const auto text : texts) {
    const std::string lowered = options.lower_case ? lower(text) : "";
    for (const auto word : split(options.lower_case ? lowered : text)) counts.add(word);
  }
  auto words = counts.commonest(options.least_count, options.vocabulary - kFirstWord);
  require(!words.empty(), "words: no word comes ", options.least_count,
          " times or more in ", texts.size(), " texts");
  return std::make_shared<Words>(std::move(words), options.lower_case);
}

std::shared_ptr<const Tokenizer> restore_words(std::string_view saved) {
  const size_t end = std::min(saved.find('\n'), saved.size());
  const auto first = saved.substr(0, end);
  require(first == kLowerCase || first == kAsWritten,
          "words: what was saved must begin ", "with '", kLowerCase, "' or '",
          kAsWritten, "', got '", first.substr(0, 60), "'");
  const bool lower_case = first == kLowerCase;
  saved.remove_prefix(end);
  std::vector<std::string> words;
  ByWord<bool> known;
  while (!saved.empty()) {
    saved.remove_prefix(1);
    const std::string word(saved.substr(0, saved.find('\n')));
    saved.remove_prefix(word.size());
    const auto parts = split(word);
    require(
        parts.size() == 1 && parts[0] == word && (!lower_case || lower(word) == word),
        "words: '", word.substr(0, 60), "' among the saved ones is not a word",
        lower_case ? " in lower case" : "");
    require(known.emplace(word, true).second, "words: '", word.substr(0, 60),
            "' was saved twice");
    words.push_back(word);
  }
  require(!words.empty(), "words: no word was saved");
  return std::make_shared<Words>(std::move(words), lower_case);
}

[[noreturn]] void refuse_kind(const std::string& kind) {
  fail("no tokenizer '", kind, "'", hint(kind, {"bytes", "words", "sentencepiece"}));
}

}  // namespace

std::shared_ptr<const Tokenizer> build_tokenizer(
    const TokenizerOptions& options, std::span<const std::string_view> texts) {
  const bool is_sentencepiece = options.kind == "sentencepiece";
  if (!is_sentencepiece && options.kind != "bytes" && options.kind != "words")
    refuse_kind(options.kind);
  argument([&] {
    require(is_sentencepiece || options.model.empty(), options.kind,
            ": a model file is for sentencepiece only, got ", options.model);
  });
  if (options.kind == "bytes") return std::make_shared<Bytes>();
  if (options.kind == "words") return count_words(options, texts);
  if (!options.model.empty())
    return sentencepiece().open(read_file(options.model), options.model);
  check_vocabulary(options);
  return sentencepiece().train(options, texts);
}

std::shared_ptr<const Tokenizer> restore_tokenizer(const std::string& kind,
                                                   const std::string& saved) {
  if (kind == "bytes") {
    require(saved.empty(), "bytes: nothing is saved of them, got ", saved.size(),
            " bytes");
    return std::make_shared<Bytes>();
  }
  if (kind == "words") return restore_words(saved);
  if (kind == "sentencepiece") return sentencepiece().open(saved, "what was saved");
  refuse_kind(kind);
}

}  // namespace longspan
