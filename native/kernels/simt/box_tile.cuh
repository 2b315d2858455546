// The kernel of box_tile.cu: tiles of C one after another, fed by the copy engine.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "../device/epilogue.cuh"
#include "../device/launch.cuh"
#include "../device/load.cuh"
#include "../device/ptx.cuh"
#include "../device/quads.cuh"
#include "../device/ring.cuh"
#include "../device/tensor_maps.cuh"
#include "../device/tile.cuh"
#include "kernel.hpp"

namespace pyblas {

// A tile of BM x BN outputs, TM x TN of them in each thread, BK deep at a time. Where WM x WN outputs are those of a
// warp, threads lie as in warp_tile; otherwise they are counted down the tile, and the last ones may have no work.
template <int BM_, int BN_, int BK_, int WM_, int WN_, int TM_, int TN_, int Resident_, int Unroll_ = 1>
struct BoxTile {
    static constexpr int BM = BM_, BN = BN_, BK = BK_, WM = WM_, WN = WN_, TM = TM_, TN = TN_;
    static constexpr int kRoom = (228 << 10) / Resident_ - 1024; // bytes; a block takes 1 KB more than it asks for
    static constexpr int kResident = Resident_, kUnroll = Unroll_, kSteps = BK / 4;
    static constexpr bool kHoldsN = TN <= TM; // its columns wait in registers
    static constexpr int kLanesM = WM / TM, kLanesN = WN / TN;
    static constexpr bool kWarps = kLanesM * kLanesN == 32;
    static constexpr int kWorkers = BM / TM * (BN / TN), kThreads = (kWorkers + 31) / 32 * 32;
    static constexpr bool kTight = (1 << 16) / (kThreads * kResident) <= 128; // registers of a thread

    // Eight neighbouring lanes have four quads of the longer side of a warp and two of the other.
    static constexpr int kLonger = kLanesM > kLanesN ? kLanesM : kLanesN;
    static PYBLAS_HOST_DEVICE constexpr int along_longer(int lane) { return lane / 2 % kLonger; }
    static PYBLAS_HOST_DEVICE constexpr int along_shorter(int lane) { return lane % 2 + lane / (2 * kLonger) * 2; }
    static PYBLAS_HOST_DEVICE constexpr int lane_m(int lane) {
        return kLanesM == kLonger ? along_longer(lane) : along_shorter(lane);
    }
    static PYBLAS_HOST_DEVICE constexpr int lane_n(int lane) {
        return kLanesM == kLonger ? along_shorter(lane) : along_longer(lane);
    }
    static_assert(BM % WM == 0 && BN % WN == 0 && WM % TM == 0 && WN % TN == 0 && BK % 4 == 0, "threads tile the tile");
    static_assert(kWarps || (WM == BM && WN == BN), "parts of a tile are those of warps");
};

// A row's tile for each layout of A: which outputs of it a thread has decides how many of its multiply-adds read three
// registers at once, and how the compiler orders them, which side is read in quads of k.
template <class Straight, class Turned>
struct BoxTiles : Straight {
    template <bool ContiguousM>
    using Of = std::conditional_t<ContiguousM, Straight, Turned>;
    static_assert(Straight::BM == Turned::BM && Straight::BN == Turned::BN && Straight::BK == Turned::BK, "one tile");
    static_assert(Straight::kThreads == Turned::kThreads && Straight::kRoom == Turned::kRoom, "one footprint");
};

// One operand's boxes in shared memory, and the T of x that a thread has, Lanes threads side by side along x.
//
//   contiguous x: [k][x] as in global memory
//   contiguous k: [x][k], or with quads of x [x % 4][x / 4][k], which is the order of a map that counts quads
//
// Where rows lie along k and are 32 long, the copy engine has turned their quads by the row's number, so that eight
// neighbouring threads read 32 banks. So they do where rows are an odd number of quads long.
// With quads, or contiguous, a thread's x are quads, so that four rows of C are stored at once.
template <int X, int K, int T, int Lanes, bool ContiguousX, bool Quads>
struct BoxSide {
    static constexpr bool kContiguous = ContiguousX, kByQuads = Quads && !ContiguousX;
    static constexpr bool kSwizzled = !ContiguousX && K == 32;
    static constexpr int kCount = T, kLength = ContiguousX ? X : K, kColumns = ContiguousX ? K : X;
    static constexpr int kBytes = 4 * X * K, kAlign = kSwizzled ? 256 : 32;
    static constexpr int kFloats = (X * K + kAlign - 1) / kAlign * kAlign;
    static_assert(!(ContiguousX || Quads) || (T % 4 == 0 && X % 4 == 0), "quads of x");
    static_assert(!kSwizzled || (Lanes % 4 == 0 && X % 32 == 0), "rows turn alike");

