// Grey images as sequences of pixels: CIFAR-10 (Krizhevsky 2009, "Learning multiple
// layers of features from tiny images") and Pathfinder, as in the Long Range Arena.

#include "longspan/data/images.h"

#include <unistd.h>

#include "longspan/base/error.h"
#include "longspan/base/read_file.h"
#include "longspan/data/byte_source.h"
#include "longspan/data/packed_file.h"
#include "longspan/data/pathfinder_files.h"
#include "longspan/data/pathfinder_images.h"
#include "longspan/tasks/kinds.h"
#include "longspan/tasks/parts.h"

namespace longspan {
namespace {

// A task of images of `side` x `side` pixels; a "text" is the path of a PNG file.
Task of_images(const char* name, int64_t side, const TaskOptions& options) {
  const int64_t pixels = side * side;
  argument([&] {
    require(options.longest == 0 || options.longest == pixels, name, ": images have ",
            pixels, " pixels, which is task.longest, got ", options.longest);
  });
  Task task{.name = name, .ids = kPixelIds, .longest = pixels};
  task.facts = {"grey pixels row by row, 257 ids; a black one is no padding"};
  task.encode = [side](const std::string& path) {
    const auto pixels_of = read_pathfinder({.path = path}, side);
    std::vector<int32_t> ids;
    for (const uint8_t brightness : pixels_of) ids.push_back(brightness + 1);
    return ids;
  };
  return task;
}

// --- CIFAR-10 ---

constexpr char kMakeCifar[] = "`longspan data cifar10` says where it comes from";

Task restore_cifar(const TaskOptions& options, const std::string&, const std::string&) {
  Task task = of_images("cifar10", 32, options);
  task.labels = {"airplane", "automobile", "bird",  "cat",  "deer",
                 "dog",      "frog",       "horse", "ship", "truck"};
  return task;
}

Task outline_cifar(const TaskOptions& options) {
  return restore_cifar(options, {}, {});
}

void add_cifar_file(Images& images, const std::string& path) {
  const std::string found = found_file(path);
  add_cifar(images, read_unpacked(found), found);
}

// The file of a batch, which may be grey already.
std::string cifar_file(const std::string& folder, const std::string& name) {
  const std::string grey = found_file(folder + name + "_gray.bin");
  const std::string colour = found_file(folder + name + ".bin");
  const bool only_grey =
      access(colour.c_str(), F_OK) != 0 && access(grey.c_str(), F_OK) == 0;
  return only_grey ? grey : colour;
}

std::shared_ptr<const Images> chosen(const Images& images, const Numbers& numbers) {
  auto made = std::make_shared<Images>(images.length(0));
  made->reserve(std::ssize(numbers));
  for (const int64_t number : numbers)
    made->add(images.image(number), images.label(number));
  return made;
}

Task open_cifar(const TaskOptions& options) {
  if (options.data.empty())
    throw UsageError(
        std::string("cifar10 needs the folder of its files: --data DIR; ") +
        kMakeCifar);
  Task task = outline_cifar(options);
  std::string folder;
  for (const char* const place : {"", "cifar-10-batches-bin"}) {
    std::string path = in_data(options, place);
    if (!path.ends_with('/')) path += '/';
    if (access(cifar_file(path, "test_batch").c_str(), F_OK) == 0) folder = path;
  }
  require(!folder.empty(), "cannot read ", in_data(options, "test_batch.bin"),
          ": there is no such file there; ", kMakeCifar);
  Images train(task.longest), test(task.longest);
  for (const char* const batch : {"1", "2", "3", "4", "5"})
    add_cifar_file(train, cifar_file(folder, std::string("data_batch_") + batch));
  add_cifar_file(test, cifar_file(folder, "test_batch"));
  Numbers learned = all_numbers(train.size());
  const int64_t held = share_of(options.valid_share, train.size());
  require(held > 0 && held < train.size(), "cifar10: task.valid_share ",
          options.valid_share, " of ", train.size(),
          " images leaves none to choose by or to train on");
  Numbers valid(learned.end() - held, learned.end());
  learned.resize(learned.size() - static_cast<size_t>(held));
  const auto add = [&](const char* split, Numbers numbers, const Images& images,
                       const char* from) {
    task.texts[split] =
        chosen(images, limited(std::move(numbers), options, split, from, task));
  };
  add("train", std::move(learned), train, "the first images of the training batches");
  add("valid", std::move(valid), train, "the last images of the training batches");
  add("test", all_numbers(test.size()), test, "the test batch");
  return task;
}

std::shared_ptr<const Dataset> read_cifar(const Task& task, const TaskOptions&,
                                          const std::string& path) {
  auto images = std::make_shared<Images>(task.longest);
  add_cifar_file(*images, path);
  return images;
}

// --- Pathfinder ---

Task restore_pathfinder(const TaskOptions& options, const std::string&,
                        const std::string&) {
  const auto drawn =
      argument([&] { return arena_pathfinder(options.size, options.difficulty); });
  Task task = of_images("pathfinder", drawn.size, options);
  task.labels = {"apart", "connected"};
  task.facts.push_back(options.difficulty + ", curves of " +
                       std::to_string(drawn.dashes) + " dashes in " +
                       std::to_string(drawn.size) + " x " + std::to_string(drawn.size));
  return task;
}

Task outline_pathfinder(const TaskOptions& options) {
  return restore_pathfinder(options, {}, {});
}

// Images that are drawn when they are read, as many as the release has.
Task draw(Task task, const TaskOptions& options) {
  const auto drawn = arena_pathfinder(options.size, options.difficulty);
  const struct {
    const char* split;
    int64_t most, standard, first;
  } parts[] = {{"train", options.examples, 160000, 0},
               {"valid", options.judged, 20000, int64_t{1} << 40},
               {"test", options.judged, 20000, int64_t{1} << 41}};
  for (const auto& [split, most, standard, first] : parts) {
    const int64_t count = most > 0 ? most : standard;
    task.texts[split] = std::make_shared<PathfinderImages>(
        drawn, static_cast<uint64_t>(options.split_seed), first, count);
    task.facts.push_back(std::string(split) + ": " + std::to_string(count) +
                         " drawn by this program, seed " +
                         std::to_string(options.split_seed));
  }
  return task;
}

std::shared_ptr<const Images> read_images(const std::vector<PathfinderFile>& files,
                                          const Numbers& numbers, int64_t side) {
  auto images = std::make_shared<Images>(side * side);
  images->reserve(std::ssize(numbers));
  for (const int64_t number : numbers) {
    const PathfinderFile& file = files[static_cast<size_t>(number)];
    images->add(read_pathfinder(file, side), file.label);
  }
  return images;
}

Task open_pathfinder(const TaskOptions& options) {
  Task task = outline_pathfinder(options);
  if (options.data.empty()) return draw(std::move(task), options);
  const std::string inner = pathfinder_folder(options.size, options.difficulty);
  const std::string folder =
      folder_with(options,
                  {inner, "lra_release/" + inner, "lra_release/lra_release/" + inner,
                   inner.substr(inner.find('/') + 1), ""},
                  "metadata",
                  "`longspan data pathfinder --out DIR` draws such images, and without "
                  "--data the task draws them itself");
  const PathfinderListing listing =
      list_pathfinder(folder.substr(0, folder.size() - 1));
  const auto count = std::ssize(listing.files);
  const Key key{static_cast<uint64_t>(options.split_seed)};
  Numbers learned = all_numbers(count);
  Numbers test = draw_out(learned, share_of(options.test_share, count), mix(key, 1));
  Numbers valid = draw_out(learned, share_of(options.valid_share, count), mix(key, 2));
  require(!learned.empty() && !valid.empty() && !test.empty(), folder,
          ": too few images to split: ", learned.size(), " to train on, ", valid.size(),
          " to choose by and ", test.size(), " to judge by");
  if (listing.empty > 0)
    task.facts.push_back(std::to_string(listing.empty) + " empty files left out");
  const std::string from = drawn_from(inner, options);
  const auto add = [&](const char* split, Numbers numbers) {
    task.texts[split] = read_images(
        listing.files, limited(std::move(numbers), options, split, from, task),
        options.size);
  };
  add("train", std::move(learned));
  add("valid", std::move(valid));
  add("test", std::move(test));
  return task;
}

// A folder with imgs/ and metadata/.
std::shared_ptr<const Dataset> read_folder(const Task&, const TaskOptions& options,
                                           const std::string& path) {
  const auto files = list_pathfinder(path).files;
  return read_images(files, all_numbers(std::ssize(files)), options.size);
}

}  // namespace

const TaskKind kCifar10{.name = "cifar10",
                        .open = open_cifar,
                        .outline = outline_cifar,
                        .restore = restore_cifar,
                        .read = read_cifar};

const TaskKind kPathfinder{.name = "pathfinder",
                           .open = open_pathfinder,
                           .outline = outline_pathfinder,
                           .restore = restore_pathfinder,
                           .read = read_folder};

}  // namespace longspan
