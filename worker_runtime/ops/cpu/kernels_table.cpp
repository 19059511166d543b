#include "worker_runtime/ops/cpu/kernels.hpp"
#include "worker_runtime/ops/cpu/tile.hpp"

namespace dtrun::runtime::ops::DTRUN_LEVEL {

const KernelTable kTable = {kTileRows,
                            kTileCols,
                            pack_b,
                            pack_a,
                            gemm_block,
                            attention_workspace,
                            attention_forward,
                            attention_backward,
                            layernorm_forward,
                            layernorm_backward_input,
                            layernorm_backward_weight,
                            rmsnorm_forward,
                            rmsnorm_backward_input,
                            rmsnorm_backward_weight,
                            row_max,
                            exp_sum,
                            cross_entropy_row,
                            sum_in_order,
                            column_sums,
                            gelu_forward,
                            gelu_backward,
                            swiglu_forward,
                            swiglu_backward,
                            rope,
                            scale,
                            add,
                            axpy,
                            squared_norm,
                            to_bf16,
                            to_f32,
                            adamw,
                            vector_exp};

}  // namespace dtrun::runtime::ops::DTRUN_LEVEL
