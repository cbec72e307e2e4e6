#include "longspan/kernels/attention_cuda.h"

#include <cmath>
#include <limits>
#include <set>

#include "longspan/base/error.h"
#include "longspan/kernels/cuda/launch.h"
#include "longspan/kernels/cuda/tensors.h"
#include "longspan/kernels/device_lists.h"
#include "longspan/kernels/head_views.h"
#include "longspan/kernels/heads.h"
#include "longspan/kernels/hopper_attention.h"
#include "longspan/kernels/result_rows.h"
#include "longspan/kernels/rows.h"
#include "longspan/kernels/torch_attention.h"
#include "longspan/kernels/total.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// An offset [H|1, d] beside vectors [H|1, entries.., d].
Tensor beside_vectors(Tensor offset, const Tensor& vectors) {
  while (offset.dim() < vectors.dim()) offset = offset.unsqueeze(1);
  return offset;
}

// The table with what an offset adds, of which kernels for CUDA know nothing else:
// scale * (q + offset) . vector is scale * q . vector and a number of the entry.
Tensor table_with_offset(const Bias& bias, double scale,
                         const torch::TensorOptions& computing) {
  if (!bias.offset.defined()) return bias.table;
  const Tensor vectors = bias.vectors.to(computing);
  const Tensor products =
      (vectors * beside_vectors(bias.offset.to(computing), vectors)).sum(-1) * scale;
  return bias.table.defined() ? bias.table.to(computing) + products : products;
}

// The tensors of a call as the kernels take them, which live as long as this.
class DeviceCall {
 public:
  DeviceCall(const AttentionCall& call, const AttentionSizes& sizes)
      : heads_(sizes.heads),
        device_(call.queries.q.device()),
        computing_(inner_dtype(call.queries.q)),
        lists_(device_lists(call, sizes)) {
    using cuda::kEnds, cuda::kPositions;
    const auto rows = [&](const Tensor& given, const char* name, int64_t count) {
      return ints(given, name, cuda::rows_within(count));
    };
    const Queries& queries = call.queries;
    given_.type = cuda::cuda_type(queries.q);
    given_.examples = sizes.examples;
    given_.heads = sizes.heads;
    given_.queries = sizes.queries;
    given_.width = sizes.width;
    given_.value_width = sizes.value_width;
    given_.scale = call.scale();
    given_.q = numbers(queries.q, queries.q.scalar_type());
    given_.places = call.query_places();
    given_.rows = rows(queries.rows, "rows of queries", sizes.queries);
    given_.positions = ints(queries.positions, "positions of queries", kPositions);
    given_.first = small(queries.first, "the first position");
    given_.buckets = ints(queries.buckets, "buckets of queries", {});
    require(call.sources.size() <= cuda::kMostSources,
            "block attention: on CUDA there may be ", cuda::kMostSources,
            " sources at most, got ", call.sources.size());
    given_.source_count = static_cast<int32_t>(call.sources.size());
    for (size_t s = 0; s < call.sources.size(); ++s) {
      const Source& source = call.sources[s];
      cuda::Source& to = given_.sources[s];
      to.k = numbers(source.k, source.k.scalar_type());
      to.v = numbers(source.v, source.v.scalar_type());
      to.keys = source.k.size(2);
      to.places = key_places(source);
      to.rows = rows(source.rows, "rows of keys", source.k.size(2));
      to.positions = ints(source.positions, "positions of keys", kPositions);
      to.from = ints(source.from, "from", kEnds);
      to.to = ints(source.to, "to", kEnds);
      to.outside = source.outside;
      to.buckets = ints(source.buckets, "buckets of keys", {});
      to.bias = bias(source.bias);
      to.tiles = lists_->sources[s].tiles;
    }
    if (const double p = call.options.dropout.probability; p > 0)
      given_.dropout = {.key = call.options.dropout.key.bits,
                        .limit = word_limit(p),
                        .factor = 1 / (1 - p)};
  }

  const cuda::Attention& given() const { return given_; }
  const DeviceLists& lists() const { return *lists_; }
  torch::Device device() const { return device_; }
  torch::TensorOptions computing() const {
    return torch::TensorOptions(computing_).device(device_);
  }

