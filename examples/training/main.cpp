// Trains a model on examples of one's own, without files but those of the run: which of
// two marks, 1 or 2, comes first in a sequence of noise?
//
// Usage: training FOLDER. The run is kept in FOLDER; started again after a stop, it
// goes on.

#include <iostream>
#include <random>

#include <longspan/base/error.h>
#include <longspan/models/classifier.h>
#include <longspan/train/trainer.h>

int main(int count, char** words) {
  if (count != 2) {
    std::cerr << "usage: training FOLDER\n";
    return 2;
  }
  longspan::Task task{
      .name = "first mark", .ids = 8, .longest = 24, .labels = {"1", "2"}};
  std::mt19937 random(1);
  const auto fill = [&](longspan::Examples& examples, int size) {
    for (int i = 0; i < size; ++i) {
      std::vector<int32_t> ids(8 + random() % 17);
      for (auto& id : ids) id = static_cast<int32_t>(3 + random() % 5);
      const size_t first = random() % (ids.size() / 2);
      const size_t second = ids.size() / 2 + random() % (ids.size() / 2);
      const int label = static_cast<int>(random() % 2);
      ids[first] = 1 + label;
      ids[second] = 2 - label;
      examples.add(ids, label);
    }
  };
  fill(task.train, 2000);
  fill(task.valid, 200);
  fill(task.test, 200);

  torch::manual_seed(1);
  longspan::Classifier model({.layers = 1, .embedding = 32, .heads = 2, .inner = 64},
                             task.ids, task.longest,
                             static_cast<int64_t>(task.labels.size()));
  longspan::Classification objective(task, model);
  longspan::TrainOptions options;
  options.steps = 300;
  options.learning_rate = 3e-3;
  try {
    const auto result =
        longspan::train(objective, options, {.folder = words[1], .resume = "auto"});
    if (!result.test) return 1;  // stopped by a signal
    std::cout << "right on new sequences: " << 100 * result.test->accuracy << " %\n";
    return result.test->accuracy > 0.9 ? 0 : 1;
  } catch (const longspan::Error& error) {
    std::cerr << "training: " << error.what() << '\n';
    return 1;
  }
}
