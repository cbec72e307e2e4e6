// Texts with labels, from a user's own files.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace longspan {

struct LabelledText {
  std::string text;
  std::string label;  // empty where the file has no labels
};

struct TableOptions {
  // The columns, by name as in the header of the file or as the key of a JSON object.
  // A whole number counts columns from 1 in a file without header.
  std::string text = "text";
  std::string label = "label";
  bool labels = true;  // false: the label column is neither needed nor read
};

// The rows of a .tsv, .csv or .jsonl file, by the end of its name, which may be
// followed by .gz or .xz.
//   tsv:   columns between tabs, taken as they are;
//   csv:   as RFC 4180: quotes around fields with commas, quotes ("" for one) or line
//          ends;
//   jsonl, json: one object a line; the text a string, the label a string, whole number
//   or
//          boolean.
// Lines end in LF or CRLF; a byte order mark at the beginning and empty lines are
// skipped. Every other departure is an Error that names file and line: a missing or
// doubled column (with the columns there are), too few or too many fields, an empty
// label, text that is not UTF-8, a quote that is not closed, no rows at all.
std::vector<LabelledText> read_table(const std::string& path,
                                     const TableOptions& options = {});

}  // namespace longspan
