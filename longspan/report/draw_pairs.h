// An SVG of pairs of tokens: a row a query, a column a key, coloured by how one sees
// the other.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <torch/types.h>

namespace longspan::report {

struct PatternPanel {
  std::string label;
  torch::Tensor pairs;  // [rows, columns] uint8 of Sees
};

struct PatternDrawing {
  std::string title, settings = {};
  std::vector<PatternPanel> panels = {};  // one or more, of one size
  int64_t memory_rows = 0, memory_columns = 0;
  bool by_gradients = false;  // which cannot tell how a token is seen
};

// Of its own, with a white ground.
std::string draw(const PatternDrawing& drawing);

}  // namespace longspan::report
