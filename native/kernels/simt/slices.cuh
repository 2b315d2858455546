// Products with few outputs and much to read: a block walks a range of k through a ring of tiles in shared memory, its
// threads share each tile's k among themselves, and their sums are added in a fixed order: in the block, and where
// several ranges make one output, by a second kernel.
//
// x is the side that is read in quads, s the other: A and B, or B and A.
#pragma once

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "cost.hpp"
#include "kernel.hpp"

#include "../device/epilogue.cuh"
#include "../device/launch.cuh"
#include "../device/load.cuh"
#include "../device/partials.cuh"
#include "../device/quads.cuh"
#include "../device/ring.cuh"

namespace pyblas {

constexpr int kLongestRing = 8; // stages

// A block's BX x BS outputs, BK of k at a time, TX x TS outputs in each thread; kGroups threads have the same outputs
// and different k. The block walks as one team, or each warp by itself: it copies what it multiplies, its part of each
// stage's k, and waits for nobody.
template <int BX_, int BS_, int BK_, int TX_, int TS_, int Threads_, int Resident_, int Ring_ = kLongestRing,
          bool WarpsWalk = false>
struct SliceTile {
    static constexpr int BX = BX_, BS = BS_, BK = BK_, TX = TX_, TS = TS_;
    static constexpr int kThreads = Threads_, kResident = Resident_, kRing = Ring_; // most stages
    static constexpr int kCopiers = kThreads;
    static constexpr int kLanesX = BX / TX, kLanesS = BS / TS, kLanes = kLanesX * kLanesS;
    static constexpr int kGroups = kThreads / kLanes;
    static constexpr int kWarpGroups = 32 % kLanes == 0 ? 32 / kLanes : 1; // whole groups in a warp add by shuffles
    static constexpr bool kQuadsOfS = TS % 4 == 0;
    static constexpr bool kQuadsOfBoth = kQuadsOfS && TX * TS < 64; // the registers of more sums leave no room for it
    static constexpr int kTeams = WarpsWalk ? kThreads / 32 : 1, kTeamThreads = kThreads / kTeams;
    static constexpr int kTeamK = BK / kTeams, kTeamGroups = kGroups / kTeams;
    static constexpr int kRowS = kTeamK + 4; // an odd number of quads: neighbours lie in other banks
    static constexpr int kSumRow = BX + 4;
    static constexpr bool kAddsRanges = false; // a second kernel does
    static constexpr int kSums = kGroups / kWarpGroups;
    static constexpr int kSumFloats = kSums * BS * kSumRow;
    static constexpr int kTeamFloats =
        std::max(QuadTile<true>{BX, kTeamK}.floats(), QuadTile<false>{BX, kTeamK}.floats()) + BS * kRowS;
    static constexpr int kStageFloats = kTeams * kTeamFloats;
    static_assert(TX % 4 == 0 && BX % TX == 0 && BS % TS == 0 && kTeamK % 8 == 0, "quads of x, odd rows of quads of k");
    static_assert(kGroups >= 1 && kTeamGroups >= 1, "all outputs have a thread");
    static_assert(!WarpsWalk || 32 % kLanes == 0, "a warp has all outputs");

