// As slices.cuh, for tiles whose x needs no shared memory: each thread holds all the outputs of its x that the small
// operand has, or many of them, so it takes its part of the large operand from global memory straight to its registers,
// two steps ahead. Only the small operand is staged.
//
//     large operand                                      small operand
//     +----+----+----+----+--                            +------+
//   k | t0 | t1 | t2 | t3 |   four x of four k in each   | 16 s |   BK of k in shared memory, read by everybody
//     +----+----+----+----+--                            |      |
//     | t16| t17| ...         to registers               +------+
#pragma once

#include "slices.cuh"

namespace pyblas {

// BX x BS outputs, TX x TS in each of Threads threads, BK of k of the small operand at a time. A warp has LanesX
// threads along x, or LanesXAlongK where k is contiguous in the large operand, so that eight neighbours read whole
// lines of global memory; LanesS along s; and WarpsS warps have different s. All others have different k.
template <int BX_, int BS_, int BK_, int TX_, int TS_, int LanesX_, int LanesXAlongK_, int LanesS_, int WarpsS_,
          int Threads_>
struct OwnTile {
    static constexpr int BX = BX_, BS = BS_, BK = BK_, TX = TX_, TS = TS_;
    static constexpr int kMultipliers = Threads_, kWarpsS = WarpsS_, kLanesS = LanesS_;
    static constexpr int kTeams = 1, kGroups = kMultipliers * TX * TS / (BX * BS); // threads of the same outputs
    static constexpr int kStep = 4 * kGroups;                                      // of k
    static constexpr bool kQuadsOfS = TS % 4 == 0, kQuadsOfBoth = kQuadsOfS, kAddsRanges = true;
    static constexpr int kSumRow = BX + 4;

    // Where the threads are.
    template <bool ContiguousX>
    struct Layout {
        static constexpr int kAcross = ContiguousX ? LanesX_ : LanesXAlongK_; // lanes along x
        static constexpr int kOutputLanes = kAcross * kLanesS, kLanesK = 32 / kOutputLanes;
        static constexpr int kFlip = ContiguousX ? kOutputLanes : 1; // from a lane to the next one along k
        static constexpr int kWarpsX = BX / (TX * kAcross), kWarpsK = kGroups / kLanesK;
        static_assert(BX % (TX * kAcross) == 0 && 32 % kOutputLanes == 0 && BS == TS * kLanesS * kWarpsS &&
                          kMultipliers == 32 * kWarpsX * kWarpsS * kWarpsK && kGroups % kLanesK == 0,
                      "threads tile the tile");

        // The small operand, [s][k], or [k][s] with padding after four k: the quads that a warp reads at once lie in
        // different banks.
        template <bool ContiguousS>
        static constexpr __device__ int at(int k, int s) {
            return ContiguousS ? k * BS + k / 4 * (4 * kLanesS) + s : s * kRow + k;
        }
        static constexpr int kRow = BK + (kLanesS > 1 ? 4 * kLanesK % 32 : 4);
        static constexpr int kSmall = std::max(BS * kRow, BK *(BS + kLanesS)), kSums = kWarpsK * BS * kSumRow;
    };
    static constexpr int kSmallFloats = std::max(Layout<true>::kSmall, Layout<false>::kSmall);
    static constexpr int kSumFloats = std::max(Layout<true>::kSums, Layout<false>::kSums);
    static_assert(TX % 4 == 0 && BK % kStep == 0, "quads of x, whole steps in a stage");
};

// One thread's part.
template <class Tile, bool ContiguousX>
struct OwnPlace {
    using Layout = typename Tile::template Layout<ContiguousX>;
    int x, s;      // of the first quad of x, or of the first x; of the warp
    int k, warp_k; // first of k in a step; which of the warps that have the same outputs
    int lane_x, lane_s;

