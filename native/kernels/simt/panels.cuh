// Panels: operands turned into tiles that lie one behind the other, [tile of x][k][x of the tile], padded with zeros. x
// runs along C: rows for A, columns for B.
#pragma once

#include <algorithm>

#include "../device/epilogue.cuh"
#include "../device/launch.cuh"
#include "../device/load.cuh"
#include "../device/ptx.cuh"
#include "../device/tile.cuh"

namespace pyblas {

constexpr int kPackThreads = 256, kPackWide = 64; // of x, and of k, in one block

// One operand, or the part of it that a launch works on.
struct Source {
    View view;              // of the first matrix, from the part's first x on
    int64_t stride;         // to the next one
    int64_t extent;         // of x
    int64_t tiles, tile;    // of a matrix, and x in each
    int64_t blocks, across; // that pack it, and those of them beside each other along x
    float *panels;

    static Source of(const View &view, int64_t stride, int64_t matrices, int64_t extent, int64_t tile, int64_t padded,
                     float *panels) {
        const int64_t tiles = (extent + tile - 1) / tile, across = (tiles * tile + kPackWide - 1) / kPackWide;
        return {view,   stride, extent, tiles, tile, matrices * across * ((padded + kPackWide - 1) / kPackWide),
                across, panels};
    }
};

struct Sources {
    Source a, b;
    int64_t padded; // k in whole stages
};

__global__ void __launch_bounds__(kPackThreads)
    pack_panels(__grid_constant__ const Problem problem, __grid_constant__ const Sources sources) {
#if PYBLAS_HAS_WGMMA
    constexpr int kEach = kPackWide * kPackWide / kPackThreads, kRows = kPackThreads / kPackWide;
    __shared__ float smem[kPackWide][kPackWide + 1];
    ptx::launch_dependents();
    ptx::wait_for_predecessors();
    if (Epilogue(problem).depth() == 0)
        return; // alpha == 0: nothing may be read
    int64_t block = block_number();
    const bool of_a = block < sources.a.blocks;
    if (!of_a)
        block -= sources.a.blocks;
    const Source &source = of_a ? sources.a : sources.b;
    if (block >= source.blocks)
        return;
    const int64_t deep = (sources.padded + kPackWide - 1) / kPackWide;
    const int64_t matrix = block / (source.across * deep), inside = block - matrix * source.across * deep;
    const int64_t x0 = inside % source.across * kPackWide, k0 = inside / source.across * kPackWide;
    const float *const from = source.view.at(x0, k0) + matrix * source.stride;
    const int along = static_cast<int>(threadIdx.x) % kPackWide, first = static_cast<int>(threadIdx.x) / kPackWide;
    const int x_left = part(source.extent - x0, kPackWide), k_left = part(problem.k - k0, kPackWide);
    float value[kEach];
    const auto load = [&](int x, int k, int64_t step, int i) {
        value[i] = x < x_left && k < k_left ? from[along + (first + i * kRows) * step] : 0.0f;
    };
    if (source.view.contiguous_x()) {
#pragma unroll
        for (int i = 0; i < kEach; ++i)
            load(along, first + i * kRows, source.view.step_k, i);
    } else {
#pragma unroll
        for (int i = 0; i < kEach; ++i)
            load(first + i * kRows, along, source.view.step_x, i);
#pragma unroll
        for (int i = 0; i < kEach; ++i)
            smem[first + i * kRows][along] = value[i];
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kEach; ++i)
            value[i] = smem[along][first + i * kRows];
    }
    const int64_t x = x0 + along, tile = x / source.tile;
    if (tile >= source.tiles)
        return;
    float *const panel =
        source.panels + (matrix * source.tiles + tile) * source.tile * sources.padded + (x - tile * source.tile);
#pragma unroll
    for (int i = 0; i < kEach; ++i)
        if (const int64_t k = k0 + first + i * kRows; k < sources.padded)
            panel[k * source.tile] = value[i];
#endif
}

// How many tiles of each side are multiplied at once, as many as the workspace holds of those that are packed; parts of
// about the same size.
struct Parts {
    int64_t rows, columns;

    static Parts of(const TileGrid &grid, int64_t tile_m, int64_t tile_n, int64_t padded, size_t workspace,
                    bool packs_a, bool packs_b) {
        const int64_t rows = static_cast<int64_t>(workspace / sizeof(float)) / padded; // of both sides
        const auto most = [](int64_t room, int64_t tile, int64_t tiles) {
            const int64_t fit = std::max<int64_t>(1, room / tile), count = (tiles + fit - 1) / fit;
            return (tiles + count - 1) / count;
        };
        const int64_t least = packs_b ? std::max(rows / 2, rows - grid.columns * tile_n) : rows;
        const int64_t high = packs_a ? most(least, tile_m, grid.rows) : grid.rows;
        const int64_t left = packs_a ? rows - high * tile_m : rows;
        return {high, packs_b ? most(left, tile_n, grid.columns) : grid.columns};
    }
};

} // namespace pyblas
