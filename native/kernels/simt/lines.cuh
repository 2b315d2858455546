// Few outputs and deep k, whatever the alignment. Stored columns of an operand, or rows, are lines: they come to shared
// memory as they lie in global memory, four floats at once from the aligned address before their first element on, and
// keep the offset of 0 to 3 floats that they have there. What is read from them is single floats, so that an offset is
// part of an address and costs nothing; a thread with 11 x 11 outputs reads 22 of them for 121 multiply-adds.
//
//     global   | . a a a | a a a a | a a b b | b b b b | b . . .      lines a and b of 9 floats, one after the other
//     shared   | . a a a | a a a a | a a b b |                        a keeps offset 1, and b offset 2
//              | a a b b | b b b b | b . . . |
//
// Ranges of k, their sums and where they go are those of slices.cuh.
#pragma once

#include "slices.cuh"

namespace pyblas {

// A block's BX x BS outputs, TX x TS in each thread, every kLanesX-th x and every kLanesS-th s; kGroups threads have
// the same outputs and different k.
template <int BX_, int BS_, int BK_, int TX_, int TS_, int Threads_, int Ring_>
struct LineTile {
    static constexpr int BX = BX_, BS = BS_, BK = BK_, TX = TX_, TS = TS_;
    static constexpr int kThreads = Threads_, kResident = 1, kRing = Ring_; // most stages
    static constexpr int kLanesX = BX / TX, kLanesS = BS / TS, kLanes = kLanesX * kLanesS;
    static constexpr int kGroups = kThreads / kLanes;
    static constexpr int kTeams = 1, kCopiers = kThreads;
    static constexpr int kSumRow = BX, kSumFloats = kGroups * BX * BS;
    static constexpr bool kAddsRanges = false, kQuadsOfS = true, kQuadsOfBoth = true; // a kernel for each pair of ops

    // Floats that lines take, from the aligned address before the first of Length elements on.
    PYBLAS_HOST_DEVICE static constexpr int row(int length) { return (length + 6) / 4 * 4; }
    PYBLAS_HOST_DEVICE static constexpr int floats(bool contiguous, int side) {
        return contiguous ? BK * row(side) : side * row(BK);
    }
    static constexpr int kStageFloats =
        std::max(floats(true, BX), floats(false, BX)) + std::max(floats(true, BS), floats(false, BS));
    static_assert(BX % TX == 0 && BS % TS == 0 && BK % 4 == 0, "threads tile the outputs; stages keep the offsets");
    static constexpr int early_depth(int) { return 0; }
    static constexpr int shared_bytes(int ring, int64_t stages) {
        return 4 * std::max(kSumFloats, kStageFloats * static_cast<int>(std::min<int64_t>(stages, ring)));
    }
};

// The stages of one operand on their way to shared memory.
template <class Tile, int Side, bool Contiguous>
class LineStream {
public:
    static constexpr int kLines = Contiguous ? Tile::BK : Side, kLength = Contiguous ? Side : Tile::BK;
    static constexpr int kRow = Tile::row(kLength), kQuads = kRow / 4;

    // The matrix is lines of so many elements; the first stage begins at first.
    __device__ __forceinline__ LineStream(const View &view, int64_t x0, int64_t k0, int64_t extent, int64_t depth,
                                          int side_left, int thread)
        : ld_(Contiguous ? view.step_k : view.step_x), side_left_(side_left) {
        source_ = view.at(x0, k0);
        begin_ = view.data;
        end_ = view.at(extent - 1, depth - 1) + 1;
        line_ = thread / kQuads;
        quad_ = thread % kQuads * 4;
        from_ = source_ + line_ * ld_;
        offset_ = static_cast<int>(reinterpret_cast<uintptr_t>(source_) / 4 % 4);
    }

