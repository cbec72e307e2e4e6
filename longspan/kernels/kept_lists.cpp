#include "longspan/kernels/kept_lists.h"

#include <algorithm>

#include <c10/core/impl/VirtualGuardImpl.h>

#include "longspan/kernels/head_views.h"

namespace longspan {

torch::Tensor Parcel::sent(torch::Device device) const {
  const auto count = static_cast<int64_t>(bytes_.size());
  const torch::Tensor here = torch::empty({std::max<int64_t>(count, 16)}, torch::kByte);
  std::copy_n(bytes_.data(), bytes_.size(), here.data_ptr<uint8_t>());
  return here.to(device);
}

ListsKey::ListsKey(const AttentionCall& call, const AttentionSizes& sizes, int kind)
    : stream_(c10::impl::VirtualGuardImpl(call.queries.q.device().type())
                  .getStream(call.queries.q.device())),
      kind_(kind),
      heads_(sizes.examples * sizes.heads),
      query_places_(call.query_places()) {
  for (const Source& source : call.sources) {
    key_places_.push_back(key_places(source));
    layouts_.push_back(source.layout);
  }
}

bool ListsKey::operator==(const ListsKey& other) const {
  const auto same = [](const std::optional<Layout>& a, const std::optional<Layout>& b) {
    return a.has_value() == b.has_value() && (!a || a->is_same(*b));
  };
  return stream_ == other.stream_ && kind_ == other.kind_ && heads_ == other.heads_ &&
         query_places_ == other.query_places_ && key_places_ == other.key_places_ &&
         std::ranges::equal(layouts_, other.layouts_, same);
}

}  // namespace longspan
