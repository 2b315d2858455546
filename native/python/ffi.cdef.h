/* native/include/pyblas_sgemm.h without its macros and comments, then checked.h; tests compare. */
typedef struct pyblasContext *pyblasHandle_t;
typedef struct CUstream_st *pyblasStream_t;
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
typedef enum { PYBLAS_POINTER_MODE_HOST = 0, PYBLAS_POINTER_MODE_DEVICE = 1 } pyblasPointerMode_t;
typedef enum { PYBLAS_ARRAY_MODE_HOST = 0, PYBLAS_ARRAY_MODE_DEVICE = 1 } pyblasArrayMode_t;
typedef enum {
    PYBLAS_COMPUTE_32F = 68,
    PYBLAS_COMPUTE_32F_PEDANTIC = 69,
    PYBLAS_COMPUTE_32F_FAST_TF32 = 77
} pyblasComputeType_t;
typedef enum { PYBLAS_R_32F = 0, PYBLAS_R_16F = 2, PYBLAS_R_16BF = 14 } pyblasDataType_t;
typedef enum { PYBLAS_GEMM_DEFAULT = -1 } pyblasGemmAlgo_t;
typedef int (*pyblasXtProgress_t)(void *context, double done);
typedef struct {
    char name[96];
    int sm;
    int supported;
    long long memory_bytes;
    char driver_version[32];
    int cuda_version;
    char reason[320];
} pyblasDeviceInfo_t;
typedef struct {
    char instruction_set[16];
    char blas[192];
    char blas_path[1024];
    int threads;
} pyblasCpuInfo_t;
typedef struct {
    const char *name;
    const char *family;
    const char *engine;
    const char *modes;
    const char *types;
    int min_sm;
    int threads;
    int registers;
    int shared_bytes;
} pyblasKernelInfo_t;
pyblasStatus_t pyblasGetVersion(int *version);
const char *pyblasGetStatusName(pyblasStatus_t status);
const char *pyblasGetLastErrorMessage(void);
const char *pyblasGetBuildArchitectures(void);
int pyblasGetBuildCudaVersion(void);
pyblasStatus_t pyblasDeviceCount(int *count);
pyblasStatus_t pyblasDeviceInfo(int device, pyblasDeviceInfo_t *info);
pyblasStatus_t pyblasCpuInfo(pyblasCpuInfo_t *info);
pyblasStatus_t pyblasSetNumThreads(int threads);
int pyblasGetNumThreads(void);
pyblasStatus_t pyblasSetBlasLibrary(const char *path);
const char *pyblasKernelName(int index);
pyblasStatus_t pyblasKernelInfo(int index, pyblasKernelInfo_t *info);
pyblasStatus_t pyblasCreate(pyblasHandle_t *handle);
pyblasStatus_t pyblasCreateOnDevice(pyblasHandle_t *handle, int device);
pyblasStatus_t pyblasCreateCpu(pyblasHandle_t *handle);
pyblasStatus_t pyblasDestroy(pyblasHandle_t handle);
pyblasStatus_t pyblasGetDevice(pyblasHandle_t handle, int *device);
pyblasStatus_t pyblasSetStream(pyblasHandle_t handle, pyblasStream_t stream);
pyblasStatus_t pyblasGetStream(pyblasHandle_t handle, pyblasStream_t *stream);
pyblasStatus_t pyblasSetPointerMode(pyblasHandle_t handle, pyblasPointerMode_t mode);
pyblasStatus_t pyblasGetPointerMode(pyblasHandle_t handle, pyblasPointerMode_t *mode);
pyblasStatus_t pyblasSetArrayMode(pyblasHandle_t handle, pyblasArrayMode_t mode);
pyblasStatus_t pyblasGetArrayMode(pyblasHandle_t handle, pyblasArrayMode_t *mode);
pyblasStatus_t pyblasSetComputeMode(pyblasHandle_t handle, pyblasComputeType_t mode);
pyblasStatus_t pyblasGetComputeMode(pyblasHandle_t handle, pyblasComputeType_t *mode);
pyblasStatus_t pyblasSetBatchInvariant(pyblasHandle_t handle, int on);
pyblasStatus_t pyblasGetBatchInvariant(pyblasHandle_t handle, int *on);
pyblasStatus_t pyblasSetWorkspace(pyblasHandle_t handle, void *workspace, size_t bytes);
pyblasStatus_t pyblasSetWorkspaceLimit(pyblasHandle_t handle, size_t bytes);
pyblasStatus_t pyblasGetWorkspaceLimit(pyblasHandle_t handle, size_t *bytes);
pyblasStatus_t pyblasFreeWorkspace(pyblasHandle_t handle);
pyblasStatus_t pyblasSetKernel(pyblasHandle_t handle, const char *name);
pyblasStatus_t pyblasGetKernel(pyblasHandle_t handle, const char **name);
pyblasStatus_t pyblasSelectedKernel(pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb,
                                    int64_t m, int64_t n, int64_t k, int64_t batchCount, const char **name,
                                    const char **reason);