    // Asks for the next stage, k of it inside the operand.
    __device__ __forceinline__ void next(float *tile, int k) {
        constexpr int kStep = Tile::kCopiers / kQuads; // lines at once
        const int lines = Contiguous ? k : side_left_, length = Contiguous ? side_left_ : k;
        // Granules of the first and the last line may stick out of the matrix.
        const bool inside = source_ - 3 >= begin_ && source_ + (kLines - 1) * ld_ + kLength + 3 <= end_;
        if (line_ < kStep) {
            uintptr_t from = reinterpret_cast<uintptr_t>(from_);
            float *const target = tile + line_ * kRow + quad_;
            if (inside && lines >= (Contiguous ? kLines : 1)) {
#pragma unroll
                for (int j = 0; j < kLines; j += kStep, from += kStep * 4 * ld_)
                    if (j + kStep <= kLines || line_ + j < kLines)
                        ptx::copy_async<16>(
                            target + j * kRow, reinterpret_cast<const float *>(from & ~uintptr_t{15}) + quad_,
                            (Contiguous || line_ + j < lines) && quad_ < static_cast<int>(from / 4 % 4) + length);
            } else {
#pragma unroll 1
                for (int j = 0; line_ + j < kLines; j += kStep, from += kStep * 4 * ld_) {
                    const float *const granule = reinterpret_cast<const float *>(from & ~uintptr_t{15}) + quad_;
                    const bool valid = line_ + j < lines && quad_ < static_cast<int>(from / 4 % 4) + length;
                    if (!valid || (granule >= begin_ && granule + 4 <= end_)) {
                        ptx::copy_async<16>(target + j * kRow, granule, valid);
                    } else {
#pragma unroll 1
                        for (int i = 0; i < 4; ++i)
                            ptx::copy_async<4>(target + j * kRow + i, granule + i,
                                               granule + i >= begin_ && granule + i < end_);
                    }
                }
            }
        }
        const int64_t step = Tile::BK * (Contiguous ? ld_ : 1);
        source_ += step, from_ += step;
    }

    // Every Lanes-th value from the lane's on, of one k.
    template <int Lanes, int Count>
    struct Reader {
        int base[Contiguous ? 1 : 4];
        int ld, offset;

