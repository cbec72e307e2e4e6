#include "longspan/data/listops.h"

#include <fstream>
#include <set>

#include "longspan/base/threads.h"
#include "tests/support/folder.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

// "7\t( ( ( [MAX 2 ) 7 ) ] )\n0\t[MIN 0 9 ]\n" as xz writes it.
constexpr unsigned char kOriginal[] = {
    0xfd, 0x37, 0x7a, 0x58, 0x5a, 0x00, 0x00, 0x04, 0xe6, 0xd6, 0xb4, 0x46, 0x02, 0x00,
    0x21, 0x01, 0x16, 0x00, 0x00, 0x00, 0x74, 0x2f, 0xe5, 0xa3, 0xe0, 0x00, 0x25, 0x00,
    0x24, 0x5d, 0x00, 0x1b, 0x82, 0x41, 0x31, 0x4e, 0x18, 0x1f, 0xc2, 0xd9, 0xd1, 0x85,
    0xfe, 0xe9, 0xe8, 0x4d, 0x40, 0x8e, 0x4c, 0x23, 0x2d, 0xcd, 0xf5, 0xc1, 0x1c, 0x29,
    0x73, 0x4f, 0x7d, 0x0f, 0xb7, 0x98, 0x2c, 0xfa, 0x2d, 0x4a, 0x00, 0x00, 0x34, 0x99,
    0x9d, 0x7b, 0x42, 0xd3, 0x0b, 0x0c, 0x00, 0x01, 0x40, 0x26, 0xd3, 0x7f, 0xf2, 0x02,
    0x1f, 0xb6, 0xf3, 0x7d, 0x01, 0x00, 0x00, 0x00, 0x00, 0x04, 0x59, 0x5a};

constexpr ListOpsOptions kShort{.min_length = 10, .max_length = 60};

// The text by the rule itself: pairs, each in parentheses, nested to the left.
std::string paired_text(const Expression& expression, size_t& at) {
  const uint8_t token = expression[at++];
  if (token < 10) return std::to_string(token);
  static const char* const kNames[] = {"[MIN", "[MAX",   "[MED",
                                       "[SM",  "[FIRST", "[LAST"};
  std::string text = kNames[token - 10];
  const auto close = static_cast<uint8_t>(ListOp::close);
  while (expression[at] != close)
    text = "( " + text + " " + paired_text(expression, at) + " )";
  ++at;
  return "( " + text + " ] )";
}

int value_of(const std::string& text) { return evaluate(parse_listops(text)); }

TEST(ListOps, ComputesEachOperator) {
  EXPECT_EQ(value_of("7"), 7);
  EXPECT_EQ(value_of("[MIN 4 2 9 ]"), 2);
  EXPECT_EQ(value_of("[MAX 4 2 9 ]"), 9);
  EXPECT_EQ(value_of("[MED 4 2 9 ]"), 4);
  EXPECT_EQ(value_of("[MED 1 2 9 8 ]"), 5);
  EXPECT_EQ(value_of("[MED 1 2 3 8 ]"), 2);  // 2.5 is cut
  EXPECT_EQ(value_of("[SM 4 2 9 ]"), 5);
  EXPECT_EQ(value_of("[FIRST 4 2 9 ]"), 4);
  EXPECT_EQ(value_of("[LAST 4 2 9 ]"), 9);
  EXPECT_EQ(value_of("( ( ( [MAX 2 ) ( ( ( [MIN 9 ) 6 ) ] ) ) ] )"), 6);
}

TEST(ListOps, WritesTheTextOfTheArena) {
  EXPECT_EQ(listops_text(parse_listops("[MAX 2 9 ]")), "( ( ( [MAX 2 ) 9 ) ] )");
  for (const auto& example : generate_listops(50, 3, kShort)) {
    size_t at = 0;
    const std::string text = listops_text(example.expression);
    EXPECT_EQ(text, paired_text(example.expression, at));
    EXPECT_EQ(parse_listops(text), example.expression);
  }
}

TEST(ListOps, HasSeventeenIds) {
  const auto ids =
      listops_ids(parse_listops("[MIN 0 9 [MAX 1 ] [MED 1 ] [SM 1 ] [LAST 1 ] ]"));
  EXPECT_EQ(ids, (std::vector<int32_t>{11, 1, 10, 12, 2, 15, 13, 2, 15, 14, 2, 15, 16,
                                       2, 15, 15}));
  EXPECT_EQ(kListOpsIds, 17);
}

