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

int64_t Examples::longest() const {
  int64_t longest = 0;
  for (int64_t i = 0; i < size(); ++i) longest = std::max(longest, length(i));
  return longest;
}

uint32_t Examples::fingerprint() const {
  const auto bytes = [](const auto& list) {
    return std::string_view(reinterpret_cast<const char*>(list.data()),
                            list.size() * sizeof(list[0]));
  };
  return crc32c(bytes(labels_), crc32c(bytes(starts_), crc32c(bytes(ids_))));
}

Batch Batch::to(torch::Device device) const {
  const auto moved = [&](const torch::Tensor& tensor) {
    return tensor.to(device, tensor.scalar_type(), /*non_blocking=*/device.is_cuda());
  };
  return {.ids = moved(ids),
          .tokens = moved(tokens),
          .labels = moved(labels),
          .real_tokens = real_tokens};
}

Batch make_batch(const Examples& examples, std::span<const int64_t> numbers,
                 torch::Device meant_for, int64_t tokens) {
  require(!numbers.empty(), "a batch needs at least one example");
  int64_t longest = std::max<int64_t>(1, tokens);
  for (const int64_t number : numbers)
    longest = std::max(longest, examples.length(number));
  const auto count = static_cast<int64_t>(numbers.size());
  const auto of = [&](torch::Dtype type) {
    return torch::TensorOptions(type).pinned_memory(meant_for.is_cuda());
  };
  Batch batch{.ids = torch::empty({count, longest}, of(torch::kLong)),
              .tokens = torch::empty({count, longest}, of(torch::kBool)),
              .labels = torch::empty(count, of(torch::kLong))};
  auto* id = batch.ids.data_ptr<int64_t>();
  auto* real = batch.tokens.data_ptr<bool>();
  auto* label = batch.labels.data_ptr<int64_t>();
  for (const int64_t number : numbers) {
    const auto ids = examples.ids(number);
    std::fill(std::copy(ids.begin(), ids.end(), id), id + longest, 0);
    std::fill_n(std::fill_n(real, ids.size(), true), longest - ids.size(), false);
    *label++ = examples.label(number);
    id += longest;
    real += longest;
    batch.real_tokens += static_cast<int64_t>(ids.size());
  }
  return batch;
}

}  // namespace longspan
