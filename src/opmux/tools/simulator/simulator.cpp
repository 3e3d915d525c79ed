// An accelerator made of host memory, for torch's PrivateUse1. See __init__.py.

#include <array>
#include <map>
#include <mutex>
#include <string>

#include "autocast.h"
#include "device.h"
#include "host_call.h"

namespace opmux::simulator {
namespace {

// ---- the fallback, counted ------------------------------------------------------------------------------------------

std::mutex fallbacks_mutex;
std::map<std::string, int64_t> fallbacks;

void count_fallback(const OperatorHandle& op) {
  std::lock_guard<std::mutex> guard(fallbacks_mutex);
  ++fallbacks[c10::toString(op.operator_name())];
}

void fallback(const OperatorHandle& op, Stack* stack) {
  count_fallback(op);
  on_host(op, stack);
}

// Torch calls separate convolution ops for devices that it does not know. The CPU's general ops compute them.
void convolution(const OperatorHandle& op, Stack* stack) {
  static const auto general = c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution", "");
  count_fallback(op);
  on_host(general, stack);
}

void convolution_backward(const OperatorHandle& op, Stack* stack) {
  static const auto general = c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution_backward", "");
  count_fallback(op);
  const auto first = stack->end() - static_cast<int64_t>(op.schema().arguments().size());
  const auto weight = first[2].toTensor();
  const bool transposed = first[6].toBool();
  const auto groups = first[8].toInt();
  const auto channels = transposed ? weight.size(1) * groups : weight.size(0);
  stack->insert(first + 3, c10::List<int64_t>({channels}));  // the bias's size, which the general op needs
  on_host(general, stack);
}

// ---- kernels of the device ------------------------------------------------------------------------------------------

at::Tensor empty(
    c10::IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
    std::optional<c10::Device> device, std::optional<bool> pin_memory, std::optional<c10::MemoryFormat> format) {
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
  TORCH_CHECK_NOT_IMPLEMENTED(
      layout.value_or(at::kStrided) == at::kStrided, "the simulated device has strided tensors only");
  c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(
      size, &memory(), DispatchKeySet(DispatchKey::PrivateUse1), c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(
    c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
    std::optional<c10::Device> device, std::optional<bool> pin_memory) {
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
  c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(
      size, stride, &memory(), DispatchKeySet(DispatchKey::PrivateUse1), c10::dtype_or_default(dtype));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  HostCall call(current);
  call.host(to).copy_(call.host(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  HostCall call(current);
  call.host(to).resize_(from.sizes()).copy_(call.host(from));
  call.finish();
  return to;
}

// What every device needs before its first kernel; these calls do not count as fallbacks.
constexpr std::array BASIC{"view", "as_strided", "_reshape_alias", "unfold", "view_as_real", "view_as_complex",
                           "resize_", "set_", "set_.source_Storage", "set_.source_Storage_storage_offset",
                           "set_.source_Tensor", "_local_scalar_dense"};

// ---- registration ---------------------------------------------------------------------------------------------------

template <c10::BoxedKernel::BoxedKernelFunction* kernel, class Names>
void implement(torch::Library& m, const Names& names) {
  for (const char* name : names) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<kernel>());
  }
}

REGISTER_ALLOCATOR(DEVICE, &memory())
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

[[maybe_unused]] const bool hooked = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution>());
  m.impl("convolution_backward_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution_backward>());
  m.impl("record_stream", [](at::Tensor&, c10::Stream) {});
  implement<&on_host>(m, BASIC);
}

// torch resolves a negated or conjugated view by a copy. The copy must accept such a view, or copies would never end.
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  implement<&cast_lower>(m, LOWER);
  implement<&cast_single>(m, SINGLE);
  implement<&single_result>(m, SINGLE_RESULT);
  implement<&cast_widest>(m, WIDEST);
}

TORCH_LIBRARY(opmux_simulator, m) {
  m.def("set_count(int number) -> ()", [](int64_t number) {
    TORCH_CHECK(number >= 1 && number <= MOST, "count = ", number, ". Allowed: 1 to ", MOST);
    count = static_cast<DeviceIndex>(number);
  });
  m.def("default_generator(int index) -> Generator?", [](int64_t index) {
    return default_generator(static_cast<DeviceIndex>(index));
  });
  m.def("fallbacks() -> Dict(str, int)", [] {
    std::lock_guard<std::mutex> guard(fallbacks_mutex);
    c10::Dict<std::string, int64_t> counts;
    for (const auto& [name, times] : fallbacks) {
      counts.insert(name, times);
    }
    return counts;
  });
  m.def("forget_fallbacks() -> ()", [] {
    std::lock_guard<std::mutex> guard(fallbacks_mutex);
    fallbacks.clear();
  });
}

}  // namespace
}  // namespace opmux::simulator
