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

template <int Threads>
__attribute__((always_inline)) inline void meet(int number) {
    simulator::meet(number, Threads, __builtin_return_address(0));
}

template <int Bytes, bool Once = false>
__attribute__((always_inline)) inline void copy_async(float *shared, const float *global, bool valid) {
    static_assert(Bytes == 4 || Bytes == 16, "one float or four");
    simulator::copy_async(shared, global, Bytes, valid ? Bytes : 0, __builtin_return_address(0));
}
__attribute__((always_inline)) inline void copy_piece(uint16_t *shared, const uint16_t *global, int bytes) {
    simulator::copy_async(shared, global, 16, static_cast<size_t>(bytes), __builtin_return_address(0));
}

inline void commit_copies() {
    simulator::commit_copies();
}

template <int Pending>
void wait_copies() {
    simulator::wait_copies(Pending);
}

#define PYBLAS_HAS_WGMMA 1 // barriers in shared memory, boxes and the multiplies of TF32; the others are not here

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
template <bool Once = false>
__attribute__((always_inline)) inline void copy_in_bulk(float *shared, const float *global, int bytes,
                                                        uint64_t *barrier) {
    simulator::copy_in_bulk(shared, global, bytes, barrier, __builtin_return_address(0));
}
__attribute__((always_inline)) inline void copy_box(void *shared, const void *map, int x0, int x1, int x2, int x3,
                                                    uint64_t *barrier) {
    simulator::copy_box(static_cast<float *>(shared), *static_cast<const CUtensorMap *>(map), {x0, x1, x2, x3}, barrier,
                        __builtin_return_address(0));
}
__attribute__((always_inline)) inline void copy_box_once(void *shared, const void *map, int x0, int x1, int x2, int x3,
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

__attribute__((always_inline)) inline void load_matrices(uint32_t (&words)[4], const uint16_t *row) {
    const int lane = simulator::lane();
    for (int matrix = 0; matrix < 4; ++matrix)
        words[matrix] = reinterpret_cast<const uint32_t *>(__shfl_sync(~0u, row, 8 * matrix + lane / 4))[lane % 4];
}
__attribute__((always_inline)) inline void load_turned_matrices(uint32_t (&words)[4], const uint16_t *row) {
    const int lane = simulator::lane();
    for (int matrix = 0; matrix < 4; ++matrix) {
        const uint32_t first = __shfl_sync(~0u, row, 8 * matrix + lane % 4 * 2)[lane / 4];
        const uint32_t second = __shfl_sync(~0u, row, 8 * matrix + lane % 4 * 2 + 1)[lane / 4];
        words[matrix] = first | second << 16;
    }
}

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

// 16 x 16 by 16 x 8 numbers of 16 bits, whose sums are rounded once.
template <class Number>
void multiply_halves(float (&sums)[4], const uint32_t (&rows)[4], uint32_t column_word, uint32_t next_column_word,
                     const char *file, int line) {
    const uint32_t mine[6] = {rows[0], rows[1], rows[2], rows[3], column_word, next_column_word};
    uint32_t all[32 * 6];
    simulator::share(mine, 6, all, file, line);
    const int group = simulator::lane() / 4, own = simulator::lane() % 4;
    const auto number = [&](int lane, int word, int k) {
        return double(Number::of(static_cast<uint16_t>(all[(lane * 4 + k % 8 / 2) * 6 + word] >> k % 2 * 16)));
    };
    for (int i = 0; i < 4; ++i) {
        double sum = sums[i];
        for (int k = 0; k < 16; ++k)
            sum += number(group, k / 8 * 2 + i / 2, k) * number(2 * own + i % 2, 4 + k / 8, k);
        sums[i] = static_cast<float>(sum);
    }
}

struct Bf16 {
    static float of(uint16_t bits) { return float_of(uint32_t{bits} << 16); }
};
struct F16 {
    static float of(uint16_t bits) {
        _Float16 value;
        __builtin_memcpy(&value, &bits, sizeof value);
        return static_cast<float>(value);
    }
};
inline void multiply_bf16(float (&sums)[4], const uint32_t (&rows)[4], uint32_t column_word, uint32_t next_column_word,
                          const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
    multiply_halves<Bf16>(sums, rows, column_word, next_column_word, file, line);
}
inline void multiply_f16(float (&sums)[4], const uint32_t (&rows)[4], uint32_t column_word, uint32_t next_column_word,
                         const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
    multiply_halves<F16>(sums, rows, column_word, next_column_word, file, line);
}

// Of a block's dynamic part, which begins where the swizzle does.
inline uint32_t shared_address(const void *shared) {
    return static_cast<uint32_t>(static_cast<const char *>(shared) -
                                 static_cast<const char *>(simulator::dynamic_shared_memory()));
}
inline void publish_stores() {}
template <int Size>
void fence_accumulators(float (&)[Size]) {}
inline void commit_multiplies() {}
template <int Pending>
void wait_multiplies() {
    __syncwarp(); // lanes have multiplied together
}
template <int Pending, int Size>
void wait_multiplies(float (&)[Size]) {
    __syncwarp();
}

inline uint32_t tf32_to_even(float value) {
    uint32_t bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffff) >= 0x7f800000)
        return (bits & 0x7fffffff) > 0x7f800000 ? 0x7fffffff : bits;
    return (bits + 0xfff + (bits >> 13 & 1)) & ~uint32_t{0x1fff};
}

// At once, and each thread its own sums. Numbers are rounded here, as nobody has rounded those of the copy engine.
__attribute__((always_inline)) inline void multiply_tf32(float (&acc)[128], uint64_t a, uint64_t b) {
    const char *const memory = static_cast<const char *>(simulator::dynamic_shared_memory());
    const auto read = [memory](uint64_t descriptor, int row, double (&eight)[8]) {
        for (int k = 0; k < 8; ++k) {
            const uint32_t address = (static_cast<uint32_t>(descriptor & 0x3fff) << 4) +
                                     static_cast<uint32_t>(row / 8 * 1024 + row % 8 * 128 + k * 4);
            eight[k] = static_cast<double>(
                float_of(tf32_to_even(*reinterpret_cast<const float *>(memory + (address ^ (address >> 7 & 7) << 4)))));
        }
    };
    const int thread = static_cast<int>(threadIdx.x) % 128, group = thread % 32 / 4, own = thread % 4;
    double rows[2][8], column[8];
    for (int half = 0; half < 2; ++half)
        read(a, thread / 32 * 16 + group + half * 8, rows[half]);
    for (int n = 0; n < 64; ++n) {
        read(b, n / 2 * 8 + own * 2 + n % 2, column);
        for (int half = 0; half < 2; ++half) {
            float &sum = acc[n / 2 * 4 + half * 2 + n % 2];
            double exact = static_cast<double>(sum);
            for (int k = 0; k < 8; ++k)
                exact += rows[half][k] * column[k];
            sum = static_cast<float>(exact);
        }
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
