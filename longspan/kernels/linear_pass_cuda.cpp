#include "longspan/kernels/linear_pass_cuda.h"

#include <algorithm>
#include <cstdint>

#include "longspan/kernels/cuda/launch.h"
#include "longspan/kernels/cuda/linear_attention.h"
#include "longspan/kernels/cuda/tensors.h"
#include "longspan/kernels/rows.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr char kName[] = "linear attention";
constexpr int64_t kPiece = 8;  // numbers in 16 bytes
constexpr int64_t kWidest = 128;

// One call of the kernels; see cuda::LinearPass.
struct Pass {
  int64_t heads = 0;
  Tensor q = {}, k = {}, v = {};  // [B, heads or fewer, tokens, width]
  bool causal = false;
  bool backwards = false;  // causally from the last token to the first
  bool divides = false;
  LinearAttention options = {};
  bool has_pair = false;
  Tensor a = {}, b = {};  // [B, heads, tokens] float, undefined for 1
  Tensor first = {};      // [B * heads, state], undefined for 0
  bool wants_state = false;
};

struct Passed {
  Tensor out;       // [B, heads, queries, values]
  Tensor lse, den;  // [B, heads, queries], if it divides
  Tensor state;     // [B * heads, state], if it was wanted
};

template <class Number>
cuda::Rows<Number> rows_of(const Tensor& x, const Pass& pass) {
  if (!x.defined()) return {};
  const int64_t last = pass.backwards ? (x.size(2) - 1) * x.stride(2) : 0;
  void* const data = static_cast<char*>(x.data_ptr()) + last * x.element_size();
  return {.data = static_cast<Number*>(data),
          .example = x.stride(0),
          .head = x.stride(1),
          .row = pass.backwards ? -x.stride(2) : x.stride(2),
          .group = static_cast<int32_t>(pass.heads / x.size(1))};
}

// Long, for a state costs as much as its tokens; shorter where heads are few, so that
// the segments of all are as many as a card works on at once (three on each of its
// multiprocessors), and not some more.
int64_t segment_of(int64_t tokens, int64_t heads) {
  constexpr int64_t kLongest = 2048, kShortest = 256, kChunk = 64, kAtOnce = 384;
  if (heads * parts_of(tokens, kLongest) >= kAtOnce) return kLongest;
  const int64_t segments = std::max<int64_t>(kAtOnce / heads, 1);
  const int64_t each = parts_of(parts_of(tokens, segments), kChunk) * kChunk;
  return std::clamp(each, kShortest, kLongest);
}

