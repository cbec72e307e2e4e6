// The seams that mechanisms fill, what a mechanism says about itself, and the catalogue
// of those there are.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include <torch/nn/module.h>

#include "longspan/attention/pass.h"
#include "longspan/attention/settings.h"

namespace longspan {

struct Abilities;
struct Mechanism;

// The sizes a layer is made for. Width is free: heads x head_width need not be the
// embedding.
struct Sizes {
  int64_t embedding = 0;    // E; 0: heads x head_width
  int64_t heads = 1;        // H
  int64_t key_heads = 0;    // Hk, a divisor of heads; 0: heads
  int64_t head_width = 64;  // d
  int64_t value_width = 0;  // dv; 0: head_width
  int64_t inner = 0;        // width inside a feed-forward; 0: 4 x embedding
  int64_t longest = 0;      // longest sequence, where weights depend on it; 0: unknown
  int64_t layer = 0;
  int64_t layers = 1;

  // With the zeros filled in; refuses sizes that do not fit each other.
  Sizes completed() const;
};

// Parameters and buffers that the layers of a model share (Linformer's layerwise
// projections, Transformer-XL's biases). The model registers it once.
class Shared : public torch::nn::Module {
 public:
  // The one called `name`; `make` is called by the first that asks.
  torch::Tensor parameter(const std::string& name,
                          const std::function<torch::Tensor()>& make);
  torch::Tensor buffer(const std::string& name,
                       const std::function<torch::Tensor()>& make);
  bool empty() const { return parameters().empty() && buffers().empty(); }
};

// How a token sees another: by a weight of its own, in a summary of several, or over
// tokens of a memory that both meet.
enum class Sees : uint8_t { nothing, directly, summarised, through_memory };

// Who sees whom, for pictures.
struct Sight {
  torch::Tensor pairs = {};  // [H|1, rows, columns] uint8 of Sees
  // How many of the first rows and columns are of a memory, not of the sequence.
  int64_t memory_rows = 0, memory_columns = 0;
};

// What all seams have in common: a part knows its row, and refuses what the row does
// not claim before any work is done.
class Part : public torch::nn::Module {
 public:
  const Mechanism& mechanism() const {
    TORCH_INTERNAL_ASSERT(mechanism_, "a part that make() did not make");
    return *mechanism_;
  }
  void belongs_to(const Mechanism& mechanism);
  void belongs_to(const Mechanism& mechanism, const Abilities& can);
  // With its settings.
  const Abilities& can() const;

  // Who sees whom among `tokens` tokens; no pairs where only gradients can tell. Where
  // global tokens are the point, the first is one.
  virtual Sight sight(int64_t tokens, bool causal) {
    (void)tokens, (void)causal;
    return {};
  }

 protected:
  // Fails unless the row claims all that `pass` asks for, and its tensors fit.
  void check_pass(const Pass& pass, int64_t examples, int64_t tokens) const;
  // The same for x [B, N, E].
  void check_tokens(const torch::Tensor& x, const Pass& pass) const;
  // Fails if `pass` asks for what only the fast form does.
  void check_reference(const Pass& pass) const;
  // Runs `work`. If it fails, the records of `pass` have the tensors they had before,
  // and the message of an Error begins with the name of the mechanism.
  template <class Work>
  auto guarded(Pass& pass, Work work) const;

 private:
  const Mechanism* mechanism_ = nullptr;  // set by make()
  std::shared_ptr<const Abilities> can_;
};

// Mixes values by how well queries meet keys.
class Attention : public Part {
 public:
  // q: [B, H, N, d]; k: [B, Hk, M, d]; v: [B, Hk, M, dv]. Returns [B, H, N, dv], 0 at
  // padded queries. With pass.state, k and v are those of the N new tokens.
  torch::Tensor forward(const torch::Tensor& q, const torch::Tensor& k,
                        const torch::Tensor& v, Pass& pass);

