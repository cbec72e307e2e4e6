// Running text: files, splits, tokens, files of tokens, windows.

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <set>

#include "longspan/base/read_file.h"
#include "longspan/data/byte_source.h"
#include "longspan/data/made_text.h"
#include "longspan/data/text_splits.h"
#include "longspan/data/token_file.h"
#include "longspan/data/token_windows.h"
#include "tests/support/folder.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

class Text : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return folder_ / name;
  }
  std::string make(const std::string& name) const {
    mkdir((folder_ / name).c_str(), 0700);
    return folder_ / name;
  }

  const Folder folder_;
};

using PackedFiles = Text;
using Files = Text;
using Splits = Text;
using TokensInFiles = Text;

// "one|two|": the documents of `path`; a long text has no bar.
std::string documents(const std::string& path, const std::string& column = "text") {
  std::string all;
  TextFiles(path, column).read([&](const TextPart& part) {
    all += part.text;
    if (part.ends_document) all += '|';
  });
  return all;
}

// "one\ntwo\n".
constexpr uint8_t kGzip[] = {0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0xff,
                             0xcb, 0xcf, 0x4b, 0xe5, 0x2a, 0x29, 0xcf, 0xe7, 0x02, 0x00,
                             0xe6, 0x0b, 0xba, 0x12, 0x08, 0x00, 0x00, 0x00};
constexpr uint8_t kXz[] = {0xfd, 0x37, 0x7a, 0x58, 0x5a, 0x00, 0x00, 0x01, 0x69, 0x22,
                           0xde, 0x36, 0x02, 0x00, 0x21, 0x01, 0x0c, 0x00, 0x00, 0x00,
                           0x8f, 0x98, 0x41, 0x9c, 0x01, 0x00, 0x07, 0x6f, 0x6e, 0x65,
                           0x0a, 0x74, 0x77, 0x6f, 0x0a, 0x00, 0xe6, 0x0b, 0xba, 0x12,
                           0x00, 0x01, 0x1c, 0x08, 0x44, 0x60, 0x2a, 0xc8, 0x90, 0x42,
                           0x99, 0x0d, 0x01, 0x00, 0x00, 0x00, 0x00, 0x01, 0x59, 0x5a};

TEST_F(PackedFiles, AreUnpacked) {
  const auto check = [&](std::span<const uint8_t> bytes, const std::string& name,
                         const std::string& format) {
    const std::string packed(bytes.begin(), bytes.end());
    const std::string path = write(name, packed);
    const std::string first = refusal([&] { read_unpacked(path); });
    if (first.find("this build has no") != first.npos) return;
    EXPECT_EQ(read_unpacked(path), "one\ntwo\n");
    write(name, packed + packed);
    EXPECT_EQ(read_unpacked(path), "one\ntwo\none\ntwo\n");
    EXPECT_EQ(documents(path), "one\ntwo\none\ntwo\n");
    write(name, "one and two, not packed");
    EXPECT_EQ(refusal([&] { read_unpacked(path); }), path + " is not in " + format);
    for (const size_t size : {packed.size() - 1, packed.size() / 2}) {
      write(name, packed.substr(0, size));
      EXPECT_TRUE(refusal([&] {
                    read_unpacked(path);
                  }).starts_with(path + " is damaged or cut off"))
          << size;
    }
  };
  check(kGzip, "a.gz", "gzip's format");
  check(kXz, "a.xz", "xz's format");
}

