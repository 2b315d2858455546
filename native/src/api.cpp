// The border: every exported function. No exception leaves, no CUDA type enters, every failure goes through status.
#include "pyblas_sgemm.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <new>
#include <string>

#include "device.hpp"
#include "engine.hpp"
#include "handle.hpp"
#include "validate.hpp"
#include "xt/cpu_rates.hpp"
#include "xt/seen.hpp"

#ifdef PYBLAS_HAVE_CUDA
#include "device/upload.hpp"
#include "xt/gpu.hpp"
#include <cuda_runtime.h>
#endif

using namespace pyblas;

namespace {

// Runs the body and turns what it throws (only the standard library throws) into a status.
template <class Body>
Status guarded(Body body) noexcept {
    try {
        return body();
    } catch (const std::bad_alloc &) {
        return fail(PYBLAS_STATUS_ALLOC_FAILED, "out of host memory");
    } catch (const std::exception &error) {
        return fail(PYBLAS_STATUS_INTERNAL_ERROR, "%s", error.what());
    } catch (...) {
        return fail(PYBLAS_STATUS_INTERNAL_ERROR, "unexpected exception");
    }
}

Status no_handle() {
    return fail(PYBLAS_STATUS_NOT_INITIALIZED, "handle is NULL");
}
Status no_output(const char *name) {
    return fail(PYBLAS_STATUS_INVALID_VALUE, "%s is NULL", name);
}

// The body with the handle's settings to itself.
template <class Body>
Status with_handle(pyblasHandle_t handle, Body body) noexcept {
    if (!handle)
        return no_handle();
    return guarded([&] {
        const std::lock_guard<std::mutex> lock(handle->mutex);
        return body();
    });
}

template <class T, class Read>
Status get(pyblasHandle_t handle, T *out, const char *name, Read read) noexcept {
    return with_handle(handle, [&] {
        if (!out)
            return no_output(name);
        *out = read();
        return kSuccess;
    });
}

#ifdef PYBLAS_HAVE_CUDA

Status launch_on_gpu(pyblasContext &handle, const Problem &problem, const Kernel *kernel, void *workspace,
                     size_t workspace_bytes, void *zeros) {
    static_assert(Workspace::kZeroBytes == kZeros * sizeof(uint32_t), "as many as kernels are told");
    const Launch launch = {&handle.device, handle.settings.stream, workspace, workspace_bytes,
                           static_cast<uint32_t *>(zeros)};
    PYBLAS_TRY(kernel->launch(problem, launch));
    if (!handle.synchronise)
        return kSuccess;
    cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    PYBLAS_CUDA_TRY(cudaStreamIsCapturing(handle.settings.stream, &capturing));
    if (capturing != cudaStreamCaptureStatusNone)
        return kSuccess;
    if (const Status status = cuda_status(cudaStreamSynchronize(handle.settings.stream), kernel->name);
        status != kSuccess)
        return fail(status, "%s (m=%lld n=%lld k=%lld batch=%lld)", std::string(last_error_message()).c_str(),
                    (long long)problem.m, (long long)problem.n, (long long)problem.k, (long long)problem.batch);
    return kSuccess;
}

size_t aligned(size_t bytes) {
    return (bytes + Workspace::kAlignment - 1) / Workspace::kAlignment * Workspace::kAlignment;
}

// Whether so much workspace makes no other order of sums than all that the handle has; it would be other bits.
bool keeps_order(const pyblasContext &handle, const Problem &problem, size_t workspace) {
    return !problem.batch_invariant || invariant_order(problem, handle.device, workspace) ==
                                           invariant_order(problem, handle.device, handle.workspace.available());
}

// Of less workspace than this a kernel makes no use worth a further try to get it.
constexpr size_t kLeastCut = size_t{32} << 20;

// Chooses, finds workspace and queues. extra bytes of workspace in front of the kernel's own are the caller's; prepare
// fills them and may change the problem.
template <class Prepare>
Status queue_on_gpu(pyblasContext &handle, Problem problem, size_t extra, Prepare prepare);

Status queue_on_gpu(pyblasContext &handle, const Problem &problem) {
    return queue_on_gpu(handle, problem, 0, [](char *, Problem *) { return kSuccess; });
}

// In two halves, each of which needs less workspace.
Status queue_halves(pyblasContext &handle, const Problem &problem) {
    Panel half = {problem.m, problem.n, problem.batch};
    int64_t *const longest = half.batch > 1 ? &half.batch : half.rows > half.columns ? &half.rows : &half.columns;
    *longest = (*longest + 1) / 2;
    PYBLAS_TRY(queue_on_gpu(handle, part_of(problem, half, 0, 0, 0)));
    return queue_on_gpu(handle,
                        part_of(problem, half, half.batch < problem.batch ? half.batch : 0,
                                half.rows < problem.m ? half.rows : 0, half.columns < problem.n ? half.columns : 0));
}

template <class Prepare>
Status queue_on_gpu(pyblasContext &handle, Problem problem, size_t extra, Prepare prepare) {
    Selection selection;
    const Kernel *forced = handle.settings.forced;
    PYBLAS_TRY(handle.choices.select(problem, handle.device, handle.workspace.available() - extra, forced, &selection));
    size_t bytes = selection.workspace;
    Workspace::Lent lent = {nullptr, nullptr};
    if (bytes + extra) {
        Status status = handle.workspace.acquire(handle.device.ordinal, handle.settings.stream, extra + bytes, &lent);
        // Too little memory cuts the work smaller, then changes the kernel, not the success.
        while (status == PYBLAS_STATUS_ALLOC_FAILED && bytes && !extra && !forced) {
            const size_t less = bytes >= kLeastCut ? bytes / 2 : 0;
            if (!keeps_order(handle, problem, less)) {
                if (std::max({problem.m, problem.n, problem.batch}) > 1)
                    return queue_halves(handle, problem);
                break;
            }
            PYBLAS_TRY(select(problem, handle.device, less, nullptr, &selection));
            bytes = selection.workspace;
            status = bytes ? handle.workspace.acquire(handle.device.ordinal, handle.settings.stream, bytes, &lent)
                           : kSuccess;
        }
        PYBLAS_TRY(status);
        if (extra)
            PYBLAS_TRY(prepare(lent.memory, &problem));
    }
    PYBLAS_TRY(launch_on_gpu(handle, problem, selection.kernel, lent.memory ? lent.memory + extra : nullptr, bytes,
                             lent.zeros));
    return handle.workspace.release(handle.settings.stream);
}

// Pointer arrays in host memory travel as kernel parameters into workspace, so that a capture holds their values.
Status queue_host_arrays(pyblasContext &handle, const Problem &problem) {
    const bool product = problem.a.array && problem.b.array;
    const size_t one = static_cast<size_t>(problem.batch) * sizeof(void *);
    const size_t extra = aligned(one * (product ? 3 : 1)), available = handle.workspace.available();
    if (extra <= available && keeps_order(handle, problem, available - extra)) {
        const Status status = queue_on_gpu(handle, problem, extra, [&](char *memory, Problem *prepared) {
            CUstream_st *stream = handle.settings.stream;
            Operand *operands[] = {&prepared->c, &prepared->a, &prepared->b};
            for (int i = 0; i < (product ? 3 : 1); ++i) {
                auto **array = reinterpret_cast<void **>(memory + static_cast<size_t>(i) * one);
                PYBLAS_TRY(upload_pointers(array, operands[i]->array, problem.batch, stream));
                operands[i]->array = array;
            }
            return kSuccess;
        });
        if (status != PYBLAS_STATUS_ALLOC_FAILED)
            return status;
    }
    // No room for them: one product after another.
    for (int64_t i = 0; i < problem.batch; ++i) {
        Problem single = problem;
        single.batch = 1;
        for (Operand *operand : {&single.a, &single.b, &single.c}) {
            operand->data = operand->array ? operand->array[i] : nullptr;
            operand->array = nullptr;
        }
        PYBLAS_TRY(queue_on_gpu(handle, single));
    }
    return kSuccess;
}

#endif

Status run_on_cpu(const Problem &problem, const Device &device, const Kernel *forced) {
    Selection selection;
    PYBLAS_TRY(select(problem, device, 0, forced, &selection));
    const Launch launch = {&device, nullptr, nullptr, 0};
    if (!xt::is_watched())
        return selection.kernel->launch(problem, launch);
    const auto begin = std::chrono::steady_clock::now();
    PYBLAS_TRY(selection.kernel->launch(problem, launch));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    constexpr double kOfInterest = 50e-6; // no GPU takes less, with the copies
    // A forced kernel, or a product without depth, tells nothing of what others of its sizes take.
    if (took.count() > kOfInterest && !forced && problem.depth(problem.alpha.value) > 0 && !problem.c.array &&
        problem.c.dtype == Dtype::f32 && problem.a.dtype == Dtype::f32)
        xt::note(problem, xt::Where(), took.count());
    return kSuccess;
}

#ifdef PYBLAS_HAVE_CUDA

// Matrices of a GPU handle's product that may lie in host memory.
Status multiply_anywhere(pyblasContext &handle, const Problem &problem, const char *function) {
    cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    PYBLAS_CUDA_TRY(cudaStreamIsCapturing(handle.settings.stream, &capturing));
    if (capturing != cudaStreamCaptureStatusNone)
        return fail(PYBLAS_STATUS_NOT_SUPPORTED,
                    "%s: a product of host memory waits for the GPU, which no capture can hold", function);
    // Neither A nor B is read: C is scaled where it lies.
    if (problem.depth(problem.alpha.value) == 0) {
        xt::Home home = xt::Home::device;
        int device = 0;
        PYBLAS_TRY(xt::home_of(problem.c.data, &home, &device));
        if (home != xt::Home::device)
            return run_on_cpu(problem, cpu::device(), nullptr);
        PYBLAS_TRY(queue_on_gpu(handle, problem));
        PYBLAS_CUDA_TRY(cudaStreamSynchronize(handle.settings.stream));
        return kSuccess;
    }
    return handle.xt.multiply(handle, problem, function);
}

#endif

// One call, however many of its arguments the entry has. alpha and beta are floats in all forms.
Call call_of(Form form, bool row_major, int transa, int transb, int64_t m, int64_t n, int64_t k, const void *alpha,
             const Given &a, const Given &b, const void *beta, const Given &c, int64_t batch = 1,
             int compute = PYBLAS_COMPUTE_32F) {
    const auto *const alpha_float = static_cast<const float *>(alpha), *const beta_float =
                                                                           static_cast<const float *>(beta);
    return {form, row_major, transa, transb, m, n, k, alpha_float, a, b, beta_float, c, batch, compute};
}

enum class Reach : bool { one_memory, any_memory };

Status multiply(pyblasHandle_t handle, const Call &call, Reach reach = Reach::one_memory) noexcept {
    if (!handle)
        return no_handle();
    return guarded([&] {
        const bool on_cpu = handle->device.engine == Engine::cpu;
#ifdef PYBLAS_HAVE_CUDA
        if (!on_cpu)
            PYBLAS_TRY(check_fork());
#endif
        std::unique_lock<std::mutex> lock(handle->mutex);
        const Settings settings = handle->settings;
        if (on_cpu)
            lock.unlock(); // host products of one handle need not wait for each other
        if (reach == Reach::any_memory && !settings.scalars_on_host)
            return fail(PYBLAS_STATUS_NOT_SUPPORTED, "products of host memory read alpha and beta from host memory");
        Problem problem;
        const Verdict verdict = validate(call, settings.scalars_on_host, settings.arrays_on_host, &problem);
        if (verdict.status != kSuccess || verdict.nothing_to_do)
            return verdict.status;
        problem.mode = settings.mode;
        if (has_types(call.form))
            // TF32 is a rounding of float32 that leaves 16-bit numbers as they are.
            problem.mode = problem.a.dtype == Dtype::f32 || call.compute != PYBLAS_COMPUTE_32F_FAST_TF32
                               ? mode_of(call.compute)
                               : ComputeMode::fp32;
        problem.batch_invariant = settings.batch_invariant;
        if (on_cpu)
            return run_on_cpu(problem, handle->device, settings.forced);
#ifdef PYBLAS_HAVE_CUDA
        const DeviceGuard guard(handle->device.ordinal);
        PYBLAS_TRY(guard.status());
        if (reach == Reach::any_memory)
            return multiply_anywhere(*handle, problem, function_name(call.form));
        if (call.form == Form::batched && settings.arrays_on_host)
            return queue_host_arrays(*handle, problem);
        return queue_on_gpu(*handle, problem);
#else
        return fail(PYBLAS_STATUS_INTERNAL_ERROR, "a GPU handle in a build without CUDA");
#endif
    });
}

} // namespace

