#include "cublas_call.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

namespace pyblas::shim {

namespace {

constexpr int64_t kOnes = 1 << 16;
constexpr uint32_t kOne = 0x3f800000; // 1.0f

bool is_half(int type) {
    return type == CUDA_R_16F || type == CUDA_R_16BF;
}

// Whether cuBLAS has the types and we have them too.
bool served(const Call &call) {
    const int type = call.a.type;
    if (type != call.b.type)
        return false;
    if (type == CUDA_R_32F)
        return call.c.type == CUDA_R_32F;
    return is_half(type) && call.form != Batch::arrays && (call.c.type == type || call.c.type == CUDA_R_32F);
}

// The mode that a call asks for, by its compute type and then its handle; 0 if it is none of ours.
int mode_of(const Call &call, int math_mode, pyblasComputeType_t usual) {
    const int math = math_mode & ~CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
    switch (call.compute) {
    case CUBLAS_COMPUTE_32F_PEDANTIC:
        return PYBLAS_COMPUTE_32F_PEDANTIC;
    case CUBLAS_COMPUTE_32F_FAST_TF32:
        return PYBLAS_COMPUTE_32F_FAST_TF32;
    case kModeOfHandle:
    case CUBLAS_COMPUTE_32F:
        break;
    default:
        return 0;
    }
    switch (math) {
    case CUBLAS_DEFAULT_MATH:
        return usual;
    case CUBLAS_PEDANTIC_MATH:
        return PYBLAS_COMPUTE_32F_PEDANTIC;
    case CUBLAS_TF32_TENSOR_OP_MATH:
        return PYBLAS_COMPUTE_32F_FAST_TF32;
    default:
        return 0;
    }
}

const char *mode_name(int mode) {
    switch (mode) {
    case PYBLAS_COMPUTE_32F:
        return "fp32";
    case PYBLAS_COMPUTE_32F_PEDANTIC:
        return "fp32_pedantic";
    case PYBLAS_COMPUTE_32F_FAST_TF32:
        return "tf32";
    default:
        return "";
    }
}

// The library's refusals; none of them has touched anything.
Verdict verdict_of(pyblasStatus_t status) {
    const auto same = static_cast<cublasStatus_t>(status);
    switch (status) {
    case PYBLAS_STATUS_SUCCESS:
        return {nullptr, same};
    case PYBLAS_STATUS_INVALID_VALUE:
        return refused("arguments that the library refuses", same);
    case PYBLAS_STATUS_NOT_SUPPORTED:
        return refused("the forced kernel cannot do it", same);
    case PYBLAS_STATUS_ALLOC_FAILED:
        return refused("out of memory", same);
    case PYBLAS_STATUS_NOT_INITIALIZED:
        return refused("the GPU cannot be used in this process", same);
    default:
        return refused("an error of CUDA", same);
    }
}

Type type_of(int type) {
    return type == CUDA_R_32F || is_half(type) ? static_cast<Type>(type) : Type::other;
}

char letter(int operation) {
    return operation == CUBLAS_OP_N ? 'N' : operation == CUBLAS_OP_T ? 'T' : operation == CUBLAS_OP_C ? 'C' : '?';
}

Shape shape_of(const Call &call, const char *mode) {
    return {name_of(call.entry),
            call.a.type == call.b.type ? type_of(call.a.type) : Type::other,
            type_of(call.c.type),
            mode,
            letter(call.transa),
            letter(call.transb),
            call.m,
            call.n,
            call.k,
            call.batch};
}

bool fetch_from_device(void *stream, void *to, const void *from, size_t pitch, size_t bytes, size_t count) {
    return driver::read(static_cast<cudaStream_t>(stream), to, from, pitch, bytes, count);
}

// One matrix of a batch, wherever its address is written.
const void *matrix(const Operand &operand, Batch form, int64_t index, cudaStream_t stream) {
    if (form == Batch::arrays) {
        const void *address = nullptr;
        const void *place = static_cast<const void *const *>(operand.data) + index;
        return driver::read(stream, &address, place, sizeof address, sizeof address, 1) ? address : nullptr;
    }
    const int64_t size = operand.type == CUDA_R_32F ? 4 : 2;
    return static_cast<const char *>(operand.data) + size * operand.stride * index;
}

float scalar(const void *where, bool on_device, cudaStream_t stream) {
    float value = 0;
    if (!on_device)
        std::memcpy(&value, where, sizeof value);
    else if (!driver::read(stream, &value, where, sizeof value, sizeof value, 1))
        value = 0;
    return value;
}

// A check of one product of the call, another of the batch each time.
std::unique_ptr<Check> check_of(const Call &call, const Settled &settled, const char *mode) {
    static std::atomic<uint64_t> turn{0};
    if (!call.alpha || !call.beta || call.m <= 0 || call.n <= 0 || call.batch <= 0)
        return nullptr;
    const bool on_device = settled.pointer_mode == CUBLAS_POINTER_MODE_DEVICE;
    const auto index = static_cast<int64_t>(turn++ * 0x9e3779b9 % static_cast<uint64_t>(call.batch));
    Product product = {shape_of(call, mode),
                       scalar(call.alpha, on_device, settled.stream),
                       call.bias ? 1 : scalar(call.beta, on_device, settled.stream),
                       matrix(call.a, call.form, index, settled.stream),
                       matrix(call.b, call.form, index, settled.stream),
                       matrix(call.c, call.form, index, settled.stream),
                       call.a.ld,
                       call.b.ld,
                       call.c.ld};
    product.addend = call.bias;
    return std::unique_ptr<Check>(new (std::nothrow) Check(product, fetch_from_device, settled.stream));
}

// Twins that may have something measured when the process ends. Never destroyed.
struct Twins {
    std::mutex mutex;
    std::vector<Twin *> alive;
};
Twins &twins() {
    static Twins *const only = new Twins;
    return *only;
}

void collect_at_exit() {
    const std::lock_guard<std::mutex> lock(twins().mutex);
    for (Twin *twin : twins().alive)
        twin->collect();
}

} // namespace

Twin::Twin(int device) noexcept {
    const driver::Relaxed relaxed; // the first call of a program may be one that is captured
    if (pyblasCreateOnDevice(&handle_, device) != PYBLAS_STATUS_SUCCESS) {
        handle_ = nullptr;
        return;
    }
    (void)pyblasGetComputeMode(handle_, &usual_);
    mode_ = usual_;
    if (!recording())
        return;
    const std::lock_guard<std::mutex> lock(twins().mutex);
    try {
        twins().alive.push_back(this);
    } catch (const std::bad_alloc &) {
    }
}

Twin::~Twin() {
    if (recording()) {
        const std::lock_guard<std::mutex> lock(twins().mutex);
        std::vector<Twin *> &alive = twins().alive;
        alive.erase(std::remove(alive.begin(), alive.end(), this), alive.end());
    }
    const driver::Relaxed relaxed;
    fold(true);
    for (const driver::Interval &interval : idle_)
        driver::destroy(interval);
    driver::release(ones_);
    if (handle_)
        (void)pyblasDestroy(handle_);
}

pyblasStatus_t Twin::set_mode(pyblasComputeType_t mode) noexcept {
    if (mode == mode_)
        return PYBLAS_STATUS_SUCCESS;
    const pyblasStatus_t status = pyblasSetComputeMode(handle_, mode);
    if (status == PYBLAS_STATUS_SUCCESS)
        mode_ = mode;
    return status;
}

// The handle is told only what has changed, since each of these takes its lock.
pyblasStatus_t Twin::settle(const Settled &settled, pyblasComputeType_t mode) noexcept {
    if (settled.stream != stream_) {
        if (const pyblasStatus_t status = pyblasSetStream(handle_, settled.stream))
            return status;
        stream_ = settled.stream;
    }
    const bool on_device = settled.pointer_mode == CUBLAS_POINTER_MODE_DEVICE;
    if (on_device != scalars_on_device_) {
        if (const pyblasStatus_t status =
                pyblasSetPointerMode(handle_, on_device ? PYBLAS_POINTER_MODE_DEVICE : PYBLAS_POINTER_MODE_HOST))
            return status;
        scalars_on_device_ = on_device;
    }
    return set_mode(mode);
}

// Each column of C becomes the bias: a product with ones, which is exact. What follows then adds to it in one rounding.
pyblasStatus_t Twin::spread_bias(const Call &call, pyblasComputeType_t mode) noexcept {
    if (!ones_)
        ones_ = static_cast<float *>(driver::filled(kOne, kOnes));
    if (!ones_)
        return PYBLAS_STATUS_ALLOC_FAILED;
    const float one = 1, zero = 0;
    auto *c = static_cast<float *>(const_cast<void *>(call.c.data));
    pyblasStatus_t status =
        set_mode(mode == PYBLAS_COMPUTE_32F_FAST_TF32 ? PYBLAS_COMPUTE_32F_PEDANTIC : mode); // TF32 would round it
    for (int64_t j = 0; j < call.n && status == PYBLAS_STATUS_SUCCESS; j += kOnes)
        status = pyblasSgemm_64(handle_, PYBLAS_OP_N, PYBLAS_OP_N, call.m, std::min(kOnes, call.n - j), 1, &one,
                                call.bias, call.m, ones_, 1, &zero, c + j * call.c.ld, call.c.ld);
    return status == PYBLAS_STATUS_SUCCESS ? set_mode(mode) : status;
}

pyblasStatus_t Twin::run(const Call &call, pyblasComputeType_t mode) noexcept {
    const auto transa = static_cast<pyblasOperation_t>(call.transa),
               transb = static_cast<pyblasOperation_t>(call.transb);
    const auto *alpha = static_cast<const float *>(call.alpha);
    const auto *beta = static_cast<const float *>(call.beta);
    const Operand &a = call.a, &b = call.b, &c = call.c;
    auto *out = const_cast<void *>(c.data);
    const float one = 1;
    if (call.bias && call.m > 0 && call.n > 0) {
        if (const pyblasStatus_t status = spread_bias(call, mode))
            return status;
        beta = &one;
    }
    if (a.type != CUDA_R_32F) {
        const auto type = static_cast<pyblasDataType_t>(a.type), c_type = static_cast<pyblasDataType_t>(c.type);
        // TF32 has more bits than either of these.
        const auto compute = mode == PYBLAS_COMPUTE_32F_PEDANTIC ? mode : PYBLAS_COMPUTE_32F;
        if (call.form == Batch::one)
            return pyblasGemmEx_64(handle_, transa, transb, call.m, call.n, call.k, alpha, a.data, type, a.ld, b.data,
                                   type, b.ld, beta, out, c_type, c.ld, compute, PYBLAS_GEMM_DEFAULT);
        return pyblasGemmStridedBatchedEx_64(handle_, transa, transb, call.m, call.n, call.k, alpha, a.data, type, a.ld,
                                             a.stride, b.data, type, b.ld, b.stride, beta, out, c_type, c.ld, c.stride,
                                             call.batch, compute, PYBLAS_GEMM_DEFAULT);
    }
    switch (call.form) {
    case Batch::one:
        return pyblasSgemm_64(handle_, transa, transb, call.m, call.n, call.k, alpha,
                              static_cast<const float *>(a.data), a.ld, static_cast<const float *>(b.data), b.ld, beta,
                              static_cast<float *>(out), c.ld);
    case Batch::strided:
        return pyblasSgemmStridedBatched_64(handle_, transa, transb, call.m, call.n, call.k, alpha,
                                            static_cast<const float *>(a.data), a.ld, a.stride,
                                            static_cast<const float *>(b.data), b.ld, b.stride, beta,
                                            static_cast<float *>(out), c.ld, c.stride, call.batch);
    case Batch::arrays:
        break;
    }
    return pyblasSgemmBatched_64(
        handle_, transa, transb, call.m, call.n, call.k, alpha, static_cast<const float *const *>(a.data), a.ld,
        static_cast<const float *const *>(b.data), b.ld, beta, static_cast<float *const *>(out), c.ld, call.batch);
}

// Folds what has been measured into the record.
void Twin::fold(bool wait) noexcept {
    while (!pending_.empty()) {
        const Pending &oldest = pending_.front();
        if (!(wait ? driver::wait(oldest.interval.end) : driver::passed(oldest.interval.end)))
            return;
        double seconds = 0;
        if (driver::seconds(oldest.interval, &seconds))
            add_device_time(oldest.row, seconds);
        try {
            idle_.push_back(oldest.interval);
        } catch (const std::bad_alloc &) {
            driver::destroy(oldest.interval);
        }
        pending_.pop_front();
    }
}

void Twin::collect() noexcept {
    const driver::Relaxed relaxed;
    const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock); // a thread may be in a call as the process ends
    if (lock)
        fold(false);
}

