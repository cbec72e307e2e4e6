// Random directions, and features along them whose products are softmax weights in the
// mean: positive orthogonal random features. Choromanski et al. 2020, arXiv:2009.14794.

#pragma once

#include <cstdint>

#include <torch/nn/module.h>

#include "longspan/attention/mechanism.h"
#include "longspan/base/random.h"

namespace longspan {

// A key from LibTorch's generator, for what a module draws when it is made.
Key key_of_new_module();

// [matrices, rows, width] double on the CPU: directions that are spread evenly and, in
// every `width` rows of a matrix, orthogonal. They are as long as normal vectors, or
// all as long as those are in the mean square, sqrt(width). A function of the key.
torch::Tensor orthogonal_directions(Key key, int64_t matrices, int64_t rows,
                                    int64_t width, bool normal_lengths);

inline constexpr Setting kRandomFeatureSettings[] = {
    {.name = "features",
     .standard = "256",
     .help = "random features of a head",
     .least = 1},
    {.name = "redraw",
     .standard = "1000",
     .help = "steps of training after which the features are drawn anew; 0: never",
     .least = 0},
    {.name = "lengths",
     .kind = Kind::word,
     .standard = "chi",
     .help = "of the random directions: as those of normal vectors, or all alike",
     .choices = "chi|equal"},
};

// Features for every head of keys, kept in the buffers `directions` and `drawn` of a
// module: a run that goes on from a checkpoint has the features it had.
class RandomFeatures {
 public:
  // With `mirrored`, every direction has its opposite beside it.
  RandomFeatures(torch::nn::Module& owner, const Settings& settings, const Sizes& sizes,
                 bool mirrored = false);

  // To be called once in every pass, before features are asked for: in training draws
  // them anew when it is time, once for all micro-batches of a step.
  void begin(Pass& pass);

  // [H|Hk, m, d] in the type of x [B, H|Hk, n, d]
  torch::Tensor directions(const torch::Tensor& x) const;

  // Logs of positive features, [B, H|Hk, n, m] at least float: with x' = x / d^(1/4),
  // w.x' - |x'|^2 / 2 - ln(m) / 2 for every direction w. The products of the features
  // of q and k have the mean exp(q.k / sqrt(d)) over draws.
  torch::Tensor logs(const torch::Tensor& x) const;

  // The features themselves, in plain tensor operations: for definitions.
  torch::Tensor defined(const torch::Tensor& x) const;

 private:
  int64_t time_drawn();

  bool mirrored_, normal_lengths_;
  int64_t redraw_;
  torch::Tensor directions_;  // [Hk, m, d], of each two that mirror each other one
  torch::Tensor drawn_;       // [1]: in which `redraw` steps, counted from 0
  int64_t version_ = -1, time_drawn_ = 0;  // drawn_ as it was read
};

}  // namespace longspan
