// 512-bit vectors: 32 registers of 16 floats, and masks for the edges.
#include "isa.hpp"

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>

#pragma GCC push_options
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized" // gcc 12 sees one inside its own _mm512 extractions
#pragma GCC target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,bmi2")

namespace pyblas::cpu {
namespace {

using Vec = __m512;
using Mask = __mmask16;
constexpr ptrdiff_t kLanes = 16;
constexpr bool kMaskIsFree = true;
constexpr int kMaxHeight = 4;
constexpr ptrdiff_t kTileCols[kMaxHeight + 1] = {0, 16, 12, 8, 6};
constexpr int kDotTileRows = 8, kDotTileCols = 6, kDotTile = 24;
constexpr int kPackHeight = 3;
constexpr ptrdiff_t kAhead = 12;
constexpr int kStreamColumns = 8;

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
inline void store_past_cache(float *p, Vec v) {
    _mm_stream_ps(p, _mm512_castps512_ps128(v));
    _mm_stream_ps(p + 4, _mm512_extractf32x4_ps(v, 1));
    _mm_stream_ps(p + 8, _mm512_extractf32x4_ps(v, 2));
    _mm_stream_ps(p + 12, _mm512_extractf32x4_ps(v, 3));
}
inline void finish_past_cache() {
    _mm_sfence();
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

constexpr ptrdiff_t kSquare = 16;

template <bool Whole>
inline void transpose_tile(const float *in, ptrdiff_t stride, float *out, ptrdiff_t ldo, ptrdiff_t rows,
                           ptrdiff_t cols) {
    __m512 r[16], t[16];
    const Mask across = mask(cols), down = mask(rows);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i)
        r[i] = Whole ? load(in + i * stride) : i < rows ? load(in + i * stride, across) : zero();
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) { // pairs of rows interleaved
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) { // r[i + c]: column c of each quarter, of rows i to i + 3
        r[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) { // quarters of four registers collected, for columns c, c + 4, c + 8, c + 12
        const __m512 a = _mm512_shuffle_f32x4(r[c], r[c + 4], 0x88), b = _mm512_shuffle_f32x4(r[c], r[c + 4], 0xdd);
        const __m512 d = _mm512_shuffle_f32x4(r[c + 8], r[c + 12], 0x88);
        const __m512 e = _mm512_shuffle_f32x4(r[c + 8], r[c + 12], 0xdd);
        const __m512 columns[4] = {_mm512_shuffle_f32x4(a, d, 0x88), _mm512_shuffle_f32x4(b, e, 0x88),
                                   _mm512_shuffle_f32x4(a, d, 0xdd), _mm512_shuffle_f32x4(b, e, 0xdd)};
#pragma GCC unroll 4
        for (int q = 0; q < 4; ++q) {
            if (Whole)
                store(out + (c + 4 * q) * ldo, columns[q]);
            else if (c + 4 * q < cols)
                store(out + (c + 4 * q) * ldo, columns[q], down);
        }
    }
}

#include "isa_body.hpp"

} // namespace

const Isa kAvx512 = {"avx512", outer, outer_batch, packed, stream, dot};

} // namespace pyblas::cpu

#pragma GCC pop_options
#endif
