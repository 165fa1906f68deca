#!/bin/bash
# Options of its own, which only bash follows.
LAYERS=2
while [[ $# -gt 0 ]]; do
    case $1 in
        --layers) LAYERS="$2"; shift 2 ;;
        *) echo "unknown option $1"; exit 1 ;;
    esac
done
WIDTH=$(seq -s + 1 3 | tr -d +)
srun bash -c "torchrun --nproc_per_node 2 pretrain_gpt.py --num-layers $LAYERS --hidden-size $WIDTH --num-attention-heads 3 \
  --seq-length 64 --micro-batch-size 2 --train-iters 5 --lr 1e-3 --vocab-size 100 --mock-data"
