// The asm statements that multiplies of planes by a warp need beside those of ptx.cuh, one wrapper each. From SM 8.0
// on.
#pragma once

#include "ptx.cuh"

#if PYBLAS_HAS_WARP_MULTIPLY
namespace pyblas::ptx {

// As multiply_bf16, of half precision.
__device__ __forceinline__ void multiply_f16(float (&sums)[4], const uint32_t (&rows)[4], uint32_t column_word,
                                             uint32_t next_column_word) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(rows[0]), "r"(rows[1]), "r"(rows[2]), "r"(rows[3]), "r"(column_word), "r"(next_column_word));
}

// What load_matrices brings, of matrices that lie the other way: in shared memory a row is 8 neighbours of one k.
__device__ __forceinline__ void load_turned_matrices(uint32_t (&words)[4], const uint16_t *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// Copies 16 bytes of 16-bit numbers as copy_async does, of which the first so many are read and the others are zeros.
__device__ __forceinline__ void copy_piece(uint16_t *shared, const uint16_t *global, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(bytes)
                 : "memory");
}

} // namespace pyblas::ptx
#endif
