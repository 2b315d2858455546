/*
 * pyblas_sgemm: single-precision matrix products on NVIDIA GPUs and on the CPU.
 *
 * C := alpha * op(A) * op(B) + beta * C, where op(A) is m x k, op(B) is k x n and C is m x n. Matrices are column-major
 * unless the function's name says RowMajor. Functions, argument order and enum values follow cuBLAS, with the prefix
 * changed. Sizes, leading dimensions and strides count elements. Functions ending in _64 take int64_t sizes.
 *
 * Every function that returns pyblasStatus_t leaves the reason of a failure in pyblasGetLastErrorMessage(). Nothing is
 * printed, nothing exits, and a call that fails on its arguments has read and written nothing.
 */
#ifndef PYBLAS_SGEMM_H
#define PYBLAS_SGEMM_H

#include <stddef.h>
#include <stdint.h>

#define PYBLAS_VERSION_MAJOR 0
#define PYBLAS_VERSION_MINOR 1
#define PYBLAS_VERSION_PATCH 0
#define PYBLAS_VERSION (PYBLAS_VERSION_MAJOR * 10000 + PYBLAS_VERSION_MINOR * 100 + PYBLAS_VERSION_PATCH)

#if defined(__GNUC__)
#define PYBLAS_API __attribute__((visibility("default")))
#else
#define PYBLAS_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- types ------------------------------------------------------------------------------------------------------- */

typedef struct pyblasContext *pyblasHandle_t;
typedef struct CUstream_st *pyblasStream_t; /* the same type as cudaStream_t; NULL is the default stream */

typedef enum {
    PYBLAS_STATUS_SUCCESS = 0,
    PYBLAS_STATUS_NOT_INITIALIZED = 1,
    PYBLAS_STATUS_ALLOC_FAILED = 3,
    PYBLAS_STATUS_INVALID_VALUE = 7,
    PYBLAS_STATUS_ARCH_MISMATCH = 8,
    PYBLAS_STATUS_MAPPING_ERROR = 11,
    PYBLAS_STATUS_EXECUTION_FAILED = 13,
    PYBLAS_STATUS_INTERNAL_ERROR = 14,
    PYBLAS_STATUS_NOT_SUPPORTED = 15
} pyblasStatus_t;

typedef enum { PYBLAS_OP_N = 0, PYBLAS_OP_T = 1, PYBLAS_OP_C = 2 } pyblasOperation_t;

/* Where alpha and beta live. */
typedef enum { PYBLAS_POINTER_MODE_HOST = 0, PYBLAS_POINTER_MODE_DEVICE = 1 } pyblasPointerMode_t;

/* Where the arrays of pointers of SgemmBatched live. A GPU handle starts with DEVICE, a CPU handle knows only HOST. */
typedef enum { PYBLAS_ARRAY_MODE_HOST = 0, PYBLAS_ARRAY_MODE_DEVICE = 1 } pyblasArrayMode_t;

/* How products are computed; docs/numerics.md states the bound of each mode. */
typedef enum {
    PYBLAS_COMPUTE_32F = 68,          /* FP32 accuracy, by any means */
    PYBLAS_COMPUTE_32F_PEDANTIC = 69, /* FP32 multiply-adds only */
    PYBLAS_COMPUTE_32F_FAST_TF32 = 77 /* inputs rounded to the 11 bits of TF32, FP32 sums; never unless asked for */
} pyblasComputeType_t;

/* What the elements of a matrix are: float32, float16, bfloat16. */
typedef enum { PYBLAS_R_32F = 0, PYBLAS_R_16F = 2, PYBLAS_R_16BF = 14 } pyblasDataType_t;

/* There for cuBLAS's argument list: any value is taken, and the library chooses by itself. */
typedef enum { PYBLAS_GEMM_DEFAULT = -1 } pyblasGemmAlgo_t;

/* Told how much of a product is done, from 0 to 1, while its caller waits. Anything but 0 stops the product. */
typedef int (*pyblasXtProgress_t)(void *context, double done);

/* One GPU as NVML describes it, in CUDA_VISIBLE_DEVICES order. */
typedef struct {
    char name[96];
    int sm;                 /* compute capability times ten: 90 */
    int supported;          /* 1 if this library has code for it and the driver is new enough */
    long long memory_bytes; /* all of it, not what is free */
    char driver_version[32];
    int cuda_version; /* highest CUDA version of the driver: 13000 */
    char reason[320]; /* why it is not supported; empty if it is */
} pyblasDeviceInfo_t;

