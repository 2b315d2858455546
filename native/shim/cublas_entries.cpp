// cuBLAS's products under their own names: each argument list once, for 32-bit and 64-bit sizes, turned into a Call.
#include "cublas_target.hpp"

using namespace pyblas::shim;

namespace {

constexpr int kFloat = CUDA_R_32F;

// A product with a vector is one with a matrix of one row: y' = x' op(A)', where an increment is the distance of
// columns.
Call vector_product(Entry entry, void *handle, const void *caller, int trans, int64_t m, int64_t n, const float *alpha,
                    const float *matrix, int64_t lda, const float *x, int64_t incx, const float *beta, float *y,
                    int64_t incy) {
    const bool transposed = trans != CUBLAS_OP_N;
    const int other = trans == CUBLAS_OP_N                           ? CUBLAS_OP_T
                      : trans == CUBLAS_OP_T || trans == CUBLAS_OP_C ? CUBLAS_OP_N
                                                                     : trans;
    return {entry,
            Batch::one,
            handle,
            caller,
            CUBLAS_OP_N,
            other,
            1,
            transposed ? n : m,
            transposed ? m : n,
            1,
            alpha,
            beta,
            {x, kFloat, incx, 0},
            {matrix, kFloat, lda, 0},
            {y, kFloat, incy, 0},
            kModeOfHandle};
}

} // namespace

#define CALLER __builtin_return_address(0)

#define SGEMM(name, entry, Int)                                                                                        \
    cublasStatus_t name(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, Int m, Int n,       \
                        Int k, const float *alpha, const float *A, Int lda, const float *B, Int ldb,                   \
                        const float *beta, float *C, Int ldc) {                                                        \
        const Call call = {Entry::entry,                                                                               \
                           Batch::one,                                                                                 \
                           handle,                                                                                     \
                           CALLER,                                                                                     \
                           transa,                                                                                     \
                           transb,                                                                                     \
                           m,                                                                                          \
                           n,                                                                                          \
                           k,                                                                                          \
                           1,                                                                                          \
                           alpha,                                                                                      \
                           beta,                                                                                       \
                           {A, kFloat, lda, 0},                                                                        \
                           {B, kFloat, ldb, 0},                                                                        \
                           {C, kFloat, ldc, 0},                                                                        \
                           kModeOfHandle};                                                                             \
        return enter(call, handle, transa, transb, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc);                      \
    }
SGEMM(cublasSgemm_v2, sgemm, int)
SGEMM(cublasSgemm_v2_64, sgemm_64, int64_t)

#define SGEMM_STRIDED_BATCHED(name, entry, Int)                                                                        \
    cublasStatus_t name(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, Int m, Int n,       \
                        Int k, const float *alpha, const float *A, Int lda, long long int strideA, const float *B,     \
                        Int ldb, long long int strideB, const float *beta, float *C, Int ldc, long long int strideC,   \
                        Int batchCount) {                                                                              \
        const Call call = {Entry::entry,                                                                               \
                           Batch::strided,                                                                             \
                           handle,                                                                                     \
                           CALLER,                                                                                     \
                           transa,                                                                                     \
                           transb,                                                                                     \
                           m,                                                                                          \
                           n,                                                                                          \
                           k,                                                                                          \
                           batchCount,                                                                                 \
                           alpha,                                                                                      \
                           beta,                                                                                       \
                           {A, kFloat, lda, strideA},                                                                  \
                           {B, kFloat, ldb, strideB},                                                                  \
                           {C, kFloat, ldc, strideC},                                                                  \
                           kModeOfHandle};                                                                             \
        return enter(call, handle, transa, transb, m, n, k, alpha, A, lda, strideA, B, ldb, strideB, beta, C, ldc,     \
                     strideC, batchCount);                                                                             \
    }
SGEMM_STRIDED_BATCHED(cublasSgemmStridedBatched, sgemm_strided_batched, int)
SGEMM_STRIDED_BATCHED(cublasSgemmStridedBatched_64, sgemm_strided_batched_64, int64_t)

