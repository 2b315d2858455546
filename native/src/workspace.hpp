// Device memory for kernels that need some: one buffer per stream, lent again only behind an event, and buffers that a
// graph has captured kept apart until they are freed by name. The caller's own memory goes before it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "status.hpp"

struct CUstream_st;
struct CUevent_st;
struct CUmemPoolHandle_st;

namespace pyblas {

class Workspace {
public:
    static constexpr size_t kDefaultLimit = size_t{1280} << 20;
    static constexpr size_t kAlignment = 256;

    size_t limit() const { return limit_; }
    void set_limit(size_t bytes) { limit_ = bytes; }

    // The caller's memory, or with bytes == 0 none at all, until take_back().
    void give(void *memory, size_t bytes) {
        given_ = true;
        given_memory_ = memory;
        given_bytes_ = bytes;
    }
    void take_back() { given_ = false; }

    // Most that acquire() may be asked for.
    size_t available() const { return given_ ? given_bytes_ : limit_ - std::min(limit_, kZeroBytes); }

    struct Lent {
        char *memory;
        void *zeros; // kZeroBytes that are zero, and must be again when the work is done; none in given memory
    };
    static constexpr size_t kZeroBytes = size_t{16} << 10;

    // Memory for work queued on stream next. Allocates in stream order, outside a capture. 0 < bytes <= available().
    Status acquire(int device, CUstream_st *stream, size_t bytes, Lent *lent);

    // The work is queued: remember where it ends.
    Status release(CUstream_st *stream);

    // Frees everything owned.
    Status free_owned();

    // After fork() the memory belongs to the parent.
    void forget();

private:
    struct Buffer {
        CUstream_st *stream;
        char *memory; // the zeros, then bytes
        size_t bytes;
        uint64_t last_use;
        CUevent_st *done; // after the last work that used it
    };
    struct Captured {
        CUstream_st *stream;
        unsigned long long capture;
        char *memory;
        size_t bytes;
    };

    Status acquire_captured(CUstream_st *stream, unsigned long long capture, size_t bytes, Lent *lent);
    Status ensure_pool(int device);

    // Streams come and go without our knowledge, so more of them than this share buffers in turn.
    static constexpr size_t kMostBuffers = 8;

    size_t limit_ = kDefaultLimit;
    bool given_ = false;
    void *given_memory_ = nullptr;
    size_t given_bytes_ = 0;
    CUmemPoolHandle_st *pool_ = nullptr;
    Buffer *lent_ = nullptr;
    uint64_t uses_ = 0;
    std::vector<Buffer> buffers_;
    std::vector<Captured> captured_;
};

} // namespace pyblas
