#include "xt/host_products.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include <cuda_runtime.h>

#include "device.hpp"
#include "handle.hpp"
#include "pool.hpp"
#include "xt/gpu.hpp"
#include "xt/pipeline.hpp"
#include "xt/seen.hpp"
#include "xt/team.hpp"

namespace pyblas::xt {

namespace {

constexpr double kShareOfFree = 0.8; // of free memory, where no limit is set
constexpr auto kBetweenReports = std::chrono::milliseconds(50);

// Multiply-adds that a device was seen to do in a second, two operations each, by device and compute mode.
class Speeds {
public:
    double of(int device, ComputeMode mode) {
        const std::lock_guard<std::mutex> lock(mutex_);
        const auto found = seen_.find({device, mode});
        return found == seen_.end() ? 0 : found->second;
    }
    void note(int device, ComputeMode mode, double speed) {
        const std::lock_guard<std::mutex> lock(mutex_);
        double &kept = seen_[{device, mode}];
        kept = kept == 0 ? speed : 0.5 * (kept + speed);
    }

private:
    std::mutex mutex_;
    std::map<std::pair<int, ComputeMode>, double> seen_;
};

Speeds &speeds() {
    static auto *const kept = new Speeds; // no destructor runs while a thread may still be here
    return *kept;
}

double flops_of(const Problem &p) {
    return 2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k) *
           static_cast<double>(p.batch);
}

// First and last element of an operand, over the whole batch.
void ends_of(const Problem &problem, const Operand &operand, int64_t rows, int64_t columns, const float **first,
             const float **last) {
    const auto *data = static_cast<const float *>(operand.data);
    const int64_t reach = (problem.batch - 1) * operand.stride;
    *first = data + std::min<int64_t>(0, reach);
    *last = data + std::max<int64_t>(0, reach) + (columns - 1) * operand.ld + rows - 1;
}

// Whether threads of the host have to lay a matrix's runs together: where its memory is not the copy engines', or where
// its runs are so short that these would lose more time.
Status find_home(const Problem &problem, const Grid &grid, Matrix matrix, bool *on_device, int *device, bool *staged) {
    constexpr int64_t kShortRun = 2048, kSmallMatrix = 256 << 10;
    const bool transposed = matrix == kA ? problem.transa == Op::T : matrix == kB && problem.transb == Op::T;
    int64_t rows = matrix == kB ? problem.k : problem.m, columns = matrix == kA ? problem.k : problem.n;
    if (transposed)
        std::swap(rows, columns);
    const Operand &operand = matrix == kA ? problem.a : matrix == kB ? problem.b : problem.c;
    const float *first = nullptr, *last = nullptr;
    ends_of(problem, operand, rows, columns, &first, &last);
    Home home = Home::pageable, last_home = Home::pageable;
    int last_device = -1;
    PYBLAS_TRY(home_of(first, &home, device));
    PYBLAS_TRY(home_of(last, &last_home, &last_device));
    *on_device = home == Home::device;
    const Block block = block_of(problem, grid, matrix, Place());
    const bool in_one = block.ld == block.device_ld() && block.ld == block.length;
    const bool merges = block.count == 1 || block.stride == block.ld * block.vectors;
    *staged = !*on_device &&
              (home != Home::pinned || last_home != Home::pinned || (4 * block.length < kShortRun && !in_one) ||
               (!merges && 4 * block.length * block.vectors < kSmallMatrix));
    return kSuccess;
}

// Bytes of the current device that may be used. There is no need to ask for little, which takes as long as a small
// product; and what is not there after all is asked for again, in smaller pieces.
Status memory_for(const Problem &problem, size_t memory_limit, int64_t *bytes) {
    constexpr double kLittle = 64 << 20;
    const auto product = [](int64_t rows, int64_t columns) {
        return static_cast<double>(rows) * static_cast<double>(columns);
    };
    const double all = 4.0 * static_cast<double>(problem.batch) *
                       (product(problem.m, problem.k) + product(problem.k, problem.n) + product(problem.m, problem.n));
    if (memory_limit > 0) {
        *bytes = static_cast<int64_t>(memory_limit);
    } else if (all < kLittle) {
        *bytes = int64_t{1} << 40;
    } else {
        size_t free = 0;
        PYBLAS_TRY(free_memory(&free));
        *bytes = static_cast<int64_t>(kShareOfFree * static_cast<double>(free));
    }
    return kSuccess;
}

struct Share {
    Gpu *gpu = nullptr;
    Options options;
    Outcome outcome;
};

// Runs all shares at once and tells of progress meanwhile.
void run_shares(const Problem &problem, const Grid &grid, std::vector<Share> *shares, pyblasXtProgress_t report,
                void *context) {
    Progress progress;
    const auto all = static_cast<double>(grid.tiles() * grid.panels);
    std::mutex mutex;
    std::condition_variable ended;
    size_t running = 0;
    Team team;
    try {
        for (Share &share : *shares) {
            {
                const std::lock_guard<std::mutex> lock(mutex);
                ++running;
            }
            team.start([&] {
                share.outcome = run(*share.gpu, problem, grid, share.options, progress);
                const std::lock_guard<std::mutex> lock(mutex);
                --running;
                ended.notify_one();
            });
        }
    } catch (...) {
        progress.stop.store(true);
        team.join();
        throw;
    }
    std::unique_lock<std::mutex> lock(mutex);
    while (running > 0) {
        if (!ended.wait_for(lock, kBetweenReports, [&] { return running == 0; }) && report) {
            lock.unlock();
            if (report(context, static_cast<double>(progress.products.load()) / all) != 0)
                progress.stop.store(true);
            lock.lock();
        }
    }
    lock.unlock();
    team.join();
}

// One status for all shares. If C is not what was asked for, the message says what it is.
Status verdict(const char *function, const Grid &grid, const std::vector<Share> &shares) {
    Status status = kSuccess;
    std::string message = "stopped by the progress callback";
    bool stopped = false;
    int64_t written = 0, undefined = 0;
    for (const Share &share : shares) {
        if (status == kSuccess && share.outcome.status != kSuccess) {
            status = share.outcome.status;
            message = share.outcome.message;
        }
        stopped |= share.outcome.stopped;
        written += share.outcome.tiles_written;
        undefined += share.outcome.tiles_undefined;
    }
    if (status == kSuccess && !stopped)
        return kSuccess;
    if (status == kSuccess)
        status = PYBLAS_STATUS_EXECUTION_FAILED;
    if (written + undefined == 0)
        return fail(status, "%s: %s; C is unchanged", function, message.c_str());
    if (undefined == 0)
        return fail(status, "%s: %s; of C's %lld tiles %lld hold the result, and the others are unchanged", function,
                    message.c_str(), static_cast<long long>(grid.tiles()), static_cast<long long>(written));
    return fail(status,
                "%s: %s; of C's %lld tiles %lld hold the result, %lld may be written in part, and the others are "
                "unchanged",
                function, message.c_str(), static_cast<long long>(grid.tiles()), static_cast<long long>(written),
                static_cast<long long>(undefined));
}

} // namespace

