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

// Tokens of low precision give, causally, nearly what they give in float, and sums over
// them are float. What is kept of them.
inline Record expect_near_float(Attention& attention, const Tensors& x) {
  Record state;
  Pass low = pass_of(/*causal=*/true), high = pass_of(/*causal=*/true);
  low.state = &state;
  const Tensor out = attention.forward(x[0], x[1], x[2], low);
  EXPECT_EQ(out.scalar_type(), x[0].scalar_type());
  EXPECT_EQ(state.get("sums").scalar_type(), torch::kFloat);
  const auto wide = [](const Tensor& y) { return y.to(torch::kFloat); };
  const Tensor exact = attention.forward(wide(x[0]), wide(x[1]), wide(x[2]), high);
  EXPECT_TRUE(close(out, exact, 4e-3)) << x[0].scalar_type();
  return state;
}

}  // namespace longspan::testing