    __device__ __forceinline__ explicit OwnPlace(int thread) {
        constexpr int kAlong = ContiguousX ? 1 : Layout::kLanesK; // lanes from an x to the next
        const int warp = thread / 32, lane = thread % 32;
        lane_x = lane / kAlong % Layout::kAcross;
        lane_s = lane / (kAlong * Layout::kAcross) % Tile::kLanesS;
        warp_k = warp / (Layout::kWarpsX * Tile::kWarpsS);
        k = 4 * (lane / Layout::kFlip % Layout::kLanesK + Layout::kLanesK * warp_k);
        x = warp % Layout::kWarpsX * (Tile::TX * Layout::kAcross) + lane_x * (ContiguousX ? 4 : 1);
        s = warp / Layout::kWarpsX % Tile::kWarpsS * (Tile::TS * Tile::kLanesS);
    }

    // Of a thread's quad i in a step: its k, and its x, from the thread's first on.
    static __device__ __forceinline__ constexpr int row(int i) { return ContiguousX ? i / (Tile::TX / 4) : 0; }
    static __device__ __forceinline__ constexpr int across(int i) {
        return ContiguousX ? i % (Tile::TX / 4) * Layout::kAcross * 4 : i * Layout::kAcross;
    }
    static __device__ __forceinline__ int64_t offset(int i, int64_t ld) {
        return ContiguousX ? row(i) * ld + across(i) : across(i) * ld;
    }
    // How much of it is inside, with so much of x and of k from the thread's first ones on.
    static __device__ __forceinline__ int inside(int i, int x_left, int k_left) {
        return ContiguousX ? k_left > row(i) ? x_left - across(i) : 0 : x_left > across(i) ? k_left : 0;
    }
    // The thread's first value of the small operand in a stage.
    template <bool ContiguousS>
    __device__ __forceinline__ int first_small() const {
        return Layout::template at<ContiguousS>(k, s + lane_s * (ContiguousS ? 4 : 1));
    }
};

// acc += x by four of k (quads of the thread, as loaded) times the small operand. Every other run of x is walked
// backwards: a multiply-add names three registers, which give two operands a cycle, unless one was named just before.
// quad_of(k, s) reads four of s of one k, or four k of one s.
template <class Tile, bool ContiguousX, bool ContiguousS, class Quad>
__device__ __forceinline__ void multiply_step(const float (&values)[4 * Tile::TX], const Quad &quad_of,
                                              float (&acc)[Tile::TS][Tile::TX]) {
    constexpr int TX = Tile::TX, TS = Tile::TS;
    const auto add = [&](int j, int k, float small, bool back) {
#pragma unroll
        for (int step = 0; step < TX; ++step) {
            const int i = back ? TX - 1 - step : step;
            acc[j][i] = fmaf(values[ContiguousX ? k * TX + i : 4 * i + k], small, acc[j][i]);
        }
    };
    const auto read = [&](int k, int s, float (&four)[4]) {
        const float4 quad = quad_of(k, s);
        four[0] = quad.x, four[1] = quad.y, four[2] = quad.z, four[3] = quad.w;
    };
    if constexpr (ContiguousS) {
#pragma unroll
        for (int k = 0; k < 4; ++k)
#pragma unroll
            for (int j = 0; j < TS; j += 4) {
                float four[4];
                read(k, j * Tile::kLanesS, four);
#pragma unroll
                for (int s = 0; s < 4; ++s)
                    add(j + s, k, four[s], s % 2 == 1);
            }
    } else {
        constexpr int kBeside = TS > 4 ? 4 : TS == 4 ? 2 : 1; // s
#pragma unroll
        for (int j = 0; j < TS; j += kBeside) {
            float four[kBeside][4];
#pragma unroll
            for (int s = 0; s < kBeside; ++s)
                read(0, (j + s) * Tile::kLanesS, four[s]);
#pragma unroll
            for (int k = 0; k < 4; ++k)
#pragma unroll
                for (int s = 0; s < kBeside; ++s)
                    add(j + s, k, four[s][k], s % 2 == 1);
        }
    }
}

// Quads of the small operand, from a thread's first value in a stage on.
template <class Layout, bool ContiguousS>
__device__ __forceinline__ auto quads_of(const float *smem_s) {
    return [smem_s](int k, int s) {
        return *reinterpret_cast<const float4 *>(smem_s + Layout::template at<ContiguousS>(k, s));
    };
}

// Of so many s, how many a lane is left with when lanes have added their sums.
PYBLAS_HOST_DEVICE constexpr int left_to_lane(int have, int lanes) {
    return lanes == 1 ? have : left_to_lane(have % 2 ? have : have / 2, lanes / 2);
}

// Two lanes exchange halves of their s, or both have all of it if it is odd; one of them writes then.
template <int Have, int Lanes, int Flip, int TS, int TX>
__device__ __forceinline__ void add_lanes(float (&acc)[TS][TX], int lane, int &first_s, bool &writes) {
    if constexpr (Lanes > 1) {
        const bool upper = lane & Flip;
        if constexpr (Have % 2 == 0) {
#pragma unroll
            for (int j = 0; j < Have / 2; ++j)
#pragma unroll
                for (int i = 0; i < TX; ++i) {
                    const float other = upper ? acc[j][i] : acc[j + Have / 2][i];
                    acc[j][i] = (upper ? acc[j + Have / 2][i] : acc[j][i]) + __shfl_xor_sync(0xffffffff, other, Flip);
                }
            first_s += upper ? Have / 2 : 0;
        } else {
#pragma unroll
            for (int j = 0; j < Have; ++j)
#pragma unroll
                for (int i = 0; i < TX; ++i)
                    acc[j][i] += __shfl_xor_sync(0xffffffff, acc[j][i], Flip);
            writes &= !upper;
        }
        add_lanes<Have % 2 ? Have : Have / 2, Lanes / 2, 2 * Flip>(acc, lane, first_s, writes);
    }
}

// The same without a choice, of lanes whose halves are exchanged already: until so many s are left.
template <int Have, int Left, int Flip, int TS, int TX>
__device__ __forceinline__ void add_ordered_lanes(float (&acc)[TS][TX]) {
    if constexpr (Have > Left) {
#pragma unroll
        for (int j = 0; j < Have / 2; ++j)
#pragma unroll
            for (int i = 0; i < TX; ++i)
                acc[j][i] += __shfl_xor_sync(0xffffffff, acc[j + Have / 2][i], Flip);
        add_ordered_lanes<Have / 2, Left, Flip / 2>(acc);
    }
}

// Adds a warp's groups, and leaves the sums as store_sums() wants them. Where lanes have the parts of s in an order of
// their own, as many parts as Ordered, the part that is a lane's first begins at first_s.
template <class Tile, bool ContiguousX, bool ContiguousS, int Ordered = 1>
__device__ __forceinline__ void leave_sums(const OwnPlace<Tile, ContiguousX> &mine, int lane, float *smem,
                                           float (&acc)[Tile::TS][Tile::TX], int first_s = 0) {
    using Layout = typename Tile::template Layout<ContiguousX>;
    constexpr int TX = Tile::TX, kHave = Tile::TS / Ordered, kLanes = Layout::kLanesK / Ordered;
    constexpr int kLeft = left_to_lane(kHave, kLanes);
    bool writes = true;
    add_ordered_lanes<Tile::TS, kHave, Layout::kFlip * Layout::kLanesK / 2>(acc);
    add_lanes<kHave, kLanes, Layout::kFlip>(acc, lane, first_s, writes);
    if (!writes)
        return;
#pragma unroll
    for (int j = 0; j < kLeft; ++j) {
        const int number = first_s + j;
        const int s = mine.s + (ContiguousS ? (number / 4 * Tile::kLanesS + mine.lane_s) * 4 + number % 4
                                            : number * Tile::kLanesS + mine.lane_s);
        float *const row = smem + (mine.warp_k * Tile::BS + s) * Tile::kSumRow + mine.x;
        if constexpr (ContiguousX) {
#pragma unroll
            for (int i = 0; i < TX; i += 4)
                *reinterpret_cast<float4 *>(row + i * Layout::kAcross) =
                    float4{acc[j][i], acc[j][i + 1], acc[j][i + 2], acc[j][i + 3]};
        } else {
#pragma unroll
            for (int i = 0; i < TX; ++i)
                row[i * Layout::kAcross] = acc[j][i];
        }
    }
}

// ---- a thread loads what it multiplies -----------------------------------------------------------------------------

template <class Own, int Resident_, int Ring_>
struct DirectTile : Own {
    static constexpr int kThreads = Own::kMultipliers, kResident = Resident_, kRing = Ring_;
    static constexpr int kCopiers = kThreads;
    static constexpr int kAhead = 2; // steps
    static constexpr int kStageFloats = Own::kSmallFloats;
    static_assert(Own::BK % (Own::kStep * kAhead) == 0, "whole steps in a stage");

