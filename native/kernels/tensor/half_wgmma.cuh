// Products of 16-bit matrices by Hopper's warpgroup instructions; half_wgmma.cu says when they are taken. The matrices
// are multiplied as they lie: the instruction takes tiles that are contiguous along k and tiles that are contiguous
// along rows or columns of C.
//
//     producers            stages, each 64 of k of both tiles        2 warpgroups
//     boxes by the copy engine, or, where an address or a  --->  | A, B | A, B | ...  --->  64 x BM sums in the tensor
//     leading dimension does not suit it, loads and stores                                  cores, for each 64 columns
//
// After a part of k the sums leave the tensor cores and are added in FP32, in registers. Two blocks of a cluster have
// neighbouring tile rows, and each brings half of the columns' tile to both. As in wgmma.cuh, the instruction's rows
// are columns of C.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <cuda.h>

#include "../device/epilogue.cuh"
#include "../device/half.cuh"
#include "../device/launch.cuh"
#include "../device/ptx.cuh"
#include "../device/tensor_maps.cuh"
#include "fragments.hpp"
#include "kernel.hpp"

namespace pyblas {

constexpr int kLineBytes = kSwizzledRowBytes, kLine = kLineBytes / 2; // 64 numbers that lie together
constexpr int kStageDepth = 64;                                       // of k

// BM x 128 outputs of C for a block; each of two warpgroups has half of the columns. The sums of all of k stay in the
// tensor cores, and the copy engine brings all tiles, or there are totals beside them and threads that load.
template <int BM_, int Stages_, bool AllOfK_>
struct HalfTile {
    static constexpr int BM = BM_, BN = 128, kStages = Stages_, kGroups = 2;
    static constexpr bool kAllOfK = AllOfK_;
    static constexpr int kGroupN = BN / kGroups, kSums = BM / 2; // of a thread
    static constexpr int kThreads = (kGroups + 1) * 128;
    static constexpr int kBytesA = BM * kLineBytes, kStageBytes = (BM + BN) * kLineBytes;
    static constexpr int kSharedBytes = kSwizzleAtomBytes + kStages * (kStageBytes + 16);
    static constexpr int kProducerRegisters = kAllOfK ? 40 : 136, kConsumerRegisters = kAllOfK ? 232 : 184;
    static constexpr int kTogether = 16;    // lines that a warp loads at once
    static constexpr int kBand = 2048 / BM; // tile rows

    static_assert(BM % 64 == 0 && kGroupN == 64, "lines and an instruction's rows tile the block");
    static_assert(kSharedBytes <= 227 * 1024, "what a block can have");
};

// What the host has found out about the operands.
struct HalfPlan {
    bool by_engine_a, by_engine_b; // the copy engine takes it
    int cluster;                   // blocks; 2 only if the copy engine takes both
    int rows, columns, tiles;      // tile rows in whole clusters, tile columns, all of all products
    int part;                      // stages whose sums stay in the tensor cores
};

struct HalfPlace {
    int row, column, batch;
};

// Bands of tile rows, column by column, so that tiles at work share rows of A and columns of B in L2.
__device__ __forceinline__ HalfPlace place_of(const HalfPlan &plan, int tile_rows, int number) {
    const int band = tile_rows / plan.cluster;
    const int each = plan.rows * plan.columns, batch = number / each, inside = number - batch * each;
    const int first = inside / (band * plan.columns) * band, height = min(band, plan.rows - first);
    const int step = inside - first * plan.columns, column = step / height;
    return {first + step - column * height, column, batch};
}

#if PYBLAS_HAS_WGMMA

// The tile of an operand at (x, k): lines along k, one for each x, or lines along x, one for each k of every 64 of x.
template <bool Across>
struct HalfLines {
    const uint16_t *matrix;
    int64_t ld;
    int x_extent, depth;

