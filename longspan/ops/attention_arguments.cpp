#include "longspan/ops/attention_arguments.h"

namespace longspan::ops {

using torch::Tensor;

AttentionArguments::AttentionArguments(const Tensor& q, const Tensor& k,
                                       const Tensor& v, Arguments& in)
    : call{.queries = {.q = q}, .sources = {{.k = k, .v = v}}, .options = {}} {
  auto& [queries, sources, options] = call;
  Source& source = sources[0];
  visible.causal = in.next().toBool();
  if (const auto window = in.optional<std::vector<int64_t>>()) visible.window = *window;
  visible.spans = in.tensor();
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
}

void AttentionArguments::read_last(Arguments& in) {
  visible.span_queries = in.next().toInt();
}

void AttentionArguments::check() {
  longspan::check(call);
  visible.check(call.query_places(), key_places());
  call.queries.first = call.sources[0].k.size(2) - call.queries.q.size(2);
}

AttentionCall AttentionArguments::checked() {
  check();
  call.sources[0].layout = visible.layout(call.query_places(), key_places());
  return call;
}

bool AttentionArguments::is_symbolic() {
  const Queries& queries = call.queries;
  const Source& source = call.sources[0];
  std::vector<Tensor> tensors = {queries.positions, queries.buckets, queries.rows,
                                 source.positions,  source.buckets,  source.rows,
                                 source.from,       source.to,       visible.spans};
  for (const Tensor* tensor : call.learned()) tensors.push_back(*tensor);
  return ops::is_symbolic(tensors);
}

int64_t AttentionArguments::key_places() const {
  const Source& source = call.sources[0];
  return source.rows.defined() ? source.rows.size(-1) : source.k.size(2);
}

}  // namespace longspan::ops
