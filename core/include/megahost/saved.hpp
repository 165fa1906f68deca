#pragma once
/// The values an autograd Function saves for its backward pass in addition to tensors: one struct.
///
/// ```cpp
/// struct Scale : torch::autograd::Function<Scale> {
///   struct Saved {
///     double factor;
///   };
///
///   static at::Tensor
///   forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x, double factor) {
///     mh::save(ctx, Saved{factor});
///     return x.mul(factor);
///   }
///
///   static torch::autograd::variable_list backward(
///       torch::autograd::AutogradContext* ctx, const torch::autograd::variable_list& gradients
///   ) {
///     return {gradients[0].mul(mh::get_saved<Saved>(ctx).factor), at::Tensor()};
///   }
/// };
/// ```
///
/// The struct lives as long as the node of the graph: backward may run twice, and whoever keeps the
/// loss keeps it. So no tensor belongs in it; those go through `ctx->save_for_backward`, which
/// gives them back after the backward pass. Objects that it points to must outlive the backward
/// pass.

#include "megahost/error.hpp"

#include <torch/csrc/autograd/custom_function.h>

#include <string>
#include <typeinfo>
#include <utility>

namespace mh {

namespace detail {

constexpr const char* kSavedKey = "saved"; // key of the one entry in a node's data

struct SavedBase : torch::CustomClassHolder {
  explicit SavedBase(const std::type_info& of)
      : type(of) {}

  const std::type_info& type;
};

template <class T>
struct SavedValue final : SavedBase {
  explicit SavedValue(T of)
      : SavedBase(typeid(T))
      , value(std::move(of)) {}

  T value;
};

} // namespace detail

/// Keeps `value` for the Function's backward pass; once in a forward.
template <class T>
void save(torch::autograd::AutogradContext* ctx, T value) {
  c10::intrusive_ptr<torch::CustomClassHolder> kept =
      c10::make_intrusive<detail::SavedValue<T>>(std::move(value));
  const bool first =
      ctx->saved_data.emplace(detail::kSavedKey, c10::IValue::make_capsule(std::move(kept))).second;
  MH_ASSERT(first, "a Function saves one struct");
}

/// The struct that the Function's forward saved; lives as long as `ctx`.
///
/// Throws:  mh::InternalError if it saved nothing, or something of another type
template <class T>
[[nodiscard]] const T& get_saved(const torch::autograd::AutogradContext* ctx) {
  const auto found = ctx->saved_data.find(detail::kSavedKey);
  MH_ASSERT(found != ctx->saved_data.end(), "the Function saved nothing");
  const auto kept = found->second.toCapsule(); // the node holds it, too
  const auto& base = static_cast<const detail::SavedBase&>(*kept);
  MH_ASSERT(
      base.type == typeid(T),
      std::string("the Function saved a ") + base.type.name() + ", not a " + typeid(T).name()
  );
  return static_cast<const detail::SavedValue<T>&>(base).value;
}

} // namespace mh
