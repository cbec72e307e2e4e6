// Numbers as papers print them.

#pragma once

#include <array>
#include <optional>
#include <span>
#include <string_view>

namespace longspan::cli {

// Accuracies in percent: table 1 of Tay et al. 2020, arXiv:2011.04006.
struct ArenaColumn {
  std::string_view name, task;  // as printed; as tasks are called here
};
inline constexpr size_t kArenaColumns = 6;
extern const std::array<ArenaColumn, kArenaColumns> kArenaTasks;

struct ArenaRow {
  std::string_view name, mechanism;
  std::array<std::optional<double>, kArenaColumns> accuracy;  // none: it did not learn
};
std::span<const ArenaRow> arena_rows();

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
