#include "longspan/contract/contract.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <sstream>

#include <torch/serialize.h>
#include <torch/utils.h>

#include "longspan/base/error.h"
#include "longspan/base/memory.h"
#include "longspan/base/threads.h"
#include "longspan/contract/seen_pairs.h"
#include "longspan/contract/subject.h"
#include "longspan/kernels/block_attention.h"

namespace longspan {
namespace {

using State = Verdict::State;
using torch::Tensor;

// Around the edges of tiles.
constexpr int64_t kLengths[] = {1, 7, 63, 64, 65, 129, 257};
constexpr int64_t kHeadWidths[] = {5, 16, 64};

// Two ways to the same number in double: apart by rounding alone.
constexpr double kRounding = 1e-9;

// Collects what is broken; the first case is the one that is told.
class Breaches {
 public:
  template <class... Parts>
  void add(const Parts&... parts) {
    std::ostringstream text;
    (text << ... << parts);
    if (count_++ == 0) first_ = text.str();
  }

  // `kept`: what it means if nothing is broken.
  Verdict verdict(State kept = State::holds) const {
    if (count_ == 0) return {kept};
    std::string more =
        count_ > 1 ? " (and " + std::to_string(count_ - 1) + " more)" : "";
    return {State::broken, first_ + more};
  }

