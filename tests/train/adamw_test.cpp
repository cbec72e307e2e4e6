#include "longspan/train/adamw.h"

#include <cmath>

#include "longspan/base/threads.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

using Parameters = std::vector<std::pair<std::string, Tensor>>;

Parameters parameters(torch::Dtype dtype = torch::kDouble) {
  const auto make = [&](at::IntArrayRef sizes, uint64_t seed) {
    return random_tensors(1, sizes, dtype, seed)[0].requires_grad_();
  };
  return {{"embed.weight", make({7, 5}, 1)},
          {"norm.weight", make({11}, 2)},
          {"out.weight", make({3, 4, 2}, 3)},
          {"out.bias", make({3}, 4)}};
}

Parameters moved(const Parameters& all, torch::Device device) {
  Parameters there;
  for (const auto& [name, parameter] : all)
    there.emplace_back(name, parameter.detach().to(device).requires_grad_());
  return there;
}

void set_gradients(const Parameters& all, uint64_t step) {
  for (size_t i = 0; i < all.size(); ++i) {
    const Tensor& parameter = all[i].second;
    parameter.mutable_grad() =
        random_tensors(1, parameter.sizes(), parameter.scalar_type(), 100 * step + i)[0]
            .to(parameter.device());
  }
}

Value::Map group(const std::string& match, const std::string& key, double value) {
  return {{"match", match}, {key, value}};
}

// What the header says, number by number.
class Naive {
 public:
  Naive(const Tensor& parameter, double decay, double rate, const AdamWOptions& options)
      : p_(numbers(parameter)),
        m_(p_.size()),
        v_(p_.size()),
        decay_(decay),
        rate_(rate),
        options_(options) {}

  void step(const Tensor& gradient, double rate, double scale, int t) {
    const auto g = numbers(gradient);
    const auto& [beta1, beta2, epsilon, decay, vectors, groups] = options_;
    for (size_t i = 0; i < p_.size(); ++i) {
      m_[i] = beta1 * m_[i] + (1 - beta1) * scale * g[i];
      v_[i] = beta2 * v_[i] + (1 - beta2) * scale * g[i] * scale * g[i];
      const double first = m_[i] / (1 - std::pow(beta1, t));
      const double second = v_[i] / (1 - std::pow(beta2, t));
      p_[i] -= rate * rate_ * (first / (std::sqrt(second) + epsilon) + decay_ * p_[i]);
    }
  }

  Tensor parameter(at::IntArrayRef sizes) const {
    return torch::tensor(p_, torch::kDouble).view(sizes);
  }

 private:
  static std::vector<double> numbers(const Tensor& tensor) {
    const auto flat = tensor.detach().to(torch::kDouble).contiguous().view(-1);
    return {flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel()};
  }

  std::vector<double> p_, m_, v_;
  double decay_, rate_;
  AdamWOptions options_;
};

// Five steps beside the naive ones, of which each parameter has its decay and rate.
void compare(const AdamWOptions& options, const std::vector<double>& decays,
             const std::vector<double>& rates, double scale = 1,
             torch::Dtype dtype = torch::kDouble, double tolerance = 1e-12) {
  const auto all = parameters(dtype);
  std::vector<Naive> naive;
  for (size_t i = 0; i < all.size(); ++i)
    naive.emplace_back(all[i].second, decays[i], rates[i], options);
  AdamW optimizer(all, options);
  for (int t = 1; t <= 5; ++t) {
    const double rate = 0.01 * t;
    set_gradients(all, static_cast<uint64_t>(t));
    optimizer.step(rate, scale);
    EXPECT_EQ(optimizer.steps(), t);
    for (size_t i = 0; i < all.size(); ++i) {
      const auto& [name, parameter] = all[i];
      naive[i].step(parameter.grad(), rate, scale, t);
      EXPECT_TRUE(close(parameter, naive[i].parameter(parameter.sizes()), tolerance))
          << name << ", step " << t;
    }
  }
}

TEST(AdamW, IsWhatItsHeaderSays) {
  compare({}, {0, 0, 0, 0}, {1, 1, 1, 1});
  compare({.beta1 = 0.5, .beta2 = 0.75, .epsilon = 0.1}, {0, 0, 0, 0}, {1, 1, 1, 1});
  compare({.beta1 = 0, .beta2 = 0}, {0, 0, 0, 0}, {1, 1, 1, 1});
  compare({}, {0, 0, 0, 0}, {1, 1, 1, 1}, 1, torch::kFloat, 1e-5);
}

