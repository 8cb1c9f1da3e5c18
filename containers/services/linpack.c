/* Linpack: a dense system of n equations solved by LU factorisation with partial pivoting (LAPACK's
 * dgesv, from OpenBLAS). Rate from 2/3 n^3 + 2 n^2 operations; the residual is normalised and must
 * stay below 16, as in HPL. OpenBLAS takes as many threads as the process may use CPUs.
 *
 * linpack N [ALIGNMENT [THREADS]]: N equations; alignment of matrix and vectors in bytes. */
#define _GNU_SOURCE
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

extern void dgesv_(const int *n, const int *nrhs, double *a, const int *lda, int *pivots, double *b,
                   const int *ldb, int *info);
extern int openblas_get_num_threads(void);
extern void openblas_set_num_threads(int threads);
extern char *openblas_get_config(void);
extern char *openblas_get_corename(void);

static const double LIMIT = 16.0;

static uint64_t state;

/* SplitMix64 (Steele, Lea and Flood 2014), uniform in [-0.5, 0.5): cheap, and the same matrix
 * again for the residual, so that no second copy of it is kept. */
static double draw(void) {
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53 - 0.5;
}

static double *aligned(size_t alignment, size_t count) {
    size_t bytes = count * sizeof(double);
    double *made = aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    if (!made) {
        fprintf(stderr, "linpack: no memory for %zu bytes\n", bytes);
        exit(2);
    }
    return made;
}

static double now(void) {
    struct timespec clock;
    clock_gettime(CLOCK_MONOTONIC, &clock);
    return (double)clock.tv_sec + 1e-9 * (double)clock.tv_nsec;
}

/* max |A x - b| / (eps (|A| |x| + |b|) n), all in the maximum norm; sums and b are overwritten. */
static double residual(size_t n, const double *x, double *b, double *sums) {
    double norm_a = 0, norm_x = 0, norm_b = 0, worst = 0;
    state = 1;
    for (size_t row = 0; row < n; row++)
        sums[row] = 0;
    /* Column by column, as the matrix was drawn; b, drawn after it, is added last. */
    double *product = sums + n;
    for (size_t row = 0; row < n; row++)
        product[row] = 0;
    for (size_t column = 0; column < n; column++)
        for (size_t row = 0; row < n; row++) {
            double entry = draw();
            sums[row] += fabs(entry);
            product[row] += entry * x[column];
        }
    for (size_t row = 0; row < n; row++)
        b[row] = draw();
    for (size_t row = 0; row < n; row++) {
        norm_a = fmax(norm_a, sums[row]);
        norm_x = fmax(norm_x, fabs(x[row]));
        norm_b = fmax(norm_b, fabs(b[row]));
        /* Not fmax alone: it would drop a NaN. */
        double off = fabs(product[row] - b[row]);
        worst = off > worst || isnan(off) ? off : worst;
    }
    return worst / (DBL_EPSILON * (norm_a * norm_x + norm_b) * (double)n);
}

/* An OpenBLAS that is older than the processor takes it for a Prescott, which has no AVX: a third
 * of the rate on an Intel Xeon of 2023. Its kernels are chosen when it is loaded. */
static void take_kernels_with_avx(char **arguments) {
#ifdef __x86_64__
    int unknown = !strcmp(openblas_get_corename(), "Prescott") && __builtin_cpu_supports("avx2");
    if (unknown && !getenv("OPENBLAS_CORETYPE")) {
        int wide = __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
        setenv("OPENBLAS_CORETYPE", wide ? "SkylakeX" : "Haswell", 1);
        execv("/proc/self/exe", arguments);
    }
#endif
    (void)arguments;
}

int main(int count, char **arguments) {
    take_kernels_with_avx(arguments);
    long size = count > 1 ? atol(arguments[1]) : 0;
    long alignment = count > 2 ? atol(arguments[2]) : 4096;
    long threads = count > 3 ? atol(arguments[3]) : 0;
    if (size < 1 || size > 100000 || alignment < 8 || alignment & (alignment - 1) || threads < 0) {
        fprintf(stderr, "usage: linpack N [ALIGNMENT, a power of two [THREADS]]\n");
        return 2;
    }
    if (threads)
        openblas_set_num_threads((int)threads);
    size_t n = (size_t)size;
    int order = (int)size, one = 1, info = 0;
    double *a = aligned((size_t)alignment, n * n), *x = aligned((size_t)alignment, n);
    double *b = aligned((size_t)alignment, n), *sums = aligned((size_t)alignment, 2 * n);
    int *pivots = (int *)aligned((size_t)alignment, n);
    state = 1;
    for (size_t index = 0; index < n * n; index++)
        a[index] = draw();
    for (size_t row = 0; row < n; row++)
        x[row] = draw();

    double began = now();
    dgesv_(&order, &one, a, &order, pivots, x, &order, &info);
    double seconds = now() - began;

    double work = 2.0 / 3.0 * pow((double)n, 3) + 2.0 * (double)n * (double)n;
    double found = info ? NAN : residual(n, x, b, sums);
    int passed = found < LIMIT;
    printf("linpack: dgesv of %s, %s kernels\n", openblas_get_config(), openblas_get_corename());
    printf("n=%ld\nalignment=%ld\nthreads=%d\n", size, alignment, openblas_get_num_threads());
    printf("seconds=%.9f\ngflops=%.6f\n", seconds, work / seconds * 1e-9);
    printf("residual=%.6g\nlimit=%g\ncheck=%s\n", found, LIMIT, passed ? "passed" : "failed");
    return passed ? 0 : 1;
}
