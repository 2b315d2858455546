#include "blas_call.hpp"

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "blas_engine.hpp"

namespace pyblas::shim {

namespace {

// Below this, where an extent is small, OpenBLAS with vectors of 512 bits is as fast or faster, also by what a call
// costs. Of 1000 mixed shapes none that is taken took more than 1.1 times as long.
constexpr double kMinThinFlops = 2e6;
constexpr int64_t kThin = 64;

// A preloaded library has its thread's variables at a fixed place.
__attribute__((tls_model("initial-exec"))) thread_local bool computing = false;

double flops(const HostProduct &p) {
    return 2.0 * double(p.m) * double(p.n) * double(p.k) * double(p.batch);
}

bool little_work(const HostProduct &p) {
    static const bool asked = [] {
        const char *text = std::getenv("PYBLAS_SGEMM_MIN_FLOPS");
        return text && *text;
    }();
    const double least = asked ? settings().min_flops : std::min({p.m, p.n, p.k}) <= kThin ? kMinThinFlops : 0;
    return flops(p) < least;
}

pyblasOperation_t operation(char trans) {
    return trans == 'N' ? PYBLAS_OP_N : trans == 'T' ? PYBLAS_OP_T : PYBLAS_OP_C;
}

// On a CPU handle the entries for host memory are the plain ones.
pyblasStatus_t multiply(pyblasHandle_t handle, const HostProduct &p) {
    const auto single = p.row_major ? pyblasXtSgemmRowMajor_64 : pyblasXtSgemm_64;
    const auto batched = p.row_major ? pyblasXtSgemmStridedBatchedRowMajor_64 : pyblasXtSgemmStridedBatched_64;
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

// What comes of it: an engine that did it, or nobody, and why.
struct Outcome {
    const Engine *engine;
    Verdict verdict;
};

// Whether C is as it was, or need not be, after a GPU has failed.
bool may_begin_again(pyblasStatus_t status, const HostProduct &p) {
    return p.beta == 0 || status == PYBLAS_STATUS_NOT_INITIALIZED || status == PYBLAS_STATUS_NOT_SUPPORTED;
}

Outcome compute(const Engine *engine, const HostProduct &p, bool has_real) {
    pyblasStatus_t status = multiply(engine->handle, p);
    if (status == PYBLAS_STATUS_SUCCESS)
        return {engine, {nullptr}};
    if (status == PYBLAS_STATUS_INVALID_VALUE && p.batch > 1) {
        // The arguments were judged before, so it is the C matrices that meet. One after another they may.
        if (has_real)
            return {nullptr, {"the C matrices overlap"}};
        for (int64_t i = 0; i < p.batch; ++i)
            if (compute(engine, item(p, i), false).verdict.reason)
                return {nullptr, {"the engine failed", true}};
        return {engine, {nullptr}};
    }
    // A GPU that is full, or one that the parent of this process had, leaves the product to the CPU.
    const bool spoilt = engine->on_gpu && !may_begin_again(status, p);
    if (engine->on_gpu && !spoilt) {
        engine = cpu_engine();
        status = engine && engine->handle ? multiply(engine->handle, p) : status;
        if (status == PYBLAS_STATUS_SUCCESS)
            return {engine, {nullptr}};
    }
    return {nullptr, {status == PYBLAS_STATUS_ALLOC_FAILED ? "out of memory" : "the engine failed", spoilt}};
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

Verdict take(const Function &function, const HostProduct &p, bool has_real) noexcept {
    if (has_real && little_work(p))
        return {"less work than PYBLAS_SGEMM_MIN_FLOPS"};
    const Within guard;
    const Engine *engine = p.row_major ? engine_for(operation(p.transb), operation(p.transa), p.n, p.m, p.k, p.batch)
                                       : engine_for(operation(p.transa), operation(p.transb), p.m, p.n, p.k, p.batch);
    if (!engine || !engine->handle)
        return {"the engine does not start"};
    follow_threads(*engine, function);
    if (!recording())
        return compute(engine, p, has_real).verdict;
    std::optional<Check> check;
    if (sample())
        check.emplace(by_columns(function, item(p, p.batch - 1), engine->compute), fetch_from_host, nullptr);
    const double begin = now();
    const Outcome outcome = compute(engine, p, has_real);
    if (outcome.verdict.reason)
        return outcome.verdict;
    Row *row = record(shape_of(function, p, outcome.engine->compute), nullptr, now() - begin);
    if (check)
        check->compare(row);
    return {nullptr};
}

void record_declined(const Function &function, const HostProduct &p, const char *reason, double seconds) noexcept {
    (void)record(shape_of(function, p, ""), reason, seconds);
}

} // namespace pyblas::shim
