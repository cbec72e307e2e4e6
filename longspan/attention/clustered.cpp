// Queries in clusters: the mean of a cluster attends for all its members, which then
// weigh the keys that matter most to it by themselves. Vyas et al. 2020,
// arXiv:2007.04825.
//
// Clusters are found by K-means over hashes of the queries, which begins at queries
// that are evenly spaced among the real ones. Of the weights a mean gives, those on its
// `top` keys are shared out anew by each member, so that they keep their sum; the rest
// is alike for all members. Dropout is of the weights that a query has of its own: with
// `improved` those on the top keys, else those of the mean.

#include <algorithm>
#include <cmath>

#include "longspan/attention/chosen.h"
#include "longspan/attention/dense_reference.h"
#include "longspan/attention/linear_map.h"
#include "longspan/attention/mechanism.h"
#include "longspan/attention/prepare.h"
#include "longspan/base/error.h"
#include "longspan/kernels/cluster.h"
#include "longspan/kernels/hash.h"
#include "longspan/kernels/matmul.h"
#include "longspan/kernels/total.h"

namespace longspan {
namespace {

using torch::Tensor;

// Every `size` queries see `width` keys of their own.
Pattern own_keys(int64_t size, int64_t width) {
  return [=](int64_t query, std::vector<Span>& keys) {
    keys.push_back({query / size * width, (query / size + 1) * width});
  };
}

// Queries put in order of their clusters, in tiles that have members of one only.
struct Members {
  static constexpr int64_t kTile = Layout::kTile;

  int64_t tiles = 0;
  Tensor rows;     // [B, H, tiles * kTile]: the query at each place, or -1
  Tensor cluster;  // [B, H, tiles]

  // of: [B, H, N], -1 for those in none.
  Members(const Tensor& of, int64_t clusters) {
    const int64_t examples = of.size(0), heads = of.size(1), count = of.size(2);
    // A cluster leaves at most kTile - 1 places of its last tile empty.
    tiles = (count + (kTile - 1) * std::min(clusters, count)) / kTile;
    const auto whole = of.options();
    const auto [sorted, order] =
        of.masked_fill(of < 0, clusters).sort(/*stable=*/true, 2, false);
    const Tensor number =
        torch::arange(clusters, whole).expand({examples, heads, -1}).contiguous();
    const Tensor first = torch::searchsorted(sorted, number),
                 end = torch::searchsorted(sorted, number, false, /*right=*/true);
    const Tensor own = torch::div(end - first + (kTile - 1), kTile, "floor");
    const Tensor tile_end = own.cumsum(2);
    // From ranks in `sorted` to places.
    const Tensor shift = (tile_end - own) * kTile - first;
    const Tensor place =
        (torch::arange(count, whole) + shift.gather(2, sorted.clamp_max(clusters - 1)))
            .masked_fill(sorted == clusters, tiles * kTile);
    rows = torch::full({examples, heads, tiles * kTile + 1}, -1, whole)
               .scatter(2, place, order)
               .slice(2, 0, tiles * kTile)
               .contiguous();
    const Tensor tile =
        torch::arange(tiles, whole).expand({examples, heads, -1}).contiguous();
    cluster = torch::searchsorted(tile_end, tile, false, /*right=*/true)
                  .clamp_max(clusters - 1);
  }

  // x of its cluster for every member, 0 for what is in none: [B, H, C, w] to
  // [B, H, N, w].
  Tensor spread_out(const Tensor& x, int64_t count) const {
    const auto score = [&](int64_t n) {
      return torch::zeros({x.size(0), x.size(1), n, 1}, x.options());
    };
    return block_attention({.q = score(count), .rows = rows},
                           {{.k = score(x.size(2)),
                             .v = x,
                             .layout = Layout(tiles * kTile, tiles, own_keys(kTile, 1)),
                             .rows = cluster}})
        .out;
  }
};

class Clustered final : public Attention {
 public:
  Clustered(const Settings& settings, const Sizes& sizes)
      : clusters_(settings.integer("clusters")),
        rounds_(settings.integer("iterations")),
        top_(settings.integer("top")),
        improved_(settings.flag("improved")) {
    const int64_t bits = settings.integer("bits");
    require(bits <= kMostPlanes, "bits must be 1 to ", kMostPlanes, ", got ", bits);
    require(clusters_ <= kMostClusters, "clusters must be 1 to ", kMostClusters,
            ", got ", clusters_);
    planes_ = register_buffer("planes", torch::randn({bits, sizes.head_width}));
    offsets_ = register_buffer("offsets", torch::randn({bits}));
  }

