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

// Of one head; `shared`: so many queries share their spans.
Pattern keys_of_spans(const Tensor& spans, int64_t shared) {
  const auto all = std::make_shared<std::vector<Span>>(spans_of(spans));
  return [all, shared, count = spans.size(1)](int64_t query, std::vector<Span>& keys) {
    const auto first = all->begin() + query / shared * count;
    keys.insert(keys.end(), first, first + count);
  };
}

// `given`: the spans, on the CPU.
Layout build(const VisibleKeys& visible, const Tensor& given, int64_t queries,
             int64_t keys) {
  Pattern all;
  const auto restrict_to = [&](const Pattern& some) {
    all = all ? both_of(all, some) : some;
  };
  const int64_t shift = keys - queries;
  if (visible.causal) restrict_to(past_keys(shift));
  if (visible.window) restrict_to(keys_around(*visible.window, shift));
  if (!given.defined()) return {queries, keys, all};
  const Tensor spans = given.dim() == 3 ? given.unsqueeze(0) : given;
  std::vector<Pattern> patterns;
  Layout::Choice choice{.heads = spans.size(0), .pattern = {}};
  for (int32_t head = 0; head < spans.size(0); ++head) {
    const Pattern some = keys_of_spans(spans[head], visible.span_queries);
    patterns.push_back(all ? both_of(all, some) : some);
    choice.pattern.push_back(head);
  }
  return {queries, keys, patterns, choice};
}

// The layouts of the last calls.
class KeptLayouts {
 public:
  Layout get(const VisibleKeys& visible, int64_t queries, int64_t keys) {
    std::vector<int64_t> name = {queries, keys, visible.causal, visible.span_queries};
    if (visible.window)
      name.insert(name.end(), visible.window->begin(), visible.window->end());
    const Tensor spans =
        visible.spans.defined() ? visible.spans.to(torch::kCPU) : Tensor();
    const std::lock_guard lock(mutex_);
    auto found = std::ranges::find_if(kept_, [&](const Kept& kept) {
      return kept.name == name && same(kept.spans, spans);
    });
    if (found == kept_.end())
      // A copy: what was given may be changed later.
      found = kept_.insert(kept_.end(), {name, spans.defined() ? spans.clone() : spans,
                                         build(visible, spans, queries, keys)});
    kept_.splice(kept_.begin(), kept_, found);
    if (kept_.size() > kMost) kept_.pop_back();
    return kept_.front().layout;
  }

 private:
  static constexpr size_t kMost = 16;

  struct Kept {
    std::vector<int64_t> name;
    Tensor spans;
    Layout layout;
  };

  static bool same(const Tensor& one, const Tensor& other) {
    if (!one.defined() || !other.defined()) return one.defined() == other.defined();
    return one.scalar_type() == other.scalar_type() && one.equal(other);
  }

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
  require(span_queries >= 1, kWho, "span_queries must be 1 or more, got ",
          span_queries);
  if (!spans.defined()) return;
  const int64_t rows = (queries + span_queries - 1) / span_queries;
  require(is_integer(spans) && (spans.dim() == 3 || spans.dim() == 4) &&
              spans.size(-3) == rows && spans.size(-1) == 2 &&
              (spans.dim() == 3 || spans.size(0) > 0),
          kWho,
          "spans must be [N, S, 2] of int32 or int64, or [H, N, S, 2], with N = ", rows,
          span_queries > 1 ? " groups of queries" : "", ", got ", shape(spans), " of ",
          spans.scalar_type());
}

std::optional<Layout> VisibleKeys::layout(int64_t queries, int64_t keys) const {
  check(queries, keys);
  if (!causal && !window && !spans.defined()) return {};
  static KeptLayouts kept;
  return kept.get(*this, queries, keys);
}

}  // namespace longspan::ops
