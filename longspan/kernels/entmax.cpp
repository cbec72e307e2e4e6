#include "longspan/kernels/entmax.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "longspan/base/build.h"
#include "longspan/base/error.h"
#include "longspan/base/flops.h"
#include "longspan/base/shapes.h"
#include "longspan/kernels/attention_call.h"
#include "longspan/kernels/entmax_cpu.h"
#include "longspan/kernels/entmax_cuda.h"
#include "longspan/kernels/matmul.h"
#include "longspan/kernels/rows.h"
#include "longspan/kernels/total.h"

namespace longspan {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr char kWho[] = "entmax attention: ";
constexpr double kHidden = -std::numeric_limits<double>::infinity();

// Queries first .. end - 1 of a call; its layout stays whole.
AttentionCall queries_of(AttentionCall call, int64_t first, int64_t end) {
  const auto cut = [&](Tensor& tensor, int64_t axis) {
    if (tensor.defined()) tensor = tensor.slice(axis, first, end);
  };
  cut(call.queries.q, 2);
  cut(call.queries.positions, -1);
  cut(call.queries.buckets, -1);
  call.queries.first += first;
  Bias& bias = call.sources.front().bias;
  cut(bias.labels, 2);
  cut(bias.dense, 2);
  return call;
}

// Integers over rows as int64 [B|1, H|1, n], counted from `first` where there are none.
Tensor over_rows(const Tensor& given, int64_t first, int64_t count,
                 const Tensor& like) {
  const auto options = like.options().dtype(torch::kLong);
  const Tensor rows = given.defined() ? given.to(options)
                                      : torch::arange(first, first + count, options);
  return rows.dim() == 1 ? rows.view({1, 1, -1}) : rows;
}

// Rows first .. end - 1 of a layout, [B|1, H|1, end - first, M] bool.
Tensor shown(const Layout& layout, int64_t first, int64_t end, torch::Device device) {
  constexpr int64_t kTile = Layout::kTile;
  const int64_t keys = layout.keys();
  if (layout.patterns() == 1 && layout.tiles(0).is_all())
    return torch::ones({1, 1, 1, 1}, torch::TensorOptions(device).dtype(torch::kBool));
  if (layout.patterns() == 1 && layout.tiles(0).is_past()) {
    const auto whole = torch::TensorOptions(device).dtype(torch::kLong);
    return (torch::arange(keys, whole) <= torch::arange(first, end, whole).unsqueeze(1))
        .view({1, 1, end - first, keys});
  }
  const Tensor all = torch::zeros({layout.patterns(), end - first, keys}, torch::kBool);
  for (int64_t pattern = 0; pattern < layout.patterns(); ++pattern)
    for (int64_t row = first; row < end; ++row) {
      bool* const to =
          all.data_ptr<bool>() + (pattern * (end - first) + row - first) * keys;
      for (const Run& run : layout.row(pattern, row / kTile)) {
        const int64_t from = run.first * kTile;
        const int64_t until = std::min(from + run.count * kTile, keys);
        for (int64_t key = from; key < until; ++key)
          to[key] = run.mask == Layout::kFull ||
                    (layout.masks(pattern)[run.mask][key % kTile] >> row % kTile & 1);
      }
    }
  const auto& choice = layout.choice();
  return all
      .index_select(0, torch::tensor(std::vector<int64_t>(choice.pattern.begin(),
                                                          choice.pattern.end()),
                                     torch::kLong))
      .view({choice.examples, choice.heads, end - first, keys})
      .to(device);
}

// Whether every query sees every key.
bool sees_all(const AttentionCall& call) {
  const Source& source = call.sources.front();
  return !source.from.defined() && !source.to.defined() &&
         !call.queries.buckets.defined() && !source.buckets.defined() &&
         (!source.layout ||
          (source.layout->patterns() == 1 && source.layout->tiles(0).is_all()));
}

// [B|1, H|1, n, M] bool, for the n queries of a call, the first of which is `first`.
Tensor visible(const AttentionCall& call, int64_t first) {
  const Queries& queries = call.queries;
  const Source& source = call.sources.front();
  const int64_t count = queries.q.size(2), keys = source.k.size(2);
  const auto of_keys = [&](const Tensor& tensor) {
    return over_rows(tensor, 0, keys, queries.q).unsqueeze(2);
  };
  auto seen = torch::ones({1, 1, count, keys}, queries.q.options().dtype(torch::kBool));
  if (source.from.defined() || source.to.defined()) {
    const Tensor at =
        over_rows(queries.positions, queries.first, count, queries.q).unsqueeze(3);
    if (source.from.defined()) seen = seen & (at >= of_keys(source.from));
    if (source.to.defined()) seen = seen & (at < of_keys(source.to));
    if (source.outside) seen = seen.logical_not();
  }
  if (queries.buckets.defined() || source.buckets.defined()) {
    const auto zero =
        torch::zeros({1, 1, 1, 1}, queries.q.options().dtype(torch::kLong));
    const Tensor of_query =
        queries.buckets.defined()
            ? over_rows(queries.buckets, 0, count, queries.q).unsqueeze(3)
            : zero;
    seen = seen &
           (of_query == (source.buckets.defined() ? of_keys(source.buckets) : zero));
  }
  if (source.layout)
    seen = seen & shown(*source.layout, first, first + count, queries.q.device());
  return seen;
}

// The biases of the queries of a call as scores [B|1, H, n, M].
Tensor biases(const AttentionCall& call) {
  const Queries& queries = call.queries;
  const Source& source = call.sources.front();
  return bias_scores(
      source.bias, queries.q, call.scale(),
      over_rows(queries.positions, queries.first, queries.q.size(2), queries.q),
      over_rows(source.positions, 0, source.k.size(2), queries.q));
}

// The learned tensors of a call in the type it is computed in.
AttentionCall in_inner_dtype(AttentionCall call) {
  const auto dtype = inner_dtype(call.queries.q);
  for (Tensor* tensor : call.learned()) *tensor = tensor->to(dtype);
  return call;
}

// Weights by a kernel on CUDA; elsewhere, and where that is wanted, by
// entmax_weights().
class WeightsFunction : public torch::autograd::Function<WeightsFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& scores,
                        const Tensor& alpha) {
    Tensor weights;
    if constexpr (kHasCuda) weights = entmax_rows_cuda(scores, alpha);
    context->save_for_backward({weights, alpha});
    return weights;
  }

  static variable_list backward(AutogradContext* context, variable_list slopes) {
    const variable_list kept = context->get_saved_variables();
    const Tensor &weights = kept[0], &alpha = kept[1];
    variable_list all(2);
    if constexpr (kHasCuda) {
      const auto found = entmax_rows_gradient_cuda(weights, slopes[0], alpha,
                                                   context->needs_input_grad(1));
      all[0] = found.scores;
      if (found.alpha.defined()) all[1] = found.alpha.to(alpha.scalar_type());
    }
    return all;
  }
};

