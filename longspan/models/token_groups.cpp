#include "longspan/models/token_groups.h"

#include <algorithm>
#include <vector>

#include "longspan/kernels/pool.h"
#include "longspan/kernels/total.h"

namespace longspan {
namespace {

using torch::Tensor;

// The means of x over the tokens of `spans` that `counts`; a span is real where one of
// its tokens is `real`. Both undefined: all.
Stream means(const Tensor& x, const Tensor& counts, const Tensor& real,
             const std::vector<Span>& spans) {
  PoolInputs inputs{.x = x.unsqueeze(1)};
  if (counts.defined()) inputs.keep = counts.unsqueeze(1);
  Stream groups{.x = pool_spans(inputs, spans, Pooling::mean).out.squeeze(1)};
  if (!real.defined()) return groups;
  const PoolInputs of_real{.x = real.to(torch::kFloat).unsqueeze(1).unsqueeze(3)};
  groups.tokens =
      pool_spans(of_real, spans, Pooling::max).out.squeeze(3).squeeze(1).gt(0);
  return groups;
}

}  // namespace

Stream TokenGroups::pooled(const Stream& h, bool causal, Record* state) const {
  if (causal) return pooled_past(h, state);
  const int64_t count = h.x.size(1);
  std::vector<Span> spans;
  if (separate_first_ && count > 0) spans.push_back({0, 1});
  for (int64_t from = separate_first_ ? 1 : 0; from < count; from += size_)
    spans.push_back({from, std::min(from + size_, count)});
  return means(h.x, h.tokens, h.tokens, spans);
}

Stream TokenGroups::pooled_past(const Stream& h, Record* state) const {
  const int64_t before = size_ - 1, count = h.x.size(1),
                first = state ? state->tokens : 0;
  const auto after_past = [&](const char* name, const Tensor& now) {
    if (!now.defined()) return now;
    std::vector<int64_t> sizes = now.sizes().vec();
    sizes[1] = before;
    const Tensor past =
        first > 0 ? state->get(name) : torch::zeros(sizes, now.options());
    const Tensor all = torch::cat({past, now}, 1);
    if (state) state->set(name, all.slice(1, count).clone());
    return all;
  };
  const Tensor x = after_past("x", h.x), real = after_past("tokens", h.tokens);
  if (state) state->tokens += count;
  Tensor counts;
  if (real.defined()) {  // zeros before the first token count, though they are not real
    const int64_t zeros = std::clamp<int64_t>(before - first, 0, before);
    counts = torch::cat(
        {torch::ones_like(real.slice(1, 0, zeros)), real.slice(1, zeros)}, 1);
  }
  // Row 0 of x is token first - before, so the members of the group that ends at a
  // token begin at the row of its number in h.
  std::vector<Span> spans;
  for (int64_t end = (first + before) / size_ * size_; end < first + count;
       end += size_)
    spans.push_back({end - first, end - first + size_});
  return means(x, counts, real, spans);
}

Tensor TokenGroups::repeated(const Tensor& x, int64_t count, bool causal,
                             Record* state) const {
  const auto each = [&](const Tensor& groups) {
    return spread(groups.unsqueeze(2),
                  {groups.size(0), groups.size(1), size_, groups.size(2)})
        .flatten(1, 2);
  };
  if (!causal) {
    if (!separate_first_) return each(x).slice(1, 0, count);
    return torch::cat({x.slice(1, 0, 1), each(x.slice(1, 1))}, 1).slice(1, 0, count);
  }
  const int64_t first = state ? state->tokens - count : 0, begun = first % size_;
  const Tensor groups = begun > 0 ? torch::cat({state->get("last"), x}, 1) : x;
  if (state) state->set("last", groups.slice(1, groups.size(1) - 1).clone());
  return each(groups).slice(1, begun, begun + count);
}

}  // namespace longspan
