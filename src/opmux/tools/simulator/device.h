// Devices made of host memory: what torch needs from an accelerator before the first op.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace opmux::simulator {

using c10::DeviceIndex;
using c10::DispatchKey;
using c10::DispatchKeySet;

constexpr auto DEVICE = c10::DeviceType::PrivateUse1;
constexpr DeviceIndex MOST = 64;  // devices

inline DeviceIndex count = 1;
inline thread_local DeviceIndex current = 0;

inline DeviceIndex checked(DeviceIndex index) {
  TORCH_CHECK(
      index >= 0 && index < count, "there is no device ", c10::Device(DEVICE, index), ": ", count, " are simulated");
  return index;
}

inline DeviceIndex or_current(DeviceIndex index) { return index < 0 ? current : checked(index); }

// ---- memory ---------------------------------------------------------------------------------------------------------

// Host memory that is counted as a device's. All bits of fresh memory are 1: NaN or -1 if a kernel does not write it.
class Memory final : public c10::DeviceAllocator {
 public:
  using Stats = c10::CachingDeviceAllocator::DeviceStats;

  c10::DataPtr allocate(size_t bytes) override {
    const auto where = c10::Device(DEVICE, current);
    if (bytes == 0) {
      return {nullptr, nullptr, &release, where};
    }
    void* memory = nullptr;
    if (posix_memalign(&memory, 64, bytes) != 0) {
      TORCH_CHECK_WITH(OutOfMemoryError, false, where, ": no ", bytes, " bytes of host memory are left");
    }
    std::memset(memory, 0xFF, bytes);
    add(current, static_cast<int64_t>(bytes));
    return {memory, new Block{memory, bytes, current}, &release, where};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }  // a block is more than its address
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }

  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}

  Stats getDeviceStats(DeviceIndex device) override {
    std::lock_guard<std::mutex> guard(mutex_);
    return stats_.at(checked(device));
  }
  void resetAccumulatedStats(DeviceIndex device) override {
    each(device, [](auto& stat) { stat.reset_accumulated(); });
  }
  void resetPeakStats(DeviceIndex device) override {
    each(device, [](auto& stat) { stat.reset_peak(); });
  }
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override {
    const auto used = getDeviceStats(device).allocated_bytes[0].current;
    return {TOTAL - std::min<size_t>(used, TOTAL), TOTAL};
  }

 private:
  struct Block {
    void* memory;
    size_t bytes;
    DeviceIndex device;
  };
  static constexpr size_t TOTAL = size_t{16} << 30;  // what a device reports; no allocation is refused

  static void release(void* pointer);

  void add(DeviceIndex device, int64_t bytes) {
    std::lock_guard<std::mutex> guard(mutex_);
    auto& stats = stats_[device];
    for (auto* sum : {&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes, &stats.requested_bytes}) {
      bytes > 0 ? (*sum)[0].increase(bytes) : (*sum)[0].decrease(-bytes);
    }
    for (auto* number : {&stats.allocation, &stats.segment, &stats.active}) {
      bytes > 0 ? (*number)[0].increase(1) : (*number)[0].decrease(1);
    }
  }
  template <class Change>
  void each(DeviceIndex device, Change change) {
    std::lock_guard<std::mutex> guard(mutex_);
    auto& s = stats_.at(checked(device));
    for (auto* array : {&s.allocated_bytes, &s.reserved_bytes, &s.active_bytes, &s.requested_bytes, &s.allocation,
                        &s.segment, &s.active}) {
      change((*array)[0]);
    }
  }

  std::mutex mutex_;
  std::array<Stats, MOST> stats_;
};

inline Memory& memory() {
  static auto* one = new Memory;  // never destroyed: tensors may outlive the statics of this library
  return *one;
}

inline void Memory::release(void* pointer) {
  auto* block = static_cast<Block*>(pointer);
  memory().add(block->device, -static_cast<int64_t>(block->bytes));
  std::free(block->memory);
  delete block;
}