    // Of a thread's i-th x, from its first one.
    static constexpr PYBLAS_HOST_DEVICE int step(int i) {
        return ContiguousX || Quads ? i / 4 * 4 * Lanes + i % 4 : i * Lanes;
    }
    static constexpr PYBLAS_HOST_DEVICE int first(int lane) { return ContiguousX || Quads ? 4 * lane : lane; }

    // The row of x in a tile whose rows lie along k.
    static constexpr PYBLAS_HOST_DEVICE int row_of(int x) { return kByQuads ? x % 4 * (X / 4) + x / 4 : x; }
    // Where element i of stored column j lies.
    static __device__ __forceinline__ int at(int i, int j) {
        if constexpr (ContiguousX)
            return j * X + i;
        const int row = row_of(j);
        return row * K + (kSwizzled ? i ^ 4 * (row % 8) : i);
    }
    // Of a thread whose first x it is, and back.
    static __device__ __forceinline__ int place(int x) {
        const int row = kByQuads ? x / 4 : x;
        return ContiguousX ? x : row * K + (kSwizzled ? 4 * (row % 8) : 0);
    }
    static __device__ __forceinline__ int x_of(int place) {
        return ContiguousX ? place : place / K * (kByQuads ? 4 : 1);
    }
    // Four x of k 4 * quad_k + k, or four k of one x.
    static __device__ __forceinline__ float4 quad_x(const float *tile, int place, int quad_k, int k, int quad) {
        return *reinterpret_cast<const float4 *>(tile + place + (4 * quad_k + k) * X + quad * 4 * Lanes);
    }
    static __device__ __forceinline__ float4 quad_k(const float *tile, int place, int quad_k, int i) {
        const int rows_on = kByQuads ? i % 4 * (X / 4) + i / 4 * Lanes : i * Lanes;
        const int turned = kSwizzled ? place ^ 4 * (quad_k ^ rows_on % 8) : place + 4 * quad_k;
        return *reinterpret_cast<const float4 *>(tile + rows_on * K + turned);
    }
};

// Four k of all a thread's outputs: the quads of the side that is held wait in registers, those of the other stream
// past them. sum(i, j): the accumulator of the held side's i and the streamed side's j.
template <class Held, class Streamed, class Sum>
__device__ __forceinline__ void multiply_quads(const float *tile_held, int place_held, const float *tile_streamed,
                                               int place_streamed, int quad_k, const Sum &sum) {
    float held[4][Held::kCount];
    if constexpr (Held::kContiguous) {
#pragma unroll
        for (int k = 0; k < 4; ++k)
#pragma unroll
            for (int i = 0; i < Held::kCount; i += 4) {
                const float4 four = Held::quad_x(tile_held, place_held, quad_k, k, i / 4);
                held[k][i] = four.x, held[k][i + 1] = four.y, held[k][i + 2] = four.z, held[k][i + 3] = four.w;
            }
    } else {
#pragma unroll
        for (int i = 0; i < Held::kCount; ++i) {
            const float4 four = Held::quad_k(tile_held, place_held, quad_k, i);
            held[0][i] = four.x, held[1][i] = four.y, held[2][i] = four.z, held[3][i] = four.w;
        }
    }
    if constexpr (Streamed::kContiguous) {
#pragma unroll
        for (int k = 0; k < 4; ++k)
#pragma unroll
            for (int j = 0; j < Streamed::kCount; j += 4) {
                const float4 quad = Streamed::quad_x(tile_streamed, place_streamed, quad_k, k, j / 4);
                const float four[4] = {quad.x, quad.y, quad.z, quad.w};
#pragma unroll
                for (int r = 0; r < 4; ++r)
#pragma unroll
                    for (int step = 0; step < Held::kCount; ++step) {
                        const int i = r % 2 ? Held::kCount - 1 - step : step; // there and back
                        sum(i, j + r) = fmaf(held[k][i], four[r], sum(i, j + r));
                    }
            }
    } else {
        // Two of the other side wait for each k of the held one; one, where both sides are as long and that is quicker.
        constexpr int kAtOnce = Held::kCount < Streamed::kCount ? 2 : 1;
#pragma unroll
        for (int j = 0; j < Streamed::kCount; j += kAtOnce) {
            float four[4][kAtOnce];
#pragma unroll
            for (int r = 0; r < kAtOnce; ++r) {
                const float4 quad = Streamed::quad_k(tile_streamed, place_streamed, quad_k, j + r);
                four[0][r] = quad.x, four[1][r] = quad.y, four[2][r] = quad.z, four[3][r] = quad.w;
            }
#pragma unroll
            for (int k = 0; k < 4; ++k)
#pragma unroll
                for (int r = 0; r < kAtOnce; ++r)
#pragma unroll
                    for (int step = 0; step < Held::kCount; ++step) {
                        const int i = r % 2 ? Held::kCount - 1 - step : step; // there and back
                        sum(i, j + r) = fmaf(held[k][i], four[k][r], sum(i, j + r));
                    }
        }
    }
}

// What a launch is told beside the problem.
struct BoxPlan {
    MatrixMap a, b;
    int rows, columns, tiles; // tiles down and across one C, and all of them
    int blocks;               // that share the tiles
    bool mapped;              // the copy engine can read both operands
    bool asks_early;          // for its first boxes, before the kernel ahead has ended
};

// Bands of tile rows are walked column by column, so that blocks running at the same time share operands in the L2.
struct BoxPlace {
    int batch, row, column; // row and column count tiles
};
__device__ __forceinline__ BoxPlace place_box(const BoxPlan &plan, int number) {
    constexpr int kBand = 16;
    const int each = plan.rows * plan.columns;
    if (each == 1)
        return {number, 0, 0};
    const int batch = number / each;
    number -= batch * each;
    const int first = number / (kBand * plan.columns) * kBand;
    const int height = min(plan.rows - first, kBand);
    number -= first * plan.columns;
    return {batch, first + number % height, number / height};
}

template <class Tile, bool ContiguousM, bool ContiguousN>
struct BoxParts {
    using A = BoxSide<Tile::BM, Tile::BK, Tile::TM, Tile::kLanesM, ContiguousM, true>;
    using B = BoxSide<Tile::BN, Tile::BK, Tile::TN, Tile::kLanesN, ContiguousN, false>;
    static constexpr int kFloatsA = (A::kFloats + B::kAlign - 1) / B::kAlign * B::kAlign;
    static constexpr int kStageFloats = (kFloatsA + B::kFloats + A::kAlign - 1) / A::kAlign * A::kAlign;
    static constexpr int kStageBytes = 4 * (kStageFloats + 4); // with two barriers
    static constexpr int kMostStages = 8, kFit = Tile::kRoom / kStageBytes,
                         kStages = kFit < kMostStages ? kFit : kMostStages;
    static constexpr int kBytes = kStages * kStageBytes;
    static_assert(kStages >= 2, "one stage to work on, one on its way");
};

// Where a thread's outputs begin in the tile.
template <class Tile, class A, class B>
struct BoxThread {
    int row, column;

