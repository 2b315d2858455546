// wgmma_tf32: Hopper's multiply. 128 threads name two tiles in shared memory, and the tensor cores read them without a
// load or a register in between. Who brings the tiles and who multiplies are different warps, which meet at barriers.
//
//     warpgroup 2 brings              4 stages of 32 k        warpgroups 0 and 1, each 64 rows by 256 columns of C
//     boxes by the copy engine ----> | A, B | A, B | ... ---> 4 multiplies of 64 x 256 by 8 of k for a stage;
//     or turned in registers         <---- left again ----    128 sums of each thread stay in the tensor cores
//
// The multiply wants both operands along k, in rows of 128 bytes with the engine's swizzle; the engine rounds to TF32
// on its way. What it cannot bring so, the other direction or an address that does not suit it, threads load, round and
// store at the same places. Serves only the mode tf32. 384 threads, 193 KB. Refuses nothing. Twelfth rung of the
// ladder.
#include "kernel.hpp"

#include "../device/epilogue.cuh"
#include "../device/load.cuh"
#include "../device/tensor_maps.cuh"
#include "../device/tile.cuh"
#include "../tensor/fragments.hpp"

namespace pyblas {
namespace {

constexpr int BM = 128, BN = 256, BK = 32, kStages = 4, kThreads = 384;
constexpr int kRow = BK * 4; // bytes
constexpr int kBytesA = BM * kRow, kStage = kBytesA + BN * kRow;
constexpr int kShared = kSwizzleAtomBytes + kStages * (kStage + 16);
static_assert(kRow == kSwizzledRowBytes, "a stage is one line of the swizzle deep");

// An operand as the copy engine knows it, if it does.
struct Boxes {
    MatrixMap matrices;
    bool known;
};

#if PYBLAS_HAS_WGMMA
// X by BK of one operand, by a warpgroup; zeros past its edges. Whoever waits at the barrier, where all four warps
// arrive, finds them.
template <int X>
__device__ __forceinline__ void bring(char *tile, const Boxes &boxes, const View &view, int64_t x0, int64_t k0,
                                      int x_left, int k_left, int64_t batch, uint64_t *full) {
    const int thread = static_cast<int>(threadIdx.x) % 128;
    if (boxes.known) {
        if (thread == 0) {
            ptx::expect(full, X * kRow);
            ptx::copy_box(tile, &boxes.matrices.map, static_cast<int>(k0), static_cast<int>(x0), 0,
                          boxes.matrices.first + boxes.matrices.step * static_cast<int>(batch), full);
        }
        return;
    }
    float values[X / 128][BK]; // all on their way before the first is stored
#pragma unroll
    for (int i = 0; i < X / 128; ++i) {
        const int x = thread + i * 128, left = x < x_left ? k_left : 0;
        const float *const from = view.at(x0 + x, k0);
#pragma unroll
        for (int k = 0; k < BK; ++k)
            values[i][k] = k < left ? from[k * view.step_k] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < X / 128; ++i)
#pragma unroll
        for (int k = 0; k < BK; k += 4) {
            const float *const four = values[i] + k;
            *reinterpret_cast<uint4 *>(tile + swizzled((thread + i * 128) * kRow + k * 4)) =
                uint4{ptx::tf32_to_even(four[0]), ptx::tf32_to_even(four[1]), ptx::tf32_to_even(four[2]),
                      ptx::tf32_to_even(four[3])};
        }
    ptx::publish_stores();
}
#endif

__global__ void __launch_bounds__(kThreads, 1)
    wgmma_tf32(__grid_constant__ const Problem problem, const TileGrid grid, __grid_constant__ const Boxes boxes_a,
               __grid_constant__ const Boxes boxes_b) {
#if PYBLAS_HAS_WGMMA
    // place
    const TilePlace place = place_tile(grid);
    const Epilogue epilogue(problem);
    if (!place.exists || epilogue.idle())
        return;
    const int64_t block_row = place.row * BM, block_column = place.column * BN, depth = epilogue.depth();
    const int m_left = part(problem.m - block_row, BM), n_left = part(problem.n - block_column, BN);
    const int group = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 128, 0);
    const int thread = static_cast<int>(threadIdx.x) % 128, lane = thread % 32;
    char *const memory = reinterpret_cast<char *>(dynamic_shared());
    char *const stages = memory + (-static_cast<int>(ptx::shared_address(memory)) & (kSwizzleAtomBytes - 1));
    uint64_t *const full = reinterpret_cast<uint64_t *>(stages + kStages * kStage), *const empty = full + kStages;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < kStages; ++stage) {
            ptx::init_barrier(full + stage, 4);
            ptx::init_barrier(empty + stage, 8);
        }
        ptx::publish_barriers();
    }
    __syncthreads();

    int stage = 0;
    uint32_t turn = 0; // the parity of this round through the stages
    const auto advance = [&] {
        if (++stage == kStages)
            stage = 0, turn ^= 1;
    };
    if (group == 2) {
        // load
        const View a = view_a(problem, place.batch), b = view_b(problem, place.batch);
        for (int64_t k0 = 0; k0 < depth; k0 += BK, advance()) {
            char *const tile = stages + stage * kStage;
            const int k_left = part(depth - k0, BK);
            ptx::wait(empty + stage, turn ^ 1); // the first round finds all of them empty
            bring<BM>(tile, boxes_a, a, block_row, k0, m_left, k_left, place.batch, full + stage);
            bring<BN>(tile + kBytesA, boxes_b, b, block_column, k0, n_left, k_left, place.batch, full + stage);
            __syncwarp();
            if (lane == 0)
                ptx::arrive(full + stage);
        }
        return;
    }

    // multiply
    float acc[BN / 2] = {};
    const uint64_t origin = tile_descriptor(ptx::shared_address(stages));
    const uint64_t tile_a = origin + descriptor_step(group * 64 * kRow), tile_b = origin + descriptor_step(kBytesA);
    int before = 0;
    ptx::fence_accumulators(acc);
