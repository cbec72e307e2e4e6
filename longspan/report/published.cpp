#include "longspan/report/published.h"

#include <algorithm>
#include <array>

namespace longspan::report {
namespace {

constexpr std::string_view kListOps = kArenaTasks[0], kText = kArenaTasks[1],
                           kRetrieval = kArenaTasks[2], kImage = kArenaTasks[3],
                           kPathfinder = kArenaTasks[4], kPathX = kArenaTasks[5];

template <size_t kTasks>
struct Line {
  std::string_view mechanism;
  double accuracies[kTasks];
};

template <size_t kTasks, size_t kLines>
constexpr auto listed(const std::string_view (&tasks)[kTasks],
                      const Line<kTasks> (&lines)[kLines]) {
  std::array<Published, kTasks * kLines> all{};
  size_t at = 0;
  for (const auto& [mechanism, accuracies] : lines)
    for (size_t task = 0; task < kTasks; ++task)
      all[at++] = {mechanism, tasks[task], accuracies[task]};
  return all;
}

// No model learned Path-X.
constexpr auto kArena =
    listed<5, 11>({kListOps, kText, kRetrieval, kImage, kPathfinder},
                  {{"dense", {36.37, 64.27, 57.46, 42.44, 71.40}},
                   {"local", {15.82, 52.98, 53.39, 41.46, 66.63}},
                   {"sparse_fixed", {17.07, 63.58, 59.59, 44.24, 71.71}},
                   {"longformer", {35.63, 62.85, 56.89, 42.22, 69.71}},
                   {"linformer", {35.70, 53.94, 52.27, 38.56, 76.34}},
                   {"reformer", {37.27, 56.10, 53.40, 38.07, 68.50}},
                   {"sinkhorn", {33.67, 61.20, 53.83, 41.23, 67.45}},
                   {"synthesizer", {36.99, 61.68, 54.67, 41.61, 69.45}},
                   {"bigbird", {36.05, 64.02, 59.29, 40.83, 74.87}},
                   {"linear", {16.13, 65.90, 53.09, 42.34, 75.30}},
                   {"performer", {18.01, 65.40, 53.82, 42.77, 77.05}}});

constexpr auto kDeep = listed<4, 11>({kTextInWords, kText, kListOps, kRetrieval},
                                     {{"bigbird", {86.0, 62.7, 36.7, 63.9}},
                                      {"linear", {86.7, 64.5, 37.1, 64.2}},
                                      {"linformer", {84.2, 56.3, 29.9, 64.5}},
                                      {"local", {74.2, 55.5, 36.8, 58.0}},
                                      {"longformer", {86.0, 61.6, 36.8, 61.2}},
                                      {"performer", {87.0, 64.4, 36.2, 65.0}},
                                      {"sinkhorn", {86.1, 62.3, 19.4, 64.0}},
                                      {"sparse_fixed", {85.7, 61.2, 37.0, 63.2}},
                                      {"synthesizer", {86.7, 61.4, 36.5, 71.1}},
                                      {"dense", {85.8, 62.6, 35.7, 64.0}},
                                      {"mixed", {87.3, 60.1, 37.1, 0}}});

constexpr auto kWide = listed<4, 11>({kTextInWords, kText, kListOps, kRetrieval},
                                     {{"bigbird", {85.3, 62.4, 37.3, 64.0}},
                                      {"linear", {88.0, 64.7, 37.4, 63.9}},
                                      {"linformer", {84.1, 52.6, 37.0, 63.1}},
                                      {"local", {73.9, 57.0, 37.7, 58.1}},
                                      {"longformer", {84.1, 57.5, 37.7, 58.1}},
                                      {"performer", {87.0, 64.8, 36.6, 66.3}},
                                      {"sinkhorn", {86.5, 61.6, 21.7, 65.7}},
                                      {"sparse_fixed", {85.7, 62.9, 36.9, 63.6}},
                                      {"synthesizer", {86.5, 61.1, 37.3, 72.3}},
                                      {"dense", {85.5, 62.4, 37.2, 64.4}},
                                      {"mixed", {86.8, 63.0, 38.0, 66.9}}});

constexpr auto kSmall = listed<4, 1>({kTextInWords, kText, kListOps, kRetrieval},
                                     {{"dense", {84.0, 59.6, 36.9, 62.4}}});

constexpr auto kCached = listed<1, 6>({kListOps}, {{"dense", {36.23}},
                                                   {"grc dense", {37.40}},
                                                   {"bigbird", {36.06}},
                                                   {"grc bigbird", {37.45}},
                                                   {"reformer", {37.27}},
                                                   {"grc reformer", {37.85}}});

constexpr auto kCombiner =
    listed<5, 3>({kListOps, kText, kRetrieval, kImage, kEasierPathfinder},
                 {{"dense", {36.38, 64.27, 57.46, 42.44, 88.81}},
                  {"combiner_fixed", {36.65, 64.99, 59.81, 41.67, 88.59}},
                  {"combiner_axial_rowmajor", {36.15, 64.36, 56.10, 41.33, 88.43}}});

constexpr Source kSources[] = {
    {"Long Range Arena", "Tay et al. 2020, arXiv:2011.04006, table 1", kArena},
    {"deep",
     "Brown et al. 2022, arXiv:2210.00640, table 2: 6 layers of 8 heads (matching: "
     "4 of 4)",
     kDeep},
    {"wide",
     "Brown et al. 2022, arXiv:2210.00640, table 2: 1 layer of 48 heads (matching: "
     "16)",
     kWide},
    {"small", "Brown et al. 2022, arXiv:2210.00640: 1 layer of 8 heads (matching: 4)",
     kSmall},
    {"GRC",
     "Zhang et al. 2023, arXiv:2312.12742: a cache of half the width beside attention",
     kCached},
    {"Combiner", "Ren et al. 2021, arXiv:2107.05768", kCombiner}};

const Value* at(const Value& map, std::string_view name) {
  const auto* all = map.as<Value::Map>();
  if (!all) return nullptr;
  const auto found = all->find(name);
  return found == all->end() ? nullptr : &found->second;
}

std::string name_of(const Value& attention) {
  const Value* const name = at(attention, "name");
  const auto* word = (name ? *name : attention).as<std::string>();
  return word ? *word : "";
}

// The name of a mechanism in the tables.
std::string mechanism_of(const Value& attention, std::string& reason) {
  constexpr double kPrinted = 0.5;
  const std::string name = name_of(attention);
  if (name != "grc") return name;
  const Value* const inner = at(attention, "attention");
  const Value* const ratio = at(attention, "ratio");
  if (ratio && ratio->as_number() != kPrinted)
    reason = "the published caches have half the width, ratio 0.5";
  return "grc " + (inner ? name_of(*inner) : "dense");
}

struct Wanted {
  std::string_view task;
  int64_t longest;  // in tokens
};

Wanted wanted_of(const TaskOptions& task, std::string& reason) {
  if (task.name == "listops") return {kListOps, 2000};
  if (task.name == "imdb" && task.tokens == "bytes") return {kText, 1000};
  if (task.name == "imdb" && task.tokens == "words") return {kTextInWords, 500};
  if (task.name == "retrieval") return {kRetrieval, 4000};
  if (task.name == "cifar10") return {kImage, 0};
  reason = "no paper here has numbers of the task " + task.name;
  if (task.name == "imdb") reason += " in " + task.tokens;
  if (task.name != "pathfinder") return {};
  const bool hard = task.difficulty == "hard";
  if (task.size == 32 && hard) return {kPathfinder, 0};
  if (task.size == 32 && task.difficulty == "intermediate")
    return {kEasierPathfinder, 0};
  if (task.size == 128 && hard) return {kPathX, 0};
  reason += ", " + task.difficulty + ", in " + std::to_string(task.size) + " x " +
            std::to_string(task.size);
  return {};
}

}  // namespace

std::span<const Source> published() { return kSources; }

std::optional<double> printed(const Source& source, std::string_view mechanism,
                              std::string_view task) {
  for (const Published& one : source.numbers)
    if (one.mechanism == mechanism && one.task == task && one.accuracy > 0)
      return one.accuracy;
  return std::nullopt;
}

Place place_of(const Experiment& experiment, const std::vector<std::string>& facts) {
  Place place;
  const auto [task, longest] = wanted_of(experiment.task, place.reason);
  place.task = task;
  if (!task.empty()) place.reason.clear();
  place.mechanism = mechanism_of(experiment.model.attention, place.reason);
  const int64_t ours = experiment.task.longest;
  if (ours > 0 && 10 * ours < 9 * longest)
    place.reason = "of at most " + std::to_string(ours) +
                   " tokens, where the published ones have " + std::to_string(longest);
  if (experiment.model.by_layer.text() != "[]")
    place.reason = "its layers have several mechanisms";
  for (const std::string& fact : facts)
    if (fact.find("not to be compared with published numbers") != fact.npos)
      place.reason = fact;
  return place;
}

}  // namespace longspan::report
