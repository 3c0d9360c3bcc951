#include "runtime/pipeline/node.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "headwater/error.hpp"

namespace headwater::pipeline {
namespace {

using std::chrono::duration;

/// What precedes the text of a control message.
struct ControlHead {
  std::uint32_t kind;
  std::int32_t status;
};
constexpr std::size_t kMostControl = 16384;

// Messages of the stream that were received and not taken: one is read while the next one comes. More stay with their sender.
constexpr std::size_t kMostWaiting = 2;

// The thread looks for messages the less often, the longer none has moved: a look takes processor time from those who
// compute, and one that comes a sixteenth of the wait too late costs little.
constexpr std::chrono::microseconds kPoll{20};
constexpr std::chrono::microseconds kIdlePoll{1000};
constexpr int kLateness = 16;

// How long the other ranks have to say goodbye where one has failed: a launcher kills them all soon after.
constexpr double kGrace = 0.5;
// Rank 0 meets most errors itself, and then says them without the name of a rank.
constexpr std::chrono::milliseconds kOwnWordFirst{300};

std::atomic<bool> terminated{false};

extern "C" void note_termination(int /*signal*/) { terminated.store(true); }

std::string host_name() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

/// Whether a process of this machine is gone, or waits only for its parent to look.
bool is_gone(long process) {
  if (::kill(static_cast<pid_t>(process), 0) != 0 && errno == ESRCH) return true;
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  if (!std::getline(file, text)) return false;
  // The name, in brackets, may hold anything; the state follows it.
  const std::size_t end = text.rfind(')');
  return end != std::string::npos && end + 2 < text.size() && (text[end + 2] == 'Z' || text[end + 2] == 'X');
}

std::string join(const Facts& facts) {
  std::string text;
  for (const auto& [name, value] : facts) text += name + '\t' + value + '\n';
  return text;
}

Facts split(const std::string& text) {
  Facts facts;
  for (std::size_t begin = 0, end = 0; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const std::string line = text.substr(begin, end - begin);
    const std::size_t tab = line.find('\t');
    facts.emplace_back(line.substr(0, tab), tab == std::string::npos ? "" : line.substr(tab + 1));
  }
  return facts;
}

}  // namespace

void watch_terminate_signal() {
  struct sigaction handler {};
  handler.sa_handler = note_termination;
  handler.sa_flags = SA_ONSTACK | SA_RESTART;
  ::sigemptyset(&handler.sa_mask);
  (void)::sigaction(SIGTERM, &handler, nullptr);
}

Node::Node(const std::string& library, NodeOptions options) : options_(std::move(options)) {
  thread_ = std::thread([this, library] { work(library); });
  std::unique_lock lock(mutex_);
  const auto limit = duration<double>(options_.start_timeout);
  if (!changed_.wait_for(lock, limit, [this] { return started_ || !start_error_.empty(); })) {
    // The thread is inside MPI and cannot be asked to leave it.
    options_.say(fmt::format(
        "MPI has not started within {:.0f} s; not all ranks were started, or they do not reach each other",
        options_.start_timeout));
    ::_exit(2);
  }
  if (start_error_.empty()) return;
  lock.unlock();
  thread_.join();
  throw Error(start_code_, start_error_);
}

Node::~Node() {
  if (thread_.joinable()) (void)finish(0);
}

std::string Node::name_of(int rank) const {
  return fmt::format("rank {} on {}", rank, peers_[static_cast<std::size_t>(rank)].host);
}

std::string Node::name(int rank) {
  const std::lock_guard lock(mutex_);
  return name_of(rank);
}

void Node::set_deadline(double seconds) {
  const std::lock_guard lock(mutex_);
  deadline_ = seconds;
}

Node::Traffic Node::traffic(Tag tag) {
  const std::lock_guard lock(mutex_);
  return traffic_[static_cast<std::size_t>(tag)];
}

/// The thread ends the process where the condition can no longer come true.
template <typename Condition>
void Node::wait(std::unique_lock<std::mutex>& lock, const Condition& condition) {
  changed_.wait(lock, condition);
}

// ---- what the other threads call

std::vector<Facts> Node::gather(const Facts& facts) {
  const std::string own = join(facts);
  std::unique_lock lock(mutex_);
  if (rank() != 0) {
    queue_control(0, Kind::facts, 0, own);
    return {};
  }
  peers_[0].facts.push_back(own);
  wait(lock, [this] {
    return std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return !peer.facts.empty(); });
  });
  std::vector<Facts> all;
  for (Peer& peer : peers_) {
    all.push_back(split(peer.facts.front()));
    peer.facts.pop_front();
  }
  return all;
}