 private:
  int64_t count_ = 0;
  std::string first_;
};

double size_of(const Tensor& tensor) {
  if (tensor.numel() == 0) return 0;
  return tensor.to(torch::kDouble).abs().max().item<double>();
}

// The distance of 1 to the next number of a type.
double unit_of(torch::Dtype type) {
  switch (type) {
    case torch::kDouble: return 0x1p-52;
    case torch::kFloat: return 0x1p-23;
    case torch::kHalf: return 0x1p-10;
    default: return 0x1p-7;  // bfloat16
  }
}

constexpr double kLeastSize = 1e-2;

// The largest difference, as a part of the largest expected value or of a hundredth of
// what inputs are like, because a gradient may be 0 but for rounding; NaN becomes
// infinity.
double relative_error(const Tensor& got, const Tensor& expected) {
  if (got.sizes() != expected.sizes()) return INFINITY;
  if (got.numel() == 0) return 0;
  const auto exact = expected.to(torch::kDouble);
  const double error = (got.to(torch::kDouble) - exact).abs().max().item<double>();
  return std::isfinite(error) ? error / (size_of(exact) + kLeastSize) : INFINITY;
}

bool same_bits(const Tensors& a, const Tensors& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Tensor& x, const Tensor& y) { return x.equal(y); });
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

// Rows `rows` [n] of the token axis.
Tensor at_tokens(const Tensor& tensor, const Tensor& rows) {
  return tensor.index_select(-2, rows.to(tensor.device()));
}

Tensors at_tokens(const Tensors& inputs, const Tensor& rows) {
  Tensors parts;
  for (const auto& input : inputs) parts.push_back(at_tokens(input, rows));
  return parts;
}

Tensors examples_of(const Tensors& inputs, int64_t from, int64_t to) {
  Tensors parts;
  for (const auto& input : inputs) parts.push_back(input.slice(0, from, to));
  return parts;
}

// The rows of an output that stand for tokens where `which` [tokens] is true.
Tensor rows_of(const Subject::Output& output, const Tensor& which) {
  return at_tokens(output.x, which.index_select(0, output.tokens).nonzero().view(-1));
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

// What the row claims beyond the plain call: for the tokens `tokens` [n], when the keys
// so far are `keys` [m].
struct Extra {
  const char* name;
  std::function<void(Pass&, const Tensor& tokens, const Tensor& keys)> give;
};

std::vector<Extra> extras(const Subject& subject, int64_t count) {
  const auto& can = subject.can();
  const auto options = subject.tensor_options();
  const auto device = options.device();
  const auto whole = torch::arange(count, torch::kLong);
  const auto of = [=](const Tensor& all, const Tensor& tokens) {
    return all.index_select(1, tokens).to(device);
  };
  std::vector<Extra> all = {{"", [](Pass&, const Tensor&, const Tensor&) {}}};
  if (can.padding) {
    const auto real = torch::stack({whole >= 0, whole % 3 != 1});
    all.push_back({", padding", [=](Pass& pass, const Tensor& tokens, const Tensor&) {
                     pass.mask.tokens = of(real, tokens);
                   }});
  }
  if (can.segments) {
    const auto segment = torch::div(whole, 5, "floor").expand({2, -1});
    all.push_back({", segments", [=](Pass& pass, const Tensor& tokens, const Tensor&) {
                     pass.mask.segment = of(segment, tokens);
                   }});
  }
  if (can.global) {
    const auto global = torch::stack({whole % 50 == 0, whole == 3});
    all.push_back(
        {", global tokens", [=](Pass& pass, const Tensor& tokens, const Tensor&) {
           pass.mask.global = of(global, tokens);
         }});
  }
  if (can.positions) {
    const auto positions = torch::stack({whole * 2 + 3, whole + 1});
    all.push_back({", positions", [=](Pass& pass, const Tensor& tokens, const Tensor&) {
                     pass.positions = of(positions, tokens);
                   }});
  }
  if (can.bias) {
    const auto slopes = torch::tensor({0.5, 0.125, 0.75, 1.5}, torch::kDouble);
    const auto column = torch::cos(torch::arange(count, torch::kDouble));
    all.push_back(
        {", bias", [=](Pass& pass, const Tensor&, const Tensor& keys) {
           pass.bias.slopes = slopes.to(options);
           pass.bias.column = column.index_select(0, keys).view({1, 1, -1}).to(options);
         }});
  }
  return all;
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
  if (fast.size() != defined.size())
    return breaches.add("the definition has other results at ", label);
  for (size_t i = 0; i < fast.size(); ++i) {
    const double error = relative_error(fast[i], defined[i]);
    if (!(error <= kRounding))
      breaches.add(i == 0 ? "output" : "a gradient", " is off by ", error, " at ",
                   label);
  }
}

Verdict meets_its_pairs(const Mechanism& mechanism, torch::Device device) {
  constexpr int64_t kTokens = 129;
  const Subject subject(mechanism, {.device = device});
  const bool causal = mechanism.can.causal == Causal::always;
  const auto [met, tokens] = seen_pairs(subject, kTokens, causal);
  const auto seen = met.sum().item<int64_t>();
  const Tensor ranks = subject.ranks(kTokens).index_select(0, tokens);
  const int64_t itself = mechanism.predicts ? 0 : 1;
  const int64_t per_head =
      causal ? (ranks + itself).sum().item<int64_t>() : met.size(1) * kTokens;
  const int64_t pairs = met.size(0) * per_head;
  Breaches breaches;
  if (mechanism.full && (mechanism.zero_weights ? seen == 0 : seen != pairs))
    breaches.add("claims to meet every key but meets ", seen, " of ", pairs, " pairs");
  if (!mechanism.full && 2 * seen > pairs)
    breaches.add("its test settings leave out less than half of the pairs: it meets ",
                 seen, " of ", pairs);
  return breaches.verdict();
}

// Dropped weights leave the mean of many draws as it was.
void check_dropout(Breaches& breaches, const Mechanism& mechanism,
                   torch::Device device) {
  constexpr int kDraws = 300;
  const auto mean = [&](double dropout) {
    const Subject subject(mechanism, {.device = device, .dtype = torch::kFloat});
    const Tensors inputs = subject.inputs(1, 65);
    Tensor sum;
    for (int step = 0; step < kDraws; ++step) {
      Pass pass = simple_pass(mechanism);
      pass.training = true;
      pass.dropout = dropout;
      pass.draw = Draw(/*seed=*/1, step);
      const Tensor out = subject.run(inputs, pass).x.detach();
      sum = sum.defined() ? sum + out : out;
    }
    return sum / kDraws;
  };
  const Tensor plain = mean(0), dropped = mean(0.25);
  if (dropped.equal(plain)) breaches.add("dropout changes nothing");
  const double error = relative_error(dropped, plain);
  if (!(error <= 0.2))
    breaches.add("the mean over ", kDraws, " draws of dropout is off by ", error);
}

Verdict equals_its_definition(const Mechanism& mechanism, torch::Device device) {
  Breaches breaches;
  const Abilities can = Subject(mechanism, {.device = device}).can();
  for (const int64_t width : kHeadWidths) {
    for (const bool grouped : {true, false}) {
      if (!grouped && (!can.grouped || width != kHeadWidths[0])) continue;
      const Subject subject(
          mechanism, {.device = device, .head_width = width, .grouped = grouped});
      for (const bool causal : forms(mechanism)) {
        for (const int64_t tokens : kLengths) {
          if ((width != kHeadWidths[0] || !grouped) && tokens != 65) continue;
          const auto label = [&](const std::string& with) {
            return "N = " + std::to_string(tokens) + ", d = " + std::to_string(width) +
                   (causal ? ", causal" : "") + with;
          };
          const Tensors inputs = subject.inputs(2, tokens);
          for (const auto& [name, give] : extras(subject, tokens)) {
            Pass pass = pass_of(causal);
            give(pass, torch::arange(tokens), torch::arange(tokens));
            compare(breaches, subject, inputs, pass, label(name));
          }
          if (!can.cross || (causal && !can.causal_cross)) continue;
          for (const int64_t keys :
               {tokens + 9, tokens, (tokens + 1) / 2, int64_t{0}}) {
            Pass pass = pass_of(causal);
            subject.add_context(pass, 2, keys);
            pass.context.tokens = real_tokens({keys, keys / 3}, keys, device);
            compare(breaches, subject, subject.inputs(2, tokens, 2, keys), pass,
                    label(", M = " + std::to_string(keys)));
          }
        }
      }
    }
  }
  if (can.dropout) check_dropout(breaches, mechanism, device);

  // What the row does not claim.
  const Subject subject(mechanism, {.device = device});
  const Tensors inputs = subject.inputs(2, 9);
  const auto options = subject.tensor_options();
  const bool each_alone = mechanism.seam() == "feed_forward";
  const auto refuse = [&](bool claimed, const char* what, auto ask) {
    if (claimed || each_alone) return;
    Pass pass = simple_pass(mechanism);
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
         [&](Pass& pass) { pass.bias.slopes = torch::ones(4, options); });
  refuse(can.cross, "cross-attention",
         [&](Pass& pass) { pass.context.tokens = ones.to(torch::kBool); });
  if (can.cross && can.causal != Causal::never)
    refuse(can.causal_cross, "causal cross-attention", [&](Pass& pass) {
      pass.mask.causal = true;
      subject.add_context(pass, 2, 9);
      pass.context.tokens = ones.to(torch::kBool);
    });
  refuse(can.side, "a second stream", [&](Pass& pass) {
    pass.side.x = torch::ones({2, 3, 4}, options);
  });
  refuse(can.carry != Carry::none, "a carry",
         [&](Pass& pass) { pass.carry = &record; });
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
  if (mechanism.can.causal == Causal::never && mechanism.seam() != "feed_forward") {
    expect_refusal(breaches, subject, "causality", pass_of(true), subject.inputs(2, 9));
    return breaches.verdict(State::refused);
  }
  if (mechanism.can.causal == Causal::always)
    expect_refusal(breaches, subject, "sight of the future", pass_of(false),
                   subject.inputs(2, 9));

  const Tensors inputs = subject.inputs(2, kTokens);
  const Tensor ranks = subject.ranks(kTokens), all = torch::arange(kTokens);
  for (const auto& [with, give] : extras(subject, kTokens)) {
    const auto run = [&, &give = give](const Tensors& some) {
      Pass pass = pass_of(true);
      give(pass, all, all);
      return subject.run(some, pass);
    };
    const Subject::Output before = run(inputs);
    for (const int64_t last : {0, 1, 31, 62, 63, 64, 65, 100, 127}) {
      const auto later = ranks > last;
      for (const auto& [name, apply] : changes()) {
        const auto after = run(with_changed(inputs, later.expand({2, -1}), apply));
        const auto a = rows_of(before, later.logical_not());
        const auto b = rows_of(after, later.logical_not());
        const double error = relative_error(b, a);
        if (mechanism.by_content ? !(error <= 1e-12) : !a.equal(b))
          breaches.add("tokens up to ", last, " change by ", error,
                       " when later ones get ", name, with);
      }
    }
  }
  return breaches.verdict();
}

Verdict ignores_padding(const Mechanism& mechanism, torch::Device device) {
  constexpr int64_t kTokens = 129, kReal = 65;
  const Subject subject(mechanism, {.device = device});
  const Tensors inputs = subject.inputs(3, kTokens);
  Breaches breaches;
  if (!mechanism.can.padding) {
    Pass pass = simple_pass(mechanism);
    pass.mask.tokens = real_tokens({kTokens, kReal, 7}, kTokens, device);
    expect_refusal(breaches, subject, "padding", pass, inputs);
    return breaches.verdict(State::refused);
  }

  auto holes = real_tokens({kTokens, kTokens, kTokens}, kTokens, device);
  holes[1].slice(0, 0, 40).fill_(false);  // on the left
  holes[2].slice(0, 5, 90, 3).fill_(false);
  const struct {
    const char* name;
    Tensor tokens;
  } masks[] = {{"on the right", real_tokens({kTokens, kReal, 0}, kTokens, device)},
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
        const auto other = subject.run(with_changed(inputs, padding, apply), again);
        if (!other.x.equal(first[0]))
          breaches.add("padding ", where, " changes outputs by ",
                       relative_error(other.x, first[0]), " when it gets ", name);
        if (other.side.defined() && !other.side.equal(first[1]))
          breaches.add("padding ", where, " changes the second stream when it gets ",
                       name);
      }
      for (const auto& result : first)
        if (!result.isfinite().all().item<bool>())
          breaches.add("with padding ", where, " an output or gradient is not finite");
    }

    // As much as there is: the same as none.
    const auto leading = [](int64_t tokens) { return torch::arange(tokens); };
    const Tensors one = examples_of(inputs, 1, 2);
    Pass bare = pass_of(causal);
    const Subject::Output alone = subject.run(at_tokens(one, leading(kReal)), bare);
    for (const int64_t tokens : {66, 128, 129}) {
      Pass pass = pass_of(causal);
      pass.mask.tokens = real_tokens({kReal}, tokens, device);
      const Subject::Output padded = subject.run(at_tokens(one, leading(tokens)), pass);
      double error = relative_error(rows_of(padded, leading(tokens) < kReal), alone.x);
      if (alone.side.defined())
        error = std::max(error, relative_error(padded.side, alone.side));
      if (!(error <= kRounding))
        breaches.add("65 tokens padded to ", tokens, " differ by ", error,
                     " from the 65 alone");
    }

    // A context of padding alone: real queries that see nothing.
    if (!mechanism.can.cross || (causal && !mechanism.can.causal_cross)) continue;
    Pass pass = pass_of(causal);
    subject.add_context(pass, 3, 7);
    pass.context.tokens = real_tokens({7, 0, 3}, 7, device);
    const Tensors results =
        subject.run_and_gradients(subject.inputs(3, kReal, 2, 7), pass);
    if (subject.mechanism().seam() == "attention" &&
        results[0][1].ne(0).any().item<bool>())
      breaches.add("a query that sees nothing does not give 0");
    for (const auto& result : results)
      if (!result.isfinite().all().item<bool>())
        breaches.add("where a query sees nothing an output or gradient is not finite");
  }
  return breaches.verdict();
}

