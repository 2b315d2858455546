// Products through cuBLAS's interface on simulated GPUs, each compared with float64. A case is named on the command
// line; the answer is the exit status.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <type_traits>
#include <unistd.h>
#include <vector>

#include "cublas_abi.h"

extern "C" void simulated_set_device(int ordinal);

namespace {

cublasHandle_t handle = nullptr;
int wrong = 0;

void expect(bool holds, const char *what) {
    if (!holds) {
        std::fprintf(stderr, "not so: %s\n", what);
        ++wrong;
    }
}

std::vector<float> numbers(size_t count) {
    std::vector<float> made(count);
    for (float &x : made)
        x = static_cast<float>(std::rand()) / static_cast<float>(RAND_MAX) - 0.5f;
    return made;
}

struct Sizes {
    int transa, transb, m, n, k, lda, ldb, ldc;
};
Sizes sizes(int transa, int transb, int m, int n, int k) {
    return {transa, transb, m, n, k, (transa ? k : m) + 3, (transb ? n : k) + 2, m + 1};
}

// Whether c is alpha op(A) op(B) + beta old, as float32 can have it.
bool right(const Sizes &s, float alpha, const float *a, const float *b, float beta, const float *old, const float *c) {
    for (int j = 0; j < s.n; ++j)
        for (int i = 0; i < s.m; ++i) {
            double sum = 0, size = 0;
            for (int l = 0; l < s.k; ++l) {
                const double term = static_cast<double>(s.transa ? a[l + i * s.lda] : a[i + l * s.lda]) *
                                    static_cast<double>(s.transb ? b[j + l * s.ldb] : b[l + j * s.ldb]);
                sum += term;
                size += std::fabs(term);
            }
            const double before = beta != 0 ? beta * old[i + j * s.ldc] : 0;
            const double scale = std::fabs(alpha) * size + std::fabs(before);
            if (!(std::fabs(c[i + j * s.ldc] - (alpha * sum + before)) <= (s.k + 2) * 0x1p-24 * scale))
                return false;
        }
    return true;
}

constexpr cublasOperation_t kOps[] = {CUBLAS_OP_N, CUBLAS_OP_T, CUBLAS_OP_C};

void single() {
    for (const auto ta : kOps)
        for (const auto tb : kOps)
            for (const float beta : {0.f, -0.5f}) {
                const Sizes s = sizes(ta, tb, 37, 29, 41);
                const auto a = numbers(50 * 50), b = numbers(50 * 50), old = numbers(50 * 50);
                const float alpha = 1.5f;
                auto c = old;
                expect(!cublasSgemm_v2(handle, ta, tb, s.m, s.n, s.k, &alpha, a.data(), s.lda, b.data(), s.ldb, &beta,
                                       c.data(), s.ldc) &&
                           right(s, alpha, a.data(), b.data(), beta, old.data(), c.data()),
                       "Sgemm");
                c = old;
                expect(!cublasSgemm_v2_64(handle, ta, tb, s.m, s.n, s.k, &alpha, a.data(), s.lda, b.data(), s.ldb,
                                          &beta, c.data(), s.ldc) &&
                           right(s, alpha, a.data(), b.data(), beta, old.data(), c.data()),
                       "Sgemm_64");
                c = old;
                expect(!cublasGemmEx(handle, ta, tb, s.m, s.n, s.k, &alpha, a.data(), CUDA_R_32F, s.lda, b.data(),
                                     CUDA_R_32F, s.ldb, &beta, c.data(), CUDA_R_32F, s.ldc, CUBLAS_COMPUTE_32F,
                                     CUBLAS_GEMM_DEFAULT) &&
                           right(s, alpha, a.data(), b.data(), beta, old.data(), c.data()),
                       "GemmEx");
                c = old;
                expect(!cublasSgemmEx(handle, ta, tb, s.m, s.n, s.k, &alpha, a.data(), CUDA_R_32F, s.lda, b.data(),
                                      CUDA_R_32F, s.ldb, &beta, c.data(), CUDA_R_32F, s.ldc) &&
                           right(s, alpha, a.data(), b.data(), beta, old.data(), c.data()),
                       "SgemmEx");
            }
}

void batches() {
    const int count = 5;
    const Sizes s = sizes(1, 0, 17, 19, 23);
    const auto a = numbers(count * 900), b = numbers(count * 900), old = numbers(count * 900);
    const float alpha = -2, beta = 0.25f;
    const auto all_right = [&](const std::vector<float> &c) {
        bool holds = true;
        for (int i = 0; i < count; ++i)
            holds &= right(s, alpha, &a[i * 900], &b[i * 800], beta, &old[i * 700], &c[i * 700]);
        return holds;
    };
    auto c = old;
    expect(!cublasSgemmStridedBatched(handle, CUBLAS_OP_T, CUBLAS_OP_N, s.m, s.n, s.k, &alpha, a.data(), s.lda, 900,
                                      b.data(), s.ldb, 800, &beta, c.data(), s.ldc, 700, count) &&
               all_right(c),
           "SgemmStridedBatched");
    c = old;
    expect(!cublasGemmStridedBatchedEx_64(handle, CUBLAS_OP_T, CUBLAS_OP_N, s.m, s.n, s.k, &alpha, a.data(), CUDA_R_32F,
                                          s.lda, 900, b.data(), CUDA_R_32F, s.ldb, 800, &beta, c.data(), CUDA_R_32F,
                                          s.ldc, 700, count, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT) &&
               all_right(c),
           "GemmStridedBatchedEx_64");
    c = old;
    std::vector<const float *> as, bs;
    std::vector<float *> cs;
    for (int i = 0; i < count; ++i) {
        as.push_back(&a[i * 900]);
        bs.push_back(&b[i * 800]);
        cs.push_back(&c[i * 700]);
    }
    expect(!cublasSgemmBatched(handle, CUBLAS_OP_T, CUBLAS_OP_N, s.m, s.n, s.k, &alpha, as.data(), s.lda, bs.data(),
                               s.ldb, &beta, cs.data(), s.ldc, count) &&
               all_right(c),
           "SgemmBatched");
    c = old;
    expect(!cublasGemmBatchedEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, s.m, s.n, s.k, &alpha,
                                reinterpret_cast<const void *const *>(as.data()), CUDA_R_32F, s.lda,
                                reinterpret_cast<const void *const *>(bs.data()), CUDA_R_32F, s.ldb, &beta,
                                reinterpret_cast<void *const *>(cs.data()), CUDA_R_32F, s.ldc, count,
                                CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT) &&
               all_right(c),
           "GemmBatchedEx");
}

