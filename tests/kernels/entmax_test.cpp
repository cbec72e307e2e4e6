#include "longspan/kernels/entmax.h"

#include <algorithm>
#include <cmath>

#include "longspan/base/threads.h"
#include "longspan/kernels/cpu/isa.h"
#include "tests/support/any_threads.h"
#include "tests/support/each_isa.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

constexpr double kNever = -INFINITY;

// The weights of one row of scores, by 200 halvings.
std::vector<double> halved(const std::vector<double>& scores, double alpha) {
  const double e = alpha - 1, most = *std::ranges::max_element(scores);
  const auto weight = [&](double score, double tau) {
    return std::pow(std::max(e * (score - most) - tau, 0.0), 1 / e);
  };
  double low = -1, high = 0;
  for (int i = 0; i < 200; ++i) {
    const double middle = (low + high) / 2;
    double sum = 0;
    for (const double score : scores) sum += weight(score, middle);
    (sum >= 1 ? low : high) = middle;
  }
  std::vector<double> weights;
  for (const double score : scores) weights.push_back(weight(score, low));
  return weights;
}

// For alpha = 2, by sorting.
std::vector<double> sparsemax(const std::vector<double>& scores) {
  auto sorted = scores;
  std::ranges::sort(sorted, std::greater<>());
  double sum = 0, tau = 0;
  for (size_t k = 1; k <= sorted.size(); ++k) {
    sum += sorted[k - 1];
    if (1 + static_cast<double>(k) * sorted[k - 1] > sum)
      tau = (sum - 1) / static_cast<double>(k);
  }
  std::vector<double> weights;
  for (const double score : scores) weights.push_back(std::max(score - tau, 0.0));
  return weights;
}

// For alpha = 1.5, by sorting.
std::vector<double> entmax15(const std::vector<double>& scores) {
  auto sorted = scores;
  std::ranges::sort(sorted, std::greater<>());
  const double most = sorted.front();
  double sum = 0, squares = 0, tau = 0;
  for (size_t i = 0; i < sorted.size(); ++i) {
    const double x = (sorted[i] - most) / 2, k = static_cast<double>(i + 1);
    sum += x;
    squares += x * x;
    const double mean = sum / k, spread = squares - k * mean * mean;
    const double here = mean - std::sqrt(std::max((1 - spread) / k, 0.0));
    if (here <= x) tau = here;
  }
  std::vector<double> weights;
  for (const double score : scores)
    weights.push_back(std::pow(std::max((score - most) / 2 - tau, 0.0), 2));
  return weights;
}

Tensor as_row(const std::vector<double>& numbers) {
  return torch::tensor(numbers, torch::kDouble);
}

std::vector<double> as_numbers(const Tensor& row) {
  const Tensor x = row.to(torch::kDouble).contiguous();
  return {x.data_ptr<double>(), x.data_ptr<double>() + x.numel()};
}

// The weights of one query whose scores are given, through attention: keys are the
// scores, values the identity.
Tensor weights_of(const std::vector<double>& scores, double alpha,
                  torch::Dtype dtype = torch::kDouble) {
  const auto count = static_cast<int64_t>(scores.size());
  const auto options = torch::TensorOptions(dtype);
  const Tensor q = torch::ones({1, 1, 1, 1}, options);
  const Source source{.k = as_row(scores).to(dtype).view({1, 1, count, 1}),
                      .v = torch::eye(count, options).view({1, 1, count, count})};
  const auto precise = dtype == torch::kDouble ? torch::kDouble : torch::kFloat;
  return entmax_attention({.q = q}, source, torch::full({1}, alpha, precise)).flatten();
}

std::vector<double> random_scores(int64_t count, double size, uint64_t seed = 0) {
  return as_numbers(random_tensors(1, {count}, torch::kDouble, seed)[0] * size);
}

// q, k, v and alphas of four heads.
struct Inputs {
  Queries queries;
  Source source;
  Tensor alpha;
  BlockAttention options = {};
};

