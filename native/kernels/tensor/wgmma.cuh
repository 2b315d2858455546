// The multiply of planes by Hopper's warpgroup instructions; wgmma.cu says when it is taken.
//
//     one warp           slots, each a plane's 64 of k           warpgroups
//     copies boxes --->  | lo A, lo B | hi A, hi B | ... |  ---> lo*hi + hi*lo, then hi*hi, in the tensor cores;
//                                                                every 64 of k their sums are added in FP32 registers
//
// Where tiles are few and k is deep, blocks share a tile's k, and the one that ends last adds their sums in order. When
// all tiles of a block are stored, results that unfit rows enter are computed by unfit.cuh.
//
// The instruction's rows are columns of C, its columns rows of C: pairs of sums are then neighbours in memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <cuda.h>

#include "../device/epilogue.cuh"
#include "../device/launch.cuh"
#include "../device/partials.cuh"
#include "../device/ptx.cuh"
#include "fragments.hpp"
#include "kernel.hpp"
#include "part_store.cuh"
#include "planes.cuh"
#include "tensor_map.cuh"
#include "unfit.cuh"

namespace pyblas {

// The products of planes, in the order they are summed: least first. A phase is summed in the tensor cores and then
// added to the totals, times its weight.
template <Scheme>
struct Products;

template <>
struct Products<Scheme::f16x2> {
    static constexpr int kPlanes = 2, kPhases = 2;
    PYBLAS_MAP static int first(int phase) { return phase == 0 ? 0 : 2; }
    PYBLAS_MAP static int end(int phase) { return phase == 0 ? 2 : 3; }
    PYBLAS_MAP static int plane_a(int product) { return product == 1 ? 1 : 0; }
    PYBLAS_MAP static int plane_b(int product) { return product == 0 ? 1 : 0; }
    static constexpr float kWeight = 1.0f / (1 << kLowPlaneBits);
    // After its phase, this plane is read no more.
    PYBLAS_MAP static int last_phase(int plane) { return plane == 1 ? 0 : 1; }
};

// Low halves count as high ones do: nothing is multiplied between the products.
template <>
struct Products<Scheme::f16x2_one> {
    static constexpr int kPlanes = 2, kPhases = 1;
    PYBLAS_MAP static int first(int) { return 0; }
    PYBLAS_MAP static int end(int) { return 3; }
    PYBLAS_MAP static int plane_a(int product) { return product == 1 ? 1 : 0; }
    PYBLAS_MAP static int plane_b(int product) { return product == 0 ? 1 : 0; }
    PYBLAS_MAP static int last_phase(int) { return 0; }
};

template <>
struct Products<Scheme::f16x1> {
    static constexpr int kPlanes = 1, kPhases = 1;
    PYBLAS_MAP static int first(int) { return 0; }
    PYBLAS_MAP static int end(int) { return 1; }
    PYBLAS_MAP static int plane_a(int) { return 0; }
    PYBLAS_MAP static int plane_b(int) { return 0; }
    PYBLAS_MAP static int last_phase(int) { return 0; }
};

template <>
struct Products<Scheme::bf16x3> {
    static constexpr int kPlanes = 3, kPhases = 1;
    PYBLAS_MAP static int first(int) { return 0; }
    PYBLAS_MAP static int end(int) { return 6; }
    PYBLAS_MAP static int plane_a(int product) { return product == 1 ? 2 : product == 2 || product == 4 ? 1 : 0; }
    PYBLAS_MAP static int plane_b(int product) { return product == 0 ? 2 : product == 2 || product == 3 ? 1 : 0; }
    PYBLAS_MAP static int last_phase(int) { return 0; }
};

// BM x BN outputs of C for each block, in pieces of 64 to 144 rows and 64 columns. A group has some of the columns,
// or, two that halve the depth, all outputs and every other chunk of k. With two accumulators both phases of a piece
// are multiplied before the sums are added.
template <Scheme Scheme_, int BM_, int BN_, int Groups_, int Stages_, int Accumulators_, bool HalvesDepth_ = false>
struct PlaneTile {
    static constexpr Scheme kScheme = Scheme_;
    using Plan = Products<kScheme>;
    static constexpr int BM = BM_, BN = BN_, kGroups = Groups_, kStages = Stages_, kAccumulators = Accumulators_;
    static constexpr bool kHalvesDepth = HalvesDepth_;
    static constexpr int kPieceM = BM <= 144 ? BM : 128, kPieceN = 64;
    static constexpr int kStoredRows = kPieceM % 64 == 0 ? 64 : 48; // whose sums are stored together
    static constexpr int kGroupN = kHalvesDepth ? BN : BN / kGroups;
    static constexpr int kPiecesM = BM / kPieceM, kPieces = kPiecesM * (kGroupN / kPieceN);
    static constexpr int kSums = kPieceM / 2; // of a thread, in one piece
    static constexpr int kThreads = (kGroups + 1) * 128;
    static constexpr int kSlots = kStages * Plan::kPlanes;
    static constexpr int kBlocksM = (BM + 63) / 64 * 64; // rows that come if they lie across k
    static constexpr int kBytesA = kBlocksM * kSwizzledRowBytes, kSlotBytes = kBytesA + BN * kSwizzledRowBytes;
    static constexpr int kReaders = kHalvesDepth ? 1 : kGroups; // groups that read a slot
    // Behind the slots: of each group the powers of two of its rows and columns, for two tiles by turns unless a
    // barrier ends each tile; then the sums that groups exchange.
    static constexpr int kPowers = BM + kGroupN, kPowerTurns = kHalvesDepth ? 1 : 2;
    static constexpr int kPowersBytes = kGroups * kPowerTurns * kPowers * 4;
    // Where tiles are few, parts of k are multiplied side by side. Their sums take as long as so many chunks.
    static constexpr bool kSplits = kPieces == 1 && kSums % 16 == 0 && (kHalvesDepth || BM > 64);
    static constexpr int kSumChunks = 3, kPartChunks = 1;
    static constexpr int kExchangeBytes = kHalvesDepth ? 128 * kPieces * kSums * 4 : 0;
    static constexpr int kSharedBytes = kSwizzleAtomBytes + kSlots * (kSlotBytes + 16) + kPowersBytes + kExchangeBytes;
    static constexpr int kProducerRegisters = kGroups == 2 ? 24 : 32, kConsumerRegisters = kGroups == 2 ? 240 : 160;

