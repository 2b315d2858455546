// Threads as fibers, blocks one after another, barriers, shuffles, asynchronous copies, and CUDA's host calls.
#include "machine.hpp"

#include <algorithm>
#include <csetjmp>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>

#include "pyblas_sgemm.h"
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

namespace pyblas::simulator {

Settings settings;

namespace {

constexpr size_t kStackBytes = 64 * 1024;
constexpr int kSharedWithoutOptIn = 48 * 1024, kMostShared = 227 * 1024;
constexpr int kMostBlocks = 8;          // of a cluster
constexpr int kNumberedBarriers = 16;   // of a block; number 0 is __syncthreads()
constexpr unsigned char kPoison = 0xff; // floats become NaN

struct Site {
    const char *file = nullptr;
    int line = 0;

    bool operator==(const Site &other) const {
        return line == other.line && (file == other.file || std::strcmp(file, other.file) == 0);
    }
};

struct Copy {
    float *target;
    float data[4];
    size_t bytes;
};

enum class State : uint8_t { ready, at_barrier, at_warp_barrier, exited };

struct Fiber {
    std::jmp_buf context;
    char *stack = nullptr;
    bool started = false; // its context can be jumped to
    State state = State::ready;
    Site site;
    uint64_t value = 0;                                          // for other lanes, then of another lane
    int source = 0;                                              // which one
    std::vector<Copy> copies;                                    // in the order of their issue
    std::vector<size_t> groups;                                  // copies in each committed group, the oldest first
    size_t open = 0;                                             // copies not yet committed
    unsigned shares = 0;                                         // calls of share() so far
    bool early = false;                                          // has not waited for the kernel ahead
    uint32_t awaited[kMostThreads] = {}, awaited_warps[32] = {}; // those of Ticks while it runs
    uint32_t cluster_phase = 0;                                  // in which it arrived
};

// Of a cluster's blocks.
struct Block {
    int arrived, exited; // threads
    Site barrier;        // where those who arrived wait
    int first_at_barrier;
    int votes, verdict; // whether one of those who arrived says yes, and whether one did at the last barrier
    uint32_t met;       // Ticks::barrier while it runs
};

struct MemoryBarrier {
    int expected = 0, missing = 0; // arrivals
    uint32_t phase = 0;
    // What came before that tick is told by this phase, and by the last one: of each thread, and of each warp.
    uint32_t arrivals[kMostThreads] = {}, over[kMostThreads] = {}, warps[32] = {}, warps_over[32] = {};
    std::vector<Copy> copies = {};
};

// Lanes that meet are known by the first one of their mask.
struct Meeting {
    unsigned arrived = 0, mask = 0;
    Site site;
    bool orders = false; // their accesses to memory, too
};

struct Warp {
    unsigned gone = 0; // lanes that have exited or never were
    Meeting meetings[warpSize];
    uint32_t words[2][8 * warpSize]; // that lanes share
};

Fiber fibers[kMostThreads];
Warp warps[kMostThreads / warpSize];
std::jmp_buf scheduler;
Fault fault;
size_t most_dynamic_shared = 0;

const Launched *launched;
dim3 places[4];            // of the running thread, by Place
Block blocks[kMostBlocks]; // of the running cluster
int threads, cluster;      // of a block, blocks of a cluster
uint64_t first_block;      // of the cluster
int at_cluster;            // threads that wait for the cluster
uint32_t cluster_phase;
bool early;                                            // launched before the kernel ahead has ended
std::map<const void *, MemoryBarrier> memory_barriers; // of the running cluster
int vain_questions;                                    // of threads in a row

std::map<std::pair<const void *, int>, int> shared_opt_in; // by kernel and device
cudaError_t last_error = cudaSuccess;

dim3 &at(Place place) {
    return places[static_cast<int>(place)];
}

void place_at(Place place, uint64_t number, const dim3 &size) {
    at(place) = dim3(static_cast<unsigned>(number % size.x), static_cast<unsigned>(number / size.x % size.y),
                     static_cast<unsigned>(number / size.x / size.y));
}

Fiber &self() {
    return fibers[running.thread];
}

int rank() {
    return running.thread / threads;
}

int exited() {
    int all = 0;
    for (int block = 0; block < cluster; ++block)
        all += blocks[block].exited;
    return all;
}

// Back to the scheduler until it resumes this fiber.
__attribute__((noinline)) void suspend() {
    if (!_setjmp(self().context))
        _longjmp(scheduler, 1);
}

// Gives lanes what they asked of one another and lets them go on, once all are there that have not exited.
void complete(Warp &warp, Meeting &meeting) {
    if (meeting.arrived == 0 || meeting.arrived != (meeting.mask & ~warp.gone))
        return;
    Fiber *const lanes = fibers + (&warp - warps) * warpSize;
    uint64_t given[warpSize];
    for (int lane = 0; lane < warpSize; ++lane)
        given[lane] = lanes[lane].value;
    for (int lane = 0; lane < warpSize; ++lane) {
        if (!(meeting.arrived >> lane & 1))
            continue;
        const int source = lanes[lane].source;
        if (!(meeting.arrived >> source & 1))
            raise(FaultKind::barrier, "lane %d asks lane %d for a value at %s:%d, and that has exited", lane, source,
                  meeting.site.file, meeting.site.line);
        lanes[lane].value = given[source];
        lanes[lane].state = State::ready;
    }
    if (meeting.orders)
        ticks.warp[&warp - warps] = ++ticks.now;
    meeting.arrived = 0;
}

void leave() {
    Block &block = blocks[rank()];
    if (block.arrived)
        raise(FaultKind::barrier, "it exits while %d of %d threads wait at %s:%d", block.arrived, threads,
              block.barrier.file, block.barrier.line);
    if (self().early)
        raise(FaultKind::access, "it exits without having waited for the kernel ahead");
    ++block.exited;
    vain_questions = 0;
    self().state = State::exited;
    Warp &warp = warps[running.thread / warpSize];
    warp.gone |= 1u << lane();
    for (Meeting &meeting : warp.meetings)
        complete(warp, meeting);
}

// A fiber outlives its thread and serves the next block's: starting one costs more than a small block does.
void live() {
    for (;;) {
        launched->call(launched->arguments);
        leave();
        suspend();
    }
}

char *new_stack() {
    const size_t guard = static_cast<size_t>(sysconf(_SC_PAGESIZE)); // stacks grow down, into it
    void *memory = mmap(nullptr, guard + kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, guard, PROT_NONE) != 0) {
        std::perror("no memory for a stack");
        std::abort();
    }
    return static_cast<char *>(memory) + guard;
}

void start(Fiber &fiber) {
    // Stacks that begin at the same place of their pages would fight for the same lines of the cache.
    const size_t offset = static_cast<size_t>(&fiber - fibers) % 32 * 128;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = fiber.stack;
    context.uc_stack.ss_size = kStackBytes - offset;
    context.uc_link = nullptr;
    makecontext(&context, live, 0);
    fiber.started = true;
    setcontext(&context);
}

__attribute__((noinline)) void resume(int thread) {
    Fiber &fiber = fibers[thread];
    if (!fiber.stack)
        fiber.stack = new_stack();
    running = {true, thread, reinterpret_cast<uintptr_t>(fiber.stack), kStackBytes, fiber.early};
    ticks.awaited = fiber.awaited, ticks.awaited_warps = fiber.awaited_warps;
    ticks.barrier = blocks[rank()].met;
    dynamic_shared.begin = dynamic_shared.first + static_cast<uintptr_t>(rank()) * kMostShared;
    place_at(Place::thread, static_cast<uint64_t>(thread % threads), at(Place::block_size));
    place_at(Place::block, first_block + static_cast<uint64_t>(rank()), at(Place::grid_size));
    if (!_setjmp(scheduler)) {
        if (fiber.started)
            _longjmp(fiber.context, 1);
        start(fiber);
    }
    running.any = false;
}

// Threads that are left behind wait inside of a kernel and cannot be used again.
void abandon() {
    for (int thread = 0; thread < threads * cluster; ++thread)
        if (fibers[thread].state != State::exited)
            fibers[thread].started = false;
}

// __shared__ arrays are thread-local variables of the program, which the loader keeps in one place.
void find_static_shared() {
    const auto visit = [](dl_phdr_info *program, size_t, void *) {
        for (int i = 0; i < program->dlpi_phnum; ++i)
            if (program->dlpi_phdr[i].p_type == PT_TLS) {
                static_shared.first = static_shared.begin = reinterpret_cast<uintptr_t>(program->dlpi_tls_data);
                static_shared.bytes = program->dlpi_phdr[i].p_memsz;
            }
        return 1; // the first is the program itself
    };
    dl_iterate_phdr(visit, nullptr);
    static_shared.words.resize(static_shared.bytes / 4 + 1);
}

// Memory inside of a region that has no pages, or below a stack.
void on_segmentation_fault(int, siginfo_t *info, void *) {
    if (running.any)
        raise(FaultKind::bounds, "access to address %p, where no memory is", info->si_addr);
    std::signal(SIGSEGV, SIG_DFL); // host code: happens again, and ends the program
}

void watch_segmentation_faults() {
    static char stack[64 * 1024]; // the fiber's own may be what has overflowed
    stack_t alternate = {};
    alternate.ss_sp = stack;
    alternate.ss_size = sizeof stack;
    sigaltstack(&alternate, nullptr);
    struct sigaction action = {};
    action.sa_sigaction = on_segmentation_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER; // it does not return
    sigaction(SIGSEGV, &action, nullptr);
}

bool run_cluster() {
    const int all = threads * cluster;
    ticks.block = ticks.barrier = ticks.cluster = ++ticks.now;
    start_unordered();
    for (Block &block : blocks)
        block = {0, 0, {}, 0, 0, 0, ticks.now};
    at_cluster = 0;
    cluster_phase = 0;
    for (int thread = 0; thread < all; ++thread) {
        Fiber &fiber = fibers[thread];
        fiber.state = State::ready;
        fiber.copies.clear();
        fiber.groups.clear();
        fiber.open = 0;
        fiber.early = early;
        std::fill_n(fiber.awaited, kMostThreads, 0);
        std::fill_n(fiber.awaited_warps, 32, 0);
    }
    memory_barriers.clear();
    vain_questions = 0;
    for (int first = 0; first < all; first += warpSize) {
        Warp &warp = warps[first / warpSize];
        warp.gone = all - first < warpSize ? ~0u << (all - first) : 0;
        for (Meeting &meeting : warp.meetings)
            meeting.arrived = 0;
    }
    for (int block = 0; block < cluster; ++block)
        std::memset(reinterpret_cast<char *>(dynamic_shared.first) + block * kMostShared, kPoison,
                    dynamic_shared.bytes);

    for (bool forward = settings.order != Order::descending; exited() < all;) {
        bool progress = false;
        for (int i = 0; i < all; ++i) {
            const int thread = forward ? i : all - 1 - i;
            if (fibers[thread].state != State::ready)
                continue;
            progress = true;
            resume(thread);
            if (fault.kind != FaultKind::none)
                return false;
        }
        if (settings.order == Order::alternating)
            forward = !forward;
        if (!progress) {
            running.thread = 0;
            while (self().state == State::exited)
                ++running.thread;
            fault = {FaultKind::barrier, "threads wait for one another, the first at " + std::string(self().site.file) +
                                             ":" + std::to_string(self().site.line)};
            return false;
        }
    }
    return true;
}

} // namespace

