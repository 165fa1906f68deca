"""`transformers` as the judge of BERT, DPR and T5: the same weights and the same arrays of a corpus give the same logits, losses and
gradients."""

import json
import pathlib
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file, save_file

import program

BATCH, VOCAB = 3, 97
transformers.logging.set_verbosity_error()
failed = 0


def disturb(model):
    """No bias 0, no norm weight 1, scores worth a softmax."""
    model.config._attn_implementation = "eager"
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model.eval()


def prepare(folder, model, arrays, recipe):
    model.save_pretrained(folder / "model")
    (folder / "ids.json").write_text(json.dumps({name: array.tolist() for name, array in arrays.items()}))
    (folder / "recipe.toml").write_text(f"""
        precision = "fp32"
        model = {{ from = "{folder}/model", {recipe} }}
        tokenizer = {{ use = "null", vocab = {VOCAB} }}
        data.use = "mock"
        train.iters = 1
    """)


def gradients_of(model):
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def compare(name, folder, theirs):
    global failed
    ours = program.evaluate(folder)
    problems = program.compare(ours, theirs)
    worst = max((program.norm([ours[2][key] - gradient]) / max(program.norm([gradient]), program.FLOOR * program.norm(theirs[2].values())), key)
                for key, gradient in theirs[2].items() if key in ours[2])
    print(f"{name}: loss {ours[1]} against {theirs[1]:.7f}; logits off by "
          f"{program.norm([ours[0] - theirs[0]]) / program.norm([theirs[0]]):.2e}, gradients by at most {worst[0]:.2e} ({worst[1]})")
    for problem in problems:
        print(f"  {problem}")
    failed += bool(problems)


