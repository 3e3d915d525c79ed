// A call that runs the CPU's kernel on the device's memory: each tensor is passed as a CPU tensor over the same bytes,
// so views stay views, writes need no copy back, and only results are converted.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "device.h"

namespace opmux::simulator {

using c10::IValue;
using c10::OperatorHandle;
using torch::jit::Stack;

// The arguments of one call as CPU tensors over the same memory, and its results as tensors of the device.
class HostCall {
 public:
  explicit HostCall(DeviceIndex index) : index_(index) {}

  at::Tensor host(const at::Tensor& given) {
    if (!given.defined()) {
      return given;
    }
    if (given.device().type() != DEVICE) {
      tensors_.emplace_back(given, given);
      return given;
    }
    TORCH_CHECK_NOT_IMPLEMENTED(
        given.layout() == at::kStrided && !given.is_quantized(), "the simulated device has strided tensors only");
    auto made = over(host(given.storage()), DispatchKey::CPU, given);
    tensors_.emplace_back(given, made);
    return made;
  }

  c10::Storage host(const c10::Storage& given) {
    if (given.device_type() != DEVICE) {
      return given;
    }
    for (const auto& [ours, its] : storages_) {
      if (ours.is_alias_of(given)) {
        return its;
      }
    }
    auto* keep = new c10::Storage(given);
    const auto let_go = [](void* kept) { delete static_cast<c10::Storage*>(kept); };
    c10::DataPtr bytes(given.mutable_data(), keep, let_go, at::kCPU);
    c10::Storage made = c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), given.nbytes(), std::move(bytes), c10::GetAllocator(at::kCPU), true);
    storages_.emplace_back(given, made);
    return made;
  }

  IValue host(const IValue& given) {
    if (given.isTensor()) {
      return host(given.toTensor());
    }
    if (given.isTensorList()) {
      c10::List<at::Tensor> made;
      for (const at::Tensor& each : given.toTensorList()) {
        made.push_back(host(each));
      }
      return made;
    }
    if (given.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> made;
      for (const std::optional<at::Tensor>& each : given.toOptionalTensorList()) {
        made.push_back(each.has_value() ? std::optional(host(*each)) : std::nullopt);
      }
      return made;
    }
    if (given.isStorage()) {
      return host(given.toStorage());
    }
    if (given.isDevice() && given.toDevice().type() == DEVICE) {
      return c10::Device(at::kCPU);
    }
    if (given.isGenerator()) {
      return host_of(given.toGenerator());
    }
    return given;
  }

  // Apply to the device's tensors what the kernel changed besides their bytes: sizes, storages.
  void finish() {
    for (auto& [ours, its] : storages_) {
      if (ours.data() != its.data() || ours.nbytes() != its.nbytes()) {
        replace_memory(*ours.unsafeGetStorageImpl(), its.data(), its.nbytes(), its.nbytes());
      }
    }
    for (auto& [ours, its] : tensors_) {
      if (ours.is_same(its)) {
        continue;
      }
      auto* impl = ours.unsafeGetTensorImpl();
      auto its_storage = device(its.storage());
      if (!its_storage.is_alias_of(ours.storage())) {
        impl->set_storage_keep_dtype(std::move(its_storage));
      }
      if (ours.sizes() != its.sizes() || ours.strides() != its.strides() ||
          ours.storage_offset() != its.storage_offset()) {
        impl->set_sizes_and_strides(its.sizes(), its.strides(), its.storage_offset());
      }
      ours._set_conj(its.is_conj());
      ours._set_neg(its.is_neg());
    }
  }

  IValue device(const IValue& result) {
    if (result.isTensor()) {
      return device(result.toTensor());
    }
    if (result.isTensorList()) {
      c10::List<at::Tensor> made;
      for (const at::Tensor& each : result.toTensorList()) {
        made.push_back(device(each));
      }
      return made;
    }
    return result;
  }

 private:
  at::Tensor device(const at::Tensor& result) {
    if (!result.defined() || !result.is_cpu()) {
      return result;
    }
    for (const auto& [ours, its] : tensors_) {
      if (its.is_same(result)) {
        return ours;
      }
    }
    TORCH_CHECK_NOT_IMPLEMENTED(
        result.layout() == at::kStrided && !result.is_quantized(), "the simulated device has strided tensors only");
    return over(device(result.storage()), DispatchKey::PrivateUse1, result);
  }

  c10::Storage device(const c10::Storage& result) {
    for (const auto& [ours, its] : storages_) {
      if (its.is_alias_of(result)) {
        return ours;
      }
    }
    c10::DeviceGuard there(c10::Device(DEVICE, index_));
    const bool real = result.data() != nullptr;  // a zero tensor has no memory
    auto made = new_storage(real ? result.nbytes() : 0);
    if (real) {
      std::memcpy(made.mutable_data(), result.data(), result.nbytes());
    }
    storages_.emplace_back(made, result);  // several results may share it
    return made;
  }

  // A tensor on this storage with the sizes, strides and flags of another.
  static at::Tensor over(c10::Storage storage, DispatchKey key, const at::Tensor& like) {
    DispatchKeySet keys(key);
    if (like._is_zerotensor()) {
      keys = keys.add(DispatchKey::ZeroTensor);
    }
    auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, like.dtype());
    made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
    made._set_conj(like.is_conj());
    made._set_neg(like.is_neg());
    return made;
  }

  DeviceIndex index_;  // where results go
  // Pairs of a tensor or a storage of the device and that of the host.
  std::vector<std::pair<at::Tensor, at::Tensor>> tensors_;
  std::vector<std::pair<c10::Storage, c10::Storage>> storages_;
};

