// wgmma_skinny: one side of C is short, so that packing the large operand would cost more than the product. Only the
// small operand is packed; the large one is split on its way, in registers, which the multiply reads as well as shared
// memory.
//
//     large, FP32 --copies--> shared memory --> registers: hi, lo --.
//                                                                    wgmma --> sums of a range of k --> C
//     small --pack--> planes --copies--> shared memory -------------'
//
// Each 64 of k of a row of the large operand, and of 32 rows of the small one, are scaled by themselves, and their sums
// scaled back where they leave the tensor cores. 128 rows of the large operand in a block, two warpgroups that multiply
// by turns and one that copies: 384 threads, up to 232 registers and 212 KB. The next 64 of k are read while these are
// multiplied. Where tiles are few k is cut into ranges, whose sums a second kernel adds in order. What planes cannot
// hold is left to FP32 multiply-adds (unfit.cuh) when all items of a block are stored. Refuses k below 32, as wgmma
// does, and sizes beyond 2^30.
#include "cost.hpp"
#include "pack.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include <cuda_fp16.h>

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

constexpr int kRows = 128, kGroups = 2, kGroupRows = kRows / kGroups, kDepth = kPlaneDepth;
constexpr int kCopying = kGroups; // the group that does not multiply
constexpr int kThreads = (kCopying + 1) * 128;
constexpr int kTurnBarrier = 3; // and the next; before them one for each group that multiplies, and the block's
constexpr int kEndBarrier = 5;
constexpr double kFlopsWhereMeasured = 128 * 2 * 1.98e9; // of one multiprocessor of the H200

// Times this, a high half is that of a product with a low one.
constexpr uint32_t kLowPlaneWeight = 0x10001000; // twice 2^-11

// Of the large operand: chunk maxima in these bounds fit, so that no sum of scaled numbers leaves the range of floats.
constexpr int kLeastTop = -46, kMostTop = 46;

// BY rows of the small operand beside 128 of the large one.
template <int BY_, int Stages_>
struct SkinnyTile {
    static constexpr int BY = BY_, kStages = Stages_, kSums = BY / 2;
    static constexpr int kLargeBytes = kRows * kDepth * 4, kPlaneBytes = BY * kSwizzledRowBytes;
    static constexpr int kSharedBytes =
        kSwizzleAtomBytes + kStages * (2 * kPlaneBytes + kLargeBytes + 16 + BY * 4) + kGroups * (kGroupRows + BY) * 4;
    static constexpr int kCopyRegisters = 40, kMultiplyRegisters = 232;
    static_assert(BY % 32 == 0 && BY <= unfit::kSide && kRows == unfit::kSide, "unfit rows are taken by tiles");
    static_assert(kGroups * 128 == unfit::kThreads, "and by two groups");
    static_assert(kSharedBytes <= 227 * 1024, "what a block can have");
};

// The small operand: two planes as packing writes them for wgmma, but contiguous along k whatever it was, and with a
// power of two for each 64 of k of 32 rows, which is negative for a row that does not fit.
struct SmallPlanes {
    uint16_t *data; // [batch][plane][row][ld]
    float *powers;  // [batch][64 of k][padded]
    int64_t rows, padded, depth, batch;

    PYBLAS_HOST_DEVICE int64_t ld() const { return (depth + kDepth - 1) / kDepth * kDepth; }
    PYBLAS_HOST_DEVICE int64_t chunks() const { return ld() / kDepth; }
    PYBLAS_HOST_DEVICE int64_t shared_batch(int64_t index) const { return batch == 1 ? 0 : index; }
};

// What a launch works on. x counts rows of the large operand, y those of the small one. An item is a range of k of one
// tile; neighbours share rows of the large operand.
struct Task {
    Scalar alpha;
    Operand large, small;
    bool large_is_a, contiguous_k, small_contiguous_k;
    bool in_boxes;       // the copy engine can bring the large operand
    int least_exponent;  // beside a chunk's exponent; smaller magnitudes do not fit
    uint32_t plain_bits; // of the FP16 number from which on the low half needs no scale
    int x_extent, y_extent, depth;
    int side_y;                                         // of a tile
    int tiles_x, tiles_y, batch, ranges, chunks, items; // chunks of a range
    SmallPlanes planes;
    int32_t *unfit; // [item][row of either operand], the large one's first: kUnfitRow where one does not fit

    struct Place {
        int x0, y0, range, batch;
    };
    __device__ __forceinline__ Place place(int item) const {
        const int tile_y = item % tiles_y, rest = item / tiles_y, tile_x = rest % tiles_x, others = rest / tiles_x;
        return {tile_x * kRows, tile_y * side_y, others % ranges, others / ranges};
    }
};

#if PYBLAS_HAS_WGMMA
// 64 of k of the large operand in shared memory, as the copy engine writes it: boxes of 32 floats that follow each
// other in memory, swizzled.
template <bool ContiguousK>
struct Boxes {
    static constexpr int kLine = ContiguousK ? kDepth : kRows, kLines = ContiguousK ? kRows : kDepth;
    static constexpr int kCount = kLine / 32, kBytes = kLines * kSwizzledRowBytes;

    // By one thread.
    static __device__ __forceinline__ void bring(char *tile, const void *map, int row, int k, int batch,
                                                 uint64_t *barrier) {
#pragma unroll
        for (int i = 0; i < kCount; ++i)
            ptx::copy_box_once(tile + i * kBytes, map, (ContiguousK ? k : row) + i * 32, ContiguousK ? row : k, 0,
                               batch, barrier);
    }

    // By 128 threads, where the copy engine cannot: the same, with zeros past the end.
    static __device__ __forceinline__ void copy(char *tile, const float *source, int64_t ld, int rows_left, int k_left,
                                                int thread) {
        const int along_left = ContiguousK ? k_left : rows_left, lines_left = ContiguousK ? rows_left : k_left;
        const bool wide = reinterpret_cast<uintptr_t>(source) % 16 == 0 && ld % 4 == 0 &&
                          (along_left >= kLine || along_left % 4 == 0);
        const auto copy = [&](auto width) {
            constexpr int kWidth = decltype(width)::value, kAcross = kLine / kWidth, kStep = 128 / kAcross;
            const int along = thread % kAcross * kWidth;
#pragma unroll 4
            for (int line = thread / kAcross; line < kLines; line += kStep) {
                const bool inside = line < lines_left && along < along_left;
                const int to = along / 32 * kBytes + swizzled(line * kSwizzledRowBytes + along % 32 * 4);
                ptx::copy_async<kWidth * 4, true>(reinterpret_cast<float *>(tile + to),
                                                  inside ? source + line * ld + along : source, inside);
            }
        };
        if (wide)
            copy(std::integral_constant<int, 4>{});
        else
            copy(std::integral_constant<int, 1>{});
    }
};

