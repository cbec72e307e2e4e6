// Words in pictures.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace longspan::report {

constexpr int64_t kLetter = 7;  // the width of a letter at most, as a rule, in pixels

std::string escaped(std::string_view text);

// A text at (x, y), with more attributes: " font-size=\"10\"".
std::string words(double x, double y, std::string_view text,
                  std::string_view attributes = "");

// Upwards, ending or centred at (x, y) as `anchor` says.
std::string upward(double x, double y, std::string_view text, const char* anchor);

// Lines of at most `width` pixels, broken after commas.
std::vector<std::string> lines_of(const std::string& text, int64_t width);

}  // namespace longspan::report
