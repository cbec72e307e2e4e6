// The gradient is cut into tasks: some keys of one source against the queries of one
// head that see them. A task sums what belongs to its keys on its own; sums that tasks
// share are added to in the order of the tasks, whichever thread runs them.

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>

#include "longspan/kernels/cpu/isa.h"
#include "longspan/kernels/fused_attention.h"
#include "longspan/kernels/head_views.h"
#include "longspan/kernels/in_order.h"
#include "longspan/kernels/total.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr int64_t kTile = Layout::kTile;

int64_t padded(int64_t width) {
  return (width + cpu::kPadding - 1) / cpu::kPadding * cpu::kPadding;
}

// A place in the order in which tasks add to the slopes of a tile of queries.
struct Stop {
  int32_t tile;
  int32_t number = 0;        // among those that add to the queries
  int32_t dense_number = 0;  // among those that add to a dense bias they share
};

struct Task {
  int64_t example, head, source;
  int64_t first, end;         // tiles of keys
  std::vector<Stop> stops;    // tiles of queries, ascending
  int64_t visits = 0;         // tiles of pairs
  int32_t key_number = 0;     // among those that add to the same keys
  int32_t entry_number = 0;   // among those that add to the same biases by entry
};


// How many tiles of keys a task has: so many that packing queries costs little and the
// sums stay in the cache, but so few that there are several tasks.
int64_t tiles_per_task(const AttentionCall& call, const AttentionSizes& sizes) {
  constexpr int64_t kMostTiles = 8, kSums = 1 << 16, kFewTasks = 16;
  int64_t tiles = 0;
  for (const Source& source : call.sources) tiles += key_tiles(source);
  int64_t each =
      std::clamp(kSums / (kTile * (padded(sizes.width) + padded(sizes.value_width))),
                 int64_t{1}, kMostTiles);
  while (each > 1 && sizes.examples * sizes.heads * ((tiles + each - 1) / each) <
                         kFewTasks)
    each /= 2;
  return each;
}

// The tiles of queries that see some of the tiles of keys first .. end - 1, with the
// number of tiles of pairs.
struct Seen {
  std::vector<int32_t> tiles;
  std::vector<int32_t> visits;
};

Seen queries_of(const Source& source, int64_t pattern, int64_t query_tiles,
                int64_t first, int64_t end) {
  std::vector<int32_t> visits(query_tiles, 0);
  for (int64_t tile = first; tile < end; ++tile) {
    if (!source.layout) {
      for (int32_t& count : visits) ++count;
      continue;
    }
    for (const Run& run : source.layout->column(pattern, tile))
      for (int32_t at = run.first; at < run.first + run.count; ++at) ++visits[at];
  }
  Seen seen;
  for (int64_t tile = 0; tile < query_tiles; ++tile) {
    if (visits[tile] == 0) continue;
    seen.tiles.push_back(static_cast<int32_t>(tile));
    seen.visits.push_back(visits[tile]);
  }
  return seen;
}

