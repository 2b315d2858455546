// Which instruction set: what the processor and the operating system support, or less if PYBLAS_SGEMM_CPU says so.
#include "isa.hpp"

#include <atomic>
#include <cstdlib>
#include <cstring>

namespace pyblas::cpu {
namespace {

const char *most_of_environment() {
    const char *name = std::getenv("PYBLAS_SGEMM_CPU");
    return name && *name ? name : nullptr;
}

const Isa *choose() {
    const char *most = environment_names_an_isa() ? most_of_environment() : nullptr;
    [[maybe_unused]] const auto allowed = [&](const Isa &set) { return !most || std::strcmp(most, set.name) == 0; };
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("bmi2");
    if (avx512 && allowed(kAvx512))
        return &kAvx512;
    if (avx2 && (allowed(kAvx2) || allowed(kAvx512)))
        return &kAvx2;
#endif
    return &kGeneric;
}

} // namespace

bool environment_names_an_isa() {
    const char *name = most_of_environment();
    return !name || std::strcmp(name, "generic") == 0 || std::strcmp(name, "avx2") == 0 ||
           std::strcmp(name, "avx512") == 0;
}

const Isa &isa() {
    static std::atomic<const Isa *> chosen{nullptr};
    const Isa *set = chosen.load(std::memory_order_relaxed);
    if (!set)
        chosen.store(set = choose(), std::memory_order_relaxed);
    return *set;
}

} // namespace pyblas::cpu
