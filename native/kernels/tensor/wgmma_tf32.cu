// wgmma for the mode tf32: one plane. Compiled by itself to be compiled beside the others.
#include "wgmma.cuh"

namespace pyblas {

PYBLAS_MULTIPLY_PLANES(NarrowTf32)
PYBLAS_MULTIPLY_PLANES(SquareTf32)
PYBLAS_MULTIPLY_PLANES(WideTf32)

} // namespace pyblas
