// An 8 x 8 transposition in AVX registers, for the two instruction sets that have them. Included like isa_body.hpp.

constexpr ptrdiff_t kSquare = 8;

inline void transpose_tile(const float *in, ptrdiff_t stride, float *out, ptrdiff_t ldo) {
    __m256 r[8], t[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i)
        r[i] = _mm256_loadu_ps(in + i * stride);
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
        _mm256_storeu_ps(out + i * ldo, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
        _mm256_storeu_ps(out + (i + 4) * ldo, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
}
