#include "longspan/data/pathfinder.h"

#include <cmath>
#include <queue>

#include "longspan/base/error.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

std::vector<PathfinderImage> images(const PathfinderOptions& options, int count) {
  std::vector<PathfinderImage> made;
  for (int i = 0; i < count; ++i)
    made.push_back(generate_pathfinder(options, mix(Key{7}, static_cast<uint64_t>(i))));
  return made;
}

uint8_t pixel(const PathfinderImage& image, int64_t size, double row, double column) {
  const auto at = [&](double x) {
    return std::clamp<int64_t>(std::lround(x), 0, size - 1);
  };
  return image.pixels[static_cast<size_t>(at(row) * size + at(column))];
}

TEST(Pathfinder, DrawsCurvesOfDashesThatGoOnFromEachOther) {
  for (const char* difficulty : {"easy", "intermediate", "hard"}) {
    const auto options = arena_pathfinder(32, difficulty);
    for (const PathfinderImage& image : images(options, 40)) {
      ASSERT_EQ(image.pixels.size(), 32u * 32u);
      for (const auto& curve : image.curves) {
        ASSERT_EQ(static_cast<int64_t>(curve.size()), options.dashes);
        for (size_t i = 0; i < curve.size(); ++i) {
          const auto& [row, column, angle] = curve[i];
          EXPECT_GE(row, -2);
          EXPECT_LT(row, 34);
          // The middle of a dash is bright.
          EXPECT_GT(pixel(image, 32, row + std::sin(angle), column + std::cos(angle)),
                    0);
          if (i == 0) continue;
          // From one head to the next tail there is about a gap of two margins.
          const double gap = std::hypot(
              row - curve[i - 1].row - 2 * std::sin(curve[i - 1].angle),
              column - curve[i - 1].column - 2 * std::cos(curve[i - 1].angle));
          EXPECT_LT(gap, 2 + 2 * std::sqrt(2.0));
          // Curves never turn back.
          EXPECT_GT(std::cos(angle - curve[i - 1].angle), 0);
        }
      }
    }
  }
}

TEST(Pathfinder, MarksTheEndsOfOneCurveOrOfTwo) {
  constexpr int kImages = 400;
  const auto options = arena_pathfinder(32, "easy");
  int ones = 0;
  for (const PathfinderImage& image : images(options, kImages)) {
    ones += image.label;
    const auto begin = [&](int curve) {
      const auto& dash = image.curves[curve].front();
      return pixel(image, 32, dash.row, dash.column) == 255;
    };
    const auto end = [&](int curve) {
      const auto& dash = image.curves[curve].back();
      return pixel(image, 32, dash.row + 2 * std::sin(dash.angle),
                   dash.column + 2 * std::cos(dash.angle)) == 255;
    };
    const bool one = (begin(0) && end(0)) || (begin(1) && end(1));
    const bool two = (begin(0) && end(1)) || (begin(1) && end(0));
    EXPECT_TRUE(image.label == 1 ? one : two);
  }
  EXPECT_NEAR(ones, kImages / 2, 4 * std::sqrt(kImages) / 2);
}

TEST(Pathfinder, LeavesCurvesApart) {
  // Dashes of different curves do not touch: their lines are further apart than one
  // margin and their thickness.
  const auto options = arena_pathfinder(32, "hard");
  for (const PathfinderImage& image : images(options, 40))
    for (const auto& a : image.curves[0])
      for (const auto& b : image.curves[1])
        for (const double i : {0.0, 1.0, 2.0})
          for (const double j : {0.0, 1.0, 2.0})
            EXPECT_GT(std::hypot(
                          a.row + i * std::sin(a.angle) - b.row - j * std::sin(b.angle),
                          a.column + i * std::cos(a.angle) - b.column -
                              j * std::cos(b.angle)),
                      0.5);
}

TEST(Pathfinder, HasTheOptionsOfTheArena) {
  struct Size {
    int64_t size;
    double dash, thickness, padding, marker, distance, continuity;
    std::vector<double> margins;
    int64_t distractor_dashes;  // of all distractors
  };
  const Size sizes[] = {{32, 2, 0.5, 1, 1.5, 7, 1, {1}, 20},
                        {64, 5, 1, 1, 2.5, 12, 1.8, {1}, 22},
                        {128, 5, 1.5, 1, 3, 20, 1.8, {2, 3}, 35},
                        {256, 5, 2, 22, 5, 27, 1.8, {3}, 30}};
  const std::pair<const char*, int64_t> kinds[] = {
      {"easy", 6}, {"intermediate", 9}, {"hard", 14}};
  for (const Size& size : sizes)
    for (const auto& [difficulty, dashes] : kinds) {
      const auto options = arena_pathfinder(size.size, difficulty);
      EXPECT_EQ(options.size, size.size);
      EXPECT_EQ(options.dashes, dashes);
      EXPECT_EQ(options.distractor_dashes, dashes / 3);
      EXPECT_EQ(options.distractors, size.distractor_dashes / (dashes / 3));
      EXPECT_EQ(options.dash, size.dash);
      EXPECT_EQ(options.thickness, size.thickness);
      EXPECT_EQ(options.margins, size.margins);
      EXPECT_EQ(options.padding, size.padding);
      EXPECT_EQ(options.marker, size.marker);
      EXPECT_EQ(options.distance, size.distance);
      EXPECT_EQ(options.continuity, size.continuity);
    }
}

