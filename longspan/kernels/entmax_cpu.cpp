#include "longspan/kernels/entmax_cpu.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "longspan/kernels/cpu/entmax.h"
#include "longspan/kernels/cpu/isa.h"
#include "longspan/kernels/head_views.h"
#include "longspan/kernels/heads.h"
#include "longspan/kernels/in_order.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr int64_t kTile = Layout::kTile;

void run(const cpu::EntmaxTask<float>& task) {
  using Run = void(const cpu::EntmaxTask<float>&);
  cpu::pick<Run>(cpu::portable::entmax, cpu::avx2::entmax, cpu::avx512::entmax)(task);
}
void run(const cpu::EntmaxTask<double>& task) {
  using Run = void(const cpu::EntmaxTask<double>&);
  cpu::pick<Run>(cpu::portable::entmax, cpu::avx2::entmax, cpu::avx512::entmax)(task);
}
void run(const cpu::EntmaxGradientTask<float>& task) {
  using Run = void(const cpu::EntmaxGradientTask<float>&);
  cpu::pick<Run>(cpu::portable::entmax_gradient, cpu::avx2::entmax_gradient,
                 cpu::avx512::entmax_gradient)(task);
}
void run(const cpu::EntmaxGradientTask<double>& task) {
  using Run = void(const cpu::EntmaxGradientTask<double>&);
  cpu::pick<Run>(cpu::portable::entmax_gradient, cpu::avx2::entmax_gradient,
                 cpu::avx512::entmax_gradient)(task);
}

int64_t padded(int64_t width) { return parts_of(width, cpu::kPadding) * cpu::kPadding; }

// With zeros at the end of every row, to the next multiple of kPadding.
Tensor padded(const Tensor& x) {
  const int64_t more = padded(x.size(-1)) - x.size(-1);
  return more == 0 ? x : torch::constant_pad_nd(x, {0, more});
}

// How many queries of a tile go together: fewer where there are many keys, so that the
// memory for their lists stays small.
int64_t lanes_at_once(int64_t keys) {
  constexpr int64_t kNumbers = 1 << 19;
  int64_t lanes = kTile;
  while (lanes > 16 && lanes * keys > kNumbers) lanes /= 2;
  return lanes;
}

// A call as the kernels take it.
template <class Number>
class HeadTasks {
 public:
  HeadTasks(const AttentionCall& call, const AttentionSizes& sizes, const Tensor& alpha)
      : call_(with_padded_rows(call)),
        sizes_(sizes),
        views_(call_, sizes),
        most_keys_((key_tiles(source()) + 1) * kTile),
        lanes_(lanes_at_once(most_keys_)) {
    const Tensor values = alpha.to(torch::kCPU, torch::kDouble).contiguous();
    alphas_.assign(values.data_ptr<double>(), values.data_ptr<double>() + sizes.heads);
  }

  const Source& source() const { return call_.sources.front(); }
  int64_t lanes() const { return lanes_; }
  int64_t query_tiles() const { return parts_of(sizes_.queries, kTile); }

  // Of one head, still without what differs from tile to tile.
  cpu::EntmaxTask<Number> task(int64_t example, int64_t head) const {
    return {.width = sizes_.width,
            .value_width = sizes_.value_width,
            .scale = call_.scale(),
            .alpha = alphas_[head],
            .queries = views_.queries(example, head),
            .lanes = lanes_,
            .source = views_.source(0, example, head),
            .most_keys = most_keys_,
            .dropout = views_.dropout(example, head)};
  }

  // Of the scratch of a task.
  int64_t bytes() const {
    cpu::EntmaxTask<Number> sized{.width = sizes_.width,
                                  .value_width = sizes_.value_width,
                                  .lanes = lanes_,
                                  .most_keys = most_keys_};
    sized.dropout.limit = call_.options.dropout.probability > 0 ? 1 : 0;
    return cpu::portable::entmax_bytes(sized);
  }