Verdict treats_examples_alone(const Mechanism& mechanism, torch::Device device) {
  constexpr int64_t kExamples = 3, kTokens = 65;
  const Subject subject(mechanism, {.device = device});
  const Tensors inputs = subject.inputs(kExamples, kTokens);
  Breaches breaches;
  for (const bool causal : forms(mechanism)) {
    Pass nobody = pass_of(causal), together = pass_of(causal);
    if (subject.run(examples_of(inputs, 0, 0), nobody).x.size(0) != 0)
      breaches.add("a batch without examples has outputs");
    const Subject::Output batch = subject.run(inputs, together);
    for (int64_t b = 0; b < kExamples; ++b) {
      Pass pass = pass_of(causal);
      const Subject::Output alone = subject.run(examples_of(inputs, b, b + 1), pass);
      double error = relative_error(batch.x.slice(0, b, b + 1), alone.x);
      if (alone.side.defined())
        error =
            std::max(error, relative_error(batch.side.slice(0, b, b + 1), alone.side));
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
  Breaches breaches;
  if (!mechanism.can.decoding) {
    if (mechanism.seam() == "feed_forward") return {State::holds};
    Record record;
    Pass pass = pass_of(mechanism.can.causal != Causal::never);
    pass.state = &record;
    expect_refusal(breaches, subject, "decoding", pass, subject.inputs(kExamples, 9));
    return breaches.verdict(State::refused);
  }

  if (!mechanism.state_size) {
    breaches.add("claims decoding but its row has no state_size");
    return breaches.verdict();
  }
  // Tokens come in the order of causality, after one batch before.
  const Tensor ranks = subject.ranks(kTokens), order = ranks.argsort(),
               all = torch::arange(kTokens);
  const Tensors inputs = subject.inputs(kExamples, kTokens);
  const Record carried = subject.carried(pass_of(true), kExamples);
  const auto fed = [&](const Tensor& tokens, const Tensor& keys, const Extra& extra,
                       Record* state) {
    Record carry = carried;
    Pass pass = pass_of(true);
    pass.state = state;
    if (mechanism.can.carry != Carry::none) pass.carry = &carry;
    extra.give(pass, tokens, keys);
    return subject.run(at_tokens(inputs, tokens), pass);
  };
  for (const Extra& extra : extras(subject, kTokens)) {
    // A stack may give rows of some tokens at once, of all when they come one by one.
    const Subject::Output parallel = fed(all, all, extra, nullptr);
    const Tensor compared = ranks.index_select(0, parallel.tokens);
    // Prefill, then pieces of `step` tokens.
    const std::pair<int64_t, int64_t> plans[] = {{0, 1},  {1, 1}, {7, 1},   {64, 1},
                                                 {65, 1}, {3, 5}, {32, 32}, {70, 1}};
    for (const auto& [prefill, step] : plans) {
      Record state;
      Tensors outs;
      const auto feed = [&](int64_t from, int64_t to) {
        outs.push_back(
            fed(order.slice(0, from, to), order.slice(0, 0, to), extra, &state).x);
      };
      if (prefill > 0) feed(0, prefill);
      for (int64_t at = prefill; at < kTokens; at += step)
        feed(at, std::min(at + step, kTokens));
      const double error =
          relative_error(at_tokens(torch::cat(outs, -2), compared), parallel.x);
      if (!(error <= kRounding))
        breaches.add("prefill of ", prefill, " and steps of ", step, " differ by ",
                     error, " from the whole", extra.name);
      const int64_t promised =
          kExamples *
          mechanism.state_size(subject.settings(), subject.sizes(), kTokens);
      if (*extra.name == 0 && state.numel() > promised)
        breaches.add("the state has ", state.numel(), " numbers after ", kTokens,
                     " tokens, promised are ", promised);
    }
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
    if (!saved.run(inputs, first).x.equal(loaded.run(inputs, second).x))
      breaches.add("after saving and loading the outputs differ",
                   causal ? ", causal" : "");
  }
  return breaches.verdict();
}

Verdict keeps_its_memory_growth(const Mechanism& mechanism, torch::Device device) {
  constexpr double kSlack = 1.08;
  const Subject subject(mechanism, {.device = device, .dtype = torch::kFloat});
  Breaches breaches;
  for (const bool causal : forms(mechanism)) {
    // On CUDA the most of some times: LibTorch's thread for gradients may still hold
    // tensors of the time before, which are then not new.
    const int times = device.is_cuda() ? 3 : 1;
    const auto peak = [&](int64_t tokens) {
      int64_t most = 0;
      for (int i = 0; i < times; ++i) {
        const Tensors inputs = subject.inputs(1, tokens);
        const PeakBytes bytes(device);
        subject.run_and_gradients(inputs, pass_of(causal));
        most = std::max(most, bytes.newly());
      }
      return static_cast<double>(most);
    };
    const double once = peak(1024), twice = peak(2048);
    // Without fused kernels scores of all pairs are held, whatever a row claims.
    const double power = has_fused_attention(device)
                             ? mechanism.memory.power
                             : std::max(mechanism.memory.power, 2.0);
    const double allowed = std::pow(2, power) * kSlack;
    if (!(twice <= allowed * once))
      breaches.add("from 1024 to 2048 tokens the peak grows ", twice / once,
                   " times, from ", once, " to ", twice, " bytes; ",
                   mechanism.memory.formula, " allows ", allowed,
                   causal ? ", causal" : "");
  }
  return breaches.verdict();
}

Verdict repeats_bit_for_bit(const Mechanism& mechanism, torch::Device device) {
  Breaches breaches;
  uint64_t other_seed = 0;
  for (const bool causal : forms(mechanism)) {
    const auto results = [&](int threads) {
      // Anew each time: training may change buffers.
      const Subject subject(mechanism, {.device = device, .dtype = torch::kFloat});
      Pass pass = pass_of(causal);
      pass.draw = Draw(/*seed=*/3, /*step=*/4);
      pass.training = true;
      if (mechanism.can.dropout) pass.dropout = 0.25;
      const UseThreads using_threads(threads);
      torch::manual_seed(++other_seed);  // LibTorch's generator is not the pass's
      // Long enough that a BLAS sums in pieces.
      return subject.run_and_gradients(subject.inputs(2, 600), pass);
    };
    const Tensors first = results(1);
    const char* const form = causal ? ", causal" : "";
    if (!same_bits(first, results(1)))
      breaches.add("two runs with one seed differ", form);
    for (const int threads : {2, 3, 5})
      if (!same_bits(first, results(threads)))
        breaches.add("with ", threads, " threads the results are not those with 1",
                     form);
  }
  return breaches.verdict();
}

// Sets the parameters and buffers of `to` to those of `from`, whatever their types.
void copy_tensors(const Subject& from, const Subject& to) {
  const torch::NoGradGuard copying;
  const auto copy = [](const Tensors& sources, Tensors targets) {
    for (size_t i = 0; i < targets.size(); ++i) targets[i].copy_(sources[i]);
  };
  copy(from.module().parameters(), to.module().parameters());
  copy(from.module().buffers(), to.module().buffers());
}

Verdict serves_every_type(const Mechanism& mechanism, torch::Device device) {
  std::vector<torch::Dtype> types = {torch::kDouble, torch::kFloat, torch::kBFloat16};
  if (device.is_cuda()) types.push_back(torch::kHalf);
  Breaches breaches;
  for (const auto type : types) {
    const Subject low(mechanism, {.device = device, .dtype = type, .head_width = 16});
    // The exact results are for the parameters and inputs as rounded.
    const Subject high(mechanism, {.device = device, .head_width = 16});
    copy_tensors(low, high);
    // By result, over all cases: the largest that plain operations make, for one number
    // alone is exact by luck, and the largest but one of the fast form, for where a
    // function has a kink rounding alone may decide a slope; that one less strictly.
    struct Errors {
      double fast = 0, plain = 0, rounding = 0;
      double worst = 0;  // of the fast form
    };
    std::vector<Errors> errors;
    for (const bool causal : forms(mechanism)) {
      for (const int64_t tokens : {65, 100, 129}) {
        const Tensors inputs = low.inputs(2, tokens);
        Tensors exact_inputs;
        for (const auto& input : inputs)
          exact_inputs.push_back(input.to(torch::kDouble));
        const Tensors fast = low.run_and_gradients(inputs, pass_of(causal));
        const Tensors plain = low.reference_and_gradients(inputs, pass_of(causal));
        const Tensors exact =
            high.reference_and_gradients(exact_inputs, pass_of(causal));
        if (fast.size() != plain.size() || plain.size() != exact.size()) {
          breaches.add("the definition has other results in ", type);
          continue;
        }
        errors.resize(fast.size());
        double largest = 0;
        for (const Tensor& tensor : exact) largest = std::max(largest, size_of(tensor));
        for (size_t i = 0; i < fast.size(); ++i) {
          if (fast[i].scalar_type() != type)
            breaches.add("asked for ", type, ", a result is ", fast[i].scalar_type());
          // A pattern chosen in double may be another one; the type's own is the judge.
          const Tensor& judge = mechanism.by_content ? plain[i] : exact[i];
          // What is small because large terms cancel is as inexact as those.
          Errors& all = errors[i];
          const double now = relative_error(fast[i], judge);
          all.fast = std::max(all.fast, std::min(now, all.worst));
          all.worst = std::max(all.worst, now);
          all.plain = std::max(all.plain, relative_error(plain[i], exact[i]));
          all.rounding = std::max(all.rounding, 4 * unit_of(type) * largest /
                                                    (size_of(exact[i]) + kLeastSize));
        }
      }
    }
    for (size_t i = 0; i < errors.size(); ++i) {
      const double by_type = type == torch::kDouble  ? 1e-10
                             : type == torch::kFloat ? 1e-4
                                                     : 0.05;
      const double allowed = mechanism.by_content
                                 ? by_type
                                 : 2 * errors[i].plain + 1e-7 + errors[i].rounding;
      constexpr double kAtAKink = 10;
      if (!(errors[i].fast <= allowed && errors[i].worst <= kAtAKink * allowed))
        breaches.add(i == 0 ? "output" : "a gradient", " in ", type, " on ",
                     device.str(), " is off by ", errors[i].fast, ", and once by ",
                     errors[i].worst, ", allowed are ", allowed, " and once ",
                     kAtAKink * allowed);
    }
  }
  return breaches.verdict();
}

// What a check throws is a breach too.
template <Verdict check(const Mechanism&, torch::Device)>
Verdict caught(const Mechanism& mechanism, torch::Device device) {
  try {
    return check(mechanism, device);
  } catch (const c10::Error& error) {
    return {State::broken,
            std::string("fails with: ") + error.what_without_backtrace()};
  } catch (const std::exception& error) {
    return {State::broken, std::string("fails with: ") + error.what()};
  }
}

constexpr Clause kClauses[] = {
    {0, "meets the pairs it claims", caught<meets_its_pairs>},
    {1, "equals its definition", caught<equals_its_definition>},
    {2, "does not look ahead", caught<does_not_look_ahead>},
    {3, "ignores padding", caught<ignores_padding>},
    {4, "treats examples alone", caught<treats_examples_alone>},
    {5, "decodes step by step", caught<decodes_step_by_step>},
    {6, "survives saving", caught<survives_saving>},
    {7, "keeps its memory growth", caught<keeps_its_memory_growth>},
    {8, "repeats bit for bit", caught<repeats_bit_for_bit>},
    {9, "serves every type", caught<serves_every_type>},
};

}  // namespace

std::span<const Clause> contract() { return kClauses; }

}  // namespace longspan
