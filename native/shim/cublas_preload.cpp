// libpyblas_cublas_preload: stands before cuBLAS in a program that already uses it, takes the products it can and
// passes the rest on. Which cuBLAS that is, is found out for each handle: there may be several in a process, in scopes
// of their own.
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "cublas_preload.hpp"
#include "objects.hpp"

using namespace pyblas::shim;

namespace pyblas::shim {

namespace {

// A loaded libcublas or libcublasLt. Filled once, kept for good.
struct Real {
    void *object;
    std::array<void *, static_cast<size_t>(Entry::count)> functions;
    decltype(&cublasDestroy_v2) destroy;
    decltype(&cublasLtDestroy) lt_destroy;
    decltype(&cublasGetStream_v2) get_stream;
    decltype(&cublasGetPointerMode_v2) get_pointer_mode;
    decltype(&cublasGetMathMode) get_math_mode;
    Descriptors descriptors;
};

constexpr int kDevices = 64;

} // namespace

// What is known of a handle that a program uses.
struct Target {
    std::atomic<const Real *> cublas{nullptr}, lt{nullptr}; // a cublasHandle_t may be used as a cublasLtHandle_t
    std::array<std::atomic<Twin *>, kDevices> twins{};
    std::mutex making;

    ~Target() {
        for (auto &twin : twins)
            delete twin.load();
    }
};

namespace {

// Never destroyed: handles are used, and destroyed, until the last moment.
struct Registry {
    std::mutex mutex;
    std::vector<std::unique_ptr<Real>> libraries;
    std::map<void *, std::unique_ptr<Target>> targets;
    std::atomic<void *> named{nullptr};  // the object that dlsym was last asked for one of our names in
    std::atomic<uint64_t> generation{1}; // counts the targets that are gone
};

Registry &registry() {
    static Registry *const only = new Registry;
    return *only;
}

void *own_object() {
    static void *const own = object_of(reinterpret_cast<const void *>(&own_object));
    return own;
}

// The object of that function, unless it is this one.
void *foreign_object(void *function) {
    void *object = function ? object_of(function) : nullptr;
    return object == own_object() ? nullptr : object;
}

// The library whose function the caller would have reached had this one not been there.
void *library_behind(const char *prefix, const char *function, const void *caller) {
    if (void *object = object_of(caller); object && object != own_object())
        if (void *found = foreign_object(symbol(object, function)))
            return found;
    if (void *found = foreign_object(symbol(RTLD_NEXT, function)))
        return found;
    if (void *named = registry().named.load(); named && symbol(named, function))
        return foreign_object(symbol(named, function));
    void *loaded = nullptr;
    return loaded_objects(prefix, &loaded, 1) ? loaded : nullptr;
}

template <class Function>
void look_up(Function *function, void *object, const char *name) {
    *function = reinterpret_cast<Function>(symbol(object, name));
}

const Real *real_of(void *object) {
    Registry &known = registry();
    const std::lock_guard<std::mutex> lock(known.mutex);
    for (const auto &library : known.libraries)
        if (library->object == object)
            return library.get();
    auto real = std::make_unique<Real>();
    real->object = object;
    for (size_t i = 0; i < real->functions.size(); ++i)
        real->functions[i] = symbol(object, kNames[i]);
    look_up(&real->destroy, object, "cublasDestroy_v2");
    look_up(&real->lt_destroy, object, "cublasLtDestroy");
    look_up(&real->get_stream, object, "cublasGetStream_v2");
    look_up(&real->get_pointer_mode, object, "cublasGetPointerMode_v2");
    look_up(&real->get_math_mode, object, "cublasGetMathMode");
    look_up(&real->descriptors.of_product, object, "cublasLtMatmulDescGetAttribute");
    look_up(&real->descriptors.of_matrix, object, "cublasLtMatrixLayoutGetAttribute");
    known.libraries.push_back(std::move(real));
    return known.libraries.back().get();
}

const Real *real_behind(bool lt, const void *caller) {
    void *object = lt ? library_behind("libcublasLt.so", "cublasLtMatmul", caller)
                      : library_behind("libcublas.so", "cublasSgemm_v2", caller);
    return object ? real_of(object) : nullptr;
}

// A thread mostly uses one handle.
struct Last {
    void *handle;
    uint64_t generation;
    Target *target;
};
thread_local Last last = {nullptr, 0, nullptr};

Target *known_target(void *handle) {
    Registry &known = registry();
    const uint64_t generation = known.generation.load(std::memory_order_acquire);
    if (last.handle == handle && last.generation == generation)
        return last.target;
    const std::lock_guard<std::mutex> lock(known.mutex);
    std::unique_ptr<Target> &slot = known.targets[handle];
    if (!slot)
        slot = std::make_unique<Target>();
    last = {handle, generation, slot.get()};
    return slot.get();
}

void forget(void *handle) {
    Registry &known = registry();
    std::unique_ptr<Target> gone;
    {
        const std::lock_guard<std::mutex> lock(known.mutex);
        const auto found = known.targets.find(handle);
        if (found == known.targets.end())
            return;
        gone = std::move(found->second);
        known.targets.erase(found);
        known.generation.fetch_add(1, std::memory_order_release);
    }
}

Twin *twin_of(Target *target, int device) {
    if (device < 0 || device >= kDevices)
        return nullptr;
    std::atomic<Twin *> &slot = target->twins[static_cast<size_t>(device)];
    if (Twin *twin = slot.load(std::memory_order_acquire))
        return twin;
    const std::lock_guard<std::mutex> lock(target->making);
    if (Twin *twin = slot.load(std::memory_order_acquire))
        return twin;
    Twin *twin = new (std::nothrow) Twin(device);
    slot.store(twin, std::memory_order_release);
    return twin;
}

// What cuBLAS does as well or better, as bench/dropin.py finds; nullptr if it is to be taken.
const char *left_alone(const Call &call) {
    static const bool take_all = [] {
        const char *value = std::getenv("PYBLAS_SGEMM_TAKE_ALL");
        return value && *value && std::strcmp(value, "0") != 0;
    }();
    if (take_all)
        return nullptr;
    if (call.a.type != CUDA_R_32F)
        return "types that cuBLAS is faster in";
    if (call.entry == Entry::sgemv || call.entry == Entry::sgemv_64)
        return "a vector, where cuBLAS is faster";
    return nullptr;
}

} // namespace

const Descriptors *descriptors_of(const Call &call) noexcept {
    Target *target = target_of(call);
    const Real *lt = target ? target->lt.load(std::memory_order_acquire) : nullptr;
    return lt ? &lt->descriptors : nullptr;
}

Target *target_of(const Call &call) noexcept {
    try {
        Target *target = known_target(call.handle);
        const bool is_lt = call.entry == Entry::lt_matmul;
        std::atomic<const Real *> &real = is_lt ? target->lt : target->cublas;
        if (!real.load(std::memory_order_acquire))
            real.store(real_behind(is_lt, call.caller), std::memory_order_release);
        return target;
    } catch (const std::bad_alloc &) {
        return nullptr;
    }
}

Verdict take(Target *target, const Call &call) noexcept {
    if (call.refusal)
        return refused(call.refusal);
    if (const char *reason = left_alone(call))
        return refused(reason);
    if (!target)
        return refused("out of memory");
    Settled settled;
    if (call.settled) {
        settled = *call.settled;
    } else {
        const Real *real = target->cublas.load(std::memory_order_acquire);
        auto *handle = static_cast<cublasHandle_t>(call.handle);
        cublasPointerMode_t pointer_mode = CUBLAS_POINTER_MODE_HOST;
        cublasMath_t math_mode = CUBLAS_DEFAULT_MATH;
        if (!handle || !real || !real->get_stream || !real->get_pointer_mode || !real->get_math_mode ||
            real->get_stream(handle, &settled.stream) || real->get_pointer_mode(handle, &pointer_mode) ||
            real->get_math_mode(handle, &math_mode))
            return refused("a handle that cuBLAS does not know");
        settled.pointer_mode = pointer_mode;
        settled.math_mode = math_mode;
    }
    Twin *twin = twin_of(target, driver::current_device());
    return twin ? twin->queue(call, settled) : refused("the library cannot use this device");
}

void *real_function(Target *target, Entry entry) noexcept {
    if (!target)
        return nullptr;
    const Real *real = (entry == Entry::lt_matmul ? target->lt : target->cublas).load(std::memory_order_acquire);
    return real ? real->functions[static_cast<size_t>(entry)] : nullptr;
}

bool from_cublas(const void *caller) noexcept {
    static thread_local const void *last_caller = nullptr;
    static thread_local bool last_answer = false;
    if (caller != last_caller) {
        Dl_info info;
        const char *name = dladdr(caller, &info) && info.dli_fname ? std::strrchr(info.dli_fname, '/') : nullptr;
        last_answer = name && std::strncmp(name, "/libcublas", 10) == 0;
        last_caller = caller;
    }
    return last_answer;
}

} // namespace pyblas::shim

