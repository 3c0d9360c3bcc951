#include "runtime/serve/completion.hpp"

namespace headwater::runtime {

std::optional<Completion::Event> Completion::next(std::chrono::milliseconds wait) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, wait, [&] { return !events_.empty(); })) return std::nullopt;
  Event event = std::move(events_.front());
  events_.pop_front();
  return event;
}

void Completion::cancel() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
}

CompletionFacts Completion::facts() const {
  const std::lock_guard lock(mutex_);
  return facts_;
}

void Completion::push(Event event, CompletionFacts facts) {
  {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    facts_ = std::move(facts);
  }
  changed_.notify_one();
}

bool Completion::cancelled() const {
  const std::lock_guard lock(mutex_);
  return cancelled_;
}

}  // namespace headwater::runtime
