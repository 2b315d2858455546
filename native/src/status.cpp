#include "status.hpp"

#include <cstdarg>
#include <cstdio>

#ifdef PYBLAS_HAVE_CUDA
#include <cuda_runtime.h>
#endif

namespace pyblas {

namespace {
// Plain storage: a thread that ends after main() has no destructor of ours to run.
thread_local char error_text[1024];
} // namespace

Status fail(Status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(error_text, sizeof error_text, format, arguments);
    va_end(arguments);
    return status;
}

const char *last_error_message() {
    return error_text;
}

const char *status_name(Status status) {
    switch (status) {
#define PYBLAS_NAME(name)                                                                                              \
    case name:                                                                                                         \
        return #name;
        PYBLAS_NAME(PYBLAS_STATUS_SUCCESS)
        PYBLAS_NAME(PYBLAS_STATUS_NOT_INITIALIZED)
        PYBLAS_NAME(PYBLAS_STATUS_ALLOC_FAILED)
        PYBLAS_NAME(PYBLAS_STATUS_INVALID_VALUE)
        PYBLAS_NAME(PYBLAS_STATUS_ARCH_MISMATCH)
        PYBLAS_NAME(PYBLAS_STATUS_MAPPING_ERROR)
        PYBLAS_NAME(PYBLAS_STATUS_EXECUTION_FAILED)
        PYBLAS_NAME(PYBLAS_STATUS_INTERNAL_ERROR)
        PYBLAS_NAME(PYBLAS_STATUS_NOT_SUPPORTED)
#undef PYBLAS_NAME
    }
    return "unknown status";
}

#ifdef PYBLAS_HAVE_CUDA
Status cuda_status(int cuda_error, const char *expression) {
    const auto error = static_cast<cudaError_t>(cuda_error);
    if (error == cudaSuccess)
        return kSuccess;
    // The runtime keeps the last error for whoever asks next; ours must not surprise the caller's next check.
    (void)cudaGetLastError();
    const char *name = cudaGetErrorName(error), *text = cudaGetErrorString(error);
    switch (error) {
    case cudaErrorMemoryAllocation: {
        size_t free_bytes = 0, total_bytes = 0;
        if (cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess)
            (void)cudaGetLastError();
        return fail(PYBLAS_STATUS_ALLOC_FAILED, "%s: %s (%s); %zu of %zu bytes of GPU memory are free", expression,
                    text, name, free_bytes, total_bytes);
    }
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:
        return fail(PYBLAS_STATUS_ARCH_MISMATCH, "%s: %s (%s); this build has code for: %s", expression, text, name,
                    pyblasGetBuildArchitectures());
    case cudaErrorInsufficientDriver:
    case cudaErrorNoDevice:
        return fail(PYBLAS_STATUS_NOT_INITIALIZED, "no GPU to use: %s (%s)", text, name);
    case cudaErrorInitializationError:
        return fail(
            PYBLAS_STATUS_NOT_INITIALIZED,
            "CUDA cannot start (%s). If this process was made by fork() after its parent used the GPU, start it "
            "with the spawn method instead",
            name);
    default:
        return fail(PYBLAS_STATUS_EXECUTION_FAILED, "%s: %s (%s)", expression, text, name);
    }
}
#endif

} // namespace pyblas
