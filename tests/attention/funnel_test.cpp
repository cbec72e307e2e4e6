#include <cmath>
#include <optional>

#include "longspan/models/block.h"
#include "longspan/models/funnel_attention.h"
#include "longspan/models/token_groups.h"
#include "tests/support/mechanisms.h"

namespace longspan::testing {
namespace {

const Sizes kSizes =
    Sizes{.embedding = 6, .heads = 2, .head_width = 3, .value_width = 4}.completed();

// In double, away from the initial parameters.
void roughen(torch::nn::Module& module) {
  convert(module, torch::kCPU, torch::kDouble);
  const torch::NoGradGuard changing;
  torch::manual_seed(3);
  for (auto& parameter : module.parameters())
    parameter.add_(0.4 * torch::randn_like(parameter));
}

std::shared_ptr<Stack> funnel(const std::string& settings) {
  torch::manual_seed(2);
  auto made =
      make<Stack>(catalogue::funnel, kSizes, *Value::parse(settings).as<Value::Map>());
  roughen(*made);
  return made;
}

std::shared_ptr<FunnelAttention> attention(int64_t step, int64_t below, int64_t pool,
                                           bool separate_first) {
  auto made = std::make_shared<FunnelAttention>(
      kSizes, FunnelAttention::Places{
                  .own = std::make_shared<DistanceWaves>(kSizes.embedding, step),
                  .below = std::make_shared<DistanceWaves>(kSizes.embedding, below),
                  .pool = pool,
                  .separate_first = separate_first});
  roughen(*made);
  return made;
}

Tensor tokens_of(int64_t count, uint64_t seed = 0) {
  return random_tensors(1, {1, count, kSizes.embedding}, torch::kDouble, seed)[0];
}

// One after the other, for x [n, E] and what it sees [m, E].
struct ByLoops {
  const torch::OrderedDict<std::string, Tensor> weights;
  std::vector<int64_t> query_ids, key_ids;
  bool apart, causal;
  std::vector<bool> real;

  Tensor head(const std::string& name, const Tensor& row, int64_t head) const {
    return weights[name].matmul(row).chunk(kSizes.heads)[head];
  }

  double score(const Tensor& q, const Tensor& k, int64_t i, int64_t j,
               int64_t h) const {
    const Tensor& u = weights["content_bias"][h];
    const Tensor& v = weights["distance_bias"][h];
    double sum = (q + u).dot(k).item<double>();
    if (!(apart && (i == 0 || j == 0))) {
      std::vector<double> sines, cosines;
      for (int a = 0; a < 3; ++a) {
        const double angle =
            static_cast<double>(query_ids[i] - key_ids[j]) * std::pow(10000, -a / 3.0);
        sines.push_back(std::sin(angle));
        cosines.push_back(std::cos(angle));
      }
      sines.insert(sines.end(), cosines.begin(), cosines.end());
      const Tensor wave = torch::tensor(sines, torch::kDouble);
      sum += (q + v).dot(head("distance_weight", wave, h)).item<double>();
    }
    return sum / std::sqrt(3);
  }

