// Shared objects that the process has loaded, found by file name: a library that was loaded with RTLD_LOCAL is in no
// scope that dlsym(RTLD_NEXT) looks through.
#pragma once

#include <cstddef>

namespace pyblas::shim {

// dlsym of the C library, even where a shim stands in front of it.
using Dlsym = void *(*)(void *, const char *) noexcept;
Dlsym real_dlsym() noexcept;
void *symbol(void *handle, const char *name) noexcept;

// A function of the loaded object with that file name; nullptr if no such object is loaded or it has no such function.
void *loaded_function(const char *file, const char *name) noexcept;

// Handles of loaded objects whose file name begins so ("libcublas.so."), the earliest loaded first; returns how many
// there are, of which `room` were stored. They keep the object loaded.
size_t loaded_objects(const char *prefix, void **handles, size_t room) noexcept;

// The object that an address belongs to, as a handle; nullptr for the program itself and for addresses in none.
void *object_of(const void *address) noexcept;

} // namespace pyblas::shim
