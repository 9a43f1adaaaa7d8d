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

// The threads that a team would have now.
int threads();

// Runs `work(thread)` on all of them at once, during one's turn.
void team(const std::function<void(int)>& work);

}  // namespace anytpu
