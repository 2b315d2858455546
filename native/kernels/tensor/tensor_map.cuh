// What the copy engine is told of an operand in planes. The driver encodes it; its function is asked for by name, so
// that the library does not link to the driver.
#pragma once

#include <cstdint>

#include <cuda.h>
#include <cuda_runtime.h>

#include "../device/launch.cuh"
#include "fragments.hpp"
#include "planes.cuh"

namespace pyblas {

constexpr int kPlaneDepth = kSwizzledRowBytes / 2; // of k in one box

inline Status tensor_map_encoder(decltype(&cuTensorMapEncodeTiled) *encode) {
    static std::atomic<void *> known{nullptr};
    void *address = known.load(std::memory_order_relaxed);
    if (!address) {
        cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
        PYBLAS_CUDA_TRY(
            cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &address, 12000, cudaEnableDefault, &found));
#else
        PYBLAS_CUDA_TRY(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &address, cudaEnableDefault, &found));
#endif
        if (found != cudaDriverEntryPointSuccess || !address)
            return fail(PYBLAS_STATUS_NOT_SUPPORTED, "the driver cannot encode tensor maps");
        known.store(address, std::memory_order_relaxed);
    }
    *encode = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(address);
    return kSuccess;
}

// Boxes of box_rows rows by 64 of k of one plane. Coordinates are k, row, plane, batch; outside there are zeros.
inline Status plane_map(const Planes &planes, int box_rows, CUtensorMap *map) {
    decltype(&cuTensorMapEncodeTiled) encode = nullptr;
    PYBLAS_TRY(tensor_map_encoder(&encode));
    const cuuint64_t extents[4] = {static_cast<cuuint64_t>(planes.depth), static_cast<cuuint64_t>(planes.rows),
                                   static_cast<cuuint64_t>(planes.count), static_cast<cuuint64_t>(planes.batch)};
    const cuuint64_t strides[3] = {static_cast<cuuint64_t>(planes.ld()) * 2,
                                   static_cast<cuuint64_t>(planes.plane()) * 2,
                                   static_cast<cuuint64_t>(planes.matrix()) * 2};
    const cuuint32_t box[4] = {static_cast<cuuint32_t>(kPlaneDepth), static_cast<cuuint32_t>(box_rows), 1, 1};
    const cuuint32_t steps[4] = {1, 1, 1, 1};
    const CUresult result = encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 4, planes.data, extents, strides, box, steps,
                                   CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                   CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS)
        return fail(PYBLAS_STATUS_EXECUTION_FAILED, "the driver refused a tensor map (%d) for %lld rows, %lld deep",
                    static_cast<int>(result), static_cast<long long>(planes.rows),
                    static_cast<long long>(planes.depth));
    return kSuccess;
}

} // namespace pyblas
