// Products of host memory without a GPU: plans against a recorded list, and the pipeline on an executor that keeps its
// memory on the host, does queued work as late and in as odd an order as events allow, and fails where it is told to.
// `test_xt FILE` compares the plans, `test_xt --update FILE` records them anew after a change that is meant.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <deque>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "xt/pipeline.hpp"
#include "xt/seen.hpp"
#include "xt/team.hpp"

using namespace pyblas;
using namespace pyblas::xt;

namespace {

int failures = 0;

#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            ++failures;                                                                                                \
            std::printf("%s:%d: %s: ", __FILE__, __LINE__, #condition);                                                \
            std::printf(__VA_ARGS__);                                                                                  \
            std::printf("\n");                                                                                         \
        }                                                                                                              \
    } while (0)

// ---- plans -------------------------------------------------------------------------------------------------------

struct Shape {
    int64_t m, n, k, batch;
    float beta;
};

Problem problem_of(const Shape &shape) {
    Problem problem;
    problem.m = shape.m, problem.n = shape.n, problem.k = shape.k, problem.batch = shape.batch;
    problem.alpha.value = 1, problem.beta.value = shape.beta;
    problem.a.ld = shape.m, problem.b.ld = shape.k, problem.c.ld = shape.m;
    if (shape.batch > 1) {
        problem.a.stride = shape.m * shape.k;
        problem.b.stride = shape.k * shape.n;
        problem.c.stride = shape.m * shape.n;
    }
    return problem;
}

// Every product is there once, a tile's panels in order; every block is in its slot when it is needed, and not replaced
// before its last use; no step waits for one that waits for it.
void check_plan(const Problem &problem, const Plan &plan, int64_t first, int64_t last, int64_t limit) {
    const Grid &grid = plan.grid;
    CHECK(plan.bytes() <= limit, "%ld > %ld", long(plan.bytes()), long(limit));
    CHECK(int64_t(plan.multiplies.size()) == (last - first) * grid.panels, "%zu products", plan.multiplies.size());
    CHECK(int64_t(plan.stores.size()) == last - first, "%zu stores", plan.stores.size());
    std::map<int64_t, int64_t> panels; // of each tile
    int64_t bytes_in = 0;
    for (const Load &load : plan.loads)
        bytes_in += block_of(problem, grid, load.matrix, load.place).device_bytes();
    CHECK(bytes_in == plan.bytes_in, "%ld", long(bytes_in));

    // The order in which one thread could do all steps: loads as late as their product, stores at once.
    std::vector<int64_t> holds[kMatrices], last_use[kMatrices];
    for (const Matrix matrix : {kA, kB, kC}) {
        holds[matrix].assign(size_t(plan.slots[matrix]), -1);
        last_use[matrix].assign(size_t(plan.slots[matrix]), -1);
    }
    std::vector<int64_t> stored_by(size_t(plan.slots[kC]), -1);
    int64_t loads = 0, stores = 0;
    for (size_t i = 0; i < plan.multiplies.size(); ++i) {
        const Multiply &multiply = plan.multiplies[i];
        const Place &place = multiply.place;
        for (const Matrix matrix : {kA, kB, kC})
            for (; loads <= multiply.load[matrix]; ++loads) {
                const Load &load = plan.loads[size_t(loads)];
                const auto slot = size_t(load.slot);
                CHECK(load.slot < plan.slots[load.matrix], "slot %d", load.slot);
                CHECK(load.after_multiply < int64_t(i) && load.after_store < stores, "load %ld waits for the future",
                      long(loads));
                if (load.matrix == kC)
                    CHECK(load.after_store == stored_by[slot], "C in slot %d", load.slot);
                else
                    CHECK(load.after_multiply == last_use[load.matrix][slot], "slot %d is replaced early", load.slot);
                holds[load.matrix][slot] = loads;
            }
        for (const Matrix matrix : {kA, kB}) {
            const auto slot = size_t(multiply.slot[matrix]);
            CHECK(holds[matrix][slot] == multiply.load[matrix], "slot %zu holds something else", slot);
            const Load &load = plan.loads[size_t(multiply.load[matrix])];
            const Block want = block_of(problem, grid, matrix, place),
                        have = block_of(problem, grid, matrix, load.place);
            CHECK(want.data == have.data && want.length == have.length && want.vectors == have.vectors &&
                      want.count == have.count,
                  "product %zu has another block", i);
            last_use[matrix][slot] = int64_t(i);
        }
        const int64_t tile = (place.group * grid.columns + place.column) * grid.rows + place.row;
        CHECK(tile >= first && tile < last, "tile %ld", long(tile));
        CHECK(panels[tile]++ == place.panel, "tile %ld: panel %ld", long(tile), long(place.panel));
        const auto slot = size_t(multiply.slot[kC]);
        if (place.panel == 0) {
            CHECK(stored_by[slot] != -2, "slot %zu is in use", slot);
            CHECK(problem.beta.value != 0 ? multiply.load[kC] >= 0 : multiply.after_store == stored_by[slot],
                  "tile %ld begins early", long(tile));
            stored_by[slot] = -2;
        }
        if (place.panel == grid.panels - 1) {
            const Store &store = plan.stores[size_t(stores)];
            CHECK(store.after_multiply == int64_t(i) && size_t(store.slot) == slot, "store %ld", long(stores));
            stored_by[slot] = stores++;
        }
    }
    CHECK(loads == int64_t(plan.loads.size()), "%ld loads for nothing", long(plan.loads.size()) - long(loads));
}

