// Windows of a long text, in which every token is to be foretold by those before it.

#pragma once

#include <memory>

#include "longspan/data/dataset.h"

namespace longspan {

// A dataset that is cut from a text, of which it knows the size.
class TextDataset : public Dataset {
 public:
  // Of what is asked; 0: not known.
  virtual int64_t words() const = 0;
  virtual int64_t bytes() const = 0;
};

}  // namespace longspan
