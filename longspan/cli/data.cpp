#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <span>

#include "longspan/base/checksum.h"
#include "longspan/base/error.h"
#include "longspan/base/progress.h"
#include "longspan/base/whole_file.h"
#include "longspan/base/words.h"
#include "longspan/cli/commands.h"
#include "longspan/cli/data_origins.h"
#include "longspan/data/byte_source.h"
#include "longspan/data/grey_image.h"
#include "longspan/data/listops.h"
#include "longspan/data/made_text.h"
#include "longspan/data/packed_file.h"
#include "longspan/data/pathfinder_files.h"
#include "longspan/data/token_file.h"
#include "longspan/tasks/task.h"

namespace longspan::cli {
namespace {

namespace fs = std::filesystem;

void make_folder(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  require(!error, "cannot make the folder ", folder, ": ", error.message());
}

void check_free(const std::string& path, bool overwrite) {
  require(overwrite || !fs::exists(path), path,
          " is there already; choose another folder, or --overwrite");
}

struct ListOpsFiles {
  std::string folder, data;
  int64_t train = 96000, valid = 2000, test = 2000;
  uint64_t seed = 1;
  ListOpsOptions options = {};
  bool overwrite = false;
};

void make_listops(const ListOpsFiles& files) {
  const auto path = [&](const char* split) {
    return (fs::path(files.folder) / ("basic_" + std::string(split) + ".tsv")).string();
  };
  for (const char* split : {"train", "val", "test"})
    check_free(path(split), files.overwrite);
  make_folder(files.folder);

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
  std::error_code error;
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

// Reads what is in a folder as the task does, and says what it is.
void check_data(const TaskOptions& options, int64_t official) {
  const Task task = open_task(options);
  for (const std::string& fact : task.facts) std::cout << fact << '\n';
  for (const Reference& reference : task.references)
    std::cout << reference.name << ": " << percent(reference.accuracy) << " right\n";
  int64_t all = 0;
  for (const char* split : {"train", "valid", "test"}) all += task.split(split).size();
  std::cout << all << " in all, "
            << (all == official ? "as many as" : std::to_string(official) + " are")
            << " in the official files\n";
}

constexpr int64_t kPathfinderImages = 200000;  // of the release

struct PathfinderFiles {
  std::string folder, picture, data;
  std::string difficulty = "hard";
  int64_t size = 32, count = kPathfinderImages;
  uint64_t seed = 1;
};

void make_pathfinder(const PathfinderFiles& files) {
  const auto options = arena_pathfinder(files.size, files.difficulty);
  const std::string folder =
      files.folder + "/" + pathfinder_folder(files.size, files.difficulty);
  require(!std::filesystem::exists(folder), folder,
          " is there already; choose another folder");
  const Progress progress("drawing images", files.count);
  write_pathfinder(folder, options, files.seed, files.count,
                   [&](int64_t done) { progress.tell(done); });
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
      "  longspan data pathfinder --data DIR --size 64 # checks such files\n"
      "The official archive has them as well: "
      "https://storage.googleapis.com/long-range-arena/lra_release.gz\n"
      "(no checksum of it is published; there are 200,000 images of each size and\n"
      "difficulty, one of them empty). Without --data the task pathfinder draws its\n"
      "images itself, in memory, anew for every process: 64 x 64 hard ones take about\n"
      "15 ms of a core each, 128 x 128 ones 5 ms, the others less than 1 ms.");
  const auto files = std::make_shared<PathfinderFiles>();
  auto* const out = pathfinder->add_option("--out", files->folder,
                                           "the folder to write pathfinder32/.. to");
  auto* const picture =
      pathfinder->add_option("--picture", files->picture,
                             "a PNG file to draw a few images of each difficulty");
  out->excludes(picture);
  pathfinder->add_option("--data", files->data, "checks the files in this folder")
      ->excludes(out)
      ->excludes(picture);
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
    if (files->folder.empty() && files->picture.empty() && files->data.empty())
      throw UsageError(
          "--out is required: the folder to write to (or --picture, a PNG file, or "
          "--data, a folder to check)");
    if (!files->data.empty()) {
      check_data({.name = "pathfinder",
                  .data = files->data,
                  .size = files->size,
                  .difficulty = files->difficulty},
                 kPathfinderImages);
      return;
    }
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

void check_file(const std::string& folder, const OfficialFile& official) {
  for (const char* const place : {"/", "/cifar-10-batches-bin/"}) {
    const std::string path = found_file(folder + place + official.name);
    if (!fs::exists(path)) continue;
    const bool same = crc32c(read_unpacked(path)) == official.crc32c;
    std::cout << path << (same ? ": the official file\n" : ": not the official file\n");
  }
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
    check_data({.name = origin.task, .data = *folder}, origin.examples);
    for (const OfficialFile& file : origin.files) check_file(*folder, file);
  });
}

struct TextFile {
  std::string folder;
  int64_t bytes = 200000;
  uint64_t seed = 1;
  bool overwrite = false;
};

void write_text(const TextFile& file) {
  const std::string path = (fs::path(file.folder) / "text.txt").string();
  check_free(path, file.overwrite);
  make_folder(file.folder);
  const std::string text = make_text(file.bytes, file.seed);
  write_whole(path, text);
  std::cout << path << ": " << text.size() << " bytes\n";
}

struct TokenFiles {
  TextSplitOptions text = {.shares_called = {"--valid-share", "--test-share"}};
  TokenizerOptions tokens = {};
  std::string folder;
  bool overwrite = false;
};

void write_tokens(const TokenFiles& files) {
  const auto path = [&](size_t split) {
    return (fs::path(files.folder) / (std::string(kSplits[split]) + ".ids")).string();
  };
  for (size_t split = 0; split < kSplits.size(); ++split)
    check_free(path(split), files.overwrite);
  const TextSplits splits(files.text);
  const auto tokens =
      build_text_tokens(files.tokens, splits.training(files.tokens.kind == "bytes"));
  make_folder(files.folder);
  const auto end_of_text = static_cast<int32_t>(tokens->ids());
  const TokenFileFacts facts{
      .kind = files.tokens.kind, .vocabulary = tokens->saved(), .ids = end_of_text + 1};
  TokenFileWriter train(path(0), facts), valid(path(1), facts), test(path(2), facts);
  const auto counts = splits.encode(*tokens, end_of_text, {&train, &valid, &test});
  train.commit(counts[0]);
  valid.commit(counts[1]);
  test.commit(counts[2]);
  std::cout << tokens->describe() << '\n';
  for (size_t split = 0; split < kSplits.size(); ++split)
    std::cout << path(split) << ": " << counts[split].bytes << " bytes, "
              << counts[split].words << " words, " << counts[split].documents
              << " documents, " << open_token_file(path(split)).tokens.size()
              << " tokens, " << counts[split].unknown << " of them unknown\n";
}

void add_text(CLI::App& verb) {
  auto* const text = verb.add_subcommand(
      "text", "made-up text, text.txt, to try a model of text with");
  text->footer("Example:\n  longspan data text --out small");
  const auto file = std::make_shared<TextFile>();
  text->add_option("--out", file->folder, "the folder to write to")->required();
  text->add_option("--bytes", file->bytes, "about so many")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 32));
  text->add_option("--seed", file->seed, "one seed, one text")->capture_default_str();
  text->add_flag("--overwrite", file->overwrite, "replace a file that is there");
  text->callback([=] { write_text(*file); });
}

