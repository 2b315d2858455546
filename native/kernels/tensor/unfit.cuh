// What a product of planes leaves out. A row of op(A), or column of op(B), of which planes cannot hold every element
// spoils the results that it enters; those, and no others, are computed here by FP32 multiply-adds.
//
//            columns of C          256 threads take a tile of C, 128 x 128 at most, of which a row or column is unfit.
//          . . x . . . . .         A few of them are multiplied one by one with the other operand; a tile with more is
//          unfit
//    rows  . . x . . . . .         walked as in warp_tile. The results marked x are stored.
//          x x x x x x x x
//
// Blocks find out for themselves whether there is anything to do, so nobody counts or waits, and what runs depends on
// values alone.
#pragma once

#include <type_traits>

#include "../device/epilogue.cuh"
#include "../simt/warp_tile.cuh"
#include "planes.cuh"

namespace pyblas::unfit {

using Tile = Tile128;
constexpr int kThreads = Tile::kThreads, kWarps = kThreads / 32, kSide = Tile::BM;
constexpr int kFew = 4;      // unfit rows and columns of a tile that are taken one by one
constexpr int kDepth = 1024; // of k, of those in shared memory at a time
static_assert(Tile::BM == Tile::BN && kSide == 32 * 4 && kWarps == 8, "lanes of four x side by side, 16 x for a warp");

// Of dynamic shared memory, where sums are folded and where they are not.
template <bool ContiguousM, bool ContiguousN, bool Folds = true>
constexpr int kSharedBytes = Layout<Tile, ContiguousM, ContiguousN>::bytes(Folds);
static_assert(kSharedBytes<true, true, false> >= 4 * kFew * (kDepth + kWarps * kSide),
              "lines and sums fit into the stages");

// Which rows of one operand are unfit.
struct Marks {
    const int32_t *exponents;
    int64_t step; // from one product to the next

    static PYBLAS_HOST_DEVICE Marks of(const Planes &planes) {
        return {planes.exponents, planes.batch == 1 ? 0 : planes.rows};
    }
    __device__ __forceinline__ bool unfit(int64_t batch, int64_t x) const {
        return exponents[batch * step + x] == kUnfitRow;
    }
};

// How many of some neighbours, 128 at most, are unfit, found by each warp for itself.
__device__ __forceinline__ int count_unfit(const Marks &marks, int64_t batch, int64_t x0, int left) {
    int found = 0;
#pragma unroll
    for (int i = 0; i < kSide / 32; ++i) {
        const int x = static_cast<int>(threadIdx.x) % 32 + 32 * i;
        found += x < left && marks.unfit(batch, x0 + x);
    }
#pragma unroll
    for (int flip = 16; flip > 0; flip /= 2)
        found += __shfl_xor_sync(0xffffffff, found, flip);
    return found;
}

// Some of C, at most 128 x 128.
struct Place {
    int64_t row, column, batch;
    int rows, columns;
};

// ---- a few lines of one operand times a side of the other ----------------------------------------------------------

// Four neighbours, or zeros for those that are not inside. The width of the loads changes no value.
template <bool Wide>
__device__ __forceinline__ float4 load_quad(const float *first, int inside) {
    if constexpr (Wide)
        return inside > 0 ? *reinterpret_cast<const float4 *>(first) : float4{0.0f, 0.0f, 0.0f, 0.0f};
    return {inside > 0 ? first[0] : 0.0f, inside > 1 ? first[1] : 0.0f, inside > 2 ? first[2] : 0.0f,
            inside > 3 ? first[3] : 0.0f};
}

constexpr int kAtOnce = 8; // loads on their way

// x is contiguous: a lane for four x, a warp for every eighth k.
template <bool Wide>
__device__ __forceinline__ void multiply_across(const View &other, int left, const float *smem_lines, int depth,
                                                float (&sums)[4][kFew]) {
    const int x = static_cast<int>(threadIdx.x) % 32 * 4;
#pragma unroll 1
    for (int k0 = static_cast<int>(threadIdx.x) / 32; k0 < depth; k0 += kWarps * kAtOnce) {
        float4 values[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
            const int k = k0 + i * kWarps;
            values[i] = load_quad<Wide>(other.at(x, k), k < depth ? left - x : 0);
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
            for (int line = 0; line < kFew; ++line) {
                const float factor = smem_lines[line * kDepth + k0 + i * kWarps]; // zeros past the end
                sums[0][line] = fmaf(factor, values[i].x, sums[0][line]);
                sums[1][line] = fmaf(factor, values[i].y, sums[1][line]);
                sums[2][line] = fmaf(factor, values[i].z, sums[2][line]);
                sums[3][line] = fmaf(factor, values[i].w, sums[3][line]);
            }
    }
}

// k is contiguous: a warp for 16 x, a lane for four k of every 128.
constexpr int kOfWarp = kSide / kWarps;

template <bool Wide>
__device__ __forceinline__ void multiply_along(const View &other, int left, const float *smem_lines, int depth,
                                               float (&sums)[kOfWarp][kFew]) {
    const int x0 = static_cast<int>(threadIdx.x) / 32 * kOfWarp;
#pragma unroll 1
    for (int k = static_cast<int>(threadIdx.x) % 32 * 4; k < depth; k += 128) {
        float4 lines[kFew];
#pragma unroll
        for (int line = 0; line < kFew; ++line)
            lines[line] = *reinterpret_cast<const float4 *>(smem_lines + line * kDepth + k);
#pragma unroll
        for (int x = 0; x < kOfWarp; x += kAtOnce) {
            float4 values[kAtOnce];
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i)
                values[i] = load_quad<Wide>(other.at(x0 + x + i, k), x0 + x + i < left ? depth - k : 0);
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i)
#pragma unroll
                for (int line = 0; line < kFew; ++line) {
                    float &sum = sums[x + i][line];
                    sum = fmaf(lines[line].x, values[i].x, sum);
                    sum = fmaf(lines[line].y, values[i].y, sum);
                    sum = fmaf(lines[line].z, values[i].z, sum);
                    sum = fmaf(lines[line].w, values[i].w, sum);
                }
        }
    }
}