  // work(task) for the queries of a tile, some at a time. `visits` has room for all.
  template <class Work>
  void each_part(cpu::EntmaxTask<Number> task, int64_t example, int64_t head,
                 int64_t tile, std::vector<cpu::Visit>& visits,
                 const Work& work) const {
    visits.clear();
    append_visits(source(), example, head, tile, 0, key_tiles(source()), visits);
    task.tile = tile;
    task.visits = visits.data();
    task.visit_count = static_cast<int64_t>(visits.size());
    const int64_t queries = std::min(kTile, sizes_.queries - tile * kTile);
    for (task.first = 0; task.first < queries; task.first += lanes_) work(task);
  }

 private:
  static AttentionCall with_padded_rows(AttentionCall call) {
    for (Source& source : call.sources) {
      source.k = padded(source.k);
      source.v = padded(source.v);
    }
    return call;
  }

  AttentionCall call_;
  AttentionSizes sizes_;
  HeadViews<Number> views_;
  int64_t most_keys_, lanes_;
  std::vector<double> alphas_;
};

std::vector<std::vector<cpu::Visit>> visits_of(int64_t workers, const Source& source) {
  std::vector<std::vector<cpu::Visit>> all(workers);
  for (auto& visits : all) visits.reserve(key_tiles(source));
  return all;
}

template <class Number>
EntmaxAttended forward_as(const AttentionCall& call, const AttentionSizes& sizes,
                          const Tensor& alpha) {
  const auto [examples, heads, queries, width, value_width] = sizes;
  const auto dtype = torch::CppTypeToScalarType<Number>::value;
  const EntmaxAttended result{
      .out = torch::empty({examples, heads, queries, value_width}, dtype),
      .levels = torch::empty({examples, heads, queries, 2}, dtype)};
  auto* const outs = result.out.data_ptr<Number>();
  auto* const levels = result.levels.data_ptr<Number>();
  const HeadTasks<Number> tasks(call, sizes, alpha);
  const int64_t tiles = tasks.query_tiles(), bytes = tasks.bytes();
  const int64_t all_heads = examples * heads, count = tiles * all_heads;
  const Tensor scratch = torch::empty({workers(count), bytes}, torch::kByte);
  auto visits = visits_of(workers(count), tasks.source());
  // Causal tiles that see more keys come first.
  each_in_order(count, [&](int64_t i, int64_t worker) {
    const int64_t tile = tiles - 1 - i / all_heads, at = i % all_heads;
    cpu::EntmaxTask<Number> task = tasks.task(at / sizes.heads, at % sizes.heads);
    task.levels = levels + at * sizes.queries * 2;
    task.out = outs + at * sizes.queries * sizes.value_width;
    task.out_stride = sizes.value_width;
    task.scratch = scratch.data_ptr<uint8_t>() + worker * bytes;
    tasks.each_part(task, at / sizes.heads, at % sizes.heads, tile, visits[worker],
                    [](const auto& part) { run(part); });
  });
  return result;
}

// The gradient is cut into tasks: some tiles of queries of one head. A task has sums of
// its own for keys and values, and adds them to those of all in its turn.
template <class Number>
class Gradient {
 public:
  Gradient(const AttentionCall& call, const AttentionSizes& sizes, const Tensor& alpha,
           const Tensor& levels, const Tensor& out_slope, bool wants_alpha,
           const TakeScores& take_scores)
      : call_(call),
        sizes_(sizes),
        tasks_(call, sizes, alpha),
        levels_(levels),
        out_slope_tensor_(
            unit_stride(out_slope, torch::CppTypeToScalarType<Number>::value)),
        out_slope_(out_slope_tensor_, sizes.heads),
        take_scores_(take_scores),
        each_(take_scores ? 1 : tiles_per_task()),
        width_(padded(sizes.width)),
        value_width_(padded(sizes.value_width)) {
    const auto options =
        torch::TensorOptions(torch::CppTypeToScalarType<Number>::value);
    const Source& source = call.sources.front();
    slopes_.q = torch::empty({sizes.examples, sizes.heads, sizes.queries, sizes.width},
                             options);
    slopes_.k = torch::zeros(source.k.sizes(), options);
    slopes_.v = torch::zeros(source.v.sizes(), options);
    if (wants_alpha) slopes_.alpha = torch::zeros({sizes.heads}, torch::kDouble);
  }