    // Of k, of which the large operand is asked for at once.
    static constexpr int early_depth(int) { return kAhead * Own::kStep; }
    // For a walk of that many stages.
    static constexpr int shared_bytes(int ring, int64_t stages) {
        return 4 * std::max(Own::kSumFloats, kStageFloats * static_cast<int>(std::min<int64_t>(stages, ring)));
    }
};

// A thread's x by four of k of one step after another. Zeros outside of the operand.
template <class Tile, bool ContiguousX>
class DirectStream {
public:
    using Place = OwnPlace<Tile, ContiguousX>;

    __device__ __forceinline__ DirectStream(const View &view, int64_t x0, int64_t k0, const Place &mine, int x_left,
                                            int64_t depth)
        : source_(view.at(x0 + mine.x, k0 + mine.k)), ld_(ContiguousX ? view.step_k : view.step_x), k_left_(depth),
          k_(mine.k), x_left_(x_left - mine.x),
          aligned_(reinterpret_cast<uintptr_t>(view.at(x0, k0)) % 16 == 0 && ld_ % 4 == 0),
          whole_(aligned_ && x_left == Tile::BX) {}

    // The next step, if there is one.
    __device__ __forceinline__ void next(float (&values)[4 * Tile::TX]) {
        if (k_left_ <= 0)
            return;
        if (whole_ && k_left_ >= Tile::kStep) {
#pragma unroll
            for (int i = 0; i < Tile::TX; ++i)
                put(values, i, ptx::load_once(source_ + Place::offset(i, ld_)));
        } else {
            const int k_left = part(k_left_, Tile::kStep) - k_;
#pragma unroll
            for (int i = 0; i < Tile::TX; ++i)
                put(values, i, load_edge(source_ + Place::offset(i, ld_), Place::inside(i, x_left_, k_left)));
        }
        source_ += ContiguousX ? Tile::kStep * ld_ : Tile::kStep;
        k_left_ -= Tile::kStep;
    }

private:
    static __device__ __forceinline__ void put(float (&values)[4 * Tile::TX], int i, const float4 &quad) {
        values[4 * i] = quad.x, values[4 * i + 1] = quad.y, values[4 * i + 2] = quad.z, values[4 * i + 3] = quad.w;
    }
    __device__ __forceinline__ float4 load_edge(const float *from, int inside) const {
        float4 quad{0.0f, 0.0f, 0.0f, 0.0f};
        if (aligned_ && inside >= 4) {
            quad = *reinterpret_cast<const float4 *>(from);
        } else {
            if (inside > 0)
                quad.x = from[0];
            if (inside > 1)
                quad.y = from[1];
            if (inside > 2)
                quad.z = from[2];
            if (inside > 3)
                quad.w = from[3];
        }
        return quad;
    }

