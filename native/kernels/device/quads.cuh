// Operands in shared memory as they lie in global memory, so that four floats travel at once for every op, and read
// back as quads: four x by four k in four 128-bit reads. x runs along C: rows for A, columns for B.
//
//   contiguous x: [k][x]          one read is four x of one k
//   contiguous k: [slot of x][k]  one read is four k of one x; the first x of all quads lie together, then the second.
//                                 Rows are an odd number of quads long: eight neighbouring quads of x lie in 32 banks
//
// Everything is rounded up to whole quads and padded with zeros.
#pragma once

#include <cstdint>

#include "problem.hpp"
#include "ptx.cuh"

namespace pyblas {

PYBLAS_HOST_DEVICE constexpr int whole_quads(int extent) {
    return (extent + 3) / 4 * 4;
}

template <bool ContiguousX>
struct QuadTile {
    int x, k; // whole quads

    // Stored columns and their length.
    PYBLAS_HOST_DEVICE constexpr int columns() const { return ContiguousX ? k : x; }
    PYBLAS_HOST_DEVICE constexpr int length() const { return ContiguousX ? x : k; }
    // From one column to the next.
    PYBLAS_HOST_DEVICE constexpr int row() const { return ContiguousX ? x : k + (k / 4 % 2 ? 0 : 4); }
    PYBLAS_HOST_DEVICE constexpr int floats() const { return columns() * row(); }

    // Element i of stored column j.
    PYBLAS_HOST_DEVICE constexpr int at(int i, int j) const {
        return (ContiguousX ? j : j % 4 * (x / 4) + j / 4) * row() + i;
    }

    // Four x from 4 * quad on by four k from k0 on, as out[k][x].
    __device__ __forceinline__ void read(const float *tile, int quad, int k0, float (&out)[4][4]) const {
        const float *const first = ContiguousX ? tile + k0 * row() + 4 * quad : tile + quad * row() + k0;
        const int step = ContiguousX ? row() : x / 4 * row();
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float4 four = *reinterpret_cast<const float4 *>(first + i * step);
            if constexpr (ContiguousX) {
                out[i][0] = four.x, out[i][1] = four.y, out[i][2] = four.z, out[i][3] = four.w;
            } else {
                out[0][i] = four.x, out[1][i] = four.y, out[2][i] = four.z, out[3][i] = four.w;
            }
        }
    }
};

// Four neighbours to shared memory at once if global memory is aligned for it, otherwise one by one; zeros if not
// valid.
__device__ __forceinline__ void copy_quad(float *shared, const float *global, bool valid) {
    if (reinterpret_cast<uintptr_t>(global) % 16 == 0) {
        ptx::copy_async<16>(shared, global, valid);
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i)
            ptx::copy_async<4>(shared + i, global + i, valid);
    }
}

// Asks for the lines of an operand's stored columns to be in the L2.
__device__ __forceinline__ void prefetch_columns(const float *source, int64_t ld, int length, int columns, int thread,
                                                 int threads) {
    constexpr int kLine = 32; // floats
    const int lines = (length + kLine - 1) / kLine;
    for (int number = thread; number < lines * columns; number += threads) {
        const int column = number / lines;
        ptx::prefetch(source + column * ld + (number - column * lines) * kLine);
    }
}

} // namespace pyblas
