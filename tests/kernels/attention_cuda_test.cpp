// Calls of block_attention that go to each of its CUDA kernels, against the reference
// in double. Without a CUDA device they are skipped.

#include <random>
#include <string>
#include <tuple>
#include <utility>

#include "longspan/kernels/cuda/hopper_lists.h"
#include "longspan/kernels/result_rows.h"
#include "longspan/kernels/rows.h"
#include "tests/kernels/attention_call.h"

namespace longspan::testing {
namespace {

constexpr int64_t kTile = Layout::kTile;
constexpr torch::Dtype kShortTypes[] = {torch::kBFloat16, torch::kHalf};

struct Sizes {
  int64_t examples = 2, heads = 2, queries = 300, keys = 300;
  int64_t width = 64, value_width = 64;
};

std::string text(const Sizes& sizes) {
  std::string all;
  for (const int64_t size : {sizes.examples, sizes.heads, sizes.queries, sizes.keys,
                             sizes.width, sizes.value_width})
    all += " " + std::to_string(size);
  return all;
}

// Gradients of the results; either may be undefined.
struct Slopes {
  Tensor out, lse;
};

struct Results {
  Tensor out, lse;
  Tensors gradients;
};

using Kernel = Attended(const Queries&, const std::vector<Source>&,
                        const BlockAttention&);

Results results(Kernel* kernel, const Call& call, const Slopes& slopes) {
  Tensors at = values(call);
  for (Tensor& tensor : at) tensor = tensor.detach().requires_grad_();
  const Call here = with(call, at);
  const auto [out, lse] = kernel(here.queries, here.sources, here.options);
  Tensors outputs, of_outputs;
  const auto add = [&](const Tensor& output, const Tensor& slope) {
    if (!slope.defined()) return;
    outputs.push_back(output);
    of_outputs.push_back(slope.to(output.scalar_type()));
  };
  add(out, slopes.out);
  add(lse, slopes.lse);
  Tensors gradients = torch::autograd::grad(
      outputs, at, of_outputs, /*retain_graph=*/false, /*create_graph=*/false,
      /*allow_unused=*/true);
  for (size_t i = 0; i < at.size(); ++i)
    if (!gradients[i].defined()) gradients[i] = torch::zeros_like(at[i]);
  return {out.detach(), lse.detach(), gradients};
}

double size_of(const Tensor& tensor) {
  return tensor.to(torch::kDouble).norm().item<double>();
}

// Frobenius norms; infinities must be where `exact` has them.
::testing::AssertionResult within(const Tensor& got, const Tensor& exact,
                                  double allowed) {
  if (got.sizes() != exact.sizes())
    return ::testing::AssertionFailure()
           << "shape " << got.sizes() << ", expected " << exact.sizes();
  const Tensor infinite = exact.isinf();
  if (!torch::equal(got.isinf(), infinite))
    return ::testing::AssertionFailure() << "infinities where none should be, or none";
  const double size = size_of(exact.masked_fill(infinite, 0));
  const double error =
      size_of((got.to(torch::kDouble) - exact).masked_fill(infinite, 0));
  if (error <= allowed * size) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "off by " << error / size << " of its norm, allowed is " << allowed;
}

// As far as roundings of weights and gradients of scores to `type` go.
struct Allowed {
  double out, gradient;
};

Allowed allowed_in(torch::Dtype type) {
  if (type == torch::kBFloat16) return {.out = 4e-3, .gradient = 8e-3};
  if (type == torch::kHalf) return {.out = 8e-4, .gradient = 1.6e-3};
  if (type == torch::kDouble) return {.out = 1e-10, .gradient = 1e-10};
  return {.out = 1e-5, .gradient = 1e-5};
}

// Both results are near the reference's, and the same bits again.
void expect_exact(const Call& call, const Slopes& slopes) {
  constexpr double kAllowedLse = 1e-5;
  Call in_double = call;
  for (Tensor* tensor : learned(in_double)) *tensor = tensor->to(torch::kDouble);
  const Results exact = results(block_attention_reference, in_double, slopes);
  const Results got = results(block_attention, call, slopes);
  const Results again = results(block_attention, call, slopes);
  const auto type = call.queries.q.scalar_type();
  const Allowed allowed = allowed_in(type);
  EXPECT_EQ(got.out.scalar_type(), type);
  EXPECT_EQ(got.lse.scalar_type(), inner_dtype(call.queries.q));
  EXPECT_TRUE(within(got.out, exact.out, allowed.out)) << "out";
  EXPECT_TRUE(within(got.lse, exact.lse, kAllowedLse)) << "lse";
  EXPECT_TRUE(torch::equal(got.out, again.out)) << "other bits of out";
  EXPECT_TRUE(torch::equal(got.lse, again.lse)) << "other bits of lse";
  Call named = call;
  const auto all = named_learned(named);
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(got.gradients[i].scalar_type(), all[i].tensor->scalar_type());
    EXPECT_TRUE(within(got.gradients[i], exact.gradients[i], allowed.gradient))
        << "gradient of " << all[i].name;
    EXPECT_TRUE(torch::equal(got.gradients[i], again.gradients[i]))
        << "other bits of the gradient of " << all[i].name;
  }
}

// Sliding blocks, blocks at random, a global row and a global column.
Pattern scattered(int64_t queries, int64_t keys) {
  std::mt19937 random(7);
  const int64_t rows = (queries + kTile - 1) / kTile,
                columns = (keys + kTile - 1) / kTile;
  std::vector<std::vector<int64_t>> blocks(rows);
  for (auto& of_block : blocks)
    for (int i = 0; i < 3; ++i)
      of_block.push_back(
          static_cast<int64_t>(random() % static_cast<uint64_t>(columns)));
  return any_of(
      {listed_blocks(kTile, blocks), block_of_keys(kTile, 1, 1),
       columns_of_keys({{0, 2}}),
       rows_of_queries({{queries / 2, queries / 2 + 2}}, all_keys(), no_keys())});
}

struct NamedPattern {
  const char* name;
  Pattern pattern;
};

std::vector<NamedPattern> patterns(int64_t queries, int64_t keys) {
  return {{"all", all_keys()},
          {"past", past_keys(keys - queries)},
          {"window", window_of_keys(70, 30)},
          {"scattered", scattered(queries, keys)}};
}

class AttentionOnCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!devices().back().is_cuda()) GTEST_SKIP() << "there is no CUDA device";
    torch::manual_seed(0);
  }

  Tensor normal(at::IntArrayRef shape, torch::Dtype type) const {
    return torch::randn(shape, torch::TensorOptions(type).device(device_));
  }

  // Integers low .. high - 1.
  Tensor integers_of(int64_t low, int64_t high, at::IntArrayRef shape) const {
    return torch::randint(low, high, shape,
                          torch::TensorOptions(torch::kLong).device(device_));
  }

  Call call_of(const Sizes& sizes, torch::Dtype type) const {
    Call call;
    call.queries.q =
        normal({sizes.examples, sizes.heads, sizes.queries, sizes.width}, type);
    call.sources.resize(1);
    call.sources[0].k =
        normal({sizes.examples, sizes.heads, sizes.keys, sizes.width}, type);
    call.sources[0].v =
        normal({sizes.examples, sizes.heads, sizes.keys, sizes.value_width}, type);
    return call;
  }

  Slopes slopes_of(const Call& call) const {
    auto shape = call.queries.q.sizes().vec();
    shape.back() = call.sources[0].v.size(3);
    Slopes slopes;
    slopes.out = normal(shape, call.queries.q.scalar_type());
    shape.pop_back();
    slopes.lse = normal(shape, torch::kFloat);
    return slopes;
  }

  void expect_exact(const Call& call) const {
    testing::expect_exact(call, slopes_of(call));
  }

  // The call as it is, and with what other kernels than the plain one serve.
  void expect_exact_by_any_kernel(Call call) const {
    {
      SCOPED_TRACE("plain");
      expect_exact(call);
    }
    const Tensor& k = call.sources[0].k;
    call.sources[0].bias.column = normal({k.size(0), 1, k.size(2)}, inner_dtype(k));
    {
      SCOPED_TRACE("with a bias");
      expect_exact(call);
    }
    call.options.dropout = {.probability = 0.2, .key = {3}};
    SCOPED_TRACE("with a bias and dropout");
    expect_exact(call);
  }

  torch::Device device_ = devices().back();
};

