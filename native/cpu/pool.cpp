#include "pool.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include <dlfcn.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace pyblas::cpu {
namespace {

constexpr int kMaxThreads = 4096;
// A sleeping thread needs some 10 us to arrive and the caller some 3 us to wake it; one that still spins is there at
// once, and sharing with it costs 0.4 us.
constexpr double kWorthWaking = 40e-6;
constexpr double kWorthSharing = 5e-6;
constexpr double kPart = 2e-6; // of a thread, at least, from three threads on
constexpr auto kSpin = std::chrono::microseconds(60);
constexpr int64_t kSpinNanoseconds = std::chrono::nanoseconds(kSpin).count();

int64_t now() {
    return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

void futex_wait(std::atomic<uint32_t> &word, uint32_t seen, const timespec *timeout = nullptr) {
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, seen, timeout, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t> &word, int threads) {
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, threads, nullptr, nullptr, 0);
}

// The gate lets pool threads into a job and counts those inside, in one word, so that a late thread can neither enter
// a closed job nor mistake the next one for it.
constexpr uint64_t kInside = 1;                // low half: threads inside
constexpr uint64_t kPlace = uint64_t(1) << 32; // high half: places left

struct Pool {
    alignas(64) std::atomic<uint64_t> gate{0};
    alignas(64) std::atomic<int64_t> next{0};
    alignas(64) std::atomic<uint32_t> jobs{0}; // futex word of sleeping threads
    std::atomic<uint32_t> departures{0};       // futex word of a caller who waits for the last piece
    std::atomic<int> sleeping{0}, spinning{0};
    std::atomic<bool> caller_sleeps{false};
    alignas(64) std::atomic<bool> busy{false};
    std::atomic<int64_t> last_alone{INT64_MIN / 2}; // when a job ended that was too short to wake a thread for
    // Written by the caller before it opens the gate.
    int64_t count = 0;
    Piece piece = nullptr;
    const void *context = nullptr;
    int threads = 0; // started; touched only while busy is held

    void work() {
        for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;)
            piece(context, i);
    }

    bool enter() {
        uint64_t g = gate.load(std::memory_order_acquire);
        while (g >= kPlace)
            if (gate.compare_exchange_weak(g, g - kPlace + kInside, std::memory_order_acq_rel))
                return true;
        return false;
    }

    void leave() {
        const uint64_t before = gate.fetch_sub(kInside);
        if ((before & (kPlace - 1)) == 1 && caller_sleeps.load()) {
            departures.fetch_add(1);
            futex_wake(departures, 1);
        }
    }

    [[noreturn]] void serve() {
        for (;;) {
            const uint32_t seen = jobs.load();
            if (enter()) {
                work();
                leave();
            }
            spinning.fetch_add(1);
            const auto end = std::chrono::steady_clock::now() + kSpin;
            bool called = false;
            while (!called && std::chrono::steady_clock::now() < end)
                for (int i = 0; i < 16 && !called; ++i) {
                    pause();
                    called = gate.load(std::memory_order_relaxed) >= kPlace;
                }
            spinning.fetch_sub(1);
            if (called)
                continue;
            sleeping.fetch_add(1);
            if (jobs.load() == seen)
                futex_wait(jobs, seen);
            sleeping.fetch_sub(1);
        }
    }

    void run(int64_t pieces, int helpers, Piece f, const void *argument) {
        count = pieces;
        piece = f;
        context = argument;
        next.store(0, std::memory_order_relaxed);
        gate.store(uint64_t(helpers) * kPlace, std::memory_order_release);
        jobs.fetch_add(1);
        // Who spins sees the gate, or sees jobs before it sleeps.
        const int absent = helpers - spinning.load();
        if (absent > 0 && sleeping.load() > 0)
            futex_wake(jobs, absent);
        work();
        uint64_t g = gate.load();
        while (!gate.compare_exchange_weak(g, g & (kPlace - 1))) { // close: nobody enters any more
        }
        const auto end = std::chrono::steady_clock::now() + kSpin;
        while ((gate.load(std::memory_order_acquire) & (kPlace - 1)) != 0) {
            if (std::chrono::steady_clock::now() < end) {
                pause();
                continue;
            }
            caller_sleeps.store(true);
            const uint32_t seen = departures.load();
            if (gate.load() != 0) {
                const timespec a_while = {0, 10'000'000};
                futex_wait(departures, seen, &a_while);
            }
            caller_sleeps.store(false);
        }
    }
};

std::atomic<Pool *> the_pool{nullptr};
std::atomic<int> the_limit{-1}; // -1: not read from the environment yet

void *serve(void *pool) {
    static_cast<Pool *>(pool)->serve();
}

// The child of a fork has none of the threads: it forgets the pool, whatever state it was in, and starts another.
void after_fork_in_child() {
    the_pool.store(nullptr);
}

Pool *pool() {
    Pool *p = the_pool.load(std::memory_order_acquire);
    if (p)
        return p;
    p = new (std::nothrow) Pool; // never freed: threads may look at it until the process is gone
    if (!p)
        return nullptr;
    Pool *none = nullptr;
    if (!the_pool.compare_exchange_strong(none, p)) {
        delete p;
        return none;
    }
    static std::atomic<bool> registered{false}; // inherited by a forked child, as the handler is
    if (!registered.exchange(true)) {
        keep_library_mapped();
        pthread_atfork(nullptr, nullptr, after_fork_in_child);
    }
    return p;
}

