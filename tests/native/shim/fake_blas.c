/* A BLAS that keeps count: what reaches it, and that its CBLAS calls its Fortran functions by their public names, as
   the reference's does. With ENDS, its error handlers end the process, as the reference's do. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

int fake_fortran_calls = 0, fake_cblas_calls = 0, fake_batch_calls = 0, fake_threads = 1;

int openblas_get_num_threads(void) {
    return fake_threads;
}

void xerbla_(const char *name, const int *number, size_t length) {
    fprintf(stderr, "the fake's xerbla: %.*s %d\n", (int)length, name, *number);
    exit(3);
}

void cblas_xerbla(int number, const char *routine, const char *form, ...) {
    fprintf(stderr, "the fake's cblas_xerbla: %s %d %s\n", routine, number, form);
    exit(3);
}

/* A BLAS is known by having this. */
void dgemm_(void) {}

void sgemm_(const char *transa, const char *transb, const int *m, const int *n, const int *k, const float *alpha,
            const float *a, const int *lda, const float *b, const int *ldb, const float *beta, float *c, const int *ldc,
            size_t length_a, size_t length_b) {
    const int plain_a = *transa == 'N' || *transa == 'n', plain_b = *transb == 'N' || *transb == 'n';
    ++fake_fortran_calls;
    if (length_a != 1 || length_b != 1)
        abort();
    for (int j = 0; j < *n; ++j)
        for (int i = 0; i < *m; ++i) {
            double sum = 0;
            for (int l = 0; l < *k; ++l)
                sum += (double)a[plain_a ? i + (size_t)l * *lda : l + (size_t)i * *lda] *
                       b[plain_b ? l + (size_t)j * *ldb : j + (size_t)l * *ldb];
            float *out = &c[i + (size_t)j * *ldc];
            *out = (float)(*alpha * sum + (*beta == 0 ? 0 : *beta * *out));
        }
}

void cblas_sgemm(int layout, int transa, int transb, int m, int n, int k, float alpha, const float *a, int lda,
                 const float *b, int ldb, float beta, float *c, int ldc) {
    const char *letters = "NTCN";
    ++fake_cblas_calls;
    if (layout == 101)
        sgemm_(&letters[transb - 111], &letters[transa - 111], &n, &m, &k, &alpha, b, &ldb, a, &lda, &beta, c, &ldc, 1,
               1);
    else
        sgemm_(&letters[transa - 111], &letters[transb - 111], &m, &n, &k, &alpha, a, &lda, b, &ldb, &beta, c, &ldc, 1,
               1);
}

void cblas_sgemm_batch_strided(int layout, int transa, int transb, int m, int n, int k, float alpha, const float *a,
                               int lda, int stride_a, const float *b, int ldb, int stride_b, float beta, float *c,
                               int ldc, int stride_c, int batch) {
    ++fake_batch_calls;
    for (int i = 0; i < batch; ++i)
        cblas_sgemm(layout, transa, transb, m, n, k, alpha, a + (ptrdiff_t)i * stride_a, lda,
                    b + (ptrdiff_t)i * stride_b, ldb, beta, c + (ptrdiff_t)i * stride_c, ldc);
}
