/* A program of the kind that is linked with a BLAS: calls each function the shim stands in for, at a size that it takes
   and at one that it does not, and prints the largest error. FORTRAN_LENGTHS: passes hidden lengths, as most Fortran
   compilers do. As a plugin (PLUGIN) it is loaded instead of run. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef FORTRAN_LENGTHS
#define LENGTHS , size_t, size_t
#define ONES , (size_t)1, (size_t)1
#else
#define LENGTHS
#define ONES
#endif
extern void sgemm_(const char *, const char *, const int *, const int *, const int *, const float *, const float *,
                   const int *, const float *, const int *, const float *, float *, const int *LENGTHS);
extern void cblas_sgemm(int, int, int, int, int, int, float, const float *, int, const float *, int, float, float *,
                        int);
extern void cblas_sgemm_batch_strided(int, int, int, int, int, int, float, const float *, int, int, const float *, int,
                                      int, float, float *, int, int, int);

static float random_number(void) {
    static unsigned state = 1;
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / 8388608.0f - 1.0f;
}

static float *matrix(size_t count) {
    float *data = malloc(count * sizeof *data);
    for (size_t i = 0; i < count; ++i)
        data[i] = random_number();
    return data;
}

/* Element (i, j) of op(X), where X is stored by columns (or rows) with that leading dimension. */
static double at(const float *x, int ld, int plain, int row_major, int i, int j) {
    const int row = plain ? i : j, column = plain ? j : i;
    return row_major ? x[(size_t)row * ld + column] : x[(size_t)column * ld + row];
}

/* The error of c in units of its bound. */
static double error_of(int row_major, int plain_a, int plain_b, int m, int n, int k, float alpha, const float *a,
                       int lda, const float *b, int ldb, float beta, const float *before, const float *c, int ldc) {
    double worst = 0;
    for (int i = 0; i < m; ++i)
        for (int j = 0; j < n; ++j) {
            double sum = 0, size = 0;
            for (int l = 0; l < k; ++l) {
                const double term = at(a, lda, plain_a, row_major, i, l) * at(b, ldb, plain_b, row_major, l, j);
                sum += term;
                size += fabs(term);
            }
            const double old = beta * at(before, ldc, 1, row_major, i, j);
            const double bound = (k + 2) * 0x1p-24 * (fabs(alpha) * size + fabs(old));
            worst = fmax(worst, fabs(at(c, ldc, 1, row_major, i, j) - (alpha * sum + old)) / bound);
        }
    return worst;
}

static double call(int how, int size) {
    const int m = size, n = size + 1, k = size + 3, batch = how == 2 ? 3 : 1;
    const int layout = how == 0 ? 102 : 101, row_major = layout == 101;
    double worst = 0;
    for (int ops = 0; ops < 4; ++ops) {
        const int plain_a = ops % 2 == 0, plain_b = ops / 2 == 0;
        const int lda = (plain_a == row_major ? k : m) + 2, ldb = (plain_b == row_major ? n : k) + 1;
        const int ldc = (row_major ? n : m) + 4;
        const int stride_a = lda * (m + k), stride_b = ldb * (n + k), stride_c = ldc * (m + n);
        const float alpha = 1.5f, beta = ops == 3 ? 0.0f : -0.5f;
        float *a = matrix((size_t)stride_a * batch), *b = matrix((size_t)stride_b * batch);
        float *c = matrix((size_t)stride_c * batch), *before = malloc((size_t)stride_c * batch * sizeof *before);
        for (size_t i = 0; i < (size_t)stride_c * batch; ++i)
            before[i] = c[i];
        if (how == 0)
            sgemm_(plain_a ? "N" : "t", plain_b ? "n" : "C", &m, &n, &k, &alpha, a, &lda, b, &ldb, &beta, c, &ldc ONES);
        else if (how == 1)
            cblas_sgemm(layout, plain_a ? 111 : 112, plain_b ? 111 : 113, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
        else
            cblas_sgemm_batch_strided(layout, plain_a ? 111 : 112, plain_b ? 111 : 113, m, n, k, alpha, a, lda,
                                      stride_a, b, ldb, stride_b, beta, c, ldc, stride_c, batch);
        for (int i = 0; i < batch; ++i)
            worst = fmax(worst, error_of(row_major, plain_a, plain_b, m, n, k, alpha, a + (size_t)i * stride_a, lda,
                                         b + (size_t)i * stride_b, ldb, beta, before + (size_t)i * stride_c,
                                         c + (size_t)i * stride_c, ldc));
        free(a);
        free(b);
        free(c);
        free(before);
    }
    return worst;
}

int call_all(void);
int call_all(void) {
    double worst = 0;
    for (int how = 0; how < 3; ++how)
        worst = fmax(worst, fmax(call(how, 6), call(how, 70)));
    printf("%s\n", worst <= 1 ? "right" : "wrong");
    return worst <= 1 ? 0 : 1;
}

#ifdef PLUGIN
/* The counters of the BLAS this is linked with. */
extern int fake_fortran_calls, fake_cblas_calls, fake_batch_calls;
void counts(int *out);
void counts(int *out) {
    out[0] = fake_fortran_calls;
    out[1] = fake_cblas_calls;
    out[2] = fake_batch_calls;
}
#else
int main(void) {
    return call_all();
}
#endif
