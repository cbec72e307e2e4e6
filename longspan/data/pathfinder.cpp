#include "longspan/data/pathfinder.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>

#include "longspan/base/error.h"
#include "longspan/base/words.h"
#include "longspan/data/random_words.h"

namespace longspan {
namespace {

constexpr int kPairTries = 5;        // of two curves, before the image is begun anew
constexpr int kDistractorTries = 5;  // of one distractor
constexpr int kDashTries = 3;
// Free places are found by drawing any: where this many were none, fewer than a
// hundredth are free.
constexpr int kSeedDraws = 500;
constexpr double kLeastWeight = 1e-4;  // of all places a dash could go on to
constexpr float kTouching = 1.8f;      // of two masks, each 1 where it is whole

struct Point {
  double row = 0, column = 0;
};

Point moved(Point from, double angle, double by) {
  return {from.row + by * std::sin(angle), from.column + by * std::cos(angle)};
}

// Like a pixel's number, coordinates are rounded up.
Point on_pixel(Point point) { return {std::ceil(point.row), std::ceil(point.column)}; }

double radians(double degrees) { return degrees * std::numbers::pi / 180; }

// The difference of two angles, both within half a turn of 0: 0 .. pi.
double between(double a, double b) {
  const double turn = std::fabs(a - b);
  return turn > std::numbers::pi ? 2 * std::numbers::pi - turn : turn;
}

// Numbers of pixels, in a part of the image.
struct Patch {
  int64_t top = 0, left = 0, height = 0, width = 0;
  std::vector<float> values = {};

  float at(int64_t row, int64_t column) const {
    return values[static_cast<size_t>((row - top) * width + column - left)];
  }
};

// How much of each pixel is within `radius` of the line, in 0 .. 1, by the distance of
// the pixel's middle.
Patch drawn(Point from, Point to, double radius, int64_t size) {
  const auto lower = [&](double a, double b) {
    return std::clamp<int64_t>(
        static_cast<int64_t>(std::floor(std::min(a, b) - radius)), 0, size);
  };
  const auto upper = [&](double a, double b) {
    return std::clamp<int64_t>(
        static_cast<int64_t>(std::ceil(std::max(a, b) + radius)) + 1, 0, size);
  };
  Patch patch{.top = lower(from.row, to.row), .left = lower(from.column, to.column)};
  patch.height = std::max<int64_t>(0, upper(from.row, to.row) - patch.top);
  patch.width = std::max<int64_t>(0, upper(from.column, to.column) - patch.left);
  patch.values.resize(static_cast<size_t>(patch.height * patch.width));
  const auto rows = static_cast<float>(to.row - from.row),
             columns = static_cast<float>(to.column - from.column);
  const float square = std::max(rows * rows + columns * columns, 1e-12f);
  const auto outside = static_cast<float>(radius + 0.5);
  float* value = patch.values.data();
  for (int64_t row = patch.top; row < patch.top + patch.height; ++row) {
    const auto down = static_cast<float>(static_cast<double>(row) - from.row);
    for (int64_t column = patch.left; column < patch.left + patch.width; ++column) {
      const auto right = static_cast<float>(static_cast<double>(column) - from.column);
      const float along =
          std::clamp((down * rows + right * columns) / square, 0.0f, 1.0f);
      const float y = down - along * rows, x = right - along * columns;
      *value++ = std::clamp(outside - std::sqrt(y * y + x * x), 0.0f, 1.0f);
    }
  }
  return patch;
}

// Grows dashed curves in one image.
class Artist {
 public:
  Artist(const PathfinderOptions& options, Key key)
      : options_(options),
        random_(key),
        margin_(
            options
                .margins[random_.below(static_cast<uint32_t>(options.margins.size()))]),
        blank_(with_border()) {
    // A dash ends on a circle around its pivot, at steps of a pixel.
    const double reach = options_.dash + margin_;
    const auto steps = static_cast<int>(std::ceil(2 * std::numbers::pi * reach));
    for (int i = 0; i < steps; ++i) {
      const Point end = on_pixel(moved({}, 2 * std::numbers::pi * i / steps, reach));
      const bool known = std::ranges::any_of(ends_, [&](const End& other) {
        return other.row == end.row && other.column == end.column;
      });
      if (!known)
        ends_.push_back({end.row, end.column, std::atan2(end.row, end.column)});
    }
  }

