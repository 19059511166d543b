"""PyTorch's own parallel modes on CPU ranks (gloo), each with the wrappers that its users call: DistributedDataParallel,
ZeroRedundancyOptimizer, fully_shard, parallelize_module and loss_parallel, PipelineStage and its schedules.

A mode is `Name(family, mesh, **options)`: it makes `self.model` with wrappers around it, and `run(tokens, targets)` leaves averaged
gradients and returns the mean loss of the whole batch, on every rank.
"""
import contextlib
import typing

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleOutput, RowwiseParallel, SequenceParallel, loss_parallel,
                                               parallelize_module)
from torch.nn.parallel import DistributedDataParallel

import golden
from torch_models import Stage


def mean_loss(logits, targets):
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))


class Mode:
    zero = False

    def optimizer(self):
        # foreach: PyTorch does not mix DTensors and plain ones there.
        return golden.adamw(self.model.parameters(), foreach=False)

    def gather(self, tensors):
        """Whole tensors of all modules, on every rank."""
        return {name: t.full_tensor() if isinstance(t, DTensor) else t for name, t in tensors.items()}

    def named_parameters(self):
        return dict(self.model.named_parameters())


class DataParallel(Mode):
    """DDP, or fully_shard over a mesh of one axis or two (HSDP); `tp` of the ranks each train on the same data."""

    def __init__(self, family, weights, how, replicas=1, tp=1, reshard=True, bf16=False):
        ranks = dist.get_world_size() // tp
        self.data_rank, self.ranks, self.zero = dist.get_rank() // tp, ranks, how == "zero"
        self.model = Stage(family, 0, family.layers)
        self.model.load(weights, family)
        self.loss_context = contextlib.nullcontext
        if tp > 1:
            mesh = init_device_mesh("cpu", (ranks, tp), mesh_dim_names=("dp", "tp"))
            split_layers(self.model, family, mesh["tp"], sequence=False)
            self.loss_context, self.mesh = loss_parallel, mesh["dp"]
        elif replicas > 1:
            self.mesh = init_device_mesh("cpu", (replicas, ranks // replicas), mesh_dim_names=("replicas", "parts"))
        else:
            self.mesh = init_device_mesh("cpu", (ranks,))
        if how == "fsdp":
            types = dict(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if bf16 else {}
            options = dict(mesh=self.mesh, reshard_after_forward=reshard)
            for layer in self.model.layers.values():
                fully_shard(layer, mp_policy=MixedPrecisionPolicy(**types), **options)
            # The loss of bf16 logits is one of f32.
            self.wrapped = fully_shard(self.model, mp_policy=MixedPrecisionPolicy(**types, output_dtype=torch.float32 if bf16 else None), **options)
        else:
            self.wrapped = DistributedDataParallel(self.model)

    def optimizer(self):
        if not self.zero:
            return super().optimizer()
        t = golden.TRAIN
        return ZeroRedundancyOptimizer(self.model.parameters(), torch.optim.AdamW, betas=(t["beta1"], t["beta2"]), eps=t["eps"],
                                       weight_decay=t["weight_decay"])

    def run(self, tokens, targets):
        mine = slice(self.data_rank * len(tokens) // self.ranks, (self.data_rank + 1) * len(tokens) // self.ranks)
        with self.loss_context():
            loss = mean_loss(self.wrapped(tokens[mine]), targets[mine])
            loss.backward()
        loss = loss.full_tensor() if isinstance(loss, DTensor) else loss.detach().clone()
        dist.all_reduce(loss)
        return loss / dist.get_world_size()


def split_layers(model, family, mesh, sequence):
    """Megatron's plan: columns, then rows; table and head cut by vocabulary. `sequence`: what is between is split along the sequence."""
    between = Shard(1) if sequence else Replicate()
    plan = {family.table: RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate()),
            "head": ColwiseParallel(input_layouts=between, output_layouts=Shard(-1), use_local_output=False)}
    for name in family.columns:
        plan[f"layers.*.{name}"] = ColwiseParallel(input_layouts=between)
    for name in family.rows:
        plan[f"layers.*.{name}"] = RowwiseParallel(output_layouts=between)
    if sequence:
        plan["embed"] = PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Shard(1))
        plan |= {f"layers.*.{name}": SequenceParallel() for name in family.norms} | {"norm": SequenceParallel()}
    parallelize_module(model, mesh, plan)
    model.tie(family)  # the table has become another parameter


class TensorParallel(Mode):
    def __init__(self, family, weights, sequence=False):
        self.model = Stage(family, 0, family.layers)
        self.model.load(weights, family)
        split_layers(self.model, family, init_device_mesh("cpu", (dist.get_world_size(),)), sequence)

    def run(self, tokens, targets):
        with loss_parallel():
            loss = mean_loss(self.model(tokens), targets)
            loss.backward()
        return loss.full_tensor() if isinstance(loss, DTensor) else loss.detach()


class Pipeline(Mode):
    def __init__(self, family, weights, schedule, micro_batches):
        rank, stages = dist.get_rank(), dist.get_world_size()
        self.family = family
        self.model = Stage(family, rank * family.layers // stages, (rank + 1) * family.layers // stages)
        self.model.load(weights, family)
        stage = PipelineStage(self.model, rank, stages, torch.device("cpu"))
        self.schedule = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[schedule](stage, micro_batches, loss_fn=mean_loss)
        self.ends = dist.new_group([0, stages - 1])

    def run(self, tokens, targets):
        losses = []
        if self.model.embed:
            self.schedule.step(tokens)
        elif self.model.head:
            self.schedule.step(target=targets, losses=losses)
        else:
            self.schedule.step()
        if self.family.tied and (self.model.embed or self.model.head):  # PyTorch leaves a table that two stages use to its user
            table = self.model.head if self.model.head else self.model.get_submodule(self.family.table)
            dist.all_reduce(table.weight.grad, group=self.ends)
        loss = torch.stack(losses).mean().detach() if losses else torch.zeros(())
        dist.broadcast(loss, dist.get_world_size() - 1)
        return loss

    def named_parameters(self):
        copied = "head.weight" if self.family.tied else ""
        return {name: p for name, p in super().named_parameters().items() if name != copied}

    def gather(self, tensors):
        of_stages = [None] * dist.get_world_size()
        dist.all_gather_object(of_stages, tensors)
        return {name: tensor for part in of_stages for name, tensor in part.items()}


class How(typing.NamedTuple):
    group: str
    ranks: int
    mode: type
    options: dict


# The names are those of modes_parity.cpp.
MODES = {
    "ddp 2": How("data", 2, DataParallel, dict(how="ddp")),
    "ddp 4": How("data", 4, DataParallel, dict(how="ddp")),
    "zero 2": How("data", 2, DataParallel, dict(how="zero")),
    "zero 4": How("data", 4, DataParallel, dict(how="zero")),
    "fsdp 2": How("split", 2, DataParallel, dict(how="fsdp")),
    "fsdp 4": How("split", 4, DataParallel, dict(how="fsdp")),
    "fsdp kept 2": How("split", 2, DataParallel, dict(how="fsdp", reshard=False)),
    "hsdp 2x2": How("split", 4, DataParallel, dict(how="fsdp", replicas=2)),
    "fsdp bf16 2": How("bf16", 2, DataParallel, dict(how="fsdp", bf16=True)),
    "tp 2": How("tensor", 2, TensorParallel, dict()),
    "tp 4": How("tensor", 4, TensorParallel, dict()),
    "tp sp 2": How("tensor", 2, TensorParallel, dict(sequence=True)),
    "tp sp 4": How("tensor", 4, TensorParallel, dict(sequence=True)),
    "fsdp x tp 2x2": How("tensor", 4, DataParallel, dict(how="fsdp", tp=2)),
    "gpipe 2": How("pipeline", 2, Pipeline, dict(schedule="gpipe", micro_batches=4)),
    "gpipe 4": How("pipeline", 4, Pipeline, dict(schedule="gpipe", micro_batches=4)),
    "1f1b 2": How("pipeline", 2, Pipeline, dict(schedule="1f1b", micro_batches=4)),
    "1f1b 4": How("pipeline", 4, Pipeline, dict(schedule="1f1b", micro_batches=4)),
}


def train(name, family, weights, tokens, targets):
    """5 steps in this mode, on every rank of it; what golden.train() gives for one process, whole."""
    mode = MODES[name].mode(family, weights, **MODES[name].options)
    optimizer = mode.optimizer()
    losses, norms, out = [], [], {}
    for step in range(golden.STEPS):
        optimizer.zero_grad()
        losses.append(mode.run(tokens[step], targets[step]).item())
        parameters = mode.named_parameters()
        grads = mode.gather({n: p.grad.clone() for n, p in parameters.items()})
        if step == 0:
            out |= {"grad." + n: g for n, g in family.from_modules(grads).items()}
        norms.append(torch.linalg.vector_norm(torch.stack([g.norm() for g in grads.values()])).item())
        factor = min(1.0, golden.TRAIN["max_norm"] / (norms[-1] + 1e-6))  # as clip_grad_norm_, which takes no mixture of meshes
        for p in mode.model.parameters():
            p.grad.mul_(factor)
        for group in optimizer.param_groups:
            group["lr"] = golden.learning_rate(step)
        optimizer.step()
    after = family.from_modules(mode.gather({n: p.detach() for n, p in mode.named_parameters().items()}))
    return out | {"loss": torch.tensor(losses), "norm": torch.tensor(norms)} | {"after." + n: t for n, t in after.items()}