    __device__ __forceinline__ explicit BoxThread(int thread) {
        constexpr int kDown = Tile::BM / Tile::WM; // warps
        const int warp = thread / 32, lane = thread % 32;
        row = A::first(Tile::kWarps ? Tile::lane_m(lane) : thread % Tile::kLanesM) +
              (Tile::kWarps ? warp % kDown * Tile::WM : 0);
        column = B::first(Tile::kWarps ? Tile::lane_n(lane) : min(thread / Tile::kLanesM, Tile::kLanesN - 1)) +
                 (Tile::kWarps ? warp / kDown * Tile::WN : 0);
    }
};

// A thread's outputs into C: four rows at once where C's address, ld and edge allow.
template <class Tile, class Parts>
__device__ __forceinline__ void store_boxes(const Problem &problem, const BoxPlace &place, int thread,
                                            const float (&acc)[Tile::TN][Tile::TM]) {
    using A = typename Parts::A;
    using B = typename Parts::B;
    const BoxThread<Tile, A, B> mine(thread);
    const Epilogue epilogue(problem); // read again: some registers less while tiles are multiplied
    const int row = place.row * Tile::BM + mine.row, column = place.column * Tile::BN + mine.column;
    const int m_left = static_cast<int>(problem.m) - row, n_left = static_cast<int>(problem.n) - column;
    float *const c = problem.c.matrix(place.batch) + row + column * problem.c.ld;
    const bool wide = reinterpret_cast<uintptr_t>(c) % 16 == 0 && problem.c.ld % 4 == 0 && problem.m % 4 == 0;
    const auto each_column = [&](auto visit) {
#pragma unroll
        for (int j = 0; j < Tile::TN; ++j)
            if (B::step(j) < n_left)
                visit(c + B::step(j) * problem.c.ld, acc[j]);
    };
    const auto each_quad = [&](auto visit) {
        each_column([&](float *target, const float *sum) {
#pragma unroll
            for (int i = 0; i < Tile::TM; i += 4)
                if (A::step(i) < m_left)
                    visit(target + A::step(i), float4{sum[i], sum[i + 1], sum[i + 2], sum[i + 3]});
        });
    };
    if (wide && !epilogue.reads_c())
        each_quad([&](float *target, const float4 &sum) { epilogue.put4(target, sum); });
    else if (wide)
        each_quad([&](float *target, const float4 &sum) { epilogue.store4(target, sum); });
    else
        each_column([&](float *target, const float *sum) {
#pragma unroll
            for (int i = 0; i < Tile::TM; ++i)
                if (A::step(i) < m_left)
                    epilogue.store(target + A::step(i), sum[i]);
        });
}

#if PYBLAS_HAS_WGMMA

// A box four bytes at a time by so many threads, from operands that the copy engine cannot read. What is outside and
// inside the last quad of k becomes zeros.
template <int Threads, class Side>
__device__ __forceinline__ void copy_box_by_threads(float *tile, const float *source, int64_t ld, int x_left,
                                                    int k_left, int thread) {
    const int k_used = whole_quads(k_left);
#pragma unroll 1
    for (int number = thread; number < Side::kLength * Side::kColumns; number += Threads) {
        const int i = number % Side::kLength, j = number / Side::kLength;
        const int x = Side::kContiguous ? i : j, k = Side::kContiguous ? j : i;
        if (k < k_used)
            ptx::copy_async<4>(tile + Side::at(i, j), source + j * ld + i, x < x_left && k < k_left);
    }
}

// Where a stage's boxes come from, and when they are there: asked for by one thread, or copied by so many.
template <class Tile, class Parts, int Threads>
__device__ __forceinline__ void load_boxes(const Problem &problem, const BoxPlan &plan, const BoxPlace &place, int k,
                                           int thread, float *stage, uint64_t *come) {
    using A = typename Parts::A;
    using B = typename Parts::B;
    const int row = place.row * Tile::BM, column = place.column * Tile::BN;
    float *const tile_b = stage + Parts::kFloatsA;
    if (plan.mapped) {
        ptx::expect(come, A::kBytes + B::kBytes);
        const int batch_a = plan.a.first + place.batch * plan.a.step,
                  batch_b = plan.b.first + place.batch * plan.b.step;
        ptx::copy_box(stage, &plan.a.map, A::kContiguous ? row : k, A::kContiguous ? k : row / (A::kByQuads ? 4 : 1), 0,
                      batch_a, come);
        ptx::copy_box(tile_b, &plan.b.map, B::kContiguous ? column : k, B::kContiguous ? k : column, 0, batch_b, come);
        ptx::arrive(come);
    } else {
        const int k_left = static_cast<int>(problem.k) - k;
        copy_box_by_threads<Threads, A>(stage, view_a(problem, place.batch).at(row, k), problem.a.ld,
                                        static_cast<int>(problem.m) - row, k_left, thread);
        copy_box_by_threads<Threads, B>(tile_b, view_b(problem, place.batch).at(column, k), problem.b.ld,
                                        static_cast<int>(problem.n) - column, k_left, thread);
        ptx::arrive_after_copies(come);
    }
}

#endif

template <class Tile, bool ContiguousM, bool ContiguousN>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident)
    box_tile(__grid_constant__ const Problem problem, __grid_constant__ const BoxPlan plan) {
#if PYBLAS_HAS_WGMMA
    using Parts = BoxParts<Tile, ContiguousM, ContiguousN>;
    using A = typename Parts::A;
    using B = typename Parts::B;

    // place
    const int thread = static_cast<int>(threadIdx.x);
    float *const smem = reinterpret_cast<float *>(dynamic_shared());
    const Ring ring = open_ring<Parts::kStages>(smem + Parts::kStages * Parts::kStageFloats,
                                                plan.mapped ? 1 : Tile::kThreads, Tile::kThreads);
    __syncthreads();
    if (plan.asks_early && static_cast<int>(blockIdx.x) < plan.tiles) {
        const BoxPlace place = place_box(plan, static_cast<int>(blockIdx.x));
        const int row = place.row * Tile::BM, column = place.column * Tile::BN;
        const int rows = min(static_cast<int>(problem.m) - row, Tile::BM);
        const int columns = min(static_cast<int>(problem.n) - column, Tile::BN);
        const int k = min(static_cast<int>(problem.k), 2 * Tile::BK);
        prefetch_columns(view_a(problem, place.batch).at(row, 0), problem.a.ld, ContiguousM ? rows : k,
                         ContiguousM ? k : rows, thread, Tile::kThreads);
        prefetch_columns(view_b(problem, place.batch).at(column, 0), problem.b.ld, ContiguousN ? columns : k,
                         ContiguousN ? k : columns, thread, Tile::kThreads);
    }
    ptx::wait_for_predecessors();
    int tile_stages = 0;
    {
        const Epilogue epilogue(problem);
        if (epilogue.idle())
            return;
        if (epilogue.depth() > 0)
            tile_stages = (static_cast<int>(problem.k) + Tile::BK - 1) / Tile::BK;
    }
    const bool loads = (!plan.mapped || thread == 0) && tile_stages > 0;

    // The boxes of the stage that is ahead of one of this tile's by that many, into a slot that all have left.
    const auto load = [&](int number, int stage, int slot, uint32_t parity) {
        const int tiles_on = static_cast<int>(static_cast<unsigned>(stage) / static_cast<unsigned>(tile_stages));
        number += tiles_on * plan.blocks;
        if (number < plan.tiles) {
            ptx::wait(ring.left + slot, parity);
            load_boxes<Tile, Parts, Tile::kThreads>(problem, plan, place_box(plan, number),
                                                    (stage - tiles_on * tile_stages) * Tile::BK, thread,
                                                    smem + slot * Parts::kStageFloats, ring.come + slot);
        }
    };
    int number = static_cast<int>(blockIdx.x);
    if (loads)
#pragma unroll 1
        for (int slot = 0; slot < Parts::kStages - 1; ++slot)
            load(number, slot, slot, 1);

    const BoxThread<Tile, A, B> mine(thread);
    const int place_a = A::place(mine.row), place_b = B::place(mine.column);
    using Held = std::conditional_t<Tile::kHoldsN, B, A>;
    using Streamed = std::conditional_t<Tile::kHoldsN, A, B>;
    const int place_held = Tile::kHoldsN ? place_b : place_a, place_streamed = Tile::kHoldsN ? place_a : place_b;
    Turn turn{0, 0};
    for (; number < plan.tiles; number += plan.blocks) {
        // multiply; threads whose outputs are all outside only take part in what the others wait for
        const BoxPlace place = place_box(plan, number);
        const bool works = A::x_of(place_a) < static_cast<int>(problem.m) - place.row * Tile::BM &&
                           B::x_of(place_b) < static_cast<int>(problem.n) - place.column * Tile::BN &&
                           (Tile::kWorkers == Tile::kThreads || thread < Tile::kWorkers);
        float acc[Tile::TN][Tile::TM] = {};
        const auto sum = [&](int i, int j) -> float & { return Tile::kHoldsN ? acc[i][j] : acc[j][i]; };
#pragma unroll 1
        for (int stage = 0; stage < tile_stages; ++stage, turn.next(Parts::kStages)) {
            if (loads)
                load(number, stage + Parts::kStages - 1, turn.slot == 0 ? Parts::kStages - 1 : turn.slot - 1,
                     turn.parity ^ (turn.slot == 0));
            ptx::wait(ring.come + turn.slot, turn.parity);
            const float *const tile = smem + turn.slot * Parts::kStageFloats;
            const float *const tile_held = tile + (Tile::kHoldsN ? Parts::kFloatsA : 0);
            const float *const tile_streamed = tile + (Tile::kHoldsN ? 0 : Parts::kFloatsA);
            if constexpr (!Tile::kTight) {
                const int steps = min((static_cast<int>(problem.k) - stage * Tile::BK + 3) / 4, Tile::kSteps);
#pragma unroll Tile::kUnroll
                for (int step = 0; step < (works ? steps : 0); ++step)
                    multiply_quads<Held, Streamed>(tile_held, place_held, tile_streamed, place_streamed, step, sum);
            } else if (works) { // the same with a register less, which takes longer in the other tiles
#pragma unroll Tile::kUnroll
                for (int step = 0; step < Tile::kSteps; ++step) {
                    if (stage * Tile::BK + 4 * step >= static_cast<int>(problem.k))
                        break;
                    multiply_quads<Held, Streamed>(tile_held, place_held, tile_streamed, place_streamed, step, sum);
                }
            }
            // Each lane for itself. Where both sides lie along k, the compiler moves multiply-adds to where their
            // registers meet in a bank, unless it is asked first whether the slot is filled again.
            constexpr bool kAsks = !Held::kContiguous && !Streamed::kContiguous;
            if (!kAsks || number + plan.blocks < plan.tiles || stage + Parts::kStages < tile_stages)
                ptx::arrive(ring.left + turn.slot);
        }
        if (number + plan.blocks >= plan.tiles)
            ptx::launch_dependents();

        // store
        if (works)
            store_boxes<Tile, Parts>(problem, place_box(plan, number), thread, acc);
    }
#endif
}