  // Nothing if the two curves found no room.
  std::optional<PathfinderImage> draw(int label) {
    Curve pair[2];
    if (!grow_pair(pair)) return std::nullopt;
    PathfinderImage image{.label = label, .margin = margin_};
    pixels_.assign(blank_.size(), 0);
    for (const Curve& curve : pair) paint(curve);
    for (int64_t i = 0; i < options_.distractors; ++i)
      if (const auto curve = distractor()) {
        paint(*curve);
        ++image.distractors;
      }
    const uint32_t origin = random_.below(2);
    const uint32_t other = label == 1 ? origin : 1 - origin;
    mark(pair[origin].front().tail);
    mark(pair[other].back().head);
    for (int i = 0; i < 2; ++i)
      for (const Dash& dash : pair[i])
        image.curves[i].push_back({dash.tail.row, dash.tail.column, dash.angle});
    for (const float value : pixels_)
      image.pixels.push_back(static_cast<uint8_t>(std::lround(255 * value)));
    return image;
  }

 private:
  struct Dash {
    Point tail, head, pivot;
    double angle = 0;
    Patch mask = {};  // with the margin
  };
  using Curve = std::vector<Dash>;
  struct End {
    double row = 0, column = 0, angle = 0;  // seen from the pivot
  };

  int64_t size() const { return options_.size; }
  size_t number(int64_t row, int64_t column) const {
    return static_cast<size_t>(row * size() + column);
  }
  float& mask_at(Point pixel) {
    return mask_[number(static_cast<int64_t>(pixel.row),
                        static_cast<int64_t>(pixel.column))];
  }
  bool is_inside(Point point) const {
    const auto side = static_cast<double>(size());
    return point.row >= 0 && point.column >= 0 && point.row < side &&
           point.column < side;
  }

  // The mask of an image without curves.
  std::vector<float> with_border() const {
    std::vector<float> mask(static_cast<size_t>(size() * size()));
    const auto free_to = static_cast<double>(size()) - options_.padding;
    for (int64_t row = 0; row < size(); ++row)
      for (int64_t column = 0; column < size(); ++column) {
        const auto y = static_cast<double>(row), x = static_cast<double>(column);
        const bool inside = y >= options_.padding && x >= options_.padding &&
                            y < free_to && x < free_to;
        mask[number(row, column)] = inside ? 0.0f : 1.0f;
      }
    return mask;
  }

  Dash dash_at(Point tail, double angle) const {
    Dash dash{.tail = tail,
              .head = moved(tail, angle, options_.dash),
              .pivot = moved(tail, angle, -margin_),
              .angle = angle};
    return dash;
  }

  // Draws the mask of a dash; false if it touches what is closed.
  bool fits(Dash& dash) {
    if (!is_inside(dash.tail) || !is_inside(dash.head)) return false;
    dash.mask = drawn(dash.tail, dash.head, options_.thickness / 2 + margin_, size());
    const Patch& mask = dash.mask;
    const float* value = mask.values.data();
    for (int64_t row = mask.top; row < mask.top + mask.height; ++row) {
      const float* const closed = &mask_[number(row, mask.left)];
      for (int64_t i = 0; i < mask.width; ++i)
        if (closed[i] + *value++ >= kTouching) return false;
    }
    return true;
  }

  void lay(const Patch& patch, std::vector<float>& onto) const {
    const float* value = patch.values.data();
    for (int64_t row = patch.top; row < patch.top + patch.height; ++row) {
      float* const to = &onto[number(row, patch.left)];
      for (int64_t i = 0; i < patch.width; ++i, ++value)
        to[i] = std::max(to[i], *value);
    }
  }

  void block(const Dash& dash) { lay(dash.mask, mask_); }

