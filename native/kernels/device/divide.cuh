// Division by a number that the host knows and the device meets often: a multiplication.
#pragma once

#include <cstdint>

#include "problem.hpp"

namespace pyblas {

// Exact while number * divisor < 2^32.
class Divisor {
public:
    Divisor() = default;
    explicit Divisor(int divisor)
        : divisor_(static_cast<uint32_t>(divisor)),
          factor_(divisor == 1 ? 0 : static_cast<uint32_t>(((uint64_t{1} << 32) + divisor_ - 1) / divisor_)) {}

    PYBLAS_HOST_DEVICE int value() const { return static_cast<int>(divisor_); }

    // number / divisor, and the rest where number was.
    PYBLAS_HOST_DEVICE int split(int *number) const {
        const uint32_t all = static_cast<uint32_t>(*number);
        const uint32_t quotient = factor_ ? static_cast<uint32_t>(uint64_t{all} * factor_ >> 32) : all;
        *number = static_cast<int>(all - quotient * divisor_);
        return static_cast<int>(quotient);
    }

private:
    uint32_t divisor_ = 1;
    uint32_t factor_ = 0; // 2^32 / divisor, rounded up; 0 stands for 2^32
};

} // namespace pyblas
