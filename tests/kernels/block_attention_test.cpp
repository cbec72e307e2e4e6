#include "longspan/kernels/block_attention.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>

#include "longspan/base/memory.h"
#include "longspan/base/threads.h"
#include "tests/kernels/attention_call.h"
#include "tests/support/tensors.h"

namespace longspan {
namespace {

using testing::attend;
using testing::Call;
using testing::close;
using testing::devices;
using testing::gradients_agree;
using testing::integers;
using testing::kNever;
using testing::learned;
using testing::refusal;
using testing::Tensors;
using testing::values;
using testing::with;
using torch::Tensor;

Call on(torch::Device device, Call call) {
  for (Tensor* tensor : learned(call)) *tensor = tensor->to(device);
  for (Tensor* tensor : integers(call)) *tensor = tensor->to(device);
  return call;
}

// The elements of a tensor; an extent of 1 stands for all.
template <class T>
class Elements {
 public:
  Elements() = default;
  explicit Elements(const Tensor& tensor)
      : tensor_(tensor.detach()
                    .to(torch::CppTypeToScalarType<T>::value)
                    .clone(at::MemoryFormat::Contiguous)),
        data_(tensor_.data_ptr<T>()) {}

  T at(std::initializer_list<int64_t> index) const {
    int64_t offset = 0, axis = 0;
    for (const int64_t i : index) {
      const int64_t size = tensor_.size(axis++);
      offset = offset * size + (size == 1 ? 0 : i);
    }
    return data_[offset];
  }

 private:
  Tensor tensor_;
  const T* data_ = nullptr;
};

using Doubles = Elements<double>;

// Integers over rows, [n] or [B|1, H|1, n], or a rule where they are not given.
class Rowwise {
 public:
  Rowwise(const Tensor& tensor, std::function<int64_t(int64_t)> rule)
      : rule_(std::move(rule)) {
    if (tensor.defined())
      given_.emplace(tensor.dim() == 1 ? tensor.unsqueeze(0).unsqueeze(0) : tensor);
  }

  int64_t at(int64_t b, int64_t h, int64_t row) const {
    return given_ ? given_->at({b, h, row}) : rule_(row);
  }

 private:
  std::optional<Elements<int64_t>> given_;
  std::function<int64_t(int64_t)> rule_;
};

int64_t floor_of(int64_t a, int64_t b) {
  return static_cast<int64_t>(std::floor(static_cast<double>(a) / b));
}

class NaiveBias {
 public:
  explicit NaiveBias(const Bias& bias) : bias_(bias) {
    const auto take = [](Doubles& to, const Tensor& from) {
      if (from.defined()) to = Doubles(from);
    };
    take(column_, bias.column);
    take(slopes_, bias.slopes);
    take(dense_, bias.dense);
    take(offset_, bias.offset);
    if (bias.labels.defined()) labels_ = Elements<int64_t>(bias.labels);
    if (bias.table.defined()) table_ = Doubles(bias.table.flatten(1));
    if (bias.vectors.defined())
      vectors_ = Doubles(bias.vectors.flatten(1, bias.vectors.dim() - 2));
  }

  // Of row i of q, which is `q`, and row j of k, at positions p and r.
  double at(int64_t b, int64_t h, int64_t i, int64_t j, int64_t p, int64_t r,
            const std::vector<double>& q, double scale) const {
    double sum = 0;
    if (bias_.column.defined()) sum += column_.at({b, h, j});
    if (bias_.slopes.defined())
      sum -= slopes_.at({h}) * static_cast<double>(p > r ? p - r : r - p);
    if (bias_.dense.defined()) sum += dense_.at({b, h, i, j});
    if (!bias_.table.defined() && !bias_.vectors.defined()) return sum;
    const int64_t entry = bias_.labels.defined() ? labels_.at({b, h, i, j}) : of(p, r);
    if (bias_.table.defined()) sum += table_.at({h, entry});
    if (bias_.vectors.defined())
      for (size_t c = 0; c < q.size(); ++c) {
        const auto axis = static_cast<int64_t>(c);
        const double moved =
            q[c] + (bias_.offset.defined() ? offset_.at({h, axis}) : 0);
        sum += scale * moved * vectors_.at({h, entry, axis});
      }
    return sum;
  }

 private:
  int64_t of(int64_t p, int64_t r) const {
    const Tensor& sized = bias_.table.defined() ? bias_.table : bias_.vectors;
    const auto end = [&](int64_t axis) { return sized.size(axis) - 1; };
    if (bias_.width == 0)
      return std::min(end(1), std::max<int64_t>(0, p - r - bias_.first));
    const int64_t row_p = floor_of(p, bias_.width), row_r = floor_of(r, bias_.width);
    const int64_t rows = row_p - row_r;
    const int64_t columns = (p - row_p * bias_.width) - (r - row_r * bias_.width);
    return std::min(end(1), std::max<int64_t>(0, rows - bias_.first)) * sized.size(2) +
           std::min(end(2), std::max<int64_t>(0, columns - bias_.first_column));
  }