HostProducts::HostProducts() = default;
HostProducts::~HostProducts() = default;

Status HostProducts::free() {
    Status worst = kSuccess;
    for (const std::unique_ptr<Gpu> &gpu : gpus_) {
        const DeviceGuard guard(gpu->device().ordinal);
        const Status status = guard.status() == kSuccess ? gpu->free() : guard.status();
        if (worst == kSuccess)
            worst = status;
    }
    gpus_.clear();
    return worst;
}

void HostProducts::forget() {
    gpus_.clear();
}

// Some callers choose before every product, so CUDA is asked, which runs already where there is a handle: NVML, which
// counts GPUs elsewhere, starts anew for each question, and that takes longer than a small product.
Status HostProducts::choose_devices(int count, const int *ordinals) {
    std::vector<int> chosen;
    if (count > 0) {
        int available = 0;
        PYBLAS_TRY(check_fork());
        PYBLAS_CUDA_TRY(cudaGetDeviceCount(&available));
        for (int i = 0; i < count; ++i) {
            if (ordinals[i] < 0 || ordinals[i] >= available)
                return fail(PYBLAS_STATUS_INVALID_VALUE, "device is %d, must be from 0 to %d", ordinals[i],
                            available - 1);
            if (std::find(chosen.begin(), chosen.end(), ordinals[i]) != chosen.end())
                return fail(PYBLAS_STATUS_INVALID_VALUE, "device %d is named twice", ordinals[i]);
            chosen.push_back(ordinals[i]);
        }
    }
    devices_ = std::move(chosen);
    return kSuccess;
}