TEST_F(PackedFiles, ArePlainByAnyOtherName) {
  const std::string text = make_text(600'000, 3);
  EXPECT_EQ(read_unpacked(write("a.txt", text)), text);
  EXPECT_EQ(read_unpacked(write("empty", "")), "");
  EXPECT_EQ(unpacked_name("a.jsonl.gz"), "a.jsonl");
  EXPECT_EQ(unpacked_name("a.xz"), "a");
  EXPECT_EQ(unpacked_name("a.tokens"), "a.tokens");
  EXPECT_NE(refusal([&] { open_bytes(folder_ / "none"); }).find("cannot read"),
            std::string::npos);
}

TEST_F(Files, AreOneLongTextOrDocuments) {
  EXPECT_EQ(documents(write("a.txt", "one\ntwo")), "one\ntwo");
  EXPECT_EQ(
      documents(write("a.jsonl", "{\"text\": \"one\\n\"}\n{\"text\": \"two\"}\n")),
      "one\n|two|");
  EXPECT_EQ(documents(write("a.json", "{\"text\": \"one\"}\n")), "one|");
  EXPECT_EQ(documents(write("a.tsv", "id\tbody\n1\tone\n2\ttwo\n"), "body"),
            "one|two|");
  EXPECT_EQ(documents(write("wiki_00",
                            "<doc id=\"1\" title=\"A\">\nA\n\none\n</doc>\n\n"
                            "<doc id=\"2\">\ntwo\n</doc>")),
            "A\n\none\n|two\n|");
  make("books");
  make("books/b");
  write("books/2.txt", "two");
  write("books/1.txt", "one\n");
  write("books/b/3.txt", "<doc id=\"3\">\nthree\n</doc>\n");
  write("books/.hidden", "no");
  EXPECT_EQ(documents(folder_ / "books"), "one\n|two|three\n|");
  EXPECT_FALSE(TextFiles(folder_ / "a.txt").in_documents());
  EXPECT_TRUE(TextFiles(folder_ / "wiki_00").in_documents());
  EXPECT_TRUE(TextFiles(folder_ / "books").in_documents());
}

// A file in an archive, as tar writes it.
std::string member(const std::string& name, const std::string& contents,
                   char type = '0') {
  std::array<char, 512> header = {};
  std::ranges::copy(name, header.begin());
  std::ranges::copy(std::string("0000644"), header.begin() + 100);
  std::snprintf(header.data() + 124, 12, "%011zo", contents.size());
  header[156] = type;
  std::ranges::copy(std::string("ustar"), header.begin() + 257);
  std::string all(header.begin(), header.end());
  all += contents;
  all.resize((all.size() + 511) / 512 * 512);
  return all;
}

TEST_F(Files, OfAnArchiveAreDocuments) {
  const std::string end(1024, '\0'), large = make_text(1'200'000, 2);
  const std::string books = member("books/", "", '5') + member("books/b.txt", "two\n") +
                            member("PaxHeader", "30 mtime=1\n", 'x') +
                            member("books/._b.txt", "hidden") + member("empty", "") +
                            member("books/a.txt", large);
  EXPECT_EQ(documents(write("books.tar", books + end)), "two\n||" + large + "|");
  EXPECT_TRUE(TextFiles(folder_ / "books.tar").in_documents());
  EXPECT_EQ(documents(write("any", books)), "two\n||" + large + "|");
  const auto complaint = [&](const std::string& bytes) {
    const std::string path = write("a.tar", bytes);
    return refusal([&] { documents(path); }).substr(path.size());
  };
  EXPECT_EQ(complaint(books.substr(0, books.size() - 600)), " is damaged or cut off");
  EXPECT_EQ(complaint(member("a", "b") + member("c", "d").substr(0, 100)),
            " is damaged or cut off");
  EXPECT_EQ(complaint(member("a", "b") + std::string(512, 'x')),
            " is damaged or cut off");
  EXPECT_EQ(complaint(member("c4/a.jsonl.gz", "b") + end),
            ": c4/a.jsonl.gz is no plain text; unpack the archive and give its folder");
}

TEST_F(Files, OfAnyLengthComeWhole) {
  const std::string text = make_text(3'000'000, 1) + std::string(1'100'000, 'x');
  const std::string path = write("long.txt", text);
  EXPECT_EQ(documents(path), text);
  int parts = 0;
  TextFiles(path).read([&](const TextPart& part) {
    ++parts;
    EXPECT_TRUE(parts > 2 || part.text.back() == '\n');
  });
  EXPECT_GE(parts, 4);
}

TEST_F(Files, AreRefusedByName) {
  const auto complaint = [&](const std::string& name, const std::string& text) {
    const std::string path = write(name, text);
    return refusal([&] { documents(path); }).substr(path.size() - name.size());
  };
  EXPECT_EQ(complaint("a", ""), "a: there is no text in it");
  EXPECT_EQ(complaint("a", "<doc id=1>\nb\n"), "a, line 1: the <doc> is not closed");
  EXPECT_EQ(complaint("a", "<doc id=1>\n</doc>\nb\n"),
            "a, line 3: text outside of <doc> and </doc>");
  EXPECT_EQ(complaint("a", "<doc id=1>\n<doc id=2>\n"),
            "a, line 2: a <doc> within that of line 1");
  EXPECT_EQ(complaint("a", "<doc id=1>\n</doc>\n</doc>\n"),
            "a, line 3: a </doc> without a <doc>");
  EXPECT_NE(complaint("a.jsonl", "{\"body\": \"x\"}\n").find("no key 'text'"),
            std::string::npos);
  EXPECT_NE(refusal([&] { documents(make("nothing")); }).find("has no files"),
            std::string::npos);
}

// What a split reads as, with a bar behind every document.
std::array<std::string, 3> splits_of(const TextSplitOptions& options, bool anywhere) {
  std::array<std::string, 3> all;
  TextSplits(options).read(anywhere, [&](size_t split, const TextPart& part) {
    all[split] += part.text;
    if (part.ends_document) all[split] += '|';
  });
  return all;
}

TEST_F(Splits, OfALongTextAreItsEnds) {
  std::string text;
  for (int i = 0; i < 100; ++i)
    text += std::to_string(i) + " " + std::string(i % 7, 'a') + "\n";
  TextSplitOptions options{
      .train = write("text", text), .valid_share = 0.05, .test_share = 0.1};
  const auto size = static_cast<double>(text.size());
  const auto exact = splits_of(options, /*anywhere=*/true);
  EXPECT_EQ(exact[0] + exact[1] + exact[2], text);
  EXPECT_EQ(std::ssize(exact[1]), std::llround(0.05 * size));
  EXPECT_EQ(std::ssize(exact[2]), std::llround(0.1 * size));
  const auto lines = splits_of(options, /*anywhere=*/false);
  EXPECT_EQ(lines[0] + lines[1] + lines[2], text);
  for (int split = 0; split < 2; ++split) {
    EXPECT_TRUE(lines[split].ends_with('\n') || lines[split].ends_with(' '));
    EXPECT_LT(std::abs(std::ssize(lines[split]) - std::ssize(exact[split])), 12);
  }
  options.valid = write("valid", "other");
  const auto given = splits_of(options, true);
  EXPECT_EQ(given[1], "other");
  EXPECT_EQ(given[2], exact[2]);
  EXPECT_EQ(given[0] + given[2], text);
  options.test = options.valid;
  EXPECT_EQ(splits_of(options, true)[0], text);
}

TEST_F(Splits, OfDocumentsAreDrawn) {
  std::string rows = "text\n";
  std::multiset<std::string> all;
  for (int i = 0; i < 40; ++i) {
    rows += "document " + std::to_string(i) + "\n";
    all.insert("document " + std::to_string(i));
  }
  TextSplitOptions options{.train = write("a.tsv", rows)};
  const auto list = [](std::string text) {
    std::multiset<std::string> some;
    for (size_t at = text.find('|'); at != text.npos; at = text.find('|')) {
      some.insert(text.substr(0, at));
      text = text.substr(at + 1);
    }
    return some;
  };
  const auto first = splits_of(options, false);
  EXPECT_EQ(list(first[1]).size(), 4u);
  EXPECT_EQ(list(first[2]).size(), 4u);
  EXPECT_EQ(list(first[0] + first[1] + first[2]), all);
  EXPECT_EQ(splits_of(options, true), first);
  options.seed = 2;
  EXPECT_NE(splits_of(options, false), first);
  std::string training;
  TextSplits(options).training(false)([&](std::string_view text) { training += text; });
  std::string without_bars = splits_of(options, false)[0];
  std::erase(without_bars, '|');
  EXPECT_EQ(training, without_bars);
  options.train = write("b.tsv", "text\none\ntwo\n");
  EXPECT_NE(refusal([&] { TextSplits{options}; }).find("too little to split"),
            std::string::npos);
}

TEST(TextTokens, OfWordsAreThoseOfWikiText) {
  const std::string text = " = A title = \n\nA <unk> word , a word\nA word";
  const auto each = [&](const std::function<void(std::string_view)>& take) {
    take(std::string_view(text).substr(0, 10));
    take(std::string_view(text).substr(10));
  };
  const auto tokens = build_text_tokens({.kind = "words"}, each);
  // Padding, <unk>, <eos>; A, word; =; ",", a, title
  EXPECT_EQ(tokens->ids(), 9);
  const std::vector<int32_t> ids = {5, 3, 8, 5, 2, 2, 3, 1, 4, 6, 7, 4, 2, 3, 4};
  EXPECT_EQ(tokens->encode(text), ids);
  EXPECT_EQ(tokens->decode(ids), "= A title =\n\nA <unk> word , a word\nA word");
  EXPECT_EQ(tokens->encode("A new <unk> <eos>"), (std::vector<int32_t>{3, 1, 1, 2}));
  const auto again = restore_text_tokens("words", tokens->saved());
  EXPECT_EQ(again->encode(text), ids);
  EXPECT_EQ(again->ids(), 9);
  const auto few =
      build_text_tokens({.kind = "words", .vocabulary = 5, .least_count = 2}, each);
  EXPECT_EQ(few->ids(), 5);
  EXPECT_EQ(few->encode("A word = a"), (std::vector<int32_t>{3, 4, 1, 1}));
  // <unk> of the text itself is what it says.
  const std::string_view unknown = "A <unk> = a";
  EXPECT_EQ(few->unknown(unknown, few->encode(unknown)), 2);
  EXPECT_EQ(few->unknown("A word", few->encode("A word")), 0);
  EXPECT_FALSE(few->keep("A word", few->encode("A word")));
  EXPECT_NE(refusal([] { restore_text_tokens("words", "no"); }).find("list of words"),
            std::string::npos);
  EXPECT_NE(refusal([] { restore_text_tokens("wrods", ""); }).find("words"),
            std::string::npos);
}

TEST(TextTokens, OfBytesAreAllBytes) {
  const auto tokens = restore_text_tokens("bytes", "");
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  const auto ids = tokens->encode(all);
  EXPECT_EQ(ids.front(), 1);
  EXPECT_EQ(ids.back(), 256);
  EXPECT_EQ(tokens->decode(ids), all);
  EXPECT_EQ(tokens->decode(std::vector<int32_t>{0, 257, 258, 98}), "a");
  EXPECT_TRUE(tokens->keep(all, ids));
  EXPECT_EQ(tokens->unknown(all, ids), 0);
}

class TextPieces : public Text {
 protected:
  using Ids = std::vector<int32_t>;

  void SetUp() override {
    const auto reason =
        refusal([] { restore_text_tokens("sentencepiece", std::string(9, 'x')); });
    if (reason.starts_with("this build has no SentencePiece")) GTEST_SKIP() << reason;
    exact_ = build_text_tokens({.kind = "sentencepiece", .vocabulary = 400},
                               [&](const auto& take) { take(text_); });
  }

  const std::string text_ = make_text(20'000, 1);
  std::shared_ptr<const longspan::TextTokens> exact_;
};

TEST_F(TextPieces, KeepAllOfAnyText) {
  EXPECT_LE(exact_->ids(), 400);
  for (const std::string& text :
       {text_, std::string("Ada  saw\tthe \u65e5\u672c river .  \n\n  Half \u00bd\n"),
        std::string(1000, ' ')}) {
    const auto ids = exact_->encode(text);
    EXPECT_EQ(std::ranges::count(ids, exact_->ids() - 1),
              std::ranges::count(text, '\n'));
    EXPECT_EQ(exact_->decode(ids), text);
    EXPECT_EQ(exact_->unknown(text, ids), 0);
    EXPECT_TRUE(exact_->keep(text, ids));
    EXPECT_EQ(restore_text_tokens("sentencepiece", exact_->saved())->encode(text), ids);
  }
  std::string rare;
  for (int i = 0; i < 1000; ++i) rare += "\u65e5";
  EXPECT_GE(exact_->encode(rare).size(), 3000u);
  // What is no UTF-8 is not got back.
  EXPECT_FALSE(exact_->keep("a\xff", exact_->encode("a\xff")));
}

TEST_F(TextPieces, OfAModelFileMayLackSome) {
  const std::string_view lines[] = {text_};
  const std::string path = write(
      "model",
      build_tokenizer({.kind = "sentencepiece", .vocabulary = 120}, lines)->saved());
  const auto tokens =
      build_text_tokens({.kind = "sentencepiece", .model = path}, [](const auto&) {});
  const std::string text = "Ada saw \u65e5 there.";
  const auto ids = tokens->encode(text);
  EXPECT_EQ(tokens->unknown(text, ids), 1);
  EXPECT_EQ(std::ranges::count(ids, tokens->unwritten()), 1);
  EXPECT_FALSE(tokens->keep(text, ids));
  const std::string spaces = "Ada  saw";
  EXPECT_EQ(tokens->unknown(spaces, tokens->encode(spaces)), 0);
  EXPECT_FALSE(tokens->keep(spaces, tokens->encode(spaces)));

  const auto count = [&](const std::string& contents) {
    TokenBuffer sink(1000);
    return encode_text(TextFiles(write("text", contents)), *tokens, 999, sink);
  };
  EXPECT_EQ(count(text).unknown, 1);
  EXPECT_FALSE(count(text).kept);
  EXPECT_TRUE(count("Ada saw\nthe river").kept);
}

// A part that goes on is cut as in the whole text; the space before what is missing is
// its own.
TEST_F(TextPieces, OfPartsAreThoseOfTheWhole) {
  const std::string model =
      write("model", build_tokenizer({.kind = "sentencepiece", .vocabulary = 120},
                                     std::vector<std::string_view>{text_})
                         ->saved());
  const auto of_file =
      build_text_tokens({.kind = "sentencepiece", .model = model}, [](const auto&) {});
  for (const auto& tokens : {exact_, of_file}) {
    const std::string whole = "the river.\nthe river";
    const Ids all = tokens->encode(whole);
    for (size_t missing = 0; missing < all.size(); ++missing) {
      const std::span<const int32_t> ids(all);
      std::string before = tokens->decode(ids.first(missing));
      const std::string with = tokens->decode(ids.first(missing + 1));
      if (with == before || with.back() == '\n') continue;  // begins a line
      // A space that the missing piece begins with.
      if (whole[before.size()] == ' ') before += ' ';
      const std::string_view parts[] = {before,
                                        std::string_view(whole).substr(with.size())};
      const auto found = tokens->encode_parts(parts);
      ASSERT_EQ(found.size(), 2);
      const auto at = all.begin() + static_cast<int64_t>(missing);
      EXPECT_EQ(found[0], Ids(all.begin(), at)) << missing;
      EXPECT_EQ(found[1], Ids(at + 1, all.end())) << missing;
    }
    const std::string_view sentence[] = {"the river", "."};
    const auto end = tokens->encode_parts(sentence)[1];
    EXPECT_EQ(end, Ids{tokens->encode("the river.").back()});
  }
  const auto bytes = restore_text_tokens("bytes", "");
  const std::string_view parts[] = {"a ", " b"};
  EXPECT_EQ(bytes->encode_parts(parts), (std::vector<Ids>{{98, 33}, {33, 99}}));
}

TEST_F(Splits, CountBytesWordsAndDocuments) {
  const TextSplits splits({.train = write("a.jsonl",
                                          "{\"text\": \"one two\\n three\"}\n"
                                          "{\"text\": \"four\"}\n"),
                           .valid = write("b", "one\n\ntwo "),
                           .test = folder_ / "b"});
  const auto tokens = restore_text_tokens("bytes", "");
  std::vector<TokenBuffer> buffers(3, TokenBuffer(258));
  const auto counts =
      splits.encode(*tokens, 257, {buffers.data(), &buffers[1], &buffers[2]});
  EXPECT_EQ(counts[0].bytes, 18);
  EXPECT_EQ(counts[0].words, 5);
  EXPECT_EQ(counts[0].documents, 2);
  EXPECT_EQ(counts[1].bytes, 9);
  EXPECT_EQ(counts[1].words, 4);
  EXPECT_EQ(counts[1].documents, 0);
  const TokenList list = std::move(buffers[0]).list();
  EXPECT_EQ(list.size(), 20);
  EXPECT_EQ(list[14], 257);
  EXPECT_EQ(list[19], 257);
}

TokenText text_of(const std::vector<int32_t>& ids, int64_t most = 100) {
  TokenBuffer buffer(most);
  buffer.add(ids);
  return {.tokens = std::move(buffer).list(), .words = 3, .bytes = 5};
}

TEST_F(TokensInFiles, AreWhatWasWritten) {
  for (const int64_t most : {300, 70000}) {
    const std::vector<int32_t> ids = {1, 256, 3, static_cast<int32_t>(most - 1), 7};
    const TokenFileFacts facts{.kind = "words", .vocabulary = "<eos>\na", .ids = most};
    const std::string path = folder_ / (std::to_string(most) + ".ids");
    { const TokenFileWriter given_up(path, facts); }
    EXPECT_FALSE(is_token_file(path));
    TokenFileWriter writer(path, facts);
    writer.add(std::span(ids).first(2));
    writer.add(std::span(ids).subspan(2));
    writer.commit(
        {.bytes = 9, .words = 8, .documents = 7, .unknown = 6, .kept = most == 300});
    ASSERT_TRUE(is_token_file(path));
    const TokenFile file = open_token_file(path);
    EXPECT_EQ(file.facts.kind, "words");
    EXPECT_EQ(file.facts.vocabulary, facts.vocabulary);
    EXPECT_EQ(file.facts.ids, most);
    EXPECT_EQ(file.counts.bytes, 9);
    EXPECT_EQ(file.counts.words, 8);
    EXPECT_EQ(file.counts.documents, 7);
    EXPECT_EQ(file.counts.unknown, 6);
    EXPECT_EQ(file.counts.kept, most == 300);
    ASSERT_EQ(file.tokens.size(), 5);
    for (int i = 0; i < 5; ++i) EXPECT_EQ(file.tokens[i], ids[i]);
    EXPECT_EQ(file.tokens.checksum(), text_of(ids, most).tokens.checksum());

    const std::string whole = read_file(path);
    const auto opens = [&](const std::string& bytes) {
      return refusal([&] { open_token_file(write("other", bytes)); });
    };
    for (size_t size = 16; size < whole.size(); size += 5)
      EXPECT_NE(opens(whole.substr(0, size)).find("is damaged or cut off"),
                std::string::npos)
          << size;
    // Only the ids themselves are not read.
    const size_t ids_size = most == 300 ? 10 : 20;
    const size_t ids_begin = whole.size() - 64 - (ids_size + 7) / 8 * 8;
    for (size_t at = 16; at < whole.size(); at += 3) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ 1);
      const bool is_id = at >= ids_begin && at < ids_begin + ids_size;
      EXPECT_EQ(opens(damaged) == "accepted", is_id) << at;
    }
  }
  EXPECT_NE(refusal([&] {
              open_token_file(write("no", "some text"));
            }).find("`longspan data tokens` writes one"),
            std::string::npos);
}

