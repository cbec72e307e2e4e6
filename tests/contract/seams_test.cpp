// The contract over every seam: small correct mechanisms keep it, and what they get
// wrong is seen.

#include "longspan/attention/dense_reference.h"
#include "longspan/attention/projected.h"
#include "longspan/contract/contract.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

template <class Seam, class Toy>
constexpr Mechanism::Make<Seam> maker() {
  return [](const Settings&, const Sizes& sizes,
            const std::shared_ptr<Shared>&) -> std::shared_ptr<Seam> {
    return std::make_shared<Toy>(sizes);
  };
}

template <class Seam, class Toy>
Mechanism toy(std::string_view name) {
  Mechanism row = catalogue::dense;
  row.name = name;
  row.memory = {"N*E", 1};
  row.can = {};
  row.state_size = nullptr;
  row.full = false;
  row.make = maker<Seam, Toy>();
  return row;
}

void expect_kept(const Mechanism& row, const std::vector<int>& refused = {}) {
  for (const auto& device : devices()) {
    for (const Clause& clause : contract()) {
      const Verdict verdict = clause.check(row, device);
      const bool is_refused =
          std::find(refused.begin(), refused.end(), clause.number) != refused.end();
      EXPECT_EQ(verdict.state,
                is_refused ? Verdict::State::refused : Verdict::State::holds)
          << row.name << " " << clause.title << ": " << verdict.detail;
    }
  }
}

// Dense attention over a context or over itself, with projections of its own.
class ToyMixer final : public Mixer {
 public:
  explicit ToyMixer(const Sizes& sizes) {
    inner_ = register_module(
        "inner", std::make_shared<Projected>(make<Attention>(catalogue::dense, sizes),
                                             sizes, ProjectionOptions{.bias = true}));
  }

 private:
  Tensor run(const Tensor& x, Pass& pass) override { return inner_->forward(x, pass); }
  Tensor define(const Tensor& x, Pass& pass) override {
    return inner_->reference(x, pass);
  }

  std::shared_ptr<Projected> inner_;
};

TEST(ContractOfSeams, IsKeptByAMixer) {
  Mechanism row = toy<Mixer, ToyMixer>("toy_mixer");
  row.can = catalogue::dense.can;
  row.full = true;
  row.memory = catalogue::dense.memory;
  row.state_size = catalogue::dense.state_size;
  expect_kept(row);
}

// Token by token, with an integer buffer that must stay what it is.
class ToyFeedForward final : public FeedForward {
 public:
  explicit ToyFeedForward(const Sizes& sizes) {
    weight_ = register_parameter("weight", torch::ones(sizes.embedding));
    shift_ = register_buffer("shift", torch::full({}, 299, torch::kLong));
  }

 private:
  Tensor run(const Tensor& x, Pass& pass) override { return define(x, pass); }
  Tensor define(const Tensor& x, Pass&) override {
    TORCH_CHECK(shift_.scalar_type() == torch::kLong && shift_.item<int64_t>() == 299);
    return torch::relu(x) * weight_;
  }

  Tensor weight_, shift_;
};

TEST(ContractOfSeams, IsKeptByAFeedForward) {
  expect_kept(toy<FeedForward, ToyFeedForward>("toy_feed_forward"));
}

// Every second token, as the mean with the one before it.
class ToyStack : public Stack {
 public:
  explicit ToyStack(const Sizes&) {}

 protected:
  virtual int64_t other() const { return -1; }

 private:
  Stream run(const Tensor& x, Pass& pass) override { return define(x, pass); }
  Stream define(const Tensor& x, Pass& pass) override {
    const auto tokens = pass.mask.tokens;
    const auto real = tokens.defined() ? x * tokens.unsqueeze(-1) : x;
    const auto mixed = (real + real.roll(-other(), 1)) / 2;
    const auto at = torch::arange(1, x.size(1), 2);
    Stream out{.x = mixed.slice(1, 1, x.size(1), 2), .positions = at};
    if (!tokens.defined()) return out;
    out.tokens = tokens.slice(1, 1, x.size(1), 2);
    out.x = out.x * out.tokens.unsqueeze(-1);
    return out;
  }
};

