// The task text: from files to measures of models.

#include <algorithm>
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
  all.goal = "next";
  all.documents = "apart";
  EXPECT_NE(refusal([&] {
              open_task(all);
            }).find("a.txt is one long text, which has no documents to keep apart"),
            std::string::npos);
  all.documents = "joined";
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
  std::string rows = "text\n";
  for (int i = 0; i < 40; ++i) rows += make_text(60, i);
  Experiment all = experiment(write("a.tsv", rows));
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
  const Task task = open_task(all.task);
  const TaskModel model = make_model(all, task);
  all.train.batch = task.split("train").size() + 1;
  EXPECT_NE(refusal([&] {
              check_training(*model.objective(task), all.train);
            }).find("they come in as many streams"),
            std::string::npos);
}

// Masks are filled in what the model was trained on: a text with its end behind it.
TEST_F(TextTask, FillsMasksAsItWasTrained) {
  std::string text = make_text(4000, 1);
  for (const std::string kind : {"bytes", "words", "sentencepiece"}) {
    Experiment all = experiment(write("a.txt", text));
    all.task.goal = "masked";
    all.task.tokens = kind;
    all.task.vocabulary = 400;
    const std::string folder = folder_ / kind;
    try {
      run_experiment(all, {.folder = folder, .quiet = true});
    } catch (const UsageError& error) {
      EXPECT_TRUE(std::string(error.what()).starts_with("this build has no Sentence"));
      continue;
    }
    TrainedModel trained = open_run(folder);
    const auto [end, mask] = std::pair(trained.task.end_of_text, trained.task.mask);
    const std::string_view parts[] = {"Ada saw", " river."};
    const auto encoded = trained.task.encode_parts(parts);
    std::vector<int64_t> ids(encoded[0].begin(), encoded[0].end());
    const auto place = std::ssize(ids);
    ids.push_back(mask);
    ids.insert(ids.end(), encoded[1].begin(), encoded[1].end());
    ids.push_back(end);
    const torch::NoGradGuard without_gradients;
    const Tensor row = torch::tensor(ids, torch::kLong).unsqueeze(0);
    Pass pass;
    Tensor expected = trained.model.language
                          ->log_probabilities(trained.model.language->forward(
                              row, torch::ones_like(row, torch::kBool), pass))[0][place]
                          .exp();
    for (const int64_t never : {0, end, mask}) expected[never] = 0;
    const auto filled = trained.fill({"Ada saw<> river."}, "<>", 1000);
    ASSERT_EQ(filled[0].masks.size(), 1);
    const auto& guesses = filled[0].masks[0];
    EXPECT_EQ(std::ssize(guesses),
              trained.task.ids - 3 - (trained.task.unwritten >= 0 ? 1 : 0));
    EXPECT_NEAR(guesses[0].second, expected.max().item<double>(), 1e-6) << kind;
    const int32_t best[] = {static_cast<int32_t>(expected.argmax().item<int64_t>())};
    EXPECT_EQ(guesses[0].first, trained.task.decode(best));
    // As many tokens as the model takes leave no place for the end.
    const std::string full = "<>" + std::string(15, '.');
    EXPECT_EQ(refusal([&] { trained.fill({full}, "<>", 1); }), "accepted");
  }
}

// What tokens do not tell is not counted against them.
TEST_F(TextTask, IsMeasuredByWhatItsTokensTell) {
  Experiment all = experiment(write("a.txt", "one two two three one two\n"));
  all.task.tokens = "words";
  all.task.valid = write("b.txt", "one two\n");
  all.task.test = write("c.txt", "one <unk> four\n");
  const auto names = [&](const Task& task, const char* split) {
    const TaskModel model = make_model(all, task);
    std::string text;
    for (const auto& [name, value] : model.objective(task)->measures(
             task.split(split), {.loss = 2, .answers = task.split(split).size()}))
      text += name + " ";
    return text;
  };
  Task task = open_task(all.task);
  EXPECT_EQ(names(task, "valid"), "perplexity word_perplexity ");
  EXPECT_EQ(names(task, "test"), "unknown_share perplexity ");
  EXPECT_EQ(text_of(task, "test").unknown_share(), 0.25);
  EXPECT_EQ(std::ranges::count(task.facts, "test: 1 of 4 tokens are unknown"), 1);
  read_test(task, all.task, folder_ / all.task.valid);
  EXPECT_EQ(names(task, "test"), "perplexity word_perplexity ");
  all.task.tokens = "bytes";
  task = open_task(all.task);
  EXPECT_EQ(names(task, "test"), "perplexity word_perplexity bits_per_byte ");
  // So few words that their perplexity is no number.
  const auto model = make_model(all, task);
  const Measures measures =
      model.objective(task)->measures(task.split("test"), {.loss = 500, .answers = 8});
  EXPECT_EQ(measures.size(), 2u);
}

