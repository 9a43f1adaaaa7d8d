// The threads that oneDNN computes with: one pool for the process, asleep between calls.
//
// Idea: oneDNN's library is built for GNU OpenMP and asks for threads through ten functions of libgomp. They are
// defined here, and the dynamic linker finds these first, because this library is loaded before libgomp. libgomp would
// make a team for each of XLA's threads that calls, let them spin for milliseconds while XLA computes, and hang in a
// forked process that had used it before.
//
// Rule: one call at a time (`anytpu::Turn`), so a team always has a thread for each of its members, as oneDNN's own
// barriers expect. A thread claims the number of a member, runs it to its end, and claims the next. So the caller does
// the work of a helper that other programs keep from its processor, unless that helper has begun. Helpers take over the
// caller's floating-point mode: XLA counts denormal numbers as zero.

#include "threads.h"

#include <immintrin.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

namespace {

// Number of checks before a waiting thread sleeps (about 20 us) or yields.
constexpr int kLooks = 1000;

// Number of checks for a helper to begin before the caller does its work (about 100 us): waking a thread takes as long
// on a quiet machine. It is halved each time that no helper came, and restored when one came by itself.
constexpr int kPatience = 5000;

// A team's claims: its round, its size, and the next member that no thread has claimed.
constexpr uint64_t claims_of(uint32_t round, uint64_t size, uint64_t next) {
  return uint64_t{round} << 32 | size << 16 | next;
}
constexpr int size_of(uint64_t claims) { return static_cast<int>(claims >> 16 & 0xffff); }
constexpr int next_of(uint64_t claims) { return static_cast<int>(claims & 0xffff); }

struct Team {
  void (*function)(void*) = nullptr;
  void* argument = nullptr;
  int size = 1;
  unsigned mode = 0;
};

thread_local int thread_number = 0;
thread_local int team_size = 1;
thread_local bool is_in_team = false;
thread_local int most_threads = INT_MAX;
thread_local std::vector<std::pair<int, int>> outer;  // number and size in the teams around an inner one
thread_local long loop_next = 0, loop_end = 0;

std::mutex turn;
Team team;
std::atomic<uint32_t> round{0};      // counts the teams; helpers wait for it to change
std::atomic<uint64_t> claims{0};     // of this round; a claim is one compare-and-swap
std::atomic<int> unfinished{0};      // members of this round that have not finished, without the caller's own
std::atomic<int> arrived{0};         // threads at the present barrier
std::atomic<uint32_t> barriers{0};   // counts the barriers passed
std::vector<pthread_t> hired;
int avoided = -1;  // the processor that all of them keep from; -1 if none
int patience = kPatience;  // checks that the caller has patience for now

int helpers() { return static_cast<int>(hired.size()); }

// The processors that this process may use.
const cpu_set_t& allowed() {
  static const cpu_set_t set = [] {
    cpu_set_t found;
    CPU_ZERO(&found);
    sched_getaffinity(getpid(), sizeof found, &found);
    return found;
  }();
  return set;
}

int processors() { return std::max(1, CPU_COUNT(&allowed())); }

// Keep the helpers from a processor: the caller's. Linux may wake a helper where its caller runs, although another
// processor is idle or soon will be; the helper then waits until the caller sleeps.
void keep_helpers_from(int processor) {
  if (processor == avoided) return;
  cpu_set_t others = allowed();
  CPU_CLR(processor, &others);
  if (CPU_COUNT(&others) == 0) return;
  for (pthread_t helper : hired) pthread_setaffinity_np(helper, sizeof others, &others);
  avoided = processor;
}

// Claim a member of this round's team. Return its number, or 0 if all are claimed.
int claim() {
  uint64_t now = claims.load(std::memory_order_acquire);
  while (next_of(now) < size_of(now)) {
    // The round is part of the value, so a claim of an old round fails.
    if (claims.compare_exchange_weak(now, now + 1, std::memory_order_acq_rel)) return next_of(now);
  }
  return 0;
}

void run(int member) {
  thread_number = member;
  team_size = team.size;
  team.function(team.argument);
  if (unfinished.fetch_sub(1, std::memory_order_acq_rel) == 1) unfinished.notify_one();
}

// Let helpers claim the members that are left, for as long as the caller has patience.
void wait_for_helpers() {
  auto are_all_claimed = [] {
    const uint64_t now = claims.load(std::memory_order_acquire);
    return next_of(now) >= size_of(now);
  };
  for (int looks = 0; looks < patience && !are_all_claimed(); ++looks) _mm_pause();
  patience = are_all_claimed() ? kPatience : patience / 2;
}

void help(uint32_t seen) {
  is_in_team = true;
  while (true) {
    int looks = 0;
    while (round.load(std::memory_order_acquire) == seen) {
      if (++looks < kLooks) _mm_pause();
      else round.wait(seen, std::memory_order_acquire);
    }
    // A late helper may have missed rounds: their members were run by others.
    seen = round.load(std::memory_order_acquire);
    while (int member = claim()) {
      _mm_setcsr(team.mode);
      run(member);
    }
  }
}

void hire(int wanted) {
  while (helpers() < wanted) {
    std::thread helper(help, round.load());
    hired.push_back(helper.native_handle());
    helper.detach();
    avoided = -1;
  }
}

// A forked process has none of the helpers.
void before_fork() { turn.lock(); }
void after_fork_parent() { turn.unlock(); }
void after_fork_child() {
  hired.clear();
  unfinished = 0;
  turn.unlock();
}
const int hooked = pthread_atfork(before_fork, after_fork_parent, after_fork_child);

}  // namespace

