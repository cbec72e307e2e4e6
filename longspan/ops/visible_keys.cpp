#include "longspan/ops/visible_keys.h"

#include <algorithm>
#include <list>
#include <memory>
#include <mutex>

#include "longspan/base/error.h"
#include "longspan/base/shapes.h"
#include "longspan/ops/spans.h"

namespace longspan::ops {
namespace {

using torch::Tensor;

constexpr char kWho[] = "block attention: ";

Pattern keys_around(const std::vector<int64_t>& window, int64_t shift) {
  const Pattern around =
      window_of_keys(window[0], window[1], window.size() == 3 ? window[2] : 1);
  return [=](int64_t query, std::vector<Span>& keys) { around(query + shift, keys); };
}

Pattern keys_of_spans(const Tensor& spans) {
  const auto all = std::make_shared<std::vector<Span>>(spans_of(spans));
  return [all, count = spans.size(1)](int64_t query, std::vector<Span>& keys) {
    const auto first = all->begin() + query * count;
    keys.insert(keys.end(), first, first + count);
  };
}

Layout build(const VisibleKeys& visible, int64_t queries, int64_t keys) {
  Pattern all;
  const auto restrict_to = [&](const Pattern& some) {
    all = all ? both_of(all, some) : some;
  };
  const int64_t shift = keys - queries;
  if (visible.causal) restrict_to(past_keys(shift));
  if (visible.window) restrict_to(keys_around(*visible.window, shift));
  if (visible.spans.defined()) restrict_to(keys_of_spans(visible.spans));
  return {queries, keys, all};
}

// The layouts of the last calls.
class KeptLayouts {
 public:
  Layout get(const VisibleKeys& visible, int64_t queries, int64_t keys) {
    std::vector<int64_t> name = {queries, keys, visible.causal};
    if (visible.window)
      name.insert(name.end(), visible.window->begin(), visible.window->end());
    const std::lock_guard lock(mutex_);
    auto found = std::ranges::find(kept_, name, &Kept::name);
    if (found == kept_.end())
      found = kept_.insert(kept_.end(), {name, build(visible, queries, keys)});
    kept_.splice(kept_.begin(), kept_, found);
    if (kept_.size() > kMost) kept_.pop_back();
    return kept_.front().layout;
  }

 private:
  static constexpr size_t kMost = 16;

  struct Kept {
    std::vector<int64_t> name;
    Layout layout;
  };

  std::mutex mutex_;
  std::list<Kept> kept_;  // the last used first
};

}  // namespace

void VisibleKeys::check(int64_t queries, int64_t keys) const {
  if (window) {
    require(window->size() == 2 || window->size() == 3, kWho,
            "window must be [before, after] or [before, after, dilation], got ",
            at::IntArrayRef(*window));
    keys_around(*window, keys - queries);
  }
  require(!spans.defined() || (is_integer(spans) && spans.dim() == 3 &&
                               spans.size(0) == queries && spans.size(2) == 2),
          kWho, "spans must be [N, S, 2] of int32 or int64 with N = ", queries,
          ", got ", shape(spans), " of ",
          spans.defined() ? spans.scalar_type() : torch::kLong);
}

std::optional<Layout> VisibleKeys::layout(int64_t queries, int64_t keys) const {
  check(queries, keys);
  if (spans.defined()) return build(*this, queries, keys);
  if (!causal && !window) return {};
  static KeptLayouts kept;
  return kept.get(*this, queries, keys);
}

}  // namespace longspan::ops
