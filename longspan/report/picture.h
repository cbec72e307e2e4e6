// Pictures of who sees whom.

#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "longspan/attention/mechanism.h"

namespace longspan::report {

struct PictureOptions {
  int64_t tokens = 32;
  bool causal = false;  // a mechanism that is always causal is drawn so
  std::optional<Value::Map> settings = {};  // else the test settings of the row
};

// An SVG of its own: a row a query, a column a key, a panel for every pattern that
// heads have.
std::string picture(const Mechanism& mechanism, const PictureOptions& options);

// Whether a picture shows what a mechanism leaves out: at most three quarters of the
// pairs are seen directly, unless it never leaves out any.
bool tells(const Mechanism& mechanism, const PictureOptions& options);

// How many tokens a picture with the test settings needs: 32, or up to 128 where so few
// would not tell.
int64_t tokens_that_tell(const Mechanism& mechanism);

}  // namespace longspan::report
