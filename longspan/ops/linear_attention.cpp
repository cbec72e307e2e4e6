#include "longspan/kernels/linear_attention.h"

#include <algorithm>
#include <iterator>

#include "longspan/base/error.h"
#include "longspan/base/words.h"
#include "longspan/ops/operators.h"

namespace longspan::ops {
namespace {

using torch::Tensor;

constexpr char kArguments[] =
    "Tensor q, Tensor k, Tensor v, *, bool causal=False, Tensor? log_decay=None, "
    "Tensor? weights=None, Tensor? state=None, Tensor? state_max=None, "
    "bool log_features=False, str normaliser=\"if_positive\", float epsilon=1e-6";

Normaliser normaliser_of(const std::string& word) {
  const std::vector<std::string> words = {"none", "plus", "at_least", "if_positive"};
  const auto found = std::ranges::find(words, word);
  require(found != words.end(), "linear attention: there is no normaliser '", word, "'",
          hint(word, words));
  return static_cast<Normaliser>(std::distance(words.begin(), found));
}

struct Given {
  LinearInputs inputs;
  LinearAttention options;
};

Given read(Arguments in) {
  Given given;
  auto& [inputs, options] = given;
  inputs.q = in.tensor();
  inputs.k = in.tensor();
  inputs.v = in.tensor();
  options.causal = in.next().toBool();
  inputs.log_decay = in.tensor();
  inputs.weights = in.tensor();
  inputs.state.sums = in.tensor();
  inputs.state.max = in.tensor();
  options.log_features = in.next().toBool();
  options.normaliser = normaliser_of(in.next().toStringRef());
  options.epsilon = in.next().toDouble();
  return given;
}

std::vector<Tensor> run(Arguments arguments) {
  const auto [inputs, options] = read(arguments);
  const LinearAttended result = linear_attention(inputs, options);
  const auto& [sums, max] = result.state;
  return {result.out, result.lse, sums, max.defined() ? max : nothing(sums)};
}

std::vector<Shape> shapes(Arguments arguments) {
  const auto [inputs, options] = read(arguments);
  const Tensor &q = inputs.q, &k = inputs.k, &v = inputs.v;
  require(q.dim() == 4 && k.dim() == 4 && v.dim() == 4,
          "linear attention: q, k and v must be [B, H, N, m], [B, Hk, M, m] and ",
          "[B, Hk, M, dv], got ", q.dim(), ", ", k.dim(), " and ", v.dim(), " axes");
  const auto inner = sums_dtype(inputs);
  const auto sizes = q.sym_sizes();
  const auto width = v.sym_sizes()[3];
  Shape max = {{0}, inner};
  if (options.log_features) max.sizes = {sizes[0], sizes[1]};
  return {{{sizes[0], sizes[1], sizes[2], width}, v.scalar_type()},
          {{sizes[0], sizes[1], sizes[2]}, inner},
          {{sizes[0], sizes[1], sizes[3], width + 1}, inner},
          max};
}

}  // namespace

Operator linear_attention_operator() {
  return {.name = "linear_attention",
          .arguments = kArguments,
          .results = "(Tensor out, Tensor lse, Tensor state, Tensor state_max)",
          .run = run,
          .shapes = shapes,
          .constant_results = 1};
}

}  // namespace longspan::ops