/* ---- library ----------------------------------------------------------------------------------------------------- */

pyblasStatus_t pyblasGetVersion(int *version) {
    if (!version)
        return no_output("version");
    *version = PYBLAS_VERSION;
    return kSuccess;
}

const char *pyblasGetStatusName(pyblasStatus_t status) {
    return status_name(status);
}

const char *pyblasGetLastErrorMessage(void) {
    return last_error_message();
}

const char *pyblasGetBuildArchitectures(void) {
    return build_architectures();
}

int pyblasGetBuildCudaVersion(void) {
    return build_cuda_version();
}

pyblasStatus_t pyblasDeviceCount(int *count) {
    return guarded([&] { return count ? device_count(count) : no_output("count"); });
}

pyblasStatus_t pyblasDeviceInfo(int device, pyblasDeviceInfo_t *info) {
    return guarded([&] { return info ? device_info(device, info) : no_output("info"); });
}

pyblasStatus_t pyblasCpuInfo(pyblasCpuInfo_t *info) {
    return guarded([&] { return info ? cpu::info(info) : no_output("info"); });
}

pyblasStatus_t pyblasSetNumThreads(int threads) {
    return guarded([&] { return cpu::set_num_threads(threads); });
}

int pyblasGetNumThreads(void) {
    return cpu::num_threads();
}