std::string recorded_plans() {
    constexpr Shape shapes[] = {
        {1, 1, 1, 1, 0},
        {1000, 1000, 1000, 1, 0},
        {4096, 4096, 4096, 1, 0.5f},
        {20000, 20000, 20000, 1, 0.5f},
        {32768, 32768, 32768, 1, 0},
        {49152, 49152, 49152, 1, 0},
        {65536, 65536, 8192, 1, 1},
        {1, 1000000, 4096, 1, 0},
        {33, 33, 903168, 1, 0},
        {100000, 64, 64, 1, 0},
        {131072, 131072, 131072, 1, 0},
        {64, 64, 64, 100000, 0},
        {2048, 2048, 64, 64, 1},
        {5000, 5000, 5000, 10, 0},
    };
    std::ostringstream text;
    char line[256];
    const auto gb = [](int64_t bytes) { return static_cast<double>(bytes) * 1e-9; };
    for (const Shape &shape : shapes) {
        const Problem problem = problem_of(shape);
        const Grid grid = cut(problem);
        const double flops = 2.0 * double(shape.m) * double(shape.n) * double(shape.k) * double(shape.batch);
        std::snprintf(line, sizeof line,
                      "%ld x %ld x %ld batch %ld beta %g: %ld x %ld x %ld tiles of %ld x %ld x %ld, groups of %ld; "
                      "least %.3f GB, product %.6f s\n",
                      long(shape.m), long(shape.n), long(shape.k), long(shape.batch), double(shape.beta),
                      long(grid.rows), long(grid.columns), long(grid.panels), long(grid.tile_m), long(grid.tile_n),
                      long(grid.panel_k), long(grid.group), gb(least_bytes(problem, grid)), flops / Rates().flops);
        text << line;
        for (const double limit : {0.5e9, 1e9, 3.5e9, 16e9, 128e9}) {
            const auto bytes = static_cast<int64_t>(limit);
            if (bytes < least_bytes(problem, grid))
                continue;
            const Plan plan = make_plan(problem, grid, 0, grid.tiles(), bytes, Rates());
            check_plan(problem, plan, 0, grid.tiles(), bytes);
            std::snprintf(line, sizeof line,
                          "  %5.1f GB: slots %ld %ld %ld of %.3f GB; in %.3f GB, out %.3f GB; %.6f s\n", limit * 1e-9,
                          long(plan.slots[kA]), long(plan.slots[kB]), long(plan.slots[kC]), gb(plan.bytes()),
                          gb(plan.bytes_in), gb(plan.bytes_out), plan.seconds);
            text << line;
        }
    }
    return text.str();
}

// Parts of the tiles, as several GPUs get them, and any memory from the least on.
void check_shares() {
    const Problem problem = problem_of({40, 50, 60, 1, 1});
    const Grid grid = {8, 9, 7, 1, 5, 6, 9, 1};
    const int64_t least = least_bytes(problem, grid);
    for (int64_t first = 0; first < grid.tiles(); first += 4)
        for (int64_t last = first + 1; last <= grid.tiles(); last += 5)
            for (const int64_t bytes : {least, least + 1, least * 3 / 2, 2 * least, 5 * least, 100 * least})
                check_plan(problem, make_plan(problem, grid, first, last, bytes, Rates()), first, last, bytes);
}

