// Random calls of block_attention against its reference.
//
// LONGSPAN_SEED=n draws other calls; LONGSPAN_CASE=n runs one call of each test, as a
// failure says; LONGSPAN_TELL=1 names every call before it runs, for crashes.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <numeric>
#include <optional>
#include <random>
#include <sstream>

#include "longspan/base/shapes.h"
#include "longspan/base/threads.h"
#include "longspan/kernels/cpu/isa.h"
#include "tests/kernels/attention_call.h"

namespace longspan::testing {
namespace {

constexpr uint64_t kSeed = 20;
constexpr int64_t kCases = 2000;
constexpr int64_t kTile = Layout::kTile;

// Gradients of the results; either may be undefined, but not both.
struct Slopes {
  Tensor out, lse;
};

torch::Dtype precise(torch::Dtype type) {
  return type == torch::kDouble ? torch::kDouble : torch::kFloat;
}

struct Case {
  Call call;
  std::string notes;             // what the tensors of the call do not show
  double score_size = 0;         // of scale * q.k, typically
  std::vector<bool> is_learned;  // in the order of learned()
  Slopes slopes;
  std::vector<Slopes> more_slopes;  // to measure with
};

std::string described(const Case& drawn) {
  Call call = drawn.call;
  std::ostringstream text;
  text << call.queries.q.scalar_type();
  const auto all = named_learned(call);
  for (size_t i = 0; i < all.size(); ++i)
    text << ", " << all[i].name << " " << shape(*all[i].tensor)
         << (drawn.is_learned[i] ? "" : " (not learned)");
  for (const auto& [name, tensor] : named_integers(call))
    text << ", " << name << " " << shape(*tensor);
  text << ", slopes of" << (drawn.slopes.out.defined() ? " out" : "")
       << (drawn.slopes.lse.defined() ? " lse" : "") << drawn.notes;
  return text.str();
}

// Large cases have more than two tiles each way and most of the biases. Plain ones are
// what special kernels of devices take: one source in a short type, of even widths and
// without biases or dropout, and they may be longer.
enum class Kind { kAny, kLarge, kPlain };

class CaseMaker {
 public:
  CaseMaker(Key key, Kind kind)
      : random_(key.bits),
        is_large_(kind == Kind::kLarge),
        is_plain_(kind == Kind::kPlain) {
    torch::manual_seed(key.bits);
  }

  Case make() {
    const int64_t kind = below(100);
    type_ = kind < 80   ? torch::kFloat
            : kind < 88 ? torch::kDouble
            : kind < 96 ? torch::kBFloat16
                        : torch::kHalf;
    if (is_plain_) type_ = kind < 60 ? torch::kBFloat16 : torch::kHalf;
    const int64_t sources = is_plain_ || one_in(2) ? 1
                            : one_in(2)            ? 2
                            : is_large_            ? 1
                                                   : 3;
    // Few rows that see thousands, or thousands that see few.
    const bool is_lopsided = one_in(is_large_ ? 4 : 60), has_many_keys = one_in(2);
    const auto rows = [&](bool is_many) {
      return !is_lopsided ? length() : is_many ? between(500, 2000) : between(1, 8);
    };
    queries_ = rows(!has_many_keys);
    std::vector<int64_t> keys(sources);
    for (auto& count : keys) count = one_in(100) ? 0 : rows(has_many_keys);
    const int64_t pairs = queries_ * std::accumulate(keys.begin(), keys.end(), 0L);
    examples_ = between(1, pairs < 15000 || (is_large_ && one_in(2)) ? 2 : 1);
    heads_ = is_large_ ? between(2, 4) : between(1, pairs < 15000 ? 4 : 2);
    width_ = width();
    value_width_ = one_in(3) ? width_ : width();

    Case drawn;
    Queries& queries = drawn.call.queries;
    const double most = one_in(4) ? 4 : 1.5;
    const double q_size = size(most), k_size = size(most);
    queries.q = normal({examples_, heads_, queries_, width_}, q_size);
    if (one_in(4)) queries.rows = query_rows();
    places_ = queries.rows.defined() ? queries.rows.size(-1) : queries_;
    if (one_in(3)) queries.first = between(-3, 9);
    first_position_ = queries.first;
    if (one_in(4)) {
      first_position_ = between(-5, 5);
      queries.positions =
          rowwise(first_position_, first_position_ + queries_ + 5, queries_);
    }
    buckets_ = !is_plain_ && one_in(5) ? between(1, 4) : 0;
    if (buckets_ > 0 && !one_in(4)) queries.buckets = rowwise(0, buckets_, queries_);
    for (const int64_t count : keys)
      drawn.call.sources.push_back(source(count, k_size));

    double scale = 1 / std::sqrt(static_cast<double>(width_));
    if (one_in(3)) drawn.call.options.scale = scale *= uniform(0.3, 1.5);
    drawn.score_size = q_size * k_size * scale * std::sqrt(width_);
    if (!is_plain_ && one_in(4)) {
      drawn.call.options.dropout = {.probability = uniform(0.1, 0.6),
                                    .key = {random_()}};
      notes_ << ", dropout " << drawn.call.options.dropout.probability;
    }

    const bool learns_all = !one_in(4);
    for (size_t i = 0; i < learned(drawn.call).size(); ++i)
      drawn.is_learned.push_back(learns_all || one_in(2));
    const bool is_one_for_all = one_in(6);
    const auto some_slopes = [&] {
      return slopes(is_one_for_all, drawn.call.options.dropout.probability);
    };
    drawn.slopes = some_slopes();
    for (int i = 0; i < 2; ++i) drawn.more_slopes.push_back(some_slopes());
    if (one_in(6)) (one_in(2) ? drawn.slopes.out : drawn.slopes.lse) = Tensor();
    drawn.notes = notes_.str();
    return drawn;
  }

