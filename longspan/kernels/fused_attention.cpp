#include "longspan/kernels/fused_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "longspan/base/build.h"
#include "longspan/kernels/attention_cuda.h"
#include "longspan/kernels/cpu/isa.h"
#include "longspan/kernels/head_views.h"
#include "longspan/kernels/in_order.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr int64_t kTile = Layout::kTile;

// A tile of queries of one head, and which of the tiles of keys it visits.
struct Piece {
  int64_t example, head, tile;
  int64_t from, to;   // of the visits to all sources, one after the other
  int64_t part = -1;  // among all parts, where the row is computed in parts
  int64_t parts = 0;  // of the row, for the first of them
};

int64_t count_visits(const AttentionCall& call, int64_t example, int64_t head,
                     int64_t tile) {
  int64_t count = 0;
  for (const Source& source : call.sources) {
    if (!source.layout) {
      count += key_tiles(source);
      continue;
    }
    const auto runs =
        source.layout->row(source.layout->pattern_of(example, head), tile);
    for (const Run& run : runs) count += run.count;
  }
  return count;
}

// All work of a call, the longest first. A row that alone would be more than a 64th of
// it is cut into parts.
std::vector<Piece> pieces_of(const AttentionCall& call, const AttentionSizes& sizes) {
  constexpr int64_t kShortest = 64;
  std::vector<Piece> rows;
  int64_t all = 0;
  for (int64_t example = 0; example < sizes.examples; ++example)
    for (int64_t head = 0; head < sizes.heads; ++head)
      for (int64_t tile = 0; tile * kTile < call.query_places(); ++tile) {
        const int64_t visits = count_visits(call, example, head, tile);
        rows.push_back({example, head, tile, 0, visits});
        all += visits;
      }
  const int64_t longest = std::max(kShortest, (all + 63) / 64);
  std::vector<Piece> pieces;
  int64_t parts = 0;
  for (const Piece& row : rows) {
    if (row.to <= longest) {
      pieces.push_back(row);
      continue;
    }
    for (int64_t from = 0; from < row.to; from += longest) {
      Piece part = row;
      part.from = from;
      part.to = std::min(from + longest, row.to);
      part.part = parts++;
      part.parts = from == 0 ? (row.to + longest - 1) / longest : 0;
      pieces.push_back(part);
    }
  }
  std::ranges::stable_sort(pieces, std::greater<>(),
                           [](const Piece& piece) { return piece.to - piece.from; });
  return pieces;
}

// The visits of a piece, source by source.
struct Visits {
  std::vector<cpu::Visit> all;
  std::vector<int64_t> counts;

  void find(const AttentionCall& call, const Piece& piece) {
    all.clear();
    counts.clear();
    for (const Source& source : call.sources) {
      const auto before = static_cast<int64_t>(all.size());
      append_visits(source, piece.example, piece.head, piece.tile, 0, key_tiles(source),
                    all);
      counts.push_back(static_cast<int64_t>(all.size()) - before);
    }
    if (piece.part < 0) return;
    int64_t start = 0;
    for (int64_t& count : counts) {
      const int64_t from = std::clamp(piece.from - start, int64_t{0}, count);
      const int64_t to = std::clamp(piece.to - start, int64_t{0}, count);
      start += count;
      count = to - from;
    }
    all = {all.begin() + piece.from, all.begin() + piece.to};
  }
};

void run(const cpu::AttendTask<float>& task) {
  using Attend = void(const cpu::AttendTask<float>&);
  cpu::pick<Attend>(cpu::portable::attend, cpu::avx2::attend,
                    cpu::avx512::attend)(task);
}

void run(const cpu::AttendTask<double>& task) {
  using Attend = void(const cpu::AttendTask<double>&);
  cpu::pick<Attend>(cpu::portable::attend, cpu::avx2::attend,
                    cpu::avx512::attend)(task);
}

void run(const cpu::AttendTask<float, uint16_t>& task) {
  cpu::avx512_bf16::attend(task);
}

int64_t bytes_of(const cpu::AttendTask<float>& task) {
  return cpu::portable::attend_bytes(task);
}
int64_t bytes_of(const cpu::AttendTask<double>& task) {
  return cpu::portable::attend_bytes(task);
}
int64_t bytes_of(const cpu::AttendTask<float, uint16_t>& task) {
  return cpu::avx512_bf16::attend_bytes(task);
}

void assign(float& to, float x) { to = x; }
void assign(double& to, double x) { to = x; }
void assign(uint16_t& to, float x) { to = c10::BFloat16(x).x; }

