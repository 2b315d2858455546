// The simulator's own test: kernels with one planted fault each must be caught, by the right name, in every order of
// threads; their healthy twins must pass.
#include <cstdio>

#include <sys/mman.h>
#include <unistd.h>

#include <cuda_runtime.h>

#include "device/launch.cuh"
#include "device/ptx.cuh"
#include "device/tensor_maps.cuh"
#include "simulator.hpp"

namespace {

using namespace pyblas;
using simulator::Access;
using simulator::Content;
using simulator::FaultKind;
using simulator::Order;
using simulator::Region;

constexpr int kThreads = 64;

int failures = 0;

enum Twin { healthy, faulty };

// ---- barriers and races --------------------------------------------------------------------------------------------

template <Twin twin>
__global__ void read_what_others_write(const float *in, float *out) {
    __shared__ float smem[kThreads];
    const int thread = static_cast<int>(threadIdx.x);
    smem[thread] = 0;
    __syncthreads();
    smem[thread] = in[thread];
    if (twin == healthy)
        __syncthreads();
    out[thread] = smem[kThreads - 1 - thread];
}

template <Twin twin>
__global__ void write_what_others_read(const float *in, float *out) {
    __shared__ float smem[kThreads];
    const int thread = static_cast<int>(threadIdx.x);
    float sum = 0;
    for (int i = 0; i < 3; ++i) {
        smem[thread] = in[thread];
        __syncthreads();
        for (int other = 0; other < kThreads; ++other)
            sum += smem[other];
        if (twin == healthy)
            __syncthreads();
    }
    out[thread] = sum;
}

template <Twin twin>
__global__ void two_writers(float *out) {
    const int thread = static_cast<int>(threadIdx.x);
    out[twin == healthy ? thread : thread / 2] = 1;
}

template <Twin twin>
__global__ void two_blocks_write(float *out) {
    const int thread = static_cast<int>(threadIdx.x);
    out[thread + (twin == healthy ? static_cast<int>(blockIdx.x) * kThreads : 0)] = 1;
}

template <Twin twin>
__global__ void divergent_barrier(const float *in, float *out) {
    const int thread = static_cast<int>(threadIdx.x);
    if (twin == healthy || thread < 32) {
        __syncthreads();
        out[thread] = in[thread];
    } else {
        __syncthreads();
        out[thread] = -in[thread];
    }
}

// One of two warps exchanges what it has written; the other has nothing to do with it.
enum Numbered { they_meet, half_of_them, none_of_them, all_of_the_block };

template <Numbered numbered>
__global__ void some_threads_meet(const float *in, float *out) {
    __shared__ float smem[kThreads];
    const int thread = static_cast<int>(threadIdx.x);
    if (thread >= kThreads / (numbered == half_of_them ? 4 : 2))
        return;
    smem[thread] = in[thread];
    if (numbered == they_meet || numbered == half_of_them)
        ptx::meet<kThreads / 2>(1);
    if (numbered == all_of_the_block)
        ptx::meet<kThreads>(1);
    out[thread] = smem[kThreads / 2 - 1 - thread];
}

template <Twin twin>
__global__ void exit_before_barrier(const float *in, float *out) {
    const int thread = static_cast<int>(threadIdx.x);
    if (twin == faulty && thread == 33)
        return;
    __syncthreads();
    out[thread] = in[thread];
}

template <Twin twin>
__global__ void warp_exchange(const float *in, float *out) {
    __shared__ float smem[kThreads];
    const int thread = static_cast<int>(threadIdx.x);
    smem[thread] = 0;
    __syncthreads();
    smem[thread] = in[thread];
    if (twin == healthy)
        __syncwarp();
    out[thread] = smem[thread ^ 1];
}

// A warp's barrier orders nothing between warps.
template <Twin twin>
__global__ void exchange_between_warps(const float *in, float *out) {
    __shared__ float smem[kThreads];
    const int thread = static_cast<int>(threadIdx.x);
    smem[thread] = 0;
    __syncthreads();
    smem[thread] = in[thread];
    if (twin == healthy)
        __syncthreads();
    else
        __syncwarp();
    out[thread] = smem[thread ^ 32];
}

// Half of each warp exits at once; the other half may still meet, but not ask the first one.
template <Twin twin>
__global__ void exited_lanes(const float *in, float *out) {
    const int thread = static_cast<int>(threadIdx.x);
    if (thread % 32 >= 16)
        return;
    for (int i = 0; i < 3; ++i)
        __syncwarp();
    out[thread] = __shfl_xor_sync(0xffffffff, in[thread], twin == healthy ? 0 : 16);
}

template <Twin twin>
__global__ void shuffled_sum(const float *in, float *out) {
    const int thread = static_cast<int>(threadIdx.x);
    float sum = in[thread];
    if (twin == faulty && thread % 32 == 5)
        return;
    for (int step = 16; step > 0; step /= 2)
        sum += __shfl_xor_sync(0xffffffff, sum, step);
    const float other = __shfl_down_sync(0xffffffff, in[thread], 1, 8), same = __shfl_sync(0xffffffff, in[thread], 3);
    out[thread] = sum == 32 && other == 1 && same == 1 ? 1 : 0;
}

template <Twin twin>
__global__ void shuffle_from_outside_the_mask(const float *in, float *out) {
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
    float value = in[thread];
    if (lane < 4)
        value = __shfl_sync(0xf, value, twin == healthy ? 3 - lane : 4);
    out[thread] = value;
}

// The block that comes last adds what the others left.
enum Meeting { met, no_barrier_before, not_the_last };

template <Meeting meeting>
__global__ void sum_of_blocks(float *left, uint32_t *counter, float *out) {
    __shared__ bool smem_last;
    const int thread = static_cast<int>(threadIdx.x), blocks = static_cast<int>(gridDim.x);
    left[static_cast<int>(blockIdx.x) * kThreads + thread] = 1;
    if (meeting != no_barrier_before)
        __syncthreads();
    if (thread == 0)
        smem_last = ptx::arrive(counter, static_cast<uint32_t>(blocks - 1));
    __syncthreads();
    if (!smem_last && meeting != not_the_last)
        return;
    float sum = 0;
    for (int block = 0; block < blocks; ++block)
        sum += left[block * kThreads + (thread + 1) % kThreads];
    if (smem_last)
        out[thread] = sum;
}

// ---- asynchronous copies -------------------------------------------------------------------------------------------

enum Pipeline { right, no_wait, no_commit, wait_too_little, no_barrier, overwritten };

// Two stages of one float a thread; each thread reads what its neighbour copied.
template <Pipeline pipeline>
__global__ void copies(const float *in, float *out) {
    float *const smem = reinterpret_cast<float *>(dynamic_shared());
    const int thread = static_cast<int>(threadIdx.x);
    constexpr int kStages = 3;
    const auto load = [&](int stage) {
        if (stage < kStages)
            ptx::copy_async<4>(smem + stage % 2 * kThreads + thread, in + stage * kThreads + thread, true);
        if (pipeline != no_commit)
            ptx::commit_copies();
    };
    load(0);
    float sum = 0;
    for (int stage = 0; stage < kStages; ++stage) {
        if (pipeline != overwritten)
            __syncthreads();
        load(stage + 1);
        if (pipeline == wait_too_little)
            ptx::wait_copies<2>();
        else if (pipeline != no_wait)
            ptx::wait_copies<1>();
        if (pipeline != no_barrier)
            __syncthreads();
        sum += smem[stage % 2 * kThreads + (thread + 1) % kThreads];
    }
    out[thread] = sum == kStages ? 1 : 0;
}

template <Twin twin>
__global__ void wide_copy(const float *in, float *out) {
    __shared__ __align__(16) float smem[4 * kThreads];
    const int thread = static_cast<int>(threadIdx.x);
    const bool inside = thread < kThreads / 4;
    ptx::copy_async<16>(smem + 4 * thread, in + 4 * thread, twin == healthy ? inside : thread <= kThreads / 4);
    ptx::commit_copies();
    ptx::wait_copies<0>();
    __syncthreads();
    out[thread] = smem[thread] + smem[thread + kThreads];
}

template <Twin twin>
__global__ void misaligned_copy(const float *in, float *out) {
    __shared__ __align__(16) float smem[kThreads];
    const int thread = static_cast<int>(threadIdx.x);
    if (thread < kThreads / 4)
        ptx::copy_async<16>(smem + 4 * thread, in + 4 * thread + (twin == healthy ? 0 : 2), thread < 8);
    ptx::commit_copies();
    ptx::wait_copies<0>();
    out[thread] = 1;
}

enum Box { awaited, not_awaited };

// The copy engine brings one float for each thread.
template <Box box>
__global__ void box_copy(const CUtensorMap map, float *out) {
    __shared__ __align__(128) float smem[kThreads];
    __shared__ uint64_t come;
    const int thread = static_cast<int>(threadIdx.x);
    if (thread == 0)
        ptx::init_barrier(&come, 1);
    __syncthreads();
    if (thread == 0) {
        ptx::expect(&come, sizeof smem);
        ptx::copy_box(smem, &map, 0, 0, 0, 0, &come);
        ptx::arrive(&come);
    }
    if (box == awaited)
        ptx::wait(&come, 0);
    out[thread] = smem[thread];
}

// Columns of 4 floats, as many as the block has quads of threads.
CUtensorMap columns_of_quads(float *data) {
    const Operand operand{data, nullptr, 4, 0};
    MatrixMap mapped;
    failures += map_matrices(operand, 4, kThreads / 4, 1, 4, kThreads / 4, false, CU_TENSOR_MAP_SWIZZLE_NONE,
                             &mapped) != kSuccess;
    return mapped.map;
}

// ---- clusters ------------------------------------------------------------------------------------------------------

enum Cluster { meets_twice, meets_late, meets_early, asks_a_stranger };

// Two blocks read each other's quads. The first warp does.
template <Cluster cluster>
__global__ void exchange_between_blocks(const float *in, float *out) {
    float4 *const smem = dynamic_shared();
    const int thread = static_cast<int>(threadIdx.x), block = static_cast<int>(blockIdx.x);
    const auto meet = [] {
        ptx::arrive_at_cluster();
        ptx::wait_for_cluster();
    };
    if (thread < kThreads / 2)
        smem[thread] = {in[thread], 0, 0, 0};
    if (cluster != meets_late)
        meet();
    if (thread < kThreads / 2)
        out[thread + block * kThreads] =
            ptx::load_of_block(smem + thread, cluster == asks_a_stranger ? 2 : 1 - block).x;
    if (cluster != meets_early)
        meet();
}

// ---- memory --------------------------------------------------------------------------------------------------------

enum Place { inside, past_the_end, before_the_start };

constexpr int offset(Place place) {
    return place == inside ? 0 : place == past_the_end ? 1 : -1;
}

template <Place place>
__global__ void read_at(const float *in, float *out) {
    const int thread = static_cast<int>(threadIdx.x);
    out[thread] = in[thread + offset(place)];
}

template <Place place>
__global__ void write_at(const float *in, float *out) {
    const int thread = static_cast<int>(threadIdx.x);
    out[thread + offset(place)] = in[thread];
}

template <Twin twin>
__global__ void wide_read(const float *in, float *out) {
    const int thread = static_cast<int>(threadIdx.x);
    const float4 value = *reinterpret_cast<const float4 *>(in + (twin == healthy ? 4 : 1));
    out[thread] = value.x * value.y * value.z * value.w;
}

template <Twin twin>
__global__ void read_undefined(const float *in, float *out) {
    __shared__ float smem[kThreads];
    const int thread = static_cast<int>(threadIdx.x);
    if (twin == healthy || blockIdx.x == 0) // the first block's values must not serve the second
        smem[thread] = in[thread];
    __syncthreads();
    out[thread + static_cast<int>(blockIdx.x) * kThreads] = smem[thread];
}

template <Twin twin>
__global__ void dynamic_size(const float *in, float *out) {
    float *const smem = reinterpret_cast<float *>(dynamic_shared());
    const int thread = static_cast<int>(threadIdx.x);
    smem[thread + (twin == healthy ? 0 : 3 * kThreads)] = in[thread];
    out[thread] = 1;
}

__global__ void increment(float *in_out) {
    ++in_out[threadIdx.x];
}

template <Twin twin>
__global__ void index_of_array(const float *in, float *out) {
    __shared__ float smem[2][kThreads];
    const int thread = static_cast<int>(threadIdx.x);
    smem[0][thread] = smem[1][thread] = in[thread];
    __syncthreads();
    out[thread] = smem[0][thread + (twin == healthy ? 0 : 1)];
}

template <Twin twin>
__global__ void offset_in_int(const float *in, float *out, int ld) {
    const int thread = static_cast<int>(threadIdx.x);
    const int64_t far = twin == healthy ? int64_t{ld} * thread : ld * thread;
    out[thread] = far >= 0 ? in[thread] : 0;
}

// Launched before the kernel ahead has ended.
enum Early { waits, reads_first, leaves };

template <Early early>
__global__ void early_kernel(const float *in, float *out) {
    const int thread = static_cast<int>(threadIdx.x);
    const float first = early == reads_first ? in[thread] : 0;
    if (early == leaves && thread == 1)
        return;
    ptx::launch_dependents();
    ptx::wait_for_predecessors();
    out[thread] = in[thread] + first;
}

// ---- the table -----------------------------------------------------------------------------------------------------

int checked = 0;
bool launches_early = false;
int blocks_of_a_cluster = 1;

// Two accesses that nothing orders happen either way round, and the fault may have either name.
struct Expected {
    FaultKind kind, or_kind;
};

template <class... Parameters, class... Arguments>
void expect(const char *name, Expected expected, unsigned blocks, void (*kernel)(Parameters...),
            Arguments... arguments) {
    for (const Order order : {Order::ascending, Order::descending, Order::alternating}) {
        simulator::settings.order = order;
        cudaLaunchConfig_t config = {};
        config.gridDim = dim3(blocks);
        config.blockDim = dim3(kThreads);
        config.dynamicSmemBytes = 2 * kThreads * sizeof(float);
        cudaLaunchAttribute attributes[2] = {};
        attributes[0].id = cudaLaunchAttributeClusterDimension;
        attributes[0].val.clusterDim = {static_cast<unsigned>(blocks_of_a_cluster), 1, 1};
        attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[1].val.programmaticStreamSerializationAllowed = 1;
        config.attrs = attributes;
        config.numAttrs = launches_early ? 2 : 1;
        const cudaError_t error = cudaLaunchKernelEx(&config, kernel, arguments...);
        const simulator::Fault fault = simulator::take_fault();
        ++checked;
        if ((fault.kind != expected.kind && fault.kind != expected.or_kind) ||
            (error == cudaSuccess) != (fault.kind == FaultKind::none)) {
            ++failures;
            std::printf("FAILED %s, order %d: expected %s, found %s: %s\n", name, static_cast<int>(order),
                        simulator::fault_name(expected.kind), simulator::fault_name(fault.kind), fault.text.c_str());
        }
    }
}

#define EXPECT_EITHER(one, other, blocks, kernel, ...)                                                                 \
    expect(#kernel, {FaultKind::one, FaultKind::other}, blocks, kernel, __VA_ARGS__)
#define EXPECT(expected, ...) EXPECT_EITHER(expected, expected, __VA_ARGS__)
#define EXPECT_TWINS(expected, blocks, kernel, ...)                                                                    \
    EXPECT(none, blocks, kernel<healthy>, __VA_ARGS__);                                                                \
    EXPECT(expected, blocks, kernel<faulty>, __VA_ARGS__)

// A region with a hole, as tests have where elements lie far apart.
void hole() {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    void *memory = mmap(nullptr, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    float *const data = static_cast<float *>(memory);
    const Region region(data, page, Access::read_write, "a region without pages");
    EXPECT(bounds, 1, increment, data);
    EXPECT(bounds, 1, increment, data);
    munmap(memory, page);
}

void launch_limits() {
    simulator::settings.device = 1;
    simulator::settings.shared_per_block = 64 * 1024;
    const auto start = [](unsigned threads, size_t shared) {
        cudaLaunchConfig_t config = {};
        config.blockDim = dim3(threads);
        config.dynamicSmemBytes = shared;
        static float memory[1024];
        const Region region(memory, sizeof memory, Access::write, "out");
        return cudaLaunchKernelEx(&config, two_writers<healthy>, static_cast<float *>(memory));
    };
    const bool right = start(1024, 48 * 1024) == cudaSuccess && start(1025, 0) != cudaSuccess &&
                       start(32, 48 * 1024 + 4) != cudaSuccess && allow_shared<two_writers<healthy>>(60 * 1024) == 0 &&
                       start(32, 60 * 1024) == cudaSuccess && start(32, 60 * 1024 + 4) != cudaSuccess &&
                       allow_shared<two_writers<faulty>>(65 * 1024) != 0;
    if (!right) {
        ++failures;
        std::printf("FAILED limits of a launch\n");
    }
}

} // namespace

int main() {
    alignas(16) static float in_memory[5 * kThreads], out_memory[4 * kThreads];
    for (float &value : in_memory)
        value = 1;
    float *const in = in_memory + kThreads, *const out = out_memory + kThreads;
    {
        const Region in_region(in, kThreads * sizeof(float), Access::read, "in");
        const Region out_region(out, 2 * kThreads * sizeof(float), Access::write, "out");
        EXPECT_TWINS(race, 1, read_what_others_write, in, out);
        EXPECT_TWINS(race, 1, write_what_others_read, in, out);
        EXPECT_TWINS(race, 1, two_writers, out);
        EXPECT_TWINS(race, 2, two_blocks_write, out);
        EXPECT_TWINS(barrier, 1, divergent_barrier, in, out);
        EXPECT_TWINS(barrier, 1, exit_before_barrier, in, out);
        EXPECT(none, 1, some_threads_meet<they_meet>, in, out);
        EXPECT(barrier, 1, some_threads_meet<half_of_them>, in, out);
        EXPECT_EITHER(race, uninitialised, 1, some_threads_meet<none_of_them>, in, out);
        EXPECT(barrier, 1, some_threads_meet<all_of_the_block>, in, out);
        EXPECT_TWINS(race, 1, warp_exchange, in, out);
        EXPECT_TWINS(race, 1, exchange_between_warps, in, out);
        EXPECT_TWINS(barrier, 1, exited_lanes, in, out);
        EXPECT_TWINS(barrier, 1, shuffled_sum, in, out);
        for (int thread = 0; thread < kThreads; ++thread)
            failures += out[thread] != 1;
        EXPECT_TWINS(barrier, 1, shuffle_from_outside_the_mask, in, out);
        EXPECT_TWINS(bounds, 1, wide_copy, in, out);
        EXPECT_TWINS(alignment, 1, misaligned_copy, in, out);
        EXPECT_TWINS(alignment, 1, wide_read, in, out);
        EXPECT(none, 1, read_at<inside>, in, out);
        EXPECT(bounds, 1, read_at<past_the_end>, in, out);
        EXPECT(bounds, 1, read_at<before_the_start>, in, out);
        EXPECT(none, 1, write_at<inside>, in, out);
        EXPECT(bounds, 1, write_at<past_the_end>, in, out + kThreads);
        EXPECT(bounds, 1, write_at<before_the_start>, in, out);
        EXPECT_TWINS(bounds, 1, dynamic_size, in, out);
        EXPECT_TWINS(arithmetic, 1, index_of_array, in, out);
        EXPECT_TWINS(arithmetic, 1, offset_in_int, in, out, 1 << 30);
        EXPECT(access, 1, increment, in);  // an input
        EXPECT(access, 1, increment, out); // C where beta is 0
        EXPECT(none, 2, read_undefined<healthy>, in, out);
        EXPECT(uninitialised, 2, read_undefined<faulty>, in, out);
        launches_early = true;
        EXPECT(none, 1, early_kernel<waits>, in, out);
        EXPECT(access, 1, early_kernel<reads_first>, in, out);
        EXPECT(access, 1, early_kernel<leaves>, in, out);
        launches_early = false;
        blocks_of_a_cluster = 2;
        EXPECT(none, 2, exchange_between_blocks<meets_twice>, in, out);
        for (int thread = 0; thread < kThreads / 2; ++thread)
            failures += out[thread] != 1 || out[thread + kThreads] != 1;
        EXPECT_EITHER(race, uninitialised, 2, exchange_between_blocks<meets_late>, in, out);
        EXPECT(bounds, 2, exchange_between_blocks<meets_early>, in, out);
        EXPECT(bounds, 2, exchange_between_blocks<asks_a_stranger>, in, out);
        blocks_of_a_cluster = 1;
    }
    {
        const Region in_region(in, 3 * kThreads * sizeof(float), Access::read, "in");
        const Region out_region(out, kThreads * sizeof(float), Access::write, "out");
        EXPECT(none, 1, copies<right>, in, out);
        for (int thread = 0; thread < kThreads; ++thread)
            failures += out[thread] != 1;
        EXPECT(copy_in_flight, 1, copies<no_wait>, in, out);
        EXPECT(copy_in_flight, 1, copies<no_commit>, in, out);
        EXPECT(copy_in_flight, 1, copies<wait_too_little>, in, out);
        EXPECT_EITHER(race, copy_in_flight, 1, copies<no_barrier>, in, out);
        EXPECT_EITHER(race, copy_in_flight, 1, copies<overwritten>, in, out);
        EXPECT(none, 1, box_copy<awaited>, columns_of_quads(in), out);
        for (int thread = 0; thread < kThreads; ++thread)
            failures += out[thread] != 1;
        EXPECT_EITHER(copy_in_flight, uninitialised, 1, box_copy<not_awaited>, columns_of_quads(in), out);
        EXPECT(bounds, 1, box_copy<awaited>, columns_of_quads(in + 3 * kThreads - 4), out);
    }
    {
        static float left[2 * kThreads];
        static uint32_t counter;
        const Region left_region(left, sizeof left, Access::read_write, "left", Content::undefined);
        const Region counter_region(&counter, sizeof counter, Access::read_write, "counter");
        const Region out_region(out, kThreads * sizeof(float), Access::write, "out");
        EXPECT(none, 2, sum_of_blocks<met>, left, &counter, out);
        for (int thread = 0; thread < kThreads; ++thread)
            failures += out[thread] != 2;
        failures += counter != 0;
        EXPECT(race, 2, sum_of_blocks<no_barrier_before>, left, &counter, out);
        counter = 0;
        EXPECT_EITHER(race, uninitialised, 2, sum_of_blocks<not_the_last>, left, &counter, out);
    }
    {
        const Region defined(in, kThreads * sizeof(float), Access::read_write, "in and out");
        const Region undefined(out, kThreads * sizeof(float), Access::read_write, "workspace", Content::undefined);
        EXPECT(none, 1, increment, in);
        EXPECT(race, 2, increment, in);
        EXPECT(uninitialised, 1, increment, out);
    }
    hole();
    launch_limits();
    std::printf("%d launches, %d failures\n", checked, failures);
    return failures != 0;
}
