// What products of host memory were predicted to take and have taken, by shape and place. A prediction is a formula;
// where the same product has been computed before, that is known better. It decides where a product is computed, never
// how.
#pragma once

#include <cstddef>

#include "problem.hpp"

namespace pyblas::xt {

struct Where {
    int gpu = -1;            // -1: the CPU
    size_t memory_limit = 0; // of the GPU
};

// Seconds to reckon with for a product, if it is known here.
bool expects(const Problem &problem, const Where &where, double *seconds);

// The same, once a formula has been asked.
double note_prediction(const Problem &problem, const Where &where, double predicted);

// From the first question on; before it nobody needs to know what products take.
bool is_watched();

// The product has taken so long.
void note(const Problem &problem, const Where &where, double seconds);

} // namespace pyblas::xt
