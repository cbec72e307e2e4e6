#include "longspan/data/sentencepiece.h"

#include <algorithm>
#include <charconv>
#include <unordered_map>
#include <vector>

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include "longspan/base/error.h"

namespace sentencepiece::logging {
void SetMinLogLevel(int level);  // exported, but in no installed header
}

namespace longspan {
namespace {

namespace sp = ::sentencepiece;

constexpr std::string_view kSpace = "\u2581";     // how pieces write a space
constexpr std::string_view kReserved = "\u2585";  // the trainer skips texts with it

// Behind a serialized model: its normalizer_spec has neither add_dummy_prefix nor
// remove_extra_whitespaces. Of two messages of protobuf in a row the second counts.
constexpr std::string_view kAsItStands("\x1a\x04\x18\x00\x20\x00", 6);

// std::cerr may not be used in a module that sees its own symbols first: the program
// may have moved it.
void be_quiet() {
  constexpr int kAboveAll = 9;
  sp::logging::SetMinLogLevel(kAboveAll);
}

class Pieces final : public Tokenizer {
 public:
  Pieces(std::string model, const std::string& name) : model_(std::move(model)) {
    be_quiet();
    require(processor_.LoadFromSerializedProto(model_).ok() &&
                within_.LoadFromSerializedProto(model_ + std::string(kAsItStands)).ok(),
            "sentencepiece: ", name, " is not a SentencePiece model");
  }

  int64_t ids() const override { return processor_.GetPieceSize() + 1; }

  std::vector<int32_t> encode(std::string_view text) const override {
    return encoded(processor_, text);
  }
  std::vector<int32_t> encode_within(std::string_view text) const override {
    return encoded(within_, text);
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::vector<int> pieces;
    for (const int32_t id : ids)
      if (id > 0 && id <= processor_.GetPieceSize() && !processor_.IsUnknown(id - 1))
        pieces.push_back(id - 1);
    std::string text;
    require(processor_.Decode(pieces, &text).ok(), "sentencepiece: cannot decode ",
            ids.size(), " ids");
    return text;
  }

  int32_t unknown() const override { return processor_.unk_id() + 1; }

  std::string describe() const override {
    return "sentencepiece, " + std::to_string(ids()) + " ids";
  }

  std::string saved() const override { return model_; }

  // Whether anything but spaces is left of a text.
  bool keeps_some_of(const std::string& text) const {
    std::vector<std::string> pieces;
    return processor_.Encode(text, &pieces).ok() &&
           std::ranges::any_of(pieces,
                               [](const auto& piece) { return piece != kSpace; });
  }

 private:
  static std::vector<int32_t> encoded(const sp::SentencePieceProcessor& processor,
                                      std::string_view text) {
    std::vector<int> pieces;
    require(processor.Encode(text, &pieces).ok(),
            "sentencepiece: cannot encode a text of ", text.size(), " bytes");
    for (int& piece : pieces) ++piece;
    return pieces;
  }

  std::string model_;
  sp::SentencePieceProcessor processor_, within_;
};

// Texts in parts the trainer takes: lines, cut where they are long.
class Sentences final : public sp::SentenceIterator {
 public:
  explicit Sentences(std::span<const std::string_view> texts) : texts_(texts) {
    Next();
  }

  static constexpr size_t kMostBytes = 4000;

  bool done() const override { return done_; }
  const std::string& value() const override { return sentence_; }
  sp::util::Status status() const override { return {}; }

  void Next() override {
    while (rest_.empty()) {
      if (texts_.empty()) {
        done_ = true;
        return;
      }
      rest_ = texts_.front();
      texts_ = texts_.subspan(1);
    }
    const size_t size = sentence_size();
    sentence_ = rest_.substr(0, size);
    rest_.remove_prefix(size);
    if (sentence_.ends_with('\n')) sentence_.pop_back();
    for (size_t at = 0; (at = sentence_.find(kReserved, at)) != sentence_.npos;)
      sentence_.replace(at, kReserved.size(), " ");
  }

 private:
  size_t sentence_size() const {
    const size_t line = rest_.find('\n');
    if (line < kMostBytes) return line + 1;
    if (rest_.size() <= kMostBytes) return rest_.size();
    const size_t space = rest_.rfind(' ', kMostBytes - 1);
    if (space != rest_.npos) return space + 1;
    size_t size = kMostBytes;
    while (size > kMostBytes - 4 && (rest_[size] & 0xc0) == 0x80) --size;
    return size;
  }

  std::span<const std::string_view> texts_;
  std::string_view rest_;
  std::string sentence_;
  bool done_ = false;
};

// The trainer ends the program where texts hold nothing but spaces, in its sense.
bool has_something(std::span<const std::string_view> texts, const Pieces& any) {
  for (Sentences sentences(texts); !sentences.done(); sentences.Next())
    if (any.keeps_some_of(sentences.value())) return true;
  return false;
}

std::string trained(const TokenizerOptions& wanted,
                    std::span<const std::string_view> texts) {
  constexpr int64_t kMostPieces = 1'000'000'000;  // the trainer multiplies it by 1.1
  const int64_t others = 1 + wanted.more_ids;
  std::unordered_map<std::string, std::string> options = {
      {"model_type", "unigram"},
      {"vocab_size", std::to_string(std::min(wanted.vocabulary - others, kMostPieces))},
      {"hard_vocab_limit", "false"},
      {"character_coverage", "0.9995"},
      {"unk_id", "0"},
      {"bos_id", "-1"},
      {"eos_id", "-1"},
      {"pad_id", "-1"},
      {"max_sentence_length", std::to_string(Sentences::kMostBytes)},
      {"num_threads", "1"},  // sums depend on it
      {"minloglevel", "9"},
  };
  if (wanted.exact)
    options.insert({{"normalization_rule_name", "identity"},
                    {"remove_extra_whitespaces", "false"},
                    {"byte_fallback", "true"}});
  be_quiet();
  Sentences sentences(texts);
  std::string model;
  const auto status = sp::SentencePieceTrainer::Train(options, &sentences, &model);
  if (status.ok()) return model;

  // "Vocabulary size is smaller than required_chars. 9 vs 13. .."
  const std::string_view message = status.message();
  const size_t place = message.find(" vs ");
  int64_t needed = 0;
  if (message.find("required_chars. ") != message.npos && place != message.npos)
    std::from_chars(message.data() + place + 4, message.data() + message.size(),
                    needed);
  argument([&] {
    require(needed == 0, "sentencepiece: a vocabulary of ", wanted.vocabulary,
            " ids is too small for the characters of these texts, which need ",
            needed + others);
  });
  fail("sentencepiece: cannot train a model: ", message);
}

std::shared_ptr<const Tokenizer> train(const TokenizerOptions& options,
                                       std::span<const std::string_view> texts) {
  constexpr std::string_view kLetter[] = {"a"};
  require(has_something(texts, Pieces(trained({.vocabulary = 4}, kLetter), "it")),
          "sentencepiece: there is nothing to train on in ", texts.size(), " texts");
  return std::make_shared<Pieces>(trained(options, texts), "what was trained");
}

std::shared_ptr<const Tokenizer> open(const std::string& model,
                                      const std::string& name) {
  return std::make_shared<Pieces>(model, name);
}

}  // namespace
}  // namespace longspan

const longspan::SentencePiece longspan_sentencepiece = {longspan::train,
                                                        longspan::open};
