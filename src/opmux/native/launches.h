// Repeats the kernel launches of calls that Python has recorded, without Python.
//
// The key of a call holds everything that may change what it launches. If a call only allocated its results and
// launched Triton kernels, further calls with the same key launch the same kernels, with the pointers of their own
// tensors. See cpp/launching.py. gate.cpp and functions.cpp include this file and share its switches.

#pragma once

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
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Hidden, because another copy of the library in the process must not share its variables.
namespace opmux __attribute__((visibility("hidden"))) {

using c10::DispatchKey;
using c10::DispatchKeySet;

constexpr int kMostParams = 64;
constexpr int kMostLaunches = 4;
constexpr int kMostSpaces = 8;
constexpr int kMostTensors = 8;
constexpr int kMostResults = 8;
constexpr int kMostWords = 96;
constexpr uint32_t kCallsToRecord = 6;  // calls with a key before one is recorded, so that rare shapes are not recorded
constexpr uint32_t kCallsToRequest = 2;  // calls with a key before the planner gets a request
constexpr uint32_t kNewKeys = 3;  // calls with other sizes after which the first call with a new key is recorded
constexpr size_t kPatterns = 32;  // patterns (keys without sizes) for which a table counts calls
constexpr size_t kBuckets = 256;
constexpr size_t kWays = 4;

// One launch as Python recorded it: for each parameter of the kernel a pointer, or the bytes of a number.
struct RecordedLaunch {
  uint64_t function;
  uint32_t grid[3];
  uint32_t threads;
  uint32_t shared;
  int32_t count;
  uint8_t is_pointer[kMostParams];
  uint64_t values[kMostParams];
};

// Memory that the call allocated: its results, and workspaces such as partial sums for its next launch.
struct Space {
  uint64_t address;
  uint64_t bytes;
};

// Everything that a call has launched.
struct Recorded {
  int32_t launches;
  int32_t spaces;
  RecordedLaunch launch[kMostLaunches];
  Space space[kMostSpaces];
};

// The functions that launching.py provides.
struct Driver {
  int (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
  int (*stream)(int32_t, void**);  // nullptr: the device has no streams
  int (*begin)();                  // makes Python record what this thread launches; returns 0 if it cannot now
  int (*end)(Recorded*);           // ends the recording; returns 1 if the call launched kernels and did nothing else
  // For kernels compiled by another process; nullptr if the device has no such functions. The signatures are those of
  // cuModuleLoadData, cuModuleGetFunction, cuFuncSetAttribute and cuStreamIsCapturing.
  int (*load)(void** module, const void* image);
  int (*function)(void** function, void* module, const char* name);
  int (*attribute)(void* function, int which, int value);
  int (*capturing)(void* stream, int* status);
};

constexpr int kMostDevices = 64;
constexpr uint32_t kPlainShared = 48 * 1024;  // a kernel that uses more bytes of shared memory needs an attribute
constexpr int kDynamicShared = 8;             // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES

// A kernel that another process has compiled. It is loaded on a device when it is first launched there.
struct Kernel {
  std::string image, name;
  uint32_t shared;
  std::array<std::atomic<void*>, kMostDevices> functions{};
  std::mutex lock;

  // The kernel's function on the current device; nullptr if it cannot be loaded, or not now because of a graph capture.
  void* on(int device, const Driver& api, void* stream) {
    if (device < 0 || device >= kMostDevices) {
      return nullptr;
    }
    if (void* function = functions[device].load(std::memory_order_acquire)) {
      return function == &failed ? nullptr : function;
    }
    std::lock_guard<std::mutex> guard(lock);
    if (void* function = functions[device].load(std::memory_order_relaxed)) {
      return function == &failed ? nullptr : function;
    }
    int status = 0;
    void *module = nullptr, *loaded = nullptr;
    if (api.load == nullptr || (api.capturing != nullptr && (api.capturing(stream, &status) != 0 || status != 0))) {
      return nullptr;
    }
    if (api.load(&module, image.data()) != 0 || api.function(&loaded, module, name.c_str()) != 0 ||
        (shared > kPlainShared && api.attribute(loaded, kDynamicShared, static_cast<int>(shared)) != 0)) {
      functions[device].store(&failed, std::memory_order_release);  // compiled for another chip
      return nullptr;
    }
    functions[device].store(loaded, std::memory_order_release);
    return loaded;
  }

