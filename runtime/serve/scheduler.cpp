#include "runtime/serve/scheduler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "headwater/error.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::runtime {
namespace {

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

GeneratedToken with_logprobs(std::span<const float> logits, std::int32_t id, int best) {
  const float top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - static_cast<double>(top));
  const double log_sum = std::log(sum) + static_cast<double>(top);
  const auto entry = [&](std::int32_t token) {
    const auto logit = static_cast<double>(logits[static_cast<std::size_t>(token)]);
    return TokenLogprob{token, static_cast<float>(logit - log_sum)};
  };
  GeneratedToken generated{entry(id), {}};
  std::vector<std::int32_t> ids(best > 0 ? logits.size() : 0);
  std::iota(ids.begin(), ids.end(), 0);
  const auto kept = std::min<std::ptrdiff_t>(best, std::ssize(ids));
  std::partial_sort(ids.begin(), ids.begin() + kept, ids.end(), [&](std::int32_t a, std::int32_t b) {
    const float x = logits[static_cast<std::size_t>(a)];
    const float y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  });
  for (std::ptrdiff_t i = 0; i < kept; ++i) generated.best.push_back(entry(ids[static_cast<std::size_t>(i)]));
  return generated;
}

}  // namespace

Scheduler::Scheduler(Transformer& transformer, const Tokenizer& tokenizer, PrefixCache& cache,
                     Options options)
    : transformer_(transformer),
      tokenizer_(tokenizer),
      cache_(cache),
      options_(std::move(options)),
      capacity_(transformer.session().shape().capacity),
      chunk_(std::min(transformer.options().chunk, transformer.max_step())),
      forks_(transformer.engine().claims().fork && transformer.engine().claims().truncate &&
             transformer.relay() == nullptr) {
  if (!options_.clock) options_.clock = steady_seconds;
  for (int number = 0; number < transformer.slots(); ++number) {
    slots_.push_back(std::make_unique<Slot>(transformer, number));
  }
  publish();
}

std::int64_t Scheduler::tail_of(const CompletionRequest& request) const {
  const std::int64_t n = std::ssize(request.prompt);
  const bool sparse = !request.rule.dense && transformer_.options().sparse_turn(n, false);
  return sparse ? std::min(request.dense_tail.value_or(options_.dense_tail), n - 1) : 0;
}

PrefixCache::Wanted Scheduler::wanted_of(const CompletionRequest& request) const {
  PrefixCache::Wanted wanted;
  wanted.ids = request.prompt;
  wanted.rule = request.rule;
  wanted.prefill = std::ssize(request.prompt) - tail_of(request);
  wanted.sparse_turn = !request.rule.dense && transformer_.options().sparse_turn(wanted.prefill, true);
  wanted.chunk = chunk_;
  wanted.exact = options_.exact;
  return wanted;
}

PromptRule Scheduler::own_part(PromptRule rule) const {
  const EffectiveOptions& options = transformer_.options();
  if (rule == PromptRule{.dense = true} && !options.sparse) return {};
  if (rule.dense || !options.sparse) return rule;
  if (rule.select == options.select) rule.select.reset();
  if (rule.memory == options.memory()) rule.memory.reset();
  return rule;
}

