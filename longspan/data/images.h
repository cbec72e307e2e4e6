// Grey images with labels, as sequences of pixels, row by row.

#pragma once

#include <string>
#include <vector>

#include "longspan/data/dataset.h"

namespace longspan {

// A pixel is the id of its brightness + 1: 0 is padding, a black pixel is none.
constexpr int64_t kPixelIds = 257;

class Images final : public Dataset {
 public:
  explicit Images(int64_t pixels) : pixels_(pixels) {}  // of each image

  void reserve(int64_t images);
  void add(std::span<const uint8_t> image, int64_t label);

  int64_t size() const override { return static_cast<int64_t>(labels_.size()); }
  int64_t length(int64_t) const override { return pixels_; }
  Batch batch(std::span<const int64_t> numbers,
              const BatchOptions& options = {}) const override;
  uint32_t fingerprint() const override;

  std::span<const uint8_t> image(int64_t number) const;
  int64_t label(int64_t number) const override {
    return labels_[static_cast<size_t>(number)];
  }

 private:
  int64_t pixels_;
  std::vector<uint8_t> brightness_;
  std::vector<int64_t> labels_;
};

// The bytes of a file of CIFAR-10's binary version: records of a label and 32 x 32
// pixels, either in red, green and blue, or grey already. `name` is for messages.
void add_cifar(Images& images, std::string_view bytes, const std::string& name);

}  // namespace longspan