 private:
  int64_t below(int64_t end) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(end));
  }

  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }

  bool one_in(int64_t count) { return below(count) == 0; }

  int64_t one_or(int64_t count) { return one_in(2) ? 1 : count; }

  double uniform(double low, double high) {
    return std::uniform_real_distribution(low, high)(random_);
  }

  double size(double most) { return std::exp(uniform(std::log(0.3), std::log(most))); }

  // Of queries or keys.
  int64_t length() {
    if (is_large_) return between(2 * kTile + 1, 200);
    if (is_plain_ && one_in(6)) return between(401, 1500);
    if (one_in(80)) return between(201, 400);
    if (one_in(12)) return between(81, 200);
    if (one_in(5)) return kTile * between(1, 2) + between(-1, 1);
    return between(1, 80);
  }

  int64_t width() {
    if (is_plain_) return 8 * between(1, 16);
    constexpr int64_t kWidths[] = {1,  2,  3,  4,  5,  6,  7,  8,
                                   16, 24, 32, 33, 64, 80, 96, 128};
    return kWidths[below(std::size(kWidths))];
  }

  // x in a larger buffer, so that who reads beyond x reads NaN, or integers that are
  // no row, label or position of the call; rows may be apart and start anywhere, and
  // axes be stored in another order.
  Tensor fenced(const Tensor& x) {
    const int64_t axes = x.dim();
    std::vector<int64_t> order(axes);
    std::iota(order.begin(), order.end(), 0);
    if (axes == 4 && one_in(2))
      std::swap(order[1], order[2]);  // [B, N, H, d]
    else if (axes >= 2 && one_in(12))
      std::swap(order[axes - 2], order[axes - 1]);
    const Tensor stored = x.permute(order);
    const bool is_apart = !one_in(4);
    std::vector<int64_t> before(axes, 0), sizes = stored.sizes().vec();
    int64_t numbers = 1;
    for (int64_t axis = 0; axis < axes; ++axis) {
      if (is_apart) {
        const bool is_outer = axis < axes - 2;
        before[axis] = below(is_outer ? 2 : 4);
        sizes[axis] += before[axis] + below(is_outer ? 2 : 4);
      }
      numbers *= sizes[axis];
    }
    const int64_t margin = kTile * (sizes.back() + 1);
    const double fence = x.is_floating_point() ? NAN : one_in(2) ? 1 << 30 : -7;
    Tensor inside = torch::full({margin + numbers + margin}, fence, x.options())
                        .narrow(0, margin, numbers)
                        .view(sizes);
    for (int64_t axis = 0; axis < axes; ++axis)
      inside = inside.narrow(axis, before[axis], stored.size(axis));
    inside.copy_(stored);
    return inside.permute(order);  // an exchange is its own inverse
  }

  Tensor normal(at::IntArrayRef shape, double size, torch::Dtype type) {
    return fenced((torch::randn(shape, precise(type)) * size).to(type));
  }

  Tensor normal(at::IntArrayRef shape, double size) {
    return normal(shape, size, type_);
  }

  torch::Dtype integer_type() { return one_in(2) ? torch::kInt : torch::kLong; }

  // Integers low .. high - 1.
  Tensor rowwise(int64_t low, int64_t high, int64_t count) {
    std::vector<int64_t> shape = {one_or(examples_), one_or(heads_), count};
    if (one_in(3)) shape = {count};
    return fenced(torch::randint(low, high, shape, integer_type()));
  }

  // Some rows have no place, some places no row.
  Tensor query_rows() {
    const int64_t b = one_or(examples_), h = one_or(heads_);
    const int64_t without = one_in(2) ? 0 : below(queries_), empty = below(6);
    Tensors lists;
    for (int64_t list = 0; list < b * h; ++list) {
      const Tensor listed = torch::cat({torch::randperm(queries_).slice(0, without),
                                        torch::full({empty}, -1, torch::kLong)});
      lists.push_back(listed.index_select(0, torch::randperm(listed.size(0))));
    }
    const Tensor rows = torch::stack(lists).view({b, h, -1}).to(integer_type());
    return fenced(b == 1 && h == 1 && one_in(2) ? rows.flatten() : rows);
  }

  // Up to three spans for a query.
  Pattern random_spans(int64_t keys) {
    return [keys, seed = random_()](int64_t query, std::vector<Span>& seen) {
      std::mt19937_64 random(seed + static_cast<uint64_t>(query));
      const auto end = static_cast<uint64_t>(keys + 1);
      for (uint64_t left = random() % 4; left > 0; --left) {
        const auto from = static_cast<int64_t>(random() % end);
        seen.push_back({from, from + 1 + static_cast<int64_t>(random() % 20)});
      }
    };
  }

  Pattern random_keys(int64_t keys) {
    return [keys, seed = random_()](int64_t query, std::vector<Span>& seen) {
      std::mt19937_64 random(seed + static_cast<uint64_t>(query));
      for (int64_t key = 0; key < keys; ++key)
        if (random() % 3 > 0) seen.push_back({key, key + 1});
    };
  }

  Pattern pattern(int64_t keys) {
    const int64_t kind = is_large_ ? 4 : below(8);
    const int64_t reach = one_in(2) ? 1 + below(10) : 1 + below(90);
    switch (kind) {
      case 0: notes_ << " all"; return all_keys();
      case 1: {
        const int64_t shift = one_in(2) ? keys - places_ : between(-9, keys);
        notes_ << " past " << shift;
        return past_keys(shift);
      }
      case 2: {
        const int64_t before = below(reach), after = below(reach),
                      dilation = one_in(2) ? 1 : between(2, 5);
        notes_ << " window " << before << " " << after << " " << dilation;
        return window_of_keys(before, after, dilation);
      }
      case 3: notes_ << " block " << reach; return block_of_keys(reach);
      case 4: {
        notes_ << " window " << reach << " with global keys and queries and spans";
        const auto global_keys = [end = below(5)](int64_t, std::vector<Span>& seen) {
          seen.push_back({0, end});
        };
        const auto global_queries = [end = below(5), keys](int64_t query,
                                                           std::vector<Span>& seen) {
          if (query < end) seen.push_back({0, keys});
        };
        return any_of({window_of_keys(reach, reach), global_keys, global_queries,
                       random_spans(keys)});
      }
      case 5: {
        notes_ << " both of";
        auto first = pattern(keys);
        return both_of(std::move(first), pattern(keys));
      }
      case 6: notes_ << " random spans"; return random_spans(keys);
      default: notes_ << " random keys"; return random_keys(keys);
    }
  }

  Layout layout(int64_t keys) {
    notes_ << ", layout:";
    if (one_in(3)) {
      Layout::Choice choice = {one_or(examples_), one_or(heads_), {}};
      const std::vector<Pattern> patterns = {pattern(keys), pattern(keys),
                                             pattern(keys)};
      for (int64_t i = 0; i < choice.examples * choice.heads; ++i)
        choice.pattern.push_back(static_cast<int32_t>(below(3)));
      return Layout(places_, keys, patterns, choice);
    }
    return Layout(places_, keys, pattern(keys));
  }

  Source source(int64_t keys, double size) {
    std::vector<int64_t> divisors;
    for (int64_t heads = 1; heads <= heads_; ++heads)
      if (heads_ % heads == 0) divisors.push_back(heads);
    const int64_t key_heads = divisors[below(static_cast<int64_t>(divisors.size()))];
    Source s;
    s.k = normal({one_or(examples_), key_heads, keys, width_}, size);
    s.v = normal({one_or(examples_), key_heads, keys, value_width_}, 1);
    if (one_in(4)) s.rows = rowwise(-1, keys, between(1, keys + 10));
    if (is_large_ || !one_in(4))
      s.layout = layout(s.rows.defined() ? s.rows.size(-1) : keys);
    if (one_in(3)) s.positions = rowwise(-5, keys + 5, keys);
    const bool has_from = one_in(4), has_to = one_in(4);
    const auto ends = [&] {
      return rowwise(first_position_ - 3, first_position_ + queries_ + 3, keys);
    };
    if (has_from) s.from = ends();
    if (has_to) s.to = ends();
    s.outside = (has_from || has_to) && one_in(3) && !is_plain_;
    if (s.outside) notes_ << ", outside";
    if (buckets_ > 0 && !one_in(4)) s.buckets = rowwise(0, buckets_, keys);
    if (!is_plain_) s.bias = bias(keys, size);
    return s;
  }

  enum BiasKind { kColumn, kSlopes, kTable, kVectors, kDense, kBiasKinds };

  Bias bias(int64_t keys, double size) {
    bool has[kBiasKinds] = {};
    if (is_large_)
      for (bool& kind : has) kind = !one_in(4);
    else if (one_in(3))
      has[below(kBiasKinds)] = true;
    else if (one_in(2))
      for (bool& kind : has) kind = one_in(2);

    Bias bias;
    const auto type = [&] { return one_in(2) ? type_ : precise(type_); };
    const auto per_pair = [&] {
      return std::vector<int64_t>{one_or(examples_), one_or(heads_), queries_, keys};
    };
    const bool hides = one_in(4);
    const auto some_hidden = [&](const Tensor& tensor) {
      if (hides)
        tensor.masked_fill_(torch::rand_like(tensor, torch::kFloat) < 0.2, kNever);
      return tensor;
    };
    if (hides) notes_ << ", hidden";
    if (has[kColumn])
      bias.column =
          some_hidden(normal({one_or(examples_), one_or(heads_), keys}, 1, type()));
    if (has[kSlopes])
      bias.slopes = normal({one_or(heads_)},
                           4.0 / static_cast<double>(queries_ + keys + 10), type());
    if (has[kDense]) bias.dense = some_hidden(normal(per_pair(), 1, type()));
    if (!has[kTable] && !has[kVectors]) return bias;

    std::vector<int64_t> entries = {
        one_in(3) ? between(1, 4)
                  : between(1, std::min<int64_t>(queries_ + keys, 200))};
    const auto about_half = [&](int64_t count) { return -count / 2 + between(-3, 3); };
    if (one_in(3)) {
      bias.width = between(1, 12);
      entries = {between(1, 9), between(1, 2 * bias.width)};
      bias.first_column = about_half(entries[1]);
    } else if (one_in(4)) {
      bias.labels = fenced(torch::randint(0, entries[0], per_pair(), integer_type()));
    }
    bias.first = about_half(entries[0]);
    notes_ << ", first " << bias.first << " " << bias.first_column << " width "
           << bias.width;
    const auto by_entry = [&] {
      std::vector<int64_t> shape = {one_or(heads_)};
      shape.insert(shape.end(), entries.begin(), entries.end());
      return shape;
    };
    if (has[kTable]) bias.table = some_hidden(normal(by_entry(), 1, type()));
    if (has[kVectors]) {
      auto shape = by_entry();
      shape.push_back(width_);
      bias.vectors = normal(shape, size, type());
      if (one_in(2)) bias.offset = normal({one_or(heads_), width_}, 1, type());
    }
    return bias;
  }

  // That of lse is as large as what comes to a score through out: dv products of a
  // slope and a value, both about 1, by the factor of dropout.
  Slopes slopes(bool is_one_for_all, double probability) {
    std::vector<int64_t> shape = {examples_, heads_, queries_, value_width_};
    const std::vector<int64_t> row = {1, 1, 1, value_width_};
    Slopes drawn;
    drawn.out = is_one_for_all ? normal(row, 1).expand(shape) : normal(shape, 1);
    shape.pop_back();
    const double size = std::sqrt(value_width_) / (1 - probability);
    const auto type = precise(type_);
    drawn.lse =
        is_one_for_all
            ? torch::full({1, 1, 1}, one_in(2) ? size : -size, type).expand(shape)
            : normal(shape, size, type);
    return drawn;
  }

  std::mt19937_64 random_;
  bool is_large_, is_plain_;
  torch::Dtype type_ = torch::kFloat;
  int64_t examples_ = 0, heads_ = 0, queries_ = 0, width_ = 0, value_width_ = 0;
  int64_t places_ = 0, first_position_ = 0, buckets_ = 0;
  std::ostringstream notes_;
};

