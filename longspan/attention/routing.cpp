// Queries and keys in clusters, attention inside a cluster. Roy et al. 2020,
// arXiv:2003.05997.
//
// Not causal, each centroid takes the queries and the keys that are nearest to it,
// equally many as every other; a query has the mean over the clusters that took it, 0
// where none did. Which tokens are taken depends on all tokens. So in the causal form a
// token is in one cluster, that of its key, and sees the last tokens of this cluster up
// to itself.

#include "longspan/attention/routing.h"

#include <algorithm>
#include <limits>
#include <tuple>

#include "longspan/attention/dense_reference.h"
#include "longspan/attention/head_axis.h"
#include "longspan/attention/linear_map.h"
#include "longspan/attention/mixer_pass.h"
#include "longspan/base/error.h"
#include "longspan/kernels/layer_norm.h"
#include "longspan/kernels/matmul.h"
#include "longspan/kernels/total.h"

namespace longspan {

using torch::Tensor;

Centroids::Centroids(torch::nn::Module& owner, const Settings& settings,
                     const Sizes& sizes)
    : decay_(settings.number("decay")), commitment_(settings.number("commitment")) {
  require(decay_ < 1, "decay must be 0 or more and less than 1, got ", decay_);
  const auto kept = [&](const char* name, const Tensor& numbers) {
    return owner.register_buffer(name, numbers.view(torch::kInt).clone());
  };
  const int64_t heads = sizes.key_heads, count = settings.integer("clusters");
  counts_ = kept("centroid_counts", torch::ones({heads, count}));
  sums_ =
      kept("centroid_sums", layer_norm(torch::randn({heads, count, sizes.head_width})));
}

Tensor Centroids::of(Pass& pass) const {
  return chosen(pass, "centroids", [&] {
    constexpr double kLeast = 1e-5;
    const Tensor counts = counts_.view(torch::kFloat), sums = sums_.view(torch::kFloat);
    const Tensor all = counts.sum(1, /*keepdim=*/true);
    const Tensor smooth =
        (counts + kLeast) / (all + static_cast<double>(count()) * kLeast) * all;
    return sums / smooth.unsqueeze(2);
  });
}

Routed Centroids::routed(const Tensor& x, const Tensor& real, const Tensor& centroids) {
  const Tensor normal = layer_norm(at_least_float(x));
  const torch::NoGradGuard without_gradient;
  const Tensor of_heads =
      centroids.repeat_interleave(x.size(1) / centroids.size(0), 0).to(normal);
  return {.x = normal,
          .scores = longspan::matmul(normal, of_heads.transpose(1, 2)),
          .real = real.defined() ? real.to(x.device()) : real};
}

Tensor Centroids::nearest(const Routed& routed) {
  const Tensor of = routed.scores.argmax(3);
  if (!routed.real.defined()) return of;
  return of.masked_fill(routed.real.logical_not().unsqueeze(1), routed.scores.size(3));
}

void Centroids::learn(Pass& pass, const Tensor& centroids,
                      const std::vector<Routed>& all) {
  const int64_t heads = centroids.size(0), width = centroids.size(2);
  Tensor loss, counts = torch::zeros({heads, count()}, centroids.options()),
               sums = torch::zeros_like(centroids);
  for (const Routed& some : all) {
    const Tensor &x = some.x, of = nearest(some);  // [B, h, n]
    const int64_t group = x.size(1) / heads;
    const Tensor own =
        centroids.repeat_interleave(group, 0)
            .to(x)
            .expand({x.size(0), -1, -1, -1})
            .gather(2,
                    of.clamp_max(count() - 1).unsqueeze(3).expand({-1, -1, -1, width}));
    const Tensor counted =
        some.real.defined() ? some.real.unsqueeze(1).unsqueeze(3) : Tensor();
    const Tensor distance =
        static_cast<double>(width) * average((x - own).square(), counted);
    loss = loss.defined() ? loss + distance : distance;
    if (pass.replay) continue;

    const torch::NoGradGuard without_gradient;
    const Tensor member =
        of.unsqueeze(3).eq(torch::arange(count(), of.options()));  // [B, h, n, C]
    counts += member.sum(2).sum(0).view({heads, group, count()}).sum(1);
    const Tensor sum = longspan::matmul(member.to(x.scalar_type()).transpose(2, 3), x)
                           .view({x.size(0), heads, group, count(), width});
    sums += longspan::sum_to(sum, {1, heads, 1, count(), width}).view(sums.sizes());
  }
  pass.add_loss("routing_commitment",
                commitment_ / static_cast<double>(all.size()) * loss);
  if (pass.replay) return;
  const torch::NoGradGuard changing;
  const auto follow = [&](const Tensor& kept, const Tensor& now) {
    kept.view(torch::kFloat).mul_(decay_).add_(now, 1 - decay_);
  };
  follow(counts_, counts);
  follow(sums_, sums);
}

ByCluster::ByCluster(const Tensor& of) {
  std::tie(cluster, order) = of.sort(/*stable=*/true, 2, /*descending=*/false);
}

ByCluster ByCluster::for_queries(int64_t heads) const {
  ByCluster repeated;
  repeated.order = for_heads(order, heads);
  repeated.cluster = for_heads(cluster, heads);
  return repeated;
}

Tensor ByCluster::placed(const Tensor& x) const {
  return x.gather(2, x.dim() == 3 ? order : order.unsqueeze(3).expand(x.sizes()));
}

Tensor ByCluster::of_tokens(const Tensor& x) const {
  return torch::zeros_like(x).scatter(
      2, x.dim() == 3 ? order : order.unsqueeze(3).expand(x.sizes()), x);
}

Tensor ByCluster::further(const Tensor& x, int64_t by, int64_t none) const {
  const int64_t moves = std::min(by, x.size(2));
  const auto moved = [&](const Tensor& y, int64_t after) {
    return torch::constant_pad_nd(y.slice(2, moves), {0, moves}, after);
  };
  return moved(x, none).masked_fill(moved(cluster, -1).ne(cluster), none);
}

namespace {

using Integer = std::numeric_limits<int64_t>;

// Every `size` queries see `width` keys of their own.
Pattern own_keys(int64_t size, int64_t width) {
  return [=](int64_t query, std::vector<Span>& keys) {
    keys.push_back({query / size * width, (query / size + 1) * width});
  };
}

// Where rows `rows` [B, H, S] of `count` are if those of all heads are one list.
Tensor in_one_list(const Tensor& rows, int64_t count) {
  const int64_t heads = rows.size(0) * rows.size(1);
  const Tensor head =
      torch::arange(heads, rows.options()).view({rows.size(0), rows.size(1), 1});
  return (head * count + rows).flatten();
}

// On the CPU index_select() and index_add() add in the order of the rows, on CUDA
// index() and index_put() do.

// Rows `rows` [B, H, S] of x [B, H, n, w]; row 0 stands in for -1.
Tensor rows_of(const Tensor& x, const Tensor& rows) {
  const Tensor all = x.reshape({-1, x.size(3)}),
               at = in_one_list(rows.clamp_min(0), x.size(2));
  return (x.is_cuda() ? all.index({at}) : all.index_select(0, at))
      .view({rows.size(0), rows.size(1), rows.size(2), x.size(3)});
}

// The means of the rows of x [B, H, S, w] that go to the same one of `count` rows, by
// `rows` [B, H, S], where -1 goes nowhere; 0 for what gets none.
Tensor means_by(const Tensor& x, const Tensor& rows, int64_t count) {
  const int64_t examples = x.size(0), heads = x.size(1), width = x.size(3);
  const Tensor target = rows.masked_fill(rows < 0, count);
  const Tensor at = in_one_list(target, count + 1), all = x.reshape({-1, width});
  const Tensor zeros =
      torch::zeros({examples * heads * (count + 1), width}, x.options());
  const Tensor sums = x.is_cuda() ? zeros.index_put({at}, all, /*accumulate=*/true)
                                  : zeros.index_add(0, at, all);
  const Tensor number = torch::zeros({examples, heads, count + 1}, rows.options())
                            .scatter_add(2, target, torch::ones_like(target));
  return (sums.view({examples, heads, count + 1, width}) /
          number.clamp_min(1).unsqueeze(3))
      .slice(2, 0, count);
}

// Integers in the order of the numbers along the last axis, of equal numbers the first
// being the largest.
Tensor ranked(const Tensor& x) {
  const Tensor bits = x.to(torch::kFloat).view(torch::kInt);
  const Tensor ordered = torch::where(bits < 0, bits.bitwise_xor(0x7fffffff), bits);
  const int64_t count = x.size(-1);
  return ordered.to(torch::kLong) * count +
         torch::arange(count - 1, -1, -1, ordered.options().dtype(torch::kLong));
}

class Routing final : public Attention {
 public:
  Routing(const Settings& settings, const Sizes& sizes)
      : centroids_(*this, settings, sizes),
        window_(settings.integer("window")),
        last_(settings.integer("last")),
        normalised_(settings.flag("normalised")) {
    if (const double scale = settings.number("scale"); scale > 0) scale_ = scale;
  }

