#include "longspan/contract/contract.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <sstream>

#include <torch/csrc/autograd/autograd.h>
#include <torch/cuda.h>
#include <torch/serialize.h>

#include "longspan/base/error.h"
#include "longspan/base/memory.h"
#include "longspan/base/threads.h"
#include "longspan/contract/subject.h"

namespace longspan {
namespace {

using State = Verdict::State;
using torch::Tensor;

// Around the edges of tiles.
constexpr int64_t kLengths[] = {1, 7, 63, 64, 65, 129, 257};
constexpr int64_t kHeadWidths[] = {5, 16, 64};

// Two ways to the same number in double: apart by rounding alone.
constexpr double kRounding = 1e-10;

// Collects what is broken; the first case is the one that is told.
class Breaches {
 public:
  template <class... Parts>
  void add(const Parts&... parts) {
    std::ostringstream text;
    (text << ... << parts);
    if (count_++ == 0) first_ = text.str();
  }

  Verdict verdict() const {
    if (count_ == 0) return {State::holds};
    std::string more =
        count_ > 1 ? " (and " + std::to_string(count_ - 1) + " more)" : "";
    return {State::broken, first_ + more};
  }

 private:
  int64_t count_ = 0;
  std::string first_;
};

// The largest difference, as a part of the largest expected value; NaN becomes
// infinity.
double relative_error(const Tensor& got, const Tensor& expected) {
  if (got.sizes() != expected.sizes()) return INFINITY;
  if (got.numel() == 0) return 0;
  const auto exact = expected.to(torch::kDouble);
  const double error = (got.to(torch::kDouble) - exact).abs().max().item<double>();
  const double scale = exact.abs().max().item<double>();
  return std::isfinite(error) ? error / (scale + 1e-12) : INFINITY;
}

bool same_bits(const Tensors& a, const Tensors& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Tensor& x, const Tensor& y) { return x.equal(y); });
}

std::string_view kind_of(size_t result, size_t inputs) {
  if (result == 0) return "output";
  return result <= inputs ? "gradient of an input" : "gradient of a parameter";
}

// The forms the row claims: causal or not.
std::vector<bool> forms(const Mechanism& mechanism) {
  switch (mechanism.can.causal) {
    case Causal::never: return {false};
    case Causal::optional: return {false, true};
    case Causal::always: return {true};
  }
  TORCH_INTERNAL_ASSERT(false);
}

Pass pass_of(bool causal) {
  Pass pass;
  pass.mask.causal = causal;
  return pass;
}

Pass simple_pass(const Mechanism& mechanism) {
  return pass_of(mechanism.can.causal == Causal::always);
}

// [examples, tokens] with `lengths[b]` real tokens on the left.
Tensor real_tokens(const std::vector<int64_t>& lengths, int64_t tokens,
                   torch::Device device) {
  auto mask =
      torch::zeros({static_cast<int64_t>(lengths.size()), tokens}, torch::kBool);
  for (size_t b = 0; b < lengths.size(); ++b)
    mask[static_cast<int64_t>(b)].slice(0, 0, lengths[b]).fill_(true);
  return mask.to(device);
}

Tensor tokens_of(const Tensor& tensor, int64_t from, int64_t to) {
  return tensor.slice(-2, from, to);
}

Tensors sliced(const Tensors& inputs, int64_t from, int64_t to) {
  Tensors parts;
  for (const auto& input : inputs) parts.push_back(tokens_of(input, from, to));
  return parts;
}

Tensors examples_of(const Tensors& inputs, int64_t from, int64_t to) {
  Tensors parts;
  for (const auto& input : inputs) parts.push_back(input.slice(0, from, to));
  return parts;
}

// A copy in which the tokens where `tokens` [B, N] is true are `changed`.
Tensors with_changed(const Tensors& inputs, const Tensor& tokens,
                     const std::function<Tensor(const Tensor&)>& changed) {
  Tensors others;
  for (const auto& input : inputs) {
    auto where = tokens.to(input.device()).unsqueeze(-1);
    if (input.dim() == 4) where = where.unsqueeze(1);
    others.push_back(torch::where(where, changed(input), input));
  }
  return others;
}