// Of a power of two that is a normal float, and so its inverse.
__device__ __forceinline__ float inverse(float power) {
    return __uint_as_float((254u << 23) - __float_as_uint(power));
}

// Products of two pairs of FP16 numbers, rounded to the nearest.
__device__ __forceinline__ uint32_t times_f16(uint32_t pair, uint32_t factors) {
    __half2 first, second;
    memcpy(&first, &pair, sizeof pair);
    memcpy(&second, &factors, sizeof factors);
    const __half2 product = __hmul2(first, second);
    uint32_t word;
    memcpy(&word, &product, sizeof word);
    return word;
}

// Whether all magnitudes of a fragment are at least this one.
__device__ __forceinline__ bool all_from(const uint32_t (&words)[kDepth / 16][4], uint32_t bound) {
    __half2 least[2];
#pragma unroll
    for (int i = 0; i < kDepth / 4; ++i) {
        __half2 pair;
        memcpy(&pair, &words[i / 4][i % 4], sizeof pair);
        least[i % 2] = i < 2 ? __habs2(pair) : __hmin2(least[i % 2], __habs2(pair));
    }
    const __half2 both = __hmin2(least[0], least[1]);
    uint32_t bits;
    memcpy(&bits, &both, sizeof bits);
    return (bits & 0xffff) >= bound && bits >> 16 >= bound; // of numbers that are not negative, bits compare as they do
}

// The low half counts 2^-11, or, plain, 1.
template <bool Plain>
__device__ __forceinline__ void split_pair(const float2 &pair, float scale, uint32_t *high, uint32_t *low) {
    constexpr float kLow = Plain ? 1 : 1 << kLowPlaneBits;
    const float x = pair.x * scale, y = pair.y * scale;
    *high = ptx::f16_pair(x, y);
    const float2 taken = ptx::floats_of_f16_pair(*high);
    *low = ptx::f16_pair((x - taken.x) * kLow, (y - taken.y) * kLow);
}

// Words of a fragment for each 16 of k.
using Fragment = uint32_t[kDepth / 16][4];

// What is known of a row: its power of two, which brings the largest of 64 of k to [2^14, 2^15), and whether all fit.
struct Measure {
    float power;
    bool fits;

    // Bits of the least and of the largest magnitude that a chunk maximum may have.
    static constexpr uint32_t kLeast = (kLeastTop + 127) << 23, kMost = ((kMostTop + 128) << 23) - 1;

    // Of the largest magnitude. One out of bounds gets the power of the bound, and its row does not fit.
    __device__ __forceinline__ static float power_of(uint32_t most) {
        return __uint_as_float((min(max(most, kLeast), kMost) & 0x7f800000) - (14 << 23));
    }

    // Bits of the largest magnitude, and of the least that is not zero, less one.
    __device__ __forceinline__ static Measure of(uint32_t most, uint32_t least, int least_exponent) {
        const float power = power_of(most);
        return {power, (most == 0 || most >= kLeast) && most <= kMost &&
                           least >= __float_as_uint(power) + (static_cast<uint32_t>(least_exponent) << 23) - 1};
    }
};

// A thread's part of 64 of k: two rows, for each 16 of k the four pairs of a fragment.
struct Chunk {
    float2 values[kDepth / 16][4];

    // row is a thread's first: eight lines, or the pieces of 16 bytes of one, lie in different banks.
    template <bool ContiguousK>
    __device__ __forceinline__ void read(const char *tile, int row, int lane) {
        using Layout = Boxes<ContiguousK>;
        const int pair = lane % 4;
        if constexpr (ContiguousK) {
            const char *const line = tile + row * kSwizzledRowBytes + pair % 2 * 8;
            const int turn = pair / 2 ^ row % 8;
#pragma unroll
            for (int step = 0; step < kDepth / 16; ++step)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    values[step][i] = *reinterpret_cast<const float2 *>(line + step / 2 * Layout::kBytes +
                                                                        i % 2 * 8 * kSwizzledRowBytes +
                                                                        ((step % 2 * 4 + i / 2 * 2) ^ turn) * 16);
        } else {
            const char *const corner = tile + row / 32 * Layout::kBytes + pair * 2 * kSwizzledRowBytes + row % 4 * 4;
            const int turn = row % 32 / 4 ^ pair * 2;
#pragma unroll
            for (int step = 0; step < kDepth / 16; ++step)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const char *const lines = corner + (step * 16 + i / 2 * 8) * kSwizzledRowBytes;
                    values[step][i] = {
                        *reinterpret_cast<const float *>(lines + (i % 2 * 2 ^ turn) * 16),
                        *reinterpret_cast<const float *>(lines + kSwizzledRowBytes + (i % 2 * 2 ^ turn ^ 1) * 16)};
                }
        }
    }

    // The largest magnitude of each row. A NaN is none, and makes all of the row's results NaN by itself.
    __device__ __forceinline__ void measure(uint32_t (&most)[2]) const {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            float largest = 0.0f;
#pragma unroll
            for (int step = 0; step < kDepth / 16; ++step)
#pragma unroll
                for (int i = row; i < 4; i += 2)
                    largest = fmaxf(fmaxf(largest, fabsf(values[step][i].x)), fabsf(values[step][i].y));
#pragma unroll
            for (int flip = 1; flip < 4; flip *= 2)
                largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, flip));
            most[row] = __float_as_uint(largest);
        }
    }

    // The least magnitude of each row that is not zero, less one.
    __device__ __forceinline__ void find_least(uint32_t (&least)[2]) const {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            least[row] = 0xffffffff;
            const auto include = [&](float value) {
                least[row] = min(least[row], (__float_as_uint(value) & 0x7fffffff) - 1);
            };
#pragma unroll
            for (int step = 0; step < kDepth / 16; ++step)
#pragma unroll
                for (int i = row; i < 4; i += 2)
                    include(values[step][i].x), include(values[step][i].y);
#pragma unroll
            for (int flip = 1; flip < 4; flip *= 2)
                least[row] = min(least[row], __shfl_xor_sync(0xffffffff, least[row], flip));
        }
    }

    template <bool Plain>
    __device__ __forceinline__ void split(const float (&powers)[2], Fragment *high, Fragment *low) const {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            const float scale = inverse(powers[row]);
#pragma unroll
            for (int step = 0; step < kDepth / 16; ++step)
#pragma unroll
                for (int i = row; i < 4; i += 2)
                    split_pair<Plain>(values[step][i], scale, &(*high)[step][i], &(*low)[step][i]);
        }
    }
};

