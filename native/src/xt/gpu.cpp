#include "xt/gpu.hpp"

#include <algorithm>
#include <cstdio>
#include <utility>

#include <cuda_runtime.h>

#include "kernel.hpp"

namespace pyblas::xt {

namespace {

Status allocation_status(cudaError_t error, size_t bytes, const char *kind) {
    if (error == cudaSuccess)
        return kSuccess;
    char what[80];
    std::snprintf(what, sizeof what, "allocating %zu bytes of %s", bytes, kind);
    return cuda_status(error, what);
}

} // namespace

Gpu::~Gpu() = default;

Status Gpu::free() {
    Status worst = kSuccess;
    const auto note = [&](cudaError_t error) {
        if (const Status status = cuda_status(error, "freeing streams and staging memory"); worst == kSuccess)
            worst = status;
    };
    for (CUevent_st *event : events_)
        note(cudaEventDestroy(event));
    events_.clear();
    for (CUstream_st *&stream : streams_) {
        if (stream)
            note(cudaStreamDestroy(stream));
        stream = nullptr;
    }
    if (kept_)
        note(cudaFree(kept_));
    kept_ = nullptr;
    kept_bytes_ = 0;
    for (const Staging &staging : staging_)
        note(cudaFreeHost(staging.memory));
    staging_.clear();
    return worst;
}

Status Gpu::ensure_streams() {
    for (CUstream_st *&stream : streams_)
        if (!stream)
            PYBLAS_CUDA_TRY(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return kSuccess;
}

Status Gpu::follow(CUevent_st *event) {
    PYBLAS_TRY(enter());
    for (CUstream_st *stream : streams_)
        PYBLAS_CUDA_TRY(cudaStreamWaitEvent(stream, event, 0));
    return kSuccess;
}

Status Gpu::enter() {
    PYBLAS_CUDA_TRY(cudaSetDevice(device_.ordinal));
    return ensure_streams();
}

Status Gpu::allocate(size_t bytes, char **memory) {
    if (kept_bytes_ < bytes) {
        void *got = nullptr;
        PYBLAS_TRY(free_kept());
        PYBLAS_TRY(allocation_status(cudaMalloc(&got, bytes), bytes, "tiles"));
        kept_ = static_cast<char *>(got);
        kept_bytes_ = bytes;
    }
    *memory = std::exchange(kept_, nullptr);
    memory_bytes_ = std::exchange(kept_bytes_, 0);
    return kSuccess;
}

void Gpu::release(char *memory) {
    constexpr size_t kMostKept = size_t{256} << 20;
    kept_ = memory;
    kept_bytes_ = memory_bytes_;
    if (kept_bytes_ > kMostKept)
        (void)free_kept();
}

Status Gpu::free_kept() {
    kept_bytes_ = 0;
    if (char *memory = std::exchange(kept_, nullptr))
        PYBLAS_CUDA_TRY(cudaFree(memory));
    return kSuccess;
}

Status Gpu::allocate_staging(size_t bytes, char **memory) {
    const std::lock_guard<std::mutex> lock(staging_mutex_);
    for (Staging &staging : staging_)
        if (!staging.used && staging.bytes >= bytes) {
            staging.used = true;
            *memory = staging.memory;
            return kSuccess;
        }
    void *got = nullptr;
    PYBLAS_TRY(allocation_status(cudaHostAlloc(&got, bytes, cudaHostAllocPortable), bytes, "staging memory"));
    *memory = static_cast<char *>(got);
    // A smaller one that nobody uses has had its time.
    const auto idle =
        std::find_if(staging_.begin(), staging_.end(), [](const Staging &staging) { return !staging.used; });
    if (idle != staging_.end()) {
        (void)cuda_status(cudaFreeHost(idle->memory), "cudaFreeHost");
        staging_.erase(idle);
    }
    staging_.push_back({*memory, bytes, true});
    return kSuccess;
}

void Gpu::release_staging(char *memory) {
    const std::lock_guard<std::mutex> lock(staging_mutex_);
    for (Staging &staging : staging_)
        if (staging.memory == memory)
            staging.used = false;
}

Status Gpu::create_events(int count) {
    while (static_cast<int>(events_.size()) < count) {
        cudaEvent_t event = nullptr;
        PYBLAS_CUDA_TRY(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync));
        events_.push_back(event);
    }
    return kSuccess;
}

Status Gpu::workspace_bytes(const Problem &product, size_t *bytes) {
    Selection selection;
    PYBLAS_TRY(choices_.select(product, device_, workspace_limit_, forced_, &selection));
    *bytes = selection.workspace;
    return kSuccess;
}

Status Gpu::predict(const Problem &product, double *seconds) {
    Selection selection;
    PYBLAS_TRY(choices_.select(product, device_, workspace_limit_, forced_, &selection));
    *seconds = selection.seconds;
    return kSuccess;
}

Status Gpu::give_workspace(char *memory, size_t bytes) {
    workspace_ = memory;
    workspace_bytes_ = bytes - fixed_workspace();
    PYBLAS_CUDA_TRY(cudaMemsetAsync(memory, 0, fixed_workspace(), stream(Queue::compute)));
    return kSuccess;
}

Status Gpu::copy(Queue queue, const Copy &copy) {
    // Wider pitches than the copy engines count with; such runs are long, so one copy for each costs nothing.
    constexpr int64_t kMostPitch = (int64_t{1} << 31) - 1;
    CUstream_st *const on = stream(queue);
    const auto bytes = [](int64_t count) { return static_cast<size_t>(count); };
    if (copy.height == 1 || (copy.to_pitch == copy.width && copy.from_pitch == copy.width)) {
        PYBLAS_CUDA_TRY(cudaMemcpyAsync(copy.to, copy.from, bytes(copy.width * copy.height), cudaMemcpyDefault, on));
        return kSuccess;
    }
    if (std::max(copy.to_pitch, copy.from_pitch) <= kMostPitch) {
        PYBLAS_CUDA_TRY(cudaMemcpy2DAsync(copy.to, bytes(copy.to_pitch), copy.from, bytes(copy.from_pitch),
                                          bytes(copy.width), bytes(copy.height), cudaMemcpyDefault, on));
        return kSuccess;
    }
    for (int64_t i = 0; i < copy.height; ++i)
        PYBLAS_CUDA_TRY(cudaMemcpyAsync(static_cast<char *>(copy.to) + i * copy.to_pitch,
                                        static_cast<const char *>(copy.from) + i * copy.from_pitch, bytes(copy.width),
                                        cudaMemcpyDefault, on));
    return kSuccess;
}

Status Gpu::multiply(const Problem &product) {
    Selection selection;
    PYBLAS_TRY(choices_.select(product, device_, workspace_limit_, forced_, &selection));
    const Launch launch = {&device_, stream(Queue::compute), workspace_ + fixed_workspace(), selection.workspace,
                           reinterpret_cast<uint32_t *>(workspace_)};
    return selection.kernel->launch(product, launch);
}

Status Gpu::record(Queue queue, int event) {
    PYBLAS_CUDA_TRY(cudaEventRecord(events_[static_cast<size_t>(event)], stream(queue)));
    return kSuccess;
}

Status Gpu::wait(Queue queue, int event) {
    PYBLAS_CUDA_TRY(cudaStreamWaitEvent(stream(queue), events_[static_cast<size_t>(event)], 0));
    return kSuccess;
}

Status Gpu::wait_on_host(int event) {
    PYBLAS_CUDA_TRY(cudaEventSynchronize(events_[static_cast<size_t>(event)]));
    return kSuccess;
}

Status Gpu::finish() {
    Status worst = kSuccess;
    for (CUstream_st *stream : streams_)
        if (const Status status = cuda_status(cudaStreamSynchronize(stream), "waiting for the GPU"); worst == kSuccess)
            worst = status;
    return worst;
}

Status free_memory(size_t *bytes) {
    size_t total = 0;
    PYBLAS_CUDA_TRY(cudaMemGetInfo(bytes, &total));
    return kSuccess;
}

Status home_of(const void *address, Home *home, int *device) {
    cudaPointerAttributes attributes = {};
    PYBLAS_CUDA_TRY(cudaPointerGetAttributes(&attributes, address));
    *device = attributes.device;
    *home = attributes.type == cudaMemoryTypeHost           ? Home::pinned
            : attributes.type == cudaMemoryTypeUnregistered ? Home::pageable
                                                            : Home::device;
    return kSuccess;
}

} // namespace pyblas::xt
