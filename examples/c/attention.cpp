// Multi-head attention, softmax(Q * transpose(K)) * V, with the C interface in C++.
//
// Q, K and V lie row-major as (token, head, dimension), so the matrix of one head has rows that are heads * dimension
// apart and the next head begins dimension elements later. Leading dimensions and strides say exactly that: nothing is
// copied. With EXAMPLE_CUDA and a GPU that the library has code for, the products run there.
#include <pyblas_sgemm.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>
#ifdef EXAMPLE_CUDA
#include <cuda_runtime_api.h>
#endif

void check(pyblasStatus_t status) {
    if (status != PYBLAS_STATUS_SUCCESS)
        throw std::runtime_error(std::string(pyblasGetStatusName(status)) + ": " + pyblasGetLastErrorMessage());
}

class Handle {
public:
    Handle() {
#ifdef EXAMPLE_CUDA
        int count = 0;
        pyblasDeviceInfo_t device{};
        check(pyblasDeviceCount(&count));
        if (count > 0)
            check(pyblasDeviceInfo(0, &device));
        on_gpu_ = device.supported;
#endif
        pyblasHandle_t handle = nullptr;
        check(on_gpu_ ? pyblasCreate(&handle) : pyblasCreateCpu(&handle));
        handle_.reset(handle);
    }

    operator pyblasHandle_t() const { return handle_.get(); }
    bool on_gpu() const { return on_gpu_; }

    // Calls on a GPU handle return before the GPU is done.
    void wait() const {
#ifdef EXAMPLE_CUDA
        if (on_gpu_ && cudaDeviceSynchronize() != cudaSuccess)
            throw std::runtime_error("the GPU reports an error");
#endif
    }

private:
    struct Destroy {
        void operator()(pyblasHandle_t handle) const { pyblasDestroy(handle); }
    };
    std::unique_ptr<pyblasContext, Destroy> handle_;
    bool on_gpu_ = false;
};

// Floats that both the host and the handle's device can reach.
class Array {
public:
    Array(const Handle &handle, size_t size) : size_(size) {
#ifdef EXAMPLE_CUDA
        if (handle.on_gpu()) {
            void *memory = nullptr;
            if (cudaMallocManaged(&memory, size * sizeof(float), cudaMemAttachGlobal) != cudaSuccess)
                throw std::bad_alloc();
            memory_ = {static_cast<float *>(memory), [](float *p) { cudaFree(p); }};
            return;
        }
#endif
        static_cast<void>(handle);
        memory_ = {new float[size], [](float *p) { delete[] p; }};
    }

    float *data() { return memory_.get(); }
    float *begin() { return data(); }
    float *end() { return data() + size_; }
    float &operator[](size_t i) { return data()[i]; }

private:
    std::unique_ptr<float, void (*)(float *)> memory_{nullptr, [](float *) {}};
    size_t size_;
};

constexpr int kTokens = 96, kHeads = 12, kDimension = 64, kWidth = kHeads * kDimension;

void softmax(float *row) {
    const float largest = *std::max_element(row, row + kTokens);
    float sum = 0;
    for (int i = 0; i < kTokens; ++i)
        sum += row[i] = std::exp(row[i] - largest);
    for (int i = 0; i < kTokens; ++i)
        row[i] /= sum;
}

// The largest difference from the same attention in double precision.
double error(Array &q, Array &k, Array &v, Array &out) {
    double worst = 0;
    std::vector<double> weight(kTokens);
    for (int head = 0; head < kHeads; ++head) {
        for (int token = 0; token < kTokens; ++token) {
            const size_t row = size_t(token) * kWidth + head * kDimension;
            double sum = 0;
            for (int other = 0; other < kTokens; ++other) {
                double score = 0;
                for (int d = 0; d < kDimension; ++d)
                    score += double(q[row + d]) * k[size_t(other) * kWidth + head * kDimension + d];
                sum += weight[other] = std::exp(score / std::sqrt(double(kDimension)));
            }
            for (int d = 0; d < kDimension; ++d) {
                double exact = 0;
                for (int other = 0; other < kTokens; ++other)
                    exact += weight[other] / sum * v[size_t(other) * kWidth + head * kDimension + d];
                worst = std::max(worst, std::abs(out[row + d] - exact));
            }
        }
    }
    return worst;
}

int main() try {
    const Handle handle;
    const size_t size = size_t(kTokens) * kWidth;
    Array q(handle, size), k(handle, size), v(handle, size), out(handle, size);
    Array scores(handle, size_t(kHeads) * kTokens * kTokens);

    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (Array *array : {&q, &k, &v})
        std::generate(array->begin(), array->end(), [&] { return normal(random); });

    const float scale = 1.0f / std::sqrt(float(kDimension)), one = 1, zero = 0;
    const long long head_to_head = kDimension, scores_to_scores = (long long)kTokens * kTokens;
    check(pyblasSgemmStridedBatchedRowMajor(handle, PYBLAS_OP_N, PYBLAS_OP_T, kTokens, kTokens, kDimension, &scale,
                                            q.data(), kWidth, head_to_head, k.data(), kWidth, head_to_head, &zero,
                                            scores.data(), kTokens, scores_to_scores, kHeads));
    handle.wait();
    for (int row = 0; row < kHeads * kTokens; ++row)
        softmax(scores.data() + size_t(row) * kTokens);
    check(pyblasSgemmStridedBatchedRowMajor(handle, PYBLAS_OP_N, PYBLAS_OP_N, kTokens, kDimension, kTokens, &one,
                                            scores.data(), kTokens, scores_to_scores, v.data(), kWidth, head_to_head,
                                            &zero, out.data(), kWidth, head_to_head, kHeads));
    handle.wait();

    const double worst = error(q, k, v, out);
    std::printf("attention of %d tokens, %d heads of %d on the %s: largest error %.1e\n", kTokens, kHeads, kDimension,
                handle.on_gpu() ? "GPU" : "CPU", worst);
    return worst < 1e-5 ? 0 : 1;
} catch (const std::exception &failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    return 1;
}
