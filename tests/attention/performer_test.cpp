#include <cmath>

#include "longspan/attention/random_features.h"
#include "longspan/contract/contract.h"
#include "tests/support/any_threads.h"
#include "tests/support/mechanisms.h"

namespace longspan::testing {
namespace {

Tensor directions_of(const Attention& attention) {
  return attention.named_buffers()["directions"];
}

Pass training_pass(uint64_t step, uint64_t seed = 1) {
  Pass pass;
  pass.training = true;
  pass.draw = Draw(seed, step);
  return pass;
}

double error(const Tensor& got, const Tensor& expected) {
  return (got - expected).square().mean().sqrt().item<double>();
}

// Attention over 24 tokens, the same for all tests of how near the features come.
const Tensors& tokens() {
  static const Tensors x = [] {
    Tensors made = random_tensors(3, {1, 4, 24, 8});
    // Of larger ones few draws say nothing about the mean.
    for (int i = 0; i < 2; ++i) made[i] = made[i] / 2;
    return made;
  }();
  return x;
}

Tensor by_softmax(bool causal) {
  Pass pass = pass_of(causal);
  return made(catalogue::dense)->forward(tokens()[0], tokens()[1], tokens()[2], pass);
}

TEST(Performer, MeanOfManyDrawsIsNearSoftmaxAttention) {
  constexpr int kDraws = 100;
  const auto performer = made(catalogue::performer, "{redraw: 1}");
  convert(*performer, torch::kCPU, torch::kDouble);
  for (const bool causal : {false, true}) {
    const Tensor exact = by_softmax(causal);
    Tensor sum = torch::zeros_like(exact);
    double largest = 0, each = 0;
    for (int step = 0; step < kDraws; ++step) {
      Pass pass = training_pass(step);
      pass.mask.causal = causal;
      const Tensor out =
          performer->forward(tokens()[0], tokens()[1], tokens()[2], pass);
      sum = sum + out;
      each += error(out, exact) / kDraws;
      largest = std::max(largest, error(out, exact));
    }
    EXPECT_LT(error(sum / kDraws, exact), each / 4);
    EXPECT_LT(error(sum / kDraws, exact), 0.02);
    EXPECT_LT(largest, 0.5);
  }
}

TEST(Performer, ErrorFallsAsTheRootOfTheNumberOfFeatures) {
  constexpr int kSeeds = 40;
  for (const char* const kernel : {"softmax", "cosh"}) {
    std::vector<double> errors;
    for (const int features : {32, 128, 512}) {
      const auto performer = made(catalogue::performer,
                                  "{redraw: 1, kernel: " + std::string(kernel) +
                                      ", features: " + std::to_string(features) + "}");
      double square = 0;
      for (int step = 0; step < kSeeds; ++step) {
        Pass pass = training_pass(step);
        const Tensor out =
            performer->forward(tokens()[0], tokens()[1], tokens()[2], pass);
        square += std::pow(error(out, by_softmax(false)), 2);
      }
      errors.push_back(std::sqrt(square / kSeeds));
    }
    for (int i = 0; i < 2; ++i) {
      EXPECT_GT(errors[i] / errors[i + 1], 1.6) << kernel;
      EXPECT_LT(errors[i] / errors[i + 1], 2.6) << kernel;
    }
  }
}

TEST(Performer, MayHaveNoDirections) {
  const auto performer = made(catalogue::performer, "{kernel: bare_relu}");
  EXPECT_TRUE(performer->buffers().empty());
  const auto x = random_tensors(3, {1, 4, 7, 8});
  Pass pass;
  const Tensor weights =
      (x[0].relu() + 1e-3).matmul((x[1].relu() + 1e-3).transpose(2, 3));
  const Tensor expected = weights.matmul(x[2]) / weights.sum(3, /*keepdim=*/true);
  EXPECT_LT(error(performer->forward(x[0], x[1], x[2], pass), expected), 1e-6);
}

TEST(Performer, FeaturesAreThoseOfThePaper) {
  const auto x = random_tensors(3, {1, 4, 7, 8});
  for (const bool mirrored : {false, true}) {
    const auto performer =
        made(catalogue::performer,
             mirrored ? "{features: 6, kernel: cosh}" : "{features: 3}");
    convert(*performer, torch::kCPU, torch::kDouble);
    Pass pass;
    const Tensor out = performer->forward(x[0], x[1], x[2], pass);
    const Tensor q = x[0] / std::pow(8, 0.25), k = x[1] / std::pow(8, 0.25);
    Tensor weights = torch::zeros({4, 7, 7}, torch::kDouble);
    for (int64_t i = 0; i < 7; ++i)
      for (int64_t j = 0; j < 7; ++j) {
        const Tensor both = q[0].select(1, i) + k[0].select(1, j);  // [H, d]
        const Tensor along =
            (directions_of(*performer) * both.unsqueeze(1)).sum(2);  // [H, 3]
        const Tensor squares =
            (q[0].select(1, i).square().sum(1) + k[0].select(1, j).square().sum(1)) / 2;
        const Tensor terms = mirrored ? along.cosh() : along.exp();
        weights.select(1, i).select(1, j).copy_(terms.mean(1) * (-squares).exp());
      }
    const Tensor expected =
        (weights / weights.sum(2, /*keepdim=*/true)).matmul(x[2][0]);
    EXPECT_TRUE(close(out[0], expected));
  }
}

TEST(Performer, DirectionsAreOrthogonalInBlocks) {
  const Tensor unit = torch::eye(16, torch::kDouble);
  for (const bool normal_lengths : {false, true}) {
    const Tensor all =
        orthogonal_directions(Key{5}, /*matrices=*/3, /*rows=*/40, 16, normal_lengths);
    const Tensor lengths = all.norm(2, {2}, /*keepdim=*/true);
    for (int64_t first = 0; first < 40; first += 16) {
      const Tensor block = (all / lengths).slice(1, first, first + 16);
      const Tensor products = block.matmul(block.transpose(1, 2));
      EXPECT_TRUE(close(products,
                        unit.slice(0, 0, block.size(1))
                            .slice(1, 0, block.size(1))
                            .expand_as(products),
                        1e-14));
    }
    EXPECT_NEAR(lengths.square().mean().item<double>(), 16, 1.5);
    EXPECT_EQ(lengths.std().item<double>() > 0.1, normal_lengths);
  }
}

TEST(Performer, DirectionsPointEverywhere) {
  const Tensor all =
      orthogonal_directions(Key{6}, 500, 8, 8, /*normal_lengths=*/true).flatten(0, 1);
  EXPECT_LT(all.mean(0).abs().max().item<double>(), 0.06);
  EXPECT_TRUE(close(all.t().matmul(all) / 4000, torch::eye(8, torch::kDouble), 0.1));
  // As normal numbers have them.
  EXPECT_NEAR(all.pow(4).mean().item<double>(), 3, 0.2);
}

TEST(Performer, DrawsAreTheSameBitsOnAnyNumberOfThreads) {
  EXPECT_TRUE(same_with_any_threads([&] {
    torch::manual_seed(7);
    const auto performer = made(catalogue::performer, "{redraw: 10}", /*heads=*/16);
    Tensors all = {directions_of(*performer).clone()};
    const auto x = random_tensors(3, {1, 16, 3, 8}, torch::kFloat);
    Pass pass = training_pass(10);
    performer->forward(x[0], x[1], x[2], pass);
    all.push_back(directions_of(*performer).clone());
    EXPECT_FALSE(all[0].equal(all[1]));
    return all;
  }));
}

TEST(Performer, DrawsAgainInTrainingAloneAndOnceForAllMicroBatches) {
  const auto performer = made(catalogue::performer, "{features: 8, redraw: 10}");
  const auto after = [&](Pass pass) {
    performer->forward(tokens()[0], tokens()[1], tokens()[2], pass);
    return directions_of(*performer).clone();
  };
  const Tensor first = directions_of(*performer).clone();
  EXPECT_TRUE(after(training_pass(9)).equal(first));
  Pass replay = training_pass(10), evaluation = training_pass(10);
  replay.replay = true;
  evaluation.training = false;
  EXPECT_TRUE(after(replay).equal(first));
  EXPECT_TRUE(after(evaluation).equal(first));
  const Tensor second = after(training_pass(10));
  EXPECT_FALSE(second.equal(first));
  EXPECT_TRUE(after(training_pass(10, /*seed=*/2)).equal(second));
  EXPECT_TRUE(after(training_pass(19)).equal(second));
  EXPECT_FALSE(after(training_pass(20)).equal(second));

  const auto never = made(catalogue::performer, "{features: 8, redraw: 0}");
  const Tensor kept = directions_of(*never).clone();
  Pass late = training_pass(1000000);
  never->forward(tokens()[0], tokens()[1], tokens()[2], late);
  EXPECT_TRUE(directions_of(*never).equal(kept));
}

TEST(Performer, GoesOnFromACheckpointWithTheFeaturesItHad) {
  const auto one = made(catalogue::performer, "{features: 8, redraw: 10}"),
             other = made(catalogue::performer, "{features: 8, redraw: 10}");
  const auto step = [&](Attention& performer, uint64_t number) {
    Pass pass = training_pass(number);
    return performer.forward(tokens()[0], tokens()[1], tokens()[2], pass);
  };
  step(*one, 11);
  step(*other, 57);
  {
    const torch::NoGradGuard loading;
    for (const auto& entry : one->named_buffers())
      other->named_buffers()[entry.key()].copy_(entry.value());
  }
  for (const uint64_t number : {12, 25, 26})
    EXPECT_TRUE(step(*one, number).equal(step(*other, number))) << number;
}

TEST(Performer, AReplayDrawsAlikeWhatComesAfterIt) {
  const auto performer = made(catalogue::performer, "{features: 8, redraw: 10}");
  Pass pass = training_pass(10), replay = training_pass(10);
  replay.replay = true;
  performer->forward(tokens()[0], tokens()[1], tokens()[2], pass);
  performer->forward(tokens()[0], tokens()[1], tokens()[2], replay);
  EXPECT_EQ(pass.draw.key(), replay.draw.key());
}

TEST(Performer, EarlierTokensDoNotFeelHugeLaterOnes) {
  const auto performer = made(catalogue::performer, "{features: 32}");
  const auto x = random_tensors(3, {2, 4, 600, 8}, torch::kFloat);
  Tensors huge;
  for (const Tensor& each : x) huge.push_back(each.clone());
  for (Tensor& each : huge) each.slice(2, 500).mul_(9);
  huge[1].slice(2, 590).mul_(30);
  Pass one = pass_of(/*causal=*/true), other = pass_of(/*causal=*/true);
  const Tensor before = performer->forward(x[0], x[1], x[2], one),
               after = performer->forward(huge[0], huge[1], huge[2], other);
  EXPECT_TRUE(after.slice(2, 0, 500).equal(before.slice(2, 0, 500)));
  EXPECT_TRUE(after.isfinite().all().item<bool>());
}

TEST(Performer, PiecesOfAnySizeGiveOneResult) {
  constexpr int64_t kTokens = 700;
  const auto x = random_tensors(3, {2, 4, kTokens, 8}, torch::kFloat);
  for (const Mechanism* row :
       {&catalogue::linear, &catalogue::performer, &catalogue::scatterbrain}) {
    const auto attention = made(*row);
    Pass whole = pass_of(/*causal=*/true);
    const Tensor parallel = attention->forward(x[0], x[1], x[2], whole);
    for (const int64_t size : {1, 64, 129, 300, 699}) {
      Record state;
      Tensors outs;
      for (int64_t from = size == 1 ? 660 : 0, to = 0; to < kTokens; from = to) {
        // One at a time after the first piece.
        const int64_t first = to == 0 ? 0 : from;
        to = std::min(to == 0 && size == 1 ? 660 : first + size, kTokens);
        Pass pass = pass_of(/*causal=*/true);
        pass.state = &state;
        const auto some = [&](const Tensor& y) { return y.slice(2, first, to); };
        outs.push_back(attention->forward(some(x[0]), some(x[1]), some(x[2]), pass));
      }
      EXPECT_TRUE(close(torch::cat(outs, 2), parallel, 2e-4)) << row->name << size;
      EXPECT_EQ(state.tokens, kTokens);
    }
  }
}

TEST(Performer, EveryKernelKeepsTheContract) {
  for (const char* const settings : {"{features: 12, kernel: relu}",
                                     "{features: 12, kernel: cosh, lengths: equal}"}) {
    Mechanism row = catalogue::performer;
    row.test_settings = settings;
    for (const int clause : {1, 2, 5}) {
      const Verdict verdict = contract()[clause].check(row, torch::kCPU);
      EXPECT_EQ(verdict.state, Verdict::State::holds)
          << settings << ": " << verdict.detail;
    }
  }
}

TEST(Performer, LongSequencesOfLowPrecisionStayNearFloat) {
  for (const auto type : {torch::kBFloat16, torch::kHalf}) {
    const auto performer = made(catalogue::performer, "{features: 16}", /*heads=*/1);
    Tensors x = random_tensors(3, {1, 1, 65536, 8}, torch::kFloat);
    for (Tensor& each : x) each = (2 * each).to(type);
    const Record state = expect_near_float(*performer, x);
    EXPECT_EQ(state.get("max").scalar_type(), torch::kFloat);
  }
}

TEST(Performer, RefusesAnOddNumberOfFeaturesInPairs) {
  EXPECT_EQ(refusal([] { made(catalogue::performer, "{features: 5, kernel: cosh}"); }),
            "performer: features must be even where every direction has its opposite, "
            "got 5");
}

}  // namespace
}  // namespace longspan::testing