  static int64_t state_size(const Settings& settings, const Sizes& sizes,
                            int64_t tokens) {
    return std::min(tokens,
                    settings.integer("clusters") * (settings.integer("last") - 1)) *
           sizes.key_heads * (sizes.head_width + sizes.value_width + 2);
  }

 private:
  // x as scores are made of it.
  Tensor scored(const Tensor& x, const Routed& routed) const {
    return normalised_ ? routed.x : at_least_float(x);
  }

  BlockAttention options(Pass& pass) const {
    BlockAttention options = BlockAttention{.dropout = dropout_of(pass)};
    options.scale = scale_;
    return options;
  }

  // How many tokens every cluster takes, [B, 1, 1, 1], of `count` or fewer real ones.
  Tensor taken(const Routed& routed) const {
    const int64_t examples = routed.x.size(0), count = routed.x.size(2);
    const auto whole =
        torch::TensorOptions(torch::kLong).device(routed.scores.device());
    const Tensor real = routed.real.defined() ? routed.real.sum(1)
                                              : torch::full({examples}, count, whole);
    const Tensor share = torch::div(real + (clusters() - 1), clusters(), "floor");
    return (window_ > 0 ? real.clamp_max(window_) : share).view({-1, 1, 1, 1});
  }

  int64_t clusters() const { return centroids_.count(); }

