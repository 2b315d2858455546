// wgmma_deep: few outputs of a deep k, so that packing either operand would cost more than the product. Both are split
// on their way, by warps that do nothing else, and multiplied from shared memory as wgmma does.
//
//     A --boxes--> floats --two warpgroups split--> | hi, lo of 64 of k | --two multiply--> sums of a range of k --> C
//     B --boxes-->                                  | of A and of B     |
//
// Each 64 of k of 128 rows of an operand have one power of two, so that a chunk's sums need one factor. 128 x 128
// outputs and a range of k for a block of 512 threads: 152 registers where it multiplies, 104 where it splits, 226 KB.
// Where tiles are few k is cut into ranges, whose sums a second kernel adds in order. What planes cannot hold is left
// to FP32 multiply-adds (unfit.cuh) when the item is stored. Refuses k below 32, as wgmma does, and sizes beyond 2^30.
#include "cost.hpp"
#include "pack.hpp"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "../device/epilogue.cuh"
#include "../device/launch.cuh"
#include "../device/partials.cuh"
#include "../device/ptx.cuh"
#include "fragments.hpp"
#include "ranges.cuh"
#include "tensor_map.cuh"
#include "unfit.cuh"

namespace pyblas {
namespace {

constexpr int kSide = 128, kDepth = kPlaneDepth, kSums = kSide / 2; // of a tile, of a chunk, of a thread
constexpr int kSplitting = 2, kThreads = 512;                       // the first group that splits; of 128 threads each
constexpr int kTileBytes = kSide * kDepth * 4, kPlaneBytes = kSide * kSwizzledRowBytes;
constexpr int kStages = 2, kSlots = 3; // of planes; of floats, A's and B's by turns
constexpr int kSplitRegisters = 104, kMultiplyRegisters = 152;
// Of the groups that multiply, and of all; before them one for each that splits, and the block's.
constexpr int kPairBarrier = 3, kEndBarrier = 4;

// An operand's share of shared memory beside floats and planes.
struct Notes {
    uint32_t most[2][4];   // of the warps that split, for two chunks by turns: the largest magnitude
    float powers[kStages]; // of a chunk
    int32_t unfit[kSide];  // kUnfitRow for rows that do not fit
};
constexpr int kSharedBytes = kSwizzleAtomBytes + kStages * 4 * kPlaneBytes + kSlots * kTileBytes +
                             (2 * kStages + 2 * kSlots) * 8 + 2 * static_cast<int>(sizeof(Notes));
static_assert(kSharedBytes <= 227 * 1024, "what a block can have");
static_assert(kSide == unfit::kSide && 256 == unfit::kThreads, "unfit rows are taken by tiles and by two groups");
static_assert(unfit::kSharedBytes<false, false> <= kStages * 4 * kPlaneBytes, "which leave the notes as they are");

// Chunk maxima in these bounds fit, as bits, so that no sum of scaled numbers leaves the range of floats.
constexpr uint32_t kLeastTop = (127 - 46) << 23, kMostTop = ((127 + 47) << 23) - 1;

// What a launch works on. An item is a range of k of one tile. Rows are rows of op(A) or columns of op(B); the
// instruction's are the latter.
struct Task {
    Scalar alpha;
    bool in_boxes;      // the copy engine can bring both operands
    int least_exponent; // beside a chunk's power of two; smaller magnitudes do not fit
    int rows_a, rows_b, depth, batch;
    int tiles_m, tiles_n, ranges, chunks; // chunks of a range

    PYBLAS_HOST_DEVICE int64_t items() const { return int64_t{tiles_m} * tiles_n * batch * ranges; }
    PYBLAS_HOST_DEVICE int all_chunks() const { return (depth + kDepth - 1) / kDepth; }