// What a call gives, and the gradients of its learned tensors for each of the slopes.
struct Results {
  Tensor out, lse;
  std::vector<Tensors> gradients;
};

using Kernel = Attended(const Queries&, const std::vector<Source>&,
                        const BlockAttention&);

Results results(Kernel* kernel, const Call& call, const std::vector<bool>& is_learned,
                const std::vector<Slopes>& all_slopes) {
  Tensors at = values(call), inputs;
  for (size_t i = 0; i < at.size(); ++i) {
    at[i] = at[i].detach();
    if (is_learned[i]) inputs.push_back(at[i].requires_grad_());
  }
  const Call here = with(call, at);
  const auto [out, lse] = kernel(here.queries, here.sources, here.options);
  Results got = {out.detach(), lse.detach(), {}};
  for (const Slopes& slopes : all_slopes) {
    Tensors outputs, of_outputs;
    const auto add = [&](const Tensor& output, const Tensor& slope) {
      if (!slope.defined() || !output.requires_grad()) return;
      outputs.push_back(output);
      of_outputs.push_back(slope.to(output.scalar_type()));
    };
    add(out, slopes.out);
    add(lse, slopes.lse);
    Tensors given(inputs.size());
    if (!outputs.empty())
      given = torch::autograd::grad(outputs, inputs, of_outputs, /*retain_graph=*/true,
                                    /*create_graph=*/false, /*allow_unused=*/true);
    Tensors gradients(at.size());
    for (size_t i = 0, next = 0; i < at.size(); ++i) {
      if (!is_learned[i]) continue;
      gradients[i] = given[next].defined() ? given[next] : torch::zeros_like(at[i]);
      ++next;
    }
    got.gradients.push_back(std::move(gradients));
  }
  return got;
}