    // Of k, of which the large operand is asked for at once.
    static constexpr int early_depth(int ring) { return (ring - 1) * BK; }
    // For a walk of that many stages.
    static constexpr int shared_bytes(int ring, int64_t stages) {
        return 4 * std::max(kSumFloats, kStageFloats * static_cast<int>(std::min<int64_t>(stages, ring)));
    }
};

// The longest ring, or as much of it as the largest devices have room for.
template <class Tile>
constexpr Footprint kSliceFootprint{Tile::kThreads, Tile::kResident,
                                    std::min(Tile::shared_bytes(Tile::kRing, Tile::kRing), 227 * 1024)};

// How a product is cut.
struct Slices {
    bool x_is_rows;
    int64_t extent_x, extent_s;
    int64_t tiles_x, tiles_s;
    int64_t range; // of k, whole stages; a sum's accuracy keeps it far below 2^31
    int ranges;
    int ring;        // stages in shared memory, 2 to kLongestRing
    int early_depth; // of k; that much of the large operand is asked for before the kernel ahead has ended
    int64_t blocks;
    Partials partials;  // used if there are several ranges
    uint32_t *arrivals; // of each tile's ranges: the block that ends last adds their sums; null: a second kernel does
};

// A stage of one operand, asked for by all threads of a team: Columns stored columns of Length floats, in units of
// Width. place(i, j) is where element i of column j goes. All of it lies in the operand if whole is true.
template <int Width, int Length, int Columns, int Threads, bool Once = false, class Place>
__device__ __forceinline__ void copy_columns(const float *source, int64_t ld, int length_left, int columns_left,
                                             bool whole, int thread, Place place) {
    constexpr int kUnits = Length / Width, kAll = kUnits * Columns;
    if constexpr (Width == 4 && Threads % kUnits == 0) {
        constexpr int kStep = Threads / kUnits; // of columns
        const int i = thread % kUnits * Width, first = thread / kUnits;
        const float *from = source + first * ld + i;
        if (whole) {
#pragma unroll
            for (int j = 0; j < Columns; j += kStep, from += kStep * ld)
                if (Columns % kStep == 0 || first + j < Columns)
                    ptx::copy_async<16, Once>(place(i, first + j), from, true);
            return;
        }
        const int left = length_left - i;
#pragma unroll 1
        for (int j = first; j < Columns; j += kStep, from += kStep * ld) {
            float *const target = place(i, j);
            if (j >= columns_left || left <= 0 || left >= 4) {
                ptx::copy_async<16, Once>(target, from, j < columns_left && left > 0);
            } else {
#pragma unroll 1
                for (int part = 0; part < 4; ++part)
                    ptx::copy_async<4>(target + part, from + part, left > part);
            }
        }
    } else if constexpr ((kUnits & (kUnits - 1)) == 0) {
#pragma unroll 1
        for (int number = thread; number < kAll; number += Threads) {
            const int i = number % kUnits * Width, j = number / kUnits;
            const float *const from = source + j * ld + i;
            float *const target = place(i, j);
            const int left = j < columns_left ? length_left - i : 0;
            if (left >= Width || left <= 0) {
                ptx::copy_async<4 * Width, Once>(target, from, left > 0);
            } else {
#pragma unroll 1
                for (int part = 0; part < Width; ++part)
                    ptx::copy_async<4>(target + part, from + part, left > part);
            }
        }
    } else {
        // The same by steps along the row of all units, where a division would be one.
        constexpr int kStep = Threads / kUnits, kRest = Threads % kUnits;
        int i = thread % kUnits * Width, j = thread / kUnits;
        const float *from = source + j * ld + i;
#pragma unroll 4
        for (int number = 0; number < (kAll + Threads - 1) / Threads; ++number) {
            if (kAll % Threads == 0 || j < Columns) {
                float *const target = place(i, j);
                const int left = j < columns_left ? length_left - i : 0;
                if (left >= Width || left <= 0) {
                    ptx::copy_async<4 * Width, Once>(target, from, left > 0);
                } else {
#pragma unroll 1
                    for (int part = 0; part < Width; ++part)
                        ptx::copy_async<4>(target + part, from + part, left > part);
                }
            }
            i += kRest * Width, j += kStep, from += kRest * Width + kStep * ld;
            if (i >= kUnits * Width)
                i -= kUnits * Width, ++j, from += ld - kUnits * Width;
        }
    }
}

// A stage of the small operand: Columns of its x, K of k. place(l, s) is where k = l of column s goes.
template <int Columns, int K, int Threads, bool ContiguousS, class Place>
__device__ __forceinline__ void copy_small(const float *source, int64_t ld, bool contiguous_k, bool wide, int s_left,
                                           int k, bool whole, int thread, Place place) {
    const auto turned = [&](int s, int l) { return place(l, s); };
    if constexpr (ContiguousS) {
        if (wide)
            copy_columns<4, Columns, K, Threads>(source, ld, s_left, k, whole, thread, turned);
        else
            copy_columns<1, Columns, K, Threads>(source, ld, s_left, k, whole, thread, turned);
    } else if (wide)
        copy_columns<4, K, Columns, Threads>(source, ld, k, s_left, whole, thread, place);
    else if (contiguous_k)
        copy_columns<1, K, Columns, Threads>(source, ld, k, s_left, whole, thread, place);
    else
        copy_columns<1, Columns, K, Threads>(source, ld, s_left, k, whole, thread, turned);
}

// Until all but this many of the thread's groups of copies have arrived.
__device__ __forceinline__ void wait_until(int pending) {
    switch (pending) {
    case 0:
        return ptx::wait_copies<0>();
    case 1:
        return ptx::wait_copies<1>();
    case 2:
        return ptx::wait_copies<2>();
    case 3:
        return ptx::wait_copies<3>();
    case 4:
        return ptx::wait_copies<4>();
    case 5:
        return ptx::wait_copies<5>();
    default:
        return ptx::wait_copies<kLongestRing - 2>();
    }
}

// Which part of the product a block has.
template <class Tile>
struct SlicePlace {
    bool exists;
    int range;
    int64_t batch, tile, x0, s0, k_begin;
    int x_left, s_left;

    __device__ __forceinline__ explicit SlicePlace(const Slices &cut) {
        const int64_t block = block_number();
        exists = block < cut.blocks;
        const int64_t rest = block / cut.tiles_x;
        x0 = (block - rest * cut.tiles_x) * Tile::BX;
        const int64_t above = rest / cut.tiles_s;
        s0 = (rest - above * cut.tiles_s) * Tile::BS;
        batch = above / cut.ranges;
        range = static_cast<int>(above - batch * cut.ranges);
        k_begin = range * cut.range;
        tile = block - (above - batch) * cut.tiles_s * cut.tiles_x;
        x_left = part(cut.extent_x - x0, Tile::BX), s_left = part(cut.extent_s - s0, Tile::BS);
    }
};

// Asks for the first of the large operand to be in the L2.
template <class Tile, bool ContiguousX>
__device__ __forceinline__ void ask_early(const Problem &problem, const Slices &cut, const SlicePlace<Tile> &place) {
    if (cut.early_depth > 0 && place.exists) {
        const View view = cut.x_is_rows ? view_a(problem, place.batch) : view_b(problem, place.batch);
        const int deep = part(problem.k - place.k_begin, cut.early_depth);
        prefetch_columns(view.at(place.x0, place.k_begin), ContiguousX ? view.step_k : view.step_x,
                         ContiguousX ? place.x_left : deep, ContiguousX ? deep : place.x_left,
                         static_cast<int>(threadIdx.x), Tile::kThreads);
    }
}

// A tile's outputs as rows and columns of C, walked down the columns: four rows at once where address, ld and edge
// allow.
template <class Tile, int Threads>
struct SliceOutputs {
    int rows, rows_left, columns_left;
    int64_t first_row, first_column;

