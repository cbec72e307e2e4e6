#include <cmath>

#include "tests/support/mechanisms.h"

namespace longspan::testing {
namespace {

constexpr Sizes kSizes{.embedding = 16, .heads = 2, .head_width = 8};

std::shared_ptr<Mixer> luna(const std::string& settings = "{memory: 5}",
                            const Sizes& sizes = kSizes,
                            const std::shared_ptr<Shared>& shared = nullptr) {
  torch::manual_seed(1);
  auto part = make<Mixer>(catalogue::luna, sizes,
                          *Value::parse(settings).as<Value::Map>(), shared);
  convert(*part, torch::kCPU, torch::kDouble);
  const torch::NoGradGuard changing;
  for (auto& parameter : part->parameters())
    parameter.add_(0.2 * torch::randn_like(parameter));
  return part;
}

Tensor weight_of(const Mixer& part, const std::string& name) {
  return part.named_parameters()[name].detach();
}

Tensor mapped(const Mixer& part, const std::string& name, const Tensor& x) {
  return torch::linear(x, weight_of(part, name + "_weight"),
                       weight_of(part, name + "_bias"));
}

// The same by heads of 8: [B, 2, n, 8].
Tensor headed(const Mixer& part, const std::string& name, const Tensor& x) {
  return mapped(part, name, x).view({x.size(0), x.size(1), 2, 8}).transpose(1, 2);
}

Tensor joined(const Tensor& heads) { return heads.transpose(1, 2).flatten(2); }

Pass with_memory(const Tensor& memory, bool causal = false) {
  Pass pass = pass_of(causal);
  pass.side.x = memory;
  return pass;
}

TEST(Luna, IsDenseAttentionOfTheMemoryThenOfTheTokens) {
  const auto x = torch::randn({2, 70, 16}, torch::kDouble);
  const auto p = torch::randn({2, 5, 16}, torch::kDouble);
  const auto dense = [](const Tensor& q, const Tensor& k, const Tensor& v) {
    Pass pass;
    pass.context.x = k;  // another number of queries than of keys
    return joined(make<Attention>(catalogue::dense, kSizes)->forward(q, k, v, pass));
  };
  for (const bool tied : {true, false}) {
    const auto part = luna(tied ? "{}" : "{tied: false}");
    Pass pass = with_memory(p);
    const auto out = part->forward(x, pass);
    const auto key_value = [&](const std::string& name, const Tensor& y) {
      const std::string kind[] = {tied ? "" : "_k", tied ? "" : "_v"};
      return std::pair(headed(*part, name + kind[0], y),
                       headed(*part, name + kind[1], y));
    };
    const auto [pk, pv] = key_value("pack", x);
    const auto packed = dense(headed(*part, "memory_q", p), pk, pv);
    const auto [k, v] = key_value("unpack", packed);
    EXPECT_TRUE(
        close(out, mapped(*part, "out", dense(headed(*part, "q", x), k, v)), 1e-12));
    EXPECT_TRUE(
        close(pass.side.x,
              torch::layer_norm(p + packed, {16}, weight_of(*part, "norm_weight"),
                                weight_of(*part, "norm_bias")),
              1e-12));
  }
}

TEST(Luna, HandsTheMemoryThroughTheLayers) {
  const auto shared = std::make_shared<Shared>();
  const auto first = luna("{memory: 5}", kSizes, shared),
             second = luna("{memory: 5}", kSizes, shared);
  EXPECT_EQ(shared->parameters().size(), 1);
  convert(*shared, torch::kCPU, torch::kDouble);
  const auto x = torch::randn({1, 20, 16}, torch::kDouble);
  const auto y = torch::randn({1, 20, 16}, torch::kDouble);
  Pass pass, alone;
  first->forward(x, pass);
  const auto handed = pass.side.x;
  EXPECT_EQ(handed.sizes(), (std::vector<int64_t>{1, 5, 16}));
  const auto out = second->forward(y, pass);
  Pass given = with_memory(handed);
  EXPECT_TRUE(out.equal(second->forward(y, given)));
  EXPECT_TRUE(pass.side.x.equal(given.side.x));
  EXPECT_FALSE(out.equal(second->forward(y, alone)));
}

TEST(Luna, BeginsAsPublished) {
  torch::manual_seed(1);
  const auto part = make<Mixer>(catalogue::luna, {.heads = 4, .head_width = 64},
                                *Value::parse("{memory: 256}").as<Value::Map>());
  const auto shared = std::make_shared<Shared>();
  torch::manual_seed(1);
  make<Mixer>(catalogue::luna, {.heads = 4, .head_width = 64},
              *Value::parse("{memory: 256}").as<Value::Map>(), shared);
  EXPECT_NEAR(shared->parameters()[0].std().item<double>(), 1 / 16.0, 1e-3);
  const double xavier = std::sqrt(6 / 512.0);
  for (const auto& [name, gain] : {std::pair("q", std::sqrt(0.5)),
                                   {"memory_q", std::sqrt(0.5)},
                                   {"pack", std::sqrt(0.5)},
                                   {"unpack", std::sqrt(0.5)},
                                   {"out", 1.0}}) {
    const auto weight = weight_of(*part, std::string(name) + "_weight");
    EXPECT_NEAR(weight.abs().max().item<double>(), gain * xavier, 1e-4) << name;
  }
}

// Token by token, as the sums grow.
TEST(Luna, CausalFormIsTheClosedForm) {
  const auto x = torch::randn({1, 30, 16}, torch::kDouble);
  const auto p = torch::randn({1, 5, 16}, torch::kDouble);
  const auto part = luna();
  Pass pass = with_memory(p, /*causal=*/true);
  const auto out = part->forward(x, pass)[0];
  EXPECT_TRUE(pass.side.x.equal(p));  // it packs nothing of the future
  const double scale = 1 / std::sqrt(8.0);
  const auto q = headed(*part, "q", x)[0], k = headed(*part, "unpack", x)[0];
  const auto scores = scale * headed(*part, "pack", x)[0].matmul(
                                  headed(*part, "memory_q", p)[0].transpose(1, 2));
  const auto weights = torch::log2(1 + torch::pow(2, scores));  // [2, 30, 5]
  auto of_keys = torch::zeros({2, 8, 5}, torch::kDouble),
       of_values = torch::zeros({2, 5, 8}, torch::kDouble);
  for (int64_t t = 0; t < 30; ++t) {
    const auto key = k.select(1, t).unsqueeze(2),
               weight = weights.select(1, t).unsqueeze(1);
    of_keys = of_keys + key.matmul(weight);
    of_values = of_values + weight.transpose(1, 2).matmul(key.transpose(1, 2));
    const auto count = static_cast<double>(t + 1);
    const auto chosen =
        (scale * q.select(1, t).unsqueeze(1).matmul(of_keys) / count).softmax(2);
    const auto heads = chosen.matmul(of_values) / count;  // [2, 1, 8]
    EXPECT_TRUE(close(out[t], mapped(*part, "out", heads.flatten()), 1e-11)) << t;
  }
}

TEST(Luna, CausalMeansAreOverRealTokens) {
  const auto part = luna();
  const auto x = torch::randn({1, 40, 16}, torch::kDouble);
  Pass pass = pass_of(/*causal=*/true), alone = pass_of(/*causal=*/true);
  pass.mask.tokens = torch::ones({1, 40}, torch::kBool);
  pass.mask.tokens.slice(1, 0, 7).fill_(false);  // on the left
  pass.mask.tokens.slice(1, 20, 23).fill_(false);
  const auto real = pass.mask.tokens[0].nonzero().view(-1);
  EXPECT_TRUE(close(part->forward(x, pass).index_select(1, real),
                    part->forward(x.index_select(1, real), alone), 1e-12));
}

// Sums over so many tokens stop growing in bfloat16 after some hundred, and in half
// they overflow; the mean of equal tokens is what the first one gives.
TEST(Luna, AddsUpManyTokensUnrounded) {
  constexpr int64_t kTokens = 65536;
  const torch::NoGradGuard without_gradients;
  for (const auto device : devices())
    for (const auto type : low_precisions(device)) {
      const auto part = luna();
      part->named_parameters()["out_bias"].zero_();
      convert(*part, device, type);
      const auto token = torch::randn({1, 1, 16}).to(device, type);
      Pass one = pass_of(/*causal=*/true), many = pass_of(/*causal=*/true);
      const auto first = part->forward(token, one);
      const auto out = part->forward(token.expand({1, kTokens, 16}).contiguous(), many);
      EXPECT_EQ(out.scalar_type(), type);
      EXPECT_GT(first.abs().max().item<double>(), 0.5);
      EXPECT_TRUE(close(out, first.expand_as(out), 0.01)) << type;
    }
}

TEST(Luna, PaddedSlotsAreNotThere) {
  const auto x = torch::randn({1, 20, 16}, torch::kDouble);
  const auto p = torch::randn({1, 5, 16}, torch::kDouble);
  for (const bool causal : {false, true}) {
    const auto part = luna();
    Pass padded = with_memory(torch::cat({p, 9 * p}, 1), causal),
         defined = with_memory(torch::cat({p, 9 * p}, 1), causal),
         alone = with_memory(p, causal);
    padded.side.tokens = defined.side.tokens = (torch::arange(10) < 5).unsqueeze(0);
    const auto out = part->forward(x, padded);
    EXPECT_TRUE(close(out, part->forward(x, alone), 1e-12));
    EXPECT_TRUE(close(out, part->reference(x, defined), 1e-12));
    EXPECT_TRUE(close(padded.side.x, defined.side.x, 1e-12));
    EXPECT_TRUE(padded.side.tokens.defined());
    Pass nobody = with_memory(padded.side.x.slice(0, 0, 0), causal);
    nobody.side.tokens = padded.side.tokens.slice(0, 0, 0);
    EXPECT_EQ(part->forward(x.slice(0, 0, 0), nobody).numel(), 0);
    if (causal) continue;
    EXPECT_TRUE(close(padded.side.x.slice(1, 0, 5), alone.side.x, 1e-12));
    EXPECT_FALSE(padded.side.x.slice(1, 5).any().item<bool>());
  }
}

TEST(Luna, PacksTheContextOnceForAllSteps) {
  const auto part = luna();
  const auto x = torch::randn({2, 6, 16}, torch::kDouble);
  const auto context = torch::randn({2, 30, 16}, torch::kDouble);
  const auto crossing = [&] {
    Pass pass;
    pass.context.x = context;
    pass.context.tokens = torch::ones({2, 30}, torch::kBool);
    pass.context.tokens[1].slice(0, 11).fill_(false);
    return pass;
  };
  Pass whole = crossing();
  const auto out = part->forward(x, whole);
  // What was packed of the context is all that is seen of it.
  Record state;
  for (int64_t step = 0; step < 6; ++step) {
    Pass pass = crossing();
    pass.state = &state;
    if (step > 0) pass.context.x = torch::full_like(context, NAN);
    EXPECT_TRUE(close(part->forward(x.slice(1, step, step + 1), pass),
                      out.slice(1, step, step + 1), 1e-12));
    EXPECT_TRUE(pass.side.x.equal(whole.side.x));
  }
  // The context itself as context is self-attention.
  Pass itself, alone;
  itself.context.x = x;
  EXPECT_TRUE(part->forward(x, itself).equal(part->forward(x, alone)));
}

TEST(Luna, MapsWhatIsPackedOnlyWhereWidthsDiffer) {
  EXPECT_FALSE(luna()->named_parameters().contains("packed_out_weight"));
  const auto other = luna("{}", {.embedding = 20, .heads = 2, .head_width = 8});
  EXPECT_EQ(weight_of(*other, "packed_out_weight").sizes(),
            (std::vector<int64_t>{20, 16}));
}

TEST(Luna, UntiedEqualsItsDefinition) {
  const auto part = luna(
      "{tied: false}",
      {.embedding = 18, .heads = 4, .key_heads = 2, .head_width = 8, .value_width = 5});
  const auto x = torch::randn({2, 70, 18}, torch::kDouble);
  for (const bool causal : {false, true}) {
    Pass one = pass_of(causal), other = pass_of(causal);
    EXPECT_TRUE(close(part->forward(x, one), part->reference(x, other)));
  }
}

TEST(Luna, RefusesWhatDoesNotFit) {
  const auto x = torch::randn({1, 9, 16}, torch::kDouble);
  const auto refused = [&](const std::function<void(Pass&)>& change) {
    Pass pass;
    change(pass);
    return refusal([&] { luna()->forward(x, pass); });
  };
  EXPECT_EQ(refused([](Pass& pass) {
              pass.side.x = torch::randn({1, 4, 15}, torch::kDouble);
            }),
            "luna: the memory, pass.side, must be [B, l, E] = [1, l, 16], got "
            "[1, 4, 15]");
  EXPECT_EQ(refused([](Pass& pass) {
              pass.side.x = torch::randn({1, 4, 16}, torch::kDouble);
              pass.side.tokens = torch::ones({1, 5}, torch::kBool);
            }),
            "luna: side.tokens must be boolean [B, l] = [1, 4], got [1, 5]");
  EXPECT_EQ(refused([](Pass& pass) {
              pass.context.tokens = torch::ones({1, 5}, torch::kBool);
            }),
            "luna: the context must come with its x");
  EXPECT_EQ(refused([&](Pass& pass) {
              pass.context.x = x;
              pass.mask.causal = true;
            }),
            "luna: has no causal form over a context, got mask.causal = true");
}

TEST(Luna, PictureHasTheMemoryFirst) {
  const auto plain = luna()->sight(3, /*causal=*/false),
             causal = luna()->sight(3, /*causal=*/true);
  EXPECT_EQ(plain.memory_rows, 2);
  EXPECT_EQ(plain.memory_columns, 2);
  EXPECT_TRUE(plain.pairs[0].equal(torch::tensor({{1, 0, 1, 1, 1},
                                                  {0, 1, 1, 1, 1},
                                                  {1, 1, 3, 3, 3},
                                                  {1, 1, 3, 3, 3},
                                                  {1, 1, 3, 3, 3}},
                                                 torch::kByte)));
  EXPECT_TRUE(causal.pairs[0].equal(torch::tensor({{1, 0, 0, 0, 0},
                                                   {0, 1, 0, 0, 0},
                                                   {1, 1, 3, 0, 0},
                                                   {1, 1, 3, 3, 0},
                                                   {1, 1, 3, 3, 3}},
                                                  torch::kByte)));
}

}  // namespace
}  // namespace longspan::testing
