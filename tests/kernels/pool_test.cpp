#include "longspan/kernels/pool.h"

#include <cmath>
#include <limits>

#include "tests/support/any_threads.h"
#include "tests/support/each_isa.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

using Pool = std::function<Pooled(const PoolInputs&)>;

constexpr Pooling kEvery[] = {Pooling::max, Pooling::mean, Pooling::sum,
                              Pooling::softmax};
const double kNever = -std::numeric_limits<double>::infinity();

// Overlapping, nested, empty, single, whole and out of order.
std::vector<Span> odd_spans(int64_t tokens) {
  return {{0, tokens}, {3, 9},  {tokens - 5, tokens}, {4, 4},          {5, 6},
          {0, 1},      {2, 70}, {1, tokens - 1},      {tokens, tokens}};
}

std::vector<Span> prefixes_of(int64_t tokens, int64_t segment) {
  std::vector<Span> spans;
  for (int64_t i = 0; i < tokens; ++i)
    spans.push_back({.from = segment ? i - i % segment : 0, .to = i + 1});
  return spans;
}

PoolInputs random_inputs(at::IntArrayRef sizes, Pooling how,
                         torch::Dtype dtype = torch::kDouble, bool masked = true) {
  const auto x = random_tensors(1, sizes, dtype)[0];
  PoolInputs inputs{.x = x};
  if (masked) inputs.keep = torch::rand(sizes.slice(0, 3)) < 0.7;
  if (how == Pooling::softmax)
    inputs.scores = 3 * random_tensors(1, sizes.slice(0, 3), dtype, /*seed=*/1)[0];
  return inputs;
}

PoolInputs to(const PoolInputs& inputs, torch::Dtype dtype) {
  return {.x = inputs.x.to(dtype),
          .keep = inputs.keep,
          .scores = inputs.scores.defined() ? inputs.scores.to(dtype) : Tensor()};
}

// What the header says, one number at a time, in double.
Pooled by_loops(const PoolInputs& given, const std::vector<Span>& spans, Pooling how) {
  const PoolInputs inputs = to(given, torch::kDouble);
  const auto sizes = inputs.x.sizes();
  const auto rows = static_cast<int64_t>(spans.size());
  const bool is_softmax = how == Pooling::softmax;
  const auto x = inputs.x.accessor<double, 4>();
  const auto all = torch::ones({1, 1, 1}, torch::kBool);
  const auto keep_tensor =
      (inputs.keep.defined() ? inputs.keep : all).expand(sizes.slice(0, 3));
  const auto keep = keep_tensor.accessor<bool, 3>();
  const auto score_tensor =
      is_softmax ? inputs.scores : torch::zeros(sizes.slice(0, 3), torch::kDouble);
  const auto scores = score_tensor.accessor<double, 3>();
  const auto out_tensor =
      torch::zeros({sizes[0], sizes[1], rows, sizes[3]}, torch::kDouble);
  auto out = out_tensor.accessor<double, 4>();
  const auto lse_tensor =
      torch::full({sizes[0], sizes[1], rows}, kNever, torch::kDouble);
  auto lse = lse_tensor.accessor<double, 3>();
  for (int64_t b = 0; b < sizes[0]; ++b)
    for (int64_t h = 0; h < sizes[1]; ++h)
      for (int64_t g = 0; g < rows; ++g) {
        std::vector<int64_t> tokens;
        for (int64_t i = spans[g].from; i < spans[g].to; ++i)
          if (keep[b][h][i]) tokens.push_back(i);
        if (tokens.empty()) continue;
        double base = kNever, total = 0;
        std::vector<double> weights;
        for (const int64_t i : tokens) base = std::max(base, scores[b][h][i]);
        for (const int64_t i : tokens) {
          weights.push_back(std::exp(scores[b][h][i] - base));
          total += weights.back();
        }
        lse[b][h][g] = base + std::log(total);
        for (int64_t column = 0; column < sizes[3]; ++column) {
          double largest = kNever, sum = 0;
          for (size_t i = 0; i < tokens.size(); ++i) {
            const double value = x[b][h][tokens[i]][column];
            largest = std::max(largest, value);
            sum += weights[i] * value;
          }
          out[b][h][g][column] = how == Pooling::max   ? largest
                                 : how == Pooling::sum ? sum
                                                       : sum / total;
        }
      }
  return {.out = out_tensor, .lse = is_softmax ? lse_tensor : Tensor()};
}

// 0 instead of minus infinity, that has no differences.
Tensor finite(const Tensor& lse) { return lse.masked_fill(lse.detach() == kNever, 0); }

