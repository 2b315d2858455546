// What the copy engine is told of a matrix in global memory. The driver encodes it; its function is asked for by name,
// so that the library does not link to the driver.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <iterator>

#include <cuda.h>
#include <cuda_runtime.h>

#include "launch.cuh"
#include "problem.hpp"

namespace pyblas {

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

// Boxes of a tensor of four dimensions; strides, of all but the first, are in bytes. Zeros stand for what is outside.
inline Status encode_map(CUtensorMapDataType type, void *address, const int64_t (&extents)[4],
                         const int64_t (&strides)[3], const int (&box)[4], CUtensorMapSwizzle swizzle,
                         CUtensorMap *map) {
    decltype(&cuTensorMapEncodeTiled) encode = nullptr;
    PYBLAS_TRY(tensor_map_encoder(&encode));
    cuuint64_t sizes[4], steps[3];
    cuuint32_t sides[4];
    std::copy(std::begin(extents), std::end(extents), sizes);
    std::copy(std::begin(strides), std::end(strides), steps);
    std::copy(std::begin(box), std::end(box), sides);
    const cuuint32_t each[4] = {1, 1, 1, 1};
    const CUresult result = encode(map, type, 4, address, sizes, steps, sides, each, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                   swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS)
        return fail(PYBLAS_STATUS_EXECUTION_FAILED, "the driver refused a tensor map (%d) for %lld lines of %lld",
                    static_cast<int>(result), static_cast<long long>(extents[1]), static_cast<long long>(extents[0]));
    return kSuccess;
}

// The matrices of an operand, as boxes see them.
struct MatrixMap {
    CUtensorMap map;
    int first, step; // number of batch 0's, counted from the one that lies lowest, and from one batch to the next
};

// Whether the engine can read it: whole 16 bytes, less than 2^40 bytes from one quad to the next, and no pointers.
inline bool can_map(const Operand &operand, int64_t batch) {
    constexpr int64_t kMost = (int64_t{1} << 36) - 1;
    const int64_t unit = 16 / bytes_of(operand.dtype);
    const bool many = batch > 1 && operand.stride != 0;
    return operand.data && !operand.array && reinterpret_cast<uintptr_t>(operand.data) % 16 == 0 &&
           operand.ld % unit == 0 && operand.ld <= kMost &&
           (!many || (operand.stride % unit == 0 && operand.stride >= -kMost && operand.stride <= kMost));
}

// Boxes of box_length numbers of box_columns stored columns. Coordinates are the place in a column, the column, 0 and
// the matrix; zeros stand for what is outside. By quads, columns are counted four at a time, and a box has the first
// ones of its quads, then the second ones, and so on; their number is a multiple of four then. With the type TFLOAT32
// the engine rounds to the nearest number of TF32, of two to the even one; types of 16 bits are all the same to it.
inline Status map_matrices(const Operand &operand, int64_t length, int64_t columns, int64_t batch, int box_length,
                           int box_columns, bool by_quads, CUtensorMapSwizzle swizzle, MatrixMap *mapped,
                           CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_FLOAT32) {
    const int64_t item = bytes_of(operand.dtype);
    const bool many = batch > 1 && operand.stride != 0;
    mapped->step = !many ? 0 : operand.stride < 0 ? -1 : 1;
    mapped->first = many && operand.stride < 0 ? static_cast<int>(batch - 1) : 0;
    const int group = by_quads ? 4 : 1;
    return encode_map(type, static_cast<char *>(operand.data) + mapped->first * operand.stride * item,
                      {length, columns / group, group, many ? batch : 1},
                      {operand.ld * group * item, operand.ld * item, many ? std::abs(operand.stride) * item : 16},
                      {box_length, box_columns / group, group, 1}, swizzle, &mapped->map);
}

} // namespace pyblas
