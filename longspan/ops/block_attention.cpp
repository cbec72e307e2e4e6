#include "longspan/kernels/block_attention.h"

#include <torch/version.h>

#include "longspan/base/error.h"
#include "longspan/kernels/fused_attention.h"
#include "longspan/kernels/result_rows.h"
#include "longspan/ops/attention_arguments.h"
#include "longspan/ops/operators.h"

namespace longspan::ops {
namespace {

using torch::Tensor;

// A symbolic seed lets a compiled step of training take a new one every time.
constexpr const char* kSeed = TORCH_VERSION_MAJOR >= 2 ? "SymInt seed=0" : "int seed=0";

AttentionArguments read(Arguments in) {
  const Tensor q = in.tensor(), k = in.tensor(), v = in.tensor();
  AttentionArguments given(q, k, v, in);
  Dropout& dropout = given.call.options.dropout;
  dropout.probability = in.next().toDouble();
  const c10::IValue& seed = in.next();
  if (seed.isInt()) dropout.key.bits = static_cast<uint64_t>(seed.toInt());
  given.read_last(in);
  return given;
}

std::vector<Tensor> run(Arguments arguments) {
  const auto [queries, sources, options] = read(arguments).checked();
  const HeadByHead dense_results;  // or they would be copied
  const Attended result = block_attention(queries, sources, options);
  return {result.out, result.lse};
}

std::vector<Shape> shapes(Arguments arguments) {
  AttentionArguments given = read(arguments);
  const Tensor &q = given.call.queries.q, &v = given.call.sources[0].v;
  require(q.dim() == 4 && v.dim() == 4,
          "block attention: q and v must be [B, H, N, d] and [B|1, Hk, M, dv], got ",
          q.dim(), " and ", v.dim(), " axes");
  if (!given.is_symbolic()) given.check();
  const auto sizes = q.sym_sizes();
  return {{{sizes[0], sizes[1], sizes[2], v.sym_sizes()[3]}, q.scalar_type()},
          {{sizes[0], sizes[1], sizes[2]}, precise(q.scalar_type())}};
}

std::vector<Tensor> gradient(Arguments arguments, const Slopes& given) {
  const auto& [results, slopes, wanted] = given;
  require(results.size() == 2 && slopes.size() == 2,
          "block attention: there must be out and lse and their gradients, got ",
          results.size(), " results and ", slopes.size(), " gradients");
  const HeadByHead dense_results;
  return fused_attention_gradient(read(arguments).checked(), {results[0], results[1]},
                                  {slopes[0], slopes[1]}, wanted);
}

}  // namespace

Operator block_attention_operator() {
  const std::string arguments = std::string("Tensor q, Tensor k, Tensor v, *, ") +
                                kAttentionSchema + ", float dropout=0., " + kSeed +
                                ", " + kLastAttentionSchema;
  return {.name = "block_attention",
          .arguments = arguments,
          .results = "(Tensor out, Tensor lse)",
          .run = run,
          .shapes = shapes,
          .gradient = gradient,
          .has_gradient = has_fused_attention};
}

}  // namespace longspan::ops
