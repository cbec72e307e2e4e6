// Groups of heads, each with a mechanism of its own over the same projections: half of
// the heads strided (Child et al. 2019, arXiv:1904.10509), half local (Roy et al. 2020,
// arXiv:2003.05997).

#include <algorithm>

#include "longspan/attention/wrapped.h"
#include "longspan/base/error.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr Setting kSettings[] = {
    {.name = "parts",
     .kind = Kind::list,
     .standard = "[local, sliding]",
     .help = "the mechanisms, by name or {name: .., setting: ..}"},
    {.name = "heads",
     .kind = Kind::list,
     .standard = "[]",
     .help = "how many heads each part has; empty: all alike"},
};

std::vector<Wrapped> parts_of(const Settings& settings, const Sizes& sizes) {
  return wrapped(settings, sizes, settings.list("heads"));
}

class Split final : public Attention {
 public:
  Split(const Settings& settings, const Sizes& sizes)
      : parts_(parts_of(settings, sizes)) {
    for (size_t i = 0; i < parts_.size(); ++i) {
      const auto& [row, given, of_part] = parts_[i];
      check_part(*row);
      require(row->seam() == "attention", row->name,
              " is a mixer of tokens, so it cannot have some of the heads");
      require(row->projections == Projections::qkv ||
                  row->projections == Projections::qkv_global,
              row->name, " needs other projections than queries, keys and values, so ",
              "it cannot have some of the heads");
      made_.push_back(
          register_module(parts_[i].name(i), make<Attention>(*row, of_part, given)));
    }
  }

  bool has_global_projections() const override {
    return std::ranges::any_of(
        made_, [](const auto& part) { return part->has_global_projections(); });
  }

  Sight sight(int64_t tokens, bool causal) override {
    std::vector<Tensor> heads;
    for (size_t i = 0; i < made_.size(); ++i) {
      const Tensor pairs = made_[i]->sight(tokens, causal).pairs;
      if (!pairs.defined()) return {};
      heads.push_back(pairs.expand({parts_[i].sizes.heads, -1, -1}));
    }
    return {.pairs = torch::cat(heads)};
  }

 private:
  Tensor run(const Tensor& q, const Tensor& k, const Tensor& v, Pass& pass) override {
    const Tensor out = joined(q, k, v, pass, &Attention::forward);
    if (pass.state) pass.state->tokens += q.size(2);
    return out;
  }

  Tensor define(const Tensor& q, const Tensor& k, const Tensor& v,
                Pass& pass) override {
    return joined(q, k, v, pass, &Attention::reference);
  }

  template <class Form>
  Tensor joined(const Tensor& q, const Tensor& k, const Tensor& v, Pass& pass,
                Form form) {
    std::vector<Tensor> outs;
    const Heads global = pass.global;
    int64_t head = 0, key_head = 0;
    for (size_t i = 0; i < made_.size(); ++i) {
      const auto& [heads, key_heads] =
          std::pair(parts_[i].sizes.heads, parts_[i].sizes.key_heads);
      const Inside part(pass, parts_[i].name(i));
      if (global.q.defined())
        pass.global = {global.q.narrow(1, head, heads),
                       global.k.narrow(1, key_head, key_heads),
                       global.v.narrow(1, key_head, key_heads)};
      outs.push_back(((*made_[i]).*form)(q.narrow(1, head, heads),
                                         k.narrow(1, key_head, key_heads),
                                         v.narrow(1, key_head, key_heads), pass));
      head += heads;
      key_head += key_heads;
    }
    pass.global = global;
    return torch::cat(outs, 1);
  }

  std::vector<Wrapped> parts_;
  std::vector<std::shared_ptr<Attention>> made_;
};

}  // namespace

constinit const Mechanism catalogue::split{
    .name = "split",
    .summary = "groups of heads, each with a mechanism of its own",
    .paper = "Child et al. 2019, arXiv:1904.10509",
    .classes = "wrapper",
    .time = {"that of its parts", 2},
    .memory = {"N*d", 1},
    .can = {.causal = Causal::optional,
            .padding = true,
            .decoding = true,
            .segments = true,
            .global = true,
            .dropout = true,
            .grouped = true},
    .can_with =
        [](const Settings& settings, const Sizes& sizes) {
          Abilities can = catalogue::split.can;
          can.samples = samples(parts_of(settings, sizes));
          return can;
        },
    .state = "what its parts keep",
    .state_size =
        [](const Settings& settings, const Sizes& sizes, int64_t tokens) {
          return state_size(parts_of(settings, sizes), tokens);
        },
    .settings = kSettings,
    .test_settings =
        "{parts: [{name: longformer, window: 4}, "
        "{name: longformer, window: 2, dilation: [3]}]}",
    .make = made_as<Attention, Split>(),
};

}  // namespace longspan