#define SGEMM_BATCHED(name, entry, Int)                                                                                \
    cublasStatus_t name(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, Int m, Int n,       \
                        Int k, const float *alpha, const float *const Aarray[], Int lda, const float *const Barray[],  \
                        Int ldb, const float *beta, float *const Carray[], Int ldc, Int batchCount) {                  \
        const Call call = {Entry::entry,                                                                               \
                           Batch::arrays,                                                                              \
                           handle,                                                                                     \
                           CALLER,                                                                                     \
                           transa,                                                                                     \
                           transb,                                                                                     \
                           m,                                                                                          \
                           n,                                                                                          \
                           k,                                                                                          \
                           batchCount,                                                                                 \
                           alpha,                                                                                      \
                           beta,                                                                                       \
                           {Aarray, kFloat, lda, 0},                                                                   \
                           {Barray, kFloat, ldb, 0},                                                                   \
                           {Carray, kFloat, ldc, 0},                                                                   \
                           kModeOfHandle};                                                                             \
        return enter(call, handle, transa, transb, m, n, k, alpha, Aarray, lda, Barray, ldb, beta, Carray, ldc,        \
                     batchCount);                                                                                      \
    }
SGEMM_BATCHED(cublasSgemmBatched, sgemm_batched, int)
SGEMM_BATCHED(cublasSgemmBatched_64, sgemm_batched_64, int64_t)

#define SGEMM_EX(name, entry, Int)                                                                                     \
    cublasStatus_t name(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, Int m, Int n,       \
                        Int k, const float *alpha, const void *A, cudaDataType Atype, Int lda, const void *B,          \
                        cudaDataType Btype, Int ldb, const float *beta, void *C, cudaDataType Ctype, Int ldc) {        \
        const Call call = {Entry::entry,                                                                               \
                           Batch::one,                                                                                 \
                           handle,                                                                                     \
                           CALLER,                                                                                     \
                           transa,                                                                                     \
                           transb,                                                                                     \
                           m,                                                                                          \
                           n,                                                                                          \
                           k,                                                                                          \
                           1,                                                                                          \
                           alpha,                                                                                      \
                           beta,                                                                                       \
                           {A, Atype, lda, 0},                                                                         \
                           {B, Btype, ldb, 0},                                                                         \
                           {C, Ctype, ldc, 0},                                                                         \
                           kModeOfHandle};                                                                             \
        return enter(call, handle, transa, transb, m, n, k, alpha, A, Atype, lda, B, Btype, ldb, beta, C, Ctype, ldc); \
    }
SGEMM_EX(cublasSgemmEx, sgemm_ex, int)
SGEMM_EX(cublasSgemmEx_64, sgemm_ex_64, int64_t)

#define GEMM_EX(name, entry, Int)                                                                                      \
    cublasStatus_t name(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, Int m, Int n,       \
                        Int k, const void *alpha, const void *A, cudaDataType Atype, Int lda, const void *B,           \
                        cudaDataType Btype, Int ldb, const void *beta, void *C, cudaDataType Ctype, Int ldc,           \
                        cublasComputeType_t computeType, cublasGemmAlgo_t algo) {                                      \
        const Call call = {Entry::entry,                                                                               \
                           Batch::one,                                                                                 \
                           handle,                                                                                     \
                           CALLER,                                                                                     \
                           transa,                                                                                     \
                           transb,                                                                                     \
                           m,                                                                                          \
                           n,                                                                                          \
                           k,                                                                                          \
                           1,                                                                                          \
                           alpha,                                                                                      \
                           beta,                                                                                       \
                           {A, Atype, lda, 0},                                                                         \
                           {B, Btype, ldb, 0},                                                                         \
                           {C, Ctype, ldc, 0},                                                                         \
                           computeType};                                                                               \
        return enter(call, handle, transa, transb, m, n, k, alpha, A, Atype, lda, B, Btype, ldb, beta, C, Ctype, ldc,  \
                     computeType, algo);                                                                               \
    }
GEMM_EX(cublasGemmEx, gemm_ex, int)
GEMM_EX(cublasGemmEx_64, gemm_ex_64, int64_t)

