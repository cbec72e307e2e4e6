// Two levels of attention one after the other: a window, then a wider window whose keys
// and values are pooled. Zhang et al. 2021, arXiv:2105.04371.
//
// Slot g of the second level pools the tokens from g * stride on, `kernel` of them, and
// is seen by the queries to which its middle is near. The paper pools inside the window
// of every query; pooled once for all the slots are the same. The pooling that is
// learned weighs the tokens of a slot by a softmax of a linear map of the key in its
// middle, keys and values alike; a middle that is no real token counts as 0. What comes
// out of both levels is added before the output projection. Weights are not dropped:
// those of the first level inside the softmax of the second would not keep the mean.

#include <algorithm>

#include "longspan/attention/dense_reference.h"
#include "longspan/attention/head_axis.h"
#include "longspan/attention/head_projections.h"
#include "longspan/attention/mechanism.h"
#include "longspan/attention/pattern_attention.h"
#include "longspan/base/error.h"
#include "longspan/kernels/pool.h"
#include "longspan/kernels/total.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr Setting kSettings[] = {
    {.name = "window",
     .standard = "128",
     .help = "tokens seen on each side at the first level, and the token itself",
     .least = 0},
    {.name = "pooled_window",
     .standard = "512",
     .help = "how far from a token the middle of a slot may be at the second level",
     .least = 0},
    {.name = "kernel",
     .standard = "5",
     .help = "tokens that are pooled to one slot",
     .least = 1},
    {.name = "stride",
     .standard = "4",
     .help = "tokens from the beginning of a slot to that of the next",
     .least = 1},
    {.name = "pooling",
     .kind = Kind::word,
     .standard = "ldconv",
     .help = "the mean or the largest of the tokens of a slot, or weights learned from "
             "its middle",
     .choices = "ldconv|mean|max"},
    {.name = "input",
     .kind = Kind::word,
     .standard = "stack",
     .help = "what the second level projects: what the first gives (stack) or what it "
             "is given (mix)",
     .choices = "stack|mix"},
    {.name = "share",
     .kind = Kind::boolean,
     .standard = "false",
     .help = "the projections of the first level serve the second, too"},
};

class Poolingformer final : public Mixer {
 public:
  Poolingformer(const Settings& settings, const Sizes& sizes)
      : sizes_(sizes),
        window_(settings.integer("window")),
        pooled_window_(settings.integer("pooled_window")),
        kernel_(settings.integer("kernel")),
        stride_(settings.integer("stride")),
        pooling_(settings.word("pooling")),
        stacked_(settings.word("input") == "stack"),
        projections_(*this, "", sizes, /*has_bias=*/false) {
    const int64_t joined = sizes.heads * sizes.value_width,
                  width = stacked_ ? joined : sizes.embedding;
    shared_ = settings.flag("share");
    require(!shared_ || width == sizes.embedding,
            "poolingformer: with share, what the ",
            "first level gives must be as wide as the embedding, ", sizes.embedding,
            ", got heads x value_width = ", joined, "; or set input to mix");
    if (!shared_) {
      const auto linear = [&](const char* name, int64_t out) {
        return make_linear(*this, name, out, width, /*has_bias=*/false);
      };
      q_ = linear("pooled_q", sizes.heads * sizes.head_width);
      k_ = linear("pooled_k", sizes.key_heads * sizes.head_width);
      v_ = linear("pooled_v", sizes.key_heads * sizes.value_width);
    }
    if (pooling_ == "ldconv")
      weigh_ =
          make_linear(*this, "pool", kernel_, sizes.head_width, /*has_bias=*/false);
  }

  Sight sight(int64_t tokens, bool) override {
    const Positions at(tokens);
    const Tensor near = (at.query - at.key).abs() <= window_;
    const Tensor slot = torch::arange(slots(tokens)) * stride_;
    const Tensor sees = (at.query - (slot + kernel_ / 2)).abs() <= pooled_window_;
    const Tensor ahead = at.key - slot.unsqueeze(1);
    const Tensor holds = ahead.ge(0).logical_and(ahead < kernel_);
    const auto through = [](const Tensor& first, const Tensor& then) {
      return first.to(torch::kFloat).matmul(then.to(torch::kFloat)) > 0;
    };
    Tensor pooled = through(sees, holds);
    if (stacked_) pooled = through(pooled, near);
    const Tensor pairs =
        pooled.to(torch::kByte) * static_cast<int64_t>(Sees::summarised);
    return {
        .pairs =
            pairs.masked_fill(near, static_cast<int64_t>(Sees::directly)).unsqueeze(0)};
  }

