// The part of CUDA that the FP32 kernels use, for the host compiler: launches run on the simulator. The build includes
// it before every simulated file, as nvcc does with its own.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>

#define PYBLAS_SIMULATOR 1

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __grid_constant__
#define __launch_bounds__(...)
// One copy for all blocks, since they run one after another; thread-local, so that the simulator knows where it lies.
#define __shared__ static thread_local
#define __align__(bytes) __attribute__((aligned(bytes)))

// ---- types ---------------------------------------------------------------------------------------------------------

struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
inline int __clz(int value) {
    return __builtin_clz(static_cast<unsigned>(value));
}
inline int __popc(unsigned value) {
    return __builtin_popcount(value);
}

inline float2 make_float2(float x, float y) {
    return {x, y};
}
inline float4 make_float4(float x, float y, float z, float w) {
    return {x, y, z, w};
}

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

struct CUstream_st;
using cudaStream_t = CUstream_st *;

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInitializationError = 3,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInsufficientDriver = 35,
    cudaErrorInvalidDeviceFunction = 98,
    cudaErrorNoDevice = 100,
    cudaErrorNoKernelImageForDevice = 209,
    cudaErrorLaunchFailure = 719
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize, cudaFuncAttributePreferredSharedMemoryCarveout };
constexpr int cudaSharedmemCarveoutMaxShared = 100;

enum cudaLaunchAttributeID {
    cudaLaunchAttributeClusterDimension = 4,
    cudaLaunchAttributeProgrammaticStreamSerialization = 6
};
struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    struct {
        int programmaticStreamSerializationAllowed;
        struct {
            unsigned x, y, z;
        } clusterDim; // along x
    } val;
};
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    unsigned numAttrs;
};

// ---- what device code calls ----------------------------------------------------------------------------------------

namespace pyblas::simulator {

// What a thread knows of its place. Constant as far as its code can see, so the compiler may ask once.
enum class Place { thread, block, block_size, grid_size };
[[gnu::const]] unsigned coordinate(Place place, int axis);

template <Place place, int axis>
struct Coordinate {
    operator unsigned() const { return coordinate(place, axis); }
};
template <Place place>
struct Coordinates {
    Coordinate<place, 0> x{};
    Coordinate<place, 1> y{};
    Coordinate<place, 2> z{};
};

} // namespace pyblas::simulator

constexpr pyblas::simulator::Coordinates<pyblas::simulator::Place::thread> threadIdx;
constexpr pyblas::simulator::Coordinates<pyblas::simulator::Place::block> blockIdx;
constexpr pyblas::simulator::Coordinates<pyblas::simulator::Place::block_size> blockDim;
constexpr pyblas::simulator::Coordinates<pyblas::simulator::Place::grid_size> gridDim;
constexpr int warpSize = 32;

// A barrier is known by its line, because the compiler may copy the call.
void __syncthreads(const char *file = __builtin_FILE(), int line = __builtin_LINE());
int __syncthreads_or(int predicate, const char *file = __builtin_FILE(), int line = __builtin_LINE());
void __syncwarp(unsigned mask = 0xffffffff, const char *file = __builtin_FILE(), int line = __builtin_LINE());

inline float __fmaf_rn(float a, float b, float c) {
    return std::fmaf(a, b, c);
}
inline float __fmul_rn(float a, float b) {
    return a * b;
}
inline float __fadd_rn(float a, float b) {
    return a + b;
}
inline unsigned __float_as_uint(float value) {
    unsigned bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    return bits;
}
inline float __uint_as_float(unsigned bits) {
    float value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}
inline float __int_as_float(int bits) {
    return __uint_as_float(static_cast<unsigned>(bits));
}
// Four of the eight bytes of both, one for each hexadecimal digit.
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned digits) {
    const uint64_t bytes = uint64_t{high} << 32 | low;
    unsigned result = 0;
    for (unsigned i = 0; i < 4; ++i)
        result |= static_cast<unsigned>(bytes >> 8 * (digits >> 4 * i & 7) & 0xff) << 8 * i;
    return result;
}
template <class T>
T __ldg(const T *address) {
    return *address;
}
template <class T>
T __ldcs(const T *address) {
    return *address;
}
template <class T>
constexpr T min(T a, T b) {
    return b < a ? b : a;
}
template <class T>
constexpr T max(T a, T b) {
    return a < b ? b : a;
}