  static inline char failed = 0;  // its address marks a device on which the kernel cannot be loaded
};

inline std::atomic<const Driver*> driver{nullptr};
inline std::atomic<bool> launching{false};
inline std::atomic<uint64_t> launched{0};
inline std::atomic<uint64_t> epoch{1};  // launch records of earlier epochs are void
inline std::atomic<uint64_t> next_id{1};  // the id of the next launch record
inline std::atomic<int64_t> live_records{0};  // launch records in memory

inline int64_t span(const at::Tensor& t) {  // bytes from the first element to the end of the last one
  int64_t last = 0;
  for (int64_t i = 0; i < t.dim(); ++i) {
    last += (t.size(i) - 1) * t.stride(i);
  }
  return t.numel() == 0 ? 0 : (last + 1) * static_cast<int64_t>(t.element_size());
}

// The key of a call: everything that may change the launch, as words. `ok`: the call can be launched from C++.
struct CallKey {
  uint64_t words[kMostWords];
  uint64_t sizes[(kMostWords + 63) / 64] = {};  // one bit per word: whether the word is a size or a stride
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

  void size(uint64_t word) {
    if (count < kMostWords) {
      sizes[count / 64] |= uint64_t{1} << count % 64;
    }
    add(word);
  }

  bool is_size(int i) const { return (sizes[i / 64] >> i % 64 & 1) != 0; }

  uint64_t hash() const {
    return hash([this](int i) { return words[i]; });
  }

  // The hash of all words except sizes and strides.
  uint64_t pattern() const {
    return hash([this](int i) { return is_size(i) ? ~uint64_t{0} : words[i]; });
  }

  template <class Word>
  uint64_t hash(Word&& word) const {
    uint64_t mixed = 0x9E3779B97F4A7C15u;
    for (int i = 0; i < count; ++i) {
      mixed = (mixed ^ word(i)) * 0xFF51AFD7ED558CCDu;
      mixed ^= mixed >> 32;
    }
    // If the last word is a number such as 0.5, its low bits are all 0; this mixes its high bits into the low ones.
    mixed = (mixed ^ mixed >> 29) * 0xC4CEB9FE1A85EC53u;
    return (mixed ^ mixed >> 32) | 1;  // never 0
  }

  void number(double value) {
    uint64_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    add(bits);
  }

  // A Python number that torch has wrapped in a tensor.
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

  void argument(const at::Tensor& t, bool written) {
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
      ok = false;  // empty tensor
      return;
    }
    const uint64_t beyond_16 = reinterpret_cast<uintptr_t>(at) & 15;  // kernels are specialized for multiples of 16
    uint64_t same = 0;
    for (int i = 0; i < tensors && same == 0; ++i) {
      same = pointer[i] == at ? i + 1 : 0;
    }
    add(3 | static_cast<uint64_t>(t.scalar_type()) << 8 | static_cast<uint64_t>(t.dim()) << 16 | same << 24 |
        static_cast<uint64_t>(static_cast<uint8_t>(t.device().index())) << 32 | beyond_16 << 40);
    for (int64_t n : t.sizes()) {
      size(n);
    }
    for (int64_t n : t.strides()) {
      size(n);
    }
    tensor[tensors] = &t;
    pointer[tensors++] = at;
  }

  // Whether the written tensor (the first one) partially shares memory with another tensor.
  bool overlaps() const {
    const int64_t size = span(*tensor[0]);
    for (int i = 1; i < tensors; ++i) {
      const auto distance = pointer[i] - pointer[0];
      if (distance != 0 && distance < size && -distance < span(*tensor[i])) {
        return true;
      }
    }
    return false;
  }

