#include "cli/model/generate.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>

#include "cli/interrupt.hpp"
#include "cli/model/generate_flags.hpp"
#include "cli/model/generate_report.hpp"
#include "cli/model/loaded_model.hpp"
#include "cli/model/prompt.hpp"
#include "cli/model/qkv_dump.hpp"
#include "cli/progress.hpp"
#include "cli/standard_output.hpp"
#include "cli/text.hpp"
#include "headwater/headwater.hpp"
#include "runtime/generate/conversation.hpp"
#include "runtime/tokenizer/chat.hpp"

namespace headwater::cli {
namespace {

constexpr const char* kCommand = "headwater generate";
constexpr std::uint64_t kProgressUnits = 1'000'000;

using Ids = std::vector<std::int32_t>;
using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// Leaves a prefill that Ctrl-C ended.
struct Interrupted {};

class Generation {
 public:
  explicit Generation(const GenerateFlags& flags) : flags_(flags), model_(flags.model) {}
  ExitCode run();

 private:
  [[nodiscard]] std::string prompt_text() const;
  [[nodiscard]] Ids encode(const std::string& text, bool first) const;
  void check_prompt(std::int64_t tokens) const;
  [[nodiscard]] std::int64_t capacity_for(std::int64_t prompt);
  void open(std::int64_t capacity, bool dense);
  GenerateRun turn(const Ids& ids, bool shown);
  void feed(const Ids& ids, GenerateRun& run);
  void generate(GenerateRun& run, bool shown);
  void talk(const GenerateRun& opening);
  void tell_turn(const GenerateRun& run);
  void describe(GenerateReport& report) const;