 private:
  // There is always one, if only of nothing.
  int64_t slots(int64_t tokens) const {
    return std::max<int64_t>((tokens + stride_ - 1) / stride_, 1);
  }

  Heads first_heads(const Tensor& x) const {
    return {.q = projections_.q(x), .k = projections_.k(x), .v = projections_.v(x)};
  }

  // `first` of x, and `y` [B, H, N, dv] what it gave.
  Heads second_heads(const Tensor& x, const Heads& first, const Tensor& y) const {
    if (shared_) return stacked_ ? first_heads(joined_heads(y)) : first;
    const Tensor input = stacked_ ? joined_heads(y) : x;
    return {.q = in_heads(q_(input), sizes_.heads),
            .k = in_heads(k_(input), sizes_.key_heads),
            .v = in_heads(v_(input), sizes_.key_heads)};
  }

  // [B|1, G, kernel]: which tokens of the slots there are; `real` [B|1, N].
  Tensor present(const Tensor& real) const {
    return torch::constant_pad_nd(real, {0, filled_length(real.size(1)) - real.size(1)})
        .unfold(1, kernel_, stride_);
  }

  // Of tokens that fill all slots.
  int64_t filled_length(int64_t tokens) const {
    return (slots(tokens) - 1) * stride_ + kernel_;
  }

  Source pooled(const Heads& heads, const Tensor& real) const {
    if (pooling_ == "ldconv") return convolved(heads, real);
    const int64_t tokens = heads.k.size(2);
    std::vector<Span> spans;
    for (int64_t slot = 0; slot < slots(tokens); ++slot)
      spans.push_back({slot * stride_, std::min(slot * stride_ + kernel_, tokens)});
    const auto by_slot = [&](const Tensor& x) {
      return pool_spans({.x = x, .keep = real.unsqueeze(1)}, spans,
                        pooling_ == "mean" ? Pooling::mean : Pooling::max)
          .out;
    };
    return {.k = by_slot(heads.k), .v = by_slot(heads.v)};
  }

  Source convolved(const Heads& heads, const Tensor& real) const {
    const int64_t tokens = heads.k.size(2), count = slots(tokens);
    const Tensor padding = real.logical_not().unsqueeze(1).unsqueeze(3);
    const auto filled = [&](const Tensor& x) {
      return torch::constant_pad_nd(x.masked_fill(padding, 0),
                                    {0, 0, 0, filled_length(tokens) - tokens});
    };
    const auto member = [&](const Tensor& x, int64_t number) {  // of every slot
      return x.slice(2, number, number + (count - 1) * stride_ + 1, stride_);
    };
    const Tensor keys = filled(heads.k), values = filled(heads.v);
    const Tensor hidden = present(real).logical_not().unsqueeze(1);
    const Tensor weights = at_least_float(weigh_(member(keys, kernel_ / 2)))
                               .masked_fill(hidden, hidden_score(torch::kFloat))
                               .softmax(3)
                               .masked_fill(hidden, 0);  // [B, Hk, G, kernel]
    const auto mixed = [&](const Tensor& x) {
      Tensor sum;
      for (int64_t number = 0; number < kernel_; ++number) {
        const Tensor mine = at_least_float(member(x, number));
        const Tensor part =
            longspan::spread(weights.slice(3, number, number + 1), mine.sizes()) * mine;
        sum = sum.defined() ? sum + part : part;
      }
      return sum.to(x.scalar_type());
    };
    return {.k = mixed(keys), .v = mixed(values)};
  }

  // Slots whose middles are near a token.
  Layout near_slots(int64_t tokens) const {
    return Layout(
        tokens, slots(tokens),
        [window = pooled_window_, middle = kernel_ / 2, stride = stride_](
            int64_t query, std::vector<Span>& seen) {
          const int64_t least = std::max<int64_t>(query - window - middle, 0),
                        most = query + window - middle;
          if (most >= 0)
            seen.push_back({(least + stride - 1) / stride, most / stride + 1});
        });
  }