// Pinned memory is host memory whose addresses are remembered.
class PinnedMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = nullptr;
    if (bytes != 0 && posix_memalign(&memory, 64, bytes) != 0) {
      TORCH_CHECK_WITH(OutOfMemoryError, false, "no ", bytes, " bytes of host memory are left to pin");
    }
    std::lock_guard<std::mutex> guard(mutex_);
    pinned_.insert(memory);
    return {memory, memory, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
  bool has(const void* memory) {
    std::lock_guard<std::mutex> guard(mutex_);
    return memory != nullptr && pinned_.count(memory) != 0;
  }

 private:
  static void release(void* memory);

  std::mutex mutex_;
  std::set<const void*> pinned_;
};

inline PinnedMemory& pinned_memory() {
  static auto* one = new PinnedMemory;
  return *one;
}

inline void PinnedMemory::release(void* memory) {
  auto& all = pinned_memory();
  {
    std::lock_guard<std::mutex> guard(all.mutex_);
    all.pinned_.erase(memory);
  }
  std::free(memory);
}

inline c10::Storage new_storage(size_t bytes) {
  return c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, memory().allocate(bytes), &memory(), /*resizable=*/true);
}

// Replace a storage's memory by new memory of its device, and copy these bytes to its start.
inline void replace_memory(c10::StorageImpl& storage, const void* from, size_t old_bytes, size_t bytes) {
  c10::DeviceGuard guard(storage.device());
  auto fresh = memory().allocate(bytes);
  if (old_bytes != 0 && bytes != 0) {
    std::memcpy(fresh.get(), from, std::min(old_bytes, bytes));
  }
  storage.set_data_ptr_noswap(std::move(fresh));
  storage.set_nbytes(bytes);
}

// ---- streams and events: all work is done when a call returns -------------------------------------------------------

struct Event {
  std::chrono::steady_clock::time_point time;
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return DEVICE; }
  c10::DeviceIndex deviceCount() const noexcept override { return count; }

  c10::Device getDevice() const override { return {DEVICE, current}; }
  void setDevice(c10::Device device) const override { current = checked(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current = device.index(); }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto before = getDevice();
    setDevice(device);
    return before;
  }

  c10::Stream getStream(c10::Device device) const override {
    return stream_of(device, streams()[or_current(device.index())]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream_of(device, 0); }
  c10::Stream getNewStream(c10::Device device, int) const override {
    static std::atomic<c10::StreamId> next{0};
    return stream_of(device, ++next);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    auto& now = streams()[checked(stream.device_index())];
    const auto before = stream_of(stream.device(), now);
    now = stream.id();
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return reinterpret_cast<void*>(stream.id()); }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(const DeviceIndex) const override {}
  c10::DeviceCapability getDeviceCapability(c10::Device) const override { return {}; }

  void record(void** event, const c10::Stream&, const DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) {
      *event = new Event;
    }
    static_cast<Event*>(*event)->time = std::chrono::steady_clock::now();
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  double elapsedTime(void* from, void* to, const DeviceIndex) const override {
    const auto between = static_cast<Event*>(to)->time - static_cast<Event*>(from)->time;
    return std::chrono::duration<double, std::milli>(between).count();
  }

 private:
  static std::array<c10::StreamId, MOST>& streams() {
    thread_local std::array<c10::StreamId, MOST> of_device{};
    return of_device;
  }
  static c10::Stream stream_of(c10::Device device, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(DEVICE, or_current(device.index())), id);
  }
};

// ---- random numbers -------------------------------------------------------------------------------------------------

// A device's generator contains a CPU generator, so that a seed gives the same numbers as on the CPU.
// Its offset is for kernels with counter-based random numbers; nothing here reads it.
struct Generator final : c10::GeneratorImpl {
  explicit Generator(DeviceIndex index, at::Generator host = at::detail::createCPUGenerator())
      : GeneratorImpl({DEVICE, index}, DispatchKeySet(DispatchKey::PrivateUse1)), host(std::move(host)) {}

