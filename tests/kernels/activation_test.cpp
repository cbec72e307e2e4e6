#include "longspan/kernels/activation.h"

#include <bit>
#include <cmath>
#include <limits>
#include <optional>

#include "longspan/base/threads.h"
#include "longspan/kernels/cpu/activation.h"
#include "longspan/kernels/cpu/isa.h"
#include "tests/support/any_threads.h"
#include "tests/support/each_isa.h"
#include "tests/support/tensors.h"

#define LONGSPAN_ISA in_tests
#include "longspan/kernels/cpu/vec_math.h"

namespace longspan::testing {
namespace {

constexpr Activation kAll[] = {Activation::gelu, Activation::gelu_tanh,
                               Activation::relu};
constexpr int64_t kWidths[] = {1, 7, 63, 64, 65, 1000};
constexpr int64_t kFence = 64;  // numbers before and after a result

const char* name_of(Activation activation) {
  switch (activation) {
    case Activation::gelu: return "gelu";
    case Activation::gelu_tanh: return "gelu_tanh";
    case Activation::relu: break;
  }
  return "relu";
}

using Way = Tensor(const Tensor&, const Tensor&, Activation);

// y and the gradients of x and, where there is one, the bias.
Tensors results(Way* way, Activation activation, const Tensor& x, const Tensor& bias,
                const Tensor& slope, torch::Dtype dtype) {
  const auto leaf = [&](const Tensor& at) {
    return at.to(dtype, /*non_blocking=*/false, /*copy=*/true).requires_grad_();
  };
  Tensors inputs = {leaf(x)};
  if (bias.defined()) inputs.push_back(leaf(bias));
  const auto y = way(inputs[0], bias.defined() ? inputs[1] : Tensor(), activation);
  Tensors all = torch::autograd::grad({y}, inputs, {slope.to(dtype)});
  all.insert(all.begin(), y.detach());
  return all;
}

// x [rows, width], a bias, and a slope for y.
Tensors inputs_of(int64_t rows, int64_t width, torch::Dtype dtype = torch::kFloat) {
  const Tensors all = random_tensors(2, {rows, width}, dtype);
  return {all[0] * 2, random_tensors(1, {width}, dtype, /*seed=*/1)[0], all[1]};
}

// about_as_exact() for results of any size: single roundings of large ones are luck.
::testing::AssertionResult as_exact_for_its_size(const Tensor& got, const Tensor& usual,
                                                 const Tensor& exact) {
  const double size = std::max(1.0, exact.abs().max().item<double>());
  return about_as_exact(got / size, usual / size, exact / size);
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return torch::equal(a.contiguous().view(torch::kInt),
                      b.contiguous().view(torch::kInt));
}

TEST(Exp, IsWithinTwoUnitsInTheLastPlace) {
  constexpr int kLanes = cpu::in_tests::kLanes;
  constexpr uint64_t kEnd = uint64_t{1} << 32, kStep = 1009;
  constexpr double kLowest = -86.9f;
  for (uint64_t at = 0; at < kEnd; at += kStep) {
    const auto x = std::bit_cast<float>(static_cast<uint32_t>(at));
    const float got = cpu::in_tests::exp(cpu::in_tests::broadcast(x))[at % kLanes];
    const double exact = std::exp(static_cast<double>(x));
    if (std::isnan(x)) {
      ASSERT_TRUE(std::isnan(got)) << at;
    } else if (x < kLowest) {
      ASSERT_EQ(got, 0) << x;
    } else if (std::isinf(static_cast<float>(exact))) {
      ASSERT_EQ(got, INFINITY) << x;
    } else {
      const auto rounded = static_cast<float>(exact);
      const double unit = static_cast<double>(std::nextafter(rounded, 0.0f)) - rounded;
      ASSERT_LE(std::abs(got - exact), 2 * std::abs(unit)) << x;
    }
  }
}

TEST(Exp, HasItsLimits) {
  const auto exp_of = [](float x) {
    return cpu::in_tests::exp(cpu::in_tests::broadcast(x))[0];
  };
  constexpr float kMost = std::numeric_limits<float>::max();
  EXPECT_EQ(exp_of(0), 1);
  EXPECT_EQ(exp_of(-0.0f), 1);
  for (const float x : {-INFINITY, -kMost, -1e9f, -88.0f}) EXPECT_EQ(exp_of(x), 0) << x;
  for (const float x : {INFINITY, kMost, 1e9f, 88.75f})
    EXPECT_EQ(exp_of(x), INFINITY) << x;
  EXPECT_TRUE(std::isfinite(exp_of(88.72283f)));
  EXPECT_TRUE(std::isnan(exp_of(NAN)));
}

class Activations : public testing::EachIsa {};

TEST_P(Activations, AreAsExactAsPlainOperations) {
  constexpr int64_t kEnough = 64;  // numbers; of fewer, the largest error is luck
  for (const auto activation : kAll)
    for (const int64_t width : kWidths)
      for (const int64_t rows : {1, 3, 65, 300})
        for (const bool with_bias : {false, true}) {
          const auto in = inputs_of(rows, width);
          const auto bias = with_bias ? in[1] : Tensor();
          const auto run = [&](Way* way, torch::Dtype dtype) {
            return results(way, activation, in[0], bias, in[2], dtype);
          };
          const auto got = run(activate, torch::kFloat);
          const auto usual = run(activate_reference, torch::kFloat);
          const auto exact = run(activate_reference, torch::kDouble);
          for (size_t i = 0; i < got.size(); ++i)
            EXPECT_TRUE(exact[i].numel() < kEnough
                            ? close(got[i], exact[i], 1e-6)
                            : as_exact_for_its_size(got[i], usual[i], exact[i]))
                << "result " << i << " of " << rows << " rows of " << width << ", "
                << name_of(activation) << (with_bias ? " with bias" : "");
        }
}

// Random numbers leave gaps.
TEST_P(Activations, AreAsExactAsPlainOperationsEverywhere) {
  const auto x = torch::arange(-15, 15, 1e-4, torch::kDouble).to(torch::kFloat);
  const auto slope = torch::ones_like(x);
  for (const auto activation : kAll) {
    const auto run = [&](Way* way, torch::Dtype dtype) {
      return results(way, activation, x, {}, slope, dtype);
    };
    const auto got = run(activate, torch::kFloat);
    const auto usual = run(activate_reference, torch::kFloat);
    const auto exact = run(activate_reference, torch::kDouble);
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_TRUE(as_exact_for_its_size(got[i], usual[i], exact[i]))
          << "result " << i << " of " << name_of(activation);
  }
}

TEST_P(Activations, AreTheSameForAnyNumberOfThreads) {
  for (const auto activation : kAll)
    for (const auto dtype :
         {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf})
      for (const bool with_bias : {false, true}) {
        const auto in = inputs_of(2100, 67, dtype);
        const auto run = [&](int count) {
          const UseThreads threads(count);
          return results(activate, activation, in[0], with_bias ? in[1] : Tensor(),
                         in[2], dtype);
        };
        const auto one = run(1);
        for (const int count : {2, 3, 5}) {
          const auto many = run(count);
          for (size_t i = 0; i < one.size(); ++i)
            EXPECT_TRUE(torch::equal(one[i], many[i]))
                << "result " << i << " with " << count << " threads in " << dtype
                << ", " << name_of(activation);
        }
      }
}

TEST_P(Activations, DoNotDependOnThePlaceOfAnElement) {
  constexpr int64_t kNumbers = 4200;
  const auto x = random_tensors(1, {kNumbers}, torch::kFloat)[0] * 3;
  const auto slope = random_tensors(1, {kNumbers}, torch::kFloat, /*seed=*/1)[0];
  for (const auto activation : kAll) {
    const auto whole = results(activate, activation, x, {}, slope, torch::kFloat);
    for (const int64_t width : {1, 3, 7, 15, 21, 100})
      for (const auto& bias : {Tensor(), torch::zeros({width})}) {
        const auto rows = results(activate, activation, x.view({-1, width}), bias,
                                  slope.view({-1, width}), torch::kFloat);
        for (size_t i = 0; i < 2; ++i)
          EXPECT_TRUE(same_bits(rows[i].flatten(), whole[i]))
              << "result " << i << " in rows of " << width << ", "
              << name_of(activation);
      }
  }
}

TEST_P(Activations, HaveTheirLimits) {
  constexpr float kMost = std::numeric_limits<float>::max();
  const Tensor low = torch::tensor({-14.5f, -100.0f, -1e4f, -1e15f, -1e30f, -kMost});
  const Tensor none = torch::zeros_like(low), all = torch::ones_like(low);
  for (const auto activation : kAll) {
    SCOPED_TRACE(name_of(activation));
    const auto below = results(activate, activation, low, {}, all, torch::kFloat);
    const auto above = results(activate, activation, -low, {}, all, torch::kFloat);
    EXPECT_TRUE(torch::equal(below[0], none)) << below[0];
    EXPECT_TRUE(torch::equal(below[1], none)) << below[1];
    EXPECT_TRUE(torch::equal(above[0], -low)) << above[0];
    EXPECT_TRUE(torch::equal(above[1], all)) << above[1];
  }
}

TEST_P(Activations, AgreeOnWhatIsNoNumber) {
  const Tensor x = torch::tensor({-INFINITY, NAN, -0.0f, 0.0f, -1e4f, 1e4f});
  for (const auto activation : kAll) {
    // LibTorch 2 makes it NaN.
    const Tensor largest = activate(torch::tensor({INFINITY}), {}, activation);
    EXPECT_EQ(largest.item<float>(), INFINITY) << name_of(activation);
    const auto got = activate(x, {}, activation);
    const auto expected = activate_reference(x, {}, activation);
    EXPECT_TRUE(torch::allclose(got, expected, 0, 0, /*equal_nan=*/true))
        << name_of(activation) << ": " << got << expected;
    const auto gradient =
        results(activate, activation, x, {}, torch::ones_like(x), torch::kFloat)[1];
    const auto expected_gradient = results(activate_reference, activation, x, {},
                                           torch::ones_like(x), torch::kFloat)[1];
    EXPECT_TRUE(torch::allclose(gradient, expected_gradient, 0, 3e-7,
                                /*equal_nan=*/true))
        << name_of(activation) << ": " << gradient << expected_gradient;
  }
}

// A row with NaN, or with an infinite slope where relu is flat, leaves the rest alone.
TEST_P(Activations, KeepWhatIsNoNumberInItsPlace) {
  for (const auto activation : kAll) {
    const auto in = inputs_of(5, 37);
    const auto clean =
        results(activate, activation, in[0], in[1], in[2], torch::kFloat);
    in[0][2][36] = NAN;
    auto got = results(activate, activation, in[0], in[1], in[2], torch::kFloat);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(i == 1 && activation == Activation::relu
                      ? torch::equal(got[i][2][36], in[2][2][36])
                      : std::isnan(got[i][2][36].item<float>()))
          << "result " << i << " of " << name_of(activation);
      got[i][2][36] = clean[i][2][36];
      EXPECT_TRUE(torch::equal(got[i], clean[i])) << name_of(activation);
    }
    EXPECT_TRUE(torch::equal(got[2].slice(0, 0, 36), clean[2].slice(0, 0, 36)));
  }
  const auto flat = results(activate, Activation::relu, torch::full({3}, -1.0f), {},
                            torch::full({3}, INFINITY), torch::kFloat);
  EXPECT_TRUE(torch::equal(flat[1], torch::zeros({3})));
}

TEST_P(Activations, WriteAllOfTheirResultsAndNoMore) {
  const auto fenced = [](int64_t size, double value,
                         torch::Dtype dtype = torch::kFloat) {
    auto all = torch::full({kFence + size + kFence}, NAN, dtype);
    all.slice(0, kFence, kFence + size).fill_(value);
    return all;
  };
  const auto intact = [](const Tensor& all) {
    const int64_t end = all.numel() - kFence;
    return !all.slice(0, kFence, end).isnan().any().item<bool>() &&
           all.slice(0, 0, kFence).isnan().all().item<bool>() &&
           all.slice(0, end).isnan().all().item<bool>();
  };
  const auto check = [&](cpu::Activate* forward, cpu::ActivateGradient* backward) {
    for (const int64_t width : kWidths) {
      constexpr int64_t kRows = 3;
      const auto in = inputs_of(kRows, width);
      const auto y = fenced(kRows * width, NAN), dx = fenced(kRows * width, NAN),
                 dbias = fenced(width, 0, torch::kDouble);
      forward({.x = in[0].data_ptr<float>(),
               .bias = in[1].data_ptr<float>(),
               .y = y.data_ptr<float>() + kFence,
               .rows = kRows,
               .width = width});
      backward({.dy = in[2].data_ptr<float>(),
                .x = in[0].data_ptr<float>(),
                .bias = in[1].data_ptr<float>(),
                .dx = dx.data_ptr<float>() + kFence,
                .dbias = dbias.data_ptr<double>() + kFence,
                .rows = kRows,
                .width = width});
      for (const auto& result : {y, dx, dbias}) EXPECT_TRUE(intact(result)) << width;
    }
  };
  namespace portable = cpu::portable;
  namespace avx2 = cpu::avx2;
  namespace avx512 = cpu::avx512;
  check(cpu::pick(portable::gelu, avx2::gelu, avx512::gelu),
        cpu::pick(portable::gelu_gradient, avx2::gelu_gradient, avx512::gelu_gradient));
  check(cpu::pick(portable::gelu_tanh, avx2::gelu_tanh, avx512::gelu_tanh),
        cpu::pick(portable::gelu_tanh_gradient, avx2::gelu_tanh_gradient,
                  avx512::gelu_tanh_gradient));
  check(cpu::pick(portable::relu, avx2::relu, avx512::relu),
        cpu::pick(portable::relu_gradient, avx2::relu_gradient, avx512::relu_gradient));
}

INSTANTIATE_TEST_SUITE_P(EveryInstructionSet, Activations,
                         ::testing::ValuesIn(cpu::kAllIsas),
                         [](const auto& test) { return cpu::name(test.param); });

TEST(ActivationsInDouble, HaveTheGradientOfTheirOutput) {
  for (const auto activation : kAll)
    for (const int64_t width : {1, 9}) {
      SCOPED_TRACE(name_of(activation));
      const auto in = inputs_of(70, width, torch::kDouble);
      for (const auto way : {activate, activate_reference}) {
        EXPECT_TRUE(gradients_agree(
            [&](const Tensors& x) { return Tensors{way(x[0], x[1], activation)}; },
            {in[0], in[1]}));
        EXPECT_TRUE(gradients_agree(
            [&](const Tensors& x) { return Tensors{way(x[0], {}, activation)}; },
            {in[0]}));
      }
      const auto got =
          results(activate, activation, in[0], in[1], in[2], torch::kDouble);
      const auto expected =
          results(activate_reference, activation, in[0], in[1], in[2], torch::kDouble);
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_TRUE(close(got[i], expected[i])) << "result " << i;
    }
}

TEST(ActivationsInDouble, HaveTheirLimits) {
  const Tensor low = torch::tensor({-100.0, -1e4, -1e200, -1e308}, torch::kDouble);
  const Tensor none = torch::zeros_like(low), all = torch::ones_like(low);
  for (const auto activation : kAll) {
    const auto below = results(activate, activation, low, {}, all, torch::kDouble);
    const auto above = results(activate, activation, -low, {}, all, torch::kDouble);
    EXPECT_TRUE(torch::equal(below[0], none) && torch::equal(below[1], none) &&
                torch::equal(above[0], -low) && torch::equal(above[1], all))
        << name_of(activation);
  }
}

TEST(ActivationsInShortTypes, RoundWhatFloatGives) {
  for (const auto activation : kAll)
    for (const auto dtype : {torch::kBFloat16, torch::kHalf})
      for (const bool with_bias : {false, true}) {
        const auto in = inputs_of(37, 45, dtype);
        const auto bias = with_bias ? in[1] : Tensor();
        const auto got = results(activate, activation, in[0], bias, in[2], dtype);
        const auto expected =
            results(activate, activation, in[0], bias, in[2], torch::kFloat);
        for (size_t i = 0; i < got.size(); ++i) {
          EXPECT_EQ(got[i].scalar_type(), dtype);
          EXPECT_TRUE(torch::equal(got[i], expected[i].to(dtype)))
              << "result " << i << " of " << name_of(activation) << " in " << dtype;
        }
        const auto reference =
            results(activate_reference, activation, in[0], bias, in[2], dtype);
        const double unit = dtype == torch::kHalf ? 1e-3 : 8e-3;
        for (size_t i = 0; i < got.size(); ++i)
          EXPECT_TRUE(close(got[i], reference[i], unit));
      }
}

TEST(ActivationInputs, MayNeedOnlySomeGradients) {
  const auto in = inputs_of(70, 20);
  const auto all =
      results(activate, Activation::gelu, in[0], in[1], in[2], torch::kFloat);
  for (size_t i = 0; i < 2; ++i) {
    Tensors inputs = {in[0].clone(), in[1].clone()};
    inputs[i].requires_grad_();
    const auto y = activate(inputs[0], inputs[1], Activation::gelu);
    EXPECT_TRUE(
        torch::equal(torch::autograd::grad({y}, {inputs[i]}, {in[2]})[0], all[i + 1]));
  }
}

TEST(ActivationInputs, MayHaveAnyShapeAndStrides) {
  const auto dense = random_tensors(1, {6, 5, 4, 3, 2}, torch::kFloat)[0];
  const auto bias = random_tensors(1, {12}, torch::kFloat)[0].slice(0, 0, 12, 2);
  const auto slope = torch::ones({}).expand({2, 5, 4, 3, 6});
  const auto x = dense.transpose(0, 4);
  for (const auto activation : kAll) {
    const auto leaf = x.detach().requires_grad_();
    const auto y = activate(leaf, bias, activation);
    const auto expected = results(activate, activation, x.contiguous().view({-1, 6}),
                                  bias, slope.reshape({-1, 6}), torch::kFloat);
    EXPECT_EQ(y.sizes(), x.sizes());
    EXPECT_TRUE(torch::equal(y.reshape({-1, 6}), expected[0]));
    const auto dx = torch::autograd::grad({y}, {leaf}, {slope})[0];
    EXPECT_EQ(dx.sizes(), x.sizes());
    EXPECT_TRUE(torch::equal(dx.reshape({-1, 6}), expected[1]));
    EXPECT_TRUE(torch::equal(activate(x[0][0][0][0], bias, activation), y[0][0][0][0]));
  }
}

TEST(ActivationInputs, MayHaveNoRows) {
  for (const auto dtype :
       {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf}) {
    const auto x = torch::zeros({0, 3, 8}, dtype);
    const auto got =
        results(activate, Activation::gelu, x, torch::ones({8}, dtype), x, dtype);
    EXPECT_EQ(got[0].sizes(), x.sizes());
    EXPECT_EQ(got[1].sizes(), x.sizes());
    EXPECT_TRUE(torch::equal(got[2], torch::zeros({8}, dtype)));
    EXPECT_EQ(activate(x, {}, Activation::relu).sizes(), x.sizes());
  }
}

TEST(ActivationInputs, AreCheckedByName) {
  const auto refused = [](const Tensor& x, const Tensor& bias = {},
                          Activation activation = Activation::gelu) {
    const auto message = refusal([&] { activate(x, bias, activation); });
    EXPECT_EQ(message, refusal([&] { activate_reference(x, bias, activation); }));
    return message;
  };
  EXPECT_EQ(refused(torch::zeros({2, 0})),
            "activation: x must be [..., n] with n of 1 or more, got [2, 0]");
  EXPECT_EQ(refused({}),
            "activation: x must be [..., n] with n of 1 or more, got nothing");
  EXPECT_EQ(refused(torch::zeros({2, 3}, torch::kLong)),
            "activation: x must be float, double, bfloat16 or half, got Long");
  EXPECT_EQ(refused(torch::zeros({2, 3}), torch::zeros({2})),
            "activation: bias must be [3], as wide as x, got [2]");
  EXPECT_EQ(refused(torch::zeros({2, 3}), torch::zeros({2, 3})),
            "activation: bias must be [3], as wide as x, got [2, 3]");
  EXPECT_EQ(refused(torch::zeros({2, 3}), torch::zeros({3}, torch::kDouble)),
            "activation: bias must be Float, as x is, got Double; convert one of them");
  EXPECT_EQ(refused(torch::zeros({2, 3}), {}, static_cast<Activation>(7)),
            "activation: it must be gelu, gelu_tanh or relu, got number 7");
}

TEST(Sigmoid, IsTheReferenceAtAnySizeWithItsGradient) {
  Tensor x = torch::tensor({-1e30, -800.0, -90.0, -20.0, -1.0, 0.0, 1.0, 20.0, 1e30},
                           torch::kDouble)
                 .requires_grad_();
  EXPECT_TRUE(close(longspan::sigmoid(x), torch::sigmoid(x), 1e-15));
  EXPECT_TRUE(close(longspan::softplus(x, 0.7).slice(0, 1, 8),
                    torch::softplus(x, 0.7, /*threshold=*/1000).slice(0, 1, 8), 1e-15));
  const auto slope = [&](const Tensor& y) {
    return torch::autograd::grad({y}, {x}, {torch::ones_like(y)})[0];
  };
  EXPECT_TRUE(close(slope(longspan::sigmoid(x)), slope(torch::sigmoid(x)), 1e-15));
  EXPECT_TRUE(close(slope(longspan::softplus(x)), slope(torch::softplus(x)), 1e-15));
  const Tensor ends = torch::tensor({-INFINITY, INFINITY});
  EXPECT_TRUE(close(longspan::sigmoid(ends), torch::sigmoid(ends), 1e-30));
  EXPECT_TRUE(torch::equal(longspan::softplus(ends), torch::softplus(ends)));
  const Tensor low = x.detach().to(torch::kBFloat16);
  EXPECT_EQ(longspan::sigmoid(low).scalar_type(), torch::kBFloat16);
  EXPECT_TRUE(close(longspan::softplus(low.slice(0, 1, 8)),
                    torch::softplus(low.slice(0, 1, 8)), 1e-2));
}

TEST(Sigmoid, HasTheSameBitsOnAnyNumberOfThreads) {
  const Tensor x = 3 * random_tensors(1, {300007}, torch::kFloat)[0];
  EXPECT_TRUE(same_with_any_threads([&] {
    return Tensors{longspan::sigmoid(x), longspan::softplus(x, 0.7)};
  }));
}

// How far results of a type may be from those of the CPU.
double tolerance_of(torch::Dtype dtype) {
  switch (dtype) {
    case torch::kDouble: return 1e-11;
    case torch::kFloat: return 1e-5;
    case torch::kHalf: return 4e-3;
    default: return 2e-2;
  }
}

TEST(ActivationsOnEveryDevice, EqualTheCpu) {
  for (const auto device : devices())
    for (const auto activation : kAll)
      for (const auto dtype :
           {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf})
        for (const auto& [rows, width] :
             std::vector<std::pair<int64_t, int64_t>>{{9, 40}, {1, 1}, {3000, 37}})
          for (const bool with_bias : {false, true}) {
            const auto in = inputs_of(rows, width);
            const auto run = [&](torch::Device where) {
              return results(activate, activation, in[0].to(where),
                             with_bias ? in[1].to(where) : Tensor(), in[2].to(where),
                             dtype);
            };
            const auto got = run(device), expected = run(torch::kCPU);
            for (size_t i = 0; i < got.size(); ++i)
              EXPECT_TRUE(close(got[i], expected[i], tolerance_of(dtype)))
                  << "result " << i << " of " << name_of(activation) << " in " << dtype
                  << " on " << device;
          }
}

TEST(ActivationsOnEveryDevice, HaveTheirLimits) {
  constexpr float kMost = std::numeric_limits<float>::max();
  const Tensor low = torch::tensor({-100.0f, -1e4f, -1e15f, -1e30f, -kMost});
  for (const auto device : devices())
    for (const auto activation : kAll) {
      const auto run = [&](const Tensor& x) {
        return results(activate, activation, x.to(device), {},
                       torch::ones_like(x).to(device), torch::kFloat);
      };
      const auto below = run(low), above = run(-low);
      EXPECT_TRUE((below[0] == 0).all().item<bool>()) << name_of(activation);
      EXPECT_TRUE((below[1] == 0).all().item<bool>()) << name_of(activation);
      EXPECT_TRUE(torch::equal(above[0].cpu(), -low)) << name_of(activation);
      EXPECT_TRUE((above[1] == 1).all().item<bool>()) << name_of(activation);
    }
}

}  // namespace
}  // namespace longspan::testing
