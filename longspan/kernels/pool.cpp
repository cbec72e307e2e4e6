#include "longspan/kernels/pool.h"

#include <algorithm>
#include <limits>
#include <span>
#include <tuple>

#include <torch/csrc/autograd/custom_function.h>

#include "longspan/base/error.h"
#include "longspan/base/shapes.h"
#include "longspan/kernels/cpu/isa.h"
#include "longspan/kernels/cpu/pool.h"
#include "longspan/kernels/heads.h"
#include "longspan/kernels/rows.h"

namespace longspan {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr char kWho[] = "pooling: ";
constexpr double kInfinity = std::numeric_limits<double>::infinity();

[[noreturn]] void refuse(Pooling how) {
  fail(kWho, "it must be max, mean, sum or softmax, got number ",
       static_cast<int>(how));
}

// Custom functions of LibTorch take no undefined tensors.
Tensor or_none(const Tensor& tensor) {
  return tensor.defined() ? tensor : torch::empty({0});
}
bool is_none(const Tensor& tensor) { return tensor.dim() == 1; }

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

// `x`, `keep` and `scores` may be none; `like` is [B, H, ..].
Tokens tokens_of(const Tensor& like, int64_t count, torch::Dtype dtype, const Tensor& x,
                 const Tensor& keep, const Tensor& scores) {
  Tokens tokens{.count = count};
  if (!is_none(x)) tokens.x = unit_stride(x, dtype);
  if (!is_none(keep))
    tokens.keep = keep.expand({like.size(0), like.size(1), count}).contiguous();
  if (!is_none(scores)) tokens.scores = scores.to(dtype).contiguous();
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
    row_pieces_ = (rows + rows_of_piece_ - 1) / rows_of_piece_;
    const bool many = examples_ * heads_ * row_pieces_ >= kManyPieces;
    columns_of_piece_ = many ? width_ : cpu::kPoolColumns;
    column_pieces_ = (width_ + columns_of_piece_ - 1) / columns_of_piece_;
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
  return {like, (tokens + segment - 1) / segment, segment * like.size(3)};
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

// What the kernels give for the poolings by weights, [B, H, G, ..]: see cpu/pool.h.
struct Weighed {
  Tensor out, factor, base, lse;  // the last two only with scores

  Weighed(const Tokens& tokens, int64_t rows) {
    const auto dtype = tokens.x.scalar_type();
    out = new_matrix(tokens.x, rows, dtype);
    factor = new_rows(tokens.x, rows, dtype);
    if (!tokens.scores.defined()) return;
    base = new_rows(tokens.x, rows, dtype);
    lse = new_rows(tokens.x, rows, dtype);
  }

  // What has no columns is left to the piece with the first.
  template <class Number>
  cpu::PooledRows<Number> from(const Piece& piece, int64_t row) const {
    cpu::PooledRows<Number> rows{
        .out = head_of<Number>(out, piece.example, piece.head, row, piece.first_column),
        .out_stride = out.stride(2)};
    if (piece.first_column > 0) return rows;
    rows.base = head_of<Number>(base, piece.example, piece.head, row);
    rows.factor = head_of<Number>(factor, piece.example, piece.head, row);
    rows.lse = head_of<Number>(lse, piece.example, piece.head, row);
    return rows;
  }
};

template <class Number>
Weighed weigh_spans(const Tokens& tokens, const Tensor& spans, bool divided) {
  const Weighed result(tokens, spans.size(0));
  cut_of_spans(tokens.x, spans).each([&](const Piece& piece) {
    auto sums = scratch_for(piece);
    run(cpu::PoolSpans<Number>{
        .tokens = tokens.from<Number>(piece.example, piece.head, 0, piece.first_column),
        .spans = spans.data_ptr<int64_t>() + 2 * piece.first,
        .span_count = piece.count,
        .width = piece.columns,
        .divided = divided,
        .sums = sums.data(),
        .pooled = result.from<Number>(piece, piece.first)});
  });
  return result;
}

template <class Number>
Weighed weigh_prefixes(const Tokens& tokens, int64_t segment, bool divided) {
  const Weighed result(tokens, tokens.count);
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
        .pooled = result.from<Number>(piece, stretch.first)});
  });
  return result;
}

struct Wanted {
  bool dx, dscores;
};

struct Gradients {
  Tensor dx = {}, dscores = {};
};