const char *fault_name(FaultKind kind) {
    constexpr const char *kNames[] = {"none",   "barrier", "race",      "uninitialised read", "copy in flight",
                                      "bounds", "access",  "alignment", "arithmetic"};
    return kNames[static_cast<int>(kind)];
}

size_t take_dynamic_shared() {
    return std::exchange(most_dynamic_shared, size_t{0});
}

Fault take_fault() {
    Fault taken = std::move(fault);
    fault = {};
    return taken;
}

void raise(FaultKind kind, const char *format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (!running.any) {
        std::fprintf(stderr, "host code: %s: %s\n", fault_name(kind), text);
        std::abort();
    }
    const dim3 &block = at(Place::block);
    char where[96];
    std::snprintf(where, sizeof where, "block (%u, %u, %u), thread %d: ", block.x, block.y, block.z, running.thread);
    fault = {kind, where + std::string(text)};
    _longjmp(scheduler, 1);
}

std::string place(const void *code) {
    Dl_info info{};
    if (!dladdr(code, &info) || !info.dli_fname)
        return "unknown code";
    char text[512];
    std::snprintf(text, sizeof text, "%s+%#zx", info.dli_fname,
                  static_cast<size_t>(static_cast<const char *>(code) - static_cast<const char *>(info.dli_fbase)));
    return text;
}