// A kept plan is the one that would be made, for its own question only, and goes when others come.
void check_kept_plans() {
    Plans plans;
    const auto is_made = [&plans](const Shape &shape, int64_t bytes, const Rates &rates) {
        const Problem problem = problem_of(shape);
        const Grid grid = cut(problem);
        const Plan made = make_plan(problem, grid, 0, grid.tiles(), bytes, rates);
        for (int i = 0; i < 2; ++i) {
            const Plan &found = plans.find(problem, grid, 0, grid.tiles(), bytes, rates);
            CHECK(found.seconds == made.seconds && found.bytes() == made.bytes() && found.bytes_in == made.bytes_in &&
                      found.multiplies.size() == made.multiplies.size(),
                  "%ld x %ld x %ld batch %ld, %ld bytes", long(shape.m), long(shape.n), long(shape.k),
                  long(shape.batch), long(bytes));
        }
    };
    Rates slow;
    slow.in /= 2;
    const int64_t much = int64_t{1} << 40;
    for (int turn = 0; turn < 2; ++turn) {
        for (int64_t n = 100; n < 4000; n += 190)
            is_made({n, 2 * n, n, 1, 0}, much, Rates());
        is_made({2000, 2000, 2000, 1, 0}, much, Rates());
        is_made({2000, 2000, 2000, 1, 1}, much, Rates());
        is_made({2000, 2000, 2000, 1, 0}, int64_t{1} << 25, Rates());
        is_made({2000, 2000, 2000, 1, 0}, much, slow);
        is_made({60000, 60000, 60000, 1, 0}, int64_t{1} << 34, Rates()); // more steps than are kept
    }
}

// ---- what was seen -----------------------------------------------------------------------------------------------

// The formula counts, with some hope, until a shape has been computed twice; then the least that was seen, and slower
// ones little by little.
void check_seen() {
    const Problem problem = problem_of({123, 45, 67, 8, 0});
    const Where cpu, gpu = {0, 0}, capped = {0, 1 << 20};
    double seconds = 0;
    CHECK(!expects(problem, gpu, &seconds), "%g", seconds);
    note(problem, gpu, 5.0);
    CHECK(!expects(problem, gpu, &seconds), "%g", seconds);
    CHECK(note_prediction(problem, gpu, 2.0) == 1.5, "a formula's word");
    CHECK(is_watched(), "nobody has asked");
    CHECK(expects(problem, gpu, &seconds) && seconds == 1.5, "%g", seconds);
    CHECK(!expects(problem, cpu, &seconds) && !expects(problem, capped, &seconds), "%g", seconds);
    note(problem, gpu, 3.0);
    CHECK(expects(problem, gpu, &seconds) && seconds == 3.0, "%g", seconds);
    note(problem, gpu, 4.0);
    CHECK(expects(problem, gpu, &seconds) && seconds > 3.0 && seconds < 3.1, "%g", seconds);
    for (int i = 0; i < 200; ++i)
        note(problem, gpu, 4.0);
    CHECK(expects(problem, gpu, &seconds) && seconds > 3.9 && seconds <= 4.0, "%g", seconds);
    Problem other = problem;
    other.m = 124;
    CHECK(!expects(other, gpu, &seconds), "%g", seconds);
    for (int64_t k = 1; k < 5000; ++k) { // more than there is room for
        other.k = k;
        (void)note_prediction(other, cpu, 1.0);
        CHECK(expects(other, cpu, &seconds) && seconds == 0.75, "%g", seconds);
    }
}

// ---- threads -----------------------------------------------------------------------------------------------------

void check_teams() {
    for (int round = 0; round < 50; ++round) {
        std::atomic<int> done{0}, inside{0};
        Team team;
        for (int i = 0; i < 8; ++i)
            team.start([&] {
                ++inside;
                while (inside < 8) // all at once
                    std::this_thread::yield();
                ++done;
            });
        team.join();
        CHECK(done == 8, "%d", done.load());
        team.start([&] { ++done; });
        team.join();
        CHECK(done == 9, "%d", done.load());
    }
}

// ---- an executor on the CPU --------------------------------------------------------------------------------------

class FakeExecutor : public Executor {
public:
    explicit FakeExecutor(unsigned seed) : random_(seed) {}

    int64_t fail_at = -1;  // number of the call that fails
    bool fails_on = false; // and so do all that follow
    int64_t calls = 0;
    Status failure = PYBLAS_STATUS_EXECUTION_FAILED;
    int64_t memory_limit = INT64_MAX; // of one allocation
    int64_t allocated = 0, most_allocated = 0;
    std::vector<size_t> asked; // bytes of each allocation
    size_t blocks() const { return device_.size() + staging_.size(); }
    bool idle() const { return queues_[0].empty() && queues_[1].empty() && queues_[2].empty(); }

