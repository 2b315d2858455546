// split_k: products with few outputs and deep k. k is cut into ranges, each block sums one range of one tile, and a
// second kernel adds the ranges' sums in order.
//
//        k: range 0   range 1   range 2         C of few tiles
//      +---------+---------+---------+          +---+
//    m |  b0     |  b1     |  b2     |   --->   |   | = b0 + b1 + b2, then alpha, beta and C
//      +---------+---------+---------+          +---+
//
// 16x16, 32x32, 36x36: 256 threads share the k of each stage, as in skinny; 4 x 8 outputs, or 12 x 4, and 128
// registers. 33x33: the same with 11 x 11 outputs, up to 210 registers, and lines that keep their alignment
// (lines.cuh); on Hopper four more warps copy them, or the copy engine does (run_lines.cuh). These refuse more than
// 1024 rows or columns, and devices with too little shared memory. 64x64, 128x128: warp_tile's tiles, whose walk
// stream_k.cu cuts; they refuse what warp_tile refuses.
#include "cut_tiles.hpp"
#include "lines.cuh"
#include "run_lines.cuh"
#include "slices.cuh"
#include "warp_tile.cuh"

#include <algorithm>
#include <cstring>

namespace pyblas {

KernelRows warp_tile_rows();

namespace {

// ---- all threads of a block along k -------------------------------------------------------------------

constexpr int64_t kMostRows = 1024; // or columns

template <class Tile>
const char *refuses(const Problem &problem, const Device &device) {
    if (std::max(problem.m, problem.n) > kMostRows)
        return "C has more rows or columns than tiles this small are for";
    return slices_refuses<Tile>(device);
}

template <class Tile>
constexpr SliceRate rate() {
    if (Tile::BX == 16)
        return Tile::BK == 128 ? SliceRate{0.9, 0.25, 0.8e-6} : SliceRate{0.95, 0.3, 1.1e-6};
    if (Tile::BX == 32)
        return Tile::BK == 64 ? SliceRate{0.8, 0.36, 0.8e-6} : SliceRate{0.8, 0.42, 1.2e-6};
    return Tile::BX == 33 ? SliceRate{0.8, 0.45, 2e-6} : SliceRate{0.8, 0.25, 1.5e-6};
}

template <class Tile>
size_t workspace(const Problem &problem, const Device &device) {
    return slices_workspace<Tile>(problem, device, true, rate<Tile>());
}

template <class Tile>
Work work(const Problem &problem, const Device &device) {
    return slices_work<Tile>(problem, device, true, rate<Tile>());
}

using Run33 = RunTile<33, 140, 11, 256, 5>;

bool runs(const Problem &problem, const Device &device) {
    return device.has_90a_code && has_runs<Run33>(problem);
}

// Lines are copied in quads wherever they begin; runs by nobody.
template <class Tile>
Work work_of_lines(const Problem &problem, const Device &device) {
    Work work = slices_work<Tile>(problem, device, true, rate<Tile>());
    work.copies = runs(problem, device) ? 0 : (Tile::BX + Tile::BS) * work.folds * Tile::BK / 4;
    work.narrow = work.trips = 0;
    return work;
}

template <class Tile, class Kernels = SliceKernels<Tile>>
Status launch_split_k(const Problem &problem, const Launch &launch_on) {
    return launch_slices<Tile, Kernels>(problem, launch_on, true, rate<Tile>());
}

// ---- parts of warp_tile's tiles -----------------------------------------------------------------------

constexpr int64_t kStage = 16; // of k, in those tiles

template <int Side>
CutTiles parts_of(const Problem &problem, const Device &device) {
    constexpr int64_t kShortest = 256 / kStage; // stages
    const int64_t tiles = (problem.m + Side - 1) / Side * ((problem.n + Side - 1) / Side) * problem.batch;
    const int64_t steps = (problem.k + kStage - 1) / kStage;
    const int64_t slots = (Side == 64 ? 4 : 2) * device.multiprocessors; // blocks that run side by side
    const int64_t parts = std::max<int64_t>(1, std::min(slots / tiles, steps / kShortest));
    return CutTiles::in_parts(
        tiles, steps, problem.batch_invariant ? invariant_part(problem.k) / kStage : (steps + parts - 1) / parts);
}

template <int Side>
const Kernel &tile_kernel() {
    static_assert(Side == 64 || Side == 128, "these are cut");
    const KernelRows table = warp_tile_rows();
    return *std::find_if(table.begin(), table.end(), [](const Kernel &row) {
        return std::strcmp(row.name, Side == 64 ? "warp_tile_64x64x16" : "warp_tile_128x128x16") == 0;
    });
}

template <int Side>
const char *refuses_parts(const Problem &problem, const Device &device) {
    return tile_kernel<Side>().refuses(problem, device);
}

template <int Side>
size_t workspace_parts(const Problem &problem, const Device &device) {
    return parts_workspace<Side>(parts_of<Side>(problem, device));
}

template <int Side>
Work work_parts(const Problem &problem, const Device &device) {
    const CutTiles cut = parts_of<Side>(problem, device);
    Problem part = problem;
    if (cut.cut) {
        part.k = cut.part * kStage;
        part.batch = problem.batch * cut.parts;
    }
    Work work = tile_kernel<Side>().work(part, device);
    if (cut.cut == 0) {
        work.row = tile_kernel<Side>().name;
        return work;
    }
    work.move(problem);
    work.single = work.written_singly = 0; // the second kernel stores neighbours
    work.second_kernels = 1;
    work.partial_bytes = 4.0 * Side * Side * static_cast<double>(cut.pieces() + cut.cut);
    work.pieces = static_cast<double>(cut.parts);
    return work;
}

template <int Side>
Status launch_split_tiles(const Problem &problem, const Launch &launch_on) {
    const CutTiles cut = parts_of<Side>(problem, *launch_on.device);
    return cut.cut ? launch_parts<Side>(problem, launch_on, cut) : tile_kernel<Side>().launch(problem, launch_on);
}

using Tile16 = SliceTile<16, 16, 128, 4, 8, 256, 2>;
using Tile32 = SliceTile<32, 32, 64, 4, 8, 256, 2>;
using Tile36 = SliceTile<36, 36, 56, 12, 4, 256, 2>;
using Tile33 = LineTile<33, 33, 168, 11, 11, 256, 8>;
using Fed33 = FedLineTile<Tile33, 4>;
using Deep16 = SliceTile<16, 16, 256, 4, 8, 256, 2>;
using Deep32 = SliceTile<32, 32, 128, 4, 8, 256, 2>;

// Of two kernels of one row, whichever is launched.
constexpr Footprint either(const Footprint &one, const Footprint &other) {
    return {std::max(one.threads, other.threads), std::min(one.resident, other.resident),
            std::max(one.shared_bytes, other.shared_bytes)};
}

size_t workspace_lines(const Problem &problem, const Device &device) {
    return runs(problem, device) ? workspace<Run33>(problem, device) : workspace<Tile33>(problem, device);
}

// The first two add the same sums in the same order.
Status launch_lines(const Problem &problem, const Launch &launch_on) {
    if (!launch_on.device->has_90a_code)
        return launch_split_k<Tile33, LineKernels<Tile33>>(problem, launch_on);
    return runs(problem, *launch_on.device) ? launch_split_k<Run33, RunKernels<Run33>>(problem, launch_on)
                                            : launch_split_k<Fed33, FedLineKernels<Fed33>>(problem, launch_on);
}

#define PYBLAS_SPLIT_K_ROW(name, Tile)                                                                                 \
    {"split_k_" name, "split_k",       Engine::gpu, kFp32Modes,           75,    false,                                \
     refuses<Tile>,   workspace<Tile>, nullptr,     launch_split_k<Tile>, false, kSliceFootprint<Tile>,                \
     work<Tile>}
constexpr Kernel kRows[] = {
    PYBLAS_SPLIT_K_ROW("16x16x128", Tile16),
    PYBLAS_SPLIT_K_ROW("16x16x256", Deep16),
    PYBLAS_SPLIT_K_ROW("32x32x64", Tile32),
    PYBLAS_SPLIT_K_ROW("32x32x128", Deep32),
    PYBLAS_SPLIT_K_ROW("36x36x56", Tile36),
    {"split_k_33x33x168", "split_k", Engine::gpu, kFp32Modes, 75, false, refuses<Tile33>, workspace_lines, nullptr,
     launch_lines, false, either(either(kSliceFootprint<Tile33>, kSliceFootprint<Fed33>), kSliceFootprint<Run33>),
     work_of_lines<Tile33>},
    {"split_k_64x64x16", "split_k", Engine::gpu, kFp32Modes, 75, false, refuses_parts<64>, workspace_parts<64>, nullptr,
     launch_split_tiles<64>, true, kWarpTileFootprint<Tile64>, work_parts<64>},
    {"split_k_128x128x16", "split_k", Engine::gpu, kFp32Modes, 75, false, refuses_parts<128>, workspace_parts<128>,
     nullptr, launch_split_tiles<128>, true, kWarpTileFootprint<Tile128>, work_parts<128>},
};
#undef PYBLAS_SPLIT_K_ROW

} // namespace

KernelRows split_k_rows() {
    return rows(kRows);
}

} // namespace pyblas
