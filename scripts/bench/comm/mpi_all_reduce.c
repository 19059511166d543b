/* mpi_all_reduce BUDGET_MS FRESH BYTES...: MPI's side of the comparison. In-place float sums; prints bytes, best and median microseconds of a
   call (20 samples, the slowest rank's time), like bench_comm. FRESH 1: the tensor is written again before each call, which is not timed. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kSamples = 20 };

static int fresh = 0;

static double time_of(float* data, int count, long iterations) {
  double seconds = 0, slowest = 0, start = MPI_Wtime();
  for (long i = 0; i < iterations; ++i) {
    if (fresh) {
      for (int k = 0; k < count; ++k) data[k] = (float)(i % 2);
      MPI_Barrier(MPI_COMM_WORLD);
      start = MPI_Wtime();
    }
    MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    if (fresh) seconds += MPI_Wtime() - start;
  }
  if (!fresh) seconds = MPI_Wtime() - start;
  double mine = seconds / (double)iterations;
  MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return slowest;
}

static int ascending(const void* a, const void* b) {
  double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

int main(int argc, char* argv[]) {
  MPI_Init(&argc, &argv);
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  double budget = argc > 1 ? atof(argv[1]) * 1e-3 : 0.2;
  fresh = argc > 2 && atoi(argv[2]) == 1;
  for (int i = 3; i < argc; ++i) {
    size_t bytes = strtoul(argv[i], NULL, 10);
    int count = (int)(bytes / sizeof(float));
    float* data = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    memset(data, 0, bytes);
    time_of(data, count, 2);
    double once = time_of(data, count, 3), times[kSamples];
    long iterations = (long)(budget / kSamples / once);
    if (iterations < 1) iterations = 1;
    if (iterations > 100000) iterations = 100000;
    for (int k = 0; k < kSamples; ++k) {
      MPI_Barrier(MPI_COMM_WORLD);
      times[k] = time_of(data, count, iterations);
    }
    qsort(times, kSamples, sizeof(double), ascending);
    if (rank == 0) printf("%zu %.3f %.3f\n", bytes, times[0] * 1e6, times[kSamples / 2] * 1e6);
    free(data);
  }
  MPI_Finalize();
  return 0;
}
