// Who may use oneDNN's threads, and how many there are.
#pragma once

#include <functional>

namespace anytpu {

// A caller's turn with oneDNN: while one lives, all others wait.
class Turn {
 public:
  // is_small: too little work to wake helpers for.
  explicit Turn(bool is_small);
  ~Turn();
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
};

// While one lives, primitives are made for one thread, though the caller's turn has more.
class OneThread {
 public:
  OneThread();
  ~OneThread();
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

// The threads that a team would have now.
int threads();

// Runs `work(member, members)` for each member of a team at once, during one's turn. Throws what a member has thrown.
void team(const std::function<void(int, int)>& work);

}  // namespace anytpu
