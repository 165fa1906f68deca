#include "core/decoder/layer_period.hpp"

#include "megahost/error.hpp"
#include "megahost/nn/decoder_hugging_face.hpp"

namespace mh {

int64_t taken_period(Table& config, const std::string& key, std::string_view list, int64_t usual) {
  const Value given = config.take(key);
  if (given.is_null() || !is_absent(config, list)) {
    return usual;
  }
  const int64_t period = given.as_integer();
  if (period < 1) {
    throw Error(
        given.origin.where() + ": " + key + " is " + std::to_string(period) +
            ", but the last of each so many layers differs from the others",
        "1 or more",
        exit_code::data
    );
  }
  return period;
}

} // namespace mh
