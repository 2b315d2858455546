// How fast the CPU engine is on this machine, measured when somebody first asks and kept for the process. It decides
// where a product is computed, never how.
#pragma once

#include "problem.hpp"
#include "status.hpp"

namespace pyblas::xt {

// Predicted seconds of a product of host memory.
Status predict_on_cpu(const Problem &problem, double *seconds);

} // namespace pyblas::xt
