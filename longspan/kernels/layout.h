// Which keys a query may see, in tiles of 64 queries by 64 keys, built from index
// ranges and never from an N x M object.

#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <torch/types.h>

namespace longspan {

// Keys from .. to - 1.
struct Span {
  int64_t from = 0;
  int64_t to = 0;
};

// Appends the keys that `query` may see. Spans may come in any order, overlap, and
// reach beyond the keys there are.
using Pattern = std::function<void(int64_t query, std::vector<Span>& keys)>;

Pattern all_keys();

// Keys up to position query + shift: causal attention. With N queries that are the last
// of M keys the shift is M - N.
Pattern past_keys(int64_t shift = 0);

// Keys query - before * dilation .. query + after * dilation, in steps of `dilation`.
// With a dilation every key in reach costs time, also those after the last: `after`
// should not be far more than the keys there are.
Pattern window_of_keys(int64_t before, int64_t after, int64_t dilation = 1);

// Keys of the query's own block of `size` positions.
Pattern block_of_keys(int64_t size);

// Keys that any of `patterns` shows, each once.
Pattern any_of(std::vector<Pattern> patterns);

// Keys that both show.
Pattern both_of(Pattern first, Pattern second);

// Consecutive tiles that share a mask.
struct Run {
  int32_t first = 0;
  int32_t count = 0;
  int32_t mask = 0;  // kFull, or the index of a mask tile
};

// Word k holds key k of the tile, its bit q query q; set where the query sees the key.
using MaskTile = std::array<uint64_t, 64>;

// The layout of a call: for every tile of queries the tiles of keys to visit (rows),
// and the same transposed (columns) for the gradients of keys and values. Holds one
// list per pattern; every (example, head) chooses one. Equal mask tiles are stored
// once. A full tile at the ragged end is full as far as there are queries and keys.
//
// Copies share the lists.
class Layout {
 public:
  static constexpr int64_t kTile = 64;
  static constexpr int32_t kFull = -1;

  // Pattern `pattern[example * heads + head]` serves (example, head); an extent of 1
  // stands for all.
  struct Choice {
    int64_t examples = 1;
    int64_t heads = 1;
    std::vector<int32_t> pattern = {0};
  };

  // Every query sees every key.
  Layout(int64_t queries, int64_t keys);
  Layout(int64_t queries, int64_t keys, const Pattern& pattern);
  Layout(int64_t queries, int64_t keys, const std::vector<Pattern>& patterns,
         Choice choice);

  int64_t queries() const;
  int64_t keys() const;
  int64_t patterns() const;
  int64_t query_tiles() const { return (queries() + kTile - 1) / kTile; }
  int64_t key_tiles() const { return (keys() + kTile - 1) / kTile; }
  const Choice& choice() const;

  int64_t pattern_of(int64_t example, int64_t head) const;

  // Runs of key tiles that tile `query_tile` of queries visits, ascending.
  std::span<const Run> row(int64_t pattern, int64_t query_tile) const;
  // Runs of query tiles that visit tile `key_tile` of keys, ascending.
  std::span<const Run> column(int64_t pattern, int64_t key_tile) const;
  std::span<const MaskTile> masks() const;

  // How many (query, key) pairs the pattern shows.
  int64_t pairs(int64_t pattern) const;

  // [queries, keys] bool: for references and pictures, O(N*M).
  torch::Tensor dense(int64_t pattern) const;

 private:
  struct Lists;
  std::shared_ptr<const Lists> lists_;
};

}  // namespace longspan