  EntmaxSlopes run_all() {
    const int64_t tiles = tasks_.query_tiles();
    const int64_t all_heads = sizes_.examples * sizes_.heads;
    const int64_t groups = parts_of(tiles, each_), count = groups * all_heads;
    const int64_t keys = sizes_of_keys();
    scratch_bytes_ = tasks_.bytes();
    const int64_t least = workers(std::max(count, all_heads));
    scratch_ = torch::empty({least, scratch_bytes_}, torch::kByte);
    key_sums_ =
        torch::empty({least, keys * (width_ + value_width_)}, levels_.options());
    visits_ = visits_of(least, tasks_.source());
    turns_ = std::make_unique<Turn[]>(std::max<int64_t>(1, slots()));
    alpha_parts_.assign(count, 0);
    number(groups);

    if (!take_scores_) {
      each_in_order(count, [&](int64_t i, int64_t worker) {
        run_task(i, groups, worker, Tensor());
      });
    } else {
      for (int64_t group = 0; group < groups; ++group) {
        const int64_t first = (groups - 1 - group) * each_ * kTile;
        const int64_t end = std::min(first + each_ * kTile, sizes_.queries);
        const Tensor scores = torch::zeros(
            {sizes_.examples, sizes_.heads, end - first, keys}, levels_.options());
        each_in_order(all_heads, [&](int64_t i, int64_t worker) {
          run_task(group * all_heads + i, groups, worker, scores);
        });
        take_scores_(first, end, scores);
      }
    }
    if (slopes_.alpha.defined()) {
      double* const sums = slopes_.alpha.template data_ptr<double>();
      for (int64_t i = 0; i < count; ++i) sums[i % sizes_.heads] += alpha_parts_[i];
    }
    return slopes_;
  }

 private:
  int64_t sizes_of_keys() const { return call_.sources.front().k.size(2); }

  int64_t tiles_per_task() const {
    constexpr int64_t kMostTiles = 8, kFewTasks = 32;
    const int64_t tiles = tasks_.query_tiles();
    int64_t each = kMostTiles;
    while (each > 1 &&
           sizes_.examples * sizes_.heads * parts_of(tiles, each) < kFewTasks)
      each /= 2;
    return each;
  }

  // Tasks that add to the same keys share a slot.
  int64_t slots() const { return sizes_.examples * call_.sources.front().k.size(1); }

  int64_t slot(int64_t head_number) const {
    const Source& source = call_.sources.front();
    const bool alone =
        source.k.size(0) == sizes_.examples && source.v.size(0) == sizes_.examples;
    const int64_t example = alone ? head_number / sizes_.heads : 0;
    const int64_t group = sizes_.heads / source.k.size(1);
    return example * source.k.size(1) + head_number % sizes_.heads / group;
  }

  // Tells every task which turn is its own.
  void number(int64_t groups) {
    const int64_t all_heads = sizes_.examples * sizes_.heads;
    std::vector<int32_t> next(slots(), 0);
    for (int64_t i = 0; i < groups * all_heads; ++i)
      numbers_.push_back(next[slot(i % all_heads)]++);
  }

