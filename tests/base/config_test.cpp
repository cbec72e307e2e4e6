#include "longspan/base/config.h"

#include <fstream>

#include "tests/support/folder.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

struct Some {
  bool tied = false;
  int64_t layers = 6;
  double dropout = 0.1;
  std::string norm = "pre";
  Value attention = "dense";
  int64_t steps = 100;
  double rate = 1;
  std::string data = {};
};

Fields fields(Some& some) {
  Fields all = within("model", {{"tied", &some.tied, "one table for in and out"},
                                {"layers", &some.layers, "how many", {}, 1},
                                {"dropout", &some.dropout, "share dropped", {}, 0, 0.9},
                                {"norm", &some.norm, "where it is", "pre|post"},
                                {"attention", &some.attention, "the mechanism"}});
  const Fields train = within("train", {{"steps", &some.steps, "how many", {}, 0, 1000},
                                        {"rate",
                                         &some.rate,
                                         "of learning",
                                         {},
                                         -std::numeric_limits<double>::infinity(),
                                         1},
                                        {"data", &some.data, "a folder"}});
  all.insert(all.end(), train.begin(), train.end());
  return all;
}

// The values in the order of the fields.
std::vector<std::string> values(Some& some) {
  std::vector<std::string> all;
  for (const Field& field : fields(some)) all.push_back(field.value().text());
  return all;
}

std::string refusal_of(const std::string& yaml) {
  Some some;
  return refusal([&] { ConfigReader(fields(some)).read_text(yaml, "a.yaml"); });
}

TEST(AConfig, HasEveryKindOfField) {
  Some some;
  ConfigReader(fields(some))
      .read_text(
          "model:\n  tied: true\n  layers: 2\n  dropout: 0\n  norm: post\n"
          "  attention: {name: local, window: 8}\n"
          "train: {steps: 1000, rate: -2.5, data: a b}\n",
          "a.yaml");
  EXPECT_TRUE(some.tied);
  EXPECT_EQ(some.layers, 2);
  EXPECT_EQ(some.dropout, 0);
  EXPECT_EQ(some.norm, "post");
  EXPECT_EQ(some.attention, (Value::Map{{"name", "local"}, {"window", 8}}));
  EXPECT_EQ(some.steps, 1000);
  EXPECT_EQ(some.rate, -2.5);
  EXPECT_EQ(some.data, "a b");
}

TEST(AConfig, LeavesWhatIsNotSaid) {
  Some some, standard;
  ConfigReader reader(fields(some));
  for (const char* const nothing : {"", "# a comment\n", "---\n", "model:\n", "{}"})
    reader.read_text(nothing, "a.yaml");
  EXPECT_EQ(values(some), values(standard));
}

TEST(AConfig, IsReadInLayers) {
  const Folder folder;
  std::ofstream(folder / "first.yaml") << "model: {layers: 2, dropout: 0.5}\n"
                                       << "train: {steps: 7}\n";
  std::ofstream(folder / "second.yaml") << "model: {layers: 3}\n";
  Some some;
  ConfigReader reader(fields(some));
  reader.read_file(folder / "first.yaml");
  reader.read_file(folder / "second.yaml");
  reader.set("train.steps", "9");
  EXPECT_EQ(some.layers, 3);
  EXPECT_EQ(some.dropout, 0.5);
  EXPECT_EQ(some.steps, 9);
  EXPECT_EQ(refusal([&] { reader.read_file(folder / "none.yaml"); }),
            "cannot read " + (folder / "none.yaml") + ": No such file or directory");
}

TEST(AConfig, TakesDottedNames) {
  Some some;
  ConfigReader reader(fields(some));
  reader.read_text("train.steps: 5\nmodel:\n  attention.window: 4\n", "a.yaml");
  EXPECT_EQ(some.steps, 5);
  EXPECT_EQ(some.attention, (Value::Map{{"name", "dense"}, {"window", 4}}));
  reader.set("model.attention.window", "[1, 2]");
  reader.set("model.attention.causal", "true");
  EXPECT_EQ(
      some.attention,
      (Value::Map{{"name", "dense"}, {"window", Value::List{1, 2}}, {"causal", true}}));
  reader.set("model.attention", "{name: local}");
  EXPECT_EQ(some.attention, (Value::Map{{"name", "local"}}));
  reader.set("model.tied", Value(true), "a program: ");
  EXPECT_TRUE(some.tied);
}

TEST(AConfig, TakesWordsAsTheyAre) {
  Some some;
  ConfigReader reader(fields(some));
  for (const char* const word : {"", "7", "true", "a: [b", "~", "1.50", "# no"}) {
    reader.set("train.data", word);
    EXPECT_EQ(some.data, word);
  }
  for (const std::string word : {"2024", "true", "007", "1e3", "2024.10"}) {
    reader.read_text("train: {data: " + word + "}", "a.yaml");
    EXPECT_EQ(some.data, word);
  }
}

