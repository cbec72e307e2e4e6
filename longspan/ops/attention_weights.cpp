#include "longspan/kernels/attention_weights.h"

#include "longspan/base/error.h"
#include "longspan/ops/attention_arguments.h"
#include "longspan/ops/operators.h"

namespace longspan::ops {
namespace {

using torch::Tensor;

struct Given {
  AttentionArguments attention;
  Tensor lse;
  std::vector<int64_t> rows;  // of row_weights
};

Given read(Arguments& in, bool has_rows) {
  const Tensor q = in.tensor(), k = in.tensor(), lse = in.tensor();
  const auto rows = has_rows ? in.next().toIntVector() : std::vector<int64_t>();
  Given given{{q, k, /*v=*/k, in}, lse, rows};  // weights do not depend on v
  given.attention.read_last(in);
  return given;
}

// [B, H, (rows), M]
std::vector<Shape> shape_of(Given given, bool has_rows) {
  const Tensor &q = given.attention.call.queries.q,
               &k = given.attention.call.sources[0].k;
  require(q.dim() == 4 && k.dim() == 4,
          "attention weights: q and k must be [B, H, N, d] and [B|1, Hk, M, d], got ",
          q.dim(), " and ", k.dim(), " axes");
  if (!given.attention.is_symbolic()) given.attention.check();
  std::vector<c10::SymInt> sizes = {q.sym_sizes()[0], q.sym_sizes()[1]};
  if (has_rows) sizes.emplace_back(static_cast<int64_t>(given.rows.size()));
  sizes.push_back(k.sym_sizes()[2]);
  return {{sizes, given.lse.scalar_type()}};
}

std::vector<Tensor> run_rows(Arguments in) {
  Given given = read(in, /*has_rows=*/true);
  const auto [queries, sources, options] = given.attention.checked();
  return row_weights(queries, sources, given.lse, given.rows, options);
}

std::vector<Tensor> run_columns(Arguments in) {
  Given given = read(in, /*has_rows=*/false);
  const auto [queries, sources, options] = given.attention.checked();
  return column_mass(queries, sources, given.lse, options);
}

}  // namespace

Operator row_weights_operator() {
  return {.name = "row_weights",
          .arguments = std::string("Tensor q, Tensor k, Tensor lse, int[] rows, *, ") +
                       kAttentionSchema + ", " + kLastAttentionSchema,
          .results = "Tensor",
          .run = run_rows,
          .shapes = [](Arguments in) { return shape_of(read(in, true), true); },
          .is_constant = true};
}

Operator column_mass_operator() {
  return {.name = "column_mass",
          .arguments = std::string("Tensor q, Tensor k, Tensor lse, *, ") +
                       kAttentionSchema + ", " + kLastAttentionSchema,
          .results = "Tensor",
          .run = run_columns,
          .shapes = [](Arguments in) { return shape_of(read(in, false), false); },
          .is_constant = true};
}

}  // namespace longspan::ops
