// The names under which programs know a BLAS's product. Arguments are judged as the reference BLAS judges them, with
// its numbers; then the product is taken, or passed on as it came.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>

#include "blas_call.hpp"
#include "blas_real.hpp"

using namespace pyblas::shim;

namespace {

// How libraries name things: the reference and distributions, compilers that append no underscore, builds with 64-bit
// integers, and the wheels of NumPy and SciPy.
const Naming kPlain = {"xerbla_",
                       "cblas_xerbla",
                       {"dgemm_", "cblas_dgemm", "dgetrf_"},
                       {"openblas_get_num_threads", "MKL_Get_Max_Threads", "bli_thread_get_num_threads"}};
const Naming kBare = {"xerbla",
                      "cblas_xerbla",
                      {"dgemm", "cblas_dgemm", "dgetrf"},
                      {"MKL_Get_Max_Threads", "openblas_get_num_threads", "bli_thread_get_num_threads"}};
const Naming kPlain64 = {"xerbla_64_",
                         "cblas_xerbla64_",
                         {"dgemm_64_", "cblas_dgemm64_", "dgetrf_64_"},
                         {"openblas_get_num_threads64_", "openblas_get_num_threads", "bli_thread_get_num_threads"}};
const Naming kBare64 = {"xerbla_64",
                        "cblas_xerbla_64",
                        {"dgemm_64", "cblas_dgemm_64", "dgetrf_64"},
                        {"MKL_Get_Max_Threads", "openblas_get_num_threads", "bli_thread_get_num_threads"}};
const Naming kScipy = {"scipy_xerbla_",
                       "scipy_cblas_xerbla",
                       {"scipy_dgemm_", "scipy_cblas_dgemm", "scipy_dgetrf_"},
                       {"scipy_openblas_get_num_threads", "openblas_get_num_threads", "MKL_Get_Max_Threads"}};
const Naming kScipy64 = {"scipy_xerbla_64_",
                         "scipy_cblas_xerbla64_",
                         {"scipy_dgemm_64_", "scipy_cblas_dgemm64_", "scipy_dgetrf_64_"},
                         {"scipy_openblas_get_num_threads64_", "openblas_get_num_threads", "MKL_Get_Max_Threads"}};

constexpr int kRowMajor = 101, kColumnMajor = 102;

// N, T or C; 0 if it is none. R and 114, conjugation without transposition, are OpenBLAS's addition.
char operation(char letter) {
    switch (letter) {
    case 'N':
    case 'n':
    case 'R':
    case 'r':
        return 'N';
    case 'T':
    case 't':
        return 'T';
    case 'C':
    case 'c':
        return 'C';
    default:
        return 0;
    }
}

char operation(int number) {
    switch (number) {
    case 111:
    case 114:
        return 'N';
    case 112:
        return 'T';
    case 113:
        return 'C';
    default:
        return 0;
    }
}

bool nothing_to_do(const HostProduct &p) {
    return p.m == 0 || p.n == 0 || p.batch == 0 || ((p.alpha == 0 || p.k == 0) && p.beta == 1);
}

// Takes the product, or has it done by `pass`, which calls the real function.
template <class Pass>
void settle(const Function &function, const HostProduct &p, bool has_real, Pass pass) {
    const Verdict verdict = take(function, p, has_real);
    if (!verdict.reason)
        return;
    if (!has_real || verdict.spoilt) {
        // A BLAS has no other way to say it.
        std::fprintf(stderr, "pyblas_sgemm: a product of %s is not computed, and %s: %s\n", function.name,
                     verdict.spoilt ? "C is spoilt" : "there is no other library for it", verdict.reason);
        return;
    }
    const Within guard; // a BLAS may call its own functions by their public names
    if (!recording())
        return pass();
    const double begin = now();
    pass();
    record_declined(function, p, verdict.reason, now() - begin);
}

// ---- Fortran: everything by reference ------------------------------------------------------------------------------

// What XERBLA prints, which then ends the process; we do not.
template <class Int>
void fortran_fault(const Naming &naming, Int number) {
    using Handler = void (*)(const char *, const Int *, size_t);
    if (const auto handler = reinterpret_cast<Handler>(program_handler(naming.fortran_fault, naming)))
        return handler("SGEMM ", &number, 6);
    std::fprintf(stderr, " ** On entry to SGEMM parameter number %2d had an illegal value\n", int(number));
}

// The number of the first argument that is wrong; 0 if none is.
int fortran_check(const HostProduct &p) {
    const bool plain_a = p.transa == 'N', plain_b = p.transb == 'N';
    return !p.transa                                           ? 1
           : !p.transb                                         ? 2
           : p.m < 0                                           ? 3
           : p.n < 0                                           ? 4
           : p.k < 0                                           ? 5
           : p.lda < std::max<int64_t>(1, plain_a ? p.m : p.k) ? 8
           : p.ldb < std::max<int64_t>(1, plain_b ? p.k : p.n) ? 10
           : p.ldc < std::max<int64_t>(1, p.m)                 ? 13
                                                               : 0;
}

// The lengths of the two strings come last and are one; who does not expect them does not see them.
template <class Int>
using FortranGemm = void (*)(const char *, const char *, const Int *, const Int *, const Int *, const float *,
                             const float *, const Int *, const float *, const Int *, const float *, float *,
                             const Int *, size_t, size_t);

template <class Int>
void fortran_gemm(Function &function, const void *caller, const char *transa, const char *transb, const Int *m,
                  const Int *n, const Int *k, const float *alpha, const float *a, const Int *lda, const float *b,
                  const Int *ldb, const float *beta, float *c, const Int *ldc) {
    const auto real = reinterpret_cast<FortranGemm<Int>>(real_function(function, caller));
    const auto pass = [&] { real(transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, 1, 1); };
    if (within() && real)
        return pass();
    const HostProduct p = {
        false, operation(*transa), operation(*transb), *m, *n, *k, *alpha, a, *lda, b, *ldb, *beta, c, *ldc};
    if (const int number = fortran_check(p))
        return fortran_fault(function.naming, Int(number));
    if (!nothing_to_do(p))
        settle(function, p, real != nullptr, pass);
}

// ---- CBLAS: by value, in two layouts -------------------------------------------------------------------------------

// What the reference's handler prints before it ends the process.
template <class Int>
void cblas_fault(const Naming &naming, const char *routine, int number, const char *form, int value) {
    using Handler = void (*)(Int, const char *, const char *, ...);
    if (const auto handler = reinterpret_cast<Handler>(program_handler(naming.c_fault, naming)))
        return handler(Int(number), routine, form, value);
    std::fprintf(stderr, "Parameter %d to routine %s was incorrect\n", number, routine);
    if (*form)
        std::fprintf(stderr, form, value);
}

struct CblasNumbers {
    int lda, ldb, ldc, batch;
};

// The reference turns a row-major product round before it looks at the sizes, so B's come first then.
int cblas_check(const HostProduct &p, const CblasNumbers &numbers) {
    const bool plain_a = p.transa == 'N', plain_b = p.transb == 'N';
    const int64_t least_a = plain_a == p.row_major ? p.k : p.m, least_b = plain_b == p.row_major ? p.n : p.k;
    const bool bad_a = p.lda < std::max<int64_t>(1, least_a), bad_b = p.ldb < std::max<int64_t>(1, least_b);
    if (p.row_major ? p.n < 0 : p.m < 0)
        return p.row_major ? 5 : 4;
    if (p.row_major ? p.m < 0 : p.n < 0)
        return p.row_major ? 4 : 5;
    if (p.k < 0)
        return 6;
    if (p.row_major && bad_b)
        return numbers.ldb;
    if (bad_a)
        return numbers.lda;
    if (bad_b)
        return numbers.ldb;
    if (p.ldc < std::max<int64_t>(1, p.row_major ? p.n : p.m))
        return numbers.ldc;
    return p.batch < 0 ? numbers.batch : 0;
}

// The product that a CBLAS call means, if its arguments allow it; what is wrong has been told otherwise.
template <class Int>
bool cblas_judge(const Naming &naming, const char *routine, int layout, int transa, int transb, HostProduct *p,
                 const CblasNumbers &numbers) {
    p->row_major = layout == kRowMajor;
    p->transa = operation(transa);
    p->transb = operation(transb);
    if (layout != kRowMajor && layout != kColumnMajor)
        cblas_fault<Int>(naming, routine, 1, "Illegal layout setting, %d\n", layout);
    else if (!p->transa)
        cblas_fault<Int>(naming, routine, 2, "Illegal TransA setting, %d\n", transa);
    else if (!p->transb)
        cblas_fault<Int>(naming, routine, 3, "Illegal TransB setting, %d\n", transb);
    else if (const int number = cblas_check(*p, numbers))
        cblas_fault<Int>(naming, routine, number, "", 0);
    else
        return !nothing_to_do(*p);
    return false;
}

template <class Int>
using CblasGemm = void (*)(int, int, int, Int, Int, Int, float, const float *, Int, const float *, Int, float, float *,
                           Int);

template <class Int>
void cblas_gemm(Function &function, const void *caller, int layout, int transa, int transb, Int m, Int n, Int k,
                float alpha, const float *a, Int lda, const float *b, Int ldb, float beta, float *c, Int ldc) {
    const auto real = reinterpret_cast<CblasGemm<Int>>(real_function(function, caller));
    const auto pass = [&] { real(layout, transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc); };
    if (within() && real)
        return pass();
    HostProduct p = {false, 0, 0, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc};
    if (cblas_judge<Int>(function.naming, "cblas_sgemm", layout, transa, transb, &p, {9, 11, 14, 0}))
        settle(function, p, real != nullptr, pass);
}

template <class Int>
using CblasBatch = void (*)(int, int, int, Int, Int, Int, float, const float *, Int, Int, const float *, Int, Int,
                            float, float *, Int, Int, Int);

template <class Int>
void cblas_batch(Function &function, const void *caller, int layout, int transa, int transb, Int m, Int n, Int k,
                 float alpha, const float *a, Int lda, Int stride_a, const float *b, Int ldb, Int stride_b, float beta,
                 float *c, Int ldc, Int stride_c, Int batch) {
    const auto real = reinterpret_cast<CblasBatch<Int>>(real_function(function, caller));
    const auto pass = [&] {
        real(layout, transa, transb, m, n, k, alpha, a, lda, stride_a, b, ldb, stride_b, beta, c, ldc, stride_c, batch);
    };
    if (within() && real)
        return pass();
    HostProduct p = {false, 0, 0, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, stride_a, stride_b, stride_c, batch};
    if (cblas_judge<Int>(function.naming, "cblas_sgemm_batch_strided", layout, transa, transb, &p, {9, 12, 16, 18}))
        settle(function, p, real != nullptr, pass);
}

} // namespace

