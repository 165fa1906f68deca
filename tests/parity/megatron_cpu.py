"""megatron-core on a machine without a GPU: what asks for one gets the processor."""

import contextlib
import logging
import os
import queue
import warnings

import torch

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)


def on_cpu(device):
    """The processor where a GPU is asked for; else what was asked for."""
    return "cpu" if str(device).startswith("cuda") else device


class Processor(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, arguments=(), named=None):
        named = dict(named or {})
        if "device" in named:
            named["device"] = on_cpu(named["device"])
        if function is torch.Tensor.type and len(arguments) == 1 and not named:  # optimizers ask whether it is on a GPU
            return function(*arguments).replace("torch.", "torch.cuda.")
        if any(isinstance(one, (str, torch.device)) for one in arguments):
            arguments = tuple(on_cpu(one) if isinstance(one, (str, torch.device)) else one for one in arguments)
        return function(*arguments, **named)


def start(rank=0, world=1, meet=None, tensor=1, **sizes):
    """Makes this process a rank of Megatron; `meet` is a file that all ranks name, `sizes` are further ones of its
    initialize_model_parallel."""
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.synchronize = lambda *_: None
    torch.Tensor.cuda = lambda self, *_, **__: self
    Processor().__enter__()
    if meet is None:
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=world)
    else:
        torch.distributed.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=world)
    from megatron.core.transformer import multi_latent_attention
    from megatron.core.transformer.dot_product_attention import DotProductAttention

    own = DotProductAttention.__init__

    def with_channels(self, *given, k_channels=None, v_channels=None, **named):
        """Latent attention tells how wide heads of keys and values are, which Transformer Engine's class takes, and this one not."""
        own(self, *given, **named)
        if v_channels is not None:
            self.hidden_size_per_partition = self.num_attention_heads_per_partition * v_channels

    DotProductAttention.__init__ = with_channels
    multi_latent_attention.HAVE_TE = False  # it asks for what it imported, which may be None
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.dist_checkpointing.strategies import filesystem_async

    filesystem_async._results_queue = queue.Queue()  # else a process of its own, which a save that waits does not need
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=tensor, **sizes)
    tensor_parallel.random.initialize_rng_tracker()
    tensor_parallel.random.CudaRNGStatesTracker.fork = lambda *_, **__: contextlib.nullcontext()


def core_config(kind=None, **fields):
    """A configuration of megatron-core's own layers, in plain PyTorch."""
    from megatron.core.transformer import TransformerConfig

    given = dict(use_cpu_initialization=True, hidden_dropout=0.0, attention_dropout=0.0, bias_dropout_fusion=False,
                 masked_softmax_fusion=False, bias_activation_fusion=False, persist_layer_norm=False, gradient_accumulation_fusion=False,
                 activation_func=torch.nn.functional.gelu)
    return (kind or TransformerConfig)(**(given | fields))


def randomize(model, seed):
    """Random values in every parameter."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.1 * noise if name.endswith("norm.weight") else 0.1 * noise)
    return model


def bert_model(vocab, length, pairs=True, **fields):
    from megatron.core.models.bert.bert_layer_specs import bert_layer_local_spec
    from megatron.core.models.bert.bert_model import BertModel

    return BertModel(config=core_config(**fields), num_tokentypes=2 if pairs else 0, transformer_layer_spec=bert_layer_local_spec,
                     vocab_size=vocab, max_sequence_length=length, share_embeddings_and_output_weights=True, add_binary_head=pairs)


def t5_model(vocab, length, encoder_layers, num_layers, positions="learned_absolute", **fields):
    from megatron.core.models.T5 import t5_spec
    from megatron.core.models.T5.t5_model import T5Model
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    t5_spec.TENorm = WrappedTorchNorm  # its local layers end with a norm of Transformer Engine
    return T5Model(config=core_config(num_layers=num_layers, **fields), encoder_config=core_config(num_layers=encoder_layers, **fields),
                   transformer_encoder_layer_spec=t5_spec.get_t5_encoder_with_local_block_spec(encoder_layers),
                   transformer_decoder_layer_spec=t5_spec.get_t5_decoder_with_local_block_spec(num_layers), vocab_size=vocab,
                   max_sequence_length=length, share_embeddings_and_output_weights=True, position_embedding_type=positions)


def hybrid_model(pattern, vocab, length, **fields):
    """A MambaModel of local layers, which save their norms under Transformer Engine's names, as there are no other ones of it."""
    import mamba_cpu

    mamba_cpu.install()
    from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.mamba import mamba_model
    from megatron.core.ssm import mamba_block
    from megatron.core.ssm.mamba_layer import MambaLayer, MambaLayerSubmodules
    from megatron.core.ssm.mamba_mixer import MambaMixer, MambaMixerSubmodules
    from megatron.core.ssm.mlp_layer import MLPLayer
    from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.torch_norm import WrappedTorchNorm
    from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules

    mamba_block.TENorm = WrappedTorchNorm
    dense, experts = (get_gpt_layer_local_spec(num_experts=number, moe_grouped_gemm=False, normalization="RMSNorm").submodules
                      for number in (None, fields.get("num_moe_experts", 2)))
    mixer = ModuleSpec(module=MambaMixer, submodules=MambaMixerSubmodules(in_proj=ColumnParallelLinear, out_proj=RowParallelLinear))

    def layer(kind, saved=None, **parts):
        return ModuleSpec(module=kind, submodules=TransformerLayerSubmodules(**parts, sharded_state_dict_keys_map=saved or {}))

    stack = ModuleSpec(module=mamba_block.MambaStack, submodules=mamba_block.MambaStackSubmodules(
        mamba_layer=ModuleSpec(module=MambaLayer, submodules=MambaLayerSubmodules(
            norm=WrappedTorchNorm, mixer=mixer, mamba_bda=get_bias_dropout_add,
            sharded_state_dict_keys_map={"norm.": "mixer.in_proj.layer_norm_"})),
        attention_layer=layer(TransformerLayer, {"input_layernorm.": "self_attention.linear_qkv.layer_norm_"}, input_layernorm=WrappedTorchNorm,
                              self_attention=dense.self_attention, self_attn_bda=get_bias_dropout_add),
        mlp_layer=layer(MLPLayer, {"pre_mlp_layernorm.": "mlp.linear_fc1.layer_norm_"}, pre_mlp_layernorm=WrappedTorchNorm, mlp=dense.mlp,
                        mlp_bda=get_bias_dropout_add),
        moe_layer=layer(TransformerLayer, pre_mlp_layernorm=WrappedTorchNorm, mlp=experts.mlp, mlp_bda=get_bias_dropout_add)))
    config = core_config(num_layers=len(pattern), normalization="RMSNorm", is_hybrid_model=True, use_mamba_mem_eff_path=False, **fields)
    return mamba_model.MambaModel(config=config, mamba_stack_spec=stack, vocab_size=vocab, max_sequence_length=length,
                                  hybrid_override_pattern=pattern)


