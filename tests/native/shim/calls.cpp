// Calls every function of the recorded interface for a product with arguments that are all different, and prints what
// each answers. The functions come by link, or from a libcublas that the program opens itself (argument: its path). The
// test writes calls.inc.
#include <cstdint>
#include <cstdio>
#include <dlfcn.h>

#include "cublas_abi.h"

namespace {

void *library = nullptr;

template <class Function>
Function found(const char *name, [[maybe_unused]] Function linked) {
#ifdef LINKED
    return linked;
#else
    return reinterpret_cast<Function>(dlsym(library, name));
#endif
}

} // namespace

#ifdef LINKED
#define FUNCTION(name) found(#name, &name)
#else
#define FUNCTION(name) found<decltype(&name)>(#name, nullptr)
#endif

template <class T>
T pointer(uintptr_t value) {
    return reinterpret_cast<T>(value);
}

extern "C" CUBLASAPI int make_calls(const char *path) {
    if (path) {
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (!library) {
            std::fprintf(stderr, "%s\n", dlerror());
            return 1;
        }
    }
    cublasHandle_t handle = nullptr;
    if (FUNCTION(cublasCreate_v2)(&handle))
        return 1;
#include "calls.inc"
    return FUNCTION(cublasDestroy_v2)(handle);
}

#ifndef PLUGIN
int main(int, char **arguments) {
    return make_calls(arguments[1]);
}
#endif