TEST(ResultRows, LieTokenByTokenUnlessTheyAreWantedHeadByHead) {
  const auto strides = [] {
    const Tensor rows = result_rows(2, 3, 5, 4, torch::kFloat);
    EXPECT_EQ(rows.sizes(), at::IntArrayRef({2, 3, 5, 4}));
    return rows.strides().vec();
  };
  const std::vector<int64_t> by_token = {60, 4, 12, 1};
  EXPECT_EQ(strides(), by_token);
  {
    const HeadByHead wanted;
    EXPECT_EQ(strides(), (std::vector<int64_t>{60, 20, 4, 1}));
    { const HeadByHead again; }
    EXPECT_EQ(strides(), (std::vector<int64_t>{60, 20, 4, 1}));
  }
  EXPECT_EQ(strides(), by_token);
}

TEST_F(AttentionOnCuda, TakesAllWidths) {
  const std::pair<int64_t, int64_t> widths[] = {
      {8, 8},     {32, 32},  {40, 40},  {64, 64}, {96, 96},
      {128, 128}, {32, 128}, {128, 40}, {64, 96}, {56, 24}};
  for (const auto type : kShortTypes)
    for (const auto& [width, value_width] : widths)
      for (const auto& [name, pattern] : patterns(300, 300)) {
        const Sizes sizes{.width = width, .value_width = value_width};
        SCOPED_TRACE(c10::toString(type) + text(sizes) + " " + name);
        Call call = call_of(sizes, type);
        call.sources[0].layout = Layout(300, 300, pattern);
        expect_exact(call);
      }
}

