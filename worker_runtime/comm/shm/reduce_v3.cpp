#define DTRUN_KERNEL_SET v3
#include "worker_runtime/comm/shm/reduce_kernels.inl"