/* What host memory is computed with. */
typedef struct {
    char instruction_set[16]; /* avx512, avx2 or generic */
    char blas[192];           /* configuration of the BLAS that takes large products; empty if there is none */
    char blas_path[1024];     /* the file it was loaded from */
    int threads;
} pyblasCpuInfo_t;

/* One row of the kernel table. The strings live as long as the library. */
typedef struct {
    const char *name;   /* what pyblasSetKernel takes */
    const char *family; /* the file and idea it belongs to */
    const char *engine; /* "cpu" or "gpu" */
    const char *modes;  /* compute modes it serves: "fp32 fp32_pedantic" */
    const char *types;  /* of A and B: "float32", or "float16 bfloat16" with C of any of the three */
    int min_sm;         /* lowest compute capability times ten; 0 for the CPU */
    int threads;        /* of a block; this and the next two are 0 for the CPU */
    int registers;      /* of a thread, at most */
    int shared_bytes;   /* shared memory of a block, at most */
} pyblasKernelInfo_t;

/* ---- library ----------------------------------------------------------------------------------------------------- */

/* PYBLAS_VERSION of the library. Needs no handle and no GPU. */
PYBLAS_API pyblasStatus_t pyblasGetVersion(int *version);

/* "PYBLAS_STATUS_INVALID_VALUE" for 7. Never NULL. */
PYBLAS_API const char *pyblasGetStatusName(pyblasStatus_t status);

/* The reason of the last failure on this thread; empty if there was none. Valid until the thread's next failure. */
PYBLAS_API const char *pyblasGetLastErrorMessage(void);

/* GPU code in this library: "80 90a 80-ptx"; empty if it was built without CUDA. */
PYBLAS_API const char *pyblasGetBuildArchitectures(void);

/* CUDA version the library was built with (13000); 0 without CUDA. */
PYBLAS_API int pyblasGetBuildCudaVersion(void);

/* Number of NVIDIA GPUs; 0 with the reason in pyblasGetLastErrorMessage() if there is none. The driver is asked through
   NVML, so no CUDA context is created and the process may still fork. */
PYBLAS_API pyblasStatus_t pyblasDeviceCount(int *count);
PYBLAS_API pyblasStatus_t pyblasDeviceInfo(int device, pyblasDeviceInfo_t *info);
PYBLAS_API pyblasStatus_t pyblasCpuInfo(pyblasCpuInfo_t *info);

/* Threads of the CPU engine, from 1 to the number of processors this process may use; 0 asks for that number. */
PYBLAS_API pyblasStatus_t pyblasSetNumThreads(int threads);
PYBLAS_API int pyblasGetNumThreads(void);

/* File to load the CPU's BLAS from. Works before the first CPU product; PYBLAS_SGEMM_BLAS_LIB goes before it. */
PYBLAS_API pyblasStatus_t pyblasSetBlasLibrary(const char *path);

/* Kernel number index of the table, from 0; NULL past the end. */
PYBLAS_API const char *pyblasKernelName(int index);
PYBLAS_API pyblasStatus_t pyblasKernelInfo(int index, pyblasKernelInfo_t *info);

/* ---- handles ----------------------------------------------------------------------------------------------------- */

/* A handle for the current CUDA device. Several threads may share a handle: its calls run one after another. */
PYBLAS_API pyblasStatus_t pyblasCreate(pyblasHandle_t *handle);

/* The same for the CUDA device of that number, which need not be the current one and does not become it. */
PYBLAS_API pyblasStatus_t pyblasCreateOnDevice(pyblasHandle_t *handle, int device);

/* A handle that computes on host memory. */
PYBLAS_API pyblasStatus_t pyblasCreateCpu(pyblasHandle_t *handle);
PYBLAS_API pyblasStatus_t pyblasDestroy(pyblasHandle_t handle);

/* The handle's CUDA device; -1 for a CPU handle. */
PYBLAS_API pyblasStatus_t pyblasGetDevice(pyblasHandle_t handle, int *device);

/* Stream on which work is queued. Returns to the handle's own workspace. */
PYBLAS_API pyblasStatus_t pyblasSetStream(pyblasHandle_t handle, pyblasStream_t stream);
PYBLAS_API pyblasStatus_t pyblasGetStream(pyblasHandle_t handle, pyblasStream_t *stream);