std::vector<Task> tasks_of(const AttentionCall& call, const AttentionSizes& sizes,
                           const QueryTiles& chosen) {
  constexpr int64_t kShortest = 512;  // tiles of pairs that are not worth cutting
  const int64_t query_tiles = (call.query_places() + kTile - 1) / kTile;
  const int64_t each = tiles_per_task(call, sizes);
  std::vector<Task> columns;
  int64_t all = 0;
  std::vector<std::vector<int32_t>> visits;  // of the stops of each
  for (size_t s = 0; s < call.sources.size(); ++s) {
    const Source& source = call.sources[s];
    const int64_t tiles = key_tiles(source);
    for (int64_t first = 0; first < tiles; first += each) {
      const int64_t end = std::min(first + each, tiles);
      const int64_t patterns = source.layout ? source.layout->patterns() : 1;
      std::vector<std::optional<Seen>> seen(patterns);
      for (int64_t example = 0; example < sizes.examples; ++example)
        for (int64_t head = 0; head < sizes.heads; ++head) {
          const int64_t pattern =
              source.layout ? source.layout->pattern_of(example, head) : 0;
          if (!seen[pattern])
            seen[pattern] = queries_of(source, pattern, query_tiles, first, end);
          Task task{.example = example,
                    .head = head,
                    .source = static_cast<int64_t>(s),
                    .first = first,
                    .end = end,
                    .stops = {}};
          std::vector<int32_t> counts;
          for (size_t i = 0; i < seen[pattern]->tiles.size(); ++i) {
            const int32_t tile = seen[pattern]->tiles[i];
            if (!chosen.empty() && !std::ranges::binary_search(chosen, tile)) continue;
            task.stops.push_back({tile});
            counts.push_back(seen[pattern]->visits[i]);
            task.visits += counts.back();
          }
          if (task.stops.empty()) continue;
          all += task.visits;
          columns.push_back(std::move(task));
          visits.push_back(std::move(counts));
        }
    }
  }

  // Columns that alone would be more than a 64th of the work are cut.
  const int64_t longest = std::max(kShortest, (all + 63) / 64);
  std::vector<Task> tasks;
  for (size_t c = 0; c < columns.size(); ++c) {
    Task part = columns[c];
    part.stops.clear();
    part.visits = 0;
    for (size_t i = 0; i < columns[c].stops.size(); ++i) {
      part.stops.push_back(columns[c].stops[i]);
      part.visits += visits[c][i];
      if (part.visits < longest && i + 1 < columns[c].stops.size()) continue;
      tasks.push_back(part);
      part.stops.clear();
      part.visits = 0;
    }
  }
  std::ranges::stable_sort(tasks, std::greater<>(), &Task::visits);
  return tasks;
}

void run(const cpu::GradientTask<float>& task) {
  using Gradient = void(const cpu::GradientTask<float>&);
  cpu::pick<Gradient>(cpu::portable::attend_gradient, cpu::avx2::attend_gradient,
                      cpu::avx512::attend_gradient)(task);
}

void run(const cpu::GradientTask<double>& task) {
  using Gradient = void(const cpu::GradientTask<double>&);
  cpu::pick<Gradient>(cpu::portable::attend_gradient, cpu::avx2::attend_gradient,
                      cpu::avx512::attend_gradient)(task);
}

// The gradients of one source, as the kernels sum them.
template <class Number>
struct SourceSlopes {
  Tensor k, v;             // as k and v
  Tensor column;           // [B, H, M]
  Tensor slopes, table;    // [H|1, entries], double
  Tensor vectors;          // [H|1, entries, padded d]
  Tensor offset;           // [H|1, d], double
  Tensor dense;            // as the bias
  bool shared_dense = false, one_head_for_entries = false;
};

template <class Number>
class Gradient {
 public:
  Gradient(const AttentionCall& call, const AttentionSizes& sizes,
           const Attended& results, const Attended& given, const QueryTiles& chosen)
      : call_(call),
        sizes_(sizes),
        views_(call, sizes),
        out_(converted(results.out), sizes.heads),
        lse_(converted(results.lse).unsqueeze(2), sizes.heads),
        out_slope_(converted(given.out), sizes.heads),
        lse_slope_(converted(given.lse).unsqueeze(2), sizes.heads),
        query_tiles_((call.query_places() + kTile - 1) / kTile),
        tasks_(tasks_of(call, sizes, chosen)) {
    q_ = zeros(call.queries.q.sizes());
    for (const Source& source : call.sources) sources_.push_back(start(source));
    number();
  }

  // In the order of AttentionCall::learned().
  std::vector<Tensor> run_all() {
    const auto count = static_cast<int64_t>(tasks_.size());
    const Workspace sized(*this);
    const Tensor memory = torch::empty({workers(count), sized.bytes()}, torch::kByte);
    std::vector<std::vector<cpu::Visit>> visits(workers(count));
    each_in_order(count, [&](int64_t i, int64_t worker) {
      Workspace workspace(*this, memory.data_ptr<uint8_t>() + worker * sized.bytes());
      run_task(tasks_[i], workspace, visits[worker]);
    });
    return finished();
  }

