// Operands of the tensor kernels: each FP32 matrix as a few planes of 16-bit numbers whose sum it is, contiguous along
// k or across it as the matrix was. The packing kernels write them, the multiplying kernels read them; both learn here
// where.
//
//     op(A), m x k     row i     f16x2:  a = 2^exponent(i) * (hi + 2^-11 lo), the row's maximum near 2^14
//     op(B), k x n     column j  bf16x3: b = b0 + b1 + b2, no exponents, all of fp32's range
//                                f16x1:  hi alone, which is as exact as TF32
//                                f16x2_one: as f16x2, but hi + lo, so that all products of planes are one sum; small
//                                        elements, for which lo is too coarse, are zeros in the planes (one_sum.hpp)
//
// Nothing past the last row or past k is ever read: the copies that bring planes to shared memory write zeros there.
// A row of which the planes do not hold every element (numerics.md says when) is unfit; its planes mean nothing, and
// the results that it enters are left to a kernel of FP32 multiply-adds.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "problem.hpp"

namespace pyblas {

// Elsewhere than in 90a code mma_planes alone reads planes; pack.cu says which kernels are empty there.
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr bool kEmptyHere = true;
#else
constexpr bool kEmptyHere = false;
#endif

enum class Scheme : uint8_t { f16x2, bf16x3, f16x1, f16x2_one };

PYBLAS_HOST_DEVICE constexpr int plane_count(Scheme scheme) {
    return scheme == Scheme::f16x1 ? 1 : scheme == Scheme::bf16x3 ? 3 : 2;
}

constexpr int kLowPlaneBits = 11; // f16x2: the low plane counts 2^-11

// A row's exponent is even, at least this and at most 114, so that half of it, and half the sum of two, are exponents
// of normal floats. For an unfit row it is kUnfitRow instead.
constexpr int kLeastPlaneExponent = -126;
constexpr int32_t kUnfitRow = 1 << 20;

// What packing knows of the magnitudes in a row: bits of the largest, and of the smallest that is not zero, less one.
// Both compare as the numbers do; of a row of zeros they are 0 and 2^32 - 1.
struct Extent {
    uint32_t most, least;
};

// One operand. A row is a row of op(A), or a column of op(B).
struct Planes {
    uint16_t *data;     // [batch][plane][row][ld], or, across, [batch][plane][k][ld]; hi, lo, or b0, b1, b2
    int32_t *exponents; // [batch][row]; bf16x3: 0 or kUnfitRow
    Extent *extents;    // [slice][batch][row], of packing alone
    int64_t rows, depth;
    int64_t batch; // 1 also where all products share the matrix
    int32_t count; // planes
    bool across;   // neighbours are rows of one k

    // Lines of 128 bytes, but no more than the copy engine needs where lines are short.
    PYBLAS_HOST_DEVICE int64_t ld() const {
        const int64_t line = across ? rows : depth, unit = across && rows < 512 ? 8 : 64;
        return (line + unit - 1) / unit * unit;
    }
    PYBLAS_HOST_DEVICE int64_t plane() const { return (across ? depth : rows) * ld(); }
    PYBLAS_HOST_DEVICE int64_t matrix() const { return count * plane(); }
    PYBLAS_HOST_DEVICE int64_t shared_batch(int64_t index) const { return batch == 1 ? 0 : index; }
    // f16x2_one, behind the exponents: of each row, [batch][row], a bit for each 32nd of k with small elements; then
    // how many these are, kInVain if that is settled, and two scalars of the product where they are too many.
    static constexpr uint32_t kInVain = 0xffffffff;
    PYBLAS_HOST_DEVICE uint32_t *small_slices() const { return reinterpret_cast<uint32_t *>(exponents + batch * rows); }
    PYBLAS_HOST_DEVICE uint32_t *small_count() const { return small_slices() + batch * rows; }
    PYBLAS_HOST_DEVICE float *scalars() const { return reinterpret_cast<float *>(small_count() + 1); }
    PYBLAS_HOST_DEVICE int slice_bits() const {
        int bits = 0;
        while ((int64_t{32} << bits) < depth)
            ++bits;
        return bits;
    }
    // As packing finds it from its start to its end, and so do all blocks of a cluster.
    PYBLAS_HOST_DEVICE bool in_vain() const { return *small_count() == kInVain; }
    // More than can be added one by one in less time than one sum saves.
    PYBLAS_HOST_DEVICE bool too_many_small() const {
        constexpr int kRowsForEach = 16;
        return *static_cast<const volatile uint32_t *>(small_count()) > batch * rows / kRowsForEach;
    }
    // Of k, whose extents are found side by side: enough to keep a GPU busy, with 64 of k at least in each.
    PYBLAS_HOST_DEVICE int slices() const {
        constexpr int64_t kBlocks = 1024, kMost = 128;
        const int64_t blocks = (rows + 127) / 128 * batch, wanted = (kBlocks + blocks - 1) / blocks;
        const int64_t most = (depth + 63) / 64 < kMost ? (depth + 63) / 64 : kMost;
        return static_cast<int>(wanted < most ? wanted : most);
    }
};

// The workspace of one product or batch.
struct PackedProduct {
    Planes a, b;
    size_t bytes;

    // What comes first stays where it is, whatever the size of the other.
    static PackedProduct of(const Problem &problem, Scheme scheme, void *workspace, bool b_first = false) {
        char *const base = static_cast<char *>(workspace);
        size_t bytes = 0;
        const auto take = [&](int64_t count, size_t size) {
            char *const start = base ? base + bytes : nullptr;
            bytes += (static_cast<size_t>(count) * size + 255) / 256 * 256;
            return start;
        };
        const auto operand = [&](const Operand &source, int64_t rows, bool contiguous_k) {
            const bool one = problem.batch == 1 || (!source.array && source.stride == 0);
            Planes planes = {
                nullptr,      nullptr, nullptr, rows, problem.k, one ? 1 : problem.batch, plane_count(scheme),
                !contiguous_k};
            const int64_t all = planes.batch * rows;
            const bool lists = scheme == Scheme::f16x2_one;
            planes.exponents = reinterpret_cast<int32_t *>(take(lists ? 2 * all + 3 : all, sizeof(int32_t)));
            if (!contiguous_k)
                planes.extents = reinterpret_cast<Extent *>(take(all * planes.slices(), sizeof(Extent)));
            planes.data = reinterpret_cast<uint16_t *>(take(planes.batch * planes.matrix(), sizeof(uint16_t)));
            return planes;
        };
        PackedProduct packed = {};
        if (b_first)
            packed.b = operand(problem.b, problem.n, problem.transb == Op::N);
        packed.a = operand(problem.a, problem.m, problem.transa == Op::T);
        if (!b_first)
            packed.b = operand(problem.b, problem.n, problem.transb == Op::N);
        packed.bytes = bytes;
        return packed;
    }
};

} // namespace pyblas
