#pragma once

/// Streams and events whose work is done at once, unless a collective that never ends is on them:
/// NCCL's stand-in sticks a stream, and what waits for the stream sticks with it until the
/// communicator is aborted.

namespace empty {

/// The event stands behind what the stream holds now.
void record(void* event, void* stream);

/// The stream's later work waits for the event.
void wait_for(void* stream, void* event);

/// Whether all work before is done.
[[nodiscard]] bool done(void* stream_or_event);

/// Returns when it is.
void await(void* stream_or_event);

/// Returns when all work of the process is done.
void await_all();

} // namespace empty

extern "C" {

/// Work that does not end by itself.
void empty_stick(void* stream);

/// It is given up.
void empty_release();
}
