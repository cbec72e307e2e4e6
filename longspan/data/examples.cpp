#include "longspan/data/examples.h"

#include <algorithm>

#include "longspan/base/checksum.h"
#include "longspan/base/error.h"

namespace longspan {

void Examples::add(std::span<const int32_t> ids, int64_t label, int64_t longest) {
  if (longest > 0 && static_cast<int64_t>(ids.size()) > longest) {
    ids = ids.first(static_cast<size_t>(longest));
    ++cut_;
  }
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  starts_.push_back(static_cast<int64_t>(ids_.size()));
  labels_.push_back(label);
}

std::span<const int32_t> Examples::ids(int64_t example) const {
  return {ids_.data() + starts_[example], static_cast<size_t>(length(example))};
}

uint32_t Examples::fingerprint() const {
  const auto bytes = [](const auto& list) {
    return std::string_view(reinterpret_cast<const char*>(list.data()),
                            list.size() * sizeof(list[0]));
  };
  return crc32c(bytes(labels_), crc32c(bytes(starts_), crc32c(bytes(ids_))));
}

Batch Examples::batch(std::span<const int64_t> numbers,
                      const BatchOptions& options) const {
  require(!numbers.empty(), "a batch needs at least one example");
  int64_t longest = std::max<int64_t>(1, options.tokens);
  for (const int64_t number : numbers)
    longest = std::max(longest, number < 0 ? 0 : length(number));
  const auto count = static_cast<int64_t>(numbers.size());
  const auto of = [&](torch::Dtype type) {
    return torch::TensorOptions(type).pinned_memory(options.meant_for.is_cuda());
  };
  Batch batch{.ids = torch::empty({count, longest}, of(torch::kLong)),
              .tokens = torch::empty({count, longest}, of(torch::kBool)),
              .labels = torch::empty(count, of(torch::kLong)),
              .answers = count};
  auto* id = batch.ids.data_ptr<int64_t>();
  auto* real = batch.tokens.data_ptr<bool>();
  auto* label = batch.labels.data_ptr<int64_t>();
  for (const int64_t number : numbers) {
    require(number >= 0, "labelled examples do not stand in streams");
    const auto row = ids(number);
    std::fill(std::copy(row.begin(), row.end(), id), id + longest, 0);
    std::fill_n(std::fill_n(real, row.size(), true), longest - row.size(), false);
    *label++ = labels_[static_cast<size_t>(number)];
    id += longest;
    real += longest;
    batch.real_tokens += static_cast<int64_t>(row.size());
  }
  return batch;
}

}  // namespace longspan
