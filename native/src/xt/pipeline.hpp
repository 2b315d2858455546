// Runs a plan: brings blocks, multiplies, takes tiles back, all three side by side. Ordinary host memory, which a GPU
// does not copy at the link's speed, goes through a ring of staging chunks that threads of the host fill and empty.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "xt/executor.hpp"
#include "xt/plan.hpp"

namespace pyblas::xt {

// What the caller and all pipelines of a product share.
struct Progress {
    std::atomic<int64_t> products{0}; // done
    std::atomic<bool> stop{false};    // asked for by the caller, or another pipeline has failed
};

struct Options {
    bool staged[kMatrices] = {}; // ordinary host memory
    int fill_threads = 1, empty_threads = 1;
    int64_t chunk_bytes = 2 << 20; // at most
    int64_t limit = 0;             // bytes of device memory
    Rates rates;
    int64_t first = 0, last = 0; // tiles
    Plans *plans = nullptr;      // of earlier products, if they are kept
};

struct Outcome {
    Status status = PYBLAS_STATUS_SUCCESS;
    std::string message;
    bool stopped = false;                // on request, which is no failure of its own
    int64_t tiles_written = 0;           // hold the result
    int64_t tiles_undefined = 0;         // of which a part may have been written
    int64_t bytes_in = 0, bytes_out = 0; // as planned
    int64_t device_bytes = 0;            // allocated
    double multiply_seconds = 0;         // from the first product to the last
};

// Returns when all is over: C's tiles are written, nothing is queued, all memory is given back.
Outcome run(Executor &executor, const Problem &problem, const Grid &grid, const Options &options, Progress &progress);

} // namespace pyblas::xt
