#include "longspan/train/schedule.h"

#include <cmath>
#include <numbers>

#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

Schedule schedule(const std::string& factors, double rate = 1, int64_t total = 0) {
  return {rate, Value::parse(factors), total};
}

std::string refusal_of(const std::string& factors, int64_t total = 0) {
  return refusal([&] { schedule(factors, 1, total); });
}

TEST(ASchedule, IsThatOfTheLongRangeArena) {
  for (const int64_t warmup : {1000, 8000}) {
    const std::string w = std::to_string(warmup);
    const auto rate = schedule(
        "[constant, {name: warmup, steps: " + w + "}, {name: rsqrt, start: " + w + "}]",
        0.05);
    for (const int64_t step : {0, 1, 500, 999, 1000, 1001, 5000, 8000, 100000}) {
      const auto s = static_cast<double>(step), start = static_cast<double>(warmup);
      EXPECT_DOUBLE_EQ(rate.at(step),
                       0.05 * std::min(1.0, s / start) / std::sqrt(std::max(s, start)))
          << step;
    }
  }
  const auto rate = schedule(
      "[constant, {name: warmup, steps: 1000}, {name: rsqrt, start: 1000}]", 0.05);
  EXPECT_NEAR(rate.at(1000), 1.58e-3, 0.005e-3);
  EXPECT_NEAR(rate.at(5000), 7.1e-4, 0.05e-4);
  EXPECT_EQ(rate.at(0), 0);
}

TEST(ASchedule, IsTheCosineOfTheLongRangeArena) {
  constexpr double kBase = 0.0005, kWarmup = 175, kCycle = 1000;
  const auto rate = schedule(
      "[{name: warmup, steps: 175}, {name: cosine, steps: 1000, start: 175, restart: "
      "true}]",
      kBase);
  for (const int64_t step : {0, 1, 174, 175, 176, 675, 1174, 1175, 1176, 2500, 35000}) {
    const auto s = static_cast<double>(step);
    const double way = std::fmod(std::max(0.0, (s - kWarmup) / kCycle), 1.0);
    EXPECT_NEAR(rate.at(step),
                kBase * std::min(1.0, s / kWarmup) * 0.5 *
                    (1 + std::cos(std::numbers::pi * way)),
                1e-15)
        << step;
  }
}

TEST(ASchedule, HasEveryFactor) {
  struct Case {
    const char* factors;
    int64_t step;
    double rate;
  };
  const double half = std::sqrt(0.5);
  const Case cases[] = {
      {"[]", 5, 1},
      {"[constant]", 5, 1},
      {"[{name: constant}]", 0, 1},
      {"[{name: warmup, steps: 4}]", 0, 0},
      {"[{name: warmup, steps: 4}]", 3, 0.75},
      {"[{name: warmup, steps: 4}]", 9, 1},
      {"[{name: warmup, steps: 4, floor: 0.5}]", 0, 0.5},
      {"[{name: warmup, steps: 4, floor: 0.5}]", 2, 0.75},
      {"[{name: warmup, steps: 4, floor: 0.5}]", 4, 1},
      {"[rsqrt]", 0, 1},
      {"[rsqrt]", 1, 1},
      {"[rsqrt]", 16, 0.25},
      {"[{name: rsqrt, start: 16}]", 3, 0.25},
      {"[{name: rsqrt, floor: 0.1}]", 10000, 0.1},
      {"[{name: rsqrt_scaled, start: 16}]", 0, 1},
      {"[{name: rsqrt_scaled, start: 16}]", 16, 1},
      {"[{name: rsqrt_scaled, start: 16}]", 64, 0.5},
      {"[{name: rsqrt_scaled, start: 16, floor: 0.1}]", 64000, 0.1},
      {"[{name: cosine, steps: 100}]", 0, 1},
      {"[{name: cosine, steps: 100}]", 25, 0.5 + 0.5 * half},
      {"[{name: cosine, steps: 100}]", 50, 0.5},
      {"[{name: cosine, steps: 100}]", 100, 0},
      {"[{name: cosine, steps: 100}]", 150, 0},
      {"[{name: cosine, steps: 100, start: 10, floor: 0.2}]", 5, 1},
      {"[{name: cosine, steps: 100, start: 10, floor: 0.2}]", 60, 0.6},
      {"[{name: cosine, steps: 100, start: 10, floor: 0.2}]", 110, 0.2},
      {"[{name: cosine, steps: 100, start: 10, floor: 0.2}]", 500, 0.2},
      {"[{name: cosine, steps: 100, restart: true}]", 100, 1},
      {"[{name: cosine, steps: 100, restart: true}]", 350, 0.5},
      {"[{name: cosine, steps: 100, restart: true, start: 50}]", 20, 1},
      {"[{name: linear, steps: 100}]", 0, 1},
      {"[{name: linear, steps: 100}]", 25, 0.75},
      {"[{name: linear, steps: 100}]", 101, 0},
      {"[{name: linear, steps: 100, floor: 0.5, start: 100}]", 150, 0.75},
      {"[{name: linear, steps: 100, restart: true}]", 225, 0.75},
      {"[{name: halving, steps: 10}]", 9, 1},
      {"[{name: halving, steps: 10}]", 10, 0.5},
      {"[{name: halving, steps: 10}]", 39, 0.125},
      {"[{name: halving, steps: 10, factor: 0.1}]", 20, 0.01},
      {"[{name: halving, steps: 10, floor: 0.3}]", 1000, 0.3},
      {"[{name: warmup, steps: 4}, {name: linear, steps: 10}]", 2, 0.4},
  };
  for (const auto& [factors, step, rate] : cases)
    EXPECT_NEAR(schedule(factors).at(step), rate, 1e-12) << factors << " at " << step;
  EXPECT_DOUBLE_EQ(schedule("[{name: halving, steps: 10}]", 3).at(10), 1.5);
}

