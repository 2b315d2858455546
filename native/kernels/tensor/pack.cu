// pack: operands into planes. Each row of op(A), or column of op(B), is measured (largest and smallest magnitude, for
// its exponent and whether it fits) and then split into planes, which keep the direction in which the matrix is
// contiguous.
//
//     contiguous along k                       contiguous along x (rows of op(A), columns of op(B))
//     k ------------------->                   x ------->
//     [ 8 to 256 threads   ] x                 k [ block ]   up to 8192 of k the blocks of a cluster hold 32 whole
//     [ 8 to 256 threads   ] |                 | [ block ]   columns and tell each other what they have measured;
//     one pass up to 8192    v                 v [ block ]   deeper ones are measured by slices of k in a launch before
//
// What is read once is held in registers: 4 bytes for an element (8 where it is measured before), and 4 written, or 6
// with three planes. Few columns of up to 512 of k go to blocks of 16. 256 or 512 threads, 8 KB. Refuses nothing.
#include "pack.hpp"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "../device/launch.cuh"
#include "../device/ptx.cuh"

namespace pyblas {
namespace {

constexpr int kThreads = 256, kMostThreads = 512;

// Outside 90a code one kernel reads planes, mma_planes from SM 8.0 on, of one scheme. Packing for it knows no clusters;
// kernels that only other schemes or clusters need are empty there.
constexpr bool kAllHere = !kEmptyHere;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr bool kSomeHere = false;
#else
constexpr bool kSomeHere = true;
#endif

// One operand as packing sees it. Planes are never so large that 32 bits would not count blocks.
struct Source {
    Operand matrix;
    Planes planes;
    int64_t ld, plane, matrix_step; // of planes
    bool contiguous_k;
    int team_bits;      // contiguous k: 2^team_bits threads share a row, 8 at least
    int least_exponent; // f16x2: nonzero magnitudes from 2^(exponent + this) on fit; f16x2_one: are not small
    uint32_t tiles_x;   // of one matrix: blocks, or of a measuring launch, blocks of one slice
    uint32_t blocks;    // of all matrices, whole clusters of them
    uint32_t used;      // that have something to do
    int slices;         // of k, that are measured side by side
    int64_t slice_depth;
    int pieces; // contiguous x: blocks along k, a cluster if they measure
    int piece_depth;
    bool asks_ahead; // for its lines to be in the L2 when the kernels ahead end
};

// ---- what a row's extent says --------------------------------------------------------------------------------------

__device__ __forceinline__ void include(Extent *extent, float value) {
    const uint32_t magnitude = __float_as_uint(value) & 0x7fffffff;
    extent->most = max(extent->most, magnitude);
    extent->least = min(extent->least, magnitude - 1);
}

__device__ __forceinline__ void include(Extent *extent, const Extent &other) {
    extent->most = max(extent->most, other.most);
    extent->least = min(extent->least, other.least);
}

__device__ __forceinline__ constexpr Extent no_extent() {
    return {0, 0xffffffff};
}

// Bits of 2^exponent, from 2^-149 on.
__device__ __forceinline__ uint32_t power_bits(int exponent) {
    return exponent >= -126 ? static_cast<uint32_t>(exponent + 127) << 23 : 1u << (exponent + 149);
}

template <Scheme scheme>
__device__ __forceinline__ int32_t row_exponent(const Extent &extent, int least_exponent) {
    constexpr uint32_t kInfinity = 0x7f800000;
    if (extent.most >= kInfinity)
        return kUnfitRow;
    // The largest magnitude goes to [2^14, 2^16), and below what 16 bits round to infinity. A row of zeros is any
    // exponent's.
    const int top = static_cast<int>((extent.most + 0x1000) >> 23) - 127;
    const int exponent = scheme == Scheme::bf16x3 || extent.most == 0 ? 0 : max(kLeastPlaneExponent, (top - 14) & ~1);
    if (scheme == Scheme::f16x2_one)
        return exponent;
    return extent.least >= power_bits(exponent + least_exponent) - 1 ? exponent : kUnfitRow;
}

// f16x2_one: nonzero magnitudes below this are small; 0 where the row has none of them.
__device__ __forceinline__ float small_limit(const Extent &extent, int32_t exponent, int least_exponent) {
    const uint32_t limit = exponent == kUnfitRow ? 1 : power_bits(exponent + least_exponent);
    return extent.least < limit - 1 ? __uint_as_float(limit) : 0.0f;
}

// Zeros for what is small.
__device__ __forceinline__ float4 without_small(const float4 &quad, const float4 &limit) {
    return {fabsf(quad.x) < limit.x ? 0.0f : quad.x, fabsf(quad.y) < limit.y ? 0.0f : quad.y,
            fabsf(quad.z) < limit.z ? 0.0f : quad.z, fabsf(quad.w) < limit.w ? 0.0f : quad.w};
}

// Tells which elements of a row are small, of every so many of k from the first one on. They are read once more, which
// is seldom. No order of threads changes what is there in the end.
__device__ __forceinline__ void note_small(const Planes &planes, int64_t row, const float *data, int64_t ld,
                                           float limit, int64_t first, int step, int64_t end) {
    constexpr int kAtOnce = 4; // loads on their way
    const int slice_bits = planes.slice_bits();
#pragma unroll 1
    for (int64_t k = first; k < end; k += kAtOnce * step) {
        float values[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
            values[i] = k + i * step < end ? data[(k + i * step) * ld] : 0.0f;
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
            if (values[i] != 0.0f && fabsf(values[i]) < limit) {
                atomicOr(planes.small_slices() + row, 1u << ((k + i * step) >> slice_bits));
                atomicAdd(planes.small_count(), 1u);
            }
    }
}

// ---- splitting -----------------------------------------------------------------------------------------------------

// What the elements of a row are multiplied with first.
template <Scheme scheme>
__device__ __forceinline__ float row_factor(int32_t exponent) {
    return scheme == Scheme::bf16x3 || exponent == kUnfitRow ? 1.0f : __uint_as_float(power_bits(-exponent));
}

// Two neighbours, times their rows' factors, as one word for each plane.
template <Scheme scheme>
__device__ __forceinline__ void split(float first, float second, uint32_t (&words)[plane_count(scheme)]) {
    if constexpr (scheme == Scheme::f16x1) {
        words[0] = ptx::f16_pair(first, second);
    } else if constexpr (scheme != Scheme::bf16x3) {
        words[0] = ptx::f16_pair(first, second);
        const float2 high = ptx::floats_of_f16_pair(words[0]);
        constexpr float kLow = scheme == Scheme::f16x2 ? 1 << kLowPlaneBits : 1;
        words[1] = ptx::f16_pair((first - high.x) * kLow, (second - high.y) * kLow);
    } else {
        // The first plane rounds toward zero, or the largest floats would become infinite.
        const uint32_t b0 = __float_as_uint(first) & 0xffff0000, b1 = __float_as_uint(second) & 0xffff0000;
        words[0] = b0 >> 16 | b1;
        first -= __uint_as_float(b0), second -= __uint_as_float(b1);
        words[1] = ptx::bf16_pair(first, second);
        words[2] =
            ptx::bf16_pair(first - __uint_as_float(words[1] << 16), second - __uint_as_float(words[1] & 0xffff0000));
    }
}

// Four neighbours to all planes.
template <Scheme scheme>
__device__ __forceinline__ void store_quad(const float4 &quad, const float4 &factor, uint16_t *target, int64_t plane) {
    uint32_t low[plane_count(scheme)], high[plane_count(scheme)];
    split<scheme>(quad.x * factor.x, quad.y * factor.y, low);
    split<scheme>(quad.z * factor.z, quad.w * factor.w, high);
#pragma unroll
    for (int i = 0; i < plane_count(scheme); ++i)
        *reinterpret_cast<uint64_t *>(target + i * plane) = uint64_t{high[i]} << 32 | low[i];
}

// ---- contiguous along k --------------------------------------------------------------------------------------------

constexpr int kHeld = 8, kMostHeld = 16; // quads of a thread

// Four neighbours, with zeros for those that are not left. Wide: all four are, or none.
template <bool Wide>
__device__ __forceinline__ float4 load_quad(const float *first, int left) {
    if constexpr (Wide)
        return left > 0 ? __ldcs(reinterpret_cast<const float4 *>(first)) : float4{0.0f, 0.0f, 0.0f, 0.0f};
    return {left > 0 ? first[0] : 0.0f, left > 1 ? first[1] : 0.0f, left > 2 ? first[2] : 0.0f,
            left > 3 ? first[3] : 0.0f};
}

// Quads of a thread, so far apart in memory, from the first one on; of them, so many neighbours are left.
template <bool Wide, int Held, class Left>
__device__ __forceinline__ void load_quads(const float *first, int64_t step, const Left &left, float4 (&held)[Held]) {
#pragma unroll
    for (int i = 0; i < Held; ++i)
        held[i] = load_quad<Wide>(first + i * step, left(i));
}

template <Scheme scheme, int Threads, int Held>
__device__ __forceinline__ void pack_rows(const Source &source, uint32_t number) {
    __shared__ Extent smem_extents[Threads / 32];
    // place
    const Planes &planes = source.planes;
    const int thread = static_cast<int>(threadIdx.x), team = 1 << source.team_bits, lane = thread & (team - 1);
    const uint32_t batch = planes.batch == 1 ? 0 : number / source.tiles_x, tile = number - batch * source.tiles_x;
    const int64_t row = int64_t{tile} * (Threads >> source.team_bits) + (thread >> source.team_bits);
    const bool exists = row < planes.rows && number < source.used; // whole clusters can have blocks too many
    const int64_t depth = exists ? planes.depth : 0;
    const float *const data = exists ? source.matrix.matrix(batch) + row * source.matrix.ld : nullptr;
    const bool wide = reinterpret_cast<uintptr_t>(data) % 16 == 0 && planes.depth % 4 == 0;
    const int span = 4 * Held << source.team_bits; // of k, what a team holds
    const bool once = planes.depth <= span;

    float4 held[Held];
    const auto load = [&](int64_t k0) {
        const int64_t k = k0 + 4 * lane;
        const int k_left = depth - k < span ? static_cast<int>(depth - k) : span;
        const auto left = [&](int i) { return k_left - 4 * i * team; };
        if (wide)
            load_quads<true>(data + k, 4 * team, left, held);
        else
            load_quads<false>(data + k, 4 * team, left, held);
    };

    // measure
    Extent extent = no_extent();
    for (int64_t k0 = 0; k0 < planes.depth; k0 += span) {
        load(k0);
#pragma unroll
        for (int i = 0; i < Held; ++i) {
            include(&extent, held[i].x), include(&extent, held[i].y);
            include(&extent, held[i].z), include(&extent, held[i].w);
        }
    }
    for (int flip = min(team, 32) / 2; flip > 0; flip /= 2)
        include(&extent,
                {__shfl_xor_sync(0xffffffff, extent.most, flip), __shfl_xor_sync(0xffffffff, extent.least, flip)});
    if (team > 32) {
        if (thread % 32 == 0)
            smem_extents[thread / 32] = extent;
        __syncthreads();
        const int first = (thread & ~(team - 1)) / 32;
        for (int i = 0; i < team / 32; ++i)
            include(&extent, smem_extents[first + i]);
    }
    const int32_t exponent = row_exponent<scheme>(extent, source.least_exponent);
    const float factor = row_factor<scheme>(exponent);
    if (!exists)
        return;
    if (lane == 0)
        planes.exponents[batch * planes.rows + row] = exponent;

    // split and store
    uint16_t *const target = planes.data + batch * source.matrix_step + row * source.ld;
    const float limit = scheme == Scheme::f16x2_one ? small_limit(extent, exponent, source.least_exponent) : 0.0f;
    for (int64_t k0 = 0; k0 < depth; k0 += span) {
        if (!once)
            load(k0);
        const int k_left = depth - k0 < span ? static_cast<int>(depth - k0) : span;
#pragma unroll
        for (int i = 0; i < Held; ++i) {
            const int k = 4 * (i * team + lane);
            if (k >= k_left)
                break;
            const float4 quad =
                scheme == Scheme::f16x2_one ? without_small(held[i], {limit, limit, limit, limit}) : held[i];
            store_quad<scheme>(quad, {factor, factor, factor, factor}, target + k0 + k, source.plane);
        }
    }
    if (scheme == Scheme::f16x2_one && limit != 0.0f)
        note_small(planes, batch * planes.rows + row, data, 1, limit, lane, team, depth);
}

// ---- contiguous along x --------------------------------------------------------------------------------------------

constexpr int kMeasuredX = 128; // of x, in a measuring block: four for each lane
constexpr int kPackedX = 32;    // of x, in a block that packs
constexpr int kWholeX = 16;     // the same where a block has all of k
constexpr int kMostPieces = 8;  // blocks of a cluster

__device__ __forceinline__ bool wide_quads(const float *corner, int64_t ld, int64_t x_left) {
    return reinterpret_cast<uintptr_t>(corner) % 16 == 0 && ld % 4 == 0 && x_left % 4 == 0;
}

__device__ __forceinline__ void measure_columns(const Source &source, uint32_t number) {
    constexpr int kWarps = kThreads / 32;
    __shared__ Extent smem_extents[kWarps][kMeasuredX];
    // place
    const Planes &planes = source.planes;
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const uint32_t matrix = number / static_cast<uint32_t>(source.slices), slice = number - matrix * source.slices;
    const uint32_t batch = matrix / source.tiles_x;
    const int64_t x0 = int64_t{matrix - batch * source.tiles_x} * kMeasuredX;
    const int64_t left = planes.rows - x0;
    const int x_left = left < kMeasuredX ? static_cast<int>(left) : kMeasuredX;
    const float *const corner = source.matrix.matrix(batch) + x0;
    const int64_t first = slice * source.slice_depth;
    const int64_t end = first + source.slice_depth < planes.depth ? first + source.slice_depth : planes.depth;

    // measure: four neighbours of x for each lane, or lanes side by side
    const bool wide = wide_quads(corner, source.matrix.ld, x_left);
    Extent extents[4] = {no_extent(), no_extent(), no_extent(), no_extent()};
#pragma unroll 4
    for (int64_t k = first + warp; k < end; k += kWarps) {
        const float *const line = corner + k * source.matrix.ld;
        if (wide) {
            if (4 * lane < x_left) {
                const float4 quad = *reinterpret_cast<const float4 *>(line + 4 * lane);
                include(&extents[0], quad.x), include(&extents[1], quad.y);
                include(&extents[2], quad.z), include(&extents[3], quad.w);
            }
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i)
                if (lane + 32 * i < x_left)
                    include(&extents[i], line[lane + 32 * i]);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
        smem_extents[warp][wide ? 4 * lane + i : lane + 32 * i] = extents[i];
    __syncthreads();

    // store
    const int x = static_cast<int>(threadIdx.x);
    if (x >= x_left)
        return;
    Extent extent = no_extent();
    for (int i = 0; i < kWarps; ++i)
        include(&extent, smem_extents[i][x]);
    planes.extents[(slice * planes.batch + batch) * planes.rows + x0 + x] = extent;
}

// X columns for each block. Measured: extents are there already.
template <Scheme scheme, int Threads, int Held, int X, bool Measured>
__device__ __forceinline__ void pack_columns(const Source &source, uint32_t number) {
    constexpr int kAcross = X / 4, kWarps = Threads / 32;
    constexpr int kStep = Threads / kAcross; // of k, from one quad of a thread to its next
    __shared__ Extent smem_extents[kWarps][X];
    __shared__ Extent smem_pieces[X == kPackedX ? kMostPieces : 1][X]; // of the blocks of a cluster
    __shared__ float4 smem_factors[kAcross];
    __shared__ float4 smem_limits[scheme == Scheme::f16x2_one ? kAcross : 1]; // of small elements
    __shared__ uint64_t told; // barrier: all blocks of the cluster have told what they measured
    // place
    const Planes &planes = source.planes;
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
    const uint32_t column = number / source.pieces;
    const int piece = static_cast<int>(number - column * source.pieces), own_x = lane % X;
    const uint32_t batch = planes.batch == 1 ? 0 : column / source.tiles_x;
    const int64_t x0 = int64_t{column - batch * source.tiles_x} * X;
    const bool exists = number < source.used; // whole clusters can have blocks too many
    const bool alone = Measured || X != kPackedX || source.pieces == 1;
    const int64_t k0 = int64_t{piece} * source.piece_depth,
                  k_left = exists && planes.depth > k0 ? planes.depth - k0 : 0;
    const int k_end = k_left < source.piece_depth ? static_cast<int>(k_left) : source.piece_depth;
    const int x = thread % kAcross * 4, k_first = thread / kAcross;
    const int64_t x_left = exists ? planes.rows - x0 : 0;
    const int mine = x_left - x < 4 ? static_cast<int>(x_left) - x : 4;
    const float *const corner = exists ? source.matrix.matrix(batch) + x0 : nullptr;
    const bool wide = wide_quads(corner, source.matrix.ld, planes.rows);
    if (!alone) {
        if (thread == 0) {
            ptx::init_barrier(&told, 1);
            ptx::publish_barriers();
            ptx::arrive_and_expect(&told, source.pieces * X * static_cast<int>(sizeof(Extent)));
        }
        ptx::announce_to_cluster(); // this block runs, and others may write to it
    }

    // load
    float4 held[Held];
    const float *const gmem = corner + x + (k0 + k_first) * source.matrix.ld;
    const auto left = [&](int i) { return k_first + i * kStep < k_end ? mine : 0; };
    if (wide)
        load_quads<true>(gmem, kStep * source.matrix.ld, left, held);
    else
        load_quads<false>(gmem, kStep * source.matrix.ld, left, held);

    // measure, or take what was measured before
    if constexpr (Measured) {
        const Extent *const extents = planes.extents + batch * planes.rows + x0;
        Extent extent = no_extent();
        if (own_x < x_left)
            for (int slice = warp; slice < source.slices; slice += kWarps)
                include(&extent, extents[slice * planes.batch * planes.rows + own_x]);
        smem_extents[warp][own_x] = extent;
    } else {
        Extent extents[4] = {no_extent(), no_extent(), no_extent(), no_extent()};
#pragma unroll
        for (int i = 0; i < Held; ++i) {
            include(&extents[0], held[i].x), include(&extents[1], held[i].y);
            include(&extents[2], held[i].z), include(&extents[3], held[i].w);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#pragma unroll
            for (int flip = kAcross; flip < 32; flip *= 2)
                include(&extents[i], {__shfl_xor_sync(0xffffffff, extents[i].most, flip),
                                      __shfl_xor_sync(0xffffffff, extents[i].least, flip)});
            if (lane < kAcross)
                smem_extents[warp][x + i] = extents[i];
        }
    }
    __syncthreads();
    Extent extent = no_extent(); // of the lane's column in this block
#pragma unroll
    for (int i = 0; i < kWarps; ++i)
        include(&extent, smem_extents[i][own_x]);
    if (!alone) {
        // Each warp tells one block of the cluster.
        ptx::wait_for_cluster();
        if (warp < source.pieces)
            ptx::tell_block(&smem_pieces[piece][own_x], extent, &told, warp);
    }
    if (warp == 0) {
        if (!alone) {
            ptx::wait_for_blocks(&told, 0);
            for (int i = 0; i < source.pieces; ++i)
                include(&extent, smem_pieces[i][own_x]);
        }
        const int32_t exponent = row_exponent<scheme>(extent, source.least_exponent);
        if (lane < X)
            reinterpret_cast<float *>(smem_factors)[lane] = row_factor<scheme>(exponent);
        if (scheme == Scheme::f16x2_one && lane < X)
            reinterpret_cast<float *>(smem_limits)[lane] = small_limit(extent, exponent, source.least_exponent);
        if (piece == 0 && lane < X && lane < x_left)
            planes.exponents[batch * planes.rows + x0 + lane] = exponent;
    }
    __syncthreads();

    // split and store
    if (mine <= 0)
        return;
    const float4 factor = smem_factors[x / 4];
    const float4 limit = scheme == Scheme::f16x2_one ? smem_limits[x / 4] : float4{};
    uint16_t *target = planes.data + batch * source.matrix_step + (k0 + k_first) * source.ld + x0 + x;
    const int64_t down = kStep * source.ld;
#pragma unroll
    for (int i = 0; i < Held; ++i, target += down)
        if (k_first + i * kStep < k_end)
            store_quad<scheme>(scheme == Scheme::f16x2_one ? without_small(held[i], limit) : held[i], factor, target,
                               source.plane);
    if (scheme == Scheme::f16x2_one && limit.x + limit.y + limit.z + limit.w > 0.0f)
#pragma unroll 1
        for (int j = 0; j < mine; ++j)
            if (const float own = reinterpret_cast<const float *>(smem_limits)[x + j]; own != 0.0f)
                note_small(planes, batch * planes.rows + x0 + x + j, corner + x + j, source.matrix.ld, own,
                           k0 + k_first, kStep, k0 + k_end);
}

// ---- launches ------------------------------------------------------------------------------------------------------

__global__ void __launch_bounds__(kThreads)
    measure(const Scalar alpha, __grid_constant__ const Source a, __grid_constant__ const Source b) {
    const uint32_t number = static_cast<uint32_t>(block_number());
    ptx::launch_dependents();
    ptx::wait_for_predecessors();
    if (!kSomeHere || number >= a.blocks + b.blocks || alpha.load() == 0.0f)
        return;
    const bool second = number >= a.blocks;
    measure_columns(second ? b : a, second ? number - a.blocks : number);
}

// Asks for what a block is going to read, by lines of 32 floats.
template <int Threads, int X>
__device__ __forceinline__ void ask(const Source &source, uint32_t number) {
    constexpr int kLine = 32;
    const Planes &planes = source.planes;
    const int thread = static_cast<int>(threadIdx.x);
    if (source.contiguous_k) {
        const uint32_t batch = number / source.tiles_x, tile = number - batch * source.tiles_x;
        const int rows = Threads >> source.team_bits;
        const int64_t row0 = int64_t{tile} * rows, left = planes.rows - row0;
        const int lines = static_cast<int>((planes.depth + kLine - 1) / kLine),
                  all = rows < left ? rows * lines : static_cast<int>(left) * lines;
        for (int i = thread; i < all; i += Threads)
            ptx::prefetch(source.matrix.matrix(batch) + (row0 + i / lines) * source.matrix.ld + i % lines * kLine);
    } else {
        const uint32_t column = number / source.pieces, batch = column / source.tiles_x;
        const int64_t k0 = int64_t{number - column * source.pieces} * source.piece_depth, left = planes.depth - k0;
        const float *const corner =
            source.matrix.matrix(batch) + int64_t{column - batch * source.tiles_x} * X + k0 * source.matrix.ld;
        for (int k = thread; k < left && k < source.piece_depth; k += Threads)
            ptx::prefetch(corner + k * source.matrix.ld);
    }
}

template <Scheme scheme, int Threads, int Held, int Resident, bool Measured, int X = kPackedX>
__global__ void __launch_bounds__(Threads, Resident)
    pack_planes(const Scalar alpha, __grid_constant__ const Source first, __grid_constant__ const Source second) {
    const uint32_t number = static_cast<uint32_t>(block_number());
    const bool later = number >= first.blocks;
    const Source &source = later ? second : first;
    const uint32_t mine = later ? number - first.blocks : number;
    constexpr bool kHere = kAllHere || (kSomeHere && scheme == Scheme::f16x2 && Measured);
    ptx::launch_dependents();
    if (kAllHere && source.asks_ahead && mine < source.used)
        ask<Threads, X>(source, mine);
    ptx::wait_for_predecessors();
    if (!kHere || number >= first.blocks + second.blocks || alpha.load() == 0.0f)
        return;
    if constexpr (scheme == Scheme::f16x2_one)
        if (source.planes.in_vain())
            return;
    if (source.contiguous_k)
        pack_rows<scheme, Threads, Held>(source, mine);
    else
        pack_columns<scheme, Threads, Held, X, Measured>(source, mine);
}

// f16x2_one: nothing is known to be small yet, unless a few elements of a few rows say that there is too much of it.
constexpr int kSampledRows = 16, kSampled = 8; // of an operand; elements of such a row for each lane
constexpr uint32_t kMostSampled = 2;           // that are small

__global__ void __launch_bounds__(2 * kSampledRows * 32)
    sample(const Scalar alpha, __grid_constant__ const Source a, __grid_constant__ const Source b) {
    __shared__ uint32_t smem_small;
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const Source &source = warp < kSampledRows ? a : b;
    const Planes &planes = source.planes;
    const int thread = static_cast<int>(threadIdx.x) % (kSampledRows * 32);
    ptx::launch_dependents();
    ptx::wait_for_predecessors();
    if (!kAllHere || alpha.load() == 0.0f)
        return;
    if (threadIdx.x == 0)
        smem_small = 0;
    __syncthreads();
    if (planes.rows > 0) {
        for (int64_t i = thread; i < planes.batch * planes.rows; i += kSampledRows * 32)
            planes.small_slices()[i] = 0;
        const int64_t row = planes.rows * (warp % kSampledRows) / kSampledRows;
        const float *const first = source.matrix.matrix(0) + row * (planes.across ? 1 : source.matrix.ld);
        float held[kSampled];
        Extent extent = no_extent();
#pragma unroll
        for (int i = 0; i < kSampled; ++i)
            held[i] = first[planes.depth * (i * 32 + lane) / (kSampled * 32) * (planes.across ? source.matrix.ld : 1)];
#pragma unroll
        for (int i = 0; i < kSampled; ++i)
            include(&extent, held[i]);
#pragma unroll
        for (int flip = 16; flip > 0; flip /= 2)
            include(&extent,
                    {__shfl_xor_sync(0xffffffff, extent.most, flip), __shfl_xor_sync(0xffffffff, extent.least, flip)});
        const float limit =
            small_limit(extent, row_exponent<Scheme::f16x2_one>(extent, source.least_exponent), source.least_exponent);
        uint32_t small = 0;
#pragma unroll
        for (int i = 0; i < kSampled; ++i)
            small += held[i] != 0.0f && fabsf(held[i]) < limit;
        if (small > 0)
            atomicAdd(&smem_small, small);
    }
    __syncthreads();
    if (thread == 0 && planes.rows > 0)
        *planes.small_count() = smem_small > kMostSampled ? Planes::kInVain : 0;
}

Source source_of(const Operand &matrix, const Planes &planes, Scheme scheme) {
    Source source = {};
    source.matrix = matrix;
    source.planes = planes;
    source.contiguous_k = !planes.across || planes.rows == 0;
    if (planes.rows == 0)
        return source;
    source.least_exponent = least_plane_exponent(scheme, planes.depth);
    source.ld = planes.ld(), source.plane = planes.plane(), source.matrix_step = planes.matrix();
    source.slices = planes.slices();
    source.slice_depth = (planes.depth + source.slices - 1) / source.slices;
    return source;
}

// Tiles along x for one launch; depth is how many blocks share a tile.
void cover(Source *source, int64_t side, int64_t depth) {
    source->tiles_x = static_cast<uint32_t>((source->planes.rows + side - 1) / side);
    source->used = source->blocks = static_cast<uint32_t>(source->tiles_x * source->planes.batch * depth);
}

// How a launch packs: threads of a block, and quads that each of them holds.
struct Shape {
    int threads, held;

    // Of k, that a block holds of so many columns.
    constexpr int depth(int x = kPackedX) const { return 4 * held * threads / x; }
};
constexpr Shape kShallow{kThreads, kHeld}, kDeep{kThreads, kMostHeld}, kDeepest{kMostThreads, kMostHeld};
constexpr Shape kPaired{kMostThreads, kHeld}; // two blocks hold a column
static_assert(kMostPieces * kDeepest.depth() == kMostDepthAtOnce, "what the blocks of a cluster hold");

// A row for 8 to 256 threads: as few as hold it.
void share_rows(Source *source, const Shape &shape) {
    source->team_bits = 3;
    while (source->team_bits < 8 && (int64_t{4 * shape.held} << source->team_bits) < source->planes.depth)
        ++source->team_bits;
    cover(source, shape.threads >> source->team_bits, 1);
}

// Columns for the blocks of a cluster, enough of them to keep the device busy, or, measured before, for any number of
// blocks. All operands have so many columns. Clusters have a power of two of blocks, or six shallow ones.
void share_columns(Source *source, const Shape &shape, bool measured, int64_t columns, int64_t busy) {
    const int64_t depth = source->planes.depth;
    source->pieces = static_cast<int>((depth + shape.depth() - 1) / shape.depth());
    if (!measured && !(shape.depth() == kShallow.depth() && source->pieces == 6)) {
        int bits = 0;
        while ((1 << bits) < source->pieces ||
               ((2 << bits) <= kMostPieces && (64 << bits) < depth && (columns << bits) < busy * kPackedX))
            ++bits;
        source->pieces = 1 << bits;
    }
    source->piece_depth = static_cast<int>((depth + source->pieces - 1) / source->pieces);
    cover(source, kPackedX, source->pieces);
}

} // namespace

// Least magnitudes that fit or are not small, as an exponent of two beside the row's. From k = 128 on the bound for
// each element has room for coarser small elements: twice as coarse for each four times the depth.
int least_plane_exponent(Scheme scheme, int64_t k) {
    if (scheme == Scheme::bf16x3)
        return -110;
    if (scheme == Scheme::f16x2_one) { // 2^-25 is at most k / 4 u of what is not smaller
        int least = -14;
        while (least < -1 && (int64_t{2} << -least) > k)
            ++least;
        return least;
    }
    if (scheme == Scheme::f16x1) // a normal number of the plane, with all of its 11 bits
        return -14;
    if (k < 128)
        return -13;
    int least = -15;
    for (int64_t depth = 256; depth <= k && least > -23; depth *= 4)
        --least;
    return least;
}

Status pack(const Problem &problem, const PackedProduct &packed, Scheme scheme, const Launch &launch_on) {
    if (problem.k == 0 || (problem.alpha.known() && problem.alpha.value == 0.0f))
        return kSuccess;
    Source sources[] = {source_of(problem.a, packed.a, scheme), source_of(problem.b, packed.b, scheme)};
    if (sources[0].contiguous_k) // blocks that wait for others come first
        std::swap(sources[0], sources[1]);
    if (scheme == Scheme::f16x2_one)
        PYBLAS_TRY(launch<sample>({1, 2 * kSampledRows * 32, 0, launch_on.stream, true}, problem.alpha, sources[0],
                                  sources[1]));
    const bool any_columns = !sources[0].contiguous_k;
    const bool measured = !launch_on.device->has_90a_code || problem.k > kMostDepthAtOnce;
    Grid grid = {0, kThreads, 0, launch_on.stream, launch_on.device->has_90a_code};
    if (any_columns && measured) {
        for (Source &source : sources)
            if (!source.contiguous_k)
                cover(&source, kMeasuredX, source.slices);
        grid.blocks = int64_t{sources[0].blocks} + sources[1].blocks;
        PYBLAS_TRY(launch<measure>(grid, problem.alpha, sources[0], sources[1]));
    }
    const bool by_clusters = any_columns && !measured;
    const int64_t busy = launch_on.device->multiprocessors;
    // The fewer blocks a cluster has, the sooner it starts: pairs, if all of them start at once.
    const bool one_sum = scheme == Scheme::f16x2_one; // of large products alone, which need no kernels for others
    const bool paired =
        !one_sum && by_clusters && problem.k > 3 * kPaired.depth() / 2 && problem.k <= 2 * kPaired.depth() &&
        sources[0].planes.rows * sources[0].planes.batch + sources[1].planes.rows * sources[1].planes.batch <=
            busy * kPackedX / 2;
    const Shape &shape = paired                                                      ? kPaired
                         : by_clusters && problem.k > kMostPieces * kDeep.depth()    ? kDeepest
                         : by_clusters && problem.k > kMostPieces * kShallow.depth() ? kDeep
                                                                                     : kShallow;
    int64_t columns = 0;
    for (const Source &source : sources)
        columns += source.contiguous_k ? 0 : source.planes.rows * source.planes.batch;
    // Few columns that a block can hold whole need no cluster.
    const bool whole = by_clusters && problem.k <= kShallow.depth(kWholeX) && columns <= busy * kWholeX;
    grid.threads = shape.threads;
    // Both operands share one launch, and so the size of its clusters. Only where alpha is known not to be 0 is there
    // anything to be read before the kernels ahead have ended.
    const bool asks_ahead = grid.early && problem.alpha.known() && !problem.a.array && !problem.b.array;
    for (Source &source : sources) {
        source.asks_ahead = asks_ahead;
        if (source.contiguous_k) {
            share_rows(&source, shape);
        } else if (whole) {
            source.pieces = 1;
            source.piece_depth = static_cast<int>(problem.k);
            cover(&source, kWholeX, 1);
        } else {
            share_columns(&source, shape, measured, columns, paired ? 0 : busy);
            if (by_clusters)
                grid.cluster = source.pieces;
        }
    }
    for (Source &source : sources)
        source.blocks = (source.used + static_cast<uint32_t>(grid.cluster) - 1) / static_cast<uint32_t>(grid.cluster) *
                        static_cast<uint32_t>(grid.cluster);
    grid.blocks = int64_t{sources[0].blocks} + sources[1].blocks;
    const auto start = [&](auto kernel) { return launch<kernel.value>(grid, problem.alpha, sources[0], sources[1]); };
    using Kernel = decltype(&pack_planes<Scheme::f16x2, kThreads, kHeld, 2, false>);
    const auto start_scheme = [&](auto of_scheme) {
        constexpr Scheme kScheme = of_scheme.value;
        using std::integral_constant;
        if (measured && (any_columns || !launch_on.device->has_90a_code))
            return start(integral_constant<Kernel, &pack_planes<kScheme, kThreads, kHeld, 2, true>>{});
        if (whole)
            return start(integral_constant<Kernel, &pack_planes<kScheme, kThreads, kHeld, 2, false, kWholeX>>{});
        if (paired)
            return start(integral_constant<Kernel, &pack_planes<kScheme, kMostThreads, kHeld, 1, false>>{});
        if (shape.threads == kMostThreads)
            return start(integral_constant<Kernel, &pack_planes<kScheme, kMostThreads, kMostHeld, 1, false>>{});
        if (shape.held == kMostHeld)
            return start(integral_constant<Kernel, &pack_planes<kScheme, kThreads, kMostHeld, 2, false>>{});
        // Few blocks get registers to have all their loads under way at once.
        return grid.blocks <= 2 * busy
                   ? start(integral_constant<Kernel, &pack_planes<kScheme, kThreads, kHeld, 2, false>>{})
                   : start(integral_constant<Kernel, &pack_planes<kScheme, kThreads, kHeld, 3, false>>{});
    };
    if (one_sum) {
        using std::integral_constant;
        constexpr Scheme kOne = Scheme::f16x2_one;
        if (measured && any_columns)
            return start(integral_constant<Kernel, &pack_planes<kOne, kThreads, kHeld, 2, true>>{});
        if (shape.threads == kMostThreads)
            return start(integral_constant<Kernel, &pack_planes<kOne, kMostThreads, kMostHeld, 1, false>>{});
        if (shape.held == kMostHeld)
            return start(integral_constant<Kernel, &pack_planes<kOne, kThreads, kMostHeld, 2, false>>{});
        return start(integral_constant<Kernel, &pack_planes<kOne, kThreads, kHeld, 3, false>>{});
    }
    return scheme == Scheme::f16x2   ? start_scheme(std::integral_constant<Scheme, Scheme::f16x2>{})
           : scheme == Scheme::f16x1 ? start_scheme(std::integral_constant<Scheme, Scheme::f16x1>{})
                                     : start_scheme(std::integral_constant<Scheme, Scheme::bf16x3>{});
}

} // namespace pyblas
