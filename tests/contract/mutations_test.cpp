// Dense attention with one mistake at a time: that the contract bites, and where.

#include "longspan/attention/dense_reference.h"
#include "longspan/attention/prepare.h"
#include "longspan/contract/contract.h"
#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

// Dense attention; a mutant replaces one of its pieces.
class Mutant : public Attention {
 protected:
  virtual Pattern pattern(const Prepared& prepared) { return prepared.order; }
  virtual void change(Prepared&) {}
  virtual Tensor finish(const Tensor& out, Pass&) { return out; }

  virtual Tensor mix(const Prepared& prepared) {
    return block_attention(prepared.queries, {prepared.source}, prepared.options).out;
  }

  Tensor run(const Tensor& q, const Tensor& k, const Tensor& v, Pass& pass) override {
    Prepared prepared = prepare(q, k, v, pass);
    prepared.source.layout =
        Layout(prepared.query_count(), prepared.key_count(), pattern(prepared));
    change(prepared);
    return finish(mix(prepared), pass);
  }

  // The source cut into `count` sources of neighbouring keys.
  static std::vector<Source> cut(const Prepared& prepared, int64_t count) {
    std::vector<Source> sources;
    const int64_t keys = prepared.key_count();
    for (int64_t i = 0; i < count; ++i) {
      Source part = prepared.source;
      part.rows = torch::arange(keys * i / count, keys * (i + 1) / count);
      const Tensor seen = prepared.source.layout->dense(0);
      const int64_t first = keys * i / count;
      part.layout = Layout(prepared.query_count(), part.rows.size(0),
                           [=, pair = seen.accessor<bool, 2>()](
                               int64_t query, std::vector<Span>& spans) {
                             for (int64_t j = 0; j < seen.size(1) - first; ++j)
                               if (pair[query][first + j]) spans.push_back({j, j + 1});
                           });
      sources.push_back(part);
    }
    return sources;
  }

  Tensor define(const Tensor& q, const Tensor& k, const Tensor& v,
                Pass& pass) override {
    return masked_attention(
        q, k, v, allowed_pairs(pass, q.size(2), k.size(2), q.device()), pass);
  }
};

struct MeetsAWindowOnly : Mutant {
  Pattern pattern(const Prepared& prepared) override {
    return both_of(prepared.order, window_of_keys(3, 3));
  }
};

struct LooksAheadByOne : Mutant {
  Pattern pattern(const Prepared& prepared) override {
    return any_of({prepared.order, window_of_keys(0, 1)});
  }
};

struct TakesTheScaleOfWidth64 : Mutant {
  void change(Prepared& prepared) override { prepared.options.scale = 0.125; }
};

struct ForgetsTheGradientOfKeys : Mutant {
  void change(Prepared& prepared) override {
    prepared.source.k = prepared.source.k.detach();
  }
};

// The gradient of the log-sum-exp is what ties parts together.
struct ForgetsTheGradientOfLse : Mutant {
  Tensor mix(const Prepared& prepared) override {
    std::vector<Attended> parts;
    for (const auto& source : cut(prepared, 2)) {
      parts.push_back(block_attention(prepared.queries, {source}, prepared.options));
      parts.back().lse = parts.back().lse.detach();
    }
    return merge(parts).out;
  }
};

struct IgnoresSegments : Mutant {
  void change(Prepared& prepared) override {
    prepared.queries.buckets = prepared.source.buckets = Tensor();
  }
};

// Key heads 0, 1, 0, 1 for query heads that are grouped 0, 0, 1, 1.
struct GroupsHeadsWrongly : Mutant {
  void change(Prepared& prepared) override {
    const int64_t times = prepared.queries.q.size(1) / prepared.source.k.size(1);
    prepared.source.k = prepared.source.k.repeat({1, times, 1, 1});
    prepared.source.v = prepared.source.v.repeat({1, times, 1, 1});
  }
};

struct IgnoresDropout : Mutant {
  void change(Prepared& prepared) override { prepared.options.dropout = {}; }
};

struct SeesPadding : Mutant {
  void change(Prepared& prepared) override { prepared.source.to = Tensor(); }
};

