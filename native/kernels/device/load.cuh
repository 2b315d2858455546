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

    PYBLAS_HOST_DEVICE inline bool contiguous_x() const { return step_x == 1; }
    PYBLAS_HOST_DEVICE inline const float *at(int64_t x, int64_t k) const { return data + x * step_x + k * step_k; }
    PYBLAS_HOST_DEVICE inline View from(int64_t k) const { return {data + k * step_k, step_x, step_k}; }
};

PYBLAS_HOST_DEVICE inline View view_a(const Problem &problem, int64_t batch) {
    const bool contiguous = problem.transa == Op::N;
    return {problem.a.matrix(batch), contiguous ? 1 : problem.a.ld, contiguous ? problem.a.ld : 1};
}

PYBLAS_HOST_DEVICE inline View view_b(const Problem &problem, int64_t batch) {
    const bool contiguous = problem.transb == Op::T;
    return {problem.b.matrix(batch), contiguous ? 1 : problem.b.ld, contiguous ? problem.b.ld : 1};
}

// One product's operands as x and s, the side of rows of C and that of columns, or the other way round. Without depth
// they are nothing: then neither they nor arrays of pointers to them may be read.
struct Sides {
    View x = {}, s = {};

    __device__ __forceinline__ Sides(const Problem &problem, bool x_is_rows, int64_t batch, int64_t depth) {
        if (depth > 0) {
            const View a = view_a(problem, batch), b = view_b(problem, batch);
            x = x_is_rows ? a : b, s = x_is_rows ? b : a;
        }
    }
};

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
    constexpr int kLoads = X * K / Threads;
    const auto place_x = [&](int i) {
        const int element = static_cast<int>(threadIdx.x) + i * Threads;
        return contiguous_x ? element % X : element / K;
    };
    const auto place_k = [&](int i) {
        const int element = static_cast<int>(threadIdx.x) + i * Threads;
        return contiguous_x ? element / X : element % K;
    };
    float values[kLoads]; // all on their way before the first store, which the compiler lets no load pass
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
        const int x = place_x(i), k = place_k(i);
        values[i] = x < x_left && k < k_left ? corner[x * view.step_x + k * view.step_k] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i)
        tile[place_k(i)][place_x(i)] = values[i];
}

// The tiles of one operand on their way to shared memory by asynchronous copies, one after another along k; the shared
// tile is [k][x] always. If x is contiguous in global memory, four floats travel at once where pointer, ld and edge
// allow; otherwise, and whenever k is contiguous, one by one. The width never changes what arrives.
//
// With contiguous k, a warp copies 16 k of two neighbouring x: two half lines of global memory. Rows padded by four
// floats put 8 k into different quads of the banks, and the other 8 k turn their quads by two: 32 floats, 32 banks.
template <int X, int K, int Threads, bool ContiguousX>
class TileStream {
public:
    static constexpr int kRow = ContiguousX ? X : X + 4; // floats
    static constexpr int kFloats = K * kRow;

    // thread: which one of Threads this is.
    __device__ __forceinline__ TileStream(const View &view, int64_t x0, int64_t x_extent,
                                          int thread = static_cast<int>(threadIdx.x))
        : step_(ContiguousX ? view.step_k : view.step_x) {
        const int x_left = part(x_extent - x0, X);
        wide_ =
            ContiguousX && reinterpret_cast<uintptr_t>(view.at(x0, 0)) % 16 == 0 && step_ % 4 == 0 && x_left % 4 == 0;
        int x, k;
        if constexpr (ContiguousX) {
            const int across = wide_ ? kAcross<4> : kAcross<1>; // threads along x
            x = thread % across * (wide_ ? 4 : 1);
            k = thread / across;
            step_ *= Threads / across;
            target_ = k * kRow + x;
        } else {
            // A run of k of each x, neighbouring x first, then the next run.
            x = thread / kRun % kStepX;
            k = thread % kRun + thread / (kRun * kStepX) * kRun;
            step_ *= kStepX;
            target_ = k * kRow + x / 4 * 4 + (x + turn(k)) % 4;
        }
        source_ = view.at(x0 + x, k);
        x_left_ = x_left - x;
        k_first_ = k;
    }

    // Issues the copies of the next tile, k_left of it inside the operand.
    __device__ __forceinline__ void next(float *tile, int k_left) {
        float *target = tile + target_;
        k_left -= k_first_;
        if constexpr (!ContiguousX) {
            const float *source = source_;
            float *const across = tile + (target_ ^ 2); // two x on, within a quad
#pragma unroll
            for (int x = 0; x < X; x += kStepX, source += step_)
                ptx::copy_async<4>(x % 4 == 2 ? across + x - 2 : target + x, source, x_left_ > x && k_left > 0);
            source_ += K;
        } else if (wide_) {
            rows<4>(target, k_left);
        } else {
            rows<1>(target, k_left);
        }
    }

    // A thread's share of row k: Count values of x in quads, Lanes quads apart. tile points to the first of them.
    template <int Count, int Lanes>
    static __device__ __forceinline__ void read(const float *tile, int k, float (&fragment)[Count]) {
        static_assert(Count % 4 == 0, "quads");
#pragma unroll
        for (int i = 0; i < Count; i += 4) {
            const float4 quad = *reinterpret_cast<const float4 *>(tile + k * kRow + i * Lanes);
            const int first = i + turn(k);
            fragment[i] = first % 4 == 0 ? quad.x : quad.z;
            fragment[i + 1] = first % 4 == 0 ? quad.y : quad.w;
            fragment[i + 2] = first % 4 == 0 ? quad.z : quad.x;
            fragment[i + 3] = first % 4 == 0 ? quad.w : quad.y;
        }
    }

private:
    static constexpr int kRun = K < 16 ? K : 16;
    static constexpr int kStepX = Threads / K; // with contiguous k, from one copy of a thread to its next

    static_assert(X % 4 == 0 && K % 8 == 0, "quads of x, and a whole turn of k");
    static_assert(ContiguousX || (K % kRun == 0 && Threads % K == 0 && X % (Threads / K) == 0 &&
                                  (Threads / K == 2 || Threads / K % 4 == 0)),
                  "threads tile the tile");

    // By how much the quads of row k are turned.
    static __device__ __forceinline__ constexpr int turn(int k) { return ContiguousX ? 0 : k / 8 % 2 * 2; }

    // Threads along x, for copies of Width floats: a power of two, so that a thread's place costs no division.
    template <int Width>
    static constexpr int kAcross = (X / Width & -(X / Width)) < Threads ? (X / Width & -(X / Width)) : Threads;

    template <int Width>
    __device__ __forceinline__ void rows(float *target, int k_left) {
        constexpr int kStep = Threads / kAcross<Width>; // rows all threads together copy at once
        static_assert(Threads % kAcross<Width> == 0 && K % kStep == 0, "threads tile the tile");
#pragma unroll
        for (int k = 0; k < K; k += kStep, source_ += step_)
#pragma unroll
            for (int x = 0; x < X; x += Width * kAcross<Width>)
                ptx::copy_async<4 * Width>(target + k * kRow + x, source_ + x, x_left_ > x && k_left > k);
    }

    const float *source_; // this thread's first element of the next tile
    int64_t step_;        // floats between its copies
    int target_;          // where the first one goes in the shared tile
    int x_left_, k_first_;
    bool wide_;
};

} // namespace pyblas
