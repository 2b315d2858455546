// Between the parts of the preloaded shim.
#pragma once

#include "cublas_target.hpp"

namespace pyblas::shim {

// cuBLASLt's own readers of its descriptors.
struct Descriptors {
    decltype(&cublasLtMatmulDescGetAttribute) of_product;
    decltype(&cublasLtMatrixLayoutGetAttribute) of_matrix;
};
const Descriptors *descriptors_of(const Call &call) noexcept; // nullptr if the library was not found

// Whether the address is in libcublas or libcublasLt, which call cuBLASLt's public functions themselves.
bool from_cublas(const void *caller) noexcept;

} // namespace pyblas::shim
