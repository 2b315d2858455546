// Which instruction set: what the processor and the operating system support, or less if PYBLAS_SGEMM_CPU says so.
#include "isa.hpp"

#include <atomic>
#include <cstdlib>
#include <cstring>

namespace pyblas::cpu {
namespace {

const Isa *choose() {
    const char *most = std::getenv("PYBLAS_SGEMM_CPU");
    const auto allowed = [&](const Isa &set) { return !most || std::strcmp(most, set.name) == 0; };
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("bmi2");
    if (most && !allowed(kAvx512) && !allowed(kAvx2) && !allowed(kGeneric))
        most = nullptr; // not a name of ours
    if (avx512 && allowed(kAvx512))
        return &kAvx512;
    if (avx2 && (allowed(kAvx2) || allowed(kAvx512)))
        return &kAvx2;
#endif
    return &kGeneric;
}

} // namespace

const Isa &isa() {
    static std::atomic<const Isa *> chosen{nullptr};
    const Isa *set = chosen.load(std::memory_order_relaxed);
    if (!set)
        chosen.store(set = choose(), std::memory_order_relaxed);
    return *set;
}

} // namespace pyblas::cpu