    const float *source_; // of the next step
    int64_t ld_, k_left_; // of the block's k, not yet asked for
    int k_, x_left_;
    bool aligned_, whole_;
};

// The small operand, stage by stage.
template <class Tile, bool ContiguousX, bool ContiguousS, int Threads>
class SmallStream {
public:
    using Layout = typename Tile::template Layout<ContiguousX>;

    __device__ __forceinline__ SmallStream(const View &view, int64_t s0, int64_t k0, int s_left, int thread)
        : source_(view.at(s0, k0)), contiguous_k_(!ContiguousS && view.step_k == 1),
          ld_(contiguous_k_ ? view.step_x : view.step_k),
          wide_((ContiguousS || contiguous_k_) && reinterpret_cast<uintptr_t>(source_) % 16 == 0 && ld_ % 4 == 0),
          s_left_(s_left), thread_(thread) {}

    __device__ __forceinline__ void next(float *stage, int k_left) {
        copy_small<Tile::BS, Tile::BK, Threads, ContiguousS>(
            source_, ld_, contiguous_k_, wide_, s_left_, k_left, k_left == Tile::BK && s_left_ == Tile::BS, thread_,
            [&](int l, int s) { return stage + Layout::template at<ContiguousS>(l, s); });
        source_ += Tile::BK * (contiguous_k_ ? 1 : ld_);
    }

