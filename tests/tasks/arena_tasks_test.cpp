// The tasks of the Long Range Arena but ListOps, on small files in the layouts of their
// releases.

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "longspan/data/images.h"
#include "longspan/data/pairs.h"
#include "longspan/data/pathfinder_files.h"
#include "longspan/data/pathfinder_images.h"
#include "longspan/tasks/task.h"
#include "tests/support/folder.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

constexpr const char* kSplits[] = {"train", "valid", "test"};

class AnArenaTask : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) const {
    const auto path = std::filesystem::path(folder_ / name);
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
  }
  TaskOptions options(const std::string& name) const {
    return {.name = name, .data = folder_ / ""};
  }
  bool has_fact(const Task& task, const std::string& fact) const {
    return std::ranges::find(task.facts, fact) != task.facts.end();
  }

  const Folder folder_;
};

using Imdb = AnArenaTask;
using Retrieval = AnArenaTask;
using Cifar10 = AnArenaTask;
using PathfinderTask = AnArenaTask;

// --- imdb ---

std::string text_of(const Examples& examples, int64_t number) {
  std::string text;
  for (const int32_t id : examples.ids(number)) text += static_cast<char>(id - 1);
  return text;
}

std::string review(int i) { return "Film " + std::to_string(i) + ", <br />so so."; }

std::string reviews(int count, int first = 0) {
  std::string lines;
  for (int i = first; i < first + count; ++i)
    lines += std::to_string(i % 2) + "\t5\t" + std::to_string(i / 2) + "\t" +
             review(i) + "\n";
  return lines;
}

TEST_F(Imdb, IsReadFromTables) {
  write("imdb_train.tsv", reviews(20));
  write("imdb_test.tsv", reviews(6, 100));
  const Task task = open_task(options("imdb"));
  EXPECT_EQ(task.ids, 257);
  EXPECT_EQ(task.longest, 1000);
  EXPECT_EQ(task.labels, (std::vector<std::string>{"negative", "positive"}));
  EXPECT_EQ(task.train.size(), 18);
  EXPECT_EQ(task.valid.size(), 2);
  ASSERT_EQ(task.test.size(), 6);
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(text_of(task.test, i), review(100 + i));
    EXPECT_EQ(task.test.label(i), i % 2);
  }
  EXPECT_EQ(
      task.facts,
      (std::vector<std::string>{
          "train: 18, imdb_train.tsv", "valid: 2, drawn from imdb_train.tsv, seed 1",
          "test: 6, imdb_test.tsv", "bytes, 257 ids", "at most 1000 tokens"}));
  const auto file = read_examples(task, options("imdb"), folder_ / "imdb_test.tsv");
  EXPECT_EQ(file->fingerprint(), task.test.fingerprint());
}

TEST_F(Imdb, IsReadFromTheOfficialFolders) {
  for (int i = 0; i < 8; ++i) {
    const std::string kind = i % 2 ? "/pos/" : "/neg/";
    // The order is that of numbers, not of names.
    const std::string name = std::to_string(i / 2 * 5) + "_7.txt";
    write("aclImdb/train" + kind + name, review(i));
    write("aclImdb/test" + kind + name, review(i + 8));
  }
  TaskOptions from = options("imdb");
  from.valid_share = 0;
  const Task task = open_task(from);
  ASSERT_EQ(task.train.size(), 8);
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(text_of(task.train, i), review(i));
    EXPECT_EQ(task.train.label(i), i % 2);
    EXPECT_EQ(text_of(task.test, i), review(i + 8));
  }
  EXPECT_EQ(task.valid.fingerprint(), task.test.fingerprint());
  EXPECT_TRUE(
      has_fact(task, "valid: the test set itself, as the Long Range Arena has it"));
  from.data = folder_ / "aclImdb";
  EXPECT_EQ(open_task(from).train.fingerprint(), task.train.fingerprint());
}

