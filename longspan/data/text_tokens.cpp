#include "longspan/data/text_tokens.h"

#include <algorithm>
#include <limits>

#include "longspan/base/error.h"
#include "longspan/base/words.h"
#include "longspan/data/word_counts.h"

namespace longspan {
namespace {

class Bytes final : public TextTokens {
 public:
  int64_t ids() const override { return tokenizer_->ids(); }
  std::vector<int32_t> encode(std::string_view text) const override {
    return tokenizer_->encode(text);
  }
  std::string decode(std::span<const int32_t> ids) const override {
    return tokenizer_->decode(ids);
  }
  std::string describe() const override { return tokenizer_->describe(); }
  bool cuts_anywhere() const override { return true; }
  bool keep(std::string_view, std::span<const int32_t>) const override { return true; }
  std::string saved() const override { return {}; }

 private:
  std::shared_ptr<const Tokenizer> tokenizer_ = restore_tokenizer("bytes", {});
};

constexpr int32_t kUnknown = 1, kLineEnd = 2, kFirstWord = 3;
constexpr std::string_view kUnknownWord = "<unk>", kLineEndWord = "<eos>";

// Calls `take` with every word; the end of a line is "\n".
template <class Take>
void for_words(std::string_view text, Take take) {
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find_first_of(" \t\n\v\f\r", at), text.size());
    if (end > at) take(text.substr(at, end - at));
    if (end < text.size() && text[end] == '\n') take(text.substr(end, 1));
    at = end + 1;
  }
}

class SpacedWords final : public TextTokens {
 public:
  explicit SpacedWords(std::vector<std::string> words) : words_(std::move(words)) {
    ids_.emplace(kUnknownWord, kUnknown);
    ids_.emplace(kLineEndWord, kLineEnd);
    ids_.emplace("\n", kLineEnd);
    for (size_t i = 0; i < words_.size(); ++i)
      ids_.emplace(words_[i], kFirstWord + static_cast<int32_t>(i));
  }

  int64_t ids() const override { return kFirstWord + std::ssize(words_); }

  std::vector<int32_t> encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    for_words(text, [&](std::string_view word) {
      const auto found = ids_.find(word);
      ids.push_back(found == ids_.end() ? kUnknown : found->second);
    });
    return ids;
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) {
      if (id <= 0 || id >= this->ids()) continue;
      if (id == kLineEnd) {
        text += '\n';
        continue;
      }
      if (!text.empty() && text.back() != '\n') text += ' ';
      text += id == kUnknown
                  ? kUnknownWord
                  : std::string_view(words_[static_cast<size_t>(id) - kFirstWord]);
    }
    return text;
  }

  std::string describe() const override {
    return "words between spaces and ends of lines, " + std::to_string(ids()) + " ids";
  }
  // The text itself may have unknown words.
  int64_t unknown(std::string_view text, std::span<const int32_t> ids) const override {
    int64_t count = std::ranges::count(ids, kUnknown);
    if (count > 0)
      for_words(text, [&](std::string_view word) { count -= word == kUnknownWord; });
    return count;
  }
  bool keep(std::string_view, std::span<const int32_t>) const override { return false; }

  std::string saved() const override {
    std::string text(kLineEndWord);
    for (const auto& word : words_) text += '\n' + word;
    return text;
  }

 private:
  std::vector<std::string> words_;
  ByWord<int32_t> ids_;
};

std::shared_ptr<const TextTokens> count_words(const TokenizerOptions& options,
                                              const EachText& each_text) {
  WordCounts counts;
  each_text([&](std::string_view text) {
    for_words(text, [&](std::string_view word) {
      if (word != "\n" && word != kUnknownWord && word != kLineEndWord)
        counts.add(word);
    });
  });
  auto words = counts.commonest(options.least_count, options.vocabulary - kFirstWord);
  require(!words.empty(), "words: no word comes ", options.least_count,
          " times or more in the training text");
  return std::make_shared<SpacedWords>(std::move(words));
}

std::shared_ptr<const TextTokens> restore_words(std::string_view saved) {
  std::vector<std::string> words;
  for_words(saved, [&](std::string_view word) {
    if (word != "\n") words.emplace_back(word);
  });
  require(words.size() > 1 && words.front() == kLineEndWord,
          "words: what was saved must be a list of words, ", kLineEndWord,
          " the first, got '", saved.substr(0, 60), "'");
  words.erase(words.begin());
  return std::make_shared<SpacedWords>(std::move(words));
}

// The pieces of lines; the end of a line is one id more.
class PieceLines final : public TextTokens {
 public:
  explicit PieceLines(std::shared_ptr<const Tokenizer> pieces)
      : pieces_(std::move(pieces)), line_end_(static_cast<int32_t>(pieces_->ids())) {}

