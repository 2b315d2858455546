// The CUDA driver that the program has loaded. The shims do not load it, and know it by the names of its functions.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;
struct CUevent_st;

namespace pyblas::shim::driver {

// The device of the calling thread's context; 0 where it has none, as in CUDA's runtime.
int current_device() noexcept;

// Whether what is queued on the stream becomes part of a graph, or may not be queued because another stream's does.
bool capturing(CUstream_st *stream) noexcept;

// While one lives, this thread may allocate and wait although a capture is going on somewhere.
class Relaxed {
public:
    Relaxed() noexcept;
    ~Relaxed();
    Relaxed(const Relaxed &) = delete;
    Relaxed &operator=(const Relaxed &) = delete;

private:
    int mode_;
};

// Copies into host memory behind the work of the stream, and waits for it.
bool read(CUstream_st *stream, void *to, const void *from, size_t pitch, size_t bytes, size_t count) noexcept;

// Copies `count` pieces of `bytes` bytes between host and device memory, with these distances between their beginnings:
// behind the work of the stream, or behind that of the default stream and waiting for it.
bool copy(bool to_device, const void *from, size_t from_pitch, void *to, size_t to_pitch, size_t bytes, size_t count,
          CUstream_st *stream, bool wait) noexcept;

// Device memory filled with one word, in the current context; nullptr if that fails.
// context.
void *filled(uint32_t word, size_t count) noexcept;
void release(void *memory) noexcept;

// Two moments of a stream.
struct Interval {
    CUevent_st *begin, *end;
};
bool create(Interval *interval) noexcept;
void destroy(const Interval &interval) noexcept;
bool mark(CUevent_st *event, CUstream_st *stream) noexcept;
bool passed(CUevent_st *event) noexcept;
bool wait(CUevent_st *event) noexcept;
bool seconds(const Interval &interval, double *seconds) noexcept;

} // namespace pyblas::shim::driver