constexpr int32_t kEnd = 90;

// Every target that is asked, by its place in the text, from all windows; fails where a
// window has other tokens than the text before it.
std::vector<int> asked(const TextDataset& windows, const std::vector<int32_t>& text,
                       const std::vector<int64_t>& starts) {
  std::vector<int> times(text.size());
  for (int64_t window = 0; window < windows.size(); ++window) {
    const int64_t numbers[] = {window};
    const Batch batch = windows.batch(numbers);
    EXPECT_EQ(batch.ids.size(1), windows.length(window));
    EXPECT_EQ(batch.answers, (batch.targets >= 0).sum().item<int64_t>());
    for (int64_t i = 0; i < batch.ids.size(1); ++i) {
      const auto place = static_cast<size_t>(starts[window] + i);
      const auto id = batch.ids[0][i].item<int64_t>();
      const auto target = batch.targets[0][i].item<int64_t>();
      EXPECT_EQ(id, place == 0 ? kEnd : text[place - 1]);
      if (target < 0) continue;
      EXPECT_EQ(target, text[place]);
      ++times[place];
    }
  }
  return times;
}

std::vector<int32_t> numbered(int32_t count) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) ids[static_cast<size_t>(i)] = i % 80 + 1;
  return ids;
}

TEST(NextTokenWindows, AskEveryTokenOnce) {
  for (const int32_t count : {1, 7, 8, 9, 16, 50, 51})
    for (const int64_t context : {0, 3, 7}) {
      const auto text = numbered(count);
      const auto windows = next_token_windows(
          text_of(text), {.longest = 8, .context = context, .end_of_text = kEnd});
      std::vector<int64_t> starts;
      for (int64_t i = 0; i < windows->size(); ++i) starts.push_back(i * (8 - context));
      EXPECT_EQ(asked(*windows, text, starts), std::vector<int>(text.size(), 1))
          << count << ' ' << context;
      EXPECT_EQ(windows->words(), 3);
      EXPECT_EQ(windows->bytes(), 5);
      EXPECT_EQ(windows->overlaps(), context > 0);
    }
}

