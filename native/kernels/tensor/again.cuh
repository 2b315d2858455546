// What planes could not hold, for the kernels of mma.sync: the tile of a block once more, by FP32 multiply-adds,
// without a pipeline and for every layout by the same few instructions, as it is rare.
#pragma once

#include "../device/load.cuh"
#include "../device/tile.cuh"

namespace pyblas {

// 8 x 8 outputs for each thread.
template <int BM_, int BN_, int Threads_>
struct AgainTile {
    static constexpr int BM = BM_, BN = BN_, kThreads = Threads_, kDepth = 8, TM = 8, TN = 8;
    static constexpr int kBytes = kDepth * (BM + BN + 2) * 4; // of shared memory
    static constexpr int kThreadsM = BM / TM, kThreadsN = BN / TN;
    static_assert(kThreadsM * kThreadsN == kThreads, "each output is a thread's");
};

// Each sum goes to store(row, column, sum), also those outside C.
template <class Tile, class Store>
__device__ __forceinline__ void multiply_again(int64_t depth, const View &a, const View &b, int64_t block_row,
                                               int64_t block_column, int m_left, int n_left, float *smem,
                                               const Store &store) {
    constexpr int BM = Tile::BM, BN = Tile::BN, TM = Tile::TM, TN = Tile::TN;
    constexpr int kThreads = Tile::kThreads, kThreadsM = Tile::kThreadsM, kThreadsN = Tile::kThreadsN;
    constexpr int kDepth = Tile::kDepth;
    float (&smem_a)[kDepth][BM + 1] = *reinterpret_cast<float (*)[kDepth][BM + 1]>(smem);
    float (&smem_b)[kDepth][BN + 1] = *reinterpret_cast<float (*)[kDepth][BN + 1]>(smem + kDepth * (BM + 1));
    const int row = static_cast<int>(threadIdx.x) % kThreadsM, column = static_cast<int>(threadIdx.x) / kThreadsM;
    float acc[TN][TM] = {};
#pragma unroll 1
    for (int64_t k0 = 0; k0 < depth; k0 += kDepth) {
        const int k_left = part(depth - k0, kDepth);
        load_tile<BM, kDepth, kThreads>(smem_a, a, block_row, k0, m_left, k_left);
        load_tile<BN, kDepth, kThreads>(smem_b, b, block_column, k0, n_left, k_left);
        __syncthreads();
#pragma unroll 1
        for (int k = 0; k < kDepth; ++k)
#pragma unroll
            for (int j = 0; j < TN; ++j)
#pragma unroll
                for (int i = 0; i < TM; ++i)
                    acc[j][i] = fmaf(smem_a[k][row + i * kThreadsM], smem_b[k][column + j * kThreadsN], acc[j][i]);
        __syncthreads();
    }
#pragma unroll
    for (int j = 0; j < TN; ++j)
#pragma unroll
        for (int i = 0; i < TM; ++i)
            store(row + i * kThreadsM, column + j * kThreadsN, acc[j][i]);
}

} // namespace pyblas