    struct Place {
        int row, column, range, batch;
    };
    __device__ __forceinline__ Place place(int item) const {
        const int tile_n = item % tiles_n, rest = item / tiles_n, tile_m = rest % tiles_m, others = rest / tiles_m;
        return {tile_m * kSide, tile_n * kSide, others % ranges, others / ranges};
    }
};

#if PYBLAS_HAS_WGMMA
// The floats of a thread, as words.
using Words = uint32_t[16][4];

__device__ __forceinline__ float magnitude(uint32_t word) {
    return fabsf(__uint_as_float(word));
}

// 128 lines of 64 neighbours: 64 of k of each row, or, across k, rows 0 to 63 of each of 64 k, then rows 64 to 127.
// A thread of 128 has eight neighbours of four lines in each half of 32: unit i is half i % 2 of line i / 2 * 32
// further.
template <bool AlongK>
struct Lines {
    static constexpr int kUnits = 8;
    static constexpr int kBoxes = AlongK ? 2 : 4, kBoxBytes = kTileBytes / kBoxes;

    // Four lanes share a line. Of neighbouring fours the lines differ in the lowest bit and in the third one, so that
    // eight lanes meet no bank twice, neither reading floats nor writing planes.
    static __device__ __forceinline__ int line(int thread) {
        return thread / 32 * 8 + (thread % 32 / 8 ^ thread / 4 % 2 * 5);
    }
    // The row of the j-th neighbour.
    static __device__ __forceinline__ int row(int unit, int j, int thread) {
        return AlongK ? line(thread) + unit / 2 * 32 : unit / 4 * 64 + unit % 2 * 32 + thread % 4 * 8 + j;
    }

    // By one thread: boxes of 32 neighbours.
    static __device__ __forceinline__ void bring(char *tile, const void *map, int row, int k, int batch,
                                                 uint64_t *barrier) {
#pragma unroll
        for (int i = 0; i < kBoxes; ++i)
            ptx::copy_box(tile + i * kBoxBytes, map, (AlongK ? k : row) + i * 32, AlongK ? row : k, 0, batch, barrier);
    }

    static __device__ __forceinline__ void read(const char *tile, int thread, Words &words) {
        const int own = line(thread), turn = own % 8, piece = thread % 4 * 2;
        const char *const first = tile + own * kSwizzledRowBytes + (piece ^ turn) * 16;
        const char *const second = tile + own * kSwizzledRowBytes + ((piece + 1) ^ turn) * 16;
        const auto take = [&](const char *quad, int i) {
            const uint4 four = *reinterpret_cast<const uint4 *>(quad);
            words[i][0] = four.x, words[i][1] = four.y, words[i][2] = four.z, words[i][3] = four.w;
        };
#pragma unroll
        for (int i = 0; i < kUnits; ++i) {
            const int step = AlongK ? i % 2 * kBoxBytes + i / 2 * 32 * kSwizzledRowBytes
                                    : (i / 4 * 2 + i % 2) * kBoxBytes + i / 2 % 2 * 32 * kSwizzledRowBytes;
            take(first + step, 2 * i);
            take(second + step, 2 * i + 1);
        }
    }

    // Where the copy engine cannot: the same from memory, with zeros past the end.
    static __device__ __forceinline__ void load(const float *source, int64_t ld, int rows_left, int k_left, int thread,
                                                Words &words) {
#pragma unroll
        for (int i = 0; i < kUnits; ++i) {
            const int across = line(thread) + (AlongK ? i / 2 : i / 2 % 2) * 32;
            const int along = (AlongK ? 0 : i / 4 * 64) + i % 2 * 32 + thread % 4 * 8;
            const int left = across < (AlongK ? rows_left : k_left) ? (AlongK ? k_left : rows_left) - along : 0;
            const float *const from = source + across * ld + along;
#pragma unroll
            for (int j = 0; j < 8; ++j)
                words[2 * i + j / 4][j % 4] = j < left ? __float_as_uint(from[j]) : 0;
        }
    }