// out, lse, and the gradients of x and scores; without lse and scores where there are
// none.
Tensors results(const Pool& pool, const PoolInputs& at) {
  PoolInputs inputs = at;
  inputs.x = at.x.detach().requires_grad_();
  Tensors leaves = {inputs.x};
  if (at.scores.defined()) {
    inputs.scores = at.scores.detach().requires_grad_();
    leaves.push_back(inputs.scores);
  }
  const Pooled pooled = pool(inputs);
  Tensors outs = {pooled.out};
  if (pooled.lse.defined()) outs.push_back(finite(pooled.lse));
  torch::manual_seed(2);
  Tensors slopes;
  for (const auto& out : outs)
    slopes.push_back(torch::randn(out.sizes(), torch::kDouble).to(out.options()));
  const Tensors gradients = torch::autograd::grad(outs, leaves, slopes);
  outs.insert(outs.end(), gradients.begin(), gradients.end());
  return outs;
}

// Both ways to pool, fused and plain, and the spans they mean.
struct Way {
  const char* name;
  std::vector<Span> spans;
  Pool fused, plain;
};

std::vector<Way> ways(int64_t tokens, Pooling how) {
  std::vector<Way> all;
  const auto add_spans = [&](const char* name, const std::vector<Span>& spans) {
    all.push_back(
        {.name = name,
         .spans = spans,
         .fused = [=](const PoolInputs& in) { return pool_spans(in, spans, how); },
         .plain =
             [=](const PoolInputs& in) {
               return pool_spans_reference(in, spans, how);
             }});
  };
  add_spans("odd spans", odd_spans(tokens));
  add_spans("equal spans", equal_spans(tokens, 8, 8));
  for (const int64_t segment : {0, 1, 7, 100})
    all.push_back(
        {.name = "prefixes",
         .spans = prefixes_of(tokens, segment),
         .fused = [=](const PoolInputs& in) { return pool_prefixes(in, segment, how); },
         .plain =
             [=](const PoolInputs& in) {
               return pool_prefixes_reference(in, segment, how);
             }});
  return all;
}

std::string text(Pooling how, const Way& way, int64_t width) {
  return way.name + (" of width " + std::to_string(width)) + ", pooling " +
         std::to_string(static_cast<int>(how));
}

class PoolOnEveryIsa : public EachIsa {};

TEST_P(PoolOnEveryIsa, IsWhatLoopsGive) {
  for (const auto how : kEvery)
    for (const int64_t width : {1, 3, 16, 33, 64})
      for (const bool masked : {false, true})
        for (const auto& way : ways(150, how)) {
          const auto inputs =
              random_inputs({2, 2, 150, width}, how, torch::kDouble, masked);
          const auto expected = by_loops(inputs, way.spans, how);
          const auto fused = way.fused(inputs), plain = way.plain(inputs);
          EXPECT_TRUE(close(fused.out, expected.out, 1e-12)) << text(how, way, width);
          EXPECT_TRUE(close(plain.out, expected.out, 1e-12)) << text(how, way, width);
          EXPECT_EQ(fused.lse.defined(), how == Pooling::softmax);
          if (how != Pooling::softmax) continue;
          EXPECT_TRUE(close(fused.lse, expected.lse, 1e-12)) << text(how, way, width);
          EXPECT_TRUE(close(plain.lse, expected.lse, 1e-12)) << text(how, way, width);
        }
}

TEST_P(PoolOnEveryIsa, IsAsExactAsPlainOperations) {
  for (const auto how : kEvery)
    for (const int64_t width : {1, 3, 16, 33, 64})
      for (const auto& way : ways(200, how)) {
        const auto inputs = random_inputs({1, 3, 200, width}, how, torch::kFloat);
        const auto got = results(way.fused, inputs);
        const auto usual = results(way.plain, inputs);
        const auto exact = results(way.plain, to(inputs, torch::kDouble));
        for (size_t i = 0; i < got.size(); ++i) {
          const double size = std::max(1.0, exact[i].abs().max().item<double>());
          EXPECT_TRUE(about_as_exact(got[i] / size, usual[i] / size, exact[i] / size))
              << "result " << i << " of " << text(how, way, width);
        }
      }
}