  void argument(const at::Tensor& t) { argument(t, false); }
  void argument(bool value) { add(value); }
  void argument(int64_t value) { add(value); }
  void argument(c10::SymInt value) { argument(c10::SymIntArrayRef(&value, 1)); }
  void argument(double value) { number(value); }
  template <class Value>
  void argument(const std::optional<Value>& value) {
    add(value.has_value());
    if (value.has_value()) {
      argument(*value);
    }
  }
  void argument(at::ScalarType value) { add(static_cast<uint64_t>(value)); }
  void argument(at::MemoryFormat value) { add(static_cast<uint64_t>(value)); }
  void argument(at::Layout value) { add(static_cast<uint64_t>(value)); }
  void argument(at::Device value) {  // results are on the device of the first tensor
    ok = ok && tensors != 0 && value.type() == tensor[0]->device().type() &&
        (!value.has_index() || value.index() == tensor[0]->device().index());
    add(static_cast<uint64_t>(value.type()) << 8 | static_cast<uint8_t>(value.index()));
  }
  void argument(const at::ITensorListRef& values) {
    add(values.size());
    for (const at::Tensor& t : values) {
      argument(t, false);
    }
  }
  void argument(const at::Scalar& value) {
    add(static_cast<uint64_t>(value.type()));
    if (value.isSymbolic() || value.isComplex()) {
      ok = false;
    } else if (value.isFloatingPoint()) {
      number(value.toDouble());
    } else {
      add(value.toLong());
    }
  }
  void argument(std::string_view value) {
    add(value.size());
    uint64_t word = 0;
    ok = ok && value.size() <= sizeof word;  // gelu's "none" and "tanh"
    std::memcpy(&word, value.data(), std::min(value.size(), sizeof word));
    add(word);
  }
  void argument(at::IntArrayRef values) {
    add(values.size());
    for (int64_t n : values) {
      add(n);
    }
  }
  void argument(const at::OptionalIntArrayRef& values) { values.has_value() ? argument(*values) : add(~uint64_t{0}); }
  void argument(c10::SymIntArrayRef values) {
    add(values.size());
    for (const auto& n : values) {
      ok = ok && !n.is_heap_allocated();
      size(n.is_heap_allocated() ? 0 : n.as_int_unchecked());
    }
  }
  template <class Other>
  void argument(const Other&) {  // an argument type without support
    ok = false;
  }
  template <size_t Size>
  void argument(const std::array<bool, Size>& values) {
    for (bool value : values) {
      add(value);
    }
  }
};

// The launches that all calls with one key make.
struct LaunchRecord : std::enable_shared_from_this<LaunchRecord> {
  enum Kind : uint8_t { kArgument, kResult, kSpace, kNumber };
  struct Param {
    Kind kind;
    int index;
    uint64_t value;  // the number, or the byte offset from the start of the tensor
  };
  struct Result {
    at::ScalarType type;
    std::vector<c10::SymInt> sizes, strides;
  };
  struct Launch {
    RecordedLaunch recorded;
    std::vector<Param> params;
    std::shared_ptr<Kernel> kernel;  // nullptr: `recorded` has a function that Python has loaded
  };

  const uint64_t id = next_id.fetch_add(1, std::memory_order_relaxed);  // never reused, unlike an address
  std::vector<uint64_t> key;
  uint64_t epoch = 0;
  std::vector<Launch> launches;
  std::vector<Result> results;
  std::vector<Result> spaces;

  LaunchRecord() { live_records.fetch_add(1, std::memory_order_relaxed); }
  virtual ~LaunchRecord() { live_records.fetch_sub(1, std::memory_order_relaxed); }