  // Task i is of group i / heads of tiles, the last of them first, and of head i %
  // heads of all examples'.
  void run_task(int64_t i, int64_t groups, int64_t worker, const Tensor& scores) {
    const int64_t all_heads = sizes_.examples * sizes_.heads, at = i % all_heads;
    const int64_t example = at / sizes_.heads, head = at % sizes_.heads;
    const int64_t first = (groups - 1 - i / all_heads) * each_;
    const int64_t end = std::min(first + each_, tasks_.query_tiles());
    std::vector<cpu::Visit>& visits = visits_[worker];
    const auto [from, to] = keys_of(example, head, first, end, visits);
    Number* const k =
        key_sums_.template data_ptr<Number>() + worker * key_sums_.size(1);
    Number* const v = k + sizes_of_keys() * width_;
    std::fill(k + from * width_, k + to * width_, Number{0});
    std::fill(v + from * value_width_, v + to * value_width_, Number{0});

    cpu::EntmaxGradientTask<Number> task{
        .forward = tasks_.task(example, head),
        .out_slope = out_slope_.at(example, head),
        .out_slope_stride = out_slope_.stride(),
        .q = slopes_.q.template data_ptr<Number>() + at * sizes_.queries * sizes_.width,
        .q_stride = sizes_.width,
        .k = k,
        .v = v,
        .alpha = slopes_.alpha.defined() ? &alpha_parts_[i] : nullptr};
    task.forward.levels = levels_.template data_ptr<Number>() + at * sizes_.queries * 2;
    task.forward.scratch = scratch_.data_ptr<uint8_t>() + worker * scratch_bytes_;
    if (scores.defined()) {
      task.scores = scores.data_ptr<Number>() + at * scores.size(2) * scores.size(3);
      task.scores_stride = scores.size(3);
    }
    for (int64_t tile = first; tile < end; ++tile)
      tasks_.each_part(task.forward, example, head, tile, visits,
                       [&](const cpu::EntmaxTask<Number>& part) {
                         cpu::EntmaxGradientTask<Number> one = task;
                         one.forward = part;
                         run(one);
                       });
    turns_[slot(at)].wait(numbers_[i], [&, from = from, to = to] {
      add(slopes_.k, example, head, from, to, k, width_,
          static_cast<Number>(call_.scale()));
      add(slopes_.v, example, head, from, to, v, value_width_, Number{1});
    });
  }

  struct Rows {
    int64_t from, to;
  };

  // Those that some query of the tiles visits.
  Rows keys_of(int64_t example, int64_t head, int64_t first, int64_t end,
               std::vector<cpu::Visit>& visits) const {
    int64_t least = key_tiles(tasks_.source()), most = 0;
    for (int64_t tile = first; tile < end; ++tile) {
      visits.clear();
      append_visits(tasks_.source(), example, head, tile, 0, key_tiles(tasks_.source()),
                    visits);
      if (visits.empty()) continue;
      least = std::min<int64_t>(least, visits.front().tile);
      most = std::max<int64_t>(most, visits.back().tile + 1);
    }
    return {std::min(least, most) * kTile, std::min(most * kTile, sizes_of_keys())};
  }

  // To rows from .. to - 1 of a head.
  void add(const Tensor& all, int64_t example, int64_t head, int64_t from, int64_t to,
           const Number* sums, int64_t stride, Number factor) const {
    const int64_t width = all.size(3);
    Number* const rows = HeadRows<Number>(all, sizes_.heads).at(example, head);
    for (int64_t row = from; row < to; ++row)
      for (int64_t x = 0; x < width; ++x)
        rows[row * width + x] += factor * sums[row * stride + x];
  }

  const AttentionCall& call_;
  AttentionSizes sizes_;
  HeadTasks<Number> tasks_;
  Tensor levels_, out_slope_tensor_;
  HeadRows<Number> out_slope_;
  const TakeScores& take_scores_;
  int64_t each_;  // tiles of queries of a task
  int64_t width_, value_width_, scratch_bytes_ = 0;
  EntmaxSlopes slopes_;
  Tensor scratch_, key_sums_;  // of each worker
  std::vector<std::vector<cpu::Visit>> visits_;
  std::unique_ptr<Turn[]> turns_;
  std::vector<int32_t> numbers_;     // of the tasks, among those of their slot
  std::vector<double> alpha_parts_;  // of the tasks
};

}  // namespace

EntmaxAttended entmax_cpu(const AttentionCall& call, const AttentionSizes& sizes,
                          const Tensor& alpha) {
  const bool wide = inner_dtype(call.queries.q) == torch::kDouble;
  return (wide ? forward_as<double> : forward_as<float>)(call, sizes, alpha);
}

EntmaxSlopes entmax_gradient_cpu(const AttentionCall& call, const AttentionSizes& sizes,
                                 const Tensor& alpha, const Tensor& levels,
                                 const Tensor& out_slope, bool wants_alpha,
                                 const TakeScores& take_scores) {
  if (inner_dtype(call.queries.q) == torch::kDouble)
    return Gradient<double>(call, sizes, alpha, levels, out_slope, wants_alpha,
                            take_scores)
        .run_all();
  return Gradient<float>(call, sizes, alpha, levels, out_slope, wants_alpha,
                         take_scores)
      .run_all();
}

}  // namespace longspan
