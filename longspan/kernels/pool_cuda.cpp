#include "longspan/kernels/pool_cuda.h"

#include <algorithm>

#include <c10/core/impl/VirtualGuardImpl.h>

#include "longspan/kernels/cuda/launch.h"
#include "longspan/kernels/cuda/pool.h"
#include "longspan/kernels/cuda/tensors.h"
#include "longspan/kernels/heads.h"
#include "longspan/kernels/kept_lists.h"
#include "longspan/kernels/pool_call.h"
#include "longspan/kernels/rows.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr char kWho[] = "pooling";

static_assert(kSpanBlock == cuda::kSpanBlock);

// The inputs as the kernels take them, and what holds them.
struct Tokens {
  cuda::PoolTokens given;
  Tensor x = {}, scores = {};
};

// `like`: [B, H, .., d] in the type of x.
Tokens tokens_of(const PoolInputs& inputs, int64_t count, const Tensor& like) {
  Tokens tokens{.given = {.type = cuda::cuda_type(like),
                          .examples = like.size(0),
                          .heads = like.size(1),
                          .tokens = count,
                          .width = like.size(3),
                          .keep = cuda::row_numbers<const bool>(inputs.keep)}};
  if (inputs.x.defined()) {
    tokens.x = unit_stride(inputs.x, inputs.x.scalar_type());
    tokens.given.x = cuda::rows_of<const void>(tokens.x, like.size(1));
  }
  if (inputs.scores.defined()) {
    tokens.scores = inputs.scores.to(inner_dtype(like));
    tokens.given.scores = cuda::row_numbers<const void>(tokens.scores);
  }
  return tokens;
}

// Spans as the kernels take them, and what holds them.
struct DeviceSpans {
  cuda::Spans given;
  Tensor memory = {};
};

// Whether they begin at multiples of given.stride and all have given.size tokens, as
// far as there are.
bool are_equal(const cuda::Spans& given, const int64_t* ends, int64_t tokens) {
  if (given.stride < 1) return false;
  for (int64_t i = 0; i < given.count; ++i) {
    const int64_t from = i * given.stride;
    if (ends[2 * i] != from || ends[2 * i + 1] != std::min(from + given.size, tokens))
      return false;
  }
  return true;
}

// Those of a layer are the same in every pass.
class SpansKey {
 public:
  SpansKey(const torch::Device& device, const Tensor& spans, int64_t tokens,
           bool for_gradients)
      : stream_(c10::impl::VirtualGuardImpl(device.type()).getStream(device)),
        spans_(spans),
        tokens_(tokens),
        for_gradients_(for_gradients) {}

  bool operator==(const SpansKey& other) const {
    const auto* const ends = spans_.data_ptr<int64_t>();
    return stream_ == other.stream_ && tokens_ == other.tokens_ &&
           for_gradients_ == other.for_gradients_ &&
           spans_.size(0) == other.spans_.size(0) &&
           std::equal(ends, ends + spans_.numel(), other.spans_.data_ptr<int64_t>());
  }

 private:
  c10::Stream stream_;  // memory belongs to the stream it was made on
  Tensor spans_;
  int64_t tokens_;
  bool for_gradients_;
};

struct SentSpans {
  Tensor memory;
};

DeviceSpans spans_on(const torch::Device& device, const Tensor& spans, int64_t tokens,
                     bool for_gradients) {
  const int64_t count = spans.size(0);
  const int64_t* const ends = spans.data_ptr<int64_t>();
  DeviceSpans result{.given = {.count = count}};
  if (count == 0) return result;
  int64_t length = 0;
  for (int64_t i = 0; i < count; ++i) length += ends[2 * i + 1] - ends[2 * i];
  result.given.length = length / count;
  result.given.size = ends[1] - ends[0];
  result.given.stride = count > 1 ? ends[2] : 1;
  if (are_equal(result.given, ends, tokens)) return result;

  // The spans, then where those of each block begin, then which they are.
  const int64_t starts = 2 * count, which = starts + parts_of(tokens, kSpanBlock) + 1;
  static auto* const kept = new KeptLists<SentSpans, SpansKey>;
  const auto sent = kept->get({device, spans, tokens, for_gradients}, [&] {
    std::vector<int64_t> all(ends, ends + 2 * count);
    if (for_gradients) {
      const SpansOfBlocks blocks(spans, tokens);
      all.insert(all.end(), blocks.begins().begin(), blocks.begins().end());
      TORCH_INTERNAL_ASSERT(static_cast<int64_t>(all.size()) == which);
      all.insert(all.end(), blocks.spans().begin(), blocks.spans().end());
    }
    const Tensor ints = torch::empty({static_cast<int64_t>(all.size())}, torch::kInt);
    std::ranges::transform(all, ints.data_ptr<int32_t>(),
                           [](int64_t x) { return static_cast<int32_t>(x); });
    return SentSpans{ints.to(device, /*non_blocking=*/true)};
  });
  result.memory = sent->memory;
  const auto* const data = result.memory.data_ptr<int32_t>();
  result.given.ends = data;
  if (for_gradients) {
    result.given.starts = data + starts;
    result.given.which = data + which;
  }
  return result;
}

