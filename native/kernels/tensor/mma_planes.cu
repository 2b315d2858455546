// mma_planes: FP32 products by the tensor cores of SM 8.0 and later. Operands are packed into two planes of half
// precision (pack.cu), whose three products that matter are multiplied by mma.sync, and what planes cannot hold is left
// to FP32 multiply-adds (again.cuh).
//
//     A, B --pack--> planes, exponents --cp.async--> stages of 32 of k --mma.sync--> lo*hi + hi*lo, and hi*hi
//                                                                    --added in FP32--> totals, scaled --> C
//
//     warps 2 x 4, each 64 x 32 of C; the instruction's 16 rows are columns of C
//
// Half the multiplies of mma_split, and no splitting beside them. Planes stay as they lie, along k or across it, and
// ldmatrix turns what lies across. 256 threads, 128x128x32, 99328 bytes. Refuses k below 160.
#include "kernel.hpp"

#include <algorithm>

#include "../device/epilogue.cuh"
#include "../device/launch.cuh"
#include "../device/plane_ptx.cuh"
#include "../device/tile.cuh"
#include "again.cuh"
#include "panels.hpp"
#include "planes.cuh"

namespace pyblas {
namespace {

struct Tile { // as panels.hpp asks for it
    static constexpr Scheme kScheme = Scheme::f16x2;
    static constexpr int BM = 128, BN = 128;
    struct Plan {
        static constexpr int kPhases = 2;
        static constexpr int end(int phase) { return phase == 0 ? 2 : 3; }
    };
};

constexpr int BM = Tile::BM, BN = Tile::BN, BK = 32, kThreads = 256, kStages = 3, kPlanes = 2;
constexpr int kPlane = BM * BK; // numbers of one operand's plane in a stage
constexpr int kStage = 2 * kPlanes * kPlane;
constexpr int kSharedBytes = kStages * kStage * 2 + (BM + BN) * 4;
constexpr int64_t kLeastDepth = 160;

using Again = AgainTile<BM, BN, kThreads>;
static_assert(BM == BN && kThreads == BM + BN, "both operands alike; a power for each thread");
// Of sums on their way to C, from one column to the next: pairs of a warp lie in all banks.
constexpr int kColumn = BM + 8;
static_assert(std::max(Again::kBytes, BN * kColumn * 4) <= kStages * kStage * 2, "powers are left as they are");

#if PYBLAS_HAS_WARP_MULTIPLY
constexpr int kPiece = 8; // numbers of one copy, 16 bytes

// Where a piece lies in a plane of a stage; it begins at x and k. Rows of 32 of k, or, across, of 128 x. Pieces of a
// row are exchanged so that eight of them that ldmatrix reads lie in different banks.
template <bool Across>
__device__ __forceinline__ int place_of(int x, int k) {
    return Across ? k * BM + (x / kPiece ^ k % 8) * kPiece : x * BK + (k / kPiece ^ x / 2 % 4) * kPiece;
}

// A thread's part of one operand's tile: two pieces of each plane.
template <bool Across>
class Share {
public:
    __device__ __forceinline__ Share(const Planes &planes, int64_t batch, int64_t x0) {
        const int thread = static_cast<int>(threadIdx.x);
        const int64_t ld = planes.ld();
        const int x = Across ? thread % (BM / kPiece) * kPiece : thread / (BK / kPiece);
        const int k = Across ? thread / (BM / kPiece) : thread % (BK / kPiece) * kPiece;
        source_ =
            planes.data + planes.shared_batch(batch) * planes.matrix() + (Across ? k * ld + x0 + x : (x0 + x) * ld + k);
        step_ = kStep * ld;
        chunk_ = Across ? BK * ld : BK;
        plane_ = planes.plane();
        target_ = place_of<Across>(x, k);
        line_ = Across ? k : x;
        along_ = Across ? x : k;
        x_left_ = planes.rows - x0 < BM ? static_cast<int>(planes.rows - x0) : BM;
    }

