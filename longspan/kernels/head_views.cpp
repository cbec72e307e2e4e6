#include "longspan/kernels/head_views.h"

#include <algorithm>
#include <limits>

#include "longspan/base/error.h"
#include "longspan/base/shapes.h"
#include "longspan/kernels/heads.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr int64_t kTile = Layout::kTile;
// Differences of two positions, less the first distance of a table, stay in 32 bits.
constexpr int64_t kFarthest = int64_t{1} << 29;

// What integers must be within; those beyond an end are refused, or cut to it.
struct Limits {
  int64_t least = std::numeric_limits<int32_t>::min();
  int64_t most = std::numeric_limits<int32_t>::max();
  bool cut_least = false, cut_most = false;
};

// As int32, of the same shape; [n] as [1, 1, n].
Tensor as_int32(const Tensor& tensor, const char* name, const Limits& limits) {
  if (!tensor.defined()) return tensor;
  const Tensor from = tensor.to(torch::kCPU, torch::kLong).contiguous();
  Tensor result = torch::empty(from.sizes(), torch::kInt);
  const int64_t* const source = from.data_ptr<int64_t>();
  int32_t* const target = result.data_ptr<int32_t>();
  for (int64_t i = 0; i < from.numel(); ++i) {
    const int64_t value = std::clamp(source[i], limits.least, limits.most);
    require(value == source[i] ||
                (value == limits.least ? limits.cut_least : limits.cut_most),
            "block attention: ", name, " must be between ", limits.least, " and ",
            limits.most, ", got ", source[i]);
    target[i] = static_cast<int32_t>(value);
  }
  return tensor.dim() == 1 ? result.view({1, 1, -1}) : result;
}

// Places whose rows are negative are empty; the others must name a row.
Tensor rows_of(const Tensor& rows, const char* name, int64_t count) {
  return as_int32(rows, name, {.least = -1, .most = count - 1, .cut_least = true});
}

// A row of q in two places would be written twice.
void check_once(const Tensor& rows, int64_t count) {
  if (!rows.defined()) return;
  const int64_t places = rows.size(-1);
  std::vector<int64_t> last(count, -1);
  const int32_t* row = rows.data_ptr<int32_t>();
  for (int64_t list = 0; list < rows.numel() / std::max<int64_t>(places, 1); ++list)
    for (int64_t place = 0; place < places; ++place, ++row) {
      if (*row < 0) continue;
      require(last[*row] < list,
              "block attention: rows of queries must name a row once, got ", *row,
              " twice");
      last[*row] = list;
    }
}

// [heads|1, entries..] as [1, heads|1, 1, entries], [heads|1, entries.., d] as
// [1, heads|1, entries, padded d].
template <class Number>
Tensor by_head(const Tensor& tensor, bool has_rows) {
  if (!tensor.defined()) return tensor;
  const Tensor numbers = tensor.to(torch::CppTypeToScalarType<Number>::value);
  int64_t entries = 1;
  for (const int64_t size : tensor.sizes().slice(1)) entries *= size;
  if (!has_rows) return numbers.reshape({1, tensor.size(0), 1, entries}).contiguous();
  const int64_t width = tensor.size(-1);
  const int64_t padding = (cpu::kPadding - width % cpu::kPadding) % cpu::kPadding;
  return torch::constant_pad_nd(
             numbers.reshape({1, tensor.size(0), entries / width, width}), {0, padding})
      .contiguous();
}

template <class Number>
Tensor numbers_of(const Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  const Tensor four = tensor.dim() == 3 ? tensor.unsqueeze(2) : tensor;
  return unit_stride(four, torch::CppTypeToScalarType<Number>::value);
}

template <class Stored>
Tensor stored_as(const Tensor& tensor) {
  if constexpr (std::is_same_v<Stored, uint16_t>)
    return unit_stride(tensor, torch::kBFloat16);
  else
    return unit_stride(tensor, torch::CppTypeToScalarType<Stored>::value);
}

int32_t small(int64_t value, const char* name) {
  require(std::abs(value) <= kFarthest, "block attention: ", name,
          " must be between -2^29 and 2^29, got ", value);
  return static_cast<int32_t>(value);
}

}  // namespace

template <class Number>
HeadRows<Number>::HeadRows(const Tensor& tensor, int64_t heads) : tensor_(tensor) {
  if (!tensor.defined()) return;
  data_ = static_cast<Number*>(tensor.data_ptr());
  const int64_t tensor_heads = tensor.size(1);
  example_stride_ = tensor.size(0) == 1 ? 0 : tensor.stride(0);
  head_stride_ = tensor.stride(1);
  row_stride_ = tensor.dim() == 4 ? tensor.stride(2) : 0;
  group_ = std::max<int64_t>(1, heads / std::max<int64_t>(1, tensor_heads));
}

