// half_wgmma: products of float16 or bfloat16 matrices by Hopper's tensor cores, in place: nothing is packed, whatever
// the operations. The header tells the kernel.
//
//     A, B --copy engine, or loads where it does not take them--> tiles --wgmma--> sums --> C, rounded once
//
// 384 threads, 184 registers where it multiplies, 193 KB. Sums leave the tensor cores every 512 of k and are added in
// FP32. Refuses sizes beyond 2^30.
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

// 64 of k of one tile, and what a tile costs beside them.
struct Square : HalfTile<128, 6, 512> {
    static constexpr double kStageSeconds = 0.37e-6, kTileSeconds = 3e-6;
};

constexpr Footprint kFootprint{Square::kThreads, 1, Square::kSharedBytes};

constexpr Kernel kRows[] = {
    {"half_wgmma_128x128x64", "half_wgmma", Engine::gpu, modes(ComputeMode::fp32), 90, true, refuses<Square>, nullptr,
     cost<Square>, multiply_halves<Square>, false, kFootprint, nullptr, kHalfTypes},
};

} // namespace

KernelRows half_wgmma_rows() {
    return rows(kRows);
}

} // namespace pyblas