  int64_t ids() const override { return line_end_ + 1; }

  std::vector<int32_t> encode(std::string_view text) const override {
    return encode_from(text, /*within=*/false);
  }

  // A piece that begins a word holds the space before it, so this is the missing one's.
  std::vector<std::vector<int32_t>> encode_parts(
      std::span<const std::string_view> parts) const override {
    std::vector<std::vector<int32_t>> all;
    for (std::string_view part : parts) {
      if (all.size() + 1 < parts.size() && part.ends_with(' ')) part.remove_suffix(1);
      all.push_back(encode_from(part, /*within=*/!all.empty()));
    }
    return all;
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    std::vector<int32_t> line;
    const auto end_line = [&] {
      if (!line.empty()) text += pieces_->decode(line);
      line.clear();
    };
    for (const int32_t id : ids) {
      if (id > 0 && id < line_end_) line.push_back(id);
      if (id != line_end_) continue;
      end_line();
      text += '\n';
    }
    end_line();
    return text;
  }

  std::string describe() const override {
    return "sentencepiece by lines, " + std::to_string(ids()) + " ids";
  }
  int64_t unknown(std::string_view, std::span<const int32_t> ids) const override {
    return std::ranges::count(ids, pieces_->unknown());
  }
  bool keep(std::string_view text, std::span<const int32_t> ids) const override {
    return decode(ids) == text;
  }
  int32_t unwritten() const override { return pieces_->unknown(); }
  std::string saved() const override { return pieces_->saved(); }

 private:
  std::vector<int32_t> encode_from(std::string_view text, bool within) const {
    std::vector<int32_t> ids;
    while (!text.empty()) {
      const size_t size = std::min(text.find('\n'), text.size());
      const std::string_view line = text.substr(0, size);
      const auto some = within ? pieces_->encode_within(line) : pieces_->encode(line);
      ids.insert(ids.end(), some.begin(), some.end());
      if (size < text.size()) ids.push_back(line_end_);
      text.remove_prefix(std::min(size + 1, text.size()));
      within = false;
    }
    return ids;
  }

  std::shared_ptr<const Tokenizer> pieces_;
  int32_t line_end_;
};

std::shared_ptr<const TextTokens> build_pieces(const TokenizerOptions& options,
                                               const EachText& each_text) {
  std::string text;
  constexpr size_t kMost = 64'000'000;
  if (options.model.empty())
    each_text([&](std::string_view part) {
      if (text.size() < kMost) (text += part) += '\n';
    });
  TokenizerOptions pieces = options;
  pieces.more_ids = 1;
  pieces.exact = true;
  const std::string_view texts[] = {text};
  return std::make_shared<PieceLines>(build_tokenizer(pieces, texts));
}

[[noreturn]] void refuse_kind(const std::string& kind) {
  fail("no tokens '", kind, "'", hint(kind, {"bytes", "words", "sentencepiece"}));
}

}  // namespace

std::vector<std::vector<int32_t>> TextTokens::encode_parts(
    std::span<const std::string_view> parts) const {
  std::vector<std::vector<int32_t>> all;
  for (const std::string_view part : parts) all.push_back(encode(part));
  return all;
}

std::shared_ptr<const TextTokens> build_text_tokens(const TokenizerOptions& options,
                                                    const EachText& each_text) {
  argument([&] {
    require(options.kind == "sentencepiece" || options.model.empty(), options.kind,
            ": a model file is for sentencepiece only, got ", options.model);
    constexpr int64_t kLeast = 4, kMost = std::numeric_limits<int32_t>::max();
    require(options.kind == "bytes" || !options.model.empty() ||
                (options.vocabulary >= kLeast && options.vocabulary <= kMost),
            options.kind, ": the vocabulary must be ", kLeast, " .. ", kMost,
            " ids (padding, unknown, the end of a line and one more), got ",
            options.vocabulary);
  });
  if (options.kind == "bytes") return std::make_shared<Bytes>();
  if (options.kind == "words") return count_words(options, each_text);
  if (options.kind == "sentencepiece") return build_pieces(options, each_text);
  refuse_kind(options.kind);
}

std::shared_ptr<const TextTokens> restore_text_tokens(const std::string& kind,
                                                      const std::string& saved) {
  if (kind == "bytes") return std::make_shared<Bytes>();
  if (kind == "words") return restore_words(saved);
  if (kind == "sentencepiece")
    return std::make_shared<PieceLines>(restore_tokenizer(kind, saved));
  refuse_kind(kind);
}

}  // namespace longspan