TEST(AConfig, NamesTheNearestKey) {
  const std::pair<const char*, const char*> cases[] = {
      {"model:\n  tied: true\n  layer: 2\n",
       "a.yaml, line 3: no key 'model.layer'; did you mean 'model.layers'?"},
      {"modle: {layers: 2}",
       "a.yaml, line 1: no key 'modle'; there are: model.tied, model.layers, "
       "model.dropout, model.norm, model.attention, train.steps, train.rate, "
       "train.data"},
      {"\n\ntrain: {layers: 2}",
       "a.yaml, line 3: no key 'train.layers'; did you mean 'model.layers'?"},
      {"layers: 2", "a.yaml, line 1: no key 'layers'; did you mean 'model.layers'?"},
      {"train: {momentum_of_all: 2}",
       "a.yaml, line 1: no key 'train.momentum_of_all'; there are: train.steps, "
       "train.rate, train.data"},
      {"train:\n  steps.more: 2",
       "a.yaml, line 2: no key 'train.steps.more'; did you mean 'train.steps'?"},
  };
  for (const auto& [yaml, message] : cases) EXPECT_EQ(refusal_of(yaml), message);
}

TEST(AConfig, NamesTheLineOfAWrongValue) {
  const std::pair<const char*, const char*> cases[] = {
      {"model:\n\n  tied: yes",
       "a.yaml, line 3: model.tied must be true or false, got yes"},
      {"model: {layers: 0}",
       "a.yaml, line 1: model.layers must be a whole number of 1 or more, got 0"},
      {"model: {layers: 2.5}",
       "a.yaml, line 1: model.layers must be a whole number of 1 or more, got 2.5"},
      {"model: {layers: 99999999999999999999}",
       "a.yaml, line 1: model.layers must be a whole number of 1 or more, got 1e+20"},
      {"model: {layers: [2]}",
       "a.yaml, line 1: model.layers must be a whole number of 1 or more, got [2]"},
      {"model:\n  dropout: 0.95",
       "a.yaml, line 2: model.dropout must be a number between 0 and 0.9, got 0.95"},
      {"model:\n  dropout: -0.1",
       "a.yaml, line 2: model.dropout must be a number between 0 and 0.9, got -0.1"},
      {"model:\n  dropout: nan",
       "a.yaml, line 2: model.dropout must be a number between 0 and 0.9, got nan"},
      {"train: {rate: fast}",
       "a.yaml, line 1: train.rate must be a number of 1 or less, got fast"},
      {"train: {rate: 2}",
       "a.yaml, line 1: train.rate must be a number of 1 or less, got 2"},
      {"train: {rate: -inf}",
       "a.yaml, line 1: train.rate must be a number of 1 or less, got -inf"},
      {"train: {steps: 1001}",
       "a.yaml, line 1: train.steps must be a whole number between 0 and 1000, got "
       "1001"},
      {"train: {data: [a]}", "a.yaml, line 1: train.data must be a word, got [a]"},
      {"model: {norm: {a: b}}",
       "a.yaml, line 1: model.norm must be one of pre, post, got {a: b}"},
      {"model: {norm: past}",
       "a.yaml, line 1: model.norm: no choice 'past'; did you mean 'post'? there are: "
       "pre, post"},
      {"model: {norm: 3}",
       "a.yaml, line 1: model.norm: no choice '3'; there are: pre, post"},
      {"train: {steps: }", "a.yaml, line 1: train.steps: a value is missing"},
      {"model:\n  attention:\n    window: 1\n    window: 2\n",
       "a.yaml, line 2: model.attention: 'window' is given twice"},
  };
  for (const auto& [yaml, message] : cases) EXPECT_EQ(refusal_of(yaml), message);
}

TEST(AConfig, LeavesAFieldAloneWhenItRefusesAValue) {
  Some some, standard;
  ConfigReader reader(fields(some));
  for (const auto& [name, yaml] : {std::pair{"model.tied", "1"},
                                   {"model.layers", "0"},
                                   {"model.dropout", "1"},
                                   {"model.norm", "none"},
                                   {"train.steps", "-1"}})
    EXPECT_NE(refusal([&] { reader.set(name, yaml); }), "accepted") << name;
  EXPECT_EQ(values(some), values(standard));
}