class ToyStackThatLooksAhead final : public ToyStack {
  using ToyStack::ToyStack;
  int64_t other() const override { return 1; }
};

TEST(ContractOfSeams, IsKeptByAStackThatShortens) {
  Mechanism row = toy<Stack, ToyStack>("toy_stack");
  row.can.causal = Causal::optional;
  expect_kept(row, /*refused=*/{5});
}

TEST(ContractOfSeams, SeesAStackLookAhead) {
  Mechanism row = toy<Stack, ToyStackThatLooksAhead>("toy_stack");
  row.can.causal = Causal::optional;
  EXPECT_EQ(contract()[2].check(row, torch::kCPU).state, Verdict::State::broken);
}

// Each token with the one before it: rows of the last three at once, of all in steps.
class LastRows : public Stack {
 public:
  explicit LastRows(const Sizes&) {}

 protected:
  virtual double forgotten() const { return 0; }

 private:
  Stream run(const Tensor& x, Pass& pass) override {
    if (!pass.state) return define(x, pass);
    const Tensor held = pass.state->get("last");
    const Tensor before = held.defined() ? held : torch::zeros_like(x.slice(1, 0, 1));
    pass.state->set("last", (1 - forgotten()) * x.slice(1, -1));
    return {.x = x + torch::cat({before, x.slice(1, 0, -1)}, 1)};
  }
  Stream define(const Tensor& x, Pass&) override {
    const int64_t count = x.size(1), first = std::max<int64_t>(count - 3, 0);
    const Tensor before = torch::constant_pad_nd(x, {0, 0, 1, 0}).slice(1, 0, count);
    return {.x = (x + before).slice(1, first),
            .positions = torch::arange(first, count)};
  }
};

class LastRowsThatForget final : public LastRows {
  using LastRows::LastRows;
  double forgotten() const override { return 1e-6; }
};

TEST(ContractOfSeams, ComparesStepsWithTheRowsThatAStackGives) {
  Mechanism row = toy<Stack, LastRows>("last_rows");
  row.can = {.causal = Causal::always, .padding = false, .decoding = true};
  row.state_size = [](const Settings&, const Sizes& sizes, int64_t) {
    return sizes.embedding;
  };
  expect_kept(row, /*refused=*/{3});
  row.make = maker<Stack, LastRowsThatForget>();
  EXPECT_EQ(contract()[5].check(row, torch::kCPU).state, Verdict::State::broken);
}

// Leaves padding to the seam.
class IdentityStack final : public Stack {
 public:
  explicit IdentityStack(const Sizes&) {}

 private:
  Stream run(const Tensor& x, Pass& pass) override {
    return {.x = x, .tokens = pass.mask.tokens};
  }
  Stream define(const Tensor& x, Pass& pass) override { return run(x, pass); }
};

TEST(ContractOfSeams, LetsAStackLeavePaddingToTheSeam) {
  const Verdict verdict =
      contract()[3].check(toy<Stack, IdentityStack>("identity"), torch::kCPU);
  EXPECT_EQ(verdict.state, Verdict::State::holds) << verdict.detail;
}

TEST(ContractOfSeams, AsksForTheSizeOfTheState) {
  Mechanism row = catalogue::dense;
  row.state_size = nullptr;
  EXPECT_EQ(contract()[5].check(row, torch::kCPU).detail,
            "claims decoding but its row has no state_size");
}

// Values reversed: causal from the last token to the first.
class Backwards final : public Attention {
 public:
  explicit Backwards(const Sizes&) {}

 private:
  Tensor run(const Tensor& q, const Tensor& k, const Tensor& v, Pass& pass) override {
    return define(q, k, v, pass);
  }
  Tensor define(const Tensor&, const Tensor&, const Tensor& v, Pass& pass) override {
    const auto tokens = pass.mask.tokens;
    const auto real = tokens.defined() ? v * tokens.unsqueeze(1).unsqueeze(-1) : v;
    return real + torch::constant_pad_nd(real.slice(2, 1), {0, 0, 0, 1});
  }
};

