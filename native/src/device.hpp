// What GPUs there are and whether this build can use them. Asking goes through NVML and leaves the driver untouched.
#pragma once

#include "kernel.hpp"

namespace pyblas {

// The GPU code of this build: "80 90a 80-ptx"; "" without CUDA.
const char *build_architectures();

// The CUDA version of this build (13000); 0 without CUDA.
int build_cuda_version();

// True if the build's code runs on a GPU of that compute capability (times ten).
bool architecture_supported(int sm, const char *architectures = build_architectures());

Status device_count(int *count);
Status device_info(int device, pyblasDeviceInfo_t *info);

// Facts of a GPU from its published figures and what the runtime tells; touches the runtime.
Status gpu_facts(int ordinal, Device *device);

// Facts as selection sees them, from plain numbers; tests make up devices with it.
Device gpu_model(int sm, int multiprocessors, double clock_hz, double bandwidth, int64_t l2_bytes, int shared_per_block,
                 const char *architectures = build_architectures());

} // namespace pyblas