  bool is_for(const CallKey& call, uint64_t now) const {
    return epoch == now && key.size() == static_cast<size_t>(call.count) &&
        std::memcmp(key.data(), call.words, call.count * sizeof(uint64_t)) == 0;
  }
};

using Results = std::array<at::Tensor, kMostResults>;

inline at::Tensor allocate(const LaunchRecord::Result& result, DispatchKey key, c10::Device device) {
  using Function = at::Tensor(c10::SymIntArrayRef, c10::SymIntArrayRef, std::optional<at::ScalarType>,
                              std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>);
  static auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::empty_strided", "").typed<Function>();
  return op.redispatch(DispatchKeySet(key), result.sizes, result.strides, result.type, std::nullopt, device,
                       std::nullopt);
}

// Launches the kernels of a call; false if that cannot be done here or now.
inline bool run(const LaunchRecord& record, const CallKey& call, DispatchKey key, Results& results) {
  const Driver& api = *driver.load(std::memory_order_acquire);
  const c10::Device device = call.tensor[0]->device();
  if (c10::impl::VirtualGuardImpl(device.type()).getDevice() != device) {
    return false;
  }
  void* stream = nullptr;
  if (api.stream != nullptr && api.stream(device.index(), &stream) != 0) {
    return false;
  }
  std::array<void*, kMostLaunches> functions;
  for (size_t i = 0; i < record.launches.size(); ++i) {
    const auto& launch = record.launches[i];
    functions[i] = launch.kernel == nullptr ? reinterpret_cast<void*>(launch.recorded.function)
                                            : launch.kernel->on(device.index() < 0 ? 0 : device.index(), api, stream);
    if (functions[i] == nullptr) {
      return false;
    }
  }
  for (size_t i = 0; i < record.results.size(); ++i) {
    results[i] = allocate(record.results[i], key, device);
  }
  std::array<at::Tensor, kMostSpaces> spaces;
  for (size_t i = 0; i < record.spaces.size(); ++i) {
    spaces[i] = allocate(record.spaces[i], key, device);
  }
  for (const auto& launch : record.launches) {
    uint64_t values[kMostParams + 2];
    void* params[kMostParams + 2];
    size_t count = 0;
    for (const auto& param : launch.params) {
      uint64_t base = 0;
      if (param.kind == LaunchRecord::kArgument) {
        base = reinterpret_cast<uint64_t>(call.pointer[param.index]);
      } else if (param.kind != LaunchRecord::kNumber) {
        const at::Tensor& tensor = param.kind == LaunchRecord::kResult ? results[param.index] : spaces[param.index];
        base = reinterpret_cast<uint64_t>(tensor.mutable_data_ptr());
      }
      values[count++] = base + param.value;
    }
    values[count++] = 0;  // Triton's two scratch buffers, which these kernels do not use
    values[count++] = 0;
    for (size_t i = 0; i < count; ++i) {
      params[i] = &values[i];
    }
    const RecordedLaunch& recorded = launch.recorded;
    launched.fetch_add(1, std::memory_order_relaxed);
    const auto before = &launch - record.launches.data();
    const int status = api.launch(functions[before], recorded.grid[0], recorded.grid[1], recorded.grid[2],
                                  recorded.threads, 1, 1, recorded.shared, stream, params, nullptr);
    if (status != 0) {
      // An earlier launch may have written in place, for example running statistics; it must not run again.
      TORCH_CHECK(before == 0, "launch ", before + 1, " of ", record.launches.size(), " of this call failed on ", device,
                  " with the driver's status ", status, ". The launches before it ran: do not use tensors that the call "
                  "was to change in place");
      return false;
    }
  }
  return true;
}

// Fills in a launch record, which replaces each pointer of a launch by the argument, result or workspace that contains
// it; false if a call cannot be described so. `in_place`: the call's result is its first argument.
inline bool build(LaunchRecord& record, const CallKey& call, const Recorded& recorded, const at::Tensor* const* results,
                       int count, bool in_place) {
  record.key.assign(call.words, call.words + call.count);
  if (recorded.launches == 0 || count > kMostResults) {
    return false;
  }
  for (int i = 0; i < count && !in_place; ++i) {
    const at::Tensor& y = *results[i];
    if (!y.defined() || y.device() != call.tensor[0]->device() || y.storage_offset() != 0 || y.is_neg() || y.is_conj() ||
        y.storage().nbytes() != static_cast<size_t>(span(y)) || y.numel() == 0) {
      return false;
    }
    for (int j = 0; j < call.tensors; ++j) {
      if (y.storage().is_alias_of(call.tensor[j]->storage())) {
        return false;
      }
    }
    for (int j = 0; j < i; ++j) {
      if (y.storage().is_alias_of(results[j]->storage())) {
        return false;
      }
    }
    const auto symbolic = [](at::IntArrayRef from) { return std::vector<c10::SymInt>(from.begin(), from.end()); };
    record.results.push_back({y.scalar_type(), symbolic(y.sizes()), symbolic(y.strides())});
  }
  const auto is_result = [&](const Space& space) {
    return std::any_of(results, results + record.results.size(), [&](const at::Tensor* y) {
      return reinterpret_cast<uint64_t>(y->const_data_ptr()) == space.address;
    });
  };
  std::vector<Space> spaces;
  for (int i = 0; i < recorded.spaces; ++i) {
    if (!is_result(recorded.space[i])) {
      spaces.push_back(recorded.space[i]);
      record.spaces.push_back({at::kByte, {static_cast<int64_t>(recorded.space[i].bytes)}, {1}});
    }
  }
  std::array<bool, kMostResults> written{};
  for (int n = 0; n < recorded.launches; ++n) {
    const RecordedLaunch& recorded_launch = recorded.launch[n];
    LaunchRecord::Launch launch{recorded_launch, {}, nullptr};
    for (int i = 0; i < recorded_launch.count; ++i) {
      const uint64_t value = recorded_launch.values[i];
      LaunchRecord::Param param{LaunchRecord::kNumber, 0, value};
      if (recorded_launch.is_pointer[i] && value != 0) {
        int matches = 0;
        // First look for a tensor that starts at the address, then for the only tensor that contains it.
        for (int exact = 1; exact >= 0 && matches == 0; --exact) {
          const auto match = [&](LaunchRecord::Kind kind, int index, uint64_t start, uint64_t size) {
            const uint64_t offset = value - start;
            if (exact != 0 ? offset == 0 && matches == 0 : offset < size) {
              param = {kind, index, offset};
              ++matches;
            }
          };
          for (int j = 0; j < call.tensors; ++j) {
            match(LaunchRecord::kArgument, j, reinterpret_cast<uint64_t>(call.pointer[j]), span(*call.tensor[j]));
          }
          for (size_t j = 0; j < record.results.size(); ++j) {
            match(LaunchRecord::kResult, static_cast<int>(j), reinterpret_cast<uint64_t>(results[j]->const_data_ptr()),
                  span(*results[j]));
          }
          for (size_t j = 0; j < spaces.size(); ++j) {
            match(LaunchRecord::kSpace, static_cast<int>(j), spaces[j].address, spaces[j].bytes);
          }
        }
        if (matches != 1) {
          return false;
        }
      }
      if (param.kind == LaunchRecord::kResult) {
        written[param.index] = true;
      }
      launch.params.push_back(param);
    }
    record.launches.push_back(std::move(launch));
  }
  for (size_t j = 0; j < record.results.size(); ++j) {
    if (!written[j]) {
      return false;
    }
  }
  return true;
}

// ---- freeing replaced records ---------------------------------------------------------------------------------------
//
// Readers take no lock. Each thread stores the moment at which it begins to read. A replaced record stores the moment
// of its replacement, and is freed when every thread that is reading began later than that.

inline std::atomic<uint64_t> moment{1};

struct Reader {
  std::atomic<uint64_t> since{0};  // 0: this thread is not reading
  int depth = 0;                   // may nest: an allocator that is out of memory may call Python, and so our ops
};

class Readers {
 public:
  static Readers& all() {
    static auto* readers = new Readers;  // never freed, because threads may end after static destructors have run
    return *readers;
  }