    // The same, where columns that are not there need no zeros.
    __device__ __forceinline__ void next_there(float *stage, int k_left) {
        if (!wide_ || k_left != Tile::BK || (ContiguousS && s_left_ % 4 != 0))
            return next(stage, k_left);
        constexpr int kQuads = Tile::BS * Tile::BK / 4;
#pragma unroll
        for (int first = 0; first < kQuads; first += Threads) {
            const int quad = first + thread_;
            const int s = ContiguousS ? quad % (Tile::BS / 4) * 4 : quad / (Tile::BK / 4);
            const int k = ContiguousS ? quad / (Tile::BS / 4) : quad % (Tile::BK / 4) * 4;
            if (s < s_left_ && (kQuads % Threads == 0 || quad < kQuads))
                ptx::copy_async<16>(stage + Layout::template at<ContiguousS>(k, s),
                                    source_ + (ContiguousS ? k * ld_ + s : s * ld_ + k), true);
        }
        source_ += Tile::BK * (contiguous_k_ ? 1 : ld_);
    }

private:
    const float *source_;
    bool contiguous_k_;
    int64_t ld_;
    bool wide_;
    int s_left_, thread_;
};

// ContiguousX and ContiguousS: in global memory, neighbours along that side lie together; otherwise those along k.
template <class Tile, bool ContiguousX, bool ContiguousS>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident)
    direct(__grid_constant__ const Problem problem, __grid_constant__ const Slices cut) {
    using Layout = typename Tile::template Layout<ContiguousX>;
    constexpr int kStageFloats = Tile::kStageFloats;

    // place
    const SlicePlace<Tile> place(cut);
    const int thread = static_cast<int>(threadIdx.x);
    const OwnPlace<Tile, ContiguousX> mine(thread);
    ask_early<Tile, ContiguousX>(problem, cut, place);
    ptx::wait_for_predecessors();
    const Epilogue scalars(problem);
    if (!place.exists || scalars.idle())
        return;
    float *const smem = reinterpret_cast<float *>(dynamic_shared());

    float acc[Tile::TS][Tile::TX] = {};
    const int64_t depth = min(scalars.depth() - place.k_begin, cut.range);
    if (depth > 0) {
        const Sides sides(problem, cut.x_is_rows, place.batch, depth);

        // load: the first steps of the large operand, all stages but one of the small one
        DirectStream<Tile, ContiguousX> stream(sides.x, place.x0, place.k_begin, mine, place.x_left, depth);
        float values[Tile::kAhead][4 * Tile::TX];
#pragma unroll
        for (int step = 0; step < Tile::kAhead; ++step)
            stream.next(values[step]);
        SmallStream<Tile, ContiguousX, ContiguousS, Tile::kThreads> small(sides.s, place.s0, place.k_begin,
                                                                          place.s_left, thread);
        int64_t k_left = depth; // not yet asked for
        const auto load = [&](float *stage) {
            if (k_left > 0)
                small.next(stage, part(k_left, Tile::BK));
            k_left -= Tile::BK;
            ptx::commit_copies(); // an empty group keeps the count of groups equal to the count of stages
        };
        int read = 0, write = 0;
#pragma unroll 1
        for (int64_t left = depth + (cut.ring - 1) * Tile::BK; left > 0; left -= Tile::BK) {
            const bool multiplies = left <= depth;
            if (multiplies) {
                // The oldest stage has arrived, and everybody is done with the one that is overwritten next.
                wait_until(cut.ring - 2);
                __syncthreads();
            }
            load(smem + write * kStageFloats);
            write = write + 1 == cut.ring ? 0 : write + 1;
            if (!multiplies)
                continue;
            if (left <= Tile::BK)
                ptx::launch_dependents(); // nearly all is asked for

            // multiply
            const float *smem_s = smem + read * kStageFloats + mine.template first_small<ContiguousS>();
            const int steps = (part(left, Tile::BK) + Tile::kStep - 1) / Tile::kStep;
#pragma unroll 1
            for (int first = 0; first < steps; first += Tile::kAhead)
#pragma unroll
                for (int step = 0; step < Tile::kAhead; ++step)
                    if (first + step < steps) {
                        multiply_step<Tile, ContiguousX, ContiguousS>(values[step],
                                                                      quads_of<Layout, ContiguousS>(smem_s), acc);
                        smem_s += Layout::template at<ContiguousS>(Tile::kStep, 0);
                        stream.next(values[step]);
                    }

            // advance
            read = read + 1 == cut.ring ? 0 : read + 1;
        }
    }

    // add up the groups, and store
    end_walk<Tile, Layout::kWarpsK, Tile::kThreads>(
        problem, cut, place, smem, [&] { leave_sums<Tile, ContiguousX, ContiguousS>(mine, thread % 32, smem, acc); });
}