 private:
  static Tensor converted(const Tensor& tensor) {
    return with_dense_rows(tensor.to(torch::CppTypeToScalarType<Number>::value));
  }

  static Tensor zeros(at::IntArrayRef sizes) {
    return torch::zeros(sizes, torch::CppTypeToScalarType<Number>::value);
  }

  SourceSlopes<Number> start(const Source& source) const {
    const Bias& bias = source.bias;
    SourceSlopes<Number> slopes;
    slopes.k = zeros(source.k.sizes());
    slopes.v = zeros(source.v.sizes());
    if (bias.column.defined())
      slopes.column = zeros({sizes_.examples, sizes_.heads, source.k.size(2)});
    if (bias.slopes.defined())
      slopes.slopes = torch::zeros({bias.slopes.size(0), 1}, torch::kDouble);
    if (bias.table.defined())
      slopes.table = torch::zeros({bias.table.size(0), bias.table[0].numel()},
                                  torch::kDouble);
    if (bias.vectors.defined())
      slopes.vectors = zeros({bias.vectors.size(0),
                              bias.vectors[0].numel() / sizes_.width,
                              padded(sizes_.width)});
    if (bias.offset.defined())
      slopes.offset = torch::zeros(bias.offset.sizes(), torch::kDouble);
    if (bias.dense.defined()) {
      slopes.dense = zeros(bias.dense.sizes());
      slopes.shared_dense = bias.dense.size(0) < sizes_.examples ||
                            bias.dense.size(1) < sizes_.heads;
    }
    for (const Tensor* tensor : {&bias.slopes, &bias.table, &bias.vectors, &bias.offset})
      if (tensor->defined() && tensor->size(0) == 1) slopes.one_head_for_entries = true;
    return slopes;
  }

  // Tells every task which turn is its own.
  void number() {
    const auto all = static_cast<int64_t>(tasks_.size());
    key_turns_.resize(call_.sources.size());
    entry_turns_ = fresh(static_cast<int64_t>(call_.sources.size()) * sizes_.heads);
    query_turns_ = fresh(sizes_.examples * sizes_.heads * query_tiles_);
    dense_turns_.resize(call_.sources.size());
    std::vector<int32_t> queries(sizes_.examples * sizes_.heads * query_tiles_, 0);
    std::vector<int32_t> entries(call_.sources.size() * sizes_.heads, 0);
    std::vector<std::vector<int32_t>> keys, dense;
    for (size_t s = 0; s < call_.sources.size(); ++s) {
      const Source& source = call_.sources[s];
      const int64_t key_slots =
          source.k.size(0) * source.k.size(1) * (key_tiles(source) + 1);
      keys.emplace_back(key_slots, 0);
      key_turns_[s] = fresh(key_slots);
      const Tensor& bias = sources_[s].dense;
      const int64_t dense_slots = sources_[s].shared_dense
                                      ? bias.size(0) * bias.size(1) * query_tiles_
                                      : 0;
      dense.emplace_back(dense_slots, 0);
      dense_turns_[s] = fresh(dense_slots);
    }
    for (int64_t i = 0; i < all; ++i) {
      Task& task = tasks_[i];
      task.key_number = keys[task.source][key_slot(task)]++;
      task.entry_number = entries[entry_slot(task)]++;
      for (Stop& stop : task.stops) {
        stop.number = queries[query_slot(task, stop)]++;
        if (sources_[task.source].shared_dense)
          stop.dense_number = dense[task.source][dense_slot(task, stop)]++;
      }
    }
  }

  static std::unique_ptr<Turn[]> fresh(int64_t count) {
    return std::make_unique<Turn[]>(std::max<int64_t>(count, 1));
  }

