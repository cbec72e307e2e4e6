// Attention among tokens whose hashes are alike. Kitaev et al. 2020, arXiv:2001.04451.
//
// Queries are keys too, of length 1. In each round hashes put tokens into buckets, and
// the tokens are sorted by bucket and position. Bidirectional: the sorted tokens are
// cut into chunks, each of which sees itself and the chunk before it, the first the
// last. Causal: where a chunk ends depends on tokens to come, so a token sees the last
// 2 * chunk tokens of its own bucket instead. It sees itself only where no round shows
// it another token. A key that several rounds show counts as often.

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "longspan/attention/chosen.h"
#include "longspan/attention/dense_reference.h"
#include "longspan/attention/linear_map.h"
#include "longspan/attention/mechanism.h"
#include "longspan/attention/prepare.h"
#include "longspan/base/error.h"
#include "longspan/kernels/hash.h"
#include "longspan/kernels/random_numbers.h"
#include "longspan/kernels/total.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr double kLeastNorm = 1e-6;

// As a bucket: that of padding, behind all others.
constexpr int64_t kNoBucket = std::numeric_limits<int64_t>::max();

// Up to so many buckets have one hash, more are pairs of two.
constexpr int64_t kOneHash = 128;
constexpr int64_t kMostBuckets = kOneHash * kOneHash;

// How many buckets the two hashes have, both even, together as many or a few more.
struct Pair {
  Tensor first, second;  // [n]; second 1 where there is one hash

  explicit Pair(const Tensor& buckets) {
    const auto even = [](const Tensor& x) {
      return (x / 2).ceil().to(torch::kLong) * 2;
    };
    const Tensor exact = buckets.to(torch::kDouble), one = buckets.le(kOneHash);
    first = torch::where(one, buckets, even(exact.sqrt()));
    second =
        torch::where(one, torch::ones_like(buckets), even(exact / first.clamp_min(1)));
  }
};

// Normal numbers (Box and Muller 1958).
Tensor normal(Key key, const Tensor& like) {
  std::vector<int64_t> shape = like.sizes().vec();
  shape.insert(shape.begin(), 2);
  const Tensor u = uniform(key, shape, like.options().dtype(torch::kFloat));
  return ((1 - u[0]).log() * -2).sqrt() * (u[1] * (2 * M_PI)).cos();
}

class Reformer final : public Attention {
 public:
  Reformer(const Settings& settings, const Sizes& sizes)
      : chunk_(settings.integer("chunk")),
        rounds_(settings.integer("rounds")),
        buckets_(settings.integer("buckets")),
        scale_(settings.number("qk_scale")),
        next_(settings.flag("next")),
        own_bucket_(settings.flag("own_bucket")),
        redraw_(settings.flag("redraw")),
        has_longest_(sizes.longest > 0) {
    require(buckets_ <= 1 || buckets_ % 2 == 0,
            "buckets must be 0, 1 or even, because a hash has them in opposites, got ",
            buckets_);
    most_ = buckets_ > 0 ? buckets_ : kMostBuckets;
    if (buckets_ == 0 && has_longest_)
      most_ = std::min(most_, 2 * ((sizes.longest + chunk_ - 1) / chunk_));
    const Pair most(torch::full({1}, most_, torch::kLong));
    const auto first = most.first.item<int64_t>(), second = most.second.item<int64_t>();
    all_buckets_ = first * second;
    // Shorter examples may have one hash where the longest has two.
    const int64_t at_once = buckets_ > 0 ? first : std::min(most_, kOneHash);
    directions_ = std::max<int64_t>({first / 2, at_once / 2, 1});
    rotations_ =
        register_buffer("rotations", torch::randn({sizes.heads, sizes.head_width,
                                                   rounds_, directions_ + second / 2}));
  }

 private:
  // [B]: how many tokens an example has.
  static Tensor lengths(const Tensor& q, const Pass& pass) {
    const auto whole = q.options().dtype(torch::kLong);
    return pass.mask.tokens.defined() ? pass.mask.tokens.to(q.device()).sum(1)
                                      : torch::full({q.size(0)}, q.size(2), whole);
  }

