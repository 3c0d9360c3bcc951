#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "headwater/error.hpp"
#include "runtime/pipeline/transport.hpp"

namespace headwater::pipeline {

/// Values by name that must be the same on all ranks.
using Facts = std::vector<std::pair<std::string, std::string>>;

struct NodeOptions {
  double start_timeout = 60;  ///< seconds until MPI has started and every rank has been heard
  /// Writes the one line that a rank ends with, before it ends by itself.
  std::function<void(const std::string& line)> say;
};

/// What ends a rank without a word: rank 0 says why.
struct EndsQuietly {
  int status = 0;
};

/// This process among those of its job. A thread of its own makes all calls of MPI, so that messages move while others
/// compute; it also keeps watch: a rank whose process is gone or that was silent for too long ends all of them, each with
/// a line that names it. Where that happens the thread ends the process; no call here returns an error for it.
class Node {
 public:
  enum class Tag : std::uint8_t { control = 1, stream = 2, answer = 3 };
  using Bytes = std::vector<std::byte>;

  /// Loads `library` and meets the other ranks. headwater::Error(engine_unavailable) where that cannot be loaded, and
  /// invalid_argument where it does not start, or has no support of threads.
  Node(const std::string& library, NodeOptions options);
  /// finish() or fail() came before.
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  [[nodiscard]] int rank() const { return transport_.rank; }
  [[nodiscard]] int size() const { return transport_.size; }
  [[nodiscard]] const char* library() const { return transport_.library; }
  /// "rank 1 on HOST".
  [[nodiscard]] std::string name(int rank);

  /// Most bytes of a message.
  static constexpr std::size_t kMostBytes = std::size_t{1} << 30;

  /// Silence of a rank that ends the job, seconds.
  void set_deadline(double seconds);
  /// Returns once every rank has called it with the same facts. Where they differ: headwater::Error(invalid_argument) on rank 0
  /// that names the first rank that differs, the fact and both values; EndsQuietly on the others.
  void agree(const Facts& facts);
  /// Every rank's facts, by rank, on rank 0; empty elsewhere. All ranks call it.
  std::vector<Facts> gather(const Facts& facts);

  /// Sends copies of both, one behind the other. Waits while kInFlight messages to this rank are under way.
  void send(int to, Tag tag, std::span<const std::byte> head, std::span<const std::byte> body = {});
  /// The next message with the tag, waited for. `buffer`: of an earlier one, to be used again.
  Bytes receive(Tag tag, Bytes buffer = {});

  /// Ends the job: with the status on all ranks. On rank 0, whose other ranks end without a word. Elsewhere the call
  /// waits for that.
  int finish(int status);
  /// On a rank that is not 0: rank 0 ends the job with this line and status, and names this rank. Does not return.
  [[noreturn]] void fail(const std::string& line, int status);

  /// On rank 0: what ends the job is said by the caller, whatever the others report.
  void claim_word();

  struct Traffic {
    std::uint64_t messages = 0;
    std::uint64_t bytes = 0;
  };
  /// What was sent with this tag.
  [[nodiscard]] Traffic traffic(Tag tag);

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t kInFlight = 2;  ///< buffers: one is on the wire while the next one is filled

  enum class Kind : std::uint32_t { hello, facts, verdict, beat, end, fault, failed, bye };
  struct Peer {
    std::string host;
    long process = 0;
    Clock::time_point heard;
    bool met = false;
    bool bye = false;
    bool dead = false;
    std::deque<std::string> facts;
  };
  struct Outgoing {
    int to;
    Tag tag;
    Bytes bytes;
    void* request = nullptr;
  };
  struct Incoming {
    int from;
    Tag tag;
    Bytes bytes;
    void* request = nullptr;
  };

  void work(const std::string& library);
  bool start(const std::string& library);
  bool pump();
  bool find(Tag tag);
  void take(Incoming&& message);
  void take_control(int from, Bytes&& bytes);
  void watch();
  void queue_control(int to, Kind kind, std::int32_t status, std::string_view text);
  void tell_all(Kind kind, std::int32_t status, std::string_view text);
  [[nodiscard]] std::string name_of(int rank) const;
  [[nodiscard]] std::string find_dead();
  void say_goodbye(double seconds, bool always);
  [[noreturn]] void end_with(const std::string& reason);
  [[noreturn]] void leave(int status);
  template <typename Condition>
  void wait(std::unique_lock<std::mutex>& lock, const Condition& condition);

  NodeOptions options_;
  Transport transport_;
  std::mutex mutex_;
  std::condition_variable changed_;  // for callers
  std::condition_variable work_to_do_;
  std::string start_error_;
  ErrorCode start_code_ = ErrorCode::engine_unavailable;
  bool started_ = false;
  bool finishing_ = false;
  bool failing_ = false;  // the caller's thread says, or has said, why
  std::atomic<bool> finished_{false};
  std::int32_t status_ = 0;
  std::string end_reason_;
  double deadline_ = 30;
  std::vector<Peer> peers_;
  std::deque<Outgoing> queue_;          // not yet handed to MPI
  std::vector<Outgoing> sending_;       // by the thread alone
  std::vector<std::size_t> under_way_;  // stream and answer messages to each rank
  std::vector<Incoming> receiving_;     // by the thread alone
  std::deque<Bytes> inbox_[4];          // by tag
  std::vector<Bytes> spare_;
  std::deque<std::pair<std::int32_t, std::string>> verdicts_;
  Traffic traffic_[4];
  Clock::time_point last_beat_;
  Clock::time_point last_turn_;
  Clock::time_point last_moved_;
  double away_ = 0;  // seconds for which this thread did not run, where that was long
  Clock::time_point terminated_at_;
  Clock::time_point failed_at_;
  std::string failed_line_;  // of another rank, on rank 0
  std::thread thread_;
};

/// SIGTERM, by which a launcher ends what is left of a job, is to the node's thread from now on, which says why it came.
void watch_terminate_signal();

}  // namespace headwater::pipeline
