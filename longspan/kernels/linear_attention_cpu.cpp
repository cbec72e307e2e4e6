#include "longspan/kernels/linear_attention_cpu.h"

#include <algorithm>
#include <cstdint>

#include "longspan/kernels/cpu/isa.h"
#include "longspan/kernels/cpu/linear_attention.h"
#include "longspan/kernels/linear_heads.h"
#include "longspan/kernels/total.h"

namespace longspan {
namespace {

using namespace linear_heads;

auto kernels(float) {
  return *cpu::pick(&cpu::portable::linear_of_floats, &cpu::avx2::linear_of_floats,
                    &cpu::avx512::linear_of_floats);
}
auto kernels(double) {
  return *cpu::pick(&cpu::portable::linear_of_doubles, &cpu::avx2::linear_of_doubles,
                    &cpu::avx512::linear_of_doubles);
}
auto gradient_kernels(float) {
  return *cpu::pick(&cpu::portable::linear_gradient_of_floats,
                    &cpu::avx2::linear_gradient_of_floats,
                    &cpu::avx512::linear_gradient_of_floats);
}
auto gradient_kernels(double) {
  return *cpu::pick(&cpu::portable::linear_gradient_of_doubles,
                    &cpu::avx2::linear_gradient_of_doubles,
                    &cpu::avx512::linear_gradient_of_doubles);
}

template <class Number>
LinearForward forward_as(const LinearInputs& inputs, const LinearAttention& options,
                         bool differentiable) {
  const Heads<Number> heads(inputs, options);
  const auto& form = heads.form;
  const auto kernel = kernels(Number{});
  const int64_t scratch_size = kernel.scratch(form);
  const Segments segments(heads.keys, heads.all());
  const int64_t segment_size = segments.size * heads.state_size();
  const States<Number> states(heads, segments.count);
  const auto empty = [&](at::IntArrayRef shape) {
    return torch::empty(shape, heads.dtype);
  };
  const auto [examples, query_heads, queries] =
      std::tuple(heads.examples, heads.heads, heads.queries);

  LinearForward result;
  auto& [attended, kept] = result;
  kept.out = empty({examples, query_heads, queries, form.values});
  attended.lse = empty({examples, query_heads, queries});
  attended.state.sums = empty({examples, query_heads, form.features, form.values + 1});
  if (form.log_features) attended.state.max = empty({examples, query_heads});
  if (differentiable) {
    kept.den = empty({examples, query_heads, queries});
    if (form.log_features) kept.scale = empty({examples, query_heads, queries});
  }
  const int64_t kept_count =
      form.causal && differentiable ? parts_of(queries, cpu::kLinearPiece) : 0;
  const States<Number> kept_states(
      heads, empty({heads.all(), kept_count, form.features, form.values + 1}),
      form.log_features ? empty({heads.all(), kept_count, form.features}) : Tensor());

  const Tensor first_max = inputs.state.max.defined()
                               ? inputs.state.max.to(heads.dtype).contiguous()
                               : Tensor();
  if (inputs.state.sums.defined()) {
    const Tensor sums = inputs.state.sums.to(heads.dtype).contiguous();
    for (int64_t head = 0; head < heads.all(); ++head)
      states.load(states.at(head, 0),
                  sums.data_ptr<Number>() + head * heads.state_size(),
                  form.log_features ? first_max.data_ptr<Number>()[head] : 0);
  }

  const Tensor largest =
      torch::full({heads.all(), segments.count}, kNever, heads.dtype);
  const auto largest_at = [&](int64_t head, int64_t segment) {
    return largest.data_ptr<Number>() + head * segments.count + segment;
  };
  const auto attend = [&](const LinearTokens<Number>& tokens, int64_t head,
                          int64_t first, int64_t segment, Number* scratch) {
    const int64_t row = head * queries + first;
    const auto at = [&](const Tensor& x) {
      return x.defined() ? x.data_ptr<Number>() + row : nullptr;
    };
    cpu::LinearResults<Number> results{
        .out = kept.out.data_ptr<Number>() + row * form.values,
        .lse = at(attended.lse),
        .den = at(kept.den),
        .scale = at(kept.scale)};
    if (form.causal && differentiable)
      results.kept = kept_states.at(head, first / cpu::kLinearPiece);
    kernel.attend(tokens, states.at(head, segment), largest_at(head, segment), results,
                  scratch);
  };
  const auto add_keys = [&](int64_t head, int64_t segment, int64_t to,
                            Number* scratch) {
    kernel.add_keys(some_keys(heads.at(head), segments.first(segment), segments.size),
                    states.at(head, to), largest_at(head, segment), scratch);
  };

  if (form.causal) {
    const int64_t later = segments.count - 1;
    each<Number>(heads.all() * later, segment_size, scratch_size,
                 [&](int64_t i, Number* scratch) {
                   add_keys(i / later, i % later, i % later + 1, scratch);
                 });
    each<Number>(heads.all(), segments.count * heads.state_size(), 0,
                 [&](int64_t head, Number*) {
                   for (int64_t s = 0; s < later; ++s)
                     states.add(states.at(head, s),
                                decay_of(some_keys(heads.at(head), segments.first(s),
                                                   segments.size)),
                                states.at(head, s + 1));
                 });
    each<Number>(heads.all() * segments.count, segment_size, scratch_size,
                 [&](int64_t i, Number* scratch) {
                   const int64_t head = i / segments.count, s = i % segments.count;
                   attend(some(heads.at(head), segments.first(s), segments.size), head,
                          segments.first(s), s, scratch);
                 });
  } else {
    each<Number>(heads.all() * segments.count, segment_size, scratch_size,
                 [&](int64_t i, Number* scratch) {
                   const int64_t s = i % segments.count;
                   add_keys(i / segments.count, s, s, scratch);
                 });
    each<Number>(heads.all(), segments.count * heads.state_size(), 0,
                 [&](int64_t head, Number*) {
                   for (int64_t s = 1; s < segments.count; ++s)
                     states.add(states.at(head, s), 0, states.at(head, 0));
                 });
    const int64_t parts = parts_of(queries, kSegment);
    each<Number>(heads.all() * parts, kSegment * heads.state_size(), scratch_size,
                 [&](int64_t i, Number* scratch) {
                   const int64_t head = i / parts, first = i % parts * kSegment;
                   attend(some_queries(heads.at(head), first, kSegment), head, first, 0,
                          scratch);
                 });
  }

  const int64_t last = form.causal ? segments.count - 1 : 0;
  for (int64_t head = 0; head < heads.all(); ++head) {
    Number max = 0;
    if (form.log_features) {
      double left = first_max.defined() ? first_max.data_ptr<Number>()[head] : kNever;
      for (int64_t s = 0; s < segments.count; ++s)
        left = std::max<double>(
            left +
                decay_of(some_keys(heads.at(head), segments.first(s), segments.size)),
            *largest_at(head, s));
      max = static_cast<Number>(states.in_range(states.at(head, last), left));
      attended.state.max.data_ptr<Number>()[head] = max;
    }
    states.store(states.at(head, last),
                 attended.state.sums.data_ptr<Number>() + head * heads.state_size(),
                 finite_or_0(max));
  }
  attended.out = kept.out.to(inputs.v.scalar_type());
  const States<Number>& used = form.causal ? kept_states : states;
  const auto kept_part = [&](const Tensor& x) {
    if (!differentiable || !x.defined()) return Tensor();
    return form.causal ? x : x.slice(1, 0, 1).contiguous();
  };
  kept.sums = kept_part(used.sums());
  kept.peaks = kept_part(used.peaks());
  return result;
}

template <class Number>
LinearInputSlopes backward_as(const LinearInputs& inputs,
                              const LinearAttention& options, const LinearKept& kept,
                              const Tensor& max, const LinearResultSlopes& slopes,
                              const LinearWanted& wanted) {
  const Heads<Number> heads(inputs, options);
  const auto& form = heads.form;
  const auto kernel = gradient_kernels(Number{});
  const int64_t scratch_size = kernel.scratch(form);
  // One task has all heads that share keys.
  const int64_t tasks = heads.examples * heads.key_heads;
  const Segments segments(heads.queries, tasks);
  const int64_t segment_size = segments.size * heads.state_size();
  const States<Number> states(heads, kept.sums, kept.peaks);
  const States<Number> after(heads, segments.count);  // slopes of those

  const auto dense = [&](const Tensor& x) {
    return x.defined() ? x.to(heads.dtype).contiguous() : Tensor();
  };
  const Tensor dout = dense(slopes.out), dlse = dense(slopes.lse),
               dsums = dense(slopes.sums), last_max = dense(max),
               first_max = dense(inputs.state.max);
  const auto of_head = [&](const Tensor& x, int64_t head) {
    return x.defined() ? x.data_ptr<Number>()[head] : Number{0};
  };
  const int64_t last = form.causal ? segments.count - 1 : 0;
  if (dsums.defined())
    for (int64_t head = 0; head < heads.all(); ++head)
      after.load(after.at(head, last),
                 dsums.data_ptr<Number>() + head * heads.state_size(),
                 -finite_or_0(of_head(last_max, head)));

  const auto zeros = [&](bool is_wanted, const Tensor& like) {
    return is_wanted ? torch::zeros(like.sizes(), heads.dtype) : Tensor();
  };
  const auto per_key = [&](bool is_wanted, torch::Dtype dtype) {
    return is_wanted ? torch::zeros({heads.examples, heads.heads, heads.keys}, dtype)
                     : Tensor();
  };
  LinearInputSlopes result{
      .q = wanted.q ? torch::empty(inputs.q.sizes(), heads.dtype) : Tensor(),
      .k = zeros(wanted.k, inputs.k),
      .v = zeros(wanted.v, inputs.v),
      .log_decay = per_key(wanted.log_decay, torch::kDouble),
      .weights = per_key(wanted.weights, heads.dtype),
      .sums = {}};

  const auto slopes_at = [&](int64_t head, int64_t first) {
    const int64_t row = head * heads.queries + first;
    const auto at = [&](const Tensor& x, int64_t width) -> const Number* {
      return x.defined() ? x.data_ptr<Number>() + row * width : nullptr;
    };
    return cpu::LinearSlopes<Number>{.dout = at(dout, form.values),
                                     .dlse = at(dlse, 1),
                                     .out = at(kept.out, form.values),
                                     .den = at(kept.den, 1),
                                     .scale = at(kept.scale, 1)};
  };
  const auto gradients_at = [&](int64_t head, int64_t query, int64_t key) {
    const int64_t key_head =
        head / heads.heads * heads.key_heads + head % heads.heads / heads.group();
    const int64_t of_query = head * heads.queries + query,
                  of_key = head * heads.keys + key,
                  of_group = key_head * heads.keys + key;
    const auto at = [&](const Tensor& x, int64_t offset) {
      return x.defined() ? x.data_ptr<Number>() + offset : nullptr;
    };
    return cpu::LinearGradients<Number>{
        .dq = at(result.q, of_query * form.features),
        .dk = at(result.k, of_group * form.features),
        .dv = at(result.v, of_group * form.values),
        .dweights = at(result.weights, of_key),
        .dlog_decay = result.log_decay.defined()
                          ? result.log_decay.template data_ptr<double>() + of_key
                          : nullptr};
  };
  const auto add_queries = [&](int64_t head, int64_t segment, int64_t to,
                               Number* scratch) {
    const int64_t first = segments.first(segment);
    const auto tokens = heads.at(head);
    kernel.add_queries(form.causal ? some(tokens, first, segments.size)
                                   : some_queries(tokens, first, segments.size),
                       slopes_at(head, first), after.at(head, to), scratch);
  };
  // work(head) for the heads of a task.
  const auto each_of_group = [&](int64_t task, const auto& work) {
    for (int64_t i = 0; i < heads.group(); ++i) work(task * heads.group() + i);
  };

  if (form.causal) {
    const int64_t later = segments.count - 1;
    each<Number>(heads.all() * later, segment_size, scratch_size,
                 [&](int64_t i, Number* scratch) {
                   add_queries(i / later, i % later + 1, i % later, scratch);
                 });
    each<Number>(heads.all(), segments.count * heads.state_size(), 0,
                 [&](int64_t head, Number*) {
                   for (int64_t s = later; s > 0; --s)
                     after.add(after.at(head, s),
                               decay_of(some_keys(heads.at(head), segments.first(s),
                                                  segments.size)),
                               after.at(head, s - 1));
                 });
    each<Number>(tasks * segments.count, segment_size * heads.group(), scratch_size,
                 [&](int64_t i, Number* scratch) {
                   const int64_t s = i % segments.count, first = segments.first(s);
                   each_of_group(i / segments.count, [&](int64_t head) {
                     kernel.gradients(some(heads.at(head), first, segments.size),
                                      slopes_at(head, first),
                                      states.at(head, first / cpu::kLinearPiece),
                                      after.at(head, s),
                                      gradients_at(head, first, first), scratch);
                   });
                 });
  } else {
    each<Number>(heads.all() * segments.count, segment_size, scratch_size,
                 [&](int64_t i, Number* scratch) {
                   const int64_t s = i % segments.count;
                   add_queries(i / segments.count, s, s, scratch);
                 });
    each<Number>(heads.all(), segments.count * heads.state_size(), 0,
                 [&](int64_t head, Number*) {
                   for (int64_t s = 1; s < segments.count; ++s)
                     after.add(after.at(head, s), 0, after.at(head, 0));
                 });
    const int64_t query_parts = parts_of(heads.queries, kSegment),
                  key_parts = parts_of(heads.keys, kSegment);
    each<Number>(heads.all() * query_parts, kSegment * heads.state_size(), scratch_size,
                 [&](int64_t i, Number* scratch) {
                   const int64_t head = i / query_parts,
                                 first = i % query_parts * kSegment;
                   kernel.query_gradients(some_queries(heads.at(head), first, kSegment),
                                          slopes_at(head, first), states.at(head, 0),
                                          gradients_at(head, first, 0), scratch);
                 });
    each<Number>(tasks * key_parts, kSegment * heads.state_size(), scratch_size,
                 [&](int64_t i, Number* scratch) {
                   const int64_t first = i % key_parts * kSegment;
                   each_of_group(i / key_parts, [&](int64_t head) {
                     kernel.key_gradients(some_keys(heads.at(head), first, kSegment),
                                          after.at(head, 0),
                                          gradients_at(head, 0, first), scratch);
                   });
                 });
  }

  if (wanted.sums) {
    result.sums = torch::empty(inputs.state.sums.sizes(), heads.dtype);
    for (int64_t head = 0; head < heads.all(); ++head)
      after.store(after.at(head, 0),
                  result.sums.data_ptr<Number>() + head * heads.state_size(),
                  -static_cast<double>(of_head(first_max, head)));
  }
  return result;
}

}  // namespace

LinearForward linear_attention_cpu(const LinearInputs& inputs,
                                   const LinearAttention& options,
                                   bool differentiable) {
  const bool in_double = sums_dtype(inputs) == torch::kDouble;
  return (in_double ? forward_as<double> : forward_as<float>)(inputs, options,
                                                              differentiable);
}

LinearInputSlopes linear_attention_gradient_cpu(
    const LinearInputs& inputs, const LinearAttention& options, const LinearKept& kept,
    const Tensor& max, const LinearResultSlopes& slopes, const LinearWanted& wanted) {
  const bool in_double = sums_dtype(inputs) == torch::kDouble;
  LinearInputSlopes result =
      (in_double ? backward_as<double> : backward_as<float>)(inputs, options, kept, max,
                                                             slopes, wanted);
  const auto fit = [](Tensor& slope, const Tensor& input) {
    if (slope.defined())
      slope = longspan::sum_to(slope, input.sizes()).to(input.scalar_type());
  };
  fit(result.q, inputs.q);
  fit(result.k, inputs.k);
  fit(result.v, inputs.v);
  fit(result.log_decay, inputs.log_decay);
  fit(result.weights, inputs.weights);
  fit(result.sums, inputs.state.sums);
  return result;
}

}  // namespace longspan
