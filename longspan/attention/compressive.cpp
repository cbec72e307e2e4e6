// A memory of what came before whose oldest part is compressed instead of forgotten.
// Rae et al. 2020, arXiv:1911.05507; scores and memory as in Dai et al. 2019,
// arXiv:1901.02860.

#include <algorithm>
#include <string>
#include <vector>

#include "longspan/attention/mechanism.h"
#include "longspan/attention/relative_attention.h"
#include "longspan/base/error.h"
#include "longspan/kernels/total.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr char kMemory[] = "memory", kCompressed[] = "compressed", kUse[] = "use";
// Of a decoding state: the tokens of the segment so far, and what its keys got.
constexpr char kSegment[] = "segment", kMass[] = "mass";

constexpr Setting kSettings[] = {
    {.name = kMemory,
     .standard = "512",
     .help = "tokens before the segment that are kept as they are",
     .least = 0},
    {.name = kCompressed,
     .standard = "512",
     .help = "vectors that older tokens become, kept of each example",
     .least = 1},
    {.name = "rate",
     .standard = "4",
     .help = "tokens that become one vector",
     .least = 1},
    {.name = "compression",
     .kind = Kind::word,
     .standard = "convolution",
     .help = "what makes it: a learned convolution of them, the same with gaps of "
             "`dilation`, their mean, their largest, or of all that leave the memory "
             "those that were attended to most",
     .choices = "convolution|dilated|mean|max|most_used"},
    {.name = "dilation",
     .standard = "2",
     .help = "dilated: tokens from one that is mixed to the next",
     .least = 1},
    {.name = "loss",
     .kind = Kind::word,
     .standard = "attention",
     .help = "what convolutions learn by: that queries find the same in vectors as in "
             "tokens, or that tokens can be told from vectors",
     .choices = "attention|autoencoder"},
    {.name = "clamp",
     .standard = "0",
     .help = "longer distances count as this one; 0: none do",
     .least = 0},
    {.name = "tied",
     .kind = Kind::boolean,
     .standard = "true",
     .help = "one pair of biases, of contents and of distances, for all layers"},
};

// Rows of both, each example's last ones last.
Stream joined(const Stream& first, const Stream& second) {
  return {.x = torch::cat({first.x, second.x}, 1),
          .tokens = torch::cat({first.tokens, second.tokens}, 1)};
}

class Compressive final : public Mixer {
 public:
  Compressive(const Settings& settings, const Sizes& sizes, Shared& shared)
      : memory_(settings.integer(kMemory)),
        compressed_(settings.integer(kCompressed)),
        rate_(settings.integer("rate")),
        dilation_(settings.word("compression") == "dilated"
                      ? settings.integer("dilation")
                      : 1),
        segment_(sizes.longest),
        compression_(settings.word("compression")),
        attention_(*this, sizes, shared,
                   {.tied = settings.flag("tied") ? "compressive" : "",
                    .clamp = settings.integer("clamp")}) {
    if (!learns()) return;
    const int64_t embedding = sizes.embedding, group = rate_ * embedding;
    compress_ = make_linear(*this, "compress", embedding, group, /*has_bias=*/true);
    if (settings.word("loss") == "autoencoder")
      restore_ = make_linear(*this, "restore", group, embedding, /*has_bias=*/true);
  }

  Sight sight(int64_t tokens, bool) override {
    constexpr int64_t kMostShown = 4;
    const int64_t old = std::min(compressed_, kMostShown),
                  shown = old + std::min(memory_, kMostShown);
    const Tensor pairs =
        torch::ones({tokens, shown + tokens}, torch::kByte).tril(shown);
    pairs.slice(1, 0, old).fill_(static_cast<int64_t>(
        compression_ == "most_used" ? Sees::directly : Sees::summarised));
    return {.pairs = pairs.unsqueeze(0), .memory_columns = shown};
  }

  static int64_t state_size(const Settings& settings, const Sizes& sizes,
                            int64_t tokens) {
    const int64_t rows = settings.integer(kCompressed) + settings.integer(kMemory) +
                         settings.integer("rate") - 1 + segment_tokens(sizes, tokens);
    constexpr int64_t kBeside = 4;  // whether it is real, its use, its mass
    return RelativeAttention::numbers_kept(rows, sizes) +
           rows * (sizes.embedding + kBeside);
  }

 private:
  bool learns() const {
    return compression_ == "convolution" || compression_ == "dilated";
  }

  // The tokens kept so far and those of the segment, as of last_real().
  struct Recent {
    Stream tokens = {};  // [B, n, E]
    // [B, n, 2]: the weight that each got so far, and of how many queries; or undefined
    Tensor use = {};
  };

  // Those of them that leave the memory, the oldest first: whole groups of `rate`.
  struct Leaving {
    Stream tokens = {};  // [B, G * rate, E]
    Tensor use = {};     // [B, G * rate, 2] or undefined
    Tensor groups = {};  // [B, 1]: how many are real
    Tensor stay = {};    // [B, n] bool: which of the recent do not leave
  };

