// The arguments of block_attention as one value, for its tests.

#pragma once

#include <limits>
#include <string>
#include <vector>

#include "longspan/kernels/block_attention.h"
#include "tests/support/tensors.h"

namespace longspan::testing {

inline constexpr double kNever = -std::numeric_limits<double>::infinity();

struct Call {
  Queries queries = {};
  std::vector<Source> sources = {};
  BlockAttention options = {};
};

inline Attended attend(const Call& call) {
  return block_attention(call.queries, call.sources, call.options);
}

struct Named {
  std::string name;
  Tensor* tensor;
};

// The tensors that have gradients.
inline std::vector<Named> named_learned(Call& call) {
  std::vector<Named> all = {{"q", &call.queries.q}};
  for (size_t s = 0; s < call.sources.size(); ++s) {
    Source& source = call.sources[s];
    Bias& bias = source.bias;
    for (const Named& named :
         {Named{"k", &source.k}, Named{"v", &source.v}, Named{"column", &bias.column},
          Named{"slopes", &bias.slopes}, Named{"table", &bias.table},
          Named{"vectors", &bias.vectors}, Named{"offset", &bias.offset},
          Named{"dense", &bias.dense}})
      if (named.tensor->defined())
        all.push_back({named.name + " of source " + std::to_string(s), named.tensor});
  }
  return all;
}

inline std::vector<Named> named_integers(Call& call) {
  std::vector<Named> all;
  const auto add = [&](const std::string& whose, const std::vector<Named>& some) {
    for (const Named& named : some)
      if (named.tensor->defined()) all.push_back({named.name + whose, named.tensor});
  };
  Queries& queries = call.queries;
  add(" of queries", {{"positions", &queries.positions},
                      {"buckets", &queries.buckets},
                      {"rows", &queries.rows}});
  for (size_t s = 0; s < call.sources.size(); ++s) {
    Source& source = call.sources[s];
    add(" of source " + std::to_string(s), {{"positions", &source.positions},
                                            {"from", &source.from},
                                            {"to", &source.to},
                                            {"buckets", &source.buckets},
                                            {"rows", &source.rows},
                                            {"labels", &source.bias.labels}});
  }
  return all;
}

inline std::vector<Tensor*> learned(Call& call) {
  std::vector<Tensor*> all;
  for (const Named& named : named_learned(call)) all.push_back(named.tensor);
  return all;
}

inline std::vector<Tensor*> integers(Call& call) {
  std::vector<Tensor*> all;
  for (const Named& named : named_integers(call)) all.push_back(named.tensor);
  return all;
}

// The call with other learned tensors, in the order of learned().
inline Call with(Call call, const Tensors& values) {
  const auto all = learned(call);
  for (size_t i = 0; i < all.size(); ++i) *all[i] = values[i];
  return call;
}

inline Tensors values(Call call) {
  Tensors all;
  for (const Tensor* tensor : learned(call)) all.push_back(*tensor);
  return all;
}

}  // namespace longspan::testing
