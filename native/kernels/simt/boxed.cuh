// As direct.cuh, for Hopper, with both operands brought by the copy engine: one thread asks for the boxes of a stage,
// and every warp multiplies. A block has 32 of x, and all of k where x is long, so that no sums wait for other blocks.
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
    static constexpr int BX = Own::BX, BS = Own::BS, BK = Own::BK;
    static constexpr int kSteps = BK / Own::kStep;
    static constexpr int kLargeFloats = BX * BK, kSmallFloats = BS * BK;
    static constexpr int kStageFloats = kLargeFloats + kSmallFloats;
    static constexpr int kBarrierFloats = (4 * Ring_ + 255) / 256 * 256; // two to each slot; a swizzle begins there
    static_assert(BX == 32 && (BS == 8 || BS == 16 || BS == 32) && BK <= 256, "rows of 128 bytes, or of 32, 64 or 128");
    static_assert(Own::kLanesS == 1 && Own::kGroups % 8 == 0 && Own::TS == std::min(BS, 16), "whole quads for a warp");
    static_assert(kLargeFloats % 256 == 0 && kSmallFloats % 256 == 0, "where a swizzle begins");

    // Where the engine leaves what is contiguous along x or s: rows of one k, whose quads it exchanges so that lanes
    // with k four apart meet in no bank. Beside a large operand that lies along k, eight neighbouring lanes have eight
    // such k: rows of s are those of every fourth k then, and behind them those of the next ones.
    template <int Side>
    static constexpr __device__ int at(int row, int i, bool exchanged = true) {
        return row * Side + (i / 4 ^ (exchanged ? row / (32 / Side) % (Side / 4) : 0)) * 4 + i % 4;
    }
    template <bool ByQuads>
    static constexpr __device__ int small_at(int k, int s) {
        return ByQuads ? at<BS>(k % 4 * (BK / 4) + k / 4, s, kExchangedByQuads) : at<BS>(k, s);
    }
    // A lane begins with a quad of s of its own, so that half of what it has is what another lane wants. By quads of k
    // that alone keeps lanes apart, but for rows of 128 bytes.
    static constexpr int kQuadsS = Own::TS / 4;
    static constexpr bool kExchangedByQuads = BS == 32;

    static constexpr int early_depth(int) { return 2 * BK; }
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
    int depth;                                                    // of the block
    static constexpr bool kByQuads = ContiguousS && !ContiguousX; // the small operand's k

    // By one thread, which says how many bytes come.
    __device__ __forceinline__ void ask(int stage, float *slot, uint64_t *come) const {
        const int batch = static_cast<int>(place.batch), k = static_cast<int>(place.k_begin) + stage * Tile::BK;
        const int x0 = static_cast<int>(place.x0), s0 = static_cast<int>(place.s0), row = kByQuads ? k / 4 : k;
        const int large = boxes.large.first + batch * boxes.large.step;
        const int small = boxes.small.first + batch * boxes.small.step;
        ptx::expect(come, 4 * Tile::kStageFloats);
        ptx::copy_box_once(slot, &boxes.large.map, ContiguousX ? x0 : k, ContiguousX ? k : x0, 0, large, come);
        ptx::copy_box(slot + Tile::kLargeFloats, &boxes.small.map, ContiguousS ? s0 : k, ContiguousS ? row : s0, 0,
                      small, come);
    }

    // By all threads, to the same places.
    __device__ __forceinline__ void copy(int stage, float *slot) const {
        constexpr int BX = Tile::BX, BK = Tile::BK;
        const int thread = static_cast<int>(threadIdx.x);
        const Sides sides(problem, cut.x_is_rows, place.batch, depth);
        const View x = sides.x, s = sides.s;
        const int64_t k0 = place.k_begin + stage * BK, ld_x = ContiguousX ? x.step_k : x.step_x,
                      ld_s = ContiguousS ? s.step_k : s.step_x;
        const float *const source_x = x.at(place.x0, k0), *const source_s = s.at(place.s0, k0);
        const int k = min(BK, depth - stage * BK);
        const auto wide = [](const float *source, int64_t ld) {
            return reinterpret_cast<uintptr_t>(source) % 16 == 0 && ld % 4 == 0;
        };
        constexpr int kLength = ContiguousX ? BX : BK, kColumns = ContiguousX ? BK : BX;
        const int length = ContiguousX ? place.x_left : k, columns = ContiguousX ? k : place.x_left;
        const auto place_x = [&](int i, int j) {
            return slot + (ContiguousX ? Tile::template at<BX>(j, i) : j * BK + i);
        };
        if (wide(source_x, ld_x))
            copy_columns<4, kLength, kColumns, Tile::kThreads>(source_x, ld_x, length, columns, false, thread, place_x);
        else
            copy_columns<1, kLength, kColumns, Tile::kThreads>(source_x, ld_x, length, columns, false, thread, place_x);
        copy_small<Tile::BS, BK, Tile::kThreads, ContiguousS>(
            source_s, ld_s, !ContiguousS, wide(source_s, ld_s), place.s_left, k, false, thread, [&](int l, int i) {
                return slot + Tile::kLargeFloats + (ContiguousS ? Tile::template small_at<kByQuads>(l, i) : i * BK + l);
            });
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
    constexpr int BX = Tile::BX, BS = Tile::BS, BK = Tile::BK, kAhead = Tile::kRing - 1; // stages

    // place
    const SlicePlace<Tile> place(cut);
    const int thread = static_cast<int>(threadIdx.x);
    ask_early<Tile, ContiguousX>(problem, cut, place);
    const Slots<Tile> slots(boxes.mapped ? 1 : Tile::kThreads, Tile::kThreads);
    __syncthreads();
    ptx::wait_for_predecessors();
    const Epilogue scalars(problem);
    if (!place.exists || scalars.idle())
        return;

    // load: all stages but one, then always one before the oldest is multiplied
    const int depth = static_cast<int>(max(int64_t{0}, min(scalars.depth() - place.k_begin, cut.range)));
    const int stages = (depth + BK - 1) / BK;
    const BoxStream<Tile, ContiguousX, ContiguousS> stream{problem, cut, boxes, place, depth};
    for (int stage = 0; stage < min(kAhead, stages); ++stage)
        slots.fill(stream, boxes.mapped, stage, 0);

    // Places in a slot: of x, for each k of four where it is contiguous, and of quads of s.
    constexpr bool kByQuads = BoxStream<Tile, ContiguousX, ContiguousS>::kByQuads;
    constexpr int kRowsX = ContiguousX ? 4 : 1, kQuadsS = Tile::kQuadsS;
    const Place mine(thread);
    const int first_quad = thread % 32 / Layout::kFlip % Layout::kLanesK / (Layout::kLanesK / kQuadsS); // of s
    int large[kRowsX], small[kQuadsS];
#pragma unroll
    for (int k = 0; k < kRowsX; ++k)
        large[k] = ContiguousX ? Tile::template at<BX>(mine.k + k, mine.x) : mine.x * BK + mine.k;
    // The other half of a row lies behind the first one or before it.
    const int half = mine.k % 8 < 4 ? BX / 2 : -BX / 2;
#pragma unroll
    for (int quad = 0; quad < kQuadsS; ++quad) {
        const int s = mine.s + 4 * (quad ^ first_quad);
        small[quad] =
            Tile::kLargeFloats + (ContiguousS ? Tile::template small_at<kByQuads>(mine.k, s) : s * BK + mine.k);
    }
    float acc[Tile::TS][Tile::TX] = {};

    // multiply
    slots.template fill_and_read<kAhead>(stream, boxes.mapped, stages, [&](const float *slot_floats, int) {
#pragma unroll 1
        for (int step = 0; step < Tile::kSteps; ++step) {
            float values[4 * Tile::TX];
#pragma unroll
            for (int i = 0; i < Tile::TX; ++i) {
                const int at = ContiguousX ? large[i / 2] + step * Tile::kStep * BX + (i % 2 ? half : 0)
                                           : large[0] + Place::across(i) * BK + step * Tile::kStep;
                const float4 quad = *reinterpret_cast<const float4 *>(slot_floats + at);
                values[4 * i] = quad.x, values[4 * i + 1] = quad.y;
                values[4 * i + 2] = quad.z, values[4 * i + 3] = quad.w;
            }
            constexpr int kRowStep = kByQuads ? Tile::kStep / 4 : Tile::kStep, kRow = kByQuads ? BK / 4 : 1;
            const float *const from = slot_floats + step * (ContiguousS ? kRowStep * BS : Tile::kStep);
            multiply_step<Tile, ContiguousX, ContiguousS>(
                values,
                [&](int k, int s) {
                    const int place_s = ContiguousS ? small[s / 4 ^ (kByQuads ? 0 : k / (32 / BS))] + k * kRow * BS
                                                    : small[s / 4] + s % 4 * BK + k;
                    return *reinterpret_cast<const float4 *>(from + place_s);
                },
                acc);
        }
    });

    // add up the groups, and store
    end_walk<Tile, Layout::kWarpsK, Tile::kThreads>(problem, cut, place, slots.floats, [&] {
        leave_sums<Tile, ContiguousX, ContiguousS, kQuadsS>(mine, thread % 32, slots.floats, acc, 4 * first_quad);
    });
#endif
}

