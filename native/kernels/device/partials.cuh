// Products whose k is cut into ranges: where each range leaves its sums, and how they are added, always in the same
// order. Alpha, beta and C wait for the total.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernel.hpp"

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

// Clears counters where the workspace has no zeros.
Status clear(uint32_t *arrivals, int64_t count, CUstream_st *stream);

// The ranges' sums to C: a thread adds those of one row, or of four neighbours, which is quicker where C is large.
Status add_partials(const Problem &problem, const Partials &partials, const Launch &launch_on);
Status add_partials_by_quads(const Problem &problem, const Partials &partials, const Launch &launch_on);

} // namespace pyblas
