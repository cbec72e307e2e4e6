#include "longspan/attention/grc.h"

#include <cmath>

#include "longspan/attention/linear_map.h"
#include "longspan/attention/projected.h"
#include "longspan/base/tensor_file.h"
#include "longspan/base/threads.h"
#include "tests/support/folder.h"
#include "tests/support/mechanisms.h"

namespace longspan::testing {
namespace {

constexpr int64_t kHeads = 2, kWidth = 6, kEmbedding = 12, kCache = 6, kSlots = 5;

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

  Tensor updated(const Tensor& xbar, const Tensor& cache) const {
    const Tensor both = torch::cat({xbar, cache}, 1);
    const Tensor update = map("update", both).sigmoid(),
                 reset = map("reset", both).sigmoid();
    const Tensor candidate = map("candidate", torch::cat({xbar, reset * cache}, 1));
    return (1 - update) * cache + update * candidate;
  }

  static Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, bool causal) {
    Tensor scores = q.matmul(k.t()) / std::sqrt(static_cast<double>(q.size(1)));
    if (causal)
      scores =
          scores.masked_fill(torch::ones_like(scores).triu(1).to(torch::kBool), -1e300);
    return scores.softmax(1).matmul(v);
  }

  Tensor layer(const Tensor& x, const Tensor& cache, bool causal) const {
    const Tensor xbar = x.slice(1, 0, kCache);
    std::vector<Tensor> heads;
    for (int64_t head = 0; head < kHeads; ++head) {
      const auto part = [&](const char* name, const Tensor& y, int64_t width) {
        return map(name, y).slice(1, head * width, (head + 1) * width);
      };
      const Tensor self = attend(part("inner.q", x, kWidth), part("inner.k", x, kWidth),
                                 part("inner.v", x, kWidth), causal);
      constexpr int64_t kNarrow = kCache / kHeads;
      const Tensor memory =
          attend(part("memory_q", xbar, kNarrow), part("memory_k", cache, kNarrow),
                 part("memory_v", cache, kWidth), false);
      const Tensor share = of["lambda"][head].sigmoid();
      heads.push_back(share * memory + (1 - share) * self);
    }
    return map("inner.out", torch::cat(heads, 1));
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
    EXPECT_TRUE(close(carry.get("cache"), cache));
  }
  // In evaluation the cache is read as it is.
  const Tensor x = random_tensors(1, {2, 9, kEmbedding}, torch::kDouble, 9)[0];
  Pass pass = pass_of(false);
  pass.carry = &carry;
  const Tensor out = mixer->forward(x, pass);
  for (int64_t b = 0; b < 2; ++b)
    EXPECT_TRUE(close(out[b], equations.layer(x[b], cache, false)));
  EXPECT_TRUE(close(carry.get("cache"), cache));
}

TEST(Grc, ReadsTheCacheOfTheBatchBeforeWhereItIsCausal) {
  const auto mixer = grc("{slots: 5}");
  const Equations equations(*mixer);
  Record carry;
  Tensor cache = torch::zeros({kSlots, kCache}, torch::kDouble), before;
  for (int step = 0; step < 4; ++step) {
    const Tensor x = random_tensors(1, {2, 8, kEmbedding}, torch::kDouble, step)[0];
    Pass pass = training_pass(true, carry);
    const Tensor out = mixer->forward(x, pass);
    if (before.defined()) cache = equations.updated(before, cache);
    for (int64_t b = 0; b < 2; ++b)
      EXPECT_TRUE(close(out[b], equations.layer(x[b], cache, true)));
    before = (Equations::resized(x[0]) + Equations::resized(x[1])) / 2;
    EXPECT_TRUE(close(carry.get("cache"), cache));
    EXPECT_TRUE(close(carry.get("tokens"), before));
    EXPECT_FALSE(carry.get("cache").requires_grad());
    EXPECT_FALSE(carry.get("tokens").requires_grad());
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
      "{slots: 5, source: output, candidate: norm_gelu, gate_bias: true, mixing: "
      "outputs, own: true}",
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
    return carry.get("cache");
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

TEST(Grc, HalvesOfABatchCarryItsMean) {
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
    EXPECT_EQ(all.size(), causal ? 2u : 1u);
    for (const auto& [name, tensor] : all)
      EXPECT_TRUE(close((first.at(name) + second.at(name)) / 2, tensor)) << name;
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
  Pass one = training_pass(false, carry), other;
  EXPECT_TRUE(close(mixer->forward(x, one), alone->forward(x, other)));
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
  EXPECT_TRUE(
      refusal([] {
        grc("{attention: luna}");
      }).starts_with("grc: luna cannot stand beside a cache: it fills the seam"));
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
  Record carry = trained(*grc("{slots: 5}"), false, 1);
  Pass pass = training_pass(false, carry);
  EXPECT_EQ(refusal([&] {
              grc("{slots: 7}")->forward(random_tensors(1, {1, 4, 12})[0], pass);
            }),
            "grc: the carry must be a cache [7, 6], got [5, 6]");
}

}  // namespace
}  // namespace longspan::testing
