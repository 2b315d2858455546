// A program written against cublas_v2.h as any other: single, batched and strided products, scalars on the device, a
// stream, a capture. Compares with float64.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

namespace {

int wrong = 0;

void expect(bool holds, const char *what) {
    if (!holds) {
        std::fprintf(stderr, "not so: %s\n", what);
        ++wrong;
    }
}

// Memory that host and device share.
float *numbers(size_t count, bool random = true) {
    float *made = nullptr;
    if (cudaMallocManaged(reinterpret_cast<void **>(&made), count * sizeof(float), cudaMemAttachGlobal))
        std::abort();
    for (size_t i = 0; i < count; ++i)
        made[i] = random ? static_cast<float>(std::rand()) / static_cast<float>(RAND_MAX) - 0.5f : NAN;
    return made;
}

constexpr int m = 200, n = 150, k = 170, batch = 6;

// Column-major, transposed A; leading dimensions without gaps.
bool right(const float *a, const float *b, const float *c, double alpha) {
    for (int j = 0; j < n; ++j)
        for (int i = 0; i < m; ++i) {
            double sum = 0, size = 0;
            for (int l = 0; l < k; ++l) {
                const double term = static_cast<double>(a[l + i * k]) * static_cast<double>(b[l + j * k]);
                sum += term;
                size += std::fabs(term);
            }
            if (!(std::fabs(c[i + j * m] - alpha * sum) <= (k + 2) * 0x1p-24 * std::fabs(alpha) * size))
                return false;
        }
    return true;
}

} // namespace

