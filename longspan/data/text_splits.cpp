#include "longspan/data/text_splits.h"

#include <algorithm>
#include <cmath>

#include "longspan/base/error.h"
#include "longspan/data/order.h"
#include "longspan/data/word_counts.h"

namespace longspan {
namespace {

// Counts and encodes the parts of one text.
class Encoder {
 public:
  Encoder(const TextTokens& tokens, int32_t end_of_text, TokenSink& sink)
      : tokens_(tokens), end_of_text_(end_of_text), sink_(sink) {}

  void add(const TextPart& part) {
    counts_.bytes += std::ssize(part.text);
    for (const char byte : part.text) {
      if (byte == '\n') ++counts_.words;
      if (!is_space(byte) && !in_word_) ++counts_.words;
      in_word_ = !is_space(byte);
    }
    const auto ids = tokens_.encode(part.text);
    counts_.unknown += tokens_.unknown(part.text, ids);
    counts_.kept = counts_.kept && tokens_.keep(part.text, ids);
    sink_.add(ids);
    if (!part.ends_document) return;
    in_word_ = false;
    ++counts_.documents;
    sink_.add({&end_of_text_, 1});
  }

  const TextCounts& counts() const { return counts_; }

 private:
  const TextTokens& tokens_;
  int32_t end_of_text_;
  TokenSink& sink_;
  TextCounts counts_;
  bool in_word_ = false;
};

}  // namespace

TextSplits::TextSplits(const TextSplitOptions& options)
    : options_(options), train_(options.train, options.column) {
  argument([&] {
    const double taken = (options.valid.empty() ? options.valid_share : 0) +
                         (options.test.empty() ? options.test_share : 0);
    const auto& [valid, test] = options.shares_called;
    require(taken < 1, valid, " and ", test, " must leave something to train on, got ",
            options.valid_share, " and ", options.test_share);
    require(!options.valid.empty() || options.valid_share > 0, valid,
            " must be more than 0 where no file is given to choose by, got 0");
    require(!options.test.empty() || options.test_share > 0, test,
            " must be more than 0 where no file is given to judge by, got 0");
  });
  plan_shares();
}

void TextSplits::plan_shares() {
  if (!options_.valid.empty() && !options_.test.empty()) return;
  const bool documents = train_.in_documents();
  train_.read([&](const TextPart& part) {
    size_ += documents ? int64_t{part.ends_document} : std::ssize(part.text);
  });
  const auto share = [&](const std::string& given, double wanted) {
    return given.empty() ? std::llround(wanted * static_cast<double>(size_)) : 0;
  };
  const int64_t valid = share(options_.valid, options_.valid_share);
  const int64_t test = share(options_.test, options_.test_share);
  ends_ = {size_ - test - valid, size_ - test};
  const char* const unit = documents ? " documents" : " bytes";
  require(ends_[0] > 0 && (valid > 0 || !options_.valid.empty()) &&
              (test > 0 || !options_.test.empty()),
          train_.path(), ": too little to split: ", ends_[0], unit, " to train on, ",
          valid, " to choose by and ", test, " to judge by");
  if (!documents) return;
  split_of_.assign(static_cast<size_t>(size_), 0);
  const auto order = permutation(size_, Key{static_cast<uint64_t>(options_.seed)});
  for (int64_t i = ends_[0]; i < size_; ++i)
    split_of_[static_cast<size_t>(order[static_cast<size_t>(i)])] =
        i < ends_[1] ? 1 : 2;
}

void TextSplits::read_shared(
    bool cuts_anywhere,
    const std::function<void(size_t, const TextPart&)>& take) const {
  size_t split = 0;
  if (!split_of_.empty()) {
    size_t document = 0;
    train_.read([&](const TextPart& part) {
      require(document < split_of_.size(), train_.path(),
              " has changed while it was read");
      take(split_of_[document], part);
      if (part.ends_document) ++document;
    });
    return;
  }
  int64_t at = 0;
  train_.read([&](const TextPart& part) {
    std::string_view rest = part.text;
    while (split < 2 && at + std::ssize(rest) > ends_[split]) {
      auto size = static_cast<size_t>(std::max<int64_t>(0, ends_[split] - at));
      if (!cuts_anywhere && size > 0) {
        const size_t space = rest.find_first_of(" \n", size - 1);
        if (space == rest.npos) break;
        size = space + 1;
      }
      if (size > 0) take(split, {.text = rest.substr(0, size)});
      rest.remove_prefix(size);
      at += static_cast<int64_t>(size);
      ++split;
    }
    at += std::ssize(rest);
    if (!rest.empty()) take(split, {.text = rest});
  });
}

void TextSplits::read(
    bool cuts_anywhere,
    const std::function<void(size_t split, const TextPart&)>& take) const {
  if (size_ > 0)
    read_shared(cuts_anywhere, take);
  else
    train_.read([&](const TextPart& part) { take(0, part); });
  const std::string* const others[] = {&options_.valid, &options_.test};
  for (size_t split = 1; split < kSplits.size(); ++split)
    if (const std::string& path = *others[split - 1]; !path.empty())
      TextFiles(path, options_.column).read([&](const TextPart& part) {
        take(split, part);
      });
}

EachText TextSplits::training(bool cuts_anywhere) const {
  return [this, cuts_anywhere](const std::function<void(std::string_view)>& take) {
    const auto take_training = [&](size_t split, const TextPart& part) {
      if (split == 0) take(part.text);
    };
    if (size_ > 0)
      read_shared(cuts_anywhere, take_training);
    else
      train_.read([&](const TextPart& part) { take(part.text); });
  };
}

std::array<TextCounts, 3> TextSplits::encode(
    const TextTokens& tokens, int32_t end_of_text,
    const std::array<TokenSink*, 3>& sinks) const {
  std::vector<Encoder> encoders;
  for (TokenSink* sink : sinks) encoders.emplace_back(tokens, end_of_text, *sink);
  read(tokens.cuts_anywhere(),
       [&](size_t split, const TextPart& part) { encoders[split].add(part); });
  return {encoders[0].counts(), encoders[1].counts(), encoders[2].counts()};
}

std::vector<std::string> TextSplits::facts() const {
  std::vector<std::string> facts;
  const std::string* const others[] = {&options_.valid, &options_.test};
  const std::array<int64_t, 4> bounds = {0, ends_[0], ends_[1], size_};
  for (size_t split = 1; split < kSplits.size(); ++split) {
    const std::string& path = *others[split - 1];
    std::string fact = std::string(kSplits[split]) + ": ";
    if (!path.empty())
      fact += path;
    else
      fact += std::to_string(bounds[split + 1] - bounds[split]) + " of " +
              std::to_string(size_) +
              (split_of_.empty() ? " bytes of the training file, near its end"
                                 : " documents drawn from the training text, seed " +
                                       std::to_string(options_.seed));
    facts.push_back(fact);
  }
  return facts;
}

TextCounts encode_text(const TextFiles& files, const TextTokens& tokens,
                       int32_t end_of_text, TokenSink& sink) {
  Encoder encoder(tokens, end_of_text, sink);
  files.read([&](const TextPart& part) { encoder.add(part); });
  return encoder.counts();
}

}  // namespace longspan