  Leaving leaving(const Recent& all) const {
    const auto& [x, real, positions] = all.tokens;
    const int64_t length = x.size(1),
                  most = std::max<int64_t>(length - memory_, 0) / rate_ * rate_;
    const auto whole = real.options().dtype(torch::kLong);
    const Tensor count = real.sum(1, /*keepdim=*/true), first = length - count;
    Leaving old;
    old.groups = torch::div((count - memory_).clamp_min(0), rate_, "floor");
    const Tensor number = torch::arange(most, whole).unsqueeze(0);
    const Tensor at = (first + number).clamp_max(length - 1).unsqueeze(2);
    const auto rows = [&](const Tensor& of) {
      return of.gather(1, at.expand({-1, -1, of.size(2)}));
    };
    old.tokens.tokens = number < old.groups * rate_;
    old.tokens.x = rows(x).masked_fill(old.tokens.tokens.logical_not().unsqueeze(2), 0);
    if (all.use.defined()) old.use = rows(all.use);
    old.stay = torch::arange(length, whole) >= first + old.groups * rate_;
    return old;
  }

  // One vector for every `rate` tokens of `old`.
  Stream vectors(const Leaving& old) const {
    const auto& [x, real, positions] = old.tokens;
    const int64_t examples = x.size(0), groups = x.size(1) / rate_,
                  embedding = x.size(2);
    const Tensor grouped = x.view({examples, groups, rate_, embedding});
    Stream made{.tokens = torch::arange(groups, old.groups.options()) < old.groups};
    if (compression_ == "mean") made.x = grouped.mean(2);
    if (compression_ == "max") made.x = grouped.amax(2);
    if (learns()) made.x = compress_(dilation_ > 1 ? dilated(x) : grouped.flatten(2));
    return made;
  }

  // The tokens that a vector mixes, [B, G, rate * E]: the last of its group, and those
  // so many gaps before it; zeros before the first.
  Tensor dilated(const Tensor& x) const {
    const int64_t reach = dilation_ * (rate_ - 1), length = x.size(1);
    const Tensor padded = torch::constant_pad_nd(x, {0, 0, reach, 0});
    std::vector<Tensor> taps;
    for (int64_t tap = 0; tap < rate_; ++tap)
      taps.push_back(padded.slice(1, rate_ - 1 + tap * dilation_,
                                  tap * dilation_ + length, rate_));
    return torch::cat(taps, 2);
  }

  // Of the tokens of `old` the part that were attended to most.
  Stream most_used(const Leaving& old) const {
    const Tensor use = (old.use.select(2, 0) / old.use.select(2, 1).clamp_min(1))
                           .masked_fill(old.tokens.tokens.logical_not(), -1);
    const Tensor rank = std::get<1>(use.sort(/*stable=*/true, 1, /*descending=*/true))
                            .argsort(int64_t{1});
    return {.x = old.tokens.x,
            .tokens = (rank < old.groups).logical_and(old.tokens.tokens)};
  }

  // What a convolution made is held against what it was made of. Nothing but the
  // convolution gets a gradient.
  void add_loss(const Tensor& x, const Leaving& old, const Stream& made,
                Pass& pass) const {
    if (restore_.weight.defined()) {
      const Tensor error = restore_(made.x).view(old.tokens.x.sizes()) - old.tokens.x;
      pass.add_loss("compressive_autoencoder", average(at_least_float(error).square(),
                                                       old.tokens.tokens.unsqueeze(2)));
      return;
    }
    Tensor exact;
    {
      const torch::NoGradGuard held;
      exact = attention_.by_content(x, old.tokens);
    }
    const Tensor error = attention_.by_content(x, made) - exact;
    const Tensor asked = real_tokens(x, pass).logical_and(old.groups > 0);
    pass.add_loss("compressive_attention",
                  average(at_least_float(error).square(), asked.unsqueeze(2)));
  }

  // Writes to `into` what there is after a segment; `mass`: what every key got in it.
  // `into` has what was used before.
  void remember(const Stream& segment, const Stream& kept, const Stream& compressed,
                const Tensor& mass, Pass& pass, Record& into) const {
    const auto& [x, real, positions] = segment;
    const int64_t length = kept.x.size(1) + x.size(1);
    const Stream both = joined(kept, {.x = x.detach(), .tokens = real});
    Recent all{.tokens = last_real(both, length)};
    if (mass.defined())
      all.use = last_real({.x = used(kept, real, mass, into.get(kUse)),
                           .tokens = both.tokens},
                          length)
                    .x;
    const Leaving old = leaving(all);
    if (old.tokens.x.size(1) > 0) {
      const bool picks = compression_ == "most_used";
      const Stream made = picks ? most_used(old) : vectors(old);
      if (pass.training && learns()) add_loss(x, old, made, pass);
      carry(into, kCompressed,
            last_real(joined(compressed, {.x = made.x.detach(), .tokens = made.tokens}),
                      compressed_));
    }
    const int64_t width = std::min(length, memory_ + rate_ - 1);
    const Tensor stay = old.stay.slice(1, length - width);
    const auto cleared = [&](const Tensor& rows) {
      return rows.slice(1, length - width)
          .masked_fill(stay.logical_not().unsqueeze(2), 0);
    };
    carry(into, kMemory, {.x = cleared(all.tokens.x), .tokens = stay});
    if (all.use.defined()) into.set(kUse, cleared(all.use));
  }

