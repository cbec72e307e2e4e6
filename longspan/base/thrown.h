// What went wrong, whoever threw it.

#pragma once

#include <exception>
#include <string>

namespace longspan {

// What an exception says, on one line: an Error's own message, LibTorch's without where
// it came from, and that memory ran out.
std::string message_of(const std::exception_ptr& thrown);

}  // namespace longspan
