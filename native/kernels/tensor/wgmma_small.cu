// wgmma for small C: two groups share a tile, each with half of k. Compiled by itself to be compiled beside the others.
#include "wgmma.cuh"

namespace pyblas {

PYBLAS_MULTIPLY_PLANES(Tiny)
PYBLAS_MULTIPLY_PLANES(Narrow)
PYBLAS_MULTIPLY_PLANES(Flat)

} // namespace pyblas
