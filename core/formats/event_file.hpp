#pragma once
/// TensorBoard's event files, written by hand: a file is `event_file_start` and then events, one
/// after the other.
///
/// ```cpp
/// file << mh::event_file_start(now, /*first_step=*/101);
/// const mh::EventScalar loss{"lm loss", 2.31};
/// file << mh::scalars_event(now, 101, {&loss, 1});
/// ```

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace mh {

struct EventScalar {
  std::string tag;
  double value; ///< kept as a float
};

/// The start of a file: its version, and that a session starts with step `first_step`. A reader
/// then drops the events of earlier files at this step and later ones.
///
/// Units:   `time` in seconds since 1970
/// Source:  tensorboard/compat/proto/event.proto; the records' frame is that of TFRecord
[[nodiscard]] std::string event_file_start(double time, int64_t first_step);

[[nodiscard]] std::string
scalars_event(double time, int64_t step, std::span<const EventScalar> scalars);

/// Text for the page TEXT, read as Markdown.
[[nodiscard]] std::string
text_event(double time, int64_t step, std::string_view tag, std::string_view text);

/// One record: length, its checksum, the bytes, their checksum.
[[nodiscard]] std::string event_record(std::string_view bytes);

} // namespace mh
