// The gate: what torch's dispatcher calls for an overridden overload, instead of its override in Python.
//
// It calls ATen's kernel, without Python, where the overload is off or the call is too small; else the override. The
// arguments are passed on as they are. Where the override did nothing but launch one kernel, further calls that look the
// same are launched from here. See gate.py.

#include <ATen/Context.h>
#include <ATen/core/IListRef.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::OperatorHandle;
using c10::SafeKernelFunction;
using torch::jit::Stack;

constexpr int64_t kNever = -1;
constexpr size_t kTypes = static_cast<size_t>(c10::ScalarType::NumOptions) + 1;  // the last: a call without tensors

// For each slot the smallest number of elements that is ours, by ScalarType, where a call is launched from here; then the
// same where it goes to Python. No row: the overload is off.
struct Selection {
  int64_t size;
  const int64_t* const* rows;
};

std::atomic<const Selection*> selection{nullptr};
thread_local int inside = 0;  // > 0: this thread runs a reference, which gets ATen's kernels

// torch passes `2 * x` with a tensor for the 2: the size of a call is that of the first tensor that is no number.
bool has_size(const at::Tensor& t) { return t.defined() && !t.unsafeGetTensorImpl()->is_wrapped_number(); }

// SafeKernelFunction can only be called boxed. An explicit instantiation may name a private member, by which its kernel
// can be called as the dispatcher calls it: without a stack.
template <auto member>
struct Open {
  friend const c10::KernelFunction& kernel_of(const SafeKernelFunction& safe) { return safe.*member; }
};
template struct Open<&SafeKernelFunction::kernel_>;
const c10::KernelFunction& kernel_of(const SafeKernelFunction& safe);

// ---- launches --------------------------------------------------------------------------------------------------------

constexpr int kMostParams = 64;
constexpr int kMostTensors = 8;
constexpr int kMostWords = 96;
constexpr int kSightings = 6;  // calls that look the same, before one is recorded: shapes that never come back cost less
constexpr size_t kPlaces = 512;
constexpr size_t kMostRecipes = 4096;

// One launch as Python saw it: for each parameter of the kernel a pointer, or the bytes of a number.
struct Seen {
  uint64_t function;
  uint32_t grid[3];
  uint32_t threads;
  uint32_t shared;
  int32_t count;
  uint8_t is_pointer[kMostParams];
  uint64_t values[kMostParams];
};

// What gate.py provides.
struct Driver {
  int (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
  int (*stream)(int32_t, void**);  // nullptr: the device has none
  int (*begin)();                  // from now on Python records what this thread launches; 0: not now
  int (*end)(Seen*);               // 1: it was one launch, and nothing else was done
};

std::atomic<const Driver*> driver{nullptr};
std::atomic<bool> launching{false};
std::atomic<uint64_t> launched{0};
std::atomic<uint64_t> epoch{1};  // what was recorded in an earlier one is void

int64_t span(const at::Tensor& t) {  // bytes from its first element to the end of its last
  int64_t last = 0;
  for (int64_t i = 0; i < t.dim(); ++i) {
    last += (t.size(i) - 1) * t.stride(i);
  }
  return t.numel() == 0 ? 0 : (last + 1) * static_cast<int64_t>(t.element_size());
}

// What a call looks like: everything that may change the launch, as words. `ok`: it can be launched from here.
struct Look {
  uint64_t words[kMostWords];
  int count = 0;
  bool ok = true;
  int tensors = 0;
  const at::Tensor* tensor[kMostTensors];
  const char* pointer[kMostTensors];

  void add(uint64_t word) {
    if (count < kMostWords) {
      words[count++] = word;
    } else {
      ok = false;
    }
  }

  uint64_t hash() const {
    uint64_t made = 0x9E3779B97F4A7C15u;
    for (int i = 0; i < count; ++i) {
      made = (made ^ words[i]) * 0xFF51AFD7ED558CCDu;
      made ^= made >> 32;
    }
    // The last word may be a number such as 0.5, whose low bits are all 0: without this it would change no low bit.
    made = (made ^ made >> 29) * 0xC4CEB9FE1A85EC53u;
    return (made ^ made >> 32) | 1;  // never 0
  }

