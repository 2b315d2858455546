// half_tile: products of float16 or bfloat16 matrices by FP32 multiply-adds, for every architecture, layout and
// alignment. Numbers become floats on their way to shared memory; behind that it is a tile of outputs for each thread.
//
//     A, B (16 bits) --load, convert--> [k][x] floats in shared memory --multiply-adds--> sums --> C, rounded once
//
// Every 256 of k (1024 beyond 16384) the sums of a part are added to the totals, in the order of all batch-invariant
// kernels. 256 threads; 64x64x16: 8320 bytes of shared memory, 128x128x16: 16512. Refuses arrays of pointers,
// which no entry has for these types: it is the row that is always there.
#include "kernel.hpp"

#include "../device/epilogue.cuh"
#include "../device/half.cuh"
#include "../device/launch.cuh"
#include "../device/load.cuh"
#include "../device/tile.cuh"

namespace pyblas {
namespace {

// op(A) or op(B) of one batch, as View is of floats.
struct HalfView {
    const uint16_t *data;
    int64_t step_x, step_k;
};

// One tile, neighbouring threads along the contiguous direction. Zeros beyond x_left and k_left.
template <Dtype type, int X, int K, int Threads, int Row>
__device__ __forceinline__ void load_halves(float (&tile)[K][Row], const HalfView &view, int64_t x0, int64_t k0,
                                            int x_left, int k_left) {
    static_assert(X * K % Threads == 0, "every thread loads the same number of elements");
    const bool contiguous_x = view.step_x == 1;
    const uint16_t *const corner = view.data + x0 * view.step_x + k0 * view.step_k;
#pragma unroll
    for (int i = 0; i < X * K / Threads; ++i) {
        const int element = static_cast<int>(threadIdx.x) + i * Threads;
        const int x = contiguous_x ? element % X : element / K;
        const int k = contiguous_x ? element / X : element % K;
        const uint16_t bits = x < x_left && k < k_left ? corner[x * view.step_x + k * view.step_k] : uint16_t{0};
        tile[k][x] = float_of_half(type, bits);
    }
}

template <class Tile, Dtype type>
__global__ void __launch_bounds__(Tile::kThreads, Tile::BM == 128 ? 1 : 2)
    half_tile(__grid_constant__ const Problem problem, const TileGrid grid) {
    constexpr int kThreadsM = Tile::kThreadsM, kThreadsN = Tile::kThreadsN;

    // place
    const TilePlace place = place_tile(grid);
    const Epilogue epilogue(problem);
    if (!place.exists || epilogue.idle())
        return;
    const int64_t block_row = place.row * Tile::BM, block_column = place.column * Tile::BN;
    const int m_left = part(problem.m - block_row, Tile::BM), n_left = part(problem.n - block_column, Tile::BN);
    const int row = static_cast<int>(threadIdx.x) % kThreadsM, column = static_cast<int>(threadIdx.x) / kThreadsM;

    float total[Tile::TN][Tile::TM] = {};
    if (const int64_t depth = epilogue.depth()) {
        __shared__ float smem_a[Tile::BK][Tile::BM + 1], smem_b[Tile::BK][Tile::BN + 1];
        const HalfView a = {problem.a.matrix<const uint16_t>(place.batch), problem.transa == Op::N ? 1 : problem.a.ld,
                            problem.transa == Op::N ? problem.a.ld : 1};
        const HalfView b = {problem.b.matrix<const uint16_t>(place.batch), problem.transb == Op::T ? 1 : problem.b.ld,
                            problem.transb == Op::T ? problem.b.ld : 1};
        const int64_t part_depth = invariant_part(problem.k);
        for (int64_t part_k = 0; part_k < depth; part_k += part_depth) {
            const int64_t end = part_k + part_depth < depth ? part_k + part_depth : depth;
            float acc[Tile::TN][Tile::TM] = {};
            for (int64_t k0 = part_k; k0 < end; k0 += Tile::BK) {
                // load
                const int k_left = part(end - k0, Tile::BK);
                load_halves<type, Tile::BM, Tile::BK, Tile::kThreads>(smem_a, a, block_row, k0, m_left, k_left);
                load_halves<type, Tile::BN, Tile::BK, Tile::kThreads>(smem_b, b, block_column, k0, n_left, k_left);
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
#pragma unroll
            for (int j = 0; j < Tile::TN; ++j)
#pragma unroll
                for (int i = 0; i < Tile::TM; ++i)
                    total[j][i] += acc[j][i];
        }
    }

    // store
    char *const gmem_c = problem.c.matrix<char>(0) + place.batch * problem.c.stride * bytes_of(problem.c.dtype);
#pragma unroll
    for (int j = 0; j < Tile::TN; ++j)
#pragma unroll
        for (int i = 0; i < Tile::TM; ++i)
            if (row + i * kThreadsM < m_left && column + j * kThreadsN < n_left)
                epilogue.store(gmem_c,
                               block_row + row + i * kThreadsM + (block_column + column + j * kThreadsN) * problem.c.ld,
                               problem.c.dtype, total[j][i]);
}

using Tile64 = BlockTile<64, 64, 16, 4, 4>;
using Tile128 = BlockTile<128, 128, 16, 8, 8>;

const char *refuses(const Problem &problem, const Device &) {
    return problem.c.array ? "it takes no arrays of pointers" : nullptr;
}

double cost64(const Problem &problem, const Device &device) {
    constexpr TileRate kRate{2, {0.273, 0.286, 0.274, 0.286}, 0.6, 1e-6, 0};
    return predict(problem, device, Tile64::BM, Tile64::BN, kRate, kRate.resident);
}

double cost128(const Problem &problem, const Device &device) {
    constexpr TileRate kRate{1, {0.411, 0.415, 0.410, 0.414}, 1, 1e-6, 0};
    return predict(problem, device, Tile128::BM, Tile128::BN, kRate, kRate.resident);
}

template <class Tile>
Status launch_half_tile(const Problem &problem, const Launch &launch_on) {
    const TileGrid grid = TileGrid::of(problem, Tile::BM, Tile::BN);
    const Grid blocks = {grid.blocks, Tile::kThreads, 0, launch_on.stream};
    return problem.a.dtype == Dtype::f16 ? launch<half_tile<Tile, Dtype::f16>>(blocks, problem, grid)
                                         : launch<half_tile<Tile, Dtype::bf16>>(blocks, problem, grid);
}

template <class Tile, int Resident>
constexpr Footprint kFootprint{Tile::kThreads, Resident, 4 * (Tile::BM + 1 + Tile::BN + 1) * Tile::BK};

constexpr Kernel kRows[] = {
    {"half_tile_64x64x16", "half_tile", Engine::gpu, kFp32Modes, 75, false, refuses, nullptr, cost64,
     launch_half_tile<Tile64>, true, kFootprint<Tile64, 2>, nullptr, kHalfTypes},
    {"half_tile_128x128x16", "half_tile", Engine::gpu, kFp32Modes, 75, false, refuses, nullptr, cost128,
     launch_half_tile<Tile128>, true, kFootprint<Tile128, 1>, nullptr, kHalfTypes},
};

} // namespace

KernelRows half_tile_rows() {
    return rows(kRows);
}

} // namespace pyblas
