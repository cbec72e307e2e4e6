// Segments of a long text that see the segments before: every layer keeps what it was
// given, and looks back at it by distances. Dai et al. 2019, arXiv:1901.02860.

#include <algorithm>

#include "longspan/attention/mechanism.h"
#include "longspan/attention/relative_attention.h"
#include "longspan/base/error.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr char kMemory[] = "memory";

constexpr Setting kSettings[] = {
    {.name = kMemory,
     .standard = "512",
     .help = "tokens before the segment that are kept of each example",
     .least = 0},
    {.name = "evaluation_memory",
     .standard = "0",
     .help = "the same in evaluation, often more; 0: as in training",
     .least = 0},
    {.name = "same_length",
     .kind = Kind::boolean,
     .standard = "false",
     .help = "every query sees as many keys as are kept, itself the last; else those "
             "kept and those of the segment up to itself"},
    {.name = "clamp",
     .standard = "0",
     .help = "longer distances count as this one; 0: none do",
     .least = 0},
    {.name = "tied",
     .kind = Kind::boolean,
     .standard = "true",
     .help = "one pair of biases, of contents and of distances, for all layers"},
};

class TransformerXl final : public Mixer {
 public:
  TransformerXl(const Settings& settings, const Sizes& sizes, Shared& shared)
      : memory_(settings.integer(kMemory)),
        evaluation_memory_(settings.integer("evaluation_memory")),
        same_length_(settings.flag("same_length")),
        segment_(same_length_ ? 0 : sizes.longest),
        attention_(*this, sizes, shared,
                   {.tied = settings.flag("tied") ? "transformer_xl" : "",
                    .clamp = settings.integer("clamp")}) {
    require(!same_length_ || memory_ > 0,
            "same_length needs a memory of 1 or more, got 0");
  }

  Sight sight(int64_t tokens, bool) override {
    constexpr int64_t kMostShown = 8;
    const int64_t shown = std::min(memory_, kMostShown);
    Tensor pairs = torch::ones({tokens, shown + tokens}, torch::kByte).tril(shown);
    if (same_length_) pairs = pairs.triu(shown + 1 - memory_);
    return {.pairs = pairs.unsqueeze(0), .memory_columns = shown};
  }

  static int64_t state_size(const Settings& settings, const Sizes& sizes,
                            int64_t tokens) {
    const int64_t given = settings.integer("evaluation_memory"),
                  kept = given > 0 ? given : settings.integer(kMemory);
    return RelativeAttention::numbers_kept(
        settings.flag("same_length") ? kept - 1 : kept + segment_tokens(sizes, tokens),
        sizes);
  }

 private:
  int64_t kept(const Pass& pass) const {
    return pass.training || evaluation_memory_ == 0 ? memory_ : evaluation_memory_;
  }

  template <class Attend>
  Tensor attended(const Tensor& x, Pass& pass, Attend attend) const {
    const Stream past = last_real(carried(pass.carry, kMemory, x), kept(pass));
    const Tensor out = attend(past, same_length_ ? kept(pass) : 0);
    if (pass.state && segment_ > 0 && x.size(1) > 0 &&
        pass.state->tokens % segment_ == 0)
      attention_.keep_last(*pass.state, kept(pass));
    if (pass.carry && !pass.state)
      carry(*pass.carry, kMemory,
            last_real({.x = torch::cat({past.x, x.detach()}, 1),
                       .tokens = torch::cat({past.tokens, real_tokens(x, pass)}, 1)},
                      kept(pass)));
    return out;
  }

  Tensor run(const Tensor& x, Pass& pass) override {
    return in_segments(x, pass, segment_, [&](const Tensor& some, Pass& part) {
      return attended(some, part, [&](const Stream& past, int64_t window) {
        return attention_.forward(some, past, window, part);
      });
    });
  }

  Tensor define(const Tensor& x, Pass& pass) override {
    return attended(x, pass, [&](const Stream& past, int64_t window) {
      return attention_.define(x, past, window, pass);
    });
  }

  int64_t memory_, evaluation_memory_;
  bool same_length_;
  int64_t segment_;  // tokens until decoding leaves what is not in the memory; 0: never
  RelativeAttention attention_;
};

}  // namespace

constinit const Mechanism catalogue::transformer_xl{
    .name = "transformer_xl",
    .summary = "segments that see those before, by contents and distances",
    .paper = "Dai et al. 2019, arXiv:1901.02860",
    .classes = "recurrence",
    .time = {"N*(N + memory)*d", 2},
    .memory = {"(N + memory)*E", 1},
    .can = {.causal = Causal::always,
            .padding = true,
            .decoding = true,
            .carry = Carry::per_example,
            .dropout = true,
            .grouped = true},
    .state =
        "keys and values of the memory and of the tokens of a segment, which are as "
        "many as the longest sequence has; with same_length of the last of them only",
    .state_size = TransformerXl::state_size,
    .projections = Projections::none,
    .full = true,
    .settings = kSettings,
    .test_settings = "{memory: 16, clamp: 60}",
    .make = Mechanism::Make<Mixer>(
        [](const Settings& settings, const Sizes& sizes,
           const std::shared_ptr<Shared>& shared) -> std::shared_ptr<Mixer> {
          return std::make_shared<TransformerXl>(settings, sizes, *shared);
        }),
};

}  // namespace longspan
