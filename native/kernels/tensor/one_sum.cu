// one_sum: what planes of f16x2_one leave out. lo has no scale there, so that all products of planes are one sum in the
// tensor cores; it is too coarse for small elements (numerics.md says which), about one in twenty million of normal
// data. They are zeros in the planes, and their products are added here by FP32 multiply-adds.
//
//          . . . . x . . .                     a block has 512 x 512 of C, and sees which rows and columns of it have
//          s s s s s s s s  <- small in A      small elements. They are found again in the slices of k that packing
//          . . . . x . . .                     has marked, in the order of k, and multiplied with the other operand's;
//                  ^ small in B                the sums are added to C
//
// Rows come first, then columns, without what is small in both. 256 threads, 5 KB.
#include "one_sum.hpp"

#include "../device/epilogue.cuh"
#include "../device/launch.cuh"
#include "../device/load.cuh"
#include "../device/ptx.cuh"
#include "pack.hpp"

namespace pyblas {
namespace {

constexpr int kThreads = 256, kSide = 512, kResults = kSide / kThreads; // of a thread, of one line

// One operand of a product: its rows, as Planes says, and which of them have small elements.
struct Lines {
    View view;
    const int32_t *exponents;
    const uint32_t *slices;
    int64_t first, count; // of this block
    int least_exponent;

    __device__ __forceinline__ Lines(const View &view_, const Planes &planes, int64_t batch, int64_t first_, int least)
        : view(view_), first(first_), count(planes.rows - first_ < kSide ? planes.rows - first_ : kSide),
          least_exponent(least) {
        const int64_t step = planes.shared_batch(batch) * planes.rows;
        exponents = planes.exponents + step;
        slices = planes.small_slices() + step;
    }
    // Below which magnitudes of a line are small.
    __device__ __forceinline__ float limit(int64_t line) const {
        const int exponent = exponents[line];
        return exponent == kUnfitRow ? 0.0f : ldexpf(1.0f, exponent + least_exponent);
    }
};

struct Memory {
    int listed[kSide]; // lines with small elements, in any order
    int lines, found[kThreads / 32];
    int64_t k[kThreads]; // of small elements
    float values[kThreads];
};

// C has a step from one line to the next, and one along a line. Second: the other operand's small elements have been
// here already.
template <bool Second>
__device__ __forceinline__ void add_lines(const Epilogue &epilogue, const Lines &lines, const Lines &other, float *c,
                                          int64_t step_line, int64_t step_along, int64_t depth, int slice_bits,
                                          Memory *smem) {
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
    if (thread == 0)
        smem->lines = 0;
    __syncthreads();
    for (int line = thread; line < lines.count; line += kThreads)
        if (lines.slices[lines.first + line] != 0)
            smem->listed[atomicAdd(&smem->lines, 1)] = line;
    __syncthreads();
    for (int i = 0; i < smem->lines; ++i) {
        const int64_t line = lines.first + smem->listed[i];
        const float limit = lines.limit(line);
        float sums[kResults] = {}, limits[kResults];
        bool wanted[kResults];
#pragma unroll
        for (int j = 0; j < kResults; ++j) {
            const int along = thread + j * kThreads;
            const int64_t x = other.first + along;
            wanted[j] = along < other.count && other.exponents[x] != kUnfitRow;
            limits[j] = Second && wanted[j] ? other.limit(x) : 0.0f;
        }
        const uint32_t slices = lines.slices[line];
        for (int slice = 0; slice < 32; ++slice) {
            if ((slices >> slice & 1) == 0)
                continue;
            const int64_t first = int64_t{slice} << slice_bits, end = first + (int64_t{1} << slice_bits);
            for (int64_t k0 = first; k0 < end && k0 < depth; k0 += kThreads) {
                const int64_t k = k0 + thread;
                const float value = k < end && k < depth ? *lines.view.at(line, k) : 0.0f;
                const bool small = value != 0.0f && fabsf(value) < limit;
                const uint32_t lanes = __ballot_sync(0xffffffff, small);
                if (lane == 0)
                    smem->found[warp] = __popc(lanes);
                __syncthreads();
                int before = __popc(lanes & ((1u << lane) - 1)), all = 0;
#pragma unroll
                for (int of = 0; of < kThreads / 32; ++of) {
                    before += of < warp ? smem->found[of] : 0;
                    all += smem->found[of];
                }
                if (small)
                    smem->k[before] = k, smem->values[before] = value;
                __syncthreads();
                for (int of = 0; of < all; ++of)
#pragma unroll
                    for (int j = 0; j < kResults; ++j)
                        if (wanted[j]) {
                            const float factor = *other.view.at(other.first + thread + j * kThreads, smem->k[of]);
                            if (!Second || !(fabsf(factor) < limits[j]))
                                sums[j] = fmaf(smem->values[of], factor, sums[j]);
                        }
            }
        }
#pragma unroll
        for (int j = 0; j < kResults; ++j)
            if (wanted[j])
                epilogue.store(c + smem->listed[i] * step_line + (thread + j * kThreads) * step_along, sums[j]);
        __syncthreads();
    }
}

__global__ void __launch_bounds__(kThreads, 4)
    add_small(__grid_constant__ const Problem onto, __grid_constant__ const PackedProduct packed, const Scalar beta,
              int least_exponent) {
    __shared__ Memory memory;
    ptx::launch_dependents();
    ptx::wait_for_predecessors();
    if (kEmptyHere)
        return;
    const Epilogue epilogue(onto);
    const bool too_many = epilogue.depth() > 0 && (packed.a.too_many_small() || packed.b.too_many_small());
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        packed.a.scalars()[0] = too_many ? onto.alpha.load() : 0.0f;
        packed.a.scalars()[1] = too_many ? beta.load() : 1.0f;
        // Planes of another scheme follow, also where those of the next part of C would be kept.
        if (too_many) { // which other blocks look at
            atomicOr(packed.a.small_count(), Planes::kInVain);
            atomicOr(packed.b.small_count(), Planes::kInVain);
        }
    }
    if (too_many || epilogue.depth() == 0)
        return;
    const int64_t tiles_m = (onto.m + kSide - 1) / kSide, tiles = tiles_m * ((onto.n + kSide - 1) / kSide);
    const int64_t number = block_number(), batch = number / tiles, tile = number - batch * tiles;
    if (batch >= onto.batch)
        return;
    const int64_t row = tile % tiles_m * kSide, column = tile / tiles_m * kSide;
    const Lines a(view_a(onto, batch), packed.a, batch, row, least_exponent);
    const Lines b(view_b(onto, batch), packed.b, batch, column, least_exponent);
    float *const c = onto.c.matrix(batch) + row + column * onto.c.ld;
    const int slice_bits = packed.a.slice_bits();
    add_lines<false>(epilogue, a, b, c, 1, onto.c.ld, onto.k, slice_bits, &memory);
    __syncthreads();
    add_lines<true>(epilogue, b, a, c, onto.c.ld, 1, onto.k, slice_bits, &memory);
}

} // namespace

Status add_small_elements(const Problem &problem, const PackedProduct &packed, const Launch &launch_on) {
    Problem onto = problem;
    onto.beta = Scalar{1.0f};
    const int64_t blocks = (problem.m + kSide - 1) / kSide * ((problem.n + kSide - 1) / kSide) * problem.batch;
    return launch<add_small>({blocks, kThreads, 0, launch_on.stream, true}, onto, packed, problem.beta,
                             least_plane_exponent(Scheme::f16x2_one, problem.k));
}

} // namespace pyblas
