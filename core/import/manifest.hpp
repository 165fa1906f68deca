#pragma once
/// The commands of a Kubernetes manifest as a shell script.

#include <string>

namespace mh {

/// Whether a file is a manifest by its name: "pytorchjob.yaml", "pytorchjob.yaml-template".
[[nodiscard]] bool is_manifest(const std::string& file);

/// The script that does what the containers of a manifest do: assignments of their `env`, and a line
/// for each `command` with its `args`. Variables stand as they do in a script: `$NAME` and
/// `${NAME}`, which envsubst replaces, and `$(NAME)`, which Kubernetes does.
///
/// Block and flow lists of plain, quoted and block scalars are read; nothing else of YAML.
[[nodiscard]] std::string script_of_manifest(const std::string& text);

} // namespace mh
