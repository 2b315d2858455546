// Products whose k is cut into ranges: where each range leaves its sums, and how they are added, always in the same
// order. Alpha, beta and C wait for the total.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernel.hpp"

#include "epilogue.cuh"
#include "launch.cuh"
#include "ptx.cuh"

namespace pyblas {

// [range][batch][column][row], without gaps beyond whole quads of rows.
struct Partials {
    float *data;
    int64_t rows, ld, columns, batch;
    int ranges;

    static Partials of(const Problem &problem, int ranges, void *workspace) {
        return {static_cast<float *>(workspace), problem.m, (problem.m + 3) / 4 * 4, problem.n, problem.batch, ranges};
    }
    PYBLAS_HOST_DEVICE int64_t matrix() const { return ld * columns; }
    PYBLAS_HOST_DEVICE int64_t range() const { return matrix() * batch; }
    size_t bytes() const { return static_cast<size_t>(range()) * static_cast<size_t>(ranges) * sizeof(float); }
};

template <int Threads>
__global__ void __launch_bounds__(Threads) clear_arrivals(uint32_t *arrivals, int64_t count) {
    for (int64_t i = threadIdx.x; i < count; i += Threads)
        arrivals[i] = 0;
}

// Clears counters where the workspace has no zeros.
inline Status clear(uint32_t *arrivals, int64_t count, CUstream_st *stream) {
    constexpr int kThreads = 256;
    return launch<clear_arrivals<kThreads>>({1, kThreads, 0, stream}, arrivals, count);
}

// Lanes of one output add ranges side by side, lane 0 the first ones; then the lanes' sums are added from 0 on.
template <int Threads>
__global__ void __launch_bounds__(Threads)
    sum_partials(__grid_constant__ const Problem problem, __grid_constant__ const Partials partials, int lanes) {
    __shared__ float smem_sums[Threads];
    ptx::launch_dependents();
    ptx::wait_for_predecessors();
    const Epilogue epilogue(problem);
    if (epilogue.idle())
        return;
    const int outputs = Threads / lanes, thread = static_cast<int>(threadIdx.x);
    const int lane = thread / outputs;
    const int64_t output = block_number() * outputs + thread % outputs;
    const int64_t matrix = output / (partials.ld * partials.columns), inside = output - matrix * partials.matrix();
    const int64_t column = inside / partials.ld, row = inside - column * partials.ld;
    const bool exists = output < partials.range() && row < partials.rows;

    float sum = 0.0f;
    if (exists && epilogue.depth() > 0) {
        const int each = (partials.ranges + lanes - 1) / lanes;
        const int end = min(partials.ranges, (lane + 1) * each);
        const float *source = partials.data + output + lane * each * partials.range();
#pragma unroll 8
        for (int range = lane * each; range < end; ++range, source += partials.range())
            sum += *source;
    }
    if (lanes > 1) {
        smem_sums[thread] = sum;
        __syncthreads();
        if (lane > 0)
            return;
        for (int other = 1; other < lanes; ++other)
            sum += smem_sums[thread + other * outputs];
    }
    if (exists)
        epilogue.store(problem.c.matrix(matrix) + row + column * problem.c.ld, sum);
}

inline Status add_partials(const Problem &problem, const Partials &partials, const Launch &launch_on) {
    constexpr int kThreads = 256;
    int lanes = 1;
    while (lanes < 32 && lanes * 8 < partials.ranges)
        lanes *= 2;
    const int64_t outputs = kThreads / lanes;
    // The same split of L1 and shared memory as the kernel ahead has: a multiprocessor changes it only when it is idle.
    PYBLAS_TRY((allow_shared<sum_partials<kThreads>>(kSharedWithoutOptIn - kThreads * 4)));
    return launch<sum_partials<kThreads>>(
        {(partials.range() + outputs - 1) / outputs, kThreads, 0, launch_on.stream, launch_on.device->starts_early},
        problem, partials, lanes);
}

} // namespace pyblas
