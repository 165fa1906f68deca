#pragma once
/// Saves that are written next to the training: a step pays for a copy in host memory and goes on,
/// another thread writes the copy, with checksums and commit. At most one is in flight.
///
/// ```cpp
/// mh::BackgroundSaves saves(write, ranks, meeting.ranks());
/// saves.begin({.step = 10, .state = state.dump(), .slices = slices});
/// // steps change the slices
/// if (const auto saved = saves.finished()) { }  // step 10, or why it is not there
/// ```

#include "megahost/checkpoint_format.hpp"
#include "megahost/export.hpp"

#include <cstdint>
#include <functional>
#include <future>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace mh {

class MH_API BackgroundSaves {
public:
  /// Writes a checkpoint, whole or not at all; runs in the other thread.
  using Write = std::function<void(const CheckpointContents& contents, const Ranks& ranks)>;
  /// Adds slices that others have copied, which are written, too; runs in `begin` on all ranks.
  using Exchange = std::function<void(std::vector<Slice>& ret_copies)>;

  struct Outcome {
    int64_t step = 0;
    double copy_seconds = 0;             ///< seconds that `begin` took
    double write_seconds = 0;            ///< in the background
    std::vector<std::string> warnings{}; ///< failures after the checkpoint was whole
    std::optional<Error> error{};        ///< why there is none; the same on every rank
  };

  /// `ranks`:    those that train, for `plan` and `begin`
  /// `meeting`:  the same ranks, for the other thread; it must outlive the object
  BackgroundSaves(Write write, Ranks ranks, Ranks meeting, Exchange exchange = {});
  /// Waits for the save that is in flight.
  ~BackgroundSaves();
  BackgroundSaves(const BackgroundSaves&) = delete;
  BackgroundSaves& operator=(const BackgroundSaves&) = delete;

  /// Decides which of the slices this rank copies and writes; every save has the same ones.
  ///
  /// Ranks:   all
  void plan(std::span<const Slice> slices) { plan(slices, ranks_); }

  /// A slice that several of `sharing` hold is copied by one of them.
  void plan(std::span<const Slice> slices, const Ranks& sharing);

  /// The slices that this rank copies.
  [[nodiscard]] std::vector<Slice> planned(std::span<const Slice> slices) const;

  /// Bytes of this rank's copy, held from the first save on: of the slices that several ranks hold,
  /// one has it.
  [[nodiscard]] int64_t bytes() const { return bytes_; }

  /// Copies the planned slices and begins to write them. No save is in flight: `wait` before.
  ///
  /// Throws:  mh::Error, the same on every rank, if one has no memory for its copy
  /// Ranks:   all
  void begin(const CheckpointContents& contents);

  [[nodiscard]] bool busy() const;

  /// The outcome of the last save, once: if it is over, or after waiting until it is.
  [[nodiscard]] std::optional<Outcome> finished();
  [[nodiscard]] std::optional<Outcome> wait();

private:
  Write write_;
  Ranks ranks_, meeting_;
  Exchange exchange_;
  std::vector<size_t> mine_;   // which slices this rank copies
  std::vector<Slice> copies_;  // copies of those, reused from save to save
  std::vector<Slice> written_; // and what others have copied
  int64_t bytes_ = 0;
  std::future<Outcome> running_; // the last member: its thread uses the others
};

} // namespace mh