// Pairs of sums, neighbours along y, to C or workspace.
struct PairStore {
    const Epilogue &epilogue;
    float *c; // of the thread's first row and column
    int64_t step_x, step_y;
    bool pairs; // C allows them

    __device__ __forceinline__ float2 load(int64_t x, int64_t y, bool first, bool second) const {
        const float *const from = c + x * step_x + y * step_y;
        if (pairs && first && second)
            return epilogue.load2(from);
        return {first ? epilogue.load(from) : 0.0f, second ? epilogue.load(from + step_y) : 0.0f};
    }
    __device__ __forceinline__ void store(int64_t x, int64_t y, bool first, bool second, const float2 &sums,
                                          const float2 &old) const {
        float *const to = c + x * step_x + y * step_y;
        if (pairs && first && second) {
            epilogue.store2(to, sums, old);
            return;
        }
        if (first)
            epilogue.store(to, sums.x, old.x);
        if (second)
            epilogue.store(to + step_y, sums.y, old.y);
    }
};

// What the items of this block leave out, by 256 threads. A call, so that the kernel need not hold it in its registers.
template <bool ContiguousM, bool ContiguousN>
__device__ __noinline__ void multiply_unfit_items(const Problem &problem, const Task &task) {
#pragma unroll 1
    for (int item = static_cast<int>(blockIdx.x); item < task.items; item += static_cast<int>(gridDim.x)) {
        const Task::Place at = task.place(item);
        const Problem part_of_item = range_of(problem, at.range, int64_t{task.chunks} * kDepth, task.batch);
        // Marks are counted by rows of C, those of an item are there from its first row on.
        const int32_t *const unfit_rows = task.unfit + int64_t{item} * (kRows + task.side_y);
        const unfit::Marks large = {unfit_rows - at.x0, 0}, small = {unfit_rows + kRows - at.y0, 0};
        const int x_left = part(task.x_extent - at.x0, kRows), y_left = part(task.y_extent - at.y0, task.side_y);
        const unfit::Marks &rows = task.large_is_a ? large : small, &columns = task.large_is_a ? small : large;
        const unfit::Place place = task.large_is_a ? unfit::Place{at.x0, at.y0, at.batch, x_left, y_left}
                                                   : unfit::Place{at.y0, at.x0, at.batch, y_left, x_left};
        unfit::multiply_place<ContiguousM, ContiguousN>(
            part_of_item, Epilogue(part_of_item), place, rows, columns,
            unfit::count_unfit(rows, place.batch, place.row, place.rows),
            unfit::count_unfit(columns, place.batch, place.column, place.columns));
    }
}

// An operand that is contiguous along k is not along m, or n.
template <bool LargeContiguousK>
__device__ __forceinline__ void multiply_unfit_items(const Problem &problem, const Task &task) {
    if (task.large_is_a)
        task.small_contiguous_k ? multiply_unfit_items<!LargeContiguousK, false>(problem, task)
                                : multiply_unfit_items<!LargeContiguousK, true>(problem, task);
    else
        task.small_contiguous_k ? multiply_unfit_items<false, !LargeContiguousK>(problem, task)
                                : multiply_unfit_items<true, !LargeContiguousK>(problem, task);
}
#endif

// The small operand into planes: 32 rows by so many times 64 of k for each block, eight threads for a row. The 32 rows
// have one power of two for each 64 of k. What is contiguous across k is turned in shared memory.
constexpr int kPackers = 256, kPackedRows = 32, kPackWarps = kPackers / 32;
constexpr int kManyChunks = 4; // of 64 of k, where there are blocks enough

