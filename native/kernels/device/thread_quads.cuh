// A block's threads in quads, the 128 bits that one instruction moves: a thread brings one quad of each operand's tile
// to shared memory through its registers, reads quads of both, and its outputs are quads of 4 rows by 4 columns. The
// shared tile is [k][x], padded with zeros; x runs along C: rows for A, columns for B.
//
// An order says where the quads of a tile X wide lie, and which of them belong to a thread that has T of X:
//   quad(thread, i)   number of the thread's quad i
//   at(k, quad)       its place in the shared tile, in floats; rows 4 k to 4 k + 3 are alike, kRow apart
#pragma once

#include <cstdint>

#include "epilogue.cuh"
#include "load.cuh"

namespace pyblas {

// The quads of a thread lie as far apart as there are threads along the side, so neighbouring threads read neighbouring
// quads: eight of them, which one pass of shared memory serves, cover all 32 banks. With rows of 4 floats more, quads
// that are transposed on their way in meet no bank twice either.
template <int X, int T>
struct Halves {
    static constexpr int kRow = X + 4; // floats
    static __device__ __forceinline__ int quad(int thread, int i) { return thread + i * (X / T); }
    static __device__ __forceinline__ int at(int k, int quad) { return k * kRow + 4 * quad; }
};

// A thread's quad of one tile after another along k. It lies along the direction that is contiguous in global memory,
// so that it is one load if pointer and ld are aligned; the width never changes what arrives.
template <int X, int K, int Threads, class Order>
class QuadCursor {
public:
    __device__ __forceinline__ QuadCursor(const View &view, int64_t x0, int64_t x_extent)
        : advance_(K * view.step_k), contiguous_x_(view.contiguous_x()) {
        const int thread = static_cast<int>(threadIdx.x);
        const int x = contiguous_x_ ? thread % (X / 4) * 4 : thread / (K / 4);
        const int k = contiguous_x_ ? thread / (X / 4) : thread % (K / 4) * 4;
        const int x_left = part(x_extent - x0, X) - x;
        source_ = view.at(x0 + x, k);
        target_ = Order::at(k, x / 4) + x % 4;
        k_first_ = x_left > 0 ? k : K; // nothing of the tile is inside
        x_left_ = x_left;
        aligned_ =
            reinterpret_cast<uintptr_t>(view.data) % 16 == 0 && (contiguous_x_ ? view.step_k : view.step_x) % 4 == 0;
    }

    // The quad of the next tile, k_left of it inside the operand.
    __device__ __forceinline__ float4 load(int k_left) {
        const int k = k_left - k_first_;
        const int inside = contiguous_x_ && k > 0 ? x_left_ : k;
        float4 quad{0.0f, 0.0f, 0.0f, 0.0f};
        if (aligned_ && inside >= 4) {
            quad = *reinterpret_cast<const float4 *>(source_);
        } else {
            if (inside > 0)
                quad.x = source_[0];
            if (inside > 1)
                quad.y = source_[1];
            if (inside > 2)
                quad.z = source_[2];
            if (inside > 3)
                quad.w = source_[3];
        }
        source_ += advance_;
        return quad;
    }

    // To the shared tile: as it is where x is contiguous, otherwise into four rows of k.
    __device__ __forceinline__ void store(float *tile, const float4 &quad) const {
        float *const target = tile + target_;
        if (contiguous_x_) {
            *reinterpret_cast<float4 *>(target) = quad;
        } else {
            target[0] = quad.x;
            target[Order::kRow] = quad.y;
            target[2 * Order::kRow] = quad.z;
            target[3 * Order::kRow] = quad.w;
        }
    }

private:
    static_assert(X % 4 == 0 && K % 4 == 0 && X * K == 4 * Threads, "one quad for each thread");

    const float *source_; // of the next tile
    int64_t advance_;     // floats from tile to tile
    int target_;          // in the shared tile
    int k_first_, x_left_;
    bool contiguous_x_, aligned_;
};

// T values of row k, in quads.
template <class Order, int T>
__device__ __forceinline__ void read_quads(const float *tile, int thread, int k, float (&fragment)[T]) {
#pragma unroll
    for (int i = 0; i < T; i += 4) {
        const float4 quad = *reinterpret_cast<const float4 *>(tile + Order::at(k, Order::quad(thread, i / 4)));
        fragment[i] = quad.x, fragment[i + 1] = quad.y, fragment[i + 2] = quad.z, fragment[i + 3] = quad.w;
    }
}

// A thread's part of one tile: an outer product for each k, in ascending order. The fragments of the next k are read
// while this one is multiplied; asked for one ahead and no further, they leave the other registers alone.
template <class OrderM, class OrderN, int Depth, int TM, int TN>
__device__ __forceinline__ void multiply_quads(const float *smem_a, const float *smem_b, int row, int column,
                                               float (&acc)[TN][TM]) {
    float frag_a[2][TM], frag_b[2][TN];
    read_quads<OrderM>(smem_a, row, 0, frag_a[0]);
    read_quads<OrderN>(smem_b, column, 0, frag_b[0]);
#pragma unroll
    for (int k = 0; k < Depth; ++k) {
        if (k + 1 < Depth) {
            read_quads<OrderM>(smem_a, row, k + 1, frag_a[(k + 1) % 2]);
            read_quads<OrderN>(smem_b, column, k + 1, frag_b[(k + 1) % 2]);
        }
#pragma unroll
        for (int j = 0; j < TN; ++j)
#pragma unroll
            for (int i = 0; i < TM; ++i)
                acc[j][i] = fmaf(frag_a[k % 2][i], frag_b[k % 2][j], acc[j][i]);
    }
}

// A thread's outputs, four rows at once where C's address, ld and edge allow. c is the block's corner.
template <class OrderM, class OrderN, int TM, int TN>
__device__ __forceinline__ void store_quads(const Epilogue &epilogue, float *c, int64_t ld, int m_left, int n_left,
                                            int row, int column, const float (&acc)[TN][TM]) {
    const bool aligned = reinterpret_cast<uintptr_t>(c) % 16 == 0 && ld % 4 == 0;
#pragma unroll
    for (int j = 0; j < TN; ++j) {
        const int across = 4 * OrderN::quad(column, j / 4) + j % 4;
        if (across >= n_left)
            continue;
#pragma unroll
        for (int i = 0; i < TM; i += 4) {
            const int down = 4 * OrderM::quad(row, i / 4);
            float *const target = c + down + across * ld;
            if (aligned && down + 4 <= m_left) {
                epilogue.store4(target, {acc[j][i], acc[j][i + 1], acc[j][i + 2], acc[j][i + 3]});
            } else {
#pragma unroll
                for (int r = 0; r < 4; ++r)
                    if (down + r < m_left)
                        epilogue.store(target + r, acc[j][i + r]);
            }
        }
    }
}

} // namespace pyblas