// What goes back into a pooling by weights: [B, H, G, ..].
struct WeighedSlopes {
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

static_assert(kSliceRows <= cpu::kPoolTokens);

// Which spans hold tokens of a block of kSliceRows.
class SpansOfBlocks {
 public:
  SpansOfBlocks(const Tensor& spans, int64_t tokens) : begins_(slices_of(tokens) + 1) {
    const int64_t* const ends = spans.data_ptr<int64_t>();
    const auto each_block = [&](const auto& work) {
      for (int64_t span = 0; span < spans.size(0); ++span) {
        const int64_t from = ends[2 * span], to = ends[2 * span + 1];
        if (from == to) continue;
        for (int64_t block = from / kSliceRows; block <= (to - 1) / kSliceRows; ++block)
          work(span, block);
      }
    };
    each_block([&](int64_t, int64_t block) { ++begins_[block + 1]; });
    for (size_t i = 1; i < begins_.size(); ++i) begins_[i] += begins_[i - 1];
    spans_.resize(begins_.back());
    std::vector<int64_t> next = begins_;
    each_block([&](int64_t span, int64_t block) { spans_[next[block]++] = span; });
  }

  // Ascending, for the block that begins with `token`.
  std::span<const int64_t> of(int64_t token) const {
    const int64_t begin = begins_[token / kSliceRows];
    const int64_t end = begins_[token / kSliceRows + 1];
    return {spans_.data() + begin, static_cast<size_t>(end - begin)};
  }

 private:
  std::vector<int64_t> begins_, spans_;
};

template <class Number>
Gradients spans_gradient(const Tokens& tokens, const Tensor& spans,
                         const WeighedSlopes& slopes, Wanted wanted) {
  const Tensor& dout = slopes.dout;
  Gradients result;
  if (wanted.dx) result.dx = new_matrix(dout, tokens.count, dout.scalar_type());
  if (wanted.dscores) result.dscores = new_rows(dout, tokens.count, dout.scalar_type());
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
                            .dx = head_of<Number>(result.dx, example, head),
                            .dscores = head_of<Number>(result.dscores, example, head)});
                      });
  return result;
}

template <class Number>
Gradients prefixes_gradient(const Tokens& tokens, int64_t segment,
                            const WeighedSlopes& slopes, Wanted wanted) {
  const Tensor& dout = slopes.dout;
  const Cut cut = cut_of_segments(dout, tokens.count, segment);
  Gradients result;
  if (wanted.dx) result.dx = new_matrix(dout, tokens.count, dout.scalar_type());
  variable_list dscores(cut.column_pieces());  // one for every piece of the columns
  if (wanted.dscores)
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
        .dx = head_of<Number>(result.dx, example, head, token, column),
        .dx_stride = dout.size(3),
        .dscores = head_of<double>(dscores[piece.column_piece], example, head, token)});
  });
  if (!wanted.dscores) return result;
  result.dscores = new_rows(dout, tokens.count, torch::kDouble).zero_();
  for (const Tensor& one : dscores) result.dscores.add_(one);
  return result;
}

// Where to pool, for functions of LibTorch: spans, [G, 2], or prefixes of segments of
// some length, [1]; on the CPU.
Tensor as_tensor(const std::vector<Span>& spans) {
  Tensor result = torch::empty({static_cast<int64_t>(spans.size()), 2}, torch::kLong);
  int64_t* to = result.data_ptr<int64_t>();
  for (const Span& span : spans) {
    *to++ = span.from;
    *to++ = span.to;
  }
  return result;
}
Tensor as_tensor(int64_t segment) { return torch::full({1}, segment, torch::kLong); }
bool is_spans(const Tensor& where) { return where.dim() == 2; }

void refuse_second_gradient() {
  require(!torch::GradMode::is_enabled(), kWho,
          "it has no second derivatives; the reference has");
}

class WeighedFunction : public torch::autograd::Function<WeighedFunction> {
 public:
  static variable_list forward(AutogradContext* context, const Tensor& x,
                               const Tensor& keep, const Tensor& scores,
                               const Tensor& where, bool divided) {
    const auto dtype = inner_dtype(x);
    const Tokens tokens = tokens_of(x, x.size(2), dtype, x, keep, scores);
    const auto run_as = [&](auto number) {
      using Number = decltype(number);
      if (is_spans(where)) return weigh_spans<Number>(tokens, where, divided);
      return weigh_prefixes<Number>(tokens, where.item<int64_t>(), divided);
    };
    const Weighed result = dtype == torch::kDouble ? run_as(double()) : run_as(float());
    const Tensor out = result.out.to(x.scalar_type());
    const Tensor none = or_none({});
    const bool with_scores = result.lse.defined();
    // Without scores the gradient of x needs nothing of its values.
    context->save_for_backward({with_scores ? x : none, keep, scores, where,
                                result.factor, with_scores ? result.base : none,
                                with_scores ? result.out : none});
    context->saved_data["tokens"] = x.size(2);
    return with_scores ? variable_list{out, result.lse} : variable_list{out};
  }