pyblasStatus_t pyblasSgemm(pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb, int m, int n,
                           int k, const float *alpha, const float *A, int lda, const float *B, int ldb,
                           const float *beta, float *C, int ldc);
pyblasStatus_t pyblasSgemm_64(pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb, int64_t m,
                              int64_t n, int64_t k, const float *alpha, const float *A, int64_t lda, const float *B,
                              int64_t ldb, const float *beta, float *C, int64_t ldc);
pyblasStatus_t pyblasSgemmRowMajor(pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb, int m,
                                   int n, int k, const float *alpha, const float *A, int lda, const float *B, int ldb,
                                   const float *beta, float *C, int ldc);
pyblasStatus_t pyblasSgemmRowMajor_64(pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb,
                                      int64_t m, int64_t n, int64_t k, const float *alpha, const float *A, int64_t lda,
                                      const float *B, int64_t ldb, const float *beta, float *C, int64_t ldc);
pyblasStatus_t pyblasSgemmStridedBatched(pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb,
                                         int m, int n, int k, const float *alpha, const float *A, int lda,
                                         long long int strideA, const float *B, int ldb, long long int strideB,
                                         const float *beta, float *C, int ldc, long long int strideC, int batchCount);
pyblasStatus_t pyblasSgemmStridedBatched_64(pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb,
                                            int64_t m, int64_t n, int64_t k, const float *alpha, const float *A,
                                            int64_t lda, long long int strideA, const float *B, int64_t ldb,
                                            long long int strideB, const float *beta, float *C, int64_t ldc,
                                            long long int strideC, int64_t batchCount);
pyblasStatus_t pyblasSgemmStridedBatchedRowMajor(pyblasHandle_t handle, pyblasOperation_t transa,
                                                 pyblasOperation_t transb, int m, int n, int k, const float *alpha,
                                                 const float *A, int lda, long long int strideA, const float *B,
                                                 int ldb, long long int strideB, const float *beta, float *C, int ldc,
                                                 long long int strideC, int batchCount);
pyblasStatus_t pyblasSgemmStridedBatchedRowMajor_64(pyblasHandle_t handle, pyblasOperation_t transa,
                                                    pyblasOperation_t transb, int64_t m, int64_t n, int64_t k,
                                                    const float *alpha, const float *A, int64_t lda,
                                                    long long int strideA, const float *B, int64_t ldb,
                                                    long long int strideB, const float *beta, float *C, int64_t ldc,
                                                    long long int strideC, int64_t batchCount);
pyblasStatus_t pyblasSgemmBatched(pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb, int m,
                                  int n, int k, const float *alpha, const float *const Aarray[], int lda,
                                  const float *const Barray[], int ldb, const float *beta, float *const Carray[],
                                  int ldc, int batchCount);
pyblasStatus_t pyblasSgemmBatched_64(pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb,
                                     int64_t m, int64_t n, int64_t k, const float *alpha, const float *const Aarray[],
                                     int64_t lda, const float *const Barray[], int64_t ldb, const float *beta,
                                     float *const Carray[], int64_t ldc, int64_t batchCount);
pyblasStatus_t pyblasSgemmBatchedRowMajor(pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb,
                                          int m, int n, int k, const float *alpha, const float *const Aarray[], int lda,
                                          const float *const Barray[], int ldb, const float *beta,
                                          float *const Carray[], int ldc, int batchCount);