Results fused_results(const Case& drawn, const Call& call) {
  return results(block_attention, call, drawn.is_learned, {drawn.slopes});
}

// Frobenius norms; infinities, which must be where `exact` has them, do not count.
double size_of(const Tensor& tensor) {
  const Tensor numbers = tensor.to(torch::kDouble);
  return numbers.masked_fill(numbers.isinf(), 0).norm().item<double>();
}

double largest(const Tensor& tensor) {
  const Tensor finite = tensor.masked_fill(tensor.isinf(), 0).abs();
  return finite.numel() > 0 ? finite.max().item<double>() : 0;
}

double error(const Tensor& got, const Tensor& exact) {
  return (got.to(torch::kDouble) - exact)
      .masked_fill(exact.isinf(), 0)
      .norm()
      .item<double>();
}

// How far results may be from the exact ones.
struct Allowed {
  double out = 0, lse = 0;
  std::vector<double> gradients;
};

// Twice the error of plain operations, and a floor for when they are exact by luck.
//
// Luck is rare in the norm of many numbers, but a gradient may be one number. So sizes
// and errors of gradients are the largest over several slopes, in which gradients are
// linear; as out is linear in v in the way the gradient of v is in the slope of out,
// and the numbers of both are about 1, those of the one stand in for the other's; and
// the fewer numbers there are, the higher is the floor.
//
// The floor is a few roundings. A weight is exp of a difference, whose rounding grows
// with the scores: plain operations subtract the largest score, with which a weight of
// 1 is exact, and a fused gradient lse. In short types, whose kernels may round weights
// and gradients of scores, it is half a step of the type for all but lse.
Allowed allowed_errors(const Case& drawn, const Results& exact, const Results& plain) {
  constexpr double kFloatRounding = 0x1p-24;
  const auto type = drawn.call.queries.q.scalar_type();
  const double rows = static_cast<double>(exact.lse.numel());
  const double score_size = std::max(drawn.score_size, largest(exact.lse));
  const double wide_floor =
      type == torch::kDouble ? 1e-11 : kFloatRounding * (4 + 2 * score_size);
  const double floor = type == torch::kBFloat16 ? 0x1p-8
                       : type == torch::kHalf   ? 0x1p-11
                                                : wide_floor;
  const auto few = [](int64_t numbers) {
    return 1 + 4 / std::sqrt(static_cast<double>(std::max<int64_t>(numbers, 1)));
  };
  Allowed allowed;
  allowed.lse = 2 * error(plain.lse, exact.lse) + wide_floor * std::sqrt(rows);
  Call call = drawn.call;
  const auto all = named_learned(call);
  double values_size = 0, values_error = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    double size = 0, most = 0;
    for (size_t draw = 0; draw < exact.gradients.size(); ++draw) {
      size = std::max(size, size_of(exact.gradients[draw][i]));
      most = std::max(most, error(plain.gradients[draw][i], exact.gradients[draw][i]));
    }
    allowed.gradients.push_back(2 * most + floor * few(all[i].tensor->numel()) * size);
    if (!all[i].name.starts_with("v of")) continue;
    values_size = std::hypot(values_size, size);
    values_error = std::hypot(values_error, most);
  }
  allowed.out = 2 * std::max(error(plain.out, exact.out), values_error) +
                floor * std::max(size_of(exact.out), values_size);
  return allowed;
}

