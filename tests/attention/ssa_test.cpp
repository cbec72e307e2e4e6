#include "longspan/attention/ssa.h"

#include <algorithm>
#include <set>

#include "longspan/base/flops.h"
#include "longspan/base/threads.h"
#include "tests/support/mechanisms.h"

namespace longspan::testing {
namespace {

Pass sampling_pass(bool causal, uint64_t step = 0) {
  Pass pass = pass_of(causal);
  pass.training = pass.sampling = true;
  pass.draw = Draw(/*seed=*/5, step);
  return pass;
}

// Means over draws, causal.
struct Statistics {
  double self = 0;      // whether a token is among the sources of its own window
  double pairs = 0;     // visible pairs, as a part of all causal ones
  double distinct = 0;  // tokens that some window has, as a part of all
  int64_t least = 0;    // the fewest sources that a query sees
};

Statistics statistics(const SourceSampling& sampling, int64_t tokens, int64_t draws) {
  Statistics all{.least = tokens};
  for (int64_t draw = 0; draw < draws; ++draw) {
    const SourceWindows drawn = drawn_sources(sampling, tokens, /*causal=*/true,
                                              Key{static_cast<uint64_t>(draw)});
    std::set<int64_t> used;
    for (int64_t query = 0; query < tokens; ++query) {
      const auto& sources = drawn.sources[static_cast<size_t>(query / drawn.size)];
      const auto end = std::ranges::upper_bound(sources, query);
      all.least = std::min<int64_t>(all.least, end - sources.begin());
      all.pairs += static_cast<double>(end - sources.begin());
      all.self += std::ranges::binary_search(sources, query) ? 1 : 0;
      used.insert(sources.begin(), sources.end());
    }
    all.distinct += static_cast<double>(used.size());
  }
  const auto count = static_cast<double>(tokens), each = static_cast<double>(draws);
  all.self /= count * each;
  all.pairs /= count * (count + 1) / 2 * each;
  all.distinct /= count * each;
  return all;
}

// Of the authors' sampler by another implementation: 20 draws of 768 tokens.
TEST(Ssa, DrawsSourcesAsPublished) {
  struct Row {
    int64_t windows;
    double sigma, self, pairs, distinct;
  };
  for (const auto& [windows, sigma, self, pairs, distinct] :
       {Row{2, 0.2, .922, .519, .922}, Row{2, .35, .872, .547, .872},
        Row{4, 0.1, .881, .266, .885}, Row{4, 0.2, .784, .292, .815},
        Row{4, .225, .765, .297, .801}, Row{4, .35, .693, .319, .755},
        Row{6, 0.2, .677, .214, .761}, Row{6, .35, .585, .232, .710},
        Row{8, 0.2, .602, .171, .732}, Row{8, .35, .508, .184, .685}}) {
    const Statistics got = statistics({.windows = windows, .sigma = sigma}, 768, 20);
    EXPECT_NEAR(got.self, self, 0.02) << windows << " " << sigma;
    EXPECT_NEAR(got.pairs, pairs, 0.02) << windows << " " << sigma;
    EXPECT_NEAR(got.distinct, distinct, 0.02) << windows << " " << sigma;
    EXPECT_GE(got.least, 1);
  }
}

TEST(Ssa, GivesEveryCausalQueryASource) {
  for (const bool biased : {true, false})
    for (const int64_t tokens : {1, 2, 5, 8, 31, 100})
      EXPECT_GE(statistics({.sigma = 0.5, .biased = biased}, tokens, 30).least, 1)
          << tokens;
}

TEST(Ssa, TakesTheSourcesOfAWindowFromItsPast) {
  for (const bool biased : {true, false}) {
    const SourceWindows drawn =
        drawn_sources({.windows = 4, .sigma = 0.4, .biased = biased}, 30, true, Key{3});
    EXPECT_EQ(drawn.size, 8);
    ASSERT_EQ(drawn.sources.size(), 4u);
    for (size_t window = 0; window < 4; ++window) {
      const std::set<int64_t> sources(drawn.sources[window].begin(),
                                      drawn.sources[window].end());
      EXPECT_EQ(sources.size(), 8u);
      EXPECT_LT(*sources.rbegin(), std::min<int64_t>(30, 8 * (window + 1)));
    }
  }
}

TEST(Ssa, CutsAPermutationIntoWindowsWhereItIsNotCausal) {
  const SourceWindows drawn =
      drawn_sources({.windows = 4, .sigma = 0.1}, 99, false, Key{7});
  EXPECT_EQ(drawn.size, 25);
  std::set<int64_t> all;
  double distance = 0;
  for (size_t window = 0; window < drawn.sources.size(); ++window)
    for (const int64_t source : drawn.sources[window]) {
      all.insert(source);
      distance += std::abs(static_cast<double>(source) - 25.0 * (window + 0.5));
    }
  EXPECT_EQ(all.size(), 99u);
  EXPECT_LT(distance / 99, 13);  // 6 without noise, 25 and more without a bias
}

TEST(Ssa, ShufflesByUniformNoise) {
  // How far sources are from the queries of their window: the mean, and the most.
  const auto distances = [](const SourceSampling& sampling) {
    const SourceWindows drawn = drawn_sources(sampling, 4000, false, Key{11});
    double sum = 0, most = 0;
    for (size_t window = 0; window < drawn.sources.size(); ++window)
      for (const int64_t source : drawn.sources[window]) {
        const double middle =
            static_cast<double>(drawn.size) * (static_cast<double>(window) + 0.5);
        const double distance = std::abs(static_cast<double>(source) - middle);
        sum += distance;
        most = std::max(most, distance);
      }
    return std::pair(sum / 4000, most);
  };
  const auto [normal, far] = distances({.windows = 100, .sigma = 0.1});
  const auto [uniform, near] =
      distances({.windows = 100, .sigma = 0.1, .uniform = true});
  // The means of sigma * |a normal number| and of sigma * |2 u - 1|.
  EXPECT_NEAR(normal, 400 * std::sqrt(2 / M_PI), 30);
  EXPECT_NEAR(uniform, 400 * 0.5, 30);
  EXPECT_GT(far, 1000);
  EXPECT_LT(near, 450 + 40);
}

TEST(Ssa, ShiftsSourcesAsOnACircle) {
  // Without noise a shift changes nothing; with noise sources go over both ends.
  const SourceSampling still{.windows = 5, .sigma = 0, .shifted = true};
  const SourceSampling shifted{.windows = 10, .sigma = 0.1, .shifted = true};
  bool wraps = false;
  for (uint64_t draw = 0; draw < 20; ++draw) {
    const auto windows = drawn_sources(still, 23, false, Key{draw}).sources;
    const auto plain =
        drawn_sources({.windows = 5, .sigma = 0}, 23, false, Key{draw}).sources;
    EXPECT_EQ(windows, plain);
    const auto all = drawn_sources(shifted, 200, false, Key{draw}).sources;
    std::set<int64_t> seen;
    for (const auto& sources : all) seen.insert(sources.begin(), sources.end());
    EXPECT_EQ(seen.size(), 200u);
    wraps = wraps || all.front().back() > 150;
  }
  EXPECT_TRUE(wraps);
}

TEST(Ssa, KeepsAPartOfTheSources) {
  for (const bool biased : {true, false})
    for (const bool causal : {true, false})
      for (const int64_t windows : {1, 4}) {
        const SourceSampling whole{.windows = windows, .biased = biased};
        SourceSampling part = whole;
        part.keep = 0.3;
        std::vector<double> times(120, 0);
        for (uint64_t draw = 0; draw < 400; ++draw) {
          const auto all = drawn_sources(whole, 120, causal, Key{draw}).sources;
          const auto some = drawn_sources(part, 120, causal, Key{draw}).sources;
          ASSERT_EQ(all.size(), some.size());
          for (size_t window = 0; window < all.size(); ++window) {
            EXPECT_EQ(some[window].size(), 36u / static_cast<size_t>(windows));
            EXPECT_TRUE(std::ranges::includes(all[window], some[window]));
          }
          for (const int64_t source : some[0])
            times[static_cast<size_t>(source)] += 1.0 / 400;
        }
        if (windows > 1) continue;
        for (const double share : times) EXPECT_NEAR(share, 0.3, 0.1);
      }
}

TEST(Ssa, DrawsUnbiasedSourcesEvenly) {
  constexpr int64_t kTokens = 40, kDraws = 2000;
  const SourceSampling unbiased{.windows = 4, .biased = false};
  for (const bool causal : {false, true}) {
    // Of the last window, which is all there is where it is not causal.
    std::vector<double> times(kTokens, 0);
    for (uint64_t draw = 0; draw < kDraws; ++draw) {
      const auto drawn = drawn_sources(unbiased, kTokens, causal, Key{draw});
      EXPECT_EQ(drawn.sources.back().size(), 10u);
      for (const int64_t source : drawn.sources.back())
        times[static_cast<size_t>(source)] += 1.0 / kDraws;
    }
    for (const double share : times) EXPECT_NEAR(share, 0.25, 0.05);
  }
}

TEST(Ssa, WithoutShufflingIsAttentionInWindows) {
  const auto x = random_tensors(3, {2, 4, 128, 8});
  for (const bool causal : {false, true}) {
    Pass one = sampling_pass(causal), other = pass_of(causal);
    EXPECT_TRUE(close(
        made(catalogue::ssa, "{windows: 4, sigma: 0}")->forward(x[0], x[1], x[2], one),
        made(catalogue::local, "{block: 32}")->forward(x[0], x[1], x[2], other)));
  }
}

TEST(Ssa, IsDenseWhereNothingIsSampled) {
  expect_dense_bits(catalogue::ssa, "{}");
  const auto x = random_tensors(3, {2, 4, 90, 8}, torch::kFloat);
  for (const bool causal : {false, true}) {
    Pass one = sampling_pass(causal), other = pass_of(causal);
    EXPECT_TRUE(made(catalogue::ssa, "{windows: 1}")
                    ->forward(x[0], x[1], x[2], one)
                    .equal(made(catalogue::dense)->forward(x[0], x[1], x[2], other)));
  }
}

TEST(Ssa, SampledEqualsItsDefinition) {
  struct Case {
    const char* name;
    std::function<void(Pass&, int64_t)> give;
  };
  const Case cases[] = {
      {"plain", [](Pass&, int64_t) {}},
      {"padding",
       [](Pass& pass, int64_t n) {
         pass.mask.tokens =
             torch::stack({torch::arange(n) < n - n / 3, torch::arange(n) % 3 != 1});
       }},
      {"segments",
       [](Pass& pass, int64_t n) {
         pass.mask.segment = torch::div(torch::arange(n), 50, "floor").expand({2, -1});
       }},
      {"positions",
       [](Pass& pass, int64_t n) { pass.positions = torch::arange(n) * 2 + 3; }},
      {"bias",
       [](Pass& pass, int64_t n) {
         pass.bias.slopes = torch::tensor({0.5, 0.125, 0.75, 1.5}, torch::kDouble);
         pass.bias.column = torch::arange(n).to(torch::kDouble).cos().view({1, 1, n});
       }},
  };
  for (const char* settings :
       {"{windows: 3}", "{windows: 4, kind: unbiased}", "{windows: 1, keep: 0.25}",
        "{windows: 4, keep: 0.5, noise: uniform}"})
    for (const bool causal : {false, true})
      for (const int64_t tokens : {1, 7, 65, 130, 257})
        for (const auto& [name, give] : cases) {
          const auto part = made(catalogue::ssa, settings);
          auto q = random_tensors(1, {2, 4, tokens, 8})[0];
          auto kv = random_tensors(2, {2, 2, tokens, 8}, torch::kDouble, 1);
          const Tensors in = {q.requires_grad_(), kv[0].requires_grad_(),
                              kv[1].requires_grad_()};
          const auto results = [&](auto form) {
            Pass pass = sampling_pass(causal);
            give(pass, tokens);
            const Tensor out = ((*part).*form)(in[0], in[1], in[2], pass);
            EXPECT_TRUE(out.isfinite().all().item<bool>());
            Tensors all = torch::autograd::grad({out}, in, {torch::cos(out.detach())});
            all.push_back(out);
            return all;
          };
          const Tensors fast = results(&Attention::forward),
                        defined = results(&Attention::reference);
          for (size_t i = 0; i < fast.size(); ++i)
            EXPECT_LE(largest_error(fast[i], defined[i]), 1e-9)
                << settings << " " << causal << " " << tokens << " " << name << " "
                << i;
        }
}

TEST(Ssa, SamplesAlikeOnEveryDevice) {
  const auto x = random_tensors(4, {2, 4, 257, 16}, torch::kFloat);
  for (const auto device : devices())
    for (const char* settings : {"{windows: 4}", "{windows: 4, kind: unbiased}"})
      for (const bool causal : {false, true}) {
        const auto results = [&](torch::Device where, torch::Dtype type) {
          Tensors in;
          for (int i = 0; i < 3; ++i)
            in.push_back(x[i].to(where, type).detach().requires_grad_());
          Pass pass = sampling_pass(causal);
          const Tensor out =
              made(catalogue::ssa, settings)->forward(in[0], in[1], in[2], pass);
          Tensors all = torch::autograd::grad({out}, in, {x[3].to(where, type)});
          all.push_back(out);
          return all;
        };
        const auto here = results(device, torch::kFloat),
                   exact = results(torch::kCPU, torch::kDouble);
        for (size_t i = 0; i < exact.size(); ++i)
          EXPECT_TRUE(close(here[i], exact[i], 1e-4)) << device << settings << i;
      }
}

TEST(Ssa, SampledDoesNotLookAhead) {
  const auto x = random_tensors(3, {1, 4, 129, 8}, torch::kFloat);
  const auto part = made(catalogue::ssa, "{windows: 4}");
  const auto run = [&](const Tensors& in) {
    Pass pass = sampling_pass(true);
    return part->forward(in[0], in[1], in[2], pass);
  };
  const Tensor before = run(x);
  for (const int64_t last : {0, 32, 33, 64, 100}) {
    Tensors others;
    for (const Tensor& y : x)
      others.push_back(
          torch::cat({y.slice(2, 0, last + 1), 9 * y.slice(2, last + 1)}, 2));
    EXPECT_TRUE(run(others).slice(2, 0, last + 1).equal(before.slice(2, 0, last + 1)));
  }
}

TEST(Ssa, DrawsOnceACallAndTheSameForTheSameKey) {
  const auto x = random_tensors(3, {1, 4, 100, 8}, torch::kFloat);
  const auto same = x[0].expand({3, -1, -1, -1});
  const auto part = made(catalogue::ssa, "{}");
  const auto run = [&](Pass& pass, int threads) {
    const UseThreads using_threads(threads);
    return part->forward(same, same, same, pass);
  };
  Pass pass = sampling_pass(true), again = sampling_pass(true),
       next = sampling_pass(true, /*step=*/1);
  const Tensor first = run(pass, 1);
  EXPECT_TRUE(first[0].equal(first[1]) && first[0].equal(first[2]));
  EXPECT_FALSE(run(pass, 1).equal(first));  // a second call of the pass
  EXPECT_FALSE(run(next, 1).equal(first));
  EXPECT_TRUE(run(again, 3).equal(first));
}

TEST(Ssa, SavesWhatItLeavesOut) {
  const auto x = random_tensors(3, {1, 4, 3072, 8}, torch::kFloat);
  const auto flops = [&](bool sampling) {
    Pass pass = sampling_pass(true);
    pass.sampling = sampling;
    const int64_t before = flops_counted();
    made(catalogue::ssa, "{windows: 4}")->forward(x[0], x[1], x[2], pass);
    return static_cast<double>(flops_counted() - before);
  };
  EXPECT_NEAR(flops(true) / flops(false), 0.292, 0.02);
}

TEST(Ssa, MaySampleInSomeLayersOnly) {
  const auto x = random_tensors(3, {1, 4, 60, 8}, torch::kFloat);
  const auto in_layer = [&](int64_t layer, bool sampling) {
    const auto part = make<Attention>(
        catalogue::ssa, {.heads = 4, .head_width = 8, .layer = layer, .layers = 2},
        *Value::parse("{windows: [1, 4], sigma: {from: 0.1, to: 0.3}}")
             .as<Value::Map>());
    Pass pass = sampling_pass(true);
    pass.sampling = sampling;
    return part->forward(x[0], x[1], x[2], pass);
  };
  EXPECT_TRUE(in_layer(0, true).equal(in_layer(0, false)));
  EXPECT_FALSE(in_layer(1, true).equal(in_layer(1, false)));
}

TEST(Ssa, RefusesToSampleWhatCannotBe) {
  const auto x = random_tensors(3, {1, 4, 3, 8});
  Record state;
  Pass pass = sampling_pass(true);
  pass.state = &state;
  EXPECT_EQ(refusal([&] { made(catalogue::ssa)->forward(x[0], x[1], x[2], pass); }),
            "ssa: sources are drawn for whole sequences, so pass.sampling must be "
            "false where "
            "tokens come one after the other");
  EXPECT_TRUE(state.all().empty());
  Pass causal = sampling_pass(true);
  EXPECT_EQ(
      refusal([&] {
        made(catalogue::ssa, "{shifted: true}")->forward(x[0], x[1], x[2], causal);
      }),
      "ssa: shifted: true brings the last sources before the first queries, so "
      "it has no causal form");
  EXPECT_EQ(refusal([] { made(catalogue::ssa, "{keep: 0}"); }),
            "ssa: keep must be more than 0 and 1 at most, got 0");
}

TEST(Ssa, ShowsADrawInPictures) {
  const Tensor pairs = made(catalogue::ssa, "{windows: 4}")->sight(40, true).pairs[0];
  EXPECT_TRUE(pairs.slice(0, 0, 10).equal(torch::ones({10, 40}, torch::kByte).tril()));
  EXPECT_TRUE(pairs.sum(1).le(10).all().item<bool>());
}

}  // namespace
}  // namespace longspan::testing
