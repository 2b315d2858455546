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
// Operands whose address or steps are no multiples of 16 bytes are copied float by float, by all threads. 32 to 256
// threads, up to 7 blocks on a multiprocessor and all of its shared memory. Refuses deep k: sums are not folded.
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

// Whether the copy engine can read both operands, as far as that does not depend on addresses.
bool steps_fit(const Problem &problem) {
    const auto fits = [&](const Operand &operand) {
        return !operand.array && operand.ld % 4 == 0 && (problem.batch == 1 || operand.stride % 4 == 0);
    };
    return fits(problem.a) && fits(problem.b) && (problem.transa == Op::N || problem.m % 4 == 0);
}

template <class Tile>
Work work(const Problem &problem, const Device &device) {
    const TileGrid grid = TileGrid::of(problem, Tile::BM, Tile::BN);
    const double rows = static_cast<double>(grid.rows), columns = static_cast<double>(grid.columns);
    const double m = static_cast<double>(problem.m) / rows, n = static_cast<double>(problem.n) / columns; // of a tile
    const double k = static_cast<double>((problem.k + 3) / 4 * 4);
    // Of the warps of a tile: those with nothing inside leave the multiply-adds to the others.
    const double warps = static_cast<double>((problem.m + Tile::WM - 1) / Tile::WM) / rows *
                         static_cast<double>((problem.n + Tile::WN - 1) / Tile::WN) / columns * Tile::kThreads / 32 /
                         (Tile::BM / Tile::WM * (Tile::BN / Tile::WN));
    Work work;
    work.spread(static_cast<double>(grid.blocks), Tile::kResident, device);
    work.blocks = std::min(work.blocks, 1.0 * Tile::kResident * device.multiprocessors); // each takes tile after tile
    work.move(problem);
    work.steps = k;
    work.folds = std::ceil(k / Tile::BK);
    work.flops = 2.0 * 32 * warps * Tile::TM * Tile::TN * k;
    // Boxes are filled to their end, with zeros; by threads, too, as far as these look.
    const double boxes = work.folds * Tile::BK * (Tile::BM + Tile::BN); // floats
    if (steps_fit(problem)) {
        work.copies = boxes / 4;
    } else {
        work.narrow = (Tile::BM + Tile::BN) * k;
        work.trips = boxes / Tile::kThreads;
    }
    work.bytes = 4 * ((m + n) * k + m * n);
    if (problem.c.ld % 4 != 0)
        work.single = m / Tile::BM * n / Tile::BN;
    return work;
}

template <class Tile, bool ContiguousM, bool ContiguousN>
Status start(const Problem &problem, const Launch &launch_on) {
    using Parts = BoxParts<Tile, ContiguousM, ContiguousN>;
    using A = typename Parts::A;
    using B = typename Parts::B;
    const Device &device = *launch_on.device;
    const TileGrid grid = TileGrid::of(problem, Tile::BM, Tile::BN);
    BoxPlan plan = {};
    plan.rows = static_cast<int>(grid.rows), plan.columns = static_cast<int>(grid.columns);
    plan.tiles = static_cast<int>(grid.blocks);
    plan.blocks = std::min(plan.tiles, Tile::kResident * device.multiprocessors);
    plan.mapped = problem.k > 0 && (!A::kByQuads || problem.m % 4 == 0) && can_map(problem.a, problem.batch) &&
                  can_map(problem.b, problem.batch);
    if (plan.mapped) {
        const auto swizzle = [](bool swizzled) {
            return swizzled ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE;
        };
        PYBLAS_TRY(map_matrices(problem.a, ContiguousM ? problem.m : problem.k, ContiguousM ? problem.k : problem.m,
                                problem.batch, A::kLength, A::kColumns, A::kByQuads, swizzle(A::kSwizzled), &plan.a));
        PYBLAS_TRY(map_matrices(problem.b, ContiguousN ? problem.n : problem.k, ContiguousN ? problem.k : problem.n,
                                problem.batch, B::kLength, B::kColumns, B::kByQuads, swizzle(B::kSwizzled), &plan.b));
    }
    // Addresses that are asked for before the kernel ahead has ended must be sure to be right: the host's, and read.
    plan.asks_early = device.starts_early && plan.mapped && problem.alpha.known() && problem.alpha.value != 0.0f;
    PYBLAS_TRY((allow_shared<box_tile<Tile, ContiguousM, ContiguousN>>(Parts::kBytes)));
    return launch<box_tile<Tile, ContiguousM, ContiguousN>>(
        {plan.blocks, Tile::kThreads, Parts::kBytes, launch_on.stream, device.starts_early}, problem, plan);
}

template <class Tile>
Status launch_box_tile(const Problem &problem, const Launch &launch_on) {
    if (problem.transa == Op::N)
        return problem.transb == Op::T ? start<Tile, true, true>(problem, launch_on)
                                       : start<Tile, true, false>(problem, launch_on);
    return problem.transb == Op::T ? start<Tile, false, true>(problem, launch_on)
                                   : start<Tile, false, false>(problem, launch_on);
}

using Box48 = BoxTile<48, 48, 48, 48, 48, 4, 12, 6, 2>;
using Box96 = BoxTile<96, 96, 32, 32, 96, 8, 12, 4>;
using Box100 = BoxTile<100, 100, 20, 100, 100, 4, 20, 4>;
using Box64x128 = BoxTile<64, 128, 32, 64, 32, 8, 8, 3>;
using Box128x64 = BoxTile<128, 64, 32, 64, 32, 8, 8, 3>;
using Box128 = BoxTile<128, 128, 32, 64, 64, 8, 16, 2>;
using Box128x256 = BoxTile<128, 256, 32, 64, 64, 8, 16, 1>;

template <class Tile>
constexpr Footprint kFootprint{Tile::kThreads, Tile::kResident, Tile::kRoom};

#define PYBLAS_BOX_ROW(name, Tile)                                                                                     \
    {"box_tile_" name,      "box_tile", Engine::gpu,      kFp32Modes, 90, true, refuses<Tile>, nullptr, nullptr,       \
     launch_box_tile<Tile>, true,       kFootprint<Tile>, work<Tile>}
constexpr Kernel kRows[] = {
    PYBLAS_BOX_ROW("48x48x48", Box48),        PYBLAS_BOX_ROW("96x96x32", Box96),
    PYBLAS_BOX_ROW("100x100x20", Box100),     PYBLAS_BOX_ROW("64x128x32", Box64x128),
    PYBLAS_BOX_ROW("128x64x32", Box128x64),   PYBLAS_BOX_ROW("128x128x32", Box128),
    PYBLAS_BOX_ROW("128x256x32", Box128x256),
};
#undef PYBLAS_BOX_ROW

} // namespace

KernelRows box_tile_rows() {
    return rows(kRows);
}

} // namespace pyblas