int main() {
    cublasHandle_t handle;
    cudaStream_t stream;
    if (cublasCreate(&handle) || cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking))
        return 2;
    float *a = numbers(batch * m * k), *b = numbers(batch * k * n), *c = numbers(batch * m * n, false);
    const float alpha = 1.5f, zero = 0, one = 1;
    const auto done = [&](cublasStatus_t status, const char *what) {
        expect(status == CUBLAS_STATUS_SUCCESS, what);
        expect(cudaDeviceSynchronize() == cudaSuccess, what);
        expect(right(a, b, c, 1.5), what);
        for (int i = 0; i < batch * m * n; ++i)
            c[i] = NAN;
    };
    const auto all_done = [&](cublasStatus_t status, const char *what) {
        expect(cudaDeviceSynchronize() == cudaSuccess, what);
        for (int i = 1; i < batch; ++i)
            expect(right(a + i * m * k, b + i * k * n, c + i * m * n, 1.5), what);
        done(status, what);
    };
    const auto t = CUBLAS_OP_T, plain = CUBLAS_OP_N;

    done(cublasSgemm(handle, t, plain, m, n, k, &alpha, a, k, b, k, &zero, c, m), "Sgemm");
    done(cublasSgemm_64(handle, t, plain, m, n, k, &alpha, a, k, b, k, &zero, c, m), "Sgemm_64");
    expect(!cublasSetStream(handle, stream), "SetStream");
    done(cublasSgemm(handle, t, plain, m, n, k, &alpha, a, k, b, k, &zero, c, m), "on a stream");
    all_done(cublasSgemmStridedBatched(handle, t, plain, m, n, k, &alpha, a, k, m * k, b, k, k * n, &zero, c, m, m * n,
                                       batch),
             "SgemmStridedBatched");
    done(cublasGemmEx(handle, t, plain, m, n, k, &alpha, a, CUDA_R_32F, k, b, CUDA_R_32F, k, &zero, c, CUDA_R_32F, m,
                      CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
         "GemmEx");
    all_done(cublasGemmStridedBatchedEx(handle, t, plain, m, n, k, &alpha, a, CUDA_R_32F, k, m * k, b, CUDA_R_32F, k,
                                        k * n, &zero, c, CUDA_R_32F, m, m * n, batch, CUBLAS_COMPUTE_32F,
                                        CUBLAS_GEMM_DEFAULT),
             "GemmStridedBatchedEx");
    float **pointers = nullptr;
    if (cudaMallocManaged(reinterpret_cast<void **>(&pointers), 3 * batch * sizeof(float *), cudaMemAttachGlobal))
        return 2;
    for (int i = 0; i < batch; ++i) {
        pointers[i] = a + i * m * k;
        pointers[batch + i] = b + i * k * n;
        pointers[2 * batch + i] = c + i * m * n;
    }
    all_done(cublasSgemmBatched(handle, t, plain, m, n, k, &alpha, pointers, k, pointers + batch, k, &zero,
                                pointers + 2 * batch, m, batch),
             "SgemmBatched");
    const auto inputs = reinterpret_cast<const void *const *>(pointers);
    all_done(cublasGemmBatchedEx(handle, t, plain, m, n, k, &alpha, inputs, CUDA_R_32F, k, inputs + batch, CUDA_R_32F,
                                 k, &zero, reinterpret_cast<void *const *>(pointers + 2 * batch), CUDA_R_32F, m, batch,
                                 CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
             "GemmBatchedEx");

    float *scalars = numbers(2);
    scalars[0] = 1.5f;
    scalars[1] = 0;
    expect(!cublasSetPointerMode(handle, CUBLAS_POINTER_MODE_DEVICE), "SetPointerMode");
    done(cublasSgemm(handle, t, plain, m, n, k, scalars, a, k, b, k, scalars + 1, c, m), "scalars on the device");
    expect(!cublasSetPointerMode(handle, CUBLAS_POINTER_MODE_HOST), "SetPointerMode");

    cudaGraph_t graph;
    cudaGraphExec_t executable;
    expect(!cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
    const cublasStatus_t captured = cublasSgemm(handle, t, plain, m, n, k, &alpha, a, k, b, k, &zero, c, m);
    expect(!cudaStreamEndCapture(stream, &graph) && !cudaGraphInstantiate(&executable, graph, 0), "capture");
    expect(!cudaGraphLaunch(executable, stream), "replay");
    done(captured, "captured");

    // What is captured reads the scalars at each replay.
    cudaGraph_t with_scalars;
    cudaGraphExec_t with_scalars_executable;
    scalars[0] = -7;
    expect(!cublasSetPointerMode(handle, CUBLAS_POINTER_MODE_DEVICE), "SetPointerMode");
    expect(!cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
    const cublasStatus_t with_device_scalars =
        cublasSgemm(handle, t, plain, m, n, k, scalars, a, k, b, k, scalars + 1, c, m);
    expect(!cudaStreamEndCapture(stream, &with_scalars) &&
               !cudaGraphInstantiate(&with_scalars_executable, with_scalars, 0),
           "capture");
    scalars[0] = 1.5f;
    expect(!cudaGraphLaunch(with_scalars_executable, stream), "replay");
    done(with_device_scalars, "captured with scalars on the device");
    expect(!cublasSetPointerMode(handle, CUBLAS_POINTER_MODE_HOST), "SetPointerMode");

    int devices = 0;
    expect(!cudaGetDeviceCount(&devices), "GetDeviceCount");
    for (int device = devices - 1; device > 0; --device) {
        cublasHandle_t other;
        expect(!cudaSetDevice(device) && !cublasCreate(&other), "another device");
        done(cublasSgemm(other, t, plain, m, n, k, &alpha, a, k, b, k, &zero, c, m), "on another device");
        expect(!cudaSetDevice(0), "the first device");
        done(cublasSgemm(handle, t, plain, m, n, k, &alpha, a, k, b, k, &zero, c, m), "on the first device between");
        expect(!cudaSetDevice(device), "another device");
        done(cublasSgemm(other, t, plain, m, n, k, &alpha, a, k, b, k, &zero, c, m), "on another device again");
        expect(!cublasDestroy(other) && !cudaSetDevice(0), "Destroy");
    }

    // y = op(A) x, as a product with one column.
    for (int i = 0; i < m; ++i)
        c[i] = 0;
    expect(!cublasSgemv(handle, t, k, m, &alpha, a, k, b, 1, &one, c, 1) && !cudaDeviceSynchronize(), "Sgemv");
    for (int i = 0; i < m; ++i) {
        double sum = 0;
        for (int l = 0; l < k; ++l)
            sum += static_cast<double>(a[l + i * k]) * static_cast<double>(b[l]);
        expect(std::fabs(c[i] - 1.5 * sum) < 1e-4, "Sgemv");
    }

    // There and back, with other leading dimensions on the way.
    float *memory = nullptr, back[20 * 30];
    expect(!cudaMalloc(reinterpret_cast<void **>(&memory), 32 * 30 * sizeof(float)), "cudaMalloc");
    expect(!cublasSetMatrix(20, 30, sizeof(float), a, m, memory, 32), "SetMatrix");
    expect(!cublasGetMatrixAsync(20, 30, sizeof(float), memory, 32, back, 20, stream), "GetMatrixAsync");
    expect(!cudaStreamSynchronize(stream), "GetMatrixAsync");
    for (int i = 0; i < 20 * 30; ++i)
        expect(back[i] == a[i % 20 + i / 20 * m], "a matrix there and back");
    expect(!cublasSetVector(10, sizeof(float), b, 3, memory, 1), "SetVector");
    expect(!cublasGetVector(10, sizeof(float), memory, 1, back, 2), "GetVector");
    for (int i = 0; i < 10; ++i)
        expect(back[2 * i] == b[3 * i], "a vector there and back");
    expect(!cudaFree(memory), "cudaFree");

    // All matrices of the batch on one C: the library refuses it, and it is not an error of the program's.
    expect(!cublasSgemmStridedBatched(handle, t, plain, m, n, k, &alpha, a, k, 0, b, k, 0, &zero, c, m, 0, 2),
           "strideC 0");
    done(CUBLAS_STATUS_SUCCESS, "strideC = 0");
    expect(cublasSgemm(handle, t, plain, m, n, k, &alpha, a, k - 1, b, k, &zero, c, m) == CUBLAS_STATUS_INVALID_VALUE,
           "lda");
    expect(!cublasDestroy(handle) && !cudaStreamDestroy(stream), "Destroy");
    return wrong != 0;
}