TEST_F(AttentionOnCuda, TakesAllLengths) {
  const std::pair<int64_t, int64_t> lengths[] = {
      {1, 1},   {63, 63},  {130, 130}, {1000, 1000}, {2100, 2100},
      {1, 999}, {130, 63}, {63, 2100}, {1000, 130},  {2100, 1}};
  for (const auto& [queries, keys] : lengths)
    for (const int64_t width : {64, 128})
      for (const auto& [name, pattern] : patterns(queries, keys)) {
        const Sizes sizes{.examples = 1,
                          .queries = queries,
                          .keys = keys,
                          .width = width,
                          .value_width = width};
        SCOPED_TRACE(text(sizes) + " " + name);
        Call call = call_of(sizes, torch::kBFloat16);
        call.sources[0].layout = Layout(queries, keys, pattern);
        expect_exact(call);
      }
}

TEST_F(AttentionOnCuda, TakesCallsWithoutALayout) {
  for (const auto type : kShortTypes)
    expect_exact_by_any_kernel(call_of({.queries = 200, .keys = 333}, type));
}

TEST_F(AttentionOnCuda, TakesMoreHeadsThanItHasMultiprocessors) {
  for (const int64_t width : {64, 128}) {
    const Sizes sizes{.examples = 4,
                      .heads = 50,
                      .queries = 260,
                      .keys = 260,
                      .width = width,
                      .value_width = width};
    for (const auto& [name, pattern] : patterns(260, 260)) {
      SCOPED_TRACE(text(sizes) + " " + name);
      Call call = call_of(sizes, torch::kBFloat16);
      call.sources[0].layout = Layout(260, 260, pattern);
      expect_exact(call);
    }
  }
}

TEST_F(AttentionOnCuda, TakesOnePatternForEachHead) {
  const int64_t queries = 1500, keys = 1300;
  std::vector<Pattern> all = {no_keys()};
  for (const auto& named : patterns(queries, keys)) all.push_back(named.pattern);
  const Layout layout(queries, keys, all,
                      {.examples = 2, .heads = 3, .pattern = {1, 2, 3, 4, 3, 0}});
  for (const int64_t width : {64, 128}) {
    Call call = call_of({.heads = 3,
                         .queries = queries,
                         .keys = keys,
                         .width = width,
                         .value_width = width},
                        torch::kBFloat16);
    call.sources[0].layout = layout;
    expect_exact_by_any_kernel(call);
  }
}

