// The client of the planner: a process that plans and compiles the calls of auto mode, so that this process never waits
// for Python or a compiler. The planner receives the key of a call and answers with a launch record. The server is
// tools/planning.py; a message is a sequence of 64-bit words.

#pragma once

#include "launches.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <new>
#include <sstream>
#include <thread>

namespace {

enum Message : uint64_t {
  kKernel = 1,
  kRecord = 2,  // a launch record
  kRefusal = 3,
  kFailure = 4,  // a temporary error, such as out of memory: the gate may send the key again
  kClass = 5,
  kDone = 6,  // the last message of an answer
};

using Kernels = std::map<uint64_t, std::shared_ptr<Kernel>>;  // key: the number that the planner gave the kernel

// Reads the words of one message.
struct Words {
  const uint64_t* at;
  const uint64_t* end;
  bool ok = true;

  uint64_t word() {
    if (at == end) {
      ok = false;
      return 0;
    }
    return *at++;
  }
  uint64_t count(uint64_t most) {
    const uint64_t number = word();
    ok = ok && number <= most;
    return ok ? number : 0;
  }
  std::string text() {
    const uint64_t size = count(4096);
    const uint64_t words = (size + 7) / 8;
    if (static_cast<uint64_t>(end - at) < words) {
      ok = false;
      return {};
    }
    std::string text(reinterpret_cast<const char*>(at), size);
    at += words;
    return text;
  }
};

// Reads what a call launches; false if the words are not valid.
bool fill(LaunchRecord& record, Words& reader, const Kernels& kernels) {
  const auto sizes = [&](uint64_t count) {
    std::vector<c10::SymInt> values;
    for (uint64_t i = 0; i < count; ++i) {
      values.emplace_back(static_cast<int64_t>(reader.word()));
    }
    return values;
  };
  for (uint64_t left = reader.count(kMostWords); left > 0; --left) {
    record.key.push_back(reader.word());
  }
  for (uint64_t left = reader.count(kMostResults); left > 0; --left) {
    const auto type = static_cast<at::ScalarType>(reader.word());
    const uint64_t dims = reader.count(64);
    auto lengths = sizes(dims);
    record.results.push_back({type, std::move(lengths), sizes(dims)});
  }
  for (uint64_t left = reader.count(kMostSpaces); left > 0; --left) {
    record.spaces.push_back({at::kByte, sizes(1), {1}});
  }
  for (uint64_t left = reader.count(kMostLaunches); left > 0; --left) {
    LaunchRecord::Launch launch{};
    const auto kernel = kernels.find(reader.word());
    reader.ok = reader.ok && kernel != kernels.end();
    if (!reader.ok) {
      return false;
    }
    launch.kernel = kernel->second;
    for (uint32_t& n : launch.recorded.grid) {
      n = static_cast<uint32_t>(reader.word());
    }
    launch.recorded.threads = static_cast<uint32_t>(reader.word());
    launch.recorded.shared = launch.kernel->shared;
    for (uint64_t params = reader.count(kMostParams); params > 0; --params) {
      const auto kind = static_cast<LaunchRecord::Kind>(reader.count(LaunchRecord::kNumber));
      const int index = static_cast<int>(reader.count(kMostResults));
      launch.params.push_back({kind, index, reader.word()});
    }
    record.launches.push_back(std::move(launch));
  }
  return reader.ok && !record.launches.empty();
}

// The launches of all calls whose keys differ only in one size and in words computed from it (tools/size_classes.py).
struct SizeClass {
  struct Formula {
    uint64_t at, power, factor, divisor, times, plus;

    uint64_t of(uint64_t v) const {
      const uint64_t product = factor * (power == 0 ? 1 : power == 1 ? v : v * v);
      return times * ((product + divisor - 1) / divisor) + plus;
    }
  };

  uint64_t epoch = 0, at = 0, low = 0, high = 0, step = 1;
  std::vector<Formula> formulas;
  std::vector<uint64_t> answer;  // the answer to one call of the class: the words of its key, and what it launches
  Kernels kernels;

  // The answer to a key of `count` words; empty if the key does not belong to this class.
  std::vector<uint64_t> answer_to(const uint64_t* words, uint64_t count) const {
    if (count != answer[0]) {
      return {};
    }
    const uint64_t v = words[at - 1];
    if (v < low || v > high || (v - low) % step != 0) {
      return {};
    }
    auto filled = answer;
    filled[at] = v;
    for (const auto& formula : formulas) {
      filled[formula.at] = formula.of(v);
    }
    const bool same = std::memcmp(filled.data() + 1, words, count * sizeof(uint64_t)) == 0;
    return same ? filled : std::vector<uint64_t>();
  }

