// The SentencePiece library, which may be missing. Not part of the interface.
//
// It brings a protobuf of its own, whose symbols are those of the one LibTorch uses and
// not compatible with it: linked into one program, they crash at its start. So all use
// of SentencePiece is in a module (sentencepiece.cpp), which is loaded on first use and
// sees its own symbols first.

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "longspan/data/tokenizer.h"

namespace longspan {

struct SentencePiece {
  std::shared_ptr<const Tokenizer> (*train)(const TokenizerOptions& options,
                                            std::span<const std::string_view> texts);
  // From the bytes of a model file; `name` is for the message where they are none.
  std::shared_ptr<const Tokenizer> (*open)(const std::string& model,
                                           const std::string& name);
};

const SentencePiece& sentencepiece();  // an Error where there is none

}  // namespace longspan

// What the module is found by.
extern "C" const longspan::SentencePiece longspan_sentencepiece;