Inputs inputs_of(int64_t queries, int64_t keys, torch::Dtype dtype = torch::kDouble,
                 int64_t key_heads = 4, int64_t width = 8, int64_t value_width = 5) {
  const auto precise = dtype == torch::kDouble ? torch::kDouble : torch::kFloat;
  return {.queries = {.q = random_tensors(1, {2, 4, queries, width}, dtype)[0] * 2},
          .source = {.k = random_tensors(1, {2, key_heads, keys, width}, dtype, 1)[0],
                     .v = random_tensors(1, {2, key_heads, keys, value_width}, dtype,
                                         2)[0]},
          .alpha = torch::tensor({1.07, 1.3, 1.5, 2.0}, precise)};
}

Inputs with(Inputs inputs, const Tensors& learned) {
  inputs.queries.q = learned[0];
  inputs.source.k = learned[1];
  inputs.source.v = learned[2];
  inputs.alpha = learned[3];
  return inputs;
}

Tensors learned(const Inputs& inputs) {
  return {inputs.queries.q, inputs.source.k, inputs.source.v, inputs.alpha};
}

using Form = std::function<Tensor(const Inputs&)>;

Tensor fused(const Inputs& in) {
  return entmax_attention(in.queries, in.source, in.alpha, in.options);
}
Tensor plain(const Inputs& in) {
  return entmax_attention_reference(in.queries, in.source, in.alpha, in.options);
}
Form in_chunks(int64_t rows) {
  return [rows](const Inputs& in) {
    return entmax_attention_in_chunks(in.queries, in.source, in.alpha, in.options,
                                      rows);
  };
}

// Out, and the gradients of q, k, v, alpha, and of `more`.
Tensors results(const Form& form, const Inputs& inputs,
                const std::vector<Tensor Bias::*>& more = {}) {
  Tensors leaves;
  const auto leaf = [&](const Tensor& x) {
    leaves.push_back(x.detach().clone().requires_grad_());
    return leaves.back();
  };
  Tensors own;
  for (const Tensor& x : learned(inputs)) own.push_back(leaf(x));
  Inputs in = with(inputs, own);
  for (const auto member : more) in.source.bias.*member = leaf(in.source.bias.*member);
  const Tensor out = form(in);
  torch::manual_seed(9);
  const Tensor slope = torch::randn(out.sizes(), torch::kDouble).to(out.scalar_type());
  Tensors all = torch::autograd::grad({out}, leaves, {slope}, false, false, true);
  for (size_t i = 0; i < all.size(); ++i)
    if (!all[i].defined()) all[i] = torch::zeros_like(leaves[i]);
  all.insert(all.begin(), out.detach());
  return all;
}

void expect_close(const Tensors& got, const Tensors& expected, double tolerance = 1e-9,
                  const std::string& where = "") {
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_TRUE(close(got[i], expected[i], tolerance))
        << "result " << i << " " << where;
}

TEST(EntmaxWeights, AreThoseOfTwoHundredHalvings) {
  for (const double alpha : {1.01, 1.05, 1.27, 1.5, 1.73, 1.99, 2.0})
    for (const double size : {0.01, 1.0, 30.0}) {
      const auto scores = random_scores(150, size);
      const Tensor got =
          entmax_weights(as_row(scores), torch::full({1}, alpha, torch::kDouble));
      EXPECT_TRUE(close(got, as_row(halved(scores, alpha)), 1e-9))
          << alpha << ", " << size;
    }
}

TEST(EntmaxWeights, AreZeroWhereNothingIsSeen) {
  const Tensor scores = torch::full({2, 3}, kNever, torch::kDouble);
  scores[1][2] = 4;
  const Tensor alpha = torch::full({1}, 1.3, torch::kDouble).requires_grad_();
  const Tensor leaf = scores.clone().requires_grad_();
  const Tensor weights = entmax_weights(leaf, alpha);
  EXPECT_TRUE(
      weights.equal(torch::tensor({{0.0, 0.0, 0.0}, {0.0, 0.0, 1.0}}, torch::kDouble)));
  for (const Tensor& slope : torch::autograd::grad({weights.sum()}, {leaf, alpha}))
    EXPECT_TRUE(slope.isfinite().all().item<bool>());
}

