// async_pipeline: tiles go from global to shared memory without passing through registers (cp.async), several steps
// ahead of the multiply. The registers that held the tile in flight are free, and a stage may take Stages - 1 steps to
// arrive.
//
//    step t:   wait for tile t | barrier | issue tile t + Stages - 1 into the buffer of t - 1 | multiply tile t
//
//    buffers   +---------+---------+---------+        one barrier: it says both that tile t has come for everybody and
//    Stages=3  | t       | t + 1   | t + 2   |        that everybody is done with tile t - 1
//              | multiply| arrives | issued  |
//              +---------+---------+---------+
//
// A copy moves 16 bytes where x is contiguous and pointer, ld and edge allow, otherwise 4, since copies cannot
// transpose; beyond the edges it reads nothing and writes zeros. 256 threads, 128x128x8; up to 8448 bytes of shared
// memory for each stage. Refuses nothing; built for SM 8.0 and later. Ninth rung of the ladder.
#include "kernel.hpp"

#include "../device/epilogue.cuh"
#include "../device/launch.cuh"
#include "../device/load.cuh"
#include "../device/thread_quads.cuh"
#include "../device/tile.cuh"

namespace pyblas {
namespace {

using Tile = BlockTile<128, 128, 8, 8, 8>;
using OrderM = Halves<Tile::BM, Tile::TM>; // which outputs a thread has
using OrderN = Halves<Tile::BN, Tile::TN>;

// Until the oldest of so many stages, less one that is not asked for, has come.
__device__ __forceinline__ void wait_for_oldest(int stages) {
    if (stages == 2)
        ptx::wait_copies<0>();
    else if (stages == 3)
        ptx::wait_copies<1>();
    else
        ptx::wait_copies<2>();
}

template <bool ContiguousM, bool ContiguousN>
__global__ void __launch_bounds__(Tile::kThreads, 2)
    async_pipeline(__grid_constant__ const Problem problem, const TileGrid grid, int stages) {
    using StreamA = TileStream<Tile::BM, Tile::BK, Tile::kThreads, ContiguousM>;
    using StreamB = TileStream<Tile::BN, Tile::BK, Tile::kThreads, ContiguousN>;

    // place
    const TilePlace place = place_tile(grid);
    const Epilogue scalars(problem);
    if (!place.exists || scalars.idle())
        return;
    const int64_t block_row = place.row * Tile::BM, block_column = place.column * Tile::BN;
    const int row = static_cast<int>(threadIdx.x) % Tile::kThreadsM;
    const int column = static_cast<int>(threadIdx.x) / Tile::kThreadsM;
    float *const gmem_c = problem.c.matrix(place.batch) + block_row + block_column * problem.c.ld;
    const int m_left = part(problem.m - block_row, Tile::BM), n_left = part(problem.n - block_column, Tile::BN);

    float acc[Tile::TN][Tile::TM] = {};
    if (const int64_t depth = scalars.depth()) {
        constexpr int kStage = StreamA::kFloats + StreamB::kFloats;
        const int last = (stages - 1) * kStage;
        float *const smem = reinterpret_cast<float *>(dynamic_shared());
        StreamA stream_a(view_a(problem, place.batch), block_row, problem.m);
        StreamB stream_b(view_b(problem, place.batch), block_column, problem.n);
        const auto load = [&](float *stage, int64_t k_left) {
            if (k_left > 0) {
                stream_a.next(stage, part(k_left, Tile::BK));
                stream_b.next(stage + StreamA::kFloats, part(k_left, Tile::BK));
            }
            ptx::commit_copies(); // also when empty: the wait counts groups
        };

        // load: all stages but one
        int64_t k_left = depth; // not yet asked for
        int read = 0, write = 0;
#pragma unroll 1
        for (; write < last; write += kStage, k_left -= Tile::BK)
            load(smem + write, k_left);

#pragma unroll 1
        for (; k_left > -(stages - 1) * Tile::BK; k_left -= Tile::BK) {
            wait_for_oldest(stages);
            __syncthreads();
            load(smem + write, k_left);

            // multiply
            const float *const tile_a = smem + read + 4 * row;
            const float *const tile_b = smem + read + StreamA::kFloats + 4 * column;
#pragma unroll
            for (int k = 0; k < Tile::BK; ++k) {
                float frag_a[Tile::TM], frag_b[Tile::TN];
                StreamA::template read<Tile::TM, Tile::kThreadsM>(tile_a, k, frag_a);
                StreamB::template read<Tile::TN, Tile::kThreadsN>(tile_b, k, frag_b);
#pragma unroll
                for (int j = 0; j < Tile::TN; ++j)
#pragma unroll
                    for (int i = 0; i < Tile::TM; ++i)
                        acc[j][i] = fmaf(frag_a[i], frag_b[j], acc[j][i]);
            }

            // advance
            read = read == last ? 0 : read + kStage;
            write = write == last ? 0 : write + kStage;
        }
    }

    // store; alpha and beta are read again, which leaves two registers more for the multiply
    store_quads<OrderM, OrderN>(Epilogue(problem), gmem_c, problem.c.ld, m_left, n_left, row, column, acc);
}

template <int Stages>
double cost(const Problem &problem, const Device &device) {
    constexpr TileRate kRate = Stages == 2   ? TileRate{2, {0.675, 0.717, 0.661, 0.652}, 0.75, 1e-6, 0}
                               : Stages == 3 ? TileRate{2, {0.700, 0.731, 0.655, 0.701}, 0.75, 1e-6, 0}
                                             : TileRate{2, {0.699, 0.730, 0.660, 0.686}, 0.75, 1e-6, 0};
    return predict(problem, device, Tile::BM, Tile::BN, kRate, kRate.resident);
}

// Rows of operands that are contiguous along k are the longer ones, as long as those of the orders.
constexpr int kStageFloats = Tile::BK * (OrderM::kRow + OrderN::kRow);

template <int Stages>
constexpr Footprint kFootprint{Tile::kThreads, 2, Stages * kStageFloats * 4};

Status launch_stages(const Problem &problem, const Launch &launch_on, int stages) {
    const TileGrid tiles = TileGrid::of(problem, Tile::BM, Tile::BN);
    const Grid grid{tiles.blocks, Tile::kThreads, stages * kStageFloats * 4, launch_on.stream};
    if (problem.transa == Op::N)
        return problem.transb == Op::T ? launch<async_pipeline<true, true>>(grid, problem, tiles, stages)
                                       : launch<async_pipeline<true, false>>(grid, problem, tiles, stages);
    return problem.transb == Op::T ? launch<async_pipeline<false, true>>(grid, problem, tiles, stages)
                                   : launch<async_pipeline<false, false>>(grid, problem, tiles, stages);
}

template <int Stages>
Status launch_async_pipeline(const Problem &problem, const Launch &launch_on) {
    return launch_stages(problem, launch_on, Stages);
}

constexpr Kernel kRows[] = {
    {"async_pipeline_128x128x8_2_stages", "async_pipeline", Engine::gpu, kFp32Modes, 80, false, refuses_nothing,
     nullptr, cost<2>, launch_async_pipeline<2>, false, kFootprint<2>},
    {"async_pipeline_128x128x8_3_stages", "async_pipeline", Engine::gpu, kFp32Modes, 80, false, refuses_nothing,
     nullptr, cost<3>, launch_async_pipeline<3>, false, kFootprint<3>},
    {"async_pipeline_128x128x8_4_stages", "async_pipeline", Engine::gpu, kFp32Modes, 80, false, refuses_nothing,
     nullptr, cost<4>, launch_async_pipeline<4>, false, kFootprint<4>},
};

} // namespace

KernelRows async_pipeline_rows() {
    return rows(kRows);
}

} // namespace pyblas