    // The next chunk, of which k_left are inside; zeros past the edges.
    __device__ __forceinline__ void copy(uint16_t *stage, int k_left) {
        const int inside = 2 * min(kPiece, max(0, (Across ? x_left_ : k_left) - along_));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int bytes = line_ + i * kStep < (Across ? k_left : x_left_) ? inside : 0;
#pragma unroll
            for (int plane = 0; plane < kPlanes; ++plane)
                ptx::copy_piece(stage + plane * kPlane + target_ + i * (kPlane / 2),
                                source_ + plane * plane_ + i * step_, bytes);
        }
        source_ += chunk_;
    }

private:
    static constexpr int kStep = Across ? BK / 2 : BM / 2; // lines from one piece to the other
    const uint16_t *source_;
    int64_t step_, chunk_, plane_;
    int target_, line_, along_, x_left_;
};

// Words of a plane for 16 columns by 16 of k.
template <bool Across>
__device__ __forceinline__ void load_columns(uint32_t (&words)[4], const uint16_t *plane, int column, int k, int lane) {
    if constexpr (Across)
        ptx::load_turned_matrices(words,
                                  plane + place_of<true>(column + lane / 8 % 2 * 8, k + lane / 16 * 8 + lane % 8));
    else
        ptx::load_matrices(words, plane + place_of<false>(column + lane % 16, k + lane / 16 * 8));
}

// And for 8 rows by 32 of k.
template <bool Across>
__device__ __forceinline__ void load_rows(uint32_t (&words)[4], const uint16_t *plane, int row, int lane) {
    if constexpr (Across)
        ptx::load_turned_matrices(words, plane + place_of<true>(row, lane));
    else
        ptx::load_matrices(words, plane + place_of<false>(row + lane % 8, lane / 8 * 8));
}
#endif

template <bool AcrossA, bool AcrossB>
__global__ void __launch_bounds__(kThreads, 1)
    mma_planes(__grid_constant__ const Problem problem, __grid_constant__ const PackedProduct packed,
               const TileGrid grid) {
#if PYBLAS_HAS_WARP_MULTIPLY
    constexpr int kWarpM = 64, kWarpN = 32;                                    // rows and columns of a warp
    constexpr int kDown = kWarpM / 8, kAcross = kWarpN / 16, kSteps = BK / 16; // its multiples of an instruction
    constexpr float kLow = 1.0f / (1 << kLowPlaneBits);

    // place
    const TilePlace place = place_tile(grid);
    const Epilogue epilogue(problem);
    if (!place.exists || epilogue.idle())
        return;
    const int64_t block_row = place.row * BM, block_column = place.column * BN;
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
    const int row = warp % 2 * kWarpM, column = warp / 2 * kWarpN;
    const int depth = static_cast<int>(epilogue.depth()), chunks = (depth + BK - 1) / BK;
    uint16_t *const stages = reinterpret_cast<uint16_t *>(dynamic_shared());
    float *const powers = reinterpret_cast<float *>(stages + kStages * kStage); // of two, of rows and then columns

    // load
    Share<AcrossA> share_a(packed.a, place.batch, block_row);
    Share<AcrossB> share_b(packed.b, place.batch, block_column);
    const auto load = [&](int chunk, int slot) {
        if (chunk < chunks) {
            share_a.copy(stages + slot * kStage, depth - chunk * BK);
            share_b.copy(stages + slot * kStage + kPlanes * kPlane, depth - chunk * BK);
        }
        ptx::commit_copies(); // an empty group keeps the count of groups equal to the count of stages
    };
#pragma unroll
    for (int chunk = 0; chunk < kStages - 1; ++chunk)
        load(chunk, chunk);
    const Planes &own = thread < BM ? packed.a : packed.b;
    const int64_t own_row = thread < BM ? block_row + thread : block_column + thread - BM;
    int exponent = 0; // nothing is packed where there is no depth
    if (own_row < own.rows && depth > 0)
        exponent = own.exponents[own.shared_batch(place.batch) * own.rows + own_row];
    powers[thread] = exponent == kUnfitRow ? 0.0f : __int_as_float((exponent / 2 + 127) << 23); // 2^(exponent / 2)

    float total[kDown][kAcross][4] = {};
    int read = 0, write = kStages - 1;
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
        // The oldest stage has arrived, and everybody is done with the one that is overwritten next.
        ptx::wait_copies<kStages - 2>();
        __syncthreads();
        load(chunk + kStages - 1, write);

        // multiply: least products apart from the large one, and 32 of k before both are added to the totals
        const uint16_t *const tile_a = stages + read * kStage, *const tile_b = tile_a + kPlanes * kPlane;
        uint32_t across[kPlanes][kAcross][kSteps][4];
#pragma unroll
        for (int plane = 0; plane < kPlanes; ++plane)
#pragma unroll
            for (int i = 0; i < kAcross * kSteps; ++i)
                load_columns<AcrossB>(across[plane][i / kSteps][i % kSteps], tile_b + plane * kPlane,
                                      column + i / kSteps * 16, i % kSteps * 16, lane);
#pragma unroll
        for (int j = 0; j < kDown; ++j) {
            uint32_t down[kPlanes][2 * kSteps];
#pragma unroll
            for (int plane = 0; plane < kPlanes; ++plane)
                load_rows<AcrossA>(down[plane], tile_a + plane * kPlane, row + j * 8, lane);
            float low[kAcross][4] = {}, high[kAcross][4] = {};
#pragma unroll
            for (int step = 0; step < kSteps; ++step) {
                const auto multiply = [&](float (&sums)[kAcross][4], int of_columns, int of_rows) {
#pragma unroll
                    for (int i = 0; i < kAcross; ++i)
                        ptx::multiply_f16(sums[i], across[of_columns][i][step], down[of_rows][2 * step],
                                          down[of_rows][2 * step + 1]);
                };
                multiply(low, 1, 0);
                multiply(high, 0, 0);
                multiply(low, 0, 1);
            }
#pragma unroll
            for (int i = 0; i < kAcross * 4; ++i)
                total[j][i / 4][i % 4] += fmaf(low[i / 4][i % 4], kLow, high[i / 4][i % 4]);
        }
        // advance
        read = read + 1 == kStages ? 0 : read + 1;
        write = write + 1 == kStages ? 0 : write + 1;
    }

