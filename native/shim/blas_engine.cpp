#include "blas_engine.hpp"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

namespace pyblas::shim {

namespace {

constexpr int kNoGpu = -1;

// Where products are wanted. Read once.
struct Wish {
    int gpu = kNoGpu;
    bool sooner = false;     // the GPU only where it is sooner
    double least_flops = -1; // work from which it is, if somebody has said so

    Wish() {
        const char *text = std::getenv("PYBLAS_SGEMM_DEVICE");
        if (!text || !*text || std::strcmp(text, "cpu") == 0)
            return;
        sooner = std::strcmp(text, "auto") == 0;
        const char *number = std::strncmp(text, "cuda:", 5) == 0 ? text + 5 : text;
        char *end = nullptr;
        const long device = std::strtol(number, &end, 10);
        if (sooner || std::strcmp(text, "cuda") == 0)
            gpu = 0;
        else if (end != number && !*end && device >= 0 && device < 1024)
            gpu = int(device);
        const char *least = std::getenv("PYBLAS_SGEMM_GPU_MIN_FLOPS");
        if (least && *least)
            least_flops = std::atof(least);
    }
};

const Wish &wish() {
    static const Wish read;
    return read;
}

const char *mode_name(pyblasHandle_t handle) {
    pyblasComputeType_t mode = PYBLAS_COMPUTE_32F;
    (void)pyblasGetComputeMode(handle, &mode);
    return mode == PYBLAS_COMPUTE_32F_PEDANTIC    ? "fp32_pedantic"
           : mode == PYBLAS_COMPUTE_32F_FAST_TF32 ? "tf32"
                                                  : "fp32";
}

// No lock, which a fork might find taken: of two threads that make an engine at the same time, one gives its own back.
const Engine *made_once(std::atomic<const Engine *> *only, int gpu) {
    const Engine *engine = only->load(std::memory_order_acquire);
    if (engine)
        return engine;
    auto *made = new (std::nothrow) Engine;
    if (!made)
        return nullptr;
    made->on_gpu = gpu != kNoGpu;
    const pyblasStatus_t status =
        made->on_gpu ? pyblasCreateOnDevice(&made->handle, gpu) : pyblasCreateCpu(&made->handle);
    if (status == PYBLAS_STATUS_SUCCESS && made->on_gpu) {
        std::snprintf(made->compute, sizeof made->compute, "%s on GPU %d", mode_name(made->handle), gpu);
    } else if (status == PYBLAS_STATUS_SUCCESS) {
        std::snprintf(made->compute, sizeof made->compute, "%s", mode_name(made->handle));
        const char *threads = std::getenv("PYBLAS_SGEMM_THREADS");
        made->follows = !threads || !*threads;
        made->most_threads = pyblasGetNumThreads();
    }
    const Engine *none = nullptr;
    if (only->compare_exchange_strong(none, made))
        return made;
    if (made->handle)
        (void)pyblasDestroy(made->handle);
    delete made;
    return none;
}

// Whether the engine multiplies by the very library that the program calls, which it then has set to one thread.
bool shares_blas(const Function &function) {
    pyblasCpuInfo_t info;
    return pyblasCpuInfo(&info) == PYBLAS_STATUS_SUCCESS && real_is(function, info.blas_path);
}

bool ask(const Engine *gpu, const Engine *cpu, pyblasOperation_t transa, pyblasOperation_t transb, int64_t m, int64_t n,
         int64_t k, int64_t batch) {
    double on_gpu = 0, on_cpu = 0;
    const auto predict = [&](const Engine *engine, double *seconds) {
        return pyblasXtPredict(engine->handle, transa, transb, m, n, k, batch, seconds) == PYBLAS_STATUS_SUCCESS;
    };
    return predict(gpu, &on_gpu) && predict(cpu, &on_cpu) && on_gpu < on_cpu;
}

// A question waits while another thread's product is on the GPU. So a thread asks less and less often about sizes that
// stay on the CPU.
bool gpu_is_sooner(const Engine *gpu, const Engine *cpu, pyblasOperation_t transa, pyblasOperation_t transb, int64_t m,
                   int64_t n, int64_t k, int64_t batch) {
    struct Answer {
        int64_t m, n, k, batch;
        int left, next; // calls before the next question, and after it
    };
    constexpr size_t kKept = 64;
    constexpr int kMostCalls = 63;
    static thread_local Answer kept[kKept];
    const auto mixed = static_cast<uint64_t>((m * 31 + n) * 31 + k) * 0x9e3779b97f4a7c15u;
    Answer &answer = kept[(mixed >> 32) % kKept];
    if (answer.m != m || answer.n != n || answer.k != k || answer.batch != batch)
        answer = {m, n, k, batch, 0, 0};
    if (answer.left > 0) {
        --answer.left;
        return false;
    }
    const bool sooner = ask(gpu, cpu, transa, transb, m, n, k, batch);
    answer.left = sooner ? 0 : answer.next;
    answer.next = sooner ? 0 : std::min(2 * answer.next + 1, kMostCalls);
    return sooner;
}

} // namespace

const Engine *cpu_engine() noexcept {
    static std::atomic<const Engine *> only{nullptr};
    return made_once(&only, kNoGpu);
}

const Engine *engine_for(pyblasOperation_t transa, pyblasOperation_t transb, int64_t m, int64_t n, int64_t k,
                         int64_t batch) noexcept {
    static std::atomic<const Engine *> only{nullptr};
    const Wish &wanted = wish();
    const Engine *cpu = cpu_engine();
    if (wanted.gpu == kNoGpu)
        return cpu;
    const double flops = 2.0 * double(m) * double(n) * double(k) * double(batch);
    // A program of small products never starts CUDA.
    constexpr double kWorthAsking = 5e7;
    if (wanted.sooner && flops < (wanted.least_flops >= 0 ? wanted.least_flops : kWorthAsking))
        return cpu;
    const Engine *gpu = made_once(&only, wanted.gpu);
    if (!gpu || !gpu->handle)
        return cpu;
    if (!wanted.sooner || wanted.least_flops >= 0 || !cpu || !cpu->handle)
        return gpu;
    return gpu_is_sooner(gpu, cpu, transa, transb, m, n, k, batch) ? gpu : cpu;
}

void follow_threads(const Engine &engine, const Function &function) noexcept {
    static std::atomic<int> followed{0};
    const int threads = engine.follows ? real_threads(function) : 0;
    const int before = followed.load(std::memory_order_relaxed);
    if (threads <= 0 || threads == before || (before != 0 && shares_blas(function)))
        return;
    if (pyblasSetNumThreads(std::min(threads, engine.most_threads)) == PYBLAS_STATUS_SUCCESS)
        followed.store(threads, std::memory_order_relaxed);
}

} // namespace pyblas::shim
