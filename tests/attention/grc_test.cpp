#include "longspan/attention/grc.h"

#include <cmath>

#include "longspan/attention/linear_map.h"
#include "longspan/attention/projected.h"
#include "longspan/base/memory.h"
#include "longspan/base/tensor_file.h"
#include "longspan/base/threads.h"
#include "longspan/contract/subject.h"
#include "tests/support/folder.h"
#include "tests/support/mechanisms.h"

namespace longspan::testing {
namespace {

constexpr char kKept[] = "cache#mean", kTokens[] = "tokens#rows";
constexpr int64_t kHeads = 2, kWidth = 6, kEmbedding = 12, kCache = 6, kSlots = 5,
                  kNarrow = kCache / kHeads;

std::shared_ptr<Mixer> grc(const std::string& settings, int64_t seed = 1,
                           torch::Dtype type = torch::kDouble) {
  torch::manual_seed(seed);
  const auto mixer = make<Mixer>(
      catalogue::grc, {.embedding = kEmbedding, .heads = kHeads, .head_width = kWidth},
      *Value::parse(settings).as<Value::Map>());
  convert(*mixer, torch::kCPU, torch::kDouble);
  const torch::NoGradGuard changing;  // away from 0 and 1
  for (Tensor& parameter : mixer->parameters())
    parameter.add_(0.1 * torch::randn_like(parameter));
  convert(*mixer, torch::kCPU, type);
  return mixer;
}

constexpr char kReleased[] =
    "{slots: 5, lambda: -1, source: output, candidate: norm_gelu, gate_bias: true, "
    "mixing: outputs, own: true}";

Pass training_pass(bool causal, Record& carry) {
  Pass pass = pass_of(causal);
  pass.training = true;
  pass.carry = &carry;
  return pass;
}

// What training carries after `steps` batches.
Record trained(Mixer& mixer, bool causal, int steps) {
  Record carry;
  for (int step = 0; step < steps; ++step) {
    Pass pass = training_pass(causal, carry);
    mixer.forward(random_tensors(1, {3, 9, kEmbedding}, torch::kDouble, 50 + step)[0],
                  pass);
  }
  return carry;
}

// The paper's equations, example by example and head by head.
struct Equations {
  torch::OrderedDict<std::string, Tensor> of;

  explicit Equations(const Mixer& mixer) : of(mixer.named_parameters()) {}

  Tensor map(const std::string& name, const Tensor& x) const {
    return x.matmul(of[name + "_weight"].t());
  }

  static Tensor resized(const Tensor& x) {
    std::vector<Tensor> rows;
    for (int64_t slot = 0; slot < kSlots; ++slot)
      rows.push_back(x[slot * x.size(0) / kSlots].slice(0, 0, kCache));
    return torch::stack(rows);
  }

  // `released`: as the authors published it.
  Tensor updated(const Tensor& xbar, const Tensor& cache, bool released = false) const {
    const auto gate = [&](const std::string& name, const Tensor& past) {
      const Tensor mapped = map(name, torch::cat({xbar, past}, 1));
      return released ? mapped + of[name + "_bias"] : mapped;
    };
    const Tensor update = gate("update", cache).sigmoid(),
                 reset = gate("reset", cache).sigmoid();
    Tensor candidate = gate("candidate", reset * cache);
    if (released) {
      const Tensor gelu = candidate * (1 + (candidate / std::sqrt(2.0)).erf()) / 2,
                   centred = gelu - gelu.mean(1, true),
                   variance = centred.square().mean(1, true);
      candidate =
          centred / (variance + 1e-5).sqrt() * of["norm_weight"] + of["norm_bias"];
    }
    return (1 - update) * cache + update * candidate;
  }

  static Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, bool causal) {
    Tensor scores = q.matmul(k.t()) / std::sqrt(static_cast<double>(q.size(1)));
    if (causal)
      scores =
          scores.masked_fill(torch::ones_like(scores).triu(1).to(torch::kBool), -1e300);
    return scores.softmax(1).matmul(v);
  }

  Tensor part(const char* name, const Tensor& y, int64_t head, int64_t width) const {
    return map(name, y).slice(1, head * width, (head + 1) * width);
  }

