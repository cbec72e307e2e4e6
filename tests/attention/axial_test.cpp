#include "longspan/attention/mechanism.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

std::shared_ptr<Attention> made(const Mechanism& row, const std::string& settings,
                                int64_t layer = 0, int64_t layers = 1) {
  return make<Attention>(
      row, {.heads = 2, .head_width = 8, .layer = layer, .layers = layers},
      *Value::parse(settings).as<Value::Map>());
}

Pass pass_of(bool causal) {
  Pass pass;
  pass.mask.causal = causal;
  return pass;
}

// What `query` sees, by keys that are alike and values that are not.
Tensor keys(Attention& attention, int64_t query, int64_t tokens, bool causal = false) {
  const auto alike = torch::zeros({1, 1, tokens, 8});
  const auto own = torch::eye(tokens).view({1, 1, tokens, tokens});
  Pass pass = pass_of(causal);
  return attention.forward(alike, alike, own, pass)[0][0][query].nonzero().view(-1);
}

TEST(Axial, SeesTheLineOfItsAxis) {
  // Token 10 stands at (1, 1, 1).
  const Tensor lines[] = {torch::tensor({4, 10, 16}), torch::tensor({7, 10}),
                          torch::tensor({9, 10, 11})};
  for (int64_t axis = 0; axis < 3; ++axis) {
    const auto attention = made(
        catalogue::axial, "{shape: [0, 2, 3], axis: " + std::to_string(axis) + "}");
    const Tensor& line = lines[axis];
    EXPECT_TRUE(keys(*attention, 10, 17).equal(line)) << axis;
    EXPECT_TRUE(keys(*attention, 10, 17, true).equal(line.masked_select(line <= 10)));
  }
}

TEST(Axial, GoesThroughTheAxesLayerByLayer) {
  const int64_t counts[] = {3, 2, 3, 3};  // along axes 2, 1, 0, 2
  for (int64_t layer = 0; layer < 4; ++layer)
    EXPECT_EQ(
        keys(*made(catalogue::axial, "{shape: [3, 2, 3]}", layer, 4), 10, 18).size(0),
        counts[layer]);
}

TEST(Axial, IsDenseAlongOneAxis) {
  const auto x = random_tensors(3, {2, 2, 150, 8}, torch::kFloat);
  for (const bool causal : {false, true})
    for (const char* settings : {"{shape: [0]}", "{shape: [0, 150]}"}) {
      Pass one = pass_of(causal), other = pass_of(causal);
      EXPECT_TRUE(
          made(catalogue::axial, settings)
              ->forward(x[0], x[1], x[2], one)
              .equal(made(catalogue::dense, "{}")->forward(x[0], x[1], x[2], other)));
    }
}

TEST(Axial, IsDenseWithTheOtherAxisAsBatch) {
  constexpr int64_t kRows = 6, kColumns = 70;
  const auto x = random_tensors(3, {1, 2, kRows * kColumns, 8});
  for (const bool causal : {false, true})
    for (const int64_t axis : {0, 1}) {
      // [2, rows * columns, 8] as [2, lines, tokens of a line, 8], and back
      const auto lines = [&](const Tensor& tensor) {
        const auto grid = tensor.view({2, kRows, kColumns, 8});
        return (axis == 0 ? grid.transpose(1, 2) : grid).contiguous();
      };
      const auto back = [&](const Tensor& out) {
        return (axis == 0 ? out.transpose(1, 2) : out).reshape(x[0].sizes());
      };
      Pass one = pass_of(causal), other = pass_of(causal);
      const auto settings = "{shape: [0, 70], axis: " + std::to_string(axis) + "}";
      EXPECT_TRUE(
          close(made(catalogue::axial, settings)->forward(x[0], x[1], x[2], one),
                back(made(catalogue::dense, "{}")
                         ->forward(lines(x[0]), lines(x[1]), lines(x[2]), other))));
    }
}

TEST(Axial, SharesTheLengthOfEachExampleEvenly) {
  EXPECT_EQ(keys(*made(catalogue::axial, "{}"), 0, 50).size(0), 7);
  EXPECT_EQ(keys(*made(catalogue::axial, "{shape: [0, 0, 0]}"), 0, 64).size(0), 4);
  EXPECT_EQ(keys(*made(catalogue::axial, "{shape: [0, 0, 5]}"), 0, 80).size(0), 5);
  EXPECT_TRUE(keys(*made(catalogue::axial, "{shape: [0, 0, 5], axis: 1}"), 0, 80)
                  .equal(torch::tensor({0, 5, 10, 15})));

  const auto x = random_tensors(3, {3, 2, 90, 8});
  const std::vector<int64_t> lengths = {90, 36, 1};
  for (const int64_t axis : {0, 1}) {
    const auto attention =
        made(catalogue::axial, "{axis: " + std::to_string(axis) + "}");
    Pass pass;
    pass.mask.tokens = torch::arange(90).lt(torch::tensor(lengths).unsqueeze(1));
    const auto together = attention->forward(x[0], x[1], x[2], pass);
    for (int64_t b = 0; b < 3; ++b) {
      const auto mine = [&](const Tensor& tensor) {
        return tensor.slice(0, b, b + 1).slice(2, 0, lengths[b]);
      };
      Pass alone;
      EXPECT_TRUE(close(mine(together),
                        attention->forward(mine(x[0]), mine(x[1]), mine(x[2]), alone)));
    }
  }
}

TEST(Axial, KeepsWhatLaterTokensSee) {
  constexpr int64_t kTokens = 23;
  const int64_t most[] = {kTokens, 5, 2};  // keys after any token
  const auto x = random_tensors(3, {1, 2, kTokens, 8});
  for (int64_t axis = 0; axis < 3; ++axis) {
    const auto attention = made(
        catalogue::axial, "{shape: [0, 2, 3], axis: " + std::to_string(axis) + "}");
    Pass whole = pass_of(true);
    const auto expected = attention->forward(x[0], x[1], x[2], whole);
    Record state;
    int64_t kept = 0;
    for (int64_t at = 0; at < kTokens; ++at) {
      Pass pass = pass_of(true);
      pass.state = &state;
      const auto token = [&](const Tensor& tensor) {
        return tensor.slice(2, at, at + 1);
      };
      EXPECT_TRUE(close(attention->forward(token(x[0]), token(x[1]), token(x[2]), pass),
                        token(expected)));
      kept = std::max(kept, state.get("k").size(2));
    }
    EXPECT_EQ(kept, most[axis]);
  }
}

TEST(Axial, RefusesShapesThatDoNotFit) {
  EXPECT_EQ(refusal([] { made(catalogue::axial, "{shape: [0, -4]}"); }),
            "axial: shape must be a list of whole numbers of 0 or more, got -4");
  EXPECT_EQ(refusal([] { made(catalogue::axial, "{shape: []}"); }),
            "axial: shape must have at least one axis, got []");
  EXPECT_EQ(refusal([] { made(catalogue::axial, "{shape: [0, 4], axis: 2}"); }),
            "axial: axis must be less than the 2 axes of shape, got 2");
  const auto x = random_tensors(3, {1, 2, 5, 8});
  Record state;
  Pass pass = pass_of(true);
  pass.state = &state;
  EXPECT_EQ(
      refusal([&] { made(catalogue::axial, "{}")->forward(x[0], x[1], x[2], pass); }),
      "axial: shape must give the length of every axis but the first for decoding, "
      "where the length is not known");
}

}  // namespace
}  // namespace longspan::testing
