// vectorized: the outer products of thread_tile_2d from 128-bit loads. A quad of four floats travels from global memory
// at once, and a thread's rows and columns are neighbours, so that it reads its share of a tile in quads as well.
//
//            B tile: BK x BN
//           +----------------+         global memory: a quad lies along the contiguous direction, whatever the op;
//    A tile |    b b b b     |         where it runs along k, its floats are stored in four rows: the tile is [k][x]
//   +------+|                |
//   |   a  ||    x x x x     |         (TM + TN) / 4 shared reads for TM * TN multiply-adds
//   |   a  ||    x x x x     |
//   +------++----------------+         barrier - load - barrier - multiply, as before
//
// 256 threads; 64x64x16: 8 KB of shared memory, 128x128x8: 8 KB. Refuses nothing. Sixth rung of the ladder.
#include "kernel.hpp"

#include "../device/epilogue.cuh"
#include "../device/launch.cuh"
#include "../device/load.cuh"
#include "../device/thread_quads.cuh"
#include "../device/tile.cuh"

namespace pyblas {
namespace {

// The quads of a thread lie side by side, and rows have no gaps. With two quads to a thread, eight neighbouring threads
// read every other quad: 16 of the 32 banks, twice.
template <int X, int T>
struct Neighbours {
    static constexpr int kRow = X; // floats
    static __device__ __forceinline__ int quad(int thread, int i) { return thread * (T / 4) + i; }
    static __device__ __forceinline__ int at(int k, int quad) { return k * kRow + 4 * quad; }
};

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 2)
    vectorized(__grid_constant__ const Problem problem, const TileGrid grid) {
    using OrderM = Neighbours<Tile::BM, Tile::TM>;
    using OrderN = Neighbours<Tile::BN, Tile::TN>;

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
        __shared__ __align__(16) float smem_a[Tile::BK * OrderM::kRow], smem_b[Tile::BK * OrderN::kRow];
        QuadCursor<Tile::BM, Tile::BK, Tile::kThreads, OrderM> quads_a(view_a(problem, place.batch), block_row,
                                                                       problem.m);
        QuadCursor<Tile::BN, Tile::BK, Tile::kThreads, OrderN> quads_b(view_b(problem, place.batch), block_column,
                                                                       problem.n);
        for (int64_t k0 = 0; k0 < depth; k0 += Tile::BK) {
            // load
            const int k_left = part(depth - k0, Tile::BK);
            const float4 quad_a = quads_a.load(k_left), quad_b = quads_b.load(k_left);
            quads_a.store(smem_a, quad_a);
            quads_b.store(smem_b, quad_b);
            __syncthreads();

            // multiply
            multiply_quads<OrderM, OrderN, Tile::BK>(smem_a, smem_b, row, column, acc);

            // advance
            __syncthreads();
        }
    }

    // store; alpha and beta are read again, which leaves two registers more for the multiply
    store_quads<OrderM, OrderN>(Epilogue(problem), gmem_c, problem.c.ld, m_left, n_left, row, column, acc);
}

using Tile64 = BlockTile<64, 64, 16, 4, 4>;
using Tile128 = BlockTile<128, 128, 8, 8, 8>;

double cost64(const Problem &problem, const Device &device) {
    constexpr TileRate kRate{2, {0.397, 0.406, 0.389, 0.398}, 0.6, 1e-6, 0};
    return predict(problem, device, Tile64::BM, Tile64::BN, kRate, kRate.resident);
}

double cost128(const Problem &problem, const Device &device) {
    constexpr TileRate kRate{2, {0.499, 0.514, 0.508, 0.511}, 0.75, 1e-6, 0};
    return predict(problem, device, Tile128::BM, Tile128::BN, kRate, kRate.resident);
}

template <class Tile>
Status launch_vectorized(const Problem &problem, const Launch &launch_on) {
    const TileGrid grid = TileGrid::of(problem, Tile::BM, Tile::BN);
    return launch<vectorized<Tile>>({grid.blocks, Tile::kThreads, 0, launch_on.stream}, problem, grid);
}

template <class Tile>
constexpr Footprint kFootprint{Tile::kThreads, 2, 4 * (Tile::BM + Tile::BN) * Tile::BK};

constexpr Kernel kRows[] = {
    {"vectorized_64x64x16", "vectorized", Engine::gpu, kFp32Modes, 75, false, refuses_nothing, nullptr, cost64,
     launch_vectorized<Tile64>, false, kFootprint<Tile64>},
    {"vectorized_128x128x8", "vectorized", Engine::gpu, kFp32Modes, 75, false, refuses_nothing, nullptr, cost128,
     launch_vectorized<Tile128>, false, kFootprint<Tile128>},
};

} // namespace

KernelRows vectorized_rows() {
    return rows(kRows);
}

} // namespace pyblas
