// Matrix products over chunks of tokens, each chunk from the state before it, and a few
// kernels for what is not a matrix product.

#include "longspan/kernels/linear_attention_cuda.h"

#include <cstdint>
#include <limits>
#include <utility>

#include "longspan/kernels/cuda/launch.h"
#include "longspan/kernels/cuda/linear_attention.h"
#include "longspan/kernels/linear_pass_cuda.h"
#include "longspan/kernels/rows.h"
#include "longspan/kernels/total.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr char kName[] = "linear attention";
constexpr int64_t kChunk = cuda::kLinearChunk;
constexpr double kNever = -std::numeric_limits<double>::infinity();
constexpr double kLeast = 1e-30;  // a sum to divide by, and a weight

// In what follows A is B * H, all heads, and n the number of chunks of queries or keys.

Tensor finite_or_0(const Tensor& x) { return x.masked_fill(x == kNever, 0); }

// [A, tokens, width] as [A, n, kChunk, width], with `rest` after the last token.
Tensor in_chunks(Tensor x, double rest) {
  const int64_t tokens = x.size(1), chunks = parts_of(tokens, kChunk);
  if (chunks * kChunk != tokens)
    x = torch::constant_pad_nd(x, {0, 0, 0, chunks * kChunk - tokens}, rest);
  return x.contiguous().view({x.size(0), chunks, kChunk, x.size(2)});
}

// The contrary: [A, tokens, width].
Tensor in_rows(const Tensor& x, int64_t tokens) {
  return x.flatten(1, 2).slice(1, 0, tokens);
}

// A state for every chunk, or one for all; or slopes of states.
struct Sums {
  Tensor sums;   // [A, n|1, m, dv + 1], of log features times exp(-peaks)
  Tensor peaks;  // [A, n|1, m]: whole numbers; undefined for plain features
};

Tensor product(const Tensor& x, const Tensor& sums) {
  if (sums.size(1) == x.size(1)) return torch::matmul(x, sums);
  return torch::matmul(x.flatten(1, 2), sums.select(1, 0))
      .view({x.size(0), x.size(1), x.size(2), sums.size(3)});
}

// What the features of tokens are multiplied by beside their own: exp(whole + left).
struct Factors {
  Tensor whole = {};  // [A, n, kChunk, 1]: whole numbers, of log features only
  Tensor left = {};   // [A, n, kChunk, 1] double: sums of decays
};

// Features of rows, or logs [A, n, kChunk, m], times the factors, and for log features
// times exp(peaks).
Tensor features_of(const Tensor& rows, const Factors& factors, const Tensor& peaks) {
  const auto& [whole, left] = factors;
  if (!peaks.defined())
    return left.defined() ? rows * left.exp().to(rows.scalar_type()) : rows;
  const Tensor whole_peaks = peaks.unsqueeze(2);
  Tensor logs = rows + (whole.defined() ? whole_peaks + whole : whole_peaks);
  if (left.defined()) logs = logs + left.to(rows.scalar_type());
  return logs.exp();
}

// The sums of rows^T columns, with the factors, over each chunk. `rest`: other factors
// of the columns, or undefined.
Sums sums_of(const Tensor& rows, const Factors& factors, const Tensor& columns,
             const Tensor& rest, bool log_features) {
  Sums result;
  Tensor below;
  if (log_features) {
    Tensor logs = rows;
    if (factors.whole.defined()) logs = logs + factors.whole;
    if (factors.left.defined()) logs = logs + factors.left.to(rows.scalar_type());
    result.peaks = logs.amax(2).round();
    below = -finite_or_0(result.peaks);
  }
  result.sums = torch::matmul(features_of(rows, factors, below).transpose(2, 3),
                              rest.defined() ? columns * rest : columns);
  return result;
}

// States [A, m, dv + 1] that are times exp(scale), scale [A] double need not be whole.
Sums load(const Tensor& sums, const Tensor& scale, bool log_features) {
  const Tensor dense = sums.flatten(0, 1).contiguous();
  if (!log_features) return {dense, {}};
  const Tensor size = dense.abs().amax(2).to(torch::kDouble);
  const Tensor peaks = (size.log() + scale.unsqueeze(1)).round();
  const Tensor factor = (scale.unsqueeze(1) - peaks).exp();
  return {(dense * factor.masked_fill(peaks == kNever, 0).unsqueeze(2))
              .to(sums.scalar_type()),
          peaks.to(sums.scalar_type())};
}