pyblasStatus_t pyblasSetBlasLibrary(const char *path) {
    return guarded([&] { return path ? cpu::set_blas_library(path) : no_output("path"); });
}

const char *pyblasKernelName(int index) {
    const Kernel *kernel = kernel_at(index);
    return kernel ? kernel->name : nullptr;
}

pyblasStatus_t pyblasKernelInfo(int index, pyblasKernelInfo_t *info) {
    if (!info)
        return no_output("info");
    const Kernel *kernel = kernel_at(index);
    if (!kernel)
        return fail(PYBLAS_STATUS_INVALID_VALUE, "kernel index is %d, which is past the end of the table", index);
    constexpr const char *mode_names[] = {"",     "fp32",      "fp32_pedantic",      "fp32 fp32_pedantic",
                                          "tf32", "fp32 tf32", "fp32_pedantic tf32", "fp32 fp32_pedantic tf32"};
    const Footprint &footprint = kernel->footprint;
    *info = {kernel->name,
             kernel->family,
             kernel->engine == Engine::cpu ? "cpu" : "gpu",
             mode_names[kernel->modes & 7],
             kernel->types == kHalfTypes ? "float16 bfloat16" : "float32",
             kernel->min_sm,
             footprint.threads,
             footprint.registers(),
             footprint.shared_bytes};
    return kSuccess;
}

