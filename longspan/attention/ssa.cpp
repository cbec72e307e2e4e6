// Softmax attention that in training meets sampled keys only. Hussain et al. 2023,
// arXiv:2306.01705 (stochastically subsampled self-attention).
//
// Biased: the sources are put in the order of place + sigma * noise and cut into as
// many windows as the queries, which keep their order. Causal: for each window anew
// among the tokens up to its end, of which it is given the last. Unbiased: all queries
// meet one random part of the sources; causal, each window a random part of those up to
// its end. What the authors did beside that is a setting, but for their samplers of
// images.
//
// One draw serves all examples and heads of a call. Sources of a window stand in the
// order of the sequence, so that in causal attention a query sees the first of them and
// tiles of the rest are not visited. Without sampling it is dense attention.

#include "longspan/attention/ssa.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>

#include "longspan/attention/dense_reference.h"
#include "longspan/attention/mechanism.h"
#include "longspan/attention/prepare.h"
#include "longspan/base/error.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr size_t kWords = 4;  // of one counter

double in_unit(uint32_t word) { return (word + 0.5) * 0x1p-32; }

// Two normal numbers out of two words. (Box and Muller 1958.)
std::array<double, 2> normal(uint32_t first, uint32_t second) {
  const double radius = std::sqrt(-2 * std::log(in_unit(first)));
  const double angle = 2 * std::numbers::pi * in_unit(second);
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

enum class Noise { normal, uniform };  // uniform: 0 .. 1

std::vector<double> noise(Noise kind, int64_t tokens, Key key) {
  const auto count = static_cast<size_t>(tokens);
  std::vector<double> all(count);
  for (size_t first = 0; first < count; first += kWords) {
    const auto words = philox(key, {static_cast<uint32_t>(first / kWords), 0, 0, 0});
    double four[kWords];
    if (kind == Noise::normal)
      for (size_t i = 0; i < kWords; i += 2)
        std::ranges::copy(normal(words[i], words[i + 1]), four + i);
    else
      std::ranges::transform(words, four, in_unit);
    std::copy_n(four, std::min(kWords, count - first),
                all.begin() + static_cast<int64_t>(first));
  }
  return all;
}

// By what sources are ordered: their places with noise, or noise alone.
std::vector<double> noisy_places(const SourceSampling& sampling, double sigma,
                                 int64_t tokens, Key key) {
  if (!sampling.biased) return noise(Noise::uniform, tokens, key);
  std::vector<double> places =
      noise(sampling.uniform ? Noise::uniform : Noise::normal, tokens, key);
  const double scale = sampling.uniform ? 2 * sigma : sigma;
  for (size_t i = 0; i < places.size(); ++i)
    places[i] = static_cast<double>(i) + scale * places[i];
  return places;
}

// The numbers of `places` from the smallest to the largest.
std::vector<int64_t> in_order(const std::vector<double>& places) {
  std::vector<int64_t> numbers(places.size());
  std::iota(numbers.begin(), numbers.end(), int64_t{0});
  std::ranges::stable_sort(numbers, {},
                           [&](int64_t i) { return places[static_cast<size_t>(i)]; });
  return numbers;
}

// The numbers of the `count` largest of `places`.
std::vector<int64_t> largest(const std::vector<double>& places, int64_t count) {
  std::vector<int64_t> numbers(places.size());
  std::iota(numbers.begin(), numbers.end(), int64_t{0});
  std::ranges::nth_element(numbers, numbers.end() - count, {}, [&](int64_t i) {
    return std::pair(places[static_cast<size_t>(i)], i);
  });
  numbers.erase(numbers.begin(), numbers.end() - count);
  return numbers;
}

// A part `keep` of `sources`, one at least, at random.
std::vector<int64_t> kept(const std::vector<int64_t>& sources, double keep, Key key) {
  const auto count = static_cast<int64_t>(sources.size());
  const auto part = static_cast<int64_t>(std::round(keep * static_cast<double>(count)));
  const int64_t wanted = std::clamp<int64_t>(part, std::min<int64_t>(1, count), count);
  if (wanted == count) return sources;
  std::vector<int64_t> some = largest(noise(Noise::uniform, count, key), wanted);
  for (int64_t& number : some) number = sources[static_cast<size_t>(number)];
  return some;
}

SourceSampling sampling_of(const Settings& settings) {
  return {.windows = settings.integer("windows"),
          .sigma = settings.number("sigma"),
          .biased = settings.word("kind") == "biased",
          .uniform = settings.word("noise") == "uniform",
          .shifted = settings.flag("shifted"),
          .keep = settings.number("keep")};
}

bool leaves_out(const SourceSampling& sampling) {
  return sampling.windows > 1 || sampling.keep < 1;
}

class Ssa final : public Attention {
 public:
  explicit Ssa(const Settings& settings) : sampling_(sampling_of(settings)) {
    require(sampling_.keep > 0 && sampling_.keep <= 1,
            "keep must be more than 0 and 1 at most, got ", sampling_.keep);
  }

  Sight sight(int64_t tokens, bool causal) override {
    SourceSampling shown = sampling_;
    if (causal) shown.shifted = false;
    Tensor pairs = met(drawn_sources(shown, tokens, causal, Key{}), tokens);
    return {.pairs = (causal ? pairs.tril() : pairs).to(torch::kByte).unsqueeze(0)};
  }

 private:
  Tensor run(const Tensor& q, const Tensor& k, const Tensor& v, Pass& pass) override {
    if (!samples(q, k, pass)) {
      Prepared all = prepare(q, k, v, pass);
      all.source.layout = Layout(all.query_count(), all.key_count(), all.order);
      return block_attention(all.queries, {all.source}, all.options).out;
    }
    // Drawn first, so that dropout changes no sources.
    const SourceWindows drawn =
        drawn_sources(sampling_, q.size(2), pass.mask.causal, pass.draw.key());
    Prepared some = prepare(q, k, v, pass);
    // Where positions are given, the keys' intervals say what is past.
    lay(some.source, drawn, q.size(2), pass.mask.causal && !some.source.from.defined());
    some.source.rows_once = !pass.mask.causal;
    return block_attention(some.queries, {some.source}, some.options).out;
  }

  bool samples(const Tensor& q, const Tensor& k, const Pass& pass) const {
    if (!pass.sampling || !leaves_out(sampling_) || q.size(2) == 0) return false;
    require(
        !sampling_.shifted || !pass.mask.causal,
        "shifted: true brings the last sources before the first queries, so it has ",
        "no causal form");
    require(pass.state == nullptr && q.size(2) == k.size(2),
            "sources are drawn for whole sequences, so pass.sampling must be false "
            "where tokens come one after the other");
    return true;
  }

  static void lay(Source& source, const SourceWindows& drawn, int64_t queries,
                  bool past_only) {
    std::vector<int64_t> rows, ends(static_cast<size_t>(queries));
    std::vector<int64_t> starts;
    for (size_t window = 0; window < drawn.sources.size(); ++window) {
      const auto& sources = drawn.sources[window];
      const auto start = static_cast<int64_t>(rows.size());
      starts.push_back(start);
      const int64_t first = static_cast<int64_t>(window) * drawn.size;
      auto seen = past_only ? sources.begin() : sources.end();
      for (int64_t query = first; query < std::min(first + drawn.size, queries);
           ++query) {
        while (seen != sources.end() && *seen <= query) ++seen;
        ends[static_cast<size_t>(query)] = start + (seen - sources.begin());
      }
      rows.insert(rows.end(), sources.begin(), sources.end());
    }
    source.layout =
        Layout(queries, static_cast<int64_t>(rows.size()),
               [&](int64_t query, std::vector<Span>& seen) {
                 seen.push_back({starts[static_cast<size_t>(query / drawn.size)],
                                 ends[static_cast<size_t>(query)]});
               });
    source.rows = torch::tensor(rows, torch::kLong).to(source.k.device());
  }

  // [N, N] bool: whose window has the key.
  static Tensor met(const SourceWindows& drawn, int64_t tokens) {
    Tensor pairs = torch::zeros({tokens, tokens}, torch::kBool);
    int64_t first = 0;
    for (const auto& sources : drawn.sources) {
      pairs.slice(0, first, first + drawn.size)
          .index_fill_(1, torch::tensor(sources, torch::kLong), true);
      first += drawn.size;
    }
    return pairs;
  }

  Tensor define(const Tensor& q, const Tensor& k, const Tensor& v,
                Pass& pass) override {
    Tensor visible = allowed_pairs(pass, q.size(2), k.size(2), q.device());
    if (samples(q, k, pass))
      visible = visible & met(drawn_sources(sampling_, q.size(2), pass.mask.causal,
                                            pass.draw.key()),
                              q.size(2))
                              .to(q.device());
    return masked_attention(q, k, v, visible, pass);
  }

  SourceSampling sampling_;
};

constexpr Setting kSettings[] = {
    {.name = "windows",
     .standard = "4",
     .help = "a query meets one part in so many of the sources; 1: all of them",
     .least = 1},
    {.name = "sigma",
     .kind = Kind::number,
     .standard = "0.2",
     .help = "biased: how far sources are shuffled, as a part of the length",
     .least = 0},
    {.name = "kind",
     .kind = Kind::word,
     .standard = "biased",
     .help = "towards sources near the query, or from all alike",
     .choices = "biased|unbiased"},
    {.name = "noise",
     .kind = Kind::word,
     .standard = "normal",
     .help = "biased: what places are shuffled by: sigma times a normal number, or 2 "
             "sigma times one of 0 .. 1",
     .choices = "normal|uniform"},
    {.name = "shifted",
     .kind = Kind::boolean,
     .standard = "false",
     .help = "biased, not causal: sources are shuffled as on a circle, begun anywhere"},
    {.name = "keep",
     .kind = Kind::number,
     .standard = "1",
     .help = "a window is given so much of its sources, at random; less than 1 may "
             "leave a causal query without any",
     .least = 0},
};

}  // namespace