pyblasStatus_t pyblasSgemmBatchedRowMajor_64(pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb,
                                             int64_t m, int64_t n, int64_t k, const float *alpha,
                                             const float *const Aarray[], int64_t lda, const float *const Barray[],
                                             int64_t ldb, const float *beta, float *const Carray[], int64_t ldc,
                                             int64_t batchCount);
pyblasStatus_t pyblasGemmEx(pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb, int m, int n,
                            int k, const void *alpha, const void *A, pyblasDataType_t Atype, int lda, const void *B,
                            pyblasDataType_t Btype, int ldb, const void *beta, void *C, pyblasDataType_t Ctype, int ldc,
                            pyblasComputeType_t computeType, pyblasGemmAlgo_t algo);
pyblasStatus_t pyblasGemmEx_64(pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb, int64_t m,
                               int64_t n, int64_t k, const void *alpha, const void *A, pyblasDataType_t Atype,
                               int64_t lda, const void *B, pyblasDataType_t Btype, int64_t ldb, const void *beta,
                               void *C, pyblasDataType_t Ctype, int64_t ldc, pyblasComputeType_t computeType,
                               pyblasGemmAlgo_t algo);
pyblasStatus_t pyblasGemmExRowMajor(pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb, int m,
                                    int n, int k, const void *alpha, const void *A, pyblasDataType_t Atype, int lda,
                                    const void *B, pyblasDataType_t Btype, int ldb, const void *beta, void *C,
                                    pyblasDataType_t Ctype, int ldc, pyblasComputeType_t computeType,
                                    pyblasGemmAlgo_t algo);
pyblasStatus_t pyblasGemmExRowMajor_64(pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb,
                                       int64_t m, int64_t n, int64_t k, const void *alpha, const void *A,
                                       pyblasDataType_t Atype, int64_t lda, const void *B, pyblasDataType_t Btype,
                                       int64_t ldb, const void *beta, void *C, pyblasDataType_t Ctype, int64_t ldc,
                                       pyblasComputeType_t computeType, pyblasGemmAlgo_t algo);
pyblasStatus_t pyblasGemmStridedBatchedEx(pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb,
                                          int m, int n, int k, const void *alpha, const void *A, pyblasDataType_t Atype,
                                          int lda, long long int strideA, const void *B, pyblasDataType_t Btype,
                                          int ldb, long long int strideB, const void *beta, void *C,
                                          pyblasDataType_t Ctype, int ldc, long long int strideC, int batchCount,
                                          pyblasComputeType_t computeType, pyblasGemmAlgo_t algo);
pyblasStatus_t pyblasGemmStridedBatchedEx_64(pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb,
                                             int64_t m, int64_t n, int64_t k, const void *alpha, const void *A,
                                             pyblasDataType_t Atype, int64_t lda, long long int strideA, const void *B,
                                             pyblasDataType_t Btype, int64_t ldb, long long int strideB,
                                             const void *beta, void *C, pyblasDataType_t Ctype, int64_t ldc,
                                             long long int strideC, int64_t batchCount, pyblasComputeType_t computeType,
                                             pyblasGemmAlgo_t algo);
pyblasStatus_t pyblasGemmStridedBatchedExRowMajor(pyblasHandle_t handle, pyblasOperation_t transa,
                                                  pyblasOperation_t transb, int m, int n, int k, const void *alpha,
                                                  const void *A, pyblasDataType_t Atype, int lda, long long int strideA,
                                                  const void *B, pyblasDataType_t Btype, int ldb, long long int strideB,
                                                  const void *beta, void *C, pyblasDataType_t Ctype, int ldc,
                                                  long long int strideC, int batchCount,
                                                  pyblasComputeType_t computeType, pyblasGemmAlgo_t algo);
pyblasStatus_t pyblasGemmStridedBatchedExRowMajor_64(
    pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb, int64_t m, int64_t n, int64_t k,
    const void *alpha, const void *A, pyblasDataType_t Atype, int64_t lda, long long int strideA, const void *B,
    pyblasDataType_t Btype, int64_t ldb, long long int strideB, const void *beta, void *C, pyblasDataType_t Ctype,
    int64_t ldc, long long int strideC, int64_t batchCount, pyblasComputeType_t computeType, pyblasGemmAlgo_t algo);
