// The table of kernels and the choice among them. Pure: no environment, no pointer values, no CUDA call.
#pragma once

#include "kernel.hpp"

namespace pyblas {

// Row number index, or nullptr past the end.
const Kernel *kernel_at(int index);
const Kernel *kernel_named(const char *name);

struct Selection {
    const Kernel *kernel = nullptr;
    double seconds = 0; // predicted
    int legal = 0;      // rows that could have run
};

// The legal kernel with the least predicted cost that needs no more workspace than there is, or the forced one. The
// ladder's steps are candidates only where no kernel that ships is legal.
// A forced kernel that is not legal fails with the reason; without one, selection cannot fail.
Status select(const Problem &problem, const Device &device, size_t workspace_limit, const Kernel *forced,
              Selection *selection);

// Why a row cannot run, or nullptr.
const char *illegal(const Kernel &kernel, const Problem &problem, const Device &device, size_t workspace_limit);

} // namespace pyblas
