// Tokens put in order of clusters of their hidden states and cut into chunks, or, in
// the other kind of layer, windows that overlap. Wang et al. 2020, arXiv:2009.06097.
//
// Clusters belong to centroids that are the K-means of a bank of hidden states; the
// bank gets some states at random from every pass of training, and every `refresh`
// steps the centroids are computed anew. Until then they are random.

#include <algorithm>
#include <limits>

#include "longspan/attention/dense_reference.h"
#include "longspan/attention/head_projections.h"
#include "longspan/attention/mixer_pass.h"
#include "longspan/attention/prepare.h"
#include "longspan/attention/routing.h"
#include "longspan/base/error.h"
#include "longspan/kernels/matmul.h"
#include "longspan/kernels/random_numbers.h"
#include "longspan/kernels/total.h"

namespace longspan {
namespace {

using torch::Tensor;
using Integer = std::numeric_limits<int64_t>;

constexpr int64_t kRows = 4096;  // whose scores with all centroids exist at once

// The largest centroid by score of each row of x [n, E], less `handicap` [C]: [n].
Tensor nearest(const Tensor& x, const Tensor& centroids, const Tensor& handicap = {}) {
  std::vector<Tensor> found = {torch::zeros({0}, x.options().dtype(torch::kLong))};
  for (const Tensor& some : x.split(kRows)) {
    Tensor scores = longspan::matmul(at_least_float(some), centroids.t());
    if (handicap.defined()) scores = scores - handicap;
    found.push_back(scores.argmax(1));
  }
  return torch::cat(found);
}

// Hidden states, and their K-means.
class Bank {
 public:
  Bank(torch::nn::Module& owner, const Settings& settings, int64_t width)
      : more_(std::min(settings.integer("push"), settings.integer("bank"))),
        rounds_(settings.integer("iterations")),
        states_(owner.register_buffer("bank",
                                      torch::zeros({settings.integer("bank"), width}))),
        count_(owner.register_buffer("bank_count", torch::zeros({1}, torch::kLong))) {}

  // Takes in rows of x [n, E] where `real` [n], drawn at random, in place of the
  // oldest.
  void put(const Tensor& x, const Tensor& real, Key key) {
    if (x.size(0) == 0) return;
    const Tensor ends = real.cumsum(0), all = ends.slice(0, -1);
    const Tensor rank =
        (uniform(key, {more_},
                 torch::TensorOptions(torch::kDouble).device(x.device())) *
         all)
            .to(torch::kLong);
    const Tensor row =
        torch::searchsorted(ends, rank, false, /*right=*/true).clamp_max(x.size(0) - 1);
    const Tensor place =
        (count_ + torch::arange(more_, count_.options())).remainder(states_.size(0));
    const Tensor states =
        torch::where(all > 0, x.index_select(0, row).to(states_.scalar_type()),
                     states_.index_select(0, place));
    states_.index_copy_(0, place, states);
    count_.add_(all.gt(0) * more_);
  }

  // The K-means of what the bank holds, from evenly spaced states on; `before` where it
  // holds nothing.
  Tensor means(const Tensor& before) const {
    const int64_t clusters = before.size(0), width = before.size(1);
    const Tensor held = count_.clamp_max(states_.size(0));
    const Tensor counted = torch::arange(states_.size(0), held.options()) < held;
    const Tensor first =
        torch::div(torch::arange(clusters, held.options()) * held, clusters, "floor");
    Tensor centroids = at_least_float(states_.index_select(0, first));
    for (int64_t round = 0; round < rounds_; ++round) {
      const Tensor handicap =
          longspan::sum_to(centroids.square(), {clusters, 1}).view({clusters}) / 2;
      const Tensor of = nearest(states_, centroids, handicap)
                            .masked_fill(counted.logical_not(), clusters);
      Tensor sums = torch::zeros_like(centroids),
             counts = torch::zeros({clusters, 1}, centroids.options());
      for (int64_t row = 0; row < of.size(0); row += kRows) {
        const Tensor member =
            of.slice(0, row, row + kRows)
                .unsqueeze(0)
                .eq(torch::arange(clusters, of.options()).unsqueeze(1));
        counts += member.sum(1, /*keepdim=*/true);
        sums += longspan::matmul(member.to(centroids.scalar_type()),
                                 at_least_float(states_.slice(0, row, row + kRows)));
      }
      centroids = torch::where(counts > 0, sums / counts.clamp_min(1), centroids);
    }
    return torch::where(held > 0, centroids.to(before.scalar_type()), before)
        .view({clusters, width});
  }

