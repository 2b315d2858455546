/*
 * The part of cuBLAS's binary interface that the shims offer or call, as cublas_v2.h and cublasLt.h of CUDA 13.0
 * declare it; CUDA 12 has the same. Tests compare it with a record of those headers. It stands here so that the shims
 * build without CUDA, and because a shim defines what those headers only declare.
 */
#ifndef PYBLAS_SHIM_CUBLAS_ABI_H
#define PYBLAS_SHIM_CUBLAS_ABI_H

#include <stddef.h>
#include <stdint.h>

#define CUBLASAPI __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/* ---- types ------------------------------------------------------------------------------------------------------- */

typedef struct cublasContext *cublasHandle_t;
typedef struct cublasLtContext *cublasLtHandle_t;
typedef struct cublasLtMatmulDescOpaque *cublasLtMatmulDesc_t;
typedef struct cublasLtMatrixLayoutOpaque *cublasLtMatrixLayout_t;
typedef struct cublasLtMatmulAlgo cublasLtMatmulAlgo_t;
typedef struct CUstream_st *cudaStream_t;
typedef enum { MAJOR_VERSION = 0, MINOR_VERSION = 1, PATCH_LEVEL = 2 } libraryPropertyType;

typedef enum {
    CUBLAS_STATUS_SUCCESS = 0,
    CUBLAS_STATUS_NOT_INITIALIZED = 1,
    CUBLAS_STATUS_ALLOC_FAILED = 3,
    CUBLAS_STATUS_INVALID_VALUE = 7,
    CUBLAS_STATUS_ARCH_MISMATCH = 8,
    CUBLAS_STATUS_MAPPING_ERROR = 11,
    CUBLAS_STATUS_EXECUTION_FAILED = 13,
    CUBLAS_STATUS_INTERNAL_ERROR = 14,
    CUBLAS_STATUS_NOT_SUPPORTED = 15,
    CUBLAS_STATUS_LICENSE_ERROR = 16
} cublasStatus_t;

typedef enum { CUBLAS_FILL_MODE_LOWER = 0, CUBLAS_FILL_MODE_UPPER = 1, CUBLAS_FILL_MODE_FULL = 2 } cublasFillMode_t;

typedef enum { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1, CUBLAS_OP_C = 2 } cublasOperation_t;

typedef enum { CUBLAS_POINTER_MODE_HOST = 0, CUBLAS_POINTER_MODE_DEVICE = 1 } cublasPointerMode_t;

typedef enum { CUBLAS_ATOMICS_NOT_ALLOWED = 0, CUBLAS_ATOMICS_ALLOWED = 1 } cublasAtomicsMode_t;

typedef enum {
    CUBLAS_DEFAULT_MATH = 0,
    CUBLAS_TENSOR_OP_MATH = 1,
    CUBLAS_PEDANTIC_MATH = 2,
    CUBLAS_TF32_TENSOR_OP_MATH = 3,
    CUBLAS_FP32_EMULATED_BF16X9_MATH = 4,
    CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION = 16
} cublasMath_t;

typedef enum {
    CUBLAS_COMPUTE_16F = 64,
    CUBLAS_COMPUTE_16F_PEDANTIC = 65,
    CUBLAS_COMPUTE_32F = 68,
    CUBLAS_COMPUTE_32F_PEDANTIC = 69,
    CUBLAS_COMPUTE_32F_FAST_16F = 74,
    CUBLAS_COMPUTE_32F_FAST_16BF = 75,
    CUBLAS_COMPUTE_32F_FAST_TF32 = 77,
    CUBLAS_COMPUTE_32F_EMULATED_16BFX9 = 78,
    CUBLAS_COMPUTE_64F = 70,
    CUBLAS_COMPUTE_64F_PEDANTIC = 71,
    CUBLAS_COMPUTE_32I = 72,
    CUBLAS_COMPUTE_32I_PEDANTIC = 73
} cublasComputeType_t;

typedef enum { CUDA_R_32F = 0, CUDA_R_16F = 2, CUDA_R_16BF = 14 } cudaDataType;

typedef enum { CUBLAS_GEMM_DEFAULT = -1 } cublasGemmAlgo_t;

typedef enum { CUBLASLT_POINTER_MODE_HOST = 0, CUBLASLT_POINTER_MODE_DEVICE = 1 } cublasLtPointerMode_t;

typedef enum { CUBLASLT_ORDER_COL = 0 } cublasLtOrder_t;

