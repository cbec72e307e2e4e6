// Every clause over every row of the catalogue, on every device: a new line in
// mechanisms.def is tested here without a change.

#include "longspan/contract/contract.h"

#include "tests/support/tensors.h"

namespace longspan::testing {
namespace {

using Case = std::tuple<const Mechanism*, const Clause*, torch::Device>;

class Contract : public ::testing::TestWithParam<Case> {};

TEST_P(Contract, IsKept) {
  const auto& [mechanism, clause, device] = GetParam();
  const Verdict verdict = clause->check(*mechanism, device);
  EXPECT_NE(verdict.state, Verdict::State::broken)
      << mechanism->name << " " << clause->title << ": " << verdict.detail;
}

std::vector<const Clause*> clauses() {
  std::vector<const Clause*> all;
  for (const Clause& clause : contract()) all.push_back(&clause);
  return all;
}

std::string label(const ::testing::TestParamInfo<Case>& test) {
  const auto& [mechanism, clause, device] = test.param;
  std::string title(clause->title);
  std::replace(title.begin(), title.end(), ' ', '_');
  return std::string(mechanism->name) + "_" + std::to_string(clause->number) + "_" +
         title + (device.is_cuda() ? "_cuda" : "");
}

INSTANTIATE_TEST_SUITE_P(
    Catalogue, Contract,
    ::testing::Combine(::testing::ValuesIn(mechanisms().begin(), mechanisms().end()),
                       ::testing::ValuesIn(clauses()), ::testing::ValuesIn(devices())),
    label);

TEST(Clauses, AreNumberedFromZeroToNine) {
  ASSERT_EQ(contract().size(), 10u);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(contract()[i].number, i);
}

}  // namespace
}  // namespace longspan::testing