// The device of a call: that of its tensors, which must agree; else the one that it names.
class Place {
 public:
  Place(const OperatorHandle& op, c10::ArrayRef<IValue> arguments) : name_(op.schema().operator_name()) {
    for (const auto& argument : arguments) {
      see(argument);
    }
    if (found_ && mixed_ && !takes_others()) {
      TORCH_CHECK(
          false, "Expected all tensors to be on the same device, but found at least two devices, ", *found_, " and ",
          *mixed_, "! (in ", name_, ")");
    }
  }

  // Whether only a generator dispatched the call to this device.
  bool elsewhere() const { return !found_ && others_ && generator_; }
  DeviceIndex index() const { return found_ ? found_->index() : named_ ? or_current(named_->index()) : current; }

 private:
  void see(const IValue& argument) {
    if (argument.isTensor()) {
      see(argument.toTensor());
    } else if (argument.isTensorList()) {
      for (const at::Tensor& each : argument.toTensorList()) {
        see(each);
      }
    } else if (argument.isOptionalTensorList()) {
      for (const std::optional<at::Tensor>& each : argument.toOptionalTensorList()) {
        see(each.value_or(at::Tensor()));
      }
    } else if (argument.isDevice() && argument.toDevice().type() == DEVICE) {
      named_ = argument.toDevice();
    } else if (argument.isGenerator()) {
      generator_ = true;
    }
  }
  void see(const at::Tensor& tensor) {
    others_ = others_ || (tensor.defined() && tensor.device().type() != DEVICE);
    if (!tensor.defined() || (tensor.is_cpu() && tensor.dim() == 0)) {
      return;  // a number on the CPU may be used on any device
    }
    if (tensor.device().type() == DEVICE && !found_) {
      found_ = tensor.device();
    }
    if (!found_ || tensor.device() != *found_) {
      mixed_ = tensor.device();
    }
  }
  // Ops that also take tensors of several devices on real devices. Ops outside ATen are not checked.
  bool takes_others() const {
    constexpr std::array starts{"aten::index", "aten::_index_put", "aten::_unsafe_index", "aten::_unsafe_masked_index",
                                "aten::_foreach_", "aten::_fused_", "aten::_amp_", "aten::set_"};
    const auto starts_with = [&](const char* start) { return name_.name.rfind(start, 0) == 0; };
    return !starts_with("aten::") || std::any_of(starts.begin(), starts.end(), starts_with);
  }

  c10::OperatorName name_;
  std::optional<c10::Device> found_, mixed_, named_;
  bool others_ = false, generator_ = false;
};

// Pass the device's generator to a call that names none; false if the op takes none.
inline bool give_generator(
    const c10::FunctionSchema& schema, c10::ArrayRef<IValue> given, Stack& stack, DeviceIndex index) {
  bool takes = false;
  const auto first = stack.size() - given.size();
  for (size_t i = 0; i < given.size(); ++i) {
    const auto& type = *schema.arguments()[i].type();
    const bool optional = type.kind() == c10::TypeKind::OptionalType &&
        type.castRaw<c10::OptionalType>()->getElementType()->kind() == c10::TypeKind::GeneratorType;
    takes = takes || optional || type.kind() == c10::TypeKind::GeneratorType;
    if (optional && given[i].isNone()) {
      stack[first + i] = host_of(default_generator(index));
    }
  }
  return takes;
}

inline void on_host(const OperatorHandle& op, Stack* stack) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      op.hasComputedKernelForDispatchKey(DispatchKey::CPU), "'", op.operator_name(), "' has no kernel for ",
      c10::Device(DEVICE).str(), ", and none for the CPU that could stand in");
  const auto& schema = op.schema();
  const auto view = torch::jit::last(*stack, schema.arguments().size());
  const std::vector<IValue> given(view.begin(), view.end());
  const Place place(op, given);
  TORCH_CHECK(
      !place.elsewhere(), "Expected a 'cpu' device type for generator but found '", c10::Device(DEVICE).str(), "'");
  const auto index = place.index();
  HostCall call(index);
  const auto first = stack->size() - given.size();
  for (size_t i = 0; i < given.size(); ++i) {
    (*stack)[first + i] = call.host(given[i]);
  }
  std::optional<Lent> lent;
  if (!give_generator(schema, given, *stack, index) && op.hasTag(at::Tag::nondeterministic_seeded)) {
    lent.emplace(index);
  }
  op.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), stack);
  lent.reset();
  call.finish();
  for (auto i = stack->size() - schema.returns().size(); i < stack->size(); ++i) {
    (*stack)[i] = call.device((*stack)[i]);
  }
}

}  // namespace opmux::simulator
