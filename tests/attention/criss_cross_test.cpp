#include "longspan/attention/mechanism.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

std::shared_ptr<Mixer> made(const std::string& settings, int64_t embedding = 16) {
  torch::manual_seed(0);
  auto mixer = make<Mixer>(catalogue::criss_cross, {.embedding = embedding},
                           *Value::parse(settings).as<Value::Map>());
  convert(*mixer, torch::kCPU, torch::kDouble);
  return mixer;
}

void set_gamma(Mixer& mixer, double gamma) {
  const torch::NoGradGuard setting;
  mixer.named_parameters()["gamma"].fill_(gamma);
}

TEST(CrissCross, ChangesNothingAtFirst) {
  const auto x = random_tensors(1, {2, 30, 16})[0];
  Pass pass;
  EXPECT_TRUE(made("{}")->forward(x, pass).equal(x));
}

TEST(CrissCross, IsWhatThePaperSays) {
  constexpr double kGamma = 0.7;
  constexpr int64_t kTokens = 23, kWidth = 6;
  const auto x = random_tensors(1, {2, kTokens, 16})[0];
  for (const int64_t times : {1, 2, 3}) {
    const auto mixer = made("{width: 6, recurrence: " + std::to_string(times) + "}");
    set_gamma(*mixer, kGamma);
    const auto weights = mixer->named_parameters();
    const auto at = torch::arange(kTokens), row = at.div(kWidth, "floor");
    const auto column = at.remainder(kWidth);
    const auto hidden =
        (row.unsqueeze(1) != row).logical_and(column.unsqueeze(1) != column);
    auto expected = x;
    for (int64_t time = 0; time < times; ++time) {
      const auto of = [&](const char* name) {
        return torch::matmul(expected, weights[name].t());
      };
      const auto scores = torch::matmul(of("q_weight"), of("k_weight").transpose(1, 2))
                              .masked_fill(hidden, -INFINITY);
      expected = kGamma * torch::matmul(scores.softmax(-1), of("v_weight")) + expected;
    }
    Pass pass;
    EXPECT_TRUE(close(mixer->forward(x, pass), expected)) << times;
  }
}

TEST(CrissCross, HasNarrowQueriesAndKeys) {
  const std::pair<int64_t, int64_t> widths[] = {{64, 8}, {15, 1}, {4, 1}};
  for (const auto& [embedding, narrow] : widths) {
    const auto weights = made("{}", embedding)->named_parameters();
    EXPECT_EQ(weights["q_weight"].sizes(), (std::vector<int64_t>{narrow, embedding}));
    EXPECT_EQ(weights["k_weight"].sizes(), (std::vector<int64_t>{narrow, embedding}));
    EXPECT_EQ(weights["v_weight"].sizes(),
              (std::vector<int64_t>{embedding, embedding}));
    EXPECT_EQ(weights.size(), 4);
  }
}

TEST(CrissCross, HasTheWidthOfEachExamplesLength) {
  const auto x = random_tensors(1, {2, 90, 16})[0];
  const auto mixer = made("{}");
  set_gamma(*mixer, 1);
  Pass pass, alone;
  pass.mask.tokens = torch::arange(90).lt(torch::tensor({{90}, {36}}));
  const auto mine = [](const Tensor& tensor) {
    return tensor.slice(0, 1).slice(1, 0, 36);
  };
  EXPECT_TRUE(close(mine(mixer->forward(x, pass)), mixer->forward(mine(x), alone)));
}

TEST(CrissCross, RefusesAnotherWidth) {
  Pass pass;
  EXPECT_EQ(refusal([&] {
              made("{}")->forward(torch::zeros({1, 5, 12}), pass);
            }),
            "criss_cross: x must be as wide as the embedding, 16, got [1, 5, 12]");
}

}  // namespace
}  // namespace longspan::testing