/* ---- handles ----------------------------------------------------------------------------------------------------- */

pyblasStatus_t pyblasCreate(pyblasHandle_t *handle) {
    return guarded([&] {
        if (!handle)
            return no_output("handle");
        *handle = nullptr;
        return create_gpu(kCurrentDevice, handle);
    });
}

pyblasStatus_t pyblasCreateOnDevice(pyblasHandle_t *handle, int device) {
    return guarded([&] {
        if (!handle)
            return no_output("handle");
        *handle = nullptr;
        if (device < 0)
            return fail(PYBLAS_STATUS_INVALID_VALUE, "device is %d, must be at least 0", device);
        return create_gpu(device, handle);
    });
}

pyblasStatus_t pyblasCreateCpu(pyblasHandle_t *handle) {
    return guarded([&] {
        if (!handle)
            return no_output("handle");
        *handle = nullptr;
        return create_cpu(handle);
    });
}

pyblasStatus_t pyblasDestroy(pyblasHandle_t handle) {
    return guarded([&] { return handle ? destroy(handle) : no_handle(); });
}

pyblasStatus_t pyblasGetDevice(pyblasHandle_t handle, int *device) {
    return get(handle, device, "device", [&] { return handle->device.ordinal; });
}

pyblasStatus_t pyblasSetStream(pyblasHandle_t handle, pyblasStream_t stream) {
    return with_handle(handle, [&] {
        if (handle->device.engine == Engine::cpu && stream)
            return fail(PYBLAS_STATUS_NOT_SUPPORTED, "a CPU handle has no stream");
        handle->settings.stream = stream;
#ifdef PYBLAS_HAVE_CUDA
        handle->workspace.take_back();
#endif
        return kSuccess;
    });
}

pyblasStatus_t pyblasGetStream(pyblasHandle_t handle, pyblasStream_t *stream) {
    return get(handle, stream, "stream", [&] { return handle->settings.stream; });
}

pyblasStatus_t pyblasSetPointerMode(pyblasHandle_t handle, pyblasPointerMode_t mode) {
    return with_handle(handle, [&] {
        if (mode != PYBLAS_POINTER_MODE_HOST && mode != PYBLAS_POINTER_MODE_DEVICE)
            return fail(PYBLAS_STATUS_INVALID_VALUE, "pointer mode is %d, must be 0 (host) or 1 (device)", (int)mode);
        if (mode == PYBLAS_POINTER_MODE_DEVICE && handle->device.engine == Engine::cpu)
            return fail(PYBLAS_STATUS_NOT_SUPPORTED, "a CPU handle reads alpha and beta from host memory");
        handle->settings.scalars_on_host = mode == PYBLAS_POINTER_MODE_HOST;
        return kSuccess;
    });
}

