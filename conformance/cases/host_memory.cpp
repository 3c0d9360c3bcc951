// HOST-2: the caller's memory in place of the engine's own.

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "conformance/allocation_counter.hpp"
#include "conformance/case.hpp"
#include "conformance/session_checks.hpp"

namespace headwater::conformance {
namespace {

// Hands out blocks full of garbage, between canaries, on the alignment that is asked for and no larger one. What is wrong with
// a call is kept: nothing may be thrown into an engine.
class Host {
 public:
  [[nodiscard]] Allocator allocator() {
    return {[](void* host, std::size_t bytes, std::size_t alignment) {
              return static_cast<Host*>(host)->take(bytes, alignment);
            },
            [](void* host, void* block, std::size_t bytes, std::size_t alignment) {
              static_cast<Host*>(host)->give_back(block, bytes, alignment);
            },
            this};
  }
  // Refuses call number `call` from now on.
  void refuse(std::int64_t call) { calls_ = 0, refused_ = call; }
  [[nodiscard]] std::int64_t calls() const { return calls_; }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  void require_right(const std::string& what) const {
    if (!wrong_.empty()) throw Violation(wrong_ + "; " + what);
  }

 private:
  static constexpr std::size_t kCanary = 64;
  static constexpr unsigned char kGarbage = 0xa5;
  struct Block {
    std::size_t bytes, alignment;
    unsigned char* raw;
  };

  void* take(std::size_t bytes, std::size_t alignment) {
    const AllocationPause ours(true);
    if (bytes == 0 || alignment == 0 || (alignment & (alignment - 1)) != 0) {
      wrong_ = fmt::format("{} bytes on multiples of {} were asked for", bytes, alignment);
      return nullptr;
    }
    if (calls_++ == refused_) return nullptr;
    const std::size_t step = 2 * std::max(alignment, kCanary);
    const std::size_t size = (bytes + 2 * step) / step * step + step;
    auto* raw = static_cast<unsigned char*>(std::aligned_alloc(step, size));
    if (raw == nullptr) return nullptr;
    std::memset(raw, kGarbage, size);
    unsigned char* block = raw + std::max(alignment, kCanary);
    blocks_[block] = {bytes, alignment, raw};
    bytes_ += static_cast<std::int64_t>(bytes);
    return block;
  }
  void give_back(void* block, std::size_t bytes, std::size_t alignment) {
    const AllocationPause ours(true);
    const auto at = blocks_.find(block);
    if (at == blocks_.end()) {
      wrong_ = "a block was given back that was not taken, or twice";
      return;
    }
    const Block& taken = at->second;
    if (taken.bytes != bytes || taken.alignment != alignment) {
      wrong_ = fmt::format("a block of {} bytes on {} was given back as one of {} on {}", taken.bytes,
                           taken.alignment, bytes, alignment);
    }
    const auto* data = static_cast<const unsigned char*>(block);
    for (std::size_t i = 0; i < kCanary; ++i) {
      if (data[taken.bytes + i] != kGarbage || data[-1 - static_cast<std::ptrdiff_t>(i)] != kGarbage)
        wrong_ = "something was written beside a block";
    }
    bytes_ -= static_cast<std::int64_t>(taken.bytes);
    std::free(taken.raw);
    blocks_.erase(at);
  }

  std::map<void*, Block> blocks_;
  std::int64_t calls_ = 0;
  std::int64_t refused_ = -1;
  std::int64_t bytes_ = 0;
  std::string wrong_;
};

// Every call of the host is refused once, in open() and in each begin(); what is computed has the bits of a session in the
// engine's own memory, and all blocks come back.
void host_memory(Context& context) {
  const Engine& engine = *context.engine;
  require_claim(engine, &Claims::host_memory, "host_memory");
  require_claim(engine, &Claims::abort, "abort");
  Random random(context.seed);
  for (const Select rule : rules(engine)) {
    for (int round = 0; round < context.rounds(12); ++round) {
      Problem problem =
          session_problem(random, engine, rule, {.max_chunk = 60, .max_tokens = 600, .max_layers = 2});
      problem.options.page = 256;
      const Trace wanted = run(engine, problem);
      Host host;
      problem.options.allocator = host.allocator();
      const std::string what = problem.describe();
      // One refused call after the other, until none is.
      const auto refuse_each = [&](const std::function<void()>& call, const std::function<void()>& refused) {
        for (std::int64_t n = 0;; ++n) {
          host.refuse(n);
          const std::optional<ErrorCode> code = code_of(call);
          const bool done = host.calls() <= n;
          host.refuse(-1);
          host.require_right(what);
          if (done) {
            require_code(code, std::nullopt, what);
            return n;
          }
          require_code(code, ErrorCode::out_of_memory,
                       fmt::format("call {} of the host refused; {}", n, what));
          refused();
        }
      };
      std::unique_ptr<Session> session;
      const auto require_bytes = [&] {  // pages that a refused begin() has taken may wait for the next one
        const std::int64_t said = session ? session->memory_bytes().total() : 0;
        if (host.bytes() == said) return;
        throw Violation(
            fmt::format("memory_bytes() says {}, the host gave {}; {}", said, host.bytes(), what));
      };
      std::int64_t calls =
          refuse_each([&] { session = engine.open(problem.shape, problem.options); }, require_bytes);
      for (std::size_t s = 0; s < problem.steps.size(); ++s) {
        const Picture before = picture(*session);
        calls += refuse_each([&] { session->begin(problem.steps[s]); },
                             [&] {
                               require_same(picture(*session), before, "begin() without memory; " + what);
                               require_bytes();
                             });
        session->abort();
        require_same(trace_of_steps(wanted, problem, s, s + 1), run_steps(*session, problem, s, s + 1), what);
        require_bytes();
      }
      if (calls == 0) throw Violation("the host was never asked for memory; " + what);
      session.reset();
      host.require_right(what);
      if (host.bytes() != 0)
        throw Violation(fmt::format("{} bytes were not given back; {}", host.bytes(), what));
    }
  }
}
const Register kHostMemory{
    {"allocation.host_memory", {"HOST-2", "NUM-4"}, "session", Lane::hostile, true, host_memory}};

}  // namespace
}  // namespace headwater::conformance
