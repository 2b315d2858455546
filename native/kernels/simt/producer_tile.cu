// producer_tile: the FP32 kernel for products of about a tile for each multiprocessor, or more. Four warps bring tiles
// of op(A) and op(B), eight multiply them and do nothing else; they meet at barriers in shared memory, slot by slot.
//
//     boxes as operands lie     contiguous along k: turned     slots                 8 warps, multiplying
//     A, B  ----------------->  [A] [A] -------------------->  [A B] [A B] [A B] --> 8 x 16, 12 x 12 or 10 x 10
//            \------------------ contiguous along C ------------^       <- left --    outputs a thread
//
// Slices of warps share the k of small tiles, pairs of blocks that of small products, and blocks beside each other that
// of tiles which do not fill a wave; all sums are added in a fixed order. What the copy engine cannot read, and in some
// rows what would have to be turned, a kernel before packs into panels. Tiles of enough slices multiply a B along k as
// it lies (dealt.cuh). Refuses deep k, and arrays of pointers.
//
// 384 threads, 168 registers each (224 of those that multiply), one block on a multiprocessor, 227 KB at most. Slots
// are as in CUTLASS's pipelines, the rest is warp_tile's.
#include "warp_tile.cuh"

#include <algorithm>
#include <type_traits>

#include "../device/launch.cuh"
#include "../device/ptx.cuh"
#include "dealt.cuh"
#include "feed.cuh"
#include "panels.cuh"

namespace pyblas {
namespace {

constexpr int kProducers = 128; // threads

constexpr int kRegisters = 224, kProducerRegisters = 56;
static_assert(2 * kRegisters + kProducerRegisters <= 3 * 168, "registers are handed on, not made");

// Of k, summed before the accumulators are folded; each slice has its share. A fold takes as long as 7 of k. In the
// mode fp32_pedantic sums are then as accurate as cublasSgemm's at k = 1024, and more so beyond.
template <class Tile>
int sum_depth(const Problem &problem) {
    return (problem.mode == ComputeMode::fp32_pedantic ? 1024 : 256) * Tile::kSlices;
}

// How a product is cut, and what shared memory holds.
struct Plan {
    TileGrid grid;
    int64_t whole;               // tiles; the others are cut along k
    int64_t stages, part_stages; // of k, in all and in a part
    int cluster, ranges;         // parts: blocks that share their sums at once, and sums left in workspace
    int fold_stages;
    int slots;            // of A and B beside each other
    int groups;           // of the warps that turn, each with a tile of its own of what is turned; 0: nothing is
    int totals, barriers; // where they begin, in floats
    float *sums;          // [range][cut tile][column][row]
    float one;            // 1, which the compiler does not know

    PYBLAS_HOST_DEVICE int64_t cut() const { return grid.blocks - whole; }
    PYBLAS_HOST_DEVICE int64_t blocks() const { return whole + cut() * ranges * cluster; }
};

// A tile of sums that a slice of threads with pairs hands over: columns four floats longer than the tile's, so that the
// quads of eight neighbouring lanes meet all banks.
template <class Tile>
struct Handed {
    static constexpr int kColumn = Tile::BM + 4, kFloats = kColumn * Tile::BN;
    static_assert(Tile::BM % 8 == 0, "four columns are half a row of banks apart");
};

template <class Tile>
struct Slots {
    using SideA = Side<Tile::BM, Tile::BK>;
    using SideB = Side<Tile::BN, Tile::BK>;
    static constexpr int kFloats = SideA::kFloats + SideB::kFloats;
    static constexpr int kMost = 8, kMostGroups = kProducers / 32;
    static constexpr int kTotals = Tile::BM * Tile::BN * Tile::kSlices,
                         kHanded = Tile::TM % 4 == 0 ? kTotals : Handed<Tile>::kFloats * Tile::kSlices;
    static constexpr int kBarrierFloats = 2 * (2 * kMost + 4 * kMostGroups + 1);

    // As many slots as fit, and groups that are no more than slots: then no group is two turns of a slot ahead. What
    // slices and blocks hand over at the end lies where all else was. False: no room.
    static bool lay_out(Plan &plan, bool folds, bool turned_a, bool turned_b, int bytes) {
        const int room = bytes / 4 - kBarrierFloats - (folds ? kTotals : 0);
        const int staged = (turned_a ? SideA::kFloats : 0) + (turned_b ? SideB::kFloats : 0);
        plan.groups = staged ? kMostGroups : 0;
        while (plan.groups > 1 && room < plan.groups * (staged + kFloats))
            plan.groups /= 2;
        plan.slots = std::min((room - plan.groups * staged) / kFloats, kMost);
        plan.totals = plan.slots * kFloats + plan.groups * staged;
        plan.barriers = std::max(plan.totals + (folds ? kTotals : 0), kHanded);
        return plan.slots >= 2 && (plan.barriers + kBarrierFloats) * 4 <= bytes;
    }
    static int bytes(const Plan &plan) { return 4 * (plan.barriers + kBarrierFloats); }
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

// A thread's share of a row of a tile: Count values in quads, Lanes quads apart, and of those that are left over a
// pair. pair is how far the lane's first one lies before its first quad's place.
template <int Count, int Lanes>
__device__ __forceinline__ void read(const float *row, int pair, float (&fragment)[Count]) {
#pragma unroll
    for (int i = 0; i + 4 <= Count; i += 4) {
        const float4 quad = *reinterpret_cast<const float4 *>(row + i * Lanes);
        fragment[i] = quad.x, fragment[i + 1] = quad.y, fragment[i + 2] = quad.z, fragment[i + 3] = quad.w;
    }
    if constexpr (Count % 4 != 0) {
        const float2 last = *reinterpret_cast<const float2 *>(row - pair + (Count - 2) * Lanes);
        fragment[Count - 2] = last.x, fragment[Count - 1] = last.y;
    }
}

// From the place of a lane's first quad to its value of that number.
template <int Count, int Lanes>
__device__ __forceinline__ int value_at(int pair, int i) {
    return i / 4 < Count / 4 ? i / 4 * (4 * Lanes) + i % 4 : (Count - 2) * Lanes - pair + i % 4;
}

#if PYBLAS_HAS_WGMMA

// Where a block's sums go: C, or, raw, a tile of the workspace.
template <class Tile>
class Target {
public:
    __device__ __forceinline__ Target(const Problem &problem, const TilePlace &place, float *raw, float one)
        : epilogue_(problem), raw_(raw != nullptr), one_(one), ld_(raw ? Tile::BM : problem.c.ld),
          rows_(raw ? Tile::BM : part(problem.m - place.row * Tile::BM, Tile::BM)),
          columns_(raw ? Tile::BN : part(problem.n - place.column * Tile::BN, Tile::BN)),
          corner_(raw ? raw
                      : problem.c.matrix(place.batch) + place.row * Tile::BM + place.column * Tile::BN * problem.c.ld) {
    }

