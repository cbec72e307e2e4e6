#include "longspan/kernels/cluster.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <vector>

#include <ATen/Parallel.h>

#include "longspan/base/error.h"
#include "longspan/base/shapes.h"

namespace longspan {
namespace {

using torch::Tensor;

constexpr int64_t kBits = 64;

void check(const Tensor& codes, const Tensor& keep, int64_t clusters, int64_t rounds) {
  require(codes.defined() && codes.dim() == 3 && codes.scalar_type() == torch::kLong,
          "clusters: codes must be [B, H, N] int64, got ", shape(codes));
  require(!keep.defined() ||
              (keep.scalar_type() == torch::kBool && keep.dim() == 2 &&
               keep.size(0) == codes.size(0) && keep.size(1) == codes.size(2)),
          "clusters: keep must be bool [B, N] = [", codes.size(0), ", ", codes.size(2),
          "], got ", shape(keep));
  require(clusters >= 1 && clusters <= kMostClusters, "clusters: there must be 1 to ",
          kMostClusters, ", got ", clusters);
  require(rounds >= 1, "clusters: there must be 1 round or more, got ", rounds);
}

// Halves of codes, so that four of them are one small vector.
struct Codes {
  std::vector<uint32_t> low, high;

  explicit Codes(int64_t count) : low(count), high(count) {}
  void set(int64_t i, uint64_t code) {
    low[i] = static_cast<uint32_t>(code);
    high[i] = static_cast<uint32_t>(code >> 32);
  }
  uint64_t get(int64_t i) const { return uint64_t{high[i]} << 32 | low[i]; }
};

// best[i] becomes the least of what it was and, in its upper bits, the number of unlike
// bits of code i and the centroid, in its lower ones `cluster`. Apart, and with nothing
// that could overlap, so that it becomes vectors.
constexpr int kClusterBits = 17;
void nearer(const uint32_t* __restrict low, const uint32_t* __restrict high,
            int64_t count, uint64_t centroid, int32_t cluster,
            int32_t* __restrict best) {
  constexpr uint32_t kPairs = 0x55555555, kFours = 0x33333333, kBytes = 0x0f0f0f0f;
  const auto low_half = static_cast<uint32_t>(centroid);
  const auto high_half = static_cast<uint32_t>(centroid >> 32);
  for (int64_t i = 0; i < count; ++i) {
    uint32_t a = low[i] ^ low_half, b = high[i] ^ high_half;
    a -= a >> 1 & kPairs;
    b -= b >> 1 & kPairs;
    a = (a & kFours) + (a >> 2 & kFours) + (b & kFours) + (b >> 2 & kFours);
    a = (a & kBytes) + (a >> 4 & kBytes);
    a += a >> 8;
    a += a >> 16;
    const auto found = static_cast<int32_t>((a & 0x7f) << kClusterBits) | cluster;
    best[i] = found < best[i] ? found : best[i];
  }
}

// How many rows of every cluster have each bit.
class BitCounts {
 public:
  explicit BitCounts(int64_t clusters)
      : bytes_(clusters * 8), counts_(clusters * kBits), rows_(clusters) {}

  void add(int32_t cluster, uint64_t code) {
    // Byte t of word b counts bit 8 t + b.
    for (int b = 0; b < 8; ++b)
      bytes_[cluster * 8 + b] += code >> b & 0x0101010101010101;
    if (++rows_[cluster] % 255 == 0) flush(cluster);
  }

  // The bits that at least half of the rows have.
  uint64_t majority(int32_t cluster) {
    flush(cluster);
    uint64_t code = 0;
    for (int bit = 0; bit < kBits; ++bit)
      if (2 * counts_[cluster * kBits + bit] >= rows_[cluster])
        code |= uint64_t{1} << bit;
    return code;
  }

  int64_t rows(int32_t cluster) const { return rows_[cluster]; }

 private:
  void flush(int32_t cluster) {
    for (int b = 0; b < 8; ++b) {
      uint64_t& word = bytes_[cluster * 8 + b];
      for (int t = 0; t < 8; ++t)
        counts_[cluster * kBits + 8 * t + b] +=
            static_cast<int64_t>(word >> (8 * t) & 0xff);
      word = 0;
    }
  }

