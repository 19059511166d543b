// cuBLASLt for FakeCuda (device/fake/): the calls that BlasLt makes, checked as strictly as the library's documents
// allow it to, and products as operations of the stream. They are computed by ops::gemm, and have its bits; TF32 is
// not imitated. It is here and not in device/fake/ because device/ does not know ops.
#pragma once

#include "worker_runtime/device/blas_lt_api.hpp"

namespace dtrun::runtime::ops::gpu {

const BlasLtApi& fake_blas_lt();

// How many handles, descriptors, layouts and preferences were made and not destroyed.
int fake_blas_lt_objects();

}  // namespace dtrun::runtime::ops::gpu
