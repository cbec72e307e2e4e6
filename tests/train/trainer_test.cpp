#include "longspan/train/trainer.h"

#include <unistd.h>

#include <csignal>
#include <fstream>
#include <random>
#include <sstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "longspan/base/read_file.h"
#include "longspan/train/checkpoint.h"
#include "tests/support/folder.h"
#include "tests/support/tensors.h"

namespace longspan {
namespace {

using testing::Folder;
using testing::refusal;
using testing::Tensor;

Task small_task() {
  Task task{.name = "parity", .ids = 6, .longest = 12, .labels = {"even", "odd"}};
  std::mt19937 random(3);
  const auto fill = [&](Examples& examples, int count) {
    for (int i = 0; i < count; ++i) {
      std::vector<int32_t> ids(3 + random() % 9);
      for (auto& id : ids) id = static_cast<int32_t>(1 + random() % 5);
      examples.add(ids, ids[0] % 2);
    }
  };
  fill(task.train, 50);
  fill(task.valid, 12);
  fill(task.test, 12);
  return task;
}

TrainOptions small_training() {
  TrainOptions options;
  options.steps = 20;
  options.batch = 7;
  options.micro_batch = 3;
  options.evaluate_every = 6;
  options.evaluate_batch = 5;
  options.save_every = 4;
  options.log_every = 3;
  options.learning_rate = 0.01;
  options.schedule = Value::parse("[{name: warmup, steps: 5}, linear]");
  options.clip = 0.5;
  options.bucket = 3;
  options.tensorboard = false;
  return options;
}

TransformerOptions small_model() {
  return {.layers = 1,
          .embedding = 8,
          .heads = 2,
          .inner = 8,
          .dropout = 0.1,
          .attention_dropout = 0.1};
}

// Cross-entropy that is asked to stop, or gives a bad loss, at the given calls.
class Troubled final : public Objective {
 public:
  Troubled(const Task& task, Classifier& model) : plain_(task, model) {}

  torch::nn::Module& model() override { return plain_.model(); }
  const Dataset& examples(std::string_view split) const override {
    return plain_.examples(split);
  }
  BatchSums evaluate(const Batch& batch, Pass& pass) override {
    ++calls;
    if (pass.training) sampled.push_back(pass.sampling);
    if (calls == signal_at) std::raise(SIGTERM);
    BatchSums sums = plain_.evaluate(batch, pass);
    if (calls == bad_at) sums.loss = sums.loss * bad_factor;
    if (!pass.training) usleep(evaluation_pause);
    return sums;
  }
  BatchSums evaluate_mean(const Batch& batch, const Pass& pass,
                          int64_t passes) override {
    return plain_.evaluate_mean(batch, pass, passes);
  }

  int calls = 0, signal_at = -1, bad_at = -1;
  double bad_factor = 1;
  useconds_t evaluation_pause = 0;
  std::vector<bool> sampled;  // of every training pass