struct Change {
  const char* name;
  std::function<Tensor(const Tensor&)> apply;
};

std::vector<Change> changes() {
  return {{"noise", [](const Tensor& x) { return x.flip(-2).roll(1, -1) * 3 + 1; }},
          {"9x", [](const Tensor& x) { return x * 9; }},
          {"1/9", [](const Tensor& x) { return x / 9; }}};
}

// Adds a breach unless asking for `what` fails with an Error that names the mechanism.
void expect_refusal(Breaches& breaches, const Subject& subject, const char* what,
                    Pass pass, const Tensors& inputs) {
  try {
    subject.run(inputs, pass);
    breaches.add("does not claim ", what, " but does not refuse it either");
  } catch (const Error& error) {
    const std::string_view message = error.what();
    if (!message.starts_with(subject.mechanism().name))
      breaches.add("refuses ", what, " without saying who refuses: ", message);
  }
}

// Compares the fast form with the definition, outputs and gradients.
void compare(Breaches& breaches, const Subject& subject, const Tensors& inputs,
             const Pass& pass, const std::string& label) {
  const Tensors fast = subject.run_and_gradients(inputs, pass);
  const Tensors defined = subject.reference_and_gradients(inputs, pass);
  for (size_t i = 0; i < fast.size(); ++i) {
    const double error = relative_error(fast[i], defined[i]);
    if (!(error <= kRounding))
      breaches.add(kind_of(i, inputs.size()), " is off by ", error, " at ", label);
  }
}

Verdict leaves_out_pairs(const Mechanism& mechanism, torch::Device device) {
  constexpr int64_t kTokens = 129;
  const Subject subject(mechanism, {.device = device});
  Tensors inputs = subject.inputs(1, kTokens);
  const bool causal = mechanism.can.causal == Causal::always;
  Pass pass = pass_of(causal);
  auto& source = inputs.back();  // v or x: what is mixed
  source.requires_grad_();
  const Tensor out = subject.run(inputs, pass);
  const Tensor rows = out.dim() == 4 ? out[0] : out;  // [H, N, ..] or [1, N, ..]
  int64_t seen = 0;
  for (int64_t head = 0; head < rows.size(0); ++head) {
    for (int64_t i = 0; i < rows.size(1); ++i) {
      const auto gradient = torch::autograd::grad({rows[head][i].sum()}, {source}, {},
                                                  /*retain_graph=*/true)[0];
      seen += (gradient != 0).any(-1).flatten(0, -2).any(0).sum().item<int64_t>();
    }
  }
  const int64_t per_head = causal ? kTokens * (kTokens + 1) / 2 : kTokens * kTokens;
  const int64_t pairs = rows.size(0) * per_head;
  Breaches breaches;
  if (mechanism.full && seen != pairs)
    breaches.add("claims to meet every key but meets ", seen, " of ", pairs, " pairs");
  if (!mechanism.full && 2 * seen > pairs)
    breaches.add("its test settings leave out less than half of the pairs: it meets ",
                 seen, " of ", pairs);
  return breaches.verdict();
}

