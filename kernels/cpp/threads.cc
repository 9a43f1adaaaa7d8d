// The threads that oneDNN computes with: one pool for the process, asleep between calls.
//
// Idea: oneDNN's library is built for GNU OpenMP and asks for threads through ten functions of libgomp. They are
// defined here, and the dynamic linker finds these first, because this library is loaded before libgomp. libgomp would
// make a team for each of XLA's threads that calls, let them spin for milliseconds while XLA computes, and hang in a
// forked process that had used it before.
//
// Rule: one call at a time (`anytpu::Turn`), so a team always has a processor for each of its threads, as oneDNN's own
// barriers expect. Helpers take over the caller's floating-point mode: XLA counts denormal numbers as zero.

#include "threads.h"

#include <immintrin.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdint>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

namespace {

// How often a waiting thread looks before it sleeps (about 20 us) or yields.
constexpr int kLooks = 1000;

struct Team {
  void (*function)(void*) = nullptr;
  void* argument = nullptr;
  int size = 1;
  unsigned mode = 0;
  int processor = 0;  // the caller's
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
std::atomic<int> running{0};         // helpers of this round that have not finished
std::atomic<int> arrived{0};         // threads at the present barrier
std::atomic<uint32_t> barriers{0};   // counts the barriers passed
int helpers = 0;

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

// Move this thread away from a processor. On a busy machine Linux wakes a helper where its caller runs, and both then
// share that processor for milliseconds.
void leave(int processor) {
  cpu_set_t others = allowed();
  CPU_CLR(processor, &others);
  if (CPU_COUNT(&others) > 0) sched_setaffinity(0, sizeof others, &others);
}

void help(int number, uint32_t seen) {
  thread_number = number;
  is_in_team = true;
  while (true) {
    int looks = 0;
    while (round.load(std::memory_order_acquire) == seen) {
      if (++looks < kLooks) _mm_pause();
      else round.wait(seen, std::memory_order_acquire);
    }
    ++seen;
    if (number < team.size) {
      _mm_setcsr(team.mode);
      if (team.size <= processors() && sched_getcpu() == team.processor) leave(team.processor);
      team_size = team.size;
      team.function(team.argument);
    }
    if (running.fetch_sub(1, std::memory_order_acq_rel) == 1) running.notify_one();
  }
}

void hire(int wanted) {
  for (; helpers < wanted; ++helpers) std::thread(help, helpers + 1, round.load()).detach();
}

// A forked process has none of the helpers.
void before_fork() { turn.lock(); }
void after_fork_parent() { turn.unlock(); }
void after_fork_child() {
  helpers = 0;
  running = 0;
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
    team = {function, argument, size, _mm_getcsr(), sched_getcpu()};
    running.store(helpers, std::memory_order_relaxed);
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
  int looks = 0;
  for (int left; (left = running.load(std::memory_order_acquire)) != 0;) {
    if (++looks < kLooks) _mm_pause();
    else running.wait(left, std::memory_order_acquire);
  }
  is_in_team = false;
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

void team(const std::function<void(int)>& work) {
  auto run = [](void* one) { (*static_cast<const std::function<void(int)>*>(one))(omp_get_thread_num()); };
  GOMP_parallel(run, const_cast<std::function<void(int)>*>(&work), 0, 0);
}

}  // namespace anytpu
