// The gradient is cut into tasks: some keys of one source against the queries of one
// head that see them. A task sums what belongs to its keys on its own; sums that tasks
// share are added to in the order of the tasks, whichever thread runs them.

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <set>

#include "longspan/base/build.h"
#include "longspan/kernels/attention_cuda.h"
#include "longspan/kernels/cpu/isa.h"
#include "longspan/kernels/fused_attention.h"
#include "longspan/kernels/head_views.h"
#include "longspan/kernels/heads.h"
#include "longspan/kernels/in_order.h"
#include "longspan/kernels/total.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr int64_t kTile = Layout::kTile;

int64_t padded(int64_t width) { return parts_of(width, cpu::kPadding) * cpu::kPadding; }

struct Task {
  int64_t example, head, source;
  int64_t first, end;  // tiles of keys
  // Tiles of queries; it visits those that see some of its keys.
  int64_t query_first, query_end;
  int32_t key_number = 0;    // among those that add to the same keys
  int32_t entry_number = 0;  // among those that add to the same biases by entry
  // Of each tile of queries it visits, among those that add to the same dense bias;
  // empty where none do.
  std::vector<int32_t> dense_numbers = {};
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
  while (each > 1 && sizes.examples * sizes.heads * parts_of(tiles, each) < kFewTasks)
    each /= 2;
  return each;
}

// For each tile of queries, how many of the tiles of keys first .. end - 1 it visits.
void count_visits(const Source& source, int64_t pattern, int64_t first, int64_t end,
                  std::vector<int32_t>& visits) {
  std::ranges::fill(visits, 0);
  for (int64_t tile = first; tile < end; ++tile) {
    if (!source.layout) {
      for (int32_t& count : visits) ++count;
      continue;
    }
    for (const Run& run : source.layout->column(pattern, tile))
      for (int32_t at = run.first; at < run.first + run.count; ++at) ++visits[at];
  }
}

int64_t pattern_of(const Source& source, int64_t example, int64_t head) {
  return source.layout ? source.layout->pattern_of(example, head) : 0;
}

