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
bool marked(const Problem &problem) {
    return Tile::kMarked && has_plain_lows(Tile::kScheme, problem.k);
}

template <class Tile>
size_t packed_bytes(const Problem &problem, const Panel &panel) {
    return PackedProduct::of(part_of(problem, panel, 0, 0, 0), Tile::kScheme, marked<Tile>(problem), nullptr).bytes;
}

// How C is cut where not all planes fit: the planes of one operand's panel stay while those of the other's follow each
// other. So one operand is packed once, the other once for each panel of the first.
struct Cut {
    Panel panel;
    double parts_m, parts_n, parts_batch;
    bool keeps_a; // or else B
    double waves; // of tiles, of all parts

    template <class Tile>
    static Cut of(const Problem &problem, const Panel &panel, int multiprocessors) {
        struct Side {
            int64_t whole, rest; // panels; extent of the last one, if it is smaller
        };
        const auto side = [](int64_t extent, int64_t piece) { return Side{extent / piece, extent % piece}; };
        const Side m = side(problem.m, panel.rows), n = side(problem.n, panel.columns),
                   batch = side(problem.batch, panel.batch);
        const auto count = [](const Side &side) { return static_cast<double>(side.whole + (side.rest > 0)); };
        const auto waves = [&](int64_t rows, int64_t columns, int64_t products) {
            const double tiles = std::ceil(static_cast<double>(rows) / Tile::BM) *
                                 std::ceil(static_cast<double>(columns) / Tile::BN) * static_cast<double>(products);
            return std::ceil(tiles / multiprocessors);
        };
        const auto along_m = [&](int64_t columns, int64_t products) {
            return static_cast<double>(m.whole) * waves(panel.rows, columns, products) +
                   waves(m.rest, columns, products);
        };
        const auto along_n = [&](int64_t products) {
            return static_cast<double>(n.whole) * along_m(panel.columns, products) + along_m(n.rest, products);
        };
        Cut cut = {panel, count(m), count(n), count(batch), true, 0};
        cut.waves = static_cast<double>(batch.whole) * along_n(panel.batch) + along_n(batch.rest);
        cut.keeps_a =
            static_cast<double>(problem.m) * (cut.parts_n - 1) >= static_cast<double>(problem.n) * (cut.parts_m - 1);
        return cut;
    }
    double parts() const { return parts_m * parts_n * parts_batch; }
    // How often an operand is packed.
    double times_a() const { return keeps_a ? 1 : parts_n; }
    double times_b() const { return keeps_a ? parts_m : 1; }
};

// Halves of the batch until the planes fit. Then both sides in so many parts that packing and waves of tiles together
// take least; if no such parts fit, halves of the longer side, down to a least panel. What fits exactly gives the same
// panel when it is all there is.
template <class Tile>
Cut cut_of(const Problem &problem, size_t workspace, int multiprocessors) {
    constexpr int kMostParts = 16;
    // Times are those of one output of a wave and one product of planes: a row is packed in 10 of them, and a panel's
    // kernels begin and end while a wave walks 600 of k.
    constexpr double kPackedRow = 10, kPanelDepth = 600;
    constexpr double kWave = Tile::BM * Tile::BN * Tile::Plan::end(Tile::Plan::kPhases - 1);
    const size_t room = std::min(workspace, kMostPanelBytes);
    const auto fits = [&](const Panel &panel) {
        return plane_bytes<Tile>(panel.rows, panel.columns, problem.k) * static_cast<double>(panel.batch) <=
                   2.0 * kMostPanelBytes &&
               packed_bytes<Tile>(problem, panel) <= room;
    };
    const auto cut = [&](const Panel &panel) { return Cut::of<Tile>(problem, panel, multiprocessors); };
    Panel panel{problem.m, problem.n, problem.batch};
    while (panel.batch > 1 && !fits(panel))
        panel.batch = (panel.batch + 1) / 2;
    if (fits(panel))
        return cut(panel);
    const auto in_parts = [&](int parts_m, int parts_n) {
        const auto piece = [](int64_t extent, int64_t parts) {
            return std::min(extent, ((extent + parts - 1) / parts + kLeastPanel - 1) / kLeastPanel * kLeastPanel);
        };
        return Panel{piece(problem.m, parts_m), piece(problem.n, parts_n), panel.batch};
    };
    Cut best = {};
    double least = HUGE_VAL;
    int first = kMostParts; // of n, that fit; the fewer, the more parts of m
    for (int parts_m = 1; parts_m <= kMostParts; ++parts_m) {
        if (!fits(in_parts(parts_m, first)))
            continue;
        while (first > 1 && fits(in_parts(parts_m, first - 1)))
            --first;
        for (int parts_n = first; parts_n <= kMostParts; ++parts_n) {
            const Cut candidate = cut(in_parts(parts_m, parts_n));
            const double time =
                kPackedRow * (candidate.times_a() * static_cast<double>(problem.m) +
                              candidate.times_b() * static_cast<double>(problem.n)) +
                kWave * (candidate.waves + candidate.parts() * kPanelDepth / static_cast<double>(problem.k));
            if (time < least)
                best = candidate, least = time;
        }
    }
    if (least < HUGE_VAL)
        return best;
    while (!fits(panel)) {
        int64_t *const longer = panel.rows > panel.columns ? &panel.rows : &panel.columns;
        if (*longer <= kLeastPanel)
            break;
        *longer = (*longer / 2 + kLeastPanel - 1) / kLeastPanel * kLeastPanel;
    }
    return cut(panel);
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
    const Panel panel = cut_of<Tile>(problem, device.workspace, device.multiprocessors).panel;
    return packed_bytes<Tile>(problem, panel) +
           depth_parts<Tile>(problem, panel, device, device.workspace).template bytes<Tile>();
}

