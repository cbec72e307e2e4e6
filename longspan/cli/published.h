// Sizes and times as a paper prints them; accuracies are in report/published.h.

#pragma once

#include <optional>
#include <string_view>

namespace longspan::cli {

// Tables 8 to 10 of Brown et al. 2022, arXiv:2210.00640: sizes in MiB, milliseconds of
// a sequence on two EPYC 7763, and of 32 on an A100.
enum class WideTable { sizes, on_cpu, on_gpu };

struct WidePair {
  std::optional<double> deep = {}, wide = {};  // none: not known here
};

WidePair published(WideTable table, std::string_view mechanism, std::string_view task);

// How many times faster wide models are than deep ones in the mean, as printed.
double published_speed_up(WideTable table);

}  // namespace longspan::cli
