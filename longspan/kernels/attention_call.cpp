#include "longspan/kernels/attention_call.h"

#include <cmath>

#include "longspan/base/error.h"
#include "longspan/base/shapes.h"

namespace longspan {
namespace {

using torch::Tensor;

bool one_or(int64_t size, int64_t expected) { return size == 1 || size == expected; }

// Integers over rows: [count] or [B|1, H|1, count].
void check_rows(const Tensor& tensor, const std::string& who, int64_t count,
                const AttentionSizes& sizes) {
  if (!tensor.defined()) return;
  require(is_integer(tensor), who, " must be int32 or int64, got ",
          tensor.scalar_type());
  const bool line = tensor.dim() == 1;
  const bool full = tensor.dim() == 3 && one_or(tensor.size(0), sizes.examples) &&
                    one_or(tensor.size(1), sizes.heads);
  require((line || full) && (count < 0 || tensor.size(-1) == count), who,
          " must be [n] or [B|1, H|1, n]",
          count < 0 ? " with " : " with n = " + std::to_string(count) + ", ",
          "B = ", sizes.examples, " and H = ", sizes.heads, ", got ", shape(tensor));
}

int64_t places(const Tensor& rows, int64_t count) {
  return rows.defined() ? rows.size(-1) : count;
}

void check_bias(const Bias& bias, const std::string& who, int64_t keys,
                const AttentionSizes& sizes, torch::Device device) {
  const auto [examples, heads, queries, width, value_width] = sizes;
  for (const Tensor* tensor : {&bias.column, &bias.slopes, &bias.table, &bias.vectors,
                               &bias.offset, &bias.labels, &bias.dense}) {
    if (!tensor->defined()) continue;
    require(tensor->device() == device, who, "tensors must be where q is, on ", device,
            ", got ", tensor->device());
    require(tensor == &bias.labels || tensor->is_floating_point(), who,
            "tensors must be floating, got ", tensor->scalar_type());
  }
  const auto per_pair = [&](const Tensor& tensor, const char* name) {
    require(
        !tensor.defined() || (tensor.dim() == 4 && one_or(tensor.size(0), examples) &&
                              one_or(tensor.size(1), heads) &&
                              tensor.size(2) == queries && tensor.size(3) == keys),
        who, name, " must be [B|1, H|1, N, M] with N = ", queries, " and M = ", keys,
        ", got ", shape(tensor));
  };
  const auto by_entry = [&](const Tensor& tensor, const char* name, int64_t axes) {
    require(!tensor.defined() || (tensor.dim() == axes + (bias.width > 0 ? 1 : 0) &&
                                  one_or(tensor.size(0), heads) && tensor.size(1) > 0 &&
                                  (bias.width == 0 || tensor.size(2) > 0)),
            who, name, " must be [H|1, R", bias.width > 0 ? ", C" : "",
            axes == 3 ? ", d]" : "]", " with H = ", heads, ", got ", shape(tensor));
  };
  require(!bias.column.defined() ||
              (bias.column.dim() == 3 && one_or(bias.column.size(0), examples) &&
               one_or(bias.column.size(1), heads) && bias.column.size(2) == keys),
          who, "column must be [B|1, H|1, M] with M = ", keys, ", got ",
          shape(bias.column));
  require(!bias.slopes.defined() ||
              (bias.slopes.dim() == 1 && one_or(bias.slopes.size(0), heads)),
          who, "slopes must be [H|1] with H = ", heads, ", got ", shape(bias.slopes));
  require(bias.width >= 0, who, "width must be 0 or more, got ", bias.width);
  require(!bias.labels.defined() || bias.width == 0, who,
          "labels and a grid exclude each other, got width ", bias.width);
  const size_t entry_axes = bias.width > 0 ? 2 : 1;
  by_entry(bias.table, "table", 2);
  by_entry(bias.vectors, "vectors", 3);
  require(!bias.vectors.defined() || bias.vectors.size(-1) == width, who,
          "vectors must be as wide as a query, ", width, ", got ", shape(bias.vectors));
  require(!bias.table.defined() || !bias.vectors.defined() ||
              bias.table.sizes().slice(1) == bias.vectors.sizes().slice(1, entry_axes),
          who, "table and vectors must have equally many entries, got ",
          shape(bias.table), " and ", shape(bias.vectors));
  require(!bias.offset.defined() || bias.vectors.defined(), who,
          "offset belongs to vectors, which are missing");
  require(!bias.offset.defined() ||
              (bias.offset.dim() == 2 && one_or(bias.offset.size(0), heads) &&
               bias.offset.size(1) == width),
          who, "offset must be [H|1, d] with d = ", width, ", got ",
          shape(bias.offset));
  require(!bias.labels.defined() || bias.table.defined() || bias.vectors.defined(), who,
          "labels choose entries of table or vectors, which are missing");
  require(!bias.labels.defined() || is_integer(bias.labels), who,
          "labels must be int32 or int64, got ", bias.labels.scalar_type());
  per_pair(bias.labels, "labels");
  per_pair(bias.dense, "dense");
}

}  // namespace

double AttentionCall::scale() const {
  return options.scale.value_or(1 / std::sqrt(static_cast<double>(queries.q.size(3))));
}

int64_t AttentionCall::query_places() const {
  return places(queries.rows, queries.q.size(2));
}

std::vector<Tensor*> AttentionCall::learned() {
  std::vector<Tensor*> all = {&queries.q};
  for (Source& source : sources) {
    Bias& bias = source.bias;
    for (Tensor* tensor : {&source.k, &source.v, &bias.column, &bias.slopes,
                           &bias.table, &bias.vectors, &bias.offset, &bias.dense})
      if (tensor->defined()) all.push_back(tensor);
  }
  return all;
}

std::vector<Tensor*> AttentionCall::integers() {
  std::vector<Tensor*> all;
  const auto add = [&](std::initializer_list<Tensor*> tensors) {
    for (Tensor* tensor : tensors)
      if (tensor->defined()) all.push_back(tensor);
  };
  add({&queries.positions, &queries.buckets, &queries.rows});
  for (Source& source : sources)
    add({&source.positions, &source.from, &source.to, &source.buckets, &source.rows,
         &source.bias.labels});
  return all;
}

std::vector<Tensor*> AttentionCall::tensors() {
  std::vector<Tensor*> all = learned();
  for (Tensor* tensor : integers()) all.push_back(tensor);
  return all;
}

KeptCall::KeptCall(AttentionCall given) : call(std::move(given)) {
  for (Tensor* tensor : call.tensors()) *tensor = torch::empty({0});
}

AttentionCall KeptCall::with(const std::vector<Tensor>& tensors) const {
  AttentionCall whole = call;
  const std::vector<Tensor*> places = whole.tensors();
  for (size_t i = 0; i < places.size(); ++i) *places[i] = tensors[i];
  return whole;
}

int64_t visited_pairs(const Queries& queries, const Source& source,
                      const AttentionSizes& sizes) {
  if (!source.layout)
    return sizes.examples * sizes.heads * places(queries.rows, sizes.queries) *
           places(source.rows, source.k.size(2));
  std::vector<int64_t> each;
  for (int64_t pattern = 0; pattern < source.layout->patterns(); ++pattern)
    each.push_back(source.layout->pairs(pattern));
  int64_t pairs = 0;
  for (int64_t example = 0; example < sizes.examples; ++example)
    for (int64_t head = 0; head < sizes.heads; ++head)
      pairs += each[source.layout->pattern_of(example, head)];
  return pairs;
}

AttentionSizes check(const AttentionCall& call) {
  const auto& [queries, sources, options] = call;
  const Tensor& q = queries.q;
  require(q.defined() && q.dim() == 4 && q.is_floating_point(),
          "block attention: q must be [B, H, N, d] of a floating type, got ", shape(q));
  require(q.size(3) > 0, "block attention: q must be 1 or more wide, got ", shape(q));
  require(!sources.empty(), "block attention: there must be at least one source");
  const double p = options.dropout.probability;
  require(p >= 0 && p < 1,
          "block attention: the dropout probability must be in [0, 1), got ", p);
  AttentionSizes sizes{q.size(0), q.size(1), q.size(2), q.size(3), 0};
  check_rows(queries.positions, "block attention: positions of queries", sizes.queries,
             sizes);
  check_rows(queries.buckets, "block attention: buckets of queries", sizes.queries,
             sizes);
  check_rows(queries.rows, "block attention: rows of queries", -1, sizes);

  for (size_t s = 0; s < sources.size(); ++s) {
    const Source& source = sources[s];
    const std::string who = "block attention: source " + std::to_string(s) + ": ";
    const Tensor &k = source.k, &v = source.v;
    require(k.defined() && v.defined() && k.dim() == 4 && v.dim() == 4, who,
            "k and v must be [B|1, Hk, M, d] and [B|1, Hk, M, dv], got ", shape(k),
            " and ", shape(v));
    require(k.scalar_type() == q.scalar_type() && v.scalar_type() == q.scalar_type(),
            who, "k and v must have the type of q, ", q.scalar_type(), ", got ",
            k.scalar_type(), " and ", v.scalar_type());
    require(k.device() == q.device() && v.device() == q.device(), who,
            "k and v must be where q is, on ", q.device(), ", got ", k.device(),
            " and ", v.device());
    require(one_or(k.size(0), sizes.examples) && one_or(v.size(0), sizes.examples), who,
            "k and v must have 1 or ", sizes.examples, " examples, got ", k.size(0),
            " and ", v.size(0));
    require(k.size(1) > 0 && k.size(1) == v.size(1) && sizes.heads % k.size(1) == 0,
            who, "k and v must have equally many heads, a divisor of the ", sizes.heads,
            " of q, got ", k.size(1), " and ", v.size(1));
    require(k.size(2) == v.size(2), who, "k and v must have equally many rows, got ",
            k.size(2), " and ", v.size(2));
    require(k.size(3) == sizes.width, who, "keys must be as wide as queries, ",
            sizes.width, ", got ", k.size(3));
    if (s == 0) sizes.value_width = v.size(3);
    require(v.size(3) == sizes.value_width, who, "values must be as wide as those of ",
            "source 0, ", sizes.value_width, ", got ", v.size(3));
    const int64_t keys = k.size(2);
    check_rows(source.positions, who + "positions", keys, sizes);
    check_rows(source.from, who + "from", keys, sizes);
    check_rows(source.to, who + "to", keys, sizes);
    check_rows(source.buckets, who + "buckets", keys, sizes);
    check_rows(source.rows, who + "rows", -1, sizes);
    require(!source.outside || source.from.defined() || source.to.defined(), who,
            "outside needs from or to");
    check_bias(source.bias, who + "bias ", keys, sizes, q.device());
    if (!source.layout) continue;
    const int64_t query_places = places(queries.rows, sizes.queries);
    const int64_t key_places = places(source.rows, keys);
    const Layout& layout = *source.layout;
    require(layout.queries() == query_places && layout.keys() == key_places, who,
            "the layout must be for ", query_places, " queries and ", key_places,
            " keys, got ", layout.queries(), " and ", layout.keys());
    require(one_or(layout.choice().examples, sizes.examples) &&
                one_or(layout.choice().heads, sizes.heads),
            who, "the layout must choose for 1 or ", sizes.examples,
            " examples and 1 or ", sizes.heads, " heads, got ",
            layout.choice().examples, " and ", layout.choice().heads);
  }
  return sizes;
}

}  // namespace longspan
