#include "xt/pipeline.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "xt/team.hpp"

namespace pyblas::xt {

namespace {

constexpr int64_t kInFlight = 4;              // products queued ahead of the last that is known to be over
constexpr int kProductEvents = 2 * kInFlight; // each is recorded again only when its product is long over
constexpr int64_t kAlignment = 256;

int64_t aligned(int64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// A part of a block that goes through a place in a ring: whole runs, laid out as on the device.
struct Chunk {
    int64_t step; // number of the load or store
    int64_t first_run, runs;
    bool is_first, is_last; // of the step
};

// Places of staging memory that chunks go through in turn. Threads of the host claim chunks in order; the queue's
// thread issues their copies in order.
struct Ring {
    std::vector<Chunk> chunks;
    char *memory = nullptr;
    int64_t places = 0, place_bytes = 0;
    int first_event = 0;
    std::mutex mutex;
    std::condition_variable changed;
    // The rest is in mutex.
    int64_t claimed = 0, issued = 0;
    std::vector<char> ready; // filled, or emptied
    bool closed = false;     // nothing more will be issued

    int64_t place(int64_t chunk) const { return chunk % places; }
    char *at(int64_t chunk) const { return memory + place(chunk) * place_bytes; }
    int event(int64_t chunk) const { return first_event + static_cast<int>(place(chunk)); }
};

class Pipeline {
public:
    Pipeline(Executor &executor, const Problem &problem, const Plan &plan, const Options &options, Progress &progress)
        : executor_(executor), problem_(problem), plan_(plan), options_(options), progress_(progress),
          fill_threads_(options.fill_threads), empty_threads_(options.empty_threads),
          chunks_left_(new std::atomic<int64_t>[plan.stores.size()]()) {}

    // memory holds the slots. What happened is in outcome.
    void run(char *memory, Outcome *outcome);

private:
    // Sleeps until the condition holds; false if the flag is set before that.
    template <class Condition>
    bool await(std::mutex &mutex, std::condition_variable &changed, const std::atomic<bool> &flag,
               Condition condition) {
        std::unique_lock<std::mutex> lock(mutex);
        while (!condition()) {
            if (progress_.stop.load(std::memory_order_relaxed))
                stop_.store(true);
            if (flag.load())
                return false;
            changed.wait_for(lock, std::chrono::milliseconds(5));
        }
        return true;
    }
    template <class Change>
    void announce(std::mutex &mutex, std::condition_variable &changed, Change change) {
        {
            const std::lock_guard<std::mutex> lock(mutex);
            change();
        }
        changed.notify_all();
    }

    void fail_with(Status status);
    void stop(); // nothing new begins; whoever sleeps is told
    template <class Body>
    void guarded(Body body);
    Status prepare(char *memory);
    Status make_ring(bool loads, Ring *ring, int *threads, int *events);

    Status bring();     // loads, in order
    Status compute();   // products, in order
    Status take_back(); // stores, in order
    Status fill();      // chunks of loads
    Status empty();     // chunks of stores

    bool multiply_is_issued(int64_t multiply, const std::atomic<bool> &flag) {
        return multiply < 0 || await(mutex_, changed_, flag, [&] { return multiplies_issued_ > multiply; });
    }
    bool store_is_issued(int64_t store, const std::atomic<bool> &flag) {
        return store < 0 || await(mutex_, changed_, flag, [&] { return stores_issued_ > store; });
    }
    Status wait_for_multiply(Queue queue, int64_t multiply);
    Status wait_for_store(Queue queue, int64_t store);
    Status copy_block(Queue queue, const Block &block, char *device, bool to_device);

    int loaded_event(Matrix matrix, int slot) const { return loaded_events_[matrix] + slot; }
    int stored_event(int slot) const { return stored_events_ + slot; }
    char *slot_memory(Matrix matrix, int slot) const { return slots_[matrix] + slot * plan_.slot_bytes[matrix]; }
    Block block(Matrix matrix, const Place &place) const { return block_of(problem_, plan_.grid, matrix, place); }

    Executor &executor_;
    const Problem &problem_;
    const Plan &plan_;
    const Options &options_;
    Progress &progress_;

    char *slots_[kMatrices] = {};
    int loaded_events_[kMatrices] = {}, stored_events_ = 0;
    int fill_threads_, empty_threads_;
    Ring in_, out_;
    std::unique_ptr<std::atomic<int64_t>[]> chunks_left_; // of each store

    std::mutex mutex_;
    std::condition_variable changed_;
    // In mutex_:
    int64_t loads_issued_ = 0, multiplies_issued_ = 0, multiplies_done_ = 0, stores_issued_ = 0;
    Status status_ = kSuccess; // the first failure
    std::string message_;

    int64_t stores_begun_ = 0;                      // take_back()'s
    double seconds_ = 0;                            // compute()'s
    std::atomic<bool> stop_{false}, broken_{false}; // nothing new begins; nothing at all goes on
};

void Pipeline::fail_with(Status status) {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (status_ == kSuccess) {
            status_ = status;
            message_ = last_error_message();
        }
    }
    broken_.store(true);
    progress_.stop.store(true);
    stop();
}

void Pipeline::stop() {
    stop_.store(true);
    const auto nothing = [] {};
    announce(mutex_, changed_, nothing);
    announce(in_.mutex, in_.changed, nothing);
    announce(out_.mutex, out_.changed, nothing);
}

template <class Body>
void Pipeline::guarded(Body body) {
    Status status = kSuccess;
    try {
        status = executor_.enter();
        if (status == kSuccess)
            status = body();
    } catch (const std::bad_alloc &) {
        status = fail(PYBLAS_STATUS_ALLOC_FAILED, "out of host memory");
    } catch (const std::exception &error) {
        status = fail(PYBLAS_STATUS_INTERNAL_ERROR, "%s", error.what());
    }
    if (status != kSuccess)
        fail_with(status);
}

Status Pipeline::make_ring(bool loads, Ring *ring, int *threads, int *events) {
    // Small products go in small chunks, so that several threads have a part in them.
    constexpr int64_t kLeastChunk = 128 << 10, kLittle = 8 << 20;
    const int64_t bytes_of_all = loads ? plan_.bytes_in : plan_.bytes_out;
    const int64_t chunk_bytes =
        std::min(options_.chunk_bytes, std::max(kLeastChunk, bytes_of_all / (4 * std::max(1, *threads))));
    ring->place_bytes = chunk_bytes;
    const size_t steps = loads ? plan_.loads.size() : plan_.stores.size();
    for (size_t step = 0; step < steps; ++step) {
        const Matrix matrix = loads ? plan_.loads[step].matrix : kC;
        if (!options_.staged[matrix])
            continue;
        const Block part = block(matrix, loads ? plan_.loads[step].place : plan_.stores[step].place);
        const int64_t run_bytes = 4 * part.device_ld(), runs = part.runs();
        // Runs are not cut, so one that is longer than a chunk makes the places longer.
        ring->place_bytes = std::max(ring->place_bytes, run_bytes);
        const int64_t each = std::max<int64_t>(1, chunk_bytes / run_bytes);
        for (int64_t run = 0; run < runs; run += each)
            ring->chunks.push_back(
                {static_cast<int64_t>(step), run, std::min(each, runs - run), run == 0, run + each >= runs});
        if (!loads)
            chunks_left_[step] = (runs + each - 1) / each;
    }
    const auto count = static_cast<int64_t>(ring->chunks.size());
    *threads = static_cast<int>(std::min<int64_t>(*threads, count));
    if (count == 0)
        return kSuccess;
    ring->ready.assign(ring->chunks.size(), 0);
    // Enough for the threads, and for all of a small product, where nobody then has to wait for a place.
    const int64_t enough = std::max<int64_t>(2 * *threads + 2, kLittle / ring->place_bytes);
    for (ring->places = std::min(enough, count);; ring->places = (ring->places + 1) / 2) {
        const Status status =
            executor_.allocate_staging(static_cast<size_t>(ring->places * ring->place_bytes), &ring->memory);
        if (status != PYBLAS_STATUS_ALLOC_FAILED || ring->places == 1) {
            ring->first_event = *events;
            *events += static_cast<int>(ring->places);
            return status;
        }
    }
}

Status Pipeline::prepare(char *memory) {
    int events = kProductEvents;
    for (const Matrix matrix : {kA, kB, kC}) {
        slots_[matrix] = memory;
        memory += plan_.slots[matrix] * plan_.slot_bytes[matrix];
        loaded_events_[matrix] = events;
        events += static_cast<int>(plan_.slots[matrix]);
    }
    stored_events_ = events;
    events += static_cast<int>(plan_.slots[kC]);
    PYBLAS_TRY(make_ring(true, &in_, &fill_threads_, &events));
    PYBLAS_TRY(make_ring(false, &out_, &empty_threads_, &events));
    return executor_.create_events(events);
}

// The product is queued. One that is known to be over needs no wait; the event of one that is not has not been recorded
// again, or for a product that follows it and cannot depend on what waits here, as that is not queued yet.
Status Pipeline::wait_for_multiply(Queue queue, int64_t multiply) {
    if (multiply < 0)
        return kSuccess;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (multiplies_done_ > multiply)
            return kSuccess;
    }
    return executor_.wait(queue, static_cast<int>(multiply % kProductEvents));
}

Status Pipeline::wait_for_store(Queue queue, int64_t store) {
    return store < 0 ? kSuccess : executor_.wait(queue, stored_event(plan_.stores[static_cast<size_t>(store)].slot));
}

// Between the device and memory that it reaches by itself.
Status Pipeline::copy_block(Queue queue, const Block &part, char *device, bool to_device) {
    const int64_t width = 4 * part.length, pitch = 4 * part.ld, device_pitch = 4 * part.device_ld();
    const auto copy = [&](char *at, float *data, int64_t height) {
        return to_device ? executor_.copy(queue, {at, device_pitch, data, pitch, width, height})
                         : executor_.copy(queue, {data, pitch, at, device_pitch, width, height});
    };
    if (part.count == 1 || part.stride == part.ld * part.vectors)
        return copy(device, part.data, part.runs());
    for (int64_t i = 0; i < part.count; ++i)
        PYBLAS_TRY(copy(device + i * device_pitch * part.vectors, part.data + i * part.stride, part.vectors));
    return kSuccess;
}

Status Pipeline::bring() {
    int64_t chunk = 0;
    for (size_t step = 0; step < plan_.loads.size() && !stop_.load(); ++step) {
        const Load &load = plan_.loads[step];
        if (!multiply_is_issued(load.after_multiply, stop_) || !store_is_issued(load.after_store, stop_))
            return kSuccess;
        PYBLAS_TRY(wait_for_multiply(Queue::in, load.after_multiply));
        PYBLAS_TRY(wait_for_store(Queue::in, load.after_store));
        const Block part = block(load.matrix, load.place);
        char *device = slot_memory(load.matrix, load.slot);
        if (options_.staged[load.matrix]) {
            for (bool is_last = false; !is_last; ++chunk) {
                const Chunk &piece = in_.chunks[static_cast<size_t>(chunk)];
                if (!await(in_.mutex, in_.changed, stop_, [&] { return in_.ready[static_cast<size_t>(chunk)] != 0; }))
                    return kSuccess;
                const int64_t run_bytes = 4 * part.device_ld(), bytes = piece.runs * run_bytes;
                PYBLAS_TRY(executor_.copy(
                    Queue::in, {device + piece.first_run * run_bytes, bytes, in_.at(chunk), bytes, bytes, 1}));
                PYBLAS_TRY(executor_.record(Queue::in, in_.event(chunk)));
                announce(in_.mutex, in_.changed, [&] { in_.issued = chunk + 1; });
                is_last = piece.is_last;
            }
        } else {
            PYBLAS_TRY(copy_block(Queue::in, part, device, true));
        }
        PYBLAS_TRY(executor_.record(Queue::in, loaded_event(load.matrix, load.slot)));
        announce(mutex_, changed_, [&] { ++loads_issued_; });
    }
    return kSuccess;
}

// Copies runs between the caller's memory and a place of the ring; in one piece where they lie one behind the other on
// both sides, since the runs of a narrow matrix are short and many.
void copy_runs(const Block &part, const Chunk &piece, char *staging, bool to_staging) {
    const bool in_one = part.ld == part.length && part.device_ld() == part.length;
    int64_t matrix = piece.first_run / part.vectors, vector = piece.first_run % part.vectors;
    for (int64_t left = piece.runs; left > 0;) {
        const int64_t runs = in_one ? std::min(left, part.vectors - vector) : 1;
        float *const data = part.data + matrix * part.stride + vector * part.ld;
        const auto bytes = static_cast<size_t>(4 * runs * part.length);
        if (to_staging)
            std::memcpy(staging, data, bytes);
        else
            std::memcpy(data, staging, bytes);
        staging += runs * 4 * part.device_ld();
        left -= runs;
        vector += runs;
        if (vector == part.vectors) {
            vector = 0;
            ++matrix;
        }
    }
}

Status Pipeline::fill() {
    for (;;) {
        int64_t chunk = 0;
        {
            const std::lock_guard<std::mutex> lock(in_.mutex);
            chunk = in_.claimed++;
        }
        if (chunk >= static_cast<int64_t>(in_.chunks.size()))
            return kSuccess;
        const int64_t before = chunk - in_.places; // the last in this place
        if (!await(in_.mutex, in_.changed, stop_, [&] { return in_.issued > before; }))
            return kSuccess;
        if (before >= 0)
            PYBLAS_TRY(executor_.wait_on_host(in_.event(before)));
        const Chunk &piece = in_.chunks[static_cast<size_t>(chunk)];
        const Load &load = plan_.loads[static_cast<size_t>(piece.step)];
        copy_runs(block(load.matrix, load.place), piece, in_.at(chunk), true);
        announce(in_.mutex, in_.changed, [&] { in_.ready[static_cast<size_t>(chunk)] = 1; });
    }
}

Status Pipeline::compute() {
    std::vector<int64_t> awaited[kMatrices]; // the load of each slot that the queue has waited for
    for (const Matrix matrix : {kA, kB, kC})
        awaited[matrix].assign(static_cast<size_t>(plan_.slots[matrix]), -1);
    const auto note_end_of = [&](int64_t multiply) {
        PYBLAS_TRY(executor_.wait_on_host(static_cast<int>(multiply % kProductEvents)));
        announce(mutex_, changed_, [&] { multiplies_done_ = multiply + 1; });
        progress_.products.fetch_add(1);
        return kSuccess;
    };
    const auto count = static_cast<int64_t>(plan_.multiplies.size());
    auto begin = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < count; ++i) {
        const Multiply &step = plan_.multiplies[static_cast<size_t>(i)];
        for (const Matrix matrix : {kA, kB, kC}) {
            const int64_t load = step.load[matrix];
            if (load < 0)
                continue;
            if (!await(mutex_, changed_, stop_, [&] { return loads_issued_ > load; }))
                return kSuccess;
            int64_t &last = awaited[matrix][static_cast<size_t>(step.slot[matrix])];
            if (last != load)
                PYBLAS_TRY(executor_.wait(Queue::compute, loaded_event(matrix, step.slot[matrix])));
            last = load;
        }
        if (!store_is_issued(step.after_store, stop_))
            return kSuccess;
        PYBLAS_TRY(wait_for_store(Queue::compute, step.after_store));
        if (i >= kInFlight)
            PYBLAS_TRY(note_end_of(i - kInFlight));
        if (progress_.stop.load())
            stop();
        if (stop_.load())
            return kSuccess;
        const auto memory = [&](Matrix matrix) {
            return reinterpret_cast<float *>(slot_memory(matrix, step.slot[matrix]));
        };
        PYBLAS_TRY(
            executor_.multiply(product_of(problem_, plan_.grid, step.place, memory(kA), memory(kB), memory(kC))));
        PYBLAS_TRY(executor_.record(Queue::compute, static_cast<int>(i % kProductEvents)));
        announce(mutex_, changed_, [&] { ++multiplies_issued_; });
    }
    for (int64_t i = std::max<int64_t>(0, count - kInFlight); i < count; ++i)
        PYBLAS_TRY(note_end_of(i));
    seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return kSuccess;
}

