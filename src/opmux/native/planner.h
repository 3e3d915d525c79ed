// The client of the planner: a process that plans and compiles the calls of auto mode, so that this one never waits for
// Python or a compiler. It receives the key of a call and answers with a launch record. The other end is
// tools/planning.py; a message is a sequence of 64-bit words.

#pragma once

#include "launches.h"

#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <sstream>
#include <thread>

namespace {

enum Message : uint64_t {
  kKernel = 1,
  kRecipe = 2,
  kRefusal = 3,
  kFailure = 4,  // a temporary error, such as out of memory: the gate may send the key again
  kClass = 5,
  kDone = 6,  // the last message of an answer
};

using Kernels = std::map<uint64_t, std::shared_ptr<Kernel>>;  // that this process has made, by the planner's numbers

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
    const uint64_t found = word();
    ok = ok && found <= most;
    return ok ? found : 0;
  }
  std::string text() {
    const uint64_t size = count(4096);
    const uint64_t words = (size + 7) / 8;
    if (static_cast<uint64_t>(end - at) < words) {
      ok = false;
      return {};
    }
    std::string made(reinterpret_cast<const char*>(at), size);
    at += words;
    return made;
  }
};

// Reads what a call launches; false if the words make no sense.
bool fill(Recipe& made, Words& reader, const Kernels& kernels) {
  const auto sizes = [&](uint64_t count) {
    std::vector<c10::SymInt> found;
    for (uint64_t i = 0; i < count; ++i) {
      found.emplace_back(static_cast<int64_t>(reader.word()));
    }
    return found;
  };
  for (uint64_t left = reader.count(kMostWords); left > 0; --left) {
    made.look.push_back(reader.word());
  }
  for (uint64_t left = reader.count(kMostResults); left > 0; --left) {
    const auto type = static_cast<at::ScalarType>(reader.word());
    const uint64_t dims = reader.count(64);
    auto lengths = sizes(dims);
    made.results.push_back({type, std::move(lengths), sizes(dims)});
  }
  for (uint64_t left = reader.count(kMostSpaces); left > 0; --left) {
    made.spaces.push_back({at::kByte, sizes(1), {1}});
  }
  for (uint64_t left = reader.count(kMostLaunches); left > 0; --left) {
    Recipe::Launch launch{};
    const auto kernel = kernels.find(reader.word());
    reader.ok = reader.ok && kernel != kernels.end();
    if (!reader.ok) {
      return false;
    }
    launch.kernel = kernel->second;
    for (uint32_t& n : launch.seen.grid) {
      n = static_cast<uint32_t>(reader.word());
    }
    launch.seen.threads = static_cast<uint32_t>(reader.word());
    launch.seen.shared = launch.kernel->shared;
    for (uint64_t params = reader.count(kMostParams); params > 0; --params) {
      const auto kind = static_cast<Recipe::Kind>(reader.count(Recipe::kBytes));
      const int index = static_cast<int>(reader.count(kMostResults));
      launch.params.push_back({kind, index, reader.word()});
    }
    made.launches.push_back(std::move(launch));
  }
  return reader.ok && !made.launches.empty();
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
  std::vector<uint64_t> answer;  // to one call of the class: the words of its key, and what it launches
  Kernels kernels;

  // The answer to a key of so many words, or nothing if it is not of this class.
  std::vector<uint64_t> answer_to(const uint64_t* words, uint64_t count) const {
    if (count != answer[0]) {
      return {};
    }
    const uint64_t v = words[at - 1];
    if (v < low || v > high || (v - low) % step != 0) {
      return {};
    }
    auto made = answer;
    made[at] = v;
    for (const auto& one : formulas) {
      made[one.at] = one.of(v);
    }
    const bool same = std::memcmp(made.data() + 1, words, count * sizeof(uint64_t)) == 0;
    return same ? made : std::vector<uint64_t>();
  }

  bool read(Words& reader, const Kernels& all) {
    at = reader.word(), low = reader.word(), high = reader.word(), step = reader.word();
    for (uint64_t left = reader.count(4096); left > 0; --left) {
      Formula one{};
      for (uint64_t* word : {&one.at, &one.power, &one.factor, &one.divisor, &one.times, &one.plus}) {
        *word = reader.word();
      }
      formulas.push_back(one);
    }
    answer.assign(reader.at, reader.end);
    Recipe made;
    if (!fill(made, reader, all)) {
      return false;
    }
    const auto inside = [&](const Formula& one) { return one.at < answer.size() && one.divisor != 0; };
    for (const auto& [number, kernel] : all) {
      for (const auto& launch : made.launches) {
        if (launch.kernel == kernel) {
          kernels[number] = kernel;
        }
      }
    }
    return step != 0 && at != 0 && at <= answer[0] && std::all_of(formulas.begin(), formulas.end(), inside);
  }
};

