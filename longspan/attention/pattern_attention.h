// Attention whose pairs are a pattern of positions: what the fixed patterns share.

#pragma once

#include <algorithm>
#include <cmath>
#include <list>
#include <mutex>
#include <optional>
#include <vector>

#include <torch/types.h>

#include "longspan/attention/mechanism.h"
#include "longspan/attention/prepare.h"
#include "longspan/kernels/pattern.h"

namespace longspan {

// What a pattern is made for.
struct Extent {
  int64_t tokens = 0;
  int64_t size = 0;  // what size_for() says
  bool causal = false;

  bool operator==(const Extent&) const = default;
};

// Some of the keys that the queries of a head see.
struct PatternPart {
  Pattern keys;
  // Where tokens should stand so that what a token sees lies together: place p is token
  // order()[p]. None: as they are.
  std::function<std::vector<int64_t>()> order = {};
};

struct HeadPatterns {
  // Each in parts that have no key in common.
  std::vector<std::vector<PatternPart>> distinct;
  std::vector<int32_t> of_head = {0};  // of every head, or one for all
};

// What most rows can that are patterns of positions and nothing else.
inline constexpr Abilities kPatternAbilities{.causal = Causal::optional,
                                             .padding = true,
                                             .decoding = true,
                                             .bias = true,
                                             .segments = true,
                                             .dropout = true,
                                             .grouped = true};

// A size that a pattern takes from the length of a sequence.
inline int64_t square_root(int64_t length) {
  return std::max<int64_t>(std::llround(std::sqrt(static_cast<double>(length))), 1);
}

// A mechanism says its pattern twice: as spans of keys, and by arithmetic for its
// definition. Padding, segments, biases, dropout, global tokens (pass.mask.global: they
// see and are seen by all, in causal passes by those after them) and decoding are done
// here. Layouts are kept for the lengths that were seen last.
class PatternAttention : public Attention {
 public:
  // `longest`: of Sizes, for patterns that take a size from a length.
  explicit PatternAttention(int64_t longest = 0) : longest_(longest) {}

  Sight sight(int64_t tokens, bool causal) override;

  // How many numbers decoding keeps of an example for so many keys.
  static int64_t numbers_kept(int64_t keys, const Sizes& sizes) {
    return keys * (sizes.key_heads * (sizes.head_width + sizes.value_width) + 1);
  }
  // The same where it keeps the keys of all tokens.
  static int64_t all_numbers_kept(const Settings&, const Sizes& sizes, int64_t tokens) {
    return numbers_kept(tokens, sizes);
  }

 protected:
  // The size in causal passes: how long a sequence becomes is not known there, so it is
  // that of the longest.
  int64_t causal_size() const {
    return size_for(longest_ > 0 ? std::optional(longest_) : std::nullopt);
  }

 private:
  // The patterns; they contain causality. Tokens are counted in the order of causality.
  virtual HeadPatterns patterns(const Extent& extent) const = 0;

  // The same pairs, [H|1, N, N] bool, in the order of the sequence.
  virtual torch::Tensor visible(const Extent& extent) const = 0;

  // The size that the pattern takes from the length of a sequence (a stride, a number
  // of blocks), 0 if it takes none. In decoding a length is known only as the longest.
  virtual int64_t size_for(std::optional<int64_t> length) const {
    (void)length;
    return 0;
  }

  // Decoding: keys before token `query` that it or a later one sees.
  virtual Pattern kept() const { return all_keys(); }

  // The tokens in the order of causality; empty: in that of the sequence.
  virtual std::vector<int64_t> sequence(const Extent& extent) const {
    (void)extent;
    return {};
  }

  struct Laid;  // a part of the patterns in tiles

  torch::Tensor run(const torch::Tensor& q, const torch::Tensor& k,
                    const torch::Tensor& v, Pass& pass) override;
  torch::Tensor define(const torch::Tensor& q, const torch::Tensor& k,
                       const torch::Tensor& v, Pass& pass) override;
  torch::Tensor step(const torch::Tensor& q, const torch::Tensor& k,
                     const torch::Tensor& v, Pass& pass);

  // The extents of the examples; one where all have the same.
  std::vector<Extent> extents(const Pass& pass, int64_t tokens) const;
  Extent extent_of(int64_t tokens, int64_t length, bool causal) const;
  std::shared_ptr<const std::vector<Laid>> laid(const Extent& extent);

  int64_t longest_;
  std::mutex mutex_;
  // The last used is the first.
  std::list<std::pair<Extent, std::shared_ptr<const std::vector<Laid>>>> known_;
};

// Positions 0 .. count - 1 as a column [n, 1] of queries and as a row [1, n] of keys,
// for definitions.
struct Positions {
  torch::Tensor query, key;

  explicit Positions(int64_t count)
      : query(torch::arange(count, torch::kLong).unsqueeze(1)),
        key(torch::arange(count, torch::kLong).unsqueeze(0)) {}
};

}  // namespace longspan
