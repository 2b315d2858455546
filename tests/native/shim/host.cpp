// Opens a plugin that is linked with cuBLAS, in a scope of its own as Python opens its modules, and lets it call.
#include <cstdio>
#include <dlfcn.h>

int main(int, char **arguments) {
    void *plugin = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
    if (!plugin) {
        std::fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    const auto make_calls = reinterpret_cast<int (*)(const char *)>(dlsym(plugin, "make_calls"));
    return make_calls(nullptr);
}