class Entmax : public testing::EachIsa {};

TEST_P(Entmax, WeightsAreThoseOfTwoHundredHalvings) {
  for (const double alpha : {1.01, 1.05, 1.27, 1.5, 1.73, 1.99, 2.0})
    for (const double size : {0.0, 0.01, 1.0, 30.0})
      for (const int64_t count : {1, 2, 17, 300}) {
        const auto scores = random_scores(count, size);
        const Tensor exact = as_row(halved(scores, alpha));
        EXPECT_TRUE(close(weights_of(scores, alpha), exact, 1e-9))
            << alpha << ", " << size << ", " << count;
        const Tensor rounded = as_row(as_numbers(as_row(scores).to(torch::kFloat)));
        EXPECT_LE(largest_error(weights_of(scores, alpha, torch::kFloat),
                                as_row(halved(as_numbers(rounded), alpha))),
                  3e-6)
            << alpha << ", " << size << ", " << count << " in float";
      }
}

TEST_P(Entmax, IsSparsemaxForTwo) {
  for (const double size : {0.001, 0.3, 5.0}) {
    const auto scores = random_scores(400, size);
    EXPECT_TRUE(close(weights_of(scores, 2), as_row(sparsemax(scores)), 1e-11)) << size;
  }
}

TEST_P(Entmax, IsTheExactFormulaForThreeHalves) {
  for (const double size : {0.001, 0.3, 5.0}) {
    const auto scores = random_scores(400, size);
    EXPECT_TRUE(close(weights_of(scores, 1.5), as_row(entmax15(scores)), 1e-11))
        << size;
  }
}

// To first order in e = alpha - 1 the logarithm of a weight p is that of softmax less
// e/2 times its square, but for what makes the weights sum to 1.
TEST_P(Entmax, GoesToSoftmaxAsAlphaGoesToOne) {
  const auto scores = random_scores(200, 1);
  const Tensor p = as_row(scores).softmax(0), square = p.log().square();
  const Tensor first = -0.5 * p * (square - (p * square).sum());
  const Tensor got = weights_of(scores, 1.01);
  EXPECT_LT(largest_error(got, p), 0.005);
  EXPECT_LT(largest_error((got - p) / 0.01, first),
            0.05 * first.abs().max().item<double>());
}

TEST_P(Entmax, WeightsSumToOneAndLowScoresHaveNone) {
  for (const double alpha : {1.05, 1.3, 1.5, 2.0})
    for (const auto dtype : {torch::kFloat, torch::kDouble}) {
      const auto scores = random_scores(500, 4);
      const Tensor weights = weights_of(scores, alpha, dtype);
      EXPECT_NEAR(weights.sum().item<double>(), 1,
                  dtype == torch::kFloat ? 1e-6 : 1e-12);
      EXPECT_GE(weights.min().item<double>(), 0);
      const int64_t zeros = weights.eq(0).sum().item<int64_t>();
      const int64_t least = alpha < 1.3 ? 0 : alpha < 2 ? 200 : 480;
      EXPECT_GE(zeros, least) << alpha;
    }
}

TEST_P(Entmax, EqualScoresShareAlike) {
  for (const double alpha : {1.01, 1.4, 1.5, 2.0})
    for (const auto dtype : {torch::kFloat, torch::kDouble}) {
      const Tensor weights = weights_of(std::vector<double>(1000, 7), alpha, dtype);
      EXPECT_TRUE(close(weights, torch::full({1000}, 1e-3, torch::kDouble),
                        dtype == torch::kFloat ? 1e-6 : 1e-12))
          << alpha;
    }
}

