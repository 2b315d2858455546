#include "objects.hpp"

#include <atomic>
#include <cstring>
#include <dlfcn.h>
#include <link.h>
#include <new>
#include <string>
#include <vector>

namespace pyblas::shim {

namespace {

const char *file_name(const char *path) {
    const char *slash = std::strrchr(path, '/');
    return slash ? slash + 1 : path;
}

struct Search {
    const char *prefix;
    std::vector<std::string> paths;
};

// Runs under a lock of the loader, so it opens nothing.
int visit(dl_phdr_info *object, size_t, void *data) {
    Search &search = *static_cast<Search *>(data);
    const char *path = object->dlpi_name;
    if (path && std::strncmp(file_name(path), search.prefix, std::strlen(search.prefix)) == 0)
        try {
            search.paths.emplace_back(path);
        } catch (const std::bad_alloc &) {
            return 1;
        }
    return 0;
}

} // namespace

Dlsym real_dlsym() noexcept {
    static std::atomic<Dlsym> real{nullptr};
    Dlsym function = real.load(std::memory_order_acquire);
    // dlsym has the version of the architecture's first C library.
    for (const char *version : {"GLIBC_2.2.5", "GLIBC_2.17", "GLIBC_2.27", "GLIBC_2.34"})
        if (!function)
            function = reinterpret_cast<Dlsym>(dlvsym(RTLD_NEXT, "dlsym", version));
    real.store(function, std::memory_order_release);
    return function;
}

void *symbol(void *handle, const char *name) noexcept {
    return real_dlsym()(handle, name);
}

size_t loaded_objects(const char *prefix, void **handles, size_t room) noexcept {
    Search search = {prefix, {}};
    (void)dl_iterate_phdr(visit, &search);
    size_t count = 0;
    for (const std::string &path : search.paths)
        if (count < room)
            if (void *handle = dlopen(path.c_str(), RTLD_NOLOAD | RTLD_LAZY))
                handles[count++] = handle;
    return count;
}

void *loaded_function(const char *file, const char *name) noexcept {
    void *handle = nullptr;
    if (loaded_objects(file, &handle, 1) == 0)
        return nullptr;
    return symbol(handle, name);
}

void *object_of(const void *address) noexcept {
    Dl_info info;
    if (!dladdr(address, &info) || !info.dli_fname)
        return nullptr;
    return dlopen(info.dli_fname, RTLD_NOLOAD | RTLD_LAZY);
}

} // namespace pyblas::shim
