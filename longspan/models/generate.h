// What a language model makes of a beginning, token by token; and what it puts where
// tokens are hidden.

#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "longspan/models/language_model.h"

namespace longspan {

// How the next token is chosen.
struct Sampling {
  double temperature = 1;  // 0: always the likeliest
  int64_t top_k = 0;       // among so many of the likeliest; 0: all
  // among the fewest of the likeliest that together have this probability
  double top_p = 1;
};

struct GenerateOptions {
  Sampling sampling = {};
  int64_t tokens = 100;              // new ones at most
  std::vector<int64_t> stops = {};   // ids that end a continuation
  std::vector<int64_t> never = {0};  // ids that are not chosen
  uint64_t seed = 1;
  // Of the first prompt: with the seed, and the place of the token, it chooses the
  // random number.
  int64_t first_number = 0;
  // On past the length that the model was made for, if its mechanisms and positions
  // can.
  bool beyond = false;
  const Record* carry = nullptr;  // what the model keeps, if that is of the model
};

struct NewToken {
  int64_t id = 0;
  double log_probability = 0;  // by the model, before temperature and choice
};

struct Continuation {
  std::vector<NewToken> tokens;  // with the one that ended it
  bool stopped = false;          // by a token of `stops`, or by `told`
};

// Called with every new token of prompt number `prompt`; false ends its continuation.
using Told = std::function<bool(int64_t prompt, const NewToken& token)>;

// Continues prompts of any lengths, each of one token or more. Each gets what it would
// get alone: all stand at the same place at any time, so that a prompt that is longer
// is read on while others are continued, and ended ones leave the batch. The model must
// be in evaluation and one that sees the past.
std::vector<Continuation> generate(LanguageModel& model,
                                   const std::vector<std::vector<int32_t>>& prompts,
                                   const GenerateOptions& options,
                                   const Told& told = {});

// The id that `uniform`, of [0, 1), chooses by the rules of `sampling`. Ids of minus
// infinity are never chosen.
int64_t choose(std::span<const float> log_probabilities, const Sampling& sampling,
               double uniform);

struct Guess {
  int64_t id = 0;
  double probability = 0;
};

// For every place of a text that holds `mask`, in order, the `count` likeliest ids
// besides the mask and those of `never`, or all where there are fewer. The model must
// be in evaluation and one that sees all tokens.
std::vector<std::vector<std::vector<Guess>>> fill_masks(
    LanguageModel& model, const std::vector<std::vector<int32_t>>& texts, int64_t mask,
    int64_t count, std::vector<int64_t> never = {0}, const Record* carry = nullptr);

}  // namespace longspan
