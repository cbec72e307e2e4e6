#include "longspan/data/token_list.h"

#include <string_view>
#include <utility>

#include "longspan/base/checksum.h"

namespace longspan {
namespace {

template <class Id>
TokenList list_of(std::vector<Id> ids) {
  const auto owner = std::make_shared<const std::vector<Id>>(std::move(ids));
  const std::string_view bytes(reinterpret_cast<const char*>(owner->data()),
                               owner->size() * sizeof(Id));
  return {owner->data(), static_cast<int>(sizeof(Id)), std::ssize(*owner),
          crc32c(bytes), owner};
}

}  // namespace

void TokenBuffer::add(std::span<const int32_t> ids) {
  if (width_ == 4) {
    wide_.insert(wide_.end(), ids.begin(), ids.end());
    return;
  }
  for (const int32_t id : ids) narrow_.push_back(static_cast<uint16_t>(id));
}

TokenList TokenBuffer::list() && {
  return width_ == 4 ? list_of(std::move(wide_)) : list_of(std::move(narrow_));
}

}  // namespace longspan
