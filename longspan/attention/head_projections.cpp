#include "longspan/attention/head_projections.h"

#include "longspan/attention/head_axis.h"

namespace longspan {

using torch::Tensor;

HeadProjections::HeadProjections(torch::nn::Module& owner, const std::string& prefix,
                                 const Sizes& sizes, bool has_bias)
    : heads_(sizes.heads), key_heads_(sizes.key_heads) {
  const auto linear = [&](const char* name, int64_t out, int64_t in) {
    return make_linear(owner, prefix + name, out, in, has_bias);
  };
  q_ = linear("q", heads_ * sizes.head_width, sizes.embedding);
  k_ = linear("k", key_heads_ * sizes.head_width, sizes.embedding);
  v_ = linear("v", key_heads_ * sizes.value_width, sizes.embedding);
  out_ = linear("out", sizes.embedding, heads_ * sizes.value_width);
}

Tensor HeadProjections::q(const Tensor& x) const { return in_heads(q_(x), heads_); }
Tensor HeadProjections::k(const Tensor& x) const { return in_heads(k_(x), key_heads_); }
Tensor HeadProjections::v(const Tensor& x) const { return in_heads(v_(x), key_heads_); }
Tensor HeadProjections::out(const Tensor& heads) const {
  return out_(joined_heads(heads));
}

}  // namespace longspan
