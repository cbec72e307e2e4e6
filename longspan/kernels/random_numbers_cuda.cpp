#include "longspan/kernels/random_numbers_cuda.h"

#include "longspan/kernels/cuda/dropout.h"
#include "longspan/kernels/cuda/launch.h"
#include "longspan/kernels/cuda/random_numbers.h"

namespace longspan {

using torch::Tensor;

Tensor philox_words_cuda(Key key, const std::vector<Tensor>& counters) {
  auto shape = counters.front().sizes().vec();
  std::vector<Tensor> given = counters;
  if (counters.front().dim() > cuda::kMostCounterAxes)
    for (Tensor& counter : given) counter = counter.reshape({-1});
  cuda::PhiloxCounters places{.axes = static_cast<int32_t>(given.front().dim()),
                              .count = given.front().numel()};
  for (int axis = 0; axis < places.axes; ++axis)
    places.sizes[axis] = given.front().size(axis);
  for (int i = 0; i < 4; ++i) {
    places.counters[i] = given[i].data_ptr<int64_t>();
    for (int axis = 0; axis < places.axes; ++axis)
      places.strides[i][axis] = given[i].stride(axis);
  }
  shape.push_back(4);
  const Tensor words = torch::empty(shape, given.front().options());
  cuda::launch(words.device(), "philox words", [&](cuda::Stream stream) {
    return cuda::philox_words(key.bits, places, words.data_ptr<int64_t>(), stream);
  });
  return words;
}

Tensor random_words_cuda(Key key, at::IntArrayRef shape, torch::Device device) {
  const Tensor words =
      torch::empty(shape, torch::TensorOptions(torch::kLong).device(device));
  cuda::launch(words.device(), "random words", [&](cuda::Stream stream) {
    return cuda::random_words(key.bits, words.data_ptr<int64_t>(), words.numel(),
                              stream);
  });
  return words;
}

Tensor dropout_cuda(const Tensor& x, double probability, Key key) {
  const Tensor from = x.contiguous(), to = torch::empty(x.sizes(), x.options());
  cuda::launch(x.device(), "dropout", [&](cuda::Stream stream) {
    return cuda::drop_elements({.type = cuda::cuda_type(x),
                                .x = from.data_ptr(),
                                .y = to.data_ptr(),
                                .count = x.numel(),
                                .key = key.bits,
                                .limit = word_limit(probability),
                                .factor = 1 / (1 - probability)},
                               stream);
  });
  return to;
}

}  // namespace longspan
