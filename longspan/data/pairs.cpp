#include "longspan/data/pairs.h"

#include <algorithm>

#include "longspan/base/checksum.h"
#include "longspan/base/error.h"

namespace longspan {

void Pairs::add(int64_t first, int64_t second, int64_t label) {
  pairs_.push_back({first, second, label});
}

int64_t Pairs::length(int64_t number) const {
  const auto& [first, second, label] = pair(number);
  return std::max(documents_->length(first), documents_->length(second));
}

Batch Pairs::batch(std::span<const int64_t> numbers,
                   const BatchOptions& options) const {
  std::vector<int64_t> documents;
  for (const int64_t number : numbers) {
    require(number >= 0, "labelled examples do not stand in streams");
    documents.push_back(pair(number).first);
  }
  for (const int64_t number : numbers) documents.push_back(pair(number).second);
  Batch batch = documents_->batch(documents, options);
  batch.answers = static_cast<int64_t>(numbers.size());
  batch.labels = batch.labels.narrow(0, 0, batch.answers);
  auto* label = batch.labels.data_ptr<int64_t>();
  for (const int64_t number : numbers) *label++ = pair(number).label;
  return batch;
}

uint32_t Pairs::fingerprint() const {
  return crc32c(
      {reinterpret_cast<const char*>(pairs_.data()), pairs_.size() * sizeof(pairs_[0])},
      documents_->fingerprint());
}

}  // namespace longspan
