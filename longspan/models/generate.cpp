#include "longspan/models/generate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include <torch/types.h>
#include <torch/utils.h>

#include "longspan/base/error.h"

namespace longspan {
namespace {

using torch::Tensor;

// Of [0, 1), with 53 bits.
double uniform_number(const GenerateOptions& options, int64_t prompt, size_t place) {
  const Key key = mix(mix(Key{options.seed}, static_cast<uint64_t>(prompt)), place);
  const auto words = philox(key, {});
  const uint64_t bits = uint64_t{words[0]} << 32 | words[1];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

torch::Device device_of(const LanguageModel& model) {
  return model.parameters().front().device();
}

void check(const Sampling& sampling) {
  require(std::isfinite(sampling.temperature) && sampling.temperature >= 0,
          "the temperature must be 0 or more, got ", sampling.temperature);
  require(sampling.top_k >= 0, "top_k must be 0 or more, got ", sampling.top_k);
  require(sampling.top_p > 0 && sampling.top_p <= 1,
          "top_p must be more than 0 and at most 1, got ", sampling.top_p);
}

void check_ids(const LanguageModel& model, const std::vector<int32_t>& ids,
               const char* what, size_t number) {
  require(!ids.empty(), what, " ", number + 1, " has no tokens; it needs one or more");
  for (const int32_t id : ids)
    require(id >= 0 && id < model.ids(), what, " ", number + 1, " has the id ", id,
            ", but the model has ids 0 to ", model.ids() - 1);
}

void check(const LanguageModel& model, const std::vector<std::vector<int32_t>>& prompts,
           const GenerateOptions& options) {
  require(model.sees() == LanguageModel::Sees::past,
          "a model that sees all tokens continues none; it fills masks");
  require(!model.is_training(), "a model must be in evaluation to generate");
  require(options.tokens >= 0, "the number of new tokens must be 0 or more, got ",
          options.tokens);
  check(options.sampling);
  for (size_t i = 0; i < prompts.size(); ++i) check_ids(model, prompts[i], "prompt", i);
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto length = static_cast<int64_t>(prompts[i].size());
    require(options.beyond || length + options.tokens <= model.longest(), "prompt ",
            i + 1, " of ", length, " tokens and ", options.tokens,
            " new ones are more than the ", model.longest(),
            " that the model was made for; ask for fewer, or to go beyond");
  }
}

// One batch of prompts on its way.
class Generation {
 public:
  Generation(LanguageModel& model, const std::vector<std::vector<int32_t>>& prompts,
             const GenerateOptions& options, const Told& told)
      : model_(model),
        options_(options),
        told_(told),
        device_(device_of(model)),
        ids_(prompts.begin(), prompts.end()),
        made_(prompts.size()) {
    never_ = torch::tensor(options.never, torch::kLong).to(device_);
    active_.resize(prompts.size());
    std::iota(active_.begin(), active_.end(), size_t{0});
  }

  std::vector<Continuation> run() {
    while (options_.tokens > 0 && !active_.empty()) {
      size_t until = std::numeric_limits<size_t>::max();
      for (const size_t prompt : active_) until = std::min(until, ids_[prompt].size());
      until = std::min(until, read_ + static_cast<size_t>(model_.longest()));
      const Tensor last = read(until);
      std::vector<int64_t> asking;  // rows of the batch that are read to their end
      for (size_t row = 0; row < active_.size(); ++row)
        if (ids_[active_[row]].size() == read_)
          asking.push_back(static_cast<int64_t>(row));
      if (!asking.empty()) go_on(last, asking);
    }
    return std::move(made_);
  }

 private:
  // Reads all active prompts up to `until`; returns the vectors [B, E] of the last
  // tokens.
  Tensor read(size_t until) {
    const auto examples = static_cast<int64_t>(active_.size()),
               count = static_cast<int64_t>(until - read_);
    Tensor ids = torch::empty({examples, count}, torch::kLong);
    auto* at = ids.data_ptr<int64_t>();
    for (const size_t prompt : active_)
      at = std::copy(ids_[prompt].begin() + static_cast<int64_t>(read_),
                     ids_[prompt].begin() + static_cast<int64_t>(until), at);
    ids = ids.to(device_);
    Pass pass;
    pass.state = &state_;
    Record kept = options_.carry ? *options_.carry : Record();
    if (is_of_model(model_.carry())) pass.carry = &kept;
    const Tensor x = model_.forward(ids, torch::ones_like(ids, torch::kBool), pass);
    read_ = until;
    return x.select(1, -1);
  }

