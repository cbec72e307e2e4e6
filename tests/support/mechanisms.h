// What the tests of mechanisms share.

#pragma once

#include <memory>
#include <string>

#include "longspan/attention/mechanism.h"
#include "tests/support/tensors.h"

namespace longspan::testing {

// With settings as YAML, for heads of 8.
inline std::shared_ptr<Attention> made(const Mechanism& row,
                                       const std::string& settings = "{}",
                                       int64_t heads = 4) {
  return make<Attention>(row, {.heads = heads, .head_width = 8},
                         *Value::parse(settings).as<Value::Map>());
}

inline Pass pass_of(bool causal) {
  Pass pass;
  pass.mask.causal = causal;
  return pass;
}

// With these settings a mechanism is dense attention, bit for bit, in the forms it has.
inline void expect_dense_bits(const Mechanism& row, const std::string& settings) {
  const auto x = random_tensors(3, {2, 4, 150, 8}, torch::kFloat);
  for (const bool causal : {false, true}) {
    if (causal && row.can.causal == Causal::never) continue;
    Pass one = pass_of(causal), other = pass_of(causal);
    EXPECT_TRUE(made(row, settings)
                    ->forward(x[0], x[1], x[2], one)
                    .equal(made(catalogue::dense)->forward(x[0], x[1], x[2], other)))
        << row.name << (causal ? ", causal" : "");
  }
}

}  // namespace longspan::testing
