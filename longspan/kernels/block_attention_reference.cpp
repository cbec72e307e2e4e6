#include <limits>

#include <ATen/ExpandUtils.h>

#include "longspan/kernels/attention_call.h"
#include "longspan/kernels/matmul.h"
#include "longspan/kernels/random_numbers.h"
#include "longspan/kernels/total.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr double kHidden = -std::numeric_limits<double>::infinity();

// As int64 [B|1, H|1, n] on the device of `like`.
Tensor rowwise(const Tensor& rows, const Tensor& like) {
  const Tensor moved = rows.to(like.device(), torch::kLong);
  return moved.dim() == 1 ? moved.view({1, 1, -1}) : moved;
}

// x[.., index[..]] along the last axis, for x [B, H, N, R] and index [B|1, H|1, N, M].
// Chosen so that the backward adds in a fixed order on both devices.
Tensor pick(const Tensor& x, const Tensor& index) {
  const auto full = index.expand({x.size(0), x.size(1), x.size(2), index.size(3)});
  if (!x.is_cuda()) return x.gather(3, full);
  const auto along = [&](int64_t axis) {
    std::vector<int64_t> view(4, 1);
    view[axis] = x.size(axis);
    return torch::arange(x.size(axis), full.options()).view(view);
  };
  return x.index({along(0), along(1), along(2), full});
}

// Rows `rows` [B|1, H|1, S] of x [B, H, n, c]; row 0 stands in for empty places, and
// zeros where there is none.
Tensor take_rows(const Tensor& x, const Tensor& rows) {
  if (!rows.defined()) return x;
  if (x.size(2) == 0) return torch::constant_pad_nd(x, {0, 0, 0, rows.size(2)});
  const auto index = rows.clamp_min(0).unsqueeze(2).expand(
      {rows.size(0), rows.size(1), x.size(3), rows.size(2)});
  return pick(x.transpose(2, 3), index).transpose(2, 3);
}

// The same for integers [B|1, H|1, n] over rows.
Tensor at_rows(const Tensor& values, const Tensor& rows) {
  if (!rows.defined() || !values.defined()) return values;
  if (values.size(2) == 0) return torch::constant_pad_nd(values, {0, rows.size(2)});
  const int64_t examples = std::max(values.size(0), rows.size(0));
  const int64_t heads = std::max(values.size(1), rows.size(1));
  return values.expand({examples, heads, -1})
      .gather(2, rows.clamp_min(0).expand({examples, heads, -1}));
}

// [B|1, H|1, S, T] bool of a layout.
Tensor shown(const Layout& layout, const Tensor& like) {
  std::vector<Tensor> masks;
  for (int64_t pattern = 0; pattern < layout.patterns(); ++pattern)
    masks.push_back(layout.dense(pattern));
  const auto& choice = layout.choice();
  const auto chosen = torch::tensor(choice.pattern, torch::kLong);
  return torch::stack(masks)
      .to(like.device())
      .index_select(0, chosen.to(like.device()))
      .view({choice.examples, choice.heads, layout.queries(), layout.keys()});
}

// The entries of table or vectors that pairs use, [B|1, H|1, N, M].
Tensor entries(const Bias& bias, const Tensor& query_positions,
               const Tensor& key_positions) {
  if (bias.labels.defined()) return bias.labels.to(torch::kLong);
  const Tensor& sized = bias.table.defined() ? bias.table : bias.vectors;
  const auto q = query_positions.unsqueeze(3), k = key_positions.unsqueeze(2);
  if (bias.width == 0) return (q - k - bias.first).clamp(0, sized.size(1) - 1);
  const auto row = [&](const Tensor& p) {
    return torch::div(p, bias.width, /*rounding_mode=*/"floor");
  };
  const auto rows = (row(q) - row(k) - bias.first).clamp(0, sized.size(1) - 1);
  const auto columns =
      ((q - row(q) * bias.width) - (k - row(k) * bias.width) - bias.first_column)
          .clamp(0, sized.size(2) - 1);
  return rows * sized.size(2) + columns;
}

// The bias of a source whose keys, and queries, are taken by rows.
Bias gathered(const Bias& bias, const Tensor& query_rows, const Tensor& key_rows,
              const AttentionSizes& sizes) {
  Bias taken = bias;
  const auto pairs = [&](const Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    const auto full =
        spread(tensor, {sizes.examples, sizes.heads, tensor.size(2), tensor.size(3)});
    return take_rows(take_rows(full, query_rows).transpose(2, 3), key_rows)
        .transpose(2, 3);
  };
  if (bias.column.defined()) {
    const auto full =
        spread(bias.column, {sizes.examples, sizes.heads, bias.column.size(2)});
    taken.column = take_rows(full.unsqueeze(3), key_rows).squeeze(3);
  }
  taken.labels = pairs(bias.labels);
  taken.dense = pairs(bias.dense);
  return taken;
}

}  // namespace

