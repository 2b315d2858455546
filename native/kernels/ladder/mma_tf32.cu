// mma_tf32: tensor cores by the instruction itself, mma.sync of 16 x 8 outputs and 8 of k. Each lane knows which
// elements it holds (device/ptx.cuh), so sums go from registers to C, and async_pipeline's copies keep coming while the
// warp multiplies.
//
//     warps 2 x 4, each 64 x 32 of C:   m ->           for 8 of k: 16 multiplies from 24 words of a lane
//                                     n  [8][8][8]...  the instruction's 16 rows are columns of C, its 8 columns
//                                     |  [16 by 8 ]    rows of C, so that pairs of sums are neighbours in memory
//
// Inputs are rounded to TF32: serves only the mode tf32. 256 threads, 128x128x16, two stages in 34816 bytes of shared
// memory. Refuses nothing. Eleventh rung of the ladder.
#include "kernel.hpp"

#include "../device/epilogue.cuh"
#include "../device/launch.cuh"
#include "../device/load.cuh"
#include "../device/tile.cuh"

namespace pyblas {
namespace {

constexpr int kSide = 128, BK = 16, kThreads = 256; // the block's rows and columns, its depth
constexpr int kWarpM = 64, kWarpN = 32;
constexpr int kDown = kWarpM / 8, kAcross = kWarpN / 16; // multiplies of a warp for 8 of k
// Floats of a row [k][x]: the 4 k and 8 x that a warp reads at once lie in 32 banks.
constexpr int kRow = kSide + 8;
constexpr int kTile = BK * kRow, kStage = 2 * kTile;

// Copies of one operand's tile, zeros past its edges; four floats at once where pointer, ld and edge allow.
__device__ __forceinline__ void copy_tile(float *tile, const View &view, int64_t x0, int64_t k0, int x_left,
                                          int k_left) {
    const int thread = static_cast<int>(threadIdx.x);
    const float *const corner = view.at(x0, k0);
    if (view.contiguous_x() && reinterpret_cast<uintptr_t>(corner) % 16 == 0 && view.step_k % 4 == 0 &&
        x_left % 4 == 0) {
#pragma unroll
        for (int i = thread; i < kSide / 4 * BK; i += kThreads) {
            const int x = i % (kSide / 4) * 4, k = i / (kSide / 4);
            ptx::copy_async<16>(tile + k * kRow + x, corner + x + k * view.step_k, x < x_left && k < k_left);
        }
    } else {
#pragma unroll
        for (int i = thread; i < kSide * BK; i += kThreads) {
            const int x = view.contiguous_x() ? i % kSide : i / BK, k = view.contiguous_x() ? i / kSide : i % BK;
            ptx::copy_async<4>(tile + k * kRow + x, corner + x * view.step_x + k * view.step_k,
                               x < x_left && k < k_left);
        }
    }
}

__global__ void __launch_bounds__(kThreads, 2) mma_tf32(__grid_constant__ const Problem problem, const TileGrid grid) {
#if PYBLAS_HAS_WARP_MULTIPLY
    // place
    const TilePlace place = place_tile(grid);
    const Epilogue epilogue(problem);
    if (!place.exists || epilogue.idle())
        return;
    const int64_t block_row = place.row * kSide, block_column = place.column * kSide;
    const int m_left = part(problem.m - block_row, kSide), n_left = part(problem.n - block_column, kSide);
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int group = lane / 4, own = lane % 4;
    const int row = warp % 2 * kWarpM, column = warp / 2 * kWarpN;

    float acc[kAcross][kDown][4] = {};
    if (const int64_t depth = epilogue.depth()) {
        __shared__ __align__(16) float smem[2 * kStage];
        const View a = view_a(problem, place.batch), b = view_b(problem, place.batch);
        const auto load = [&](float *stage, int64_t k0) {
            copy_tile(stage, a, block_row, k0, m_left, part(depth - k0, BK));
            copy_tile(stage + kTile, b, block_column, k0, n_left, part(depth - k0, BK));
        };
        load(smem, 0);
        int read = 0;
        for (int64_t k0 = 0; k0 < depth; k0 += BK, read ^= kStage) {
            ptx::commit_copies();
            ptx::wait_copies<0>();
            __syncthreads();

            // load: the other stage, which all have left
            if (k0 + BK < depth)
                load(smem + (read ^ kStage), k0 + BK);

            // multiply
            const float *const tile_a = smem + read + row + group + own * kRow;
            const float *const tile_b = smem + read + kTile + column + group + own * kRow;
#pragma unroll
            for (int k = 0; k < BK; k += 8) {
                uint32_t across[kAcross][4], down[kDown][2];
#pragma unroll
                for (int i = 0; i < kAcross; ++i)
#pragma unroll
                    for (int word = 0; word < 4; ++word)
                        across[i][word] = ptx::tf32(tile_b[i * 16 + word % 2 * 8 + (k + word / 2 * 4) * kRow]);
#pragma unroll
                for (int j = 0; j < kDown; ++j)
#pragma unroll
                    for (int word = 0; word < 2; ++word)
                        down[j][word] = ptx::tf32(tile_a[j * 8 + (k + word * 4) * kRow]);
#pragma unroll
                for (int i = 0; i < kAcross; ++i)
#pragma unroll
                    for (int j = 0; j < kDown; ++j)
                        ptx::multiply_tf32(acc[i][j], across[i], down[j]);
            }
        }
    }

    // store
    float *const gmem_c = problem.c.matrix(place.batch) + block_row + block_column * problem.c.ld;
    const bool paired = reinterpret_cast<uintptr_t>(gmem_c) % 8 == 0 && problem.c.ld % 2 == 0;
#pragma unroll
    for (int i = 0; i < kAcross; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int n = column + i * 16 + group + half * 8;
            if (n >= n_left)
                continue;
#pragma unroll
            for (int j = 0; j < kDown; ++j) {
                const int m = row + j * 8 + own * 2;
                float *const target = gmem_c + m + n * problem.c.ld;
                const float2 sums{acc[i][j][half * 2], acc[i][j][half * 2 + 1]};
                if (paired && m + 2 <= m_left) {
                    epilogue.store2(target, sums, epilogue.load2(target));
                } else {
                    if (m < m_left)
                        epilogue.store(target, sums.x);
                    if (m + 1 < m_left)
                        epilogue.store(target + 1, sums.y);
                }
            }
        }
#endif
}

double cost(const Problem &problem, const Device &device) {
    constexpr TileRate kRate{2, {1.04, 1.04, 1.04, 1.04}, 0.7, 1e-6, 0};
    return predict(problem, device, kSide, kSide, kRate, kRate.resident);
}

Status launch_mma_tf32(const Problem &problem, const Launch &launch_on) {
    const TileGrid grid = TileGrid::of(problem, kSide, kSide);
    return launch<mma_tf32>({grid.blocks, kThreads, 0, launch_on.stream}, problem, grid);
}

constexpr Footprint kFootprint{kThreads, 2, 4 * 2 * kStage};

constexpr Kernel kRows[] = {
    {"mma_tf32_128x128x16", "mma_tf32", Engine::gpu, modes(ComputeMode::tf32), 80, false, refuses_nothing, nullptr,
     cost, launch_mma_tf32, false, kFootprint},
};

} // namespace

KernelRows mma_tf32_rows() {
    return rows(kRows);
}

} // namespace pyblas