def gpt_model(seed=5, vocab=96, seq=32, learned=False, tied=False, part=None, **fields):
    """A GPTModel of megatron-core's own layers with random values in every parameter; `part` says which of a pipeline's."""
    from megatron.core.transformer.moe import moe_utils

    moe_utils.te_general_gemm = None  # a name that it has only with Transformer Engine
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_layer_local_spec, get_gpt_mtp_block_spec
    from megatron.core.transformer import MLATransformerConfig, TransformerConfig

    given = dict(num_layers=3, hidden_size=48, num_attention_heads=4, use_cpu_initialization=True, hidden_dropout=0.0,
                 attention_dropout=0.0, bias_dropout_fusion=False, masked_softmax_fusion=False, bias_activation_fusion=False,
                 persist_layer_norm=False, gradient_accumulation_fusion=False, perform_initialization=True)
    is_latent = fields.get("multi_latent_attention", False)
    config = (MLATransformerConfig if is_latent else TransformerConfig)(**(given | fields))
    part = part or {}
    stage = part.get("vp_stage")
    if isinstance(config.moe_layer_freq, list):  # layers differ
        spec = get_gpt_decoder_block_spec(config, False, normalization=config.normalization, vp_stage=stage)
    else:
        spec = get_gpt_layer_local_spec(num_experts=config.num_moe_experts, moe_grouped_gemm=False,
                                        qk_layernorm=config.qk_layernorm, normalization=config.normalization,
                                        multi_latent_attention=is_latent)
    predicting = get_gpt_mtp_block_spec(config, spec, False, vp_stage=stage) if config.mtp_num_layers else None
    model = GPTModel(config=config, transformer_layer_spec=spec, vocab_size=vocab, max_sequence_length=seq,
                     position_embedding_type="learned_absolute" if learned else "rope", mtp_block_spec=predicting,
                     share_embeddings_and_output_weights=tied, **part)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.1 * noise if "layernorm.weight" in name else 0.1 * noise)
    return model


def optimizer_of(model, lr, decay, distributed, **fields):
    """The model within Megatron's data parallelism, and its AdamW; `fields` are further ones of its OptimizerConfig."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    def set_state(self, parameter, tensors, plain=DistributedOptimizer._set_main_param_and_optimizer_states):
        """torch.optim's AdamW, in the place of Transformer Engine's, has its step among the tensors; it was loaded before."""
        group, order = self.model_param_group_index_map[parameter]
        plain(self, parameter, dict(step=self.optimizer.state[self.optimizer.param_groups[group]["params"][order]]["step"]) | tensors)

    if DistributedOptimizer._set_main_param_and_optimizer_states.__name__ != "set_state":
        DistributedOptimizer._set_main_param_and_optimizer_states = set_state
    torch.distributed.reduce_scatter_tensor = lambda output, whole, **_: output.copy_(whole)  # of one rank; Gloo has none
    wrapped = DistributedDataParallel(model.config, DistributedDataParallelConfig(use_distributed_optimizer=distributed,
                                                                                 grad_reduce_in_fp32=True), model)
    given = dict(optimizer="adam", lr=lr, min_lr=lr, weight_decay=decay, adam_beta1=0.9, adam_beta2=0.95, adam_eps=1e-8,
                 clip_grad=0.0, use_distributed_optimizer=distributed)
    return wrapped, get_megatron_optimizer(OptimizerConfig(**(given | fields)), [wrapped])


def inputs_of(ids):
    positions = torch.arange(ids.size(1)).expand_as(ids)
    return ids, positions, torch.ones(1, 1, ids.size(1), ids.size(1)).triu(1).bool()


def logits_of(model, ids):
    """[batch, seq, vocab]"""
    return model(*inputs_of(ids))


def losses_of(model, ids, labels):
    """The mean loss, and that of each token further on; with the gradients of their total."""
    from megatron.core.transformer.multi_token_prediction import MTPLossLoggingHelper

    loss = model(*inputs_of(ids), labels=labels).mean()
    loss.backward()
    return [loss.item(), *MTPLossLoggingHelper.tracker["values"].tolist()]
