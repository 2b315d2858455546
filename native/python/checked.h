/*
 * The way from Python into the library: one C call that judges what Python would be slow to judge - whether each
 * operand lies inside its buffer, and whether C shares an element with A or B - and then makes the product through the
 * public function. Arguments that the public function refuses by itself are left to it, so that its sentences have one
 * source.
 *
 * Addresses are integers, because cffi takes a Python int for uintptr_t without a cast and a GPU's memory has no other
 * name in Python. An answer below zero is from here; its sentence is in pyblas_checked_message().
 */
#ifndef PYBLAS_CHECKED_H
#define PYBLAS_CHECKED_H

#include "pyblas_sgemm.h"

enum {
    PYBLAS_CHECKED_INVALID = -7, /* PYBLAS_STATUS_INVALID_VALUE, found here */
    PYBLAS_CHECKED_UNDECIDED_A =
        -101, /* whether C meets A is beyond the exact test: the caller decides and asks again */
    PYBLAS_CHECKED_UNDECIDED_B = -102,  /* the same for B */
    PYBLAS_CHECKED_OTHER_SHAPES = -103, /* matmul: the shapes do not fit, or a size is 0 */
    PYBLAS_CHECKED_ROW_MAJOR = 1,       /* flags */
    PYBLAS_CHECKED_STRIDED_BATCHED = 2, /* call gemm_strided_batched, otherwise sgemm */
    PYBLAS_CHECKED_DEVICE_SCALARS = 4,  /* alpha_address and beta_address instead of alpha and beta */
    PYBLAS_CHECKED_A_IS_DISJOINT = 8,   /* the caller has decided */
    PYBLAS_CHECKED_B_IS_DISJOINT = 16,
    PYBLAS_CHECKED_ANY_MEMORY = 32 /* call pyblasXt, for a GPU handle and matrices that may lie in host memory */
};

/* Each buffer holds before elements in front of its address and after elements from it on. A negative after says that
   the caller has checked the extent, or that there is no buffer and the address is 0. */
int pyblas_checked_gemm(pyblasHandle_t handle, int flags, int transa, int transb, int64_t m, int64_t n, int64_t k,
                        double alpha, uintptr_t alpha_address, uintptr_t a, int64_t a_before, int64_t a_after,
                        int64_t lda, int64_t stride_a, uintptr_t b, int64_t b_before, int64_t b_after, int64_t ldb,
                        int64_t stride_b, double beta, uintptr_t beta_address, uintptr_t c, int64_t c_before,
                        int64_t c_after, int64_t ldc, int64_t stride_c, int64_t batch);

/* The same on matrices of these types, by pyblasGemmEx or, with the flag, pyblasGemmStridedBatchedEx. */
int pyblas_checked_gemm_ex(pyblasHandle_t handle, int flags, int compute, int type_a, int type_b, int type_c,
                           int transa, int transb, int64_t m, int64_t n, int64_t k, double alpha,
                           uintptr_t alpha_address, uintptr_t a, int64_t a_before, int64_t a_after, int64_t lda,
                           int64_t stride_a, uintptr_t b, int64_t b_before, int64_t b_after, int64_t ldb,
                           int64_t stride_b, double beta, uintptr_t beta_address, uintptr_t c, int64_t c_before,
                           int64_t c_after, int64_t ldc, int64_t stride_c, int64_t batch);

/* The same on three blocks of host memory with fewer arguments, because each costs 12 ns. */
int pyblas_checked_sgemm(pyblasHandle_t handle, int flags, int transa, int transb, int64_t m, int64_t n, int64_t k,
                         double alpha, const float *a, int64_t a_size, int64_t lda, const float *b, int64_t b_size,
                         int64_t ldb, double beta, float *c, int64_t c_size, int64_t ldc);
int pyblas_checked_gemm_strided_batched(pyblasHandle_t handle, int flags, int transa, int transb, int64_t m, int64_t n,
                                        int64_t k, double alpha, const float *a, int64_t a_size, int64_t lda,
                                        int64_t stride_a, const float *b, int64_t b_size, int64_t ldb, int64_t stride_b,
                                        double beta, float *c, int64_t c_size, int64_t ldc, int64_t stride_c,
                                        int64_t batch);

/* C := A * B for stacks of row-major matrices in blocks of host memory, whose shapes are judged here. */
int pyblas_checked_matmul(pyblasHandle_t handle, const float *a, int64_t a_stack, int64_t m, int64_t k, const float *b,
                          int64_t b_stack, int64_t b_rows, int64_t n, float *c, int64_t c_stack, int64_t c_rows,
                          int64_t c_columns);

/* The same on blocks of a GPU's memory, queued on a stream. */
int pyblas_checked_sgemm_on_gpu(pyblasHandle_t handle, uintptr_t stream, int flags, int transa, int transb, int64_t m,
                                int64_t n, int64_t k, double alpha, uintptr_t a, int64_t a_size, int64_t lda,
                                uintptr_t b, int64_t b_size, int64_t ldb, double beta, uintptr_t c, int64_t c_size,
                                int64_t ldc);
int pyblas_checked_gemm_strided_batched_on_gpu(pyblasHandle_t handle, uintptr_t stream, int flags, int transa,
                                               int transb, int64_t m, int64_t n, int64_t k, double alpha, uintptr_t a,
                                               int64_t a_size, int64_t lda, int64_t stride_a, uintptr_t b,
                                               int64_t b_size, int64_t ldb, int64_t stride_b, double beta, uintptr_t c,
                                               int64_t c_size, int64_t ldc, int64_t stride_c, int64_t batch);

/* C := A * B for stacks of matrices on a GPU. Steps along stack, rows and columns count units of so many bytes; a stack
   of one is repeated. What BLAS cannot be told of as it lies is PYBLAS_CHECKED_OTHER_SHAPES too. */
int pyblas_checked_matmul_on_gpu(pyblasHandle_t handle, uintptr_t stream, int64_t unit, uintptr_t a, int64_t a_stack,
                                 int64_t m, int64_t k, int64_t a_stack_step, int64_t a_row_step, int64_t a_column_step,
                                 uintptr_t b, int64_t b_stack, int64_t b_rows, int64_t n, int64_t b_stack_step,
                                 int64_t b_row_step, int64_t b_column_step, uintptr_t c, int64_t c_stack,
                                 int64_t c_rows, int64_t c_columns, int64_t c_stack_step, int64_t c_row_step,
                                 int64_t c_column_step);

/* Arrays of addresses in host memory whose buffers the caller has checked. */
int pyblas_checked_gemm_batched(pyblasHandle_t handle, int flags, int transa, int transb, int64_t m, int64_t n,
                                int64_t k, double alpha, uintptr_t alpha_address, uintptr_t a, int64_t lda, uintptr_t b,
                                int64_t ldb, double beta, uintptr_t beta_address, uintptr_t c, int64_t ldc,
                                int64_t batch);

/* Whether two sets of elements meet: 0 no, 1 yes, -1 not decided. Element (i, j, l) of a set, with i < length,
   j < vectors, l < batch, lies i + j * ld + l * stride elements, of item bytes each, from its address. */
int pyblas_checked_overlap(uintptr_t x, int64_t x_length, int64_t x_vectors, int64_t x_ld, int64_t x_stride,
                           int64_t x_item, uintptr_t y, int64_t y_length, int64_t y_vectors, int64_t y_ld,
                           int64_t y_stride, int64_t y_item, int64_t batch);

/* The sentence of the last answer below zero on this thread. */
const char *pyblas_checked_message(void);

#endif
