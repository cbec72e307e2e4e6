#include "longspan/models/vocabulary.h"

#include <cmath>

#include <torch/nn/init.h>

#include "longspan/attention/linear_map.h"
#include "longspan/base/error.h"
#include "longspan/kernels/matmul.h"

namespace longspan {

using torch::Tensor;

namespace {

// The rows [m] where `mask` [n] is true.
Tensor rows_where(const Tensor& mask) { return mask.nonzero().squeeze(1); }

}  // namespace

Tensor Vocabulary::Band::widened(const Tensor& x) const {
  return projection.defined() ? longspan::linear(x, at_least_float(projection)) : x;
}

Tensor Vocabulary::Band::scores(const Tensor& x) const {
  const Tensor narrow =
      projection.defined() ? longspan::linear(x, at_least_float(projection).t()) : x;
  return longspan::linear(narrow, at_least_float(vectors));
}

Vocabulary::Vocabulary(int64_t ids, int64_t width, const VocabularyOptions& options)
    : options_(options) {
  in_ = make_bands("embedding", ids, width);
  if (!options.predicts) return;
  out_ = options.tied ? in_ : make_bands("output", ids, width);
  if (options.cutoffs.empty())
    bias_ = register_parameter("bias", torch::zeros(ids));
  else
    bands_ = register_parameter(
        "bands", torch::randn({static_cast<int64_t>(options.cutoffs.size()), width}) /
                     std::sqrt(static_cast<double>(width)));
}

std::vector<Vocabulary::Band> Vocabulary::make_bands(const std::string& name,
                                                     int64_t ids, int64_t width) {
  const auto normal = [&](const std::string& called, int64_t count, int64_t wide) {
    const Tensor drawn = torch::randn({count, wide});
    const bool unit = !options_.predicts && options_.cutoffs.empty();
    return register_parameter(
        called, unit ? drawn : drawn / std::sqrt(static_cast<double>(wide)));
  };
  if (options_.cutoffs.empty()) return {{.vectors = normal(name, ids, width)}};
  require(options_.divisor >= 1, "model.divisor must be 1 or more, got ",
          options_.divisor);
  std::vector<Band> bands;
  int64_t first = 0, wide = width;
  for (size_t i = 0; i <= options_.cutoffs.size(); ++i) {
    const int64_t end = i < options_.cutoffs.size() ? options_.cutoffs[i] : ids;
    require(end > first, "model.cutoffs must grow from 1 or more and be less than the ",
            ids, " ids there are, got ", end, " after ", first);
    require(wide >= 1, "model.cutoffs: ids from ", first, " on would be narrower than ",
            "1; use fewer cutoffs or a smaller model.divisor than ", options_.divisor);
    const std::string number = std::to_string(i);
    Band band{.first = first,
              .vectors = normal(name + number, end - first, wide),
              .projection = register_parameter(name + "_projection" + number,
                                               torch::empty({width, wide}))};
    torch::nn::init::xavier_uniform_(band.projection);
    bands.push_back(band);
    first = end;
    wide /= options_.divisor;
  }
  return bands;
}

Tensor Vocabulary::embedded(const Tensor& ids) const {
  Tensor x;
  for (const Band& band : in_) {
    // Gradients of many tokens add up unrounded.
    const Tensor vectors = at_least_float(band.vectors);
    if (in_.size() == 1) {
      x = torch::embedding(vectors, ids);
      break;
    }
    const Tensor inside =
        (ids >= band.first).logical_and(ids < band.first + band.count());
    const Tensor own = (ids - band.first).masked_fill(inside.logical_not(), 0);
    const Tensor part = band.widened(torch::embedding(vectors, own))
                            .masked_fill(inside.logical_not().unsqueeze(-1), 0);
    x = x.defined() ? x + part : part;
  }
  if (!options_.predicts && options_.cutoffs.empty()) return x;
  return x * std::sqrt(static_cast<double>(x.size(-1)));
}

std::pair<Tensor, Tensor> Vocabulary::judge(const Tensor& x,
                                            const Tensor& targets) const {
  if (out_.size() > 1) return judge_bands(x, targets);
  const Tensor asked = targets >= 0;
  const Tensor log_p = log_probabilities(x);
  const Tensor at = targets.clamp_min(0);
  const Tensor loss = -log_p.gather(1, at.unsqueeze(1)).squeeze(1);
  return {loss * asked, (log_p.argmax(1) == at).logical_and(asked)};
}

Tensor Vocabulary::head(const Tensor& x) const {
  return torch::log_softmax(
      torch::cat({out_.front().scores(x), longspan::linear(x, at_least_float(bands_))},
                 -1),
      -1);
}

std::pair<Tensor, Tensor> Vocabulary::judge_bands(const Tensor& x,
                                                  const Tensor& targets) const {
  const Tensor wide = at_least_float(x), asked = targets >= 0;
  const Tensor log_head = head(wide);
  const int64_t common = out_.front().count();
  const auto inside = [&](size_t band) {
    return (targets >= out_[band].first)
        .logical_and(targets < out_[band].first + out_[band].count());
  };
  const auto place = [&](size_t band) {
    return common + static_cast<int64_t>(band) - 1;
  };
  const auto log_tail = [&](size_t band, const Tensor& rows) {
    return torch::log_softmax(out_[band].scores(wide.index_select(0, rows)), 1);
  };

  Tensor column = targets.clamp(0, common - 1);
  for (size_t band = 1; band < out_.size(); ++band)
    column = column.masked_fill(inside(band), place(band));
  Tensor log_p = log_head.gather(1, column.unsqueeze(1)).squeeze(1);
  Tensor right = asked;
  for (size_t band = 1; band < out_.size(); ++band) {
    const Tensor rows = rows_where(inside(band));
    const Tensor log_in = log_tail(band, rows);
    const Tensor own = targets.index_select(0, rows) - out_[band].first;
    log_p = log_p.index_add(0, rows, log_in.gather(1, own.unsqueeze(1)).squeeze(1));
    right = right.index_put({rows}, log_in.argmax(1) == own);
  }

  const Tensor loss = -log_p * asked;
  const torch::NoGradGuard only_judging;
  const Tensor likely = log_p.detach();
  right = right.logical_and(likely >= std::get<0>(log_head.slice(1, 0, common).max(1)));
  for (size_t band = 1; band < out_.size(); ++band) {
    // No id of a band is likelier than the band.
    const Tensor of_band = log_head.select(1, place(band));
    const Tensor rows = rows_where(
        right.logical_and(inside(band).logical_not()).logical_and(of_band >= likely));
    const Tensor best =
        std::get<0>(log_tail(band, rows).max(1)) + of_band.index_select(0, rows);
    right = right.index_put({rows}, likely.index_select(0, rows) >= best);
  }
  return {loss, right};
}

Tensor Vocabulary::log_probabilities(const Tensor& x) const {
  const Tensor wide = at_least_float(x);
  if (out_.size() == 1)
    return torch::log_softmax(
        longspan::linear(wide, at_least_float(out_.front().vectors),
                         at_least_float(bias_)),
        -1);
  const Tensor log_head = head(wide);
  const int64_t common = out_.front().count();
  std::vector<Tensor> all = {log_head.slice(-1, 0, common)};
  for (size_t band = 1; band < out_.size(); ++band)
    all.push_back(torch::log_softmax(out_[band].scores(wide), -1) +
                  log_head.slice(-1, common + static_cast<int64_t>(band) - 1,
                                 common + static_cast<int64_t>(band)));
  return torch::cat(all, -1);
}

}  // namespace longspan
