// Attention by way of landmarks, means of segments of the queries and of the keys:
//   softmax(q kl^T) softmax(ql kl^T)^+ softmax(ql k^T) v,
// the pseudo-inverse ^+ by a fixed number of iterations, which are part of the
// definition, and a convolution of the values over the sequence. Xiong et al. 2021,
// arXiv:2102.03902.
//
// An example's segments are of its own real tokens, which are neighbours in the
// convolution whatever padding is between them. Over a context there is no convolution:
// queries have no place in it. Dropout is of the weights by which landmarks see tokens.

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "longspan/attention/dense_reference.h"
#include "longspan/attention/head_axis.h"
#include "longspan/attention/linear_map.h"
#include "longspan/attention/mechanism.h"
#include "longspan/attention/prepare.h"
#include "longspan/attention/real_first.h"
#include "longspan/base/error.h"
#include "longspan/kernels/convolution.h"
#include "longspan/kernels/matmul.h"
#include "longspan/kernels/pool.h"
#include "longspan/kernels/total.h"

namespace longspan {
namespace {

using torch::Tensor;

// The real tokens of every example in at most `most` segments of one size, the last
// perhaps shorter.
class Segments {
 public:
  // real: [B, tokens] bool; undefined: all
  Segments(const Tensor& real, const Tensor& x, int64_t most) {
    const int64_t tokens = x.size(2);
    if (!real.defined() && tokens > 0) {
      const int64_t size = (tokens + most - 1) / most;
      spans_ = equal_spans(tokens, size, size);
      each_one_ = torch::full({1}, size == 1, x.options().dtype(torch::kBool));
      return;
    }
    const Tensor known = real.defined() ? real.to(x.device())
                                        : torch::ones({x.size(0), tokens},
                                                      x.options().dtype(torch::kBool));
    first_.emplace(known);
    const Tensor count = known.sum(1, /*keepdim=*/true);  // [B, 1]
    const Tensor size =
        torch::div(count + (most - 1), most, /*rounding_mode=*/"floor").clamp_min(1);
    const Tensor segment = torch::arange(most, count.options());  // [m]
    const Tensor begin = segment * size;                          // [B, m]
    real_ = begin < count;
    counts_ = (count - begin).minimum(size).clamp_min(1);
    const Tensor own = torch::div(first_->place(), size, /*rounding_mode=*/"floor");
    members_ = (own.unsqueeze(1) == segment.view({1, -1, 1})) & known.unsqueeze(1);
    each_one_ = (size == 1).squeeze(1);
  }

  // x [B, h, tokens, w] -> [B, h, m, w]
  Tensor means(const Tensor& x) const {
    if (!first_) return pool_spans({.x = x}, spans_, Pooling::mean).out;
    const Tensor rows = joined_heads(at_least_float(first_->cleared(x)));
    const Tensor sums = longspan::matmul(members_.to(rows.scalar_type()), rows);
    return in_heads(sums / counts_.unsqueeze(2), x.size(1)).to(x.scalar_type());
  }

  // [B, m] bool: the segments that have tokens; undefined: all.
  const Tensor& real() const { return real_; }
  // [B|1] bool: whether no segment has more than one token.
  const Tensor& each_one() const { return each_one_; }
  // Where padding is; none: nowhere.
  const std::optional<RealFirst>& first() const { return first_; }

 private:
  std::vector<Span> spans_;
  std::optional<RealFirst> first_;
  Tensor members_, counts_;  // [B, m, tokens] bool, [B, m]
  Tensor real_, each_one_;
};

class Nystrom final : public Attention {
 public:
  Nystrom(const Settings& settings, const Sizes& sizes)
      : landmarks_(settings.integer("landmarks")),
        iterations_(settings.integer("iterations")),
        shortcut_(settings.flag("shortcut")) {
    const int64_t kernel = settings.integer("convolution");
    require(kernel == 0 || kernel % 2 == 1,
            "convolution must be 0 or an odd number of tokens, got ", kernel);
    if (kernel == 0) return;
    const double bound = 1 / std::sqrt(static_cast<double>(kernel));
    convolution_ = register_parameter(
        "convolution", torch::empty({sizes.heads, kernel}).uniform_(-bound, bound));
  }

  Sight sight(int64_t tokens, bool) override {
    Tensor pairs = torch::full({1, tokens, tokens},
                               static_cast<int64_t>(Sees::summarised), torch::kByte);
    if (convolution_.defined()) {
      const Tensor at = torch::arange(tokens);
      const Tensor near = (at.unsqueeze(1) - at).abs() <= convolution_.size(1) / 2;
      pairs.masked_fill_(near, static_cast<int64_t>(Sees::directly));
    }
    return {.pairs = pairs};
  }