    Status enter() override { return call("enter"); }

    Status allocate(size_t bytes, char **memory) override {
        PYBLAS_TRY(call("allocate"));
        if (int64_t(bytes) > memory_limit)
            return fail(PYBLAS_STATUS_ALLOC_FAILED, "no memory");
        return take(&device_, bytes, memory);
    }
    void release(char *memory) override { give_back(&device_, memory); }
    Status allocate_staging(size_t bytes, char **memory) override {
        PYBLAS_TRY(call("allocate_staging"));
        return take(&staging_, bytes, memory);
    }
    void release_staging(char *memory) override { give_back(&staging_, memory); }

    Status create_events(int count) override {
        PYBLAS_TRY(call("create_events"));
        recorded_.assign(size_t(count), 0);
        reached_.assign(size_t(count), 0);
        return kSuccess;
    }
    Status workspace_bytes(const Problem &, size_t *bytes) override {
        *bytes = 100;
        return call("workspace_bytes");
    }
    Status give_workspace(char *, size_t bytes) override {
        CHECK(bytes >= 100 + fixed_workspace(), "%zu", bytes);
        return call("give_workspace");
    }
    size_t fixed_workspace() const override { return 60; }

    Status copy(Queue queue, const Copy &copy) override {
        PYBLAS_TRY(call("copy"));
        return push(queue, [copy] {
            for (int64_t i = 0; i < copy.height; ++i)
                std::memcpy(static_cast<char *>(copy.to) + i * copy.to_pitch,
                            static_cast<const char *>(copy.from) + i * copy.from_pitch, size_t(copy.width));
        });
    }
    Status multiply(const Problem &p) override {
        PYBLAS_TRY(call("multiply"));
        return push(Queue::compute, [p] {
            for (int64_t batch = 0; batch < p.batch; ++batch)
                for (int64_t j = 0; j < p.n; ++j)
                    for (int64_t i = 0; i < p.m; ++i) {
                        const float *a = p.a.matrix(batch), *b = p.b.matrix(batch);
                        float sum = 0, &c = p.c.matrix(batch)[i + j * p.c.ld];
                        for (int64_t k = 0; k < p.k; ++k)
                            sum = std::fma(p.transa == Op::N ? a[i + k * p.a.ld] : a[k + i * p.a.ld],
                                           p.transb == Op::N ? b[k + j * p.b.ld] : b[j + k * p.b.ld], sum);
                        c = p.beta.value == 0 ? p.alpha.value * sum : std::fma(p.alpha.value, sum, p.beta.value * c);
                    }
        });
    }
    Status record(Queue queue, int event) override {
        PYBLAS_TRY(call("record"));
        const std::lock_guard<std::mutex> lock(mutex_);
        const int64_t number = ++recorded_.at(size_t(event));
        queues_[int(queue)].push_back({[this, event, number] { reached_[size_t(event)] = number; }, -1, 0});
        return kSuccess;
    }
    Status wait(Queue queue, int event) override {
        PYBLAS_TRY(call("wait"));
        const std::lock_guard<std::mutex> lock(mutex_);
        queues_[int(queue)].push_back({[] {}, event, recorded_.at(size_t(event))});
        return kSuccess;
    }
    Status wait_on_host(int event) override {
        PYBLAS_TRY(call("wait_on_host"));
        const std::lock_guard<std::mutex> lock(mutex_);
        const int64_t number = recorded_.at(size_t(event));
        while (reached_[size_t(event)] < number)
            if (!step())
                return fail(PYBLAS_STATUS_INTERNAL_ERROR, "queues wait for each other");
        return kSuccess;
    }
    Status finish() override {
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            while (step()) {
            }
        }
        CHECK(idle(), "work is left");
        return call("finish");
    }

