// A libcublas, or with FAKE_LT a libcublasLt, that computes nothing: products append their arguments to the file that
// FAKE_CUBLAS_LOG names, and answer what no other function does. The test writes products.inc from the recorded
// interface.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <type_traits>
#include <vector>

#include "cublas_abi.h"

namespace {

template <class T>
unsigned long long bits(T value) {
    if constexpr (std::is_pointer_v<T>)
        return reinterpret_cast<uintptr_t>(value);
    else
        return static_cast<unsigned long long>(value);
}

template <class... Arguments>
cublasStatus_t note(const char *name, Arguments... arguments) {
    static std::mutex mutex;
    const std::lock_guard<std::mutex> lock(mutex);
    if (const char *path = std::getenv("FAKE_CUBLAS_LOG"))
        if (FILE *file = std::fopen(path, "a")) {
            std::fputs(name, file);
            (std::fprintf(file, " %llx", bits(arguments)), ...);
            std::fputc('\n', file);
            std::fclose(file);
        }
    return CUBLAS_STATUS_LICENSE_ERROR;
}

} // namespace

#include "products.inc"

#ifdef FAKE_LT

// Attributes as they were set; a descriptor knows only these.
struct cublasLtMatmulDescOpaque {
    std::map<int, std::vector<char>> values;
};
struct cublasLtMatrixLayoutOpaque : cublasLtMatmulDescOpaque {};

namespace {

cublasStatus_t read(const cublasLtMatmulDescOpaque &from, int attribute, void *buffer, size_t size, size_t *written) {
    const auto found = from.values.find(attribute);
    if (found == from.values.end() || found->second.size() != size)
        return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(buffer, found->second.data(), size);
    *written = size;
    return CUBLAS_STATUS_SUCCESS;
}

} // namespace

cublasStatus_t cublasLtMatmulDescGetAttribute(cublasLtMatmulDesc_t matmulDesc, cublasLtMatmulDescAttributes_t attr,
                                              void *buf, size_t sizeInBytes, size_t *sizeWritten) {
    return read(*matmulDesc, attr, buf, sizeInBytes, sizeWritten);
}
cublasStatus_t cublasLtMatrixLayoutGetAttribute(cublasLtMatrixLayout_t matLayout, cublasLtMatrixLayoutAttribute_t attr,
                                                void *buf, size_t sizeInBytes, size_t *sizeWritten) {
    return read(*matLayout, attr, buf, sizeInBytes, sizeWritten);
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) {
    return CUBLAS_STATUS_SUCCESS;
}
extern "C" CUBLASAPI void *fake_descriptor() {
    return new cublasLtMatrixLayoutOpaque;
}
extern "C" CUBLASAPI void fake_set(void *descriptor, int attribute, const void *value, size_t size) {
    const char *bytes = static_cast<const char *>(value);
    static_cast<cublasLtMatrixLayoutOpaque *>(descriptor)->values[attribute].assign(bytes, bytes + size);
}

#else

struct cublasContext {
    cudaStream_t stream;
    cublasPointerMode_t pointer_mode;
    cublasMath_t math_mode;
};

cublasStatus_t cublasCreate_v2(cublasHandle_t *handle) {
    *handle = new cublasContext();
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
    (void)note("cublasDestroy_v2", handle != nullptr);
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t streamId) {
    handle->stream = streamId;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetStream_v2(cublasHandle_t handle, cudaStream_t *streamId) {
    *streamId = handle->stream;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode) {
    handle->pointer_mode = mode;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t *mode) {
    *mode = handle->pointer_mode;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
    handle->math_mode = mode;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t *mode) {
    *mode = handle->math_mode;
    return CUBLAS_STATUS_SUCCESS;
}

#endif
