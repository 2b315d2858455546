// Problem: the one noun. Everything below api.cpp speaks of a product only through it.
// It is plain data, column-major, and passed by value to kernels, so it must stay small and trivially copyable.
#pragma once

#include <algorithm>
#include <cstdint>

#if defined(__CUDACC__)
#define PYBLAS_HOST_DEVICE __host__ __device__
#else
#define PYBLAS_HOST_DEVICE
#endif

namespace pyblas {

enum class Op : uint8_t { N, T }; // for real data the conjugate transpose is T

enum class Dtype : uint8_t { f32, f16, bf16 };

PYBLAS_HOST_DEVICE constexpr int64_t bytes_of(Dtype type) {
    return type == Dtype::f32 ? 4 : 2;
}

// One bit each: a kernel lists the modes it serves as a mask.
enum class ComputeMode : uint8_t { fp32 = 1, fp32_pedantic = 2, tf32 = 4 };

// One matrix of each batch: at data + i * stride, or at array[i] + stride. ld and stride count elements.
struct Operand {
    void *data = nullptr;
    void *const *array = nullptr; // not null: data means nothing
    int64_t ld = 1;
    int64_t stride = 0;
    Dtype dtype = Dtype::f32;

    template <class T = float>
    PYBLAS_HOST_DEVICE T *matrix(int64_t batch) const {
        return array ? static_cast<T *>(array[batch]) + stride : static_cast<T *>(data) + batch * stride;
    }
};

// alpha or beta: known to the host, or read by the kernel at run time.
struct Scalar {
    float value = 0;
    const float *device = nullptr;

    PYBLAS_HOST_DEVICE float load() const { return device ? *device : value; }
    PYBLAS_HOST_DEVICE bool known() const { return device == nullptr; }
};

// C := alpha * op(A) * op(B) + beta * C for each of batch products. One product is a batch of 1.
// m, n and batch are positive; k may be 0. op(A) is m x k, op(B) is k x n.
struct Problem {
    Op transa = Op::N, transb = Op::N;
    ComputeMode mode = ComputeMode::fp32;
    bool batch_invariant = false;
    int64_t m = 0, n = 0, k = 0, batch = 1;
    Operand a, b, c;
    Scalar alpha, beta;

    // k as far as A and B are read: alpha == 0 reads neither. alpha is the loaded value.
    PYBLAS_HOST_DEVICE int64_t depth(float alpha_value) const { return alpha_value == 0.0f ? 0 : k; }
};

// A part of C: some products, or some rows and columns of each.
struct Panel {
    int64_t rows, columns, batch;
};

// The problem of the panel that begins there; sizes end where the problem does.
inline Problem part_of(const Problem &problem, const Panel &panel, int64_t batch, int64_t row, int64_t column) {
    Problem part = problem;
    part.batch = std::min(panel.batch, problem.batch - batch);
    part.m = std::min(panel.rows, problem.m - row);
    part.n = std::min(panel.columns, problem.n - column);
    const auto advance = [&](Operand *operand, int64_t elements) {
        if (operand->array)
            operand->array += batch, operand->stride += elements;
        else if (operand->data) // A and B are null where alpha is 0
            operand->data =
                static_cast<char *>(operand->data) + (batch * operand->stride + elements) * bytes_of(operand->dtype);
    };
    advance(&part.a, problem.transa == Op::N ? row : row * problem.a.ld);
    advance(&part.b, problem.transb == Op::T ? column : column * problem.b.ld);
    advance(&part.c, row + column * problem.c.ld);
    return part;
}

} // namespace pyblas
