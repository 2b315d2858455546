// Every asm statement but plane_ptx.cuh's, one wrapper each. Architectures without an instruction get plain code that
// keeps the same promises, so kernels never ask which one they run on.
#pragma once

#include <cstdint>

#if defined(PYBLAS_SIMULATOR)
#include "simulated_ptx.hpp" // the same wrappers for the host, in tests/native/simt
#else

namespace pyblas::ptx {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define PYBLAS_HAS_ASYNC_COPY 1
#else
#define PYBLAS_HAS_ASYNC_COPY 0
#endif

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define PYBLAS_HAS_SM90 1
#else
#define PYBLAS_HAS_SM90 0
#endif

// Blocks of an early kernel queued behind this one may come now, once all blocks here have said so or left.
__device__ __forceinline__ void launch_dependents() {
#if PYBLAS_HAS_SM90
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// In an early kernel, before anything else of global memory is touched: the kernels ahead have ended, and what they
// wrote is there.
__device__ __forceinline__ void wait_for_predecessors() {
#if PYBLAS_HAS_SM90
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// A barrier of so many threads, whole warps of them, that have this number to themselves; 0 is __syncthreads().
template <int Threads>
__device__ __forceinline__ void meet(int number) {
    static_assert(Threads % 32 == 0, "whole warps");
    asm volatile("barrier.sync %0, %1;" ::"r"(number), "n"(Threads) : "memory");
}

// threadIdx.x, asked for anew: what is computed from it does not wait in registers since the kernel's start.
__device__ __forceinline__ int thread_anew() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

// Four floats at once; the compiler may make four stores of one that is written plainly. global is aligned to 16 bytes.
__device__ __forceinline__ void store_quad(float *global, const float4 &quad) {
    asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(global), "f"(quad.x), "f"(quad.y), "f"(quad.z),
                 "f"(quad.w)
                 : "memory");
}

#if PYBLAS_HAS_ASYNC_COPY
// What makes lines of the L2 the first to be given up.
__device__ __forceinline__ uint64_t read_once() {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
#endif

// Copies 4 or 16 bytes from global to shared memory, or writes zeros and reads nothing if valid is false. The data is
// there for this thread after wait_copies(), for the block after a barrier behind it. Lines that are read once are the
// first that the L2 gives up, so that others stay.
template <int Bytes, bool Once = false>
__device__ __forceinline__ void copy_async(float *shared, const float *global, bool valid) {
    static_assert(Bytes == 4 || Bytes == 16, "one float or four");
#if PYBLAS_HAS_ASYNC_COPY
    const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    const int bytes = valid ? Bytes : 0;
    if constexpr (Bytes == 16 && Once)
        asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(address), "l"(global),
                     "r"(bytes), "l"(read_once())
                     : "memory");
    else if constexpr (Bytes == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(global), "r"(bytes)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address), "l"(global), "r"(bytes) : "memory");
#else
    if constexpr (Bytes == 16)
        *reinterpret_cast<float4 *>(shared) =
            valid ? __ldg(reinterpret_cast<const float4 *>(global)) : float4{0.0f, 0.0f, 0.0f, 0.0f};
    else
        *shared = valid ? __ldg(global) : 0.0f;
#endif
}

// Closes the group of copies issued since the last call. An empty group counts too.
__device__ __forceinline__ void commit_copies() {
#if PYBLAS_HAS_ASYNC_COPY
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most Pending of this thread's groups are still on their way.
template <int Pending>
__device__ __forceinline__ void wait_copies() {
#if PYBLAS_HAS_ASYNC_COPY
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
#endif
}

// ---- clusters: blocks that run side by side and see each other's shared memory; from sm_90 on
// ------------------------

// All threads of the cluster meet: what one did before it arrived, the others see after they have waited.
__device__ __forceinline__ void arrive_at_cluster() {
#if PYBLAS_HAS_SM90
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
// The same for barriers that were published before, and nothing else: no fence for loads and stores under way.
__device__ __forceinline__ void announce_to_cluster() {
#if PYBLAS_HAS_SM90
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_cluster() {
#if PYBLAS_HAS_SM90
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ uint32_t shared_address(const void *shared) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

__device__ __forceinline__ void init_barrier(uint64_t *barrier, int arrivals) {
#if PYBLAS_HAS_SM90
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
#endif
}

// Barriers initialised so far may be used by the copy engine and other blocks. A barrier of all threads behind it tells
// them.
__device__ __forceinline__ void publish_barriers() {
#if PYBLAS_HAS_SM90
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

// Arrives, and holds the phase open until that many bytes have come.
__device__ __forceinline__ void arrive_and_expect(uint64_t *barrier, int bytes) {
#if PYBLAS_HAS_SM90
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
#endif
}

// Two words into another block's shared memory, at the place that shared is in this one; they count for its barrier.
template <class T>
__device__ __forceinline__ void tell_block(T *shared, const T &value, uint64_t *barrier, int block) {
    static_assert(sizeof(T) == 8, "two words");
#if PYBLAS_HAS_SM90
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t address = shared_address(shared), counted = shared_address(barrier);
    asm volatile("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(address) : "r"(block));
    asm volatile("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(counted) : "r"(block));
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(address), "l"(bits),
                 "r"(counted)
                 : "memory");
#endif
}

// Waits until the phase of this parity is complete, with what other blocks have told.
__device__ __forceinline__ void wait_for_blocks(uint64_t *barrier, uint32_t parity) {
#if PYBLAS_HAS_SM90
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}" ::"r"(shared_address(barrier)),
                 "r"(parity)
                 : "memory");
#endif
}

// What lies in another block's shared memory at the place that shared is in this one.
__device__ __forceinline__ float4 load_of_block(const float4 *shared, int block) {
    float4 value = {};
#if PYBLAS_HAS_SM90
    uint32_t address = shared_address(shared);
    asm volatile("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(address) : "r"(block));
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
                 : "r"(address));
#endif
    return value;
}
__device__ __forceinline__ float load_of_block(const float *shared, int block) {
    float value = 0;
#if PYBLAS_HAS_SM90
    uint32_t address = shared_address(shared);
    asm volatile("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(address) : "r"(block));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address));
#endif
    return value;
}

// Two floats rounded to the nearest 16-bit numbers, the first in the lower half of the word; and back.
__device__ __forceinline__ uint32_t f16_pair(float first, float second) {
    uint32_t word;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
#else
    asm("{\n"
        ".reg .b16 first, second;\n"
        "cvt.rn.f16.f32 first, %1;\n"
        "cvt.rn.f16.f32 second, %2;\n"
        "mov.b32 %0, {first, second};\n"
        "}"
        : "=r"(word)
        : "f"(first), "f"(second));
#endif
    return word;
}

__device__ __forceinline__ float2 floats_of_f16_pair(uint32_t word) {
    float2 pair;
    asm("{\n"
        ".reg .b16 first, second;\n"
        "mov.b32 {first, second}, %2;\n"
        "cvt.f32.f16 %0, first;\n"
        "cvt.f32.f16 %1, second;\n"
        "}"
        : "=f"(pair.x), "=f"(pair.y)
        : "r"(word));
    return pair;
}

__device__ __forceinline__ uint32_t bf16_pair(float first, float second) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    uint32_t word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
    return word;
#else
    const auto rounded = [](float value) {
        const uint32_t bits = __float_as_uint(value);
        return value != value ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    };
    return rounded(first) | rounded(second) << 16;
#endif
}

// Four floats that nobody reads again, and nobody writes while the kernel runs.
__device__ __forceinline__ float4 load_once(const float *global) {
    float4 four;
    asm volatile("ld.global.nc.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(four.x), "=f"(four.y), "=f"(four.z), "=f"(four.w)
                 : "l"(global));
    return four;
}

// Asks for the line of 128 bytes to be in the L2, where all writers of global memory meet: legal at any time.
__device__ __forceinline__ void prefetch(const float *global) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}

// Counts one arrival, and says whether it is the last after that many others; the counter is zero again then. What the
// block wrote before a barrier in front of the call can be read, once it has been the last, by whoever stands behind a
// barrier after it.
__device__ __forceinline__ bool arrive(uint32_t *counter, uint32_t others) {
    uint32_t before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(others) : "memory");
    return before == others;
}

// ---- multiplies of a warp by tensor cores, from SM 8.0 on. Only kernels that are empty elsewhere call them. With
// group = lane / 4 and own = lane % 4, a lane holds
//
//     rows      16 x 8 of k (TF32)     words i: row group + i % 2 * 8, k own + i / 2 * 4
//     columns   8 of k x 8             words i: k own + i * 4, column group
//     rows      16 x 16 of k (BF16)    words i, two of k: row group + i % 2 * 8, k 2 own + i / 2 * 8
//     columns   16 of k x 8            words i: k 2 own + i * 8, column group
//     sums      16 x 8                 i: row group + i / 2 * 8, column 2 own + i % 2
// ---------------------------------------------------------------------------------------------------------------------

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define PYBLAS_HAS_WARP_MULTIPLY 1
#else
#define PYBLAS_HAS_WARP_MULTIPLY 0
#endif

#if PYBLAS_HAS_WARP_MULTIPLY
// The nearest number of 11 bits; of two, the one farther from zero. 2^128 - 2^116 and beyond are infinite.
__device__ __forceinline__ uint32_t tf32(float value) {
    uint32_t word;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(word) : "f"(value));
    return word;
}

// sums += rows * columns
__device__ __forceinline__ void multiply_tf32(float (&sums)[4], const uint32_t (&rows)[4],
                                              const uint32_t (&columns)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(rows[0]), "r"(rows[1]), "r"(rows[2]), "r"(rows[3]), "r"(columns[0]), "r"(columns[1]));
}

__device__ __forceinline__ void multiply_bf16(float (&sums)[4], const uint32_t (&rows)[4], uint32_t column_word,
                                              uint32_t next_column_word) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(rows[0]), "r"(rows[1]), "r"(rows[2]), "r"(rows[3]), "r"(column_word), "r"(next_column_word));
}

