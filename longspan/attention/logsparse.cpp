// Few keys, ever farther apart. Li et al. 2019, arXiv:1907.00235, over the spans of Ren
// et al. 2021, arXiv:2107.05768: the bits of a position cut the tokens before it into
// spans of powers of two, and it sees the last token of each. Position 22 = 16 + 4 + 2
// sees 15, 19, 21 and itself.
//
// The bidirectional form sees in addition the mirror image in a sequence of a power of
// two of tokens: the first of each span after it, 23, 24 and 32. Which power makes no
// difference, so padding makes none.
//
// With `restart` the sequence is cut, and a token sees in every piece before (after)
// its own what it sees in its own before (after) it, as in the code of Li et al.

#include <algorithm>
#include <bit>

#include "longspan/attention/pattern_attention.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr Setting kSettings[] = {
    {.name = "window",
     .standard = "0",
     .help = "neighbours seen as well, on each side",
     .least = 0},
    {.name = "restart",
     .standard = "0",
     .help = "tokens after which the pattern begins anew; 0: never",
     .least = 0},
};

Tensor floored(const Tensor& positions, int64_t unit) {
  return positions.div(unit, "floor").mul(unit);
}

class LogSparse final : public PatternAttention {
 public:
  LogSparse(const Settings& settings, const Sizes&)
      : window_(settings.integer("window")), restart_(settings.integer("restart")) {}

 private:
  int64_t piece(const Extent& extent) const {
    const int64_t tokens = std::max<int64_t>(extent.tokens, 1);
    return restart_ > 0 ? std::min(restart_, tokens) : tokens;
  }

  HeadPatterns patterns(const Extent& extent) const override {
    const int64_t size = piece(extent), window = std::min(window_, extent.tokens);
    const auto keys = [=](int64_t query, std::vector<Span>& seen) {
      const int64_t place = query % size;
      for (int64_t first = query - place; first >= 0; first -= size) {
        seen.push_back({first + place - window, first + place + 1});
        for (int64_t end = place; end > 0; end &= end - 1)
          seen.push_back({first + end - 1, first + end});
      }
      if (extent.causal) return;
      for (int64_t first = query - place; first < extent.tokens; first += size) {
        seen.push_back({first + place, first + place + window + 1});
        for (int64_t next = place + 1; next < size; next += next & -next)
          seen.push_back({first + next, first + next + 1});
      }
    };
    return {.distinct = {{{.keys = keys}}}};
  }

  Tensor visible(const Extent& extent) const override {
    const int64_t size = piece(extent);
    const auto whole = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(size)));
    const Positions at(extent.tokens), place(whole);
    Tensor before = place.key == place.query;
    for (int64_t unit = 1; unit < whole; unit *= 2)
      before = before.logical_or(place.key + 1 == floored(place.query, unit));
    const auto seen = [&](const Tensor& of_places, const Tensor& distance,
                          const Tensor& pieces) {
      return of_places.index({at.query.remainder(size), at.key.remainder(size)})
          .logical_and(pieces >= 0)
          .logical_or((distance.remainder(size) <= window_).logical_and(distance >= 0));
    };
    const Tensor distance = at.query - at.key;
    const Tensor pieces = floored(at.query, size) - floored(at.key, size);
    const Tensor past = seen(before, distance, pieces);
    return (extent.causal
                ? past
                : past.logical_or(seen(before.flip({0, 1}), -distance, -pieces)))
        .unsqueeze(0);
  }

  int64_t window_, restart_;
};

}  // namespace

constinit const Mechanism catalogue::logsparse{
    .name = "logsparse",
    .summary = "keys ever farther apart, about log N of them",
    .paper = "Li et al. 2019, arXiv:1907.00235",
    .classes = "fixed patterns",
    .time = {"N*log(N)*d, with restart N*N/restart*log(restart)*d", 1},
    .memory = {"N*d", 1},
    .can = kPatternAbilities,
    .state = "keys and values of all tokens",
    .state_size = PatternAttention::all_numbers_kept,
    .settings = kSettings,
    .test_settings = "{window: 2, restart: 24}",
    .make = made_as<Attention, LogSparse>(),
};

}  // namespace longspan