TEST(ListOps, RefusesWhatIsNoExpression) {
  const auto refusal_of = [](const std::string& text) {
    return refusal([&] { parse_listops(text); });
  };
  EXPECT_EQ(refusal_of(""), "ListOps: the expression is empty");
  EXPECT_EQ(refusal_of("[MIN 1 2"), "ListOps: a bracket is not closed");
  EXPECT_EQ(refusal_of("1 2"), "ListOps: the expression goes on after its end");
  EXPECT_EQ(refusal_of("]"), "ListOps: a bracket closes that was not opened");
  EXPECT_EQ(refusal_of("[MIN ]"), "ListOps: [MIN has no arguments");
  EXPECT_EQ(refusal_of("[AVG 1 ]"), "ListOps: no token '[AVG'");
  EXPECT_EQ(refusal_of("( 1"), "ListOps: a parenthesis is not closed");
  EXPECT_EQ(refusal_of(") 1 ("), "ListOps: a parenthesis closes that was not opened");
  const uint8_t unknown[] = {200};
  EXPECT_EQ(refusal([&] { evaluate(unknown); }), "ListOps: no token 200");
  std::string deep;
  for (int i = 0; i < 200000; ++i) deep += "[MIN ";
  EXPECT_EQ(refusal_of(deep), "ListOps: a bracket is not closed");
}

TEST(ListOps, IsOneListForOneSeed) {
  const auto text = [](const std::vector<ListOpsExample>& examples) {
    std::vector<std::string> all;
    for (const auto& example : examples)
      all.push_back(listops_text(example.expression));
    return all;
  };
  const auto first = text(generate_listops(100, 1, kShort));
  for (const int threads : {1, 2, 3}) {
    const UseThreads using_threads(threads);
    EXPECT_EQ(text(generate_listops(100, 1, kShort)), first);
  }
  const auto longer = text(generate_listops(150, 1, kShort));
  EXPECT_TRUE(std::equal(first.begin(), first.end(), longer.begin()));
  EXPECT_NE(text(generate_listops(100, 2, kShort)), first);
  EXPECT_EQ(std::set(first.begin(), first.end()).size(), first.size());
}

// Measured on 20000 examples of an independent generator of the same semantics.
TEST(ListOps, HasTheStatisticsOfTheArena) {
  constexpr int kCount = 4000;
  const auto examples = generate_listops(kCount, 1);
  constexpr double kLabels[] = {.172, .093, .073, .082, .089,
                                .087, .076, .074, .088, .167};
  double length = 0, labels[10] = {}, roots[4] = {}, root_right = 0;
  double by_root[4][10] = {};
  size_t shortest = 5000, longest = 0;
  for (const auto& [expression, label] : examples) {
    EXPECT_EQ(evaluate(expression), label);
    length += static_cast<double>(expression.size()) / kCount;
    shortest = std::min(shortest, expression.size());
    longest = std::max(longest, expression.size());
    labels[label] += 1.0 / kCount;
    roots[expression[0] - 10] += 1.0 / kCount;
    by_root[expression[0] - 10][label] += 1.0 / kCount;
  }
  EXPECT_NEAR(length, 1034, 25);
  EXPECT_GE(shortest, 501u);
  EXPECT_LE(longest, 1999u);
  for (int label = 0; label < 10; ++label)
    EXPECT_NEAR(labels[label], kLabels[label], .025);
  for (const auto& root : by_root) root_right += *std::max_element(root, root + 10);
  EXPECT_NEAR(root_right, .364, .03);
  for (const double root : roots) EXPECT_NEAR(root, .25, .03);
  EXPECT_NEAR(by_root[0][0] / roots[0], .568, .06);  // MIN gives 0
  EXPECT_NEAR(by_root[1][9] / roots[1], .560, .06);  // MAX gives 9
  EXPECT_NEAR(by_root[2][4] / roots[2], .216, .06);  // MED gives 4
}