// Four matrices of 8 rows by 8 16-bit numbers from shared memory, as words of rows or columns. Lane i has the address
// of row i % 8 of matrix i / 8, 16 bytes.
__device__ __forceinline__ void load_matrices(uint32_t (&words)[4], const uint16_t *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(shared_address(row))
                 : "memory");
}
#endif

// ---- Hopper: bulk tensor copies, barriers in shared memory, warpgroup multiplies. Only 90a code has them, and only
// kernels that are empty elsewhere call them. ---------------------------------------------------------------------

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define PYBLAS_HAS_WGMMA 1
#else
#define PYBLAS_HAS_WGMMA 0
#endif

#if PYBLAS_HAS_WGMMA

// Registers of each thread of this warpgroup from here on.
template <int Registers>
__device__ __forceinline__ void give_registers_back() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}
template <int Registers>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}

// A barrier of so many threads, whole warps of them, that have this number to themselves. True if one of them says so.
template <int Threads>
__device__ __forceinline__ bool any_of_threads(int number, bool fact) {
    int any;
    asm volatile("{\n"
                 ".reg .pred mine, all;\n"
                 "setp.ne.b32 mine, %1, 0;\n"
                 "barrier.red.or.pred all, %2, %3, mine;\n"
                 "selp.b32 %0, 1, 0, all;\n"
                 "}"
                 : "=r"(any)
                 : "r"(static_cast<int>(fact)), "r"(number), "n"(Threads)
                 : "memory");
    return any != 0;
}

