// Several mechanisms side by side, each with projections of its own, and the mean of
// what they say. Brown et al. 2022, arXiv:2210.00640, section 5.6.

#include "longspan/attention/projected.h"
#include "longspan/attention/wrapped.h"
#include "longspan/base/error.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr Setting kSettings[] = {
    {.name = "parts",
     .kind = Kind::list,
     .standard = "[bigbird, local, longformer, {name: sparse_fixed, heads: merged}]",
     .help = "the mechanisms, by name or {name: .., setting: ..}; heads are divided "
             "evenly"},
};

constexpr Preset kPresets[] = {
    {"lra",
     "{parts: [{name: bigbird, block: 64, random: 3}, linear, {name: linformer, "
     "projected: 16}, {name: local, block: 50}, {name: longformer, window: 256}, "
     "{name: "
     "performer, kernel: bare_relu}, {name: sparse_fixed, stride: 50, summary: 10, "
     "heads: merged, first_column: true}, {name: synthesizer, parts: "
     "[factorised_random, dot], factor: 32}]}"}};

class Mixed final : public Mixer {
 public:
  Mixed(const Settings& settings, const Sizes& sizes)
      : parts_(wrapped(settings, sizes)) {
    for (size_t i = 0; i < parts_.size(); ++i) {
      const auto& [row, given, of_part] = parts_[i];
      check_part(*row);
      require(row->can.carry == Carry::none, row->name,
              " keeps something from batch to batch, so it cannot stand beside others");
      made_.push_back(
          register_module(parts_[i].name(i), make_mixer(*row, of_part, given)));
    }
  }

 private:
  Tensor run(const Tensor& x, Pass& pass) override {
    const Tensor out = mean(x, pass, &TokenPart::forward);
    if (pass.state) pass.state->tokens += x.size(1);
    return out;
  }

  Tensor define(const Tensor& x, Pass& pass) override {
    return mean(x, pass, &TokenPart::reference);
  }

  template <class Form>
  Tensor mean(const Tensor& x, Pass& pass, Form form) {
    Tensor sum;
    for (size_t i = 0; i < made_.size(); ++i) {
      const Inside part(pass, parts_[i].name(i));
      const Tensor out = ((*made_[i]).*form)(x, pass);
      sum = sum.defined() ? sum + out : out;
    }
    return sum / static_cast<int64_t>(made_.size());
  }

  std::vector<Wrapped> parts_;
  std::vector<std::shared_ptr<Mixer>> made_;
};

}  // namespace

constinit const Mechanism catalogue::mixed{
    .name = "mixed",
    .summary = "several mechanisms side by side, their outputs averaged",
    .paper = "Brown et al. 2022, arXiv:2210.00640",
    .classes = "wrapper",
    .time = {"that of its parts", 2},
    .memory = {"N*E", 1},
    .can = {.causal = Causal::optional,
            .padding = true,
            .decoding = true,
            .segments = true,
            .global = true,
            .rotary = true,
            .dropout = true,
            .grouped = true},
    .can_with =
        [](const Settings& settings, const Sizes& sizes) {
          Abilities can = catalogue::mixed.can;
          can.samples = samples(wrapped(settings, sizes));
          return can;
        },
    .state = "what its parts keep",
    .state_size =
        [](const Settings& settings, const Sizes& sizes, int64_t tokens) {
          return state_size(wrapped(settings, sizes), tokens);
        },
    .projections = Projections::none,
    .settings = kSettings,
    .presets = kPresets,
    .test_settings =
        "{parts: [{name: longformer, window: 4}, "
        "{name: longformer, window: 2, dilation: [3]}]}",
    .make = made_as<Mixer, Mixed>(),
};

}  // namespace longspan