namespace pyblas::simulator {

// Every lane of mask gives value and takes that of lane source, which must be in mask.
uint64_t exchange(unsigned mask, uint64_t value, int source, const char *file, int line);
int lane();

template <class T>
T shuffle(unsigned mask, T value, int source, const char *file, int line) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8, "a register or two");
    uint64_t bits = 0;
    __builtin_memcpy(&bits, &value, sizeof value);
    bits = exchange(mask, bits, source, file, line);
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}

struct Launched {
    const void *kernel;
    void (*call)(const void *arguments);
    const void *arguments;
    size_t arguments_size;
};
void *dynamic_shared_memory();

cudaError_t run_grid(const cudaLaunchConfig_t &config, const Launched &launched);

template <class... Parameters>
struct Call {
    void (*kernel)(Parameters...);
    std::tuple<std::remove_const_t<Parameters>...> arguments;
};

} // namespace pyblas::simulator

// A lane outside the segment of width lanes leaves the value as it is.
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, const char *file = __builtin_FILE(),
              int line = __builtin_LINE()) {
    const int lane = pyblas::simulator::lane();
    return pyblas::simulator::shuffle(mask, value, (lane & -width) + (source & (width - 1)), file, line);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int flip, int width = 32, const char *file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
    const int lane = pyblas::simulator::lane(), source = lane ^ flip;
    return pyblas::simulator::shuffle(mask, value, source < (lane & -width) + width ? source : lane, file, line);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, const char *file = __builtin_FILE(),
                   int line = __builtin_LINE()) {
    const int lane = pyblas::simulator::lane(), source = lane + static_cast<int>(delta);
    return pyblas::simulator::shuffle(mask, value, source < (lane & -width) + width ? source : lane, file, line);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, const char *file = __builtin_FILE(),
                 int line = __builtin_LINE()) {
    const int lane = pyblas::simulator::lane(), source = lane - static_cast<int>(delta);
    return pyblas::simulator::shuffle(mask, value, source >= (lane & -width) ? source : lane, file, line);
}

template <class Flag>
unsigned __ballot_sync(unsigned mask, Flag flag, const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
    unsigned lanes = 0;
    for (int source = 0; source < 32; ++source)
        if (mask >> source & 1)
            lanes |= pyblas::simulator::shuffle(mask, flag ? 1u : 0u, source, file, line) << source;
    return lanes;
}

// Whoever else touches the word is not looked at: one thread runs at a time.
unsigned atomicAdd(unsigned *address, unsigned value);
int atomicAdd(int *address, int value);
unsigned atomicOr(unsigned *address, unsigned value);

// ---- what host code calls ------------------------------------------------------------------------------------------

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(Parameters...),
                               Arguments &&...arguments) {
    using Call = pyblas::simulator::Call<Parameters...>;
    static_assert((size_t{0} + ... + sizeof(Parameters)) <= 4096, "kernel parameters end at 4096 bytes");
    const Call call{kernel, {static_cast<Arguments &&>(arguments)...}};
    const auto enter = [](const void *memory) {
        const Call *call = static_cast<const Call *>(memory);
        std::apply(call->kernel, call->arguments);
    };
    return pyblas::simulator::run_grid(*config, {reinterpret_cast<const void *>(kernel), enter, &call, sizeof call});
}

cudaError_t set_function_attribute(const void *kernel, cudaFuncAttribute attribute, int value);
template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel *kernel, cudaFuncAttribute attribute, int value) {
    return set_function_attribute(reinterpret_cast<const void *>(kernel), attribute, value);
}

#define CUDART_VERSION 13000
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess, cudaDriverEntryPointSymbolNotFound };
constexpr unsigned long long cudaEnableDefault = 0;
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                             unsigned long long flags, cudaDriverEntryPointQueryResult *result);

cudaError_t cudaGetDevice(int *device);
cudaError_t cudaGetLastError();
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes);
const char *cudaGetErrorName(cudaError_t error);
const char *cudaGetErrorString(cudaError_t error);
