#include "longspan/train/options.h"

#include <torch/cuda.h>

#include "longspan/base/build.h"
#include "longspan/base/error.h"
#include "longspan/train/cuda/arithmetic.h"

namespace longspan {

Fields fields(TrainOptions& o) {
  return {
      {"seed", &o.seed, "of weights, dropout and the order of examples", {}, 0},
      {"device", &o.device, "where to compute", "cpu|cuda"},
      {"precision", &o.precision,
       "of arithmetic; with bfloat16 sums, statistics, the loss and the weights that "
       "are updated stay float",
       "float|double|bfloat16"},
      {"tf32", &o.tf32, "CUDA: products of floats with 10 bits behind the point"},
      {"deterministic", &o.deterministic,
       "CUDA: the same bits in every run; without, LibTorch's own operations need not"},
      {"steps", &o.steps, "ends after so many steps; 0: no such end", {}, 0},
      {"epochs",
       &o.epochs,
       "ends after so many times through the examples; 0: no such "
       "end",
       {},
       0,
       1e9},
      {"tokens", &o.tokens, "ends after so many tokens; 0: no such end", {}, 0},
      {"minutes", &o.minutes, "ends after so many minutes; 0: no such end", {}, 0, 1e9},
      {"batch", &o.batch, "examples of one step", {}, 1, 1e9},
      {"micro_batch",
       &o.micro_batch,
       "examples computed at once, their gradients added up; 0: all of the batch",
       {},
       0},
      {"first_batch",
       &o.first_batch,
       "examples of the first step, with ramp_steps",
       {},
       0},
      {"ramp_steps",
       &o.ramp_steps,
       "the batch grows to its size over so many steps",
       {},
       0},
      {"bucket",
       &o.bucket,
       "so many batches are sorted by length together; 0: none",
       {},
       0},
      {"pad_to",
       &o.pad_to,
       "batches are padded to a multiple of so many tokens: with few different lengths "
       "layouts and memory serve again",
       {},
       1},
      {"prefetch",
       &o.prefetch,
       "batches made ahead on a thread of their own",
       {},
       0,
       1000},
      {"full_share",
       &o.full_share,
       "share of the steps, the last ones, in which mechanisms that draw the keys they "
       "meet (ssa) meet all",
       {},
       0,
       1},
      {"learning_rate", &o.learning_rate, "times the factors of the schedule", {}, 0},
      {"schedule", &o.schedule,
       "factors of the learning rate: [{name: warmup, steps: 1000}, rsqrt]"},
      {"beta1", &o.adamw.beta1, "decay of AdamW's first moments", {}, 0, 0.999999},
      {"beta2", &o.adamw.beta2, "decay of AdamW's second moments", {}, 0, 0.999999},
      {"epsilon", &o.adamw.epsilon, "added to the root of the second moments", {}, 0},
      {"weight_decay",
       &o.adamw.weight_decay,
       "share of a weight, times the learning rate, that goes with every step",
       {},
       0},
      {"decay_vectors", &o.adamw.decay_vectors,
       "whether biases, norms and other vectors decay as well"},
      {"groups", &o.adamw.groups,
       "exceptions by name: [{match: \"*norm*\", weight_decay: 0, rate: 0.1}]"},
      {"clip", &o.clip, "gradients are scaled down to this norm; 0: never", {}, 0},
      {"divergence",
       &o.divergence,
       "stops when the loss is so many times the first one (or 1); 0: never",
       {},
       0},
      {"evaluate_every", &o.evaluate_every, "steps between evaluations", {}, 1},
      {"evaluate_batch",
       &o.evaluate_batch,
       "examples evaluated at once; 0: as micro_batch",
       {},
       0},
      {"best_by", &o.best_by,
       "what makes a checkpoint the best; goal: accuracy of labels, loss of tokens",
       "goal|accuracy|loss"},
      {"patience",
       &o.patience,
       "stops after so many evaluations without a gain; 0: never",
       {},
       0},
      {"average", &o.average,
       "weights to evaluate and keep: the last, a moving average, or the mean of those "
       "at the last evaluations",
       "none|ema|last"},
      {"average_decay", &o.average_decay, "of the moving average", {}, 0, 1},
      {"average_last", &o.average_last, "evaluations in the mean", {}, 1},
      {"save_every",
       &o.save_every,
       "steps between checkpoints; 0: at evaluations",
       {},
       0},
      {"keep", &o.keep, "checkpoints to keep beside the best", {}, 1},
      {"log_every", &o.log_every, "steps between lines of metrics", {}, 1},
      {"tensorboard", &o.tensorboard, "writes files for TensorBoard"},
  };
}

torch::Device device_of(const TrainOptions& options) {
  if (options.device == "cpu") return torch::kCPU;
  require(options.device == "cuda", "train.device must be cpu or cuda, got ",
          options.device);
  require(kHasCuda, "train.device: this build has no CUDA; configure with ",
          "-DLONGSPAN_CUDA=ON or take cpu");
  require(torch::cuda::is_available(), "train.device: no CUDA device is to be found; ",
          "take cpu");
  return {torch::kCUDA, 0};
}

torch::Dtype dtype_of(const TrainOptions& options) {
  if (options.precision == "double") return torch::kDouble;
  return options.precision == "bfloat16" ? torch::kBFloat16 : torch::kFloat;
}

void prepare_device(const TrainOptions& options) {
  if constexpr (kHasCuda)
    if (device_of(options).is_cuda())
      cuda::set_arithmetic(
          {.tf32 = options.tf32, .deterministic = options.deterministic});
}

}  // namespace longspan