  void number(double value) {
    uint64_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    add(bits);
  }

  // A Python number that torch has made a tensor of.
  void wrapped(const at::Tensor& t) {
    add(2 | static_cast<uint64_t>(t.scalar_type()) << 8);
    switch (t.scalar_type()) {
      case at::kDouble:
        return number(*static_cast<const double*>(t.const_data_ptr()));
      case at::kLong:
        return add(*static_cast<const int64_t*>(t.const_data_ptr()));
      case at::kBool:
        return add(*static_cast<const bool*>(t.const_data_ptr()));
      default:
        ok = false;
    }
  }

  void look(const at::Tensor& t, bool written) {
    if (!t.defined()) {
      return add(1);
    }
    if (t.unsafeGetTensorImpl()->is_wrapped_number()) {
      return wrapped(t);
    }
    if (tensors == kMostTensors || !t.has_storage() || t.is_neg() || t.is_conj() ||
        (tensors != 0 && t.device() != tensor[0]->device())) {
      ok = false;
      return;
    }
    const char* at = static_cast<const char*>(written ? t.mutable_data_ptr() : t.const_data_ptr());
    if (at == nullptr) {
      ok = false;  // empty
      return;
    }
    const uint64_t beyond_16 = reinterpret_cast<uintptr_t>(at) & 15;  // kernels are compiled for multiples of 16 or not
    uint64_t same = 0;
    for (int i = 0; i < tensors && same == 0; ++i) {
      same = pointer[i] == at ? i + 1 : 0;
    }
    add(3 | static_cast<uint64_t>(t.scalar_type()) << 8 | static_cast<uint64_t>(t.dim()) << 16 | same << 24 |
        static_cast<uint64_t>(static_cast<uint8_t>(t.device().index())) << 32 | beyond_16 << 40);
    for (int64_t n : t.sizes()) {
      add(n);
    }
    for (int64_t n : t.strides()) {
      add(n);
    }
    tensor[tensors] = &t;
    pointer[tensors++] = at;
  }

  // Whether a tensor that is written (the first) shares memory with another one otherwise than by being the same.
  bool overlaps() const {
    const int64_t size = span(*tensor[0]);
    for (int i = 1; i < tensors; ++i) {
      const auto apart = pointer[i] - pointer[0];
      if (apart != 0 && apart < size && -apart < span(*tensor[i])) {
        return true;
      }
    }
    return false;
  }

  void look(const at::Tensor& t) { look(t, false); }
  void look(const std::optional<at::Tensor>& t) { t.has_value() ? look(*t, false) : add(1); }
  void look(bool value) { add(value); }
  void look(int64_t value) { add(value); }
  void look(double value) { number(value); }
  void look(const std::optional<double>& value) {
    add(value.has_value());
    number(value.value_or(0));
  }
  void look(at::ScalarType value) { add(static_cast<uint64_t>(value)); }
  void look(const std::optional<at::ScalarType>& value) {
    add(value.has_value() ? static_cast<uint64_t>(*value) + 1 : 0);
  }
  void look(const at::Scalar& value) {
    add(static_cast<uint64_t>(value.type()));
    if (value.isSymbolic() || value.isComplex()) {
      ok = false;
    } else if (value.isFloatingPoint()) {
      number(value.toDouble());
    } else {
      add(value.toLong());
    }
  }
  void look(std::string_view value) {
    add(value.size());
    uint64_t word = 0;
    ok = ok && value.size() <= sizeof word;  // gelu's "none" and "tanh"
    std::memcpy(&word, value.data(), std::min(value.size(), sizeof word));
    add(word);
  }
  void look(at::IntArrayRef values) {
    add(values.size());
    for (int64_t n : values) {
      add(n);
    }
  }
  void look(const at::OptionalIntArrayRef& values) { values.has_value() ? look(*values) : add(~uint64_t{0}); }
  void look(c10::SymIntArrayRef values) {
    add(values.size());
    for (const auto& n : values) {
      ok = ok && !n.is_heap_allocated();
      add(n.is_heap_allocated() ? 0 : n.as_int_unchecked());
    }
  }
  template <class Other>
  void look(const Other&) {  // a type that no launch was made for yet
    ok = false;
  }
  void look(const std::array<bool, 3>& values) { add(values[0] | values[1] << 1 | values[2] << 2); }
};

// A launch for all calls of one look.
struct Recipe {
  enum Kind : uint8_t { kArgument, kResult, kBytes };
  struct Param {
    Kind kind;
    int index;
    uint64_t value;  // bytes after the start of the tensor, or the number
  };
  struct Result {
    at::ScalarType type;
    std::vector<c10::SymInt> sizes, strides;
  };