typedef enum {
    CUBLASLT_MATRIX_LAYOUT_TYPE = 0,
    CUBLASLT_MATRIX_LAYOUT_ORDER = 1,
    CUBLASLT_MATRIX_LAYOUT_ROWS = 2,
    CUBLASLT_MATRIX_LAYOUT_COLS = 3,
    CUBLASLT_MATRIX_LAYOUT_LD = 4,
    CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT = 5,
    CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET = 6,
    CUBLASLT_MATRIX_LAYOUT_PLANE_OFFSET = 7,
    CUBLASLT_MATRIX_LAYOUT_BATCH_MODE = 8
} cublasLtMatrixLayoutAttribute_t;

typedef enum {
    CUBLASLT_MATMUL_DESC_COMPUTE_TYPE = 0,
    CUBLASLT_MATMUL_DESC_SCALE_TYPE = 1,
    CUBLASLT_MATMUL_DESC_POINTER_MODE = 2,
    CUBLASLT_MATMUL_DESC_TRANSA = 3,
    CUBLASLT_MATMUL_DESC_TRANSB = 4,
    CUBLASLT_MATMUL_DESC_TRANSC = 5,
    CUBLASLT_MATMUL_DESC_FILL_MODE = 6,
    CUBLASLT_MATMUL_DESC_EPILOGUE = 7,
    CUBLASLT_MATMUL_DESC_BIAS_POINTER = 8,
    CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET = 15,
    CUBLASLT_MATMUL_DESC_A_SCALE_POINTER = 17,
    CUBLASLT_MATMUL_DESC_B_SCALE_POINTER = 18,
    CUBLASLT_MATMUL_DESC_C_SCALE_POINTER = 19,
    CUBLASLT_MATMUL_DESC_D_SCALE_POINTER = 20,
    CUBLASLT_MATMUL_DESC_AMAX_D_POINTER = 21,
    CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE = 26,
    CUBLASLT_MATMUL_DESC_D_OUT_SCALE_POINTER = 36
} cublasLtMatmulDescAttributes_t;

typedef enum { CUBLASLT_EPILOGUE_DEFAULT = 1, CUBLASLT_EPILOGUE_BIAS = 4 } cublasLtEpilogue_t;

/* ---- products that both libraries take --------------------------------------------------------------------------- */

CUBLASAPI cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb,
                                        int m, int n, int k, const float *alpha, const float *A, int lda,
                                        const float *B, int ldb, const float *beta, float *C, int ldc);
CUBLASAPI cublasStatus_t cublasSgemm_v2_64(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb,
                                           int64_t m, int64_t n, int64_t k, const float *alpha, const float *A,
                                           int64_t lda, const float *B, int64_t ldb, const float *beta, float *C,
                                           int64_t ldc);
CUBLASAPI cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t handle, cublasOperation_t transa,
                                                   cublasOperation_t transb, int m, int n, int k, const float *alpha,
                                                   const float *A, int lda, long long int strideA, const float *B,
                                                   int ldb, long long int strideB, const float *beta, float *C, int ldc,
                                                   long long int strideC, int batchCount);
CUBLASAPI cublasStatus_t cublasSgemmStridedBatched_64(cublasHandle_t handle, cublasOperation_t transa,
                                                      cublasOperation_t transb, int64_t m, int64_t n, int64_t k,
                                                      const float *alpha, const float *A, int64_t lda,
                                                      long long int strideA, const float *B, int64_t ldb,
                                                      long long int strideB, const float *beta, float *C, int64_t ldc,
                                                      long long int strideC, int64_t batchCount);
CUBLASAPI cublasStatus_t cublasSgemmBatched(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb,
                                            int m, int n, int k, const float *alpha, const float *const Aarray[],
                                            int lda, const float *const Barray[], int ldb, const float *beta,
                                            float *const Carray[], int ldc, int batchCount);
CUBLASAPI cublasStatus_t cublasSgemmBatched_64(cublasHandle_t handle, cublasOperation_t transa,
                                               cublasOperation_t transb, int64_t m, int64_t n, int64_t k,
                                               const float *alpha, const float *const Aarray[], int64_t lda,
                                               const float *const Barray[], int64_t ldb, const float *beta,
                                               float *const Carray[], int64_t ldc, int64_t batchCount);
CUBLASAPI cublasStatus_t cublasSgemmEx(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m,
                                       int n, int k, const float *alpha, const void *A, cudaDataType Atype, int lda,
                                       const void *B, cudaDataType Btype, int ldb, const float *beta, void *C,
                                       cudaDataType Ctype, int ldc);
CUBLASAPI cublasStatus_t cublasSgemmEx_64(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb,
                                          int64_t m, int64_t n, int64_t k, const float *alpha, const void *A,
                                          cudaDataType Atype, int64_t lda, const void *B, cudaDataType Btype,
                                          int64_t ldb, const float *beta, void *C, cudaDataType Ctype, int64_t ldc);