Tensor dropout_factors(const Dropout& dropout, const Tensor& query_rows,
                       const Tensor& key_rows, int64_t source,
                       const AttentionSizes& sizes) {
  const auto options = query_rows.options();
  const auto stream = torch::arange(sizes.examples * sizes.heads, options)
                          .view({sizes.examples, sizes.heads, 1, 1});
  const auto i = query_rows.clamp_min(0).unsqueeze(3);
  const auto j = key_rows.clamp_min(0).unsqueeze(2);
  const auto words =
      philox_words(dropout.key, torch::div(j, 4, /*rounding_mode=*/"floor"), i, stream,
                   torch::full({1, 1, 1, 1}, source, options));  // [B, H, S, T, 4]
  const auto lane = (j % 4).expand({words.size(0), words.size(1), words.size(2), -1});
  const auto word = words.gather(4, lane.unsqueeze(4)).squeeze(4);
  return (word >= static_cast<int64_t>(word_limit(dropout.probability)))
             .to(torch::kDouble) /
         (1 - dropout.probability);
}

Tensor bias_scores(const Bias& bias, const Tensor& q, double scale,
                   const Tensor& query_positions, const Tensor& key_positions) {
  const auto type = q.scalar_type();
  const int64_t heads = q.size(1), queries = q.size(2);
  const auto query_places = rowwise(query_positions, q);
  const auto key_places = rowwise(key_positions, q);
  Tensor scores = torch::zeros({1, 1, 1, 1}, q.options());
  const auto add = [&](const Tensor& more) {
    const auto sizes = at::infer_size(scores.sizes(), more.sizes());
    scores = spread(scores, sizes) + spread(more, sizes);
  };
  if (bias.column.defined()) add(bias.column.to(type).unsqueeze(2));
  if (bias.slopes.defined()) {
    const auto distance = (query_places.unsqueeze(3) - key_places.unsqueeze(2)).abs();
    const auto slopes = bias.slopes.to(type).view({1, -1, 1, 1});
    add(spread(slopes, at::infer_size(slopes.sizes(), distance.sizes())) *
        -distance.to(type));
  }
  if (bias.table.defined() || bias.vectors.defined()) {
    const auto entry = entries(bias, query_places, key_places);
    if (bias.table.defined()) {
      const auto table = bias.table.to(type).flatten(1);  // [H|1, R]
      const int64_t examples = entry.size(0),
                    most_heads = std::max(table.size(0), entry.size(1));
      add(pick(spread(table.view({1, table.size(0), 1, -1}),
                      {examples, most_heads, queries, table.size(1)}),
               entry));
    }
    if (bias.vectors.defined()) {
      const auto vectors =
          bias.vectors.to(type).reshape({bias.vectors.size(0), -1, q.size(3)});
      const auto shifted =
          bias.offset.defined()
              ? q + spread(bias.offset.to(type).unsqueeze(1), q.sizes())
              : q;
      add(scale * pick(longspan::matmul(shifted, vectors.transpose(1, 2)), entry));
    }
  }
  if (bias.dense.defined()) add(bias.dense.to(type));
  return spread(scores, {scores.size(0), heads, queries, key_places.size(2)});
}

