// mma_split: FP32 products by the tensor cores of SM 8.0 and later, without a workspace. On its way to shared memory
// each number becomes three of bfloat16 whose sum it is; the six products of planes that matter are multiplied by
// mma.sync.
//
//     A, B --loads--> registers --split--> planes [x][k] --mma.sync--> 32 of k --added in FP32--> sums --> C
//                                            |
//                   bits that no plane holds +--> the whole tile once more, by FP32 multiply-adds
//
//     warps 2 x 2, each 64 x 32 of C; the instruction's 16 rows are columns of C
//
// Truncated three times to 8 bits, 24 bits are held exactly, down to magnitudes of 2^-110. What lies below, and Inf and
// NaN, leaves a rest that a block notices when it splits. 128 threads, 128x64x32, 46080 bytes. Refuses k below 128.
#include "kernel.hpp"

#include "../device/epilogue.cuh"
#include "../device/launch.cuh"
#include "../device/load.cuh"
#include "../device/tile.cuh"
#include "again.cuh"

namespace pyblas {
namespace {

constexpr int BM = 128, BN = 64, BK = 32, kThreads = 128, kPlanes = 3;
constexpr int kRow = BK + 8; // numbers of a row: eight rows of a piece of 16 bytes lie in all banks
constexpr int kPlane = (BM + BN) * kRow;
constexpr int kUnit = 8; // of k of one x: 16 bytes of a plane
constexpr int64_t kLeastDepth = 128;

#if PYBLAS_HAS_WARP_MULTIPLY
// A thread's part of one operand's tile: some units, from global memory to registers and from there to the planes.
template <int X>
class Share {
public:
    __device__ __forceinline__ Share(const View &view, int64_t x0, int x_left) {
        const int thread = static_cast<int>(threadIdx.x);
        const bool across = view.contiguous_x();
        const int x = across ? thread % X : thread / (BK / kUnit);
        step_x_ = across ? 0 : kThreads / (BK / kUnit);
        first_k_ = across ? thread / X * kUnit : thread % (BK / kUnit) * kUnit;
        step_unit_k_ = across ? kThreads / X * kUnit : 0;
        source_ = view.at(x0 + x, first_k_);
        step_ = step_x_ * view.step_x + step_unit_k_ * view.step_k;
        step_k_ = view.step_k;
        target_ = x * kRow + first_k_;
        x_left_ = x_left - x;
        wide_ = !across && reinterpret_cast<uintptr_t>(view.data) % 16 == 0 && view.step_x % 4 == 0;
    }

    // Of the next tile, k_left of it inside the operand; zeros past the edges.
    __device__ __forceinline__ void load(int k_left) {
        const float *unit = source_;
#pragma unroll
        for (int i = 0; i < kUnits; ++i, unit += step_) {
            const int left = x_left_ > i * step_x_ ? k_left - first_k_ - i * step_unit_k_ : 0;
            if (wide_ && left >= kUnit) {
                *reinterpret_cast<float4 *>(values_[i]) = *reinterpret_cast<const float4 *>(unit);
                *reinterpret_cast<float4 *>(values_[i] + 4) = *reinterpret_cast<const float4 *>(unit + 4);
            } else {
                const float *from = unit;
#pragma unroll
                for (int k = 0; k < kUnit; ++k, from += step_k_)
                    values_[i][k] = k < left ? *from : 0.0f;
            }
        }
        source_ += BK * step_k_;
    }

