#include "longspan/cli/kernel_cases.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>

#include "longspan/base/interleaved.h"
#include "longspan/base/memory.h"
#include "longspan/base/threads.h"
#include "longspan/cli/plain_attention.h"
#include "longspan/kernels/block_attention.h"
#include "longspan/kernels/linear_attention.h"
#include "longspan/kernels/pool.h"

namespace longspan::cli {
namespace {

using torch::Tensor;
using Forward = std::function<Tensor(const Tensors& qkv)>;

struct Direction {
  const char* name;
  double flop;  // of a pair and channel
};

constexpr Direction kForward{"forward", 4}, kBackward{"backward", 10},
    kBoth{"forward+backward", 14};

// Softmax attention of one kind and size.
struct Problem {
  int64_t length = 0, width = 64;
  std::string pattern = "dense";
  Pattern keys = {};  // undefined: all
  const Direction* direction = &kForward;
  torch::ScalarType type = torch::kFloat;
  bool gathered = false;  // rows in an order of their own
  bool vectors = false;   // with a bias of relative positions
  int64_t window = 0;

  std::string name() const {
    return pattern + " n " + std::to_string(length) + " d " + std::to_string(width) +
           " " + direction->name;
  }

  std::optional<Layout> layout() const {
    return keys ? std::optional(Layout(length, length, keys)) : std::nullopt;
  }

  Problem with(const Direction& other) const {
    Problem it = *this;
    it.direction = &other;
    return it;
  }

