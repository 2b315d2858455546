#include "xt/cpu_rates.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <new>

#include "dispatch.hpp"
#include "engine.hpp"
#include "xt/seen.hpp"

namespace pyblas::xt {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct CpuRates {
    double flops = 0; // of a product of three large matrices
    double bytes = 0; // per second, of one that reads each number once
};

Status time_product(int64_t m, int64_t n, int64_t k, float *memory, double *seconds) {
    Problem problem;
    problem.m = m, problem.n = n, problem.k = k;
    problem.alpha.value = 1;
    problem.a = {memory, nullptr, m, 0, Dtype::f32};
    problem.b = {memory + m * k, nullptr, k, 0, Dtype::f32};
    problem.c = {memory + m * k + k * n, nullptr, m, 0, Dtype::f32};
    const Device device = cpu::device();
    Selection selection;
    PYBLAS_TRY(select(problem, device, 0, nullptr, &selection));
    const Launch launch = {&device, nullptr, nullptr, 0};
    *seconds = 1e9;
    for (int i = 0; i < 3; ++i) { // the first wakes threads and may load a BLAS
        const auto begin = Clock::now();
        PYBLAS_TRY(selection.kernel->launch(problem, launch));
        *seconds = std::min(*seconds, seconds_since(begin));
    }
    return kSuccess;
}

Status measure_cpu(CpuRates *rates) {
    constexpr int64_t kSide = 1024, kLong = 4096;
    const size_t count = static_cast<size_t>(std::max(3 * kSide * kSide, kLong * kLong + 2 * kLong));
    const std::unique_ptr<float[]> memory(new (std::nothrow) float[count]);
    if (!memory)
        return fail(PYBLAS_STATUS_ALLOC_FAILED, "out of host memory for %zu floats", count);
    std::fill(memory.get(), memory.get() + count, 1.0f);
    double square = 0, vector = 0;
    PYBLAS_TRY(time_product(kSide, kSide, kSide, memory.get(), &square));
    PYBLAS_TRY(time_product(kLong, 1, kLong, memory.get(), &vector));
    rates->flops = 2.0 * kSide * kSide * kSide / square;
    rates->bytes = 4.0 * kLong * kLong / vector;
    return kSuccess;
}

} // namespace

Status predict_on_cpu(const Problem &p, double *seconds) {
    static std::mutex mutex;
    static CpuRates rates;
    if (expects(p, Where(), seconds))
        return kSuccess;
    const std::lock_guard<std::mutex> lock(mutex);
    if (rates.flops == 0)
        PYBLAS_TRY(measure_cpu(&rates));
    const double m = static_cast<double>(p.m), n = static_cast<double>(p.n), k = static_cast<double>(p.k);
    const double batch = static_cast<double>(p.batch);
    const double predicted =
        std::max(2 * batch * m * n * k / rates.flops, 4 * batch * (m * k + k * n + 2 * m * n) / rates.bytes);
    *seconds = note_prediction(p, Where(), predicted);
    return kSuccess;
}

} // namespace pyblas::xt