 private:
  static bool crosses(const Tensor& q, const Tensor& k, const Pass& pass) {
    return pass.crosses() || q.size(2) != k.size(2);
  }

  // The weights of landmarks, [B, H, mq, mk] in float; 0 where one of the two is none.
  static Tensor weights(const Tensor& q, const Tensor& k, const Tensor& real_q,
                        const Tensor& real_k) {
    const double scale = 1 / std::sqrt(static_cast<double>(q.size(3)));
    const Tensor scores =
        scale * longspan::matmul(at_least_float(q), at_least_float(k).transpose(2, 3));
    if (!real_q.defined() && !real_k.defined()) return scores.softmax(3);
    Tensor hidden = torch::zeros({1, 1, 1, 1}, scores.options().dtype(torch::kBool));
    if (real_q.defined())
      hidden = hidden | real_q.logical_not().unsqueeze(1).unsqueeze(3);
    if (real_k.defined())
      hidden = hidden | real_k.logical_not().unsqueeze(1).unsqueeze(2);
    return scores.masked_fill(hidden, hidden_score(scores.scalar_type()))
        .softmax(3)
        .masked_fill(hidden, 0);
  }

  // The pseudo-inverse of a [B, H, n, m], nearly: [B, H, m, n]. Rows and columns of
  // zeros stay such.
  Tensor inverse(const Tensor& a) const {
    // The largest sum of a column; that of a row is 1.
    const Tensor columns =
        longspan::sum_to(a, {a.size(0), a.size(1), 1, a.size(3)}).amax(3, true);
    Tensor z = a.transpose(2, 3);
    z = z / spread(columns.masked_fill(columns == 0, 1), z.sizes());
    const Tensor one = torch::eye(a.size(2), a.options());
    for (int64_t i = 0; i < iterations_; ++i) {
      const Tensor az = longspan::matmul(a, z);
      const Tensor inner = 15 * one - longspan::matmul(az, 7 * one - az);
      z = longspan::matmul(z, 13 * one - longspan::matmul(az, inner)) / 4;
    }
    return z;
  }

  Tensor run(const Tensor& q, const Tensor& k, const Tensor& v, Pass& pass) override {
    require(!shortcut_ || !pass.training || pass.dropout == 0,
            "shortcut: full attention in place of landmarks drops no weights; give "
            "shortcut: false or no attention dropout");
    const auto [queries, tokens, options, global, order] = prepare(q, k, v, pass);
    const int64_t heads = q.size(1);
    const bool alone = !crosses(q, k, pass);
    const Segments of_keys(pass.keys(q.size(2), k.size(2)).tokens, k, landmarks_);
    const Segments of_queries =
        alone ? of_keys : Segments(pass.mask.tokens, q, landmarks_);
    const Tensor few_q = of_queries.means(q),
                 few_k = for_heads(of_keys.means(k), heads);

    const Tensor seen = block_attention({.q = few_q}, {tokens}, options).out;
    const Tensor z = inverse(weights(few_q, few_k, of_queries.real(), of_keys.real()));
    Source few{.k = few_k,
               .v = longspan::matmul(z, at_least_float(seen)).to(v.scalar_type())};
    if (shortcut_)
      few.v = torch::where(of_keys.each_one().view({-1, 1, 1, 1}),
                           for_heads(of_keys.means(v), heads), few.v);
    if (of_keys.real().defined()) few.to = open_where(of_keys.real());
    const Tensor out = block_attention(queries, {few}).out;
    if (!convolution_.defined() || !alone) return out;

    const auto& first = of_keys.first();
    if (!first) return out + longspan::convolution(v, convolution_);
    return out +
           first->moved_back(longspan::convolution(first->moved(v), convolution_));
  }

