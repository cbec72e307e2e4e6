#include "longspan/base/thrown.h"

#include <new>
#include <stdexcept>

#include <c10/util/Exception.h>

namespace longspan {
namespace {

std::string words_of(const std::exception_ptr& thrown) {
  constexpr const char* kNoMemory = "there is not enough memory for this";
  try {
    std::rethrow_exception(thrown);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::bad_alloc&) {
    return kNoMemory;
  } catch (const std::length_error&) {  // more than any memory has
    return kNoMemory;
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "something else than an error was thrown";
  }
}

}  // namespace

std::string message_of(const std::exception_ptr& thrown) {
  std::string message = words_of(thrown);
  while (message.ends_with('\n')) message.pop_back();
  for (char& letter : message)
    if (static_cast<unsigned char>(letter) < ' ') letter = ' ';
  return message;
}

}  // namespace longspan
