// 512-bit vectors: 32 registers of 16 floats, and masks for the edges.
#include "isa.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

#pragma GCC push_options
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized" // gcc 12 sees one inside its own _mm512 extractions
#pragma GCC target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,bmi2")

namespace pyblas::cpu {
namespace {

using Vec = __m512;
using Mask = __mmask16;
constexpr ptrdiff_t kLanes = 16;
constexpr bool kMaskIsFree = true;
constexpr int kMaxHeight = 4;
constexpr ptrdiff_t kTileCols[kMaxHeight + 1] = {0, 14, 12, 8, 6};
constexpr int kDotTileRows = 8, kDotTileCols = 3;
constexpr ptrdiff_t kAhead = 12;

inline Mask mask(ptrdiff_t n) {
    return Mask(_bzhi_u32(0xffff, unsigned(n)));
}
inline Vec load(const float *p) {
    return _mm512_loadu_ps(p);
}
inline Vec load(const float *p, Mask m) {
    return _mm512_maskz_loadu_ps(m, p);
}
inline void store(float *p, Vec v) {
    _mm512_storeu_ps(p, v);
}
inline void store(float *p, Vec v, Mask m) {
    _mm512_mask_storeu_ps(p, m, v);
}
inline Vec zero() {
    return _mm512_setzero_ps();
}
inline Vec set1(float x) {
    return _mm512_set1_ps(x);
}
inline Vec add(Vec a, Vec b) {
    return _mm512_add_ps(a, b);
}
inline Vec mul(Vec a, Vec b) {
    return _mm512_mul_ps(a, b);
}
inline Vec fma(Vec a, Vec b, Vec c) {
    return _mm512_fmadd_ps(a, b, c);
}
inline Vec fma_exact(Vec a, Vec b, Vec c) {
    return fma(a, b, c);
}
inline float sum(Vec v) {
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

#include "transpose8.hpp"

#include "isa_body.hpp"

} // namespace

const Isa kAvx512 = {"avx512", outer, dot};

} // namespace pyblas::cpu

#pragma GCC pop_options
#endif