TEST_F(Imdb, IsDrawnInPart) {
  write("imdb_train.tsv", reviews(40));
  write("imdb_test.tsv", reviews(30, 100));
  TaskOptions from = options("imdb");
  from.examples = 10;
  from.judged = 3;
  const Task task = open_task(from);
  EXPECT_EQ(task.train.size(), 10);
  EXPECT_EQ(task.valid.size(), 3);
  EXPECT_EQ(task.test.size(), 3);
  EXPECT_TRUE(has_fact(task, "train: 10 drawn (seed 1) of 36, imdb_train.tsv"));
  EXPECT_TRUE(has_fact(task, "test: 3 drawn (seed 1) of 30, imdb_test.tsv"));
  EXPECT_EQ(open_task(from).train.fingerprint(), task.train.fingerprint());
  from.split_seed = 2;
  EXPECT_NE(open_task(from).train.fingerprint(), task.train.fingerprint());
}

TEST_F(Imdb, NeverChoosesByTheTestSetUnasked) {
  write("imdb_train.tsv", reviews(20));
  write("imdb_test.tsv", reviews(4));
  TaskOptions from = options("imdb");
  from.valid_share = 0.01;
  EXPECT_EQ(refusal([&] { open_task(from); }),
            "imdb: task.valid_share 0.01 of 20 reviews leaves none to choose by; 0 "
            "chooses by the test set");
  from.valid_share = 0.03;  // rounded
  EXPECT_EQ(open_task(from).valid.size(), 1);
}

TEST_F(Imdb, IsOfWordsAsWell) {
  write("imdb_train.tsv", reviews(20));
  write("imdb_test.tsv", reviews(4));
  TaskOptions from = options("imdb");
  from.tokens = "words";
  const Task task = open_task(from);
  EXPECT_EQ(task.longest, 500);
  const Task again = restore_task(from, task.saved_labels, task.saved_vocabulary);
  EXPECT_EQ(again.encode(review(3)), task.encode(review(3)));
  EXPECT_EQ(again.labels, task.labels);
  EXPECT_EQ(again.longest, 500);
  from.vocabulary = 70;
  EXPECT_EQ(outline_task(from).ids, 70);
}

TEST_F(Imdb, RefusesWhatIsNoReview) {
  const std::string hint = "`longspan data imdb` says where the reviews come from";
  EXPECT_THROW(open_task({.name = "imdb"}), UsageError);
  EXPECT_EQ(refusal([&] { open_task(options("imdb")); }),
            "cannot read " + (folder_ / "imdb_train.tsv") +
                ": there is no such file there; " + hint);
  for (const char* const line :
       {"2\t1\t1\ttext", "1\t1\t1", "1 1 1 text", "1\t1\t1\ttext\tmore", "text"}) {
    write("imdb_train.tsv", reviews(2) + line + "\n");
    const std::string message = refusal([&] { open_task(options("imdb")); });
    EXPECT_EQ(message,
              (folder_ / "imdb_train.tsv") +
                  ", line 3: must be a label of 0 or 1, a rating, a number and "
                  "a text between tabs, got '" +
                  line + "'");
  }
}

// --- retrieval ---

TEST_F(Retrieval, IsReadFromTheRelease) {
  const std::string long_text(30, 'x');
  const std::string lines =
      "1.0\ta\tb\tfirst text\tsecond \"one\n0.0\tb\tc\tsecond \"one\t" + long_text +
      "\n1.0\ta\ta\tfirst text\tanother\n";
  for (const char* const split : {"train", "eval", "test"})
    write(
        std::string("lra_release/lra_release/tsv_data/new_aan_pairs.") + split + ".tsv",
        lines);
  TaskOptions from = options("retrieval");
  from.longest = 20;
  const Task task = open_task(from);
  EXPECT_TRUE(task.pairs);
  EXPECT_EQ(task.ids, 257);
  const auto& pairs = dynamic_cast<const Pairs&>(task.split("valid"));
  ASSERT_EQ(pairs.size(), 3);
  const auto text = [](std::span<const int32_t> ids) {
    std::string letters;
    for (const int32_t id : ids) letters += static_cast<char>(id - 1);
    return letters;
  };
  EXPECT_EQ(text(pairs.first(0)), "first text");
  EXPECT_EQ(text(pairs.second(0)), "second \"one");
  EXPECT_EQ(text(pairs.second(1)), long_text.substr(0, 20));
  EXPECT_EQ(text(pairs.second(2)), "another");
  EXPECT_EQ(pairs.label(0), 1);
  EXPECT_EQ(pairs.label(1), 0);
  // What stands in several pairs is in memory once.
  EXPECT_EQ(pairs.first(1).data(), pairs.second(0).data());

  const Batch batch = pairs.batch(std::vector<int64_t>{1, 0});
  EXPECT_EQ(batch.ids.sizes(), (std::vector<int64_t>{4, 20}));
  EXPECT_EQ(batch.examples(), 2);
  EXPECT_EQ(batch.answers, 2);
  EXPECT_TRUE(torch::equal(batch.labels, torch::tensor({0, 1}, torch::kLong)));
  EXPECT_TRUE(torch::equal(batch.tokens, batch.ids > 0));
  EXPECT_TRUE(torch::equal(batch.ids[0], batch.ids[3]));  // "second one", twice
  EXPECT_EQ(batch.ids[1][0].item<int64_t>(), 'f' + 1);
  EXPECT_TRUE(has_fact(task, "train: 3, new_aan_pairs.train.tsv"));
  EXPECT_EQ(task.references[0].accuracy, 2.0 / 3);
}

