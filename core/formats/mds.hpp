#pragma once
/// Shards of MosaicML's streaming datasets (MDS). No LibTorch.
///
/// u32 samples, u32[samples + 1] places where each begins and the last ends, JSON that names the
/// columns; a sample is a u32 size for each column of no fixed size, then all columns' bytes.
///
/// Source:  mosaicml-streaming, streaming/base/format/mds/writer.py

#include <cstddef>
#include <span>
#include <string>

namespace mh {

/// The samples as JSON lines, an object of the columns that hold text ("str"), so that line N is
/// sample N of the shard, from 1 on.
///
/// Throws:  mh::Error (exit code 5) "FILE: ..." for a shard that breaks the format, or without text
[[nodiscard]] std::string mds_json_lines(std::span<const std::byte> shard, const std::string& file);

} // namespace mh