template <class Tile>
struct DirectKernels {
    template <bool ContiguousX, bool ContiguousS>
    static Status start(const Grid &grid, const Device &device, const Problem &problem, const Slices &cut) {
        return start_slices<direct<Tile, ContiguousX, ContiguousS>>(grid, device, problem, cut);
    }
};

// ---- warps of their own load ---------------------------------------------------------------------------------------

constexpr int kFeeders = 128;

// Eight warps multiply, four bring both operands: the large one where its only reader, or the few that have the same x
// and k, find it; BK of both to a slot.
template <class Own, int Ring_>
struct FedTile : Own {
    static constexpr int kThreads = Own::kMultipliers + kFeeders, kResident = 1, kRing = Ring_;
    static constexpr int kCopiers = kFeeders;
    static constexpr int kReaders = Own::kMultipliers / (Own::kWarpsS * Own::kLanesS); // with different x or k
    static constexpr int kSteps = Own::BK / Own::kStep, kLargeFloats = kSteps * Own::TX * kReaders * 4;
    static constexpr int kStageFloats = kLargeFloats + Own::kSmallFloats;
    static constexpr int kBarrierFloats = 4 * Ring_; // two to each slot
    static_assert(Own::kMultipliers == 256, "two groups of four warps");

    static constexpr int early_depth(int) { return 2 * Own::kStep; }
    static constexpr int shared_bytes(int, int64_t) {
        return 4 * (kBarrierFloats + std::max(Own::kSumFloats, kStageFloats * kRing));
    }
};

// The large operand's stages: quad i of reader r in step t lies at ((t * TX + i) * kReaders + r) * 4. The copies are
// those that the readers' own loads would be, four of them in eight neighbouring threads' lines.
template <class Tile, bool ContiguousX>
class FedStream {
public:
    using Layout = typename Tile::template Layout<ContiguousX>;
    using Place = OwnPlace<Tile, ContiguousX>;

    // Which reader a multiplying thread is.
    static __device__ __forceinline__ int reader(int thread) {
        constexpr int kSide = Layout::kWarpsX * Tile::kWarpsS;
        const int warp = thread / 32, lane = thread % 32;
        constexpr int kLanes = 32 / Tile::kLanesS; // of a warp, with the same s
        const int inside =
            ContiguousX ? lane % Layout::kAcross + lane / Layout::kOutputLanes * Layout::kAcross : lane % kLanes;
        return inside + kLanes * (warp % Layout::kWarpsX + Layout::kWarpsX * (warp / kSide));
    }

