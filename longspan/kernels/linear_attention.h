// Linear attention: sums of features of keys times values, once over all keys or as a
// causal scan. With features f, weights u and decays g,
//   S_t = g_t S_{t-1} + u_t f(k_t) [v_t, 1]^T,   [num, den]_t = f(q_t)^T S_t   (causal)
//   S = S_0 + sum_j u_j f(k_j) [v_j, 1]^T,       [num, den]_i = f(q_i)^T S     (else)
// and out = num / den by one of the normalisers.

#pragma once

#include <torch/types.h>

namespace longspan {

enum class Normaliser {
  none,         // out = num
  plus,         // num / (den + epsilon): Katharopoulos et al. 2020
  at_least,     // num / max(den, epsilon): random features, whose sum may be negative
  if_positive,  // num / den, 0 where den <= 1e-30: exact whatever the scale of the
                // features
};

// The sums so far, always float (double for double inputs). Where features are given by
// their logs, the sums are times exp(-max), so that nothing overflows.
struct LinearState {
  torch::Tensor sums = {};  // [B, H, m, dv + 1]
  // [B, H]: of the log features less the decays after them; undefined for plain
  // features.
  torch::Tensor max = {};
};

struct LinearInputs {
  torch::Tensor q = {};  // [B, H, N, m] features of queries, or their logs
  torch::Tensor k = {};  // [B, Hk, M, m] features of keys, or their logs
  torch::Tensor v = {};  // [B, Hk, M, dv]
  // [B|1, H|1, M]: log of the decay, finite and <= 0. Causal only.
  torch::Tensor log_decay = {};
  // [B|1, H|1, M]: of the keys. A key of weight 0 is not there: padding.
  torch::Tensor weights = {};
  LinearState state = {};  // undefined: nothing came before
};

// The type of the sums and of lse: double where q, k or v is, else float.
torch::Dtype sums_dtype(const LinearInputs& inputs);

struct LinearAttention {
  bool causal = false;  // needs N = M
  bool log_features = false;
  Normaliser normaliser = Normaliser::if_positive;
  double epsilon = 1e-6;
};

struct LinearAttended {
  torch::Tensor out = {};  // [B, H, N, dv]
  // [B, H, N]: log of den, so that results merge with those of softmax attention; minus
  // infinity where den <= 0.
  torch::Tensor lse = {};
  LinearState state = {};  // after the last key
};

// Differentiable in q, k, v, log_decay, weights and the sums of the initial state,
// once; out, lse and the sums of the final state have gradients.
//
// On the CPU and, in builds for it, on CUDA time is linear in N and M, memory that of
// the inputs and outputs and a state for every 256 tokens, on CUDA 64. bfloat16 and
// half are computed in float, and all results are the same bits every time, whatever
// the number of threads. Log features may be of any size: no term that counts in a row
// is lost beside others that are huge. On CUDA bfloat16 features without decays and
// weights, of widths that are multiples of 8 up to 128, go through tensor cores: sums
// stay float, products of queries and keys are rounded to bfloat16. Other floats are
// multiplied by LibTorch there, in TF32 where it is told so. On other devices it is the
// reference.
LinearAttended linear_attention(const LinearInputs& inputs,
                                const LinearAttention& options = {});

// The same in plain tensor operations, pair by pair, in O(N*M*m) memory: what the fused
// path must equal.
LinearAttended linear_attention_reference(const LinearInputs& inputs,
                                          const LinearAttention& options = {});

}  // namespace longspan