template <class Tile>
struct BoxedKernels {
    template <bool ContiguousX, bool ContiguousS>
    static Status start(const Grid &grid, const Device &device, const Problem &problem, const Slices &cut) {
        const Operand &x = cut.x_is_rows ? problem.a : problem.b, &s = cut.x_is_rows ? problem.b : problem.a;
        const auto map = [&](const Operand &operand, bool contiguous, int64_t extent, int side, bool by_quads,
                             MatrixMap *mapped) {
            const CUtensorMapSwizzle swizzle = by_quads && !Tile::kExchangedByQuads ? CU_TENSOR_MAP_SWIZZLE_NONE
                                               : side == 8                          ? CU_TENSOR_MAP_SWIZZLE_32B
                                               : side == 16                         ? CU_TENSOR_MAP_SWIZZLE_64B
                                                                                    : CU_TENSOR_MAP_SWIZZLE_128B;
            return contiguous ? map_matrices(operand, extent, problem.k, problem.batch, side, Tile::BK, by_quads,
                                             swizzle, mapped)
                              : map_matrices(operand, problem.k, extent, problem.batch, Tile::BK, side, false,
                                             CU_TENSOR_MAP_SWIZZLE_NONE, mapped);
        };
        constexpr bool kByQuads = ContiguousS && !ContiguousX;
        Boxes boxes = {};
        // The engine counts in 32 bits, and whole quads.
        boxes.mapped = problem.k > 0 && std::max({problem.k, cut.extent_x, problem.batch}) < INT32_MAX &&
                       (!kByQuads || problem.k % 4 == 0) && can_map(x, problem.batch) && can_map(s, problem.batch);
        if (boxes.mapped) {
            PYBLAS_TRY(map(x, ContiguousX, cut.extent_x, Tile::BX, false, &boxes.large));
            PYBLAS_TRY(map(s, ContiguousS, cut.extent_s, Tile::BS, kByQuads, &boxes.small));
        }
        return start_slices<boxed<Tile, ContiguousX, ContiguousS>>(grid, device, problem, cut, boxes);
    }
};

} // namespace pyblas
