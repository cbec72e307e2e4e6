#include "longspan/attention/projected.h"
#include "tests/support/attention_matrix.h"

namespace longspan::testing {
namespace {

constexpr Sizes kSizes{.embedding = 12, .heads = 2, .head_width = 6, .value_width = 4};

std::shared_ptr<Mixer> rowmajor(const std::string& settings,
                                const Sizes& sizes = kSizes) {
  torch::manual_seed(1);
  const auto mixer = make_mixer(catalogue::combiner_axial_rowmajor, sizes.completed(),
                                *Value::parse(settings).as<Value::Map>());
  convert(*mixer, torch::kCPU, torch::kDouble);
  return mixer;
}

Tensor parameter(const Mixer& mixer, const std::string& name) {
  return mixer.named_parameters()[name];
}

// Another mechanism between projections, with those of `mixer`.
Tensor with_its_projections(const Mixer& mixer, const Mechanism& row,
                            const Value::Map& settings, const Tensor& x, Pass& pass) {
  const torch::NoGradGuard copying;
  const auto other = make_mixer(row, kSizes.completed(), settings);
  convert(*other, torch::kCPU, torch::kDouble);
  for (auto& known : other->named_parameters())
    known.value().copy_(parameter(mixer, known.key()));
  return other->forward(x, pass);
}

Tensor input(int64_t tokens, int64_t examples = 2) {
  return random_tensors(1, {examples, tokens, 12}, torch::kDouble, 7)[0];
}

// [1, N, N]: the weights of one head in which the input and the maps of values and of
// the output are the identity.
Tensor weights_of(int64_t tokens, const std::string& settings, bool causal) {
  const auto mixer = rowmajor(
      settings,
      {.embedding = tokens, .heads = 1, .head_width = 8, .value_width = tokens});
  const torch::NoGradGuard changing;
  const Tensor identity = torch::eye(tokens, torch::kDouble);
  for (const char* name : {"q_weight", "k_weight"}) parameter(*mixer, name).normal_();
  for (const char* name : {"v_weight", "out_weight"})
    parameter(*mixer, name).copy_(identity);
  Pass pass = pass_of(causal);
  return mixer->forward(identity.unsqueeze(0), pass);
}

TEST(CombinerAxialRowMajor, GivesEveryVisibleKeyAWeight) {
  for (const bool causal : {false, true})
    for (const int64_t tokens : {1, 2, 7, 12, 17, 20})
      for (const char* settings : {"{width: 4}", "{width: 4, summary: mean}"})
        expect_full_weights(weights_of(tokens, settings, causal), causal,
                            std::string(settings) + ", N = " + std::to_string(tokens) +
                                (causal ? ", causal" : ""));
}

TEST(CombinerAxialRowMajor, WeighsARowAlikeForAllQueriesOfAColumn) {
  constexpr int64_t kTokens = 18, kWidth = 4;  // the last row has two columns
  const Tensor at = torch::arange(kTokens), row = torch::div(at, kWidth, "floor"),
               column = at.remainder(kWidth);
  for (const bool causal : {false, true}) {
    const Tensor weights = weights_of(kTokens, "{width: 4}", causal)[0];
    const auto alike = [&](int64_t of, const Tensor& queries) {
      const Tensor who = queries & (causal ? row > of : row != of);
      return has_rank_one(weights.index_select(0, who.nonzero().view(-1))
                              .index_select(1, row.eq(of).nonzero().view(-1)));
    };
    // Causal: of rows that at least two queries of every column see.
    for (int64_t of = 0; of < (causal ? 2 : 5); ++of) {
      for (int64_t c = 0; c < kWidth; ++c) EXPECT_TRUE(alike(of, column == c));
      EXPECT_FALSE(alike(of, column < 2));
    }
  }
}

TEST(CombinerAxialRowMajor, IsDenseInOneRow) {
  for (const bool causal : {false, true})
    for (const int64_t tokens : {1, 17})
      for (const int64_t width : {17, 40}) {
        const auto mixer = rowmajor("{width: " + std::to_string(width) + "}");
        const Tensor x = input(tokens);
        Pass one = pass_of(causal), other = pass_of(causal);
        EXPECT_TRUE(
            close(mixer->forward(x, one),
                  with_its_projections(*mixer, catalogue::dense, {}, x, other)));
      }
}

// In one column the value of a row is that of its token; its key is, too, if what is
// mixed in is nothing, the input is as the norm makes it, and the maps are the same.
TEST(CombinerAxialRowMajor, IsDenseInOneColumnIfItsKeysAreThoseOfTokens) {
  const auto mixer = rowmajor("{width: 1}");
  {
    const torch::NoGradGuard changing;
    parameter(*mixer, "summary_mix_weight").zero_();
    parameter(*mixer, "summary_key_weight").copy_(parameter(*mixer, "k_weight"));
  }
  const Tensor x = torch::layer_norm(input(40), {12}, {}, {}, /*eps=*/0);
  for (const bool causal : {false, true}) {
    Pass one = pass_of(causal), other = pass_of(causal);
    EXPECT_TRUE(close(mixer->forward(x, one),
                      with_its_projections(*mixer, catalogue::dense, {}, x, other),
                      1e-4));  // the norm adds 1e-5 to the variance
  }
}

TEST(CombinerAxialRowMajor, IsCombinerFixedWithPooledSummaries) {
  for (const bool causal : {false, true})
    for (const char* summary : {"none", "mean"}) {
      const auto mixer = rowmajor(std::string("{width: 5, summary: ") + summary + "}");
      const char* const pooled = summary == std::string("none") ? "max" : summary;
      const Tensor x = input(33);
      Pass one = pass_of(causal), other = pass_of(causal);
      EXPECT_TRUE(close(
          mixer->forward(x, one),
          with_its_projections(
              *mixer, catalogue::combiner_fixed,
              {{"span", Value(int64_t{5})}, {"summary", Value(pooled)}}, x, other)));
    }
}

// A sum over pairs of tokens of values of the released formula, token by token.
TEST(CombinerAxialRowMajor, SeesARowByWhatItsOwnColumnSeesThere) {
  constexpr int64_t kWidth = 4;
  const Sizes one_head{.embedding = 12, .heads = 1, .head_width = 12};
  const auto mixer = rowmajor("{width: 4}", one_head);
  const torch::NoGradGuard without_gradients;
  const auto map = [&](const Tensor& y, const char* name) {
    return y.matmul(parameter(*mixer, name).t());
  };
  const Tensor x = input(11, 1)[0];
  const Tensor q = map(x, "q_weight"), k = map(x, "k_weight"), v = map(x, "v_weight");
  const auto softmax_of = [](const Tensor& query, const Tensor& keys) {
    return (keys.matmul(query) / std::sqrt(12.0)).softmax(0);
  };
  Tensor keys = k.slice(0, 8, 11), values = v.slice(0, 8, 11);  // of the last row
  for (const int64_t row : {0, 1}) {
    const int64_t from = kWidth * row, at = from + 2;
    const Tensor mixed = softmax_of(q[at], k.slice(0, from, from + kWidth))
                             .matmul(v.slice(0, from, from + kWidth));
    const Tensor normal =
        torch::layer_norm(x[at] + map(mixed, "summary_mix_weight"), {12});
    keys = torch::cat({keys, map(normal, "summary_key_weight").unsqueeze(0)});
    values = torch::cat({values, mixed.unsqueeze(0)});
  }
  const Tensor expected =
      map(softmax_of(q[10], keys).matmul(values), "out_weight");  // column 2
  Pass pass = pass_of(true);
  EXPECT_TRUE(close(mixer->forward(x.unsqueeze(0), pass)[0][10], expected));
}

TEST(CombinerAxialRowMajor, ColumnsThatTheLastRowLacksSeeItToo) {
  const auto mixer = rowmajor("{width: 4}");
  Tensor x = input(10, 1);
  Pass before = pass_of(false), after = pass_of(false);
  const Tensor out = mixer->forward(x, before);
  x = x.clone();
  x[0][9] += 1;
  const Tensor change = (mixer->forward(x, after) - out).abs().amax(2)[0];
  EXPECT_TRUE((change > 1e-6).all().item<bool>());
}

TEST(CombinerAxialRowMajor, KeepsARowAndASummaryForEveryTokenBefore) {
  const auto mixer = rowmajor("{width: 4}");
  Record state;
  Pass pass = pass_of(true);
  pass.state = &state;
  mixer->forward(input(11), pass);
  EXPECT_EQ(state.part("summaries").get("k").size(2), 8);
  EXPECT_EQ(state.get("k").size(2), 3);
  EXPECT_EQ(state.get("x").size(1), 3);
}

TEST(CombinerAxialRowMajor, DecodesWithPooledSummaries) {
  const auto mixer = rowmajor("{width: 4, summary: deepsets_mean}");
  const Tensor x = input(23);
  Pass whole = pass_of(true), steps = pass_of(true);
  Record state;
  steps.state = &state;
  Tensors outs;
  for (int64_t at = 0; at < 23; ++at)
    outs.push_back(mixer->forward(x.slice(1, at, at + 1), steps));
  EXPECT_TRUE(close(torch::cat(outs, 1), mixer->forward(x, whole)));
}

}  // namespace
}  // namespace longspan::testing