Status Pipeline::take_back() {
    int64_t chunk = 0;
    for (size_t step = 0; step < plan_.stores.size(); ++step) {
        const Store &store = plan_.stores[step];
        if (!multiply_is_issued(store.after_multiply, stop_) || stop_.load())
            return kSuccess;
        // A tile that is begun is written to its end, unless something fails.
        PYBLAS_TRY(wait_for_multiply(Queue::out, store.after_multiply));
        const Block part = block(kC, store.place);
        char *device = slot_memory(kC, store.slot);
        ++stores_begun_;
        if (options_.staged[kC]) {
            for (bool is_last = false; !is_last; ++chunk) {
                const Chunk &piece = out_.chunks[static_cast<size_t>(chunk)];
                const int64_t before = chunk - out_.places;
                if (before >= 0 && !await(out_.mutex, out_.changed, broken_,
                                          [&] { return out_.ready[static_cast<size_t>(before)] != 0; }))
                    return kSuccess;
                const int64_t run_bytes = 4 * part.device_ld(), bytes = piece.runs * run_bytes;
                PYBLAS_TRY(executor_.copy(
                    Queue::out, {out_.at(chunk), bytes, device + piece.first_run * run_bytes, bytes, bytes, 1}));
                PYBLAS_TRY(executor_.record(Queue::out, out_.event(chunk)));
                announce(out_.mutex, out_.changed, [&] { out_.issued = chunk + 1; });
                is_last = piece.is_last;
            }
        } else {
            PYBLAS_TRY(copy_block(Queue::out, part, device, false));
        }
        PYBLAS_TRY(executor_.record(Queue::out, stored_event(store.slot)));
        announce(mutex_, changed_, [&] { ++stores_issued_; });
    }
    return kSuccess;
}