  std::vector<uint64_t> look;
  uint64_t epoch;
  Seen launch;
  std::vector<Param> params;
  std::vector<Result> results;

  bool is_for(const Look& call, uint64_t now) const {
    return epoch == now && look.size() == static_cast<size_t>(call.count) &&
        std::memcmp(look.data(), call.words, call.count * sizeof(uint64_t)) == 0;
  }
};

using Results = std::array<at::Tensor, 3>;

at::Tensor allocate(const Recipe::Result& made, DispatchKey key, c10::Device device) {
  using Function = at::Tensor(c10::SymIntArrayRef, c10::SymIntArrayRef, std::optional<at::ScalarType>,
                              std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>);
  static auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::empty_strided", "").typed<Function>();
  return op.redispatch(DispatchKeySet(key), made.sizes, made.strides, made.type, std::nullopt, device, std::nullopt);
}

// Launches; false if that cannot be done here and now.
bool run(const Recipe& recipe, const Look& call, DispatchKey key, Results& results) {
  const Driver& with = *driver.load(std::memory_order_acquire);
  const c10::Device device = call.tensor[0]->device();
  if (c10::impl::VirtualGuardImpl(device.type()).getDevice() != device) {
    return false;
  }
  void* stream = nullptr;
  if (with.stream != nullptr && with.stream(device.index(), &stream) != 0) {
    return false;
  }
  for (size_t i = 0; i < recipe.results.size(); ++i) {
    results[i] = allocate(recipe.results[i], key, device);
  }
  uint64_t values[kMostParams + 2];
  void* params[kMostParams + 2];
  size_t count = 0;
  for (const auto& param : recipe.params) {
    uint64_t base = 0;
    if (param.kind == Recipe::kArgument) {
      base = reinterpret_cast<uint64_t>(call.pointer[param.index]);
    } else if (param.kind == Recipe::kResult) {
      base = reinterpret_cast<uint64_t>(results[param.index].mutable_data_ptr());
    }
    values[count++] = base + param.value;
  }
  values[count++] = 0;  // Triton's scratch memories, of which these kernels have none
  values[count++] = 0;
  for (size_t i = 0; i < count; ++i) {
    params[i] = &values[i];
  }
  const Seen& launch = recipe.launch;
  launched.fetch_add(1, std::memory_order_relaxed);
  return with.launch(reinterpret_cast<void*>(launch.function), launch.grid[0], launch.grid[1], launch.grid[2],
                     launch.threads, 1, 1, launch.shared, stream, params, nullptr) == 0;
}

// What was launched, in terms of the call's arguments and results; nullptr if it is not all of what the call did.
std::unique_ptr<Recipe> understood(const Look& call, const Seen& seen, const at::Tensor* const* results, int count,
                                   bool in_place) {
  auto made = std::make_unique<Recipe>();
  made->look.assign(call.words, call.words + call.count);
  made->launch = seen;
  for (int i = 0; i < count && !in_place; ++i) {
    const at::Tensor& y = *results[i];
    if (!y.defined() || y.device() != call.tensor[0]->device() || y.storage_offset() != 0 || y.is_neg() || y.is_conj() ||
        y.storage().nbytes() != static_cast<size_t>(span(y)) || y.numel() == 0) {
      return nullptr;
    }
    for (int j = 0; j < call.tensors; ++j) {
      if (y.storage().is_alias_of(call.tensor[j]->storage())) {
        return nullptr;
      }
    }
    for (int j = 0; j < i; ++j) {
      if (y.storage().is_alias_of(results[j]->storage())) {
        return nullptr;
      }
    }
    const auto symbolic = [](at::IntArrayRef from) { return std::vector<c10::SymInt>(from.begin(), from.end()); };
    made->results.push_back({y.scalar_type(), symbolic(y.sizes()), symbolic(y.strides())});
  }
  std::array<bool, 3> written{};
  for (int i = 0; i < seen.count; ++i) {
    const uint64_t value = seen.values[i];
    Recipe::Param param{Recipe::kBytes, 0, value};
    if (seen.is_pointer[i] && value != 0) {
      int found = 0;
      for (int exact = 1; exact >= 0 && found == 0; --exact) {  // at the start of a tensor, else inside of just one
        const auto match = [&](Recipe::Kind kind, int index, const void* start, int64_t size) {
          const uint64_t after = value - reinterpret_cast<uint64_t>(start);
          if (exact != 0 ? after == 0 && found == 0 : after < static_cast<uint64_t>(size)) {
            param = {kind, index, after};
            ++found;
          }
        };
        for (int j = 0; j < call.tensors; ++j) {
          match(Recipe::kArgument, j, call.pointer[j], span(*call.tensor[j]));
        }
        for (size_t j = 0; j < made->results.size(); ++j) {
          match(Recipe::kResult, static_cast<int>(j), results[j]->const_data_ptr(), span(*results[j]));
        }
      }
      if (found != 1) {
        return nullptr;
      }
    }
    if (param.kind == Recipe::kResult) {
      written[param.index] = true;
    }
    made->params.push_back(param);
  }
  for (size_t j = 0; j < made->results.size(); ++j) {
    if (!written[j]) {
      return nullptr;
    }
  }
  return made;
}

// The recipes of one overload. Readers take no lock: a recipe lives as long as its overload is registered.
class Recipes {
 public:
  const Recipe* find(const Look& call, uint64_t hash) const {
    const Table* table = table_.load(std::memory_order_acquire);
    if (table == nullptr) {
      return nullptr;
    }
    const Recipe* found = table->recipes[place_of(hash)].load(std::memory_order_acquire);
    return found != nullptr && found->is_for(call, epoch.load(std::memory_order_acquire)) ? found : nullptr;
  }