Verdict equals_definition(const Mechanism& mechanism, torch::Device device) {
  Breaches breaches;
  const auto& can = mechanism.can;
  for (const int64_t width : kHeadWidths) {
    const Subject subject(mechanism, {.device = device, .head_width = width});
    for (const bool causal : forms(mechanism)) {
      for (const int64_t tokens : kLengths) {
        if (width != kHeadWidths[0] && tokens != 65) continue;
        const auto label = [&](const char* with) {
          return "N = " + std::to_string(tokens) + ", d = " + std::to_string(width) +
                 (causal ? ", causal" : "") + with;
        };
        const Tensors inputs = subject.inputs(2, tokens);
        const Pass plain = pass_of(causal);
        compare(breaches, subject, inputs, plain, label(""));
        if (can.padding) {
          Pass pass = plain;
          pass.mask.tokens = real_tokens({tokens, tokens / 2}, tokens, device);
          compare(breaches, subject, inputs, pass, label(", padding"));
        }
        const auto whole = torch::arange(tokens, torch::kLong).to(device);
        if (can.segments) {
          Pass pass = plain;
          pass.mask.segment = (whole / 5).to(torch::kLong).expand({2, -1});
          compare(breaches, subject, inputs, pass, label(", segments"));
        }
        if (can.positions) {
          Pass pass = plain;
          pass.positions = torch::stack({whole * 2 + 3, whole.flip(0)});
          compare(breaches, subject, inputs, pass, label(", positions"));
        }
        if (can.bias) {
          Pass pass = plain;
          const auto options = subject.tensor_options();
          pass.bias.slopes = torch::tensor({0.5, 0.125}, options);
          pass.bias.column =
              torch::cos(torch::arange(tokens, options)).view({1, 1, -1});
          compare(breaches, subject, inputs, pass, label(", bias"));
        }
        if (can.cross) {
          Pass pass = plain;
          pass.context.tokens = real_tokens({tokens + 9, 3}, tokens + 9, device);
          compare(breaches, subject, subject.inputs(2, tokens, 2, tokens + 9), pass,
                  label(", cross"));
        }
      }
    }
  }

  // What the row does not claim.
  const Subject subject(mechanism, {.device = device});
  const Tensors inputs = subject.inputs(2, 9);
  const Pass plain = simple_pass(mechanism);
  const auto options = subject.tensor_options();
  const auto refuse = [&](bool claimed, const char* what, auto ask) {
    if (claimed) return;
    Pass pass = plain;
    ask(pass);
    expect_refusal(breaches, subject, what, pass, inputs);
  };
  const auto ones = torch::ones({2, 9}, torch::kLong).to(device);
  Record record;
  refuse(can.segments, "segments", [&](Pass& pass) { pass.mask.segment = ones; });
  refuse(can.global, "global tokens",
         [&](Pass& pass) { pass.mask.global = ones.to(torch::kBool); });
  refuse(can.positions, "positions", [&](Pass& pass) { pass.positions = ones; });
  refuse(can.bias, "bias",
         [&](Pass& pass) { pass.bias.slopes = torch::ones(2, options); });
  refuse(can.cross, "cross-attention",
         [&](Pass& pass) { pass.context.tokens = ones.to(torch::kBool); });
  refuse(can.side, "a second stream", [&](Pass& pass) {
    pass.side.x = torch::ones({2, 3, 4}, options);
  });
  refuse(can.carry, "a carry", [&](Pass& pass) { pass.carry = &record; });
  refuse(can.dropout, "dropout", [&](Pass& pass) {
    pass.training = true;
    pass.dropout = 0.5;
  });
  return breaches.verdict();
}

Verdict does_not_look_ahead(const Mechanism& mechanism, torch::Device device) {
  constexpr int64_t kTokens = 129;
  const Subject subject(mechanism, {.device = device});
  Breaches breaches;
  if (mechanism.can.causal == Causal::never) {
    expect_refusal(breaches, subject, "causality", pass_of(true), subject.inputs(2, 9));
    auto verdict = breaches.verdict();
    if (verdict.state == State::holds) verdict.state = State::refused;
    return verdict;
  }
  if (mechanism.can.causal == Causal::always)
    expect_refusal(breaches, subject, "sight of the future", pass_of(false),
                   subject.inputs(2, 9));

  Pass pass = pass_of(true);
  const Tensors inputs = subject.inputs(2, kTokens);
  const Tensor before = subject.run(inputs, pass);
  for (const int64_t last : {0, 1, 31, 62, 63, 64, 65, 100, 127}) {
    const auto later = torch::arange(kTokens).gt(last).expand({2, -1});
    for (const auto& [name, apply] : changes()) {
      Pass again = pass_of(true);
      const Tensor after = subject.run(with_changed(inputs, later, apply), again);
      const auto a = tokens_of(before, 0, last + 1), b = tokens_of(after, 0, last + 1);
      const double error = relative_error(b, a);
      if (mechanism.by_content ? !(error <= 1e-12) : !a.equal(b))
        breaches.add("tokens up to ", last, " change by ", error,
                     " when later ones get ", name);
    }
  }
  return breaches.verdict();
}