TEST_P(Entmax, StandsAnyScale) {
  for (const double alpha : {1.01, 1.3, 1.5, 2.0})
    for (const auto dtype : {torch::kFloat, torch::kDouble})
      for (const double size : {1e4, 1e30}) {
        const Tensor weights = weights_of({-size, size, 0, size}, alpha, dtype);
        EXPECT_TRUE(close(weights, torch::tensor({0.0, 0.5, 0.0, 0.5}), 1e-6))
            << alpha << ", " << size;
      }
}

TEST_P(Entmax, GivesTheValueOfTheOnlyKey) {
  Inputs in = inputs_of(70, 1, torch::kFloat);
  EXPECT_TRUE(fused(in).equal(in.source.v.expand({2, 4, 70, 5})));
}

TEST_P(Entmax, EqualsTheReference) {
  for (const int64_t key_heads : {1, 2, 4})
    for (const auto& [queries, keys] :
         {std::pair(1, 1), {3, 70}, {64, 64}, {65, 129}, {130, 300}, {5, 0}}) {
      Inputs in = inputs_of(queries, keys, torch::kDouble, key_heads);
      expect_close(results(fused, in), results(plain, in), 1e-9,
                   std::to_string(queries) + " x " + std::to_string(keys));
    }
}

TEST_P(Entmax, TakesAnyWidth) {
  for (const auto dtype : {torch::kFloat, torch::kDouble})
    for (const auto& [width, value_width] :
         {std::pair(1, 1), {7, 33}, {64, 64}, {80, 16}, {16, 130}}) {
      Inputs in = inputs_of(40, 90, dtype, 4, width, value_width);
      expect_close(results(fused, in), results(plain, in),
                   dtype == torch::kFloat ? 5e-4 : 1e-9,
                   std::to_string(width) + ", " + std::to_string(value_width));
    }
}

// Each with gradients, by the kernels and in chunks.
TEST_P(Entmax, SeesWhatTheWordsOfBlockAttentionSay) {
  constexpr int64_t kQueries = 80, kKeys = 110;
  const auto positions = torch::randint(0, 200, {2, 1, kQueries}, torch::kLong);
  const auto from = torch::randint(0, 200, {2, 1, kKeys}, torch::kLong);
  const auto check = [&](const char* what, const auto& change) {
    Inputs in = inputs_of(kQueries, kKeys, torch::kDouble, 2);
    change(in);
    const Tensors expected = results(plain, in);
    expect_close(results(fused, in), expected, 1e-9, what);
    expect_close(results(in_chunks(37), in), expected, 1e-9,
                 std::string(what) + ", in chunks");
    for (const Tensor& result : expected)
      EXPECT_TRUE(result.isfinite().all().item<bool>()) << what;
  };
  check("layout", [](Inputs& in) {
    in.source.layout = Layout(kQueries, kKeys, {past_keys(20), window_of_keys(3, 9, 5)},
                              {.examples = 1, .heads = 4, .pattern = {0, 1, 1, 0}});
  });
  check("intervals", [&](Inputs& in) {
    in.queries.positions = positions;
    in.source.from = from;
    in.source.to = from + 70;
  });
  check("outside", [&](Inputs& in) {
    in.queries.first = 30;
    in.source.from = from;
    in.source.to = from + 50;
    in.source.outside = true;
  });
  check("buckets", [](Inputs& in) {
    in.queries.buckets = torch::arange(kQueries) % 3;
    in.source.buckets = torch::arange(kKeys) % 4;  // some see nothing
  });
  check("no key",
        [](Inputs& in) { in.source.to = torch::full({kKeys}, -1, torch::kLong); });
  check("examples alike", [](Inputs& in) {
    in.source.k = in.source.k.slice(0, 0, 1);
    in.source.v = in.source.v.slice(0, 0, 1);
  });
}