void vectors() {
    const float alpha = 0.75f;
    for (const auto trans : kOps)
        for (const float beta : {0.f, 2.f})
            for (const int incx : {1, 3})
                for (const int incy : {1, 2}) {
                    const int m = 31, n = 43, lda = 35;
                    const int rows = trans ? n : m, inner = trans ? m : n;
                    const auto a = numbers(lda * n), x = numbers(200), old = numbers(200);
                    auto y = old;
                    // As a product of op(A) with a matrix of one column; y without its gaps.
                    std::vector<float> column(inner), before(rows), after(rows);
                    const bool done = !cublasSgemv_v2(handle, trans, m, n, &alpha, a.data(), lda, x.data(), incx, &beta,
                                                      y.data(), incy);
                    for (int i = 0; i < inner; ++i)
                        column[i] = x[i * incx];
                    for (int i = 0; i < rows; ++i) {
                        before[i] = old[i * incy];
                        after[i] = y[i * incy];
                        if (incy == 2)
                            expect(y[i * incy + 1] == old[i * incy + 1], "the gaps of y stay");
                    }
                    const Sizes s = {trans, 0, rows, 1, inner, lda, inner, rows};
                    expect(done && right(s, alpha, a.data(), column.data(), beta, before.data(), after.data()),
                           "Sgemv");
                }
}