TEST_P(PoolOnEveryIsa, StaysExactOverManyTokens) {
  for (const auto how : {Pooling::mean, Pooling::sum, Pooling::softmax}) {
    auto inputs = random_inputs({1, 1, 20000, 3}, how, torch::kFloat);
    if (how == Pooling::softmax)  // each a little larger than the one before
      inputs.scores = torch::linspace(-70, 30, 20000, torch::kFloat).view({1, 1, -1});
    const std::vector<Span> whole = {{0, 20000}};
    const auto exact = by_loops(inputs, whole, how);
    const auto span = pool_spans(inputs, whole, how);
    const auto prefixes = pool_prefixes(inputs, 0, how);
    EXPECT_TRUE(close(span.out, exact.out, 1e-6));
    EXPECT_TRUE(close(prefixes.out.slice(2, 19999), exact.out, 1e-6));
    if (how != Pooling::softmax) continue;
    EXPECT_TRUE(close(span.lse, exact.lse, 1e-6));
    EXPECT_TRUE(close(prefixes.lse.slice(2, 19999), exact.lse, 1e-6));
  }
}

INSTANTIATE_TEST_SUITE_P(EveryInstructionSet, PoolOnEveryIsa,
                         ::testing::ValuesIn(cpu::kAllIsas),
                         [](const auto& test) { return cpu::name(test.param); });

TEST(Pool, HasTheGradientsOfItsOutputs) {
  for (const auto how : kEvery)
    for (const auto& way : ways(80, how)) {
      const auto inputs = random_inputs({2, 1, 80, 5}, how);
      const auto f = [&](const Pool& pool) {
        return [&, pool](const Tensors& at) {
          const auto pooled =
              pool({.x = at[0],
                    .keep = inputs.keep,
                    .scores = how == Pooling::softmax ? at[1] : Tensor()});
          if (how != Pooling::softmax) return Tensors{pooled.out};
          return Tensors{pooled.out, finite(pooled.lse)};
        };
      };
      Tensors at = {inputs.x};
      if (how == Pooling::softmax) at.push_back(inputs.scores);
      EXPECT_TRUE(gradients_agree(f(way.fused), at)) << text(how, way, 5);
      EXPECT_TRUE(gradients_agree(f(way.plain), at)) << text(how, way, 5);
    }
}

TEST(Pool, IsTheSameForAnyNumberOfThreads) {
  for (const auto dtype : {torch::kFloat, torch::kDouble})
    for (const auto how : kEvery)
      for (const int64_t heads : {1, 12})  // cut by columns, and not
        for (const int64_t segment : {0, 30}) {
          const auto inputs = random_inputs({1, heads, 130, 67}, how, dtype);
          const auto spans = segment ? equal_spans(130, segment, 20) : odd_spans(130);
          const auto run = [&] {
            auto all = results(
                [&](const PoolInputs& in) { return pool_spans(in, spans, how); },
                inputs);
            for (const auto& one : results(
                     [&](const PoolInputs& in) {
                       return pool_prefixes(in, segment, how);
                     },
                     inputs))
              all.push_back(one);
            return all;
          };
          EXPECT_TRUE(testing::same_with_any_threads(run))
              << dtype << ", pooling " << static_cast<int>(how);
        }
}

TEST(Pool, StandsAnyScaleOfScores) {
  constexpr int64_t kTokens = 150;
  for (const auto dtype : {torch::kFloat, torch::kDouble}) {
    const auto random = random_inputs({1, 2, kTokens, 4}, Pooling::softmax, dtype);
    const auto ramp = torch::linspace(-1e4, 1e4, kTokens, dtype).expand({1, 2, -1});
    for (const auto& scores :
         {random.scores + 1e4, random.scores - 1e4, 1e4 * random.scores.sign(), ramp,
          -ramp, random.scores * 30})
      for (const auto& way : ways(kTokens, Pooling::softmax)) {
        const PoolInputs inputs{.x = random.x, .scores = scores};
        const auto exact = by_loops(inputs, way.spans, Pooling::softmax);
        const auto pooled = way.fused(inputs);
        const double allowed = dtype == torch::kFloat ? 1e-6 : 1e-13;
        EXPECT_TRUE(close(pooled.out, exact.out, allowed)) << way.name;
        EXPECT_TRUE(close(pooled.lse, exact.lse, allowed)) << way.name;
        const auto got = results(way.fused, inputs);
        const auto expected = results(way.plain, to(inputs, torch::kDouble));
        for (size_t i = 0; i < got.size(); ++i)
          EXPECT_TRUE(close(got[i], expected[i], 20 * allowed))
              << "result " << i << " of " << way.name;
      }
  }
}

