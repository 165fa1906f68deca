#pragma once

/// What is said when a signal ends the process: the plugin, the call and the block that its thread
/// was in (core/model/plugin_call.hpp), and whose code it was.
///
///   error: ended by signal 11 (Segmentation fault) in the architecture of plugin
///          org.example.shift, forward of block layers.3
///
/// A rank says it to whoever started the ranks, who names the rank. The process then dies by the
/// signal, as it would have.

namespace mh {

/// Installs handlers for SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT; std::terminate says the
/// exception. A plugin that calls exit is named too, and the process fails.
///
/// Thread:  the main thread
void name_crashes();

} // namespace mh