// Starts threads until there are wanted; what cannot be started is done without.
void grow(Pool &p, int wanted) {
    if (p.threads >= wanted)
        return;
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); // the application's signals are for its own threads
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    while (p.threads < wanted) {
        pthread_t thread;
        if (pthread_create(&thread, &attributes, serve, &p) != 0)
            break;
        ++p.threads;
    }
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
}

int affinity() {
    for (size_t cpus = 1024; cpus <= size_t(1) << 20; cpus *= 4) {
        cpu_set_t fixed;
        if (cpus == 1024) {
            if (sched_getaffinity(0, sizeof fixed, &fixed) == 0)
                return std::max(1, CPU_COUNT(&fixed));
        } else {
            cpu_set_t *set = CPU_ALLOC(cpus);
            if (!set)
                break;
            const bool known = sched_getaffinity(0, CPU_ALLOC_SIZE(cpus), set) == 0;
            const int count = known ? CPU_COUNT_S(CPU_ALLOC_SIZE(cpus), set) : 0;
            CPU_FREE(set);
            if (known)
                return std::max(1, count);
        }
        if (errno != EINVAL) // EINVAL: the kernel knows more processors than the set holds
            break;
    }
    return 1;
}

// Whole processors a cgroup's quota amounts to; a large number without a quota.
int quota() {
    double most = kMaxThreads;
    if (FILE *file = std::fopen("/sys/fs/cgroup/cpu.max", "re")) {
        double runtime, period;
        if (std::fscanf(file, "%lf %lf", &runtime, &period) == 2 && period > 0) // "max 100000" does not match
            most = runtime / period;
        std::fclose(file);
    } else if (FILE *v1 = std::fopen("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "re")) {
        double runtime = -1, period = 100000;
        if (std::fscanf(v1, "%lf", &runtime) != 1)
            runtime = -1;
        std::fclose(v1);
        if (FILE *p = std::fopen("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "re")) {
            if (std::fscanf(p, "%lf", &period) != 1)
                period = 100000;
            std::fclose(p);
        }
        if (runtime > 0 && period > 0)
            most = runtime / period;
    }
    return std::max(1, int(std::min<double>(kMaxThreads, std::ceil(most))));
}

int asked() {
    int limit = the_limit.load(std::memory_order_relaxed);
    if (limit >= 0)
        return limit;
    limit = std::max(0, threads_of_environment());
    int unread = -1;
    return the_limit.compare_exchange_strong(unread, limit) ? limit : unread;
}

} // namespace

int threads_of_environment() {
    const char *text = std::getenv("PYBLAS_SGEMM_THREADS");
    if (!text || !*text)
        return 0;
    char *end = nullptr;
    const long value = std::strtol(text, &end, 10);
    return end == text || *end || value < 0 ? -1 : int(std::min<long>(value, kMaxThreads));
}

void keep_library_mapped() {
    Dl_info self;
    if (dladdr(reinterpret_cast<void *>(&keep_library_mapped), &self) && self.dli_fname)
        dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
}

int allowed_threads() {
    static std::atomic<int> by_quota{0}; // no guarded static: a fork in the middle of one would hang the child
    int whole = by_quota.load(std::memory_order_relaxed);
    if (whole == 0)
        by_quota.store(whole = quota(), std::memory_order_relaxed);
    return std::min(affinity(), whole);
}

int thread_limit() {
    const int limit = asked();
    const int allowed = allowed_threads();
    return limit > 0 ? std::min(limit, allowed) : allowed;
}

void set_thread_limit(int threads) {
    the_limit.store(std::min(threads, kMaxThreads));
}

void parallel(int64_t count, double seconds, Piece piece, const void *context) {
    Pool *short_of = nullptr;
    if (count > 1 && seconds > kWorthSharing && asked() != 1) {
        Pool *p = pool();
        // A thread that one short job wakes too late is there, spinning, for those that follow it at once.
        const auto awake = [p] { return p->spinning.load(std::memory_order_relaxed) > 0; };
        const auto follows = [p] { return now() - p->last_alone.load(std::memory_order_relaxed) < kSpinNanoseconds; };
        if (p && (seconds > kWorthWaking || awake() || follows())) {
            bool idle = false;
            if (p->busy.compare_exchange_strong(idle, true, std::memory_order_acquire)) {
                const int64_t worth = std::max<int64_t>(2, int64_t(std::min(seconds / kPart, double(kMaxThreads))));
                const int helpers = int(std::min<int64_t>({thread_limit(), count, worth})) - 1;
                if (helpers > 0) {
                    grow(*p, helpers);
                    p->run(count, std::min(helpers, p->threads), piece, context);
                    p->busy.store(false, std::memory_order_release);
                    return;
                }
                p->busy.store(false, std::memory_order_release);
            }
        } else {
            short_of = p;
        }
    }
    for (int64_t i = 0; i < count; ++i)
        piece(context, i);
    if (short_of)
        short_of->last_alone.store(now(), std::memory_order_relaxed);
}

} // namespace pyblas::cpu