// What layers refuse, a model that is trained on texts refuses before it is.
TEST_F(TextTask, IsRefusedBeforeItIsTrained) {
  std::string rows = "text\n";
  for (int i = 0; i < 20; ++i) rows += make_text(80, i);
  Experiment all = experiment(write("a.tsv", rows));
  all.model.heads = 4;
  int apart = 0, joined = 0;
  for (const char* goal : {"next", "masked"})
    for (const char* documents : {"apart", "joined"})
      for (const Mechanism* row : mechanisms()) {
        Value::Map attention =
            *Value::parse(std::string(row->test_settings)).as<Value::Map>();
        attention.insert_or_assign("name", std::string(row->name));
        all.model.attention = attention;
        all.task.goal = goal;
        all.task.documents = documents;
        const Task task = open_task(all.task);
        TaskModel model;
        if (refusal([&] { model = make_model(all, task); }) != "accepted") continue;
        std::unique_ptr<Objective> objective;
        try {
          objective = model.objective(task);
        } catch (const UsageError& error) {
          EXPECT_TRUE(std::string(error.what()).starts_with("task.documents"))
              << error.what();
          continue;
        }
        ++(all.task.documents == "apart" ? apart : joined);
        Pass pass;
        const int64_t numbers[] = {0, 1};
        EXPECT_EQ(refusal([&] {
                    objective->evaluate(task.split("train").batch(numbers), pass);
                  }),
                  "accepted")
            << row->name << ' ' << goal << ' ' << documents;
      }
  EXPECT_GT(apart, 20);
  EXPECT_GT(joined, apart + 10);
  all.model.attention = Value::parse("linear");
  all.task.documents = "apart";
  const std::string folder = folder_ / "run";
  EXPECT_NE(refusal([&] {
              run_experiment(all, {.folder = folder});
            }).find("task.documents: apart: linear: takes no segments"),
            std::string::npos);
  EXPECT_FALSE(std::ifstream(folder + "/config.yaml").good());
  all.model.attention = Value::parse("bigbird");
  all.model.global_tokens = 2;
  EXPECT_NE(refusal([&] {
              run_experiment(all, {.folder = folder});
            }).find("all see the tokens in front, so a row must be one text"),
            std::string::npos);
}

// A document apart is what it is alone, whatever came before it and wherever it stands.
TEST_F(TextTask, KeepsDocumentsApart) {
  const torch::NoGradGuard without_gradients;
  for (const std::string goal : {"next", "masked"})
    for (const char* positions :
         {"sinusoidal", "learned", "rotary", "alibi", "t5", "none"}) {
      Experiment all = experiment("");
      all.task.longest = 40;
      all.task.goal = goal;
      all.task.pairs = false;
      all.task.documents = "apart";
      all.model.layers = 2;
      all.model.positions = positions;
      all.train.precision = "double";
      const Task sizes = outline_task(all.task);
      const TaskModel model = make_model(all, sizes);
      const auto vectors = [&](const std::string& before) {
        std::ofstream(folder_ / "a.jsonl") << "{\"text\": \"" << before << "\"}\n"
                                           << "{\"text\": \"the second\"}\n";
        Task task = restore_task(all.task, {}, {});
        read_test(task, all.task, folder_ / "a.jsonl");
        const int64_t numbers[] = {0};
        const Batch batch = task.split("test").batch(numbers);
        Batch plain = batch;  // nothing is hidden
        if (goal == "masked")
          plain.ids = torch::where(batch.targets >= 0, batch.targets, batch.ids);
        Pass pass;
        pass.mask.segment = plain.segments;
        const Tensor x = model.language->forward(plain.ids, plain.tokens, pass);
        // The end of a text stands before it, or behind it and the window.
        const auto first = std::ssize(before) + 1, count = int64_t{11};
        return x.slice(1, first, first + count);
      };
      const Tensor alone = vectors("");
      EXPECT_TRUE(close(vectors("a first one"), alone, 1e-12)) << goal << positions;
      EXPECT_TRUE(close(vectors("another text"), alone, 1e-12)) << goal << positions;
    }
}

}  // namespace
}  // namespace longspan::testing
