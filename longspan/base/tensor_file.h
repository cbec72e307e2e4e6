// Tensors in files of the safetensors layout, which other programs read as well: the
// length of a header (8 bytes, little endian), the header in JSON, then the numbers.

#pragma once

#include <map>
#include <string>

#include <torch/types.h>

namespace longspan {

using NamedTensors = std::map<std::string, torch::Tensor>;

// Writes tensors of any device and strides; the file appears whole or not at all.
// Types: float, double, half, bfloat16, int64, int32, int16, int8, uint8, bool.
// `notes` are kept in the header as "__metadata__".
void write_tensors(const std::string& path, const NamedTensors& tensors,
                   const std::map<std::string, std::string>& notes = {});

struct TensorFile {
  NamedTensors tensors;  // on the CPU, contiguous
  std::map<std::string, std::string> notes;
};

// Checks the whole header before it reads: sizes, types, offsets without holes or
// overlaps, nothing after the end. An Error names the file and what is wrong.
TensorFile read_tensors(const std::string& path);

}  // namespace longspan