pyblasStatus_t pyblasGetPointerMode(pyblasHandle_t handle, pyblasPointerMode_t *mode) {
    return get(handle, mode, "mode", [&] {
        return handle->settings.scalars_on_host ? PYBLAS_POINTER_MODE_HOST : PYBLAS_POINTER_MODE_DEVICE;
    });
}

pyblasStatus_t pyblasSetArrayMode(pyblasHandle_t handle, pyblasArrayMode_t mode) {
    return with_handle(handle, [&] {
        if (mode != PYBLAS_ARRAY_MODE_HOST && mode != PYBLAS_ARRAY_MODE_DEVICE)
            return fail(PYBLAS_STATUS_INVALID_VALUE, "array mode is %d, must be 0 (host) or 1 (device)", (int)mode);
        if (mode == PYBLAS_ARRAY_MODE_DEVICE && handle->device.engine == Engine::cpu)
            return fail(PYBLAS_STATUS_NOT_SUPPORTED, "a CPU handle reads arrays of pointers from host memory");
        handle->settings.arrays_on_host = mode == PYBLAS_ARRAY_MODE_HOST;
        return kSuccess;
    });
}

pyblasStatus_t pyblasGetArrayMode(pyblasHandle_t handle, pyblasArrayMode_t *mode) {
    return get(handle, mode, "mode",
               [&] { return handle->settings.arrays_on_host ? PYBLAS_ARRAY_MODE_HOST : PYBLAS_ARRAY_MODE_DEVICE; });
}

pyblasStatus_t pyblasSetComputeMode(pyblasHandle_t handle, pyblasComputeType_t mode) {
    return with_handle(handle, [&] { return set_compute_mode(handle, static_cast<int>(mode)); });
}

pyblasStatus_t pyblasGetComputeMode(pyblasHandle_t handle, pyblasComputeType_t *mode) {
    return get(handle, mode, "mode",
               [&] { return static_cast<pyblasComputeType_t>(compute_type(handle->settings.mode)); });
}

pyblasStatus_t pyblasSetBatchInvariant(pyblasHandle_t handle, int on) {
    return with_handle(handle, [&] {
        if (on != 0 && on != 1)
            return fail(PYBLAS_STATUS_INVALID_VALUE, "batch_invariant is %d, must be 0 or 1", on);
        handle->settings.batch_invariant = on == 1;
        return kSuccess;
    });
}

pyblasStatus_t pyblasGetBatchInvariant(pyblasHandle_t handle, int *on) {
    return get(handle, on, "on", [&] { return handle->settings.batch_invariant ? 1 : 0; });
}

namespace {

// Workspace lives on GPU handles; on a CPU handle the settings are accepted and mean nothing.
template <class Body>
Status with_workspace(pyblasHandle_t handle, [[maybe_unused]] Body body) noexcept {
    return with_handle(handle, [&] {
#ifdef PYBLAS_HAVE_CUDA
        if (handle->device.engine == Engine::gpu)
            return body(handle->workspace);
#endif
        return kSuccess;
    });
}

} // namespace

pyblasStatus_t pyblasSetWorkspace(pyblasHandle_t handle, void *workspace, size_t bytes) {
    return with_workspace(handle, [&](auto &owned) {
        if (!workspace && bytes)
            return fail(PYBLAS_STATUS_INVALID_VALUE, "workspace is NULL, but has %zu bytes", bytes);
        if (reinterpret_cast<uintptr_t>(workspace) % owned.kAlignment)
            return fail(PYBLAS_STATUS_INVALID_VALUE, "workspace is %p, must be aligned to %zu bytes", workspace,
                        owned.kAlignment);
        owned.give(workspace, bytes);
        return kSuccess;
    });
}

pyblasStatus_t pyblasSetWorkspaceLimit(pyblasHandle_t handle, size_t bytes) {
    return with_workspace(handle, [&](auto &owned) {
        owned.set_limit(bytes);
        return kSuccess;
    });
}

pyblasStatus_t pyblasGetWorkspaceLimit(pyblasHandle_t handle, size_t *bytes) {
    if (!bytes)
        return handle ? no_output("bytes") : no_handle();
    *bytes = 0;
    return with_workspace(handle, [&](auto &owned) {
        *bytes = owned.limit();
        return kSuccess;
    });
}