struct DividesByThePaddedLength : Mutant {
  void change(Prepared& prepared) override {
    prepared.options.scale = 1 / std::log(2.0 + prepared.query_count());
  }
  Tensor define(const Tensor& q, const Tensor& k, const Tensor& v,
                Pass& pass) override {
    return masked_attention(q, k, v,
                            allowed_pairs(pass, q.size(2), k.size(2), q.device()), pass,
                            1 / std::log(2.0 + q.size(2)));
  }
};

struct GivesSevenForNothing : Mutant {
  Tensor mix(const Prepared& prepared) override {
    const auto [out, lse] =
        block_attention(prepared.queries, {prepared.source}, prepared.options);
    return out.masked_fill(lse.isinf().unsqueeze(-1), 7);
  }
  Tensor define(const Tensor& q, const Tensor& k, const Tensor& v,
                Pass& pass) override {
    Prepared prepared = prepare(q, k, v, pass);
    prepared.source.layout =
        Layout(prepared.query_count(), prepared.key_count(), prepared.order);
    return mix(prepared);
  }
};

struct MixesTheBatch : Mutant {
  Tensor finish(const Tensor& out, Pass&) override {
    return out + 1e-6 * (out.mean(0, true) - out);
  }
};

struct ForgetsTheFirstToken : Mutant {
  Tensor finish(const Tensor& out, Pass& pass) override {
    if (pass.state && pass.state->tokens > 20) {
      const Tensor k = pass.state->get("k").clone();
      k.slice(2, 0, 1).zero_();
      pass.state->set("k", k);
    }
    return out;
  }
};

struct IgnoresSegmentsWhileDecoding : Mutant {
  Tensor run(const Tensor& q, const Tensor& k, const Tensor& v, Pass& pass) override {
    if (pass.state) pass.mask.segment = Tensor();
    return Mutant::run(q, k, v, pass);
  }
};

struct KeepsMoreThanPromised : Mutant {
  Tensor finish(const Tensor& out, Pass& pass) override {
    if (pass.state) pass.state->set("out", out);
    return out;
  }
};

struct HasAnUnsavedParameter : Mutant {
  Tensor finish(const Tensor& out, Pass&) override { return out * scale_.to(out); }
  Tensor scale_ = torch::rand({}) + 1;
};

// Partial sums cut by the number of threads: right to the last digits but not beyond.
struct CutsWorkByThreads : Mutant {
  Tensor mix(const Prepared& prepared) override {
    std::vector<Attended> parts;
    for (const auto& source : cut(prepared, at::get_num_threads()))
      parts.push_back(block_attention(prepared.queries, {source}, prepared.options));
    return merge(parts).out;
  }
};

struct DrawsFromTheGlobalGenerator : Mutant {
  Tensor finish(const Tensor& out, Pass& pass) override {
    return pass.training ? out * torch::rand_like(out) : out;
  }
};

struct HoldsAllScores : Mutant {
  Tensor mix(const Prepared& prepared) override {
    return block_attention_reference(prepared.queries, {prepared.source},
                                     prepared.options)
        .out;
  }
};

struct ComputesInBfloat16 : Mutant {
  Tensor mix(const Prepared& prepared) override {
    if (prepared.queries.q.scalar_type() == torch::kDouble)
      return Mutant::mix(prepared);
    Prepared low = prepared;
    for (Tensor* x : {&low.queries.q, &low.source.k, &low.source.v})
      *x = x->to(torch::kBFloat16);
    return Mutant::mix(low).to(prepared.queries.q.scalar_type());
  }
};

template <class M>
Mechanism row_of() {
  Mechanism row = catalogue::dense;
  row.make = Mechanism::Make<Attention>(
      [](const Settings&, const Sizes&,
         const std::shared_ptr<Shared>&) -> std::shared_ptr<Attention> {
        return std::make_shared<M>();
      });
  return row;
}

Mechanism with_sparse_claim() {
  Mechanism row = catalogue::dense;
  row.full = false;
  return row;
}

