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

// What is wrong with the command line, and the name that was probably meant.
std::string explained(const CLI::App& program, const CLI::ParseError& error) {
  const CLI::App* where = &program;
  std::string verb = "longspan";
  while (true) {
    std::vector<std::string> options, commands;
    for (const auto* option : where->get_options())
      for (const auto& name : option->get_lnames()) options.push_back("--" + name);
    for (const auto* command : where->get_subcommands({}))
      commands.push_back(command->get_name());
    if (const auto unknown = where->remaining(); !unknown.empty()) {
      const std::string& word = unknown.front();
      if (word.starts_with('-')) return "no option " + word + hint(word, options);
      if (commands.empty()) return "'" + word + "' is one argument too many";
      return "no command '" + word + "'" + hint(word, commands);
    }
    const auto chosen = where->get_subcommands();
    if (!chosen.empty()) {
      where = chosen.back();
      verb += " " + where->get_name();
      continue;
    }
    if (error.get_name() == "RequiredError" && !commands.empty())
      return "a command is missing; see " + verb + " --help";
    return error.what();
  }
}

int run(int count, char** words) {
  CLI::App program("Longspan: efficient Transformers on LibTorch", "longspan");
  program.require_subcommand(1);
  program.set_version_flag("--version", std::string("longspan ") + kVersion);
  int threads = 0;
  program
      .add_option("--threads", threads,
                  "how many CPU threads to use; else OMP_NUM_THREADS, else all cores")
      ->check(CLI::Range(1, 4096));
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
  add_data(program);
  try {
    program.parse(count, words);
  } catch (const CLI::Success& done) {  // --help and --version
    return program.exit(done);
  } catch (const CLI::ParseError& error) {
    throw UsageError(explained(program, error));
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
