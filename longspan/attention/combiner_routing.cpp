// A query sees its cluster, and every other cluster in a summary. Ren et al. 2021,
// arXiv:2107.05768, "Combiner-Routing"; clusters as of Roy et al. 2020,
// arXiv:2003.05997.
//
// A token is in the cluster of its key. In the causal form a summary is of the tokens
// of a cluster up to a query: there is one for every token, of it and those before it,
// and of a cluster the last is seen.

#include <algorithm>
#include <limits>

#include "longspan/attention/combiner.h"
#include "longspan/attention/dense_reference.h"
#include "longspan/attention/head_axis.h"
#include "longspan/attention/linear_map.h"
#include "longspan/attention/mixer_pass.h"
#include "longspan/attention/routing.h"
#include "longspan/kernels/layer_norm.h"
#include "longspan/kernels/lse_merge.h"
#include "longspan/kernels/total.h"

namespace longspan {
namespace {

using torch::Tensor;
using Integer = std::numeric_limits<int64_t>;

// The element x[.., index[..], ..] of every column of x [B, h, n, w] by itself. On both
// devices its gradient adds in a fixed order.
Tensor picked(const Tensor& x, const Tensor& index) {
  if (!x.is_cuda()) return x.gather(2, index);
  const auto along = [&](int64_t axis) {
    std::vector<int64_t> view(4, 1);
    view[static_cast<size_t>(axis)] = x.size(axis);
    return torch::arange(x.size(axis), index.options()).view(view);
  };
  return x.index({along(0), along(1), index, along(3)});
}

// x [B, h, n, w] of the place `by` before, 0 where there is none.
Tensor before(const Tensor& x, int64_t by) {
  return torch::constant_pad_nd(x.slice(2, 0, x.size(2) - by), {0, 0, by, 0});
}

// Whether the place `by` before is of another cluster, [B, h, n, 1].
Tensor is_other(const ByCluster& sorted, int64_t by) {
  const Tensor cluster = (sorted.cluster + 1).unsqueeze(3);  // not 0
  return before(cluster, by).ne(cluster);
}

// Below, what is of a cluster up to a place grows to twice as many places each round.

// Where the largest is of those of a cluster up to each place, column by column, for x
// [B, h, n, w] by places.
Tensor largest_so_far(const Tensor& x, const ByCluster& sorted) {
  constexpr double kLeast = -std::numeric_limits<double>::infinity();
  const torch::NoGradGuard without_gradient;
  const int64_t count = x.size(2);
  Tensor most = x;
  for (int64_t by = 1; by < count; by *= 2)
    most = torch::maximum(most,
                          before(most, by).masked_fill_(is_other(sorted, by), kLeast));
  const Tensor is_new = (x > before(most, 1)).logical_or_(is_other(sorted, 1));
  const Tensor place = torch::arange(count, sorted.order.options()).unsqueeze(1);
  return std::get<0>(place.masked_fill(is_new.logical_not(), 0).cummax(2));
}

// The means of those of a cluster up to each place.
Tensor mean_so_far(const Tensor& x, const ByCluster& sorted) {
  const int64_t count = x.size(2);
  Tensor sum = at_least_float(x);
  for (int64_t by = 1; by < count; by *= 2)
    sum = sum + before(sum, by).masked_fill(is_other(sorted, by), 0);
  const Tensor first = torch::searchsorted(sorted.cluster, sorted.cluster);
  const Tensor number = torch::arange(1, count + 1, first.options()) - first;
  return (sum / number.unsqueeze(3)).to(x.scalar_type());
}

// Of every token those of its cluster up to it, pooled: x [B, h, n, w] of tokens.
Tensor pooled_so_far(const Tensor& x, const ByCluster& sorted, Pooling how) {
  const Tensor placed = sorted.placed(x);
  return sorted.of_tokens(how == Pooling::max
                              ? picked(placed, largest_so_far(placed, sorted))
                              : mean_so_far(placed, sorted));
}

class CombinerRouting final : public Attention {
 public:
  CombinerRouting(const Settings& settings, const Sizes& sizes)
      : pooling_(*this, settings, sizes), centroids_(*this, settings, sizes) {}

  static int64_t state_size(const Settings&, const Sizes& sizes, int64_t tokens) {
    const int64_t widths = sizes.head_width + sizes.value_width;
    return tokens * (sizes.key_heads * (widths + 1) + sizes.heads * widths);
  }

