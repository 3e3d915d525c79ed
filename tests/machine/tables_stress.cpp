// Ten threads use the launch tables as a long program with changing shapes would; test_sanitizers.py runs it with
// sanitizers. Prints the numbers of keys, hits, size-class hits, and records that are still in memory.

#include "planner.h"

#include <cstdio>

namespace {

// The key of an op on [n, width]; each (n, width) gives a different key of the same pattern.
CallKey key_of(uint64_t n, uint64_t width) {
  CallKey call;
  call.add(0);
  for (uint64_t word : {n, width, width, uint64_t{1}}) {
    call.size(word);
  }
  return call;
}

// The launch record of an op on [n, width]: one kernel, whose parameter is the number of elements.
std::vector<uint64_t> answer_of(uint64_t n, uint64_t width) {
  const CallKey call = key_of(n, width);
  std::vector<uint64_t> words{static_cast<uint64_t>(call.count)};
  words.insert(words.end(), call.words, call.words + call.count);
  // one result of dtype 6 and two dimensions, no workspace, one launch of kernel 7
  for (uint64_t word : {uint64_t{1}, uint64_t{6}, uint64_t{2}, n, width, width, uint64_t{1}, uint64_t{0}, uint64_t{1},
                        uint64_t{7}, uint64_t{3}, uint64_t{1}, uint64_t{1}, uint64_t{128}, uint64_t{1},
                        uint64_t{LaunchRecord::kNumber}, uint64_t{0}, n * width}) {
    words.push_back(word);
  }
  return words;
}

void check(bool right, const char* what) {
  if (!right) {
    std::fprintf(stderr, "check failed: %s\n", what);
    std::abort();
  }
}

// The table of one op, and the calls that a program makes with it.
struct World {
  PlannedTable table;
  Kernels kernels{{7, std::make_shared<Kernel>()}};
  std::atomic<uint64_t> keys{0}, hits{0}, by_class{0};

  std::shared_ptr<LaunchRecord> record(uint64_t n, uint64_t width, uint64_t of_epoch) {
    auto made = std::make_shared<LaunchRecord>();
    made->epoch = of_epoch;
    const auto answer = answer_of(n, width);
    Words reader{answer.data(), answer.data() + answer.size()};
    check(fill(*made, reader, kernels), "an answer can be read");
    return made;
  }

  void add_class(uint64_t width, uint64_t low, uint64_t high, uint64_t step) {
    auto made = std::make_shared<SizeClass>();
    made->epoch = epoch.load();
    const auto answer = answer_of(low, width);
    const uint64_t count = answer[0];
    std::vector<uint64_t> words{2, low, high, step, 2, count + 4, 1, 1, 1, 1, 0, answer.size() - 1, 1, width, 1, 1, 0};
    words.insert(words.end(), answer.begin(), answer.end());
    Words reader{words.data(), words.data() + words.size()};
    check(made->read(reader, kernels), "a class can be read");
    table.add(std::move(made));
  }

  static void check_launch(const LaunchRecord& found, uint64_t n, uint64_t width) {
    check(found.launches.size() == 1 && found.launches[0].params[0].value == n * width, "it launches its own call");
    check(found.results[0].sizes[0] == static_cast<int64_t>(n), "its result has the size of its call");
  }

  void call(uint64_t n, uint64_t width) {
    const CallKey key = key_of(n, width);
    const uint64_t hash = key.hash();
    keys.fetch_add(1);
    {
      const Reading reading;
      if (const LaunchRecord* found = table.find(key, hash)) {
        check_launch(*found, n, width);
        hits.fetch_add(1);
        return;
      }
    }
    CallCount& calls = table.count(hash);
    if (const auto made = table.make(key, hash, calls)) {
      check_launch(*made, n, width);
      by_class.fetch_add(1);
    } else if (table.should_request(key, calls)) {
      calls.requested(true);
      const uint64_t now = epoch.load();
      if (n % 5 == 0) {
        table.refuse(hash, now);
      } else {
        table.keep(record(n, width, now), hash);
      }
    }
  }
};

}  // namespace

int main(int, char** given) {
  const int rounds = std::atoi(given[1]);
  auto world = std::make_unique<World>();
  std::atomic<bool> ended{false};
  std::vector<std::thread> threads;
  for (uint64_t number = 0; number < 8; ++number) {
    threads.emplace_back([&, number] {
      uint64_t random = number + 1;
      for (int i = 0; i < rounds; ++i) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        const uint64_t n = 2 + (random >> 33) % 20000;
        world->call(n, 64);
        world->call(2 + n % 50, 32);  // repeated shapes
      }
    });
  }
  threads.emplace_back([&] {
    for (uint64_t i = 0; !ended; ++i) {
      const uint64_t low = 257 + 2 * (i % 50);
      world->add_class(64, low, low + 200, 2);
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  });
  threads.emplace_back([&] {
    while (!ended) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      epoch.fetch_add(1);  // as when a policy is set
    }
  });
  for (int i = 0; i < 8; ++i) {
    threads[i].join();
  }
  ended = true;
  threads[8].join();
  threads[9].join();
  const int64_t left = live_records.load();
  const uint64_t before = world->hits.load();
  for (int i = 0; i < 10; ++i) {  // the table still records new calls
    world->call(1'000'001, 64);
  }
  check(world->hits.load() > before, "a new call is recorded");
  std::printf("%llu %llu %llu %lld\n", static_cast<unsigned long long>(world->keys), static_cast<unsigned long long>(before),
              static_cast<unsigned long long>(world->by_class), static_cast<long long>(left));
  world.reset();
  check(live_records.load() <= 0, "all records are freed");
}