// A barrier of the threads of one warpgroup; each has a number of its own, from 1 on. True if one of them says so.
__device__ __forceinline__ bool any_of_warpgroup(int number, bool fact) {
    int any;
    asm volatile("{\n"
                 ".reg .pred mine, all;\n"
                 "setp.ne.b32 mine, %1, 0;\n"
                 "barrier.red.or.pred all, %2, 128, mine;\n"
                 "selp.b32 %0, 1, 0, all;\n"
                 "}"
                 : "=r"(any)
                 : "r"(static_cast<int>(fact)), "r"(number)
                 : "memory");
    return any != 0;
}

// Counts for the other of two warpgroups that meet, and waits for nothing.
__device__ __forceinline__ void arrive_at_pair(int number) {
    asm volatile("barrier.arrive %0, 256;" ::"r"(number) : "memory");
}
__device__ __forceinline__ void arrive(uint64_t *barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// The same in another block of the cluster.
__device__ __forceinline__ void arrive_in_block(uint64_t *barrier, int block) {
    uint32_t address = shared_address(barrier);
    asm volatile("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(address) : "r"(block));
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(address) : "memory");
}

// Arrives once all asynchronous copies that this thread has issued so far have come.
__device__ __forceinline__ void arrive_after_copies(uint64_t *barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Holds the phase open until that many bytes have been copied. The thread arrives after the copies.
__device__ __forceinline__ void expect(uint64_t *barrier, int bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

// By the copy engine. Both sides are aligned to 16 bytes, and bytes is a multiple of 16.
template <bool Once = false>
__device__ __forceinline__ void copy_in_bulk(float *shared, const float *global, int bytes, uint64_t *barrier) {
    if constexpr (Once)
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
                     "[%3], %4;" ::"r"(shared_address(shared)),
                     "l"(global), "r"(bytes), "r"(shared_address(barrier)), "l"(read_once())
                     : "memory");
    else
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                         shared_address(shared)),
                     "l"(global), "r"(bytes), "r"(shared_address(barrier))
                     : "memory");
}

