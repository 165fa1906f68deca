"""The state that megatron-core 0.16.1 saves of its distributed optimizer in the order of its buffers (`dp_reshardable`) is the
one that it saves by itself of each parameter (`fully_reshardable`): of experts, virtual pipelines and other layouts of ranks."""

import argparse
import itertools
import os
import pathlib
import re
import sys
import tempfile
import time
import traceback

import torch

import megatron_cpu
import program
import torch_dist

LR, BATCH = 1e-2, 4
problems = []

MOE = torch_dist.MIXTRAL | dict(num_layers=4)
CASES = {  # what the model is, the ranks that it has, and what its optimizer does
    "experts": dict(model=MOE, world=4, tensor=2, pipeline=2, expert=2, expert_tensor=1, bf16=True, ours=("mixtral", 4)),
    "experts, two of each rank": dict(model=MOE | dict(add_bias_linear=True), world=4, expert=2, bucket=3000),
    "experts, virtual pipeline": dict(model=MOE | dict(moe_layer_freq=[0, 1, 1, 1], num_layers=4), world=4, pipeline=2, virtual=2,
                                      expert=2, grouped=True),
    "virtual pipeline": dict(model=torch_dist.LLAMA | dict(num_layers=8), world=2, pipeline=2, virtual=2, bf16=True,
                             ours=("llama", 8)),
    "virtual pipeline, first chunk apart": dict(model=torch_dist.QWEN | dict(num_layers=4), world=2, pipeline=2, virtual=2,
                                                apart=True),
    "uneven stages, tied": dict(model=torch_dist.GPT | dict(num_layers_in_first_pipeline_stage=1), world=2, pipeline=2,
                                bucket=3000, ours=("gpt", 3), shifted=True),
    "stages of a layout": dict(model=torch_dist.LLAMA | dict(num_layers=5), world=2, pipeline=2, virtual=2,
                               layout="E|tt|t|ttL"),
    "latent": dict(model=torch_dist.LATENT, world=2, tensor=2),
    "predicting": dict(model=torch_dist.PREDICTING | dict(num_layers=2, hidden_size=64), world=2, pipeline=2),
}


def expect(condition, text):
    if not condition:
        problems.append(text)


def chunks_of(case):
    """A rank's chunks of the model."""
    from megatron.core import parallel_state

    stage, stages = parallel_state.get_pipeline_model_parallel_rank(), case.get("pipeline", 1)
    count = case.get("virtual", 1)
    sizes = dict(tensor_model_parallel_size=case.get("tensor", 1), pipeline_model_parallel_size=stages,
                 virtual_pipeline_model_parallel_size=case.get("virtual"), pipeline_dtype=torch.float32,
                 expert_model_parallel_size=case.get("expert", 1), expert_tensor_parallel_size=case.get("expert_tensor"))
    if case.get("bf16"):
        sizes |= dict(bf16=True, params_dtype=torch.bfloat16)
    if "layout" in case:
        from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout
        sizes |= dict(pipeline_model_parallel_layout=PipelineParallelLayerLayout(case["layout"], stages))
    for chunk in range(count):
        part = dict(pre_process=stage == 0 and chunk == 0, post_process=stage == stages - 1 and chunk == count - 1,
                    vp_stage=chunk if count > 1 else None)
        model = megatron_cpu.gpt_model(part=part, **(case["model"] | sizes))
        yield model.bfloat16() if case.get("bf16") else model


def group_experts(chunk):
    """Puts the first matrices of all experts before the second ones, as Transformer Engine's grouped layers have them."""
    def matrix(name):
        return re.sub(r"local_experts\.(\d+)\.(linear_fc\d)", r"local_experts.\2.\1", name)

    plain = list(chunk.named_parameters())
    groups = [list(group) for _, group in itertools.groupby(plain, lambda one: one[0].split("local_experts")[0])]
    ordered = [one for group in groups for one in (sorted(group, key=lambda one: matrix(one[0])) if len(group) > 1 else group)]
    chunk.named_parameters = lambda **_: iter(ordered)


def sharded(chunks):
    from megatron.core import parallel_state

    metadata = dict(dp_cp_group=parallel_state.get_data_parallel_group(with_context_parallel=True))
    return {f"model{i}": chunk.sharded_state_dict(metadata=metadata) for i, chunk in enumerate(chunks)}


