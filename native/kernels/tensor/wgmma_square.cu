// wgmma for tiles of 128 x 128. Compiled by itself to be compiled beside the others.
#include "wgmma.cuh"

namespace pyblas {

PYBLAS_MULTIPLY_PLANES(Square)
PYBLAS_MULTIPLY_PLANES(FullRange)

} // namespace pyblas