 private:
  int64_t more_, rounds_;
  Tensor states_;  // [S, E]
  Tensor count_;   // [1]: how many it ever got
};

class ClusterFormer final : public Mixer {
 public:
  ClusterFormer(const Settings& settings, const Sizes& sizes)
      : projections_(*this, "", sizes, /*has_bias=*/false),
        window_(settings.integer("window")),
        stride_(settings.integer("stride")),
        refresh_(settings.integer("refresh")),
        apart_(settings.flag("same_cluster")) {
    if (settings.word("kind") == "windows") {
      require(stride_ <= window_, "stride must be at most the window of ", window_,
              " tokens, got ", stride_);
      return;
    }
    centroids_ = register_buffer(
        "centroids", torch::randn({settings.integer("clusters"), sizes.embedding}));
    bank_.emplace(*this, settings, sizes.embedding);
  }

 private:
  static Tensor real_tokens(const Tensor& x, const Pass& pass) {
    return pass.mask.tokens.defined()
               ? pass.mask.tokens.to(x.device())
               : torch::ones({x.size(0), x.size(1)}, x.options().dtype(torch::kBool));
  }

  // [B, 1, N], the number of centroids for padding.
  Tensor clusters_of(const Tensor& x, const Tensor& real) const {
    const torch::NoGradGuard without_gradient;
    return nearest(x.flatten(0, 1), at_least_float(centroids_).to(at_least_float(x)))
        .view(real.sizes())
        .masked_fill(real.logical_not(), centroids_.size(0))
        .unsqueeze(1);
  }

  void lay_chunks(Queries& queries, Source& source, const Tensor& cluster) const {
    const int64_t count = cluster.size(2);
    queries.rows = source.rows = ByCluster(cluster).order;
    source.rows_once = true;
    source.layout = Layout(count, count, block_of_keys(window_));
    if (apart_) queries.buckets = source.buckets = cluster;
  }

  // Window w has the tokens from w * stride on. A token sees that of its own stride, or
  // the last one: the one number that depends on the length of an example.
  void lay_windows(Queries& queries, Source& source, const Tensor& real) const {
    const int64_t count = real.size(1), window = window_, stride = stride_;
    const Tensor at = torch::arange(count, queries.q.options().dtype(torch::kLong));
    const auto part = [&](const Tensor& x) { return torch::div(x, stride, "floor"); };
    const Tensor length = ((at + 1) * real).amax(1, /*keepdim=*/true);  // [B, 1]
    const Tensor last = part((length - window + stride - 1).clamp_min(0));
    queries.positions = torch::minimum(part(at), last).unsqueeze(1);
    source.from = part(at - window) + 1;
    source.to = (part(at) + 1)
                    .expand(real.sizes())
                    .masked_fill(real.logical_not(), Integer::min())
                    .unsqueeze(1);
    source.layout = Layout(count, count, [=](int64_t query, std::vector<Span>& seen) {
      const int64_t first = std::max<int64_t>(query - window + stride, 0) / stride;
      seen.push_back({first * stride, query / stride * stride + window});
    });
  }

  Tensor run(const Tensor& x, Pass& pass) override {
    const Tensor real = real_tokens(x, pass);
    Queries queries{.q = projections_.q(x)};
    Source source{.k = projections_.k(x), .v = projections_.v(x)};
    if (bank_) {
      if (pass.mask.tokens.defined()) source.to = open_where(real);
      lay_chunks(queries, source,
                 chosen(pass, "clusters", [&] { return clusters_of(x, real); }));
    } else {
      lay_windows(queries, source, real);
    }
    const Tensor out =
        block_attention(queries, {source}, BlockAttention{.dropout = dropout_of(pass)})
            .out;
    if (bank_ && pass.training) learn(x, real, pass);
    return projections_.out(out);
  }

  void learn(const Tensor& x, const Tensor& real, Pass& pass) {
    const Key key = pass.draw.key();  // also in a replay, for the draws after it
    if (pass.replay) return;
    const torch::NoGradGuard changing;
    bank_->put(x.detach().flatten(0, 1), real.flatten(), key);
    const auto step = static_cast<int64_t>(pass.draw.step());
    if (step == 0 || step % refresh_ != 0 || step == refreshed_) return;
    centroids_.copy_(bank_->means(centroids_));
    refreshed_ = step;
  }

