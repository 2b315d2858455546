// What the simulator's own files and the ptx wrappers know of the machine.
#pragma once

#include <cuda.h>

#include "simulator.hpp"

#include <cuda.h>
#include <cuda_runtime.h>

namespace pyblas::simulator {

constexpr int kMostThreads = 1024; // of a cluster

// Ends the running kernel; outside of a kernel, the program.
[[noreturn]] void raise(FaultKind kind, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Where in the program it is, as addr2line takes it.
std::string place(const void *code);

// The running thread.
struct Running {
    bool any = false;
    int thread = 0; // number in its cluster, block after block
    uintptr_t stack = 0;
    size_t stack_bytes = 0;
    bool early = false; // the kernel ahead may still run
};
extern Running running;

// Ticks wherever threads meet. An access before a tick and one after it are ordered for those who met.
struct Ticks {
    uint32_t now = 1;
    uint32_t launch = 1, block = 1; // when this one began
    uint32_t barrier = 1;           // the last one of the running thread's block
    uint32_t cluster = 1;           // the cluster's last
    uint32_t warp[32] = {};         // each warp's last
    // What came before that tick the running thread has waited for: of each thread, and of each warp, whose lanes had
    // met.
    const uint32_t *awaited = nullptr, *awaited_warps = nullptr;
};
extern Ticks ticks;

// Shared memory of the running block. Blocks of a cluster have theirs one after another.
struct Shared {
    const char *name;
    uintptr_t begin = 0;
    size_t bytes = 0;
    uintptr_t first = 0; // of all
    std::vector<Word> words = {};

    bool holds(uintptr_t address) const { return address - begin < bytes; }
};
extern Shared static_shared, dynamic_shared;

// Judges an access of the running thread outside of its stack.
void check_access(uintptr_t address, size_t bytes, bool write, const void *code);

// The same for any access; host code and stacks, the most frequent, are none of ours.
inline void check(const void *pointer, size_t bytes, bool write, const void *code) {
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    if (running.any && address - running.stack >= running.stack_bytes)
        check_access(address, bytes, write, code);
}

// Between these two nobody may touch the words of a copy.
void mark_in_flight(const void *shared, size_t bytes, const void *code);
void mark_arrived(const void *shared, size_t bytes);
void mark_seen(const void *shared, size_t bytes); // by all who ask the barrier that the copies report to

// What the running kernel was given.
extern const Region *parameters;

// From here on the thread may touch global memory.
void wait_for_predecessors();

// Counts an arrival as the wrapper in ptx.cuh does. What blocks wrote before a barrier in front of theirs is ordered
// before what this thread does next, and behind the next barrier for its whole block.
bool arrive(uint32_t *counter, uint32_t others, const void *code);
void forget_arrivals(); // of all blocks, when a launch begins
void start_unordered(); // a block has met nobody

// All lanes of a warp give count words each, and get what each gave, count to a lane.
void share(const uint32_t *words, int count, uint32_t *all, const char *file, int line);

// Groups of asynchronous copies as PTX counts them, for each thread. The source is read at once, the destination is
// written at the wait.
// Of which the first so many bytes are read, and the others are zeros.
void copy_async(void *shared, const void *global, size_t bytes, size_t read, const void *code);
void commit_copies();
void wait_copies(size_t pending);

// Barriers in shared memory, each known by its address: a phase ends when so many threads have arrived as expected and
// the copies they handed over have come, which is when somebody asks.
void init_barrier(const void *barrier, int arrivals, const void *code);
void arrive_at(const void *barrier, bool after_copies, const void *code);
bool phase_is_over(const void *barrier, uint32_t parity, const void *code);
void copy_in_bulk(float *shared, const float *global, int bytes, const void *barrier, const void *code);
void copy_box(float *shared, const CUtensorMap &map, const int (&first)[4], const void *barrier, const void *code);

// A barrier of the block that so many of its threads meet at, whole warps of them.
void meet(int number, int threads, const void *code);

// Clusters: all threads that have not exited meet.
void arrive_at_cluster();
void wait_for_cluster(const void *code);
// What another block has at the place that shared is in this one.
void load_of_block(const void *shared, void *value, size_t bytes, int block, const void *code);

} // namespace pyblas::simulator
