#include "longspan/kernels/linear_attention.h"

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <sstream>

#include "longspan/base/memory.h"
#include "longspan/base/threads.h"
#include "longspan/kernels/cpu/isa.h"
#include "longspan/kernels/cpu/linear_attention.h"
#include "longspan/kernels/lse_merge.h"
#include "tests/support/any_threads.h"
#include "tests/support/each_isa.h"
#include "tests/support/tensors.h"

namespace longspan {
namespace {

using testing::close;
using testing::gradients_agree;
using testing::largest_error;
using testing::refusal;
using testing::Tensors;
using torch::Tensor;
using torch::indexing::Slice;

const double kNever = -std::numeric_limits<double>::infinity();

constexpr Normaliser kNormalisers[] = {Normaliser::none, Normaliser::plus,
                                       Normaliser::at_least, Normaliser::if_positive};

constexpr int64_t kB = 2, kH = 2, kN = 6, kFeatures = 3, kValues = 4;

// What is given beside q, k and v.
struct Case {
  LinearAttention options;
  bool decay = false;
  bool weights = false;
  bool state = false;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << (c.options.causal ? "causal " : "")
             << (c.options.log_features ? "log " : "") << (c.decay ? "decay " : "")
             << (c.weights ? "weights " : "") << (c.state ? "state " : "")
             << "normaliser " << static_cast<int>(c.options.normaliser);
}

std::vector<Case> all_cases(const std::vector<Normaliser>& normalisers) {
  std::vector<Case> cases;
  for (const bool causal : {false, true})
    for (const bool log_features : {false, true})
      for (const bool decay : {false, true})
        for (const bool weights : {false, true})
          for (const bool state : {false, true})
            for (const Normaliser normaliser : normalisers)
              if (causal || !decay)
                cases.push_back({{.causal = causal,
                                  .log_features = log_features,
                                  .normaliser = normaliser,
                                  .epsilon = 3},  // some rows above, some below
                                 decay,
                                 weights,
                                 state});
  return cases;
}

struct Sizes {
  int64_t examples = kB;
  int64_t heads = kH;
  int64_t key_heads = kH;
  int64_t queries = kN;
  int64_t keys = kN;
  int64_t features = kFeatures;
  int64_t values = kValues;
};

std::ostream& operator<<(std::ostream& out, const Sizes& sizes) {
  return out << sizes.examples << " x " << sizes.heads << " (" << sizes.key_heads
             << ") heads, " << sizes.queries << " queries, " << sizes.keys << " keys, "
             << sizes.features << " features, " << sizes.values << " values";
}

// Positive features or their logs, of moderate size.
LinearInputs random_inputs(const Case& c, const Sizes& sizes) {
  const auto& [examples, heads, key_heads, queries, keys, feature_count, values] =
      sizes;
  torch::manual_seed(0);
  const auto features = [&](at::IntArrayRef shape) {
    const Tensor logs = torch::randn(shape, torch::kDouble);
    return c.options.log_features ? logs : logs.exp();
  };
  LinearInputs inputs{
      .q = features({examples, heads, queries, feature_count}),
      .k = features({examples, key_heads, keys, feature_count}),
      .v = torch::randn({examples, key_heads, keys, values}, torch::kDouble),
      .log_decay = {},
      .weights = {},
      .state = {}};
  if (c.decay) inputs.log_decay = -torch::rand({examples, heads, keys}, torch::kDouble);
  if (c.weights)
    inputs.weights = torch::rand({examples, 1, keys}, torch::kDouble) + 0.1;
  if (c.state) {
    inputs.state.sums =
        torch::rand({examples, heads, feature_count, values + 1}, torch::kDouble) + 0.1;
    if (c.options.log_features)
      inputs.state.max = torch::randn({examples, heads}, torch::kDouble);
  }
  return inputs;
}

LinearInputs random_inputs(const Case& c, int64_t queries = kN, int64_t keys = kN,
                           int64_t key_heads = kH, int64_t heads = kH) {
  return random_inputs(
      c, {.heads = heads, .key_heads = key_heads, .queries = queries, .keys = keys});
}

// The keys from `begin` on and before `end`, and as many queries.
LinearInputs tokens(const LinearInputs& inputs, int64_t begin, int64_t end) {
  LinearInputs some = inputs;
  for (Tensor* tensor : {&some.q, &some.k, &some.v, &some.log_decay, &some.weights})
    if (tensor->defined()) *tensor = tensor->slice(2, begin, end);
  return some;
}

LinearInputs to(LinearInputs inputs, torch::Dtype dtype) {
  for (Tensor* tensor : {&inputs.q, &inputs.k, &inputs.v, &inputs.log_decay,
                         &inputs.weights, &inputs.state.sums, &inputs.state.max})
    if (tensor->defined()) *tensor = tensor->to(dtype);
  return inputs;
}

LinearInputs to(LinearInputs inputs, torch::Device device) {
  for (Tensor* tensor : {&inputs.q, &inputs.k, &inputs.v, &inputs.log_decay,
                         &inputs.weights, &inputs.state.sums, &inputs.state.max})
    if (tensor->defined()) *tensor = tensor->to(device);
  return inputs;
}

// The sums without the factor exp(-max).
Tensor plain_sums(const LinearState& state) {
  if (!state.max.defined()) return state.sums;
  return state.sums * state.max.exp().unsqueeze(-1).unsqueeze(-1);
}

struct Expected {
  Tensor out, lse, sums;
};

// The formulas of the header, one token after the other, in double and without a
// thought for overflow.
Expected token_by_token(const LinearInputs& inputs, const LinearAttention& options) {
  const auto& [q, k, v, log_decay, weights, state] = inputs;
  const auto f = [&](const Tensor& x) { return options.log_features ? x.exp() : x; };
  Tensor sums =
      state.sums.defined()
          ? plain_sums(state)
          : torch::zeros({q.size(0), q.size(1), q.size(3), v.size(3) + 1}, v.options());
  const Tensor v1 = torch::cat({v, torch::ones_like(v.slice(3, 0, 1))}, 3);
  Tensors rows;
  const auto ask = [&](int64_t i) {
    rows.push_back(f(q.select(2, i)).unsqueeze(2).matmul(sums).squeeze(2));
  };
  for (int64_t j = 0; j < k.size(2); ++j) {
    Tensor news = f(k.select(2, j)).unsqueeze(3) * v1.select(2, j).unsqueeze(2);
    if (weights.defined())
      news = news * weights.select(2, j).unsqueeze(-1).unsqueeze(-1);
    if (log_decay.defined())
      sums = sums * log_decay.select(2, j).exp().unsqueeze(-1).unsqueeze(-1);
    sums = sums + news;
    if (options.causal) ask(j);
  }
  if (!options.causal)
    for (int64_t i = 0; i < q.size(2); ++i) ask(i);

  const Tensor all = torch::stack(rows, 2);  // [B, H, N, dv + 1]
  const Tensor num = all.slice(3, 0, v.size(3)), den = all.slice(3, v.size(3));
  Tensor out;
  switch (options.normaliser) {
    case Normaliser::none: out = num; break;
    case Normaliser::plus: out = num / (den + options.epsilon); break;
    case Normaliser::at_least: out = num / den.clamp_min(options.epsilon); break;
    case Normaliser::if_positive:
      out = torch::where(den > 1e-30, num / den, torch::zeros_like(num));
      break;
  }
  return {out,
          torch::where(den > 0, den.log(), torch::full_like(den, kNever)).squeeze(3),
          sums};
}

bool all_finite(const Tensor& tensor) { return tensor.isfinite().all().item<bool>(); }

bool all_equal(const Tensor& tensor, double value) {
  return (tensor == value).all().item<bool>();
}

TEST(LinearAttention, IsTheRecurrence) {
  for (const auto& c : all_cases({std::begin(kNormalisers), std::end(kNormalisers)})) {
    SCOPED_TRACE(::testing::PrintToString(c));
    const auto inputs = random_inputs(c);
    const auto expected = token_by_token(inputs, c.options);
    const auto got = linear_attention(inputs, c.options);
    EXPECT_TRUE(close(got.out, expected.out));
    EXPECT_TRUE(close(got.lse, expected.lse));
    EXPECT_TRUE(close(plain_sums(got.state), expected.sums));
    EXPECT_EQ(got.state.max.defined(), c.options.log_features);
  }
}

TEST(LinearAttention, HasTheGradientsOfItsOutputs) {
  for (const auto& c : all_cases({std::begin(kNormalisers), std::end(kNormalisers)})) {
    SCOPED_TRACE(::testing::PrintToString(c));
    const auto inputs = random_inputs(c);
    Tensors at{inputs.q, inputs.k, inputs.v};
    if (c.decay) at.push_back(inputs.log_decay);
    if (c.weights) at.push_back(inputs.weights);
    if (c.state) at.push_back(inputs.state.sums);
    const auto f = [&](const Tensors& x) -> Tensors {
      LinearInputs changed = inputs;
      size_t next = 3;
      changed.q = x[0];
      changed.k = x[1];
      changed.v = x[2];
      if (c.decay) changed.log_decay = x[next++];
      if (c.weights) changed.weights = x[next++];
      if (c.state) changed.state.sums = x[next++];
      const auto got = linear_attention(changed, c.options);
      return {got.out, got.lse, plain_sums(got.state)};
    };
    EXPECT_TRUE(gradients_agree(f, at));
  }
}

TEST(LinearAttention, TakesSignedFeatures) {
  for (const bool causal : {false, true})
    for (const Normaliser normaliser : kNormalisers) {
      const LinearAttention options{
          .causal = causal, .normaliser = normaliser, .epsilon = 0.1};
      auto inputs = random_inputs({.options = options, .weights = true, .state = true});
      for (Tensor* tensor : {&inputs.q, &inputs.k, &inputs.state.sums})
        tensor->normal_();
      const auto expected = token_by_token(inputs, options);
      ASSERT_FALSE(all_finite(expected.lse));  // some sums are negative
      const auto got = linear_attention(inputs, options);
      EXPECT_TRUE(close(got.out, expected.out));
      EXPECT_TRUE(close(got.lse, expected.lse));
      EXPECT_TRUE(close(got.state.sums, expected.sums));
    }
}

TEST(LinearAttention, GoesOnFromAStateAsIfNothingHappened) {
  for (const auto& c : all_cases({Normaliser::if_positive})) {
    if (!c.options.causal) continue;
    SCOPED_TRACE(::testing::PrintToString(c));
    auto inputs = random_inputs(c);
    for (Tensor* tensor : {&inputs.q, &inputs.k, &inputs.v}) tensor->requires_grad_();
    const auto whole = linear_attention(inputs, c.options);
    const Tensors at{inputs.q, inputs.k, inputs.v};
    const Tensor slope = torch::randn_like(whole.out);
    const auto slopes = torch::autograd::grad({whole.out}, at, {slope});
    for (int64_t split = 0; split <= kN; ++split) {
      const auto first = linear_attention(tokens(inputs, 0, split), c.options);
      auto rest = tokens(inputs, split, kN);
      rest.state = first.state;
      const auto second = linear_attention(rest, c.options);
      const Tensor out = torch::cat({first.out, second.out}, 2);
      EXPECT_TRUE(close(out, whole.out));
      EXPECT_TRUE(close(torch::cat({first.lse, second.lse}, 2), whole.lse));
      EXPECT_TRUE(close(second.state.sums, whole.state.sums));
      if (c.options.log_features) {
        EXPECT_TRUE(close(second.state.max, whole.state.max));
      }
      const auto got = torch::autograd::grad({out}, at, {slope});
      for (size_t i = 0; i < at.size(); ++i) EXPECT_TRUE(close(got[i], slopes[i]));
    }
  }
}

TEST(LinearAttention, TheStateOfHalfTheKeysServesTheOtherHalf) {
  for (const bool log_features : {false, true}) {
    const LinearAttention options{.log_features = log_features};
    const auto inputs = random_inputs({.options = options, .weights = true});
    const auto whole = linear_attention(inputs, options);
    const auto first = linear_attention(tokens(inputs, 0, 2), options);
    auto rest = tokens(inputs, 2, kN);
    rest.q = inputs.q;
    rest.state = first.state;
    EXPECT_TRUE(close(linear_attention(rest, options).out, whole.out));
  }
}

TEST(LinearAttention, MergesByItsLse) {
  const LinearAttention options{.log_features = true};
  const auto inputs = random_inputs({.options = options});
  const auto whole = linear_attention(inputs, options);
  std::vector<Attended> parts;
  for (const int64_t begin : {0, 3}) {
    auto some = tokens(inputs, begin, begin + 3);
    some.q = inputs.q;
    const auto part = linear_attention(some, options);
    parts.push_back({part.out, part.lse});
  }
  EXPECT_TRUE(close(merge(parts).out, whole.out));
  EXPECT_TRUE(close(merge(parts).lse, whole.lse));
}

TEST(LinearAttention, DoesNotLookAheadByABit) {
  constexpr int64_t kSeen = 3;
  const auto changes = std::vector<std::function<void(Tensor)>>{
      [](Tensor x) { x.normal_(); },
      [](Tensor x) { x.mul_(9); },
      [](Tensor x) { x.div_(9); },
  };
  for (const auto& c : all_cases({Normaliser::plus, Normaliser::if_positive})) {
    if (!c.options.causal) continue;
    SCOPED_TRACE(::testing::PrintToString(c));
    for (const auto dtype : {torch::kFloat, torch::kDouble})
      for (const auto& change : changes) {
        const auto inputs = to(random_inputs(c), dtype);
        const auto before = linear_attention(inputs, c.options);
        for (const Tensor* tensor :
             {&inputs.q, &inputs.k, &inputs.v, &inputs.log_decay, &inputs.weights})
          if (tensor->defined()) change(tensor->slice(2, kSeen));
        if (c.decay) inputs.log_decay.clamp_max_(0);
        const auto after = linear_attention(inputs, c.options);
        EXPECT_TRUE(
            torch::equal(before.out.slice(2, 0, kSeen), after.out.slice(2, 0, kSeen)));
        EXPECT_TRUE(
            torch::equal(before.lse.slice(2, 0, kSeen), after.lse.slice(2, 0, kSeen)));
        EXPECT_FALSE(torch::equal(before.out, after.out));
      }
  }
}

TEST(LinearAttention, StandsLogFeaturesOfAnyScale) {
  for (const auto& c : all_cases({Normaliser::if_positive})) {
    if (!c.options.log_features) continue;
    SCOPED_TRACE(::testing::PrintToString(c));
    const auto inputs = random_inputs(c);
    const auto exact = linear_attention(inputs, c.options);
    for (const double of_q : {-500.0, 500.0})
      for (const double of_k : {-500.0, 500.0}) {
        auto shifted = to(inputs, torch::kFloat);
        shifted.q = (shifted.q + of_q).requires_grad_();
        shifted.k = (shifted.k + of_k).requires_grad_();
        if (c.state) shifted.state.max = shifted.state.max + of_k;
        const auto got = linear_attention(shifted, c.options);
        EXPECT_TRUE(close(got.out, exact.out, 1e-3));
        EXPECT_TRUE(close(got.lse - (of_q + of_k), exact.lse, 1e-3));
        EXPECT_TRUE(close(got.state.sums, exact.state.sums, 1e-3));
        for (const auto& slope : torch::autograd::grad(
                 {got.out, got.lse}, {shifted.q, shifted.k},
                 {torch::ones_like(got.out), torch::ones_like(got.lse)}))
          EXPECT_TRUE(all_finite(slope));
      }
  }
}

TEST(LinearAttention, LaterHugeKeysLeaveEarlierRowsAlone) {
  constexpr int64_t kSmall = 3;
  for (const auto& c : all_cases({Normaliser::if_positive})) {
    if (!c.options.log_features || !c.options.causal) continue;
    SCOPED_TRACE(::testing::PrintToString(c));
    auto inputs = random_inputs(c);
    inputs.k.slice(2, kSmall) += 300;
    const auto expected = token_by_token(inputs, c.options);
    const auto got = linear_attention(to(inputs, torch::kFloat), c.options);
    for (const int64_t begin : {int64_t{0}, kSmall}) {
      const auto rows = [&](const Tensor& x) {
        return x.slice(2, begin, begin + kSmall);
      };
      EXPECT_TRUE(close(rows(got.out), rows(expected.out), 1e-4));
      EXPECT_TRUE(close(rows(got.lse), rows(expected.lse), 1e-5));
    }
    EXPECT_TRUE(torch::equal(got.state.max > 250, torch::ones({kB, kH}, torch::kBool)));
    EXPECT_TRUE(all_finite(got.state.sums));

    // The other way round, and over a state: the huge ones stay.
    auto first = tokens(inputs, kSmall, kN), second = tokens(inputs, 0, kSmall);
    const auto huge = linear_attention(to(first, torch::kFloat), c.options);
    second = to(second, torch::kFloat);
    second.state = huge.state;
    const auto then = linear_attention(second, c.options);
    const Tensor left = c.decay ? second.log_decay.sum(2) : torch::zeros({kB, kH});
    EXPECT_TRUE(close(then.state.max, huge.state.max + left, 1e-6));
    EXPECT_TRUE(all_finite(then.out));
    EXPECT_TRUE((then.lse > 250).all().item<bool>());
  }
}

TEST(LinearAttention, StandsTinyWeightsOfLogFeatures) {
  const Case c{.options = {.log_features = true}, .weights = true};
  auto inputs = to(random_inputs(c), torch::kFloat);
  const auto expected = linear_attention(inputs, c.options);
  inputs.weights = inputs.weights * 1e-35;
  const auto got = linear_attention(inputs, c.options);
  EXPECT_TRUE(close(got.out, expected.out, 1e-4));
  EXPECT_TRUE(close(got.lse - std::log(1e-35), expected.lse, 1e-4));
}

TEST(LinearAttention, StandsTinySumsOfLogFeatures) {
  const Case c{.options = {.log_features = true}, .state = true};
  auto inputs = to(random_inputs(c, /*queries=*/3, /*keys=*/0), torch::kFloat);
  const auto expected = linear_attention(inputs, c.options);
  inputs.state.sums = inputs.state.sums * 1e-35;
  const auto got = linear_attention(inputs, c.options);
  EXPECT_TRUE(close(got.out, expected.out, 1e-4));
  EXPECT_TRUE(close(got.lse - std::log(1e-35), expected.lse, 1e-4));
}

TEST(LinearAttention, ASumOf0CountsNothingHoweverHugeItsFeature) {
  for (const auto dtype : {torch::kFloat, torch::kDouble}) {
    const Case c{.options = {.log_features = true}, .state = true};
    auto inputs = to(random_inputs(c, 1, 1), dtype);
    inputs.state.sums.select(2, 1).zero_();
    inputs.q.select(3, 1).fill_(1000);
    inputs.k.select(3, 1).fill_(kNever);
    inputs.q.requires_grad_();
    inputs.state.sums.requires_grad_();
    const auto got = linear_attention(inputs, c.options);
    EXPECT_TRUE(all_finite(got.out));
    EXPECT_TRUE((got.lse < 100).all().item<bool>());
    const auto slopes =
        torch::autograd::grad({got.lse.sum()}, {inputs.q, inputs.state.sums});
    for (const auto& slope : slopes) EXPECT_TRUE(all_finite(slope));
  }
}

TEST(LinearAttention, EpsilonIsOnTheScaleOfTheFeatures) {
  for (const Normaliser normaliser : {Normaliser::plus, Normaliser::at_least}) {
    const LinearAttention options{.log_features = true, .normaliser = normaliser};
    auto inputs = to(random_inputs({.options = options}), torch::kFloat);
    const Tensor k = inputs.k;
    inputs.k = (k - 500).requires_grad_();
    const auto tiny = linear_attention(inputs, options);
    EXPECT_TRUE(all_equal(tiny.out, 0));
    EXPECT_TRUE(all_finite(torch::autograd::grad({tiny.out.sum()}, {inputs.k})[0]));
    inputs.k = k + 500;
    const auto huge = linear_attention(inputs, options);
    inputs.k = k;
    EXPECT_TRUE(
        close(huge.out, linear_attention(inputs, {.log_features = true}).out, 1e-3));
  }
}

TEST(LinearAttention, IgnoresKeysOfWeight0) {
  for (const auto& c : all_cases({std::begin(kNormalisers), std::end(kNormalisers)})) {
    if (!c.weights) continue;
    SCOPED_TRACE(::testing::PrintToString(c));
    auto inputs = random_inputs(c);
    inputs.weights.slice(2, 2, 4).zero_();
    const auto expected = token_by_token(inputs, c.options);
    for (const double content : {3.0, 1e4, std::nan("")}) {
      inputs.k.slice(2, 2, 4).fill_(content);
      inputs.v.slice(2, 2, 4).fill_(content);
      const auto got = linear_attention(inputs, c.options);
      EXPECT_TRUE(close(got.out, expected.out));
      EXPECT_TRUE(close(got.lse, expected.lse));
      EXPECT_TRUE(close(plain_sums(got.state), expected.sums));
    }
    for (Tensor* tensor : {&inputs.k, &inputs.v, &inputs.weights})
      tensor->requires_grad_();
    const auto got = linear_attention(inputs, c.options);
    const auto slopes = torch::autograd::grad({got.out.sum() + got.lse.sum()},
                                              {inputs.k, inputs.v, inputs.weights});
    for (const auto& slope : slopes) {
      EXPECT_TRUE(all_finite(slope));
      EXPECT_TRUE(all_equal(slope.slice(2, 2, 4), 0));
      EXPECT_FALSE(all_equal(slope.slice(2, 0, 2), 0));
    }
  }
}

TEST(LinearAttention, RowsWithoutKeysAreZeroAndHaveFiniteGradients) {
  for (const auto& c : all_cases({std::begin(kNormalisers), std::end(kNormalisers)})) {
    if (!c.weights || c.state) continue;
    SCOPED_TRACE(::testing::PrintToString(c));
    auto inputs = random_inputs(c);
    const int64_t empty = c.options.causal ? 2 : kN;
    inputs.weights.slice(2, 0, empty).zero_();
    Tensors at{inputs.q, inputs.k, inputs.v, inputs.weights};
    if (c.decay) at.push_back(inputs.log_decay);
    for (auto& tensor : at) tensor.requires_grad_();
    const auto got = linear_attention(inputs, c.options);
    EXPECT_TRUE(all_equal(got.out.slice(2, 0, empty), 0));
    EXPECT_TRUE(all_equal(got.lse.slice(2, 0, empty), kNever));
    EXPECT_TRUE(all_finite(got.out));
    EXPECT_TRUE(all_finite(got.lse.slice(2, empty)));
    const auto slopes = torch::autograd::grad(
        {got.out, got.lse, got.state.sums}, at,
        {torch::ones_like(got.out), torch::ones_like(got.lse),
         torch::ones_like(got.state.sums)},
        /*retain_graph=*/{}, /*create_graph=*/false, /*allow_unused=*/true);
    for (const auto& slope : slopes) EXPECT_TRUE(!slope.defined() || all_finite(slope));
  }
}

TEST(LinearAttention, AStateOfNothingIsNoState) {
  for (const bool log_features : {false, true}) {
    const Case c{.options = {.causal = true, .log_features = log_features},
                 .weights = true};
    auto padding = random_inputs(c);
    padding.weights.zero_();
    const auto nothing = linear_attention(padding, c.options);
    EXPECT_TRUE(all_equal(nothing.state.sums, 0));
    if (log_features) {
      EXPECT_TRUE(all_equal(nothing.state.max, kNever));
    }
    auto inputs = random_inputs(c);
    const auto expected = linear_attention(inputs, c.options);
    inputs.state = nothing.state;
    inputs.state.sums.requires_grad_();
    const auto got = linear_attention(inputs, c.options);
    EXPECT_TRUE(torch::equal(got.out, expected.out));
    EXPECT_TRUE(torch::equal(got.lse, expected.lse));
    EXPECT_TRUE(torch::equal(got.state.sums, expected.state.sums));
    EXPECT_TRUE(
        all_finite(torch::autograd::grad({got.out.sum()}, {inputs.state.sums})[0]));
  }
}

TEST(LinearAttention, TakesFeaturesThatAre0) {
  const LinearAttention logs{.causal = true, .log_features = true};
  const LinearAttention plain{.causal = true};
  auto inputs = random_inputs({.options = plain, .decay = true});
  inputs.q.index_put_({Slice(), Slice(), Slice(), 1}, 0);
  inputs.k.index_put_({Slice(), Slice(), Slice(0, 2)}, 0);
  const auto expected = linear_attention(inputs, plain);
  inputs.q = inputs.q.log().requires_grad_();
  inputs.k = inputs.k.log().requires_grad_();
  const auto got = linear_attention(inputs, logs);
  EXPECT_TRUE(close(got.out, expected.out));
  EXPECT_TRUE(close(got.lse, expected.lse));
  EXPECT_TRUE(close(plain_sums(got.state), expected.state.sums));
  for (const auto& slope : torch::autograd::grad({got.out.sum()}, {inputs.q, inputs.k}))
    EXPECT_TRUE(all_finite(slope));
}

TEST(LinearAttention, GroupedHeadsAreRepeatedHeads) {
  for (const auto& c : all_cases({Normaliser::if_positive})) {
    SCOPED_TRACE(::testing::PrintToString(c));
    const auto inputs = random_inputs(c, kN, kN, /*key_heads=*/2, /*heads=*/6);
    auto repeated = inputs;
    repeated.k = inputs.k.repeat_interleave(3, 1);
    repeated.v = inputs.v.repeat_interleave(3, 1);
    const auto got = linear_attention(inputs, c.options);
    const auto expected = linear_attention(repeated, c.options);
    EXPECT_TRUE(torch::equal(got.out, expected.out));
    EXPECT_TRUE(torch::equal(got.lse, expected.lse));
    EXPECT_TRUE(torch::equal(got.state.sums, expected.state.sums));
  }
}

TEST(LinearAttention, TakesOtherNumbersOfQueriesThanOfKeys) {
  for (const auto& c : all_cases({Normaliser::if_positive})) {
    if (c.options.causal) continue;
    SCOPED_TRACE(::testing::PrintToString(c));
    for (const auto& [queries, keys] : {std::pair{1, 7}, {7, 1}, {3, 5}}) {
      const auto inputs = random_inputs(c, queries, keys);
      const auto expected = token_by_token(inputs, c.options);
      const auto got = linear_attention(inputs, c.options);
      EXPECT_TRUE(close(got.out, expected.out));
      EXPECT_TRUE(close(got.lse, expected.lse));
      EXPECT_TRUE(close(plain_sums(got.state), expected.sums));
    }
    const auto none = random_inputs(c, 3, 0);
    const auto got = linear_attention(none, c.options);
    EXPECT_EQ(all_equal(got.lse, kNever), !c.state);
    if (c.state) {
      EXPECT_TRUE(close(plain_sums(got.state), plain_sums(none.state)));
    }
  }
}

TEST(LinearAttention, KeepsSumsOfLowPrecisionInFloat) {
  constexpr int64_t kMany = 4096;
  const Tensor count = torch::arange(1, kMany + 1, torch::kDouble).view({1, 1, kMany});
  const auto ones = torch::ones({1, 1, kMany, 1}, torch::kBFloat16);
  for (const bool log_features : {false, true}) {
    const Tensor features = log_features ? torch::zeros_like(ones) : ones;
    const auto got = linear_attention({.q = features,
                                       .k = features,
                                       .v = ones,
                                       .log_decay = {},
                                       .weights = {},
                                       .state = {}},
                                      {.causal = true, .log_features = log_features});
    EXPECT_EQ(got.out.scalar_type(), torch::kBFloat16);
    EXPECT_EQ(got.lse.scalar_type(), torch::kFloat);
    EXPECT_EQ(got.state.sums.scalar_type(), torch::kFloat);
    EXPECT_TRUE(all_equal(got.out, 1));
    EXPECT_TRUE(close(got.lse, count.log(), 1e-6));
    EXPECT_TRUE(all_equal(got.state.sums, kMany));
  }
}

TEST(LinearAttention, TakesFeaturesAndValuesOfDifferentPrecision) {
  const LinearAttention options{.log_features = true};
  auto inputs = to(random_inputs({.options = options}), torch::kFloat);
  inputs.v = inputs.v.to(torch::kHalf);
  const auto got = linear_attention(inputs, options);
  EXPECT_EQ(got.out.scalar_type(), torch::kHalf);
  inputs.v = inputs.v.to(torch::kFloat);
  EXPECT_TRUE(
      torch::equal(got.out, linear_attention(inputs, options).out.to(torch::kHalf)));
}

TEST(LinearAttention, KeepsDecaysExactOverManySteps) {
  constexpr int64_t kMany = 1000;
  torch::manual_seed(0);
  const LinearInputs inputs{
      .q = torch::rand({1, 1, kMany, 1}, torch::kDouble),
      .k = torch::rand({1, 1, kMany, 1}, torch::kDouble),
      .v = torch::randn({1, 1, kMany, 1}, torch::kDouble),
      .log_decay = -torch::rand({1, 1, kMany}, torch::kDouble) - 0.2,
      .weights = {},
      .state = {}};
  for (const bool log_features : {false, true}) {
    const LinearAttention options{.causal = true, .log_features = log_features};
    const auto expected = token_by_token(inputs, options);
    const auto got = linear_attention(to(inputs, torch::kFloat), options);
    EXPECT_TRUE(close(got.out, expected.out, 1e-6));
  }
}

TEST(LinearAttention, GivesNoGradientToTheScaleOfItsState) {
  const LinearAttention options{.log_features = true};
  auto inputs = random_inputs({.options = options, .state = true});
  inputs.k.requires_grad_();
  inputs.state.max.requires_grad_();
  const auto got = linear_attention(inputs, options);
  EXPECT_FALSE(got.state.max.requires_grad());
  EXPECT_TRUE(got.state.sums.requires_grad());
}

// What there is of the inputs that have gradients.
std::vector<Tensor*> differentiable(LinearInputs& inputs) {
  std::vector<Tensor*> all;
  for (Tensor* tensor : {&inputs.q, &inputs.k, &inputs.v, &inputs.log_decay,
                         &inputs.weights, &inputs.state.sums})
    if (tensor->defined()) all.push_back(tensor);
  return all;
}

using Attend = LinearAttended(const LinearInputs&, const LinearAttention&);

// out, lse, the final sums, and the gradients of all inputs through all of these.
Tensors results(Attend* attend, LinearInputs inputs, const LinearAttention& options) {
  Tensors at;
  for (Tensor* tensor : differentiable(inputs)) {
    *tensor = tensor->detach().requires_grad_();
    at.push_back(*tensor);
  }
  const auto got = attend(inputs, options);
  Tensors all{got.out, got.lse, got.state.sums}, slopes;
  for (const Tensor& tensor : all)
    slopes.push_back(torch::arange(tensor.numel(), torch::kDouble)
                         .remainder(11)
                         .sub(4)
                         .view_as(tensor)
                         .to(tensor.options()));
  for (const auto& slope : torch::autograd::grad(all, at, slopes)) all.push_back(slope);
  return all;
}

// Each as exact as those of the reference in the same precision, for its size.
void expect_as_exact(const Tensors& got, const Tensors& plain, const Tensors& exact) {
  for (size_t i = 0; i < exact.size(); ++i) {
    const auto error = [&](const Tensor& x) {
      if (exact[i].numel() == 0) return 0.0;
      return largest_error(x, exact[i]) / (exact[i].abs().max().item<double>() + 1e-30);
    };
    EXPECT_LE(error(got[i]), 2 * error(plain[i]) + 2e-6) << "result " << i;
  }
}

// The reference takes long: once for all instruction sets.
struct Known {
  LinearInputs inputs;
  Tensors plain, exact;
};

const Known& known(const Case& c, const Sizes& sizes, double wide = 0) {
  static std::map<std::string, Known> all;
  std::ostringstream name;
  name << c << sizes << wide;
  const auto [found, is_new] = all.try_emplace(name.str());
  auto& [inputs, plain, exact] = found->second;
  if (is_new) {
    const UseThreads one(1);  // of so small pieces of work
    inputs = to(random_inputs(c, sizes), torch::kFloat);
    if (wide > 0) {
      inputs.q.uniform_(-wide, wide);
      inputs.k.uniform_(-wide, wide);
    }
    plain = results(linear_attention_reference, inputs, c.options);
    exact = results(linear_attention_reference, to(inputs, torch::kDouble), c.options);
  }
  return found->second;
}

void expect_as_exact_as_the_reference(const Case& c, const Sizes& sizes,
                                      double wide = 0,
                                      torch::Device device = torch::kCPU) {
  std::ostringstream what;
  what << c << ", " << sizes;
  SCOPED_TRACE(what.str());
  const auto& [inputs, plain, exact] = known(c, sizes, wide);
  expect_as_exact(results(linear_attention, to(inputs, device), c.options), plain,
                  exact);
}

// Everything there is, causal or not, of features or their logs.
std::vector<Case> full_cases() {
  std::vector<Case> cases;
  for (const auto& c : all_cases({Normaliser::if_positive}))
    if (c.weights && c.state && c.decay == c.options.causal) cases.push_back(c);
  return cases;
}

constexpr int64_t kFence = 64;  // numbers before and after a result

class LinearAttentionOn : public testing::EachIsa {};

TEST_P(LinearAttentionOn, IsAsExactAsTheReference) {
  for (const auto& c : all_cases({std::begin(kNormalisers), std::end(kNormalisers)}))
    for (const int64_t tokens : {1, 15, 16, 17, 31, 33})
      expect_as_exact_as_the_reference(c, {.queries = tokens, .keys = tokens});
}

TEST_P(LinearAttentionOn, IsAsExactAsTheReferenceOverManyTokens) {
  for (const auto& c : all_cases({Normaliser::plus})) {
    for (const int64_t tokens : {255, 256, 257})
      for (const int64_t heads : {1, 4})
        expect_as_exact_as_the_reference(c, {.examples = 1,
                                             .heads = heads,
                                             .key_heads = heads,
                                             .queries = tokens,
                                             .keys = tokens});
    expect_as_exact_as_the_reference(
        c, {.examples = 1, .heads = 1, .key_heads = 1, .queries = 1030, .keys = 1030});
  }
}

TEST_P(LinearAttentionOn, IsAsExactAsTheReferenceForAnyWidth) {
  for (const auto& c : full_cases())
    for (const auto& [features, values] :
         {std::pair{1, 1}, {5, 16}, {16, 7}, {17, 40}, {64, 64}, {70, 33}, {130, 65}})
      expect_as_exact_as_the_reference(
          c, {.queries = 40, .keys = 40, .features = features, .values = values});
}

TEST_P(LinearAttentionOn, IsAsExactAsTheReferenceForSharedKeys) {
  for (const auto& c : full_cases())
    for (const int64_t key_heads : {1, 2})
      expect_as_exact_as_the_reference(
          c, {.heads = 4, .key_heads = key_heads, .queries = 300, .keys = 300});
}

TEST_P(LinearAttentionOn, IsAsExactAsTheReferenceForOtherNumbersOfQueries) {
  for (const auto& c : full_cases())
    if (!c.options.causal)
      for (const auto& [queries, keys] : {std::pair{3, 600}, {600, 3}})
        expect_as_exact_as_the_reference(c, {.examples = 1,
                                             .heads = 2,
                                             .key_heads = 1,
                                             .queries = queries,
                                             .keys = keys});
}

TEST_P(LinearAttentionOn, LosesNoTermOfLogFeaturesOfWideRange) {
  for (const auto& c : all_cases({Normaliser::if_positive}))
    if (c.options.log_features)
      for (const double wide : {5.0, 50.0})
        expect_as_exact_as_the_reference(c, {.queries = 70, .keys = 70, .features = 20},
                                         wide);
}

// Rows whose terms are far below those of other rows, and of the sums as a whole.
TEST_P(LinearAttentionOn, LosesNoRowBesideHugeOnes) {
  for (const auto& c : full_cases()) {
    if (!c.options.log_features) continue;
    auto inputs = to(random_inputs(c, {.queries = 70, .keys = 70}), torch::kFloat);
    inputs.q.index_put_({Slice(), Slice(), Slice(), 1}, kNever);
    inputs.q.index_put_({Slice(), Slice(), Slice(0, 70, 2), 2}, 400);
    inputs.k.select(3, 0).sub_(300);
    inputs.k.select(3, 1).add_(500);
    const auto got = results(linear_attention, inputs, c.options);
    const auto plain = results(linear_attention_reference, inputs, c.options);
    const auto exact =
        results(linear_attention_reference, to(inputs, torch::kDouble), c.options);
    expect_as_exact(got, plain, exact);
    EXPECT_TRUE(all_finite(got[1]));
  }
}

TEST_P(LinearAttentionOn, TakesTensorsOfAnyStridesAndReadsNoMore) {
  const auto fenced = [](const Tensor& x) {
    // [B, tokens, heads, width] among NaN.
    const Tensor all = torch::full(
        {x.size(0) + 2, x.size(2) + 2, x.size(1) + 2, x.size(3) + 2}, NAN, x.options());
    const Tensor inside =
        all.slice(0, 1, -1).slice(1, 1, -1).slice(2, 1, -1).slice(3, 1, -1);
    inside.copy_(x.transpose(1, 2));
    return inside.transpose(1, 2);
  };
  for (const auto& c : full_cases())
    for (const int64_t width : {5, 16}) {
      const Sizes sizes{.queries = 37, .keys = 37, .features = width, .values = width};
      const auto inputs = to(random_inputs(c, sizes), torch::kFloat);
      auto strided = inputs;
      strided.q = fenced(inputs.q);
      strided.k = fenced(inputs.k);
      strided.v = fenced(inputs.v);
      strided.log_decay =
          inputs.log_decay.defined()
              ? inputs.log_decay.repeat_interleave(2, 2).slice(2, 0, {}, 2)
              : Tensor();
      strided.state.sums =
          inputs.state.sums.transpose(2, 3).contiguous().transpose(2, 3);
      const auto expected = results(linear_attention, inputs, c.options);
      const auto got = results(linear_attention, strided, c.options);
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_TRUE(torch::equal(got[i], expected[i])) << "result " << i;
      strided.q = inputs.q.transpose(2, 3).contiguous().transpose(2, 3);
      EXPECT_TRUE(torch::equal(linear_attention(strided, c.options).out, expected[0]));
    }
}

TEST_P(LinearAttentionOn, IsTheSameForAnyNumberOfThreads) {
  for (const auto& c : full_cases())
    for (const int64_t heads : {1, 3}) {  // few and many
      const Sizes sizes{.heads = heads,
                        .key_heads = 1,
                        .queries = 1100,
                        .keys = 1100,
                        .features = 9,
                        .values = 18};
      for (const auto dtype : {torch::kFloat, torch::kDouble}) {
        const auto inputs = to(random_inputs(c, sizes), dtype);
        const auto run = [&] { return results(linear_attention, inputs, c.options); };
        EXPECT_TRUE(testing::same_with_any_threads(run)) << sizes;
      }
    }
}

TEST_P(LinearAttentionOn, WritesAllOfItsResultsAndNoMore) {
  constexpr int64_t kTokens = 37;
  const auto fenced = [](int64_t size, double value,
                         torch::Dtype dtype = torch::kFloat) {
    auto all = torch::full({kFence + size + kFence}, NAN, dtype);
    all.slice(0, kFence, kFence + size).fill_(value);
    return all;
  };
  const auto inside = [](const Tensor& all) { return all.data_ptr<float>() + kFence; };
  const auto intact = [](const Tensor& all) {
    const int64_t end = all.numel() - kFence;
    return !all.slice(0, kFence, end).isnan().any().item<bool>() &&
           all.slice(0, 0, kFence).isnan().all().item<bool>() &&
           all.slice(0, end).isnan().all().item<bool>();
  };
  const auto kernel =
      *cpu::pick(&cpu::portable::linear_of_floats, &cpu::avx2::linear_of_floats,
                 &cpu::avx512::linear_of_floats);
  const auto gradient = *cpu::pick(&cpu::portable::linear_gradient_of_floats,
                                   &cpu::avx2::linear_gradient_of_floats,
                                   &cpu::avx512::linear_gradient_of_floats);
  for (const bool log_features : {false, true})
    for (const int64_t width : {1, 7, 16, 33, 64}) {
      const cpu::LinearForm form{.features = width,
                                 .values = width,
                                 .causal = true,
                                 .log_features = log_features,
                                 .divisor = cpu::LinearDivisor::if_positive};
      const auto in = testing::random_tensors(4, {kTokens, width}, torch::kFloat);
      const Tensor log_decay = torch::full({kTokens}, -0.1, torch::kDouble);
      const Tensor weights = torch::full({kTokens}, 0.7);
      const cpu::LinearTokens<float> tokens{.form = form,
                                            .queries = kTokens,
                                            .keys = kTokens,
                                            .q = in[0].data_ptr<float>(),
                                            .q_stride = width,
                                            .k = in[1].data_ptr<float>(),
                                            .k_stride = width,
                                            .v = in[2].data_ptr<float>(),
                                            .v_stride = width,
                                            .log_decay = log_decay.data_ptr<double>(),
                                            .weights = weights.data_ptr<float>()};
      const auto states = [&](double value) {
        return fenced(width * (width + 1), value);
      };
      const Tensor sums = states(0), peaks = fenced(width, kNever), kept = states(NAN),
                   kept_peaks = fenced(width, NAN), out = fenced(kTokens * width, NAN),
                   lse = fenced(kTokens, NAN), den = fenced(kTokens, NAN),
                   scale = fenced(kTokens, NAN), slope = states(0.5),
                   slope_peaks = fenced(width, 0), dq = fenced(kTokens * width, NAN),
                   dk = fenced(kTokens * width, 0), dv = fenced(kTokens * width, 0),
                   dweights = fenced(kTokens, 0),
                   dlog_decay = fenced(kTokens, NAN, torch::kDouble);
      const auto peaks_of = [&](const Tensor& x) {
        return log_features ? inside(x) : nullptr;
      };
      const int64_t numbers = std::max(kernel.scratch(form), gradient.scratch(form));
      const Tensor scratch = fenced(numbers, 0).fill_(NAN);
      float largest = static_cast<float>(kNever);
      kernel.attend(tokens, {inside(sums), peaks_of(peaks)}, &largest,
                    {.out = inside(out),
                     .lse = inside(lse),
                     .den = inside(den),
                     .scale = peaks_of(scale),
                     .kept = {inside(kept), peaks_of(kept_peaks)}},
                    inside(scratch));
      // Signed features have logs of negative sums: that is no number to fence with.
      lse.masked_fill_(lse == kNever, 0);
      gradient.gradients(tokens,
                         {.dout = in[3].data_ptr<float>(),
                          .dlse = weights.data_ptr<float>(),
                          .out = inside(out),
                          .den = inside(den),
                          .scale = peaks_of(scale)},
                         {inside(kept), peaks_of(kept_peaks)},
                         {inside(slope), peaks_of(slope_peaks)},
                         {.dq = inside(dq),
                          .dk = inside(dk),
                          .dv = inside(dv),
                          .dweights = inside(dweights),
                          .dlog_decay = dlog_decay.data_ptr<double>() + kFence},
                         inside(scratch));
      for (const auto& result :
           {sums, kept, out, lse, den, slope, dq, dk, dv, dweights, dlog_decay})
        EXPECT_TRUE(intact(result)) << width;
      for (const auto& result : {peaks, kept_peaks, scale, slope_peaks})
        EXPECT_TRUE(!log_features || intact(result)) << width;
      EXPECT_TRUE(scratch.slice(0, 0, kFence).isnan().all().item<bool>());
      EXPECT_TRUE(scratch.slice(0, kFence + numbers).isnan().all().item<bool>());
    }
}

INSTANTIATE_TEST_SUITE_P(EveryInstructionSet, LinearAttentionOn,
                         ::testing::ValuesIn(cpu::kAllIsas),
                         [](const auto& test) { return cpu::name(test.param); });

TEST(LinearAttention, IsAsExactAsTheReferenceOnEveryDevice) {
  for (const auto device : testing::devices()) {
    SCOPED_TRACE(device.str());
    for (const auto& c : all_cases({Normaliser::plus, Normaliser::if_positive}))
      for (const int64_t tokens : {1, 33, 257})
        expect_as_exact_as_the_reference(c, {.queries = tokens, .keys = tokens}, 0,
                                         device);
    for (const auto& c : full_cases()) {
      for (const auto& [features, values] : {std::pair{1, 1}, {64, 64}, {130, 65}})
        expect_as_exact_as_the_reference(
            c, {.queries = 40, .keys = 40, .features = features, .values = values}, 0,
            device);
      expect_as_exact_as_the_reference(
          c, {.heads = 4, .key_heads = 2, .queries = 300, .keys = 300}, 0, device);
      if (!c.options.causal)
        for (const auto& [queries, keys] : {std::pair{3, 600}, {600, 3}})
          expect_as_exact_as_the_reference(c,
                                           {.examples = 1,
                                            .heads = 2,
                                            .key_heads = 1,
                                            .queries = queries,
                                            .keys = keys},
                                           0, device);
      if (c.options.log_features)
        for (const double wide : {5.0, 50.0})
          expect_as_exact_as_the_reference(
              c, {.queries = 70, .keys = 70, .features = 20}, wide, device);
    }
  }
}

TEST(LinearAttention, IsTheReferenceInDoubleOnEveryDevice) {
  for (const auto device : testing::devices())
    for (const auto& c :
         all_cases({std::begin(kNormalisers), std::end(kNormalisers)})) {
      SCOPED_TRACE(::testing::PrintToString(c) + " on " + device.str());
      const auto inputs = random_inputs(
          c, {.examples = 1, .key_heads = 1, .queries = 140, .keys = 140});
      const auto got = results(linear_attention, to(inputs, device), c.options);
      const auto expected = results(linear_attention_reference, inputs, c.options);
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_TRUE(close(got[i], expected[i], 1e-9)) << "result " << i;
    }
}

TEST(LinearAttention, LosesNoRowBesideHugeOnesOnEveryDevice) {
  for (const auto device : testing::devices())
    for (const auto& c : full_cases()) {
      if (!c.options.log_features) continue;
      auto inputs = to(random_inputs(c, {.queries = 70, .keys = 70}), torch::kFloat);
      inputs.q.index_put_({Slice(), Slice(), Slice(), 1}, kNever);
      inputs.q.index_put_({Slice(), Slice(), Slice(0, 70, 2), 2}, 400);
      inputs.k.select(3, 0).sub_(300);
      inputs.k.select(3, 1).add_(500);
      if (c.decay) inputs.log_decay.slice(2, 30, 32).fill_(-1e3);
      const auto got = results(linear_attention, to(inputs, device), c.options);
      const auto plain = results(linear_attention_reference, inputs, c.options);
      const auto exact =
          results(linear_attention_reference, to(inputs, torch::kDouble), c.options);
      expect_as_exact(got, plain, exact);
      EXPECT_TRUE(all_finite(got[1]));
    }
}

// Against a reference in double on the CPU.
void expect_near(Attend* reference, const Case& c, const Sizes& sizes,
                 torch::Dtype dtype, torch::Device device) {
  std::ostringstream what;
  what << c << ", " << sizes << ", " << dtype << " on " << device;
  SCOPED_TRACE(what.str());
  auto inputs = to(random_inputs(c, sizes), dtype);
  for (Tensor* tensor : {&inputs.state.sums, &inputs.state.max})
    if (tensor->defined()) *tensor = tensor->to(torch::kFloat);
  const auto got = results(linear_attention, to(inputs, device), c.options);
  const auto exact = results(reference, to(inputs, torch::kDouble), c.options);
  for (size_t i = 0; i < got.size(); ++i) {
    const bool is_rounded = i != 1 && i != 2;  // lse and sums are float
    EXPECT_TRUE(close(got[i], exact[i], is_rounded ? 2e-2 : 1e-4)) << "result " << i;
  }
}

// Plain features go through tensor cores where there are any.
TEST(LinearAttention, IsTheReferenceInLowPrecisionOnEveryDevice) {
  const auto check = [](const Case& c, const Sizes& sizes, torch::Dtype dtype,
                        torch::Device device) {
    expect_near(linear_attention_reference, c, sizes, dtype, device);
  };
  const UseThreads one(1);
  for (const auto device : testing::devices())
    for (const auto dtype : {torch::kBFloat16, torch::kHalf})
      for (const bool causal : {false, true}) {
        for (const bool state : {false, true}) {
          const Case c{.options = {.causal = causal}, .state = state};
          for (const auto& [features, values] :
               {std::pair{64, 64}, {8, 40}, {128, 64}, {64, 128}, {120, 72}, {7, 9}})
            check(c,
                  {.examples = 1,
                   .key_heads = 1,
                   .queries = 130,
                   .keys = 130,
                   .features = features,
                   .values = values},
                  dtype, device);
        }
        for (const Normaliser normaliser : kNormalisers)
          check({.options = {.causal = causal, .normaliser = normaliser}},
                {.examples = 1,
                 .key_heads = 1,
                 .queries = 20,
                 .keys = 20,
                 .features = 16,
                 .values = 16},
                dtype, device);
        check({.options = {.causal = causal}, .state = true},
              {.queries = 600, .keys = 600, .features = 64, .values = 64}, dtype,
              device);
      }
  for (const auto device : testing::devices())
    for (const auto& [queries, keys] : {std::pair{70, 600}, {600, 70}, {1, 1}})
      check({.options = {}, .state = true},
            {.queries = queries, .keys = keys, .features = 64, .values = 64},
            torch::kBFloat16, device);
}

// Head by head: of all at once the pairs would need much memory.
LinearAttended reference_by_head(const LinearInputs& inputs,
                                 const LinearAttention& options) {
  Tensors outs, lses, sums;
  for (int64_t head = 0; head < inputs.q.size(1); ++head) {
    LinearInputs of_head = inputs;
    for (Tensor* tensor : {&of_head.q, &of_head.k, &of_head.v, &of_head.state.sums})
      if (tensor->defined()) *tensor = tensor->narrow(1, head, 1);
    const auto got = linear_attention_reference(of_head, options);
    outs.push_back(got.out);
    lses.push_back(got.lse);
    sums.push_back(got.state.sums);
  }
  return {.out = torch::cat(outs, 1),
          .lse = torch::cat(lses, 1),
          .state = {.sums = torch::cat(sums, 1), .max = {}}};
}

// So many heads that segments of tokens are 384 long, and so few that they are no
// longer; the last of them has 148.
TEST(LinearAttention, IsTheReferenceInLongSegmentsOnCuda) {
  const auto device = testing::devices().back();
  if (!device.is_cuda()) GTEST_SKIP() << "there is no CUDA device";
  for (const bool causal : {false, true})
    for (const bool state : {false, true})
      expect_near(reference_by_head, {.options = {.causal = causal}, .state = state},
                  {.examples = 1,
                   .heads = 96,
                   .key_heads = 96,
                   .queries = 1300,
                   .keys = 1300,
                   .features = 8,
                   .values = 8},
                  torch::kBFloat16, device);
}

TEST(LinearAttention, IsTheSameEveryTimeOnEveryDevice) {
  for (const auto device : testing::devices())
    for (const auto dtype : {torch::kFloat, torch::kBFloat16})
      for (const bool is_plain : {false, true})
        for (const auto& c : full_cases()) {
          Case same{.options = c.options};
          auto inputs =
              to(random_inputs(
                     is_plain ? same : c,
                     {.queries = 700, .keys = 700, .features = 64, .values = 64}),
                 dtype);
          for (Tensor* tensor : {&inputs.state.sums, &inputs.state.max})
            if (tensor->defined()) *tensor = tensor->to(torch::kFloat);
          inputs = to(inputs, device);
          const auto once = results(linear_attention, inputs, c.options);
          const auto again = results(linear_attention, inputs, c.options);
          for (size_t i = 0; i < once.size(); ++i)
            EXPECT_TRUE(torch::equal(once[i], again[i])) << "result " << i;
        }
}

TEST(LinearAttention, IsTheReferenceInDouble) {
  const UseThreads one(1);
  for (const auto& c : all_cases({std::begin(kNormalisers), std::end(kNormalisers)}))
    for (const int64_t tokens : {40, 530}) {
      if (tokens > 500 && c.options.normaliser != Normaliser::at_least) continue;
      const Sizes sizes{
          .examples = 1, .key_heads = 1, .queries = tokens, .keys = tokens};
      SCOPED_TRACE(::testing::PrintToString(c));
      const auto inputs = random_inputs(c, sizes);
      const auto got = results(linear_attention, inputs, c.options);
      const auto expected = results(linear_attention_reference, inputs, c.options);
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_TRUE(close(got[i], expected[i], 1e-9)) << "result " << i;
    }
}

TEST(LinearAttention, DoesNotLookAheadByABitOverManyTokens) {
  constexpr int64_t kMany = 1100;
  for (const auto& c : full_cases()) {
    if (!c.options.causal) continue;
    const Sizes sizes{
        .examples = 1, .heads = 1, .key_heads = 1, .queries = kMany, .keys = kMany};
    for (const int64_t seen : {5, 16, 300, 512, 1099}) {
      const auto inputs = to(random_inputs(c, sizes), torch::kFloat);
      const auto before = linear_attention(inputs, c.options);
      for (const Tensor* tensor :
           {&inputs.q, &inputs.k, &inputs.v, &inputs.log_decay, &inputs.weights})
        tensor->slice(2, seen).mul_(9);
      const auto after = linear_attention(inputs, c.options);
      EXPECT_TRUE(
          torch::equal(before.out.slice(2, 0, seen), after.out.slice(2, 0, seen)));
      EXPECT_TRUE(
          torch::equal(before.lse.slice(2, 0, seen), after.lse.slice(2, 0, seen)));
    }
  }
}

TEST(LinearAttention, GoesOnFromAStateAfterManyTokens) {
  constexpr int64_t kMany = 600;
  for (const auto& c : full_cases()) {
    if (!c.options.causal) continue;
    for (const int64_t heads : {1, 4}) {
      const auto inputs = random_inputs(c, {.examples = 1,
                                            .heads = heads,
                                            .key_heads = 1,
                                            .queries = kMany,
                                            .keys = kMany});
      const auto whole = linear_attention(inputs, c.options);
      for (const int64_t split : {1, 100, 256, 599}) {
        const auto first = linear_attention(tokens(inputs, 0, split), c.options);
        auto rest = tokens(inputs, split, kMany);
        rest.state = first.state;
        const auto second = linear_attention(rest, c.options);
        EXPECT_TRUE(close(torch::cat({first.out, second.out}, 2), whole.out));
        EXPECT_TRUE(close(torch::cat({first.lse, second.lse}, 2), whole.lse));
        EXPECT_TRUE(close(second.state.sums, whole.state.sums));
      }
    }
  }
}

// A head alone is cut into segments of tokens, and four are not.
TEST(LinearAttention, HeadsTogetherAreEachHeadAlone) {
  constexpr int64_t kHeads = 4;
  const auto of_head = [](LinearInputs inputs, int64_t head) {
    for (Tensor* tensor : {&inputs.q, &inputs.k, &inputs.v, &inputs.log_decay,
                           &inputs.state.sums, &inputs.state.max})
      if (tensor->defined()) *tensor = tensor->slice(1, head, head + 1);
    return inputs;
  };
  for (const auto& c : full_cases())
    for (const int64_t tokens : {256, 257, 600}) {
      SCOPED_TRACE(::testing::PrintToString(c));
      const auto run = [&](LinearInputs inputs) {
        Tensors at;
        for (Tensor* tensor : differentiable(inputs))
          at.push_back(*tensor = tensor->detach().requires_grad_());
        const auto got = linear_attention(inputs, c.options);
        Tensors all{got.out, got.lse, got.state.sums};
        for (const Tensor& slope : torch::autograd::grad(
                 {got.out.square().sum() + got.lse.sum() + got.state.sums.sum()}, at))
          all.push_back(slope);
        return all;
      };
      const auto inputs = random_inputs(c, {.examples = 1,
                                            .heads = kHeads,
                                            .key_heads = kHeads,
                                            .queries = tokens,
                                            .keys = tokens});
      const Tensors together = run(inputs);
      std::vector<Tensors> alone(together.size());
      for (int64_t head = 0; head < kHeads; ++head) {
        const Tensors one = run(of_head(inputs, head));
        for (size_t i = 0; i < one.size(); ++i) alone[i].push_back(one[i]);
      }
      for (size_t i = 0; i < together.size(); ++i) {
        const bool is_shared = together[i].size(1) == 1;  // the slope of the weights
        const Tensor heads = torch::cat(alone[i], 1);
        EXPECT_TRUE(
            close(together[i], is_shared ? heads.sum(1, /*keepdim=*/true) : heads))
            << tokens << " tokens, result " << i;
      }
    }
}

TEST(LinearAttention, AStateForgetsAHugeKeyThatDecayed) {
  constexpr int64_t kMany = 400;
  const LinearAttention options{.causal = true, .log_features = true};
  LinearInputs inputs{.q = torch::randn({1, 2, kMany, 3}, torch::kDouble),
                      .k = torch::randn({1, 2, kMany, 3}, torch::kDouble),
                      .v = torch::randn({1, 2, kMany, 4}, torch::kDouble),
                      .log_decay = torch::full({1, 1, kMany}, -1.0, torch::kDouble),
                      .weights = {},
                      .state = {}};
  inputs.k.select(2, 0).fill_(120);
  for (const auto& function : {linear_attention, linear_attention_reference})
    for (const auto& [dtype, tolerance] :
         {std::pair(torch::kDouble, 1e-9), std::pair(torch::kFloat, 2e-5)})
      for (const int64_t split : {1, 16, 130, 200, 399}) {
        const auto given = to(inputs, dtype);
        const auto whole = function(given, options);
        const auto first = function(tokens(given, 0, split), options);
        auto rest = tokens(given, split, kMany);
        rest.state = first.state;
        const auto second = function(rest, options);
        EXPECT_TRUE(close(torch::cat({first.out, second.out}, 2), whole.out, tolerance))
            << split;
        EXPECT_TRUE(close(torch::cat({first.lse, second.lse}, 2), whole.lse, tolerance))
            << split;
        EXPECT_TRUE(close(plain_sums(second.state), plain_sums(whole.state), tolerance))
            << split;
      }
}

TEST(LinearAttention, AStateThatDecayedToNothingIsFinite) {
  const LinearAttention options{.causal = true, .log_features = true};
  for (const double decay : {-1e3, -1e9, -1e12, -1e30}) {
    const LinearInputs inputs{
        .q = torch::randn({1, 1, 40, 3}),
        .k = torch::randn({1, 1, 40, 3}),
        .v = torch::randn({1, 1, 40, 4}),
        .log_decay = torch::full({1, 1, 40}, decay),
        .weights = torch::arange(40).lt(5).to(torch::kFloat).view({1, 1, 40}),
        .state = {}};
    const auto first = linear_attention(inputs, options);
    EXPECT_TRUE(all_finite(first.state.sums));
    auto rest = tokens(inputs, 0, 5);
    const auto alone = linear_attention(rest, options);
    rest.state = first.state;
    const auto second = linear_attention(rest, options);
    EXPECT_TRUE(close(second.out, alone.out, 1e-6));
    EXPECT_TRUE(close(second.lse, alone.lse, 1e-6));
  }
}

TEST(LinearAttention, DecaysMayForgetEverything) {
  for (const bool log_features : {false, true})
    for (const double reset : {-50.0, -1e3, -1e9}) {
      const Case c{.options = {.causal = true, .log_features = log_features},
                   .decay = true,
                   .state = true};
      auto inputs = to(random_inputs(c, 40, 40), torch::kFloat);
      for (const int64_t token : {0, 5, 6, 16, 31})
        inputs.log_decay.select(2, token).fill_(reset);
      const auto got = results(linear_attention, inputs, c.options);
      const auto plain = results(linear_attention_reference, inputs, c.options);
      const auto exact =
          results(linear_attention_reference, to(inputs, torch::kDouble), c.options);
      expect_as_exact(got, plain, exact);
      auto later = tokens(inputs, 31, 40);
      later.state = {};
      const auto alone = linear_attention(later, c.options);
      if (reset < -100) {
        EXPECT_TRUE(close(got[0].slice(2, 31), alone.out, 1e-6));
        EXPECT_TRUE(close(got[1].slice(2, 31), alone.lse, 1e-6));
      }
    }
}

TEST(LinearAttention, RoundingOfDecaysDoesNotAddUp) {
  constexpr int64_t kMany = 8192;
  torch::manual_seed(0);
  for (const bool log_features : {false, true}) {
    const LinearAttention options{.causal = true, .log_features = log_features};
    const LinearInputs inputs{
        .q = torch::rand({1, 4, kMany, 2}),
        .k = torch::rand({1, 4, kMany, 2}),
        .v = torch::randn({1, 4, kMany, 3}),
        .log_decay = torch::full({1, 1, kMany}, -1.1e-4, torch::kDouble),
        .weights = {},
        .state = {}};
    const auto got = linear_attention(inputs, options);
    const auto exact = linear_attention(to(inputs, torch::kDouble), options);
    EXPECT_LE(largest_error(got.lse, exact.lse), 3e-6);
    EXPECT_TRUE(close(got.state.sums, exact.state.sums, 1e-6));
  }
}

TEST(LinearAttention, HasGradientsOfWhatIsAsked) {
  const UseThreads one(1);
  for (const auto& c : full_cases()) {
    SCOPED_TRACE(::testing::PrintToString(c));
    const auto run = [&](Attend* attend, size_t wanted, int through) {
      auto inputs = random_inputs(c);
      Tensor& x = *differentiable(inputs)[wanted];
      x = x.detach().requires_grad_();
      const auto got = attend(inputs, c.options);
      const Tensor of = through == 0   ? got.out
                        : through == 1 ? got.lse
                                       : got.state.sums;
      if (!of.requires_grad()) return torch::zeros_like(x);
      const Tensor slope =
          torch::autograd::grad({of.square().sum()}, {x}, {}, /*retain_graph=*/{},
                                /*create_graph=*/false, /*allow_unused=*/true)[0];
      return slope.defined() ? slope : torch::zeros_like(x);
    };
    auto example = random_inputs(c);
    for (size_t wanted = 0; wanted < differentiable(example).size(); ++wanted)
      for (const int through : {0, 1, 2})
        EXPECT_TRUE(close(run(linear_attention, wanted, through),
                          run(linear_attention_reference, wanted, through)))
            << "of " << wanted << " through " << through;
  }
}

TEST(LinearAttention, TakesNoTokensAndNoValues) {
  for (const auto& c : full_cases()) {
    SCOPED_TRACE(::testing::PrintToString(c));
    for (const Sizes& sizes :
         {Sizes{.queries = 0, .keys = 0}, Sizes{.values = 0}, Sizes{.examples = 0}}) {
      const auto inputs = random_inputs(c, sizes);
      const auto got = results(linear_attention, inputs, c.options);
      const auto expected = results(linear_attention_reference, inputs, c.options);
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_TRUE(close(got[i], expected[i])) << "result " << i;
    }
  }
}

TEST(LinearAttention, NeedsMemoryInProportionToTheTokens) {
  const auto bytes = [](const Case& c, int64_t tokens, torch::Device device) {
    const Sizes sizes{.examples = 1,
                      .heads = 2,
                      .key_heads = 2,
                      .queries = tokens,
                      .keys = tokens,
                      .features = 16,
                      .values = 16};
    const auto inputs = to(to(random_inputs(c, sizes), torch::kFloat), device);
    const PeakBytes peak(device);
    results(linear_attention, inputs, c.options);
    return static_cast<double>(peak.newly());
  };
  for (const auto device : testing::devices())
    for (const auto& c : full_cases())
      EXPECT_LE(bytes(c, 8192, device) / bytes(c, 4096, device), 2.2)
          << ::testing::PrintToString(c);
}

TEST(LinearAttention, HasNoSecondDerivatives) {
  auto inputs = random_inputs({});
  inputs.q.requires_grad_();
  const auto twice = [&](Attend* attend) {
    const Tensor slope = torch::autograd::grad({attend(inputs, {}).out.square().sum()},
                                               {inputs.q}, {}, /*retain_graph=*/true,
                                               /*create_graph=*/true)[0];
    torch::autograd::grad({slope.sum()}, {inputs.q});
  };
  EXPECT_EQ(refusal([&] { twice(linear_attention); }),
            "linear attention: it has no second derivatives; "
            "linear_attention_reference() has");
  EXPECT_EQ(refusal([&] { twice(linear_attention_reference); }), "accepted");
}

TEST(LinearAttention, RefusesWhatDoesNotFit) {
  const Case everything{
      .options = {.causal = true, .log_features = true, .normaliser = Normaliser::plus},
      .decay = true,
      .weights = true,
      .state = true};
  const auto said =
      [&](const std::function<void(LinearInputs&, LinearAttention&)>& spoil) {
        auto inputs = random_inputs(everything);
        auto options = everything.options;
        spoil(inputs, options);
        return refusal([&] { linear_attention(inputs, options); });
      };
  using In = LinearInputs;
  using Options = LinearAttention;
  EXPECT_EQ(said([](In&, Options&) {}), "accepted");

  const std::string shapes =
      "linear attention: q, k and v must be [B, H, N, m], [B, Hk, M, m] and "
      "[B, Hk, M, dv], got ";
  EXPECT_EQ(said([](In& x, Options&) { x.q = Tensor(); }),
            shapes + "nothing, [2, 2, 6, 3] and [2, 2, 6, 4]");
  EXPECT_EQ(said([](In& x, Options&) { x.k = x.k[0]; }),
            shapes + "[2, 2, 6, 3], [2, 6, 3] and [2, 2, 6, 4]");
  EXPECT_EQ(said([](In& x, Options&) { x.k = x.k.slice(0, 1); }),
            shapes + "[2, 2, 6, 3], [1, 2, 6, 3] and [2, 2, 6, 4]");
  EXPECT_EQ(said([](In& x, Options&) { x.k = x.k.slice(3, 1); }),
            shapes + "[2, 2, 6, 3], [2, 2, 6, 2] and [2, 2, 6, 4]");
  EXPECT_EQ(said([](In& x, Options&) { x.v = x.v.slice(2, 1); }),
            shapes + "[2, 2, 6, 3], [2, 2, 6, 3] and [2, 2, 5, 4]");
  EXPECT_EQ(said([](In& x, Options&) {
              x.q = x.q.slice(3, 3);
              x.k = x.k.slice(3, 3);
            }),
            "linear attention: there must be at least one feature, got [2, 2, 6, 0]");
  EXPECT_EQ(said([](In& x, Options&) {
              x.k = x.k.repeat({1, 2, 1, 1});
              x.v = x.v.repeat({1, 2, 1, 1});
            }),
            "linear attention: the heads of k must divide those of q, got 4 and 2");
  EXPECT_EQ(said([](In& x, Options&) { x.v = x.v.to(torch::kLong); }),
            "linear attention: v must be floating, got Long");
  EXPECT_EQ(said([](In& x, Options&) { x.k = x.k.to(torch::kMeta); }),
            "linear attention: k must be on the device of q, cpu, got meta");
  EXPECT_EQ(said([](In& x, Options&) { x.q = x.q.slice(2, 1); }),
            "linear attention: causal needs as many queries as keys, got 5 and 6");
  EXPECT_EQ(said([](In&, Options& options) { options.causal = false; }),
            "linear attention: log_decay is for causal only, got [2, 2, 6]");
  EXPECT_EQ(said([](In& x, Options&) { x.log_decay = x.log_decay.slice(2, 1); }),
            "linear attention: log_decay must be [2|1, 2|1, 6], got [2, 2, 5]");
  for (const auto& [value, name] :
       {std::pair(0.5, "0.5"), std::pair(kNever, "-inf"), std::pair(NAN * 1.0, "nan")})
    EXPECT_EQ(said([value = value](In& x, Options&) {
                x.log_decay = x.log_decay.clone();
                x.log_decay[1][0][4] = value;
              }),
              std::string("linear attention: log_decay must be finite and at most 0, "
                          "got ") +
                  name);
  EXPECT_EQ(said([](In& x, Options&) { x.weights = x.weights[0]; }),
            "linear attention: weights must be [2|1, 2|1, 6], got [1, 6]");
  EXPECT_EQ(said([](In& x, Options&) { x.weights = x.weights > 0; }),
            "linear attention: weights must be floating, got Bool");
  EXPECT_EQ(said([](In& x, Options&) { x.weights = x.weights.to(torch::kMeta); }),
            "linear attention: weights must be on the device of q, cpu, got meta");
  EXPECT_EQ(said([](In& x, Options&) { x.state.sums = x.state.sums.slice(3, 1); }),
            "linear attention: state.sums must be [2, 2, 3, 5], got [2, 2, 3, 4]");
  EXPECT_EQ(
      said([](In& x, Options&) { x.state.sums = x.state.sums.to(torch::kFloat); }),
      "linear attention: state.sums must be Double for these q, k and v, got Float");
  EXPECT_EQ(said([](In& x, Options&) { x.state.max = Tensor(); }),
            "linear attention: state.max must be [2, 2] for log features, got nothing");
  EXPECT_EQ(said([](In& x, Options&) { x.state.sums = Tensor(); }),
            "linear attention: state.max needs state.sums, got none");
  EXPECT_EQ(said([](In&, Options& options) { options.log_features = false; }),
            "linear attention: state.max is for log features only, got [2, 2]");
  EXPECT_EQ(said([](In&, Options& options) { options.epsilon = 0; }),
            "linear attention: epsilon must be more than 0, got 0");
}

}  // namespace
}  // namespace longspan