#define GEMM_STRIDED_BATCHED_EX(name, entry, Int)                                                                      \
    cublasStatus_t name(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, Int m, Int n,       \
                        Int k, const void *alpha, const void *A, cudaDataType Atype, Int lda, long long int strideA,   \
                        const void *B, cudaDataType Btype, Int ldb, long long int strideB, const void *beta, void *C,  \
                        cudaDataType Ctype, Int ldc, long long int strideC, Int batchCount,                            \
                        cublasComputeType_t computeType, cublasGemmAlgo_t algo) {                                      \
        const Call call = {Entry::entry,                                                                               \
                           Batch::strided,                                                                             \
                           handle,                                                                                     \
                           CALLER,                                                                                     \
                           transa,                                                                                     \
                           transb,                                                                                     \
                           m,                                                                                          \
                           n,                                                                                          \
                           k,                                                                                          \
                           batchCount,                                                                                 \
                           alpha,                                                                                      \
                           beta,                                                                                       \
                           {A, Atype, lda, strideA},                                                                   \
                           {B, Btype, ldb, strideB},                                                                   \
                           {C, Ctype, ldc, strideC},                                                                   \
                           computeType};                                                                               \
        return enter(call, handle, transa, transb, m, n, k, alpha, A, Atype, lda, strideA, B, Btype, ldb, strideB,     \
                     beta, C, Ctype, ldc, strideC, batchCount, computeType, algo);                                     \
    }
GEMM_STRIDED_BATCHED_EX(cublasGemmStridedBatchedEx, gemm_strided_batched_ex, int)
GEMM_STRIDED_BATCHED_EX(cublasGemmStridedBatchedEx_64, gemm_strided_batched_ex_64, int64_t)

#define GEMM_BATCHED_EX(name, entry, Int)                                                                              \
    cublasStatus_t name(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, Int m, Int n,       \
                        Int k, const void *alpha, const void *const Aarray[], cudaDataType Atype, Int lda,             \
                        const void *const Barray[], cudaDataType Btype, Int ldb, const void *beta,                     \
                        void *const Carray[], cudaDataType Ctype, Int ldc, Int batchCount,                             \
                        cublasComputeType_t computeType, cublasGemmAlgo_t algo) {                                      \
        const Call call = {Entry::entry,                                                                               \
                           Batch::arrays,                                                                              \
                           handle,                                                                                     \
                           CALLER,                                                                                     \
                           transa,                                                                                     \
                           transb,                                                                                     \
                           m,                                                                                          \
                           n,                                                                                          \
                           k,                                                                                          \
                           batchCount,                                                                                 \
                           alpha,                                                                                      \
                           beta,                                                                                       \
                           {Aarray, Atype, lda, 0},                                                                    \
                           {Barray, Btype, ldb, 0},                                                                    \
                           {Carray, Ctype, ldc, 0},                                                                    \
                           computeType};                                                                               \
        return enter(call, handle, transa, transb, m, n, k, alpha, Aarray, Atype, lda, Barray, Btype, ldb, beta,       \
                     Carray, Ctype, ldc, batchCount, computeType, algo);                                               \
    }
GEMM_BATCHED_EX(cublasGemmBatchedEx, gemm_batched_ex, int)
GEMM_BATCHED_EX(cublasGemmBatchedEx_64, gemm_batched_ex_64, int64_t)

#define SGEMV(name, entry, Int)                                                                                        \
    cublasStatus_t name(cublasHandle_t handle, cublasOperation_t trans, Int m, Int n, const float *alpha,              \
                        const float *A, Int lda, const float *x, Int incx, const float *beta, float *y, Int incy) {    \
        const Call call =                                                                                              \
            vector_product(Entry::entry, handle, CALLER, trans, m, n, alpha, A, lda, x, incx, beta, y, incy);          \
        return enter(call, handle, trans, m, n, alpha, A, lda, x, incx, beta, y, incy);                                \
    }
SGEMV(cublasSgemv_v2, sgemv, int)
SGEMV(cublasSgemv_v2_64, sgemv_64, int64_t)