  void go_on(const Tensor& last, const std::vector<int64_t>& asking) {
    const Tensor rows = torch::tensor(asking, torch::kLong).to(device_);
    const Tensor log_p = model_.log_probabilities(last.index_select(0, rows));
    const auto tokens = chosen(log_p, asking);
    std::vector<bool> ended(active_.size(), false);
    for (size_t i = 0; i < asking.size(); ++i) {
      const auto row = static_cast<size_t>(asking[i]);
      ended[row] = take(active_[row], tokens[i]);
    }
    leave(ended);
  }

  std::vector<NewToken> chosen(const Tensor& log_p,
                               const std::vector<int64_t>& asking) {
    Tensor open = log_p.to(torch::kFloat);
    if (never_.numel() > 0)
      open = open.index_fill(1, never_, -std::numeric_limits<float>::infinity());
    const bool likeliest = options_.sampling.temperature == 0;
    const Tensor best = open.argmax(1);
    Tensor picked = likeliest ? best : torch::empty_like(best, torch::kCPU);
    if (!likeliest) {
      const Tensor shares = open.cpu().contiguous();
      const auto count = static_cast<size_t>(shares.size(1));
      for (size_t i = 0; i < asking.size(); ++i) {
        const size_t prompt = active_[static_cast<size_t>(asking[i])];
        picked.data_ptr<int64_t>()[i] = choose(
            {shares.data_ptr<float>() + i * count, count}, options_.sampling,
            uniform_number(
                options_, options_.first_number + static_cast<int64_t>(prompt), read_));
      }
    }
    const Tensor ids = picked.to(device_);
    const Tensor of_ids = log_p.gather(1, ids.unsqueeze(1)).to(torch::kDouble).cpu();
    picked = picked.cpu();
    std::vector<NewToken> tokens;
    for (size_t i = 0; i < asking.size(); ++i) {
      tokens.push_back({.id = picked.data_ptr<int64_t>()[i],
                        .log_probability = of_ids.data_ptr<double>()[i]});
      require(std::isfinite(tokens.back().log_probability),
              "the model gives no finite probability to the next token");
    }
    return tokens;
  }

  // Whether the continuation ends with this token.
  bool take(size_t prompt, const NewToken& token) {
    Continuation& made = made_[prompt];
    made.tokens.push_back(token);
    ids_[prompt].push_back(static_cast<int32_t>(token.id));
    const bool goes_on = !told_ || told_(static_cast<int64_t>(prompt), token);
    made.stopped = !goes_on || std::ranges::count(options_.stops, token.id) > 0;
    return made.stopped || static_cast<int64_t>(made.tokens.size()) == options_.tokens;
  }

  void leave(const std::vector<bool>& ended) {
    std::vector<size_t> rest;
    std::vector<int64_t> rows;
    for (size_t row = 0; row < active_.size(); ++row) {
      if (ended[row]) continue;
      rest.push_back(active_[row]);
      rows.push_back(static_cast<int64_t>(row));
    }
    const bool any_left = rest.size() < active_.size();
    active_ = rest;
    if (any_left && !rest.empty()) state_.select(torch::tensor(rows, torch::kLong));
  }