  Tensor operator()(const Tensor& x, const Tensor& seen) const {
    std::vector<Tensor> rows;
    for (int64_t i = 0; i < x.size(0); ++i) {
      std::vector<Tensor> heads;
      for (int64_t h = 0; h < kSizes.heads; ++h) {
        Tensor mixed = torch::zeros(4, torch::kDouble);
        double all = 0;
        for (int64_t j = 0; j < seen.size(0); ++j) {
          if (!real[j] || (causal && key_ids[j] > query_ids[i])) continue;
          const double weight = std::exp(
              score(head("q_weight", x[i], h), head("k_weight", seen[j], h), i, j, h));
          mixed = mixed + weight * (head("v_weight", seen[j], h) +
                                    weights["v_bias"].chunk(kSizes.heads)[h]);
          all += weight;
        }
        heads.push_back(mixed / all);
      }
      rows.push_back(weights["out_weight"].matmul(torch::cat(heads)) +
                     weights["out_bias"]);
    }
    return torch::stack(rows);
  }
};

TEST(Funnel, AttentionIsThatOfContentsAndPositionIds) {
  const struct {
    int64_t step, below, pool;
    bool separate, causal;
    std::vector<int64_t> query_ids, key_ids;  // those of the first token are 1 - 2^b
  } cases[] = {
      {1, 0, 1, true, false, {0, 1, 2, 3, 4}, {}},
      {2, 1, 2, true, false, {-1, 1, 3, 5, 7}, {}},
      {2, 1, 2, true, false, {-1, 1, 3, 5}, {0, 1, 2, 3, 4, 5, 6}},
      {2, 1, 2, true, false, {-1, 1, 3, 5}, {0, 1, 2, 3, 4, 5}},
      {4, 2, 2, true, false, {-3, 1, 5}, {-1, 1, 3, 5, 7}},
      {3, 1, 3, false, false, {0, 3, 6}, {0, 1, 2, 3, 4, 5, 6}},
      {1, 0, 1, false, true, {0, 1, 2, 3, 4}, {}},
      {2, 1, 2, true, true, {0, 2, 4, 6}, {0, 1, 2, 3, 4, 5, 6, 7}},
      {4, 2, 2, true, true, {0, 4, 8}, {0, 2, 4, 6, 8}},
  };
  for (const auto& each : cases) {
    const auto part = attention(each.step, each.below, each.pool, each.separate);
    const auto& key_ids = each.key_ids.empty() ? each.query_ids : each.key_ids;
    const Tensor x = tokens_of(std::ssize(each.query_ids), 1),
                 seen = each.key_ids.empty() ? x : tokens_of(std::ssize(key_ids), 2);
    for (const bool padded : {false, true}) {
      ByLoops loops{part->named_parameters(),
                    each.query_ids,
                    key_ids,
                    each.separate && !each.causal,
                    each.causal,
                    std::vector<bool>(key_ids.size(), true)};
      Pass pass = pass_of(each.causal);
      Tensor real = torch::ones({1, seen.size(1)}, torch::kBool);
      if (padded) {
        loops.real[2] = false;
        real[0][2] = false;
      }
      if (each.key_ids.empty()) {
        pass.mask.tokens = real;
      } else {
        pass.side = {.x = seen, .tokens = real};
      }
      Tensor expected = loops(x[0], seen[0]);
      if (padded && each.key_ids.empty()) expected[2] = 0;
      EXPECT_TRUE(close(part->forward(x, pass)[0], expected))
          << "step " << each.step << ", " << key_ids.size() << " keys, causal "
          << each.causal << ", padded " << padded;
      EXPECT_TRUE(close(part->reference(x, pass)[0], expected));
    }
  }
}

TEST(Funnel, WithoutScoresOfDistancesItsAttentionIsDense) {
  const auto part = attention(1, 0, 1, false);
  const auto weights = part->named_parameters();
  {
    const torch::NoGradGuard changing;
    weights["distance_weight"].zero_();
  }
  const Tensor x = random_tensors(1, {2, 70, kSizes.embedding})[0];
  const auto heads = [&](const std::string& name) {
    return x.matmul(weights[name].t()).view({2, 70, 2, -1}).transpose(1, 2);
  };
  for (const bool causal : {false, true}) {
    Pass pass = pass_of(causal), dense = pass_of(causal);
    const Tensor mixed =
        make<Attention>(catalogue::dense, kSizes)
            ->forward(heads("q_weight") + weights["content_bias"].unsqueeze(1),
                      heads("k_weight"), heads("v_weight"), dense);
    const Tensor out = (mixed.transpose(1, 2).flatten(2) + weights["v_bias"])
                           .matmul(weights["out_weight"].t()) +
                       weights["out_bias"];
    EXPECT_TRUE(close(part->forward(x, pass), out));
  }
}

// Groups as the rows of a matrix, for tokens one hot.
Tensor groups_of(const TokenGroups& groups, int64_t count, bool causal) {
  return groups.pooled({.x = torch::eye(count).unsqueeze(0)}, causal).x[0];
}

TEST(Funnel, GroupsTokensAfterTheFirst) {
  const auto half = 0.5f;
  const TokenGroups separate(2, true), plain(3, false);
  EXPECT_TRUE(groups_of(separate, 6, false)
                  .equal(torch::tensor({{1.f, 0.f, 0.f, 0.f, 0.f, 0.f},
                                        {0.f, half, half, 0.f, 0.f, 0.f},
                                        {0.f, 0.f, 0.f, half, half, 0.f},
                                        {0.f, 0.f, 0.f, 0.f, 0.f, 1.f}})));
  EXPECT_TRUE(groups_of(separate, 1, false).equal(torch::ones({1, 1})));
  EXPECT_TRUE(close(groups_of(plain, 4, false) * 3,
                    torch::tensor({{1.f, 1.f, 1.f, 0.f}, {0.f, 0.f, 0.f, 3.f}}), 1e-6));
}

TEST(Funnel, CausalGroupsEndAtMultiplesAndBeginWithZeros) {
  const TokenGroups groups(3, true);
  EXPECT_TRUE(close(
      groups_of(groups, 6, true) * 3,
      torch::tensor({{1.f, 0.f, 0.f, 0.f, 0.f, 0.f}, {0.f, 1.f, 1.f, 1.f, 0.f, 0.f}}),
      1e-6));
  EXPECT_EQ(groups_of(groups, 7, true).size(0), 3);
  EXPECT_EQ(groups_of(groups, 1, true).size(0), 1);
}

TEST(Funnel, GroupsComeBackAsTheirTokens) {
  const auto back = [](const TokenGroups& groups, int64_t from, int64_t count,
                       bool causal) {
    const Tensor x = torch::arange(from, torch::kFloat).view({1, -1, 1});
    return groups.repeated(x, count, causal).flatten().to(torch::kLong);
  };
  EXPECT_TRUE(back({2, true}, 4, 6, false).equal(torch::tensor({0, 1, 1, 2, 2, 3})));
  EXPECT_TRUE(back({3, false}, 2, 4, false).equal(torch::tensor({0, 0, 0, 1})));
  EXPECT_TRUE(back({3, true}, 3, 7, true).equal(torch::tensor({0, 0, 0, 1, 1, 1, 2})));
}

TEST(Funnel, AGroupIsTheMeanOfItsRealMembers) {
  const Tensor x = tokens_of(7),
               real = torch::tensor({1, 0, 1, 0, 0, 1, 1}).view({1, 7}) > 0;
  const Stream pooled = TokenGroups(2, true).pooled({.x = x, .tokens = real}, false);
  EXPECT_TRUE(pooled.tokens.equal(torch::tensor({1, 1, 0, 1}).view({1, 4}) > 0));
  EXPECT_TRUE(close(pooled.x[0][1], x[0][2]));
  EXPECT_TRUE(close(pooled.x[0][3], (x[0][5] + x[0][6]) / 2));
  // {zero, 0}, {1, 2}, {3, 4}, {5, 6}
  const Stream causal = TokenGroups(2, true).pooled({.x = x, .tokens = real}, true);
  EXPECT_TRUE(causal.tokens.equal(pooled.tokens));
  EXPECT_TRUE(close(causal.x[0][0], x[0][0] / 2));
  EXPECT_TRUE(close(causal.x[0][1], x[0][2]));
}

Tensor through(torch::nn::Module& stack, const std::string& layer, const Tensor& x,
               Pass& pass, const Tensor& below = {}) {
  auto& block = *stack.named_children()[layer]->as<Block>();
  if (below.defined()) pass.side.x = block.mixer_input(below);
  const Tensor out = block.reference(x, pass);
  pass.side = {};
  return out;
}

// With pooling and its way back as matrices.
TEST(Funnel, IsBlocksBetweenMatrices) {
  const auto matrix = [](const std::vector<std::vector<double>>& rows) {
    std::vector<Tensor> all;
    for (const auto& row : rows) all.push_back(torch::tensor(row, torch::kDouble));
    return torch::stack(all);
  };
  const double half = 0.5;
  for (const std::string norm : {"post", "pre"}) {
    const auto stack = funnel("{blocks: [1, 1], decoder: 1, norm: " + norm + "}");
    const Tensor x = tokens_of(6);
    for (const bool causal : {false, true}) {
      const Tensor pool = causal ? matrix({{half, 0, 0, 0, 0, 0},
                                           {0, half, half, 0, 0, 0},
                                           {0, 0, 0, half, half, 0}})
                                 : matrix({{1, 0, 0, 0, 0, 0},
                                           {0, half, half, 0, 0, 0},
                                           {0, 0, 0, half, half, 0},
                                           {0, 0, 0, 0, 0, 1}});
      const Tensor back = causal ? torch::tensor({0, 0, 1, 1, 2, 2})
                                 : torch::tensor({0, 1, 1, 2, 2, 3});
      Pass pass = pass_of(causal), own = pass_of(causal);
      const Tensor h = through(*stack, "block0_layer0", x, own);
      const Tensor up = through(*stack, "block1_layer0", pool.matmul(h), own, h);
      Tensor out = through(*stack, "decoder_layer0", h + up.index_select(1, back), own);
      if (norm == "pre")
        out = stack->named_children()["norm"]->as<LayerNorm>()->forward(out);
      EXPECT_TRUE(close(stack->forward(x, pass).x, out)) << norm << causal;
    }
  }
}

TEST(Funnel, ThreeBlocksComeBackByTheirRatesAndCausallyLevelByLevel) {
  const auto stack = funnel("{blocks: [1, 1, 1], decoder: 1, separate_first: false}");
  const Tensor x = tokens_of(7);
  for (const bool causal : {false, true}) {
    const TokenGroups groups(2, false);
    Pass pass = pass_of(causal), own = pass_of(causal);
    const Tensor h0 = through(*stack, "block0_layer0", x, own);
    const Tensor h1 =
        through(*stack, "block1_layer0", groups.pooled({.x = h0}, causal).x, own, h0);
    const Tensor h2 =
        through(*stack, "block2_layer0", groups.pooled({.x = h1}, causal).x, own, h1);
    const Tensor by_two = torch::tensor({0, 0, 1, 1, 2, 2, 3}),
                 by_four = torch::tensor({0, 0, 0, 0, 1, 1, 1});
    Tensor sum = h0 + h2.index_select(1, by_four);
    if (causal) sum = sum + h1.index_select(1, by_two);
    EXPECT_TRUE(
        close(stack->forward(x, pass).x, through(*stack, "decoder_layer0", sum, own)));
  }
}

TEST(Funnel, WithoutPoolingIsARowOfLayers) {
  const auto stack = funnel("{blocks: [2, 1], pool: 1, decoder: 0}");
  const auto one = funnel("{blocks: [3], decoder: 0}");
  const Tensor x = tokens_of(70);
  for (const bool causal : {false, true}) {
    Pass pass = pass_of(causal), own = pass_of(causal), other = pass_of(causal);
    Tensor h = x;
    for (const char* const layer : {"block0_layer0", "block0_layer1", "block1_layer0"})
      h = through(*stack, layer, h, own);
    EXPECT_TRUE(close(stack->forward(x, pass).x, h));
    EXPECT_TRUE(close(one->forward(x, other).x, h));  // the same random parameters
  }
}

constexpr const char* kSettings[] = {
    "{blocks: [1, 2, 1], decoder: 1}",
    "{blocks: [2, 1], decoder: 1, pool: 3, separate_first: false}",
    "{blocks: [1, 1, 1], decoder: 1, pool: 3, pool_q_only: false}",
    "{blocks: [1, 2, 1], repeats: [1, 2, 1], decoder: 0}",
    "{blocks: [1, 1], decoder: 1, norm: pre}",
    "{blocks: [1, 1], decoder: 0, norm: sandwich, separate_first: false}",
    "{blocks: [2], decoder: 0}",
};

TEST(Funnel, EqualsItsDefinition) {
  for (const char* const settings : kSettings) {
    const auto stack = funnel(settings);
    for (const bool causal : {false, true})
      for (const int64_t count : {0, 1, 2, 3, 10, 31}) {
        const Tensor x = random_tensors(1, {2, count, kSizes.embedding})[0];
        for (const bool padded : {false, true}) {
          Pass pass = pass_of(causal), other = pass_of(causal);
          if (padded)
            pass.mask.tokens = other.mask.tokens =
                torch::stack({torch::arange(count) >= 4, torch::arange(count) % 4 < 2});
          const Stream out = stack->forward(x, pass),
                       defined = stack->reference(x, other);
          EXPECT_TRUE(close(out.x, defined.x, 1e-8))
              << settings << " " << count << causal << padded;
          EXPECT_EQ(out.tokens.defined(), padded);
          if (padded) {
            EXPECT_TRUE(out.tokens.equal(defined.tokens));
          }
        }
      }
  }
}

TEST(Funnel, ShortOutputsSayWhichTokensTheyBeginAt) {
  const auto positions = [](const std::string& settings, bool causal) {
    Pass pass = pass_of(causal);
    return funnel(settings)->forward(tokens_of(10), pass).positions;
  };
  const std::string blocks = "{blocks: [1, 1, 1], decoder: 0";
  EXPECT_TRUE(positions(blocks + "}", false).equal(torch::tensor({0, 1, 5, 9})));
  EXPECT_TRUE(positions(blocks + ", separate_first: false}", false)
                  .equal(torch::tensor({0, 4, 8})));
  EXPECT_TRUE(positions(blocks + "}", true).equal(torch::tensor({0, 4, 8})));
}

// The last token that each output depends on; all before it must count as well.
std::vector<int64_t> last_seen(const std::string& settings, int64_t count) {
  const auto stack = funnel(settings);
  const Tensor x = tokens_of(count).requires_grad_();
  Pass pass = pass_of(true);
  const Tensor out = stack->forward(x, pass).x;
  std::vector<int64_t> last;
  for (int64_t i = 0; i < out.size(1); ++i) {
    const Tensor seen =
        (torch::autograd::grad({out[0][i].square().sum()}, {x}, {}, true)[0][0] != 0)
            .any(1);
    last.push_back(seen.sum().item<int64_t>() - 1);
    EXPECT_TRUE(seen.slice(0, 0, last.back() + 1).all().item<bool>()) << settings;
  }
  return last;
}

TEST(Funnel, CausalGroupsSeeUpToTheirEnd) {
  using Tokens = std::vector<int64_t>;
  EXPECT_EQ(last_seen("{blocks: [1, 1], pool: 3, decoder: 0}", 8), (Tokens{0, 3, 6}));
  EXPECT_EQ(last_seen("{blocks: [1, 1, 1], decoder: 0}", 9), (Tokens{0, 4, 8}));
  EXPECT_EQ(last_seen("{blocks: [1, 1], pool: 3, decoder: 1}", 8),
            (Tokens{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(last_seen("{blocks: [1, 1], pool: 3, decoder: 1, pool_q_only: false}", 5),
            (Tokens{0, 1, 2, 3, 4}));
}

TEST(Funnel, DecodesAnySplitAsTheWhole) {
  constexpr int64_t kTokens = 23;
  const Tensor x = random_tensors(1, {2, kTokens, kSizes.embedding})[0];
  const Tensor real =
      torch::stack({torch::arange(kTokens) >= 0, torch::arange(kTokens) % 5 > 2});
  for (const char* const settings : kSettings) {
    const auto stack = funnel(settings);
    const auto complete = Settings::complete("funnel", catalogue::funnel.settings,
                                             *Value::parse(settings).as<Value::Map>());
    for (const bool padded : {false, true}) {
      const auto fed = [&](int64_t from, int64_t to, Record* state) {
        Pass pass = pass_of(true);
        if (padded) pass.mask.tokens = real.slice(1, from, to);
        pass.state = state;
        return stack->forward(x.slice(1, from, to), pass);
      };
      const Stream whole = fed(0, kTokens, nullptr);
      for (const int64_t step : {1, 2, 5, 8}) {
        Record state;
        Tensors outs, places;
        for (int64_t from = 0; from < kTokens; from += step) {
          const Stream part = fed(from, std::min(from + step, kTokens), &state);
          outs.push_back(part.x);
          if (part.positions.defined()) places.push_back(part.positions);
        }
        EXPECT_TRUE(close(torch::cat(outs, 1), whole.x, 1e-9))
            << settings << ", steps of " << step << ", padded " << padded;
        if (whole.positions.defined()) {
          EXPECT_TRUE(torch::cat(places).equal(whole.positions));
        }
        EXPECT_LE(state.numel(),
                  2 * catalogue::funnel.state_size(complete, kSizes, kTokens));
      }
    }
  }
}

TEST(Funnel, LayersDropWeightsAnewInEveryCall) {
  const auto part = attention(1, 0, 1, true);
  const Tensor x = tokens_of(40);
  Pass plain, pass;
  pass.training = true;
  pass.dropout = 0.5;
  const Tensor first = part->forward(x, pass), second = part->forward(x, pass);
  EXPECT_FALSE(first.equal(second));
  EXPECT_FALSE(first.equal(part->forward(x, plain)));
}

TEST(Funnel, RefusesWhatItCannotBe) {
  const auto refused = [](const std::string& settings) {
    return refusal([&] { funnel(settings); });
  };
  EXPECT_EQ(refused("{blocks: []}"),
            "funnel: blocks must have at least one number, got []");
  EXPECT_EQ(refused("{blocks: [1, 0]}"),
            "funnel: blocks must be a list of whole numbers of 1 or more, got 0");
  EXPECT_EQ(refused("{blocks: [1, 1], repeats: [2]}"),
            "funnel: repeats must be [] or one number for each of the 2 blocks, got 1");
  EXPECT_EQ(refused("{blocks: [1, 1, 1], pool: 65536}"),
            "funnel: pool must be so small that fewer than 2147483648 tokens become "
            "one in the last block, got 65536");
}

}  // namespace
}  // namespace longspan::testing
