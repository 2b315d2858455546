// wgmma for tiles of 144 x 128. Compiled by itself to be compiled beside the others.
#include "wgmma.cuh"

namespace pyblas {

PYBLAS_MULTIPLY_PLANES(Tall)

} // namespace pyblas
