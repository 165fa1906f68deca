#pragma once
/// Values of parameters that are made later, in their shards: under ZeRO-3 no rank ever
/// holds the whole model, nor makes it.
///
/// ```cpp
/// mh::DeferredValues deferred;
/// auto model = deferred.during([&] { return mh::Model(*architecture, args); }); // its values have no memory
/// deferred.make(parameter, zeros);                          // its first values, over zeros
/// ```

#include "megahost/parameter.hpp"

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>
#include <utility>

namespace mh {

/// Throws:  mh::Error that says what initial values are given by instead; `what` is written to: "the
/// parameter `scale`"
[[noreturn]] void refuse_written(const std::string& what);

class DeferredValues {
public:
  using Write = std::function<void(const at::Tensor& zeros)>;

  /// Builders that the calling thread uses in `build` put off the values of their parameters.
  template <class Build>
  decltype(auto) during(Build&& build) {
    const Scope scope(this);
    return std::forward<Build>(build)();
  }

  /// The deferred values of the calling thread; null: values are made at once.
  [[nodiscard]] static DeferredValues* current();

  /// `name` is of the leaf's first piece.
  void add(const std::string& name, Write write) { writes_[name] = std::move(write); }

  /// Gives the parameter `zeros`, a tensor of its shape, as its value, and writes the first values.
  ///
  /// Returns: whether it had none yet; else nothing has happened
  bool make(Parameter& parameter, const at::Tensor& zeros);

  /// Makes the first values, over new zeros, of all parameters that still have none.
  void make_rest(ParameterStore& store);

private:
  class Scope {
  public:
    explicit Scope(DeferredValues* own);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

  private:
    DeferredValues* former_;
  };

  std::map<std::string, Write> writes_;
};

} // namespace mh