PYBLAS_API pyblasStatus_t pyblasSetPointerMode(pyblasHandle_t handle, pyblasPointerMode_t mode);
PYBLAS_API pyblasStatus_t pyblasGetPointerMode(pyblasHandle_t handle, pyblasPointerMode_t *mode);
PYBLAS_API pyblasStatus_t pyblasSetArrayMode(pyblasHandle_t handle, pyblasArrayMode_t mode);
PYBLAS_API pyblasStatus_t pyblasGetArrayMode(pyblasHandle_t handle, pyblasArrayMode_t *mode);
PYBLAS_API pyblasStatus_t pyblasSetComputeMode(pyblasHandle_t handle, pyblasComputeType_t mode);
PYBLAS_API pyblasStatus_t pyblasGetComputeMode(pyblasHandle_t handle, pyblasComputeType_t *mode);

/* 1: the bits of a row of C, as the caller stores it, depend on that row of op(A), on op(B), n, k, alpha, beta, the row
   of C and the compute mode: not on m, the row's number, or the batch. */
PYBLAS_API pyblasStatus_t pyblasSetBatchInvariant(pyblasHandle_t handle, int on);
PYBLAS_API pyblasStatus_t pyblasGetBatchInvariant(pyblasHandle_t handle, int *on);

/* Device memory for kernels to use on the handle's present stream instead of the handle's own. It is aligned to 256
   bytes; bytes = 0 means none. pyblasSetStream returns to the handle's own. */
PYBLAS_API pyblasStatus_t pyblasSetWorkspace(pyblasHandle_t handle, void *workspace, size_t bytes);

/* Most bytes of workspace the handle may own for one stream; 1280 MiB at first. */
PYBLAS_API pyblasStatus_t pyblasSetWorkspaceLimit(pyblasHandle_t handle, size_t bytes);
PYBLAS_API pyblasStatus_t pyblasGetWorkspaceLimit(pyblasHandle_t handle, size_t *bytes);

/* Frees the workspace the handle owns, captured buffers included: graphs that used it must not be replayed. */
PYBLAS_API pyblasStatus_t pyblasFreeWorkspace(pyblasHandle_t handle);

/* Forces the kernel of that name; NULL or "" lets the library choose. A call it cannot do is NOT_SUPPORTED. */
PYBLAS_API pyblasStatus_t pyblasSetKernel(pyblasHandle_t handle, const char *name);

/* The forced name, or "" if there is none. Valid as long as the library. */
PYBLAS_API pyblasStatus_t pyblasGetKernel(pyblasHandle_t handle, const char **name);

/* The kernel a column-major product of these sizes would run, with the least leading dimensions, contiguous batches and
   beta = 0, and why, with how much workspace. The reason is valid until this thread asks again. */
PYBLAS_API pyblasStatus_t pyblasSelectedKernel(pyblasHandle_t handle, pyblasOperation_t transa,
                                               pyblasOperation_t transb, int64_t m, int64_t n, int64_t k,
                                               int64_t batchCount, const char **name, const char **reason);

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* C := alpha * op(A) * op(B) + beta * C. With beta == 0, C is not read; with alpha == 0 or k == 0, A and B are not. */
PYBLAS_API pyblasStatus_t pyblasSgemm(pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb, int m,
                                      int n, int k, const float *alpha, const float *A, int lda, const float *B,
                                      int ldb, const float *beta, float *C, int ldc);
PYBLAS_API pyblasStatus_t pyblasSgemm_64(pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb,
                                         int64_t m, int64_t n, int64_t k, const float *alpha, const float *A,
                                         int64_t lda, const float *B, int64_t ldb, const float *beta, float *C,
                                         int64_t ldc);

/* The same on row-major matrices: a leading dimension is the length of a stored row. */
PYBLAS_API pyblasStatus_t pyblasSgemmRowMajor(pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb,
                                              int m, int n, int k, const float *alpha, const float *A, int lda,
                                              const float *B, int ldb, const float *beta, float *C, int ldc);
PYBLAS_API pyblasStatus_t pyblasSgemmRowMajor_64(pyblasHandle_t handle, pyblasOperation_t transa,
                                                 pyblasOperation_t transb, int64_t m, int64_t n, int64_t k,
                                                 const float *alpha, const float *A, int64_t lda, const float *B,
                                                 int64_t ldb, const float *beta, float *C, int64_t ldc);

/* batchCount products; matrix i starts at its base plus i times its stride. strideA and strideB may be 0 or negative;
   the C matrices must not meet. */