  bool read(Words& reader, const Kernels& all) {
    at = reader.word(), low = reader.word(), high = reader.word(), step = reader.word();
    for (uint64_t left = reader.count(4096); left > 0; --left) {
      Formula formula{};
      for (uint64_t* word :
           {&formula.at, &formula.power, &formula.factor, &formula.divisor, &formula.times, &formula.plus}) {
        *word = reader.word();
      }
      formulas.push_back(formula);
    }
    answer.assign(reader.at, reader.end);
    LaunchRecord record;
    if (!fill(record, reader, all)) {
      return false;
    }
    const auto inside = [&](const Formula& formula) { return formula.at < answer.size() && formula.divisor != 0; };
    for (const auto& [number, kernel] : all) {
      for (const auto& launch : record.launches) {
        if (launch.kernel == kernel) {
          kernels[number] = kernel;
        }
      }
    }
    return step != 0 && at != 0 && at <= answer[0] && std::all_of(formulas.begin(), formulas.end(), inside);
  }
};

// The launch records of one overload on one device, and the size classes from which further records are made.
class PlannedTable : public LaunchTable {
 public:
  static constexpr size_t kMost = 256;  // classes

  void add(std::shared_ptr<const SizeClass> added) {
    std::lock_guard<std::mutex> guard(lock_);
    const auto replaces = [&](const std::shared_ptr<const SizeClass>& old) {
      return old->epoch != added->epoch || (old->low == added->low && old->high == added->high &&
                                            !old->answer_to(added->answer.data() + 1, added->answer[0]).empty());
    };
    classes_.erase(std::remove_if(classes_.begin(), classes_.end(), replaces), classes_.end());
    if (classes_.size() < kMost) {
      classes_.push_back(std::move(added));
    } else {
      classes_[next_++ % kMost] = std::move(added);
    }
    version_.fetch_add(1, std::memory_order_release);
  }

  // Makes a launch record from a size class; nullptr if none fits, or if no class was added since the last try.
  std::shared_ptr<const LaunchRecord> make(const CallKey& call, uint64_t hash, CallCount& calls) {
    const uint32_t version = version_.load(std::memory_order_acquire);
    if (calls.classes.load(std::memory_order_relaxed) == version) {
      return nullptr;
    }
    calls.classes.store(version, std::memory_order_relaxed);
    auto record = std::make_shared<LaunchRecord>();
    record->epoch = epoch.load(std::memory_order_acquire);
    if (!fill_from_class(*record, call)) {
      return nullptr;
    }
    keep(record, hash);
    return record;
  }

  // Whether to send a call without a launch record to the planner: at its second call, or at its first call if several
  // earlier keys differ from it only in sizes and strides.
  bool should_request(const CallKey& call, const CallCount& calls) {
    if (calls.refused.load(std::memory_order_relaxed)) {
      return false;
    }
    if (calls.should_request() || calls.times.load(std::memory_order_relaxed) > 1) {
      return calls.should_request();
    }
    CallCount& others = with_other_sizes(call);
    const uint32_t before = others.times.fetch_add(1, std::memory_order_relaxed);
    return before >= kNewKeys && !others.refused.load(std::memory_order_relaxed);
  }

 private:
  bool fill_from_class(LaunchRecord& record, const CallKey& call) {
    std::lock_guard<std::mutex> guard(lock_);
    for (auto size_class = classes_.rbegin(); size_class != classes_.rend(); ++size_class) {
      if ((*size_class)->epoch != record.epoch) {
        continue;
      }
      const auto answer = (*size_class)->answer_to(call.words, call.count);
      if (!answer.empty()) {
        Words reader{answer.data(), answer.data() + answer.size()};
        return fill(record, reader, (*size_class)->kernels);
      }
    }
    return false;
  }

  std::mutex lock_;
  std::vector<std::shared_ptr<const SizeClass>> classes_;
  size_t next_ = 0;
  std::atomic<uint32_t> version_{0};
};

// One connection to a planner, and the requests that were sent over it.
struct Connection {
  explicit Connection(int socket, ino_t inode) : socket(socket), inode(inode) {}
  ~Connection() { close(socket); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  const int socket;   // a duplicate of the caller's descriptor: its number is not reused while a thread may send
  const ino_t inode;  // the socket's inode; identifies the socket under another descriptor
  std::atomic<int64_t> waiting{0};
};

class Planner {
 public:
  static Planner& instance() {
    static auto* planner = new Planner;  // never freed: its thread may outlive static objects
    return *planner;
  }

  // Sends requests to this socket from now on; -1: sends none. The caller may close its own descriptor. A forked child
  // has no planner until it calls this.
  void use(int socket) {
    struct stat status {};
    const bool on = socket >= 0 && fstat(socket, &status) == 0;
    std::lock_guard<std::mutex> guard(lock_);
    if (on && (connection_ == nullptr || connection_->inode != status.st_ino)) {
      const int duplicate = fcntl(socket, F_DUPFD_CLOEXEC, 0);
      connection_ = duplicate < 0 ? nullptr : std::make_shared<Connection>(duplicate, status.st_ino);
      try {
        if (connection_ != nullptr) {
          std::thread([this, to = connection_] { listen(to); }).detach();
        }
      } catch (const std::exception&) {  // no thread can be started: calls are recorded in this process
        connection_ = nullptr;
      }
    }
    is_there_.store(on && connection_ != nullptr, std::memory_order_release);
  }

  bool is_there() const { return is_there_.load(std::memory_order_relaxed); }