// Scores [B, H, n, M], alpha [H].
Tensor weights_of(const Tensor& scores, const Tensor& alpha, bool plain) {
  const Tensor alphas = alpha.to(scores.scalar_type());
  if (kHasCuda && scores.is_cuda() && !plain)
    return WeightsFunction::apply(scores, alphas);
  return entmax_weights(scores,
                        spread(alphas.view({1, -1, 1, 1}),
                               {scores.size(0), scores.size(1), scores.size(2), 1}));
}

// For a call in the type it is computed in whose queries are those from `first` on.
// `plain`: in plain tensor operations on every device.
Tensor attend(const AttentionCall& call, const Tensor& alpha, int64_t first,
              bool plain = false) {
  const Tensor& q = call.queries.q;
  const Source& source = call.sources.front();
  const int64_t examples = q.size(0), heads = q.size(1), count = q.size(2);
  const auto repeated = [&](const Tensor& x) {
    const int64_t own = x.size(1);
    return spread(x.unsqueeze(2), {examples, own, heads / own, x.size(2), x.size(3)})
        .reshape({examples, heads, x.size(2), x.size(3)});
  };
  Tensor scores =
      longspan::matmul(call.scale() * q, repeated(source.k).transpose(2, 3));
  if (source.bias.defined()) scores = scores + spread(biases(call), scores.sizes());
  if (!sees_all(call))
    scores = scores.masked_fill(visible(call, first).logical_not(), kHidden);
  Tensor weights = weights_of(scores, alpha, plain);
  if (call.options.dropout.probability > 0) {
    const AttentionSizes sizes{examples, heads, count, q.size(3), source.v.size(3)};
    weights =
        weights * dropout_factors(call.options.dropout, over_rows({}, first, count, q),
                                  over_rows({}, 0, source.k.size(2), q),
                                  /*source=*/0, sizes)
                      .to(weights.scalar_type());
  }
  return longspan::matmul(weights, repeated(source.v));
}

