// One fuzz target for every parser of files that come from other programs; the variable FUZZ_PARSER
// names the parser. A file that breaks a rule must give an mh::Error; any other exception, a fault,
// ten seconds or 2 GB are a finding.

#include "core/formats/dcp_metadata.hpp"
#include "core/formats/flat_tokens.hpp"
#include "core/formats/hf_index.hpp"
#include "core/formats/indexed.hpp"
#include "core/formats/json.hpp"
#include "core/formats/manifest.hpp"
#include "core/formats/mds.hpp"
#include "core/formats/npy.hpp"
#include "core/formats/pickle.hpp"
#include "core/formats/safetensors.hpp"
#include "core/formats/torch_file.hpp"
#include "core/language/read.hpp"
#include "core/storage/documents.hpp"
#include "megahost/error.hpp"
#include "plugins/data/hf/hf.hpp"
#include "plugins/data/sentencepiece/sentencepiece.hpp"
#include "plugins/data/tiktoken/tiktoken.hpp"
#include "plugins/data/wordpiece/wordpiece.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <string_view>

mh::Tokenizer::~Tokenizer() = default; // the core's is in a room with LibTorch

namespace {

using Bytes = std::span<const std::byte>;

std::string_view text_of(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// A file in memory with these bytes, for what opens files by itself.
std::string in_file(Bytes bytes, const char* name) {
  static const std::string folder = "/dev/shm/megahost-fuzz-" + std::to_string(::getpid());
  std::filesystem::create_directories(folder);
  const std::string path = folder + "/" + name;
  std::FILE* file = std::fopen(path.c_str(), "wb");
  std::fwrite(bytes.data(), 1, bytes.size(), file);
  std::fclose(file);
  return path;
}

/// A vocabulary that is accepted must also serve: texts become ids and texts again.
void use(const mh::Tokenizer& tokenizer) {
  for (const char* text :
       {"",
        "It's 12,345 caf\xc3\xa9s \xe2\x96\x81 <s>\n\n\xff\xf0\x9f\x98\x80",
        "aaaaaaaaaa bbbb"}) {
    const auto ids = tokenizer.encode(text);
    for (const int32_t id : ids) {
      if (id < 0 || id >= tokenizer.vocab()) {
        std::abort();
      }
    }
    (void)tokenizer.decode(ids);
  }
}

template <class T>
void read_vocabulary(Bytes bytes, const char* name) {
  typename T::Config config;
  config.path = in_file(bytes, name);
  if constexpr (requires { config.pattern; }) {
    config.pattern = "gpt2";
  }
  use(T(config, mh::Tokenizer::Args{}));
}

void read_index(Bytes bytes) {
  // The size of the other file: what the index asks for, where that is little.
  for (const uint64_t bin : {uint64_t{0}, uint64_t{22}, uint64_t{44}}) {
    try {
      (void)mh::read_index(bytes, bin, "corpus.idx");
    } catch (const mh::Error&) {
    }
  }
}

mh::ReadAt reader_of(Bytes bytes) {
  return [bytes](uint64_t offset, std::span<std::byte> into) {
    if (offset > bytes.size() || into.size() > bytes.size() - offset) {
      std::abort(); // it was told the size
    }
    std::memcpy(into.data(), bytes.data() + offset, into.size());
  };
}

void read_tensors(Bytes bytes) {
  const mh::Safetensors file =
      mh::read_safetensors(reader_of(bytes), bytes.size(), "model.safetensors");
  for (const mh::TensorInfo& tensor : file.tensors) {
    if (tensor.offset + tensor.bytes > bytes.size()) {
      std::abort();
    }
  }
}

void read_torch_file(Bytes bytes) {
  const mh::TorchFile file(reader_of(bytes), bytes.size(), "model.pt");
  for (const mh::PickleValue* value : file.root().items) {
    if (!mh::TorchFile::is_tensor(*value)) {
      continue;
    }
    const mh::TorchTensor tensor = file.tensor(*value);
    uint64_t last = tensor.offset; // where its last element is
    for (size_t d = 0; d < tensor.shape.size(); ++d) {
      if (tensor.shape[d] == 0) {
        return;
      }
      last += static_cast<uint64_t>(tensor.shape[d] - 1) * static_cast<uint64_t>(tensor.strides[d]);
    }
    if (last >= bytes.size()) {
      std::abort();
    }
  }
}

void read_dcp(Bytes bytes) {
  const mh::DcpMetadata metadata = mh::read_dcp_metadata(std::string(text_of(bytes)), ".metadata");
  const std::string text = mh::dcp_metadata_text(metadata); // which is read again
  if (mh::dcp_metadata_text(mh::read_dcp_metadata(text, ".metadata")) != text) {
    std::abort();
  }
}

void read_lines(Bytes bytes, mh::DocumentMembers members) {
  const mh::DocumentFile file{.path = "corpus.jsonl", .json_lines = true};
  const mh::DocumentBlock block{.file = &file, .text = std::string(text_of(bytes))};
  const auto take = [](const mh::DocumentTexts&) {};
  const auto accept = [](const std::string&) {};
  mh::parse_documents(block, {"text"}, take, {.skip = accept, .replace = accept}, members);
  mh::parse_documents(block, {"text"}, take, {}, members);
}

void read_recipe(Bytes bytes, const char* name) {
  mh::ReadOptions options;
  options.lua = {.seconds = 1, .bytes = 16 << 20};
  (void)mh::evaluate(in_file(bytes, name), options);
}

using Parser = void (*)(Bytes);

const std::map<std::string_view, Parser> kParsers{
    {"dcp_metadata", read_dcp},
    {"flat_tokens", [](Bytes b) { (void)mh::read_flat_tokens(b, "uint16", "ids.bin"); }},
    {"hf_index",
     [](Bytes b) { (void)mh::read_hf_index(text_of(b), "model.safetensors.index.json"); }},
    {"indexed", read_index},
    {"json", [](Bytes b) { (void)mh::parse_json(text_of(b), "a.json"); }},
    {"lines", [](Bytes b) { read_lines(b, mh::DocumentMembers::texts); }},
    {"chats", [](Bytes b) { read_lines(b, mh::DocumentMembers::messages); }},
    {"lua", [](Bytes b) { read_recipe(b, "recipe.lua"); }},
    {"manifest", [](Bytes b) { (void)mh::read_manifest(text_of(b), "manifest.json"); }},
    {"mds", [](Bytes b) { (void)mh::mds_json_lines(b, "shard.mds"); }},
    {"npy", [](Bytes b) { (void)mh::read_npy(b, "ids.npy"); }},
    {"pickle", [](Bytes b) { const mh::Pickle read(std::string(text_of(b)), "data.pkl"); }},
    {"safetensors", read_tensors},
    {"sentencepiece",
     [](Bytes b) {
       read_vocabulary<mh::sentencepiece::SentencePieceTokenizer>(b, "tokenizer.model");
     }},
    {"tekken", [](Bytes b) { read_vocabulary<mh::tiktoken::TiktokenTokenizer>(b, "tekken.json"); }},
    {"tiktoken",
     [](Bytes b) { read_vocabulary<mh::tiktoken::TiktokenTokenizer>(b, "ranks.tiktoken"); }},
    {"tokenizer", [](Bytes b) { read_vocabulary<mh::hf::HfTokenizer>(b, "tokenizer.json"); }},
    {"torch_file", read_torch_file},
    {"toml", [](Bytes b) { read_recipe(b, "recipe.toml"); }},
    {"wordpiece",
     [](Bytes b) { read_vocabulary<mh::wordpiece::WordPieceTokenizer>(b, "vocab.txt"); }},
};

Parser chosen() {
  const char* name = std::getenv("FUZZ_PARSER");
  const auto found = kParsers.find(name == nullptr ? "" : name);
  if (found == kParsers.end()) {
    std::fputs("FUZZ_PARSER names no parser; there are\n", stderr);
    for (const auto& [parser, run] : kParsers) {
      std::fprintf(stderr, "%s\n", std::string(parser).c_str());
    }
    std::exit(2);
  }
  return found->second;
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Parser parser = chosen();
  try {
    parser({reinterpret_cast<const std::byte*>(data), size});
  } catch (const mh::Error&) {
  }
  return 0;
}
