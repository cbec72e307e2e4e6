#include <cstdlib>
#include <iostream>

#include <c10/util/Exception.h>

#include "longspan/base/build.h"
#include "longspan/base/memory.h"
#include "longspan/base/threads.h"
#include "longspan/base/words.h"
#include "longspan/cli/commands.h"

namespace longspan::cli {
namespace {

// What CLI11 says, and the name that was probably meant.
std::string explained(const CLI::App& program, const CLI::ParseError& error) {
  const auto chosen = program.get_subcommands();
  const CLI::App& where = chosen.empty() ? program : *chosen.back();
  const auto unknown = where.remaining();
  if (unknown.empty()) return error.what();
  std::vector<std::string> known;
  const bool is_option = unknown.front().starts_with('-');
  if (is_option) {
    for (const auto* option : where.get_options())
      for (const auto& name : option->get_lnames()) known.push_back("--" + name);
    return "no option " + unknown.front() + hint(unknown.front(), known);
  }
  if (!chosen.empty()) return "'" + unknown.front() + "' is one argument too many";
  for (const auto* verb : program.get_subcommands({}))
    known.push_back(verb->get_name());
  return "no command '" + unknown.front() + "'" + hint(unknown.front(), known);
}

int run(int count, char** words) {
  CLI::App program("Longspan: efficient Transformers on LibTorch", "longspan");
  program.require_subcommand(1);
  program.set_version_flag("--version", std::string("longspan ") + kVersion);
  int threads = 0;
  program
      .add_option("--threads", threads,
                  "how many CPU threads to use; else OMP_NUM_THREADS, else all cores")
      ->check(CLI::PositiveNumber);
  program.parse_complete_callback([&] {
    if (threads > 0)
      set_threads(threads);
    else if (std::getenv("OMP_NUM_THREADS") == nullptr)
      set_threads(usable_cores());
  });
  add_list(program);
  add_describe(program);
  add_info(program);
  add_check(program);
  try {
    program.parse(count, words);
  } catch (const CLI::Success& done) {  // --help and --version
    return program.exit(done);
  } catch (const CLI::ParseError& error) {
    throw UsageError(count == 1 ? "a command is missing; see longspan --help"
                                : explained(program, error));
  }
  return 0;
}

}  // namespace
}  // namespace longspan::cli

int main(int count, char** words) {
  const auto complain = [](const std::string& message, int code) {
    std::cerr << "longspan: " << message << '\n';
    return code;
  };
  try {
    longspan::reuse_memory();
    return longspan::cli::run(count, words);
  } catch (const longspan::cli::UsageError& error) {
    return complain(error.what(), 2);
  } catch (const longspan::cli::Failed&) {
    return 1;
  } catch (const c10::Error& error) {
    return complain(error.what_without_backtrace(), 1);
  } catch (const std::exception& error) {
    return complain(error.what(), 1);
  }
}
