// Every asm statement of the project, one wrapper each. Architectures without an instruction get plain code that keeps
// the same promises, so kernels never ask which one they run on.
#pragma once

#include <cstdint>

#if defined(PYBLAS_SIMULATOR)
#include "simulated_ptx.hpp" // the same wrappers for the host, in tests/native/simt
#else

namespace pyblas::ptx {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define PYBLAS_HAS_ASYNC_COPY 1
#else
#define PYBLAS_HAS_ASYNC_COPY 0
#endif

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define PYBLAS_HAS_SM90 1
#else
#define PYBLAS_HAS_SM90 0
#endif

// Blocks of an early kernel queued behind this one may come now, once all blocks here have said so or left.
__device__ __forceinline__ void launch_dependents() {
#if PYBLAS_HAS_SM90
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// In an early kernel, before anything else of global memory is touched: the kernels ahead have ended, and what they
// wrote is there.
__device__ __forceinline__ void wait_for_predecessors() {
#if PYBLAS_HAS_SM90
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Copies 4 or 16 bytes from global to shared memory, or writes zeros and reads nothing if valid is false. The data is
// there for this thread after wait_copies(), for the block after a barrier behind it.
template <int Bytes>
__device__ __forceinline__ void copy_async(float *shared, const float *global, bool valid) {
    static_assert(Bytes == 4 || Bytes == 16, "one float or four");
#if PYBLAS_HAS_ASYNC_COPY
    const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    const int bytes = valid ? Bytes : 0;
    if constexpr (Bytes == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(global), "r"(bytes)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address), "l"(global), "r"(bytes) : "memory");
#else
    if constexpr (Bytes == 16)
        *reinterpret_cast<float4 *>(shared) =
            valid ? __ldg(reinterpret_cast<const float4 *>(global)) : float4{0.0f, 0.0f, 0.0f, 0.0f};
    else
        *shared = valid ? __ldg(global) : 0.0f;
#endif
}

// Closes the group of copies issued since the last call. An empty group counts too.
__device__ __forceinline__ void commit_copies() {
#if PYBLAS_HAS_ASYNC_COPY
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most Pending of this thread's groups are still on their way.
template <int Pending>
__device__ __forceinline__ void wait_copies() {
#if PYBLAS_HAS_ASYNC_COPY
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
#endif
}

// ---- clusters: blocks that run side by side and see each other's shared memory; from sm_90 on
// ------------------------

// All threads of the cluster meet: what one did before it arrived, the others see after they have waited.
__device__ __forceinline__ void arrive_at_cluster() {
#if PYBLAS_HAS_SM90
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_cluster() {
#if PYBLAS_HAS_SM90
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// Two words of another block's shared memory, which lie where shared does in this one.
template <class T>
__device__ __forceinline__ T load_from_block(const T *shared, int block) {
    static_assert(sizeof(T) == 8, "two words");
    uint64_t bits = 0;
#if PYBLAS_HAS_SM90
    uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    asm volatile("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(address) : "r"(block));
    asm volatile("ld.shared::cluster.b64 %0, [%1];" : "=l"(bits) : "r"(address) : "memory");
#endif
    T value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// Two floats rounded to the nearest 16-bit numbers, the first in the lower half of the word; and back.
__device__ __forceinline__ uint32_t f16_pair(float first, float second) {
    uint32_t word;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
#else
    asm("{\n"
        ".reg .b16 first, second;\n"
        "cvt.rn.f16.f32 first, %1;\n"
        "cvt.rn.f16.f32 second, %2;\n"
        "mov.b32 %0, {first, second};\n"
        "}"
        : "=r"(word)
        : "f"(first), "f"(second));
#endif
    return word;
}

__device__ __forceinline__ float2 floats_of_f16_pair(uint32_t word) {
    float2 pair;
    asm("{\n"
        ".reg .b16 first, second;\n"
        "mov.b32 {first, second}, %2;\n"
        "cvt.f32.f16 %0, first;\n"
        "cvt.f32.f16 %1, second;\n"
        "}"
        : "=f"(pair.x), "=f"(pair.y)
        : "r"(word));
    return pair;
}

__device__ __forceinline__ uint32_t bf16_pair(float first, float second) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    uint32_t word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
    return word;
#else
    const auto rounded = [](float value) {
        const uint32_t bits = __float_as_uint(value);
        return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    };
    return rounded(first) | rounded(second) << 16;
#endif
}

// Asks for the line of 128 bytes to be in the L2, where all writers of global memory meet: legal at any time.
__device__ __forceinline__ void prefetch(const float *global) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}

// Counts one arrival, and says whether it is the last after that many others; the counter is zero again then. What the
// block wrote before a barrier in front of the call can be read, once it has been the last, by whoever stands behind a
// barrier after it.
__device__ __forceinline__ bool arrive(uint32_t *counter, uint32_t others) {
    uint32_t before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(others) : "memory");
    return before == others;
}

} // namespace pyblas::ptx

#endif