Attended block_attention_reference(const Queries& queries,
                                   const std::vector<Source>& sources,
                                   const BlockAttention& options) {
  const AttentionCall call{queries, sources, options};
  const AttentionSizes sizes = check(call);
  const auto [examples, heads, query_count, width, value_width] = sizes;
  const auto type =
      queries.q.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  const double scale = call.scale();
  const auto whole = queries.q.options().dtype(torch::kLong);
  const auto rows_or_all = [&](const Tensor& rows, int64_t count) {
    return rows.defined() ? rowwise(rows, queries.q)
                          : torch::arange(count, whole).view({1, 1, -1});
  };

  const Tensor query_rows =
      queries.rows.defined() ? rowwise(queries.rows, queries.q) : Tensor();
  const Tensor query_numbers = rows_or_all(queries.rows, query_count);
  const auto q = take_rows(queries.q.to(type), query_rows);  // [B, H, S, d]
  const auto positions =
      queries.positions.defined()
          ? at_rows(rowwise(queries.positions, q), query_rows)
          : at_rows(torch::arange(query_count, whole).view({1, 1, -1}) + queries.first,
                    query_rows);

  std::vector<Tensor> all_scores, all_values, all_factors;
  for (size_t s = 0; s < sources.size(); ++s) {
    const Source& source = sources[s];
    const int64_t keys = source.k.size(2);
    const auto repeated = [&](const Tensor& x) {
      return spread(x.to(type).repeat_interleave(heads / x.size(1), 1),
                    {examples, heads, x.size(2), x.size(3)});
    };
    const Tensor key_rows = source.rows.defined() ? rowwise(source.rows, q) : Tensor();
    const Tensor key_numbers = rows_or_all(source.rows, keys);
    const auto k = take_rows(repeated(source.k), key_rows);  // [B, H, T, d]
    const auto v = take_rows(repeated(source.v), key_rows);
    const auto over_keys = [&](const Tensor& values) {
      return at_rows(rowwise(values, q), key_rows).unsqueeze(2);  // [B|1, H|1, 1, T]
    };

    auto visible = torch::ones({1, 1, 1, 1}, whole.dtype(torch::kBool));
    if (source.layout) visible = visible & shown(*source.layout, q);
    if (source.from.defined() || source.to.defined()) {
      auto inside = torch::ones({1, 1, 1, 1}, visible.options());
      const auto p = positions.unsqueeze(3);
      if (source.from.defined()) inside = inside & (p >= over_keys(source.from));
      if (source.to.defined()) inside = inside & (p < over_keys(source.to));
      visible = visible & (source.outside ? inside.logical_not() : inside);
    }
    if (queries.buckets.defined() || source.buckets.defined()) {
      const auto zero = torch::zeros({1, 1, 1, 1}, whole);
      const auto of_query =
          queries.buckets.defined()
              ? at_rows(rowwise(queries.buckets, q), query_rows).unsqueeze(3)
              : zero;
      const auto of_key = source.buckets.defined() ? over_keys(source.buckets) : zero;
      visible = visible & (of_query == of_key);
    }
    visible = visible & (query_numbers >= 0).unsqueeze(3);
    visible = visible & (key_numbers >= 0).unsqueeze(2);

    auto scores = scale * longspan::matmul(q, k.transpose(2, 3));  // [B, H, S, T]
    if (source.bias.defined()) {
      const auto key_positions =
          source.positions.defined()
              ? at_rows(rowwise(source.positions, q), key_rows)
              : at_rows(torch::arange(keys, whole).view({1, 1, -1}), key_rows);
      scores = scores +
               spread(bias_scores(gathered(source.bias, query_rows, key_rows, sizes), q,
                                  scale, positions, key_positions),
                      scores.sizes());
    }
    all_scores.push_back(scores.masked_fill(visible.logical_not(), kHidden));
    all_values.push_back(v);
    if (options.dropout.probability > 0)
      all_factors.push_back(dropout_factors(options.dropout, query_numbers, key_numbers,
                                            static_cast<int64_t>(s), sizes)
                                .to(type)
                                .expand_as(scores));
  }

  const auto scores = torch::cat(all_scores, 3);
  // A row that sees nothing has no maximum, sum 0, and no gradient.
  const auto most = scores.size(3) == 0
                        ? torch::full({1, 1, 1, 1}, kHidden, scores.options())
                        : scores.detach().amax(3, /*keepdim=*/true);
  const auto shift = most.masked_fill(most == kHidden, 0);
  auto weights = (scores - shift).exp();
  const auto sum = longspan::sum_to(weights, {examples, heads, weights.size(2), 1});
  const auto empty = sum == 0;
  const auto safe_sum = sum.masked_fill(empty, 1);
  auto lse = (safe_sum.log() + shift).masked_fill(empty, kHidden).squeeze(3);
  weights = weights / spread(safe_sum, weights.sizes());
  if (!all_factors.empty()) weights = weights * torch::cat(all_factors, 3);
  auto out = longspan::matmul(weights, torch::cat(all_values, 2));

  if (query_rows.defined()) {
    // Empty places write to a row of their own, which is cut off.
    const auto target = query_rows.masked_fill(query_rows < 0, query_count)
                            .expand({examples, heads, -1});
    const auto back = [&](const Tensor& values, double rest) {
      auto rows = torch::full({examples, heads, query_count + 1, values.size(3)}, rest,
                              values.options());
      return rows
          .scatter(2, target.unsqueeze(3).expand({-1, -1, -1, values.size(3)}), values)
          .narrow(2, 0, query_count);
    };
    out = back(out, 0);
    lse = back(lse.unsqueeze(3), kHidden).squeeze(3);
  }
  return {out.to(queries.q.scalar_type()), lse};
}

}  // namespace longspan
