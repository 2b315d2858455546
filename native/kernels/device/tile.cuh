// Tiles of C: their shapes as types, and which block works on which tile.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "cost.hpp"
#include "kernel.hpp"
#include "launch.cuh"

namespace pyblas {

// A block of BM x BN outputs, BK deep at a time, TM x TN of them in each thread.
template <int BM_, int BN_, int BK_, int TM_, int TN_>
struct BlockTile {
    static constexpr int BM = BM_, BN = BN_, BK = BK_, TM = TM_, TN = TN_;
    static constexpr int kThreadsM = BM / TM, kThreadsN = BN / TN;
    static constexpr int kThreads = kThreadsM * kThreadsN;
    static_assert(BM % TM == 0 && BN % TN == 0, "threads tile the block");
    static_assert(kThreads % 32 == 0 && kThreads <= 1024, "whole warps, no more than a block can have");
};

// The same, with the block cut into warps of WM x WN outputs, and stages of A and B on their way. Slices such blocks of
// warps hold the same outputs and share the k of each stage.
template <int BM_, int BN_, int BK_, int WM_, int WN_, int TM_, int TN_, int Stages_, int Resident_, int Slices_ = 1>
struct WarpTile : BlockTile<BM_, BN_, BK_, TM_, TN_> {
    static constexpr int WM = WM_, WN = WN_, kStages = Stages_, kSlices = Slices_;
    static constexpr int kSliceThreads = BlockTile<BM_, BN_, BK_, TM_, TN_>::kThreads;
    static constexpr int kThreads = kSliceThreads * kSlices;

    static constexpr int kSliceK = BK_ / kSlices; // of a stage
    static constexpr int kResident = Resident_;   // blocks the register limit leaves room for on one multiprocessor
    static constexpr int kLanesM = WM / TM_, kLanesN = WN / TN_;

    // Eight neighbouring lanes read four quads along one side and two along the other: a 128-bit shared read of the
    // warp then takes two passes, where a row of eight would take three or four.
    static constexpr int kLonger = kLanesM > kLanesN ? kLanesM : kLanesN;
    static __host__ __device__ constexpr int along_longer(int lane) { return lane / 2 % kLonger; }
    static __host__ __device__ constexpr int along_shorter(int lane) { return lane % 2 + lane / (2 * kLonger) * 2; }
    static __host__ __device__ constexpr int lane_m(int lane) {
        return kLanesM == kLonger ? along_longer(lane) : along_shorter(lane);
    }
    static __host__ __device__ constexpr int lane_n(int lane) {
        return kLanesM == kLonger ? along_shorter(lane) : along_longer(lane);
    }

    static_assert(BM_ % WM == 0 && BN_ % WN == 0, "warps tile the block");
    static_assert(BK_ % kSlices == 0, "slices tile the stage");
    static_assert(kThreads <= 1024, "no more than a block can have");
    static_assert(kLanesM * kLanesN == 32, "lanes tile the warp");
    static_assert(TM_ % 2 == 0 && TN_ % 2 == 0, "fragments are read four at a time, or two");
    static_assert(kStages >= 2, "one stage to work on, one on its way");
};

// All tiles of a problem.
struct TileGrid {
    int64_t rows, columns; // tiles down and across one C
    int64_t blocks;        // of all batches

