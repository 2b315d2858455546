// double_buffer: conflict_free with two tiles in shared memory. While one is multiplied, the next is on its way from
// global memory into registers; after the multiply it goes from there into the other buffer. Loads no longer wait for
// the multiply nor the multiply for loads, and one barrier for each step is enough.
//
//    global    | load 1         | load 2         | load 3         |        registers hold the tile in flight:
//    buffer 0  | multiply 0     |        store 2 | multiply 2     |        a quad of each operand in each thread
//    buffer 1  |        store 1 | multiply 1     |        store 3 |
//           barrier          barrier          barrier
//
// 256 threads, 128x128x8, 16896 bytes of shared memory. Refuses nothing. Eighth rung of the ladder.
#include "kernel.hpp"

#include "../device/epilogue.cuh"
#include "../device/launch.cuh"
#include "../device/load.cuh"
#include "../device/thread_quads.cuh"
#include "../device/tile.cuh"

namespace pyblas {
namespace {

using Tile = BlockTile<128, 128, 8, 8, 8>;
using OrderM = Halves<Tile::BM, Tile::TM>;
using OrderN = Halves<Tile::BN, Tile::TN>;

__global__ void __launch_bounds__(Tile::kThreads, 2)
    double_buffer(__grid_constant__ const Problem problem, const TileGrid grid) {
    // place
    const TilePlace place = place_tile(grid);
    const Epilogue epilogue(problem);
    if (!place.exists || epilogue.idle())
        return;
    const int64_t block_row = place.row * Tile::BM, block_column = place.column * Tile::BN;
    const int row = static_cast<int>(threadIdx.x) % Tile::kThreadsM;
    const int column = static_cast<int>(threadIdx.x) / Tile::kThreadsM;

    float acc[Tile::TN][Tile::TM] = {};
    if (const int64_t depth = epilogue.depth()) {
        constexpr int kFloatsA = Tile::BK * OrderM::kRow, kFloatsB = Tile::BK * OrderN::kRow;
        __shared__ __align__(16) float smem_a[2 * kFloatsA], smem_b[2 * kFloatsB];
        QuadCursor<Tile::BM, Tile::BK, Tile::kThreads, OrderM> quads_a(view_a(problem, place.batch), block_row,
                                                                       problem.m);
        QuadCursor<Tile::BN, Tile::BK, Tile::kThreads, OrderN> quads_b(view_b(problem, place.batch), block_column,
                                                                       problem.n);
        const auto store = [&](int buffer, const float4 &quad_a, const float4 &quad_b) {
            quads_a.store(smem_a + buffer * kFloatsA, quad_a);
            quads_b.store(smem_b + buffer * kFloatsB, quad_b);
        };

        const int k_first = part(depth, Tile::BK);
        float4 quad_a = quads_a.load(k_first), quad_b = quads_b.load(k_first);
        store(0, quad_a, quad_b);
        __syncthreads();
        int buffer = 0;
        for (int64_t k_left = depth - Tile::BK;; k_left -= Tile::BK, buffer ^= 1) {
            // load
            const bool more = k_left > 0;
            if (more) {
                quad_a = quads_a.load(part(k_left, Tile::BK));
                quad_b = quads_b.load(part(k_left, Tile::BK));
            }

            // multiply
            multiply_quads<OrderM, OrderN, Tile::BK>(smem_a + buffer * kFloatsA, smem_b + buffer * kFloatsB, row,
                                                     column, acc);
            if (!more)
                break;

            // advance: everybody left the other buffer before the last barrier
            store(buffer ^ 1, quad_a, quad_b);
            __syncthreads();
        }
    }

    // store
    float *const gmem_c = problem.c.matrix(place.batch) + block_row + block_column * problem.c.ld;
    const int m_left = part(problem.m - block_row, Tile::BM), n_left = part(problem.n - block_column, Tile::BN);
    store_quads<OrderM, OrderN>(epilogue, gmem_c, problem.c.ld, m_left, n_left, row, column, acc);
}

double cost(const Problem &problem, const Device &device) {
    constexpr TileRate kRate{2, {0.653, 0.658, 0.612, 0.643}, 0.75, 1e-6, 0};
    return predict(problem, device, Tile::BM, Tile::BN, kRate, kRate.resident);
}

Status launch_double_buffer(const Problem &problem, const Launch &launch_on) {
    const TileGrid grid = TileGrid::of(problem, Tile::BM, Tile::BN);
    return launch<double_buffer>({grid.blocks, Tile::kThreads, 0, launch_on.stream}, problem, grid);
}

constexpr Footprint kFootprint{Tile::kThreads, 2, 4 * (OrderM::kRow + OrderN::kRow) * Tile::BK * 2};

constexpr Kernel kRows[] = {
    {"double_buffer_128x128x8", "double_buffer", Engine::gpu, kFp32Modes, 75, false, refuses_nothing, nullptr, cost,
     launch_double_buffer, false, kFootprint},
};

} // namespace

KernelRows double_buffer_rows() {
    return rows(kRows);
}

} // namespace pyblas