std::shared_ptr<Completion> Scheduler::submit(CompletionRequest request) {
  const auto refuse = [](const std::string& what) { throw Error(ErrorCode::invalid_argument, what); };
  const std::int64_t vocabulary = transformer_.model().config().vocabulary;
  const auto n = std::ssize(request.prompt);
  if (n < 1 || n > capacity_) refuse(fmt::format("the prompt has {} tokens; allowed: 1 .. {}", n, capacity_));
  for (const std::int32_t id : request.prompt) {
    if (id < 0 || id >= vocabulary)
      refuse(fmt::format("token id is {}; allowed: 0 .. {}", id, vocabulary - 1));
  }
  if (request.max_tokens < -1)
    refuse(fmt::format("max_tokens is {}; allowed: -1 (no limit) or more", request.max_tokens));
  if (request.top_logprobs.value_or(0) < 0)
    refuse(fmt::format("top_logprobs is {}; allowed: 0 or more", *request.top_logprobs));
  if (request.dense_tail.value_or(0) < 0)
    refuse(fmt::format("dense_tail is {}; allowed: 0 or more", *request.dense_tail));
  request.rule = own_part(request.rule);
  if (request.rule != PromptRule{}) {
    if (transformer_.relay() != nullptr)
      refuse("a rule of one request needs a model in one part; allowed: the server's for all requests");
    (void)transformer_.open_session(request.rule);  // refuses what the engine or the model does not take
  }
  if (std::any_of(request.stop.begin(), request.stop.end(), [](const auto& stop) { return stop.empty(); }))
    refuse("a stop text is empty; allowed: one byte or more");
  (void)Sampler(request.sampling, vocabulary);
  const double since = now();
  const std::lock_guard lock(mutex_);
  if (stopping_ || queue_.size() >= options_.most_queued) {
    ++facts_.refused;
    return nullptr;
  }
  auto job = std::make_shared<Completion>(++numbers_, std::move(request));
  queue_.push_back({job, since});
  facts_.queued = std::ssize(queue_);
  changed_.notify_one();
  return job;
}

bool Scheduler::between_steps(std::function<void()> action) {
  std::future<bool> done;
  {
    const std::lock_guard lock(mutex_);
    if (ended_) return false;
    actions_.push_back({std::move(action), {}});
    done = actions_.back().done.get_future();
  }
  changed_.notify_one();
  return done.get();
}

void Scheduler::stop(bool now) {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    stop_now_ = stop_now_ || now;
  }
  changed_.notify_one();
}

Scheduler::Facts Scheduler::facts() const {
  const std::lock_guard lock(mutex_);
  return facts_;
}

void Scheduler::publish() {
  const PrefixCache::Facts cache = cache_.facts();
  std::vector<SlotFacts> slots;
  for (const auto& slot : slots_) {
    SlotFacts one;
    if (slot->job) {
      one = {slot->job->number(), slot->facts.prompt_tokens,    slot->facts.cached_tokens,
             slot->talk.tokens(), slot->facts.generated_tokens, slot->reading};
    }
    slots.push_back(one);
  }
  const std::lock_guard lock(mutex_);
  facts_.cache = cache;
  facts_.slots = std::move(slots);
  facts_.queued = std::ssize(queue_);
}

void Scheduler::run() {
  for (;;) {
    bool ends = false;
    {
      std::unique_lock lock(mutex_);
      const auto busy = [&] {
        return std::any_of(slots_.begin(), slots_.end(),
                           [](const auto& slot) { return slot->job != nullptr; });
      };
      changed_.wait(lock, [&] { return stopping_ || !queue_.empty() || !actions_.empty() || busy(); });
      ends = stopping_ && (stop_now_ || (queue_.empty() && !busy()));
    }
    if (ends) break;
    (void)run_step();
  }
  for (const auto& slot : slots_) {
    if (!slot->job) continue;
    Event event;
    event.message = "the server ends";
    finish(*slot, Completion::End::error, std::move(event));
  }
  std::deque<Queued> queued;
  std::deque<Action> actions;
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    queued.swap(queue_);
    actions.swap(actions_);
    facts_.requests += std::ssize(queued);
    facts_.failed += std::ssize(queued);
  }
  for (const Queued& one : queued) {
    Event event;
    event.end = Completion::End::error;
    event.message = "the server ends";
    one.job->push(std::move(event), {});
  }
  for (Action& action : actions) action.done.set_value(false);
  publish();
}

bool Scheduler::run_step() {
  std::optional<Action> action;
  {
    const std::lock_guard lock(mutex_);
    if (!actions_.empty()) {
      action = std::move(actions_.front());
      actions_.pop_front();
    }
  }
  if (action) {
    try {
      action->run();
      publish();
      action->done.set_value(true);
    } catch (...) {
      action->done.set_exception(std::current_exception());
    }
    return true;
  }
  drop_cancelled();
  admit();
  std::vector<Slot*> reading;
  std::vector<Slot*> writing;
  for (const auto& slot : slots_) {
    if (slot->job) (slot->reading ? reading : writing).push_back(slot.get());
  }
  if (reading.empty() || writing.empty()) prefill_spent_ = decode_spent_ = 0;
  if (reading.empty() && writing.empty()) {
    publish();
    return false;
  }
  const double begun = now();
  bool reads = writing.empty() || (!reading.empty() && decode_spent_ > prefill_spent_);
  if (HEADWATER_SABOTAGE("runtime.serve.prompts_first")) reads = !reading.empty();
  if (reads) {
    read(*reading[turn_++ % reading.size()]);
  } else {
    decode(writing);
  }
  const double spent = now() - begun;
  (reads ? prefill_spent_ : decode_spent_) += spent;
  {
    const std::lock_guard lock(mutex_);
    (reads ? facts_.prefill_seconds : facts_.decode_seconds) += spent;
    ++(reads ? facts_.prefill_steps : facts_.decode_steps);
  }
  cache_.trim();
  publish();
  return true;
}