unsigned coordinate(Place place, int axis) {
    const dim3 &at = places[static_cast<int>(place)];
    return axis == 0 ? at.x : axis == 1 ? at.y : at.z;
}

int lane() {
    return running.thread % warpSize;
}

void *dynamic_shared_memory() {
    return reinterpret_cast<void *>(dynamic_shared.begin);
}

// Waits for the lanes of mask that have not exited, and takes the value of one of them.
static void meet_warp(unsigned mask, const Site &site, bool orders, int source) {
    Warp &warp = warps[running.thread / warpSize];
    if (!(mask >> lane() & 1))
        raise(FaultKind::barrier, "its own lane is not in the mask %#x at %s:%d", mask, site.file, site.line);
    Meeting &meeting = warp.meetings[__builtin_ctz(mask)];
    if (meeting.arrived == 0) {
        meeting.mask = mask;
        meeting.site = site;
        meeting.orders = orders;
    } else if (meeting.mask != mask || !(meeting.site == site)) {
        raise(FaultKind::barrier, "it meets lanes %#x at %s:%d, and others wait for %#x at %s:%d", mask, site.file,
              site.line, meeting.mask, meeting.site.file, meeting.site.line);
    }
    meeting.arrived |= 1u << lane();
    Fiber &fiber = self();
    fiber.source = source;
    fiber.site = site;
    fiber.state = State::at_warp_barrier;
    complete(warp, meeting);
    if (fiber.state == State::at_warp_barrier)
        suspend();
}

