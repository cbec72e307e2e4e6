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

constexpr int kPairTries = 5;        // of the second curve, for one first one
constexpr int kDistractorTries = 5;  // of one distractor
constexpr int kDashTries = 3;
constexpr double kLeastRoom = 0.01;    // share of free pixels a distractor needs
constexpr double kLeastWeight = 1e-4;  // of all places a dash could go on to
constexpr double kTouching = 1.8;      // of two masks, each 1 where it is whole

struct Point {
  double row = 0, column = 0;
};

Point moved(Point from, double angle, double by) {
  return {from.row + by * std::sin(angle), from.column + by * std::cos(angle)};
}

// Like a pixel's number, coordinates are rounded up.
Point on_pixel(Point point) { return {std::ceil(point.row), std::ceil(point.column)}; }

double radians(double degrees) { return degrees * std::numbers::pi / 180; }

// The difference of two angles, 0 .. pi.
double between(double a, double b) {
  const double turn = std::fabs(std::remainder(a - b, 2 * std::numbers::pi));
  return std::min(turn, std::numbers::pi);
}

// Numbers of pixels, in a part of the image.
struct Patch {
  int64_t top = 0, left = 0, height = 0, width = 0;
  std::vector<double> values = {};

  double& at(int64_t row, int64_t column) {
    return values[static_cast<size_t>((row - top) * width + column - left)];
  }
};

// How much of each pixel is within `radius` of the line, in 0 .. 1, by the distance of
// the pixel's middle.
Patch drawn(Point from, Point to, double radius, int64_t size) {
  const double around = radius + 1;
  const auto lower = [&](double a, double b) {
    return std::clamp<int64_t>(
        static_cast<int64_t>(std::floor(std::min(a, b) - around)), 0, size);
  };
  const auto upper = [&](double a, double b) {
    return std::clamp<int64_t>(
        static_cast<int64_t>(std::ceil(std::max(a, b) + around)) + 1, 0, size);
  };
  Patch patch{.top = lower(from.row, to.row), .left = lower(from.column, to.column)};
  patch.height = std::max<int64_t>(0, upper(from.row, to.row) - patch.top);
  patch.width = std::max<int64_t>(0, upper(from.column, to.column) - patch.left);
  patch.values.reserve(static_cast<size_t>(patch.height * patch.width));
  const double rows = to.row - from.row, columns = to.column - from.column;
  const double square = std::max(rows * rows + columns * columns, 1e-12);
  for (int64_t row = patch.top; row < patch.top + patch.height; ++row)
    for (int64_t column = patch.left; column < patch.left + patch.width; ++column) {
      const double down = static_cast<double>(row) - from.row,
                   right = static_cast<double>(column) - from.column;
      const double along =
          std::clamp((down * rows + right * columns) / square, 0.0, 1.0);
      const double distance = std::hypot(down - along * rows, right - along * columns);
      patch.values.push_back(std::clamp(radius + 0.5 - distance, 0.0, 1.0));
    }
  return patch;
}

// Grows dashed curves in one image.
class Artist {
 public:
  Artist(const PathfinderOptions& options, Key key)
      : options_(options),
        random_(key),
        margin_(options.margins[random_.below(
            static_cast<uint32_t>(options.margins.size()))]) {}

  // Nothing if the two curves found no room.
  std::optional<PathfinderImage> draw(int label) {
    clear();
    Curve pair[2];
    if (!grow_pair(pair)) return std::nullopt;
    PathfinderImage image{.label = label, .margin = margin_};
    for (const Curve& curve : pair) paint(curve);
    for (int64_t i = 0; i < options_.distractors; ++i)
      if (const auto curve = distractor()) {
        paint(*curve);
        ++image.distractors;
      }
    const uint32_t origin = random_.below(2);
    const uint32_t other = label == 1 ? origin : 1 - origin;
    mark(pair[origin].dashes.front().tail);
    mark(pair[other].dashes.back().head);
    for (int i = 0; i < 2; ++i)
      for (const Dash& dash : pair[i].dashes)
        image.curves[i].push_back({dash.tail.row, dash.tail.column, dash.angle});
    for (const double value : pixels_)
      image.pixels.push_back(static_cast<uint8_t>(std::lround(255 * value)));
    return image;
  }

 private:
  struct Dash {
    Point tail, head, pivot;
    double angle = 0;
    Patch mask = {};  // with the margin
  };
  struct Curve {
    std::vector<Dash> dashes = {};
  };