 private:
  // The cluster of every query, [B, H, N], -1 for padding.
  Tensor clusters_of(const Tensor& q, Pass& pass) const {
    return chosen(pass, "clusters", [&] {
      const Tensor real =
          pass.mask.tokens.defined() ? pass.mask.tokens.to(q.device()) : Tensor();
      return hamming_clusters(sign_hash(q, planes_, offsets_), real, clusters_,
                              rounds_);
    });
  }

  // [B, H, C, d]: means of the members, as attention without scores. Without members 0.
  Tensor centroids_of(const Tensor& q, const Tensor& of) const {
    const auto score = [&](int64_t n) {
      return torch::zeros({q.size(0), q.size(1), n, 1}, q.options());
    };
    return block_attention({.q = score(clusters_),
                            .buckets = torch::arange(clusters_, of.options())},
                           {{.k = score(q.size(2)), .v = q, .buckets = of}})
        .out;
  }

  // The keys with the largest scores of every centroid, [B, H, C, top]; `real` [B, M]
  // or undefined.
  Tensor top_keys(const Tensor& centroids, const Tensor& k, const Tensor& real,
                  Pass& pass) const {
    return chosen(pass, "top", [&] {
      constexpr int64_t kRows = 16;  // at once: their scores are O(M)
      const torch::NoGradGuard no_gradient;
      const int64_t examples = k.size(0), key_heads = k.size(1),
                    heads = centroids.size(1), top = std::min(top_, k.size(2));
      const Tensor keys = at_least_float(k).transpose(2, 3);
      const Tensor queries = at_least_float(centroids).reshape(
          {examples, key_heads, heads / key_heads * clusters_, k.size(3)});
      std::vector<Tensor> found;
      for (const Tensor& some : queries.split(kRows, 2)) {
        Tensor scores = longspan::matmul(some, keys);
        if (real.defined())
          scores.masked_fill_(real.logical_not().unsqueeze(1).unsqueeze(1), -INFINITY);
        found.push_back(std::get<1>(scores.topk(top, 3)));
      }
      return torch::cat(found, 2).view({examples, heads, clusters_, top});
    });
  }

  Tensor run(const Tensor& q, const Tensor& k, const Tensor& v, Pass& pass) override {
    const Prepared prepared = prepare(q, k, v, pass);
    const Source& keys = prepared.source;
    const int64_t count = q.size(2), top = improved_ ? std::min(top_, k.size(2)) : 0;
    const Tensor of = clusters_of(q, pass), centroids = centroids_of(q, of);
    const Members members(of, clusters_);
    const Attended all = block_attention({.q = centroids}, {keys},
                                         top > 0 ? BlockAttention() : prepared.options);
    const Tensor mean = at_least_float(all.out);
    if (top == 0) return members.spread_out(mean, count).to(q.scalar_type());

    const Tensor real = pass.keys(count, k.size(2)).tokens;
    const Tensor best =
        top_keys(centroids, k, real.defined() ? real.to(q.device()) : real, pass);
    Source of_centroids = keys;
    of_centroids.rows = best.flatten(2);
    of_centroids.layout = Layout(clusters_, clusters_ * top, own_keys(1, top));
    const Attended part = block_attention({.q = centroids}, {of_centroids});
    const Tensor nothing = all.lse.isneginf();
    const Tensor mass =  // of the centroid's weights on its top keys
        (part.lse.masked_fill(nothing, 0) - all.lse.masked_fill(nothing, 0))
            .exp()
            .unsqueeze(3);
    const Tensor rest = mean - spread(mass, mean.sizes()) * at_least_float(part.out);

    Source of_members = keys;
    of_members.rows =
        best.gather(2, members.cluster.unsqueeze(3).expand({-1, -1, -1, top}))
            .flatten(2);
    of_members.layout = Layout(members.tiles * Members::kTile, members.tiles * top,
                               own_keys(Members::kTile, top));
    const Tensor own = at_least_float(
        block_attention({.q = q, .rows = members.rows}, {of_members}, prepared.options)
            .out);
    const auto shared = members.spread_out(torch::cat({rest, mass}, 3), count)
                            .split_with_sizes({rest.size(3), 1}, 3);
    return (shared[0] + spread(shared[1], own.sizes()) * own).to(q.scalar_type());
  }