  Bias bias_;
  Doubles column_, slopes_, dense_, offset_, table_, vectors_;
  Elements<int64_t> labels_;
};

// One key that a query sees.
struct Seen {
  double score, factor;
  int64_t source, row;
};

bool is_shown(const std::optional<Layout>& layout, const std::vector<Tensor>& dense,
              int64_t b, int64_t h, int64_t place, int64_t key_place) {
  if (!layout) return true;
  const Tensor& seen = dense[layout->pattern_of(b, h)];
  return seen.data_ptr<bool>()[place * layout->keys() + key_place];
}

// The formulas of the header, pair by pair, in double.
Attended naive(const Call& call) {
  const auto& [queries, sources, options] = call;
  const int64_t examples = queries.q.size(0), heads = queries.q.size(1),
                rows = queries.q.size(2), width = queries.q.size(3),
                value_width = sources[0].v.size(3);
  const double scale = options.scale ? *options.scale : std::pow(width, -0.5);
  const auto same = [](int64_t row) { return row; };
  const auto zero = [](int64_t) { return 0; };
  const Doubles q(queries.q);
  const Rowwise position(queries.positions,
                         [&](int64_t row) { return queries.first + row; });
  const Rowwise bucket(queries.buckets, zero), row_of(queries.rows, same);

  struct Prepared {
    Doubles k, v;
    Rowwise position, from, to, bucket, row;
    NaiveBias bias;
    int64_t places;
    std::vector<Tensor> dense;
  };
  std::vector<Prepared> prepared;
  for (const Source& s : sources) {
    prepared.push_back(
        {Doubles(s.k),
         Doubles(s.v),
         Rowwise(s.positions, same),
         Rowwise(s.from, [](int64_t) { return std::numeric_limits<int64_t>::min(); }),
         Rowwise(s.to, [](int64_t) { return std::numeric_limits<int64_t>::max(); }),
         Rowwise(s.buckets, zero),
         Rowwise(s.rows, same),
         NaiveBias(s.bias),
         s.rows.defined() ? s.rows.size(-1) : s.k.size(2),
         {}});
    for (int64_t pattern = 0; s.layout && pattern < s.layout->patterns(); ++pattern)
      prepared.back().dense.push_back(s.layout->dense(pattern));
  }

  const auto out = torch::zeros({examples, heads, rows, value_width}, torch::kDouble);
  const auto lse = torch::full({examples, heads, rows}, kNever, torch::kDouble);
  auto out_at = out.accessor<double, 4>();
  auto lse_at = lse.accessor<double, 3>();
  const int64_t places = queries.rows.defined() ? queries.rows.size(-1) : rows;
  for (int64_t b = 0; b < examples; ++b)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t place = 0; place < places; ++place) {
        const int64_t i = row_of.at(b, h, place);
        if (i < 0) continue;
        const int64_t p = position.at(b, h, i);
        std::vector<double> query(width);
        for (int64_t c = 0; c < width; ++c) query[c] = q.at({b, h, i, c});
        std::vector<Seen> row;
        for (size_t n = 0; n < sources.size(); ++n) {
          const Source& source = sources[n];
          const Prepared& s = prepared[n];
          const int64_t group = h / (heads / source.k.size(1));
          for (int64_t key_place = 0; key_place < s.places; ++key_place) {
            const int64_t j = s.row.at(b, h, key_place);
            if (j < 0 || !is_shown(source.layout, s.dense, b, h, place, key_place) ||
                bucket.at(b, h, i) != s.bucket.at(b, h, j))
              continue;
            const bool inside = s.from.at(b, h, j) <= p && p < s.to.at(b, h, j);
            if (inside == source.outside) continue;
            double score = 0;
            for (int64_t c = 0; c < width; ++c)
              score += query[c] * s.k.at({b, group, j, c});
            score = scale * score +
                    s.bias.at(b, h, i, j, p, s.position.at(b, h, j), query, scale);
            const auto words = philox(
                options.dropout.key,
                {static_cast<uint32_t>(j >> 2), static_cast<uint32_t>(i),
                 static_cast<uint32_t>(b * heads + h), static_cast<uint32_t>(n)});
            const double dropped = options.dropout.probability;
            const bool kept = words[j & 3] >= word_limit(dropped);
            row.push_back(
                {score, kept ? 1 / (1 - dropped) : 0, static_cast<int64_t>(n), j});
          }
        }
        double most = kNever, sum = 0;
        for (const Seen& seen : row) most = std::max(most, seen.score);
        if (most == kNever) continue;
        for (const Seen& seen : row) sum += std::exp(seen.score - most);
        lse_at[b][h][i] = most + std::log(sum);
        for (const Seen& seen : row) {
          const double weight = std::exp(seen.score - most) / sum * seen.factor;
          const Prepared& s = prepared[seen.source];
          const int64_t group = h / (heads / sources[seen.source].k.size(1));
          for (int64_t c = 0; c < value_width; ++c)
            out_at[b][h][i][c] += weight * s.v.at({b, group, seen.row, c});
        }
      }
  return {out, lse};
}

constexpr std::string_view kFeatures[] = {
    "many sources", "long",          "wide values",   "grouped heads", "shared keys",
    "query rows",   "key rows",      "layout",        "choice",        "from",
    "to",           "outside",       "query buckets", "key buckets",   "first",
    "positions",    "key positions", "column",        "slopes",        "table",
    "vectors",      "offset",        "grid",          "labels",        "dense",
    "hidden",       "scale",         "dropout"};

using Features = std::set<std::string_view>;

std::string text(const Features& features) {
  std::string joined = "features:";
  for (const auto& name : features) joined += " [" + std::string(name) + "]";
  return joined;
}

// Makes random calls that use the chosen features.
class CallMaker {
 public:
  CallMaker(Features features, uint32_t seed)
      : features_(std::move(features)), random_(seed) {
    torch::manual_seed(seed);
  }

  Call make() {
    const int64_t extra = has("long") ? 64 : 0;
    queries_ = 3 + below(6) + extra;
    width_ = 1 + below(4);
    value_width_ = has("wide values") ? width_ + 1 : width_;
    Call call;
    Queries& queries = call.queries;
    queries.q = normal({kB, kH, queries_, width_});
    if (has("query rows")) queries.rows = query_rows();
    if (has("query buckets")) queries.buckets = rowwise(0, 2, queries_);
    if (has("positions")) queries.positions = rowwise(-3, queries_ + 5, queries_);
    if (has("first")) queries.first = 2;
    places_ = queries.rows.defined() ? queries.rows.size(-1) : queries_;
    const int64_t sources = has("many sources") ? 2 + below(2) : 1;
    for (int64_t s = 0; s < sources; ++s) call.sources.push_back(source(extra));
    if (has("scale")) call.options.scale = 0.7;
    if (has("dropout"))
      call.options.dropout = {.probability = 0.4, .key = mix(Key{5}, random_())};
    return call;
  }

 private:
  static constexpr int64_t kB = 2, kH = 4;

  bool has(std::string_view feature) const { return features_.contains(feature); }

  int64_t below(int64_t end) {
    return static_cast<int64_t>(random_() % static_cast<uint32_t>(end));
  }

  int64_t one_or(int64_t size) { return below(2) == 0 ? 1 : size; }

  Tensor normal(at::IntArrayRef shape) { return torch::randn(shape, torch::kDouble); }

  // Integers low .. high - 1, in one of the shapes and types they may have.
  Tensor rowwise(int64_t low, int64_t high, int64_t count) {
    const auto type = below(2) == 0 ? torch::kInt : torch::kLong;
    if (below(3) == 0) return torch::randint(low, high, {count}, type);
    return torch::randint(low, high, {one_or(kB), one_or(kH), count}, type);
  }

  // Some rows have no place, some places no row.
  Tensor query_rows() {
    Tensors lists;
    const int64_t b = one_or(kB), h = one_or(kH);
    for (int64_t list = 0; list < b * h; ++list) {
      const Tensor listed =
          torch::cat({torch::randperm(queries_).slice(0, queries_ / 4),
                      torch::full({2}, -1, torch::kLong)});
      lists.push_back(listed.index_select(0, torch::randperm(listed.size(0))));
    }
    return torch::stack(lists).view({b, h, -1});
  }

  Pattern random_pattern(int64_t keys) {
    return [keys, seed = random_()](int64_t query, std::vector<Span>& seen) {
      std::mt19937 random(seed + static_cast<uint32_t>(query));
      for (int64_t key = 0; key < keys; ++key)
        if (random() % 3 > 0) seen.push_back({key, key + 1});
    };
  }

  Source source(int64_t extra) {
    const int64_t keys = 2 + below(8) + extra;
    const int64_t key_heads = has("grouped heads") ? 1 + below(2) : kH;
    const int64_t examples = has("shared keys") ? 1 : kB;
    Source s;
    s.k = normal({examples, key_heads, keys, width_});
    s.v = normal({examples, key_heads, keys, value_width_});
    if (has("key rows")) s.rows = rowwise(-1, keys, keys + 3);
    const int64_t key_places = s.rows.defined() ? s.rows.size(-1) : keys;
    if (has("choice")) {
      const int64_t b = one_or(kB), h = one_or(kH);
      std::vector<int32_t> chosen(b * h);
      for (auto& name : chosen) name = static_cast<int32_t>(below(3));
      s.layout =
          Layout(places_, key_places,
                 {random_pattern(key_places), past_keys(2), random_pattern(key_places)},
                 {b, h, chosen});
    } else if (has("layout")) {
      s.layout = Layout(places_, key_places, random_pattern(key_places));
    }
    if (has("from") || has("outside")) s.from = rowwise(-2, queries_ / 2, keys);
    if (has("to")) s.to = rowwise(queries_ / 2, queries_ + 4, keys);
    s.outside = has("outside");
    if (has("key buckets")) s.buckets = rowwise(0, 2, keys);
    if (has("key positions")) s.positions = rowwise(-3, keys + 5, keys);
    s.bias = bias(keys);
    return s;
  }

