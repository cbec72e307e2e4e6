// Archives of files (tar, POSIX.1-1988), read from their beginning to their end.

#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "longspan/data/byte_source.h"

namespace longspan {

inline constexpr size_t kTarBlock = 512;

// Whether a file that begins with these bytes is one.
bool begins_archive(std::string_view begin);

// Calls `take` with every file in the archive at `path`, but those hidden. A damaged
// archive is an Error.
void for_each_member(
    const std::string& path,
    const std::function<void(const std::string& name, ByteSource& contents)>& take);

}  // namespace longspan