SourceWindows drawn_sources(const SourceSampling& sampling, int64_t tokens, bool causal,
                            Key key) {
  const int64_t size = (tokens + sampling.windows - 1) / sampling.windows;
  SourceWindows drawn{.size = size, .sources = {}};
  const double sigma = std::round(sampling.sigma * static_cast<double>(tokens));
  if (causal) {
    for (int64_t first = 0; first < tokens; first += size) {
      const int64_t end = std::min(first + size, tokens);
      const Key of_window = mix(key, static_cast<uint64_t>(first));
      drawn.sources.push_back(
          largest(noisy_places(sampling, sigma, end, of_window), std::min(size, end)));
    }
  } else {
    std::vector<int64_t> order = in_order(noisy_places(sampling, sigma, tokens, key));
    if (sampling.biased && sampling.shifted) {
      const auto shift =
          static_cast<int64_t>(mix(key, 1).bits % static_cast<uint64_t>(tokens));
      std::ranges::rotate(order, order.end() - shift);
      for (int64_t& source : order) source = (source + shift) % tokens;
    }
    if (!sampling.biased) drawn.size = tokens;
    for (int64_t first = 0; first < tokens; first += drawn.size)
      drawn.sources.emplace_back(order.begin() + first,
                                 order.begin() + std::min(first + size, tokens));
  }
  const Key of_parts = mix(key, static_cast<uint64_t>(tokens));
  for (size_t window = 0; window < drawn.sources.size(); ++window) {
    auto& sources = drawn.sources[window];
    sources = kept(sources, sampling.keep, mix(of_parts, window));
    std::ranges::sort(sources);
  }
  return drawn;
}

