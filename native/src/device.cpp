#include "device.hpp"

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <string>
#include <vector>

#ifdef PYBLAS_HAVE_CUDA
#include <cuda_runtime.h>
#endif

#ifndef PYBLAS_BUILD_ARCHITECTURES
#define PYBLAS_BUILD_ARCHITECTURES ""
#endif
#ifndef PYBLAS_BUILD_CUDA_VERSION
#define PYBLAS_BUILD_CUDA_VERSION 0
#endif

namespace pyblas {

const char *build_architectures() {
    return PYBLAS_BUILD_ARCHITECTURES;
}

int build_cuda_version() {
    return PYBLAS_BUILD_CUDA_VERSION;
}

bool architecture_supported(int sm, const char *architectures) {
    for (const char *at = architectures; *at;) {
        char *end = nullptr;
        const long code = std::strtol(at, &end, 10);
        const bool specific = *end == 'a', ptx = std::strncmp(end, "-ptx", 4) == 0;
        // Machine code serves its own and later minor versions, "a" code its own version only, PTX everything later.
        if (ptx ? code <= sm : specific ? code == sm : code / 10 == sm / 10 && code <= sm)
            return true;
        at = end + std::strcspn(end, " ");
        at += std::strspn(at, " ");
    }
    return false;
}

namespace {

// The few NVML calls we make, from the driver's own library. One object lives as long as one question.
class Nvml {
public:
    using Unit = struct nvmlDevice_st *;

    Nvml() {
        library_ = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
        if (!library_) {
            reason_ = "there is no NVIDIA driver (libnvidia-ml.so.1 cannot be loaded)";
            return;
        }
        int (*init)() = nullptr;
        if (!bind(init, "nvmlInit_v2") || !bind(shutdown_, "nvmlShutdown") || !bind(count_, "nvmlDeviceGetCount_v2") ||
            !bind(by_index_, "nvmlDeviceGetHandleByIndex_v2") || !bind(by_uuid_, "nvmlDeviceGetHandleByUUID") ||
            !bind(uuid_, "nvmlDeviceGetUUID") || !bind(name_, "nvmlDeviceGetName") ||
            !bind(capability_, "nvmlDeviceGetCudaComputeCapability") || !bind(memory_, "nvmlDeviceGetMemoryInfo") ||
            !bind(driver_, "nvmlSystemGetDriverVersion") || !bind(cuda_, "nvmlSystemGetCudaDriverVersion_v2")) {
            reason_ = "the NVIDIA driver is too old (its NVML lacks functions)";
            return;
        }
        if (const int error = init()) {
            reason_ = "the NVIDIA driver does not answer (NVML error " + std::to_string(error) + ")";
            return;
        }
        ready_ = true;
        find_visible();
    }
    ~Nvml() {
        if (ready_)
            shutdown_();
        if (library_)
            dlclose(library_);
    }
    Nvml(const Nvml &) = delete;
    Nvml &operator=(const Nvml &) = delete;

    const std::vector<Unit> &visible() const { return visible_; }
    const std::string &reason() const { return reason_; }

    void describe(Unit unit, pyblasDeviceInfo_t *info) const {
        struct {
            unsigned long long total, free, used;
        } memory = {};
        int major = 0, minor = 0;
        name_(unit, info->name, sizeof info->name);
        if (capability_(unit, &major, &minor) == 0)
            info->sm = 10 * major + minor;
        if (memory_(unit, &memory) == 0)
            info->memory_bytes = static_cast<long long>(memory.total);
        driver_(info->driver_version, sizeof info->driver_version);
        cuda_(&info->cuda_version);
    }

private:
    template <class Function>
    bool bind(Function &function, const char *name) {
        function = reinterpret_cast<Function>(dlsym(library_, name));
        return function != nullptr;
    }

    // CUDA_VISIBLE_DEVICES as the runtime reads it: numbers or (abbreviated) UUIDs, up to the first that names no GPU.
    void find_visible() {
        unsigned present = 0;
        count_(&present);
        std::vector<Unit> all;
        for (unsigned i = 0; i < present; ++i)
            if (Unit unit; by_index_(i, &unit) == 0)
                all.push_back(unit);
        const char *variable = std::getenv("CUDA_VISIBLE_DEVICES");
        if (!variable) {
            visible_ = all;
            if (all.empty())
                reason_ = "the NVIDIA driver knows no GPU";
            return;
        }
        const std::string text = variable;
        for (size_t at = 0; at <= text.size();) {
            const size_t comma = text.find(',', at);
            std::string entry = text.substr(at, comma == std::string::npos ? comma : comma - at);
            entry.erase(0, entry.find_first_not_of(" \t"));
            Unit unit = nullptr;
            if (!entry.empty() && std::isdigit(static_cast<unsigned char>(entry[0]))) {
                const unsigned long index = std::strtoul(entry.c_str(), nullptr, 10);
                if (index < all.size())
                    unit = all[index];
            } else if (!entry.empty()) {
                unit = named(entry, all);
            }
            if (!unit)
                break;
            visible_.push_back(unit);
            if (comma == std::string::npos)
                break;
            at = comma + 1;
        }
        if (visible_.empty())
            reason_ = "CUDA_VISIBLE_DEVICES=" + text + " shows no GPU";
    }

