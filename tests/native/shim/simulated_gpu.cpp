// A libpyblas_sgemm in whose place GPUs are simulated by the CPU engine of the real one, which REAL_PYBLAS names. It
// tells SIMULATED_LOG what its handles are told.
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <map>
#include <mutex>

#include "pyblas_sgemm.h"

namespace {

template <class Function>
Function real(Function, const char *name) {
    static void *const library = dlopen(std::getenv("REAL_PYBLAS"), RTLD_NOW | RTLD_LOCAL);
    return reinterpret_cast<Function>(dlsym(library, name));
}
#define REAL(function) real(&function, #function)

std::mutex mutex;
std::map<pyblasHandle_t, int> devices;

pyblasStatus_t tell(pyblasHandle_t handle, const char *what, long long value) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (const char *path = std::getenv("SIMULATED_LOG"))
        if (FILE *file = std::fopen(path, "a")) {
            std::fprintf(file, "%d %s %llx\n", devices[handle], what, value);
            std::fclose(file);
        }
    return PYBLAS_STATUS_SUCCESS;
}

} // namespace

pyblasStatus_t pyblasCreateOnDevice(pyblasHandle_t *handle, int device) {
    const pyblasStatus_t status = REAL(pyblasCreateCpu)(handle);
    if (status == PYBLAS_STATUS_SUCCESS) {
        const std::lock_guard<std::mutex> lock(mutex);
        devices[*handle] = device;
    }
    return tell(*handle, "create", status);
}
pyblasStatus_t pyblasDestroy(pyblasHandle_t handle) {
    (void)tell(handle, "destroy", 0);
    return REAL(pyblasDestroy)(handle);
}
pyblasStatus_t pyblasSetStream(pyblasHandle_t handle, pyblasStream_t stream) {
    return tell(handle, "stream", static_cast<long long>(reinterpret_cast<intptr_t>(stream)));
}
pyblasStatus_t pyblasSetPointerMode(pyblasHandle_t handle, pyblasPointerMode_t mode) {
    return tell(handle, "pointer", mode);
}
pyblasStatus_t pyblasSetComputeMode(pyblasHandle_t handle, pyblasComputeType_t mode) {
    (void)tell(handle, "mode", mode);
    return mode == PYBLAS_COMPUTE_32F_FAST_TF32 ? PYBLAS_STATUS_SUCCESS : REAL(pyblasSetComputeMode)(handle, mode);
}
pyblasStatus_t pyblasGetComputeMode(pyblasHandle_t handle, pyblasComputeType_t *mode) {
    return REAL(pyblasGetComputeMode)(handle, mode);
}
int pyblasGetBuildCudaVersion(void) {
    return REAL(pyblasGetBuildCudaVersion)();
}

pyblasStatus_t pyblasSgemm_64(pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb, int64_t m,
                              int64_t n, int64_t k, const float *alpha, const float *A, int64_t lda, const float *B,
                              int64_t ldb, const float *beta, float *C, int64_t ldc) {
    (void)tell(handle, "sgemm", m);
    return REAL(pyblasSgemm_64)(handle, transa, transb, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc);
}
pyblasStatus_t pyblasSgemmStridedBatched_64(pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb,
                                            int64_t m, int64_t n, int64_t k, const float *alpha, const float *A,
                                            int64_t lda, long long int strideA, const float *B, int64_t ldb,
                                            long long int strideB, const float *beta, float *C, int64_t ldc,
                                            long long int strideC, int64_t batchCount) {
    (void)tell(handle, "strided", m);
    return REAL(pyblasSgemmStridedBatched_64)(handle, transa, transb, m, n, k, alpha, A, lda, strideA, B, ldb, strideB,
                                              beta, C, ldc, strideC, batchCount);
}
pyblasStatus_t pyblasSgemmBatched_64(pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb,
                                     int64_t m, int64_t n, int64_t k, const float *alpha, const float *const Aarray[],
                                     int64_t lda, const float *const Barray[], int64_t ldb, const float *beta,
                                     float *const Carray[], int64_t ldc, int64_t batchCount) {
    (void)tell(handle, "batched", m);
    return REAL(pyblasSgemmBatched_64)(handle, transa, transb, m, n, k, alpha, Aarray, lda, Barray, ldb, beta, Carray,
                                       ldc, batchCount);
}
pyblasStatus_t pyblasGemmEx_64(pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb, int64_t m,
                               int64_t n, int64_t k, const void *alpha, const void *A, pyblasDataType_t Atype,
                               int64_t lda, const void *B, pyblasDataType_t Btype, int64_t ldb, const void *beta,
                               void *C, pyblasDataType_t Ctype, int64_t ldc, pyblasComputeType_t computeType,
                               pyblasGemmAlgo_t algo) {
    (void)tell(handle, "ex", m);
    return REAL(pyblasGemmEx_64)(handle, transa, transb, m, n, k, alpha, A, Atype, lda, B, Btype, ldb, beta, C, Ctype,
                                 ldc, computeType, algo);
}
pyblasStatus_t pyblasGemmStridedBatchedEx_64(pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb,
                                             int64_t m, int64_t n, int64_t k, const void *alpha, const void *A,
                                             pyblasDataType_t Atype, int64_t lda, long long int strideA, const void *B,
                                             pyblasDataType_t Btype, int64_t ldb, long long int strideB,
                                             const void *beta, void *C, pyblasDataType_t Ctype, int64_t ldc,
                                             long long int strideC, int64_t batchCount, pyblasComputeType_t computeType,
                                             pyblasGemmAlgo_t algo) {
    (void)tell(handle, "strided_ex", m);
    return REAL(pyblasGemmStridedBatchedEx_64)(handle, transa, transb, m, n, k, alpha, A, Atype, lda, strideA, B, Btype,
                                               ldb, strideB, beta, C, Ctype, ldc, strideC, batchCount, computeType,
                                               algo);
}