PYBLAS_API pyblasStatus_t pyblasSgemmStridedBatched(pyblasHandle_t handle, pyblasOperation_t transa,
                                                    pyblasOperation_t transb, int m, int n, int k, const float *alpha,
                                                    const float *A, int lda, long long int strideA, const float *B,
                                                    int ldb, long long int strideB, const float *beta, float *C,
                                                    int ldc, long long int strideC, int batchCount);
PYBLAS_API pyblasStatus_t pyblasSgemmStridedBatched_64(pyblasHandle_t handle, pyblasOperation_t transa,
                                                       pyblasOperation_t transb, int64_t m, int64_t n, int64_t k,
                                                       const float *alpha, const float *A, int64_t lda,
                                                       long long int strideA, const float *B, int64_t ldb,
                                                       long long int strideB, const float *beta, float *C, int64_t ldc,
                                                       long long int strideC, int64_t batchCount);

/* The same on row-major matrices: a leading dimension is the length of a stored row. */
PYBLAS_API pyblasStatus_t pyblasSgemmStridedBatchedRowMajor(pyblasHandle_t handle, pyblasOperation_t transa,
                                                            pyblasOperation_t transb, int m, int n, int k,
                                                            const float *alpha, const float *A, int lda,
                                                            long long int strideA, const float *B, int ldb,
                                                            long long int strideB, const float *beta, float *C, int ldc,
                                                            long long int strideC, int batchCount);
PYBLAS_API pyblasStatus_t pyblasSgemmStridedBatchedRowMajor_64(
    pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb, int64_t m, int64_t n, int64_t k,
    const float *alpha, const float *A, int64_t lda, long long int strideA, const float *B, int64_t ldb,
    long long int strideB, const float *beta, float *C, int64_t ldc, long long int strideC, int64_t batchCount);

/* batchCount products through arrays of pointers (see pyblasArrayMode_t). The C matrices must not meet. */
PYBLAS_API pyblasStatus_t pyblasSgemmBatched(pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb,
                                             int m, int n, int k, const float *alpha, const float *const Aarray[],
                                             int lda, const float *const Barray[], int ldb, const float *beta,
                                             float *const Carray[], int ldc, int batchCount);
PYBLAS_API pyblasStatus_t pyblasSgemmBatched_64(pyblasHandle_t handle, pyblasOperation_t transa,
                                                pyblasOperation_t transb, int64_t m, int64_t n, int64_t k,
                                                const float *alpha, const float *const Aarray[], int64_t lda,
                                                const float *const Barray[], int64_t ldb, const float *beta,
                                                float *const Carray[], int64_t ldc, int64_t batchCount);

/* The same on row-major matrices: a leading dimension is the length of a stored row. */
PYBLAS_API pyblasStatus_t pyblasSgemmBatchedRowMajor(pyblasHandle_t handle, pyblasOperation_t transa,
                                                     pyblasOperation_t transb, int m, int n, int k, const float *alpha,
                                                     const float *const Aarray[], int lda, const float *const Barray[],
                                                     int ldb, const float *beta, float *const Carray[], int ldc,
                                                     int batchCount);
PYBLAS_API pyblasStatus_t pyblasSgemmBatchedRowMajor_64(pyblasHandle_t handle, pyblasOperation_t transa,
                                                        pyblasOperation_t transb, int64_t m, int64_t n, int64_t k,
                                                        const float *alpha, const float *const Aarray[], int64_t lda,
                                                        const float *const Barray[], int64_t ldb, const float *beta,
                                                        float *const Carray[], int64_t ldc, int64_t batchCount);

/* Products of float16 or bfloat16 matrices, summed in FP32 and rounded to C's type once, at the end. A and B are of one
   type and C of any of the three; or all are float32, and the call is pyblasSgemm's. alpha and beta are floats.
   computeType goes before the handle's mode. A type or compute type the library does not have is NOT_SUPPORTED. */
PYBLAS_API pyblasStatus_t pyblasGemmEx(pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb, int m,
                                       int n, int k, const void *alpha, const void *A, pyblasDataType_t Atype, int lda,
                                       const void *B, pyblasDataType_t Btype, int ldb, const void *beta, void *C,
                                       pyblasDataType_t Ctype, int ldc, pyblasComputeType_t computeType,
                                       pyblasGemmAlgo_t algo);
