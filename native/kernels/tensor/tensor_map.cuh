// What the copy engine is told of an operand in planes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>

#include <cuda.h>

#include "../device/tensor_maps.cuh"
#include "fragments.hpp"
#include "planes.cuh"

namespace pyblas {

constexpr int kPlaneDepth = kSwizzledRowBytes / 2; // of k in one box

// Boxes of box_rows rows by 64 of k of one plane, or, across, of 64 rows by 64 of k. Coordinates are k, row, plane,
// batch, or row, k, plane, batch; outside there are zeros.
inline Status plane_map(const Planes &planes, int box_rows, CUtensorMap *map) {
    decltype(&cuTensorMapEncodeTiled) encode = nullptr;
    PYBLAS_TRY(tensor_map_encoder(&encode));
    const int64_t line = planes.across ? planes.rows : planes.depth, lines = planes.across ? planes.depth : planes.rows;
    const cuuint64_t extents[4] = {static_cast<cuuint64_t>(line), static_cast<cuuint64_t>(lines),
                                   static_cast<cuuint64_t>(planes.count), static_cast<cuuint64_t>(planes.batch)};
    const cuuint64_t strides[3] = {static_cast<cuuint64_t>(planes.ld()) * 2,
                                   static_cast<cuuint64_t>(planes.plane()) * 2,
                                   static_cast<cuuint64_t>(planes.matrix()) * 2};
    const cuuint32_t box[4] = {static_cast<cuuint32_t>(kPlaneDepth),
                               static_cast<cuuint32_t>(planes.across ? 64 : box_rows), 1, 1};
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

// An operand of floats itself, if its lines and matrices begin at multiples of 16 bytes.
inline bool operand_has_map(const Operand &operand, int64_t lines, int64_t batch) {
    constexpr int64_t kMostStride = int64_t{1} << 38; // of elements
    const bool one = batch == 1 || operand.stride == 0;
    return !operand.array && reinterpret_cast<uintptr_t>(operand.data) % 16 == 0 && operand.ld % 4 == 0 &&
           operand.ld < kMostStride / lines &&
           (one || (operand.stride > 0 && operand.stride % 4 == 0 && operand.stride < kMostStride));
}

// Boxes of 128 bytes of box_along numbers by box_lines lines, in any tensor of four dimensions; outside there are
// zeros.
inline Status box_map(CUtensorMapDataType type, void *address, const int64_t (&extents)[4], const int64_t (&strides)[3],
                      int box_along, int box_lines, CUtensorMap *map) {
    decltype(&cuTensorMapEncodeTiled) encode = nullptr;
    PYBLAS_TRY(tensor_map_encoder(&encode));
    cuuint64_t sizes[4], steps[3];
    std::copy(std::begin(extents), std::end(extents), sizes);
    std::copy(std::begin(strides), std::end(strides), steps);
    const cuuint32_t box[4] = {static_cast<cuuint32_t>(box_along), static_cast<cuuint32_t>(box_lines), 1, 1};
    const cuuint32_t each[4] = {1, 1, 1, 1};
    const CUresult result =
        encode(map, type, 4, address, sizes, steps, box, each, CU_TENSOR_MAP_INTERLEAVE_NONE,
               CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS)
        return fail(PYBLAS_STATUS_EXECUTION_FAILED, "the driver refused a tensor map (%d) for %lld lines of %lld",
                    static_cast<int>(result), static_cast<long long>(extents[1]), static_cast<long long>(extents[0]));
    return kSuccess;
}

// Boxes of 32 neighbours in memory by box_lines lines. Coordinates are along, line, 0, matrix.
inline Status operand_map(const Operand &operand, int64_t along, int64_t lines, int64_t batch, int box_lines,
                          CUtensorMap *map) {
    const bool one = batch == 1 || operand.stride == 0;
    const int64_t matrix = lines * operand.ld * 4;
    return box_map(CU_TENSOR_MAP_DATA_TYPE_UINT32, operand.data, {along, lines, 1, one ? 1 : batch},
                   {operand.ld * 4, matrix, one ? matrix : operand.stride * 4}, kSwizzledRowBytes / 4, box_lines, map);
}

} // namespace pyblas
