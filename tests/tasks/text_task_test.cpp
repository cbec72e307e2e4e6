// The task text: from files to measures of models.

#include <cmath>
#include <fstream>

#include "longspan/attention/mechanism.h"
#include "longspan/data/made_text.h"
#include "longspan/data/token_windows.h"
#include "longspan/train/experiment.h"
#include "tests/support/folder.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

class TextTask : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return name;
  }
  TaskOptions options(const std::string& train) const {
    return {.name = "text", .data = folder_ / "", .longest = 16, .train = train};
  }
  Experiment experiment(const std::string& train) const {
    Experiment all{.task = options(train)};
    all.model = {.layers = 1, .embedding = 8, .heads = 2, .inner = 8, .dropout = 0};
    all.train.steps = 4;
    all.train.batch = 4;
    all.train.evaluate_every = 2;
    all.train.learning_rate = 0.01;
    all.train.tensorboard = false;
    return all;
  }

  const Folder folder_;
};

const TextDataset& text_of(const Task& task, std::string_view split) {
  return dynamic_cast<const TextDataset&>(task.split(split));
}

TEST_F(TextTask, CountsWhatItAsks) {
  const std::string text = make_text(2000, 1);
  const auto size = std::ssize(text);
  const Task task = open_task(options(write("a.txt", text)));
  EXPECT_EQ(task.goal, Goal::next_token);
  EXPECT_EQ(task.ids, 258);
  EXPECT_EQ(task.end_of_text, 257);
  EXPECT_EQ(task.mask, -1);
  const int64_t tenth = std::llround(0.1 * static_cast<double>(size));
  EXPECT_EQ(text_of(task, "valid").bytes(), tenth);
  EXPECT_EQ(text_of(task, "test").bytes(), tenth);
  EXPECT_EQ(text_of(task, "train").bytes(), size - 2 * tenth);
  EXPECT_EQ(task.decode(task.encode("any text")), "any text");
  EXPECT_EQ(task.decode(std::vector<int32_t>{98, 257, 99}), "ab");
}

TEST_F(TextTask, IsRestoredWithoutItsText) {
  for (const char* goal : {"next", "masked"})
    for (const char* tokens : {"bytes", "words"}) {
      TaskOptions all = options(write("a.txt", make_text(2000, 1)));
      all.goal = goal;
      all.tokens = tokens;
      const Task task = open_task(all);
      all.data = "nowhere";
      const Task again = restore_task(all, task.saved_labels, task.saved_vocabulary);
      EXPECT_EQ(again.ids, task.ids);
      EXPECT_EQ(again.goal, task.goal);
      EXPECT_EQ(again.end_of_text, task.end_of_text);
      EXPECT_EQ(again.mask, task.mask);
      EXPECT_EQ(again.longest, task.longest);
      const std::string text = "Ada saw the river.";
      EXPECT_EQ(again.encode(text), task.encode(text));
      EXPECT_EQ(again.decode(again.encode(text)), text);
      const Task sizes = outline_task(all);
      if (all.tokens == "bytes") {
        EXPECT_EQ(sizes.ids, task.ids);
        EXPECT_EQ(sizes.mask, task.mask);
      }
    }
}

TEST_F(TextTask, RefusesWhatDoesNotFit) {
  TaskOptions all = options("none.txt");
  EXPECT_NE(refusal([&] { open_task(all); }).find("cannot read"), std::string::npos);
  all.train = write("a.txt", make_text(2000, 1));
  all.context = 16;
  EXPECT_NE(refusal([&] { open_task(all); }).find("must be less than task.longest, 16"),
            std::string::npos);
  all.context = 4;
  all.goal = "masked";
  EXPECT_NE(refusal([&] { open_task(all); }).find("task.context is for task.goal next"),
            std::string::npos);
  all.context = 0;
  all.valid_share = 0.6;
  all.test_share = 0.6;
  EXPECT_NE(refusal([&] { open_task(all); }).find("must leave something to train on"),
            std::string::npos);
}