uint64_t exchange(unsigned mask, uint64_t value, int source, const char *file, int line) {
    if (source < 0 || source >= warpSize || !(mask >> source & 1))
        raise(FaultKind::barrier, "lane %d, asked for a value at %s:%d, is not in the mask %#x", source, file, line,
              mask);
    self().value = value;
    meet_warp(mask, {file, line}, false, source);
    return self().value;
}

void share(const uint32_t *words, int count, uint32_t *all, const char *file, int line) {
    // By turns in two places: who is ahead cannot write where others still read.
    auto &place = warps[running.thread / warpSize].words[self().shares++ % 2];
    const size_t bytes = static_cast<size_t>(count) * sizeof *words;
    std::memcpy(&place[lane() * count], words, bytes);
    meet_warp(0xffffffff, {file, line}, false, lane());
    std::memcpy(all, place, bytes * warpSize);
}

void copy_async(void *shared, const void *global, size_t bytes, size_t read, const void *code) {
    if (reinterpret_cast<uintptr_t>(shared) % bytes || reinterpret_cast<uintptr_t>(global) % bytes)
        raise(FaultKind::alignment, "an asynchronous copy of %zu bytes from %p to %p, at %s", bytes, global, shared,
              place(code).c_str());
    Copy copy{static_cast<float *>(shared), {}, bytes};
    if (read > 0) {
        check(global, read, false, code);
        std::memcpy(copy.data, global, read);
    }
    mark_in_flight(shared, bytes, code);
    std::memset(shared, kPoison, bytes);
    self().copies.push_back(copy);
    ++self().open;
}

