#include "longspan/attention/wrapped.h"

#include <algorithm>
#include <numeric>

#include "longspan/base/error.h"

namespace longspan {

std::vector<Wrapped> wrapped(const Settings& settings, const Sizes& sizes,
                             const Value::List& heads) {
  const Value::List& parts = settings.list("parts");
  const auto count = static_cast<int64_t>(parts.size());
  require(count >= 1, "parts must name at least one mechanism");
  std::vector<int64_t> shares(parts.size(), sizes.heads / count);
  if (heads.empty()) {
    require(sizes.heads % count == 0, "the ", sizes.heads,
            " heads cannot be divided evenly among ", count, " parts");
  } else {
    require(heads.size() == parts.size(), "heads must say a number for each of the ",
            count, " parts, got ", Value(heads).text());
    for (size_t i = 0; i < parts.size(); ++i) {
      const auto* number = heads[i].as<int64_t>();
      require(number && *number >= 1, "heads must be whole numbers of 1 or more, got ",
              heads[i].text());
      shares[i] = *number;
    }
    const int64_t total = std::accumulate(shares.begin(), shares.end(), int64_t{0});
    require(total == sizes.heads, "heads must add up to ", sizes.heads, ", got ",
            total);
  }
  const int64_t group = sizes.heads / sizes.key_heads;
  std::vector<Wrapped> all;
  for (size_t i = 0; i < parts.size(); ++i) {
    require(shares[i] % group == 0, "a part has ", shares[i],
            " heads of queries, which is no multiple of the ", group,
            " that share keys");
    const Chosen chosen = Chosen::from(parts[i], "parts");
    Wrapped part{&find_mechanism(chosen.name), chosen.settings, sizes};
    part.sizes.heads = shares[i];
    part.sizes.key_heads = shares[i] / group;
    all.push_back(std::move(part));
  }
  return all;
}

void check_part(const Mechanism& row) {
  const std::string_view seam = row.seam();
  require(seam == "attention" || seam == "mixer", row.name, " fills the seam ", seam,
          ", but only an attention or a mixer can be wrapped");
  require(row.order.empty(), row.name, " is causal in the order of ", row.order,
          ", not in that of the tokens, so it cannot be wrapped");
  require(row.keeps.residual && row.keeps.norm, row.name,
          " has a residual or norms of its own, so it cannot be wrapped");
  require(!row.can.side, row.name,
          " hands on a second stream, so it cannot be wrapped");
}

bool samples(const std::vector<Wrapped>& parts) {
  return std::ranges::any_of(parts, [](const Wrapped& part) {
    return abilities(*part.row, part.sizes, part.settings).samples;
  });
}

int64_t state_size(const std::vector<Wrapped>& parts, int64_t tokens) {
  int64_t total = 0;
  for (const auto& [row, settings, sizes] : parts)
    if (row->state_size)
      total += row->state_size(Settings::complete(row->name, row->settings, settings,
                                                  sizes.layer, sizes.layers),
                               sizes, tokens);
  return total;
}

}  // namespace longspan
