// 16-bit numbers as they lie in memory, and the floats they stand for.
#pragma once

#include <cstdint>

#include "problem.hpp"
#include "ptx.cuh"

namespace pyblas {

__device__ __forceinline__ float float_of_half(Dtype type, uint16_t bits) {
    return type == Dtype::f16 ? ptx::floats_of_f16_pair(bits).x : __uint_as_float(static_cast<uint32_t>(bits) << 16);
}

// To the nearest, ties to even.
__device__ __forceinline__ uint16_t half_of_float(Dtype type, float value) {
    return static_cast<uint16_t>(type == Dtype::f16 ? ptx::f16_pair(value, 0.0f) : ptx::bf16_pair(value, 0.0f));
}

} // namespace pyblas
