#include "longspan/data/table.h"

#include <sys/stat.h>

#include <fstream>

#include "longspan/data/listops.h"
#include "tests/support/folder.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

using Rows = std::vector<std::pair<std::string, std::string>>;

constexpr char kBom[] = "\xef\xbb\xbf";

// A file with this end of its name, read.
Rows rows_of(const std::string& end, const std::string& contents,
             const TableOptions& options = {}) {
  const Folder folder;
  const std::string path = folder / ("table." + end);
  std::ofstream(path, std::ios::binary) << contents;
  Rows rows;
  for (const auto& [text, label] : read_table(path, options))
    rows.emplace_back(text, label);
  return rows;
}

std::string refusal_of(const std::string& end, const std::string& contents,
                       const TableOptions& options = {}) {
  const std::string message = refusal([&] { rows_of(end, contents, options); });
  const size_t at = message.find("table.");
  return at == message.npos ? message : message.substr(at);
}

TEST(Table, ReadsTabs) {
  const Rows two = {{"a b", "x"}, {"c", "y"}};
  EXPECT_EQ(rows_of("tsv", "text\tlabel\na b\tx\nc\ty\n"), two);
  EXPECT_EQ(rows_of("tsv", "text\tlabel\r\na b\tx\r\nc\ty\r\n"), two);
  EXPECT_EQ(rows_of("tsv", "text\tlabel\na b\tx\nc\ty"), two);
  EXPECT_EQ(rows_of("tsv", "text\tlabel\r\na b\tx\r\nc\ty\r"), two);
  EXPECT_EQ(rows_of("tsv", std::string(kBom) + "text\tlabel\na b\tx\nc\ty\n"), two);
  EXPECT_EQ(rows_of("tsv", "\n\r\ntext\tlabel\n\na b\tx\r\n\r\nc\ty\n\n"), two);
  EXPECT_EQ(rows_of("tsv", "label\tid\ttext\nx\t1\ta b\ny\t2\tc\n"), two);
  EXPECT_EQ(rows_of("tsv", "x\tx\ttext\tlabel\n1\t2\ta b\tx\n3\t4\tc\ty\n"), two);
  EXPECT_EQ(rows_of("tsv", "a b\tx\nc\ty\n", {.text = "1", .label = "2"}), two);
  EXPECT_EQ(rows_of("tsv", "x\t\ta b\ny\t\tc\n", {.text = "3", .label = "1"}), two);
  EXPECT_EQ(rows_of("tsv", "text\ta\nb\t\n", {.labels = false}), (Rows{{"b", ""}}));
  EXPECT_EQ(rows_of("tsv", "b\n", {.text = "1", .labels = false}), (Rows{{"b", ""}}));
  EXPECT_EQ(rows_of("tsv", "text\tlabel\n\"a\", \"\"\t x\n\t1\n"),
            (Rows{{"\"a\", \"\"", " x"}, {"", "1"}}));
  EXPECT_EQ(rows_of("tsv", "text\tlabel\na\rb\tx\n"), (Rows{{"a\rb", "x"}}));
}

TEST(Table, ReadsCommas) {
  const Rows two = {{"a b", "x"}, {"c", "y"}};
  EXPECT_EQ(rows_of("csv", "text,label\na b,x\nc,y\n"), two);
  EXPECT_EQ(rows_of("csv", "text,label\r\n\"a b\",\"x\"\r\n\"c\",y\r\n"), two);
  EXPECT_EQ(rows_of("csv", "text,label\r\n\"a b\",\"x\"\r\nc,\"y\"\r"), two);
  EXPECT_EQ(rows_of("csv", "text,label\n\"a b\",x\nc,\"y\""), two);
  EXPECT_EQ(rows_of("csv", std::string(kBom) + "\n\"text\",label\n\na b,x\nc,y"), two);
  EXPECT_EQ(rows_of("csv", "x,\"a b\"\ny,c\n", {.text = "2", .label = "1"}), two);
  EXPECT_EQ(rows_of("csv", "text,label\n\"a,\"\"b\"\"\",\"\"\"\"\n\"\"\"\",x\n"),
            (Rows{{"a,\"b\"", "\""}, {"\"", "x"}}));
  EXPECT_EQ(rows_of("csv", "text,label\r\n\"a\r\n\r\nb\n\",x\r\n\"\n\",y\r\n"),
            (Rows{{"a\r\n\r\nb\n", "x"}, {"\n", "y"}}));
  EXPECT_EQ(rows_of("csv", "text,label\n\"\",x\n,y\n a\t, z \n"),
            (Rows{{"", "x"}, {"", "y"}, {" a\t", " z "}}));
  EXPECT_EQ(rows_of("csv", "text\n\"\"\n", {.labels = false}), (Rows{{"", ""}}));
}