// The contrary: states times exp(-scale).
Tensor store(const Sums& state, const Tensor& scale, at::IntArrayRef shape) {
  if (!state.peaks.defined()) return state.sums.view(shape);
  // Only sums of 0 can need the limit: 0 times infinity is not 0.
  const double limit = state.sums.scalar_type() == torch::kDouble ? 709 : 88;
  const Tensor factor =
      (state.peaks.to(torch::kDouble) - scale.unsqueeze(1)).clamp_max(limit).exp();
  return (state.sums * factor.unsqueeze(2)).to(state.sums.scalar_type()).view(shape);
}

struct Scanned {
  Sums before;  // each chunk
  Sums last;    // [A, m, dv + 1]
};

Scanned scanned(const Sums& added, const Tensor& log_decay, const Sums& first,
                bool backwards) {
  const auto& sums = added.sums;
  const int64_t heads = sums.size(0), chunks = sums.size(1), features = sums.size(2),
                columns = sums.size(3);
  Scanned result;
  result.before.sums = sums.contiguous();
  result.last.sums = torch::empty({heads, features, columns}, sums.options());
  const bool has_peaks = added.peaks.defined();
  Tensor peaks;
  if (has_peaks) {
    peaks = added.peaks.contiguous();
    result.before.peaks = torch::empty_like(peaks);
    result.last.peaks = torch::empty({heads, features}, sums.options());
  }
  cuda::launch(sums.device(), kName, [&](cuda::Stream stream) {
    return cuda::linear_scan({.type = cuda::cuda_type(sums),
                              .backwards = backwards,
                              .heads = heads,
                              .chunks = chunks,
                              .features = features,
                              .columns = columns,
                              .sums = result.before.sums.data_ptr(),
                              .has_peaks = has_peaks,
                              .peaks = cuda::data_of(peaks),
                              .peaks_before = cuda::data_of(result.before.peaks),
                              .log_decay = pointer<double>(log_decay),
                              .first = cuda::data_of(first.sums),
                              .first_peaks = cuda::data_of(first.peaks),
                              .last = result.last.sums.data_ptr(),
                              .last_peaks = cuda::data_of(result.last.peaks)},
                             stream);
  });
  return result;
}

Tensor running_sums(const Tensor& x) {
  const Tensor sums =
      x.to(torch::kDouble, /*non_blocking=*/false, /*copy=*/true).contiguous();
  cuda::launch(x.device(), kName, [&](cuda::Stream stream) {
    const int64_t length = sums.size(-1);
    return cuda::running_sums(sums.data_ptr<double>(),
                              length == 0 ? 0 : sums.numel() / length, length, stream);
  });
  return sums;
}

// The inputs, of one type, in chunks and for every head of q.
struct Tokens {
  int64_t examples, heads, queries, keys, values;
  bool causal, log_features;
  torch::Dtype dtype;
  Tensor q;         // [A, n, kChunk, m]
  Tensor k;         // [A, n, kChunk, m], without those of weight 0
  Tensor weighted;  // k times the weights; of log features k itself
  Tensor v1;        // [A, n, kChunk, dv + 1]: values and a 1; 0 for keys of weight 0
  // [A, n, kChunk, 1] or undefined for 1; of log features exp(whole) * rest.
  Tensor weights, whole, rest;
  // [A, n, kChunk, 1] double: logs of the decays from the start of a chunk to a token,
  // and from a token to the end; undefined for 0.
  Tensor until, after;
  Tensor log_decay;  // [A, n] double: of a chunk

  Tokens(const LinearInputs& inputs, const LinearAttention& options)
      : examples(inputs.q.size(0)),
        heads(inputs.q.size(1)),
        queries(inputs.q.size(2)),
        keys(inputs.k.size(2)),
        values(inputs.v.size(3)),
        causal(options.causal),
        log_features(options.log_features),
        dtype(sums_dtype(inputs)) {
    const double nothing = log_features ? kNever : 0;
    q = in_chunks(of_all_heads(inputs.q), nothing);
    k = in_chunks(of_all_heads(inputs.k), nothing);
    const Tensor v = of_all_heads(inputs.v);
    v1 = in_chunks(torch::cat({v, v.new_ones({v.size(0), keys, 1})}, 2), 0);
    if (inputs.weights.defined()) {
      weights = in_chunks(per_key(inputs.weights.to(dtype)), 0);
      const Tensor is_nothing = weights == 0;
      k = k.masked_fill(is_nothing, nothing);
      v1 = v1.masked_fill(is_nothing, 0);
    }
    weighted = weights.defined() && !log_features ? k * weights : k;
    if (weights.defined() && log_features) {
      whole = weights.abs().clamp_min(kLeast).log().round();
      whole = whole.masked_fill(weights == 0, 0);
      rest = (weights.to(torch::kDouble) * (-whole.to(torch::kDouble)).exp()).to(dtype);
    }
    if (inputs.log_decay.defined()) {
      const Tensor steps = in_chunks(per_key(inputs.log_decay.to(torch::kDouble)), 0);
      until = running_sums(steps.squeeze(3)).unsqueeze(3);
      const Tensor total = until.slice(2, kChunk - 1);
      after = total - until;
      log_decay = total.flatten(1).contiguous();
    }
  }

