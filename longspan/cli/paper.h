// The tables and figures of `longspan paper`. Each adds itself to the command line.

#pragma once

#include <CLI/CLI.hpp>

namespace longspan::cli {

void add_combiner_figure3(CLI::App& paper);
void add_wide_tables(CLI::App& paper);
void add_arena_table(CLI::App& paper);

}  // namespace longspan::cli