  // Tasks that add to the same rows of k or v share a slot: with rows given by index
  // any two may.
  int64_t key_slot(const Task& task) const {
    const Source& source = call_.sources[task.source];
    const bool alone = source.k.size(0) == sizes_.examples &&
                       source.v.size(0) == sizes_.examples;
    const int64_t example = alone ? task.example : 0;
    const int64_t head = task.head / (sizes_.heads / source.k.size(1));
    const int64_t tile = source.rows.defined() ? 0 : task.first;
    return (example * source.k.size(1) + head) * (key_tiles(source) + 1) + tile;
  }

  int64_t entry_slot(const Task& task) const {
    return task.source * sizes_.heads +
           (sources_[task.source].one_head_for_entries ? 0 : task.head);
  }

  int64_t query_slot(const Task& task, const Stop& stop) const {
    return (task.example * sizes_.heads + task.head) * query_tiles_ + stop.tile;
  }

  int64_t dense_slot(const Task& task, const Stop& stop) const {
    const Tensor& dense = sources_[task.source].dense;
    const int64_t example = dense.size(0) == 1 ? 0 : task.example;
    const int64_t head = dense.size(1) == 1 ? 0 : task.head;
    // With rows given by index a row may be in other tiles of other heads.
    const int64_t tile = call_.queries.rows.defined() ? 0 : stop.tile;
    return (example * dense.size(1) + head) * query_tiles_ + tile;
  }

  // The memory of one worker.
  class Workspace {
   public:
    explicit Workspace(const Gradient& all, uint8_t* memory = nullptr)
        : memory_(memory) {
      const int64_t width = padded(all.sizes_.width);
      const int64_t value_width = padded(all.sizes_.value_width);
      const int64_t places = tiles_per_task(all.call_, all.sizes_) * kTile + 1;
      int64_t entries = 0;
      bool has_table = false, has_vectors = false;
      for (const auto& source : all.sources_) {
        has_table |= source.table.defined();
        has_vectors |= source.vectors.defined();
        if (source.table.defined()) entries = std::max(entries, source.table.size(1));
        if (source.vectors.defined())
          entries = std::max(entries, source.vectors.size(1));
      }
      sums.k = take<Number>(places * width);
      sums.v = take<Number>(places * value_width);
      sums.column = take<Number>(places);
      sums.slope = take<double>(1);
      sums.offset = take<double>(all.sizes_.width);
      sums.table = take<double>(has_table ? entries : 0);
      sums.vectors = take<Number>(has_vectors ? entries * width : 0);
      q_slope = take<Number>(kTile * width);
      scratch = take<uint8_t>(cpu::portable::gradient_bytes(
          cpu::GradientTask<Number>{.width = all.sizes_.width,
                                    .value_width = all.sizes_.value_width}));
    }

    int64_t bytes() const { return bytes_; }

    cpu::KeySums<Number> sums;
    Number* q_slope = nullptr;
    uint8_t* scratch = nullptr;

   private:
    template <class T>
    T* take(int64_t count) {
      uint8_t* const part = memory_ ? memory_ + bytes_ : nullptr;
      bytes_ += (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
      return reinterpret_cast<T*>(part);
    }

    uint8_t* memory_;
    int64_t bytes_ = 0;
  };

  // Null where not wanted.
  template <class T>
  static T* if_wanted(const Tensor& tensor, T* memory) {
    return tensor.defined() ? memory : nullptr;
  }