  at::Generator host;

  void set_current_seed(uint64_t seed) override { host.set_current_seed(seed), offset_ = 0; }
  uint64_t current_seed() const override { return host.current_seed(); }
  uint64_t seed() override { return offset_ = 0, host.seed(); }
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }

  // The state of the CPU's generator, then the offset.
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    const auto inner = host.get_state();
    auto state = at::detail::empty_cpu({inner.numel() + OFFSET}, at::kByte);
    auto* bytes = static_cast<uint8_t*>(state.mutable_data_ptr());
    std::memcpy(bytes, inner.const_data_ptr(), inner.numel());
    std::memcpy(bytes + inner.numel(), &offset_, OFFSET);
    return state.getIntrusivePtr();
  }
  void set_state(const c10::TensorImpl& state) override {
    const bool bytes_of_cpu = state.device_type() == at::kCPU && state.dtype() == at::kByte && state.is_contiguous();
    TORCH_CHECK(
        bytes_of_cpu && state.numel() > OFFSET,
        "a generator's state is what get_state() gave: bytes on the CPU");
    auto inner = at::detail::empty_cpu({state.numel() - OFFSET}, at::kByte);
    const auto* bytes = static_cast<const uint8_t*>(state.data());
    std::memcpy(inner.mutable_data_ptr(), bytes, inner.numel());
    std::memcpy(&offset_, bytes + inner.numel(), OFFSET);
    host.set_state(at::Tensor(inner));
  }

 private:
  static constexpr int64_t OFFSET = sizeof(uint64_t);
  uint64_t offset_ = 0;

  Generator* clone_impl() const override {
    auto* other = new Generator(device_.index(), host.clone());
    other->offset_ = offset_;
    return other;
  }
};

inline const at::Generator& default_generator(DeviceIndex index) {
  static auto* all = [] {
    auto* generators = new std::vector<at::Generator>;
    for (DeviceIndex i = 0; i < count; ++i) {
      generators->push_back(at::make_generator<Generator>(i));
      generators->back().seed();
    }
    return generators;
  }();
  return all->at(or_current(index));
}

inline at::Generator host_of(const at::Generator& generator) {
  auto* own = dynamic_cast<Generator*>(generator.unsafeGetGeneratorImpl());
  TORCH_CHECK(
      own != nullptr, "Expected a '", c10::Device(DEVICE).str(), "' device type for generator but found '",
      generator.device(), "'");
  return own->host;
}

// Lets the CPU's default generator draw the device's numbers while it exists, for ops that take no generator.
class SharedGenerator {
 public:
  explicit SharedGenerator(DeviceIndex index)
      : device_generator_(host_of(default_generator(index))), cpu_state_(cpu_.get_state()) {
    cpu_.set_state(device_generator_.get_state());
  }
  ~SharedGenerator() {
    device_generator_.set_state(cpu_.get_state());
    cpu_.set_state(cpu_state_);
  }

 private:
  at::Generator cpu_ = at::detail::getDefaultCPUGenerator();
  at::Generator device_generator_;
  at::Tensor cpu_state_;
};

// ---- what torch asks of an accelerator ------------------------------------------------------------------------------

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return count; }
  DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(DeviceIndex index) const override { current = checked(index); }
  DeviceIndex exchangeDevice(DeviceIndex index) const override { return std::exchange(current, checked(index)); }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override {
    return index < 0 ? current : exchangeDevice(index);
  }
  bool isPinnedPtr(const void* data) const override { return pinned_memory().has(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory(); }
  const at::Generator& getDefaultGenerator(DeviceIndex index) const override { return default_generator(index); }
  at::Generator getNewGenerator(DeviceIndex index) const override {
    return at::make_generator<Generator>(or_current(index));
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    auto& impl = *storage.unsafeGetStorageImpl();
    replace_memory(impl, impl.data(), impl.nbytes(), bytes);
  }
};

}  // namespace opmux::simulator