  int64_t size() const { return options_.size; }
  size_t number(int64_t row, int64_t column) const {
    return static_cast<size_t>(row * size() + column);
  }
  bool is_inside(Point point) const {
    const auto side = static_cast<double>(size());
    return point.row >= 0 && point.column >= 0 && point.row < side &&
           point.column < side;
  }

  void clear() {
    const auto count = static_cast<size_t>(size() * size());
    mask_.assign(count, 0);
    pixels_.assign(count, 0);
    block_border(mask_, options_.padding);
  }

  void block_border(std::vector<double>& mask, double width) const {
    const auto free_to = static_cast<double>(size()) - width;
    for (int64_t row = 0; row < size(); ++row)
      for (int64_t column = 0; column < size(); ++column) {
        const auto y = static_cast<double>(row), x = static_cast<double>(column);
        if (y < width || x < width || y >= free_to || x >= free_to)
          mask[number(row, column)] = 1;
      }
  }

  Dash dash_at(Point tail, double angle) const {
    Dash dash{.tail = tail,
              .head = moved(tail, angle, options_.dash),
              .pivot = moved(tail, angle, -margin_),
              .angle = angle};
    dash.mask = drawn(dash.tail, dash.head, options_.thickness / 2 + margin_, size());
    return dash;
  }

  bool has_room(Dash& dash) {
    if (!is_inside(dash.tail) || !is_inside(dash.head)) return false;
    Patch& mask = dash.mask;
    for (int64_t row = mask.top; row < mask.top + mask.height; ++row)
      for (int64_t column = mask.left; column < mask.left + mask.width; ++column)
        if (mask_[number(row, column)] + mask.at(row, column) >= kTouching)
          return false;
    return true;
  }

  void block(Dash& dash) {
    Patch& mask = dash.mask;
    for (int64_t row = mask.top; row < mask.top + mask.height; ++row)
      for (int64_t column = mask.left; column < mask.left + mask.width; ++column) {
        double& value = mask_[number(row, column)];
        value = std::min(1.0, value + mask.at(row, column));
      }
  }

  // The most that is closed where a dash would reach that ends in this pixel.
  double closed_around(Point at) const {
    const double reach = options_.thickness / 2 + margin_;
    const auto whole = static_cast<int64_t>(std::ceil(reach));
    const auto row = static_cast<int64_t>(at.row),
               column = static_cast<int64_t>(at.column);
    double most = 0;
    for (int64_t i = -whole; i <= whole; ++i)
      for (int64_t j = -whole; j <= whole; ++j) {
        if (std::hypot(i, j) > reach) continue;
        const int64_t y = row + i, x = column + j;
        if (y < 0 || x < 0 || y >= size() || x >= size()) return 1;
        most = std::max(most, mask_[number(y, x)]);
      }
    return most;
  }

  double drawn_degrees() { return static_cast<double>(random_.below(360)) - 180; }

  // A first dash anywhere that is free, `away` from the border.
  std::optional<Dash> seed(double away) {
    const double angle = radians(drawn_degrees());
    std::vector<double> closed = mask_;
    block_border(closed, away);
    std::vector<size_t> open;
    for (size_t i = 0; i < closed.size(); ++i)
      if (closed[i] < 0.5) open.push_back(i);
    const auto all = static_cast<double>(closed.size());
    if (open.empty() || static_cast<double>(open.size()) < kLeastRoom * all)
      return std::nullopt;
    for (int i = 0; i < kDashTries; ++i) {
      const size_t chosen = open[random_.below(static_cast<uint32_t>(open.size()))];
      const auto pixel = static_cast<int64_t>(chosen);
      Dash dash = dash_at(
          {static_cast<double>(pixel / size()), static_cast<double>(pixel % size())},
          angle);
      if (has_room(dash)) return dash;
    }
    return std::nullopt;
  }

  // A first dash at the given distance from another's tail.
  std::optional<Dash> seed_beside(Point tail) {
    for (int i = 0; i < kDashTries; ++i) {
      const double towards = radians(drawn_degrees());
      Dash dash = dash_at(on_pixel(moved(tail, towards, options_.distance)),
                          radians(drawn_degrees()));
      if (has_room(dash)) return dash;
    }
    return std::nullopt;
  }

