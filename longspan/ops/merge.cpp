#include "longspan/base/error.h"
#include "longspan/kernels/lse_merge.h"
#include "longspan/ops/operators.h"

namespace longspan::ops {
namespace {

using torch::Tensor;

std::vector<Attended> read(Arguments in) {
  const std::vector<Tensor> outs = in.next().toTensorVector();
  const std::vector<Tensor> lses = in.next().toTensorVector();
  require(outs.size() == lses.size(), "merge: there must be as many lses as outs, got ",
          lses.size(), " and ", outs.size());
  std::vector<Attended> parts;
  for (size_t i = 0; i < outs.size(); ++i) parts.push_back({outs[i], lses[i]});
  return parts;
}

std::vector<Tensor> run(Arguments arguments) {
  const Attended merged = merge(read(arguments));
  return {merged.out, merged.lse};
}

std::vector<Shape> shapes(Arguments arguments) {
  const std::vector<Attended> parts = read(arguments);
  require(!parts.empty() && parts.front().out.dim() == 4,
          "merge: there must be at least one part, of [B, H, N, dv]");
  const Tensor& out = parts.front().out;
  const auto sizes = out.sym_sizes();
  return {{sizes.vec(), out.scalar_type()},
          {sizes.slice(0, 3).vec(), precise(out.scalar_type())}};
}

}  // namespace

Operator merge_operator() {
  return {.name = "merge",
          .arguments = "Tensor[] outs, Tensor[] lses",
          .results = "(Tensor out, Tensor lse)",
          .run = run,
          .shapes = shapes};
}

}  // namespace longspan::ops
