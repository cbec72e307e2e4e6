// Tables and figures of papers, made anew.

#include "longspan/cli/paper.h"
#include "longspan/cli/commands.h"

namespace longspan::cli {

void add_paper(CLI::App& program) {
  auto* const verb = program.add_subcommand(
      "paper", "tables and figures of papers made anew, beside what was published");
  verb->require_subcommand(1);
  add_combiner_figure3(*verb);
  add_wide_tables(*verb);
  add_arena_table(*verb);
}

}  // namespace longspan::cli
