// What the copy engine is told of a matrix in global memory. The driver encodes it; its function is asked for by name,
// so that the library does not link to the driver.
#pragma once

#include <cstdint>
#include <cstdlib>

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

// The matrices of an operand, as boxes see them.
struct MatrixMap {
    CUtensorMap map;
    int first, step; // number of batch 0's, counted from the one that lies lowest, and from one batch to the next
};

// Whether the engine can read it: quads of floats, less than 2^40 bytes from one of them to the next, and no pointers.
inline bool can_map(const Operand &operand, int64_t batch) {
    constexpr int64_t kMost = (int64_t{1} << 36) - 1;
    const bool many = batch > 1 && operand.stride != 0;
    return operand.data && !operand.array && reinterpret_cast<uintptr_t>(operand.data) % 16 == 0 &&
           operand.ld % 4 == 0 && operand.ld <= kMost &&
           (!many || (operand.stride % 4 == 0 && operand.stride >= -kMost && operand.stride <= kMost));
}

// Boxes of box_length floats of box_columns stored columns. Coordinates are the place in a column, the column, 0 and
// the matrix; zeros stand for what is outside. By quads, columns are counted four at a time, and a box has the first
// ones of its quads, then the second ones, and so on; their number is a multiple of four then.
inline Status map_matrices(const Operand &operand, int64_t length, int64_t columns, int64_t batch, int box_length,
                           int box_columns, bool by_quads, bool swizzled, MatrixMap *mapped) {
    decltype(&cuTensorMapEncodeTiled) encode = nullptr;
    PYBLAS_TRY(tensor_map_encoder(&encode));
    const bool many = batch > 1 && operand.stride != 0;
    mapped->step = !many ? 0 : operand.stride < 0 ? -1 : 1;
    mapped->first = many && operand.stride < 0 ? static_cast<int>(batch - 1) : 0;
    const int group = by_quads ? 4 : 1;
    const auto bytes = [](int64_t floats) { return static_cast<cuuint64_t>(floats) * 4; };
    const cuuint64_t extents[4] = {static_cast<cuuint64_t>(length), static_cast<cuuint64_t>(columns / group),
                                   static_cast<cuuint64_t>(group), static_cast<cuuint64_t>(many ? batch : 1)};
    const cuuint64_t strides[3] = {bytes(operand.ld * group), bytes(operand.ld),
                                   many ? bytes(std::abs(operand.stride)) : 16};
    const cuuint32_t box[4] = {static_cast<cuuint32_t>(box_length), static_cast<cuuint32_t>(box_columns / group),
                               static_cast<cuuint32_t>(group), 1};
    const cuuint32_t steps[4] = {1, 1, 1, 1};
    const CUresult result = encode(
        &mapped->map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, operand.matrix<float>(mapped->first), extents, strides, box,
        steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzled ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS)
        return fail(PYBLAS_STATUS_EXECUTION_FAILED, "the driver refused a tensor map (%d) for columns of %lld, ld %lld",
                    static_cast<int>(result), static_cast<long long>(length), static_cast<long long>(operand.ld));
    return kSuccess;
}

} // namespace pyblas
