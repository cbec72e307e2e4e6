#include "longspan/attention/combiner_axial.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "longspan/attention/linear_map.h"
#include "longspan/attention/pattern_attention.h"
#include "longspan/kernels/lse_merge.h"

namespace longspan {
namespace {

using torch::Tensor;

// Tokens in whole rows, or in whole columns: lines of equal length, one after the
// other.
struct Lines {
  Tensor q, k, v;    // [B, H | Hk, lines * length, w]
  Tensor real = {};  // [B, lines * length] bool; undefined: all are
  int64_t length;

  int64_t count() const { return q.size(2); }
  Tensor to() const { return real.defined() ? open_where(real) : real; }
};

// Line by line to the lines across: [.., count, w] -> [.., count, w].
Tensor across(const Tensor& x, int64_t length) {
  return x.unflatten(-2, {x.size(-2) / length, length})
      .transpose(-3, -2)
      .flatten(-3, -2);
}

Lines across(const Lines& lines) {
  const auto turned = [&](const Tensor& x) { return across(x, lines.length); };
  return {.q = turned(lines.q),
          .k = turned(lines.k),
          .v = turned(lines.v),
          .real = lines.real.defined() ? turned(lines.real.unsqueeze(-1)).squeeze(-1)
                                       : lines.real,
          .length = lines.count() / lines.length};
}

// Which tokens of a line a token meets, itself being number `at`.
enum class Along { until, before, after, others };

void push(Along along, int64_t at, int64_t begin, int64_t length,
          std::vector<Span>& seen) {
  const int64_t end = begin + length, place = begin + at;
  if (along == Along::until) seen.push_back({begin, place + 1});
  if (along == Along::before || along == Along::others) seen.push_back({begin, place});
  if (along == Along::after || along == Along::others) seen.push_back({place + 1, end});
}

// Tokens see those of their own line, `along` it.
Layout own_line(int64_t count, int64_t length, Along along) {
  return Layout(count, count, [=](int64_t token, std::vector<Span>& seen) {
    push(along, token % length, token / length * length, length, seen);
  });
}

// x of the neighbour before in the line: [.., count, w]; 0 for the first.
Tensor moved(const Tensor& x, int64_t length) {
  const Tensor lines = x.unflatten(-2, {x.size(-2) / length, length});
  return torch::constant_pad_nd(lines, {0, 0, 1, 0})
      .slice(-2, 0, length)
      .flatten(-3, -2);
}

PoolInputs inputs(const Tensor& x, const Tensor& real) {
  return {.x = x, .keep = real.defined() ? real.unsqueeze(1) : real};
}

// Of every token those of its line up to it. Means are sums, with how many they are of.
struct UpTo {
  Tensor out;     // [B, H, count, w]
  Tensor number;  // [B|1, 1, count, 1], for means

  UpTo(const Tensor& x, const Tensor& real, int64_t length, Pooling how)
      : out(pool_prefixes(inputs(x, real), length,
                          how == Pooling::mean ? Pooling::sum : how)
                .out) {
    if (how != Pooling::mean) return;
    const Tensor counted =
        real.defined() ? real
                       : torch::ones({1, x.size(2)}, x.options().dtype(torch::kBool));
    number = counted.unflatten(1, {x.size(2) / length, length})
                 .cumsum(2)
                 .flatten(1)
                 .unsqueeze(1)
                 .unsqueeze(3);
  }

  Tensor pooled() const {
    return number.defined() ? out / number.clamp_min(1).to(out.scalar_type()) : out;
  }

