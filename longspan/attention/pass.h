// One trip through a model: what every layer is told beside its input, and what it
// tells.

#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include <torch/types.h>

#include "longspan/base/random.h"
#include "longspan/kernels/block_attention.h"

namespace longspan {

// Tokens beside the layer's own: the context of cross-attention, a second stream that
// layers hand on; and what a Stack returns.
struct Stream {
  torch::Tensor x = {};          // [B, M, E]
  torch::Tensor tokens = {};     // [B, M] bool, false at padding; undefined: all real
  torch::Tensor positions = {};  // [M] or [B, M] integer; undefined: 0, 1, ..
};

// About the layer's own tokens.
struct Mask {
  bool causal = false;
  torch::Tensor tokens = {};   // [B, N] bool, false at padding; undefined: all real
  torch::Tensor global = {};   // [B, N] bool: tokens that see and are seen by all
  torch::Tensor segment = {};  // [B, N] integer: tokens see their own segment only
};

// Tokens projected to heads.
struct Heads {
  torch::Tensor q = {};  // [B, H, N, d]
  torch::Tensor k = {};  // [B, Hk, N, d]
  torch::Tensor v = {};  // [B, Hk, N, dv]
};

// Named tensors that a layer keeps between calls, and the records of mechanisms inside
// it. Tensors are replaced, never written into: copies of a record share them. As a
// decoding state its tensors begin with the examples of the batch. Names have no dots.
class Record {
 public:
  int64_t tokens = 0;  // seen so far

  torch::Tensor get(std::string_view name) const;  // undefined if never set
  void set(std::string_view name, torch::Tensor value);
  // Appends `more` along `axis` to what is kept under that name; returns all of it.
  torch::Tensor grow(std::string_view name, const torch::Tensor& more, int64_t axis);
  Record& part(std::string_view name);

  // Every tensor, by its full name ("inner.k").
  std::map<std::string, torch::Tensor> all() const;
  int64_t numel() const;

  // All of it as tensors by full name, for a checkpoint, and back.
  std::map<std::string, torch::Tensor> saved() const;
  static Record restored(const std::map<std::string, torch::Tensor>& saved);

  // Keeps the examples `examples` [n] integer, in that order: for beams and for batches
  // from which finished examples leave.
  void select(const torch::Tensor& examples);

 private:
  std::map<std::string, torch::Tensor, std::less<>> tensors_;
  std::map<std::string, Record, std::less<>> parts_;
};

struct Pass {
  Mask mask = {};
  // [N] or [B, N] integer; undefined: in order, after `state`
  torch::Tensor positions = {};
  Bias bias = {};  // added to the scores; distances are of positions
  // Base of the angles by which projections turn queries and keys at their positions
  // (Su et al. 2021, arXiv:2104.09864); 0: they do not.
  double rotary = 0;
  // Where keys and values come from if not from the layer's own tokens. An Attention is
  // handed them projected; it reads tokens and positions here.
  Stream context = {};
  // The rows of global tokens with projections of their own (Longformer); undefined:
  // they have those of all tokens.
  Heads global = {};
  Stream side = {};  // a second stream; a layer that changes it writes it here
  // Of this layer, kept from batch to batch by the trainer.
  Record* carry = nullptr;
  // Of this layer, for decoding: forward appends the tokens. Biases by key and by pair
  // then cover all keys so far.
  Record* state = nullptr;
  // Of this layer: choices (hash buckets, samples) that a recomputation must repeat.
  Record* choices = nullptr;
  Draw draw = {};
  double dropout = 0;  // of attention weights, in training
  bool training = false;
  bool replay = false;  // activations are computed again: buffers must not change
  // Mechanisms that draw the keys they meet do so; else they meet all there are.
  bool sampling = false;
  std::map<std::string, torch::Tensor> losses = {};  // scalars the trainer adds

  bool crosses() const {
    return context.x.defined() || context.tokens.defined() ||
           context.positions.defined();
  }

  // What is known about M keys for N queries: those of the context; else the layer's
  // own tokens, of which the queries are the last N, and the keys before them are real.
  // x is undefined.
  Stream keys(int64_t queries, int64_t keys) const;

  void add_loss(const std::string& name, const torch::Tensor& loss);
};

// Lets a wrapped mechanism keep its records apart from its wrapper's while it lives.
class Inside {
 public:
  Inside(Pass& pass, std::string_view part);
  ~Inside();
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  Pass& pass_;
  Record *carry_, *state_, *choices_;
};

}  // namespace longspan