  LanguageModel& model_;
  const GenerateOptions& options_;
  const Told& told_;
  torch::Device device_;
  Tensor never_;
  std::vector<std::vector<int32_t>> ids_;  // prompts and what was added to them
  std::vector<Continuation> made_;
  std::vector<size_t> active_;  // the prompts of the rows of the batch
  size_t read_ = 0;             // tokens in the state
  Record state_;
};

}  // namespace

int64_t choose(std::span<const float> log_probabilities, const Sampling& sampling,
               double uniform) {
  check(sampling);
  std::vector<int64_t> ids;
  for (size_t i = 0; i < log_probabilities.size(); ++i)
    if (log_probabilities[i] > -std::numeric_limits<float>::infinity())
      ids.push_back(static_cast<int64_t>(i));
  require(!ids.empty(), "there is no token that may be chosen");
  const auto log_p = [&](int64_t id) {
    return static_cast<double>(log_probabilities[static_cast<size_t>(id)]);
  };
  const auto likelier = [&](int64_t a, int64_t b) {
    return log_p(a) != log_p(b) ? log_p(a) > log_p(b) : a < b;
  };
  const int64_t best = *std::ranges::min_element(ids, likelier);
  if (sampling.temperature == 0) return best;

  if (sampling.top_k > 0 && sampling.top_k < static_cast<int64_t>(ids.size())) {
    std::ranges::nth_element(ids, ids.begin() + (sampling.top_k - 1), likelier);
    ids.resize(static_cast<size_t>(sampling.top_k));
  }
  if (sampling.top_k > 0 || sampling.top_p < 1) std::ranges::sort(ids, likelier);
  std::vector<double> weights;
  double sum = 0;
  for (const int64_t id : ids) {
    weights.push_back(std::exp((log_p(id) - log_p(best)) / sampling.temperature));
    sum += weights.back();
  }
  if (sampling.top_p < 1) {
    double kept = 0;
    size_t count = 0;
    while (count < ids.size() && kept < sampling.top_p * sum) kept += weights[count++];
    ids.resize(count);
    sum = kept;
  }
  double left = uniform * sum;
  for (size_t i = 0; i < ids.size(); ++i) {
    left -= weights[i];
    if (left < 0) return ids[i];
  }
  return ids.back();  // by rounding
}

std::vector<Continuation> generate(LanguageModel& model,
                                   const std::vector<std::vector<int32_t>>& prompts,
                                   const GenerateOptions& options, const Told& told) {
  check(model, prompts, options);
  const torch::NoGradGuard without_gradients;
  return Generation(model, prompts, options, told).run();
}

std::vector<std::vector<std::vector<Guess>>> fill_masks(
    LanguageModel& model, const std::vector<std::vector<int32_t>>& texts, int64_t mask,
    int64_t count, std::vector<int64_t> never, const Record* carry) {
  require(model.sees() == LanguageModel::Sees::all,
          "a model that sees the past alone fills no masks; it continues texts");
  require(!model.is_training(), "a model must be in evaluation to fill masks");
  require(mask >= 0 && mask < model.ids(), "the mask must be an id of the model, 0 to ",
          model.ids() - 1, ", got ", mask);
  require(count >= 1, "the number of guesses must be 1 or more, got ", count);
  never.push_back(mask);
  const auto excluded =
      static_cast<int64_t>(std::set(never.begin(), never.end()).size());
  count = std::min(count, model.ids() - excluded);
  require(count >= 1, "none of the ", model.ids(), " ids may be guessed");
  const torch::NoGradGuard without_gradients;
  std::vector<std::vector<std::vector<Guess>>> filled;
  for (size_t i = 0; i < texts.size(); ++i) {
    check_ids(model, texts[i], "text", i);
    const auto length = static_cast<int64_t>(texts[i].size());
    require(length <= model.longest(), "text ", i + 1, " has ", length,
            " tokens, more than the ", model.longest(), " that the model was made for");
    const Tensor ids = torch::tensor(at::ArrayRef<int32_t>(texts[i]), torch::kLong)
                           .unsqueeze(0)
                           .to(device_of(model));
    Pass pass;
    Record kept = carry ? *carry : Record();
    if (is_of_model(model.carry())) pass.carry = &kept;
    const Tensor x = model.forward(ids, torch::ones_like(ids, torch::kBool), pass);
    const Tensor rows = (ids.select(0, 0) == mask).nonzero().squeeze(1);
    const Tensor excluded_ids = torch::tensor(never, torch::kLong).to(ids.device());
    const auto [log_p, likeliest] =
        model.log_probabilities(x.select(0, 0).index_select(0, rows))
            .index_fill(1, excluded_ids, -std::numeric_limits<double>::infinity())
            .topk(count, 1);
    const Tensor shares = log_p.exp().to(torch::kDouble).cpu().contiguous(),
                 best = likeliest.cpu().contiguous();
    auto& places = filled.emplace_back();
    for (int64_t place = 0; place < rows.size(0); ++place) {
      auto& guesses = places.emplace_back();
      for (int64_t guess = 0; guess < count; ++guess)
        guesses.push_back(
            {.id = best.data_ptr<int64_t>()[place * count + guess],
             .probability = shares.data_ptr<double>()[place * count + guess]});
    }
  }
  return filled;
}

}  // namespace longspan
