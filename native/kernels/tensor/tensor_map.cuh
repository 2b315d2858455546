// What the copy engine is told of an operand in planes.
#pragma once

#include <cstdint>

#include <cuda.h>

#include "../device/tensor_maps.cuh"
#include "fragments.hpp"
#include "planes.cuh"

namespace pyblas {

constexpr int kPlaneDepth = kSwizzledRowBytes / 2; // of k in one box

// An operand of floats itself, by operand_map: its matrices in the order of their addresses, and one of them a stride.
inline bool operand_has_map(const Operand &operand, int64_t lines, int64_t batch) {
    constexpr int64_t kMostStride = int64_t{1} << 38; // of elements
    return can_map(operand, batch) && (batch == 1 || operand.stride >= 0) && operand.ld < kMostStride / lines;
}

// Boxes of 128 bytes of box_along numbers by box_lines lines, in any tensor of four dimensions.
inline Status box_map(CUtensorMapDataType type, void *address, const int64_t (&extents)[4], const int64_t (&strides)[3],
                      int box_along, int box_lines, CUtensorMap *map) {
    return encode_map(type, address, extents, strides, {box_along, box_lines, 1, 1}, CU_TENSOR_MAP_SWIZZLE_128B, map);
}

// Boxes of box_rows rows by 64 of k of one plane, or, across, of 64 rows by 64 of k. Coordinates are k, row, plane,
// batch, or row, k, plane, batch.
inline Status plane_map(const Planes &planes, int box_rows, CUtensorMap *map) {
    const int64_t line = planes.across ? planes.rows : planes.depth, lines = planes.across ? planes.depth : planes.rows;
    return box_map(CU_TENSOR_MAP_DATA_TYPE_UINT16, planes.data, {line, lines, planes.count, planes.batch},
                   {planes.ld() * 2, planes.plane() * 2, planes.matrix() * 2}, kPlaneDepth,
                   planes.across ? 64 : box_rows, map);
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