  // One example without padding: q [H, n, d], k [H, m, d], v [H, m, dv].
  Tensor defined(const Tensor& q, const Tensor& k, const Tensor& v,
                 bool convolve) const {
    const double scale = 1 / std::sqrt(static_cast<double>(q.size(2)));
    const auto softmax = [&](const Tensor& queries, const Tensor& keys) {
      return (scale * queries.matmul(keys.transpose(1, 2))).softmax(2);
    };
    const auto landmarks = [&](const Tensor& x) {
      const int64_t size = (x.size(1) + landmarks_ - 1) / landmarks_;
      std::vector<Tensor> means;
      for (const Tensor& segment : x.split(size, 1))
        means.push_back(segment.mean(1, /*keepdim=*/true));
      return torch::cat(means, 1);
    };
    Tensor out;
    if (shortcut_ && k.size(1) <= landmarks_) {
      out = softmax(q, k).matmul(v);
    } else {
      const Tensor few_q = landmarks(q), few_k = landmarks(k);
      const Tensor a = at_least_float(softmax(few_q, few_k));
      const auto largest = [&](int64_t axis) {
        return a.sum(axis, /*keepdim=*/true).amax(c10::IntArrayRef{1, 2}, true);
      };
      Tensor z = a.transpose(1, 2) / (largest(1) * largest(2));
      const Tensor one = torch::eye(a.size(1), a.options());
      for (int64_t i = 0; i < iterations_; ++i) {
        const Tensor az = a.matmul(z);
        z = 0.25 * z.matmul(13 * one - az.matmul(15 * one - az.matmul(7 * one - az)));
      }
      out = softmax(q, few_k)
                .matmul(z.to(q.scalar_type()))
                .matmul(softmax(few_q, k))
                .matmul(v);
    }
    if (!convolve) return out;
    const int64_t reach = convolution_.size(1) / 2;
    const Tensor padded = torch::constant_pad_nd(v, {0, 0, reach, reach});
    for (int64_t t = 0; t <= 2 * reach; ++t)
      out = out + convolution_.slice(1, t, t + 1).unsqueeze(2) *
                      padded.slice(1, t, t + v.size(1));
    return out;
  }

  Tensor define(const Tensor& q, const Tensor& k, const Tensor& v,
                Pass& pass) override {
    const Tensor real_k = pass.keys(q.size(2), k.size(2)).tokens;
    const bool alone = !crosses(q, k, pass);
    const int64_t group = q.size(1) / k.size(1);
    std::vector<Tensor> outs;
    for (int64_t example = 0; example < q.size(0); ++example) {
      const auto places = [&](const Tensor& real, int64_t count) {
        const Tensor all = torch::arange(count, q.options().dtype(torch::kLong));
        return real.defined() ? all.masked_select(real[example].to(q.device())) : all;
      };
      const Tensor rows = places(pass.mask.tokens, q.size(2)),
                   columns = places(real_k, k.size(2));
      // Zeros that have a gradient.
      Tensor out = torch::zeros({q.size(1), q.size(2), v.size(3)}, q.options()) +
                   q.slice(2, 0, 0).sum();
      const auto seen = [&](const Tensor& x) {
        return x[example].index_select(1, columns).repeat_interleave(group, 0);
      };
      if (rows.size(0) > 0 && columns.size(0) > 0)
        out = out.index_copy(1, rows,
                             defined(q[example].index_select(1, rows), seen(k), seen(v),
                                     alone && convolution_.defined()));
      outs.push_back(out);
    }
    return torch::stack(outs);
  }

  int64_t landmarks_, iterations_;
  bool shortcut_;
  Tensor convolution_;  // [H, T], or undefined
};

constexpr Setting kSettings[] = {
    {.name = "landmarks",
     .standard = "64",
     .help = "segments at most, of which the means are landmarks",
     .least = 1},
    {.name = "iterations",
     .standard = "6",
     .help = "steps towards the pseudo-inverse",
     .least = 0},
    {.name = "convolution",
     .standard = "33",
     .help = "tokens that the convolution of the values spans, an odd number; 0: none",
     .least = 0},
    {.name = "shortcut",
     .kind = Kind::boolean,
     .standard = "false",
     .help = "full attention in place of the landmarks for examples that have no more "
             "keys than those"},
};

}  // namespace

constinit const Mechanism catalogue::nystrom{
    .name = "nystrom",
    .summary = "landmarks of queries and keys stand in for all, by a pseudo-inverse",
    .paper = "Xiong et al. 2021, arXiv:2102.03902",
    .classes = "memory, downsampling",
    .time = {"(N*d + landmarks*landmarks*iterations)*landmarks", 1},
    .memory = {"N*(d + landmarks) + landmarks*landmarks", 1},
    .can = {.causal = Causal::never,
            .padding = true,
            .cross = true,
            .dropout = true,
            .grouped = true},
    .full = true,
    .settings = kSettings,
    .test_settings = "{landmarks: 16, convolution: 5}",
    .make = made_as<Attention, Nystrom>(),
};

}  // namespace longspan