Status HostProducts::gpu_on(pyblasContext &handle, int ordinal, Gpu **gpu) {
    for (const std::unique_ptr<Gpu> &known : gpus_)
        if (known->device().ordinal == ordinal)
            *gpu = known.get();
    if (!*gpu) {
        Device device = handle.device;
        if (ordinal != device.ordinal)
            PYBLAS_TRY(gpu_facts(ordinal, &device));
        gpus_.push_back(std::make_unique<Gpu>(device));
        *gpu = gpus_.back().get();
    }
    (*gpu)->set(handle.settings.forced, handle.workspace.limit());
    return kSuccess;
}

Status HostProducts::multiply(pyblasContext &handle, const Problem &problem, const char *function) {
    const auto begin = std::chrono::steady_clock::now();
    const Grid grid = cut(problem);
    bool staged[kMatrices] = {}, any_on_device = false;
    for (const Matrix matrix : {kA, kB, kC}) {
        bool on_device = false;
        int device = -1;
        PYBLAS_TRY(find_home(problem, grid, matrix, &on_device, &device, &staged[matrix]));
        any_on_device |= on_device;
    }

    std::vector<int> ordinals = devices_;
    if (ordinals.empty())
        ordinals.push_back(handle.device.ordinal);
    const auto many = static_cast<int>(ordinals.size());
    std::vector<Share> shares(ordinals.size());
    std::vector<double> weights;
    const Problem tile = product_of(problem, grid, Place(), nullptr, nullptr, nullptr);
    // Matrices in GPU memory are there when what the handle's stream holds is done.
    struct Queued {
        cudaEvent_t event = nullptr;
        ~Queued() {
            if (event)
                (void)cudaEventDestroy(event);
        }
    } queued;
    if (any_on_device) {
        PYBLAS_CUDA_TRY(cudaEventCreateWithFlags(&queued.event, cudaEventDisableTiming));
        PYBLAS_CUDA_TRY(cudaEventRecord(queued.event, handle.settings.stream));
    }
    bool all_seen = true;
    for (const int ordinal : ordinals)
        all_seen &= speeds().of(ordinal, problem.mode) > 0;
    for (size_t i = 0; i < shares.size(); ++i) {
        Gpu *gpu = nullptr;
        PYBLAS_TRY(gpu_on(handle, ordinals[i], &gpu));
        const DeviceGuard guard(ordinals[i]);
        PYBLAS_TRY(guard.status());
        double seconds = 0;
        PYBLAS_TRY(gpu->predict(tile, &seconds));
        weights.push_back(all_seen ? speeds().of(ordinals[i], problem.mode) : 1 / seconds);
        if (any_on_device)
            PYBLAS_TRY(gpu->follow(queued.event));
        shares[i].gpu = gpu;
        Options &options = shares[i].options;
        std::copy(std::begin(staged), std::end(staged), options.staged);
        options.fill_threads = std::clamp(cpu::thread_limit() / (2 * many), 1, 8);
        options.empty_threads = std::clamp(cpu::thread_limit() / (4 * many), 1, 4);
        PYBLAS_TRY(memory_for(problem, memory_limit, &options.limit));
        options.plans = &gpu->plans();
        options.rates.flops = flops_of(tile) / seconds;
    }
    // Neighbours go to one GPU, so that what it brings serves several of its tiles.
    double all = 0, before = 0;
    for (const double weight : weights)
        all += weight;
    int64_t dealt = 0;
    for (size_t i = 0; i < shares.size(); ++i) {
        before += weights[i];
        shares[i].options.first = dealt;
        dealt = i + 1 == shares.size() ? grid.tiles()
                                       : static_cast<int64_t>(before / all * static_cast<double>(grid.tiles()) + 0.5);
        shares[i].options.last = dealt;
    }
    shares.erase(std::remove_if(shares.begin(), shares.end(),
                                [](const Share &share) { return share.options.first == share.options.last; }),
                 shares.end());

    run_shares(problem, grid, &shares, progress, progress_context);
    const double share_of_tile = flops_of(problem) / static_cast<double>(grid.tiles());
    for (const Share &share : shares)
        if (share.outcome.multiply_seconds > 0)
            speeds().note(share.gpu->device().ordinal, problem.mode,
                          share_of_tile * static_cast<double>(share.options.last - share.options.first) /
                              share.outcome.multiply_seconds);
    PYBLAS_TRY(verdict(function, grid, shares));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    if (!any_on_device && many == 1)
        note(problem, {ordinals.front(), memory_limit}, took.count());
    return kSuccess;
}

