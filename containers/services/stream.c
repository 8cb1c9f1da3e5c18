/* STREAM's four kernels after the definition of J. D. McCalpin (STREAM 5.10): copy, scale, add and
 * triad over arrays of doubles, NTIMES times; the first pass is left out. A program of its own: it
 * has one thread, and pins nothing.
 *
 * stream ELEMENTS NTIMES: elements of each of the three arrays. Rates are in MB/s, MB = 10^6 bytes,
 * best (from the least time, which STREAM prints) and mean (from the mean time). */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { COPY, SCALE, ADD, TRIAD, KERNELS };
static const char *const NAMES[KERNELS] = {"copy", "scale", "add", "triad"};
static const double ARRAYS[KERNELS] = {2, 2, 3, 3};
static const double SCALAR = 3.0, TOLERANCE = 1e-13;

static double now(void) {
    struct timespec clock;
    clock_gettime(CLOCK_MONOTONIC, &clock);
    return (double)clock.tv_sec + 1e-9 * (double)clock.tv_nsec;
}

static double *array(size_t elements) {
    size_t bytes = (elements * sizeof(double) + 4095) / 4096 * 4096;
    double *made = aligned_alloc(4096, bytes);
    if (!made) {
        fprintf(stderr, "stream: no memory for %zu bytes\n", bytes);
        exit(2);
    }
    return made;
}

static void run(int kernel, size_t n, double *restrict a, double *restrict b, double *restrict c) {
    switch (kernel) {
    case COPY:
        for (size_t i = 0; i < n; i++)
            c[i] = a[i];
        break;
    case SCALE:
        for (size_t i = 0; i < n; i++)
            b[i] = SCALAR * c[i];
        break;
    case ADD:
        for (size_t i = 0; i < n; i++)
            c[i] = a[i] + b[i];
        break;
    default:
        for (size_t i = 0; i < n; i++)
            a[i] = b[i] + SCALAR * c[i];
    }
}

/* The mean relative distance of an array from the value that all its elements must have. */
static double off(size_t n, const double *values, double expected) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += fabs(values[i] - expected);
    return sum / (double)n / fabs(expected);
}

int main(int count, char **arguments) {
    long size = count > 1 ? atol(arguments[1]) : 0, times = count > 2 ? atol(arguments[2]) : 0;
    /* Each pass makes the values 15 times larger; a double holds 260 of them. */
    if (size < 1 || times < 2 || times > 250) {
        fprintf(stderr, "usage: stream ELEMENTS NTIMES, 2 to 250\n");
        return 2;
    }
    size_t n = (size_t)size;
    double *a = array(n), *b = array(n), *c = array(n);
    for (size_t i = 0; i < n; i++) {
        a[i] = 2.0; /* STREAM sets 1 and doubles it once */
        b[i] = 2.0;
        c[i] = 0.0;
    }
    double least[KERNELS], sum[KERNELS] = {0};
    for (int kernel = 0; kernel < KERNELS; kernel++)
        least[kernel] = INFINITY;
    for (long pass = 0; pass < times; pass++)
        for (int kernel = 0; kernel < KERNELS; kernel++) {
            double began = now();
            run(kernel, n, a, b, c);
            double seconds = now() - began;
            if (pass == 0)
                continue;
            least[kernel] = fmin(least[kernel], seconds);
            sum[kernel] += seconds;
        }
    double x = 2.0, y = 2.0, z = 0.0;
    for (long pass = 0; pass < times; pass++) {
        z = x;
        y = SCALAR * z;
        z = x + y;
        x = y + SCALAR * z;
    }
    double error = fmax(off(n, a, x), fmax(off(n, b, y), off(n, c, z)));
    int passed = error <= TOLERANCE;
    printf("stream: the four kernels of STREAM 5.10, one thread\n");
    printf("elements=%ld\nntimes=%ld\n", size, times);
    for (int kernel = 0; kernel < KERNELS; kernel++) {
        double megabytes = ARRAYS[kernel] * sizeof(double) * (double)n * 1e-6;
        double mean = sum[kernel] / (double)(times - 1);
        printf("%s_best_mb_per_s=%.3f\n", NAMES[kernel], megabytes / least[kernel]);
        printf("%s_mean_mb_per_s=%.3f\n", NAMES[kernel], megabytes / mean);
    }
    printf("error=%.3g\ncheck=%s\n", error, passed ? "passed" : "failed");
    return passed ? 0 : 1;
}
