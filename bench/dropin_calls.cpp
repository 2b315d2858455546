/* What a call costs a program under the shim for a host BLAS: a small product by the real library, through the shim,
 * and by the C interface. Nanoseconds, the best of many groups. PYBLAS_SGEMM_MIN_FLOPS=0 has the shim take it.
 *
 *   L="$(pyblas-sgemm --lib-dir)"
 *   c++ -O2 -std=c++17 bench/dropin_calls.cpp -o calls -I "$(pyblas-sgemm --include-dir)" -L "$L" -lpyblas_blas_preload
 * \ -lpyblas_sgemm -Wl,-rpath,"$L" -ldl
 *   ./calls .../numpy.libs/libscipy_openblas64_*.so
 */
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <dlfcn.h>

#include "pyblas_sgemm.h"

using Cblas = void(int, int, int, int64_t, int64_t, int64_t, float, const float *, int64_t, const float *, int64_t,
                   float, float *, int64_t);
extern "C" Cblas scipy_cblas_sgemm64_;

namespace {

template <class Call>
double nanoseconds(Call call) {
    using Clock = std::chrono::steady_clock;
    constexpr int kGroups = 200, kCalls = 2000;
    double best = 1e9;
    for (int group = 0; group < kGroups; ++group) {
        const auto begin = Clock::now();
        for (int i = 0; i < kCalls; ++i)
            call();
        best = std::min(best, std::chrono::duration<double, std::nano>(Clock::now() - begin).count() / kCalls);
    }
    return best;
}

} // namespace

int main(int count, char **arguments) {
    void *library = count == 2 ? dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL) : nullptr;
    const auto real = library ? reinterpret_cast<Cblas *>(dlsym(library, "scipy_cblas_sgemm64_")) : nullptr;
    pyblasHandle_t handle;
    if (!real || pyblasCreateCpu(&handle) != PYBLAS_STATUS_SUCCESS) {
        std::fprintf(stderr, "usage: calls NUMPY'S_OPENBLAS\n");
        return 2;
    }
    constexpr int n = 8;
    const float one = 1, zero = 0;
    static float a[n * n], b[n * n], c[n * n];
    std::printf("real library: %.0f\n", nanoseconds([&] { real(101, 111, 111, n, n, n, 1, a, n, b, n, 0, c, n); }));
    std::printf("through the shim: %.0f\n",
                nanoseconds([&] { scipy_cblas_sgemm64_(101, 111, 111, n, n, n, 1, a, n, b, n, 0, c, n); }));
    std::printf("C interface: %.0f\n", nanoseconds([&] {
                    (void)pyblasSgemmRowMajor_64(handle, PYBLAS_OP_N, PYBLAS_OP_N, n, n, n, &one, a, n, b, n, &zero, c,
                                                 n);
                }));
    return 0;
}
