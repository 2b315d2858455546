// mma_planes with the simulator's wrappers in the place of those of plane_ptx.cuh.
#include "device/ptx.cuh"

#undef PYBLAS_HAS_WARP_MULTIPLY
#define PYBLAS_HAS_WARP_MULTIPLY 0
#include "device/plane_ptx.cuh" // nothing of it, now and later
#undef PYBLAS_HAS_WARP_MULTIPLY
#define PYBLAS_HAS_WARP_MULTIPLY 1

#include "tensor/mma_planes.cu"