  // [.., n, c] whose last axis is dense, in `dtype`.
  cuda::Rows<const void> numbers(const Tensor& x, torch::Dtype dtype) {
    if (!x.defined()) return {};
    return cuda::rows_of<const void>(kept(unit_stride(x.to(device_), dtype)), heads_);
  }

 private:
  const Tensor& kept(Tensor tensor) {
    kept_.push_back(std::move(tensor));
    return kept_.back();
  }

  static int32_t small(int64_t value, const char* name) {
    require(std::abs(value) <= cuda::kFarthestPosition, "block attention: ", name,
            " must be between -2^29 and 2^29, got ", value);
    return static_cast<int32_t>(value);
  }

  cuda::Ints ints(const Tensor& given, const char* name, const cuda::Limits& limits) {
    return cuda::rows_of<const int32_t>(
        kept(cuda::int32_on(device_, given, name, limits)), heads_);
  }

  // [H|1, entries..] as [1, H|1, 1, entries], or [H|1, entries.., width] as
  // [1, H|1, entries, width].
  cuda::Rows<const void> by_head(const Tensor& x, bool has_rows) {
    if (!x.defined()) return {};
    const Tensor dense = x.to(computing_).contiguous();
    return cuda::rows_of<const void>(
        kept(has_rows ? dense.view({1, x.size(0), -1, x.size(-1)})
                      : dense.view({1, x.size(0), 1, -1})),
        heads_);
  }

  cuda::Bias bias(const Bias& given) {
    cuda::Bias to;
    if (given.column.defined())
      to.column = numbers(given.column.unsqueeze(2), computing_);
    to.slopes = by_head(given.slopes, false);
    to.table = by_head(table_with_offset(given, given_.scale, computing()), false);
    to.vectors = by_head(given.vectors, true);
    to.dense = numbers(given.dense, computing_);
    const Tensor& sized = given.table.defined() ? given.table : given.vectors;
    if (sized.defined()) {
      to.rows = static_cast<int32_t>(sized.size(1));
      to.columns = given.width > 0 ? static_cast<int32_t>(sized.size(2)) : 1;
    }
    to.labels = ints(given.labels, "labels",
                     {.least = 0, .most = int64_t{to.rows} * to.columns - 1});
    to.first = small(given.first, "first of a bias");
    to.grid_width = small(given.width, "width of a bias");
    to.first_column = small(given.first_column, "first_column of a bias");
    return to;
  }

  int64_t heads_;
  torch::Device device_;
  torch::Dtype computing_;
  std::shared_ptr<const DeviceLists> lists_;
  cuda::Attention given_;
  std::vector<Tensor> kept_;
};

// Gradients of what queries and keys have been given by, in the order of learned().
class Gradient {
 public:
  Gradient(AttentionCall& call, const AttentionSizes& sizes, const Attended& results,
           const Attended& slopes, const std::vector<bool>& wanted)
      : call_(call),
        sizes_(sizes),
        views_(call, sizes),
        computing_(views_.computing()),
        out_slope_(slopes.out.defined()
                       ? cuda::spaced(slopes.out)
                       : torch::zeros({1, 1, 1, 1}, results.out.options())
                             .expand_as(results.out)),
        lse_slope_(slopes.lse) {
    const std::vector<Tensor*> learned = call.learned();
    for (size_t i = 0; i < learned.size(); ++i)
      if (wanted[i]) wanted_.insert(learned[i]);
    gradients_.resize(call.sources.size());
    const auto type = call.queries.q.scalar_type();
    out_slope_rows_ = views_.numbers(out_slope_, type);
    lse2_ = torch::empty({sizes.examples, sizes.heads, sizes.queries}, computing_);
    delta_ = torch::empty_like(lse2_);
    cuda::GradientRows task{.type = views_.given().type,
                            .examples = sizes.examples,
                            .heads = sizes.heads,
                            .queries = sizes.queries,
                            .value_width = sizes.value_width,
                            .out = views_.numbers(results.out, type),
                            .out_slope = out_slope_rows_,
                            .lse = per_row(results.lse),
                            .lse_slope = per_row(lse_slope_),
                            .lse2 = cuda::row_numbers<void>(lse2_),
                            .delta = cuda::row_numbers<void>(delta_)};
    launch("rows of the attention gradient", sizes.queries,
           [&](cuda::Stream stream) { return cuda::gradient_rows(task, stream); });
  }