Passed run(const Pass& pass) {
  const int64_t examples = pass.q.size(0), all = examples * pass.heads,
                queries = pass.q.size(2), keys = pass.k.size(2),
                features = pass.q.size(3), values = pass.v.size(3);
  const int64_t size = features * values + (pass.divides ? features : values);
  const int64_t segment = segment_of(std::max(queries, keys), all);
  const int64_t segments = parts_of(keys, segment);
  const auto floats = pass.q.options().dtype(torch::kFloat);
  const bool has_sums = !pass.causal || segments > 1;
  Passed passed{
      .out = torch::empty({examples, pass.heads, queries, values}, pass.q.options()),
      .lse = {},
      .den = {},
      .state = {}};
  if (pass.divides) {
    passed.lse = torch::empty({examples, pass.heads, queries}, floats);
    passed.den = torch::empty_like(passed.lse);
  }
  if (pass.wants_state || !pass.causal)
    passed.state = torch::empty({all, size}, floats);
  Tensor states;
  if (has_sums)
    states = torch::empty({all, segments, size}, floats);
  else
    states = pass.first.defined() ? pass.first : torch::zeros({all, size}, floats);

  const Tensor q = cuda::aligned(pass.q), k = cuda::aligned(pass.k),
               v = cuda::aligned(pass.v);
  const cuda::LinearPass task{
      .examples = examples,
      .heads = pass.heads,
      .queries = queries,
      .keys = keys,
      .features = static_cast<int32_t>(features),
      .values = static_cast<int32_t>(values),
      .causal = pass.causal,
      .divides = pass.divides,
      .divisor = static_cast<cuda::LinearDivisor>(pass.options.normaliser),
      .epsilon = pass.options.epsilon,
      .q = rows_of<const void>(q, pass),
      .k = rows_of<const void>(k, pass),
      .v = rows_of<const void>(v, pass),
      .has_pair = pass.has_pair,
      .a = rows_of<const float>(pass.a, pass),
      .b = rows_of<const float>(pass.b, pass),
      .segment = segment,
      .states = states.data_ptr<float>(),
      .last = pointer<float>(passed.state),
      .out = rows_of<void>(passed.out, pass),
      .lse = pointer<float>(passed.lse),
      .den = pointer<float>(passed.den)};
  const cuda::LinearScan scan{.heads = all,
                              .chunks = segments,
                              .features = 1,
                              .columns = size,
                              .sums = states.data_ptr(),
                              .first = pointer<float>(pass.first),
                              .last = pass.causal ? nullptr : task.last};
  cuda::launch(q.device(), kName, [&](cuda::Stream stream) {
    if (has_sums) {
      if (const int error = cuda::linear_sums(task, stream)) return error;
      if (const int error = cuda::linear_scan(scan, stream)) return error;
    }
    return cuda::linear_rows(task, stream);
  });
  return passed;
}

// A state of the kernels from [B, H, m, dv + 1], and the contrary.
struct Halves {
  Tensor of_values;  // [B * H, m, dv]
  Tensor of_ones;    // [B * H, m]
};

Halves halves_of(const Tensor& sums) {
  const int64_t values = sums.size(3) - 1;
  const Tensor all = sums.flatten(0, 1);
  return {all.slice(2, 0, values), all.select(2, values)};
}

Tensor flat(const Tensor& products, const Tensor& sums) {
  return torch::cat({products.reshape({products.size(0), -1}), sums}, 1);
}

Tensor together(const Halves& halves, const LinearInputs& inputs) {
  const auto& q = inputs.q;
  return torch::cat({halves.of_values, halves.of_ones.unsqueeze(2)}, 2)
      .view({q.size(0), q.size(1), q.size(3), inputs.v.size(3) + 1});
}

// [B, H, M, width] as `like`, whose heads are shared.
Tensor summed_heads(const Tensor& x, const Tensor& like) {
  if (x.size(1) == like.size(1)) return x;
  return x.view({x.size(0), like.size(1), -1, x.size(2), x.size(3)})
      .sum(2, /*keepdim=*/false, torch::kFloat)
      .to(like.scalar_type());
}

}  // namespace

bool suits_tensor_cores(const LinearInputs& inputs, const LinearAttention& options) {
  const auto& [q, k, v, log_decay, weights, state] = inputs;
  if (options.log_features || log_decay.defined() || weights.defined()) return false;
  for (const Tensor* x : {&q, &k, &v})
    if (x->scalar_type() != torch::kBFloat16 || x->numel() == 0 ||
        x->size(3) % kPiece != 0 || x->size(3) > kWidest)
      return false;
  // Gradients go through the same kernels with features and values exchanged.
  const auto features = static_cast<int>(q.size(3)),
             values = static_cast<int>(v.size(3));
  return cuda::linear_pass_fits(q.device().index(), features, values) &&
         cuda::linear_pass_fits(q.device().index(), values, features);
}