PYBLAS_API pyblasStatus_t pyblasGemmEx_64(pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb,
                                          int64_t m, int64_t n, int64_t k, const void *alpha, const void *A,
                                          pyblasDataType_t Atype, int64_t lda, const void *B, pyblasDataType_t Btype,
                                          int64_t ldb, const void *beta, void *C, pyblasDataType_t Ctype, int64_t ldc,
                                          pyblasComputeType_t computeType, pyblasGemmAlgo_t algo);

/* The same on row-major matrices: a leading dimension is the length of a stored row. */
PYBLAS_API pyblasStatus_t pyblasGemmExRowMajor(pyblasHandle_t handle, pyblasOperation_t transa,
                                               pyblasOperation_t transb, int m, int n, int k, const void *alpha,
                                               const void *A, pyblasDataType_t Atype, int lda, const void *B,
                                               pyblasDataType_t Btype, int ldb, const void *beta, void *C,
                                               pyblasDataType_t Ctype, int ldc, pyblasComputeType_t computeType,
                                               pyblasGemmAlgo_t algo);
PYBLAS_API pyblasStatus_t pyblasGemmExRowMajor_64(pyblasHandle_t handle, pyblasOperation_t transa,
                                                  pyblasOperation_t transb, int64_t m, int64_t n, int64_t k,
                                                  const void *alpha, const void *A, pyblasDataType_t Atype, int64_t lda,
                                                  const void *B, pyblasDataType_t Btype, int64_t ldb, const void *beta,
                                                  void *C, pyblasDataType_t Ctype, int64_t ldc,
                                                  pyblasComputeType_t computeType, pyblasGemmAlgo_t algo);

/* batchCount such products; matrix i starts at its base plus i times its stride, in elements of its type. */
PYBLAS_API pyblasStatus_t pyblasGemmStridedBatchedEx(
    pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb, int m, int n, int k, const void *alpha,
    const void *A, pyblasDataType_t Atype, int lda, long long int strideA, const void *B, pyblasDataType_t Btype,
    int ldb, long long int strideB, const void *beta, void *C, pyblasDataType_t Ctype, int ldc, long long int strideC,
    int batchCount, pyblasComputeType_t computeType, pyblasGemmAlgo_t algo);
PYBLAS_API pyblasStatus_t pyblasGemmStridedBatchedEx_64(
    pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb, int64_t m, int64_t n, int64_t k,
    const void *alpha, const void *A, pyblasDataType_t Atype, int64_t lda, long long int strideA, const void *B,
    pyblasDataType_t Btype, int64_t ldb, long long int strideB, const void *beta, void *C, pyblasDataType_t Ctype,
    int64_t ldc, long long int strideC, int64_t batchCount, pyblasComputeType_t computeType, pyblasGemmAlgo_t algo);

/* The same on row-major matrices: a leading dimension is the length of a stored row. */
PYBLAS_API pyblasStatus_t pyblasGemmStridedBatchedExRowMajor(
    pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb, int m, int n, int k, const void *alpha,
    const void *A, pyblasDataType_t Atype, int lda, long long int strideA, const void *B, pyblasDataType_t Btype,
    int ldb, long long int strideB, const void *beta, void *C, pyblasDataType_t Ctype, int ldc, long long int strideC,
    int batchCount, pyblasComputeType_t computeType, pyblasGemmAlgo_t algo);
PYBLAS_API pyblasStatus_t pyblasGemmStridedBatchedExRowMajor_64(
    pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb, int64_t m, int64_t n, int64_t k,
    const void *alpha, const void *A, pyblasDataType_t Atype, int64_t lda, long long int strideA, const void *B,
    pyblasDataType_t Btype, int64_t ldb, long long int strideB, const void *beta, void *C, pyblasDataType_t Ctype,
    int64_t ldc, long long int strideC, int64_t batchCount, pyblasComputeType_t computeType, pyblasGemmAlgo_t algo);

/* ---- products of host memory on GPUs ----------------------------------------------------------------------------- */

/* pyblasSgemm on a GPU handle, with A, B and C each in host memory of any kind or in memory of a GPU. C is written when
   the call returns. If it fails or is stopped on its way, the message says how much of C is written. On a CPU handle it
   is pyblasSgemm. */
PYBLAS_API pyblasStatus_t pyblasXtSgemm(pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb,
                                        int m, int n, int k, const float *alpha, const float *A, int lda,
                                        const float *B, int ldb, const float *beta, float *C, int ldc);