  std::vector<Tensor> run() {
    of_queries();
    for (size_t s = 0; s < call_.sources.size(); ++s) of_keys(s);
    std::vector<Tensor> all = {q_};
    for (size_t s = 0; s < call_.sources.size(); ++s) {
      const Source& source = call_.sources[s];
      const Bias& bias = source.bias;
      const OfSource& made = gradients_[s];
      const auto add = [&](const Tensor& given, const Tensor& gradient) {
        if (given.defined()) all.push_back(gradient);
      };
      add(source.k, made.k);
      add(source.v, made.v);
      add(bias.column, made.column);
      add(bias.slopes, made.slopes);
      add(bias.table, made.table);
      add(bias.vectors, made.vectors);
      add(bias.offset, made.offset);
      add(bias.dense, made.dense);
    }
    return all;
  }

 private:
  struct OfSource {
    Tensor k, v, column, slopes, table, vectors, offset, dense;
  };

  bool is_wanted(const Tensor& tensor) const { return wanted_.contains(&tensor); }

  // `count`: of rows or pieces; without any there is nothing to launch.
  template <class Work>
  void launch(const char* name, int64_t count, const Work& work) {
    if (count * sizes_.examples * sizes_.heads > 0)
      cuda::launch(views_.device(), name, work);
  }

  cuda::Rows<const void> per_row(const Tensor& x) {
    return x.defined() ? views_.numbers(x.unsqueeze(3),
                                        c10::typeMetaToScalarType(computing_.dtype()))
                       : cuda::Rows<const void>{};
  }

  // What the sum of |gradient of the scores| of one row is below.
  const Tensor& row_bound() {
    if (row_bound_.defined()) return row_bound_;
    const auto longest = [](const Tensor& x) {
      return x.numel() == 0 ? torch::zeros({}, x.options().dtype(torch::kDouble))
                            : x.to(inner_dtype(x)).norm(2, -1).max().to(torch::kDouble);
    };
    Tensor value = longest(call_.sources[0].v);
    for (const Source& source : call_.sources)
      value = torch::maximum(value, longest(source.v));
    const double factor = views_.given().dropout.factor;
    row_bound_ = 2.1 * factor * value * longest(out_slope_);
    if (lse_slope_.defined() && lse_slope_.numel() > 0)
      row_bound_ = row_bound_ + 1.1 * lse_slope_.abs().max().to(torch::kDouble);
    return row_bound_;
  }

  // Sums in fixed point of gradients of scores times numbers of at most `most`.
  struct Fixed {
    Tensor sums, unit;

    cuda::FixedSums view() const {
      return {.sums = sums.data_ptr<int64_t>(), .unit = unit.data_ptr<double>()};
    }
    Tensor value() const { return sums.to(torch::kDouble) * unit; }
  };

  Fixed fixed(const Tensor& like, const Tensor& most) {
    const auto rows =
        static_cast<double>(sizes_.examples * sizes_.heads * sizes_.queries);
    return {.sums = torch::zeros(like.sizes(), computing_.dtype(torch::kLong)),
            .unit = (row_bound() * most * std::max(1.0, rows))
                        .mul(std::ldexp(1.0, -62))
                        .clamp_min(std::numeric_limits<double>::min())
                        .reshape({1})};
  }