TEST(Pool, NeverCountsWhatIsNotKept) {
  for (const auto dtype : {torch::kFloat, torch::kDouble})
    for (const auto how : kEvery)
      for (const auto& way : ways(90, how)) {
        const auto inputs = random_inputs({2, 2, 90, 33}, how, dtype);
        const auto expected = results(way.fused, inputs);
        for (const double content : {double{NAN}, double{INFINITY}, -1e30}) {
          auto other = inputs;
          other.x = inputs.x.masked_fill(~inputs.keep.unsqueeze(-1), content);
          if (how == Pooling::softmax)
            other.scores = inputs.scores.masked_fill(~inputs.keep, content);
          for (const auto& pool : {way.fused, way.plain}) {
            const auto got = results(pool, other);
            for (size_t i = 0; i < got.size(); ++i)
              EXPECT_TRUE(close(got[i], expected[i], 1e-5))
                  << "result " << i << " of " << text(how, way, 33);
            const auto dropped =
                got[got.size() - (how == Pooling::softmax ? 2 : 1)].masked_select(
                    ~inputs.keep.unsqueeze(-1));
            EXPECT_TRUE((dropped == 0).all().item<bool>());
          }
        }
      }
}

TEST(Pool, IsZeroWhereThereIsNothing) {
  for (const auto how : kEvery)
    for (const auto& way : ways(90, how)) {
      auto inputs = random_inputs({1, 2, 90, 4}, how);
      inputs.keep = torch::zeros({1, 1, 90}, torch::kBool);
      for (const auto& pool : {way.fused, way.plain}) {
        const auto pooled = pool(inputs);
        EXPECT_TRUE((pooled.out == 0).all().item<bool>()) << text(how, way, 4);
        if (how == Pooling::softmax) {
          EXPECT_TRUE((pooled.lse == kNever).all().item<bool>());
        }
        for (const auto& result : results(pool, inputs))
          EXPECT_TRUE((result == 0).all().item<bool>()) << text(how, way, 4);
      }
    }
}

TEST(Pool, GivesNoWeightToScoresOfMinusInfinity) {
  for (const auto& way : ways(90, Pooling::softmax)) {
    const auto inputs = random_inputs({1, 2, 90, 4}, Pooling::softmax);
    const auto expected = results(way.fused, inputs);
    const PoolInputs unmasked{
        .x = inputs.x.masked_fill(~inputs.keep.unsqueeze(-1), NAN),
        .scores = inputs.scores.masked_fill(~inputs.keep, kNever)};
    for (const auto& pool : {way.fused, way.plain}) {
      const auto got = results(pool, unmasked);
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_TRUE(close(got[i], expected[i])) << "result " << i << " of " << way.name;
    }
  }
}

TEST(Pool, GivesTheGradientOfMaxToTheFirstOfEqualLargest) {
  // Token:                          0  1  2  3  4  5
  const auto values = torch::tensor({9, 1, 3, 3, 2, 3}, torch::kDouble);
  const auto keep = torch::tensor({0, 1, 1, 1, 1, 1}).to(torch::kBool).view({1, 1, 6});
  for (const bool fused : {true, false}) {
    const auto x =
        values.view({1, 1, 6, 1}).expand({1, 1, 6, 3}).clone().requires_grad_();
    const PoolInputs inputs{.x = x, .keep = keep};
    const auto slopes = [&](const Tensor& out) {
      return torch::autograd::grad({out.sum()}, {x})[0].select(3, 1).flatten();
    };
    const std::vector<Span> spans = {{0, 6}, {3, 6}, {4, 6}, {0, 1}};
    EXPECT_TRUE(torch::equal(
        slopes((fused ? pool_spans : pool_spans_reference)(inputs, spans, Pooling::max)
                   .out),
        torch::tensor({0, 0, 1, 1, 0, 1}, torch::kDouble)));
    EXPECT_TRUE(torch::equal(slopes((fused ? pool_prefixes : pool_prefixes_reference)(
                                        inputs, 0, Pooling::max)
                                        .out),
                             torch::tensor({0, 1, 4, 0, 0, 0}, torch::kDouble)));
    EXPECT_TRUE(torch::equal(slopes((fused ? pool_prefixes : pool_prefixes_reference)(
                                        inputs, 4, Pooling::max)
                                        .out),
                             torch::tensor({0, 1, 2, 0, 1, 1}, torch::kDouble)));
  }
}