    // A unit's planes. The low one counts 2^-11.
    static __device__ __forceinline__ void split(const Words &words, float scale, int unit, int thread, char *plane) {
        uint32_t high[4], low[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            constexpr float kLow = 1 << kLowPlaneBits;
            const uint32_t *const pair = &words[2 * unit + i / 2][i % 2 * 2];
            const float x = __uint_as_float(pair[0]) * scale, y = __uint_as_float(pair[1]) * scale;
            high[i] = ptx::f16_pair(x, y);
            const float2 taken = ptx::floats_of_f16_pair(high[i]);
            low[i] = ptx::f16_pair((x - taken.x) * kLow, (y - taken.y) * kLow);
        }
        const int own = line(thread);
        char *const target = plane + own * kSwizzledRowBytes + ((thread % 4 + unit % 2 * 4) ^ own % 8) * 16 +
                             unit / 2 * 32 * kSwizzledRowBytes;
        *reinterpret_cast<uint4 *>(target) = {high[0], high[1], high[2], high[3]};
        *reinterpret_cast<uint4 *>(target + kPlaneBytes) = {low[0], low[1], low[2], low[3]};
    }
};

// What the groups of a block share.
struct Shared {
    char *planes, *floats;
    uint64_t *full, *empty; // of planes
    uint64_t *there;        // of floats, for six entries by turns: B's and A's of each slot
    Notes *notes;           // of B, then of A
};

// Chunks of both operands come to the slots one after another, B's and A's by turns. A slot has a barrier for either: a
// group waits for one phase after the other of its own, while of one that both use it would miss every second, and take
// the phase before the last for the one it waits for where the other group is late.
__device__ __forceinline__ uint64_t *entry_barrier(const Shared &shared, int entry) {
    return shared.there + entry % (2 * kSlots);
}
template <class Boxes>
__device__ __forceinline__ void bring_entry(const Shared &shared, int entry, const void *map, int row, int k,
                                            int batch) {
    uint64_t *const barrier = entry_barrier(shared, entry);
    ptx::arrive_and_expect(barrier, kTileBytes);
    Boxes::bring(shared.floats + entry % kSlots * kTileBytes, map, row, k, batch, barrier);
}

// The chunks of one operand, B or A, to planes. Boxes of the other operand are asked for where this one's are read.
template <bool AlongK, bool OtherAlongK>
__device__ __forceinline__ void split_chunks(const Problem &problem, const Task &task, const Task::Place &place,
                                             int chunks, int own, const void *other_map, const Shared &shared) {
    const int thread = static_cast<int>(threadIdx.x) % 128, warp = thread / 32, lane = thread % 32;
    const Operand &operand = own == 0 ? problem.b : problem.a;
    const int row = own == 0 ? place.column : place.row, other_row = own == 0 ? place.row : place.column;
    const int rows = own == 0 ? task.rows_b : task.rows_a;
    const int other_batch = (own == 0 ? problem.a : problem.b).stride == 0 ? 0 : place.batch;
    const int first_k = place.range * task.chunks * kDepth;
    Notes &notes = shared.notes[own];
    // The largest magnitude of all threads.
    const auto most_of_all = [&](uint32_t most, int turn) {
        most = __reduce_max_sync(0xffffffff, most);
        if (lane == 0)
            notes.most[turn][warp] = most;
        ptx::any_of_warpgroup(own + 1, false);
        const uint32_t *const each = notes.most[turn];
        return max(max(each[0], each[1]), max(each[2], each[3]));
    };
    for (int chunk = 0, entry = own; chunk < chunks; ++chunk, entry += 2) {
        const int stage = chunk % kStages, k = first_k + chunk * kDepth;
        Words words;
        if (task.in_boxes) {
            ptx::wait(entry_barrier(shared, entry), entry / (2 * kSlots) & 1);
            Lines<AlongK>::read(shared.floats + entry % kSlots * kTileBytes, thread, words);
        } else {
            const int64_t ld = operand.ld;
            Lines<AlongK>::load(operand.matrix(place.batch) + (AlongK ? row * ld + k : row + k * ld), ld, rows - row,
                                task.depth - k, thread, words);
        }

        // measure. A NaN is no magnitude here, and makes all of its row's results NaN by itself.
        float largest = 0.0f, smallest = 3.0e38f;
#pragma unroll
        for (const uint32_t (&four)[4] : words) {
#pragma unroll
            for (const uint32_t word : four)
                largest = fmaxf(largest, magnitude(word)), smallest = fminf(smallest, magnitude(word));
        }
        uint32_t most = most_of_all(__float_as_uint(largest), chunk % 2);
        // All threads have read their floats: here the other operand's can come, three entries further on.
        const int next = (entry + kSlots) / 2;
        if (thread == 0 && task.in_boxes && next < chunks)
            bring_entry<Lines<OtherAlongK>>(shared, entry + kSlots, other_map, other_row, first_k + next * kDepth,
                                            other_batch);
        if (most > kMostTop) {         // what is beyond the bounds is no other row's affair
            ptx::fence_operand(words); // nothing is kept from before, as there are no registers for it
            uint32_t within = 0;
#pragma unroll
            for (int i = 0; i < 64; ++i) {
                const uint32_t bits = words[i / 4][i % 4] & 0x7fffffff;
                within = max(within, bits > kMostTop ? 0 : bits);
            }
            ptx::any_of_warpgroup(own + 1, false); // all have read the maxima
            most = most_of_all(within, chunk % 2);
        }
        // The largest goes to [2^14, 2^15).
        const uint32_t power = (max(most, kLeastTop) & 0x7f800000) - (14 << 23);
        const uint32_t least = power + (static_cast<uint32_t>(task.least_exponent) << 23);
        const float scale = __uint_as_float((254u << 23) - power);
        if (__any_sync(0xffffffff, __float_as_uint(smallest) < least || __float_as_uint(largest) > kMostTop)) {
            ptx::fence_operand(words);
            uint32_t nonzero = 0xffffffff; // the least of those, twice, less one
#pragma unroll
            for (int i = 0; i < 64; ++i)
                nonzero = min(nonzero, 2 * words[i / 4][i % 4] - 1);
            if (nonzero < 2 * least - 1 || __float_as_uint(largest) > kMostTop) {
#pragma unroll
                for (int i = 0; i < 64; ++i) {
                    const uint32_t bits = words[i / 4][i % 4] & 0x7fffffff;
                    if (bits != 0 && (bits < least || bits > kMostTop))
                        notes.unfit[Lines<AlongK>::row(i / 8, i % 8, thread)] = kUnfitRow;
                }
            }
        }

        // split
        ptx::wait(shared.empty + stage, (chunk / kStages & 1) ^ 1);
        if (thread == 0)
            notes.powers[stage] = __uint_as_float(power);
        char *const plane = shared.planes + (stage * 4 + own * 2) * kPlaneBytes;
        ptx::fence_operand(words);
#pragma unroll
        for (int i = 0; i < Lines<AlongK>::kUnits; ++i)
            Lines<AlongK>::split(words, scale, i, thread, plane);
        ptx::publish_stores();
        __syncwarp();
        if (lane == 0)
            ptx::arrive(shared.full + stage);
    }
}

// What the item leaves out, by 256 threads. A call, so that the kernel need not hold it in its registers.
template <bool ContiguousM, bool ContiguousN>
__device__ __noinline__ void multiply_unfit_item(const Problem &problem, const Task &task, const Notes *notes) {
    const Task::Place at = task.place(static_cast<int>(blockIdx.x));
    const Problem part_of_item = range_of(problem, at.range, int64_t{task.chunks} * kDepth, task.batch);
    // Marks are counted by rows of C, those of an item are there from its first row on.
    const unfit::Marks columns = {notes[0].unfit - at.column, 0}, rows = {notes[1].unfit - at.row, 0};
    const unfit::Place place{at.row, at.column, at.batch, part(task.rows_a - at.row, kSide),
                             part(task.rows_b - at.column, kSide)};
    unfit::multiply_place<ContiguousM, ContiguousN>(part_of_item, Epilogue(part_of_item), place, rows, columns,
                                                    unfit::count_unfit(rows, at.batch, at.row, place.rows),
                                                    unfit::count_unfit(columns, at.batch, at.column, place.columns));
}
#endif

// The problem's C is workspace where there are several ranges.
template <bool AlongA, bool AlongB>
__global__ void __launch_bounds__(kThreads, 1)
    wgmma_deep(__grid_constant__ const Problem problem, __grid_constant__ const Task task,
               __grid_constant__ const CUtensorMap map_a, __grid_constant__ const CUtensorMap map_b) {
#if PYBLAS_HAS_WGMMA
    // place
    const int group = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 128, 0);
    char *const memory = reinterpret_cast<char *>(dynamic_shared());
    Shared shared;
    shared.planes = memory + (-static_cast<int>(ptx::shared_address(memory)) & (kSwizzleAtomBytes - 1));
    shared.floats = shared.planes + kStages * 4 * kPlaneBytes;
    shared.full = reinterpret_cast<uint64_t *>(shared.floats + kSlots * kTileBytes);
    shared.empty = shared.full + kStages;
    shared.there = shared.empty + kStages;
    shared.notes = reinterpret_cast<Notes *>(shared.there + 2 * kSlots);
    if (threadIdx.x < 2 * kSide)
        shared.notes[threadIdx.x / kSide].unfit[threadIdx.x % kSide] = 0;
    if (threadIdx.x == 0) {
        ptx::prefetch_tensor_map(&map_a);
        ptx::prefetch_tensor_map(&map_b);
        for (int stage = 0; stage < kStages; ++stage) {
            ptx::init_barrier(shared.full + stage, 8);
            ptx::init_barrier(shared.empty + stage, 8);
        }
        for (int entry = 0; entry < 2 * kSlots; ++entry)
            ptx::init_barrier(shared.there + entry, 1);
        ptx::publish_barriers();
    }
    __syncthreads();
    ptx::launch_dependents();
    ptx::wait_for_predecessors();
    const Epilogue epilogue(problem);
    const bool reads = task.alpha.load() != 0.0f;
    if (epilogue.idle() || !(task.ranges == 1 || reads))
        return;
    const Task::Place place = task.place(static_cast<int>(blockIdx.x));
    const int chunks =
        __shfl_sync(0xffffffff, reads ? min(task.chunks, task.all_chunks() - place.range * task.chunks) : 0, 0);