  // The launch records of one overload on one device. They stay when its gate is removed, for the next `enable()`.
  std::shared_ptr<PlannedTable> table(int64_t slot) {
    std::lock_guard<std::mutex> guard(lock_);
    auto& table = tables_[slot];
    if (table == nullptr) {
      table = std::make_shared<PlannedTable>();
    }
    return table;
  }

  // Returns false if the request was not sent, because too many are unanswered.
  bool request(int64_t slot, const CallKey& call, uint64_t hash) {
    const auto to = connection();
    if (to == nullptr) {
      return false;
    }
    static_assert(kMostWords <= 128, "two words have a bit for each word");
    uint64_t message[kHead + kMostWords] = {static_cast<uint64_t>(slot), epoch.load(std::memory_order_acquire), hash,
                                            call.pattern(), call.sizes[0], call.sizes[1],
                                            static_cast<uint64_t>(call.count)};
    std::memcpy(message + kHead, call.words, call.count * sizeof(uint64_t));
    const size_t bytes = (kHead + call.count) * sizeof(uint64_t);
    to->waiting.fetch_add(1, std::memory_order_relaxed);
    const bool sent = send(to->socket, message, bytes, MSG_DONTWAIT | MSG_NOSIGNAL) == static_cast<ssize_t>(bytes);
    if (!sent) {
      to->waiting.fetch_sub(1, std::memory_order_relaxed);
    }
    return sent;
  }

  // The number of unanswered requests.
  int64_t waiting() {
    const auto to = is_there() ? connection() : nullptr;
    return to == nullptr ? 0 : to->waiting.load(std::memory_order_relaxed);
  }

 private:
  static constexpr size_t kHead = 7;

  std::shared_ptr<Connection> connection() {
    std::lock_guard<std::mutex> guard(lock_);
    return connection_;
  }

  Planner() {
    pthread_atfork(nullptr, nullptr, [] { instance().start_in_child(); });
  }

  // In a forked child: the connection belongs to the parent, and the thread that held the lock may not exist here.
  void start_in_child() {
    is_there_.store(false);
    new (&lock_) std::mutex;
    if (connection_ != nullptr) {
      close(connection_->socket);
      new (&connection_) std::shared_ptr<Connection>;  // never freed: that would close the descriptor again
    }
  }

  void listen(const std::shared_ptr<Connection>& from) {
    std::vector<uint64_t> message(1 << 14);
    Kernels kernels;
    while (true) {
      const ssize_t received = recv(from->socket, message.data(), message.size() * sizeof(uint64_t), 0);
      if (received < 0 && errno == EINTR) {
        continue;
      }
      if (received <= 0) {  // the planner has ended or was replaced
        std::lock_guard<std::mutex> guard(lock_);
        if (connection_ == from) {
          is_there_.store(false, std::memory_order_release);
          connection_ = nullptr;
        }
        return;
      }
      Words reader{message.data(), message.data() + received / sizeof(uint64_t)};
      try {
        take(*from, reader, kernels);
      } catch (const std::exception&) {  // out of memory: torch's kernel runs calls with this key
      }
    }
  }

  void take(Connection& from, Words& reader, Kernels& kernels) {
    const uint64_t kind = reader.word();
    if (kind == kKernel) {
      take_kernel(reader, kernels);
      return;
    }
    if (kind == kDone) {
      from.waiting.fetch_sub(1, std::memory_order_relaxed);
      return;
    }
    if (kind < kRecord || kind > kClass) {
      return;
    }
    const auto slot = static_cast<int64_t>(reader.word());
    const uint64_t of_epoch = reader.word(), hash = kind == kClass ? 0 : reader.word();
    std::shared_ptr<PlannedTable> table;
    {
      std::lock_guard<std::mutex> guard(lock_);
      const auto known = tables_.find(slot);
      table = known == tables_.end() ? nullptr : known->second;
    }
    if (table == nullptr || !reader.ok || kind == kFailure) {
      return;
    }
    if (kind == kRefusal) {
      table->refuse(hash, of_epoch);
      return;
    }
    if (kind == kClass) {
      auto size_class = std::make_shared<SizeClass>();
      size_class->epoch = of_epoch;
      if (size_class->read(reader, kernels)) {
        table->add(std::move(size_class));
      }
      return;
    }
    auto record = std::make_shared<LaunchRecord>();
    record->epoch = of_epoch;
    if (fill(*record, reader, kernels)) {
      table->keep(std::move(record), hash);
    }
  }

  void take_kernel(Words& reader, Kernels& kernels) {
    const uint64_t id = reader.word();
    auto kernel = std::make_shared<Kernel>();
    kernel->shared = static_cast<uint32_t>(reader.word());
    kernel->name = reader.text();
    std::ifstream file(reader.text(), std::ios::binary);
    std::stringstream image;
    image << file.rdbuf();
    kernel->image = image.str();
    if (reader.ok && file && !kernel->image.empty()) {
      kernels[id] = std::move(kernel);
    }
  }

  std::atomic<bool> is_there_{false};
  std::mutex lock_;  // protects everything below
  std::shared_ptr<Connection> connection_;
  std::map<int64_t, std::shared_ptr<PlannedTable>> tables_;
};

}  // namespace
