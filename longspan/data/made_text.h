// Made-up text, to try a model of text without one's own: simple sentences in
// paragraphs, each about somebody whose name comes back.

#pragma once

#include <cstdint>
#include <string>

namespace longspan {

// About `size` bytes of whole paragraphs, a line each; the same for one seed.
std::string make_text(int64_t size, uint64_t seed);

}  // namespace longspan