TEST(LargestPlaces, AreThoseOfTheFirstOfEqualLargest) {
  const Tensor x = torch::tensor({3.F, 1.F, 7.F, 1.F, 7.F, 2.F, 5.F, 2.F, 9.F, 9.F})
                       .view({1, 1, 5, 2});
  const Tensor keep = torch::tensor({true, true, true, true, false}).view({1, 1, 5});
  const std::vector<Span> spans = {{0, 3}, {1, 5}, {2, 2}, {4, 5}};
  const Tensor expected = torch::tensor({1, 2, 1, 2, -1, -1, -1, -1}, torch::kInt);
  EXPECT_TRUE(
      largest_places({.x = x, .keep = keep}, spans).equal(expected.view({1, 1, 4, 2})));
  EXPECT_TRUE(largest_places({.x = x}, {{3, 5}})
                  .equal(torch::tensor({4, 4}, torch::kInt).view({1, 1, 1, 2})));
}

TEST(Pool, IsNanFromTheFirstNanOn) {
  for (const auto how : kEvery)
    for (const auto& way : ways(90, how)) {
      auto inputs = random_inputs({1, 1, 90, 3}, how, torch::kFloat, /*masked=*/false);
      inputs.x.index_put_({0, 0, 40, 1}, NAN);
      inputs.x.index_put_({0, 0, 50, 1}, NAN);
      const auto out = way.fused(inputs).out;
      for (size_t g = 0; g < way.spans.size(); ++g) {
        const auto [from, to] = way.spans[g];
        const bool has_nan = (from <= 40 && 40 < to) || (from <= 50 && 50 < to);
        const auto row = out[0][0][static_cast<int64_t>(g)].isnan();
        EXPECT_EQ(row[1].item<bool>(), has_nan) << text(how, way, 3) << " row " << g;
        EXPECT_FALSE(row[0].item<bool>() || row[2].item<bool>());
      }
      if (how != Pooling::max) continue;
      const auto gradient = results(way.fused, inputs)[1];
      EXPECT_TRUE(gradient.isfinite().all().item<bool>());
    }
}

TEST(Pool, TakesAnyStrides) {
  const auto wide = random_tensors(1, {2, 90, 3, 40}, torch::kFloat)[0];
  const auto scores = random_tensors(1, {90, 3, 2}, torch::kFloat, /*seed=*/1)[0];
  const auto keep = torch::rand({90, 1, 2}).permute({2, 1, 0}) < 0.6;
  for (const auto how : kEvery)
    for (const auto& way : ways(90, how))
      for (const auto& x : {wide.transpose(1, 2).slice(3, 1, 38),
                            wide.transpose(1, 2).slice(3, 0, 40, 2),
                            wide.view({2, 90, 40, 3}).permute({0, 3, 1, 2})}) {
        PoolInputs strided{.x = x, .keep = keep};
        PoolInputs dense{.x = x.contiguous(), .keep = keep.contiguous()};
        if (how == Pooling::softmax) {
          strided.scores = scores.permute({2, 1, 0});
          dense.scores = strided.scores.contiguous();
        }
        const auto got = results(way.fused, strided);
        const auto expected = results(way.fused, dense);
        for (size_t i = 0; i < got.size(); ++i)
          EXPECT_TRUE(torch::equal(got[i], expected[i]))
              << "result " << i << " of " << text(how, way, x.size(3));
      }
}

TEST(Pool, TakesSlopesOfAnyStrides) {
  for (const auto how : kEvery)
    for (const auto& way : ways(90, how)) {
      auto inputs = random_inputs({1, 2, 90, 33}, how, torch::kFloat);
      inputs.x.requires_grad_();
      const auto out = way.fused(inputs).out;
      const auto gradient = [&](const Tensor& slope) {
        return torch::autograd::grad({out}, {inputs.x}, {slope},
                                     /*retain_graph=*/true)[0];
      };
      const auto ones = torch::ones({}).expand(out.sizes());
      EXPECT_TRUE(torch::equal(gradient(ones), gradient(ones.contiguous())));
      const auto turned = torch::randn_like(out).transpose(2, 3).contiguous();
      EXPECT_TRUE(torch::equal(gradient(turned.transpose(2, 3)),
                               gradient(turned.transpose(2, 3).contiguous())));
    }
}

