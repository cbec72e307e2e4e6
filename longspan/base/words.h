// Names and numbers in messages: lists of names, the one that was probably meant,
// numbers as people read them.

#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace longspan {

// "dense, local": the choices a message offers.
std::string joined(const std::vector<std::string>& names,
                   std::string_view separator = ", ");

// The known name that was probably meant, or "" if none is near.
std::string nearest(std::string_view unknown, const std::vector<std::string>& known);

// "; did you mean 'local'? there are: dense, local": the end of a message about an
// unknown name. The question is left out when no known name is near.
std::string hint(std::string_view unknown, const std::vector<std::string>& known);

// The words of "max|mean".
std::vector<std::string> split_choices(std::string_view choices);

std::string percent(double share);        // "12.3 %"
std::string short_number(double number);  // "1.2k", "3.4M"
std::string duration(double seconds);     // "5 min 20 s"

}  // namespace longspan
