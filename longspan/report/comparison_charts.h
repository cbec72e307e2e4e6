// The charts of a comparison, and what they are about.

#pragma once

#include <string>
#include <vector>

#include "longspan/report/comparison.h"

namespace longspan::report {

// Models that differ in nothing but layers and heads, of which they have equally many
// in all: the deepest first.
using Shapes = std::vector<const Contender*>;

// Each kind of which there are several.
std::vector<Shapes> shapes_of(const Comparison& comparison);

// As SVG; empty where there is nothing to draw.
std::vector<std::string> curve_charts(const Comparison& comparison);
// Tay et al. 2020, arXiv:2011.04006, figure 3.
std::string speed_chart(const Comparison& comparison);
// Accuracy and latency by the number of layers.
std::string depth_chart(const Comparison& comparison);

}  // namespace longspan::report