    static_assert(BM % kPieceM == 0 && kGroupN % kPieceN == 0, "pieces tile the block");
    static_assert(kGroups == 2 || kGroups == 3, "registers are shared out for these");
    static_assert(!kHalvesDepth || kGroups == 2, "two halves are added");
    static_assert(!kHalvesDepth || kStages % 2 == 0, "a stage is always the same group's, or its phases would alias");
    static_assert(kSharedBytes <= 227 * 1024, "what a block can have");
};

// All tiles of all products, and the order in which blocks take them: bands of 16 tile rows, column by column, so that
// tiles at work share rows of A and columns of B in L2. Tiles whose k is cut come once for each part, parts one after
// another. 32 bits, as the launch makes sure.
struct PlaneGrid {
    int rows, columns, tiles;
    int parts, part_chunks; // of a tile's k
    float *sums;            // of parts, [tile][part][thread]
    uint32_t *arrivals;     // of each tile

    struct Place {
        int row, column, batch, tile, part;
    };
    PYBLAS_HOST_DEVICE int units() const { return tiles * parts; } // parts of tiles
    __device__ __forceinline__ Place place(int number) const {
        constexpr int kBand = 16;
        const int part = number / tiles, tile = number - part * tiles;
        const int each = rows * columns, batch = tile / each, inside = tile - batch * each;
        const int first = inside / (kBand * columns) * kBand, height = min(kBand, rows - first);
        const int step = inside - first * columns, column = step / height;
        return {first + step - column * height, column, batch, tile, part};
    }
};

constexpr int kPairBarrier = 4; // between groups; 0 is the block's, from 1 on one for each group

#if PYBLAS_HAS_WGMMA
// 2^(exponent / 2), or 0 for an unfit row.
__device__ __forceinline__ float half_power(int exponent) {
    return exponent == kUnfitRow ? 0.0f : __int_as_float((exponent / 2 + 127) << 23);
}

// Leaves the sums of a part of a tile's k. The block that finds all others there has their total, in the order of k,
// and true; nobody waits.
template <int Threads, int Pieces, int Sums>
__device__ __forceinline__ bool complete(const PlaneGrid &grid, const PlaneGrid::Place &place,
                                         float (&sums)[Pieces][Sums]) {
    constexpr int kQuads = Sums / 4;
    const int64_t part = Pieces * kQuads * Threads; // in quads
    float4 *quads = reinterpret_cast<float4 *>(grid.sums) + place.tile * grid.parts * part + threadIdx.x;
#pragma unroll
    for (int i = 0; i < Pieces * kQuads; ++i) {
        const float *const four = &sums[i / kQuads][i % kQuads * 4];
        quads[place.part * part + i * Threads] = {four[0], four[1], four[2], four[3]};
    }
    ptx::any_of_threads<Threads>(kPairBarrier, false);
    const bool last = threadIdx.x == 0 && ptx::arrive(grid.arrivals + place.tile, grid.parts - 1);
    // By way of a lane, or the compiler would not take the loops that follow for uniform.
    if (!__shfl_sync(0xffffffff, static_cast<int>(ptx::any_of_threads<Threads>(kPairBarrier, last)), 0))
        return false;
#pragma unroll
    for (int i = 0; i < Pieces * Sums; ++i)
        sums[i / Sums][i % Sums] = 0.0f;
    constexpr int kAtOnce = Pieces * kQuads < 16 ? 16 / (Pieces * kQuads) : 1; // parts whose loads are on their way
#pragma unroll kAtOnce
    for (int other = 0; other < grid.parts; ++other, quads += part)
#pragma unroll
        for (int i = 0; i < Pieces * kQuads; ++i) {
            const float4 four = quads[i * Threads];
            float *const sum = &sums[i / kQuads][i % kQuads * 4];
            sum[0] += four.x, sum[1] += four.y, sum[2] += four.z, sum[3] += four.w;
        }
    return true;
}

// One plane's Rows by 64 of k to shared memory.
template <int Rows, bool Across>
__device__ __forceinline__ void copy_plane(char *target, const CUtensorMap *map, int k, int row, int plane, int batch,
                                           uint64_t *full) {
    if constexpr (Across) {
#pragma unroll
        for (int block = 0; block < Rows; block += 64)
            ptx::copy_box(target + block * kSwizzledRowBytes, map, row + block, k, plane, batch, full);
    } else {
        ptx::copy_box(target, map, k, row, plane, batch, full);
    }
}
#endif

// What tiles of this block leave out. A call, so that the kernels need not hold it in their registers.
template <bool AcrossA, bool AcrossB>
__device__ __noinline__ void multiply_unfit_tiles(const Problem &problem, const PackedProduct &packed,
                                                  const PlaneGrid &grid, int tile_rows, int tile_columns) {
    const Epilogue epilogue(problem);
    const unfit::Marks rows = unfit::Marks::of(packed.a), columns = unfit::Marks::of(packed.b);
#pragma unroll 1
    for (int number = static_cast<int>(blockIdx.x); number < grid.units(); number += static_cast<int>(gridDim.x)) {
        const PlaneGrid::Place tile = grid.place(number);
        if (tile.part > 0)
            return; // the tile is another block's, as are those of all further parts
        const int64_t row = int64_t{tile.row} * tile_rows, column = int64_t{tile.column} * tile_columns;
#pragma unroll 1
        for (int i = 0; i < tile_rows; i += unfit::kSide)
#pragma unroll 1
            for (int j = 0; j < tile_columns; j += unfit::kSide) {
                const unfit::Place place = {row + i, column + j, tile.batch,
                                            part(problem.m - row, min(i + unfit::kSide, tile_rows)) - i,
                                            part(problem.n - column, min(j + unfit::kSide, tile_columns)) - j};
                if (place.rows > 0 && place.columns > 0)
                    unfit::multiply_place<AcrossA, AcrossB>(
                        problem, epilogue, place, rows, columns,
                        unfit::count_unfit(rows, tile.batch, place.row, place.rows),
                        unfit::count_unfit(columns, tile.batch, place.column, place.columns));
            }
    }
}

template <class Tile, bool AcrossA, bool AcrossB>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    wgmma(__grid_constant__ const Problem problem, __grid_constant__ const PackedProduct packed,
          __grid_constant__ const CUtensorMap map_a, __grid_constant__ const CUtensorMap map_b,
          __grid_constant__ const PlaneGrid grid) {
#if PYBLAS_HAS_WGMMA
    using Plan = typename Tile::Plan;
    constexpr int kPlanes = Plan::kPlanes;
    constexpr ptx::Number kNumber = Tile::kScheme == Scheme::bf16x3 ? ptx::Number::bf16 : ptx::Number::f16;

    // place
    const int thread = static_cast<int>(threadIdx.x) % 128, lane = thread % 32;
    const int group = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 128, 0);
    char *const memory = reinterpret_cast<char *>(dynamic_shared());
    const int skew = -static_cast<int>(ptx::shared_address(memory)) & (kSwizzleAtomBytes - 1);
    char *const slots = memory + skew;
    uint64_t *const full = reinterpret_cast<uint64_t *>(slots + Tile::kSlots * Tile::kSlotBytes);
    uint64_t *const empty = full + Tile::kSlots;
    float *powers = reinterpret_cast<float *>(empty + Tile::kSlots);
    float2 *const exchange = reinterpret_cast<float2 *>(powers + Tile::kPowersBytes / 4);
    powers += group * Tile::kPowerTurns * Tile::kPowers;
    if (threadIdx.x == 0) {
        ptx::prefetch_tensor_map(&map_a);
        ptx::prefetch_tensor_map(&map_b);
        for (int slot = 0; slot < Tile::kSlots; ++slot) {
            ptx::init_barrier(full + slot, 1);
            ptx::init_barrier(empty + slot, Tile::kReaders * 4);
        }
        ptx::publish_barriers();
    }
    __syncthreads();
    ptx::launch_dependents();
    ptx::wait_for_predecessors();
    const Epilogue epilogue(problem);
    if (epilogue.idle())
        return;
    if constexpr (Tile::kScheme == Scheme::f16x2_one)
        if (epilogue.depth() > 0 && (packed.a.too_many_small() || packed.b.too_many_small()))
            return; // all of it is left to kernels of another scheme
    const int all_chunks = static_cast<int>((epilogue.depth() + kPlaneDepth - 1) / kPlaneDepth);
    // Of a part of k, the first chunk, and how many there are.
    const auto first_chunk = [&](const PlaneGrid::Place &place) {
        return Tile::kSplits ? place.part * grid.part_chunks : 0;
    };
    const auto chunks_of = [&](const PlaneGrid::Place &place) {
        return Tile::kSplits ? max(0, min(grid.part_chunks, all_chunks - first_chunk(place))) : all_chunks;
    };

