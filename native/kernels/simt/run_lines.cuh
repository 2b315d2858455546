// As lines.cuh, for Hopper and sides of at most 33, where the copy engine brings a whole stage of an operand at once.
// What is contiguous along x or s, with lines as long as their distance or nearly so, is one run of memory; what lies
// along k, in lines that are aligned, is one box. No thread copies then, and none waits for the copies of others.
//
//     one run            | . a a a | a a a a | a a b b | b b b b | b ...      line after line, and gaps with them
//     one box            | a a a a | a a a a |                                BK of k of each line
//                        | b b b b | b b b b |
#pragma once

#include "../device/tensor_maps.cuh"
#include "lines.cuh"

namespace pyblas {

// A group has BK / kGroups neighbouring k of each stage. Lanes of one warp then read single floats from different
// banks, whether a line lies along k or across.
template <int Side_, int BK_, int T_, int Threads_, int Ring_>
struct RunTile {
    static constexpr int BX = Side_, BS = Side_, BK = BK_, TX = T_, TS = T_;
    static constexpr int kThreads = Threads_, kResident = 1, kRing = Ring_;
    static constexpr int kLanesX = BX / TX, kLanesS = BS / TS, kLanes = kLanesX * kLanesS;
    static constexpr int kGroups = kThreads / kLanes, kEach = BK / kGroups;
    static constexpr int kTeams = 1, kCopiers = kThreads;
    static constexpr int kSumRow = BX, kSumFloats = kGroups * BX * BS;
    static constexpr bool kAddsRanges = false, kQuadsOfS = true, kQuadsOfBoth = true; // a kernel for each pair of ops
    static constexpr int kLongestLine = Side_ + 3;                                    // and its gap
    static constexpr int kSideFloats = (BK * kLongestLine + 31) / 32 * 32;            // a box begins at 128 bytes
    static constexpr int kStageFloats = 2 * kSideFloats, kBarrierFloats = (4 * Ring_ + 31) / 32 * 32;
    static_assert(BX % TX == 0 && BK % kGroups == 0 && BK % 4 == 0 && BK <= 256, "threads tile the stage; a box");

    static constexpr int early_depth(int) { return 0; }
    static constexpr int shared_bytes(int, int64_t) {
        return 4 * (kBarrierFloats + std::max(kSumFloats, kStageFloats * kRing));
    }
};

struct Runs {
    MatrixMap x, s; // of what lies along k
    bool asked;     // otherwise all threads copy, one float at a time
};

// Whether lines are such; addresses are not looked at.
template <class Tile>
bool has_runs(const Problem &problem) {
    const auto fits = [](const Operand &operand, bool along_k) {
        return !operand.array && (along_k ? operand.ld % 4 == 0 : operand.ld <= Tile::kLongestLine);
    };
    return std::max(problem.m, problem.n) <= Tile::BX && problem.batch == 1 && problem.k < INT32_MAX &&
           fits(problem.a, problem.transa == Op::T) && fits(problem.b, problem.transb == Op::N);
}

#if PYBLAS_HAS_WGMMA

// One operand's stages on their way, and what a lane reads of them.
template <class Tile, bool Contiguous>
class RunStream {
public:
    __device__ __forceinline__ RunStream(const View &view, int64_t k_begin, int depth, int extent)
        : source_(view.data + k_begin * view.step_k), ld_(static_cast<int>(Contiguous ? view.step_k : 0)),
          line_(view.step_x), depth_(depth), extent_(extent) {}

    // By one thread, which says how many bytes come.
    __device__ __forceinline__ void ask(const MatrixMap &map, int k, int stage, float *tile, uint64_t *come) const {
        if constexpr (Contiguous) {
            const int floats = length(stage), quads = floats / 4 * 4;
            const float *const from = source_ + int64_t{stage} * Tile::BK * ld_;
            if (quads > 0) {
                ptx::expect(come, 4 * quads);
                ptx::copy_in_bulk<true>(tile, from, 4 * quads, come);
            }
            for (int i = quads; i < floats; ++i)
                tile[i] = from[i];
        } else {
            ptx::expect(come, 4 * Tile::BX * Tile::BK);
            ptx::copy_box_once(tile, &map.map, k, 0, 0, 0, come);
        }
    }

    // By all threads, to the same places.
    __device__ __forceinline__ void copy(int stage, float *tile) const {
        const int thread = static_cast<int>(threadIdx.x);
        if constexpr (Contiguous) {
            const float *const from = source_ + int64_t{stage} * Tile::BK * ld_;
#pragma unroll 1
            for (int i = thread; i < length(stage); i += Tile::kThreads)
                ptx::copy_async<4>(tile + i, from + i, true);
        } else {
            const int k = part(depth_ - stage * Tile::BK, Tile::BK);
#pragma unroll 1
            for (int i = thread; i < extent_ * Tile::BK; i += Tile::kThreads)
                if (i % Tile::BK < k)
                    ptx::copy_async<4>(tile + i, source_ + i / Tile::BK * line_ + stage * Tile::BK + i % Tile::BK,
                                       true);
        }
    }

    // Every third value or so from the lane's on, of one k.
    template <int Lanes, int Count>
    __device__ __forceinline__ void read(const float *tile, int lane, int k, float (&out)[Count]) const {
        const float *const from = Contiguous ? tile + k * ld_ + lane : tile + lane * Tile::BK + k;
#pragma unroll
        for (int i = 0; i < Count; ++i)
            out[i] = from[i * Lanes * (Contiguous ? 1 : Tile::BK)];
    }

private:
    // Of a run.
    __device__ __forceinline__ int length(int stage) const {
        return (part(depth_ - stage * Tile::BK, Tile::BK) - 1) * ld_ + extent_;
    }

