// conflict_free: vectorized with an order of quads in which no read of shared memory has to be made twice. Shared
// memory serves eight lanes at a time, 16 bytes each, if their quads lie in different banks: 8 places, by number
// modulo 8.
//
//   quads of threads 0 1 2 3 4 5 6 7, first ones, and the places they fall into
//     vectorized  0 2 4 6 8 10 12 14   0 2 4 6 0 2 4 6    two passes
//     halves      0 1 2 3 4 5 6 7      0 1 2 3 4 5 6 7    a thread's quads lie half a tile apart
//     padded      0 2 4 6 8 10 12 14   0 2 4 6 1 3 5 7    a quad of padding behind each eight
//     swizzled    0 2 4 6 8 10 12 14   0 2 4 6 1 3 5 7    odd eights have their neighbours exchanged
//
// All three also keep transposed stores, 16 x by two quads of k, apart. 256 threads, 128x128x8; 8448, 9472 and 8192
// bytes of shared memory. Refuses nothing. Seventh rung of the ladder.
#include "kernel.hpp"

#include "../device/epilogue.cuh"
#include "../device/launch.cuh"
#include "../device/load.cuh"
#include "../device/thread_quads.cuh"
#include "../device/tile.cuh"

namespace pyblas {
namespace {

// A quad of padding behind each eight, and one more, so that four rows further on is half the banks further on.
template <int X, int T>
struct Padded {
    static constexpr int kRow = X + X / 8 + 4; // floats
    static __device__ __forceinline__ int quad(int thread, int i) { return thread * (T / 4) + i; }
    static __device__ __forceinline__ int at(int k, int quad) { return k * kRow + 4 * (quad + quad / 8); }
};

// The place of a quad is its number with bits flipped: the lowest in odd eights, the third in odd quads of k.
template <int X, int T>
struct Swizzled {
    static constexpr int kRow = X; // floats
    static __device__ __forceinline__ int quad(int thread, int i) { return thread * (T / 4) + i; }
    static __device__ __forceinline__ int at(int k, int quad) {
        return k * kRow + 4 * (quad ^ (quad / 8 % 2) ^ (k / 4 % 2 * 4));
    }
};

template <class Tile, class OrderM, class OrderN>
__global__ void __launch_bounds__(Tile::kThreads, 2)
    conflict_free(__grid_constant__ const Problem problem, const TileGrid grid) {
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

    // store
    float *const gmem_c = problem.c.matrix(place.batch) + block_row + block_column * problem.c.ld;
    const int m_left = part(problem.m - block_row, Tile::BM), n_left = part(problem.n - block_column, Tile::BN);
    store_quads<OrderM, OrderN>(epilogue, gmem_c, problem.c.ld, m_left, n_left, row, column, acc);
}

using Tile = BlockTile<128, 128, 8, 8, 8>;

double cost(const Problem &problem, const Device &device) {
    constexpr TileRate kRate{2, {0.570, 0.577, 0.577, 0.595}, 0.75, 1e-6, 0};
    return predict(problem, device, Tile::BM, Tile::BN, kRate, kRate.resident);
}

template <template <int, int> class Order>
Status launch_conflict_free(const Problem &problem, const Launch &launch_on) {
    using OrderM = Order<Tile::BM, Tile::TM>;
    using OrderN = Order<Tile::BN, Tile::TN>;
    const TileGrid grid = TileGrid::of(problem, Tile::BM, Tile::BN);
    return launch<conflict_free<Tile, OrderM, OrderN>>({grid.blocks, Tile::kThreads, 0, launch_on.stream}, problem,
                                                       grid);
}

template <template <int, int> class Order>
constexpr Footprint kFootprint{Tile::kThreads, 2,
                               4 * (Order<Tile::BM, Tile::TM>::kRow + Order<Tile::BN, Tile::TN>::kRow) * Tile::BK};

constexpr Kernel kRows[] = {
    {"conflict_free_128x128x8", "conflict_free", Engine::gpu, kFp32Modes, 75, false, refuses_nothing, nullptr, cost,
     launch_conflict_free<Halves>, false, kFootprint<Halves>},
    {"conflict_free_128x128x8_padded", "conflict_free", Engine::gpu, kFp32Modes, 75, false, refuses_nothing, nullptr,
     cost, launch_conflict_free<Padded>, false, kFootprint<Padded>},
    {"conflict_free_128x128x8_swizzled", "conflict_free", Engine::gpu, kFp32Modes, 75, false, refuses_nothing, nullptr,
     cost, launch_conflict_free<Swizzled>, false, kFootprint<Swizzled>},
};

} // namespace

KernelRows conflict_free_rows() {
    return rows(kRows);
}

} // namespace pyblas