namespace {

// A product with the least leading dimensions, its matrices one behind the other.
Problem packed(float *memory, int64_t m, int64_t n, int64_t k) {
    Problem problem;
    problem.m = m, problem.n = n, problem.k = k;
    problem.alpha.value = 1;
    problem.a = {memory, nullptr, m, 0, Dtype::f32};
    problem.b = {memory + m * k, nullptr, k, 0, Dtype::f32};
    problem.c = {memory + m * k + k * n, nullptr, m, 0, Dtype::f32};
    return problem;
}

// Seconds for which copies go both ways at once, at most.
double both_ways(const Plan &plan, const Rates &rates) {
    return std::min(static_cast<double>(plan.bytes_in) / rates.in, static_cast<double>(plan.bytes_out) / rates.out);
}

} // namespace

// By products that are little but copies, of memory such as callers have.
Status HostProducts::measure(pyblasContext &handle, Rates *rates) {
    constexpr int64_t kLong = 8192, kWide = 2048;
    const size_t count = kLong * kWide + 2 * kLong;
    const std::unique_ptr<float[]> memory(new (std::nothrow) float[count]);
    if (!memory)
        return fail(PYBLAS_STATUS_ALLOC_FAILED, "out of host memory for %zu floats", count);
    std::fill(memory.get(), memory.get() + count, 1.0f);
    const pyblasXtProgress_t told = std::exchange(progress, nullptr);
    const auto seconds_of = [&](const Problem &problem, double *seconds) {
        *seconds = 1e9;
        for (int i = 0; i < 8; ++i) { // the first gets staging memory
            const auto begin = std::chrono::steady_clock::now();
            PYBLAS_TRY(multiply(handle, problem, "link"));
            const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
            *seconds = std::min(*seconds, took.count());
        }
        return kSuccess;
    };
    const Problem least = packed(memory.get(), 1, 1, 1), inwards = packed(memory.get(), kLong, 1, kWide),
                  outwards = packed(memory.get(), kLong, kWide, 1),
                  both = packed(memory.get(), kWide, 2 * kWide, kWide / 2);
    double nothing = 0, in = 0, out = 0, at_once = 0;
    Status status = seconds_of(least, &nothing);
    if (status == kSuccess)
        status = seconds_of(inwards, &in);
    if (status == kSuccess)
        status = seconds_of(outwards, &out);
    if (status == kSuccess)
        status = seconds_of(both, &at_once);
    progress = told;
    PYBLAS_TRY(status);
    constexpr double kBytes = 4.0 * kLong * kWide;
    rates->in = kBytes / std::max(1e-6, in - nothing);
    rates->out = kBytes / std::max(1e-6, out - nothing);
    rates->start = nothing;
    const Grid grid = cut(both);
    const Plan plan = make_plan(both, grid, 0, grid.tiles(), INT64_MAX, *rates);
    rates->contention = std::clamp((at_once - nothing - plan.seconds) / both_ways(plan, *rates), 0.0, 1.0);
    return kSuccess;
}

Status HostProducts::predict(pyblasContext &handle, const Problem &problem, double *seconds) {
    static std::mutex mutex;
    static std::map<int, Rates> measured; // by device
    const Where where = {handle.device.ordinal, memory_limit};
    if (expects(problem, where, seconds))
        return kSuccess;
    Gpu *gpu = nullptr;
    PYBLAS_TRY(gpu_on(handle, handle.device.ordinal, &gpu));
    const std::lock_guard<std::mutex> lock(mutex);
    auto rates = measured.find(handle.device.ordinal);
    if (rates == measured.end()) {
        Rates fresh;
        PYBLAS_TRY(measure(handle, &fresh));
        rates = measured.emplace(handle.device.ordinal, fresh).first;
    }
    const Grid grid = cut(problem);
    const Problem tile = product_of(problem, grid, Place(), nullptr, nullptr, nullptr);
    double tile_seconds = 0;
    PYBLAS_TRY(gpu->predict(tile, &tile_seconds));
    Rates now = rates->second;
    now.flops = flops_of(tile) / tile_seconds;
    int64_t bytes = 0;
    PYBLAS_TRY(memory_for(problem, memory_limit, &bytes));
    const int64_t limit = std::max(bytes, least_bytes(problem, grid));
    const Plan &plan = gpu->plans().find(problem, grid, 0, grid.tiles(), limit, now);
    *seconds = note_prediction(problem, where, now.start + plan.seconds + now.contention * both_ways(plan, now));
    return kSuccess;
}

} // namespace pyblas::xt
