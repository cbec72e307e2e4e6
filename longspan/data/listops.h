// ListOps at the lengths of the Long Range Arena: nested operations on lists of digits,
// to be computed from the text. Nangia & Bowman 2018, arXiv:1804.06028; Tay et al.
// 2020, arXiv:2011.04006.
//
// The generator has the semantics of the Long Range Arena's, with a seed.

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace longspan {

// A token of an expression, in the order of reading: digits are themselves.
enum class ListOp : uint8_t {
  min = 10,
  max,
  median,  // of an even number of values the mean of the middle two, cut to a digit
  sum,     // modulo 10
  first,
  last,
  close,
};

using Expression = std::vector<uint8_t>;  // digits 0 .. 9 and ListOps

struct ListOpsExample {
  Expression expression;
  int label = 0;
};

struct ListOpsOptions {
  int64_t min_length = 500;   // expressions are longer than this ..
  int64_t max_length = 2000;  // .. and shorter than this, in tokens
  int64_t max_depth = 10;
  int64_t max_args = 10;
};

// `count` different examples. One seed gives one list, of which a shorter one is the
// beginning, whatever the number of threads. An operator (minimum, maximum, median or
// sum) comes with probability 1/4 and has 2 .. max_args arguments.
std::vector<ListOpsExample> generate_listops(int64_t count, uint64_t seed,
                                             const ListOpsOptions& options = {});

// The digit an expression stands for.
int evaluate(std::span<const uint8_t> expression);

// "( ( ( [MAX 2 ) 9 ) ] )": the text of the Long Range Arena's files, in which every
// operator takes its arguments one after the other.
std::string listops_text(std::span<const uint8_t> expression);

// Reads that text, or the same without parentheses.
Expression parse_listops(std::string_view text);

// What a model is fed: 0 is padding, 1 .. 10 the digits, then [MIN, [MAX, [MED, [SM and
// the closing bracket; 16 is any other operator.
constexpr int64_t kListOpsIds = 17;
std::vector<int32_t> listops_ids(std::span<const uint8_t> expression);

// Files in the layout of the Long Range Arena: a header, then text, tab, label, with
// lines that end in carriage return and line feed. A file appears whole or not at all.
void write_listops(const std::string& path, std::span<const ListOpsExample> examples);

// Reads such a file, or one of the original data set, which has no header and the label
// before the expression; either may be packed (data/packed_file.h). Checks every line,
// and every label by evaluating the expression.
std::vector<ListOpsExample> read_listops(const std::string& path);

}  // namespace longspan
