// One product as a program asks cuBLAS for it, and how it becomes one of ours. Both cuBLAS shims share this; they
// differ in what stands behind a cuBLAS handle.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "cublas_abi.h"
#include "driver.hpp"
#include "ledger.hpp"
#include "pyblas_sgemm.h"

namespace pyblas::shim {

// The functions of cuBLAS that a program may call for a product.
enum class Entry : uint8_t {
    sgemm,
    sgemm_64,
    sgemm_strided_batched,
    sgemm_strided_batched_64,
    sgemm_batched,
    sgemm_batched_64,
    sgemm_ex,
    sgemm_ex_64,
    gemm_ex,
    gemm_ex_64,
    gemm_strided_batched_ex,
    gemm_strided_batched_ex_64,
    gemm_batched_ex,
    gemm_batched_ex_64,
    sgemv,
    sgemv_64,
    lt_matmul,
    count
};
constexpr const char *kNames[] = {"cublasSgemm_v2",
                                  "cublasSgemm_v2_64",
                                  "cublasSgemmStridedBatched",
                                  "cublasSgemmStridedBatched_64",
                                  "cublasSgemmBatched",
                                  "cublasSgemmBatched_64",
                                  "cublasSgemmEx",
                                  "cublasSgemmEx_64",
                                  "cublasGemmEx",
                                  "cublasGemmEx_64",
                                  "cublasGemmStridedBatchedEx",
                                  "cublasGemmStridedBatchedEx_64",
                                  "cublasGemmBatchedEx",
                                  "cublasGemmBatchedEx_64",
                                  "cublasSgemv_v2",
                                  "cublasSgemv_v2_64",
                                  "cublasLtMatmul"};
static_assert(sizeof kNames / sizeof *kNames == static_cast<size_t>(Entry::count), "one name for each");
constexpr const char *name_of(Entry entry) {
    return kNames[static_cast<size_t>(entry)];
}

enum class Batch : uint8_t { one, strided, arrays }; // arrays: the three pointers are arrays of pointers

constexpr int kModeOfHandle = 0; // the compute type of functions that have no such argument

// What a cuBLAS handle says when it is called.
struct Settled {
    cudaStream_t stream;
    int pointer_mode, math_mode;
};

// Types and operations are the program's numbers, whatever they are.
struct Operand {
    const void *data;
    int type;
    int64_t ld, stride;
};
struct Call {
    Entry entry;
    Batch form;
    void *handle;       // a cublasHandle_t, or a cublasLtHandle_t
    const void *caller; // where the program goes on after the call
    int transa, transb;
    int64_t m, n, k, batch;
    const void *alpha, *beta;
    Operand a, b, c; // c.data is written
    int compute;
    const float *bias = nullptr;      // m numbers in device memory, added to each column; only where beta is 0
    const Settled *settled = nullptr; // where the call itself says it
    const char *refusal = nullptr;    // why it is not to be taken, where that is known already

    double flops() const { return 2.0 * double(m) * double(n) * double(k) * double(batch); }
};

// How a call ended: declined is nullptr if it is ours. Otherwise nothing was done, and status is the answer where there
// is nobody else to ask.
struct Verdict {
    const char *declined;
    cublasStatus_t status;
};
inline Verdict refused(const char *reason, cublasStatus_t status = CUBLAS_STATUS_NOT_SUPPORTED) {
    return {reason, status};
}

// Our handle beside a cuBLAS handle on one device.
class Twin {
public:
    explicit Twin(int device) noexcept;
    ~Twin();
    Twin(const Twin &) = delete;
    Twin &operator=(const Twin &) = delete;

    // Queues the product under these settings.
    Verdict queue(const Call &call, const Settled &settled) noexcept;

    // Records what is measured by now.
    void collect() noexcept;

    pyblasHandle_t handle() const { return handle_; } // nullptr: the device is not to be had

private:
    struct Pending {
        driver::Interval interval;
        Row *row;
    };

    pyblasStatus_t settle(const Settled &settled, pyblasComputeType_t mode) noexcept;
    pyblasStatus_t set_mode(pyblasComputeType_t mode) noexcept;
    pyblasStatus_t run(const Call &call, pyblasComputeType_t mode) noexcept;
    pyblasStatus_t spread_bias(const Call &call, pyblasComputeType_t mode) noexcept;
    pyblasStatus_t run_watched(const Call &call, const Settled &settled, pyblasComputeType_t mode) noexcept;
    void fold(bool wait) noexcept;

    std::mutex mutex_;
    pyblasHandle_t handle_ = nullptr;
    pyblasComputeType_t usual_ = PYBLAS_COMPUTE_32F; // where the program asks for none: the environment's
    // As the handle was last told.
    pyblasComputeType_t mode_ = PYBLAS_COMPUTE_32F;
    cudaStream_t stream_ = nullptr;
    bool scalars_on_device_ = false;

    float *ones_ = nullptr;
    std::deque<Pending> pending_; // measured, and not yet known
    std::vector<driver::Interval> idle_;
};

// Counts a call that was left to cuBLAS.
void record_declined(const Call &call, const char *reason, double host_seconds) noexcept;

} // namespace pyblas::shim
