// Operands of the tensor kernels: each FP32 matrix as a few planes of 16-bit numbers whose sum it is, contiguous along
// k whatever op and ld were. The packing kernels write them, the multiplying kernels read them; both learn here where.
//
//     op(A), m x k     row i     f16x2:  a = 2^exponent(i) * (hi + 2^-11 lo), the row's maximum near 2^14
//     op(B), k x n     column j  bf16x3: b = b0 + b1 + b2, no exponents, all of fp32's range
//
// Nothing past the last row or past k is ever read: the copies that bring planes to shared memory write zeros there.
#pragma once

#include <cstddef>
#include <cstdint>

#include "problem.hpp"

namespace pyblas {

enum class Scheme : uint8_t { f16x2, bf16x3 };

constexpr int plane_count(Scheme scheme) {
    return scheme == Scheme::f16x2 ? 2 : 3;
}

constexpr int kLowPlaneBits = 11; // f16x2: the low plane counts 2^-11

// A row's exponent lies between these, so that half of it, and half the sum of two, are exponents of normal floats.
constexpr int kLeastPlaneExponent = -126, kMostPlaneExponent = 114;

// One operand. A row is a row of op(A), or a column of op(B).
struct Planes {
    uint16_t *data;     // [batch][plane][row][ld]; hi, lo, or b0, b1, b2
    int32_t *exponents; // [batch][row] for f16x2, otherwise null
    int64_t rows, depth;
    int64_t batch; // 1 also where all products share the matrix
    int32_t count; // planes

    PYBLAS_HOST_DEVICE int64_t ld() const { return (depth + 63) / 64 * 64; }
    PYBLAS_HOST_DEVICE int64_t plane() const { return rows * ld(); }
    PYBLAS_HOST_DEVICE int64_t matrix() const { return count * plane(); }
    PYBLAS_HOST_DEVICE int64_t shared_batch(int64_t index) const { return batch == 1 ? 0 : index; }
};

// What packing found, for the kernels queued behind it. They never look at elements to decide.
struct Verdict {
    uint32_t unfit; // 0: the planes hold every element, and their product may be taken
    uint32_t reserved[63];
};

// The workspace of one product or batch.
struct PackedProduct {
    Verdict *verdict;
    Planes a, b;
    size_t bytes;

    static PackedProduct of(const Problem &problem, Scheme scheme, void *workspace) {
        char *const base = static_cast<char *>(workspace);
        size_t bytes = 0;
        const auto take = [&](size_t part) {
            char *const start = base ? base + bytes : nullptr;
            bytes += (part + 255) / 256 * 256;
            return start;
        };
        const auto operand = [&](const Operand &source, int64_t rows) {
            const bool one = problem.batch == 1 || (!source.array && source.stride == 0);
            Planes planes = {nullptr, nullptr, rows, problem.k, one ? 1 : problem.batch, plane_count(scheme)};
            if (scheme == Scheme::f16x2)
                planes.exponents = reinterpret_cast<int32_t *>(
                    take(static_cast<size_t>(planes.batch * rows) * sizeof(*planes.exponents)));
            planes.data = reinterpret_cast<uint16_t *>(
                take(static_cast<size_t>(planes.batch * planes.matrix()) * sizeof(*planes.data)));
            return planes;
        };
        PackedProduct packed = {};
        packed.verdict = reinterpret_cast<Verdict *>(take(sizeof(Verdict)));
        packed.a = operand(problem.a, problem.m);
        packed.b = operand(problem.b, problem.n);
        packed.bytes = bytes;
        return packed;
    }
};

} // namespace pyblas
