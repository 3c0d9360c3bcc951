#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "cli/commands/commands.hpp"
#include "cli/commands/generate/flags.hpp"
#include "cli/commands/generate/qkv_dump.hpp"
#include "cli/commands/generate/report.hpp"
#include "cli/commands/generate/requests.hpp"
#include "cli/commands/generate/turn.hpp"
#include "cli/support/interrupt.hpp"
#include "cli/support/loaded_model.hpp"
#include "cli/support/model_facts.hpp"
#include "cli/support/model_memory.hpp"
#include "cli/support/progress.hpp"
#include "cli/support/prompt.hpp"
#include "cli/support/streams.hpp"
#include "cli/support/text.hpp"
#include "headwater/error.hpp"
#include "headwater/headwater.hpp"
#include "runtime/generate/conversation.hpp"

namespace headwater::cli {
namespace {

constexpr const char* kCommand = "headwater generate";
constexpr std::uint64_t kProgressUnits = 1'000'000;

using Ids = std::vector<std::int32_t>;
using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// Leaves a prefill that Ctrl-C ended.
struct Interrupted {};

/// Lines of standard input, none lost or read twice where an interrupt comes between them.
class InputLines {
 public:
  /// False at the end of the input, or once an end is asked for; a last line needs no line feed.
  [[nodiscard]] bool next(std::string& line) {
    std::size_t end = 0;
    for (std::size_t looked = 0; (end = read_.find('\n', looked)) == std::string::npos;) {
      looked = read_.size();
      std::array<char, 4096> part{};
      if (!wait_for_input(STDIN_FILENO)) return false;
      const ssize_t got = ::read(STDIN_FILENO, part.data(), part.size());
      if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (got <= 0) {
        line = std::exchange(read_, {});
        return !line.empty();
      }
      read_.append(part.data(), static_cast<std::size_t>(got));
    }
    line = read_.substr(0, end);
    read_.erase(0, end + 1);
    return true;
  }

 private:
  std::string read_;
};

class Generation {
 public:
  explicit Generation(const GenerateFlags& flags) : flags_(flags), model_(flags.model) {}
  ExitCode run();

 private:
  [[nodiscard]] Words prompt_words();
  [[nodiscard]] Turn encode(const Words& words) const;
  [[nodiscard]] std::int64_t capacity_for(std::int64_t prompt);
  void open(std::int64_t capacity, bool dense);
  GenerateRun run_turn(const Turn& turn, bool shown);
  void feed(const Ids& ids, GenerateRun& run);
  void generate(GenerateRun& run, bool shown);
  void talk(const GenerateRun& opening);
  void answer(const std::string& line);
  void tell_turn(const GenerateRun& run);
  void describe(GenerateReport& report) const;

