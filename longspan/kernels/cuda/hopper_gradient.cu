// Two kernels, both without atomics on numbers: for keys and values a warpgroup owns 64
// keys and walks tiles of queries, for queries it owns 64 queries and walks tiles of
// keys. Weights and their slopes stay in registers.

#include "longspan/kernels/cuda/hopper_work.cuh"

namespace longspan::cuda {
namespace hopper {
namespace {

struct GradientArguments {
  Work work;
  Operand q, k, v, slope;             // slope: gradient of out
  Operand q_slope, k_slope, v_slope;  // results
  const float* lse2;                  // by place, padded
  const float* delta;
  float *part_q, *part_k, *part_v;
  float scale2, scale;  // scale2: scale * log2(e)
  bool keys_by_row;     // where gathered
};

}  // namespace

template <int kWidth, int kGroups, int kQueries, int kStages, int kSlots_, Mode kMode>
struct KeyPlan {
  static constexpr int kCopiers = kMode == Mode::kGathered ? 128 : 1;
  static constexpr int kRows = kGroups * 64, kWords = kQueries / 64;
  static constexpr int kOwnBytes = kRows * kWidth * 2,
                       kTileBytes = kQueries * kWidth * 2, kMaskBytes = 8 * kQueries,
                       kEndBytes = kMode == Mode::kRows ? 0 : 8 * kRows;
  // lse2 and delta, and where gathered positions, of the queries of a stage.
  static constexpr int kRowBytes = kQueries * (kMode == Mode::kGathered ? 12 : 8);
  static constexpr int kK = 0, kV = kK + kSlots_ * kOwnBytes,
                       kQ = kV + kSlots_ * kOwnBytes,
                       kSlope = kQ + kStages * kTileBytes,
                       kOfRows = kSlope + kStages * kTileBytes,
                       kMasks = kOfRows + kStages * kRowBytes,
                       kEnds = kMasks + kStages * kGroups * kMaskBytes,
                       kOwnFull = kEnds + kSlots_ * kEndBytes,
                       kOwnEmpty = kOwnFull + 16, kFull = kOwnEmpty + 16,
                       kEmpty = kFull + kStages * 8, kSlots = kEmpty + kStages * 8,
                       kStates = kSlots + 2 * kSlotBytes,
                       kFirsts = kStates + kStages * kGroups * 4,
                       kNext = (kFirsts + kStages * 4 + 7) / 8 * 8;
  static constexpr int kBytes = kNext + 8 + 1024;
};

namespace {

template <class Number, int kWidth, int kGroups, int kQueries, int kStages, int kSlots,
          int kAtOnce, Mode kMode>
__global__ void __launch_bounds__(kThreads<kGroups>, kAtOnce)
    slope_keys(const __grid_constant__ CUtensorMap q_map,
               const __grid_constant__ CUtensorMap slope_map,
               const __grid_constant__ CUtensorMap k_map,
               const __grid_constant__ CUtensorMap v_map,
               const __grid_constant__ GradientArguments a) {
#ifdef LONGSPAN_ON_HOPPER
  using Plan = KeyPlan<kWidth, kGroups, kQueries, kStages, kSlots, kMode>;
  using Counts =
      std::conditional_t<kMode == Mode::kGathered && (kWidth == 128 || kQueries == 128),
                         ManyRegisters, Registers<kGroups, kMode, false>>;
  constexpr bool kGathered = kMode == Mode::kGathered;
  constexpr int kCopiers = Plan::kCopiers, kRows = Plan::kRows;
  // Where there are registers for it, the next item is looked for early.
  constexpr bool kFindsEarly = kGroups == 1 && !kGathered,
                 kClaimsEarly = kFindsEarly || kGathered;
  extern __shared__ __align__(1024) unsigned char raw[];
  const uint32_t base = (shared_address(raw) + 1023) & ~1023u;
  const uint32_t all_k = base + Plan::kK, all_v = base + Plan::kV,
                 all_q = base + Plan::kQ, all_slopes = base + Plan::kSlope,
                 of_rows = base + Plan::kOfRows, masks = base + Plan::kMasks,
                 ends = base + Plan::kEnds, own_full = base + Plan::kOwnFull,
                 own_empty = base + Plan::kOwnEmpty, full = base + Plan::kFull,
                 empty = base + Plan::kEmpty, slots = base + Plan::kSlots,
                 states = base + Plan::kStates, firsts = base + Plan::kFirsts;
  const int thread = threadIdx.x;
  const int group = __shfl_sync(kAllLanes, thread >> 7, 0);
  if (thread == 0) {
    for (int i = 0; i < kSlots; ++i) {
      barrier_init(own_full + i * 8, kGathered ? kCopiers + 1 : 1);
      barrier_init(own_empty + i * 8, kGroups * 4 * kArrivalsOfWarp);
    }
    for (int i = 0; i < kStages; ++i) {
      barrier_init(full + i * 8, kGathered ? kCopiers + 1 : 1);
      barrier_init(empty + i * 8, kGroups * 4 * kArrivalsOfWarp);
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
      uint32_t phase = 1, own_phase = 1;
      if constexpr (!kGathered) {
        prefetch_map(&q_map);
        prefetch_map(&slope_map);
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
            return seek<kMode, kGroups, Plan::kWords, false, true>(a.work, item, entry);
          };
          auto now = next(item.first);
          const Spot of_q = a.q.spot(item.example, item.head),
                     of_slope = a.slope.spot(item.example, item.head);
          const Numbers query_rows = a.work.query_rows.at(item.example, item.head);
          const char* const all_of_q = a.q.at(item.example, item.head);
          const char* const all_of_slope = a.slope.at(item.example, item.head);
          // Row numbers, and what an entry is, are asked for a tile ahead.
          using Rows = Gather<kWidth, kCopiers == 1 ? 128 : kCopiers>;
          Rows rows[Plan::kWords], rows_after[Plan::kWords];
          auto following = now;
          const auto find_rows = [&](Rows(&of_tile)[Plan::kWords], int tile) {
#pragma unroll
            for (int i = 0; i < Plan::kWords; ++i)
              of_tile[i].find(query_rows, tile * kQueries + i * 64, a.work.queries,
                              copier);
          };
          if constexpr (kGathered) {
            if (now.entry < item.end) find_rows(rows, now.held(a.work).x);
            following = next(now.entry + 1);
          }
          const uint32_t k = all_k + slot * Plan::kOwnBytes,
                         v = all_v + slot * Plan::kOwnBytes, own = own_full + slot * 8;
          barrier_wait(own_empty + slot * 8, own_phase);
          if (copier == 0) {
            tell(slots + slot * kSlotBytes, item,
                 kMode == Mode::kRows ? item.end - item.first : now.entry < item.end);
            barrier_expect(own,
                           (kGathered ? 0 : 2 * Plan::kOwnBytes) + Plan::kEndBytes);
            if constexpr (kMode != Mode::kRows) {
#pragma unroll
              for (int i = 0; i < kGroups; ++i) {
                const size_t first =
                    key_places(a.work, item) + max(item.tiles[i], 0) * 64;
                const uint32_t to = ends + slot * Plan::kEndBytes + i * 512;
                copy_bytes(to, a.work.places.from + first, 256, own);
                copy_bytes(to + 256, a.work.places.to + first, 256, own);
              }
            }
          }
#pragma unroll
          for (int i = 0; i < kGroups; ++i) {
            const int first = max(item.tiles[i], 0) * 64;
            if constexpr (kGathered) {
              Gather<kWidth, kCopiers> own_rows;
              own_rows.find(a.work.key_rows.at(item.example, item.head), first,
                            a.work.keys, copier);
              own_rows.template copy<kRows>(k, i * 64, a.k.at(item.example, item.head),
                                            a.k.row, a.k.width, copier);
              own_rows.template copy<kRows>(v, i * 64, a.v.at(item.example, item.head),
                                            a.v.row, a.v.width, copier);
            } else {
              copy_rows<kWidth, kRows>(k + i * 8192, &k_map, first,
                                       a.k.spot(item.example, item.head), own);
              copy_rows<kWidth, kRows>(v + i * 8192, &v_map, first,
                                       a.v.spot(item.example, item.head), own);
            }
          }
          if constexpr (kGathered) arrive_after_copies(own);
          while (now.entry < item.end) {
            if constexpr (!kGathered)
              following = next(now.entry + 1);
            else if (following.entry < item.end)
              find_rows(rows_after, following.held(a.work).x);
            const int4 at = now.held(a.work);
            const int tags[3] = {at.y, at.z, at.w};
            const int state = state_of<kMode, kGroups, Plan::kWords, false, true>(
                a.work, item, now, at);
            const int first = at.x * kQueries;
            const uint32_t q = all_q + stage * Plan::kTileBytes,
                           slope = all_slopes + stage * Plan::kTileBytes,
                           now_full = full + stage * 8,
                           rows_to = of_rows + stage * Plan::kRowBytes;
            barrier_wait(empty + stage * 8, phase);
            if (copier == 0) {
              int bytes = (kGathered ? 0 : 2 * Plan::kTileBytes) + Plan::kRowBytes;
              const int last =
                  kMode != Mode::kRows && following.entry >= item.end ? kLast : 0;
#pragma unroll
              for (int i = 0; i < kGroups; ++i) {
                const int one = state >> (i * 4) & 15;
                if (one & kMasked) bytes += Plan::kMaskBytes;
                store_int(states + (stage * kGroups + i) * 4, one | last);
              }
              if constexpr (kMode == Mode::kIntervals)
                store_int(firsts + stage * 4, a.work.first + first);
              barrier_expect(now_full, bytes);
              if constexpr (!kGathered)
                copy_rows<kWidth, kQueries>(q, &q_map, first, of_q, now_full);
              const size_t place =
                  static_cast<size_t>(item.number) * a.work.padded_queries + first;
              copy_bytes(rows_to, a.lse2 + place, kQueries * 4, now_full);
              copy_bytes(rows_to + kQueries * 4, a.delta + place, kQueries * 4,
                         now_full);
              if constexpr (kGathered)
                copy_bytes(rows_to + kQueries * 8,
                           a.work.places.positions +
                               query_places(a.work, item.example, item.head) + first,
                           kQueries * 4, now_full);
#pragma unroll
              for (int i = 0; i < kGroups; ++i)
                if (state >> (i * 4) & kMasked)
                  copy_bytes(masks + (stage * kGroups + i) * Plan::kMaskBytes,
                             a.work.lists.masks +
                                 static_cast<size_t>(tags[i]) * (Plan::kMaskBytes / 8),
                             Plan::kMaskBytes, now_full);
              if constexpr (!kGathered)
                copy_rows<kWidth, kQueries>(slope, &slope_map, first, of_slope,
                                            now_full);
            }
            if constexpr (kGathered) {
#pragma unroll
              for (int i = 0; i < Plan::kWords; ++i) {
                rows[i].template copy<kQueries>(q, i * 64, all_of_q, a.q.row, a.q.width,
                                                copier);
                rows[i].template copy<kQueries>(slope, i * 64, all_of_slope,
                                                a.slope.row, a.slope.width, copier);
              }
              arrive_after_copies(now_full);
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
          if (++slot == kSlots) {
            slot = 0;
            own_phase ^= 1;
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
      barrier_wait(own_empty + slot * 8, own_phase);
      if (copier == 0) {
        store_int(slots + slot * kSlotBytes, ~0u);
        barrier_arrive(own_full + slot * 8);
      }
      if constexpr (kGathered) barrier_arrive(own_full + slot * 8);
    }
  } else {  // computes
    if constexpr (kGroups > 1) take_registers<Counts::kCompute>();
    int stage = 0, slot = 0;
    uint32_t phase = 0, own_phase = 0;
    float k_slope[kWidth / 8][4], v_slope[kWidth / 8][4];
    float scores[kQueries / 8][4], weight_slopes[kQueries / 8][4];
    uint32_t weights[kQueries / 16][4], score_slopes[kQueries / 16][4];
    const uint32_t k = matrix_at(all_k + group * 8192),
                   v = matrix_at(all_v + group * 8192), q = matrix_at(all_q),
                   slope = matrix_at(all_slopes),
                   q_along = matrix_at(all_q, kQueries * 128),
                   slope_along = matrix_at(all_slopes, kQueries * 128);

    const auto multiply_queries = [&]() {
      if (kGathered) fence_async();
      multiply<Number, kWidth, kRows, kQueries>(scores,
                                                k + slot * (Plan::kOwnBytes / 16),
                                                q + stage * (Plan::kTileBytes / 16));
    };
    const auto multiply_slopes = [&]() {
      multiply<Number, kWidth, kRows, kQueries>(
          weight_slopes, v + slot * (Plan::kOwnBytes / 16),
          slope + stage * (Plan::kTileBytes / 16));
    };
    const auto hide_unseen = [&](int state) {
      if (has(state, kMasked))
        hide<Plan::kWords>(scores,
                           masks + (stage * kGroups + group) * Plan::kMaskBytes);
      if constexpr (kMode != Mode::kRows)
        if (has(state, kChecked)) {
          const int t = thread_again(), lane = t & 31;
          const uint32_t own = ends + slot * Plan::kEndBytes + group * 512 +
                               (((t >> 5) & 3) * 16 + (lane >> 2)) * 4;
          int from[2], to[2];
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            from[half] = load_int(own + half * 32);
            to[half] = load_int(own + 256 + half * 32);
          }
          int2 positions;
          const uint32_t of_stage =
              of_rows + stage * Plan::kRowBytes + kQueries * 8 + (lane & 3) * 8;
          if constexpr (!kGathered)
            positions.x = load_int(firsts + stage * 4) + (lane & 3) * 2;
#pragma unroll
          for (int i = 0; i < kQueries / 8; ++i) {
            if constexpr (kGathered) {
              positions = load_int2(of_stage + i * 32);
            } else {
              if (i > 0) positions.x += 8;
              positions.y = positions.x + 1;
            }
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              if (positions.x < from[half] || positions.x >= to[half])
                scores[i][half * 2] = -INFINITY;
              if (positions.y < from[half] || positions.y >= to[half])
                scores[i][half * 2 + 1] = -INFINITY;
            }
          }
        }
    };
    const auto weigh = [&]() {
      const uint32_t lse2 =
          of_rows + stage * Plan::kRowBytes + (thread_again() & 3) * 8;
#pragma unroll
      for (int i = 0; i < kQueries / 8; ++i) {
        const float2 less = load_float2(lse2 + i * 32);
#pragma unroll
        for (int half = 0; half < 2; ++half)
          weights[i / 2][(i & 1) * 2 + half] = pack<Number>(
              power_of_two(fmaf(scores[i][half * 2], a.scale2, -less.x)),
              power_of_two(fmaf(scores[i][half * 2 + 1], a.scale2, -less.y)));
      }
    };
    // The weights are taken back from where they are packed: that saves registers.
    const auto slope_scores = [&]() {
      const uint32_t delta =
          of_rows + stage * Plan::kRowBytes + kQueries * 4 + (thread_again() & 3) * 8;
#pragma unroll
      for (int i = 0; i < kQueries / 8; ++i) {
        const float2 less = load_float2(delta + i * 32);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float2 two = unpack<Number>(weights[i / 2][(i & 1) * 2 + half]);
          score_slopes[i / 2][(i & 1) * 2 + half] =
              pack<Number>(two.x * (weight_slopes[i][half * 2] - less.x),
                           two.y * (weight_slopes[i][half * 2 + 1] - less.y));
        }
      }
    };
    const auto release_before = [&]() {
      arrive_as_warp(empty + (stage ? stage - 1 : kStages - 1) * 8);
    };

    for (;;) {
      const uint32_t told = slots + slot * kSlotBytes;
      barrier_wait(own_full + slot * 8, own_phase);
      if (__any_sync(kAllLanes, load_int(told) < 0)) break;
      int left = __shfl_sync(kAllLanes, load_int(told + kSlotLeft), 0);
#pragma unroll
      for (int i = 0; i < kWidth / 8; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) k_slope[i][j] = v_slope[i][j] = 0;
      bool is_running = false;  // the products of the stage before
      while (left > 0) {
        barrier_wait(full + stage * 8, phase);
        const int state = load_int(states + (stage * kGroups + group) * 4);
        left = kMode == Mode::kRows ? left - 1 : !has(state, kLast);
        if (kGroups > 1 && has(state, kSkipped)) {
          product_wait<0>();
          pin(k_slope);
          pin(v_slope);
          if (is_running) release_before();
          arrive_as_warp(empty + stage * 8);
          is_running = false;
        } else {
          product_wait<0>();
          multiply_queries();
          pin(k_slope);
          pin(v_slope);
          if (is_running) release_before();
          multiply_slopes();
          product_wait<1>();
          pin(scores);
          hide_unseen(state);
          weigh();
          multiply_add<Number, kQueries>(v_slope, weights,
                                         slope_along + stage * (Plan::kTileBytes / 16));
          product_wait<1>();
          pin(weight_slopes);
          slope_scores();
          multiply_add<Number, kQueries>(k_slope, score_slopes,
                                         q_along + stage * (Plan::kTileBytes / 16));
          is_running = true;
        }
        if (++stage == kStages) {
          stage = 0;
          phase ^= 1;
        }
      }
      product_wait<0>();
      pin(k_slope);
      pin(v_slope);
      if (is_running) release_before();
      const int part = load_int(told + kSlotPart);
      if (__any_sync(kAllLanes, part >= 0)) {
        const size_t at =
            (static_cast<size_t>(load_int(told)) * a.work.lists.parts + part) *
                kGroups +
            group;
        put_part(a.part_k, at, k_slope);
        put_part(a.part_v, at, v_slope);
      } else {
        const int example = load_int(told + kSlotExample),
                  inner_head = load_int(told + kSlotInner),
                  tile = load_int(told + kSlotTiles + group * 4);
        const auto row_of = [&](int inner) {
          const int place = tile * 64 + inner;
          if (tile < 0 || place >= a.work.keys) return -1;
          return kGathered && a.keys_by_row
                     ? a.work.key_rows.of(example, inner_head, place)
                     : place;
        };
        const uint32_t room = slot * Plan::kOwnBytes + group * 8192;
        put<Number, kRows>(all_k + room, k_slope, a.scale, a.scale,
                           a.k_slope.at(example, inner_head), a.k_slope.row,
                           a.k_slope.width, row_of);
        put<Number, kRows>(all_v + room, v_slope, 1.f, 1.f,
                           a.v_slope.at(example, inner_head), a.v_slope.row,
                           a.v_slope.width, row_of);
        fence_async();
      }
      arrive_as_warp(own_empty + slot * 8);
      if (++slot == kSlots) {
        slot = 0;
        own_phase ^= 1;
      }
    }
  }
#endif
}

}  // namespace

template <int kWidth, int kGroups, int kKeys, int kStages, int kSlots_, Mode kMode>
struct QueryPlan {
  static constexpr int kCopiers = kMode == Mode::kGathered ? 128 : 1;
  static constexpr int kRows = kGroups * 64, kWords = kKeys / 64;
  static constexpr int kOwnBytes = kRows * kWidth * 2, kTileBytes = kKeys * kWidth * 2,
                       kMaskBytes = 8 * kKeys,
                       kEndBytes = kMode == Mode::kRows ? 0 : 8 * kKeys;
  static constexpr int kQ = 0, kSlope = kQ + kSlots_ * kOwnBytes,
                       kK = kSlope + kSlots_ * kOwnBytes,
                       kV = kK + kStages * kTileBytes,
                       kMasks = kV + kStages * kTileBytes,
                       kEnds = kMasks + kStages * kGroups * kMaskBytes,
                       kOwnFull = kEnds + kStages * kEndBytes,
                       kOwnEmpty = kOwnFull + 16, kFull = kOwnEmpty + 16,
                       kKEmpty = kFull + kStages * 8, kVEmpty = kKEmpty + kStages * 8,
                       kSlots = kVEmpty + kStages * 8,
                       kStates = kSlots + 2 * kSlotBytes,
                       kNext = (kStates + kStages * kGroups * 4 + 7) / 8 * 8;
  static constexpr int kBytes = kNext + 8 + 1024;
};

namespace {

// kInTurn: warpgroups issue their products one after another.
template <class Number, int kWidth, int kGroups, int kKeys, int kStages, int kSlots,
          int kAtOnce, bool kInTurn, Mode kMode>
__global__ void __launch_bounds__(kThreads<kGroups>, kAtOnce)
    slope_queries(const __grid_constant__ CUtensorMap q_map,
                  const __grid_constant__ CUtensorMap slope_map,
                  const __grid_constant__ CUtensorMap k_map,
                  const __grid_constant__ CUtensorMap v_map,
                  const __grid_constant__ GradientArguments a) {
#ifdef LONGSPAN_ON_HOPPER
  using Plan = QueryPlan<kWidth, kGroups, kKeys, kStages, kSlots, kMode>;
  using Counts = Registers<kGroups, kMode, kKeys == 64>;
  constexpr bool kGathered = kMode == Mode::kGathered;
  constexpr int kCopiers = Plan::kCopiers, kRows = Plan::kRows;
  // Where there are registers for it, the next item is looked for early.
  constexpr bool kFindsEarly = kGroups == 1 && !kGathered,
                 kClaimsEarly = kFindsEarly || kGathered;
  extern __shared__ __align__(1024) unsigned char raw[];
  const uint32_t base = (shared_address(raw) + 1023) & ~1023u;
  const uint32_t all_q = base + Plan::kQ, all_slopes = base + Plan::kSlope,
                 all_k = base + Plan::kK, all_v = base + Plan::kV,
                 masks = base + Plan::kMasks, ends = base + Plan::kEnds,
                 own_full = base + Plan::kOwnFull, own_empty = base + Plan::kOwnEmpty,
                 full = base + Plan::kFull, k_empty = base + Plan::kKEmpty,
                 v_empty = base + Plan::kVEmpty, slots = base + Plan::kSlots,
                 states = base + Plan::kStates;
  const int thread = threadIdx.x;
  const int group = __shfl_sync(kAllLanes, thread >> 7, 0);
  if (thread == 0) {
    for (int i = 0; i < kSlots; ++i) {
      barrier_init(own_full + i * 8, kGathered ? kCopiers + 1 : 1);
      barrier_init(own_empty + i * 8, kGroups * 4 * kArrivalsOfWarp);
    }
    for (int i = 0; i < kStages; ++i) {
      barrier_init(full + i * 8, kGathered ? kCopiers + 1 : 1);
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
      uint32_t phase = 1, own_phase = 1;
      if constexpr (!kGathered) {
        prefetch_map(&q_map);
        prefetch_map(&slope_map);
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
            return seek<kMode, kGroups, Plan::kWords, kInTurn, false>(a.work, item,
                                                                      entry);
          };
          auto now = next(item.first);
          const Spot of_k = a.k.spot(item.example, item.head),
                     of_v = a.v.spot(item.example, item.head);
          const Numbers key_rows = a.work.key_rows.at(item.example, item.head);
          const char* const all_of_k = a.k.at(item.example, item.head);
          const char* const all_of_v = a.v.at(item.example, item.head);
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
          const uint32_t q = all_q + slot * Plan::kOwnBytes,
                         slope = all_slopes + slot * Plan::kOwnBytes,
                         own = own_full + slot * 8;
          barrier_wait(own_empty + slot * 8, own_phase);
          if (copier == 0) {
            tell(slots + slot * kSlotBytes, item,
                 kMode == Mode::kRows ? item.end - item.first : now.entry < item.end);
            barrier_expect(own, kGathered ? 0 : 2 * Plan::kOwnBytes);
          }
#pragma unroll
          for (int i = 0; i < kGroups; ++i) {
            const int first = max(item.tiles[i], 0) * 64;
            if constexpr (kGathered) {
              Gather<kWidth, kCopiers> own_rows;
              own_rows.find(a.work.query_rows.at(item.example, item.head), first,
                            a.work.queries, copier);
              own_rows.template copy<kRows>(q, i * 64, a.q.at(item.example, item.head),
                                            a.q.row, a.q.width, copier);
              own_rows.template copy<kRows>(slope, i * 64,
                                            a.slope.at(item.example, item.head),
                                            a.slope.row, a.slope.width, copier);
            } else {
              copy_rows<kWidth, kRows>(q + i * 8192, &q_map, first,
                                       a.q.spot(item.example, item.head), own);
              copy_rows<kWidth, kRows>(slope + i * 8192, &slope_map, first,
                                       a.slope.spot(item.example, item.head), own);
            }
          }
          if constexpr (kGathered) arrive_after_copies(own);
          while (now.entry < item.end) {
            if constexpr (!kGathered)
              following = next(now.entry + 1);
            else if (following.entry < item.end)
              find_rows(rows_after, following.held(a.work).x);
            const int4 at = now.held(a.work);
            const int tags[3] = {at.y, at.z, at.w};
            const int state = state_of<kMode, kGroups, Plan::kWords, kInTurn, false>(
                a.work, item, now, at);
            const int first = at.x * kKeys;
            const uint32_t k = all_k + stage * Plan::kTileBytes,
                           v = all_v + stage * Plan::kTileBytes,
                           now_full = full + stage * 8;
            barrier_wait(v_empty + stage * 8, phase);  // values are free before keys
            if (copier == 0) {
              int bytes = kGathered ? 0 : 2 * Plan::kTileBytes;
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
              barrier_expect(now_full, bytes);
              if constexpr (!kGathered)
                copy_rows<kWidth, kKeys>(v, &v_map, first, of_v, now_full);
#pragma unroll
              for (int i = 0; i < kGroups; ++i)
                if (state >> (i * 4) & kMasked)
                  copy_bytes(masks + (stage * kGroups + i) * Plan::kMaskBytes,
                             a.work.lists.masks +
                                 static_cast<size_t>(tags[i]) * (Plan::kMaskBytes / 8),
                             Plan::kMaskBytes, now_full);
              if constexpr (kMode != Mode::kRows)
                if (checked) {
                  const size_t place = key_places(a.work, item) + first;
                  const uint32_t to = ends + stage * Plan::kEndBytes;
                  copy_bytes(to, a.work.places.from + place, kKeys * 4, now_full);
                  copy_bytes(to + kKeys * 4, a.work.places.to + place, kKeys * 4,
                             now_full);
                }
            }
            if constexpr (kGathered) {
#pragma unroll
              for (int i = 0; i < Plan::kWords; ++i)
                rows[i].template copy<kKeys>(v, i * 64, all_of_v, a.v.row, a.v.width,
                                             copier);
            }
            barrier_wait(k_empty + stage * 8, phase);
            if constexpr (kGathered) {
#pragma unroll
              for (int i = 0; i < Plan::kWords; ++i)
                rows[i].template copy<kKeys>(k, i * 64, all_of_k, a.k.row, a.k.width,
                                             copier);
              arrive_after_copies(now_full);
            } else {
              copy_rows<kWidth, kKeys>(k, &k_map, first, of_k, now_full);
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
          if (++slot == kSlots) {
            slot = 0;
            own_phase ^= 1;
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
      barrier_wait(own_empty + slot * 8, own_phase);
      if (copier == 0) {
        store_int(slots + slot * kSlotBytes, ~0u);
        barrier_arrive(own_full + slot * 8);
      }
      if constexpr (kGathered) barrier_arrive(own_full + slot * 8);
    }
  } else {  // computes
    if constexpr (kGroups > 1) take_registers<Counts::kCompute>();
    int stage = 0, slot = 0;
    uint32_t phase = 0, own_phase = 0;
    float q_slope[kWidth / 8][4], scores[kKeys / 8][4], weight_slopes[kKeys / 8][4];
    float lse2[2], delta[2];
    uint32_t score_slopes[kKeys / 16][4];
    int2 positions = {};
    const uint32_t q = matrix_at(all_q + group * 8192),
                   slope = matrix_at(all_slopes + group * 8192), k = matrix_at(all_k),
                   v = matrix_at(all_v), k_along = matrix_at(all_k, kKeys * 128);
    if (kInTurn && group == kGroups - 1) named_arrive(1, 256);

    const auto multiply_keys = [&]() {
      if (kGathered) fence_async();
      multiply<Number, kWidth, kRows, kKeys>(scores, q + slot * (Plan::kOwnBytes / 16),
                                             k + stage * (Plan::kTileBytes / 16));
    };
    const auto multiply_values = [&]() {
      multiply<Number, kWidth, kRows, kKeys>(weight_slopes,
                                             slope + slot * (Plan::kOwnBytes / 16),
                                             v + stage * (Plan::kTileBytes / 16));
    };
    const auto weigh = [&](int state) {
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
#pragma unroll
      for (int i = 0; i < kKeys / 8; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j)
          scores[i][j] = power_of_two(fmaf(scores[i][j], a.scale2, -lse2[j / 2]));
    };
    const auto slope_scores = [&]() {
#pragma unroll
      for (int i = 0; i < kKeys / 8; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          score_slopes[i / 2][(i & 1) * 2 + half] = pack<Number>(
              scores[i][half * 2] * (weight_slopes[i][half * 2] - delta[half]),
              scores[i][half * 2 + 1] * (weight_slopes[i][half * 2 + 1] - delta[half]));
    };
    const auto release_before = [&]() {
      arrive_as_warp(k_empty + (stage ? stage - 1 : kStages - 1) * 8);
    };

    for (;;) {
      const uint32_t told = slots + slot * kSlotBytes;
      barrier_wait(own_full + slot * 8, own_phase);
      const int head = load_int(told);
      if (__any_sync(kAllLanes, head < 0)) break;
      int left = __shfl_sync(kAllLanes, load_int(told + kSlotLeft), 0);
      {
        const int t = thread_again();
        const int place = max(load_int(told + kSlotTiles + group * 4), 0) * 64 +
                          ((t >> 5) & 3) * 16 + ((t & 31) >> 2);
        const size_t at = static_cast<size_t>(head) * a.work.padded_queries + place;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          lse2[half] = a.lse2[at + half * 8];
          delta[half] = a.delta[at + half * 8];
        }
        if constexpr (kGathered) {
          const int32_t* const of_place =
              a.work.places.positions +
              query_places(a.work, load_int(told + kSlotExample),
                           load_int(told + kSlotInner)) +
              place;
          positions = {__ldg(of_place), __ldg(of_place + 8)};
        }
      }
#pragma unroll
      for (int i = 0; i < kWidth / 8; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) q_slope[i][j] = 0;
      bool is_running = false;
      while (left > 0) {
        barrier_wait(full + stage * 8, phase);
        const int state = load_int(states + (stage * kGroups + group) * 4);
        left = kMode == Mode::kRows ? left - 1 : !has(state, kLast);
        if (kGroups > 1 && !kInTurn && has(state, kSkipped)) {
          product_wait<0>();
          pin(q_slope);
          if (is_running) release_before();
          arrive_as_warp(k_empty + stage * 8);
          arrive_as_warp(v_empty + stage * 8);
          is_running = false;
        } else {
          if (kInTurn) named_sync(1 + group, 256);
          multiply_keys();
          product_wait<1>();
          pin(q_slope);
          if (is_running) release_before();
          multiply_values();
          if (kInTurn) named_arrive(1 + (group + 1) % kGroups, 256);
          product_wait<1>();
          pin(scores);
          weigh(state);
          product_wait<0>();
          pin(weight_slopes);
          arrive_as_warp(v_empty + stage * 8);
          slope_scores();
          multiply_add<Number, kKeys>(q_slope, score_slopes,
                                      k_along + stage * (Plan::kTileBytes / 16));
          is_running = true;
        }
        if (++stage == kStages) {
          stage = 0;
          phase ^= 1;
        }
      }
      product_wait<0>();
      pin(q_slope);
      if (is_running) release_before();
      const int part = load_int(told + kSlotPart);
      if (__any_sync(kAllLanes, part >= 0)) {
        put_part(a.part_q,
                 (static_cast<size_t>(load_int(told)) * a.work.lists.parts + part) *
                         kGroups +
                     group,
                 q_slope);
      } else {
        const int example = load_int(told + kSlotExample),
                  inner_head = load_int(told + kSlotInner),
                  tile = load_int(told + kSlotTiles + group * 4);
        const auto row_of = [&](int inner) {
          const int place = tile * 64 + inner;
          if (tile < 0 || place >= a.work.queries) return -1;
          return kGathered ? a.work.query_rows.of(example, inner_head, place) : place;
        };
        put<Number, kRows>(all_q + slot * Plan::kOwnBytes + group * 8192, q_slope,
                           a.scale, a.scale, a.q_slope.at(example, inner_head),
                           a.q_slope.row, a.q_slope.width, row_of);
        fence_async();
      }
      arrive_as_warp(own_empty + slot * 8);
      if (++slot == kSlots) {
        slot = 0;
        own_phase ^= 1;
      }
    }
  }
#endif
}

// Sums the parts of rows that were cut, in their order.
template <class Number, int kWidth, int kGroups>
__global__ void __launch_bounds__(kGroups * 128)
    merge_slopes(const float* parts, Work work, Numbers rows, int32_t count, Operand to,
                 float factor) {
#ifdef LONGSPAN_ON_HOPPER
  const int head = blockIdx.y, example = head / work.heads,
            inner_head = head - example * work.heads;
  const int pattern =
      work.lists.pattern[(work.lists.examples == 1 ? 0 : example * work.lists.heads) +
                         (work.lists.heads == 1 ? 0 : inner_head)];
  const HopperCut& cut =
      work.lists.cuts[pattern * work.lists.cut_count + static_cast<int>(blockIdx.x)];
  const int group = threadIdx.x >> 7, t = threadIdx.x & 127, lane = t & 31;
  const int tile = cut.tiles[group];
  if (cut.count == 0 || tile < 0) return;
  char* to_rows[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int place = tile * 64 + (t >> 5) * 16 + (lane >> 2) + half * 8;
    const int row = place < count ? rows.of(example, inner_head, place) : -1;
    to_rows[half] =
        row < 0 ? nullptr : to.at(example, inner_head) + row * to.row + (lane & 3) * 4;
  }
#pragma unroll
  for (int j = 0; j < kWidth / 8; ++j) {
    float4 sum = {0, 0, 0, 0};
    for (int i = 0; i < cut.count; ++i) {
      const size_t part =
          (static_cast<size_t>(head) * work.lists.parts + cut.first + i) * kGroups +
          group;
      const float4 some =
          reinterpret_cast<const float4*>(parts)[(part * (kWidth / 8) + j) * 128 + t];
      sum.x += some.x;
      sum.y += some.y;
      sum.z += some.z;
      sum.w += some.w;
    }
    if (j * 8 >= to.width) continue;
    if (to_rows[0] != nullptr)
      *reinterpret_cast<uint32_t*>(to_rows[0] + j * 16) =
          pack<Number>(sum.x * factor, sum.y * factor);
    if (to_rows[1] != nullptr)
      *reinterpret_cast<uint32_t*>(to_rows[1] + j * 16) =
          pack<Number>(sum.z * factor, sum.w * factor);
  }
#endif
}

// lse2 and delta by place: lse in log2 units, plus infinity where there is no row or it
// sees nothing, and sum(out * slope) - slope of lse. A row is 8 or 16 threads.
template <class Number, int kWidth>
__global__ void __launch_bounds__(256)
    find_deltas(Operand out, Operand slope, Floats lse, Floats lse_slope, Work work,
                float* lse2, float* delta) {
#ifdef LONGSPAN_ON_HOPPER
  constexpr int kOfRow = kWidth / 8;
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x < 2)
    work.counter[threadIdx.x] = 0;
  const int head = blockIdx.y, example = head / work.heads,
            inner_head = head - example * work.heads;
  const int place = static_cast<int>(blockIdx.x) * (256 / kOfRow) +
                    static_cast<int>(threadIdx.x) / kOfRow;
  const int chunk = threadIdx.x % kOfRow;
  const int row =
      place < work.queries ? work.query_rows.of(example, inner_head, place) : -1;
  float sum = 0;
  if (row >= 0 && chunk * 8 < out.width) {
    const uint4 a = *reinterpret_cast<const uint4*>(out.at(example, inner_head) +
                                                    row * out.row + chunk * 16);
    const uint4 b = *reinterpret_cast<const uint4*>(slope.at(example, inner_head) +
                                                    row * slope.row + chunk * 16);
    const uint32_t pairs_a[4] = {a.x, a.y, a.z, a.w}, pairs_b[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 two_a = unpack<Number>(pairs_a[i]),
                   two_b = unpack<Number>(pairs_b[i]);
      sum += two_a.x * two_b.x + two_a.y * two_b.y;
    }
  }
#pragma unroll
  for (int step = kOfRow / 2; step > 0; step /= 2)
    sum += __shfl_xor_sync(kAllLanes, sum, step);
  if (chunk != 0 || place >= work.padded_queries) return;
  float of_row = INFINITY;
  if (row >= 0) {
    const float given = lse.at(example, inner_head)[row * lse.row];
    if (given != -INFINITY) of_row = given * 1.44269504089f;
    if (lse_slope.data != nullptr)
      sum -= lse_slope.at(example, inner_head)[row * lse_slope.row];
  }
  const size_t at = static_cast<size_t>(head) * work.padded_queries + place;
  lse2[at] = of_row;
  delta[at] = row < 0 || of_row == INFINITY ? 0.f : sum;
#endif
}

template <class Kernel>
int launch_slopes(Kernel kernel, const HopperAttention& given,
                  const GradientArguments& a, bool gathered, int query_box, int key_box,
                  int at_once, int threads, int bytes, Stream stream) {
  CUtensorMap q_map = {}, slope_map = {}, k_map = {}, v_map = {};
  if (!gathered) {
    const auto map = [&](CUtensorMap* to, const Operand& of, int64_t rows, int box) {
      return make_map(to, given.type, of, rows, given.heads, given.examples, box);
    };
    int error = map(&q_map, a.q, given.queries, query_box);
    if (error == 0) error = map(&slope_map, a.slope, given.queries, query_box);
    if (error == 0) error = map(&k_map, a.k, given.keys, key_box);
    if (error == 0) error = map(&v_map, a.v, given.keys, key_box);
    if (error != 0) return error;
  }
  return launch(kernel, a.work.items, at_once, threads, bytes, stream, q_map, slope_map,
                k_map, v_map, a);
}

template <class Number, int kWidth, int kGroups>
int merge(const float* parts, const Work& work, const Numbers& rows, int32_t count,
          const Operand& to, float factor, Stream stream) {
  if (work.lists.cut_count == 0) return cudaSuccess;
  merge_slopes<Number, kWidth, kGroups>
      <<<dim3(work.lists.cut_count, work.all_heads), kGroups * 128, 0, stream>>>(
          parts, work, rows, count, to, factor);
  return cudaGetLastError();
}

template <class Number, int kWidth, int kGroups, int kQueries, int kStages, int kSlots,
          int kAtOnce, Mode kMode>
int launch_keys(const HopperAttention& given, const GradientArguments& a,
                Stream stream) {
  int error = launch_slopes(
      slope_keys<Number, kWidth, kGroups, kQueries, kStages, kSlots, kAtOnce, kMode>,
      given, a, kMode == Mode::kGathered, kQueries, 64, kAtOnce, kThreads<kGroups>,
      KeyPlan<kWidth, kGroups, kQueries, kStages, kSlots, kMode>::kBytes, stream);
  const Numbers rows = a.keys_by_row ? a.work.key_rows : Numbers{};
  if (error == 0)
    error = merge<Number, kWidth, kGroups>(a.part_k, a.work, rows, a.work.keys,
                                           a.k_slope, a.scale, stream);
  if (error == 0)
    error = merge<Number, kWidth, kGroups>(a.part_v, a.work, rows, a.work.keys,
                                           a.v_slope, 1.f, stream);
  return error;
}

template <class Number, int kWidth, int kGroups, int kKeys, int kStages, int kSlots,
          int kAtOnce, bool kInTurn, Mode kMode>
int launch_queries(const HopperAttention& given, const GradientArguments& a,
                   Stream stream) {
  const int error = launch_slopes(
      slope_queries<Number, kWidth, kGroups, kKeys, kStages, kSlots, kAtOnce, kInTurn,
                    kMode>,
      given, a, kMode == Mode::kGathered, 64, kKeys, kAtOnce, kThreads<kGroups>,
      QueryPlan<kWidth, kGroups, kKeys, kStages, kSlots, kMode>::kBytes, stream);
  if (error != 0) return error;
  return merge<Number, kWidth, kGroups>(a.part_q, a.work, a.work.query_rows,
                                        a.work.queries, a.q_slope, a.scale, stream);
}

// Shapes as hopper_shape() has them.
template <class Number>
int slope_keys_of(const HopperAttention& given, const GradientArguments& a,
                  Stream stream) {
  const bool wide = is_wide(given), has_ends = given.places.from != nullptr;
#define LONGSPAN_LAUNCH(...)                                                       \
  (has_ends ? launch_keys<Number, __VA_ARGS__, Mode::kIntervals>(given, a, stream) \
            : launch_keys<Number, __VA_ARGS__, Mode::kRows>(given, a, stream))
  switch (a.work.lists.kernel) {
    case HopperKernel::kLong:
      return wide ? LONGSPAN_LAUNCH(128, 2, 64, 3, 1, 1)
                  : LONGSPAN_LAUNCH(64, 2, 128, 2, 2, 1);
    case HopperKernel::kSingle:
      return wide ? cudaErrorInvalidValue : LONGSPAN_LAUNCH(64, 1, 64, 3, 1, 2);
    case HopperKernel::kGathered:
      return wide ? launch_keys<Number, 128, 2, 64, 3, 1, 1, Mode::kGathered>(given, a,
                                                                              stream)
                  : launch_keys<Number, 64, 2, 64, 4, 1, 1, Mode::kGathered>(given, a,
                                                                             stream);
    default: return cudaErrorInvalidValue;
  }
#undef LONGSPAN_LAUNCH
}

template <class Number>
int slope_queries_of(const HopperAttention& given, const GradientArguments& a,
                     Stream stream) {
  const bool wide = is_wide(given), has_ends = given.places.from != nullptr;
#define LONGSPAN_LAUNCH(...)                                                          \
  (has_ends ? launch_queries<Number, __VA_ARGS__, Mode::kIntervals>(given, a, stream) \
            : launch_queries<Number, __VA_ARGS__, Mode::kRows>(given, a, stream))
  switch (a.work.lists.kernel) {
    case HopperKernel::kLong:
      return wide ? LONGSPAN_LAUNCH(128, 2, 128, 2, 1, 1, true)
                  : LONGSPAN_LAUNCH(64, 3, 64, 4, 2, 1, true);
    case HopperKernel::kTriple:
      return wide ? cudaErrorInvalidValue : LONGSPAN_LAUNCH(64, 3, 64, 4, 2, 1, false);
    case HopperKernel::kPair:
      return wide ? LONGSPAN_LAUNCH(128, 2, 64, 3, 1, 1, false) : cudaErrorInvalidValue;
    case HopperKernel::kSingle:
      return wide ? LONGSPAN_LAUNCH(128, 1, 64, 2, 1, 2, false)
                  : LONGSPAN_LAUNCH(64, 1, 64, 3, 1, 3, false);
    case HopperKernel::kGathered:
      return wide ? launch_queries<Number, 128, 2, 64, 3, 1, 1, false, Mode::kGathered>(
                        given, a, stream)
                  : launch_queries<Number, 64, 2, 64, 4, 1, 1, false, Mode::kGathered>(
                        given, a, stream);
  }
#undef LONGSPAN_LAUNCH
  return cudaErrorInvalidValue;
}

template <class Number>
int gradient_of(const HopperGradient& task, GradientArguments& a, Stream stream) {
  const HopperAttention& given = task.given;
  const int64_t bytes_of_row = (given.width + given.value_width) * 2;
  const Operand out = operand(task.out, given.value_width);
  a.work = work_of(given, task.of_keys, task.counter, given.queries * bytes_of_row);
  const bool wide = is_wide(given);
  const dim3 blocks(a.work.padded_queries / (256 / (wide ? 16 : 8)), a.work.all_heads);
  if (wide)
    find_deltas<Number, 128><<<blocks, 256, 0, stream>>>(out, a.slope, floats(task.lse),
                                                         floats(task.lse_slope), a.work,
                                                         task.lse2, task.delta);
  else
    find_deltas<Number, 64><<<blocks, 256, 0, stream>>>(out, a.slope, floats(task.lse),
                                                        floats(task.lse_slope), a.work,
                                                        task.lse2, task.delta);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  if (const int error = slope_keys_of<Number>(given, a, stream); error != 0)
    return error;
  a.work = work_of(given, task.of_queries, task.counter + 1,
                   given.keys * bytes_of_row / given.k.group);
  return slope_queries_of<Number>(given, a, stream);
}

}  // namespace
}  // namespace hopper

int hopper_gradient(const HopperGradient& task, Stream stream) {
  using namespace hopper;
  const HopperAttention& given = task.given;
  if (!is_complete(given, task.of_keys) || !is_complete(given, task.of_queries) ||
      (is_gathered(given) && !hopper_gathers(task.out_slope.row)))
    return cudaErrorInvalidValue;
  GradientArguments a = {};
  a.q = operand(given.q, given.width);
  a.k = operand(given.k, given.width);
  a.v = operand(given.v, given.value_width);
  a.slope = operand(task.out_slope, given.value_width);
  a.q_slope = operand(task.q, given.width);
  a.k_slope = operand(task.k, given.width);
  a.v_slope = operand(task.v, given.value_width);
  a.lse2 = task.lse2;
  a.delta = task.delta;
  a.part_q = task.part_q;
  a.part_k = task.part_k;
  a.part_v = task.part_v;
  a.scale2 = static_cast<float>(given.scale * 1.4426950408889634);
  a.scale = static_cast<float>(given.scale);
  a.keys_by_row = task.keys_by_row;
  return given.type == Type::kHalf ? gradient_of<__half>(task, a, stream)
                                   : gradient_of<__nv_bfloat16>(task, a, stream);
}

}  // namespace longspan::cuda
