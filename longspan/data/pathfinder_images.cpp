#include "longspan/data/pathfinder_images.h"

#include <algorithm>
#include <deque>
#include <sstream>

#include "longspan/base/checksum.h"
#include "longspan/base/progress.h"
#include "longspan/data/pathfinder_files.h"

namespace longspan {
namespace {

struct Drawn {
  std::string text;
  std::shared_ptr<const Images> images;
};

// Those drawn last.
struct Kept {
  std::mutex changing;
  std::deque<Drawn> sets;

  std::shared_ptr<const Images> find(const std::string& text) {
    const std::lock_guard lock(changing);
    const auto found = std::ranges::find(sets, text, &Drawn::text);
    return found == sets.end() ? nullptr : found->images;
  }
  void make_room() {
    constexpr size_t kMost = 3;
    const std::lock_guard lock(changing);
    if (sets.size() == kMost) sets.pop_front();
  }
  void add(Drawn drawn) {
    const std::lock_guard lock(changing);
    sets.push_back(std::move(drawn));
  }
};

Kept& kept() {
  static Kept all;
  return all;
}

}  // namespace

PathfinderImages::PathfinderImages(const PathfinderOptions& options, uint64_t seed,
                                   int64_t first, int64_t count)
    : options_(options), seed_(seed), first_(first), count_(count) {}

int64_t PathfinderImages::label(int64_t number) const {
  return pathfinder_label(
      pathfinder_key(seed_, static_cast<uint64_t>(first_ + number)));
}

std::string PathfinderImages::text() const {
  std::ostringstream text;
  text << options_.size << ' ' << options_.dashes << ' ' << options_.distractors << ' '
       << options_.distractor_dashes << ' ' << options_.dash << ' '
       << options_.thickness << ' ' << options_.padding << ' ' << options_.marker << ' '
       << options_.distance << ' ' << options_.continuity;
  for (const double margin : options_.margins) text << ' ' << margin;
  text << " seed " << seed_ << " from " << first_ << " to " << first_ + count_;
  return text.str();
}

uint32_t PathfinderImages::fingerprint() const {
  constexpr int64_t kFew = 4;
  uint32_t print = crc32c(text());
  for (const PathfinderImage& image :
       draw_pathfinder(options_, seed_, first_, std::min(kFew, count_)))
    print = crc32c(
        {reinterpret_cast<const char*>(image.pixels.data()), image.pixels.size()},
        print);
  return print;
}

const Images& PathfinderImages::images() const {
  const std::lock_guard lock(drawing_);
  const std::string wanted = text();
  if (!images_) images_ = kept().find(wanted);
  if (images_) return *images_;
  kept().make_room();
  auto made = std::make_shared<Images>(length(0));
  made->reserve(count_);
  const Progress progress("drawing images", count_);
  constexpr int64_t kAtOnce = 1000;
  for (int64_t done = 0; done < count_; done += kAtOnce) {
    progress.tell(done);
    for (const PathfinderImage& image : draw_pathfinder(
             options_, seed_, first_ + done, std::min(kAtOnce, count_ - done)))
      made->add(image.pixels, image.label);
  }
  progress.tell(count_);
  images_ = made;
  kept().add({wanted, made});
  return *images_;
}

}  // namespace longspan