    if (group == Tile::kGroups) {
        // load
        ptx::give_registers_back<Tile::kProducerRegisters>();
        if (threadIdx.x != Tile::kGroups * 128)
            return;
        constexpr int kComing = ((AcrossA ? Tile::kBlocksM : Tile::BM) + Tile::BN) * kSwizzledRowBytes;
        int stage = 0;
        uint32_t parity = 1; // the first turn finds all slots empty
        for (int number = static_cast<int>(blockIdx.x); number < grid.units(); number += static_cast<int>(gridDim.x)) {
            const PlaneGrid::Place place = grid.place(number);
            const int row = place.row * Tile::BM, column = place.column * Tile::BN;
            const int batch_a = static_cast<int>(packed.a.shared_batch(place.batch));
            const int batch_b = static_cast<int>(packed.b.shared_batch(place.batch));
            const int first = first_chunk(place), end = first + chunks_of(place);
            for (int chunk = first; chunk < end; ++chunk) {
#pragma unroll
                for (int plane = kPlanes - 1; plane >= 0; --plane) {
                    const int slot = stage * kPlanes + plane;
                    char *const target = slots + slot * Tile::kSlotBytes;
                    ptx::wait(empty + slot, parity);
                    ptx::arrive_and_expect(full + slot, kComing);
                    copy_plane<Tile::BM, AcrossA>(target, &map_a, chunk * kPlaneDepth, row, plane, batch_a,
                                                  full + slot);
                    copy_plane<Tile::BN, AcrossB>(target + Tile::kBytesA, &map_b, chunk * kPlaneDepth, column, plane,
                                                  batch_b, full + slot);
                }
                if (++stage == Tile::kStages)
                    stage = 0, parity ^= 1;
            }
        }
    } else {
        ptx::take_registers<Tile::kConsumerRegisters>();
        const uint64_t origin = tile_descriptor(ptx::shared_address(slots));
        const int own_column = Tile::kHalvesDepth ? 0 : group * Tile::kGroupN;
        const uint64_t group_b = origin + descriptor_step(Tile::kBytesA + own_column * kSwizzledRowBytes);
        constexpr int kStep = Tile::kHalvesDepth ? 2 : 1; // from one chunk of this group to its next
        int stage = Tile::kHalvesDepth ? group : 0, ahead = stage,
            powers_flip = Tile::kPowerTurns > 1 ? Tile::kPowers : 0;
        uint32_t parity = 0;
        bool any_unfit = false;
        for (int number = static_cast<int>(blockIdx.x); number < grid.units(); number += static_cast<int>(gridDim.x)) {
            const PlaneGrid::Place place = grid.place(number);
            const int tile_row = place.row * Tile::BM, tile_column = place.column * Tile::BN + own_column;
            const int chunks = chunks_of(place);
            // Asked for now, needed when the sums are. Neither branches here nor barriers of single warps below: the
            // compiler would not take the loop over k for uniform then, and multiply 15 % slower.
            constexpr int kExponents = (Tile::kPowers + 127) / 128;
            int exponents[kExponents];
            const int32_t *const of_rows =
                packed.a.exponents + packed.a.shared_batch(place.batch) * problem.m + tile_row;
            const int32_t *const of_columns =
                packed.b.exponents + packed.b.shared_batch(place.batch) * problem.n + tile_column;
#pragma unroll
            for (int i = 0; i < kExponents; ++i) {
                const int row = thread + i * 128, column = row - Tile::BM;
                const bool exists = column < 0 ? tile_row + row < problem.m
                                               : column < Tile::kGroupN && tile_column + column < problem.n;
                const int exponent = *(!exists ? packed.a.exponents : column < 0 ? of_rows + row : of_columns + column);
                exponents[i] = exists && all_chunks > 0 ? exponent : 0; // nothing is packed where there is no depth
            }
            float total[Tile::kPieces][Tile::kSums] = {}, acc[Tile::kAccumulators][Tile::kSums];

            // multiply
            int chunk = ahead;
#pragma unroll 1
            for (; chunk < chunks; chunk += kStep) {
#pragma unroll
                for (int plane = kPlanes - 1; plane >= 0; --plane)
                    ptx::wait(full + stage * kPlanes + plane, parity);
                const uint64_t stage_step = descriptor_step(stage * kPlanes * Tile::kSlotBytes);
                const auto multiply = [&](int piece, int phase, float (&sums)[Tile::kSums], bool onto) {
                    const int piece_m = piece % Tile::kPiecesM, piece_n = piece / Tile::kPiecesM;
#pragma unroll
                    for (int product = Plan::first(phase); product < Plan::end(phase); ++product)
#pragma unroll
                        for (int k = 0; k < kPlaneDepth; k += 16)
                            ptx::multiply<kNumber, AcrossB, AcrossA>(
                                sums,
                                group_b + stage_step +
                                    descriptor_step(Plan::plane_b(product) * Tile::kSlotBytes +
                                                    piece_n * Tile::kPieceN * kSwizzledRowBytes +
                                                    depth_step(AcrossB, k)),
                                origin + stage_step +
                                    descriptor_step(Plan::plane_a(product) * Tile::kSlotBytes +
                                                    piece_m * Tile::kPieceM * kSwizzledRowBytes +
                                                    depth_step(AcrossA, k)),
                                onto || product > Plan::first(phase) || k > 0);
                    ptx::commit_multiplies();
                };
                const auto release = [&](int piece, int phase) {
                    if (piece == Tile::kPieces - 1 && lane == 0) {
#pragma unroll
                        for (int plane = 0; plane < kPlanes; ++plane)
                            if (Plan::last_phase(plane) == phase)
                                ptx::arrive(empty + stage * kPlanes + plane);
                    }
                };
#pragma unroll
                for (int piece = 0; piece < Tile::kPieces; ++piece) {
                    ptx::fence_accumulators(acc[0]);
                    multiply(piece, 0, acc[0], false);
                    if constexpr (Plan::kPhases == 2 && Tile::kAccumulators == 2) {
                        multiply(piece, 1, acc[1], false);
                        ptx::wait_multiplies<1>(acc[0]);
                        release(piece, 0);
                        ptx::wait_multiplies<0>(acc[1]);
                        release(piece, 1);
#pragma unroll
                        for (int i = 0; i < Tile::kSums; ++i)
                            total[piece][i] += fmaf(acc[0][i], Plan::kWeight, acc[1][i]);
                    } else {
                        ptx::wait_multiplies<0>(acc[0]);
                        release(piece, 0);
                        if constexpr (Plan::kPhases == 2) {
#pragma unroll
                            for (int i = 0; i < Tile::kSums; ++i)
                                acc[0][i] *= Plan::kWeight;
                            ptx::fence_accumulators(acc[0]);
                            multiply(piece, 1, acc[0], true);
                            ptx::wait_multiplies<0>(acc[0]);
                            release(piece, 1);
                        }
#pragma unroll
                        for (int i = 0; i < Tile::kSums; ++i)
                            total[piece][i] += acc[0][i];
                    }
                }
                // advance
                stage += kStep;
                if (stage >= Tile::kStages)
                    stage -= Tile::kStages, parity ^= 1;
            }
            ahead = chunk - chunks;

            // store
            bool unfit = false;
#pragma unroll
            for (int i = 0; i < kExponents; ++i) {
                unfit |= exponents[i] == kUnfitRow;
                if (thread + i * 128 < Tile::kPowers)
                    powers[thread + i * 128] = half_power(exponents[i]);
            }
            unfit = ptx::any_of_threads<128>(group + 1, unfit);
            any_unfit |= unfit;
            float *const c = problem.c.matrix(place.batch);
            // By way of a lane, or the compiler would not take the branch for uniform.
            const bool plain = __shfl_sync(0xffffffff,
                                           !unfit && tile_row + Tile::BM <= problem.m &&
                                               reinterpret_cast<uintptr_t>(c) % 16 == 0 && problem.c.ld % 4 == 0,
                                           0);
            // Half a piece: the warp's rows of the fragment from half * 8 on.
            const auto store_half = [&](int piece, int half, const float *sums, int stride) {
                const int column = piece / Tile::kPiecesM * Tile::kPieceN + thread / 32 * 16 + half * 8;
#pragma unroll
                for (int part = 0; part < Tile::kPieceM / Tile::kStoredRows; ++part) {
                    const int row = piece % Tile::kPiecesM * Tile::kPieceM + part * Tile::kStoredRows;
                    const PartStore<Tile::kStoredRows> store{epilogue,
                                                             powers + row,
                                                             powers + Tile::BM + column,
                                                             c + tile_row + row + (tile_column + column) * problem.c.ld,
                                                             problem.c.ld,
                                                             static_cast<int>(problem.m) - tile_row - row,
                                                             static_cast<int>(problem.n) - tile_column - column,
                                                             !unfit,
                                                             plain};
                    store(sums + part * (Tile::kStoredRows / 8) * stride, stride, lane);
                }
            };
            const auto whole = [&](auto &sums) {
                if constexpr (Tile::kSplits)
                    return grid.parts == 1 || complete<Tile::kGroups * 128>(grid, place, sums);
                else
                    return true;
            };
            if constexpr (Tile::kHalvesDepth) {
                // Each group sends one half of its sums to the other and stores the other half.
                constexpr int kPairs = Tile::kSums / 4;
                float kept[Tile::kPieces][kPairs * 2];
#pragma unroll
                for (int i = 0; i < Tile::kPieces * kPairs; ++i) {
                    const float *const four = &total[i / kPairs][i % kPairs * 4];
                    kept[i / kPairs][i % kPairs * 2] = group == 0 ? four[0] : four[2];
                    kept[i / kPairs][i % kPairs * 2 + 1] = group == 0 ? four[1] : four[3];
                    exchange[(i * 2 + group) * 128 + thread] =
                        group == 0 ? float2{four[2], four[3]} : float2{four[0], four[1]};
                }
                ptx::meet<256>(kPairBarrier);
#pragma unroll
                for (int i = 0; i < Tile::kPieces * kPairs; ++i) {
                    const float2 other = exchange[(i * 2 + 1 - group) * 128 + thread];
                    kept[i / kPairs][i % kPairs * 2] += other.x;
                    kept[i / kPairs][i % kPairs * 2 + 1] += other.y;
                }
                if (whole(kept))
#pragma unroll
                    for (int piece = 0; piece < Tile::kPieces; ++piece)
                        store_half(piece, group, kept[piece], 2);
                ptx::meet<256>(kPairBarrier); // before the next tile's sums and powers
            } else if (whole(total)) {
#pragma unroll
                for (int i = 0; i < Tile::kPieces * 2; ++i)
                    store_half(i / 2, i % 2, &total[i / 2][i % 2 * 2], 4);
            }
            powers += powers_flip, powers_flip = -powers_flip;
        }

        // What is left out: by two groups, once all of them are done with the slots.
        if (ptx::any_of_threads<Tile::kGroups * 128>(kPairBarrier, any_unfit) && group < 2)
            multiply_unfit_tiles<AcrossA, AcrossB>(problem, packed, grid, Tile::BM, Tile::BN);
    }
#endif
}