// Waits until the phase of this parity is complete.
__device__ __forceinline__ void wait(uint64_t *barrier, uint32_t parity) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}" ::"r"(shared_address(barrier)),
                 "r"(parity)
                 : "memory");
}

__device__ __forceinline__ void prefetch_tensor_map(const void *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// What this thread has stored in shared memory is there for warpgroup multiplies behind a barrier.
__device__ __forceinline__ void publish_stores() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Brings one box of a four-dimensional tensor to shared memory, of this block or of those of the cluster that have a
// bit in blocks, at the same place and reporting to the same barrier in each; zeros stand for what lies outside.
template <bool Multicast = false>
__device__ __forceinline__ void copy_box(void *shared, const void *map, int x0, int x1, int x2, int x3,
                                         uint64_t *barrier, uint32_t blocks = 1) {
    if constexpr (!Multicast)
        asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, "
                     "%3, %4, %5}], [%6];" ::"r"(shared_address(shared)),
                     "l"(map), "r"(x0), "r"(x1), "r"(x2), "r"(x3), "r"(shared_address(barrier))
                     : "memory");
    else
        asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                     ".multicast::cluster [%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(shared_address(shared)),
                     "l"(map), "r"(x0), "r"(x1), "r"(x2), "r"(x3), "r"(shared_address(barrier)),
                     "h"(static_cast<uint16_t>(blocks))
                     : "memory");
}

// The same to this block, of what nobody reads again: its lines are the first that the L2 gives up, so others stay.
__device__ __forceinline__ void copy_box_once(void *shared, const void *map, int x0, int x1, int x2, int x3,
                                              uint64_t *barrier) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(shared_address(shared)),
                 "l"(map), "r"(x0), "r"(x1), "r"(x2), "r"(x3), "r"(shared_address(barrier)), "l"(read_once())
                 : "memory");
}

