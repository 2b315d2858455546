// warp_tile: the FP32 kernel that ships. A block's tile is cut into warps, a warp's into lanes, a lane's into quads of
// 4 rows x 4 columns held in registers; tiles of op(A) and op(B) come ahead of the multiply by asynchronous copies.
//
//     block BM x BN          warp WM x WN, 8 x 4 lanes           lane TM x TN
//    +------+------+        +-----------+-----------+         [4x4] .. [4x4]     a quad is one 128-bit shared read;
//    | warp | warp |  --->  | 8x4 quads | 8x4 quads |  --->     :        :       quads of a lane lie 8 and 4 quads
//    +------+------+        +-----------+-----------+         [4x4] .. [4x4]     apart, so a warp reads whole lines
//    | warp | warp |
//    +------+------+        TM + TN floats read for TM * TN multiply-adds; sums are folded every 32 to 1024 of k
//
// 128x128: 256 threads, 126 registers, 33 KB, and 64 KB of folded sums; 32x32: 64 threads, 18 KB and 4 KB. Refuses
// devices with less. The tiling is CUTLASS's SIMT one; folding keeps the error flat in k (Higham's blocked summation).
#include "warp_tile.cuh"

#include "../device/launch.cuh"

namespace pyblas {
namespace {

// Columns of C that are read before the first of them is written: as many as there are registers for.
template <class Tile>
constexpr int kAhead = Tile::TM * Tile::TN < 64                 ? 4
                       : Tile::kThreads * Tile::kResident < 512 ? 2
                                                                : 1;

template <class Tile, bool ContiguousM, bool ContiguousN>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident)
    warp_tile(__grid_constant__ const Problem problem, const TileGrid grid) {
    // place
    const TilePlace place = place_tile(grid);
    const Epilogue scalars(problem);
    if (!place.exists || scalars.idle())
        return;
    const int64_t block_row = place.row * Tile::BM, block_column = place.column * Tile::BN;

    // load, multiply, advance
    float acc[Tile::TN][Tile::TM] = {};
    if (const int64_t depth = scalars.depth())
        walk<Tile, ContiguousM, ContiguousN>(problem, place.batch, block_row, block_column, 0, depth,
                                             fold_depth<Tile>(problem) / Tile::BK, acc);

    // store
    store_tile<Tile, kAhead<Tile>>(
        problem, place.batch, block_row, block_column, reinterpret_cast<float *>(dynamic_shared()),
        [] { __syncthreads(); }, acc);
}

template <class Tile>
const char *refuses(const Problem &problem, const Device &device) {
    return blocks_that_fit<Tile>(folds<Tile>(problem), device) < 1
               ? "a block needs more shared memory than the device gives"
               : nullptr;
}

template <class Tile, bool ContiguousM, bool ContiguousN>
Status start(const Problem &problem, const Launch &launch_on) {
    using Parts = Layout<Tile, ContiguousM, ContiguousN>;
    const TileGrid grid = TileGrid::of(problem, Tile::BM, Tile::BN);
    const int bytes = Parts::bytes(folds<Tile>(problem));
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
    {"warp_tile_32x32x16", "warp_tile", Engine::gpu, kFp32Modes, 75, false, refuses<Tile32>, nullptr, nullptr,
     launch_warp_tile<Tile32>, true, kWarpTileFootprint<Tile32>, warp_tile_work<Tile32>},
    {"warp_tile_64x64x16", "warp_tile", Engine::gpu, kFp32Modes, 75, false, refuses<Tile64>, nullptr, nullptr,
     launch_warp_tile<Tile64>, true, kWarpTileFootprint<Tile64>, warp_tile_work<Tile64>},
    {"warp_tile_128x64x16", "warp_tile", Engine::gpu, kFp32Modes, 75, false, refuses<Tile128x64>, nullptr, nullptr,
     launch_warp_tile<Tile128x64>, true, kWarpTileFootprint<Tile128x64>, warp_tile_work<Tile128x64>},
    {"warp_tile_128x128x16", "warp_tile", Engine::gpu, kFp32Modes, 75, false, refuses<Tile128>, nullptr, nullptr,
     launch_warp_tile<Tile128>, true, kWarpTileFootprint<Tile128>, warp_tile_work<Tile128>},
};

} // namespace

KernelRows warp_tile_rows() {
    return rows(kRows);
}

} // namespace pyblas
