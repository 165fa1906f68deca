#pragma once
/// A Hugging Face model folder: `config.json` and `model.safetensors`, or several files with an
/// index.

#include "core/formats/safetensors.hpp"
#include "core/storage/mapped_file.hpp"

#include <ATen/core/Tensor.h>

#include <nlohmann/json.hpp>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace mh {

class HfFolder {
public:
  /// Maps the files and checks every header and the index; no tensor is read yet.
  ///
  /// Throws:  mh::Error (exit code 5) if there are no safetensors files, or a file breaks its
  /// format
  explicit HfFolder(const Path& folder);

  [[nodiscard]] const Path& path() const { return folder_; }

  /// The contents of config.json. Throws:  mh::Error if it is missing or no JSON
  [[nodiscard]] nlohmann::json config() const;

  /// Names of all tensors, sorted.
  [[nodiscard]] std::vector<std::string> names() const;
  /// Its dtype and shape, or nullptr.
  [[nodiscard]] const TensorInfo* find(const std::string& name) const;
  /// A CPU tensor whose bytes are the mapped file's, read when they are first used; it may outlive
  /// the folder, and may be written to without changing the file. A copy where the file is not
  /// aligned.
  ///
  /// Throws:  mh::Error (exit code 5) if there is no such tensor
  [[nodiscard]] at::Tensor tensor(const std::string& name) const;

private:
  struct Place {
    std::shared_ptr<const MappedFile> file;
    TensorInfo info;
  };

  /// Maps a file and enters its tensors; returns their names.
  std::vector<std::string> add(const std::string& file);

  Path folder_;
  std::map<std::string, Place> places_;
};

/// Whether a folder looks like one of Hugging Face's: it has model.safetensors or its index.
[[nodiscard]] bool is_hf_folder(const Path& folder);

} // namespace mh
