// The results that planes leave out, behind a kernel that the simulator can run.
#pragma once

#include "kernel.hpp"
#include "tensor/planes.cuh"

namespace pyblas {

// The results that an unfit row of op(A) or column of op(B) enters, by FP32 multiply-adds; nothing else is written.
Status multiply_unfit(const Problem &problem, const PackedProduct &packed, const Launch &launch_on);

} // namespace pyblas