    // By the warps of one warpgroup. Zeros where there is nothing.
    template <int X, int Together>
    __device__ __forceinline__ void load(char *tile, int x, int k, int thread) const {
        const int lane = thread % 32;
        const int lines = Across ? depth - k : x_extent - x; // that exist
        const bool pairs = (reinterpret_cast<uintptr_t>(matrix) % 4 | static_cast<uintptr_t>(ld % 2)) == 0;
#pragma unroll 1
        for (int first = thread / 32 * Together; first < X; first += 4 * Together) {
            const int block = Across ? first / kLine * kLine : 0, inside = first - block; // block: 64 of x
            const int left = (Across ? x_extent - x - block : depth - k) - 2 * lane;
            const uint16_t *source =
                matrix + (Across ? (k + inside) * ld + x + block : (x + first) * ld + k) + 2 * lane;
            // All loads are on their way before the first of them is used.
            uint32_t words[Together], second[Together];
#pragma unroll
            for (int i = 0; i < Together; ++i) {
                const uint16_t *const own = source + i * ld;
                const bool exists = inside + i < lines;
                words[i] = second[i] = 0;
                if (pairs && exists && left > 1)
                    words[i] = *reinterpret_cast<const uint32_t *>(own);
                if (!(pairs && left > 1) && exists && left > 0)
                    words[i] = own[0];
                if (!pairs && exists && left > 1)
                    second[i] = own[1];
            }
#pragma unroll
            for (int i = 0; i < Together; ++i)
                *reinterpret_cast<uint32_t *>(tile + swizzled((first + i) * kLineBytes + lane * 4)) =
                    words[i] | second[i] << 16;
        }
    }
};

// Boxes of a tile's X at (x, k), or of a part of it, to all blocks of the mask if there is one.
template <int X, bool Across>
__device__ __forceinline__ void copy_lines(char *tile, const CUtensorMap *map, int x, int k, int batch,
                                           uint64_t *barrier, int mask) {
    constexpr int kBox = Across ? kLine : X;
#pragma unroll
    for (int box = 0; box < X; box += kBox) {
        const int x0 = Across ? x + box : k, x1 = Across ? k : x;
        if (mask)
            ptx::copy_box<true>(tile + box * kLineBytes, map, x0, x1, 0, batch, barrier, mask);
        else
            ptx::copy_box(tile + box * kLineBytes, map, x0, x1, 0, batch, barrier);
    }
}

constexpr int kStoredPairs = 8; // of a thread's sums, each two rows of a column, 8 rows apart

// They go to C; rows that are left count from the first on.
template <Dtype type>
__device__ __forceinline__ void store_pairs(const Epilogue &epilogue, void *c_of_any, int rows_left, bool paired,
                                            const float2 (&sums)[kStoredPairs]) {
    using Element = std::conditional_t<type == Dtype::f32, float, uint16_t>;
    using Pair = std::conditional_t<type == Dtype::f32, float2, uint32_t>;
    Element *const c = static_cast<Element *>(c_of_any);
    if (paired && rows_left > 8 * kStoredPairs - 7) {
        Pair old[kStoredPairs];
#pragma unroll
        for (int i = 0; i < kStoredPairs; ++i)
            old[i] = epilogue.load2(
                reinterpret_cast<const std::conditional_t<type == Dtype::f32, float, Pair> *>(c + i * 8));
#pragma unroll
        for (int i = 0; i < kStoredPairs; ++i)
            if constexpr (type == Dtype::f32)
                epilogue.store2(c + i * 8, sums[i], old[i]);
            else
                epilogue.store2(reinterpret_cast<Pair *>(c + i * 8), type, sums[i], old[i]);
    } else {
#pragma unroll
        for (int i = 0; i < kStoredPairs; ++i) {
            if (i * 8 < rows_left)
                epilogue.store(c, i * 8, type, sums[i].x);
            if (i * 8 + 1 < rows_left)
                epilogue.store(c, i * 8 + 1, type, sums[i].y);
        }
    }
}

#endif

template <class Tile, Dtype type, bool AcrossA, bool AcrossB>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    half_wgmma(__grid_constant__ const Problem problem, __grid_constant__ const HalfPlan plan,
               __grid_constant__ const MatrixMap map_a, __grid_constant__ const MatrixMap map_b) {
#if PYBLAS_HAS_WGMMA
    constexpr ptx::Number kNumber = type == Dtype::f16 ? ptx::Number::f16 : ptx::Number::bf16;

    // place
    const int thread = static_cast<int>(threadIdx.x) % 128, lane = thread % 32;
    const int group = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 128, 0);
    char *const memory = reinterpret_cast<char *>(dynamic_shared());
    const int skew = -static_cast<int>(ptx::shared_address(memory)) & (kSwizzleAtomBytes - 1);
    char *const stages = memory + skew;
    uint64_t *const full = reinterpret_cast<uint64_t *>(stages + Tile::kStages * Tile::kStageBytes);
    uint64_t *const empty = full + Tile::kStages;
    const bool by_engine = Tile::kAllOfK || (plan.by_engine_a && plan.by_engine_b);
    const int rank = plan.cluster > 1 ? ptx::block_of_cluster() : 0;
    if (threadIdx.x == 0) {
        ptx::prefetch_tensor_map(&map_a.map);
        ptx::prefetch_tensor_map(&map_b.map);
        for (int stage = 0; stage < Tile::kStages; ++stage) {
            ptx::init_barrier(full + stage, by_engine ? 1 : 128);
            ptx::init_barrier(empty + stage, plan.cluster * Tile::kGroups * 4);
        }
        ptx::publish_barriers();
    }
    __syncthreads();
    if (plan.cluster > 1) {
        ptx::arrive_at_cluster();
        ptx::wait_for_cluster();
    }
    ptx::launch_dependents();
    ptx::wait_for_predecessors();
    const Epilogue epilogue(problem);
    if (epilogue.idle())
        return;
    const int chunks = static_cast<int>((epilogue.depth() + kStageDepth - 1) / kStageDepth);
    const int first_tile = static_cast<int>(blockIdx.x) / plan.cluster;
    const int next_tile = static_cast<int>(gridDim.x) / plan.cluster;

