// Which keys a query may see, in tiles of 64 queries by 64 keys, built from index
// ranges and never from an N x M object.

#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <torch/types.h>

#include "longspan/kernels/pattern.h"

namespace longspan {

// Consecutive tiles that share a mask.
struct Run {
  int32_t first = 0;
  int32_t count = 0;
  int32_t mask = 0;  // kFull, or the index of a mask tile
};

// Word k holds key k of the tile, its bit q query q; set where the query sees the key.
using MaskTile = std::array<uint64_t, 64>;

// One pattern in tiles: for every tile of queries the tiles of keys to visit (rows),
// and the same transposed (columns) for the gradients of keys and values. Equal mask
// tiles are stored once. A full tile at the ragged end is full as far as there are
// queries and keys.
//
// Copies share the lists.
class Tiles {
 public:
  static constexpr int64_t kTile = 64;
  static constexpr int32_t kFull = -1;

  Tiles(int64_t queries, int64_t keys, const Pattern& pattern);

  int64_t queries() const;
  int64_t keys() const;
  int64_t query_tiles() const { return (queries() + kTile - 1) / kTile; }
  int64_t key_tiles() const { return (keys() + kTile - 1) / kTile; }

  // Runs of key tiles that tile `query_tile` of queries visits, ascending.
  std::span<const Run> row(int64_t query_tile) const;
  // Runs of query tiles that visit tile `key_tile` of keys, ascending.
  std::span<const Run> column(int64_t key_tile) const;
  std::span<const MaskTile> masks() const;

  // How many (query, key) pairs the pattern shows.
  int64_t pairs() const;

  // Whether every query sees every key; whether query i sees keys 0 .. i, of as many
  // keys as queries.
  bool is_all() const;
  bool is_past() const;

  // Whether both have the same lists, one being a copy of the other.
  bool is_same(const Tiles& other) const { return lists_ == other.lists_; }

  // [queries, keys] bool: for references and pictures, O(N*M).
  torch::Tensor dense() const;

 private:
  struct Lists;
  std::shared_ptr<const Lists> lists_;
};

// The layout of a call: one or more patterns, of which every (example, head) chooses
// one.
class Layout {
 public:
  static constexpr int64_t kTile = Tiles::kTile;
  static constexpr int32_t kFull = Tiles::kFull;

  // Pattern `pattern[example * heads + head]` serves (example, head); an extent of 1
  // stands for all.
  struct Choice {
    int64_t examples = 1;
    int64_t heads = 1;
    std::vector<int32_t> pattern = {0};

    bool operator==(const Choice&) const = default;
  };

  // Every query sees every key.
  Layout(int64_t queries, int64_t keys);
  Layout(int64_t queries, int64_t keys, const Pattern& pattern);
  Layout(int64_t queries, int64_t keys, const std::vector<Pattern>& patterns,
         Choice choice);
  // All for as many queries and keys.
  Layout(std::vector<Tiles> patterns, Choice choice);

  int64_t queries() const { return patterns_.front().queries(); }
  int64_t keys() const { return patterns_.front().keys(); }
  int64_t patterns() const { return static_cast<int64_t>(patterns_.size()); }
  int64_t query_tiles() const { return patterns_.front().query_tiles(); }
  int64_t key_tiles() const { return patterns_.front().key_tiles(); }
  const Choice& choice() const { return choice_; }

  int64_t pattern_of(int64_t example, int64_t head) const {
    return choice_.pattern[(choice_.examples == 1 ? 0 : example) * choice_.heads +
                           (choice_.heads == 1 ? 0 : head)];
  }

  // Whether both are put together from the same patterns.
  bool is_same(const Layout& other) const;

  const Tiles& tiles(int64_t pattern) const { return patterns_[pattern]; }
  std::span<const Run> row(int64_t pattern, int64_t query_tile) const {
    return tiles(pattern).row(query_tile);
  }
  std::span<const Run> column(int64_t pattern, int64_t key_tile) const {
    return tiles(pattern).column(key_tile);
  }
  std::span<const MaskTile> masks(int64_t pattern) const {
    return tiles(pattern).masks();
  }
  int64_t pairs(int64_t pattern) const { return tiles(pattern).pairs(); }
  torch::Tensor dense(int64_t pattern) const { return tiles(pattern).dense(); }

 private:
  std::vector<Tiles> patterns_;
  Choice choice_;
};

}  // namespace longspan