    Unit named(const std::string &entry, const std::vector<Unit> &all) const {
        for (Unit unit : all) {
            char uuid[96] = {};
            if (uuid_(unit, uuid, sizeof uuid) == 0 && std::strncmp(uuid, entry.c_str(), entry.size()) == 0)
                return unit;
        }
        Unit unit = nullptr; // a MIG instance is not in the list, but answers to its name
        return by_uuid_(entry.c_str(), &unit) == 0 ? unit : nullptr;
    }

    void *library_ = nullptr;
    bool ready_ = false;
    std::string reason_;
    std::vector<Unit> visible_;
    int (*shutdown_)() = nullptr;
    int (*count_)(unsigned *) = nullptr;
    int (*by_index_)(unsigned, Unit *) = nullptr;
    int (*by_uuid_)(const char *, Unit *) = nullptr;
    int (*uuid_)(Unit, char *, unsigned) = nullptr;
    int (*name_)(Unit, char *, unsigned) = nullptr;
    int (*capability_)(Unit, int *, int *) = nullptr;
    int (*memory_)(Unit, void *) = nullptr;
    int (*driver_)(char *, unsigned) = nullptr;
    int (*cuda_)(int *) = nullptr;
};

// FP32 lanes of one multiprocessor.
int fp32_lanes(int sm) {
    return sm == 75 || sm == 80 ? 64 : 128;
}

} // namespace

Status device_count(int *count) {
    *count = 0;
    const Nvml nvml;
    *count = static_cast<int>(nvml.visible().size());
    if (*count == 0)
        fail(kSuccess, "%s", nvml.reason().c_str());
    return kSuccess;
}

Status device_info(int device, pyblasDeviceInfo_t *info) {
    *info = {};
    const Nvml nvml;
    const int count = static_cast<int>(nvml.visible().size());
    if (count == 0)
        return fail(PYBLAS_STATUS_NOT_INITIALIZED, "%s", nvml.reason().c_str());
    if (device < 0 || device >= count)
        return fail(PYBLAS_STATUS_INVALID_VALUE, "device is %d, must be from 0 to %d", device, count - 1);
    nvml.describe(nvml.visible()[static_cast<size_t>(device)], info);
    if (build_cuda_version() == 0)
        std::snprintf(info->reason, sizeof info->reason, "this build has no GPU code (it was built without CUDA)");
    else if (info->cuda_version / 1000 < build_cuda_version() / 1000)
        std::snprintf(info->reason, sizeof info->reason,
                      "driver %s serves CUDA %d.%d, but this build needs a driver for CUDA %d.0 or later",
                      info->driver_version, info->cuda_version / 1000, info->cuda_version % 1000 / 10,
                      build_cuda_version() / 1000);
    else if (!architecture_supported(info->sm))
        std::snprintf(info->reason, sizeof info->reason, "%s is sm_%d, but this build has code for: %s", info->name,
                      info->sm, build_architectures());
    info->supported = info->reason[0] == '\0';
    return kSuccess;
}

Device gpu_model(int sm, int multiprocessors, double clock_hz, double bandwidth, int64_t l2_bytes, int shared_per_block,
                 const char *architectures) {
    Device device;
    device.engine = Engine::gpu;
    device.sm = sm;
    device.multiprocessors = multiprocessors;
    device.shared_per_block = shared_per_block;
    device.l2_bytes = l2_bytes;
    device.fp32_flops = 2.0 * fp32_lanes(sm) * multiprocessors * clock_hz;
    device.bandwidth = bandwidth;
    device.launch_seconds = 3.7e-6;
    device.has_90a_code = sm == 90 && std::strstr(architectures, "90a") != nullptr;
    return device;
}

#ifdef PYBLAS_HAVE_CUDA
Status gpu_facts(int ordinal, Device *device) {
    const auto attribute = [&](cudaDeviceAttr name, int *value) {
        return cuda_status(cudaDeviceGetAttribute(value, name, ordinal), "cudaDeviceGetAttribute");
    };
    int major, minor, processors, shared, l2, clock_khz, memory_khz, bus_bits;
    PYBLAS_TRY(attribute(cudaDevAttrComputeCapabilityMajor, &major));
    PYBLAS_TRY(attribute(cudaDevAttrComputeCapabilityMinor, &minor));
    const int sm = 10 * major + minor;
    if (!architecture_supported(sm))
        return fail(PYBLAS_STATUS_ARCH_MISMATCH, "GPU %d is sm_%d, but this build has code for: %s", ordinal, sm,
                    build_architectures());
    PYBLAS_TRY(attribute(cudaDevAttrMultiProcessorCount, &processors));
    PYBLAS_TRY(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, &shared));
    PYBLAS_TRY(attribute(cudaDevAttrL2CacheSize, &l2));
    PYBLAS_TRY(attribute(cudaDevAttrClockRate, &clock_khz));
    PYBLAS_TRY(attribute(cudaDevAttrMemoryClockRate, &memory_khz));
    PYBLAS_TRY(attribute(cudaDevAttrGlobalMemoryBusWidth, &bus_bits));
    // Double data rate; 0.95 of it is what a read reaches (4.59 of 4.81 TB/s measured on an H200).
    const double bandwidth = 0.95 * 2e3 * memory_khz * bus_bits / 8;
    *device = gpu_model(sm, processors, 1e3 * clock_khz, bandwidth, l2, shared);
    device->ordinal = ordinal;
    int driver;
    PYBLAS_TRY(cuda_status(cudaDriverGetVersion(&driver), "cudaDriverGetVersion"));
    device->starts_early = device->has_90a_code && driver >= 12030; // older ones cannot capture such a launch
    return kSuccess;
}
#endif

} // namespace pyblas
