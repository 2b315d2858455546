// The BLAS that a program would have called without the shim: its functions, its error handlers, its number of threads.
#pragma once

#include <atomic>
#include <cstdint>

namespace pyblas::shim {

// How one build of a BLAS names its functions. All have the same integers.
struct Naming {
    const char *fortran_fault, *c_fault; // error handlers
    // Functions that the shim does not have, by which a BLAS or a LAPACK is known.
    const char *known_by[3];
    const char *threads[3]; // functions that tell the number of threads
};

// One function that the shim stands in for.
struct Function {
    const char *name;
    const Naming &naming;
    std::atomic<void *> real{nullptr};
    std::atomic<int (*)()> threads{nullptr};      // of the real library
    std::atomic<unsigned long long> missed_at{0}; // objects loaded when there was none
};

// The function of that name that the caller would have called. nullptr if there is none yet: it is looked for again
// when something has been loaded.
void *real_function(Function &function, const void *caller) noexcept;

// An error handler that the program brought itself, as the standard invites it to. nullptr if the name leads to a BLAS:
// the reference library's own handler ends the process.
void *program_handler(const char *name, const Naming &naming) noexcept;

// Whether the real function is in that file, given by its real path.
bool real_is(const Function &function, const char *file) noexcept;

// As many threads as the real library would use now; 0 if it does not say.
int real_threads(const Function &function) noexcept;

} // namespace pyblas::shim
