// Attention whose scores are of contents and of distances, so that tokens of earlier
// segments can be seen from where they stood. Dai et al. 2019, arXiv:1901.02860.

#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <torch/types.h>

#include "longspan/attention/linear_map.h"
#include "longspan/attention/mechanism.h"

namespace longspan {

// The sines, then the cosines, of a distance at frequencies 10000^(-a/F), for tokens
// that stand `step` apart. Kept for the longest sequence so far; any thread may ask.
class DistanceWaves {
 public:
  // width: E, of which every two are a frequency.
  DistanceWaves(int64_t width, int64_t step);

  int64_t step() const { return step_; }
  int64_t width() const { return 2 * frequencies_.size(0); }  // W

  // Of distances from * step .. (to - 1) * step: [to - from, W], as `like` is.
  torch::Tensor of(int64_t from, int64_t to, const torch::Tensor& like);

  // Of distances [..] in tokens, double: [.., W], as `like` is.
  torch::Tensor at(const torch::Tensor& distances, const torch::Tensor& like) const;

 private:
  torch::Tensor frequencies_;  // [W/2]
  int64_t step_;
  std::mutex mutex_;
  int64_t reach_ = 0;
  torch::Tensor table_;  // [2 reach + 1, W], of distances -reach .. reach
};

// score = ((q_i + u) . k_j + (q_i + v) . W waves(p_i - p_j)) / sqrt(d), u and v being
// biases of contents and of distances.
struct DistanceScores {
  Linear map;                   // W: [H*d, W]
  torch::Tensor content_bias;   // [H, d]
  torch::Tensor distance_bias;  // [H, d]

  // q + u, for q [B, H, N, d] without biases, as all here.
  torch::Tensor queries(const torch::Tensor& q) const;
  // For Bias::vectors, [H, R, d], of the waves [R, W] of distances.
  torch::Tensor vectors(const torch::Tensor& waves) const;
  // For Bias::offset, where queries() are given.
  torch::Tensor offset() const { return distance_bias - content_bias; }
  // What distances add to the scores [B, H, 1, M] of a single query, a step of
  // decoding, to keys at distances of `waves` [M, W], float at least: to map it to
  // waves is less work than to map all waves to heads.
  torch::Tensor of_one(const torch::Tensor& q, const torch::Tensor& waves) const;
  // The same by its definition for many, [B, H, N, M], where waves are [N, M, W].
  torch::Tensor defined(const torch::Tensor& q, const torch::Tensor& waves) const;
};

// The last `count` real ones of rows x [B, n, w], in their order and at the end of
// [B, min(n, count), w]; before them zeros that are no tokens. Not differentiable.
Stream last_real(const Stream& rows, int64_t count);

// The real tokens of x [B, N, E] in `pass`, [B, N] bool.
torch::Tensor real_tokens(const torch::Tensor& x, const Pass& pass);

// What a mixer keeps from batch to batch under `name` and NAME_tokens, each example's
// rows at the end; without rows if there is nothing. Refuses those of another batch.
Stream carried(const Record* record, const std::string& name, const torch::Tensor& x);
void carry(Record& record, const std::string& name, const Stream& rows);

// How many of `tokens` tokens a state has that are not yet of the memory: segments are
// as long as the longest sequence.
inline int64_t segment_tokens(const Sizes& sizes, int64_t tokens) {
  return sizes.longest > 0 ? std::min(tokens, sizes.longest) : tokens;
}

// The outputs of `work`, a function of tokens and a pass, for tokens x. When decoding
// these are cut where segments end, every `segment` tokens; 0: there is one.
template <class Work>
torch::Tensor in_segments(const torch::Tensor& x, Pass& pass, int64_t segment,
                          const Work& work) {
  const int64_t count = x.size(1);
  if (!pass.state || segment == 0 || count == 0) return work(x, pass);
  std::vector<torch::Tensor> outs;
  for (int64_t at = 0; at < count;) {
    const int64_t length = std::min(count - at, segment - pass.state->tokens % segment);
    Pass part = pass;
    if (pass.mask.tokens.defined())
      part.mask.tokens = pass.mask.tokens.narrow(1, at, length);
    outs.push_back(work(x.narrow(1, at, length), part));
    pass.draw = part.draw;
    at += length;
  }
  return torch::cat(outs, 1);
}

// A mixer's attention over its tokens and those before them, with all its projections.
class RelativeAttention {
 public:
  struct Options {
    // The biases u and v of all layers are those of `shared` by this name; if it is
    // empty every layer has its own.
    std::string tied = {};
    int64_t clamp = 0;  // distances beyond count as this; 0: none do
  };

  RelativeAttention(torch::nn::Module& owner, const Sizes& sizes, Shared& shared,
                    const Options& options);

  // past: rows as of last_real(), which stand right before x; read where pass.state
  // has no keys yet. window: how many keys a query sees, itself the last; 0: all.
  // `mass`, if it is not null, becomes [B, P + N], the weights that all heads of all
  // real queries together gave each key.
  torch::Tensor forward(const torch::Tensor& x, const Stream& past, int64_t window,
                        Pass& pass, torch::Tensor* mass = nullptr);
  torch::Tensor define(const torch::Tensor& x, const Stream& past, int64_t window,
                       Pass& pass, torch::Tensor* mass = nullptr) const;

  // What the queries of x find in `rows` by contents alone, [B, N, H*dv]. Only `rows`
  // gets a gradient.
  torch::Tensor by_content(const torch::Tensor& x, const Stream& rows) const;

  // Leaves the last `count` real keys of a state, as last_real().
  void keep_last(Record& state, int64_t count) const;

  // How many numbers a state has for so many keys.
  static int64_t numbers_kept(int64_t keys, const Sizes& sizes) {
    return keys * (sizes.key_heads * (sizes.head_width + sizes.value_width) + 1);
  }

 private:
  Bias bias(const torch::Tensor& q, int64_t keys);

  Sizes sizes_;
  int64_t clamp_;
  DistanceWaves waves_;
  Linear q_, k_, v_, out_;
  DistanceScores distances_;
};

}  // namespace longspan