CUBLASAPI cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m,
                                      int n, int k, const void *alpha, const void *A, cudaDataType Atype, int lda,
                                      const void *B, cudaDataType Btype, int ldb, const void *beta, void *C,
                                      cudaDataType Ctype, int ldc, cublasComputeType_t computeType,
                                      cublasGemmAlgo_t algo);
CUBLASAPI cublasStatus_t cublasGemmEx_64(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb,
                                         int64_t m, int64_t n, int64_t k, const void *alpha, const void *A,
                                         cudaDataType Atype, int64_t lda, const void *B, cudaDataType Btype,
                                         int64_t ldb, const void *beta, void *C, cudaDataType Ctype, int64_t ldc,
                                         cublasComputeType_t computeType, cublasGemmAlgo_t algo);
CUBLASAPI cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t transa,
                                                    cublasOperation_t transb, int m, int n, int k, const void *alpha,
                                                    const void *A, cudaDataType Atype, int lda, long long int strideA,
                                                    const void *B, cudaDataType Btype, int ldb, long long int strideB,
                                                    const void *beta, void *C, cudaDataType Ctype, int ldc,
                                                    long long int strideC, int batchCount,
                                                    cublasComputeType_t computeType, cublasGemmAlgo_t algo);
CUBLASAPI cublasStatus_t cublasGemmStridedBatchedEx_64(
    cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int64_t m, int64_t n, int64_t k,
    const void *alpha, const void *A, cudaDataType Atype, int64_t lda, long long int strideA, const void *B,
    cudaDataType Btype, int64_t ldb, long long int strideB, const void *beta, void *C, cudaDataType Ctype, int64_t ldc,
    long long int strideC, int64_t batchCount, cublasComputeType_t computeType, cublasGemmAlgo_t algo);
CUBLASAPI cublasStatus_t cublasGemmBatchedEx(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb,
                                             int m, int n, int k, const void *alpha, const void *const Aarray[],
                                             cudaDataType Atype, int lda, const void *const Barray[],
                                             cudaDataType Btype, int ldb, const void *beta, void *const Carray[],
                                             cudaDataType Ctype, int ldc, int batchCount,
                                             cublasComputeType_t computeType, cublasGemmAlgo_t algo);
CUBLASAPI cublasStatus_t cublasGemmBatchedEx_64(cublasHandle_t handle, cublasOperation_t transa,
                                                cublasOperation_t transb, int64_t m, int64_t n, int64_t k,
                                                const void *alpha, const void *const Aarray[], cudaDataType Atype,
                                                int64_t lda, const void *const Barray[], cudaDataType Btype,
                                                int64_t ldb, const void *beta, void *const Carray[], cudaDataType Ctype,
                                                int64_t ldc, int64_t batchCount, cublasComputeType_t computeType,
                                                cublasGemmAlgo_t algo);
CUBLASAPI cublasStatus_t cublasSgemv_v2(cublasHandle_t handle, cublasOperation_t trans, int m, int n,
                                        const float *alpha, const float *A, int lda, const float *x, int incx,
                                        const float *beta, float *y, int incy);
CUBLASAPI cublasStatus_t cublasSgemv_v2_64(cublasHandle_t handle, cublasOperation_t trans, int64_t m, int64_t n,
                                           const float *alpha, const float *A, int64_t lda, const float *x,
                                           int64_t incx, const float *beta, float *y, int64_t incy);

/* ---- handles ----------------------------------------------------------------------------------------------------- */

CUBLASAPI cublasStatus_t cublasCreate_v2(cublasHandle_t *handle);
CUBLASAPI cublasStatus_t cublasDestroy_v2(cublasHandle_t handle);
CUBLASAPI cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t streamId);
CUBLASAPI cublasStatus_t cublasGetStream_v2(cublasHandle_t handle, cudaStream_t *streamId);
CUBLASAPI cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode);
CUBLASAPI cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t *mode);
CUBLASAPI cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode);
CUBLASAPI cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t *mode);
CUBLASAPI cublasStatus_t cublasSetAtomicsMode(cublasHandle_t handle, cublasAtomicsMode_t mode);
CUBLASAPI cublasStatus_t cublasGetAtomicsMode(cublasHandle_t handle, cublasAtomicsMode_t *mode);
CUBLASAPI cublasStatus_t cublasSetSmCountTarget(cublasHandle_t handle, int smCountTarget);
CUBLASAPI cublasStatus_t cublasGetSmCountTarget(cublasHandle_t handle, int *smCountTarget);
CUBLASAPI cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace, size_t workspaceSizeInBytes);

/* ---- the library ------------------------------------------------------------------------------------------------- */

CUBLASAPI cublasStatus_t cublasGetVersion_v2(cublasHandle_t handle, int *version);
CUBLASAPI cublasStatus_t cublasGetProperty(libraryPropertyType type, int *value);
CUBLASAPI size_t cublasGetCudartVersion(void);
CUBLASAPI const char *cublasGetStatusName(cublasStatus_t status);
CUBLASAPI const char *cublasGetStatusString(cublasStatus_t status);

