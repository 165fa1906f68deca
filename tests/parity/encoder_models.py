"""Tiny random BERT, DPR and T5 of transformers, with arrays of a corpus that they read."""

import dataclasses
import json
from typing import Callable

import torch
import transformers
from safetensors.torch import load_file, save_file

BATCH = 3
VOCAB = 277  # of bytes, special tokens and 16 sentinels
transformers.logging.set_verbosity_error()


@dataclasses.dataclass
class Case:
    name: str
    recipe: str  # fields of the section model
    models: list  # both towers of a retriever, queries' first
    arrays: dict
    forward: Callable  # of models: what they make of the arrays; what belongs to padding is 0
    outputs: tuple = ("logits",)  # what we call it
    untied: bool = False
    data: str = ""  # the corpus whose samples it is trained on, and options

    def text_data(self, folder):
        """Settings of a corpus that cuts a text into its samples."""
        lines = [f"line {i} of {i * i} words" for i in range(40)]
        pairs = "pairs" in self.data
        if pairs:
            lines = [json.dumps(dict(query=line[:8], positive=line)) for line in lines]
        text = folder / ("text.jsonl" if pairs else "text.txt")
        text.write_text("\n".join(lines))
        return ["--set", 'tokenizer={ use = "byte", special = true, extra_ids = 16 }',
                "--set", f'data={{ {self.data}, paths = ["{text}"], split = [1, 0, 0] }}', "--set", "batch.micro=2"]

    def save(self, folder):
        """A Hugging Face folder `model`, `ids.json` and `recipe.toml`."""
        self.models[0].save_pretrained(folder / "model")
        file = folder / "model/model.safetensors"
        if len(self.models) > 1:
            save_file({key: value.clone() for tower in self.models for key, value in tower.state_dict().items()
                       if "position_ids" not in key}, file)
        if self.untied:
            save_file(load_file(file) | {"lm_head.weight": self.models[0].lm_head.weight.detach().clone()}, file)
            config = json.loads((folder / "model/config.json").read_text())
            config |= dict(tie_word_embeddings=False)
            config.pop("scale_decoder_outputs", None)
            (folder / "model/config.json").write_text(json.dumps(config))
        (folder / "ids.json").write_text(json.dumps({name: array.tolist() for name, array in self.arrays.items()}))
        (folder / "recipe.toml").write_text(f"""
            precision = "fp32"
            model = {{ from = "{folder}/model", {self.recipe} }}
            tokenizer = {{ use = "null", vocab = {VOCAB} }}
            data.use = "mock"
            batch.global = {BATCH + 1}
            train.iters = 1
        """)

    def gradients(self):
        return {name: parameter.grad for model in self.models for name, parameter in model.named_parameters()
                if parameter.grad is not None}


def disturb(model):
    """No bias 0, no norm weight 1, scores worth a softmax."""
    model.config._attn_implementation = "eager"
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model.eval()


