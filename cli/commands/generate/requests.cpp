#include "cli/commands/generate/requests.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/commands/generate/turn.hpp"
#include "cli/support/interrupt.hpp"
#include "cli/support/loaded_model.hpp"
#include "cli/support/numbers.hpp"
#include "cli/support/progress.hpp"
#include "cli/support/prompt.hpp"
#include "cli/support/ranks.hpp"
#include "cli/support/streams.hpp"
#include "cli/support/text.hpp"
#include "headwater/error.hpp"
#include "headwater/preset.hpp"
#include "runtime/generate/conversation.hpp"

namespace headwater::cli {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

/// A line of the file.
struct Request {
  Json id;
  Turn turn;
  std::int64_t most = 0;  ///< tokens to generate; -1: as many as fit
  std::uint64_t seed = 0;
  std::string refusal = {};  ///< why it cannot be answered; empty: it can
};

std::string answer_line(const Json& answer) {
  return answer.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n';
}

/// Reads one line.
class RequestLine {
 public:
  RequestLine(const std::string& file, std::size_t number) : file_(file), number_(number) {}

  /// What cannot be answered comes with a refusal that names the line and what is allowed. Adds warnings.
  Request parse(std::string_view line, const GenerateFlags& flags, const LoadedModel& model,
                const runtime::ChatTemplate* chat, std::vector<std::string>& warnings) const {
    Request request{number_, {}, flags.tokens, flags.sampling.seed};
    try {
      read(line, flags, model, chat, request, warnings);
    } catch (const Failure& failure) {
      request.refusal = failure.what();
    }
    return request;
  }

 private:
  void read(std::string_view line, const GenerateFlags& flags, const LoadedModel& model,
            const runtime::ChatTemplate* chat, Request& request, std::vector<std::string>& warnings) const {
    const Json json = Json::parse(line, nullptr, false);
    if (!json.is_object()) refuse("it is no JSON object in UTF-8; allowed: {\"prompt\": TEXT}, and more");
    Words words;
    for (const auto& [key, value] : json.items()) {
      if (key == "id") {
        if (!value.is_string() && !value.is_number_integer())
          refuse("'id' is no text and no integer; allowed is one of them");
        request.id = value;
      } else if (key == "prompt" || key == "question") {
        if (!value.is_string() || value.get_ref<const std::string&>().empty())
          refuse(fmt::format("'{}' is no text of one byte or more", key));
        (key == "prompt" ? words.text : words.question) = value.get<std::string>();
      } else if (key == "max_tokens") {
        request.most = integer(key, value, -1, kMaxCount);
      } else if (key == "seed") {
        request.seed = static_cast<std::uint64_t>(integer(key, value, 0, kMostSeed));
      } else {
        refuse(
            fmt::format("{} is not known; allowed: prompt, question, max_tokens, seed, id", in_quotes(key)));
      }
    }
    if (words.text.empty()) refuse("'prompt' is missing; allowed: a text of one byte or more");
    try {
      request.turn = encode_turn(flags, model, chat, words, true, {});
    } catch (const Error& error) {
      refuse(error.what());
    }
    if (request.turn.ids.empty()) refuse(kNoTokens);
    check_prompt(place() + "the prompt", static_cast<std::int64_t>(request.turn.ids.size()), model);
    if (!flags.no_bos && chat == nullptr)
      check_bos(place() + "'prompt'", request.turn.ids, model.tokenizer(), warnings);
    check_text(place() + "'prompt'", words.text, model.tokenizer(), warnings);
    check_text(place() + "'question'", words.question, model.tokenizer(), warnings);
  }

  [[nodiscard]] std::string place() const {
    return fmt::format("--requests {}, line {}: ", in_quotes(file_), number_);
  }
  [[noreturn]] void refuse(const std::string& what) const { throw Failure(place() + what); }
  [[nodiscard]] std::int64_t integer(const std::string& key, const Json& value, std::int64_t least,
                                     std::int64_t most) const {
    const bool fits =
        value.is_number_integer() && !(value.is_number_unsigned() && value.get<std::uint64_t>() > kMostSeed);
    if (!fits || value.get<std::int64_t>() < least || value.get<std::int64_t>() > most) {
      // Not of lists and objects: dump() takes the stack for each level.
      const std::string what =
          value.is_number() ? value.dump() : fmt::format("of type {}", value.type_name());
      refuse(fmt::format("'{}' is {}; allowed: integers, {} .. {}", key, what, least, most));
    }
    return value.get<std::int64_t>();
  }

  const std::string& file_;
  std::size_t number_;
};

std::vector<Request> read_requests(const GenerateFlags& flags, const LoadedModel& model,
                                   std::vector<std::string>& warnings) {
  const std::string text = read_text("--requests", *flags.requests);
  std::optional<runtime::ChatTemplate> chat;
  if (flags.chat) chat = model.chat_template("--chat", flags.chat_template);
  std::vector<Request> requests;
  std::size_t number = 0;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    requests.push_back(
        RequestLine(*flags.requests, number).parse(line, flags, model, chat ? &*chat : nullptr, warnings));
  }
  if (requests.empty())
    throw Failure(fmt::format("--requests {}: no line holds a request", in_quotes(*flags.requests)));
  const auto refused = [](const Request& request) { return !request.refusal.empty(); };
  if (std::all_of(requests.begin(), requests.end(), refused)) throw Failure(requests.front().refusal);
  return requests;
}