void Node::agree(const Facts& facts) {
  const std::vector<Facts> all = gather(facts);
  std::unique_lock lock(mutex_);
  if (rank() != 0) {
    wait(lock, [this] { return !verdicts_.empty(); });
    const std::int32_t status = verdicts_.front().first;
    verdicts_.pop_front();
    if (status == 0) return;
    lock.unlock();
    throw EndsQuietly{status};
  }
  std::string error;
  for (std::size_t r = 1; r < all.size() && error.empty(); ++r) {
    for (std::size_t i = 0; i < facts.size() && error.empty(); ++i) {
      const auto [name, value] =
          i < all[r].size() ? all[r][i] : std::pair<std::string, std::string>("", "nothing");
      if (name == facts[i].first && value == facts[i].second) continue;
      error = fmt::format("{} has another {} than rank 0: {}, not {}; allowed: the same on all ranks",
                          name_of(static_cast<int>(r)), facts[i].first, value, facts[i].second);
    }
  }
  // Those that wait hear it before this rank ends them, so that they have nothing to say.
  tell_all(Kind::verdict, error.empty() ? 0 : 2, "");
  lock.unlock();
  if (!error.empty()) throw Error(ErrorCode::invalid_argument, error);
}

void Node::send(int to, Tag tag, std::span<const std::byte> head, std::span<const std::byte> body) {
  if (head.size() + body.size() > kMostBytes) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a message of {} bytes to another rank; allowed: {}; use a smaller -b",
                            head.size() + body.size(), kMostBytes));
  }
  Bytes bytes;
  std::unique_lock lock(mutex_);
  std::size_t& under_way = under_way_[static_cast<std::size_t>(to)];
  wait(lock, [&] { return under_way < kInFlight; });
  ++under_way;
  if (!spare_.empty()) {
    bytes = std::move(spare_.back());
    spare_.pop_back();
  }
  lock.unlock();
  bytes.resize(head.size() + body.size());
  std::copy(head.begin(), head.end(), bytes.begin());
  std::copy(body.begin(), body.end(), bytes.begin() + static_cast<std::ptrdiff_t>(head.size()));
  lock.lock();
  Traffic& traffic = traffic_[static_cast<std::size_t>(tag)];
  ++traffic.messages;
  traffic.bytes += bytes.size();
  queue_.push_back({to, tag, std::move(bytes)});
  work_to_do_.notify_one();
}

Node::Bytes Node::receive(Tag tag, Bytes buffer) {
  std::unique_lock lock(mutex_);
  if (buffer.capacity() > 0 && spare_.size() < 2 * kMostWaiting) spare_.push_back(std::move(buffer));
  std::deque<Bytes>& inbox = inbox_[static_cast<std::size_t>(tag)];
  wait(lock, [&] { return !inbox.empty(); });
  Bytes bytes = std::move(inbox.front());
  inbox.pop_front();
  work_to_do_.notify_one();
  return bytes;
}

int Node::finish(int status) {
  std::unique_lock lock(mutex_);
  if (rank() == 0) {
    status_ = status;
    finishing_ = true;
    work_to_do_.notify_one();
  }
  lock.unlock();
  thread_.join();  // elsewhere it ends the process when rank 0 says so
  return status_;
}

void Node::claim_word() {
  const std::lock_guard lock(mutex_);
  failing_ = true;
}

void Node::fail(const std::string& line, int status) {
  {
    const std::lock_guard lock(mutex_);
    failing_ = true;
    failed_line_ = line;
    failed_at_ = Clock::now();
    status_ = status;
    queue_control(0, Kind::failed, status, line);
  }
  for (;;) ::pause();
}

// ---- the thread

void Node::queue_control(int to, Kind kind, std::int32_t status, std::string_view text) {
  const ControlHead head{static_cast<std::uint32_t>(kind), status};
  text = text.substr(0, kMostControl - sizeof head);
  Bytes bytes(sizeof head + text.size());
  std::memcpy(bytes.data(), &head, sizeof head);
  std::copy_n(reinterpret_cast<const std::byte*>(text.data()), text.size(), bytes.data() + sizeof head);
  queue_.push_back({to, Tag::control, std::move(bytes)});
  work_to_do_.notify_one();
}

