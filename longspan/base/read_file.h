// A file as one string.

#pragma once

#include <string>

namespace longspan {

// Every byte of a file. A failure, which a folder also is, is an Error that names the
// path and the reason.
std::string read_file(const std::string& path);

}  // namespace longspan
