#include "longspan/kernels/pool_cpu.h"

#include <algorithm>
#include <vector>

#include "longspan/kernels/cpu/isa.h"
#include "longspan/kernels/cpu/pool.h"
#include "longspan/kernels/heads.h"
#include "longspan/kernels/pool_call.h"
#include "longspan/kernels/rows.h"

namespace longspan {
namespace {

using torch::Tensor;

// The inputs as the kernels take them.
struct Tokens {
  int64_t count = 0;   // N
  Tensor x = {};       // [B, H, N, d], last stride 1, or undefined where not needed
  Tensor keep = {};    // [B, H, N], dense, or undefined
  Tensor scores = {};  // [B, H, N], dense, or undefined

  template <class Number>
  cpu::PoolTokens<Number> from(int64_t example, int64_t head, int64_t token = 0,
                               int64_t column = 0) const {
    return {.x = head_of<Number>(x, example, head, token, column),
            .x_stride = x.defined() ? x.stride(2) : 0,
            .keep = head_of<bool>(keep, example, head, token),
            .scores = head_of<Number>(scores, example, head, token)};
  }
};

// `like` is [B, H, ..].
Tokens tokens_of(const PoolInputs& inputs, int64_t count, const Tensor& like,
                 torch::Dtype dtype) {
  const auto& [x, keep, scores] = inputs;
  Tokens tokens{.count = count};
  if (x.defined()) tokens.x = unit_stride(x, dtype);
  if (keep.defined())
    tokens.keep = keep.expand({like.size(0), like.size(1), count}).contiguous();
  if (scores.defined()) tokens.scores = scores.to(dtype).contiguous();
  return tokens;
}

template <class Task>
void run(const Task& task) {
  cpu::pick<void(const Task&)>(cpu::portable::pool, cpu::avx2::pool,
                               cpu::avx512::pool)(task);
}

// A piece of the work on one head.
struct Piece {
  int64_t example, head;
  int64_t first, count;  // rows
  int64_t first_column, columns;
  int64_t column_piece;  // which piece of the columns it is
};

// Pieces by the size of the problem alone, never by the number of threads: first of
// `rows`, each of about `cost` numbers, and where those are few also of columns.
class Cut {
 public:
  // `like`: [B, H, .., d].
  Cut(const Tensor& like, int64_t rows, int64_t cost)
      : examples_(like.size(0)),
        heads_(like.size(1)),
        width_(like.size(3)),
        rows_(rows),
        cost_(std::max<int64_t>(1, cost)) {
    constexpr int64_t kWorthAThread = 1 << 14;  // numbers
    constexpr int64_t kManyPieces = 8;          // enough to use most of the memory bus
    rows_of_piece_ = std::max<int64_t>(1, kWorthAThread / cost_);
    row_pieces_ = parts_of(rows, rows_of_piece_);
    const bool many = examples_ * heads_ * row_pieces_ >= kManyPieces;
    columns_of_piece_ = many ? width_ : cpu::kPoolColumns;
    column_pieces_ = parts_of(width_, columns_of_piece_);
  }

  int64_t column_pieces() const { return column_pieces_; }

  // work(piece), in parallel.
  template <class Work>
  void each(const Work& work) const {
    each_piece(
        examples_, heads_, row_pieces_ * column_pieces_,
        rows_of_piece_ * cost_ / column_pieces_,
        [&](int64_t example, int64_t head, int64_t index) {
          const int64_t first = index / column_pieces_ * rows_of_piece_;
          const int64_t column_piece = index % column_pieces_;
          const int64_t first_column = column_piece * columns_of_piece_;
          work(Piece{.example = example,
                     .head = head,
                     .first = first,
                     .count = std::min(rows_of_piece_, rows_ - first),
                     .first_column = first_column,
                     .columns = std::min(columns_of_piece_, width_ - first_column),
                     .column_piece = column_piece});
        });
  }