pyblasStatus_t pyblasFreeWorkspace(pyblasHandle_t handle) {
    return with_workspace(handle, [&]([[maybe_unused]] auto &owned) {
#ifdef PYBLAS_HAVE_CUDA
        PYBLAS_TRY(check_fork());
        const DeviceGuard guard(handle->device.ordinal);
        PYBLAS_TRY(guard.status());
        PYBLAS_TRY(handle->xt.free());
        return owned.free_owned();
#else
        return kSuccess;
#endif
    });
}

namespace {

// Products of host memory are a GPU handle's; on a CPU handle their settings are accepted and mean nothing.
template <class Body>
Status with_xt(pyblasHandle_t handle, [[maybe_unused]] Body body) noexcept {
    return with_handle(handle, [&] {
#ifdef PYBLAS_HAVE_CUDA
        if (handle->device.engine == Engine::gpu)
            return body(handle->xt);
#endif
        return kSuccess;
    });
}

} // namespace

pyblasStatus_t pyblasXtSetDevices(pyblasHandle_t handle, int count, const int *devices) {
    return with_xt(handle, [&](auto &xt) {
        if (count < 0 || (count > 0 && !devices))
            return count < 0 ? fail(PYBLAS_STATUS_INVALID_VALUE, "count is %d, must be at least 0", count)
                             : no_output("devices");
        return xt.choose_devices(count, devices);
    });
}

pyblasStatus_t pyblasXtSetMemoryLimit(pyblasHandle_t handle, size_t bytes) {
    return with_xt(handle, [&](auto &xt) {
        xt.memory_limit = bytes;
        return kSuccess;
    });
}

pyblasStatus_t pyblasXtGetMemoryLimit(pyblasHandle_t handle, size_t *bytes) {
    if (!bytes)
        return handle ? no_output("bytes") : no_handle();
    *bytes = 0;
    return with_xt(handle, [&](auto &xt) {
        *bytes = xt.memory_limit;
        return kSuccess;
    });
}

pyblasStatus_t pyblasXtSetProgress(pyblasHandle_t handle, pyblasXtProgress_t progress, void *context) {
    return with_xt(handle, [&](auto &xt) {
        xt.progress = progress;
        xt.progress_context = context;
        return kSuccess;
    });
}

pyblasStatus_t pyblasSetKernel(pyblasHandle_t handle, const char *name) {
    return with_handle(handle, [&] { return set_kernel(handle, name); });
}

pyblasStatus_t pyblasGetKernel(pyblasHandle_t handle, const char **name) {
    return get(handle, name, "name", [&] { return handle->settings.forced ? handle->settings.forced->name : ""; });
}

namespace {

// A product that is only asked about, with the least leading dimensions, contiguous batches and beta = 0. Its pointers
// are judged, never followed: one number stands for all.
Verdict imagine(Form form, const pyblasContext &handle, pyblasOperation_t transa, pyblasOperation_t transb, int64_t m,
                int64_t n, int64_t k, int64_t batch, Problem *problem) {
    static const float one = 1.0f, zero = 0.0f;
    const bool ta = transa != PYBLAS_OP_N, tb = transb != PYBLAS_OP_N;
    const int64_t lda = std::max<int64_t>(1, ta ? k : m), ldb = std::max<int64_t>(1, tb ? n : k),
                  ldc = std::max<int64_t>(1, m);
    // A matrix of so many elements that its stride overflows is refused for its own span.
    const auto stride = [](int64_t ld, int64_t vectors) {
        int64_t product = 0;
        return __builtin_mul_overflow(ld, vectors, &product) ? INT64_MAX : product;
    };
    const Call call = call_of(form, false, transa, transb, m, n, k, &one, {&one, lda, stride(lda, ta ? m : k)},
                              {&one, ldb, stride(ldb, tb ? k : n)}, &zero, {&one, ldc, stride(ldc, n)}, batch);
    const Verdict verdict = validate(call, true, true, problem);
    problem->mode = handle.settings.mode;
    problem->batch_invariant = handle.settings.batch_invariant;
    return verdict;
}

} // namespace