  // [B]: how many buckets there are for an example.
  Tensor bucket_counts(const Tensor& q, const Pass& pass) const {
    if (buckets_ == 0 && !pass.mask.causal)
      return 2 * chunks_of(lengths(q, pass)).clamp_max(most_ / 2);
    require(buckets_ > 0 || has_longest_,
            "buckets: 0 takes their number from the length, which the causal form must "
            "not; give buckets, or a longest sequence");
    return torch::full({q.size(0)}, most_, q.options().dtype(torch::kLong));
  }

  Tensor chunks_of(const Tensor& lengths) const {
    return torch::div(lengths + (chunk_ - 1), chunk_, "floor");
  }

  // [H, d, R, C]; in training other ones each time.
  Tensor rotations(Pass& pass) const {
    if (!redraw_ || !pass.training || pass.state) return rotations_;
    return normal(pass.draw.key(), rotations_);
  }

  // By what the tokens are sorted in each round, [B, H, R, N]; that of padding is
  // kNoBucket. Tokens see those of their bucket; segments have their own.
  Tensor buckets_of(const Tensor& q, Pass& pass) const {
    const Tensor turns = rotations(pass);
    const Tensor hash = chosen(pass, "buckets", [&] {
      const Pair counts(bucket_counts(q, pass));
      // Of the directions from `from` to `to` those that an example has.
      const auto hashed = [&](int64_t from, int64_t to, const Tensor& buckets) {
        if (buckets.is_cpu() && buckets.numel() > 0)  // CUDA would have to wait
          to = std::min(to,
                        from + std::max<int64_t>(buckets.max().item<int64_t>() / 2, 1));
        return cross_polytope_hash(q, turns.slice(3, from, to), buckets);
      };
      Tensor both = hashed(0, directions_, counts.first);
      if (turns.size(3) > directions_)
        both = both + hashed(directions_, turns.size(3), counts.second) *
                          counts.first.view({-1, 1, 1, 1});
      return both.to(torch::kInt);
    });
    return in_segments(hash.to(torch::kLong), pass);
  }

  Tensor in_segments(Tensor buckets, const Pass& pass) const {
    const auto of_tokens = [&](const Tensor& x) {
      return x.to(buckets.device()).unsqueeze(1).unsqueeze(1);
    };
    if (pass.mask.segment.defined())
      buckets = buckets + of_tokens(pass.mask.segment).to(torch::kLong) * all_buckets_;
    if (pass.mask.tokens.defined())
      buckets =
          buckets.masked_fill(of_tokens(pass.mask.tokens).logical_not(), kNoBucket);
    return buckets;
  }

  // The tokens of all heads in the order of one round.
  struct Round {
    Tensor rows;  // [B, H, M]: of the places, -1 for padding, which is behind
    Tensor same;  // [B, H, M]: numbers of the buckets, of the tokens

    Round(const Tensor& buckets, bool segments) {
      const auto [sorted, order] = buckets.sort(/*stable=*/true, 2, false);
      rows = order.masked_fill(sorted.eq(kNoBucket), -1);
      // Kernels take 32 bits.
      same = segments ? torch::searchsorted(sorted, buckets)
                      : buckets.clamp_max(std::numeric_limits<int32_t>::max());
    }
  };

  struct Layouts {
    Layout places;                    // by the places of all tokens
    std::optional<Layout> back = {};  // from the first chunk to the last
  };

  Layouts layouts(int64_t count, bool causal) const {
    if (causal) return {Layout(count, count, window_of_keys(2 * chunk_, 0))};
    Layouts made{Layout(count, count, block_of_keys(chunk_, 1, next_ ? 1 : 0))};
    if (count > (least_chunks() - 1) * chunk_)
      made.back =
          Layout(count, chunk_, rows_of_queries({{0, chunk_}}, all_keys(), no_keys()));
    return made;
  }

  // So many chunks there must be for the first and the last to be no neighbours.
  int64_t least_chunks() const { return next_ ? 3 : 2; }

  // The options of a round, which drops weights of its own.
  static BlockAttention options_of(const Prepared& prepared, int64_t round) {
    BlockAttention options = prepared.options;
    options.dropout.key = mix(options.dropout.key, static_cast<uint64_t>(round));
    return options;
  }