/// Leaves a prompt that Ctrl-C ended.
struct StoppedByUser {};

/// All requests through the slots of one transformer. What a slot computes has the bits that it has alone, so an answer does
/// not depend on what else is asked. Slots are in groups, one for each rank: while one group's step is on its way through the
/// ranks behind, the next group's begins.
class Batch {
 public:
  Batch(const GenerateFlags& flags, const LoadedModel& model, std::vector<Request> requests)
      : flags_(flags), model_(model), requests_(std::move(requests)), answers_(requests_.size()) {
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      const Request& request = requests_[i];
      if (request.refusal.empty()) continue;
      answers_[i] = answer_line({{"id", request.id}, {"error", request.refusal}});
      ++refused_;
      if (first_refusal_.empty()) first_refusal_ = request.refusal;
    }
    answered_ = refused_;
  }

  /// Tokens that the longest conversation stores.
  [[nodiscard]] std::int64_t capacity() const {
    std::int64_t most = 0;
    for (const Request& request : requests_) {
      const auto prompt = static_cast<std::int64_t>(request.turn.ids.size());
      // The last generated token need not be stored.
      most = std::max(
          most, request.most < 0 ? model_.context() : prompt + std::max<std::int64_t>(request.most - 1, 0));
    }
    return std::min(most, model_.context());
  }
  [[nodiscard]] int slots() const {
    return static_cast<int>(
        std::min<std::size_t>(requests_.size() - refused_, static_cast<std::size_t>(flags_.slots)));
  }
  /// What is said at the end of requests that could not be answered; empty where all could.
  [[nodiscard]] std::string refusal() const {
    if (refused_ <= 1) return first_refusal_;
    return fmt::format("{}, and {} more of {}: see \"error\" in the answers", first_refusal_, refused_ - 1,
                       count_text(static_cast<std::int64_t>(requests_.size()), "request"));
  }

  void run(runtime::Transformer& transformer);
  [[nodiscard]] std::string summary() const;

 private:
  struct Slot {
    Slot(runtime::Transformer& transformer, int number) : talk(transformer, kDenseTail, number) {}

    runtime::Conversation talk;
    const Request* request = nullptr;  // that it works on
    std::optional<runtime::Sampler> sampler;
    std::optional<runtime::StreamDecoder> decoder;
    std::vector<std::int32_t> ids;
    std::string text;
  };
  struct Group {
    std::vector<std::unique_ptr<Slot>> slots;
    std::size_t asked = 0;  // of asked_
  };

  void ask(Group& group, std::vector<runtime::Conversation*> talks);
  void take();
  void advance(Group& group);
  void begin(Group& group, Slot& slot);
  [[nodiscard]] bool draw(Slot& slot);
  void finish(Slot& slot, const char* end);

  const GenerateFlags& flags_;
  const LoadedModel& model_;
  std::vector<Request> requests_;
  std::vector<std::string> answers_;  // by request; empty: not there, or written
  std::vector<Group> groups_;
  std::deque<std::vector<runtime::Conversation*>>
      asked_;                 // whose logits are under way, in the order of the answers
  std::size_t next_ = 0;      // request to begin
  std::size_t answered_ = 0;  // requests, those that are refused among them
  std::size_t refused_ = 0;
  std::string first_refusal_;
  std::size_t written_ = 0;  // requests, in the order of the file
  std::optional<Progress> progress_;
  std::int64_t prompt_tokens_ = 0;
  std::int64_t generated_ = 0;
  double seconds_ = 0;
};

void Batch::run(runtime::Transformer& transformer) {
  const auto ranks_here = cli::ranks() == nullptr ? 1 : cli::ranks()->node().size();
  groups_ = std::vector<Group>(static_cast<std::size_t>(std::min(ranks_here, slots())));
  for (int number = 0; number < slots(); ++number) {
    Group& group = groups_[static_cast<std::size_t>(number) % groups_.size()];
    group.slots.push_back(std::make_unique<Slot>(transformer, number));
  }
  if (!flags_.quiet) progress_.emplace(requests_.size() - refused_, "requests");
  const auto start = Clock::now();
  try {
    while (answered_ < requests_.size()) {
      for (Group& group : groups_) advance(group);
    }
  } catch (const StoppedByUser&) {
    while (!asked_.empty()) take();
  }
  seconds_ = std::chrono::duration<double>(Clock::now() - start).count();
  progress_.reset();
}

void Batch::ask(Group& group, std::vector<runtime::Conversation*> talks) {
  asked_.push_back(std::move(talks));
  ++group.asked;
}