Tensor attend_in_chunks(const AttentionCall& call, const Tensor& alpha, int64_t rows) {
  const AttentionCall whole = in_inner_dtype(call);
  std::vector<Tensor> outs;
  const int64_t queries = call.queries.q.size(2);
  for (int64_t first = 0; first < queries || first == 0; first += rows)
    outs.push_back(attend(queries_of(whole, first, std::min(first + rows, queries)),
                          alpha, first));
  return torch::cat(outs, 2);
}

// Sums up gradients of the learned tensors of a call, and of alpha after them.
class Gradients {
 public:
  Gradients(const AttentionCall& call, const std::vector<bool>& wanted)
      : whole_(in_inner_dtype(call)), wanted_(wanted), sums_(wanted.size()) {}

  // Of f(call, alpha), a function of queries first .. end - 1, whose slopes are given.
  template <class Function>
  void add(int64_t first, int64_t end, const Tensor& alpha, const Tensor& slopes,
           const Function& f) {
    const torch::AutoGradMode with_gradients(true);
    AttentionCall part = queries_of(whole_, first, end);
    Tensor part_alpha = alpha;
    std::vector<Tensor*> all = part.learned();
    all.push_back(&part_alpha);
    variable_list leaves;
    std::vector<size_t> places;
    for (size_t i = 0; i < all.size(); ++i) {
      *all[i] = all[i]->detach().requires_grad_(wanted_[i]);
      if (!wanted_[i]) continue;
      leaves.push_back(*all[i]);
      places.push_back(i);
    }
    const Tensor result = f(part, part_alpha);
    if (!result.requires_grad()) return;
    const variable_list some = torch::autograd::grad(
        {result}, leaves, {longspan::sum_to(slopes, result.sizes())},
        /*retain_graph=*/false, /*create_graph=*/false, /*allow_unused=*/true);
    const torch::NoGradGuard adding;
    const Tensor* const dense = &part.sources.front().bias.dense;
    for (size_t i = 0; i < places.size(); ++i) {
      if (!some[i].defined()) continue;
      const bool by_query = places[i] == 0 || all[places[i]] == dense;
      add(sums_[places[i]], some[i], by_query, first, end);
    }
  }

  void add(size_t place, const Tensor& slope) {
    if (wanted_[place]) add(sums_[place], slope, /*by_query=*/false, 0, 0);
  }

  // In the types of `like`; what is not wanted is undefined.
  variable_list sums(const variable_list& like) const {
    variable_list all(wanted_.size());
    for (size_t i = 0; i < all.size(); ++i)
      if (wanted_[i] && sums_[i].defined()) all[i] = sums_[i].to(like[i].scalar_type());
    return all;
  }

 private:
  void add(Tensor& sum, const Tensor& slope, bool by_query, int64_t first,
           int64_t end) const {
    if (!by_query) {
      sum = sum.defined() ? sum + slope : slope;
      return;
    }
    if (!sum.defined()) {
      auto sizes = slope.sizes().vec();
      sizes[2] = whole_.queries.q.size(2);
      sum = torch::zeros(sizes, slope.options());
    }
    sum.slice(2, first, end).add_(slope);
  }

  AttentionCall whole_;
  std::vector<bool> wanted_;
  variable_list sums_;
};

class EntmaxFunction : public torch::autograd::Function<EntmaxFunction> {
 public:
  // `rows`: of a chunk, 0 for the kernels. Autograd sees the learned tensors of the
  // call, and alpha, in the list.
  static Tensor forward(AutogradContext* context, AttentionCall call, int64_t rows,
                        at::TensorList learned) {
    const Tensor& alpha = learned.back();
    EntmaxAttended result;
    if (rows > 0)
      result.out = attend_in_chunks(call, alpha, rows);
    else
      result = entmax_cpu(call, check(call), alpha);
    variable_list kept;
    for (const Tensor* tensor : call.tensors()) kept.push_back(*tensor);
    kept.push_back(alpha);
    kept.push_back(rows > 0 ? torch::empty({0}) : result.levels);
    context->save_for_backward(kept);
    context->saved_data["rows"] = rows;
    context->saved_data["call"] =
        torch::IValue::make_capsule(c10::make_intrusive<KeptCall>(call));
    return result.out.to(call.queries.q.scalar_type());
  }

