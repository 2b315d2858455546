// split_k: products with few outputs and deep k. k is cut into ranges, each block sums one range of one tile, and a
// second kernel adds the ranges' sums in order.
//
//        k: range 0   range 1   range 2         C of few tiles
//      +---------+---------+---------+          +---+
//    m |  b0     |  b1     |  b2     |   --->   |   | = b0 + b1 + b2, then alpha, beta and C
//      +---------+---------+---------+          +---+
//
// 16x16, 32x32, 36x36: 256 threads share the k of each stage, as in skinny; 4 x 8 outputs and 128 registers, or 12 x 6
// and 168; they refuse more than 1024 rows or columns, and devices with too little shared memory. 64x64 and 128x128:
// the ranges are a batch of products for warp_tile; they refuse batches.
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
    return Tile::BX == 16   ? SliceRate{0.9, 0.25, 2e-6}
           : Tile::BX == 32 ? SliceRate{0.8, 0.36, 2e-6}
                            : SliceRate{0.8, 0.21, 2e-6};
}

template <class Tile>
size_t workspace(const Problem &problem, const Device &device) {
    return slices_workspace<Tile>(problem, device, true, rate<Tile>());
}

template <class Tile>
double cost(const Problem &problem, const Device &device) {
    const double unmeasured = problem.k < 1024 ? 3e-6 : 0; // short k, where a plain walk does well
    return slices_cost<Tile>(problem, device, true, rate<Tile>()) + unmeasured;
}

template <class Tile>
Status launch_split_k(const Problem &problem, const Launch &launch_on) {
    return launch_slices<Tile>(problem, launch_on, true, rate<Tile>());
}

// ---- ranges as a batch of products --------------------------------------------------------------------

// The ranges are products of equal depth, so that they are one batch; what is left of k is one more.
struct Ranges {
    int64_t depth;
    int equal;
    int64_t rest;

    int all() const { return equal + (rest > 0); }
};

template <int Side>
const Kernel &tile_kernel() {
    static_assert(Side == 64 || Side == 128, "these are split");
    const KernelRows table = warp_tile_rows();
    return *std::find_if(table.begin(), table.end(), [](const Kernel &row) {
        return std::strcmp(row.name, Side == 64 ? "warp_tile_64x64x16" : "warp_tile_128x128x16") == 0;
    });
}

template <int Side>
Ranges ranges_of(const Problem &problem, const Device &device) {
    constexpr int64_t kShortest = 256;
    const int64_t tiles = ((problem.m + Side - 1) / Side) * ((problem.n + Side - 1) / Side);
    const int64_t slots = (Side == 64 ? 4 : 2) * device.multiprocessors; // blocks that run side by side
    int64_t ranges = std::max<int64_t>(1, std::min(slots / tiles, problem.k / kShortest));
    // Nothing is left over if a slightly smaller number divides k.
    for (int64_t fewer = ranges; fewer > ranges - ranges / 16 - 1 && fewer > 1; --fewer)
        if (problem.k % fewer == 0) {
            ranges = fewer;
            break;
        }
    return {problem.k / ranges, static_cast<int>(ranges), problem.k % ranges};
}

// The flag that stands for a device alpha: 0 if A and B must not be read, otherwise 1.
size_t flag_bytes(const Problem &problem) {
    return problem.alpha.known() ? 0 : 256;
}

__global__ void flag_alpha(const float *alpha, float *flag) {
    *flag = *alpha == 0.0f ? 0.0f : 1.0f;
}

Problem range_problem(const Problem &problem, const Partials &partials, int64_t first, int64_t depth, int count) {
    Problem range = problem;
    const auto advance = [&](Operand *operand, bool contiguous_k) {
        const int64_t step = contiguous_k ? 1 : operand->ld;
        operand->data = operand->matrix(0) ? operand->matrix(0) + first * step : nullptr;
        operand->array = nullptr;
        operand->stride = depth * step;
    };
    advance(&range.a, problem.transa == Op::T);
    advance(&range.b, problem.transb == Op::N);
    range.k = depth;
    range.batch = count;
    range.c.array = nullptr;
    range.c.ld = partials.ld;
    range.c.stride = partials.range();
    range.alpha = {1.0f, nullptr};
    range.beta = {0.0f, nullptr};
    return range;
}

