#pragma once
/// The processes of a run, joined: a store at rank 0's machine, and a transport for every group.
///
///   const mh::Processes processes(found, std::chrono::minutes(10));
///   const mh::Mesh mesh(shape, processes.world().rank, processes.make_backend(), order);

#include "core/mesh/agree.hpp"
#include "core/mesh/collective_log.hpp"
#include "core/mesh/hang_watch.hpp"
#include "core/mesh/launchers.hpp"
#include "core/mesh/meeting.hpp"
#include "megahost/mesh.hpp"

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace c10d {
class Store;
}

namespace mh {

class Device;

class Processes {
public:
  /// Meets the others.
  ///
  /// The store listens on the master address only. Its keys carry the number of the attempt: an
  /// agent's store outlives restarts, and keeps the keys of the attempt that failed.
  /// Throws:  mh::Error (exit code 4) if they do not all come within `timeout`
  Processes(const Found& found, std::chrono::milliseconds timeout);
  /// Waits until all have come here: rank 0's store must outlive the others.
  ~Processes();
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  [[nodiscard]] const World& world() const { return found_.world; }

  /// Makes the transports of a mesh's groups: for the host's tensors memory that the members
  /// share, or Gloo where they are on several machines; and what the device brings for its own.
  /// Both outlive the result.
  [[nodiscard]] MakeBackend make_backend(const Device* device = nullptr) const;

  /// Says which rank the others wait for when nothing has moved for `after` seconds, while the
  /// result lives; null for one rank, or forever (0).
  ///
  /// `say`: is called by another thread
  [[nodiscard]] std::unique_ptr<HangWatch>
  watch(const std::shared_ptr<CollectiveLog>& log, double after, const HangWatch::Say& say) const;

  /// Lets all ranks meet in another thread than the one that trains.
  [[nodiscard]] std::unique_ptr<Meeting> meeting(const std::string& name) const;

  /// A text by which ranks must agree, with what it is: "recipe".
  struct Part {
    std::string name, text;
  };

  /// Ranks that were started with another recipe, build or plugins would wait for one another
  /// forever, or learn nonsense. Before any group exists: by the store. The first part has another
  /// name in each call.
  ///
  /// Throws:  mh::Error (exit code 4) on every rank, naming the rank and the first line that
  /// differs
  void require_same(const std::vector<Part>& parts) const;

  /// The error with what all ranks were at, as rank 0 finds out; itself where it cannot. Ranks that
  /// do not answer are waited for a second or two.
  [[nodiscard]] Error explained(const CollectiveError& error) const;

private:
  Found found_;
  std::chrono::milliseconds timeout_;
  c10::intrusive_ptr<c10d::Store> store_;
};

} // namespace mh