TEST_F(AttentionOnCuda, TakesIntervals) {
  const int64_t length = 700;
  const Tensor key = torch::arange(length, torch::TensorOptions(device_));
  for (const auto type : kShortTypes)
    for (const int64_t width : {64, 128})
      for (const auto& [name, pattern] : patterns(length, length)) {
        SCOPED_TRACE(std::string(name) + " of width " + std::to_string(width));
        Call call = call_of(
            {.queries = length, .keys = length, .width = width, .value_width = width},
            type);
        Source& source = call.sources[0];
        source.layout = Layout(length, length, pattern);
        {
          SCOPED_TRACE("padding of each example");
          const Tensor lengths =
              torch::tensor({length, int64_t{301}}, key.options()).view({2, 1, 1});
          source.to = torch::where(key < lengths, length, 0);
          expect_exact(call);
        }
        {
          SCOPED_TRACE("a window");
          call.queries.first = 40;
          source.from = key - 10;
          source.to = key + 90;
          expect_exact(call);
        }
        SCOPED_TRACE("any ends, of each head");
        source.from = integers_of(0, length, {2, 2, length});
        source.to = source.from + integers_of(0, length, {2, 1, length});
        expect_exact_by_any_kernel(call);
      }
}

// Little more than a tile or two of each kind: what compute-sanitizer has the time for.
// Floats, which have no tensor cores, take it longer.
class SmallCallsOnCuda : public AttentionOnCuda {
 protected:
  void take(torch::Dtype type, int64_t width) {
    const bool is_small = type == torch::kFloat;
    const int64_t queries = is_small ? 70 : 150, keys = is_small ? 80 : 200;
    const auto sorted = [&](int64_t high, at::IntArrayRef shape) {
      return std::get<0>(integers_of(0, high, shape).sort(-1));
    };
    const Call plain = call_of({.examples = 1,
                                .queries = queries,
                                .keys = keys,
                                .width = width,
                                .value_width = width},
                               type);
    for (const auto& [name, pattern] : patterns(queries, keys)) {
      SCOPED_TRACE(name);
      Call call = plain;
      call.sources[0].layout = Layout(queries, keys, pattern);
      expect_exact_by_any_kernel(call);
    }
    {
      SCOPED_TRACE("intervals");
      Call call = plain;
      call.sources[0].from = integers_of(0, queries, {1, 2, keys});
      call.sources[0].to = call.sources[0].from + 90;
      expect_exact_by_any_kernel(call);
    }
    {
      SCOPED_TRACE("buckets");
      Call call = plain;
      call.queries.buckets = sorted(9, {1, 1, queries});
      call.sources[0].buckets = sorted(9, {1, 2, keys});
      expect_exact_by_any_kernel(call);
    }
    for (const bool once : {false, true}) {
      SCOPED_TRACE(once ? "rows, each once" : "rows, some of them often");
      Call call = plain;
      Source& source = call.sources[0];
      call.queries.rows = torch::randperm(queries, plain.queries.q.device());
      source.rows_once = once;
      source.rows = once ? torch::randperm(keys, plain.queries.q.device())
                         : integers_of(-1, keys, {1, 2, keys});
      source.layout = Layout(queries, keys, scattered(queries, keys));
      expect_exact_by_any_kernel(call);
    }
    for (const bool on_grid : {false, true}) {
      SCOPED_TRACE(on_grid ? "biases on a grid" : "biases by distance");
      Call call = plain;
      call.queries.first = 30;
      Bias& bias = call.sources[0].bias;
      const int64_t rows = on_grid ? 9 : 120, columns = 5;
      const auto of = [&](int64_t numbers) {
        std::vector<int64_t> shape = {2, rows};
        if (on_grid) shape.push_back(columns);
        if (numbers > 0) shape.push_back(numbers);
        return normal(shape, torch::kFloat);
      };
      bias.table = of(0);
      bias.vectors = of(width);
      bias.offset = normal({2, width}, torch::kFloat);
      bias.first = on_grid ? -4 : -50;
      bias.width = on_grid ? 12 : 0;
      bias.first_column = -2;
      expect_exact(call);
      bias.vectors = bias.offset = Tensor();
      expect_exact(call);
    }
    SCOPED_TRACE("two sources");
    Call call = plain;
    call.sources.push_back(plain.sources[0]);
    expect_exact_by_any_kernel(call);
  }
};

