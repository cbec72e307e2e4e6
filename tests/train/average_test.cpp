#include "longspan/train/average.h"

#include "longspan/base/threads.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

// Parameters at a step of an imagined training.
NamedParameters at_step(uint64_t step, torch::Dtype dtype = torch::kDouble) {
  return {{"a", random_tensors(1, {3, 5}, dtype, 2 * step)[0].requires_grad_()},
          {"b", random_tensors(1, {7}, dtype, 2 * step + 1)[0].requires_grad_()}};
}

void show(WeightAverage& average, const NamedParameters& parameters) {
  average.after_step(parameters);
  average.note(parameters);
}

TEST(AWeightAverage, DecaysExponentially) {
  constexpr double kDecay = 0.9;
  WeightAverage average(Averaging::ema, kDecay, 3);
  Tensors expected;
  for (uint64_t step = 0; step < 6; ++step) {
    const auto parameters = at_step(step);
    show(average, parameters);
    for (size_t i = 0; i < 2; ++i) {
      const Tensor now = parameters[i].second.detach();
      if (step == 0)
        expected.push_back(now);
      else
        expected[i] = kDecay * expected[i] + (1 - kDecay) * now;
      EXPECT_TRUE(close(average.weights().at(i), expected[i], 1e-14)) << step;
    }
  }
}

TEST(AWeightAverage, IsTheMeanOfTheLastNotes) {
  constexpr int64_t kNotes = 3;
  WeightAverage average(Averaging::last, 0.9, kNotes);
  for (uint64_t step = 0; step < 7; ++step) {
    show(average, at_step(step));
    const uint64_t first = step < kNotes ? 0 : step + 1 - kNotes;
    for (size_t i = 0; i < 2; ++i) {
      Tensors noted;
      for (uint64_t s = first; s <= step; ++s)
        noted.push_back(at_step(s)[i].second.detach());
      EXPECT_TRUE(close(average.weights().at(i), torch::stack(noted).mean(0), 1e-14))
          << step;
    }
  }
}

TEST(AWeightAverage, IsEmptyBeforeAnythingCame) {
  for (const auto kind : {Averaging::none, Averaging::ema, Averaging::last}) {
    const WeightAverage average(kind, 0.9, 3);
    EXPECT_TRUE(average.weights().empty());
    EXPECT_TRUE(average.saved(at_step(0)).empty());
  }
  WeightAverage none(Averaging::none, 0.9, 3);
  show(none, at_step(0));
  EXPECT_TRUE(none.weights().empty());
  WeightAverage noted(Averaging::ema, 0.9, 3);
  noted.note(at_step(0));
  EXPECT_TRUE(noted.weights().empty());
  WeightAverage stepped(Averaging::last, 0.9, 3);
  stepped.after_step(at_step(0));
  EXPECT_TRUE(stepped.weights().empty());
}

TEST(AWeightAverage, IsNoViewOfTheParameters) {
  for (const auto kind : {Averaging::ema, Averaging::last}) {
    WeightAverage average(kind, 0.9, 3);
    const auto parameters = at_step(0);
    show(average, parameters);
    {
      const torch::NoGradGuard without_gradients;
      for (const auto& [name, parameter] : parameters) parameter.zero_();
      for (auto& weight : average.weights()) weight.zero_();
    }
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(torch::equal(average.weights().at(i), at_step(0)[i].second.detach()));
      EXPECT_FALSE(average.weights().at(i).requires_grad());
    }
  }
}

TEST(AWeightAverage, TakesOtherStrides) {
  for (const auto kind : {Averaging::ema, Averaging::last}) {
    WeightAverage average(kind, 0.75, 2), turned(kind, 0.75, 2);
    for (uint64_t step = 0; step < 3; ++step) {
      const Tensor x = random_tensors(1, {4, 6}, torch::kDouble, step)[0];
      show(average, {{"x", x}});
      show(turned, {{"x", x.t().contiguous().t()}});
    }
    EXPECT_TRUE(torch::equal(turned.weights().at(0), average.weights().at(0)));
  }
}

TEST(AWeightAverage, HasTheSameBitsForAnyNumberOfThreads) {
  for (const auto kind : {Averaging::ema, Averaging::last}) {
    const auto run = [&](int threads) {
      const UseThreads using_threads(threads);
      WeightAverage average(kind, 0.99, 3);
      for (uint64_t step = 0; step < 5; ++step)
        show(average, {{"x", random_tensors(1, {100003}, torch::kFloat, step)[0]}});
      return average.weights().at(0);
    };
    const Tensor one = run(1);
    for (const int threads : {2, 3, 5}) EXPECT_TRUE(torch::equal(run(threads), one));
  }
}

TEST(AWeightAverage, GoesOnFromWhatItSaved) {
  for (const auto kind : {Averaging::ema, Averaging::last}) {
    WeightAverage average(kind, 0.9, 3), other(kind, 0.9, 3);
    show(other, at_step(50, torch::kFloat));  // to be forgotten
    for (uint64_t step = 0; step < 9; ++step) {
      const auto parameters = at_step(step, torch::kFloat);
      show(average, parameters);
      if (step > 4) show(other, parameters);
      if (step == 4) {
        NamedTensors saved;
        for (const auto& [name, tensor] : average.saved(parameters))
          saved[name] = tensor.clone();
        EXPECT_EQ(saved.size(), kind == Averaging::ema ? 2u : 6u);
        other.load(saved, parameters);
      }
      if (step < 4) continue;
      for (size_t i = 0; i < 2; ++i)
        EXPECT_TRUE(torch::equal(other.weights().at(i), average.weights().at(i)))
            << step;
    }
  }
}

TEST(AWeightAverage, LeavesWhatItWasLoadedFrom) {
  WeightAverage average(Averaging::ema, 0.5, 1);
  NamedTensors saved = {{"average0.a", torch::ones({3, 5}, torch::kDouble)},
                        {"average0.b", torch::ones(7, torch::kDouble)}};
  average.load(saved, at_step(0));
  show(average, at_step(0));
  EXPECT_TRUE(torch::equal(saved["average0.b"], torch::ones(7, torch::kDouble)));
}

TEST(AWeightAverage, KeepsNoMoreNotesThanItsOwn) {
  WeightAverage many(Averaging::last, 0.9, 5), few(Averaging::last, 0.9, 2);
  for (uint64_t step = 0; step < 5; ++step) show(many, at_step(step));
  few.load(many.saved(at_step(0)), at_step(0));
  show(few, at_step(5));
  const Tensor expected =
      (at_step(4)[0].second.detach() + at_step(5)[0].second.detach()) / 2;
  EXPECT_TRUE(close(few.weights().at(0), expected, 1e-14));
}

TEST(AWeightAverage, LoadsNothingWhereNothingWasSaved) {
  for (const auto kind : {Averaging::none, Averaging::ema, Averaging::last}) {
    WeightAverage average(kind, 0.9, 3);
    show(average, at_step(0));
    average.load({{"first.a", torch::ones(1)}}, at_step(0));
    EXPECT_TRUE(average.weights().empty());
  }
}

TEST(AWeightAverage, RefusesOtherWeights) {
  WeightAverage average(Averaging::ema, 0.9, 3);
  show(average, at_step(0));
  NamedTensors lacking = average.saved(at_step(0)), shaped = lacking;
  lacking.erase("average0.b");
  shaped["average0.b"] = torch::ones(6, torch::kDouble);
  for (const auto& saved : {lacking, shaped})
    EXPECT_EQ(refusal([&] { average.load(saved, at_step(0)); }),
              "the averaged weights lack b or have it in another shape");
}

}  // namespace
}  // namespace longspan::testing
