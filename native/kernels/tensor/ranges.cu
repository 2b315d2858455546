#include "ranges.cuh"

#include "../device/launch.cuh"
#include "../device/ptx.cuh"

namespace pyblas {
namespace {

// The ranges' sums to C, four rows for each thread, in the order of sum_partials.
constexpr int kAdders = 256;

__global__ void __launch_bounds__(kAdders)
    add_quads(__grid_constant__ const Problem problem, __grid_constant__ const Partials partials, int lanes) {
    __shared__ float4 smem_sums[kAdders];
    ptx::launch_dependents();
    ptx::wait_for_predecessors();
    const Epilogue epilogue(problem);
    if (epilogue.idle())
        return;
    const int quads = kAdders / lanes, thread = static_cast<int>(threadIdx.x), lane = thread / quads;
    const int64_t output = (block_number() * quads + thread % quads) * 4;
    const int64_t batch = output / partials.matrix(), inside = output - batch * partials.matrix();
    const int64_t column = inside / partials.ld, row = inside - column * partials.ld;
    const bool exists = output < partials.range(), reads = exists && epilogue.depth() > 0;

    float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
    const auto add = [&](const float4 &other) {
        sum.x += other.x, sum.y += other.y, sum.z += other.z, sum.w += other.w;
    };
    if (reads) {
        const int each = (partials.ranges + lanes - 1) / lanes;
        const int end = min(partials.ranges, (lane + 1) * each);
        const float *source = partials.data + output + lane * each * partials.range();
        for (int range = lane * each; range < end; range += 8) {
            float4 others[8];
#pragma unroll
            for (int i = 0; i < 8; ++i, source += partials.range())
                others[i] =
                    range + i < end ? *reinterpret_cast<const float4 *>(source) : float4{0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
            for (int i = 0; i < 8; ++i)
                if (range + i < end)
                    add(others[i]);
        }
    }
    if (lanes > 1) {
        smem_sums[thread] = sum;
        __syncthreads();
        if (lane > 0)
            return;
        for (int other = 1; other < lanes; ++other)
            add(smem_sums[thread + other * quads]);
    }
    if (!exists)
        return;

    const float sums[4] = {sum.x, sum.y, sum.z, sum.w};
    float *const c = problem.c.matrix(batch) + row + column * problem.c.ld;
    bool stored[4];
    float old[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        stored[i] = row + i < partials.rows;
        old[i] = stored[i] ? epilogue.load(c + i) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
        if (stored[i])
            epilogue.store(c + i, sums[i], old[i]);
}

} // namespace

Status add_ranges(const Problem &problem, const Partials &partials, const Launch &launch_on) {
    int lanes = 1;
    while (lanes < 32 && lanes * 8 < partials.ranges)
        lanes *= 2;
    const int64_t outputs = int64_t{4} * kAdders / lanes;
    return launch<add_quads>({(partials.range() + outputs - 1) / outputs, kAdders, 0, launch_on.stream, true}, problem,
                             partials, lanes);
}

} // namespace pyblas
