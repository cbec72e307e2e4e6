#include "longspan/models/vocabulary.h"

#include <cmath>

#include <gtest/gtest.h>

#include "longspan/attention/mechanism.h"
#include "longspan/base/flops.h"
#include "longspan/base/threads.h"
#include "tests/support/tensors.h"

namespace longspan {
namespace {

using testing::close;
using testing::devices;
using testing::gradients_agree;
using testing::refusal;
using testing::Tensor;
using testing::Tensors;

constexpr int64_t kIds = 23, kWidth = 8;

std::shared_ptr<Vocabulary> made(bool tied, std::vector<int64_t> cutoffs,
                                 torch::Dtype type = torch::kDouble) {
  torch::manual_seed(4);
  auto vocabulary = std::make_shared<Vocabulary>(
      kIds, kWidth,
      VocabularyOptions{
          .predicts = true, .tied = tied, .cutoffs = std::move(cutoffs), .divisor = 2});
  convert(*vocabulary, torch::kCPU, type);
  return vocabulary;
}

Tensor parameter(const Vocabulary& vocabulary, const std::string& name) {
  return *vocabulary.named_parameters().find(name);
}

// 5, 7 and 11 ids.
const std::vector<int64_t> kCutoffs = {5, 12};
constexpr int64_t kEnds[] = {0, 5, 12, kIds};

// The vector of an id as it is read, or as it is foretold.
Tensor vector_of(const Vocabulary& vocabulary, const std::string& side, int64_t id) {
  int64_t band = 0;
  while (id >= kEnds[band + 1]) ++band;
  const std::string number = std::to_string(band);
  return parameter(vocabulary, side + "_projection" + number)
      .mv(parameter(vocabulary, side + number)[id - kEnds[band]]);
}

TEST(Vocabulary, WithCutoffsEqualsItsDefinition) {
  const torch::NoGradGuard without_gradients;
  for (const bool tied : {true, false}) {
    const auto vocabulary = made(tied, kCutoffs);
    EXPECT_EQ(parameter(*vocabulary, "embedding2").sizes(),
              (std::vector<int64_t>{11, 2}));
    const std::string side = tied ? "embedding" : "output";
    const Tensor ids = torch::arange(kIds, torch::kLong);
    const Tensor x = torch::randn({3, kWidth}, torch::kDouble);
    const Tensor embedded = vocabulary->embedded(ids);
    Tensor scores = torch::empty({3, kIds}, torch::kDouble);
    for (int64_t id = 0; id < kIds; ++id) {
      EXPECT_TRUE(close(embedded[id], vector_of(*vocabulary, "embedding", id) *
                                          std::sqrt(static_cast<double>(kWidth))));
      scores.select(1, id).copy_(x.mv(vector_of(*vocabulary, side, id)));
    }
    const Tensor bands = x.mm(parameter(*vocabulary, "bands").t());
    const Tensor head =
        torch::log_softmax(torch::cat({scores.slice(1, 0, 5), bands}, 1), 1);
    const Tensor expected =
        torch::cat({head.slice(1, 0, 5),
                    torch::log_softmax(scores.slice(1, 5, 12), 1) + head.slice(1, 5, 6),
                    torch::log_softmax(scores.slice(1, 12), 1) + head.slice(1, 6)},
                   1);
    const Tensor got = vocabulary->log_probabilities(x);
    EXPECT_TRUE(close(got, expected)) << tied;
    EXPECT_TRUE(close(got.exp().sum(1), torch::ones(3, torch::kDouble)));
  }
}

TEST(Vocabulary, JudgesAsItsProbabilitiesSay) {
  for (const bool tied : {true, false}) {
    for (const auto& cutoffs : {std::vector<int64_t>{}, {5, 12}, {1}}) {
      const auto vocabulary = made(tied, cutoffs);
      // Rare ids are among the likeliest, too.
      Tensor x = torch::randn({200, kWidth}, torch::kDouble) * 3;
      Tensor targets = torch::arange(200, torch::kLong).remainder(kIds + 1) - 1;
      const Tensor log_p = vocabulary->log_probabilities(x).detach();
      const Tensor likeliest = log_p.argmax(1);
      targets = torch::where(torch::arange(200, torch::kLong).remainder(3) == 0,
                             likeliest, targets);
      const auto [loss, right] = vocabulary->judge(x, targets);
      const Tensor asked = targets >= 0;
      EXPECT_TRUE(close(loss, -log_p.gather(1, targets.clamp_min(0).unsqueeze(1))
                                   .squeeze(1)
                                   .masked_fill(asked.logical_not(), 0)));
      EXPECT_TRUE(right.equal((likeliest == targets).logical_and(asked)));
      EXPECT_GT(right.logical_and(targets >= 12).sum().item<int64_t>(), 0);
    }
  }
}

TEST(Vocabulary, HasTheGradientsOfItsLoss) {
  for (const auto& cutoffs : {std::vector<int64_t>{}, kCutoffs}) {
    const auto vocabulary = made(/*tied=*/true, cutoffs);
    const Tensor targets = torch::tensor({3, -1, 20, 6, 0}, torch::kLong);
    Tensors at = {torch::randn({5, kWidth}, torch::kDouble)};
    for (const Tensor& weight : vocabulary->parameters()) at.push_back(weight.detach());
    EXPECT_TRUE(gradients_agree(
        [&](const Tensors& inputs) {
          size_t next = 1;
          for (auto& entry : vocabulary->named_parameters())
            entry.value().set_data(inputs[next++]);
          // As tied weights are in both.
          const Tensor read = vocabulary->embedded(targets.clamp_min(0));
          return Tensors{vocabulary->judge(inputs[0] + read.detach(), targets).first};
        },
        {at[0]}));
    const Tensor x = torch::randn({5, kWidth}, torch::kDouble);
    const auto loss = [&] {
      const Tensor read = vocabulary->embedded(targets.clamp_min(0));
      return vocabulary->judge(x + read, targets).first.sum();
    };
    loss().backward();
    for (auto& entry : vocabulary->named_parameters()) {
      const torch::NoGradGuard moving;
      Tensor& weight = entry.value();
      const Tensor direction = torch::randn_like(weight);
      constexpr double kStep = 1e-6;
      weight.add_(direction, kStep);
      const double up = loss().item<double>();
      weight.sub_(direction, 2 * kStep);
      const double down = loss().item<double>();
      weight.add_(direction, kStep);
      EXPECT_NEAR((up - down) / (2 * kStep),
                  (weight.grad() * direction).sum().item<double>(), 1e-7)
          << entry.key();
    }
  }
}

TEST(Vocabulary, RareIdsCostOnlyWhereTheyAreAsked) {
  torch::manual_seed(4);
  const Vocabulary vocabulary(
      5000, 32, {.predicts = true, .tied = true, .cutoffs = {50}, .divisor = 4});
  const torch::NoGradGuard without_gradients;
  const Tensor x = torch::randn({64, 32}) * 0.01;
  const auto cost = [&](const Tensor& targets) {
    const int64_t before = flops_counted();
    vocabulary.judge(x, targets);
    return flops_counted() - before;
  };
  const Tensor common = torch::full({64}, 7, torch::kLong),
               rare = torch::full({64}, 700, torch::kLong);
  EXPECT_LT(10 * cost(common), cost(rare));
}

TEST(Vocabulary, GivesTheSameBitsOnAnyNumberOfThreads) {
  Tensors first;
  for (const int threads : {1, 2, 3}) {
    const UseThreads use(threads);
    const auto vocabulary = made(/*tied=*/true, kCutoffs, torch::kFloat);
    const Tensor targets = torch::arange(3000, torch::kLong).remainder(kIds);
    const Tensor x = vocabulary->embedded(targets.flip(0));
    Tensors found = {vocabulary->judge(x, targets).first};
    found[0].mean().backward();
    for (const Tensor& weight : vocabulary->parameters())
      found.push_back(weight.grad());
    if (first.empty()) first = found;
    for (size_t i = 0; i < found.size(); ++i)
      EXPECT_TRUE(found[i].equal(first[i])) << i;
  }
}

TEST(Vocabulary, RunsOnEveryDeviceAndInEveryType) {
  for (const torch::Device device : devices()) {
    for (const torch::Dtype type : {torch::kFloat, torch::kDouble, torch::kBFloat16}) {
      const auto vocabulary = made(/*tied=*/true, kCutoffs);
      convert(*vocabulary, device, type);
      const Tensor ids = torch::tensor({1, 2, 13, 6}, torch::kLong).to(device);
      const Tensor x = vocabulary->embedded(ids).to(type);
      const auto [loss, right] = vocabulary->judge(x, ids);
      EXPECT_EQ(loss.scalar_type(), type == torch::kDouble ? type : torch::kFloat);
      loss.sum().backward();
      EXPECT_EQ(vocabulary->log_probabilities(x).sizes(),
                (std::vector<int64_t>{4, kIds}));
    }
  }
}

TEST(Vocabulary, RefusesCutoffsThatDoNotFit) {
  const auto refused = [](std::vector<int64_t> cutoffs, int64_t divisor) {
    return refusal([&] {
      Vocabulary(kIds, kWidth, {.cutoffs = std::move(cutoffs), .divisor = divisor});
    });
  };
  EXPECT_EQ(refused({5, 5}, 2),
            "model.cutoffs must grow from 1 or more and be less than the 23 ids there "
            "are, got 5 after 5");
  EXPECT_EQ(refused({0}, 2),
            "model.cutoffs must grow from 1 or more and be less than the 23 ids there "
            "are, got 0 after 0");
  EXPECT_EQ(refused({23}, 2),
            "model.cutoffs must grow from 1 or more and be less than the 23 ids there "
            "are, got 23 after 23");
  EXPECT_EQ(refused({5, 12}, 4),
            "model.cutoffs: ids from 12 on would be narrower than 1; use fewer cutoffs "
            "or a smaller model.divisor than 4");
}

}  // namespace
}  // namespace longspan