TEST_F(Retrieval, IsReadFromPairsOfNames) {
  write("docs.tsv", "a\tfirst\nb\tsecond\n");
  for (const char* const split : kSplits)
    write(std::string("pairs_") + split + ".tsv", "1\ta\tb\n0\tb\ta\n0\ta\ta\n");
  TaskOptions from = options("retrieval");
  from.examples = 2;
  const Task task = open_task(from);
  EXPECT_EQ(task.split("train").size(), 2);
  EXPECT_EQ(task.split("test").size(), 3);
  EXPECT_EQ(task.split("test").longest(), 6);
  EXPECT_EQ(task.longest, 4000);
  EXPECT_NE(task.split("train").fingerprint(), task.split("test").fingerprint());
  write("pairs_test.tsv", "1\ta\tno\n");
  EXPECT_EQ(
      refusal([&] { open_task(from); }),
      (folder_ / "pairs_test.tsv") + ", line 1: there is no document 'no' in docs.tsv");
  write("pairs_test.tsv", "1\ta\n");
  EXPECT_EQ(
      refusal([&] { open_task(from); }),
      (folder_ / "pairs_test.tsv") +
          ", line 1: must be a label of 0 or 1, two names between tabs, got '1\ta'");
  from.tokens = "words";
  EXPECT_THROW(open_task(from), UsageError);
}

TEST_F(Retrieval, ReadsAFileOfEitherLayout) {
  const Task task = restore_task({.name = "retrieval"}, "", "");
  write("other/pairs.tsv", "1\ta\tb\n0\tb\ta\n");
  const auto read = [&](const std::string& name) {
    return read_examples(task, options("retrieval"), folder_ / name);
  };
  EXPECT_EQ(refusal([&] { read("other/pairs.tsv"); }),
            (folder_ / "other/pairs.tsv") +
                " has names of texts: docs.tsv, name and text between tabs, must be "
                "beside it or in the folder that --data names");
  write("docs.tsv", "a\tfirst\nb\tsecond\n");
  const auto by_names = read("other/pairs.tsv");
  write("texts.tsv", "1\ta\tb\tfirst\tsecond\n0\tb\ta\tsecond\tfirst\n");
  EXPECT_EQ(by_names->fingerprint(), read("texts.tsv")->fingerprint());
  write("other/docs.tsv", "a\tfirst\nb\tanother\n");  // beside it comes first
  EXPECT_NE(read("other/pairs.tsv")->fingerprint(), by_names->fingerprint());
}

TEST_F(Retrieval, TakesTwoTextsWithATabBetween) {
  const Task task = restore_task({.name = "retrieval"}, "", "");
  EXPECT_EQ(encode_all(task, "ab\tc"),
            (std::vector<std::vector<int32_t>>{{'a' + 1, 'b' + 1}, {'c' + 1}}));
  for (const char* const text : {"ab", "a\tb\tc"})
    EXPECT_EQ(refusal([&] { encode_all(task, text); }),
              "retrieval is about two texts: one tab must stand between them");
  const Batch batch = random_batch(task, 3, 5);
  EXPECT_EQ(batch.ids.size(0), 6);
  EXPECT_EQ(batch.examples(), 3);
}

