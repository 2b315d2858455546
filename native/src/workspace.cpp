#include "workspace.hpp"

#include <algorithm>
#include <cstdio>
#include <utility>

#include <cuda_runtime.h>

namespace pyblas {

namespace {

// Allocation inside a capture is legal only for a thread that says it knows what it does.
class RelaxedCapture {
public:
    RelaxedCapture() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
    ~RelaxedCapture() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }

private:
    cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// An allocation's answer; a failure says how much was asked for.
Status allocation_status(cudaError_t error, size_t bytes) {
    if (error == cudaSuccess)
        return kSuccess;
    char what[64];
    std::snprintf(what, sizeof what, "allocating %zu bytes of workspace", bytes);
    return cuda_status(error, what);
}

// The default stream is always there and always the same. Work on it follows what was queued on it before, it is never
// captured, and its number is never another stream's.
bool is_default(CUstream_st *stream) {
    return stream == nullptr || stream == cudaStreamLegacy;
}

// On a stream apart, since the caller's one is captured.
Status zero_now(void *memory) {
    CUstream_st *apart = nullptr;
    PYBLAS_CUDA_TRY(cudaStreamCreateWithFlags(&apart, cudaStreamNonBlocking));
    cudaError_t error = cudaMemsetAsync(memory, 0, Workspace::kZeroBytes, apart);
    if (error == cudaSuccess)
        error = cudaStreamSynchronize(apart);
    (void)cudaStreamDestroy(apart);
    return cuda_status(error, "zeroing workspace");
}

// Growth in steps keeps a run of slowly growing problems from allocating each time.
size_t rounded(size_t bytes, size_t limit) {
    size_t size = size_t{64} << 10;
    while (size < bytes)
        size *= 2;
    return std::max(bytes, std::min(size, limit));
}

// Room to grow where there is that much memory, else what is needed. allocate(memory, bytes) is one of CUDA's.
template <class Allocate>
Status allocate_rounded(size_t bytes, size_t limit, const Allocate &allocate, char **memory, size_t *size) {
    void *got = nullptr;
    *size = rounded(bytes, limit);
    cudaError_t error = allocate(&got, Workspace::kZeroBytes + *size);
    if (error == cudaErrorMemoryAllocation && *size > bytes) {
        (void)cudaGetLastError();
        *size = bytes;
        error = allocate(&got, Workspace::kZeroBytes + *size);
    }
    *memory = static_cast<char *>(got);
    return allocation_status(error, Workspace::kZeroBytes + *size);
}

} // namespace

Status Workspace::ensure_pool(int device) {
    if (pool_)
        return kSuccess;
    cudaMemPoolProps properties = {};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    properties.location.id = device;
    PYBLAS_CUDA_TRY(cudaMemPoolCreate(&pool_, &properties));
    return kSuccess;
}

Status Workspace::acquire_captured(CUstream_st *stream, unsigned long long capture, size_t bytes, Lent *lent) {
    for (const Captured &buffer : captured_)
        if (buffer.stream == stream && buffer.capture == capture && buffer.bytes >= bytes) {
            *lent = {buffer.memory + kZeroBytes, buffer.memory};
            return kSuccess;
        }
    const RelaxedCapture relaxed;
    size_t size = 0;
    char *memory = nullptr;
    const auto allocate = [](void **got, size_t all) { return cudaMalloc(got, all); };
    PYBLAS_TRY(allocate_rounded(bytes, available(), allocate, &memory, &size));
    captured_.push_back({stream, capture, memory, size});
    *lent = {captured_.back().memory + kZeroBytes, memory};
    return zero_now(memory);
}

Status Workspace::acquire(int device, CUstream_st *stream, size_t bytes, Lent *lent) {
    lent_ = nullptr;
    if (given_) {
        *lent = {static_cast<char *>(given_memory_), nullptr};
        return kSuccess;
    }
    if (!is_default(stream)) {
        cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
        unsigned long long capture = 0;
        PYBLAS_CUDA_TRY(cudaStreamGetCaptureInfo(stream, &capturing, &capture));
        if (capturing != cudaStreamCaptureStatusNone)
            return acquire_captured(stream, capture, bytes, lent);
    }

    bool must_wait = !is_default(stream);
    auto buffer = std::find_if(buffers_.begin(), buffers_.end(), [&](const Buffer &b) { return b.stream == stream; });
    if (buffer == buffers_.end()) {
        if (buffers_.size() < kMostBuffers) {
            Buffer fresh = {stream, nullptr, 0, 0, nullptr};
            PYBLAS_CUDA_TRY(cudaEventCreateWithFlags(&fresh.done, cudaEventDisableTiming));
            buffers_.reserve(kMostBuffers);
            buffers_.push_back(fresh);
            buffer = buffers_.end() - 1;
        } else {
            buffer = std::min_element(buffers_.begin(), buffers_.end(),
                                      [](const Buffer &a, const Buffer &b) { return a.last_use < b.last_use; });
            buffer->stream = stream;
            must_wait = true;
        }
    }
    // Another stream's number can be given to a new stream, so only the event says that the last work is over.
    if (must_wait)
        PYBLAS_CUDA_TRY(cudaStreamWaitEvent(stream, buffer->done, 0));
    if (buffer->bytes < bytes) {
        PYBLAS_TRY(ensure_pool(device));
        if (buffer->memory)
            PYBLAS_CUDA_TRY(cudaFreeAsync(buffer->memory, stream));
        buffer->memory = nullptr;
        buffer->bytes = 0;
        size_t size = 0;
        char *grown = nullptr;
        const auto allocate = [&](void **got, size_t all) { return cudaMallocFromPoolAsync(got, all, pool_, stream); };
        PYBLAS_TRY(allocate_rounded(bytes, available(), allocate, &grown, &size));
        buffer->memory = grown;
        PYBLAS_CUDA_TRY(cudaMemsetAsync(grown, 0, kZeroBytes, stream));
        buffer->bytes = size;
    }
    buffer->last_use = ++uses_;
    lent_ = &*buffer;
    *lent = {buffer->memory + kZeroBytes, buffer->memory};
    return kSuccess;
}

Status Workspace::release(CUstream_st *stream) {
    if (Buffer *buffer = std::exchange(lent_, nullptr))
        PYBLAS_CUDA_TRY(cudaEventRecord(buffer->done, stream));
    return kSuccess;
}

Status Workspace::free_owned() {
    Status worst = kSuccess;
    const auto note = [&](cudaError_t error) {
        if (const Status status = cuda_status(error, "freeing workspace"); worst == kSuccess)
            worst = status;
    };
    const RelaxedCapture relaxed;
    for (Buffer &buffer : buffers_) {
        // Memory of a pool is freed at once, whatever still works on it: wait for that.
        if (buffer.memory) {
            note(cudaEventSynchronize(buffer.done));
            note(cudaFree(buffer.memory));
        }
        note(cudaEventDestroy(buffer.done));
    }
    for (Captured &buffer : captured_)
        note(cudaFree(buffer.memory));
    if (pool_)
        note(cudaMemPoolDestroy(pool_));
    forget();
    return worst;
}

void Workspace::forget() {
    buffers_.clear();
    captured_.clear();
    pool_ = nullptr;
    lent_ = nullptr;
}

} // namespace pyblas
