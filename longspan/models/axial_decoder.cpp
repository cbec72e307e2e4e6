// The causal Axial Transformer of images in raster order: an outer part that sees whole
// rows above, moved down by a row, then an inner part that sees the row so far, moved
// right by a token. Ho et al. 2019, arXiv:1912.12180.
//
// What comes out at a token depends on the tokens before it alone: it predicts it.

#include "longspan/attention/projected.h"
#include "longspan/base/error.h"
#include "longspan/kernels/total.h"
#include "longspan/models/block.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr Setting kSettings[] = {
    {.name = "width", .standard = "32", .help = "tokens in a row", .least = 1},
    {.name = "outer",
     .standard = "1",
     .help = "pairs of layers over the rows above: along rows, then along columns",
     .least = 0},
    {.name = "inner",
     .standard = "2",
     .help = "layers along the row so far",
     .least = 1},
};

class AxialDecoder final : public Stack {
 public:
  AxialDecoder(const Settings& settings, const Sizes& sizes)
      : width_(settings.integer("width")), embedding_(sizes.embedding) {
    require(sizes.longest >= 1,
            "the longest sequence must be known, for the positions of rows");
    const int64_t rows = (sizes.longest + width_ - 1) / width_;
    row_positions_ =
        register_parameter("row_positions", torch::randn({rows, embedding_}) * 0.02);
    column_positions_ = register_parameter("column_positions",
                                           torch::randn({width_, embedding_}) * 0.02);
    const auto layer = [&](const std::string& name, int axis) {
      const Value::Map along = {{"shape", Value(Value::List{Value(0), Value(width_)})},
                                {"axis", Value(axis)}};
      return register_module(
          name, std::make_shared<Block>(make_mixer(catalogue::axial, sizes, along),
                                        sizes, BlockOptions{}));
    };
    for (int64_t i = 0; i < settings.integer("outer"); ++i) {
      along_rows_.push_back(layer("outer_row" + std::to_string(i), 1));
      along_columns_.push_back(layer("outer_column" + std::to_string(i), 0));
    }
    for (int64_t i = 0; i < settings.integer("inner"); ++i)
      inner_.push_back(layer("inner" + std::to_string(i), 1));
    norm_ = register_module(
        "norm", std::make_shared<LayerNorm>(embedding_, BlockOptions{}.norm_epsilon));
  }

  static int64_t state_size(const Settings& settings, const Sizes& sizes,
                            int64_t tokens) {
    const int64_t width = settings.integer("width"),
                  key = sizes.key_heads * (sizes.head_width + sizes.value_width) + 1;
    return settings.integer("outer") * tokens * key +
           settings.integer("inner") * width * key + width * (2 * sizes.embedding + 1);
  }

 private:
  Stream run(const Tensor& x, Pass& pass) override {
    require(x.size(1) <= row_positions_.size(0) * width_, "made for sequences of ",
            row_positions_.size(0) * width_, " tokens, got ", x.size(1));
    if (pass.state) return {.x = steps(x, pass), .tokens = pass.mask.tokens};
    const int64_t tokens = x.size(1);
    const Tensor h = without_padding(x, pass.mask.tokens), at = positions(0, tokens);
    const Tensor upper = outer(h + spread(at, h.sizes()), pass, &Block::forward);
    const Tensor moved =
        torch::constant_pad_nd(upper, {0, 0, width_, 0}).slice(1, 0, tokens);
    const Tensor before = torch::constant_pad_nd(h, {0, 0, 1, 0}).slice(1, 0, tokens);
    const Tensor first = torch::arange(tokens, torch::kLong).remainder(width_).eq(0);
    const Tensor left =
        before.masked_fill(first.to(x.device()).unsqueeze(0).unsqueeze(2), 0);
    return {.x = inner(left + moved + spread(at, h.sizes()), pass, &Block::forward),
            .tokens = pass.mask.tokens};
  }

  // On the grid of rows and columns, padded to whole rows.
  Stream define(const Tensor& x, Pass& pass) override {
    const int64_t tokens = x.size(1), rows = (tokens + width_ - 1) / width_,
                  missing = rows * width_ - tokens;
    const auto on_grid = [&](const Tensor& flat) {
      return torch::constant_pad_nd(flat, {0, 0, 0, missing})
          .view({flat.size(0), rows, width_, embedding_});
    };
    const auto flat = [&](const Tensor& grid) {
      return grid.flatten(1, 2).slice(1, 0, tokens);
    };
    const Tensor h = without_padding(x, pass.mask.tokens);
    const Tensor at =
        row_positions_.slice(0, 0, rows).unsqueeze(1) + column_positions_.unsqueeze(0);
    const Tensor upper = on_grid(outer(flat(on_grid(h) + at), pass, &Block::reference));
    const Tensor down = torch::cat(
        {torch::zeros_like(upper.slice(1, 0, 1)), upper.slice(1, 0, rows - 1)}, 1);
    const Tensor grid = on_grid(h);
    const Tensor right = torch::cat(
        {torch::zeros_like(grid.slice(2, 0, 1)), grid.slice(2, 0, width_ - 1)}, 2);
    return {.x = inner(flat(right + down + at), pass, &Block::reference),
            .tokens = pass.mask.tokens};
  }

