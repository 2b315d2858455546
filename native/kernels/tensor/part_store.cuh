// How sums that tensor cores leave in fragments go to C: a warp has them of eight columns, each shared by four lanes.
//
//     lane         0    1    2    3    0    1   ...
//     rows        0 1  2 3  4 5  6 7  8 9 10 11 ...     of one column
//     C, shifted    |0 1  2 3  4 5  6 7| 8 9 ...        32 bytes of memory
//
// Where C's address, ld and edge allow, lanes store their pairs as they have them. Elsewhere one float at a time would
// touch each 32 bytes four times; lanes exchange until each has the pairs of whole ones.
#pragma once

#include <cstdint>

#include "../device/epilogue.cuh"

namespace pyblas {

// A part of a warp's sums to C, so many rows of them. Columns and rows that are unfit, or past the end, are left out.
template <int Rows>
struct PartStore {
    const Epilogue &epilogue;
    const float *row_powers, *column_powers;
    float *c;
    int64_t ld;
    int rows_left, columns_left; // from this part's first on
    bool fits;                   // all rows and columns do
    bool plain;                  // so they do, all rows exist, and C allows pairs

    // Sums of a lane: pairs of rows, 8 apart, of one column. Powers are multiplied twice: what a row and a column count
    // together may be no float where the result is one.
    __device__ __forceinline__ void operator()(const float *sums, int stride, int lane) const {
        constexpr int kPairs = Rows / 8;
        const int own_column = lane / 4, own_row = lane % 4 * 2;
        const float column_power = column_powers[own_column];
        float2 pairs[kPairs];
#pragma unroll
        for (int i = 0; i < kPairs; ++i) {
            const float2 power = *reinterpret_cast<const float2 *>(row_powers + own_row + i * 8);
            const float x = power.x * column_power, y = power.y * column_power;
            pairs[i] = {sums[i * stride] * x * x, sums[i * stride + 1] * y * y};
        }
        if (plain) {
            float *const target = c + own_row + own_column * ld;
            if (own_column < columns_left) {
                float2 old[kPairs];
#pragma unroll
                for (int i = 0; i < kPairs; ++i)
                    old[i] = epilogue.load2(target + i * 8);
#pragma unroll
                for (int i = 0; i < kPairs; ++i)
                    epilogue.store2(target + i * 8, pairs[i], old[i]);
            }
        } else {
            store_sectors(pairs, lane, own_column < columns_left && column_power != 0.0f);
        }
    }

private:
    // Where a column begins anywhere: four lanes exchange what they have of it until each has pairs that share 32 bytes
    // of memory with no others' but theirs.
    __device__ __forceinline__ void store_sectors(const float2 (&pairs)[Rows / 8], int lane, bool exists) const {
        constexpr int kPairs = Rows / 8;
        const int own = lane % 4 * 2;
        float *const column = c + lane / 4 * ld;
        const int shift = static_cast<int>(reinterpret_cast<uintptr_t>(column) / 4 % 8);
        const bool odd = shift % 2 != 0, x_stays = own + shift < 8, y_stays = own + 1 + shift < 8; // in its 32 bytes
        const int from_first = (lane & ~3) | ((lane - (shift + 1) / 2) & 3);
        const int from_second = (lane & ~3) | ((lane - shift / 2) & 3);
        // Which rows this lane stores: every eighth from its first one on, and those below.
        const int first_row = own - shift, rows = exists ? max(0, min(rows_left, Rows)) : 0;
        const auto stored = [&](int row) {
            uint32_t mask = (1u << max(0, rows - row + 7) / 8) - (row < 0 ? 2 : 1);
            if (!fits)
#pragma unroll 1
                for (int i = 0; i <= kPairs; ++i)
                    if ((mask >> i & 1) != 0 && row_powers[row + i * 8] == 0.0f)
                        mask ^= 1u << i;
            return mask;
        };
        const uint32_t stored_first = stored(first_row), stored_second = stored(first_row + 1);
        float *const target = column + first_row;
#pragma unroll
        for (int i = 0; i <= kPairs; ++i) {
            const float2 here = i < kPairs ? pairs[i] : float2{0.0f, 0.0f}, before = i > 0 ? pairs[i - 1] : here;
            const float x = x_stays ? here.x : before.x, y = y_stays ? here.y : before.y;
            const float2 sums{__shfl_sync(0xffffffff, odd ? y : x, from_first),
                              __shfl_sync(0xffffffff, odd ? x : y, from_second)};
            const bool first = (stored_first >> i & 1) != 0, second = (stored_second >> i & 1) != 0;
            float *const pair = target + i * 8;
            const float2 old{first ? epilogue.load(pair) : 0.0f, second ? epilogue.load(pair + 1) : 0.0f};
            if (first && second)
                epilogue.store2(pair, sums, old);
            if (first && !second)
                epilogue.store(pair, sums.x, old.x);
            if (second && !first)
                epilogue.store(pair + 1, sums.y, old.y);
        }
    }
};

} // namespace pyblas