    if (group >= kSplitting) {
        ptx::give_registers_back<kSplitRegisters>();
        // load
        if (threadIdx.x == kSplitting * 128 && task.in_boxes)
            for (int entry = 0; entry < kSlots && entry / 2 < chunks; ++entry) {
                const int k = (place.range * task.chunks + entry / 2) * kDepth;
                if (entry % 2 == 0)
                    bring_entry<Lines<AlongB>>(shared, entry, &map_b, place.column, k,
                                               problem.b.stride == 0 ? 0 : place.batch);
                else
                    bring_entry<Lines<AlongA>>(shared, entry, &map_a, place.row, k,
                                               problem.a.stride == 0 ? 0 : place.batch);
            }
        if constexpr (AlongA == AlongB)
            split_chunks<AlongB, AlongA>(problem, task, place, chunks, group - kSplitting,
                                         group == kSplitting ? &map_a : &map_b, shared);
        else if (group == kSplitting)
            split_chunks<AlongB, AlongA>(problem, task, place, chunks, 0, &map_a, shared);
        else
            split_chunks<AlongA, AlongB>(problem, task, place, chunks, 1, &map_b, shared);
        ptx::meet<kThreads>(kEndBarrier); // a warp does not leave while what it has asked for is under way
    } else {
        ptx::take_registers<kMultiplyRegisters>();
        const int thread = static_cast<int>(threadIdx.x) % 128, lane = thread % 32;
        const uint64_t of_b =
            tile_descriptor(ptx::shared_address(shared.planes)) + descriptor_step(group * 64 * kSwizzledRowBytes);
        const uint64_t of_a = tile_descriptor(ptx::shared_address(shared.planes)) + descriptor_step(2 * kPlaneBytes);
        float total[kSums] = {}, acc[kSums];
        // multiply
#pragma unroll 1
        for (int chunk = 0; chunk < chunks; ++chunk) {
            const int stage = chunk % kStages;
            ptx::wait(shared.full + stage, chunk / kStages & 1);
            const uint64_t step = descriptor_step(stage * 4 * kPlaneBytes);
            // Read by the lane that says when the stage is empty.
            float factor = lane == 0 ? shared.notes[0].powers[stage] * shared.notes[1].powers[stage] : 0.0f;
            factor = __shfl_sync(0xffffffff, factor, 0);
            const auto multiply = [&](int plane_b, int plane_a, bool onto) {
#pragma unroll
                for (int k = 0; k < kDepth; k += 16)
                    ptx::multiply<ptx::Number::f16, !AlongB, !AlongA>(
                        acc, of_b + step + descriptor_step(plane_b * kPlaneBytes + depth_step(!AlongB, k)),
                        of_a + step + descriptor_step(plane_a * kPlaneBytes + depth_step(!AlongA, k)), onto || k > 0);
                ptx::commit_multiplies();
            };
            ptx::fence_accumulators(acc);
            multiply(1, 0, false);
            multiply(0, 1, true);
            ptx::wait_multiplies<0>(acc);
#pragma unroll
            for (int i = 0; i < kSums; ++i)
                acc[i] *= 1.0f / (1 << kLowPlaneBits);
            ptx::fence_accumulators(acc);
            multiply(0, 0, true);
            ptx::wait_multiplies<0>(acc);
            if (lane == 0)
                ptx::arrive(shared.empty + stage);
#pragma unroll
            for (int i = 0; i < kSums; ++i)
                total[i] = fmaf(acc[i], factor, total[i]);
        }

        // store, once all groups are done with the stages: whole columns, by way of shared memory
        ptx::meet<kThreads>(kEndBarrier); // rows that do not fit are marked
        const int32_t *const unfit_columns = shared.notes[0].unfit, *const unfit_rows = shared.notes[1].unfit;
        const bool fits = !ptx::any_of_threads<256>(kPairBarrier, (unfit_columns[thread] | unfit_rows[thread]) != 0);
        constexpr int kPitch = kSide + 8; // so that no two lanes of a half warp meet a bank
        float *const smem_sums = reinterpret_cast<float *>(shared.planes);
#pragma unroll
        for (int i = 0; i < kSums; i += 2)
            *reinterpret_cast<float2 *>(smem_sums + (group * 64 + fragment_row(thread, i)) * kPitch +
                                        fragment_column(thread, i)) = float2{total[i], total[i + 1]};
        ptx::meet<256>(kPairBarrier);
        const int row = lane * 4, warp = group * 4 + thread / 32;
        float *const c = problem.c.matrix(int64_t{place.range} * task.batch + place.batch) + place.row + row +
                         place.column * problem.c.ld;
        bool stored[4], whole = reinterpret_cast<uintptr_t>(c) % 16 == 0 && problem.c.ld % 4 == 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            stored[i] = place.row + row + i < task.rows_a && unfit_rows[row + i] == 0;
            whole &= stored[i];
        }
        const auto load = [&](const float *from) {
            if (whole)
                return epilogue.load4(from);
            return float4{stored[0] ? epilogue.load(from) : 0.0f, stored[1] ? epilogue.load(from + 1) : 0.0f,
                          stored[2] ? epilogue.load(from + 2) : 0.0f, stored[3] ? epilogue.load(from + 3) : 0.0f};
        };
        const auto store = [&](float *to, const float4 &sums, const float4 &old) {
            if (whole) {
                epilogue.store4(to, sums, old);
                return;
            }
            if (stored[0])
                epilogue.store(to, sums.x, old.x);
            if (stored[1])
                epilogue.store(to + 1, sums.y, old.y);
            if (stored[2])
                epilogue.store(to + 2, sums.z, old.z);
            if (stored[3])
                epilogue.store(to + 3, sums.w, old.w);
        };
        constexpr int kTogether = 4; // loads of C on their way
#pragma unroll 1
        for (int first = warp; first < kSide; first += 8 * kTogether) {
            float4 old[kTogether];
            bool exists[kTogether];
#pragma unroll
            for (int i = 0; i < kTogether; ++i) {
                const int column = first + i * 8;
                exists[i] = place.column + column < task.rows_b && unfit_columns[column] == 0;
                if (exists[i])
                    old[i] = load(c + column * problem.c.ld);
            }
#pragma unroll
            for (int i = 0; i < kTogether; ++i)
                if (exists[i]) {
                    const int column = first + i * 8;
                    store(c + column * problem.c.ld,
                          *reinterpret_cast<const float4 *>(smem_sums + column * kPitch + row), old[i]);
                }
        }
        if (!fits) {
            ptx::meet<256>(kPairBarrier); // all have read the sums
            multiply_unfit_item<!AlongA, !AlongB>(problem, task, shared.notes);
        }
    }
#endif
}