// Scores of the test text by batches of any size are the same, and are those of a model
// that is asked by hand.
TEST_F(TextTask, IsJudgedExactly) {
  Experiment all = experiment(write("a.txt", make_text(3000, 1)));
  all.train.precision = "double";
  for (const int64_t context : {0, 5}) {
    all.task.context = context;
    const Task task = open_task(all.task);
    const TaskModel model = make_model(all, task);
    const auto objective = model.objective(task);
    const TextDataset& test = text_of(task, "test");
    const Score one = *score(*objective, test, {.batch = 1});
    const Score many = *score(*objective, test, {.batch = 7});
    EXPECT_EQ(one.answers, test.bytes());
    EXPECT_EQ(many.answers, test.bytes());
    EXPECT_NEAR(one.loss, many.loss, 1e-12);
    EXPECT_EQ(one.accuracy, many.accuracy);

    const torch::NoGradGuard without_gradients;
    double nats = 0;
    for (int64_t window = 0; window < test.size(); ++window) {
      const int64_t numbers[] = {window};
      const Batch batch = test.batch(numbers);
      Pass pass;
      const auto shares = model.language->log_probabilities(
          model.language->forward(batch.ids, batch.tokens, pass));
      for (int64_t i = 0; i < batch.ids.size(1); ++i)
        if (const auto target = batch.targets[0][i].item<int64_t>(); target >= 0)
          nats -= shares[0][i][target].item<double>();
    }
    EXPECT_NEAR(one.loss * static_cast<double>(one.answers), nats, 1e-9 * nats);
    const Measures measures = objective->measures(test, one);
    ASSERT_EQ(measures.size(), 3u);
    EXPECT_NEAR(measures[0].second, std::exp(nats / static_cast<double>(one.answers)),
                1e-6);
    EXPECT_NEAR(std::log(measures[1].second), nats / static_cast<double>(test.words()),
                1e-9 * nats);
    EXPECT_NEAR(measures[2].second,
                nats / std::log(2.0) / static_cast<double>(test.bytes()), 1e-9);
  }
}

// Micro-batches hide the same tokens.
TEST_F(TextTask, IsTrainedByAnyGoal) {
  for (const std::string goal : {"next", "masked", "masked alone"}) {
    Experiment all = experiment(write("a.txt", make_text(3000, 1)));
    all.task.goal = goal.substr(0, goal.find(' '));
    all.task.pairs = goal != "masked alone";
    const std::string whole = folder_ / (goal + "-whole");
    const std::string parts = folder_ / (goal + "-parts");
    const RunResult first = run_experiment(all, {.folder = whole, .quiet = true});
    all.train.micro_batch = 2;
    const RunResult second = run_experiment(all, {.folder = parts, .quiet = true});
    ASSERT_TRUE(first.training.test && second.training.test);
    EXPECT_NEAR(first.training.test->loss, second.training.test->loss, 1e-4);
    EXPECT_EQ(first.training.test->answers, second.training.test->answers);
    TrainedModel trained = open_run(whole);
    read_test(trained.task, all.task, folder_ / write("b.txt", "Ada saw the river.\n"));
    const auto objective = trained.model.objective(trained.task);
    const Score judged = *score(*objective, trained.task.split("test"), {.batch = 3});
    EXPECT_EQ(judged.answers, all.task.goal == "next" ? 19 : 3);
  }
}

TEST_F(TextTask, CarriesOnWithoutOverlap) {
  if (find_mechanism("transformer_xl").can.carry != Carry::per_example) GTEST_SKIP();
  Experiment all = experiment(write("a.txt", make_text(2000, 1)));
  all.model.attention = Value::parse("{name: transformer_xl, memory: 16}");
  all.model.positions = "none";
  all.task.context = 4;
  const auto objective = [&] {
    const Task task = open_task(all.task);
    make_model(all, task).objective(task);
  };
  EXPECT_NE(refusal(objective).find("task.context must be 0"), std::string::npos);
  all.task.context = 0;
  all.task.documents = "apart";
  EXPECT_NE(refusal(objective).find("task.documents must be joined"),
            std::string::npos);
  all.task.documents = "joined";
  EXPECT_EQ(refusal(objective), "accepted");
}

}  // namespace
}  // namespace longspan::testing
