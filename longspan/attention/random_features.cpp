#include "longspan/attention/random_features.h"

#include <cmath>
#include <limits>
#include <numbers>

#include "longspan/attention/head_axis.h"
#include "longspan/attention/linear_map.h"
#include "longspan/base/error.h"
#include "longspan/kernels/matmul.h"
#include "longspan/kernels/random_numbers.h"
#include "longspan/kernels/total.h"

namespace longspan {
namespace {

using torch::Tensor;

// Normal numbers one after the other (Box & Muller 1958). Not in tensor operations,
// whose last bits depend on where threads cut.
class Normals {
 public:
  explicit Normals(Key key) : key_(key) {}

  double next() {
    if (left_ == 0) draw();
    return four_[--left_];
  }

 private:
  void draw() {
    constexpr double kWords = 0x1p32;
    const auto words = words_at(key_, place_++);
    for (size_t pair = 0; pair < 4; pair += 2) {
      const double radius = std::sqrt(-2 * std::log((words[pair] + 1.0) / kWords));
      const double angle = 2 * std::numbers::pi * words[pair + 1] / kWords;
      four_[pair] = radius * std::cos(angle);
      four_[pair + 1] = radius * std::sin(angle);
    }
    left_ = 4;
  }

  Key key_;
  uint64_t place_ = 0;
  double four_[4] = {};
  int left_ = 0;
};

double product(const double* a, const double* b, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace

Key key_of_new_module() {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  return {
      static_cast<uint64_t>(torch::randint(kMost, {}, torch::kLong).item<int64_t>())};
}

Tensor orthogonal_directions(Key key, int64_t matrices, int64_t rows, int64_t width,
                             bool normal_lengths) {
  Normals normals(key);
  const Tensor result = torch::empty({matrices, rows, width}, torch::kDouble);
  double* const first = result.data_ptr<double>();
  for (int64_t row = 0; row < matrices * rows; ++row) {
    double* const mine = first + row * width;
    for (int64_t i = 0; i < width; ++i) mine[i] = normals.next();
    // Gram and Schmidt, twice against rounding.
    const int64_t before = row % rows % width;
    for (int64_t other = 0; other < 2 * before; ++other) {
      const double* const theirs = mine - (other % before + 1) * width;
      const double part = product(mine, theirs, width);
      for (int64_t i = 0; i < width; ++i) mine[i] -= part * theirs[i];
    }
    const double length = std::sqrt(product(mine, mine, width));
    for (int64_t i = 0; i < width; ++i) mine[i] /= length;
  }
  for (int64_t row = 0; row < matrices * rows; ++row) {
    double square = 0;
    for (int64_t i = 0; i < width; ++i)
      square += normal_lengths ? std::pow(normals.next(), 2) : 1;
    for (int64_t i = 0; i < width; ++i) first[row * width + i] *= std::sqrt(square);
  }
  return result;
}

RandomFeatures::RandomFeatures(torch::nn::Module& owner, const Settings& settings,
                               const Sizes& sizes, bool mirrored)
    : mirrored_(mirrored),
      normal_lengths_(settings.word("lengths") == "chi"),
      redraw_(settings.integer("redraw")) {
  const int64_t features = settings.integer("features");
  require(!mirrored || features % 2 == 0,
          "features must be even where every direction has its opposite, got ",
          features);
  const Tensor first = orthogonal_directions(key_of_new_module(), sizes.key_heads,
                                             mirrored ? features / 2 : features,
                                             sizes.head_width, normal_lengths_);
  directions_ = owner.register_buffer("directions", first.to(torch::kFloat));
  drawn_ = owner.register_buffer("drawn", torch::zeros({1}, torch::kLong));
}

int64_t RandomFeatures::time_drawn() {
  // Reading waits for the device: only after it was written.
  if (version_ != static_cast<int64_t>(drawn_._version())) {
    version_ = static_cast<int64_t>(drawn_._version());
    time_drawn_ = drawn_.item<int64_t>();
  }
  return time_drawn_;
}

void RandomFeatures::begin(Pass& pass) {
  if (!pass.training || redraw_ == 0) return;
  // Taken in any case, so that what is drawn after it is the same in a replay.
  const Key key = pass.draw.key();
  const int64_t now = static_cast<int64_t>(pass.draw.step()) / redraw_;
  if (pass.replay || time_drawn() == now) return;
  const torch::NoGradGuard changing;
  directions_.copy_(orthogonal_directions(key, directions_.size(0), directions_.size(1),
                                          directions_.size(2), normal_lengths_));
  drawn_.fill_(now);
}

Tensor RandomFeatures::directions(const Tensor& x) const {
  const Tensor own = directions_.to(x.scalar_type());
  return of_query_heads(mirrored_ ? torch::cat({own, -own}, 1) : own, x.size(1));
}

Tensor RandomFeatures::logs(const Tensor& x) const {
  const Tensor wide = at_least_float(x);
  const double root = std::sqrt(static_cast<double>(x.size(3)));  // sqrt(d)
  const Tensor along = directions(wide) / std::sqrt(root);
  auto column = x.sizes().vec();
  column[3] = 1;
  const Tensor rest = longspan::sum_to(wide * wide, column) * (-0.5 / root) -
                      0.5 * std::log(static_cast<double>(along.size(1)));
  if (x.is_cuda())  // whose products may round
    return longspan::matmul(wide, along.transpose(1, 2)) + rest;
  // One more direction adds what is the same for all features.
  const Tensor ones = along.new_ones({along.size(0), along.size(1), 1});
  return longspan::matmul(torch::cat({wide, rest}, 3),
                          torch::cat({along, ones}, 2).transpose(1, 2));
}

Tensor RandomFeatures::defined(const Tensor& x) const {
  const Tensor scaled = x / std::pow(static_cast<double>(x.size(3)), 0.25);
  const Tensor along = directions(x);
  const Tensor logs = scaled.matmul(along.transpose(1, 2)) -
                      scaled.square().sum(3, /*keepdim=*/true) / 2;
  return logs.exp() / std::sqrt(static_cast<double>(along.size(1)));
}

}  // namespace longspan
