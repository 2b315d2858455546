#include "blas_call.hpp"

#include <atomic>
#include <cstdlib>
#include <new>
#include <optional>

#include "pyblas_sgemm.h"

namespace pyblas::shim {

namespace {

// Below this a call of OpenBLAS is over before ours has looked at its arguments: 20 x 20 x 20 on Zen 5.
constexpr double kMinFlops = 16000;

// A preloaded library has its thread's variables at a fixed place.
__attribute__((tls_model("initial-exec"))) thread_local bool computing = false;

double min_flops() noexcept {
    static const bool asked = [] {
        const char *text = std::getenv("PYBLAS_SGEMM_MIN_FLOPS");
        return text && *text;
    }();
    return asked ? settings().min_flops : kMinFlops;
}

// ---- the engine ----------------------------------------------------------------------------------------------------

struct Engine {
    pyblasHandle_t handle = nullptr;
    const char *compute = "";
    bool follows = false; // the real library's number of threads, since nobody asked for another
    int most_threads = 1;
};

const char *mode_name(pyblasHandle_t handle) {
    pyblasComputeType_t mode = PYBLAS_COMPUTE_32F;
    (void)pyblasGetComputeMode(handle, &mode);
    return mode == PYBLAS_COMPUTE_32F_PEDANTIC    ? "fp32_pedantic"
           : mode == PYBLAS_COMPUTE_32F_FAST_TF32 ? "tf32"
                                                  : "fp32";
}

// Made once and kept until the process is gone. No lock, which a fork might find taken: of two threads that make one at
// the same time, one gives its own back.
const Engine *cpu_engine() noexcept {
    static std::atomic<const Engine *> only{nullptr};
    const Engine *engine = only.load(std::memory_order_acquire);
    if (engine)
        return engine;
    auto *made = new (std::nothrow) Engine;
    if (!made)
        return nullptr;
    if (pyblasCreateCpu(&made->handle) == PYBLAS_STATUS_SUCCESS) {
        made->compute = mode_name(made->handle);
        const char *threads = std::getenv("PYBLAS_SGEMM_THREADS");
        made->follows = !threads || !*threads;
        made->most_threads = pyblasGetNumThreads();
    }
    const Engine *none = nullptr;
    if (only.compare_exchange_strong(none, made))
        return made;
    (void)pyblasDestroy(made->handle);
    delete made;
    return none;
}

// Whether the engine multiplies by the very library that the program calls, which it then has set to one thread.
bool shares_blas(const Function &function) noexcept {
    pyblasCpuInfo_t info;
    return pyblasCpuInfo(&info) == PYBLAS_STATUS_SUCCESS && real_is(function, info.blas_path);
}

// A program that has told its BLAS to use fewer threads, for example because it runs several of its own, means us too.
void follow_threads(const Engine &engine, const Function &function) noexcept {
    static std::atomic<int> followed{0};
    const int threads = real_threads(function);
    const int before = followed.load(std::memory_order_relaxed);
    if (threads <= 0 || threads == before || (before != 0 && shares_blas(function)))
        return;
    if (pyblasSetNumThreads(threads < engine.most_threads ? threads : engine.most_threads) == PYBLAS_STATUS_SUCCESS)
        followed.store(threads, std::memory_order_relaxed);
}

pyblasOperation_t operation(char trans) {
    return trans == 'N' ? PYBLAS_OP_N : trans == 'T' ? PYBLAS_OP_T : PYBLAS_OP_C;
}

pyblasStatus_t multiply(pyblasHandle_t handle, const HostProduct &p) {
    const auto single = p.row_major ? pyblasSgemmRowMajor_64 : pyblasSgemm_64;
    const auto batched = p.row_major ? pyblasSgemmStridedBatchedRowMajor_64 : pyblasSgemmStridedBatched_64;
    return p.batch == 1 ? single(handle, operation(p.transa), operation(p.transb), p.m, p.n, p.k, &p.alpha, p.a, p.lda,
                                 p.b, p.ldb, &p.beta, p.c, p.ldc)
                        : batched(handle, operation(p.transa), operation(p.transb), p.m, p.n, p.k, &p.alpha, p.a, p.lda,
                                  p.stride_a, p.b, p.ldb, p.stride_b, &p.beta, p.c, p.ldc, p.stride_c, p.batch);
}

HostProduct item(const HostProduct &p, int64_t index) {
    HostProduct one = p;
    one.a += index * p.stride_a;
    one.b += index * p.stride_b;
    one.c += index * p.stride_c;
    one.batch = 1;
    return one;
}

// ---- the record ----------------------------------------------------------------------------------------------------

Shape shape_of(const Function &function, const HostProduct &p, const char *compute) {
    return {function.name, Type::f32, Type::f32, compute, p.transa, p.transb, p.m, p.n, p.k, p.batch};
}

// The product as the ledger looks at it, by columns.
Product by_columns(const Function &function, const HostProduct &p, const char *compute) {
    const Shape shape = shape_of(function, p, compute);
    if (!p.row_major)
        return {shape, p.alpha, p.beta, p.a, p.b, p.c, p.lda, p.ldb, p.ldc};
    Shape turned = shape;
    turned.m = p.n;
    turned.n = p.m;
    turned.transa = p.transb;
    turned.transb = p.transa;
    return {turned, p.alpha, p.beta, p.b, p.a, p.c, p.ldb, p.lda, p.ldc};
}

// ---- taking a call -------------------------------------------------------------------------------------------------

// What the engine makes of it; nullptr if it is done.
const char *compute(const Engine &engine, const HostProduct &p, bool has_real) {
    const pyblasStatus_t status = multiply(engine.handle, p);
    if (status == PYBLAS_STATUS_SUCCESS)
        return nullptr;
    if (status != PYBLAS_STATUS_INVALID_VALUE || p.batch == 1)
        return status == PYBLAS_STATUS_ALLOC_FAILED ? "out of memory" : "the engine failed";
    // The arguments were judged before, so it is the C matrices that meet. One after another they may.
    if (has_real)
        return "the C matrices overlap";
    for (int64_t i = 0; i < p.batch; ++i)
        if (multiply(engine.handle, item(p, i)) != PYBLAS_STATUS_SUCCESS)
            return "the engine failed";
    return nullptr;
}

} // namespace

Within::Within() noexcept {
    computing = true;
}

Within::~Within() {
    computing = false;
}

bool within() noexcept {
    return computing;
}

const char *take(const Function &function, const HostProduct &p, bool has_real) noexcept {
    if (has_real && 2.0 * double(p.m) * double(p.n) * double(p.k) * double(p.batch) < min_flops())
        return "less work than PYBLAS_SGEMM_MIN_FLOPS";
    const Engine *engine = cpu_engine();
    if (!engine || !engine->handle)
        return "the engine does not start";
    if (engine->follows)
        follow_threads(*engine, function);
    const Within guard;
    if (!recording())
        return compute(*engine, p, has_real);
    std::optional<Check> check;
    if (sample())
        check.emplace(by_columns(function, item(p, p.batch - 1), engine->compute), fetch_from_host, nullptr);
    const double begin = now();
    if (const char *reason = compute(*engine, p, has_real))
        return reason;
    Row *row = record(shape_of(function, p, engine->compute), nullptr, now() - begin);
    if (check)
        check->compare(row);
    return nullptr;
}

void record_declined(const Function &function, const HostProduct &p, const char *reason, double seconds) noexcept {
    (void)record(shape_of(function, p, ""), reason, seconds);
}

} // namespace pyblas::shim