// The tasks in the order in which they are begun: by source and keys, then heads. Those
// that would be more than a 64th of the work alone are cut.
std::vector<Task> tasks_of(const AttentionCall& call, const AttentionSizes& sizes,
                           const QueryTiles& chosen) {
  constexpr int64_t kShortest = 512;  // tiles of pairs that are not worth cutting
  const int64_t query_tiles = parts_of(call.query_places(), kTile);
  const int64_t each = tiles_per_task(call, sizes);
  std::vector<int32_t> visits(query_tiles);
  // work(source, pattern, first, end) for all keys; `visits` are theirs.
  const auto each_keys = [&](const auto& work) {
    for (size_t s = 0; s < call.sources.size(); ++s) {
      const Source& source = call.sources[s];
      const int64_t tiles = key_tiles(source);
      const int64_t patterns = source.layout ? source.layout->patterns() : 1;
      for (int64_t first = 0; first < tiles; first += each)
        for (int64_t pattern = 0; pattern < patterns; ++pattern) {
          const int64_t end = std::min(first + each, tiles);
          count_visits(source, pattern, first, end, visits);
          for (int64_t tile = 0; tile < query_tiles && !chosen.empty(); ++tile)
            if (!std::ranges::binary_search(chosen, tile)) visits[tile] = 0;
          work(static_cast<int64_t>(s), pattern, first, end);
        }
    }
  };
  const auto users = [&](int64_t source, int64_t pattern, const auto& use) {
    for (int64_t example = 0; example < sizes.examples; ++example)
      for (int64_t head = 0; head < sizes.heads; ++head)
        if (pattern_of(call.sources[source], example, head) == pattern)
          use(example, head);
  };

  int64_t all = 0;
  each_keys([&](int64_t source, int64_t pattern, int64_t, int64_t) {
    const int64_t once = std::accumulate(visits.begin(), visits.end(), int64_t{0});
    users(source, pattern, [&](int64_t, int64_t) { all += once; });
  });
  const int64_t longest = std::max(kShortest, (all + 63) / 64);

  std::vector<Task> tasks;
  each_keys([&](int64_t source, int64_t pattern, int64_t first, int64_t end) {
    int64_t from = 0, sum = 0;
    for (int64_t tile = 0; tile < query_tiles; ++tile) {
      sum += visits[tile];
      if (sum == 0 || (sum < longest && tile + 1 < query_tiles)) continue;
      users(source, pattern, [&](int64_t example, int64_t head) {
        tasks.push_back({example, head, source, first, end, from, tile + 1});
      });
      from = tile + 1;
      sum = 0;
    }
  });
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

// The gradients of one source, as the kernels sum them; undefined: not wanted.
struct SourceSlopes {
  Tensor k, v;           // as k and v
  Tensor column;         // [B, H, M]
  Tensor slopes, table;  // [H|1, entries], double
  Tensor vectors;        // [H|1, entries, padded d]
  Tensor offset;         // [H|1, d], double
  Tensor dense;          // as the bias
  bool dense_in_turn = false, one_head_for_entries = false;
};

template <class Number>
class Gradient {
 public:
  // `wanted` as of fused_attention_gradient().
  Gradient(AttentionCall& call, const AttentionSizes& sizes, const Attended& results,
           const Attended& given, const std::vector<bool>& wanted,
           const QueryTiles& chosen)
      : call_(call),
        sizes_(sizes),
        chosen_(chosen),
        each_(tiles_per_task(call, sizes)),
        views_(call, sizes),
        out_(converted(results.out), sizes.heads),
        lse_(converted(results.lse).unsqueeze(2), sizes.heads),
        out_slope_(converted(given.out), sizes.heads),
        lse_slope_(converted(given.lse).unsqueeze(2), sizes.heads),
        query_tiles_(parts_of(call.query_places(), kTile)),
        tasks_(tasks_of(call, sizes, chosen)) {
    const std::vector<Tensor*> learned = call.learned();
    for (size_t i = 0; i < learned.size(); ++i)
      if (wanted[i]) wanted_.insert(learned[i]);
    if (is_wanted(call.queries.q)) q_ = zeros(call.queries.q.sizes());
    for (const Source& source : call.sources) sources_.push_back(start(source));
    number();
  }

  // In the order of AttentionCall::learned().
  std::vector<Tensor> run_all() {
    const auto count = static_cast<int64_t>(tasks_.size());
    const Workspace sized(*this);
    const Tensor memory = torch::empty({workers(count), sized.bytes()}, torch::kByte);
    // Reserved, because a task that ran out of memory would never give its turn.
    std::vector<Stops> stops(workers(count));
    for (Stops& some : stops) {
      some.tiles.reserve(query_tiles_);
      some.visits.reserve(each_);
    }
    each_in_order(count, [&](int64_t i, int64_t worker) {
      Workspace workspace(*this, memory.data_ptr<uint8_t>() + worker * sized.bytes());
      run_task(tasks_[i], workspace, stops[worker]);
    });
    return finished();
  }

 private:
  static Tensor converted(const Tensor& tensor) {
    return unit_stride(tensor, torch::CppTypeToScalarType<Number>::value);
  }

  static Tensor zeros(at::IntArrayRef sizes) {
    return torch::zeros(sizes, torch::CppTypeToScalarType<Number>::value);
  }

  bool is_wanted(const Tensor& tensor) const { return wanted_.contains(&tensor); }

  SourceSlopes start(const Source& source) const {
    const Bias& bias = source.bias;
    SourceSlopes slopes;
    if (is_wanted(source.k)) slopes.k = zeros(source.k.sizes());
    if (is_wanted(source.v)) slopes.v = zeros(source.v.sizes());
    if (is_wanted(bias.column))
      slopes.column = zeros({sizes_.examples, sizes_.heads, source.k.size(2)});
    if (is_wanted(bias.slopes))
      slopes.slopes = torch::zeros({bias.slopes.size(0), 1}, torch::kDouble);
    if (is_wanted(bias.table))
      slopes.table =
          torch::zeros({bias.table.size(0), entries_of(bias.table)}, torch::kDouble);
    if (is_wanted(bias.vectors))
      slopes.vectors =
          zeros({bias.vectors.size(0), entries_of(bias.vectors) / sizes_.width,
                 padded(sizes_.width)});
    if (is_wanted(bias.offset))
      slopes.offset = torch::zeros(bias.offset.sizes(), torch::kDouble);
    if (is_wanted(bias.dense)) {
      slopes.dense = zeros(bias.dense.sizes());
      // A row of k in two places may be in two tasks.
      slopes.dense_in_turn = bias.dense.size(0) < sizes_.examples ||
                             bias.dense.size(1) < sizes_.heads || source.rows.defined();
    }
    for (const Tensor* tensor :
         {&slopes.slopes, &slopes.table, &slopes.vectors, &slopes.offset})
      if (tensor->defined() && tensor->size(0) == 1) slopes.one_head_for_entries = true;
    return slopes;
  }

  // Of one head.
  static int64_t entries_of(const Tensor& tensor) {
    int64_t count = 1;
    for (const int64_t size : tensor.sizes().slice(1)) count *= size;
    return count;
  }

  // Tells every task which turn is its own.
  void number() {
    const auto sources = static_cast<int64_t>(call_.sources.size());
    query_turns_ = fresh(sizes_.examples * sizes_.heads * query_tiles_);
    entry_turns_ = fresh(sources * sizes_.heads);
    key_turns_.resize(sources);
    dense_turns_.resize(sources);
    std::vector<int32_t> entries(sources * sizes_.heads, 0);
    std::vector<std::vector<int32_t>> keys(sources), dense(sources);
    for (int64_t s = 0; s < sources; ++s) {
      const Source& source = call_.sources[s];
      const Tensor& bias = sources_[s].dense;
      keys[s].resize(source.k.size(0) * source.k.size(1) * (key_tiles(source) + 1), 0);
      if (sources_[s].dense_in_turn)
        dense[s].resize(bias.size(0) * bias.size(1) * query_tiles_, 0);
      key_turns_[s] = fresh(static_cast<int64_t>(keys[s].size()));
      dense_turns_[s] = fresh(static_cast<int64_t>(dense[s].size()));
    }
    std::vector<int32_t> tiles;
    for (Task& task : tasks_) {
      task.key_number = keys[task.source][key_slot(task)]++;
      task.entry_number = entries[entry_slot(task)]++;
      if (!sources_[task.source].dense_in_turn) continue;
      find_query_tiles(task, tiles);
      for (const int32_t tile : tiles)
        task.dense_numbers.push_back(dense[task.source][dense_slot(task, tile)]++);
    }
  }

  // The tiles of queries that a task visits, ascending.
  void find_query_tiles(const Task& task, std::vector<int32_t>& tiles) const {
    const Source& source = call_.sources[task.source];
    tiles.clear();
    const auto is_chosen = [&](int64_t tile) {
      return chosen_.empty() || std::ranges::binary_search(chosen_, tile);
    };
    const int64_t pattern = pattern_of(source, task.example, task.head);
    for (int64_t tile = task.query_first; tile < task.query_end; ++tile) {
      if (!is_chosen(tile)) continue;
      bool visits = !source.layout;
      if (source.layout) {
        const auto runs = source.layout->row(pattern, tile);
        const auto run = std::ranges::partition_point(
            runs, [&](const Run& one) { return one.first + one.count <= task.first; });
        visits = run != runs.end() && run->first < task.end;
      }
      if (visits) tiles.push_back(static_cast<int32_t>(tile));
    }
  }

  // How many tasks add to a tile of queries before this one: one for each group of
  // keys that the tile visits.
  int32_t query_number(const Task& task, int64_t tile) const {
    int64_t count = 0;
    for (int64_t s = 0; s <= task.source; ++s) {
      const Source& source = call_.sources[s];
      const int64_t end =
          (s < task.source ? key_tiles(source) + each_ - 1 : task.first) /
          each_;  // groups that come before
      if (!source.layout) {
        count += end;
        continue;
      }
      int64_t next = 0;  // the first group that is not counted yet
      const int64_t pattern = pattern_of(source, task.example, task.head);
      for (const Run& run : source.layout->row(pattern, tile)) {
        const int64_t from = std::max<int64_t>(run.first / each_, next);
        const int64_t to = std::min((run.first + run.count - 1) / each_ + 1, end);
        if (from >= end) break;
        if (from < to) {
          count += to - from;
          next = to;
        }
      }
    }
    return static_cast<int32_t>(count);
  }

  static std::unique_ptr<Turn[]> fresh(int64_t count) {
    return std::make_unique<Turn[]>(std::max<int64_t>(count, 1));
  }

  // Tasks that add to the same rows of k or v share a slot: with rows given by index
  // any two may.
  int64_t key_slot(const Task& task) const {
    const Source& source = call_.sources[task.source];
    const bool alone =
        source.k.size(0) == sizes_.examples && source.v.size(0) == sizes_.examples;
    const int64_t example = alone ? task.example : 0;
    const int64_t head = task.head / (sizes_.heads / source.k.size(1));
    const int64_t tile = source.rows.defined() ? 0 : task.first;
    return (example * source.k.size(1) + head) * (key_tiles(source) + 1) + tile;
  }

  int64_t entry_slot(const Task& task) const {
    return task.source * sizes_.heads +
           (sources_[task.source].one_head_for_entries ? 0 : task.head);
  }

  int64_t query_slot(const Task& task, int64_t tile) const {
    return (task.example * sizes_.heads + task.head) * query_tiles_ + tile;
  }

  int64_t dense_slot(const Task& task, int64_t tile) const {
    const Tensor& dense = sources_[task.source].dense;
    const int64_t example = dense.size(0) == 1 ? 0 : task.example;
    const int64_t head = dense.size(1) == 1 ? 0 : task.head;
    // With rows given by index a row may be in other tiles of other heads.
    const int64_t of_rows = call_.queries.rows.defined() ? 0 : tile;
    return (example * dense.size(1) + head) * query_tiles_ + of_rows;
  }

  // Where a task stops on its way.
  struct Stops {
    std::vector<int32_t> tiles;      // of queries
    std::vector<cpu::Visit> visits;  // of one of them
  };

  // The memory of one worker.
  class Workspace {
   public:
    explicit Workspace(const Gradient& all, uint8_t* memory = nullptr)
        : memory_(memory) {
      const int64_t width = padded(all.sizes_.width);
      const int64_t value_width = padded(all.sizes_.value_width);
      const int64_t places = all.each_ * kTile + 1;
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
      scratch = take<uint8_t>(cpu::portable::gradient_bytes(cpu::GradientTask<Number>{
          .width = all.sizes_.width, .value_width = all.sizes_.value_width}));
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

  void run_task(const Task& task, Workspace& workspace, Stops& stops) {
    const auto [example, head] = std::pair(task.example, task.head);
    const Source& source = call_.sources[task.source];
    const SourceSlopes& slopes = sources_[task.source];
    const int64_t width = padded(sizes_.width),
                  value_width = padded(sizes_.value_width);
    cpu::KeySums<Number> sums = workspace.sums;
    sums.first_place = task.first * kTile;
    sums.places = std::min(task.end * kTile, key_places(source)) - sums.first_place;
    sums.k = if_wanted(slopes.k, sums.k);
    sums.v = if_wanted(slopes.v, sums.v);
    sums.column = if_wanted(slopes.column, sums.column);
    sums.slope = if_wanted(slopes.slopes, sums.slope);
    sums.table = if_wanted(slopes.table, sums.table);
    sums.vectors = if_wanted(slopes.vectors, sums.vectors);
    sums.offset = if_wanted(slopes.offset, sums.offset);
    if (sums.k) std::fill_n(sums.k, sums.places * width, 0);
    if (sums.v) std::fill_n(sums.v, sums.places * value_width, 0);
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
                                   .q_slope = if_wanted(q_, workspace.q_slope),
                                   .scratch = workspace.scratch};
    if (slopes.dense.defined()) {
      tile.dense = HeadRows<Number>(slopes.dense, sizes_.heads).at(example, head);
      tile.dense_stride = slopes.dense.size(3);
    }
    find_query_tiles(task, stops.tiles);
    for (size_t i = 0; i < stops.tiles.size(); ++i) {
      const int32_t at = stops.tiles[i];
      stops.visits.clear();
      append_visits(source, example, head, at, task.first, task.end, stops.visits);
      tile.tile = at;
      tile.visits = stops.visits.data();
      tile.visit_count = static_cast<int64_t>(stops.visits.size());
      if (slopes.dense_in_turn)
        dense_turns_[task.source][dense_slot(task, at)].wait(task.dense_numbers[i],
                                                             [&] { run(tile); });
      else
        run(tile);
      if (tile.q_slope)
        query_turns_[query_slot(task, at)].wait(query_number(task, at), [&] {
          add_queries(task, at, tile.queries, tile.q_slope);
        });
    }
    key_turns_[task.source][key_slot(task)].wait(
        task.key_number, [&] { add_keys(task, tile.source, sums); });
    if (sums.slope || sums.table || sums.vectors || sums.offset)
      entry_turns_[entry_slot(task)].wait(task.entry_number,
                                          [&] { add_entries(task, sums); });
  }

  void add_queries(const Task& task, int64_t tile,
                   const cpu::HeadQueries<Number>& queries, const Number* from) {
    const auto scale = static_cast<Number>(call_.scale());
    const int64_t width = sizes_.width;
    Number* const head =
        q_.template data_ptr<Number>() +
        (task.example * sizes_.heads + task.head) * sizes_.queries * width;
    for (int64_t lane = 0; lane < kTile; ++lane) {
      const int64_t place = tile * kTile + lane;
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
    const SourceSlopes& slopes = sources_[task.source];
    Number* const k =
        HeadRows<Number>(slopes.k, sizes_.heads).at(task.example, task.head);
    Number* const v =
        HeadRows<Number>(slopes.v, sizes_.heads).at(task.example, task.head);
    Number* const column =
        HeadRows<Number>(slopes.column, sizes_.heads).at(task.example, task.head);
    const int64_t width = sizes_.width, value_width = sizes_.value_width;
    for (int64_t i = 0; i < sums.places; ++i) {
      const int64_t place = sums.first_place + i;
      const int64_t row = source.rows ? source.rows[place] : place;
      if (row < 0) continue;
      for (int64_t x = 0; x < width && k; ++x)
        k[row * width + x] += scale * sums.k[i * padded(width) + x];
      for (int64_t x = 0; x < value_width && v; ++x)
        v[row * value_width + x] += sums.v[i * padded(value_width) + x];
      if (column) column[row] += sums.column[i];
    }
  }

  void add_entries(const Task& task, const cpu::KeySums<Number>& sums) {
    const SourceSlopes& slopes = sources_[task.source];
    const auto of_head = [&]<class T>(const Tensor& tensor, T*) {
      return tensor.data_ptr<T>() +
             (tensor.size(0) == 1 ? 0 : task.head * tensor.stride(0));
    };
    if (sums.slope) *of_head(slopes.slopes, sums.slope) += *sums.slope;
    if (sums.table) {
      double* const table = of_head(slopes.table, sums.table);
      for (int64_t i = sums.entry_from; i < sums.entry_to; ++i)
        table[i] += sums.table[i];
    }
    const int64_t width = padded(sizes_.width);
    if (sums.vectors) {
      const auto scale = static_cast<Number>(call_.scale());
      Number* const vectors = of_head(slopes.vectors, sums.vectors);
      for (int64_t i = sums.entry_from * width; i < sums.entry_to * width; ++i)
        vectors[i] += scale * sums.vectors[i];
    }
    if (sums.offset) {
      double* const offset = of_head(slopes.offset, sums.offset);
      for (int64_t x = 0; x < sizes_.width; ++x)
        offset[x] += call_.scale() * sums.offset[x];
    }
  }

  // Undefined where not wanted.
  std::vector<Tensor> finished() const {
    std::vector<Tensor> all = {q_};
    for (size_t s = 0; s < sources_.size(); ++s) {
      const SourceSlopes& slopes = sources_[s];
      const Bias& bias = call_.sources[s].bias;
      const auto add = [&](const Tensor& given, const Tensor& slope,
                           const auto& shaped) {
        if (given.defined()) all.push_back(slope.defined() ? shaped(slope) : slope);
      };
      const auto as_it_is = [](const Tensor& slope) { return slope; };
      add(call_.sources[s].k, slopes.k, as_it_is);
      add(call_.sources[s].v, slopes.v, as_it_is);
      add(bias.column, slopes.column, [&](const Tensor& slope) {
        return longspan::sum_to(slope, bias.column.sizes());
      });
      add(bias.slopes, slopes.slopes,
          [](const Tensor& slope) { return slope.squeeze(1); });
      add(bias.table, slopes.table,
          [&](const Tensor& slope) { return slope.view(bias.table.sizes()); });
      add(bias.vectors, slopes.vectors, [&](const Tensor& slope) {
        return slope.narrow(2, 0, sizes_.width).reshape(bias.vectors.sizes());
      });
      add(bias.offset, slopes.offset, as_it_is);
      add(bias.dense, slopes.dense, as_it_is);
    }
    return all;
  }

  const AttentionCall& call_;
  AttentionSizes sizes_;
  const QueryTiles& chosen_;
  int64_t each_;  // tiles of keys of a task
  std::set<const Tensor*> wanted_;
  HeadViews<Number> views_;
  HeadRows<Number> out_, lse_, out_slope_, lse_slope_;
  int64_t query_tiles_;
  std::vector<Task> tasks_;
  Tensor q_;
  std::vector<SourceSlopes> sources_;
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
  if constexpr (kHasCuda)
    if (call.queries.q.is_cuda())
      return attention_gradient_cuda(call, sizes, results, slopes, wanted);
  const auto or_zeros = [](const Tensor& slope, const Tensor& like) {
    return slope.defined() ? slope : torch::zeros_like(like);
  };
  const Attended all{or_zeros(slopes.out, results.out),
                     or_zeros(slopes.lse, results.lse)};
  std::vector<Tensor> gradients =
      call.queries.q.scalar_type() == torch::kDouble
          ? Gradient<double>(call, sizes, results, all, wanted, tiles).run_all()
          : Gradient<float>(call, sizes, results, all, wanted, tiles).run_all();
  const std::vector<Tensor*> learned = call.learned();
  for (size_t i = 0; i < gradients.size(); ++i)
    if (wanted[i]) gradients[i] = gradients[i].to(learned[i]->scalar_type());
  return gradients;
}

}  // namespace longspan