struct Mutation {
  const char* name;
  Mechanism row;
  int caught_by;
};

const Mutation kMutations[] = {
    {"MeetsAWindowOnly", row_of<MeetsAWindowOnly>(), 0},
    {"ClaimsAPatternAndHasNone", with_sparse_claim(), 0},
    {"TakesTheScaleOfWidth64", row_of<TakesTheScaleOfWidth64>(), 1},
    {"ForgetsTheGradientOfKeys", row_of<ForgetsTheGradientOfKeys>(), 1},
    {"ForgetsTheGradientOfLse", row_of<ForgetsTheGradientOfLse>(), 1},
    {"IgnoresSegments", row_of<IgnoresSegments>(), 1},
    {"GroupsHeadsWrongly", row_of<GroupsHeadsWrongly>(), 1},
    {"IgnoresDropout", row_of<IgnoresDropout>(), 1},
    {"LooksAheadByOne", row_of<LooksAheadByOne>(), 2},
    {"SeesPadding", row_of<SeesPadding>(), 3},
    {"DividesByThePaddedLength", row_of<DividesByThePaddedLength>(), 3},
    {"GivesSevenForNothing", row_of<GivesSevenForNothing>(), 3},
    {"MixesTheBatch", row_of<MixesTheBatch>(), 4},
    {"ForgetsTheFirstToken", row_of<ForgetsTheFirstToken>(), 5},
    {"IgnoresSegmentsWhileDecoding", row_of<IgnoresSegmentsWhileDecoding>(), 5},
    {"KeepsMoreThanPromised", row_of<KeepsMoreThanPromised>(), 5},
    {"HasAnUnsavedParameter", row_of<HasAnUnsavedParameter>(), 6},
    {"HoldsAllScores", row_of<HoldsAllScores>(), 7},
    {"DrawsFromTheGlobalGenerator", row_of<DrawsFromTheGlobalGenerator>(), 8},
    {"ComputesInBfloat16", row_of<ComputesInBfloat16>(), 9},
};

class Mutations : public ::testing::TestWithParam<Mutation> {};

TEST_P(Mutations, AreCaught) {
  const auto& [name, row, caught_by] = GetParam();
  for (const auto& device : devices()) {
    if (caught_by == 7 && !has_fused_attention(device)) continue;
    const Verdict verdict = contract()[caught_by].check(row, device);
    EXPECT_EQ(verdict.state, Verdict::State::broken) << device;
  }
}

INSTANTIATE_TEST_SUITE_P(OfDense, Mutations, ::testing::ValuesIn(kMutations),
                         [](const auto& test) { return test.param.name; });

// Right to the last bits but not beyond: only one clause can see it.
TEST(MutationsOfDense, ThatCutWorkByThreadsAreCaughtByTheirBits) {
  const Mechanism row = row_of<CutsWorkByThreads>();
  for (const int clause : {4, 6})
    EXPECT_EQ(contract()[clause].check(row, torch::kCPU).state, Verdict::State::holds);
  EXPECT_EQ(contract()[8].check(row, torch::kCPU).state, Verdict::State::broken);
}

TEST(MutationsOfDense, ByNoneAreNotCaught) {
  const Mechanism row = row_of<Mutant>();
  for (const Clause& clause : contract()) {
    const Verdict verdict = clause.check(row, torch::kCPU);
    EXPECT_EQ(verdict.state, Verdict::State::holds)
        << clause.title << ": " << verdict.detail;
  }
}

// A row that claims less must refuse it, by the seam's own check.
TEST(Refusals, AreTheSeamsNotTheMechanisms) {
  Mechanism row = catalogue::dense;
  row.can = {.padding = false};
  row.state_size = nullptr;
  for (const int clause : {2, 3, 5})
    EXPECT_EQ(contract()[clause].check(row, torch::kCPU).state, Verdict::State::refused)
        << contract()[clause].title;
  const Verdict verdict = contract()[1].check(row, torch::kCPU);
  EXPECT_EQ(verdict.state, Verdict::State::holds) << verdict.detail;
}

}  // namespace
}  // namespace longspan::testing
