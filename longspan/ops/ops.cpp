// torch.ops.longspan: a module of its own, because a linker would drop the registration
// from a static library.

#include "longspan/ops/operators.h"

TORCH_LIBRARY(longspan, library) {
  using namespace longspan::ops;
  define(library, block_attention_operator());
  define(library, row_weights_operator());
  define(library, column_mass_operator());
  define(library, linear_attention_operator());
  define(library, merge_operator());
  define(library, pool_spans_operator());
  define(library, pool_prefixes_operator());
}
