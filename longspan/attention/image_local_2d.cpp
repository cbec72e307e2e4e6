// Blocks of an image that share a memory of pixels around them. Parmar et al. 2018,
// arXiv:1802.05751, 2D local attention. Tokens are pixels row by row (with channels, a
// row has width times channels of them); the image may end within a row.
//
// The causal form is causal in the order of blocks, and of pixels within a block: a
// block of queries sees the strip above it, `memory_width` wider on both sides, the
// strip on its left, and itself up to the query.

#include <algorithm>

#include "longspan/attention/pattern_attention.h"
#include "longspan/base/error.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr Setting kSettings[] = {
    {.name = "width",
     .standard = "0",
     .help = "tokens in a row of the image; 0: the square root of the length",
     .least = 0},
    {.name = "height",
     .standard = "0",
     .help = "rows of the image, for decoding; 0: rows of blocks are whole",
     .least = 0},
    {.name = "block_height", .standard = "8", .help = "rows of a block", .least = 1},
    {.name = "block_width", .standard = "16", .help = "columns of a block", .least = 1},
    {.name = "memory_height",
     .standard = "8",
     .help = "rows seen above, and if not causal below, the block",
     .least = 0},
    {.name = "memory_width",
     .standard = "16",
     .help = "columns seen on the left and on the right of the block",
     .least = 0},
};

struct Pixel {
  int64_t row = 0, column = 0;
};

// An image in blocks. A rank is a place in the order of blocks; a band is the blocks
// beside each other. Only the last band may lack pixels.
struct Image {
  int64_t width, block_height, block_width;
  int64_t tokens = 0;

  int64_t band() const { return width * block_height; }

  // Pixels of the band in columns before `column`.
  int64_t left_of(int64_t band_at, int64_t column) const {
    const int64_t pixels = std::min(tokens - band_at * band(), band());
    return pixels / width * column + std::min(pixels % width, column);
  }

  int64_t rank(const Pixel& pixel) const {
    const int64_t band_at = pixel.row / block_height;
    const int64_t first = pixel.column / block_width * block_width;
    const int64_t wide = std::min(block_width, width - first);
    return band_at * band() + left_of(band_at, first) +
           pixel.row % block_height * wide + pixel.column - first;
  }

  Pixel pixel(int64_t rank) const {
    const int64_t band_at = rank / band(), in_band = rank % band();
    int64_t first = 0;
    while (first + block_width < width &&
           left_of(band_at, first + block_width) <= in_band)
      first += block_width;
    const int64_t wide = std::min(block_width, width - first);
    const int64_t in_block = in_band - left_of(band_at, first);
    return {band_at * block_height + in_block / wide, first + in_block % wide};
  }

  // Appends the ranks of a part of a row.
  void add(int64_t row, Span columns, std::vector<Span>& ranks) const {
    const int64_t end = std::min({columns.to, width, tokens - row * width});
    for (int64_t at = std::max<int64_t>(columns.from, 0), next; at < end; at = next) {
      next = std::min((at / block_width + 1) * block_width, end);
      const int64_t from = rank({row, at});
      ranks.push_back({from, from + next - at});
    }
  }

  std::vector<int64_t> tokens_in_order() const {
    std::vector<int64_t> order;
    for (int64_t at = 0; at < tokens; ++at) {
      const auto [row, column] = pixel(at);
      order.push_back(row * width + column);
    }
    return order;
  }
};

// As Extent::size in decoding: tokens come in the order of blocks of the whole image.
constexpr int64_t kWholeImage = -1;

// Bands that a memory of `rows` rows reaches into.
int64_t bands(int64_t block_height, int64_t rows) {
  return (rows + block_height - 1) / block_height;
}

class ImageLocal2d final : public PatternAttention {
 public:
  ImageLocal2d(const Settings& settings, const Sizes&)
      : image_{.width = settings.integer("width"),
               .block_height = settings.integer("block_height"),
               .block_width = settings.integer("block_width")},
        rows_(settings.integer("height")),
        height_(settings.integer("memory_height")),
        width_(settings.integer("memory_width")) {}

  static int64_t state_size(const Settings& settings, const Sizes& sizes,
                            int64_t tokens) {
    const int64_t width = settings.integer("width");
    const int64_t height = settings.integer("block_height");
    const int64_t rows =
        (bands(height, settings.integer("memory_height")) + 1) * height;
    return numbers_kept(width > 0 ? std::min(tokens, rows * width) : tokens, sizes);
  }

  static std::vector<int64_t> tokens_in_order(const Settings& settings,
                                              int64_t tokens) {
    const ImageLocal2d made(settings, {});
    return made.sequence({.tokens = tokens, .size = made.size_for(tokens)});
  }

