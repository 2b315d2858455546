// wgmma for small C. Compiled by itself to be compiled beside the others.
#include "wgmma.cuh"

namespace pyblas {

PYBLAS_MULTIPLY_PLANES(Tiny)
PYBLAS_MULTIPLY_PLANES(Narrow)
PYBLAS_MULTIPLY_PLANES(Flat)

} // namespace pyblas
