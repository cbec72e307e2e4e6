#include "longspan/kernels/block_attention.h"

#include <torch/version.h>

#include "longspan/base/error.h"
#include "longspan/kernels/attention_call.h"
#include "longspan/kernels/fused_attention.h"
#include "longspan/ops/operators.h"
#include "longspan/ops/visible_keys.h"

namespace longspan::ops {
namespace {

using torch::Tensor;

constexpr char kArguments[] =
    "Tensor q, Tensor k, Tensor v, *, bool causal=False, int[]? window=None, "
    "Tensor? spans=None, Tensor? key_from=None, Tensor? key_to=None, "
    "Tensor? query_buckets=None, Tensor? key_buckets=None, "
    "Tensor? query_positions=None, Tensor? key_positions=None, "
    "Tensor? query_rows=None, Tensor? key_rows=None, "
    "Tensor? column_bias=None, Tensor? slopes=None, Tensor? table=None, "
    "int table_first=0, Tensor? vectors=None, Tensor? offset=None, "
    "Tensor? dense_bias=None, float? scale=None, float dropout=0., ";

// A symbolic seed lets a compiled step of training take a new one every time.
constexpr const char* kSeed = TORCH_VERSION_MAJOR >= 2 ? "SymInt seed=0" : "int seed=0";

struct Given {
  AttentionCall call;  // without its layout
  VisibleKeys visible;

  // Throws unless everything fits.
  void check() {
    longspan::check(call);
    visible.check(query_places(), key_places());
    call.queries.first = call.sources[0].k.size(2) - call.queries.q.size(2);
  }

  AttentionCall checked() {
    check();
    call.sources[0].layout = visible.layout(query_places(), key_places());
    return call;
  }

  int64_t query_places() const { return call.query_places(); }
  int64_t key_places() const {
    const Source& source = call.sources[0];
    return source.rows.defined() ? source.rows.size(-1) : source.k.size(2);
  }

  bool is_symbolic() {
    const Queries& queries = call.queries;
    const Source& source = call.sources[0];
    std::vector<Tensor> tensors = {queries.positions, queries.buckets, queries.rows,
                                   source.positions,  source.buckets,  source.rows,
                                   source.from,       source.to,       visible.spans};
    for (const Tensor* tensor : call.learned()) tensors.push_back(*tensor);
    return ops::is_symbolic(tensors);
  }
};

Given read(Arguments in) {
  Given given{.call = {.queries = {}, .sources = {{}}, .options = {}}, .visible = {}};
  auto& [queries, sources, options] = given.call;
  Source& source = sources[0];
  queries.q = in.tensor();
  source.k = in.tensor();
  source.v = in.tensor();
  given.visible.causal = in.next().toBool();
  if (const auto window = in.optional<std::vector<int64_t>>())
    given.visible.window = *window;
  given.visible.spans = in.tensor();
  source.from = in.tensor();
  source.to = in.tensor();
  queries.buckets = in.tensor();
  source.buckets = in.tensor();
  queries.positions = in.tensor();
  source.positions = in.tensor();
  queries.rows = in.tensor();
  source.rows = in.tensor();
  source.bias.column = in.tensor();
  source.bias.slopes = in.tensor();
  source.bias.table = in.tensor();
  source.bias.first = in.next().toInt();
  source.bias.vectors = in.tensor();
  source.bias.offset = in.tensor();
  source.bias.dense = in.tensor();
  if (const auto scale = in.optional<double>()) options.scale = *scale;
  options.dropout.probability = in.next().toDouble();
  const c10::IValue& seed = in.next();
  if (seed.isInt()) options.dropout.key.bits = static_cast<uint64_t>(seed.toInt());
  return given;
}

std::vector<Tensor> run(Arguments arguments) {
  const auto [queries, sources, options] = read(arguments).checked();
  const Attended result = block_attention(queries, sources, options);
  return {result.out, result.lse};
}

std::vector<Shape> shapes(Arguments arguments) {
  Given given = read(arguments);
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
  return fused_attention_gradient(read(arguments).checked(), {results[0], results[1]},
                                  {slopes[0], slopes[1]}, wanted);
}

}  // namespace

Operator block_attention_operator() {
  const std::string arguments = std::string(kArguments) + kSeed;
  return {.name = "block_attention",
          .arguments = arguments,
          .results = "(Tensor out, Tensor lse)",
          .run = run,
          .shapes = shapes,
          .gradient = gradient};
}

}  // namespace longspan::ops