void Scheduler::drop_cancelled() {
  for (const auto& slot : slots_) {
    if (slot->job && slot->job->cancelled()) finish(*slot, Completion::End::cancel);
  }
  std::vector<std::shared_ptr<Completion>> gone;
  {
    const std::lock_guard lock(mutex_);
    // Each is asked once: a client may cancel() meanwhile.
    std::erase_if(queue_, [&](const Queued& queued) {
      const bool cancelled = queued.job->cancelled();
      if (cancelled) gone.push_back(queued.job);
      return cancelled;
    });
    facts_.cancelled += std::ssize(gone);
    facts_.requests += std::ssize(gone);
  }
  for (const auto& job : gone) {
    Event event;
    event.end = Completion::End::cancel;
    job->push(std::move(event), {});
  }
}

Scheduler::Source Scheduler::source_of(const PrefixCache::Wanted& wanted) const {
  Source source;
  if (!forks_) return source;
  source.use = cache_.find(wanted);
  for (const auto& slot : slots_) {
    if (!slot->job || !slot->job->request().use_cache) continue;
    const auto stored = std::span(slot->ids).first(static_cast<std::size_t>(slot->talk.tokens()));
    const PrefixCache::Use use = cache_.use_of(stored, origin_of(*slot), wanted);
    if (use.tokens > source.use.tokens) source = {use, slot.get()};
  }
  return source;
}

/// Whether a slot reads a beginning that this prompt shares, so that it is cheaper to wait for it than to read it, too.
bool Scheduler::worth_waiting(const PrefixCache::Wanted& wanted, const Source& source) const {
  return std::any_of(slots_.begin(), slots_.end(), [&](const auto& slot) {
    if (!forks_ || !slot->job || !slot->reading || !slot->job->request().use_cache) return false;
    return cache_.use_of(slot->ids, slot->origin, wanted).tokens >= source.use.tokens + chunk_;
  });
}

void Scheduler::admit() {
  for (const auto& slot : slots_) {
    if (slot->job) continue;
    std::optional<Queued> next;
    {
      const std::lock_guard lock(mutex_);
      const auto ready = std::find_if(queue_.begin(), queue_.end(), [&](const Queued& queued) {
        const CompletionRequest& request = queued.job->request();
        if (!request.use_cache) return true;
        const PrefixCache::Wanted wanted = wanted_of(request);
        return !worth_waiting(wanted, source_of(wanted));
      });
      if (ready == queue_.end()) return;
      next = std::move(*ready);
      queue_.erase(ready);
    }
    begin(*slot, *next);
  }
}

std::unique_ptr<Prefix> Scheduler::beginning(const PrefixCache::Wanted& wanted, Source& source) {
  if (source.use.tokens == 0) return nullptr;
  if (source.slot == nullptr) return cache_.take(wanted, source.use);
  Slot& from = *source.slot;
  return PrefixCache::fork(transformer_.session(from.talk.slot()), from.ids, *from.pages, origin_of(from),
                           source.use);
}

/// An empty session in the slot.
void Scheduler::open(Slot& slot, const PromptRule& rule) {
  if (slot.origin.rule == rule) {
    slot.talk.reset();
  } else {
    (void)slot.talk.exchange(transformer_.open_session(rule));
    slot.origin.rule = rule;
  }
}

