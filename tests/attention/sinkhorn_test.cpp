#include "tests/support/any_threads.h"
#include "tests/support/mechanisms.h"

namespace longspan::testing {
namespace {

constexpr int64_t kHeads = 4, kWidth = 8, kSize = 4, kBlocks = 6,
                  kTokens = kSize * kBlocks;

const std::vector<int64_t> kOrder = {2, 5, 1, 0, 3, 4};  // the block sorted to a place

std::shared_ptr<Attention> in_double(const std::string& settings, int64_t key_heads = 0,
                                     int64_t longest = 0) {
  torch::manual_seed(4);
  const auto attention = make<Attention>(
      catalogue::sinkhorn,
      {.heads = kHeads,
       .key_heads = key_heads,
       .head_width = kWidth,
       .longest = longest},
      *Value::parse("{" + settings +
                    (settings.find("block") == settings.npos ? ", block: 4}" : "}"))
           .as<Value::Map>());
  convert(*attention, torch::kCPU, torch::kDouble);
  return attention;
}

struct Heads3 {
  Tensor q, k, v;

  explicit Heads3(int64_t tokens = kTokens, int64_t examples = 2) {
    const auto x = random_tensors(3, {examples, kHeads, tokens, kWidth});
    q = x[0], k = x[1], v = x[2];
  }