TEST(NextTokenWindows, ArePaddedAndMayBeNothing) {
  const auto windows =
      next_token_windows(text_of(numbered(10)), {.longest = 8, .end_of_text = kEnd});
  ASSERT_EQ(windows->size(), 2);
  const int64_t numbers[] = {1, -1, 0};
  const Batch batch = windows->batch(numbers, {.tokens = 9});
  EXPECT_EQ(batch.real_tokens, 10);
  EXPECT_EQ(batch.answers, 10);
  EXPECT_TRUE(torch::equal(batch.tokens.sum(1), torch::tensor({2, 0, 8})));
  EXPECT_TRUE(torch::equal(batch.tokens, batch.targets >= 0));
  EXPECT_EQ(batch.ids.masked_select(~batch.tokens).abs().sum().item<int64_t>(), 0);
  EXPECT_FALSE(batch.segments.defined());
  EXPECT_NE(
      windows->fingerprint(),
      next_token_windows(text_of(numbered(10)), {.longest = 7, .end_of_text = kEnd})
          ->fingerprint());
}

TEST(NextTokenWindows, TellDocumentsApart) {
  const auto windows =
      next_token_windows(text_of({1, 2, kEnd, 3, kEnd, kEnd, 4, 5}),
                         {.longest = 5, .end_of_text = kEnd, .apart = true});
  const int64_t numbers[] = {0, 1};
  const Batch batch = windows->batch(numbers);
  EXPECT_TRUE(torch::equal(
      batch.ids, torch::tensor({{90, 1, 2, 90, 3}, {90, 90, 4, 0, 0}}, torch::kLong)));
  EXPECT_TRUE(torch::equal(
      batch.targets,
      torch::tensor({{1, 2, 90, 3, 90}, {90, 4, 5, -1, -1}}, torch::kLong)));
  EXPECT_TRUE(torch::equal(
      batch.segments, torch::tensor({{0, 0, 0, 1, 1}, {0, 1, 1, 0, 0}}, torch::kLong)));
}

