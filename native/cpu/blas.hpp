// The BLAS behind large products: some library with cblas_sgemm, opened at the first product that is worth it, set to
// one thread, and called for one block at a time by the threads of our pool.
#pragma once

#include <cstdint>

#include "isa.hpp"
#include "status.hpp"

namespace pyblas::cpu {

enum class BlasState : int { untried, loaded, absent };

BlasState blas_state();
bool load_blas();          // tries once; true if there is one
const char *blas_config(); // what it says of itself; "" if there is none
const char *blas_path();   // the file it came from; without one, why a named file could not be used
Status name_blas(const char *path);

// p by the BLAS. Needs a loaded one, extents and strides below 2^31, a non-zero alpha and k, and c_row == 1.
// False, and nothing done, once the process is ending, and if the BLAS itself asks.
bool blas_gemm(const Product &p);

} // namespace pyblas::cpu