// ---- what is launched ----------------------------------------------------------------------------------------------

// Whether the copy engine can read both operands, as far as that does not depend on addresses.
inline bool steps_fit(const Problem &problem) {
    const auto fits = [&](const Operand &operand) {
        return !operand.array && operand.ld % 4 == 0 && (problem.batch == 1 || operand.stride % 4 == 0);
    };
    return fits(problem.a) && fits(problem.b) && (problem.transa == Op::N || problem.m % 4 == 0);
}

template <class Tile>
Work box_work(const Problem &problem, const Device &device, int resident) {
    const TileGrid grid = TileGrid::of(problem, Tile::BM, Tile::BN);
    const double rows = static_cast<double>(grid.rows), columns = static_cast<double>(grid.columns);
    const double m = static_cast<double>(problem.m) / rows, n = static_cast<double>(problem.n) / columns; // of a tile
    const double k = static_cast<double>((problem.k + 3) / 4 * 4);
    // Of the warps of a tile: those with nothing inside leave the multiply-adds to the others.
    const double warps = static_cast<double>((problem.m + Tile::WM - 1) / Tile::WM) / rows *
                         static_cast<double>((problem.n + Tile::WN - 1) / Tile::WN) / columns * Tile::kThreads / 32 /
                         (Tile::BM / Tile::WM * (Tile::BN / Tile::WN));
    Work work;
    work.spread(static_cast<double>(grid.blocks), resident, device);
    work.blocks = std::min(work.blocks, 1.0 * resident * device.multiprocessors); // each takes tile after tile
    work.move(problem);
    work.steps = k;
    work.folds = std::ceil(k / Tile::BK);
    work.flops = 2.0 * 32 * warps * Tile::TM * Tile::TN * k;
    // Boxes are filled to their end, with zeros; by threads, too, as far as these look. What is contiguous along k
    // counts twice: it takes more reads and moves on its way to registers.
    const double boxes = work.folds * Tile::BK * (Tile::BM + Tile::BN); // floats
    if (steps_fit(problem)) {
        const double pieces_a = problem.transa == Op::T ? 2 : 1, pieces_b = problem.transb == Op::N ? 2 : 1;
        work.copies = work.folds * Tile::BK * (pieces_a * Tile::BM + pieces_b * Tile::BN) / 4;
    } else {
        work.narrow = (Tile::BM + Tile::BN) * k;
        work.trips = boxes / Tile::kThreads;
    }
    work.bytes = 4 * ((m + n) * k + m * n);
    if (problem.c.ld % 4 != 0)
        work.single = m / Tile::BM * n / Tile::BN;
    return work;
}