  // Tokens with the last ones of their bucket.
  Attended band(const Prepared& prepared, const Round& round, const Layouts& layouts,
                const BlockAttention& options) const {
    Queries queries = prepared.queries;
    Source source = prepared.source;
    const int64_t keys = prepared.key_count(), before = keys - prepared.query_count();
    queries.rows = (round.rows - before).clamp_min(-1);
    queries.buckets = round.same.slice(2, before);
    source.rows = round.rows;
    source.rows_once = true;
    source.buckets = round.same;
    source.from = torch::arange(1, keys + 1, round.rows.options());
    source.layout = layouts.places;
    return block_attention(queries, {source}, options);
  }

  // Chunks with their neighbours; lengths: [B].
  Attended chunks(const Prepared& prepared, const Round& round, const Layouts& layouts,
                  const Tensor& lengths, const BlockAttention& options) const {
    Queries queries = prepared.queries;
    Source near = prepared.source;
    const int64_t count = prepared.key_count();
    const auto whole = round.rows.options();
    queries.rows = near.rows = round.rows;
    near.rows_once = true;
    if (own_bucket_) queries.buckets = near.buckets = round.same;
    near.outside = true;  // of the token itself
    near.from = torch::arange(count, whole);
    near.to = near.from + 1;
    near.layout = layouts.places;
    if (!layouts.back) return block_attention(queries, {near}, options);

    const Tensor number = chunks_of(lengths).view({-1, 1, 1});
    const Tensor none = number.lt(least_chunks());
    const Tensor places =  // of the last chunk, [B, 1, c]
        (number - 1).clamp_min(0) * chunk_ + torch::arange(chunk_, whole);
    Source last = near, first = near;
    last.rows =
        round.rows
            .gather(2, places.clamp_max(count - 1).expand({-1, round.rows.size(1), -1}))
            .masked_fill(none.logical_or(places.ge(count)), -1);
    last.layout = layouts.back;
    const Attended most = block_attention(queries, {near, last}, options);
    if (!next_) return most;
    queries.rows = last.rows;
    first.rows = round.rows.slice(2, 0, chunk_).masked_fill(none, -1);
    first.layout = std::nullopt;
    return merge({most, block_attention(queries, {first}, options)});
  }

  // For one token more, [B, H, R, w]: the last ones of its buckets, -1 for none.
  Tensor seen_by_last(const Tensor& buckets) const {
    const int64_t before = buckets.size(3) - 1;
    const Tensor alike = buckets.slice(3, 0, before).eq(buckets.slice(3, before));
    const Tensor numbers = torch::arange(before, buckets.options());
    return std::get<0>(torch::where(alike, numbers, torch::full_like(numbers, -1))
                           .topk(std::min(2 * chunk_, before), 3));
  }

  std::vector<Attended> step(const Prepared& prepared, const Tensor& buckets) const {
    const Tensor seen = seen_by_last(buckets);
    Queries queries = prepared.queries;
    Source source = prepared.source;
    queries.buckets = source.buckets = Tensor();
    source.rows_once = true;
    std::vector<Attended> parts;
    for (int64_t round = 0; round < rounds_; ++round) {
      source.rows = seen.select(2, round);
      parts.push_back(block_attention(queries, {source}, options_of(prepared, round)));
    }
    return parts;
  }

  std::vector<Attended> rounds(const Prepared& prepared, const Tensor& buckets,
                               const Pass& pass) const {
    const bool causal = pass.mask.causal, segments = prepared.source.buckets.defined();
    const Layouts layouts = this->layouts(prepared.key_count(), causal);
    const Tensor real = lengths(prepared.queries.q, pass);
    std::vector<Attended> parts;
    for (int64_t number = 0; number < rounds_; ++number) {
      const Round round(buckets.select(2, number).contiguous(), segments);
      const BlockAttention options = options_of(prepared, number);
      parts.push_back(causal ? band(prepared, round, layouts, options)
                             : chunks(prepared, round, layouts, real, options));
    }
    return parts;
  }

  // What a token gives that sees no other.
  static Tensor alone(const Prepared& prepared, const Tensor& v) {
    if (prepared.options.dropout.probability == 0) return v;
    const Tensor& q = prepared.queries.q;
    const Layout itself(q.size(2), q.size(2), window_of_keys(0, 0));
    return block_attention({.q = q}, {{.k = q, .v = v, .layout = itself}},
                           prepared.options)
        .out;
  }