  // The most that is closed within a margin of a pixel.
  float closed_around(Point at) const {
    const auto whole = static_cast<int64_t>(std::ceil(margin_));
    const auto row = static_cast<int64_t>(at.row),
               column = static_cast<int64_t>(at.column);
    float most = 0;
    for (int64_t i = -whole; i <= whole; ++i)
      for (int64_t j = -whole; j <= whole; ++j) {
        if (static_cast<double>(i * i + j * j) > margin_ * margin_) continue;
        const int64_t y = row + i, x = column + j;
        if (y < 0 || x < 0 || y >= size() || x >= size()) return 1;
        most = std::max(most, mask_[number(y, x)]);
      }
    return most;
  }

  double drawn_angle() {
    return radians(static_cast<double>(random_.below(360)) - 180);
  }

  // A first dash where one of a drawn angle fits, its tail `away` from the border;
  // nothing where there is hardly such a place.
  std::optional<Dash> seed(double away) {
    const auto first = static_cast<int64_t>(std::ceil(away));
    const int64_t side = size() - 2 * first;
    if (side <= 0) return std::nullopt;
    const double angle = drawn_angle();
    const auto place = [&] {
      return static_cast<double>(first + random_.below(static_cast<uint32_t>(side)));
    };
    for (int i = 0; i < kSeedDraws; ++i) {
      const double row = place(), column = place();
      if (mask_at({row, column}) + 1 >= kTouching) continue;
      if (Dash dash = dash_at({row, column}, angle); fits(dash)) return dash;
    }
    return std::nullopt;
  }

  // A first dash at the given distance from another's tail.
  std::optional<Dash> seed_beside(Point tail) {
    for (int i = 0; i < kDashTries; ++i) {
      const Point beside = on_pixel(moved(tail, drawn_angle(), options_.distance));
      if (Dash dash = dash_at(beside, drawn_angle()); fits(dash)) return dash;
    }
    return std::nullopt;
  }

  // One dash more; false if there is no room. What it leaves behind is closed to all
  // others, itself not yet, so that the next may touch it; nor is the last of `beside`.
  bool extend(Curve& curve, const Curve* beside = nullptr) {
    const Dash& last = curve.back();
    const Point pivot =
        on_pixel(moved(last.pivot, last.angle, options_.dash + 2 * margin_));
    up_to_.clear();
    double sum = 0;
    for (const End& end : ends_) {
      const double turn = options_.continuity * between(end.angle, last.angle);
      const Point at{pivot.row + end.row, pivot.column + end.column};
      if (turn < std::numbers::pi / 2 && is_inside(at)) {
        const double straight = std::cos(turn);
        sum += (1 - closed_around(at)) * straight * straight;
      }
      up_to_.push_back(sum);
    }
    if (sum < kLeastWeight) return false;
    for (int i = 0; i < kDashTries; ++i) {
      const auto chosen = std::min<int64_t>(
          std::ranges::upper_bound(up_to_, random_.share() * sum) - up_to_.begin(),
          std::ssize(ends_) - 1);
      const End& end = ends_[static_cast<size_t>(chosen)];
      const Point head{pivot.row + end.row, pivot.column + end.column};
      Dash dash{.tail = moved(head, end.angle, -options_.dash),
                .head = head,
                .pivot = pivot,
                .angle = end.angle};
      if (!fits(dash) || (beside && overlap(dash, beside->back()))) continue;
      block(last);
      curve.push_back(std::move(dash));
      return true;
    }
    return false;
  }

  bool grow_pair(Curve (&pair)[2]) {
    for (int i = 0; i < kPairTries; ++i) {
      mask_ = blank_;
      auto first = seed(2 * options_.distance);
      if (!first) first = seed(options_.padding);
      if (!first) continue;
      auto second = seed_beside(first->tail);
      if (!second || overlap(*first, *second)) continue;
      pair[0] = {std::move(*first)};
      pair[1] = {std::move(*second)};
      bool grown = true;
      for (int64_t dash = 1; dash < options_.dashes && grown; ++dash)
        grown = extend(pair[0], &pair[1]) && extend(pair[1], &pair[0]);
      if (!grown) continue;
      for (const Curve& curve : pair) block(curve.back());
      return true;
    }
    return false;
  }