void Scheduler::begin(Slot& slot, const Queued& queued) {
  const CompletionRequest& request = queued.job->request();
  const PrefixCache::Wanted wanted = wanted_of(request);
  slot.job = queued.job;
  slot.begun = now();
  slot.facts = {};
  slot.facts.prompt_tokens = std::ssize(request.prompt);
  slot.facts.queued_seconds = slot.begun - queued.since;
  try {
    Source source = request.use_cache ? source_of(wanted) : Source{};
    std::unique_ptr<Prefix> prefix = beginning(wanted, source);
    const bool exact = prefix == nullptr || source.use.exact;
    const std::int64_t cached = prefix ? source.use.tokens : 0;
    const std::int64_t kept_exact = prefix ? prefix->origin.exact_tokens : 0;
    if (prefix) {
      (void)slot.talk.exchange(std::move(prefix->session));
      slot.origin = prefix->origin;
      slot.pages.emplace(std::move(prefix->pages));
    } else {
      open(slot, request.rule);
      slot.pages.emplace(cache_.pages(), cache_.page());
    }
    slot.origin = {request.rule, wanted.sparse_turn, exact ? wanted.prefill : kept_exact};
    slot.origin.exact_tokens -= slot.origin.exact_tokens % chunk_;
    slot.ids = request.prompt;
    slot.reading = true;
    slot.facts.cached_tokens = cached;
    slot.facts.exact = exact;
    slot.sampler.emplace(request.sampling, transformer_.model().config().vocabulary);
    slot.sampler->read_prompt(request.prompt);
    slot.decoder.emplace(tokenizer_);
    slot.stops.emplace(request.stop);
    const auto rest = std::span(slot.job->request().prompt).subspan(static_cast<std::size_t>(cached));
    std::int64_t tail = std::min(tail_of(request), std::ssize(rest));
    // Behind decoded tokens a rest of a chunk is dense as it is.
    const bool in_turn =
        slot.talk.tokens() == 0 || transformer_.session(slot.talk.slot()).state() == SessionState::prefilling;
    if (!in_turn && std::ssize(rest) <= chunk_) tail = 0;
    if (request.atlas && transformer_.relay() == nullptr) observe(slot);
    slot.talk.begin_turn(rest, tail);
  } catch (const std::exception& error) {
    fail(slot, error.what());
  }
}

/// From here to the end of the prompt.
void Scheduler::observe(Slot& slot) {
  Session& session = transformer_.session(slot.talk.slot());
  std::vector<std::int64_t> windows;
  for (const LayerSpec& layer : transformer_.model().config().layer_specs) {
    if (!layer.recurrent) windows.push_back(layer.window);
  }
  slot.atlas = std::make_shared<PromptAtlas>(session.shape(), std::move(windows), std::ssize(slot.ids));
  session.set_observer([atlas = slot.atlas](const ChunkRecord& record) { atlas->add(record); });
}

/// Of the rows that the slot holds now.
Origin Scheduler::origin_of(const Slot& slot) const {
  Origin origin = slot.origin;
  const std::int64_t stored = slot.talk.tokens();
  origin.exact_tokens = std::min(origin.exact_tokens, stored - stored % chunk_);
  return origin;
}

void Scheduler::read(Slot& slot) {
  bool in = false;
  try {
    in = slot.talk.step(chunk_);
    if (in) {
      Conversation* const talk = &slot.talk;
      Conversation::take_logits({&talk, 1});
    }
  } catch (const std::exception& error) {
    fail(slot, error.what());
    return;
  }
  slot.pages->grow(slot.talk.tokens());
  slot.facts.prefill_seconds = now() - slot.begun;
  slot.facts.pairs = slot.talk.pairs();
  Event event;
  event.prompt_done = slot.talk.tokens();
  event.prompt_seconds = slot.facts.prefill_seconds;
  slot.job->push(std::move(event), slot.facts);
  if (!in) return;
  slot.reading = false;
  slot.facts.steps = slot.talk.steps();
  if (slot.atlas) transformer_.session(slot.talk.slot()).set_observer({});
  slot.facts.atlas = std::move(slot.atlas);
  slot.answering = now();
  draw(slot);
}

