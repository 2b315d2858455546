// The wrappers of native/kernels/device/ptx.cuh, on the simulator.
#pragma once

#include "machine.hpp"

namespace pyblas::ptx {

// Launches end before they return, so nothing is early.
inline void launch_dependents() {}
inline void wait_for_predecessors() {}

template <int Bytes>
__attribute__((always_inline)) inline void copy_async(float *shared, const float *global, bool valid) {
    static_assert(Bytes == 4 || Bytes == 16, "one float or four");
    simulator::copy_async(shared, global, Bytes, valid, __builtin_return_address(0));
}

inline void commit_copies() {
    simulator::commit_copies();
}

template <int Pending>
void wait_copies() {
    simulator::wait_copies(Pending);
}

} // namespace pyblas::ptx
