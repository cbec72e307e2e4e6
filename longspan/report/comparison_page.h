// A comparison of runs as a page, and as Markdown.

#pragma once

#include <string>

#include "longspan/report/comparison.h"
#include "longspan/report/table.h"

namespace longspan::report {

// What a report is called unless it has a name: "10 models on listops".
std::string title_of(const std::vector<Comparison>& comparisons);

// The whole report as one page of HTML that needs no other file: results, curves,
// accuracy against speed, wide models against deep ones, who sees whom, published
// numbers, configuration and environment, for one task after the other. A part that the
// runs give nothing for is left out.
std::string comparison_page(const std::vector<Comparison>& comparisons,
                            const std::string& title);

// The tables of it.
std::string comparison_markdown(const std::vector<Comparison>& comparisons,
                                const std::string& title);

// Models that differ in nothing but layers and heads, of which they have equally many
// in all: the deepest beside each of the others. Empty if there are none.
Table depth_table(const Comparison& comparison);

// What papers report, a table for each of their tasks, beside ours of the same
// mechanism.
std::vector<Table> published_tables(const Comparison& comparison);

}  // namespace longspan::report
