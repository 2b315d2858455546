// The compiler's vectors of four floats: SSE2 on x86-64, NEON on AArch64, and whatever it makes of them elsewhere.
#include "isa.hpp"

#include <cstdint>
#include <cstring>

namespace pyblas::cpu {
namespace {

typedef float Vec __attribute__((vector_size(16)));
using Mask = ptrdiff_t; // number of lanes
constexpr ptrdiff_t kLanes = 4;
constexpr bool kMaskIsFree = false;
constexpr int kMaxHeight = 2;
constexpr ptrdiff_t kTileCols[kMaxHeight + 1] = {0, 8, 5};
constexpr int kDotTileRows = 3, kDotTileCols = 3, kDotTile = 9;
constexpr int kPackHeight = 2;
constexpr ptrdiff_t kAhead = 12;
constexpr int kStreamColumns = 4;
constexpr ptrdiff_t kSquare = 4;

inline Mask mask(ptrdiff_t n) {
    return n;
}
inline Vec load(const float *p) {
    Vec v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
inline Vec load(const float *p, Mask m) {
    Vec v{};
    for (ptrdiff_t i = 0; i < kLanes; ++i)
        if (i < m)
            v[i] = p[i];
    return v;
}
inline void store(float *p, Vec v) {
    std::memcpy(p, &v, sizeof v);
}
inline void store(float *p, Vec v, Mask m) {
    for (ptrdiff_t i = 0; i < kLanes; ++i)
        if (i < m)
            p[i] = v[i];
}
inline void store_past_cache(float *p, Vec v) {
    store(p, v);
}
inline void finish_past_cache() {}
inline Vec zero() {
    return Vec{};
}
inline Vec set1(float x) {
    return Vec{x, x, x, x};
}
inline Vec add(Vec a, Vec b) {
    return a + b;
}
inline Vec mul(Vec a, Vec b) {
    return a * b;
}
// Without a fused instruction the last step of a result, fma(alpha, sum, beta * C), still has to be one rounding.
[[gnu::noinline]] Vec fma_exact(Vec a, Vec b, Vec c) {
    for (int i = 0; i < kLanes; ++i)
        a[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return a;
}
#if defined(__FP_FAST_FMAF)
inline Vec fma(Vec a, Vec b, Vec c) {
    for (int i = 0; i < kLanes; ++i)
        a[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return a;
}
#else
inline Vec fma(Vec a, Vec b, Vec c) {
    return a * b + c;
}
#endif
inline float sum(Vec v) {
    return (v[0] + v[2]) + (v[1] + v[3]);
}

template <bool Whole>
inline void transpose_tile(const float *in, ptrdiff_t stride, float *out, ptrdiff_t ldo, ptrdiff_t rows,
                           ptrdiff_t cols) {
    for (ptrdiff_t p = 0; p < (Whole ? kSquare : cols); ++p)
        for (ptrdiff_t i = 0; i < (Whole ? kSquare : rows); ++i)
            out[p * ldo + i] = in[i * stride + p];
}

#include "isa_body.hpp"

} // namespace

const Isa kGeneric = {"generic", outer, outer_batch, packed, stream, dot};

} // namespace pyblas::cpu