Status Pipeline::empty() {
    for (;;) {
        int64_t chunk = 0;
        {
            const std::lock_guard<std::mutex> lock(out_.mutex);
            chunk = out_.claimed++;
        }
        if (chunk >= static_cast<int64_t>(out_.chunks.size()))
            return kSuccess;
        bool is_issued = false;
        const auto decided = [&] {
            is_issued = out_.issued > chunk;
            return is_issued || out_.closed;
        };
        if (!await(out_.mutex, out_.changed, broken_, decided) || !is_issued)
            return kSuccess;
        PYBLAS_TRY(executor_.wait_on_host(out_.event(chunk)));
        const Chunk &piece = out_.chunks[static_cast<size_t>(chunk)];
        copy_runs(block(kC, plan_.stores[static_cast<size_t>(piece.step)].place), piece, out_.at(chunk), false);
        chunks_left_[static_cast<size_t>(piece.step)].fetch_sub(1);
        announce(out_.mutex, out_.changed, [&] { out_.ready[static_cast<size_t>(chunk)] = 1; });
    }
}

void Pipeline::run(char *memory, Outcome *outcome) {
    guarded([&] { return prepare(memory); });
    if (!broken_.load()) {
        Team team;
        guarded([&] {
            for (int i = 0; i < fill_threads_; ++i)
                team.start([&] { guarded([&] { return fill(); }); });
            team.start([&] { guarded([&] { return bring(); }); });
            team.start([&] {
                guarded([&] { return take_back(); });
                announce(out_.mutex, out_.changed, [&] { out_.closed = true; });
            });
            for (int i = 0; i < empty_threads_; ++i)
                team.start([&] { guarded([&] { return empty(); }); });
            return compute();
        });
        team.join();
    }
    const Status finished = executor_.finish();
    if (finished != kSuccess)
        fail_with(finished);
    for (const Ring *ring : {&in_, &out_})
        if (ring->memory)
            executor_.release_staging(ring->memory);

    // The threads are gone: nothing needs a lock any more.
    for (int64_t step = 0; step < stores_issued_; ++step)
        outcome->tiles_written +=
            options_.staged[kC] ? chunks_left_[static_cast<size_t>(step)] == 0 : finished == kSuccess;
    outcome->tiles_undefined = stores_begun_ - outcome->tiles_written;
    outcome->status = status_;
    outcome->message = message_;
    outcome->stopped = status_ == kSuccess && outcome->tiles_written < static_cast<int64_t>(plan_.stores.size());
    outcome->multiply_seconds = seconds_;
}

