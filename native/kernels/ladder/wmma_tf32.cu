// wmma_tf32: smem_tile's walk with tensor cores. A warp multiplies whole matrices of 16 x 16 by 8 of k in one
// instruction; nvcuda::wmma hides which lane holds which element, so inputs come from shared memory and sums return
// there before they meet alpha and beta.
//
//              B tile: 32 k x 64 n
//     A tile  +-------+-------+
//    +-------+| warp 0| warp 2|    barrier - load - barrier - multiply, for each 32 of k
//    | m x k |+-------+-------+    a warp: 2 x 2 matrices of 16 x 16, 4 loads of a matrix for 4 multiplies
//    +-------+| warp 1| warp 3|
//             +-------+-------+
//
// Inputs are rounded to TF32: serves only the mode tf32. 128 threads, 18432 bytes of shared memory. Refuses nothing.
// Tenth rung of the ladder.
#include <mma.h>

#include "kernel.hpp"

#include "../device/epilogue.cuh"
#include "../device/launch.cuh"
#include "../device/load.cuh"
#include "../device/tile.cuh"

namespace pyblas {
namespace {

constexpr int BM = 64, BN = 64, BK = 32, kThreads = 128;
constexpr int kMatrix = 16, kDepth = 8; // of one multiply
constexpr int kWarp = 32;               // rows and columns of a warp
constexpr int kRow = BM + 8;            // floats of a row in shared memory
static_assert(BM == BN && BN * kRow <= 2 * BK * kRow, "one row for all, and C in place of the tiles");

__global__ void __launch_bounds__(kThreads, 3) wmma_tf32(__grid_constant__ const Problem problem, const TileGrid grid) {
#if PYBLAS_HAS_WARP_MULTIPLY
    namespace wmma = nvcuda::wmma;
    using precision = wmma::precision::tf32;

    // place
    const TilePlace place = place_tile(grid);
    const Epilogue epilogue(problem);
    if (!place.exists || epilogue.idle())
        return;
    const int64_t block_row = place.row * BM, block_column = place.column * BN;
    const int m_left = part(problem.m - block_row, BM), n_left = part(problem.n - block_column, BN);
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int row = warp % 2 * kWarp, column = warp / 2 * kWarp;

    __shared__ __align__(32) float smem[2 * BK][kRow];
    wmma::fragment<wmma::accumulator, kMatrix, kMatrix, kDepth, float> acc[2][2];
#pragma unroll
    for (int i = 0; i < 4; ++i)
        wmma::fill_fragment(acc[i / 2][i % 2], 0.0f);

    const int64_t depth = epilogue.depth();
    const View a = view_a(problem, place.batch), b = view_b(problem, place.batch);
    float (&smem_a)[BK][kRow] = reinterpret_cast<float (&)[BK][kRow]>(smem);
    float (&smem_b)[BK][kRow] = reinterpret_cast<float (&)[BK][kRow]>(smem[BK]);
    for (int64_t k0 = 0; k0 < depth; k0 += BK) {
        // load
        const int k_left = part(depth - k0, BK);
        load_tile<BM, BK, kThreads>(smem_a, a, block_row, k0, m_left, k_left);
        load_tile<BN, BK, kThreads>(smem_b, b, block_column, k0, n_left, k_left);
        __syncthreads();

        // multiply
#pragma unroll
        for (int k = 0; k < BK; k += kDepth) {
            wmma::fragment<wmma::matrix_a, kMatrix, kMatrix, kDepth, precision, wmma::col_major> frag_a[2];
            wmma::fragment<wmma::matrix_b, kMatrix, kMatrix, kDepth, precision, wmma::row_major> frag_b[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                wmma::load_matrix_sync(frag_a[i], &smem_a[k][row + i * kMatrix], kRow);
                wmma::load_matrix_sync(frag_b[i], &smem_b[k][column + i * kMatrix], kRow);
#pragma unroll
                for (int e = 0; e < frag_a[i].num_elements; ++e)
                    frag_a[i].x[e] = wmma::__float_to_tf32(frag_a[i].x[e]);
#pragma unroll
                for (int e = 0; e < frag_b[i].num_elements; ++e)
                    frag_b[i].x[e] = wmma::__float_to_tf32(frag_b[i].x[e]);
            }
#pragma unroll
            for (int i = 0; i < 2; ++i)
#pragma unroll
                for (int j = 0; j < 2; ++j)
                    wmma::mma_sync(acc[i][j], frag_a[i], frag_b[j], acc[i][j]);
        }

        // advance: nobody may still read when the next tile, or C, is written
        __syncthreads();
    }

    // store
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 2; ++j)
            wmma::store_matrix_sync(&smem[column + j * kMatrix][row + i * kMatrix], acc[i][j], kRow,
                                    wmma::mem_col_major);
    __syncthreads();
    float *const gmem_c = problem.c.matrix(place.batch) + block_row + block_column * problem.c.ld;
    const int own_row = static_cast<int>(threadIdx.x) % BM;
    for (int across = static_cast<int>(threadIdx.x) / BM; across < n_left; across += kThreads / BM)
        if (own_row < m_left)
            epilogue.store(gmem_c + own_row + across * problem.c.ld, smem[across][own_row]);
#endif
}

double cost(const Problem &problem, const Device &device) {
    constexpr TileRate kRate{3, {0.44, 0.44, 0.44, 0.44}, 0.5, 1e-6, 0};
    return predict(problem, device, BM, BN, kRate, kRate.resident);
}

Status launch_wmma_tf32(const Problem &problem, const Launch &launch_on) {
    const TileGrid grid = TileGrid::of(problem, BM, BN);
    return launch<wmma_tf32>({grid.blocks, kThreads, 0, launch_on.stream}, problem, grid);
}

constexpr Footprint kFootprint{kThreads, 3, 4 * 2 * BK *kRow};

constexpr Kernel kRows[] = {
    {"wmma_tf32_64x64x32", "wmma_tf32", Engine::gpu, modes(ComputeMode::tf32), 80, false, refuses_nothing, nullptr,
     cost, launch_wmma_tf32, false, kFootprint},
};

} // namespace

KernelRows wmma_tf32_rows() {
    return rows(kRows);
}

} // namespace pyblas
