// One long side, and so little of the other side and of k that lanes hold the small operand in their registers. The
// large operand goes from global memory to registers and is never shared: lanes beside each other have four k each of
// one x, and exchange halves of their sums until each lane has its own share of the outputs.
//
//     large operand, best along k             a lane: four k of x, times four k of all s    sums of lanes 0 to 3
//        k ->                                                                               s ->
//     x +----+----+----+----+                 l0: | s0 s1 ... s15 |                         +----+----+----+----+
//     | | l0 | l1 | l2 | l3 |                 l1: | s0 s1 ... s15 |    added by shuffles:   | l0 | l1 | l2 | l3 |
//     v | l4 | l5 | ...                       ...                                           +----+----+----+----+
#pragma once

#include <algorithm>
#include <cmath>

#include "cost.hpp"
#include "kernel.hpp"

#include "../device/epilogue.cuh"
#include "../device/launch.cuh"
#include "../device/load.cuh"
#include "../device/ptx.cuh"

namespace pyblas {

// BS outputs of each x, and k up to 4 Lanes. The sums of Together x are exchanged at once, in Sets of them, whose loads
// are on their way together; Warps in a block.
template <int Lanes_, int BS_, int Together_, int Sets_, int Warps_, int Resident_>
struct HeldTile {
    static constexpr int kLanes = Lanes_, BS = BS_, BK = 4 * Lanes_;
    static constexpr int kTogether = Together_, kSets = Sets_, kWarps = Warps_;
    static constexpr int kThreads = 32 * Warps_, kResident = Resident_;
    static constexpr int kAcross = 32 / kLanes;                // x side by side in a warp
    static constexpr int kWarpX = kAcross * kTogether * kSets; // of a warp at a time
    static constexpr int BX = kWarpX * kWarps;
    static constexpr int kSums = BS * kTogether, kLeft = kSums / kLanes; // before and after the exchange
    static_assert(kSums % kLanes == 0 && kLanes <= 32, "each lane is left with as many");
};

struct Held {
    bool x_is_rows;
    int64_t extent_x;
    int extent_s;
    int64_t blocks; // that stay
};

// Half of the lanes' sums go to the other half of the lanes, and so on. Sum i of a lane is of output i ^ lane * kLeft,
// so that all keep their first ones.
template <int Have, int Flip, int N>
__device__ __forceinline__ void exchange(float (&sums)[N]) {
    if constexpr (Flip > 0) {
#pragma unroll
        for (int i = 0; i < Have / 2; ++i)
            sums[i] += __shfl_xor_sync(0xffffffff, sums[i + Have / 2], Flip);
        exchange<Have / 2, Flip / 2>(sums);
    }
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident)
    held(__grid_constant__ const Problem problem, __grid_constant__ const Held cut) {
    constexpr int BS = Tile::BS, kTogether = Tile::kTogether, kSets = Tile::kSets, kLeft = Tile::kLeft;

    // place
    ptx::launch_dependents();
    ptx::wait_for_predecessors();
    const Epilogue epilogue(problem);
    if (block_number() >= cut.blocks || epilogue.idle())
        return;
    const int lane = static_cast<int>(threadIdx.x) % 32, own = lane % Tile::kLanes;
    const int output = own * kLeft; // the first that the lane is left with
    const int first_s = output % BS, first_x = output / BS;
    const int k_left = static_cast<int>(epilogue.depth()) - 4 * own;
    const Sides sides(problem, cut.x_is_rows, 0, epilogue.depth());
    const View view_x = sides.x, view_s = sides.s;
    float small[BS][4];
#pragma unroll
    for (int j = 0; j < BS; ++j)
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const int s = j ^ first_s;
            small[j][k] = s < cut.extent_s && k < k_left ? *view_s.at(s, 4 * own + k) : 0.0f;
        }
    const bool wide = reinterpret_cast<uintptr_t>(view_x.data) % 16 == 0 && view_x.step_k == 1 &&
                      view_x.step_x % 4 == 0 && k_left >= 4;
    const int64_t step_s = cut.x_is_rows ? problem.c.ld : 1, step_x = cut.x_is_rows ? 1 : problem.c.ld;
    float *const c = problem.c.matrix(0) + first_s * step_s;
    const bool wide_c = kLeft % 4 == 0 && step_s == 1 && first_s + kLeft <= cut.extent_s && step_x % 4 == 0 &&
                        reinterpret_cast<uintptr_t>(c) % 16 == 0;