// The recipes of one overload on one device, and the size classes that more are made from.
class Planned : public Recipes {
 public:
  static constexpr size_t kMost = 256;  // classes

  void add(std::shared_ptr<const SizeClass> one) {
    std::lock_guard<std::mutex> held(lock_);
    const auto replaces = [&](const std::shared_ptr<const SizeClass>& old) {
      return old->epoch != one->epoch || (old->low == one->low && old->high == one->high &&
                                          !old->answer_to(one->answer.data() + 1, one->answer[0]).empty());
    };
    classes_.erase(std::remove_if(classes_.begin(), classes_.end(), replaces), classes_.end());
    if (classes_.size() < kMost) {
      classes_.push_back(std::move(one));
    } else {
      classes_[next_++ % kMost] = std::move(one);
    }
    version_.fetch_add(1, std::memory_order_release);
  }

  // Makes a launch record from a size class; nullptr if no class fits, or none was added since this key was last tried.
  std::shared_ptr<const Recipe> make(const Look& call, uint64_t hash, Sighting& seen) {
    const uint32_t version = version_.load(std::memory_order_acquire);
    if (seen.classes.load(std::memory_order_relaxed) == version) {
      return nullptr;
    }
    seen.classes.store(version, std::memory_order_relaxed);
    auto made = std::make_shared<Recipe>();
    made->epoch = epoch.load(std::memory_order_acquire);
    if (!fill_from_class(*made, call)) {
      return nullptr;
    }
    keep(made, hash);
    return made;
  }

  // Whether to send a call without a launch record to the planner: at its second call, or at the first one if several
  // calls came whose keys differ from it only in sizes and strides.
  bool is_to_ask(const Look& call, const Sighting& seen) {
    if (seen.refused.load(std::memory_order_relaxed)) {
      return false;
    }
    if (seen.is_to_ask() || seen.times.load(std::memory_order_relaxed) > 1) {
      return seen.is_to_ask();
    }
    const Sighting& alike = saw(call.pattern());
    return alike.times.load(std::memory_order_relaxed) > kNewKeys && !alike.refused.load(std::memory_order_relaxed);
  }

 private:
  bool fill_from_class(Recipe& made, const Look& call) {
    std::lock_guard<std::mutex> held(lock_);
    for (auto one = classes_.rbegin(); one != classes_.rend(); ++one) {
      if ((*one)->epoch != made.epoch) {
        continue;
      }
      const auto answer = (*one)->answer_to(call.words, call.count);
      if (!answer.empty()) {
        Words reader{answer.data(), answer.data() + answer.size()};
        return fill(made, reader, (*one)->kernels);
      }
    }
    return false;
  }

  std::mutex lock_;
  std::vector<std::shared_ptr<const SizeClass>> classes_;
  size_t next_ = 0;
  std::atomic<uint32_t> version_{0};
};

class Planner {
 public:
  static Planner& instance() {
    static auto* made = new Planner;  // never freed: its thread may outlive everything else
    return *made;
  }

  // Asks on this socket from now on; -1: asks nobody. The socket stays open.
  void use(int socket) {
    owner_ = getpid();
    socket_.store(socket, std::memory_order_release);
    if (socket >= 0 && listening_.exchange(socket) != socket) {
      waiting_.store(0);
      std::thread([this, socket] { listen(socket); }).detach();
    }
  }

  bool is_there() const { return socket_.load(std::memory_order_relaxed) >= 0; }

  // The recipes of one overload on one device.
  void add(int64_t slot, const std::shared_ptr<Planned>& recipes) {
    std::lock_guard<std::mutex> held(lock_);
    recipes_[slot] = recipes;
  }