// How the engine turns quads.
template <class Side>
constexpr CUtensorMapSwizzle swizzle_of() {
    return Side::kSwizzled ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE;
}

// Tiles for at most so many blocks, and the maps of both operands.
template <class Tile, bool ContiguousM, bool ContiguousN>
Status plan_boxes(const Problem &problem, const Device &device, int blocks, BoxPlan *plan) {
    using A = typename BoxParts<Tile, ContiguousM, ContiguousN>::A;
    using B = typename BoxParts<Tile, ContiguousM, ContiguousN>::B;
    const TileGrid grid = TileGrid::of(problem, Tile::BM, Tile::BN);
    *plan = {};
    plan->rows = static_cast<int>(grid.rows), plan->columns = static_cast<int>(grid.columns);
    plan->tiles = static_cast<int>(grid.blocks);
    plan->blocks = std::min(plan->tiles, blocks);
    plan->mapped = problem.k > 0 && (!A::kByQuads || problem.m % 4 == 0) && can_map(problem.a, problem.batch) &&
                   can_map(problem.b, problem.batch);
    // Addresses that are asked for before the kernel ahead has ended must be sure to be right: the host's, and read.
    plan->asks_early = device.starts_early && plan->mapped && problem.alpha.known() && problem.alpha.value != 0.0f;
    if (!plan->mapped)
        return kSuccess;
    PYBLAS_TRY(map_matrices(problem.a, ContiguousM ? problem.m : problem.k, ContiguousM ? problem.k : problem.m,
                            problem.batch, A::kLength, A::kColumns, A::kByQuads, swizzle_of<A>(), &plan->a));
    return map_matrices(problem.b, ContiguousN ? problem.n : problem.k, ContiguousN ? problem.k : problem.n,
                        problem.batch, B::kLength, B::kColumns, B::kByQuads, swizzle_of<B>(), &plan->b);
}

} // namespace pyblas