TEST(Pathfinder, BeginsItsCurvesApartAndLeavesTheBorderFree) {
  for (const int64_t size : {32, 64, 128, 256}) {
    const auto options = arena_pathfinder(size, "easy");
    for (const PathfinderImage& image : images(options, 20)) {
      const auto &a = image.curves[0].front(), &b = image.curves[1].front();
      EXPECT_NEAR(std::hypot(a.row - b.row, a.column - b.column), options.distance,
                  1.5);
      // But for marks, which are at the ends of curves.
      const auto near_an_end = [&](int64_t row, int64_t column) {
        return std::ranges::any_of(image.curves, [&](const auto& curve) {
          const auto &first = curve.front(), &last = curve.back();
          const double reach = options.marker + 1;
          const auto y = static_cast<double>(row), x = static_cast<double>(column);
          return std::hypot(first.row - y, first.column - x) <= reach ||
                 std::hypot(last.row + options.dash * std::sin(last.angle) - y,
                            last.column + options.dash * std::cos(last.angle) - x) <=
                     reach;
        });
      };
      const auto border = static_cast<int64_t>(options.padding);
      for (int64_t row = 0; row < size; ++row)
        for (int64_t column = 0; column < size; ++column) {
          const int64_t in = std::min({row, column, size - 1 - row, size - 1 - column});
          if (in >= border || near_an_end(row, column)) continue;
          EXPECT_EQ(image.pixels[static_cast<size_t>(row * size + column)], 0);
        }
    }
  }
}

TEST(Pathfinder, FindsRoomForNearlyAllDistractors) {
  const auto share = [](int64_t size, const char* difficulty, int count) {
    const auto options = arena_pathfinder(size, difficulty);
    int64_t placed = 0;
    for (const PathfinderImage& image : images(options, count))
      placed += image.distractors;
    return static_cast<double>(placed) /
           static_cast<double>(count * options.distractors);
  };
  EXPECT_GT(share(32, "easy", 60), 0.995);
  EXPECT_GT(share(32, "hard", 60), 0.87);
  EXPECT_GT(share(64, "easy", 40), 0.98);
  EXPECT_GT(share(128, "easy", 20), 0.98);
}

TEST(Pathfinder, TellsALabelWithoutDrawing) {
  for (uint64_t i = 0; i < 20; ++i) {
    const Key key = pathfinder_key(3, i);
    EXPECT_EQ(generate_pathfinder(arena_pathfinder(32, "easy"), key).label,
              pathfinder_label(key));
  }
}

TEST(Pathfinder, GivesOneImageForOneKey) {
  const auto options = arena_pathfinder(64, "intermediate");
  const auto one = images(options, 3), again = images(options, 3);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(one[i].pixels, again[i].pixels);
  EXPECT_NE(one[0].pixels, one[1].pixels);
}

TEST(Pathfinder, DrawsEverySizeOfTheArena) {
  for (const int64_t size : {64, 128, 256}) {
    const PathfinderImage image =
        generate_pathfinder(arena_pathfinder(size, "hard"), Key{3});
    EXPECT_EQ(static_cast<int64_t>(image.pixels.size()), size * size);
    EXPECT_GT(image.distractors, 0);
  }
}

TEST(Pathfinder, RefusesWhatItCannotDraw) {
  const auto refusal = [](const auto& work) {
    try {
      work();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("not refused");
  };
  EXPECT_EQ(refusal([] { arena_pathfinder(33, "easy"); }),
            "pathfinder: images are 32, 64, 128 or 256 pixels wide, got 33");
  EXPECT_EQ(refusal([] { arena_pathfinder(32, "eesy"); }),
            "pathfinder: no difficulty 'eesy'; did you mean 'easy'? there are: easy, "
            "intermediate, hard");
  PathfinderOptions crowded = arena_pathfinder(32, "hard");
  crowded.size = 12;
  EXPECT_NE(refusal([&] { generate_pathfinder(crowded, Key{}); }).find("no room"),
            std::string::npos);
}

}  // namespace
}  // namespace longspan::testing