// ---- the host's part ------------------------------------------------------------------------------------------------

constexpr int64_t kLeastDepth = 32, kMostExtent = int64_t{1} << 30;

// What the multiply and adding need.
double seconds(const Task &task, const Device &device, int ranges, int chunks) {
    constexpr double kChunkSeconds = 2.2e-6, kItemSeconds = 4e-6, kAddSeconds = 3e-6;
    const double tiles = static_cast<double>(task.tiles_m) * task.tiles_n * task.batch;
    const double outputs = 4.0 * task.batch * task.rows_a * task.rows_b;
    const double added = ranges > 1 ? kAddSeconds + 2 * outputs * ranges / device.bandwidth : 0.0;
    return std::ceil(tiles * ranges / device.multiprocessors) * (chunks * kChunkSeconds + kItemSeconds) + added;
}

Task task_of(const Problem &problem, const Device &device) {
    Task task = {};
    task.alpha = problem.alpha;
    task.least_exponent = least_plane_exponent(Scheme::f16x2, problem.k);
    task.rows_a = static_cast<int>(problem.m), task.rows_b = static_cast<int>(problem.n);
    task.depth = static_cast<int>(problem.k), task.batch = static_cast<int>(problem.batch);
    task.tiles_m = (task.rows_a + kSide - 1) / kSide, task.tiles_n = (task.rows_b + kSide - 1) / kSide;
    const Ranges ranges =
        least_ranges(task.all_chunks(), [&](int count, int chunks) { return seconds(task, device, count, chunks); });
    task.ranges = ranges.count, task.chunks = ranges.chunks;
    return task;
}