 private:
  int64_t size_for(std::optional<int64_t> length) const override {
    require(length.has_value() || image_.width > 0,
            "width must be given for decoding, where the length is not known");
    if (!length) return kWholeImage;
    if (image_.width > 0) return 0;
    return square_root(*length);
  }

  Image image(const Extent& extent) const {
    Image image = image_;
    image.tokens = extent.tokens;
    if (extent.size > 0) image.width = extent.size;
    if (extent.size == kWholeImage) {
      image.tokens = rows_ > 0 ? rows_ * image.width
                               : (extent.tokens / image.band() + 1) * image.band();
      require(extent.tokens <= image.tokens, "decodes images of ", rows_, " x ",
              image.width, " tokens, got ", extent.tokens);
    }
    return image;
  }

  std::vector<int64_t> sequence(const Extent& extent) const override {
    return image(extent).tokens_in_order();
  }

  HeadPatterns patterns(const Extent& extent) const override {
    const auto keys = [causal = extent.causal, image = image(extent), height = height_,
                       width = width_](int64_t query, std::vector<Span>& seen) {
      const auto [row_at, column_at] = image.pixel(query);
      const int64_t top = row_at / image.block_height * image.block_height;
      const int64_t left = column_at / image.block_width * image.block_width;
      const Span wide{left - width, left + image.block_width + width};
      const int64_t bottom = top + image.block_height;
      const auto add = [&](int64_t from, int64_t to, Span columns) {
        const int64_t end = std::min(to, image.tokens / image.width + 1);
        for (int64_t row = std::max<int64_t>(from, 0); row < end; ++row)
          image.add(row, columns, seen);
      };
      if (!causal) return add(top - height, bottom + height, wide);
      add(top - height, top, wide);
      add(top, bottom, {left - width, left});
      seen.push_back({image.rank({top, left}), query + 1});
    };
    return {.distinct = {{{.keys = keys}}}};
  }

  Tensor visible(const Extent& extent) const override {
    const Positions at(extent.tokens);
    const int64_t width = image(extent).width;
    const auto between = [](const Tensor& from, const Tensor& x, const Tensor& to) {
      return (x >= from).logical_and(x < to);
    };
    const auto floored = [](const Tensor& x, int64_t unit) {
      return x.div(unit, "floor").mul(unit);
    };
    const Tensor row = at.key.div(width, "floor"), column = at.key.remainder(width);
    const Tensor top = floored(at.query.div(width, "floor"), image_.block_height);
    const Tensor left = floored(at.query.remainder(width), image_.block_width);
    const Tensor bottom = top + image_.block_height, right = left + image_.block_width;
    const Tensor wide = between(left - width_, column, right + width_);
    const Tensor level = between(top, row, bottom);
    Tensor seen = between(top - height_, row, bottom + height_).logical_and(wide);
    if (extent.causal) {
      const Tensor above = between(top - height_, row, top).logical_and(wide);
      const Tensor beside = between(left - width_, column, left).logical_and(level);
      const Tensor own = between(left, column, right)
                             .logical_and(level)
                             .logical_and(at.key <= at.query);
      seen = above.logical_or(beside).logical_or(own);
    }
    return seen.unsqueeze(0);
  }

  Pattern kept() const override {
    return [band = image_.band(), above = bands(image_.block_height, height_)](
               int64_t query, std::vector<Span>& keys) {
      keys.push_back({(query / band - above) * band, query});
    };
  }

  Image image_;             // of no tokens; its width may be 0
  int64_t rows_;            // of the image, in decoding; 0: not known
  int64_t height_, width_;  // of the memory
};

}  // namespace

constinit const Mechanism catalogue::image_local_2d{
    .name = "image_local_2d",
    .summary = "blocks of an image that share a memory of pixels around them",
    .paper = "Parmar et al. 2018, arXiv:1802.05751",
    .classes = "fixed patterns",
    .time = {"N*(block_height + memory_height)*(block_width + 2*memory_width)*d", 1},
    .memory = {"N*d", 1},
    .can = {.causal = Causal::optional,
            .padding = true,
            .decoding = true,
            .segments = true,
            .dropout = true,
            .grouped = true},
    .state =
        "keys and values of the row of blocks so far and of those above that the "
        "memory reaches; tokens come in the order of blocks of an image of `height` "
        "rows",
    .state_size = ImageLocal2d::state_size,
    .order = "blocks of the image, in each row by row",
    .tokens_in_order = ImageLocal2d::tokens_in_order,
    .settings = kSettings,
    .test_settings =
        "{width: 7, height: 10, block_height: 4, block_width: 3, memory_height: 2, "
        "memory_width: 2}",
    .make = made_as<Attention, ImageLocal2d>(),
};

}  // namespace longspan