TEST_P(Entmax, AddsBiasesThatHaveGradients) {
  constexpr int64_t kQueries = 70, kKeys = 90;
  const auto randoms = [](at::IntArrayRef shape) {
    return random_tensors(1, shape, torch::kDouble, 5)[0];
  };
  const auto check = [&](const char* what, const std::vector<Tensor Bias::*>& members,
                         const auto& change) {
    Inputs in = inputs_of(kQueries, kKeys);
    in.source.layout = Layout(kQueries, kKeys, past_keys(20));
    change(in.source.bias);
    const Tensors expected = results(plain, in, members);
    expect_close(results(fused, in, members), expected, 1e-9, what);
    expect_close(results(in_chunks(29), in, members), expected, 1e-9,
                 std::string(what) + ", in chunks");
  };
  check("column and slopes", {&Bias::column, &Bias::slopes}, [&](Bias& bias) {
    bias.column = randoms({2, 1, kKeys});
    bias.slopes = randoms({4});
  });
  check("slopes without gradients", {},
        [&](Bias& bias) { bias.slopes = randoms({4}); });
  check("table", {&Bias::table}, [&](Bias& bias) {
    bias.table = randoms({4, 30});
    bias.first = -9;
  });
  check("vectors", {&Bias::vectors, &Bias::offset}, [&](Bias& bias) {
    bias.vectors = randoms({4, 30, 8});
    bias.offset = randoms({4, 8});
  });
  check("vectors without gradients", {}, [&](Bias& bias) {
    bias.vectors = randoms({1, 30, 8});
  });
  check("dense and labels", {&Bias::dense, &Bias::table}, [&](Bias& bias) {
    bias.dense = randoms({1, 4, kQueries, kKeys});
    bias.table = randoms({4, 3});
    bias.labels = torch::arange(kQueries * kKeys).view({1, 1, kQueries, kKeys}) % 3;
  });
  check("hiding", {}, [&](Bias& bias) {
    bias.column = torch::zeros({1, 1, kKeys}, torch::kDouble);
    bias.column[0][0].slice(0, 3, 40).fill_(kNever);
  });
}

TEST_P(Entmax, DropsTheSameWeightsAsTheReference) {
  Inputs in = inputs_of(90, 130, torch::kDouble, 2);
  in.options.dropout = {.probability = 0.3, .key = {17}};
  const Tensors expected = results(plain, in);
  expect_close(results(fused, in), expected);
  expect_close(results(in_chunks(40), in), expected);
  in.options.dropout.key = {18};
  EXPECT_FALSE(close(fused(in), expected[0], 1e-3));
  // Of values that are all 1, what is left is a multiple of 1 / (1 - p) weights.
  in.alpha.fill_(2);
  in.source.k.zero_();
  in.source.v.fill_(1);
  const Tensor kept = fused(in) * 0.7 * 130;
  EXPECT_TRUE(close(kept, kept.round(), 1e-9));
  EXPECT_NEAR(kept.mean().item<double>(), 0.7 * 130, 1);
}

TEST_P(Entmax, HasTheGradientsOfDifferences) {
  for (const bool causal : {false, true}) {
    Inputs in = inputs_of(20, 20);
    in.alpha = torch::tensor({1.05, 1.3, 1.5, 1.9}, torch::kDouble);
    if (causal) in.source.layout = Layout(20, 20, past_keys());
    EXPECT_TRUE(gradients_agree(
        [&](const Tensors& at) -> Tensors { return {fused(with(in, at))}; },
        learned(in), 1e-5));
  }
}

TEST_P(Entmax, HasTheGradientsOfSparsemax) {
  Inputs in = inputs_of(4, 9);
  in.alpha.fill_(2);
  const Tensor alpha = in.alpha;
  Tensors at = learned(in);
  at.pop_back();
  EXPECT_TRUE(gradients_agree(
      [&](const Tensors& some) -> Tensors {
        return {fused(with(in, {some[0], some[1], some[2], alpha}))};
      },
      at, 1e-5));
}