#pragma unroll 1
    for (int64_t k0 = 0; k0 < depth; k0 += BK, advance()) {
        ptx::wait(full + stage, turn);
#pragma unroll
        for (int k = 0; k < BK; k += 8)
            ptx::multiply_tf32(acc, tile_a + descriptor_step(stage * kStage + k * 4),
                               tile_b + descriptor_step(stage * kStage + k * 4));
        ptx::commit_multiplies();
        ptx::wait_multiplies<1>();
        if (k0 > 0 && lane == 0)
            ptx::arrive(empty + before);
        before = stage;
    }
    ptx::wait_multiplies<0>(acc);

    // store
    float *const gmem_c = problem.c.matrix(place.batch) + block_row + block_column * problem.c.ld;
#pragma unroll
    for (int i = 0; i < BN / 2; ++i) {
        const int row = group * 64 + fragment_row(thread, i), column = fragment_column(thread, i);
        if (row < m_left && column < n_left)
            epilogue.store(gmem_c + row + column * problem.c.ld, acc[i]);
    }
#endif
}

double cost(const Problem &problem, const Device &device) {
    constexpr TileRate kRate{1, {4, 3, 5, 4}, 1, 5e-6, 0};
    return predict(problem, device, BM, BN, kRate, kRate.resident);
}

Status launch_wgmma_tf32(const Problem &problem, const Launch &launch_on) {
    const auto know = [&](const Operand &operand, int64_t x, int side, bool along_k, Boxes *boxes) {
        constexpr int64_t kMost = int64_t{1} << 31; // what the engine counts with
        boxes->known =
            along_k && can_map(operand, problem.batch) && std::max({x, problem.k, problem.batch}) < kMost - BN;
        return boxes->known
                   ? map_matrices(operand, problem.k, x, problem.batch, BK, side, false, CU_TENSOR_MAP_SWIZZLE_128B,
                                  &boxes->matrices, CU_TENSOR_MAP_DATA_TYPE_TFLOAT32)
                   : kSuccess;
    };
    Boxes a = {}, b = {};
    PYBLAS_TRY(know(problem.a, problem.m, BM, problem.transa == Op::T && problem.k > 0, &a));
    PYBLAS_TRY(know(problem.b, problem.n, BN, problem.transb == Op::N && problem.k > 0, &b));
    const TileGrid grid = TileGrid::of(problem, BM, BN);
    PYBLAS_TRY(allow_shared<wgmma_tf32>(kShared));
    return launch<wgmma_tf32>({grid.blocks, kThreads, kShared, launch_on.stream}, problem, grid, a, b);
}

constexpr Footprint kFootprint{kThreads, 1, kShared};

constexpr Kernel kRows[] = {
    {"wgmma_tf32_128x256x32", "wgmma_tf32", Engine::gpu, modes(ComputeMode::tf32), 90, true, refuses_nothing, nullptr,
     cost, launch_wgmma_tf32, false, kFootprint},
};

} // namespace

KernelRows wgmma_tf32_rows() {
    return rows(kRows);
}

} // namespace pyblas
