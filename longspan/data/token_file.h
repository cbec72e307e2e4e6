// Files of tokens, for texts larger than memory: written once, then mapped.
//
//   "longspan tokens\n", 8 bytes: the size of the header, the header (JSON: version,
//   kind of tokens, ids, width, size of the vocabulary), the vocabulary, zeros up to a
//   multiple of 8 bytes; the ids, of 2 or 4 bytes; zeros up to a multiple of 8; then 8
//   bytes each: how many ids, words, bytes, documents and unknown tokens, whether the
//   ids say all of the text, the CRC-32C of the ids, and that of all that is not ids.
//   Numbers are little-endian.

#pragma once

#include <cstdint>
#include <string>

#include "longspan/base/whole_file.h"
#include "longspan/data/text_splits.h"
#include "longspan/data/token_list.h"

namespace longspan {

struct TokenFileFacts {
  std::string kind = "bytes";   // of tokens
  std::string vocabulary = {};  // what restore_text_tokens() needs beside it
  int64_t ids = 0;              // all are less
};

// Appears whole, by commit(), or not at all.
class TokenFileWriter final : public TokenSink {
 public:
  TokenFileWriter(const std::string& path, const TokenFileFacts& facts);

  void add(std::span<const int32_t> ids) override;
  void commit(const TextCounts& counts);

 private:
  void write_frame(std::string_view bytes);

  WholeFile file_;
  int width_;
  int64_t count_ = 0;
  uint32_t ids_checksum_ = 0, frame_checksum_ = 0;
};

struct TokenFile {
  TokenFileFacts facts = {};
  TextCounts counts = {};
  TokenList tokens = {};
};

// Whether a file begins as one does.
bool is_token_file(const std::string& path);

// Checks all but the ids themselves. A file that is not whole is an Error.
TokenFile open_token_file(const std::string& path);

}  // namespace longspan
