// Choices that a recomputation must repeat.

#pragma once

#include <string_view>

#include <torch/types.h>

#include "longspan/attention/pass.h"

namespace longspan {

// What `make` makes; when activations are computed again, what it made the first time.
// Draws belong outside of it: pass.draw must go on alike both times.
template <class Make>
torch::Tensor chosen(Pass& pass, std::string_view name, const Make& make) {
  if (pass.choices && pass.choices->get(name).defined()) return pass.choices->get(name);
  const torch::Tensor made = make();
  if (pass.choices) pass.choices->set(name, made);
  return made;
}

}  // namespace longspan