const char *refuses(const Problem &problem, const Device &) {
    if (problem.k < kLeastDepth)
        return "k is below 32, too short for the error of split operands";
    constexpr double kMostTiles = 1 << 20; // and ranges times as many, in 32 bits
    if (std::max({problem.m, problem.n, problem.k, problem.batch}) > kMostExtent ||
        (static_cast<double>(problem.m) / kSide + 1) * (static_cast<double>(problem.n) / kSide + 1) *
                static_cast<double>(problem.batch) >
            kMostTiles)
        return "there are too many tiles for 32 bits";
    return nullptr;
}

size_t workspace(const Problem &problem, const Device &device) {
    const int ranges = task_of(problem, device).ranges;
    return ranges > 1 ? Partials::of(problem, ranges, nullptr).bytes() : 0;
}

// Whole waves of items, each 64 of k after 64, then the ranges are added.
Work work(const Problem &problem, const Device &device) {
    const Task task = task_of(problem, device);
    const auto items = static_cast<double>(task.items());
    Work work;
    work.move(problem);
    work.waves = std::ceil(items / device.multiprocessors);
    work.blocks = items;
    work.steps = static_cast<double>(task.chunks) * kDepth;
    work.flops = 2.0 * kSide * kSide * work.steps;
    work.bytes = 4.0 * 2 * kSide * work.steps;
    const auto has_map = [&](const Operand &operand) {
        return !operand.array && operand.ld % 4 == 0 && (problem.batch == 1 || operand.stride % 4 == 0);
    };
    if (!has_map(problem.a) || !has_map(problem.b))
        work.narrow = 2 * kSide * work.steps;
    work.trips = work.narrow / 128; // threads that load where the engine does not
    if (task.ranges == 1 && problem.c.ld % 4 != 0)
        work.single = std::min(1.0, task.rows_a / (1.0 * kSide)) * std::min(1.0, task.rows_b / (1.0 * kSide));
    if (task.ranges > 1) {
        work.second_kernels = 1; // that adds
        work.partial_bytes = work.written * task.ranges;
        work.pieces = task.ranges;
    }
    return work;
}

