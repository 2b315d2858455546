// What the kernels of planes do with unfit rows and columns (unfit.cuh), as a kernel of its own, which the simulator
// can run. Blocks go round the 128 x 128 tiles of C and look at the exponents of their rows and columns, eight tiles at
// a time.
#include "tensor/unfit.cuh"

#include <algorithm>

#include "device/launch.cuh"
#include "unfit.hpp"

namespace pyblas {
namespace {

using namespace unfit;

__device__ __forceinline__ Place place_of(const Problem &problem, const TileGrid &grid, int64_t number) {
    const TilePlace tile = place_tile(grid, number);
    const int64_t row = tile.row * kSide, column = tile.column * kSide;
    return {row, column, tile.batch, part(problem.m - row, kSide), part(problem.n - column, kSide)};
}

template <bool ContiguousM, bool ContiguousN>
__global__ void __launch_bounds__(kThreads, Tile::kResident)
    multiply_unfit_parts(__grid_constant__ const Problem problem, const TileGrid grid, const Marks rows,
                         const Marks columns) {
    __shared__ int smem_rows[kWarps], smem_columns[kWarps];
    ptx::launch_dependents();
    ptx::wait_for_predecessors();
    const Epilogue epilogue(problem);
    if (kEmptyHere || epilogue.depth() == 0) // nothing was packed, and nothing left out
        return;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    for (int64_t first = blockIdx.x; first < grid.blocks; first += int64_t{kWarps} * gridDim.x) {
        const int64_t mine = first + warp * int64_t{gridDim.x};
        int row_count = 0, column_count = 0;
        if (mine < grid.blocks) {
            const Place place = place_of(problem, grid, mine);
            row_count = count_unfit(rows, place.batch, place.row, place.rows);
            column_count = count_unfit(columns, place.batch, place.column, place.columns);
        }
        if (threadIdx.x % 32 == 0)
            smem_rows[warp] = row_count, smem_columns[warp] = column_count;
        __syncthreads();
#pragma unroll 1
        for (int i = 0; i < kWarps; ++i) {
            const int row_count_here = smem_rows[i], column_count_here = smem_columns[i];
            if (row_count_here + column_count_here > 0)
                multiply_place<ContiguousM, ContiguousN>(problem, epilogue,
                                                         place_of(problem, grid, first + i * int64_t{gridDim.x}), rows,
                                                         columns, row_count_here, column_count_here);
        }
        __syncthreads();
    }
}

template <bool ContiguousM, bool ContiguousN>
Status start(const Problem &problem, const PackedProduct &packed, const Launch &launch_on) {
    const TileGrid grid = TileGrid::of(problem, kSide, kSide);
    const int bytes =
        folds<Tile>(problem) ? kSharedBytes<ContiguousM, ContiguousN> : kSharedBytes<ContiguousM, ContiguousN, false>;
    if (bytes > kSharedWithoutOptIn)
        PYBLAS_TRY(
            (allow_shared<multiply_unfit_parts<ContiguousM, ContiguousN>>(kSharedBytes<ContiguousM, ContiguousN>)));
    const int64_t slots = int64_t{Tile::kResident} * launch_on.device->multiprocessors;
    const bool early = launch_on.device->sm >= 90;
    return launch<multiply_unfit_parts<ContiguousM, ContiguousN>>(
        {std::min(grid.blocks, slots), kThreads, bytes, launch_on.stream, early}, problem, grid, Marks::of(packed.a),
        Marks::of(packed.b));
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
