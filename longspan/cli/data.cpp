#include <filesystem>
#include <iostream>
#include <memory>
#include <span>

#include "longspan/base/error.h"
#include "longspan/base/words.h"
#include "longspan/cli/commands.h"
#include "longspan/data/listops.h"
#include "longspan/tasks/task.h"

namespace longspan::cli {
namespace {

struct ListOpsFiles {
  std::string folder;
  int64_t train = 96000, valid = 2000, test = 2000;
  uint64_t seed = 1;
  ListOpsOptions options = {};
  bool overwrite = false;
};

void make_listops(const ListOpsFiles& files) {
  namespace fs = std::filesystem;
  const auto path = [&](const char* split) {
    return (fs::path(files.folder) / ("basic_" + std::string(split) + ".tsv")).string();
  };
  for (const char* split : {"train", "val", "test"})
    require(files.overwrite || !fs::exists(path(split)), path(split),
            " is there already; choose another folder, or --overwrite");
  std::error_code error;
  fs::create_directories(files.folder, error);
  require(!error, "cannot make the folder ", files.folder, ": ", error.message());

  const auto examples = generate_listops(files.train + files.valid + files.test,
                                         files.seed, files.options);
  const std::span all(examples);
  const struct {
    const char* split;
    std::span<const ListOpsExample> examples;
  } parts[] = {{"train", all.subspan(0, files.train)},
               {"val", all.subspan(files.train, files.valid)},
               {"test", all.subspan(files.train + files.valid, files.test)}};
  // Old and new files never stand together: what was there goes before the first comes.
  for (const auto& [split, part] : parts) fs::remove(path(split), error);
  for (const auto& [split, part] : parts) {
    write_listops(path(split), part);
    std::cout << path(split) << ": " << part.size() << " examples\n";
  }
  if (examples.empty()) return;
  int64_t tokens = 0;
  Examples ids;
  for (const auto& [expression, label] : examples) {
    tokens += static_cast<int64_t>(expression.size());
    ids.add(listops_ids(expression), label);
  }
  const auto guess = [&](bool by_first) {
    return percent(guess_accuracy(ids, ids, by_first));
  };
  std::cout << "mean length " << tokens / ids.size()
            << " tokens; always the commonest label: " << guess(false)
            << " right; the commonest by the outermost operator: " << guess(true)
            << '\n';
}

}  // namespace

void add_data(CLI::App& program) {
  auto* const verb = program.add_subcommand("data", "makes data sets");
  verb->require_subcommand(1);
  auto* const listops = verb->add_subcommand(
      "listops",
      "ListOps in the files of the Long Range Arena: basic_train.tsv, "
      "basic_val.tsv, basic_test.tsv");
  listops->footer(
      "Examples:\n"
      "  longspan data listops --out listops            # as many as the Arena has\n"
      "  longspan data listops --out short --min-length 50 --max-length 200 --seed 2");
  const auto files = std::make_shared<ListOpsFiles>();
  listops->add_option("--out", files->folder, "the folder to write to")->required();
  const auto count = [&](const char* name, int64_t& value, const char* help) {
    listops->add_option(name, value, help)
        ->capture_default_str()
        ->check(CLI::Range(int64_t{0}, int64_t{1} << 30));
  };
  count("--train", files->train, "examples to train on");
  count("--valid", files->valid, "examples to choose by");
  count("--test", files->test, "examples to judge by");
  listops->add_option("--seed", files->seed, "one seed, one data set")
      ->capture_default_str();
  count("--min-length", files->options.min_length, "expressions are longer");
  count("--max-length", files->options.max_length, "expressions are shorter");
  count("--max-depth", files->options.max_depth, "of nested operators");
  count("--max-args", files->options.max_args, "of an operator");
  listops->add_flag("--overwrite", files->overwrite, "replace files that are there");
  listops->callback([=] {
    argument([&] { return generate_listops(0, files->seed, files->options); });
    make_listops(*files);
  });
}

}  // namespace longspan::cli