template <bool ContiguousK, int Chunks>
__global__ void __launch_bounds__(kPackers) pack_small(__grid_constant__ const Task task) {
#if PYBLAS_HAS_WGMMA
    constexpr int kEach = kDepth * kPackedRows / kPackers; // numbers of a thread in each chunk
    __shared__ float smem[ContiguousK ? 1 : Chunks * kDepth][kPackedRows + 1];
    __shared__ uint32_t smem_most[Chunks][kPackWarps];
    // place
    // The multiply may read the large operand before this kernel has ended, but not before those ahead have.
    ptx::wait_for_predecessors();
    ptx::launch_dependents();
    const SmallPlanes &planes = task.planes;
    const int64_t tiles = planes.padded / kPackedRows, chunks = planes.chunks(), number = block_number();
    const int64_t parts = (chunks + Chunks - 1) / Chunks;
    const int64_t batch = number / (tiles * parts), inside = number - batch * tiles * parts;
    const int64_t chunk0 = inside / tiles * Chunks, row0 = inside % tiles * kPackedRows;
    if (batch >= planes.batch || task.alpha.load() == 0.0f)
        return;
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
    const int own_row = thread / 8, own_k = thread % 8 * kEach;
    const bool exists = row0 + own_row < planes.rows;

    // load
    const float *const matrix = task.small.matrix(batch);
    const int64_t ld = task.small.ld;
    float values[Chunks][kEach];
    if constexpr (ContiguousK) {
        const float *const line = matrix + (row0 + own_row) * ld;
        const bool wide = exists && reinterpret_cast<uintptr_t>(line) % 16 == 0 && planes.depth % 4 == 0;
#pragma unroll
        for (int i = 0; i < Chunks * kEach; i += 4) {
            const int64_t k = (chunk0 + i / kEach) * kDepth + own_k + i % kEach, left = exists ? planes.depth - k : 0;
            float4 quad = {0.0f, 0.0f, 0.0f, 0.0f};
            if (wide && left > 0)
                quad = *reinterpret_cast<const float4 *>(line + k);
            else if (left > 0)
                quad = {line[k], left > 1 ? line[k + 1] : 0.0f, left > 2 ? line[k + 2] : 0.0f,
                        left > 3 ? line[k + 3] : 0.0f};
            float *const four = &values[i / kEach][i % kEach];
            four[0] = quad.x, four[1] = quad.y, four[2] = quad.z, four[3] = quad.w;
        }
    } else {
#pragma unroll
        for (int i = 0; i < Chunks * kEach; ++i) {
            const int64_t k = chunk0 * kDepth + warp + i * kPackWarps;
            values[i / kEach][i % kEach] =
                row0 + lane < planes.rows && k < planes.depth ? matrix[row0 + lane + k * ld] : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < Chunks * kEach; ++i)
            smem[warp + i * kPackWarps][lane] = values[i / kEach][i % kEach];
        __syncthreads();
#pragma unroll
        for (int i = 0; i < Chunks * kEach; ++i)
            values[i / kEach][i % kEach] = smem[i / kEach * kDepth + own_k + i % kEach][own_row];
    }

    // measure: the largest of a row, and of all rows that fit by themselves, as an infinity is no other row's affair
    uint32_t least[Chunks];
    bool row_fits[Chunks];
#pragma unroll
    for (int chunk = 0; chunk < Chunks; ++chunk) {
        uint32_t most = 0;
        least[chunk] = 0xffffffff;
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            const uint32_t magnitude = __float_as_uint(values[chunk][i]) & 0x7fffffff;
            most = max(most, magnitude);
            least[chunk] = min(least[chunk], magnitude - 1);
        }
#pragma unroll
        for (int flip = 1; flip < 8; flip *= 2) {
            most = max(most, __shfl_xor_sync(0xffffffff, most, flip));
            least[chunk] = min(least[chunk], __shfl_xor_sync(0xffffffff, least[chunk], flip));
        }
        row_fits[chunk] = Measure::of(most, least[chunk], task.least_exponent).fits;
        most = __reduce_max_sync(0xffffffff, row_fits[chunk] ? most : 0);
        if (lane == 0)
            smem_most[chunk][warp] = most;
    }
    __syncthreads();

    // split and store
    uint16_t *const target = planes.data + (batch * 2 * planes.rows + row0 + own_row) * planes.ld() + own_k;
#pragma unroll
    for (int chunk = 0; chunk < Chunks; ++chunk) {
        if (chunk0 + chunk >= chunks)
            break;
        uint32_t most = 0;
#pragma unroll
        for (int i = 0; i < kPackWarps; ++i)
            most = max(most, smem_most[chunk][i]);
        const Measure measure = Measure::of(most, least[chunk], task.least_exponent);
        if (own_k == 0)
            planes.powers[(batch * chunks + chunk0 + chunk) * planes.padded + row0 + own_row] =
                row_fits[chunk] && measure.fits ? measure.power : -measure.power;
        if (!exists)
            continue;
        uint32_t high[4], low[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
            split_pair<false>({values[chunk][2 * i], values[chunk][2 * i + 1]}, inverse(measure.power), high + i,
                              low + i);
        uint16_t *const words = target + (chunk0 + chunk) * kDepth;
        *reinterpret_cast<uint4 *>(words) = uint4{high[0], high[1], high[2], high[3]};
        *reinterpret_cast<uint4 *>(words + planes.rows * planes.ld()) = uint4{low[0], low[1], low[2], low[3]};
    }
#endif
}

