// Text to ids. 0 is always padding.

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace longspan {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual int64_t ids() const = 0;  // how many there are, padding included
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  // Of a text that goes on within a line.
  virtual std::vector<int32_t> encode_within(std::string_view text) const {
    return encode(text);
  }
  // Text that has these ids, as far as they tell; without unknown and other ids.
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
  // The id of what has none of its own; -1: there is none.
  virtual int32_t unknown() const { return -1; }
  virtual std::string describe() const = 0;  // "bytes, 257 ids"

  // What restore_tokenizer() needs beside the kind.
  virtual std::string saved() const = 0;
};

struct TokenizerOptions {
  std::string kind = "bytes";  // bytes, words or sentencepiece
  int64_t vocabulary = 30000;  // of words and sentencepiece: at most so many ids,
                               // padding and unknown included; 3 or more
  int64_t least_count = 1;     // of words: rarer ones are unknown
  bool lower_case = true;      // of words, ASCII letters only
  std::string model = {};      // of sentencepiece: a model file, whose vocabulary
                               // is taken whole; empty: train one
  // Of sentencepiece that is trained:
  int64_t more_ids = 0;  // so many of `vocabulary` the caller adds
  bool exact = false;    // spaces and signs are kept as they are, those without a piece
                         // byte by byte, which takes 256 ids
};

// Bytes: id = byte + 1. Words: maximal runs of letters, digits and non-ASCII bytes, and
// every other character that is not a space by itself; 1 is any unknown word, then the
// commonest words first, equally common ones in the order of their bytes.
// Sentencepiece: the pieces of a model, ids moved up by one to leave 0 free; without a
// model file one is trained on `texts` (the same for the same texts), in which 1 is
// anything unknown. A build without SentencePiece refuses it.
std::shared_ptr<const Tokenizer> build_tokenizer(
    const TokenizerOptions& options, std::span<const std::string_view> texts);

// The tokenizer whose saved() this is; an Error where it cannot be.
std::shared_ptr<const Tokenizer> restore_tokenizer(const std::string& kind,
                                                   const std::string& saved);

}  // namespace longspan