    if (group == Tile::kGroups) {
        // load
        ptx::give_registers_back<Tile::kProducerRegisters>();
        int stage = 0;
        uint32_t parity = 1; // the first turn finds all stages empty
        if (!by_engine || thread == 0) {
            for (int number = first_tile; number < plan.tiles; number += next_tile) {
                const HalfPlace place = place_of(plan, Tile::kBand, number);
                const int row = (place.row * plan.cluster + rank) * Tile::BM, column = place.column * Tile::BN;
                const int batch_a = map_a.first + map_a.step * place.batch;
                const int batch_b = map_b.first + map_b.step * place.batch;
                const HalfLines<AcrossA> a = {problem.a.matrix<const uint16_t>(place.batch), problem.a.ld,
                                              static_cast<int>(problem.m), static_cast<int>(problem.k)};
                const HalfLines<AcrossB> b = {problem.b.matrix<const uint16_t>(place.batch), problem.b.ld,
                                              static_cast<int>(problem.n), static_cast<int>(problem.k)};
                for (int chunk = 0; chunk < chunks; ++chunk) {
                    const int k = chunk * kStageDepth;
                    char *const tile_a = stages + stage * Tile::kStageBytes, *const tile_b = tile_a + Tile::kBytesA;
                    uint64_t *const barrier = full + stage;
                    ptx::wait(empty + stage, parity);
                    if (by_engine) {
                        ptx::arrive_and_expect(barrier, Tile::kStageBytes);
                        copy_lines<Tile::BM, AcrossA>(tile_a, &map_a.map, row, k, batch_a, barrier, 0);
                        constexpr int kHalf = Tile::BN / 2; // of its columns' tile, which is the other block's too
                        if (plan.cluster > 1) {
                            copy_lines<kHalf, AcrossB>(tile_b + rank * kHalf * kLineBytes, &map_b.map,
                                                       column + rank * kHalf, k, batch_b, barrier, 3);
                        } else {
                            copy_lines<kHalf, AcrossB>(tile_b, &map_b.map, column, k, batch_b, barrier, 0);
                            copy_lines<kHalf, AcrossB>(tile_b + kHalf * kLineBytes, &map_b.map, column + kHalf, k,
                                                       batch_b, barrier, 0);
                        }
                    } else if constexpr (!Tile::kAllOfK) {
                        if (thread == 0) {
                            constexpr int kHalf = Tile::BN / 2;
                            ptx::expect(barrier, (plan.by_engine_a ? Tile::kBytesA : 0) +
                                                     (plan.by_engine_b ? Tile::kStageBytes - Tile::kBytesA : 0));
                            if (plan.by_engine_a)
                                copy_lines<Tile::BM, AcrossA>(tile_a, &map_a.map, row, k, batch_a, barrier, 0);
                            if (plan.by_engine_b) {
                                copy_lines<kHalf, AcrossB>(tile_b, &map_b.map, column, k, batch_b, barrier, 0);
                                copy_lines<kHalf, AcrossB>(tile_b + kHalf * kLineBytes, &map_b.map, column + kHalf, k,
                                                           batch_b, barrier, 0);
                            }
                        }
                        if (!plan.by_engine_a)
                            a.template load<Tile::BM, Tile::kTogether>(tile_a, row, k, thread);
                        if (!plan.by_engine_b)
                            b.template load<Tile::BN, Tile::kTogether>(tile_b, column, k, thread);
                        ptx::publish_stores();
                        ptx::arrive(barrier);
                    }
                    if (++stage == Tile::kStages)
                        stage = 0, parity ^= 1;
                }
            }
        }
    } else {
        ptx::take_registers<Tile::kConsumerRegisters>();
        const uint32_t address = ptx::shared_address(stages);
        const int own_column = group * Tile::kGroupN;
        const uint64_t origin_a = tile_descriptor(address);
        const uint64_t origin_b = tile_descriptor(address + Tile::kBytesA + own_column * kLineBytes);
        const auto release = [&](int of) {
            if (lane < plan.cluster)
                ptx::arrive_in_block(empty + of, plan.cluster > 1 ? lane : 0);
        };
        int stage = 0;
        uint32_t parity = 0;
        for (int number = first_tile; number < plan.tiles; number += next_tile) {
            float total[Tile::kAllOfK ? 1 : Tile::kSums] = {}, acc[Tile::kSums] = {};
            const float *const results = Tile::kAllOfK ? acc : total;
#pragma unroll 1
            for (int chunk = 0; chunk < chunks; chunk += plan.part) {
                const int count = Tile::kAllOfK ? chunks : min(plan.part, chunks - chunk);
                int before = 0;

                // multiply
                ptx::fence_accumulators(acc);
#pragma unroll 1
                for (int i = 0; i < count; ++i) {
                    ptx::wait(full + stage, parity);
                    const uint64_t at = descriptor_step(stage * Tile::kStageBytes);
#pragma unroll
                    for (int k = 0; k < kStageDepth; k += 16)
                        ptx::multiply<kNumber, AcrossB, AcrossA>(
                            acc, origin_b + at + descriptor_step(depth_step(AcrossB, k)),
                            origin_a + at + descriptor_step(depth_step(AcrossA, k)), i > 0 || k > 0);
                    ptx::commit_multiplies();
                    ptx::wait_multiplies<1>();
                    if (i > 0)
                        release(before);

                    // advance
                    before = stage;
                    if (++stage == Tile::kStages)
                        stage = 0, parity ^= 1;
                }
                ptx::wait_multiplies<0>(acc);
                release(before);
                if constexpr (!Tile::kAllOfK)
#pragma unroll
                    for (int i = 0; i < Tile::kSums; ++i)
                        total[i] += acc[i];
            }

            // store
            const HalfPlace place = place_of(plan, Tile::kBand, number);
            const int row = (place.row * plan.cluster + rank) * Tile::BM + fragment_column(thread, 0);
            const int column = place.column * Tile::BN + own_column + fragment_row(thread, 0);
            const int64_t item = bytes_of(problem.c.dtype);
            char *const c = static_cast<char *>(problem.c.data) +
                            (place.batch * problem.c.stride + row + column * problem.c.ld) * item;
            const bool paired = reinterpret_cast<uintptr_t>(c) % (2 * item) == 0 && problem.c.ld % 2 == 0;
            constexpr int kParts = Tile::BM / (8 * kStoredPairs); // of rows
            // Rolled up, since this is the larger part of the code: each turn takes its sums out of the registers.
#pragma unroll 1
            for (int turn = 0; turn < 2 * kParts; ++turn) {
                const int part = turn % kParts, half = turn / kParts;
                float2 sums[kStoredPairs];
#pragma unroll
                for (int candidate = 0; candidate < 2 * kParts; ++candidate)
                    if (candidate == turn) {
                        const float *const from =
                            results + candidate / kParts * 2 + candidate % kParts * 4 * kStoredPairs;
#pragma unroll
                        for (int i = 0; i < kStoredPairs; ++i)
                            sums[i] = {from[i * 4], from[i * 4 + 1]};
                    }
                const int across = half * 8, down = part * 8 * kStoredPairs;
                if (column + across >= problem.n)
                    continue;
                char *const target = c + (down + across * problem.c.ld) * item;
                const int rows_left = static_cast<int>(problem.m) - row - down;
                if (problem.c.dtype == Dtype::f32)
                    store_pairs<Dtype::f32>(epilogue, target, rows_left, paired, sums);
                else if (problem.c.dtype == Dtype::f16)
                    store_pairs<Dtype::f16>(epilogue, target, rows_left, paired, sums);
                else
                    store_pairs<Dtype::bf16>(epilogue, target, rows_left, paired, sums);
            }
        }
    }
    if (plan.cluster > 1) { // no block leaves while the other one may still copy to it or arrive at it
        ptx::arrive_at_cluster();
        ptx::wait_for_cluster();
    }
#endif
}