template <int Side>
const char *refuses_ranges(const Problem &problem, const Device &device) {
    if (problem.batch != 1 || problem.a.array)
        return "it splits one product, not a batch";
    if (problem.k == 0)
        return "there is no k to split";
    Problem range = problem;
    range.k = ranges_of<Side>(problem, device).depth;
    return tile_kernel<Side>().refuses(range, device);
}

template <int Side>
size_t workspace_ranges(const Problem &problem, const Device &device) {
    const Ranges ranges = ranges_of<Side>(problem, device);
    return Partials::of(problem, ranges.all(), nullptr).bytes() + flag_bytes(problem);
}

template <int Side>
double cost_ranges(const Problem &problem, const Device &device) {
    const Ranges ranges = ranges_of<Side>(problem, device);
    const Partials partials = Partials::of(problem, ranges.all(), nullptr);
    double seconds = tile_kernel<Side>().cost(range_problem(problem, partials, 0, ranges.depth, ranges.equal), device);
    if (ranges.rest > 0)
        seconds += tile_kernel<Side>().cost(range_problem(problem, partials, 0, ranges.rest, 1), device);
    const double bytes = 4.0 * static_cast<double>(partials.range()) * (ranges.all() + 1);
    // Ranges lose to a plain walk of short k; from 2048 on the prediction was measured.
    return (problem.k < 2048 ? 1.4 : 1.07) * seconds + 3e-6 + bytes / device.bandwidth;
}

template <int Side>
Status launch_ranges(const Problem &problem, const Launch &launch_on) {
    const Ranges ranges = ranges_of<Side>(problem, *launch_on.device);
    char *const memory = static_cast<char *>(launch_on.workspace) + flag_bytes(problem);
    const Partials partials = Partials::of(problem, ranges.all(), memory);
    Scalar one{1.0f, nullptr};
    if (!problem.alpha.known()) {
        one.device = static_cast<float *>(launch_on.workspace);
        PYBLAS_TRY(launch<flag_alpha>({1, 1, 0, launch_on.stream}, problem.alpha.device,
                                      static_cast<float *>(launch_on.workspace)));
    }
    const auto multiply = [&](int64_t first, int64_t depth, int count, int target) {
        Problem range = range_problem(problem, partials, first, depth, count);
        range.c.data = partials.data + target * partials.range();
        range.alpha = one;
        return tile_kernel<Side>().launch(range, {launch_on.device, launch_on.stream, nullptr, 0});
    };
    if (!problem.alpha.known() || problem.alpha.value != 0.0f) {
        PYBLAS_TRY(multiply(0, ranges.depth, ranges.equal, 0));
        if (ranges.rest > 0)
            PYBLAS_TRY(multiply(ranges.depth * ranges.equal, ranges.rest, 1, ranges.equal));
    }
    return add_partials(problem, partials, launch_on);
}

using Tile16 = SliceTile<16, 16, 128, 4, 8, 256, 2>;
using Tile32 = SliceTile<32, 32, 64, 4, 8, 256, 2>;
using Tile36 = SliceTile<36, 36, 56, 12, 6, 256, 1>;

#define PYBLAS_SPLIT_K_ROW(name, Tile)                                                                                 \
    {"split_k_" name, "split_k",       Engine::gpu, kFp32Modes,           75,    false,                                \
     refuses<Tile>,   workspace<Tile>, cost<Tile>,  launch_split_k<Tile>, false, kSliceFootprint<Tile>}
constexpr Kernel kRows[] = {
    PYBLAS_SPLIT_K_ROW("16x16x128", Tile16),
    PYBLAS_SPLIT_K_ROW("32x32x64", Tile32),
    PYBLAS_SPLIT_K_ROW("36x36x56", Tile36),
    {"split_k_64x64x16", "split_k", Engine::gpu, kFp32Modes, 75, false, refuses_ranges<64>, workspace_ranges<64>,
     cost_ranges<64>, launch_ranges<64>, false, kWarpTileFootprint<Tile64>},
    {"split_k_128x128x16", "split_k", Engine::gpu, kFp32Modes, 75, false, refuses_ranges<128>, workspace_ranges<128>,
     cost_ranges<128>, launch_ranges<128>, false, kWarpTileFootprint<Tile128>},
};
#undef PYBLAS_SPLIT_K_ROW

} // namespace

KernelRows split_k_rows() {
    return rows(kRows);
}

} // namespace pyblas