    __device__ __forceinline__ FedStream(const View &view, int64_t x0, int64_t k0, int x_left, int thread)
        : ld_(ContiguousX ? view.step_k : view.step_x),
          aligned_(reinterpret_cast<uintptr_t>(view.at(x0, k0)) % 16 == 0 && ld_ % 4 == 0),
          whole_(aligned_ && x_left == Tile::BX), thread_(thread) {
        const Unit first(thread);
        source_ = view.at(x0 + first.x, k0 + first.k);
        x_left_ = x_left - first.x;
        k_ = first.k;
    }

    __device__ __forceinline__ void next(float *stage, int k_left) {
        constexpr int kAll = Tile::kSteps * Tile::TX * Tile::kReaders;
        static_assert(kAll % kFeeders == 0, "feeders tile the stage");
        float *const target = stage + 4 * thread_;
        if (whole_ && k_left == Tile::BK) {
#pragma unroll
            for (int number = 0; number < kAll; number += kFeeders)
                ptx::copy_async<16, true>(target + 4 * number,
                                          source_ + step_x(number) * (ContiguousX ? 1 : ld_) +
                                              step_k(number) * (ContiguousX ? ld_ : 1),
                                          true);
        } else {
            const int k_inside = k_left - k_;
#pragma unroll 1
            for (int number = 0; number < kAll; number += kFeeders) {
                const int x = step_x(number), k = step_k(number);
                const float *const from = source_ + (ContiguousX ? x + k * ld_ : x * ld_ + k);
                const int inside = ContiguousX ? k_inside > k ? x_left_ - x : 0 : x_left_ > x ? k_inside - k : 0;
                if (aligned_ && (inside <= 0 || inside >= 4)) {
                    ptx::copy_async<16, true>(target + 4 * number, from, inside > 0);
                } else {
#pragma unroll 1
                    for (int part = 0; part < 4; ++part)
                        ptx::copy_async<4>(target + 4 * number + part, from + part, inside > part);
                }
            }
        }
        source_ += ContiguousX ? Tile::BK * ld_ : Tile::BK;
    }

private:
    // A quad's first element in the stage. Those of one feeder, kFeeders apart, are a constant apart.
    struct Unit {
        int x, k;
        PYBLAS_HOST_DEVICE constexpr explicit Unit(int number) : x(0), k(0) {
            const int reader = number % Tile::kReaders, i = number / Tile::kReaders % Tile::TX;
            const int step = number / (Tile::kReaders * Tile::TX);
            constexpr int kLanes = 32 / Tile::kLanesS;
            const int inside = reader % kLanes, warp = reader / kLanes;
            const int lane_x = ContiguousX ? inside % Layout::kAcross : inside / Layout::kLanesK;
            const int lane_k = ContiguousX ? inside / Layout::kAcross : inside % Layout::kLanesK;
            x = warp % Layout::kWarpsX * (Tile::TX * Layout::kAcross) + lane_x * (ContiguousX ? 4 : 1) +
                (ContiguousX ? i % (Tile::TX / 4) * Layout::kAcross * 4 : i * Layout::kAcross);
            k = step * Tile::kStep + 4 * (lane_k + Layout::kLanesK * (warp / Layout::kWarpsX)) +
                (ContiguousX ? i / (Tile::TX / 4) : 0);
        }
    };
    static PYBLAS_HOST_DEVICE constexpr int step_x(int number) { return Unit(number).x - Unit(0).x; }
    static PYBLAS_HOST_DEVICE constexpr int step_k(int number) { return Unit(number).k - Unit(0).k; }
    static constexpr bool constant_apart() {
        for (int thread = 0; thread < kFeeders; ++thread)
            for (int number = 0; number < Tile::kSteps * Tile::TX * Tile::kReaders; number += kFeeders)
                if (Unit(thread + number).x != Unit(thread).x + step_x(number) ||
                    Unit(thread + number).k != Unit(thread).k + step_k(number))
                    return false;
        return true;
    }

