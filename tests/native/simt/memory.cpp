// Which accesses are legal: bounds, rights, initialisation, and order between threads.
#include "machine.hpp"

#include <algorithm>
#include <map>
#include <memory>

namespace pyblas::simulator {

Ticks ticks;
Running running;
const Region *parameters = nullptr;
Shared static_shared{"static shared memory"}, dynamic_shared{"dynamic shared memory"};

namespace {

constexpr uint16_t kSeen = 0xffff;           // the writer of what everybody may read
constexpr size_t kTracked = size_t{1} << 28; // bytes

std::vector<Region *> regions;

// Ticks from a block's start to its last barrier before it arrived at a counter, and to where the thread that arrived
// had waited for each of the others.
struct Before {
    uint32_t begin, end;
    std::vector<uint32_t> awaited;

    bool holds(uint32_t tick, int thread) const {
        return tick >= begin && (tick < end || tick < awaited[static_cast<size_t>(thread)]);
    }
};
std::map<uintptr_t, std::vector<std::shared_ptr<const Before>>> arrivals; // by counter, of the launch
struct Met {
    std::shared_ptr<const Before> before;
    uint32_t when; // the running block's thread met it
    int thread;
};
std::vector<Met> met; // by the running block

// What an access touched, for the sentence about it.
struct Touched {
    const char *name;
    uintptr_t begin; // offsets count from here
    const void *code;
};

[[noreturn, gnu::cold, gnu::noinline]] void raise_at(FaultKind kind, const Touched &touched, uintptr_t address,
                                                     const std::string &what) {
    raise(kind, "%s: byte %zu of %s, at %s", what.c_str(), static_cast<size_t>(address - touched.begin), touched.name,
          place(touched.code).c_str());
}

std::string by(const char *what, int thread) {
    return what + (" thread " + std::to_string(thread));
}

bool same_warp(int a, int b) {
    return a / 32 == b / 32;
}

// Whether that thread of another block did it before it arrived, and this one knows.
bool before_counted(uint32_t tick, int thread) {
    return std::any_of(met.begin(), met.end(), [&](const Met &other) {
        return other.before->holds(tick, thread) && (other.thread == running.thread || other.when < ticks.barrier ||
                                                     other.when < ticks.awaited[other.thread]);
    });
}

// Whether all threads of the block have met since.
bool before_barrier(uint32_t tick) {
    return tick < ticks.launch || (tick >= ticks.block && tick < ticks.barrier);
}

bool before_warp_barrier(uint32_t tick, int other) {
    return tick >= ticks.block && same_warp(other, running.thread) && tick < ticks.warp[running.thread / 32];
}

// Whether the running thread has waited, at a barrier in memory, for that thread or for its warp.
bool before_arrival(uint32_t tick, int other) {
    return tick >= ticks.block &&
           (other == kSeen || tick < ticks.awaited[other] || tick < ticks.awaited_warps[other / 32]);
}

// Whether what another thread, or this one, did at that tick comes before what the running thread does now.
bool ordered(uint32_t tick, int other) {
    if (tick >= ticks.launch && tick < ticks.block) // blocks are ordered by counters alone
        return other != kSeen && before_counted(tick, other);
    return before_barrier(tick) || before_warp_barrier(tick, other) || before_arrival(tick, other) ||
           (tick >= ticks.block && other == running.thread);
}

// Who the others are is not known: any that was waited for counts, and the last reader is judged by itself.
bool others_ordered(const Word &word) {
    const auto awaited = [&] {
        return word.read_by_others >= ticks.block &&
               (word.read_by_others < *std::max_element(ticks.awaited, ticks.awaited + kMostThreads) ||
                word.read_by_others < *std::max_element(ticks.awaited_warps, ticks.awaited_warps + 32));
    };
    const bool counted = word.read_by_others >= ticks.launch && word.read_by_others < ticks.block &&
                         before_counted(word.read_by_others, word.reader);
    return word.others == Word::Others::none || before_barrier(word.read_by_others) || counted || awaited() ||
           (word.others == Word::Others::warp && before_warp_barrier(word.read_by_others, word.reader));
}

void read_word(Word &word, const Touched &touched, uintptr_t address) {
    if (word.written && !ordered(word.written, word.writer))
        raise_at(FaultKind::race, touched, address, by("read, unordered after the write of", word.writer));
    if (word.read < ticks.launch) {
        word.others = Word::Others::none;
    } else if (word.reader != running.thread || word.read < ticks.block) {
        const bool lanes =
            word.others != Word::Others::block && word.read >= ticks.block && same_warp(word.reader, running.thread);
        word.others = lanes ? Word::Others::warp : Word::Others::block;
        word.read_by_others = word.read;
    }
    word.reader = static_cast<uint16_t>(running.thread);
    word.read = ticks.now;
}

void write_word(Word &word, const Touched &touched, uintptr_t address) {
    if (word.written && !ordered(word.written, word.writer))
        raise_at(FaultKind::race, touched, address, by("write, unordered after the write of", word.writer));
    if (word.read && !(ordered(word.read, word.reader) && others_ordered(word)))
        raise_at(FaultKind::race, touched, address, by("write, unordered after reads, the last of", word.reader));
    word.written = ticks.now;
    word.writer = static_cast<uint16_t>(running.thread);
}

void touch(Word &word, bool write, bool defined, const Touched &touched, uintptr_t address) {
    if (write)
        return write_word(word, touched, address);
    if (!word.written && !defined)
        raise_at(FaultKind::uninitialised, touched, address, "read before any write");
    read_word(word, touched, address);
}

// Shared memory is undefined when a block starts: what an earlier one left is forgotten here.
Word &shared_word(Shared &shared, uintptr_t address) {
    Word &word = shared.words[(address - shared.first) / 4];
    if (std::max(word.written, word.read) < ticks.block)
        word = Word{};
    return word;
}

void check_shared(Shared &shared, uintptr_t address, size_t bytes, bool write, const void *code) {
    const Touched touched{shared.name, shared.begin, code};
    if (address + bytes > shared.begin + shared.bytes)
        raise_at(FaultKind::bounds, touched, address, "access across the end");
    for (uintptr_t at = address & ~uintptr_t{3}; at < address + bytes; at += 4) {
        Word &word = shared_word(shared, at);
        if (word.in_flight)
            raise_at(FaultKind::copy_in_flight, touched, at,
                     by("access before the wait of an asynchronous copy of", word.writer));
        touch(word, write, false, touched, at);
    }
}

void check_region(Region &region, uintptr_t address, size_t bytes, bool write, const void *code) {
    const Touched touched{region.name, region.begin, code};
    if (running.early && &region != parameters)
        raise_at(FaultKind::access, touched, address, "touched before the kernel ahead has ended");
    if (address + bytes > region.begin + region.bytes)
        raise_at(FaultKind::bounds, touched, address, "access across the end");
    const Access wanted = write ? Access::write : Access::read;
    if (region.access != Access::read_write && region.access != wanted)
        raise_at(FaultKind::access, touched, address, write ? "write to an input" : "read of what must not be read");
    if (region.words.empty())
        return;
    for (uintptr_t at = address & ~uintptr_t{3}; at < address + bytes; at += 4)
        touch(region.words[at / 4 - region.begin / 4], write, region.content == Content::initialised, touched, at);
}

[[noreturn, gnu::cold, gnu::noinline]] void raise_nowhere(uintptr_t address, size_t bytes, bool write,
                                                          const void *code) {
    const char *nearest = "everything";
    size_t distance = SIZE_MAX;
    const auto consider = [&](const char *name, uintptr_t begin, size_t size) {
        const size_t away = address < begin ? begin - address : address - (begin + size) + 1;
        if (size && away < distance) {
            distance = away;
            nearest = name;
        }
    };
    consider(dynamic_shared.name, dynamic_shared.begin, dynamic_shared.bytes);
    consider(static_shared.name, static_shared.begin, static_shared.bytes);
    for (const Region *region : regions)
        consider(region->name, region->begin, region->bytes);
    raise(FaultKind::bounds, "%s of %zu bytes at address %#zx, %zu off %s, at %s", write ? "write" : "read", bytes,
          static_cast<size_t>(address), distance, nearest, place(code).c_str());
}

} // namespace

Region::Region(const void *data, size_t bytes_, Access access_, const char *name_, Content content_)
    : begin(reinterpret_cast<uintptr_t>(data)), bytes(bytes_), access(access_), content(content_), name(name_),
      words(access == Access::read || bytes > kTracked ? 0 : bytes / 4 + 2) {
    regions.push_back(this);
}

Region::~Region() {
    regions.erase(std::find(regions.begin(), regions.end(), this));
}

void check_access(uintptr_t address, size_t bytes, bool write, const void *code) {
    if (dynamic_shared.holds(address))
        return check_shared(dynamic_shared, address, bytes, write, code);
    if (static_shared.holds(address))
        return check_shared(static_shared, address, bytes, write, code);
    for (Region *region : regions)
        if (region->holds(address))
            return check_region(*region, address, bytes, write, code);
    raise_nowhere(address, bytes, write, code);
}

void mark_in_flight(const void *pointer, size_t bytes, const void *code) {
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    Shared &shared = dynamic_shared.holds(address) ? dynamic_shared : static_shared;
    if (!shared.holds(address))
        raise(FaultKind::bounds, "an asynchronous copy leads outside of shared memory, at %s", place(code).c_str());
    check_shared(shared, address, bytes, true, code);
    for (uintptr_t at = address; at < address + bytes; at += 4)
        shared_word(shared, at).in_flight = true;
}

void mark_arrived(const void *pointer, size_t bytes) {
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    Shared &shared = dynamic_shared.holds(address) ? dynamic_shared : static_shared;
    for (uintptr_t at = address; at < address + bytes; at += 4) {
        Word &word = shared_word(shared, at);
        word.in_flight = false;
        word.written = ticks.now;
    }
}

bool arrive(uint32_t *counter, uint32_t others, const void *code) {
    const auto address = reinterpret_cast<uintptr_t>(counter);
    for (Region *region : regions) {
        if (!region->holds(address))
            continue;
        const Touched touched{region->name, region->begin, code};
        if (region->access != Access::read_write)
            raise_at(FaultKind::access, touched, address, "a counter that must not be written");
        Word *const word = region->words.empty() ? nullptr : &region->words[address / 4 - region->begin / 4];
        if (word && !word->written && region->content == Content::undefined)
            raise_at(FaultKind::uninitialised, touched, address, "a counter that nobody has set");
        std::vector<std::shared_ptr<const Before>> &before = arrivals[address];
        for (const std::shared_ptr<const Before> &other : before)
            met.push_back({other, ticks.now, running.thread});
        before.push_back(std::make_shared<const Before>(
            Before{ticks.block, ticks.barrier, {ticks.awaited, ticks.awaited + kMostThreads}}));
        ++ticks.now; // what meets it comes later
        if (word) {
            word->written = ticks.now;
            word->writer = static_cast<uint16_t>(running.thread);
        }
        const uint32_t old = *counter;
        *counter = old >= others ? 0 : old + 1;
        return old == others;
    }
    raise(FaultKind::bounds, "a counter outside of every region, at %s", place(code).c_str());
}

void forget_arrivals() {
    arrivals.clear();
    met.clear();
}

void start_unordered() {
    met.clear();
}

void mark_seen(const void *pointer, size_t bytes) {
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    Shared &shared = dynamic_shared.holds(address) ? dynamic_shared : static_shared;
    for (uintptr_t at = address; at < address + bytes; at += 4)
        shared_word(shared, at).writer = kSeen;
}

} // namespace pyblas::simulator
