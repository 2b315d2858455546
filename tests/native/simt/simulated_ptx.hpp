// The wrappers of native/kernels/device/ptx.cuh, on the simulator.
#pragma once

#include "machine.hpp"

namespace pyblas::ptx {

// Launches end before they return, but what is touched before the wait is a fault.
inline void launch_dependents() {}
inline void wait_for_predecessors() {
    simulator::wait_for_predecessors();
}

__attribute__((always_inline)) inline void store_quad(float *global, const float4 &quad) {
    *reinterpret_cast<float4 *>(global) = quad;
}

inline int thread_anew() {
    return static_cast<int>(threadIdx.x);
}

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

#define PYBLAS_HAS_WGMMA 1 // barriers in shared memory and bulk copies; the multiplies are not here

__attribute__((always_inline)) inline void init_barrier(uint64_t *barrier, int arrivals) {
    simulator::init_barrier(barrier, arrivals, __builtin_return_address(0));
}
inline void publish_barriers() {}
__attribute__((always_inline)) inline void arrive(uint64_t *barrier) {
    simulator::arrive_at(barrier, false, __builtin_return_address(0));
}
__attribute__((always_inline)) inline void arrive_after_copies(uint64_t *barrier) {
    simulator::arrive_at(barrier, true, __builtin_return_address(0));
}
inline void expect(uint64_t *, int) {} // a phase waits for whatever was copied before its arrivals
__attribute__((always_inline)) inline void copy_in_bulk(float *shared, const float *global, int bytes,
                                                        uint64_t *barrier) {
    simulator::copy_in_bulk(shared, global, static_cast<size_t>(bytes), barrier, __builtin_return_address(0));
}
__attribute__((always_inline)) inline void copy_box(void *shared, const void *map, int x0, int x1, int x2, int x3,
                                                    uint64_t *barrier) {
    simulator::copy_box(static_cast<float *>(shared), *static_cast<const CUtensorMap *>(map), {x0, x1, x2, x3}, barrier,
                        __builtin_return_address(0));
}
__attribute__((always_inline)) inline void wait(uint64_t *barrier, uint32_t parity) {
    while (!simulator::phase_is_over(barrier, parity, __builtin_return_address(0))) {
    }
}
template <int Registers>
void give_registers_back() {}
template <int Registers>
void take_registers() {}

inline void announce_to_cluster() {
    simulator::arrive_at_cluster();
}
inline void arrive_at_cluster() {
    simulator::arrive_at_cluster();
}
__attribute__((always_inline)) inline void wait_for_cluster() {
    simulator::wait_for_cluster(__builtin_return_address(0));
}
template <class T>
__attribute__((always_inline)) inline T load_of_block(const T *shared, int block) {
    T value;
    simulator::load_of_block(shared, &value, sizeof value, block, __builtin_return_address(0));
    return value;
}
// To this block only: its kernel runs with clusters of one block here.
template <class T>
void tell_block(T *shared, const T &value, uint64_t *, int) {
    *shared = value;
}
inline void arrive_and_expect(uint64_t *, int) {}
inline void wait_for_blocks(uint64_t *, uint32_t) {}

inline uint32_t f16_pair(float first, float second) {
    const _Float16 pair[2] = {static_cast<_Float16>(first), static_cast<_Float16>(second)};
    uint32_t word;
    __builtin_memcpy(&word, pair, sizeof word);
    return word;
}

inline float2 floats_of_f16_pair(uint32_t word) {
    _Float16 pair[2];
    __builtin_memcpy(pair, &word, sizeof word);
    return {static_cast<float>(pair[0]), static_cast<float>(pair[1])};
}

inline uint32_t bf16_pair(float first, float second) {
    const auto rounded = [](float value) {
        uint32_t bits;
        __builtin_memcpy(&bits, &value, sizeof bits);
        return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    };
    return rounded(first) | rounded(second) << 16;
}

#define PYBLAS_HAS_WARP_MULTIPLY 1

inline uint32_t tf32(float value) {
    uint32_t bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    return (bits & 0x7fffffff) > 0x7f800000 ? 0x7fffffff : (bits + 0x1000) & ~uint32_t{0x1fff};
}

inline float float_of(uint32_t word) {
    float value;
    __builtin_memcpy(&value, &word, sizeof value);
    return value;
}

inline void multiply_tf32(float (&sums)[4], const uint32_t (&rows)[4], const uint32_t (&columns)[2],
                          const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
    const uint32_t mine[6] = {rows[0], rows[1], rows[2], rows[3], columns[0], columns[1]};
    uint32_t all[32 * 6];
    simulator::share(mine, 6, all, file, line);
    const int group = simulator::lane() / 4, own = simulator::lane() % 4;
    for (int i = 0; i < 4; ++i) {
        double sum = sums[i];
        for (int k = 0; k < 8; ++k)
            sum += double(float_of(all[(group * 4 + k % 4) * 6 + k / 4 * 2 + i / 2])) *
                   double(float_of(all[((2 * own + i % 2) * 4 + k % 4) * 6 + 4 + k / 4]));
        sums[i] = static_cast<float>(sum);
    }
}

__attribute__((always_inline)) inline float4 load_once(const float *global) {
    return *reinterpret_cast<const float4 *>(global);
}

inline void prefetch(const float *) {}

__attribute__((always_inline)) inline bool arrive(uint32_t *counter, uint32_t others) {
    return simulator::arrive(counter, others, __builtin_return_address(0));
}

} // namespace pyblas::ptx