    const float *source_; // of the first stage
    int ld_;
    int64_t line_;
    int depth_, extent_; // of the block; of the matrix
};

// Stages of both operands.
template <class Tile, bool ContiguousX, bool ContiguousS>
struct RunStreams {
    const Runs &runs;
    const int k_begin; // of the block
    const RunStream<Tile, ContiguousX> x;
    const RunStream<Tile, ContiguousS> s;

    __device__ __forceinline__ void ask(int stage, float *slot, uint64_t *come) const {
        const int k = k_begin + stage * Tile::BK;
        x.ask(runs.x, k, stage, slot, come);
        s.ask(runs.s, k, stage, slot + Tile::kSideFloats, come);
    }
    __device__ __forceinline__ void copy(int stage, float *slot) const {
        x.copy(stage, slot);
        s.copy(stage, slot + Tile::kSideFloats);
    }
};

#endif

template <class Tile, bool ContiguousX, bool ContiguousS>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident)
    run_lines(__grid_constant__ const Problem problem, __grid_constant__ const Slices cut,
              __grid_constant__ const Runs runs) {
#if PYBLAS_HAS_WGMMA
    constexpr int kAhead = Tile::kRing - 2; // stages

    // place
    const SlicePlace<Tile> place(cut);
    const int thread = static_cast<int>(threadIdx.x);
    const Slots<Tile> slots(runs.asked ? 1 : Tile::kThreads, Tile::kThreads);
    // Lanes read as if there were all lines of a full length.
    if (place.x_left < Tile::BX || place.s_left < Tile::BS) {
        for (int i = thread; i < Tile::kStageFloats * Tile::kRing; i += Tile::kThreads)
            slots.floats[i] = 0.0f;
        ptx::publish_stores();
    }
    __syncthreads();
    ptx::wait_for_predecessors();
    const Epilogue scalars(problem);
    if (!place.exists || scalars.idle())
        return;
    const int depth = static_cast<int>(max(int64_t{0}, min(scalars.depth() - place.k_begin, cut.range)));
    const int stages = (depth + Tile::BK - 1) / Tile::BK;
    const Sides sides(problem, cut.x_is_rows, place.batch, depth);
    const RunStreams<Tile, ContiguousX, ContiguousS> streams{runs,
                                                             static_cast<int>(place.k_begin),
                                                             {sides.x, place.k_begin, depth, place.x_left},
                                                             {sides.s, place.k_begin, depth, place.s_left}};

    // load: all stages but two, then always one before the oldest is multiplied, into the slot that was left a stage
    // ago: who asks for it hardly waits for the slowest
    for (int stage = 0; stage < min(kAhead, stages); ++stage)
        slots.fill(streams, runs.asked, stage, 0);

    const int lane_x = thread % Tile::kLanesX, lane_s = thread / Tile::kLanesX % Tile::kLanesS;
    const int group = thread / Tile::kLanes, first_k = group * Tile::kEach;
    float acc[Tile::TS][Tile::TX] = {};

    // multiply
    slots.template fill_and_read<kAhead>(streams, runs.asked, stages, [&](const float *tile_x, int stage) {
        const float *const tile_s = tile_x + Tile::kSideFloats;
        const int inside = min(depth - stage * Tile::BK - first_k, Tile::kEach);
#pragma unroll 1
        for (int k = first_k; k < (group < Tile::kGroups ? first_k + inside : 0); ++k) {
            float frag_x[Tile::TX], frag_s[Tile::TS];
            streams.x.template read<Tile::kLanesX>(tile_x, lane_x, k, frag_x);
            streams.s.template read<Tile::kLanesS>(tile_s, lane_s, k, frag_s);
            multiply_fragments(frag_x, frag_s, acc);
        }
    });
    ptx::launch_dependents();

    // add up the groups, and store
    end_walk<Tile, Tile::kGroups, Tile::kThreads>(problem, cut, place, slots.floats,
                                                  [&] { leave_group<Tile>(lane_x, lane_s, group, slots.floats, acc); });
#endif
}

template <class Tile>
struct RunKernels {
    template <bool ContiguousX, bool ContiguousS>
    static Status start(const Grid &grid, const Device &device, const Problem &problem, const Slices &cut) {
        const Operand &x = cut.x_is_rows ? problem.a : problem.b, &s = cut.x_is_rows ? problem.b : problem.a;
        const auto aligned = [](const Operand &operand) { return reinterpret_cast<uintptr_t>(operand.data) % 16 == 0; };
        Runs runs = {};
        runs.asked = problem.k > 0 && aligned(x) && aligned(s) && (ContiguousX || can_map(x, 1)) &&
                     (ContiguousS || can_map(s, 1));
        const auto map = [&](const Operand &operand, int64_t extent, MatrixMap *mapped) {
            return map_matrices(operand, problem.k, extent, 1, Tile::BK, Tile::BX, false, CU_TENSOR_MAP_SWIZZLE_NONE,
                                mapped);
        };
        if (runs.asked && !ContiguousX)
            PYBLAS_TRY(map(x, cut.extent_x, &runs.x));
        if (runs.asked && !ContiguousS)
            PYBLAS_TRY(map(s, cut.extent_s, &runs.s));
        return start_slices<run_lines<Tile, ContiguousX, ContiguousS>>(grid, device, problem, cut, runs);
    }
};

} // namespace pyblas