// The number of this block in its cluster.
__device__ __forceinline__ int block_of_cluster() {
    int rank;
    asm("mov.u32 %0, %cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Numbers in registers that a multiply is to read: they are there from here on.
template <int Steps>
__device__ __forceinline__ void fence_operand(uint32_t (&a)[Steps][4]) {
#pragma unroll
    for (int i = 0; i < Steps * 4; ++i)
        asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
}

// acc may be read or written before and is an accumulator from here on.
template <int Size>
__device__ __forceinline__ void fence_accumulators(float (&acc)[Size]) {
#pragma unroll
    for (int i = 0; i < Size; ++i)
        asm volatile("" : "+f"(acc[i])::"memory"); // no write of it moves past the fence
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void commit_multiplies() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most Pending groups of multiplies are at work; acc, of an older group, holds its sums then.
template <int Pending, int Size>
__device__ __forceinline__ void wait_multiplies(float (&acc)[Size]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
#pragma unroll
    for (int i = 0; i < Size; ++i)
        asm volatile("" : "+f"(acc[i])::"memory"); // no read of it moves before the wait
}

template <int Pending>
__device__ __forceinline__ void wait_multiplies() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

// acc (+)= a * b for 64 x 2 Size outputs of the warpgroup and 16 of k, from descriptors of shared memory. An operand is
// contiguous along k, or across it. accumulate is 0 or 1.
enum class Number { f16, bf16 };

#define PYBLAS_F8(r, i)                                                                                                \
    "+f"(r[i]), "+f"(r[i + 1]), "+f"(r[i + 2]), "+f"(r[i + 3]), "+f"(r[i + 4]), "+f"(r[i + 5]), "+f"(r[i + 6]),        \
        "+f"(r[i + 7])
#define PYBLAS_R8(a, b, c, d, e, f, g, h) "%" #a ",%" #b ",%" #c ",%" #d ",%" #e ",%" #f ",%" #g ",%" #h
#define PYBLAS_R32A                                                                                                    \
    PYBLAS_R8(0, 1, 2, 3, 4, 5, 6, 7)                                                                                  \
    "," PYBLAS_R8(8, 9, 10, 11, 12, 13, 14, 15) "," PYBLAS_R8(16, 17, 18, 19, 20, 21, 22,                              \
                                                              23) "," PYBLAS_R8(24, 25, 26, 27, 28, 29, 30, 31)
#define PYBLAS_R32B                                                                                                    \
    PYBLAS_R8(32, 33, 34, 35, 36, 37, 38, 39)                                                                          \
    "," PYBLAS_R8(40, 41, 42, 43, 44, 45, 46, 47) "," PYBLAS_R8(48, 49, 50, 51, 52, 53, 54,                            \
                                                                55) "," PYBLAS_R8(56, 57, 58, 59, 60, 61, 62, 63)
#define PYBLAS_R32C                                                                                                    \
    PYBLAS_R8(64, 65, 66, 67, 68, 69, 70, 71)                                                                          \
    "," PYBLAS_R8(72, 73, 74, 75, 76, 77, 78, 79) "," PYBLAS_R8(80, 81, 82, 83, 84, 85, 86,                            \
                                                                87) "," PYBLAS_R8(88, 89, 90, 91, 92, 93, 94, 95)
#define PYBLAS_R32D                                                                                                    \
    PYBLAS_R8(96, 97, 98, 99, 100, 101, 102, 103)                                                                      \
    "," PYBLAS_R8(104, 105, 106, 107, 108, 109, 110, 111) "," PYBLAS_R8(                                               \
        112, 113, 114, 115, 116, 117, 118, 119) "," PYBLAS_R8(120, 121, 122, 123, 124, 125, 126, 127)
#define PYBLAS_F32(r, i) PYBLAS_F8(r, i), PYBLAS_F8(r, i + 8), PYBLAS_F8(r, i + 16), PYBLAS_F8(r, i + 24)
#define PYBLAS_WGMMA(n, type, registers, a_operand, b_operand, flag, across_a, across_b, ...)                          \
    asm volatile("{\n"                                                                                                 \
                 ".reg .pred accumulate;\n"                                                                            \
                 "setp.ne.b32 accumulate, %" #flag ", 0;\n"                                                            \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" registers "}, %" #a_operand      \
                 ", %" #b_operand ", accumulate, 1, 1, %" #across_a ", %" #across_b ";\n"                              \
                 "}"                                                                                                   \
                 : __VA_ARGS__                                                                                         \
                 : "l"(a), "l"(b), "r"(accumulate), "n"(static_cast<int>(AcrossA)), "n"(static_cast<int>(AcrossB)))

template <Number Type, bool AcrossA = false, bool AcrossB = false>
__device__ __forceinline__ void multiply(float (&acc)[32], uint64_t a, uint64_t b, int accumulate) {
    if constexpr (Type == Number::f16)
        PYBLAS_WGMMA(64, "f16", PYBLAS_R32A, 32, 33, 34, 35, 36, PYBLAS_F8(acc, 0), PYBLAS_F8(acc, 8),
                     PYBLAS_F8(acc, 16), PYBLAS_F8(acc, 24));
    else
        PYBLAS_WGMMA(64, "bf16", PYBLAS_R32A, 32, 33, 34, 35, 36, PYBLAS_F8(acc, 0), PYBLAS_F8(acc, 8),
                     PYBLAS_F8(acc, 16), PYBLAS_F8(acc, 24));
}

template <Number Type, bool AcrossA = false, bool AcrossB = false>
__device__ __forceinline__ void multiply(float (&acc)[64], uint64_t a, uint64_t b, int accumulate) {
    if constexpr (Type == Number::f16)
        PYBLAS_WGMMA(128, "f16", PYBLAS_R32A "," PYBLAS_R32B, 64, 65, 66, 67, 68, PYBLAS_F8(acc, 0), PYBLAS_F8(acc, 8),
                     PYBLAS_F8(acc, 16), PYBLAS_F8(acc, 24), PYBLAS_F8(acc, 32), PYBLAS_F8(acc, 40), PYBLAS_F8(acc, 48),
                     PYBLAS_F8(acc, 56));
    else
        PYBLAS_WGMMA(128, "bf16", PYBLAS_R32A "," PYBLAS_R32B, 64, 65, 66, 67, 68, PYBLAS_F8(acc, 0), PYBLAS_F8(acc, 8),
                     PYBLAS_F8(acc, 16), PYBLAS_F8(acc, 24), PYBLAS_F8(acc, 32), PYBLAS_F8(acc, 40), PYBLAS_F8(acc, 48),
                     PYBLAS_F8(acc, 56));
}

template <Number Type, bool AcrossA = false, bool AcrossB = false>
__device__ __forceinline__ void multiply(float (&acc)[72], uint64_t a, uint64_t b, int accumulate) {
    if constexpr (Type == Number::f16)
        PYBLAS_WGMMA(144, "f16", PYBLAS_R32A "," PYBLAS_R32B "," PYBLAS_R8(64, 65, 66, 67, 68, 69, 70, 71), 72, 73, 74,
                     75, 76, PYBLAS_F8(acc, 0), PYBLAS_F8(acc, 8), PYBLAS_F8(acc, 16), PYBLAS_F8(acc, 24),
                     PYBLAS_F8(acc, 32), PYBLAS_F8(acc, 40), PYBLAS_F8(acc, 48), PYBLAS_F8(acc, 56),
                     PYBLAS_F8(acc, 64));
    else
        PYBLAS_WGMMA(144, "bf16", PYBLAS_R32A "," PYBLAS_R32B "," PYBLAS_R8(64, 65, 66, 67, 68, 69, 70, 71), 72, 73, 74,
                     75, 76, PYBLAS_F8(acc, 0), PYBLAS_F8(acc, 8), PYBLAS_F8(acc, 16), PYBLAS_F8(acc, 24),
                     PYBLAS_F8(acc, 32), PYBLAS_F8(acc, 40), PYBLAS_F8(acc, 48), PYBLAS_F8(acc, 56),
                     PYBLAS_F8(acc, 64));
}

template <Number Type, bool AcrossA = false, bool AcrossB = false>
__device__ __forceinline__ void multiply(float (&acc)[128], uint64_t a, uint64_t b, int accumulate) {
    if constexpr (Type == Number::f16)
        PYBLAS_WGMMA(256, "f16", PYBLAS_R32A "," PYBLAS_R32B "," PYBLAS_R32C "," PYBLAS_R32D, 128, 129, 130, 131, 132,
                     PYBLAS_F32(acc, 0), PYBLAS_F32(acc, 32), PYBLAS_F32(acc, 64), PYBLAS_F32(acc, 96));
    else
        PYBLAS_WGMMA(256, "bf16", PYBLAS_R32A "," PYBLAS_R32B "," PYBLAS_R32C "," PYBLAS_R32D, 128, 129, 130, 131, 132,
                     PYBLAS_F32(acc, 0), PYBLAS_F32(acc, 32), PYBLAS_F32(acc, 64), PYBLAS_F32(acc, 96));
}

// acc += a * b for 64 x 256 outputs and 8 of k of TF32, both contiguous along k. Bits beyond TF32 are not looked at.
__device__ __forceinline__ void multiply_tf32(float (&acc)[128], uint64_t a, uint64_t b) {
    asm volatile("{\n"
                 ".reg .pred accumulate;\n"
                 "setp.eq.b32 accumulate, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n256k8.f32.tf32.tf32 {" PYBLAS_R32A "," PYBLAS_R32B "," PYBLAS_R32C
                 "," PYBLAS_R32D "}, %128, %129, accumulate, 1, 1;\n"
                 "}"
                 : PYBLAS_F32(acc, 0), PYBLAS_F32(acc, 32), PYBLAS_F32(acc, 64), PYBLAS_F32(acc, 96)
                 : "l"(a), "l"(b));
}

// The nearest number of TF32's 11 bits; of two, the even one, as the copy engine rounds.
__device__ __forceinline__ uint32_t tf32_to_even(float value) {
    uint32_t word;
    asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(word) : "f"(value));
    return word;
}

// The same for FP16 and 16 to 128 columns, with a from the registers of the warpgroup.
#define PYBLAS_WGMMA_REGISTERS(n, registers, a0, a1, a2, a3, b_operand, flag, ...)                                     \
    asm volatile("{\n"                                                                                                 \
                 ".reg .pred accumulate;\n"                                                                            \
                 "setp.ne.b32 accumulate, %" #flag ", 0;\n"                                                            \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.f16.f16 {" registers "}, {%" #a0 ", %" #a1 ", %" #a2  \
                 ", %" #a3 "}, %" #b_operand ", accumulate, 1, 1, 0;\n"                                                \
                 "}"                                                                                                   \
                 : __VA_ARGS__                                                                                         \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate))

__device__ __forceinline__ void multiply(float (&acc)[8], const uint32_t (&a)[4], uint64_t b, int accumulate) {
    PYBLAS_WGMMA_REGISTERS(16, PYBLAS_R8(0, 1, 2, 3, 4, 5, 6, 7), 8, 9, 10, 11, 12, 13, PYBLAS_F8(acc, 0));
}

__device__ __forceinline__ void multiply(float (&acc)[16], const uint32_t (&a)[4], uint64_t b, int accumulate) {
    PYBLAS_WGMMA_REGISTERS(32, PYBLAS_R8(0, 1, 2, 3, 4, 5, 6, 7) "," PYBLAS_R8(8, 9, 10, 11, 12, 13, 14, 15), 16, 17,
                           18, 19, 20, 21, PYBLAS_F8(acc, 0), PYBLAS_F8(acc, 8));
}

__device__ __forceinline__ void multiply(float (&acc)[32], const uint32_t (&a)[4], uint64_t b, int accumulate) {
    PYBLAS_WGMMA_REGISTERS(64, PYBLAS_R32A, 32, 33, 34, 35, 36, 37, PYBLAS_F8(acc, 0), PYBLAS_F8(acc, 8),
                           PYBLAS_F8(acc, 16), PYBLAS_F8(acc, 24));
}

__device__ __forceinline__ void multiply(float (&acc)[64], const uint32_t (&a)[4], uint64_t b, int accumulate) {
    PYBLAS_WGMMA_REGISTERS(128, PYBLAS_R32A "," PYBLAS_R32B, 64, 65, 66, 67, 68, 69, PYBLAS_F8(acc, 0),
                           PYBLAS_F8(acc, 8), PYBLAS_F8(acc, 16), PYBLAS_F8(acc, 24), PYBLAS_F8(acc, 32),
                           PYBLAS_F8(acc, 40), PYBLAS_F8(acc, 48), PYBLAS_F8(acc, 56));
}

#undef PYBLAS_WGMMA_REGISTERS
#undef PYBLAS_WGMMA
#undef PYBLAS_R32D
#undef PYBLAS_R32C
#undef PYBLAS_F32
#undef PYBLAS_R32B
#undef PYBLAS_R32A
#undef PYBLAS_R8
#undef PYBLAS_F8

#endif // PYBLAS_HAS_WGMMA

} // namespace pyblas::ptx

#endif