Verdict ignores_padding(const Mechanism& mechanism, torch::Device device) {
  constexpr int64_t kTokens = 129;
  const Subject subject(mechanism, {.device = device});
  const Tensors inputs = subject.inputs(3, kTokens);
  Breaches breaches;
  if (!mechanism.can.padding) {
    Pass pass = simple_pass(mechanism);
    pass.mask.tokens = real_tokens({kTokens, 65, 7}, kTokens, device);
    expect_refusal(breaches, subject, "padding", pass, inputs);
    auto verdict = breaches.verdict();
    if (verdict.state == State::holds) verdict.state = State::refused;
    return verdict;
  }

  auto holes = real_tokens({kTokens, kTokens, kTokens}, kTokens, device);
  holes[1].slice(0, 0, 40).fill_(false);  // on the left
  holes[2].slice(0, 5, 90, 3).fill_(false);
  const struct {
    const char* name;
    Tensor tokens;
  } masks[] = {{"on the right", real_tokens({kTokens, 65, 0}, kTokens, device)},
               {"on the left and in between", holes}};
  for (const bool causal : forms(mechanism)) {
    for (const auto& [where, tokens] : masks) {
      Pass pass = pass_of(causal);
      pass.mask.tokens = tokens;
      const Tensors first = subject.run_and_gradients(inputs, pass);
      const auto padding = tokens.logical_not();
      for (const auto& [name, apply] : changes()) {
        Pass again = pass_of(causal);
        again.mask.tokens = tokens;
        const Tensor other = subject.run(with_changed(inputs, padding, apply), again);
        if (!other.equal(first[0]))
          breaches.add("padding ", where, " changes outputs by ",
                       relative_error(other, first[0]), " when it gets ", name);
      }
      for (size_t i = 0; i < first.size(); ++i)
        if (!first[i].isfinite().all().item<bool>())
          breaches.add("with padding ", where, " an ", kind_of(i, inputs.size()),
                       " is not finite");
      const auto nothing = examples_of(first, 2, 3)[0];
      if (!tokens[2].any().item<bool>() && nothing.ne(0).any().item<bool>())
        breaches.add("an example of padding alone does not give 0");
    }

    // As much as there is: the same as none.
    const Tensors real = sliced(examples_of(inputs, 1, 2), 0, 65);
    Pass bare = pass_of(causal);
    const Tensor alone = subject.run(real, bare);
    for (const int64_t tokens : {66, 128, 129}) {
      Pass pass = pass_of(causal);
      pass.mask.tokens = real_tokens({65}, tokens, device);
      const Tensor padded =
          subject.run(sliced(examples_of(inputs, 1, 2), 0, tokens), pass);
      const double error = relative_error(tokens_of(padded, 0, 65), alone);
      if (!(error <= kRounding))
        breaches.add("65 tokens padded to ", tokens, " differ by ", error,
                     " from the 65 alone");
    }
  }
  return breaches.verdict();
}