// What is wrong with one result; nothing when it is good.
std::string fault(const std::string& name, const Tensor& got, const Tensor& exact,
                  torch::ScalarType type, double allowed) {
  std::ostringstream text;
  if (got.scalar_type() != type || got.sizes() != exact.sizes())
    text << "  " << name << " is " << got.scalar_type() << " " << got.sizes()
         << " where " << type << " " << exact.sizes() << " is right\n";
  else if (!torch::equal(got.isinf(), exact.isinf()) || got.isnan().any().item<bool>())
    text << "  " << name << " has " << got.isnan().sum().item<int64_t>() << " NaN and "
         << got.isinf().sum().item<int64_t>() << " infinities where "
         << exact.isinf().sum().item<int64_t>() << " infinities are right\n";
  else if (const double off = error(got, exact); !(off <= allowed))
    text << "  " << name << " is off by " << off << " where " << allowed
         << " is allowed and the result has norm " << size_of(exact) << "\n";
  return text.str();
}

std::string faults(const Case& drawn, const Results& got, const Results& exact,
                   const Allowed& allowed) {
  const Tensor& q = drawn.call.queries.q;
  std::string all =
      fault("out", got.out, exact.out, q.scalar_type(), allowed.out) +
      fault("lse", got.lse, exact.lse, precise(q.scalar_type()), allowed.lse);
  const Tensor is_blind = exact.lse == kNever;
  const auto zero = [&](const Tensor& rows) {
    return (rows.abs().sum(3).masked_select(is_blind) == 0).all().item<bool>();
  };
  if (all.empty() && !zero(got.out)) all += "  out is not 0 where lse is -inf\n";
  Call call = drawn.call;
  const auto named = named_learned(call);
  for (size_t i = 0; i < named.size(); ++i)
    if (drawn.is_learned[i])
      all += fault("gradient of " + named[i].name, got.gradients[0][i],
                   exact.gradients[0][i], named[i].tensor->scalar_type(),
                   allowed.gradients[i]);
  if (all.empty() && drawn.is_learned[0] && !zero(got.gradients[0][0]))
    all += "  the gradient of q is not 0 where lse is -inf\n";
  return all;
}