namespace anytpu {

Turn::Turn(bool is_small) {
  turn.lock();
  most_threads = is_small ? 1 : INT_MAX;
}

Turn::~Turn() {
  most_threads = INT_MAX;
  turn.unlock();
}

OneThread::OneThread() : before_(most_threads) { most_threads = 1; }

OneThread::~OneThread() { most_threads = before_; }

int threads() { return std::min(processors(), most_threads); }

}  // namespace anytpu

extern "C" {

int omp_get_max_threads() { return is_in_team ? 1 : anytpu::threads(); }
int omp_get_num_threads() { return team_size; }
int omp_get_thread_num() { return thread_number; }
int omp_in_parallel() { return is_in_team; }

void GOMP_parallel_start(void (*function)(void*), void* argument, unsigned wanted) {
  if (is_in_team) {  // a team of one inside of a team
    outer.push_back({thread_number, team_size});
    thread_number = 0;
    team_size = 1;
    return;
  }
  int size = wanted == 0 ? anytpu::threads() : static_cast<int>(wanted);
  if (size > 1) {
    hire(size - 1);
    if (size <= processors()) keep_helpers_from(sched_getcpu());
    team = {function, argument, size, _mm_getcsr()};
    unfinished.store(size - 1, std::memory_order_relaxed);
    claims.store(claims_of(round.load(std::memory_order_relaxed) + 1, size, 1), std::memory_order_release);
    round.fetch_add(1, std::memory_order_release);
    round.notify_all();
    is_in_team = true;
  }
  team_size = size;
}

void GOMP_parallel_end() {
  if (!outer.empty()) {
    std::tie(thread_number, team_size) = outer.back();
    outer.pop_back();
    return;
  }
  if (team_size == 1) return;  // nobody was asked
  wait_for_helpers();
  while (int member = claim()) run(member);
  int looks = 0;
  for (int left; (left = unfinished.load(std::memory_order_acquire)) != 0;) {
    if (++looks < kLooks) _mm_pause();
    else unfinished.wait(left, std::memory_order_acquire);
  }
  is_in_team = false;
  thread_number = 0;
  team_size = 1;
}

void GOMP_parallel(void (*function)(void*), void* argument, unsigned wanted, unsigned) {
  GOMP_parallel_start(function, argument, wanted);
  function(argument);
  GOMP_parallel_end();
}

void GOMP_barrier() {
  if (team_size == 1) return;
  uint32_t passed = barriers.load(std::memory_order_acquire);
  if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == team_size) {
    arrived.store(0, std::memory_order_relaxed);
    barriers.fetch_add(1, std::memory_order_release);
    return;
  }
  for (int looks = 0; barriers.load(std::memory_order_acquire) == passed;) {
    if (++looks < kLooks) _mm_pause();
    else sched_yield();
  }
}

// A loop of a team, its turns dealt out in one block for each thread (schedule(static)) or in blocks of `chunk`.
bool GOMP_loop_static_start(long start, long end, long step, long chunk, long* from, long* to);
bool GOMP_loop_static_next(long* from, long* to) {
  if (loop_next >= loop_end) return false;
  *from = loop_next;
  *to = loop_end;
  loop_next = loop_end;
  return true;
}
void GOMP_loop_end_nowait() {}
}

bool GOMP_loop_static_start(long start, long end, long step, long chunk, long* from, long* to) {
  (void)chunk;  // oneDNN asks for none
  long turns = std::max(0L, (end - start + step - (step > 0 ? 1 : -1)) / step);
  long each = turns / team_size, more = turns % team_size;
  long first = thread_number * each + std::min<long>(thread_number, more);
  long last = first + each + (thread_number < more ? 1 : 0);
  if (first >= last) {
    loop_next = loop_end = 0;
    return false;
  }
  *from = start + first * step;
  *to = start + last * step;
  loop_next = loop_end = 0;
  return true;
}

namespace anytpu {

void team(const std::function<void(int, int)>& work) {
  struct Call {
    const std::function<void(int, int)>& work;
    std::mutex lock;
    std::exception_ptr error;
  } call{work, {}, nullptr};
  auto run = [](void* argument) {
    Call& call = *static_cast<Call*>(argument);
    try {
      call.work(thread_number, team_size);
    } catch (...) {  // The other members still use this call: throw when all have ended.
      std::lock_guard<std::mutex> guard(call.lock);
      call.error = std::current_exception();
    }
  };
  ::GOMP_parallel(run, &call, 0, 0);
  if (call.error) std::rethrow_exception(call.error);
}

}  // namespace anytpu
