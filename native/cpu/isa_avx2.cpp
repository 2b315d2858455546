// 256-bit vectors with fused multiply-add: 16 registers of 8 floats.
#include "isa.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("avx2,fma")

namespace pyblas::cpu {
namespace {

using Vec = __m256;
using Mask = __m256i;
constexpr ptrdiff_t kLanes = 8;
constexpr bool kMaskIsFree = false;
constexpr int kMaxHeight = 2;
constexpr ptrdiff_t kTileCols[kMaxHeight + 1] = {0, 10, 6};
constexpr int kDotTileRows = 4, kDotTileCols = 3;
constexpr ptrdiff_t kAhead = 12;

inline Mask mask(ptrdiff_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(int(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline Vec load(const float *p) {
    return _mm256_loadu_ps(p);
}
inline Vec load(const float *p, Mask m) {
    return _mm256_maskload_ps(p, m);
}
inline void store(float *p, Vec v) {
    _mm256_storeu_ps(p, v);
}
inline void store(float *p, Vec v, Mask m) {
    _mm256_maskstore_ps(p, m, v);
}
inline Vec zero() {
    return _mm256_setzero_ps();
}
inline Vec set1(float x) {
    return _mm256_set1_ps(x);
}
inline Vec add(Vec a, Vec b) {
    return _mm256_add_ps(a, b);
}
inline Vec mul(Vec a, Vec b) {
    return _mm256_mul_ps(a, b);
}
inline Vec fma(Vec a, Vec b, Vec c) {
    return _mm256_fmadd_ps(a, b, c);
}
inline Vec fma_exact(Vec a, Vec b, Vec c) {
    return fma(a, b, c);
}
inline float sum(Vec v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

#include "transpose8.hpp"

#include "isa_body.hpp"

} // namespace

const Isa kAvx2 = {"avx2", outer, dot};

} // namespace pyblas::cpu

#pragma GCC pop_options
#endif
