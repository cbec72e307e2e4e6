#include "longspan/kernels/layer_norm.h"

#include <cmath>
#include <optional>

#include "longspan/kernels/cpu/isa.h"
#include "longspan/kernels/cpu/layer_norm.h"
#include "tests/support/any_threads.h"
#include "tests/support/each_isa.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

constexpr int64_t kFence = 64;  // numbers before and after a result

// y and the gradients of x, weight and bias.
Tensors results(const std::function<Tensor(Tensor, Tensor, Tensor)>& norm,
                const Tensors& at, const Tensor& slope, torch::Dtype dtype) {
  Tensors inputs;
  for (const auto& x : at)
    inputs.push_back(
        x.to(dtype, /*non_blocking=*/false, /*copy=*/true).requires_grad_());
  const auto y = norm(inputs[0], inputs[1], inputs[2]);
  Tensors all = torch::autograd::grad({y}, inputs, {slope.to(dtype)});
  all.insert(all.begin(), y);
  return all;
}

Tensor fused(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return layer_norm(x, weight, bias);
}

Tensor reference(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return layer_norm_reference(x, weight, bias);
}

Tensor plain(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return torch::layer_norm(x, {x.size(-1)}, weight, bias);
}

// x [rows, width], weight, bias, and a slope for y.
Tensors inputs_of(int64_t rows, int64_t width, torch::Dtype dtype = torch::kFloat) {
  Tensors all = random_tensors(2, {rows, width}, dtype);
  Tensors affine = random_tensors(2, {width}, dtype, /*seed=*/1);
  return {all[0] * 2 + 3, affine[0], affine[1], all[1]};
}

// about_as_exact() for results of any size: single roundings of large ones are luck.
::testing::AssertionResult as_exact_for_its_size(const Tensor& got, const Tensor& usual,
                                                 const Tensor& exact) {
  const double size = std::max(1.0, exact.abs().max().item<double>());
  return about_as_exact(got / size, usual / size, exact / size);
}

class LayerNorm : public testing::EachIsa {};

TEST_P(LayerNorm, IsAsExactAsPlainOperations) {
  for (const int64_t width : {1, 7, 16, 33, 129, 512})
    for (const int64_t rows : {1, 3, 65, 1000}) {
      const auto all = inputs_of(rows, width);
      const Tensors at(all.begin(), all.begin() + 3);
      const auto got = results(fused, at, all[3], torch::kFloat);
      const auto usual = results(plain, at, all[3], torch::kFloat);
      const auto exact = results(plain, at, all[3], torch::kDouble);
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_TRUE(as_exact_for_its_size(got[i], usual[i], exact[i]))
            << "result " << i << " of " << rows << " rows of " << width;
    }
}

TEST_P(LayerNorm, StaysExactFarFromZero) {
  auto all = inputs_of(40, 300);
  const Tensors at = {all[0] + 1000, all[1], all[2]};
  const auto got = results(fused, at, all[3], torch::kFloat);
  const auto usual = results(plain, at, all[3], torch::kFloat);
  const auto exact = results(plain, at, all[3], torch::kDouble);
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_TRUE(as_exact_for_its_size(got[i], usual[i], exact[i])) << "result " << i;
}

TEST_P(LayerNorm, GivesTheBiasForConstantRows) {
  const auto bias = random_tensors(1, {19}, torch::kFloat)[0];
  for (const double value : {0.0, 0.1, -7e9, 3e18})
    EXPECT_TRUE(
        torch::equal(layer_norm(torch::full({2, 19}, value), torch::ones({19}), bias),
                     bias.expand({2, 19})))
        << value;
}

TEST_P(LayerNorm, IsTheSameForAnyNumberOfThreads) {
  for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kBFloat16}) {
    const auto all = inputs_of(2100, 67, dtype);
    const Tensors at(all.begin(), all.begin() + 3);
    const auto run = [&] { return results(fused, at, all[3], dtype); };
    EXPECT_TRUE(testing::same_with_any_threads(run)) << dtype;
  }
}

