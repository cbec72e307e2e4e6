#include "longspan/kernels/attention_weights.h"

#include <algorithm>
#include <set>

#include "longspan/base/error.h"
#include "longspan/base/shapes.h"
#include "longspan/kernels/fused_attention.h"

namespace longspan {
namespace {

using torch::Tensor;
using Tensors = std::vector<Tensor>;

AttentionSizes check_all(const AttentionCall& call, const Tensor& lse) {
  const AttentionSizes sizes = check(call);
  const std::vector<int64_t> expected = {sizes.examples, sizes.heads, sizes.queries};
  require(lse.defined() && lse.sizes() == at::IntArrayRef(expected),
          "attention weights: lse must be ", at::IntArrayRef(expected), ", got ",
          shape(lse));
  require(lse.device() == call.queries.q.device() && lse.is_floating_point(),
          "attention weights: lse must be floating and where q is, on ",
          call.queries.q.device(), ", got ", lse.scalar_type(), " on ", lse.device());
  return sizes;
}

void check_rows(const std::vector<int64_t>& rows, int64_t queries) {
  for (const int64_t row : rows)
    require(row >= 0 && row < queries, "attention weights: rows must be between 0 and ",
            queries - 1, ", got ", row);
}

AttentionCall without_dropout(const Queries& queries,
                              const std::vector<Source>& sources,
                              const BlockAttention& options) {
  AttentionCall call{queries, sources, options};
  call.options.dropout = {};
  return call;
}

// For each source [B, H, M, c]: its weights [N, M] transposed, times `columns`
// [B|1, H|1, N, c]. They are the gradient of values where `columns` is that of out.
Tensors transposed_weights_times(AttentionCall call, const AttentionSizes& sizes,
                                 const Tensor& lse, const Tensor& columns,
                                 const QueryTiles& tiles) {
  const auto [examples, heads, queries, width, value_width] = sizes;
  const int64_t count = columns.size(3);
  const auto like = call.queries.q.options().dtype(lse.scalar_type());
  call.queries.q = call.queries.q.to(like);
  for (Source& source : call.sources) {
    source.k = source.k.repeat_interleave(heads / source.k.size(1), 1).to(like);
    source.v = torch::zeros({1, 1, 1, count}, like)
                   .expand({examples, heads, source.k.size(2), count});
  }
  const auto over_queries = [&](const Tensor& tensor) {
    return tensor.expand({examples, heads, queries, count});
  };
  std::vector<bool> wanted;
  for (const Tensor* tensor : call.learned()) {
    bool is_value = false;
    for (const Source& source : call.sources) is_value |= tensor == &source.v;
    wanted.push_back(is_value);
  }
  const Tensors all = fused_attention_gradient(
      call, {over_queries(torch::zeros({1, 1, 1, 1}, like)), lse},
      {over_queries(columns), torch::zeros_like(lse)}, wanted, tiles);
  Tensors values;
  for (size_t i = 0; i < all.size(); ++i)
    if (wanted[i]) values.push_back(all[i]);
  return values;
}

// All weights, for each source [B, H, N, M].
Tensors all_weights(AttentionCall call, const Tensor& lse) {
  int64_t keys = 0;
  for (const Source& source : call.sources) keys += source.k.size(2);
  std::vector<int64_t> each;
  int64_t before = 0;
  call.queries.q = call.queries.q.to(lse.scalar_type());
  for (Source& source : call.sources) {
    source.k = source.k.to(lse.scalar_type());
    each.push_back(source.k.size(2));
    source.v = torch::eye(keys, source.k.options())
                   .narrow(0, before, each.back())
                   .expand({1, source.k.size(1), each.back(), keys});
    before += each.back();
  }
  const auto [out, own_lse] =
      block_attention_reference(call.queries, call.sources, call.options);
  const Tensor share = (own_lse - lse).exp().masked_fill(own_lse.isinf(), 0);
  return (out * share.unsqueeze(3)).split_with_sizes(each, 3);
}

}  // namespace

Tensors row_weights(const Queries& queries, const std::vector<Source>& sources,
                    const Tensor& lse, const std::vector<int64_t>& rows,
                    const BlockAttention& options) {
  constexpr int64_t kAtOnce = 16;
  const torch::NoGradGuard no_gradients;
  if (!has_fused_attention(queries.q.device()))
    return row_weights_reference(queries, sources, lse, rows, options);
  const AttentionCall call = without_dropout(queries, sources, options);
  const AttentionSizes sizes = check_all(call, lse);
  check_rows(rows, sizes.queries);
  Tensors weights;
  for (const Source& source : sources)
    weights.push_back(
        torch::empty({sizes.examples, sizes.heads, static_cast<int64_t>(rows.size()),
                      source.k.size(2)},
                     lse.options()));
  for (size_t first = 0; first < rows.size(); first += kAtOnce) {
    const int64_t count = std::min<int64_t>(kAtOnce, rows.size() - first);
    Tensor chosen = torch::zeros({1, 1, sizes.queries, count}, lse.options());
    std::set<int32_t> tiles;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = rows[first + i];
      chosen[0][0][row][i] = 1;
      tiles.insert(static_cast<int32_t>(row / Layout::kTile));
    }
    // With rows given by index a query may be in any tile.
    if (queries.rows.defined()) tiles.clear();
    const Tensors some = transposed_weights_times(call, sizes, lse, chosen,
                                                  {tiles.begin(), tiles.end()});
    for (size_t s = 0; s < some.size(); ++s)
      weights[s]
          .narrow(2, static_cast<int64_t>(first), count)
          .copy_(some[s].transpose(2, 3));
  }
  return weights;
}

Tensors column_mass(const Queries& queries, const std::vector<Source>& sources,
                    const Tensor& lse, const BlockAttention& options) {
  const torch::NoGradGuard no_gradients;
  if (!has_fused_attention(queries.q.device()))
    return column_mass_reference(queries, sources, lse, options);
  const AttentionCall call = without_dropout(queries, sources, options);
  const AttentionSizes sizes = check_all(call, lse);
  Tensors mass = transposed_weights_times(call, sizes, lse,
                                          torch::ones({1, 1, 1, 1}, lse.options()), {});
  for (Tensor& one : mass) one = one.squeeze(3);
  return mass;
}

Tensors row_weights_reference(const Queries& queries,
                              const std::vector<Source>& sources, const Tensor& lse,
                              const std::vector<int64_t>& rows,
                              const BlockAttention& options) {
  const torch::NoGradGuard no_gradients;
  const AttentionCall call = without_dropout(queries, sources, options);
  check_rows(rows, check_all(call, lse).queries);
  const Tensor chosen = torch::tensor(rows, torch::kLong).to(queries.q.device());
  Tensors weights;
  for (const Tensor& all : all_weights(call, lse))
    weights.push_back(all.index_select(2, chosen));
  return weights;
}

Tensors column_mass_reference(const Queries& queries,
                              const std::vector<Source>& sources, const Tensor& lse,
                              const BlockAttention& options) {
  const torch::NoGradGuard no_gradients;
  const AttentionCall call = without_dropout(queries, sources, options);
  check_all(call, lse);
  Tensors mass;
  for (const Tensor& all : all_weights(call, lse)) mass.push_back(all.sum(2));
  return mass;
}

}  // namespace longspan
