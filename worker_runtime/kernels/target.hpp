// What code for both nvcc and g++ is marked with: functions, and loops whose arrays are to live in registers.
#pragma once

#if defined(__CUDACC__)
#define DTRUN_HD __host__ __device__
#else
#define DTRUN_HD
#endif

#if defined(__CUDA_ARCH__)
#define DTRUN_UNROLL _Pragma("unroll")
#elif defined(__CUDACC__)  // its host code is never run
#define DTRUN_UNROLL
#else
#define DTRUN_UNROLL _Pragma("GCC unroll 32")
#endif