TEST(Pool, RoundsWhatFloatGives) {
  for (const auto dtype : {torch::kBFloat16, torch::kHalf})
    for (const auto how : kEvery)
      for (const auto& way : ways(90, how)) {
        const auto low = to(random_inputs({1, 2, 90, 9}, how), dtype);
        const auto pooled = way.fused(low), exact = way.fused(to(low, torch::kFloat));
        EXPECT_EQ(pooled.out.scalar_type(), dtype);
        EXPECT_TRUE(torch::equal(pooled.out, exact.out.to(dtype)));
        if (how == Pooling::softmax) {
          EXPECT_EQ(pooled.lse.scalar_type(), torch::kFloat);
          EXPECT_TRUE(torch::equal(pooled.lse, exact.lse));
        }
        const auto got = results(way.fused, low);
        for (size_t i = pooled.lse.defined() ? 2 : 1; i < got.size(); ++i) {
          EXPECT_EQ(got[i].scalar_type(), dtype);
          EXPECT_TRUE(close(got[i], results(way.fused, to(low, torch::kFloat))[i],
                            dtype == torch::kHalf ? 2e-3 : 1e-2))
              << "result " << i << " of " << text(how, way, 9);
        }
      }
}

TEST(Pool, TakesFloatScoresOfShortTypes) {
  auto inputs = random_inputs({1, 2, 20, 9}, Pooling::softmax, torch::kFloat);
  inputs.x = inputs.x.to(torch::kBFloat16);
  inputs.scores.requires_grad_();
  const auto pooled = pool_prefixes(inputs, 0, Pooling::softmax);
  EXPECT_EQ(pooled.out.scalar_type(), torch::kBFloat16);
  const auto slopes = torch::autograd::grad({pooled.out}, {inputs.scores},
                                            {torch::ones_like(pooled.out)});
  EXPECT_EQ(slopes[0].scalar_type(), torch::kFloat);
}

TEST(Pool, GivesOnlyTheGradientsAskedFor) {
  for (const auto& way : ways(90, Pooling::softmax)) {
    const auto inputs = random_inputs({1, 2, 90, 40}, Pooling::softmax);
    const auto gradients = [&](bool of_x, bool of_scores) {
      auto leaf = inputs;
      leaf.x = inputs.x.detach().requires_grad_(of_x);
      leaf.scores = inputs.scores.detach().requires_grad_(of_scores);
      Tensors asked;
      if (of_x) asked.push_back(leaf.x);
      if (of_scores) asked.push_back(leaf.scores);
      const auto out = way.fused(leaf).out;
      return torch::autograd::grad({out}, asked, {out.detach()});
    };
    const auto both = gradients(true, true);
    EXPECT_TRUE(torch::equal(gradients(true, false)[0], both[0]));
    EXPECT_TRUE(torch::equal(gradients(false, true)[0], both[1]));
  }
}

TEST(Pool, SharesOneMaskAmongExamplesAndHeads) {
  for (const auto how : kEvery)
    for (const auto& way : ways(90, how)) {
      auto inputs = random_inputs({3, 2, 90, 4}, how);
      for (const auto& shared : {inputs.keep.slice(0, 0, 1), inputs.keep.slice(1, 0, 1),
                                 inputs.keep.slice(0, 0, 1).slice(1, 0, 1)}) {
        inputs.keep = shared;
        const auto got = results(way.fused, inputs), plain = results(way.plain, inputs);
        inputs.keep = shared.expand({3, 2, 90}).contiguous();
        const auto expected = results(way.fused, inputs);
        for (size_t i = 0; i < got.size(); ++i) {
          EXPECT_TRUE(torch::equal(got[i], expected[i])) << text(how, way, 4);
          EXPECT_TRUE(close(plain[i], expected[i])) << text(how, way, 4);
        }
      }
    }
}

TEST(Pool, MayHaveNoTokensOrSpans) {
  for (const auto how : kEvery)
    for (const int64_t tokens : {0, 5})
      for (const bool fused : {true, false}) {
        const auto inputs = random_inputs({2, 1, tokens, 3}, how);
        const auto over_spans = fused ? pool_spans : pool_spans_reference;
        EXPECT_EQ(over_spans(inputs, {}, how).out.sizes(),
                  (std::vector<int64_t>{2, 1, 0, 3}));
        const auto empty = over_spans(inputs, {{0, 0}, {tokens, tokens}}, how);
        EXPECT_TRUE(
            torch::equal(empty.out, torch::zeros({2, 1, 2, 3}, torch::kDouble)));
        const auto over_prefixes = fused ? pool_prefixes : pool_prefixes_reference;
        EXPECT_EQ(over_prefixes(inputs, 0, how).out.sizes(), inputs.x.sizes());
        if (how != Pooling::softmax) continue;
        EXPECT_EQ(empty.lse.sizes(), (std::vector<int64_t>{2, 1, 2}));
        EXPECT_TRUE((empty.lse == kNever).all().item<bool>());
      }
  const auto x = torch::zeros({1, 1, 0, 3}).requires_grad_();
  const auto out = pool_spans({.x = x}, {{0, 0}}, Pooling::sum).out;
  EXPECT_EQ(torch::autograd::grad({out.sum()}, {x})[0].sizes(), x.sizes());
}

