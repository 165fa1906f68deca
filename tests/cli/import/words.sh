#!/bin/bash
# Words of the script's own command line, a case, a test of a file, an array that a branch adds to.
OUTPUT=${1:-"checkpoints"}
DATA=$2
SIZE=${3:-small}
PROGRAM=pretrain_gpt.py

case "${SIZE}" in
    "small")
        LAYERS=2
        WIDTH=64
        ;;
    large | huge)
        LAYERS=24
        WIDTH=1024
        ;;
    *)
        echo "small or large"
        exit 1
        ;;
esac

if [ ! -f "$PROGRAM" ]; then
    echo "started elsewhere"
fi

DATA_ARGS=(--mock-data)
if [[ -n "${DATA}" ]]; then
    DATA_ARGS=(--data-path "$DATA")
    DATA_ARGS+=(--split 98,2,0)
fi
LOGS=()
if [ -n "${NAME_OF_THE_RUN}" ]; then
    LOGS+=(--wandb-exp-name "$NAME_OF_THE_RUN")
fi

torchrun --nproc_per_node 8 "$PROGRAM" --num-layers $LAYERS --hidden-size $WIDTH --num-attention-heads 4 --seq-length 64 \
    --micro-batch-size 2 --global-batch-size 16 --train-iters 5 --lr 1e-3 --vocab-size 100 \
    "${DATA_ARGS[@]}" "${LOGS[@]}" --save "$OUTPUT/$(basename ${DATA:-none})" --save-interval 5