  const GenerateFlags& flags_;
  LoadedModel model_;
  std::optional<runtime::ChatTemplate> chat_;
  std::unique_ptr<runtime::Transformer> transformer_;
  std::optional<runtime::Conversation> conversation_;
  std::optional<runtime::Sampler> sampler_;
  std::optional<QkvDump> dump_;
  bool terminal_ = ::isatty(STDOUT_FILENO) == 1;
  Ids history_;  // all that was said, also where an interrupt has emptied the conversation
  std::vector<runtime::ChatMessage> said_;  // the same in a chat, as messages
  std::optional<std::int32_t> pending_;     // generated last, not yet in the conversation
  bool ended_ = false;                      // by a token of its own
  SessionTotals totals_;                    // of an interactive session
  std::vector<std::string> warnings_;
};

Words Generation::prompt_words() {
  const auto checked = [&](const char* flag, std::string text) {
    if (text.empty()) throw Failure(fmt::format("{}: the prompt is empty; allowed: one byte or more", flag));
    check_text(flag, text, model_.tokenizer(), warnings_);
    return text;
  };
  Words words;
  if (flags_.system) check_text("--system", *flags_.system, model_.tokenizer(), warnings_);
  const LastLineEnd end =
      flags_.prompt ? LastLineEnd::kept : LastLineEnd::dropped;  // of a line before a question
  if (flags_.file) words.text = checked("-f (--file)", read_text("-f (--file)", *flags_.file, end));
  if (flags_.prompt) (flags_.file ? words.question : words.text) = checked("-p (--prompt)", *flags_.prompt);
  return words;
}

Turn Generation::encode(const Words& words) const {
  return encode_turn(flags_, model_, chat_ ? &*chat_ : nullptr, words, history_.empty(), said_);
}

/// The last generated token need not be stored.
std::int64_t Generation::capacity_for(std::int64_t prompt) {
  if (flags_.interactive || flags_.tokens < 0) return model_.context();
  const std::int64_t wanted = prompt + std::max<std::int64_t>(flags_.tokens - 1, 0);
  if (wanted > model_.context()) {
    warnings_.push_back(fmt::format("only {} of {} tokens fit after a prompt of {} in a context of {}",
                                    model_.context() - prompt + 1, flags_.tokens, prompt, model_.context()));
  }
  return std::min(wanted, model_.context());
}

void Generation::open(std::int64_t capacity, bool dense) {
  conversation_.reset();
  transformer_.reset();
  transformer_ = model_.open(capacity, dense);
  conversation_.emplace(*transformer_, kDenseTail);
  runtime::SamplingOptions sampling = flags_.sampling;
  sampling.answer.texts = model_.texts();
  sampler_.emplace(sampling, model_.config().vocabulary);
  pending_.reset();
  history_.clear();
  said_.clear();
}

void Generation::feed(const Ids& ids, GenerateRun& run) {
  transformer_->clear_times();
  std::optional<Progress> progress;
  if (!flags_.quiet) progress.emplace(kProgressUnits, "prefill", static_cast<std::uint64_t>(ids.size()));
  std::uint64_t shown = 0;
  double done = 0;
  const bool empty = conversation_->tokens() == 0;
  const auto start = Clock::now();
  try {
    conversation_->feed(ids, [&](double share) {
      done = share;
      if (stop_requested()) throw Interrupted{};
      const auto units = static_cast<std::uint64_t>(share * static_cast<double>(kProgressUnits));
      if (progress) progress->advance(units - std::min(shown, units));
      shown = units;
    });
    run.first_logits.assign(conversation_->logits().begin(), conversation_->logits().end());
    if (empty) history_.clear();
    history_.insert(history_.end(), ids.begin(), ids.end());
    pending_.reset();
  } catch (const Interrupted&) {
    conversation_->reset();
    run.interrupted = true;
  }
  run.done_tokens =
      run.interrupted ? std::llround(done * static_cast<double>(ids.size())) : run.prompt_tokens;
  run.prefill_seconds = since(start);
  run.prefill = transformer_->times();
}

void Generation::generate(GenerateRun& run, bool shown) {
  runtime::StreamDecoder decoder(model_.tokenizer());
  const auto emit = [&](const std::string& piece) {
    run.text += piece;
    if (shown) print_out(terminal_ ? for_terminal(piece) : piece);
  };
  const std::int64_t capacity = transformer_->session().shape().capacity;
  sampler_->begin_answer();
  const auto start = Clock::now();
  for (std::int64_t i = 0; i != flags_.tokens; ++i) {
    const std::int32_t id = sampler_->draw(conversation_->logits());
    ended_ = model_.tokenizer().is_end(id);
    if (ended_) {
      pending_ = id;
      break;
    }
    sampler_->accept(id);
    run.ids.push_back(id);
    pending_ = id;
    emit(decoder.push(id));
    run.interrupted = stop_requested();
    if (run.interrupted || i + 1 == flags_.tokens || conversation_->tokens() == capacity) break;
    conversation_->append(id);
    history_.push_back(id);
    pending_.reset();
    ++run.decoded;
  }
  run.decode_seconds = since(start);
  emit(decoder.finish());
}

GenerateRun Generation::run_turn(const Turn& turn, bool shown) {
  GenerateRun run;
  run.prompt_ids = turn.ids;
  run.prompt_tokens = static_cast<std::int64_t>(turn.ids.size());
  conversation_->set_dense_tail(dense_tail_of(flags_, turn));
  run.tail_tokens = conversation_->tail_of(run.prompt_tokens);
  run.effective = transformer_->options();
  feed(turn.ids, run);
  run.pairs = conversation_->pairs();
  run.steps = conversation_->steps();
  if (dump_ && !run.interrupted) dump_->write(run.steps);
  if (run.interrupted) return run;
  generate(run, shown);
  said_.insert(said_.end(), turn.messages.begin(), turn.messages.end());
  said_.push_back({"assistant", run.text});
  return run;
}

void Generation::tell_turn(const GenerateRun& run) {
  totals_.add(run);
  totals_.stored = conversation_->tokens();
  totals_.capacity = transformer_->session().shape().capacity;
  // An interrupt ended the turn, not the session.
  clear_stop_request();
  if (conversation_->tokens() == 0) {
    print_error(fmt::format(
        "undone   by an interrupt; {}\n",
        history_.empty() ? "nothing is stored" : "what was said before is read again with the next line"));
    return;
  }
  totals_.pairs = conversation_->pairs();
  if (flags_.quiet) return;
  print_error(fmt::format("turn     {} in {:.3f} s, {} generated in {:.3f} s, {} of {} stored\n",
                          count_text(run.done_tokens, "token"), run.prefill_seconds, run.ids.size(),
                          run.decode_seconds, totals_.stored, totals_.capacity));
}

/// A turn for each line of standard input, until it ends.
void Generation::talk(const GenerateRun& opening) {
  totals_.capacity = transformer_->session().shape().capacity;
  if (opening.prompt_tokens > 0) tell_turn(opening);
  InputLines lines;
  const auto next_line = [&](std::string& line) {
    // Somebody who types sees whose turn it is.
    const bool typed = ::isatty(STDIN_FILENO) == 1;
    if (typed) print_error("> ");
    const bool got = lines.next(line);
    if (typed && !got) print_error("\n");
    return got;
  };
  for (std::string line; !stop_requested() && next_line(line);) {
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty()) answer(line);
  }
}

void Generation::answer(const std::string& line) {
  std::vector<std::string> warnings;
  check_text("this line", line, model_.tokenizer(), warnings);
  Turn turn;
  try {
    turn = encode({line, ""});
  } catch (const Error& error) {
    // Of a template, say, that wants turns by turns.
    print_error(fmt::format("{}: this line is left out: {}\n", kCommand, error.what()));
    return;
  }
  if (turn.ids.empty()) {
    print_error(fmt::format("{}: this line is left out: {}\n", kCommand, kNoTokens));
    return;
  }
  if (!turn.anew) {
    // What an interrupt has emptied is read again. A token that ends an answer is no part of it; a chat's turn has its own.
    Ids before = conversation_->tokens() == 0 ? history_ : Ids{};
    if (pending_ && !ended_) before.push_back(*pending_);
    turn.ids.insert(turn.ids.begin(), before.begin(), before.end());
  }
  const std::int64_t capacity = transformer_->session().shape().capacity;
  const std::int64_t wanted =
      (turn.anew ? 0 : conversation_->tokens()) + static_cast<std::int64_t>(turn.ids.size());
  if (wanted > capacity) {
    print_error(fmt::format("{}: this line is left out: with it {} tokens would be stored; allowed: {}\n",
                            kCommand, wanted, capacity));
    return;
  }
  warn(warnings);
  if (turn.anew) conversation_->reset();
  const GenerateRun run = run_turn(turn, true);
  if (conversation_->tokens() > 0) print_out("\n");
  tell_turn(run);
}

void Generation::describe(GenerateReport& report) const {
  const runtime::ModelConfig& config = model_.config();
  report.model = config.name.empty() ? flags_.model.model : config.name;
  report.architecture = config.architecture;
  report.windowed_layers = config.windowed_layers();
  report.windows = windows_text(config);
  report.engine = transformer_->engine().name();
  report.isa = transformer_->engine().isa();
  report.projections = runtime::describe_products(flags_.model.precision);
  report.cache_type = flags_.model.cache_name();
  report.load_seconds = model_.load_seconds();
  report.weight_bytes = model_.weight_bytes();
  report.session_memory = memory_when_full(transformer_->session());
  report.workspace_bytes = transformer_->workspace_bytes();
  for (const auto* more :
       {&flags_.warnings, &model_.warnings(), &warnings_, &transformer_->session().options().warnings}) {
    report.warnings.insert(report.warnings.end(), more->begin(), more->end());
  }
}

ExitCode Generation::run() {
  if (serves()) model_.serve();
  const Words words = prompt_words();
  if (flags_.chat) chat_ = model_.chat_template("--chat", flags_.chat_template);
  const Turn prompt = words.text.empty() ? Turn{} : encode(words);
  const auto tokens = static_cast<std::int64_t>(prompt.ids.size());
  if (tokens == 0 && !words.text.empty()) throw Failure(kNoTokens);
  if (!flags_.no_bos && !flags_.chat)
    check_bos(flags_.file ? "-f (--file)" : "-p (--prompt)", prompt.ids, model_.tokenizer(), warnings_);
  check_prompt("the prompt", tokens, model_);
  const std::int64_t capacity = capacity_for(tokens);
  open(capacity, flags_.dense);
  if (flags_.dump_layer)
    dump_.emplace(*transformer_, *flags_.dump_layer, flags_.dump_path, flags_.model.model);
  if (dump_) conversation_->set_layer_observer([&](const runtime::LayerView& view) { dump_->take(view); });
  GenerateReport report;
  describe(report);
  warn(report.warnings);
  install_stop_request();

  if (tokens > 0) {
    report.run = run_turn(prompt, !flags_.json);
    if (!flags_.json) print_out("\n");
  } else {
    report.run.effective = transformer_->options();
  }
  if (flags_.interactive) {
    talk(report.run);
    report.session = totals_;
  }
  bool interrupted = (report.run.interrupted && !flags_.interactive) || stop_requested();
  if (flags_.compare && !interrupted) {
    open(capacity, true);
    report.dense = run_turn(prompt, false);
    interrupted = report.dense->interrupted;
  }
  report.ranks = rank_reports();
  if (flags_.json) {
    print_out(json_text(report));
  } else if (!flags_.quiet) {
    print_error(summary_text(report));
  }
  return interrupted ? static_cast<ExitCode>(kInterrupted) : ExitCode::done;
}

}  // namespace

ExitCode generate_command(const std::vector<std::string>& arguments) {
  join_ranks(kCommand, arguments);
  const auto flags = parse_generate_flags(arguments);
  if (!flags) return ExitCode::done;
  install_signal_handlers(kCommand, flags->model.model);
  return flags->requests ? answer_requests(*flags) : Generation(*flags).run();
}

}  // namespace headwater::cli
