// unfit: what a product of planes leaves out. A row of op(A), or column of op(B), of which planes cannot hold every
// element spoils the results that it enters; those, and no others, are computed here by FP32 multiply-adds.
//
//            columns of C          a block looks at the exponents of its 128 rows and 128 columns, and leaves at once
//          . . x . . . . .         if all of them fit, which is nearly always so. Otherwise it walks k as warp_tile
//    rows  . . x . . . . .         does, and stores the results marked x.
//          x x x x x x x x
//
// So nobody counts or waits: a result depends on its own row and column alone. Threads, memory and refusals as
// warp_tile_128x128x16.
#include "pack.hpp"

#include "../device/epilogue.cuh"
#include "../device/launch.cuh"
#include "../simt/warp_tile.cuh"

namespace pyblas {
namespace {

using Tile = Tile128;

// Which rows of one operand are unfit.
struct Marks {
    const int32_t *exponents;
    int64_t step; // from one product to the next

    static Marks of(const Planes &planes) { return {planes.exponents, planes.batch == 1 ? 0 : planes.rows}; }
    __device__ __forceinline__ bool unfit(int64_t batch, int64_t x) const {
        return exponents[batch * step + x] == kUnfitRow;
    }
};

// Whether one of Side neighbours is unfit. Each warp looks for itself.
template <int Side>
__device__ __forceinline__ bool any_unfit(const Marks &marks, int64_t batch, int64_t x0, int64_t extent) {
    int found = 0;
#pragma unroll
    for (int i = 0; i < Side / 32; ++i) {
        const int64_t x = x0 + static_cast<int>(threadIdx.x) % 32 + 32 * i;
        found |= x < extent && marks.unfit(batch, x);
    }
#pragma unroll
    for (int flip = 16; flip > 0; flip /= 2)
        found |= __shfl_xor_sync(0xffffffff, found, flip);
    return found != 0;
}

template <bool ContiguousM, bool ContiguousN>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident)
    unfit(__grid_constant__ const Problem problem, const TileGrid grid, const Marks rows, const Marks columns) {
    // place
    ptx::launch_dependents();
    ptx::wait_for_predecessors();
    const TilePlace place = place_tile(grid);
    const Epilogue scalars(problem);
    if (!place.exists || scalars.depth() == 0) // without depth nothing was packed, and nothing left out
        return;
    const int64_t block_row = place.row * Tile::BM, block_column = place.column * Tile::BN;
    const bool any_row = any_unfit<Tile::BM>(rows, place.batch, block_row, problem.m);
    if (!any_unfit<Tile::BN>(columns, place.batch, block_column, problem.n) && !any_row)
        return;

    // load, multiply, advance
    float acc[Tile::TN][Tile::TM] = {};
    walk<Tile, ContiguousM, ContiguousN>(problem, place.batch, block_row, block_column, 0, scalars.depth(),
                                         fold_depth<Tile>(problem) / Tile::BK, acc);

    // store
    const auto [row, column] = ThreadPlace<Tile>::of();
    const Epilogue epilogue(problem);
    float *const gmem_c = problem.c.matrix(place.batch);
#pragma unroll
    for (int j = 0; j < Tile::TN; ++j) {
        const int64_t n = block_column + column + j / 4 * (Tile::kLanesN * 4) + j % 4;
        if (n >= problem.n)
            continue;
        const bool whole = columns.unfit(place.batch, n);
#pragma unroll
        for (int i = 0; i < Tile::TM; ++i) {
            const int64_t m = block_row + row + i / 4 * (Tile::kLanesM * 4) + i % 4;
            if (m < problem.m && (whole || rows.unfit(place.batch, m)))
                epilogue.store(gmem_c + m + n * problem.c.ld, acc[j][i]);
        }
    }
}

template <bool ContiguousM, bool ContiguousN>
Status start(const Problem &problem, const PackedProduct &packed, const Launch &launch_on) {
    using Parts = Layout<Tile, ContiguousM, ContiguousN>;
    const TileGrid grid = TileGrid::of(problem, Tile::BM, Tile::BN);
    const int bytes = Parts::bytes(folds<Tile>(problem));
    if (bytes > kSharedWithoutOptIn)
        PYBLAS_TRY((allow_shared<unfit<ContiguousM, ContiguousN>>(Parts::bytes(true))));
    const bool early = launch_on.device->sm >= 90;
    return launch<unfit<ContiguousM, ContiguousN>>({grid.blocks, Tile::kThreads, bytes, launch_on.stream, early},
                                                   problem, grid, Marks::of(packed.a), Marks::of(packed.b));
}

} // namespace

Status multiply_unfit(const Problem &problem, const PackedProduct &packed, const Launch &launch_on) {
    if (problem.transa == Op::N)
        return problem.transb == Op::T ? start<true, true>(problem, packed, launch_on)
                                       : start<true, false>(problem, packed, launch_on);
    return problem.transb == Op::T ? start<false, true>(problem, packed, launch_on)
                                   : start<false, false>(problem, packed, launch_on);
}

} // namespace pyblas