void add_tokens(CLI::App& verb) {
  auto* const tokens = verb.add_subcommand(
      "tokens",
      "cuts text into tokens once and for all: train.ids, valid.ids, test.ids, which "
      "the task text reads without having them in memory");
  tokens->footer(
      "Examples:\n"
      "  longspan data tokens --train enwik8 --valid-share 0.05 --test-share 0.05 "
      "--out ids\n"
      "  longspan data tokens --train pg19/train --valid pg19/validation --test "
      "pg19/test --tokens sentencepiece --vocabulary 32000 --out ids");
  const auto files = std::make_shared<TokenFiles>();
  tokens->add_option("--out", files->folder, "the folder to write to")->required();
  tokens->add_option("--train", files->text.train, "a file or folder of text")
      ->required();
  tokens->add_option("--valid", files->text.valid, "the same to choose by");
  tokens->add_option("--test", files->text.test, "the same to judge by");
  const auto number = [&](const char* name, auto& value, auto least, auto most,
                          const char* help) {
    tokens->add_option(name, value, help)
        ->capture_default_str()
        ->check(CLI::Range(least, most));
  };
  number("--valid-share", files->text.valid_share, 0.0, 0.9,
         "of train, without --valid");
  number("--test-share", files->text.test_share, 0.0, 0.9, "of train, without --test");
  number("--seed", files->text.seed, int64_t{0}, int64_t{1} << 32,
         "draws the documents of shares");
  tokens->add_option("--text", files->text.column, "the column or key of the text")
      ->capture_default_str();
  tokens->add_option("--tokens", files->tokens.kind, "bytes, words or sentencepiece")
      ->capture_default_str()
      ->check(CLI::IsMember({"bytes", "words", "sentencepiece"}));
  number("--vocabulary", files->tokens.vocabulary, int64_t{4}, int64_t{10'000'000},
         "ids at most, of words and sentencepiece");
  number("--least-count", files->tokens.least_count, int64_t{1}, int64_t{1} << 30,
         "rarer words are unknown");
  tokens->add_option("--sentencepiece-model", files->tokens.model,
                     "a model file; else one is trained");
  tokens->add_flag("--overwrite", files->overwrite, "replace files that are there");
  tokens->callback([=] { write_tokens(*files); });
}

}  // namespace

void add_data(CLI::App& program) {
  auto* const verb =
      program.add_subcommand("data", "makes data sets, or says where they come from");
  verb->require_subcommand(1);
  for (const Origin& origin : kOrigins) add_origin(*verb, origin);
  add_pathfinder(*verb);
  add_text(*verb);
  add_tokens(*verb);
  auto* const listops = verb->add_subcommand(
      "listops",
      "ListOps in the files of the Long Range Arena: basic_train.tsv, "
      "basic_val.tsv, basic_test.tsv");
  listops->footer(
      "Examples:\n"
      "  longspan data listops --out listops            # as many as the Arena has\n"
      "  longspan data listops --out short --min-length 50 --max-length 200 --seed 2\n"
      "  longspan data listops --data DIR               # checks such files\n"
      "The official archive has them as well, 96,000, 2,000 and 2,000 examples in\n"
      "lra_release/lra_release/listops-1000/: "
      "https://storage.googleapis.com/long-range-arena/lra_release.gz\n"
      "(7.7 GB; no checksum of it is published, --data checks every expression).");
  const auto files = std::make_shared<ListOpsFiles>();
  auto* const out =
      listops->add_option("--out", files->folder, "the folder to write to");
  listops->add_option("--data", files->data, "checks the files in this folder")
      ->excludes(out);
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
    if (!files->data.empty()) {
      constexpr int64_t kRelease = 100000;
      check_data({.name = "listops", .data = files->data}, kRelease);
      return;
    }
    if (files->folder.empty())
      throw UsageError("--out is required: the folder to write to");
    argument([&] { return generate_listops(0, files->seed, files->options); });
    make_listops(*files);
  });
}

}  // namespace longspan::cli