TEST(AdamW, DecaysMatricesAndIfAskedVectors) {
  compare({.weight_decay = 0.3}, {0.3, 0, 0.3, 0}, {1, 1, 1, 1});
  compare({.weight_decay = 0.3, .decay_vectors = true}, {0.3, 0.3, 0.3, 0.3},
          {1, 1, 1, 1});
}

TEST(AdamW, MakesExceptionsOfGroups) {
  compare({.weight_decay = 0.3,
           .groups = Value::List{group("out.*", "weight_decay", 0.1),
                                 group("*.weight", "rate", 0.5),
                                 group("out.weight", "weight_decay", 0),
                                 group("embed.weight", "rate", 0)}},
          {0.3, 0, 0, 0.1}, {0, 0.5, 0.5, 1});
}

TEST(AdamW, ScalesGradients) {
  compare({.epsilon = 0.01, .weight_decay = 0.3}, {0.3, 0, 0.3, 0}, {1, 1, 1, 1},
          0.125);
}

TEST(AdamW, LeavesParametersWithoutGradients) {
  const AdamWOptions options{.weight_decay = 0.5};
  const auto all = parameters();
  const Tensor still = all[0].second, seldom = all[2].second;
  const Tensor before = still.detach().clone();
  Naive naive(seldom, 0.5, 1, options);
  AdamW optimizer(all, options);
  for (int t = 1; t <= 4; ++t) {
    set_gradients(all, static_cast<uint64_t>(t));
    still.mutable_grad() = Tensor();
    if (t % 2 == 1) seldom.mutable_grad() = Tensor();
    if (t % 2 == 0) naive.step(seldom.grad(), 0.1, 1, t);
    optimizer.step(0.1);
    EXPECT_TRUE(torch::equal(still.detach(), before));
    EXPECT_TRUE(close(seldom, naive.parameter(seldom.sizes()), 1e-12)) << t;
  }
}

TEST(AdamW, TakesOtherStrides) {
  const AdamWOptions options{.weight_decay = 0.1};
  const auto values = random_tensors(2, {6, 4});
  const auto run = [&](const Tensor& parameter, const Tensor& gradient) {
    parameter.requires_grad_();
    AdamW optimizer({{"a", parameter}}, options);
    for (int step = 0; step < 3; ++step) {
      parameter.mutable_grad() = gradient;
      optimizer.step(0.1);
    }
    return parameter.detach();
  };
  const auto turned = [](const Tensor& x) { return x.t().contiguous().t(); };
  const Tensor expected = run(values[0].clone(), values[1]);
  EXPECT_TRUE(torch::equal(run(values[0].clone(), turned(values[1])), expected));
  EXPECT_TRUE(close(run(turned(values[0]), values[1]), expected, 1e-14));
  EXPECT_TRUE(close(run(turned(values[0]), turned(values[1])), expected, 1e-14));
}

TEST(AdamW, HasTheSameBitsForAnyNumberOfThreads) {
  for (const auto dtype : {torch::kFloat, torch::kDouble}) {
    const auto run = [&](int threads) {
      const UseThreads using_threads(threads);
      Parameters all;
      for (const int64_t size : {1, 16383, 16385, 100003})
        all.emplace_back("of " + std::to_string(size),
                         random_tensors(1, {size}, dtype)[0].requires_grad_());
      AdamW optimizer(all, {.weight_decay = 0.1, .decay_vectors = true});
      for (uint64_t step = 0; step < 3; ++step) {
        set_gradients(all, step);
        optimizer.step(0.01, 0.3);
      }
      Tensors results;
      for (const auto& [name, parameter] : all) results.push_back(parameter.detach());
      for (const auto& [name, moment] : optimizer.saved()) results.push_back(moment);
      return torch::cat(results);
    };
    const Tensor one = run(1);
    for (const int threads : {2, 3, 5})
      EXPECT_TRUE(torch::equal(run(threads), one)) << threads;
  }
}

TEST(AdamW, GoesOnFromWhatItSaved) {
  const AdamWOptions options{.weight_decay = 0.1};
  const auto all = parameters(torch::kFloat), others = parameters(torch::kFloat);
  AdamW optimizer(all, options), other(others, options);
  NamedTensors saved;
  for (uint64_t step = 0; step < 6; ++step) {
    if (step == 3) {
      for (const auto& [name, tensor] : optimizer.saved()) saved[name] = tensor.clone();
      const torch::NoGradGuard without_gradients;
      for (size_t i = 0; i < all.size(); ++i) others[i].second.copy_(all[i].second);
      other.load(saved, optimizer.steps());
      EXPECT_EQ(other.steps(), 3);
    }
    set_gradients(all, step);
    optimizer.step(0.01);
    if (step < 3) continue;
    set_gradients(others, step);
    other.step(0.01);
    for (size_t i = 0; i < all.size(); ++i)
      EXPECT_TRUE(torch::equal(others[i].second, all[i].second)) << step;
  }
  EXPECT_EQ(saved.size(), 8u);
  EXPECT_TRUE(saved.contains("first.norm.weight"));
  EXPECT_TRUE(saved.contains("second.out.bias"));
}

