// A warp's store of fragments (part_store.cuh), behind a kernel that the simulator can run.
#pragma once

#include "kernel.hpp"

namespace pyblas {

struct StoredPart {
    int rows;            // 48 or 64
    const float *sums;   // of each lane, rows / 4
    const float *powers; // of the rows, then of eight columns
    float *c;
    int64_t ld;
    int rows_left, columns_left;
    bool fits, plain;
    float alpha, beta;
};
Status store_part(const StoredPart &part);

} // namespace pyblas