TEST(Pool, RefusesASecondDerivative) {
  for (const auto how : kEvery)
    for (const auto& way : ways(90, how)) {
      auto inputs = random_inputs({1, 1, 90, 3}, how);
      inputs.x.requires_grad_();
      const auto out = way.fused(inputs).out;
      EXPECT_EQ(refusal([&] {
                  torch::autograd::grad({out.square().sum()}, {inputs.x}, {},
                                        /*retain_graph=*/true, /*create_graph=*/true);
                }),
                "pooling: it has no second derivatives; the reference has");
    }
}

TEST(Pool, RefusesWhatDoesNotFit) {
  const auto inputs = random_inputs({2, 3, 9, 4}, Pooling::softmax, torch::kFloat);
  const auto said = [](const PoolInputs& given, Pooling how = Pooling::mean,
                       const std::vector<Span>& spans = {{0, 9}}) {
    return refusal([&] { pool_spans(given, spans, how); });
  };
  const auto& [x, keep, scores] = inputs;
  EXPECT_EQ(said({}),
            "pooling: x must be [B, H, N, d] with d of 1 or more, got nothing");
  EXPECT_EQ(said({.x = x[0]}),
            "pooling: x must be [B, H, N, d] with d of 1 or more, got [3, 9, 4]");
  EXPECT_EQ(said({.x = x.slice(3, 0, 0)}),
            "pooling: x must be [B, H, N, d] with d of 1 or more, got [2, 3, 9, 0]");
  EXPECT_EQ(said({.x = x.to(torch::kLong)}),
            "pooling: x must be float, double, bfloat16 or half, got Long");
  EXPECT_EQ(said({.x = x.slice(2, 0, 1).expand({2, 3, int64_t{1} << 31, 4})}),
            "pooling: x must have at most 2147483647 tokens, got 2147483648");
  EXPECT_EQ(said({.x = x, .keep = keep[0]}),
            "pooling: keep must be [B|1, H|1, N] for x of [2, 3, 9, 4], got [3, 9]");
  EXPECT_EQ(said({.x = x, .keep = keep.slice(1, 0, 2)}),
            "pooling: keep must be [B|1, H|1, N] for x of [2, 3, 9, 4], got [2, 2, 9]");
  EXPECT_EQ(said({.x = x, .keep = keep.slice(2, 0, 1)}),
            "pooling: keep must be [B|1, H|1, N] for x of [2, 3, 9, 4], got [2, 3, 1]");
  EXPECT_EQ(said({.x = x, .keep = keep.to(torch::kFloat)}),
            "pooling: keep must be bool, got Float");
  EXPECT_EQ(said({.x = x, .keep = keep.to(torch::kMeta)}),
            "pooling: keep must be on cpu, where x is, got meta");
  EXPECT_EQ(said({.x = x, .scores = scores}),
            "pooling: only softmax takes scores, got [2, 3, 9]");
  EXPECT_EQ(said({.x = x}, Pooling::softmax),
            "pooling: scores of softmax must be [2, 3, 9], got nothing");
  EXPECT_EQ(said({.x = x, .scores = scores[0]}, Pooling::softmax),
            "pooling: scores of softmax must be [2, 3, 9], got [3, 9]");
  EXPECT_EQ(
      said({.x = x, .scores = scores.to(torch::kDouble)}, Pooling::softmax),
      "pooling: scores must be Float where x is Float, got Double; convert one of "
      "them");
  EXPECT_EQ(said({.x = x.to(torch::kHalf), .scores = scores.to(torch::kBFloat16)},
                 Pooling::softmax),
            "pooling: scores must be Half or Float where x is Half, got BFloat16; "
            "convert one of them");
  EXPECT_EQ(said({.x = x, .scores = scores.to(torch::kMeta)}, Pooling::softmax),
            "pooling: scores must be on cpu, where x is, got meta");
  EXPECT_EQ(said({.x = x}, Pooling::max, {{0, 9}, {4, 10}}),
            "pooling: span 1 must lie within 0..9, got 4..10");
  EXPECT_EQ(said({.x = x}, Pooling::max, {{-1, 3}}),
            "pooling: span 0 must lie within 0..9, got -1..3");
  EXPECT_EQ(said({.x = x}, Pooling::max, {{5, 4}}),
            "pooling: span 0 must lie within 0..9, got 5..4");
  EXPECT_EQ(said({.x = x}, static_cast<Pooling>(7)),
            "pooling: it must be max, mean, sum or softmax, got number 7");
  EXPECT_EQ(refusal([&] { pool_prefixes({.x = x}, -1, Pooling::max); }),
            "pooling: segments must have 1 token or more, or 0 for all, got -1");
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

TEST(Pool, EqualsTheCpuOnEveryDevice) {
  for (const auto device : devices())
    for (const auto dtype :
         {torch::kDouble, torch::kFloat, torch::kBFloat16, torch::kHalf})
      for (const auto how : kEvery)
        for (const int64_t width : {5, 64, 260})
          for (const bool masked : {false, true})
            for (const auto& way : ways(150, how)) {
              const auto inputs = to(
                  random_inputs({1, 2, 150, width}, how, torch::kFloat, masked), dtype);
              const PoolInputs there{.x = inputs.x.to(device),
                                     .keep = masked ? inputs.keep.to(device) : Tensor(),
                                     .scores = inputs.scores.defined()
                                                   ? inputs.scores.to(device)
                                                   : Tensor()};
              const auto got = results(way.fused, there);
              const auto expected = results(way.fused, inputs);
              for (size_t i = 0; i < got.size(); ++i)
                EXPECT_TRUE(close(got[i], expected[i], tolerance_of(dtype)))
                    << "result " << i << " of " << text(how, way, width) << " in "
                    << dtype << " on " << device;
            }
}

TEST(Pool, IsWhatLoopsGiveOverManyTokensOnEveryDevice) {
  for (const auto device : devices())
    for (const auto how : {Pooling::mean, Pooling::sum, Pooling::softmax}) {
      auto inputs = random_inputs({1, 1, 20000, 3}, how, torch::kFloat);
      if (how == Pooling::softmax)
        inputs.scores = torch::linspace(-70, 30, 20000, torch::kFloat).view({1, 1, -1});
      const std::vector<Span> whole = {{0, 20000}};
      const auto exact = by_loops(inputs, whole, how);
      const PoolInputs there{
          .x = inputs.x.to(device),
          .keep = inputs.keep.to(device),
          .scores = inputs.scores.defined() ? inputs.scores.to(device) : Tensor()};
      EXPECT_TRUE(close(pool_spans(there, whole, how).out, exact.out, 1e-5)) << device;
      EXPECT_TRUE(
          close(pool_prefixes(there, 0, how).out.slice(2, 19999), exact.out, 1e-5))
          << device;
    }
}

TEST(EqualSpans, EndWithTheFirstThatReachesTheEnd) {
  const auto spans = [](int64_t length, int64_t size, int64_t stride) {
    std::vector<std::pair<int64_t, int64_t>> all;
    for (const auto& [from, to] : equal_spans(length, size, stride))
      all.emplace_back(from, to);
    return all;
  };
  using Pairs = std::vector<std::pair<int64_t, int64_t>>;
  EXPECT_EQ(spans(10, 5, 5), (Pairs{{0, 5}, {5, 10}}));
  EXPECT_EQ(spans(10, 4, 4), (Pairs{{0, 4}, {4, 8}, {8, 10}}));
  EXPECT_EQ(spans(10, 4, 2), (Pairs{{0, 4}, {2, 6}, {4, 8}, {6, 10}}));
  EXPECT_EQ(spans(10, 4, 3), (Pairs{{0, 4}, {3, 7}, {6, 10}}));
  EXPECT_EQ(spans(10, 2, 4), (Pairs{{0, 2}, {4, 6}, {8, 10}}));
  EXPECT_EQ(spans(3, 9, 1), (Pairs{{0, 3}}));
  EXPECT_EQ(spans(0, 2, 2), Pairs());
}

TEST(EqualSpans, RefuseWhatIsNotALength) {
  EXPECT_EQ(refusal([] { equal_spans(-1, 2, 2); }),
            "equal spans: the length must be 0 or more, got -1");
  EXPECT_EQ(refusal([] { equal_spans(9, 0, 2); }),
            "equal spans: the size must be 1 or more, got 0");
  EXPECT_EQ(refusal([] { equal_spans(9, 2, 0); }),
            "equal spans: the stride must be 1 or more, got 0");
}

}  // namespace
}  // namespace longspan::testing