TEST(AdamW, UpdatesFloatsBesideParametersInBfloat16) {
  const AdamWOptions options{.weight_decay = 0.1};
  for (const auto device : devices()) {
    const auto short_ones = moved(parameters(torch::kBFloat16), device);
    Parameters floats;
    for (const auto& [name, parameter] : short_ones)
      floats.emplace_back(name, parameter.detach().to(torch::kFloat).requires_grad_());
    AdamW optimizer(short_ones, options), expected(floats, options);
    for (uint64_t step = 0; step < 4; ++step) {
      set_gradients(short_ones, step);
      for (size_t i = 0; i < floats.size(); ++i)
        floats[i].second.mutable_grad() = short_ones[i].second.grad().to(torch::kFloat);
      EXPECT_TRUE(
          torch::equal(optimizer.gradient_square(), expected.gradient_square()));
      optimizer.step(1e-4, 0.5);
      expected.step(1e-4, 0.5);
      for (size_t i = 0; i < floats.size(); ++i) {
        const auto& [name, weight] = optimizer.weights()[i];
        EXPECT_EQ(name, floats[i].first);
        EXPECT_TRUE(torch::equal(weight, floats[i].second)) << name << step;
        EXPECT_TRUE(torch::equal(short_ones[i].second, weight.to(torch::kBFloat16)))
            << name << step;
      }
    }
    EXPECT_EQ(optimizer.saved().at("first.out.bias").scalar_type(), torch::kFloat);
  }
}

TEST(AdamW, AddsUpGradientsInFloat) {
  for (const auto device : devices()) {
    const Tensor parameter =
        torch::zeros({5}, torch::TensorOptions(device).dtype(torch::kBFloat16))
            .requires_grad_();
    AdamW optimizer({{"a", parameter}}, {});
    const auto give = [&](double value) {
      parameter.mutable_grad() = torch::full_like(parameter.detach(), value);
      optimizer.collect_gradients();
      EXPECT_FALSE(parameter.grad().defined());
    };
    give(1);
    for (int i = 0; i < 4; ++i) give(0x1p-10);  // each less than 1 can hold
    EXPECT_DOUBLE_EQ(optimizer.gradient_square().item<double>(),
                     5 * std::pow(1 + 4 * 0x1p-10, 2));
    optimizer.clear_gradients();
    EXPECT_FALSE(optimizer.gradient_square().defined());
  }
}

TEST(AdamW, FollowsAModuleThatChangesItsParameters) {
  const Tensor parameter =
      torch::tensor({0.25, 1.5, -2.0}, torch::kBFloat16).requires_grad_();
  AdamW optimizer({{"a", parameter}}, {});
  const torch::NoGradGuard without_gradients;
  Tensor weight = optimizer.weights()[0].second;
  weight += 0x1p-12;  // too little to be seen in the parameter
  optimizer.round_weights();
  parameter.clamp_(0, 1);
  parameter.mutable_grad() = torch::zeros_like(parameter);
  optimizer.step(0.1);
  EXPECT_TRUE(torch::equal(weight, torch::tensor({0.25 + 0x1p-12, 1.0, 0.0})));
}

// More tensors than one launch takes, of all sizes, some beginning at odd places.
TEST(AdamW, HasTheSameBitsOnEveryDevice) {
  for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
    const auto run = [&](torch::Device device) {
      Parameters all;
      for (int64_t i = 0; i < 150; ++i) {
        const int64_t size = i < 140 ? 1 + i * 37 % 101 : 4000 + i;
        const Tensor values = random_tensors(1, {size + i % 3}, dtype, i)[0].to(device);
        all.emplace_back("of " + std::to_string(i),
                         values.slice(0, i % 3).detach().requires_grad_());
      }
      AdamW optimizer(all, {.weight_decay = 0.1, .decay_vectors = true});
      for (uint64_t step = 0; step < 3; ++step) {
        set_gradients(all, step);
        optimizer.step(0.01, 0.3);
      }
      Tensors results;
      for (const auto& [name, weight] : optimizer.weights())
        results.push_back(weight.detach());
      for (const auto& [name, parameter] : all)
        results.push_back(parameter.detach().to(torch::kFloat));
      for (const auto& [name, moment] : optimizer.saved()) results.push_back(moment);
      return torch::cat(results).cpu();
    };
    const Tensor expected = run(torch::kCPU);
    for (const auto device : devices())
      EXPECT_TRUE(torch::equal(run(device), expected)) << device << dtype;
  }
}

