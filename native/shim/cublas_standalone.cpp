// libpyblas_cublas: cuBLAS's interface without cuBLAS. A handle is a device, a stream and settings; what is not served
// answers CUBLAS_STATUS_NOT_SUPPORTED.
#include <memory>
#include <mutex>
#include <new>

#include "cublas_target.hpp"

using namespace pyblas::shim;

namespace {

// The interface that this library was written against, which is what a program may ask for.
constexpr int kMajor = 13, kMinor = 0, kPatch = 2;

} // namespace

struct cublasContext {
    explicit cublasContext(int device) : twin(device) {}

    std::mutex mutex; // of the settings
    Twin twin;
    Settled settled = {nullptr, CUBLAS_POINTER_MODE_HOST, CUBLAS_DEFAULT_MATH};
    cublasAtomicsMode_t atomics = CUBLAS_ATOMICS_NOT_ALLOWED; // nothing here uses any
    int sm_count_target = 0;
};

namespace {

// Reads or changes the settings of a handle.
template <class Body>
cublasStatus_t with(cublasHandle_t handle, Body body) noexcept {
    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    const std::lock_guard<std::mutex> lock(handle->mutex);
    return body();
}

template <class T>
cublasStatus_t get(cublasHandle_t handle, T *out, T (*read)(const cublasContext &)) noexcept {
    return with(handle, [&] {
        if (!out)
            return CUBLAS_STATUS_INVALID_VALUE;
        *out = read(*handle);
        return CUBLAS_STATUS_SUCCESS;
    });
}

const char *described(cublasStatus_t status) {
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "success";
    case CUBLAS_STATUS_NOT_INITIALIZED:
        return "no handle, or no GPU to use";
    case CUBLAS_STATUS_ALLOC_FAILED:
        return "out of memory";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "an argument is out of range";
    case CUBLAS_STATUS_ARCH_MISMATCH:
        return "no code for this GPU";
    case CUBLAS_STATUS_MAPPING_ERROR:
        return "memory cannot be mapped";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "a kernel or earlier work failed";
    case CUBLAS_STATUS_INTERNAL_ERROR:
        return "a fault of the library";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "not served by pyblas_sgemm";
    case CUBLAS_STATUS_LICENSE_ERROR:
        return "no licence";
    }
    return "no status of cuBLAS";
}

} // namespace

namespace pyblas::shim {

Target *target_of(const Call &call) noexcept {
    return static_cast<Target *>(call.handle); // a cublasContext
}

// Modes that allow less than float32, or ask for its accuracy by other means, are served by what is at least as exact.
int exact_compute(int compute) {
    const bool allows = compute == CUBLAS_COMPUTE_32F_FAST_16F || compute == CUBLAS_COMPUTE_32F_FAST_16BF ||
                        compute == CUBLAS_COMPUTE_32F_EMULATED_16BFX9;
    return allows ? CUBLAS_COMPUTE_32F : compute;
}
int exact_math(int math) {
    const int mode = math & ~CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
    return mode == CUBLAS_TENSOR_OP_MATH || mode == CUBLAS_FP32_EMULATED_BF16X9_MATH ? CUBLAS_DEFAULT_MATH : mode;
}

Verdict take(Target *target, const Call &asked) noexcept {
    Call call = asked;
    call.compute = exact_compute(asked.compute);
    auto *handle = reinterpret_cast<cublasHandle_t>(target);
    if (!handle)
        return refused("no handle", CUBLAS_STATUS_NOT_INITIALIZED);
    Settled settled;
    {
        const std::lock_guard<std::mutex> lock(handle->mutex);
        settled = handle->settled;
        settled.math_mode = exact_math(settled.math_mode);
    }
    const Verdict verdict = handle->twin.queue(call, settled);
    if (verdict.status != CUBLAS_STATUS_INVALID_VALUE || call.form != Batch::strided || call.batch < 2)
        return verdict;
    // C matrices that meet are refused as a batch. One after another they are what cuBLAS would leave, or the first is
    // refused for what else is wrong.
    for (int64_t i = 0; i < call.batch; ++i) {
        Call single = call;
        single.form = Batch::one;
        single.batch = 1;
        for (Operand *operand : {&single.a, &single.b, &single.c})
            if (operand->data)
                operand->data = static_cast<const char *>(operand->data) +
                                operand->stride * i * (operand->type == CUDA_R_32F ? 4 : 2);
        if (const Verdict each = handle->twin.queue(single, settled); each.declined)
            return each;
    }
    return {nullptr, CUBLAS_STATUS_SUCCESS};
}

void *real_function(Target *, Entry) noexcept {
    return nullptr;
}

} // namespace pyblas::shim

/* ---- handles ----------------------------------------------------------------------------------------------------- */

cublasStatus_t cublasCreate_v2(cublasHandle_t *handle) {
    if (!handle)
        return CUBLAS_STATUS_INVALID_VALUE;
    *handle = nullptr;
    std::unique_ptr<cublasContext> made(new (std::nothrow) cublasContext(driver::current_device()));
    if (!made)
        return CUBLAS_STATUS_ALLOC_FAILED;
    if (!made->twin.handle())
        return CUBLAS_STATUS_NOT_INITIALIZED;
    *handle = made.release();
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t streamId) {
    return with(handle, [&] {
        handle->settled.stream = streamId;
        return CUBLAS_STATUS_SUCCESS;
    });
}