TEST(AConfig, IsKeysWithValues) {
  const std::pair<const char*, const char*> cases[] = {
      {"model: {layers: 1}\ntrain: {steps: 1}\nmodel: {tied: true}\n",
       "a.yaml, line 3: 'model' is given twice"},
      {"model:\n  layers: 1\n  layers: 1\n",
       "a.yaml, line 3: 'model.layers' is given twice"},
      {"\nmodel: 3", "a.yaml, line 2: 'model' must be a section with keys of its own"},
      {"model: [1]", "a.yaml, line 1: 'model' must be a section with keys of its own"},
      {"train: {steps: 1}\n---\ntrain: {steps: 2}\n",
       "a.yaml: must be one YAML document, got 2"},
      {"model:\n  attention: &a {b: *a}\n",
       "a.yaml, line 2: model.attention: a value is nested too deep"},
      {"model:\n  attention: {[a]: 1}\n",
       "a.yaml, line 2: model.attention: a key must be a word"},
      {"3", "a.yaml, line 1: a configuration must be keys with values"},
      {"\n- a", "a.yaml, line 2: a configuration must be keys with values"},
      {"model:\n  [a]: 1", "a.yaml, line 2: a key must be a word"},
      {"model:\n  layers: 1\n  norm: [pre\ntrain: 3\n",
       "a.yaml, line 4: this is not YAML: end of sequence flow not found"},
      {"model: {layers: 1}\n}", "a.yaml, line 2: this is not YAML: illegal flow end"},
  };
  for (const auto& [yaml, message] : cases) EXPECT_EQ(refusal_of(yaml), message);
}

TEST(AConfig, SaysThatTheCommandLineIsWrong) {
  Some some;
  ConfigReader reader(fields(some));
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"model.layers", "x",
       "the command line: model.layers must be a whole number of 1 or more, got x"},
      {"model.layers", "",
       "the command line: model.layers: cannot read '': a value is missing"},
      {"model.attention", "[1",
       "the command line: model.attention: '[1' is not YAML: end of sequence flow not "
       "found"},
      {"model.norm", "pro",
       "the command line: model.norm: no choice 'pro'; did you mean 'pre'? there are: "
       "pre, post"},
      {"model.layrs", "1",
       "the command line: no key 'model.layrs'; did you mean 'model.layers'?"},
      {"model.layers.first", "1",
       "the command line: no key 'model.layers.first'; did you mean 'model.layers'?"},
  };
  for (const auto& [name, yaml, message] : cases)
    EXPECT_EQ(refusal([&] { reader.set(name, yaml); }), message);
  EXPECT_EQ(refusal([&] { reader.set("train.steps", Value(-1), "a program: "); }),
            "a program: train.steps must be a whole number between 0 and 1000, got -1");
}

TEST(AConfig, IsWrittenAsItIsRead) {
  Some some{.tied = true,
            .layers = 12,
            .dropout = 1.0 / 3,
            .norm = "post",
            .attention = Value::Map{{"name", "local"},
                                    {"of", Value::List{1, 0.5, "a, b", true, "7"}}},
            .steps = 0,
            .rate = -1e-300};
  for (const char* const data :
       {"", "a path/with: \"signs\" # and \\", "7", "true", "line\nline\ttab", "ä",
        "007", "-x", "[", "inf", "null", "-", "?"}) {
    some.data = data;
    for (const bool helpful : {false, true}) {
      Some again;
      const std::string text = config_text(fields(some), helpful);
      ConfigReader(fields(again)).read_text(text, "a.yaml");
      EXPECT_EQ(values(again), values(some)) << text;
      EXPECT_TRUE(differing(fields(again), fields(some)).empty()) << text;
    }
  }
}

TEST(AConfig, IsWrittenInSections) {
  Some some;
  EXPECT_EQ(config_text(fields(some)),
            "model:\n  tied: false\n  layers: 6\n  dropout: 0.1\n  norm: pre\n"
            "  attention: dense\ntrain:\n  steps: 100\n  rate: 1.0\n  data: \"\"\n");
  int64_t seed = 1;
  EXPECT_EQ(config_text({{"seed", &seed, "of all"}}, true),
            "# of all (a whole number)\nseed: 1\n");
  const std::string helpful = config_text(fields(some), true);
  EXPECT_NE(
      helpful.find("  # share dropped (a number between 0 and 0.9)\n  dropout: 0.1\n"),
      helpful.npos);
}

TEST(AConfig, KnowsWhatDiffers) {
  Some one, other;
  EXPECT_TRUE(differing(fields(one), fields(other)).empty());
  other.layers = 7;
  other.attention = Value::Map{{"name", "dense"}};
  other.data = "x";
  EXPECT_EQ(
      differing(fields(one), fields(other)),
      (std::vector<std::string>{"model.layers", "model.attention", "train.data"}));
}

TEST(AField, SaysItsKind) {
  Some some;
  std::vector<std::string> kinds;
  for (const Field& field : fields(some)) kinds.push_back(field.kind());
  EXPECT_EQ(kinds,
            (std::vector<std::string>{"true or false", "a whole number of 1 or more",
                                      "a number between 0 and 0.9", "one of pre, post",
                                      "a value", "a whole number between 0 and 1000",
                                      "a number of 1 or less", "a word"}));
}

}  // namespace
}  // namespace longspan::testing
