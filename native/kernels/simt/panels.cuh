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

// Operands that were packed into panels: one tile wide, in k as long as whole stages, padded with zeros.
struct Panels {
    const float *a, *b;
    int64_t step_a, step_b; // floats from a panel to the next
};

constexpr int kPackThreads = 256, kPackFloats = 4096; // of one block

// One operand, or the part of it that a launch works on.
struct Source {
    View view;
    int64_t extent, depth; // of x, from the part's first on, and of k
    int64_t padded;        // k in whole stages
    int64_t blocks_x;
    float *panels;
};

// A block turns kWide x of kPackFloats / kWide k.
template <int X, bool ContiguousX>
__global__ void __launch_bounds__(kPackThreads)
    pack_panels(__grid_constant__ const Problem problem, __grid_constant__ const Source source) {
    constexpr int kWide = X % 64 == 0 ? 64 : X % 32 == 0 ? 32 : 16, kDeep = kPackFloats / kWide;
    __shared__ float smem[ContiguousX ? 1 : kWide][kDeep + 1];
    ptx::launch_dependents();
    if (Epilogue(problem).depth() == 0)
        return; // alpha == 0: nothing may be read
    const int64_t block = block_number(), across = block % source.blocks_x;
    const int64_t x0 = across * kWide, k0 = block / source.blocks_x * kDeep;
    const int thread = static_cast<int>(threadIdx.x);
    if constexpr (!ContiguousX) {
        const float *const from = source.view.at(x0, k0);
        const int k = thread % kDeep, x_left = part(source.extent - x0, kWide), k_left = part(source.depth - k0, kDeep);
#pragma unroll
        for (int i = 0; i < kPackFloats / kPackThreads; ++i) {
            const int x = thread / kDeep + i * (kPackThreads / kDeep);
            smem[x][k] = x < x_left && k < k_left ? from[x * source.view.step_x + k] : 0.0f;
        }
        __syncthreads();
    }
    float *const panel = source.panels + x0 / X * source.padded * X + x0 % X;
#pragma unroll
    for (int i = 0; i < kPackFloats / kPackThreads; ++i) {
        const int element = thread + i * kPackThreads, x = element % kWide;
        const int64_t k = k0 + element / kWide;
        if (k >= source.padded)
            break;
        float value;
        if constexpr (ContiguousX)
            value = x0 + x < source.extent && k < source.depth ? *source.view.at(x0 + x, k) : 0.0f;
        else
            value = smem[x][element / kWide];
        panel[k * X + x] = value;
    }
}

// How many tiles of each side are packed and multiplied at once, as many as the workspace holds; parts of about the
// same size.
struct Parts {
    int64_t rows, columns;

    static Parts of(const TileGrid &grid, int64_t tile_m, int64_t tile_n, int64_t padded, size_t workspace) {
        const int64_t rows = static_cast<int64_t>(workspace / sizeof(float)) / padded; // of both sides
        const auto most = [](int64_t room, int64_t tile, int64_t tiles) {
            const int64_t fit = std::max<int64_t>(1, room / tile), count = (tiles + fit - 1) / fit;
            return (tiles + count - 1) / count;
        };
        const int64_t high = most(std::max(rows / 2, rows - grid.columns * tile_n), tile_m, grid.rows);
        return {high, most(rows - high * tile_m, tile_n, grid.columns)};
    }
};

template <int X>
Status pack(const Problem &problem, const View &view, int64_t first, int64_t extent, int64_t padded, float *panels,
            CUstream_st *stream) {
    constexpr int kWide = X % 64 == 0 ? 64 : X % 32 == 0 ? 32 : 16, kDeep = kPackFloats / kWide;
    const int64_t blocks_x = (extent + X - 1) / X * (X / kWide);
    const Source source{{view.at(first, 0), view.step_x, view.step_k}, extent, problem.k, padded, blocks_x, panels};
    const Grid grid{blocks_x * ((padded + kDeep - 1) / kDeep), kPackThreads, 0, stream};
    return view.contiguous_x() ? launch<pack_panels<X, true>>(grid, problem, source)
                               : launch<pack_panels<X, false>>(grid, problem, source);
}

} // namespace pyblas
