// How to train.

#pragma once

#include <cstdint>
#include <string>

#include <torch/types.h>

#include "longspan/base/config.h"
#include "longspan/train/adamw.h"

namespace longspan {

struct TrainOptions {
  int64_t seed = 1;
  std::string device = "cpu";
  std::string precision = "float";
  bool tf32 = false;
  bool deterministic = true;

  int64_t steps = 0;
  double epochs = 0;
  int64_t tokens = 0;
  double minutes = 0;

  int64_t batch = 32;
  int64_t micro_batch = 0;
  int64_t first_batch = 0;
  int64_t ramp_steps = 0;
  int64_t bucket = 8;
  int64_t pad_to = 1;
  int64_t prefetch = 2;
  double full_share = 0;

  double learning_rate = 1e-3;
  Value schedule = Value::List{};
  AdamWOptions adamw = {};
  double clip = 0;
  double divergence = 10;

  int64_t evaluate_every = 100;
  int64_t evaluate_batch = 0;
  std::string best_by = "goal";
  int64_t patience = 0;
  std::string average = "none";
  double average_decay = 0.999;
  int64_t average_last = 5;

  int64_t save_every = 0;
  int64_t keep = 2;
  int64_t log_every = 10;
  bool tensorboard = true;
};

// The names of the options, without section. See there what each means.
Fields fields(TrainOptions& options);

// The device of the options and the type of the model's parameters; refuses what this
// build or machine has not.
torch::Device device_of(const TrainOptions& options);
torch::Dtype dtype_of(const TrainOptions& options);

// Sets for the process how LibTorch computes on CUDA, if that is the device.
void prepare_device(const TrainOptions& options);

}  // namespace longspan
