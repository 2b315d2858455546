#include "xt/seen.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>

namespace pyblas::xt {

namespace {

// Without transposition, which matters little here, so that whoever asks need not say.
struct Key {
    int64_t m, n, k, batch;
    ComputeMode mode;
    int gpu;
    size_t memory_limit;

    bool operator==(const Key &other) const {
        return m == other.m && n == other.n && k == other.k && batch == other.batch && mode == other.mode &&
               gpu == other.gpu && memory_limit == other.memory_limit;
    }
};

// The first time of a shape is longer than those that follow, as memory is got and threads are woken, so it alone
// proves nothing.
struct Seen {
    Key key = {};
    double predicted = 0; // 0: nobody has asked
    int64_t times = 0;
    double seconds = 0;
};

class Table {
public:
    // A lock that is not free at once is not waited for: a fork may have found it taken.
    template <class F>
    void at(const Key &key, F f) {
        const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
        if (lock.owns_lock())
            f(slots_[slot_of(key)]);
    }

private:
    static size_t slot_of(const Key &key) {
        uint64_t mixed = static_cast<uint64_t>(key.gpu + 1);
        for (const int64_t part : {key.m, key.n, key.k, key.batch})
            mixed = (mixed * 31 + static_cast<uint64_t>(part)) * 0x9e3779b97f4a7c15u;
        return (mixed >> 32) % kSlots;
    }

    static constexpr size_t kSlots = 1024;
    std::mutex mutex_;
    std::array<Seen, kSlots> slots_;
};

Table &table() {
    static auto *const kept = new Table; // no destructor runs while a thread may still be here
    return *kept;
}

std::atomic<bool> watched{false};

// A place that is new to a shape is taken for somewhat faster than the formula says, or a formula that says too much
// would never be found out.
double hoped_for(double predicted) {
    return 0.75 * predicted;
}

Key key_of(const Problem &p, const Where &where) {
    return {p.m, p.n, p.k, p.batch, p.mode, where.gpu, where.memory_limit};
}

} // namespace

bool expects(const Problem &problem, const Where &where, double *seconds) {
    bool known = false;
    const Key key = key_of(problem, where);
    table().at(key, [&](const Seen &seen) {
        known = seen.key == key && (seen.times > 1 || seen.predicted > 0);
        if (known)
            *seconds = seen.times > 1 ? seen.seconds : hoped_for(seen.predicted);
    });
    return known;
}

double note_prediction(const Problem &problem, const Where &where, double predicted) {
    watched.store(true, std::memory_order_relaxed);
    const Key key = key_of(problem, where);
    table().at(key, [&](Seen &seen) {
        if (!(seen.key == key))
            seen = {key};
        seen.predicted = predicted;
    });
    return hoped_for(predicted);
}

bool is_watched() {
    return watched.load(std::memory_order_relaxed);
}

void note(const Problem &problem, const Where &where, double seconds) {
    constexpr double kRise = 0.05; // of what other work on the machine adds, which is not for long
    const Key key = key_of(problem, where);
    table().at(key, [&](Seen &seen) {
        if (!(seen.key == key))
            seen = {key};
        const double before = seen.times == 0 ? seconds : seen.seconds;
        ++seen.times;
        seen.seconds = std::min(seconds, before + kRise * (seconds - before));
    });
}

} // namespace pyblas::xt
