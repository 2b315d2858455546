// A libcuda whose device memory is the host's and whose work is done when it is queued. The stream kCaptured is always
// being captured; what could end a capture ends the process, unless the thread has said that it may do such things.
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace {

constexpr uintptr_t kCaptured = 0xca0;

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

thread_local int device = 0;
thread_local int capture_mode = 0;

constexpr int kRelaxed = 2;

void could_end_a_capture() {
    if (capture_mode != kRelaxed)
        std::abort();
}

double seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

} // namespace

extern "C" {

void simulated_set_device(int ordinal) {
    device = ordinal;
}
int cuCtxGetDevice(int *ordinal) {
    *ordinal = device;
    return 0;
}
int cuStreamIsCapturing(void *stream, int *status) {
    *status = reinterpret_cast<uintptr_t>(stream) == kCaptured;
    return 0;
}
int cuThreadExchangeStreamCaptureMode(int *mode) {
    std::swap(capture_mode, *mode);
    return 0;
}
int cuMemcpy2DAsync_v2(const Copy2d *copy, void *stream) {
    if (reinterpret_cast<uintptr_t>(stream) == kCaptured || copy->source_pitch < copy->width ||
        copy->to_pitch < copy->width)
        return 1;
    const auto address = [](int type, const void *host, uint64_t on_device) {
        return type == 1 ? reinterpret_cast<uint64_t>(host) : on_device;
    };
    const uint64_t from = address(copy->source_type, copy->source_host, copy->source_device);
    const uint64_t to = address(copy->to_type, copy->to_host, copy->to_device);
    for (size_t i = 0; i < copy->height; ++i)
        std::memcpy(reinterpret_cast<void *>(to + i * copy->to_pitch),
                    reinterpret_cast<const void *>(from + i * copy->source_pitch), copy->width);
    return 0;
}
int cuMemcpy2D_v2(const Copy2d *copy) {
    return cuMemcpy2DAsync_v2(copy, nullptr);
}
int cuStreamSynchronize(void *stream) {
    could_end_a_capture();
    return reinterpret_cast<uintptr_t>(stream) == kCaptured;
}
int cuStreamCreate(void **stream, unsigned) {
    *stream = nullptr;
    return 0;
}
int cuStreamDestroy_v2(void *) {
    return 0;
}
int cuMemAlloc_v2(uint64_t *memory, size_t bytes) {
    could_end_a_capture();
    *memory = reinterpret_cast<uint64_t>(std::malloc(bytes));
    return 0;
}
int cuMemFree_v2(uint64_t memory) {
    could_end_a_capture();
    std::free(reinterpret_cast<void *>(memory));
    return 0;
}
int cuMemsetD32Async(uint64_t memory, unsigned word, size_t count, void *) {
    for (size_t i = 0; i < count; ++i)
        reinterpret_cast<unsigned *>(memory)[i] = word;
    return 0;
}
int cuEventCreate(double **event, unsigned) {
    *event = new double(0);
    return 0;
}
int cuEventDestroy_v2(double *event) {
    delete event;
    return 0;
}
int cuEventRecord(double *event, void *) {
    *event = seconds();
    return 0;
}
int cuEventQuery(double *) {
    could_end_a_capture();
    return 0;
}
int cuEventSynchronize(double *) {
    could_end_a_capture();
    return 0;
}
int cuEventElapsedTime(float *milliseconds, const double *begin, const double *end) {
    *milliseconds = static_cast<float>(1e3 * (*end - *begin));
    return 0;
}
}