  // Whether two dashes, which are not closed to each other, come too near.
  static bool overlap(const Dash& a, const Dash& b) {
    const int64_t top = std::max(a.mask.top, b.mask.top),
                  left = std::max(a.mask.left, b.mask.left),
                  bottom =
                      std::min(a.mask.top + a.mask.height, b.mask.top + b.mask.height),
                  right =
                      std::min(a.mask.left + a.mask.width, b.mask.left + b.mask.width);
    for (int64_t row = top; row < bottom; ++row)
      for (int64_t column = left; column < right; ++column)
        if (a.mask.at(row, column) + b.mask.at(row, column) >= kTouching) return true;
    return false;
  }

  std::optional<Curve> distractor() {
    const std::vector<float> before = mask_;
    for (int i = 0; i < kDistractorTries; ++i) {
      auto first = seed(options_.padding);
      if (!first) return std::nullopt;
      Curve curve = {std::move(*first)};
      bool grown = true;
      for (int64_t dash = 1; dash < options_.distractor_dashes && grown; ++dash)
        grown = extend(curve);
      if (grown) {
        block(curve.back());
        return curve;
      }
      mask_ = before;
    }
    return std::nullopt;
  }

  void paint(const Curve& curve) {
    for (const Dash& dash : curve)
      lay(drawn(dash.tail, dash.head, options_.thickness / 2, size()), pixels_);
  }

  void mark(Point at) { lay(drawn(at, at, options_.marker, size()), pixels_); }

  const PathfinderOptions& options_;
  RandomWords random_;
  double margin_;
  std::vector<End> ends_;
  std::vector<float> blank_;   // the mask before there are curves
  std::vector<float> mask_;    // 1 where nothing may be drawn any more
  std::vector<float> pixels_;  // 0 .. 1
  std::vector<double> up_to_;  // sums of the weights of ends
};

}  // namespace

PathfinderOptions arena_pathfinder(int64_t size, std::string_view difficulty) {
  PathfinderOptions options{.size = size};
  int64_t dashes_of_distractors = 20;
  switch (size) {
    case 32: break;
    case 64:
      options = {.size = 64,
                 .dash = 5,
                 .thickness = 1,
                 .marker = 2.5,
                 .distance = 12,
                 .continuity = 1.8};
      dashes_of_distractors = 22;
      break;
    case 128:
      options = {.size = 128,
                 .dash = 5,
                 .thickness = 1.5,
                 .margins = {2, 3},
                 .marker = 3,
                 .distance = 20,
                 .continuity = 1.8};
      dashes_of_distractors = 35;
      break;
    case 256:
      options = {.size = 256,
                 .dash = 5,
                 .thickness = 2,
                 .margins = {3},
                 .padding = 22,
                 .marker = 5,
                 .distance = 27,
                 .continuity = 1.8};
      dashes_of_distractors = 30;
      break;
    default: fail("pathfinder: images are 32, 64, 128 or 256 pixels wide, got ", size);
  }
  if (difficulty == "easy") {
    options.dashes = 6;
  } else if (difficulty == "intermediate") {
    options.dashes = 9;
  } else {
    require(difficulty == "hard", "pathfinder: no difficulty '", difficulty, "'",
            hint(difficulty, {"easy", "intermediate", "hard"}));
    options.dashes = 14;
  }
  options.distractor_dashes = options.dashes / 3;
  options.distractors = dashes_of_distractors / options.distractor_dashes;
  return options;
}

int pathfinder_label(Key key) { return static_cast<int>(RandomWords(key).below(2)); }

PathfinderImage generate_pathfinder(const PathfinderOptions& options, Key key) {
  require(options.size >= 8 && options.dashes >= 1 && options.distractor_dashes >= 1 &&
              options.dash >= 1 && !options.margins.empty(),
          "pathfinder: images of 8 pixels or more and curves of one dash or more of ",
          "one pixel or more, got ", options.size, ", ", options.dashes, " and ",
          options.dash);
  const int label = pathfinder_label(key);
  // A whole image may find no room for its curves.
  constexpr uint64_t kMostImages = 10000;
  for (uint64_t number = 1; number <= kMostImages; ++number) {
    Artist artist(options, mix(key, number));
    if (auto image = artist.draw(label)) return *std::move(image);
  }
  fail("pathfinder: two curves of ", options.dashes, " dashes find no room in ",
       options.size, " x ", options.size, " pixels");
}

}  // namespace longspan