/* ---- copies between host and device ------------------------------------------------------------------------------ */

CUBLASAPI cublasStatus_t cublasSetVector(int n, int elemSize, const void *x, int incx, void *devicePtr, int incy);
CUBLASAPI cublasStatus_t cublasSetVector_64(int64_t n, int64_t elemSize, const void *x, int64_t incx, void *devicePtr,
                                            int64_t incy);
CUBLASAPI cublasStatus_t cublasSetVectorAsync(int n, int elemSize, const void *hostPtr, int incx, void *devicePtr,
                                              int incy, cudaStream_t stream);
CUBLASAPI cublasStatus_t cublasSetVectorAsync_64(int64_t n, int64_t elemSize, const void *hostPtr, int64_t incx,
                                                 void *devicePtr, int64_t incy, cudaStream_t stream);
CUBLASAPI cublasStatus_t cublasGetVector(int n, int elemSize, const void *x, int incx, void *y, int incy);
CUBLASAPI cublasStatus_t cublasGetVector_64(int64_t n, int64_t elemSize, const void *x, int64_t incx, void *y,
                                            int64_t incy);
CUBLASAPI cublasStatus_t cublasGetVectorAsync(int n, int elemSize, const void *devicePtr, int incx, void *hostPtr,
                                              int incy, cudaStream_t stream);
CUBLASAPI cublasStatus_t cublasGetVectorAsync_64(int64_t n, int64_t elemSize, const void *devicePtr, int64_t incx,
                                                 void *hostPtr, int64_t incy, cudaStream_t stream);
CUBLASAPI cublasStatus_t cublasSetMatrix(int rows, int cols, int elemSize, const void *A, int lda, void *B, int ldb);
CUBLASAPI cublasStatus_t cublasSetMatrix_64(int64_t rows, int64_t cols, int64_t elemSize, const void *A, int64_t lda,
                                            void *B, int64_t ldb);
CUBLASAPI cublasStatus_t cublasSetMatrixAsync(int rows, int cols, int elemSize, const void *A, int lda, void *B,
                                              int ldb, cudaStream_t stream);
CUBLASAPI cublasStatus_t cublasSetMatrixAsync_64(int64_t rows, int64_t cols, int64_t elemSize, const void *A,
                                                 int64_t lda, void *B, int64_t ldb, cudaStream_t stream);
CUBLASAPI cublasStatus_t cublasGetMatrix(int rows, int cols, int elemSize, const void *A, int lda, void *B, int ldb);
CUBLASAPI cublasStatus_t cublasGetMatrix_64(int64_t rows, int64_t cols, int64_t elemSize, const void *A, int64_t lda,
                                            void *B, int64_t ldb);
CUBLASAPI cublasStatus_t cublasGetMatrixAsync(int rows, int cols, int elemSize, const void *A, int lda, void *B,
                                              int ldb, cudaStream_t stream);
CUBLASAPI cublasStatus_t cublasGetMatrixAsync_64(int64_t rows, int64_t cols, int64_t elemSize, const void *A,
                                                 int64_t lda, void *B, int64_t ldb, cudaStream_t stream);

/* ---- cuBLASLt ---------------------------------------------------------------------------------------------------- */

CUBLASAPI cublasStatus_t cublasLtDestroy(cublasLtHandle_t lightHandle);
CUBLASAPI cublasStatus_t cublasLtMatmul(cublasLtHandle_t lightHandle, cublasLtMatmulDesc_t computeDesc,
                                        const void *alpha, const void *A, cublasLtMatrixLayout_t Adesc, const void *B,
                                        cublasLtMatrixLayout_t Bdesc, const void *beta, const void *C,
                                        cublasLtMatrixLayout_t Cdesc, void *D, cublasLtMatrixLayout_t Ddesc,
                                        const cublasLtMatmulAlgo_t *algo, void *workspace, size_t workspaceSizeInBytes,
                                        cudaStream_t stream);
CUBLASAPI cublasStatus_t cublasLtMatmulDescGetAttribute(cublasLtMatmulDesc_t matmulDesc,
                                                        cublasLtMatmulDescAttributes_t attr, void *buf,
                                                        size_t sizeInBytes, size_t *sizeWritten);
CUBLASAPI cublasStatus_t cublasLtMatrixLayoutGetAttribute(cublasLtMatrixLayout_t matLayout,
                                                          cublasLtMatrixLayoutAttribute_t attr, void *buf,
                                                          size_t sizeInBytes, size_t *sizeWritten);

#ifdef __cplusplus
}
#endif

#endif /* PYBLAS_SHIM_CUBLAS_ABI_H */