void Node::tell_all(Kind kind, std::int32_t status, std::string_view text) {
  for (int to = 0; to < size(); ++to) {
    if (to != rank() && !peers_[static_cast<std::size_t>(to)].dead) queue_control(to, kind, status, text);
  }
}

bool Node::start(const std::string& library) {
  std::string error;
  // UCX, which Debian's MPICH is built with, warns on standard output, which is for results. It asks when it is loaded.
  (void)::setenv("UCX_LOG_FILE", "stderr", 0);
  // Open MPI's own plug-ins look for its symbols among those that all may see.
  void* const object = ::dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (object == nullptr) {
    error = fmt::format("MPI cannot be loaded: {}", ::dlerror());
  } else {
    const auto begin = reinterpret_cast<StartTransport>(::dlsym(object, kStartTransport));
    std::array<char, 256> text{};
    if (begin == nullptr) {
      error = fmt::format("{} is no transport of this program", library);
    } else if (begin(&transport_, text.data(), text.size()) != 0) {
      start_code_ = ErrorCode::invalid_argument;
      error = text.data();
    }
  }
  const std::lock_guard lock(mutex_);
  if (!error.empty()) {
    start_error_ = error;
    changed_.notify_all();
    return false;
  }
  peers_.resize(static_cast<std::size_t>(size()));
  under_way_.resize(static_cast<std::size_t>(size()));
  Peer& self = peers_[static_cast<std::size_t>(rank())];
  self.host = host_name();
  self.process = ::getpid();
  self.met = true;
  const auto now = Clock::now();
  for (Peer& peer : peers_) peer.heard = now;
  last_beat_ = last_turn_ = last_moved_ = now;
  tell_all(Kind::hello, 0, fmt::format("{}\t{}", self.process, self.host));
  return true;
}

void Node::work(const std::string& library) {
  if (!start(library)) return;
  std::unique_lock lock(mutex_);
  for (;;) {
    lock.unlock();
    const bool moved = pump();
    lock.lock();
    if (!started_ && std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.met; })) {
      started_ = true;
      changed_.notify_all();
    }
    watch();
    if (finishing_) {
      tell_all(Kind::end, status_, "");
      lock.unlock();
      say_goodbye(deadline_, false);
      return;
    }
    if (moved) {
      last_moved_ = Clock::now();
    } else if (queue_.empty()) {
      const auto idle = (Clock::now() - last_moved_) / kLateness;
      work_to_do_.wait_for(lock, std::clamp<Clock::duration>(idle, kPoll, kIdlePoll));
    }
  }
}

