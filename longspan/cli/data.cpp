#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <span>

#include "longspan/base/error.h"
#include "longspan/base/whole_file.h"
#include "longspan/base/words.h"
#include "longspan/cli/commands.h"
#include "longspan/cli/data_origins.h"
#include "longspan/data/grey_image.h"
#include "longspan/data/listops.h"
#include "longspan/data/pathfinder_files.h"
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

struct PathfinderFiles {
  std::string folder, picture;
  std::string difficulty = "hard";
  int64_t size = 32, count = 200000;
  uint64_t seed = 1;
};

void make_pathfinder(const PathfinderFiles& files) {
  const auto options = arena_pathfinder(files.size, files.difficulty);
  const std::string folder =
      files.folder + "/" + pathfinder_folder(files.size, files.difficulty);
  require(!std::filesystem::exists(folder), folder,
          " is there already; choose another folder");
  const bool live = isatty(STDERR_FILENO);
  write_pathfinder(folder, options, files.seed, files.count, [&](int64_t done) {
    if (live) std::cerr << '\r' << done << " of " << files.count << std::flush;
  });
  if (live) std::cerr << '\n';
  std::cout << folder << ": " << files.count << " images\n";
}

// A row of images a difficulty, every second with one curve marked at both ends, white
// lines between them.
GreyImage sheet(const PathfinderFiles& files) {
  constexpr int64_t kImages = 8, kGap = 4;
  constexpr const char* kRows[] = {"easy", "intermediate", "hard"};
  const int64_t zoom = std::max<int64_t>(1, 96 / files.size);
  const int64_t side = files.size * zoom, step = side + kGap;
  GreyImage all{.rows = 3 * step - kGap, .columns = kImages * step - kGap};
  all.pixels.assign(static_cast<size_t>(all.rows * all.columns), 255);
  for (int64_t row = 0; row < 3; ++row) {
    const auto options = arena_pathfinder(files.size, kRows[row]);
    int64_t number = 0;
    for (int64_t column = 0; column < kImages; ++column) {
      PathfinderImage image;
      do {
        image = draw_pathfinder(options, files.seed, number++, 1).front();
      } while (image.label != column % 2);
      for (int64_t y = 0; y < side; ++y)
        for (int64_t x = 0; x < side; ++x)
          all.pixels[static_cast<size_t>((row * step + y) * all.columns +
                                         column * step + x)] =
              image.pixels[static_cast<size_t>(y / zoom * files.size + x / zoom)];
    }
  }
  return all;
}

void add_pathfinder(CLI::App& verb) {
  auto* const pathfinder = verb.add_subcommand(
      "pathfinder", "draws Pathfinder in the files of the Long Range Arena's release");
  pathfinder->footer(
      "Examples:\n"
      "  longspan data pathfinder --out DIR --size 128 # Path-X: 200,000 images\n"
      "  longspan data pathfinder --picture pathfinder.png\n"
      "The official archive has them as well: "
      "https://storage.googleapis.com/long-range-arena/lra_release.gz.\n"
      "Without --data the task pathfinder draws its images itself, in memory.");
  const auto files = std::make_shared<PathfinderFiles>();
  auto* const out = pathfinder->add_option("--out", files->folder,
                                           "the folder to write pathfinder32/.. to");
  auto* const picture =
      pathfinder->add_option("--picture", files->picture,
                             "a PNG file to draw a few images of each difficulty");
  out->excludes(picture);
  pathfinder->add_option("--size", files->size, "pixels a side: 32, 64, 128 or 256")
      ->capture_default_str();
  pathfinder
      ->add_option("--difficulty", files->difficulty,
                   "length of the curves: easy, intermediate or hard")
      ->capture_default_str();
  pathfinder->add_option("--count", files->count, "how many images")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  pathfinder->add_option("--seed", files->seed, "one seed, one data set")
      ->capture_default_str();
  add_threads(*pathfinder);
  pathfinder->callback([=] {
    if (files->folder.empty() && files->picture.empty())
      throw UsageError(
          "--out is required: the folder to write to (or --picture, a PNG file)");
    argument([&] { arena_pathfinder(files->size, files->difficulty); });
    if (files->picture.empty()) {
      make_pathfinder(*files);
      return;
    }
    write_whole(files->picture, png_of(sheet(*files)));
    std::cout << files->picture << ": " << files->size << " x " << files->size
              << " pixels each; easy, intermediate and hard; in every second image the "
                 "marks are at the ends of one curve\n";
  });
}

// Data that this program cannot make: where it comes from, and whether it is there.
void add_origin(CLI::App& verb, const Origin& origin) {
  auto* const from = verb.add_subcommand(
      origin.task, std::string("where it comes from: ") + origin.summary);
  const auto folder = std::make_shared<std::string>();
  from->add_option("--data", *folder, "checks the files in this folder");
  from->callback([=, &origin] {
    if (folder->empty()) {
      std::cout << origin.text;
      return;
    }
    const Task task = open_task({.name = origin.task, .data = *folder});
    for (const std::string& fact : task.facts) std::cout << fact << '\n';
    for (const Reference& reference : task.references)
      std::cout << reference.name << ": " << percent(reference.accuracy) << " right\n";
  });
}

}  // namespace

void add_data(CLI::App& program) {
  auto* const verb =
      program.add_subcommand("data", "makes data sets, or says where they come from");
  verb->require_subcommand(1);
  for (const Origin& origin : kOrigins) add_origin(*verb, origin);
  add_pathfinder(*verb);
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
