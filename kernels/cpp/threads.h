// Who may use oneDNN's threads, and how many there are.
#pragma once

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

}  // namespace anytpu