namespace {

// Drops what is kept for a handle that ends; returns the library whose function ends it.
const Real *ended(Entry entry, void *handle, const void *caller) {
    const Call call = {entry, Batch::one, handle, caller, 0, 0, 0, 0, 0, 0, nullptr, nullptr, {}, {}, {}, 0};
    const Target *target = target_of(call);
    const Real *real = target ? (entry == Entry::lt_matmul ? target->lt : target->cublas).load() : nullptr;
    forget(handle);
    return real;
}

} // namespace

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
    const Real *real = ended(Entry::sgemm, handle, __builtin_return_address(0));
    return real && real->destroy ? real->destroy(handle) : CUBLAS_STATUS_NOT_INITIALIZED;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    const Real *real = ended(Entry::lt_matmul, handle, __builtin_return_address(0));
    return real && real->lt_destroy ? real->lt_destroy(handle) : CUBLAS_STATUS_NOT_INITIALIZED;
}

namespace {

struct Export {
    const char *name;
    void *function;
};

#define EXPORT(function) {#function, reinterpret_cast<void *>(&function)}
const Export kExports[] = {
    EXPORT(cublasSgemm_v2),
    EXPORT(cublasSgemm_v2_64),
    EXPORT(cublasSgemmStridedBatched),
    EXPORT(cublasSgemmStridedBatched_64),
    EXPORT(cublasSgemmBatched),
    EXPORT(cublasSgemmBatched_64),
    EXPORT(cublasSgemmEx),
    EXPORT(cublasSgemmEx_64),
    EXPORT(cublasGemmEx),
    EXPORT(cublasGemmEx_64),
    EXPORT(cublasGemmStridedBatchedEx),
    EXPORT(cublasGemmStridedBatchedEx_64),
    EXPORT(cublasGemmBatchedEx),
    EXPORT(cublasGemmBatchedEx_64),
    EXPORT(cublasSgemv_v2),
    EXPORT(cublasSgemv_v2_64),
    EXPORT(cublasLtMatmul),
    EXPORT(cublasDestroy_v2),
    EXPORT(cublasLtDestroy),
};
#undef EXPORT

// Ours, if the program asks a cuBLAS that it has opened itself for one of these functions.
void *stand_in(void *handle, const char *name) {
    if (handle == RTLD_DEFAULT || handle == RTLD_NEXT || !name || std::strncmp(name, "cublas", 6) != 0)
        return nullptr;
    for (const Export &own : kExports)
        if (std::strcmp(own.name, name) == 0) {
            void *real = symbol(handle, name);
            if (!real || real == own.function || !from_cublas(real))
                return nullptr;
            registry().named = object_of(real);
            return own.function;
        }
    return nullptr;
}

} // namespace

extern "C" CUBLASAPI void *dlsym(void *handle, const char *name) noexcept;

// The C library's dlsym asks where it was called from, so it has to be reached by a jump: a call in last place, which
// compilers turn into one when they optimise.
#pragma GCC push_options
#pragma GCC optimize("O2")
void *dlsym(void *handle, const char *name) noexcept {
    if (void *own = stand_in(handle, name))
        return own;
    return real_dlsym()(handle, name);
}
#pragma GCC pop_options
