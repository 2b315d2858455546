// pack: operands into planes. Each row of op(A), or column of op(B), is measured (largest and smallest magnitude, for
// its exponent and whether it fits) and then split into planes contiguous along k.
//
//     contiguous along k                        contiguous along x (rows of op(A), columns of op(B))
//     k ------------------->                    x ------->
//     [ 8 to 256 threads   ] x                  k [ block ]   up to 4096 of k the blocks of a cluster hold 32 whole
//     [ 8 to 256 threads   ] |                  | [ block ]   columns in shared memory, tell each other what they have
//     one pass, held in registers up to 8192    v [ block ]   measured, and turn them on the way out; deeper ones are
//                                                             measured by slices of k in a launch before
//
// 4 bytes are read for an element (8 where it is measured before) and 4 written, or 6 with three planes. 256 threads,
// up to 69 KB. Refuses nothing.
#include "pack.hpp"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "../device/launch.cuh"
#include "../device/ptx.cuh"

namespace pyblas {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kStaticBytes = 5 * 1024; // of shared memory, at most

// One operand as packing sees it.
struct Source {
    Operand matrix;
    Planes planes;
    bool contiguous_k;
    int team_bits;       // contiguous k: 2^team_bits threads share a row, 8 at least
    int least_exponent;  // f16x2: nonzero magnitudes from 2^(exponent + this) on fit
    int64_t tiles_x;     // of one matrix: blocks, or of a measuring launch, blocks of one slice
    int64_t blocks;      // of all matrices
    int64_t slice_depth; // of k, in one slice
    bool measured;       // contiguous x: extents are there already
    int64_t pieces;      // contiguous x: blocks along k, a cluster if they measure
    int piece_depth;
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
    return extent.least >= power_bits(exponent + least_exponent) - 1 ? exponent : kUnfitRow;
}

// ---- splitting -----------------------------------------------------------------------------------------------------

// What the elements of a row are multiplied with first.
template <Scheme scheme>
__device__ __forceinline__ float row_factor(int32_t exponent) {
    return scheme == Scheme::bf16x3 || exponent == kUnfitRow ? 1.0f : __uint_as_float(power_bits(-exponent));
}

// Two neighbours along k, as one word for each plane.
template <Scheme scheme>
__device__ __forceinline__ void split(float first, float second, float factor, uint32_t (&words)[plane_count(scheme)]) {
    if constexpr (scheme == Scheme::f16x1) {
        words[0] = ptx::f16_pair(first * factor, second * factor);
    } else if constexpr (scheme == Scheme::f16x2) {
        first *= factor, second *= factor;
        words[0] = ptx::f16_pair(first, second);
        const float2 high = ptx::floats_of_f16_pair(words[0]);
        constexpr float kLow = 1 << kLowPlaneBits;
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

// ---- contiguous along k --------------------------------------------------------------------------------------------

constexpr int kHeld = 8; // quads of a thread

// Four neighbours along k, with zeros past the end.
__device__ __forceinline__ float4 load_quad(const float *row, int64_t k, int64_t depth, bool wide) {
    if (wide && k + 4 <= depth)
        return __ldcs(reinterpret_cast<const float4 *>(row + k));
    return {k < depth ? row[k] : 0.0f, k + 1 < depth ? row[k + 1] : 0.0f, k + 2 < depth ? row[k + 2] : 0.0f,
            k + 3 < depth ? row[k + 3] : 0.0f};
}

template <Scheme scheme>
__device__ __forceinline__ void pack_rows(const Source &source, int64_t number) {
    __shared__ Extent smem_extents[kWarps];
    constexpr int kPlanes = plane_count(scheme);
    // place
    const Planes &planes = source.planes;
    const int thread = static_cast<int>(threadIdx.x), team = 1 << source.team_bits, lane = thread & (team - 1);
    const int64_t batch = number / source.tiles_x;
    const int64_t row =
        (number - batch * source.tiles_x) * (kThreads >> source.team_bits) + (thread >> source.team_bits);
    const bool exists = row < planes.rows && batch < planes.batch; // whole clusters can have blocks too many
    const int64_t depth = exists ? planes.depth : 0;
    const float *const data = exists ? source.matrix.matrix(batch) + row * source.matrix.ld : nullptr;
    const bool wide = reinterpret_cast<uintptr_t>(data) % 16 == 0;
    const int64_t span = int64_t{4 * kHeld} << source.team_bits; // of k, what a team holds
    const bool once = planes.depth <= span;

    float4 held[kHeld];
    const auto load = [&](int64_t k0) {
#pragma unroll
        for (int i = 0; i < kHeld; ++i)
            held[i] = load_quad(data, k0 + 4 * (i * team + lane), depth, wide);
    };

    // measure
    Extent extent = no_extent();
    for (int64_t k0 = 0; k0 < planes.depth; k0 += span) {
        load(k0);
#pragma unroll
        for (int i = 0; i < kHeld; ++i) {
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
    uint16_t *const target = planes.data + batch * planes.matrix() + row * planes.ld();
    for (int64_t k0 = 0; k0 < depth; k0 += span) {
        if (!once)
            load(k0);
#pragma unroll
        for (int i = 0; i < kHeld; ++i) {
            const int64_t k = k0 + 4 * (i * team + lane);
            if (k >= depth)
                break;
            uint32_t low[kPlanes], high[kPlanes];
            split<scheme>(held[i].x, held[i].y, factor, low);
            split<scheme>(held[i].z, held[i].w, factor, high);
#pragma unroll
            for (int plane = 0; plane < kPlanes; ++plane)
                *reinterpret_cast<uint2 *>(target + plane * planes.plane() + k) = uint2{low[plane], high[plane]};
        }
    }
}

// ---- contiguous along x --------------------------------------------------------------------------------------------

constexpr int kMeasuredX = 128; // of x, in a measuring block: four for each lane
constexpr int kTurnedX = 32;
constexpr int kTurnedK = 256;                 // of a piece, if columns were measured before
constexpr int kMostPieces = 8;                // blocks of a cluster
constexpr int kMostHeldK = kMostPieces * 512; // of all pieces of a column, if the blocks of a cluster measure them

__device__ __forceinline__ bool wide_quads(const float *corner, int64_t ld, int64_t x_left) {
    return reinterpret_cast<uintptr_t>(corner) % 16 == 0 && ld % 4 == 0 && x_left % 4 == 0;
}

__device__ __forceinline__ void measure_columns(const Source &source, int64_t number) {
    __shared__ Extent smem_extents[kWarps][kMeasuredX];
    // place
    const Planes &planes = source.planes;
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int slices = planes.slices();
    const int64_t matrix = number / slices, slice = number - matrix * slices;
    const int64_t batch = matrix / source.tiles_x, x0 = (matrix - batch * source.tiles_x) * kMeasuredX;
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

// Where an element of the turned block lies: quads of x are exchanged by the number of eight k, so that lanes that read
// eight pieces of k of four x meet all banks.
__device__ __forceinline__ constexpr int turned(int x, int k) {
    return k * kTurnedX + (((x / 4) ^ (k / 8 % 8)) * 4) + x % 4;
}

template <Scheme scheme>
__device__ __forceinline__ void pack_columns(const Source &source, int64_t number) {
    __shared__ Extent smem_extents[kWarps][kTurnedX];     // of warps
    __shared__ Extent smem_pieces[kMostPieces][kTurnedX]; // of the blocks of a cluster
    constexpr int kPlanes = plane_count(scheme);
    // place
    float *const smem = reinterpret_cast<float *>(dynamic_shared());
    const Planes &planes = source.planes;
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
    const int64_t column = number / source.pieces, k0 = (number - column * source.pieces) * source.piece_depth;
    const int64_t batch = column / source.tiles_x, x0 = (column - batch * source.tiles_x) * kTurnedX;
    const int x_left = planes.rows - x0 < kTurnedX ? static_cast<int>(planes.rows - x0) : kTurnedX;
    const int64_t left = planes.depth > k0 ? planes.depth - k0 : 0;
    const int k_left = left < source.piece_depth ? static_cast<int>(left) : source.piece_depth;
    const int k_end = (k_left + 63) / 64 * 64; // zeros fill up the last 64
    const float *const corner = source.matrix.matrix(batch) + x0 + (k_left > 0 ? k0 * source.matrix.ld : 0);

    if (!source.measured)
        ptx::arrive_at_cluster(); // this block runs, and others may write to it

    // load
    if (wide_quads(corner, source.matrix.ld, x_left)) {
        constexpr int kAcross = kTurnedX / 4;
        const int x = thread % kAcross * 4;
#pragma unroll 8
        for (int k = thread / kAcross; k < k_end; k += kThreads / kAcross) {
            const bool inside = x < x_left && k < k_left;
            ptx::copy_async<16>(smem + turned(x, k), inside ? corner + x + k * source.matrix.ld : corner, inside);
        }
    } else {
#pragma unroll 8
        for (int k = warp; k < k_end; k += kWarps) {
            const bool inside = lane < x_left && k < k_left;
            ptx::copy_async<4>(smem + turned(lane, k), inside ? corner + lane + k * source.matrix.ld : corner, inside);
        }
    }
    ptx::commit_copies();

    // measure, or take what was measured before: a column for each lane, and k shared by the warps
    Extent extent = no_extent();
    if (source.measured) {
        const Extent *const extents = planes.extents + batch * planes.rows + x0;
        if (lane < x_left)
            for (int slice = warp; slice < planes.slices(); slice += kWarps)
                include(&extent, extents[slice * planes.batch * planes.rows + lane]);
        ptx::wait_copies<0>();
    } else {
        ptx::wait_copies<0>();
        __syncthreads();
#pragma unroll 8
        for (int k = warp; k < k_end; k += kWarps)
            include(&extent, smem[turned(lane, k)]);
    }
    smem_extents[warp][lane] = extent;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kWarps; ++i)
        include(&extent, smem_extents[i][lane]);
    if (!source.measured) {
        // Each warp tells one block of the cluster.
        ptx::wait_for_cluster();
        if (warp < source.pieces)
            ptx::store_to_block(&smem_pieces[number % source.pieces][lane], extent, warp);
        ptx::arrive_at_cluster();
        ptx::wait_for_cluster();
        for (int i = 0; i < source.pieces; ++i)
            include(&extent, smem_pieces[i][lane]);
    }
    const int32_t exponent = row_exponent<scheme>(extent, source.least_exponent);
    const float factor_of_lane = row_factor<scheme>(exponent);
    if (warp == 0 && k0 == 0 && lane < x_left)
        planes.exponents[batch * planes.rows + x0 + lane] = exponent;

    // split and store: eight lanes side by side write 64 of k of one column
    uint16_t *const target = planes.data + batch * planes.matrix() + x0 * planes.ld() + k0;
#pragma unroll 2
    for (int task = warp; task < kTurnedX / 4 * (k_end / 64); task += kWarps) {
        const int x = task % (kTurnedX / 4) * 4 + lane / 8, k = task / (kTurnedX / 4) * 64 + lane % 8 * 8;
        const float factor = __shfl_sync(0xffffffff, factor_of_lane, x);
        if (x >= x_left)
            continue;
        uint32_t words[4][kPlanes];
#pragma unroll
        for (int i = 0; i < 4; ++i)
            split<scheme>(smem[turned(x, k + 2 * i)], smem[turned(x, k + 2 * i + 1)], factor, words[i]);
#pragma unroll
        for (int plane = 0; plane < kPlanes; ++plane)
            *reinterpret_cast<uint4 *>(target + plane * planes.plane() + x * planes.ld() + k) =
                uint4{words[0][plane], words[1][plane], words[2][plane], words[3][plane]};
    }
}

// ---- launches ------------------------------------------------------------------------------------------------------

__global__ void __launch_bounds__(kThreads)
    measure(const Scalar alpha, __grid_constant__ const Source a, __grid_constant__ const Source b) {
    const int64_t number = block_number();
    ptx::launch_dependents();
    ptx::wait_for_predecessors();
    if (number >= a.blocks + b.blocks || alpha.load() == 0.0f)
        return;
    const bool second = number >= a.blocks;
    measure_columns(second ? b : a, second ? number - a.blocks : number);
}

template <Scheme scheme>
__global__ void __launch_bounds__(kThreads)
    pack_planes(const Scalar alpha, __grid_constant__ const Source first, __grid_constant__ const Source second) {
    const int64_t number = block_number();
    ptx::launch_dependents();
    ptx::wait_for_predecessors();
    if (number >= first.blocks + second.blocks || alpha.load() == 0.0f)
        return;
    const bool later = number >= first.blocks;
    const Source &source = later ? second : first;
    const int64_t mine = later ? number - first.blocks : number;
    if (source.contiguous_k)
        pack_rows<scheme>(source, mine);
    else
        pack_columns<scheme>(source, mine);
}

// Least magnitudes that fit, as an exponent of two beside the row's. From k = 128 on the bound for each element has
// room for coarser small elements: twice as coarse for each four times the depth.
int least_exponent(Scheme scheme, int64_t k) {
    if (scheme == Scheme::bf16x3)
        return -110;
    if (scheme == Scheme::f16x1) // a normal number of the plane, with all of its 11 bits
        return -14;
    if (k < 128)
        return -13;
    int least = -15;
    for (int64_t depth = 256; depth <= k && least > -23; depth *= 4)
        --least;
    return least;
}

Source source_of(const Operand &matrix, const Planes &planes, bool contiguous_k, Scheme scheme) {
    Source source = {};
    source.matrix = matrix;
    source.planes = planes;
    source.contiguous_k = contiguous_k;
    source.least_exponent = least_exponent(scheme, planes.depth);
    source.team_bits = 3;
    while (source.team_bits < 8 && (int64_t{4 * kHeld} << source.team_bits) < planes.depth)
        ++source.team_bits;
    source.slice_depth = (planes.depth + planes.slices() - 1) / planes.slices();
    return source;
}

// Tiles along x for one launch; depth is how many blocks share a tile.
void cover(Source *source, int64_t side, int64_t depth) {
    source->tiles_x = (source->planes.rows + side - 1) / side;
    source->blocks = source->tiles_x * source->planes.batch * depth;
}

// Blocks of a cluster that hold whole columns between them; 0: they cannot. As few as hold them, but enough to keep the
// device busy, with 64 of k at least in each.
int cluster_of(int64_t depth, int64_t columns, const Device &device) {
    if (device.sm < 90 || depth > kMostHeldK)
        return 0;
    int blocks = 1;
    while (blocks < kMostPieces && blocks * 64 < depth &&
           (blocks * kMostHeldK / kMostPieces < depth || blocks * columns / kTurnedX < 4 * device.multiprocessors))
        blocks *= 2;
    return blocks;
}

} // namespace

Status pack(const Problem &problem, const PackedProduct &packed, Scheme scheme, const Launch &launch_on) {
    if (problem.k == 0 || (problem.alpha.known() && problem.alpha.value == 0.0f))
        return kSuccess;
    Source sources[] = {source_of(problem.a, packed.a, problem.transa == Op::T, scheme),
                        source_of(problem.b, packed.b, problem.transb == Op::N, scheme)};
    if (sources[0].contiguous_k) // blocks that turn take longer and come first
        std::swap(sources[0], sources[1]);
    int64_t columns = 0;
    for (const Source &source : sources)
        columns += source.contiguous_k ? 0 : source.planes.rows * source.planes.batch;
    const int cluster = columns > 0 ? cluster_of(problem.k, columns, *launch_on.device) : 1;
    Grid grid = {0, kThreads, 0, launch_on.stream, launch_on.device->sm >= 90};
    if (cluster == 0) {
        for (Source &source : sources)
            if (!source.contiguous_k)
                cover(&source, kMeasuredX, source.planes.slices());
        grid.blocks = sources[0].blocks + sources[1].blocks;
        PYBLAS_TRY(launch<measure>(grid, problem.alpha, sources[0], sources[1]));
    }
    grid.cluster = std::max(1, cluster);
    for (Source &source : sources) {
        if (source.contiguous_k) {
            cover(&source, kThreads >> source.team_bits, 1);
            source.blocks = (source.blocks + grid.cluster - 1) / grid.cluster * grid.cluster;
            continue;
        }
        source.measured = cluster == 0;
        source.pieces = cluster > 0 ? cluster : (problem.k + kTurnedK - 1) / kTurnedK;
        source.piece_depth =
            cluster > 0 ? static_cast<int>((problem.k + 64 * cluster - 1) / (64 * cluster)) * 64 : kTurnedK;
        cover(&source, kTurnedX, source.pieces);
        grid.shared_bytes = source.piece_depth * kTurnedX * static_cast<int>(sizeof(float));
    }
    grid.blocks = sources[0].blocks + sources[1].blocks;
    const auto start = [&](auto kernel) {
        if (grid.shared_bytes + kStaticBytes > kSharedWithoutOptIn)
            PYBLAS_TRY(
                allow_shared<kernel.value>(kMostHeldK / kMostPieces * kTurnedX * static_cast<int>(sizeof(float))));
        return launch<kernel.value>(grid, problem.alpha, sources[0], sources[1]);
    };
    using Planes2 = std::integral_constant<decltype(&pack_planes<Scheme::f16x2>), &pack_planes<Scheme::f16x2>>;
    using Planes3 = std::integral_constant<decltype(&pack_planes<Scheme::bf16x3>), &pack_planes<Scheme::bf16x3>>;
    using Planes1 = std::integral_constant<decltype(&pack_planes<Scheme::f16x1>), &pack_planes<Scheme::f16x1>>;
    return scheme == Scheme::f16x2 ? start(Planes2{}) : scheme == Scheme::f16x1 ? start(Planes1{}) : start(Planes3{});
}

} // namespace pyblas
