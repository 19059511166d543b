#define DTRUN_KERNEL_SET v2
#include "worker_runtime/comm/shm/reduce_kernels.inl"