// Boxes of 64 numbers that lie together by so many lines.
inline Status map_lines(const Operand &operand, int64_t length, int64_t lines, int64_t batch, int box_lines,
                        MatrixMap *mapped) {
    return map_matrices(operand, length, lines, batch, kLine, box_lines, false, CU_TENSOR_MAP_SWIZZLE_128B, mapped,
                        CU_TENSOR_MAP_DATA_TYPE_UINT16);
}

using SquareHalves = HalfTile<128, 6, false>;
using TallHalves = HalfTile<256, 4, true>;

// Part: of k.
template <class Tile>
Status multiply_halves(const Problem &problem, const Launch &launch_on, int64_t part) {
    const bool across_a = problem.transa == Op::N, across_b = problem.transb == Op::T;
    MatrixMap map_a = {}, map_b = {};
    HalfPlan plan = {};
    const bool reads = problem.k > 0 && problem.a.data && problem.b.data;
    plan.by_engine_a = reads && can_map(problem.a, problem.batch);
    plan.by_engine_b = reads && can_map(problem.b, problem.batch);
    if (plan.by_engine_a)
        PYBLAS_TRY(map_lines(problem.a, across_a ? problem.m : problem.k, across_a ? problem.k : problem.m,
                             problem.batch, across_a ? kStageDepth : Tile::BM, &map_a));
    if (plan.by_engine_b)
        PYBLAS_TRY(map_lines(problem.b, across_b ? problem.n : problem.k, across_b ? problem.k : problem.n,
                             problem.batch, across_b ? kStageDepth : Tile::BN / 2, &map_b));
    if constexpr (Tile::kAllOfK)
        if (reads && !(plan.by_engine_a && plan.by_engine_b)) // the same sums in another tile
            return multiply_halves<SquareHalves>(problem, launch_on, part);
    plan.part = static_cast<int>((part + kStageDepth - 1) / kStageDepth);
    const int64_t rows = (problem.m + Tile::BM - 1) / Tile::BM, columns = (problem.n + Tile::BN - 1) / Tile::BN;
    plan.cluster = !Tile::kAllOfK && plan.by_engine_a && plan.by_engine_b && rows > 1 ? 2 : 1;
    plan.rows = static_cast<int>((rows + plan.cluster - 1) / plan.cluster);
    plan.columns = static_cast<int>(columns);
    plan.tiles = static_cast<int>(plan.rows * columns * problem.batch);
    const int64_t most = launch_on.device->multiprocessors / plan.cluster;
    Grid grid = {std::min<int64_t>(plan.tiles, most) * plan.cluster, Tile::kThreads, Tile::kSharedBytes,
                 launch_on.stream, true};
    grid.cluster = plan.cluster;
    const auto with_b = [&](auto type, auto a, auto b) {
        constexpr auto kKernel = &half_wgmma<Tile, decltype(type)::value, decltype(a)::value, decltype(b)::value>;
        PYBLAS_TRY(allow_shared<kKernel>(Tile::kSharedBytes));
        return launch<kKernel>(grid, problem, plan, map_a, map_b);
    };
    const auto with_a = [&](auto type, auto a) {
        return across_b ? with_b(type, a, std::true_type{}) : with_b(type, a, std::false_type{});
    };
    const auto with_type = [&](auto type) {
        return across_a ? with_a(type, std::true_type{}) : with_a(type, std::false_type{});
    };
    return problem.a.dtype == Dtype::f16 ? with_type(std::integral_constant<Dtype, Dtype::f16>{})
                                         : with_type(std::integral_constant<Dtype, Dtype::bf16>{});
}

} // namespace pyblas
