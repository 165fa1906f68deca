#pragma once

#include <megahost/builder.hpp>

#include <string_view>

namespace mh::hybrid {

/// Runs `make` with names below `scope`.
template <class Make>
auto scoped(Builder& builder, std::string_view scope, const Make& make) {
  const auto names = builder.scope(scope);
  return make();
}

} // namespace mh::hybrid