    // The bits that are left over go to rest; of a number that fits, they are zeros from bit 15 down.
    __device__ __forceinline__ void split(uint16_t *planes, uint32_t *rest) const {
#pragma unroll
        for (int i = 0; i < kUnits; ++i) {
            uint32_t words[kPlanes][kUnit / 2];
#pragma unroll
            for (int pair = 0; pair < kUnit / 2; ++pair) {
                uint32_t x = __float_as_uint(values_[i][2 * pair]), y = __float_as_uint(values_[i][2 * pair + 1]);
#pragma unroll
                for (int plane = 0; plane < kPlanes; ++plane) {
                    words[plane][pair] = __byte_perm(x, y, 0x7632); // the upper halves of both
                    if (plane + 1 < kPlanes) {
                        x = __float_as_uint(__uint_as_float(x) - __uint_as_float(x & 0xffff0000));
                        y = __float_as_uint(__uint_as_float(y) - __uint_as_float(y & 0xffff0000));
                    }
                }
                *rest |= x | y;
            }
#pragma unroll
            for (int plane = 0; plane < kPlanes; ++plane)
                *reinterpret_cast<uint4 *>(planes + plane * kPlane + target_ + i * (step_x_ * kRow + step_unit_k_)) =
                    uint4{words[plane][0], words[plane][1], words[plane][2], words[plane][3]};
        }
    }

private:
    static constexpr int kUnits = X * BK / kUnit / kThreads;
    static_assert(kThreads % X == 0, "a thread's units have one x, or one place along k");