Tensor prefix_memory(const Tokens& tokens, int64_t segment, const Tensor& like) {
  return torch::empty({cuda::prefix_scratch(tokens.given, segment)},
                      like.options().dtype(inner_dtype(like)));
}

// Not filled: [B, H, rows] in the type that is computed in, and [B, H, rows, d].
Tensor new_rows(const Tensor& like, int64_t rows) {
  return torch::empty({like.size(0), like.size(1), rows},
                      like.options().dtype(inner_dtype(like)));
}
Tensor new_matrix(const Tensor& like, int64_t rows) {
  return torch::empty({like.size(0), like.size(1), rows, like.size(3)}, like.options());
}

// See cuda::PoolOffsets.
Tensor offsets_of(const Tensor& dout, const Tensor& out, const Tensor& dlse) {
  const int64_t heads = out.size(1);
  const Tensor offsets = new_rows(out, out.size(2));
  const Tensor lse_slope = dlse.to(offsets.scalar_type());
  const cuda::PoolOffsets task{.type = cuda::cuda_type(out),
                               .examples = out.size(0),
                               .heads = heads,
                               .rows = out.size(2),
                               .width = out.size(3),
                               .out = cuda::rows_of<const void>(out, heads),
                               .out_slope = cuda::rows_of<const void>(dout, heads),
                               .lse_slope = cuda::row_numbers<const void>(lse_slope),
                               .offset = offsets.data_ptr()};
  cuda::launch(out.device(), kWho,
               [&](cuda::Stream stream) { return cuda::pool_offsets(task, stream); });
  return offsets;
}

}  // namespace

Weighed pool_by_weights_cuda(const PoolInputs& inputs, const PoolWhere& where,
                             bool divided) {
  const Tensor& x = inputs.x;
  const Tokens tokens = tokens_of(inputs, x.size(2), x);
  const int64_t rows = where.is_spans() ? where.tensor.size(0) : x.size(2);
  Weighed result{
      .out = new_matrix(x, rows), .factor = new_rows(x, rows), .base = {}, .lse = {}};
  if (inputs.scores.defined()) {
    result.base = new_rows(x, rows);
    result.lse = new_rows(x, rows);
  }
  const cuda::PooledRows pooled{.out = result.out.data_ptr(),
                                .base = cuda::data_of(result.base),
                                .factor = result.factor.data_ptr(),
                                .lse = cuda::data_of(result.lse)};
  if (where.is_spans()) {
    const auto spans = spans_on(x.device(), where.tensor, x.size(2), false);
    cuda::launch(x.device(), kWho, [&](cuda::Stream stream) {
      return cuda::pool_spans({.tokens = tokens.given,
                               .spans = spans.given,
                               .divided = divided,
                               .pooled = pooled},
                              stream);
    });
    return result;
  }
  const int64_t segment = where.segment();
  const Tensor memory = prefix_memory(tokens, segment, x);
  cuda::launch(x.device(), kWho, [&](cuda::Stream stream) {
    return cuda::pool_prefixes({.tokens = tokens.given,
                                .segment = segment,
                                .divided = divided,
                                .pooled = pooled,
                                .scratch = memory.data_ptr()},
                               stream);
  });
  return result;
}

