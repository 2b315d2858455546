// Kernels that split floats on their way and cut k into ranges: how many, and what problem a range is by itself.
#pragma once

#include <algorithm>

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

// Ranges, and of how many chunks of k each.
struct Ranges {
    int count, chunks;
};

// So many chunks in the ranges for which seconds(ranges, chunks) is least: with a few chunks in each, and none empty.
template <class Seconds>
Ranges least_ranges(int chunks, const Seconds &seconds) {
    constexpr int kLeastChunks = 4, kMostRanges = 128;
    Ranges best = {1, chunks};
    double least = seconds(1, chunks);
    for (int ranges = 2; ranges <= std::min(kMostRanges, chunks / kLeastChunks); ++ranges) {
        const int each = (chunks + ranges - 1) / ranges, needed = (chunks + each - 1) / each;
        if (const double time = seconds(needed, each); time < least)
            best = {needed, each}, least = time;
    }
    return best;
}

// What the ranges multiply: where there are several, their sums are its C.
inline Problem before_adding(const Problem &problem, const Partials &partials) {
    Problem target = problem;
    if (partials.ranges > 1) {
        target.c = {partials.data, nullptr, partials.ld, partials.matrix()};
        target.alpha = {1.0f, nullptr};
        target.beta = {0.0f, nullptr};
    }
    return target;
}

} // namespace pyblas