  // The tokens that every cluster takes, [B, h, C * most], -1 where there are fewer.
  Tensor selected(const Routed& routed) const {
    const int64_t count = routed.x.size(2);
    const int64_t most =
        window_ > 0 ? std::min(window_, count) : (count + clusters() - 1) / clusters();
    Tensor ranks = ranked(routed.scores.transpose(2, 3));
    if (routed.real.defined())
      ranks.masked_fill_(routed.real.logical_not().unsqueeze(1).unsqueeze(1),
                         Integer::min());
    const Tensor found = std::get<1>(ranks.topk(most, 3));
    return found.masked_fill(torch::arange(most, found.options()).ge(taken(routed)), -1)
        .flatten(2);
  }

  Tensor balanced(const Tensor& q, const Tensor& k, const Tensor& v, Pass& pass) {
    const int64_t count = q.size(2), heads = q.size(1);
    const Tensor centroids = centroids_.of(pass);
    const Routed queries = Centroids::routed(q, pass.mask.tokens, centroids),
                 keys = Centroids::routed(k, pass.keys(count, k.size(2)).tokens,
                                          centroids);
    const Tensor of_queries =
                     chosen(pass, "queries", [&] { return selected(queries); }),
                 of_keys = chosen(pass, "keys", [&] { return selected(keys); });
    if (pass.training) centroids_.learn(pass, centroids, {queries, keys});
    const int64_t places = of_queries.size(2), key_places = of_keys.size(2);
    const Tensor place = torch::arange(places, of_queries.options());
    const auto type = q.scalar_type();
    const Tensor out =
        block_attention(
            {.q = rows_of(scored(q, queries), of_queries).to(type),
             .rows = place.expand_as(of_queries).masked_fill(of_queries < 0, -1)},
            {{.k = scored(k, keys).to(type),
              .v = v,
              .layout = Layout(places, key_places,
                               own_keys(places / clusters(), key_places / clusters())),
              .rows = for_heads(of_keys, heads)}},
            options(pass))
            .out;
    return means_by(at_least_float(out), of_queries, count).to(type);
  }

  // Keys, values, clusters and positions of the tokens so far.
  struct Tokens {
    Tensor k, v, cluster, position;  // [B, Hk, n, ..], [B, Hk, n]
  };