BERT = dict(vocab_size=VOCAB, hidden_size=48, num_hidden_layers=3, num_attention_heads=4, intermediate_size=112,
            max_position_embeddings=29, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def bert(name, kind, config, pairs=True, **changes):
    """Two passages and padding, some tokens hidden."""
    torch.manual_seed(1234)
    length = 29
    model = disturb(kind(config(**(BERT | changes))))
    ends = torch.tensor([29, 25, 18])  # where padding begins
    place = torch.arange(length).expand(BATCH, length)
    segments = (place >= ends[:, None]).long()
    # transformers gives the row of padding, 0, no gradient.
    arrays = dict(tokens=torch.randint(1, VOCAB, (BATCH, length)), labels=torch.randint(0, VOCAB, (BATCH, length)),
                  loss_mask=((torch.rand(BATCH, length) < 0.3) & (segments == 0)).float(),
                  token_types=((place >= 11) & (segments == 0)).long(), segments=segments)
    if pairs:
        first = (place == 0).long()
        arrays |= dict(order_labels=first * torch.tensor([[0], [1], [1]]), order_loss_mask=first.float())

    def forward(models):
        made = models[0](input_ids=arrays["tokens"], token_type_ids=arrays["token_types"], attention_mask=1 - segments)
        words = made.prediction_logits if pairs else made.logits
        return [words * (segments == 0)[:, :, None]] + ([made.seq_relationship_logits] if pairs else [])

    return Case(name, f"seq_length = {length}", [model], arrays, forward, data=f'use = "bert", pair = "{"order" if pairs else "none"}"')


def t5(name, untied=False, **changes):
    torch.manual_seed(1234)
    encoder, decoder = 31, 17
    fields = dict(vocab_size=VOCAB, d_model=48, d_kv=16, d_ff=80, num_layers=3, num_decoder_layers=2, num_heads=4, dropout_rate=0.0,
                  relative_attention_num_buckets=8, relative_attention_max_distance=20, decoder_start_token_id=0)
    model = disturb(transformers.T5ForConditionalGeneration(transformers.T5Config(**(fields | changes))))
    if untied:  # transformers 5 ties them whatever the config says; files of version 1.1 hold a head of its own
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight) * 0.1)
    ends = torch.tensor([31, 27, 20])
    segments = (torch.arange(encoder).expand(BATCH, encoder) >= ends[:, None]).long()
    arrays = dict(tokens=torch.randint(0, VOCAB, (BATCH, decoder)), labels=torch.randint(0, VOCAB, (BATCH, decoder)),
                  segments=torch.zeros(BATCH, decoder, dtype=torch.long),
                  encoder_tokens=torch.randint(0, VOCAB, (BATCH, encoder)), encoder_segments=segments)

    def forward(models):
        return [models[0](input_ids=arrays["encoder_tokens"], attention_mask=1 - segments, decoder_input_ids=arrays["tokens"]).logits]

    return Case(name, f"seq_length = {decoder}, encoder_length = {encoder}", [model], arrays, forward, untied=untied, data='use = "t5"')


def dpr(name, **changes):
    """Queries and contexts with padding."""
    torch.manual_seed(1234)
    lengths = {"query_": 17, "": 29}
    config = transformers.DPRConfig(**(BERT | changes))
    towers = [disturb(transformers.DPRQuestionEncoder(config)), disturb(transformers.DPRContextEncoder(config))]
    arrays = {}
    for sequence, length in lengths.items():
        ends = torch.tensor([length, length - 4, length - 9])
        segments = (torch.arange(length).expand(BATCH, length) >= ends[:, None]).long()
        arrays |= {sequence + "tokens": torch.randint(1, VOCAB, (BATCH, length)), sequence + "segments": segments}
    arrays |= dict(labels=torch.arange(BATCH)[:, None], pair_mask=torch.ones(BATCH, 1))

    def forward(models):
        return [tower(input_ids=arrays[sequence + "tokens"], attention_mask=1 - arrays[sequence + "segments"]).pooler_output
                for tower, sequence in zip(models, lengths)]

    return Case(name, "seq_length = 29, query_length = 17", towers, arrays, forward, ("query_embedding", "context_embedding"),
                data='use = "pairs"')


BERTS = [
    bert("bert", transformers.BertForPreTraining, transformers.BertConfig),
    bert("bert without pairs, tanh, other widths", transformers.BertForMaskedLM, transformers.BertConfig, pairs=False,
         hidden_act="gelu_new", num_attention_heads=6, type_vocab_size=3, layer_norm_eps=1e-3),
    bert("megatron-bert", transformers.MegatronBertForPreTraining, transformers.MegatronBertConfig)]
DPRS = [dpr("dpr"), dpr("dpr with a projection, other widths", projection_dim=20, num_attention_heads=6, layer_norm_eps=1e-3)]
T5S = [
    t5("t5"),
    t5("t5 gated, untied", untied=True, feed_forward_proj="gated-gelu", tie_word_embeddings=False, num_layers=2, num_decoder_layers=3),
    t5("t5 gated, tied without a scale", feed_forward_proj="gated-gelu", tie_word_embeddings=False)]