template <bool ContiguousX, bool Wide, class Sums>
__device__ __forceinline__ void multiply_chunk(const View &other, int left, const float *smem_lines, int depth,
                                               Sums &sums) {
    if constexpr (ContiguousX)
        multiply_across<Wide>(other, left, smem_lines, depth, sums);
    else
        multiply_along<Wide>(other, left, smem_lines, depth, sums);
}

// The lines of one operand that xs counts, times left neighbours of the other, which begins with the first of them. The
// result of a line and x is smem_sums[line * kSide + x].
template <bool ContiguousX>
__device__ __forceinline__ void multiply_lines(const View &view, const int64_t *xs, int count, const View &other,
                                               int left, int64_t depth, float *smem_lines, float *smem_sums) {
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
    const bool wide =
        reinterpret_cast<uintptr_t>(other.data) % 16 == 0 && (ContiguousX ? other.step_k : other.step_x) % 4 == 0;
    float sums[ContiguousX ? 4 : kOfWarp][kFew] = {};
    for (int64_t k0 = 0; k0 < depth; k0 += kDepth) {
        const int k_left = part(depth - k0, kDepth);
        __syncthreads();
#pragma unroll
        for (int line = 0; line < kFew; ++line)
            for (int k = thread; k < kDepth; k += kThreads)
                smem_lines[line * kDepth + k] = line < count && k < k_left ? *view.at(xs[line], k0 + k) : 0.0f;
        __syncthreads();
        // Quads of four neighbours each, or whatever their number.
        if ((ContiguousX ? left : k_left) % 4 == 0 && wide)
            multiply_chunk<ContiguousX, true>(other.from(k0), left, smem_lines, k_left, sums);
        else
            multiply_chunk<ContiguousX, false>(other.from(k0), left, smem_lines, k_left, sums);
    }
    if constexpr (ContiguousX) { // warps one after another
#pragma unroll
        for (int x = 0; x < 4; ++x)
#pragma unroll
            for (int line = 0; line < kFew; ++line)
                smem_sums[(warp * kFew + line) * kSide + lane * 4 + x] = sums[x][line];
        __syncthreads();
        for (int i = thread; i < kFew * kSide; i += kThreads)
            for (int other_warp = 1; other_warp < kWarps; ++other_warp)
                smem_sums[i] += smem_sums[other_warp * kFew * kSide + i];
    } else {
#pragma unroll
        for (int x = 0; x < kOfWarp; ++x)
#pragma unroll
            for (int line = 0; line < kFew; ++line) {
                float sum = sums[x][line];
#pragma unroll
                for (int flip = 16; flip > 0; flip /= 2)
                    sum += __shfl_xor_sync(0xffffffff, sum, flip);
                if (lane == 0)
                    smem_sums[line * kSide + warp * kOfWarp + x] = sum;
            }
    }
    __syncthreads();
}

// ---- a tile --------------------------------------------------------------------------------------------------------

