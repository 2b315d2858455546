// How operands reach shared memory as [k][x] when warps of their own bring them: as boxes of the copy engine, and what
// is contiguous along k is turned on the way. x runs along C: rows for A, columns for B.
#pragma once

#include "../device/ptx.cuh"
#include "../device/ring.cuh"
#include "../device/tensor_maps.cuh"

namespace pyblas {

// One operand, as boxes.
struct Way {
    MatrixMap matrices;
    bool turned;    // contiguous along k
    int64_t panel;  // it lies in panels, that many k each; 0: as the caller has it
    int64_t panels; // of one matrix; 0: all batches share them
};

struct Ways {
    Way a, b;
};

// A tile's side of X, and BK of k.
template <int X, int BK>
struct Side {
    static constexpr int kFloats = X * BK;
    static constexpr int kRun = BK < 32 ? BK : 32; // of k, in one box of what is contiguous along k
    static_assert(kRun == 16 || kRun == 32, "the copy engine exchanges quads within 64 or 128 bytes");
    static_assert(X % 16 == 0 && X <= 256 && BK <= 256, "a box");

    // Where a quad of k of x lies before it is turned: rows of kRun, quads exchanged so that eight x meet all banks.
    static __device__ __forceinline__ int staged(int x, int k) {
        const int exchange = kRun == 32 ? x % 8 : x / 2 % 4;
        return (k / kRun * X + x) * kRun + (k % kRun / 4 ^ exchange) * 4;
    }

    // Turns a tile, as one of so many warps: neighbouring lanes have neighbouring x, on both sides without a conflict.
    static __device__ __forceinline__ void turn(const float *from, float *to, int warp, int warps) {
        constexpr int kAcross = X % 32 == 0 ? 32 : 16; // lanes
        const int lane = static_cast<int>(threadIdx.x) % 32, x = lane % kAcross;
#pragma unroll 1
        for (int k = (warp * (32 / kAcross) + lane / kAcross) * 4; k < BK; k += warps * (32 / kAcross) * 4) {
            const float *const row = from + staged(x, k);
            float *const column = to + k * X + x;
#pragma unroll
            for (int across = 0; across < X; across += kAcross) {
                const float4 quad = *reinterpret_cast<const float4 *>(row + across * kRun);
                column[across] = quad.x, column[across + X] = quad.y;
                column[across + 2 * X] = quad.z, column[across + 3 * X] = quad.w;
            }
        }
    }
};

#if PYBLAS_HAS_WGMMA

// One operand of a block, from its first x and k on.
template <int X, int BK>
class Asker {
public:
    __device__ __forceinline__ Asker(const Way &way, int64_t batch, int64_t tile, int64_t k_begin)
        : way_(way), x_(way.panel ? 0 : static_cast<int>(tile) * X),
          k_(static_cast<int>(k_begin) + (way.panel ? static_cast<int>((batch * way.panels + tile) * way.panel) : 0)),
          batch_(way.matrices.first + static_cast<int>(batch) * way.matrices.step) {}

    // A warp asks for the tile of that stage; come is told when it is there.
    __device__ __forceinline__ void ask(int stage, float *tile, uint64_t *come) const {
        constexpr int kRun = Side<X, BK>::kRun;
        if (threadIdx.x % 32 != 0)
            return;
        const int k = k_ + stage * BK;
        ptx::expect(come, 4 * X * BK);
        if (way_.turned) {
#pragma unroll
            for (int run = 0; run < BK; run += kRun)
                ptx::copy_box(tile + run * X, &way_.matrices.map, k + run, x_, 0, batch_, come);
        } else {
            ptx::copy_box(tile, &way_.matrices.map, x_, k, 0, batch_, come);
        }
        ptx::arrive(come);
    }

private:
    const Way &way_;
    const int x_, k_, batch_;
};

#endif

// An operand that the copy engine can read, as it lies.
template <int X, int BK>
Status way_of(const Operand &operand, bool turned, int64_t extent, int64_t depth, int64_t batch, Way *way) {
    constexpr int kRun = Side<X, BK>::kRun;
    *way = {};
    way->turned = turned;
    return turned
               ? map_matrices(operand, depth, extent, batch, kRun, X, false,
                              kRun == 32 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B, &way->matrices)
               : map_matrices(operand, extent, depth, batch, X, BK, false, CU_TENSOR_MAP_SWIZZLE_NONE, &way->matrices);
}

// Panels of so many tiles of each matrix, each of that many k.
template <int X, int BK>
Status way_of_panels(float *panels, int64_t tiles, int64_t padded, int64_t matrices, Way *way) {
    Operand operand = {};
    operand.data = panels, operand.ld = X;
    PYBLAS_TRY((way_of<X, BK>(operand, false, X, matrices * tiles * padded, 1, way)));
    way->panel = padded, way->panels = matrices > 1 ? tiles : 0;
    return kSuccess;
}

} // namespace pyblas