  // The same by the definition, in plain tensor operations and O(N*M) memory, with the
  // same parameters and random draws. For tests and pictures; takes neither pass.state
  // nor dropout.
  torch::Tensor reference(const torch::Tensor& q, const torch::Tensor& k,
                          const torch::Tensor& v, Pass& pass);

  // Whether the rows of global tokens have projections of their own, pass.global.
  virtual bool has_global_projections() const;

 private:
  virtual torch::Tensor run(const torch::Tensor& q, const torch::Tensor& k,
                            const torch::Tensor& v, Pass& pass) = 0;
  virtual torch::Tensor define(const torch::Tensor& q, const torch::Tensor& k,
                               const torch::Tensor& v, Pass& pass) = 0;
};

// [B, N, E] -> [B, N, E], in plain and in defining form as Attention.
class TokenPart : public Part {
 public:
  torch::Tensor forward(const torch::Tensor& x, Pass& pass);
  torch::Tensor reference(const torch::Tensor& x, Pass& pass);

 private:
  virtual torch::Tensor run(const torch::Tensor& x, Pass& pass) = 0;
  virtual torch::Tensor define(const torch::Tensor& x, Pass& pass) = 0;
};

// Mixes tokens, for what needs the layer's input or more than one set of projections.
class Mixer : public TokenPart {};

// Changes tokens each by itself.
class FeedForward : public TokenPart {};

// Changes the length, the order or the number of streams: a part of the model that is
// not a row of equal layers.
class Stack : public Part {
 public:
  Stream forward(const torch::Tensor& x, Pass& pass);
  Stream reference(const torch::Tensor& x, Pass& pass);

  // Whether what comes out stands for no tokens of the sequence.
  virtual bool makes_new_tokens() const { return false; }

 private:
  virtual Stream run(const torch::Tensor& x, Pass& pass) = 0;
  virtual Stream define(const torch::Tensor& x, Pass& pass) = 0;
};

// When a mechanism is causal.
enum class Causal { never, optional, always };

// What a mechanism keeps from batch to batch: nothing, something of each example
// (Transformer-XL's memory), something of the model (GRC's cache), or both.
enum class Carry { none, per_example, per_model, both };

constexpr bool is_of_examples(Carry carry) { return static_cast<int>(carry) & 1; }
constexpr bool is_of_model(Carry carry) { return static_cast<int>(carry) & 2; }
constexpr Carry operator|(Carry a, Carry b) {
  return static_cast<Carry>(static_cast<int>(a) | static_cast<int>(b));
}

// Names of what is of the model end so, and say what the trainer makes of the tensors
// of several micro-batches: their mean, or all their rows, which all of them read next.
inline constexpr std::string_view kMean = "#mean", kRows = "#rows";

// What a mechanism can do. What it does not claim it refuses. A FeedForward sees tokens
// each by itself, and claims nothing that is about several.
struct Abilities {
  Causal causal = Causal::never;
  bool padding = true;        // any mask.tokens
  bool cross = false;         // keys and values of another sequence, N != M
  bool causal_cross = false;  // both at once
  bool decoding = false;      // pass.state
  bool positions = false;
  bool bias = false;
  bool segments = false;
  bool global = false;
  // A Mixer that hands pass.rotary on to projections inside it; an Attention between
  // its projections always can, if it has queries and keys.
  bool rotary = false;
  bool side = false;
  Carry carry = Carry::none;
  bool dropout = false;  // of attention weights
  bool grouped = false;  // fewer heads of keys than of queries
  bool samples = false;  // draws the keys it meets where pass.sampling is set
};

// Which projections the adapter makes for an Attention. `qkv_global`: a second set for
// the rows of global tokens, at first like the first.
enum class Projections { qkv, qkv_global, qk_v, v, none };

// What the block around the mechanism still does.
struct Keeps {
  bool residual = true;
  bool norm = true;
  bool feed_forward = true;
};

// A cost in the letters of shapes.h and the settings, and how fast it grows with N.
struct Cost {
  std::string_view formula;
  double power = 1;
};

// Published settings where they differ from the standard ones, as YAML.
struct Preset {
  std::string_view name;
  std::string_view settings;
};

// A row of the catalogue.
struct Mechanism {
  template <class Seam>
  using Make = std::shared_ptr<Seam> (*)(const Settings&, const Sizes&,
                                         const std::shared_ptr<Shared>&);

