#include "core/foreign/built_in.hpp"

#include "core/checkpoint/hf.hpp"
#include "core/checkpoint/native.hpp"
#include "core/foreign/dcp.hpp"
#include "core/foreign/megatron.hpp"
#include "core/foreign/torch_folder.hpp"
#include "core/foreign/xser.hpp"

namespace mh {

Registry built_in_formats() {
  Registry registry(PluginInfo{
      .id = "org.megahost.checkpoints",
      .version = "0.1.0",
      .license = "Apache-2.0",
      .summary = "built-in checkpoint formats",
      .abi_tag = "",
      .built_with = "",
      .file = {}});
  registry.add<NativeFormat>(
      "native", "a run's own: global tensors in safetensors, and a manifest"
  );
  registry.add<HuggingFaceFormat>(
      "huggingface", "a model's folder of the hub; checkpoint export writes it"
  );
  registry.add<DcpFormat>(
      "dcp", "torch.distributed.checkpoint: chunks of tensors in .distcp files"
  );
  registry.add<TorchFormat>(
      "torch_save", "a state_dict of torch.save, as pytorch_model.bin: read only"
  );
  registry.add<TorchDistFormat>(
      "torch_dist",
      "Megatron-LM's sharded checkpoints: iterations of stacked layers; checkpoint export writes it"
  );
  registry.add<MpRankFormat>(
      "mp_rank", "Megatron-LM's and NeuronX's checkpoints of a file for each rank: read only"
  );
  registry.add<XserFormat>(
      "xser",
      "NeuronX Distributed's checkpoints of a file for each rank and tensor; checkpoint export writes it"
  );
  return registry;
}

} // namespace mh