// ---- the names -----------------------------------------------------------------------------------------------------

#define PYBLAS_EXPORT extern "C" __attribute__((visibility("default")))

#define PYBLAS_FORTRAN(name_, Int, naming)                                                                             \
    PYBLAS_EXPORT void name_(const char *transa, const char *transb, const Int *m, const Int *n, const Int *k,         \
                             const float *alpha, const float *a, const Int *lda, const float *b, const Int *ldb,       \
                             const float *beta, float *c, const Int *ldc) {                                            \
        static Function function{#name_, naming};                                                                      \
        fortran_gemm<Int>(function, __builtin_return_address(0), transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, \
                          c, ldc);                                                                                     \
    }
PYBLAS_FORTRAN(sgemm_, int32_t, kPlain)
PYBLAS_FORTRAN(sgemm, int32_t, kBare)
PYBLAS_FORTRAN(sgemm_64_, int64_t, kPlain64)
PYBLAS_FORTRAN(sgemm_64, int64_t, kBare64)
PYBLAS_FORTRAN(scipy_sgemm_, int32_t, kScipy)
PYBLAS_FORTRAN(scipy_sgemm_64_, int64_t, kScipy64)

#define PYBLAS_CBLAS(name_, Int, naming)                                                                               \
    PYBLAS_EXPORT void name_(int layout, int transa, int transb, Int m, Int n, Int k, float alpha, const float *a,     \
                             Int lda, const float *b, Int ldb, float beta, float *c, Int ldc) {                        \
        static Function function{#name_, naming};                                                                      \
        cblas_gemm<Int>(function, __builtin_return_address(0), layout, transa, transb, m, n, k, alpha, a, lda, b, ldb, \
                        beta, c, ldc);                                                                                 \
    }
PYBLAS_CBLAS(cblas_sgemm, int32_t, kPlain)
PYBLAS_CBLAS(cblas_sgemm64_, int64_t, kPlain64)
PYBLAS_CBLAS(cblas_sgemm_64, int64_t, kBare64)
PYBLAS_CBLAS(scipy_cblas_sgemm, int32_t, kScipy)
PYBLAS_CBLAS(scipy_cblas_sgemm64_, int64_t, kScipy64)

#define PYBLAS_CBLAS_BATCH(name_, Int, naming)                                                                         \
    PYBLAS_EXPORT void name_(int layout, int transa, int transb, Int m, Int n, Int k, float alpha, const float *a,     \
                             Int lda, Int stride_a, const float *b, Int ldb, Int stride_b, float beta, float *c,       \
                             Int ldc, Int stride_c, Int batch) {                                                       \
        static Function function{#name_, naming};                                                                      \
        cblas_batch<Int>(function, __builtin_return_address(0), layout, transa, transb, m, n, k, alpha, a, lda,        \
                         stride_a, b, ldb, stride_b, beta, c, ldc, stride_c, batch);                                   \
    }
PYBLAS_CBLAS_BATCH(cblas_sgemm_batch_strided, int32_t, kPlain)
PYBLAS_CBLAS_BATCH(cblas_sgemm_batch_strided64_, int64_t, kPlain64)
PYBLAS_CBLAS_BATCH(cblas_sgemm_batch_strided_64, int64_t, kBare64)
PYBLAS_CBLAS_BATCH(scipy_cblas_sgemm_batch_strided, int32_t, kScipy)
PYBLAS_CBLAS_BATCH(scipy_cblas_sgemm_batch_strided64_, int64_t, kScipy64)
