// What products of f16x2_one need beside planes: the share of their small elements.
#pragma once

#include "kernel.hpp"
#include "planes.cuh"

namespace pyblas {

// Adds to C, as the planes have left it, what elements of A and B that are zeros in them for being small contribute.
// Where they are too many for that, C has not been touched yet: then packed.a.scalars() become the product's alpha and
// beta, and 0 and 1 otherwise, so that kernels of another scheme that follow with these compute all of it or nothing.
Status add_small_elements(const Problem &problem, const PackedProduct &packed, const Launch &launch_on);

} // namespace pyblas