private:
    struct Work {
        std::function<void()> act;
        int event; // to wait for
        int64_t number;
    };
    using Blocks = std::map<char *, std::vector<float>>;

    Status call(const char *what) {
        const std::lock_guard<std::mutex> lock(mutex_);
        const int64_t number = calls++;
        if (number == fail_at || (fails_on && fail_at >= 0 && number > fail_at))
            return fail(failure, "%s fails", what);
        return kSuccess;
    }
    Status push(Queue queue, std::function<void()> act) {
        const std::lock_guard<std::mutex> lock(mutex_);
        queues_[int(queue)].push_back({std::move(act), -1, 0});
        return kSuccess;
    }
    // Some work that is not waiting; false if there is none.
    bool step() {
        int ready[kQueues], count = 0;
        for (int i = 0; i < kQueues; ++i)
            if (!queues_[i].empty() && (queues_[i].front().event < 0 ||
                                        reached_[size_t(queues_[i].front().event)] >= queues_[i].front().number))
                ready[count++] = i;
        if (count == 0)
            return false;
        std::deque<Work> &queue = queues_[ready[random_() % unsigned(count)]];
        queue.front().act();
        queue.pop_front();
        return true;
    }
    Status take(Blocks *blocks, size_t bytes, char **memory) {
        const std::lock_guard<std::mutex> lock(mutex_);
        asked.push_back(bytes);
        std::vector<float> block((bytes + 3) / 4, NAN);
        *memory = reinterpret_cast<char *>(block.data());
        (*blocks)[*memory] = std::move(block);
        if (blocks == &device_) {
            allocated += int64_t(bytes);
            most_allocated = std::max(most_allocated, allocated);
        }
        return kSuccess;
    }
    void give_back(Blocks *blocks, char *memory) {
        const std::lock_guard<std::mutex> lock(mutex_);
        CHECK(blocks->count(memory) == 1, "freed what is not there");
        CHECK(idle(), "freed under queued work");
        if (blocks == &device_)
            allocated -= int64_t((*blocks)[memory].size() * 4);
        blocks->erase(memory);
    }

    std::mutex mutex_;
    std::mt19937 random_;
    std::deque<Work> queues_[kQueues];
    std::vector<int64_t> recorded_, reached_;
    Blocks device_, staging_;
};

// ---- the pipeline ------------------------------------------------------------------------------------------------

struct Matrices {
    Problem problem;
    Grid grid;
    std::vector<float> a, b, c, before, want;
};

constexpr float kPadding = -77;

// Small integers, so that every order of sums gives the same; gaps between runs and matrices that must stay.
Matrices matrices(const Shape &shape, Op ta, Op tb, const int64_t (&size)[4], bool shared_b = false) {
    Matrices x;
    Problem &p = x.problem;
    p = problem_of(shape);
    p.alpha.value = 2;
    p.transa = ta, p.transb = tb;
    const int64_t apart = p.m % 4 != 0; // else runs lie one behind the other, as on the device
    p.a.ld = (ta == Op::N ? p.m : p.k) + 3 * apart;
    p.b.ld = (tb == Op::N ? p.k : p.n) + apart;
    p.c.ld = p.m + 2 * apart;
    p.a.stride = p.a.ld * (ta == Op::N ? p.k : p.m) + 5;
    p.b.stride = shared_b ? 0 : p.b.ld * (tb == Op::N ? p.n : p.k);
    p.c.stride = p.c.ld * p.n + 1;
    if (p.batch == 1)
        p.a.stride = p.b.stride = p.c.stride = 0;
    const auto room = [&](const Operand &operand, int64_t vectors) {
        return size_t(operand.stride * (p.batch - 1) + operand.ld * vectors);
    };
    x.a.resize(room(p.a, ta == Op::N ? p.k : p.m));
    x.b.resize(room(p.b, tb == Op::N ? p.n : p.k));
    x.c.assign(room(p.c, p.n), kPadding);
    std::mt19937 random(7);
    for (std::vector<float> *v : {&x.a, &x.b})
        for (float &value : *v)
            value = float(int(random() % 7) - 3);
    p.a.data = x.a.data(), p.b.data = x.b.data(), p.c.data = x.c.data();
    const auto cover = [](int64_t extent, int64_t part) { return (extent + part - 1) / part; };
    x.grid = {size[0],
              size[1],
              size[2],
              size[3],
              cover(p.m, size[0]),
              cover(p.n, size[1]),
              cover(p.k, size[2]),
              cover(p.batch, size[3])};
    for (int64_t batch = 0; batch < p.batch; ++batch)
        for (int64_t j = 0; j < p.n; ++j)
            for (int64_t i = 0; i < p.m; ++i)
                p.c.matrix(batch)[i + j * p.c.ld] = p.beta.value == 0 ? NAN : float(int(random() % 9) - 4);
    x.before = x.want = x.c;
    for (int64_t batch = 0; batch < p.batch; ++batch)
        for (int64_t j = 0; j < p.n; ++j)
            for (int64_t i = 0; i < p.m; ++i) {
                const float *a = p.a.matrix(batch), *b = p.b.matrix(batch);
                float sum = 0;
                for (int64_t k = 0; k < p.k; ++k)
                    sum += (ta == Op::N ? a[i + k * p.a.ld] : a[k + i * p.a.ld]) *
                           (tb == Op::N ? b[k + j * p.b.ld] : b[j + k * p.b.ld]);
                const auto at = size_t(batch * p.c.stride + i + j * p.c.ld);
                x.want[at] = p.alpha.value * sum + (p.beta.value == 0 ? 0 : p.beta.value * x.before[at]);
            }
    return x;
}

