#include "xt/team.hpp"

#include <condition_variable>
#include <csignal>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "pool.hpp"

namespace pyblas::xt {

struct Team::Running {
    std::mutex mutex;
    std::condition_variable ended;
    int count = 0;
};

namespace {

struct Worker {
    std::mutex mutex;
    std::condition_variable called;
    std::function<void()> work;
    std::shared_ptr<Team::Running> team;
};

struct Idle {
    std::mutex mutex;
    std::vector<Worker *> workers;
};

Idle &idle() {
    static auto *const kept = new Idle; // no destructor runs while a thread may still be here
    return *kept;
}

[[noreturn]] void serve(Worker *worker) {
    for (;;) {
        std::shared_ptr<Team::Running> team;
        {
            std::unique_lock<std::mutex> lock(worker->mutex);
            worker->called.wait(lock, [worker] { return worker->team != nullptr; });
            team = std::move(worker->team);
            worker->team = nullptr;
        }
        worker->work();
        worker->work = nullptr;
        {
            const std::lock_guard<std::mutex> lock(idle().mutex);
            idle().workers.push_back(worker); // there was room for it before
        }
        const std::lock_guard<std::mutex> lock(team->mutex);
        if (--team->count == 0)
            team->ended.notify_all();
    }
}

Worker *hire() {
    {
        const std::lock_guard<std::mutex> lock(idle().mutex);
        if (!idle().workers.empty()) {
            Worker *const worker = idle().workers.back();
            idle().workers.pop_back();
            return worker;
        }
    }
    auto worker = std::make_unique<Worker>();
    {
        static int all = 0; // under the lock
        const std::lock_guard<std::mutex> lock(idle().mutex);
        idle().workers.reserve(static_cast<size_t>(++all));
    }
    cpu::keep_library_mapped();
    sigset_t every, before;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before); // the application's signals are for its own threads
    struct Restore {
        const sigset_t &mask;
        ~Restore() { pthread_sigmask(SIG_SETMASK, &mask, nullptr); }
    } const restore = {before};
    std::thread(serve, worker.get()).detach();
    return worker.release();
}

} // namespace

Team::Team() : running_(std::make_shared<Running>()) {}

Team::~Team() {
    join();
}

void Team::start(std::function<void()> work) {
    Worker *const worker = hire();
    {
        const std::lock_guard<std::mutex> lock(running_->mutex);
        ++running_->count;
    }
    {
        const std::lock_guard<std::mutex> lock(worker->mutex);
        worker->work = std::move(work);
        worker->team = running_;
    }
    worker->called.notify_one();
}

void Team::join() {
    std::unique_lock<std::mutex> lock(running_->mutex);
    running_->ended.wait(lock, [this] { return running_->count == 0; });
}

} // namespace pyblas::xt