  // [B, H, tokens, width] from [A, n, kChunk, width].
  Tensor of_heads(const Tensor& x, int64_t tokens) const {
    return in_rows(x, tokens).view({examples, heads, tokens, x.size(3)});
  }

 private:
  Tensor of_all_heads(const Tensor& x) const {
    const int64_t group = heads / x.size(1);
    const Tensor y = x.to(dtype);
    if (group == 1) return y.flatten(0, 1);
    return y.unsqueeze(2)
        .expand({examples, x.size(1), group, x.size(2), x.size(3)})
        .flatten(0, 2);
  }

  Tensor per_key(const Tensor& x) const {
    return x.expand({examples, heads, keys}).flatten(0, 1).unsqueeze(2);
  }
};

struct States {
  Sums used;  // by the queries: before each chunk, or after all keys
  Sums last;  // after all keys
};

// [A] double.
Tensor scale_of(const Tensor& max) { return max.flatten().to(torch::kDouble); }

States states_of(const Tokens& tokens, const LinearState& given) {
  const Sums added = sums_of(tokens.weighted, {tokens.whole, tokens.after}, tokens.v1,
                             tokens.rest, tokens.log_features);
  Sums first;
  if (given.sums.defined())
    first =
        load(given.sums.to(tokens.dtype),
             given.max.defined() ? scale_of(given.max) : Tensor(), tokens.log_features);
  auto [before, last] = scanned(added, tokens.log_decay, first, /*backwards=*/false);
  if (tokens.causal) return {before, last};
  const auto one = [](const Tensor& x) { return x.defined() ? x.unsqueeze(1) : x; };
  return {{one(last.sums), one(last.peaks)}, last};
}

// [A, n, kChunk, kChunk]: products of queries and keys of a chunk, with what is left of
// the keys.
Tensor faded(const Tensor& pairs, const Tokens& tokens) {
  cuda::launch(pairs.device(), kName, [&](cuda::Stream stream) {
    return cuda::fade_pairs({.type = cuda::cuda_type(pairs),
                             .chunks = pairs.size(0) * pairs.size(1),
                             .pairs = pairs.data_ptr(),
                             .until = pointer<double>(tokens.until)},
                            stream);
  });
  return pairs;
}

cuda::LinearLogPairs log_pairs_of(const Tokens& tokens, const Tensor& scale) {
  return {.type = cuda::cuda_type(tokens.q),
          .chunks = tokens.q.size(0) * tokens.q.size(1),
          .features = tokens.q.size(3),
          .q = tokens.q.data_ptr(),
          .k = tokens.k.data_ptr(),
          .until = pointer<double>(tokens.until),
          .weights = cuda::data_of(tokens.weights),
          .log_weights = cuda::data_of(tokens.whole),
          .scale = scale.data_ptr()};
}

// `largest`: the log of the largest term of a row beside the pairs, [A, n, kChunk]; it
// becomes the scale of the row. Undefined: `scale` is given.
Tensor log_pairs(const Tokens& tokens, const Tensor& largest, const Tensor& scale) {
  const Tensor pairs = torch::empty(
      {tokens.q.size(0), tokens.q.size(1), kChunk, kChunk}, tokens.q.options());
  cuda::LinearLogPairs task = log_pairs_of(tokens, scale);
  if (largest.defined()) task.largest = largest.data_ptr();
  task.pairs = pairs.data_ptr();
  cuda::launch(pairs.device(), kName,
               [&](cuda::Stream stream) { return cuda::log_pairs(task, stream); });
  return pairs;
}

// x exp(sign * scale); of plain features, which have no scale, x.
Tensor scaled(double x, int sign, const Tensor& den, const Tensor& scale) {
  if (!scale.defined()) return torch::full_like(den, x);
  return (scale.to(torch::kDouble) * sign).exp().mul(x).to(den.scalar_type());
}

