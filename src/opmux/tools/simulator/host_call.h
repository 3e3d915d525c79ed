// A call that runs the CPU's kernel on the device's memory. Each tensor is passed as a CPU tensor over the same bytes.
// So views stay views, writes need no copy back, and only results are converted.
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

  at::Tensor host(const at::Tensor& tensor) {
    if (!tensor.defined()) {
      return tensor;
    }
    if (tensor.device().type() != DEVICE) {
      tensors_.emplace_back(tensor, tensor);
      return tensor;
    }
    TORCH_CHECK_NOT_IMPLEMENTED(
        tensor.layout() == at::kStrided && !tensor.is_quantized(), "the simulated device has strided tensors only");
    auto on_host = over(host(tensor.storage()), DispatchKey::CPU, tensor);
    tensors_.emplace_back(tensor, on_host);
    return on_host;
  }

  c10::Storage host(const c10::Storage& storage) {
    if (storage.device_type() != DEVICE) {
      return storage;
    }
    for (const auto& [on_device, known] : storages_) {
      if (on_device.is_alias_of(storage)) {
        return known;
      }
    }
    auto* owner = new c10::Storage(storage);
    const auto release = [](void* pointer) { delete static_cast<c10::Storage*>(pointer); };
    c10::DataPtr bytes(storage.mutable_data(), owner, release, at::kCPU);
    c10::Storage on_host = c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), storage.nbytes(), std::move(bytes), c10::GetAllocator(at::kCPU), true);
    storages_.emplace_back(storage, on_host);
    return on_host;
  }

  IValue host(const IValue& value) {
    if (value.isTensor()) {
      return host(value.toTensor());
    }
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& each : value.toTensorList()) {
        list.push_back(host(each));
      }
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& each : value.toOptionalTensorList()) {
        list.push_back(each.has_value() ? std::optional(host(*each)) : std::nullopt);
      }
      return list;
    }
    if (value.isStorage()) {
      return host(value.toStorage());
    }
    if (value.isDevice() && value.toDevice().type() == DEVICE) {
      return c10::Device(at::kCPU);
    }
    if (value.isGenerator()) {
      return host_of(value.toGenerator());
    }
    return value;
  }

  // Apply to the device's tensors what the kernel changed besides their bytes: sizes, storages.
  void finish() {
    for (auto& [on_device, on_host] : storages_) {
      if (on_device.data() != on_host.data() || on_device.nbytes() != on_host.nbytes()) {
        replace_memory(*on_device.unsafeGetStorageImpl(), on_host.data(), on_host.nbytes(), on_host.nbytes());
      }
    }
    for (auto& [on_device, on_host] : tensors_) {
      if (on_device.is_same(on_host)) {
        continue;
      }
      auto* impl = on_device.unsafeGetTensorImpl();
      auto its_storage = device(on_host.storage());
      if (!its_storage.is_alias_of(on_device.storage())) {
        impl->set_storage_keep_dtype(std::move(its_storage));
      }
      if (on_device.sizes() != on_host.sizes() || on_device.strides() != on_host.strides() ||
          on_device.storage_offset() != on_host.storage_offset()) {
        impl->set_sizes_and_strides(on_host.sizes(), on_host.strides(), on_host.storage_offset());
      }
      on_device._set_conj(on_host.is_conj());
      on_device._set_neg(on_host.is_neg());
    }
  }

  IValue device(const IValue& result) {
    if (result.isTensor()) {
      return device(result.toTensor());
    }
    if (result.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& each : result.toTensorList()) {
        list.push_back(device(each));
      }
      return list;
    }
    return result;
  }

 private:
  at::Tensor device(const at::Tensor& result) {
    if (!result.defined() || !result.is_cpu()) {
      return result;
    }
    for (const auto& [on_device, on_host] : tensors_) {
      if (on_host.is_same(result)) {
        return on_device;
      }
    }
    TORCH_CHECK_NOT_IMPLEMENTED(
        result.layout() == at::kStrided && !result.is_quantized(), "the simulated device has strided tensors only");
    return over(device(result.storage()), DispatchKey::PrivateUse1, result);
  }

  c10::Storage device(const c10::Storage& result) {
    for (const auto& [on_device, on_host] : storages_) {
      if (on_host.is_alias_of(result)) {
        return on_device;
      }
    }
    c10::DeviceGuard guard(c10::Device(DEVICE, index_));
    const bool real = result.data() != nullptr;  // a zero tensor has no memory
    auto storage = new_storage(real ? result.nbytes() : 0);
    if (real) {
      std::memcpy(storage.mutable_data(), result.data(), result.nbytes());
    }
    storages_.emplace_back(storage, result);  // several results may share it
    return storage;
  }

  // A tensor on this storage with the sizes, strides and flags of another.
  static at::Tensor over(c10::Storage storage, DispatchKey key, const at::Tensor& like) {
    DispatchKeySet keys(key);
    if (like._is_zerotensor()) {
      keys = keys.add(DispatchKey::ZeroTensor);
    }
    auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, like.dtype());
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
    tensor._set_conj(like.is_conj());
    tensor._set_neg(like.is_neg());
    return tensor;
  }

  DeviceIndex index_;  // where results go
  // Pairs: a tensor or storage of the device, and its counterpart on the host.
  std::vector<std::pair<at::Tensor, at::Tensor>> tensors_;
  std::vector<std::pair<c10::Storage, c10::Storage>> storages_;
};

