// producer_tile: the FP32 kernel for products of about a tile for each multiprocessor, or more. Four warps bring tiles
// of op(A) and op(B), eight multiply them and do nothing else; they meet at barriers in shared memory, slot by slot.
//
//     4 warps, copying        slots               8 warps, multiplying       a slot is filled as soon as all eight have
//     A, B  --------->  [A B] [A B] [A B]  ---->  8 x 16 or 12 x 12          left it, and multiplied as soon as all
//           <- left --                    - come> outputs a thread           copies have come
//
// Slices of warps share the k of small tiles. Packed rows first turn both operands into panels, one tile wide and
// padded with zeros; then every op, ld, alignment and edge is the same loop, fed by the copy engine.
//
// 384 threads, 168 registers each (216 or 232 of those that multiply), one block on a multiprocessor, 72 to 114 KB and
// up to 144 KB of folded sums. Packed rows refuse batches. Slots are as in CUTLASS's pipelines, the rest is
// warp_tile's.
#include "warp_tile.cuh"

#include <algorithm>
#include <cmath>

#include "../device/launch.cuh"
#include "../device/ptx.cuh"
#include "panels.cuh"

namespace pyblas {
namespace {

constexpr int kProducers = 128;

// Of k, summed before the accumulators are folded; each slice has its share.
template <class Tile>
PYBLAS_HOST_DEVICE constexpr int sum_depth(int64_t k) {
    return (k < (1 << 18) ? 256 : 1024) * Tile::kSlices;
}

// How tiles come: by asynchronous copies of all threads from the operands as they lie, ...
template <class Tile, bool ContiguousM, bool ContiguousN>
struct Copied {
    using StreamA = TileStream<Tile::BM, Tile::BK, kProducers, ContiguousM>;
    using StreamB = TileStream<Tile::BN, Tile::BK, kProducers, ContiguousN>;
    static constexpr bool kPacked = false;
    static constexpr int kThreads = kProducers;
    // Of a thread; all have 168 at first.
    static constexpr int kRegisters = 216, kProducerRegisters = 72;
};

// ... or out of panels, by the copy engine and one thread that asks it.
template <class Tile>
struct Packed {
    using StreamA = TileStream<Tile::BM, Tile::BK, kProducers, true>; // how they lie in shared memory
    using StreamB = TileStream<Tile::BN, Tile::BK, kProducers, true>;
    static constexpr bool kPacked = true;
    static constexpr int kThreads = 1;
    static constexpr int kRegisters = 232, kProducerRegisters = 40;
};

template <class Tile, class Feed>
struct Slots {
    using StreamA = typename Feed::StreamA;
    using StreamB = typename Feed::StreamB;
    static constexpr int kBarrierFloats = 4 * Tile::kStages + 4; // two to each slot, and one
    static constexpr int kSlotFloats = StreamA::kFloats + StreamB::kFloats;
    static constexpr int kAllFloats = Tile::kStages * kSlotFloats;

    static_assert(Feed::kPacked ? Feed::kThreads == 1 : Feed::kThreads == kProducers, "who fills a slot");
    static_assert(2 * Feed::kRegisters + Feed::kProducerRegisters <= 3 * 168, "registers are handed on, not made");

