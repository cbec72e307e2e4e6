#include "longspan/kernels/lse_merge.h"

#include <cmath>
#include <limits>

#include "tests/support/any_threads.h"
#include "tests/support/each_isa.h"
#include "tests/support/tensors.h"

namespace longspan {
namespace {

using testing::about_as_exact;
using testing::close;
using testing::devices;
using testing::gradients_agree;
using testing::random_tensors;
using testing::refusal;
using testing::Tensors;
using torch::Tensor;
using torch::indexing::Slice;

const double kNever = -std::numeric_limits<double>::infinity();

Attended attend(const Tensor& q, const Tensor& k, const Tensor& v) {
  const Tensor scores = q.matmul(k.transpose(2, 3));
  return {.out = scores.softmax(-1).matmul(v), .lse = scores.logsumexp(-1)};
}

std::vector<Attended> random_parts(int count, torch::Dtype dtype = torch::kDouble) {
  const auto outs = random_tensors(count, {2, 3, 4, 5}, dtype);
  const auto lses = random_tensors(count, {2, 3, 4}, dtype, /*seed=*/1);
  std::vector<Attended> parts;
  for (int i = 0; i < count; ++i) parts.push_back({outs[i], lses[i]});
  return parts;
}

// The keys of part i are those before ends[i], from ends[i - 1] on.
Attended attend_in_parts(const Tensor& q, const Tensor& k, const Tensor& v,
                         const std::vector<int64_t>& ends) {
  std::vector<Attended> parts;
  int64_t begin = 0;
  for (const int64_t end : ends) {
    parts.push_back(attend(q, k.slice(2, begin, end), v.slice(2, begin, end)));
    begin = end;
  }
  return merge(parts);
}

// out, lse, and with slopes of both the gradients of every part's out and lse.
Tensors results(const std::function<Attended(const std::vector<Attended>&)>& f,
                const std::vector<Attended>& parts, torch::Dtype dtype,
                const Tensors& slopes) {
  std::vector<Attended> inputs;
  Tensors leaves;
  for (const auto& part : parts) {
    inputs.push_back({part.out.detach().to(dtype).requires_grad_(),
                      part.lse.detach().to(dtype).requires_grad_()});
    leaves.insert(leaves.end(), {inputs.back().out, inputs.back().lse});
  }
  const auto merged = f(inputs);
  Tensors all = torch::autograd::grad({merged.out, merged.lse}, leaves,
                                      {slopes[0].to(dtype), slopes[1].to(dtype)});
  all.insert(all.begin(), {merged.out, merged.lse});
  return all;
}

TEST(LseMerge, IsAttentionOverAllKeys) {
  const auto x = random_tensors(3, {2, 3, 9, 4});
  const auto whole = attend(x[0], x[1], x[2]);
  for (const auto& ends :
       std::vector<std::vector<int64_t>>{{9}, {4, 9}, {1, 3, 8, 9}}) {
    const auto merged = attend_in_parts(x[0], x[1], x[2], ends);
    EXPECT_TRUE(close(merged.out, whole.out));
    EXPECT_TRUE(close(merged.lse, whole.lse));
  }
}

TEST(LseMerge, HasTheGradientsOfAttentionOverAllKeys) {
  auto x = random_tensors(3, {2, 3, 9, 4});
  for (auto& tensor : x) tensor.requires_grad_();
  const auto whole = attend(x[0], x[1], x[2]);
  const auto merged = attend_in_parts(x[0], x[1], x[2], {2, 5, 9});
  const auto slopes = {torch::randn_like(whole.out), torch::randn_like(whole.lse)};
  const auto expected = torch::autograd::grad({whole.out, whole.lse}, x, slopes);
  const auto got = torch::autograd::grad({merged.out, merged.lse}, x, slopes);
  for (size_t i = 0; i < x.size(); ++i) EXPECT_TRUE(close(got[i], expected[i]));
}

TEST(LseMerge, HasTheGradientsOfItsOutputs) {
  const auto parts = random_parts(3);
  Tensors at;
  for (const auto& part : parts) at.insert(at.end(), {part.out, part.lse});
  const auto f = [](const Tensors& x) -> Tensors {
    const auto merged = merge({{x[0], x[1]}, {x[2], x[3]}, {x[4], x[5]}});
    return {merged.out, merged.lse};
  };
  EXPECT_TRUE(gradients_agree(f, at));
}

TEST(LseMerge, OfOnePartIsThatPart) {
  auto parts = random_parts(1, torch::kFloat);
  parts[0].lse.index_put_({0, 0, 0}, kNever);
  parts[0].out.index_put_({0, 0, 0}, 0);
  const auto merged = merge(parts);
  EXPECT_TRUE(torch::equal(merged.out, parts[0].out));
  EXPECT_TRUE(torch::equal(merged.lse, parts[0].lse));
}

TEST(LseMerge, DoesNotDependOnTheOrderOfParts) {
  const auto parts = random_parts(3);
  const auto one = merge({parts[0], parts[1], parts[2]});
  const auto other = merge({parts[2], parts[0], parts[1]});
  EXPECT_TRUE(close(one.out, other.out, 1e-14));
  EXPECT_TRUE(close(one.lse, other.lse, 1e-14));
}

TEST(LseMerge, CountsAKeyInTwoPartsTwice) {
  const auto part = random_parts(1)[0];
  const auto merged = merge({part, part});
  EXPECT_TRUE(close(merged.out, part.out));
  EXPECT_TRUE(close(merged.lse, part.lse + std::log(2.0)));
}

TEST(LseMerge, DropsEmptyParts) {
  const auto parts = random_parts(3);
  for (const double content : {0.0, 7.0, std::nan("")}) {
    const Attended empty{.out = torch::full_like(parts[0].out, content),
                         .lse = torch::full_like(parts[0].lse, kNever)};
    const auto merged = merge({parts[0], empty, parts[1]});
    const auto expected = merge({parts[0], parts[1]});
    EXPECT_TRUE(torch::equal(merged.out, expected.out));
    EXPECT_TRUE(torch::equal(merged.lse, expected.lse));
  }
}

TEST(LseMerge, IsZeroWhereAllPartsAreEmpty) {
  auto parts = random_parts(2);
  for (auto& part : parts) part.lse.index_put_({Slice(), Slice(), 1}, kNever);
  const auto merged = merge(parts);
  EXPECT_TRUE((merged.out.select(2, 1) == 0).all().item<bool>());
  EXPECT_TRUE((merged.lse.select(2, 1) == kNever).all().item<bool>());
  EXPECT_TRUE(merged.lse.select(2, 0).isfinite().all().item<bool>());
}

TEST(LseMerge, HasFiniteGradientsWhereSomeOrAllPartsAreEmpty) {
  auto parts = random_parts(2);
  parts[0].lse.index_put_({Slice(), Slice(), 0}, kNever);
  for (auto& part : parts) {
    part.lse.index_put_({Slice(), Slice(), 1}, kNever);
    part.out.requires_grad_();
    part.lse.requires_grad_();
  }
  const auto merged = merge(parts);
  const Tensors inputs{parts[0].out, parts[0].lse, parts[1].out, parts[1].lse};
  const auto slopes = torch::autograd::grad(
      {merged.out, merged.lse}, inputs,
      {torch::randn_like(merged.out), torch::randn_like(merged.lse)});
  for (const auto& slope : slopes) {
    EXPECT_TRUE(slope.isfinite().all().item<bool>());
    EXPECT_TRUE((slope.select(2, 1) == 0).all().item<bool>());
    EXPECT_TRUE((slope.select(2, 2) != 0).all().item<bool>());
  }
  EXPECT_TRUE((slopes[0].select(2, 0) == 0).all().item<bool>());
  EXPECT_TRUE((slopes[1].select(2, 0) == 0).all().item<bool>());
}

TEST(LseMerge, StandsAnyScale) {
  const auto parts = random_parts(2, torch::kFloat);
  const auto merged = merge(parts);
  for (const double offset : {-5000.0, 5000.0}) {
    const auto shifted = merge(
        {{parts[0].out, parts[0].lse + offset}, {parts[1].out, parts[1].lse + offset}});
    EXPECT_TRUE(close(shifted.out, merged.out, 1e-3));
    EXPECT_TRUE(close(shifted.lse - offset, merged.lse, 1e-3));
  }
  const auto apart = merge({parts[0], {parts[1].out, parts[1].lse + 5000}});
  EXPECT_TRUE(torch::equal(apart.out, parts[1].out));
}

TEST(LseMerge, CombinesLowPrecisionInFloat) {
  for (const auto dtype : {torch::kBFloat16, torch::kHalf}) {
    auto low = random_parts(16, torch::kFloat);
    auto high = low;
    for (size_t i = 0; i < low.size(); ++i) {
      low[i].out = low[i].out.to(dtype);
      high[i].out = low[i].out.to(torch::kFloat);
    }
    const auto merged = merge(low), exact = merge(high);
    EXPECT_EQ(merged.out.scalar_type(), dtype);
    EXPECT_EQ(merged.lse.scalar_type(), torch::kFloat);
    EXPECT_TRUE(torch::equal(merged.out, exact.out.to(dtype)));
    EXPECT_TRUE(torch::equal(merged.lse, exact.lse));
  }
}

TEST(LseMerge, HasNoGradientWhereValuesHaveNoWeight) {
  const auto parts = random_parts(2, torch::kFloat);
  for (const double lse : {kNever, -1000.0}) {
    const auto out = parts[0].out.clone().fill_(NAN).requires_grad_();
    const auto level = torch::full_like(parts[0].lse, lse).requires_grad_();
    const auto other = parts[1].out.clone().requires_grad_();
    const auto merged = merge({{out, level}, {other, parts[1].lse}});
    EXPECT_TRUE(torch::equal(merged.out, other));
    const auto slopes = torch::autograd::grad(
        {merged.out, merged.lse}, {out, level, other},
        {torch::ones_like(merged.out), torch::ones_like(merged.lse)});
    EXPECT_TRUE((slopes[0] == 0).all().item<bool>());
    EXPECT_TRUE((slopes[1] == 0).all().item<bool>());
    EXPECT_TRUE((slopes[2] == 1).all().item<bool>());
  }
}

TEST(LseMerge, TakesAnyStrides) {
  const auto outs = random_tensors(2, {5, 2, 40, 3}, torch::kFloat);
  const auto lses = random_tensors(2, {5, 2, 3}, torch::kFloat, /*seed=*/1);
  const auto slopes = random_tensors(1, {2, 5, 3, 40}, torch::kFloat, /*seed=*/2)[0];
  const std::vector<Attended> strided = {
      {outs[0].permute({1, 0, 3, 2}), lses[0].transpose(0, 1)},
      {outs[1].view({5, 2, 3, 40}).transpose(0, 1), lses[1].transpose(0, 1)}};
  std::vector<Attended> dense;
  for (const auto& [out, lse] : strided)
    dense.push_back({out.contiguous(), lse.contiguous()});
  const auto lse_slopes = torch::ones({}).expand({2, 5, 3});
  const auto got = results(merge, strided, torch::kFloat, {slopes, lse_slopes});
  const auto expected = results(merge, dense, torch::kFloat,
                                {slopes.contiguous(), lse_slopes.contiguous()});
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_TRUE(torch::equal(got[i], expected[i]));
}

TEST(LseMerge, GivesOnlyTheGradientsAskedFor) {
  const auto parts = random_parts(2, torch::kFloat);
  const Tensors slopes = {torch::randn_like(parts[0].out),
                          torch::randn_like(parts[0].lse)};
  const auto all = results(merge, parts, torch::kFloat, slopes);
  for (size_t i = 0; i < 4; ++i) {
    std::vector<Attended> inputs;
    for (const auto& part : parts)
      inputs.push_back({part.out.clone(), part.lse.clone()});
    auto& asked = i % 2 == 0 ? inputs[i / 2].out : inputs[i / 2].lse;
    asked.requires_grad_();
    const auto merged = merge(inputs);
    EXPECT_TRUE(torch::equal(
        torch::autograd::grad({merged.out, merged.lse}, {asked}, slopes)[0],
        all[2 + i]));
  }
}

TEST(LseMerge, IsTheSameForAnyNumberOfThreads) {
  for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kBFloat16}) {
    const auto outs = random_tensors(3, {2, 3, 700, 33}, dtype);
    const auto lses = random_tensors(3, {2, 3, 700}, dtype, /*seed=*/1);
    const std::vector<Attended> parts = {
        {outs[0], lses[0]}, {outs[1], lses[1]}, {outs[2], lses[2]}};
    const auto run = [&] {
      return results(merge, parts, dtype, {outs[0], lses[0].to(torch::kFloat)});
    };
    EXPECT_TRUE(testing::same_with_any_threads(run)) << dtype;
  }
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

TEST(LseMerge, EqualsTheCpuOnEveryDevice) {
  for (const auto device : devices())
    for (const auto dtype :
         {torch::kDouble, torch::kFloat, torch::kBFloat16, torch::kHalf})
      for (const int count : {1, 3, 17, 40})
        for (const int64_t width : {1, 7, 64, 300}) {
          const auto outs = random_tensors(count + 1, {2, 9, 3, width});
          const auto lses = random_tensors(count + 1, {2, 3, 9}, torch::kDouble, 1);
          const auto run = [&](torch::Device where) {
            std::vector<Attended> parts;
            for (int i = 0; i < count; ++i) {
              const auto lse = (lses[i] * 3).masked_fill(lses[i] > 1, kNever);
              parts.push_back({outs[i].transpose(1, 2).to(where), lse.to(where)});
            }
            return results(
                merge, parts, dtype,
                {outs[count].transpose(1, 2).to(where), lses[count].to(where)});
          };
          const auto got = run(device), expected = run(torch::kCPU);
          for (size_t i = 0; i < got.size(); ++i)
            EXPECT_TRUE(close(got[i], expected[i], tolerance_of(dtype)))
                << "result " << i << " of " << count << " parts of width " << width
                << " in " << dtype << " on " << device;
        }
}

TEST(LseMerge, RefusesASecondDerivative) {
  const auto x = random_parts(1)[0];
  const auto out = x.out.clone().requires_grad_();
  const auto merged = merge({{out, x.lse}});
  EXPECT_EQ(refusal([&] {
              torch::autograd::grad({merged.out.square().sum()}, {out}, {},
                                    /*retain_graph=*/true, /*create_graph=*/true);
            }),
            "merge: it has no second derivatives; merge_reference() has");
}

TEST(LseMerge, RefusesWhatDoesNotFit) {
  const auto part = random_parts(1)[0];
  const auto said = [&](const Tensor& out, const Tensor& lse) {
    return refusal([&] { merge({part, {out, lse}}); });
  };
  EXPECT_EQ(refusal([] { merge({}); }),
            "merge: there must be at least one part, got none");
  EXPECT_EQ(said({}, part.lse),
            "merge: out of part 1 must be [B, H, N, dv], got nothing");
  EXPECT_EQ(said(part.out[0], part.lse),
            "merge: out of part 1 must be [B, H, N, dv], got [3, 4, 5]");
  EXPECT_EQ(said(part.out.to(torch::kLong), part.lse),
            "merge: out of part 1 must be floating, got Long");
  EXPECT_EQ(said(part.out.slice(2, 1), part.lse),
            "merge: out of every part must have one shape, got [2, 3, 4, 5] and "
            "[2, 3, 3, 5]");
  EXPECT_EQ(said(part.out.to(torch::kFloat), part.lse),
            "merge: out of every part must have one dtype, got Double and Float");
  EXPECT_EQ(said(part.out, part.lse.slice(2, 1)),
            "merge: lse of part 1 must be [2, 3, 4], got [2, 3, 3]");
  EXPECT_EQ(said(part.out, {}), "merge: lse of part 1 must be [2, 3, 4], got nothing");
  EXPECT_EQ(said(part.out, part.lse.to(torch::kLong)),
            "merge: lse of part 1 must be floating, got Long");
  EXPECT_EQ(said(part.out, part.lse.to(torch::kMeta)),
            "merge: out and lse of every part must be on one device, got cpu, and cpu "
            "and meta of part 1");
}

class LseMergeOnEveryIsa : public testing::EachIsa {};

TEST_P(LseMergeOnEveryIsa, IsAsExactAsPlainOperations) {
  for (const int count : {1, 2, 3, 9})
    for (const int64_t width : {1, 7, 16, 33, 64, 129})
      for (const int64_t rows : {40, 65}) {
        const auto outs = random_tensors(count + 1, {1, 2, rows, width}, torch::kFloat);
        const auto lses = random_tensors(count + 1, {1, 2, rows}, torch::kFloat, 1);
        std::vector<Attended> parts;
        for (int i = 0; i < count; ++i) parts.push_back({outs[i], lses[i] * 3});
        const Tensors slopes = {outs[count], lses[count]};
        const auto got = results(merge, parts, torch::kFloat, slopes);
        const auto usual = results(merge_reference, parts, torch::kFloat, slopes);
        const auto exact = results(merge_reference, parts, torch::kDouble, slopes);
        for (size_t i = 0; i < got.size(); ++i) {
          const double size = std::max(1.0, exact[i].abs().max().item<double>());
          EXPECT_TRUE(about_as_exact(got[i] / size, usual[i] / size, exact[i] / size))
              << "result " << i << " of " << count << " parts of " << rows
              << " rows of " << width;
        }
      }
}

TEST_P(LseMergeOnEveryIsa, WritesResultsLargerThanCaches) {
  const auto outs = random_tensors(2, {1, 2, 2100, 512}, torch::kFloat);
  const auto lses = random_tensors(2, {1, 2, 2100}, torch::kFloat, /*seed=*/1);
  const std::vector<Attended> parts = {{outs[0], lses[0]}, {outs[1], lses[1]}};
  const auto got = results(merge, parts, torch::kFloat, {outs[0], lses[0]});
  const auto expected =
      results(merge_reference, parts, torch::kFloat, {outs[0], lses[0]});
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_TRUE(close(got[i], expected[i], 1e-5)) << "result " << i;
}

TEST_P(LseMergeOnEveryIsa, TakesLogarithmsExactly) {
  const auto lse = torch::linspace(-5, 0, 5000, torch::kFloat).view({1, 1, 5000});
  const auto out = torch::zeros({1, 1, 5000, 1});
  for (const int zeros : {1, 5, 1000}) {
    std::vector<Attended> parts(zeros, {out, torch::zeros_like(lse)});
    parts.push_back({out, lse});
    const auto exact = (lse.to(torch::kDouble).exp() + zeros).log();
    EXPECT_TRUE(close(merge(parts).lse, exact, 3e-7)) << zeros;
  }
}

INSTANTIATE_TEST_SUITE_P(EveryInstructionSet, LseMergeOnEveryIsa,
                         ::testing::ValuesIn(cpu::kAllIsas),
                         [](const auto& test) { return cpu::name(test.param); });

}  // namespace
}  // namespace longspan