pyblasStatus_t pyblasSelectedKernel(pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb,
                                    int64_t m, int64_t n, int64_t k, int64_t batchCount, const char **name,
                                    const char **reason) {
    return with_handle(handle, [&] {
        thread_local char text[256];
        if (!name || !reason)
            return no_output(name ? "reason" : "name");
        Problem problem;
        const Verdict verdict = imagine(Form::selected_kernel, *handle, transa, transb, m, n, k, batchCount, &problem);
        PYBLAS_TRY(verdict.status);
        if (verdict.nothing_to_do) {
            *name = "";
            *reason = "the result is empty: nothing runs";
            return kSuccess;
        }
        size_t limit = 0;
#ifdef PYBLAS_HAVE_CUDA
        limit = handle->workspace.available();
#endif
        Selection selection;
        PYBLAS_TRY(select(problem, handle->device, limit, handle->settings.forced, &selection));
        const int length =
            handle->settings.forced
                ? std::snprintf(text, sizeof text, "forced by name; predicted %.3g us", 1e6 * selection.seconds)
                : std::snprintf(text, sizeof text, "least predicted time of %d legal kernels: %.3g us", selection.legal,
                                1e6 * selection.seconds);
        if (selection.workspace > 0)
            std::snprintf(text + length, sizeof text - static_cast<size_t>(length), ", with %zu bytes of workspace",
                          selection.workspace);
        *name = selection.kernel->name;
        *reason = text;
        return kSuccess;
    });
}