std::vector<cpu::Isa> isas() {
  std::vector<cpu::Isa> all;
  for (const cpu::Isa isa : cpu::kAllIsas)
    if (isa <= cpu::best_isa()) all.push_back(isa);
  return all;
}

// What results of a case are measured by.
struct Standard {
  Results exact;
  Allowed allowed;
};

Standard standard_of(const Case& drawn) {
  Call in_double = drawn.call;
  for (Tensor* tensor : learned(in_double)) *tensor = tensor->to(torch::kDouble);
  std::vector<Slopes> all_slopes = {drawn.slopes};
  all_slopes.insert(all_slopes.end(), drawn.more_slopes.begin(),
                    drawn.more_slopes.end());
  const std::vector<bool> everything(drawn.is_learned.size(), true);
  const Results exact =
      results(block_attention_reference, in_double, everything, all_slopes);
  const Results plain =
      drawn.call.queries.q.scalar_type() == torch::kDouble
          ? exact
          : results(block_attention_reference, drawn.call, everything, all_slopes);
  return {exact, allowed_errors(drawn, exact, plain)};
}

// Compares a case with the reference, under every instruction set.
std::string faults_of_accuracy(const Case& drawn, int64_t) {
  const auto [exact, allowed] = standard_of(drawn);
  std::string all;
  for (const cpu::Isa isa : isas()) {
    const cpu::UseIsa use(isa);
    const auto here = faults(drawn, fused_results(drawn, drawn.call), exact, allowed);
    if (!here.empty()) all += std::string(" with ") + cpu::name(isa) + ":\n" + here;
  }
  return all;
}