def values_of(chunks, seed):
    """Each parameter with random values, which are the same at all ranks that have it."""
    from megatron.core.dist_checkpointing.mapping import ShardedTensorFactory

    for state in sharded(chunks).values():
        for one in state.values():
            tensor = one.build() if isinstance(one, ShardedTensorFactory) else one
            while isinstance(tensor, (dict, list)):
                tensor = next(iter(tensor.values() if isinstance(tensor, dict) else tensor))
            if isinstance(getattr(one, "data", None), torch.nn.Parameter):
                own = f"{tensor.key} {tensor.global_offset} {seed}".encode()
                generator = torch.Generator().manual_seed(int.from_bytes(own, "little") % (1 << 60))
                yield one.data, torch.randn(one.data.shape, generator=generator)


def step(case, chunks):
    """The chunks' optimizer after a step with random gradients."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    for parameter, value in values_of(chunks, "weights"):
        parameter.data.copy_(0.1 * value)
    for chunk in chunks if case.get("grouped") else ():
        group_experts(chunk)
    buckets = case.get("bucket")
    wrapped = [DistributedDataParallel(
        chunk.config, DistributedDataParallelConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True, bucket_size=buckets,
                                                    overlap_grad_reduce=buckets is not None),
        chunk, disable_bucketing=i > 0) for i, chunk in enumerate(chunks)]
    config = OptimizerConfig(optimizer="adam", lr=LR, min_lr=LR, weight_decay=0.1, clip_grad=0.0, bf16=case.get("bf16", False),
                             use_distributed_optimizer=True, overlap_param_gather_with_optimizer_step=case.get("apart", False))
    optimizer = get_megatron_optimizer(config, wrapped)
    for parameter, value in values_of(chunks, "gradients"):
        parameter.main_grad.copy_(value)
    assert optimizer.step()[0]
    return optimizer


def whole_buffers(optimizer, **_):
    """All ranks' parts of the buffers, for `fully_reshardable`; megatron-core 0.16.1 itself leaves out the padding between
    buckets there, and then takes parameters from where they are with it."""
    state = {}
    for index, (buffer, ranges) in enumerate(zip(optimizer.buffers, optimizer.gbuf_ranges)):
        (kind, buckets), = ranges.items()
        whole = {key: torch.zeros(buffer.numel) for key in ("param", "exp_avg", "exp_avg_sq")}
        for bucket in buckets:
            for parameter, places in bucket["param_map"].items():
                own = optimizer._get_main_param_and_optimizer_states(parameter)
                for key, tensor in whole.items():
                    tensor[places["gbuf_world"].start:places["gbuf_world"].end] = own[key].detach()
        for tensor in whole.values():
            torch.distributed.all_reduce(tensor, group=optimizer.data_parallel_group)
        state[index] = {kind: whole}
    return state


def save(case, chunks, optimizer, folder):
    from megatron.core import dist_checkpointing, parallel_state
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    own = DistributedOptimizer.get_parameter_state_dp_zero

    args = argparse.Namespace(num_attention_heads=4, consumed_train_samples=BATCH,
                              tensor_model_parallel_size=case.get("tensor", 1),
                              pipeline_model_parallel_size=case.get("pipeline", 1),
                              virtual_pipeline_model_parallel_size=case.get("virtual"),
                              expert_model_parallel_size=case.get("expert", 1),
                              expert_tensor_parallel_size=case.get("expert_tensor", case.get("tensor", 1)))
    kinds = [("buffers", "dp_reshardable", own), ("whole", "fully_reshardable", whole_buffers)]
    for name, kind, joined in kinds + ([("shifted", "fully_reshardable", own)] if case.get("shifted") else []):
        DistributedOptimizer.get_parameter_state_dp_zero = joined
        place = folder / name / "iter_0000001"
        place.mkdir(parents=True, exist_ok=True)
        metadata = dict(distrib_optim_sharding_type=kind, chained_optim_avoid_prefix=True,
                        dp_cp_group=parallel_state.get_data_parallel_group(with_context_parallel=True))
        model = sharded(chunks)
        state = dict(args=args, iteration=1, checkpoint_version=3.0,
                     optimizer=optimizer.sharded_state_dict(model, metadata=metadata))
        state |= sharded(chunks) if len(chunks) > 1 else dict(model=sharded(chunks)["model0"])
        dist_checkpointing.save(state, str(place), content_metadata=metadata)


def be_rank(case, rank, folder):
    torch.set_num_threads(1)
    names = dict(pipeline="pipeline_model_parallel_size", virtual="virtual_pipeline_model_parallel_size",
                 expert="expert_model_parallel_size", expert_tensor="expert_tensor_parallel_size")
    megatron_cpu.start(rank, case["world"], folder / "meet", case.get("tensor", 1),
                       **{name: case[key] for key, name in names.items() if key in case})
    chunks = list(chunks_of(case))
    save(case, chunks, step(case, chunks), folder)
    torch.distributed.barrier()


def be_ranks(case, folder):
    """Forks each rank, so that modules are imported once."""
    children = []
    for rank in range(case["world"]):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                be_rank(case, rank, folder)
                status = 0
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        children.append(child)
    failed = [child for child in children if os.waitpid(child, 0)[1] != 0]
    return not failed


def imported(name, case, folder):
    """A run has the same state of both."""
    model, layers = case["ours"]
    torch_dist.OURS[model] |= dict(layers=layers)
    file = torch_dist.recipe(folder, model, precision="bf16" if case.get("bf16") else "fp32")
    for one in ("whole", "buffers"):
        said = program.run("checkpoint", "import", folder / one, "--recipe", file, "-o", folder / f"run-{one}")
        expect(re.search("step 1, .* and [1-9][0-9]* of the optimizer's state", said), f"{name}: {said}")
    said = program.run("checkpoint", "diff", folder / "run-whole", folder / "run-buffers", "--all")
    expect(" 0 differ" in said and "only in" not in said, f"{name}, imported: {said}")
    if "shifted" in case:
        result = program.call("checkpoint", "import", folder / "shifted", "--recipe", file, "-o", folder / "run-shifted")
        expect(result.returncode == 5 and f"{folder / 'shifted'}, step 1: the master of " in result.stderr
               and "has other values than the weight, by more than rounding" in result.stderr
               and "save the checkpoint without that option" in result.stderr, f"{name}, shifted: {result}")
    common = folder / "buffers/iter_0000001/common.pt"
    state = torch.load(common, weights_only=False)
    state["args"].pipeline_model_parallel_size = 1
    torch.save(state, common)
    said = program.run("checkpoint", "import", folder / "buffers", "--recipe", file, "-o", folder / "run-refused")
    ranks = case["world"]
    expect(f" 0 of the optimizer's state, from {folder / 'buffers'}, step 1; the optimizer's buffers (dp_reshardable) are not read: "
           f"there are buffers of {ranks} model-parallel ranks, and by the saved arguments there were {ranks // 2}: load it with "
           "Megatron-LM in the layout that saved it, and save it with --dist-ckpt-optim-fully-reshardable; without it --resume "
           "cannot go on: begin a run with --weights" in said, f"{name}, refused: {said}")


def compare(name, case, folder):
    before = time.monotonic()
    if not be_ranks(case, folder):
        sys.exit(f"{name}: megatron-core failed")
    saved = time.monotonic()
    said = program.run("checkpoint", "diff", folder / "whole", folder / "buffers", "--all")
    expect(" 0 differ" in said and "only in" not in said, f"{name}: {said}")
    if "ours" in case:
        imported(name, case, folder)
    print(f"{name}: {said.strip().splitlines()[-1]} (megatron-core {saved - before:.1f} s, here {time.monotonic() - saved:.1f} s)",
          flush=True)


def rows():
    """The rows of the table in docs/checkpoints.md that this test proves."""
    text = (pathlib.Path(__file__).parents[2] / "docs/checkpoints.md").read_text()
    imported, compared = "`checkpoint import --recipe`", "`checkpoint diff` with the same in `fully_reshardable`"
    for what, how in (("experts with expert parallelism", imported), ("virtual pipeline, uneven stages, tied embeddings", imported),
                      ("a layout of its own, latent attention, multi-token prediction", compared)):
        row = f"Megatron-LM `torch_dist`, `dp_reshardable`: {what} | {how} | all bits of moments and masters"
        expect(f"| {row} |\n" in text, f"docs/checkpoints.md has no row {row}")


if __name__ == "__main__":
    import megatron.core.distributed  # noqa: F401  children have what is imported here
    import megatron.core.dist_checkpointing  # noqa: F401
    import megatron.core.models.gpt  # noqa: F401
    import megatron.core.optimizer  # noqa: F401

    for name, case in CASES.items():
        if len(sys.argv) > 1 and name not in sys.argv[1:]:
            continue
        with tempfile.TemporaryDirectory() as temporary:
            compare(name, case, pathlib.Path(temporary))
    rows()
    sys.exit("\n".join(problems) if problems else 0)