  Tensor define(const Tensor& q, const Tensor& k, const Tensor& v,
                Pass& pass) override {
    const int64_t group = q.size(1) / k.size(1), keys = k.size(2);
    const Tensor of = clusters_of(q, pass);
    const Tensor member =
        of.unsqueeze(3).eq(torch::arange(clusters_, of.options())).to(q.scalar_type());
    const Tensor centroids = member.transpose(2, 3).matmul(q) /
                             member.sum(2).clamp_min(1).unsqueeze(3);  // [B, H, C, d]
    const Tensor real = pass.keys(q.size(2), keys).tokens;
    const Tensor open = real.defined()
                            ? real.to(q.device())
                            : torch::ones({k.size(0), keys}, member.options()).gt(0);
    const Tensor seen = open.unsqueeze(1).unsqueeze(1);  // [B, 1, 1, M]
    const auto weights = [&](const Tensor& queries, const Tensor& where) {
      const Tensor scores =
          queries.matmul(k.repeat_interleave(group, 1).transpose(2, 3)) /
          std::sqrt(static_cast<double>(q.size(3)));
      const Tensor hidden = where.logical_not();
      return scores.masked_fill(hidden, hidden_score(q.scalar_type()))
          .softmax(3)
          .masked_fill(hidden, 0);
    };
    const Tensor of_centroids = weights(centroids, seen);  // [B, H, C, M]
    Tensor all = member.matmul(of_centroids);
    if (improved_ && keys > 0) {
      const Tensor best = top_keys(centroids_of(q, of), k, open, pass);
      const Tensor is_top =
          torch::zeros(of_centroids.sizes(), q.options()).scatter(3, best, 1) *
          seen.to(q.scalar_type());
      const Tensor mass = (of_centroids * is_top).sum(3, /*keepdim=*/true);
      all = member.matmul(of_centroids * (1 - is_top)) +
            member.matmul(mass) * weights(q, member.matmul(is_top) > 0.5);
    }
    return all.matmul(v.repeat_interleave(group, 1));
  }

  int64_t clusters_, rounds_, top_;
  bool improved_;
  Tensor planes_, offsets_;  // [bits, d], [bits]
};

constexpr Setting kSettings[] = {
    {.name = "clusters",
     .standard = "100",
     .help = "clusters of queries, C; never more than there are queries",
     .least = 1},
    {.name = "bits",
     .standard = "63",
     .help = "planes whose sides are the hash of a query, 63 at most",
     .least = 1},
    {.name = "iterations", .standard = "10", .help = "rounds of K-means", .least = 1},
    {.name = "improved",
     .kind = Kind::boolean,
     .standard = "true",
     .help = "members weigh the top keys of their cluster by themselves"},
    {.name = "top", .standard = "32", .help = "how many those are", .least = 1},
};

}  // namespace

constinit const Mechanism catalogue::clustered{
    .name = "clustered",
    .summary = "queries in clusters, whose means attend for all their members",
    .paper = "Vyas et al. 2020, arXiv:2007.04825",
    .classes = "learnable patterns",
    .time = {"N*(clusters*(d + iterations) + top*d)", 1},
    .memory = {"N*d + clusters*top", 1},
    .can = {.causal = Causal::never,
            .padding = true,
            .cross = true,
            .dropout = true,
            .grouped = true},
    .full = true,
    .by_content = true,
    .settings = kSettings,
    .test_settings = "{clusters: 7, top: 5, iterations: 4, bits: 20}",
    .make = made_as<Attention, Clustered>(),
};

}  // namespace longspan
