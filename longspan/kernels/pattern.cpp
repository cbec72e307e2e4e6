#include "longspan/kernels/pattern.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "longspan/base/error.h"

namespace longspan {
namespace {

constexpr int64_t kEnd = std::numeric_limits<int64_t>::max();
constexpr int64_t kMost = std::numeric_limits<int32_t>::max();  // queries, and keys

std::vector<Span> tidy_keys(const Pattern& pattern, int64_t query) {
  std::vector<Span> keys;
  pattern(query, keys);
  tidy(keys, kEnd);
  return keys;
}

bool is_in(const std::vector<Span>& spans, int64_t position) {
  return std::ranges::any_of(spans, [&](const Span& span) {
    return span.from <= position && position < span.to;
  });
}

}  // namespace

void tidy(std::vector<Span>& spans, int64_t end) {
  for (Span& span : spans)
    span = {std::max<int64_t>(span.from, 0), std::min(span.to, end)};
  std::erase_if(spans, [](const Span& span) { return span.from >= span.to; });
  if (!std::ranges::is_sorted(spans, {}, &Span::from))
    std::ranges::sort(spans, {}, &Span::from);
  size_t kept = 0;
  for (const Span& span : spans) {
    if (kept > 0 && span.from <= spans[kept - 1].to)
      spans[kept - 1].to = std::max(spans[kept - 1].to, span.to);
    else
      spans[kept++] = span;
  }
  spans.resize(kept);
}

Pattern all_keys() {
  return [](int64_t, std::vector<Span>& keys) { keys.push_back({0, kEnd}); };
}

Pattern no_keys() {
  return [](int64_t, std::vector<Span>&) {};
}

Pattern past_keys(int64_t shift) {
  return [=](int64_t query, std::vector<Span>& keys) {
    keys.push_back({0, query + shift + 1});
  };
}

Pattern window_of_keys(int64_t before, int64_t after, int64_t dilation) {
  require(before >= 0 && after >= 0 && dilation >= 1,
          "window: before and after must be 0 or more and dilation 1 or more, got ",
          before, ", ", after, " and ", dilation);
  return [=](int64_t query, std::vector<Span>& keys) {
    const int64_t last = std::min(after, (kMost - query) / dilation);
    if (dilation == 1) {
      keys.push_back({query - before, query + last + 1});
      return;
    }
    for (int64_t step = -std::min(before, query / dilation); step <= last; ++step)
      keys.push_back({query + step * dilation, query + step * dilation + 1});
  };
}

Pattern block_of_keys(int64_t size, int64_t before, int64_t after) {
  require(size >= 1 && before >= 0 && after >= 0,
          "block: size must be 1 or more, blocks before and after 0 or more, got ",
          size, ", ", before, " and ", after);
  return [=](int64_t query, std::vector<Span>& keys) {
    const int64_t block = query / size;
    keys.push_back({(block - std::min(before, block)) * size,
                    (block + std::min(after, kMost / size - block) + 1) * size});
  };
}

Pattern listed_blocks(int64_t size, std::vector<std::vector<int64_t>> blocks) {
  require(size >= 1, "listed blocks: size must be 1 or more, got ", size);
  return [=, blocks = std::move(blocks)](int64_t query, std::vector<Span>& keys) {
    const auto block = static_cast<size_t>(query / size);
    if (block >= blocks.size()) return;
    for (const int64_t seen : blocks[block])
      keys.push_back({seen * size, (seen + 1) * size});
  };
}

Pattern stride_of_keys(int64_t stride, int64_t count) {
  require(stride >= 1, "stride: must be 1 or more, got ", stride);
  return [=](int64_t query, std::vector<Span>& keys) {
    for (int64_t key = query % stride; key < count; key += stride)
      keys.push_back({key, key + 1});
  };
}

Pattern columns_of_keys(std::vector<Span> spans) {
  return [spans = std::move(spans)](int64_t, std::vector<Span>& keys) {
    keys.insert(keys.end(), spans.begin(), spans.end());
  };
}

Pattern rows_of_queries(std::vector<Span> queries, Pattern rows, Pattern others) {
  return [queries = std::move(queries), rows = std::move(rows),
          others = std::move(others)](int64_t query, std::vector<Span>& keys) {
    (is_in(queries, query) ? rows : others)(query, keys);
  };
}

Pattern any_of(std::vector<Pattern> patterns) {
  return [patterns = std::move(patterns)](int64_t query, std::vector<Span>& keys) {
    for (const auto& pattern : patterns) pattern(query, keys);
  };
}

Pattern both_of(Pattern first, Pattern second) {
  return [first = std::move(first), second = std::move(second)](
             int64_t query, std::vector<Span>& keys) {
    const auto a = tidy_keys(first, query), b = tidy_keys(second, query);
    for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
      keys.push_back({std::max(a[i].from, b[j].from), std::min(a[i].to, b[j].to)});
      if (a[i].to < b[j].to)
        ++i;
      else
        ++j;
    }
  };
}

Pattern but_not(Pattern first, Pattern second) {
  return [first = std::move(first), second = std::move(second)](
             int64_t query, std::vector<Span>& keys) {
    const auto hidden = tidy_keys(second, query);
    auto next = hidden.begin();
    for (Span span : tidy_keys(first, query)) {
      while (next != hidden.end() && next->to <= span.from) ++next;
      for (auto hole = next; hole != hidden.end() && hole->from < span.to; ++hole) {
        keys.push_back({span.from, hole->from});
        span.from = hole->to;
      }
      keys.push_back(span);
    }
  };
}

Pattern in_order(Pattern pattern, std::vector<int64_t> order) {
  int64_t end = 0;
  for (const int64_t position : order) {
    require(position >= 0, "order: positions must be 0 or more, got ", position);
    end = std::max(end, position + 1);
  }
  std::vector<int64_t> place(static_cast<size_t>(end), -1);
  for (size_t at = 0; at < order.size(); ++at) {
    auto& mine = place[static_cast<size_t>(order[at])];
    require(mine < 0, "order: a position may be in it once, got ", order[at], " twice");
    mine = static_cast<int64_t>(at);
  }
  return [pattern = std::move(pattern), order = std::move(order),
          place = std::move(place), end](int64_t query, std::vector<Span>& keys) {
    std::vector<Span> seen;
    pattern(order[static_cast<size_t>(query)], seen);
    const size_t first = keys.size();
    for (const auto& [from, to] : seen)
      for (int64_t key = std::max<int64_t>(from, 0); key < std::min(to, end); ++key) {
        const int64_t at = place[static_cast<size_t>(key)];
        if (at < 0) continue;
        if (keys.size() > first && keys.back().to == at)
          ++keys.back().to;
        else
          keys.push_back({at, at + 1});
      }
  };
}

std::vector<int64_t> by_residue(int64_t stride, int64_t count) {
  require(stride >= 1, "stride: must be 1 or more, got ", stride);
  std::vector<int64_t> order;
  order.reserve(static_cast<size_t>(count));
  for (int64_t residue = 0; residue < std::min(stride, count); ++residue)
    for (int64_t position = residue; position < count; position += stride)
      order.push_back(position);
  return order;
}

}  // namespace longspan
