#include "blas_real.hpp"

#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <link.h>

#include "objects.hpp"

namespace pyblas::shim {

namespace {

// File names of libraries with a BLAS inside, as distributions and wheels have them.
constexpr const char *kLibraries[] = {
    "libscipy_openblas", "libopenblas",  "libcblas", "libblas",      "libmkl_rt",
    "libblis",           "libflexiblas", "libarmpl", "libnvpl_blas",
};

const void *base_of(const void *address) {
    Dl_info info;
    return address && dladdr(address, &info) ? info.dli_fbase : nullptr;
}

bool in_this_library(const void *address) {
    static const char anchor = 0;
    return base_of(address) == base_of(&anchor);
}

void *other_symbol(void *handle, const char *name) {
    void *found = symbol(handle, name);
    return found && !in_this_library(found) ? found : nullptr;
}

// Whether the object has, itself or in what it is linked with, a BLAS of that naming.
bool has_blas(void *handle, const Naming &naming) {
    for (const char *name : naming.known_by)
        if (symbol(handle, name))
            return true;
    return false;
}

// How many objects have been loaded since the process began.
unsigned long long loads() {
    unsigned long long count = 0;
    (void)dl_iterate_phdr(
        [](dl_phdr_info *object, size_t, void *out) {
            *static_cast<unsigned long long *>(out) = object->dlpi_adds;
            return 1;
        },
        &count);
    return count;
}

void *search(const Function &function, const void *caller) {
    if (void *found = other_symbol(RTLD_NEXT, function.name))
        return found;
    // What the caller is linked with, in the order in which the loader would have looked.
    if (void *object = object_of(caller))
        if (void *found = other_symbol(object, function.name))
            return found;
    for (const char *library : kLibraries) {
        constexpr size_t kMost = 8;
        void *handles[kMost];
        const size_t count = loaded_objects(library, handles, kMost);
        for (size_t i = 0; i < count; ++i)
            // Some builds with 64-bit integers leave the suffix out here and there.
            if (void *found = other_symbol(handles[i], function.name); found && has_blas(handles[i], function.naming))
                return found;
    }
    return nullptr;
}

} // namespace

void *real_function(Function &function, const void *caller) noexcept {
    void *real = function.real.load(std::memory_order_acquire);
    if (real)
        return real;
    const unsigned long long objects = loads();
    if (function.missed_at.load(std::memory_order_relaxed) == objects)
        return nullptr;
    real = search(function, caller);
    if (!real) {
        function.missed_at.store(objects, std::memory_order_relaxed);
        return nullptr;
    }
    if (void *object = object_of(real))
        for (const char *name : function.naming.threads)
            if (void *threads = symbol(object, name)) {
                function.threads.store(reinterpret_cast<int (*)()>(threads), std::memory_order_relaxed);
                break;
            }
    function.real.store(real, std::memory_order_release);
    return real;
}

void *program_handler(const char *name, const Naming &naming) noexcept {
    void *found = other_symbol(RTLD_DEFAULT, name);
    if (!found)
        return nullptr;
    const void *base = base_of(found);
    void *object = object_of(found);
    for (const char *routine : naming.known_by)
        if (base_of(symbol(object ? object : RTLD_DEFAULT, routine)) == base)
            return nullptr;
    return found;
}

bool real_is(const Function &function, const char *file) noexcept {
    Dl_info info;
    const void *real = function.real.load(std::memory_order_relaxed);
    if (!real || !dladdr(real, &info) || !info.dli_fname)
        return false;
    char *path = realpath(info.dli_fname, nullptr);
    const bool same = path && std::strcmp(path, file) == 0;
    std::free(path);
    return same;
}

int real_threads(const Function &function) noexcept {
    int (*const threads)() = function.threads.load(std::memory_order_relaxed);
    return threads ? threads() : 0;
}

} // namespace pyblas::shim
