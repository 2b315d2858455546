// warp_tile: the FP32 kernel that ships. A block's tile is cut into warps, a warp's into threads of TM x TN outputs
// held in registers; tiles of op(A) and op(B) travel ahead of the multiply by asynchronous copies, kStages deep.
//
//      block BM x BN           warp WM x WN: lanes side by side, each with quads of 4 rows and 4 columns
//    +------+------+           +----+----+----+----+ +----+----+--    a quad is one 128-bit shared read; the lanes of
//    | warp | warp |    --->   | l0 | l1 | l2 | .. | | l0 | l1 | ..   a warp together read 128 bytes of a row of the
//    +------+------+           +----+----+----+----+ +----+----+--    tile [k][x]: no bank conflicts
//    | warp | warp |
//    +------+------+           sums longer than 256 are folded: the accumulators move to a second level every 256 of k
//
// 128x128x8: 256 threads, 128 registers, 33 KB, and 64 KB where k > 256. Refuses devices with less shared memory.
// The tiling is CUTLASS's SIMT one; the folded sum keeps the error flat in k.
#include "kernel.hpp"

#include "../device/epilogue.cuh"
#include "../device/launch.cuh"
#include "../device/load.cuh"
#include "../device/tile.cuh"

namespace pyblas {
namespace {

constexpr int kFold = 256; // of k

template <class Tile, bool ContiguousM, bool ContiguousN>
struct Layout {
    using StreamA = TileStream<Tile::BM, Tile::BK, Tile::kThreads, ContiguousM>;
    using StreamB = TileStream<Tile::BN, Tile::BK, Tile::kThreads, ContiguousN>;
    static constexpr int kStageFloats = StreamA::kFloats + StreamB::kFloats;
    static constexpr int kStagesFloats = Tile::kStages * kStageFloats;
    static constexpr int kTotalsFloats = Tile::BM * Tile::BN;