  // False: it was not sent, because there are too many questions already, or because this is a forked child.
  bool ask(int64_t slot, const Look& call, uint64_t hash) {
    const int socket = socket_.load(std::memory_order_acquire);
    if (socket < 0 || getpid() != owner_) {
      return false;
    }
    static_assert(kMostWords <= 128, "two words have a bit for each word");
    uint64_t message[kHead + kMostWords] = {static_cast<uint64_t>(slot), epoch.load(std::memory_order_acquire), hash,
                                            call.pattern(), call.sizes[0], call.sizes[1],
                                            static_cast<uint64_t>(call.count)};
    std::memcpy(message + kHead, call.words, call.count * sizeof(uint64_t));
    const size_t bytes = (kHead + call.count) * sizeof(uint64_t);
    waiting_.fetch_add(1, std::memory_order_relaxed);
    const bool sent = send(socket, message, bytes, MSG_DONTWAIT | MSG_NOSIGNAL) == static_cast<ssize_t>(bytes);
    if (!sent) {
      waiting_.fetch_sub(1, std::memory_order_relaxed);
    }
    return sent;
  }

  // Questions that are not answered yet.
  int64_t waiting() const { return is_there() ? waiting_.load(std::memory_order_relaxed) : 0; }

 private:
  static constexpr size_t kHead = 7;

  void listen(int socket) {
    std::vector<uint64_t> message(1 << 14);
    Kernels kernels;
    while (true) {
      const ssize_t got = recv(socket, message.data(), message.size() * sizeof(uint64_t), 0);
      if (got < 0 && errno == EINTR) {
        continue;
      }
      if (got <= 0) {  // it has ended
        int mine = socket;
        socket_.compare_exchange_strong(mine, -1);
        mine = socket;
        listening_.compare_exchange_strong(mine, -1);
        return;
      }
      Words reader{message.data(), message.data() + got / sizeof(uint64_t)};
      try {
        take(socket, reader, kernels);
      } catch (const std::exception&) {  // out of memory: calls of this key stay torch's
      }
    }
  }

  void take(int socket, Words& reader, Kernels& kernels) {
    const uint64_t kind = reader.word();
    if (kind == kKernel) {
      take_kernel(reader, kernels);
      return;
    }
    if (kind == kDone) {
      if (listening_.load() == socket) {  // else it answers what was asked of an earlier planner
        waiting_.fetch_sub(1, std::memory_order_relaxed);
      }
      return;
    }
    if (kind < kRecipe || kind > kClass) {
      return;
    }
    const auto slot = static_cast<int64_t>(reader.word());
    const uint64_t of_epoch = reader.word(), hash = kind == kClass ? 0 : reader.word();
    std::shared_ptr<Planned> recipes;
    {
      std::lock_guard<std::mutex> held(lock_);
      recipes = recipes_[slot].lock();
    }
    if (recipes == nullptr || !reader.ok || kind == kFailure) {
      return;
    }
    if (kind == kRefusal) {
      recipes->refuse(hash, of_epoch);
      return;
    }
    if (kind == kClass) {
      auto made = std::make_shared<SizeClass>();
      made->epoch = of_epoch;
      if (made->read(reader, kernels)) {
        recipes->add(std::move(made));
      }
      return;
    }
    auto made = std::make_shared<Recipe>();
    made->epoch = of_epoch;
    if (fill(*made, reader, kernels)) {
      recipes->keep(std::move(made), hash);
    }
  }

  void take_kernel(Words& reader, Kernels& kernels) {
    const uint64_t id = reader.word();
    auto made = std::make_shared<Kernel>();
    made->shared = static_cast<uint32_t>(reader.word());
    made->name = reader.text();
    std::ifstream file(reader.text(), std::ios::binary);
    std::stringstream image;
    image << file.rdbuf();
    made->image = image.str();
    if (reader.ok && file && !made->image.empty()) {
      kernels[id] = std::move(made);
    }
  }

  std::atomic<int> socket_{-1}, listening_{-1};
  std::atomic<int64_t> waiting_{0};
  pid_t owner_ = 0;
  std::mutex lock_;
  std::map<int64_t, std::weak_ptr<Planned>> recipes_;
};

}  // namespace