  void run_task(const Task& task, Workspace& workspace,
                std::vector<cpu::Visit>& visits) {
    const auto [example, head] = std::pair(task.example, task.head);
    const Source& source = call_.sources[task.source];
    const SourceSlopes<Number>& slopes = sources_[task.source];
    const int64_t width = padded(sizes_.width), value_width = padded(sizes_.value_width);
    cpu::KeySums<Number> sums = workspace.sums;
    sums.first_place = task.first * kTile;
    sums.places = std::min(task.end * kTile, key_places(source)) - sums.first_place;
    sums.column = if_wanted(slopes.column, sums.column);
    sums.slope = if_wanted(slopes.slopes, sums.slope);
    sums.table = if_wanted(slopes.table, sums.table);
    sums.vectors = if_wanted(slopes.vectors, sums.vectors);
    sums.offset = if_wanted(slopes.offset, sums.offset);
    std::fill_n(sums.k, sums.places * width, 0);
    std::fill_n(sums.v, sums.places * value_width, 0);
    if (sums.column) std::fill_n(sums.column, sums.places, 0);
    if (sums.slope) *sums.slope = 0;
    if (sums.offset) std::fill_n(sums.offset, sizes_.width, 0);

    cpu::GradientTask<Number> tile{.width = sizes_.width,
                                   .value_width = sizes_.value_width,
                                   .scale = call_.scale(),
                                   .queries = views_.queries(example, head),
                                   .source = views_.source(task.source, example, head),
                                   .dropout = views_.dropout(example, head),
                                   .out = out_.at(example, head),
                                   .lse = lse_.at(example, head),
                                   .out_slope = out_slope_.at(example, head),
                                   .lse_slope = lse_slope_.at(example, head),
                                   .out_stride = out_.stride(),
                                   .out_slope_stride = out_slope_.stride(),
                                   .sums = &sums,
                                   .q_slope = workspace.q_slope,
                                   .scratch = workspace.scratch};
    if (slopes.dense.defined()) {
      tile.dense = HeadRows<Number>(slopes.dense, sizes_.heads).at(example, head);
      tile.dense_stride = slopes.dense.size(3);
    }
    for (const Stop& stop : task.stops) {
      visits.clear();
      append_visits(source, example, head, stop.tile, task.first, task.end, visits);
      tile.tile = stop.tile;
      tile.visits = visits.data();
      tile.visit_count = static_cast<int64_t>(visits.size());
      if (slopes.shared_dense)
        dense_turns_[task.source][dense_slot(task, stop)].wait(stop.dense_number,
                                                               [&] { run(tile); });
      else
        run(tile);
      query_turns_[query_slot(task, stop)].wait(
          stop.number, [&] { add_queries(task, stop, tile.queries, workspace.q_slope); });
    }
    key_turns_[task.source][key_slot(task)].wait(
        task.key_number, [&] { add_keys(task, tile.source, sums); });
    if (sums.slope || sums.table || sums.vectors)
      entry_turns_[entry_slot(task)].wait(task.entry_number,
                                          [&] { add_entries(task, sums); });
  }

  void add_queries(const Task& task, const Stop& stop,
                   const cpu::HeadQueries<Number>& queries, const Number* from) {
    const auto scale = static_cast<Number>(call_.scale());
    const int64_t width = sizes_.width;
    Number* const head = q_.template data_ptr<Number>() +
                         (task.example * sizes_.heads + task.head) * sizes_.queries * width;
    for (int64_t lane = 0; lane < kTile; ++lane) {
      const int64_t place = stop.tile * kTile + lane;
      if (place >= queries.places) break;
      const int64_t row = queries.rows ? queries.rows[place] : place;
      if (row < 0) continue;
      Number* const to = head + row * width;
      const Number* const some = from + lane * padded(width);
      for (int64_t x = 0; x < width; ++x) to[x] += scale * some[x];
    }
  }

  void add_keys(const Task& task, const cpu::HeadSource<Number>& source,
                const cpu::KeySums<Number>& sums) {
    const auto scale = static_cast<Number>(call_.scale());
    const SourceSlopes<Number>& slopes = sources_[task.source];
    Number* const k = HeadRows<Number>(slopes.k, sizes_.heads).at(task.example, task.head);
    Number* const v = HeadRows<Number>(slopes.v, sizes_.heads).at(task.example, task.head);
    Number* const column =
        HeadRows<Number>(slopes.column, sizes_.heads).at(task.example, task.head);
    const int64_t width = sizes_.width, value_width = sizes_.value_width;
    for (int64_t i = 0; i < sums.places; ++i) {
      const int64_t place = sums.first_place + i;
      const int64_t row = source.rows ? source.rows[place] : place;
      if (row < 0) continue;
      const Number* const k_sum = sums.k + i * padded(width);
      const Number* const v_sum = sums.v + i * padded(value_width);
      for (int64_t x = 0; x < width; ++x) k[row * width + x] += scale * k_sum[x];
      for (int64_t x = 0; x < value_width; ++x) v[row * value_width + x] += v_sum[x];
      if (column) column[row] += sums.column[i];
    }
  }