  std::string_view name;     // as in `--attention dense`
  std::string_view summary;  // one line
  std::string_view paper;
  std::string_view classes;  // in the taxonomy of Tay et al., arXiv:2009.06732
  Cost time;
  Cost memory;
  Abilities can;
  // What it can do with these settings, if not always the same: `can` is then the most.
  Abilities (*can_with)(const Settings&, const Sizes&) = nullptr;
  std::string_view state = {};  // what decoding keeps, in words
  // How many numbers it keeps at most for one example after `tokens` tokens.
  int64_t (*state_size)(const Settings&, const Sizes&, int64_t tokens) = nullptr;
  // In which order it is causal, if not the sequence's, and the tokens in that order.
  std::string_view order = {};
  std::vector<int64_t> (*tokens_in_order)(const Settings&, int64_t tokens) = nullptr;
  Projections projections = Projections::qkv;
  Keeps keeps = {};
  bool full = false;               // a query meets every key it may see
  bool predicts = false;           // a token does not see itself, only those before it
  bool zero_weights = false;       // a key that is met may have the weight 0 (entmax)
  bool by_content = false;         // which keys a query meets depends on the data
  std::string_view training = {};  // clauses that do not hold in training, and why
  std::span<const Setting> settings = {};
  std::span<const Preset> presets = {};
  std::string_view test_settings = "{}";  // small ones, for the contract, as YAML
  std::variant<Make<Attention>, Make<Mixer>, Make<FeedForward>, Make<Stack>> make;

  std::string_view seam() const;
};

// For Mechanism::make: a `Made` from settings and sizes.
template <class Seam, class Made>
constexpr Mechanism::Make<Seam> made_as() {
  return [](const Settings& settings, const Sizes& sizes,
            const std::shared_ptr<Shared>&) -> std::shared_ptr<Seam> {
    return std::make_shared<Made>(settings, sizes);
  };
}

// Every mechanism, in the order of mechanisms.def.
std::span<const Mechanism* const> mechanisms();

// The row called `name`; an error that names the rows there are if there is none.
const Mechanism& find_mechanism(std::string_view name);

// What it can do as it would be made.
Abilities abilities(const Mechanism& mechanism, const Sizes& sizes,
                    const Value::Map& settings = {});

// The settings of a preset of `mechanism`.
Value::Map preset(const Mechanism& mechanism, std::string_view name);

// Moves a module to a device and its floating tensors to a type. (Module::to(type)
// converts integer buffers as well.)
void convert(torch::nn::Module& module, torch::Device device, torch::Dtype type);

// A mechanism ready to run in the seam it fills. Settings replace the standard ones.
// `shared` is that of the model; without it the mechanism keeps its own.
template <class Seam>
std::shared_ptr<Seam> make(const Mechanism& mechanism, const Sizes& sizes,
                           const Value::Map& settings = {},
                           const std::shared_ptr<Shared>& shared = nullptr);

extern template std::shared_ptr<Attention> make(const Mechanism&, const Sizes&,
                                                const Value::Map&,
                                                const std::shared_ptr<Shared>&);
extern template std::shared_ptr<Mixer> make(const Mechanism&, const Sizes&,
                                            const Value::Map&,
                                            const std::shared_ptr<Shared>&);
extern template std::shared_ptr<FeedForward> make(const Mechanism&, const Sizes&,
                                                  const Value::Map&,
                                                  const std::shared_ptr<Shared>&);
extern template std::shared_ptr<Stack> make(const Mechanism&, const Sizes&,
                                            const Value::Map&,
                                            const std::shared_ptr<Shared>&);

namespace catalogue {
#define LONGSPAN_MECHANISM(name) extern const Mechanism name;
#include "longspan/attention/mechanisms.def"
#undef LONGSPAN_MECHANISM
}  // namespace catalogue

}  // namespace longspan
