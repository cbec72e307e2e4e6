// The verbs of the program. Each adds itself to the command line; what it does when
// chosen is its callback.

#pragma once

#include <CLI/CLI.hpp>

#include "longspan/base/error.h"

namespace longspan::cli {

// What the command did not find in order. Its message has been printed.
struct Failed {
  int code = 1;  // to exit with
};

// --threads, before the command or after it.
void add_threads(CLI::App& app);

void add_list(CLI::App& program);
void add_describe(CLI::App& program);
void add_info(CLI::App& program);
void add_check(CLI::App& program);
void add_data(CLI::App& program);
void add_train(CLI::App& program);
void add_eval(CLI::App& program);
void add_predict(CLI::App& program);
void add_generate(CLI::App& program);
void add_arena(CLI::App& program);
void add_bench(CLI::App& program);
void add_bench_kernels(CLI::App& bench);
void add_bench_attention(CLI::App& bench);
void add_bench_decode(CLI::App& bench);

}  // namespace longspan::cli