  static variable_list backward(AutogradContext* context, variable_list given) {
    refuse_second_gradient();
    const variable_list saved = context->get_saved_variables();
    const Tensor &x = saved[0], &keep = saved[1], &scores = saved[2], &where = saved[3],
                 &factor = saved[4], &base = saved[5], &out = saved[6];
    const auto dtype = factor.scalar_type(), outer_dtype = given[0].scalar_type();
    const Wanted wanted{.dx = context->needs_input_grad(0),
                        .dscores = context->needs_input_grad(2)};
    const Tokens tokens = tokens_of(factor, context->saved_data["tokens"].toInt(),
                                    dtype, x, keep, scores);
    const auto run_as = [&](auto number) {
      using Number = decltype(number);
      WeighedSlopes slopes{.dout = unit_stride(given[0], dtype), .factor = factor};
      if (!is_none(base)) slopes.base = base;
      if (wanted.dscores)
        slopes.offset = offsets<Number>(slopes.dout, out, given[1].contiguous());
      if (is_spans(where)) return spans_gradient<Number>(tokens, where, slopes, wanted);
      return prefixes_gradient<Number>(tokens, where.item<int64_t>(), slopes, wanted);
    };
    const Gradients result =
        dtype == torch::kDouble ? run_as(double()) : run_as(float());
    return {wanted.dx ? result.dx.to(outer_dtype) : Tensor(), Tensor(),
            wanted.dscores ? result.dscores.to(scores.scalar_type()) : Tensor(),
            Tensor(), Tensor()};
  }
};

struct Largest {
  Tensor out = {};
  Tensor place = {};  // of spans: [B, H, G, d] int, the token it is of, -1 for none
};

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

class LargestFunction : public torch::autograd::Function<LargestFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& keep,
                        const Tensor& where) {
    const auto dtype = inner_dtype(x);
    const Tokens tokens = tokens_of(x, x.size(2), dtype, x, keep, or_none({}));
    const auto run_as = [&](auto number) {
      using Number = decltype(number);
      if (is_spans(where))
        return largest_of_spans<Number>(tokens, where, x.requires_grad());
      return largest_of_prefixes<Number>(tokens, where.item<int64_t>());
    };
    const Largest result = dtype == torch::kDouble ? run_as(double()) : run_as(float());
    const Tensor out = result.out.to(x.scalar_type());
    context->save_for_backward(
        {is_spans(where) ? or_none(result.place) : out, keep, where});
    context->saved_data["tokens"] = x.size(2);
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list given) {
    refuse_second_gradient();
    const variable_list saved = context->get_saved_variables();
    const Tensor &known = saved[0], &keep = saved[1], &where = saved[2];
    const int64_t count = context->saved_data["tokens"].toInt();
    const auto dtype = inner_dtype(given[0]);
    const Tensor dout = unit_stride(given[0], dtype);
    const auto run_as = [&](auto number) {
      using Number = decltype(number);
      if (is_spans(where))
        return largest_of_spans_gradient<Number>(dout, known, where, count);
      const Tokens tokens =
          tokens_of(dout, count, dtype, or_none({}), keep, or_none({}));
      return largest_of_prefixes_gradient<Number>(dout, known.to(dtype), tokens.keep,
                                                  where.item<int64_t>());
    };
    const Tensor dx = dtype == torch::kDouble ? run_as(double()) : run_as(float());
    return {dx.to(given[0].scalar_type()), Tensor(), Tensor()};
  }
};

