#include "longspan/kernels/pool.h"

#include <algorithm>
#include <iterator>

#include "longspan/base/error.h"
#include "longspan/base/shapes.h"
#include "longspan/base/words.h"
#include "longspan/ops/operators.h"
#include "longspan/ops/spans.h"

namespace longspan::ops {
namespace {

using torch::Tensor;

constexpr char kResults[] = "(Tensor out, Tensor lse)";

Pooling pooling_of(const std::string& word) {
  const std::vector<std::string> words = {"max", "mean", "sum", "softmax"};
  const auto found = std::ranges::find(words, word);
  require(found != words.end(), "pooling: it cannot be '", word, "'",
          hint(word, words));
  return static_cast<Pooling>(std::distance(words.begin(), found));
}

// What both operators are given after `x` and where to pool.
struct Given {
  PoolInputs inputs;
  Pooling how;

  Given(const Tensor& x, Arguments& in) : how(pooling_of(in.next().toStringRef())) {
    inputs.x = x;
    inputs.keep = in.tensor();
    inputs.scores = in.tensor();
  }

  std::vector<Tensor> results(const Pooled& pooled) const {
    if (pooled.lse.defined()) return {pooled.out, pooled.lse};
    const auto& x = inputs.x;
    return {pooled.out, nothing(x).to(precise(x.scalar_type()))};
  }

  std::vector<Shape> shapes(const c10::SymInt& rows) const {
    const auto dtype = inputs.x.scalar_type();
    const auto sizes = inputs.x.sym_sizes();
    Shape lse = {{0}, precise(dtype)};
    if (how == Pooling::softmax) lse.sizes = {sizes[0], sizes[1], rows};
    return {{{sizes[0], sizes[1], rows, sizes[3]}, dtype}, lse};
  }
};

Tensor read_x(Arguments& in) {
  const Tensor x = in.tensor();
  require(x.dim() == 4, "pooling: x must be [B, H, N, d], got ", x.dim(), " axes");
  return x;
}

Tensor read_spans(Arguments& in) {
  const Tensor spans = in.tensor();
  require(is_integer(spans) && spans.dim() == 2,
          "pooling: spans must be [G, 2] of int32 or int64, got ", spans.dim(),
          " axes of ", spans.scalar_type());
  return spans;
}

std::vector<Tensor> run_spans(Arguments in) {
  const Tensor x = read_x(in), spans = read_spans(in);
  require(spans.size(1) == 2, "pooling: spans must be [G, 2], got ", shape(spans));
  const Given given(x, in);
  return given.results(pool_spans(given.inputs, spans_of(spans), given.how));
}

std::vector<Shape> spans_shapes(Arguments in) {
  const Tensor x = read_x(in), spans = read_spans(in);
  return Given(x, in).shapes(spans.sym_sizes()[0]);
}

std::vector<Tensor> run_prefixes(Arguments in) {
  const Tensor x = read_x(in);
  const int64_t segment = in.next().toInt();
  const Given given(x, in);
  return given.results(pool_prefixes(given.inputs, segment, given.how));
}

std::vector<Shape> prefixes_shapes(Arguments in) {
  const Tensor x = read_x(in);
  in.next();
  return Given(x, in).shapes(x.sym_sizes()[2]);
}

}  // namespace

Operator pool_spans_operator() {
  return {.name = "pool_spans",
          .arguments =
              "Tensor x, Tensor spans, str how, *, Tensor? keep=None, "
              "Tensor? scores=None",
          .results = kResults,
          .run = run_spans,
          .shapes = spans_shapes};
}

Operator pool_prefixes_operator() {
  return {.name = "pool_prefixes",
          .arguments =
              "Tensor x, int segment, str how, *, Tensor? keep=None, "
              "Tensor? scores=None",
          .results = kResults,
          .run = run_prefixes,
          .shapes = prefixes_shapes};
}

}  // namespace longspan::ops