TEST_F(SmallCallsOnCuda, AreTakenInBfloat16) { take(torch::kBFloat16, 64); }
TEST_F(SmallCallsOnCuda, AreTakenInBfloat16AndWide) { take(torch::kBFloat16, 128); }
TEST_F(SmallCallsOnCuda, AreTakenInFloat) { take(torch::kFloat, 64); }
TEST_F(SmallCallsOnCuda, AreTakenInFloatAndWide) { take(torch::kFloat, 128); }

// Gradients of keys by the kernel that takes tiles of keys in pairs; the last is alone.
TEST_F(AttentionOnCuda, TakesBlocksOfTwoTiles) {
  constexpr int64_t kLength = 2100, kBlock = 2 * kTile, kBlocks = 17, kListed = 7;
  static_assert((kLength + kTile - 1) / kTile % 2 == 1);
  std::vector<std::vector<int64_t>> blocks(kBlocks);
  for (int64_t block = 0; block < kBlocks; ++block)
    for (int64_t i = 0; i < kListed; ++i)  // no two of them side by side
      blocks[block].push_back((block + 2 * i) % kBlocks);
  const Layout layout(kLength, kLength, listed_blocks(kBlock, blocks));
  ASSERT_EQ(cuda::hopper_lists(cuda::HopperStep::kKeyGradient, /*wide=*/false,
                               /*gathered=*/false, layout, 2, 2)
                .kernel,
            cuda::HopperKernel::kLong);
  Call call = call_of({.queries = kLength, .keys = kLength}, torch::kBFloat16);
  call.sources[0].layout = layout;
  expect_exact(call);
}

// What is sorted leaves most tiles of keys to none of the queries of a tile.
TEST_F(AttentionOnCuda, PassesOverTilesWithoutAQueryForThem) {
  const int64_t queries = 330, keys = 450, more_keys = 200, buckets = 9, last = 600;
  const auto sorted = [&](int64_t high, at::IntArrayRef shape) {
    return std::get<0>(integers_of(0, high, shape).sort(-1));
  };
  const auto add_buckets = [&](Call& call) {
    call.queries.buckets = sorted(buckets, {2, 1, queries});
    call.sources[0].buckets = sorted(buckets, {2, 2, keys});
  };
  const auto add_intervals = [&](Call& call) {
    call.queries.positions = sorted(last, {1, 2, queries});
    call.sources[0].from = sorted(last, {2, 1, keys});
    call.sources[0].to = call.sources[0].from + 60;
  };
  const auto without_some = [](Tensor rows) {  // a tile and more of empty places
    rows.slice(-1, 60, 200).fill_(-1);
    return rows;
  };
  for (const auto type : {torch::kFloat, torch::kBFloat16, torch::kDouble})
    for (const int64_t width : {64, 136}) {
      SCOPED_TRACE(std::string(c10::toString(type)) + " of width " +
                   std::to_string(width));
      const Sizes sizes{
          .queries = queries, .keys = keys, .width = width, .value_width = width};
      const Call plain = call_of(sizes, type);
      Call by_bucket = plain, by_interval = plain;
      add_buckets(by_bucket);
      add_intervals(by_interval);
      Call by_both = by_bucket;
      add_intervals(by_both);
      {
        SCOPED_TRACE("buckets");
        expect_exact_by_any_kernel(by_bucket);
      }
      {
        SCOPED_TRACE("buckets of keys alone");
        Call call = by_bucket;
        call.queries.buckets = Tensor();
        expect_exact(call);
      }
      {
        SCOPED_TRACE("intervals");
        expect_exact_by_any_kernel(by_interval);
      }
      {
        SCOPED_TRACE("one end of the intervals");
        Call call = by_interval;
        call.sources[0].to = Tensor();
        expect_exact(call);
        call.sources[0].to = std::exchange(call.sources[0].from, Tensor()) + 60;
        expect_exact(call);
      }
      {
        SCOPED_TRACE("outside of intervals");
        Call call = by_both;
        call.sources[0].outside = true;
        expect_exact(call);
      }
      {
        SCOPED_TRACE("both, of the tiles of a layout");
        Call call = by_both;
        call.sources[0].layout = Layout(queries, keys, scattered(queries, keys));
        expect_exact_by_any_kernel(call);
      }
      {
        SCOPED_TRACE("two sources, the other all of bucket 0");
        Call call = by_both;
        Sizes more = sizes;
        more.keys = more_keys;
        call.sources.push_back(call_of(more, type).sources[0]);
        expect_exact_by_any_kernel(call);
      }
      SCOPED_TRACE("gathered rows");
      Call call = by_both;
      call.queries.rows =
          without_some(torch::arange(queries, call.queries.buckets.options()));
      call.sources[0].rows = without_some(sorted(keys, {2, 2, 500}));
      expect_exact_by_any_kernel(call);
    }
}

