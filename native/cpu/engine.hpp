// The CPU engine as the host side sees it: facts, threads, the BLAS behind large products. Its kernels are rows of the
// dispatch table like any other (cpu_rows()); they run on the calling thread and the pool and return when C is written.
#pragma once

#include "kernel.hpp"

namespace pyblas::cpu {

Device device(); // engine = cpu, with this machine's measured-order-of-magnitude rates
Status info(pyblasCpuInfo_t *out);
Status set_num_threads(int threads);
int num_threads();
Status set_blas_library(const char *path);
Status check_environment(); // of the engine's own variables

} // namespace pyblas::cpu

namespace pyblas {
KernelRows cpu_rows();
}