// The problem's C is workspace where there are several ranges: products of the batch one after another, range by range.
template <class Tile, bool ContiguousK>
__global__ void __launch_bounds__(kThreads, 1)
    wgmma_skinny(__grid_constant__ const Problem problem, __grid_constant__ const Task task,
                 __grid_constant__ const CUtensorMap map_large, __grid_constant__ const CUtensorMap map_small) {
#if PYBLAS_HAS_WGMMA
    // place
    constexpr int kStages = Tile::kStages;
    const int thread = static_cast<int>(threadIdx.x) % 128;
    const int group = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 128, 0);
    char *const memory = reinterpret_cast<char *>(dynamic_shared());
    char *const planes = memory + (-static_cast<int>(ptx::shared_address(memory)) & (kSwizzleAtomBytes - 1));
    char *const tiles = planes + kStages * 2 * Tile::kPlaneBytes;
    float *const small_powers = reinterpret_cast<float *>(tiles + kStages * Tile::kLargeBytes);
    int *const unfit_rows = reinterpret_cast<int *>(small_powers + kStages * Tile::BY);
    int *const unfit_columns = unfit_rows + kGroups * kGroupRows;
    uint64_t *const full = reinterpret_cast<uint64_t *>(unfit_columns + kGroups * Tile::BY);
    uint64_t *const empty = full + kStages;
    if (threadIdx.x == 0) {
        ptx::prefetch_tensor_map(&map_large);
        ptx::prefetch_tensor_map(&map_small);
        for (int stage = 0; stage < kStages; ++stage) {
            ptx::init_barrier(full + stage, task.in_boxes ? 1 : 1 + 128);
            ptx::init_barrier(empty + stage, kGroups * 4);
        }
        ptx::publish_barriers();
    }
    __syncthreads();
    ptx::launch_dependents();
    if (group != kCopying) // whose first copies of the large operand need not wait
        ptx::wait_for_predecessors();
    const Epilogue epilogue(problem);
    const bool whole = task.ranges == 1, reads = task.alpha.load() != 0.0f;
    if (epilogue.idle() || !(whole || reads)) {
        ptx::wait_for_predecessors();
        return;
    }
    const int all = reads ? (task.depth + kDepth - 1) / kDepth : 0;
    // The same for all lanes, as the compiler is to know.
    const auto chunks_of = [&](const Task::Place &place) {
        return __shfl_sync(0xffffffff, min(task.chunks, all - place.range * task.chunks), 0);
    };
    const int first_item = static_cast<int>(blockIdx.x), next_item = static_cast<int>(gridDim.x);

    if (group == kCopying) {
        ptx::give_registers_back<Tile::kCopyRegisters>();
        // load
        const auto bring_large = [&](const Task::Place &place, int chunk, int stage) {
            const int k = (place.range * task.chunks + chunk) * kDepth;
            ptx::arrive_and_expect(full + stage,
                                   2 * Tile::kPlaneBytes + Tile::BY * 4 + (task.in_boxes ? Tile::kLargeBytes : 0));
            if (task.in_boxes)
                Boxes<ContiguousK>::bring(tiles + stage * Tile::kLargeBytes, &map_large, place.x0, k,
                                          task.large.stride == 0 ? 0 : place.batch, full + stage);
        };
        // Where boxes are brought one warp will do, and others must not wait beside it: nothing keeps a warp from
        // falling behind by two phases of a barrier, which look like none.
        if (task.in_boxes && __shfl_sync(0xffffffff, thread / 32, 0) != 0)
            return;
        // All stages are empty at first.
        const Task::Place first_place = task.place(first_item);
        const int first_chunks = min(chunks_of(first_place), kStages);
        if (thread == 0)
            for (int chunk = 0; chunk < first_chunks; ++chunk)
                bring_large(first_place, chunk, chunk);
        __syncwarp();
        ptx::wait_for_predecessors();
        int stage = 0, ahead = first_chunks; // of chunks, whose large part is on its way
        uint32_t parity = 1;
        for (int item = first_item; item < task.items; item += next_item) {
            const Task::Place place = task.place(item);
            const int chunks = chunks_of(place);
            for (int chunk = 0; chunk < chunks; ++chunk) {
                const int k = (place.range * task.chunks + chunk) * kDepth;
                ptx::wait(empty + stage, parity);
                if (thread == 0) {
                    if (ahead <= 0)
                        bring_large(place, chunk, stage);
                    const int small_batch = static_cast<int>(task.planes.shared_batch(place.batch));
#pragma unroll
                    for (int plane = 0; plane < 2; ++plane)
                        ptx::copy_box(planes + (stage * 2 + plane) * Tile::kPlaneBytes, &map_small, k, place.y0, plane,
                                      small_batch, full + stage);
                    ptx::copy_in_bulk(small_powers + stage * Tile::BY,
                                      task.planes.powers +
                                          (small_batch * task.planes.chunks() + k / kDepth) * task.planes.padded +
                                          place.y0,
                                      Tile::BY * 4, full + stage);
                }
                __syncwarp(); // the lane that copies does not run ahead of those that wait with it
                --ahead;
                if (!task.in_boxes) {
                    const float *const matrix = task.large.matrix(place.batch);
                    Boxes<ContiguousK>::copy(tiles + stage * Tile::kLargeBytes,
                                             ContiguousK ? matrix + place.x0 * task.large.ld + k
                                                         : matrix + place.x0 + k * task.large.ld,
                                             task.large.ld, task.x_extent - place.x0, task.depth - k, thread);
                    ptx::arrive_after_copies(full + stage);
                }
                if (++stage == kStages)
                    stage = 0, parity ^= 1;
            }
        }
        ptx::commit_copies();
        ptx::wait_copies<0>(); // none is on its way when the thread ends
    } else {
        ptx::take_registers<Tile::kMultiplyRegisters>();
        const int thread = ptx::thread_anew() % 128, lane = thread % 32; // kept in registers, of which there are enough
        const uint64_t origin = tile_descriptor(ptx::shared_address(planes));
        const int row = group * kGroupRows + fragment_row(thread, 0);
        int stage = 0;
        uint32_t parity = 0;
        int *const own_unfit_rows = unfit_rows + group * kGroupRows;
        int *const own_unfit_columns = unfit_columns + group * Tile::BY;
        const int own_column = thread % Tile::BY;
        bool all_fit = true;
        Chunk part;
        uint32_t most[2];
        // The floats of a chunk, once they are there. Behind the last there is nothing to wait for, and what is read
        // means nothing.
        const auto read = [&](bool exists) {
            ptx::wait(full + stage, exists ? parity : parity ^ 1);
            part.read<ContiguousK>(tiles + stage * Tile::kLargeBytes, row, lane);
            part.measure(most);
        };
        if (all > 0)
            read(true);
        if (group == 1 && all > 0)
            ptx::arrive_at_pair(kTurnBarrier);
        for (int item = first_item; item < task.items; item += next_item) {
            const Task::Place place = task.place(item);
            const int chunks = chunks_of(place);
            float total[Tile::kSums] = {}, acc[Tile::kSums];
            bool row_fits[2] = {true, true};
            uint32_t greatest[2] = {},
                     smallest[2] = {0xffffffff, 0xffffffff}; // chunk maxima of a row, the latter less one
            float least_column = 1.0f;                       // of powers; not positive, it does not fit

            // multiply
#pragma unroll 1
            for (int chunk = 0; chunk < chunks; ++chunk) {
                const bool last = item + next_item >= task.items && chunk == chunks - 1;
                float powers[2];
#pragma unroll
                for (int side = 0; side < 2; ++side) {
                    powers[side] = Measure::power_of(most[side]);
                    greatest[side] = max(greatest[side], most[side]);
                    smallest[side] = min(smallest[side], most[side] - 1);
                }
                least_column = fminf(least_column, small_powers[stage * Tile::BY + own_column]);
                Fragment high, low, lowered;
                part.split<true>(powers, &high, &low);
#pragma unroll
                for (int i = 0; i < kDepth / 4; ++i)
                    lowered[i / 4][i % 4] = times_f16(high[i / 4][i % 4], kLowPlaneWeight);
                // As the compiler is to know, the same for all lanes.
                const bool plain =
                    !__any_sync(0xffffffff, ptx::any_of_warpgroup(group + 1, !all_from(high, task.plain_bits)));
                uint64_t *const emptied = empty + stage;
                const float *const own_columns = small_powers + stage * Tile::BY;
                const uint64_t plane_high = origin + descriptor_step(stage * 2 * Tile::kPlaneBytes);
                const uint64_t plane_low = plane_high + descriptor_step(Tile::kPlaneBytes);
                const auto multiply = [&](const Fragment &fragment, uint64_t plane, bool onto) {
#pragma unroll
                    for (int step = 0; step < kDepth / 16; ++step)
                        ptx::multiply(acc, fragment[step], plane + descriptor_step(step * 32), onto || step > 0);
                };
                // Groups take turns: a warp that issues multiplies does nothing else until the last has begun, and two
                // groups at it at a time would also split at the same time.
                const auto hand_over = [&] {
                    if (group == 0 || !last)
                        ptx::arrive_at_pair(kTurnBarrier + 1 - group);
                };
                // The next chunk's floats come while this one is multiplied.
                const auto read_next = [&] {
                    if (++stage == kStages)
                        stage = 0, parity ^= 1;
                    read(!last);
                };
                if (plain) {
                    ptx::fence_operand(high);
                    ptx::fence_operand(low);
                    ptx::fence_operand(lowered);
                    ptx::meet<256>(kTurnBarrier + group);
                    ptx::fence_accumulators(acc);
                    multiply(low, plane_high, false);
                    multiply(lowered, plane_low, true);
                    ptx::commit_multiplies();
                    hand_over();
                    multiply(high, plane_high, true);
                    ptx::commit_multiplies();
                    ptx::wait_multiplies<1>();
                    read_next();
                    ptx::wait_multiplies<0>(acc);
                } else {
                    uint32_t least[2];
                    part.find_least(least);
#pragma unroll
                    for (int side = 0; side < 2; ++side)
                        row_fits[side] &= Measure::of(most[side], least[side], task.least_exponent).fits;
                    part.split<false>(powers, &high, &low);
                    ptx::fence_operand(high);
                    ptx::fence_operand(low);
                    ptx::meet<256>(kTurnBarrier + group);
                    ptx::fence_accumulators(acc);
                    multiply(low, plane_high, false);
                    multiply(high, plane_low, true);
                    ptx::commit_multiplies();
                    ptx::wait_multiplies<0>(acc);
                    hand_over();
#pragma unroll
                    for (int i = 0; i < Tile::kSums; ++i)
                        acc[i] *= 1.0f / (1 << kLowPlaneBits);
                    ptx::fence_accumulators(acc);
                    multiply(high, plane_high, true);
                    ptx::commit_multiplies();
                    read_next();
                    ptx::wait_multiplies<0>(acc);
                }
                float columns[Tile::BY / kPackedRows]; // powers of those of a thread's sums, the same for 32 of them
#pragma unroll
                for (int i = 0; i < Tile::BY / kPackedRows; ++i)
                    columns[i] = fabsf(own_columns[i * kPackedRows]);
                __syncwarp(); // all lanes have read their floats and powers
                if (lane == 0)
                    ptx::arrive(emptied);
#pragma unroll
                for (int i = 0; i < Tile::kSums; ++i)
                    total[i] = fmaf(acc[i], powers[i / 2 % 2] * columns[i / (kPackedRows / 2)], total[i]);
            }

            // store
            const bool column_fits = least_column > 0.0f;
#pragma unroll
            for (int side = 0; side < 2; ++side)
                row_fits[side] &= greatest[side] <= Measure::kMost && smallest[side] >= Measure::kLeast - 1;
            if (lane % 4 == 0)
                own_unfit_rows[row % kGroupRows] = !row_fits[0], own_unfit_rows[row % kGroupRows + 8] = !row_fits[1];
            if (thread < Tile::BY)
                own_unfit_columns[thread] = !column_fits;
            const bool fits = !ptx::any_of_warpgroup(group + 1, !row_fits[0] || !row_fits[1] || !column_fits);
            all_fit &= fits;
            int32_t *const unfit_of_item = task.unfit + int64_t{item} * (kRows + Tile::BY);
            if (thread < kGroupRows)
                unfit_of_item[group * kGroupRows + thread] = own_unfit_rows[thread] != 0 ? kUnfitRow : 0;
            if (group == 0 && thread < Tile::BY)
                unfit_of_item[kRows + thread] = column_fits ? 0 : kUnfitRow;
            const int x = place.x0 + row;
            const int64_t product = int64_t{place.range} * task.batch + place.batch;
            const int own_y = place.y0 + lane % 4 * 2;
            const int64_t step_x = task.large_is_a ? 1 : problem.c.ld, step_y = task.large_is_a ? problem.c.ld : 1;
            float *const c = problem.c.matrix(product);
            const bool pairs = !task.large_is_a && reinterpret_cast<uintptr_t>(c) % 8 == 0 && problem.c.ld % 2 == 0;
            const PairStore results{epilogue, c + x * step_x + own_y * step_y, step_x, step_y, pairs};
            const auto pair_of = [&](int i, int side) {
                return float2{total[i * 4 + side * 2], total[i * 4 + side * 2 + 1]};
            };
            constexpr int kTogether = Tile::BY / 8 < 4 ? Tile::BY / 8 : 4; // loads of C on their way
            if (fits && place.x0 + kRows <= task.x_extent && place.y0 + Tile::BY <= task.y_extent) {
#pragma unroll
                for (int first = 0; first < Tile::BY / 8; first += kTogether) {
                    float2 old[kTogether][2];
#pragma unroll
                    for (int i = 0; i < kTogether * 2; ++i)
                        old[i / 2][i % 2] = results.load(i % 2 * 8, (first + i / 2) * 8, true, true);
#pragma unroll
                    for (int i = 0; i < kTogether * 2; ++i)
                        results.store(i % 2 * 8, (first + i / 2) * 8, true, true, pair_of(first + i / 2, i % 2),
                                      old[i / 2][i % 2]);
                }
            } else {
                const bool stored[2] = {x < task.x_extent && row_fits[0], x + 8 < task.x_extent && row_fits[1]};
#pragma unroll
                for (int i = 0; i < Tile::BY / 8; ++i) {
                    bool inside[2];
#pragma unroll
                    for (int j = 0; j < 2; ++j) {
                        const int y = i * 8 + lane % 4 * 2 + j;
                        inside[j] = place.y0 + y < task.y_extent && (fits || own_unfit_columns[y] == 0);
                    }
#pragma unroll
                    for (int side = 0; side < 2; ++side) {
                        const bool first = stored[side] && inside[0], second = stored[side] && inside[1];
                        results.store(side * 8, i * 8, first, second, pair_of(i, side),
                                      results.load(side * 8, i * 8, first, second));
                    }
                }
            }
        }

        // What is left out, once both groups are done with the stages.
        if (ptx::any_of_threads<kGroups * 128>(kEndBarrier, !all_fit))
            multiply_unfit_items<ContiguousK>(problem, task);
    }
