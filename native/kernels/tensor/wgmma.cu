// wgmma: FP32 products by Hopper's tensor cores. Operands are packed into planes of 16-bit numbers (pack.cu), the
// planes multiplied here, and what they cannot hold is left to FP32 multiply-adds (unfit.cuh). The header tells the
// kernel.
//
//     A, B --pack--> planes, exponents --wgmma--> C        two launches that overlap where they can
//
// f16x2: two planes, three products, 22 bits. bf16x3: three planes, six products, 24 bits and all of fp32's range.
// f16x1, for the mode tf32: one plane and product, 11 bits as TF32 has, at twice the rate of TF32 numbers.
// 384 or 512 threads, 160 or 232 registers where it multiplies, 200 KB. Refuses k below 32, where the planes' error
// would exceed the bound of fp32.
#include "wgmma.cuh"

#include <algorithm>
#include <cmath>

#include "cost.hpp"
#include "pack.hpp"
#include "workspace.hpp"

namespace pyblas {
namespace {

constexpr int64_t kLeastDepth = 32;
constexpr int64_t kLeastPanel = 256; // rows or columns, a whole number of most tiles

// Where all planes together would be larger than this, they are made for a part of C at a time.
constexpr size_t kMostPanelBytes = kPlanesBytes;
static_assert(kPlanesBytes < Workspace::kDefaultLimit, "what a handle has unless it is told otherwise");

// At most so many bytes of planes for one product of these sizes; in double, which nothing overflows.
template <class Tile>
double plane_bytes(int64_t rows, int64_t columns, int64_t k) {
    constexpr double kPadding = 2 * 63; // of rows and columns
    return 2.0 * plane_count(Tile::kScheme) * (static_cast<double>(rows) + static_cast<double>(columns) + kPadding) *
           (static_cast<double>(k) + kPlaneDepth);
}

template <class Tile>
size_t packed_bytes(const Problem &problem, const Panel &panel) {
    return PackedProduct::of(part_of(problem, panel, 0, 0, 0), Tile::kScheme, nullptr).bytes;
}

// Halves of the batch, then of the longer side, until the planes fit, or are those of a least panel. What fits exactly
// gives the same panel when it is all there is.
template <class Tile>
Panel panel_of(const Problem &problem, size_t workspace) {
    Panel panel{problem.m, problem.n, problem.batch};
    const size_t room = std::min(workspace, kMostPanelBytes);
    const auto fits = [&] {
        return plane_bytes<Tile>(panel.rows, panel.columns, problem.k) * static_cast<double>(panel.batch) <=
                   2.0 * kMostPanelBytes &&
               packed_bytes<Tile>(problem, panel) <= room;
    };
    while (!fits()) {
        if (panel.batch > 1) {
            panel.batch = (panel.batch + 1) / 2;
            continue;
        }
        int64_t *const longer = panel.rows > panel.columns ? &panel.rows : &panel.columns;
        if (*longer <= kLeastPanel)
            break;
        *longer = (*longer / 2 + kLeastPanel - 1) / kLeastPanel * kLeastPanel;
    }
    return panel;
}

template <class Tile>
const char *refuses(const Problem &problem, const Device &) {
    if (problem.k < kLeastDepth)
        return "k is below 32, too short for the error of split operands";
    const int64_t rows = std::min(problem.m, kLeastPanel), columns = std::min(problem.n, kLeastPanel);
    if (plane_bytes<Tile>(rows, columns, problem.k) > static_cast<double>(kMostPanelBytes))
        return "k is so deep that the planes of one tile need too much memory";
    return nullptr;
}

// A part of C that does not end with the others keeps its k whole, as each has the workspace of the first; so does one
// that leaves no room for sums.
template <class Tile>
DepthParts depth_parts(const Problem &problem, const Panel &panel, const Device &device, size_t workspace) {
    if (panel.rows != problem.m || panel.columns != problem.n || panel.batch != problem.batch)
        return DepthParts::whole(problem);
    const DepthParts cut = DepthParts::of<Tile>(problem, device);
    const size_t sums = cut.bytes<Tile>();
    return sums && packed_bytes<Tile>(problem, panel) + sums > workspace ? DepthParts::whole(problem) : cut;
}

template <class Tile>
size_t workspace(const Problem &problem, const Device &device) {
    const Panel panel = panel_of<Tile>(problem, device.workspace);
    return packed_bytes<Tile>(problem, panel) +
           depth_parts<Tile>(problem, panel, device, device.workspace).template bytes<Tile>();
}

// Packing by bytes, operands of a deep k read twice; what does not lie along k is turned, for half as much again. Then
// whole waves of tiles. Each part is packed and multiplied.
template <class Tile>
Work work(const Problem &problem, const Device &device) {
    constexpr double kOutput = 2.0 * plane_count(Tile::kScheme);
    const Panel panel = panel_of<Tile>(problem, device.workspace);
    const auto pieces = [](int64_t extent, int64_t piece) { return static_cast<double>((extent + piece - 1) / piece); };
    const double m = static_cast<double>(problem.m), n = static_cast<double>(problem.n);
    const double k = static_cast<double>(problem.k), batch = static_cast<double>(problem.batch);
    const auto bytes_packed = [&](const Operand &operand, double rows, bool turned) {
        return (!operand.array && operand.stride == 0 ? 1 : batch) * rows * k *
               ((problem.k <= kMostDepthAtOnce ? 4 : 8) + kOutput) * (turned ? 1.5 : 1);
    };
    const double parts_m = pieces(problem.m, panel.rows), parts_n = pieces(problem.n, panel.columns);
    const double parts = parts_m * parts_n * pieces(problem.batch, panel.batch);
    const double tiles = pieces(std::min(problem.m, panel.rows), Tile::BM) *
                         pieces(std::min(problem.n, panel.columns), Tile::BN) *
                         static_cast<double>(std::min(problem.batch, panel.batch));
    Work work;
    work.move(problem);
    work.read -= 4 * batch * (m * k + k * n); // the planes are, from the L2
    const DepthParts cut = depth_parts<Tile>(problem, panel, device, device.workspace);
    work.waves = parts * std::ceil(tiles / device.multiprocessors);
    work.steps = static_cast<double>(cut.chunks) * kPlaneDepth;
    work.pieces = cut.parts == 1 ? 0 : Tile::kSumChunks + cut.parts * Tile::kPartChunks;
    work.flops = 2.0 * Tile::BM * Tile::BN * work.steps;
    if (problem.c.ld % 4 != 0)
        work.single = std::min(1.0, m / Tile::BM) * std::min(1.0, n / Tile::BN);
    work.second_kernels = parts;
    work.partial_bytes = parts_n * bytes_packed(problem.a, m, problem.transa == Op::N) +
                         parts_m * bytes_packed(problem.b, n, problem.transb == Op::T);
    return work;
}

template <class Tile>
Status launch_wgmma(const Problem &problem, const Launch &launch_on) {
    const Panel panel = panel_of<Tile>(problem, launch_on.workspace_bytes);
    const DepthParts cut = depth_parts<Tile>(problem, panel, *launch_on.device, launch_on.workspace_bytes);
    for (int64_t batch = 0; batch < problem.batch; batch += panel.batch)
        for (int64_t row = 0; row < problem.m; row += panel.rows)
            for (int64_t column = 0; column < problem.n; column += panel.columns) {
                const Problem part = part_of(problem, panel, batch, row, column);
                const PackedProduct packed = PackedProduct::of(part, Tile::kScheme, launch_on.workspace);
                PYBLAS_TRY(pack(part, packed, Tile::kScheme, launch_on));
                PYBLAS_TRY(multiply_planes<Tile>(part, packed, cut, launch_on));
            }
    return kSuccess;
}

template <class Tile>
constexpr Footprint kFootprint{Tile::kThreads, 1, Tile::kSharedBytes};

constexpr uint8_t kTensorModes = modes(ComputeMode::fp32, ComputeMode::tf32);
constexpr uint8_t kFloatTypes = 1 << static_cast<int>(Dtype::f32);

// One sum of all 64 of k leaves the tensor cores, and one thread adds all of them in turn: k is never cut then, however
// few the tiles.
template <class Tile>
constexpr bool kInvariant = Tile::kScheme != Scheme::bf16x3 && Tile::kAccumulators == 1 && !Tile::kHalvesDepth;

// clang-format off
#define PYBLAS_WGMMA_ROW(name, Tile)                                                                                   \
    {"wgmma_" name, "wgmma", Engine::gpu, Tile::kScheme == Scheme::f16x1 ? modes(ComputeMode::tf32) : kTensorModes,    \
     90, true, refuses<Tile>, workspace<Tile>, nullptr, launch_wgmma<Tile>, kInvariant<Tile>, kFootprint<Tile>,        \
     work<Tile>, kFloatTypes, Tile::kScheme == Scheme::f16x1 ? SumOrder::one_plane : SumOrder::two_planes}
// clang-format on
constexpr Kernel kRows[] = {
    PYBLAS_WGMMA_ROW("64x64x64_f16x2", Tiny),        PYBLAS_WGMMA_ROW("128x64x64_f16x2", Narrow),
    PYBLAS_WGMMA_ROW("64x128x64_f16x2", Flat),       PYBLAS_WGMMA_ROW("128x128x64_f16x2", Square),
    PYBLAS_WGMMA_ROW("144x128x64_f16x2", Tall),      PYBLAS_WGMMA_ROW("128x192x64_f16x2", Middle),
    PYBLAS_WGMMA_ROW("128x256x64_f16x2", Wide),      PYBLAS_WGMMA_ROW("128x128x64_bf16x3", FullRange),
    PYBLAS_WGMMA_ROW("128x64x64_f16x1", NarrowTf32), PYBLAS_WGMMA_ROW("128x128x64_f16x1", SquareTf32),
    PYBLAS_WGMMA_ROW("128x256x64_f16x1", WideTf32),
};
#undef PYBLAS_WGMMA_ROW

} // namespace

KernelRows wgmma_rows() {
    return rows(kRows);
}

} // namespace pyblas
