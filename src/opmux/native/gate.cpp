// The gate: torch's dispatcher calls it for an overridden overload, instead of calling the override in Python.
//
// The gate calls ATen's kernel, without Python, if the overload is off or the call is too small; otherwise it calls the
// override with the same arguments. If the override only allocated and launched kernels, further calls with the same
// key are launched from C++. See faces/aten/gate.py.

#include "planner.h"

#include <chrono>
#include <string>
#include <tuple>
#include <unordered_map>

namespace {

using c10::OperatorHandle;
using c10::SafeKernelFunction;
using torch::jit::Stack;

constexpr int64_t kNever = -1;
constexpr size_t kTypes = static_cast<size_t>(c10::ScalarType::NumOptions) + 1;  // last: calls without tensors

// One row per slot; nullptr: the overload is off. A row has the least number of elements for launching from C++, for
// each ScalarType. Then follow those for calling Python, and whether only frequent calls may run in Python.
struct Selection {
  int64_t size;
  const int64_t* const* rows;
};

// The time that auto mode may spend in Python on calls that torch's kernel could run: a share of the elapsed time. The
// limit bounds the slowdown of a program whose shapes never repeat, and the number of recordings in one step.
class Allowance {
 public:
  using Clock = std::chrono::steady_clock;

  bool left() {
    std::lock_guard<std::mutex> guard(lock_);
    const auto now = Clock::now();
    const double passed = std::chrono::duration<double>(now - last_).count();
    last_ = now;
    seconds_ = std::min(most_, seconds_ + share_ * passed);
    return seconds_ > 0;
  }

  void spend(double seconds) {
    std::lock_guard<std::mutex> guard(lock_);
    seconds_ -= seconds;
  }

  void set(double share, double most) {
    std::lock_guard<std::mutex> held(lock_);
    share_ = share;
    seconds_ = most_ = most;
    last_ = Clock::now();
  }

 private:
  std::mutex lock_;
  double share_ = 0.02, most_ = 0.01;
  double seconds_ = 0.01;  // negative: the last call took longer than the allowance
  Clock::time_point last_ = Clock::now();
};

Allowance allowance;

// Charges the time of one call to the allowance.
class Spending {
 public:
  ~Spending() { allowance.spend(std::chrono::duration<double>(Allowance::Clock::now() - since_).count()); }

 private:
  Allowance::Clock::time_point since_ = Allowance::Clock::now();
};

std::atomic<const Selection*> selection{nullptr};
thread_local int inside = 0;  // > 0: this thread runs a reference, whose ops must run ATen's kernels

// The first tensor that is not a wrapped number (the 2 of `2 * x`) determines the size of a call.
bool has_size(const at::Tensor& t) { return t.defined() && !t.unsafeGetTensorImpl()->is_wrapped_number(); }

// SafeKernelFunction can only be called with a stack. Its kernel needs none, but is private. An explicit template
// instantiation may name a private member.
template <auto member>
struct Open {
  friend const c10::KernelFunction& kernel_of(const SafeKernelFunction& safe) { return safe.*member; }
};
template struct Open<&SafeKernelFunction::kernel_>;
const c10::KernelFunction& kernel_of(const SafeKernelFunction& safe);

// ---- the gate --------------------------------------------------------------------------------------------------------

// One overload on one dispatch key.
struct Gate {
  Gate(int64_t slot, const OperatorHandle& op, DispatchKey key, bool launches)
      : slot(slot),
        op(op),
        key(key),
        launches(launches),
        table(Planner::instance().table(slot)),
        native(kernel_of(op.getComputedKernelForDispatchKey(key))) {}

  // The row of this overload in the selection; nullptr if the overload is off.
  const int64_t* row() const {
    const Selection* now = selection.load(std::memory_order_acquire);
    return now == nullptr || slot >= now->size || inside > 0 ? nullptr : now->rows[slot];
  }

  static bool runs_ours(const int64_t* row, const at::Tensor* first, bool by_python) {
    if (row == nullptr) {
      return false;
    }
    const size_t type = first == nullptr ? kTypes - 1 : static_cast<size_t>(first->scalar_type());
    const int64_t least = row[by_python ? kTypes + type : type];
    return least == 0 || (least != kNever && (first == nullptr || first->unsafeGetTensorImpl()->numel() >= least));
  }

  static bool only_frequent(const int64_t* row) { return row[2 * kTypes] != 0; }

