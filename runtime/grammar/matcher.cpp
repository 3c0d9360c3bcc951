#include "runtime/grammar/matcher.hpp"

#include <fmt/format.h>

#include <utility>

#include "headwater/error.hpp"

namespace headwater::runtime {
namespace {

using Kind = Grammar::Instruction::Kind;

std::size_t index(std::int32_t value) { return static_cast<std::size_t>(value); }

std::size_t hash(std::int32_t at, std::int32_t frame) {
  const std::uint64_t both =
      std::uint64_t{static_cast<std::uint32_t>(at)} << 32U | static_cast<std::uint32_t>(frame);
  return static_cast<std::size_t>((both * 0x9E3779B97F4A7C15U) >> 20U);
}

}  // namespace

GrammarMatcher::GrammarMatcher(std::shared_ptr<const Grammar> grammar)
    : grammar_(std::move(grammar)),
      called_(grammar_->entries.size(), -1),
      called_frame_(grammar_->entries.size(), 0),
      seen_(64) {}

GrammarMatcher::State GrammarMatcher::begin() {
  frames_.assign(1, {});
  edges_.clear();
  State first;
  ++time_;
  frames_[0].time = time_;
  called_[0] = time_;
  called_frame_[0] = 0;
  seen_count_ = 0;
  push(grammar_->entries[0], 0);
  settle(first);
  return first;
}

void GrammarMatcher::forget(Mark mark) {
  frames_.resize(mark.frames);
  edges_.resize(mark.edges);
}

bool GrammarMatcher::step(const State& from, std::uint8_t byte, State& to) {
  to.threads.clear();
  to.complete = false;
  ++time_;
  seen_count_ = 0;
  work_.clear();  // of a step that ended by an error
  steps_ += from.threads.size();
  for (const State::Thread& thread : from.threads) {
    const Grammar::Instruction& instruction = grammar_->program[index(thread.at)];
    if (instruction.kind == Kind::byte) {
      if (instruction.first == byte) push(thread.at + 1, thread.frame);
      continue;
    }
    const std::uint16_t next = grammar_->rows[index(thread.row)][byte];
    if (next == Grammar::kNone) continue;
    if (next == Grammar::kWhole) {
      push(thread.at + 1, thread.frame);
    } else {
      to.threads.push_back({thread.at, next, thread.frame});
    }
  }
  settle(to);
  return to.complete || !to.threads.empty();
}

void GrammarMatcher::grow_seen() {
  std::vector<Place> old(seen_.size() * 2);
  std::swap(old, seen_);
  for (const Place& place : old) {
    if (place.time != time_) continue;
    std::size_t slot = hash(place.at, place.frame) % seen_.size();
    while (seen_[slot].time == time_) slot = (slot + 1) % seen_.size();
    seen_[slot] = place;
  }
}

/// A place to go on at, unless it was reached in this step or leads nowhere.
void GrammarMatcher::push(std::int32_t at, std::int32_t frame) {
  if (!grammar_->alive[index(at)]) return;
  if (++steps_ > kMostSteps) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("the grammar takes more than {} steps for a token: it reads a text in too many ways; "
                    "allowed: a simpler one",
                    kMostSteps));
  }
  if (2 * (seen_count_ + 1) > seen_.size()) grow_seen();
  std::size_t slot = hash(at, frame) % seen_.size();
  for (; seen_[slot].time == time_; slot = (slot + 1) % seen_.size()) {
    if (seen_[slot].at == at && seen_[slot].frame == frame) return;
  }
  seen_[slot] = {time_, at, frame};
  ++seen_count_;
  work_.push_back(seen_[slot]);
}

void GrammarMatcher::settle(State& to) {
  while (!work_.empty()) {
    const Place place = work_.back();
    work_.pop_back();
    const auto [kind, first, second] = grammar_->program[index(place.at)];
    switch (kind) {
      case Kind::byte: to.threads.push_back({place.at, 0, place.frame}); break;
      case Kind::character: to.threads.push_back({place.at, first, place.frame}); break;
      case Kind::split: push(second, place.frame); [[fallthrough]];
      case Kind::jump: push(first, place.frame); break;
      case Kind::call: call(first, second == 1, place.at + 1, place.frame); break;
      case Kind::leave: leave(place.frame, to); break;
      case Kind::fail: break;
    }
  }
}

void GrammarMatcher::call(std::int32_t rule, bool last, std::int32_t at, std::int32_t frame) {
  if (called_[index(rule)] != time_) {
    called_[index(rule)] = time_;
    called_frame_[index(rule)] = static_cast<std::int32_t>(frames_.size());
    frames_.push_back({time_});
    push(grammar_->entries[index(rule)], called_frame_[index(rule)]);
  }
  const std::int32_t callee = called_frame_[index(rule)];
  // A call at a rule's end goes on where the rule does, so that lists written by recursion leave no chain of frames. Frames of
  // this step may get more edges, and the answer's own end is no edge.
  if (last && frame != 0 && frames_[index(frame)].time != time_) {
    for (std::int32_t edge = frames_[index(frame)].edges; edge >= 0; edge = edges_[index(edge)].next) {
      const Edge copied = edges_[index(edge)];
      add_edge(callee, copied.at, copied.frame);
    }
  } else {
    add_edge(callee, at, frame);
  }
}

void GrammarMatcher::add_edge(std::int32_t callee, std::int32_t at, std::int32_t frame) {
  for (std::int32_t edge = frames_[index(callee)].edges; edge >= 0; edge = edges_[index(edge)].next) {
    ++steps_;
    if (edges_[index(edge)].at == at && edges_[index(edge)].frame == frame) return;
  }
  if (frames_.size() + edges_.size() >= kMostFrames) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("the grammar keeps more than {} calls of rules for a text; allowed: a simpler one",
                    kMostFrames));
  }
  edges_.push_back({at, frame, frames_[index(callee)].edges});
  frames_[index(callee)].edges = static_cast<std::int32_t>(edges_.size() - 1);
  if (frames_[index(callee)].left) push(at, frame);
}

void GrammarMatcher::leave(std::int32_t frame, State& to) {
  if (frame == 0) to.complete = true;
  if (frames_[index(frame)].time == time_) frames_[index(frame)].left = true;
  for (std::int32_t edge = frames_[index(frame)].edges; edge >= 0; edge = edges_[index(edge)].next) {
    const Edge one = edges_[index(edge)];
    push(one.at, one.frame);
  }
}

}  // namespace headwater::runtime
