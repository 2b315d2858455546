// thread_tile_2d: a thread owns TM x TN outputs. For each k it reads TM values of op(A) and TN of op(B) from shared
// memory and makes their outer product in registers: TM + TN loads for TM * TN multiply-adds.
//
//            B tile: BK x BN
//           +----------------+         a thread's rows lie BM / TM apart and its columns BN / TN apart, so the
//    A tile |  b   b   b   b |         lanes of a warp read neighbouring floats and store neighbouring outputs
//   +------+|a x . x . x . x |
//   | BM x ||. . . . . . . . |         barrier - load - barrier - multiply, as before
//   | BK   ||a x . x . x . x |
//   +------++----------------+
//
// 256 threads; 128x128x8: 8256 bytes of shared memory, 64x64x16: 8320. Refuses nothing. Fifth rung of the ladder.
#include "kernel.hpp"

#include "../device/epilogue.cuh"
#include "../device/launch.cuh"
#include "../device/load.cuh"
#include "../device/tile.cuh"

namespace pyblas {
namespace {

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 2)
    thread_tile_2d(__grid_constant__ const Problem problem, const TileGrid grid) {
    constexpr int kThreadsM = Tile::kThreadsM, kThreadsN = Tile::kThreadsN;

    // place
    const TilePlace place = place_tile(grid);
    const Epilogue epilogue(problem);
    if (!place.exists || epilogue.idle())
        return;
    const int64_t block_row = place.row * Tile::BM, block_column = place.column * Tile::BN;
    const int m_left = part(problem.m - block_row, Tile::BM), n_left = part(problem.n - block_column, Tile::BN);
    const int row = static_cast<int>(threadIdx.x) % kThreadsM, column = static_cast<int>(threadIdx.x) / kThreadsM;

    float acc[Tile::TN][Tile::TM] = {};
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
                float frag_a[Tile::TM], frag_b[Tile::TN];
#pragma unroll
                for (int i = 0; i < Tile::TM; ++i)
                    frag_a[i] = smem_a[k][row + i * kThreadsM];
#pragma unroll
                for (int j = 0; j < Tile::TN; ++j)
                    frag_b[j] = smem_b[k][column + j * kThreadsN];
#pragma unroll
                for (int j = 0; j < Tile::TN; ++j)
#pragma unroll
                    for (int i = 0; i < Tile::TM; ++i)
                        acc[j][i] = fmaf(frag_a[i], frag_b[j], acc[j][i]);
            }

            // advance
            __syncthreads();
        }
    }

    // store
    float *gmem_c = problem.c.matrix(place.batch) + block_row + row + (block_column + column) * problem.c.ld;
#pragma unroll
    for (int j = 0; j < Tile::TN; ++j)
#pragma unroll
        for (int i = 0; i < Tile::TM; ++i)
            if (row + i * kThreadsM < m_left && column + j * kThreadsN < n_left)
                epilogue.store(gmem_c + i * kThreadsM + j * kThreadsN * problem.c.ld, acc[j][i]);
}

using Tile64 = BlockTile<64, 64, 16, 4, 4>;
using Tile128 = BlockTile<128, 128, 8, 8, 8>;

double cost64(const Problem &problem, const Device &device) {
    constexpr TileRate kRate{2, {0.273, 0.286, 0.274, 0.286}, 0.6, 1e-6, 0};
    return predict(problem, device, Tile64::BM, Tile64::BN, kRate, kRate.resident);
}

double cost128(const Problem &problem, const Device &device) {
    constexpr TileRate kRate{2, {0.411, 0.415, 0.410, 0.414}, 0.67, 1e-6, 0};
    return predict(problem, device, Tile128::BM, Tile128::BN, kRate, kRate.resident);
}

template <class Tile>
Status launch_thread_tile_2d(const Problem &problem, const Launch &launch_on) {
    const TileGrid grid = TileGrid::of(problem, Tile::BM, Tile::BN);
    return launch<thread_tile_2d<Tile>>({grid.blocks, Tile::kThreads, 0, launch_on.stream}, problem, grid);
}

template <class Tile>
constexpr Footprint kFootprint{Tile::kThreads, 2, 4 * (Tile::BM + 1 + Tile::BN + 1) * Tile::BK};

constexpr Kernel kRows[] = {
    {"thread_tile_2d_64x64x16", "thread_tile_2d", Engine::gpu, kFp32Modes, 75, false, refuses_nothing, nullptr, cost64,
     launch_thread_tile_2d<Tile64>, false, kFootprint<Tile64>},
    {"thread_tile_2d_128x128x8", "thread_tile_2d", Engine::gpu, kFp32Modes, 75, false, refuses_nothing, nullptr,
     cost128, launch_thread_tile_2d<Tile128>, false, kFootprint<Tile128>},
};

} // namespace

KernelRows thread_tile_2d_rows() {
    return rows(kRows);
}

} // namespace pyblas