void Batch::take() {
  runtime::Conversation::take_logits(asked_.front());
  asked_.pop_front();
}

void Batch::advance(Group& group) {
  // Groups ask in turn, so the next answers are this one's.
  for (; group.asked > 0; --group.asked) take();
  if (stop_requested()) throw StoppedByUser{};
  std::vector<runtime::Conversation*> talks;
  std::vector<std::int32_t> ids;
  for (const auto& slot : group.slots) {
    if (slot->request == nullptr || !draw(*slot)) continue;
    talks.push_back(&slot->talk);
    ids.push_back(slot->ids.back());
  }
  for (const auto& slot : group.slots) {
    if (slot->request != nullptr) continue;
    while (next_ < requests_.size() && !requests_[next_].refusal.empty()) ++next_;
    if (next_ < requests_.size()) begin(group, *slot);
  }
  if (talks.empty()) return;
  runtime::Conversation::append_ahead(talks, ids);
  ask(group, std::move(talks));
}

void Batch::begin(Group& group, Slot& slot) {
  const Request& request = requests_[next_++];
  runtime::SamplingOptions sampling = flags_.sampling;
  sampling.seed = request.seed;
  sampling.answer.texts = model_.texts();
  slot.request = &request;
  slot.sampler.emplace(sampling, model_.config().vocabulary);
  slot.decoder.emplace(model_.tokenizer());
  slot.talk.reset();
  slot.talk.set_dense_tail(dense_tail_of(flags_, request.turn));
  slot.talk.feed_ahead(request.turn.ids, [](double) {
    if (stop_requested()) throw StoppedByUser{};
  });
  ask(group, {&slot.talk});
  prompt_tokens_ += static_cast<std::int64_t>(request.turn.ids.size());
}

/// Whether the token that was drawn goes into the conversation, for a next one; else the request is answered.
bool Batch::draw(Slot& slot) {
  const std::int64_t most = slot.request->most;
  if (most != 0) {
    const std::int32_t id = slot.sampler->draw(slot.talk.logits());
    if (model_.tokenizer().is_end(id)) {
      finish(slot, "token");
      return false;
    }
    slot.sampler->accept(id);
    slot.ids.push_back(id);
    slot.text += slot.decoder->push(id);
  }
  const bool all = static_cast<std::int64_t>(slot.ids.size()) == most;
  const bool full = slot.talk.tokens() == slot.talk.transformer().session().shape().capacity;
  if (all || full) finish(slot, all ? "max_tokens" : "context");
  return !all && !full;
}

void Batch::finish(Slot& slot, const char* end) {
  slot.text += slot.decoder->finish();
  const Json answer = {{"id", slot.request->id},
                       {"text", slot.text},
                       {"prompt_tokens", slot.request->turn.ids.size()},
                       {"generated_tokens", slot.ids.size()},
                       {"end", end}};
  answers_[static_cast<std::size_t>(slot.request - requests_.data())] = answer_line(answer);
  generated_ += static_cast<std::int64_t>(slot.ids.size());
  slot.request = nullptr;
  slot.ids.clear();
  slot.text.clear();
  ++answered_;
  if (progress_) progress_->advance(1);
  for (; written_ < answers_.size() && !answers_[written_].empty(); ++written_) {
    print_out(answers_[written_]);
    answers_[written_].clear();
  }
}

std::string Batch::summary() const {
  std::string text = fmt::format(
      "requests {} of {}, {} at a time: {} of prompts, {} generated in {:.3f} s ({:.1f} tokens/s)\n",
      answered_, requests_.size(), slots(), count_text(prompt_tokens_, "token"), generated_, seconds_,
      seconds_ > 0 ? static_cast<double>(generated_) / seconds_ : 0.0);
  if (written_ < answered_)
    text += fmt::format("not written: {} answers behind one that was not finished\n", answered_ - written_);
  return text;
}

}  // namespace

ExitCode answer_requests(const GenerateFlags& flags) {
  LoadedModel model(flags.model);
  if (serves()) model.serve();
  std::vector<std::string> warnings;
  Batch batch(flags, model, read_requests(flags, model, warnings));
  const std::unique_ptr<runtime::Transformer> transformer =
      model.open(batch.capacity(), flags.dense, batch.slots());
  if (flags.system) check_text("--system", *flags.system, model.tokenizer(), warnings);
  for (const auto* more : {&flags.warnings, &model.warnings(), &transformer->session().options().warnings}) {
    warnings.insert(warnings.end(), more->begin(), more->end());
  }
  if (batch.refusal().empty()) warn(warnings);  // an error suppresses them
  install_stop_request();
  batch.run(*transformer);
  const std::vector<pipeline::RankReport> reports = rank_reports();
  if (!batch.refusal().empty() && !stop_requested()) throw Failure(batch.refusal());
  if (!flags.quiet) print_error(ranks_text(reports) + batch.summary());
  return stop_requested() ? static_cast<ExitCode>(kInterrupted) : ExitCode::done;
}

}  // namespace headwater::cli
