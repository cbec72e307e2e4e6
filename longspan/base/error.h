#pragma once

#include <sstream>
#include <stdexcept>

namespace longspan {

// Thrown when a caller asks for something the library cannot do. The message is one
// sentence the caller can act on.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws Error with `parts` joined into its message.
template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  std::ostringstream message;
  (message << ... << parts);
  throw Error(message.str());
}

// Fails unless `ok`. `parts` are evaluated either way: keep them cheap.
template <class... Parts>
void require(bool ok, const Parts&... parts) {
  if (!ok) fail(parts...);
}

}  // namespace longspan