    const int64_t warps = cut.blocks * Tile::kWarps;
    const int64_t first = (block_number() * Tile::kWarps + static_cast<int>(threadIdx.x) / 32) * Tile::kWarpX;
    const int across = lane / Tile::kLanes;
    const auto load = [&](int64_t x0, float4(&quads)[kSets][kTogether]) {
#pragma unroll
        for (int set = 0; set < kSets; ++set)
#pragma unroll
            for (int i = 0; i < kTogether; ++i) {
                const int64_t x = x0 + across + (set * kTogether + (i ^ first_x)) * Tile::kAcross;
                const float *const from = view_x.at(x, 4 * own);
                const int inside = x < cut.extent_x ? k_left : 0;
                float4 quad{0.0f, 0.0f, 0.0f, 0.0f};
                if (wide) {
                    if (inside > 0)
                        quad = ptx::load_once(from);
                } else {
                    if (inside > 0)
                        quad.x = from[0];
                    if (inside > 1)
                        quad.y = from[view_x.step_k];
                    if (inside > 2)
                        quad.z = from[2 * view_x.step_k];
                    if (inside > 3)
                        quad.w = from[3 * view_x.step_k];
                }
                quads[set][i] = quad;
            }
    };

    // load: the next x are on their way while these are multiplied
    float4 next[kSets][kTogether];
    load(first, next);
#pragma unroll 1
    for (int64_t x0 = first; x0 < cut.extent_x; x0 += warps * Tile::kWarpX) {
        float4 quads[kSets][kTogether];
#pragma unroll
        for (int set = 0; set < kSets; ++set)
#pragma unroll
            for (int i = 0; i < kTogether; ++i)
                quads[set][i] = next[set][i];
        load(x0 + warps * Tile::kWarpX, next);
#pragma unroll
        for (int set = 0; set < kSets; ++set) {
            // multiply
            float sums[Tile::kSums];
#pragma unroll
            for (int i = 0; i < kTogether; ++i)
#pragma unroll
                for (int j = 0; j < BS; ++j) {
                    const float4 quad = quads[set][i];
                    float sum = quad.x * small[j][0];
                    sum = fmaf(quad.y, small[j][1], sum);
                    sum = fmaf(quad.z, small[j][2], sum);
                    sums[i * BS + j] = fmaf(quad.w, small[j][3], sum);
                }
            exchange<Tile::kSums, Tile::kLanes / 2>(sums);

            // store
            const int64_t x = x0 + across + (set * kTogether + first_x) * Tile::kAcross;
            if (x >= cut.extent_x)
                continue;
            float *const target = c + x * step_x;
            if constexpr (kLeft % 4 == 0) {
                if (wide_c) {
#pragma unroll
                    for (int i = 0; i < kLeft; i += 4)
                        epilogue.store4(target + i, {sums[i], sums[i + 1], sums[i + 2], sums[i + 3]});
                    continue;
                }
            }
#pragma unroll
            for (int i = 0; i < kLeft; ++i)
                if (first_s + i < cut.extent_s)
                    epilogue.store(target + i * step_s, sums[i]);
        }
    }
}

// The small side is that of fewer outputs; equal sides are small columns.
template <class Tile>
Held held_of(const Problem &problem, const Device &device) {
    const bool x_is_rows = problem.m >= problem.n;
    const int64_t extent_x = std::max(problem.m, problem.n);
    return {x_is_rows, extent_x, static_cast<int>(std::min(problem.m, problem.n)),
            std::min<int64_t>(Tile::kResident * device.multiprocessors, (extent_x + Tile::BX - 1) / Tile::BX)};
}

template <class Tile>
const char *held_refuses(const Problem &problem, const Device &) {
    if (problem.batch > 1)
        return "it is for single products, not for batches";
    return std::min(problem.m, problem.n) > Tile::BS || problem.k > Tile::BK
               ? "the small operand is larger than what lanes hold of it"
               : nullptr;
}

template <class Tile>
Work held_work(const Problem &problem, const Device &device) {
    const Held cut = held_of<Tile>(problem, device);
    const double k = static_cast<double>(problem.k);
    const bool along_k = cut.x_is_rows ? problem.transa == Op::T : problem.transb == Op::N;
    const int64_t ld = cut.x_is_rows ? problem.a.ld : problem.b.ld;
    Work work;
    work.spread(static_cast<double>(cut.blocks), Tile::kResident, device);
    work.move(problem);
    const double turns = std::ceil(static_cast<double>(cut.extent_x) / static_cast<double>(cut.blocks * Tile::BX));
    const double x = turns * Tile::BX;
    work.steps = along_k ? x : 2 * x; // loads are waited for at each turn
    work.flops = 2.0 * x * Tile::BS * Tile::BK;
    work.narrow = !along_k || ld % 4 != 0 || problem.k % 4 != 0 ? x * k : 0;
    work.bytes = 4.0 * x * k;
    if (problem.c.ld % 4 != 0)
        work.single = x * static_cast<double>(cut.extent_s) / (Tile::BX * Tile::BS);
    return work;
}

template <class Tile>
Status launch_held(const Problem &problem, const Launch &launch_on) {
    const Held cut = held_of<Tile>(problem, *launch_on.device);
    return launch<held<Tile>>({cut.blocks, Tile::kThreads, 0, launch_on.stream, launch_on.device->starts_early},
                              problem, cut);
}

} // namespace pyblas