void check(const PoolInputs& inputs, Pooling how) {
  const auto& [x, keep, scores] = inputs;
  require(x.defined() && x.dim() == 4 && x.size(3) >= 1, kWho,
          "x must be [B, H, N, d] with d of 1 or more, got ", shape(x));
  const auto dtype = x.scalar_type();
  const bool is_short = dtype == torch::kBFloat16 || dtype == torch::kHalf;
  require(dtype == torch::kFloat || dtype == torch::kDouble || is_short, kWho,
          "x must be float, double, bfloat16 or half, got ", dtype);
  require(x.size(2) <= std::numeric_limits<int32_t>::max(), kWho,
          "x must have at most 2147483647 tokens, got ", x.size(2));
  if (keep.defined()) {
    const auto fits = [&](int64_t axis) {
      return keep.size(axis) == 1 || keep.size(axis) == x.size(axis);
    };
    require(keep.dim() == 3 && fits(0) && fits(1) && keep.size(2) == x.size(2), kWho,
            "keep must be [B|1, H|1, N] for x of ", shape(x), ", got ", shape(keep));
    require(keep.scalar_type() == torch::kBool, kWho, "keep must be bool, got ",
            keep.scalar_type());
    require(keep.device() == x.device(), kWho, "keep must be on ", x.device(),
            ", where x is, got ", keep.device());
  }
  if (how != Pooling::softmax) {
    require(!scores.defined(), kWho, "only softmax takes scores, got ", shape(scores));
    return;
  }
  require(scores.defined() && scores.sizes() == x.sizes().slice(0, 3), kWho,
          "scores of softmax must be ", x.sizes().slice(0, 3), ", got ", shape(scores));
  require(scores.scalar_type() == dtype ||
              (is_short && scores.scalar_type() == torch::kFloat),
          kWho, "scores must be ", dtype, is_short ? " or Float" : "", " where x is ",
          dtype, ", got ", scores.scalar_type(), "; convert one of them");
  require(scores.device() == x.device(), kWho, "scores must be on ", x.device(),
          ", where x is, got ", scores.device());
}

void check(const PoolInputs& inputs, const std::vector<Span>& spans, Pooling how) {
  check(inputs, how);
  for (size_t i = 0; i < spans.size(); ++i) {
    const auto [from, to] = spans[i];
    require(0 <= from && from <= to && to <= inputs.x.size(2), kWho, "span ", i,
            " must lie within 0..", inputs.x.size(2), ", got ", from, "..", to);
  }
}

void check(const PoolInputs& inputs, int64_t segment, Pooling how) {
  check(inputs, how);
  require(segment >= 0, kWho, "segments must have 1 token or more, or 0 for all, got ",
          segment);
}

// The length of a segment in tokens, at least 1.
int64_t real_length(int64_t segment, const Tensor& x) {
  const int64_t all = std::max<int64_t>(1, x.size(2));
  return segment == 0 ? all : std::min(segment, all);
}

Pooled pool(const PoolInputs& inputs, const Tensor& where, Pooling how) {
  const Tensor keep = or_none(inputs.keep), scores = or_none(inputs.scores);
  switch (how) {
    case Pooling::max: return {.out = LargestFunction::apply(inputs.x, keep, where)};
    case Pooling::mean:
      return {.out = WeighedFunction::apply(inputs.x, keep, scores, where, true)[0]};
    case Pooling::sum:
      return {.out = WeighedFunction::apply(inputs.x, keep, scores, where, false)[0]};
    case Pooling::softmax: {
      const auto pooled = WeighedFunction::apply(inputs.x, keep, scores, where, true);
      return {.out = pooled[0], .lse = pooled[1]};
    }
  }
  refuse(how);
}

// `kept`: [B, H, G, N] bool or less that can be broadcast to it: which tokens a row
// pools.
Pooled pool_by_weights(const PoolInputs& inputs, const Tensor& kept, Pooling how) {
  const auto dtype = inner_dtype(inputs.x);
  const auto give = [&](const Tensor& weights, const Tensor& counts) {
    // Without weight no value counts, not even one that is not finite.
    const Tensor x = inputs.x.to(dtype).masked_fill(~counts.unsqueeze(-1), 0);
    const auto sizes = inputs.x.sizes();
    return weights.expand({sizes[0], sizes[1], kept.size(-2), sizes[2]})
        .matmul(x)
        .to(inputs.x.scalar_type());
  };
  const Tensor all = torch::ones({1, 1, 1}, kept.options());
  const Tensor counts = inputs.keep.defined() ? inputs.keep : all;
  if (how != Pooling::softmax) {
    const Tensor weights = kept.to(dtype);
    if (how == Pooling::sum) return {.out = give(weights, counts)};
    return {.out =
                give(weights / weights.sum(-1, /*keepdim=*/true).clamp_min(1), counts)};
  }
  const Tensor scores = inputs.scores.to(dtype);
  const Tensor seen = scores.unsqueeze(2).masked_fill(~kept, -kInfinity);
  Tensor base = seen.detach().logsumexp(-1, /*keepdim=*/true);
  base = base.masked_fill(base == -kInfinity, 0);
  const Tensor weights = (seen - base).exp();
  const Tensor total = weights.sum(-1, /*keepdim=*/true);
  const Tensor nothing = total == 0;
  const Tensor divisor = total.masked_fill(nothing, 1);
  return {.out = give(weights / divisor, counts & (scores != -kInfinity)),
          .lse = (base + divisor.log()).masked_fill(nothing, -kInfinity).squeeze(-1)};
}

