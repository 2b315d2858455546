#include "driver.hpp"

#include <algorithm>

#include "objects.hpp"

namespace pyblas::shim::driver {

namespace {

// Enumerators of cuda.h.
constexpr int kRelaxed = 2;           // CU_STREAM_CAPTURE_MODE_RELAXED
constexpr int kNotCapturing = 0;      // CU_STREAM_CAPTURE_STATUS_NONE
constexpr unsigned kNonBlocking = 1;  // CU_STREAM_NON_BLOCKING
constexpr int kHost = 1, kDevice = 2; // CU_MEMORYTYPE_*

// CUDA_MEMCPY2D of cuda.h.
struct Copy2d {
    size_t source_x, source_y;
    int source_type;
    const void *source_host;
    uint64_t source_device;
    void *source_array;
    size_t source_pitch;
    size_t to_x, to_y;
    int to_type;
    void *to_host;
    uint64_t to_device;
    void *to_array;
    size_t to_pitch;
    size_t width, height;
};

// A function of libcuda.so.1 if the process has loaded that. Looked up until it has.
template <class... Args>
class Function {
public:
    explicit constexpr Function(const char *name) : name_(name) {}
    bool found() noexcept {
        if (!function_)
            function_ = reinterpret_cast<int (*)(Args...)>(loaded_function("libcuda.so.1", name_));
        return function_ != nullptr;
    }
    // Whether the call succeeded.
    bool operator()(Args... arguments) noexcept { return found() && function_(arguments...) == 0; }

private:
    const char *name_;
    int (*volatile function_)(Args...) = nullptr;
};

Function<int *> ctx_get_device("cuCtxGetDevice");
Function<CUstream_st *, int *> stream_is_capturing("cuStreamIsCapturing");
Function<int *> exchange_capture_mode("cuThreadExchangeStreamCaptureMode");
Function<const Copy2d *, CUstream_st *> copy_2d("cuMemcpy2DAsync_v2");
Function<const Copy2d *> copy_2d_now("cuMemcpy2D_v2");
Function<CUstream_st *> synchronise("cuStreamSynchronize");
Function<CUstream_st **, unsigned> stream_create("cuStreamCreate");
Function<CUstream_st *> stream_destroy("cuStreamDestroy_v2");
Function<uint64_t *, size_t> allocate("cuMemAlloc_v2");
Function<uint64_t> deallocate("cuMemFree_v2");
Function<uint64_t, unsigned, size_t, CUstream_st *> fill("cuMemsetD32Async");
Function<CUevent_st **, unsigned> event_create("cuEventCreate");
Function<CUevent_st *> event_destroy("cuEventDestroy_v2");
Function<CUevent_st *, CUstream_st *> event_record("cuEventRecord");
Function<CUevent_st *> event_query("cuEventQuery");
Function<CUevent_st *> event_synchronise("cuEventSynchronize");
Function<float *, CUevent_st *, CUevent_st *> event_elapsed("cuEventElapsedTime");

} // namespace

int current_device() noexcept {
    int device = 0;
    return ctx_get_device(&device) ? device : 0;
}

bool capturing(CUstream_st *stream) noexcept {
    int status = kNotCapturing;
    return stream_is_capturing.found() && !(stream_is_capturing(stream, &status) && status == kNotCapturing);
}

Relaxed::Relaxed() noexcept : mode_(kRelaxed) {
    if (!exchange_capture_mode(&mode_))
        mode_ = -1;
}

Relaxed::~Relaxed() {
    if (mode_ >= 0)
        exchange_capture_mode(&mode_);
}

bool read(CUstream_st *stream, void *to, const void *from, size_t pitch, size_t bytes, size_t count) noexcept {
    if (pitch < bytes && count > 1) { // pieces that overlap, or all the same one
        bool done = true;
        for (size_t i = 0; done && i < count; ++i)
            done = read(stream, static_cast<char *>(to) + i * bytes, static_cast<const char *>(from) + i * pitch, bytes,
                        bytes, 1);
        return done;
    }
    Copy2d copy = {};
    copy.source_type = kDevice;
    copy.source_device = reinterpret_cast<uint64_t>(from);
    copy.source_pitch = std::max(pitch, bytes);
    copy.to_type = kHost;
    copy.to_host = to;
    copy.to_pitch = bytes;
    copy.width = bytes;
    copy.height = count;
    return copy_2d(&copy, stream) && synchronise(stream);
}

bool copy(bool to_device, const void *from, size_t from_pitch, void *to, size_t to_pitch, size_t bytes, size_t count,
          CUstream_st *stream, bool wait) noexcept {
    Copy2d copy = {};
    copy.source_type = to_device ? kHost : kDevice;
    copy.source_host = from;
    copy.source_device = reinterpret_cast<uint64_t>(from);
    copy.source_pitch = from_pitch;
    copy.to_type = to_device ? kDevice : kHost;
    copy.to_host = to;
    copy.to_device = reinterpret_cast<uint64_t>(to);
    copy.to_pitch = to_pitch;
    copy.width = bytes;
    copy.height = count;
    return wait ? copy_2d_now(&copy) : copy_2d(&copy, stream);
}

void *filled(uint32_t word, size_t count) noexcept {
    const Relaxed relaxed;
    CUstream_st *stream = nullptr;
    uint64_t memory = 0;
    if (!stream_create(&stream, kNonBlocking))
        return nullptr;
    if (allocate(&memory, 4 * count) && !(fill(memory, word, count, stream) && synchronise(stream))) {
        deallocate(memory);
        memory = 0;
    }
    stream_destroy(stream);
    return reinterpret_cast<void *>(memory);
}

void release(void *memory) noexcept {
    if (memory)
        deallocate(reinterpret_cast<uint64_t>(memory));
}

bool create(Interval *interval) noexcept {
    if (!event_create(&interval->begin, 0))
        return false;
    if (event_create(&interval->end, 0))
        return true;
    event_destroy(interval->begin);
    return false;
}

void destroy(const Interval &interval) noexcept {
    event_destroy(interval.begin);
    event_destroy(interval.end);
}

bool mark(CUevent_st *event, CUstream_st *stream) noexcept {
    return event_record(event, stream);
}

bool passed(CUevent_st *event) noexcept {
    return event_query(event);
}

bool wait(CUevent_st *event) noexcept {
    return event_synchronise(event);
}

bool seconds(const Interval &interval, double *seconds) noexcept {
    float milliseconds = 0;
    if (!event_elapsed(&milliseconds, interval.begin, interval.end))
        return false;
    *seconds = 1e-3 * static_cast<double>(milliseconds);
    return true;
}

} // namespace pyblas::shim::driver