    // store: by way of shared memory, so that a warp has neighbours in memory and one loop does for all
    ptx::wait_copies<0>();
    const bool unfit = __syncthreads_or(exponent == kUnfitRow) != 0;
    float *const sums = reinterpret_cast<float *>(stages);
#pragma unroll
    for (int i = 0; i < kAcross * 2; ++i)
#pragma unroll
        for (int j = 0; j < kDown; ++j)
            *reinterpret_cast<float2 *>(sums + (column + i * 8 + lane / 4) * kColumn + row + j * 8 +
                                        lane % 4 * 2) = {total[j][i / 2][i % 2 * 2], total[j][i / 2][i % 2 * 2 + 1]};
    const int m_left = part(problem.m - block_row, BM), n_left = part(problem.n - block_column, BN);
    const int m = thread % BM, n0 = thread / BM;
    float *const c = problem.c.matrix(place.batch) + block_row + m + block_column * problem.c.ld;
#pragma unroll 1
    for (int again = 0; again <= static_cast<int>(unfit); ++again) {
        if (again) {
            __syncthreads();
            multiply_again<Again>(depth, view_a(problem, place.batch), view_b(problem, place.batch), block_row,
                                  block_column, m_left, n_left, sums,
                                  [&](int down, int over, float sum) { sums[over * kColumn + down] = sum; });
        }
        __syncthreads();
        constexpr int kAtOnce = 8, kStep = kThreads / BM;
#pragma unroll 1
        for (int first = n0; first < n_left; first += kAtOnce * kStep) {
            float sum[kAtOnce], old[kAtOnce];
            bool stores[kAtOnce];
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                const int n = first + i * kStep;
                // Twice: what a row and a column count together may be no float where the result is one.
                const float power = powers[m] * powers[BM + n];
                sum[i] = sums[n * kColumn + m] * (again ? 1.0f : power) * (again ? 1.0f : power);
                stores[i] = m < m_left && n < n_left && (power == 0.0f) == (again != 0);
                old[i] = stores[i] ? epilogue.load(c + n * problem.c.ld) : 0.0f;
            }
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i)
                if (stores[i])
                    epilogue.store(c + (first + i * kStep) * problem.c.ld, sum[i], old[i]);
        }
    }