TEST_F(AttentionOnCuda, TakesGatheredRows) {
  const int64_t queries = 500, keys = 400, places = 470, key_places = 900;
  const auto query_rows = [&](int64_t lists) {
    Tensors all;
    for (int64_t i = 0; i < lists; ++i) {
      Tensor rows = torch::randperm(queries).slice(0, 0, places);
      rows.masked_fill_(torch::rand({places}) < 0.1, -1);
      all.push_back(rows);
    }
    return torch::stack(all).view({1, lists, places}).to(device_);
  };
  for (const auto type : kShortTypes)
    for (const int64_t width : {64, 128})
      for (const auto& [name, pattern] : patterns(places, key_places)) {
        SCOPED_TRACE(std::string(name) + " of width " + std::to_string(width));
        Call call = call_of(
            {.queries = queries, .keys = keys, .width = width, .value_width = width},
            type);
        Source& source = call.sources[0];
        call.queries.rows = query_rows(2);
        source.rows = integers_of(-1, keys, {2, 2, key_places});  // with repeats
        source.layout = Layout(places, key_places, pattern);
        expect_exact(call);
        {
          SCOPED_TRACE("with intervals of positions");
          call.queries.positions = integers_of(-5, 300, {2, 1, queries});
          source.from = integers_of(-5, 100, {keys});
          source.to = source.from + integers_of(0, 300, {1, 2, keys});
          expect_exact_by_any_kernel(call);
        }
        SCOPED_TRACE("of keys alone");
        call.queries.rows = call.queries.positions = Tensor();
        source.from = source.to = Tensor();
        source.layout = Layout(queries, key_places, pattern);
        expect_exact(call);
      }
}

// So many queries that the sums of a tile of keys are made in parts.
TEST_F(AttentionOnCuda, TakesGatheredRowsOfWhichNoneIsThereTwice) {
  const int64_t queries = 1500, query_places = 1450, keys = 400, key_places = 380;
  const auto some_rows = [&](int64_t count, int64_t places) {
    Tensors all;
    for (int64_t head = 0; head < 2; ++head) {
      Tensor rows = torch::randperm(count).slice(0, 0, places);
      rows.masked_fill_(torch::rand({places}) < 0.1, -1);
      all.push_back(rows);
    }
    return torch::stack(all).view({1, 2, places}).to(device_);
  };
  for (const auto type : kShortTypes)
    for (const int64_t width : {64, 128})
      for (const auto& [name, pattern] : patterns(query_places, key_places)) {
        SCOPED_TRACE(std::string(name) + " of width " + std::to_string(width));
        Call call = call_of(
            {.queries = queries, .keys = keys, .width = width, .value_width = width},
            type);
        Source& source = call.sources[0];
        call.queries.rows = some_rows(queries, query_places);
        source.rows = some_rows(keys, key_places);
        source.rows_once = true;
        source.layout = Layout(query_places, key_places, pattern);
        expect_exact(call);
      }
}