TEST(NextTokenWindows, RefuseATokenThatCannotBe) {
  const auto windows =
      next_token_windows(text_of({1, 95, 2}), {.longest = 5, .end_of_text = kEnd});
  const int64_t numbers[] = {0};
  EXPECT_NE(refusal([&] { windows->batch(numbers); }).find("token 1 of the text is 95"),
            std::string::npos);
}

constexpr MaskOptions kMasks{.mask = kEnd + 1, .ordinary = kEnd};

TEST(MaskedWindows, HideAsBertDoes) {
  const auto text = numbered(4000);
  const auto windows =
      masked_windows(text_of(text), {.longest = 101, .end_of_text = kEnd}, kMasks);
  ASSERT_EQ(windows->size(), 40);
  std::vector<int64_t> numbers(40);
  for (int64_t i = 0; i < 40; ++i) numbers[static_cast<size_t>(i)] = i;
  const Batch batch = windows->batch(numbers, {.key = Key{5}});
  EXPECT_EQ(batch.answers, 40 * 15);
  EXPECT_FALSE(batch.kinds.defined());
  int64_t masked = 0, same = 0, other = 0;
  for (int64_t window = 0; window < 40; ++window) {
    EXPECT_EQ(batch.ids[window][100].item<int64_t>(), kEnd);
    for (int64_t i = 0; i < 100; ++i) {
      const auto id = batch.ids[window][i].item<int64_t>();
      const auto target = batch.targets[window][i].item<int64_t>();
      const int64_t was = text[static_cast<size_t>(window * 100 + i)];
      if (target < 0) {
        EXPECT_EQ(id, was);
        continue;
      }
      EXPECT_EQ(target, was);
      EXPECT_TRUE(id > 0 && id <= kEnd + 1 && id != kEnd);
      ++(id == kEnd + 1 ? masked : id == was ? same : other);
    }
  }
  // Of 600, within five deviations.
  EXPECT_NEAR(masked, 480, 50);
  EXPECT_NEAR(same, 60, 40);
  EXPECT_NEAR(other, 60, 40);
}

