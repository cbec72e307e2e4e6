// Files of data as they are handed around: plain, or packed by xz or gzip.

#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace longspan {

// Where a file is to be found: at `path` if that is there, else packed, at `path`.xz or
// `path`.gz; `path` where there is none.
std::string found_file(const std::string& path);

// Every byte of the file found so; one whose name ends in .xz or .gz is unpacked. An
// Error names the file and what is wrong, also where this build cannot unpack it.
std::string read_unpacked(const std::string& path);

// Every line of the file found so, without its end, LF or CRLF; a plain file is not
// held in memory. Numbers count from 1.
void for_each_line(
    const std::string& path,
    const std::function<void(std::string_view line, int64_t number)>& line);

// The bytes that xz or gzip packed; `name` is for messages.
std::string unpack_xz(std::string_view packed, const std::string& name);
std::string unpack_gzip(std::string_view packed, const std::string& name);

}  // namespace longspan