        __device__ __forceinline__ Reader(const LineStream &stream, int lane) {
            ld = static_cast<int>(stream.ld_ % 4), offset = stream.offset_;
            if constexpr (Contiguous) {
                base[0] = lane;
            } else {
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    base[i] = lane * kRow + (offset + (lane + i * Lanes) * ld) % 4;
            }
        }
        __device__ __forceinline__ void read(const float *tile, int k, float (&out)[Count]) const {
            if constexpr (Contiguous) {
                const float *const line = tile + k * kRow + (offset + k * ld) % 4 + base[0];
#pragma unroll
                for (int i = 0; i < Count; ++i)
                    out[i] = line[i * Lanes];
            } else {
                tile += k;
#pragma unroll
                for (int i = 0; i < Count; ++i)
                    out[i] = tile[base[i % 4] + i * Lanes * kRow];
            }
        }
    };

private:
    const float *source_, *from_; // of the next stage; this thread's line
    const float *begin_, *end_;   // of the matrix
    int64_t ld_;
    int side_left_, line_, quad_, offset_;
};

// acc += an outer product.
template <int TX, int TS>
__device__ __forceinline__ void multiply_fragments(const float (&frag_x)[TX], const float (&frag_s)[TS],
                                                   float (&acc)[TS][TX]) {
#pragma unroll
    for (int j = 0; j < TS; ++j)
#pragma unroll
        for (int i = 0; i < TX; ++i) {
            const int inner = j % 2 ? TX - 1 - i : i; // registers serve two operands a cycle
            acc[j][inner] = fmaf(frag_x[inner], frag_s[j], acc[j][inner]);
        }
}

// acc += a group's k of a stage, of which so many are inside.
template <class Tile, class ReaderX, class ReaderS>
__device__ __forceinline__ void multiply_stage(const ReaderX &reader_x, const ReaderS &reader_s, const float *smem_x,
                                               const float *smem_s, int group, int inside,
                                               float (&acc)[Tile::TS][Tile::TX]) {
    const int end = group < Tile::kGroups ? inside : 0;
#pragma unroll 1
    for (int k = group; k < end; k += Tile::kGroups) {
        float frag_x[Tile::TX], frag_s[Tile::TS];
        reader_x.read(smem_x, k, frag_x);
        reader_s.read(smem_s, k, frag_s);
        multiply_fragments(frag_x, frag_s, acc);
    }
}

// Leaves a group's sums as store_sums() wants them.
template <class Tile>
__device__ __forceinline__ void leave_group(int lane_x, int lane_s, int group, float *smem,
                                            const float (&acc)[Tile::TS][Tile::TX]) {
    if (group < Tile::kGroups)
#pragma unroll
        for (int j = 0; j < Tile::TS; ++j)
#pragma unroll
            for (int i = 0; i < Tile::TX; ++i)
                smem[(group * Tile::BS + lane_s + j * Tile::kLanesS) * Tile::BX + lane_x + i * Tile::kLanesX] =
                    acc[j][i];
}

template <class Tile, bool ContiguousX, bool ContiguousS>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident)
    lines(__grid_constant__ const Problem problem, __grid_constant__ const Slices cut) {
    using StreamX = LineStream<Tile, Tile::BX, ContiguousX>;
    using StreamS = LineStream<Tile, Tile::BS, ContiguousS>;
    constexpr int kFloatsX = Tile::floats(ContiguousX, Tile::BX);

    // place
    ptx::wait_for_predecessors();
    const SlicePlace<Tile> place(cut);
    const Epilogue scalars(problem);
    if (!place.exists || scalars.idle())
        return;
    const int thread = static_cast<int>(threadIdx.x);
    const int lane_x = thread % Tile::kLanesX, lane_s = thread / Tile::kLanesX % Tile::kLanesS;
    const int group = thread / Tile::kLanes;
    float *const smem = reinterpret_cast<float *>(dynamic_shared());

    float acc[Tile::TS][Tile::TX] = {};
    int64_t k_left = min(scalars.depth() - place.k_begin, cut.range); // not yet asked for
    if (k_left > 0) {
        const Sides sides(problem, cut.x_is_rows, place.batch, k_left);
        StreamX stream_x(sides.x, place.x0, place.k_begin, cut.extent_x, problem.k, place.x_left, thread);
        StreamS stream_s(sides.s, place.s0, place.k_begin, cut.extent_s, problem.k, place.s_left, thread);
        const typename StreamX::template Reader<Tile::kLanesX, Tile::TX> reader_x(stream_x, lane_x);
        const typename StreamS::template Reader<Tile::kLanesS, Tile::TS> reader_s(stream_s, lane_s);
        int64_t left = k_left; // not yet multiplied
        const auto load = [&](float *stage) {
            if (k_left > 0) {
                const int k = part(k_left, Tile::BK);
                stream_x.next(stage, k);
                stream_s.next(stage + kFloatsX, k);
                k_left -= Tile::BK;
            }
            ptx::commit_copies(); // an empty group keeps the count of groups equal to the count of stages
        };

        // load: all stages but one
#pragma unroll 1
        for (int stage = 0; stage < cut.ring - 1; ++stage)
            load(smem + stage * Tile::kStageFloats);

        int read = 0;
#pragma unroll 1
        for (; left > 0; left -= Tile::BK) {
            // The oldest stage has arrived, and everybody is done with the one that is overwritten next.
            wait_until(cut.ring - 2);
            __syncthreads();
            // Half of the warps copy before they multiply, the others after it: while one copies, another multiplies.
            float *const free_stage = smem + (read == 0 ? cut.ring - 1 : read - 1) * Tile::kStageFloats;
            const bool copies_first = thread < Tile::kThreads / 2;
            if (copies_first)
                load(free_stage);

            // multiply
            const float *const smem_x = smem + read * Tile::kStageFloats, *const smem_s = smem_x + kFloatsX;
            multiply_stage<Tile>(reader_x, reader_s, smem_x, smem_s, group, part(left, Tile::BK), acc);

            if (!copies_first)
                load(free_stage);
            if (k_left <= 0)
                ptx::launch_dependents();

            // advance
            read = read + 1 == cut.ring ? 0 : read + 1;
        }
    }
    ptx::launch_dependents();

    // add up the groups, and store
    end_walk<Tile, Tile::kGroups, Tile::kThreads>(problem, cut, place, smem,
                                                  [&] { leave_group<Tile>(lane_x, lane_s, group, smem, acc); });
}

