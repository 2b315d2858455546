// cuBLAS's copies of vectors and matrices between host and device, which programs call around its products.
#include <algorithm>

#include "cublas_abi.h"
#include "driver.hpp"

using namespace pyblas::shim;

namespace {

constexpr int64_t kAtOnce = 1 << 30; // bytes; the driver's pitches end at 2^31

enum class Way { to_device, to_host };
struct Queue {
    cudaStream_t stream;
    bool wait;
};
constexpr Queue kNow = {nullptr, true};

// `count` pieces of `bytes` bytes, with these distances between their beginnings.
cublasStatus_t pieces(Way way, const void *from, int64_t from_pitch, void *to, int64_t to_pitch, int64_t bytes,
                      int64_t count, Queue queue) {
    const bool whole = count == 1 || (from_pitch == bytes && to_pitch == bytes);
    const int64_t all = whole ? bytes * count : 0;
    bool done = true;
    for (int64_t at = 0; whole && done && at < all; at += kAtOnce) {
        const auto size = static_cast<size_t>(std::min(kAtOnce, all - at));
        done = driver::copy(way == Way::to_device, static_cast<const char *>(from) + at, size,
                            static_cast<char *>(to) + at, size, size, 1, queue.stream, queue.wait);
    }
    if (!whole)
        done = driver::copy(way == Way::to_device, from, static_cast<size_t>(from_pitch), to,
                            static_cast<size_t>(to_pitch), static_cast<size_t>(bytes), static_cast<size_t>(count),
                            queue.stream, queue.wait);
    return done ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_MAPPING_ERROR;
}

cublasStatus_t vector(Way way, int64_t n, int64_t size, const void *x, int64_t incx, void *y, int64_t incy,
                      Queue queue) {
    if (n < 0 || size <= 0 || incx <= 0 || incy <= 0)
        return CUBLAS_STATUS_INVALID_VALUE;
    return n == 0 ? CUBLAS_STATUS_SUCCESS : pieces(way, x, incx * size, y, incy * size, size, n, queue);
}

cublasStatus_t matrix(Way way, int64_t rows, int64_t columns, int64_t size, const void *a, int64_t lda, void *b,
                      int64_t ldb, Queue queue) {
    if (rows < 0 || columns < 0 || size <= 0 || lda <= 0 || ldb <= 0)
        return CUBLAS_STATUS_INVALID_VALUE;
    return rows == 0 || columns == 0 ? CUBLAS_STATUS_SUCCESS
                                     : pieces(way, a, lda * size, b, ldb * size, rows * size, columns, queue);
}

} // namespace

#define COPIES(suffix, Int)                                                                                            \
    cublasStatus_t cublasSetVector##suffix(Int n, Int elemSize, const void *x, Int incx, void *devicePtr, Int incy) {  \
        return vector(Way::to_device, n, elemSize, x, incx, devicePtr, incy, kNow);                                    \
    }                                                                                                                  \
    cublasStatus_t cublasGetVector##suffix(Int n, Int elemSize, const void *x, Int incx, void *y, Int incy) {          \
        return vector(Way::to_host, n, elemSize, x, incx, y, incy, kNow);                                              \
    }                                                                                                                  \
    cublasStatus_t cublasSetMatrix##suffix(Int rows, Int cols, Int elemSize, const void *A, Int lda, void *B,          \
                                           Int ldb) {                                                                  \
        return matrix(Way::to_device, rows, cols, elemSize, A, lda, B, ldb, kNow);                                     \
    }                                                                                                                  \
    cublasStatus_t cublasGetMatrix##suffix(Int rows, Int cols, Int elemSize, const void *A, Int lda, void *B,          \
                                           Int ldb) {                                                                  \
        return matrix(Way::to_host, rows, cols, elemSize, A, lda, B, ldb, kNow);                                       \
    }                                                                                                                  \
    cublasStatus_t cublasSetVectorAsync##suffix(Int n, Int elemSize, const void *hostPtr, Int incx, void *devicePtr,   \
                                                Int incy, cudaStream_t stream) {                                       \
        return vector(Way::to_device, n, elemSize, hostPtr, incx, devicePtr, incy, {stream, false});                   \
    }                                                                                                                  \
    cublasStatus_t cublasGetVectorAsync##suffix(Int n, Int elemSize, const void *devicePtr, Int incx, void *hostPtr,   \
                                                Int incy, cudaStream_t stream) {                                       \
        return vector(Way::to_host, n, elemSize, devicePtr, incx, hostPtr, incy, {stream, false});                     \
    }                                                                                                                  \
    cublasStatus_t cublasSetMatrixAsync##suffix(Int rows, Int cols, Int elemSize, const void *A, Int lda, void *B,     \
                                                Int ldb, cudaStream_t stream) {                                        \
        return matrix(Way::to_device, rows, cols, elemSize, A, lda, B, ldb, {stream, false});                          \
    }                                                                                                                  \
    cublasStatus_t cublasGetMatrixAsync##suffix(Int rows, Int cols, Int elemSize, const void *A, Int lda, void *B,     \
                                                Int ldb, cudaStream_t stream) {                                        \
        return matrix(Way::to_host, rows, cols, elemSize, A, lda, B, ldb, {stream, false});                            \
    }
COPIES(, int)
COPIES(_64, int64_t)