  // Whether a call of which there is no recipe should be recorded: it was seen often enough, and not refused.
  bool is_due(uint64_t hash) {
    Table* table = table_.load(std::memory_order_acquire);
    if (table == nullptr) {
      std::lock_guard<std::mutex> held(lock_);
      if (table_.load() == nullptr) {
        owned_ = std::make_unique<Table>();
        table_.store(owned_.get(), std::memory_order_release);
      }
      table = owned_.get();
    }
    const size_t place = place_of(hash);
    const uint64_t id = hash ^ epoch.load(std::memory_order_relaxed);
    if (table->seen[place].load(std::memory_order_relaxed) != id) {
      table->seen[place].store(id, std::memory_order_relaxed);
      table->times[place].store(0, std::memory_order_relaxed);
    }
    return table->times[place].fetch_add(1, std::memory_order_relaxed) + 1 == kSightings;
  }

  void keep(std::unique_ptr<Recipe> recipe, uint64_t hash) {
    std::lock_guard<std::mutex> held(lock_);
    if (all_.size() < kMostRecipes) {
      owned_->recipes[place_of(hash)].store(recipe.get(), std::memory_order_release);
      all_.push_back(std::move(recipe));
    }
  }

 private:
  static size_t place_of(uint64_t hash) { return (hash >> 1) % kPlaces; }