TEST_F(AttentionOnCuda, TakesSharedHeadsAndExamples) {
  const int64_t length = 333;
  for (const auto type : kShortTypes)
    for (const int64_t width : {64, 96})
      for (const int64_t key_heads : {1, 2})
        for (const int64_t examples : {1, 2}) {
          SCOPED_TRACE(std::to_string(key_heads) + " heads of keys, " +
                       std::to_string(examples) + " examples");
          Call call = call_of({.heads = 4,
                               .queries = length,
                               .keys = length,
                               .width = width,
                               .value_width = width},
                              type);
          Source& source = call.sources[0];
          source.k = normal({examples, key_heads, length, width}, type);
          source.v = normal({1, key_heads, length, width}, type);
          source.layout = Layout(length, length, scattered(length, length));
          expect_exact_by_any_kernel(call);
        }
}

TEST_F(AttentionOnCuda, TakesTensorsHoweverTheyLie) {
  const int64_t length = 300, width = 64;
  const auto type = torch::kBFloat16;
  Call call = call_of({.heads = 3}, type);
  Source& source = call.sources[0];
  source.layout = Layout(length, length, past_keys());
  {
    SCOPED_TRACE("token by token, of one projection");
    const Tensor all = normal({2, length, 3, 3, width}, type);
    call.queries.q = all.select(2, 0).transpose(1, 2);
    source.k = all.select(2, 1).transpose(1, 2);
    source.v = all.select(2, 2).transpose(1, 2);
    expect_exact_by_any_kernel(call);
  }
  {
    SCOPED_TRACE("in rows at odd places");
    const auto slice = [&](int64_t before, int64_t after) {
      return normal({2, 3, length, before + width + after}, type)
          .narrow(3, before, width);
    };
    call.queries.q = slice(1, 0);
    source.k = slice(0, 3);
    source.v = slice(8, 8);
    expect_exact_by_any_kernel(call);
  }
  {
    SCOPED_TRACE("from an odd place");
    const auto shifted = [&] {
      const Tensor all = normal({2 * 3 * length * width + 1}, type);
      return all.slice(0, 1).view({2, 3, length, width});
    };
    call.queries.q = shifted();
    source.k = shifted();
    source.v = shifted();
    expect_exact_by_any_kernel(call);
  }
  {
    SCOPED_TRACE("column by column");
    const auto turned = [&] {
      return normal({2, 3, width, length}, type).transpose(2, 3);
    };
    call.queries.q = turned();
    source.k = turned();
    source.v = turned();
    expect_exact_by_any_kernel(call);
  }
}

TEST_F(AttentionOnCuda, TakesGradientsHoweverTheyCome) {
  const int64_t length = 300;
  for (const auto type : kShortTypes)
    for (const bool has_bias : {false, true}) {
      SCOPED_TRACE(has_bias ? "with a bias" : "plain");
      Call call = call_of({}, type);
      call.sources[0].layout = Layout(length, length, window_of_keys(60, 60));
      if (has_bias) call.sources[0].bias.column = normal({1, 2, length}, torch::kFloat);
      const Slopes all = slopes_of(call);
      {
        SCOPED_TRACE("of out alone");
        testing::expect_exact(call, {.out = all.out, .lse = {}});
      }
      {
        SCOPED_TRACE("of lse alone");
        testing::expect_exact(call, {.out = {}, .lse = all.lse});
      }
      {
        SCOPED_TRACE("one number for all");
        testing::expect_exact(
            call, {.out = torch::ones({1}, all.out.options()).expand_as(all.out),
                   .lse = torch::ones({1}, all.lse.options()).expand_as(all.lse)});
      }
      {
        SCOPED_TRACE("one row for all");
        testing::expect_exact(
            call, {.out = all.out.select(2, 0).unsqueeze(2).expand_as(all.out),
                   .lse = all.lse});
      }
      SCOPED_TRACE("token by token");
      const Tensor turned = all.out.transpose(1, 2).contiguous().transpose(1, 2);
      testing::expect_exact(call, {.out = turned, .lse = all.lse});
    }
}

