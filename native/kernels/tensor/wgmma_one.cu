// wgmma with one sum of all products of planes, for large C. Compiled by itself to be compiled beside the others.
#include "wgmma.cuh"

namespace pyblas {

PYBLAS_MULTIPLY_PLANES(WideOne)

} // namespace pyblas
