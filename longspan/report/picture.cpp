#include "longspan/report/picture.h"

#include <algorithm>
#include <vector>

#include <torch/csrc/autograd/generated/variable_factories.h>

#include "longspan/base/error.h"
#include "longspan/base/words.h"
#include "longspan/contract/seen_pairs.h"
#include "longspan/report/draw_pairs.h"

namespace longspan::report {
namespace {

using torch::Tensor;

// "heads 0, 2-3"
std::string label(const std::vector<int64_t>& heads, int64_t all) {
  if (all == 1) return "";
  if (static_cast<int64_t>(heads.size()) == all) return "all heads";
  std::vector<std::string> parts;
  for (size_t i = 0; i < heads.size();) {
    size_t last = i;
    while (last + 1 < heads.size() && heads[last + 1] == heads[last] + 1) ++last;
    parts.push_back(std::to_string(heads[i]) +
                    (last > i ? "-" + std::to_string(heads[last]) : ""));
    i = last + 1;
  }
  return (heads.size() > 1 ? "heads " : "head ") + joined(parts);
}

std::vector<PatternPanel> panels(const Tensor& pairs) {  // [H|1, rows, columns]
  std::vector<std::vector<int64_t>> alike;
  for (int64_t head = 0; head < pairs.size(0); ++head) {
    const auto same = std::ranges::find_if(
        alike, [&](const auto& heads) { return pairs[heads[0]].equal(pairs[head]); });
    if (same != alike.end())
      same->push_back(head);
    else
      alike.push_back({head});
  }
  std::vector<PatternPanel> all;
  for (const auto& heads : alike)
    all.push_back({label(heads, pairs.size(0)), pairs[heads[0]].contiguous()});
  return all;
}

std::string settings_text(const Mechanism& mechanism, const Value::Map& settings) {
  if (mechanism.settings.empty()) return "";
  if (settings.empty()) return "standard settings";
  const std::string text = Value(settings).text();  // {a: 1, b: 2}
  return text.substr(1, text.size() - 2);
}

struct Found {
  Sight sight;
  bool by_gradients = false;
};

Found found_sight(const Mechanism& mechanism, const PictureOptions& options,
                  bool causal) {
  const Subject subject(mechanism, {.settings = options.settings});
  Found found{subject.sight(options.tokens, causal)};
  Tensor& pairs = found.sight.pairs;
  if (!pairs.defined()) {
    const auto seen = seen_pairs(subject, options.tokens, causal);
    pairs = seen.pairs.index_select(1, seen.tokens.argsort());  // true is `directly`
    found.by_gradients = true;
  }
  pairs = pairs.to(torch::kCPU, torch::kUInt8);
  return found;
}

bool is_causal(const Mechanism& mechanism, const PictureOptions& options) {
  return options.causal || mechanism.can.causal == Causal::always;
}

// How many of the pairs of tokens are seen directly, of those that may be.
double direct_share(const Mechanism& mechanism, const PictureOptions& options) {
  const bool causal = is_causal(mechanism, options);
  const Sight sight = found_sight(mechanism, options, causal).sight;
  const Tensor pairs =
      sight.pairs.slice(1, sight.memory_rows).slice(2, sight.memory_columns);
  const Tensor all = torch::ones_like(pairs);
  const auto may = (causal ? all.tril() : all).sum().item<int64_t>();
  const auto direct = pairs.eq(static_cast<int>(Sees::directly)).sum().item<int64_t>();
  return static_cast<double>(direct) / static_cast<double>(std::max<int64_t>(may, 1));
}

}  // namespace

std::string picture(const Mechanism& mechanism, const PictureOptions& options) {
  require(!options.causal || mechanism.can.causal != Causal::never, mechanism.name,
          ": has no causal form; leave out --causal");
  const bool causal = is_causal(mechanism, options);
  const auto [sight, by_gradients] = found_sight(mechanism, options, causal);
  require(sight.pairs.numel() > 0, mechanism.name, ": nothing comes out of ",
          options.tokens, " tokens; take more");
  return draw(
      {.title = std::string(mechanism.name) + (causal ? ", causal" : ", bidirectional"),
       .settings = settings_text(mechanism,
                                 options.settings.value_or(test_settings(mechanism))),
       .panels = panels(sight.pairs),
       .memory_rows = sight.memory_rows,
       .memory_columns = sight.memory_columns,
       .by_gradients = by_gradients});
}

bool tells(const Mechanism& mechanism, const PictureOptions& options) {
  return mechanism.full || direct_share(mechanism, options) <= 0.75;
}

int64_t tokens_that_tell(const Mechanism& mechanism) {
  const int64_t few = PictureOptions{}.tokens;
  for (const int64_t tokens : {few, 2 * few, 4 * few})
    if (tells(mechanism, {.tokens = tokens})) return tokens;
  return few;
}

}  // namespace longspan::report
