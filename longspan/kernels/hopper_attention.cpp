#include "longspan/kernels/hopper_attention.h"

#include <algorithm>
#include <limits>

#include "longspan/kernels/cuda/hopper.h"
#include "longspan/kernels/cuda/hopper_lists.h"
#include "longspan/kernels/cuda/launch.h"
#include "longspan/kernels/cuda/tensors.h"
#include "longspan/kernels/head_views.h"
#include "longspan/kernels/kept_lists.h"
#include "longspan/kernels/result_rows.h"

namespace longspan {
namespace {

using torch::Tensor;

// What those kernels leave to others.
bool is_plain(const AttentionCall& call) {
  if (call.sources.size() != 1) return false;
  const auto& [queries, sources, options] = call;
  const Source& source = sources[0];
  const bool has_ends = source.from.defined() || source.to.defined();
  const bool is_gathered = queries.rows.defined() || source.rows.defined();
  return options.dropout.probability == 0 && !queries.buckets.defined() &&
         !source.buckets.defined() && !source.outside && !source.bias.defined() &&
         (!has_ends || !queries.positions.defined() || is_gathered);
}

struct SentLists {
  cuda::HopperLists lists;
  size_t pieces, entries, masks, cuts, pattern;

  SentLists(Parcel& parcel, cuda::HopperStep step, bool wide, bool gathered,
            const Layout& layout, const AttentionSizes& sizes) {
    const cuda::HopperHostLists here =
        cuda::hopper_lists(step, wide, gathered, layout, sizes.examples, sizes.heads);
    lists = here.sizes();
    lists.examples = static_cast<int32_t>(layout.choice().examples);
    lists.heads = static_cast<int32_t>(layout.choice().heads);
    pieces = parcel.add(here.pieces);
    entries = parcel.add(here.entries);
    masks = parcel.add(here.masks);
    cuts = parcel.add(here.cuts);
    pattern = parcel.add(layout.choice().pattern);
  }

  cuda::HopperLists in(const Tensor& memory) const {
    cuda::HopperLists there = lists;
    there.pieces = Parcel::at<cuda::HopperPiece>(memory, pieces);
    there.entries = Parcel::at<cuda::HopperEntry>(memory, entries);
    there.masks = Parcel::at<uint64_t>(memory, masks);
    there.cuts = Parcel::at<cuda::HopperCut>(memory, cuts);
    there.pattern = Parcel::at<int32_t>(memory, pattern);
    return there;
  }
};

struct AttendLists {
  cuda::HopperLists attend;
  Tensor memory;
};

struct GradientLists {
  cuda::HopperLists of_queries, of_keys;
  Tensor memory;
};

}  // namespace

struct HopperCall::Views {
  Views(const AttentionCall& call, const AttentionSizes& all_sizes);

  Layout layout() const {
    const Source& source = given.sources[0];
    return source.layout ? *source.layout
                         : Layout(given.query_places(), key_places(source));
  }
  bool is_wide() const { return std::max(sizes.width, sizes.value_width) > 64; }
  bool is_gathered() const { return task.query_rows.data != nullptr; }
  ListsKey key() const {
    return {given, sizes, (is_wide() ? 1 : 0) + (is_gathered() ? 2 : 0)};
  }
  torch::TensorOptions of_type(torch::Dtype type) const {
    return given.queries.q.options().dtype(type);
  }
  const torch::Device device() const { return given.queries.q.device(); }

  void launch(const char* name, const auto& work) const {
    cuda::launch(device(), name, work);
  }