 private:
  static constexpr int64_t kTile = Layout::kTile;

  // Of the tokens so far, [B, H | Hk, n, w] and [B, Hk, n].
  struct Tokens {
    Tensor q, k, v, cluster;
  };

  // What `state` has under `name` and then `now`, which it has from now on.
  static Tensor joined(Record* state, const char* name, const Tensor& now) {
    if (!state) return now;
    const Tensor past = state->get(name);
    const Tensor all = past.defined() ? torch::cat({past, now}, 2) : now;
    state->set(name, all);
    return all;
  }

  // Of every cluster the last token before each of `ends` [m], [B, h, m * C], or -1.
  Tensor last_before(const Tensor& ends, const ByCluster& sorted) const {
    const int64_t count = sorted.order.size(2);
    const Tensor number = torch::arange(centroids_.count(), ends.options());
    const Tensor wanted = (ends.unsqueeze(1) + number * count)
                              .flatten()
                              .expand({sorted.order.size(0), sorted.order.size(1), -1})
                              .contiguous();
    const Tensor place =
        torch::searchsorted(sorted.cluster * count + sorted.order, wanted) - 1;
    const Tensor known = place.clamp_min(0);
    const Tensor own = number.repeat({ends.size(0)});
    return sorted.order.gather(2, known).masked_fill(
        place.lt(0) | sorted.cluster.gather(2, known).ne(own), -1);
  }

  Tensor run(const Tensor& q, const Tensor& k, const Tensor& v, Pass& pass) override {
    const int64_t heads = q.size(1), count = q.size(2);
    const bool causal = pass.mask.causal;
    const Tensor centroids = centroids_.of(pass);
    const Routed routed = Centroids::routed(k, pass.mask.tokens, centroids);
    const Tensor now =
        chosen(pass, "clusters", [&] { return Centroids::nearest(routed); });
    if (pass.training) centroids_.learn(pass, centroids, {routed});
    const Tokens all{.q = joined(pass.state, "q", q),
                     .k = joined(pass.state, "k", k),
                     .v = joined(pass.state, "v", v),
                     .cluster = joined(pass.state, "cluster", now)};
    const int64_t held = all.k.size(2), past = held - count;
    if (pass.state) pass.state->tokens += count;

    const ByCluster by_key(all.cluster), by_query = by_key.for_queries(heads);
    const Tensor cluster = for_heads(all.cluster, heads);
    // By clusters as positions, not buckets: tiles of others are seen to be so early.
    const Source own{.k = all.k,
                     .v = all.v,
                     .layout = Layout(held, held, causal ? past_keys() : all_keys()),
                     .from = cluster,
                     .to = cluster + 1,
                     .rows = by_query.order,
                     .rows_once = true};
    const auto within = [&](const Tensor& asked, const BlockAttention& options) {
      return block_attention({.q = asked,
                              .positions = cluster.slice(2, past),
                              .rows = (by_query.order - past).clamp_min(-1)},
                             {own}, options);
    };
    const Attended direct = within(q, BlockAttention{.dropout = dropout_of(pass)});

    const Tensor queries = pooled_so_far(pooling_.of_queries(all.q), by_query,
                                         pooling_.how()),
                 keys = pooled_so_far(pooling_.of_keys(all.k), by_key, pooling_.how());
    Source summaries{
        .k = spread(keys.unsqueeze(2), {keys.size(0), keys.size(1),
                                        heads / keys.size(1), held, keys.size(3)})
                 .flatten(1, 2)};
    if (!causal) {
      const Tensor last = last_before(torch::full({1}, held, now.options()), by_query);
      summaries.v = block_attention({.q = queries, .buckets = cluster, .rows = last},
                                    {{.k = all.k, .v = all.v, .buckets = cluster}})
                        .out;
      summaries.rows = last;
      summaries.rows_once = true;
      summaries.from = cluster;
      summaries.to = cluster + 1;
      summaries.outside = true;
      return merge(
                 {direct, block_attention({.q = q, .positions = cluster}, {summaries},
                                          BlockAttention{.dropout = dropout_of(pass)})})
          .out;
    }

    summaries.v = joined(pass.state, "values", within(queries.slice(2, past), {}).out);
    // The summary of a token is seen after it, until the next one of its cluster.
    summaries.from = torch::arange(1, held + 1, cluster.options()).expand_as(cluster);
    summaries.to =
        by_query.of_tokens(by_query.further(by_query.order, 1, Integer::max()))
            .masked_fill(cluster.eq(centroids_.count()), Integer::min());
    Source earlier = summaries, near = summaries;
    const Tensor tiles = torch::arange(past, held, kTile, now.options());
    earlier.rows = last_before(tiles, by_query);
    earlier.layout =
        Layout(count, earlier.rows.size(2),
               [width = centroids_.count()](int64_t query, std::vector<Span>& seen) {
                 seen.push_back({query / kTile * width, (query / kTile + 1) * width});
               });
    near.rows = torch::arange(past, held, now.options());
    near.rows_once = true;
    near.layout = Layout(count, count, block_of_keys(kTile));
    return merge({direct, block_attention({.q = q, .first = past}, {earlier, near},
                                          BlockAttention{.dropout = dropout_of(pass)})})
        .out;
  }

