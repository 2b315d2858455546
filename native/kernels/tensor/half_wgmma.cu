// half_wgmma: products of float16 or bfloat16 matrices by Hopper's tensor cores, in place: nothing is packed, whatever
// the operations. The header tells the kernel.
//
//     A, B --copy engine, or loads where it does not take them--> tiles --wgmma--> sums --> C, rounded once
//
// 384 threads, 216 registers where it multiplies, 197 KB. Sums of 256 x 128 outputs fill the registers and stay in the
// tensor cores for 8192 of k, as long as cuBLAS's do for all of k; beyond that their totals lie in the workspace. Those
// of the other tiles leave the tensor cores every 64 of k. Refuses sizes beyond 2^30.
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

template <class Tile>
const char *refuses(const Problem &problem, const Device &) {
    if (problem.c.array)
        return "it takes no arrays of pointers";
    if (std::max({problem.m, problem.n, problem.k, problem.batch}) > kMostExtent || tiles_of<Tile>(problem) > 1e9)
        return "a size is beyond 2^30, or there are more than 10^9 tiles";
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

template <class Tile>
size_t workspace(const Problem &problem, const Device &device) {
    const bool several = Tile::kTotalsInMemory && problem.k > Tile::kPart;
    return several ? static_cast<size_t>(device.multiprocessors) * Tile::kTotalsBytes : 0;
}

// 64 of k of one tile, and what a tile costs beside them.
struct Small : HalfTile<128, 128, 6, kStageDepth> {
    static constexpr double kStageSeconds = 0.48e-6, kTileSeconds = 5e-6;
};
struct Fast : HalfTile<256, 128, 4, 8192> {
    static constexpr double kStageSeconds = 0.7e-6, kTileSeconds = 6e-6;
};
struct Exact : HalfTile<128, 256, 4, kStageDepth> {
    static constexpr double kStageSeconds = 0.85e-6, kTileSeconds = 7e-6;
};

template <class Tile>
constexpr Footprint kFootprint{Tile::kThreads, 1, Tile::kSharedBytes};

// clang-format off
#define PYBLAS_HALF_WGMMA_ROW(name, Tile)                                                                              \
    {"half_wgmma_" name, "half_wgmma", Engine::gpu, modes(ComputeMode::fp32), 90, true, refuses<Tile>,                 \
     workspace<Tile>, cost<Tile>, multiply_halves<Tile>, false, kFootprint<Tile>, nullptr, kHalfTypes}
// clang-format on
constexpr Kernel kRows[] = {
    PYBLAS_HALF_WGMMA_ROW("128x128x64", Small),
    PYBLAS_HALF_WGMMA_ROW("256x128x64", Fast),
    PYBLAS_HALF_WGMMA_ROW("128x256x64", Exact),
};
#undef PYBLAS_HALF_WGMMA_ROW

} // namespace

KernelRows half_wgmma_rows() {
    return rows(kRows);
}

} // namespace pyblas