constinit const Mechanism catalogue::ssa{
    .name = "ssa",
    .summary = "softmax attention that in training meets sampled keys only",
    .paper = "Hussain et al. 2023, arXiv:2306.01705",
    .classes = "wrapper",
    .time = {"N*N*d, in training N*N*d*keep/windows", 2},
    .memory = {"N*d", 1},
    .can = {.causal = Causal::optional,
            .padding = true,
            .decoding = true,
            .positions = true,
            .bias = true,
            .segments = true,
            .dropout = true,
            .grouped = true,
            .samples = true},
    .can_with =
        [](const Settings& settings, const Sizes&) {
          Abilities can = catalogue::ssa.can;
          can.samples = leaves_out(sampling_of(settings));
          return can;
        },
    .state = "keys and values of all tokens: N*Hk*(d + dv)",
    .state_size =
        [](const Settings&, const Sizes& sizes, int64_t tokens) {
          return tokens * sizes.key_heads * (sizes.head_width + sizes.value_width);
        },
    .full = true,
    .training =
        "0, 3: while pass.sampling is set a query meets the keys drawn for its "
        "window, and the draw is for the length with padding",
    .settings = kSettings,
    .test_settings = "{windows: 4}",
    .make = Mechanism::Make<Attention>(
        [](const Settings& settings, const Sizes&, const std::shared_ptr<Shared>&)
            -> std::shared_ptr<Attention> { return std::make_shared<Ssa>(settings); }),
};

}  // namespace longspan
