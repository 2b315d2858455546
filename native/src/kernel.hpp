// Kernel: one row of the dispatch table. A kernel file says here what it can do, what it costs and how it starts;
// it never chooses. Rows are constants: everything that varies comes in through Problem and Device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "problem.hpp"
#include "status.hpp"

struct CUstream_st;

namespace pyblas {

struct Work;

enum class Engine : uint8_t { cpu, gpu };

// What dispatch and kernels know of the processor. Plain facts, so that tests can make up any device.
struct Device {
    Engine engine = Engine::cpu;
    int ordinal = -1;         // CUDA device number
    int sm = 0;               // compute capability times ten
    int multiprocessors = 1;  // on the CPU 1: bits must not depend on threads
    int shared_per_block = 0; // bytes, with the opt-in
    int64_t l2_bytes = 0;
    double fp32_flops = 0;       // multiply-add peak, two operations each, per second
    double bandwidth = 0;        // bytes per second of the memory behind the caches
    double launch_seconds = 0;   // launch to launch
    bool has_90a_code = false;   // the build holds 90a and this is a 9.0
    bool starts_early = false;   // and the driver lets a kernel's blocks start before the kernel ahead has ended
    size_t workspace = SIZE_MAX; // bytes that a kernel may use, by which it can cut its work; select() sets them
};

// What a product costs before its first block works, in a row of them.
constexpr double kStartSeconds = 1.6e-6;

// And what its second kernel costs, which can start early from SM 9.0 on. Whether it does is the driver's affair, on
// which the choice of a kernel, and so the bits, must not depend.
inline double second_kernel_seconds(const Device &device) {
    return device.sm >= 90 ? 1.5e-6 : 3e-6;
}

// What one launch may use.
struct Launch {
    const Device *device;
    CUstream_st *stream; // GPU only
    void *workspace;     // at least workspace() bytes, 256-byte aligned
    size_t workspace_bytes;
    uint32_t *zeros = nullptr; // kZeros of them, which the work leaves as zeros; none in the caller's own workspace
};
constexpr int kZeros = 4096;

// What a block of a GPU row takes of a multiprocessor, at most: its launches and the compiler's report are held to it.
struct Footprint {
    int threads = 0;
    int resident = 0;     // blocks that the registers leave room for
    int shared_bytes = 0; // static and dynamic

    // Of one thread: an equal share, as registers are given out in eights and a thread can have 255.
    constexpr int registers() const {
        const int share = threads == 0 ? 0 : (1 << 16) / (threads * resident) / 8 * 8;
        return share < 255 ? share : 255;
    }
};

// The orders in which batch_invariant adds, told below.
enum class SumOrder : uint8_t { parts, two_planes, one_plane, halves };

struct Kernel {
    const char *name;   // <family>_<BM>x<BN>x<BK>[_<variant>]
    const char *family; // the stem of the file
    Engine engine;
    uint8_t modes; // ComputeMode bits
    int min_sm;    // lowest architecture it is built for
    bool needs_90a;

    // nullptr if the kernel is right for the problem, otherwise a constant sentence that says what it refuses.
    const char *(*refuses)(const Problem &, const Device &);
    // Bytes it wants; nullptr for none. Given less, launch() is not called and the next kernel is taken.
    size_t (*workspace)(const Problem &, const Device &);
    // Predicted seconds on the device; nullptr where work() is counted instead.
    double (*cost)(const Problem &, const Device &);
    Status (*launch)(const Problem &, const Launch &);

    // In a problem that asks for it, an element's sum takes its terms in an order that k alone decides: not m, n, the
    // batch or the element's place. Which row runs may depend on those, so the rows of an engine that say so and have
    // one sum_order agree with each other bit for bit.
    bool batch_invariant = false;

    Footprint footprint = {};

    // What the product asks of the device, for rows whose rates are fitted (cost.hpp).
    Work (*work)(const Problem &, const Device &) = nullptr;

    // Types of A and B it computes with, one bit each. C is float32 beside float32, and any of the three otherwise.
    uint8_t types = 1 << static_cast<int>(Dtype::f32);

    SumOrder sum_order = SumOrder::parts; // of batch_invariant
};

constexpr uint8_t kHalfTypes = 1 << static_cast<int>(Dtype::f16) | 1 << static_cast<int>(Dtype::bf16);

// SumOrder::parts: k in parts of this, each part's products added one after another from zero, and the parts' sums, if
// there are several, one after another to zero.
PYBLAS_HOST_DEVICE constexpr int invariant_part(int64_t k) {
    return k <= 16384 ? 256 : 1024;
}

// SumOrder::two_planes and one_plane: products of scaled planes (planes.cuh), whose sums leave the tensor cores every
// 64 of k and are then added one after another to zero. Rows and columns that planes cannot hold are added as in parts.
// Whatever the sizes, from 128 of k on and as long as one tile is not more, these kernels ask for no more workspace
// than
constexpr size_t kPlanesBytes = size_t{1216} << 20;

// SumOrder::halves: products of 16-bit matrices, whose sums leave the tensor cores every 512 of k.

// The rows of one family, in table order. Each kernel file defines one of these; dispatch.cpp lists them.
struct KernelRows {
    const Kernel *begin_;
    size_t size;
    const Kernel *begin() const { return begin_; }
    const Kernel *end() const { return begin_ + size; }
};

template <size_t N>
constexpr KernelRows rows(const Kernel (&table)[N]) {
    return {table, N};
}

constexpr uint8_t modes(ComputeMode mode) {
    return static_cast<uint8_t>(mode);
}
template <class... Modes>
constexpr uint8_t modes(ComputeMode first, Modes... rest) {
    return static_cast<uint8_t>(modes(first) | modes(rest...));
}
// Of FP32 multiply-adds. tf32 allows larger errors and does not ask for them.
constexpr uint8_t kFp32Modes = modes(ComputeMode::fp32, ComputeMode::fp32_pedantic, ComputeMode::tf32);

// Anything is welcome.
inline const char *refuses_nothing(const Problem &, const Device &) {
    return nullptr;
}

} // namespace pyblas