  struct Table {
    std::array<std::atomic<const Recipe*>, kPlaces> recipes{};
    std::array<std::atomic<uint64_t>, kPlaces> seen{};
    std::array<std::atomic<uint32_t>, kPlaces> times{};
  };
  std::atomic<Table*> table_{nullptr};
  std::unique_ptr<Table> owned_;
  std::vector<std::unique_ptr<Recipe>> all_;
  std::mutex lock_;
};

// ---- the gate --------------------------------------------------------------------------------------------------------

// One overload on one dispatch key.
struct Gate {
  Gate(int64_t slot, const OperatorHandle& op, DispatchKey key, bool launches)
      : slot(slot), op(op), key(key), launches(launches), native(kernel_of(op.getComputedKernelForDispatchKey(key))) {}

  // Of a call that is not launched from here.
  const c10::KernelFunction& choose(const at::Tensor* first) const { return is_ours(first, true) ? override : native; }

  bool is_ours(const at::Tensor* first, bool by_python) const {
    const Selection* now = selection.load(std::memory_order_acquire);
    if (now == nullptr || slot >= now->size || inside > 0) {
      return false;
    }
    const int64_t* row = now->rows[slot];
    if (row == nullptr) {
      return false;
    }
    const size_t type = first == nullptr ? kTypes - 1 : static_cast<size_t>(first->scalar_type());
    const int64_t least = row[by_python ? kTypes + type : type];
    return least == 0 || (least != kNever && (first == nullptr || first->unsafeGetTensorImpl()->numel() >= least));
  }

  int64_t slot;
  OperatorHandle op;
  DispatchKey key;
  bool launches;  // whether the arguments decide everything that its kernels do
  Recipes recipes;
  c10::KernelFunction native;  // ATen's
  c10::KernelFunction override;  // ours, in Python
};

// ---- overloads of any signature: their arguments are a stack ---------------------------------------------------------

struct Boxed final : c10::OperatorKernel {
  explicit Boxed(std::shared_ptr<Gate> made)
      : gate(std::move(made)), arguments(gate->op.schema().arguments().size()) {}

