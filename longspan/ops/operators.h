// The operators there are.

#pragma once

#include "longspan/ops/operator.h"

namespace longspan::ops {

Operator block_attention_operator();
Operator row_weights_operator();
Operator column_mass_operator();
Operator linear_attention_operator();
Operator merge_operator();
Operator pool_spans_operator();
Operator pool_prefixes_operator();

}  // namespace longspan::ops
