// As direct.cuh, for Hopper, with both operands brought by the copy engine: one thread asks for the boxes of a stage,
// and every warp multiplies. A block has all of k of few x, so that no sums wait for other blocks.
//
//     large operand           small one        a slot of the ring
//     +----+----+----+--      +------+         +-----------------+----+
//   k | b0 | b1 | b2 | BK     |  BS  | BK      |     BX x BK     | .. |   filled again when all warps have left it
//     +----+----+----+--      +------+         +-----------------+----+
#pragma once

#include "../device/tensor_maps.cuh"
#include "direct.cuh"

namespace pyblas {

template <class Own, int Resident_, int Ring_>
struct BoxedTile : Own {
    static constexpr int kThreads = Own::kMultipliers, kResident = Resident_, kRing = Ring_, kCopiers = 32;
    static constexpr int kSteps = Own::BK / Own::kStep;
    static constexpr int kLargeFloats = Own::BX * Own::BK, kSmallFloats = Own::BS * Own::BK;
    static constexpr int kStageFloats = kLargeFloats + kSmallFloats;
    static constexpr int kBarrierFloats = (4 * Ring_ + 127) / 128 * 128; // two to each slot; a swizzle begins there
    static_assert(Own::BS == 16 && Own::kLanesS == 1 && Own::kWarpsS == 1, "rows of 64 bytes");
    static_assert(Own::BX <= 256 && Own::BK <= 256 && kLargeFloats % 128 == 0 && kSmallFloats % 128 == 0, "boxes");

    // Where the small operand is contiguous along s, the engine exchanges the quads of its rows of k, since lanes have
    // k four apart.
    static constexpr __device__ int small_at(bool contiguous_s, int k, int s) {
        return contiguous_s ? k * Own::BS + (s / 4 ^ k / 2 % 4) * 4 + s % 4 : s * Own::BK + k;
    }

    static constexpr int early_depth(int) { return 2 * Own::BK; }
    static constexpr int shared_bytes(int, int64_t) {
        return 4 * (kBarrierFloats + std::max(Own::kSumFloats, kStageFloats * Ring_));
    }
};

struct Boxes {
    MatrixMap large, small;
    bool mapped; // otherwise all threads copy both operands
};

#if PYBLAS_HAS_WGMMA

// Stages of both operands on their way to the ring.
template <class Tile, bool ContiguousX, bool ContiguousS>
struct BoxStream {
    const Problem &problem;
    const Slices &cut;
    const Boxes &boxes;
    const SlicePlace<Tile> &place;
    int depth; // of the block

    // By one thread.
    __device__ __forceinline__ void ask(int stage, float *slot, uint64_t *come) const {
        const int batch = static_cast<int>(place.batch), k = static_cast<int>(place.k_begin) + stage * Tile::BK;
        const auto box = [&](const MatrixMap &map, bool contiguous, int64_t x0, float *to) {
            const int x = static_cast<int>(x0);
            ptx::copy_box(to, &map.map, contiguous ? x : k, contiguous ? k : x, 0, map.first + batch * map.step, come);
        };
        ptx::expect(come, 4 * Tile::kStageFloats);
        box(boxes.large, ContiguousX, place.x0, slot);
        box(boxes.small, ContiguousS, place.s0, slot + Tile::kLargeFloats);
        ptx::arrive(come);
    }