  static variable_list backward(AutogradContext* context, variable_list slopes) {
    require(!torch::GradMode::is_enabled(), kWho,
            "it has no second derivatives; entmax_attention_reference() has");
    const variable_list kept = context->get_saved_variables();
    const Tensor &alpha = kept[kept.size() - 2], &levels = kept.back();
    const auto capsule = context->saved_data["call"].toCapsule();
    AttentionCall call = static_cast<const KeptCall&>(*capsule).with(kept);
    const int64_t rows = context->saved_data["rows"].toInt();
    variable_list like;
    for (const Tensor* tensor : call.learned()) like.push_back(*tensor);
    like.push_back(alpha);
    std::vector<bool> wanted;
    for (size_t i = 0; i < like.size(); ++i)
      wanted.push_back(context->needs_input_grad(i));
    const Tensor slope = slopes[0].to(inner_dtype(call.queries.q));

    Gradients gradients(call, wanted);
    const int64_t queries = call.queries.q.size(2);
    if (rows > 0) {
      for (int64_t first = 0; first < queries; first += rows) {
        const int64_t end = std::min(first + rows, queries);
        gradients.add(first, end, alpha, slope.slice(2, first, end),
                      [&](const AttentionCall& part, const Tensor& part_alpha) {
                        return attend(part, part_alpha, first);
                      });
      }
    } else {
      add_fused(gradients, call, alpha, levels, slope, wanted);
    }
    variable_list all = gradients.sums(like);
    all.insert(all.begin(), 2, Tensor());  // of the call itself, and of rows
    return all;
  }

 private:
  static void add_fused(Gradients& gradients, const AttentionCall& call,
                        const Tensor& alpha, const Tensor& levels, const Tensor& slope,
                        const std::vector<bool>& wanted) {
    // Biases are learned after q, k and v; through vectors q has slopes as well.
    const bool by_bias =
        std::find(wanted.begin() + 3, wanted.end() - 1, true) != wanted.end() - 1 ||
        (wanted[0] && call.sources.front().bias.vectors.defined());
    TakeScores take_scores;
    if (by_bias)
      take_scores = [&](int64_t first, int64_t end, const Tensor& of_scores) {
        gradients.add(
            first, end, alpha, of_scores,
            [](const AttentionCall& part, const Tensor&) { return biases(part); });
      };
    const EntmaxSlopes all = entmax_gradient_cpu(call, check(call), alpha, levels,
                                                 slope, wanted.back(), take_scores);
    gradients.add(0, all.q);
    gradients.add(1, all.k);
    gradients.add(2, all.v);
    if (all.alpha.defined()) gradients.add(wanted.size() - 1, all.alpha);
  }
};

AttentionCall checked(const Queries& queries, const Source& source, const Tensor& alpha,
                      const BlockAttention& options) {
  AttentionCall call{queries, {source}, options};
  const AttentionSizes sizes = check(call);
  require(!queries.rows.defined() && !source.rows.defined(), kWho,
          "it takes no rows by index; put q, k and v in order");
  require(alpha.defined() && alpha.dim() == 1 && alpha.size(0) == sizes.heads, kWho,
          "alpha must be [H] with H = ", sizes.heads, ", got ", shape(alpha));
  require(alpha.scalar_type() == torch::kFloat || alpha.scalar_type() == torch::kDouble,
          kWho, "alpha must be Float or Double, got ", alpha.scalar_type());
  require(alpha.device() == queries.q.device(), kWho, "alpha must be where q is, on ",
          queries.q.device(), ", got ", alpha.device());
  if (alpha.is_cpu() && alpha.numel() > 0) {
    const double least = alpha.min().item<double>(), most = alpha.max().item<double>();
    require(least >= 1.01 - 1e-6 && most <= 2, kWho,
            "alpha must be between 1.01 and 2, got ", least, " to ", most);
  }
  return call;
}