  void operator()(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    const at::Tensor held = first_tensor(stack);
    gate->choose(held.defined() ? &held : nullptr).callBoxed(op, keys, stack);
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

// ---- frequent signatures, called as the dispatcher calls them: a stack would cost 0.2 to 0.5 us -----------------------

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
  explicit Typed(std::shared_ptr<Gate> made) : gate(std::move(made)) {}

  static constexpr bool kInPlace = std::is_same_v<Result, at::Tensor&>;
  static constexpr bool kOfLists = std::is_void_v<Result> || std::is_same_v<Result, std::vector<at::Tensor>>;

  Result operator()(DispatchKeySet keys, Args... args) {
    const bool launches = !kOfLists && gate->launches && launching.load(std::memory_order_relaxed);
    const at::Tensor* first = first_tensor(args...);
    if (!gate->is_ours(first, !gate->launches)) {
      return gate->native.template call<Result, Args...>(gate->op, keys, std::forward<Args>(args)...);
    }
    if constexpr (!kOfLists) {
      if (launches) {
        Look call;
        call.add(at::globalContext().deterministicAlgorithms());
        call.add(static_cast<uint64_t>(c10::get_default_dtype_as_scalartype()));
        (look_at<Args>(call, args), ...);
        if (call.ok && call.tensors > 0 && !(kInPlace && call.overlaps())) {
          const uint64_t hash = call.hash();
          if (const Recipe* recipe = gate->recipes.find(call, hash)) {
            Results made;
            if (run(*recipe, call, gate->key, made)) {
              return as_result(made, args...);
            }
          } else if (gate->recipes.is_due(hash)) {
            return recorded(keys, call, hash, args...);
          }
        }
        // Seen too seldom, or no single launch: in auto mode, where Python would take longer than it gains, torch's.
        return gate->choose(first).template call<Result, Args...>(gate->op, keys, std::forward<Args>(args)...);
      }
    }
    return gate->override.template call<Result, Args...>(gate->op, keys, std::forward<Args>(args)...);
  }

  template <class Arg, class Value>
  static void look_at(Look& call, const Value& value) {
    if constexpr (std::is_same_v<Arg, at::Tensor&>) {
      call.look(value, true);
    } else {
      call.look(value);
    }
  }

  // The override's result; what it launched meanwhile is kept.
  Result recorded(DispatchKeySet keys, const Look& call, uint64_t hash, Args... args) {
    const Driver& with = *driver.load(std::memory_order_acquire);
    const uint64_t now = epoch.load(std::memory_order_acquire);
    if (with.begin() == 0) {
      return gate->override.template call<Result, Args...>(gate->op, keys, std::forward<Args>(args)...);
    }
    struct End {
      const Driver& with;
      Seen seen{};
      bool ended = false;
      bool end() {
        ended = true;
        return with.end(&seen) != 0;
      }
      ~End() {
        if (!ended) {
          with.end(&seen);  // the override raised
        }
      }
    } recording{with};
    Result result = gate->override.template call<Result, Args...>(gate->op, keys, args...);
    if (recording.end()) {
      const auto all = pointers(result);
      if (!kInPlace || all[0]->is_same(*call.tensor[0])) {
        auto made = understood(call, recording.seen, all.data(), static_cast<int>(all.size()), kInPlace);
        if (made != nullptr) {
          made->epoch = now;
          gate->recipes.keep(std::move(made), hash);
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
  static Result as_result(Results& made, First& first, Rest&...) {
    if constexpr (kInPlace) {
      return first;
    } else if constexpr (std::is_same_v<Result, at::Tensor>) {
      return std::move(made[0]);
    } else if constexpr (std::tuple_size_v<Result> == 2) {
      return {std::move(made[0]), std::move(made[1])};
    } else {
      return {std::move(made[0]), std::move(made[1]), std::move(made[2])};
    }
  }

  std::shared_ptr<Gate> gate;
};

// A C++ type as schemas write it.
template <class T>
inline constexpr const char* kWord = "";
template <>
inline constexpr const char* kWord<at::Tensor> = "Tensor";
template <>
inline constexpr const char* kWord<const at::Tensor&> = "Tensor";
template <>
inline constexpr const char* kWord<at::Tensor&> = "Tensor!";
template <>
inline constexpr const char* kWord<const std::optional<at::Tensor>&> = "Tensor?";
template <>
inline constexpr const char* kWord<const at::Scalar&> = "Scalar";
template <>
inline constexpr const char* kWord<int64_t> = "int";
template <>
inline constexpr const char* kWord<double> = "float";
template <>
inline constexpr const char* kWord<std::optional<double>> = "float?";
template <>
inline constexpr const char* kWord<bool> = "bool";
template <>
inline constexpr const char* kWord<std::string_view> = "str";
template <>
inline constexpr const char* kWord<at::ScalarType> = "ScalarType";
template <>
inline constexpr const char* kWord<std::optional<at::ScalarType>> = "ScalarType?";
template <>
inline constexpr const char* kWord<at::IntArrayRef> = "int[]";
template <>
inline constexpr const char* kWord<at::OptionalIntArrayRef> = "int[]?";
template <>
inline constexpr const char* kWord<c10::SymIntArrayRef> = "SymInt[]";
template <>
inline constexpr const char* kWord<std::array<bool, 3>> = "bool[]";
template <>
inline constexpr const char* kWord<c10::SymInt> = "SymInt";
template <>
inline constexpr const char* kWord<std::optional<bool>> = "bool?";
template <>
inline constexpr const char* kWord<std::optional<at::Layout>> = "Layout?";
template <>
inline constexpr const char* kWord<std::optional<at::Device>> = "Device?";
template <>
inline constexpr const char* kWord<std::optional<at::MemoryFormat>> = "MemoryFormat?";
template <>
inline constexpr const char* kWord<const at::ITensorListRef&> = "Tensor[]";
template <>
inline constexpr const char* kWord<at::TensorList> = "Tensor[]";
template <>
inline constexpr const char* kWord<std::vector<at::Tensor>> = "Tensor[]";
template <>
inline constexpr const char* kWord<at::ArrayRef<at::Scalar>> = "Scalar[]";
template <>
inline constexpr const char* kWord<std::tuple<at::Tensor, at::Tensor>> = "Tensor Tensor";
template <>
inline constexpr const char* kWord<std::tuple<at::Tensor, at::Tensor, at::Tensor>> = "Tensor Tensor Tensor";

struct Made {
  c10::KernelFunction kernel;
  c10::impl::CppSignature signature;  // the dispatcher compares it with that of ATen's kernels
};

using Maker = Made (*)(const std::shared_ptr<Gate>&);

template <class Function>
struct Row;

template <class Result, class... Args>
struct Row<Result(Args...)> {
  static std::string words() {
    std::string made;
    ((made += kWord<Args>, made += ' '), ...);
    made += "->";
    return std::is_void_v<Result> ? made : made + ' ' + kWord<Result>;
  }

  static Made make(const std::shared_ptr<Gate>& gate) {
    using Kernel = Typed<Result(Args...)>;
    return {c10::KernelFunction::makeFromUnboxedFunctor<false, Kernel>(std::make_unique<Kernel>(gate)),
            c10::impl::CppSignature::make<Result(Args...)>()};
  }
};

template <class... Functions>
std::unordered_map<std::string, Maker> makers() {
  return {{Row<Functions>::words(), &Row<Functions>::make}...};
}

using T = at::Tensor;
using In = const at::Tensor&;
using Maybe = const std::optional<at::Tensor>&;
using Number = const at::Scalar&;
using Many = at::TensorList;
using Numbers = at::ArrayRef<at::Scalar>;
using Ts = std::vector<at::Tensor>;

const std::unordered_map<std::string, Maker>& frequent() {
  static const auto made = makers<
      T(In), T&(T&), T(In, In), T&(T&, In), T(In, Number), T&(T&, Number),            // exp, mul, mul.Scalar
      T(In, In, Number), T&(T&, In, Number), T(In, In, In), T(In, In, In, Number),    // add, where, addcmul
      T&(T&, In, In, Number), T(In, Number, Number), T&(T&, In, bool),                // clamp, copy_
      T(In, std::optional<at::ScalarType>), T(In, at::IntArrayRef, bool),             // sum, amax
      T(In, at::OptionalIntArrayRef, bool, std::optional<at::ScalarType>),            // sum.dim_IntList, mean.dim
      T(In, int64_t, bool), T(In, In, int64_t, at::ScalarType),                       // _softmax and its backward
      T(In, int64_t, std::optional<at::ScalarType>), T(In, int64_t, In),              // cumsum, index_select
      T(In, int64_t, In, bool), T(In, In, In, Number, Number),                        // gather, addmm
      T(In, std::string_view), T(In, In, std::string_view),                           // gelu and its backward
      T(In, std::optional<at::MemoryFormat>), T(In, In, c10::SymInt, bool, bool),     // clone, embedding
      T(In, std::optional<at::ScalarType>, std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
        bool, std::optional<at::MemoryFormat>),                                       // _to_copy
      T(const at::ITensorListRef&, int64_t), T(In, int64_t),                          // cat, tril
      std::tuple<T, T>(In, double, std::optional<bool>),                              // native_dropout
      std::tuple<T, T, T>(In, c10::SymIntArrayRef, Maybe, Maybe, double),             // native_layer_norm
      std::tuple<T, T, T>(In, In, c10::SymIntArrayRef, In, In, Maybe, Maybe, std::array<bool, 3>),
      std::tuple<T, T>(In, at::IntArrayRef, Maybe, std::optional<double>),            // _fused_rms_norm
      // of lists: a stack of some hundred tensors costs tens of microseconds
      Ts(Many), Ts(Many, Number), Ts(Many, Numbers), Ts(Many, In), Ts(Many, Many), Ts(Many, Many, Number),
      Ts(Many, Many, Many, Number), Ts(Many, Many, Many, Numbers), Ts(Many, Number, std::optional<at::ScalarType>),
      void(Many), void(Many, Number), void(Many, Numbers), void(Many, In), void(Many, Many), void(Many, Many, Number),
      void(Many, In, Number), void(Many, Many, bool), void(Many, Many, Many), void(Many, Many, Many, Number),
      void(Many, Many, Many, Numbers), void(Many, T&, In),
      void(Many, Many, Many, Many, Many, Many, double, double, double, double, double, bool, bool, Maybe, Maybe)
      >();
  return made;
}

std::string words(const c10::FunctionSchema& schema) {
  std::string made;
  const auto add = [&made](const c10::Argument& one) {
    const auto type = one.real_type();
    made += type->str();
    const bool written = one.alias_info() != nullptr && one.alias_info()->isWrite();
    made += written && type->kind() == c10::TypeKind::TensorType ? "!" : "";  // a list's C++ type is always the same
  };
  for (const auto& one : schema.arguments()) {
    add(one);
    made += ' ';
  }
  made += "->";
  for (const auto& one : schema.returns()) {
    made += ' ';
    add(one);
  }
  return made;
}

// torch warns about each replaced kernel, which is intended.
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

// A gate that knows ATen's kernel: the one of now, before the override is registered.
Registration* opmux_gate_new(int64_t slot, const char* name, const char* overload, const char* key_name, int launches) {
  return guarded([&]() -> Registration* {
    auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
    return new Registration{std::make_shared<Gate>(slot, op, c10::parseDispatchKey(key_name), launches != 0),
                            std::nullopt};
  });
}

// Puts a gate in front of the override, which is the kernel of now. Returns 2 if calls of it need no stack.
int opmux_gate_install(Registration* made) {
  return guarded([&]() -> int {
    Silent silent;
    c10::WarningUtils::WarningHandlerGuard quiet(&silent);
    Gate& gate = *made->gate;
    gate.override = kernel_of(gate.op.getComputedKernelForDispatchKey(gate.key));
    const auto install = [&](c10::KernelFunction kernel, std::optional<c10::impl::CppSignature> signature) {
      made->handle.emplace(c10::Dispatcher::singleton().registerImpl(
          gate.op.operator_name(), gate.key, std::move(kernel), std::move(signature), nullptr, "opmux's gate"));
    };
    const auto found = frequent().find(words(gate.op.schema()));
    if (found != frequent().end()) {
      try {
        auto [kernel, signature] = found->second(made->gate);
        install(std::move(kernel), std::move(signature));
        return 2;
      } catch (const c10::Error&) {
        // this torch has another C++ type for these words
      }
    }
    install(c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<Boxed>(made->gate)), std::nullopt);
    return 1;
  });
}

void opmux_gate_delete(Registration* made) { delete made; }

void opmux_gate_select(const Selection* wanted) { selection.store(wanted, std::memory_order_release); }

void opmux_gate_inside(int by) { inside += by; }

// The driver must never be freed.
void opmux_gate_driver(const Driver* with) { driver.store(with, std::memory_order_release); }

// Whether calls are launched from here, or all go to Python.
void opmux_gate_launch(int on) { launching.store(on != 0 && driver.load() != nullptr, std::memory_order_release); }

uint64_t opmux_gate_launched() { return launched.load(std::memory_order_relaxed); }

// Forgets what was recorded.
void opmux_gate_clear() { epoch.fetch_add(1, std::memory_order_acq_rel); }

int64_t opmux_gate_types() { return static_cast<int64_t>(kTypes); }

}  // extern "C"