def bert(name, kind, config, pairs=True, **changes):
    """Two passages and padding, some tokens hidden; the loss is the sum of both means."""
    torch.manual_seed(1234)
    length = 29
    fields = dict(vocab_size=VOCAB, hidden_size=48, num_hidden_layers=3, num_attention_heads=4, intermediate_size=112,
                  max_position_embeddings=length, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = disturb(kind(config(**(fields | changes))))
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
    logits = model(input_ids=arrays["tokens"], token_type_ids=arrays["token_types"], attention_mask=1 - segments)
    words = logits.prediction_logits if pairs else logits.logits
    each = torch.nn.functional.cross_entropy(words.transpose(1, 2), arrays["labels"], reduction="none")
    loss = (each * arrays["loss_mask"]).sum() / arrays["loss_mask"].sum()
    total = loss
    if pairs:
        total = loss + torch.nn.functional.cross_entropy(logits.seq_relationship_logits, torch.tensor([0, 1, 1]))
    total.backward()
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        prepare(folder, model, arrays, f"seq_length = {length}")
        # Padding sees other tokens, and its results are not read.
        ours = program.evaluate(folder)
        kept = (segments == 0)[:, :, None]
        global failed
        theirs = gradients_of(model)
        # A key's bias moves all scores of a query alike: its gradient is rounding.
        noise = [gradient for name in list(theirs) if name.endswith("key.bias") for gradient in (theirs.pop(name), ours[2].pop(name))]
        problems = program.compare((ours[0] * kept, ours[1], ours[2]), (words.detach() * kept, loss.item(), theirs))
        if not program.norm(noise) <= 1e-7 * program.norm(theirs.values()):
            problems.append("the gradient of a key's bias is not 0")
        print(f"{name}: loss {ours[1]} against {loss.item():.7f}")
        for problem in problems:
            print(f"  {problem}")
        failed += bool(problems)


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
    logits = model(input_ids=arrays["encoder_tokens"], attention_mask=1 - segments, decoder_input_ids=arrays["tokens"]).logits
    loss = torch.nn.functional.cross_entropy(logits.transpose(1, 2), arrays["labels"])
    loss.backward()
    gradients = gradients_of(model)
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        prepare(folder, model, arrays, f"seq_length = {decoder}, encoder_length = {encoder}")
        if untied:
            file = folder / "model/model.safetensors"
            save_file(load_file(file) | {"lm_head.weight": model.lm_head.weight.detach().clone()}, file)
            config = json.loads((folder / "model/config.json").read_text())
            config |= dict(tie_word_embeddings=False)
            config.pop("scale_decoder_outputs", None)
            (folder / "model/config.json").write_text(json.dumps(config))
        compare(name, folder, (logits.detach(), loss.item(), gradients))


def dpr(name, **changes):
    """Queries and contexts with padding; the loss is that of in-batch negatives."""
    torch.manual_seed(1234)
    lengths = {"query_": 17, "": 29}
    fields = dict(vocab_size=VOCAB, hidden_size=48, num_hidden_layers=3, num_attention_heads=4, intermediate_size=112,
                  max_position_embeddings=29, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    config = transformers.DPRConfig(**(fields | changes))
    towers = {"query_": disturb(transformers.DPRQuestionEncoder(config)), "": disturb(transformers.DPRContextEncoder(config))}
    arrays, embeddings = {}, {}
    for sequence, length in lengths.items():
        ends = torch.tensor([length, length - 4, length - 9])
        segments = (torch.arange(length).expand(BATCH, length) >= ends[:, None]).long()
        tokens = torch.randint(1, VOCAB, (BATCH, length))
        arrays |= {sequence + "tokens": tokens, sequence + "segments": segments}
        embeddings[sequence] = towers[sequence](input_ids=tokens, attention_mask=1 - segments).pooler_output
    arrays |= dict(labels=torch.arange(BATCH)[:, None], pair_mask=torch.ones(BATCH, 1))
    loss = torch.nn.functional.cross_entropy(embeddings["query_"] @ embeddings[""].T, torch.arange(BATCH))
    loss.backward()
    gradients = {key: gradient for tower in towers.values() for key, gradient in gradients_of(tower).items()}
    # A bias that moves all contexts alike changes no loss: its gradient is 0, and rounding in both programs.
    shifts = {key for key, gradient in gradients.items() if key.startswith("ctx_") and key.endswith("bias") and gradient.norm() < 1e-6}
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        prepare(folder, towers["query_"], arrays, 'seq_length = 29, query_length = 17')
        save_file({key: value.clone() for tower in towers.values() for key, value in tower.state_dict().items()
                   if "position_ids" not in key}, folder / "model/model.safetensors")
        ours = program.evaluate(folder, outputs=("query_embedding", "context_embedding"))
        made = torch.cat([embeddings["query_"], embeddings[""]]).detach()
        noise = [gradient for key in list(gradients) if key.endswith("key.bias") or key in shifts
                 for gradient in (gradients.pop(key), ours[2].pop(key))]
        problems = program.compare(ours, (made, loss.item(), gradients))
        if not program.norm(noise) <= 1e-6 * program.norm(gradients.values()):
            problems.append("the gradient of a bias that changes no score is not 0")
        print(f"{name}: loss {ours[1]} against {loss.item():.7f}")
        for problem in problems:
            print(f"  {problem}")
        global failed
        failed += bool(problems)


bert("bert", transformers.BertForPreTraining, transformers.BertConfig)
bert("bert without pairs, tanh, other widths", transformers.BertForMaskedLM, transformers.BertConfig, pairs=False,
     hidden_act="gelu_new", num_attention_heads=6, type_vocab_size=3, layer_norm_eps=1e-3)
bert("megatron-bert", transformers.MegatronBertForPreTraining, transformers.MegatronBertConfig)
dpr("dpr")
dpr("dpr with a projection, other widths", projection_dim=20, num_attention_heads=6, layer_norm_eps=1e-3)
t5("t5")
t5("t5 gated, untied", untied=True, feed_forward_proj="gated-gelu", tie_word_embeddings=False, num_layers=2, num_decoder_layers=3)
t5("t5 gated, tied without a scale", feed_forward_proj="gated-gelu", tie_word_embeddings=False)
sys.exit(failed and f"{failed} models differ")