TEST(Table, ReadsJson) {
  const Rows two = {{"a b", "x"}, {"c", "y"}};
  EXPECT_EQ(rows_of("jsonl", R"({"text": "a b", "label": "x"}
{"label":"y","text":"c"})"),
            two);
  EXPECT_EQ(rows_of("jsonl", std::string(kBom) + "\r\n{\"text\":\"a b\",\"label\":\"x\""
                                                 "}\r\n\r\n {\"text\":\"c\","
                                                 "\"label\":\"y\"} \r\n"),
            two);
  EXPECT_EQ(rows_of("jsonl", R"({"text": "", "label": 3}
{"text": "\"\\\n\u00e4\ud83d\ude00", "label": -12}
{"text": "a", "label": true, "more": [{"text": 1, "label": 2}, null, 1.5]}
{"text": "a", "label": 18446744073709551615})"),
            (Rows{{"", "3"},
                  {"\"\\\nä😀", "-12"},
                  {"a", "true"},
                  {"a", "18446744073709551615"}}));
  EXPECT_EQ(rows_of("jsonl", R"({"1": "a", "2": 0})", {.text = "1", .label = "2"}),
            (Rows{{"a", "0"}}));
  EXPECT_EQ(rows_of("jsonl", R"({"text": "a", "label": null})", {.labels = false}),
            (Rows{{"a", ""}}));
  std::string deep = "{\"text\": \"a\", \"label\": 1, \"more\": ";
  for (const char bracket : {'[', ']'}) deep += std::string(100000, bracket);
  EXPECT_EQ(rows_of("jsonl", deep + "}"), (Rows{{"a", "1"}}));
}

TEST(Table, ReadsTheFilesOfTheArena) {
  const Folder folder;
  const auto examples = generate_listops(3, 1, {.min_length = 10, .max_length = 60});
  const std::string path = folder / "basic_train.tsv";
  write_listops(path, examples);
  const auto rows = read_table(path, {.text = "Source", .label = "Target"});
  ASSERT_EQ(rows.size(), examples.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i].text, listops_text(examples[i].expression));
    EXPECT_EQ(rows[i].label, std::to_string(examples[i].label));
  }
}

TEST(Table, ReadsEveryCharacter) {
  for (const char* text : {"\x7f", "\u0080", "\u07ff", "\u0800", "\ud7ff", "\ue000",
                           "\uffff", "\U00010000", "\U0010ffff"})
    EXPECT_EQ(rows_of("tsv", "text\tlabel\n" + std::string(text) + "\t1\n"),
              (Rows{{text, "1"}}));
}

TEST(Table, NamesTheByteThatIsNotUtf8) {
  const std::pair<const char*, const char*> cases[] = {
      {"\x80", "0x80"},              // goes on without a beginning
      {"\xc0\x80", "0xc0"},          // longer than need be
      {"\xc1\xbf", "0xc1"},          //
      {"\xe0\x9f\xbf", "0xe0"},      //
      {"\xf0\x8f\xbf\xbf", "0xf0"},  //
      {"\xed\xa0\x80", "0xed"},      // surrogates
      {"\xed\xbf\xbf", "0xed"},      //
      {"\xf4\x90\x80\x80", "0xf4"},  // above Unicode
      {"\xf5\x80\x80\x80", "0xf5"},  //
      {"\xff", "0xff"},              //
      {"\xc3", "0xc3"},              // cut off
      {"\xe2\x82", "0xe2"},          //
      {"\xf0\x9f\x98", "0xf0"},      //
      {"\xe2\x28\xa1", "0xe2"},      // interrupted
  };
  for (const auto& [bytes, named] : cases) {
    const std::string problem =
        "line 3: must be UTF-8, but byte 4, " + std::string(named) + ", is not";
    for (const std::string after : {"", "\t1\n"})
      EXPECT_EQ(refusal_of("tsv", "text\tlabel\na\t1\nb\u00e4" + (bytes + after)),
                "table.tsv, " + problem);
    EXPECT_EQ(refusal_of("csv", "text,label\n\"a\n\u00e4b" +
                                    (bytes + std::string("\"")) + ",1\n"),
              "table.csv, " + problem);
  }
  EXPECT_EQ(refusal_of("jsonl", "\xff\xfe{"),
            "table.jsonl, line 1: must be UTF-8, but byte 1, 0xff, is not");
}