  Bias bias(int64_t keys) {
    Bias bias;
    if (has("column")) bias.column = normal({one_or(kB), one_or(kH), keys});
    if (has("slopes")) bias.slopes = normal({one_or(kH)}).abs();
    if (has("dense") || (has("hidden") && !has("column") && !has("table")))
      bias.dense = normal({one_or(kB), one_or(kH), queries_, keys});
    const bool vectors = has("vectors") || has("offset");
    const bool grid = has("grid") && !has("labels");
    const int64_t rows = 3 + below(3), columns = 2 + below(3);
    if (has("table") || (!vectors && (grid || has("labels"))))
      bias.table = grid ? normal({one_or(kH), rows, columns})  //
                        : normal({one_or(kH), rows});
    if (vectors)
      bias.vectors = grid ? normal({one_or(kH), rows, columns, width_})
                          : normal({one_or(kH), rows, width_});
    if (has("offset")) bias.offset = normal({one_or(kH), width_});
    if (grid) {
      bias.width = 3;
      bias.first_column = -1;
    }
    if (has("labels"))
      bias.labels = torch::randint(0, rows, {one_or(kB), one_or(kH), queries_, keys},
                                   below(2) == 0 ? torch::kInt : torch::kLong);
    bias.first = -2;
    if (has("hidden"))
      for (Tensor* tensor : {&bias.column, &bias.table, &bias.dense})
        if (tensor->defined())
          tensor->masked_fill_(torch::rand_like(*tensor) < 0.3, kNever);
    return bias;
  }

