#include <cmath>

#include "longspan/attention/mechanism.h"
#include "longspan/contract/contract.h"
#include "tests/support/any_threads.h"

namespace longspan::testing {
namespace {

std::shared_ptr<Mixer> made(const std::string& settings, int64_t heads = 4,
                            torch::Dtype type = torch::kDouble) {
  torch::manual_seed(3);
  const auto mixer =
      make<Mixer>(catalogue::rfa, {.embedding = 24, .heads = heads, .head_width = 8},
                  *Value::parse(settings).as<Value::Map>());
  convert(*mixer, torch::kCPU, type);
  return mixer;
}

Tensor forward(Mixer& mixer, const Tensor& x, bool causal = false) {
  Pass pass;
  pass.mask.causal = causal;
  return mixer.forward(x, pass);
}

Tensor part(const Mixer& mixer, const std::string& name, const Tensor& x,
            int64_t heads) {
  const auto of = mixer.named_parameters();
  return torch::linear(x, of[name + "_weight"], of[name + "_bias"])
      .unflatten(-1, {heads, 8})
      .transpose(1, 2);
}

Tensor unit(const Tensor& x) { return x / (x.norm(2, {3}, /*keepdim=*/true) + 1e-3); }

Tensor joined(const Mixer& mixer, const Tensor& heads) {
  const auto of = mixer.named_parameters();
  return torch::linear(heads.transpose(1, 2).flatten(2), of["out_weight"],
                       of["out_bias"]);
}

// What the features stand for: softmax between unit vectors, without a scale.
Tensor by_softmax(const Mixer& mixer, const Tensor& x, int64_t heads) {
  const Tensor q = unit(part(mixer, "q", x, heads)),
               k = unit(part(mixer, "k", x, heads));
  return joined(
      mixer, q.matmul(k.transpose(2, 3)).softmax(3).matmul(part(mixer, "v", x, heads)));
}

TEST(Rfa, ErrorFallsAsTheRootOfTheNumberOfFeatures) {
  constexpr int kSteps = 40;
  const auto x = random_tensors(1, {1, 24, 24})[0];
  for (const char* const orthogonal : {"false", "true"}) {
    std::vector<double> errors;
    for (const int features : {32, 128, 512}) {
      const auto rfa = made("{pool: 40, features: " + std::to_string(features) +
                            ", orthogonal: " + orthogonal + "}");
      const Tensor exact = by_softmax(*rfa, x, 4);
      double square = 0;
      for (int step = 0; step < kSteps; ++step) {
        Pass pass;
        pass.training = true;
        pass.draw = Draw(1, step);
        square +=
            (rfa->forward(x, pass) - exact).square().mean().item<double>() / kSteps;
      }
      errors.push_back(std::sqrt(square));
    }
    for (int i = 0; i < 2; ++i) {
      EXPECT_GT(errors[i] / errors[i + 1], 1.6);
      EXPECT_LT(errors[i] / errors[i + 1], 2.5);
    }
  }
}

TEST(Rfa, TheGateIsTheProductOfWhatTokensKeep) {
  constexpr int64_t kTokens = 7;
  const auto rfa = made("{gate: true, features: 5, pool: 4}");
  const auto of = rfa->named_parameters();
  const auto x = random_tensors(1, {1, kTokens, 24})[0];
  const Tensor pool = rfa->named_buffers()["pool"].unsqueeze(0);  // [1, H, 5, d]
  const auto features = [&](const std::string& name) {
    const Tensor angles = unit(part(*rfa, name, x, 4)).matmul(pool.transpose(2, 3));
    return torch::cat({angles.sin(), angles.cos()}, 3) / std::sqrt(5);
  };
  const Tensor q = features("q")[0], k = features("k")[0], v = part(*rfa, "v", x, 4)[0];
  const Tensor gate = torch::sigmoid(
      torch::linear(x, of["gate_weight"], of["gate_bias"])[0].t());  // [H, N]
  Tensor out = torch::zeros({1, 4, kTokens, 8}, torch::kDouble);
  for (int64_t head = 0; head < 4; ++head) {
    for (int64_t i = 0; i < kTokens; ++i) {
      Tensor num = torch::zeros(8, torch::kDouble),
             den = torch::zeros({}, torch::kDouble);
      for (int64_t j = 0; j <= i; ++j) {
        Tensor weight = (1 - gate[head][j]) * q[head][i].dot(k[head][j]);
        for (int64_t l = j + 1; l <= i; ++l) weight = weight * gate[head][l];
        num = num + weight * v[head][j];
        den = den + weight;
      }
      out[0][head][i].copy_(num / den.clamp_min(0.1));
    }
  }
  EXPECT_TRUE(close(forward(*rfa, x, /*causal=*/true), joined(*rfa, out)));
}

TEST(Rfa, GatesBeginNearlyOpenAndForgetAtDifferentPace) {
  const Tensor bias = made("{gate: true}")->named_parameters()["gate_bias"];
  EXPECT_TRUE(close(bias, torch::linspace(2, 4, 4, torch::kDouble), 1e-6));
  EXPECT_FALSE(made("{}")->named_parameters().contains("gate_bias"));
}

TEST(Rfa, GatesThatAreExtremeAreExact) {
  const auto rfa = made("{gate: true, features: 5, pool: 4}", 4, torch::kFloat);
  const auto x = random_tensors(1, {2, 300, 24}, torch::kFloat)[0];
  const auto with_bias = [&](float bias) {
    const torch::NoGradGuard changing;
    rfa->named_parameters()["gate_bias"].fill_(bias);
    return forward(*rfa, x, /*causal=*/true);
  };
  EXPECT_TRUE(with_bias(-1000).isfinite().all().item<bool>());
  // All is kept and nothing taken in.
  EXPECT_LT(with_bias(1000).abs().max().item<double>(), 1e-30);
  // A gate that forgets all: every token is alone.
  const Tensor forgets = with_bias(-1000);
  for (const int64_t token : {0, 1, 299})
    EXPECT_TRUE(close(forgets.slice(1, token, token + 1),
                      forward(*rfa, x.slice(1, token, token + 1), /*causal=*/true),
                      1e-5));
}

TEST(Rfa, TrainingDrawsFromThePoolAndNoMatrixTwice) {
  const auto rfa = made("{pool: 2, features: 5}", /*heads=*/2);
  const auto x = random_tensors(1, {1, 9, 24})[0];
  const Tensor pool = rfa->named_buffers()["pool"];
  const Tensor one = forward(*rfa, x);
  pool.copy_(pool.flip(0).clone());
  const Tensor other = forward(*rfa, x);
  int64_t ones = 0, others = 0;
  for (uint64_t step = 0; step < 20; ++step) {
    const auto drawn = [&] {
      Pass pass;
      pass.training = true;
      pass.draw = Draw(1, step);
      return rfa->forward(x, pass);
    };
    const Tensor out = drawn();
    EXPECT_TRUE(drawn().equal(out));
    ones += out.equal(one);
    others += out.equal(other);
  }
  EXPECT_EQ(ones + others, 20);
  EXPECT_GT(ones, 0);
  EXPECT_GT(others, 0);
}

TEST(Rfa, SmallSumsAreReplacedByTheLeast) {
  const auto x = random_tensors(1, {1, 9, 24})[0];
  const Tensor once = forward(*made("{least_sum: 100}"), x),
               twice = forward(*made("{least_sum: 200}"), x);
  EXPECT_TRUE(close(once, 2 * twice));
}

TEST(Rfa, SigmaIsAnInverseTemperatureThatIsLearned) {
  const auto x = random_tensors(1, {1, 9, 24})[0];
  const auto cold = made("{tau: 0.5}"), learned = made("{}");
  {
    const torch::NoGradGuard changing;
    learned->named_parameters()["sigma"].fill_(2);
  }
  EXPECT_TRUE(close(forward(*cold, x), forward(*learned, x)));
}

TEST(Rfa, TokensOfZerosHaveFiniteGradients) {
  const auto rfa = made("{gate: true}");
  const Tensor x = torch::zeros({1, 5, 24}, torch::kDouble).requires_grad_();
  forward(*rfa, x, /*causal=*/true).sum().backward();
  EXPECT_TRUE(x.grad().isfinite().all().item<bool>());
  for (const Tensor& parameter : rfa->parameters())
    EXPECT_TRUE(parameter.grad().isfinite().all().item<bool>());
}

TEST(Rfa, AContextIsSummedOnce) {
  const auto rfa = made("{}");
  const auto x = random_tensors(2, {2, 11, 24});
  Pass whole;
  whole.context.x = x[1];
  whole.context.tokens = torch::ones({2, 11}, torch::kBool);
  whole.context.tokens[1].slice(0, 4).fill_(false);
  const Tensor parallel = rfa->forward(x[0], whole);
  Record state;
  Tensors outs;
  for (const auto& [from, to] : {std::pair(0, 3), {3, 4}, {4, 11}}) {
    Pass pass;
    pass.context.tokens = whole.context.tokens;
    if (from == 0) pass.context.x = x[1];  // not asked for again
    pass.state = &state;
    outs.push_back(rfa->forward(x[0].slice(1, from, to), pass));
  }
  EXPECT_TRUE(close(torch::cat(outs, 1), parallel));
}

TEST(Rfa, WithoutAGateItKeepsTheContractAsWell) {
  Mechanism row = catalogue::rfa;
  row.test_settings = "{features: 8, pool: 9, orthogonal: true}";
  for (const int clause : {2, 5}) {
    const Verdict verdict = contract()[clause].check(row, torch::kCPU);
    EXPECT_EQ(verdict.state, Verdict::State::holds) << verdict.detail;
  }
}

TEST(Rfa, LongSequencesAreTheSameBitsOnAnyNumberOfThreads) {
  const auto rfa = made("{gate: true, features: 3, pool: 3}", 3, torch::kFloat);
  const Tensor x = random_tensors(1, {1, 8011, 24}, torch::kFloat)[0];
  EXPECT_TRUE(same_with_any_threads([&] {
    Tensors sources = rfa->parameters();
    sources.push_back(x.clone().requires_grad_());
    const Tensor out = forward(*rfa, sources.back(), /*causal=*/true);
    Tensors results = torch::autograd::grad({out.square().sum()}, sources);
    results.push_back(out.detach());
    return results;
  }));
}

TEST(Rfa, LongSequencesOfLowPrecisionStayNearFloat) {
  for (const auto device : devices())
    for (const auto type : low_precisions(device)) {
      const auto rfa = made("{gate: true, features: 8, pool: 1}", 1, torch::kFloat);
      convert(*rfa, device, type);
      const Tensor x =
          random_tensors(1, {1, 65536, 24}, torch::kFloat)[0].to(device, type);
      Record state;
      Pass pass, other;
      pass.mask.causal = other.mask.causal = true;
      pass.state = &state;
      const Tensor out = rfa->forward(x, pass);
      EXPECT_EQ(out.scalar_type(), type);
      EXPECT_EQ(state.get("sums").scalar_type(), torch::kFloat);
      convert(*rfa, device, torch::kFloat);
      EXPECT_TRUE(close(out, rfa->forward(x.to(torch::kFloat), other), 0.03)) << type;
    }
}

TEST(Rfa, RefusesWhatDoesNotFit) {
  EXPECT_EQ(refusal([] { made("{pool: 3}"); }),
            "rfa: pool must have a matrix for each of the 4 heads of keys, got 3");
  EXPECT_EQ(refusal([] { made("{tau: 0}"); }), "rfa: tau must be more than 0, got 0");
  EXPECT_EQ(refusal([] { made("{least_sum: 0}"); }),
            "rfa: least_sum must be more than 0, got 0");
  const auto x = random_tensors(1, {2, 5, 24})[0];
  const auto refusal_of = [&](const Tensor& context, const Tensor& tokens) {
    return refusal([&] {
      Pass pass;
      pass.context.x = context;
      pass.context.tokens = tokens;
      made("{}")->forward(x, pass);
    });
  };
  const Tensor real = torch::ones({2, 5}, torch::kBool);
  EXPECT_EQ(refusal_of({}, real), "rfa: the context must come with its x");
  EXPECT_EQ(refusal_of(x.slice(2, 1), real),
            "rfa: the context must be [B, M, E] = [2, M, 24], got [2, 5, 23]");
  EXPECT_EQ(refusal_of(x, real.slice(1, 1)),
            "rfa: context.tokens must be boolean [B, M] = [2, 5], got [2, 4]");
}

}  // namespace
}  // namespace longspan::testing