// [.., 1, N] bool, to be broadcast to [B, H, G, N].
Tensor kept_of(const PoolInputs& inputs) {
  if (inputs.keep.defined()) return inputs.keep.unsqueeze(2);
  return torch::ones({1, 1, 1, 1}, inputs.x.options().dtype(torch::kBool));
}

}  // namespace

std::vector<Span> equal_spans(int64_t length, int64_t size, int64_t stride) {
  require(length >= 0, "equal spans: the length must be 0 or more, got ", length);
  require(size >= 1, "equal spans: the size must be 1 or more, got ", size);
  require(stride >= 1, "equal spans: the stride must be 1 or more, got ", stride);
  std::vector<Span> spans;
  for (int64_t from = 0; from < length; from += stride) {
    spans.push_back({.from = from, .to = std::min(from + size, length)});
    if (spans.back().to == length) break;
  }
  return spans;
}

Pooled pool_spans(const PoolInputs& inputs, const std::vector<Span>& spans,
                  Pooling how) {
  check(inputs, spans, how);
  if (!inputs.x.is_cpu()) return pool_spans_reference(inputs, spans, how);
  return pool(inputs, as_tensor(spans), how);
}

Pooled pool_prefixes(const PoolInputs& inputs, int64_t segment, Pooling how) {
  check(inputs, segment, how);
  if (!inputs.x.is_cpu()) return pool_prefixes_reference(inputs, segment, how);
  return pool(inputs, as_tensor(real_length(segment, inputs.x)), how);
}

Pooled pool_spans_reference(const PoolInputs& inputs, const std::vector<Span>& spans,
                            Pooling how) {
  check(inputs, spans, how);
  const Tensor& x = inputs.x;
  const Tensor kept = kept_of(inputs);
  if (how != Pooling::max) {
    const Tensor ends = as_tensor(spans).to(x.device());
    const Tensor token = torch::arange(x.size(2), ends.options());
    const Tensor within =
        (token >= ends.slice(1, 0, 1)) & (token < ends.slice(1, 1, 2));
    return pool_by_weights(inputs, kept & within, how);
  }
  const Tensor none = x.new_zeros({x.size(0), x.size(1), 1, x.size(3)});
  std::vector<Tensor> rows = {none.slice(2, 0, 0)};
  const Tensor keep = kept.transpose(2, 3).expand({-1, -1, x.size(2), 1});
  for (const auto& [from, to] : spans) {
    const Tensor some = keep.slice(2, from, to);
    rows.push_back(from == to ? none
                              : std::get<0>(x.slice(2, from, to)
                                                .masked_fill(~some, -kInfinity)
                                                .max(2, /*keepdim=*/true))
                                    .masked_fill(~some.any(2, /*keepdim=*/true), 0));
  }
  return {.out = torch::cat(rows, 2)};
}

Pooled pool_prefixes_reference(const PoolInputs& inputs, int64_t segment, Pooling how) {
  check(inputs, segment, how);
  const Tensor& x = inputs.x;
  const Tensor kept = kept_of(inputs);
  const int64_t length = real_length(segment, x);
  const Tensor token = torch::arange(x.size(2), x.options().dtype(torch::kLong));
  if (how != Pooling::max) {
    const Tensor row = token.unsqueeze(1);
    const Tensor within = (token <= row) & (token >= row - row.remainder(length));
    return pool_by_weights(inputs, kept & within, how);
  }
  if (x.size(2) == 0) return {.out = x.clone()};

  // [B, H, segments, length, d]
  const int64_t missing = (length - x.size(2) % length) % length;
  const auto in_segments = [&](const Tensor& y) {
    return torch::constant_pad_nd(y, {0, 0, 0, missing})
        .unflatten(2, {(x.size(2) + missing) / length, length});
  };
  const Tensor keep = in_segments(kept.transpose(2, 3).expand({-1, -1, x.size(2), 1}));
  const Tensor values = in_segments(x).masked_fill(~keep, -kInfinity);
  const Tensor largest = std::get<0>(values.detach().cummax(3));
  // The first of equal largest; cummax() would name the last.
  const Tensor before = largest.slice(3, 0, length - 1), after = largest.slice(3, 1);
  const Tensor is_new = torch::constant_pad_nd(
      (after > before) | (after.isnan() & ~before.isnan()), {0, 0, 1, 0});
  const Tensor place = torch::arange(length, token.options()).unsqueeze(-1);
  const Tensor places = std::get<0>(is_new.to(torch::kLong).mul(place).cummax(3));
  return {.out = values.gather(3, places)
                     .masked_fill(keep.cumsum(3) == 0, 0)
                     .flatten(2, 3)
                     .slice(2, 0, x.size(2))};
}

}  // namespace longspan