#endif
}

// ---- the host's part ------------------------------------------------------------------------------------------------

constexpr int64_t kLeastDepth = 32, kMostExtent = int64_t{1} << 30;

// From which magnitudes on the low half of the large operand needs no scale, as an exponent of two beside the chunk's:
// halves are off by 2^-25 each, and the bound has room for k / 16 u of the element. Normal data has one smaller element
// in 10^5 at k = 128 and in 3 x 10^6 from 4096 on.
int least_plain_exponent(int64_t k) {
    int least = -3;
    for (int64_t depth = 256; depth <= k && least > -8; depth *= 2)
        --least;
    return least;
}

bool contiguous_k(const Problem &problem, bool of_a) {
    return of_a ? problem.transa == Op::T : problem.transb == Op::N;
}

// Of equals, the one that is the harder to pack.
bool large_is_a(const Problem &problem) {
    return problem.m != problem.n ? problem.m > problem.n
                                  : contiguous_k(problem, false) || !contiguous_k(problem, true);
}

// What the multiply needs, or the bytes, and adding the ranges' sums.
template <class Tile>
double seconds(const Task &task, const Device &device, int ranges, int chunks) {
    constexpr double kAddSeconds = 12.5e-6;
    const double items = static_cast<double>(task.tiles_x) * task.tiles_y * task.batch * ranges;
    const double turns = std::ceil(items / device.multiprocessors);
    const double clock = device.fp32_flops / device.multiprocessors / kFlopsWhereMeasured;
    const double multiply = turns * (chunks * Tile::kChunkSeconds + Tile::kItemSeconds) / clock;
    const double read = 4.0 * static_cast<double>(task.batch) * task.x_extent * task.depth / (0.85 * device.bandwidth);
    const double outputs = 4.0 * static_cast<double>(task.batch) * task.x_extent * task.y_extent;
    const double added = ranges > 1 ? kAddSeconds + 2 * outputs * ranges / device.bandwidth : 0.0;
    return std::max(multiply, read + outputs / device.bandwidth) + added;
}

