#! /bin/bash
# GPT-3 6.7B on a Trainium node: a test that the script's own variables decide, a log through tee.
CORES=32
LAUNCH="--nproc_per_node $CORES"

ITERS=10000
if [[ "${EXTRACT_GRAPHS_ONLY:-}" == "1" ]]; then
    ITERS=65
fi

torchrun $LAUNCH pretrain_gpt.py \
    --tensor-model-parallel-size 8 \
    --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \
    --micro-batch-size 1 --global-batch-size 64 \
    --seq-length 2048 --max-position-embeddings 2048 \
    --train-iters $ITERS --lr-decay-iters 320000 \
    --data-path ~/gpt2/text_document --vocab-file ~/gpt2/vocab.json --merge-file ~/gpt2/merges.txt \
    --data-impl mmap --split 100,0,0 --distributed-backend xla \
    --lr 0.00015 --lr-decay-style cosine --min-lr 1.0e-5 --weight-decay 1e-2 --clip-grad 1 --lr-warmup-fraction .01 \
    --log-interval 1 --tensorboard-log-interval 1 --eval-interval $ITERS --eval-iters 1000 \
    --attention-dropout 0 --hidden-dropout 0 \
    --no-masked-softmax-fusion --no-bias-gelu-fusion --no-bias-dropout-fusion \
    --no-async-tensor-model-parallel-allreduce --no-contiguous-buffers-in-local-ddp \
    --save-xser checkpoints --save-interval 2000 --use-cpu-initialization --tensorboard-dir ./tensorboard \
    |& tee run.log
exit $?
