#include "longspan/data/images.h"

#include "longspan/base/error.h"
#include "longspan/data/grey_image.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

std::string record(char label, std::initializer_list<int> colours) {
  std::string bytes(1, label);
  for (const int colour : colours)
    bytes += std::string(1024, static_cast<char>(colour));
  return bytes;
}

std::string refusal(const std::string& bytes) {
  Images images(1024);
  try {
    add_cifar(images, bytes, "a.bin");
  } catch (const Error& error) {
    return error.what();
  }
  return "not refused";
}

TEST(Images, AreReadFromCifar) {
  Images images(1024);
  add_cifar(images, record(3, {10, 200, 30}) + record(9, {255, 255, 255}), "a.bin");
  add_cifar(images, record(0, {77}), "b.bin");
  ASSERT_EQ(images.size(), 3);
  EXPECT_EQ(images.label(0), 3);
  EXPECT_EQ(images.image(0)[5], 124);
  EXPECT_EQ(images.image(1)[1023], 255);
  EXPECT_EQ(images.image(2)[0], 77);
}

// As TensorFlow computes it for the Arena, but for a few colours that are just at a
// border.
TEST(Images, HaveTheGreyOfTheArena) {
  constexpr int kStep = 5;
  constexpr float kShare = 1.0f / 255;
  int colours = 0, others = 0;
  for (int red = 0; red < 256; red += kStep)
    for (int green = 0; green < 256; green += kStep)
      for (int blue = 0; blue < 256; blue += kStep) {
        const float grey =
            kShare * red * 0.2989f + kShare * green * 0.5870f + kShare * blue * 0.1140f;
        ++colours;
        others += static_cast<int>(grey * 255.5f) != grey_of(red, green, blue);
      }
  EXPECT_LE(others, colours / 10000);
  for (int value = 0; value < 256; ++value)
    EXPECT_EQ(grey_of(value, value, value), value);
}

TEST(Images, BlackPixelsAreNoPadding) {
  Images images(4);
  const uint8_t some[] = {0, 255, 1, 0};
  images.add(some, 1);
  const Batch batch = images.batch(std::vector<int64_t>{0, 0}, {.tokens = 6});
  EXPECT_TRUE(
      torch::equal(batch.ids[1], torch::tensor({1, 256, 2, 1, 0, 0}).to(torch::kLong)));
  EXPECT_TRUE(torch::equal(batch.tokens[0], batch.ids[0] > 0));
  EXPECT_EQ(batch.real_tokens, 8);
  EXPECT_EQ(batch.answers, 2);
  EXPECT_TRUE(torch::equal(batch.labels, torch::ones(2, torch::kLong)));
}

TEST(Images, OthersHaveOtherFingerprints) {
  const auto print = [](uint8_t pixel, int64_t label) {
    Images images(1);
    images.add(std::span(&pixel, 1), label);
    return images.fingerprint();
  };
  EXPECT_NE(print(1, 0), print(2, 0));
  EXPECT_NE(print(1, 0), print(1, 1));
}

TEST(Images, RefuseWhatIsNoCifar) {
  EXPECT_EQ(
      refusal(""),
      "a.bin: CIFAR-10 has records of 3073 bytes, or 1025 if they are grey, got 0 "
      "bytes");
  EXPECT_EQ(refusal(record(1, {0}).substr(1)),
            "a.bin: CIFAR-10 has records of 3073 bytes, or 1025 if they are grey, got "
            "1024 bytes");
  EXPECT_EQ(refusal(record(1, {0}) + record(10, {0})),
            "a.bin: record 2 must have a label of 0 .. 9, got 10");
}

}  // namespace
}  // namespace longspan::testing
