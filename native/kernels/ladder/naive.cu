// naive: one thread, one output. threadIdx.x runs along a row of C, the strided direction, so the 32 lanes of a warp
// touch 32 different sectors with every store and with every load of op(A) or op(B) that moves along n.
//
//         n: lanes 0 1 2 .. 31            each lane walks all of k alone
//       +---------------------+
//     m | warp 0 > > > > > >  |           2 loads for one multiply-add
//       | warp 1 > > > > > >  |
//       +---------------------+
//
// 1024 threads, no shared memory. Refuses nothing: it is the row that is always there. First rung of every GEMM ladder.
#include "kernel.hpp"

#include "../device/epilogue.cuh"
#include "../device/launch.cuh"
#include "../device/load.cuh"
#include "../device/tile.cuh"

namespace pyblas {
namespace {

using Tile = BlockTile<32, 32, 1, 1, 1>;

__global__ void __launch_bounds__(Tile::kThreads) naive(__grid_constant__ const Problem problem, const TileGrid grid) {
    // place
    const TilePlace place = place_tile(grid);
    const int64_t row = place.row * Tile::BM + threadIdx.x / Tile::BN;
    const int64_t column = place.column * Tile::BN + threadIdx.x % Tile::BN;
    const Epilogue epilogue(problem);
    if (!place.exists || row >= problem.m || column >= problem.n || epilogue.idle())
        return;

    // load, multiply, advance
    float acc = 0.0f;
    if (const int64_t depth = epilogue.depth()) {
        const View a = view_a(problem, place.batch), b = view_b(problem, place.batch);
        const float *gmem_a = a.at(row, 0), *gmem_b = b.at(column, 0);
        for (int64_t k = 0; k < depth; ++k, gmem_a += a.step_k, gmem_b += b.step_k)
            acc = fmaf(*gmem_a, *gmem_b, acc);
    }

    // store
    epilogue.store(problem.c.matrix(place.batch) + row + column * problem.c.ld, acc);
}

double cost(const Problem &problem, const Device &device) {
    constexpr TileRate kRate{2, {0.0075, 0.0075, 0.0075, 0.0075}, 0.5, 1e-6, 0};
    return predict(problem, device, Tile::BM, Tile::BN, kRate, kRate.resident);
}

Status launch_naive(const Problem &problem, const Launch &launch_on) {
    const TileGrid grid = TileGrid::of(problem, Tile::BM, Tile::BN);
    return launch<naive>({grid.blocks, Tile::kThreads, 0, launch_on.stream}, problem, grid);
}

constexpr Footprint kFootprint{Tile::kThreads, 1, 0};

constexpr Kernel kRows[] = {
    {"naive_32x32x1", "naive", Engine::gpu, kFp32Modes, 75, false, refuses_nothing, nullptr, cost, launch_naive, false,
     kFootprint},
};

} // namespace

KernelRows naive_rows() {
    return rows(kRows);
}

} // namespace pyblas
