#include "longspan/kernels/sinkhorn.h"

#include <limits>
#include <vector>

#include <torch/csrc/autograd/custom_function.h>

#include "longspan/base/error.h"
#include "longspan/base/shapes.h"
#include "longspan/kernels/rows.h"
#include "longspan/kernels/total.h"

namespace longspan {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kRow = -1, kColumn = -2;  // the axes that a sum goes along
constexpr double kNothing = -std::numeric_limits<double>::infinity();

// What is taken away from logs: nothing where there is nothing to normalise.
Tensor or_zero(const Tensor& log_sums) {
  return log_sums.masked_fill(log_sums.isneginf(), 0);
}

Tensor sum_along(const Tensor& x, int64_t axis) {
  auto shape = x.sizes().vec();
  shape.at(shape.size() + axis) = 1;
  return longspan::sum_to(x, shape);
}

Tensor log_sum_along(const Tensor& x, int64_t axis) {
  const Tensor shift = or_zero(x.amax(axis, /*keepdim=*/true));
  return or_zero(sum_along((x - shift).exp(), axis).log() + shift);
}

// All steps, and what each of them took away.
struct Steps {
  Tensor logs;  // after the last
  std::vector<Tensor> rows = {};
  // Onward [.., n + 1, m], first those of earlier rows, minus infinity before the first
  // pair.
  std::vector<Tensor> columns = {};

  // before: [.., iterations, m], or undefined where columns are summed as a whole.
  Steps(const Tensor& logits, const Tensor& before, const Balancing& how)
      : logs(logits) {
    for (int64_t i = 0; i < how.iterations; ++i) {
      take_rows();
      if (before.defined()) {
        columns.push_back(torch::cat({before.narrow(kColumn, i, 1), logs}, kColumn)
                              .logcumsumexp(kColumn));
        logs = logs - or_zero(columns.back().slice(kColumn, 1));
      } else {
        columns.push_back(log_sum_along(logs, kColumn));
        logs = logs - columns.back();
      }
    }
    if (how.rows_last) take_rows();
  }

 private:
  void take_rows() {
    rows.push_back(log_sum_along(logs, kRow));
    logs = logs - rows.back();
  }
};

// The gradient of logs before a normalisation along `axis`, from that after it.
Tensor through_sums(const Tensor& slope, const Tensor& logs, int64_t axis) {
  return slope - logs.exp() * sum_along(slope, axis);
}

// The gradient of x from that of its cumulative log sums `sums`; positive and negative
// parts apart, for they are summed as logs.
Tensor through_cumulative(const Tensor& slope, const Tensor& x, const Tensor& sums) {
  const auto part = [&](const Tensor& size) {
    const Tensor terms =
        (size.clamp_min(0).log() - sums).masked_fill(sums.isneginf(), kNothing);
    return (x + terms.flip(kColumn).logcumsumexp(kColumn).flip(kColumn)).exp();
  };
  return part(slope) - part(-slope);
}

class BalancedFunction : public torch::autograd::Function<BalancedFunction> {
 public:
  static variable_list forward(AutogradContext* context, const Tensor& logits,
                               const Tensor& before, int64_t iterations,
                               bool rows_last) {
    context->save_for_backward({logits, before});
    context->saved_data["iterations"] = iterations;
    context->saved_data["rows_last"] = rows_last;
    const Tensor earlier = unless_none(before);
    const Steps steps(logits, earlier, {iterations, rows_last});
    if (!earlier.defined()) return {steps.logs.exp()};
    std::vector<Tensor> last;
    for (const Tensor& sums : steps.columns)
      last.push_back(sums.slice(kColumn, logits.size(kColumn)));
    return {steps.logs.exp(),
            last.empty() ? earlier.clone() : torch::cat(last, kColumn)};
  }

  static variable_list backward(AutogradContext* context, variable_list slopes) {
    require(!torch::GradMode::is_enabled(),
            "balancing: it has no second derivatives; plain tensor operations have");
    const auto saved = context->get_saved_variables();
    const int64_t iterations = context->saved_data["iterations"].toInt();
    const bool rows_last = context->saved_data["rows_last"].toBool();
    const Tensor before = unless_none(saved[1]);
    const Steps steps(saved[0], before, {iterations, rows_last});
    Tensor logs = steps.logs, slope = slopes[0] * logs.exp();
    const auto through_rows = [&](const Tensor& taken) {
      slope = through_sums(slope, logs, kRow);
      logs = logs + taken;
    };
    if (rows_last) through_rows(steps.rows.back());
    std::vector<Tensor> of_before;
    for (int64_t i = iterations - 1; i >= 0; --i) {
      const Tensor& sums = steps.columns[static_cast<size_t>(i)];
      if (before.defined()) {
        logs = logs + or_zero(sums.slice(kColumn, 1));
        const Tensor of_last = slopes[1].narrow(kColumn, i, 1);
        const Tensor of_sums =
            torch::cat({torch::zeros_like(of_last), -slope}, kColumn);
        of_sums.narrow(kColumn, logs.size(kColumn), 1).add_(of_last);
        const Tensor of_terms = through_cumulative(
            of_sums, torch::cat({before.narrow(kColumn, i, 1), logs}, kColumn), sums);
        of_before.insert(of_before.begin(), of_terms.slice(kColumn, 0, 1));
        slope = slope + of_terms.slice(kColumn, 1);
      } else {
        slope = through_sums(slope, logs, kColumn);
        logs = logs + sums;
      }
      through_rows(steps.rows[static_cast<size_t>(i)]);
    }
    Tensor of_columns;
    if (before.defined())
      of_columns = of_before.empty() ? slopes[1] : torch::cat(of_before, kColumn);
    return {slope, of_columns, Tensor(), Tensor()};
  }
};

void check(const Tensor& logits, const Balancing& how) {
  require(logits.defined() && logits.dim() >= 2 && logits.is_floating_point(),
          "balancing: logits must be [.., n, m] of a floating type, got ",
          shape(logits));
  require(how.iterations >= 0, "balancing: iterations must be 0 or more, got ",
          how.iterations);
}

}  // namespace

Tensor balanced(const Tensor& logits, const Balancing& how) {
  check(logits, how);
  const Tensor given = logits.to(inner_dtype(logits));
  if (given.numel() == 0) return given;
  return BalancedFunction::apply(given, or_none({}), how.iterations, how.rows_last)[0];
}

BalancedRows balanced_onward(const Tensor& logits, const Tensor& columns,
                             const Balancing& how) {
  check(logits, how);
  const Tensor given = logits.to(inner_dtype(logits));
  auto sizes = given.sizes().vec();
  sizes.at(sizes.size() + kColumn) = how.iterations;
  require(!columns.defined() || columns.sizes() == at::IntArrayRef(sizes),
          "balancing: columns must be [.., iterations, m] = ", at::IntArrayRef(sizes),
          ", got ", shape(columns));
  const Tensor before = columns.defined()
                            ? columns.to(given.scalar_type())
                            : torch::full(sizes, kNothing, given.options());
  if (given.numel() == 0) return {.weights = given, .columns = before};
  const auto all =
      BalancedFunction::apply(given, before, how.iterations, how.rows_last);
  return {.weights = all[0], .columns = all[1]};
}

}  // namespace longspan