pyblasStatus_t pyblasXtPredict(pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb, int64_t m,
                               int64_t n, int64_t k, int64_t batchCount, double *seconds) {
#ifdef PYBLAS_HAVE_CUDA
    if (handle && handle->device.engine == Engine::gpu)
        PYBLAS_TRY(check_fork());
#endif
    return with_handle(handle, [&] {
        if (!seconds)
            return no_output("seconds");
        *seconds = 0;
        Problem problem;
        const Verdict verdict = imagine(Form::xt_predict, *handle, transa, transb, m, n, k, batchCount, &problem);
        if (verdict.status != kSuccess || verdict.nothing_to_do)
            return verdict.status;
#ifdef PYBLAS_HAVE_CUDA
        if (handle->device.engine == Engine::gpu) {
            const DeviceGuard guard(handle->device.ordinal);
            PYBLAS_TRY(guard.status());
            // A product without depth reads C alone, which the CPU does as soon.
            return problem.k == 0 ? xt::predict_on_cpu(problem, seconds)
                                  : handle->xt.predict(*handle, problem, seconds);
        }
#endif
        return xt::predict_on_cpu(problem, seconds);
    });
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

// Each product has four entries: int and int64_t sizes, column- and row-major.
#define PYBLAS_SGEMM_ENTRY(name, Int, row_major, reach)                                                                \
    pyblasStatus_t name(pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb, Int m, Int n,       \
                        Int k, const float *alpha, const float *A, Int lda, const float *B, Int ldb,                   \
                        const float *beta, float *C, Int ldc) {                                                        \
        return multiply(                                                                                               \
            handle,                                                                                                    \
            call_of(Form::sgemm, row_major, transa, transb, m, n, k, alpha, {A, lda}, {B, ldb}, beta, {C, ldc}),       \
            reach);                                                                                                    \
    }
PYBLAS_SGEMM_ENTRY(pyblasSgemm, int, false, Reach::one_memory)
PYBLAS_SGEMM_ENTRY(pyblasSgemm_64, int64_t, false, Reach::one_memory)
PYBLAS_SGEMM_ENTRY(pyblasSgemmRowMajor, int, true, Reach::one_memory)
PYBLAS_SGEMM_ENTRY(pyblasSgemmRowMajor_64, int64_t, true, Reach::one_memory)
PYBLAS_SGEMM_ENTRY(pyblasXtSgemm, int, false, Reach::any_memory)
PYBLAS_SGEMM_ENTRY(pyblasXtSgemm_64, int64_t, false, Reach::any_memory)
PYBLAS_SGEMM_ENTRY(pyblasXtSgemmRowMajor, int, true, Reach::any_memory)
PYBLAS_SGEMM_ENTRY(pyblasXtSgemmRowMajor_64, int64_t, true, Reach::any_memory)

#define PYBLAS_STRIDED_ENTRY(name, Int, row_major, reach)                                                              \
    pyblasStatus_t name(pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb, Int m, Int n,       \
                        Int k, const float *alpha, const float *A, Int lda, long long int strideA, const float *B,     \
                        Int ldb, long long int strideB, const float *beta, float *C, Int ldc, long long int strideC,   \
                        Int batchCount) {                                                                              \
        return multiply(handle,                                                                                        \
                        call_of(Form::strided_batched, row_major, transa, transb, m, n, k, alpha, {A, lda, strideA},   \
                                {B, ldb, strideB}, beta, {C, ldc, strideC}, batchCount),                               \
                        reach);                                                                                        \
    }
PYBLAS_STRIDED_ENTRY(pyblasSgemmStridedBatched, int, false, Reach::one_memory)
PYBLAS_STRIDED_ENTRY(pyblasSgemmStridedBatched_64, int64_t, false, Reach::one_memory)
PYBLAS_STRIDED_ENTRY(pyblasSgemmStridedBatchedRowMajor, int, true, Reach::one_memory)
PYBLAS_STRIDED_ENTRY(pyblasSgemmStridedBatchedRowMajor_64, int64_t, true, Reach::one_memory)
PYBLAS_STRIDED_ENTRY(pyblasXtSgemmStridedBatched, int, false, Reach::any_memory)
PYBLAS_STRIDED_ENTRY(pyblasXtSgemmStridedBatched_64, int64_t, false, Reach::any_memory)
PYBLAS_STRIDED_ENTRY(pyblasXtSgemmStridedBatchedRowMajor, int, true, Reach::any_memory)
PYBLAS_STRIDED_ENTRY(pyblasXtSgemmStridedBatchedRowMajor_64, int64_t, true, Reach::any_memory)

#define PYBLAS_BATCHED_ENTRY(name, Int, row_major)                                                                     \
    pyblasStatus_t name(pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb, Int m, Int n,       \
                        Int k, const float *alpha, const float *const Aarray[], Int lda, const float *const Barray[],  \
                        Int ldb, const float *beta, float *const Carray[], Int ldc, Int batchCount) {                  \
        return multiply(handle, call_of(Form::batched, row_major, transa, transb, m, n, k, alpha, {Aarray, lda},       \
                                        {Barray, ldb}, beta, {Carray, ldc}, batchCount));                              \
    }
PYBLAS_BATCHED_ENTRY(pyblasSgemmBatched, int, false)
PYBLAS_BATCHED_ENTRY(pyblasSgemmBatched_64, int64_t, false)
PYBLAS_BATCHED_ENTRY(pyblasSgemmBatchedRowMajor, int, true)
PYBLAS_BATCHED_ENTRY(pyblasSgemmBatchedRowMajor_64, int64_t, true)

#define PYBLAS_EX_ENTRY(name, Int, row_major)                                                                          \
    pyblasStatus_t name(pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb, Int m, Int n,       \
                        Int k, const void *alpha, const void *A, pyblasDataType_t Atype, Int lda, const void *B,       \
                        pyblasDataType_t Btype, Int ldb, const void *beta, void *C, pyblasDataType_t Ctype, Int ldc,   \
                        pyblasComputeType_t computeType, pyblasGemmAlgo_t) {                                           \
        return multiply(handle, call_of(Form::ex, row_major, transa, transb, m, n, k, alpha, {A, lda, 0, Atype},       \
                                        {B, ldb, 0, Btype}, beta, {C, ldc, 0, Ctype}, 1, computeType));                \
    }
PYBLAS_EX_ENTRY(pyblasGemmEx, int, false)
PYBLAS_EX_ENTRY(pyblasGemmEx_64, int64_t, false)
PYBLAS_EX_ENTRY(pyblasGemmExRowMajor, int, true)
PYBLAS_EX_ENTRY(pyblasGemmExRowMajor_64, int64_t, true)

#define PYBLAS_STRIDED_EX_ENTRY(name, Int, row_major)                                                                  \
    pyblasStatus_t name(pyblasHandle_t handle, pyblasOperation_t transa, pyblasOperation_t transb, Int m, Int n,       \
                        Int k, const void *alpha, const void *A, pyblasDataType_t Atype, Int lda,                      \
                        long long int strideA, const void *B, pyblasDataType_t Btype, Int ldb, long long int strideB,  \
                        const void *beta, void *C, pyblasDataType_t Ctype, Int ldc, long long int strideC,             \
                        Int batchCount, pyblasComputeType_t computeType, pyblasGemmAlgo_t) {                           \
        return multiply(handle, call_of(Form::strided_batched_ex, row_major, transa, transb, m, n, k, alpha,           \
                                        {A, lda, strideA, Atype}, {B, ldb, strideB, Btype}, beta,                      \
                                        {C, ldc, strideC, Ctype}, batchCount, computeType));                           \
    }
PYBLAS_STRIDED_EX_ENTRY(pyblasGemmStridedBatchedEx, int, false)
PYBLAS_STRIDED_EX_ENTRY(pyblasGemmStridedBatchedEx_64, int64_t, false)
PYBLAS_STRIDED_EX_ENTRY(pyblasGemmStridedBatchedExRowMajor, int, true)
PYBLAS_STRIDED_EX_ENTRY(pyblasGemmStridedBatchedExRowMajor_64, int64_t, true)
