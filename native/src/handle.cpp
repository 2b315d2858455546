#include "handle.hpp"

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <pthread.h>
#include <string>

#include "device.hpp"
#include "engine.hpp"

#ifdef PYBLAS_HAVE_CUDA
#include <cuda_runtime.h>
#endif

namespace pyblas {

namespace {

struct ModeName {
    ComputeMode mode;
    int type;
    const char *name;
};
constexpr ModeName kModes[] = {
    {ComputeMode::fp32, PYBLAS_COMPUTE_32F, "fp32"},
    {ComputeMode::fp32_pedantic, PYBLAS_COMPUTE_32F_PEDANTIC, "fp32_pedantic"},
    {ComputeMode::tf32, PYBLAS_COMPUTE_32F_FAST_TF32, "tf32"},
};

Status apply_environment(pyblasContext *handle) {
    if (const char *name = std::getenv("PYBLAS_SGEMM_COMPUTE"); name && *name) {
        const ModeName *found = nullptr;
        for (const ModeName &mode : kModes)
            if (std::strcmp(mode.name, name) == 0)
                found = &mode;
        if (!found)
            return fail(PYBLAS_STATUS_INVALID_VALUE,
                        "environment variable PYBLAS_SGEMM_COMPUTE is '%s', must be fp32, fp32_pedantic or tf32", name);
        handle->settings.mode = found->mode;
    }
    if (const char *name = std::getenv("PYBLAS_SGEMM_KERNEL"); name && *name) {
        const Kernel *kernel = kernel_named(name);
        if (!kernel)
            return fail(PYBLAS_STATUS_INVALID_VALUE,
                        "environment variable PYBLAS_SGEMM_KERNEL is '%s', which is no kernel of this build", name);
        // The variable speaks to the whole process: handles of the other engine choose for themselves.
        if (kernel->engine == handle->device.engine)
            handle->settings.forced = kernel;
    }
    return kSuccess;
}

#ifdef PYBLAS_HAVE_CUDA
// Bytes, or a number with K, M, G or T behind it, powers of 1024. Left as it is where nothing is said.
Status memory_of_environment(size_t *bytes) {
    const char *text = std::getenv("PYBLAS_SGEMM_MEMORY");
    if (!text || !*text)
        return kSuccess;
    constexpr char kUnits[] = "KMGT";
    char *end = nullptr;
    errno = 0;
    unsigned long long number = std::strtoull(text, &end, 10);
    bool is_number = *text >= '0' && *text <= '9' && errno == 0;
    if (is_number && *end) {
        const char *unit = std::strchr(kUnits, *end);
        const auto shift = unit ? 10 * (unit - kUnits + 1) : 0;
        is_number = unit && end[1] == 0 && number <= (~0ULL >> shift);
        number <<= shift;
    }
    if (!is_number || number == 0)
        return fail(PYBLAS_STATUS_INVALID_VALUE,
                    "environment variable PYBLAS_SGEMM_MEMORY is '%s', must be a number of bytes, such as 4294967296 "
                    "or 4G",
                    text);
    *bytes = number;
    return kSuccess;
}
#endif

std::atomic<bool> gpu_used{false};
std::atomic<bool> forked_after_gpu{false};

// All handles. A fork waits until nobody changes the list; a handle's own lock it does not wait for, as a product of
// host memory holds one for long. The child has none of the threads that may hold them, so it makes the locks anew.
struct Living {
    std::mutex mutex;
    pyblasContext *first = nullptr;
};
Living living;

void after_fork_in_child() {
    for (pyblasContext *handle = living.first; handle; handle = handle->after)
        new (&handle->mutex) std::mutex;
    living.mutex.unlock();
}

// Before any thread can make a handle, or a fork could come between the first handle and this.
[[maybe_unused]] const int fork_is_minded =
    pthread_atfork([] { living.mutex.lock(); }, [] { living.mutex.unlock(); }, after_fork_in_child);

} // namespace

void count_in(pyblasContext *handle) {
    const std::lock_guard<std::mutex> lock(living.mutex);
    handle->after = living.first;
    if (handle->after)
        handle->after->before = handle;
    living.first = handle;
}

void count_out(pyblasContext *handle) {
    const std::lock_guard<std::mutex> lock(living.mutex);
    (handle->before ? handle->before->after : living.first) = handle->after;
    if (handle->after)
        handle->after->before = handle->before;
}

Status check_fork() {
    if (forked_after_gpu.load(std::memory_order_relaxed))
        return fail(
            PYBLAS_STATUS_NOT_INITIALIZED,
            "this process was made by fork() after its parent had used the GPU, and CUDA does not survive that; "
            "start it with the spawn method instead");
    return kSuccess;
}

int compute_type(ComputeMode mode) {
    for (const ModeName &entry : kModes)
        if (entry.mode == mode)
            return entry.type;
    return 0;
}

ComputeMode mode_of(int compute_type) {
    ComputeMode found = ComputeMode::fp32;
    for (const ModeName &entry : kModes)
        if (entry.type == compute_type)
            found = entry.mode;
    return found;
}

Status set_compute_mode(pyblasContext *handle, int type) {
    for (const ModeName &mode : kModes)
        if (mode.type == type) {
            handle->settings.mode = mode.mode;
            return kSuccess;
        }
    return fail(PYBLAS_STATUS_INVALID_VALUE,
                "compute mode is %d, must be PYBLAS_COMPUTE_32F (68), _32F_PEDANTIC (69) or _32F_FAST_TF32 (77)", type);
}

Status set_kernel(pyblasContext *handle, const char *name) {
    if (!name || !*name) {
        handle->settings.forced = nullptr;
        return kSuccess;
    }
    const Kernel *kernel = kernel_named(name);
    if (!kernel)
        return fail(PYBLAS_STATUS_INVALID_VALUE, "'%s' is no kernel of this build", name);
    if (kernel->engine != handle->device.engine)
        return fail(PYBLAS_STATUS_NOT_SUPPORTED, "kernel %s runs on %s, and the handle is for %s", name,
                    kernel->engine == Engine::cpu ? "host memory" : "a GPU",
                    kernel->engine == Engine::cpu ? "a GPU" : "the CPU");
    handle->settings.forced = kernel;
    return kSuccess;
}

Status create_cpu(pyblasContext **out) {
    std::unique_ptr<pyblasContext> handle(new (std::nothrow) pyblasContext);
    if (!handle)
        return fail(PYBLAS_STATUS_ALLOC_FAILED, "out of host memory for a handle of %zu bytes", sizeof(pyblasContext));
    PYBLAS_TRY(cpu::check_environment());
    handle->device = cpu::device();
    PYBLAS_TRY(apply_environment(handle.get()));
    *out = handle.release();
    return kSuccess;
}

#ifdef PYBLAS_HAVE_CUDA

DeviceGuard::DeviceGuard(int device) : status_(kSuccess) {
    int current = -1;
    status_ = cuda_status(cudaGetDevice(&current), "cudaGetDevice");
    if (status_ == kSuccess && current != device) {
        status_ = cuda_status(cudaSetDevice(device), "cudaSetDevice");
        previous_ = current;
    }
}

DeviceGuard::~DeviceGuard() {
    if (previous_ >= 0)
        (void)cudaSetDevice(previous_);
}

Status create_gpu(int device, pyblasContext **out) {
    PYBLAS_TRY(check_fork());
    // What NVML says is the sentence that info() shows; CUDA decides, since NVML is not everywhere.
    int ordinal = device, count = 0;
    if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess || count == 0) {
        (void)cudaGetLastError();
        int known = 0;
        pyblasDeviceInfo_t info;
        PYBLAS_TRY(device_count(&known));
        if (known == 0)
            return fail(PYBLAS_STATUS_NOT_INITIALIZED, "no GPU to use: %s", std::string(last_error_message()).c_str());
        if (device_info(0, &info) == kSuccess && !info.supported)
            return fail(PYBLAS_STATUS_NOT_INITIALIZED, "no GPU to use: %s", info.reason);
        return cuda_status(error == cudaSuccess ? cudaErrorNoDevice : error, "cudaGetDeviceCount");
    }
    if (device == kCurrentDevice)
        PYBLAS_CUDA_TRY(cudaGetDevice(&ordinal));
    else if (device < 0 || device >= count)
        return fail(PYBLAS_STATUS_INVALID_VALUE, "device is %d, must be from 0 to %d", device, count - 1);
    std::unique_ptr<pyblasContext> handle(new (std::nothrow) pyblasContext);
    if (!handle)
        return fail(PYBLAS_STATUS_ALLOC_FAILED, "out of host memory for a handle of %zu bytes", sizeof(pyblasContext));
    PYBLAS_TRY(gpu_facts(ordinal, &handle->device));
    handle->settings.arrays_on_host = false;
    const char *synchronise = std::getenv("PYBLAS_SGEMM_SYNC");
    handle->synchronise = synchronise && *synchronise && std::strcmp(synchronise, "0") != 0;
    PYBLAS_TRY(apply_environment(handle.get()));
    PYBLAS_TRY(memory_of_environment(&handle->xt.memory_limit));
    if (!gpu_used.exchange(true))
        pthread_atfork(nullptr, nullptr, [] { forked_after_gpu.store(true, std::memory_order_relaxed); });
    *out = handle.release();
    return kSuccess;
}

#else

Status create_gpu(int, pyblasContext **) {
    return fail(PYBLAS_STATUS_NOT_SUPPORTED, "this build has no GPU code (it was built without CUDA)");
}

#endif

Status destroy(pyblasContext *handle) {
    Status status = kSuccess;
#ifdef PYBLAS_HAVE_CUDA
    if (handle->device.engine == Engine::gpu) {
        if (forked_after_gpu.load(std::memory_order_relaxed)) {
            handle->workspace.forget();
            handle->xt.forget();
        } else {
            const DeviceGuard guard(handle->device.ordinal);
            status = guard.status() == kSuccess ? handle->workspace.free_owned() : guard.status();
            if (const Status freed = handle->xt.free(); status == kSuccess)
                status = freed;
        }
    }
#endif
    delete handle;
    return status;
}

} // namespace pyblas