  // Of one example and one head of keys, by the clusters of its tokens, [N].
  static CombinerPlan plan(const Tensor& cluster, bool causal) {
    const Tensor at = torch::arange(cluster.size(0), cluster.options());
    const Tensor same = cluster.unsqueeze(1).eq(cluster.unsqueeze(0));
    if (!causal) {
      const Tensor number = std::get<0>(torch::_unique2(cluster));
      return {.direct = same,
              .members = number.unsqueeze(1).eq(cluster),
              .spans = cluster.unsqueeze(1).ne(number)};
    }
    const Tensor past = at.unsqueeze(0) <= at.unsqueeze(1);
    // Span g ends with token g, and is seen if no later one of its cluster is.
    const Tensor later = same.unsqueeze(0) & past.unsqueeze(1) &
                         (at.unsqueeze(0) > at.unsqueeze(1)).unsqueeze(0);  // [i, g, j]
    return {.direct = same & past,
            .members = same & past,
            .spans = past & same.logical_not() & later.any(2).logical_not()};
  }

  Tensor define(const Tensor& q, const Tensor& k, const Tensor& v,
                Pass& pass) override {
    const int64_t group = q.size(1) / k.size(1);
    const Tensor normal = layer_norm_reference(at_least_float(k));
    const Tensor cluster =
        normal.matmul(centroids_.of(pass).to(normal).transpose(1, 2)).argmax(3);
    std::vector<Tensor> examples;
    for (int64_t b = 0; b < q.size(0); ++b) {
      const auto one = [&](const Tensor& x, int64_t head, int64_t number) {
        return x.slice(0, b, b + 1).slice(1, head, head + number);
      };
      std::vector<Tensor> heads;
      for (int64_t head = 0; head < k.size(1); ++head) {
        Tensor of = cluster[b][head], real;
        if (pass.mask.tokens.defined()) {
          real = pass.mask.tokens.slice(0, b, b + 1).to(q.device());
          of = of.masked_fill(real[0].logical_not(), -1);
        }
        heads.push_back(combined(plan(of, pass.mask.causal), pooling_,
                                 one(q, head * group, group), one(k, head, 1),
                                 one(v, head, 1), real));
      }
      examples.push_back(torch::cat(heads, 1));
    }
    return examples.empty() ? torch::zeros_like(v) : torch::cat(examples);
  }

  SpanPooling pooling_;
  Centroids centroids_;
};

constexpr Setting kSettings[] = {kClusters, kSummary, kDecay, kCommitment};

}  // namespace

constinit const Mechanism catalogue::combiner_routing{
    .name = "combiner_routing",
    .summary = "the tokens of a cluster, and the summaries of all other clusters",
    .paper = "Ren et al. 2021, arXiv:2107.05768",
    .classes = "learnable patterns, low rank",
    .time = {"N*(N/clusters + clusters)*d", 2},
    .memory = {"N*(clusters + d)", 1},
    .can = kCombinerAbilities,
    .state =
        "queries, keys, values, clusters and the values of summaries of all tokens",
    .state_size = CombinerRouting::state_size,
    .full = true,
    .by_content = true,
    .training = kMovingCentroids,
    .settings = kSettings,
    .test_settings = "{clusters: 5, summary: deepsets_max}",
    .make = made_as<Attention, CombinerRouting>(),
};

}  // namespace longspan