    __device__ __forceinline__ SliceOutputs(const Slices &cut, const SlicePlace<Tile> &place)
        : rows(cut.x_is_rows ? Tile::BX : Tile::BS), rows_left(cut.x_is_rows ? place.x_left : place.s_left),
          columns_left(cut.x_is_rows ? place.s_left : place.x_left), first_row(cut.x_is_rows ? place.x0 : place.s0),
          first_column(cut.x_is_rows ? place.s0 : place.x0) {}

    __device__ __forceinline__ bool wide(const float *corner, int64_t ld) const {
        return rows % 4 == 0 && rows_left % 4 == 0 && ld % 4 == 0 && reinterpret_cast<uintptr_t>(corner) % 16 == 0;
    }
    template <class Visit>
    __device__ __forceinline__ void visit(int width, Visit visit) const {
        constexpr int kAll = Tile::BX * Tile::BS;
        const int side = rows / width;
        for (int number = static_cast<int>(threadIdx.x); number < kAll / width; number += Threads) {
            int column;
            if constexpr ((kAll & (kAll - 1)) == 0)
                column = number >> (31 - __clz(side)); // a power of two, and a division would be most of the work
            else
                column = number / side;
            const int row = (number - column * side) * width;
            if (row < rows_left && column < columns_left)
                visit(row, column);
        }
    }
};

// The block's first so many threads meet. Others that only copy have a way of their own, and may have left.
template <class Tile, int Threads>
__device__ __forceinline__ void meet() {
    if constexpr (Threads == Tile::kThreads)
        __syncthreads();
    else
        ptx::meet<Threads>(1);
}

// Adds up the Sums that a block has of each output, [sum][s][x] in rows of kSumRow, and stores them: in C, or where the
// range's partial sums are. The last one to store adds those. So many threads of the block are here.
template <class Tile, int Sums, int Threads>
__device__ __forceinline__ void store_sums(const Problem &problem, const Slices &cut, const SlicePlace<Tile> &place,
                                           float *smem) {
    const SliceOutputs<Tile, Threads> outputs(cut, place);
    const bool split = cut.ranges > 1;
    float *const partials = cut.partials.data + place.batch * cut.partials.matrix() + outputs.first_row +
                            outputs.first_column * cut.partials.ld;
    float *const c = problem.c.matrix(place.batch) + outputs.first_row + outputs.first_column * problem.c.ld;
    float *const corner = split ? partials + place.range * cut.partials.range() : c;
    const int64_t ld = split ? cut.partials.ld : problem.c.ld;
    const auto total = [&](int x, int s) {
        float sum = smem[s * Tile::kSumRow + x];
#pragma unroll 8
        for (int other = 1; other < Sums; ++other)
            sum += smem[(other * Tile::BS + s) * Tile::kSumRow + x];
        return sum;
    };
    const auto total4 = [&](int x, int s) {
        float4 sums = *reinterpret_cast<const float4 *>(smem + s * Tile::kSumRow + x);
#pragma unroll 8
        for (int other = 1; other < Sums; ++other) {
            const float4 more = *reinterpret_cast<const float4 *>(smem + (other * Tile::BS + s) * Tile::kSumRow + x);
            sums.x += more.x, sums.y += more.y, sums.z += more.z, sums.w += more.w;
        }
        return sums;
    };
    const Epilogue epilogue(problem); // read again: fewer registers while k is walked
    const bool wide = outputs.wide(corner, ld);
    outputs.visit(wide ? 4 : 1, [&](int row, int column) {
        float *const target = corner + row + column * ld;
        const auto sum = [&](int i) { return cut.x_is_rows ? total(row + i, column) : total(column, row + i); };
        if (wide) {
            const float4 sums =
                Tile::kSumRow % 4 == 0 && cut.x_is_rows ? total4(row, column) : float4{sum(0), sum(1), sum(2), sum(3)};
            if (split)
                *reinterpret_cast<float4 *>(target) = sums;
            else
                epilogue.store4(target, sums);
        } else if (split) {
            *target = sum(0);
        } else {
            epilogue.store(target, sum(0));
        }
    });
    if constexpr (Tile::kAddsRanges) {
        if (!split || !cut.arrivals)
            return;
        meet<Tile, Threads>();
        if (threadIdx.x == 0)
            smem[0] = ptx::arrive(cut.arrivals + place.tile, static_cast<uint32_t>(cut.ranges - 1)) ? 1.0f : 0.0f;
        meet<Tile, Threads>();
        if (smem[0] == 0.0f)
            return;
        const bool wide_c = outputs.wide(c, problem.c.ld);
        outputs.visit(wide_c ? 4 : 1, [&](int row, int column) {
            const float *piece = partials + row + column * cut.partials.ld;
            float *const target = c + row + column * problem.c.ld;
            if (wide_c) {
                float4 sums{0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 8
                for (int range = 0; range < cut.ranges; ++range, piece += cut.partials.range()) {
                    const float4 four = *reinterpret_cast<const float4 *>(piece);
                    sums.x += four.x, sums.y += four.y, sums.z += four.z, sums.w += four.w;
                }
                epilogue.store4(target, sums);
            } else {
                float sum = 0.0f;
#pragma unroll 8
                for (int range = 0; range < cut.ranges; ++range, piece += cut.partials.range())
                    sum += *piece;
                epilogue.store(target, sum);
            }
        });
    }
}

#if PYBLAS_HAS_WGMMA

// A ring of slots in shared memory, behind its barriers, through which a block's stages come on Hopper.
template <class Tile>
class Slots {
public:
    // For so many threads that fill a slot, and so many that read it. All threads come here, and meet behind it.
    __device__ __forceinline__ Slots(int fillers, int readers)
        : floats(reinterpret_cast<float *>(dynamic_shared()) + Tile::kBarrierFloats),
          ring_(open_ring<Tile::kRing>(dynamic_shared(), fillers, readers)) {}

    // By warps that do nothing else: copies stage after stage, k of it in the operands.
    template <class Copy>
    __device__ __forceinline__ void feed(int64_t depth, Copy copy) const {
        ptx::give_registers_back<72>();
        Turn turn{0, 1};
        for (int64_t k_left = depth; k_left > 0; k_left -= Tile::BK, turn.next(Tile::kRing)) {
            ptx::wait(ring_.left + turn.slot, turn.parity);
            copy(at(turn.slot), part(k_left, Tile::BK));
            ptx::arrive_after_copies(ring_.come + turn.slot);
        }
        ptx::launch_dependents();
        // A warp does not leave while what it has asked for is under way: all slots have been left, then.
        for (int slot = 0; slot < Tile::kRing; ++slot, turn.next(Tile::kRing))
            ptx::wait(ring_.left + turn.slot, turn.parity);
    }

    // By the warps that multiply, where others feed.
    template <class Multiply>
    __device__ __forceinline__ void read(int64_t depth, Multiply multiply) const {
        Turn turn{0, 0};
#pragma unroll 1
        for (int64_t k_left = depth; k_left > 0; k_left -= Tile::BK, turn.next(Tile::kRing)) {
            ptx::wait(ring_.come + turn.slot, turn.parity);
            multiply(at(turn.slot), part(k_left, Tile::BK));
            ptx::arrive(ring_.left + turn.slot); // each lane for itself
        }
    }

    // By the warps that multiply, which fill the slots themselves: one lane of that warp asks the copy engine for a
    // stage, or all threads copy it.
    template <class Stream>
    __device__ __forceinline__ void fill(const Stream &stream, bool asked, int stage, int warp) const {
        if (asked && static_cast<int>(threadIdx.x) != 32 * warp)
            return;
        const int slot = stage % Tile::kRing;
        uint64_t *const come = ring_.come + slot;
        if (stage >= Tile::kRing)
            ptx::wait(ring_.left + slot, (stage / Tile::kRing - 1) % 2);
        if (asked) {
            stream.ask(stage, at(slot), come);
            ptx::arrive(come);
        } else {
            stream.copy(stage, at(slot));
            ptx::arrive_after_copies(come);
        }
    }

    // Then they multiply: another stage is filled before each, so many stages ahead of it, by another warp each time.
    template <int Ahead, class Stream, class Multiply>
    __device__ __forceinline__ void fill_and_read(const Stream &stream, bool asked, int stages,
                                                  Multiply multiply) const {
        Turn turn{0, 0};
#pragma unroll 1
        for (int stage = 0; stage < stages; ++stage, turn.next(Tile::kRing)) {
            if (stage + Ahead < stages)
                fill(stream, asked, stage + Ahead, stage % (Tile::kThreads / 32));
            else
                ptx::launch_dependents(); // all is asked for
            __syncwarp();
            ptx::wait(ring_.come + turn.slot, turn.parity);
            multiply(at(turn.slot), stage);
            ptx::arrive(ring_.left + turn.slot); // each lane for itself
        }
    }

    float *const floats; // of the first slot, and of the sums later

private:
    __device__ __forceinline__ float *at(int slot) const { return floats + slot * Tile::kStageFloats; }

    const Ring ring_;
};

#endif

// Behind the walk: the sums of all groups meet where the slots were, and one of each output goes on.
template <class Tile, int Sums, int Threads, class Leave>
__device__ __forceinline__ void end_walk(const Problem &problem, const Slices &cut, const SlicePlace<Tile> &place,
                                         float *smem, Leave leave) {
    meet<Tile, Threads>(); // everybody is done with the slots
    leave();
    meet<Tile, Threads>();
    store_sums<Tile, Sums, Threads>(problem, cut, place, smem);
}

// ContiguousX and ContiguousS: in global memory, neighbours along that side lie together; otherwise those along k. Only
// tiles with quads of s have the second form; s of the others is copied one by one.
template <class Tile, bool ContiguousX, bool ContiguousS>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident)
    slices(__grid_constant__ const Problem problem, __grid_constant__ const Slices cut) {
    constexpr QuadTile<ContiguousX> kTileX{Tile::BX, Tile::kTeamK};
    constexpr int kStageFloats = Tile::kStageFloats;

    // place
    const SlicePlace<Tile> place(cut);
    const int thread = static_cast<int>(threadIdx.x);
    const int lane_x = thread % Tile::kLanesX, lane_s = thread / Tile::kLanesX % Tile::kLanesS;
    const int group = thread / Tile::kLanes;
    const int team = Tile::kTeams > 1 ? thread / Tile::kTeamThreads : 0;
    const int member = thread - team * Tile::kTeamThreads;
    ask_early<Tile, ContiguousX>(problem, cut, place);
    ptx::wait_for_predecessors();
    const Epilogue scalars(problem);
    if (!place.exists || scalars.idle())
        return;
    float *const smem = reinterpret_cast<float *>(dynamic_shared());

    float acc[Tile::TS][Tile::TX] = {};
    int64_t k_left = min(scalars.depth() - place.k_begin, cut.range) - team * Tile::kTeamK; // not yet asked for
    if (k_left > 0) {
        const Sides sides(problem, cut.x_is_rows, place.batch, k_left);
        const View view_x = sides.x, view_s = sides.s;
        const int64_t k_first = place.k_begin + team * Tile::kTeamK;
        const float *source_x = view_x.at(place.x0, k_first), *source_s = view_s.at(place.s0, k_first);
        const bool contiguous_k = !ContiguousS && view_s.step_k == 1; // in s
        const int64_t ld_x = ContiguousX ? view_x.step_k : view_x.step_x;
        const int64_t ld_s = contiguous_k ? view_s.step_x : view_s.step_k;
        const auto aligned = [](const float *source, int64_t ld) {
            return reinterpret_cast<uintptr_t>(source) % 16 == 0 && ld % 4 == 0;
        };
        const bool wide_x = aligned(source_x, ld_x), wide_s = (ContiguousS || contiguous_k) && aligned(source_s, ld_s);

        const int x_left = place.x_left, s_left = place.s_left;
        const auto load = [&](float *stage) {
            if (k_left > 0) {
                const int k = part(k_left, Tile::kTeamK);
                const int length_x = ContiguousX ? x_left : k, columns_x = ContiguousX ? k : x_left;
                const bool whole_x = k == Tile::kTeamK && x_left == Tile::BX,
                           whole_s = k == Tile::kTeamK && s_left == Tile::BS;
                const auto place_x = [&](int i, int j) { return stage + kTileX.at(i, j); };
                if (wide_x)
                    copy_columns<4, kTileX.length(), kTileX.columns(), Tile::kTeamThreads, (Tile::kTeams > 1)>(
                        source_x, ld_x, length_x, columns_x, whole_x, member, place_x);
                else
                    copy_columns<1, kTileX.length(), kTileX.columns(), Tile::kTeamThreads>(
                        source_x, ld_x, length_x, columns_x, whole_x, member, place_x);
                float *const stage_s = stage + kTileX.floats();
                copy_small<Tile::BS, Tile::kTeamK, Tile::kTeamThreads, ContiguousS>(
                    source_s, ld_s, contiguous_k, wide_s, s_left, k, whole_s, member,
                    [&](int l, int s) { return stage_s + (ContiguousS ? l * Tile::BS + s : s * Tile::kRowS + l); });
                source_x += Tile::BK * (ContiguousX ? ld_x : 1);
                source_s += Tile::BK * (contiguous_k ? 1 : ld_s);
                k_left -= Tile::BK;
            }
            ptx::commit_copies(); // an empty group keeps the count of groups equal to the count of stages
        };

        // load: all stages but one, then always one before the oldest is multiplied. One loop does both, as the copies
        // are much code.
        float *const mine = smem + team * Tile::kTeamFloats;
        const int stages = static_cast<int>((k_left + Tile::BK - 1) / Tile::BK);
        int read = 0, write = 0;
#pragma unroll 1
        for (int left = stages + cut.ring - 1; left > 0; --left) {
            const bool multiplies = left <= stages;
            if (multiplies) {
                // The oldest stage has arrived, and everybody is done with the one that is overwritten next.
                wait_until(cut.ring - 2);
                if constexpr (Tile::kTeams > 1)
                    __syncwarp();
                else
                    __syncthreads();
            }
            load(mine + write * kStageFloats);
            write = write + 1 == cut.ring ? 0 : write + 1;
            if (!multiplies)
                continue;
            // All is asked for. Not earlier: what the next kernel asks for would not stay in the L2 for a whole walk.
            if (left < cut.ring)
                ptx::launch_dependents();

            // multiply
            const float *const smem_x = mine + read * kStageFloats, *const smem_s = smem_x + kTileX.floats();
            if (Tile::kThreads % Tile::kLanes == 0 || group < Tile::kGroups) {
#pragma unroll 1
                for (int k = 4 * (group - team * Tile::kTeamGroups); k < Tile::kTeamK; k += 4 * Tile::kTeamGroups) {
                    float frag_x[Tile::TX / 4][4][4];
#pragma unroll
                    for (int quad = 0; quad < Tile::TX / 4; ++quad)
                        kTileX.read(smem_x, lane_x + quad * Tile::kLanesX, k, frag_x[quad]);
                    // Four k of one s, or four s of one k, with the quads' x.
#pragma unroll
                    for (int read_s = 0; read_s < Tile::TS; ++read_s) {
                        const int j = ContiguousS ? read_s / 4 * 4 : read_s, l = ContiguousS ? read_s % 4 : 0;
                        const float4 frag_s = *reinterpret_cast<const float4 *>(
                            ContiguousS ? smem_s + (k + l) * Tile::BS + 4 * lane_s + j * Tile::kLanesS
                                        : smem_s + (lane_s + j * Tile::kLanesS) * Tile::kRowS + k);
                        const float four[4] = {frag_s.x, frag_s.y, frag_s.z, frag_s.w};
#pragma unroll
                        for (int part = 0; part < 4; ++part)
#pragma unroll
                            for (int i = 0; i < Tile::TX; ++i) {
                                float &sum = acc[ContiguousS ? j + part : j][i];
                                sum = fmaf(frag_x[i / 4][ContiguousS ? l : part][i % 4], four[part], sum);
                            }
                    }
                }
            }

            // advance
            read = read + 1 == cut.ring ? 0 : read + 1;
        }
        if constexpr (Tile::kTeams == 1)
            __syncthreads();
    }
    if constexpr (Tile::kTeams > 1)
        __syncthreads();

    // add up the groups: those of a warp, then those of the block. As end_walk() does it, but a sum that is captured
    // there would be spilled here.
    if constexpr (Tile::kWarpGroups > 1)
#pragma unroll
        for (int flip = Tile::kLanes; flip < 32; flip *= 2)
#pragma unroll
            for (int j = 0; j < Tile::TS; ++j)
#pragma unroll
                for (int i = 0; i < Tile::TX; ++i)
                    acc[j][i] += __shfl_xor_sync(0xffffffff, acc[j][i], flip);
    if (group < Tile::kGroups && group % Tile::kWarpGroups == 0)
#pragma unroll
        for (int j = 0; j < Tile::TS; ++j) {
            const int s = ContiguousS ? 4 * lane_s + j / 4 * 4 * Tile::kLanesS + j % 4 : lane_s + j * Tile::kLanesS;
            const int row = group / Tile::kWarpGroups * Tile::BS + s;
#pragma unroll
            for (int quad = 0; quad < Tile::TX / 4; ++quad)
                *reinterpret_cast<float4 *>(smem + row * Tile::kSumRow + 4 * (lane_x + quad * Tile::kLanesX)) =
                    float4{acc[j][4 * quad], acc[j][4 * quad + 1], acc[j][4 * quad + 2], acc[j][4 * quad + 3]};
        }
    __syncthreads();

    // store
    store_sums<Tile, Tile::kSums, Tile::kThreads>(problem, cut, place, smem);
}

// What a tile reaches, measured: by this, ranges are chosen. What a product takes is predicted by Rates.
struct SliceRate {
    double bandwidth, flops; // shares of the device's
    double block;            // seconds before and after a walk that nothing hides
};

// Before and after the last block of a tile adds what the ranges have left.
constexpr double kLastBlockSeconds = 1e-6;
constexpr int kMostRangesInBlock = 32; // beyond that, a second kernel is quicker

// A product as tiles of C and stages of k, and the seconds that a number of ranges takes. Asked often on the way of
// every call, so what does not depend on the ranges is kept.
template <class Tile>
class Walk {
public:
    Walk(const Problem &problem, const Device &device, bool x_is_rows, const SliceRate &rate)
        : extent_x(x_is_rows ? problem.m : problem.n), extent_s(x_is_rows ? problem.n : problem.m),
          tiles_x((extent_x + Tile::BX - 1) / Tile::BX), tiles_s((extent_s + Tile::BS - 1) / Tile::BS),
          tiles(tiles_x * tiles_s * problem.batch), stages(std::max<int64_t>(1, (problem.k + Tile::BK - 1) / Tile::BK)),
          processors_(device.multiprocessors) {
        const double share = processors_ / (rate.bandwidth * device.bandwidth); // seconds for a byte
        // Tiles side by side find s in the L2.
        const double bytes = 4.0 * Tile::BK * (Tile::BX + Tile::BS / static_cast<double>(tiles_x));
        const double flops = 2.0 * Tile::BX * Tile::BS * Tile::BK;
        stage_ = std::max(bytes * share, flops * processors_ / (rate.flops * device.fp32_flops));
        block_ = 4.0 * Tile::BX * Tile::BS * share + rate.block;
        sum_start_ = Tile::kAddsRanges ? kLastBlockSeconds : second_kernel_seconds(device);
        sum_ = 4.0 * static_cast<double>(problem.m) * static_cast<double>(problem.n) *
               static_cast<double>(problem.batch) / device.bandwidth;
    }

