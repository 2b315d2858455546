/*
 * Covariance of samples that come in groups, with the C interface in C99.
 *
 * One sgemm makes the covariance of all samples, one batched call that of each group. The mean of the groups must be
 * the whole, and both must agree with sums in double precision. Built with EXAMPLE_CUDA and on a machine with a GPU
 * that the library has code for, the products run there; otherwise on the CPU. The calls are the same.
 */
#include <pyblas_sgemm.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#ifdef EXAMPLE_CUDA
#include <cuda_runtime_api.h>
#endif

enum { variables = 48, groups = 20, per_group = 250, samples = groups * per_group };

/* Every call answers with a status; the sentence that explains it waits in the calling thread. */
static void check(pyblasStatus_t status) {
    if (status == PYBLAS_STATUS_SUCCESS)
        return;
    fprintf(stderr, "%s: %s\n", pyblasGetStatusName(status), pyblasGetLastErrorMessage());
    exit(EXIT_FAILURE);
}

static int use_gpu = 0;

/* Floats that both the host and the handle's device can reach. */
static float *allocate(size_t count) {
    void *memory = NULL;
#ifdef EXAMPLE_CUDA
    if (use_gpu && cudaMallocManaged(&memory, count * sizeof(float), cudaMemAttachGlobal) != cudaSuccess)
        memory = NULL;
#endif
    if (!use_gpu)
        memory = malloc(count * sizeof(float));
    if (!memory) {
        fprintf(stderr, "no memory for %lu floats\n", (unsigned long)count);
        exit(EXIT_FAILURE);
    }
    return (float *)memory;
}

static void release(float *memory) {
#ifdef EXAMPLE_CUDA
    if (use_gpu)
        cudaFree(memory);
#endif
    if (!use_gpu)
        free(memory);
}

/* Calls on a GPU handle return before the GPU is done. */
static void wait_for_device(void) {
#ifdef EXAMPLE_CUDA
    if (use_gpu && cudaDeviceSynchronize() != cudaSuccess) {
        fprintf(stderr, "the GPU reports an error\n");
        exit(EXIT_FAILURE);
    }
#endif
}

static pyblasHandle_t create(void) {
    pyblasHandle_t handle;
#ifdef EXAMPLE_CUDA
    pyblasDeviceInfo_t device;
    int count;
    check(pyblasDeviceCount(&count));
    if (count > 0) {
        check(pyblasDeviceInfo(0, &device));
        use_gpu = device.supported;
        printf("GPU: %s%s%s\n", device.name, use_gpu ? "" : ", not used: ", device.reason);
    } else {
        printf("no GPU: %s\n", pyblasGetLastErrorMessage());
    }
    if (use_gpu) {
        check(pyblasCreate(&handle));
        return handle;
    }
#endif
    check(pyblasCreateCpu(&handle));
    return handle;
}

int main(void) {
    const pyblasHandle_t handle = create();
    float *x = allocate((size_t)variables * samples); /* a column is a sample */
    float *whole = allocate(variables * variables);
    float *by_group = allocate((size_t)groups * variables * variables);
    const float zero = 0.0f, one_of_all = 1.0f / samples, one_of_group = 1.0f / per_group;
    double worst = 0.0;
    size_t i, j, s, g;

    srand(1);
    for (i = 0; i < (size_t)variables * samples; ++i)
        x[i] = (float)rand() / (float)RAND_MAX - 0.5f;

    /* whole := X * transpose(X) / samples */
    check(pyblasSgemm(handle, PYBLAS_OP_N, PYBLAS_OP_T, variables, variables, samples, &one_of_all, x, variables, x,
                      variables, &zero, whole, variables));
    /* The same for each group: its columns follow each other, so a group begins per_group columns after the last. */
    check(pyblasSgemmStridedBatched(handle, PYBLAS_OP_N, PYBLAS_OP_T, variables, variables, per_group, &one_of_group, x,
                                    variables, (long long)variables * per_group, x, variables,
                                    (long long)variables * per_group, &zero, by_group, variables,
                                    (long long)variables * variables, groups));
    wait_for_device();

    for (j = 0; j < variables; ++j) {
        for (i = 0; i < variables; ++i) {
            double exact = 0.0, mean = 0.0;
            for (s = 0; s < samples; ++s)
                exact += (double)x[i + s * variables] * x[j + s * variables];
            exact /= samples;
            for (g = 0; g < groups; ++g)
                mean += by_group[i + j * variables + g * variables * variables];
            mean /= groups;
            worst = fmax(worst, fmax(fabs(whole[i + j * variables] - exact), fabs(mean - exact)));
        }
    }
    printf("covariance of %d variables, %d samples in %d groups on the %s: largest error %.1e\n", variables, samples,
           groups, use_gpu ? "GPU" : "CPU", worst);

    release(by_group);
    release(whole);
    release(x);
    check(pyblasDestroy(handle));
    return worst < 1e-6 ? EXIT_SUCCESS : EXIT_FAILURE;
}
