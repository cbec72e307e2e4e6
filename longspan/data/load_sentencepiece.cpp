#include <dlfcn.h>

#include "longspan/base/error.h"
#include "longspan/data/sentencepiece.h"

namespace longspan {
namespace {

const SentencePiece* load() {
  void* const module =
      dlopen("liblongspan_sentencepiece.so", RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  if (!module) fail("cannot load SentencePiece: ", dlerror());
  const void* const found = dlsym(module, "longspan_sentencepiece");
  if (!found) fail("cannot load SentencePiece: ", dlerror());
  return static_cast<const SentencePiece*>(found);
}

}  // namespace

const SentencePiece& sentencepiece() {
  static const SentencePiece* const loaded = load();
  return *loaded;
}

}  // namespace longspan