TEST_P(Entmax, ComputesLowPrecisionInFloat) {
  for (const auto dtype : {torch::kBFloat16, torch::kHalf}) {
    const Inputs low = inputs_of(40, 100, dtype);
    Inputs high = low;
    for (Tensor* x : {&high.queries.q, &high.source.k, &high.source.v})
      *x = x->to(torch::kFloat);
    const Tensor out = fused(low);
    EXPECT_EQ(out.scalar_type(), dtype);
    EXPECT_TRUE(out.equal(fused(high).to(dtype)));
    const Tensors all = results(fused, low);
    for (size_t i = 1; i < 4; ++i) EXPECT_EQ(all[i].scalar_type(), dtype);
    EXPECT_EQ(all[4].scalar_type(), torch::kFloat);
  }
}

TEST_P(Entmax, IsTheSameForAnyNumberOfThreads) {
  for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
    Inputs in = inputs_of(150, 500, dtype, 1, 24);
    in.source.layout = Layout(150, 500, past_keys(300));
    EXPECT_TRUE(same_with_any_threads([&] { return results(fused, in); })) << dtype;
  }
  Inputs in = inputs_of(70, 130, torch::kFloat);
  in.source.bias.slopes = torch::full({4}, 0.01);
  EXPECT_TRUE(
      same_with_any_threads([&] { return results(fused, in, {&Bias::slopes}); }));
}

TEST_P(Entmax, QueriesOfATileDoNotDependOnOneAnother) {
  Inputs in = inputs_of(64, 500, torch::kFloat);
  const Tensor before = fused(in);
  in.queries.q = in.queries.q.clone();
  in.queries.q.slice(2, 10, 20).mul_(9);
  const Tensor after = fused(in);
  EXPECT_TRUE(after.slice(2, 0, 10).equal(before.slice(2, 0, 10)));
  EXPECT_TRUE(after.slice(2, 20).equal(before.slice(2, 20)));
}

TEST_P(Entmax, KeepsWhatIsNotANumber) {
  for (const double strange : {std::nan(""), static_cast<double>(INFINITY)}) {
    Inputs in = inputs_of(3, 80, torch::kFloat);
    in.queries.q[0][1][2].fill_(strange);
    const Tensors all = results(fused, in);
    EXPECT_TRUE(all[0][0][1][2].isnan().all().item<bool>()) << strange;
    EXPECT_TRUE(all[1][0][1][2].isnan().all().item<bool>()) << strange;
    EXPECT_EQ(all[0].isnan().sum().item<int64_t>(), 5) << strange;
  }
}

INSTANTIATE_TEST_SUITE_P(EveryInstructionSet, Entmax,
                         ::testing::ValuesIn(cpu::kAllIsas),
                         [](const auto& test) { return cpu::name(test.param); });

// So many keys that the queries of a tile go in parts.
TEST(EntmaxOfManyKeys, EqualsTheReference) {
  constexpr int64_t kKeys = 9000;
  const Queries queries{.q = random_tensors(1, {1, 1, 70, 4}, torch::kDouble)[0]};
  const auto kv = random_tensors(2, {1, 1, kKeys, 4}, torch::kDouble, 1);
  const Inputs in{.queries = queries,
                  .source = {.k = kv[0], .v = kv[1]},
                  .alpha = torch::full({1}, 1.5, torch::kDouble)};
  expect_close(results(fused, in), results(plain, in));
}

TEST(EntmaxInChunks, DoesNotDependOnTheirSize) {
  for (const auto dtype : {torch::kDouble, torch::kFloat}) {
    const Inputs in = inputs_of(50, 60, dtype, 2);
    const Tensors whole = results(in_chunks(1000), in);
    for (const int64_t rows : {1, 7, 50})
      expect_close(results(in_chunks(rows), in), whole,
                   dtype == torch::kDouble ? 1e-12 : 1e-5, std::to_string(rows));
  }
}

