// One thread, or a warpgroup where rows are gathered, copies tiles; kGroups warpgroups
// of 64 queries each compute. Blocks stay and take item after item.

#include "longspan/kernels/cuda/hopper_work.cuh"

namespace longspan::cuda {
namespace hopper {
namespace {

struct AttendArguments {
  Work work;
  Operand q, k, v, out;
  Floats lse;
  float* part_out;
  float2* part_sums;
  float scale2;  // scale * log2(e)
};

}  // namespace

template <int kWidth, int kGroups, int kKeys, int kStages, Mode kMode>
struct AttendPlan {
  static constexpr int kCopiers = kMode == Mode::kGathered ? 128 : 1;
  static constexpr int kRows = kGroups * 64, kWords = kKeys / 64;
  static constexpr int kQBytes = kRows * kWidth * 2, kTileBytes = kKeys * kWidth * 2,
                       kMaskBytes = 8 * kKeys,
                       kEndBytes = kMode == Mode::kRows ? 0 : 8 * kKeys;
  // In shared memory.
  static constexpr int kQ = 0, kK = 2 * kQBytes, kV = kK + kStages * kTileBytes,
                       kMasks = kV + kStages * kTileBytes,
                       kEnds = kMasks + kStages * kGroups * kMaskBytes,
                       kQFull = kEnds + kStages * kEndBytes, kQEmpty = kQFull + 16,
                       kKFull = kQEmpty + 16, kVFull = kKFull + kStages * 8,
                       kKEmpty = kVFull + kStages * 8, kVEmpty = kKEmpty + kStages * 8,
                       kSlots = kVEmpty + kStages * 8,
                       kStates = kSlots + 2 * kSlotBytes,
                       kNext = kStates + kStages * kGroups * 4;
  static constexpr int kBytes = kNext + 8 + 1024;
};

namespace {

template <class Number, int kWidth, int kGroups, int kKeys, int kStages, int kAtOnce,
          Mode kMode>
__global__ void __launch_bounds__(kThreads<kGroups>, kAtOnce)
    attend_tiles(const __grid_constant__ CUtensorMap q_map,
                 const __grid_constant__ CUtensorMap k_map,
                 const __grid_constant__ CUtensorMap v_map,
                 const __grid_constant__ AttendArguments a) {
#ifdef LONGSPAN_ON_HOPPER
  using Plan = AttendPlan<kWidth, kGroups, kKeys, kStages, kMode>;
  using Counts = Registers<kGroups, kMode, kKeys == 64>;
  constexpr bool kGathered = kMode == Mode::kGathered;
  constexpr int kCopiers = Plan::kCopiers, kRows = Plan::kRows;
  // Where there are registers for it, also what the next item is.
  constexpr bool kFindsEarly = kGroups == 1 && !kGathered,
                 kClaimsEarly = kFindsEarly || kGathered;
  extern __shared__ __align__(1024) unsigned char raw[];
  const uint32_t base = (shared_address(raw) + 1023) & ~1023u;
  const uint32_t all_q = base + Plan::kQ, all_k = base + Plan::kK,
                 all_v = base + Plan::kV, masks = base + Plan::kMasks,
                 ends = base + Plan::kEnds, q_full = base + Plan::kQFull,
                 q_empty = base + Plan::kQEmpty, k_full = base + Plan::kKFull,
                 v_full = base + Plan::kVFull, k_empty = base + Plan::kKEmpty,
                 v_empty = base + Plan::kVEmpty, slots = base + Plan::kSlots,
                 states = base + Plan::kStates;
  const int thread = threadIdx.x;
  // Known to be the same in all lanes, so that addresses need few registers.
  const int group = __shfl_sync(kAllLanes, thread >> 7, 0);
  if (thread == 0) {
    for (int i = 0; i < 2; ++i) {
      barrier_init(q_full + i * 8, kGathered ? kCopiers + 1 : 1);
      barrier_init(q_empty + i * 8, kGroups * 4 * kArrivalsOfWarp);
    }
    for (int i = 0; i < kStages; ++i) {
      barrier_init(k_full + i * 8, kGathered ? kCopiers + 1 : 1);
      barrier_init(v_full + i * 8, kCopiers);
      barrier_init(k_empty + i * 8, kGroups * 4 * kArrivalsOfWarp);
      barrier_init(v_empty + i * 8, kGroups * 4 * kArrivalsOfWarp);
    }
    fence_barrier_init();
    fence_async();
  }
  __syncthreads();

  if (group == kGroups) {  // copies
    if constexpr (kGroups > 1) give_registers<Counts::kCopy>();
    const int copier = thread - kGroups * 128;
    if (copier < kCopiers) {
      int stage = 0, slot = 0, turn = 0;
      uint32_t phase = 1, q_phase = 1;
      if constexpr (!kGathered) {
        prefetch_map(&q_map);
        prefetch_map(&k_map);
        prefetch_map(&v_map);
      }
      Item item;
      bool is_there = false;
      if constexpr (kFindsEarly) is_there = find(a.work, blockIdx.x, item);
      for (int number = blockIdx.x; number < a.work.items;) {
        if constexpr (!kFindsEarly) is_there = find(a.work, number, item);
        int upcoming = 0;
        if (kClaimsEarly && copier == 0) upcoming = next_item(a.work);
        Item upcoming_item;
        bool is_found = false, is_upcoming_there = false;
        const auto find_upcoming = [&]() {
          is_found = true;
          is_upcoming_there =
              upcoming < a.work.items && find(a.work, upcoming, upcoming_item);
        };
        if (is_there) {
          const auto next = [&](int entry) {
            return seek<kMode, kGroups, Plan::kWords, false, false>(a.work, item,
                                                                    entry);
          };
          auto now = next(item.first);
          const Numbers key_rows = a.work.key_rows.at(item.example, item.head);
          const char* const all_of_k = a.k.at(item.example, item.head);
          const char* const all_of_v = a.v.at(item.example, item.head);
          const Spot of_k = a.k.spot(item.example, item.head),
                     of_v = a.v.spot(item.example, item.head);
          // Row numbers, and what an entry is, are asked for a tile ahead.
          using Rows = Gather<kWidth, kCopiers == 1 ? 128 : kCopiers>;
          Rows rows[Plan::kWords], rows_after[Plan::kWords];
          auto following = now;
          const auto find_rows = [&](Rows(&of_tile)[Plan::kWords], int tile) {
#pragma unroll
            for (int i = 0; i < Plan::kWords; ++i)
              of_tile[i].find(key_rows, tile * kKeys + i * 64, a.work.keys, copier);
          };
          if constexpr (kGathered) {
            if (now.entry < item.end) find_rows(rows, now.held(a.work).x);
            following = next(now.entry + 1);
          }
          barrier_wait(q_empty + slot * 8, q_phase);
          if (copier == 0)
            tell(slots + slot * kSlotBytes, item,
                 kMode == Mode::kRows ? item.end - item.first : now.entry < item.end);
          const uint32_t q = all_q + slot * Plan::kQBytes;
          if constexpr (kGathered) {
            if (copier == 0) barrier_arrive(q_full + slot * 8);
            for (int i = 0; i < kGroups; ++i) {
              Gather<kWidth, kCopiers> own;
              own.find(a.work.query_rows.at(item.example, item.head),
                       max(item.tiles[i], 0) * 64, a.work.queries, copier);
              own.template copy<kRows>(q, i * 64, a.q.at(item.example, item.head),
                                       a.q.row, a.q.width, copier);
            }
            arrive_after_copies(q_full + slot * 8);
          } else {
            barrier_expect(q_full + slot * 8, Plan::kQBytes);
#pragma unroll
            for (int i = 0; i < kGroups; ++i)
              copy_rows<kWidth, kRows>(q + i * 8192, &q_map, max(item.tiles[i], 0) * 64,
                                       a.q.spot(item.example, item.head),
                                       q_full + slot * 8);
          }
          while (now.entry < item.end) {
            if constexpr (!kGathered)
              following = next(now.entry + 1);
            else if (following.entry < item.end)
              find_rows(rows_after, following.held(a.work).x);
            const int4 at = now.held(a.work);
            const int tags[3] = {at.y, at.z, at.w};
            const int state = state_of<kMode, kGroups, Plan::kWords, false, false>(
                a.work, item, now, at);
            const uint32_t k = all_k + stage * Plan::kTileBytes,
                           v = all_v + stage * Plan::kTileBytes,
                           full = k_full + stage * 8;
            barrier_wait(k_empty + stage * 8, phase);
            if (copier == 0) {
              int bytes = kGathered ? 0 : Plan::kTileBytes;
              const int last =
                  kMode != Mode::kRows && following.entry >= item.end ? kLast : 0;
              bool checked = false;
#pragma unroll
              for (int i = 0; i < kGroups; ++i) {
                const int one = state >> (i * 4) & 15;
                if (one & kMasked) bytes += Plan::kMaskBytes;
                checked = checked || (one & kChecked) != 0;
                store_int(states + (stage * kGroups + i) * 4, one | last);
              }
              if (kMode != Mode::kRows && checked) bytes += Plan::kEndBytes;
              barrier_expect(full, bytes);
              if constexpr (!kGathered)
                copy_rows<kWidth, kKeys>(k, &k_map, at.x * kKeys, of_k, full);
#pragma unroll
              for (int i = 0; i < kGroups; ++i)
                if (state >> (i * 4) & kMasked)
                  copy_bytes(masks + (stage * kGroups + i) * Plan::kMaskBytes,
                             a.work.lists.masks +
                                 static_cast<size_t>(tags[i]) * (Plan::kMaskBytes / 8),
                             Plan::kMaskBytes, full);
              if constexpr (kMode != Mode::kRows)
                if (checked) {
                  const size_t first = key_places(a.work, item) + at.x * kKeys;
                  const uint32_t to = ends + stage * Plan::kEndBytes;
                  copy_bytes(to, a.work.places.from + first, kKeys * 4, full);
                  copy_bytes(to + kKeys * 4, a.work.places.to + first, kKeys * 4, full);
                }
            }
            if constexpr (kGathered) {
#pragma unroll
              for (int i = 0; i < Plan::kWords; ++i)
                rows[i].template copy<kKeys>(k, i * 64, all_of_k, a.k.row, a.k.width,
                                             copier);
              arrive_after_copies(full);
            }
            barrier_wait(v_empty + stage * 8, phase);
            if constexpr (kGathered) {
#pragma unroll
              for (int i = 0; i < Plan::kWords; ++i)
                rows[i].template copy<kKeys>(v, i * 64, all_of_v, a.v.row, a.v.width,
                                             copier);
              arrive_after_copies(v_full + stage * 8);
            } else {
              barrier_expect(v_full + stage * 8, Plan::kTileBytes);
              copy_rows<kWidth, kKeys>(v, &v_map, at.x * kKeys, of_v,
                                       v_full + stage * 8);
            }
            if (++stage == kStages) {
              stage = 0;
              phase ^= 1;
            }
            now = following;
            if constexpr (kGathered) {
#pragma unroll
              for (int i = 0; i < Plan::kWords; ++i) rows[i] = rows_after[i];
              following = next(now.entry + 1);
            }
            if (kFindsEarly && !is_found) find_upcoming();
          }
          if (++slot == 2) {
            slot = 0;
            q_phase ^= 1;
          }
        }
        if constexpr (kFindsEarly) {
          if (!is_found) find_upcoming();
          number = upcoming;
          item = upcoming_item;
          is_there = is_upcoming_there;
        } else {
          if (!kClaimsEarly) upcoming = next_item(a.work);
          number = kGathered
                       ? pass_on<kCopiers>(upcoming, base + Plan::kNext, turn++, copier)
                       : upcoming;
        }
      }
      barrier_wait(q_empty + slot * 8, q_phase);
      if (copier == 0) {
        store_int(slots + slot * kSlotBytes, ~0u);
        barrier_arrive(q_full + slot * 8);
      }
      if constexpr (kGathered) barrier_arrive(q_full + slot * 8);
    }
  } else {  // computes
    if constexpr (kGroups > 1) take_registers<Counts::kCompute>();
    int stage = 0, slot = 0;
    uint32_t phase = 0, q_phase = 0;
    // In log2 units; `most` may be up to 8 below the true one.
    float most[2] = {}, sums[2], factors[2];
    float out[kWidth / 8][4], scores[kKeys / 8][4];
    uint32_t weights[kKeys / 16][4];
    bool has_grown;
    int2 positions = {};
    const uint32_t q = matrix_at(all_q + group * 8192), k = matrix_at(all_k),
                   v = matrix_at(all_v, kKeys * 128);

    const auto multiply_keys = [&](int at) {
      if (kGathered) fence_async();
      multiply<Number, kWidth, kRows, kKeys>(scores, q + slot * (Plan::kQBytes / 16),
                                             k + at * (Plan::kTileBytes / 16));
    };
    const auto add_values = [&](int at) {
      if (kGathered) fence_async();
      multiply_add<Number, kKeys>(out, weights, v + at * (Plan::kTileBytes / 16));
    };
    const auto hide_unseen = [&](int state) {
      if (has(state, kMasked))
        hide<Plan::kWords>(scores,
                           masks + (stage * kGroups + group) * Plan::kMaskBytes);
      if constexpr (kMode != Mode::kRows)
        if (has(state, kChecked)) {
          if constexpr (!kGathered) {
            const int t = thread_again();
            positions.x =
                a.work.first +
                load_int(slots + slot * kSlotBytes + kSlotTiles + group * 4) * 64 +
                ((t >> 5) & 3) * 16 + ((t & 31) >> 2);
            positions.y = positions.x + 8;
          }
          check(scores, positions, ends + stage * Plan::kEndBytes);
        }
    };
    // Scores become weights. The largest is only followed when it grew by more than 8,
    // on which each warp votes: most tiles need neither shuffles nor a rescaled `out`.
    const auto weigh = [&]() {
      float largest[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        largest[half] = fmaxf(scores[0][half * 2], scores[0][half * 2 + 1]);
#pragma unroll
        for (int i = 1; i < kKeys / 8; ++i)
          largest[half] =
              fmaxf(largest[half], fmaxf(scores[i][half * 2], scores[i][half * 2 + 1]));
        largest[half] = __fmul_rn(largest[half], a.scale2);
      }
      has_grown = __any_sync(kAllLanes,
                             largest[0] > most[0] + 8.f || largest[1] > most[1] + 8.f);
      if (has_grown) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float& one = largest[half];
          one = fmaxf(one, __shfl_xor_sync(kAllLanes, one, 1));
          one = fmaxf(one, __shfl_xor_sync(kAllLanes, one, 2));
          const bool grows = one > most[half] + 8.f;
          factors[half] = grows ? power_of_two(most[half] - one) : 1.f;
          most[half] = grows ? one : most[half];
          sums[half] *= factors[half];
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float less = most[half] == -INFINITY ? 0.f : most[half];
        float even = 0, odd = 0;
#pragma unroll
        for (int i = 0; i < kKeys / 8; ++i) {
          float* const two = &scores[i][half * 2];
          two[0] = power_of_two(fmaf(two[0], a.scale2, -less));
          two[1] = power_of_two(fmaf(two[1], a.scale2, -less));
          even += two[0];
          odd += two[1];
        }
        sums[half] += even + odd;
      }
    };
    // When the product before is done.
    const auto rescale_and_pack = [&]() {
      if (has_grown) {
#pragma unroll
        for (int i = 0; i < kWidth / 8; ++i) {
          out[i][0] *= factors[0];
          out[i][1] *= factors[0];
          out[i][2] *= factors[1];
          out[i][3] *= factors[1];
        }
      }
#pragma unroll
      for (int i = 0; i < kKeys / 16; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float* const two = &scores[2 * i + j / 2][j % 2 * 2];
          weights[i][j] = pack<Number>(two[0], two[1]);
        }
    };
    const auto advance = [&]() {
      if (++stage == kStages) {
        stage = 0;
        phase ^= 1;
      }
    };

    for (;;) {
      const uint32_t told = slots + slot * kSlotBytes;
      barrier_wait(q_full + slot * 8, q_phase);
      if (__any_sync(kAllLanes, load_int(told) < 0)) break;
      int left = __shfl_sync(kAllLanes, load_int(told + kSlotLeft), 0);
      if constexpr (kGathered) {
        const int t = thread_again();
        const int32_t* const of_tile =
            a.work.places.positions +
            query_places(a.work, load_int(told + kSlotExample),
                         load_int(told + kSlotInner)) +
            max(load_int(told + kSlotTiles + group * 4), 0) * 64 + ((t >> 5) & 3) * 16 +
            ((t & 31) >> 2);
        positions = {__ldg(of_tile), __ldg(of_tile + 8)};
      }
      most[0] = most[1] = -INFINITY;
      sums[0] = sums[1] = 0;
#pragma unroll
      for (int i = 0; i < kWidth / 8; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) out[i][j] = 0;
      while (left > 0) {
        barrier_wait(k_full + stage * 8, phase);
        int state = load_int(states + (stage * kGroups + group) * 4);
        left = kMode == Mode::kRows ? left - 1 : !has(state, kLast);
        if (kGroups > 1 && has(state, kSkipped)) {  // hands it back
          barrier_wait(v_full + stage * 8, phase);
          arrive_as_warp(k_empty + stage * 8);
          arrive_as_warp(v_empty + stage * 8);
          advance();
          continue;
        }
        multiply_keys(stage);
        product_wait<0>();
        pin(scores);
        hide_unseen(state);
        arrive_as_warp(k_empty + stage * 8);
        weigh();
        rescale_and_pack();
        advance();
        while (left > 0) {
          const int before = stage ? stage - 1 : kStages - 1;  // values to be added
          barrier_wait(k_full + stage * 8, phase);
          state = load_int(states + (stage * kGroups + group) * 4);
          if (kGroups > 1 && has(state, kSkipped)) break;
          left = kMode == Mode::kRows ? left - 1 : !has(state, kLast);
          multiply_keys(stage);
          barrier_wait(v_full + before * 8, stage ? phase : phase ^ 1);
          add_values(before);
          product_wait<1>();
          pin(scores);
          hide_unseen(state);
          arrive_as_warp(k_empty + stage * 8);
          weigh();
          product_wait<0>();
          pin(out);
          arrive_as_warp(v_empty + before * 8);
          rescale_and_pack();
          advance();
        }
        const int before = stage ? stage - 1 : kStages - 1;
        barrier_wait(v_full + before * 8, stage ? phase : phase ^ 1);
        add_values(before);
        product_wait<0>();
        pin(out);
        arrive_as_warp(v_empty + before * 8);
      }

      const int t = thread_again(), lane = t & 31;
      const int row = ((t >> 5) & 3) * 16 + (lane >> 2);
      const int head = load_int(told), part = load_int(told + kSlotPart);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sums[half] += __shfl_xor_sync(kAllLanes, sums[half], 1);
        sums[half] += __shfl_xor_sync(kAllLanes, sums[half], 2);
      }
      if (__any_sync(kAllLanes, part >= 0)) {
        const size_t at =
            (static_cast<size_t>(head) * a.work.lists.parts + part) * kGroups + group;
        put_part(a.part_out, at, out);
        if ((lane & 3) == 0) {
          a.part_sums[at * 64 + row] = {most[0], sums[0]};
          a.part_sums[at * 64 + row + 8] = {most[1], sums[1]};
        }
      } else {
        const int example = load_int(told + kSlotExample),
                  inner_head = load_int(told + kSlotInner),
                  tile = load_int(told + kSlotTiles + group * 4);
        const auto row_of = [&](int inner) {
          const int place = tile * 64 + inner;
          if (tile < 0 || place >= a.work.queries) return -1;
          return kGathered ? a.work.query_rows.of(example, inner_head, place) : place;
        };
        float inverse[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          inverse[half] = sums[half] != 0 ? 1.f / sums[half] : 0.f;
          const int to = row_of(row + half * 8);
          if ((lane & 3) == 0 && to >= 0)
            a.lse.at(example, inner_head)[to * a.lse.row] =
                sums[half] != 0 ? (most[half] + log2f(sums[half])) * 0.69314718056f
                                : -INFINITY;
        }
        // The rows of q are not needed any more: there is room.
        put<Number, kRows>(all_q + slot * Plan::kQBytes + group * 8192, out, inverse[0],
                           inverse[1], a.out.at(example, inner_head), a.out.row,
                           a.out.width, row_of);
        fence_async();
      }
      arrive_as_warp(q_empty + slot * 8);
      if (++slot == 2) {
        slot = 0;
        q_phase ^= 1;
      }
    }
  }
#endif
}

// Parts of rows that were cut, in their order.
template <class Number, int kWidth, int kGroups>
__global__ void __launch_bounds__(kGroups * 128)
    merge_attended(const __grid_constant__ AttendArguments a) {
#ifdef LONGSPAN_ON_HOPPER
  const int head = blockIdx.y, example = head / a.work.heads,
            inner_head = head - example * a.work.heads;
  const int pattern =
      a.work.lists
          .pattern[(a.work.lists.examples == 1 ? 0 : example * a.work.lists.heads) +
                   (a.work.lists.heads == 1 ? 0 : inner_head)];
  const HopperCut& cut =
      a.work.lists
          .cuts[pattern * a.work.lists.cut_count + static_cast<int>(blockIdx.x)];
  const int group = threadIdx.x >> 7, t = threadIdx.x & 127, lane = t & 31;
  const int row = (t >> 5) * 16 + (lane >> 2), tile = cut.tiles[group];
  if (cut.count == 0 || tile < 0) return;
  const auto part = [&](int i) {
    return (static_cast<size_t>(head) * a.work.lists.parts + cut.first + i) * kGroups +
           group;
  };
  float most[2] = {-INFINITY, -INFINITY}, sums[2] = {0, 0};
  for (int i = 0; i < cut.count; ++i)
    for (int half = 0; half < 2; ++half)
      most[half] = fmaxf(most[half], a.part_sums[part(i) * 64 + row + half * 8].x);
  float out[kWidth / 8][4] = {};
  for (int i = 0; i < cut.count; ++i) {
    float factors[2];
    for (int half = 0; half < 2; ++half) {
      const float2 of_part = a.part_sums[part(i) * 64 + row + half * 8];
      factors[half] =
          of_part.x == -INFINITY ? 0.f : power_of_two(of_part.x - most[half]);
      sums[half] += factors[half] * of_part.y;
    }
    const float4* const from =
        reinterpret_cast<const float4*>(a.part_out) + part(i) * (kWidth / 8) * 128 + t;
#pragma unroll
    for (int j = 0; j < kWidth / 8; ++j) {
      const float4 some = from[j * 128];
      out[j][0] += factors[0] * some.x;
      out[j][1] += factors[0] * some.y;
      out[j][2] += factors[1] * some.z;
      out[j][3] += factors[1] * some.w;
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int place = tile * 64 + row + half * 8;
    if (place >= a.work.queries) continue;
    const int to = a.work.query_rows.of(example, inner_head, place);
    if (to < 0) continue;
    const float inverse = sums[half] != 0 ? 1.f / sums[half] : 0.f;
    if ((lane & 3) == 0)
      a.lse.at(example, inner_head)[to * a.lse.row] =
          sums[half] != 0 ? (most[half] + log2f(sums[half])) * 0.69314718056f
                          : -INFINITY;
    char* const data = a.out.at(example, inner_head) + to * a.out.row;
#pragma unroll
    for (int j = 0; j < kWidth / 8; ++j)
      if (j * 8 < a.out.width)
        *reinterpret_cast<uint32_t*>(data + j * 16 + (lane & 3) * 4) =
            pack<Number>(out[j][half * 2] * inverse, out[j][half * 2 + 1] * inverse);
  }
#endif
}

template <class Number, int kWidth, int kGroups, int kKeys, int kStages, int kAtOnce,
          Mode kMode>
int launch_attend(const HopperAttend& task, const AttendArguments& a, Stream stream) {
  const HopperAttention& given = task.given;
  CUtensorMap q_map = {}, k_map = {}, v_map = {};
  if constexpr (kMode != Mode::kGathered) {
    const auto map = [&](CUtensorMap* to, const Operand& of, int64_t rows, int box) {
      return make_map(to, given.type, of, rows, given.heads, given.examples, box);
    };
    int error = map(&q_map, a.q, given.queries, 64);
    if (error == 0) error = map(&k_map, a.k, given.keys, kKeys);
    if (error == 0) error = map(&v_map, a.v, given.keys, kKeys);
    if (error != 0) return error;
  }
  if (const cudaError_t error = cudaMemsetAsync(task.counter, 0, 4, stream);
      error != cudaSuccess)
    return error;
  const int error =
      launch(attend_tiles<Number, kWidth, kGroups, kKeys, kStages, kAtOnce, kMode>,
             a.work.items, kAtOnce, kThreads<kGroups>,
             AttendPlan<kWidth, kGroups, kKeys, kStages, kMode>::kBytes, stream, q_map,
             k_map, v_map, a);
  if (error != 0 || task.lists.cut_count == 0) return error;
  merge_attended<Number, kWidth, kGroups>
      <<<dim3(task.lists.cut_count, a.work.all_heads), kGroups * 128, 0, stream>>>(a);
  return cudaGetLastError();
}

template <class Number>
int attend_of(const HopperAttend& task, const AttendArguments& a, Stream stream) {
  const bool wide = is_wide(task.given);
  const bool has_ends = task.given.places.from != nullptr;
  // Shapes as hopper_shape() has them.
#define LONGSPAN_LAUNCH(width, groups, keys, stages, at_once)                      \
  (has_ends                                                                        \
       ? launch_attend<Number, width, groups, keys, stages, at_once,               \
                       Mode::kIntervals>(task, a, stream)                          \
       : launch_attend<Number, width, groups, keys, stages, at_once, Mode::kRows>( \
             task, a, stream))
  switch (task.lists.kernel) {
    case HopperKernel::kLong:
      return wide ? LONGSPAN_LAUNCH(128, 2, 128, 2, 1)
                  : LONGSPAN_LAUNCH(64, 3, 128, 3, 1);
    case HopperKernel::kTriple:
      return wide ? LONGSPAN_LAUNCH(128, 3, 64, 3, 1)
                  : LONGSPAN_LAUNCH(64, 3, 64, 4, 1);
    case HopperKernel::kPair:
      return wide ? LONGSPAN_LAUNCH(128, 2, 64, 4, 1) : cudaErrorInvalidValue;
    case HopperKernel::kSingle:
      return wide ? LONGSPAN_LAUNCH(128, 1, 64, 2, 2)
                  : LONGSPAN_LAUNCH(64, 1, 64, 3, 3);
    case HopperKernel::kGathered:
      return wide ? launch_attend<Number, 128, 2, 128, 2, 1, Mode::kGathered>(task, a,
                                                                              stream)
                  : launch_attend<Number, 64, 2, 128, 3, 1, Mode::kGathered>(task, a,
                                                                             stream);
  }
#undef LONGSPAN_LAUNCH
  return cudaErrorInvalidValue;
}

// One block for 64 places of one head.
__global__ void __launch_bounds__(64)
    find_key_ends(Numbers rows, Numbers from, Numbers to, HopperPlaces places,
                  int32_t count, int32_t padded) {
  const int example = blockIdx.y / places.key_heads,
            head = blockIdx.y % places.key_heads;
  const int place = static_cast<int>(blockIdx.x) * 64 + static_cast<int>(threadIdx.x);
  const int row = place < count ? rows.of(example, head, place) : -1;
  int low = INT_MAX, high = INT_MIN;  // no query
  if (row >= 0) {
    low = from.data == nullptr ? INT_MIN : from.of(example, head, row);
    high = to.data == nullptr ? INT_MAX : to.of(example, head, row);
  }
  const size_t at = static_cast<size_t>(blockIdx.y) * padded + place;
  places.from[at] = low;
  places.to[at] = high;
  __shared__ int4 of_warp[2];
  int4 bounds = {low, low, high, high};
  for (int step = 16; step > 0; step /= 2) {
    bounds.x = min(bounds.x, __shfl_xor_sync(~0u, bounds.x, step));
    bounds.y = max(bounds.y, __shfl_xor_sync(~0u, bounds.y, step));
    bounds.z = min(bounds.z, __shfl_xor_sync(~0u, bounds.z, step));
    bounds.w = max(bounds.w, __shfl_xor_sync(~0u, bounds.w, step));
  }
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = bounds;
  __syncthreads();
  if (threadIdx.x == 0)
    reinterpret_cast<int4*>(places.key_bounds)[at / 64] = {
        min(of_warp[0].x, of_warp[1].x), max(of_warp[0].y, of_warp[1].y),
        min(of_warp[0].z, of_warp[1].z), max(of_warp[0].w, of_warp[1].w)};
}

__global__ void __launch_bounds__(64)
    find_positions(Numbers rows, Numbers positions, HopperPlaces places, int32_t first,
                   int32_t count, int32_t padded) {
  const int example = blockIdx.y / places.query_heads,
            head = blockIdx.y % places.query_heads;
  const int place = static_cast<int>(blockIdx.x) * 64 + static_cast<int>(threadIdx.x);
  const int row = place < count ? rows.of(example, head, place) : -1;
  int position = INT_MIN;
  if (row >= 0)
    position =
        positions.data == nullptr ? first + row : positions.of(example, head, row);
  const size_t at = static_cast<size_t>(blockIdx.y) * padded + place;
  places.positions[at] = position;
  __shared__ int2 of_warp[2];
  int2 bounds = row >= 0 ? int2{position, position} : int2{INT_MAX, INT_MIN};
  for (int step = 16; step > 0; step /= 2) {
    bounds.x = min(bounds.x, __shfl_xor_sync(~0u, bounds.x, step));
    bounds.y = max(bounds.y, __shfl_xor_sync(~0u, bounds.y, step));
  }
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = bounds;
  __syncthreads();
  if (threadIdx.x == 0)
    reinterpret_cast<int2*>(places.query_bounds)[at / 64] = {
        min(of_warp[0].x, of_warp[1].x), max(of_warp[0].y, of_warp[1].y)};
}

bool is_aligned(const Rows<const void>& rows, int64_t examples, int64_t heads,
                int64_t count) {
  const auto fits = [](int64_t stride, int64_t steps) {
    return steps <= 1 || (stride >= 0 && stride % 8 == 0);
  };
  return rows.data != nullptr && reinterpret_cast<uintptr_t>(rows.data) % 16 == 0 &&
         rows.group >= 1 && heads % rows.group == 0 && fits(rows.example, examples) &&
         fits(rows.head, heads / rows.group) && fits(rows.row, count) &&
         (rows.row > 0 || count == 1);
}

}  // namespace
}  // namespace hopper