 private:
  Classification plain_;
};

struct Trained {
  TrainResult result;
  std::vector<Tensor> weights;
};

// One process's part of a training.
Trained train_part(const std::string& folder, const TrainOptions& options,
                   const std::string& resume, int signal_at = -1,
                   const TransformerOptions& encoder = small_model(),
                   int* calls = nullptr) {
  const Task task = small_task();
  torch::manual_seed(1);
  Classifier model(encoder, task.ids, task.longest, 2);
  convert(model, device_of(options), dtype_of(options));
  Troubled objective(task, model);
  objective.signal_at = signal_at;
  Trained trained{
      train(objective, options, {.folder = folder, .resume = resume, .quiet = true}),
      {}};
  for (const Tensor& parameter : model.parameters())
    trained.weights.push_back(parameter.detach().cpu().clone());
  if (calls) *calls = objective.calls;
  return trained;
}

std::string without_seconds(const std::string& text) {
  std::istringstream in(text);
  std::string kept;
  for (std::string line; std::getline(in, line);) {
    for (const char* timed :
         {"\"seconds\"", "\"seconds_aside\"", "\"training_seconds\"",
          "\"tokens_per_second\"", "\"peak_bytes\""})
      if (const size_t at = line.find(timed); at != std::string::npos)
        line.erase(at, line.find_first_of(",}", at) - at);
    kept += line + "\n";
  }
  return kept;
}

void expect_equal(const Trained& a, const Trained& b, const std::string& what) {
  for (size_t i = 0; i < a.weights.size(); ++i)
    EXPECT_TRUE(torch::equal(a.weights[i], b.weights[i])) << what << ", weight " << i;
  ASSERT_TRUE(a.result.best && b.result.best && a.result.test && b.result.test) << what;
  EXPECT_EQ(a.result.best->step, b.result.best->step) << what;
  EXPECT_EQ(a.result.best->score.loss, b.result.best->score.loss) << what;
  EXPECT_EQ(a.result.test->loss, b.result.test->loss) << what;
  EXPECT_EQ(a.result.tokens, b.result.tokens) << what;
  EXPECT_EQ(a.result.end, b.result.end) << what;
}

// Interrupted at every call of the model, in steps, evaluations and the test, a
// training goes on to the same end.
void expect_survives_signals(const TrainOptions& options, const std::string& what,
                             const TransformerOptions& encoder = small_model()) {
  const Folder folder;
  int calls = 0;
  const Trained whole = train_part(folder / "whole", options, "", -1, encoder, &calls);
  ASSERT_GT(calls, 40);
  for (int at = 1; at <= calls; at += 7) {
    const std::string run = folder / ("at" + std::to_string(at));
    const Trained first = train_part(run, options, "auto", at, encoder);
    EXPECT_EQ(first.result.signal, SIGTERM) << what << ", call " << at;
    EXPECT_FALSE(first.result.test) << what << ", call " << at;
    train_part(run, options, "auto", 11, encoder);  // and again
    const Trained last = train_part(run, options, "auto", -1, encoder);
    expect_equal(whole, last, what + ", call " + std::to_string(at));
    EXPECT_EQ(
        without_seconds(read_file(folder / "whole/checkpoints/step-20/state.json")),
        without_seconds(read_file(run + "/checkpoints/step-20/state.json")))
        << what << ", call " << at;
  }
}

TEST(ATraining, GoesOnAfterASignalAnywhere) {
  expect_survives_signals(small_training(), "plain");
}

TEST(ATraining, GoesOnWithEveryOption) {
  TrainOptions last = small_training();
  last.average = "last";
  last.average_last = 2;
  last.best_by = "loss";
  last.pad_to = 8;
  expect_survives_signals(last, "the mean of the last, padded");

  TrainOptions ema = small_training();
  ema.average = "ema";
  ema.average_decay = 0.8;
  ema.first_batch = 2;
  ema.ramp_steps = 9;
  ema.precision = "double";
  ema.prefetch = 0;
  ema.adamw.weight_decay = 0.1;
  ema.schedule = Value::List{};
  TransformerOptions again = small_model();
  again.recompute = true;
  expect_survives_signals(ema, "a moving average, a ramp, double, recomputed", again);
}

TEST(ATraining, GoesOnWithBuffersThatItChanges) {
  TransformerOptions encoder = small_model();
  encoder.attention = Value::parse("{name: routing, clusters: 3, decay: 0.5}");
  expect_survives_signals(small_training(), "centroids", encoder);
}

TEST(ATraining, GoesOnInBfloat16) {
  TrainOptions options = small_training();
  options.precision = "bfloat16";
  expect_survives_signals(options, "bfloat16");
  options.average = "ema";
  options.average_decay = 0.8;
  TransformerOptions again = small_model();
  again.recompute = true;
  expect_survives_signals(options, "bfloat16, a moving average, recomputed", again);
}

TEST(ATraining, GoesOnOnEveryDevice) {
  for (const auto device : testing::devices()) {
    if (device.is_cpu()) continue;
    TrainOptions options = small_training();
    options.device = "cuda";
    for (const char* precision : {"float", "bfloat16"}) {
      options.precision = precision;
      expect_survives_signals(options, std::string("CUDA, ") + precision);
    }
  }
}

// With all examples in every step: what chance adds would hide what rounding does.
TEST(ATraining, LearnsInBfloat16AsInFloat) {
  TransformerOptions encoder = small_model();
  encoder.embedding = encoder.inner = 16;
  encoder.dropout = encoder.attention_dropout = 0;
  for (const auto device : testing::devices()) {
    const Folder folder;
    TrainOptions options = small_training();
    options.device = device.is_cuda() ? "cuda" : "cpu";
    options.steps = options.evaluate_every = 60;
    options.batch = options.micro_batch = 50;
    const auto loss_in = [&](const char* precision) {
      options.precision = precision;
      const Task task = small_task();
      torch::manual_seed(1);
      Classifier model(encoder, task.ids, task.longest, 2);
      convert(model, device, dtype_of(options));
      Classification objective(task, model);
      const auto loss = [&] {
        return score(objective, task.train, {.batch = 10, .device = device})->loss;
      };
      EXPECT_GT(loss(), 0.6);
      train(objective, options, {.folder = folder / precision, .quiet = true});
      return loss();
    };
    const double exact = loss_in("float"), rounded = loss_in("bfloat16");
    EXPECT_LT(exact, 0.1);
    EXPECT_NEAR(rounded, exact, 0.03);
    // What is kept is what was updated, not what it was rounded to.
    bool has_more = false;
    for (const auto& [name, weight] : read_weights(folder / "bfloat16/best")) {
      EXPECT_EQ(weight.scalar_type(), torch::kFloat) << name;
      has_more = has_more ||
                 !torch::equal(weight, weight.to(torch::kBFloat16).to(torch::kFloat));
    }
    EXPECT_TRUE(has_more);
  }
}

TEST(ATraining, KnowsThePeakOfAllItsParts) {
  const Folder folder;
  Tensor beside = torch::zeros({1 << 24});  // 64 MiB
  const Trained first =
      train_part(folder / "run", small_training(), "auto", /*signal_at=*/30);
  EXPECT_GE(first.result.peak_bytes, beside.nbytes());
  beside = Tensor();
  const Trained last = train_part(folder / "run", small_training(), "auto");
  EXPECT_EQ(last.result.signal, 0);
  EXPECT_GE(last.result.peak_bytes, first.result.peak_bytes);
}

// Evaluations and checkpoints take time, but none of that of training.
TEST(ATraining, CountsSpeedWithoutEvaluations) {
  const Folder folder;
  const Task task = small_task();
  Classifier model(small_model(), task.ids, task.longest, 2);
  Troubled objective(task, model);
  objective.evaluation_pause = 20'000;
  train(objective, small_training(), {.folder = folder / "run", .quiet = true});
  std::istringstream lines(read_file(folder / "run/metrics.jsonl"));
  double spent = 0, seconds = 0, training = 0;
  int64_t tokens = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto event = nlohmann::json::parse(line);
    if (event["event"] != "train") continue;
    const int64_t now = event["tokens"];
    spent +=
        static_cast<double>(now - tokens) / event["tokens_per_second"].get<double>();
    tokens = now;
    seconds = event["seconds"];
    training = event["training_seconds"];
  }
  EXPECT_NEAR(spent, training, 1e-3 * training);
  // Three evaluations of three batches, before the last.
  EXPECT_GE(seconds - training, 3 * 3 * 0.02);
}

TEST(ATraining, RepeatsItself) {
  const Folder folder;
  const TrainOptions options = small_training();
  const Trained first = train_part(folder / "a", options, "");
  expect_equal(first, train_part(folder / "b", options, ""), "again");
  TrainOptions other = options;
  other.seed = 2;
  const Trained second = train_part(folder / "c", other, "");
  EXPECT_FALSE(torch::equal(first.weights[0], second.weights[0]));
}

TEST(ATraining, AddsUpMicroBatches) {
  const Folder folder;
  TrainOptions options = small_training();
  options.precision = "double";
  options.micro_batch = 7;
  options.bucket = 0;
  TransformerOptions plain = small_model();
  plain.dropout = plain.attention_dropout = 0;
  const Trained at_once = train_part(folder / "a", options, "", -1, plain);
  options.micro_batch = 2;
  const Trained in_parts = train_part(folder / "b", options, "", -1, plain);
  for (size_t i = 0; i < at_once.weights.size(); ++i)
    EXPECT_TRUE(testing::close(in_parts.weights[i], at_once.weights[i], 1e-8)) << i;
}

TEST(ATraining, EndsWithTheFirstBudgetUsedUp) {
  struct Case {
    const char* what;
    int64_t steps;
    double epochs;
    int64_t tokens;
    int64_t expected;
  };
  const Case cases[] = {{"steps", 5, 100, 0, 5},
                        {"epochs", 1000, 1, 0, 8},  // of 50 examples, 7 a step
                        {"part of an epoch", 0, 0.5, 0, 4},
                        {"tokens", 0, 0, 100, 3}};
  for (const Case& budget : cases) {
    const Folder folder;
    TrainOptions options = small_training();
    options.steps = budget.steps;
    options.epochs = budget.epochs;
    options.tokens = budget.tokens;
    options.schedule = Value::List{};
    const Trained trained = train_part(folder / "run", options, "");
    EXPECT_EQ(trained.result.end, "the budget is used up");
    if (budget.tokens == 0) {
      EXPECT_EQ(trained.result.step, budget.expected) << budget.what;
    } else {
      EXPECT_GE(trained.result.tokens, budget.tokens);
      EXPECT_LT(trained.result.tokens, budget.tokens + 7 * 12);
    }
    EXPECT_TRUE(trained.result.test) << budget.what;
  }
}

TEST(ATraining, EndsTheRateWithTheEarlierBudget) {
  const Folder folder;
  TrainOptions options = small_training();
  options.steps = 1000;
  options.epochs = 1;
  options.log_every = 1;
  options.schedule = Value::parse("[linear]");
  train_part(folder / "run", options, "");
  const std::string metrics = read_file(folder / "run/metrics.jsonl");
  // The last of 8 steps has an eighth of the rate.
  EXPECT_NE(metrics.find("\"step\":8,\"event\":\"train\""), std::string::npos);
  EXPECT_NE(metrics.find("\"learning_rate\":0.00125,"), std::string::npos) << metrics;
}

// The last part of the steps meets all keys, also after a stop.
TEST(ATraining, EndsWithoutSampling) {
  const Folder folder;
  const Task task = small_task();
  TrainOptions options = small_training();
  options.batch = options.micro_batch = 10;
  options.full_share = 0.25;
  const auto run = [&](const std::string& name, int signal_at) {
    torch::manual_seed(1);
    TransformerOptions encoder = small_model();
    encoder.attention = "ssa";
    Classifier model(encoder, task.ids, task.longest, 2);
    Troubled objective(task, model);
    objective.signal_at = signal_at;
    train(objective, options,
          {.folder = folder / name, .resume = "auto", .quiet = true});
    return objective.sampled;
  };
  std::vector<bool> expected(15, true);
  expected.insert(expected.end(), 5, false);
  EXPECT_EQ(run("whole", -1), expected);
  EXPECT_EQ(run("parts", 23).size(), 17u);  // after 2 evaluations of 3 batches
  EXPECT_EQ(run("parts", -1), std::vector<bool>(3, false));
  EXPECT_EQ(read_weights(folder / "whole/checkpoints/step-20").size(),
            read_weights(folder / "parts/checkpoints/step-20").size());
  const auto parts = read_weights(folder / "parts/checkpoints/step-20");
  for (const auto& [name, weight] : read_weights(folder / "whole/checkpoints/step-20"))
    EXPECT_TRUE(weight.equal(parts.at(name))) << name;
}

// Says what it was asked, and averages.
class Asked final : public Objective {
 public:
  Asked(const Task& task, Classifier& model) : plain_(task, model) {}

