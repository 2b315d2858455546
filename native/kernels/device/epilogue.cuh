// The only place where C meets beta: C := alpha * sum + beta * C. beta == 0 never loads C; a product without depth
// (k == 0 or alpha == 0) is beta * C whatever alpha is.
#pragma once

#include <cstdint>

#include "half.cuh"
#include "problem.hpp"
#include "ptx.cuh"

namespace pyblas {

class Epilogue {
public:
    __device__ __forceinline__ explicit Epilogue(const Problem &problem)
        : alpha_(problem.alpha.load()), beta_(problem.beta.load()), depth_(problem.depth(alpha_)) {}

    // k as far as A and B may be read.
    __device__ __forceinline__ int64_t depth() const { return depth_; }

    // C stays as it is, to the payload of its NaNs.
    __device__ __forceinline__ bool idle() const { return depth_ == 0 && beta_ == 1.0f; }

    // In two steps, so that many loads are on their way before the first store.
    __device__ __forceinline__ float load(const float *c) const { return beta_ == 0.0f ? 0.0f : *c; }
    __device__ __forceinline__ void store(float *c, float sum, float old) const { *c = value(sum, old); }

    // One element of a C of any type, so many from c on; a 16-bit C rounds the float that float32 would have got.
    __device__ __forceinline__ void store(void *c, int64_t at, Dtype type, float sum) const {
        if (type == Dtype::f32) {
            store(static_cast<float *>(c) + at, sum);
        } else {
            uint16_t *const target = static_cast<uint16_t *>(c) + at;
            *target = half_of_float(type, value(sum, beta_ == 0.0f ? 0.0f : float_of_half(type, *target)));
        }
    }

    // Four rows of C at once; c is aligned to 16 bytes.
    __device__ __forceinline__ float4 load4(const float *c) const {
        return beta_ == 0.0f ? float4{0.0f, 0.0f, 0.0f, 0.0f} : *reinterpret_cast<const float4 *>(c);
    }
    __device__ __forceinline__ void store4(float *c, const float4 &sum, const float4 &old) const {
        ptx::store_quad(c, {value(sum.x, old.x), value(sum.y, old.y), value(sum.z, old.z), value(sum.w, old.w)});
    }

    // Two; c is aligned to 8 bytes.
    __device__ __forceinline__ float2 load2(const float *c) const {
        return beta_ == 0.0f ? float2{0.0f, 0.0f} : *reinterpret_cast<const float2 *>(c);
    }
    __device__ __forceinline__ void store2(float *c, const float2 &sum, const float2 &old) const {
        *reinterpret_cast<float2 *>(c) = float2{value(sum.x, old.x), value(sum.y, old.y)};
    }

    // The same where C is of a 16-bit type and c aligned to 4 bytes.
    __device__ __forceinline__ uint32_t load2(const uint32_t *c) const { return beta_ == 0.0f ? 0 : *c; }
    __device__ __forceinline__ void store2(uint32_t *c, Dtype type, const float2 &sum, uint32_t old) const {
        const float2 before = floats_of_halves(type, old);
        *c = halves_of_floats(type, float2{value(sum.x, before.x), value(sum.y, before.y)});
    }

    // Both steps at once.
    __device__ __forceinline__ void store(float *c, float sum) const { store(c, sum, load(c)); }
    __device__ __forceinline__ void store4(float *c, const float4 &sum) const { store4(c, sum, load4(c)); }

    __device__ __forceinline__ bool reads_c() const { return beta_ != 0.0f; }

    // Where C is not read; without depth, the sums are +0.
    __device__ __forceinline__ void put(float *c, float sum) const { *c = fresh(sum); }
    // Four rows of it; c is aligned to 16 bytes.
    __device__ __forceinline__ void put4(float *c, const float4 &sum) const {
        ptx::store_quad(c, {fresh(sum.x), fresh(sum.y), fresh(sum.z), fresh(sum.w)});
    }

private:
    __device__ __forceinline__ float fresh(float sum) const {
        return __fmaf_rn(depth_ == 0 ? 1.0f : alpha_, sum, depth_ == 0 ? 0.0f : -0.0f);
    }

    // No branches, and intrinsics, so that beta * C is rounded before it is added. -0 changes no product.
    __device__ __forceinline__ float value(float sum, float old) const {
        const float kept = beta_ != 0.0f ? __fmul_rn(beta_, old) : depth_ == 0 ? 0.0f : -0.0f;
        return depth_ == 0 ? kept : __fmaf_rn(alpha_, sum, kept);
    }

    float alpha_, beta_;
    int64_t depth_;
};

} // namespace pyblas