bool hopper_is_built() {
#ifdef LONGSPAN_HAS_HOPPER
  return true;
#else
  return false;
#endif
}

bool is_hopper() {
  int device = 0, major = 0, minor = 0;
  return hopper_is_built() && cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) ==
             cudaSuccess &&
         cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) ==
             cudaSuccess &&
         major == 9 && minor == 0;
}

bool hopper_serves(const HopperAttention& given) {
  const auto is_width = [](int64_t width) {
    return width > 0 && width <= 128 && width % 8 == 0;
  };
  const auto is_count = [](int64_t count) { return count > 0 && count < (1 << 30); };
  if (given.type != Type::kBFloat16 && given.type != Type::kHalf) return false;
  if (!is_width(given.width) || !is_width(given.value_width)) return false;
  if (!is_count(given.queries) || !is_count(given.keys) ||
      !is_count(given.query_places) || !is_count(given.key_places) ||
      !is_count(given.examples) || !is_count(given.heads) ||
      given.examples * given.heads > 65535 || !(given.scale > 0))
    return false;
  if (given.positions.data != nullptr && !hopper::is_gathered(given)) return false;
  if (hopper::is_gathered(given) &&
      !(hopper_gathers(given.q.row) && hopper_gathers(given.k.row) &&
        hopper_gathers(given.v.row)))
    return false;
  if (!hopper::is_aligned(given.q, given.examples, given.heads, given.queries) ||
      !hopper::is_aligned(given.k, given.examples, given.heads, given.keys) ||
      !hopper::is_aligned(given.v, given.examples, given.heads, given.keys))
    return false;
  return is_hopper();
}

