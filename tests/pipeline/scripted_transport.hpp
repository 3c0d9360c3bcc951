#pragma once

#include <cstddef>
#include <deque>
#include <mutex>
#include <vector>

namespace headwater::pipeline {

/// What the messages of a job are where no MPI is: a test says what comes, and sees what was sent. Tags index the arrays.
struct Script {
  int rank = 0;
  int size = 1;
  struct Message {
    int from;
    int size;
    std::vector<std::byte> bytes;  ///< its first ones; what is behind them is left as it is
  };
  std::mutex mutex;
  std::deque<Message> coming[4];
  std::vector<std::size_t> sent[4];  ///< sizes
};

/// The other symbol of the shared object.
using ScriptOf = Script* (*)();
inline constexpr const char* kScript = "headwater_script";

}  // namespace headwater::pipeline