  // The kernel for a call that we may run but that is not launched from C++. In auto mode it is torch's kernel. But
  // without a planner, the override plans a frequent call within the allowance, and then runs all calls with its key.
  // `by_python`: Python may run this size.
  const c10::KernelFunction& choose(const int64_t* row, uint64_t hash, bool by_python, bool& plans) {
    plans = false;
    if (!only_frequent(row)) {
      return by_python ? override : native;
    }
    if (Planner::instance().is_there()) {  // the first call of Python would take seconds of imports
      return native;
    }
    CallCount& calls = table->count(hash);
    if (by_python && calls.planned.load(std::memory_order_relaxed)) {
      return override;
    }
    plans = by_python && calls.should_record() && allowance.left();
    if (plans) {
      calls.tried();
    }
    return plans ? override : native;
  }

  int64_t slot;
  OperatorHandle op;
  DispatchKey key;
  bool launches;  // whether the kernels that the override launches depend only on the arguments
  const std::shared_ptr<PlannedTable> table;
  c10::KernelFunction native;  // ATen's
  c10::KernelFunction override;  // ours, in Python
};

// ---- overloads of any signature: arguments on a stack ----------------------------------------------------------------

struct Boxed final : c10::OperatorKernel {
  explicit Boxed(std::shared_ptr<Gate> owner)
      : gate(std::move(owner)), arguments(gate->op.schema().arguments().size()) {}

  void operator()(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    const int64_t* row = gate->row();
    const at::Tensor owned = row == nullptr ? at::Tensor() : first_tensor(stack);
    const at::Tensor* first = owned.defined() ? &owned : nullptr;
    if (!Gate::runs_ours(row, first, true)) {
      return gate->native.callBoxed(op, keys, stack);
    }
    bool plans = false;
    const c10::KernelFunction& chosen = gate->choose(row, shape_of(first), true, plans);
    std::optional<Spending> spending;
    if (plans) {
      spending.emplace();
    }
    chosen.callBoxed(op, keys, stack);
  }

  // The key of the first tensor only: calls that differ in other arguments share one count.
  static uint64_t shape_of(const at::Tensor* first) {
    CallKey call;
    if (first != nullptr) {
      call.argument(*first);
    }
    return call.hash();
  }

  at::Tensor first_tensor(const Stack* stack) const {
    const c10::IValue* end = stack->data() + stack->size();
    for (const c10::IValue* at = end - arguments; at != end; ++at) {
      if (at->isTensor() && has_size(at->toTensor())) {
        return at->toTensor();
      }
      if (at->isTensorList() && !at->toTensorList().empty()) {
        return at->toTensorList().get(0);
      }
    }
    return {};
  }

  std::shared_ptr<Gate> gate;
  size_t arguments;
};

// ---- frequent signatures, called without a stack, which would take 0.2 to 0.5 us ------------------------------------

const at::Tensor* first_tensor() { return nullptr; }

template <class T, class... Rest>
const at::Tensor* first_tensor(const T& argument, const Rest&... rest) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    if (has_size(argument)) {
      return &argument;
    }
  } else if constexpr (std::is_same_v<T, at::ITensorListRef> || std::is_same_v<T, at::TensorList>) {
    if (argument.size() != 0) {
      return &*argument.begin();
    }
  }
  return first_tensor(rest...);
}

template <class Function>
struct Typed;

template <class Result, class... Args>
struct Typed<Result(Args...)> final : c10::OperatorKernel {
  explicit Typed(std::shared_ptr<Gate> owner) : gate(std::move(owner)) {}

  static constexpr bool kInPlace = std::is_same_v<Result, at::Tensor&>;
  static constexpr bool kOfLists = std::is_void_v<Result> || std::is_same_v<Result, std::vector<at::Tensor>>;

