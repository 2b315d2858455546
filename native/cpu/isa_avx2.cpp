// 256-bit vectors with fused multiply-add: 16 registers of 8 floats.
#include "isa.hpp"

#include <cstdint>

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
constexpr int kDotTileRows = 4, kDotTileCols = 4, kDotTile = 12;
constexpr int kPackHeight = 2;
constexpr ptrdiff_t kAhead = 12;
constexpr int kStreamColumns = 4;

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
inline void store_past_cache(float *p, Vec v) {
    _mm_stream_ps(p, _mm256_castps256_ps128(v));
    _mm_stream_ps(p + 4, _mm256_extractf128_ps(v, 1));
}
inline void finish_past_cache() {
    _mm_sfence();
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

constexpr ptrdiff_t kSquare = 8;

template <bool Whole>
inline void transpose_tile(const float *in, ptrdiff_t stride, float *out, ptrdiff_t ldo, ptrdiff_t rows,
                           ptrdiff_t cols) {
    __m256 r[8], t[8];
    const Mask across = mask(cols), down = mask(rows);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i)
        r[i] = Whole ? load(in + i * stride) : i < rows ? load(in + i * stride, across) : zero();
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) { // pairs of rows interleaved
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) { // fours of rows
        r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) { // the two halves of each row
        const __m256 columns[2] = {_mm256_permute2f128_ps(r[i], r[i + 4], 0x20),
                                   _mm256_permute2f128_ps(r[i], r[i + 4], 0x31)};
#pragma GCC unroll 2
        for (int q = 0; q < 2; ++q) {
            if (Whole)
                store(out + (i + 4 * q) * ldo, columns[q]);
            else if (i + 4 * q < cols)
                store(out + (i + 4 * q) * ldo, columns[q], down);
        }
    }
}

#include "isa_body.hpp"

} // namespace

const Isa kAvx2 = {"avx2", outer, outer_batch, packed, stream, dot};

} // namespace pyblas::cpu

#pragma GCC pop_options
#endif
