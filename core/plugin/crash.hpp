#pragma once

/// The message of a process that a signal ends: the plugin, the call and the block that its thread
/// was in (core/model/plugin_call.hpp), and the library of the code that failed.
///
///   error: ended by signal 11 (Segmentation fault) in the architecture of plugin
///          org.example.shift, forward of block layers.3
///
/// A rank says it to whoever started the ranks, who names the rank. The process then dies by the
/// signal, as it would have.

#include <string_view>

namespace mh {

/// Installs handlers for SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT; std::terminate says the
/// exception. A plugin that calls exit is named too, and the process fails.
///
/// Thread:  the main thread
void name_crashes();

/// While it lives, work is done and kept, and what runs is for show: a crash is a warning, and the
/// process ends as a success.
class ForShow {
public:
  /// `kept`: a sentence about the work, "the run is over and kept in runs/a"
  explicit ForShow(std::string_view kept);
  ~ForShow();
  ForShow(const ForShow&) = delete;
  ForShow& operator=(const ForShow&) = delete;
};

} // namespace mh
