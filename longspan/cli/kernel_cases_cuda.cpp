#include "longspan/cli/kernel_cases_cuda.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/generated/variable_factories.h>

#include "longspan/cli/kernel_cases_torch.h"
#include "longspan/kernels/block_attention.h"
#include "longspan/kernels/dropout.h"
#include "longspan/kernels/layer_norm.h"
#include "longspan/kernels/linear_attention.h"
#include "longspan/kernels/pool.h"

namespace longspan::cli {
namespace {

using torch::Tensor;
using Forward = std::function<Tensor(const Tensors& inputs)>;

constexpr int64_t kHeads = 16;
constexpr int64_t kTokens = 32768;  // of all examples: the tensors are larger than L2

int64_t examples(int64_t length) { return std::max<int64_t>(kTokens / length, 1); }

Tensor random_numbers(at::IntArrayRef sizes, torch::Dtype type) {
  return torch::randn(sizes, torch::TensorOptions(type).device(torch::kCUDA));
}

// The gradients of `inputs`, the forward pass being done once.
CudaStep backward_of(const Forward& forward, const Tensors& inputs,
                     const Tensor& slope) {
  Tensors learned;
  for (const Tensor& x : inputs) learned.push_back(x.detach().requires_grad_());
  return [=, out = forward(learned)] {
    return torch::autograd::grad({out}, learned, {slope}, /*retain_graph=*/true);
  };
}

CudaStep forward_of(const Forward& forward, const Tensors& inputs) {
  return [=] {
    const torch::NoGradGuard without_gradients;
    return Tensors{forward(inputs)};
  };
}

CudaStep step(bool backward, const Forward& forward, const Tensors& inputs,
              const Tensor& slope) {
  return backward ? backward_of(forward, inputs, slope) : forward_of(forward, inputs);
}

// A layout that is made when it is first asked for.
using LazyLayout = std::function<Layout()>;

LazyLayout once(std::function<Layout()> make) {
  const auto made = std::make_shared<std::optional<Layout>>();
  return [=] {
    if (!*made) *made = make();
    return **made;
  };
}

// Softmax attention of one kind and size.
struct Problem {
  int64_t length = 0, width = 64;
  torch::Dtype type = torch::kBFloat16;
  std::string pattern = "dense";
  LazyLayout layout = {};  // undefined: all
  bool causal = false, backward = false;
  bool gathered = false;  // rows in a random order, another for every head
  int64_t window = 0;

  std::string name() const {
    const char* const words = type == torch::kBFloat16 ? "bf16"
                              : type == torch::kHalf   ? "fp16"
                                                       : "fp32";
    return pattern + " " + words + " b " + std::to_string(examples(length)) + " n " +
           std::to_string(length) + " d " + std::to_string(width) +
           (backward ? " backward" : " forward");
  }