  Features features_;
  std::mt19937 random_;
  int64_t queries_ = 0, width_ = 0, value_width_ = 0, places_ = 0;
};

Call make(const Features& features, uint32_t seed = 0) {
  return CallMaker(features, seed).make();
}

// About a third of the features.
Features random_features(uint32_t seed) {
  std::mt19937 random(seed);
  Features features;
  for (const auto& name : kFeatures)
    if (random() % 3 == 0) features.insert(name);
  if (seed % 8 != 0) features.erase("long");
  return features;
}

void expect_the_formulas(const Call& call) {
  const auto expected = naive(call);
  for (const auto& device : devices())
    for (const auto f : {block_attention, block_attention_reference}) {
      const Call here = on(device, call);
      const auto got = f(here.queries, here.sources, here.options);
      EXPECT_TRUE(close(got.out, expected.out, 1e-12));
      EXPECT_TRUE(close(got.lse, expected.lse, 1e-12));
      EXPECT_EQ(got.out.scalar_type(), torch::kDouble);
      EXPECT_EQ(got.lse.scalar_type(), torch::kDouble);
      EXPECT_EQ(got.out.device(), here.queries.q.device());
    }
}

// Where a query sees nothing lse has no slope.
Tensors finite_results(const Call& call) {
  const auto got = attend(call);
  return {got.out, got.lse.masked_fill(got.lse == kNever, 0)};
}

void expect_gradients(const Call& call) {
  for (const auto& device : devices()) {
    const Call here = on(device, call);
    EXPECT_TRUE(gradients_agree(
        [&](const Tensors& x) { return finite_results(with(here, x)); }, values(here)));
  }
}

// Results and gradients of two ways to compute them are equal.
void expect_same(const Tensors& at, const std::function<Attended()>& f,
                 const std::function<Attended()>& g) {
  const auto a = f(), b = g();
  EXPECT_TRUE(close(a.out, b.out, 1e-12));
  EXPECT_TRUE(close(a.lse, b.lse, 1e-12));
  const Tensors slopes = {torch::randn_like(a.out), torch::randn_like(a.lse)};
  const auto da = torch::autograd::grad({a.out, a.lse}, at, slopes);
  const auto db = torch::autograd::grad({b.out, b.lse}, at, slopes);
  for (size_t i = 0; i < at.size(); ++i) EXPECT_TRUE(close(da[i], db[i], 1e-11));
}

Call plain_call(int64_t queries = 5, int64_t keys = 7) {
  torch::manual_seed(0);
  const auto normal = [](at::IntArrayRef shape) {
    return torch::randn(shape, torch::kDouble);
  };
  Call call;
  call.queries.q = normal({2, 4, queries, 3});
  call.sources.push_back({});
  call.sources[0].k = normal({2, 2, keys, 3});
  call.sources[0].v = normal({2, 2, keys, 2});
  return call;
}

bool all_finite(const Tensor& tensor) { return tensor.isfinite().all().item<bool>(); }

bool all_equal(const Tensor& tensor, double value) {
  return (tensor == value).all().item<bool>();
}

TEST(BlockAttention, IsTheFormulasWithEachFeatureAlone) {
  expect_the_formulas(make({}));
  for (const auto& feature : kFeatures)
    for (uint32_t seed = 0; seed < 3; ++seed) {
      SCOPED_TRACE(std::string(feature) + ", seed " + std::to_string(seed));
      expect_the_formulas(make({feature}, seed));
    }
}

TEST(BlockAttention, IsTheFormulasWithManyFeaturesTogether) {
  for (uint32_t seed = 0; seed < 80; ++seed) {
    const auto features = random_features(seed);
    SCOPED_TRACE("seed " + std::to_string(seed) + ", " + text(features));
    expect_the_formulas(make(features, seed));
  }
}

TEST(BlockAttention, HasTheGradientsOfItsOutputsWithEachFeatureAlone) {
  for (const auto& feature : kFeatures) {
    SCOPED_TRACE(feature);
    expect_gradients(make({feature}));
  }
}

TEST(BlockAttention, HasTheGradientsOfItsOutputsWithManyFeaturesTogether) {
  for (uint32_t seed = 1; seed < 30; ++seed) {
    const auto features = random_features(seed);
    SCOPED_TRACE("seed " + std::to_string(seed) + ", " + text(features));
    expect_gradients(make(features, seed));
  }
}

TEST(BlockAttention, GivesEveryLearnedBiasItsGradient) {
  const Call call = make({"many sources", "column", "slopes", "table", "vectors",
                          "offset", "dense", "grouped heads"});
  auto at = values(call);
  EXPECT_EQ(at.size(), 1 + call.sources.size() * 8);
  for (auto& tensor : at) tensor.requires_grad_();
  const auto got = attend(with(call, at));
  const auto slopes = torch::autograd::grad(
      {got.out, got.lse}, at, {torch::randn_like(got.out), torch::randn_like(got.lse)});
  for (size_t i = 0; i < at.size(); ++i) {
    EXPECT_EQ(slopes[i].sizes(), at[i].sizes());
    EXPECT_GT(slopes[i].abs().max().item<double>(), 1e-4) << "tensor " << i;
  }
}

TEST(BlockAttention, ComputesInFloatWhateverTheInputsAre) {
  const auto expect_about = [](const Features& features, torch::Dtype type,
                               double precision) {
    Call call = make(features, 3);
    for (Tensor* tensor : {&call.queries.q, &call.sources[0].k, &call.sources[0].v})
      *tensor = tensor->to(type);
    const auto expected = naive(call);  // of the rounded inputs, in double
    for (const auto& device : devices()) {
      const auto got = attend(on(device, call));
      EXPECT_EQ(got.out.scalar_type(), type);
      EXPECT_EQ(got.lse.scalar_type(), torch::kFloat);
      EXPECT_TRUE(close(got.out, expected.out, precision));
      EXPECT_TRUE(close(got.lse, expected.lse, 2e-6));
    }
  };
  const std::vector<Features> all = {
      {},
      {"long", "layout"},
      {"query rows", "key rows", "column", "table", "dense", "grouped heads"},
      {"slopes", "vectors", "offset", "from", "hidden"}};
  for (const auto& features : all) {
    SCOPED_TRACE(text(features));
    expect_about(features, torch::kFloat, 2e-6);
    expect_about(features, torch::kHalf, 1e-3);
    expect_about(features, torch::kBFloat16, 5e-3);
  }
}

TEST(BlockAttention, GivesGradientsOfTheTypesOfTheInputs) {
  Call call = make({"column", "table"});
  for (Tensor* tensor : {&call.queries.q, &call.sources[0].k, &call.sources[0].v})
    *tensor = tensor->to(torch::kBFloat16);
  auto at = values(call);
  for (auto& tensor : at) tensor.requires_grad_();
  const auto got = attend(with(call, at));
  const auto slopes = torch::autograd::grad({got.out.sum() + got.lse.sum()}, at);
  for (size_t i = 0; i < at.size(); ++i)
    EXPECT_EQ(slopes[i].scalar_type(), at[i].scalar_type());
}

TEST(BlockAttention, GivesNothingWhereAQuerySeesNothing) {
  constexpr int64_t kQueries = 5, kKeys = 7, kBlind = 2;
  const auto whole = [](int64_t value, int64_t count) {
    return torch::full({count}, value, torch::kLong);
  };
  const auto sighted = torch::arange(kQueries) != kBlind;
  const std::vector<std::pair<std::string, std::function<void(Call&)>>> ways = {
      {"layout",
       [&](Call& call) {
         call.sources[0].layout =
             Layout(kQueries, kKeys, [=](int64_t query, std::vector<Span>& keys) {
               if (query != kBlind) keys.push_back({0, kKeys});
             });
       }},
      {"from",
       [&](Call& call) {
         call.queries.positions = sighted.to(torch::kLong);
         call.sources[0].from = whole(1, kKeys);
       }},
      {"to",
       [&](Call& call) {
         call.queries.positions = sighted.logical_not().to(torch::kLong);
         call.sources[0].to = whole(1, kKeys);
       }},
      {"buckets",
       [&](Call& call) {
         call.queries.buckets = sighted.logical_not().to(torch::kLong);
       }},
      {"no place for the query",
       [&](Call& call) {
         call.queries.rows = torch::tensor({3, -1, 0, 1, 4, -1});
       }},
      {"dense",
       [&](Call& call) {
         auto dense = torch::zeros({1, 1, kQueries, kKeys}, torch::kDouble);
         dense.select(2, kBlind).fill_(kNever);
         call.sources[0].bias.dense = dense;
       }},
      {"a dense bias and dropout", [&](Call& call) {
         auto dense = torch::zeros({1, 1, kQueries, kKeys}, torch::kDouble);
         dense.select(2, kBlind).fill_(kNever);
         call.sources[0].bias.dense = dense;
         call.options.dropout = {.probability = 0.5, .key = {3}};
       }}};
  for (const auto& [name, blind] : ways)
    for (const auto& device : devices()) {
      SCOPED_TRACE(name);
      Call call = plain_call(kQueries, kKeys);
      blind(call);
      call = on(device, call);
      auto at = values(call);
      for (auto& tensor : at) tensor.requires_grad_();
      const auto got = attend(with(call, at));
      EXPECT_TRUE(all_equal(got.out.select(2, kBlind), 0));
      EXPECT_TRUE(all_equal(got.lse.select(2, kBlind), kNever));
      for (const int64_t i : {0, 1, 3, 4})
        EXPECT_TRUE(all_finite(got.lse.select(2, i)));
      const auto slopes =
          torch::autograd::grad({got.out, got.lse}, at,
                                {torch::ones_like(got.out), torch::ones_like(got.lse)});
      for (const auto& slope : slopes) EXPECT_TRUE(all_finite(slope));
      EXPECT_TRUE(all_equal(slopes[0].select(2, kBlind), 0));
      EXPECT_FALSE(all_equal(slopes[0].select(2, 0), 0));
    }
}

TEST(BlockAttention, GivesNothingWhereThereIsNothingToSee) {
  const std::vector<std::function<void(Call&)>> ways = {
      [](Call& call) { call.sources[0].buckets = torch::ones({7}, torch::kLong); },
      [](Call& call) { call.sources[0].rows = torch::full({4}, -1, torch::kLong); },
      [](Call& call) { call.sources[0].rows = torch::zeros({0}, torch::kLong); },
      [](Call& call) { call.queries.rows = torch::zeros({0}, torch::kInt); },
      [](Call& call) {
        call.sources[0].bias.column = torch::full({1, 1, 7}, kNever, torch::kDouble);
      },
      [](Call& call) { call.sources[0].layout = Layout(5, 7, past_keys(-5)); },
      [](Call& call) {
        for (Tensor* tensor : {&call.sources[0].k, &call.sources[0].v})
          *tensor = tensor->slice(2, 7);
      },
      [](Call& call) {
        for (Tensor* tensor : {&call.sources[0].k, &call.sources[0].v})
          *tensor = tensor->slice(2, 7);
        call.sources[0].rows = torch::full({4}, -1, torch::kLong);
        call.sources[0].bias.column = torch::zeros({2, 4, 0}, torch::kDouble);
        call.sources[0].bias.dense = torch::zeros({2, 4, 5, 0}, torch::kDouble);
        call.sources[0].from = torch::zeros({0}, torch::kLong);
      }};
  for (size_t way = 0; way < ways.size(); ++way) {
    SCOPED_TRACE(way);
    Call call = plain_call();
    ways[way](call);
    auto at = values(call);
    for (auto& tensor : at) tensor.requires_grad_();
    const auto got = attend(with(call, at));
    EXPECT_EQ(got.out.sizes(), (std::vector<int64_t>{2, 4, 5, 2}));
    EXPECT_TRUE(all_equal(got.out, 0));
    EXPECT_TRUE(all_equal(got.lse, kNever));
    const auto slopes = torch::autograd::grad(
        {got.out, got.lse}, at, {torch::ones_like(got.out), torch::ones_like(got.lse)});
    for (const auto& slope : slopes) EXPECT_TRUE(all_equal(slope, 0));
  }
}

TEST(BlockAttention, HidesThePairsOfAnInfiniteBiasFromTheGradientsToo) {
  Call hidden = plain_call(), unseen = plain_call();
  auto column = torch::zeros({1, 1, 7}, torch::kDouble);
  column.slice(2, 5).fill_(kNever);
  hidden.sources[0].bias.column = column;
  unseen.sources[0].layout = Layout(5, 7, [](int64_t, std::vector<Span>& keys) {
    keys.push_back({0, 5});
  });
  auto at = values(unseen);
  for (auto& tensor : at) tensor.requires_grad_();
  auto with_column = at;
  with_column.push_back(column);
  expect_same(
      at, [&] { return attend(with(hidden, with_column)); },
      [&] { return attend(with(unseen, at)); });
}

TEST(BlockAttention, TakesOneQueryAndOneKey) {
  for (const int64_t queries : {1, 3})
    for (const int64_t keys : {1, 2}) {
      expect_the_formulas(plain_call(queries, keys));
      expect_gradients(plain_call(queries, keys));
    }
  const auto alone = plain_call(4, 1);
  EXPECT_TRUE(close(attend(alone).out,
                    alone.sources[0].v.repeat_interleave(2, 1).expand({2, 4, 4, 2})));
}

TEST(BlockAttention, TakesASourceWithoutKeys) {
  Call call = make({"many sources", "column", "slopes", "table", "vectors", "dense",
                    "layout", "dropout"});
  Source empty = plain_call(5, 0).sources[0];
  const int64_t width = call.queries.q.size(3), queries = call.queries.q.size(2);
  empty.k = torch::zeros({1, 1, 0, width}, torch::kDouble);
  empty.v = torch::zeros({2, 1, 0, width}, torch::kDouble);
  empty.layout = Layout(queries, 0);
  empty.bias = call.sources[0].bias;
  empty.bias.column = torch::zeros({2, 1, 0}, torch::kDouble);
  empty.bias.dense = torch::zeros({1, 4, queries, 0}, torch::kDouble);
  const auto before = attend(call);
  call.sources.push_back(empty);
  EXPECT_TRUE(torch::equal(attend(call).out, before.out));
  EXPECT_TRUE(torch::equal(attend(call).lse, before.lse));
  expect_the_formulas(call);
  expect_gradients(call);
}

TEST(BlockAttention, TakesNoQueries) {
  Call call = plain_call(0, 7);
  call.sources[0].layout = Layout(0, 7);
  const auto got = attend(call);
  EXPECT_EQ(got.out.sizes(), (std::vector<int64_t>{2, 4, 0, 2}));
  EXPECT_EQ(got.lse.sizes(), (std::vector<int64_t>{2, 4, 0}));

  call.sources[0].layout.reset();
  call.queries.rows = torch::full({3}, -1, torch::kLong);
  EXPECT_EQ(attend(call).out.sizes(), (std::vector<int64_t>{2, 4, 0, 2}));
}

TEST(BlockAttention, TakesNoExamples) {
  Call call = plain_call();
  call.queries.q = call.queries.q.slice(0, 2);
  for (Tensor* tensor : {&call.sources[0].k, &call.sources[0].v})
    *tensor = tensor->slice(0, 0, 1);
  EXPECT_EQ(attend(call).out.sizes(), (std::vector<int64_t>{0, 4, 5, 2}));
}

TEST(BlockAttention, TakesTransposedViews) {
  Call call = make({"query rows", "key rows", "column", "dense", "vectors", "table"});
  const auto expected = attend(call);
  for (Tensor* tensor : learned(call)) {
    const int64_t last = tensor->dim() - 1;
    const Tensor moved = tensor->transpose(1, last).contiguous().transpose(1, last);
    *tensor = torch::stack({moved, moved}, -1).select(-1, 1);
    EXPECT_FALSE(tensor->is_contiguous());
  }
  for (Tensor* tensor : {&call.queries.q, &call.sources[0].k, &call.sources[0].v})
    *tensor = tensor->transpose(1, 2).contiguous().transpose(1, 2);  // [B, N, H, d]
  for (Tensor* tensor : integers(call))
    *tensor = torch::stack({*tensor, *tensor}, -1).select(-1, 0);
  const auto got = attend(call);
  EXPECT_TRUE(close(got.out, expected.out, 1e-14));
  EXPECT_TRUE(close(got.lse, expected.lse, 1e-14));
  expect_gradients(call);
}

TEST(BlockAttention, ScalesByTheWidthUnlessTold) {
  Call call = make({"vectors"});
  const auto expected = attend(call);
  call.options.scale = 1 / std::sqrt(static_cast<double>(call.queries.q.size(3)));
  EXPECT_TRUE(torch::equal(attend(call).out, expected.out));
  call.options.scale = 0;
  const auto even = attend(call);
  EXPECT_TRUE(all_equal(even.lse - even.lse[0][0][0], 0));
}

TEST(BlockAttention, StandsLargeScores) {
  Call call = plain_call();
  call.options.scale = 1;
  const auto expected = attend(call);
  for (const double shift : {-1e5, 1e5}) {
    call.sources[0].bias.column = torch::full({1, 1, 7}, shift, torch::kDouble);
    const auto got = attend(call);
    EXPECT_TRUE(close(got.out, expected.out, 1e-9));
    EXPECT_TRUE(close(got.lse - shift, expected.lse, 1e-9));
  }
}

TEST(BlockAttention, DoesNotCareHowKeysAreSplitIntoSources) {
  Call call = make({"grouped heads", "column", "slopes", "table", "dense", "from",
                    "shared keys", "query rows"});
  auto at = values(call);
  for (auto& tensor : at) tensor.requires_grad_();
  call = with(call, at);
  const int64_t keys = call.sources[0].k.size(2);
  const auto part = [&](int64_t begin, int64_t end) {
    Source some = call.sources[0];
    for (Tensor* tensor : {&some.k, &some.v}) *tensor = tensor->slice(2, begin, end);
    for (Tensor* tensor : {&some.from, &some.bias.column, &some.bias.dense})
      *tensor = tensor->slice(-1, begin, end);
    some.positions = torch::arange(begin, end);
    return some;
  };
  for (int64_t split = 0; split <= keys; ++split) {
    Call parted = call;
    parted.sources = {part(split, keys), part(0, split)};
    expect_same(
        at, [&] { return attend(parted); }, [&] { return attend(call); });
  }
}

TEST(BlockAttention, IsTheMergeOfACallForEachSource) {
  for (uint32_t seed = 0; seed < 10; ++seed) {
    auto features = random_features(seed + 100);
    features.insert("many sources");
    features.erase("dropout");
    SCOPED_TRACE(text(features));
    Call call = make(features, seed);
    auto at = values(call);
    for (auto& tensor : at) tensor.requires_grad_();
    call = with(call, at);
    const auto separate = [&] {
      std::vector<Attended> parts;
      for (const Source& source : call.sources)
        parts.push_back(block_attention(call.queries, {source}, call.options));
      return merge(parts);
    };
    const auto a = attend(call), b = separate();
    EXPECT_TRUE(close(a.out, b.out, 1e-12));
    EXPECT_TRUE(close(a.lse, b.lse, 1e-12));
    const auto seen = a.lse != kNever;
    const Tensors slopes = {torch::randn_like(a.out),
                            torch::randn_like(a.lse).masked_fill(~seen, 0)};
    const auto da = torch::autograd::grad({a.out, a.lse}, at, slopes);
    const auto db = torch::autograd::grad({b.out, b.lse}, at, slopes);
    for (size_t i = 0; i < at.size(); ++i) EXPECT_TRUE(close(da[i], db[i], 1e-10));
  }
}

TEST(BlockAttention, IsTheSameInAnyOrderOfPlaces) {
  Call call = make({"column", "slopes", "table", "vectors", "dense", "from", "to",
                    "query buckets", "many sources", "dropout"});
  auto at = values(call);
  for (auto& tensor : at) tensor.requires_grad_();
  call = with(call, at);
  Call permuted = call;
  permuted.queries.rows = torch::randperm(call.queries.q.size(2));
  for (Source& source : permuted.sources)
    source.rows = torch::stack({torch::randperm(source.k.size(2)),
                                torch::randperm(source.k.size(2))})
                      .unsqueeze(1);  // another order for every example
  expect_same(
      at, [&] { return attend(permuted); }, [&] { return attend(call); });
}

TEST(BlockAttention, LaysOutPlacesAndNotRows) {
  Call call = plain_call(5, 7);
  call.queries.rows = torch::tensor({4, 0, -1, 2});
  call.sources[0].rows = torch::tensor({6, -1, 3, 0});
  call.sources[0].layout = Layout(4, 4, past_keys());
  const auto got = attend(call);
  const auto v = call.sources[0].v.repeat_interleave(2, 1);
  EXPECT_TRUE(close(got.out.select(2, 4), v.select(2, 6)));  // place 0 sees place 0
  EXPECT_TRUE(close(got.out.select(2, 0), v.select(2, 6)));  // place 1 is empty
  EXPECT_TRUE(all_equal(got.lse.select(2, 1), kNever));
  EXPECT_TRUE(all_equal(got.lse.select(2, 3), kNever));
  expect_the_formulas(call);
}

TEST(BlockAttention, DropsTheSameWeightsEveryTime) {
  Call call = make({"dropout", "many sources", "long"});
  const auto first = attend(call), second = attend(call);
  EXPECT_TRUE(torch::equal(first.out, second.out));
  EXPECT_TRUE(torch::equal(first.lse, second.lse));
  call.options.dropout.key = mix(call.options.dropout.key, 1);
  const auto other = attend(call);
  EXPECT_FALSE(torch::equal(first.out, other.out));
  EXPECT_TRUE(torch::equal(first.lse, other.lse));
  call.options.dropout.probability = 0;
  const auto all = attend(call);
  EXPECT_FALSE(torch::equal(first.out, all.out));
  EXPECT_TRUE(torch::equal(first.lse, all.lse));
}

TEST(BlockAttention, IsUnchangedByDropoutInTheMean) {
  constexpr int64_t kExamples = 64, kHeads = 8, kKeysOfDropout = 16;
  torch::manual_seed(0);
  Call call;
  call.queries.q =
      torch::randn({1, 1, 5, 3}, torch::kDouble).expand({kExamples, kHeads, 5, 3});
  call.sources.push_back({});
  call.sources[0].k = torch::randn({1, 1, 7, 3}, torch::kDouble);
  call.sources[0].v = torch::randn({1, 1, 7, 2}, torch::kDouble);
  const auto expected = attend(call).out[0][0];
  auto sum = torch::zeros_like(expected);
  for (uint64_t key = 0; key < kKeysOfDropout; ++key) {
    call.options.dropout = {.probability = 0.3, .key = {key}};
    sum += attend(call).out.mean(at::IntArrayRef{0, 1});
  }
  EXPECT_LT((sum / kKeysOfDropout - expected).abs().max().item<double>(), 0.02);
}

TEST(BlockAttention, DropsAsManyWeightsAsAsked) {
  // Values that count: with all scores 0 a result is the share of the keys kept.
  Call call;
  call.queries.q = torch::zeros({4, 4, 50, 1}, torch::kDouble);
  call.sources.push_back({});
  call.sources[0].k = torch::zeros({1, 1, 50, 1}, torch::kDouble);
  call.sources[0].v = torch::ones({1, 1, 50, 1}, torch::kDouble);
  for (const double probability : {0.1, 0.5, 0.9}) {
    call.options.dropout = {.probability = probability, .key = {11}};
    const double kept = attend(call).out.mean().item<double>() * (1 - probability);
    EXPECT_NEAR(kept, 1 - probability, 0.012);
  }
}

TEST(BlockAttention, RepeatsBitForBitWithAnyNumberOfThreads) {
  constexpr int64_t kRows = 300;
  const auto normal = [](at::IntArrayRef shape, uint64_t seed) {
    return testing::random_tensors(1, shape, torch::kFloat, seed)[0].requires_grad_();
  };
  Call call;
  call.queries.q = normal({1, 2, kRows, 4}, 1);
  Source& source = call.sources.emplace_back();
  source.k = normal({1, 1, kRows, 4}, 2);
  source.v = normal({1, 1, kRows, 4}, 3);
  Bias& bias = source.bias;
  bias.slopes = normal({1}, 4);
  bias.column = normal({1, 1, kRows}, 5);
  bias.table = normal({1, 1}, 6);
  bias.vectors = normal({1, 1, 4}, 7);
  bias.offset = normal({1, 4}, 8);
  bias.dense = normal({1, 1, kRows, kRows}, 9);
  const auto results = [&](int count) {
    const UseThreads threads(count);
    const auto [out, lse] = attend(call);
    auto all = torch::autograd::grad({out, lse}, values(call),
                                     {out.detach().cos(), lse.detach().cos()});
    all.insert(all.end(), {out, lse});
    return all;
  };
  const auto once = results(1);
  for (const int count : {2, 3, 5, 8}) {
    const auto again = results(count);
    for (size_t i = 0; i < once.size(); ++i)
      EXPECT_TRUE(once[i].equal(again[i])) << "result " << i << ", " << count;
  }
}

TEST(BiasScores, AreTheBiasOfEveryPair) {
  for (const bool grid : {false, true}) {
    Features features = {"column", "slopes", "table", "vectors", "offset", "dense"};
    if (grid) features.insert("grid");
    const Call call = make(features, 4);
    const Tensor& q = call.queries.q;
    const Bias& bias = call.sources[0].bias;
    const int64_t keys = call.sources[0].k.size(2);
    const auto p = torch::randint(-4, 12, {2, 1, q.size(2)}, torch::kLong);
    const auto r = torch::randint(-4, 12, {keys}, torch::kInt);
    const auto got = bias_scores(bias, q, 0.3, p, r);
    ASSERT_EQ(got.sizes(), (std::vector<int64_t>{2, 4, q.size(2), keys}));
    const NaiveBias pair(bias);
    const Rowwise p_at(p, {}), r_at(r, {});
    const Doubles q_at(q);
    auto expected = torch::zeros({2, 4, q.size(2), keys}, torch::kDouble);
    for (int64_t b = 0; b < 2; ++b)
      for (int64_t h = 0; h < 4; ++h)
        for (int64_t i = 0; i < q.size(2); ++i) {
          std::vector<double> query;
          for (int64_t c = 0; c < q.size(3); ++c)
            query.push_back(q_at.at({b, h, i, c}));
          for (int64_t j = 0; j < keys; ++j)
            expected[b][h][i][j] =
                pair.at(b, h, i, j, p_at.at(b, h, i), r_at.at(b, h, j), query, 0.3);
        }
    EXPECT_TRUE(close(got, expected, 1e-12));
  }
  const auto q = torch::randn({2, 4, 5, 3}, torch::kDouble);
  const auto none = bias_scores({}, q, 1, torch::arange(5), torch::arange(6));
  EXPECT_EQ(none.sizes(), (std::vector<int64_t>{1, 4, 5, 6}));
  EXPECT_TRUE(all_equal(none, 0));
}

TEST(Bias, IsDefinedOnceItChangesScores) {
  EXPECT_FALSE(Bias{}.defined());
  const auto with_only = [](Tensor Bias::*member) {
    Bias bias;
    bias.*member = torch::zeros({1});
    return bias.defined();
  };
  for (const auto member :
       {&Bias::column, &Bias::slopes, &Bias::table, &Bias::vectors, &Bias::dense})
    EXPECT_TRUE(with_only(member));
  for (const auto member : {&Bias::labels, &Bias::offset})
    EXPECT_FALSE(with_only(member));
}

using Spoil = std::function<void(Call&)>;

std::string said(const Spoil& spoil) {
  Call call = plain_call();
  call.sources.push_back(call.sources[0]);
  spoil(call);
  const std::string fused = refusal([&] { attend(call); });
  EXPECT_EQ(fused, refusal([&] {
              block_attention_reference(call.queries, call.sources, call.options);
            }));
  return fused;
}

TEST(BlockAttention, NeedsLittleMemoryBesideItsTensors) {
  constexpr int64_t kTokens = 8192, kHeads = 2, kWidth = 32;
  const Tensors qkv =
      testing::random_tensors(3, {1, kHeads, kTokens, kWidth}, torch::kFloat);
  for (const Tensor& tensor : qkv) tensor.requires_grad_();
  const Layout layout(kTokens, kTokens,
                      any_of({window_of_keys(128, 128), block_of_keys(512)}));
  const Tensor slope = torch::ones_like(qkv[0]);
  const UseThreads two(2);
  const PeakBytes peak(torch::kCPU);
  const Tensor out =
      block_attention({.q = qkv[0]}, {{.k = qkv[1], .v = qkv[2], .layout = layout}})
          .out;
  const auto gradients = torch::autograd::grad({out}, qkv, {slope});
  const int64_t results = 4 * out.numel() * 4;  // out and three gradients
  EXPECT_GE(peak.newly(), results);
  EXPECT_LT(peak.newly() - results, 2 << 20);
}

TEST(BlockAttention, KeepsWhatIsNoNumberInRowsComputedInParts) {
  Tensors qkv = {torch::randn({1, 1, 1, 4}), torch::randn({1, 1, 8192, 4}),
                 torch::randn({1, 1, 8192, 4})};
  const auto attended = [&] {
    return block_attention({.q = qkv[0]}, {{.k = qkv[1], .v = qkv[2]}});
  };
  EXPECT_TRUE(
      close(attended().out,
            block_attention_reference({.q = qkv[0]}, {{.k = qkv[1], .v = qkv[2]}}).out,
            1e-5));
  qkv[1][0][0][5000][0] = NAN;
  EXPECT_TRUE(attended().out.isnan().all().item<bool>());
  EXPECT_TRUE(attended().lse.isnan().all().item<bool>());
}

TEST(BlockAttention, NoticesIntegersThatChangeBeforeTheBackwardPass) {
  Tensors qkv = testing::random_tensors(3, {1, 1, 5, 4});
  for (Tensor& tensor : qkv) tensor.requires_grad_();
  Source source{.k = qkv[1], .v = qkv[2]};
  source.to = torch::full({5}, 5, torch::kLong);
  const Tensor out = block_attention({.q = qkv[0]}, {source}).out;
  source.to.fill_(2);
  EXPECT_THROW(out.sum().backward(), c10::Error);
}

TEST(BlockAttention, TakesAnyNegativeRowForAnEmptyPlace) {
  const Tensors qkv = testing::random_tensors(3, {1, 1, 5, 4});
  const auto with_rows = [&](int64_t empty) {
    Source source{.k = qkv[1], .v = qkv[2]};
    source.rows = torch::tensor({int64_t{3}, empty, int64_t{1}}, torch::kLong);
    return block_attention({.q = qkv[0]}, {source}).out;
  };
  EXPECT_TRUE(with_rows(-(int64_t{1} << 32) + 2).equal(with_rows(-1)));
}

TEST(BlockAttention, RefusesSecondDerivatives) {
  Tensors qkv = testing::random_tensors(3, {1, 1, 5, 4});
  for (Tensor& tensor : qkv) tensor.requires_grad_();
  const Tensor out = block_attention({.q = qkv[0]}, {{.k = qkv[1], .v = qkv[2]}}).out;
  EXPECT_EQ(refusal([&] {
              torch::autograd::grad({out.sum()}, {qkv[0]}, {}, /*retain_graph=*/true,
                                    /*create_graph=*/true);
            }),
            "block attention: it has no second derivatives; "
            "block_attention_reference() has");
}

TEST(BlockAttention, RefusesQueriesAndOptionsThatDoNotFit) {
  EXPECT_EQ(said([](Call&) {}), "accepted");
  const std::string q =
      "block attention: q must be [B, H, N, d] of a floating type, got ";
  EXPECT_EQ(said([](Call& c) { c.queries.q = Tensor(); }), q + "nothing");
  EXPECT_EQ(said([](Call& c) { c.queries.q = c.queries.q[0]; }), q + "[4, 5, 3]");
  EXPECT_EQ(said([](Call& c) { c.queries.q = c.queries.q.to(torch::kLong); }),
            q + "[2, 4, 5, 3]");
  EXPECT_EQ(said([](Call& c) {
              c.queries.q = torch::zeros({2, 4, 5, 0});
            }),
            "block attention: q must be 1 or more wide, got [2, 4, 5, 0]");
  EXPECT_EQ(said([](Call& c) { c.sources.clear(); }),
            "block attention: there must be at least one source");
  const std::string p =
      "block attention: the dropout probability must be in [0, 1), got ";
  EXPECT_EQ(said([](Call& c) { c.options.dropout.probability = 1; }), p + "1");
  EXPECT_EQ(said([](Call& c) { c.options.dropout.probability = -0.5; }), p + "-0.5");
  EXPECT_EQ(said([](Call& c) { c.options.dropout.probability = std::nan(""); }),
            p + "nan");
  EXPECT_EQ(said([](Call& c) { c.queries.positions = torch::zeros({5}); }),
            "block attention: positions of queries must be int32 or int64, got Float");
  EXPECT_EQ(said([](Call& c) { c.queries.positions = torch::arange(6); }),
            "block attention: positions of queries must be [n] or [B|1, H|1, n] with "
            "n = 5, B = 2 and H = 4, got [6]");
  EXPECT_EQ(
      said([](Call& c) {
        c.queries.buckets = torch::zeros({3, 1, 5}, torch::kInt);
      }),
      "block attention: buckets of queries must be [n] or [B|1, H|1, n] with n = 5, "
      "B = 2 and H = 4, got [3, 1, 5]");
  EXPECT_EQ(
      said([](Call& c) {
        c.queries.rows = torch::zeros({2, 8, 6}, torch::kInt);
      }),
      "block attention: rows of queries must be [n] or [B|1, H|1, n] with B = 2 and "
      "H = 4, got [2, 8, 6]");
  EXPECT_EQ(said([](Call& c) { c.queries.rows = torch::zeros({}, torch::kInt); }),
            "block attention: rows of queries must be [n] or [B|1, H|1, n] with B = 2 "
            "and H = 4, got []");
}

TEST(BlockAttention, RefusesSourcesThatDoNotFit) {
  const auto of = [](const std::function<void(Source&)>& spoil) {
    return said([&](Call& c) { spoil(c.sources[1]); });
  };
  const std::string who = "block attention: source 1: ";
  const std::string shapes =
      who + "k and v must be [B|1, Hk, M, d] and [B|1, Hk, M, dv], got ";
  EXPECT_EQ(of([](Source& s) { s.k = Tensor(); }), shapes + "nothing and [2, 2, 7, 2]");
  EXPECT_EQ(of([](Source& s) { s.v = s.v[0]; }), shapes + "[2, 2, 7, 3] and [2, 7, 2]");
  EXPECT_EQ(of([](Source& s) { s.v = s.v.to(torch::kFloat); }),
            who + "k and v must have the type of q, Double, got Double and Float");
  EXPECT_EQ(of([](Source& s) { s.k = s.k.to(torch::kMeta); }),
            who + "k and v must be where q is, on cpu, got meta and cpu");
  EXPECT_EQ(of([](Source& s) {
              s.k = s.k.repeat({2, 1, 1, 1});
            }),
            who + "k and v must have 1 or 2 examples, got 4 and 2");
  const std::string heads =
      who + "k and v must have equally many heads, a divisor of the 4 of q, got ";
  EXPECT_EQ(of([](Source& s) { s.v = s.v.slice(1, 1); }), heads + "2 and 1");
  EXPECT_EQ(of([](Source& s) {
              s.k = torch::cat({s.k, s.k.slice(1, 1)}, 1);
              s.v = torch::cat({s.v, s.v.slice(1, 1)}, 1);
            }),
            heads + "3 and 3");
  EXPECT_EQ(of([](Source& s) {
              s.k = s.k.slice(1, 2);
              s.v = s.v.slice(1, 2);
            }),
            heads + "0 and 0");
  EXPECT_EQ(of([](Source& s) { s.v = s.v.slice(2, 1); }),
            who + "k and v must have equally many rows, got 7 and 6");
  EXPECT_EQ(of([](Source& s) { s.k = s.k.slice(3, 1); }),
            who + "keys must be as wide as queries, 3, got 2");
  EXPECT_EQ(of([](Source& s) { s.v = s.v.slice(3, 1); }),
            who + "values must be as wide as those of source 0, 2, got 1");

  const std::string rows =
      " must be [n] or [B|1, H|1, n] with n = 7, B = 2 and H = 4, got ";
  EXPECT_EQ(of([](Source& s) { s.positions = torch::arange(6); }),
            who + "positions" + rows + "[6]");
  EXPECT_EQ(of([](Source& s) {
              s.from = torch::zeros({2, 7}, torch::kInt);
            }),
            who + "from" + rows + "[2, 7]");
  EXPECT_EQ(of([](Source& s) {
              s.to = torch::zeros({1, 2, 7}, torch::kInt);
            }),
            who + "to" + rows + "[1, 2, 7]");
  EXPECT_EQ(of([](Source& s) { s.buckets = torch::zeros({7}, torch::kBool); }),
            who + "buckets must be int32 or int64, got Bool");
  EXPECT_EQ(of([](Source& s) {
              s.rows = torch::zeros({3, 4, 9}, torch::kLong);
            }),
            who +
                "rows must be [n] or [B|1, H|1, n] with B = 2 and H = 4, got "
                "[3, 4, 9]");
  EXPECT_EQ(of([](Source& s) { s.outside = true; }), who + "outside needs from or to");
  const std::string layout = who + "the layout must be for ";
  EXPECT_EQ(of([](Source& s) { s.layout = Layout(7, 5); }),
            layout + "5 queries and 7 keys, got 7 and 5");
  EXPECT_EQ(of([](Source& s) {
              s.rows = torch::zeros({9}, torch::kLong);
              s.layout = Layout(5, 7);
            }),
            layout + "5 queries and 9 keys, got 5 and 7");
  EXPECT_EQ(said([](Call& c) {
              c.queries.rows = torch::arange(4);
              c.sources[1].layout = Layout(5, 7);
            }),
            layout + "4 queries and 7 keys, got 5 and 7");
  EXPECT_EQ(of([](Source& s) {
              s.layout = Layout(5, 7, {all_keys()}, {1, 2, {0, 0}});
            }),
            who +
                "the layout must choose for 1 or 2 examples and 1 or 4 heads, got 1 "
                "and 2");
  EXPECT_EQ(of([](Source& s) {
              s.layout = Layout(5, 7, {all_keys()}, {3, 1, {0, 0, 0}});
            }),
            who +
                "the layout must choose for 1 or 2 examples and 1 or 4 heads, got 3 "
                "and 1");
}

TEST(BlockAttention, RefusesWhatIsBeyond32Bits) {
  const Tensors qkv = testing::random_tensors(3, {1, 1, 5, 4});
  const auto with_source = [&](const std::function<void(Source&)>& change) {
    Source source{.k = qkv[1], .v = qkv[2]};
    change(source);
    return refusal([&] { block_attention({.q = qkv[0]}, {source}); });
  };
  EXPECT_EQ(with_source([](Source& source) {
              source.buckets = torch::full({5}, int64_t{1} << 40, torch::kLong);
            }),
            "block attention: buckets of keys must be between -2147483648 and "
            "2147483647, got 1099511627776");
  EXPECT_EQ(with_source([](Source& source) {
              source.bias.table = torch::zeros({1, 2, 2}, torch::kDouble);
              source.bias.width = int64_t{1} << 32;
            }),
            "block attention: width of a bias must be between -2^29 and 2^29, got "
            "4294967296");
  EXPECT_EQ(with_source([](Source& source) {
              source.rows = torch::tensor({0, 5}, torch::kLong);
            }),
            "block attention: rows of keys must be between -1 and 4, got 5");
}

TEST(BlockAttention, RefusesBiasesThatDoNotFit) {
  const auto of = [](const std::function<void(Bias&)>& spoil) {
    return said([&](Call& c) { spoil(c.sources[0].bias); });
  };
  const auto zeros = [](at::IntArrayRef shape) {
    return torch::zeros(shape, torch::kDouble);
  };
  const auto whole = [](at::IntArrayRef shape) {
    return torch::zeros(shape, torch::kLong);
  };
  const std::string who = "block attention: source 0: bias ";
  EXPECT_EQ(of([&](Bias& b) { b.column = zeros({7}); }),
            who + "column must be [B|1, H|1, M] with M = 7, got [7]");
  EXPECT_EQ(of([&](Bias& b) {
              b.column = zeros({2, 2, 7});
            }),
            who + "column must be [B|1, H|1, M] with M = 7, got [2, 2, 7]");
  EXPECT_EQ(of([&](Bias& b) { b.slopes = zeros({2}); }),
            who + "slopes must be [H|1] with H = 4, got [2]");
  EXPECT_EQ(of([&](Bias& b) { b.width = -1; }),
            who + "width must be 0 or more, got -1");
  EXPECT_EQ(of([&](Bias& b) {
              b.table = zeros({1, 2, 3});
              b.labels = whole({1, 1, 5, 7});
              b.width = 2;
            }),
            who + "labels and a grid exclude each other, got width 2");
  EXPECT_EQ(of([&](Bias& b) {
              b.table = zeros({1, 2, 3});
            }),
            who + "table must be [H|1, R] with H = 4, got [1, 2, 3]");
  EXPECT_EQ(of([&](Bias& b) {
              b.table = zeros({4, 0});
            }),
            who + "table must be [H|1, R] with H = 4, got [4, 0]");
  EXPECT_EQ(of([&](Bias& b) {
              b.table = zeros({3, 2, 3});
              b.width = 2;
            }),
            who + "table must be [H|1, R, C] with H = 4, got [3, 2, 3]");
  EXPECT_EQ(of([&](Bias& b) {
              b.table = zeros({4, 2, 0});
              b.width = 2;
            }),
            who + "table must be [H|1, R, C] with H = 4, got [4, 2, 0]");
  EXPECT_EQ(of([&](Bias& b) {
              b.vectors = zeros({2, 6, 3});
            }),
            who + "vectors must be [H|1, R, d] with H = 4, got [2, 6, 3]");
  EXPECT_EQ(of([&](Bias& b) {
              b.vectors = zeros({1, 6, 3});
              b.width = 2;
            }),
            who + "vectors must be [H|1, R, C, d] with H = 4, got [1, 6, 3]");
  EXPECT_EQ(of([&](Bias& b) {
              b.vectors = zeros({1, 6, 2});
            }),
            who + "vectors must be as wide as a query, 3, got [1, 6, 2]");
  EXPECT_EQ(of([&](Bias& b) {
              b.table = zeros({4, 5});
              b.vectors = zeros({1, 6, 3});
            }),
            who +
                "table and vectors must have equally many entries, got [4, 5] and "
                "[1, 6, 3]");
  EXPECT_EQ(of([&](Bias& b) {
              b.table = zeros({4, 5, 2});
              b.vectors = zeros({1, 5, 4, 3});
              b.width = 3;
            }),
            who +
                "table and vectors must have equally many entries, got [4, 5, 2] and "
                "[1, 5, 4, 3]");
  EXPECT_EQ(of([&](Bias& b) {
              b.offset = zeros({1, 3});
            }),
            who + "offset belongs to vectors, which are missing");
  EXPECT_EQ(of([&](Bias& b) {
              b.vectors = zeros({1, 6, 3});
              b.offset = zeros({4, 2});
            }),
            who + "offset must be [H|1, d] with d = 3, got [4, 2]");
  EXPECT_EQ(of([&](Bias& b) {
              b.labels = whole({1, 1, 5, 7});
            }),
            who + "labels choose entries of table or vectors, which are missing");
  EXPECT_EQ(of([&](Bias& b) {
              b.table = zeros({1, 2});
              b.labels = zeros({1, 1, 5, 7});
            }),
            who + "labels must be int32 or int64, got Double");
  EXPECT_EQ(of([&](Bias& b) {
              b.table = zeros({1, 2});
              b.labels = whole({1, 1, 7, 5});
            }),
            who +
                "labels must be [B|1, H|1, N, M] with N = 5 and M = 7, got "
                "[1, 1, 7, 5]");
  EXPECT_EQ(of([&](Bias& b) {
              b.dense = zeros({2, 3, 5, 7});
            }),
            who +
                "dense must be [B|1, H|1, N, M] with N = 5 and M = 7, got "
                "[2, 3, 5, 7]");
  EXPECT_EQ(of([&](Bias& b) {
              b.dense = zeros({5, 7});
            }),
            who + "dense must be [B|1, H|1, N, M] with N = 5 and M = 7, got [5, 7]");
}

}  // namespace
}  // namespace longspan