#endif
}

const char *refuses(const Problem &problem, const Device &device) {
    if (problem.k < kLeastDepth)
        return "k is below 160, too short for the error of split operands";
    if (device.shared_per_block < kSharedBytes)
        return "the tile needs more shared memory than a block of the device can have";
    return refuses_planes<Tile>(problem);
}

size_t workspace(const Problem &problem, const Device &device) {
    return packed_bytes<Tile>(problem, cut_of<Tile>(problem, device.workspace, device.multiprocessors).panel);
}

// Never measured where it is chosen: on SM 8.0, half the multiplies of mma_split at nine tenths of its predicted rate.
// The others are left to kernels that have been measured, or make too few multiply-adds beside FP32 ones.
double cost(const Problem &problem, const Device &device) {
    const double share = device.sm == 80 ? 2.2 : 0.3;
    const TileRate rate{1, {share, share, share, share}, 1, 3e-6, 0};
    const Cut parts = cut_of<Tile>(problem, device.workspace, device.multiprocessors);
    // What lies across k is measured in a launch of its own, and so read twice.
    return predict(problem, device, BM, BN, rate, rate.resident) + parts.parts() * 2 * second_kernel_seconds(device) +
           packing_bytes<Tile>(problem, parts, 8, 1) / device.bandwidth;
}

Status multiply(const Problem &problem, const PackedProduct &packed, const Launch &launch_on) {
    const TileGrid grid = TileGrid::of(problem, BM, BN);
    const auto start = [&](auto kernel) {
        PYBLAS_TRY(allow_shared<kernel.value>(kSharedBytes));
        return launch<kernel.value>({grid.blocks, kThreads, kSharedBytes, launch_on.stream}, problem, packed, grid);
    };
    using std::integral_constant;
    using Kernel = decltype(&mma_planes<false, false>);
    if (packed.a.across)
        return packed.b.across ? start(integral_constant<Kernel, &mma_planes<true, true>>{})
                               : start(integral_constant<Kernel, &mma_planes<true, false>>{});
    return packed.b.across ? start(integral_constant<Kernel, &mma_planes<false, true>>{})
                           : start(integral_constant<Kernel, &mma_planes<false, false>>{});
}

Status launch_mma_planes(const Problem &problem, const Launch &launch_on) {
    const Cut parts = cut_of<Tile>(problem, launch_on.workspace_bytes, launch_on.device->multiprocessors);
    return multiply_panels<Tile>(problem, parts, launch_on, [&](const Problem &part, const PackedProduct &packed) {
        return multiply(part, packed, launch_on);
    });
}

constexpr Footprint kFootprint{kThreads, 1, kSharedBytes};

constexpr Kernel kRows[] = {
    {"mma_planes_128x128x32_f16x2", "mma_planes", Engine::gpu, modes(ComputeMode::fp32, ComputeMode::tf32), 80, false,
     refuses, workspace, cost, launch_mma_planes, false, kFootprint},
};

} // namespace

KernelRows mma_planes_rows() {
    return rows(kRows);
}

} // namespace pyblas