Options options_of(const Matrices &x, unsigned staged, int64_t limit) {
    Options options;
    for (const Matrix matrix : {kA, kB, kC})
        options.staged[matrix] = staged >> matrix & 1;
    options.fill_threads = 2;
    options.empty_threads = 2;
    options.chunk_bytes = 200; // so that a block takes several
    options.limit = limit;
    options.first = 0;
    options.last = x.grid.tiles();
    return options;
}

bool same(const std::vector<float> &x, const std::vector<float> &y) {
    return std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
}

int64_t room_for_one(const Matrices &x) {
    return least_bytes(x.problem, x.grid) + 256;
}

const Shape kSingle = {23, 31, 29, 1, 3};
constexpr int64_t kSizes[] = {8, 9, 10, 1};

void check_results() {
    unsigned seed = 0;
    for (const Op ta : {Op::N, Op::T})
        for (const Op tb : {Op::N, Op::T})
            for (unsigned staged = 0; staged < 8; ++staged)
                for (const int times : {1, 3, 100})
                    for (const int kind : {0, 1, 2, 3}) {
                        Shape shape = kSingle;
                        if (kind >= 2)
                            shape = {5, 4, 6, 11, 3};
                        if (kind == 1)
                            shape.beta = 0;
                        Matrices x = kind >= 2 ? matrices(shape, ta, tb, {5, 4, 6, 3}, kind == 3)
                                               : matrices(shape, ta, tb, kSizes);
                        FakeExecutor executor(++seed);
                        Progress progress;
                        const Options options = options_of(x, staged, times * room_for_one(x));
                        const Outcome outcome = run(executor, x.problem, x.grid, options, progress);
                        CHECK(outcome.status == kSuccess, "%s", outcome.message.c_str());
                        CHECK(same(x.c, x.want), "ops %d%d staged %u times %d kind %d", int(ta), int(tb), staged, times,
                              kind);
                        CHECK(outcome.tiles_written == x.grid.tiles() && outcome.tiles_undefined == 0, "%ld %ld",
                              long(outcome.tiles_written), long(outcome.tiles_undefined));
                        CHECK(progress.products == x.grid.tiles() * x.grid.panels, "%ld", long(progress.products));
                        CHECK(executor.blocks() == 0, "%zu blocks are left", executor.blocks());
                        CHECK(executor.most_allocated <= options.limit, "%ld bytes", long(executor.most_allocated));
                    }
}

// A small product asks for little, in few pieces, and for the same each time, so that it finds what an executor keeps.
void check_small() {
    Matrices x = matrices({64, 64, 64, 1, 0}, Op::N, Op::N, {64, 64, 64, 1});
    x.grid = cut(x.problem);
    Options options = options_of(x, 7, int64_t{1} << 40);
    options.fill_threads = 8, options.empty_threads = 4;
    options.chunk_bytes = Options().chunk_bytes;
    FakeExecutor executor(5);
    for (int i = 0; i < 2; ++i) {
        Progress progress;
        const Outcome outcome = run(executor, x.problem, x.grid, options, progress);
        CHECK(outcome.status == kSuccess, "%s", outcome.message.c_str());
        CHECK(same(x.c, x.want), "product %d", i);
    }
    size_t bytes = 0;
    for (const size_t each : executor.asked)
        bytes += each;
    CHECK(executor.asked.size() == 6, "%zu allocations", executor.asked.size()); // tiles and two rings, twice
    CHECK(std::equal(executor.asked.begin(), executor.asked.begin() + 3, executor.asked.begin() + 3), "they differ");
    CHECK(bytes / 2 <= 512 << 10, "%zu bytes", bytes / 2);
}

