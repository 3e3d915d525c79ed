// Autocast on the device, for torch's own lists of ops. One boxed kernel serves all ops of a list.
#pragma once

#include <ATen/autocast_mode.h>

#include <array>

#include "host_call.h"

namespace opmux::simulator {

#define NAME(OP, ...) #OP __VA_OPT__("." #__VA_ARGS__),
constexpr std::array LOWER{AT_FORALL_LOWER_PRECISION_FP(NAME)};
constexpr std::array SINGLE{AT_FORALL_FP32(NAME) "norm.Scalar", "norm.ScalarOpt_dim"};
constexpr std::array SINGLE_RESULT{AT_FORALL_FP32_SET_OPT_DTYPE(NAME)};
constexpr std::array WIDEST{AT_FORALL_PROMOTE(NAME)};
#undef NAME

template <class Change>  // is applied to each tensor among the arguments
void change_tensors(const OperatorHandle& op, Stack& stack, Change change) {
  for (auto i = stack.size() - op.schema().arguments().size(); i < stack.size(); ++i) {
    if (stack[i].isTensor()) {
      stack[i] = change(stack[i].toTensor());
    } else if (stack[i].isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& each : stack[i].toTensorList()) {
        list.push_back(change(each));
      }
      stack[i] = list;
    }
  }
}

inline void without_autocast(const OperatorHandle& op, Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard off(DispatchKey::AutocastPrivateUse1);
  op.callBoxed(stack);
}

inline void cast(const OperatorHandle& op, Stack* stack, at::ScalarType to) {
  c10::impl::ExcludeDispatchKeyGuard off(DispatchKey::AutocastPrivateUse1);
  change_tensors(op, *stack, [to](const at::Tensor& t) { return at::autocast::cached_cast(to, t, DEVICE); });
  op.callBoxed(stack);
}

inline void cast_lower(const OperatorHandle& op, Stack* stack) {
  cast(op, stack, at::autocast::get_autocast_dtype(DEVICE));
}

inline void cast_single(const OperatorHandle& op, Stack* stack) { cast(op, stack, at::kFloat); }

inline void cast_widest(const OperatorHandle& op, Stack* stack) {
  auto to = at::autocast::get_autocast_dtype(DEVICE);
  change_tensors(op, *stack, [&to](const at::Tensor& t) {
    to = at::autocast::is_eligible(t, DEVICE) && t.scalar_type() == at::kFloat ? at::kFloat : to;
    return t;
  });
  cast(op, stack, to);
}

inline void single_result(const OperatorHandle& op, Stack* stack) {
  const auto first = stack->size() - op.schema().arguments().size();
  const auto& argument = (*stack)[first];
  const auto dtype = op.schema().argumentIndexWithName("dtype");
  if (dtype && (*stack)[first + *dtype].isNone() && argument.isTensor() &&
      at::autocast::is_eligible(argument.toTensor(), DEVICE)) {
    (*stack)[first + *dtype] = at::kFloat;
  }
  without_autocast(op, stack);
}

}  // namespace opmux::simulator