LinearForward linear_attention_pass(const LinearInputs& inputs,
                                    const LinearAttention& options,
                                    bool differentiable) {
  const auto& [q, k, v, log_decay, weights, state] = inputs;
  Pass pass{.heads = q.size(1),
            .q = q,
            .k = k,
            .v = v,
            .causal = options.causal,
            .divides = true,
            .options = options,
            .wants_state = true};
  if (state.sums.defined()) {
    const auto [of_values, of_ones] = halves_of(state.sums);
    pass.first = flat(of_values, of_ones);
  }
  const Passed passed = run(pass);
  const int64_t products = q.size(3) * v.size(3);
  const Halves last{passed.state.slice(1, 0, products).view({-1, q.size(3), v.size(3)}),
                    passed.state.slice(1, products)};
  LinearForward result;
  result.attended = {.out = passed.out,
                     .lse = passed.lse,
                     .state = {.sums = together(last, inputs), .max = {}}};
  if (differentiable) {
    result.kept.out = passed.out;
    result.kept.den = passed.den;
  }
  return result;
}

LinearInputSlopes linear_attention_pass_gradient(const LinearInputs& inputs,
                                                 const LinearAttention& options,
                                                 const LinearKept& kept,
                                                 const LinearResultSlopes& slopes,
                                                 const LinearWanted& wanted) {
  const auto& [q, k, v, log_decay, weights, state] = inputs;
  const int64_t heads = q.size(1), values = v.size(3), products = q.size(3) * values;
  const Tensor out_slope =
      slopes.out.defined() ? cuda::aligned(slopes.out.to(torch::kBFloat16).contiguous())
                           : torch::zeros_like(kept.out);
  const Tensor lse_slope =
      slopes.lse.defined() ? slopes.lse.to(torch::kFloat).contiguous() : Tensor();
  const Tensor num_slope = torch::empty_like(out_slope);
  const Tensor den_slope = torch::empty_like(kept.den);
  cuda::launch(q.device(), kName, [&](cuda::Stream stream) {
    return cuda::linear_slope_rows(
        {.rows = kept.den.numel(),
         .values = static_cast<int32_t>(values),
         .divisor = static_cast<cuda::LinearDivisor>(options.normaliser),
         .epsilon = options.epsilon,
         .out = kept.out.data_ptr(),
         .out_slope = out_slope.data_ptr(),
         .den = kept.den.data_ptr<float>(),
         .lse_slope = pointer<float>(lse_slope),
         .num_slope = num_slope.data_ptr(),
         .den_slope = den_slope.data_ptr<float>()},
        stream);
  });

  LinearInputSlopes result;
  if (wanted.q) {
    Pass pass{.heads = heads,
              .q = num_slope,
              .k = v,
              .v = k,
              .causal = options.causal,
              .has_pair = true,
              .a = den_slope};
    if (state.sums.defined()) {
      const auto [of_values, of_ones] = halves_of(state.sums);
      pass.first = flat(of_values.transpose(1, 2), of_ones);
    }
    result.q = run(pass).out;
  }
  Halves last;  // slopes of the state after the last key
  if (slopes.sums.defined()) last = halves_of(slopes.sums.to(torch::kFloat));
  Halves before;  // of the state before the first
  if (wanted.k || wanted.sums) {
    Pass pass{.heads = heads,
              .q = v,
              .k = num_slope,
              .v = q,
              .causal = options.causal,
              .backwards = options.causal,
              .has_pair = true,
              .b = den_slope,
              .wants_state = wanted.sums};
    if (last.of_ones.defined())
      pass.first = flat(last.of_values.transpose(1, 2), last.of_ones);
    const Passed passed = run(pass);
    if (wanted.k) result.k = summed_heads(passed.out, k);
    if (wanted.sums)
      before = {passed.state.slice(1, 0, products)
                    .view({-1, values, q.size(3)})
                    .transpose(1, 2),
                passed.state.slice(1, products)};
  }
  if (wanted.sums) result.sums = together(before, inputs);
  if (wanted.v) {
    Pass pass{.heads = heads,
              .q = k,
              .k = q,
              .v = num_slope,
              .causal = options.causal,
              .backwards = options.causal};
    if (last.of_ones.defined())
      pass.first = flat(last.of_values, torch::zeros_like(last.of_values.select(1, 0)));
    result.v = summed_heads(run(pass).out, v);
  }
  return result;
}

}  // namespace longspan