template <class Number, class Stored>
HeadViews<Number, Stored>::HeadViews(const AttentionCall& call,
                                     const AttentionSizes& sizes)
    : call_(call), heads_(sizes.heads) {
  const int64_t heads = sizes.heads;
  const Limits positions{.least = -kFarthest, .most = kFarthest};
  const Limits ends{.cut_least = true, .cut_most = true};
  const Tensor query_rows =
      rows_of(call.queries.rows, "rows of queries", sizes.queries);
  check_once(query_rows, sizes.queries);
  q_ = {stored_as<Stored>(call.queries.q), heads};
  rows_ = {query_rows, heads};
  positions_ = {as_int32(call.queries.positions, "positions of queries", positions),
                heads};
  small(call.queries.first, "the first position");
  buckets_ = {as_int32(call.queries.buckets, "buckets of queries", {}), heads};
  for (const Source& source : call.sources) {
    const Bias& bias = source.bias;
    small(bias.first, "first of a bias");
    small(bias.first_column, "first_column of a bias");
    small(bias.width, "width of a bias");
    const Tensor& table = bias.table.defined() ? bias.table : bias.vectors;
    int64_t entries = 1;
    if (table.defined()) entries = table.size(1) * (bias.width > 0 ? table.size(2) : 1);
    sources_.push_back(
        {.k = {stored_as<Stored>(source.k), heads},
         .v = {stored_as<Stored>(source.v), heads},
         .rows = {rows_of(source.rows, "rows of keys", source.k.size(2)), heads},
         .positions = {as_int32(source.positions, "positions of keys", positions),
                       heads},
         .from = {as_int32(source.from, "from", ends), heads},
         .to = {as_int32(source.to, "to", ends), heads},
         .buckets = {as_int32(source.buckets, "buckets of keys", {}), heads},
         .labels = {as_int32(bias.labels, "labels", {.least = 0, .most = entries - 1}),
                    heads},
         .column = {numbers_of<Number>(bias.column), heads},
         .slopes = {by_head<Number>(bias.slopes, false), heads},
         .table = {by_head<Number>(bias.table, false), heads},
         .vectors = {by_head<Number>(bias.vectors, true), heads},
         .offset = {by_head<Number>(bias.offset, false), heads},
         .dense = {numbers_of<Number>(bias.dense), heads}});
  }
}

template <class Number, class Stored>
cpu::HeadQueries<Stored> HeadViews<Number, Stored>::queries(int64_t example,
                                                            int64_t head) const {
  return {.q = q_.at(example, head),
          .stride = q_.stride(),
          .places = call_.query_places(),
          .rows = rows_.at(example, head),
          .positions = positions_.at(example, head),
          .first = static_cast<int32_t>(call_.queries.first),
          .buckets = buckets_.at(example, head)};
}

template <class Number, class Stored>
cpu::HeadSource<Number, Stored> HeadViews<Number, Stored>::source(int64_t number,
                                                                  int64_t example,
                                                                  int64_t head) const {
  const Source& given = call_.sources[number];
  const SourceRows& rows = sources_[number];
  const Bias& bias = given.bias;
  const Tensor& sized = bias.table.defined() ? bias.table : bias.vectors;
  return {.k = rows.k.at(example, head),
          .v = rows.v.at(example, head),
          .k_stride = rows.k.stride(),
          .v_stride = rows.v.stride(),
          .places = key_places(given),
          .rows = rows.rows.at(example, head),
          .positions = rows.positions.at(example, head),
          .from = rows.from.at(example, head),
          .to = rows.to.at(example, head),
          .outside = given.outside,
          .buckets = rows.buckets.at(example, head),
          .bias = {.column = rows.column.at(example, head),
                   .slope = rows.slopes.at(0, head),
                   .table = rows.table.at(0, head),
                   .vectors = rows.vectors.at(0, head),
                   .offset = rows.offset.at(0, head),
                   .labels = rows.labels.at(example, head),
                   .dense = rows.dense.at(example, head),
                   .labels_stride = rows.labels.stride(),
                   .dense_stride = rows.dense.stride(),
                   .first = static_cast<int32_t>(bias.first),
                   .rows = sized.defined() ? static_cast<int32_t>(sized.size(1)) : 1,
                   .grid_width = static_cast<int32_t>(bias.width),
                   .first_column = static_cast<int32_t>(bias.first_column),
                   .columns = sized.defined() && bias.width > 0
                                  ? static_cast<int32_t>(sized.size(2))
                                  : 1},
          .number = static_cast<uint32_t>(number)};
}

template <class Number, class Stored>
cpu::HeadDropout HeadViews<Number, Stored>::dropout(int64_t example,
                                                    int64_t head) const {
  const Dropout& dropout = call_.options.dropout;
  if (dropout.probability == 0) return {};
  return {.key = dropout.key.bits,
          .limit = word_limit(dropout.probability),
          .stream = static_cast<uint32_t>(example * heads_ + head),
          .factor = 1 / (1 - dropout.probability)};
}

int64_t key_places(const Source& source) {
  return source.rows.defined() ? source.rows.size(-1) : source.k.size(2);
}

int64_t key_tiles(const Source& source) { return parts_of(key_places(source), kTile); }

void append_visits(const Source& source, int64_t example, int64_t head,
                   int64_t query_tile, int64_t first, int64_t end,
                   std::vector<cpu::Visit>& visits) {
  if (!source.layout) {
    for (int64_t tile = first; tile < end; ++tile)
      visits.push_back({static_cast<int32_t>(tile), nullptr});
    return;
  }
  const Layout& layout = *source.layout;
  const Tiles& tiles = layout.tiles(layout.pattern_of(example, head));
  const auto runs = tiles.row(query_tile);
  auto run = std::ranges::partition_point(
      runs, [&](const Run& one) { return one.first + one.count <= first; });
  for (; run != runs.end() && run->first < end; ++run) {
    const uint64_t* const mask =
        run->mask == Layout::kFull ? nullptr : tiles.masks()[run->mask].data();
    const int64_t from = std::max<int64_t>(run->first, first);
    const int64_t to = std::min<int64_t>(run->first + run->count, end);
    for (int64_t tile = from; tile < to; ++tile)
      visits.push_back({static_cast<int32_t>(tile), mask});
  }
}

template class HeadRows<float>;
template class HeadRows<double>;
template class HeadRows<uint16_t>;
template class HeadRows<int32_t>;
template class HeadViews<float>;
template class HeadViews<double>;
template class HeadViews<float, uint16_t>;

}  // namespace longspan