// In how many parts the k of each tile is multiplied.
struct DepthParts {
    int64_t tiles, chunks; // chunks in each part
    int parts;

    static DepthParts whole(const Problem &problem) { return {0, (problem.k + kPlaneDepth - 1) / kPlaneDepth, 1}; }

    // More than one where tiles are few, to give all multiprocessors something to do; one of them adds the sums.
    template <class Tile>
    static DepthParts of(const Problem &problem, const Device &device) {
        DepthParts best = whole(problem);
        const int64_t chunks = best.chunks;
        const int64_t tiles =
            ((problem.m + Tile::BM - 1) / Tile::BM) * ((problem.n + Tile::BN - 1) / Tile::BN) * problem.batch;
        int64_t least = chunks;
        const bool may = Tile::kSplits && !problem.batch_invariant;
        for (int parts = 2; may && parts * tiles <= device.multiprocessors; ++parts) {
            const int64_t each = (chunks + parts - 1) / parts;
            const int64_t time = each + Tile::kSumChunks + parts * Tile::kPartChunks;
            if (time < least && (parts - 1) * each < chunks)
                best = {tiles, each, parts}, least = time;
        }
        return best;
    }
    // Of workspace: counters, where nobody lends zeros, and sums.
    size_t counter_bytes() const { return (static_cast<size_t>(tiles) * sizeof(uint32_t) + 255) / 256 * 256; }
    template <class Tile>
    size_t bytes() const {
        return parts == 1 ? 0
                          : counter_bytes() + static_cast<size_t>(tiles * parts) * Tile::BM * Tile::BN * sizeof(float);
    }
};