void Scheduler::decode(const std::vector<Slot*>& slots) {
  std::vector<Conversation*> talks;
  std::vector<std::int32_t> ids;
  for (Slot* const slot : slots) {
    talks.push_back(&slot->talk);
    ids.push_back(slot->ids.back());
  }
  try {
    Conversation::append(talks, ids);
  } catch (const std::exception& error) {
    for (Slot* const slot : slots) fail(*slot, error.what());
    return;
  }
  for (Slot* const slot : slots) {
    slot->pages->grow(slot->talk.tokens());
    draw(*slot);
  }
}

/// The next token of an answer whose logits are there.
void Scheduler::draw(Slot& slot) {
  const CompletionRequest& request = slot.job->request();
  slot.facts.decode_seconds = now() - slot.answering;
  slot.facts.pairs = slot.talk.pairs();
  if (request.max_tokens == 0) {
    finish(slot, Completion::End::length);
    return;
  }
  Event event;
  std::int32_t id = 0;
  try {
    id = slot.sampler->draw(slot.talk.logits());
  } catch (const std::exception& error) {
    fail(slot, error.what());
    return;
  }
  if (!request.ignore_end && tokenizer_.is_end(id)) {
    finish(slot, Completion::End::token);
    return;
  }
  if (request.top_logprobs)
    event.tokens.push_back(with_logprobs(slot.talk.logits(), id, *request.top_logprobs));
  slot.ids.push_back(id);
  slot.sampler->accept(id);
  ++slot.facts.generated_tokens;
  event.text = slot.stops->push(slot.decoder->push(id));
  if (slot.stops->found()) {
    finish(slot, Completion::End::stop, std::move(event));
    return;
  }
  const bool full = slot.talk.tokens() == capacity_;
  if (slot.facts.generated_tokens == request.max_tokens || full) {
    finish(slot, Completion::End::length, std::move(event));
    return;
  }
  slot.job->push(std::move(event), slot.facts);
}

void Scheduler::finish(Slot& slot, Completion::End end, Event event) {
  if (end == Completion::End::token || end == Completion::End::length) {
    event.text += slot.stops->push(slot.decoder->finish());
    event.text += slot.stops->finish();
  }
  event.end = end;
  const std::shared_ptr<Completion> job = slot.job;
  const CompletionFacts facts = slot.facts;
  free(slot, true);
  {
    const std::lock_guard lock(mutex_);
    ++facts_.requests;
    if (end == Completion::End::cancel) ++facts_.cancelled;
    if (end == Completion::End::error) ++facts_.failed;
    facts_.prompt_tokens += facts.prompt_tokens;
    facts_.cached_tokens += facts.cached_tokens;
    facts_.generated_tokens += facts.generated_tokens;
  }
  publish();
  job->push(std::move(event), facts);
}

void Scheduler::fail(Slot& slot, const std::string& message) {
  Event event;
  event.end = Completion::End::error;
  event.message = message;
  const std::shared_ptr<Completion> job = slot.job;
  const CompletionFacts facts = slot.facts;
  free(slot, false);
  {
    const std::lock_guard lock(mutex_);
    ++facts_.requests;
    ++facts_.failed;
  }
  publish();
  job->push(std::move(event), facts);
}

/// The request is done; where `keep`, what its session holds goes to the cache.
void Scheduler::free(Slot& slot, bool keep) {
  const bool cached = keep && forks_ && slot.job->request().use_cache && slot.talk.tokens() > 0;
  if (cached) {
    const auto stored = std::span(slot.ids).first(static_cast<std::size_t>(slot.talk.tokens()));
    slot.last.assign(stored.begin(), stored.end());
    const PrefixCache::Use all{slot.talk.tokens(), true};
    try {
      std::unique_ptr<Prefix> prefix = PrefixCache::fork(transformer_.session(slot.talk.slot()), stored,
                                                         *slot.pages, origin_of(slot), all);
      slot.pages.reset();
      slot.talk.reset();
      cache_.keep(std::move(*prefix));
    } catch (const std::exception&) {  // no memory for it: the next request reads its prompt
    }
  }
  if (slot.atlas) transformer_.session(slot.talk.slot()).set_observer({});
  slot.atlas.reset();
  slot.pages.reset();
  slot.talk.reset();
  slot.job.reset();
  slot.ids.clear();
  slot.reading = false;
}

}  // namespace headwater::runtime