// Which of two results have other bits.
std::string changed(const Case& drawn, const Results& a, const Results& b) {
  std::string names;
  if (!torch::equal(a.out, b.out)) names += " out";
  if (!torch::equal(a.lse, b.lse)) names += " lse";
  Call call = drawn.call;
  const auto named = named_learned(call);
  for (size_t i = 0; i < named.size(); ++i)
    if (drawn.is_learned[i] && !torch::equal(a.gradients[0][i], b.gradients[0][i]))
      names += " [gradient of " + named[i].name + "]";
  return names;
}

// Compares the bits of 30 runs with 1, 2 and 3 threads.
std::string faults_of_repetition(const Case& drawn, int64_t number) {
  constexpr int kRuns = 30, kMostThreads = 3;
  const cpu::UseIsa use(isas()[number % isas().size()]);
  const auto run = [&](int threads) {
    const UseThreads use_threads(threads);
    return fused_results(drawn, drawn.call);
  };
  const Results once = run(1);
  for (int i = 1; i < kRuns; ++i) {
    const int threads = 1 + i % kMostThreads;
    const std::string others = changed(drawn, once, run(threads));
    if (!others.empty())
      return "  other bits in run " + std::to_string(i) + ", with " +
             std::to_string(threads) + " threads and " + cpu::name(cpu::isa()) + ":" +
             others + "\n";
  }
  return {};
}

// Compares the bits of the first example when all numbers of the last are NaN.
std::string faults_of_separation(const Case& drawn, int64_t number) {
  const Tensor& q = drawn.call.queries.q;
  if (q.size(0) == 1) return {};
  const cpu::UseIsa use(isas()[number % isas().size()]);
  Call whole = drawn.call;
  for (Tensor* tensor : learned(whole)) *tensor = tensor->clone();
  Call spoilt = whole;
  std::vector<bool> is_by_example;
  for (const auto& [name, tensor] : named_learned(spoilt)) {
    const bool is_by_head = name.starts_with("slopes") || name.starts_with("table") ||
                            name.starts_with("vectors") || name.starts_with("offset");
    is_by_example.push_back(!is_by_head && tensor->size(0) == q.size(0));
    if (!is_by_example.back()) continue;
    *tensor = tensor->clone();
    tensor->select(0, -1).fill_(NAN);
  }
  const Results before = fused_results(drawn, whole),
                after = fused_results(drawn, spoilt);
  std::string all;
  const auto compare = [&](const std::string& name, const Tensor& a, const Tensor& b) {
    if (!torch::equal(a.select(0, 0), b.select(0, 0)))
      all += "  " + name + " of one example changes with another\n";
  };
  compare("out", before.out, after.out);
  compare("lse", before.lse, after.lse);
  const auto named = named_learned(spoilt);
  for (size_t i = 0; i < named.size(); ++i)
    if (drawn.is_learned[i] && is_by_example[i])
      compare("gradient of " + named[i].name, before.gradients[0][i],
              after.gradients[0][i]);
  return all;
}