  Tensor run(const Tensor& q, const Tensor& k, const Tensor& v, Pass& pass) override {
    check_shared(q, k);
    Tensor buckets = buckets_of(q, pass);
    Prepared prepared = prepare(q, unit(q), v, pass);
    prepared.options.scale = scale_;
    prepared.source.to = Tensor();  // places of padding are empty
    if (Record* const state = pass.state) {
      const Tensor past = state->get("buckets");
      if (past.defined()) buckets = torch::cat({past, buckets}, 3);
      state->set("buckets", buckets);
    }
    const bool one_more = q.size(2) == 1 && prepared.key_count() > 1;
    const std::vector<Attended> parts =
        one_more ? step(prepared, buckets) : rounds(prepared, buckets, pass);
    const Attended all = parts.size() == 1 ? parts[0] : merge(parts);
    return torch::where(all.lse.isneginf().unsqueeze(3), alone(prepared, v), all.out);
  }

  static void check_shared(const Tensor& q, const Tensor& k) {
    require(k.is_same(q) || (k.is_alias_of(q) && k.data_ptr() == q.data_ptr()),
            "queries and keys are one, so k must be the tensor q, got another");
  }

  // x / |x|
  static Tensor unit(const Tensor& x) {
    const Tensor wide = at_least_float(x);
    const Tensor squares =
        longspan::sum_to(wide * wide, {x.size(0), x.size(1), x.size(2), 1});
    const Tensor factor = squares.clamp_min(kLeastNorm * kLeastNorm).rsqrt();
    return (wide * spread(factor, wide.sizes())).to(x.scalar_type());
  }

  Tensor define(const Tensor& q, const Tensor& k, const Tensor& v,
                Pass& pass) override {
    check_shared(q, k);
    const int64_t count = q.size(2);
    const auto whole = q.options().dtype(torch::kLong);
    const Tensor turns =
        rotations(pass).to(q.device(), at_least_float(q).scalar_type());
    const Tensor at = torch::arange(count, whole), sizes = lengths(q, pass);
    const Pair counts(bucket_counts(q, pass));
    const auto pairs = [](const Tensor& x) {  // [.., n] -> [.., n, 1] and [.., 1, n]
      return std::pair(x.unsqueeze(-1), x.unsqueeze(-2));
    };
    // argmax([y; -y]) over n / 2 directions from `from` on, [H, N].
    const auto hash = [&](const Tensor& x, int64_t round, int64_t from, int64_t n) {
      if (n < 2) return torch::zeros({x.size(0), count}, whole);
      const Tensor y = x.matmul(turns.select(2, round).slice(2, from, from + n / 2));
      return torch::cat({y, -y}, 2).argmax(2);
    };

    std::vector<Tensor> examples;  // how often a round shows each pair, [H, N, N]
    for (int64_t example = 0; example < q.size(0); ++example) {
      const Tensor x = at_least_float(q[example].detach());
      const auto first = counts.first[example].item<int64_t>(),
                 second = counts.second[example].item<int64_t>(),
                 tokens = sizes[example].item<int64_t>();
      Tensor times = torch::zeros({q.size(1), count, count}, whole);
      for (int64_t round = 0; round < rounds_; ++round) {
        Tensor bucket =
            hash(x, round, 0, first) + first * hash(x, round, directions_, second);
        if (pass.mask.segment.defined())
          bucket = bucket + all_buckets_ * pass.mask.segment[example].to(whole);
        if (pass.mask.tokens.defined())
          bucket = bucket.masked_fill(
              pass.mask.tokens[example].to(q.device()).logical_not(), kNoBucket);
        const auto [mine, other] = pairs(bucket);
        const auto [i, j] = pairs(at);
        const Tensor earlier =
            other.lt(mine).logical_or(other.eq(mine).logical_and(j < i));
        const auto [place, place_of_key] = pairs(earlier.sum(2));
        const Tensor alike = mine.eq(other);
        Tensor seen;
        if (pass.mask.causal) {
          const Tensor behind = place - place_of_key;
          seen = alike.logical_and(behind > 0).logical_and(behind <= 2 * chunk_);
        } else {
          const int64_t chunks = std::max<int64_t>((tokens + chunk_ - 1) / chunk_, 1);
          const auto chunk_at = [&](const Tensor& places) {
            return torch::div(places, chunk_, "floor");
          };
          const Tensor behind =
              (chunk_at(place) - chunk_at(place_of_key)).remainder(chunks);
          seen = behind <= 1;
          if (next_) seen = seen.logical_or(behind == chunks - 1);
          if (own_bucket_) seen = seen.logical_and(alike);
        }
        seen = seen.logical_and(i != j).logical_and(other != kNoBucket);
        times = times + seen.to(torch::kLong);
      }
      examples.push_back(times);
    }
    const Tensor times = examples.empty()
                             ? torch::zeros({0, q.size(1), count, count}, whole)
                             : torch::stack(examples);
    Tensor seen = times > 0;
    if (pass.mask.segment.defined()) {
      const auto [mine, other] = pairs(pass.mask.segment.to(whole).unsqueeze(1));
      seen = seen.logical_and(mine == other);
    }
    Pass weighed = pass;
    const Tensor often = times.clamp_min(1).to(q.scalar_type()).log();
    Tensor& dense = weighed.bias.dense;
    dense = dense.defined() ? dense + often : often;
    const Tensor keys =
        q /
        at_least_float(q).norm(2, 3, true).clamp_min(kLeastNorm).to(q.scalar_type());
    return torch::where(seen.any(3, /*keepdim=*/true),
                        masked_attention(q, keys, v, seen, weighed, scale_), v);
  }