pyblasStatus_t pyblasXtSgemm(pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb, int m, int n,
                             int k, const float *alpha, const float *A, int lda, const float *B, int ldb,
                             const float *beta, float *C, int ldc);
pyblasStatus_t pyblasXtSgemm_64(pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb, int64_t m,
                                int64_t n, int64_t k, const float *alpha, const float *A, int64_t lda, const float *B,
                                int64_t ldb, const float *beta, float *C, int64_t ldc);
pyblasStatus_t pyblasXtSgemmRowMajor(pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb, int m,
                                     int n, int k, const float *alpha, const float *A, int lda, const float *B, int ldb,
                                     const float *beta, float *C, int ldc);
pyblasStatus_t pyblasXtSgemmRowMajor_64(pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb,
                                        int64_t m, int64_t n, int64_t k, const float *alpha, const float *A,
                                        int64_t lda, const float *B, int64_t ldb, const float *beta, float *C,
                                        int64_t ldc);
pyblasStatus_t pyblasXtSgemmStridedBatched(pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb,
                                           int m, int n, int k, const float *alpha, const float *A, int lda,
                                           long long int strideA, const float *B, int ldb, long long int strideB,
                                           const float *beta, float *C, int ldc, long long int strideC, int batchCount);
pyblasStatus_t pyblasXtSgemmStridedBatched_64(pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb,
                                              int64_t m, int64_t n, int64_t k, const float *alpha, const float *A,
                                              int64_t lda, long long int strideA, const float *B, int64_t ldb,
                                              long long int strideB, const float *beta, float *C, int64_t ldc,
                                              long long int strideC, int64_t batchCount);
pyblasStatus_t pyblasXtSgemmStridedBatchedRowMajor(pyblasHandle_t handle, pyblasOperation_t transa,
                                                   pyblasOperation_t transb, int m, int n, int k, const float *alpha,
                                                   const float *A, int lda, long long int strideA, const float *B,
                                                   int ldb, long long int strideB, const float *beta, float *C, int ldc,
                                                   long long int strideC, int batchCount);
pyblasStatus_t pyblasXtSgemmStridedBatchedRowMajor_64(pyblasHandle_t handle, pyblasOperation_t transa,
                                                      pyblasOperation_t transb, int64_t m, int64_t n, int64_t k,
                                                      const float *alpha, const float *A, int64_t lda,
                                                      long long int strideA, const float *B, int64_t ldb,
                                                      long long int strideB, const float *beta, float *C, int64_t ldc,
                                                      long long int strideC, int64_t batchCount);
pyblasStatus_t pyblasXtSetDevices(pyblasHandle_t handle, int count, const int *devices);
pyblasStatus_t pyblasXtSetMemoryLimit(pyblasHandle_t handle, size_t bytes);
pyblasStatus_t pyblasXtGetMemoryLimit(pyblasHandle_t handle, size_t *bytes);
pyblasStatus_t pyblasXtSetProgress(pyblasHandle_t handle, pyblasXtProgress_t progress, void *context);
pyblasStatus_t pyblasXtPredict(pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb, int64_t m,
                               int64_t n, int64_t k, int64_t batchCount, double *seconds);

enum {
    PYBLAS_CHECKED_INVALID = -7,
    PYBLAS_CHECKED_UNDECIDED_A = -101,
    PYBLAS_CHECKED_UNDECIDED_B = -102,
    PYBLAS_CHECKED_OTHER_SHAPES = -103,
    PYBLAS_CHECKED_ROW_MAJOR = 1,
    PYBLAS_CHECKED_STRIDED_BATCHED = 2,
    PYBLAS_CHECKED_DEVICE_SCALARS = 4,
    PYBLAS_CHECKED_A_IS_DISJOINT = 8,
    PYBLAS_CHECKED_B_IS_DISJOINT = 16,
    PYBLAS_CHECKED_ANY_MEMORY = 32
};
int pyblas_checked_gemm(pyblasHandle_t handle, int flags, int transa, int transb, int64_t m, int64_t n, int64_t k,
                        double alpha, uintptr_t alpha_address, uintptr_t a, int64_t a_before, int64_t a_after,
                        int64_t lda, int64_t stride_a, uintptr_t b, int64_t b_before, int64_t b_after, int64_t ldb,
                        int64_t stride_b, double beta, uintptr_t beta_address, uintptr_t c, int64_t c_before,
                        int64_t c_after, int64_t ldc, int64_t stride_c, int64_t batch);