// Matrices without gaps, in chunks of several runs and of more than one matrix.
void check_dense() {
    for (const int64_t chunk : {16, 100, 1000, 100000})
        for (const int64_t batch : {1, 7}) {
            Matrices x = matrices({8, 12, 4, batch, 1}, Op::N, Op::N, {8, 12, 4, batch == 1 ? 1 : 3});
            Options options = options_of(x, 7, int64_t{1} << 30);
            options.chunk_bytes = chunk;
            FakeExecutor executor(unsigned(chunk + batch));
            Progress progress;
            const Outcome outcome = run(executor, x.problem, x.grid, options, progress);
            CHECK(outcome.status == kSuccess && same(x.c, x.want), "chunks of %ld, batch %ld", long(chunk),
                  long(batch));
        }
}

// Two executors that share the tiles, and fewer bytes, give the same bits.
void check_bits() {
    const auto bits = [](int64_t limit, int64_t cut_at) {
        Matrices x = matrices(kSingle, Op::N, Op::T, kSizes);
        std::mt19937 random(3);
        for (std::vector<float> *v : {&x.a, &x.b})
            for (float &value : *v)
                value = std::ldexp(float(random()), -32);
        Progress progress;
        for (const auto &[first, last] : {std::pair{int64_t{0}, cut_at}, std::pair{cut_at, x.grid.tiles()}}) {
            FakeExecutor executor(unsigned(limit + first));
            Options options = options_of(x, 7, limit);
            options.first = first, options.last = last;
            if (first < last)
                CHECK(run(executor, x.problem, x.grid, options, progress).status == kSuccess, "%ld", long(limit));
        }
        return x.c;
    };
    const std::vector<float> first = bits(1 << 20, 0);
    for (const int64_t limit : {3000, 5000, 20000})
        for (const int64_t cut_at : {0, 1, 5, 11})
            CHECK(same(bits(limit, cut_at), first), "limit %ld, cut at %ld", long(limit), long(cut_at));
}

// Tiles of C that are the result, that are as before, and others.
struct Census {
    int64_t written = 0, untouched = 0, others = 0;
};

Census census(const Matrices &x) {
    Census count;
    for (int64_t column = 0; column < x.grid.columns; ++column)
        for (int64_t row = 0; row < x.grid.rows; ++row) {
            const Block tile = block_of(x.problem, x.grid, kC, {0, row, column, 0});
            const auto at = tile.data - x.c.data();
            bool is_result = true, is_before = true;
            for (int64_t run = 0; run < tile.vectors; ++run) {
                const auto offset = size_t(at + run * tile.ld);
                is_result &= !std::memcmp(&x.c[offset], &x.want[offset], size_t(4 * tile.length));
                is_before &= !std::memcmp(&x.c[offset], &x.before[offset], size_t(4 * tile.length));
            }
            ++(is_result ? count.written : is_before ? count.untouched : count.others);
        }
    return count;
}

void check_told(const Matrices &x, const Outcome &outcome, const FakeExecutor &executor, const char *what, int64_t at) {
    const Census count = census(x);
    CHECK(count.written >= outcome.tiles_written, "%s %ld: %ld tiles, told %ld", what, long(at), long(count.written),
          long(outcome.tiles_written));
    CHECK(count.others <= outcome.tiles_undefined, "%s %ld: %ld torn tiles, told %ld", what, long(at),
          long(count.others), long(outcome.tiles_undefined));
    CHECK(count.written - outcome.tiles_written + count.others <= outcome.tiles_undefined, "%s %ld", what, long(at));
    CHECK(executor.blocks() == 0 && executor.idle(), "%s %ld: %zu blocks are left", what, long(at), executor.blocks());
}

void check_failures() {
    for (const unsigned staged : {0u, 7u, 4u})
        for (const bool fails_on : {false, true})
            for (const Status failure : {PYBLAS_STATUS_EXECUTION_FAILED, PYBLAS_STATUS_ALLOC_FAILED}) {
                int64_t at = 0;
                for (bool reached = true; reached; ++at) {
                    Matrices x = matrices(kSingle, Op::N, Op::N, kSizes);
                    FakeExecutor executor{unsigned(at)};
                    executor.fail_at = at;
                    executor.fails_on = fails_on;
                    executor.failure = failure;
                    Progress progress;
                    const Outcome outcome =
                        run(executor, x.problem, x.grid, options_of(x, staged, 3 * room_for_one(x)), progress);
                    reached = executor.calls > at;
                    if (outcome.status == kSuccess)
                        CHECK(same(x.c, x.want), "failure %ld is passed over", long(at));
                    else
                        CHECK(outcome.status == failure && outcome.message.find("fails") != std::string::npos,
                              "failure %ld: %s", long(at), outcome.message.c_str());
                    // Memory that is not there is done without, where less will do.
                    if (reached && failure == PYBLAS_STATUS_EXECUTION_FAILED)
                        CHECK(outcome.status != kSuccess, "failure %ld is not told", long(at));
                    check_told(x, outcome, executor, "failure", at);
                }
                CHECK(at > 100, "only %ld calls", long(at));
            }
}

