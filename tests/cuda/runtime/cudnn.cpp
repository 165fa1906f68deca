/// libcudnn.so.9 without a GPU: its version. Attention does not take it, for its graphs need a
/// device (TORCH_CUDNN_SDPA_DEPRIORITIZED=1).

extern "C" unsigned long cudnnGetVersion() {
  return 91900;
}