  Result operator()(DispatchKeySet keys, Args... args) {
    const int64_t* row = gate->row();
    const at::Tensor* first = row == nullptr ? nullptr : first_tensor(args...);
    if (!Gate::runs_ours(row, first, !gate->launches)) {
      return gate->native.template call<Result, Args...>(gate->op, keys, std::forward<Args>(args)...);
    }
    const bool only_frequent = Gate::only_frequent(row);
    const bool by_python = Gate::runs_ours(row, first, true);
    const bool launches = !kOfLists && gate->launches && launching.load(std::memory_order_relaxed);
    if (!launches && !only_frequent) {  // no call is launched from C++ or counted
      const auto& chosen = by_python || !gate->launches ? gate->override : gate->native;
      return chosen.template call<Result, Args...>(gate->op, keys, std::forward<Args>(args)...);
    }
    CallKey call;
    call.add(at::globalContext().deterministicAlgorithms());
    call.add(static_cast<uint64_t>(c10::get_default_dtype_as_scalartype()));
    (add_argument<Args>(call, args), ...);
    const uint64_t hash = call.hash();
    if constexpr (!kOfLists) {
      if (launches && call.ok && call.tensors > 0 && !(kInPlace && call.overlaps())) {
        bool known = false;
        {
          const Reading reading;
          if (const LaunchRecord* record = gate->table->find(call, hash)) {
            Results results;
            if (run(*record, call, gate->key, results)) {
              return as_result(results, args...);
            }
            known = true;
          }
        }
        if (!known) {
          CallCount& calls = gate->table->count(hash);
          if (only_frequent && Planner::instance().is_there()) {
            if (const auto record = gate->table->make(call, hash, calls)) {
              Results results;
              if (run(*record, call, gate->key, results)) {
                return as_result(results, args...);
              }
            } else if (gate->table->should_request(call, calls)) {
              calls.requested(Planner::instance().request(gate->slot, call, hash));
            }
            return gate->native.template call<Result, Args...>(gate->op, keys, std::forward<Args>(args)...);
          }
          if (calls.should_record() && (!only_frequent || allowance.left())) {
            calls.tried();
            std::optional<Spending> spending;
            if (only_frequent) {
              spending.emplace();
            }
            return recorded(keys, call, hash, args...);
          }
          const bool python = by_python && (!only_frequent || calls.planned.load(std::memory_order_relaxed));
          const auto& chosen = python ? gate->override : gate->native;
          return chosen.template call<Result, Args...>(gate->op, keys, std::forward<Args>(args)...);
        }
      }
    }
    bool plans = false;
    const c10::KernelFunction& chosen = gate->choose(row, hash, by_python, plans);
    std::optional<Spending> spending;
    if (plans) {
      spending.emplace();
    }
    return chosen.template call<Result, Args...>(gate->op, keys, std::forward<Args>(args)...);
  }

  template <class Arg, class Value>
  static void add_argument(CallKey& call, const Value& value) {
    if constexpr (std::is_same_v<Arg, at::Tensor&>) {
      call.argument(value, true);
    } else {
      call.argument(value);
    }
  }

  // Calls the override, and stores what it launches.
  Result recorded(DispatchKeySet keys, const CallKey& call, uint64_t hash, Args... args) {
    const Driver& api = *driver.load(std::memory_order_acquire);
    const uint64_t now = epoch.load(std::memory_order_acquire);
    if (api.begin() == 0) {
      return gate->override.template call<Result, Args...>(gate->op, keys, std::forward<Args>(args)...);
    }
    struct End {
      const Driver& api;
      Recorded recorded{};
      bool ended = false;
      bool end() {
        ended = true;
        return api.end(&recorded) != 0;
      }
      ~End() {
        if (!ended) {
          api.end(&recorded);  // the override raised an error
        }
      }
    } recording{api};
    Result result = gate->override.template call<Result, Args...>(gate->op, keys, args...);
    if (recording.end()) {
      const auto all = pointers(result);
      if (!kInPlace || all[0]->is_same(*call.tensor[0])) {
        auto record = std::make_shared<LaunchRecord>();
        if (build(*record, call, recording.recorded, all.data(), static_cast<int>(all.size()), kInPlace)) {
          record->epoch = now;
          gate->table->keep(std::move(record), hash);
        }
      }
    }
    return result;
  }

  static std::array<const at::Tensor*, 1> pointers(const at::Tensor& y) { return {&y}; }
  static std::array<const at::Tensor*, 2> pointers(const std::tuple<at::Tensor, at::Tensor>& y) {
    return {&std::get<0>(y), &std::get<1>(y)};
  }
  static std::array<const at::Tensor*, 3> pointers(const std::tuple<at::Tensor, at::Tensor, at::Tensor>& y) {
    return {&std::get<0>(y), &std::get<1>(y), &std::get<2>(y)};
  }