// The most that any of the grid's products wants.
Status workspace_of(Executor &executor, const Problem &problem, const Grid &grid, int64_t *most) {
    *most = 0;
    for (const int64_t group : {int64_t{0}, grid.groups - 1})
        for (const int64_t row : {int64_t{0}, grid.rows - 1})
            for (const int64_t column : {int64_t{0}, grid.columns - 1})
                for (const int64_t panel : {int64_t{0}, std::min<int64_t>(1, grid.panels - 1), grid.panels - 1}) {
                    size_t bytes = 0;
                    PYBLAS_TRY(executor.workspace_bytes(
                        product_of(problem, grid, {group, row, column, panel}, nullptr, nullptr, nullptr), &bytes));
                    *most = std::max(*most, static_cast<int64_t>(bytes));
                }
    return kSuccess;
}

Status run_in_memory(Executor &executor, const Problem &problem, const Grid &grid, const Options &options,
                     Progress &progress, Outcome *outcome) {
    PYBLAS_TRY(executor.enter());
    int64_t wanted = 0;
    PYBLAS_TRY(workspace_of(executor, problem, grid, &wanted));
    const int64_t workspace = aligned(wanted + static_cast<int64_t>(executor.fixed_workspace()));
    const int64_t least = least_bytes(problem, grid);
    if (options.limit < workspace + least)
        return fail(PYBLAS_STATUS_ALLOC_FAILED,
                    "a tile of %lld x %lld and its operands need %lld bytes of GPU memory, and %lld may be used",
                    static_cast<long long>(grid.tile_m), static_cast<long long>(grid.tile_n),
                    static_cast<long long>(workspace + least), static_cast<long long>(options.limit));
    struct Memory {
        Executor &executor;
        char *data = nullptr;
        ~Memory() {
            if (data)
                executor.release(data);
        }
    } memory = {executor};
    Plans own;
    Plans &plans = options.plans ? *options.plans : own;
    const Plan *chosen = nullptr;
    for (int64_t bytes = options.limit - workspace;; bytes = std::max(least, chosen->bytes() / 4 * 3)) {
        chosen = &plans.find(problem, grid, options.first, options.last, bytes, options.rates);
        outcome->device_bytes = workspace + chosen->bytes();
        const Status status = executor.allocate(static_cast<size_t>(outcome->device_bytes), &memory.data);
        if (status == kSuccess)
            break;
        // With less memory more is copied, but nothing else changes.
        if (status != PYBLAS_STATUS_ALLOC_FAILED || chosen->bytes() <= least)
            return status;
    }
    const Plan &plan = *chosen;
    outcome->bytes_in = plan.bytes_in;
    outcome->bytes_out = plan.bytes_out;
    PYBLAS_TRY(executor.give_workspace(memory.data, static_cast<size_t>(workspace)));
    Pipeline(executor, problem, plan, options, progress).run(memory.data + workspace, outcome);
    return kSuccess;
}

} // namespace

Outcome run(Executor &executor, const Problem &problem, const Grid &grid, const Options &options, Progress &progress) {
    Outcome outcome;
    Status status = kSuccess;
    try {
        status = run_in_memory(executor, problem, grid, options, progress, &outcome);
    } catch (const std::bad_alloc &) {
        status = fail(PYBLAS_STATUS_ALLOC_FAILED, "out of host memory");
    } catch (const std::exception &error) {
        status = fail(PYBLAS_STATUS_INTERNAL_ERROR, "%s", error.what());
    }
    if (status != kSuccess) {
        outcome.status = status;
        outcome.message = last_error_message();
        progress.stop.store(true);
    }
    return outcome;
}

} // namespace pyblas::xt