TEST_P(LayerNorm, WritesAllOfItsResultsAndNoMore) {
  const auto fenced = [](int64_t size, double value,
                         torch::Dtype dtype = torch::kFloat) {
    auto all = torch::full({kFence + size + kFence}, NAN, dtype);
    all.slice(0, kFence, kFence + size).fill_(value);
    return all;
  };
  const auto inside = [](const Tensor& all) { return all.data_ptr<float>() + kFence; };
  const auto intact = [](const Tensor& all) {
    const int64_t end = all.numel() - kFence;
    return !all.slice(0, kFence, end).isnan().any().item<bool>() &&
           all.slice(0, 0, kFence).isnan().all().item<bool>() &&
           all.slice(0, end).isnan().all().item<bool>();
  };
  for (const int64_t width : {1, 7, 16, 33, 129}) {
    constexpr int64_t kRows = 3;
    const auto in = inputs_of(kRows, width);
    const auto y = fenced(kRows * width, NAN),
               mean = fenced(kRows, NAN, torch::kDouble), rstd = fenced(kRows, NAN),
               dx = fenced(kRows * width, NAN),
               dweight = fenced(width, 0, torch::kDouble),
               dbias = fenced(width, 0, torch::kDouble);
    cpu::pick(cpu::portable::layer_norm, cpu::avx2::layer_norm,
              cpu::avx512::layer_norm)({.x = in[0].data_ptr<float>(),
                                        .weight = in[1].data_ptr<float>(),
                                        .bias = in[2].data_ptr<float>(),
                                        .y = inside(y),
                                        .mean = mean.data_ptr<double>() + kFence,
                                        .rstd = inside(rstd),
                                        .rows = kRows,
                                        .width = width,
                                        .epsilon = 1e-5f});
    cpu::pick(cpu::portable::layer_norm_gradient, cpu::avx2::layer_norm_gradient,
              cpu::avx512::layer_norm_gradient)(
        {.dy = in[3].data_ptr<float>(),
         .x = in[0].data_ptr<float>(),
         .weight = in[1].data_ptr<float>(),
         .mean = mean.data_ptr<double>() + kFence,
         .rstd = inside(rstd),
         .dx = inside(dx),
         .dweight = dweight.data_ptr<double>() + kFence,
         .dbias = dbias.data_ptr<double>() + kFence,
         .rows = kRows,
         .width = width});
    for (const auto& result : {y, mean, rstd, dx, dweight, dbias})
      EXPECT_TRUE(intact(result)) << width;
  }
}

INSTANTIATE_TEST_SUITE_P(EveryInstructionSet, LayerNorm,
                         ::testing::ValuesIn(cpu::kAllIsas),
                         [](const auto& test) { return cpu::name(test.param); });

TEST(LayerNormInDouble, HasTheGradientOfItsOutput) {
  const auto all = inputs_of(70, 9, torch::kDouble);
  const Tensors at(all.begin(), all.begin() + 3);
  const auto run = [](auto norm) {
    return [norm](const Tensors& x) { return Tensors{norm(x[0], x[1], x[2])}; };
  };
  EXPECT_TRUE(gradients_agree(run(fused), at));
  EXPECT_TRUE(gradients_agree(run(reference), at));
  EXPECT_TRUE(close(fused(at[0], at[1], at[2]), plain(at[0], at[1], at[2])));
  EXPECT_TRUE(close(reference(at[0], at[1], at[2]), plain(at[0], at[1], at[2])));
}

TEST(LayerNormInShortTypes, RoundsWhatFloatGives) {
  for (const auto dtype : {torch::kBFloat16, torch::kHalf})
    for (const auto affine_dtype : {dtype, torch::kFloat}) {
      const auto all = inputs_of(37, 45);
      const auto x = all[0].to(dtype).requires_grad_();
      const auto weight = all[1].to(affine_dtype).requires_grad_();
      const auto bias = all[2].to(affine_dtype).requires_grad_();
      const auto y = layer_norm(x, weight, bias);
      EXPECT_EQ(y.scalar_type(), dtype);
      EXPECT_TRUE(
          torch::equal(y, layer_norm(x.to(torch::kFloat), weight.to(torch::kFloat),
                                     bias.to(torch::kFloat))
                              .to(dtype)));
      const auto got =
          torch::autograd::grad({y}, {x, weight, bias}, {all[3].to(dtype)});
      const auto expected = results(fused, {x.detach(), weight.detach(), bias.detach()},
                                    all[3].to(dtype), torch::kFloat);
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(got[i].scalar_type(), i == 0 ? dtype : affine_dtype);
        EXPECT_TRUE(torch::equal(got[i], expected[i + 1].to(got[i].scalar_type())));
      }
    }
}

TEST(LayerNormInputs, MayLackWeightAndBias) {
  for (const auto dtype : {torch::kFloat, torch::kDouble}) {
    const auto all = inputs_of(5, 20, dtype);
    for (const bool with_weight : {false, true})
      for (const bool with_bias : {false, true}) {
        const auto x = all[0].clone().requires_grad_();
        const auto weight = with_weight ? all[1] : Tensor();
        const auto bias = with_bias ? all[2] : Tensor();
        const auto got = layer_norm(x, weight, bias);
        const auto expected = layer_norm_reference(x, weight, bias);
        EXPECT_TRUE(close(got, expected, 1e-5));
        EXPECT_TRUE(close(torch::autograd::grad({got}, {x}, {all[3]})[0],
                          torch::autograd::grad({expected}, {x}, {all[3]})[0], 1e-5));
      }
  }
}

TEST(LayerNormInputs, MayNeedOnlySomeGradients) {
  const auto all = inputs_of(5, 20);
  const Tensors at(all.begin(), all.begin() + 3);
  const auto expected = results(fused, at, all[3], torch::kFloat);
  for (size_t i = 0; i < at.size(); ++i) {
    Tensors inputs;
    for (const auto& x : at) inputs.push_back(x.clone());
    inputs[i].requires_grad_();
    const auto y = fused(inputs[0], inputs[1], inputs[2]);
    EXPECT_TRUE(torch::equal(torch::autograd::grad({y}, {inputs[i]}, {all[3]})[0],
                             expected[i + 1]));
  }
}

