// What the copy engine is told of an operand in planes.
#pragma once

#include <cstdint>

#include <cuda.h>

#include "../device/tensor_maps.cuh"
#include "fragments.hpp"
#include "planes.cuh"

namespace pyblas {

constexpr int kPlaneDepth = kSwizzledRowBytes / 2; // of k in one box

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