  // Those before it.
  UpTo before(int64_t length) const {
    UpTo result = *this;
    result.out = moved(out, length);
    if (number.defined()) result.number = moved(number, length);
    return result;
  }
};

// Of every token the largest of the others of its line: the largest of all, except
// where that is its own. 0 where there are no others.
Tensor largest_of_others(const Tensor& x, const Tensor& real, int64_t length) {
  const int64_t count = x.size(2);
  const std::vector<Span> lines = equal_spans(count, length, length);
  const auto by_line = [&](const Tensor& y) { return y.unflatten(2, {-1, length}); };
  const Tensor place = largest_places(inputs(x.detach(), real), lines);
  const Tensor own =
      by_line(torch::arange(count, place.options()).view({1, 1, count, 1}))
          .eq(place.unsqueeze(3))
          .flatten(2, 3);
  const auto largest = [&](const Tensor& y) {
    return pool_spans(inputs(y, real), lines, Pooling::max).out.unsqueeze(3);
  };
  constexpr double kNothing = -std::numeric_limits<double>::infinity();
  const Tensor next = largest(x.masked_fill(own, kNothing));
  return torch::where(by_line(own), next.masked_fill(next.eq(kNothing), 0), largest(x))
      .flatten(2, 3);
}

Tensor mean_of_others(const Tensor& x, const Tensor& real, int64_t length) {
  const auto by_line = [&](const Tensor& y) { return y.unflatten(2, {-1, length}); };
  const Tensor sum =
      pool_spans(inputs(x, real), equal_spans(x.size(2), length, length), Pooling::sum)
          .out.unsqueeze(3);
  if (!real.defined())
    return ((sum - by_line(x)) / std::max<int64_t>(length - 1, 1)).flatten(2, 3);
  const Tensor is_real = by_line(real.unsqueeze(1).unsqueeze(3));
  const Tensor number = is_real.sum(3, /*keepdim=*/true) - is_real.to(torch::kLong);
  return ((sum - by_line(x).masked_fill(is_real.logical_not(), 0)) /
          number.clamp_min(1).to(x.scalar_type()))
      .flatten(2, 3);
}

// Of every token the pooled x [B, H, count, w] of those of its line that it meets.
Tensor pooled(const Tensor& x, const Lines& lines, Along along, Pooling how) {
  const int64_t length = lines.length;
  const bool mean = how == Pooling::mean;
  const auto flipped = [](const Tensor& y, int64_t axis) {
    return y.defined() ? y.flip(axis) : y;
  };
  const Tensor wide = mean ? at_least_float(x) : x;
  const auto of = [&]() -> Tensor {
    switch (along) {
      case Along::until: return UpTo(wide, lines.real, length, how).pooled();
      case Along::before:
        return UpTo(wide, lines.real, length, how).before(length).pooled();
      case Along::after:
        return UpTo(wide.flip(2), flipped(lines.real, 1), length, how)
            .before(length)
            .pooled()
            .flip(2);
      case Along::others:
        return mean ? mean_of_others(wide, lines.real, length)
                    : largest_of_others(wide, lines.real, length);
    }
    TORCH_INTERNAL_ASSERT(false);
  };
  return of().to(x.scalar_type());
}

// A summary for every token, of those of its line that it meets, by `members`.
Summaries summaries_along(const SpanPooling& pooling, const Lines& lines, Along along,
                          const Layout& members) {
  const auto of = [&](const Tensor& x) {
    return pooled(x, lines, along, pooling.how());
  };
  return pooling.summaries(
      of(pooling.of_queries(lines.q)), of(pooling.of_keys(lines.k)),
      {.k = lines.k, .v = lines.v, .layout = members, .to = lines.to()});
}

Summaries across(const Summaries& lines, int64_t length) {
  return {.k = across(lines.k, length),
          .v = across(lines.v, length),
          .valid = lines.valid.defined()
                       ? across(lines.valid.unsqueeze(-1), length).squeeze(-1)
                       : lines.valid};
}

// How the summaries of a row are cut, and where a state keeps them.
struct Side {
  Along along;
  const char* name;
};

std::vector<Side> sides_of(Axial part) {
  switch (part) {
    case Axial::vertical: return {};
    case Axial::horizontal: return {{Along::others, "rows"}};
    case Axial::joint: return {{Along::before, "left"}, {Along::after, "right"}};
  }
  TORCH_INTERNAL_ASSERT(false);
}

Summaries kept_in(Record& state) {
  return {.k = state.get("k"), .v = state.get("v"), .valid = state.get("valid")};
}

// Pools the columns of new rows into those of the rows before, and makes summaries
// anew. `tokens` are all so far.
void add_to_columns(Record& state, const SpanPooling& pooling, const Lines& columns,
                    Source tokens) {
  const bool mean = pooling.how() == Pooling::mean;
  const int64_t fresh = columns.length, width = columns.count() / fresh;
  Record& pools = state.part("pools");
  const Tensor before = pools.get("count");  // [B, width]: of real tokens
  const Tensor now = columns.real.unflatten(1, {width, fresh}).sum(2);
  const Tensor count = before.defined() ? before + now : now;
  pools.set("count", count);
  const auto of_columns = [](const Tensor& x) { return x.unsqueeze(1).unsqueeze(3); };
  const auto pooled = [&](const char* name, const Tensor& x) {
    Tensor pool = pool_spans({.x = x, .keep = columns.real.unsqueeze(1)},
                             equal_spans(width * fresh, fresh, fresh),
                             mean ? Pooling::sum : Pooling::max)
                      .out;
    if (mean) pool = at_least_float(pool);
    if (const Tensor past = pools.get(name); past.defined())
      pool = mean ? past + pool
                  : torch::where(of_columns(before == 0), pool,
                                 torch::where(of_columns(now == 0), past,
                                              torch::maximum(past, pool)));
    pools.set(name, pool);
    if (!mean) return pool;
    return (pool / of_columns(count.clamp_min(1)).to(pool.scalar_type()))
        .to(x.scalar_type());
  };

  const int64_t rows = tokens.k.size(2) / width;
  tokens.rows = torch::tensor(by_residue(width, width * rows), torch::kLong)
                    .to(columns.q.device());
  tokens.rows_once = true;
  tokens.layout =
      Layout(width, width * rows, [&](int64_t column, std::vector<Span>& seen) {
        seen.push_back({column * rows, (column + 1) * rows});
      });
  const Summaries made =
      pooling.summaries(pooled("q", pooling.of_queries(columns.q)),
                        pooled("k", pooling.of_keys(columns.k)), tokens);
  Record& kept = state.part("columns");
  kept.set("k", made.k);
  kept.set("v", made.v);
  kept.set("valid", made.valid);
}

}  // namespace

struct CombinerAxial::Grid {
  Lines rows, columns;
};

// What is known about a part before any tensor is. Tokens without a neighbour have no
// summary on that side: none of these are seen.
struct CombinerAxial::Laid {
  struct OfSide {
    Along along;
    Layout members, seen;
  };