    // By all threads, to the same places.
    __device__ __forceinline__ void copy(int stage, float *slot, uint64_t *come) const {
        constexpr int BX = Tile::BX, BK = Tile::BK;
        const int thread = static_cast<int>(threadIdx.x);
        const View a = view_a(problem, place.batch), b = view_b(problem, place.batch);
        const View x = cut.x_is_rows ? a : b, s = cut.x_is_rows ? b : a;
        const int64_t k0 = place.k_begin + stage * BK, ld_x = ContiguousX ? x.step_k : x.step_x,
                      ld_s = ContiguousS ? s.step_k : s.step_x;
        const float *const source_x = x.at(place.x0, k0), *const source_s = s.at(place.s0, k0);
        const int k = min(BK, depth - stage * BK);
        const auto wide = [](const float *source, int64_t ld) {
            return reinterpret_cast<uintptr_t>(source) % 16 == 0 && ld % 4 == 0;
        };
        constexpr int kLength = ContiguousX ? BX : BK, kColumns = ContiguousX ? BK : BX;
        const int length = ContiguousX ? place.x_left : k, columns = ContiguousX ? k : place.x_left;
        const auto place_x = [&](int i, int j) { return slot + j * kLength + i; };
        if (wide(source_x, ld_x))
            copy_columns<4, kLength, kColumns, Tile::kThreads>(source_x, ld_x, length, columns, false, thread, place_x);
        else
            copy_columns<1, kLength, kColumns, Tile::kThreads>(source_x, ld_x, length, columns, false, thread, place_x);
        copy_small<Tile::BS, BK, Tile::kThreads, ContiguousS>(
            source_s, ld_s, !ContiguousS, wide(source_s, ld_s), place.s_left, k, false, thread,
            [&](int l, int i) { return slot + Tile::kLargeFloats + Tile::small_at(ContiguousS, l, i); });
        ptx::arrive_after_copies(come);
    }
};

#endif

template <class Tile, bool ContiguousX, bool ContiguousS>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident)
    boxed(__grid_constant__ const Problem problem, __grid_constant__ const Slices cut,
          __grid_constant__ const Boxes boxes) {
#if PYBLAS_HAS_WGMMA
    using Layout = typename Tile::template Layout<ContiguousX>;
    using Place = OwnPlace<Tile, ContiguousX>;
    constexpr int BX = Tile::BX, BS = Tile::BS, BK = Tile::BK, kRing = Tile::kRing, kWarps = Tile::kThreads / 32;
    constexpr int kAhead = kRing - 1; // stages

    // place
    const SlicePlace<Tile> place(cut);
    const int thread = static_cast<int>(threadIdx.x);
    ask_early<Tile, ContiguousX>(problem, cut, place);
    uint64_t *const come = reinterpret_cast<uint64_t *>(dynamic_shared());
    uint64_t *const left = come + kRing;
    float *const smem = reinterpret_cast<float *>(dynamic_shared()) + Tile::kBarrierFloats;
    if (thread == 0) {
        for (int slot = 0; slot < kRing; ++slot) {
            ptx::init_barrier(come + slot, boxes.mapped ? 1 : Tile::kThreads);
            ptx::init_barrier(left + slot, Tile::kThreads);
        }
        ptx::publish_barriers();
    }
    __syncthreads();
    ptx::wait_for_predecessors();
    const Epilogue scalars(problem);
    if (!place.exists || scalars.idle())
        return;

    // load: all stages but one, then always one before the oldest is multiplied, by another warp each time
    const int depth = static_cast<int>(max(int64_t{0}, min(scalars.depth() - place.k_begin, cut.range)));
    const int stages = (depth + BK - 1) / BK;
    const BoxStream<Tile, ContiguousX, ContiguousS> stream{problem, cut, boxes, place, depth};
    const auto fill = [&](int stage, int warp) {
        const int slot = stage % kRing;
        float *const target = smem + slot * Tile::kStageFloats;
        if (boxes.mapped ? thread != 32 * warp : false)
            return;
        if (stage >= kRing)
            ptx::wait(left + slot, (stage / kRing - 1) % 2);
        if (boxes.mapped)
            stream.ask(stage, target, come + slot);
        else
            stream.copy(stage, target, come + slot);
    };
    for (int stage = 0; stage < min(kAhead, stages); ++stage)
        fill(stage, 0);

    const Place mine(thread);
    const int first_large = ContiguousX ? mine.k * BX + mine.x : mine.x * BK + mine.k;
    // Of the small operand: the halves of a row of s are exchanged for every other lane along k.
    const int exchanged = mine.k / 4 % 2 * (BS / 2);
    const int halves[2] = {Tile::kLargeFloats + mine.k * (ContiguousS ? BS : 1) + (ContiguousS ? exchanged : 0),
                           Tile::kLargeFloats + mine.k * (ContiguousS ? BS : 1) +
                               (ContiguousS ? BS / 2 - exchanged : 0)};
    float acc[Tile::TS][Tile::TX] = {};
    int slot = 0;
    uint32_t parity = 0;
#pragma unroll 1
    for (int stage = 0; stage < stages; ++stage) {
        if (stage + kAhead < stages)
            fill(stage + kAhead, stage % kWarps);
        else
            ptx::launch_dependents(); // all is asked for
        __syncwarp();

        // multiply
        ptx::wait(come + slot, parity);
        const float *const values_of = smem + slot * Tile::kStageFloats;
#pragma unroll 1
        for (int step = 0; step < Tile::kSteps; ++step) {
            float values[4 * Tile::TX];
#pragma unroll
            for (int i = 0; i < Tile::TX; ++i) {
                const int at = ContiguousX ? (step * Tile::kStep + Place::row(i)) * BX + Place::across(i)
                                           : Place::across(i) * BK + step * Tile::kStep;
                const float4 quad = *reinterpret_cast<const float4 *>(values_of + first_large + at);
                values[4 * i] = quad.x, values[4 * i + 1] = quad.y;
                values[4 * i + 2] = quad.z, values[4 * i + 3] = quad.w;
            }
            const float *const small = values_of + step * Tile::kStep * (ContiguousS ? BS : 1);
            multiply_step<Tile, ContiguousX, ContiguousS>(
                values,
                [&](int k, int s) {
                    if constexpr (!ContiguousS)
                        return *reinterpret_cast<const float4 *>(small + halves[0] + s * BK + k);
                    const int quad = s / 4 ^ k / 2, half = quad / (BS / 8);
                    return *reinterpret_cast<const float4 *>(small + halves[half] + k * BS + quad % (BS / 8) * 4);
                },
                acc);
        }

        // advance
        ptx::arrive(left + slot);
        if (++slot == kRing)
            slot = 0, parity ^= 1;
    }

    // add up the groups, and store
    __syncthreads();
    leave_sums<Tile, ContiguousX, ContiguousS>(mine, thread % 32, smem, acc);
    __syncthreads();
    store_sums<Tile, Layout::kWarpsK, Tile::kThreads>(problem, cut, place, smem);
#endif
}

