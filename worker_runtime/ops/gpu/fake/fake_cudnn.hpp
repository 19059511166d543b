// cuDNN for FakeCuda (device/fake/): the calls that device/cudnn makes, with descriptors checked as strictly as the
// library's documents allow it to, and graphs of four-dimensional tensors computed operation by operation, in f32,
// rounded where a tensor is bf16. It refuses whatever it does not understand, and heads that are no multiples of 8. It
// is here and not in device/fake/ because device/ does not know ops.
#pragma once

#include "worker_runtime/device/cudnn_api.hpp"

namespace dtrun::runtime::ops::gpu {

const CudnnApi& fake_cudnn();

// How many handles and descriptors were made and not destroyed.
int fake_cudnn_objects();
// How often a plan was executed.
int fake_cudnn_runs();

}  // namespace dtrun::runtime::ops::gpu