  void add_entries(const Task& task, const cpu::KeySums<Number>& sums) {
    const SourceSlopes<Number>& slopes = sources_[task.source];
    const auto of_head = [&](const Tensor& tensor) {
      return tensor.select(0, tensor.size(0) == 1 ? 0 : task.head);
    };
    if (sums.slope) of_head(slopes.slopes).template data_ptr<double>()[0] += *sums.slope;
    if (sums.table) {
      double* const table = of_head(slopes.table).template data_ptr<double>();
      for (int64_t i = sums.entry_from; i < sums.entry_to; ++i) table[i] += sums.table[i];
    }
    const int64_t width = padded(sizes_.width);
    if (sums.vectors) {
      const auto scale = static_cast<Number>(call_.scale());
      Number* const vectors = of_head(slopes.vectors).template data_ptr<Number>();
      for (int64_t i = sums.entry_from * width; i < sums.entry_to * width; ++i)
        vectors[i] += scale * sums.vectors[i];
    }
    if (sums.offset) {
      double* const offset = of_head(slopes.offset).template data_ptr<double>();
      for (int64_t x = 0; x < sizes_.width; ++x)
        offset[x] += call_.scale() * sums.offset[x];
    }
  }

  std::vector<Tensor> finished() const {
    std::vector<Tensor> all = {q_};
    for (size_t s = 0; s < sources_.size(); ++s) {
      const SourceSlopes<Number>& slopes = sources_[s];
      const Bias& bias = call_.sources[s].bias;
      all.push_back(slopes.k);
      all.push_back(slopes.v);
      if (bias.column.defined())
        all.push_back(longspan::sum_to(slopes.column, bias.column.sizes()));
      if (bias.slopes.defined()) all.push_back(slopes.slopes.squeeze(1));
      if (bias.table.defined()) all.push_back(slopes.table.view(bias.table.sizes()));
      if (bias.vectors.defined())
        all.push_back(slopes.vectors.narrow(2, 0, sizes_.width)
                          .reshape(bias.vectors.sizes()));
      if (bias.offset.defined()) all.push_back(slopes.offset);
      if (bias.dense.defined()) all.push_back(slopes.dense);
    }
    return all;
  }

  const AttentionCall& call_;
  AttentionSizes sizes_;
  HeadViews<Number> views_;
  HeadRows<Number> out_, lse_, out_slope_, lse_slope_;
  int64_t query_tiles_;
  std::vector<Task> tasks_;
  Tensor q_;
  std::vector<SourceSlopes<Number>> sources_;
  std::unique_ptr<Turn[]> query_turns_, entry_turns_;
  std::vector<std::unique_ptr<Turn[]>> key_turns_, dense_turns_;  // of each source
};

}  // namespace

std::vector<Tensor> fused_attention_gradient(AttentionCall call,
                                             const Attended& results,
                                             const Attended& slopes,
                                             const std::vector<bool>& wanted,
                                             const QueryTiles& tiles) {
  const AttentionSizes sizes = check(call);
  std::vector<Tensor> gradients =
      call.queries.q.scalar_type() == torch::kDouble
          ? Gradient<double>(call, sizes, results, slopes, tiles).run_all()
          : Gradient<float>(call, sizes, results, slopes, tiles).run_all();
  const std::vector<Tensor*> learned = call.learned();
  for (size_t i = 0; i < gradients.size(); ++i)
    gradients[i] = wanted[i] ? gradients[i].to(learned[i]->scalar_type()) : Tensor();
  return gradients;
}

}  // namespace longspan