TEST(MaskedWindows, DependOnTheKeyAndTheirNumberAlone) {
  const auto windows =
      masked_windows(text_of(numbered(100)), {.longest = 20, .end_of_text = kEnd},
                     {.mask = kEnd + 1, .ordinary = kEnd, .pairs = true});
  const int64_t both[] = {1, 3}, one[] = {3};
  const Batch batch = windows->batch(both, {.key = Key{5}});
  const Batch alone = windows->batch(one, {.key = Key{5}});
  EXPECT_TRUE(torch::equal(batch.ids[1], alone.ids[0]));
  EXPECT_TRUE(torch::equal(batch.targets[1], alone.targets[0]));
  EXPECT_TRUE(torch::equal(batch.kinds[1], alone.kinds[0]));
  const Batch other = windows->batch(one, {.key = Key{6}});
  EXPECT_FALSE(torch::equal(other.targets[0], alone.targets[0]));
}

TEST(MaskedWindows, OfPairsHaveTwoKinds) {
  for (const int32_t count : {1, 2, 3, 40}) {
    const auto windows =
        masked_windows(text_of(numbered(count)), {.longest = 20, .end_of_text = kEnd},
                       {.mask = kEnd + 1, .ordinary = kEnd, .pairs = true});
    const int64_t numbers[] = {0};
    const Batch batch = windows->batch(numbers);
    const int64_t size = windows->length(0);
    EXPECT_EQ(size, std::min(count, 18) + 2);
    EXPECT_EQ(batch.ids[0][size - 1].item<int64_t>(), kEnd);
    EXPECT_EQ((batch.ids == kEnd).sum().item<int64_t>(), 2);
    EXPECT_GE(batch.answers, 1);
    // The first text ends where the kind changes.
    const auto first = (batch.kinds == 0).sum().item<int64_t>();
    EXPECT_EQ(batch.ids[0][first - 1].item<int64_t>(), kEnd);
    EXPECT_EQ(batch.kinds[0].slice(0, 0, first).sum().item<int64_t>(), 0);
  }
}

TEST(MadeText, IsTheSameForOneSeed) {
  const std::string text = make_text(5000, 4);
  EXPECT_GE(text.size(), 5000u);
  EXPECT_EQ(text, make_text(5000, 4));
  EXPECT_NE(text, make_text(5000, 5));
  EXPECT_TRUE(make_text(9000, 4).starts_with(text));
}

}  // namespace
}  // namespace longspan::testing
