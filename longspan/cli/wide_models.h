// The models of Brown et al. 2022, arXiv:2210.00640: as many heads in all in several
// layers or in a single one, for ten mechanisms and four tasks, with the layers, heads
// and settings of the Long Range Arena.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include <torch/nn/module.h>

#include "longspan/models/transformer.h"

namespace longspan::cli {

struct WideTask {
  std::string_view name;
  int64_t ids = 0, longest = 0, classes = 0;
  int64_t embedding = 0, head_width = 0, inner = 0;
  int64_t heads = 0;   // of all layers
  int64_t layers = 0;  // of the deep form
  bool of_pairs = false;
};

struct WideMechanism {
  std::string_view name;       // as printed
  std::string_view attention;  // as YAML
};

std::span<const WideTask> wide_tasks();
std::span<const WideMechanism> wide_mechanisms();

TransformerOptions wide_options(const WideMechanism& mechanism, const WideTask& task,
                                bool deep);

struct WideModel {
  std::shared_ptr<torch::nn::Module> module;
  // ids: [B, N], of texts in pairs [2 B, N], the first of all pairs before the second.
  std::function<torch::Tensor(const torch::Tensor& ids)> forward;
};

WideModel make_wide_model(const WideMechanism& mechanism, const WideTask& task,
                          bool deep);

}  // namespace longspan::cli