    // Sums that are stored as they are would have to lie in quads of registers.
    __device__ __forceinline__ float4 times_one(const float4 &sum) const {
        return {one_ * sum.x, one_ * sum.y, one_ * sum.z, one_ * sum.w};
    }
    __device__ __forceinline__ float2 times_one(const float2 &sum) const { return {one_ * sum.x, one_ * sum.y}; }
    // Whether rows are stored four at a time.
    __device__ __forceinline__ bool wide() const {
        return reinterpret_cast<uintptr_t>(corner_) % 16 == 0 && ld_ % 4 == 0 && rows_ % 4 == 0;
    }
    __device__ __forceinline__ void store(int row, int column, const float4 &sum) const {
        if (row >= rows_ || column >= columns_)
            return;
        float *const c = corner_ + row + column * ld_;
        if (raw_)
            ptx::store_quad(c, times_one(sum));
        else
            epilogue_.store4(c, sum);
    }
    __device__ __forceinline__ void store(int row, int column, float sum) const {
        if (row < rows_ && column < columns_)
            epilogue_.store(corner_ + row + column * ld_, sum);
    }

private:
    Epilogue epilogue_; // read again: two registers less while k is walked
    bool raw_;
    float one_;
    int64_t ld_;
    int rows_, columns_;
    float *corner_;
};

template <class Tile>
__device__ __forceinline__ float4 quad_of(const float (&acc)[Tile::TN][Tile::TM], int quad) {
    const float *const sum = &acc[quad / (Tile::TM / 4)][quad % (Tile::TM / 4) * 4];
    return {sum[0], sum[1], sum[2], sum[3]};
}

// The lane that has this quad of a warp's rows and that of its columns.
template <class Tile>
__device__ __forceinline__ int lane_at(int row, int column) {
    const bool down = Tile::kLanesM == Tile::kLonger;
    const int longer = down ? row : column, shorter = down ? column : row;
    return longer * 2 + shorter % 2 + shorter / 2 * (2 * Tile::kLonger);
}

// From a thread's first row and column to those of its quad of that number.
template <class Tile>
__device__ __forceinline__ int quad_row(int quad) {
    return quad % (Tile::TM / 4) * (Tile::kLanesM * 4);
}
template <class Tile>
__device__ __forceinline__ int quad_column(int quad) {
    const int across = quad / (Tile::TM / 4);
    return across / 4 * (Tile::kLanesN * 4) + across % 4;
}

// One arrival for a warp.
__device__ __forceinline__ void arrive_as_warp(uint64_t *barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        ptx::arrive(barrier);
}

// All multiplying threads, for the time of that parity.
__device__ __forceinline__ void meet(uint64_t *met, uint32_t parity) {
    ptx::arrive(met);
    ptx::wait(met, parity);
}

__device__ __forceinline__ void meet_in_cluster() {
    ptx::arrive_at_cluster();
    ptx::wait_for_cluster();
}

// What the slices, or in their place lanes, have handed over for one place, added in order; from one slice to the next
// it is so far.
template <class Tile, int Slices, class Sums>
__device__ __forceinline__ Sums sum_of_slices(const Sums *first, int apart) {
    if constexpr (kDeals<Tile> && Slices == Tile::kSlices) {
        return sum_of_fours<Slices>(first, apart);
    } else {
        Sums sum = *first;
#pragma unroll
        for (int slice = 1; slice < Slices; ++slice)
            sum = sum_of(sum, first[slice * apart]);
        return sum;
    }
}

// Where a slice's quad of sums lies when it is handed over, by its number and thread, and by its place in the tile.
template <class Tile>
__device__ __forceinline__ int handed_at(int slice, int quad, int thread) {
    return (slice * (Tile::TM * Tile::TN / 4) + quad) * Tile::kSliceThreads + thread;
}
template <class Tile>
__device__ __forceinline__ int handed_at_place(int slice, int row, int column) {
    const int down = row % Tile::WM / 4, across = column % Tile::WN;
    const int warp = row / Tile::WM + column / Tile::WN * (Tile::BM / Tile::WM);
    const int lane = lane_at<Tile>(down % Tile::kLanesM, across % (4 * Tile::kLanesN) / 4);
    const int quad = (across / (4 * Tile::kLanesN) * 4 + across % 4) * (Tile::TM / 4) + down / Tile::kLanesM;
    return handed_at<Tile>(slice, quad, warp * 32 + lane);
}

// Of the sums that so many slices have handed over, each slice of threads adds and stores its share of the tile. A pair
// of blocks has halves of it: first each adds for the other what its own slices have, in place, so that one sum of each
// output goes from block to block. Where rows cannot be stored by quads, lanes beside each other take rows beside each
// other.
template <class Tile, int Slices>
__device__ __forceinline__ void share_quads(float4 *smem, int cluster, int rank, const Target<Tile> &target) {
    constexpr int kQuads = Tile::TM * Tile::TN / 4, kApart = kQuads * Tile::kSliceThreads;
    constexpr int kAtOnce = Tile::kSlices < 8 ? 8 / Tile::kSlices : 1;
    const int thread = static_cast<int>(threadIdx.x) % Tile::kSliceThreads;
    const int slice = static_cast<int>(threadIdx.x) / Tile::kSliceThreads;
    const int groups = cluster * Tile::kSlices, first_quad = rank * Tile::kSlices + slice;
    float4 *const handed = smem + thread;
    const auto sum_of_block = [&](int quad) {
        return sum_of_slices<Tile, Slices>(handed + quad * Tile::kSliceThreads, kApart);
    };
    if (Tile::kSlices > 1 && cluster > 1) {
#pragma unroll 2
        for (int quad = (1 - rank) * Tile::kSlices + slice; quad < kQuads; quad += groups)
            handed[quad * Tile::kSliceThreads] = sum_of_block(quad);
        meet_in_cluster();
    }
    if (Tile::kSlices > 1 && target.wide()) {
        const ThreadPlace<Tile> mine = ThreadPlace<Tile>::of(thread);
#pragma unroll 1
        for (int first = first_quad; first < kQuads; first += groups * kAtOnce) {
            float4 sum[kAtOnce];
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                const int quad = min(first + i * groups, kQuads - 1);
                sum[i] = sum_of_block(quad);
                if (Tile::kSlices > 1 && cluster > 1)
                    sum[i] = sum_of(sum[i], ptx::load_of_block(handed + quad * Tile::kSliceThreads, 1 - rank));
            }
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i)
                if (const int quad = first + i * groups; quad < kQuads)
                    target.store(mine.row + quad_row<Tile>(quad), mine.column + quad_column<Tile>(quad), sum[i]);
        }
    } else {
        // The same quads of a warp's lanes are four times kLanesM rows of kLanesN columns.
        constexpr int kRows = 4 * Tile::kLanesM;
        const int lane = thread % 32, warp = thread - lane;
        const ThreadPlace<Tile> first = ThreadPlace<Tile>::of(warp);
#pragma unroll 1
        for (int quad = first_quad; quad < kQuads; quad += groups) {
            float sum[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int row = (i * 32 + lane) % kRows, column = (i * 32 + lane) / kRows;
                const float4 *const from = smem + quad * Tile::kSliceThreads + warp + lane_at<Tile>(row / 4, column);
                const float *const term = reinterpret_cast<const float *>(from) + row % 4;
                sum[i] = sum_of_slices<Tile, Slices>(term, 4 * kApart);
                if (Tile::kSlices > 1 && cluster > 1)
                    sum[i] += ptx::load_of_block(term, 1 - rank);
            }
#pragma unroll
            for (int i = 0; i < 4; ++i)
                target.store(first.row + quad_row<Tile>(quad) + (i * 32 + lane) % kRows,
                             first.column + quad_column<Tile>(quad) + (i * 32 + lane) / kRows * 4, sum[i]);
        }
    }
    if (Tile::kSlices > 1 && cluster > 1)
        meet_in_cluster(); // the other one has read what is here
}

// Adds and stores a share of the tile, Sums of one row or four, from columns in shared memory.
template <class Sums, class Tile>
__device__ __forceinline__ void store_columns(float *smem, int cluster, int rank, const Target<Tile> &target) {
    constexpr int kWidth = sizeof(Sums) / sizeof(float), kRows = Tile::BM / kWidth, kAll = kRows * Tile::BN;
    constexpr int kAtOnce = 8 / Tile::kSlices;
    const int thread = static_cast<int>(threadIdx.x), step = cluster * Tile::kThreads;
    const auto place = [&](int number) {
        return reinterpret_cast<Sums *>(smem + number / kRows * Handed<Tile>::kColumn + number % kRows * kWidth);
    };
    const auto sum_of_block = [](const Sums *from) {
        return sum_of_slices<Tile, Tile::kSlices>(from, Handed<Tile>::kFloats / kWidth);
    };
    if (Tile::kSlices > 1 && cluster > 1) {
#pragma unroll 2
        for (int number = (1 - rank) * Tile::kThreads + thread; number < kAll; number += step)
            *place(number) = sum_of_block(place(number));
        meet_in_cluster();
    }
#pragma unroll 1
    for (int number = rank * Tile::kThreads + thread; number < kAll; number += kAtOnce * step) {
        Sums sums[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            const Sums *const from = place(min(number + i * step, kAll - 1));
            sums[i] = sum_of_block(from);
            if (Tile::kSlices > 1 && cluster > 1)
                sums[i] = sum_of(sums[i], ptx::load_of_block(from, 1 - rank));
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
            if (const int at = number + i * step; at < kAll)
                target.store(at % kRows * kWidth, at / kRows, sums[i]);
    }
    if (Tile::kSlices > 1 && cluster > 1)
        meet_in_cluster(); // the other one has read what is here
}

// The same where a thread has pairs of rows and columns: sums are handed over as columns of the tile.
template <class Tile>
__device__ __forceinline__ void share_columns(uint64_t *met, float *smem, const float (&acc)[Tile::TN][Tile::TM],
                                              int cluster, int rank, const Target<Tile> &target) {
    static_assert(Tile::TM % 4 == 2 && Tile::TN % 4 == 2, "quads and a pair");
    const int thread = static_cast<int>(threadIdx.x);
    const ThreadPlace<Tile> mine = ThreadPlace<Tile>::of(thread % Tile::kSliceThreads);
    const int pair_m = 2 * Tile::lane_m(thread % 32), pair_n = 2 * Tile::lane_n(thread % 32);
    float *const handed =
        smem + thread / Tile::kSliceThreads * Handed<Tile>::kFloats + mine.column * Handed<Tile>::kColumn + mine.row;
    meet(met, 0); // everybody is done with the slots
#pragma unroll
    for (int j = 0; j < Tile::TN; ++j) {
        float *const column = handed + value_at<Tile::TN, Tile::kLanesN>(pair_n, j) * Handed<Tile>::kColumn;
#pragma unroll
        for (int i = 0; i + 4 <= Tile::TM; i += 4)
            *reinterpret_cast<float4 *>(column + value_at<Tile::TM, Tile::kLanesM>(pair_m, i)) =
                target.times_one(float4{acc[j][i], acc[j][i + 1], acc[j][i + 2], acc[j][i + 3]});
        *reinterpret_cast<float2 *>(column + value_at<Tile::TM, Tile::kLanesM>(pair_m, Tile::TM - 2)) =
            target.times_one(float2{acc[j][Tile::TM - 2], acc[j][Tile::TM - 1]});
    }
    meet(met, 1);
    if (target.wide())
        store_columns<float4>(smem, cluster, rank, target);
    else
        store_columns<float>(smem, cluster, rank, target);
}

// A thread's share of a tile, and of the k of a stage: that of its slice.
template <class Tile>
class Straight {
public:
    __device__ __forceinline__ explicit Straight(int thread)
        : thread_(thread % Tile::kSliceThreads), slice_(thread / Tile::kSliceThreads),
          pair_m_(2 * Tile::lane_m(thread % 32)), pair_n_(2 * Tile::lane_n(thread % 32)) {
        const ThreadPlace<Tile> place = ThreadPlace<Tile>::of(thread_);
        const int first = slice_ / kTurns * (kTurns * Tile::kSliceK) + slice_ % kTurns;
        from_a_ = first * Tile::BM + place.row, from_b_ = first * Tile::BN + place.column;
    }

    // Reads what the thread multiplies in that one of its k.
    __device__ __forceinline__ void read(const float *a, const float *b, int k, float (&frag_a)[Tile::TM],
                                         float (&frag_b)[Tile::TN]) const {
        pyblas::read<Tile::TM, Tile::kLanesM>(a + from_a_ + k * (kTurns * Tile::BM), pair_m_, frag_a);
        pyblas::read<Tile::TN, Tile::kLanesN>(b + from_b_ + k * (kTurns * Tile::BN), pair_n_, frag_b);
    }

    template <class Store>
    __device__ __forceinline__ void hand_over(const float (&acc)[Tile::TN][Tile::TM], Store store) const {
#pragma unroll
        for (int quad = 0; quad < Tile::TM * Tile::TN / 4; ++quad)
            store(handed_at<Tile>(slice_, quad, thread_), quad_of<Tile>(acc, quad));
    }

private:
    static constexpr int kTurns = kDeals<Tile> ? kDealers : 1; // slices that take k in turns

    const int thread_, slice_, pair_m_, pair_n_;
    int from_a_, from_b_;
};

#endif

template <class Tile, bool IsDealt>
__global__ void __launch_bounds__(Tile::kThreads + kProducers, Tile::kResident)
    producer_tile(__grid_constant__ const Problem problem, __grid_constant__ const Plan plan,
                  __grid_constant__ const Ways ways) {
#if PYBLAS_HAS_WGMMA
    using SideA = typename Slots<Tile>::SideA;
    using SideB = typename Slots<Tile>::SideB;
    constexpr int kSlotFloats = Slots<Tile>::kFloats, kMostGroups = Slots<Tile>::kMostGroups;
    constexpr int64_t kTileFloats = Tile::BM * Tile::BN;
    // place
    const int thread = static_cast<int>(threadIdx.x);
    float *const smem = reinterpret_cast<float *>(dynamic_shared());
    uint64_t *const come = reinterpret_cast<uint64_t *>(smem + plan.barriers);
    uint64_t *const left = come + Slots<Tile>::kMost, *const staged = left + Slots<Tile>::kMost;
    uint64_t *const met = staged + 4 * kMostGroups;
    const bool turns_a = ways.a.turned, turns_b = !IsDealt && ways.b.turned;
    if (thread == 0) {
        const int turners = plan.groups ? kProducers / plan.groups : 0;
        const int arrivals = !turns_a + !turns_b + turners;
#pragma unroll 1
        for (int slot = 0; slot < plan.slots; ++slot) {
            ptx::init_barrier(come + slot, arrivals);
            ptx::init_barrier(left + slot, Tile::kThreads);
        }
#pragma unroll 1
        for (int group = 0; group < plan.groups; ++group) {
            ptx::init_barrier(staged + group, 1);
            ptx::init_barrier(staged + kMostGroups + group, turners / 32);
            ptx::init_barrier(staged + 2 * kMostGroups + group, 1);
            ptx::init_barrier(staged + 3 * kMostGroups + group, turners / 32);
        }
        ptx::init_barrier(met, Tile::kThreads);
        ptx::publish_barriers();
    }
    __syncthreads();
    ptx::wait_for_predecessors();
    const Epilogue scalars(problem);
    // Whole tiles first, then, range by range, the parts of the others.
    const int64_t number = block_number() / plan.cluster, after = number - plan.whole;
    const bool whole = after < 0;
    const int64_t range = whole ? 0 : after / plan.cut();
    const int64_t tile = whole ? number : plan.whole + after - range * plan.cut();
    const TilePlace place = place_tile(plan.grid, tile);
    if (!place.exists || range >= plan.ranges || scalars.idle()) {
        ptx::launch_dependents();
        return;
    }
    const int rank = static_cast<int>(block_number() - number * plan.cluster);
    const int64_t k_begin = (range * plan.cluster + rank) * plan.part_stages * Tile::BK;
    const int64_t k_left = scalars.depth() - k_begin;
    const int64_t most = (whole ? plan.stages : plan.part_stages) * Tile::BK;
    const int64_t depth = k_left < 0 ? 0 : k_left < most ? k_left : most;

    if (thread >= Tile::kThreads) {
        // load
        ptx::give_registers_back<kProducerRegisters>();
        const int warp = (thread - Tile::kThreads) / 32;
        const int stages = static_cast<int>((depth + Tile::BK - 1) / Tile::BK);
        const Asker<Tile::BM, Tile::BK> a(ways.a, place.batch, place.row, k_begin);
        const Asker<Tile::BN, Tile::BK> b(ways.b, place.batch, place.column, k_begin);
        if (plan.groups == 0) {
            Turn turn{0, 1};
            for (int stage = 0; stage < stages && warp < 2; ++stage, turn.next(plan.slots, 1)) {
                if (stage >= plan.slots)
                    ptx::wait(left + turn.slot, turn.parity);
                float *const tile = smem + turn.slot * kSlotFloats;
                if (warp == 0)
                    a.ask(stage, tile, come + turn.slot);
                else
                    b.ask(stage, tile + SideA::kFloats, come + turn.slot);
            }
        } else {
            // A group takes every so many-th stage, and asks for its next one before it goes on to that.
            const int warps = kMostGroups / plan.groups, group = warp / warps, member = warp % warps;
            float *const staged_a = smem + plan.slots * kSlotFloats + group * (turns_a ? SideA::kFloats : 0);
            float *const staged_b =
                smem + plan.slots * kSlotFloats + plan.groups * (turns_a ? SideA::kFloats : 0) + group * SideB::kFloats;
            uint64_t *const come_a = staged + group, *const left_a = come_a + kMostGroups;
            uint64_t *const come_b = left_a + kMostGroups, *const left_b = come_b + kMostGroups;
            if (member == 0 && group < stages) {
                if (turns_a)
                    a.ask(group, staged_a, come_a);
                if (turns_b)
                    b.ask(group, staged_b, come_b);
            }
            Turn turn{-1, 1};
            turn.next(plan.slots, group + 1);
            uint32_t parity = 0;
            for (int stage = group; stage < stages; stage += plan.groups, turn.next(plan.slots, plan.groups)) {
                if (stage >= plan.slots)
                    ptx::wait(left + turn.slot, turn.parity);
                float *const tile = smem + turn.slot * kSlotFloats;
                if (member == 0) {
                    if (!turns_a)
                        a.ask(stage, tile, come + turn.slot);
                    if (!turns_b)
                        b.ask(stage, tile + SideA::kFloats, come + turn.slot);
                }
                if (turns_a) {
                    ptx::wait(come_a, parity);
                    SideA::turn(staged_a, tile, member, warps);
                    arrive_as_warp(left_a);
                }
                if (turns_b) {
                    ptx::wait(come_b, parity);
                    SideB::turn(staged_b, tile + SideA::kFloats, member, warps);
                    arrive_as_warp(left_b);
                }
                ptx::arrive(come + turn.slot);
                if (member == 0 && stage + plan.groups < stages) {
                    if (turns_a) {
                        ptx::wait(left_a, parity);
                        a.ask(stage + plan.groups, staged_a, come_a);
                    }
                    if (turns_b) {
                        ptx::wait(left_b, parity);
                        b.ask(stage + plan.groups, staged_b, come_b);
                    }
                }
                parity ^= 1;
            }
        }
        if (thread % 32 == 0)
            ptx::launch_dependents();
    } else {
        // multiply
        ptx::take_registers<kRegisters>();
        float acc[Tile::TN][Tile::TM] = {};
        using Share = std::conditional_t<IsDealt, Dealt<Tile>, Straight<Tile>>;
        const Share mine(thread);
        float4 *const totals = reinterpret_cast<float4 *>(smem + plan.totals) + thread;
        const int stages = static_cast<int>((depth + Tile::BK - 1) / Tile::BK);
        Turn turn{0, 0};
        for (int done = 0; done < stages; done += plan.fold_stages) {
#pragma unroll 1
            for (int count = min(stages - done, plan.fold_stages); count > 0; --count) {
                ptx::wait(come + turn.slot, turn.parity);
                const float *const a = smem + turn.slot * kSlotFloats, *const b = a + SideA::kFloats;
                float frag_a[2][Tile::TM], frag_b[2][Tile::TN];
                mine.read(a, b, 0, frag_a[0], frag_b[0]);
#pragma unroll
                for (int k = 0; k < Tile::kSliceK; ++k) {
                    if (k + 1 < Tile::kSliceK)
                        mine.read(a, b, k + 1, frag_a[(k + 1) % 2], frag_b[(k + 1) % 2]);
                    outer_product<Tile>(frag_a[k % 2], frag_b[k % 2], acc);
                }

                // advance
                ptx::arrive(left + turn.slot);
                turn.next(plan.slots, 1);
            }
            if (stages > plan.fold_stages)
                fold<Tile>(totals, acc, done == 0, done + plan.fold_stages >= stages);
        }

        // store
        float *const raw =
            whole || plan.ranges == 1 ? nullptr : plan.sums + (range * plan.cut() + tile - plan.whole) * kTileFloats;
        const Target<Tile> target(problem, place, raw, plan.one);
        if constexpr (Tile::TM % 4 != 0) {
            share_columns<Tile>(met, smem, acc, plan.cluster, rank, target);
        } else if (Tile::kSlices > 1 || !target.wide()) {
            float4 *const handed = reinterpret_cast<float4 *>(smem);
            meet(met, 0); // everybody is done with the slots
            if constexpr (IsDealt) {
                mine.add_lanes(acc);
                mine.hand_over(acc, [&](int slice, int row, int column, const float4 &sum) {
                    handed[handed_at_place<Tile>(slice, row, column)] = target.times_one(sum);
                });
            } else {
                mine.hand_over(acc, [&](int at, const float4 &sum) { handed[at] = target.times_one(sum); });
            }
            meet(met, 1);
            constexpr int kHanded = IsDealt ? Tile::kSlices / kDealers : Tile::kSlices;
            share_quads<Tile, kHanded>(handed, plan.cluster, rank, target);
        } else {
            const ThreadPlace<Tile> first = ThreadPlace<Tile>::of(thread);
#pragma unroll
            for (int quad = 0; quad < Tile::TM * Tile::TN / 4; ++quad)
                target.store(first.row + quad_row<Tile>(quad), first.column + quad_column<Tile>(quad),
                             quad_of<Tile>(acc, quad));
        }
    }
#endif
}

constexpr int kSumThreads = 128;
constexpr int kManyRanges = 16; // so many, and more, are added by four warps side by side

PYBLAS_HOST_DEVICE constexpr int sum_blocks(int threads) {
    return (threads + kSumThreads - 1) / kSumThreads;
}

// Adds the ranges of tiles that were cut, in order; a thread has so many neighbouring rows of C, and one of Shares
// equal parts of the ranges.
template <int BM, int BN, int Width, int Shares>
__global__ void __launch_bounds__(kSumThreads)
    sum_ranges(__grid_constant__ const Problem problem, __grid_constant__ const Plan plan) {
#if PYBLAS_HAS_WGMMA
    constexpr int kFloats = BM * BN, kBlocks = sum_blocks(kFloats / Width * Shares); // of a tile
    constexpr int kAcross = kSumThreads / Shares;
    __shared__ float smem[Shares][Width][kAcross];
    ptx::launch_dependents();
    ptx::wait_for_predecessors();
    const Epilogue epilogue(problem);
    const int64_t tile = block_number() / kBlocks;
    if (tile >= plan.cut() || epilogue.idle())
        return;
    const int block = static_cast<int>(block_number() - tile * kBlocks);
    const int across = static_cast<int>(threadIdx.x) % kAcross, share = static_cast<int>(threadIdx.x) / kAcross;
    const int element = (block * kAcross + across) * Width;
    const TilePlace place = place_tile(plan.grid, plan.whole + tile);
    const int64_t i = place.row * BM + element % BM, j = place.column * BN + element / BM;
    const bool exists = element < kFloats && i < problem.m && j < problem.n;
    float sum[Width] = {};
    if (exists && epilogue.depth() > 0) {
        const int first = plan.ranges * share / Shares, end = plan.ranges * (share + 1) / Shares;
        const float *from = plan.sums + (first * plan.cut() + tile) * kFloats + element;
#pragma unroll 8
        for (int range = first; range < end; ++range, from += plan.cut() * kFloats) {
            if constexpr (Width == 4) {
                const float4 term = *reinterpret_cast<const float4 *>(from);
                sum[0] += term.x, sum[1] += term.y, sum[2] += term.z, sum[3] += term.w;
            } else {
                sum[0] += *from;
            }
        }
    }
    if constexpr (Shares > 1) {
#pragma unroll
        for (int part = 0; part < Width; ++part)
            smem[share][part][across] = sum[part];
        __syncthreads();
        if (share > 0)
            return;
#pragma unroll
        for (int other = 1; other < Shares; ++other)
#pragma unroll
            for (int part = 0; part < Width; ++part)
                sum[part] += smem[other][part][across];
    }
    if (!exists)
        return;
    float *const c = problem.c.matrix(place.batch) + i + j * problem.c.ld;
    if constexpr (Width == 4)
        epilogue.store4(c, {sum[0], sum[1], sum[2], sum[3]});
    else
        epilogue.store(c, sum[0]);
#endif
}

// ---- what is launched ----------------------------------------------------------------------------------------------

constexpr size_t kMostPanels = size_t{1} << 30; // bytes
constexpr int64_t kMostDepth = 1 << 17;         // tiles of both sides fit into them

template <class Tile>
int64_t stages_of(const Problem &problem) {
    return (problem.k + Tile::BK - 1) / Tile::BK;
}

// Whether an operand is packed, as far as no address says so.
bool packs(const Problem &problem, const Operand &operand, bool turned, bool packs_turned) {
    return (packs_turned && turned) || operand.ld % 4 != 0 || (problem.batch > 1 && operand.stride % 4 != 0);
}

// How many different matrices of an operand there are.
int64_t matrices(const Problem &problem, const Operand &operand) {
    return operand.stride == 0 ? 1 : problem.batch;
}

// Floats of the panels of so many matrices of both operands.
template <class Tile>
double panel_floats(const Problem &problem, int64_t of_a, int64_t of_b) {
    const TileGrid grid = TileGrid::of(problem, Tile::BM, Tile::BN);
    return static_cast<double>(stages_of<Tile>(problem) * Tile::BK) *
           (static_cast<double>(grid.rows * Tile::BM) * static_cast<double>(of_a) +
            static_cast<double>(grid.columns * Tile::BN) * static_cast<double>(of_b));
}

// Whether the panels of both operands, if both are packed, are more than the workspace holds.
template <class Tile>
bool exceeds(const Problem &problem) {
    return panel_floats<Tile>(problem, problem.batch, problem.batch) > static_cast<double>(kMostPanels / sizeof(float));
}

// Then C is computed in pieces, of so many tiles.
template <class Tile>
Parts parts_of(const Problem &problem, bool packs_a, bool packs_b) {
    const TileGrid grid = TileGrid::of(problem, Tile::BM, Tile::BN);
    const double floats = panel_floats<Tile>(problem, packs_a ? problem.batch : 0, packs_b ? problem.batch : 0);
    return floats > static_cast<double>(kMostPanels / sizeof(float))
               ? Parts::of(grid, Tile::BM, Tile::BN, stages_of<Tile>(problem) * Tile::BK, kMostPanels, packs_a, packs_b)
               : Parts{grid.rows, grid.columns};
}

// Tiles made whole, and the parts along k of each of the others.
struct Cut {
    int64_t whole, parts;
};

// Tiles of whole waves are made whole, or none; what is left is cut along k, so that all multiprocessors share it.
// Times are counted in k of a block: it begins and ends in the time of kPause multiply-adds, and a second kernel costs
// that of kSecond, and half a k for each tile of sums that it reads.
template <class Tile>
Cut best_cut(const Problem &problem, const Device &device) {
    constexpr int64_t kShortest = 128;                     // of k, in a part
    constexpr int64_t kBlocks = Tile::kSlices > 1 ? 2 : 1; // that can share their sums at once
    constexpr int64_t kPause = (1 << 20) / (Tile::BM * Tile::BN), kSecond = (1 << 19) / (Tile::BM * Tile::BN);
    const int64_t stages = stages_of<Tile>(problem), processors = device.multiprocessors;
    const int64_t tiles = TileGrid::of(problem, Tile::BM, Tile::BN).blocks;
    const auto waves = [&](int64_t blocks, int64_t deep) {
        return (blocks + processors - 1) / processors * (deep * Tile::BK + kPause);
    };
    Cut best{tiles, 1};
    int64_t least = waves(tiles, stages);
    const auto consider = [&](int64_t whole, int64_t parts) {
        const int64_t cut = tiles - whole, ranges = parts / (whole ? 1 : kBlocks);
        const int64_t all = waves(whole, stages) + waves(cut * parts, (stages + parts - 1) / parts) +
                            (ranges > 1 ? kSecond + cut * ranges / 2 : 0);
        if (all < least)
            best = {whole, parts}, least = all;
    };
    const int64_t most = problem.k / kShortest;
    if (exceeds<Tile>(problem))
        return best;
    if (tiles < processors)
        for (int64_t parts = 2; parts <= std::min(most, 2 * processors / tiles); parts += kBlocks)
            consider(0, parts);
    else if (const int64_t over = tiles % processors)
        for (int64_t parts = 2; parts <= std::min<int64_t>(most, std::max<int64_t>(8, processors / over)); ++parts)
            consider(tiles - over, parts);
    return best;
}

template <class Tile>
Plan plan_of(const Problem &problem, const Cut &cut) {
    Plan plan = {};
    plan.grid = TileGrid::of(problem, Tile::BM, Tile::BN);
    plan.whole = cut.whole;
    plan.stages = stages_of<Tile>(problem);
    plan.part_stages = (plan.stages + cut.parts - 1) / cut.parts;
    plan.cluster = Tile::kSlices > 1 && cut.whole == 0 ? 2 : 1;
    plan.ranges = static_cast<int>(cut.parts / plan.cluster);
    plan.fold_stages = sum_depth<Tile>(problem) / Tile::BK;
    plan.one = 1.0f;
    return plan;
}

template <class Tile>
bool folds(const Plan &plan) {
    return (plan.whole ? plan.stages : plan.part_stages) > plan.fold_stages;
}

template <class Tile>
int64_t sums_floats(const Plan &plan) {
    return plan.ranges > 1 ? Tile::BM * Tile::BN * plan.ranges * plan.cut() : 0;
}

// Whether B is turned where it is not packed.
template <class Tile>
bool turns_b(const Problem &problem) {
    return problem.transb == Op::N && !(kDeals<Tile> && problem.transa == Op::N);
}

template <class Tile, bool PacksTurned>
const char *refuses(const Problem &problem, const Device &device) {
    constexpr int64_t kMost = int64_t{1} << 31; // coordinates are ints
    if (problem.a.array || problem.b.array)
        return "the copy engine cannot follow arrays of pointers";
    if (problem.k == 0 || problem.k > kMostDepth)
        return "there is no k to walk, or too much of it to pack";
    if (std::max({problem.m, problem.n, problem.batch}) >= kMost)
        return "a side is longer than 2^31";
    if (problem.batch > 1 && exceeds<Tile>(problem))
        return "it packs one product in pieces, not a batch";
    Plan plan = plan_of<Tile>(problem, best_cut<Tile>(problem, device));
    return Slots<Tile>::lay_out(plan, folds<Tile>(plan), !PacksTurned && problem.transa == Op::T,
                                !PacksTurned && turns_b<Tile>(problem), device.shared_per_block)
               ? nullptr
               : "a block needs more shared memory than the device gives";
}

// Room for panels is always there, because addresses are not known yet.
template <class Tile>
size_t workspace(const Problem &problem, const Device &device) {
    const Plan plan = plan_of<Tile>(problem, best_cut<Tile>(problem, device));
    const size_t panels = exceeds<Tile>(problem)
                              ? kMostPanels / sizeof(float)
                              : static_cast<size_t>(panel_floats<Tile>(problem, problem.batch, problem.batch));
    return sizeof(float) * (static_cast<size_t>(sums_floats<Tile>(plan)) + panels);
}

template <class Tile, bool PacksTurned>
Work work(const Problem &problem, const Device &device) {
    const Plan plan = plan_of<Tile>(problem, best_cut<Tile>(problem, device));
    const bool turned_a = problem.transa == Op::T, turned_b = problem.transb == Op::N;
    const bool packs_a = packs(problem, problem.a, turned_a, PacksTurned);
    const bool packs_b = packs(problem, problem.b, turned_b, PacksTurned);
    const Parts parts = parts_of<Tile>(problem, packs_a, packs_b);
    const double count_a = static_cast<double>((plan.grid.rows + parts.rows - 1) / parts.rows);
    const double count_b = static_cast<double>((plan.grid.columns + parts.columns - 1) / parts.columns);
    const auto waves = [&](int64_t blocks) {
        return static_cast<double>((blocks + device.multiprocessors - 1) / device.multiprocessors);
    };
    Work work;
    work.move(problem);
    const int64_t cut_blocks = plan.cut() * plan.ranges * plan.cluster;
    if (count_a * count_b > 1)
        work.waves = count_a * count_b * waves(parts.rows * parts.columns);
    else if (plan.whole == 0)
        work.waves = waves(cut_blocks);
    else // waves of parts, as if they were as many shorter ones
        work.waves = waves(plan.whole) +
                     waves(cut_blocks) * static_cast<double>(plan.part_stages) / static_cast<double>(plan.stages);
    work.steps = static_cast<double>((plan.whole ? plan.stages : plan.part_stages) * Tile::BK);
    work.flops = 2.0 * Tile::BM * Tile::BN * work.steps;
    work.folds = plan.cluster - 1; // pairs wait for each other's sums
    const bool deals = kDeals<Tile> && !PacksTurned && (!turned_a || packs_a);
    work.copies =
        work.steps * ((turned_a && !packs_a ? Tile::BM : 0) + (turned_b && !packs_b && !deals ? Tile::BN : 0));
    if (problem.c.ld % 4 != 0)
        work.single = std::min(1.0, static_cast<double>(problem.m) / Tile::BM) *
                      std::min(1.0, static_cast<double>(problem.n) / Tile::BN);
    work.second_kernels = (packs_a || packs_b ? count_a * count_b : 0) + (plan.ranges > 1 ? 1 : 0);
    work.partial_bytes = 8.0 * static_cast<double>(sums_floats<Tile>(plan)) +
                         8.0 * static_cast<double>(problem.k) *
                             ((packs_a ? static_cast<double>(problem.m * matrices(problem, problem.a)) : 0) +
                              (packs_b ? count_a * static_cast<double>(problem.n * matrices(problem, problem.b)) : 0));
    return work;
}

template <bool PacksTurned>
bool lies_well(const Problem &problem, const Operand &operand, bool turned) {
    return !packs(problem, operand, turned, PacksTurned) && can_map(operand, problem.batch);
}

// A piece of an operand, from its x on: as it lies, or in panels.
template <int X, int BK>
Status prepare(const Problem &problem, const Operand &operand, bool packed, const View &view, int64_t first,
               int64_t extent, float *panels, Source *source, Way *way) {
    const bool turned = !view.contiguous_x();
    Operand piece = operand;
    piece.data = const_cast<float *>(view.at(first, 0));
    *source = {};
    if (!packed)
        return way_of<X, BK>(piece, turned, extent, problem.k, problem.batch, way);
    const int64_t padded = (problem.k + BK - 1) / BK * BK, count = matrices(problem, operand);
    *source = Source::of({static_cast<const float *>(piece.data), view.step_x, view.step_k}, operand.stride, count,
                         extent, X, padded, panels);
    return way_of_panels<X, BK>(panels, source->tiles, padded, count, way);
}

template <class Tile, bool PacksTurned>
Status launch_tiles(const Problem &problem, const Launch &launch_on) {
    constexpr bool kMayDeal = kDeals<Tile> && !PacksTurned;
    const Device &device = *launch_on.device;
    const bool packs_a = !lies_well<PacksTurned>(problem, problem.a, problem.transa == Op::T);
    const bool packs_b = !lies_well<PacksTurned>(problem, problem.b, problem.transb == Op::N);
    const Parts parts = parts_of<Tile>(problem, packs_a, packs_b);
    Plan plan = plan_of<Tile>(problem, best_cut<Tile>(problem, device));
    plan.sums = static_cast<float *>(launch_on.workspace);
    const bool quads = problem.m % 4 == 0 && problem.c.ld % 4 == 0 && problem.c.stride % 4 == 0 && !problem.c.array &&
                       reinterpret_cast<uintptr_t>(problem.c.data) % 16 == 0;
    const int64_t padded = stages_of<Tile>(problem) * Tile::BK;
    float *const panels_a = plan.sums + sums_floats<Tile>(plan);
    float *const panels_b = panels_a + (packs_a ? parts.rows * Tile::BM * padded * matrices(problem, problem.a) : 0);
    const int64_t high = parts.rows * Tile::BM, wide = parts.columns * Tile::BN;
    const int64_t count = (problem.n + wide - 1) / wide;
    int64_t packed_column = -1;
    bool back = false; // columns are walked there and back, so that the last ones packed serve twice
    Ways ways;
    Sources sources = {};
    sources.padded = padded;
    for (int64_t row = 0; row < problem.m; row += high, back = !back) {
        Problem piece = problem;
        piece.m = std::min(problem.m - row, high);
        PYBLAS_TRY((prepare<Tile::BM, Tile::BK>(problem, problem.a, packs_a, view_a(problem, 0), row, piece.m, panels_a,
                                                &sources.a, &ways.a)));
        for (int64_t i = 0; i < count; ++i) {
            const int64_t column = (back ? count - 1 - i : i) * wide;
            piece.n = std::min(problem.n - column, wide);
            sources.b = {};
            if (column != packed_column)
                PYBLAS_TRY((prepare<Tile::BN, Tile::BK>(problem, problem.b, packs_b, view_b(problem, 0), column,
                                                        piece.n, panels_b, &sources.b, &ways.b)));
            packed_column = column;
            if (exceeds<Tile>(problem)) {
                piece.c.data = problem.c.matrix(0) + row + column * problem.c.ld;
                plan = plan_of<Tile>(piece, {TileGrid::of(piece, Tile::BM, Tile::BN).blocks, 1});
            }
            const bool is_dealt = kMayDeal && !ways.a.turned && ways.b.turned;
            Slots<Tile>::lay_out(plan, folds<Tile>(plan), ways.a.turned, ways.b.turned && !is_dealt,
                                 device.shared_per_block);

            if (const int64_t blocks = sources.a.blocks + sources.b.blocks; blocks)
                PYBLAS_TRY(launch<pack_panels>({blocks, kPackThreads, 0, launch_on.stream, device.starts_early},
                                               problem, sources));
            sources.a = {};
            const auto multiply = [&](auto dealt) {
                PYBLAS_TRY((allow_shared<producer_tile<Tile, dealt.value>>(device.shared_per_block)));
                return launch<producer_tile<Tile, dealt.value>>({plan.blocks(), Tile::kThreads + kProducers,
                                                                 Slots<Tile>::bytes(plan), launch_on.stream,
                                                                 device.starts_early, plan.cluster},
                                                                piece, plan, ways);
            };
            PYBLAS_TRY(is_dealt ? multiply(std::bool_constant<kMayDeal>()) : multiply(std::false_type()));
        }
    }
    if (plan.ranges == 1)
        return kSuccess;
    const auto sum = [&](auto width, auto shares) {
        const int64_t blocks = plan.cut() * sum_blocks(Tile::BM * Tile::BN / width.value * shares.value);
        return launch<sum_ranges<Tile::BM, Tile::BN, width.value, shares.value>>(
            {blocks, kSumThreads, 0, launch_on.stream, device.starts_early}, problem, plan);
    };
    const auto sum_by = [&](auto width) {
        return plan.ranges < kManyRanges ? sum(width, std::integral_constant<int, 1>{})
                                         : sum(width, std::integral_constant<int, 4>{});
    };
    return quads ? sum_by(std::integral_constant<int, 4>{}) : sum_by(std::integral_constant<int, 1>{});
}

struct Tile64x64 : WarpTile<64, 64, 64, 64, 64, 8, 16, 4, 1, 8> {};
struct Tile96x48 : WarpTile<96, 48, 64, 96, 48, 12, 12, 3, 1, 8> {};
struct Tile80x80 : WarpTile<80, 80, 32, 80, 40, 10, 10, 4, 1, 4> {};
struct Tile64x128 : WarpTile<64, 128, 32, 64, 64, 8, 16, 4, 1, 4> {};
struct Tile128x64 : WarpTile<128, 64, 32, 64, 64, 8, 16, 4, 1, 4> {};
struct Tile64x256 : WarpTile<64, 256, 32, 64, 64, 8, 16, 4, 1, 2> {};
struct Tile256x64 : WarpTile<256, 64, 32, 64, 64, 8, 16, 4, 1, 2> {};
struct Tile128x128 : WarpTile<128, 128, 32, 32, 128, 8, 16, 4, 1, 2> {};
struct Tile192x96 : WarpTile<192, 96, 16, 96, 48, 12, 12, 4, 1, 2> {};
struct Tile256x128 : WarpTile<256, 128, 16, 128, 32, 16, 8, 4, 1> {};

// A block has no more than the device gives, whatever the tile could use.
template <class Tile>
constexpr Footprint kFootprint{Tile::kThreads + kProducers, Tile::kResident, 227 << 10};

#define PYBLAS_ROW(name, Tile, packs_turned)                                                                           \
    {"producer_tile_" name,                                                                                            \
     "producer_tile",                                                                                                  \
     Engine::gpu,                                                                                                      \
     kFp32Modes,                                                                                                       \
     90,                                                                                                               \
     true,                                                                                                             \
     refuses<Tile, packs_turned>,                                                                                      \
     workspace<Tile>,                                                                                                  \
     nullptr,                                                                                                          \
     launch_tiles<Tile, packs_turned>,                                                                                 \
     false,                                                                                                            \
     kFootprint<Tile>,                                                                                                 \
     work<Tile, packs_turned>}
constexpr Kernel kRows[] = {
    PYBLAS_ROW("64x64x64", Tile64x64, false),           PYBLAS_ROW("80x80x32", Tile80x80, false),
    PYBLAS_ROW("80x80x32_packed", Tile80x80, true),     PYBLAS_ROW("96x48x64", Tile96x48, false),
    PYBLAS_ROW("96x48x64_packed", Tile96x48, true),     PYBLAS_ROW("64x128x32", Tile64x128, false),
    PYBLAS_ROW("128x64x32", Tile128x64, false),         PYBLAS_ROW("128x64x32_packed", Tile128x64, true),
    PYBLAS_ROW("128x128x32_packed", Tile128x128, true), PYBLAS_ROW("64x256x32_packed", Tile64x256, true),
    PYBLAS_ROW("256x64x32_packed", Tile256x64, true),   PYBLAS_ROW("192x96x16_packed", Tile192x96, true),
    PYBLAS_ROW("256x128x16", Tile256x128, false),       PYBLAS_ROW("256x128x16_packed", Tile256x128, true),
};
#undef PYBLAS_ROW

} // namespace

KernelRows producer_tile_rows() {
    return rows(kRows);
}

} // namespace pyblas