  void of_queries() {
    const auto [examples, heads, queries, width, value_width] = sizes_;
    const int64_t all_heads = examples * heads;
    const auto type = computing_.dtype(call_.queries.q.scalar_type());
    cuda::QueryGradient task{.given = views_.given(), .pieces = views_.lists().rows};
    bool is_any = is_wanted(call_.queries.q);
    if (is_any) {
      q_ = result_rows(examples, heads, queries, width, type);
      if (call_.queries.rows.defined()) q_.zero_();
      task.q = cuda::rows_of<void>(q_, heads);
    }
    const int64_t pieces = task.pieces.count;
    const auto doubles = computing_.dtype(torch::kDouble);
    const Tensor one = torch::ones({}, doubles);
    std::vector<Fixed> tables(call_.sources.size()), vectors(call_.sources.size());
    std::vector<Tensor> slopes(call_.sources.size());
    for (size_t s = 0; s < call_.sources.size(); ++s) {
      const Source& source = call_.sources[s];
      const Bias& bias = source.bias;
      auto& to = task.sources[s];
      if (is_wanted(bias.slopes)) {
        slopes[s] = torch::zeros({pieces, all_heads}, doubles);
        to.slopes = slopes[s].data_ptr<double>();
      }
      const bool of_offset =
          bias.offset.defined() && (is_wanted(bias.offset) || is_wanted(bias.vectors));
      if (is_wanted(bias.table) || of_offset) {
        tables[s] = fixed(table_with_offset(bias, call_.scale(), computing_), one);
        to.table = tables[s].view();
      }
      if (is_wanted(bias.vectors)) {
        const auto most = [](const Tensor& x) {
          return x.numel() == 0 ? torch::zeros({}, x.options().dtype(torch::kDouble))
                                : x.abs().max().to(torch::kDouble);
        };
        vectors[s] =
            fixed(bias.vectors, most(call_.queries.q) * std::abs(call_.scale()));
        to.vectors = vectors[s].view();
      }
      if (is_wanted(bias.dense)) {
        gradients_[s].dense =
            torch::zeros({examples, heads, queries, key_places(source)}, computing_);
        to.dense = cuda::rows_of<void>(gradients_[s].dense, heads);
      }
      is_any = is_any || to.slopes || to.table.sums || to.vectors.sums || to.dense.data;
    }
    if (!is_any) return;
    const Tensor parts =
        torch::empty({all_heads, task.pieces.parts, cuda::kTile, width}, computing_);
    task.part_slopes = parts.data_ptr();
    task.out_slope = out_slope_rows_;
    task.lse2 = cuda::row_numbers<const void>(lse2_);
    task.delta = cuda::row_numbers<const void>(delta_);
    launch("attention gradient of queries", pieces,
           [&](cuda::Stream stream) { return cuda::query_gradient(task, stream); });

    for (size_t s = 0; s < call_.sources.size(); ++s) {
      const Bias& bias = call_.sources[s].bias;
      OfSource& made = gradients_[s];
      if (slopes[s].defined())
        made.slopes = longspan::sum_to(slopes[s].sum(0).view({examples, heads}).sum(0),
                                       bias.slopes.sizes());
      if (vectors[s].sums.defined()) made.vectors = vectors[s].value();
      if (tables[s].sums.defined()) of_table(bias, tables[s].value(), made);
      if (made.dense.defined())
        made.dense = longspan::sum_to(
            cuda::sum_of_places(made.dense.transpose(2, 3), call_.sources[s].rows,
                                call_.sources[s].rows_once, bias.dense.size(3))
                .transpose(2, 3),
            bias.dense.sizes());
    }
  }

  // Of the table with what the offset adds, [H|1, entries..], to all three.
  void of_table(const Bias& bias, const Tensor& slopes, OfSource& made) {
    if (is_wanted(bias.table))
      made.table = longspan::sum_to(slopes, bias.table.sizes());
    if (!bias.offset.defined()) return;
    const Tensor scaled = slopes.unsqueeze(-1) * call_.scale();
    const auto doubled = [&](const Tensor& x) { return x.to(scaled.options()); };
    if (is_wanted(bias.vectors))
      made.vectors =
          made.vectors +
          longspan::sum_to(scaled * beside_vectors(doubled(bias.offset), bias.vectors),
                           bias.vectors.sizes());
    if (is_wanted(bias.offset)) {
      const Tensor of_entries = scaled * doubled(bias.vectors);
      const int64_t width = of_entries.size(-1);
      made.offset =
          longspan::sum_to(of_entries.reshape({of_entries.size(0), -1, width}).sum(1),
                           bias.offset.sizes());
    }
  }