  // Those of `state` and then `now`.
  static Tokens joined(const Record& state, const Tokens& now) {
    const auto grown = [&](const char* name, const Tensor& more) {
      const Tensor past = state.get(name);
      return past.defined() ? torch::cat({past, more}, 2) : more;
    };
    return {.k = grown("k", now.k),
            .v = grown("v", now.v),
            .cluster = grown("cluster", now.cluster),
            .position = grown("position", now.position)};
  }

  // Leaves in `state` what later tokens may see: all but the last - 1 of a cluster are
  // out of sight.
  void keep(Record& state, const Tokens& all, const ByCluster& sorted) const {
    const Tensor ends = sorted.of_tokens(
        sorted.further(sorted.placed(all.position), last_ - 1, Integer::max()));
    const Tensor gone = ends.ne(Integer::max()) | all.cluster.eq(clusters());
    const Tensor kept =
        std::get<1>(gone.to(torch::kInt).sort(/*stable=*/true, 2, false))
            .slice(2, 0, clusters() * (last_ - 1));
    const auto rows = [&](const Tensor& x) {
      return x.gather(2, kept.unsqueeze(3).expand({-1, -1, -1, x.size(3)}));
    };
    state.set("k", rows(all.k));
    state.set("v", rows(all.v));
    state.set("cluster", all.cluster.masked_fill(gone, clusters()).gather(2, kept));
    state.set("position", all.position.gather(2, kept));
  }

  // A key is in sight up to the token that is `last` further on in its cluster. The
  // layout leaves out most of the others, where there are many queries.
  Tensor last_of_cluster(const Tensor& q, const Tensor& k, const Tensor& v,
                         Pass& pass) {
    const int64_t heads = q.size(1), count = q.size(2);
    require(k.size(2) >= count, "queries must be the last of the keys, got ", count,
            " and ", k.size(2), " keys");
    const Tensor centroids = centroids_.of(pass);
    const Routed keys =
        Centroids::routed(k, pass.keys(count, k.size(2)).tokens, centroids);
    const Tensor cluster =
        chosen(pass, "clusters", [&] { return Centroids::nearest(keys); });
    if (pass.training) centroids_.learn(pass, centroids, {keys});
    const int64_t first = pass.state ? pass.state->tokens : 0;
    const auto type = q.scalar_type();
    Tokens all{.k = scored(k, keys).to(type),
               .v = v,
               .cluster = cluster,
               .position = torch::arange(first, first + k.size(2), cluster.options())
                               .expand_as(cluster)};
    if (pass.state) all = joined(*pass.state, all);
    const int64_t held = all.k.size(2), past = held - count;
    const ByCluster sorted(all.cluster);
    if (pass.state) {
      keep(*pass.state, all, sorted);
      pass.state->tokens += count;
    }

    const Tensor buckets = for_heads(all.cluster, heads);
    const Tensor queries = normalised_ ? layer_norm(q) : q;
    Queries asked{.q = queries,
                  .first = first + k.size(2) - count,
                  .buckets = buckets.slice(2, past)};
    Source seen{
        .k = all.k,
        .v = all.v,
        .from = for_heads(all.position, heads),
        .to = for_heads(sorted.of_tokens(sorted.further(sorted.placed(all.position),
                                                        last_, Integer::max())),
                        heads),
        .buckets = buckets};
    if (count > last_) {
      seen.rows = for_heads(sorted.order, heads);
      seen.rows_once = true;
      asked.rows = (seen.rows - past).clamp_min(-1);
      seen.layout = Layout(held, held, window_of_keys(last_ - 1, 0));
    }
    return block_attention(asked, {seen}, options(pass)).out;
  }

  Tensor run(const Tensor& q, const Tensor& k, const Tensor& v, Pass& pass) override {
    return pass.mask.causal ? last_of_cluster(q, k, v, pass) : balanced(q, k, v, pass);
  }

  // [B, h, n, d] normalised, and its scores with the centroids, [B, h, C, n].
  std::pair<Tensor, Tensor> routed(const Tensor& x, Pass& pass) const {
    const Tensor normal = layer_norm_reference(at_least_float(x));
    const Tensor centroids = centroids_.of(pass).to(normal);
    return {normal, centroids.repeat_interleave(x.size(1) / centroids.size(0), 0)
                        .matmul(normal.transpose(2, 3))};
  }

