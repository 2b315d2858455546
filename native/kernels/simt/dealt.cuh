// How producer_tile multiplies where B lies along k and A does not, without turning B: four neighbouring lanes share k.
//
//     a quad of B, one column:  [k k+1 k+2 k+3]        A, of its own k:  [8 rows]
//                                |  |   |   |
//                     lanes      0  1   2   3          32 x 32 outputs a warp, 8 x 16 a thread
//
// A read of matrices (ldmatrix) deals quads out like that, four columns at once, so what a lane gets lies in as many
// banks of registers as if B lay along columns. It takes as long as other reads of 16 bytes for each lane. Lanes take
// the place of slices: the four of a group have those products that four slices would have, and add them in their
// order.
#pragma once

#include "../device/ptx.cuh"
#include "warp_tile.cuh"

namespace pyblas {

constexpr int kDealers = 4; // lanes that share k, or as many slices

// Slices of such a tile take k in turns, four of them one after another, so that they can be lanes instead.
template <class Tile>
constexpr bool kDeals = Tile::kSlices % kDealers == 0 && Tile::WM == 64 && Tile::WN == 64 && Tile::TM == 8;

__device__ __forceinline__ float sum_of(float x, float y) {
    return x + y;
}
__device__ __forceinline__ float4 sum_of(const float4 &x, const float4 &y) {
    return {x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w};
}

// What so many slices have of one sum, in the order of lanes: each pair that lies two apart, then both pairs, then
// fours.
template <int Slices, class Sums>
__device__ __forceinline__ Sums sum_of_fours(const Sums *first, int apart) {
    Sums sum;
#pragma unroll
    for (int slice = 0; slice < Slices; slice += kDealers) {
        const Sums *const four = first + slice * apart;
        const Sums own = sum_of(sum_of(four[0], four[2 * apart]), sum_of(four[apart], four[3 * apart]));
        sum = slice == 0 ? own : sum_of(sum, own);
    }
    return sum;
}

#if PYBLAS_HAS_WGMMA

// A thread's share of a tile, and of the k of a stage.
template <class Tile>
class Dealt {
    static constexpr int kSide = 32, kDown = Tile::BM / kSide, kWarps = kDown * (Tile::BN / kSide);
    static constexpr int kRun = kDealers * Tile::kSliceK, kGroupsM = 4, kGroupsN = 2;
    static constexpr int kSets = Tile::TN / 4, kColumns = Tile::TN / kDealers;
    static_assert(kRun == 32 && Tile::kThreads / 32 == kWarps * (Tile::kSlices / kDealers), "rows of 128 bytes of B");
    static_assert(Tile::TM == 8 && Tile::TN == 16, "two quads down, four sets of columns across");

public:
    __device__ __forceinline__ explicit Dealt(int thread)
        : lane_(thread % 32), slice_(thread / 32 / kWarps),
          row_(thread / 32 % kWarps % kDown * kSide + lane_ / 4 % 4 * 4),
          column_(thread / 32 % kWarps / kDown * kSide) {
        // Quads of odd lanes are read in the other order: rows of k lie in the same banks.
        from_a_ = (slice_ * kRun + lane_ % kDealers) * Tile::BM + row_ + (lane_ % 2) * kHalf;
        const int x = column_ + lane_ % 8 / kGroupsM + lane_ / 8 * kGroupsN; // of the quad that is read for others
        from_b_ = (slice_ * Tile::BN + x) * kRun + x % 8 * 4;
    }

    // Reads what the thread multiplies in a step of four k.
    __device__ __forceinline__ void read(const float *a, const float *b, int step, float (&frag_a)[Tile::TM],
                                         float (&frag_b)[Tile::TN]) const {
        const float *const near = a + from_a_ + step * kDealers * Tile::BM;
        const float4 first = *reinterpret_cast<const float4 *>(near);
        const float4 second = *reinterpret_cast<const float4 *>(near + kHalf - lane_ % 2 * (2 * kHalf));
        frag_a[0] = first.x, frag_a[1] = first.y, frag_a[2] = first.z, frag_a[3] = first.w;
        frag_a[4] = second.x, frag_a[5] = second.y, frag_a[6] = second.z, frag_a[7] = second.w;
        const float *const quads = b + (from_b_ ^ (step * 4)); // as the copy engine has exchanged them
#pragma unroll
        for (int set = 0; set < kSets; ++set) {
            uint32_t words[4];
            ptx::load_matrices(words, reinterpret_cast<const uint16_t *>(quads + set * (4 * kGroupsN * kRun)));
#pragma unroll
            for (int i = 0; i < 4; ++i)
                frag_b[set * 4 + i] = __uint_as_float(words[i]);
        }
    }

    // Adds what the four lanes have; each then has a quarter of their columns, in the first ones of acc.
    __device__ __forceinline__ void add_lanes(float (&acc)[Tile::TN][Tile::TM]) const {
        const bool odd = lane_ % 2 != 0;
#pragma unroll
        for (int j = 0; j < Tile::TN; ++j)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float first = acc[j][i], second = acc[j][i + 4];
                acc[j][i] = odd ? second : first, acc[j][i + 4] = odd ? first : second;
            }
#pragma unroll
        for (int flip = 2; flip > 0; flip /= 2) {
            const int left = kColumns * flip;
            const bool upper = (lane_ & flip) != 0;
#pragma unroll
            for (int j = 0; j < left; ++j)
#pragma unroll
                for (int i = 0; i < Tile::TM; ++i) {
                    const float mine = upper ? acc[j + left][i] : acc[j][i];
                    const float theirs = upper ? acc[j][i] : acc[j + left][i];
                    acc[j][i] = mine + __shfl_xor_sync(~0u, theirs, flip);
                }
        }
    }

    // Hands over a quarter, as a slice of a tile that is not dealt would.
    template <class Store>
    __device__ __forceinline__ void hand_over(const float (&acc)[Tile::TN][Tile::TM], Store store) const {
#pragma unroll
        for (int j = 0; j < kColumns; ++j)
#pragma unroll
            for (int quad = 0; quad < Tile::TM / 4; ++quad) {
                const float *const sum = &acc[j][quad * 4];
                store(slice_, row_ + quad * kHalf, column_ + lane_ / 16 + (lane_ % kDealers * kColumns + j) * kGroupsN,
                      float4{sum[0], sum[1], sum[2], sum[3]});
            }
    }

private:
    static constexpr int kHalf = 4 * kGroupsM; // rows between a thread's quads

    const int lane_, slice_, row_, column_;
    int from_a_, from_b_;
};

#endif

} // namespace pyblas