template <class Tile>
struct LineKernels {
    template <bool ContiguousX, bool ContiguousS>
    static Status start(const Grid &grid, const Device &device, const Problem &problem, const Slices &cut) {
        return start_slices<lines<Tile, ContiguousX, ContiguousS>>(grid, device, problem, cut);
    }
};

// ---- warps of their own copy, on Hopper ----------------------------------------------------------------------------

// The eight warps of Lines only multiply, four others copy; they meet at barriers in shared memory, one slot after the
// other.
template <class Lines, int Ring_>
struct FedLineTile : Lines {
    static constexpr int kMultipliers = Lines::kThreads, kCopiers = 128, kThreads = kMultipliers + kCopiers;
    static constexpr int kRing = Ring_, kBarrierFloats = 4 * Ring_; // two to each slot
    static constexpr int shared_bytes(int, int64_t) {
        return 4 * (kBarrierFloats + std::max(Lines::kSumFloats, Lines::kStageFloats * Ring_));
    }
};

template <class Tile, bool ContiguousX, bool ContiguousS>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident)
    fed_lines(__grid_constant__ const Problem problem, __grid_constant__ const Slices cut) {
#if PYBLAS_HAS_WGMMA
    using StreamX = LineStream<Tile, Tile::BX, ContiguousX>;
    using StreamS = LineStream<Tile, Tile::BS, ContiguousS>;
    constexpr int kFloatsX = Tile::floats(ContiguousX, Tile::BX);

    // place
    const SlicePlace<Tile> place(cut);
    const int thread = static_cast<int>(threadIdx.x);
    const Slots<Tile> slots(Tile::kCopiers, Tile::kMultipliers);
    __syncthreads();
    ptx::wait_for_predecessors();
    const Epilogue scalars(problem);
    if (!place.exists || scalars.idle())
        return;
    const int64_t depth = min(scalars.depth() - place.k_begin, cut.range);
    const Sides sides(problem, cut.x_is_rows, place.batch, depth);
    const int member = thread < Tile::kMultipliers ? thread : thread - Tile::kMultipliers;
    StreamX stream_x(sides.x, place.x0, place.k_begin, cut.extent_x, problem.k, place.x_left, member);
    StreamS stream_s(sides.s, place.s0, place.k_begin, cut.extent_s, problem.k, place.s_left, member);
    if (thread >= Tile::kMultipliers) {
        // load
        slots.feed(depth, [&](float *stage, int k) {
            stream_x.next(stage, k);
            stream_s.next(stage + kFloatsX, k);
        });
    } else {
        // multiply
        ptx::take_registers<216>();
        const int lane_x = thread % Tile::kLanesX, lane_s = thread / Tile::kLanesX % Tile::kLanesS;
        const int group = thread / Tile::kLanes;
        const typename StreamX::template Reader<Tile::kLanesX, Tile::TX> reader_x(stream_x, lane_x);
        const typename StreamS::template Reader<Tile::kLanesS, Tile::TS> reader_s(stream_s, lane_s);
        float acc[Tile::TS][Tile::TX] = {};
        slots.read(depth, [&](const float *stage, int k) {
            multiply_stage<Tile>(reader_x, reader_s, stage, stage + kFloatsX, group, k, acc);
        });

        // add up the groups, and store
        end_walk<Tile, Tile::kGroups, Tile::kMultipliers>(
            problem, cut, place, slots.floats, [&] { leave_group<Tile>(lane_x, lane_s, group, slots.floats, acc); });
    }
#endif
}

template <class Tile>
struct FedLineKernels {
    template <bool ContiguousX, bool ContiguousS>
    static Status start(const Grid &grid, const Device &device, const Problem &problem, const Slices &cut) {
        return start_slices<fed_lines<Tile, ContiguousX, ContiguousS>>(grid, device, problem, cut);
    }
};

} // namespace pyblas