  Tensor define(const Tensor& q, const Tensor& k, const Tensor& v,
                Pass& pass) override {
    const auto type = q.scalar_type();
    const int64_t group = q.size(1) / k.size(1), count = q.size(2), keys = k.size(2);
    const auto [normal_q, query_scores] = routed(q, pass);
    const auto [normal_k, key_scores] = routed(k, pass);
    const Tensor queries = normalised_ ? normal_q.to(type) : q,
                 others = normalised_ ? normal_k.to(type) : k;
    const Tensor tokens = pass.keys(count, keys).tokens;
    if (pass.mask.causal) {
      const Tensor cluster = key_scores.argmax(2).repeat_interleave(group, 1);
      const Tensor own = cluster.slice(2, keys - count).unsqueeze(3);
      Tensor alike =
          own.eq(cluster.unsqueeze(2)) & allowed_pairs(pass, count, keys, q.device());
      // Those of its cluster that a query may see, counted from the last.
      const Tensor number = alike.flip(3).cumsum(3).flip(3);
      return masked_attention(queries, others, v, alike & number.le(last_), Pass(),
                              scale_);
    }
    const auto taken = [&](const Tensor& scores, const Tensor& real) {
      const Tensor open = real.defined() ? real.to(q.device())
                                         : torch::ones({scores.size(0), scores.size(3)},
                                                       q.options().dtype(torch::kBool));
      const Tensor seen = open.unsqueeze(1).unsqueeze(1);
      const Tensor x =
          scores.to(torch::kFloat)
              .masked_fill(seen.logical_not(), -std::numeric_limits<float>::infinity());
      const Tensor at = torch::arange(x.size(3), q.device());
      const Tensor mine = x.unsqueeze(4), other = x.unsqueeze(3);
      const Tensor better =
          (other > mine) | (other.eq(mine) & (at.unsqueeze(0) < at.unsqueeze(1)));
      const Tensor share =
          ((open.sum(1) + (clusters() - 1)) / clusters()).floor().view({-1, 1, 1, 1});
      const Tensor rank = better.sum(4);
      return seen & (window_ > 0 ? rank < window_ : rank < share);
    };
    const Tensor asking = taken(query_scores, pass.mask.tokens).to(type),
                 answering = taken(key_scores, tokens).repeat_interleave(group, 1);
    Tensor sum = torch::zeros({q.size(0), q.size(1), count, v.size(3)}, q.options());
    for (int64_t c = 0; c < clusters(); ++c)
      sum = sum + asking.select(2, c).unsqueeze(3) *
                      masked_attention(queries, others, v,
                                       answering.select(2, c).unsqueeze(2), Pass(),
                                       scale_);
    return sum / asking.sum(2).clamp_min(1).unsqueeze(3);
  }

  Centroids centroids_;
  int64_t window_, last_;
  bool normalised_;
  std::optional<double> scale_ = {};
};

constexpr Setting kSettings[] = {
    kClusters,
    {.name = "window",
     .standard = "0",
     .help = "not causal: queries and keys that a cluster takes; 0: a share of N/C",
     .least = 0},
    {.name = "last",
     .standard = "256",
     .help = "causal: tokens of its cluster that a token sees, itself the last",
     .least = 1},
    {.name = "normalised",
     .kind = Kind::boolean,
     .standard = "true",
     .help = "scores are of queries and keys normalised as for routing"},
    {.name = "scale",
     .kind = Kind::number,
     .standard = "0",
     .help = "of scores; 0: d^-1/2",
     .least = 0},
    kDecay,
    kCommitment,
};

}  // namespace

constinit const Mechanism catalogue::routing{
    .name = "routing",
    .summary = "queries and keys in clusters around centroids, each cluster for itself",
    .paper = "Roy et al. 2020, arXiv:2003.05997",
    .classes = "learnable patterns",
    .time = {"N*(clusters + N/clusters)*d", 2},
    .memory = {"N*(clusters + d)", 1},
    .can = {.causal = Causal::optional,
            .padding = true,
            .cross = true,
            .decoding = true,
            .dropout = true,
            .grouped = true},
    .state = "the last tokens of every cluster: clusters*(last - 1)*Hk*(d + dv + 2)",
    .state_size = Routing::state_size,
    .by_content = true,
    .training = kMovingCentroids,
    .settings = kSettings,
    .test_settings = "{clusters: 5, last: 6}",
    .make = made_as<Attention, Routing>(),
};

}  // namespace longspan