// Puts the parts of one row together, in their order.
template <class Number, class Stored>
void merge_parts(const Number* outs, const Number* lses, int64_t parts, int64_t width,
                 int64_t lane, Stored* out, Number* lse) {
  constexpr Number kNothing = -std::numeric_limits<Number>::infinity();
  Number most = kNothing;
  for (int64_t part = 0; part < parts; ++part)
    most = std::max(most, lses[part * kTile + lane]);
  const Number shift = most == kNothing ? 0 : most;
  std::vector<Number> total(width, 0);
  Number sum = 0;
  for (int64_t part = 0; part < parts; ++part) {
    const Number weight = std::exp(lses[part * kTile + lane] - shift);
    sum += weight;
    const Number* const from = outs + (part * kTile + lane) * width;
    for (int64_t x = 0; x < width; ++x) total[x] += weight * from[x];
  }
  // Not "more than 0": what is not a number must stay so.
  for (int64_t x = 0; x < width; ++x) assign(out[x], sum == 0 ? 0 : total[x] / sum);
  *lse = sum == 0 ? kNothing : shift + std::log(sum);
}

template <class Number, class Stored>
Attended attend_as(const AttentionCall& call, const AttentionSizes& sizes,
                   torch::Dtype stored_dtype) {
  const auto [examples, heads, queries, width, value_width] = sizes;
  const auto dtype = torch::CppTypeToScalarType<Number>::value;
  Tensor out = torch::empty({examples, heads, queries, value_width}, stored_dtype);
  Tensor lse = torch::empty({examples, heads, queries}, dtype);
  if (call.queries.rows.defined()) {  // rows without a place
    out.zero_();
    lse.fill_(-std::numeric_limits<double>::infinity());
  }
  const HeadViews<Number, Stored> views(call, sizes);
  const std::vector<Piece> pieces = pieces_of(call, sizes);
  int64_t parts = 0;
  for (const Piece& piece : pieces) parts = std::max(parts, piece.part + 1);
  const Tensor part_out = torch::empty({parts * kTile * value_width}, dtype);
  const Tensor part_lse = torch::empty({parts * kTile}, dtype);
  auto* const part_outs = part_out.data_ptr<Number>();
  auto* const part_lses = part_lse.data_ptr<Number>();

  auto* const outs = static_cast<Stored*>(out.data_ptr());
  auto* const lses = lse.data_ptr<Number>();
  const cpu::AttendTask<Number, Stored> sized{.width = width,
                                              .value_width = value_width};
  const int64_t bytes = bytes_of(sized);
  const auto count = static_cast<int64_t>(pieces.size());
  const Tensor scratch = torch::empty({workers(count), bytes}, torch::kByte);
  std::vector<Visits> visits(workers(count));

  each_in_order(count, [&](int64_t i, int64_t worker) {
    const Piece& piece = pieces[i];
    const int64_t row = (piece.example * heads + piece.head) * queries;
    visits[worker].find(call, piece);
    std::vector<cpu::HeadSource<Number, Stored>> sources;
    for (size_t s = 0; s < call.sources.size(); ++s)
      sources.push_back(
          views.source(static_cast<int64_t>(s), piece.example, piece.head));
    cpu::AttendTask<Number, Stored> task = sized;
    task.scale = call.scale();
    task.queries = views.queries(piece.example, piece.head);
    task.tile = piece.tile;
    task.sources = sources.data();
    task.source_count = static_cast<int64_t>(sources.size());
    task.visits = visits[worker].all.data();
    task.visit_counts = visits[worker].counts.data();
    task.dropout = views.dropout(piece.example, piece.head);
    task.out = outs + row * value_width;
    task.out_stride = value_width;
    task.lse = lses + row;
    if (piece.part >= 0) {
      task.part_out = part_outs + piece.part * kTile * value_width;
      task.part_lse = part_lses + piece.part * kTile;
    }
    task.scratch = scratch.data_ptr<uint8_t>() + worker * bytes;
    run(task);
  });

  for (const Piece& piece : pieces) {
    if (piece.parts == 0) continue;
    const auto here = views.queries(piece.example, piece.head);
    for (int64_t lane = 0; lane < kTile; ++lane) {
      const int64_t place = piece.tile * kTile + lane;
      const int64_t at = place >= here.places ? -1
                         : here.rows          ? here.rows[place]
                                              : place;
      if (at < 0) continue;
      const int64_t row = (piece.example * heads + piece.head) * queries + at;
      merge_parts(part_outs + piece.part * kTile * value_width,
                  part_lses + piece.part * kTile, piece.parts, value_width, lane,
                  outs + row * value_width, lses + row);
    }
  }
  return {out, lse};
}

bool has_bf16_kernel(const AttentionSizes& sizes, torch::Dtype dtype) {
  return dtype == torch::kBFloat16 && cpu::isa() == cpu::Isa::avx512_bf16 &&
         sizes.width % 2 == 0;
}

}  // namespace

Attended fused_attention(const AttentionCall& call) {
  const AttentionSizes sizes = check(call);
  if constexpr (kHasCuda)
    if (call.queries.q.is_cuda()) return attention_cuda(call, sizes);
  const auto dtype = call.queries.q.scalar_type();
  if (dtype == torch::kDouble)
    return attend_as<double, double>(call, sizes, torch::kDouble);
  if (has_bf16_kernel(sizes, dtype))
    return attend_as<float, uint16_t>(call, sizes, torch::kBFloat16);
  Attended result = attend_as<float, float>(call, sizes, torch::kFloat);
  result.out = result.out.to(dtype);
  return result;
}

}  // namespace longspan
