// Texts with the weights that a classifier gave their words.

#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace longspan::report {

// Weights of the words of a text.
struct WordWeights {
  std::string title = {};  // "head 3"
  std::vector<double> weights = {};
  // The shares of what is no word: learned tokens in front, a memory.
  double front = 0, memory = 0;
};

struct WeighedText {
  std::string which = {};  // of a pair: "the first"
  std::vector<std::string> words = {};
  bool of_bytes = false;  // tokens are bytes, so that a word is several
  std::vector<std::pair<std::string, double>> labels = {};  // with their probabilities
  std::string note = {};                                    // "cut at 512 tokens"
  WordWeights whole = {};                                   // through all layers
  struct Layer {
    std::string title = {};  // "layer 0: dense"
    std::vector<WordWeights> heads = {};
  };
  std::vector<Layer> layers = {};
};

// How much of each head of a layer is read from a memory, between 0 and 1.
struct MemoryUse {
  std::string layer = {};
  bool of_heads = true;  // else of as many groups of channels
  std::vector<double> shares = {};
};

struct WeightsReport {
  std::string title = {};
  std::vector<std::pair<std::string, std::string>> facts = {};
  std::vector<WeighedText> texts = {};
  std::vector<MemoryUse> memories = {};
};

// A page of HTML that needs no other file: for each text the labels, the text shaded by
// its weights, and the same of every head in small (Brown et al. 2022,
// arXiv:2210.00640, figures 2 and 3).
std::string weights_page(const WeightsReport& report);

// The pieces of a text with their weights as words: what is between spaces, if the
// pieces are bytes; else each piece. `weights` are sums over the pieces of a word.
struct WordSplit {
  std::vector<std::string> words = {};
  std::vector<int64_t> word_of = {};  // each piece; -1: between words
};
WordSplit split_words(const std::vector<std::string>& pieces, bool are_bytes);

// By words; what is between them is added to the word before.
std::vector<double> by_words(const WordSplit& split,
                             const std::vector<double>& weights);

}  // namespace longspan::report