int hopper_places(const HopperAttention& given, Stream stream) {
  using namespace hopper;
  const HopperPlaces& places = given.places;
  if (places.from != nullptr) {
    const int64_t padded = hopper_padded(given.key_places);
    find_key_ends<<<dim3(static_cast<unsigned>(padded / 64),
                         places.key_examples * places.key_heads),
                    64, 0, stream>>>(
        numbers(given.key_rows), numbers(given.from), numbers(given.to), places,
        static_cast<int32_t>(given.key_places), static_cast<int32_t>(padded));
  }
  if (places.positions != nullptr) {
    const int64_t padded = hopper_padded(given.query_places);
    find_positions<<<dim3(static_cast<unsigned>(padded / 64),
                          places.query_examples * places.query_heads),
                     64, 0, stream>>>(
        numbers(given.query_rows), numbers(given.positions), places, given.first,
        static_cast<int32_t>(given.query_places), static_cast<int32_t>(padded));
  }
  return cudaGetLastError();
}

HopperParts hopper_part_numbers(HopperStep step, const HopperAttention& given,
                                const HopperLists& lists) {
  const bool wide = hopper::is_wide(given);
  const int64_t rows = given.examples * given.heads * lists.parts *
                       hopper_shape(step, lists.kernel, wide).groups * 64;
  return {rows * (wide ? 128 : 64), rows * 2};
}

int hopper_attend(const HopperAttend& task, Stream stream) {
  using namespace hopper;
  const HopperAttention& given = task.given;
  if (!is_complete(given, task.lists)) return cudaErrorInvalidValue;
  AttendArguments a = {};
  a.q = operand(given.q, given.width);
  a.k = operand(given.k, given.width);
  a.v = operand(given.v, given.value_width);
  a.out = operand(task.out, given.value_width);
  a.lse = floats(task.lse);
  a.part_out = task.part_out;
  a.part_sums = reinterpret_cast<float2*>(task.part_sums);
  a.scale2 = static_cast<float>(given.scale * 1.4426950408889634);
  a.work = work_of(given, task.lists, task.counter,
                   given.keys * (given.width + given.value_width) * 2 / given.k.group);
  return given.type == Type::kHalf ? attend_of<__half>(task, a, stream)
                                   : attend_of<__nv_bfloat16>(task, a, stream);
}

}  // namespace longspan::cuda
