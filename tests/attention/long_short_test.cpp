#include "longspan/attention/head_axis.h"
#include "longspan/contract/subject.h"
#include "tests/support/mechanisms.h"

namespace longspan::testing {
namespace {

constexpr int64_t kHeads = 4, kWidth = 8, kEmbedding = 24;

std::shared_ptr<Mixer> made_mixer(const std::string& settings) {
  torch::manual_seed(3);
  return make<Mixer>(catalogue::long_short,
                     {.embedding = kEmbedding, .heads = kHeads, .head_width = kWidth},
                     *Value::parse(settings).as<Value::Map>());
}

Tensor parameter(const Mixer& mixer, const std::string& name) {
  return mixer.named_parameters()[name].detach();
}

void set(Mixer& mixer, const std::string& name, const Tensor& value) {
  const torch::NoGradGuard changing;
  mixer.named_parameters()[name].copy_(value);
}

Tensor projected(const Mixer& mixer, const std::string& name, const Tensor& x) {
  return torch::linear(x, parameter(mixer, name + "_weight"),
                       parameter(mixer, name + "_bias"));
}

Tensor heads(const Mixer& mixer, const std::string& name, const Tensor& x) {
  return in_heads(projected(mixer, name, x), kHeads);
}

Tensor tokens_of(int64_t count, uint64_t seed = 0, int64_t examples = 2) {
  return random_tensors(1, {examples, count, kEmbedding}, torch::kFloat, seed)[0];
}

Tensor run(Mixer& mixer, const Tensor& x, bool causal = false,
           const Tensor& real = {}) {
  const torch::NoGradGuard measuring;
  Pass pass = pass_of(causal);
  pass.mask.tokens = real;
  return mixer.forward(x, pass);
}

Tensor by_dense(const Tensor& q, const Tensor& k, const Tensor& v, bool causal) {
  Pass pass = pass_of(causal);
  return made(catalogue::dense)->forward(q, k, v, pass);
}

// Which queries change with which tokens, [queries, tokens].
Tensor seen_by_change(Mixer& mixer, int64_t tokens, bool causal) {
  const Tensor x = tokens_of(tokens, 0, 1), before = run(mixer, x, causal);
  std::vector<Tensor> columns;
  for (int64_t token = 0; token < tokens; ++token) {
    Tensor changed = x.clone();
    changed.select(1, token) += torch::linspace(-1, 1, kEmbedding);
    columns.push_back((run(mixer, changed, causal) != before).any(2)[0]);
  }
  return torch::stack(columns, 1);
}

TEST(LongShort, IsDenseWhereTheWindowIsEverythingAndNothingIsCompressed) {
  const auto mixer =
      made_mixer("{window: 300, compressed: 0, per_segment: 0, dual_norm: false}");
  const Tensor x = tokens_of(150);
  for (const bool causal : {false, true})
    EXPECT_TRUE(close(
        run(*mixer, x, causal),
        projected(*mixer, "out",
                  joined_heads(by_dense(heads(*mixer, "q", x), heads(*mixer, "k", x),
                                        heads(*mixer, "v", x), causal))),
        1e-5));
}

TEST(LongShort, IsOneSoftmaxOverTheWindowAndTheMixedVectors) {
  const auto mixer = made_mixer("{window: 3, compressed: 2}");
  for (const char* name : {"k_norm", "v_norm", "compressed_k_norm"}) {
    set(*mixer, name + std::string("_weight"), torch::linspace(0.5, 1.5, 32));
    set(*mixer, name + std::string("_bias"), torch::linspace(0.3, -0.3, 32));
  }
  const Tensor x = tokens_of(8);
  const auto normed = [&](const std::string& name, const Tensor& y) {
    return torch::layer_norm(y, {32}, parameter(*mixer, name + "_weight"),
                             parameter(*mixer, name + "_bias"));
  };
  const Tensor k = normed("k_norm", projected(*mixer, "k", x)),
               v = normed("v_norm", projected(*mixer, "v", x));
  const Tensor weights =
      torch::linear(x, parameter(*mixer, "compress_weight")).softmax(1);
  const auto mixed = [&](const std::string& name, const Tensor& y) {
    std::vector<Tensor> columns;  // of a head and a vector
    for (int64_t head = 0; head < kHeads; ++head)
      columns.push_back(weights.slice(2, 2 * head, 2 * head + 2)
                            .transpose(1, 2)
                            .matmul(y.slice(2, kWidth * head, kWidth * (head + 1))));
    return normed(name, torch::cat(columns, 2));
  };
  const Tensor mixed_k = mixed("compressed_k_norm", k),
               mixed_v = mixed("compressed_v_norm", v);
  // Blocks of 3 and one token on each side.
  const std::pair<int64_t, int64_t> kSeen[] = {{0, 4}, {0, 4}, {0, 4}, {2, 7},
                                               {2, 7}, {2, 7}, {5, 8}, {5, 8}};
  std::vector<Tensor> rows;
  for (int64_t query = 0; query < 8; ++query) {
    const auto [from, to] = kSeen[query];
    const auto keys = [&](const Tensor& near, const Tensor& far) {
      return in_heads(torch::cat({near.slice(1, from, to), far}, 1), kHeads);
    };
    rows.push_back(by_dense(heads(*mixer, "q", x.slice(1, query, query + 1)),
                            keys(k, mixed_k), keys(v, mixed_v), false));
  }
  EXPECT_TRUE(close(run(*mixer, x),
                    projected(*mixer, "out", joined_heads(torch::cat(rows, 2))), 1e-5));
}

TEST(LongShort, WithoutWeightsTheVectorsAreMeansOfRealTokens) {
  const auto mixer =
      made_mixer("{window: 1, compressed: 3, segment: 4, dual_norm: false}");
  set(*mixer, "compress_weight", torch::zeros({kHeads * 3, kEmbedding}));
  set(*mixer, "causal_compress_weight", torch::zeros({kHeads, kEmbedding}));
  const Tensor x = tokens_of(6, 0, 1);
  const Tensor real = torch::tensor({{true, false, true, true, true, false}});
  const Tensor q = heads(*mixer, "q", x), k = heads(*mixer, "k", x),
               v = heads(*mixer, "v", x);
  const auto mean = [](const Tensor& y, at::IntArrayRef tokens) {
    return y.index_select(2, torch::tensor(tokens)).mean(2, /*keepdim=*/true);
  };
  const auto expected = [&](int64_t query, at::IntArrayRef mixed, int64_t copies) {
    const auto keys = [&](const Tensor& y) {
      return torch::cat(
          {y.slice(2, query, query + 1), mean(y, mixed).expand({-1, -1, copies, -1})},
          2);
    };
    return projected(*mixer, "out",
                     joined_heads(by_dense(q.slice(2, query, query + 1), keys(k),
                                           keys(v), false)))
        .select(1, 0);
  };
  const Tensor all = run(*mixer, x, false, real), past = run(*mixer, x, true, real);
  EXPECT_TRUE(close(all.select(1, 2), expected(2, {0, 2, 3, 4}, 3), 1e-5));
  EXPECT_TRUE(close(past.select(1, 3), expected(3, {0, 2, 3}, 1), 1e-5));
  EXPECT_TRUE(close(past.select(1, 4), expected(4, {0, 2, 3}, 1), 1e-5));
  EXPECT_TRUE(close(past.select(1, 2), expected(2, {2}, 0), 1e-5));
}

TEST(LongShort, SegmentsAreSeenFromTheirLastTokenOn) {
  const auto mixer = made_mixer("{window: 2, segment: 3}");
  const auto expected = torch::tensor({{1, 0, 0, 0, 0, 0, 0},
                                       {1, 1, 0, 0, 0, 0, 0},
                                       {2, 1, 1, 0, 0, 0, 0},
                                       {2, 2, 1, 1, 0, 0, 0},
                                       {2, 2, 2, 1, 1, 0, 0},
                                       {2, 2, 2, 2, 1, 1, 0},
                                       {2, 2, 2, 2, 2, 1, 1}},
                                      torch::kByte);
  EXPECT_TRUE(mixer->sight(7, /*causal=*/true).pairs[0].equal(expected));
  EXPECT_TRUE(seen_by_change(*mixer, 7, true).equal(expected > 0));
}

TEST(LongShort, BlocksSeeHalfAWindowOnEachSide) {
  const auto mixer = made_mixer("{window: 2, compressed: 0}");
  const auto expected = torch::tensor({{1, 1, 1, 0, 0},
                                       {1, 1, 1, 0, 0},
                                       {0, 1, 1, 1, 1},
                                       {0, 1, 1, 1, 1},
                                       {0, 0, 0, 1, 1}},
                                      torch::kByte);
  EXPECT_TRUE(mixer->sight(5, /*causal=*/false).pairs[0].equal(expected));
  EXPECT_TRUE(seen_by_change(*mixer, 5, false).equal(expected > 0));
  EXPECT_TRUE(seen_by_change(*made_mixer("{window: 2}"), 5, false).all().item<bool>());
}

TEST(LongShort, ASegmentOfPaddingIsNoKeyWhateverTheNorm) {
  const auto mixer = made_mixer("{window: 1, segment: 4, per_segment: 2}");
  for (const char* name : {"compressed_k_norm_bias", "compressed_v_norm_bias"})
    set(*mixer, name, torch::ones(32));
  const auto without = [](const Tensor& y) {  // the second segment
    return torch::cat({y.slice(1, 0, 4), y.slice(1, 8)}, 1);
  };
  Tensor real = torch::ones({2, 14}, torch::kBool);
  real.slice(1, 4, 8).fill_(false);
  const Tensor x = tokens_of(14);
  EXPECT_TRUE(
      close(without(run(*mixer, x, true, real)), run(*mixer, without(x), true), 1e-6));
}

TEST(LongShort, KeepsTheWindowTheSegmentsAndTheOneUnderway) {
  const struct { int64_t window, keys; } kCases[] = {{1, 3}, {3, 3}, {6, 5}, {100, 11}};
  for (const auto& [window, keys] : kCases) {
    const auto mixer = made_mixer("{window: " + std::to_string(window) +
                                  ", segment: 4, per_segment: 2}");
    Record state;
    Pass pass = pass_of(true);
    pass.state = &state;
    mixer->forward(tokens_of(11), pass);
    EXPECT_EQ(state.get("k").size(2), keys) << window;
    EXPECT_EQ(state.get("v").size(2), keys) << window;
    EXPECT_EQ(state.get("weights").size(2), 3) << window;
    EXPECT_EQ(state.part("segments").get("k").size(2), 2 * 2) << window;
  }
}

TEST(LongShort, EveryKindEqualsItsDefinitionAndDecodes) {
  const Tensor padding = torch::arange(23).remainder(7).ge(4).expand({2, -1});
  for (const char* text :
       {"{window: 1, segment: 4}", "{window: 3, per_segment: 0, compressed: 0}",
        "{window: 5, segment: 1, per_segment: 2, dual_norm: false}",
        "{window: 2, segment: 30, compressed: 1, dual_norm: false}"}) {
    const auto settings = *Value::parse(text).as<Value::Map>();
    const Subject subject(catalogue::long_short, {.settings = settings});
    const Tensors x = subject.inputs(2, 23);
    for (const bool causal : {false, true}) {
      Pass pass = pass_of(causal);
      pass.mask.tokens = padding.logical_not();
      const Tensors fast = subject.run_and_gradients(x, pass),
                    defined = subject.reference_and_gradients(x, pass);
      for (size_t i = 0; i < fast.size(); ++i)
        EXPECT_TRUE((fast[i] - defined[i]).abs().le(1e-9).all().item<bool>())
            << text << ", result " << i;
    }
    Pass whole = pass_of(true);
    const Tensor expected = subject.run(x, whole).x;
    Record state;
    for (int64_t token = 0; token < 23; ++token) {
      Pass step = pass_of(true);
      step.state = &state;
      EXPECT_TRUE(close(subject.run({x[0].slice(1, token, token + 1)}, step).x,
                        expected.slice(1, token, token + 1), 1e-9))
          << text;
      EXPECT_LE(state.numel(), 2 * catalogue::long_short.state_size(
                                       subject.settings(), subject.sizes(), token + 1));
    }
  }
}

TEST(LongShort, DecodingOverAContextMakesItsVectorsOnce) {
  const auto mixer = made_mixer("{compressed: 2}");
  const Tensor x = tokens_of(3), context = tokens_of(9, 5);
  Pass whole;
  whole.context.x = context;
  const Tensor expected = mixer->forward(x, whole);
  Record state;
  for (int64_t token = 0; token < 3; ++token) {
    Pass step;
    step.state = &state;
    if (token == 0) step.context.x = context;
    step.context.tokens = torch::ones({2, 9}, torch::kBool);
    EXPECT_TRUE(close(mixer->forward(x.slice(1, token, token + 1), step),
                      expected.slice(1, token, token + 1), 1e-6));
  }
}

TEST(LongShort, RefusesContextsItCannotServe) {
  Pass pass;
  pass.context.x = tokens_of(5);
  EXPECT_EQ(
      refusal([&] { made_mixer("{compressed: 0}")->forward(tokens_of(5), pass); }),
      "long_short: queries of another sequence see compressed keys only; set "
      "compressed to 1 or more, got 0");
  pass.context.tokens = torch::ones({2, 4}, torch::kBool);
  EXPECT_EQ(refusal([&] { made_mixer("{}")->forward(tokens_of(5), pass); }),
            "long_short: context.tokens must be boolean [B, M] = [2, 5], got [2, 4]");
  pass.mask.causal = true;
  EXPECT_EQ(refusal([&] { made_mixer("{}")->forward(tokens_of(5), pass); }),
            "long_short: has no causal form over a context, got mask.causal = true");
}

}  // namespace
}  // namespace longspan::testing
