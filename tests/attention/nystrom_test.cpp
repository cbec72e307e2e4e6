#include <cmath>

#include "longspan/contract/subject.h"
#include "tests/support/any_threads.h"
#include "tests/support/mechanisms.h"

namespace longspan::testing {
namespace {

std::shared_ptr<Attention> made_of(const std::string& settings,
                                   torch::Dtype type = torch::kDouble,
                                   int64_t key_heads = 4) {
  const auto attention = make<Attention>(
      catalogue::nystrom, {.heads = 4, .key_heads = key_heads, .head_width = 8},
      *Value::parse(settings).as<Value::Map>());
  convert(*attention, torch::kCPU, type);
  return attention;
}

Tensor run(const std::shared_ptr<Attention>& attention, const Tensors& x,
           const Tensor& tokens = {}) {
  Pass pass;
  pass.mask.tokens = tokens;
  return attention->forward(x[0], x[1], x[2], pass);
}

Tensor weights(const Tensor& q, const Tensor& k) {
  return (q.matmul(k.transpose(2, 3)) / std::sqrt(8)).softmax(3);
}

TEST(Nystrom, ComesNearDenseWithEveryTokenALandmark) {
  const auto x = random_tensors(3, {2, 4, 50, 8});
  const Tensor dense = run(made(catalogue::dense), x);
  double before = 1e9;
  for (const int iterations : {0, 3, 6, 12, 30}) {
    const auto settings =
        "{landmarks: 50, convolution: 0, iterations: " + std::to_string(iterations) +
        "}";
    const double error = largest_error(run(made_of(settings), x), dense);
    EXPECT_LT(error, before / 2) << iterations;
    before = error;
  }
  EXPECT_LT(before, 1e-6);
}

TEST(Nystrom, IsTheProductOfThreeWithItsOwnIteration) {
  const auto x = random_tensors(3, {1, 4, 60, 8});
  const auto means = [](const Tensor& y) { return y.view({1, 4, 12, 5, 8}).mean(3); };
  const Tensor ql = means(x[0]), kl = means(x[1]), a = weights(ql, kl);
  for (const int iterations : {0, 1, 6}) {
    std::vector<Tensor> inverses;  // head by head
    for (int64_t head = 0; head < 4; ++head) {
      const Tensor one = torch::eye(12, torch::kDouble), b = a[0][head];
      Tensor z = b.t() / (b.sum(0).max() * b.sum(1).max());
      for (int i = 0; i < iterations; ++i)
        z = z.mm(13 * one - b.mm(z).mm(15 * one - b.mm(z).mm(7 * one - b.mm(z)))) / 4;
      inverses.push_back(z);
    }
    const Tensor expected = weights(x[0], kl)
                                .matmul(torch::stack(inverses))
                                .matmul(weights(ql, x[1]).matmul(x[2]));
    const auto settings =
        "{landmarks: 12, convolution: 0, iterations: " + std::to_string(iterations) +
        "}";
    EXPECT_TRUE(close(run(made_of(settings), x), expected));
  }
}

TEST(Nystrom, OneLandmarkGivesAllTokensTheSame) {
  const auto x = random_tensors(3, {2, 4, 45, 8});
  const Tensor expected = weights(x[0].mean(2, true), x[1]).matmul(x[2]);
  EXPECT_TRUE(close(run(made_of("{landmarks: 1, convolution: 0}"), x),
                    expected.expand({-1, -1, 45, -1})));
}

TEST(Nystrom, TakesTheShortcutOnlyWhereItIsAskedTo) {
  const auto x = random_tensors(3, {3, 4, 40, 8}, torch::kFloat);
  const Tensor dense = run(made(catalogue::dense), x);
  const auto type = torch::kFloat;
  const auto shortcut = made_of("{convolution: 0, shortcut: true}", type);
  EXPECT_TRUE(run(shortcut, x).equal(dense));
  EXPECT_FALSE(close(run(made_of("{convolution: 0}", type), x), dense, 1e-3));

  // Each example by its own number of tokens.
  const auto some = made_of("{landmarks: 16, convolution: 0, shortcut: true}", type),
             never = made_of("{landmarks: 16, convolution: 0}", type);
  Tensor tokens = torch::ones({3, 40}, torch::kBool);
  tokens[1].slice(0, 0, 24).fill_(false);
  tokens[2].slice(0, 0, 23).fill_(false);
  Pass pass;
  pass.mask.tokens = tokens;
  const Tensor got = run(some, x, tokens), plain = run(never, x, tokens),
               full = made(catalogue::dense)->forward(x[0], x[1], x[2], pass);
  EXPECT_TRUE(got[0].equal(plain[0]));
  EXPECT_TRUE(close(got[1], full[1], 1e-6));
  EXPECT_FALSE(close(plain[1], full[1], 1e-3));
  EXPECT_TRUE(got[2].equal(plain[2]));
}

TEST(Nystrom, AddsAConvolutionOfTheValues) {
  for (const int64_t key_heads : {4, 2}) {
    for (const int64_t kernel : {1, 3, 33, 65}) {
      const auto attention =
          made_of("{landmarks: 8, convolution: " + std::to_string(kernel) + "}",
                  torch::kDouble, key_heads);
      Tensor weight = attention->parameters()[0];
      for (const int64_t tokens : {1, 31, 32, 33, 150}) {
        const Tensor q = random_tensors(1, {2, 4, tokens, 8})[0];
        const auto x = random_tensors(2, {2, key_heads, tokens, 8}, torch::kDouble, 1);
        const auto with = [&](const Tensor& kernel_weight) {
          const torch::NoGradGuard changing;
          const Tensor before = weight.clone();
          weight.copy_(kernel_weight);
          const Tensor out = run(attention, {q, x[0], x[1]});
          weight.copy_(before);
          return out;
        };
        const Tensor added = with(weight.clone()) - with(torch::zeros_like(weight));
        const Tensor expected = torch::conv2d(
            x[1].repeat_interleave(4 / key_heads, 1), weight.view({4, 1, kernel, 1}),
            /*bias=*/{}, /*stride=*/1, /*padding=*/{kernel / 2, 0}, /*dilation=*/1,
            /*groups=*/4);
        EXPECT_TRUE(close(added, expected)) << kernel << " over " << tokens;
        const Tensor slope = torch::randn_like(expected);
        const auto gradient = [&](const Tensor& of) {
          return torch::autograd::grad({of}, {weight}, {slope})[0];
        };
        EXPECT_TRUE(
            close(gradient(run(attention, {q, x[0], x[1]})), gradient(expected)))
            << kernel << " over " << tokens;
      }
    }
  }
}

TEST(Nystrom, HasGradientsThroughAllOfIt) {
  for (const int64_t key_heads : {4, 2}) {
    const auto attention = made_of("{landmarks: 5, convolution: 3, iterations: 4}",
                                   torch::kDouble, key_heads);
    const auto x = random_tensors(2, {2, key_heads, 17, 8}, torch::kDouble, 1);
    const Tensor tokens =
        torch::stack({torch::arange(17) >= 0, torch::arange(17).remainder(3) != 1});
    EXPECT_TRUE(gradients_agree(
        [&](const Tensors& in) { return Tensors{run(attention, in, tokens)}; },
        {random_tensors(1, {2, 4, 17, 8})[0], x[0], x[1]}));
  }
}

TEST(Nystrom, EqualsItsDefinitionWithOtherSettings) {
  for (const char* settings : {"{landmarks: 16, convolution: 5, shortcut: true}",
                               "{landmarks: 3, convolution: 35, iterations: 2}"}) {
    const Subject subject(catalogue::nystrom,
                          {.settings = *Value::parse(settings).as<Value::Map>()});
    for (const bool crosses : {false, true}) {
      Pass pass;
      pass.mask.tokens =
          torch::stack({torch::arange(21) >= 0, torch::arange(21).remainder(3) == 1});
      if (crosses) pass.context.tokens = pass.mask.tokens.slice(1, 0, 19);
      const Tensors inputs = subject.inputs(2, 21, /*seed=*/2, crosses ? 19 : 21),
                    got = subject.run_and_gradients(inputs, pass),
                    expected = subject.reference_and_gradients(inputs, pass);
      for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_TRUE(close(got[i], expected[i], 1e-9))
            << settings << (crosses ? ", a context" : "") << ", result " << i;
    }
  }
}

TEST(Nystrom, PaddingIsAsIfItWereNotThere) {
  const auto x = random_tensors(3, {3, 4, 50, 8});
  Tensor tokens = torch::ones({3, 50}, torch::kBool);
  tokens[0].slice(0, 0, 17).fill_(false);
  tokens[1].slice(0, 2, 50, 3).fill_(false);
  tokens[2].slice(0, 0, 50).fill_(false);
  tokens[2][13].fill_(true);
  const auto attention = made_of("{landmarks: 7, convolution: 9}");
  const Tensor padded = run(attention, x, tokens);
  for (int64_t example = 0; example < 3; ++example) {
    const Tensor real = tokens[example].nonzero().view(-1);
    const auto alone = [&](const Tensor& y) {
      return y.slice(0, example, example + 1).index_select(2, real);
    };
    EXPECT_TRUE(
        close(alone(padded), run(attention, {alone(x[0]), alone(x[1]), alone(x[2])})))
        << example;
  }
}

TEST(Nystrom, PaddingMayHoldAnything) {
  auto x = random_tensors(3, {1, 4, 50, 8}, torch::kFloat);
  const Tensor tokens = torch::arange(50).remainder(4).ne(1).unsqueeze(0);
  const auto attention = made_of("{landmarks: 7, convolution: 9}", torch::kFloat);
  const Tensor before = run(attention, x, tokens);
  for (Tensor& one : x)
    one = one.masked_fill(tokens.logical_not().unsqueeze(1).unsqueeze(3), NAN);
  EXPECT_TRUE(run(attention, x, tokens).equal(before));
}

TEST(Nystrom, LandmarksOfAContextAreItsOwn) {
  // Three queries and so three landmarks of them; five of the keys.
  const Tensor q = random_tensors(1, {1, 4, 3, 8})[0];
  const auto x = random_tensors(2, {1, 4, 20, 8}, torch::kDouble, 1);
  const auto attention = made_of("{landmarks: 5, iterations: 30}");
  const Tensor kl = x[0].view({1, 4, 5, 4, 8}).mean(3), a = weights(q, kl);
  const Tensor expected = weights(q, kl)
                              .matmul(torch::linalg_pinv(a))
                              .matmul(weights(q, x[0]).matmul(x[1]));
  Pass pass;
  EXPECT_TRUE(close(attention->forward(q, x[0], x[1], pass), expected, 1e-5));

  // Padding of either changes nothing, and the convolution has no part in it.
  Pass padded;
  padded.mask.tokens = torch::arange(6).remainder(2).eq(0).unsqueeze(0);
  padded.context.tokens = torch::arange(26).ge(6).unsqueeze(0);
  const auto before = [](const Tensor& y) {
    return torch::cat({torch::ones({1, 4, 6, 8}, torch::kDouble), y}, 2);
  };
  const Tensor got =
      attention->forward(q.repeat_interleave(2, 2), before(x[0]), before(x[1]), padded);
  EXPECT_TRUE(close(got.slice(2, 0, 6, 2), expected, 1e-5));
}

TEST(Nystrom, MakesAllSegmentsOfOneSize) {
  // 100 tokens make 50 segments of two, not 64.
  const auto x = random_tensors(3, {1, 4, 100, 8});
  const auto pairs = [](const Tensor& y) { return y.view({1, 4, 50, 2, 8}).mean(3); };
  const auto settings = "{landmarks: 64, convolution: 0, iterations: 0}";
  const Tensor ql = pairs(x[0]), kl = pairs(x[1]), a = weights(ql, kl);
  const Tensor z =
      a.transpose(2, 3) / a.sum(2, true).amax(3, true) / a.sum(3, true).amax(2, true);
  EXPECT_TRUE(close(run(made_of(settings), x), weights(x[0], kl).matmul(z).matmul(
                                                   weights(ql, x[1]).matmul(x[2]))));
}

TEST(Nystrom, GivesTheSameBitsOnAnyNumberOfThreadsWithPadding) {
  const auto attention = made_of("{landmarks: 8, iterations: 1}", torch::kFloat);
  const auto x = random_tensors(3, {2, 4, 600, 8}, torch::kFloat);
  const Tensor tokens = torch::arange(600).remainder(5).ne(2).expand({2, -1});
  EXPECT_TRUE(same_with_any_threads([&] {
    Tensors leaves;
    for (const Tensor& one : x) leaves.push_back(one.clone().requires_grad_());
    const Tensor out = run(attention, leaves, tokens);
    leaves.push_back(attention->parameters()[0]);
    Tensors results = torch::autograd::grad({out}, leaves, {torch::cos(out.detach())});
    results.push_back(out);
    return results;
  }));
}

TEST(Nystrom, RefusesAConvolutionWithoutAMiddle) {
  EXPECT_EQ(refusal([] { made(catalogue::nystrom, "{convolution: 32}"); }),
            "nystrom: convolution must be 0 or an odd number of tokens, got 32");
}

TEST(Nystrom, ShowsWhatTheConvolutionSees) {
  const Tensor pairs = made_of("{convolution: 3}")->sight(6, false).pairs[0];
  for (int64_t i = 0; i < 6; ++i)
    for (int64_t j = 0; j < 6; ++j)
      EXPECT_EQ(pairs[i][j].item<int64_t>(),
                static_cast<int64_t>(std::abs(i - j) <= 1 ? Sees::directly
                                                          : Sees::summarised));
}

}  // namespace
}  // namespace longspan::testing
