// smem_tile: a block brings a 32 x 32 tile of op(A) and of op(B) to shared memory, every thread makes 32 multiply-adds
// from them, and the block moves on along k. Global memory is asked 32 times less often than by naive.
//
//              B tile: 32 k x 32 n
//     A tile  +-------+
//    +-------+|       |      barrier - load - barrier - multiply, for each 32 of k
//    | m x k || C     |      2 shared loads (one of them a broadcast) for one multiply-add
//    +-------++-------+
//
// 1024 threads, 8448 bytes of shared memory: a row of 33 floats keeps both ways of filling a tile free of bank
// conflicts. Refuses nothing. Third rung of the ladder.
#include "kernel.hpp"

#include "../device/epilogue.cuh"
#include "../device/launch.cuh"
#include "../device/load.cuh"
#include "../device/tile.cuh"

namespace pyblas {
namespace {

using Tile = BlockTile<32, 32, 32, 1, 1>;

__global__ void __launch_bounds__(Tile::kThreads)
    smem_tile(__grid_constant__ const Problem problem, const TileGrid grid) {
    // place
    const TilePlace place = place_tile(grid);
    const Epilogue epilogue(problem);
    if (!place.exists || epilogue.idle())
        return;
    const int64_t block_row = place.row * Tile::BM, block_column = place.column * Tile::BN;
    const int m_left = part(problem.m - block_row, Tile::BM), n_left = part(problem.n - block_column, Tile::BN);
    const int row = static_cast<int>(threadIdx.x) % Tile::BM, column = static_cast<int>(threadIdx.x) / Tile::BM;

    float acc = 0.0f;
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
            for (int k = 0; k < Tile::BK; ++k)
                acc = fmaf(smem_a[k][row], smem_b[k][column], acc);

            // advance: nobody may still read when the next tile is written
            __syncthreads();
        }
    }

    // store
    if (row < m_left && column < n_left)
        epilogue.store(problem.c.matrix(place.batch) + block_row + row + (block_column + column) * problem.c.ld, acc);
}

double cost(const Problem &problem, const Device &device) {
    constexpr TileRate kRate{2, {0.099, 0.098, 0.099, 0.098}, 0.5, 1e-6, 0};
    return predict(problem, device, Tile::BM, Tile::BN, kRate, kRate.resident);
}

Status launch_smem_tile(const Problem &problem, const Launch &launch_on) {
    const TileGrid grid = TileGrid::of(problem, Tile::BM, Tile::BN);
    return launch<smem_tile>({grid.blocks, Tile::kThreads, 0, launch_on.stream}, problem, grid);
}

constexpr Footprint kFootprint{Tile::kThreads, 1, 4 * (Tile::BM + 1 + Tile::BN + 1) * Tile::BK};

constexpr Kernel kRows[] = {
    {"smem_tile_32x32x32", "smem_tile", Engine::gpu, kFp32Modes, 75, false, refuses_nothing, nullptr, cost,
     launch_smem_tile, false, kFootprint},
};

} // namespace

KernelRows smem_tile_rows() {
    return rows(kRows);
}

} // namespace pyblas
