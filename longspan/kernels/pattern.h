// Which keys a query sees, as a function of positions: a small vocabulary from which
// mechanisms put their patterns together.

#pragma once

#include <cstdint>
#include <functional>
#include <vector>

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
Pattern no_keys();

// Keys up to position query + shift: causal attention. With N queries that are the last
// of M keys the shift is M - N.
Pattern past_keys(int64_t shift = 0);

// Keys query - before * dilation .. query + after * dilation, in steps of `dilation`.
// With a dilation every key in reach costs time, also those after the last: `after`
// should not be far more than the keys there are.
Pattern window_of_keys(int64_t before, int64_t after, int64_t dilation = 1);

// Keys of the query's own block of `size` positions, and of so many blocks before and
// after it.
Pattern block_of_keys(int64_t size, int64_t before = 0, int64_t after = 0);

// Positions are blocks of `size`; those of block b see the blocks blocks[b]. Positions
// beyond the listed blocks see nothing.
Pattern listed_blocks(int64_t size, std::vector<std::vector<int64_t>> blocks);

// Of `count` keys those whose distance to the query is a multiple of `stride`.
Pattern stride_of_keys(int64_t stride, int64_t count);

// The same keys for every query.
Pattern columns_of_keys(std::vector<Span> keys);

// `rows` says for queries in one of the spans, `others` for all others.
Pattern rows_of_queries(std::vector<Span> queries, Pattern rows, Pattern others);

// Keys that any of `patterns` shows, each once.
Pattern any_of(std::vector<Pattern> patterns);

// Keys that both show.
Pattern both_of(Pattern first, Pattern second);

// Keys that the first shows and the second does not.
Pattern but_not(Pattern first, Pattern second);

// The pattern among positions that stand in another order: place p is position
// order[p], for queries and for keys. Each position of the order is in it once; keys
// that are not in it are not seen.
Pattern in_order(Pattern pattern, std::vector<int64_t> order);

// The order 0, s, 2s, .., 1, s + 1, ..: what `stride` apart stood next to each other.
std::vector<int64_t> by_residue(int64_t stride, int64_t count);

// Sorts spans, cuts them to 0 .. end - 1 and joins those that touch.
void tidy(std::vector<Span>& spans, int64_t end);

}  // namespace longspan
