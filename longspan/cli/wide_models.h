// The models of Brown et al. 2022, arXiv:2210.00640: as many heads in all in several
// layers or in a single one, for ten mechanisms and four tasks. They are those of
// configs/wide.

#pragma once

#include <span>
#include <string_view>

#include "longspan/train/experiment.h"

namespace longspan::cli {

struct WideTask {
  std::string_view name;             // as printed
  std::string_view config, entries;  // their names in configs/wide
};

struct WideMechanism {
  std::string_view name;   // as printed
  std::string_view entry;  // with "deep" or "wide" behind it, its name there
};

std::span<const WideTask> wide_tasks();
std::span<const WideMechanism> wide_mechanisms();

Experiment wide_experiment(const WideMechanism& mechanism, const WideTask& task,
                           bool deep);

}  // namespace longspan::cli
