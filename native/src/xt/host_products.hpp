// Products of matrices that do not all lie on one GPU, as a handle keeps them: which GPUs take part, how much of their
// memory may be used, who is told of progress.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "problem.hpp"
#include "status.hpp"
#include "xt/plan.hpp"

struct pyblasContext;

namespace pyblas::xt {

class Gpu;

class HostProducts {
public:
    HostProducts();
    ~HostProducts(); // keeps what CUDA gave: see free()

    // The GPUs that take part; none: the handle's own.
    Status choose_devices(int count, const int *ordinals);

    size_t memory_limit = 0; // of each GPU; 0: a share of what is free
    pyblasXtProgress_t progress = nullptr;
    void *progress_context = nullptr;

    // The whole product; returns when C is written. depth > 0, scalars on the host, no arrays of pointers.
    Status multiply(pyblasContext &handle, const Problem &problem, const char *function);

    // Predicted seconds of a product of ordinary host memory.
    Status predict(pyblasContext &handle, const Problem &problem, double *seconds);

    Status free();
    void forget(); // after fork()

private:
    Status measure(pyblasContext &handle, Rates *rates);
    Status gpu_on(pyblasContext &handle, int ordinal, Gpu **gpu);

    std::vector<int> devices_;
    std::vector<std::unique_ptr<Gpu>> gpus_;
};

} // namespace pyblas::xt