  Tensor run(const Tensor& x, Pass& pass) override {
    const int64_t tokens = x.size(1);
    const Heads first = first_heads(x);
    Prepared near = prepare(first.q, first.k, first.v, pass);
    near.source.layout = Layout(tokens, tokens, window_of_keys(window_, window_));
    const Tensor y = block_attention(near.queries, {near.source}, near.options).out;

    const Heads second = second_heads(x, first, y);
    Prepared far = prepare(second.q, second.k, second.v, pass);
    const bool padded = pass.mask.tokens.defined();
    const Tensor real = padded
                            ? pass.mask.tokens.to(x.device())
                            : torch::ones({1, tokens}, x.options().dtype(torch::kBool));
    far.source = pooled(second, real);
    far.source.layout = near_slots(tokens);
    if (padded) far.source.to = open_where(present(real).any(2));
    return projections_.out(
        y + block_attention(far.queries, {far.source}, far.options).out);
  }

  Tensor define(const Tensor& x, Pass& pass) override {
    const int64_t tokens = x.size(1), count = slots(tokens);
    const Positions at(tokens);
    const Tensor real =
        pass.mask.tokens.defined()
            ? pass.mask.tokens.to(x.device())
            : torch::ones({x.size(0), tokens}, torch::kBool).to(x.device());
    const Heads first = first_heads(x);
    const Tensor near = (at.query - at.key)
                            .abs()
                            .le(window_)
                            .to(x.device())
                            .logical_and(real.unsqueeze(1).unsqueeze(1));
    const Tensor y = masked_attention(first.q, first.k, first.v, near, Pass());

    const Heads second = second_heads(x, first, y);
    const Tensor members = (torch::arange(count) * stride_).unsqueeze(1) +
                           torch::arange(kernel_);  // [G, kernel]
    const Tensor places = members.clamp_max(tokens - 1).flatten().to(x.device());
    const Tensor there =
        real.index_select(1, places)
            .view({x.size(0), count, kernel_})
            .logical_and((members < tokens).to(x.device()));  // [B, G, kernel]
    const Tensor missing = there.logical_not().unsqueeze(1).unsqueeze(4);
    const auto gathered = [&](const Tensor& z) {  // [B, Hk, G, kernel, w]
      return z.index_select(2, places)
          .view({z.size(0), z.size(1), count, kernel_, z.size(3)})
          .masked_fill(missing, 0);
    };
    const double hide = hidden_score(x.scalar_type());
    Tensor weights = there.unsqueeze(1).to(x.scalar_type());  // [B, Hk|1, G, kernel]
    weights = weights / weights.sum(3, /*keepdim=*/true).clamp_min(1);
    if (pooling_ == "ldconv") {
      const Tensor middle = gathered(second.k).select(3, kernel_ / 2);
      weights = middle.matmul(weigh_.weight.t())
                    .masked_fill(missing.squeeze(4), hide)
                    .softmax(3)
                    .masked_fill(missing.squeeze(4), 0);
    }
    const auto by_slot = [&](const Tensor& z) {
      const Tensor all = gathered(z);
      if (pooling_ != "max") return (all * weights.unsqueeze(4)).sum(3);
      return std::get<0>(all.masked_fill(missing, hide).max(3))
          .masked_fill(missing.all(3), 0);
    };
    const Tensor middles = (torch::arange(count) * stride_ + kernel_ / 2).unsqueeze(0);
    const Tensor seen = (at.query - middles)
                            .abs()
                            .le(pooled_window_)
                            .to(x.device())
                            .logical_and(there.any(2).unsqueeze(1).unsqueeze(1));
    return projections_.out(y + masked_attention(second.q, by_slot(second.k),
                                                 by_slot(second.v), seen, Pass()));
  }

  Sizes sizes_;
  int64_t window_, pooled_window_, kernel_, stride_;
  std::string pooling_;
  bool stacked_, shared_ = false;
  HeadProjections projections_;
  Linear q_, k_, v_;  // of the second level, unless shared
  Linear weigh_;
};

}  // namespace

constinit const Mechanism catalogue::poolingformer{
    .name = "poolingformer",
    .summary = "a window, and then a wider one over pooled keys and values",
    .paper = "Zhang et al. 2021, arXiv:2105.04371",
    .classes = "fixed patterns, memory",
    .time = {"N*(window + pooled_window/stride)*d", 1},
    .memory = {"N*d", 1},
    .can = {.padding = true, .grouped = true},
    .projections = Projections::none,
    .settings = kSettings,
    .test_settings = "{window: 3, pooled_window: 9, kernel: 5, stride: 2}",
    .make = made_as<Mixer, Poolingformer>(),
};

}  // namespace longspan