    static constexpr int bytes(bool folds) { return 4 * (kStagesFloats + (folds ? kTotalsFloats : 0)); }
};

template <class Tile, bool ContiguousM, bool ContiguousN>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident)
    warp_tile(__grid_constant__ const Problem problem, const TileGrid grid) {
    using Parts = Layout<Tile, ContiguousM, ContiguousN>;
    using StreamA = typename Parts::StreamA;
    using StreamB = typename Parts::StreamB;
    constexpr int kQuadsM = Tile::TM / 4, kQuadsN = Tile::TN / 4;
    constexpr int kQuadM = Tile::kLanesM * 4, kQuadN = Tile::kLanesN * 4; // from one quad of a thread to its next

    // place
    const TilePlace place = place_tile(grid);
    const Epilogue epilogue(problem);
    if (!place.exists || epilogue.idle())
        return;
    const int64_t block_row = place.row * Tile::BM, block_column = place.column * Tile::BN;
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
    const int row = warp % (Tile::BM / Tile::WM) * Tile::WM + lane % Tile::kLanesM * 4;
    const int column = warp / (Tile::BM / Tile::WM) * Tile::WN + lane / Tile::kLanesM * 4;

    float acc[Tile::TN][Tile::TM] = {};
    if (const int64_t depth = epilogue.depth()) {
        extern __shared__ float4 shared_memory[];
        float *const smem = reinterpret_cast<float *>(shared_memory);
        float4 *const totals = reinterpret_cast<float4 *>(smem + Parts::kStagesFloats) + thread;
        StreamA stream_a(view_a(problem, place.batch), block_row, problem.m);
        StreamB stream_b(view_b(problem, place.batch), block_column, problem.n);

        int64_t k_left = depth; // not yet asked for
        const auto load = [&](float *stage) {
            if (k_left > 0) {
                const int k = part(k_left, Tile::BK);
                stream_a.next(stage, k);
                stream_b.next(stage + StreamA::kFloats, k);
                k_left -= Tile::BK;
            }
            ptx::commit_copies(); // an empty group keeps the count of groups equal to the count of stages
        };

        // load: all stages but one
#pragma unroll
        for (int stage = 0; stage < Tile::kStages - 1; ++stage)
            load(smem + stage * Parts::kStageFloats);

        int read = 0, write = (Tile::kStages - 1) * Parts::kStageFloats, until_fold = kFold / Tile::BK;
        bool folded = false;
        for (int64_t tiles = (depth + Tile::BK - 1) / Tile::BK; tiles > 0; --tiles) {
            // The oldest stage has arrived, and everybody is done with the one that is overwritten next.
            ptx::wait_copies<Tile::kStages - 2>();
            __syncthreads();
            load(smem + write);

            // multiply
            const float *const smem_a = smem + read + row;
            const float *const smem_b = smem + read + StreamA::kFloats + column;
            float frag_a[2][Tile::TM], frag_b[2][Tile::TN];
            const auto fetch = [&](int k) {
#pragma unroll
                for (int quad = 0; quad < kQuadsM; ++quad) {
                    const float4 value = *reinterpret_cast<const float4 *>(smem_a + k * StreamA::kRow + quad * kQuadM);
                    float *frag = frag_a[k % 2] + 4 * quad;
                    frag[0] = value.x, frag[1] = value.y, frag[2] = value.z, frag[3] = value.w;
                }
#pragma unroll
                for (int quad = 0; quad < kQuadsN; ++quad) {
                    const float4 value = *reinterpret_cast<const float4 *>(smem_b + k * StreamB::kRow + quad * kQuadN);
                    float *frag = frag_b[k % 2] + 4 * quad;
                    frag[0] = value.x, frag[1] = value.y, frag[2] = value.z, frag[3] = value.w;
                }
            };
            fetch(0);
#pragma unroll
            for (int k = 0; k < Tile::BK; ++k) {
                if (k + 1 < Tile::BK)
                    fetch(k + 1);
#pragma unroll
                for (int j = 0; j < Tile::TN; ++j)
#pragma unroll
                    for (int i = 0; i < Tile::TM; ++i)
                        acc[j][i] = fmaf(frag_a[k % 2][i], frag_b[k % 2][j], acc[j][i]);
            }

            // advance
            read = read + Parts::kStageFloats == Parts::kStagesFloats ? 0 : read + Parts::kStageFloats;
            write = write + Parts::kStageFloats == Parts::kStagesFloats ? 0 : write + Parts::kStageFloats;

            // fold: each thread has its own column of totals. The last fold leaves the sum in the accumulators.
            if (--until_fold == 0 || (folded && tiles == 1)) {
                until_fold = kFold / Tile::BK;
                const bool last = tiles == 1;
                if (!last || folded) {
#pragma unroll
                    for (int quad = 0; quad < Tile::TM * Tile::TN / 4; ++quad) {
                        float *sum = &acc[quad / kQuadsM][quad % kQuadsM * 4];
                        float4 *const total = totals + quad * Tile::kThreads;
                        float4 old = folded ? *total : float4{0.0f, 0.0f, 0.0f, 0.0f};
                        old = float4{old.x + sum[0], old.y + sum[1], old.z + sum[2], old.w + sum[3]};
                        if (!last)
                            *total = old;
                        sum[0] = last ? old.x : 0.0f, sum[1] = last ? old.y : 0.0f;
                        sum[2] = last ? old.z : 0.0f, sum[3] = last ? old.w : 0.0f;
                    }
                    folded = true;
                }
            }
        }
    }

    // store: four rows at once where C's address, ld and edge allow
    const int m_left = part(problem.m - block_row, Tile::BM), n_left = part(problem.n - block_column, Tile::BN);
    float *const gmem_c = problem.c.matrix(place.batch) + block_row + row + (block_column + column) * problem.c.ld;
    const bool wide = reinterpret_cast<uintptr_t>(gmem_c) % 16 == 0 && problem.c.ld % 4 == 0 && m_left % 4 == 0;
#pragma unroll
    for (int j = 0; j < Tile::TN; ++j) {
        const int across = j / 4 * kQuadN + j % 4;
        if (column + across >= n_left)
            continue;
        float *const c = gmem_c + across * problem.c.ld;
#pragma unroll
        for (int quad = 0; quad < kQuadsM; ++quad) {
            const float (&sums)[4] = *reinterpret_cast<const float (*)[4]>(&acc[j][4 * quad]);
            if (wide) {
                if (row + quad * kQuadM < m_left)
                    epilogue.store4(c + quad * kQuadM, sums);
            } else {
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    if (row + quad * kQuadM + i < m_left)
                        epilogue.store(c + quad * kQuadM + i, sums[i]);
            }
        }
    }
}

using Tile64 = WarpTile<64, 64, 16, 32, 32, 8, 4, 3, 4>;
using Tile128 = WarpTile<128, 128, 16, 64, 32, 8, 8, 2, 2>;

template <class Tile>
constexpr int shared_bytes(const Problem &problem) {
    return Layout<Tile, false, false>::bytes(problem.k > kFold); // transposed tiles are the largest
}

template <class Tile>
const char *refuses(const Problem &problem, const Device &device) {
    return shared_bytes<Tile>(problem) > device.shared_per_block ? "the device has too little shared memory per block"
                                                                 : nullptr;
}

double cost64(const Problem &problem, const Device &device) {
    constexpr TileRate kRate{4, 0.6, 0.3, 2e-6};
    return predict(problem, device, Tile64::BM, Tile64::BN, kRate);
}

double cost128(const Problem &problem, const Device &device) {
    constexpr TileRate kRate{2, 0.75, 0.6, 2e-6};
    return predict(problem, device, Tile128::BM, Tile128::BN, kRate);
}

template <class Tile, bool ContiguousM, bool ContiguousN>
Status start(const Problem &problem, const Launch &launch_on) {
    using Parts = Layout<Tile, ContiguousM, ContiguousN>;
    const TileGrid grid = TileGrid::of(problem, Tile::BM, Tile::BN);
    const int bytes = Parts::bytes(problem.k > kFold);
    if (bytes > kSharedWithoutOptIn)
        PYBLAS_TRY((allow_shared<warp_tile<Tile, ContiguousM, ContiguousN>>(Parts::bytes(true))));
    return launch<warp_tile<Tile, ContiguousM, ContiguousN>>({grid.blocks, Tile::kThreads, bytes, launch_on.stream},
                                                             problem, grid);
}

template <class Tile>
Status launch_warp_tile(const Problem &problem, const Launch &launch_on) {
    if (problem.transa == Op::N)
        return problem.transb == Op::T ? start<Tile, true, true>(problem, launch_on)
                                       : start<Tile, true, false>(problem, launch_on);
    return problem.transb == Op::T ? start<Tile, false, true>(problem, launch_on)
                                   : start<Tile, false, false>(problem, launch_on);
}

constexpr Kernel kRows[] = {
    {"warp_tile_64x64x16", "warp_tile", Engine::gpu, kFp32Modes, 75, false, refuses<Tile64>, nullptr, cost64,
     launch_warp_tile<Tile64>},
    {"warp_tile_128x128x16", "warp_tile", Engine::gpu, kFp32Modes, 75, false, refuses<Tile128>, nullptr, cost128,
     launch_warp_tile<Tile128>},
};

} // namespace

KernelRows warp_tile_rows() {
    return rows(kRows);
}

} // namespace pyblas
