#include "longspan/data/images.h"

#include <algorithm>
#include <array>

#include "longspan/base/checksum.h"
#include "longspan/base/error.h"
#include "longspan/data/grey_image.h"

namespace longspan {

void Images::reserve(int64_t images) {
  brightness_.reserve(static_cast<size_t>(images * pixels_));
  labels_.reserve(static_cast<size_t>(images));
}

void Images::add(std::span<const uint8_t> image, int64_t label) {
  require(static_cast<int64_t>(image.size()) == pixels_, "an image must have ", pixels_,
          " pixels, got ", image.size());
  brightness_.insert(brightness_.end(), image.begin(), image.end());
  labels_.push_back(label);
}

std::span<const uint8_t> Images::image(int64_t number) const {
  return {brightness_.data() + number * pixels_, static_cast<size_t>(pixels_)};
}

Batch Images::batch(std::span<const int64_t> numbers,
                    const BatchOptions& options) const {
  require(!numbers.empty(), "a batch needs at least one example");
  const auto count = static_cast<int64_t>(numbers.size());
  const int64_t padded = std::max(pixels_, options.tokens);
  const auto of = [&](torch::Dtype type) {
    return torch::TensorOptions(type).pinned_memory(options.meant_for.is_cuda());
  };
  Batch batch{.ids = torch::zeros({count, padded}, of(torch::kLong)),
              .tokens = torch::zeros({count, padded}, of(torch::kBool)),
              .labels = torch::empty(count, of(torch::kLong)),
              .real_tokens = count * pixels_,
              .answers = count};
  auto* id = batch.ids.data_ptr<int64_t>();
  auto* real = batch.tokens.data_ptr<bool>();
  auto* label = batch.labels.data_ptr<int64_t>();
  for (const int64_t number : numbers) {
    require(number >= 0, "labelled examples do not stand in streams");
    std::ranges::transform(image(number), id,
                           [](uint8_t brightness) { return int64_t{brightness} + 1; });
    std::fill_n(real, pixels_, true);
    *label++ = labels_[static_cast<size_t>(number)];
    id += padded;
    real += padded;
  }
  return batch;
}

uint32_t Images::fingerprint() const {
  const auto bytes = [](const auto& list) {
    return std::string_view(reinterpret_cast<const char*>(list.data()),
                            list.size() * sizeof(list[0]));
  };
  return crc32c(bytes(labels_), crc32c(bytes(brightness_)));
}

void add_cifar(Images& images, std::string_view bytes, const std::string& name) {
  constexpr size_t kPixels = 32 * 32, kColour = 1 + 3 * kPixels, kGrey = 1 + kPixels;
  constexpr uint8_t kLabels = 10;
  const bool colour = bytes.size() % kColour == 0;
  require(!bytes.empty() && (colour || bytes.size() % kGrey == 0), name,
          ": CIFAR-10 has records of ", kColour, " bytes, or ", kGrey,
          " if they are grey, got ", bytes.size(), " bytes");
  const size_t record = colour ? kColour : kGrey;
  std::array<uint8_t, kPixels> image;
  for (size_t at = 0; at < bytes.size(); at += record) {
    const auto* const values = reinterpret_cast<const uint8_t*>(bytes.data()) + at;
    require(values[0] < kLabels, name, ": record ", at / record + 1,
            " must have a label of 0 .. 9, got ", int{values[0]});
    const uint8_t* const pixels = values + 1;
    for (size_t i = 0; i < kPixels; ++i)
      image[i] = colour
                     ? grey_of(pixels[i], pixels[kPixels + i], pixels[2 * kPixels + i])
                     : pixels[i];
    images.add(image, values[0]);
  }
}

}  // namespace longspan
