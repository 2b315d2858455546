// The part of CUDA's warp matrices that the kernels use, on the simulator. Which lane holds which element is nobody's
// business there, and is so here.
#pragma once

#include "../machine.hpp"
#include "../simulated_ptx.hpp"
#include "cuda_runtime.h"

namespace nvcuda::wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };
namespace precision {
struct tf32 {};
} // namespace precision

template <class Use, int M, int N, int K, class T, class Layout = void>
struct fragment {
    static constexpr int rows = std::is_same_v<Use, matrix_b> ? K : M;
    static constexpr int columns = std::is_same_v<Use, matrix_a> ? K : N;
    static constexpr int num_elements = rows * columns / warpSize;
    float x[num_elements];

    static int row(int i) { return (pyblas::simulator::lane() * num_elements + i) / columns; }
    static int column(int i) { return (pyblas::simulator::lane() * num_elements + i) % columns; }
};

template <class Fragment>
void fill_fragment(Fragment &target, float value) {
    for (float &x : target.x)
        x = value;
}

template <class Use, int M, int N, int K, class T, class Layout>
void load_matrix_sync(fragment<Use, M, N, K, T, Layout> &target, const float *source, unsigned ld) {
    using Fragment = fragment<Use, M, N, K, T, Layout>;
    for (int i = 0; i < Fragment::num_elements; ++i) {
        const unsigned row = static_cast<unsigned>(Fragment::row(i)),
                       column = static_cast<unsigned>(Fragment::column(i));
        target.x[i] = source[std::is_same_v<Layout, row_major> ? row * ld + column : column * ld + row];
    }
}

template <class Fragment>
void store_matrix_sync(float *target, const Fragment &source, unsigned ld, layout_t layout) {
    for (int i = 0; i < Fragment::num_elements; ++i) {
        const unsigned row = static_cast<unsigned>(Fragment::row(i)),
                       column = static_cast<unsigned>(Fragment::column(i));
        target[layout == mem_row_major ? row * ld + column : column * ld + row] = source.x[i];
    }
}

inline float __float_to_tf32(float value) {
    return pyblas::ptx::float_of(pyblas::ptx::tf32(value));
}

template <class Sums, class A, class B>
void mma_sync(Sums &target, const A &a, const B &b, const Sums &sums, const char *file = __builtin_FILE(),
              int line = __builtin_LINE()) {
    constexpr int kA = A::num_elements, kEach = kA + B::num_elements;
    uint32_t mine[kEach];
    __builtin_memcpy(mine, a.x, sizeof a.x);
    __builtin_memcpy(mine + kA, b.x, sizeof b.x);
    uint32_t all[warpSize * kEach];
    pyblas::simulator::share(mine, kEach, all, file, line);
    const auto element = [&](int first, int count, int number) {
        return double(pyblas::ptx::float_of(all[number / count * kEach + first + number % count]));
    };
    for (int i = 0; i < Sums::num_elements; ++i) {
        double sum = sums.x[i];
        for (int k = 0; k < A::columns; ++k)
            sum += element(0, kA, Sums::row(i) * A::columns + k) *
                   element(kA, B::num_elements, k * B::columns + Sums::column(i));
        target.x[i] = static_cast<float>(sum);
    }
}

} // namespace nvcuda::wmma