// What num is multiplied by; num and den are times exp(-scale).
Tensor factor_of(const LinearAttention& options, const Tensor& den,
                 const Tensor& scale) {
  switch (options.normaliser) {
    case Normaliser::none: return scaled(1, 1, den, scale);
    case Normaliser::plus:
      return (den + scaled(options.epsilon, -1, den, scale)).reciprocal();
    case Normaliser::at_least: {
      const Tensor least = scaled(options.epsilon, -1, den, scale);
      return torch::where(den > least, den, least).reciprocal();
    }
    case Normaliser::if_positive: break;
  }
  return den.reciprocal().masked_fill(den <= kLeast, 0);
}

// Slopes of num and den [B, H, N, dv + 1], from those of out and lse.
Tensor slope_rows(const LinearAttention& options, const LinearKept& kept,
                  const LinearResultSlopes& slopes) {
  const Tensor &den = kept.den, &scale = kept.scale;
  Tensor of_num = torch::zeros_like(kept.out), of_den = torch::zeros_like(den);
  if (slopes.out.defined()) {
    of_num =
        slopes.out.to(den.scalar_type()) * factor_of(options, den, scale).unsqueeze(3);
    if (options.normaliser != Normaliser::none) of_den = -(of_num * kept.out).sum(3);
    if (options.normaliser == Normaliser::at_least)
      of_den = of_den.masked_fill(den <= scaled(options.epsilon, -1, den, scale), 0);
  }
  if (slopes.lse.defined())
    of_den = of_den + (slopes.lse.to(den.scalar_type()) / den).masked_fill(den <= 0, 0);
  return torch::cat({of_num, of_den.unsqueeze(3)}, 3);
}

// The largest log feature of a key, less the decays after it, and of the initial state:
// [A] double.
Tensor largest_of(const Tokens& tokens, const Sums& last, const LinearState& given) {
  Tensor logs = tokens.k;
  if (tokens.after.defined()) logs = logs + tokens.after.to(tokens.dtype);
  const int64_t heads = logs.size(0), chunks = logs.size(1);
  Tensor tops = logs.flatten(2).amax(2).to(torch::kDouble);  // [A, n]
  Tensor before = given.max.defined() ? scale_of(given.max)
                                      : torch::full({heads}, kNever, tops.options());
  if (tokens.log_decay.defined() && chunks > 0) {
    const Tensor until = running_sums(tokens.log_decay);
    const Tensor total = until.slice(1, chunks - 1);
    tops = tops + (total - until);
    before = before + total.squeeze(1);
  }
  const Tensor largest = torch::cat({tops, before.unsqueeze(1)}, 1).amax(1);
  // Logs that decays have made huge are rounded: sums must not get huge by that.
  constexpr double kReach = 32;
  return torch::maximum(largest, last.peaks.amax(1).to(torch::kDouble) - kReach);
}

LinearForward forward(const LinearInputs& inputs, const LinearAttention& options,
                      bool differentiable) {
  const Tokens tokens(inputs, options);
  const auto [used, last] = states_of(tokens, inputs.state);
  Factors factors{.left = tokens.until};
  Tensor pairs, scale;  // of rows: [A, n, kChunk]
  if (options.log_features) {
    Tensor largest = (tokens.q + used.peaks.unsqueeze(2)).amax(3);
    if (tokens.until.defined())
      largest = largest + tokens.until.squeeze(3).to(tokens.dtype);
    if (options.causal) {
      scale = torch::empty_like(largest);
      pairs = log_pairs(tokens, largest, scale);
    } else {
      scale = finite_or_0(largest.round());
    }
    factors.whole = -scale.unsqueeze(3);
  } else if (options.causal) {
    pairs = faded(torch::matmul(tokens.q, tokens.weighted.transpose(2, 3)), tokens);
  }
  Tensor rows = product(features_of(tokens.q, factors, used.peaks), used.sums);
  if (pairs.defined()) rows.add_(torch::matmul(pairs, tokens.v1));
  rows = tokens.of_heads(rows, tokens.queries);
  if (scale.defined())
    scale = tokens.of_heads(scale.unsqueeze(3), tokens.queries).squeeze(3);

  LinearForward result;
  auto& [attended, kept] = result;
  const Tensor den = rows.select(3, tokens.values).contiguous();
  const Tensor out =
      rows.slice(3, 0, tokens.values) * factor_of(options, den, scale).unsqueeze(3);
  attended.out = out.to(inputs.v.scalar_type());
  const Tensor log_den = scale.defined() ? den.log() + scale : den.log();
  attended.lse = log_den.masked_fill(den <= 0, kNever);
  Tensor max;
  if (options.log_features) {
    max = largest_of(tokens, last, inputs.state);
    attended.state.max = max.to(tokens.dtype).view({tokens.examples, tokens.heads});
    max = finite_or_0(scale_of(attended.state.max));
  }
  attended.state.sums = store(
      last, max, {tokens.examples, tokens.heads, inputs.q.size(3), tokens.values + 1});
  if (differentiable)
    kept = {.out = out, .den = den, .scale = scale, .sums = {}, .peaks = {}};
  return result;
}

