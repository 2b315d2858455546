#include "partials.cuh"

#include "epilogue.cuh"
#include "launch.cuh"
#include "ptx.cuh"

namespace pyblas {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) clear_arrivals(uint32_t *arrivals, int64_t count) {
    for (int64_t i = threadIdx.x; i < count; i += kThreads)
        arrivals[i] = 0;
}

// The sums of neighbouring rows.
template <int Rows>
struct alignas(4 * Rows) Sums {
    float of[Rows];

    __device__ __forceinline__ void add(const Sums &other) {
#pragma unroll
        for (int i = 0; i < Rows; ++i)
            of[i] += other.of[i];
    }
};

// Lanes of one output, or of four, add ranges side by side, lane 0 the first ones; then the lanes' sums are added from
// 0 on. Without a bound of registers the compiler would load quads two by two; with one, single rows would take 44 of
// them instead of 32, and 64x64x4096 NT on an H200 8.9 us instead of 8.0, as less fits beside them.
template <int Rows>
__global__ void __launch_bounds__(kThreads, Rows == 1 ? 0 : 4)
    sum_partials(__grid_constant__ const Problem problem, __grid_constant__ const Partials partials, int lanes) {
    constexpr int kAtOnce = 8; // loads on their way
    __shared__ Sums<Rows> smem_sums[kThreads];
    ptx::launch_dependents();
    ptx::wait_for_predecessors();
    const Epilogue epilogue(problem);
    if (epilogue.idle())
        return;
    const int places = kThreads / lanes, thread = static_cast<int>(threadIdx.x), lane = thread / places;
    const int64_t output = (block_number() * places + thread % places) * Rows;
    const int64_t batch = output / partials.matrix(), inside = output - batch * partials.matrix();
    const int64_t column = inside / partials.ld, row = inside - column * partials.ld;
    const bool exists = output < partials.range() && row < partials.rows;

    Sums<Rows> sum = {};
    if (exists && epilogue.depth() > 0) {
        const int each = (partials.ranges + lanes - 1) / lanes;
        const int end = min(partials.ranges, (lane + 1) * each);
        const float *source = partials.data + output + lane * each * partials.range();
        for (int range = lane * each; range < end; range += kAtOnce) {
            Sums<Rows> others[kAtOnce];
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i, source += partials.range())
                others[i] = range + i < end ? *reinterpret_cast<const Sums<Rows> *>(source) : Sums<Rows>{};
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i)
                sum.add(others[i]); // a zero changes no sum that began with +0
        }
    }
    if (lanes > 1) {
        smem_sums[thread] = sum;
        __syncthreads();
        if (lane > 0)
            return;
        for (int other = 1; other < lanes; ++other)
            sum.add(smem_sums[thread + other * places]);
    }
    if (!exists)
        return;

    float *const c = problem.c.matrix(batch) + row + column * problem.c.ld;
    bool stored[Rows];
    float old[Rows];
#pragma unroll
    for (int i = 0; i < Rows; ++i) {
        stored[i] = i == 0 || row + i < partials.rows;
        old[i] = stored[i] ? epilogue.load(c + i) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < Rows; ++i)
        if (stored[i])
            epilogue.store(c + i, sum.of[i], old[i]);
}

template <int Rows>
Status add(const Problem &problem, const Partials &partials, const Launch &launch_on) {
    int lanes = 1;
    while (lanes < 32 && lanes * 8 < partials.ranges)
        lanes *= 2;
    const int64_t outputs = int64_t{Rows} * kThreads / lanes;
    // The same split of L1 and shared memory as the kernel ahead has: a multiprocessor changes it only when it is idle.
    PYBLAS_TRY(allow_shared<sum_partials<Rows>>(0));
    return launch<sum_partials<Rows>>(
        {(partials.range() + outputs - 1) / outputs, kThreads, 0, launch_on.stream, launch_on.device->starts_early},
        problem, partials, lanes);
}

} // namespace

Status clear(uint32_t *arrivals, int64_t count, CUstream_st *stream) {
    return launch<clear_arrivals>({1, kThreads, 0, stream}, arrivals, count);
}

Status add_partials(const Problem &problem, const Partials &partials, const Launch &launch_on) {
    return add<1>(problem, partials, launch_on);
}

Status add_partials_by_quads(const Problem &problem, const Partials &partials, const Launch &launch_on) {
    return add<4>(problem, partials, launch_on);
}

} // namespace pyblas
