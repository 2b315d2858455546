// box_tile: many tiles of C, from batches above all. One thread asks the copy engine for boxes of both operands, as
// they lie in global memory: op, ld, gaps between matrices and edges are the engine's affair, and no other instruction
// copies. Blocks stay, and boxes of the next tile come while this one is multiplied and stored.
//
//     copy engine        slots           warps, multiplying                 barriers in shared memory:
//     A, B  ------> [A B] [A B] [A B]  -----> 4 k of one side wait in       come, for each slot, when its bytes are
//     there
//                                             registers, quads of the       left, when all warps have multiplied it
//                                             other stream past them
//
// Operands whose address or steps are no multiples of 16 bytes are copied float by float, by all threads. 64 to 128
// threads, up to 6 blocks on a multiprocessor and all of its shared memory. Refuses deep k: sums are not folded.
#include "box_tile.cuh"

namespace pyblas {
namespace {

template <class Tile>
const char *refuses(const Problem &problem, const Device &device) {
    constexpr int64_t kMost = int64_t{1} << 30, kSum = 256; // of k, added one after another in other kernels too
    const int64_t rows = (problem.m + Tile::BM - 1) / Tile::BM, columns = (problem.n + Tile::BN - 1) / Tile::BN;
    if (problem.k > (problem.batch == 1 || problem.batch_invariant ? kSum : 2 * kSum))
        return "k is deep, and it adds all products of a sum one after another";
    if (std::max(problem.m, problem.n) > kMost || rows > kMost / columns || rows * columns > kMost / problem.batch)
        return "a side is longer than 2^30, or there are more tiles";
    return Tile::kRoom > device.shared_per_block ? "a block needs more shared memory than the device gives" : nullptr;
}

template <class Tile, bool ContiguousM, bool ContiguousN>
Status start(const Problem &problem, const Launch &launch_on) {
    using Parts = BoxParts<Tile, ContiguousM, ContiguousN>;
    const Device &device = *launch_on.device;
    BoxPlan plan;
    PYBLAS_TRY(
        (plan_boxes<Tile, ContiguousM, ContiguousN>(problem, device, Tile::kResident * device.multiprocessors, &plan)));
    PYBLAS_TRY((allow_shared<box_tile<Tile, ContiguousM, ContiguousN>>(Parts::kBytes)));
    return launch<box_tile<Tile, ContiguousM, ContiguousN>>(
        {plan.blocks, Tile::kThreads, Parts::kBytes, launch_on.stream, device.starts_early}, problem, plan);
}

template <class Tile>
Work work(const Problem &problem, const Device &device) {
    return box_work<Tile>(problem, device, Tile::kResident);
}

template <class Tiles>
Status launch_box_tile(const Problem &problem, const Launch &launch_on) {
    using Straight = typename Tiles::template Of<true>;
    using Turned = typename Tiles::template Of<false>;
    if (problem.transa == Op::N)
        return problem.transb == Op::T ? start<Straight, true, true>(problem, launch_on)
                                       : start<Straight, true, false>(problem, launch_on);
    return problem.transb == Op::T ? start<Turned, false, true>(problem, launch_on)
                                   : start<Turned, false, false>(problem, launch_on);
}

using Box48 = BoxTile<48, 48, 48, 48, 48, 4, 12, 6, 2>;
using Box64x128 = BoxTile<64, 128, 32, 64, 32, 8, 8, 3>;
using Box128x64 = BoxTile<128, 64, 32, 64, 32, 8, 8, 3>;
using Boxes48 = BoxTiles<Box48, Box48>;
using Boxes96 = BoxTiles<BoxTile<96, 96, 32, 32, 96, 8, 12, 4>, BoxTile<96, 96, 32, 96, 32, 12, 8, 4>>;
using Boxes100 = BoxTiles<BoxTile<100, 100, 20, 100, 100, 4, 20, 4>, BoxTile<100, 100, 20, 100, 100, 20, 4, 4>>;
using Boxes64x128 = BoxTiles<Box64x128, Box64x128>;
using Boxes128x64 = BoxTiles<Box128x64, Box128x64>;
using Boxes128 = BoxTiles<BoxTile<128, 128, 32, 64, 64, 8, 16, 2>, BoxTile<128, 128, 32, 128, 32, 16, 8, 2>>;

template <class Tile>
constexpr Footprint kFootprint{Tile::kThreads, Tile::kResident, Tile::kRoom};

#define PYBLAS_BOX_ROW(name, Tiles)                                                                                    \
    {"box_tile_" name,       "box_tile", Engine::gpu,       kFp32Modes, 90, true, refuses<Tiles>, nullptr, nullptr,    \
     launch_box_tile<Tiles>, true,       kFootprint<Tiles>, work<Tiles>}
constexpr Kernel kRows[] = {
    PYBLAS_BOX_ROW("48x48x48", Boxes48),      PYBLAS_BOX_ROW("96x96x32", Boxes96),
    PYBLAS_BOX_ROW("100x100x20", Boxes100),   PYBLAS_BOX_ROW("64x128x32", Boxes64x128),
    PYBLAS_BOX_ROW("128x64x32", Boxes128x64), PYBLAS_BOX_ROW("128x128x32", Boxes128),
};
#undef PYBLAS_BOX_ROW

} // namespace

KernelRows box_tile_rows() {
    return rows(kRows);
}

} // namespace pyblas