    const float *source_; // of the feeder's first quad of the next stage
    int64_t ld_;
    bool aligned_, whole_;
    int thread_, x_left_, k_;

public:
    static constexpr bool kConstantApart = constant_apart();
};

template <class Tile, bool ContiguousX, bool ContiguousS>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident)
    fed(__grid_constant__ const Problem problem, __grid_constant__ const Slices cut) {
#if PYBLAS_HAS_WGMMA
    using Layout = typename Tile::template Layout<ContiguousX>;
    constexpr int kStageFloats = Tile::kStageFloats, kRing = Tile::kRing;
    static_assert(FedStream<Tile, ContiguousX>::kConstantApart, "a feeder's quads are a constant apart");

    // place
    const SlicePlace<Tile> place(cut);
    const int thread = static_cast<int>(threadIdx.x);
    ask_early<Tile, ContiguousX>(problem, cut, place);
    const Slots<Tile> slots(kFeeders, Tile::kMultipliers);
    float *const smem = slots.floats;
    // Columns that the small operand does not have are not copied.
    if (place.s_left < Tile::BS)
        for (int slot = 0; slot < kRing; ++slot)
            for (int i = thread; i < Tile::kSmallFloats; i += Tile::kThreads)
                smem[slot * kStageFloats + Tile::kLargeFloats + i] = 0.0f;
    __syncthreads();
    ptx::wait_for_predecessors();
    const Epilogue scalars(problem);
    if (!place.exists || scalars.idle())
        return;
    const int64_t depth = min(scalars.depth() - place.k_begin, cut.range);
    if (thread >= Tile::kMultipliers) {
        // load
        const int feeder = thread - Tile::kMultipliers;
        const Sides sides(problem, cut.x_is_rows, place.batch, depth);
        FedStream<Tile, ContiguousX> large(sides.x, place.x0, place.k_begin, place.x_left, feeder);
        SmallStream<Tile, ContiguousX, ContiguousS, kFeeders> small(sides.s, place.s0, place.k_begin, place.s_left,
                                                                    feeder);
        slots.feed(depth, [&](float *stage, int k) {
            large.next(stage, k);
            small.next_there(stage + Tile::kLargeFloats, k);
        });
    } else {
        // multiply
        ptx::take_registers<216>();
        const OwnPlace<Tile, ContiguousX> mine(thread);
        const int reader = FedStream<Tile, ContiguousX>::reader(thread);
        const int first_small = Tile::kLargeFloats + mine.template first_small<ContiguousS>();
        float acc[Tile::TS][Tile::TX] = {};
        slots.read(depth, [&](const float *stage, int) {
#pragma unroll 1
            for (int step = 0; step < Tile::kSteps; ++step) {
                float values[4 * Tile::TX];
#pragma unroll
                for (int i = 0; i < Tile::TX; ++i) {
                    const float4 quad = *reinterpret_cast<const float4 *>(
                        stage + ((step * Tile::TX + i) * Tile::kReaders + reader) * 4);
                    values[4 * i] = quad.x, values[4 * i + 1] = quad.y;
                    values[4 * i + 2] = quad.z, values[4 * i + 3] = quad.w;
                }
                const float *const smem_s =
                    stage + first_small + Layout::template at<ContiguousS>(step * Tile::kStep, 0);
                multiply_step<Tile, ContiguousX, ContiguousS>(values, quads_of<Layout, ContiguousS>(smem_s), acc);
            }
        });

        // add up the groups, and store
        end_walk<Tile, Layout::kWarpsK, Tile::kMultipliers>(problem, cut, place, smem, [&] {
            leave_sums<Tile, ContiguousX, ContiguousS>(mine, thread % 32, smem, acc);
        });
    }
#endif
}

template <class Tile>
struct FedKernels {
    template <bool ContiguousX, bool ContiguousS>
    static Status start(const Grid &grid, const Device &device, const Problem &problem, const Slices &cut) {
        return start_slices<fed<Tile, ContiguousX, ContiguousS>>(grid, device, problem, cut);
    }
};

} // namespace pyblas
