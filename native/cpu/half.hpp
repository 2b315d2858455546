// float16 and bfloat16 as they lie in memory, and the floats they stand for; loops of these the compiler makes vectors
// of.
#pragma once

#include <cstdint>
#include <cstring>

#include "problem.hpp"

namespace pyblas::cpu {

inline uint32_t bits_of(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}
inline float float_of(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

inline float float_of_f16(uint16_t half) {
    const uint32_t magnitude = static_cast<uint32_t>(half & 0x7fff) << 13, sign = static_cast<uint32_t>(half >> 15)
                                                                                  << 31;
    // Exponents are 112 apart; a product with a power of two also makes normal numbers of subnormal ones.
    const uint32_t scaled = bits_of(float_of(magnitude) * 0x1p112f);
    return float_of(sign | (magnitude >= 0x7c00 << 13 ? magnitude | 0x7f800000 : scaled));
}
inline float float_of_bf16(uint16_t half) {
    return float_of(static_cast<uint32_t>(half) << 16);
}

// To the nearest, ties to even; a NaN stays one.
inline uint16_t f16_of(float value) {
    uint32_t bits = bits_of(value);
    const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
    bits &= 0x7fffffff;
    if (bits >= 0x47800000) // 2^16, where there is nothing but infinity and NaN
        return static_cast<uint16_t>(sign | (bits > 0x7f800000 ? 0x7e00 : 0x7c00));
    if (bits < 0x38800000) // 2^-14: the unit of 0.5 is the spacing of subnormal numbers
        return static_cast<uint16_t>(sign | (bits_of(float_of(bits) + 0.5f) - 0x3f000000));
    return static_cast<uint16_t>(sign | (bits - 0x38000000 + 0xfff + (bits >> 13 & 1)) >> 13);
}
inline uint16_t bf16_of(float value) {
    const uint32_t bits = bits_of(value);
    if (value != value)
        return static_cast<uint16_t>(bits >> 16 | 0x40);
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

} // namespace pyblas::cpu