// The packed product into C. Waits for the kernels ahead.
template <class Tile>
Status multiply_planes(const Problem &problem, const PackedProduct &packed, const DepthParts &cut,
                       const Launch &launch_on) {
    CUtensorMap map_a, map_b;
    PYBLAS_TRY(plane_map(packed.a, Tile::BM, &map_a));
    PYBLAS_TRY(plane_map(packed.b, Tile::BN, &map_b));
    const int64_t rows = (problem.m + Tile::BM - 1) / Tile::BM, columns = (problem.n + Tile::BN - 1) / Tile::BN;
    const int64_t tiles = rows * columns * problem.batch;
    char *const memory = static_cast<char *>(launch_on.workspace) + packed.bytes;
    uint32_t *const arrivals = launch_on.zeros ? launch_on.zeros : reinterpret_cast<uint32_t *>(memory);
    if (cut.parts > 1 && !launch_on.zeros)
        PYBLAS_TRY(clear(arrivals, cut.tiles, launch_on.stream));
    const PlaneGrid grid{static_cast<int>(rows),
                         static_cast<int>(columns),
                         static_cast<int>(tiles),
                         cut.parts,
                         static_cast<int>(cut.chunks),
                         reinterpret_cast<float *>(memory + cut.counter_bytes()),
                         arrivals};
    const int64_t blocks = std::min<int64_t>(grid.units(), launch_on.device->multiprocessors);
    const auto start = [&](auto kernel) {
        PYBLAS_TRY(allow_shared<kernel.value>(Tile::kSharedBytes));
        return launch<kernel.value>({blocks, Tile::kThreads, Tile::kSharedBytes, launch_on.stream, true}, problem,
                                    packed, map_a, map_b, grid);
    };
    using std::integral_constant;
    using Kernel = decltype(&wgmma<Tile, false, false>);
    if (packed.a.across)
        return packed.b.across ? start(integral_constant<Kernel, &wgmma<Tile, true, true>>{})
                               : start(integral_constant<Kernel, &wgmma<Tile, true, false>>{});
    return packed.b.across ? start(integral_constant<Kernel, &wgmma<Tile, false, true>>{})
                           : start(integral_constant<Kernel, &wgmma<Tile, false, false>>{});
}