TEST(AdamW, SumsTheSquaresOfGradients) {
  for (const auto device : devices()) {
    Parameters all;
    double expected = 0;
    for (int64_t i = 0; i < 200; ++i) {
      const int64_t size = i < 190 ? 1 + i % 7 : 5000 + i;
      const Tensor values = random_tensors(1, {size}, torch::kFloat, i)[0];
      all.emplace_back("of " + std::to_string(i), values.to(device).requires_grad_());
      all.back().second.mutable_grad() = values.to(device);
      expected += values.to(torch::kDouble).square().sum().item<double>();
    }
    AdamW optimizer(all, {});
    const Tensor square = optimizer.gradient_square();
    EXPECT_EQ(square.dim(), 0);
    EXPECT_NEAR(square.item<double>() / expected, 1, 1e-6);
    EXPECT_TRUE(torch::equal(square, optimizer.gradient_square()));
  }
}

TEST(AdamW, RefusesAnotherState) {
  const auto all = parameters();
  AdamW optimizer(all, {});
  const NamedTensors saved = optimizer.saved();
  NamedTensors lacking = saved;
  lacking.erase("second.out.bias");
  EXPECT_EQ(refusal([&] { optimizer.load(lacking, 1); }),
            "the optimizer's state lacks second.out.bias");
  NamedTensors shaped = saved;
  shaped["first.out.bias"] = torch::zeros({4});
  EXPECT_EQ(refusal([&] { optimizer.load(shaped, 1); }),
            "the optimizer's first.out.bias must be [3], got [4]");
  EXPECT_EQ(optimizer.steps(), 0);
}

TEST(AdamW, RefusesWrongGroups) {
  const std::pair<const char*, const char*> cases[] = {
      {"none",
       "train.groups must be a list of {match: .., weight_decay: .., rate: ..}, got "
       "none"},
      {"[a]",
       "train.groups: a group must be {match: .., weight_decay: .., rate: ..}, got a"},
      {"[{rate: 1}]",
       "train.groups: a group must be {match: .., weight_decay: .., rate: ..}, got "
       "{rate: 1}"},
      {"[{match: 3}]",
       "train.groups: a group must be {match: .., weight_decay: .., rate: ..}, got "
       "{match: 3}"},
      {"[{match: '*', decay: 1}]",
       "train.groups: no key 'decay'; there are: match, weight_decay, rate"},
      {"[{match: '*', rates: 1}]",
       "train.groups: no key 'rates'; did you mean 'rate'? there are: match, "
       "weight_decay, rate"},
      {"[{match: '*', rate: -1}]",
       "train.groups: rate must be a number of 0 or more, got -1"},
      {"[{match: '*', weight_decay: much}]",
       "train.groups: weight_decay must be a number of 0 or more, got much"},
      {"[{match: 'head*', rate: 1}]",
       "train.groups: no parameter is called like 'head*'"},
      {"[{match: '*bias', rate: 1}]", "accepted"},
  };
  for (const auto& [groups, message] : cases)
    EXPECT_EQ(refusal([&] { AdamW(parameters(), {.groups = Value::parse(groups)}); }),
              message);
}

TEST(AdamW, RefusesOtherTypes) {
  EXPECT_EQ(refusal([] { AdamW(parameters(torch::kHalf), {}); }),
            "AdamW: parameters must be float, double or bfloat16, but embed.weight is "
            "Half");
}

TEST(AName, FitsAPattern) {
  const std::tuple<const char*, const char*, bool> cases[] = {
      {"", "", true},
      {"a", "", false},
      {"", "a", false},
      {"", "*", true},
      {"", "**", true},
      {"a.weight", "a.weight", true},
      {"a.weight", "a.weigh", false},
      {"a.weight", "a.weights", false},
      {"a.weight", "*", true},
      {"a.weight", "*weight", true},
      {"a.weight", "*weigh", false},
      {"a.weight", "a*", true},
      {"a.weight", "b*", false},
      {"a.weight", "*.*", true},
      {"a.weight", "*norm*", false},
      {"layers.0.norm.bias", "*norm*", true},
      {"layers.0.norm.bias", "layers.*.bias", true},
      {"layers.0.norm.bias", "layers.*.weight", false},
      {"aaa", "a*a*a", true},
      {"aa", "a*a*a", false},
      {"a.b", "a?b", false},
      {"abab", "*ab", true},
  };
  for (const auto& [name, pattern, expected] : cases)
    EXPECT_EQ(fits(name, pattern), expected) << name << " " << pattern;
}

}  // namespace
}  // namespace longspan::testing