    float values_[kUnits][kUnit];
    const float *source_;
    int64_t step_, step_k_; // from one unit to the next, and from one k
    int target_, x_left_, step_x_, first_k_, step_unit_k_;
    bool wide_;
};
#endif

__global__ void __launch_bounds__(kThreads, 2) mma_split(__grid_constant__ const Problem problem, const TileGrid grid) {
#if PYBLAS_HAS_WARP_MULTIPLY
    constexpr int kWarpM = 64, kWarpN = 32;                                    // rows and columns of a warp
    constexpr int kDown = kWarpM / 8, kAcross = kWarpN / 16, kSteps = BK / 16; // its multiples of an instruction

    // place
    const TilePlace place = place_tile(grid);
    const Epilogue epilogue(problem);
    if (!place.exists || epilogue.idle())
        return;
    const int64_t block_row = place.row * BM, block_column = place.column * BN, depth = epilogue.depth();
    const int m_left = part(problem.m - block_row, BM), n_left = part(problem.n - block_column, BN);
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int row = warp % 2 * kWarpM, column = warp / 2 * kWarpN;

    __shared__ __align__(16) uint16_t smem[kPlanes * kPlane];
    const View view_of_a = view_a(problem, place.batch), view_of_b = view_b(problem, place.batch);
    float total[kDown][kAcross][4] = {};
    uint32_t rest = 0;
    if (depth > 0) {
        Share<BM> share_a(view_of_a, block_row, m_left);
        Share<BN> share_b(view_of_b, block_column, n_left);
        // Where a lane's address for load_matrices lies: of 8 rows by 32 of k, and of 16 rows by 16 of k.
        const uint16_t *const tile_a = smem + (row + lane % 8) * kRow + lane / 8 * 8;
        const uint16_t *const tile_b = smem + (BM + column + lane % 16) * kRow + lane / 16 * 8;

        // load
        share_a.load(part(depth, BK));
        share_b.load(part(depth, BK));
#pragma unroll 1
        for (int64_t k0 = 0; k0 < depth; k0 += BK) {
            __syncthreads();
            share_a.split(smem, &rest);
            share_b.split(smem + BM * kRow, &rest);
            __syncthreads();
            if (k0 + BK < depth) {
                share_a.load(part(depth - k0 - BK, BK));
                share_b.load(part(depth - k0 - BK, BK));
            }

            // multiply: least products first, and 32 of k in the tensor cores before they are added to the totals
            uint32_t across[kPlanes][kAcross][kSteps][4];
#pragma unroll
            for (int i = 0; i < kPlanes * kAcross * kSteps; ++i)
                ptx::load_matrices(across[i / (kAcross * kSteps)][i / kSteps % kAcross][i % kSteps],
                                   tile_b + i / (kAcross * kSteps) * kPlane + i / kSteps % kAcross * 16 * kRow +
                                       i % kSteps * 16);
#pragma unroll
            for (int j = 0; j < kDown; ++j) {
                uint32_t down[kPlanes][2 * kSteps];
#pragma unroll
                for (int plane = 0; plane < kPlanes; ++plane)
                    ptx::load_matrices(down[plane], tile_a + plane * kPlane + j * 8 * kRow);
                constexpr int kFirst[6] = {0, 2, 1, 0, 1, 0}, kSecond[6] = {2, 0, 1, 1, 0, 0};
                float acc[kAcross][4] = {};
#pragma unroll
                for (int product = 0; product < 6; ++product)
#pragma unroll
                    for (int step = 0; step < kSteps; ++step)
#pragma unroll
                        for (int i = 0; i < kAcross; ++i)
                            ptx::multiply_bf16(acc[i], across[kFirst[product]][i][step],
                                               down[kSecond[product]][2 * step], down[kSecond[product]][2 * step + 1]);
#pragma unroll
                for (int i = 0; i < kAcross * 4; ++i)
                    total[j][i / 4][i % 4] += acc[i / 4][i % 4];
            }
        }
    }
    float *const gmem_c = problem.c.matrix(place.batch) + block_row + block_column * problem.c.ld;
    if (__syncthreads_or(rest & 0xffff)) {
        static_assert(AgainTile<BM, BN, kThreads>::kBytes <= kPlanes * kPlane * 2, "it fits");
        multiply_again<AgainTile<BM, BN, kThreads>>(depth, view_of_a, view_of_b, block_row, block_column, m_left,
                                                    n_left, reinterpret_cast<float *>(smem),
                                                    [&](int m, int n, float sum) {
                                                        if (m < m_left && n < n_left)
                                                            epilogue.store(gmem_c + m + n * problem.c.ld, sum);
                                                    });
        return;
    }

    // store
    const bool paired = reinterpret_cast<uintptr_t>(gmem_c) % 8 == 0 && problem.c.ld % 2 == 0;
#pragma unroll
    for (int i = 0; i < kAcross * 2; ++i) {
        const int n = column + lane / 4 + i * 8;
        if (n >= n_left)
            continue;
#pragma unroll
        for (int j = 0; j < kDown; ++j) {
            const int m = row + j * 8 + lane % 4 * 2;
            float *const target = gmem_c + m + n * problem.c.ld;
            const float2 sums{total[j][i / 2][i % 2 * 2], total[j][i / 2][i % 2 * 2 + 1]};
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

const char *refuses(const Problem &problem, const Device &) {
    return problem.k < kLeastDepth ? "k is below 128, too short for the error of split operands" : nullptr;
}

// Measured on an H200. SM 8.0 has tensor cores of the same width beside half as many FP32 lanes, so twice the share of
// its peak, a little less as nobody has measured it. The others are told apart from their professional kin by nothing
// here, and do at most four times as many 16-bit multiply-adds as FP32 ones, too few for six products.
double cost(const Problem &problem, const Device &device) {
    const double beside = device.sm == 80 ? 1.7 : device.sm == 90 ? 1 : 0.3;
    const TileRate rate{2, {0.72 * beside, 0.67 * beside, 0.75 * beside, 0.72 * beside}, 0.7, 2e-6, 0};
    return predict(problem, device, BM, BN, rate, rate.resident);
}

Status launch_mma_split(const Problem &problem, const Launch &launch_on) {
    const TileGrid grid = TileGrid::of(problem, BM, BN);
    return launch<mma_split>({grid.blocks, kThreads, 0, launch_on.stream}, problem, grid);
}

constexpr Footprint kFootprint{kThreads, 2, 2 * kPlanes *kPlane};

constexpr Kernel kRows[] = {
    {"mma_split_128x64x32_bf16x3", "mma_split", Engine::gpu, modes(ComputeMode::fp32, ComputeMode::tf32), 80, false,
     refuses, nullptr, cost, launch_mma_split, false, kFootprint},
};

} // namespace

KernelRows mma_split_rows() {
    return rows(kRows);
}

} // namespace pyblas
