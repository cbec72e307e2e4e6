#include <csignal>
#include <cstdlib>
#include <exception>
#include <iostream>

#include "longspan/base/build.h"
#include "longspan/base/memory.h"
#include "longspan/base/threads.h"
#include "longspan/base/thrown.h"
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
    const auto unknown = where->remaining();
    if (!unknown.empty() && !where->get_allow_extras()) {
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
    const std::string message = error.what();
    if (error.get_name() == "ArgumentMismatch" && message.ends_with(" missing"))
      return message.substr(0, message.find(':')) + " needs a value";
    return message;
  }
}

}  // namespace

void add_threads(CLI::App& app) {
  app.add_option_function<int>(
         "--threads", [](int threads) { set_threads(threads); },
         "how many CPU threads to use; else OMP_NUM_THREADS, else all cores")
      ->check(CLI::Range(1, 4096));
}

namespace {

int run(int count, char** words) {
  CLI::App program("Longspan: efficient Transformers on LibTorch", "longspan");
  program.require_subcommand(1);
  program.set_version_flag("--version", std::string("longspan ") + kVersion);
  if (std::getenv("OMP_NUM_THREADS") == nullptr) set_threads(usable_cores());
  add_threads(program);
  add_list(program);
  add_describe(program);
  add_info(program);
  add_check(program);
  add_data(program);
  add_train(program);
  add_eval(program);
  add_predict(program);
  add_generate(program);
  add_arena(program);
  add_report(program);
  add_explain(program);
  add_bench(program);
  add_paper(program);
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
    std::signal(SIGXFSZ, SIG_IGN);  // a file too large is an error of its write
    longspan::reuse_memory();
    const int code = longspan::cli::run(count, words);
    std::cout.flush();
    return std::cout ? code : complain("cannot write to standard output", 1);
  } catch (const longspan::cli::Failed& failed) {
    return failed.code;
  } catch (const longspan::UsageError&) {
    return complain(longspan::message_of(std::current_exception()), 2);
  } catch (...) {
    return complain(longspan::message_of(std::current_exception()), 1);
  }
}