PYBLAS_API pyblasStatus_t pyblasXtSgemm_64(pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb,
                                           int64_t m, int64_t n, int64_t k, const float *alpha, const float *A,
                                           int64_t lda, const float *B, int64_t ldb, const float *beta, float *C,
                                           int64_t ldc);

/* The same on row-major matrices: a leading dimension is the length of a stored row. */
PYBLAS_API pyblasStatus_t pyblasXtSgemmRowMajor(pyblasHandle_t handle, pyblasOperation_t transa,
                                                pyblasOperation_t transb, int m, int n, int k, const float *alpha,
                                                const float *A, int lda, const float *B, int ldb, const float *beta,
                                                float *C, int ldc);
PYBLAS_API pyblasStatus_t pyblasXtSgemmRowMajor_64(pyblasHandle_t handle, pyblasOperation_t transa,
                                                   pyblasOperation_t transb, int64_t m, int64_t n, int64_t k,
                                                   const float *alpha, const float *A, int64_t lda, const float *B,
                                                   int64_t ldb, const float *beta, float *C, int64_t ldc);

/* batchCount such products, as in pyblasSgemmStridedBatched. */
PYBLAS_API pyblasStatus_t pyblasXtSgemmStridedBatched(pyblasHandle_t handle, pyblasOperation_t transa,
                                                      pyblasOperation_t transb, int m, int n, int k, const float *alpha,
                                                      const float *A, int lda, long long int strideA, const float *B,
                                                      int ldb, long long int strideB, const float *beta, float *C,
                                                      int ldc, long long int strideC, int batchCount);
PYBLAS_API pyblasStatus_t pyblasXtSgemmStridedBatched_64(pyblasHandle_t handle, pyblasOperation_t transa,
                                                         pyblasOperation_t transb, int64_t m, int64_t n, int64_t k,
                                                         const float *alpha, const float *A, int64_t lda,
                                                         long long int strideA, const float *B, int64_t ldb,
                                                         long long int strideB, const float *beta, float *C,
                                                         int64_t ldc, long long int strideC, int64_t batchCount);

/* The same on row-major matrices: a leading dimension is the length of a stored row. */
PYBLAS_API pyblasStatus_t pyblasXtSgemmStridedBatchedRowMajor(pyblasHandle_t handle, pyblasOperation_t transa,
                                                              pyblasOperation_t transb, int m, int n, int k,
                                                              const float *alpha, const float *A, int lda,
                                                              long long int strideA, const float *B, int ldb,
                                                              long long int strideB, const float *beta, float *C,
                                                              int ldc, long long int strideC, int batchCount);
PYBLAS_API pyblasStatus_t pyblasXtSgemmStridedBatchedRowMajor_64(
    pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb, int64_t m, int64_t n, int64_t k,
    const float *alpha, const float *A, int64_t lda, long long int strideA, const float *B, int64_t ldb,
    long long int strideB, const float *beta, float *C, int64_t ldc, long long int strideC, int64_t batchCount);

/* The GPUs that share the tiles of C in the handle's pyblasXt products; count = 0: the handle's own. The result has the
   same bits on any number of GPUs of one model. */
PYBLAS_API pyblasStatus_t pyblasXtSetDevices(pyblasHandle_t handle, int count, const int *devices);

/* Most bytes of each GPU's memory that a pyblasXt product may use; 0, the first setting: four fifths of what is free.
 */
PYBLAS_API pyblasStatus_t pyblasXtSetMemoryLimit(pyblasHandle_t handle, size_t bytes);
PYBLAS_API pyblasStatus_t pyblasXtGetMemoryLimit(pyblasHandle_t handle, size_t *bytes);

/* Called on the caller's thread about twenty times a second while a pyblasXt product runs. It must not use the handle.
   NULL: nobody is told. */
PYBLAS_API pyblasStatus_t pyblasXtSetProgress(pyblasHandle_t handle, pyblasXtProgress_t progress, void *context);

/* Seconds to reckon with for a product of ordinary host memory, on a GPU handle by pyblasXt, on a CPU handle by the CPU
   engine: a hopeful prediction, until products of the shape have been computed twice; then what they took. The first
   question of a process measures link and processors, which takes some hundredths of a second. */
PYBLAS_API pyblasStatus_t pyblasXtPredict(pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb,
                                          int64_t m, int64_t n, int64_t k, int64_t batchCount, double *seconds);

#ifdef __cplusplus
}
#endif

#endif /* PYBLAS_SGEMM_H */
