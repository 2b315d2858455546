// What is compiled once per instruction set: products of one thread, on matrices given by two strides each.
#pragma once

#include <cstddef>

namespace pyblas::cpu {

// C := alpha * A * B + beta * C. Element (i, j) of a matrix is at pointer + i * row + j * col; one of the two strides
// of A and of B is 1, and so is one of C's. k is positive and alpha not 0.
struct Product {
    ptrdiff_t m, n, k;
    const float *a;
    ptrdiff_t a_row, a_col;
    const float *b;
    ptrdiff_t b_row, b_col;
    float *c;
    ptrdiff_t c_row, c_col;
    float alpha, beta;
    // No cache holds all matrices of the call: outer writes C past them, outer_batch fetches products to come.
    bool large = false;

    // C^T := alpha * B^T * A^T + beta * C^T
    Product transposed() const {
        return {n, m, k, b, b_col, b_row, a, a_col, a_row, c, c_col, c_row, alpha, beta, large};
    }

    Product block(ptrdiff_t i, ptrdiff_t j, ptrdiff_t rows, ptrdiff_t cols) const {
        Product p = *this;
        p.m = rows;
        p.n = cols;
        p.a += i * a_row;
        p.b += j * b_col;
        p.c += i * c_row + j * c_col;
        return p;
    }
};

// Sums are begun afresh after this many products and the partial sums added, so that rounding errors stay small.
constexpr ptrdiff_t kOuterDepth = 256; // in outer
constexpr ptrdiff_t kDotDepth = 1024;  // in dot, where each vector lane holds a sum of its own

constexpr ptrdiff_t kRowBlock = 256, kColBlock = 256; // of outer: what a core's level 2 cache holds
constexpr ptrdiff_t kDotRows = 32, kDotCols = 256;    // of dot
constexpr ptrdiff_t kDotPack = 4096;                  // depth of a copy of A
constexpr ptrdiff_t kDotStride = kDotPack + 16;       // of its rows: not a power of two, which would share cache sets
constexpr ptrdiff_t kStreamMostCols = 64;
constexpr ptrdiff_t kStreamSums = 8192;   // of stream: what a core's level 1 cache holds
constexpr ptrdiff_t kPackStripRows = 336; // of packed: rows of A that are copied at a time
constexpr ptrdiff_t kPackRows = 1024, kPackCols = 1024;
constexpr ptrdiff_t kLine = 16; // of a cache
// Floats of scratch that packed needs, and each of the others.
constexpr ptrdiff_t kPackScratch =
    kPackStripRows * kOuterDepth + (kPackRows + 4 * kLine) * kPackCols + (kPackCols + kLine) * kOuterDepth;
constexpr ptrdiff_t kScratch = kDotRows * kDotStride + kDotRows * kDotCols;
static_assert(64 * kOuterDepth + kRowBlock * kColBlock <= kScratch && 2 * kStreamSums <= kScratch);

struct Isa {
    const char *name;
    // Sums of outer products: vectors along the rows of C, elements of B broadcast. A is copied when its rows are
    // apart.
    void (*outer)(const Product &, float *scratch);
    // count products of outer, each matrix so many elements after the one before.
    void (*outer_batch)(const Product &, ptrdiff_t count, ptrdiff_t next_a, ptrdiff_t next_b, ptrdiff_t next_c,
                        float *scratch);
    // The same sums in the same order for large products: A, and a B whose columns are apart, are copied to a compact
    // layout first, which is worth it when they are used many times.
    void (*packed)(const Product &, float *scratch);
    // Outer products with a B of few columns: A's columns are read from end to end, sums wait in the level 1 cache.
    // Needs a_row == 1; n is at most kStreamMostCols.
    void (*stream)(const Product &, float *scratch);
    // Dot products: vectors along k. Needs b_row == 1; A is copied when a_col != 1.
    void (*dot)(const Product &, float *scratch);
};

extern const Isa kAvx512, kAvx2, kGeneric;

// The best set this machine and its operating system support, or the lower one PYBLAS_SGEMM_CPU names.
const Isa &isa();

// Whether PYBLAS_SGEMM_CPU, if it says anything, names a set of ours.
bool environment_names_an_isa();

} // namespace pyblas::cpu