  // [B, N, N] bool
  Tensor visible_in_chunks(const Tensor& x, const Tensor& real) const {
    const Tensor of =
        at_least_float(x).matmul(centroids_.to(at_least_float(x)).t()).argmax(2);
    const Tensor at = torch::arange(x.size(1), of.options());
    const Tensor mine = of.unsqueeze(2), other = of.unsqueeze(1);
    const Tensor before =
        (other < mine) | (other.eq(mine) & (at.unsqueeze(0) < at.unsqueeze(1)));
    const Tensor chunk =
        torch::div((before & real.unsqueeze(1)).sum(2), window_, "floor");
    const Tensor alike = chunk.unsqueeze(2).eq(chunk.unsqueeze(1));
    return apart_ ? alike & mine.eq(other) : alike;
  }

  Tensor visible_in_windows(const Tensor& real) const {
    const Tensor mask = real.to(torch::kCPU).contiguous();
    const int64_t count = mask.size(1);
    Tensor visible = torch::zeros({mask.size(0), count, count}, torch::kBool);
    for (int64_t b = 0; b < mask.size(0); ++b) {
      int64_t length = count, windows = 1;
      while (length > 0 && !mask[b][length - 1].item<bool>()) --length;
      while ((windows - 1) * stride_ + window_ < length) ++windows;
      for (int64_t i = 0; i < count; ++i) {
        const int64_t first = std::min(i / stride_, windows - 1) * stride_;
        visible[b][i].slice(0, first, first + window_).fill_(true);
      }
    }
    return visible.to(real.device());
  }

  Tensor define(const Tensor& x, Pass& pass) override {
    const Tensor real = real_tokens(x, pass);
    const Tensor visible =
        (bank_ ? visible_in_chunks(x, real) : visible_in_windows(real)) &
        real.unsqueeze(1);
    return projections_.out(masked_attention(projections_.q(x), projections_.k(x),
                                             projections_.v(x), visible.unsqueeze(1),
                                             Pass()));
  }

  HeadProjections projections_;
  int64_t window_, stride_, refresh_;
  bool apart_;
  Tensor centroids_;          // [C, E]
  std::optional<Bank> bank_;  // undefined, as the centroids, in layers of windows
  int64_t refreshed_ = -1;    // the step of it, which may have several passes
};

constexpr Setting kSettings[] = {
    {.name = "kind",
     .kind = Kind::word,
     .standard = "clusters",
     .help = "of the layer; in the paper one or two of 24 have clusters",
     .choices = "clusters|windows"},
    {.name = "window",
     .standard = "256",
     .help = "tokens of a chunk, or of a window",
     .least = 1},
    {.name = "stride",
     .standard = "224",
     .help = "from window to window; a token sees that of its own stride, the last "
             "tokens see the last one",
     .least = 1},
    {.name = "clusters", .standard = "512", .help = "centroids of a layer", .least = 1},
    {.name = "same_cluster",
     .kind = Kind::boolean,
     .standard = "false",
     .help = "tokens of a chunk see only those of their cluster"},
    {.name = "bank",
     .standard = "16384",
     .help = "hidden states that centroids are computed from",
     .least = 1},
    {.name = "push",
     .standard = "256",
     .help = "how many of them a pass of training replaces",
     .least = 1},
    {.name = "refresh",
     .standard = "1000",
     .help = "steps of training from K-means to K-means",
     .least = 1},
    {.name = "iterations", .standard = "10", .help = "rounds of K-means", .least = 1},
};

constexpr Preset kPresets[] = {{"paper", "{bank: 100000}"}};

}  // namespace

constinit const Mechanism catalogue::cluster_former{
    .name = "cluster_former",
    .summary = "chunks of tokens in the order of clusters, or windows that overlap",
    .paper = "Wang et al. 2020, arXiv:2009.06097",
    .classes = "learnable patterns",
    .time = {"N*(log N + clusters + window)*E", 1},
    .memory = {"N*E", 1},
    .can = {.padding = true, .dropout = true, .grouped = true},
    .by_content = true,
    .training =
        "2, 4: every `refresh` steps centroids change by the states of all examples",
    .settings = kSettings,
    .presets = kPresets,
    .test_settings = "{window: 16, stride: 12, clusters: 7, bank: 64, push: 8}",
    .make = made_as<Mixer, ClusterFormer>(),
};

}  // namespace longspan