  void of_keys(size_t s) {
    const auto [examples, heads, queries, width, value_width] = sizes_;
    const Source& source = call_.sources[s];
    OfSource& made = gradients_[s];
    const bool k = is_wanted(source.k), v = is_wanted(source.v),
               column = is_wanted(source.bias.column);
    if (!k && !v && !column) return;
    const int64_t places = key_places(source), all_heads = examples * heads;
    const bool is_shared = source.rows.defined() || source.k.size(1) != heads ||
                           source.k.size(0) != examples || source.v.size(0) != examples;
    const auto type = is_shared ? computing_ : computing_.dtype(source.k.scalar_type());
    cuda::KeyGradient task{.given = views_.given(),
                           .source = static_cast<int32_t>(s),
                           .pieces = views_.lists().sources[s].columns,
                           .out_slope = out_slope_rows_,
                           .lse2 = cuda::row_numbers<const void>(lse2_),
                           .delta = cuda::row_numbers<const void>(delta_),
                           .exact = is_shared};
    const auto place = [&](Tensor& to, int64_t columns, torch::TensorOptions options) {
      to = result_rows(examples, heads, places, columns, options);
      return cuda::rows_of<void>(to, heads);
    };
    const auto part = [&](int64_t columns) {
      return torch::empty({all_heads, task.pieces.parts, cuda::kTile, columns},
                          computing_);
    };
    Tensor part_k, part_v, part_column;
    if (k) {
      task.k = place(made.k, width, type);
      part_k = part(width);
      task.part_k = part_k.data_ptr();
    }
    if (v) {
      task.v = place(made.v, value_width, type);
      part_v = part(value_width);
      task.part_v = part_v.data_ptr();
    }
    if (column) {
      task.column = place(made.column, 1, computing_);
      part_column = part(1);
      task.part_column = part_column.data_ptr();
    }
    launch("attention gradient of keys", task.pieces.count,
           [&](cuda::Stream stream) { return cuda::key_gradient(task, stream); });

    if (k) made.k = cuda::of_given(made.k, source.rows, source.rows_once, source.k);
    if (v) made.v = cuda::of_given(made.v, source.rows, source.rows_once, source.v);
    if (column)
      made.column =
          longspan::sum_to(cuda::sum_of_places(made.column, source.rows,
                                               source.rows_once, source.k.size(2))
                               .squeeze(3),
                           source.bias.column.sizes());
  }

  const AttentionCall& call_;
  AttentionSizes sizes_;
  DeviceCall views_;
  torch::TensorOptions computing_;
  Tensor out_slope_, lse_slope_, lse2_, delta_, row_bound_, q_;
  cuda::Rows<const void> out_slope_rows_;
  std::set<const Tensor*> wanted_;
  std::vector<OfSource> gradients_;
};

}  // namespace

Attended attention_cuda(const AttentionCall& call, const AttentionSizes& sizes) {
  if (const auto hopper = HopperCall::of(call, sizes)) return hopper->attend();
  if (torch_attention_serves(call, sizes)) return torch_attention(call);
  const auto [examples, heads, queries, width, value_width] = sizes;
  const DeviceCall views(call, sizes);
  Tensor out =
      result_rows(examples, heads, queries, value_width, call.queries.q.options());
  Tensor lse = torch::empty({examples, heads, queries}, views.computing());
  if (call.queries.rows.defined()) {  // rows without a place
    out.zero_();
    lse.fill_(-kInfinity);
  }
  cuda::Attend task{.given = views.given(), .pieces = views.lists().rows};
  const int64_t parts = examples * heads * task.pieces.parts * cuda::kTile;
  const Tensor part_out = torch::empty({parts, value_width}, views.computing());
  const Tensor part_sums = torch::empty({2, parts}, views.computing());
  task.parts = {.out = part_out.data_ptr(),
                .most = part_sums[0].data_ptr(),
                .sums = part_sums[1].data_ptr()};
  task.out = cuda::rows_of<void>(out, heads);
  task.lse = cuda::row_numbers<void>(lse);
  if (lse.numel() > 0)
    cuda::launch(views.device(), "attention",
                 [&](cuda::Stream stream) { return cuda::attend(task, stream); });
  return {out, lse};
}

std::vector<Tensor> attention_gradient_cuda(AttentionCall call,
                                            const AttentionSizes& sizes,
                                            const Attended& results,
                                            const Attended& slopes,
                                            const std::vector<bool>& wanted) {
  std::vector<Tensor> gradients;
  if (const auto hopper = HopperCall::of(call, sizes))
    gradients = hopper->gradient(results, slopes);
  else if (slopes.out.defined() && !slopes.lse.defined() &&  // it has none for lse
           torch_attention_serves(call, sizes))
    gradients = torch_attention_gradient(call, results, slopes.out);
  else
    gradients = Gradient(call, sizes, results, slopes, wanted).run();
  const std::vector<Tensor*> learned = call.learned();
  for (size_t i = 0; i < gradients.size(); ++i)
    gradients[i] = wanted[i] ? gradients[i].to(learned[i]->scalar_type()) : Tensor();
  return gradients;
}

}  // namespace longspan
