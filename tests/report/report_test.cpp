#include <sys/stat.h>

#include <fstream>
#include <regex>

#include "longspan/base/config.h"
#include "longspan/report/chart.h"
#include "longspan/report/chart_labels.h"
#include "longspan/report/comparison_charts.h"
#include "longspan/report/comparison_page.h"
#include "longspan/report/page.h"
#include "longspan/report/pattern_gallery.h"
#include "longspan/report/weights_page.h"
#include "tests/support/folder.h"
#include "tests/support/tensors.h"

namespace longspan::report {
namespace {

using testing::Folder;

int times(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos;
       at = text.find(part, at + 1))
    ++count;
  return count;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

Table small_table() {
  return {.columns = {{.title = "name"}, {.title = "a|b", .best = Best::least}},
          .rows = {{{.text = "<x>"}, number_cell(10, "10 ±")},
                   {{.text = "\"q\", r"}, number_cell(9.5, "9.5")}},
          .foot = {{{.text = "guess"}}}};
}

TEST(Tables, AreHtmlThatSortsByNumbers) {
  const std::string html = as_html(small_table());
  EXPECT_TRUE(has(html, "&lt;x&gt;"));
  EXPECT_FALSE(has(html, "<x>"));
  EXPECT_TRUE(has(html, "data-number=\"10\">10 ±<"));
  EXPECT_TRUE(has(html, "<b>9.5</b>"));  // the best
  EXPECT_EQ(times(html, "<b>"), 1);
  Table alike = small_table();
  alike.rows[1][1].number = 10;
  EXPECT_FALSE(has(as_html(alike), "<b>"));
  EXPECT_TRUE(has(html, "<tfoot>"));
}

TEST(Tables, AreMarkdownInColumnsOfOneWidth) {
  EXPECT_EQ(as_markdown(small_table()),
            "| name   | a\\|b |\n"
            "| ------ | ---: |\n"
            "| \\<x>   | 10 ± |\n"
            "| \"q\", r |  9.5 |\n"
            "| guess  |      |\n");
}

TEST(Tables, AreCsvWithQuotesWhereTheyAreNeeded) {
  EXPECT_EQ(as_csv(small_table()), "name,a|b\n<x>,10 ±\n\"\"\"q\"\", r\",9.5\n");
}

TEST(Pages, HoldPicturesAsTheyAre) {
  const std::string image = embedded("<svg a=\"1\">#&%</svg>", "a \"b\"");
  EXPECT_EQ(image,
            "<img src=\"data:image/svg+xml,%3Csvg%20a=%221%22%3E%23%26%25%3C/svg%3E\" "
            "alt=\"a &quot;b&quot;\">");
}

TEST(Charts, DrawBubblesByArea) {
  Series series{.name = "s", .has_line = false};
  series.points = {{.x = 1, .y = 1, .area = 1, .label = "a<b"},
                   {.x = 2, .y = 2, .area = 0.25}};
  const std::string picture = svg({.title = "t", .panels = {{.series = {series}}}});
  EXPECT_TRUE(has(picture, "d=\"M-24.0 0A24.0 24.0"));
  EXPECT_TRUE(has(picture, "><title>a&lt;b</title>"));
  EXPECT_TRUE(has(picture, "d=\"M-12.0 0A12.0 12.0"));
  EXPECT_FALSE(has(picture, "<polyline"));
}

TEST(Charts, TellSeriesOfOneColourApart) {
  const auto picture = [](int variant) {
    Series series{.name = "s", .points = {{1, 1}, {2, 2}}, .colour = 3};
    series.variant = variant;
    return svg({.title = "t", .panels = {{.series = {series}}}, .shows_title = false});
  };
  EXPECT_TRUE(has(picture(0), "<g class=\"c3 d0\">"));
  EXPECT_TRUE(has(picture(1), "<g class=\"c3 d1\">"));
  EXPECT_FALSE(has(picture(0), ">t</text>"));
  const auto mark = [](const std::string& svg) {
    const size_t from = svg.find(" d=\"M");
    return svg.substr(from, svg.find('"', from + 4) - from);
  };
  EXPECT_NE(mark(picture(0)), mark(picture(1)));
}

TEST(Charts, KeepNumbersOfAnAxisInside) {
  constexpr double kDigit = 7.7;  // pixels, in wide fonts
  const std::regex number(
      "<text x=\"([0-9.]+)\" y=\"[0-9.]+\" "
      "text-anchor=\"middle\">([0-9.e+kM]+)</text>"),
      size("viewBox=\"0 0 ([0-9.]+) ");
  for (int most = 100'000; most < 1'000'000; most += 7'000) {
    const std::string picture =
        svg({.panels = {{.series = {{.points = {{0, 0}, {double(most), 1}}}}}}});
    std::smatch found;
    ASSERT_TRUE(std::regex_search(picture, found, size));
    const double width = std::stod(found[1]);
    double end = 0;
    for (auto at = std::sregex_iterator(picture.begin(), picture.end(), number);
         at != std::sregex_iterator(); ++at) {
      const double middle = std::stod((*at)[1]),
                   half = kDigit * static_cast<double>((*at)[2].length()) / 2;
      EXPECT_GE(middle - half, end) << most;
      EXPECT_LE(end = middle + half, width + 0.1) << most;
    }
    EXPECT_GT(end, 0);
  }
}

// The names of a crowd do not lie on each other, and none runs out of the frame.
TEST(Charts, PlaceNamesWhereTheyCanBeRead) {
  std::vector<Bubble> bubbles;
  for (int i = 0; i < 14; ++i)
    bubbles.push_back({.x = 6.0 + 23 * (i % 5),
                       .y = 40.0 + 19 * (i % 4),
                       .radius = 8.0 + i % 3,
                       .label = "mechanism " + std::to_string(i)});
  const auto labels = placed_labels(bubbles, {0, 0, 460, 300});
  EXPECT_GE(labels.size(), 10u);
  std::vector<Box> boxes;
  for (const PlacedLabel& label : labels) {
    const double width = 6.5 * static_cast<double>(label.text.size());
    const double left = label.x - (label.anchor == "start"    ? 0
                                   : label.anchor == "middle" ? width / 2
                                                              : width);
    boxes.push_back({left, label.y - 9, left + width, label.y + 3});
    EXPECT_GE(left, 0) << label.text;
    EXPECT_LE(left + width, 460) << label.text;
  }
  for (size_t i = 0; i < boxes.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      EXPECT_TRUE(boxes[i].right <= boxes[j].left || boxes[j].right <= boxes[i].left ||
                  boxes[i].bottom <= boxes[j].top || boxes[j].bottom <= boxes[i].top)
          << labels[i].text << " on " << labels[j].text;
}

// A run as a training leaves it.
struct RunFiles {
  Experiment experiment = {};
  double accuracy = 0.5;
  bool is_whole = true;
  uint32_t data = 7;  // fingerprint

  void write(const std::string& folder) const {
    mkdir(folder.c_str(), 0777);
    Experiment copy = experiment;
    std::ofstream(folder + "/config.yaml") << config_text(fields(copy));
    std::ofstream(folder + "/metrics.jsonl")
        << R"({"step":10,"event":"train","loss":2.0,"accuracy":0.2,"tokens_per_second":900,"seconds":1})"
        << '\n'
        << R"({"step":10,"event":"valid","loss":1.9,"accuracy":0.3})" << '\n'
        << R"({"step":20,"event":"train","loss":null,"tokens_per_second":1100,"seconds":2})"
        << "\n{\"step\":";  // killed here
    mkdir((folder + "/best").c_str(), 0777);
    std::ofstream(folder + "/best/state.json") << text_of({.data = data});
    if (!is_whole) return;
    std::ofstream(folder + "/result.json")
        << R"({"seconds":12,"tokens":5,"peak_bytes":1000,"parameters":77,"flops":5e9,)"
        << R"("best":{"step":10,"test":{"loss":1.5,"accuracy":)" << accuracy
        << R"(,"answers":200}},"references":[{"name":"a <guess>","accuracy":0.172}],)"
        << R"("facts":["made up"]})";
    std::ofstream(folder + "/environment.json")
        << R"({"LibTorch":"1.13","processor":"<b>"})";
  }
};

RunFiles run_files(int64_t layers, int64_t heads, int64_t seed, double accuracy) {
  RunFiles run;
  run.experiment.task.longest = 2000;
  run.experiment.model.layers = layers;
  run.experiment.model.heads = heads;
  run.experiment.train.seed = seed;
  run.accuracy = accuracy;
  return run;
}

TEST(Comparisons, TakeRunsThatDifferInSeedsForOne) {
  const Folder folder;
  run_files(4, 2, 1, 0.5).write(folder / "deep-seed-1");
  run_files(4, 2, 2, 0.6).write(folder / "deep-seed-2");
  run_files(1, 8, 1, 0.7).write(folder / "wide");
  RunFiles stopped = run_files(1, 8, 9, 0);
  stopped.experiment.model.embedding = 12;
  stopped.is_whole = false;
  stopped.write(folder / "stopped");
  const auto comparisons =
      read_comparisons({folder / "deep-seed-1", folder / "deep-seed-2/",
                        folder / "wide", folder / "stopped"});
  ASSERT_EQ(comparisons.size(), 1u);
  const Comparison& comparison = comparisons[0];
  ASSERT_EQ(comparison.contenders.size(), 3u);
  EXPECT_EQ(title_of(comparisons), "3 models on listops");
  EXPECT_EQ(comparison.contenders[0].name(), "deep");
  const Spread accuracy = judged(comparison, comparison.contenders[0]);
  EXPECT_EQ(accuracy.count, 2);
  EXPECT_NEAR(accuracy.mean, 0.55, 1e-12);
  EXPECT_EQ(comparison.contenders[0].entry.runs[0].tokens_per_second, 1100);
  EXPECT_EQ(
      refusals(comparison),
      std::vector<std::string>{"stopped, seed 9: not at its end, but at step 20"});

  const Table depth = depth_table(comparison);
  ASSERT_EQ(depth.rows.size(), 1u);
  EXPECT_EQ(depth.rows[0][1].text, "4 x 2");
  EXPECT_EQ(depth.rows[0][2].text, "1 x 8");
  EXPECT_EQ(depth.rows[0][5].text, "+15.00");
  ASSERT_EQ(published_tables(comparison).size(), 1u);
  const Table papers = published_tables(comparison)[0];
  EXPECT_EQ(papers.rows[0][0].text, "dense");  // ours first
  EXPECT_EQ(papers.rows[0][1].text, "55.0 ± 7.1 % (deep), 70.0 % (wide)");
  EXPECT_EQ(papers.rows[0][2].text, "36.37 %");

  const std::string page = comparison_page(comparisons, "a <title>");
  EXPECT_FALSE(has(page, "<guess>"));
  EXPECT_FALSE(has(page, "<title>a <title>"));
  EXPECT_TRUE(has(page, "id=\"wide-against-deep\""));
  EXPECT_TRUE(has(page, "55.0 ± 7.1 %"));
  EXPECT_FALSE(has(page, "nan"));
  EXPECT_FALSE(has(page, "src=\"http"));
  EXPECT_TRUE(has(comparison_markdown(comparisons, "t"), "| model.layers |"));
  EXPECT_EQ(run_table(comparisons).rows.size(), 4u);
}

TEST(Comparisons, PutEveryAspectBesideTheDeepest) {
  const Folder folder;
  run_files(6, 8, 1, 0.5).write(folder / "deep");
  run_files(3, 16, 1, 0.52).write(folder / "less");
  run_files(2, 24, 1, 0.51).write(folder / "little");
  run_files(1, 48, 1, 0.53).write(folder / "wide");
  run_files(2, 8, 1, 0.4).write(folder / "other");  // of fewer heads
  const auto comparisons =
      read_comparisons({folder / "wide", folder / "deep", folder / "little",
                        folder / "less", folder / "other"});
  const Table depth = depth_table(comparisons[0]);
  ASSERT_EQ(depth.rows.size(), 3u);
  for (const Row& row : depth.rows) EXPECT_EQ(row[1].text, "6 x 8");
  EXPECT_EQ(depth.rows[0][2].text, "3 x 16");
  EXPECT_EQ(depth.rows[1][2].text, "2 x 24");
  EXPECT_EQ(depth.rows[2][2].text, "1 x 48");
  EXPECT_EQ(depth.rows[2][5].text, "+3.00");
  const std::string chart = depth_chart(comparisons[0]);
  EXPECT_EQ(times(chart, "class=\"mark\""), 4 + 1);  // and in the legend
}

// Accuracies of different tasks, or data, do not stand in one table.
TEST(Comparisons, KeepTasksApart) {
  const Folder folder;
  run_files(1, 8, 1, 0.5).write(folder / "a");
  run_files(2, 8, 1, 0.6).write(folder / "b");
  RunFiles images = run_files(1, 8, 1, 0.9);
  images.experiment.task.name = "cifar10";
  images.write(folder / "c");
  RunFiles elsewhere = run_files(4, 8, 1, 0.7);
  elsewhere.experiment.task.data = "other";
  elsewhere.data = 8;
  elsewhere.write(folder / "d");
  const auto comparisons =
      read_comparisons({folder / "a", folder / "c", folder / "b", folder / "d"});
  ASSERT_EQ(comparisons.size(), 3u);
  EXPECT_EQ(comparisons[0].contenders.size(), 2u);
  EXPECT_EQ(comparisons[1].contenders[0].name(), "c");
  EXPECT_EQ(comparisons[2].contenders[0].name(), "d");
  EXPECT_EQ(title_of(comparisons), "4 models on listops, cifar10");
  const std::string page = comparison_page(comparisons, "t"),
                    text = comparison_markdown(comparisons, "t");
  for (const char* id :
       {"listops-results", "cifar10-results", "listops-of-other-results"})
    EXPECT_EQ(times(page, "id=\"" + std::string(id) + '"'), 1) << id;
  EXPECT_TRUE(has(text, "## cifar10: Results"));
  EXPECT_EQ(run_table(comparisons).rows.size(), 4u);
}

// Who sees whom is drawn as the entries are: with their settings where these fit.
TEST(Comparisons, DrawTheSettingsOfTheEntries) {
  const Folder folder;
  const auto drawn = [&](const char* name, const char* attention, int64_t longest) {
    RunFiles run = run_files(1, 8, 1, 0.5);
    run.experiment.task.longest = longest;
    run.experiment.model.attention = Value::parse(attention);
    run.write(folder / name);
    return pattern_gallery(read_comparisons({folder / name})[0]);
  };
  constexpr const char* kOther = "not with the settings of";
  const std::string narrow = drawn("narrow", "{name: sliding, window: 6}", 2000);
  EXPECT_TRUE(has(narrow, "window%3A%206") || has(narrow, "window:%206")) << narrow;
  EXPECT_FALSE(has(narrow, kOther));
  EXPECT_FALSE(has(drawn("whole", "{name: sliding, window: 500}", 60), kOther));
  EXPECT_TRUE(has(drawn("wider", "{name: sliding, window: 500}", 2000), kOther));
}

// Words in place of bytes, or fewer of them, are answers to the same questions.
TEST(Comparisons, TakeOneTaskInOtherTokensForOne) {
  const Folder folder;
  RunFiles bytes = run_files(1, 8, 1, 0.5), words = bytes;
  bytes.experiment.task.data = words.experiment.task.data = "imdb";
  words.experiment.task.tokens = "words";
  words.data = 8;
  bytes.write(folder / "bytes");
  words.write(folder / "words");
  EXPECT_EQ(read_comparisons({folder / "bytes", folder / "words"}).size(), 1u);
}

TEST(Comparisons, RefuseFoldersOfSomethingElse) {
  const Folder folder;
  const std::string refused =
      testing::refusal([&] { read_comparisons({folder / ""}); });
  EXPECT_TRUE(has(refused, "is no run and no arena")) << refused;
}

TEST(WeightsPages, JoinBytesToWords) {
  const WordSplit split = split_words({"a", "b", " ", "c", " ", " ", "d"}, true);
  EXPECT_EQ(split.words, (std::vector<std::string>{"ab", "c", "d"}));
  EXPECT_EQ(by_words(split, {1, 2, 4, 8, 16, 32, 64}),
            (std::vector<double>{7, 56, 64}));
  EXPECT_EQ(split_words({"[MAX", "2", " "}, false).words.size(), 3u);
  EXPECT_TRUE(by_words(split_words({" "}, true), {1}).empty());
}

TEST(WeightsPages, ShadeWordsOfEveryHead) {
  const WordWeights one{
      .title = "head 0", .weights = {0.5, -0.1, 0}, .front = 0.6, .memory = 0.3};
  const WeightsReport report{
      .title = "t",
      .texts = {{.words = {"<b>", "x", "y"},
                 .labels = {{"good & bad", 0.75}, {"other", 0.25}},
                 .whole = one,
                 .layers = {{.title = "layer 0", .heads = {one, one}}}}},
      .memories = {{.layer = "layer0", .shares = {0.25}}}};
  const std::string page = weights_page(report);
  EXPECT_FALSE(has(page, "<b>x"));
  EXPECT_TRUE(has(page, "Text 1: good &amp; bad, 75.0 %"));
  EXPECT_EQ(times(page, "class=\"w10\">&lt;b&gt;</i>"), 2);
  EXPECT_EQ(times(page, "class=\"n2\">x</i>"), 2);
  EXPECT_TRUE(has(page, "class=\"w10\" title=\"50 %\">&lt;b&gt;"));
  EXPECT_TRUE(has(page, "60.0 % in front, 30.0 % memory"));
  EXPECT_TRUE(has(page, ">25 %</td>"));
  EXPECT_TRUE(has(page, "and below 0"));  // what orange means
  EXPECT_FALSE(has(page, "sum over its bytes"));
}

}  // namespace
}  // namespace longspan::report