  void add(Reader* reader) {
    std::lock_guard<std::mutex> guard(lock_);
    members_.push_back(reader);
  }

  void remove(Reader* reader) {
    std::lock_guard<std::mutex> guard(lock_);
    members_.erase(std::find(members_.begin(), members_.end(), reader));
  }

  // The moment at which the first of the reading threads began. Records replaced before it have no readers.
  uint64_t oldest() {
    std::lock_guard<std::mutex> guard(lock_);
    uint64_t oldest_moment = std::numeric_limits<uint64_t>::max();
    for (const Reader* reader : members_) {
      const uint64_t since = reader->since.load();
      oldest_moment = since == 0 ? oldest_moment : std::min(oldest_moment, since);
    }
    return oldest_moment;
  }

 private:
  std::vector<Reader*> members_;
  std::mutex lock_;
};

// While an instance exists, records that its thread finds in a `LaunchTable` are not freed.
class Reading {
 public:
  Reading() : reader_(of_this_thread()) {
    if (reader_.depth++ == 0) {
      reader_.since.store(moment.load());
    }
  }
  ~Reading() {
    if (--reader_.depth == 0) {
      reader_.since.store(0, std::memory_order_release);
    }
  }
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

 private:
  static Reader& of_this_thread() {
    struct Member {
      Reader reader;
      Member() { Readers::all().add(&reader); }
      ~Member() { Readers::all().remove(&reader); }
    };
    thread_local Member member;
    return member.reader;
  }