  Tensor by(Attention& attention, Pass pass) const {
    return attention.forward(q, k, v, pass);
  }
};

// Such queries and keys, and a network for them, that block `order[place]` is sorted to
// each place.
void sort_to(Attention& attention, Heads3& x, const std::vector<int64_t>& order) {
  const torch::NoGradGuard changing;
  Tensor network = attention.named_parameters()["network"];
  network.zero_();
  for (int64_t place = 0; place < static_cast<int64_t>(order.size()); ++place) {
    Tensor block = x.q.slice(2, place * kSize, (place + 1) * kSize);
    block.sub_(block.mean(2, /*keepdim=*/true));
    block.select(3, place).add_(0.1);
    network.select(1, place).select(1, order[static_cast<size_t>(place)]).fill_(2000);
  }
}

// Rows of the token axis, by blocks.
Tensor reordered(const Tensor& x, const std::vector<int64_t>& order) {
  Tensors blocks;
  for (const int64_t block : order)
    blocks.push_back(x.slice(2, block * kSize, (block + 1) * kSize));
  return torch::cat(blocks, 2);
}

// Of every block its own rows of x, then those that were sorted to it:
// [B, H, blocks, 2*size, d].
Tensor beside(const Tensor& x, const Tensor& sorted) {
  const auto in_blocks = [](const Tensor& y) {
    return y.unflatten(2, {y.size(2) / kSize, kSize});
  };
  return torch::cat({in_blocks(x), in_blocks(sorted)}, 3);
}

Tensor attended(const Tensor& q, const Tensor& k, const Tensor& v) {
  return (q.matmul(k.transpose(-1, -2)) / std::sqrt(static_cast<double>(kWidth)))
      .softmax(-1)
      .matmul(v);
}

TEST(Sinkhorn, IsDenseInOneBlock) {
  for (const char* settings :
       {"block: 64", "block: 24, sorted_only: true", "block: 24, cut: 2"}) {
    const Heads3 x;
    const auto attention = make<Attention>(
        catalogue::sinkhorn, {.heads = kHeads, .head_width = kWidth},
        *Value::parse("{" + std::string(settings) + "}").as<Value::Map>());
    EXPECT_TRUE(close(x.by(*attention, {}), x.by(*made(catalogue::dense), {})))
        << settings;
  }
  const Heads3 x;
  EXPECT_TRUE(close(x.by(*made(catalogue::sinkhorn), pass_of(true)),
                    x.by(*made(catalogue::dense), pass_of(true))));
}

TEST(Sinkhorn, ABlockSeesItselfAndTheBlockSortedToItInOneSoftmax) {
  const auto attention = in_double("sort: network, noise: false", 0, kTokens);
  Heads3 x;
  sort_to(*attention, x, kOrder);
  const auto in_blocks = [](const Tensor& y) {
    return y.unflatten(2, {kBlocks, kSize});
  };
  const Tensor k = reordered(x.k, kOrder), v = reordered(x.v, kOrder);
  const Tensor joint =
      attended(in_blocks(x.q), beside(x.k, k), beside(x.v, v)).flatten(2, 3);
  EXPECT_TRUE(close(x.by(*attention, {}), joint));
  const Tensor summed = (attended(in_blocks(x.q), in_blocks(x.k), in_blocks(x.v)) +
                         attended(in_blocks(x.q), in_blocks(k), in_blocks(v)))
                            .flatten(2, 3);
  EXPECT_FALSE(close(summed / 2, joint, 1e-3));
}

TEST(Sinkhorn, SortsValuesAsKeysAndNotKeysAsValues) {
  const auto attention =
      in_double("sort: network, sorted_only: true, noise: false", 0, kTokens);
  Heads3 x;
  sort_to(*attention, x, kOrder);
  const auto in_blocks = [](const Tensor& y) {
    return y.unflatten(2, {kBlocks, kSize});
  };
  const Tensor expected = attended(in_blocks(x.q), in_blocks(reordered(x.k, kOrder)),
                                   in_blocks(reordered(x.v, kOrder)))
                              .flatten(2, 3);
  EXPECT_TRUE(close(x.by(*attention, {}), expected));
  Heads3 none = x;
  none.v = torch::zeros_like(x.v);
  EXPECT_TRUE(none.by(*attention, {}).eq(0).all().item<bool>());
}

TEST(Sinkhorn, CausalWithTheBlockBeforeIsLocal) {
  const auto attention = in_double("sort: network, noise: false", 0, kTokens);
  // The mean query before a place says which it is; place 0 has no past.
  Heads3 x;
  const torch::NoGradGuard changing;
  Tensor network = attention->named_parameters()["network"];
  network.zero_();
  for (int64_t block = 0; block + 1 < kBlocks; ++block) {
    Tensor part = x.q.slice(2, block * kSize, (block + 1) * kSize);
    part.sub_(part.mean(2, /*keepdim=*/true));
    // Of the columns seen from a place the last has the largest logit.
    network.select(2, block).select(1, 0).fill_(1e4 * static_cast<double>(block + 1));
  }
  x.q.select(3, 0).add_(0.5);
  EXPECT_TRUE(
      close(x.by(*attention, pass_of(true)),
            x.by(*made(catalogue::local, "{block: 4, before: 1}"), pass_of(true))));
}

TEST(Sinkhorn, SortCutOfAllBlocksIsDense) {
  for (const int64_t tokens : {kTokens, kTokens - 3}) {
    const auto attention = in_double("sort: network, cut: 6", 0, kTokens);
    Heads3 x(tokens);
    sort_to(*attention, x, kOrder);
    EXPECT_TRUE(close(x.by(*attention, {}), x.by(*made(catalogue::dense), {})))
        << tokens;
  }
}

TEST(Sinkhorn, SortCutSeesTheBlocksOfTheFirstPlaces) {
  const auto attention = in_double("sort: network, cut: 2", 0, kTokens);
  Heads3 x;
  sort_to(*attention, x, kOrder);
  const std::vector<int64_t> first(kOrder.begin(), kOrder.begin() + 2);
  EXPECT_TRUE(close(x.by(*attention, {}),
                    attended(x.q, reordered(x.k, first), reordered(x.v, first))));
}

TEST(Sinkhorn, SortCutLeavesOutPlacesOfPadding) {
  const auto attention = in_double("cut: 2");
  const Heads3 x;
  Heads3 real = x;
  for (Tensor* y : {&real.q, &real.k, &real.v}) *y = y->slice(2, 2 * kSize);
  Pass padded;
  padded.mask.tokens = (torch::arange(kTokens) >= 2 * kSize).expand({2, -1});
  EXPECT_TRUE(
      close(x.by(*attention, padded).slice(2, 2 * kSize), real.by(*attention, {})));
}

TEST(Sinkhorn, OverAContextItSeesTheBestBlocksForTheMeanQuery) {
  const auto attention = in_double("temperature: 0.01");
  Heads3 x;
  const auto context = random_tensors(2, {2, kHeads, kTokens, kWidth});
  Tensor k = context[0], v = context[1];
  x.q.select(3, 0).add_(1 - x.q.select(3, 0).mean(2, /*keepdim=*/true));
  const std::vector<double> means = {0, 5, 1, 2, 9, 3};
  for (int64_t block = 0; block < kBlocks; ++block) {
    Tensor part = k.slice(2, block * kSize, (block + 1) * kSize);
    part.sub_(part.mean(2, /*keepdim=*/true));
    part.select(3, 0).add_(means[static_cast<size_t>(block)]);
  }
  x.q = x.q - x.q.mean(2, /*keepdim=*/true);
  x.q.select(3, 0).add_(1);
  Pass pass;
  pass.context.tokens = torch::ones({2, kTokens}, torch::kBool);
  EXPECT_TRUE(close(attention->forward(x.q, k, v, pass),
                    attended(x.q, reordered(k, {4, 1}), reordered(v, {4, 1}))));
}

// What the contract checks under one choice of settings, under all others.
TEST(Sinkhorn, EqualsItsDefinitionAndItsDecodingWithAnySettings) {
  const struct {
    const char* settings;
    bool both_ways, causal;
  } cases[] = {{"iterations: 1", true, true},
               {"iterations: 2, final_row_norm: true", true, true},
               {"sort: network", true, true},
               {"sorted_only: true", true, true},
               {"mixture: true", true, true},
               {"causal_sort: topk", false, true},
               {"causal_sort: topk, top: 3, sort: network", false, true},
               {"cut: 2", true, false},
               {"cut: 9, temperature: 0.3", true, false}};
  constexpr int64_t kCount = 22;
  const auto q = random_tensors(1, {2, kHeads, kCount, kWidth})[0];
  const auto kv = random_tensors(3, {2, 2, kCount, kWidth}, torch::kDouble, 1);
  Tensor real = torch::ones({2, kCount}, torch::kBool);
  real[0].slice(0, 7, 13).fill_(false);  // a block and parts of two
  real[1].slice(0, 0, 5).fill_(false);
  real[1].slice(0, 19).fill_(false);
  for (const auto& [settings, both_ways, causal] : cases) {
    const auto attention = in_double(settings, 2, kCount);
    for (const bool is_causal : {false, true}) {
      if (!(is_causal ? causal : both_ways)) continue;
      for (const bool padded : {false, true}) {
        const std::string what = std::string(settings) + (is_causal ? ", causal" : "") +
                                 (padded ? ", padded" : "");
        const auto results = [&](bool fast) {
          Tensors leaves;
          for (const Tensor& x : {q, kv[0], kv[1]})
            leaves.push_back(x.clone().requires_grad_());
          for (const Tensor& parameter : attention->parameters())
            leaves.push_back(parameter);
          Pass pass = pass_of(is_causal);
          if (padded) pass.mask.tokens = real;
          const Tensor out =
              fast ? attention->forward(leaves[0], leaves[1], leaves[2], pass)
                   : attention->reference(leaves[0], leaves[1], leaves[2], pass);
          Tensors all = torch::autograd::grad({out}, leaves, {q});
          all.push_back(out.detach());
          return all;
        };
        const Tensors fast = results(true), defined = results(false);
        for (size_t i = 0; i < fast.size(); ++i)
          EXPECT_TRUE(close(fast[i], defined[i], 1e-9)) << what << ", result " << i;
        if (!is_causal) continue;
        for (const int64_t step : {1, 3, 4, 9}) {
          Record state;
          Tensors outs;
          for (int64_t at = 0; at < kCount; at += step) {
            const int64_t to = std::min(at + step, kCount);
            Pass pass = pass_of(true);
            pass.state = &state;
            if (padded) pass.mask.tokens = real.slice(1, at, to);
            outs.push_back(attention->forward(q.slice(2, at, to),
                                              kv[0].slice(2, at, to),
                                              kv[1].slice(2, at, to), pass));
          }
          EXPECT_TRUE(close(torch::cat(outs, 2), fast.back(), 1e-9))
              << what << ", steps of " << step;
        }
      }
    }
  }
}

TEST(Sinkhorn, CausalSortsKnowNoFuture) {
  for (const char* settings :
       {"iterations: 3", "causal_sort: topk", "sort: network, final_row_norm: true"}) {
    const auto attention = in_double(settings, 0, kTokens);
    const Heads3 x;
    const Tensor before = x.by(*attention, pass_of(true));
    for (int64_t token = 1; token < kTokens; ++token) {
      Heads3 other = x;
      for (Tensor* y : {&other.q, &other.k, &other.v}) {
        *y = y->clone();
        y->slice(2, token).mul_(9);
      }
      EXPECT_TRUE(other.by(*attention, pass_of(true))
                      .slice(2, 0, token)
                      .equal(before.slice(2, 0, token)))
          << settings << ", token " << token;
    }
  }
}

TEST(Sinkhorn, NoiseIsOnlyInTrainingAndRepeats) {
  const Heads3 x(kTokens - 3);
  const auto noisy = in_double("noise: true"), quiet = in_double("noise: false");
  for (const bool causal : {false, true}) {
    const auto run = [&](Attention& attention, bool training, uint64_t seed) {
      Pass pass = pass_of(causal);
      pass.training = training;
      pass.draw = Draw(seed);
      return x.by(attention, pass);
    };
    const Tensor plain = run(*quiet, false, 1);
    EXPECT_TRUE(run(*noisy, false, 1).equal(plain));
    EXPECT_TRUE(run(*quiet, true, 1).equal(plain));
    const Tensor once = run(*noisy, true, 1);
    EXPECT_TRUE(run(*noisy, true, 1).equal(once));
    EXPECT_FALSE(close(once, plain, 1e-3));
    EXPECT_FALSE(close(run(*noisy, true, 2), once, 1e-3));

    // Padding is given no noise that others would have had.
    Heads3 longer(2 * kTokens);
    for (auto [to, from] :
         {std::pair{&longer.q, &x.q}, {&longer.k, &x.k}, {&longer.v, &x.v}})
      to->slice(2, 0, kTokens - 3).copy_(*from);
    Pass padded = pass_of(causal);
    padded.training = true;
    padded.draw = Draw(1);
    padded.mask.tokens = (torch::arange(2 * kTokens) < kTokens - 3).expand({2, -1});
    EXPECT_TRUE(close(longer.by(*noisy, padded).slice(2, 0, kTokens - 3), once));
  }
}

TEST(Sinkhorn, NoiseFavoursNoBlock) {
  const auto attention = in_double("block: 1, sorted_only: true, iterations: 20");
  const Tensor zeros = torch::zeros({1, kHeads, 8, kWidth}, torch::kDouble);
  const Tensor values = torch::eye(8, torch::kDouble).expand({1, kHeads, 8, 8});
  constexpr int kDraws = 400;
  Tensor sum = torch::zeros({8, 8}, torch::kDouble);
  for (int step = 0; step < kDraws; ++step) {
    Pass pass;
    pass.training = true;
    pass.draw = Draw(3, static_cast<uint64_t>(step));
    sum += attention->forward(zeros, zeros, values, pass)[0].mean(0);
  }
  EXPECT_TRUE(close(sum / kDraws, torch::full({8, 8}, 1.0 / 8, torch::kDouble), 0.15));
}

// The output in training and the gradients for x [B, H, N, d] and Hk = 2.
Tensors trained(const std::string& settings, bool causal, torch::Dtype type) {
  constexpr int64_t kCount = 150;
  const auto attention = in_double(settings, 2, kCount);
  convert(*attention, torch::kCPU, type);
  const auto q = random_tensors(1, {2, kHeads, kCount, kWidth}, type)[0];
  Tensors leaves = random_tensors(2, {2, 2, kCount, kWidth}, type, 1);
  leaves.insert(leaves.begin(), q);
  for (Tensor& leaf : leaves) leaf = leaf.clone().requires_grad_();
  for (const Tensor& parameter : attention->parameters()) leaves.push_back(parameter);
  Pass pass = pass_of(causal);
  pass.training = true;
  pass.dropout = 0.25;
  const Tensor out = attention->forward(leaves[0], leaves[1], leaves[2], pass);
  Tensors all = torch::autograd::grad({out}, leaves, {q});
  all.push_back(out.detach());
  return all;
}

TEST(Sinkhorn, IsTheSameForAnyNumberOfThreads) {
  EXPECT_TRUE(same_with_any_threads([] {
    return trained("sort: network, iterations: 1, mixture: true", false, torch::kFloat);
  }));
}

TEST(Sinkhorn, TakesEveryTypeWithAnySettings) {
  for (const auto& [settings, causal] :
       {std::pair{"sort: network, final_row_norm: true", false},
        {"sort: network, causal_sort: topk", true},
        {"cut: 2, mixture: true", false}})
    for (const auto type : {torch::kFloat, torch::kBFloat16}) {
      const Tensors some = trained(settings, causal, type);
      for (size_t i = 0; i < some.size(); ++i) {
        EXPECT_EQ(some[i].scalar_type(), type) << settings;
        EXPECT_TRUE(some[i].isfinite().all().item<bool>()) << settings << ", " << i;
      }
    }
}

TEST(Sinkhorn, ChoicesAreRepeated) {
  const auto attention = in_double("causal_sort: topk, top: 1, sorted_only: true");
  Heads3 x;
  Record choices;
  const auto run = [&](const Tensor& k) {
    Pass pass = pass_of(true);
    pass.choices = &choices;
    return attention->forward(x.q, k, x.v, pass);
  };
  run(x.k);
  const Tensor first = choices.get("blocks");
  run(-x.k);
  EXPECT_TRUE(choices.get("blocks").equal(first));
  choices = {};
  run(-x.k);
  EXPECT_FALSE(choices.get("blocks").equal(first));
}

TEST(Sinkhorn, TakesNoTokensBeyondOneAndNoExamples) {
  const auto attention = in_double("iterations: 2");
  for (const bool causal : {false, true}) {
    const Heads3 one(1);
    EXPECT_TRUE(close(one.by(*attention, pass_of(causal)), one.v));
    EXPECT_EQ(Heads3(9, 0).by(*attention, pass_of(causal)).numel(), 0);
    const Heads3 x(9);
    Pass none = pass_of(causal);
    none.mask.tokens = torch::zeros({2, 9}, torch::kBool);
    EXPECT_TRUE(x.by(*attention, none).eq(0).all().item<bool>());
  }
}

TEST(Sinkhorn, ShowsWhoSeesWhom) {
  const Tensor both = in_double("cut: 0")->sight(8, false).pairs[0];
  EXPECT_EQ(both[1][2].item<int64_t>(), static_cast<int64_t>(Sees::directly));
  EXPECT_EQ(both[1][6].item<int64_t>(), static_cast<int64_t>(Sees::summarised));
  const Tensor past = in_double("cut: 0")->sight(8, true).pairs[0];
  EXPECT_EQ(past[1][2].item<int64_t>(), static_cast<int64_t>(Sees::nothing));
  EXPECT_EQ(past[5][4].item<int64_t>(), static_cast<int64_t>(Sees::directly));
  EXPECT_EQ(past[5][1].item<int64_t>(), static_cast<int64_t>(Sees::summarised));
  const Tensor cut = in_double("cut: 1")->sight(8, false).pairs[0];
  EXPECT_EQ(cut[1][2].item<int64_t>(), static_cast<int64_t>(Sees::summarised));
}

TEST(Sinkhorn, RefusesWhatItCannotDo) {
  const Heads3 x;
  EXPECT_EQ(refusal([&] { x.by(*in_double("cut: 2"), pass_of(true)); }),
            "sinkhorn: cut = 2 sorts the whole sequence and so has no causal form; "
            "give cut = 0");
  EXPECT_EQ(refusal([] { in_double("temperature: 0"); }),
            "sinkhorn: temperature must be more than 0, got 0");
  EXPECT_EQ(refusal([] { in_double("sort: network"); }),
            "sinkhorn: sort = network has a weight for every block, so the longest "
            "sequence must be given, got longest = 0");
  const auto network = in_double("sort: network", 0, kTokens - kSize);
  EXPECT_EQ(refusal([&] { x.by(*network, {}); }),
            "sinkhorn: the sorting network knows 5 blocks of 4 tokens, got 6; make it "
            "for the longest sequence");
  EXPECT_EQ(refusal([&] {
              Pass pass;
              pass.context.tokens = torch::ones({2, kTokens}, torch::kBool);
              x.by(*network, pass);
            }),
            "sinkhorn: over a context blocks are sorted by attention; give sort = "
            "attention");
  EXPECT_EQ(refusal([&] {
              Pass pass = pass_of(true);
              in_double("cut: 0")->forward(x.q.slice(2, 0, 5), x.k, x.v, pass);
            }),
            "sinkhorn: the causal form sorts by all queries so far, got 5 queries and "
            "24 keys; decode with pass.state instead");
}

}  // namespace
}  // namespace longspan::testing