TEST(LayerNormInputs, MayHaveAnyStrides) {
  const auto x = random_tensors(1, {6, 5, 4}, torch::kFloat)[0].transpose(0, 2);
  const auto weight = random_tensors(1, {12}, torch::kFloat)[0].slice(0, 0, 12, 2);
  EXPECT_TRUE(torch::equal(layer_norm(x, weight),
                           layer_norm(x.contiguous(), weight.contiguous())));
  EXPECT_EQ(layer_norm(x, weight).sizes(), x.sizes());
  const auto slope = torch::ones({}).expand({4, 5, 6});
  auto leaf = x.detach().requires_grad_();
  EXPECT_EQ(
      torch::autograd::grad({layer_norm(leaf, weight)}, {leaf}, {slope})[0].sizes(),
      x.sizes());
}

TEST(LayerNormInputs, MayHaveNoRows) {
  const auto x = torch::zeros({0, 3, 8}).requires_grad_();
  const auto weight = torch::ones({8}).requires_grad_();
  const auto y = layer_norm(x, weight, torch::zeros({8}));
  EXPECT_EQ(y.sizes(), x.sizes());
  const auto slopes = torch::autograd::grad({y}, {x, weight}, {torch::zeros_like(y)});
  EXPECT_EQ(slopes[0].sizes(), x.sizes());
  EXPECT_TRUE(torch::equal(slopes[1], torch::zeros({8})));
}

TEST(LayerNormInputs, AreCheckedByName) {
  EXPECT_EQ(refusal([] {
              layer_norm(torch::zeros({2, 0}));
            }),
            "layer norm: x must be [..., E] with E of 1 or more, got [2, 0]");
  EXPECT_EQ(refusal([] {
              layer_norm(torch::zeros({2, 3}, torch::kLong));
            }),
            "layer norm: x must be float, double, bfloat16 or half, got Long");
  EXPECT_EQ(refusal([] {
              layer_norm(torch::zeros({2, 3}), torch::zeros({2}));
            }),
            "layer norm: weight must be [3], as wide as x, got [2]");
  EXPECT_EQ(refusal([] {
              layer_norm(torch::zeros({2, 3}), {}, torch::zeros({3}, torch::kDouble));
            }),
            "layer norm: bias must be Float where x is Float, got Double; convert one "
            "of them");
  EXPECT_EQ(refusal([] {
              layer_norm(torch::zeros({2, 3}, torch::kHalf),
                         torch::zeros({3}, torch::kBFloat16));
            }),
            "layer norm: weight must be Half or Float where x is Half, got BFloat16; "
            "convert one of them");
  EXPECT_EQ(refusal([] {
              layer_norm(torch::zeros({2, 3}), {}, {}, -1);
            }),
            "layer norm: epsilon must be 0 or more, got -1");
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

TEST(LayerNormOnEveryDevice, EqualsTheCpu) {
  for (const auto device : devices())
    for (const auto dtype :
         {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf})
      for (const int64_t width : {1, 7, 40, 513, 1024, 9000})
        for (const int64_t rows : {1, 9, 700}) {
          const auto all = inputs_of(rows, width);
          const Tensors at(all.begin(), all.begin() + 3);
          Tensors there;
          for (const auto& x : at) there.push_back(x.to(device));
          const auto got = results(fused, there, all[3].to(device), dtype);
          const auto expected = results(fused, at, all[3], dtype);
          for (size_t i = 0; i < got.size(); ++i)
            EXPECT_TRUE(close(got[i], expected[i], tolerance_of(dtype)))
                << "result " << i << " of " << rows << " rows of " << width << " in "
                << dtype << " on " << device;
        }
}

TEST(LayerNormOnEveryDevice, TakesWideParametersOfShortRows) {
  for (const auto device : devices())
    for (const bool bias_is_wide : {true, false}) {
      const auto all = inputs_of(33, 72);
      const auto run = [&](torch::Device where) {
        Tensors leaves = {all[0].to(torch::kBFloat16), all[1],
                          bias_is_wide ? all[2] : all[2].to(torch::kBFloat16)};
        for (auto& leaf : leaves) leaf = leaf.to(where).detach().requires_grad_();
        const auto y = layer_norm(leaves[0], leaves[1], leaves[2]);
        Tensors got = torch::autograd::grad({y}, leaves, {torch::ones_like(y)});
        got.push_back(y);
        return got;
      };
      const auto got = run(device), expected = run(torch::kCPU);
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(got[i].scalar_type(), expected[i].scalar_type());
        EXPECT_TRUE(close(got[i], expected[i], 2e-2)) << "result " << i;
      }
    }
}

TEST(LayerNormOnEveryDevice, DoesNotDependOnWhereRowsBegin) {
  for (const auto device : devices()) {
    const auto memory = random_tensors(1, {1 + 20 * 64}, torch::kFloat)[0].to(device);
    const auto apart = memory.slice(0, 1).view({20, 64});
    EXPECT_TRUE(torch::equal(layer_norm(apart), layer_norm(apart.clone()))) << device;
  }
}

}  // namespace
}  // namespace longspan::testing