  Reader& reader_;
};

// How many calls with one key had no launch record.
//
// The sixth call is recorded, then the twelfth, the 24th and so on. The first recording may be unusable, because it
// includes planning, which may call torch's ops on the device; and a record may have been evicted.
struct CallCount {
  std::atomic<uint64_t> id{0};
  std::atomic<uint32_t> times{0};
  std::atomic<uint32_t> record_at{kCallsToRecord};
  std::atomic<bool> planned{false};  // Python has run a call with this key
  std::atomic<uint32_t> request_at{kCallsToRequest};  // number of calls after which the planner gets a request
  std::atomic<bool> refused{false};   // the planner has refused this key
  std::atomic<uint32_t> classes{0};   // the version of the size classes that were tried last

  void restart(uint64_t to) {
    id.store(to, std::memory_order_relaxed);
    times.store(0, std::memory_order_relaxed);
    record_at.store(kCallsToRecord, std::memory_order_relaxed);
    planned.store(false, std::memory_order_relaxed);
    request_at.store(kCallsToRequest, std::memory_order_relaxed);
    refused.store(false, std::memory_order_relaxed);
    classes.store(0, std::memory_order_relaxed);
  }

  bool should_request() const { return times.load(std::memory_order_relaxed) >= request_at.load(std::memory_order_relaxed); }

  // Schedules a later request, because the answer may be lost, or its record evicted.
  void requested(bool sent) {
    request_at.store((sent ? 64 : 2) * times.load(std::memory_order_relaxed), std::memory_order_relaxed);
  }

  bool should_record() const { return times.load(std::memory_order_relaxed) >= record_at.load(std::memory_order_relaxed); }

  void tried() {
    planned.store(true, std::memory_order_relaxed);
    record_at.store(2 * times.load(std::memory_order_relaxed), std::memory_order_relaxed);
  }
};

// The launch records of one op, in buckets of kWays, so that calls of a model that share a bucket do not evict each
// other: each eviction costs a call of Python. There are at most kBuckets * kWays records; a further one replaces an
// older one.
class LaunchTable {
 public:
  // The result is valid as long as the caller's `Reading` exists.
  const LaunchRecord* find(const CallKey& call, uint64_t hash) const {
    const Table* table = table_.load(std::memory_order_acquire);
    if (table == nullptr) {
      return nullptr;
    }
    const uint64_t now = epoch.load(std::memory_order_acquire);
    for (const auto& slot : (*table)[bucket_of(hash)].records) {
      const LaunchRecord* record = slot.load();
      if (record == nullptr) {
        return nullptr;
      }
      if (record->is_for(call, now)) {
        return record;
      }
    }
    return nullptr;
  }

  // Counts a call that has no launch record.
  CallCount& count(uint64_t hash) {
    Table* table = table_.load(std::memory_order_acquire);
    if (table == nullptr) {
      std::lock_guard<std::mutex> guard(lock_);
      table = created();
    }
    Bucket& bucket = (*table)[bucket_of(hash)];
    const uint64_t id = hash ^ epoch.load(std::memory_order_relaxed);
    size_t at = 0;
    while (at < kWays && bucket.counts[at].id.load(std::memory_order_relaxed) != id) {
      ++at;
    }
    if (at == kWays) {  // round robin: two alternating calls must not evict each other
      at = bucket.next.fetch_add(1, std::memory_order_relaxed) % kWays;
      bucket.counts[at].restart(id);
    }
    bucket.counts[at].times.fetch_add(1, std::memory_order_relaxed);
    return bucket.counts[at];
  }

  // The count of calls that differ only in sizes and strides. It has no bucket: new sizes would evict it.
  CallCount& with_other_sizes(const CallKey& call) {
    const uint64_t id = call.pattern() ^ epoch.load(std::memory_order_relaxed);
    for (CallCount& known : patterns_) {
      if (known.id.load(std::memory_order_relaxed) == id) {
        return known;
      }
    }
    CallCount& count = patterns_[next_pattern_.fetch_add(1, std::memory_order_relaxed) % kPatterns];
    count.restart(id);
    return count;
  }