// The device of a call: the device of its tensors, which must agree, or else the device that the call names.
class CallDevice {
 public:
  CallDevice(const OperatorHandle& op, c10::ArrayRef<IValue> arguments) : name_(op.schema().operator_name()) {
    for (const auto& argument : arguments) {
      examine(argument);
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
  void examine(const IValue& argument) {
    if (argument.isTensor()) {
      examine(argument.toTensor());
    } else if (argument.isTensorList()) {
      for (const at::Tensor& each : argument.toTensorList()) {
        examine(each);
      }
    } else if (argument.isOptionalTensorList()) {
      for (const std::optional<at::Tensor>& each : argument.toOptionalTensorList()) {
        examine(each.value_or(at::Tensor()));
      }
    } else if (argument.isDevice() && argument.toDevice().type() == DEVICE) {
      named_ = argument.toDevice();
    } else if (argument.isGenerator()) {
      generator_ = true;
    }
  }
  void examine(const at::Tensor& tensor) {
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

// Pass the device's generator to a call that names no generator. Returns whether the op takes a generator.
inline bool give_generator(
    const c10::FunctionSchema& schema, c10::ArrayRef<IValue> arguments, Stack& stack, DeviceIndex index) {
  bool takes = false;
  const auto first = stack.size() - arguments.size();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto& type = *schema.arguments()[i].type();
    const bool optional = type.kind() == c10::TypeKind::OptionalType &&
        type.castRaw<c10::OptionalType>()->getElementType()->kind() == c10::TypeKind::GeneratorType;
    takes = takes || optional || type.kind() == c10::TypeKind::GeneratorType;
    if (optional && arguments[i].isNone()) {
      stack[first + i] = host_of(default_generator(index));
    }
  }
  return takes;
}

inline void on_host(const OperatorHandle& op, Stack* stack) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      op.hasComputedKernelForDispatchKey(DispatchKey::CPU), "'", op.operator_name(), "' has no kernel for ",
      c10::Device(DEVICE).str(), ", and the CPU has none either");
  const auto& schema = op.schema();
  const auto view = torch::jit::last(*stack, schema.arguments().size());
  const std::vector<IValue> arguments(view.begin(), view.end());
  const CallDevice device(op, arguments);
  TORCH_CHECK(
      !device.elsewhere(), "Expected a 'cpu' device type for generator but found '", c10::Device(DEVICE).str(), "'");
  const auto index = device.index();
  HostCall call(index);
  const auto first = stack->size() - arguments.size();
  for (size_t i = 0; i < arguments.size(); ++i) {
    (*stack)[first + i] = call.host(arguments[i]);
  }
  std::optional<SharedGenerator> shared;
  if (!give_generator(schema, arguments, *stack, index) && op.hasTag(at::Tag::nondeterministic_seeded)) {
    shared.emplace(index);
  }
  op.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), stack);
  shared.reset();
  call.finish();
  for (auto i = stack->size() - schema.returns().size(); i < stack->size(); ++i) {
    (*stack)[i] = call.device((*stack)[i]);
  }
}

}  // namespace opmux::simulator