  const GenerateFlags& flags_;
  LoadedModel model_;
  std::unique_ptr<runtime::Transformer> transformer_;
  std::optional<runtime::Conversation> conversation_;
  std::optional<runtime::Sampler> sampler_;
  std::optional<QkvDump> dump_;
  std::optional<std::int32_t> pending_;  // generated last, not yet in the conversation
  bool ended_ = false;                   // by a token of its own
  SessionTotals totals_;                 // of an interactive session
  std::vector<std::string> warnings_;
};

std::string Generation::prompt_text() const {
  std::string text = flags_.prompt ? *flags_.prompt
                     : flags_.file ? read_text("-f (--file)", *flags_.file)
                                   : "";
  if (text.empty() && !(flags_.interactive && !flags_.prompt && !flags_.file)) {
    throw Failure("the prompt is empty; allowed: one byte or more");
  }
  return text;
}

Ids Generation::encode(const std::string& text, bool first) const {
  const runtime::Tokenizer& tokenizer = model_.tokenizer();
  if (!flags_.chat) return tokenizer.encode(text, first, first);
  const auto format = runtime::chat_format_of(tokenizer);
  if (!format) {
    throw Failure(fmt::format("--chat: {} has the control tokens of neither ChatML nor Llama 3",
                              in_quotes(flags_.model.model)));
  }
  const runtime::ChatMessage message{"user", text};
  Ids ids = runtime::encode_chat(tokenizer, *format, {&message, 1}, first);
  // An answer that the number of tokens cut off is closed first.
  if (!first && !ended_) {
    const auto end =
        tokenizer.find_special(*format == runtime::ChatFormat::chatml ? "<|im_end|>" : "<|eot_id|>");
    if (end) ids.insert(ids.begin(), *end);
  }
  return ids;
}

void Generation::check_prompt(std::int64_t tokens) const {
  if (tokens <= model_.context()) return;
  throw Failure(fmt::format("the prompt has {} tokens, but the context {} ({}); use a shorter prompt{}",
                            tokens, model_.context(), flags_.model.context ? "-c" : "of the model",
                            flags_.model.context ? " or a larger -c" : ", or -c at the price of quality"));
}

/// The last generated token need not be stored.
std::int64_t Generation::capacity_for(std::int64_t prompt) {
  if (flags_.interactive) return model_.context();
  const std::int64_t wanted = prompt + std::max<std::int64_t>(flags_.tokens - 1, 0);
  if (wanted > model_.context()) {
    warnings_.push_back(fmt::format("only {} of {} tokens fit behind a prompt of {} in a context of {}",
                                    model_.context() - prompt + 1, flags_.tokens, prompt, model_.context()));
  }
  return std::min(wanted, model_.context());
}

void Generation::open(std::int64_t capacity, bool dense) {
  conversation_.reset();
  transformer_.reset();
  transformer_ = model_.open(capacity, dense);
  conversation_.emplace(*transformer_, flags_.dense_tail);
  sampler_.emplace(flags_.sampling, model_.config().vocabulary);
  pending_.reset();
}

void Generation::feed(const Ids& ids, GenerateRun& run) {
  transformer_->clear_times();
  Progress progress(kProgressUnits, "prefill", static_cast<std::uint64_t>(ids.size()));
  std::uint64_t shown = 0;
  double done = 0;
  const auto start = Clock::now();
  try {
    conversation_->feed(ids, [&](double share) {
      done = share;
      if (stop_requested()) throw Interrupted{};
      const auto units = static_cast<std::uint64_t>(share * static_cast<double>(kProgressUnits));
      progress.advance(units - std::min(shown, units));
      shown = units;
    });
    run.first_logits.assign(conversation_->logits().begin(), conversation_->logits().end());
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
    if (shown) print_out(piece);
  };
  const std::int64_t capacity = transformer_->session().shape().capacity;
  const auto start = Clock::now();
  for (std::int64_t i = 0; i < flags_.tokens; ++i) {
    const std::int32_t id = sampler_->draw(conversation_->logits());
    ended_ = model_.tokenizer().is_end(id);
    if (ended_) {
      pending_ = id;
      break;
    }
    run.ids.push_back(id);
    pending_ = id;
    emit(decoder.push(id));
    run.interrupted = stop_requested();
    if (run.interrupted || i + 1 == flags_.tokens || conversation_->tokens() == capacity) break;
    conversation_->append(id);
    pending_.reset();
    ++run.decoded;
  }
  run.decode_seconds = since(start);
  emit(decoder.finish());
}

GenerateRun Generation::turn(const Ids& ids, bool shown) {
  GenerateRun run;
  run.prompt_tokens = static_cast<std::int64_t>(ids.size());
  run.tail_tokens = conversation_->tail_of(run.prompt_tokens);
  run.effective = transformer_->session().options();
  feed(ids, run);
  run.pairs = conversation_->pairs();
  run.steps = conversation_->steps();
  if (dump_ && !run.interrupted) dump_->write(run.steps);
  if (!run.interrupted) generate(run, shown);
  return run;
}

void Generation::tell_turn(const GenerateRun& run) {
  totals_.add(run);
  totals_.stored = conversation_->tokens();
  totals_.capacity = transformer_->session().shape().capacity;
  if (!run.interrupted || run.done_tokens == run.prompt_tokens) totals_.pairs = conversation_->pairs();
  fmt::print(stderr, "turn     {} tokens in {:.3f} s, {} generated in {:.3f} s, {} of {} stored\n",
             run.done_tokens, run.prefill_seconds, run.ids.size(), run.decode_seconds, totals_.stored,
             totals_.capacity);
}

/// A turn for each line of standard input, until it ends.
void Generation::talk(const GenerateRun& opening) {
  bool first = conversation_->tokens() == 0;
  if (!first) tell_turn(opening);
  totals_.capacity = transformer_->session().shape().capacity;
  const auto next_line = [](std::string& line) {
    // Somebody who types sees whose turn it is.
    const bool typed = ::isatty(STDIN_FILENO) == 1;
    if (typed) fmt::print(stderr, "> ");
    const bool got = static_cast<bool>(std::getline(std::cin, line));
    if (typed && !got) fmt::print(stderr, "\n");
    return got;
  };
  for (std::string line; !stop_requested() && next_line(line);) {
    if (line.empty()) continue;
    Ids ids;
    // The end of an answer is part of a chat, and of nothing else.
    if (pending_ && (flags_.chat || !ended_)) ids.push_back(*pending_);
    pending_.reset();
    const Ids said = encode(line, first);
    first = false;
    ids.insert(ids.end(), said.begin(), said.end());
    const std::int64_t room = transformer_->session().shape().capacity - conversation_->tokens();
    if (static_cast<std::int64_t>(ids.size()) > room) {
      throw Failure(
          fmt::format("a turn of {} tokens does not fit behind {}; the context has room for {} more",
                      ids.size(), conversation_->tokens(), room));
    }
    const GenerateRun run = turn(ids, true);
    print_out("\n");
    tell_turn(run);
  }
}

void Generation::describe(GenerateReport& report) const {
  const runtime::ModelConfig& config = model_.config();
  report.model = config.name.empty() ? flags_.model.model : config.name;
  report.architecture = config.architecture;
  report.engine = transformer_->engine().name();
  report.isa = transformer_->engine().isa();
  report.projections = fmt::format("{} by oneDNN ({})", runtime::precision_name(flags_.model.precision),
                                   runtime::product_isa());
  report.cache_type = dtype_name(flags_.model.cache_type);
  report.load_seconds = model_.load_seconds();
  report.weight_bytes = model_.weight_bytes();
  report.session_memory = transformer_->session().memory_bytes();
  report.workspace_bytes = transformer_->workspace_bytes();
  report.warnings = model_.warnings();
  report.warnings.insert(report.warnings.end(), warnings_.begin(), warnings_.end());
  const auto& more = transformer_->session().options().warnings;
  if (!flags_.compare) report.warnings.insert(report.warnings.end(), more.begin(), more.end());
}

ExitCode Generation::run() {
  const std::string text = prompt_text();
  const Ids ids = text.empty() ? Ids{} : encode(text, true);
  const auto prompt = static_cast<std::int64_t>(ids.size());
  check_prompt(prompt);
  const std::int64_t capacity = capacity_for(prompt);
  open(capacity, flags_.dense);
  if (flags_.dump_layer)
    dump_.emplace(*transformer_, *flags_.dump_layer, flags_.dump_path, flags_.model.model);
  if (dump_) conversation_->set_layer_observer([&](const runtime::LayerView& view) { dump_->take(view); });
  install_stop_request();

  GenerateReport report;
  if (!ids.empty()) {
    report.run = turn(ids, !flags_.json);
    if (!flags_.json) print_out("\n");
  } else {
    report.run.effective = transformer_->session().options();
  }
  describe(report);
  if (flags_.interactive && !report.run.interrupted) {
    talk(report.run);
    report.session = totals_;
  }
  bool interrupted = report.run.interrupted || stop_requested();
  if (flags_.compare && !interrupted) {
    const auto& more = transformer_->session().options().warnings;
    report.warnings.insert(report.warnings.end(), more.begin(), more.end());
    open(capacity, true);
    report.dense = turn(ids, false);
    interrupted = report.dense->interrupted;
  }
  if (flags_.json) {
    print_out(json_text(report));
  } else {
    fmt::print(stderr, "{}", summary_text(report));
  }
  for (const std::string& warning : report.warnings) fmt::print(stderr, "warning: {}\n", one_line(warning));
  return interrupted ? static_cast<ExitCode>(kInterrupted) : ExitCode::done;
}

}  // namespace

ExitCode generate_command(const std::vector<std::string>& arguments) {
  const auto flags = parse_generate_flags(arguments);
  if (!flags) return ExitCode::done;
  install_signal_handlers(kCommand, flags->model.model);
  return Generation(*flags).run();
}

}  // namespace headwater::cli