  // Records that the planner cannot make launch records for calls with this key, or with this pattern.
  void refuse(uint64_t hash, uint64_t of_epoch) {
    const uint64_t id = hash ^ of_epoch;
    const auto mark = [id](CallCount& calls) {
      if (calls.id.load(std::memory_order_relaxed) == id) {
        calls.refused.store(true, std::memory_order_relaxed);
      }
    };
    std::for_each(patterns_.begin(), patterns_.end(), mark);
    if (Table* table = table_.load(std::memory_order_acquire)) {
      auto& counts = (*table)[bucket_of(hash)].counts;
      std::for_each(counts.begin(), counts.end(), mark);
    }
  }

  // Counts a call without a launch record; returns whether to record it now: the sixth one with its key, or the first
  // one if calls with several other sizes were recorded.
  bool should_record(const CallKey& call, uint64_t hash) {
    CallCount& calls = count(hash);
    const bool is_first = calls.times.load(std::memory_order_relaxed) == 1;
    if (!calls.should_record() &&
        !(is_first && with_other_sizes(call).times.load(std::memory_order_relaxed) >= kNewKeys)) {
      return false;
    }
    calls.tried();
    return true;
  }

  void keep(std::shared_ptr<const LaunchRecord> record, uint64_t hash) {
    std::vector<Replaced> unused;  // freed after the lock is released, because freeing a record may take the GIL
    std::lock_guard<std::mutex> guard(lock_);
    if (record->epoch != epoch.load(std::memory_order_acquire)) {
      return;
    }
    Bucket& bucket = (*created())[bucket_of(hash)];  // the planner's answer may arrive before the gate's first lookup
    size_t at = (hash >> 33) % kWays;
    for (size_t i = kWays; i-- > 0;) {
      const LaunchRecord* present = bucket.records[i].load();
      if (present == nullptr || present->epoch != record->epoch || present->key == record->key) {
        at = i;
      }
    }
    bucket.records[at].store(record.get());
    bucket.owned[at].swap(record);
    if (record != nullptr) {
      replaced_.push_back({moment.fetch_add(1), std::move(record)});
    }
    const uint64_t oldest = replaced_.empty() ? 0 : Readers::all().oldest();
    const auto may_be_read = [&](const Replaced& replaced) { return replaced.at >= oldest; };
    const auto first = std::partition(replaced_.begin(), replaced_.end(), may_be_read);
    unused.assign(std::make_move_iterator(first), std::make_move_iterator(replaced_.end()));
    replaced_.erase(first, replaced_.end());
  }

 private:
  struct Replaced {
    uint64_t at;
    std::shared_ptr<const LaunchRecord> record;
  };
  struct Bucket {
    std::array<std::atomic<const LaunchRecord*>, kWays> records{};
    std::array<std::shared_ptr<const LaunchRecord>, kWays> owned{};  // protected by the lock
    std::array<CallCount, kWays> counts{};
    std::atomic<uint32_t> next{0};
  };
  using Table = std::array<Bucket, kBuckets>;

  // The table, created on first use; the caller holds the lock.
  Table* created() {
    if (owned_ == nullptr) {
      owned_ = std::make_unique<Table>();
      table_.store(owned_.get(), std::memory_order_release);
    }
    return owned_.get();
  }

  std::array<CallCount, kPatterns> patterns_;
  std::atomic<uint32_t> next_pattern_{0};

  static size_t bucket_of(uint64_t hash) { return (hash >> 1) % kBuckets; }

  std::atomic<Table*> table_{nullptr};
  std::unique_ptr<Table> owned_;
  std::vector<Replaced> replaced_;
  std::mutex lock_;
};

}  // namespace opmux

using namespace opmux;

#ifdef OPMUX_LAUNCHES  // only in functions.cpp

#pragma GCC visibility push(default)
extern "C" {

// The caller must never free `with`.
void opmux_launches_driver(const Driver* with) { driver.store(with, std::memory_order_release); }

// Whether calls are launched from C++; if not, all go to Python.
void opmux_launches_launch(int on) { launching.store(on != 0 && driver.load() != nullptr, std::memory_order_release); }

uint64_t opmux_launches_launched() { return launched.load(std::memory_order_relaxed); }

int64_t opmux_launches_records() { return live_records.load(std::memory_order_relaxed); }

void opmux_launches_clear() { epoch.fetch_add(1, std::memory_order_acq_rel); }

}  // extern "C"
#pragma GCC visibility pop

#endif
