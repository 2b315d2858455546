// How a kernel starts: any number of blocks, the shared-memory opt-in, and the launch error turned into a Status.
#pragma once

#include <atomic>
#include <cstdint>

#include <cuda_runtime.h>

#include "status.hpp"

namespace pyblas {

struct Grid {
    int64_t blocks;
    int threads;
    int shared_bytes; // dynamic
    CUstream_st *stream;
    bool early = false; // blocks may come before the kernels ahead end, and wait for them themselves; from sm_90 on
    int cluster = 1;    // blocks side by side that share their memory; divides blocks; from sm_90 on
};

constexpr int kSharedWithoutOptIn = 48 * 1024;

// The number of this block. Grids are one row of blocks, folded where it is longer than CUDA's limit, so the last
// numbers can lie past the end: every kernel leaves at once then.
__device__ __forceinline__ int64_t block_number() {
    return static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x;
}

// The dynamic shared memory of this block.
__device__ __forceinline__ float4 *dynamic_shared() {
#if defined(PYBLAS_SIMULATOR)
    return static_cast<float4 *>(simulator::dynamic_shared_memory());
#else
    extern __shared__ float4 shared_memory[];
    return shared_memory;
#endif
}

// Once per kernel and device. Threads may race to it: each sets the same value. Legal while a stream is captured.
template <auto kernel>
Status allow_shared(int bytes) {
    static std::atomic<uint64_t> allowed{0}; // one bit for each of the first 64 devices
    int device = 0;
    PYBLAS_CUDA_TRY(cudaGetDevice(&device));
    const uint64_t bit = device < 64 ? uint64_t{1} << device : 0;
    if (allowed.load(std::memory_order_relaxed) & bit)
        return kSuccess;
    PYBLAS_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    PYBLAS_CUDA_TRY(
        cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared));
    allowed.fetch_or(bit, std::memory_order_relaxed);
    return kSuccess;
}

template <auto kernel, class... Arguments>
Status launch(const Grid &grid, const Arguments &...arguments) {
    constexpr int64_t kRow = 0x7fffffff; // most blocks along x
    const int64_t rows = (grid.blocks + kRow - 1) / kRow;
    if (rows > 65535)
        return fail(PYBLAS_STATUS_NOT_SUPPORTED, "the product needs %lld blocks, more than one launch can have",
                    static_cast<long long>(grid.blocks));
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>((grid.blocks + rows - 1) / rows), static_cast<unsigned>(rows));
    config.blockDim = dim3(static_cast<unsigned>(grid.threads));
    config.dynamicSmemBytes = static_cast<size_t>(grid.shared_bytes);
    config.stream = grid.stream;
    cudaLaunchAttribute attributes[2] = {};
    config.attrs = attributes;
    if (grid.early) {
        attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (grid.cluster > 1) {
        attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
        attributes[config.numAttrs++].val.clusterDim = {static_cast<unsigned>(grid.cluster), 1, 1};
    }
    return cuda_status(cudaLaunchKernelEx(&config, kernel, arguments...), "kernel launch");
}

} // namespace pyblas
