// One product as a program asks its BLAS for it, and who computes it.
#pragma once

#include <cstdint>

#include "blas_real.hpp"
#include "ledger.hpp"

namespace pyblas::shim {

// As the program wrote it: rows and leading dimensions are those of its layout.
struct HostProduct {
    bool row_major;
    char transa, transb; // N, T or C
    int64_t m, n, k;
    float alpha;
    const float *a;
    int64_t lda;
    const float *b;
    int64_t ldb;
    float beta;
    float *c;
    int64_t ldc;
    int64_t stride_a = 0, stride_b = 0, stride_c = 0, batch = 1;
};

// How a call ended: reason is nullptr if the product is computed, else a literal. Where C is spoilt, nobody else can
// compute it any more.
struct Verdict {
    const char *reason;
    bool spoilt = false;
};

// Computes the product, or says why not. has_real: whether somebody else could do it.
Verdict take(const Function &function, const HostProduct &product, bool has_real) noexcept;

// True while the calling thread computes for the shim: what it calls meanwhile is not the program's.
bool within() noexcept;

class Within {
public:
    Within() noexcept;
    ~Within();
    Within(const Within &) = delete;
    Within &operator=(const Within &) = delete;
};

// Notes a call that the real library did; reason as take() gave it.
void record_declined(const Function &function, const HostProduct &product, const char *reason, double seconds) noexcept;

} // namespace pyblas::shim