  template <class First, class... Rest>
  static Result as_result(Results& results, First& first, Rest&...) {
    if constexpr (kInPlace) {
      return first;
    } else if constexpr (std::is_same_v<Result, at::Tensor>) {
      return std::move(results[0]);
    } else if constexpr (std::tuple_size_v<Result> == 2) {
      return {std::move(results[0]), std::move(results[1])};
    } else {
      return {std::move(results[0]), std::move(results[1]), std::move(results[2])};
    }
  }

  std::shared_ptr<Gate> gate;
};

// The name of a C++ type in an op's schema.
template <class T>
inline constexpr const char* kTypeName = "";
template <>
inline constexpr const char* kTypeName<at::Tensor> = "Tensor";
template <>
inline constexpr const char* kTypeName<const at::Tensor&> = "Tensor";
template <>
inline constexpr const char* kTypeName<at::Tensor&> = "Tensor!";
template <>
inline constexpr const char* kTypeName<const std::optional<at::Tensor>&> = "Tensor?";
template <>
inline constexpr const char* kTypeName<const at::Scalar&> = "Scalar";
template <>
inline constexpr const char* kTypeName<const std::optional<at::Scalar>&> = "Scalar?";
template <>
inline constexpr const char* kTypeName<int64_t> = "int";
template <>
inline constexpr const char* kTypeName<std::optional<int64_t>> = "int?";
template <>
inline constexpr const char* kTypeName<double> = "float";
template <>
inline constexpr const char* kTypeName<std::optional<double>> = "float?";
template <>
inline constexpr const char* kTypeName<bool> = "bool";
template <>
inline constexpr const char* kTypeName<std::string_view> = "str";
template <>
inline constexpr const char* kTypeName<std::optional<std::string_view>> = "str?";
template <>
inline constexpr const char* kTypeName<at::ScalarType> = "ScalarType";
template <>
inline constexpr const char* kTypeName<std::optional<at::ScalarType>> = "ScalarType?";
template <>
inline constexpr const char* kTypeName<at::IntArrayRef> = "int[]";
template <>
inline constexpr const char* kTypeName<at::OptionalIntArrayRef> = "int[]?";
template <>
inline constexpr const char* kTypeName<c10::SymIntArrayRef> = "SymInt[]";
template <>
inline constexpr const char* kTypeName<std::array<bool, 3>> = "bool[]";
template <>
inline constexpr const char* kTypeName<std::array<bool, 2>> = "bool[]";
template <>
inline constexpr const char* kTypeName<c10::SymInt> = "SymInt";
template <>
inline constexpr const char* kTypeName<std::optional<bool>> = "bool?";
template <>
inline constexpr const char* kTypeName<std::optional<at::Layout>> = "Layout?";
template <>
inline constexpr const char* kTypeName<std::optional<at::Device>> = "Device?";
template <>
inline constexpr const char* kTypeName<std::optional<at::MemoryFormat>> = "MemoryFormat?";
template <>
inline constexpr const char* kTypeName<const at::ITensorListRef&> = "Tensor[]";
template <>
inline constexpr const char* kTypeName<at::TensorList> = "Tensor[]";
template <>
inline constexpr const char* kTypeName<std::vector<at::Tensor>> = "Tensor[]";
template <>
inline constexpr const char* kTypeName<at::ArrayRef<at::Scalar>> = "Scalar[]";
template <>
inline constexpr const char* kTypeName<std::tuple<at::Tensor, at::Tensor>> = "Tensor Tensor";
template <>
inline constexpr const char* kTypeName<std::tuple<at::Tensor, at::Tensor, at::Tensor>> = "Tensor Tensor Tensor";

struct TypedKernel {
  c10::KernelFunction kernel;
  c10::impl::CppSignature signature;  // the dispatcher compares it with the signature of ATen's kernels
};

using Maker = TypedKernel (*)(const std::shared_ptr<Gate>&);

template <class Function>
struct Row;

template <class Result, class... Args>
struct Row<Result(Args...)> {
  static std::string text() {
    std::string signature;
    ((signature += kTypeName<Args>, signature += ' '), ...);
    signature += "->";
    return std::is_void_v<Result> ? signature : signature + ' ' + kTypeName<Result>;
  }

  static TypedKernel make(const std::shared_ptr<Gate>& gate) {
    using Kernel = Typed<Result(Args...)>;
    return {c10::KernelFunction::makeFromUnboxedFunctor<false, Kernel>(std::make_unique<Kernel>(gate)),
            c10::impl::CppSignature::make<Result(Args...)>()};
  }
};

