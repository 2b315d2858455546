// The SIMT simulator: kernels compiled for the host, one block after another, each of its threads a fiber.
//
//   kernels (.cu, g++ -fsanitize=thread,...)  --every load and store-->  instrumentation.cpp --> memory.cpp  is it
//   legal?
//        |  __syncthreads, __syncwarp, shuffles, ptx wrappers
//        v
//   machine.cpp     switches fibers, meets them at barriers, hands copies over at their wait
//
// The compiler's thread sanitizer is used for its calls only; what they call is ours, so every access is judged
// exactly: in which operand it lies, whether the word was ever written, whether a barrier stands between it and the
// other threads' accesses. A fault ends the launch, which then reports cudaErrorLaunchFailure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace pyblas::simulator {

enum class FaultKind {
    none,
    barrier,        // not all threads meet at the same one
    race,           // no barrier between two threads' accesses to one word
    uninitialised,  // read before anybody wrote
    copy_in_flight, // touched before its wait
    bounds,         // outside of every operand, or of the shared memory asked for
    access,         // a write to an input, a read of what must not be read, anything the kernel ahead may still use
    alignment,
    arithmetic, // overflow, shift, index of an array
};
const char *fault_name(FaultKind kind);

struct Fault {
    FaultKind kind = FaultKind::none;
    std::string text;
};

// The first fault since the last call.
Fault take_fault();

// The largest dynamic shared memory of a block launched since the last call, in bytes.
size_t take_dynamic_shared();

// In which order threads run between two barriers, and blocks in a grid. Right kernels give the same bits in each.
enum class Order { ascending, descending, alternating };

struct Settings {
    Order order = Order::ascending;
    int device = 0;
    int shared_per_block = 227 * 1024; // of the device, with the opt-in
    int sample = 1;                    // of grids beyond 4096 blocks, every so many-th one runs, the first and the last
};
extern Settings settings;

enum class Access : uint8_t { read = 1, write = 2, read_write = 3 };
enum class Content : uint8_t { initialised, undefined };

// One word of memory that threads share: who touched it last, and when.
struct Word {
    enum class Others : uint8_t { none, warp, block };

    uint32_t written = 0; // tick; 0: never
    uint32_t read = 0;
    uint32_t read_by_others = 0; // before reader
    uint16_t writer = 0, reader = 0;
    Others others = Others::none; // who they are: lanes of reader's warp, or anybody
    bool in_flight = false;
};

// Global memory that kernels may touch for as long as the object lives. Everything else is out of bounds.
struct Region {
    Region(const void *data, size_t bytes_, Access access_, const char *name_, Content content_ = Content::initialised);
    ~Region();
    Region(const Region &) = delete;
    Region &operator=(const Region &) = delete;

    bool holds(uintptr_t address) const { return address - begin < bytes; }

    const uintptr_t begin;
    const size_t bytes;
    const Access access;
    const Content content;
    const char *const name;
    std::vector<Word> words; // where a kernel may write, unless the region is huge
};

} // namespace pyblas::simulator
