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

// The options are wrong, not what they were applied to: exit code 2 of the program.
class UsageError : public Error {
 public:
  using Error::Error;
};

// Turns an Error about options into a UsageError.
template <class Resolve>
auto argument(Resolve resolve) {
  try {
    return resolve();
  } catch (const Error& error) {
    throw UsageError(error.what());
  }
}

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
