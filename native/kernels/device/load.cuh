// Global to shared memory: op, ld, edges and alignment are settled here, and kernels see tiles [k][x] padded with
// zeros. x runs along C: rows for A, columns for B.
#pragma once

#include <cstdint>

#include "problem.hpp"
#include "ptx.cuh"

namespace pyblas {

// op(A) or op(B) of one batch. One of the two steps is 1.
struct View {
    const float *data;
    int64_t step_x, step_k;

    __device__ __forceinline__ bool contiguous_x() const { return step_x == 1; }
    __device__ __forceinline__ const float *at(int64_t x, int64_t k) const { return data + x * step_x + k * step_k; }
};

__device__ __forceinline__ View view_a(const Problem &problem, int64_t batch) {
    const bool contiguous = problem.transa == Op::N;
    return {problem.a.matrix(batch), contiguous ? 1 : problem.a.ld, contiguous ? problem.a.ld : 1};
}

__device__ __forceinline__ View view_b(const Problem &problem, int64_t batch) {
    const bool contiguous = problem.transb == Op::T;
    return {problem.b.matrix(batch), contiguous ? 1 : problem.b.ld, contiguous ? problem.b.ld : 1};
}

// The smaller of what is left of an extent and a tile's side, as an int.
__device__ __forceinline__ int part(int64_t left, int side) {
    return left < side ? static_cast<int>(left) : side;
}

// One tile through registers, neighbouring threads along the contiguous direction. Zeros beyond x_left and k_left.
template <int X, int K, int Threads, int Row>
__device__ __forceinline__ void load_tile(float (&tile)[K][Row], const View &view, int64_t x0, int64_t k0, int x_left,
                                          int k_left) {
    static_assert(X * K % Threads == 0, "every thread loads the same number of elements");
    const bool contiguous_x = view.contiguous_x();
    const float *corner = view.at(x0, k0);
#pragma unroll
    for (int i = 0; i < X * K / Threads; ++i) {
        const int element = static_cast<int>(threadIdx.x) + i * Threads;
        const int x = contiguous_x ? element % X : element / K;
        const int k = contiguous_x ? element / X : element % K;
        tile[k][x] = x < x_left && k < k_left ? corner[x * view.step_x + k * view.step_k] : 0.0f;
    }
}

// The tiles of one operand on their way to shared memory by asynchronous copies, one after another along k.
// ContiguousX: rows of x in global memory too, so four floats travel at once where pointer, ld and extent allow;
// otherwise one by one. Not ContiguousX: transposed on the way, always one by one; the row of the shared tile is padded
// so that the 8 x 4 floats a warp writes fall into 32 banks. The width never changes what arrives.
template <int X, int K, int Threads, bool ContiguousX>
class TileStream {
public:
    static constexpr int kRow = ContiguousX ? X : X + 4; // floats; a multiple of four for vector reads
    static constexpr int kFloats = K * kRow;

    __device__ __forceinline__ TileStream(const View &view, int64_t x0, int64_t x_extent)
        : x_left_(part(x_extent - x0, X)) {
        const int thread = static_cast<int>(threadIdx.x);
        if constexpr (ContiguousX) {
            wide_ = (reinterpret_cast<uintptr_t>(view.at(x0, 0)) % 16 == 0) && view.step_k % 4 == 0 && x_left_ % 4 == 0;
            const int across = wide_ ? X / 4 : X; // threads along x
            x_ = wide_ ? thread % (X / 4) * 4 : thread % X;
            k_ = wide_ ? thread / (X / 4) : thread / X;
            step_ = Threads / across * view.step_k;
        } else {
            wide_ = false;
            x_ = thread / kLanesK;
            k_ = thread % kLanesK;
            step_ = Threads / kLanesK * view.step_x;
        }
        source_ = view.at(x0 + x_, k_);
    }

    // Issues the copies of the next tile, k_left of it inside the operand.
    __device__ __forceinline__ void next(float *tile, int k_left) {
        float *target = tile + k_ * kRow + x_;
        if constexpr (!ContiguousX) {
            const float *source = source_;
#pragma unroll
            for (int i = 0; i < X * kLanesK / Threads; ++i) {
                const bool inside = x_ + i * (Threads / kLanesK) < x_left_;
#pragma unroll
                for (int k = 0; k < K; k += kLanesK)
                    ptx::copy_async<4>(target + k * kRow + i * (Threads / kLanesK), source + k,
                                       inside && k_ + k < k_left);
                source += step_;
            }
            source_ += K;
        } else if (wide_) {
            rows<4>(target, k_left);
        } else {
            rows<1>(target, k_left);
        }
    }

private:
    static constexpr int kLanesK = 8;
    static_assert(K % kLanesK == 0 && Threads % kLanesK == 0 && X * kLanesK % Threads == 0, "threads tile the tile");

    template <int Width>
    __device__ __forceinline__ void rows(float *target, int k_left) {
        constexpr int kAcross = X / Width, kDown = Threads / kAcross;
        static_assert(Threads % kAcross == 0 && K % kDown == 0, "threads tile the tile");
#pragma unroll
        for (int k = 0; k < K; k += kDown) {
            ptx::copy_async<4 * Width>(target + k * kRow, source_, x_ < x_left_ && k_ + k < k_left);
            source_ += step_;
        }
    }

    const float *source_; // this thread's first element of the next tile
    int64_t step_;        // floats between its rows
    int x_left_, x_, k_;
    bool wide_;
};

} // namespace pyblas