TEST(ListOps, RefusesOptionsThatGiveNothing) {
  EXPECT_EQ(refusal([] { generate_listops(-1, 1); }),
            "ListOps: the number of examples must be 0 or more, got -1");
  EXPECT_EQ(refusal([] { generate_listops(1, 1, {.max_args = 1}); }),
            "ListOps: max_args must be 2 or more, max_depth 1 or more and max_length "
            "min_length + 2 or more, got 1, 10, 2000 and min_length 500");
  EXPECT_EQ(
      refusal([] { generate_listops(11, 1, {.min_length = 0, .max_length = 2}); }),
      "ListOps: only 10 different expressions found between the lengths 0 and 2 "
      "at max_depth 10 and max_args 10, asked for 11");
}

TEST(ListOps, ReadsTheFilesItWrites) {
  const Folder folder;
  const auto examples = generate_listops(20, 5, kShort);
  const std::string path = folder / "basic_test.tsv";
  write_listops(path, examples);
  const auto again = read_listops(path);
  ASSERT_EQ(again.size(), examples.size());
  for (size_t i = 0; i < again.size(); ++i) {
    EXPECT_EQ(again[i].expression, examples[i].expression);
    EXPECT_EQ(again[i].label, examples[i].label);
  }
  std::ifstream file(path, std::ios::binary);
  std::string text(15, ' ');
  file.read(text.data(), 15);
  EXPECT_EQ(text, "Source\tTarget\r\n");
}

TEST(ListOps, ReadsTheOriginalDataSetPackedOrNot) {
  const Folder folder;
  std::ofstream(folder / "plain.tsv") << "7\t( ( ( [MAX 2 ) 7 ) ] )\n0\t[MIN 0 9 ]\n";
  std::ofstream(folder / "packed.tsv.xz", std::ios::binary)
      << std::string(std::begin(kOriginal), std::end(kOriginal));
  for (const char* const name : {"plain.tsv", "packed.tsv", "packed.tsv.xz"}) {
    std::vector<ListOpsExample> examples;
    const std::string message =
        refusal([&] { examples = read_listops(folder / name); });
    if (message.find("this build has no") != message.npos) continue;
    ASSERT_EQ(message, "accepted");
    ASSERT_EQ(examples.size(), 2u);
    EXPECT_EQ(examples[0].label, 7);
    EXPECT_EQ(examples[1].expression, parse_listops("[MIN 0 9 ]"));
  }
}

TEST(ListOps, NamesTheLineThatIsWrong) {
  const Folder folder;
  const std::string path = folder / "bad.tsv";
  const auto refusal_of = [&](const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
    std::string message = refusal([&] { read_listops(path); });
    const size_t at = message.find("bad.tsv");
    return at == message.npos ? message : message.substr(at);
  };
  EXPECT_EQ(refusal_of("Text\tLabel\n"),
            "bad.tsv, line 1: must be 'Source', tab, 'Target', or a digit, tab, an "
            "expression, got 'Text\tLabel'");
  EXPECT_EQ(refusal_of("2\t[MIN 2 3 ]\n[MIN 1 2 ]\t1\n"),
            "bad.tsv, line 2: must be a digit, tab, an expression, got "
            "'[MIN 1 2 ]\t1'");
  EXPECT_EQ(refusal_of(""),
            "bad.tsv is empty; it must begin with 'Source', tab, 'Target'");
  EXPECT_EQ(refusal_of("Source\tTarget\r\n[MIN 1 2 ]\t1\r\n[MIN 1 2 ] 1\r\n"),
            "bad.tsv, line 3: must be an expression, tab, a digit, got '[MIN 1 2 ] 1'");
  EXPECT_EQ(
      refusal_of("Source\tTarget\r\n[MIN 1 2 ]\t12\r\n"),
      "bad.tsv, line 2: must be an expression, tab, a digit, got '[MIN 1 2 ]\t12'");
  EXPECT_EQ(refusal_of("Source\tTarget\n[MIN 1 2\t1\n"),
            "bad.tsv, line 2: ListOps: a bracket is not closed");
  EXPECT_EQ(refusal_of("Source\tTarget\n[MIN 1 2 ]\t2\n"),
            "bad.tsv, line 2: the label is 2 but the expression gives 1");
  EXPECT_EQ(refusal([&] { read_listops(folder / "none.tsv"); }),
            "cannot read " + (folder / "none.tsv") +
                ": No such file or directory; `longspan data listops --out DIR` makes "
                "such files");
}

}  // namespace
}  // namespace longspan::testing