void commit_copies() {
    self().groups.push_back(self().open);
    self().open = 0;
}

void wait_copies(size_t pending) {
    Fiber &fiber = self();
    if (fiber.groups.size() <= pending)
        return;
    const auto last_group = fiber.groups.end() - static_cast<ptrdiff_t>(pending);
    size_t done = 0;
    for (auto group = fiber.groups.begin(); group != last_group; ++group)
        done += *group;
    fiber.groups.erase(fiber.groups.begin(), last_group);
    for (size_t i = 0; i < done; ++i) {
        const Copy &copy = fiber.copies[i];
        std::memcpy(copy.target, copy.data, copy.bytes);
        mark_arrived(copy.target, copy.bytes);
    }
    fiber.copies.erase(fiber.copies.begin(), fiber.copies.begin() + static_cast<ptrdiff_t>(done));
}

void wait_for_predecessors() {
    self().early = running.early = false;
}

static MemoryBarrier &barrier_at(const void *address, const void *code) {
    const auto found = memory_barriers.find(address);
    if (found == memory_barriers.end())
        raise(FaultKind::barrier, "no barrier was made there, at %s", place(code).c_str());
    return found->second;
}

void init_barrier(const void *barrier, int arrivals, const void *code) {
    check(barrier, sizeof(uint64_t), true, code);
    MemoryBarrier fresh;
    fresh.expected = fresh.missing = arrivals;
    memory_barriers[barrier] = fresh;
}

void arrive_at(const void *address, bool after_copies, const void *code) {
    MemoryBarrier &barrier = barrier_at(address, code);
    vain_questions = 0;
    const int warp = running.thread / warpSize;
    // It tells what it has waited for itself, too.
    for (int thread = 0; thread < threads * cluster; ++thread)
        barrier.arrivals[thread] = std::max(barrier.arrivals[thread], self().awaited[thread]);
    for (int other = 0; other < 32; ++other)
        barrier.warps[other] = std::max(barrier.warps[other], self().awaited_warps[other]);
    barrier.arrivals[running.thread] = ++ticks.now;
    barrier.warps[warp] = ticks.warp[warp];
    if (after_copies) {
        Fiber &fiber = self();
        barrier.copies.insert(barrier.copies.end(), fiber.copies.begin(), fiber.copies.end());
        fiber.copies.clear();
        fiber.groups.clear();
        fiber.open = 0;
    }
    if (--barrier.missing > 0)
        return;
    barrier.missing = barrier.expected;
    ++barrier.phase;
    std::copy_n(barrier.arrivals, kMostThreads, barrier.over);
    std::copy_n(barrier.warps, 32, barrier.warps_over);
}

bool phase_is_over(const void *address, uint32_t parity, const void *code) {
    MemoryBarrier &barrier = barrier_at(address, code);
    if (barrier.phase % 2 == parity) {
        if (++vain_questions > 64 * kMostThreads)
            raise(FaultKind::barrier, "nobody ends the phase that is waited for, at %s", place(code).c_str());
        suspend(); // the others go on
        return false;
    }
    for (const Copy &copy : barrier.copies) {
        std::memcpy(copy.target, copy.data, copy.bytes);
        mark_arrived(copy.target, copy.bytes);
        mark_seen(copy.target, copy.bytes);
    }
    barrier.copies.clear();
    Fiber &fiber = self();
    for (int thread = 0; thread < threads * cluster; ++thread)
        fiber.awaited[thread] = std::max(fiber.awaited[thread], barrier.over[thread]);
    for (int warp = 0; warp < 32; ++warp)
        fiber.awaited_warps[warp] = std::max(fiber.awaited_warps[warp], barrier.warps_over[warp]);
    return true;
}