// The first few unfit neighbours from x0 on.
__device__ __forceinline__ void list_unfit(const Marks &marks, int64_t batch, int64_t x0, int left, int64_t *smem_xs) {
    if (threadIdx.x == 0) {
        int count = 0;
        for (int x = 0; x < left && count < kFew; ++x)
            if (marks.unfit(batch, x0 + x))
                smem_xs[count++] = x0 + x;
    }
    __syncthreads();
}

template <bool ContiguousM, bool ContiguousN>
__device__ __forceinline__ void few(const Problem &problem, const Epilogue &epilogue, const Place &place,
                                    const Marks &rows, const Marks &columns, int row_count, int column_count) {
    __shared__ int64_t smem_xs[kFew];
    float *const smem_lines = reinterpret_cast<float *>(dynamic_shared());
    float *const smem_sums = smem_lines + kFew * kDepth;
    const View a = view_a(problem, place.batch), b = view_b(problem, place.batch);
    float *const c = problem.c.matrix(place.batch);
    // The unfit lines of A times columns, then those of B times rows, but for what the first have stored.
    const auto multiply_side = [&](bool of_a, auto contiguous) {
        const int count = of_a ? row_count : column_count;
        if (count == 0)
            return;
        const View &view = of_a ? a : b, &other = of_a ? b : a;
        const int64_t first = of_a ? place.row : place.column, across = of_a ? place.column : place.row;
        const int own_left = of_a ? place.rows : place.columns, left = of_a ? place.columns : place.rows;
        list_unfit(of_a ? rows : columns, place.batch, first, own_left, smem_xs);
        multiply_lines<contiguous.value>(view, smem_xs, count, {other.at(across, 0), other.step_x, other.step_k}, left,
                                         epilogue.depth(), smem_lines, smem_sums);
        for (int i = static_cast<int>(threadIdx.x); i < count * kSide; i += kThreads) {
            const int64_t line = smem_xs[i / kSide], x = across + i % kSide;
            if (i % kSide < left && (of_a || !rows.unfit(place.batch, x)))
                epilogue.store(c + (of_a ? line + x * problem.c.ld : x + line * problem.c.ld), smem_sums[i]);
        }
        __syncthreads();
    };
    if constexpr (ContiguousM == ContiguousN) { // one code for both
#pragma unroll 1
        for (int side = 0; side < 2; ++side)
            multiply_side(side == 0, std::bool_constant<ContiguousM>());
    } else {
        multiply_side(true, std::bool_constant<ContiguousN>());
        multiply_side(false, std::bool_constant<ContiguousM>());
    }
}

template <bool ContiguousM, bool ContiguousN>
__device__ __forceinline__ void many(const Problem &problem, const Epilogue &epilogue, const Place &place,
                                     const Marks &rows, const Marks &columns) {
    float acc[Tile::TN][Tile::TM] = {};
    walk<Tile, ContiguousM, ContiguousN>(problem, place.batch, place.row, place.column, 0, epilogue.depth(),
                                         fold_depth<Tile>(problem) / Tile::BK, acc);
    const auto [row, column] = ThreadPlace<Tile>::of();
    float *const gmem_c = problem.c.matrix(place.batch);
#pragma unroll
    for (int j = 0; j < Tile::TN; ++j) {
        const int across = column + j / 4 * (Tile::kLanesN * 4) + j % 4;
        if (across >= place.columns)
            continue;
        const int64_t n = place.column + across;
        const bool whole = columns.unfit(place.batch, n);
#pragma unroll
        for (int i = 0; i < Tile::TM; ++i) {
            const int down = row + i / 4 * (Tile::kLanesM * 4) + i % 4;
            const int64_t m = place.row + down;
            if (down < place.rows && (whole || rows.unfit(place.batch, m)))
                epilogue.store(gmem_c + m + n * problem.c.ld, acc[j][i]);
        }
    }
}

// All results of the place that unfit rows and columns enter. Every thread knows how many of them there are.
template <bool ContiguousM, bool ContiguousN>
__device__ __forceinline__ void multiply_place(const Problem &problem, const Epilogue &epilogue, const Place &place,
                                               const Marks &rows, const Marks &columns, int row_count,
                                               int column_count) {
    if (row_count + column_count == 0)
        return;
    if (!problem.batch_invariant && row_count + column_count <= kFew) // other rows may change the count
        few<ContiguousM, ContiguousN>(problem, epilogue, place, rows, columns, row_count, column_count);
    else
        many<ContiguousM, ContiguousN>(problem, epilogue, place, rows, columns);
    __syncthreads(); // shared memory is free again
}

} // namespace pyblas::unfit