  Layout row, column;                   // the tokens that a token sees
  std::optional<Layout> members, seen;  // of the summaries of columns
  std::vector<OfSide> sides;
};

CombinerAxial::Laid CombinerAxial::laid(const Place& place) const {
  const auto [part, count, causal] = place;
  const int64_t width = width_, height = count / width;
  const Along past = causal ? Along::before : Along::others;
  Laid laid{.row = causal ? own_line(count, width, Along::until)
                          : Layout(count, count, block_of_keys(width)),
            .column = own_line(count, height, past),
            .members = {},
            .seen = {},
            .sides = {}};
  if (part != Axial::horizontal) {
    laid.members = own_line(count, height, causal ? Along::until : Along::others);
    // Causal: the summary of what is above stands in the row above.
    const int64_t up = causal ? width : 0;
    laid.seen = Layout(count, count, [=](int64_t token, std::vector<Span>& seen) {
      const int64_t row = token / width * width - up;
      if (row >= 0 && (causal || height > 1))
        push(Along::others, token % width, row, width, seen);
    });
  }
  for (const Side& side : sides_of(part)) {
    const Along along = side.along;
    const auto is_empty = [=](int64_t column) {
      return (along != Along::after && column == 0 &&
              (along == Along::before || width == 1)) ||
             (along == Along::after && column == width - 1);
    };
    laid.sides.push_back(
        {.along = along,
         .members = own_line(count, width, along),
         .seen = Layout(count, count, [=](int64_t token, std::vector<Span>& seen) {
           if (!is_empty(token / height))
             push(past, token % height, token / height * height, height, seen);
         })});
  }
  return laid;
}

// A query's row, then its column without it, each with the summaries that lie along it.
Tensor CombinerAxial::attended(const Grid& grid, Axial part, Pass& pass) {
  const auto& [rows, columns] = grid;
  const int64_t width = rows.length, height = columns.length;
  const Place place{part, rows.count(), pass.mask.causal};
  const auto laid = laid_.get(place, [&] { return this->laid(place); });
  std::vector<Source> in_row = {
      {.k = rows.k, .v = rows.v, .layout = laid->row, .to = rows.to()}};
  std::vector<Source> in_column = {
      {.k = columns.k, .v = columns.v, .layout = laid->column, .to = columns.to()}};
  if (laid->members)
    in_row.push_back(
        across(summaries_along(pooling(), columns,
                               pass.mask.causal ? Along::until : Along::others,
                               *laid->members),
               height)
            .source(*laid->seen));
  for (const auto& [along, members, seen] : laid->sides)
    in_column.push_back(
        across(summaries_along(pooling(), rows, along, members), width).source(seen));

  const auto attend = [&](const Tensor& q, const std::vector<Source>& sources) {
    BlockAttention options;
    if (pass.training && pass.dropout > 0)
      options.dropout = {.probability = pass.dropout, .key = pass.draw.key()};
    return block_attention({.q = q}, sources, options);
  };
  const Attended by_column = attend(columns.q, in_column);
  return merge({attend(rows.q, in_row),
                {.out = across(by_column.out, height),
                 .lse = across(by_column.lse.unsqueeze(-1), height).squeeze(-1)}})
      .out;
}

Tensor CombinerAxial::whole(const Tensor& q, const Tensor& k, const Tensor& v,
                            Pass& pass) {
  const int64_t tokens = q.size(2), missing = (width_ - tokens % width_) % width_;
  const auto whole = [&](const Tensor& x) {
    return missing > 0 ? torch::constant_pad_nd(x, {0, 0, 0, missing}) : x;
  };
  Tensor real;
  if (pass.mask.tokens.defined())
    real = pass.mask.tokens.to(q.device());
  else if (missing > 0)
    real = torch::ones({q.size(0), tokens}, q.options().dtype(torch::kBool));
  if (missing > 0) real = torch::constant_pad_nd(real, {0, missing});
  const Lines rows{
      .q = whole(q), .k = whole(k), .v = whole(v), .real = real, .length = width_};
  const Grid grid{.rows = rows, .columns = across(rows)};
  Tensor sum;
  for (const Axial part : parts_) {
    const Tensor one = attended(grid, part, pass);
    sum = sum.defined() ? sum + one : one;
  }
  if (parts_.size() > 1) sum = sum / static_cast<int64_t>(parts_.size());
  return sum.slice(2, 0, tokens);
}

Tensor CombinerAxial::run(const Tensor& q, const Tensor& k, const Tensor& v,
                          Pass& pass) {
  if (q.size(2) == 0) return q.new_zeros({q.size(0), q.size(1), 0, v.size(3)});
  if (!pass.state) return whole(q, k, v, pass);
  Record& state = *pass.state;
  if (state.tokens == 0) {
    const Tensor out = whole(q, k, v, pass);
    add_rows(state, q, prepare(q, k, v, pass).source);
    return out;
  }
  std::vector<Tensor> outs;  // row by row
  for (int64_t done = 0, now = 0; done < q.size(2); done += now) {
    now = std::min(q.size(2) - done, width_ - state.tokens % width_);
    const auto some = [&](const Tensor& x) { return x.slice(2, done, done + now); };
    Pass part = pass;
    if (pass.mask.tokens.defined())
      part.mask.tokens = pass.mask.tokens.slice(1, done, done + now);
    outs.push_back(step(some(q), some(k), some(v), part));
    pass.draw = part.draw;
  }
  if (!outs.empty()) return torch::cat(outs, 2);
  return torch::zeros({q.size(0), q.size(1), 0, v.size(3)}, v.options());
}

// New tokens of one row.
Tensor CombinerAxial::step(const Tensor& q, const Tensor& k, const Tensor& v,
                           Pass& pass) const {
  Record& state = *pass.state;
  Prepared prepared = prepare(q, k, v, pass);
  auto& [queries, source, options, global, order] = prepared;
  const int64_t count = q.size(2), first = queries.first,
                begin = first / width_ * width_;
  const auto in_column = [&](int64_t query, std::vector<Span>& seen) {
    for (int64_t at = (first + query) % width_; at < begin; at += width_)
      seen.push_back({at, at + 1});
  };
  source.layout =
      Layout(count, source.k.size(2), [&](int64_t query, std::vector<Span>& seen) {
        in_column(query, seen);
        seen.push_back({begin, first + query + 1});
      });
  const auto in_other_columns = [&](int64_t query, std::vector<Span>& seen) {
    push(Along::others, first + query - begin, 0, width_, seen);
  };
  Tensor sum;
  for (const Axial part : parts_) {
    std::vector<Source> sources = {source};
    if (begin > 0 && part != Axial::horizontal)
      sources.push_back(kept_in(state.part("columns"))
                            .source(Layout(count, width_, in_other_columns)));
    if (begin > 0)
      for (const Side& side : sides_of(part))
        sources.push_back(
            kept_in(state.part(side.name)).source(Layout(count, begin, in_column)));
    if (sum.defined() && pass.training && pass.dropout > 0)
      options.dropout.key = pass.draw.key();
    const Tensor one = block_attention(queries, sources, options).out;
    sum = sum.defined() ? sum + one : one;
  }
  add_rows(state, q, source);
  return sum / static_cast<int64_t>(parts_.size());
}

// Makes summaries of the rows that the new queries complete; `tokens` are all so far.
void CombinerAxial::add_rows(Record& state, const Tensor& q,
                             const Source& tokens) const {
  const Tensor held = state.get("q");
  const Tensor all = held.defined() ? torch::cat({held, q}, 2) : q;
  const int64_t fresh = all.size(2) / width_ * width_,
                end = tokens.k.size(2) / width_ * width_, begin = end - fresh;
  state.set("q", all.slice(2, fresh));
  if (fresh == 0) return;
  const Lines rows{
      .q = all.slice(2, 0, fresh),
      .k = tokens.k.slice(2, begin, end),
      .v = tokens.v.slice(2, begin, end),
      .real = tokens.to.defined()
                  ? tokens.to.squeeze(1).slice(1, begin, end) > 0
                  : torch::ones({q.size(0), fresh}, q.options().dtype(torch::kBool)),
      .length = width_};
  for (const Axial part : parts_) {
    for (const Side& side : sides_of(part))
      summaries_along(pooling(), rows, side.along, own_line(fresh, width_, side.along))
          .joined(state.part(side.name));
    if (part != Axial::horizontal)
      add_to_columns(state, pooling(), across(rows), tokens);
  }
}

int64_t CombinerAxial::state_size(const Settings& settings, const Sizes& sizes,
                                  int64_t tokens, const std::vector<Axial>& parts) {
  const int64_t width = settings.integer("width"), left = tokens % width,
                query = sizes.heads * sizes.head_width,
                pools = query + sizes.key_heads * sizes.head_width + 1,
                summary = query + sizes.heads * sizes.value_width + 1;
  int64_t numbers = PatternAttention::numbers_kept(tokens, sizes) + left * query;
  for (const Axial part : parts) {
    if (part != Axial::horizontal) numbers += width * (pools + summary);
    numbers += static_cast<int64_t>(sides_of(part).size()) * (tokens - left) * summary;
  }
  return numbers;
}

std::vector<Combiner::Plan> CombinerAxial::plans(int64_t tokens, bool causal) const {
  std::vector<Plan> all;
  for (const Axial part : parts_) all.push_back(plan(part, tokens, causal));
  return all;
}

// Spans are numbered by the places (r, c) of whole rows.
Combiner::Plan CombinerAxial::plan(Axial part, int64_t tokens, bool causal) const {
  const Positions at(tokens);
  const Tensor place = torch::arange((tokens + width_ - 1) / width_ * width_);
  const auto row = [&](const Tensor& x) { return torch::div(x, width_, "floor"); };
  const auto column = [&](const Tensor& x) { return x.remainder(width_); };
  const Tensor cross =
      (row(at.query) == row(at.key)) | (column(at.query) == column(at.key));
  Plan plan{.direct = causal ? cross & (at.key <= at.query) : cross,
            .members = torch::zeros({0, tokens}, torch::kBool),
            .spans = torch::zeros({tokens, 0}, torch::kBool)};
  const auto add = [&](const Tensor& members, const Tensor& spans) {
    plan.members = torch::cat({plan.members, members});
    plan.spans = torch::cat({plan.spans, spans}, 1);
  };
  const Tensor of = place.unsqueeze(1), seen = place.unsqueeze(0);
  if (part != Axial::horizontal) {
    const Tensor same = column(of) == column(at.key);
    const Tensor other = column(seen) != column(at.query);
    if (causal)
      add(same & (row(at.key) <= row(of)), other & (row(seen) + 1 == row(at.query)));
    else
      add(same & (row(at.key) != row(of)), other & (row(seen) == row(at.query)));
  }
  if (part != Axial::vertical) {
    const Tensor same = row(of) == row(at.key);
    const Tensor visible =
        (column(seen) == column(at.query)) &
        (causal ? row(seen) < row(at.query) : row(seen) != row(at.query));
    if (part == Axial::horizontal) add(same & (column(at.key) != column(of)), visible);
    if (part == Axial::joint) {
      add(same & (column(at.key) < column(of)), visible);
      add(same & (column(at.key) > column(of)), visible);
    }
  }
  return plan;
}

}  // namespace longspan
