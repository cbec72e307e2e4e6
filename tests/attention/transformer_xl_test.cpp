#include <cmath>

#include "tests/support/mechanisms.h"

namespace longspan::testing {
namespace {

constexpr Sizes kSizes{.embedding = 12, .heads = 2, .head_width = 5, .value_width = 3};

std::shared_ptr<Mixer> mixer(const std::string& settings,
                             const std::shared_ptr<Shared>& shared = nullptr) {
  torch::manual_seed(1);
  auto part = make<Mixer>(catalogue::transformer_xl, kSizes,
                          *Value::parse(settings).as<Value::Map>(), shared);
  convert(*part, torch::kCPU, torch::kDouble);
  const torch::NoGradGuard changing;
  for (auto& parameter : part->parameters())
    parameter.add_(0.3 * torch::randn_like(parameter));
  return part;
}

Pass segment_pass(Record* carry) {
  Pass pass = pass_of(true);
  pass.carry = carry;
  return pass;
}

// The outputs of segments that end at `ends`, one after the other.
Tensor in_segments(Mixer& part, const Tensor& x, const std::vector<int64_t>& ends) {
  Record carry;
  Tensors outs;
  int64_t from = 0;
  for (const int64_t to : ends) {
    Pass pass = segment_pass(&carry);
    outs.push_back(part.forward(x.slice(1, from, to), pass));
    from = to;
  }
  return torch::cat(outs, 1);
}

Tensor at_once(Mixer& part, const Tensor& x) {
  Pass pass = pass_of(true);
  return part.forward(x, pass);
}

Tensor tokens_of(int64_t count, int64_t examples = 2, uint64_t seed = 3) {
  return random_tensors(1, {examples, count, kSizes.embedding}, torch::kDouble,
                        seed)[0];
}

// Pair by pair, as the paper writes it: query i of the last `queries` of x [n, E].
Tensor by_loops(const Mixer& part, const Tensor& x, int64_t queries, int64_t window,
                int64_t clamp) {
  const auto weights = part.named_parameters();
  const auto weight = [&](const std::string& name) { return weights[name].detach(); };
  const bool tied = weights.contains("shared.transformer_xl_content_bias");
  const auto bias = [&](const std::string& name) {
    return weight((tied ? "shared.transformer_xl_" : "") + name);
  };
  const int64_t keys = x.size(0), width = kSizes.embedding;
  Tensors rows;
  for (int64_t i = keys - queries; i < keys; ++i) {
    Tensors heads;
    for (int64_t h = 0; h < kSizes.heads; ++h) {
      const auto head = [&](const std::string& name, const Tensor& from) {
        return weight(name).matmul(from).chunk(kSizes.heads)[h];
      };
      Tensors scores, values;
      for (int64_t j = 0; j <= i; ++j) {
        if (window > 0 && i - j >= window) continue;
        const auto distance =
            static_cast<double>(clamp > 0 ? std::min(i - j, clamp) : i - j);
        Tensor waves = torch::empty(width, torch::kDouble);
        for (int64_t a = 0; a < width / 2; ++a) {
          const double angle =
              distance * std::pow(10000.0, -2.0 * static_cast<double>(a) /
                                               static_cast<double>(width));
          waves[a] = std::sin(angle);
          waves[width / 2 + a] = std::cos(angle);
        }
        const Tensor q = head("q_weight", x[i]);
        scores.push_back(
            ((q + bias("content_bias")[h]).dot(head("k_weight", x[j])) +
             (q + bias("distance_bias")[h]).dot(head("distance_weight", waves))) /
            std::sqrt(5.0));
        values.push_back(head("v_weight", x[j]));
      }
      heads.push_back(torch::stack(scores).softmax(0).matmul(torch::stack(values)));
    }
    rows.push_back(weight("out_weight").matmul(torch::cat(heads)));
  }
  return torch::stack(rows);
}

TEST(TransformerXl, IsTheFormulaOfThePaper) {
  const auto x = tokens_of(14, 1);
  const struct {
    const char* settings;
    int64_t window, clamp;
  } cases[] = {{"{memory: 20}", 0, 0},
               {"{memory: 20, clamp: 4, tied: false}", 0, 4},
               {"{memory: 6, same_length: true}", 6, 0}};
  for (const auto& [settings, window, clamp] : cases) {
    const auto part = mixer(settings);
    const auto out = in_segments(*part, x, {5, 9, 14});
    EXPECT_TRUE(close(out[0], by_loops(*part, x[0], 14, window, clamp), 1e-12))
        << settings;
  }
}

TEST(TransformerXl, SegmentsWithinTheMemoryAreOneSequence) {
  const auto x = tokens_of(48);
  for (const char* settings :
       {"{memory: 47}", "{memory: 100, clamp: 9}", "{memory: 7, same_length: true}"}) {
    const auto part = mixer(settings);
    for (const std::vector<int64_t>& ends :
         {std::vector<int64_t>{16, 32, 48}, {1, 30, 31, 48}, {48}})
      EXPECT_TRUE(close(in_segments(*part, x, ends), at_once(*part, x), 1e-11))
          << settings;
  }
}

TEST(TransformerXl, ForgetsWhatIsBeyondTheMemory) {
  const auto part = mixer("{memory: 10}");
  const auto x = tokens_of(30, 1);
  const auto out = in_segments(*part, x, {10, 20, 30}).slice(1, 20);
  EXPECT_TRUE(close(out[0], by_loops(*part, x[0].slice(0, 10), 10, 0, 0), 1e-12));
}

TEST(TransformerXl, KeepsMoreInEvaluation) {
  const auto part = mixer("{memory: 4, evaluation_memory: 9}");
  for (const bool training : {true, false}) {
    Record carry;
    for (int i = 0; i < 3; ++i) {
      Pass pass = segment_pass(&carry);
      pass.training = training;
      part->forward(tokens_of(6), pass);
    }
    EXPECT_EQ(carry.get("memory").size(1), training ? 4 : 9);
  }
}

TEST(TransformerXl, LearnsFromTheMemoryButNotThroughIt) {
  const auto part = mixer("{memory: 8}");
  const auto x = tokens_of(8).requires_grad_(), y = tokens_of(5).requires_grad_();
  Record carry;
  Pass before = segment_pass(&carry), now = segment_pass(&carry);
  part->forward(x, before);
  part->forward(y, now).sum().backward();
  EXPECT_FALSE(x.grad().defined());
  const auto with_memory = part->named_parameters()["k_weight"].grad().clone();
  part->zero_grad();
  at_once(*part, y).sum().backward();
  EXPECT_FALSE(close(with_memory, part->named_parameters()["k_weight"].grad(), 1e-3));
}

// Padding neither counts as distance nor takes room in the memory.
TEST(TransformerXl, RemembersRealTokensOnly) {
  const auto part = mixer("{memory: 9}");
  const auto x = tokens_of(12), y = tokens_of(4, 2, 9);
  const auto real = torch::ones({2, 12}, torch::kBool);
  real[1].slice(0, 7).fill_(false);
  Record carry;
  Pass before = segment_pass(&carry), now = segment_pass(&carry);
  before.mask.tokens = real;
  part->forward(x, before);
  EXPECT_EQ(carry.get("memory").size(1), 9);
  EXPECT_EQ(carry.get("memory_tokens").sum(1)[1].item<int64_t>(), 7);
  const auto out = part->forward(y, now);
  EXPECT_TRUE(close(out[1],
                    by_loops(*part, torch::cat({x[1].slice(0, 0, 7), y[1]}), 4, 0, 0),
                    1e-12));
  // A batch of padding changes nothing.
  Pass none = segment_pass(&carry);
  none.mask.tokens = torch::zeros({2, 4}, torch::kBool);
  const Record kept = carry;
  part->forward(y, none);
  EXPECT_TRUE(carry.get("memory").equal(kept.get("memory")));
}

TEST(TransformerXl, DecodesWithARingWhereLengthsAreTheSame) {
  constexpr int64_t kMemory = 6;
  const auto part = mixer("{memory: 6, same_length: true}");
  const auto x = tokens_of(40);
  Record carry, state;
  Pass first = segment_pass(&carry);
  part->forward(x.slice(1, 0, 10), first);
  Record same = carry;
  Pass whole = segment_pass(&same);
  const auto expected = part->forward(x.slice(1, 10), whole);
  for (int64_t at = 10; at < 40; ++at) {
    Pass pass = segment_pass(&carry);
    pass.state = &state;
    const auto out = part->forward(x.slice(1, at, at + 1), pass);
    EXPECT_TRUE(close(out, expected.slice(1, at - 10, at - 9), 1e-12)) << at;
  }
  EXPECT_EQ(state.numel(), 2 * (kMemory - 1) * (2 * (5 + 3) + 1));
  EXPECT_EQ(state.tokens, 30);
}

TEST(TransformerXl, SharesItsBiasesAmongLayers) {
  const auto shared = std::make_shared<Shared>();
  mixer("{}", shared);
  mixer("{}", shared);
  EXPECT_EQ(shared->parameters().size(), 2);
  const auto own = mixer("{tied: false}");
  EXPECT_TRUE(own->named_parameters().contains("content_bias"));
}

TEST(TransformerXl, RefusesWhatDoesNotFit) {
  const auto part = mixer("{memory: 8}");
  Record carry;
  Pass before = segment_pass(&carry);
  part->forward(tokens_of(8), before);
  EXPECT_EQ(refusal([&] {
              Pass pass = segment_pass(&carry);
              part->forward(tokens_of(8, 3), pass);
            }),
            "transformer_xl: the memory carried from the batch before must be "
            "[B, n, E] = [3, n, 12], got [2, 8, 12]; batches that follow each other "
            "have the same examples");
  EXPECT_EQ(refusal([] { mixer("{memory: 0, same_length: true}"); }),
            "transformer_xl: same_length needs a memory of 1 or more, got 0");
}

}  // namespace
}  // namespace longspan::testing
