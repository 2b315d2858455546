// What the tensor kernels leave to others: planes before they multiply, and the results that planes cannot give.
#pragma once

#include "kernel.hpp"
#include "planes.cuh"

namespace pyblas {

// Fills the planes and exponents of both operands; nothing if alpha is 0 or k is.
Status pack(const Problem &problem, const PackedProduct &packed, Scheme scheme, const Launch &launch_on);

// The results that an unfit row of op(A) or column of op(B) enters, by FP32 multiply-adds; nothing else is written.
Status multiply_unfit(const Problem &problem, const PackedProduct &packed, const Launch &launch_on);

} // namespace pyblas