 private:
  int64_t examples_, heads_, width_, rows_, cost_;
  int64_t rows_of_piece_, row_pieces_, columns_of_piece_, column_pieces_;
};

Cut cut_of_spans(const Tensor& like, const Tensor& spans) {
  const int64_t count = spans.size(0);
  const int64_t* const ends = spans.data_ptr<int64_t>();
  int64_t tokens = 0;
  for (int64_t i = 0; i < count; ++i) tokens += ends[2 * i + 1] - ends[2 * i];
  return {like, count, tokens / std::max<int64_t>(1, count) * like.size(3)};
}

Cut cut_of_segments(const Tensor& like, int64_t tokens, int64_t segment) {
  return {like, parts_of(tokens, segment), segment * like.size(3)};
}

// The tokens of a piece whose rows are segments.
struct Stretch {
  int64_t first, count;

  Stretch(const Piece& piece, int64_t segment, int64_t tokens)
      : first(piece.first * segment),
        count(std::min(piece.count * segment, tokens - first)) {}
};

std::vector<double> scratch_for(const Piece& piece) {
  return std::vector<double>(piece.columns + cpu::kPoolColumns);
}

// Not filled: [B, H, rows], and [B, H, rows, d] for `like` of [B, H, .., d].
Tensor new_rows(const Tensor& like, int64_t rows, torch::Dtype dtype) {
  return torch::empty({like.size(0), like.size(1), rows}, dtype);
}
Tensor new_matrix(const Tensor& like, int64_t rows, torch::Dtype dtype) {
  return torch::empty({like.size(0), like.size(1), rows, like.size(3)}, dtype);
}

Weighed new_weighed(const Tokens& tokens, int64_t rows) {
  const auto dtype = tokens.x.scalar_type();
  Weighed result{.out = new_matrix(tokens.x, rows, dtype),
                 .factor = new_rows(tokens.x, rows, dtype),
                 .base = {},
                 .lse = {}};
  if (!tokens.scores.defined()) return result;
  result.base = new_rows(tokens.x, rows, dtype);
  result.lse = new_rows(tokens.x, rows, dtype);
  return result;
}

// What has no columns is left to the piece with the first.
template <class Number>
cpu::PooledRows<Number> rows_from(const Weighed& all, const Piece& piece, int64_t row) {
  const int64_t example = piece.example, head = piece.head;
  cpu::PooledRows<Number> rows{
      .out = head_of<Number>(all.out, example, head, row, piece.first_column),
      .out_stride = all.out.stride(2)};
  if (piece.first_column > 0) return rows;
  rows.base = head_of<Number>(all.base, example, head, row);
  rows.factor = head_of<Number>(all.factor, example, head, row);
  rows.lse = head_of<Number>(all.lse, example, head, row);
  return rows;
}

template <class Number>
Weighed weigh_spans(const Tokens& tokens, const Tensor& spans, bool divided) {
  const Weighed result = new_weighed(tokens, spans.size(0));
  cut_of_spans(tokens.x, spans).each([&](const Piece& piece) {
    auto sums = scratch_for(piece);
    run(cpu::PoolSpans<Number>{
        .tokens = tokens.from<Number>(piece.example, piece.head, 0, piece.first_column),
        .spans = spans.data_ptr<int64_t>() + 2 * piece.first,
        .span_count = piece.count,
        .width = piece.columns,
        .divided = divided,
        .sums = sums.data(),
        .pooled = rows_from<Number>(result, piece, piece.first)});
  });
  return result;
}

template <class Number>
Weighed weigh_prefixes(const Tokens& tokens, int64_t segment, bool divided) {
  const Weighed result = new_weighed(tokens, tokens.count);
  cut_of_segments(tokens.x, tokens.count, segment).each([&](const Piece& piece) {
    const Stretch stretch(piece, segment, tokens.count);
    auto sums = scratch_for(piece);
    run(cpu::PoolPrefixes<Number>{
        .tokens = tokens.from<Number>(piece.example, piece.head, stretch.first,
                                      piece.first_column),
        .token_count = stretch.count,
        .segment = segment,
        .width = piece.columns,
        .divided = divided,
        .sums = sums.data(),
        .pooled = rows_from<Number>(result, piece, stretch.first)});
  });
  return result;
}

// What goes back into a pooling by weights: [B, H, G, ..].
struct GoingBack {
  Tensor dout = {};  // last stride 1
  Tensor factor = {};
  Tensor base = {};    // only with scores
  Tensor offset = {};  // only where the gradient of scores is wanted
};

// See cpu::PoolOffsets. `out` and `dlse` are dense.
template <class Number>
Tensor offsets(const Tensor& dout, const Tensor& out, const Tensor& dlse) {
  const int64_t rows = out.size(2), width = out.size(3);
  const Tensor result = new_rows(out, rows, torch::kDouble);
  each_slice_of_heads(out, rows, width,
                      [&](int64_t example, int64_t head, int64_t first, int64_t count) {
                        run(cpu::PoolOffsets<Number>{
                            .dout = head_of<Number>(dout, example, head, first),
                            .dout_stride = dout.stride(2),
                            .out = head_of<Number>(out, example, head, first),
                            .dlse = head_of<Number>(dlse, example, head, first),
                            .offset = head_of<double>(result, example, head, first),
                            .rows = count,
                            .width = width});
                      });
  return result;
}

static_assert(kSpanBlock == kSliceRows && kSpanBlock <= cpu::kPoolTokens);

template <class Number>
PoolGradients spans_gradient(const Tokens& tokens, const Tensor& spans,
                             const GoingBack& slopes, PoolWanted wanted) {
  const Tensor& dout = slopes.dout;
  PoolGradients result;
  if (wanted.x) result.x = new_matrix(dout, tokens.count, dout.scalar_type());
  if (wanted.scores) result.scores = new_rows(dout, tokens.count, dout.scalar_type());
  const SpansOfBlocks blocks(spans, tokens.count);
  each_slice_of_heads(dout, tokens.count, dout.size(3),
                      [&](int64_t example, int64_t head, int64_t first, int64_t count) {
                        const auto which = blocks.of(first);
                        run(cpu::PoolSpansGradient<Number>{
                            .tokens = tokens.from<Number>(example, head),
                            .first = first,
                            .count = count,
                            .spans = spans.data_ptr<int64_t>(),
                            .which = which.data(),
                            .which_count = static_cast<int64_t>(which.size()),
                            .width = dout.size(3),
                            .base = head_of<Number>(slopes.base, example, head),
                            .factor = head_of<Number>(slopes.factor, example, head),
                            .offset = head_of<double>(slopes.offset, example, head),
                            .dout = head_of<Number>(dout, example, head),
                            .dout_stride = dout.stride(2),
                            .dx = head_of<Number>(result.x, example, head),
                            .dscores = head_of<Number>(result.scores, example, head)});
                      });
  return result;
}

template <class Number>
PoolGradients prefixes_gradient(const Tokens& tokens, int64_t segment,
                                const GoingBack& slopes, PoolWanted wanted) {
  const Tensor& dout = slopes.dout;
  const Cut cut = cut_of_segments(dout, tokens.count, segment);
  PoolGradients result;
  if (wanted.x) result.x = new_matrix(dout, tokens.count, dout.scalar_type());
  std::vector<Tensor> dscores(
      cut.column_pieces());  // one for every piece of the columns
  if (wanted.scores)
    for (Tensor& one : dscores) one = new_rows(dout, tokens.count, torch::kDouble);
  cut.each([&](const Piece& piece) {
    const Stretch stretch(piece, segment, tokens.count);
    const int64_t example = piece.example, head = piece.head;
    const int64_t token = stretch.first, column = piece.first_column;
    auto sums = scratch_for(piece);
    run(cpu::PoolPrefixesGradient<Number>{
        .tokens = tokens.from<Number>(example, head, token, column),
        .token_count = stretch.count,
        .segment = segment,
        .width = piece.columns,
        .sums = sums.data(),
        .base = head_of<Number>(slopes.base, example, head, token),
        .factor = head_of<Number>(slopes.factor, example, head, token),
        .offset =
            column > 0 ? nullptr : head_of<double>(slopes.offset, example, head, token),
        .dout = head_of<Number>(dout, example, head, token, column),
        .dout_stride = dout.stride(2),
        .dx = head_of<Number>(result.x, example, head, token, column),
        .dx_stride = dout.size(3),
        .dscores = head_of<double>(dscores[piece.column_piece], example, head, token)});
  });
  if (!wanted.scores) return result;
  result.scores = new_rows(dout, tokens.count, torch::kDouble).zero_();
  for (const Tensor& one : dscores) result.scores.add_(one);
  return result;
}

template <class Number>
Largest largest_of_spans(const Tokens& tokens, const Tensor& spans, bool with_place) {
  const int64_t rows = spans.size(0);
  Largest result{.out = new_matrix(tokens.x, rows, tokens.x.scalar_type())};
  if (with_place) result.place = new_matrix(tokens.x, rows, torch::kInt);
  cut_of_spans(tokens.x, spans).each([&](const Piece& piece) {
    const int64_t example = piece.example, head = piece.head;
    const int64_t first = piece.first, column = piece.first_column;
    run(cpu::LargestOfSpans<Number>{
        .tokens = tokens.from<Number>(example, head, 0, column),
        .spans = spans.data_ptr<int64_t>() + 2 * first,
        .span_count = piece.count,
        .width = piece.columns,
        .out = head_of<Number>(result.out, example, head, first, column),
        .place = head_of<int32_t>(result.place, example, head, first, column),
        .stride = result.out.stride(2)});
  });
  return result;
}

template <class Number>
Largest largest_of_prefixes(const Tokens& tokens, int64_t segment) {
  const Tensor out = new_matrix(tokens.x, tokens.count, tokens.x.scalar_type());
  cut_of_segments(out, tokens.count, segment).each([&](const Piece& piece) {
    const Stretch stretch(piece, segment, tokens.count);
    const int64_t example = piece.example, head = piece.head;
    run(cpu::LargestOfPrefixes<Number>{
        .tokens = tokens.from<Number>(example, head, stretch.first, piece.first_column),
        .token_count = stretch.count,
        .segment = segment,
        .width = piece.columns,
        .out = head_of<Number>(out, example, head, stretch.first, piece.first_column),
        .out_stride = out.stride(2)});
  });
  return {.out = out};
}

template <class Number>
Tensor largest_of_spans_gradient(const Tensor& dout, const Tensor& place,
                                 const Tensor& spans, int64_t tokens) {
  const int64_t width = dout.size(3);
  const Tensor dx = new_matrix(dout, tokens, dout.scalar_type());
  const SpansOfBlocks blocks(spans, tokens);
  each_slice_of_heads(
      dout, tokens, width,
      [&](int64_t example, int64_t head, int64_t first, int64_t count) {
        Number* const to = head_of<Number>(dx, example, head, first);
        std::fill(to, to + count * width, Number{0});
        for (const int64_t span : blocks.of(first)) {
          const Number* const slope = head_of<Number>(dout, example, head, span);
          const int32_t* const token = head_of<int32_t>(place, example, head, span);
          for (int64_t i = 0; i < width; ++i)
            if (token[i] >= first && token[i] < first + count)
              to[(token[i] - first) * width + i] += slope[i];
        }
      });
  return dx;
}

template <class Number>
Tensor largest_of_prefixes_gradient(const Tensor& dout, const Tensor& out,
                                    const Tensor& keep, int64_t segment) {
  const int64_t tokens = out.size(2);
  const Tensor dx = new_matrix(dout, tokens, dout.scalar_type());
  cut_of_segments(dout, tokens, segment).each([&](const Piece& piece) {
    const Stretch stretch(piece, segment, tokens);
    const int64_t example = piece.example, head = piece.head;
    const int64_t token = stretch.first, column = piece.first_column;
    run(cpu::LargestOfPrefixesGradient<Number>{
        .keep = head_of<bool>(keep, example, head, token),
        .token_count = stretch.count,
        .segment = segment,
        .width = piece.columns,
        .out = head_of<Number>(out, example, head, token, column),
        .out_stride = out.stride(2),
        .dout = head_of<Number>(dout, example, head, token, column),
        .dout_stride = dout.stride(2),
        .dx = head_of<Number>(dx, example, head, token, column),
        .dx_stride = dx.stride(2)});
  });
  return dx;
}

// work(number) of the type of numbers.
template <class Work>
auto with_number(torch::Dtype dtype, const Work& work) {
  return dtype == torch::kDouble ? work(double()) : work(float());
}

}  // namespace

Weighed pool_by_weights_cpu(const PoolInputs& inputs, const PoolWhere& where,
                            bool divided) {
  const auto dtype = inner_dtype(inputs.x);
  const Tokens tokens = tokens_of(inputs, inputs.x.size(2), inputs.x, dtype);
  return with_number(dtype, [&](auto number) {
    using Number = decltype(number);
    if (where.is_spans()) return weigh_spans<Number>(tokens, where.tensor, divided);
    return weigh_prefixes<Number>(tokens, where.segment(), divided);
  });
}

PoolGradients pool_by_weights_gradient_cpu(const PoolInputs& inputs, int64_t tokens,
                                           const PoolWhere& where,
                                           const Weighed& result,
                                           const WeighedSlopes& slopes,
                                           PoolWanted wanted) {
  const auto dtype = result.factor.scalar_type();
  const Tokens all = tokens_of(inputs, tokens, result.factor, dtype);
  return with_number(dtype, [&](auto number) {
    using Number = decltype(number);
    GoingBack back{.dout = unit_stride(slopes.out, dtype),
                   .factor = result.factor,
                   .base = result.base};
    if (wanted.scores)
      back.offset = offsets<Number>(back.dout, result.out, slopes.lse.contiguous());
    if (where.is_spans())
      return spans_gradient<Number>(all, where.tensor, back, wanted);
    return prefixes_gradient<Number>(all, where.segment(), back, wanted);
  });
}

Largest pool_largest_cpu(const PoolInputs& inputs, const PoolWhere& where,
                         bool with_place) {
  const auto dtype = inner_dtype(inputs.x);
  const Tokens tokens = tokens_of(inputs, inputs.x.size(2), inputs.x, dtype);
  return with_number(dtype, [&](auto number) {
    using Number = decltype(number);
    if (where.is_spans())
      return largest_of_spans<Number>(tokens, where.tensor, with_place);
    return largest_of_prefixes<Number>(tokens, where.segment());
  });
}

Tensor pool_largest_gradient_cpu(const Tensor& dout, const Tensor& known,
                                 const Tensor& keep, int64_t tokens,
                                 const PoolWhere& where) {
  const auto dtype = inner_dtype(dout);
  const Tensor slopes = unit_stride(dout, dtype);
  return with_number(dtype, [&](auto number) {
    using Number = decltype(number);
    if (where.is_spans())
      return largest_of_spans_gradient<Number>(slopes, known, where.tensor, tokens);
    const Tokens all = tokens_of({.keep = keep}, tokens, slopes, dtype);
    return largest_of_prefixes_gradient<Number>(slopes, known.to(dtype), all.keep,
                                                where.segment());
  });
}

}  // namespace longspan
