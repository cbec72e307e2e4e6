// Running text in the three splits: what to train on, to choose by and to judge by.

#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "longspan/data/text_files.h"
#include "longspan/data/text_tokens.h"
#include "longspan/data/token_list.h"

namespace longspan {

inline constexpr std::array<const char*, 3> kSplits = {"train", "valid", "test"};

struct TextSplitOptions {
  std::string train = {};             // a file or folder; see text_files.h
  std::string valid = {}, test = {};  // empty: a share of train
  double valid_share = 0.1, test_share = 0.1;
  int64_t seed = 1;  // chooses documents; of one long text the shares are its end
  std::string column = "text";
  // What a user calls the shares.
  std::array<const char*, 2> shares_called = {"task.valid_share", "task.test_share"};
};

// What was counted in a split.
struct TextCounts {
  int64_t bytes = 0;
  int64_t words = 0;  // between spaces; the end of a line is one, too
  int64_t documents = 0;
  int64_t unknown = 0;  // tokens that stand for words or pieces that have none
  bool kept = true;     // whether the tokens say all of the text
};

class TextSplits {
 public:
  explicit TextSplits(const TextSplitOptions& options);

  // Calls `take` with every part and the number of its split, those of a split in
  // order. A long text is cut at exactly its shares where `cuts_anywhere`, else at the
  // next space or end of a line.
  void read(bool cuts_anywhere,
            const std::function<void(size_t split, const TextPart&)>& take) const;

  // The training text alone.
  EachText training(bool cuts_anywhere) const;

  // Adds the ids of all text to sinks, `end_of_text` after every document.
  std::array<TextCounts, 3> encode(const TextTokens& tokens, int32_t end_of_text,
                                   const std::array<TokenSink*, 3>& sinks) const;

  // What came from where, in words.
  std::vector<std::string> facts() const;

 private:
  void plan_shares();
  void read_shared(bool cuts_anywhere,
                   const std::function<void(size_t, const TextPart&)>& take) const;

  TextSplitOptions options_;
  TextFiles train_;
  // Of a long text in bytes, or of documents, in `train_`.
  int64_t size_ = 0;
  std::array<int64_t, 2> ends_ = {};  // of the training and the validation text
  std::vector<uint8_t> split_of_;     // of a document
};

// The ids of one text, its end_of_text's included.
TextCounts encode_text(const TextFiles& files, const TextTokens& tokens,
                       int32_t end_of_text, TokenSink& sink);

}  // namespace longspan