  AttentionCall given;
  AttentionSizes sizes;
  cuda::HopperAttention task;
  std::vector<Tensor> kept;  // what `task` points into
};

HopperCall::Views::Views(const AttentionCall& call, const AttentionSizes& all_sizes)
    : given(call), sizes(all_sizes) {
  const auto& [queries, sources, options] = call;
  const Source& source = sources[0];
  const auto numbers = [&](const Tensor& x) {
    kept.push_back(cuda::aligned(x));
    return cuda::rows_of<const void>(kept.back(), sizes.heads);
  };
  const auto ints = [&](const Tensor& x, const char* name, const cuda::Limits& limits) {
    kept.push_back(cuda::int32_on(device(), x, name, limits));
    return cuda::rows_of<const int32_t>(kept.back(), sizes.heads);
  };
  task.type = cuda::cuda_type(queries.q);
  task.examples = sizes.examples;
  task.heads = sizes.heads;
  task.queries = sizes.queries;
  task.keys = source.k.size(2);
  task.width = sizes.width;
  task.value_width = sizes.value_width;
  task.scale = call.scale();
  task.q = numbers(queries.q);
  task.k = numbers(source.k);
  task.v = numbers(source.v);
  task.query_places = call.query_places();
  task.key_places = key_places(source);
  if (queries.rows.defined() || source.rows.defined()) {
    const auto rows = [&](const Tensor& x, int64_t count, const char* name) {
      return ints(x.defined() ? x : torch::arange(count, of_type(torch::kInt)), name,
                  cuda::rows_within(count));
    };
    task.query_rows = rows(queries.rows, sizes.queries, "rows of queries");
    task.key_rows = rows(source.rows, source.k.size(2), "rows of keys");
    task.positions = ints(queries.positions, "positions of queries", cuda::kPositions);
  }
  task.from = ints(source.from, "from", cuda::kEnds);
  task.to = ints(source.to, "to", cuda::kEnds);
  task.first = static_cast<int32_t>(queries.first);
}

std::optional<HopperCall> HopperCall::of(const AttentionCall& call,
                                         const AttentionSizes& sizes) {
  const auto type = call.queries.q.scalar_type();
  const bool has_sizes = sizes.examples > 0 && sizes.queries > 0 &&
                         sizes.width % 8 == 0 && sizes.value_width % 8 == 0 &&
                         sizes.width <= 128 && sizes.value_width <= 128;
  if ((type != torch::kBFloat16 && type != torch::kHalf) || !has_sizes ||
      !is_plain(call) || call.query_places() == 0 || key_places(call.sources[0]) == 0 ||
      call.sources[0].k.size(2) == 0 ||
      std::abs(call.queries.first) > cuda::kFarthestPosition)
    return {};
  const c10::DeviceGuard guard(call.queries.q.device());
  if (!cuda::is_hopper()) return {};
  auto views = std::make_shared<Views>(call, sizes);
  if (!cuda::hopper_serves(views->task)) return {};

  // Integers by place, where there are any.
  cuda::HopperAttention& task = views->task;
  if (task.from.data || task.to.data || task.query_rows.data) {
    cuda::HopperPlaces& places = task.places;
    const auto extents = [](std::initializer_list<Tensor> all, int64_t axis) {
      int64_t most = 1;
      for (const Tensor& x : all)
        if (x.defined() && x.dim() > 1) most = std::max(most, x.size(axis));
      return most;
    };
    const auto ints = [&](int64_t examples, int64_t heads, int64_t count) {
      views->kept.push_back(
          torch::empty({examples * heads * count}, views->of_type(torch::kInt)));
      return views->kept.back().data_ptr<int32_t>();
    };
    const Source& source = call.sources[0];
    const int64_t keys = cuda::hopper_padded(task.key_places);
    const auto of_keys = {source.from, source.to, source.rows};
    const int64_t key_examples = extents(of_keys, 0), key_heads = extents(of_keys, 1);
    places.key_examples = static_cast<int32_t>(key_examples);
    places.key_heads = static_cast<int32_t>(key_heads);
    places.from = ints(key_examples, key_heads, keys);
    places.to = ints(key_examples, key_heads, keys);
    places.key_bounds = ints(key_examples, key_heads, keys / 64 * 4);
    if (task.query_rows.data) {
      const int64_t queries = cuda::hopper_padded(task.query_places);
      const auto of_queries = {call.queries.rows, call.queries.positions};
      const int64_t examples = extents(of_queries, 0), heads = extents(of_queries, 1);
      places.query_examples = static_cast<int32_t>(examples);
      places.query_heads = static_cast<int32_t>(heads);
      places.positions = ints(examples, heads, queries);
      places.query_bounds = ints(examples, heads, queries / 64 * 2);
    }
    views->launch("places of attention", [&](cuda::Stream stream) {
      return cuda::hopper_places(task, stream);
    });
  }
  return HopperCall(views);
}

Attended HopperCall::attend() const {
  const Views& views = *views_;
  const auto [examples, heads, queries, width, value_width] = views.sizes;
  static auto* const kept = new KeptLists<AttendLists>;
  const auto lists = kept->get(views.key(), [&] {
    Parcel parcel;
    const SentLists sent(parcel, cuda::HopperStep::kAttend, views.is_wide(),
                         views.is_gathered(), views.layout(), views.sizes);
    const Tensor memory = parcel.sent(views.device());
    return AttendLists{.attend = sent.in(memory), .memory = memory};
  });
  const auto floats = views.of_type(torch::kFloat);
  Tensor out = result_rows(examples, heads, queries, value_width,
                           views.given.queries.q.options());
  Tensor lse = torch::empty({examples, heads, queries}, floats);
  if (views.given.queries.rows.defined()) {  // rows without a place
    out.zero_();
    lse.fill_(-std::numeric_limits<double>::infinity());
  }
  cuda::HopperAttend task{.given = views.task, .lists = lists->attend};
  const auto parts =
      cuda::hopper_part_numbers(cuda::HopperStep::kAttend, task.given, task.lists);
  const Tensor counter = torch::empty({1}, views.of_type(torch::kInt));
  const Tensor part_out = torch::empty({parts.out}, floats);
  const Tensor part_sums = torch::empty({parts.sums}, floats);
  task.out = cuda::rows_of<void>(out, heads);
  task.lse = cuda::row_numbers<void>(lse);
  task.counter = counter.data_ptr<int32_t>();
  task.part_out = part_out.data_ptr<float>();
  task.part_sums = part_sums.data_ptr<float>();
  views.launch("attention",
               [&](cuda::Stream stream) { return cuda::hopper_attend(task, stream); });
  return {out, lse};
}

std::vector<Tensor> HopperCall::gradient(const Attended& results,
                                         const Attended& slopes) const {
  const Views& views = *views_;
  const auto [examples, heads, queries, width, value_width] = views.sizes;
  static auto* const kept = new KeptLists<GradientLists>;
  const auto lists = kept->get(views.key(), [&] {
    Parcel parcel;
    const Layout layout = views.layout();
    const auto sent = [&](cuda::HopperStep step) {
      return SentLists(parcel, step, views.is_wide(), views.is_gathered(), layout,
                       views.sizes);
    };
    const SentLists of_queries = sent(cuda::HopperStep::kQueryGradient);
    const SentLists of_keys = sent(cuda::HopperStep::kKeyGradient);
    const Tensor memory = parcel.sent(views.device());
    return GradientLists{.of_queries = of_queries.in(memory),
                         .of_keys = of_keys.in(memory),
                         .memory = memory};
  });
  const auto type = views.given.queries.q.options();
  const auto floats = views.of_type(torch::kFloat);
  const Tensor out = cuda::aligned(results.out.to(type));
  const Tensor out_slope = slopes.out.defined()
                               ? cuda::spaced(cuda::aligned(slopes.out.to(type)))
                               : torch::zeros_like(out);
  const Tensor lse = results.lse.to(floats);
  const Tensor lse_slope =
      slopes.lse.defined() ? slopes.lse.to(floats).contiguous() : Tensor();

  cuda::HopperGradient task{.given = views.task,
                            .of_queries = lists->of_queries,
                            .of_keys = lists->of_keys,
                            .out = cuda::rows_of<const void>(out, heads),
                            .out_slope = cuda::rows_of<const void>(out_slope, heads),
                            .lse = cuda::row_numbers<const void>(lse),
                            .lse_slope = cuda::row_numbers<const void>(lse_slope)};
  const Source& source = views.given.sources[0];
  task.keys_by_row = source.rows.defined() && source.rows_once &&
                     source.k.size(0) == examples && source.v.size(0) == examples &&
                     source.k.size(1) == heads;
  const auto slopes_of = [&](int64_t count, int64_t columns, bool by_row) {
    const Tensor rows = result_rows(examples, heads, count, columns, type);
    return by_row ? rows.zero_() : rows;  // those that have no place
  };
  const Tensor q = slopes_of(queries, width, views.given.queries.rows.defined());
  const int64_t keys = task.keys_by_row ? views.task.keys : views.task.key_places;
  const Tensor k = slopes_of(keys, width, task.keys_by_row);
  const Tensor v = slopes_of(keys, value_width, task.keys_by_row);
  const Tensor rows = torch::empty(
      {2, examples * heads * cuda::hopper_padded(views.task.query_places)}, floats);
  const auto of_queries = cuda::hopper_part_numbers(cuda::HopperStep::kQueryGradient,
                                                    task.given, task.of_queries);
  const auto of_keys = cuda::hopper_part_numbers(cuda::HopperStep::kKeyGradient,
                                                 task.given, task.of_keys);
  const Tensor part_q = torch::empty({of_queries.out}, floats);
  const Tensor part_k = torch::empty({of_keys.out}, floats);
  const Tensor part_v = torch::empty({of_keys.out}, floats);
  const Tensor counter = torch::empty({2}, views.of_type(torch::kInt));
  task.lse2 = rows[0].data_ptr<float>();
  task.delta = rows[1].data_ptr<float>();
  task.q = cuda::rows_of<void>(q, heads);
  task.k = cuda::rows_of<void>(k, heads);
  task.v = cuda::rows_of<void>(v, heads);
  task.counter = counter.data_ptr<int32_t>();
  task.part_q = part_q.data_ptr<float>();
  task.part_k = part_k.data_ptr<float>();
  task.part_v = part_v.data_ptr<float>();
  views.launch("gradient of attention", [&](cuda::Stream stream) {
    return cuda::hopper_gradient(task, stream);
  });
  if (task.keys_by_row) return {q, k, v};
  return {q, cuda::of_given(k, source.rows, source.rows_once, source.k),
          cuda::of_given(v, source.rows, source.rows_once, source.v)};
}

}  // namespace longspan