TEST(Table, NamesTheLineThatIsWrong) {
  struct Case {
    std::string end, contents, message;
    TableOptions options = {};
  };
  const TableOptions by_number = {.text = "1", .label = "2"};
  const std::string seventy(70, 'a');
  const Case cases[] = {
      // columns
      {"tsv", "", "table.tsv has no rows"},
      {"tsv", "text\tlabel\r\n\r\n", "table.tsv has no rows"},
      {"csv", "\n\n", "table.csv has no rows", by_number},
      {"tsv", "text\tlabl\n",
       "table.tsv, line 1: no column 'label'; did you mean 'labl'? there are: text, "
       "labl"},
      {"csv", "\n\nlabel,Text\n",
       "table.csv, line 3: no column 'text'; did you mean 'Text'? there are: label, "
       "Text"},
      {"csv", "text\tlabel\na\t1\n",
       "table.csv, line 1: no column 'text'; there are: text\tlabel"},
      {"tsv", seventy + "\t1\n",
       "table.tsv, line 1: no column 'text'; there are: " + std::string(60, 'a') +
           ".., 1"},
      {"tsv", "text\ttext\tlabel\n",
       "table.tsv, line 1: more than one column 'text'; there are: text, text, label"},
      {"csv", "label,text,label\n",
       "table.csv, line 1: more than one column 'label'; there are: label, text, "
       "label"},
      {"tsv",
       "a\t1\n",
       "table.tsv, line 1: no column 3; there are 2, counted from 1",
       {.text = "1", .label = "3"}},
      {"tsv",
       "a\t1\n",
       "table.tsv, line 1: no column 0; there are 2, counted from 1",
       {.text = "0", .label = "1"}},
      {"csv",
       "a,1\n",
       "table.csv, line 1: no column 99999999999999999999; there are 2, counted from 1",
       {.text = "99999999999999999999", .label = "1"}},
      {"tsv",
       "a\t1\n",
       "the columns must be two names or two numbers, got text '1' and label 'label'",
       {.text = "1"}},
      {"tsv",
       "a\t1\n",
       "the columns must be two names or two numbers, got text 'text' and label '2'",
       {.label = "2"}},
      {"tsv",
       "a\t1\n",
       "text and label must be different columns, got 'a' for both",
       {.text = "a", .label = "a"}},
      // fields
      {"tsv", "text\tlabel\na\t1\nb\n",
       "table.tsv, line 3: must have 2 columns like line 1, got 1"},
      {"tsv", "\ntext\tlabel\na\tb\t1\n",
       "table.tsv, line 3: must have 2 columns like line 2, got 3"},
      {"csv", "a,1\nb,2,\n",
       "table.csv, line 2: must have 2 columns like line 1, got 3", by_number},
      {"csv", "text,label\n\"a\n\nb\",1\n\"c\nd\"\n",
       "table.csv, line 5: must have 2 columns like line 1, got 1"},
      {"tsv", "text\tlabel\na\t\n", "table.tsv, line 2: the label is empty"},
      {"tsv", "text\tlabel\r\na\t\r\n", "table.tsv, line 2: the label is empty"},
      {"csv", "text,label\n\"a\nb\",1\na,\"\"\n",
       "table.csv, line 4: the label is empty"},
      // quotes
      {"csv", "text,label\na,1\n\"b,2\nc,3\n",
       "table.csv, line 3: a quote is not closed"},
      {"csv", "text,label\n\"a\nb\",\"1\"\"\n",
       "table.csv, line 3: a quote is not closed"},
      {"csv", "text,label\n\"a\nb\"c,1\n",
       "table.csv, line 3: after a closing quote must come ',' or the end of the line, "
       "got 'c'"},
      {"csv", "text,label\n\"a\" ,1\n",
       "table.csv, line 2: after a closing quote must come ',' or the end of the line, "
       "got ' '"},
      {"csv", "text,label\n\"a\"\rb,1\n",
       "table.csv, line 2: after a closing quote must come ',' or the end of the line, "
       "got '\rb'"},
      {"csv", "text,label\na \"b\",1\n",
       "table.csv, line 2: a field with a quote must be in quotes, with that quote "
       "doubled, got 'a \"b\"'"},
      {"csv", "text,label\n" + std::string(59, 'a') + "\u00e4\",1\n",
       "table.csv, line 2: a field with a quote must be in quotes, with that quote "
       "doubled, got '" +
           std::string(59, 'a') + "..'"},
      // JSON
      {"jsonl", "", "table.jsonl has no rows"},
      {"jsonl", "{\"text\": \"a\", \"label\": 1}\n{\"text\": \"a\", \"label\": }\n",
       "table.jsonl, line 2: must be one JSON object, but goes wrong at byte 24"},
      {"jsonl", "{\"text\": \"a\",\n\"label\": 1}\n",
       "table.jsonl, line 1: must be one JSON object, but goes wrong at byte 14"},
      {"jsonl", "{\"text\": \"a\", \"label\": 1} {}\n",
       "table.jsonl, line 1: must be one JSON object, but goes wrong at byte 27"},
      {"jsonl", "{\"text\": \"\\ud800\", \"label\": 1}\n",
       "table.jsonl, line 1: must be one JSON object, but goes wrong at byte 17"},
      {"jsonl", "\n[\"a\", 1]\n",
       "table.jsonl, line 2: must be one JSON object, got '[\"a\", 1]'"},
      {"jsonl", "null\n", "table.jsonl, line 1: must be one JSON object, got 'null'"},
      {"jsonl", "{\"text\": \"a\", \"label\": 1e999}\n",
       "table.jsonl, line 1: has a number that is too large"},
      {"jsonl", "{\"text\": \"a\", \"lable\": 1}\n",
       "table.jsonl, line 1: no key 'label'; did you mean 'lable'? there are: text, "
       "lable"},
      {"jsonl", "{}\n", "table.jsonl, line 1: no key 'text'; there are none"},
      {"jsonl", "{\"text\": \"a\", \"label\": 1, \"text\": \"b\"}\n",
       "table.jsonl, line 1: more than one key 'text'; there are: text, label, text"},
      {"jsonl", "{\"text\": 7, \"label\": 1}\n",
       "table.jsonl, line 1: 'text' must be a string, got 7"},
      {"jsonl", "{\"text\": [\"a\"], \"label\": 1}\n",
       "table.jsonl, line 1: 'text' must be a string, got an array"},
      {"jsonl", "{\"text\": \"a\", \"label\": 1.5}\n",
       "table.jsonl, line 1: 'label' must be a string, whole number or boolean, got "
       "1.5"},
      {"jsonl", "{\"text\": \"a\", \"label\": null}\n",
       "table.jsonl, line 1: 'label' must be a string, whole number or boolean, got "
       "null"},
      {"jsonl", "{\"text\": \"a\", \"label\": {}}\n",
       "table.jsonl, line 1: 'label' must be a string, whole number or boolean, got an "
       "object"},
      {"jsonl", "{\"text\": \"a\", \"label\": \"\"}\n",
       "table.jsonl, line 1: the label is empty"},
      // the name of the file
      {"txt", "text\tlabel\na\t1\n",
       "table.txt: its name must end in .tsv, .csv or .jsonl"},
  };
  for (const auto& [end, contents, message, options] : cases)
    EXPECT_EQ(refusal_of(end, contents, options), message) << contents;
}

TEST(Table, SaysWhichFileItCannotRead) {
  const Folder folder;
  EXPECT_EQ(refusal([&] { read_table(folder / "none.tsv"); }),
            "cannot read " + (folder / "none.tsv") + ": No such file or directory");
  const std::string inner = folder / "folder.csv";
  ASSERT_EQ(mkdir(inner.c_str(), 0700), 0);
  EXPECT_EQ(refusal([&] { read_table(inner); }),
            "cannot read " + inner + ": Is a directory");
  EXPECT_EQ(
      refusal([] { read_table("data"); }),
      "cannot tell the layout of data: its name must end in .tsv, .csv or .jsonl");
}

}  // namespace
}  // namespace longspan::testing
