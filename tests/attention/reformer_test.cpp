#include <cmath>
#include <set>

#include "longspan/kernels/hash.h"
#include "tests/support/mechanisms.h"

namespace longspan::testing {
namespace {

constexpr int64_t kHeads = 2, kWidth = 8;

struct Made {
  std::shared_ptr<Attention> attention;

  explicit Made(const std::string& settings, int64_t values = kWidth,
                int64_t longest = 0)
      : attention(make<Attention>(catalogue::reformer,
                                  {.heads = kHeads,
                                   .head_width = kWidth,
                                   .value_width = values,
                                   .longest = longest},
                                  *Value::parse(settings).as<Value::Map>())) {
    convert(*attention, torch::kCPU, torch::kDouble);
  }

  Tensor rotations() const { return attention->named_buffers()["rotations"]; }

  Tensor run(const Tensor& q, const Tensor& v, Pass pass) const {
    return attention->forward(q, q, v, pass);
  }

  // [H, N, N]: the weights that the queries of the first example give.
  Tensor weights(const Tensor& q, Pass pass) const {
    const torch::NoGradGuard without_gradients;
    const int64_t count = q.size(2);
    const Tensor identity =
        torch::eye(count, torch::kDouble).expand({q.size(0), kHeads, count, count});
    return run(q, identity, std::move(pass))[0];
  }
};

Tensor some_queries(int64_t count, int64_t examples = 1, uint64_t seed = 3) {
  return random_tensors(1, {examples, kHeads, count, kWidth}, torch::kDouble, seed)[0];
}

std::string chunks(int64_t chunk, const std::string& more) {
  return "{chunk: " + std::to_string(chunk) + ", " + more + "}";
}

// Softmax over what `times` [H, N, N] says a token meets how often; itself alone where
// it meets nothing.
Tensor expected_weights(const Tensor& q, const Tensor& times, double scale = 1) {
  const Tensor k = q / q.norm(2, 3, /*keepdim=*/true);
  const Tensor sums = (q.matmul(k.transpose(2, 3)) * scale).exp()[0] * times;
  const Tensor total = sums.sum(2, /*keepdim=*/true);
  return torch::where(total > 0, sums / total.masked_fill(total == 0, 1),
                      torch::eye(q.size(2), torch::kDouble));
}

TEST(Reformer, OneBucketIsDenseAttentionOverUnitKeysButForItself) {
  constexpr int64_t kTokens = 70;
  const auto x = random_tensors(2, {2, kHeads, kTokens, kWidth}, torch::kDouble, 1);
  const Tensor &q = x[0], &v = x[1], k = q / q.norm(2, 3, true);
  const double scale = 0.7;
  for (const int rounds : {1, 3})
    for (const bool causal : {false, true}) {
      const Made reformer(chunks(
          kTokens, "buckets: 1, qk_scale: 0.7, rounds: " + std::to_string(rounds)));
      Pass pass = pass_of(causal);
      pass.bias.dense = torch::zeros({1, 1, kTokens, kTokens}, torch::kDouble);
      pass.bias.dense.diagonal(0, 2, 3).fill_(-INFINITY);
      Tensor dense =
          make<Attention>(catalogue::dense, {.heads = kHeads, .head_width = kWidth})
              ->forward(q * scale * std::sqrt(kWidth), k, v, pass);
      if (causal) dense.select(2, 0).copy_(v.select(2, 0));  // sees no other
      EXPECT_TRUE(close(reformer.run(q, v, pass_of(causal)), dense))
          << rounds << (causal ? ", causal" : "");
    }
}

// Each round alone says whom it shows; together they are one softmax over all of them,
// each as often as rounds show it.
TEST(Reformer, RoundsCountAKeyAsOftenAsTheyShowIt) {
  constexpr int64_t kTokens = 100, kRounds = 4;
  const Tensor q = some_queries(kTokens);
  for (const bool causal : {false, true}) {
    const Made together("{chunk: 6, buckets: 6, rounds: 4}", kTokens);
    Tensor times = torch::zeros({kHeads, kTokens, kTokens}, torch::kDouble);
    for (int64_t round = 0; round < kRounds; ++round) {
      const Made one("{chunk: 6, buckets: 6, rounds: 1}", kTokens);
      one.rotations().copy_(together.rotations().slice(2, round, round + 1));
      Tensor seen = one.weights(q, pass_of(causal)).gt(0).to(torch::kDouble);
      seen.diagonal(0, 1, 2).fill_(0);
      times += seen;
    }
    EXPECT_GE(times.max().item<double>(), 3);
    EXPECT_TRUE(close(together.weights(q, pass_of(causal)), expected_weights(q, times)))
        << (causal ? "causal" : "");
  }
}

TEST(Reformer, CausalTokensSeeTheLastOfTheirBucket) {
  constexpr int64_t kTokens = 150, kChunk = 5;
  const Tensor q = some_queries(kTokens);
  const Made reformer(chunks(kChunk, "buckets: 4, rounds: 1"), kTokens);
  const Tensor weights = reformer.weights(q, pass_of(true));
  const Tensor buckets = cross_polytope_hash(q, reformer.rotations());
  Tensor times = torch::zeros_like(weights);
  for (int64_t head = 0; head < kHeads; ++head)
    for (int64_t i = 0; i < kTokens; ++i)
      for (int64_t j = i - 1, seen = 0; j >= 0 && seen < 2 * kChunk; --j)
        if (buckets[0][head][0][i].equal(buckets[0][head][0][j])) {
          times[head][i][j] = 1;
          ++seen;
        }
  EXPECT_EQ(times.sum(2).max().item<double>(), 2 * kChunk);
  EXPECT_TRUE(close(weights, expected_weights(q, times)));
}

// One bucket, so that the order of the tokens is their own.
TEST(Reformer, ChunksSeeThemselvesAndTheirNeighbours) {
  constexpr int64_t kChunk = 8;
  for (const bool next : {false, true})
    for (const int64_t count : {5, 8, 9, 16, 17, 24, 25, 61}) {
      const int64_t number = (count + kChunk - 1) / kChunk;
      Tensor times = torch::zeros({kHeads, count, count}, torch::kDouble);
      for (int64_t i = 0; i < count; ++i)
        for (int64_t j = 0; j < count; ++j) {
          const int64_t behind = (i / kChunk - j / kChunk + number) % number;
          if (i != j && (behind <= 1 || (next && behind == number - 1)))
            times.select(1, i).select(1, j).fill_(1);
        }
      const Tensor q = some_queries(count);
      const Made reformer(chunks(kChunk, std::string("buckets: 1, rounds: 2, next: ") +
                                             (next ? "true" : "false")),
                          count);
      EXPECT_TRUE(
          close(reformer.weights(q, pass_of(false)), expected_weights(q, times)))
          << count << (next ? ", next" : "");
    }
}

// Tokens i and i + 40 are alike but for their length, and so in one bucket whatever the
// rotations are.
TEST(Reformer, VectorsOfOneDirectionShareABucket) {
  constexpr int64_t kHalf = 40;
  const Tensor half = some_queries(kHalf), q = torch::cat({half, half * 5}, 2);
  const Made reformer("{chunk: 4, buckets: 64, rounds: 3}", 2 * kHalf);
  const Tensor weights = reformer.weights(q, pass_of(true));
  EXPECT_TRUE(weights.diagonal(-kHalf, 1, 2).gt(0).all().item<bool>());
  EXPECT_LT(weights.gt(0).sum(2).to(torch::kDouble).mean().item<double>(), 12);
}

TEST(Reformer, SeesOnlyItsBucketWhereAsked) {
  const Tensor q = some_queries(120);
  const Made reformer("{chunk: 16, buckets: 8, rounds: 1, own_bucket: true}", 120);
  const Tensor buckets = cross_polytope_hash(q, reformer.rotations())[0].squeeze(1);
  const Tensor alike = buckets.unsqueeze(2).eq(buckets.unsqueeze(1));
  const Tensor seen = reformer.weights(q, pass_of(false)).gt(0);
  EXPECT_FALSE(seen.logical_and(alike.logical_not()).any().item<bool>());
  EXPECT_TRUE(seen.sum(2).gt(1).any().item<bool>());
}

// More buckets than one hash has, and as many as each example needs.
TEST(Reformer, TakesBucketsFromTheLengthOfEveryExample) {
  constexpr int64_t kTokens = 300;
  const Tensor q = some_queries(kTokens, 5);
  Pass pass;
  const int64_t lengths[] = {300, 140, 31, 1, 0};
  pass.mask.tokens = torch::zeros({5, kTokens}, torch::kBool);
  for (int64_t example = 0; example < 5; ++example)
    pass.mask.tokens[example].slice(0, 0, lengths[example]).fill_(true);
  for (const int64_t longest : {0, 400})
    for (const char* next : {"false", "true"}) {
      const Made reformer(std::string("{chunk: 2, rounds: 2, next: ") + next + "}",
                          kWidth, longest);
      const auto x = random_tensors(1, {5, kHeads, kTokens, kWidth}, torch::kDouble)[0];
      Pass again = pass;
      const Tensor together = reformer.run(q, x, pass);
      EXPECT_TRUE(close(together, reformer.attention->reference(q, q, x, again)));
      for (int64_t example = 0; example < 4; ++example) {
        const auto own = [&](const Tensor& tensor) {
          return tensor.slice(0, example, example + 1).slice(2, 0, lengths[example]);
        };
        const Tensor alone = own(q).contiguous();
        EXPECT_TRUE(close(own(together), reformer.run(alone, own(x), Pass())))
            << lengths[example] << " tokens";
      }
    }
}

TEST(Reformer, GivesItsOwnValueToATokenWithoutCompany) {
  const Tensor one = some_queries(1), value = some_queries(1, 1, 4);
  for (const bool causal : {false, true})
    EXPECT_TRUE(Made("{buckets: 4}").run(one, value, pass_of(causal)).equal(value));
  // Vectors of zeros are in the first bucket, and have a gradient.
  const Tensor zeros =
      torch::zeros({1, kHeads, 9, kWidth}, torch::kDouble).requires_grad_();
  const Tensor v = some_queries(9);
  const Tensor out = Made("{buckets: 4, chunk: 9}").run(zeros, v, pass_of(true));
  EXPECT_TRUE(close(out.select(2, 4), v.slice(2, 0, 4).mean(2)));
  out.square().sum().backward();
  EXPECT_TRUE(zeros.grad().isfinite().all().item<bool>());
}

// Packed sequences are as if alone, where the pattern does not come from their number.
TEST(Reformer, CausalSegmentsAreSequencesOfTheirOwn) {
  const Tensor q = some_queries(90), v = some_queries(90, 1, 4);
  const Made reformer("{chunk: 4, buckets: 4, rounds: 2}");
  Pass pass = pass_of(true);
  pass.mask.segment =
      torch::arange(90).unsqueeze(0).ge(50).to(torch::kLong) * -70000 + 3;
  const Tensor packed = reformer.run(q, v, pass);
  for (const auto& [from, to] : {std::pair(0, 50), std::pair(50, 90)}) {
    const Tensor part = q.slice(2, from, to).contiguous();
    EXPECT_TRUE(close(packed.slice(2, from, to),
                      reformer.run(part, v.slice(2, from, to), pass_of(true))));
  }
}

TEST(Reformer, DrawsOtherHashesForOtherStepsOfTraining) {
  const Tensor q = some_queries(60), v = some_queries(60, 1, 4);
  const auto trained = [&](const Made& reformer, uint64_t step) {
    Pass pass;
    pass.training = true;
    pass.draw = Draw(1, step);
    return reformer.run(q, v, pass);
  };
  const Made drawn("{chunk: 4, buckets: 8}"),
      frozen("{chunk: 4, buckets: 8, redraw: false}");
  EXPECT_TRUE(trained(drawn, 1).equal(trained(drawn, 1)));
  EXPECT_FALSE(trained(drawn, 1).equal(trained(drawn, 2)));
  EXPECT_TRUE(drawn.run(q, v, Pass()).equal(drawn.run(q, v, Pass())));
  EXPECT_TRUE(trained(frozen, 1).equal(frozen.run(q, v, Pass())));
}

TEST(Reformer, RecomputesWithTheBucketsItChose) {
  const Tensor q = some_queries(60), v = some_queries(60, 1, 4);
  const Made reformer("{chunk: 4, buckets: 8, rounds: 2}");
  Record choices;
  Pass pass;
  pass.choices = &choices;
  const Tensor first = reformer.run(q, v, pass);
  EXPECT_EQ(choices.get("buckets").sizes(), (std::vector<int64_t>{1, kHeads, 2, 60}));
  reformer.rotations().neg_();
  EXPECT_TRUE(reformer.run(q, v, pass).equal(first));
  EXPECT_FALSE(reformer.run(q, v, Pass()).equal(first));
}

TEST(Reformer, RefusesWhatItCannotDo) {
  const Tensor q = some_queries(9);
  const Made reformer("{chunk: 4}");
  Pass pass;
  EXPECT_EQ(
      refusal([&] { reformer.attention->forward(q, q.clone(), q, pass); }),
      "reformer: queries and keys are one, so k must be the tensor q, got another");
  EXPECT_EQ(refusal([&] { reformer.run(q, q, pass_of(true)); }),
            "reformer: buckets: 0 takes their number from the length, which the causal "
            "form must not; give buckets, or a longest sequence");
  EXPECT_EQ(refusal([&] { Made("{chunk: 4}", kWidth, 9).run(q, q, pass_of(true)); }),
            "accepted");
  EXPECT_EQ(refusal([&] { made(catalogue::reformer, "{buckets: 7}"); }),
            "reformer: buckets must be 0, 1 or even, because a hash has them in "
            "opposites, got 7");
}

}  // namespace
}  // namespace longspan::testing
