// Numbers that look random and are the same in every run.
#pragma once

#include <cmath>
#include <cstdint>

namespace numbers {

inline uint64_t hash(uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

// From -1 to 1, of what hash() gives.
inline float uniform(uint64_t random) {
    return static_cast<float>(static_cast<int64_t>(random >> 40) - (1 << 23)) / (1 << 23);
}

// The same times a power of two from 2^-most to 2^most.
inline float wide(uint64_t random, int most) {
    return std::ldexp(uniform(random), static_cast<int>(random % static_cast<uint64_t>(2 * most + 1)) - most);
}

} // namespace numbers