cublasStatus_t cublasGetStream_v2(cublasHandle_t handle, cudaStream_t *streamId) {
    return get<cudaStream_t>(handle, streamId, [](const cublasContext &c) { return c.settled.stream; });
}

cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode) {
    return with(handle, [&] {
        if (mode != CUBLAS_POINTER_MODE_HOST && mode != CUBLAS_POINTER_MODE_DEVICE)
            return CUBLAS_STATUS_INVALID_VALUE;
        handle->settled.pointer_mode = mode;
        return CUBLAS_STATUS_SUCCESS;
    });
}

cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t *mode) {
    return get<cublasPointerMode_t>(
        handle, mode, [](const cublasContext &c) { return static_cast<cublasPointerMode_t>(c.settled.pointer_mode); });
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
    return with(handle, [&] {
        const int known = mode & ~CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
        if (known < CUBLAS_DEFAULT_MATH || known > CUBLAS_FP32_EMULATED_BF16X9_MATH)
            return CUBLAS_STATUS_INVALID_VALUE;
        handle->settled.math_mode = mode;
        return CUBLAS_STATUS_SUCCESS;
    });
}

cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t *mode) {
    return get<cublasMath_t>(handle, mode,
                             [](const cublasContext &c) { return static_cast<cublasMath_t>(c.settled.math_mode); });
}

cublasStatus_t cublasSetAtomicsMode(cublasHandle_t handle, cublasAtomicsMode_t mode) {
    return with(handle, [&] {
        if (mode != CUBLAS_ATOMICS_NOT_ALLOWED && mode != CUBLAS_ATOMICS_ALLOWED)
            return CUBLAS_STATUS_INVALID_VALUE;
        handle->atomics = mode;
        return CUBLAS_STATUS_SUCCESS;
    });
}

cublasStatus_t cublasGetAtomicsMode(cublasHandle_t handle, cublasAtomicsMode_t *mode) {
    return get<cublasAtomicsMode_t>(handle, mode, [](const cublasContext &c) { return c.atomics; });
}

cublasStatus_t cublasSetSmCountTarget(cublasHandle_t handle, int smCountTarget) {
    return with(handle, [&] {
        if (smCountTarget < 0)
            return CUBLAS_STATUS_INVALID_VALUE;
        handle->sm_count_target = smCountTarget;
        return CUBLAS_STATUS_SUCCESS;
    });
}

cublasStatus_t cublasGetSmCountTarget(cublasHandle_t handle, int *smCountTarget) {
    return get<int>(handle, smCountTarget, [](const cublasContext &c) { return c.sm_count_target; });
}

// Judged as cuBLAS does, and not used: the library's kernels want more than programs give cuBLAS, and own what they
// need.
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace, size_t) {
    return with(handle, [&] {
        return reinterpret_cast<uintptr_t>(workspace) % 256 ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_SUCCESS;
    });
}

/* ---- the library ------------------------------------------------------------------------------------------------- */

cublasStatus_t cublasGetVersion_v2(cublasHandle_t handle, int *version) {
    return get<int>(handle, version, [](const cublasContext &) { return kMajor * 10000 + kMinor * 100 + kPatch; });
}

cublasStatus_t cublasGetProperty(libraryPropertyType type, int *value) {
    constexpr int properties[] = {kMajor, kMinor, kPatch};
    if (!value || type < MAJOR_VERSION || type > PATCH_LEVEL)
        return CUBLAS_STATUS_INVALID_VALUE;
    *value = properties[type];
    return CUBLAS_STATUS_SUCCESS;
}

size_t cublasGetCudartVersion(void) {
    return static_cast<size_t>(pyblasGetBuildCudaVersion());
}

const char *cublasGetStatusName(cublasStatus_t status) {
#define NAME(status)                                                                                                   \
    case status:                                                                                                       \
        return #status;
    switch (status) {
        NAME(CUBLAS_STATUS_SUCCESS)
        NAME(CUBLAS_STATUS_NOT_INITIALIZED)
        NAME(CUBLAS_STATUS_ALLOC_FAILED)
        NAME(CUBLAS_STATUS_INVALID_VALUE)
        NAME(CUBLAS_STATUS_ARCH_MISMATCH)
        NAME(CUBLAS_STATUS_MAPPING_ERROR)
        NAME(CUBLAS_STATUS_EXECUTION_FAILED)
        NAME(CUBLAS_STATUS_INTERNAL_ERROR)
        NAME(CUBLAS_STATUS_NOT_SUPPORTED)
        NAME(CUBLAS_STATUS_LICENSE_ERROR)
    }
#undef NAME
    return "CUBLAS_STATUS_UNKNOWN";
}

const char *cublasGetStatusString(cublasStatus_t status) {
    return described(status);
}

/* ---- everything else --------------------------------------------------------------------------------------------- */

// One answer under every name, so that a program links; the callers' arguments do not matter to it.
extern "C" cublasStatus_t pyblas_shim_absent(void) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
}
#define ABSENT(name) extern "C" CUBLASAPI cublasStatus_t name(void) __attribute__((alias("pyblas_shim_absent")));
#include "cublas_absent.inc"