template <class... Functions>
std::unordered_map<std::string, Maker> makers() {
  return {{Row<Functions>::text(), &Row<Functions>::make}...};
}

using T = at::Tensor;
using In = const at::Tensor&;
using Maybe = const std::optional<at::Tensor>&;
using Number = const at::Scalar&;
using Many = at::TensorList;
using Numbers = at::ArrayRef<at::Scalar>;
using Ts = std::vector<at::Tensor>;

using TT = std::tuple<T, T>;
using TTT = std::tuple<T, T, T>;
using Type = std::optional<at::ScalarType>;
using Dims = at::OptionalIntArrayRef;
using MaybeNumber = const std::optional<at::Scalar>&;
using MaybeText = std::optional<std::string_view>;

const std::unordered_map<std::string, Maker>& frequent() {
  static const auto table = makers<
      // pointwise
      T(In), T&(T&), T(In, In), T&(T&, In), T(In, Number), T&(T&, Number), T(Number, In),  // exp, mul, pow.Scalar
      T(In, In, Number), T&(T&, In, Number), T(In, Number, Number), T&(T&, Number, Number),  // add
      T(In, In, In), T&(T&, In, In), T(In, In, In, Number), T&(T&, In, In, Number),    // where, lerp, addcmul
      T(In, In, In, Number, Number), T(In, MaybeNumber, MaybeNumber), T&(T&, MaybeNumber, MaybeNumber),  // clamp
      T(In, In, MaybeText), T(In, Number, MaybeText), T(In, int64_t), T&(T&, In, bool),  // div, glu, copy_
      T(In, std::string_view), T(In, In, std::string_view),                            // gelu and its backward
      T(In, In, int64_t), T(In, In, Number, Number), T(In, In, Number, bool), TT(In),  // glu_backward, log_sigmoid
      // reductions, scans, softmax
      T(In, Type), T(In, Dims, bool, Type), T(In, at::IntArrayRef, bool),              // sum, amax
      T(In, std::optional<int64_t>, bool), TT(In, int64_t, bool),                      // argmax, max.dim
      T(In, Dims, MaybeNumber, bool), TT(In, Dims, MaybeNumber, bool),                 // var, var_mean
      T(In, Number, Dims, bool, Type), T(In, int64_t, Type),                           // linalg_vector_norm, cumsum
      T(In, int64_t, bool), T(In, In, int64_t, at::ScalarType),                        // _softmax and its backward
      // normalization: layer, RMS, group, batch
      TTT(In, c10::SymIntArrayRef, Maybe, Maybe, double),
      TTT(In, In, c10::SymIntArrayRef, In, In, Maybe, Maybe, std::array<bool, 3>),
      TT(In, at::IntArrayRef, Maybe, std::optional<double>),
      TT(In, In, at::IntArrayRef, In, Maybe, std::array<bool, 2>),
      TTT(In, Maybe, Maybe, c10::SymInt, c10::SymInt, c10::SymInt, int64_t, double),
      TTT(In, In, In, In, Maybe, c10::SymInt, c10::SymInt, c10::SymInt, int64_t, std::array<bool, 3>),
      TTT(In, Maybe, Maybe, Maybe, Maybe, bool, double, double),
      TTT(In, In, Maybe, Maybe, Maybe, Maybe, Maybe, bool, double, std::array<bool, 3>),
      // moves: select_backward, slice_backward, constant_pad_nd, repeat, clone, _to_copy, cat
      T(In, c10::SymIntArrayRef, int64_t, c10::SymInt),
      T(In, c10::SymIntArrayRef, int64_t, c10::SymInt, c10::SymInt, c10::SymInt),
      T(In, c10::SymIntArrayRef, Number), T(In, c10::SymIntArrayRef), T(In, std::optional<at::MemoryFormat>),
      T(In, Type, std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>, bool,
        std::optional<at::MemoryFormat>),
      T(const at::ITensorListRef&, int64_t),
      // lookups, dropout: index_select, gather, embedding
      T(In, int64_t, In), T(In, int64_t, In, bool), T(In, In, c10::SymInt, bool, bool),
      TT(In, double, std::optional<bool>),
      // Ops on lists: a stack of some hundred tensors would take tens of microseconds.
      Ts(Many), Ts(Many, Number), Ts(Many, Numbers), Ts(Many, In), Ts(Many, Many), Ts(Many, Many, Number),
      Ts(Many, Many, Many, Number), Ts(Many, Many, Many, Numbers), Ts(Many, Number, std::optional<at::ScalarType>),
      void(Many), void(Many, Number), void(Many, Numbers), void(Many, In), void(Many, Many), void(Many, Many, Number),
      void(Many, In, Number), void(Many, Many, bool), void(Many, Many, Many), void(Many, Many, Many, Number),
      void(Many, Many, Many, Numbers), void(Many, T&, In),
      void(Many, Many, Many, Many, Many, Many, double, double, double, double, double, bool, bool, Maybe, Maybe)
      >();
  return table;
}