  torch::nn::Module& model() override { return plain_.model(); }
  const Dataset& examples(std::string_view split) const override {
    return plain_.examples(split);
  }
  BatchSums evaluate(const Batch& batch, Pass& pass) override {
    return plain_.evaluate(batch, pass);
  }
  BatchSums evaluate_mean(const Batch& batch, const Pass& pass,
                          int64_t passes) override {
    Draw draw = pass.draw;
    draws.push_back(draw.key().bits);
    return plain_.evaluate_mean(batch, pass, passes);
  }
  Carry carry() const override { return plain_.carry(); }
  bool samples() const override { return plain_.samples(); }

  std::vector<uint64_t> draws;

 private:
  Classification plain_;
};

TEST(Samples, AreAveragedAsProbabilities) {
  const Task task = small_task();
  torch::manual_seed(1);
  TransformerOptions encoder = small_model();
  encoder.attention = Value::parse("{name: ssa, windows: 3}");
  Classifier model(encoder, task.ids, task.longest, 2);
  model.eval();
  Classification objective(task, model);
  const std::vector<int64_t> numbers = {0, 1, 2, 3, 4, 5, 6};
  const Batch batch = task.test.batch(numbers, {});
  Pass like;
  like.draw = Draw(7);
  const torch::NoGradGuard without_gradients;
  Draw draw = like.draw;
  const Key key = draw.key();
  Tensor sum = torch::zeros({7, 2});
  for (int number = 0; number < 4; ++number) {
    Pass pass;
    pass.sampling = true;
    pass.draw = Draw(key.bits, static_cast<uint64_t>(number));
    const Tensor shares =
        torch::softmax(model.forward(batch.ids, batch.tokens, pass), 1);
    EXPECT_FALSE(number > 0 && testing::close(sum / number, shares, 1e-4));
    sum = sum + shares;
  }
  const Tensor mean = sum / 4;
  const BatchSums got = objective.evaluate_mean(batch, like, 4);
  EXPECT_TRUE(testing::close(
      got.loss, -mean.log().gather(1, batch.labels.unsqueeze(1)).sum(), 1e-5));
  EXPECT_EQ(got.right.item<int64_t>(),
            (mean.argmax(1) == batch.labels).sum().item<int64_t>());
}

TEST(Samples, DifferFromBatchToBatch) {
  const Task task = small_task();
  torch::manual_seed(1);
  TransformerOptions encoder = small_model();
  for (const char* attention :
       {"ssa", "{name: grc, attention: ssa}", "{name: mixed, parts: [dense, ssa]}"}) {
    encoder.attention = Value::parse(attention);
    Classifier model(encoder, task.ids, task.longest, 2);
    Asked first(task, model), again(task, model);
    const auto judge = [&](Asked& objective) {
      return score(objective, task.test, {.batch = 5, .samples = 2})->loss;
    };
    EXPECT_EQ(judge(first), judge(again)) << attention;
    EXPECT_EQ(first.draws, again.draws);
    std::ranges::sort(first.draws);
    EXPECT_EQ(first.draws.size(), 3u);
    EXPECT_TRUE(std::ranges::adjacent_find(first.draws) == first.draws.end());
  }
  for (const char* attention : {"dense", "{name: ssa, windows: 1}"}) {
    encoder.attention = Value::parse(attention);
    Classifier model(encoder, task.ids, task.longest, 2);
    Classification objective(task, model);
    EXPECT_EQ(refusal([&] { score(objective, task.test, {.samples = 2}); }),
              "no mechanism of the model draws the keys it meets, so that all samples "
              "are alike; it needs one such as ssa");
  }
}

TEST(ATraining, StopsWithoutPatience) {
  const Folder folder;
  TrainOptions options = small_training();
  options.steps = 1000;
  options.learning_rate = 0;
  options.evaluate_every = 2;
  options.patience = 3;
  const Trained trained = train_part(folder / "run", options, "");
  EXPECT_EQ(trained.result.end, "no gain in 3 evaluations");
  EXPECT_EQ(trained.result.step, 8);
  EXPECT_EQ(trained.result.best->step, 2);
}

TEST(ATraining, GoesOnFromACheckpointElsewhere) {
  const Folder folder;
  TrainOptions options = small_training();
  options.keep = 100;
  const Trained whole = train_part(folder / "whole", options, "");
  const std::string middle = folder / "whole/checkpoints/step-8";
  // Stopped at once: what it goes on from is in the new folder already.
  train_part(folder / "copy", options, middle, 1);
  const Trained copy = train_part(folder / "copy", options, "auto");
  for (const char* part : {"model", "optimizer"})
    EXPECT_EQ(read_file(folder / ("whole/checkpoints/step-20/" + std::string(part) +
                                  ".safetensors")),
              read_file(folder / ("copy/checkpoints/step-20/" + std::string(part) +
                                  ".safetensors")));
  // A finished one is judged, not passed over.
  const Trained judged =
      train_part(folder / "judged", options, folder / "whole/checkpoints/step-20");
  ASSERT_TRUE(judged.result.test);
  EXPECT_EQ(judged.result.best->step, 20);
}

TEST(ATraining, SeeksALostBestAnew) {
  const Folder folder;
  TrainOptions options = small_training();
  options.keep = 100;
  const Trained whole = train_part(folder / "run", options, "");
  ASSERT_LT(whole.result.best->step, 20) << "choose options with an earlier best";
  const std::string best =
      folder / ("run/checkpoints/step-" + std::to_string(whole.result.best->step));
  ASSERT_EQ(truncate((best + "/model.safetensors").c_str(), 100), 0);
  const Trained again = train_part(folder / "run", options, "auto");
  EXPECT_EQ(again.result.best->step, 20);
  EXPECT_NE(read_file(folder / "run/log.txt").find("is gone; the best is sought anew"),
            std::string::npos);
}

TEST(ATraining, NamesTheStepOfTrouble) {
  struct Case {
    double factor;
    const char* message;
  };
  const Case cases[] = {
      {std::numeric_limits<double>::quiet_NaN(), "the loss of step 5 is not a number"},
      {std::numeric_limits<double>::infinity(), "the loss of step 5 is inf"},
      {1e6, "the loss of step 5, "},
  };
  for (const Case& trouble : cases) {
    const Folder folder;
    const Task task = small_task();
    torch::manual_seed(1);
    Classifier model(small_model(), task.ids, task.longest, 2);
    Troubled objective(task, model);
    objective.bad_at = 4 * 3 + 2;  // three micro-batches a step
    objective.bad_factor = trouble.factor;
    const std::string message = refusal([&] {
      train(objective, small_training(), {.folder = folder / "run", .quiet = true});
    });
    EXPECT_TRUE(message.starts_with(trouble.message)) << message;
    EXPECT_NE(message.find("is saved as " + (folder / "run/checkpoints/step-4")),
              std::string::npos)
        << message;
    EXPECT_NO_THROW(read_checkpoint(folder / "run/checkpoints/step-4"));
  }
}

TEST(ATraining, RefusesWhatCannotBe) {
  struct Case {
    std::function<void(TrainOptions&)> change;
    const char* message;
  };
  const Case cases[] = {
      {[](TrainOptions& o) { o.steps = 0; }, "training needs an end"},
      {[](TrainOptions& o) { o.first_batch = 9; }, "must not be more than train.batch"},
      {[](TrainOptions& o) { o.first_batch = 2; }, "needs train.ramp_steps"},
      {[](TrainOptions& o) { o.adamw.groups = Value::parse("[{match: nobody}]"); },
       "no parameter is called like 'nobody'"},
      {[](TrainOptions& o) { o.schedule = "cosine"; }, "must be a list of factors"},
  };
  for (const Case& bad : cases) {
    const Folder folder;
    TrainOptions options = small_training();
    bad.change(options);
    const std::string message =
        refusal([&] { train_part(folder / "run", options, ""); });
    EXPECT_NE(message.find(bad.message), std::string::npos) << message;
    EXPECT_EQ(folder.entries(), 0) << bad.message;  // nothing was made
  }
}

TEST(ATraining, HoldsItsFolderAlone) {
  const Folder folder;
  std::string message;
  const Task task = small_task();
  Classifier model(small_model(), task.ids, task.longest, 2);
  Classification objective(task, model);
  RunOptions run{.folder = folder / "run", .quiet = true};
  run.begin = [&] {
    message = refusal([&] { train_part(folder / "run", small_training(), "auto"); });
  };
  train(objective, small_training(), run);
  EXPECT_EQ(message, "another process trains in " + (folder / "run") +
                         "; choose another folder");
}

}  // namespace
}  // namespace longspan