  std::vector<uint64_t> bytes_;
  std::vector<int64_t> counts_, rows_;
};

// One head: the rows `rows` of `codes`, and where their clusters go.
void cluster_head(const int64_t* codes, const std::vector<int64_t>& rows,
                  int64_t clusters, int64_t rounds, int64_t* of) {
  constexpr int64_t kSlice = 512;  // rows that stay in the nearest cache
  const auto count = static_cast<int64_t>(rows.size());
  const auto centroids = static_cast<int32_t>(std::min(clusters, count));
  Codes mine(count);
  for (int64_t i = 0; i < count; ++i)
    mine.set(i, static_cast<uint64_t>(codes[rows[i]]));
  std::vector<uint64_t> centroid(centroids);
  for (int32_t c = 0; c < centroids; ++c) centroid[c] = mine.get(c * count / centroids);
  std::vector<int32_t> nearest(count), before(count, -1);
  for (int64_t round = 0; round < rounds; ++round) {
    std::ranges::fill(nearest, std::numeric_limits<int32_t>::max());
    for (int64_t first = 0; first < count; first += kSlice)
      for (int32_t c = 0; c < centroids; ++c)
        nearer(mine.low.data() + first, mine.high.data() + first,
               std::min(kSlice, count - first), centroid[c], c, nearest.data() + first);
    for (int32_t& one : nearest) one &= (1 << kClusterBits) - 1;
    if (nearest == before || round + 1 == rounds) break;
    before = nearest;
    BitCounts counts(centroids);
    for (int64_t i = 0; i < count; ++i) counts.add(nearest[i], mine.get(i));
    for (int32_t c = 0; c < centroids; ++c)
      if (counts.rows(c) > 0) centroid[c] = counts.majority(c);
  }
  for (int64_t i = 0; i < count; ++i) of[rows[i]] = nearest[i];
}

}  // namespace

Tensor hamming_clusters(const Tensor& codes, const Tensor& keep, int64_t clusters,
                        int64_t rounds) {
  check(codes, keep, clusters, rounds);
  if (!codes.is_cpu()) return hamming_clusters_reference(codes, keep, clusters, rounds);
  const int64_t heads = codes.size(1), length = codes.size(2);
  const Tensor dense = codes.contiguous();
  const Tensor kept = keep.defined() ? keep.to(torch::kCPU).contiguous() : keep;
  Tensor of = torch::full(codes.sizes(), -1, torch::kLong);
  at::parallel_for(0, codes.size(0) * heads, 1, [&](int64_t begin, int64_t end) {
    std::vector<int64_t> rows;
    for (int64_t head = begin; head < end; ++head) {
      const bool* const counts =
          kept.defined() ? kept.data_ptr<bool>() + head / heads * length : nullptr;
      rows.clear();
      for (int64_t i = 0; i < length; ++i)
        if (!counts || counts[i]) rows.push_back(i);
      cluster_head(dense.data_ptr<int64_t>() + head * length, rows, clusters, rounds,
                   of.data_ptr<int64_t>() + head * length);
    }
  });
  return of;
}

Tensor hamming_clusters_reference(const Tensor& codes, const Tensor& keep,
                                  int64_t clusters, int64_t rounds) {
  check(codes, keep, clusters, rounds);
  if (codes.numel() == 0) return torch::empty_like(codes);
  const torch::NoGradGuard no_gradient;
  const auto [examples, heads, length] =
      std::tuple(codes.size(0), codes.size(1), codes.size(2));
  const auto whole = codes.options();
  const Tensor real = keep.defined()
                          ? keep.to(codes.device())
                          : torch::ones({examples, length}, whole.dtype(torch::kBool));
  const Tensor number = torch::arange(clusters, whole);
  const Tensor count = real.sum(1, /*keepdim=*/true);  // [B, 1]
  const Tensor some = count.clamp_max(clusters);
  const Tensor rank = torch::div(number * count, some.clamp_min(1), "floor");
  const Tensor in_order =
      std::get<1>(real.logical_not().to(torch::kByte).sort(/*stable=*/true, 1, false));
  const Tensor first = in_order.gather(1, rank.clamp_max(length - 1));  // [B, C]
  // 1 and -1 for bits: all sums are small whole numbers, which float has exactly.
  const Tensor bits = codes.unsqueeze(3)
                          .bitwise_right_shift(torch::arange(kBits, whole))
                          .bitwise_and(1)
                          .to(torch::kFloat)
                          .mul_(2)
                          .sub_(1);  // [B, H, N, 64]
  Tensor centroids = bits.gather(2, first.view({examples, 1, clusters, 1})
                                        .expand({examples, heads, clusters, kBits}));
  const Tensor unused = (number >= some).view({examples, 1, 1, clusters});
  const Tensor hidden = real.logical_not().unsqueeze(1);
  Tensor of;
  for (int64_t round = 0; round < rounds; ++round) {
    const Tensor unlike = (kBits - bits.matmul(centroids.transpose(2, 3))) / 2;
    of = (unlike * clusters + number)
             .masked_fill(unused, std::numeric_limits<float>::infinity())
             .amin(3)
             .remainder(clusters);
    of = of.nan_to_num(0).to(torch::kLong).masked_fill(hidden, -1);
    if (round + 1 == rounds) break;
    const Tensor member = of.unsqueeze(3).eq(number).to(torch::kFloat);
    const Tensor sums = member.transpose(2, 3).matmul(bits);
    const Tensor empty = member.sum(2).eq(0).unsqueeze(3);
    centroids = torch::where(empty, centroids, sums.ge(0).to(torch::kFloat) * 2 - 1);
  }
  return of;
}

}  // namespace longspan
