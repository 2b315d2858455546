// The one thread pool of the CPU engine. A job is a number of independent pieces, taken one by one by the caller and by
// whichever pool threads are awake; piece boundaries come from the problem alone, so that results do not depend on who
// computes what. A second caller that finds the pool busy computes on its own thread, so nothing ever waits for a
// place.
#pragma once

#include <cstdint>

namespace pyblas::cpu {

// Processors this process may use: affinity mask and cgroup quota.
int allowed_threads();

// For threads that are never joined and may be running the library's code at exit: it stays in memory.
void keep_library_mapped();

// The setting: what was asked for, at most allowed_threads().
int thread_limit();
void set_thread_limit(int threads); // 0: as many as allowed

// What PYBLAS_SGEMM_THREADS asks for; 0 if nothing, or all; -1 if it is no number of threads.
int threads_of_environment();

using Piece = void (*)(const void *context, int64_t index);

// Runs piece(context, i) for each i in [0, count). seconds is the predicted time of all of it on one thread: work that
// is not worth a wake-up stays on the caller.
void parallel(int64_t count, double seconds, Piece piece, const void *context);

// The same for a callable.
template <class F>
void parallel(int64_t count, double seconds, const F &f) {
    parallel(count, seconds, [](const void *context, int64_t i) { (*static_cast<const F *>(context))(i); }, &f);
}

} // namespace pyblas::cpu
