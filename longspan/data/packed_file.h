// Files of data that may lie there packed.

#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace longspan {

// Where a file is to be found: at `path` if that is there, else packed, at `path`.xz or
// `path`.gz; `path` where there is none.
std::string found_file(const std::string& path);

// Every line of the file found so, without its end, LF or CRLF; the file is not held in
// memory. Numbers count from 1.
void for_each_line(
    const std::string& path,
    const std::function<void(std::string_view line, int64_t number)>& line);

}  // namespace longspan