// The same on a device, each tensor with the fence that is around it.
Case on(torch::Device device, Case drawn) {
  const auto move = [&](Tensor& tensor) {
    if (!tensor.defined()) return;
    const auto all = static_cast<int64_t>(tensor.storage().nbytes()) /
                     static_cast<int64_t>(tensor.element_size());
    tensor = tensor.as_strided({all}, {1}, 0)
                 .to(device)
                 .as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  };
  for (Tensor* tensor : learned(drawn.call)) move(*tensor);
  for (Tensor* tensor : integers(drawn.call)) move(*tensor);
  move(drawn.slopes.out);
  move(drawn.slopes.lse);
  for (Slopes& slopes : drawn.more_slopes) {
    move(slopes.out);
    move(slopes.lse);
  }
  return drawn;
}

// Compares a case on the last device with the reference, and with another run.
std::string faults_there(const Case& drawn, int64_t) {
  const Case there = on(devices().back(), drawn);
  const auto [exact, allowed] = standard_of(there);
  const Results got = fused_results(there, there.call);
  const std::string others = changed(there, got, fused_results(there, there.call));
  return faults(there, got, exact, allowed) +
         (others.empty() ? others : "  other bits in the second run:" + others + "\n");
}

std::string faults_of_separation_there(const Case& drawn, int64_t number) {
  return faults_of_separation(on(devices().back(), drawn), number);
}

std::optional<uint64_t> asked(const char* variable) {
  const char* const words = std::getenv(variable);
  return words ? std::optional(std::strtoull(words, nullptr, 10)) : std::nullopt;
}

void expect_no_faults(int64_t cases, Kind kind,
                      std::string (*faults_of)(const Case&, int64_t number)) {
  constexpr int kMostFailures = 5;
  const uint64_t seed = asked("LONGSPAN_SEED").value_or(kSeed);
  const auto only = asked("LONGSPAN_CASE");
  const auto* const test = ::testing::UnitTest::GetInstance()->current_test_info();
  std::cout << "block attention at random: seed " << seed << ", " << cases
            << " cases\n";
  int failures = 0;
  for (int64_t number = 0; number < cases && failures < kMostFailures; ++number) {
    if (only && *only != static_cast<uint64_t>(number)) continue;
    const Case drawn = CaseMaker(mix(Key{seed}, number), kind).make();
    std::ostringstream who;
    who << "LONGSPAN_SEED=" << seed << " LONGSPAN_CASE=" << number
        << " --gtest_filter=" << test->test_suite_name() << "." << test->name() << "\n "
        << described(drawn) << "\n";
    if (asked("LONGSPAN_TELL")) std::cerr << who.str();
    std::string text;
    try {
      text = faults_of(drawn, number);
    } catch (const std::exception& thrown) {
      text = std::string("  throws ") + thrown.what();
    }
    if (text.empty()) continue;
    ADD_FAILURE() << who.str() << text;
    ++failures;
  }
}

TEST(BlockAttentionAtRandom, IsAsExactAsTheReference) {
  expect_no_faults(kCases, Kind::kAny, faults_of_accuracy);
}

TEST(BlockAttentionAtRandom, RepeatsBitForBitWithAnyNumberOfThreads) {
  expect_no_faults(/*cases=*/24, Kind::kLarge, faults_of_repetition);
}

TEST(BlockAttentionAtRandom, KeepsExamplesApart) {
  expect_no_faults(/*cases=*/300, Kind::kAny, faults_of_separation);
}

class BlockAttentionAtRandomOnCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!devices().back().is_cuda()) GTEST_SKIP() << "there is no CUDA device";
  }
};

TEST_F(BlockAttentionAtRandomOnCuda, IsAsExactAsTheReference) {
  expect_no_faults(kCases / 5, Kind::kAny, faults_there);
}

TEST_F(BlockAttentionAtRandomOnCuda, IsAsExactAsTheReferenceInLargeCalls) {
  expect_no_faults(/*cases=*/30, Kind::kLarge, faults_there);
}

TEST_F(BlockAttentionAtRandomOnCuda, IsAsExactAsTheReferenceInPlainCalls) {
  expect_no_faults(/*cases=*/300, Kind::kPlain, faults_there);
}

TEST_F(BlockAttentionAtRandomOnCuda, KeepsExamplesApart) {
  expect_no_faults(/*cases=*/100, Kind::kAny, faults_of_separation_there);
  expect_no_faults(/*cases=*/100, Kind::kPlain, faults_of_separation_there);
}

}  // namespace
}  // namespace longspan::testing