TEST(EntmaxOnEveryDevice, EqualsTheCpu) {
  struct Case {
    int64_t queries, keys, seen;  // seen: by query 0, beside those before it
  };
  // The last have so many keys that a row is too long to be kept close.
  for (const auto& [queries, keys, seen] :
       {Case{100, 130, 30}, Case{20, 130, -5}, Case{7, 12500, 12490}})
    for (const auto device : devices()) {
      const Inputs in = inputs_of(queries, keys, torch::kDouble, 2);
      const auto causal =
          [&, layout = Layout(queries, keys, past_keys(seen))](const Inputs& some) {
            Inputs masked = some;
            masked.source.layout = layout;
            return fused(masked);
          };
      const auto there = [&](const Inputs& some) {
        Inputs moved = some;
        for (Tensor* x :
             {&moved.queries.q, &moved.source.k, &moved.source.v, &moved.alpha})
          *x = x->to(device);
        return causal(moved).cpu();
      };
      expect_close(results(there, in), results(causal, in));
    }
}

TEST(EntmaxOnEveryDevice, IsTheReferenceWhereAllIsSeen) {
  for (const auto device : devices()) {
    const Inputs in = inputs_of(40, 70);
    const auto on_device = [&](const Form& form) {
      return [&](const Inputs& some) {
        Inputs moved = some;
        for (Tensor* x :
             {&moved.queries.q, &moved.source.k, &moved.source.v, &moved.alpha})
          *x = x->to(device);
        return form(moved).cpu();
      };
    };
    expect_close(results(on_device(fused), in), results(on_device(plain), in));
  }
}

TEST(EntmaxCall, TakesBatchesOfNothing) {
  const auto none = [](int64_t examples, int64_t queries) {
    Inputs in = inputs_of(queries, 9);
    return with(in,
                {in.queries.q.slice(0, 0, examples), in.source.k.slice(0, 0, examples),
                 in.source.v.slice(0, 0, examples), in.alpha});
  };
  for (const Form& form : {Form(fused), Form(plain), in_chunks(4)}) {
    EXPECT_EQ(results(form, none(0, 5))[0].size(0), 0);
    EXPECT_EQ(results(form, none(2, 0))[0].size(2), 0);
  }
}

TEST(EntmaxCall, RefusesWhatDoesNotFit) {
  const auto said = [](const auto& change) {
    return refusal([&] {
      Inputs in = inputs_of(5, 6);
      change(in);
      fused(in);
    });
  };
  EXPECT_EQ(said([](Inputs& in) { in.alpha = in.alpha.slice(0, 1); }),
            "entmax attention: alpha must be [H] with H = 4, got [3]");
  EXPECT_EQ(said([](Inputs& in) { in.alpha[2] = 1.0; }),
            "entmax attention: alpha must be between 1.01 and 2, got 1 to 2");
  EXPECT_EQ(said([](Inputs& in) { in.alpha = in.alpha.to(torch::kLong); }),
            "entmax attention: alpha must be Float or Double, got Long");
  EXPECT_EQ(said([](Inputs& in) { in.source.rows = torch::arange(6); }),
            "entmax attention: it takes no rows by index; put q, k and v in order");
  EXPECT_EQ(refusal([] {
              const Inputs in = inputs_of(5, 6);
              entmax_attention_in_chunks(in.queries, in.source, in.alpha, {}, 0);
            }),
            "entmax attention: a chunk must have 1 row or more, got 0");
  EXPECT_EQ(refusal([] {
              Inputs in = inputs_of(5, 6);
              const Tensor q = in.queries.q.requires_grad_();
              torch::autograd::grad({fused(in).square().sum()}, {q}, {},
                                    /*retain_graph=*/true, /*create_graph=*/true);
            }),
            "entmax attention: it has no second derivatives; "
            "entmax_attention_reference() has");
}

}  // namespace
}  // namespace longspan::testing
