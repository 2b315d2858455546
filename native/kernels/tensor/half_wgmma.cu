// half_wgmma: products of float16 or bfloat16 matrices by Hopper's tensor cores, in place: nothing is packed, whatever
// the operations. The header tells the kernel.
//
//     A, B --copy engine, or loads where it does not take them--> tiles --wgmma--> sums --> C, rounded once
//
// 384 threads, 184 or 232 registers where it multiplies, 193 KB. In tiles of 128 x 128 sums leave the tensor cores
// every 512 of k and are added in FP32. In tiles of 256 x 128, which are for C of 16 bits, they stay there: what is
// lost by that is less than what C's rounding loses. Refuses k beyond 2^30.
#include "half_wgmma.cuh"

#include <algorithm>
#include <cmath>

namespace pyblas {
namespace {

constexpr double kFlopsWhereMeasured = 128 * 2 * 1.98e9; // of one multiprocessor of the H200
constexpr int64_t kMostExtent = int64_t{1} << 30;

template <class Tile>
double tiles_of(const Problem &problem) {
    const auto pieces = [](int64_t extent, int64_t piece) { return static_cast<double>((extent + piece - 1) / piece); };
    return pieces(problem.m, Tile::BM) * pieces(problem.n, Tile::BN) * static_cast<double>(problem.batch);
}

constexpr int64_t kPart = 512, kMostDepth = 8192; // of k, whose sums stay in the tensor cores

template <class Tile>
const char *refuses(const Problem &problem, const Device &) {
    if (problem.c.array)
        return "it takes no arrays of pointers";
    if (problem.k > kMostExtent)
        return "k is beyond 2^30";
    if (Tile::kAllOfK) {
        if (problem.c.dtype == Dtype::f32 || problem.k > kMostDepth)
            return "its sums stay in the tensor cores, which is for a C of 16 bits and k up to 8192";
        for (const Operand *operand : {&problem.a, &problem.b})
            if (operand->ld % 8 != 0 || (problem.batch > 1 && operand->stride % 8 != 0))
                return "the copy engine does not take such leading dimensions or strides";
    }
    return nullptr;
}

// Whole waves of tiles; never faster than the bytes.
template <class Tile>
double cost(const Problem &problem, const Device &device) {
    const double m = static_cast<double>(problem.m), n = static_cast<double>(problem.n);
    const double k = static_cast<double>(problem.k), batch = static_cast<double>(problem.batch);
    const double waves = std::ceil(tiles_of<Tile>(problem) / device.multiprocessors);
    const double clock = device.fp32_flops / device.multiprocessors / kFlopsWhereMeasured;
    const double multiply = waves * (std::ceil(k / kStageDepth) * Tile::kStageSeconds + Tile::kTileSeconds) / clock;
    const double bytes = batch * (2 * (m * k + k * n) + static_cast<double>(bytes_of(problem.c.dtype)) * m * n);
    return kStartSeconds + std::max(multiply, bytes / device.bandwidth);
}

// Where there is more than 32 bits count, in panels.
template <class Tile>
Status launch_halves(const Problem &problem, const Launch &launch_on) {
    constexpr double kMostTiles = 1e9;
    Panel panel = {std::min(problem.m, kMostExtent), std::min(problem.n, kMostExtent), problem.batch};
    const auto each = [&] {
        return tiles_of<Tile>(part_of(problem, panel, 0, 0, 0)) / static_cast<double>(panel.batch);
    };
    while (each() > kMostTiles)
        panel.columns = (panel.columns + 1) / 2;
    panel.batch = std::min<int64_t>(panel.batch, static_cast<int64_t>(kMostTiles / each()));
    for (int64_t batch = 0; batch < problem.batch; batch += panel.batch)
        for (int64_t row = 0; row < problem.m; row += panel.rows)
            for (int64_t column = 0; column < problem.n; column += panel.columns)
                PYBLAS_TRY(multiply_halves<typename Tile::Halves>(part_of(problem, panel, batch, row, column),
                                                                  launch_on, Tile::kAllOfK ? kMostDepth : kPart));
    return kSuccess;
}

// 64 of k of one tile, and what a tile costs beside them.
struct Square : SquareHalves {
    using Halves = SquareHalves;
    static constexpr double kStageSeconds = 0.37e-6, kTileSeconds = 3e-6;
};
struct Tall : TallHalves {
    using Halves = TallHalves;
    static constexpr double kStageSeconds = 0.68e-6, kTileSeconds = 4e-6;
};

template <class Tile>
constexpr Footprint kFootprint{Tile::kThreads, 1, Tile::kSharedBytes};

// clang-format off
#define PYBLAS_HALF_ROW(name, Tile)                                                                                    \
    {"half_wgmma_" name, "half_wgmma", Engine::gpu, modes(ComputeMode::fp32), 90, true, refuses<Tile>, nullptr,        \
     cost<Tile>, launch_halves<Tile>, !Tile::kAllOfK, kFootprint<Tile>, nullptr, kHalfTypes, SumOrder::halves}
// clang-format on
constexpr Kernel kRows[] = {
    PYBLAS_HALF_ROW("128x128x64", Square),
    PYBLAS_HALF_ROW("256x128x64", Tall),
};
#undef PYBLAS_HALF_ROW

} // namespace

KernelRows half_wgmma_rows() {
    return rows(kRows);
}

} // namespace pyblas