std::string signature_of(const c10::FunctionSchema& schema) {
  std::string signature;
  const auto add = [&signature](const c10::Argument& argument) {
    const auto type = argument.real_type();
    signature += type->str();
    const bool written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    signature += written && type->kind() == c10::TypeKind::TensorType ? "!" : "";  // every list has the same C++ type
  };
  for (const auto& argument : schema.arguments()) {
    add(argument);
    signature += ' ';
  }
  signature += "->";
  for (const auto& argument : schema.returns()) {
    signature += ' ';
    add(argument);
  }
  return signature;
}

// Suppresses torch's warning about each replaced kernel: the replacement is intended.
struct Silent final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

struct Registration {
  std::shared_ptr<Gate> gate;
  std::optional<c10::RegistrationHandleRAII> handle;
};

thread_local std::string error;

template <typename F>
auto guarded(F&& run) -> decltype(run()) {
  error.clear();
  try {
    return run();
  } catch (const std::exception& thrown) {
    error = thrown.what();
    return {};
  }
}

}  // namespace

extern "C" {

const char* opmux_gate_error() { return error.c_str(); }

// Creates a gate. The current kernel must be ATen's, so the override must not be registered yet.
Registration* opmux_gate_new(int64_t slot, const char* name, const char* overload, const char* key_name, int launches) {
  return guarded([&]() -> Registration* {
    auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
    auto gate = std::make_shared<Gate>(slot, op, c10::parseDispatchKey(key_name), launches != 0);
    return new Registration{std::move(gate), std::nullopt};
  });
}

// Puts a gate in front of the override, which must be the current kernel. Returns 2 if calls need no stack, else 1.
int opmux_gate_install(Registration* registration) {
  return guarded([&]() -> int {
    Silent silent;
    c10::WarningUtils::WarningHandlerGuard quiet(&silent);
    Gate& gate = *registration->gate;
    gate.override = kernel_of(gate.op.getComputedKernelForDispatchKey(gate.key));
    const auto install = [&](c10::KernelFunction kernel, std::optional<c10::impl::CppSignature> signature) {
      registration->handle.emplace(c10::Dispatcher::singleton().registerImpl(
          gate.op.operator_name(), gate.key, std::move(kernel), std::move(signature), nullptr, "opmux's gate"));
    };
    const auto maker = frequent().find(signature_of(gate.op.schema()));
    if (maker != frequent().end()) {
      try {
        auto [kernel, signature] = maker->second(registration->gate);
        install(std::move(kernel), std::move(signature));
        return 2;
      } catch (const c10::Error&) {
        // This torch declares another C++ type for this schema.
      }
    }
    install(c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<Boxed>(registration->gate)), std::nullopt);
    return 1;
  });
}

void opmux_gate_delete(Registration* registration) { delete registration; }

void opmux_gate_select(const Selection* now) { selection.store(now, std::memory_order_release); }

void opmux_gate_inside(int by) { inside += by; }

// Requests the launch records of auto mode from a planner on this socket; -1: records calls in this process.
void opmux_gate_plan(int socket) { Planner::instance().use(socket); }

int64_t opmux_gate_waiting() { return Planner::instance().waiting(); }

int opmux_gate_planned() { return Planner::instance().is_there(); }

// Sets the share of the elapsed time that auto mode may spend in Python on calls that torch's kernel could run, and the
// maximum number of seconds that can be saved up.
void opmux_gate_allow(double share, double seconds) { allowance.set(share, seconds); }

int64_t opmux_gate_types() { return static_cast<int64_t>(kTypes); }

}  // extern "C"