  // [B, n + N, 2]: the use of the tokens kept, `past`, and of those of the segment,
  // with that of this segment; `mass` is of the compressed ones, too.
  static Tensor used(const Stream& kept, const Tensor& real, const Tensor& mass,
                     const Tensor& past) {
    const torch::NoGradGuard counting;
    const int64_t before = kept.x.size(1), count = real.size(1);
    const Tensor asked = real.sum(1, /*keepdim=*/true),
                 after = asked - real.cumsum(1) + real.to(torch::kLong);
    const Tensor now = torch::stack(
        {mass.slice(1, mass.size(1) - before - count),
         torch::cat({asked.expand({-1, before}), after}, 1).to(mass.scalar_type())},
        2);
    return past.defined() ? now + torch::constant_pad_nd(past, {0, 0, 0, count}) : now;
  }

  // What is remembered, without the rest.
  static Record remembered(const Record& record) {
    Record kept;
    for (const std::string name : {kMemory, kCompressed})
      if (record.get(name).defined()) {
        kept.set(name, record.get(name));
        kept.set(name + "_tokens", record.get(name + "_tokens"));
      }
    if (record.get(kUse).defined()) kept.set(kUse, record.get(kUse));
    return kept;
  }

  template <class Attend>
  Tensor attended(const Tensor& x, Pass& pass, Attend attend) const {
    Record* const state = pass.state;
    if (state && state->tokens == 0 && pass.carry) *state = remembered(*pass.carry);
    Record* const record = state ? state : pass.carry;
    const Stream kept = carried(record, kMemory, x),
                 compressed = carried(record, kCompressed, x),
                 past = last_real(joined(compressed, kept),
                                  compressed.x.size(1) + kept.x.size(1));
    const bool remembers = record && x.size(1) > 0 && (!state || segment_ > 0);
    Tensor mass;
    const Tensor out =
        attend(past, remembers && compression_ == "most_used" ? &mass : nullptr);
    if (!remembers) return out;
    Stream segment{.x = x, .tokens = real_tokens(x, pass)};
    if (!state) {
      remember(segment, kept, compressed, mass, pass, *record);
      return out;
    }
    segment.x = state->grow(kSegment, segment.x, 1);
    segment.tokens = state->grow("segment_tokens", segment.tokens, 1);
    if (mass.defined()) {
      if (const Tensor before = state->get(kMass); before.defined())
        mass = mass + torch::constant_pad_nd(before, {0, x.size(1)});
      state->set(kMass, mass);
    }
    if (state->tokens % segment_ > 0) return out;
    Record next = remembered(*state);
    next.tokens = state->tokens;
    remember(segment, kept, compressed, mass, pass, next);
    *state = next;
    return out;
  }

  Tensor run(const Tensor& x, Pass& pass) override {
    return in_segments(x, pass, segment_, [&](const Tensor& some, Pass& part) {
      return attended(some, part, [&](const Stream& past, Tensor* mass) {
        return attention_.forward(some, past, /*window=*/0, part, mass);
      });
    });
  }

  Tensor define(const Tensor& x, Pass& pass) override {
    return attended(x, pass, [&](const Stream& past, Tensor* mass) {
      return attention_.define(x, past, /*window=*/0, pass, mass);
    });
  }

  int64_t memory_, compressed_, rate_, dilation_;
  int64_t segment_;  // tokens until decoding compresses; 0: it does not
  std::string compression_;
  RelativeAttention attention_;
  Linear compress_, restore_;
};

}  // namespace

constinit const Mechanism catalogue::compressive{
    .name = "compressive",
    .summary = "segments that see those before, the oldest compressed",
    .paper = "Rae et al. 2020, arXiv:1911.05507",
    .classes = "recurrence",
    .time = {"N*(N + memory + compressed)*d", 2},
    .memory = {"(N + memory + compressed)*E", 1},
    .can = {.causal = Causal::always,
            .padding = true,
            .decoding = true,
            .carry = Carry::per_example,
            .dropout = true,
            .grouped = true},
    .state =
        "tokens, keys and values of both memories and of a segment, which has as many "
        "tokens as the longest sequence",
    .state_size = Compressive::state_size,
    .projections = Projections::none,
    .full = true,
    .settings = kSettings,
    .test_settings = "{memory: 6, compressed: 8, rate: 3, clamp: 60}",
    .make = Mechanism::Make<Mixer>(
        [](const Settings& settings, const Sizes& sizes,
           const std::shared_ptr<Shared>& shared) -> std::shared_ptr<Mixer> {
          return std::make_shared<Compressive>(settings, sizes, *shared);
        }),
};

}  // namespace longspan
