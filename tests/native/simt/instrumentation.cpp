// What the compiler calls in code built with -fsanitize=thread and -fsanitize=undefined. Only the calls are theirs:
// the runtime libraries of the sanitizers are not linked.
#include "machine.hpp"

namespace {

using pyblas::simulator::check;
using pyblas::simulator::FaultKind;
using pyblas::simulator::raise;

// The start of every description that a check of undefined behaviour passes.
struct SourceLocation {
    const char *file;
    uint32_t line, column;
};

[[noreturn]] void undefined(FaultKind kind, const SourceLocation *where, const char *what) {
    raise(kind, "%s at %s:%u:%u", what, where->file, where->line, where->column);
}

} // namespace

extern "C" {

#define PYBLAS_ACCESS(name, write, bytes)                                                                              \
    void name(void *address) {                                                                                         \
        check(address, bytes, write, __builtin_return_address(0));                                                     \
    }
PYBLAS_ACCESS(__tsan_read1, false, 1)
PYBLAS_ACCESS(__tsan_read2, false, 2)
PYBLAS_ACCESS(__tsan_read4, false, 4)
PYBLAS_ACCESS(__tsan_read8, false, 8)
PYBLAS_ACCESS(__tsan_read16, false, 16)
PYBLAS_ACCESS(__tsan_write1, true, 1)
PYBLAS_ACCESS(__tsan_write2, true, 2)
PYBLAS_ACCESS(__tsan_write4, true, 4)
PYBLAS_ACCESS(__tsan_write8, true, 8)
PYBLAS_ACCESS(__tsan_write16, true, 16)
#undef PYBLAS_ACCESS

void __tsan_read_range(void *address, unsigned long bytes) {
    check(address, bytes, false, __builtin_return_address(0));
}
void __tsan_write_range(void *address, unsigned long bytes) {
    check(address, bytes, true, __builtin_return_address(0));
}

void __tsan_init() {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}

// Host code in kernel files keeps flags in atomics; kernels have none.
uint64_t __tsan_atomic64_load(const volatile uint64_t *address, int) {
    return __atomic_load_n(address, __ATOMIC_SEQ_CST);
}
void __tsan_atomic64_store(volatile uint64_t *address, uint64_t value, int) {
    __atomic_store_n(address, value, __ATOMIC_SEQ_CST);
}
uint64_t __tsan_atomic64_fetch_or(volatile uint64_t *address, uint64_t bits, int) {
    return __atomic_fetch_or(address, bits, __ATOMIC_SEQ_CST);
}

#define PYBLAS_ARITHMETIC(name, what)                                                                                  \
    void name(const SourceLocation *where, ...) {                                                                      \
        undefined(FaultKind::arithmetic, where, what);                                                                 \
    }
PYBLAS_ARITHMETIC(__ubsan_handle_add_overflow_abort, "overflow of a sum")
PYBLAS_ARITHMETIC(__ubsan_handle_sub_overflow_abort, "overflow of a difference")
PYBLAS_ARITHMETIC(__ubsan_handle_mul_overflow_abort, "overflow of a product")
PYBLAS_ARITHMETIC(__ubsan_handle_negate_overflow_abort, "overflow of a negation")
PYBLAS_ARITHMETIC(__ubsan_handle_divrem_overflow_abort, "overflow of a division")
PYBLAS_ARITHMETIC(__ubsan_handle_shift_out_of_bounds_abort, "shift by too much")
PYBLAS_ARITHMETIC(__ubsan_handle_out_of_bounds_abort, "index outside of an array")
#undef PYBLAS_ARITHMETIC

void __ubsan_handle_type_mismatch_v1_abort(const SourceLocation *where, void *address) {
    undefined(FaultKind::alignment, where, address ? "misaligned address" : "null pointer");
}

} // extern "C"
