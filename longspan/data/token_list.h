// A long list of tokens, in memory or in a file that is mapped into it.

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace longspan {

class TokenList {
 public:
  TokenList() = default;

  int64_t size() const { return size_; }
  int32_t operator[](int64_t i) const {
    return width_ == 2 ? static_cast<const uint16_t*>(data_)[i]
                       : static_cast<const int32_t*>(data_)[i];
  }
  uint32_t checksum() const { return checksum_; }  // CRC-32C of what is in memory

  // Of ids of 2 or 4 bytes, which `owner` keeps alive.
  TokenList(const void* data, int width, int64_t size, uint32_t checksum,
            std::shared_ptr<const void> owner)
      : data_(data),
        width_(width),
        size_(size),
        checksum_(checksum),
        owner_(std::move(owner)) {}

 private:
  const void* data_ = nullptr;
  int width_ = 4;
  int64_t size_ = 0;
  uint32_t checksum_ = 0;
  std::shared_ptr<const void> owner_;
};

// Bytes of an id that is less than `ids`.
inline int width_of_ids(int64_t ids) { return ids <= 65536 ? 2 : 4; }

class TokenSink {
 public:
  virtual ~TokenSink() = default;
  virtual void add(std::span<const int32_t> ids) = 0;
};

class TokenBuffer final : public TokenSink {
 public:
  explicit TokenBuffer(int64_t ids) : width_(width_of_ids(ids)) {}

  void add(std::span<const int32_t> ids) override;
  TokenList list() &&;

 private:
  int width_;
  std::vector<uint16_t> narrow_;
  std::vector<int32_t> wide_;
};

}  // namespace longspan