  Problem with(std::string name, LazyLayout other = {}) const {
    Problem it = *this;
    it.pattern = std::move(name);
    it.layout = std::move(other);
    return it;
  }
};

LazyLayout layout_of(int64_t length, const Pattern& pattern) {
  return once([=] { return Layout(length, length, pattern); });
}

Problem causal(const Problem& dense) {
  Problem it = dense.with("causal", layout_of(dense.length, past_keys()));
  it.causal = true;
  return it;
}

Problem windowed(const Problem& dense, int64_t window) {
  Problem it = dense.with("window " + std::to_string(window),
                          layout_of(dense.length, window_of_keys(window, window)));
  it.window = window;
  return it;
}

Problem gathered(const Problem& dense) {
  Problem it = dense.with("gathered");
  it.gathered = true;
  return it;
}

// A window of 256 on each side, and the first 16 tokens see and are seen by all.
Problem longformer(const Problem& dense) {
  constexpr int64_t kGlobal = 16;
  const std::vector<Span> globals{{0, kGlobal}};
  const Pattern pattern =
      rows_of_queries(globals, all_keys(),
                      any_of({window_of_keys(256, 256), columns_of_keys(globals)}));
  return dense.with("longformer", layout_of(dense.length, pattern));
}

// Blocks of 64: three around, the first and the last for all and all for them, and
// three at random, others for every head.
Problem bigbird(const Problem& dense) {
  constexpr int64_t kBlock = 64, kRandom = 3;
  const int64_t count = dense.length / kBlock;
  const auto head_pattern = [=] {
    std::vector<std::vector<int64_t>> seen;
    for (int64_t row = 0; row < count; ++row) {
      auto& mine = seen.emplace_back(std::vector<int64_t>{0, count - 1});
      for (int64_t near = row - 1; near <= row + 1; ++near)
        if (near >= 0 && near < count) mine.push_back(near);
      const Tensor order = torch::randperm(count, torch::kLong);
      int64_t drawn = 0;
      for (int64_t i = 0; i < count && drawn < kRandom; ++i) {
        const auto block = order.data_ptr<int64_t>()[i];
        if (std::ranges::count(mine, block) > 0) continue;
        mine.push_back(block);
        ++drawn;
      }
    }
    return rows_of_queries({{0, kBlock}, {(count - 1) * kBlock, count * kBlock}},
                           all_keys(), listed_blocks(kBlock, std::move(seen)));
  };
  return dense.with("bigbird", once([=, length = dense.length] {
                      std::vector<Pattern> patterns;
                      Layout::Choice choice{.heads = kHeads, .pattern = {}};
                      for (int32_t head = 0; head < kHeads; ++head) {
                        patterns.push_back(head_pattern());
                        choice.pattern.push_back(head);
                      }
                      return Layout(length, length, patterns, choice);
                    }));
}

Forward block_attention_of(const Problem& problem) {
  Queries queries;
  Source source;
  if (problem.layout) source.layout = problem.layout();
  const auto random_order = [&] {
    Tensors orders;
    for (int64_t head = 0; head < kHeads; ++head)
      orders.push_back(torch::randperm(problem.length, torch::kInt));
    return torch::stack(orders).unsqueeze(0).to(torch::kCUDA);  // [1, H, N]
  };
  if (problem.gathered) {
    queries.rows = random_order();
    source.rows = random_order();
    source.rows_once = true;
  }
  return [=](const Tensors& qkv) {
    Queries with_q = queries;
    Source with_kv = source;
    with_q.q = qkv[0];
    with_kv.k = qkv[1];
    with_kv.v = qkv[2];
    return block_attention(with_q, {with_kv}).out;
  };
}

// Of all pairs, over all heads.
struct Density {
  double pairs = 1;
  double tiles = 1;  // pairs in tiles that are visited
};

Density density(const Problem& problem) {
  if (!problem.layout) return {};
  const Layout layout = problem.layout();
  int64_t pairs = 0, tiles = 0;
  for (int64_t pattern = 0; pattern < layout.patterns(); ++pattern) {
    pairs += layout.pairs(pattern);
    for (int64_t row = 0; row < layout.query_tiles(); ++row)
      for (const Run& run : layout.row(pattern, row)) tiles += run.count;
  }
  const auto of = [&](int64_t some, int64_t all) {
    return static_cast<double>(some) / static_cast<double>(all * layout.patterns());
  };
  return {of(pairs, problem.length * problem.length),
          of(tiles, layout.query_tiles() * layout.key_tiles())};
}

Contender torch_contender(const std::string& name, TorchAttention kernel,
                          const Problem& problem, const Tensors& qkv,
                          const Tensor& slope, Target target = {}) {
  const TorchProblem theirs{problem.causal, problem.backward, problem.window};
  return {.name = name,
          .make = [=] { return torch_step(kernel, qkv, slope, theirs); },
          .target = target,
          .alike = true};
}

// What to reach beside cuDNN is said for these widths.
Target beside_cudnn(const Problem& problem) {
  if (problem.type != torch::kBFloat16) return {};
  if (problem.width != 64 && problem.width != 128) return {};
  if (!problem.backward) return {1.05, 1.2};
  return {problem.width == 64 ? 1.0 : 0.85, 1.1};
}

CudaCase attention(const Problem& problem) {
  const auto prepare = [=] {
    const std::vector<int64_t> sizes = {examples(problem.length), kHeads,
                                        problem.length, problem.width};
    Tensors qkv;
    for (int i = 0; i < 3; ++i) qkv.push_back(random_numbers(sizes, problem.type));
    const Tensor slope = random_numbers(sizes, problem.type);
    const auto ours = [=](const Problem& one) {
      return step(one.backward, block_attention_of(one), qkv, slope);
    };
    const Density share = density(problem);
    CudaWork work{.ours = ours(problem), .contenders = {}};
    work.flop = (problem.backward ? 10 : 4) * share.pairs *
                static_cast<double>(examples(problem.length) * kHeads * problem.length *
                                    problem.length * problem.width);
    if (!problem.layout || problem.causal || problem.window > 0)
      work.contenders.push_back(
          torch_contender("flash", TorchAttention::flash, problem, qkv, slope));
    if (!problem.gathered && (!problem.layout || problem.causal)) {
      work.contenders.push_back(torch_contender("cuDNN", TorchAttention::cudnn, problem,
                                                qkv, slope, beside_cudnn(problem)));
      work.contenders.push_back(
          torch_contender("efficient", TorchAttention::efficient, problem, qkv, slope));
    }
    Problem dense = problem.with("dense");
    dense.gathered = false;
    if (problem.gathered)
      // In other orders of queries and keys the pairs are the same.
      work.contenders.push_back({.name = "own",
                                 .make = [=] { return ours(dense); },
                                 .target = {.must = 0.7},
                                 .alike = true});
    else if (problem.layout)
      work.contenders.push_back({.name = "own",
                                 .make = [=] { return ours(dense); },
                                 .target = {.must = 1 / 1.35},
                                 .scale = share.tiles});
    return work;
  };
  return {problem.name(), {"flash", "cuDNN", "efficient", "own"}, prepare};
}

// Both directions of every pattern.
std::vector<CudaCase> attention_cases(const Problem& dense) {
  std::vector<CudaCase> cases;
  for (Problem problem : {dense, causal(dense), windowed(dense, 256), bigbird(dense),
                          longformer(dense), gathered(dense)})
    for (const bool backward : {false, true}) {
      problem.backward = backward;
      cases.push_back(attention(problem));
    }
  return cases;
}

// Reads and writes so many bytes together.
Contender copy_of(const std::string& name, double bytes, Target target = {}) {
  const auto make = [=]() -> CudaStep {
    const Tensor from =
        torch::randint(256, {static_cast<int64_t>(bytes / 2)},
                       torch::TensorOptions(torch::kByte).device(torch::kCUDA));
    const Tensor to = torch::empty_like(from);
    return [=] { return Tensors{to.copy_(from)}; };
  };
  return {.name = name, .make = make, .target = target};
}

Contender in_torch(std::function<CudaStep()> make, bool alike) {
  return {.name = "torch", .make = std::move(make), .alike = alike};
}

double bytes_of(const Tensors& tensors) {
  double bytes = 0;
  for (const Tensor& x : tensors) bytes += static_cast<double>(x.nbytes());
  return bytes;
}

const std::vector<std::string> kMemoryContenders = {"copy", "least", "torch"};

// Causal linear attention reads q once and k and v twice: for the sums of segments, and
// again for their rows. "least" reads each once.
CudaCase linear(int64_t length, bool backward) {
  const auto prepare = [=] {
    constexpr int64_t kWidth = 64;
    const std::vector<int64_t> sizes = {examples(length), kHeads, length, kWidth};
    Tensors qkv;
    for (int i = 0; i < 3; ++i)
      qkv.push_back(random_numbers(sizes, torch::kBFloat16).abs());
    const Tensor slope = random_numbers(sizes, torch::kBFloat16);
    const auto ours = [](const Tensors& x) {
      return linear_attention({.q = x[0], .k = x[1], .v = x[2]}, {.causal = true}).out;
    };
    const auto chunks = [=](const Tensors& x) {
      Tensors heads;
      for (const Tensor& one : x) heads.push_back(one.to(torch::kFloat).flatten(0, 1));
      return linear_chunks(heads, 64).view(sizes).to(torch::kBFloat16);
    };
    CudaWork work{.ours = step(backward, ours, qkv, slope), .contenders = {}};
    if (!backward) {
      const double once = bytes_of(qkv) + bytes_of({slope});
      work.bytes = once + bytes_of({qkv[1], qkv[2]});
      work.contenders.push_back(copy_of("copy", work.bytes, {.must = 0.6}));
      work.contenders.push_back(copy_of("least", once));
      work.contenders.push_back(
          in_torch([=] { return step(backward, chunks, qkv, slope); }, /*alike=*/true));
    }
    return work;
  };
  return {"linear 64x64 bf16 b " + std::to_string(examples(length)) + " n " +
              std::to_string(length) + (backward ? " backward" : " forward"),
          kMemoryContenders, prepare};
}

// A kernel that moves its inputs and its result once, beside the same in LibTorch's
// operations; backward reads inputs and the slope and writes the gradients of inputs.
CudaCase moving(const std::string& name, bool backward, bool alike,
                const std::function<Tensors()>& make_inputs, const Forward& ours,
                const Forward& theirs) {
  const auto prepare = [=] {
    const Tensors inputs = make_inputs();
    const Tensor slope = [&] {
      const torch::NoGradGuard without_gradients;
      return torch::randn_like(ours(inputs));
    }();
    CudaWork work{.ours = step(backward, ours, inputs, slope), .contenders = {}};
    work.bytes = (backward ? 2 : 1) * bytes_of(inputs) + bytes_of({slope});
    work.contenders.push_back(copy_of("copy", work.bytes));
    work.contenders.push_back(
        in_torch([=] { return step(backward, theirs, inputs, slope); }, alike));
    return work;
  };
  return {name + (backward ? " backward" : " forward"), kMemoryContenders, prepare};
}

std::vector<Attended> parts_of(const Tensors& x) {
  return {{x[0], x[1]}, {x[2], x[3]}};
}

std::vector<CudaCase> memory_cases(int64_t length) {
  const std::vector<int64_t> sizes = {examples(length), kHeads, length, 64};
  const auto two_parts = [=] {
    const std::vector<int64_t> rows(sizes.begin(), sizes.end() - 1);
    Tensors all;
    for (int i = 0; i < 2; ++i) {
      all.push_back(random_numbers(sizes, torch::kBFloat16));
      all.push_back(random_numbers(rows, torch::kFloat));
    }
    return all;
  };
  const auto tokens = [=] { return Tensors{random_numbers(sizes, torch::kBFloat16)}; };
  constexpr int64_t kRows = 131072, kWidth = 512;
  const auto rows = [] {
    const auto weights = [] { return random_numbers({kWidth}, torch::kBFloat16); };
    return Tensors{random_numbers({kRows, kWidth}, torch::kBFloat16), weights(),
                   weights()};
  };
  constexpr int64_t kSpan = 64;
  const std::vector<Span> spans = equal_spans(length, kSpan, kSpan);
  const std::string ending =
      " bf16 b " + std::to_string(sizes[0]) + " n " + std::to_string(length) + " d 64";

  std::vector<CudaCase> cases;
  for (const bool backward : {false, true}) {
    cases.push_back(moving(
        "merge 2" + ending, backward, /*alike=*/true, two_parts,
        [](const Tensors& x) { return merge(parts_of(x)).out; },
        [](const Tensors& x) { return merge_reference(parts_of(x)).out; }));
    cases.push_back(moving(
        "layer norm bf16 131072 x 512", backward, /*alike=*/true, rows,
        [](const Tensors& x) { return layer_norm(x[0], x[1], x[2]); },
        [](const Tensors& x) {
          return torch::layer_norm(x[0], {kWidth}, x[1], x[2]);
        }));
    cases.push_back(moving(
        "dropout" + ending, backward, /*alike=*/false, tokens,
        [](const Tensors& x) { return dropout(x[0], 0.1, Key{1}); },
        [](const Tensors& x) { return torch::dropout(x[0], 0.1, /*train=*/true); }));
    cases.push_back(moving(
        "pool mean of 64" + ending, backward, /*alike=*/true, tokens,
        [=](const Tensors& x) {
          return pool_spans({.x = x[0]}, spans, Pooling::mean).out;
        },
        [](const Tensors& x) {
          return x[0].unflatten(2, {-1, kSpan}).mean(3);
        }));
    // Of equal largest ours gives its gradient to the first, LibTorch to the last.
    cases.push_back(moving(
        "pool max of prefix" + ending, backward, /*alike=*/!backward, tokens,
        [](const Tensors& x) {
          return pool_prefixes({.x = x[0]}, /*segment=*/0, Pooling::max).out;
        },
        [](const Tensors& x) { return std::get<0>(x[0].cummax(2)); }));
  }
  return cases;
}

void append(std::vector<CudaCase>& cases, std::vector<CudaCase> more) {
  std::ranges::move(more, std::back_inserter(cases));
}

}  // namespace

std::vector<CudaCase> main_cuda_cases(int64_t length) {
  std::vector<int64_t> lengths = {16384, 2048};
  if (length > 0) lengths = {length};
  std::vector<CudaCase> cases;
  for (const int64_t n : lengths)
    for (const int64_t width : {64, 128})
      append(cases, attention_cases({.length = n, .width = width}));
  for (const int64_t n : lengths)
    for (const bool backward : {false, true}) cases.push_back(linear(n, backward));
  append(cases, memory_cases(lengths.front()));
  return cases;
}

std::vector<CudaCase> sweep_cuda_cases(int64_t length) {
  std::vector<CudaCase> cases;
  if (length == 0)
    for (int64_t n = 1024; n <= 65536; n *= 2)
      append(cases, attention_cases({.length = n}));
  const int64_t usual = length > 0 ? length : 4096;
  for (const int64_t width : {32, 64, 80, 96, 128})
    append(cases, attention_cases({.length = usual, .width = width}));
  for (const torch::Dtype type : {torch::kHalf, torch::kFloat})
    append(cases, attention_cases({.length = usual, .type = type}));
  for (int64_t n = 1024; n <= 65536; n *= 2)
    if (length == 0) cases.push_back(linear(n, /*backward=*/false));
  return cases;
}

}  // namespace longspan::cli
