// What the tensor kernels leave to others: planes before they multiply.
#pragma once

#include "kernel.hpp"
#include "planes.cuh"

namespace pyblas {

// Of k, up to which an operand is read once whatever its layout, on Hopper.
constexpr int64_t kMostDepthAtOnce = 8192;
// Least magnitudes that fit, as an exponent of two beside the row's.
int least_plane_exponent(Scheme scheme, int64_t k);

// Fills the planes and exponents of both operands, or of the one that has rows; nothing if alpha is 0 or k is.
Status pack(const Problem &problem, const PackedProduct &packed, Scheme scheme, const Launch &launch_on);

} // namespace pyblas