// Packing by bytes, operands of a deep k read twice; what does not lie along k is turned, for half as much again. Then
// whole waves of tiles. Each part is packed and multiplied.
template <class Tile>
Work work(const Problem &problem, const Device &device) {
    constexpr double kOutput = 2.0 * plane_count(Tile::kScheme);
    const Cut parts = cut_of<Tile>(problem, device.workspace, device.multiprocessors);
    const double m = static_cast<double>(problem.m), n = static_cast<double>(problem.n);
    const double k = static_cast<double>(problem.k), batch = static_cast<double>(problem.batch);
    const auto bytes_packed = [&](const Operand &operand, double rows, bool turned) {
        return (!operand.array && operand.stride == 0 ? 1 : batch) * rows * k *
               ((problem.k <= kMostDepthAtOnce ? 4 : 8) + kOutput) * (turned ? 1.5 : 1);
    };
    Work work;
    work.move(problem);
    work.read -= 4 * batch * (m * k + k * n); // the planes are, from the L2
    const DepthParts cut = depth_parts<Tile>(problem, parts.panel, device, device.workspace);
    work.waves = parts.waves;
    work.steps = static_cast<double>(cut.chunks) * kPlaneDepth;
    work.pieces = cut.parts == 1 ? 0 : Tile::kSumChunks + cut.parts * Tile::kPartChunks;
    work.flops = 2.0 * Tile::BM * Tile::BN * work.steps;
    if (problem.c.ld % 4 != 0)
        work.single = std::min(1.0, m / Tile::BM) * std::min(1.0, n / Tile::BN);
    work.second_kernels = parts.parts();
    work.partial_bytes = parts.times_a() * bytes_packed(problem.a, m, problem.transa == Op::N) +
                         parts.times_b() * bytes_packed(problem.b, n, problem.transb == Op::T);
    return work;
}

template <class Tile>
Status launch_wgmma(const Problem &problem, const Launch &launch_on) {
    const Cut parts = cut_of<Tile>(problem, launch_on.workspace_bytes, launch_on.device->multiprocessors);
    const Panel &panel = parts.panel;
    const DepthParts cut = depth_parts<Tile>(problem, panel, *launch_on.device, launch_on.workspace_bytes);
    const auto multiply_part = [&](int64_t batch, int64_t row, int64_t column) {
        const Problem part = part_of(problem, panel, batch, row, column);
        const PackedProduct packed =
            PackedProduct::of(part, Tile::kScheme, marked<Tile>(problem), launch_on.workspace, !parts.keeps_a);
        PackedProduct missing = packed; // planes that are not there yet
        if (parts.keeps_a && column > 0)
            missing.a.rows = 0;
        if (!parts.keeps_a && row > 0)
            missing.b.rows = 0;
        PYBLAS_TRY(pack(part, missing, Tile::kScheme, launch_on));
        return multiply_planes<Tile>(part, packed, cut, launch_on);
    };
    for (int64_t batch = 0; batch < problem.batch; batch += panel.batch)
        if (parts.keeps_a)
            for (int64_t row = 0; row < problem.m; row += panel.rows)
                for (int64_t column = 0; column < problem.n; column += panel.columns)
                    PYBLAS_TRY(multiply_part(batch, row, column));
        else
            for (int64_t column = 0; column < problem.n; column += panel.columns)
                for (int64_t row = 0; row < problem.m; row += panel.rows)
                    PYBLAS_TRY(multiply_part(batch, row, column));
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