// So far that the step from one to the next is none that the kernels gather by.
TEST_F(AttentionOnCuda, TakesGradientsWhoseRowsLieFarApart) {
  constexpr int64_t kQueries = 2, kStep = int64_t{1} << 30;
  Call call =
      call_of({.examples = 1, .heads = 1, .queries = kQueries}, torch::kBFloat16);
  const Tensor first_last = torch::tensor({int64_t{1}, int64_t{0}});
  call.queries.rows = first_last.to(device_);
  const Slopes all = slopes_of(call);
  const int64_t width = all.out.size(3);
  const Tensor apart =
      torch::empty({kStep + width}, all.out.options())
          .as_strided(all.out.sizes(), {kStep * kQueries, kStep * kQueries, kStep, 1})
          .copy_(all.out);
  testing::expect_exact(call, {.out = apart, .lse = all.lse});
}

TEST_F(AttentionOnCuda, GivesNothingWhereAQuerySeesNothing) {
  const int64_t length = 400;
  for (const bool has_bias : {false, true}) {
    Call call = call_of({.queries = length, .keys = length}, torch::kBFloat16);
    call.sources[0].layout = Layout(length, length, past_keys(-150));
    if (has_bias) call.sources[0].bias.column = normal({1, 1, length}, torch::kFloat);
    const Results got = results(block_attention, call, slopes_of(call));
    EXPECT_EQ(size_of(got.out.narrow(2, 0, 150)), 0);
    EXPECT_EQ(size_of(got.gradients[0].narrow(2, 0, 150)), 0);
    EXPECT_TRUE((got.lse.narrow(2, 0, 150) == kNever).all().item<bool>());
    EXPECT_EQ(size_of(got.gradients[1].narrow(2, length - 150, 150)), 0);
    EXPECT_EQ(size_of(got.gradients[2].narrow(2, length - 150, 150)), 0);
    expect_exact(call);
  }
}

TEST_F(AttentionOnCuda, DropsTheWeightsThatTheCpuDrops) {
  Call call = call_of({.queries = 200, .keys = 170, .width = 24, .value_width = 40},
                      torch::kFloat);
  call.sources[0].layout = Layout(200, 170, scattered(200, 170));
  call.sources.push_back(
      call_of({.keys = 50, .width = 24, .value_width = 40}, torch::kFloat).sources[0]);
  Call here = call;
  for (Tensor* tensor : learned(here)) *tensor = tensor->cpu();
  for (const double probability : {0.1, 0.5, 0.9}) {
    call.options.dropout =
        here.options.dropout = {.probability = probability, .key = {11}};
    const auto there_got = attend(call), here_got = attend(here);
    EXPECT_TRUE(close(there_got.out, here_got.out, 1e-5));
    EXPECT_TRUE(close(there_got.lse, here_got.lse, 1e-5));
  }
}

// Whether LibTorch's own attention may be used, while it lives.
class UseTorchAttention {
 public:
  explicit UseTorchAttention(bool use) : before_(uses_torch_attention()) {
    use_torch_attention(use);
  }
  ~UseTorchAttention() { use_torch_attention(before_); }
  UseTorchAttention(const UseTorchAttention&) = delete;
  UseTorchAttention& operator=(const UseTorchAttention&) = delete;

 private:
  bool before_;
};

TEST_F(AttentionOnCuda, TakesWideHeadsWithAndWithoutLibTorchsOwn) {
  const int64_t length = 333;
  for (const bool use : {true, false}) {
    const UseTorchAttention used(use);
    for (const auto type : kShortTypes)
      for (const int64_t width : {136, 192, 256})
        for (const bool is_causal : {false, true}) {
          SCOPED_TRACE(std::string(use ? "LibTorch's" : "our own") + " of width " +
                       std::to_string(width) + (is_causal ? ", causal" : ""));
          Call call = call_of(
              {.queries = length, .keys = length, .width = width, .value_width = width},
              type);
          if (is_causal) call.sources[0].layout = Layout(length, length, past_keys());
          const Slopes all = slopes_of(call);
          testing::expect_exact(call, {.out = all.out, .lse = {}});
          testing::expect_exact(call, all);
          call.options.scale = 0.2;
          call.queries.q = call.queries.q.transpose(1, 2).contiguous().transpose(1, 2);
          testing::expect_exact(call, {.out = all.out, .lse = {}});
        }
  }
}

}  // namespace
}  // namespace longspan::testing
