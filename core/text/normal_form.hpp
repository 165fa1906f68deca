#pragma once
/// Unicode's normal forms.

#include <cstdint>
#include <string>
#include <string_view>

namespace mh::text {

enum class NormalForm : uint8_t { nfc, nfd, nfkc, nfkd };

/// `text`, which is valid UTF-8, in a normal form.
///
/// Source:  Unicode Standard Annex 15; The Unicode Standard 16.0, sections 3.11 and 3.12
[[nodiscard]] std::string normalized(std::string_view text, NormalForm form);

} // namespace mh::text