// A decay has the slopes of all terms that pass it: those through the whole chunk,
// [A, n]; from before it to queries and from keys to after it, [A, n, kChunk]; and of
// its own pairs. Differences of sums over all tokens would cancel.
Tensor slopes_of_decays(const Tensor& through, const Tensor& to_queries,
                        const Tensor& from_keys, const Tensor& pairs) {
  const auto doubles = through.options().dtype(torch::kDouble);
  const Tensor ones = torch::ones({kChunk, kChunk}, doubles);
  const Tensor is_earlier = ones.tril(-1).to(pairs.scalar_type());  // [query, key]
  const Tensor from_here = torch::matmul(ones.triu().to(pairs.scalar_type()), pairs);
  return through.to(torch::kDouble).unsqueeze(2) +
         torch::matmul(to_queries.to(torch::kDouble), ones.tril()) +
         torch::matmul(from_keys.to(torch::kDouble), ones.triu(1)) +
         (from_here * is_earlier).sum(3, /*keepdim=*/false, torch::kDouble);
}

LinearInputSlopes backward(const LinearInputs& inputs, const LinearAttention& options,
                           const LinearKept& kept, const Tensor& max,
                           const LinearResultSlopes& slopes,
                           const LinearWanted& wanted) {
  const Tokens tokens(inputs, options);
  const bool log_features = options.log_features, causal = options.causal;
  const Sums state = states_of(tokens, inputs.state).used;
  const Tensor rows = in_chunks(slope_rows(options, kept, slopes).flatten(0, 1), 0);
  Tensor scale;  // [A, n, kChunk, 1]
  Factors of_slopes{.left = tokens.until};
  Tensor rest;
  if (log_features) {
    scale = in_chunks(kept.scale.flatten(0, 1).unsqueeze(2), 0);
    // Sizes of slopes count, that none pushes others out of range.
    const Tensor size = rows.abs().amax(3, /*keepdim=*/true);
    const Tensor whole = size.log().round();
    of_slopes.whole = whole - scale;
    rest = (-whole).to(torch::kDouble).exp().masked_fill(size == 0, 0).to(tokens.dtype);
  }

  // The slope of the state that the keys went into.
  Sums last;
  const auto of_first = [&](const Tensor& x) {
    return x.defined() ? -finite_or_0(scale_of(x)) : Tensor();
  };
  if (slopes.sums.defined())
    last = load(slopes.sums.to(tokens.dtype), of_first(max), log_features);
  const auto [after, first] =
      scanned(sums_of(tokens.q, of_slopes, rows, rest, log_features), tokens.log_decay,
              last, /*backwards=*/true);
  Sums slope = after;
  if (!causal) {
    slope.sums = first.sums.unsqueeze(1);
    if (log_features) slope.peaks = first.peaks.unsqueeze(1);
  }

  const auto times = [&](const Tensor& x, const Tensor& features, const Tensor& left) {
    if (log_features) return x * features;
    return left.defined() ? x * left.exp().to(tokens.dtype) : x;
  };
  const Tensor query_features =
      log_features
          ? features_of(tokens.q, {.whole = -scale, .left = tokens.until}, state.peaks)
          : tokens.q;
  const Tensor key_features =
      features_of(tokens.weighted, {.left = tokens.after}, slope.peaks);
  Tensor dq =
      times(product(rows, state.sums.transpose(2, 3)), query_features, tokens.until);
  // But for the factor of the weights.
  Tensor dk =
      times(product(tokens.v1, slope.sums.transpose(2, 3)), key_features, tokens.after);
  // Sums over the features of a token.
  const auto summed = [&](const Tensor& x, const Tensor& features) {
    return (log_features ? x : x * features).sum(3);
  };
  Tensor to_queries, from_keys;
  if (wanted.log_decay) {
    to_queries = summed(dq, tokens.q);
    from_keys = summed(dk, tokens.weighted);
    if (log_features && tokens.weights.defined())
      from_keys = from_keys * tokens.weights.squeeze(3);
  }

  const Tensor row_values = rows.slice(3, 0, tokens.values);
  Tensor dv =
      product(log_features && tokens.weights.defined() ? key_features * tokens.weights
                                                       : key_features,
              slope.sums.slice(3, 0, tokens.values));
  Tensor pairs_slope;
  if (causal) {
    const Tensor pairs =
        log_features
            ? log_pairs(tokens, /*largest=*/{}, scale)
            : faded(torch::matmul(tokens.q, tokens.weighted.transpose(2, 3)), tokens);
    const Tensor dots = torch::matmul(rows, tokens.v1.transpose(2, 3));
    if (wanted.log_decay) pairs_slope = pairs * dots;
    dv.add_(torch::matmul(pairs.transpose(2, 3), row_values));
    if (log_features) {
      dq = dq.contiguous();
      dk = dk.contiguous();
      const cuda::LinearLogPairSlopes task{.given = log_pairs_of(tokens, scale),
                                           .dots = dots.data_ptr(),
                                           .q_slope = dq.data_ptr(),
                                           .k_slope = dk.data_ptr()};
      cuda::launch(dots.device(), kName, [&](cuda::Stream stream) {
        return cuda::log_pair_slopes(task, stream);
      });
    } else {
      faded(dots, tokens);
      dq.add_(torch::matmul(dots, tokens.weighted));
      dk.add_(torch::matmul(dots.transpose(2, 3), tokens.q));
    }
  }

  LinearInputSlopes result;
  const auto fit = [](const Tensor& x, const Tensor& input) {
    return longspan::sum_to(x, input.sizes()).to(input.scalar_type());
  };
  const auto of_keys = [&](const Tensor& x, const Tensor& input) {
    const Tensor y = tokens.of_heads(x, tokens.keys);
    return y
        .view({tokens.examples, input.size(1), tokens.heads / input.size(1),
               tokens.keys, x.size(3)})
        .sum(2)
        .to(input.scalar_type());
  };
  if (wanted.q)
    result.q = tokens.of_heads(dq, tokens.queries).to(inputs.q.scalar_type());
  if (wanted.weights)
    result.weights =
        fit(tokens.of_heads(summed(dk, tokens.k).unsqueeze(3), tokens.keys).squeeze(3),
            inputs.weights);
  if (wanted.k)
    result.k = of_keys(tokens.weights.defined() ? dk * tokens.weights : dk, inputs.k);
  if (wanted.v) result.v = of_keys(dv, inputs.v);
  if (wanted.log_decay) {
    Tensor through = (state.sums * slope.sums).sum(3);  // [A, n, m]
    if (log_features) {
      const Tensor logs = (state.peaks + slope.peaks).to(torch::kDouble);
      through = through * (logs + tokens.log_decay.unsqueeze(2)).exp();
    } else {
      through = through * tokens.log_decay.exp().unsqueeze(2);
    }
    const Tensor all =
        slopes_of_decays(through.sum(2), to_queries, from_keys, pairs_slope);
    result.log_decay = fit(tokens.of_heads(all.unsqueeze(3), tokens.keys).squeeze(3),
                           inputs.log_decay);
  }
  if (wanted.sums) {
    const Tensor first_scale =
        inputs.state.max.defined() ? -scale_of(inputs.state.max) : Tensor();
    result.sums = store(first, first_scale, inputs.state.sums.sizes())
                      .to(inputs.state.sums.scalar_type());
  }
  return result;
}

}  // namespace

LinearForward linear_attention_cuda(const LinearInputs& inputs,
                                    const LinearAttention& options,
                                    bool differentiable) {
  const torch::NoGradGuard no_gradients;
  return (suits_tensor_cores(inputs, options) ? linear_attention_pass : forward)(
      inputs, options, differentiable);
}

LinearInputSlopes linear_attention_gradient_cuda(
    const LinearInputs& inputs, const LinearAttention& options, const LinearKept& kept,
    const Tensor& max, const LinearResultSlopes& slopes, const LinearWanted& wanted) {
  const torch::NoGradGuard no_gradients;
  if (suits_tensor_cores(inputs, options))
    return linear_attention_pass_gradient(inputs, options, kept, slopes, wanted);
  return backward(inputs, options, kept, max, slopes, wanted);
}

}  // namespace longspan