  // One dash more; false if there is no room. What it leaves behind is closed to all
  // others, itself not yet, so that the next may touch it; nor is the last of `beside`.
  bool extend(Curve& curve, Curve* beside = nullptr) {
    Dash& last = curve.dashes.back();
    const Point pivot =
        on_pixel(moved(last.pivot, last.angle, options_.dash + 2 * margin_));
    const double reach = options_.dash + margin_;
    std::vector<Point> ends;
    std::vector<double> up_to;  // sums of weights
    const auto steps = static_cast<int>(std::ceil(2 * std::numbers::pi * reach));
    double sum = 0;
    for (int i = 0; i < steps; ++i) {
      const Point end = on_pixel(moved(pivot, 2 * std::numbers::pi * i / steps, reach));
      const bool known = std::ranges::any_of(ends, [&](const Point& other) {
        return other.row == end.row && other.column == end.column;
      });
      if (known || !is_inside(end)) continue;
      const double angle = std::atan2(end.row - pivot.row, end.column - pivot.column);
      const double turn = std::min(options_.continuity * between(angle, last.angle),
                                   std::numbers::pi / 2);
      const double straight = std::max(std::cos(turn), 0.0);
      sum += (1 - closed_around(end)) * straight * straight;
      ends.push_back(end);
      up_to.push_back(sum);
    }
    if (sum < kLeastWeight) return false;
    for (int i = 0; i < kDashTries; ++i) {
      const double drawn_share = random_.share() * sum;
      const auto chosen = std::min<int64_t>(
          std::ranges::upper_bound(up_to, drawn_share) - up_to.begin(),
          std::ssize(ends) - 1);
      const Point head = ends[static_cast<size_t>(chosen)];
      const double angle = std::atan2(head.row - pivot.row, head.column - pivot.column);
      Dash dash = dash_at(moved(head, angle, -options_.dash), angle);
      dash.head = head;
      dash.pivot = pivot;
      if (!has_room(dash) || (beside && overlap(dash, beside->dashes.back()))) continue;
      block(last);
      curve.dashes.push_back(std::move(dash));
      return true;
    }
    return false;
  }

  bool grow_pair(Curve (&pair)[2]) {
    const std::vector<double> before = mask_;
    for (int i = 0; i < kPairTries; ++i) {
      mask_ = before;
      auto first = seed(2 * options_.distance);
      if (!first) first = seed(options_.padding);
      if (!first) continue;
      auto second = seed_beside(first->tail);
      if (!second) continue;
      pair[0].dashes = {std::move(*first)};
      pair[1].dashes = {std::move(*second)};
      bool grown = !overlap(pair[0].dashes[0], pair[1].dashes[0]);
      for (int64_t dash = 1; dash < options_.dashes && grown; ++dash)
        grown = extend(pair[0], &pair[1]) && extend(pair[1], &pair[0]);
      if (!grown) continue;
      for (Curve* curve : {&pair[0], &pair[1]}) block(curve->dashes.back());
      return true;
    }
    return false;
  }

  // Whether two dashes, which are not closed to each other, come too near.
  static bool overlap(Dash& a, Dash& b) {
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
    const std::vector<double> before = mask_;
    for (int i = 0; i < kDistractorTries; ++i) {
      mask_ = before;
      auto first = seed(options_.padding);
      if (!first) return std::nullopt;
      Curve curve;
      curve.dashes.push_back(std::move(*first));
      bool grown = true;
      for (int64_t dash = 1; dash < options_.distractor_dashes && grown; ++dash)
        grown = extend(curve);
      if (!grown) continue;
      block(curve.dashes.back());
      return curve;
    }
    mask_ = before;
    return std::nullopt;
  }

  void lay(Patch& patch) {
    for (int64_t row = patch.top; row < patch.top + patch.height; ++row)
      for (int64_t column = patch.left; column < patch.left + patch.width; ++column) {
        double& pixel = pixels_[number(row, column)];
        pixel = std::max(pixel, patch.at(row, column));
      }
  }

  void paint(const Curve& curve) {
    for (const Dash& dash : curve.dashes) {
      Patch patch = drawn(dash.tail, dash.head, options_.thickness / 2, size());
      lay(patch);
    }
  }

  void mark(Point at) {
    Patch patch = drawn(at, at, options_.marker, size());
    lay(patch);
  }

  const PathfinderOptions& options_;
  RandomWords random_;
  double margin_;
  std::vector<double> mask_;    // 1 where nothing may be drawn any more
  std::vector<double> pixels_;  // 0 .. 1
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

PathfinderImage generate_pathfinder(const PathfinderOptions& options, Key key) {
  require(options.size >= 8 && options.dashes >= 1 && options.distractor_dashes >= 1 &&
              options.dash >= 1 && !options.margins.empty(),
          "pathfinder: images of 8 pixels or more and curves of one dash or more of ",
          "one pixel or more, got ", options.size, ", ", options.dashes, " and ",
          options.dash);
  RandomWords first(key);
  const int label = static_cast<int>(first.below(2));
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