int pyblas_checked_gemm_ex(pyblasHandle_t handle, int flags, int compute, int type_a, int type_b, int type_c,
                           int transa, int transb, int64_t m, int64_t n, int64_t k, double alpha,
                           uintptr_t alpha_address, uintptr_t a, int64_t a_before, int64_t a_after, int64_t lda,
                           int64_t stride_a, uintptr_t b, int64_t b_before, int64_t b_after, int64_t ldb,
                           int64_t stride_b, double beta, uintptr_t beta_address, uintptr_t c, int64_t c_before,
                           int64_t c_after, int64_t ldc, int64_t stride_c, int64_t batch);
int pyblas_checked_sgemm(pyblasHandle_t handle, int flags, int transa, int transb, int64_t m, int64_t n, int64_t k,
                         double alpha, const float *a, int64_t a_size, int64_t lda, const float *b, int64_t b_size,
                         int64_t ldb, double beta, float *c, int64_t c_size, int64_t ldc);
int pyblas_checked_gemm_strided_batched(pyblasHandle_t handle, int flags, int transa, int transb, int64_t m, int64_t n,
                                        int64_t k, double alpha, const float *a, int64_t a_size, int64_t lda,
                                        int64_t stride_a, const float *b, int64_t b_size, int64_t ldb, int64_t stride_b,
                                        double beta, float *c, int64_t c_size, int64_t ldc, int64_t stride_c,
                                        int64_t batch);
int pyblas_checked_matmul(pyblasHandle_t handle, const float *a, int64_t a_stack, int64_t m, int64_t k, const float *b,
                          int64_t b_stack, int64_t b_rows, int64_t n, float *c, int64_t c_stack, int64_t c_rows,
                          int64_t c_columns);
int pyblas_checked_sgemm_on_gpu(pyblasHandle_t handle, uintptr_t stream, int flags, int transa, int transb, int64_t m,
                                int64_t n, int64_t k, double alpha, uintptr_t a, int64_t a_size, int64_t lda,
                                uintptr_t b, int64_t b_size, int64_t ldb, double beta, uintptr_t c, int64_t c_size,
                                int64_t ldc);
int pyblas_checked_gemm_strided_batched_on_gpu(pyblasHandle_t handle, uintptr_t stream, int flags, int transa,
                                               int transb, int64_t m, int64_t n, int64_t k, double alpha, uintptr_t a,
                                               int64_t a_size, int64_t lda, int64_t stride_a, uintptr_t b,
                                               int64_t b_size, int64_t ldb, int64_t stride_b, double beta, uintptr_t c,
                                               int64_t c_size, int64_t ldc, int64_t stride_c, int64_t batch);
int pyblas_checked_matmul_on_gpu(pyblasHandle_t handle, uintptr_t stream, int64_t unit, uintptr_t a, int64_t a_stack,
                                 int64_t m, int64_t k, int64_t a_stack_step, int64_t a_row_step, int64_t a_column_step,
                                 uintptr_t b, int64_t b_stack, int64_t b_rows, int64_t n, int64_t b_stack_step,
                                 int64_t b_row_step, int64_t b_column_step, uintptr_t c, int64_t c_stack,
                                 int64_t c_rows, int64_t c_columns, int64_t c_stack_step, int64_t c_row_step,
                                 int64_t c_column_step);
int pyblas_checked_gemm_batched(pyblasHandle_t handle, int flags, int transa, int transb, int64_t m, int64_t n,
                                int64_t k, double alpha, uintptr_t alpha_address, uintptr_t a, int64_t lda, uintptr_t b,
                                int64_t ldb, double beta, uintptr_t beta_address, uintptr_t c, int64_t ldc,
                                int64_t batch);
int pyblas_checked_overlap(uintptr_t x, int64_t x_length, int64_t x_vectors, int64_t x_ld, int64_t x_stride,
                           int64_t x_item, uintptr_t y, int64_t y_length, int64_t y_vectors, int64_t y_ld,
                           int64_t y_stride, int64_t y_item, int64_t batch);
const char *pyblas_checked_message(void);
extern "Python" int progress_of_call(void *context, double done);