struct Plan {
    Task task;
    Partials partials;
    size_t bytes;
};

template <class Tile>
Plan plan_of(const Problem &problem, const Device &device, void *workspace) {
    Plan plan = {};
    Task &task = plan.task;
    task.alpha = problem.alpha;
    task.large_is_a = large_is_a(problem);
    task.large = task.large_is_a ? problem.a : problem.b;
    task.small = task.large_is_a ? problem.b : problem.a;
    task.contiguous_k = contiguous_k(problem, task.large_is_a);
    task.small_contiguous_k = contiguous_k(problem, !task.large_is_a);
    task.least_exponent = least_plane_exponent(Scheme::f16x2, problem.k);
    task.plain_bits = static_cast<uint32_t>(least_plain_exponent(problem.k) + 15) << 10;
    task.x_extent = static_cast<int>(task.large_is_a ? problem.m : problem.n);
    task.y_extent = static_cast<int>(task.large_is_a ? problem.n : problem.m);
    task.depth = static_cast<int>(problem.k);
    task.batch = static_cast<int>(problem.batch);
    task.tiles_x = (task.x_extent + kRows - 1) / kRows;
    task.side_y = Tile::BY;
    task.tiles_y = (task.y_extent + Tile::BY - 1) / Tile::BY;
    const Ranges ranges = least_ranges((task.depth + kDepth - 1) / kDepth, [&](int count, int chunks) {
        return seconds<Tile>(task, device, count, chunks);
    });
    task.ranges = ranges.count, task.chunks = ranges.chunks;
    task.items = task.tiles_x * task.tiles_y * task.batch * task.ranges;

    char *const base = static_cast<char *>(workspace);
    const auto take = [&](size_t part) {
        char *const start = base ? base + plan.bytes : nullptr;
        plan.bytes += (part + 255) / 256 * 256;
        return start;
    };
    task.unfit = reinterpret_cast<int32_t *>(
        take(static_cast<size_t>(task.items) * static_cast<size_t>(kRows + task.side_y) * sizeof(int32_t)));
    plan.partials = Partials::of(problem, task.ranges, nullptr);
    if (task.ranges > 1)
        plan.partials.data = reinterpret_cast<float *>(take(plan.partials.bytes()));
    SmallPlanes &planes = task.planes;
    const bool one = task.batch == 1 || (!task.small.array && task.small.stride == 0);
    planes.rows = task.y_extent, planes.padded = int64_t{task.tiles_y} * Tile::BY;
    planes.depth = task.depth, planes.batch = one ? 1 : task.batch;
    const auto lines = static_cast<size_t>(planes.batch * planes.chunks());
    planes.powers = reinterpret_cast<float *>(take(lines * static_cast<size_t>(planes.padded) * sizeof(float)));
    planes.data =
        reinterpret_cast<uint16_t *>(take(lines * static_cast<size_t>(planes.rows) * (2 * kDepth * sizeof(uint16_t))));
    return plan;
}

template <class Tile>
const char *refuses(const Problem &problem, const Device &) {
    if (problem.k < kLeastDepth)
        return "k is below 32, too short for the error of split operands";
    constexpr double kMostItems = 1 << 24; // and ranges times as many, in 32 bits
    const auto [least, most] = std::minmax(problem.m, problem.n);
    if (std::max({most, problem.k, problem.batch}) > kMostExtent || static_cast<double>(most / kRows + 1) *
                                                                            static_cast<double>(least / Tile::BY + 1) *
                                                                            static_cast<double>(problem.batch) >
                                                                        kMostItems)
        return "there are too many tiles for 32 bits";
    return nullptr;
}

template <class Tile>
size_t workspace(const Problem &problem, const Device &device) {
    return plan_of<Tile>(problem, device, nullptr).bytes;
}

