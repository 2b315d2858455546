// thread_tile_1d: a thread owns a strip of 8 outputs of one row of C. A value of op(A) that it has read feeds 8
// multiply-adds, so shared memory is asked 9 times for 8 of them, where smem_tile asks 16 times.
//
//            B tile: 8 k x 64 n
//           +----------------+         lanes run down the rows: op(A) is one line of shared memory for a warp, and
//    A tile |b   b   b   b   |         each value of op(B) one word for all lanes
//   +------++----------------+
//   | 64 m ||x . x . x . x . |         barrier - load - barrier - multiply, as before
//   | 8 k  a|                |
//   +------++----------------+
//
// 512 threads, 64x64x8: 4160 bytes of shared memory. Refuses nothing. Fourth rung of the ladder.
#include "kernel.hpp"

#include "../device/epilogue.cuh"
#include "../device/launch.cuh"
#include "../device/load.cuh"
#include "../device/tile.cuh"

namespace pyblas {
namespace {

using Tile = BlockTile<64, 64, 8, 1, 8>;

// Told how many blocks to make room for, the compiler would take all registers that this leaves, and be slower.
__global__ void __launch_bounds__(Tile::kThreads)
    thread_tile_1d(__grid_constant__ const Problem problem, const TileGrid grid) {
    constexpr int kThreadsN = Tile::BN / Tile::TN;

    // place
    const TilePlace place = place_tile(grid);
    const Epilogue epilogue(problem);
    if (!place.exists || epilogue.idle())
        return;
    const int64_t block_row = place.row * Tile::BM, block_column = place.column * Tile::BN;
    const int m_left = part(problem.m - block_row, Tile::BM), n_left = part(problem.n - block_column, Tile::BN);
    const int row = static_cast<int>(threadIdx.x) % Tile::BM, column = static_cast<int>(threadIdx.x) / Tile::BM;

    float acc[Tile::TN] = {};
    if (const int64_t depth = epilogue.depth()) {
        __shared__ float smem_a[Tile::BK][Tile::BM + 1], smem_b[Tile::BK][Tile::BN + 1];
        const View a = view_a(problem, place.batch), b = view_b(problem, place.batch);
        for (int64_t k0 = 0; k0 < depth; k0 += Tile::BK) {
            // load
            const int k_left = part(depth - k0, Tile::BK);
            load_tile<Tile::BM, Tile::BK, Tile::kThreads>(smem_a, a, block_row, k0, m_left, k_left);
            load_tile<Tile::BN, Tile::BK, Tile::kThreads>(smem_b, b, block_column, k0, n_left, k_left);
            __syncthreads();

            // multiply
#pragma unroll
            for (int k = 0; k < Tile::BK; ++k) {
                const float value = smem_a[k][row];
#pragma unroll
                for (int j = 0; j < Tile::TN; ++j)
                    acc[j] = fmaf(value, smem_b[k][column + j * kThreadsN], acc[j]);
            }

            // advance
            __syncthreads();
        }
    }

    // store
    float *gmem_c = problem.c.matrix(place.batch) + block_row + row + (block_column + column) * problem.c.ld;
#pragma unroll
    for (int j = 0; j < Tile::TN; ++j)
        if (row < m_left && column + j * kThreadsN < n_left)
            epilogue.store(gmem_c + j * kThreadsN * problem.c.ld, acc[j]);
}

double cost(const Problem &problem, const Device &device) {
    constexpr TileRate kRate{4, {0.172, 0.179, 0.163, 0.171}, 0.6, 1e-6, 0};
    return predict(problem, device, Tile::BM, Tile::BN, kRate, kRate.resident);
}

Status launch_thread_tile_1d(const Problem &problem, const Launch &launch_on) {
    const TileGrid grid = TileGrid::of(problem, Tile::BM, Tile::BN);
    return launch<thread_tile_1d>({grid.blocks, Tile::kThreads, 0, launch_on.stream}, problem, grid);
}

constexpr Footprint kFootprint{Tile::kThreads, 2, 4 * (Tile::BM + 1 + Tile::BN + 1) * Tile::BK};

constexpr Kernel kRows[] = {
    {"thread_tile_1d_64x64x8", "thread_tile_1d", Engine::gpu, kFp32Modes, 75, false, refuses_nothing, nullptr, cost,
     launch_thread_tile_1d, false, kFootprint},
};

} // namespace

KernelRows thread_tile_1d_rows() {
    return rows(kRows);
}

} // namespace pyblas