// --- cifar10 ---

std::string colour_record(int label, int red, int green, int blue) {
  std::string record(1, static_cast<char>(label));
  for (const int value : {red, green, blue})
    record += std::string(1024, static_cast<char>(value));
  return record;
}

TEST_F(Cifar10, IsReadFromTheOfficialBatches) {
  for (int batch = 1; batch <= 5; ++batch) {
    std::string records;
    for (int i = 0; i < 4; ++i) records += colour_record(batch, 10 * batch + i, 0, 0);
    write("cifar-10-batches-bin/data_batch_" + std::to_string(batch) + ".bin", records);
  }
  write("cifar-10-batches-bin/test_batch.bin", colour_record(9, 255, 255, 255));
  const Task task = open_task(options("cifar10"));
  EXPECT_EQ(task.ids, 257);
  EXPECT_EQ(task.longest, 1024);
  EXPECT_EQ(task.labels[9], "truck");
  // The last tenth of the training batches is chosen by.
  EXPECT_EQ(task.split("train").size(), 18);
  const auto& valid = dynamic_cast<const Images&>(task.split("valid"));
  ASSERT_EQ(valid.size(), 2);
  EXPECT_EQ(valid.label(1), 5);
  EXPECT_EQ(valid.image(1)[0], 15);
  EXPECT_EQ(dynamic_cast<const Images&>(task.split("test")).image(0)[7], 255);
  EXPECT_TRUE(has_fact(task, "train: 18, the first images of the training batches"));
}

TEST_F(Cifar10, IsReadFromGreyBatches) {
  for (const char* const name :
       {"data_batch_1.bin", "data_batch_2_gray.bin", "data_batch_3_gray.bin",
        "data_batch_4_gray.bin", "data_batch_5_gray.bin", "test_batch.bin"}) {
    const bool grey = std::string(name).find("gray") != std::string::npos;
    const std::string record = grey ? std::string(1, '\2') + std::string(1024, '\7')
                                    : colour_record(2, 7, 7, 7);
    write(name, record + record);
  }
  TaskOptions from = options("cifar10");
  from.examples = 4;
  const Task task = open_task(from);
  EXPECT_EQ(task.split("train").size(), 4);
  EXPECT_EQ(task.split("valid").size(), 1);
  EXPECT_EQ(dynamic_cast<const Images&>(task.split("train")).image(3)[9], 7);
  from.longest = 100;
  EXPECT_EQ(refusal([&] { open_task(from); }),
            "cifar10: images have 1024 pixels, which is task.longest, got 100");
}

// --- pathfinder ---

// Whether this build reads and writes PNG files.
bool has_png(const std::string& folder) {
  const std::string message = refusal([&] {
    write_pathfinder(folder, arena_pathfinder(32, "easy"), 1, 1, [](int64_t) {});
  });
  return message == "accepted";
}

TEST_F(PathfinderTask, DrawsItsImagesItself) {
  const TaskOptions from{
      .name = "pathfinder", .examples = 6, .judged = 3, .difficulty = "easy"};
  const Task task = open_task(from);
  EXPECT_EQ(task.longest, 1024);
  EXPECT_EQ(task.labels, (std::vector<std::string>{"apart", "connected"}));
  EXPECT_EQ(task.split("train").size(), 6);
  EXPECT_EQ(task.split("valid").size(), 3);
  const auto& train = dynamic_cast<const PathfinderImages&>(task.split("train"));
  const auto again = draw_pathfinder(arena_pathfinder(32, "easy"), 1, 0, 6);
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(train.label(i), again[i].label);
    EXPECT_EQ(train.images().label(i), again[i].label);
    EXPECT_TRUE(std::ranges::equal(train.images().image(i), again[i].pixels));
  }
  const std::vector<int64_t> some = {4, 0};
  EXPECT_TRUE(torch::equal(train.batch(some).ids, train.images().batch(some).ids));
  // They are drawn once in a process.
  const Task same = open_task(from);
  const auto& other_train = dynamic_cast<const PathfinderImages&>(same.split("train"));
  EXPECT_EQ(&other_train.images(), &train.images());
  EXPECT_EQ(other_train.fingerprint(), train.fingerprint());
  EXPECT_NE(task.split("valid").fingerprint(), task.split("test").fingerprint());
  EXPECT_TRUE(has_fact(task, "train: 6 drawn by this program, seed 1"));
  EXPECT_TRUE(has_fact(task, "easy, curves of 6 dashes in 32 x 32"));
  TaskOptions other = from;
  other.split_seed = 2;
  EXPECT_NE(open_task(other).split("train").fingerprint(), train.fingerprint());
  other.size = 48;
  EXPECT_THROW(open_task(other), UsageError);
}