Verdict treats_examples_alone(const Mechanism& mechanism, torch::Device device) {
  constexpr int64_t kExamples = 3, kTokens = 65;
  const Subject subject(mechanism, {.device = device});
  const Tensors inputs = subject.inputs(kExamples, kTokens);
  Breaches breaches;
  for (const bool causal : forms(mechanism)) {
    Pass together = pass_of(causal);
    const Tensor batch = subject.run(inputs, together);
    for (int64_t b = 0; b < kExamples; ++b) {
      Pass pass = pass_of(causal);
      const Tensor alone = subject.run(examples_of(inputs, b, b + 1), pass);
      const double error = relative_error(batch.slice(0, b, b + 1), alone);
      if (!(error <= kRounding))
        breaches.add("example ", b, " differs by ", error, " from itself alone",
                     causal ? ", causal" : "");
    }
  }
  return breaches.verdict();
}

Verdict decodes_step_by_step(const Mechanism& mechanism, torch::Device device) {
  constexpr int64_t kExamples = 2, kTokens = 70;
  const Subject subject(mechanism, {.device = device});
  const Tensors inputs = subject.inputs(kExamples, kTokens);
  Breaches breaches;
  if (!mechanism.can.decoding) {
    Record record;
    Pass pass = pass_of(mechanism.can.causal != Causal::never);
    pass.state = &record;
    expect_refusal(breaches, subject, "decoding", pass, inputs);
    auto verdict = breaches.verdict();
    if (verdict.state == State::holds) verdict.state = State::refused;
    return verdict;
  }

  Pass whole = pass_of(true);
  const Tensor parallel = subject.run(inputs, whole);
  // Prefill, then pieces of `step` tokens.
  const std::pair<int64_t, int64_t> plans[] = {{0, 1},  {1, 1}, {7, 1},   {64, 1},
                                               {65, 1}, {3, 5}, {32, 32}, {70, 1}};
  for (const auto& [prefill, step] : plans) {
    Record state;
    Tensors outs;
    const auto feed = [&](int64_t from, int64_t to) {
      Pass pass = pass_of(true);
      pass.state = &state;
      outs.push_back(subject.run(sliced(inputs, from, to), pass));
    };
    if (prefill > 0) feed(0, prefill);
    for (int64_t at = prefill; at < kTokens; at += step)
      feed(at, std::min(at + step, kTokens));
    const double error = relative_error(torch::cat(outs, -2), parallel);
    if (!(error <= kRounding))
      breaches.add("prefill of ", prefill, " and steps of ", step, " differ by ", error,
                   " from the whole");
    const int64_t promised =
        kExamples * mechanism.state_size(subject.settings(), subject.sizes(), kTokens);
    if (state.numel() != promised)
      breaches.add("the state has ", state.numel(), " numbers after ", kTokens,
                   " tokens, promised are ", promised);
  }
  return breaches.verdict();
}

Verdict survives_saving(const Mechanism& mechanism, torch::Device device) {
  const Subject saved(mechanism, {.device = device, .seed = 1});
  const Subject loaded(mechanism, {.device = device, .seed = 5});
  std::stringstream file;
  torch::serialize::OutputArchive out;
  saved.module().save(out);
  out.save_to(file);
  torch::serialize::InputArchive in;
  in.load_from(file);
  loaded.module().load(in);

  Breaches breaches;
  const Tensors inputs = saved.inputs(2, 65);
  for (const bool causal : forms(mechanism)) {
    Pass first = pass_of(causal), second = pass_of(causal);
    if (!saved.run(inputs, first).equal(loaded.run(inputs, second)))
      breaches.add("after saving and loading the outputs differ",
                   causal ? ", causal" : "");
  }
  return breaches.verdict();
}

Verdict keeps_memory_growth(const Mechanism& mechanism, torch::Device device) {
  constexpr double kSlack = 1.08;
  const Subject subject(mechanism, {.device = device, .dtype = torch::kFloat});
  Breaches breaches;
  for (const bool causal : forms(mechanism)) {
    const auto peak = [&](int64_t tokens) {
      const Tensors inputs = subject.inputs(1, tokens);
      const PeakBytes bytes(device);
      subject.run_and_gradients(inputs, pass_of(causal));
      return static_cast<double>(bytes.newly());
    };
    const double once = peak(1024), twice = peak(2048);
    const double allowed = std::pow(2, mechanism.memory.power) * kSlack;
    if (!(twice <= allowed * once))
      breaches.add("from 1024 to 2048 tokens the peak grows ", twice / once,
                   " times, from ", once, " to ", twice, " bytes; ",
                   mechanism.memory.formula, " allows ", allowed,
                   causal ? ", causal" : "");
  }
  return breaches.verdict();
}