template <class Tile>
struct BoxedKernels {
    template <bool ContiguousX, bool ContiguousS>
    static Status start(const Grid &grid, const Device &device, const Problem &problem, const Slices &cut) {
        const Operand &x = cut.x_is_rows ? problem.a : problem.b, &s = cut.x_is_rows ? problem.b : problem.a;
        const auto map = [&](const Operand &operand, bool contiguous, int64_t extent, int side,
                             CUtensorMapSwizzle swizzle, MatrixMap *mapped) {
            return contiguous
                       ? map_matrices(operand, extent, problem.k, problem.batch, side, Tile::BK, false, swizzle, mapped)
                       : map_matrices(operand, problem.k, extent, problem.batch, Tile::BK, side, false,
                                      CU_TENSOR_MAP_SWIZZLE_NONE, mapped);
        };
        Boxes boxes = {};
        // The engine counts in 32 bits.
        boxes.mapped = problem.k > 0 && std::max({problem.k, cut.extent_x, problem.batch}) < INT32_MAX &&
                       can_map(x, problem.batch) && can_map(s, problem.batch);
        if (boxes.mapped) {
            PYBLAS_TRY(map(x, ContiguousX, cut.extent_x, Tile::BX, CU_TENSOR_MAP_SWIZZLE_NONE, &boxes.large));
            PYBLAS_TRY(map(s, ContiguousS, cut.extent_s, Tile::BS, CU_TENSOR_MAP_SWIZZLE_64B, &boxes.small));
        }
        return start_slices<boxed<Tile, ContiguousX, ContiguousS>>(grid, device, problem, cut, boxes);
    }
};

} // namespace pyblas
