#include "core/encoders/search_index.hpp"

#include "core/formats/npy.hpp"
#include "core/storage/file_system.hpp"
#include "megahost/error.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <span>
#include <string_view>
#include <tuple>

namespace mh {

namespace {

constexpr const char* kEmbeddings = "embeddings.npy";
constexpr const char* kBlocks = "blocks.jsonl";
constexpr uint64_t kLargest = uint64_t{1} << 40;
constexpr int64_t kQueriesAtOnce = 256;
static_assert(std::endian::native == std::endian::little, "the file has the order of its bytes");

} // namespace

std::vector<std::vector<FoundBlock>>
search(const SearchIndex& index, const at::Tensor& queries, int64_t most) {
  std::vector<std::vector<FoundBlock>> all;
  most = std::min(most, index.embeddings.size(0));
  for (int64_t first = 0; first < queries.size(0); first += kQueriesAtOnce) {
    const at::Tensor some =
        queries.narrow(0, first, std::min(kQueriesAtOnce, queries.size(0) - first));
    const auto [scores, rows] = at::matmul(some, index.embeddings.t()).topk(most);
    const auto score = scores.accessor<float, 2>();
    const auto row = rows.accessor<int64_t, 2>();
    for (int64_t query = 0; query < some.size(0); ++query) {
      auto& found = all.emplace_back();
      for (int64_t k = 0; k < most; ++k) {
        found.push_back({row[query][k], score[query][k]});
      }
    }
  }
  return all;
}

double recall_at(
    int64_t k,
    const std::vector<std::vector<FoundBlock>>& found,
    const std::vector<int64_t>& own,
    const SearchIndex& index
) {
  size_t right = 0;
  for (size_t query = 0; query < found.size(); ++query) {
    const auto& blocks = found[query];
    const auto end = blocks.begin() + std::min<int64_t>(k, std::ssize(blocks));
    right += std::any_of(
                 blocks.begin(),
                 end,
                 [&](const FoundBlock& block) {
                   return index.numbers[static_cast<size_t>(block.row)] == own[query];
                 }
             )
                 ? 1
                 : 0;
  }
  return found.empty() ? 0 : static_cast<double>(right) / static_cast<double>(found.size());
}

void write_index(const SearchIndex& index, const std::filesystem::path& folder) {
  const at::Tensor rows = index.embeddings.contiguous();
  const std::array<uint64_t, 2> shape{
      static_cast<uint64_t>(rows.size(0)), static_cast<uint64_t>(rows.size(1))};
  std::string npy = npy_header("<f4", shape);
  npy.append(reinterpret_cast<const char*>(rows.const_data_ptr<float>()), rows.nbytes());
  std::string blocks;
  for (const std::string& text : index.texts) {
    blocks += nlohmann::json{{"text", text}}.dump() + "\n";
  }
  make_directories(folder);
  replace_file(folder / kEmbeddings, npy);
  replace_file(folder / kBlocks, blocks);
}

SearchIndex read_index(const std::filesystem::path& folder) {
  const std::string file = (folder / kEmbeddings).string();
  const std::string npy = read_file(folder / kEmbeddings, kLargest);
  const NpyLayout layout = read_npy(std::as_bytes(std::span(npy)), file);
  if (layout.type != "<f4" || layout.shape.size() != 2) {
    throw Error(
        file + " is no matrix of float32",
        "name a folder that megahost embed -o has written",
        exit_code::data
    );
  }
  SearchIndex index;
  index.embeddings = at::empty(
      {static_cast<int64_t>(layout.shape[0]), static_cast<int64_t>(layout.shape[1])}, at::kFloat
  );
  if (index.embeddings.nbytes() > 0) {
    std::memcpy(
        index.embeddings.data_ptr<float>(), npy.data() + layout.begin, index.embeddings.nbytes()
    );
  }
  const std::string blocks = read_file(folder / kBlocks, kLargest);
  for (size_t begin = 0; begin < blocks.size();) {
    const size_t end = std::min(blocks.find('\n', begin), blocks.size());
    const auto json = nlohmann::json::parse(
        std::string_view(blocks).substr(begin, end - begin), nullptr, /*allow_exceptions=*/false
    );
    begin = end + 1;
    const auto text = json.is_object() ? json.find("text") : json.end();
    if (!json.is_object() || text == json.end() || !text->is_string()) {
      throw Error(
          (folder / kBlocks).string() + ":" + std::to_string(index.texts.size() + 1) +
              " is no object with a text",
          "name a folder that megahost embed -o has written",
          exit_code::data
      );
    }
    index.texts.push_back(text->get<std::string>());
  }
  if (std::ssize(index.texts) != index.embeddings.size(0)) {
    throw Error(
        folder.string() + " has " + std::to_string(index.embeddings.size(0)) + " embeddings and " +
            std::to_string(index.texts.size()) + " blocks",
        "write it again by megahost embed -o",
        exit_code::data
    );
  }
  return index;
}

} // namespace mh
