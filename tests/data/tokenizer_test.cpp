#include "longspan/data/tokenizer.h"

#include <fstream>

#include "tests/support/folder.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

using Ids = std::vector<int32_t>;
using Texts = std::vector<std::string_view>;

std::string refusal_of(const TokenizerOptions& options, const Texts& texts = {"a"}) {
  return refusal([&] { build_tokenizer(options, texts); });
}

std::string refusal_of_saved(const std::string& kind, const std::string& saved) {
  return refusal([&] { restore_tokenizer(kind, saved); });
}

TEST(Tokenizer, TakesBytes) {
  const auto bytes = build_tokenizer({}, Texts{});
  EXPECT_EQ(bytes->encode(std::string_view("a\0\xff z", 5)),
            (Ids{98, 1, 256, 33, 123}));
  EXPECT_EQ(bytes->encode(""), Ids{});
  EXPECT_EQ(bytes->ids(), 257);
  EXPECT_EQ(bytes->describe(), "bytes, 257 ids");
  EXPECT_EQ(bytes->saved(), "");
  EXPECT_EQ(restore_tokenizer("bytes", "")->encode("a"), (Ids{98}));
}

TEST(Tokenizer, TakesTheCommonestWordsFirst) {
  const auto words =
      build_tokenizer({.kind = "words"}, Texts{"b a, c C b", "c! d2\tD2\n", ""});
  // c 3 times, b and d2 twice, then once: ! , a
  EXPECT_EQ(words->encode("c b d2 ! , a"), (Ids{2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(words->encode("C B! D2D2 \v\f\r A,,x"), (Ids{2, 3, 5, 1, 7, 6, 6, 1}));
  EXPECT_EQ(words->encode(""), Ids{});
  EXPECT_EQ(words->encode(" \n "), Ids{});
  EXPECT_EQ(words->ids(), 8);
  EXPECT_EQ(words->describe(), "words in lower case, 8 ids");
  EXPECT_EQ(words->saved(), "lower case\nc\nb\nd2\n!\n,\na");
}

TEST(Tokenizer, KeepsTheCaseOfWordsWhereAsked) {
  const auto words =
      build_tokenizer({.kind = "words", .lower_case = false}, Texts{"b B a A B"});
  EXPECT_EQ(words->encode("B A a b"), (Ids{2, 3, 4, 5}));
  EXPECT_EQ(words->describe(), "words as written, 6 ids");
  EXPECT_EQ(words->saved(), "as written\nB\nA\na\nb");
}

TEST(Tokenizer, KeepsNonAsciiWordsWhole) {
  const auto words =
      build_tokenizer({.kind = "words"}, Texts{"Müßig, süß Ärger 日本 \xff\xfe"});
  EXPECT_EQ(words->encode("müßig süß Ärger ärger 日本 日 \xff\xfe \xff"),
            (Ids{3, 4, 5, 1, 6, 1, 7, 1}));
  EXPECT_EQ(words->ids(), 8);
}

TEST(Tokenizer, LimitsTheWords) {
  const Texts texts = {"a b b c c c d d d d"};
  const auto encoded = [&](const TokenizerOptions& options) {
    return build_tokenizer(options, texts)->encode("a b c d");
  };
  EXPECT_EQ(encoded({.kind = "words", .vocabulary = 3}), (Ids{1, 1, 1, 2}));
  EXPECT_EQ(encoded({.kind = "words", .vocabulary = 5}), (Ids{1, 4, 3, 2}));
  EXPECT_EQ(encoded({.kind = "words", .vocabulary = 2147483647}), (Ids{5, 4, 3, 2}));
  EXPECT_EQ(encoded({.kind = "words", .least_count = 3}), (Ids{1, 1, 3, 2}));
  EXPECT_EQ(refusal_of({.kind = "words", .vocabulary = 2}),
            "words: the vocabulary must be 3 .. 2147483647 ids (padding, unknown and "
            "one more), got 2");
  EXPECT_EQ(refusal_of({.kind = "words", .vocabulary = 2147483648}),
            "words: the vocabulary must be 3 .. 2147483647 ids (padding, unknown and "
            "one more), got 2147483648");
  EXPECT_EQ(refusal_of({.kind = "words", .least_count = 0}),
            "words: least_count must be 1 or more, got 0");
  EXPECT_EQ(refusal_of({.kind = "words", .least_count = 5}, texts),
            "words: no word comes 5 times or more in 1 texts");
  EXPECT_EQ(refusal_of({.kind = "words"}, {}),
            "words: no word comes 1 times or more in 0 texts");
}

TEST(Tokenizer, RestoresWords) {
  const Texts texts = {"Zu viele Köche, \"verderben\" den Brei. \xff"};
  for (const bool lower_case : {false, true}) {
    const auto words =
        build_tokenizer({.kind = "words", .lower_case = lower_case}, texts);
    const auto again = restore_tokenizer("words", words->saved());
    EXPECT_EQ(again->saved(), words->saved());
    EXPECT_EQ(again->describe(), words->describe());
    EXPECT_EQ(again->ids(), words->ids());
    for (const std::string text : {"Zu zu Köche köche, BREI?", "\"\xff", ""})
      EXPECT_EQ(again->encode(text), words->encode(text)) << text;
  }
}

TEST(Tokenizer, ChecksWhatItRestores) {
  EXPECT_EQ(
      refusal_of_saved("words", ""),
      "words: what was saved must begin with 'lower case' or 'as written', got ''");
  EXPECT_EQ(refusal_of_saved("words", "{\"words\": []}\na"),
            "words: what was saved must begin with 'lower case' or 'as written', got "
            "'{\"words\": []}'");
  EXPECT_EQ(refusal_of_saved("words", "lower case"), "words: no word was saved");
  EXPECT_EQ(refusal_of_saved("words", "lower case\na\n\nb"),
            "words: '' among the saved ones is not a word in lower case");
  EXPECT_EQ(refusal_of_saved("words", "lower case\na\n"),
            "words: '' among the saved ones is not a word in lower case");
  EXPECT_EQ(refusal_of_saved("words", "lower case\na\nB"),
            "words: 'B' among the saved ones is not a word in lower case");
  EXPECT_EQ(refusal_of_saved("words", "as written\na b"),
            "words: 'a b' among the saved ones is not a word");
  EXPECT_EQ(refusal_of_saved("words", "as written\na "),
            "words: 'a ' among the saved ones is not a word");
  EXPECT_EQ(refusal_of_saved("words", "as written\na,"),
            "words: 'a,' among the saved ones is not a word");
  EXPECT_EQ(refusal_of_saved("words", "as written\na\nb\na"),
            "words: 'a' was saved twice");
  EXPECT_EQ(refusal_of_saved("bytes", "abc"),
            "bytes: nothing is saved of them, got 3 bytes");
  EXPECT_EQ(refusal_of_saved("word", ""),
            "no tokenizer 'word'; did you mean 'words'? there are: bytes, words, "
            "sentencepiece");
}

TEST(Tokenizer, RefusesWhatIsNoKind) {
  EXPECT_EQ(refusal_of({.kind = "byte"}),
            "no tokenizer 'byte'; did you mean 'bytes'? there are: bytes, words, "
            "sentencepiece");
  EXPECT_EQ(refusal_of({.kind = "unigram"}),
            "no tokenizer 'unigram'; there are: bytes, words, sentencepiece");
  EXPECT_EQ(refusal_of({.kind = "words", .model = "m.model"}),
            "words: a model file is for sentencepiece only, got m.model");
}

class SentencePieceTokenizer : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string message = refusal_of_saved("sentencepiece", "");
    if (!message.starts_with("this build")) return;
    EXPECT_EQ(message,
              "this build has no SentencePiece; take the tokenizer bytes or words, or "
              "build with SentencePiece and the system's LibTorch");
    GTEST_SKIP() << message;
  }

  static std::shared_ptr<const Tokenizer> trained(int64_t vocabulary,
                                                  const Texts& texts) {
    return build_tokenizer({.kind = "sentencepiece", .vocabulary = vocabulary}, texts);
  }

  const Texts texts_ = {"the cat sat on the mat\nthe dog sat on the cat",
                        "a cat and a dog and the mat"};
};

TEST_F(SentencePieceTokenizer, TrainsTheSameModelEachTime) {
  const auto pieces = trained(100, texts_);
  EXPECT_EQ(trained(100, texts_)->saved(), pieces->saved());
  EXPECT_NE(trained(100, {"the cat"})->saved(), pieces->saved());
  EXPECT_LE(pieces->ids(), 100);
  EXPECT_EQ(pieces->describe(),
            "sentencepiece, " + std::to_string(pieces->ids()) + " ids");
  EXPECT_EQ(pieces->encode(""), Ids{});
  EXPECT_EQ(pieces->encode(" \n"), Ids{});
  const Ids ids = pieces->encode("the cat sat");
  EXPECT_LT(ids.size(), 11u);  // some pieces are longer than a character
  for (const int32_t id : ids) {
    EXPECT_GE(id, 2);
    EXPECT_LT(id, pieces->ids());
  }
  EXPECT_EQ(pieces->encode("the cat sat\u3042").back(), 1);
}

TEST_F(SentencePieceTokenizer, KeepsToTheVocabulary) {
  EXPECT_EQ(trained(14, texts_)->ids(), 14);
  EXPECT_EQ(refusal([&] { trained(13, texts_); }),
            "sentencepiece: a vocabulary of 13 ids is too small for the characters of "
            "these texts, which need 14");
  EXPECT_EQ(refusal([&] { trained(2, texts_); }),
            "sentencepiece: the vocabulary must be 3 .. 2147483647 ids (padding, "
            "unknown and one more), got 2");
  EXPECT_GT(trained(2147483647, texts_)->ids(), 14);
}

TEST_F(SentencePieceTokenizer, TrainsOnAnyText) {
  const Texts nothing[] = {{},         {""},     {" \n\t", "\u3000"},
                           {"\u2581"}, {"\x01"}, {"\u2585 \u2585"}};
  for (const auto& texts : nothing)
    EXPECT_EQ(refusal([&] { trained(50, texts); }),
              "sentencepiece: there is nothing to train on in " +
                  std::to_string(texts.size()) + " texts");
  EXPECT_GT(trained(50, {"\xff\xfe abc", std::string_view("d\0e", 3)})->ids(), 3);
  EXPECT_GT(trained(50, {"\u3042\u3042\u3044"})->ids(), 3);
  // What the trainer would skip, for a character or for its length, counts as well.
  EXPECT_NE(trained(50, {"a", "x\u2585x"})->encode("x").back(), 1);
  std::string dense = "a";
  for (int i = 0; i < 5000; ++i) dense += i % 3 ? "\u00e4" : "\u00f6";
  EXPECT_NE(trained(50, {dense})->encode("\u00e4").back(), 1);
  EXPECT_NE(trained(50, {std::string(5000, ' ') + "a"})->encode("a").back(), 1);
}

TEST_F(SentencePieceTokenizer, IsRestored) {
  const Folder folder;
  const std::string path = folder / "pieces.model";
  const auto pieces = trained(30, texts_);
  std::ofstream(path, std::ios::binary) << pieces->saved();
  const auto again = restore_tokenizer("sentencepiece", pieces->saved());
  const auto from_file =
      build_tokenizer({.kind = "sentencepiece", .vocabulary = 3, .model = path}, {});
  for (const auto& other : {again, from_file}) {
    EXPECT_EQ(other->saved(), pieces->saved());
    EXPECT_EQ(other->ids(), pieces->ids());
    for (const auto text : texts_) EXPECT_EQ(other->encode(text), pieces->encode(text));
  }
}

TEST_F(SentencePieceTokenizer, RefusesWhatIsNoModel) {
  const Folder folder;
  const std::string path = folder / "wrong.model";
  std::ofstream(path) << "no model\n";
  EXPECT_EQ(refusal_of({.kind = "sentencepiece", .model = path}),
            "sentencepiece: " + path + " is not a SentencePiece model");
  EXPECT_EQ(refusal_of({.kind = "sentencepiece", .model = folder / "none"}),
            "cannot read " + (folder / "none") + ": No such file or directory");
  const std::string model = trained(30, texts_)->saved();
  for (const auto& saved :
       {std::string(), std::string("abc"), std::string(1000, '\xff'),
        model.substr(0, model.size() / 2), model.substr(1)})
    EXPECT_EQ(refusal_of_saved("sentencepiece", saved),
              "sentencepiece: what was saved is not a SentencePiece model");
}

}  // namespace
}  // namespace longspan::testing