// The tiles, and who compiles their kernels.
using Tiny = PlaneTile<Scheme::f16x2, 64, 64, 2, 6, 2, true>;
using Narrow = PlaneTile<Scheme::f16x2, 128, 64, 2, 4, 2, true>;
using Flat = PlaneTile<Scheme::f16x2, 64, 128, 2, 4, 1>;
using Square = PlaneTile<Scheme::f16x2, 128, 128, 2, 3, 1>;
using Tall = PlaneTile<Scheme::f16x2, 144, 128, 2, 2, 2>;
using Middle = PlaneTile<Scheme::f16x2, 128, 192, 3, 2, 1>;
using Wide = PlaneTile<Scheme::f16x2, 128, 256, 2, 2, 1>;
using WideOne = PlaneTile<Scheme::f16x2_one, 128, 256, 2, 2, 1>;
using FullRange = PlaneTile<Scheme::bf16x3, 128, 128, 2, 2, 1>;
using NarrowTf32 = PlaneTile<Scheme::f16x1, 128, 64, 2, 8, 1, true>;
using SquareTf32 = PlaneTile<Scheme::f16x1, 128, 128, 2, 6, 1>;
using WideTf32 = PlaneTile<Scheme::f16x1, 128, 256, 2, 4, 1>;

#define PYBLAS_MULTIPLY_PLANES(Tile)                                                                                   \
    template Status multiply_planes<Tile>(const Problem &, const PackedProduct &, const DepthParts &, const Launch &);
extern PYBLAS_MULTIPLY_PLANES(Tiny)           // wgmma_small.cu
    extern PYBLAS_MULTIPLY_PLANES(Narrow)     // wgmma_small.cu
    extern PYBLAS_MULTIPLY_PLANES(Flat)       // wgmma_small.cu
    extern PYBLAS_MULTIPLY_PLANES(Square)     // wgmma_square.cu
    extern PYBLAS_MULTIPLY_PLANES(FullRange)  // wgmma_square.cu
    extern PYBLAS_MULTIPLY_PLANES(Tall)       // wgmma_tall.cu
    extern PYBLAS_MULTIPLY_PLANES(Middle)     // wgmma_wide.cu
    extern PYBLAS_MULTIPLY_PLANES(Wide)       // wgmma_wide.cu
    extern PYBLAS_MULTIPLY_PLANES(WideOne)    // wgmma_one.cu
    extern PYBLAS_MULTIPLY_PLANES(NarrowTf32) // wgmma_tf32.cu
    extern PYBLAS_MULTIPLY_PLANES(SquareTf32) // wgmma_tf32.cu
    extern PYBLAS_MULTIPLY_PLANES(WideTf32)   // wgmma_tf32.cu

} // namespace pyblas
