#include "longspan/kernels/sinkhorn.h"

#include <cmath>
#include <limits>

#include "tests/support/any_threads.h"

namespace longspan::testing {
namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();

using Rows = std::vector<std::vector<double>>;

Rows rows_of(const Tensor& x) {
  Rows rows;
  for (int64_t i = 0; i < x.size(0); ++i) {
    const Tensor row = x[i].to(torch::kDouble).contiguous();
    rows.emplace_back(row.data_ptr<double>(), row.data_ptr<double>() + row.numel());
  }
  return rows;
}

double log_sum(double a, double b) {
  const double larger = std::max(a, b), less = std::min(a, b);
  return less == kNothing ? larger : larger + std::log1p(std::exp(less - larger));
}

double log_sum(const std::vector<double>& x) {
  double sum = kNothing;
  for (const double term : x) sum = log_sum(sum, term);
  return sum;
}

// One row after the other, each with all its iterations, over the columns before it.
Tensor row_by_row(const Tensor& logits, int64_t iterations) {
  Rows rows = rows_of(logits);
  const size_t count = rows.size();
  Rows sums(static_cast<size_t>(iterations), std::vector<double>(count, kNothing));
  Tensor weights = torch::zeros_like(logits);
  for (size_t u = 1; u < count; ++u) {
    std::vector<double> a(rows[u].begin(), rows[u].begin() + static_cast<int64_t>(u));
    for (auto& of_columns : sums) {
      const double whole = log_sum(a);
      for (size_t v = 0; v < u; ++v) {
        a[v] -= whole;
        of_columns[v] = log_sum(of_columns[v], a[v]);
        a[v] -= of_columns[v];
      }
    }
    for (size_t v = 0; v < u; ++v)
      weights[static_cast<int64_t>(u)][static_cast<int64_t>(v)] = std::exp(a[v]);
  }
  return weights;
}

// Rows may have pairs with earlier columns only.
Tensor past_only(const Tensor& logits) {
  const Tensor past =
      torch::ones({logits.size(-2), logits.size(-1)}, torch::kBool).tril(-1);
  return logits.masked_fill(past.logical_not(), kNothing);
}

TEST(Balancing, MakesRowsAndColumnsSumToOne) {
  const auto logits = 2 * random_tensors(1, {2, 3, 6, 6})[0];
  const auto ones = torch::ones({2, 3, 6}, torch::kDouble);
  const auto weights = balanced(logits, {.iterations = 200});
  EXPECT_TRUE(close(weights.sum(-1), ones, 1e-9));
  EXPECT_TRUE(close(weights.sum(-2), ones, 1e-12));
  for (const bool rows_last : {false, true}) {
    const auto once = balanced(logits, {.iterations = 1, .rows_last = rows_last});
    EXPECT_TRUE(close(once.sum(rows_last ? -1 : -2), ones, 1e-12));
    EXPECT_FALSE(close(once.sum(rows_last ? -2 : -1), ones, 1e-3));
  }
}

TEST(Balancing, LeavesWhatIsBalanced) {
  const auto order = torch::tensor({2, 0, 3, 1});
  const auto mix = 0.7 * torch::eye(4, torch::kDouble).index_select(0, order) +
                   0.3 * torch::full({4, 4}, 0.25, torch::kDouble);
  EXPECT_TRUE(close(balanced(mix.log()), mix, 1e-14));
  // What is added to a row or a column as a whole is taken away again.
  const auto shifts = random_tensors(2, {4, 1});
  EXPECT_TRUE(
      close(balanced(mix.log() + shifts[0] + shifts[1].t(), {.iterations = 60}), mix));
}

TEST(Balancing, TakesLogitsOfAnySize) {
  const auto order = torch::tensor({2, 0, 3, 1});
  const auto identity = torch::eye(4, torch::kFloat).index_select(0, order);
  for (const double size : {1e3, 1e4, 1e8})
    for (const double shift : {-1e8, 0.0, 1e8})
      EXPECT_TRUE(balanced(identity * size + shift).equal(identity)) << size;
}

TEST(Balancing, HidesRowsAndColumnsWithoutAPair) {
  const auto logits = random_tensors(1, {5, 5})[0];
  auto hidden = logits.clone();
  hidden.select(0, 1).fill_(kNothing);
  hidden.select(1, 1).fill_(kNothing);
  hidden.requires_grad_();
  const auto weights = balanced(hidden);
  weights.pow(2).sum().backward();
  const auto others = torch::tensor({0, 2, 3, 4});
  const auto part = [&](const Tensor& x) {
    return x.index_select(0, others).index_select(1, others);
  };
  EXPECT_TRUE(close(part(weights), balanced(part(logits)), 1e-14));
  EXPECT_TRUE(weights[1].eq(0).all().item<bool>());
  EXPECT_TRUE(weights.select(1, 1).eq(0).all().item<bool>());
  EXPECT_TRUE(hidden.grad().isfinite().all().item<bool>());
  EXPECT_TRUE(hidden.grad()[1].eq(0).all().item<bool>());
  const auto none = torch::full({3, 4}, kNothing);
  EXPECT_TRUE(balanced(none).eq(0).all().item<bool>());
  EXPECT_TRUE(balanced_onward(none, {}).weights.eq(0).all().item<bool>());
}

TEST(Balancing, OnwardIsRowByRow) {
  const auto logits = 3 * random_tensors(1, {9, 9})[0];
  for (const int64_t iterations : {1, 2, 5})
    EXPECT_TRUE(close(
        balanced_onward(past_only(logits), {}, {.iterations = iterations}).weights,
        row_by_row(logits, iterations)))
        << iterations;
}

TEST(Balancing, OnwardSeesNoLaterRow) {
  const auto logits = past_only(random_tensors(1, {2, 9, 9})[0]);
  const auto before = balanced_onward(logits, {}).weights;
  for (int64_t row = 1; row < 9; ++row)
    for (const double factor : {9.0, 1.0 / 9}) {
      auto changed = logits.clone();
      changed.slice(1, row).mul_(factor);
      const auto after = balanced_onward(changed, {}).weights;
      EXPECT_TRUE(after.slice(1, 0, row).equal(before.slice(1, 0, row))) << row;
      EXPECT_FALSE(after.equal(before)) << row;
    }
}

TEST(Balancing, OnwardGoesOnFromWhereItStopped) {
  const auto logits = past_only(random_tensors(1, {2, 9, 9})[0]);
  for (const bool rows_last : {false, true}) {
    const Balancing how{.iterations = 3, .rows_last = rows_last};
    const auto whole = balanced_onward(logits, {}, how);
    BalancedRows some;
    Tensors pieces;
    for (const auto& [from, to] : {std::pair{0, 1}, {1, 2}, {2, 2}, {2, 7}, {7, 9}}) {
      some = balanced_onward(logits.slice(1, from, to), some.columns, how);
      pieces.push_back(some.weights);
    }
    EXPECT_TRUE(close(torch::cat(pieces, 1), whole.weights, 1e-13));
    EXPECT_TRUE(close(some.columns, whole.columns, 1e-13));
  }
}

TEST(Balancing, OnwardEndsWithTheFirstPairOfEveryColumn) {
  const auto logits = past_only(random_tensors(1, {5, 5})[0]);
  const auto weights = balanced_onward(logits, {}, {.iterations = 3000}).weights;
  const auto shifted = torch::eye(5, torch::kDouble).roll(1, 0).tril();
  EXPECT_LT(largest_error(weights, shifted), 0.01);
}

TEST(Balancing, GradientsAgreeWithDifferences) {
  const auto x = random_tensors(2, {2, 5, 5});
  for (const bool rows_last : {false, true}) {
    const Balancing how{.iterations = 3, .rows_last = rows_last};
    EXPECT_TRUE(gradients_agree(
        [&](const Tensors& in) { return Tensors{balanced(in[0], how)}; }, {x[0]}));
    EXPECT_TRUE(gradients_agree(
        [&](const Tensors& in) {
          return Tensors{balanced_onward(past_only(in[0]), {}, how).weights};
        },
        {x[0]}));
    EXPECT_TRUE(gradients_agree(
        [&](const Tensors& in) {
          const auto all =
              balanced_onward(in[0], in[1].slice(1, 0, 3).contiguous(), how);
          return Tensors{all.weights, all.columns};
        },
        {x[0], x[1]}));
  }
}

TEST(Balancing, IsTheSameForAnyNumberOfThreads) {
  const auto x = random_tensors(1, {2, 3, 80, 80}, torch::kFloat)[0];
  const Balancing how{.iterations = 1, .rows_last = true};
  EXPECT_TRUE(same_with_any_threads([&] {
    Tensors results;
    for (const bool onward : {false, true}) {
      const auto logits = x.clone().requires_grad_();
      const auto weights =
          onward ? balanced_onward(logits, {}, how).weights : balanced(logits, how);
      weights.backward(x);
      results.push_back(weights.detach());
      results.push_back(logits.grad());
    }
    return results;
  }));
}

TEST(Balancing, TakesEveryTypeAndNothing) {
  for (const auto type : {torch::kBFloat16, torch::kHalf})
    EXPECT_EQ(balanced(torch::ones({3, 3}, type)).scalar_type(), torch::kFloat);
  EXPECT_EQ(balanced(torch::ones({0, 2, 3, 3})).numel(), 0);
  const auto rows = balanced_onward(torch::ones({2, 1, 0}), {});
  EXPECT_EQ(rows.weights.numel(), 0);
  EXPECT_EQ(rows.columns.sizes(), (std::vector<int64_t>{2, 5, 0}));
}

TEST(Balancing, RefusesWhatDoesNotFit) {
  EXPECT_EQ(refusal([] { balanced(torch::ones(3)); }),
            "balancing: logits must be [.., n, m] of a floating type, got [3]");
  EXPECT_EQ(refusal([] {
              balanced(torch::ones({3, 3}), {.iterations = -1});
            }),
            "balancing: iterations must be 0 or more, got -1");
  EXPECT_EQ(refusal([] {
              balanced_onward(torch::ones({3, 4}), torch::ones({5, 3}));
            }),
            "balancing: columns must be [.., iterations, m] = [5, 4], got [5, 3]");
}

}  // namespace
}  // namespace longspan::testing
