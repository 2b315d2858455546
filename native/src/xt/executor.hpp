// One GPU as the pipeline sees it: memory, three queues, events. The real one is gpu.cpp; the tests have one on the CPU
// that fails on request and does queued work as late, and in as odd an order, as the events allow.
#pragma once

#include <cstddef>
#include <cstdint>

#include "problem.hpp"
#include "status.hpp"

namespace pyblas::xt {

// Work of one queue is done in order; queues wait for each other only by events.
enum class Queue : uint8_t { in, compute, out };
constexpr int kQueues = 3;

// height runs of width bytes, pitch bytes apart on either side. Either may be host or device memory.
struct Copy {
    void *to;
    int64_t to_pitch;
    const void *from;
    int64_t from_pitch;
    int64_t width, height;
};

// Functions may be called by several threads at once, except for one queue by one thread at a time.
class Executor {
public:
    virtual ~Executor() = default;

    // First call of each thread that uses the others.
    virtual Status enter() = 0;

    virtual Status allocate(size_t bytes, char **memory) = 0; // on the device
    virtual void release(char *memory) = 0;

    // Host memory that the device copies from and to without a detour. It may be kept for the next call.
    virtual Status allocate_staging(size_t bytes, char **memory) = 0;
    virtual void release_staging(char *memory) = 0;

    virtual Status create_events(int count) = 0; // numbers 0 to count - 1; earlier ones are gone

    // Bytes that multiply() wants for a product with device memory of this shape.
    virtual Status workspace_bytes(const Problem &product, size_t *bytes) = 0;

    // From here on these bytes, at least as many as any product wants, are multiply()'s.
    virtual Status give_workspace(char *memory, size_t bytes) = 0;
    // What it needs besides what products want.
    virtual size_t fixed_workspace() const = 0;

    virtual Status copy(Queue queue, const Copy &copy) = 0;
    virtual Status multiply(const Problem &product) = 0; // in Queue::compute

    virtual Status record(Queue queue, int event) = 0; // the event comes when the queue gets there
    virtual Status wait(Queue queue, int event) = 0;   // work queued from now on comes after the event's last record
    virtual Status wait_on_host(int event) = 0;        // so does the caller
    virtual Status finish() = 0;                       // until all queues are empty
};

} // namespace pyblas::xt