// As a barrier in shared memory would have it, which nobody has to make.
void meet(int number, int count, const void *code) {
    if (number < 1 || number >= kNumberedBarriers || count % warpSize != 0 || count > threads)
        raise(FaultKind::barrier, "barrier %d of %d threads, at %s", number, count, place(code).c_str());
    static const char keys[kMostBlocks][kNumberedBarriers] = {};
    const void *const key = &keys[rank()][number];
    MemoryBarrier &barrier = memory_barriers[key];
    if (barrier.expected == 0)
        barrier.expected = barrier.missing = count;
    else if (barrier.expected != count)
        raise(FaultKind::barrier, "barrier %d is of %d threads and of %d, at %s", number, barrier.expected, count,
              place(code).c_str());
    const uint32_t parity = barrier.phase % 2;
    arrive_at(key, false, code);
    while (!phase_is_over(key, parity, code)) {
    }
}

// The copies that the running thread has issued since it had so many report to a barrier, and to no group.
static void hand_over(size_t own, const void *barrier, const void *code) {
    Fiber &fiber = self();
    std::vector<Copy> &copies = barrier_at(barrier, code).copies;
    fiber.open -= fiber.copies.size() - own;
    copies.insert(copies.end(), fiber.copies.begin() + static_cast<ptrdiff_t>(own), fiber.copies.end());
    fiber.copies.resize(own);
}

void copy_in_bulk(float *shared, const float *global, int bytes, const void *barrier, const void *code) {
    if (bytes <= 0 || bytes % 16)
        raise(FaultKind::alignment, "a bulk copy of %d bytes, at %s", bytes, place(code).c_str());
    const size_t own = self().copies.size();
    for (int i = 0; i < bytes / 4; i += 4)
        copy_async(shared + i, global + i, 16, 16, code);
    hand_over(own, barrier, code);
}

// A box in quads of floats, and one by one where the tensor ends within a quad; zeros for those outside. Quads of a
// turned box change places by the bits of their address above 128 bytes.
void copy_box(float *shared, const CUtensorMap &map, const int (&first)[4], const void *barrier, const void *code) {
    if (reinterpret_cast<uintptr_t>(shared) % (8 * map.turned))
        raise(FaultKind::alignment, "a box is copied to %p, at %s", static_cast<void *>(shared), place(code).c_str());
    const auto inside = [&](int axis, int64_t at) { return at >= 0 && static_cast<uint64_t>(at) < map.extents[axis]; };
    const auto step = [&](int axis) { return static_cast<int64_t>(map.strides[axis - 1] / 4); };
    const size_t own = self().copies.size();
    for (uint32_t line = 0; line < map.box[1] * map.box[2]; ++line) {
        const int64_t column = int64_t{first[1]} + line % map.box[1], plane = int64_t{first[2]} + line / map.box[1];
        const bool exists = inside(1, column) && inside(2, plane) && inside(3, first[3]);
        const float *const source = map.data + column * step(1) + plane * step(2) + first[3] * step(3);
        for (uint32_t i = 0; i < map.box[0]; i += 4) {
            auto target = reinterpret_cast<uintptr_t>(shared + line * map.box[0] + i);
            target ^= target / 128 % 8 * 16 & (map.turned - 16);
            const int64_t row = int64_t{first[0]} + i;
            const int wide = inside(0, row) == inside(0, row + 3) ? 4 : 1;
            for (int part = 0; part < 4; part += wide) {
                const bool valid = exists && inside(0, row + part);
                const size_t bytes = static_cast<size_t>(4 * wide);
                copy_async(reinterpret_cast<float *>(target) + part, valid ? source + row + part : map.data, bytes,
                           valid ? bytes : 0, code);
            }
        }
    }
    hand_over(own, barrier, code);
}

void arrive_at_cluster() {
    self().cluster_phase = cluster_phase;
    ++at_cluster;
    vain_questions = 0;
}

void wait_for_cluster(const void *code) {
    while (self().cluster_phase == cluster_phase) {
        if (at_cluster + exited() == threads * cluster) {
            at_cluster = 0;
            ++cluster_phase;
            ticks.cluster = ++ticks.now;
            for (Block &block : blocks)
                block.met = ticks.now;
            break;
        }
        if (++vain_questions > 64 * kMostThreads)
            raise(FaultKind::barrier, "not all threads of the cluster arrive, at %s", place(code).c_str());
        suspend();
    }
    ticks.barrier = blocks[rank()].met;
}