    static TileGrid of(const Problem &problem, int tile_m, int tile_n) {
        const int64_t rows = (problem.m + tile_m - 1) / tile_m, columns = (problem.n + tile_n - 1) / tile_n;
        return {rows, columns, rows * columns * problem.batch};
    }
};

struct TilePlace {
    int64_t batch, row, column; // row and column count tiles
    bool exists;
};

// Bands of Band tile rows are walked column by column, so that blocks running at the same time share rows of A and
// columns of B in L2.
template <int Band = 16>
__device__ __forceinline__ TilePlace place_tile(const TileGrid &grid, int64_t number) {
    const int64_t each = grid.rows * grid.columns;
    const int64_t batch = number / each;
    const int64_t inside = number - batch * each;
    const int64_t band = inside / (Band * grid.columns);
    const int64_t first = band * Band;
    const int64_t left = grid.rows - first;
    const int64_t height = left < Band ? left : Band;
    const int64_t step = inside - band * Band * grid.columns;
    const int64_t column = step / height;
    return {batch, first + step - column * height, column, number < grid.blocks};
}

template <int Band = 16>
__device__ __forceinline__ TilePlace place_tile(const TileGrid &grid) {
    return place_tile<Band>(grid, block_number());
}

// Blocks of one tile each, resident of them beside each other, that bring A and B in stages of BK. What lies along k is
// transposed on its way, float by float.
template <class Tile>
Work tile_work(const Problem &problem, const Device &device, int resident) {
    Work work;
    work.spread(static_cast<double>(TileGrid::of(problem, Tile::BM, Tile::BN).blocks), resident, device);
    work.move(problem);
    work.steps = static_cast<double>((problem.k + Tile::BK - 1) / Tile::BK * Tile::BK);
    work.flops = 2.0 * Tile::BM * Tile::BN * work.steps;
    const auto copies = [&](int side, bool along_k, const Operand &operand) {
        const double floats = side * work.steps;
        work.copies += along_k ? floats : floats / 4;
        if (!along_k && operand.ld % 4 != 0)
            work.narrow += floats;
    };
    copies(Tile::BM, problem.transa == Op::T, problem.a);
    copies(Tile::BN, problem.transb == Op::N, problem.b);
    work.trips = work.narrow / Tile::kThreads;
    if (problem.c.ld % 4 != 0)
        work.single = std::min(1.0, static_cast<double>(problem.m) / Tile::BM) *
                      std::min(1.0, static_cast<double>(problem.n) / Tile::BN);
    return work;
}

// Coefficients of a prediction, measured for each tile.
struct TileRate {
    int resident;         // blocks at work on one multiprocessor
    double efficiency[4]; // share of the multiply-add peak with that many everywhere, for ops NN, NT, TN, TT
    double alone;         // share of that rate which a block reaches by itself
    double seconds;       // lost between one wave of blocks and the next
    double narrow;        // more time, as a share, for each operand contiguous along C whose ld forbids wide loads
};

// Each operand once.
inline double bytes_moved(const Problem &problem) {
    const double m = static_cast<double>(problem.m), n = static_cast<double>(problem.n);
    const double k = static_cast<double>(problem.k), batch = static_cast<double>(problem.batch);
    const bool reads_c = !(problem.beta.known() && problem.beta.value == 0);
    return 4.0 * batch * (m * k + k * n + (reads_c ? 2 : 1) * m * n);
}

// Rows of C that are not aligned to quads are stored one by one, four floats apart in each instruction.
inline double narrow_store(const Problem &problem, const Device &device) {
    if (problem.c.ld % 4 == 0)
        return 0;
    return 3.6 * 4.0 * static_cast<double>(problem.m) * static_cast<double>(problem.n) *
           static_cast<double>(problem.batch) / device.bandwidth;
}

// Operations per second of one multiprocessor with count blocks on it.
inline double processor_rate(const Problem &problem, const Device &device, const TileRate &rate, double count) {
    const double efficiency = rate.efficiency[(problem.transa == Op::T ? 2 : 0) + (problem.transb == Op::T ? 1 : 0)];
    const bool narrow_a = problem.transa == Op::N && problem.a.ld % 4 != 0;
    const bool narrow_b = problem.transb == Op::T && problem.b.ld % 4 != 0;
    const double slower = 1 + rate.narrow * (narrow_a + narrow_b);
    const double full = rate.resident > 1 ? (count - 1) / (rate.resident - 1) : 1;
    return efficiency / slower * device.fp32_flops / device.multiprocessors * (rate.alone + (1 - rate.alone) * full);
}

// For each k, of a block that has little to do: copies, barriers and reads that nothing hides.
constexpr double kLatency = 21.5e-9; // seconds

// Whole waves of blocks, then what is left, spread over the multiprocessors; never faster than the bytes. fit: blocks
// that one multiprocessor has room for.
inline double predict(const Problem &problem, const Device &device, int tile_m, int tile_n, const TileRate &rate,
                      int fit) {
    const double blocks = static_cast<double>(TileGrid::of(problem, tile_m, tile_n).blocks);
    const double flops = 2.0 * tile_m * tile_n *
                         (static_cast<double>(problem.k) + 16); // of one block; filling the pipeline is like 16 of k
    const auto together = [&](double count) {                   // seconds of count blocks on one multiprocessor
        return rate.seconds + std::max(kLatency * (static_cast<double>(problem.k) + 16),
                                       count * flops / processor_rate(problem, device, rate, count));
    };
    const double resident = std::max(1, std::min(fit, rate.resident));
    const double slots = resident * device.multiprocessors;
    const double waves = std::floor(blocks / slots);
    const double last = std::ceil((blocks - waves * slots) / device.multiprocessors); // blocks on the fullest one
    const double seconds = waves * together(resident) + (last > 0 ? together(last) : 0);
    return kStartSeconds + std::max(seconds, bytes_moved(problem) / device.bandwidth) + narrow_store(problem, device);
}

} // namespace pyblas