// So many would take hours.
TEST_F(PathfinderTask, DrawsNothingBeforeItIsRead) {
  const Task task = open_task(
      {.name = "pathfinder", .examples = 1000000, .judged = 2000, .size = 64});
  EXPECT_EQ(task.split("train").size(), 1000000);
  EXPECT_EQ(task.split("train").fingerprint(), task.split("train").fingerprint());
  EXPECT_EQ(task.split("test").length(1999), 4096);
}

TEST_F(PathfinderTask, IsReadFromTheReleasedLayout) {
  if (!has_png(folder_ / "trial")) GTEST_SKIP() << "this build has no libpng";
  const std::string inner = pathfinder_folder(32, "intermediate");
  EXPECT_EQ(inner, "pathfinder32/curv_contour_length_9");
  const auto drawn = arena_pathfinder(32, "intermediate");
  const std::string folder = folder_ / ("lra_release/" + inner);
  int64_t told = 0;
  write_pathfinder(folder, drawn, 5, 12, [&](int64_t done) { told = done; });
  EXPECT_EQ(told, 12);
  const auto images = draw_pathfinder(drawn, 5, 0, 12);
  const auto listing = list_pathfinder(folder);
  ASSERT_EQ(listing.files.size(), 12u);
  for (int i = 0; i < 12; ++i) {
    EXPECT_EQ(read_pathfinder(listing.files[i], 32), images[i].pixels);
    EXPECT_EQ(listing.files[i].label, images[i].label);
  }

  TaskOptions from = options("pathfinder");
  from.difficulty = "intermediate";
  const Task task = open_task(from);
  EXPECT_EQ(task.split("train").size(), 10);
  EXPECT_EQ(task.split("valid").size(), 1);
  EXPECT_EQ(task.split("test").size(), 1);
  EXPECT_TRUE(has_fact(task, "train: 10, drawn from " + inner + ", seed 1"));
  EXPECT_EQ(read_examples(task, from, folder)->size(), 12);
  // A "text" to label is the path of an image.
  const auto ids = task.encode(listing.files[2].path);
  ASSERT_EQ(ids.size(), 1024u);
  for (size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(ids[i], images[2].pixels[i] + 1);

  // The release has a file without a byte.
  write("lra_release/" + inner + "/imgs/0/sample_3.png", "");
  EXPECT_EQ(list_pathfinder(folder).empty, 1);
  EXPECT_TRUE(has_fact(open_task(from), "1 empty files left out"));
  const std::string path = folder + "/imgs/0/sample_4.png";
  write("lra_release/" + inner + "/imgs/0/sample_4.png", "no picture");
  const std::string message = refusal([&] { open_task(from); });
  EXPECT_TRUE(message.starts_with(path + " is not a whole PNG file")) << message;
  write("lra_release/" + inner + "/metadata/1.npy", "imgs/0 sample_0.png 0 2\n");
  EXPECT_EQ(
      refusal([&] { open_task(from); }),
      folder +
          "/metadata/1.npy, line 1: must be a folder, a file, a number and a label "
          "of 0 or 1, got 'imgs/0 sample_0.png 0 2'");
}

TEST_F(PathfinderTask, NeedsFilesWhereAFolderIsGiven) {
  const std::string message = refusal([&] { open_task(options("pathfinder")); });
  EXPECT_TRUE(message.starts_with("cannot read " + (folder_ / "metadata") +
                                  ": there is no such file there; `longspan data "
                                  "pathfinder --out DIR` draws such images"))
      << message;
}

}  // namespace
}  // namespace longspan::testing
