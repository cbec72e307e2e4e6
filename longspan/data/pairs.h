// Pairs of documents with labels.

#pragma once

#include <memory>
#include <vector>

#include "longspan/data/examples.h"

namespace longspan {

// A document that stands in many pairs is in memory once; the labels of the documents
// themselves mean nothing.
class Pairs final : public Dataset {
 public:
  explicit Pairs(std::shared_ptr<const Examples> documents)
      : documents_(std::move(documents)) {}

  // The numbers of two documents.
  void add(int64_t first, int64_t second, int64_t label);

  int64_t size() const override { return static_cast<int64_t>(pairs_.size()); }
  // Of the longer document.
  int64_t length(int64_t number) const override;
  int64_t label(int64_t number) const override { return pair(number).label; }
  Batch batch(std::span<const int64_t> numbers,
              const BatchOptions& options = {}) const override;
  uint32_t fingerprint() const override;
  int64_t cut() const override { return documents_->cut(); }

  std::span<const int32_t> first(int64_t number) const {
    return documents_->ids(pair(number).first);
  }
  std::span<const int32_t> second(int64_t number) const {
    return documents_->ids(pair(number).second);
  }

 private:
  struct Pair {
    int64_t first = 0, second = 0, label = 0;
  };
  const Pair& pair(int64_t number) const { return pairs_[static_cast<size_t>(number)]; }

  std::shared_ptr<const Examples> documents_;
  std::vector<Pair> pairs_;
};

}  // namespace longspan