    // On the multiprocessor that has the most blocks, and in what adds the ranges.
    double seconds(int64_t ranges) const {
        const int64_t blocks = tiles * ranges, whole = (blocks + processors_ - 1) / processors_;
        // Warps that walk by themselves wait for bytes only: blocks of a last round that is not full share them.
        const bool shares = Tile::kTeams > 1 && blocks > processors_;
        double rounds =
            shares ? static_cast<double>(blocks) / static_cast<double>(processors_) : static_cast<double>(whole);
        double walk = static_cast<double>((stages + ranges - 1) / ranges) * stage_;
        if (Tile::kAddsRanges) {
            // What a block has under way decides its pace, alone or not.
            const int64_t slots = Tile::kResident * processors_;
            rounds = static_cast<double>((blocks + slots - 1) / slots);
            walk *= Tile::kResident;
        }
        const double all = rounds * (walk + block_);
        return ranges == 1 ? all : all + sum_start_ + static_cast<double>(ranges) * sum_;
    }

    const int64_t extent_x, extent_s, tiles_x, tiles_s, tiles, stages;

private:
    int64_t processors_;
    double stage_, block_, sum_, sum_start_;
};

// Ranges enough to keep the multiprocessors equally busy, and short enough for the accuracy of a sum in one thread.
template <class Tile>
int64_t best_ranges(const Walk<Tile> &walk, int64_t k, const Device &device) {
    const int64_t longest = std::max<int64_t>(1, int64_t{k > 16384 ? 1024 : 256} * Tile::kGroups / Tile::BK);
    const int64_t least = (walk.stages + longest - 1) / longest;
    constexpr int kWorth = Tile::kAddsRanges ? std::max(1, 256 / Tile::BK) : Tile::kTeams > 1 ? 2 : 4;
    const int64_t full = walk.stages / kWorth; // a range is worth its start
    int64_t best = least;
    double seconds = walk.seconds(least);
    const auto consider = [&](int64_t ranges) {
        if (const double other = walk.seconds(ranges); other < seconds) {
            best = ranges;
            seconds = other;
        }
    };
    if (walk.tiles < 8 * device.multiprocessors) // many blocks are even enough
        for (int64_t ranges = least + 1; ranges <= std::min<int64_t>(full, 8); ++ranges)
            consider(ranges);
    // Few tiles: as many ranges as run side by side.
    const int64_t beside = std::min(Tile::kResident * device.multiprocessors / walk.tiles, full);
    if (beside > best)
        consider(beside);
    return best;
}

template <class Tile>
Slices cut(const Problem &problem, const Device &device, bool x_is_rows, const SliceRate &rate, void *workspace) {
    const Walk<Tile> walk(problem, device, x_is_rows, rate);
    const int64_t ranges = best_ranges(walk, problem.k, device);
    const int64_t each = (walk.stages + ranges - 1) / ranges;
    Slices slices;
    slices.x_is_rows = x_is_rows;
    slices.extent_x = walk.extent_x;
    slices.extent_s = walk.extent_s;
    slices.tiles_x = walk.tiles_x;
    slices.tiles_s = walk.tiles_s;
    slices.range = each * Tile::BK;
    slices.ranges = static_cast<int>((walk.stages + each - 1) / each);
    slices.blocks = walk.tiles * slices.ranges;
    slices.partials = Partials::of(problem, slices.ranges, workspace);
    slices.arrivals = nullptr;
    // A ring as long as shared memory allows; each block keeps 1 KB for itself.
    const int neighbours = slices.blocks > device.multiprocessors ? Tile::kResident : 1;
    const int fit = ((device.shared_per_block + 1024) / neighbours - 1024) / (4 * Tile::kStageFloats);
    slices.ring = std::max(2, std::min(Tile::kRing, fit));
    // What the kernel ahead writes, the L2 holds. Addresses must be sure to be right: host's pointers that are read.
    const bool known = !problem.a.array && problem.alpha.known() && problem.alpha.value != 0.0f;
    slices.early_depth = device.starts_early && known ? Tile::early_depth(slices.ring) : 0;
    return slices;
}

template <class Tile>
const char *slices_refuses(const Device &device) {
    return Tile::shared_bytes(2, 2) > device.shared_per_block ? "the device has too little shared memory per block"
                                                              : nullptr;
}

// Whether the blocks themselves add the ranges.
template <class Tile>
bool counts_arrivals(const Slices &slices) {
    const int64_t tiles = slices.blocks / slices.ranges;
    return Tile::kAddsRanges && slices.ranges > 1 && slices.ranges <= kMostRangesInBlock && tiles <= kZeros;
}

// Counters lie behind the partial sums where the workspace has no zeros.
template <class Tile>
size_t slices_workspace(const Problem &problem, const Device &device, bool x_is_rows, const SliceRate &rate) {
    const Slices slices = cut<Tile>(problem, device, x_is_rows, rate, nullptr);
    return slices.ranges == 1 ? 0 : slices.partials.bytes() + (counts_arrivals<Tile>(slices) ? kZeros * 4 : 0);
}

template <auto kernel, class... More>
Status start_slices(const Grid &grid, const Device &device, const Problem &problem, const Slices &cut,
                    const More &...more) {
    PYBLAS_TRY((allow_shared<kernel>(device.shared_per_block)));
    return launch<kernel>(grid, problem, cut, more...);
}

template <class Tile>
struct SliceKernels {
    template <bool ContiguousX, bool ContiguousS>
    static Status start(const Grid &grid, const Device &device, const Problem &problem, const Slices &cut) {
        return start_slices<slices<Tile, ContiguousX, ContiguousS>>(grid, device, problem, cut);
    }
};

template <class Tile, class Kernels = SliceKernels<Tile>>
Status launch_slices(const Problem &problem, const Launch &launch_on, bool x_is_rows, const SliceRate &rate) {
    const Device &device = *launch_on.device;
    Slices slices = cut<Tile>(problem, device, x_is_rows, rate, launch_on.workspace);
    if (counts_arrivals<Tile>(slices)) {
        slices.arrivals = launch_on.zeros;
        if (!slices.arrivals) {
            slices.arrivals = reinterpret_cast<uint32_t *>(slices.partials.data) + slices.partials.bytes() / 4;
            PYBLAS_TRY(clear(slices.arrivals, slices.blocks / slices.ranges, launch_on.stream));
        }
    }
    const int bytes = Tile::shared_bytes(slices.ring, slices.range / Tile::BK);
    const Grid grid{slices.blocks, Tile::kThreads, bytes, launch_on.stream, device.starts_early};
    const bool rows_contiguous = problem.transa == Op::N, columns_contiguous = problem.transb == Op::T;
    const auto start = [&](auto contiguous_x, auto contiguous_s) {
        return Kernels::template start<contiguous_x.value, contiguous_s.value>(grid, device, problem, slices);
    };
    const auto both = [](auto contiguous_s) { return std::bool_constant<contiguous_s.value && Tile::kQuadsOfBoth>(); };
    const auto start_for_x = [&](auto contiguous_s) {
        return (x_is_rows ? rows_contiguous : columns_contiguous) ? start(std::true_type(), contiguous_s)
                                                                  : start(std::false_type(), both(contiguous_s));
    };
    const bool contiguous_s = Tile::kQuadsOfS && (x_is_rows ? columns_contiguous : rows_contiguous);
    PYBLAS_TRY(contiguous_s ? start_for_x(std::bool_constant<Tile::kQuadsOfS>()) : start_for_x(std::false_type()));
    return slices.ranges == 1 || slices.arrivals ? kSuccess : add_partials(problem, slices.partials, launch_on);
}

template <class Tile>
Work slices_work(const Problem &problem, const Device &device, bool x_is_rows, const SliceRate &rate) {
    const Slices slices = cut<Tile>(problem, device, x_is_rows, rate, nullptr);
    const Operand &operand_x = x_is_rows ? problem.a : problem.b, &operand_s = x_is_rows ? problem.b : problem.a;
    const bool x_along_k = x_is_rows ? problem.transa == Op::T : problem.transb == Op::N;
    const bool s_along_k = x_is_rows ? problem.transb == Op::N : problem.transa == Op::T;
    const bool quads_of_s = s_along_k || (x_along_k ? Tile::kQuadsOfBoth : Tile::kQuadsOfS);
    const double extent_x = static_cast<double>(std::min<int64_t>(slices.extent_x, Tile::BX));
    const double extent_s = static_cast<double>(std::min<int64_t>(slices.extent_s, Tile::BS));
    Work work;
    work.spread(static_cast<double>(slices.blocks), Tile::kResident, device);
    work.move(problem);
    work.steps = static_cast<double>(std::min(problem.k, slices.range));
    work.folds = std::ceil(work.steps / Tile::BK); // stages
    const double staged = work.folds * Tile::BK;   // a stage is filled to its end; warps by themselves stop before
    work.flops = 2.0 * Tile::BX * Tile::BS * (Tile::kTeams > 1 ? work.steps : staged);
    work.copies = x_along_k ? Tile::BX * staged / 4 : 0; // of quads that are turned when they are read
    work.narrow =
        ((operand_x.ld % 4 != 0 ? Tile::BX : 0) + (!quads_of_s || operand_s.ld % 4 != 0 ? Tile::BS : 0)) * staged;
    // What is not whole is copied in a loop.
    const bool edge = slices.extent_x % Tile::BX != 0;
    work.trips = (work.narrow + (edge ? Tile::BX * staged / 4 : 0)) / Tile::kCopiers;
    work.bytes = 4.0 * work.steps * (extent_x + extent_s / static_cast<double>(slices.tiles_x)); // s is found in the L2
    if (problem.c.ld % 4 != 0)
        work.single = extent_x * extent_s / (Tile::BX * Tile::BS);
    if (slices.ranges > 1) {
        work.second_kernels = 1;
        work.partial_bytes = work.written * slices.ranges;
        work.pieces = slices.ranges;
    }
    return work;
}

} // namespace pyblas