  static Tensor without_padding(const Tensor& x, const Tensor& tokens) {
    return tokens.defined() ? x.masked_fill(tokens.logical_not().unsqueeze(2), 0) : x;
  }

  // [n, E], of the tokens from `first` on.
  Tensor positions(int64_t first, int64_t count) const {
    const auto at = torch::arange(first, first + count,
                                  row_positions_.options().dtype(torch::kLong));
    return torch::embedding(row_positions_, torch::div(at, width_, "floor")) +
           torch::embedding(column_positions_, at.remainder(width_));
  }

  template <class Form>
  Tensor outer(Tensor u, Pass& pass, Form form) {
    for (size_t i = 0; i < along_rows_.size(); ++i) {
      Pass row;
      row.mask.tokens = pass.mask.tokens;
      row.training = pass.training;
      u = ((*along_rows_[i]).*form)(u, row);
      const Inside part(pass, "outer" + std::to_string(i));
      u = ((*along_columns_[i]).*form)(u, pass);
    }
    return u;
  }

  template <class Form>
  Tensor inner(Tensor r, Pass& pass, Form form) {
    for (size_t i = 0; i < inner_.size(); ++i) {
      const Inside part(pass, "inner" + std::to_string(i));
      r = ((*inner_[i]).*form)(r, pass);
    }
    return norm_->forward(r);
  }

  // New tokens, row by row: a row that is complete goes through the outer part and is
  // what the next row sees above it.
  Tensor steps(const Tensor& x, Pass& pass) {
    Record& state = *pass.state;
    const int64_t examples = x.size(0), count = x.size(1);
    const Tensor tokens =
        pass.mask.tokens.defined()
            ? pass.mask.tokens
            : torch::ones({examples, count}, x.options().dtype(torch::kBool));
    const Tensor h = without_padding(x, tokens);
    require(state.tokens + count <= row_positions_.size(0) * width_,
            "made for sequences of ", row_positions_.size(0) * width_, " tokens, got ",
            state.tokens + count);
    if (state.tokens == 0) {
      state.set("row", h.slice(1, 0, 0));
      state.set("row_tokens", tokens.slice(1, 0, 0));
      state.set("upper", torch::zeros({examples, width_, embedding_}, x.options()));
    }
    std::vector<Tensor> outs;
    for (int64_t done = 0; done < count;) {
      const int64_t column = state.tokens % width_,
                    now = std::min(count - done, width_ - column);
      const Tensor row =
          torch::cat({state.get("row"), h.slice(1, done, done + now)}, 1);
      const Tensor real =
          torch::cat({state.get("row_tokens"), tokens.slice(1, done, done + now)}, 1);
      const Tensor left =
          torch::constant_pad_nd(row, {0, 0, 1, 0}).slice(1, column, column + now);
      const Tensor above = state.get("upper").slice(1, column, column + now);
      Pass part = pass;
      part.mask.tokens = real.slice(1, column);
      outs.push_back(
          inner(left + above + positions(state.tokens, now), part, &Block::forward));
      const bool complete = column + now == width_;
      if (complete) {
        part.mask.tokens = real;
        state.set("upper", outer(row + positions(state.tokens - column, width_), part,
                                 &Block::forward));
      }
      state.set("row", complete ? row.slice(1, 0, 0) : row);
      state.set("row_tokens", complete ? real.slice(1, 0, 0) : real);
      state.tokens += now;
      done += now;
    }
    return outs.empty() ? h : torch::cat(outs, 1);
  }

  int64_t width_, embedding_;
  Tensor row_positions_, column_positions_;
  std::vector<std::shared_ptr<Block>> along_rows_, along_columns_, inner_;
  std::shared_ptr<LayerNorm> norm_;
};

}  // namespace

constinit const Mechanism catalogue::axial_decoder{
    .name = "axial_decoder",
    .summary =
        "rows above by axial attention moved down, then the row so far moved right",
    .paper = "Ho et al. 2019, arXiv:1912.12180",
    .classes = "fixed patterns",
    .time = {"N*sqrt(N)*d", 1.5},
    .memory = {"N*E", 1},
    .can = {.causal = Causal::always, .padding = true, .decoding = true},
    .state =
        "keys and values of all tokens in the outer part, of a row in the inner "
        "part, and two rows of tokens",
    .state_size = AxialDecoder::state_size,
    .projections = Projections::none,
    .keeps = {.residual = false, .norm = false, .feed_forward = false},
    .full = true,
    .predicts = true,
    .settings = kSettings,
    .test_settings = "{width: 9, outer: 1, inner: 1}",
    .make = made_as<Stack, AxialDecoder>(),
};

}  // namespace longspan