Status launch_wgmma_deep(const Problem &problem, const Launch &launch_on) {
    Task task = task_of(problem, *launch_on.device);
    const bool along_a = problem.transa == Op::T, along_b = problem.transb == Op::N;
    CUtensorMap map_a = {}, map_b = {};
    const auto lines = [&](int rows, bool along) { return along ? rows : task.depth; };
    const auto map = [&](const Operand &operand, int rows, bool along, CUtensorMap *target) {
        return operand_map(operand, along ? task.depth : rows, lines(rows, along), task.batch, along ? kSide : kDepth,
                           target);
    };
    task.in_boxes = operand_has_map(problem.a, lines(task.rows_a, along_a), task.batch) &&
                    operand_has_map(problem.b, lines(task.rows_b, along_b), task.batch);
    if (task.in_boxes) {
        PYBLAS_TRY(map(problem.a, task.rows_a, along_a, &map_a));
        PYBLAS_TRY(map(problem.b, task.rows_b, along_b, &map_b));
    }
    const Partials partials = Partials::of(problem, task.ranges, launch_on.workspace);
    const Problem target = before_adding(problem, partials);
    const auto start = [&](auto kernel) {
        PYBLAS_TRY(allow_shared<kernel.value>(kSharedBytes));
        return launch<kernel.value>({task.items(), kThreads, kSharedBytes, launch_on.stream, true}, target, task, map_a,
                                    map_b);
    };
    using std::integral_constant;
    using Kernel = decltype(&wgmma_deep<false, false>);
    PYBLAS_TRY(along_a   ? along_b ? start(integral_constant<Kernel, &wgmma_deep<true, true>>{})
                                   : start(integral_constant<Kernel, &wgmma_deep<true, false>>{})
                 : along_b ? start(integral_constant<Kernel, &wgmma_deep<false, true>>{})
                         : start(integral_constant<Kernel, &wgmma_deep<false, false>>{}));
    return task.ranges > 1 ? add_partials_by_quads(problem, partials, launch_on) : kSuccess;
}

constexpr Kernel kTable[] = {
    {"wgmma_deep_128x128x64", "wgmma_deep", Engine::gpu, modes(ComputeMode::fp32, ComputeMode::tf32), 90, true, refuses,
     workspace, nullptr, launch_wgmma_deep, false, Footprint{kThreads, 1, kSharedBytes}, work},
};

} // namespace

KernelRows wgmma_deep_rows() {
    return rows(kTable);
}

} // namespace pyblas
