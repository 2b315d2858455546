// wgmma for large C. Compiled by itself to be compiled beside the others.
#include "wgmma.cuh"

namespace pyblas {

PYBLAS_MULTIPLY_PLANES(Middle)
PYBLAS_MULTIPLY_PLANES(Wide)

} // namespace pyblas