void check_stops() {
    for (const unsigned staged : {0u, 7u})
        for (int64_t at = 0; at < 12 * 3; ++at) {
            Matrices x = matrices(kSingle, Op::T, Op::N, kSizes);
            class Stopping : public FakeExecutor {
            public:
                Stopping(unsigned seed, Progress &progress, int64_t at)
                    : FakeExecutor(seed), progress_(progress), left_(at) {}
                Status multiply(const Problem &p) override {
                    if (left_-- == 0)
                        progress_.stop = true;
                    return FakeExecutor::multiply(p);
                }

            private:
                Progress &progress_;
                int64_t left_;
            };
            Progress progress;
            Stopping executor(unsigned(at), progress, at);
            const Outcome outcome =
                run(executor, x.problem, x.grid, options_of(x, staged, 3 * room_for_one(x)), progress);
            CHECK(outcome.status == kSuccess, "%s", outcome.message.c_str());
            CHECK(outcome.stopped == (outcome.tiles_written < x.grid.tiles()), "stop %ld", long(at));
            CHECK(outcome.tiles_undefined == 0, "stop %ld leaves %ld torn tiles", long(at),
                  long(outcome.tiles_undefined));
            check_told(x, outcome, executor, "stop", at);
        }
}

void check_limits() {
    Matrices x = matrices(kSingle, Op::N, Op::N, kSizes);
    const int64_t least = room_for_one(x);
    {
        FakeExecutor executor(1);
        Progress progress;
        const Outcome outcome = run(executor, x.problem, x.grid, options_of(x, 0, least - 1), progress);
        CHECK(outcome.status == PYBLAS_STATUS_ALLOC_FAILED, "%d", int(outcome.status));
        CHECK(outcome.message.find(std::to_string(least)) != std::string::npos, "%s", outcome.message.c_str());
        CHECK(same(x.c, x.before) && outcome.tiles_undefined == 0, "C was written");
    }
    // Less memory than the limit lets hope for: the plan shrinks to what there is, down to the least.
    for (const int64_t there : {8 * least, 2 * least, least}) {
        x = matrices(kSingle, Op::N, Op::N, kSizes);
        FakeExecutor executor(2);
        executor.memory_limit = there;
        Progress progress;
        const Outcome outcome = run(executor, x.problem, x.grid, options_of(x, 0, 100 * least), progress);
        CHECK(outcome.status == kSuccess && same(x.c, x.want), "%s", outcome.message.c_str());
        CHECK(executor.most_allocated <= there, "%ld", long(executor.most_allocated));
    }
    FakeExecutor executor(3);
    executor.memory_limit = least - 1;
    Progress progress;
    CHECK(run(executor, x.problem, x.grid, options_of(x, 0, 100 * least), progress).status ==
              PYBLAS_STATUS_ALLOC_FAILED,
          "memory out of nothing");
}

bool compare_with(const char *path, bool update) {
    const std::string text = recorded_plans();
    if (update) {
        std::ofstream(path) << text;
        return true;
    }
    std::ifstream file(path);
    const std::string before((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    if (before == text)
        return true;
    std::istringstream x(before), y(text);
    for (std::string old_line, new_line; std::getline(y, new_line);)
        if (std::getline(x, old_line); old_line != new_line)
            std::printf("- %s\n+ %s\n", old_line.c_str(), new_line.c_str());
    return false;
}

} // namespace

int main(int count, char **arguments) {
    const bool update = count == 3 && std::strcmp(arguments[1], "--update") == 0;
    if (count != 2 && !update) {
        std::printf("usage: test_xt [--update] FILE\n");
        return 2;
    }
    if (!compare_with(arguments[count - 1], update)) {
        std::printf("plans differ from those recorded\n");
        ++failures;
    }
    check_shares();
    check_kept_plans();
    check_seen();
    check_teams();
    check_results();
    check_small();
    check_dense();
    check_bits();
    check_failures();
    check_stops();
    check_limits();
    std::printf("%d failures\n", failures);
    return failures != 0;
}
