// Running text to ids and back, for models that write. 0 is always padding.

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "longspan/data/tokenizer.h"

namespace longspan {

class TextTokens {
 public:
  virtual ~TextTokens() = default;

  virtual int64_t ids() const = 0;  // how many there are, padding included
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
  virtual std::string describe() const = 0;  // "bytes, 257 ids"
  // Whether a text may be cut anywhere.
  virtual bool cuts_anywhere() const { return false; }
  // The ids of a text of which tokens are missing between its parts.
  virtual std::vector<std::vector<int32_t>> encode_parts(
      std::span<const std::string_view> parts) const;
  // How many of `ids`, those of `text`, stand for words or pieces that have none.
  virtual int64_t unknown(std::string_view text, std::span<const int32_t> ids) const {
    (void)text, (void)ids;
    return 0;
  }
  // Whether `ids` say all of `text`, so that its bytes can be counted against them.
  virtual bool keep(std::string_view text, std::span<const int32_t> ids) const = 0;
  // The id that decode() leaves out; -1: there is none.
  virtual int32_t unwritten() const { return -1; }
  // What restore_text_tokens() needs beside the kind.
  virtual std::string saved() const = 0;
};

// Calls what it is given with the parts of a text in order.
using EachText = std::function<void(const std::function<void(std::string_view)>&)>;

// Bytes: id = byte + 1. Words: what is between spaces, as it is written; 1 is <unk> and
// any unknown word, 2 <eos>, the end of a line, then the commonest words first (the
// conventions of WikiText). Sentencepiece: the pieces of every line, and one id more
// for the end of a line; without options.model one is trained, exact, on the first 64
// MB.
std::shared_ptr<const TextTokens> build_text_tokens(const TokenizerOptions& options,
                                                    const EachText& each_text);

// The tokens whose saved() this is; an Error where they cannot be.
std::shared_ptr<const TextTokens> restore_text_tokens(const std::string& kind,
                                                      const std::string& saved);

}  // namespace longspan