// Whole waves of items, each 64 of k after 64; the small operand is packed before, and ranges are added afterwards.
template <class Tile>
Work work(const Problem &problem, const Device &device) {
    const Task task = plan_of<Tile>(problem, device, nullptr).task;
    const double items = task.items, ranges = task.ranges;
    Work work;
    work.move(problem);
    work.waves = std::ceil(items / device.multiprocessors);
    work.blocks = std::min<double>(items, device.multiprocessors);
    work.steps = static_cast<double>(task.chunks) * kDepth;
    work.flops = 2.0 * kRows * Tile::BY * work.steps;
    work.bytes = 4.0 * kRows * work.steps;
    const bool has_map =
        !task.large.array && task.large.ld % 4 == 0 && (problem.batch == 1 || task.large.stride % 4 == 0);
    if (!has_map)
        work.narrow = kRows * work.steps;
    work.trips = work.narrow / 128; // threads that copy where the engine does not
    if (task.ranges == 1 && problem.c.ld % 4 != 0)
        work.single = std::min(1.0, task.x_extent / (1.0 * kRows)) * std::min(1.0, task.y_extent / (1.0 * Tile::BY));
    work.second_kernels = 1; // that packs
    work.partial_bytes = 8.0 * static_cast<double>(task.planes.batch) * task.y_extent * task.depth;
    if (task.ranges > 1) {
        work.second_kernels += 1;
        work.partial_bytes += work.written * ranges;
        work.pieces = ranges;
    }
    return work;
}

template <class Tile, bool ContiguousK>
Status start(const Problem &target, const Plan &plan, const Launch &launch_on) {
    CUtensorMap map_large = {}, map_small = {};
    Task task = plan.task;
    task.in_boxes = operand_has_map(task.large, ContiguousK ? task.x_extent : task.depth, task.batch);
    if (task.in_boxes)
        PYBLAS_TRY(ContiguousK ? operand_map(task.large, task.depth, task.x_extent, task.batch, kRows, &map_large)
                               : operand_map(task.large, task.x_extent, task.depth, task.batch, kDepth, &map_large));
    const SmallPlanes &planes = task.planes;
    const int64_t line = planes.ld() * 2;
    PYBLAS_TRY(box_map(CU_TENSOR_MAP_DATA_TYPE_UINT16, planes.data, {planes.depth, planes.rows, 2, planes.batch},
                       {line, planes.rows * line, 2 * planes.rows * line}, kDepth, Tile::BY, &map_small));
    PYBLAS_TRY((allow_shared<wgmma_skinny<Tile, ContiguousK>>(Tile::kSharedBytes)));
    const int64_t blocks = std::min(task.items, launch_on.device->multiprocessors);
    return launch<wgmma_skinny<Tile, ContiguousK>>({blocks, kThreads, Tile::kSharedBytes, launch_on.stream, true},
                                                   target, task, map_large, map_small);
}

template <class Tile>
Status launch_wgmma_skinny(const Problem &problem, const Launch &launch_on) {
    const Plan plan = plan_of<Tile>(problem, *launch_on.device, launch_on.workspace);
    const Partials &partials = plan.partials;
    const SmallPlanes &planes = plan.task.planes;
    const auto pack = [&](auto contiguous_k, auto chunks) {
        const int64_t blocks =
            planes.padded / kPackedRows * ((planes.chunks() + chunks.value - 1) / chunks.value) * planes.batch;
        return launch<pack_small<contiguous_k.value, chunks.value>>({blocks, kPackers, 0, launch_on.stream, true},
                                                                    plan.task);
    };
    const auto pack_chunks = [&](auto chunks) {
        return plan.task.small_contiguous_k ? pack(std::true_type{}, chunks) : pack(std::false_type{}, chunks);
    };
    constexpr int kBusy = 16; // blocks for each multiprocessor
    const bool many = planes.padded / kPackedRows * planes.chunks() * planes.batch >=
                      int64_t{kBusy} * launch_on.device->multiprocessors;
    PYBLAS_TRY(many ? pack_chunks(std::integral_constant<int, kManyChunks>{})
                    : pack_chunks(std::integral_constant<int, 1>{}));
    const Problem target = before_adding(problem, partials);
    const Task &task = plan.task;
    PYBLAS_TRY(task.contiguous_k ? (start<Tile, true>(target, plan, launch_on))
                                 : (start<Tile, false>(target, plan, launch_on)));
    return partials.ranges > 1 ? add_partials_by_quads(problem, partials, launch_on) : kSuccess;
}

// 64 of k of one tile, and what an item costs beside them.
struct Tile32 : SkinnyTile<32, 5> {
    static constexpr double kChunkSeconds = 0.95e-6, kItemSeconds = 2.2e-6;
};
struct Tile64 : SkinnyTile<64, 4> {
    static constexpr double kChunkSeconds = 1.2e-6, kItemSeconds = 2.5e-6;
};
struct Tile128 : SkinnyTile<128, 3> {
    static constexpr double kChunkSeconds = 1.65e-6, kItemSeconds = 3.2e-6;
};
template <class Tile>
constexpr Footprint kFootprint{kThreads, 1, Tile::kSharedBytes};

#define PYBLAS_WGMMA_SKINNY_ROW(name, Tile)                                                                            \
    {"wgmma_skinny_" name,                                                                                             \
     "wgmma_skinny",                                                                                                   \
     Engine::gpu,                                                                                                      \
     modes(ComputeMode::fp32, ComputeMode::tf32),                                                                      \
     90,                                                                                                               \
     true,                                                                                                             \
     refuses<Tile>,                                                                                                    \
     workspace<Tile>,                                                                                                  \
     nullptr,                                                                                                          \
     launch_wgmma_skinny<Tile>,                                                                                        \
     false,                                                                                                            \
     kFootprint<Tile>,                                                                                                 \
     work<Tile>}
constexpr Kernel kTable[] = {
    PYBLAS_WGMMA_SKINNY_ROW("128x32x64", Tile32),
    PYBLAS_WGMMA_SKINNY_ROW("128x64x64", Tile64),
    PYBLAS_WGMMA_SKINNY_ROW("128x128x64", Tile128),
};
#undef PYBLAS_WGMMA_SKINNY_ROW

} // namespace

KernelRows wgmma_skinny_rows() {
    return rows(kTable);
}

} // namespace pyblas