  Problem with(std::string name, Pattern pattern_of_keys) const {
    Problem it = *this;
    it.pattern = std::move(name);
    it.keys = std::move(pattern_of_keys);
    return it;
  }
};

Problem causal(const Problem& dense) { return dense.with("causal", past_keys()); }

Problem windowed(const Problem& dense, int64_t window) {
  Problem it =
      dense.with("window " + std::to_string(window), window_of_keys(window, window));
  it.window = window;
  return it;
}

Problem gathered(const Problem& dense) {
  Problem it = dense.with("gathered", {});
  it.gathered = true;
  return it;
}

Problem relative_vectors(const Problem& dense) {
  Problem it = dense.with("relative vectors", {});
  it.vectors = true;
  return it;
}

// 8 random blocks of 64 keys for every block of 64 queries.
Problem random_blocks(const Problem& dense) {
  constexpr int64_t kBlock = 64;
  const int64_t blocks = dense.length / kBlock, count = std::min<int64_t>(8, blocks);
  const auto chosen = std::make_shared<std::vector<Span>>();
  for (int64_t row = 0; row < blocks; ++row) {
    const Tensor order = torch::randperm(blocks);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t from = order[i].item<int64_t>() * kBlock;
      chosen->push_back({from, from + kBlock});
    }
  }
  return dense.with("random blocks", [=](int64_t query, std::vector<Span>& keys) {
    const auto first = chosen->begin() + query / kBlock * count;
    keys.insert(keys.end(), first, first + count);
  });
}

// The first 64 tokens see all and are seen by all; the others have a window of 256.
Problem global_tokens(const Problem& dense) {
  const auto globals = [n = dense.length](int64_t query, std::vector<Span>& keys) {
    keys.push_back({0, query < 64 ? n : 64});
  };
  return dense.with("global tokens", any_of({window_of_keys(256, 256), globals}));
}

Step step(const Direction& direction, const Forward& forward, const Tensors& qkv) {
  if (&direction == &kForward)
    return [=] {
      const torch::NoGradGuard without_gradients;
      return forward(qkv);
    };
  Tensors learned;
  for (const Tensor& x : qkv) learned.push_back(x.detach().requires_grad_());
  const Tensor slope = qkv.back();
  if (&direction == &kBoth)
    return [=] {
      return torch::autograd::grad({forward(learned)}, learned, {slope}).front();
    };
  const Tensor out = forward(learned);
  return [=] {
    return torch::autograd::grad({out}, learned, {slope}, /*retain_graph=*/true)
        .front();
  };
}

// A problem with its tensors. It has as many heads as take a time that can be measured.
struct Prepared {
  Tensors qkv;  // [1, H, N, d]
  Work work;    // without a reference
};

Prepared prepared(const Problem& problem) {
  const int64_t n = problem.length, d = problem.width;
  const auto layout = problem.layout();
  const Layout tiles = layout.value_or(Layout(n, n));
  int64_t visited = 0;
  for (int64_t row = 0; row < tiles.query_tiles(); ++row)
    for (const auto& run : tiles.row(0, row)) visited += run.count;
  const int64_t pairs = visited * Layout::kTile * Layout::kTile;
  const int64_t heads = std::clamp<int64_t>(2'000'000'000 / (pairs * d), 1, 64);
  const auto flop = [&](int64_t count) {
    return problem.direction->flop * static_cast<double>(count * heads * d);
  };
  Prepared it;
  it.work.useful = flop(tiles.pairs(0));
  it.work.executed = flop(pairs);
  for (int i = 0; i < 3; ++i)
    it.qkv.push_back(torch::randn({1, heads, n, d}).to(problem.type));
  Queries queries;
  Source source{.layout = layout};
  if (problem.gathered) queries.rows = source.rows = torch::randperm(n);
  if (problem.vectors) {
    source.bias.vectors = torch::randn({1, 2 * n - 1, d});
    source.bias.first = 1 - n;
  }
  const auto forward = [=](const Tensors& qkv) {
    Queries with_q = queries;
    Source with_kv = source;
    with_q.q = qkv[0];
    with_kv.k = qkv[1];
    with_kv.v = qkv[2];
    return block_attention(with_q, {with_kv}).out;
  };
  it.work.ours = step(*problem.direction, forward, it.qkv);
  return it;
}

Case against_sgemm(const Problem& problem, Target target = {}) {
  const auto prepare = [=] {
    constexpr int64_t kSize = 2048;
    const Tensor a = torch::randn({kSize, kSize}), b = torch::randn_like(a);
    Work work = prepared(problem).work;
    work.reference = [=] { return torch::mm(a, b); };
    work.scale = work.useful / static_cast<double>(2 * kSize * kSize * kSize);
    return work;
  };
  return {problem.name(), "sgemm", target, prepare};
}

enum class Memory { warm, as_shipped };

// Against the same in tensor operations: what make() gives.
Case against_form(const Problem& problem, const std::string& form, Memory memory,
                  Target target, const std::function<Forward()>& make) {
  const auto prepare = [=] {
    const Prepared ours = prepared(problem);
    Work work = ours.work;
    work.reference = [memory, form_step = step(*problem.direction, make(), ours.qkv)] {
      std::optional<ShippedAllocator> shipped;
      if (memory == Memory::as_shipped) shipped.emplace();
      return form_step();
    };
    work.alike = true;
    return work;
  };
  const char* const ending = memory == Memory::warm ? ", warm" : ", as shipped";
  return {problem.name(), form + ending, target, prepare};
}

Case against_composite(const Problem& problem, Memory memory, Target target = {}) {
  return against_form(problem, "composite", memory, target, [=]() -> Forward {
    const auto layout = problem.layout();
    const Tensor hidden = layout ? layout->dense(0).logical_not() : Tensor();
    return [=](const Tensors& qkv) { return composite_attention(qkv, hidden); };
  });
}

Case against_sliding_chunks(const Problem& problem, Memory memory, Target target = {}) {
  return against_form(problem, "sliding chunks", memory, target, [=]() -> Forward {
    const int64_t window = problem.window;
    const Tensor hidden = hidden_in_sliding_chunks(problem.length, window);
    return [=](const Tensors& qkv) { return sliding_chunks(qkv, window, hidden); };
  });
}

bool has_sliding_chunks(const Problem& problem) {
  return problem.window > 0 && problem.length % (2 * problem.window) == 0;
}

// Against another problem of ours, in time per tile of scores.
Case against_own(const Problem& problem, const Problem& other,
                 const std::string& reference, Target target = {}) {
  const auto prepare = [=] {
    Work work = prepared(problem).work;
    const Work other_work = prepared(other).work;
    work.reference = other_work.ours;
    work.scale = work.executed / other_work.executed;
    return work;
  };
  return {problem.name(), reference, target, prepare};
}

Case two_threads(const Problem& problem, Target target = {}) {
  const auto prepare = [=] {
    Work work = prepared(problem).work;
    work.reference = [ours = work.ours] {
      const UseThreads one(1);
      return ours();
    };
    work.alike = true;
    return work;
  };
  return {problem.name(), "one thread", target, prepare, {}, /*threads=*/2};
}

// The fastest chunks.
Step best_linear_chunks(const Tensors& qkv) {
  Step best;
  double least = std::numeric_limits<double>::infinity();
  for (const int64_t chunk : {64, 128, 256}) {
    if (qkv[0].size(1) % chunk != 0) continue;
    const Step chunks = [=] { return linear_chunks(qkv, chunk); };
    chunks();  // warm
    const double seconds = std::min(spent_on(chunks).wall, spent_on(chunks).wall);
    if (seconds < least) {
      least = seconds;
      best = chunks;
    }
  }
  return best;
}

Case linear(int64_t length, const std::string& reference,
            const std::function<Step(const Tensors& qkv)>& make, Target target) {
  const auto prepare = [=] {
    constexpr int64_t kHeads = 8, kWidth = 64;
    const Tensor q = torch::rand({kHeads, length, kWidth}), k = torch::rand_like(q),
                 v = torch::randn_like(q);
    const LinearInputs inputs{
        .q = q.unsqueeze(0), .k = k.unsqueeze(0), .v = v.unsqueeze(0)};
    return Work{.ours = [=] { return linear_attention(inputs, {.causal = true}).out; },
                .reference = make({q, k, v}),
                .useful = 4 * static_cast<double>(kHeads * length * kWidth * kWidth),
                .alike = true};
  };
  return {"linear 64x64 n " + std::to_string(length) + " forward", reference, target,
          prepare};
}

Case linear_against_chunks(int64_t length, Target target = {}) {
  return linear(length, "best chunks, warm", best_linear_chunks, target);
}

Case linear_against_recurrence(int64_t length, bool in_registers, Target target = {}) {
  const auto recurrence = [=](const Tensors& qkv) -> Step {
    return [=] { return linear_recurrence(qkv, in_registers); };
  };
  return linear(length, in_registers ? "recurrence in registers" : "recurrence",
                recurrence, target);
}

// Reads and writes so many numbers together.
Step memcpy_moving(int64_t numbers) {
  const int64_t copied = numbers / 2;
  const Tensor from = torch::randn(copied), to = torch::zeros_like(from);
  return [=] {
    at::parallel_for(0, copied, 1 << 16, [&](int64_t begin, int64_t end) {
      std::memcpy(to.data_ptr<float>() + begin, from.data_ptr<float>() + begin,
                  static_cast<size_t>(end - begin) * sizeof(float));
    });
    return to;
  };
}

Case merging(int64_t length, int64_t parts, Target target = {}) {
  const auto prepare = [=] {
    constexpr int64_t kHeads = 16, kWidth = 64;
    std::vector<Attended> attended(static_cast<size_t>(parts));
    for (Attended& part : attended)
      part = {torch::randn({1, kHeads, length, kWidth}),
              torch::randn({1, kHeads, length})};
    const int64_t numbers = (parts + 1) * kHeads * length * (kWidth + 1);
    return Work{.ours = [=] { return merge(attended).out; },
                .reference = memcpy_moving(numbers)};
  };
  return {"merge " + std::to_string(parts) + " n " + std::to_string(length), "memcpy",
          target, prepare};
}

Case pooling(const std::string& name, int64_t length, int64_t rows,
             const std::function<Pooled(const PoolInputs&)>& pool) {
  const auto prepare = [=] {
    constexpr int64_t kHeads = 16, kWidth = 64;
    const PoolInputs inputs{.x = torch::randn({1, kHeads, length, kWidth})};
    return Work{.ours = [=] { return pool(inputs).out; },
                .reference = memcpy_moving((length + rows) * kHeads * kWidth)};
  };
  return {name + " n " + std::to_string(length), "memcpy", {}, prepare};
}

Case pooling_of_spans(int64_t length) {
  const std::vector<Span> spans = equal_spans(length, 64, 64);
  return pooling("pool mean of 64", length, static_cast<int64_t>(spans.size()),
                 [=](const PoolInputs& inputs) {
                   return pool_spans(inputs, spans, Pooling::mean);
                 });
}

Case pooling_of_prefixes(int64_t length) {
  return pooling("pool max of prefix", length, length, [](const PoolInputs& inputs) {
    return pool_prefixes(inputs, /*segment=*/0, Pooling::max);
  });
}

}  // namespace

std::vector<Case> main_cases(int64_t length) {
  const Problem dense{.length = length > 0 ? length : 2048};
  const Problem longer{.length = length > 0 ? length : 8192};
  const Problem window = windowed(longer, 256);
  Problem narrow = dense, bf16 = dense.with("dense bf16", {});
  narrow.width = 32;
  bf16.type = torch::kBFloat16;
  const bool has_bf16 = cpu::isa() == cpu::Isa::avx512_bf16;

  std::vector<Case> cases{
      against_sgemm(dense, {0.9, 1}),
      against_sgemm(narrow, {0.85, 0.95}),
      against_sgemm(bf16, has_bf16 ? Target{1.5, 1.8} : Target{}),
      against_sgemm(windowed(longer, 128), {0.6, 0.72}),
      against_sgemm(window, {0.7, 0.85}),
      against_sgemm(windowed(longer, 512), {0.8, 0.92}),
      against_sgemm(dense.with(kBackward), {0.9, 1.05}),
      against_sgemm(window.with(kBackward), {0.7, 0.85}),
      against_own(window, longer, "own dense x density", {1 / 1.25, 1 / 1.1}),
      against_own(gathered(dense), dense, "own contiguous", {0.92, 0.97}),
      against_own(relative_vectors(dense), dense, "own dense", {1 / 2.2, 1 / 1.8}),
      linear_against_chunks(longer.length, {3, 4.5}),
      linear_against_recurrence(longer.length, false, {2, 2.3}),
      linear_against_recurrence(longer.length, true),
      merging(longer.length, 2, {0.6, 0.75}),
      pooling_of_spans(longer.length),
      against_composite(dense, Memory::warm, {1.5, 1.7}),
      against_composite(dense, Memory::as_shipped, {3, 3.4}),
      against_composite(causal(dense), Memory::warm),
      against_composite(causal(dense), Memory::as_shipped),
      against_composite(dense.with(kBoth), Memory::warm),
      against_composite(dense.with(kBoth), Memory::as_shipped)};
  if (has_sliding_chunks(window)) {
    cases.push_back(against_sliding_chunks(window, Memory::warm, {2.5, 3}));
    cases.push_back(against_sliding_chunks(window, Memory::as_shipped, {6, 6.8}));
  }
  if (usable_cores() >= 2) {
    cases.push_back(two_threads(dense, {1.9, 1.98}));
    cases.push_back(two_threads(dense.with(kBackward)));
  }
  if (cpu::isa() > cpu::Isa::avx2) {
    Case avx2 = against_sgemm(dense, {0.8, 0.92});
    avx2.name += " avx2";
    avx2.isa = cpu::Isa::avx2;
    cases.insert(cases.begin() + 1, avx2);
  }
  return cases;
}

std::vector<Case> sweep_cases(int64_t length) {
  constexpr int64_t kUsualWidth = 64, kLongestComposite = 8192;
  std::vector<Problem> sizes;
  if (length == 0)
    for (int64_t n = 512; n <= 65536; n *= 2) sizes.push_back({.length = n});
  for (const int64_t width : {16, 32, 64, 96, 128, 256})
    if (length > 0 || width != kUsualWidth)
      sizes.push_back({.length = length > 0 ? length : 4096, .width = width});

  std::vector<Case> cases;
  for (const Problem& dense : sizes) {
    std::vector<Problem> problems{dense, causal(dense), gathered(dense)};
    for (int64_t window = 64; window <= 1024 && window < dense.length; window *= 2)
      problems.push_back(windowed(dense, window));
    problems.push_back(random_blocks(dense));
    problems.push_back(global_tokens(dense));
    for (const Problem& problem : problems) {
      cases.push_back(against_sgemm(problem));
      cases.push_back(against_sgemm(problem.with(kBackward)));
      const bool composed = problem.pattern == "dense" || problem.pattern == "causal";
      for (const Memory memory : {Memory::warm, Memory::as_shipped}) {
        if (composed && problem.length <= kLongestComposite) {
          cases.push_back(against_composite(problem, memory));
          cases.push_back(against_composite(problem.with(kBoth), memory));
        }
        if (has_sliding_chunks(problem))
          cases.push_back(against_sliding_chunks(problem, memory));
      }
    }
    cases.push_back(against_own(relative_vectors(dense), dense, "own dense"));
    if (dense.width != kUsualWidth) continue;
    cases.push_back(linear_against_chunks(dense.length));
    cases.push_back(linear_against_recurrence(dense.length, false));
    for (const int64_t parts : {2, 4}) cases.push_back(merging(dense.length, parts));
    cases.push_back(pooling_of_spans(dense.length));
    cases.push_back(pooling_of_prefixes(dense.length));
  }
  return cases;
}

}  // namespace longspan::cli