/// Moves messages; whether any did.
bool Node::pump() {
  bool moved = false;
  {
    const std::lock_guard lock(mutex_);
    for (; !queue_.empty(); queue_.pop_front()) sending_.push_back(std::move(queue_.front()));
  }
  for (std::size_t i = 0; i < sending_.size();) {
    Outgoing& one = sending_[i];
    if (one.request == nullptr) {
      moved = true;
      one.request = transport_.send(one.bytes.data(), static_cast<int>(one.bytes.size()), one.to,
                                    static_cast<int>(one.tag));
    }
    const int done = one.request == nullptr ? -1 : transport_.done(one.request);
    if (done == 0) {
      ++i;
      continue;
    }
    moved = true;
    const std::lock_guard lock(mutex_);
    if (done < 0 && !peers_[static_cast<std::size_t>(one.to)].bye)
      peers_[static_cast<std::size_t>(one.to)].dead = true;
    if (one.tag != Tag::control) {
      --under_way_[static_cast<std::size_t>(one.to)];
      if (spare_.size() < 2 * kMostWaiting) spare_.push_back(std::move(one.bytes));
      changed_.notify_all();
    }
    sending_.erase(sending_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  for (const Tag tag : {Tag::control, Tag::stream, Tag::answer}) moved = find(tag) || moved;
  for (std::size_t i = 0; i < receiving_.size();) {
    const int done = transport_.done(receiving_[i].request);
    if (done == 0) {
      // A later message with the same tag that is complete must not pass this one.
      ++i;
      continue;
    }
    moved = true;
    Incoming one = std::move(receiving_[i]);
    receiving_.erase(receiving_.begin() + static_cast<std::ptrdiff_t>(i));
    if (done < 0) {
      const std::lock_guard lock(mutex_);
      peers_[static_cast<std::size_t>(one.from)].dead = true;
    } else {
      take(std::move(one));
    }
  }
  return moved;
}

bool Node::find(Tag tag) {
  if (tag != Tag::control) {
    // One at a time keeps the order.
    const bool coming = std::any_of(receiving_.begin(), receiving_.end(),
                                    [&](const Incoming& one) { return one.tag == tag; });
    const std::lock_guard lock(mutex_);
    // Answers were asked for: who asks bounds them, and the last rank never waits for the first one, which waits for it.
    const bool full = tag == Tag::stream && inbox_[static_cast<std::size_t>(tag)].size() >= kMostWaiting;
    if (coming || (full && !finished_)) return false;
  }
  int from = 0;
  int size = 0;
  void* const found = transport_.find(static_cast<int>(tag), &from, &size);
  if (found == nullptr) return false;
  Incoming one{from, tag, {}};
  const std::size_t most = tag == Tag::control ? kMostControl : kMostBytes;
  std::unique_lock lock(mutex_);
  if (size < 0 || static_cast<std::size_t>(size) > most) {
    end_with(fmt::format("{} sent a message of {} bytes; allowed: {}", name_of(from), size, most));
  }
  if (tag != Tag::control && !spare_.empty()) {
    one.bytes = std::move(spare_.back());
    spare_.pop_back();
  }
  lock.unlock();
  one.bytes.resize(static_cast<std::size_t>(size));
  one.request = transport_.receive(found, one.bytes.data(), size);
  if (one.request != nullptr) receiving_.push_back(std::move(one));
  return true;
}

void Node::take(Incoming&& message) {
  const std::lock_guard lock(mutex_);
  peers_[static_cast<std::size_t>(message.from)].heard = Clock::now();
  if (message.tag == Tag::control) {
    take_control(message.from, std::move(message.bytes));
  } else {
    inbox_[static_cast<std::size_t>(message.tag)].push_back(std::move(message.bytes));
  }
  changed_.notify_all();
}

void Node::take_control(int from, Bytes&& bytes) {
  ControlHead head{};
  if (bytes.size() < sizeof head) return;
  std::memcpy(&head, bytes.data(), sizeof head);
  const std::string text(reinterpret_cast<const char*>(bytes.data()) + sizeof head,
                         bytes.size() - sizeof head);
  Peer& peer = peers_[static_cast<std::size_t>(from)];
  switch (static_cast<Kind>(head.kind)) {
    case Kind::hello:
      peer.process = std::atol(text.c_str());
      peer.host = text.substr(std::min(text.size(), text.find('\t') + 1));
      peer.met = true;
      return;
    case Kind::facts: peer.facts.push_back(text); return;
    case Kind::verdict: verdicts_.emplace_back(head.status, text); return;
    case Kind::beat: return;
    case Kind::bye: peer.bye = true; return;
    case Kind::failed:
      if (!failed_line_.empty()) return;
      failed_line_ = fmt::format("{}: {}", name_of(from), text);
      failed_at_ = Clock::now();
      status_ = head.status;
      return;
    case Kind::end:
      if (finished_) return;
      mutex_.unlock();  // of take(): what follows does not return
      say_goodbye(deadline_, false);
      ::_exit(head.status);
    case Kind::fault:
      if (!finished_) end_with(text);
      return;
  }
}

std::string Node::find_dead() {
  const Peer& self = peers_[static_cast<std::size_t>(rank())];
  for (std::size_t r = 0; r < peers_.size(); ++r) {
    Peer& peer = peers_[r];
    if (&peer == &self || peer.bye || !peer.met) continue;
    const bool here = peer.host == self.host && is_gone(peer.process);
    if (here || peer.dead) {
      peer.dead = true;
      return fmt::format("{} (process {}) {}", name_of(static_cast<int>(r)), peer.process,
                         here ? "has ended or was killed" : "is no longer reached");
    }
  }
  return {};
}

/// Heartbeats, and whether those of the others come.
void Node::watch() {
  const auto now = Clock::now();
  const duration<double> turn = now - last_turn_;
  last_turn_ = now;
  // A process that was stopped itself has heard nobody, which says nothing about them.
  if (turn.count() > deadline_ / 4) {
    away_ = turn.count();
    for (Peer& peer : peers_) peer.heard = now;
  }
  if (!failed_line_.empty() && !finishing_) {
    if (rank() == 0 && !failing_ && now - failed_at_ > kOwnWordFirst) {
      options_.say(failed_line_);
      finishing_ = true;
      leave(status_);
    }
    if (rank() != 0 && duration<double>(now - failed_at_).count() > deadline_) {
      options_.say(failed_line_);  // rank 0 did not
      leave(status_);
    }
  }
  if (terminated.load()) {
    if (terminated_at_ == Clock::time_point{}) terminated_at_ = now;
    if (away_ > deadline_ / 2)
      end_with(fmt::format("it was stopped for {:.1f} s, and the others gave it up", away_));
    const std::string dead = find_dead();
    if (!dead.empty()) end_with(dead);
    // Before the launcher loses patience, too.
    if (now - terminated_at_ > kOwnWordFirst) {
      end_with(
          "it was ended by SIGTERM, from a user or from the launcher, which then says which rank ended "
          "first");
    }
  }
  if (duration<double>(now - last_beat_).count() < std::min(1.0, deadline_ / 8)) return;
  last_beat_ = now;
  tell_all(Kind::beat, 0, "");
  const std::string dead = find_dead();
  if (!dead.empty()) end_with(dead);
  for (std::size_t r = 0; r < peers_.size(); ++r) {
    Peer& peer = peers_[r];
    if (static_cast<int>(r) == rank() || peer.bye) continue;
    const double limit = started_ ? deadline_ : options_.start_timeout;
    if (duration<double>(now - peer.heard).count() <= limit) continue;
    peer.dead = true;
    end_with(fmt::format("{} (process {}) was not heard for {:g} s: it is stopped, or its network is",
                         name_of(static_cast<int>(r)), peer.process, limit));
  }
}

/// Tells the others that this rank says nothing more, and hears the same of them. `always`: the job ends even so.
void Node::say_goodbye(double seconds, bool always) {
  finished_ = true;
  const auto limit = Clock::now() + duration<double>(seconds);
  bool said = false;
  for (;;) {
    (void)pump();
    {
      const std::lock_guard lock(mutex_);
      for (const Tag tag : {Tag::stream, Tag::answer}) inbox_[static_cast<std::size_t>(tag)].clear();
      if (!said && sending_.empty() && queue_.empty()) {
        tell_all(Kind::bye, 0, "");
        said = true;
        continue;
      }
      const bool all = std::all_of(peers_.begin(), peers_.end(), [&](const Peer& peer) {
        return &peer == &peers_[static_cast<std::size_t>(rank())] || peer.bye || peer.dead;
      });
      if (all && said && sending_.empty() && queue_.empty()) break;
    }
    if (Clock::now() > limit) break;
    std::this_thread::sleep_for(kPoll);
  }
  const bool whole = std::all_of(peers_.begin(), peers_.end(), [&](const Peer& peer) {
    return &peer == &peers_[static_cast<std::size_t>(rank())] || peer.bye;
  });
  if (whole && !always) {
    transport_.finish();
    return;
  }
  // MPI_Finalize would wait for those that are gone.
  transport_.abort(status_ != 0 ? status_ : 2);
  ::_exit(status_ != 0 ? status_ : 2);
}

/// Ends the process: with the lock held, by a fault of another rank, which every rank says.
void Node::end_with(const std::string& reason) {
  options_.say(fmt::format("rank {} of {} on {} ends: {}", rank(), size(),
                           peers_[static_cast<std::size_t>(rank())].host, reason));
  status_ = 2;
  tell_all(Kind::fault, 2, reason);
  mutex_.unlock();
  say_goodbye(kGrace, true);
  ::_exit(2);
}

/// Ends the process and, from rank 0, all others without a word.
void Node::leave(int status) {
  status_ = status;
  if (rank() == 0) tell_all(Kind::end, status, "");
  mutex_.unlock();
  say_goodbye(rank() == 0 ? deadline_ : kGrace, rank() != 0);
  ::_exit(status);
}

}  // namespace headwater::pipeline