PoolGradients pool_by_weights_gradient_cuda(const PoolInputs& inputs, int64_t tokens,
                                            const PoolWhere& where,
                                            const Weighed& result,
                                            const WeighedSlopes& slopes,
                                            PoolWanted wanted) {
  const Tensor dout = unit_stride(slopes.out, slopes.out.scalar_type());
  const Tokens given = tokens_of(inputs, tokens, dout);
  const auto out_slope = cuda::rows_of<const void>(dout, dout.size(1));
  PoolGradients gradients;
  Tensor offset;
  if (wanted.x) gradients.x = new_matrix(dout, tokens);
  if (wanted.scores) offset = offsets_of(dout, result.out, slopes.lse);
  if (where.is_spans()) {
    if (wanted.scores) gradients.scores = new_rows(dout, tokens);
    const auto spans = spans_on(dout.device(), where.tensor, tokens, true);
    cuda::launch(dout.device(), kWho, [&](cuda::Stream stream) {
      return cuda::pool_spans_gradient(
          {.tokens = given.given,
           .spans = spans.given,
           .out_slope = out_slope,
           .base = cuda::data_of(result.base),
           .factor = result.factor.data_ptr(),
           .offset = cuda::data_of(offset),
           .x_slope = cuda::data_of(gradients.x),
           .scores_slope = cuda::data_of(gradients.scores)},
          stream);
    });
    return gradients;
  }
  Tensor pieces;
  if (wanted.scores)
    pieces = torch::empty({cuda::prefix_pieces(given.given.type, dout.size(3)),
                           dout.size(0), dout.size(1), tokens},
                          offset.options());
  const int64_t segment = where.segment();
  const Tensor memory = prefix_memory(given, segment, dout);
  cuda::launch(dout.device(), kWho, [&](cuda::Stream stream) {
    return cuda::pool_prefixes_gradient({.tokens = given.given,
                                         .segment = segment,
                                         .out_slope = out_slope,
                                         .base = cuda::data_of(result.base),
                                         .factor = result.factor.data_ptr(),
                                         .offset = cuda::data_of(offset),
                                         .x_slope = cuda::data_of(gradients.x),
                                         .scores_slope = cuda::data_of(pieces),
                                         .scratch = memory.data_ptr()},
                                        stream);
  });
  if (wanted.scores)
    gradients.scores = pieces.size(0) == 1 ? pieces.squeeze(0) : pieces.sum(0);
  return gradients;
}

Largest pool_largest_cuda(const PoolInputs& inputs, const PoolWhere& where,
                          bool with_place) {
  const Tensor& x = inputs.x;
  const Tokens tokens = tokens_of(inputs, x.size(2), x);
  if (!where.is_spans()) {
    const Tensor out = new_matrix(x, x.size(2));
    const int64_t segment = where.segment();
    const Tensor memory = prefix_memory(tokens, segment, x);
    cuda::launch(x.device(), kWho, [&](cuda::Stream stream) {
      return cuda::largest_of_prefixes({.tokens = tokens.given,
                                        .segment = segment,
                                        .out = out.data_ptr(),
                                        .scratch = memory.data_ptr()},
                                       stream);
    });
    return {.out = out};
  }
  Largest result{.out = new_matrix(x, where.tensor.size(0))};
  if (with_place)
    result.place = torch::empty(result.out.sizes(), x.options().dtype(torch::kInt));
  const auto spans = spans_on(x.device(), where.tensor, x.size(2), false);
  cuda::launch(x.device(), kWho, [&](cuda::Stream stream) {
    return cuda::largest_of_spans(
        {.tokens = tokens.given,
         .spans = spans.given,
         .out = result.out.data_ptr(),
         .place = static_cast<int32_t*>(cuda::data_of(result.place))},
        stream);
  });
  return result;
}

Tensor pool_largest_gradient_cuda(const Tensor& dout, const Tensor& known,
                                  const Tensor& keep, int64_t tokens,
                                  const PoolWhere& where) {
  const Tensor slopes = unit_stride(dout, dout.scalar_type());
  const Tokens given = tokens_of({.keep = keep}, tokens, slopes);
  const auto out_slope = cuda::rows_of<const void>(slopes, slopes.size(1));
  const Tensor dx = new_matrix(slopes, tokens);
  if (where.is_spans()) {
    const auto spans = spans_on(dout.device(), where.tensor, tokens, true);
    cuda::launch(dout.device(), kWho, [&](cuda::Stream stream) {
      return cuda::largest_of_spans_gradient({.tokens = given.given,
                                              .spans = spans.given,
                                              .out_slope = out_slope,
                                              .place = known.data_ptr<int32_t>(),
                                              .x_slope = dx.data_ptr()},
                                             stream);
    });
    return dx;
  }
  const int64_t segment = where.segment();
  const Tensor memory = prefix_memory(given, segment, slopes);
  cuda::launch(dout.device(), kWho, [&](cuda::Stream stream) {
    return cuda::largest_of_prefixes_gradient({.tokens = given.given,
                                               .segment = segment,
                                               .out = known.data_ptr(),
                                               .out_slope = out_slope,
                                               .x_slope = dx.data_ptr(),
                                               .scratch = memory.data_ptr()},
                                              stream);
  });
  return dx;
}

}  // namespace longspan
