// Names in error messages: lists of them, and the one that was probably meant.

#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace longspan {

// "dense, local": the choices a message offers.
std::string joined(const std::vector<std::string>& names,
                   std::string_view separator = ", ");

// "; did you mean 'local'? there are: dense, local": the end of a message about an
// unknown name. The question is left out when no known name is near.
std::string hint(std::string_view unknown, const std::vector<std::string>& known);

}  // namespace longspan
