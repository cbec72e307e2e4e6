#include "longspan/base/error.h"
#include "longspan/data/sentencepiece.h"

namespace longspan {

const SentencePiece& sentencepiece() {
  throw UsageError(
      "this build has no SentencePiece; take the tokenizer bytes or words, or build "
      "with SentencePiece and the system's LibTorch");
}

}  // namespace longspan