void load_of_block(const void *shared, void *value, size_t bytes, int block, const void *code) {
    if (block < 0 || block >= cluster)
        raise(FaultKind::bounds, "block %d of a cluster of %d, at %s", block, cluster, place(code).c_str());
    if (blocks[block].exited == threads)
        raise(FaultKind::bounds, "block %d of the cluster has left, at %s", block, place(code).c_str());
    const ptrdiff_t away = static_cast<ptrdiff_t>(block - rank()) * kMostShared;
    const void *const there = static_cast<const char *>(shared) + away;
    // Blocks are ordered by the cluster's barrier alone.
    const uintptr_t begin = dynamic_shared.begin;
    const uint32_t met = ticks.barrier;
    dynamic_shared.begin += static_cast<uintptr_t>(away);
    if (away)
        ticks.barrier = ticks.cluster;
    check(there, bytes, false, code);
    dynamic_shared.begin = begin;
    ticks.barrier = met;
    std::memcpy(value, there, bytes);
}

cudaError_t run_grid(const cudaLaunchConfig_t &config, const Launched &launched_now) {
    const dim3 grid = config.gridDim, block = config.blockDim;
    early = false;
    cluster = 1;
    for (unsigned i = 0; i < config.numAttrs; ++i) {
        const cudaLaunchAttribute &attribute = config.attrs[i];
        if (attribute.id == cudaLaunchAttributeProgrammaticStreamSerialization)
            early = attribute.val.programmaticStreamSerializationAllowed != 0;
        else
            cluster = static_cast<int>(attribute.val.clusterDim.x);
    }
    const auto opt_in = shared_opt_in.find({launched_now.kernel, settings.device});
    const int shared_limit =
        std::min(settings.shared_per_block, opt_in == shared_opt_in.end() ? kSharedWithoutOptIn : opt_in->second);
    threads = static_cast<int>(block.x * block.y * block.z);
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535 ||
        threads == 0 || threads > kMostThreads || block.z > 64 ||
        config.dynamicSmemBytes > static_cast<size_t>(shared_limit) || cluster > kMostBlocks ||
        grid.x % static_cast<unsigned>(cluster) != 0 ||
        (cluster > 1 && (threads % warpSize != 0 || threads * cluster > kMostThreads)))
        return last_error = cudaErrorInvalidConfiguration;

    launched = &launched_now;
    at(Place::grid_size) = grid;
    at(Place::block_size) = block;
    if (static_shared.words.empty()) {
        find_static_shared();
        watch_segmentation_faults();
    }
    static_assert(kMostShared % 1024 == 0, "the copy engine exchanges quads by their addresses");
    alignas(1024) static char memory[kMostBlocks * kMostShared];
    dynamic_shared.first = dynamic_shared.begin = reinterpret_cast<uintptr_t>(memory);
    dynamic_shared.bytes = config.dynamicSmemBytes;
    most_dynamic_shared = std::max(most_dynamic_shared, dynamic_shared.bytes);
    dynamic_shared.words.resize(sizeof memory / 4);
    const Region given(launched_now.arguments, launched_now.arguments_size, Access::read, "kernel parameters");
    parameters = &given;

    ticks.launch = ++ticks.now;
    forget_arrivals();
    const uint64_t count = uint64_t{grid.x} * grid.y * grid.z / static_cast<unsigned>(cluster);
    for (uint64_t i = 0; i < count; ++i) {
        const uint64_t number = settings.order == Order::ascending ? i : count - 1 - i;
        if (count > 4096 && number + 1 < count && number % static_cast<uint64_t>(settings.sample) != 0)
            continue;
        first_block = number * static_cast<unsigned>(cluster);
        if (!run_cluster()) {
            abandon();
            return last_error = cudaErrorLaunchFailure;
        }
    }
    return cudaSuccess;
}

} // namespace pyblas::simulator

