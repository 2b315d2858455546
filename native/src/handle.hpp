// The handle: a device, and the settings under which products run on it.
#pragma once

#include <mutex>

#include "dispatch.hpp"
#ifdef PYBLAS_HAVE_CUDA
#include "workspace.hpp"
#include "xt/host_products.hpp"
#endif

namespace pyblas {

// Keep the list of all handles: the child of a fork needs them.
void count_in(pyblasContext *handle);
void count_out(pyblasContext *handle);

// One product's view of the settings; a plain copy, so that a CPU product computes without the handle's lock.
struct Settings {
    CUstream_st *stream = nullptr;
    ComputeMode mode = ComputeMode::fp32;
    bool batch_invariant = false;
    bool scalars_on_host = true;
    bool arrays_on_host = true;
    const Kernel *forced = nullptr;
};

} // namespace pyblas

struct pyblasContext {
    pyblasContext() { pyblas::count_in(this); }
    ~pyblasContext() { pyblas::count_out(this); }
    pyblasContext(const pyblasContext &) = delete;
    pyblasContext &operator=(const pyblasContext &) = delete;

    pyblasContext *before = nullptr, *after = nullptr; // the other handles of the process
    std::mutex mutex;                                  // one call at a time reads or changes what follows
    pyblas::Device device;
    pyblas::Settings settings;
#ifdef PYBLAS_HAVE_CUDA
    pyblas::Choices choices;
    pyblas::Workspace workspace;
    pyblas::xt::HostProducts xt; // products of host memory
    bool synchronise = false;    // PYBLAS_SGEMM_SYNC=1: a fault names its call
#endif
};

namespace pyblas {

// A handle for a CUDA device - the current one if it is kCurrentDevice - or for the CPU, with the environment's
// settings.
constexpr int kCurrentDevice = -1;
Status create_gpu(int device, pyblasContext **handle);
Status create_cpu(pyblasContext **handle);
Status destroy(pyblasContext *handle);

// Fails in a process forked from one that had used the GPU.
Status check_fork();

Status set_compute_mode(pyblasContext *handle, int mode);
int compute_type(ComputeMode mode);
ComputeMode mode_of(int compute_type); // which is one of the enum's
Status set_kernel(pyblasContext *handle, const char *name);

#ifdef PYBLAS_HAVE_CUDA
// Makes a device current and puts the caller's back.
class DeviceGuard {
public:
    explicit DeviceGuard(int device);
    ~DeviceGuard();
    DeviceGuard(const DeviceGuard &) = delete;
    DeviceGuard &operator=(const DeviceGuard &) = delete;
    Status status() const { return status_; }

private:
    int previous_ = -1;
    Status status_;
};
#endif

} // namespace pyblas
