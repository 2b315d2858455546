// wgmma: FP32 products by Hopper's tensor cores. Operands are packed into planes of 16-bit numbers (pack.cu), the
// planes multiplied here, and what they cannot hold is left to FP32 multiply-adds (unfit.cuh). The header tells the
// kernel.
//
//     A, B --pack--> planes, exponents --wgmma--> C        two launches that overlap where they can
//
// f16x2: two planes, three products, 22 bits. bf16x3: three planes, six products, 24 bits and all of fp32's range.
// f16x1, for the mode tf32: one plane and product, 11 bits as TF32 has, at twice the rate of TF32 numbers.
// 384 or 512 threads, 160 or 240 registers where it multiplies, 200 KB. Refuses k below 32, where the planes' error
// would exceed the bound of fp32.
#include "wgmma.cuh"

#include <algorithm>
#include <cmath>

#include "cost.hpp"
#include "one_sum.hpp"
#include "pack.hpp"
#include "panels.hpp"

namespace pyblas {
namespace {

constexpr int64_t kLeastDepth = 32;
// Of k, from which on packing for one sum gives whole warps to a row; below, the row of one sum is another's.
constexpr int64_t kLeastDepthOfOne = 513;
constexpr char kScaledRow[] = "wgmma_128x256x64_f16x2";

template <class Tile>
const char *refuses(const Problem &problem, const Device &) {
    if (problem.k < kLeastDepth)
        return "k is below 32, too short for the error of split operands";
    return refuses_planes<Tile>(problem);
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
    const Panel panel = cut_of<Tile>(problem, device.workspace, device.multiprocessors).panel;
    return packed_bytes<Tile>(problem, panel) +
           depth_parts<Tile>(problem, panel, device, device.workspace).template bytes<Tile>();
}

// Packing by bytes, operands of a deep k read twice; what does not lie along k is turned, for half as much again. Then
// whole waves of tiles. Each part is packed and multiplied.
template <class Tile>
Work work(const Problem &problem, const Device &device) {
    const Cut parts = cut_of<Tile>(problem, device.workspace, device.multiprocessors);
    const double m = static_cast<double>(problem.m), n = static_cast<double>(problem.n);
    const double k = static_cast<double>(problem.k), batch = static_cast<double>(problem.batch);
    Work work;
    work.move(problem);
    work.read -= 4 * batch * (m * k + k * n); // the planes are, from the L2
    const DepthParts cut = depth_parts<Tile>(problem, parts.panel, device, device.workspace);
    work.waves = parts.waves;
    work.steps = static_cast<double>(cut.chunks) * kPlaneDepth;
    work.pieces = cut.parts == 1 ? 0 : Tile::kSumChunks + cut.parts * Tile::kPartChunks;
    work.flops = 2.0 * Tile::BM * Tile::BN * work.steps;
    // A tile whose rows are stored apart takes as long however few they are. Those at C's edge are one of a block's.
    if (problem.c.ld % 4 != 0)
        work.single = 1;
    else if (problem.m % Tile::BM != 0)
        work.single = std::ceil(std::ceil(n / Tile::BN) * batch / device.multiprocessors) / work.waves;
    work.written_singly = 0; // whole 32 bytes are stored
    work.second_kernels = parts.parts();
    if (Tile::kScheme == Scheme::f16x2_one && problem.k < kLeastDepthOfOne)
        work.row = kScaledRow;
    work.partial_bytes = packing_bytes<Tile>(problem, parts, problem.k <= kMostDepthAtOnce ? 4 : 8, 1.5);
    return work;
}

template <class Tile>
Status launch_wgmma(const Problem &problem, const Launch &launch_on) {
    const Cut parts = cut_of<Tile>(problem, launch_on.workspace_bytes, launch_on.device->multiprocessors);
    const DepthParts cut = depth_parts<Tile>(problem, parts.panel, *launch_on.device, launch_on.workspace_bytes);
    return multiply_panels<Tile>(problem, parts, launch_on, [&](const Problem &part, const PackedProduct &packed) {
        return multiply_planes<Tile>(part, packed, cut, launch_on);
    });
}

// What is small is added behind the multiply. If it is too much for that, the multiply has left C alone, and operands
// are packed and multiplied once more, by Scaled; if it is not, these two launches find alpha 0 and beta 1.
template <class Tile, class Scaled>
Status launch_one_sum(const Problem &problem, const Launch &launch_on) {
    if (problem.k < kLeastDepthOfOne)
        return launch_wgmma<Scaled>(problem, launch_on);
    const Cut parts = cut_of<Tile>(problem, launch_on.workspace_bytes, launch_on.device->multiprocessors);
    const DepthParts cut = DepthParts::whole(problem);
    return multiply_panels<Tile>(problem, parts, launch_on, [&](const Problem &part, const PackedProduct &packed) {
        PYBLAS_TRY(multiply_planes<Tile>(part, packed, cut, launch_on));
        PYBLAS_TRY(add_small_elements(part, packed, launch_on));
        Problem scaled = part;
        scaled.alpha.device = packed.a.scalars(), scaled.beta.device = packed.a.scalars() + 1;
        PYBLAS_TRY(pack(scaled, packed, Scaled::kScheme, launch_on));
        return multiply_planes<Scaled>(scaled, packed, cut, launch_on);
    });
}

template <class Tile>
constexpr Footprint kFootprint{Tile::kThreads, 1, Tile::kSharedBytes};

constexpr uint8_t kTensorModes = modes(ComputeMode::fp32, ComputeMode::tf32);
constexpr uint8_t kFloatTypes = 1 << static_cast<int>(Dtype::f32);

// One sum of all 64 of k leaves the tensor cores, and one thread adds all of them in turn: k is never cut then, however
// few the tiles.
template <class Tile>
constexpr bool kInvariant = Tile::kScheme != Scheme::bf16x3 && Tile::kScheme != Scheme::f16x2_one &&
                            Tile::kAccumulators == 1 && !Tile::kHalvesDepth;

// clang-format off
#define PYBLAS_WGMMA_ROW_BY(name, Tile, start)                                                                         \
    {"wgmma_" name, "wgmma", Engine::gpu, Tile::kScheme == Scheme::f16x1 ? modes(ComputeMode::tf32) : kTensorModes,    \
     90, true, refuses<Tile>, workspace<Tile>, nullptr, start, kInvariant<Tile>, kFootprint<Tile>, work<Tile>,         \
     kFloatTypes, Tile::kScheme == Scheme::f16x1 ? SumOrder::one_plane : SumOrder::two_planes}
#define PYBLAS_WGMMA_ROW(name, Tile) PYBLAS_WGMMA_ROW_BY(name, Tile, launch_wgmma<Tile>)
// clang-format on
constexpr Kernel kRows[] = {
    PYBLAS_WGMMA_ROW("64x64x64_f16x2", Tiny),
    PYBLAS_WGMMA_ROW("128x64x64_f16x2", Narrow),
    PYBLAS_WGMMA_ROW("64x128x64_f16x2", Flat),
    PYBLAS_WGMMA_ROW("128x128x64_f16x2", Square),
    PYBLAS_WGMMA_ROW("144x128x64_f16x2", Tall),
    PYBLAS_WGMMA_ROW("128x192x64_f16x2", Middle),
    PYBLAS_WGMMA_ROW("128x256x64_f16x2", Wide),
    PYBLAS_WGMMA_ROW("128x128x64_bf16x3", FullRange),
    PYBLAS_WGMMA_ROW("128x64x64_f16x1", NarrowTf32),
    PYBLAS_WGMMA_ROW("128x128x64_f16x1", SquareTf32),
    PYBLAS_WGMMA_ROW("128x256x64_f16x1", WideTf32),
    PYBLAS_WGMMA_ROW_BY("128x256x64_f16x2_one", WideOne, (launch_one_sum<WideOne, Wide>)),
};
#undef PYBLAS_WGMMA_ROW
#undef PYBLAS_WGMMA_ROW_BY

} // namespace

KernelRows wgmma_rows() {
    return rows(kRows);
}

} // namespace pyblas
