// 16-bit numbers as they lie in memory, and the floats they stand for.
#pragma once

#include <cstdint>

#include "problem.hpp"
#include "ptx.cuh"

namespace pyblas {

__device__ __forceinline__ float float_of_half(Dtype type, uint16_t bits) {
    return type == Dtype::f16 ? ptx::floats_of_f16_pair(bits).x : __uint_as_float(static_cast<uint32_t>(bits) << 16);
}

__device__ __forceinline__ float2 floats_of_halves(Dtype type, uint32_t pair) {
    return type == Dtype::f16 ? ptx::floats_of_f16_pair(pair)
                              : float2{__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000)};
}

// To the nearest, ties to even.
__device__ __forceinline__ uint16_t half_of_float(Dtype type, float value) {
    return static_cast<uint16_t>(type == Dtype::f16 ? ptx::f16_pair(value, 0.0f) : ptx::bf16_pair(value, 0.0f));
}

__device__ __forceinline__ uint32_t halves_of_floats(Dtype type, const float2 &pair) {
    return type == Dtype::f16 ? ptx::f16_pair(pair.x, pair.y) : ptx::bf16_pair(pair.x, pair.y);
}

} // namespace pyblas