pyblasStatus_t Twin::run_watched(const Call &call, const Settled &settled, pyblasComputeType_t mode) noexcept {
    const driver::Relaxed relaxed; // to look at an event may end a capture, even another thread's
    fold(false);
    const bool captured = driver::capturing(settled.stream);
    const bool sampled = sample();
    std::unique_ptr<Check> check = sampled && !captured ? check_of(call, settled, mode_name(mode)) : nullptr;
    driver::Interval interval = {nullptr, nullptr};
    bool timed = false;
    if (!captured) {
        timed = !idle_.empty() || driver::create(&interval);
        if (!idle_.empty()) {
            interval = idle_.back();
            idle_.pop_back();
        }
        timed = timed && driver::mark(interval.begin, settled.stream);
    }
    const double begin = now();
    const pyblasStatus_t status = run(call, mode);
    const double seconds = now() - begin;
    timed = timed && status == PYBLAS_STATUS_SUCCESS && driver::mark(interval.end, settled.stream);
    if (status != PYBLAS_STATUS_SUCCESS) {
        if (interval.begin)
            driver::destroy(interval);
        return status;
    }
    Row *row = record(shape_of(call, mode_name(mode)), nullptr, seconds);
    static const bool registered = std::atexit(collect_at_exit) == 0; // after the record's own, so it runs before
    (void)registered;
    if (timed)
        try {
            pending_.push_back({interval, row});
        } catch (const std::bad_alloc &) {
            driver::destroy(interval);
        }
    else if (interval.begin)
        driver::destroy(interval);
    if (check)
        check->compare(row);
    else if (sampled)
        skip_check(row);
    return status;
}

Verdict Twin::queue(const Call &call, const Settled &settled) noexcept {
    const int mode = mode_of(call, settled.math_mode, usual_);
    if (!served(call))
        return refused("types");
    if (!mode)
        return refused("compute type or math mode");
    if (call.bias && settled.pointer_mode != CUBLAS_POINTER_MODE_HOST)
        return refused("bias with scalars in device memory");
    if (call.flops() < settings().min_flops)
        return refused("less work than PYBLAS_SGEMM_MIN_FLOPS");
    if (!handle_)
        return refused("the library cannot use this device", CUBLAS_STATUS_NOT_INITIALIZED);
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto ours = static_cast<pyblasComputeType_t>(mode);
    if (const pyblasStatus_t status = settle(settled, ours))
        return verdict_of(status);
    return verdict_of(recording() ? run_watched(call, settled, ours) : run(call, ours));
}

void record_declined(const Call &call, const char *reason, double host_seconds) noexcept {
    (void)record(shape_of(call, ""), reason, host_seconds);
}

} // namespace pyblas::shim
