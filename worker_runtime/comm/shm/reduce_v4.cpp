#define DTRUN_KERNEL_SET v4
#include "worker_runtime/comm/shm/reduce_kernels.inl"