// Many for few launches, but of all heads no more scores than have room.
int64_t rows_of_chunk(const AttentionCall& call) {
  constexpr int64_t kMost = 512, kBytes = 1 << 30;
  const Tensor& q = call.queries.q;
  const int64_t bytes_of_row = q.size(0) * q.size(1) * call.sources.front().k.size(2) *
                               static_cast<int64_t>(c10::elementSize(inner_dtype(q)));
  return std::clamp<int64_t>(kBytes / std::max<int64_t>(bytes_of_row, 1), 1, kMost);
}

Tensor apply(AttentionCall call, const Tensor& alpha, int64_t rows) {
  const AttentionSizes sizes = check(call);
  const Flops counted(2 * visited_pairs(call.queries, call.sources.front(), sizes) *
                      (sizes.width + sizes.value_width));
  variable_list learned;
  for (const Tensor* tensor : call.learned()) learned.push_back(*tensor);
  learned.push_back(alpha);
  return EntmaxFunction::apply(call, rows, at::TensorList(learned));
}

}  // namespace

Tensor entmax_attention(const Queries& queries, const Source& source,
                        const Tensor& alpha, const BlockAttention& options) {
  const AttentionCall call = checked(queries, source, alpha, options);
  return apply(call, alpha, queries.q.is_cpu() ? 0 : rows_of_chunk(call));
}

Tensor entmax_attention_in_chunks(const Queries& queries, const Source& source,
                                  const Tensor& alpha, const BlockAttention& options,
                                  int64_t rows) {
  require(rows >= 1, kWho, "a chunk must have 1 row or more, got ", rows);
  return apply(checked(queries, source, alpha, options), alpha, rows);
}

Tensor entmax_attention_reference(const Queries& queries, const Source& source,
                                  const Tensor& alpha, const BlockAttention& options) {
  return attend(in_inner_dtype(checked(queries, source, alpha, options)), alpha, 0,
                /*plain=*/true)
      .to(queries.q.scalar_type());
}

Tensor entmax_weights(const Tensor& scores, const Tensor& alpha) {
  constexpr int kHalvings = 6, kSteps = 9;
  if (scores.size(-1) == 0) return scores;
  const Tensor hidden = scores == kHidden;
  const Tensor e = alpha - 1, power = 1 / e;
  const Tensor most = scores.detach().amax(-1, /*keepdim=*/true);
  const Tensor gap =
      e * (most.masked_fill(most == kHidden, 0) - scores).masked_fill(hidden, 0);
  const Tensor one = torch::ones({}, gap.options());
  const auto sum_of = [](const Tensor& x) { return x.sum(-1, /*keepdim=*/true); };
  const auto no_less_than_1 = [&](const Tensor& x) {  // where there is nothing
    return torch::where(x > 0, x, one);
  };
  // (reach - gap)^power, and the same with the power less by 1, for the keys that
  // reach.
  struct Raised {
    Tensor weights, slopes;
  };
  const auto raised = [&](const Tensor& reach) -> Raised {
    const Tensor beyond = (gap >= reach).logical_or(hidden);
    const Tensor u = torch::where(beyond, one, reach - gap);
    const Tensor weights = (u.log() * power).exp().masked_fill(beyond, 0);
    return {weights, weights / u};
  };

  Tensor reach = torch::ones_like(most);
  {
    const torch::NoGradGuard searching;
    for (int i = 1; i <= kHalvings; ++i) {
      const Tensor less = reach - std::ldexp(1.0, -i);
      reach = torch::where(sum_of(raised(less).weights) >= 1, less, reach);
    }
    // Newton's method on the norm of the weights, which is convex: from above.
    for (int i = 0; i < kSteps; ++i) {
      const auto [weights, slopes] = raised(reach);
      const Tensor sum = no_less_than_1(sum_of(weights));
      const Tensor step = (1 - sum.pow(-e)) * sum / no_less_than_1(sum_of(slopes));
      reach = reach - step.clamp_min(0);
    }
  }
  // Once more with gradients: they are those of the reach that makes the sum 1.
  const auto [weights, slopes] = raised(reach);
  const Tensor sum = sum_of(weights);
  const Tensor rate = (power * no_less_than_1(sum_of(slopes))).detach();
  const Tensor last = raised(reach - (sum - 1).masked_fill(sum == 0, 0) / rate).weights;
  return last / no_less_than_1(sum_of(last));
}

}  // namespace longspan