TEST(ContractOfSeams, FollowsTheOrderOfTheRow) {
  Mechanism row = toy<Attention, Backwards>("backwards");
  row.can.causal = Causal::always;
  row.projections = Projections::v;
  EXPECT_EQ(contract()[2].check(row, torch::kCPU).state, Verdict::State::broken);
  row.order = "from the last token to the first";
  row.tokens_in_order = [](const Settings&, int64_t tokens) {
    std::vector<int64_t> order;
    for (int64_t i = tokens; i-- > 0;) order.push_back(i);
    return order;
  };
  expect_kept(row, /*refused=*/{5});
}

// A second stream that is read and written, and something kept from batch to batch.
class WithSideAndCarry : public Mixer {
 public:
  explicit WithSideAndCarry(const Sizes&) {}

 protected:
  Tensor run(const Tensor& x, Pass& pass) override { return define(x, pass); }
  Tensor define(const Tensor& x, Pass& pass) override {
    const auto tokens = pass.mask.tokens;
    const auto real = tokens.defined() ? x * tokens.unsqueeze(-1) : x;
    const Tensor last = pass.carry->get("last");
    pass.carry->set("last", real.detach().sum(1));
    const auto out = real + pass.side.x.mean(1, true);
    pass.side.x = pass.side.x + real.sum(1, true);
    return last.defined() ? out + last.unsqueeze(1) : out;
  }
};

class ForgetsToWriteItsSide final : public WithSideAndCarry {
  using WithSideAndCarry::WithSideAndCarry;
  Tensor run(const Tensor& x, Pass& pass) override {
    const Tensor before = pass.side.x;
    const Tensor out = define(x, pass);
    pass.side.x = before + 0 * pass.side.x;
    return out;
  }
};

TEST(ContractOfSeams, GivesAndComparesSideAndCarry) {
  Mechanism row = toy<Mixer, WithSideAndCarry>("side_and_carry");
  row.can.side = true;
  row.can.carry = Carry::per_example;
  for (const int clause : {1, 3, 4, 6, 8, 9}) {
    const Verdict verdict = contract()[clause].check(row, torch::kCPU);
    EXPECT_EQ(verdict.state, Verdict::State::holds)
        << contract()[clause].title << ": " << verdict.detail;
  }
  row.make = maker<Mixer, ForgetsToWriteItsSide>();
  EXPECT_EQ(contract()[1].check(row, torch::kCPU).state, Verdict::State::broken);
}

class Throws final : public Mixer {
 public:
  explicit Throws(const Sizes&) {}

 private:
  Tensor run(const Tensor&, Pass&) override { throw std::runtime_error("no luck"); }
  Tensor define(const Tensor& x, Pass&) override { return x; }
};

TEST(ContractOfSeams, ReportsWhatACheckThrows) {
  const Verdict verdict =
      contract()[4].check(toy<Mixer, Throws>("throws"), torch::kCPU);
  EXPECT_EQ(verdict.state, Verdict::State::broken);
  EXPECT_EQ(verdict.detail, "fails with: no luck");
}

// Training changes a buffer; two runs with one seed are equal all the same.
class Learns final : public Mixer {
 public:
  explicit Learns(const Sizes&) { seen_ = register_buffer("seen", torch::zeros({})); }

 private:
  Tensor run(const Tensor& x, Pass& pass) override {
    if (pass.training) seen_.add_(1);
    return x * (1 + seen_.to(x));
  }
  Tensor define(const Tensor& x, Pass& pass) override { return run(x, pass); }

  Tensor seen_;
};

TEST(ContractOfSeams, LetsTrainingChangeBuffers) {
  const Verdict verdict =
      contract()[8].check(toy<Mixer, Learns>("learns"), torch::kCPU);
  EXPECT_EQ(verdict.state, Verdict::State::holds) << verdict.detail;
}

}  // namespace
}  // namespace longspan::testing