Verdict repeats_bit_for_bit(const Mechanism& mechanism, torch::Device device) {
  const Subject subject(mechanism, {.device = device, .dtype = torch::kFloat});
  // Long enough that a BLAS sums in pieces.
  const Tensors inputs = subject.inputs(2, 600);
  Breaches breaches;
  for (const bool causal : forms(mechanism)) {
    Pass pass = pass_of(causal);
    pass.draw = Draw(/*seed=*/3, /*step=*/4);
    pass.training = true;
    if (mechanism.can.dropout) pass.dropout = 0.25;
    const auto results = [&](int threads) {
      const UseThreads using_threads(threads);
      return subject.run_and_gradients(inputs, pass);
    };
    const Tensors first = results(1);
    if (!same_bits(first, results(1))) breaches.add("two runs with one seed differ");
    for (const int threads : {2, 3, 5})
      if (!same_bits(first, results(threads)))
        breaches.add("with ", threads, " threads the results are not those with 1");
  }
  return breaches.verdict();
}

Verdict serves_every_type(const Mechanism& mechanism, torch::Device device) {
  std::vector<torch::Dtype> types = {torch::kDouble, torch::kFloat, torch::kBFloat16};
  if (device.is_cuda()) types.push_back(torch::kHalf);
  Breaches breaches;
  for (const auto type : types) {
    const Subject low(mechanism, {.device = device, .dtype = type, .head_width = 16});
    const Subject high(mechanism, {.device = device, .head_width = 16});
    {
      // The exact results are for the parameters and inputs as rounded.
      torch::NoGradGuard copying;
      auto to = high.module().parameters();
      const auto from = low.module().parameters();
      for (size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
    }
    for (const bool causal : forms(mechanism)) {
      for (const int64_t tokens : {65, 129}) {
        const Tensors inputs = low.inputs(2, tokens);
        Tensors exact_inputs;
        for (const auto& input : inputs)
          exact_inputs.push_back(input.to(torch::kDouble));
        const Tensors fast = low.run_and_gradients(inputs, pass_of(causal));
        const Tensors plain = low.reference_and_gradients(inputs, pass_of(causal));
        const Tensors exact =
            high.reference_and_gradients(exact_inputs, pass_of(causal));
        for (size_t i = 0; i < fast.size(); ++i) {
          const double error = relative_error(fast[i], exact[i]);
          const double allowed = 2 * relative_error(plain[i], exact[i]) + 1e-7;
          if (fast[i].scalar_type() != type || !(error <= allowed))
            breaches.add(kind_of(i, inputs.size()), " in ", type, " on ", device.str(),
                         " is off by ", error, ", plain operations allow ", allowed,
                         " at N = ", tokens, causal ? ", causal" : "");
        }
      }
    }
  }
  return breaches.verdict();
}

constexpr Clause kClauses[] = {
    {0, "meets the pairs it claims", leaves_out_pairs},
    {1, "equals its definition", equals_definition},
    {2, "does not look ahead", does_not_look_ahead},
    {3, "ignores padding", ignores_padding},
    {4, "treats examples alone", treats_examples_alone},
    {5, "decodes step by step", decodes_step_by_step},
    {6, "survives saving", survives_saving},
    {7, "keeps its memory growth", keeps_memory_growth},
    {8, "repeats bit for bit", repeats_bit_for_bit},
    {9, "serves every type", serves_every_type},
};

}  // namespace

std::span<const Clause> contract() { return kClauses; }

}  // namespace longspan