using namespace pyblas::simulator;

unsigned atomicAdd(unsigned *address, unsigned value) {
    const unsigned before = *address;
    *address += value;
    return before;
}
int atomicAdd(int *address, int value) {
    const int before = *address;
    *address += value;
    return before;
}
unsigned atomicOr(unsigned *address, unsigned value) {
    const unsigned before = *address;
    *address |= value;
    return before;
}

void __syncthreads(const char *file, int line) {
    Fiber &fiber = self();
    Block &block = blocks[rank()];
    const Site site{file, line};
    if (block.exited)
        raise(FaultKind::barrier, "%d of %d threads have exited before %s:%d", block.exited, threads, file, line);
    if (block.arrived == 0) {
        block.barrier = site;
        block.first_at_barrier = running.thread;
    } else if (!(block.barrier == site)) {
        raise(FaultKind::barrier, "it waits at %s:%d, thread %d at %s:%d", file, line, block.first_at_barrier,
              block.barrier.file, block.barrier.line);
    }
    if (++block.arrived < threads) {
        fiber.site = site;
        fiber.state = State::at_barrier;
        suspend();
        return;
    }
    for (int thread = 0; thread < threads; ++thread)
        fibers[rank() * threads + thread].state = State::ready;
    block.arrived = 0;
    block.verdict = std::exchange(block.votes, 0);
    ticks.barrier = block.met = ++ticks.now;
}

int __syncthreads_or(int predicate, const char *file, int line) {
    blocks[rank()].votes |= predicate != 0;
    __syncthreads(file, line);
    return blocks[rank()].verdict; // the next barrier waits for this thread too
}

void __syncwarp(unsigned mask, const char *file, int line) {
    meet_warp(mask, {file, line}, true, lane());
}

cudaError_t set_function_attribute(const void *kernel, cudaFuncAttribute attribute, int value) {
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize)
        return cudaSuccess;
    if (value > settings.shared_per_block)
        return last_error = cudaErrorInvalidValue;
    shared_opt_in[{kernel, settings.device}] = value;
    return cudaSuccess;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType, cuuint32_t rank, void *data,
                                const cuuint64_t *extents, const cuuint64_t *strides, const cuuint32_t *box,
                                const cuuint32_t *steps, CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
    map->data = static_cast<const float *>(data);
    map->turned = 16u << swizzle;
    bool legal = rank == 4 && data && reinterpret_cast<uintptr_t>(data) % 16 == 0 && box[0] % 4 == 0 &&
                 (swizzle == CU_TENSOR_MAP_SWIZZLE_NONE || 4 * box[0] <= map->turned);
    for (int axis = 0; axis < 4; ++axis) {
        legal &= extents[axis] > 0 && extents[axis] <= uint64_t{1} << 32 && box[axis] > 0 && box[axis] <= 256 &&
                 steps[axis] == 1;
        map->extents[axis] = extents[axis], map->box[axis] = box[axis];
        if (axis == 3)
            break;
        legal &= strides[axis] % 16 == 0 && strides[axis] < uint64_t{1} << 40;
        map->strides[axis] = strides[axis];
    }
    return legal ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *, void **function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult *result) {
    *function = reinterpret_cast<void *>(&cuTensorMapEncodeTiled); // the only one that is asked for
    *result = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device) {
    *device = settings.device;
    return cudaSuccess;
}

cudaError_t cudaGetLastError() {
    const cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    *free_bytes = *total_bytes = 0;
    return cudaSuccess;
}

const char *cudaGetErrorName(cudaError_t error) {
    return error == cudaErrorLaunchFailure ? "cudaErrorLaunchFailure" : "cudaError";
}

const char *cudaGetErrorString(cudaError_t error) {
    return error == cudaErrorLaunchFailure ? "the simulator found a fault" : "an error of the simulated runtime";
}

// status.cpp names them in a message.
const char *pyblasGetBuildArchitectures(void) {
    return "the simulator";
}
