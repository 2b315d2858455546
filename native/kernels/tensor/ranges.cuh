// Kernels that split floats on their way and cut k into ranges: what problem a range is by itself.
#pragma once

#include "../device/partials.cuh"

namespace pyblas {

// One range of so much depth, of all rows and columns. The problem's C is workspace where there are several: products
// of the batch one after another, range by range.
__device__ __forceinline__ Problem range_of(const Problem &problem, int range, int64_t depth, int64_t products) {
    Problem part = problem;
    const int64_t first = range * depth;
    const auto advance = [](Operand *operand, int64_t elements) {
        if (operand->array)
            operand->stride += elements;
        else
            operand->data = static_cast<float *>(operand->data) + elements;
    };
    part.k = min(depth, problem.k - first);
    advance(&part.a, problem.transa == Op::T ? first : first * problem.a.ld);
    advance(&part.b, problem.transb == Op::N ? first : first * problem.b.ld);
    advance(&part.c, range * products * problem.c.stride);
    return part;
}

inline Status add_ranges(const Problem &problem, const Partials &partials, const Launch &launch_on) {
    return add_partials_by_quads(problem, partials, launch_on);
}

} // namespace pyblas