TEST(ASchedule, EndsWithTheTraining) {
  for (const char* const name : {"cosine", "linear"}) {
    const auto whole = schedule("[" + std::string(name) + "]", 1, 200);
    EXPECT_NEAR(whole.at(100), 0.5, 1e-12);
    EXPECT_GT(whole.at(199), 0);
    EXPECT_NEAR(whole.at(200), 0, 1e-12);
    const auto later =
        schedule("[{name: " + std::string(name) + ", start: 100}]", 1, 200);
    EXPECT_EQ(later.at(100), 1);
    EXPECT_NEAR(later.at(150), 0.5, 1e-12);
    EXPECT_NEAR(later.at(200), 0, 1e-12);
    const auto own = schedule("[{name: " + std::string(name) + ", steps: 50}]", 1, 200);
    EXPECT_NEAR(own.at(25), 0.5, 1e-12);
    EXPECT_TRUE(later.ends_with_training());
    EXPECT_FALSE(own.ends_with_training());
  }
}

TEST(ASchedule, RefusesWhatItCannotRead) {
  const std::string form =
      "train.schedule must be a list of factors such as warmup or {name: warmup, "
      "steps: "
      "1000}, got ";
  const std::pair<const char*, std::string> cases[] = {
      {"warmup", form + "warmup"},
      {"{name: warmup}", form + "{name: warmup}"},
      {"[3]", form + "3"},
      {"[{steps: 3}]", form + "{steps: 3}"},
      {"[{name: 3}]", form + "{name: 3}"},
      {"[[]]", form + "[]"},
      {"[cosin]",
       "train.schedule: no factor 'cosin'; did you mean 'cosine'? there are: constant, "
       "warmup, rsqrt, rsqrt_scaled, cosine, linear, halving"},
      {"[{name: warmup, step: 3}]",
       "train.schedule: warmup has no setting 'step'; did you mean 'steps'? there are: "
       "steps, floor"},
      {"[{name: warmup, steps: 0}]",
       "train.schedule: steps of warmup must be a number from 1 to 1e+15, got 0"},
      {"[{name: warmup, steps: many}]",
       "train.schedule: steps of warmup must be a number from 1 to 1e+15, got many"},
      {"[{name: rsqrt, start: -1}]",
       "train.schedule: start of rsqrt must be a number from 0 to 1e+15, got -1"},
      {"[{name: rsqrt, floor: 1.5}]",
       "train.schedule: floor of rsqrt must be a number from 0 to 1, got 1.5"},
      {"[{name: rsqrt, floor: nan}]",
       "train.schedule: floor of rsqrt must be a number from 0 to 1, got nan"},
      {"[{name: halving, steps: 3, factor: 2}]",
       "train.schedule: factor of halving must be a number from 0 to 1, got 2"},
      {"[{name: cosine, steps: 3, restart: 1}]",
       "train.schedule: restart of cosine must be true or false, got 1"},
      {"[warmup]", "train.schedule: warmup needs steps"},
      {"[halving]", "train.schedule: halving needs steps"},
      {"[rsqrt_scaled]", "train.schedule: rsqrt_scaled needs a start"},
      {"[cosine]",
       "train.schedule: cosine needs steps, because the training has no number of "
       "steps"},
  };
  for (const auto& [factors, message] : cases)
    EXPECT_EQ(refusal_of(factors), message) << factors;
  EXPECT_EQ(refusal_of("[{name: linear, start: 100}]", 100),
            "train.schedule: linear begins at step 100, but the training has only 100 "
            "steps; raise train.steps or give linear another start");
  EXPECT_EQ(refusal_of("[{name: linear, start: 100}]", 101), "accepted");
}

}  // namespace
}  // namespace longspan::testing