    // Slots, then totals; what slices hand over at the end lies where both were.
    static constexpr int bytes(bool folds) {
        constexpr int kOutputs = Tile::BM * Tile::BN, kHanded = kOutputs * (Tile::kSlices - 1);
        const int floats = kAllFloats + (folds ? kOutputs * Tile::kSlices : 0);
        return 4 * (kBarrierFloats + (floats > kHanded ? floats : kHanded));
    }
};

// acc += a b'. The outputs are walked like a snake, along the shorter side there and back: of the three registers that
// a multiply-add reads, one is then always that of the multiply-add before it, also where the snake turns. Registers
// give two operands a cycle, and the third must be left from the instruction before, or a cycle is lost.
template <class Tile>
__device__ __forceinline__ void outer_product(const float (&a)[Tile::TM], const float (&b)[Tile::TN],
                                              float (&acc)[Tile::TN][Tile::TM]) {
    constexpr bool kDown = Tile::TM <= Tile::TN;
    constexpr int kShorter = kDown ? Tile::TM : Tile::TN, kLonger = kDown ? Tile::TN : Tile::TM;
#pragma unroll
    for (int outer = 0; outer < kLonger; ++outer)
#pragma unroll
        for (int step = 0; step < kShorter; ++step) {
            const int inner = outer % 2 ? kShorter - 1 - step : step;
            const int i = kDown ? inner : outer, j = kDown ? outer : inner;
            acc[j][i] = fmaf(a[i], b[j], acc[j][i]);
        }
}

#if PYBLAS_HAS_WGMMA

// When all its lanes are there, a warp has left; each of them says so, as racecheck follows no other.
__device__ __forceinline__ void arrive_as_warp(uint64_t *barrier) {
    __syncwarp();
    ptx::arrive(barrier);
}

// Adds the sums of all slices, in order, into those of slice 0. False for threads whose work is done.
template <class Tile>
__device__ __forceinline__ bool gather_slices(uint64_t *met, float4 *handed, float (&acc)[Tile::TN][Tile::TM]) {
    if constexpr (Tile::kSlices > 1) {
        constexpr int kQuads = Tile::TM * Tile::TN / 4;
        const int slice = static_cast<int>(threadIdx.x) / Tile::kSliceThreads;
        handed += static_cast<int>(threadIdx.x) % Tile::kSliceThreads;
        arrive_as_warp(met);
        ptx::wait(met, 0); // everybody is done with the slots
        if (slice > 0) {
#pragma unroll
            for (int quad = 0; quad < kQuads; ++quad) {
                const float *const sum = &acc[quad / (Tile::TM / 4)][quad % (Tile::TM / 4) * 4];
                handed[((slice - 1) * kQuads + quad) * Tile::kSliceThreads] = {sum[0], sum[1], sum[2], sum[3]};
            }
        }
        arrive_as_warp(met);
        ptx::wait(met, 1);
        if (slice > 0) {
            arrive_as_warp(met); // for the store, which the others wait for
            return false;
        }
#pragma unroll 1
        for (int other = 0; other < Tile::kSlices - 1; ++other)
#pragma unroll
            for (int quad = 0; quad < kQuads; ++quad) {
                float *const sum = &acc[quad / (Tile::TM / 4)][quad % (Tile::TM / 4) * 4];
                const float4 value = handed[(other * kQuads + quad) * Tile::kSliceThreads];
                sum[0] += value.x, sum[1] += value.y, sum[2] += value.z, sum[3] += value.w;
            }
    }
    return true;
}

#endif

template <class Tile, class Feed>
__global__ void __launch_bounds__(Tile::kThreads + kProducers, Tile::kResident)
    producer_tile(__grid_constant__ const Problem problem, const TileGrid grid, const Panels panels) {
#if PYBLAS_HAS_WGMMA
    using Parts = Slots<Tile, Feed>;
    using StreamA = typename Parts::StreamA;
    using StreamB = typename Parts::StreamB;
    // place
    const TilePlace place = place_tile(grid);
    ptx::wait_for_predecessors();
    const Epilogue scalars(problem);
    if (!place.exists || scalars.idle())
        return;
    const int64_t block_row = place.row * Tile::BM, block_column = place.column * Tile::BN;
    const int thread = static_cast<int>(threadIdx.x);
    uint64_t *const come = reinterpret_cast<uint64_t *>(dynamic_shared());
    uint64_t *const left = come + Tile::kStages, *const met = left + Tile::kStages;
    float *const smem = reinterpret_cast<float *>(dynamic_shared()) + Parts::kBarrierFloats;
    if (thread == 0) {
        for (int slot = 0; slot < Tile::kStages; ++slot) {
            ptx::init_barrier(come + slot, Feed::kThreads);
            ptx::init_barrier(left + slot, Tile::kThreads);
        }
        ptx::init_barrier(met, Tile::kThreads);
        ptx::publish_barriers();
    }
    __syncthreads();

    const int64_t depth = scalars.depth();
    const int64_t tiles = (depth + Tile::BK - 1) / Tile::BK;
    if (thread >= Tile::kThreads) {
        // load
        ptx::give_registers_back<Feed::kProducerRegisters>();
        const int producer = thread - Tile::kThreads;
        int slot = 0;
        uint32_t parity = 1;
        bool again = false; // the slot has been used
        const auto produce = [&](const auto &fill) {
            for (int64_t k_left = depth; k_left > 0; k_left -= Tile::BK) {
                if (again)
                    ptx::wait(left + slot, parity);
                fill(smem + slot * Parts::kSlotFloats, part(k_left, Tile::BK), come + slot);
                if (++slot == Tile::kStages)
                    slot = 0, parity ^= 1, again = true;
            }
        };
        if constexpr (Feed::kPacked) {
            const float *a = panels.a + place.row * panels.step_a, *b = panels.b + place.column * panels.step_b;
            if (producer == 0)
                produce([&](float *tile, int, uint64_t *barrier) {
                    ptx::expect(barrier, 4 * Parts::kSlotFloats);
                    ptx::copy_in_bulk(tile, a, 4 * StreamA::kFloats, barrier);
                    ptx::copy_in_bulk(tile + StreamA::kFloats, b, 4 * StreamB::kFloats, barrier);
                    ptx::arrive(barrier);
                    a += StreamA::kFloats, b += StreamB::kFloats;
                });
        } else {
            StreamA stream_a(view_a(problem, place.batch), block_row, problem.m, producer);
            StreamB stream_b(view_b(problem, place.batch), block_column, problem.n, producer);
            produce([&](float *tile, int k, uint64_t *barrier) {
                stream_a.next(tile, k);
                stream_b.next(tile + StreamA::kFloats, k);
                ptx::arrive_after_copies(barrier);
            });
        }
    } else {
        // multiply
        ptx::take_registers<Feed::kRegisters>();
        float acc[Tile::TN][Tile::TM] = {};
        const ThreadPlace<Tile> mine = ThreadPlace<Tile>::of(thread % Tile::kSliceThreads);
        const int first_row = Tile::slice_begin(thread / Tile::kSliceThreads);
        const float *const smem_a = smem + first_row * StreamA::kRow + mine.row;
        const float *const smem_b = smem + StreamA::kFloats + first_row * StreamB::kRow + mine.column;
        float4 *const totals = reinterpret_cast<float4 *>(smem + Parts::kAllFloats) + thread;
        const int fold_tiles = sum_depth<Tile>(problem.k) / Tile::BK;
        int slot = 0;
        uint32_t parity = 0;
        for (int64_t done = 0; done < tiles; done += fold_tiles) {
#pragma unroll 1
            for (int count = part(tiles - done, fold_tiles); count > 0; --count) {
                ptx::wait(come + slot, parity);
                const float *const a = smem_a + slot * Parts::kSlotFloats, *const b =
                                                                               smem_b + slot * Parts::kSlotFloats;
                float frag_a[2][Tile::TM], frag_b[2][Tile::TN];
                StreamA::template read<Tile::TM, Tile::kLanesM>(a, 0, frag_a[0]);
                StreamB::template read<Tile::TN, Tile::kLanesN>(b, 0, frag_b[0]);
#pragma unroll
                for (int k = 0; k < Tile::kSliceK; ++k) {
                    if (k + 1 < Tile::kSliceK) {
                        const int row = Tile::slice_row(k + 1);
                        StreamA::template read<Tile::TM, Tile::kLanesM>(a, row, frag_a[(k + 1) % 2]);
                        StreamB::template read<Tile::TN, Tile::kLanesN>(b, row, frag_b[(k + 1) % 2]);
                    }
                    outer_product<Tile>(frag_a[k % 2], frag_b[k % 2], acc);
                }

                // advance
                arrive_as_warp(left + slot);
                if (++slot == Tile::kStages)
                    slot = 0, parity ^= 1;
            }
            if (tiles > fold_tiles)
                fold<Tile>(totals, acc, done == 0, done + fold_tiles >= tiles);
        }

        // store
        if (gather_slices<Tile>(met, reinterpret_cast<float4 *>(smem), acc))
            store_tile<Tile, 1>(
                problem, place.batch, block_row, block_column, smem,
                [&] {
                    arrive_as_warp(met);
                    ptx::wait(met, 0);
                },
                acc);
    }
#endif
}

template <class Tile>
constexpr bool needs_totals(const Problem &problem) {
    return problem.k > sum_depth<Tile>(problem.k);
}

// ---- operands as they lie ------------------------------------------------------------------------------------------

template <class Tile, class Feed>
Status start(const Problem &problem, const Panels &panels, bool early, const Launch &launch_on) {
    const TileGrid grid = TileGrid::of(problem, Tile::BM, Tile::BN);
    const int bytes = Slots<Tile, Feed>::bytes(needs_totals<Tile>(problem));
    PYBLAS_TRY((allow_shared<producer_tile<Tile, Feed>>(launch_on.device->shared_per_block)));
    early &= launch_on.device->starts_early;
    return launch<producer_tile<Tile, Feed>>({grid.blocks, Tile::kThreads + kProducers, bytes, launch_on.stream, early},
                                             problem, grid, panels);
}

template <class Tile>
const char *refuses(const Problem &problem, const Device &device) {
    using Largest = Slots<Tile, Copied<Tile, false, false>>; // transposed tiles are padded
    return Largest::bytes(needs_totals<Tile>(problem)) > device.shared_per_block
               ? "a block needs more shared memory than the device gives"
               : nullptr;
}

template <class Tile>
Work work(const Problem &problem, const Device &device) {
    return tile_work<Tile>(problem, device, 1);
}

template <class Tile>
Status launch_copied(const Problem &problem, const Launch &launch_on) {
    const bool n = problem.transa == Op::N, t = problem.transb == Op::T;
    return n && t ? start<Tile, Copied<Tile, true, true>>(problem, {}, false, launch_on)
           : n    ? start<Tile, Copied<Tile, true, false>>(problem, {}, false, launch_on)
           : t    ? start<Tile, Copied<Tile, false, true>>(problem, {}, false, launch_on)
                  : start<Tile, Copied<Tile, false, false>>(problem, {}, false, launch_on);
}

// ---- packed operands -----------------------------------------------------------------------------------------------

constexpr size_t kMostWorkspace = size_t{1} << 30;
constexpr int64_t kMostDepth = 1 << 17; // tiles of both sides fit into the workspace

template <class Tile>
int64_t padded_depth(const Problem &problem) {
    return (problem.k + Tile::BK - 1) / Tile::BK * Tile::BK;
}

template <class Tile>
size_t workspace_packed(const Problem &problem, const Device &) {
    const int64_t rows = TileGrid::of(problem, Tile::BM, Tile::BN).rows * Tile::BM +
                         TileGrid::of(problem, Tile::BM, Tile::BN).columns * Tile::BN;
    const double bytes = 4.0 * static_cast<double>(rows) * static_cast<double>(padded_depth<Tile>(problem));
    return bytes < static_cast<double>(kMostWorkspace) ? static_cast<size_t>(bytes) : kMostWorkspace;
}

template <class Tile>
const char *refuses_packed(const Problem &problem, const Device &device) {
    if (problem.batch != 1 || problem.a.array)
        return "it packs one product, not a batch";
    if (problem.k == 0 || problem.k > kMostDepth)
        return "there is no k to walk, or too much of it to pack";
    return Slots<Tile, Packed<Tile>>::bytes(needs_totals<Tile>(problem)) > device.shared_per_block
               ? "a block needs more shared memory than the device gives"
               : nullptr;
}

// Every part is packed and multiplied in turn; each of its waves is whole.
template <class Tile>
Work work_packed(const Problem &problem, const Device &device) {
    const TileGrid all = TileGrid::of(problem, Tile::BM, Tile::BN);
    const Parts parts =
        Parts::of(all, Tile::BM, Tile::BN, padded_depth<Tile>(problem), workspace_packed<Tile>(problem, device));
    const double count_a = static_cast<double>((all.rows + parts.rows - 1) / parts.rows);
    const double count_b = static_cast<double>((all.columns + parts.columns - 1) / parts.columns);
    Work work;
    work.move(problem);
    work.read = 0; // the panels are, from the L2
    work.waves =
        count_a * count_b * std::ceil(static_cast<double>(parts.rows * parts.columns) / device.multiprocessors);
    work.steps = static_cast<double>(padded_depth<Tile>(problem));
    work.flops = 2.0 * Tile::BM * Tile::BN * work.steps;
    work.second_kernels = count_a + count_a * count_b; // that pack
    work.partial_bytes = 8.0 * static_cast<double>(problem.k) *
                         (static_cast<double>(problem.m) + count_a * static_cast<double>(problem.n));
    return work;
}

template <class Tile>
Status launch_packed(const Problem &problem, const Launch &launch_on) {
    const int64_t padded = padded_depth<Tile>(problem);
    const Parts parts =
        Parts::of(TileGrid::of(problem, Tile::BM, Tile::BN), Tile::BM, Tile::BN, padded, launch_on.workspace_bytes);
    float *const panels_a = static_cast<float *>(launch_on.workspace);
    float *const panels_b = panels_a + parts.rows * Tile::BM * padded;
    const int64_t high = parts.rows * Tile::BM, wide = parts.columns * Tile::BN;
    const int64_t count = (problem.n + wide - 1) / wide;
    int64_t packed_column = -1;
    bool back = false; // columns are walked there and back, so that the last ones packed serve twice
    for (int64_t row = 0; row < problem.m; row += high, back = !back) {
        Problem piece = problem;
        piece.m = std::min(problem.m - row, high);
        PYBLAS_TRY(pack<Tile::BM>(problem, view_a(problem, 0), row, piece.m, padded, panels_a, launch_on.stream));
        for (int64_t i = 0; i < count; ++i) {
            const int64_t column = (back ? count - 1 - i : i) * wide;
            piece.n = std::min(problem.n - column, wide);
            const bool fresh = column != packed_column;
            if (fresh)
                PYBLAS_TRY(
                    pack<Tile::BN>(problem, view_b(problem, 0), column, piece.n, padded, panels_b, launch_on.stream));
            packed_column = column;
            piece.c.data = problem.c.matrix(0) + row + column * problem.c.ld;
            const Panels panels{panels_a, panels_b, Tile::BM * padded, Tile::BN * padded};
            PYBLAS_TRY((start<Tile, Packed<Tile>>(piece, panels, fresh || i == 0, launch_on)));
        }
    }
    return kSuccess;
}

struct Tile48x96 : WarpTile<48, 96, 64, 48, 96, 12, 12, 3, 1, 8> {};
struct Tile96x192 : WarpTile<96, 192, 16, 48, 96, 12, 12, 4, 1, 2> {};
struct Tile192x192 : WarpTile<192, 192, 16, 48, 96, 12, 12, 3, 1> {};
struct Tile128x256 : WarpTile<128, 256, 16, 32, 128, 8, 16, 4, 1> {};
struct Tile256x128 : WarpTile<256, 128, 16, 128, 32, 16, 8, 4, 1> {};

// A block has no more than the device gives, whatever the tile could use.
template <class Tile, class Feed>
constexpr Footprint kFootprint{Tile::kThreads + kProducers, Tile::kResident,
                               std::min(Slots<Tile, Feed>::bytes(true), 227 << 10)};

#define PYBLAS_COPIED_ROW(name, Tile)                                                                                  \
    {"producer_tile_" name,                                                                                            \
     "producer_tile",                                                                                                  \
     Engine::gpu,                                                                                                      \
     kFp32Modes,                                                                                                       \
     90,                                                                                                               \
     true,                                                                                                             \
     refuses<Tile>,                                                                                                    \
     nullptr,                                                                                                          \
     nullptr,                                                                                                          \
     launch_copied<Tile>,                                                                                              \
     false,                                                                                                            \
     kFootprint<Tile, Copied<Tile, false, false>>,                                                                     \
     work<Tile>}
#define PYBLAS_PACKED_ROW(name, Tile)                                                                                  \
    {"producer_tile_" name "_packed",                                                                                  \
     "producer_tile",                                                                                                  \
     Engine::gpu,                                                                                                      \
     kFp32Modes,                                                                                                       \
     90,                                                                                                               \
     true,                                                                                                             \
     refuses_packed<Tile>,                                                                                             \
     workspace_packed<Tile>,                                                                                           \
     nullptr,                                                                                                          \
     launch_packed<Tile>,                                                                                              \
     false,                                                                                                            \
     kFootprint<Tile, Packed<Tile>>,                                                                                   \
     work_packed<Tile>}
constexpr Kernel kRows[] = {
    PYBLAS_COPIED_ROW("48x96x64", Tile48x96),     PYBLAS_COPIED_ROW("96x192x16", Tile96x192),
    PYBLAS_PACKED_ROW("192x192x16", Tile192x192), PYBLAS_PACKED_ROW("128x256x16", Tile128x256),
    PYBLAS_PACKED_ROW("256x128x16", Tile256x128),
};
#undef PYBLAS_COPIED_ROW
#undef PYBLAS_PACKED_ROW

} // namespace

KernelRows producer_tile_rows() {
    return rows(kRows);
}

} // namespace pyblas
