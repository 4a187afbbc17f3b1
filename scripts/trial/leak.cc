// A server of sessions: each of four threads takes 450,000 requests, which are two million
// allocations in all. Each ninth request opens a session that is never closed.
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <thread>
#include <vector>

static std::uint64_t checksums[4];

// With TEXT, the memory of a session is in a string, which the C++ library grows.
#ifdef TEXT
struct Session {
  std::uint64_t id;
  std::string state;
};
#else
struct Session {
  std::uint64_t id;
  char state[232];
};
#endif

__attribute__((noinline)) Session *open_session(std::uint64_t id) {
#ifdef TEXT
  Session *session = new Session();
  session->state.append(232, 'x');  // the text
#else
  Session *session = new Session();  // the leak
#endif
  session->id = id;
  return session;
}

static std::uint64_t read(const std::string &request) {
  std::uint64_t hash = 0;
  for (int pass = 0; pass < 4; pass++) {
    for (char letter : request) {
      hash = hash * 31 + static_cast<unsigned char>(letter);
    }
  }
  return hash;
}

static void serve(int thread) {
  std::map<std::uint64_t, std::string> recent;
  std::uint64_t checksum = 0;
  for (std::uint64_t id = 0; id < 450000; id++) {
    if (id % 9 == 0) {
      checksum += open_session(id)->id;
    }
    std::string &request = recent[id % 1000];
    request = std::string(20 + id % 200, 'x');
    checksum += read(request);
  }
  checksums[thread] = checksum;
}

int main() {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; i++) {
    threads.emplace_back(serve, i);
  }
  for (auto &thread : threads) {
    thread.join();
  }
  std::printf("%llu\n", static_cast<unsigned long long>(checksums[0]));
}