  Tensor self(const Tensor& x, int64_t head, bool causal) const {
    return attend(part("inner.q", x, head, kWidth), part("inner.k", x, head, kWidth),
                  part("inner.v", x, head, kWidth), causal);
  }

  // All heads of attention to a cache, with values of `width`.
  std::vector<Tensor> memory(const Tensor& x, const Tensor& cache,
                             int64_t width) const {
    const Tensor xbar = x.slice(1, 0, kCache);
    std::vector<Tensor> heads;
    for (int64_t head = 0; head < kHeads; ++head)
      heads.push_back(attend(part("memory_q", xbar, head, kNarrow),
                             part("memory_k", cache, head, kNarrow),
                             part("memory_v", cache, head, width), false));
    return heads;
  }

  Tensor layer(const Tensor& x, const Tensor& cache, bool causal) const {
    const auto read = memory(x, cache, kWidth);
    std::vector<Tensor> heads;
    for (int64_t head = 0; head < kHeads; ++head) {
      const Tensor share = of["lambda"][head].sigmoid();
      heads.push_back(share * read[head] + (1 - share) * self(x, head, causal));
    }
    return map("inner.out", torch::cat(heads, 1));
  }

  // The output of an example as published, and what it makes of the cache.
  std::pair<Tensor, Tensor> published(const Tensor& x, const Tensor& cache) const {
    std::vector<Tensor> heads;
    for (int64_t head = 0; head < kHeads; ++head) heads.push_back(self(x, head, false));
    const Tensor alone = map("inner.out", torch::cat(heads, 1));
    const Tensor own = updated(resized(alone), cache, /*released=*/true);
    const Tensor read = map("memory_out", torch::cat(memory(x, own, kNarrow), 1));
    std::vector<Tensor> groups;
    for (int64_t group = 0; group < kHeads; ++group) {
      constexpr int64_t kWide = kEmbedding / kHeads;
      const Tensor share = of["lambda"][group].sigmoid();
      Tensor filled = torch::zeros({x.size(0), kWide}, x.options());
      filled.slice(1, 0, kNarrow)
          .copy_(read.slice(1, group * kNarrow, (group + 1) * kNarrow));
      groups.push_back(share * filled + (1 - share) * alone.slice(1, group * kWide,
                                                                  (group + 1) * kWide));
    }
    return {torch::cat(groups, 1), own};
  }
};

TEST(Grc, FollowsTheEquations) {
  const auto mixer = grc("{slots: 5}");
  const Equations equations(*mixer);
  Record carry;
  Tensor cache = torch::zeros({kSlots, kCache}, torch::kDouble);
  for (int step = 0; step < 3; ++step) {
    const Tensor x = random_tensors(1, {3, 7, kEmbedding}, torch::kDouble, step)[0];
    Pass pass = training_pass(false, carry);
    const Tensor out = mixer->forward(x, pass);
    std::vector<Tensor> caches;
    for (int64_t b = 0; b < 3; ++b)
      caches.push_back(equations.updated(Equations::resized(x[b]), cache));
    cache = torch::stack(caches).mean(0);
    for (int64_t b = 0; b < 3; ++b)
      EXPECT_TRUE(close(out[b], equations.layer(x[b], cache, false)));
    EXPECT_TRUE(close(carry.get(kKept), cache));
  }
  // In evaluation the cache is read as it is.
  const Tensor x = random_tensors(1, {2, 9, kEmbedding}, torch::kDouble, 9)[0];
  Pass pass = pass_of(false);
  pass.carry = &carry;
  const Tensor out = mixer->forward(x, pass);
  for (int64_t b = 0; b < 2; ++b)
    EXPECT_TRUE(close(out[b], equations.layer(x[b], cache, false)));
  EXPECT_TRUE(close(carry.get(kKept), cache));
}

TEST(Grc, FollowsThePublishedModule) {
  const auto mixer = grc(kReleased);
  const Equations equations(*mixer);
  Record carry;
  Tensor cache = torch::zeros({kSlots, kCache}, torch::kDouble);
  const torch::NoGradGuard without_gradients;
  for (int step = 0; step < 4; ++step) {
    const Tensor x = random_tensors(1, {3, 7, kEmbedding}, torch::kDouble, step)[0];
    Pass pass = training_pass(false, carry);
    pass.training = step < 3;
    const Tensor out = mixer->forward(x, pass);
    std::vector<Tensor> own;
    for (int64_t b = 0; b < 3; ++b) {
      const auto [y, written] = equations.published(x[b], cache);
      EXPECT_TRUE(close(out[b], y)) << step;
      own.push_back(written);
    }
    // In evaluation each reads its own, but nothing is kept of it.
    if (pass.training) cache = torch::stack(own).mean(0);
    EXPECT_TRUE(close(carry.get(kKept), cache)) << step;
  }
}

TEST(Grc, ReadsTheCacheOfTheBatchBeforeWhereItIsCausal) {
  for (const auto device : devices()) {
    const auto mixer = grc("{slots: 5}");
    const Equations equations(*mixer);
    const auto on_device = grc("{slots: 5}");
    convert(*on_device, device, torch::kDouble);
    Record carry;
    Tensor cache = torch::zeros({kSlots, kCache}, torch::kDouble);
    std::vector<Tensor> before;
    for (int step = 0; step < 4; ++step) {
      const Tensor x = random_tensors(1, {2, 8, kEmbedding}, torch::kDouble, step)[0];
      Pass pass = training_pass(true, carry);
      const Tensor out = on_device->forward(x.to(device), pass);
      std::vector<Tensor> written;
      for (const Tensor& tokens : before)
        written.push_back(equations.updated(tokens, cache));
      if (!written.empty()) cache = torch::stack(written).mean(0);
      for (int64_t b = 0; b < 2; ++b)
        EXPECT_TRUE(close(out[b], equations.layer(x[b], cache, true)));
      before = {Equations::resized(x[0]), Equations::resized(x[1])};
      EXPECT_TRUE(close(carry.get(kKept), cache));
      EXPECT_TRUE(close(carry.get(kTokens), torch::stack(before)));
      EXPECT_FALSE(carry.get(kKept).requires_grad());
      EXPECT_FALSE(carry.get(kTokens).requires_grad());
    }
  }
}

// Examples without real tokens do not count.
TEST(Grc, LeavesEmptyExamplesOut) {
  const auto mixer = grc("{slots: 5}");
  const Tensor x = random_tensors(1, {3, 9, kEmbedding})[0];
  for (const bool causal : {false, true}) {
    const auto cache_of = [&](const Tensor& y, const Tensor& real) {
      Record carry;
      for (int step = 0; step < 2; ++step) {
        Pass pass = training_pass(causal, carry);
        pass.mask.tokens = real;
        mixer->forward(y, pass);
      }
      return carry.get(kKept);
    };
    const Tensor all = torch::ones({2, 9}, torch::kBool),
                 some = torch::cat({all, torch::zeros({1, 9}, torch::kBool)});
    EXPECT_TRUE(close(cache_of(x, some), cache_of(x.slice(0, 0, 2), all)));
  }
}

// What the examples of a step left to its many passes takes a pass no more memory.
TEST(Grc, RenewsManyExamplesInTheMemoryOfFew) {
  const auto mixer = grc("{slots: 64}");
  const auto peak_of = [&](int64_t examples) {
    Record carry;
    Pass before = training_pass(/*causal=*/true, carry);
    mixer->forward(random_tensors(1, {examples, 64, kEmbedding})[0], before);
    const Tensor x = random_tensors(1, {2, 64, kEmbedding})[0];
    const PeakBytes peak(torch::kCPU);
    Pass pass = training_pass(/*causal=*/true, carry);
    mixer->forward(x, pass).sum().backward();
    return peak.newly();
  };
  EXPECT_LT(static_cast<double>(peak_of(64)), 1.5 * static_cast<double>(peak_of(2)));
}

TEST(Grc, KeepsTheCacheWhereNothingIsHeard) {
  const auto mixer = grc("{slots: 5}");
  const Tensor x = random_tensors(1, {2, 9, kEmbedding})[0];
  for (const bool causal : {false, true}) {
    Record carry;
    Tensor before;
    for (const bool real : {true, true, false, false}) {
      before = carry.get(kKept);
      Pass pass = training_pass(causal, carry);
      pass.mask.tokens = torch::full({2, 9}, real, torch::kBool);
      mixer->forward(x, pass);
    }
    EXPECT_TRUE(torch::equal(carry.get(kKept), before));
    EXPECT_GT(before.abs().max().item<double>(), 0);
  }
}

// An update of less than bfloat16 can add to a number is not lost.
TEST(Grc, KeepsSmallUpdatesInBfloat16) {
  const auto mixer = grc("{slots: 5, gate_bias: true}", 1, torch::kBFloat16);
  const torch::NoGradGuard changing;
  const auto weights = mixer->named_parameters();
  weights["update_weight"].zero_();
  weights["update_bias"].fill_(-7);  // a part of 0.0009
  weights["candidate_weight"].zero_();
  weights["candidate_bias"].fill_(2);
  for (const bool causal : {false, true}) {
    Record carry;
    carry.set(kKept, torch::ones({kSlots, kCache}));
    constexpr int kSteps = 100;
    for (int step = 0; step < kSteps; ++step) {
      Pass pass = training_pass(causal, carry);
      mixer->forward(
          random_tensors(1, {2, 5, kEmbedding}, torch::kDouble)[0].to(torch::kBFloat16),
          pass);
    }
    const double part = 1 / (1 + std::exp(7.0)), updates = causal ? kSteps - 1 : kSteps;
    EXPECT_EQ(carry.get(kKept).scalar_type(), torch::kFloat);
    EXPECT_TRUE(close(carry.get(kKept),
                      torch::full({kSlots, kCache}, 2 - std::pow(1 - part, updates)),
                      1e-4));
  }
}

TEST(Grc, EqualsItsDefinitionInTraining) {
  const char* const all[] = {
      "{slots: 5}",
      "{slots: 9, ratio: 1, candidate: norm_gelu, gate_bias: true, lambda: -1}",
      "{slots: 5, source: output}",
      "{slots: 5, mixing: outputs}",
      "{slots: 5, mixing: outputs, attention: {name: rfa, features: 8}}",
      "{slots: 5, own: true, attention: {name: sliding, window: 2}}",
      kReleased,
  };
  for (const char* const settings : all)
    for (const bool causal : {false, true})
      for (const bool padded : {false, true}) {
        if (causal && std::string(settings).find("own: true") != std::string::npos)
          continue;
        const auto mixer = grc(settings);
        const Record carry = trained(*mixer, causal, 2);
        const auto results = [&](auto form) {
          Record mine = carry;
          Pass pass = training_pass(causal, mine);
          if (padded)
            pass.mask.tokens =
                torch::stack({torch::arange(8) < 5, torch::arange(8) % 3 != 1,
                              torch::arange(8) < 0});
          const Tensor x = random_tensors(1, {3, 8, kEmbedding})[0].requires_grad_();
          const Tensor out = ((*mixer).*form)(x, pass);
          Tensors sources = mixer->parameters();
          sources.push_back(x);
          Tensors all_results = torch::autograd::grad(
              {out}, sources, {torch::cos(out.detach())}, {}, false, true);
          for (size_t i = 0; i < all_results.size(); ++i)
            if (!all_results[i].defined())
              all_results[i] = torch::zeros_like(sources[i]);
          all_results.push_back(out);
          for (const auto& [name, tensor] : mine.all()) all_results.push_back(tensor);
          return all_results;
        };
        const Tensors fast = results(&TokenPart::forward),
                      defined = results(&TokenPart::reference);
        ASSERT_EQ(fast.size(), defined.size());
        for (size_t i = 0; i < fast.size(); ++i)
          EXPECT_LE(largest_error(fast[i], defined[i]), 1e-10)
              << settings << (causal ? " causal" : "") << (padded ? " padded " : " ")
              << i;
      }
}

TEST(Grc, PaddingIsNotRemembered) {
  const auto mixer = grc("{slots: 5}");
  const Tensor x = random_tensors(1, {1, 9, kEmbedding})[0];
  const auto cache_of = [&](const Tensor& y, const Tensor& real) {
    Record carry;
    Pass pass = training_pass(false, carry);
    pass.mask.tokens = real;
    mixer->forward(y, pass);
    return carry.get(kKept);
  };
  const Tensor cache = cache_of(x.slice(1, 0, 6), {});
  const Tensor on_the_right = (torch::arange(9) < 6).unsqueeze(0),
               on_the_left = (torch::arange(9) >= 3).unsqueeze(0);
  EXPECT_TRUE(close(cache_of(x, on_the_right), cache));
  EXPECT_TRUE(close(cache_of(x.roll(3, 1), on_the_left), cache));
}

TEST(Grc, ShowsNoFutureInTraining) {
  const auto mixer = grc("{slots: 9}");
  const Record carry = trained(*mixer, true, 3);
  const Tensor x = random_tensors(1, {2, 9, kEmbedding})[0];
  const auto run = [&](const Tensor& y) {
    Record mine = carry;
    Pass pass = training_pass(true, mine);
    return mixer->forward(y, pass);
  };
  const Tensor before = run(x);
  for (int64_t last = 0; last < 8; ++last) {
    const Tensor other =
        torch::cat({x.slice(1, 0, last + 1), 9 * x.slice(1, last + 1)}, 1);
    EXPECT_TRUE(run(other).slice(1, 0, last + 1).equal(before.slice(1, 0, last + 1)));
  }
}

TEST(Grc, EveryWeightHasAGradient) {
  for (const bool causal : {false, true}) {
    const auto mixer = grc("{slots: 5}");
    // What was carried first was 0, which no weight makes more of.
    Record carry = trained(*mixer, causal, 2);
    Pass pass = training_pass(causal, carry);
    mixer->forward(random_tensors(1, {3, 9, kEmbedding})[0], pass)
        .square()
        .sum()
        .backward();
    for (const auto& parameter : mixer->named_parameters())
      EXPECT_TRUE(parameter.value().grad().defined() &&
                  parameter.value().grad().ne(0).all().item<bool>())
          << parameter.key() << (causal ? ", causal" : "");
  }
}

TEST(Grc, EvaluationChangesNothingAndSavingKeepsTheCache) {
  const Folder folder;
  for (const bool causal : {false, true}) {
    const auto mixer = grc("{slots: 5}"), other = grc("{slots: 5}", /*seed=*/2);
    Record carry = trained(*mixer, causal, 3);
    const Tensor x = random_tensors(1, {3, 9, kEmbedding})[0];
    const auto run = [&](Mixer& one, Record& kept) {
      Pass pass = pass_of(causal);
      pass.carry = &kept;
      return one.forward(x, pass);
    };
    const auto saved = carry.saved();
    const Tensor first = run(*mixer, carry);
    EXPECT_TRUE(run(*mixer, carry).equal(first));
    for (const auto& [name, tensor] : carry.saved())
      EXPECT_TRUE(tensor.equal(saved.at(name))) << name;

    const std::string file = folder / "carry.safetensors";
    write_tensors(file, saved);
    Record loaded = Record::restored(read_tensors(file).tensors);
    const torch::NoGradGuard copying;
    const auto from = mixer->named_parameters();
    for (auto& parameter : other->named_parameters())
      parameter.value().copy_(from[parameter.key()]);
    EXPECT_TRUE(run(*other, loaded).equal(first));
    EXPECT_EQ(loaded.saved().size(), saved.size());
    for (const auto& [name, tensor] : loaded.saved())
      EXPECT_TRUE(tensor.equal(saved.at(name))) << name;
  }
}

TEST(Grc, HalvesOfABatchCarryWhatItDoes) {
  const auto mixer = grc("{slots: 5}");
  const Tensor x = random_tensors(1, {4, 9, kEmbedding})[0];
  for (const bool causal : {false, true}) {
    const auto carried = [&](int64_t from, int64_t to) {
      Record carry = trained(*mixer, causal, 2);
      Pass pass = training_pass(causal, carry);
      mixer->forward(x.slice(0, from, to), pass);
      return carry.all();
    };
    const auto first = carried(0, 2), second = carried(2, 4), all = carried(0, 4);
    EXPECT_EQ(all.size(), causal ? 3u : 1u);
    for (const auto& [name, tensor] : all) {
      if (name == kKept)
        EXPECT_TRUE(close((first.at(name) + second.at(name)) / 2, tensor));
      else
        EXPECT_TRUE(torch::cat({first.at(name), second.at(name)}).equal(tensor));
    }
  }
}

TEST(Grc, RepeatsBitForBitOnAnyNumberOfThreads) {
  for (const bool causal : {false, true}) {
    const auto run = [&](int threads) {
      const UseThreads using_threads(threads);
      const auto mixer = grc("{slots: 6001}", 1, torch::kFloat);
      Tensors all;
      Record carry;
      for (int step = 0; step < 3; ++step) {
        Pass pass = training_pass(causal, carry);
        const Tensor x =
            random_tensors(1, {4, 300, kEmbedding}, torch::kFloat, step)[0];
        all.push_back(mixer->forward(x, pass));
        all.back().sum().backward();
      }
      for (const Tensor& parameter : mixer->parameters())
        all.push_back(parameter.grad());
      for (const auto& [name, tensor] : carry.all()) all.push_back(tensor);
      return all;
    };
    const Tensors one = run(1), three = run(3);
    for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(one[i].equal(three[i])) << i;
  }
}

TEST(Grc, WithoutMemoryIsItsAttention) {
  const auto mixer = grc("{slots: 5, lambda: -200}");
  const auto alone =
      make_mixer(catalogue::dense,
                 {.embedding = kEmbedding, .heads = kHeads, .head_width = kWidth});
  convert(*alone, torch::kCPU, torch::kDouble);
  const torch::NoGradGuard copying;
  const auto from = mixer->named_parameters();
  for (auto& parameter : alone->named_parameters())
    parameter.value().copy_(from["inner." + parameter.key()]);
  const Tensor x = random_tensors(1, {2, 9, kEmbedding})[0];
  Record carry = trained(*mixer, false, 2);
  for (const char* const with : {"", "bias", "positions"}) {
    Pass one = training_pass(false, carry), other;
    for (Pass* const pass : {&one, &other}) {
      if (std::string(with) == "bias")
        pass->bias.slopes = torch::tensor({0.5, 0.125}, torch::kDouble);
      if (std::string(with) == "positions") {
        pass->mask.causal = true;
        pass->positions = torch::arange(9).flip(0);
      }
    }
    EXPECT_TRUE(close(mixer->forward(x, one), alone->forward(x, other))) << with;
  }
}

// A memory of each example beside one of the model.
TEST(Grc, StandsBesideTransformerXl) {
  const auto mixer =
      grc("{slots: 5, lambda: -200, mixing: outputs, attention: {name: transformer_xl, "
          "memory: 6}}");
  EXPECT_EQ(mixer->can().carry, Carry::both);
  torch::manual_seed(3);
  const auto alone =
      make<Mixer>(catalogue::transformer_xl,
                  {.embedding = kEmbedding, .heads = kHeads, .head_width = kWidth},
                  {{"memory", 6}});
  convert(*alone, torch::kCPU, torch::kDouble);
  const torch::NoGradGuard copying;
  const auto from = mixer->named_parameters();
  for (auto& parameter : alone->named_parameters()) {
    const bool is_shared = parameter.key().starts_with("shared.");
    parameter.value().copy_(from[(is_shared ? "" : "inner.") + parameter.key()]);
  }
  Record one, other;
  for (int step = 0; step < 3; ++step) {
    const Tensor x = random_tensors(1, {2, 4, kEmbedding}, torch::kDouble, step)[0];
    Pass with = training_pass(true, one), without = training_pass(true, other);
    EXPECT_TRUE(close(mixer->forward(x, with), alone->forward(x, without))) << step;
  }
  EXPECT_TRUE(close(one.part("inner").get("memory"), other.get("memory")));
  EXPECT_TRUE(one.get(kKept).ne(0).any().item<bool>());
}

TEST(Grc, CanWhatItsAttentionCan) {
  const auto can = [](const std::string& settings) { return grc(settings)->can(); };
  EXPECT_TRUE(can("{}").bias && can("{}").positions && can("{}").rotary);
  EXPECT_FALSE(can("{}").cross || can("{}").samples);
  EXPECT_TRUE(can("{attention: ssa}").samples);
  EXPECT_FALSE(can("{attention: {name: ssa, windows: 1}}").samples);
  EXPECT_EQ(can("{attention: nystrom}").causal, Causal::never);
  EXPECT_FALSE(can("{attention: longformer}").positions);
}

// What the contract holds it by has something in it.
TEST(Grc, HasACacheInTheContract) {
  for (const bool causal : {false, true}) {
    const Record carry =
        Subject(catalogue::grc, {}).carried(pass_of(causal), /*examples=*/2);
    EXPECT_TRUE(carry.get(kKept).abs().amax(1).gt(1e-2).all().item<bool>()) << causal;
  }
}

TEST(Grc, TellsTheMemorysShareOfEveryHead) {
  torch::nn::ModuleDict model;
  model->update(std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>>{
      {"one", grc("{slots: 5}")},
      {"two",
       make<Mixer>(catalogue::grc, {.embedding = 12, .heads = 2, .head_width = 6},
                   preset(catalogue::grc, "released"))}});
  const auto shares = memory_shares(*model);
  ASSERT_EQ(shares.size(), 2u);
  EXPECT_EQ(shares[0].name, "one");
  EXPECT_EQ(shares[1].name, "two");
  EXPECT_EQ(shares[0].share.sizes(), (std::vector<int64_t>{kHeads}));
  EXPECT_TRUE(
      close(shares[1].share, torch::full({kHeads}, 1 / (1 + std::exp(1.0))), 1e-6));
}

TEST(Grc, RefusesWhatDoesNotFit) {
  EXPECT_EQ(refusal([] { grc("{attention: rfa}"); }),
            "grc: rfa is a mixer, whose heads are not to be had; give mixing: outputs");
  EXPECT_EQ(refusal([] { grc("{attention: luna}"); }),
            "grc: luna hands on a second stream, so it cannot be wrapped");
  EXPECT_EQ(refusal([] { grc("{attention: funnel}"); }),
            "grc: funnel fills the seam stack, but only an attention or a mixer can be "
            "wrapped");
  EXPECT_EQ(refusal([] { grc("{attention: star}"); }),
            "grc: star has a residual or norms of its own, so it cannot be wrapped");
  EXPECT_EQ(refusal([] { grc("{attention: image_local_2d}"); }),
            "grc: image_local_2d is causal in the order of " +
                std::string(catalogue::image_local_2d.order) +
                ", not in that of the tokens, so it cannot be wrapped");
  EXPECT_EQ(refusal([] { grc("{ratio: 0.01}"); }),
            "grc: ratio must leave 1 to 12 channels of the embedding, got 0.01");
  EXPECT_EQ(
      refusal([] {
        Pass pass = pass_of(true);
        grc("{slots: 5, own: true}")->forward(random_tensors(1, {1, 4, 12})[0], pass);
      }),
      "grc: with own: true, tokens would read from a cache that knows those after "
      "them; "
      "a causal form needs own: false");
  EXPECT_EQ(refusal([] {
              Pass pass;
              pass.mask.segment = torch::zeros({1, 4}, torch::kLong);
              grc(kReleased)->forward(random_tensors(1, {1, 4, 12})[0], pass);
            }),
            "grc: with own: true, tokens would read from a cache that knows other "
            "segments; segments need own: false");
  Record carry = trained(*grc("{slots: 5}"), false, 1);
  Pass pass = training_pass(false, carry);
  EXPECT_EQ(refusal([&] {
              grc("{slots: 7}")->forward(random_tensors(1, {1, 4, 12})[0], pass);
            }),
            "grc: the carry must be a cache [7, 6], got [5, 6]");
}

}  // namespace
}  // namespace longspan::testing
