#include "workspace.hpp"

#include <algorithm>
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

// An allocation's failure, with the two numbers that help.
Status allocation_status(cudaError_t error, size_t bytes) {
    if (error != cudaErrorMemoryAllocation)
        return cuda_status(error, "workspace allocation");
    (void)cudaGetLastError();
    size_t free_bytes = 0, total_bytes = 0;
    if (cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess)
        (void)cudaGetLastError();
    return fail(PYBLAS_STATUS_ALLOC_FAILED, "out of GPU memory: %zu bytes of workspace asked, %zu of %zu free", bytes,
                free_bytes, total_bytes);
}

// Growth in steps keeps a run of slowly growing problems from allocating each time.
size_t rounded(size_t bytes, size_t limit) {
    size_t size = size_t{64} << 10;
    while (size < bytes)
        size *= 2;
    return std::max(bytes, std::min(size, limit));
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

Status Workspace::acquire_captured(CUstream_st *stream, unsigned long long capture, size_t bytes, void **memory) {
    for (const Captured &buffer : captured_)
        if (buffer.stream == stream && buffer.capture == capture && buffer.bytes >= bytes) {
            *memory = buffer.memory;
            return kSuccess;
        }
    const RelaxedCapture relaxed;
    const size_t size = rounded(bytes, limit_);
    if (const cudaError_t error = cudaMalloc(memory, size); error != cudaSuccess)
        return allocation_status(error, size);
    captured_.push_back({stream, capture, *memory, size});
    return kSuccess;
}

Status Workspace::acquire(int device, CUstream_st *stream, size_t bytes, void **memory) {
    lent_ = nullptr;
    if (given_) {
        *memory = given_memory_;
        return kSuccess;
    }
    cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    unsigned long long capture = 0;
    PYBLAS_CUDA_TRY(cudaStreamGetCaptureInfo(stream, &capturing, &capture));
    if (capturing != cudaStreamCaptureStatusNone)
        return acquire_captured(stream, capture, bytes, memory);

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
        }
    }
    // A stream's number can be given to a new stream, so only the event says that the last work is over.
    PYBLAS_CUDA_TRY(cudaStreamWaitEvent(stream, buffer->done, 0));
    if (buffer->bytes < bytes) {
        PYBLAS_TRY(ensure_pool(device));
        if (buffer->memory)
            PYBLAS_CUDA_TRY(cudaFreeAsync(buffer->memory, stream));
        buffer->memory = nullptr;
        buffer->bytes = 0;
        const size_t size = rounded(bytes, limit_);
        if (const cudaError_t error = cudaMallocFromPoolAsync(&buffer->memory, size, pool_, stream);
            error != cudaSuccess) {
            buffer->memory = nullptr;
            return allocation_status(error, size);
        }
        buffer->bytes = size;
    }
    buffer->last_use = ++uses_;
    lent_ = &*buffer;
    *memory = buffer->memory;
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
        // cudaFree waits for the device, so no work can still use the memory.
        if (buffer.memory)
            note(cudaFree(buffer.memory));
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
