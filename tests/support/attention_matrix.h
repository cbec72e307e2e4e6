// The weights with which a mechanism mixes values, as a matrix.

#pragma once

#include <algorithm>
#include <span>
#include <string>

#include "tests/support/mechanisms.h"

namespace longspan::testing {

// [4, N, N]: the weights of the heads of one example of queries and keys, x. The values
// are the rows of the identity, so what comes out are the weights.
inline Tensor attention_matrix(const Mechanism& row, const std::string& settings,
                               const Tensors& x, bool causal,
                               const Tensor& real = Tensor()) {
  const int64_t tokens = x[0].size(2);
  const auto attention = make<Attention>(
      row, {.heads = 4, .head_width = 8, .value_width = tokens, .longest = 2 * tokens},
      *Value::parse(settings).as<Value::Map>());
  convert(*attention, torch::kCPU, torch::kDouble);
  const Tensor identity =
      torch::eye(tokens, torch::kDouble).expand({1, 4, tokens, tokens});
  Pass pass = pass_of(causal);
  if (real.defined()) pass.mask.tokens = real.unsqueeze(0);
  const torch::NoGradGuard without_gradients;
  return attention->forward(x[0], x[1], identity, pass)[0];
}

// Of random queries and keys.
inline Tensor attention_matrix(const Mechanism& row, const std::string& settings,
                               int64_t tokens, bool causal,
                               const Tensor& real = Tensor()) {
  return attention_matrix(
      row, settings, random_tensors(2, {1, 4, tokens, 8}, torch::kDouble, /*seed=*/3),
      causal, real);
}

// Of weights [H, N, N] every key that may be seen has one above 0, no other has one,
// and those of a row add up to 1.
inline void expect_full_weights(const Tensor& weights, bool causal,
                                const std::string& what) {
  EXPECT_TRUE(close(weights.sum(2), torch::ones_like(weights.select(2, 0)))) << what;
  Tensor seen = torch::ones_like(weights[0], torch::kBool);
  if (causal) seen = seen.tril();
  EXPECT_TRUE((weights > 0).eq(seen).all().item<bool>()) << what;
  EXPECT_TRUE(weights.masked_select(seen.logical_not().expand_as(weights))
                  .eq(0)
                  .all()
                  .item<bool>())
      << what;
}

inline void expect_full_attention(const Mechanism& row, const std::string& settings,
                                  int64_t tokens, bool causal) {
  const std::string what = std::string(row.name) + " " + settings +
                           ", N = " + std::to_string(tokens) +
                           (causal ? ", causal" : "");
  expect_full_weights(attention_matrix(row, settings, tokens, causal), causal, what);
}

// With these settings the weights are those of dense attention.
inline void expect_dense_weights(const Mechanism& row, const std::string& settings,
                                 int64_t tokens, bool causal) {
  EXPECT_TRUE(close(attention_matrix(row, settings, tokens, causal),
                    attention_matrix(catalogue::dense, "{}", tokens, causal)))
      << row.name << " " << settings << ", N = " << tokens
      << (causal ? ", causal" : "");
}

// The fast form is the definition, in outputs and in gradients of its inputs.
inline void expect_definition(const Mechanism& row, const std::string& settings,
                              int64_t tokens, bool causal,
                              const Tensor& real = Tensor(), int64_t heads = 2) {
  const auto attention = made(row, settings, heads);
  convert(*attention, torch::kCPU, torch::kDouble);
  Tensors x = random_tensors(3, {1, heads, tokens, 8}, torch::kDouble, /*seed=*/4);
  for (Tensor& input : x) input.requires_grad_();
  const auto results = [&](auto form) {
    Pass pass = pass_of(causal);
    if (real.defined()) pass.mask.tokens = real.unsqueeze(0);
    const Tensor out = ((*attention).*form)(x[0], x[1], x[2], pass);
    Tensors all = torch::autograd::grad({(out * x[0].detach()).sum()}, x);
    all.push_back(out);
    return all;
  };
  const Tensors fast = results(&Attention::forward),
                plain = results(&Attention::reference);
  for (size_t i = 0; i < fast.size(); ++i)
    EXPECT_TRUE(close(fast[i], plain[i]))
        << row.name << " " << settings << ", N = " << tokens
        << (causal ? ", causal" : "") << ", result " << i;
}

// With each of the settings, causal or not, with no padding and with much: all of the
// tokens `missing`, and others here and there.
inline void expect_definitions(const Mechanism& row,
                               std::span<const char* const> settings, int64_t tokens,
                               Span missing) {
  Tensor real = torch::arange(tokens).remainder(5) != 3;
  real.slice(0, missing.from, missing.to).fill_(false);
  for (const char* each : settings)
    for (const bool causal : {false, true}) {
      expect_definition(row, each, tokens, causal);
      expect_definition(row, each, tokens, causal, real);
    }
}

// A prefill, then steps of so many tokens, give what the whole sequence does; the first
// token of the second example is padding. The state stays as small as promised.
inline void expect_decoding(const Mechanism& row, const std::string& settings,
                            int64_t tokens, int64_t prefill, int64_t step) {
  const Value::Map given = *Value::parse(settings).as<Value::Map>();
  const Sizes sizes = Sizes{.heads = 4, .key_heads = 2, .head_width = 8}.completed();
  const auto attention = make<Attention>(row, sizes, given);
  convert(*attention, torch::kCPU, torch::kDouble);
  const Tensor q = random_tensors(1, {2, 4, tokens, 8}, torch::kDouble, 5)[0];
  const auto kv = random_tensors(2, {2, 2, tokens, 8}, torch::kDouble, 6);
  Tensor real = torch::ones({2, tokens}, torch::kBool);
  real[1][0] = false;
  const torch::NoGradGuard without_gradients;
  const auto fed = [&](int64_t from, int64_t to, Record* state) {
    Pass pass = pass_of(true);
    pass.mask.tokens = real.slice(1, from, to);
    pass.state = state;
    return attention->forward(q.slice(2, from, to), kv[0].slice(2, from, to),
                              kv[1].slice(2, from, to), pass);
  };
  Record state;
  Tensors outs;
  if (prefill > 0) outs.push_back(fed(0, prefill, &state));
  for (int64_t at = prefill; at < tokens; at += step)
    outs.push_back(fed(at, std::min(at + step, tokens), &state));
  EXPECT_TRUE(close(torch::cat(outs, 2), fed(0, tokens, nullptr)))
      << row.name << " " << settings << ", prefill " << prefill << ", steps of "
      << step;
  EXPECT_LE(state.numel(),
            2 * row.state_size(Settings::complete(row.name, row.settings, given), sizes,
                               tokens));
}

// 45 tokens of a mechanism whose blocks or rows are 6: steps inside a block, over some,
// from a block's end and from within one.
inline void expect_decoding_of_blocks(const Mechanism& row,
                                      std::span<const char* const> settings) {
  for (const char* each : settings) {
    expect_decoding(row, each, 45, 0, 1);
    expect_decoding(row, each, 45, 23, 1);
    expect_decoding(row, each, 45, 4, 7);
    expect_decoding(row, each, 45, 12, 33);
  }
}

// Whether `block` [rows, columns] is one column times one row, but for rounding.
inline bool has_rank_one(const Tensor& block) {
  const Tensor sizes = std::get<1>(torch::svd(block));
  return sizes.size(0) == 1 ||
         sizes.slice(0, 1).max().item<double>() < 1e-12 * sizes[0].item<double>();
}

}  // namespace longspan::testing