// 16-bit matrices of small whole numbers, whose products are exact.
void half() {
    for (const cudaDataType type : {CUDA_R_16F, CUDA_R_16BF}) {
        const uint16_t one = type == CUDA_R_16F ? 0x3c00 : 0x3f80, two = 0x4000;
        const int n = 8;
        const std::vector<uint16_t> a(2 * n * n, one), b(2 * n * n, two);
        std::vector<float> c(2 * n * n, -1);
        const float alpha = 3, beta = 0;
        const cublasStatus_t single =
            cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &alpha, a.data(), type, n, b.data(), type, n, &beta,
                         c.data(), CUDA_R_32F, n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
        const bool right = c[0] == 48 && c[n * n - 1] == 48 && c[n * n] == -1;
        const cublasStatus_t batch = cublasGemmStridedBatchedEx(
            handle, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &alpha, a.data(), type, n, n * n, b.data(), type, n, n * n,
            &beta, c.data(), CUDA_R_32F, n, n * n, 2, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
        expect(single == CUBLAS_STATUS_LICENSE_ERROR || (!single && right), "GemmEx");
        expect(batch == CUBLAS_STATUS_LICENSE_ERROR || (!batch && c[2 * n * n - 1] == 48), "GemmStridedBatchedEx");
    }
}

// C matrices that meet: one after another, each sees what the last has left.
void overlapping() {
    const int n = 8;
    const auto a = numbers(3 * n * n), b = numbers(3 * n * n);
    const float one = 1;
    std::vector<float> c(n * n), want(n * n);
    expect(!cublasSgemmStridedBatched(handle, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, a.data(), n, n * n, b.data(), n,
                                      n * n, &one, c.data(), n, 0, 3),
           "strideC = 0");
    for (int i = 0; i < 3; ++i)
        expect(!cublasSgemm_v2(handle, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, &a[i * n * n], n, &b[i * n * n], n,
                               &one, want.data(), n),
               "Sgemm");
    expect(c == want, "the sum of the three");
    expect(cublasSgemmStridedBatched(handle, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, a.data(), n - 1, 0, b.data(), n,
                                     0, &one, c.data(), n, 0, 3) == CUBLAS_STATUS_INVALID_VALUE,
           "a leading dimension that is too small stays an error");
}

#ifndef STANDALONE

template <class T>
unsigned long long bits(T value) {
    if constexpr (std::is_pointer_v<T>)
        return reinterpret_cast<uintptr_t>(value);
    else
        return static_cast<unsigned long long>(value);
}

// A call that the shim leaves to cuBLAS. It prints itself as the fake notes it, and the fake answers.
template <class... Parameters, class... Arguments>
void passed_on(const char *name, cublasStatus_t (*function)(Parameters...), Arguments... arguments) {
    std::printf("%s", name);
    (std::printf(" %llx", bits(static_cast<Parameters>(arguments))), ...);
    std::printf("\n");
    expect(function(static_cast<Parameters>(arguments)...) == CUBLAS_STATUS_LICENSE_ERROR, name);
}
#define PASSED_ON(function, ...) passed_on(#function, function, handle, __VA_ARGS__)

void left_to_cublas() {
    const int n = 8;
    const auto a = numbers(3 * n * n), b = numbers(3 * n * n);
    std::vector<float> c(3 * n * n, 7);
    const float one = 1, half = 0.5f;
    const auto N = CUBLAS_OP_N, T = CUBLAS_OP_T;
    const auto F64 = static_cast<cudaDataType>(1);
    // C matrices that are one, and that share elements.
    PASSED_ON(cublasSgemmStridedBatched, N, T, n, n, n, &one, a.data(), n, n * n, b.data(), n, n * n, &half, c.data(),
              n, 0, 3);
    PASSED_ON(cublasSgemmStridedBatched_64, T, N, n, n, n, &one, a.data(), n, n * n, b.data(), n, n * n, &half,
              c.data(), n, n * n - 1, 2);
    PASSED_ON(cublasGemmStridedBatchedEx, N, N, n, n, n, &one, a.data(), CUDA_R_32F, n, n * n, b.data(), CUDA_R_32F, n,
              n * n, &half, c.data(), CUDA_R_32F, n, n, 3, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    // Mistakes.
    PASSED_ON(cublasSgemm_v2, N, N, n, n, n, &one, a.data(), n - 1, b.data(), n, &half, c.data(), n);
    PASSED_ON(cublasSgemm_v2_64, N, N, n, n, n, &one, a.data(), n, b.data(), n, &half, c.data(), 0);
    PASSED_ON(cublasSgemm_v2, N, N, n, n, n, nullptr, a.data(), n, b.data(), n, &half, c.data(), n);
    // What the library does not have, and what cuBLAS is faster in.
    PASSED_ON(cublasGemmEx, N, N, n, n, n, &one, a.data(), F64, n, b.data(), F64, n, &half, c.data(), F64, n,
              CUBLAS_COMPUTE_64F, CUBLAS_GEMM_DEFAULT);
    PASSED_ON(cublasGemmEx_64, N, N, n, n, n, &one, a.data(), CUDA_R_32F, n, b.data(), CUDA_R_32F, n, &half, c.data(),
              CUDA_R_32F, n, CUBLAS_COMPUTE_32F_EMULATED_16BFX9, CUBLAS_GEMM_DEFAULT);
    PASSED_ON(cublasSgemv_v2, T, n, n, &one, a.data(), n, b.data(), 1, &half, c.data(), 1);
    for (const float x : c)
        expect(x == 7, "C is as it was");
}

#endif

void one_product() {
    const Sizes s = sizes(0, 1, 20, 30, 40);
    const auto a = numbers(50 * 50), b = numbers(50 * 50);
    const float alpha = 1, beta = 0;
    std::vector<float> c(50 * 50);
    expect(!cublasSgemm_v2(handle, CUBLAS_OP_N, CUBLAS_OP_T, s.m, s.n, s.k, &alpha, a.data(), s.lda, b.data(), s.ldb,
                           &beta, c.data(), s.ldc) &&
               right(s, alpha, a.data(), b.data(), beta, c.data(), c.data()),
           "Sgemm");
}

void settings() {
    int data = 0;
    one_product();
    const auto stream = reinterpret_cast<cudaStream_t>(&data);
    cublasSetStream_v2(handle, stream);
    one_product();
    one_product();
    cublasSetPointerMode_v2(handle, CUBLAS_POINTER_MODE_DEVICE);
    one_product();
    cublasSetPointerMode_v2(handle, CUBLAS_POINTER_MODE_HOST);
    cublasSetMathMode(handle, CUBLAS_TF32_TENSOR_OP_MATH);
    one_product();
    cublasSetMathMode(
        handle, static_cast<cublasMath_t>(CUBLAS_PEDANTIC_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION));
    one_product();
    cublasSetMathMode(handle, CUBLAS_DEFAULT_MATH);
    one_product();
    cudaStream_t read = nullptr;
    cublasPointerMode_t pointer_mode = CUBLAS_POINTER_MODE_DEVICE;
    cublasMath_t math_mode = CUBLAS_PEDANTIC_MATH;
    expect(!cublasGetStream_v2(handle, &read) && read == stream, "the stream");
    expect(!cublasGetPointerMode_v2(handle, &pointer_mode) && pointer_mode == CUBLAS_POINTER_MODE_HOST, "pointer mode");
    expect(!cublasGetMathMode(handle, &math_mode) && math_mode == CUBLAS_DEFAULT_MATH, "math mode");
}

void capture() {
    cublasSetStream_v2(handle, reinterpret_cast<cudaStream_t>(0xca0));
    one_product();
}

void devices() {
    one_product();
    simulated_set_device(3);
    one_product();
    cublasHandle_t other = nullptr, first = handle;
    expect(!cublasCreate_v2(&other), "Create");
    handle = other;
    one_product();
    expect(!cublasDestroy_v2(other), "Destroy");
    handle = first;
    simulated_set_device(0);
}

void threads() {
    std::vector<std::thread> all;
    for (int i = 0; i < 8; ++i)
        all.emplace_back([i] {
            simulated_set_device(i % 2);
            cublasHandle_t own = nullptr;
            bool fine = true;
            for (int round = 0; round < 20; ++round) {
                if (round % 5 == 0)
                    fine &= !cublasCreate_v2(&own);
                const float one = 1, zero = 0, a = 3, b = static_cast<float>(i);
                float c[2] = {-1, -1};
                fine &= !cublasSgemm_v2(own, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, &a, 1, &b, 1, &zero, c, 1);
                fine &= !cublasSgemm_v2(handle, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, &a, 1, &b, 1, &zero, c + 1, 1);
                fine &= c[0] == 3.f * b && c[1] == c[0];
                if (round % 5 == 4)
                    fine &= !cublasDestroy_v2(own);
            }
            if (!fine)
                std::_Exit(1);
        });
    for (std::thread &thread : all)
        thread.join();
}

void in_a_child() {
    one_product();
    const pid_t child = fork();
    if (child == 0) {
        one_product();
        one_product();
        std::exit(wrong);
    }
    int status = 0;
    expect(waitpid(child, &status, 0) == child && status == 0, "the child ends well");
}

#ifndef STANDALONE

extern "C" void *fake_descriptor();
extern "C" void fake_set(void *descriptor, int attribute, const void *value, size_t size);

template <class T>
void set(void *descriptor, int attribute, T value) {
    fake_set(descriptor, attribute, &value, sizeof value);
}

cublasLtMatrixLayout_t layout(int type, int rows, int columns, int ld) {
    void *made = fake_descriptor();
    set<int>(made, CUBLASLT_MATRIX_LAYOUT_TYPE, type);
    set<int>(made, CUBLASLT_MATRIX_LAYOUT_ORDER, CUBLASLT_ORDER_COL);
    set<uint64_t>(made, CUBLASLT_MATRIX_LAYOUT_ROWS, rows);
    set<uint64_t>(made, CUBLASLT_MATRIX_LAYOUT_COLS, columns);
    set<int64_t>(made, CUBLASLT_MATRIX_LAYOUT_LD, ld);
    set<int>(made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, 1);
    set<int64_t>(made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, 0);
    return static_cast<cublasLtMatrixLayout_t>(made);
}

// Products that are taken, and for each way of being unusual one that is passed on.
void lt() {
    const Sizes s = sizes(1, 0, 33, 21, 40);
    const auto a = numbers(50 * 50), b = numbers(50 * 50), bias = numbers(50), old = numbers(50 * 50);
    const auto product = [&](auto change, float beta, const float *c_in, float *d, int type = CUDA_R_32F) {
        void *description = fake_descriptor();
        set<int>(description, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, CUBLAS_COMPUTE_32F);
        set<int>(description, CUBLASLT_MATMUL_DESC_SCALE_TYPE, CUDA_R_32F);
        set<int>(description, CUBLASLT_MATMUL_DESC_POINTER_MODE, CUBLASLT_POINTER_MODE_HOST);
        set<int>(description, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
        set<int>(description, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
        set<uint32_t>(description, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT);
        const cublasLtMatrixLayout_t of_a = layout(type, s.k, s.m, s.lda), of_b = layout(type, s.k, s.n, s.ldb),
                                     of_d = layout(type, s.m, s.n, s.ldc);
        change(description, of_a);
        const float alpha = 1.25f;
        return cublasLtMatmul(reinterpret_cast<cublasLtHandle_t>(handle),
                              reinterpret_cast<cublasLtMatmulDesc_t>(description), &alpha, a.data(), of_a, b.data(),
                              of_b, &beta, c_in, of_d, d, of_d, nullptr, nullptr, 0, nullptr);
    };
    const auto plain = [](void *, void *) {};
    const auto with_bias = [&](void *description, void *) {
        set<uint32_t>(description, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
        set<const void *>(description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias.data());
    };
    for (const float beta : {0.f, 0.5f}) {
        auto d = old;
        expect(!product(plain, beta, d.data(), d.data()) &&
                   right(s, 1.25f, a.data(), b.data(), beta, old.data(), d.data()),
               "a plain product");
    }
    std::vector<float> spread(50 * 50), d = old, nan(50 * 50, NAN);
    for (int j = 0; j < s.n; ++j)
        std::memcpy(&spread[j * s.ldc], bias.data(), s.m * sizeof(float));
    for (auto &out : {&d, &nan})
        expect(!product(with_bias, 0, out->data(), out->data()) &&
                   right(s, 1.25f, a.data(), b.data(), 1, spread.data(), out->data()),
               "a bias");
    const auto passed_on = [&](cublasStatus_t status, const char *what) {
        expect(status == CUBLAS_STATUS_LICENSE_ERROR, what);
    };
    passed_on(product(with_bias, 0.5f, d.data(), d.data()), "a bias and C");
    passed_on(product(plain, 0.5f, old.data(), d.data()), "C and D are two matrices");
    passed_on(product(plain, 0, d.data(), d.data(), CUDA_R_16F), "types");
    const auto one_change = [&](int attribute, auto value, const char *what) {
        passed_on(
            product([&](void *description, void *) { set(description, attribute, value); }, 0, d.data(), d.data()),
            what);
    };
    one_change(CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t{2}, "RELU");
    one_change(CUBLASLT_MATMUL_DESC_POINTER_MODE, 2, "vectors of scalars");
    one_change(CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, static_cast<int>(CUBLAS_COMPUTE_32F_FAST_16F), "compute type");
    one_change(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void *>(bias.data()), "a scale");
    one_change(CUBLASLT_MATMUL_DESC_TRANSC, 1, "C transposed");
    passed_on(product([](void *, void *of_a) { set(of_a, CUBLASLT_MATRIX_LAYOUT_ORDER, 1); }, 0, d.data(), d.data()),
              "row-major");
    passed_on(product([](void *, void *of_a) { set(of_a, CUBLASLT_MATRIX_LAYOUT_ROWS, uint64_t{39}); }, 0, d.data(),
                      d.data()),
              "extents that do not fit");
    passed_on(product([](void *, void *of_a) { set(of_a, CUBLASLT_MATRIX_LAYOUT_PLANE_OFFSET, int64_t{8}); }, 0,
                      d.data(), d.data()),
              "planes");
}

void copies() {}

#else

void lt() {}

void copies() {
    std::vector<double> from(60), to(60, -1);
    for (size_t i = 0; i < from.size(); ++i)
        from[i] = static_cast<double>(i);
    expect(!cublasSetVector(20, 8, from.data(), 3, to.data(), 2), "SetVector");
    for (int i = 0; i < 20; ++i)
        expect(to[2 * i] == 3 * i && to[2 * i + 1] == -1, "a vector with gaps");
    expect(!cublasGetVectorAsync_64(60, 8, from.data(), 1, to.data(), 1, nullptr) && to == from, "GetVectorAsync_64");
    to.assign(60, -1);
    expect(!cublasGetMatrix(5, 6, 8, from.data(), 10, to.data(), 7), "GetMatrix");
    for (int j = 0; j < 6; ++j)
        for (int i = 0; i < 7; ++i)
            expect(to[i + 7 * j] == (i < 5 ? i + 10 * j : -1), "a matrix with gaps");
    expect(!cublasSetMatrixAsync(60, 1, 8, from.data(), 60, to.data(), 60, nullptr) && to == from, "SetMatrixAsync");
    expect(!cublasSetVector(0, 8, nullptr, 1, nullptr, 1), "nothing");
    expect(cublasSetVector(1, 8, from.data(), 0, to.data(), 1) == CUBLAS_STATUS_INVALID_VALUE, "incx");
    expect(cublasSetMatrix(9, 2, 8, from.data(), 8, to.data(), 9) == CUBLAS_STATUS_MAPPING_ERROR, "lda");
}

#endif

} // namespace

int main(int, char **arguments) {
    const std::string name = arguments[1];
    if (const cublasStatus_t status = cublasCreate_v2(&handle)) {
        std::printf("Create: %d\n", status);
        return 0;
    }
    const struct {
        const char *name;
        void (*run)();
    } cases[] = {{"single", single},
                 {"batches", batches},
                 {"vectors", vectors},
                 {"half", half},
                 {"overlapping", overlapping},
                 {"settings", settings},
                 {"capture", capture},
                 {"devices", devices},
                 {"threads", threads},
                 {"fork", in_a_child},
#ifndef STANDALONE
                 {"left_to_cublas", left_to_cublas},
#endif
                 {"lt", lt}};
    for (const auto &each : cases)
        if (name == each.name)
            each.run();
    expect(!cublasDestroy_v2(handle), "Destroy");
    return wrong != 0;
}
