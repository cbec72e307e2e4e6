// Criss-cross attention of CCNet. Huang et al. 2019, arXiv:1811.11721: every token sees
// its row and its column of an image and is changed by gamma times what it sees; done
// twice with the same weights, every token has met every other. Scores are not scaled.

#include <algorithm>
#include <cmath>

#include "longspan/attention/linear_map.h"
#include "longspan/attention/mechanism.h"
#include "longspan/base/error.h"
#include "longspan/base/shapes.h"
#include "longspan/kernels/total.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr Setting kSettings[] = {
    {.name = "width",
     .standard = "0",
     .help = "tokens in a row of the image; 0: the square root of the length",
     .least = 0},
    {.name = "reduction",
     .standard = "8",
     .help = "queries and keys are narrower than the embedding by this factor",
     .least = 1},
    {.name = "recurrence", .standard = "2", .help = "times it is applied", .least = 1},
};

class CrissCross final : public Mixer {
 public:
  CrissCross(const Settings& settings, const Sizes& sizes)
      : embedding_(sizes.embedding),
        width_(std::max<int64_t>(embedding_ / settings.integer("reduction"), 1)),
        recurrence_(settings.integer("recurrence")) {
    const auto projection = [&](const char* name, int64_t out) {
      return make_linear(*this, name, out, embedding_, /*has_bias=*/false);
    };
    q_ = projection("q", width_);
    k_ = projection("k", width_);
    v_ = projection("v", embedding_);
    gamma_ = register_parameter("gamma", torch::zeros(1));
    lines_ = register_module(
        "lines",
        make<Attention>(
            catalogue::sparse_axial,
            {.embedding = embedding_, .head_width = width_, .value_width = embedding_},
            {{"columns", settings.integer("width")}}));
  }

  Sight sight(int64_t tokens, bool causal) override {
    return lines_->sight(tokens, causal);
  }

 private:
  Tensor run(const Tensor& x, Pass& pass) override {
    return applied(x, [&](const Tensor& q, const Tensor& k, const Tensor& v) {
      return lines_->forward(q, k, v, pass);
    });
  }

  Tensor define(const Tensor& x, Pass& pass) override {
    return applied(x, [&](const Tensor& q, const Tensor& k, const Tensor& v) {
      return lines_->reference(q, k, v, pass);
    });
  }

  template <class Attend>
  Tensor applied(Tensor x, Attend attend) const {
    require(x.size(2) == embedding_, "x must be as wide as the embedding, ", embedding_,
            ", got ", shape(x));
    const auto projected = [&](const Linear& by) { return by(x).unsqueeze(1); };
    // The attention divides scores by the same root.
    const double root = std::sqrt(static_cast<double>(width_));
    for (int64_t time = 0; time < recurrence_; ++time) {
      const Tensor seen =
          attend(projected(q_) * root, projected(k_), projected(v_)).squeeze(1);
      x = longspan::spread(gamma_, seen.sizes()) * seen + x;
    }
    return x;
  }

  int64_t embedding_, width_, recurrence_;
  Linear q_, k_, v_;
  Tensor gamma_;
  std::shared_ptr<Attention> lines_;
};

}  // namespace

constinit const Mechanism catalogue::criss_cross{
    .name = "criss_cross",
    .summary = "row and column of an image, twice",
    .paper = "Huang et al. 2019, arXiv:1811.11721",
    .classes = "fixed patterns",
    .time = {"recurrence*N*sqrt(N)*d", 1.5},
    .memory = {"recurrence*N*d", 1},
    .can = {.padding = true, .segments = true},
    .projections = Projections::none,
    .keeps = {.residual = false, .norm = false, .feed_forward = true},
    .full = true,
    .settings = kSettings,
    .test_settings = "{width: 9}",
    .make = made_as<Mixer, CrissCross>(),
};

}  // namespace longspan