  int64_t chunk_, rounds_, buckets_;
  double scale_;
  bool next_, own_bucket_, redraw_, has_longest_;
  int64_t most_, all_buckets_, directions_;
  Tensor rotations_;  // [H, d, R, C]: the directions of both hashes
};

constexpr Setting kSettings[] = {
    {.name = "chunk",
     .standard = "64",
     .help = "tokens of a chunk, which sees itself and the one before; causal: a token "
             "sees twice as many of its bucket",
     .least = 1},
    {.name = "rounds", .standard = "4", .help = "hashes of every token", .least = 1},
    {.name = "buckets",
     .standard = "0",
     .help = "buckets of a hash, even, or 1 for all tokens; above 128 the next product "
             "of two even numbers; 0: two for every chunk, causal: of the longest "
             "sequence",
     .least = 0},
    {.name = "next",
     .kind = Kind::boolean,
     .standard = "false",
     .help = "a chunk sees the one after it, too; not causal"},
    {.name = "own_bucket",
     .kind = Kind::boolean,
     .standard = "false",
     .help = "tokens see only those of their bucket, as they always do if causal"},
    {.name = "qk_scale",
     .kind = Kind::number,
     .standard = "1.0",
     .help = "scores are so many times the product of a query and a key of length 1"},
    {.name = "redraw",
     .kind = Kind::boolean,
     .standard = "true",
     .help = "other hashes in every pass of training"},
};

// Kitaev et al.'s own implementation in Trax; the Long Range Arena's of ListOps.
constexpr Preset kPresets[] = {
    {"trax", "{chunk: 128}"},
    {"lra", "{chunk: 200, rounds: 1, buckets: 10}"},
};

}  // namespace

constinit const Mechanism catalogue::reformer{
    .name = "reformer",
    .summary = "attention among tokens that hashes put into one bucket",
    .paper = "Kitaev et al. 2020, arXiv:2001.04451",
    .classes = "learnable patterns",
    .time = {"N*rounds*(chunk*d + buckets*d + log(N))", 1},
    .memory = {"N*rounds*d", 1},
    .can = {.causal = Causal::optional,
            .padding = true,
            .decoding = true,
            .bias = true,
            .segments = true,
            .dropout = true},
    .state = "keys, values and buckets of all tokens: N*H*(d + dv + rounds)",
    .state_size =
        [](const Settings& settings, const Sizes& sizes, int64_t tokens) {
          // And of each token whether it counts, and its segment.
          return tokens * (sizes.heads * (sizes.head_width + sizes.value_width +
                                          settings.integer("rounds")) +
                           2);
        },
    .projections = Projections::qk_v,
    .by_content = true,
    .settings = kSettings,
    .presets = kPresets,
    .test_settings = "{chunk: 8, rounds: 2, buckets: 6}",
    .make = made_as<Attention, Reformer>(),
};

}  // namespace longspan
