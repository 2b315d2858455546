// skinny: products with few rows or few columns, one vector included. The large operand is read once and decides the
// time; it runs through shared memory as it lies, whatever its op, or, in 64x4x256, straight to registers. For Hopper,
// in 128x.. (direct.cuh) warps of their own bring it, for up to 64 columns, and in 32x8x256_boxed, 32x16x256 and
// 32x32x256 the copy engine (boxed.cuh).
//
//          large operand                  a block has BM of its x and a range of k; its threads are quads of x by
//    k +---+---+---+---+---+--            groups of k, and each holds 4 or 8 times BN sums
//      | b | b | b | b | b |
//    | +---+---+---+---+---+--            where blocks of x fill the multiprocessors badly, k is cut into ranges,
//    v | b | b | b | b | b |              whose sums a second kernel adds
//      +---+---+---+---+---+--
//
// With little k, lanes hold the small operand in registers (held.cuh): 64x16x16, 64x8x32, 64x4x64. 256 threads; up to
// 128 registers and half of the shared memory, 64x16x128 and the boxed ones all of both. Refuses products whose rows
// and columns both are more than BN, and devices with too little shared memory.
#include "boxed.cuh"
#include "direct.cuh"
#include "held.cuh"
#include "slices.cuh"

namespace pyblas {
namespace {

// The small side is that of fewer outputs; equal sides are small columns.
bool x_is_rows(const Problem &problem) {
    return problem.m >= problem.n;
}

template <class Tile>
const char *refuses(const Problem &problem, const Device &device) {
    if (std::min(problem.m, problem.n) > Tile::BS)
        return "both m and n are larger than what it holds of the small operand";
    return slices_refuses<Tile>(device);
}

// The large operand's bytes decide; BN = 16 needs most of the issue slots as well.
template <class Tile>
constexpr SliceRate rate() {
    if (Tile::kAddsRanges && Tile::BX == 64)
        return {0.97, 0.35, 1.5e-6};
    if (Tile::kAddsRanges)
        return {0.95, Tile::BS <= 16 ? 0.55 : 0.68, 2.5e-6};
    if (Tile::BX == 256)
        return Tile::BS == 4 ? SliceRate{0.9, 0.45, 0.7e-6} : SliceRate{0.65, 0.35, 0.35e-6};
    if (Tile::BX == 128)
        return {0.95, 0.5, 0.15e-6};
    return Tile::BS == 16 ? SliceRate{0.9, 0.5, 2e-6} : SliceRate{0.92, 0.35, 0.8e-6};
}

template <class Tile>
size_t workspace(const Problem &problem, const Device &device) {
    return slices_workspace<Tile>(problem, device, x_is_rows(problem), rate<Tile>());
}

template <class Tile>
Work work(const Problem &problem, const Device &device) {
    return slices_work<Tile>(problem, device, x_is_rows(problem), rate<Tile>());
}

// Rows of a box that the small operand does not fill take the engine longer, as measured: so many copies for each k.
template <class Tile>
Work work_of_boxes(const Problem &problem, const Device &device) {
    constexpr double kUnfilled = 10;
    Work all = work<Tile>(problem, device);
    const bool along_k = x_is_rows(problem) ? problem.transb == Op::N : problem.transa == Op::T;
    if (!along_k && std::min(problem.m, problem.n) % Tile::BS != 0)
        all.narrow += kUnfilled * all.folds * Tile::BK;
    return all;
}

template <class Tile, class Kernels = SliceKernels<Tile>>
Status launch_skinny(const Problem &problem, const Launch &launch_on) {
    return launch_slices<Tile, Kernels>(problem, launch_on, x_is_rows(problem), rate<Tile>());
}

using Tile1 = SliceTile<32, 1, 256, 4, 1, 256, 2, 4, true>;
using Tile8 = SliceTile<32, 8, 256, 4, 8, 256, 2, 4, true>;
using Tile16 = SliceTile<64, 16, 128, 8, 8, 256, 2>;
using Tall1 = SliceTile<128, 1, 32, 4, 1, 256, 3>;
using Tall4 = SliceTile<256, 4, 16, 4, 4, 256, 3>;
using Tall16 = SliceTile<256, 16, 16, 4, 4, 256, 3>;

using Direct4 = DirectTile<OwnTile<64, 4, 256, 8, 4, 8, 1, 1, 1, 256>, 2, 4>;

using Fed16 = FedTile<OwnTile<128, 16, 64, 8, 16, 16, 4, 1, 1, 256>, 6>;
using Fed32 = FedTile<OwnTile<128, 32, 32, 8, 16, 16, 4, 1, 2, 256>, 8>;
using Fed48 = FedTile<OwnTile<128, 48, 32, 8, 12, 16, 8, 1, 4, 256>, 8>;
using Fed64 = FedTile<OwnTile<128, 64, 32, 8, 16, 16, 8, 1, 4, 256>, 8>;

using Boxed8 = BoxedTile<OwnTile<32, 8, 256, 8, 8, 4, 4, 1, 1, 256>, 1, 5>;
using Boxed16 = BoxedTile<OwnTile<32, 16, 256, 8, 16, 4, 4, 1, 1, 256>, 1, 4>;
using Boxed32 = BoxedTile<OwnTile<32, 32, 256, 8, 16, 4, 4, 1, 2, 256>, 1, 3>;

using Held16 = HeldTile<4, 16, 1, 2, 4, 4>;
using Held8 = HeldTile<8, 8, 2, 2, 4, 4>;
using Held4 = HeldTile<16, 4, 4, 2, 4, 4>;

#define PYBLAS_SKINNY_ROW_OF(name, Tile, sm, needs_90a, Kernels, work)                                                 \
    {"skinny_" name,                                                                                                   \
     "skinny",                                                                                                         \
     Engine::gpu,                                                                                                      \
     kFp32Modes,                                                                                                       \
     sm,                                                                                                               \
     needs_90a,                                                                                                        \
     refuses<Tile>,                                                                                                    \
     workspace<Tile>,                                                                                                  \
     nullptr,                                                                                                          \
     launch_skinny<Tile, Kernels<Tile>>,                                                                               \
     false,                                                                                                            \
     kSliceFootprint<Tile>,                                                                                            \
     work<Tile>}
#define PYBLAS_SKINNY_ROW(name, Tile) PYBLAS_SKINNY_ROW_OF(name, Tile, 75, false, SliceKernels, work)
#define PYBLAS_DIRECT_ROW(name, Tile) PYBLAS_SKINNY_ROW_OF(name, Tile, 75, false, DirectKernels, work)
#define PYBLAS_BOXED_ROW(name, Tile) PYBLAS_SKINNY_ROW_OF(name, Tile, 90, true, BoxedKernels, work_of_boxes)
#define PYBLAS_HELD_ROW(name, Tile)                                                                                    \
    {"skinny_" name,     "skinny", Engine::gpu, kFp32Modes,        75,    false,                                       \
     held_refuses<Tile>, nullptr,  nullptr,     launch_held<Tile>, false, {Tile::kThreads, Tile::kResident, 0},        \
     held_work<Tile>}
#define PYBLAS_FED_ROW(name, Tile) PYBLAS_SKINNY_ROW_OF(name, Tile, 90, true, FedKernels, work)
constexpr Kernel kRows[] = {
    PYBLAS_SKINNY_ROW("32x1x256", Tile1),   PYBLAS_SKINNY_ROW("32x8x256", Tile8),
    PYBLAS_SKINNY_ROW("64x16x128", Tile16), PYBLAS_SKINNY_ROW("128x1x32", Tall1),
    PYBLAS_SKINNY_ROW("256x4x16", Tall4),   PYBLAS_SKINNY_ROW("256x16x16", Tall16),
    PYBLAS_DIRECT_ROW("64x4x256", Direct4), PYBLAS_FED_ROW("128x16x64", Fed16),
    PYBLAS_FED_ROW("128x32x32", Fed32),     PYBLAS_FED_ROW("128x48x32", Fed48),
    PYBLAS_FED_ROW("128x64x32", Fed64),     PYBLAS_HELD_ROW("64x16x16", Held16),
    PYBLAS_HELD_ROW("64x8x32", Held8),      PYBLAS_HELD_ROW("64x4x64", Held4),
    PYBLAS_BOXED_ROW("32x16x256", Boxed16), PYBLAS_BOXED_ROW("32x8x256_boxed", Boxed8),
    PYBLAS_BOXED_ROW("32x32x256", Boxed32),
};
#undef PYBLAS_FED_ROW
#undef PYBLAS_HELD_ROW
#undef PYBLAS_BOXED_ROW
#undef PYBLAS_DIRECT_ROW
#undef PYBLAS_SKINNY_ROW
#undef PYBLAS_SKINNY_ROW_OF

} // namespace

KernelRows skinny_rows() {
    return rows(kRows);
}

} // namespace pyblas
