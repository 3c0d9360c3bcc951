#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "cli/commands/attend/block_trace.hpp"
#include "cli/commands/attend/flags.hpp"
#include "cli/commands/attend/input.hpp"
#include "cli/commands/attend/recorder.hpp"
#include "cli/commands/attend/report.hpp"
#include "cli/commands/commands.hpp"
#include "cli/support/calls.hpp"
#include "cli/support/chosen_engine.hpp"
#include "cli/support/interrupt.hpp"
#include "cli/support/json_text.hpp"
#include "cli/support/machine.hpp"
#include "cli/support/output_file.hpp"
#include "cli/support/output_layout.hpp"
#include "cli/support/progress.hpp"
#include "cli/support/steps.hpp"
#include "cli/support/streams.hpp"
#include "cli/support/text.hpp"
#include "headwater/headwater.hpp"
#include "runtime/support/mapped_file.hpp"

namespace headwater::cli {
namespace {

constexpr const char* kCommand = "headwater attend";
constexpr const char* kFormat = "headwater-attend-1";

/// One `attend` from checked flags and input to the finished file.
class AttendRun {
 public:
  AttendRun(const AttendFlags& flags, const Engine& engine, const runtime::MappedFile& file);
  AttendReport run();

 private:
  [[nodiscard]] std::vector<StepItem> read_steps() const;
  void check_memory_before_open() const;
  void check_memory() const;
  void lay_out();
  void run_once(bool first, Progress& progress);
  void perform(const Call& call, bool first);
  void write_results();
  [[nodiscard]] Shape shape() const;
  [[nodiscard]] Options options() const;
  [[nodiscard]] std::uint64_t output_row_bytes() const {
    return static_cast<std::uint64_t>(input_.q.heads * input_.v.width) * sizeof(float);
  }

  const AttendFlags& flags_;
  const Engine& engine_;
  const runtime::MappedFile& file_;
  AttendInput input_;
  std::vector<StepItem> steps_;
  OutputFile output_;
  std::unique_ptr<Session> session_;
  Work work_;
  OutputLayout layout_;
  std::vector<float> out_;  // [longest call, Hq, dv]
  std::optional<Recorder> recorder_;
  NonFinite q_check_, k_check_, v_check_;
  std::vector<double> seconds_;
};

AttendRun::AttendRun(const AttendFlags& flags, const Engine& engine, const runtime::MappedFile& file)
    : flags_(flags),
      engine_(engine),
      file_(file),
      input_(read_attend_input(file)),
      steps_(read_steps()),
      output_(flags.output, file),
      q_check_("q", input_.q),
      k_check_("k", input_.k),
      v_check_("v", input_.v) {}

std::vector<StepItem> AttendRun::read_steps() const {
  if (!flags_.steps) return {{Step::prefill(input_.q.n), {}}};
  auto steps = parse_steps(*flags_.steps);
  check_steps(steps, input_.q.n);
  return steps;
}

Shape AttendRun::shape() const {
  Shape shape;
  shape.n_head = input_.q.heads;
  shape.n_head_kv = input_.k.heads;
  shape.d_head = input_.q.width;
  shape.d_value = input_.v.width;
  shape.capacity = input_.q.n;
  shape.kv_type = input_.k.type;
  return shape;
}

Options AttendRun::options() const {
  Options options = flags_.options;
  options.sinks = input_.sinks;
  options.alibi = input_.alibi;
  return options;
}

void require_memory(std::uint64_t bytes, std::string_view what, std::string_view advice) {
  const std::uint64_t limit = memory_limit();
  if (bytes <= limit) return;
  throw Failure(fmt::format("{} needs {} ({} bytes) of memory, but the machine has {}; {}", what,
                            bytes_text(bytes), bytes, bytes_text(limit), advice));
}

/// A small file can ask for a large output: q [1,65536,1] and v [1,1,65536] make 17 GB. What open() will take is known
/// only afterwards; what it takes at least (K, V, scores, a batch of output rows) is asked for here.
void AttendRun::check_memory_before_open() const {
  const auto n = static_cast<std::uint64_t>(input_.q.n);
  const auto batch = static_cast<std::uint64_t>(std::max(flags_.options.batch, flags_.options.chunk));
  const std::uint64_t per_token = 2 * sizeof(float) * static_cast<std::uint64_t>(input_.q.heads);
  std::uint64_t out = 0;
  std::uint64_t bytes =
      n * (input_.k.row_bytes() + input_.v.row_bytes() + per_token);  // bounded by the file's size
  bool overflow = __builtin_mul_overflow(std::min(n, batch), output_row_bytes(), &out);
  overflow |= __builtin_add_overflow(bytes, out, &bytes);
  if (overflow) bytes = std::numeric_limits<std::uint64_t>::max();
  require_memory(bytes,
                 fmt::format("attention over {} of {} with value rows of {}", count_text(input_.q.n, "token"),
                             count_text(input_.q.heads, "query head"), input_.v.width),
                 "use fewer tokens, or a smaller --batch and --chunk");
}

void AttendRun::check_memory() const {
  const EffectiveOptions& effective = session_->options();
  if (flags_.trace && effective.select != Select::h2o) {
    require_memory(
        BlockTrace::bytes(input_.k.heads, effective.memory(), work_),
        fmt::format("the trace of {}, {} and local + heavy = {}",
                    count_text(work_.query_blocks, "query block"),
                    count_text(input_.k.heads, "key/value head"), effective.memory()),
        "leave it out with --no-trace, or use larger --query-block and --key-block or a smaller memory");
  } else if (flags_.trace) {
    std::uint64_t trace = 0;
    constexpr std::uint64_t kEntryBytes = sizeof(std::int32_t) + sizeof(float);
    bool overflow = __builtin_mul_overflow(static_cast<std::uint64_t>(work_.chunks),
                                           kEntryBytes * static_cast<std::uint64_t>(input_.q.heads), &trace);
    overflow |= __builtin_mul_overflow(trace, static_cast<std::uint64_t>(effective.memory()), &trace);
    if (overflow) trace = std::numeric_limits<std::uint64_t>::max();
    require_memory(
        trace,
        fmt::format("the trace of {}, {} and local + heavy = {}", count_text(work_.chunks, "chunk"),
                    count_text(input_.q.heads, "query head"), effective.memory()),
        "leave it out with --no-trace, or use a larger --chunk or a smaller memory");
  }
  std::uint64_t out = 0;
  if (__builtin_mul_overflow(static_cast<std::uint64_t>(work_.longest_call), output_row_bytes(), &out)) {
    out = std::numeric_limits<std::uint64_t>::max();
  }
  require_memory(out, fmt::format("the output of a call of {}", count_text(work_.longest_call, "token")),
                 "cut the input with --steps");
}

void AttendRun::lay_out() {
  const EffectiveOptions& effective = session_->options();
  const auto n = static_cast<std::uint64_t>(input_.q.n);
  const auto heads = static_cast<std::uint64_t>(input_.q.heads);
  const auto chunks = static_cast<std::uint64_t>(work_.chunks);
  const auto memory = effective.select == Select::h2o ? static_cast<std::uint64_t>(effective.memory()) : 0;
  // Nothing that must not change the bytes: no threads, steps, schedule or date.
  layout_.add_metadata("format", kFormat);
  layout_.add_metadata("version", kVersion);
  layout_.add_metadata("engine", std::string(engine_.name()));
  layout_.add_metadata("isa", std::string(engine_.isa()));
  for (const auto& [name, value] : plan_facts(effective)) layout_.add_metadata(name, value);
  layout_.add_metadata("scale", fmt::format("{:.17g}", effective.scale));
  layout_.add_metadata("softcap", fmt::format("{:.17g}", effective.softcap));
  layout_.add_metadata("score_type", score_type_name(effective.score_type));
  layout_.add_metadata("clamp", flags_.options.clamp ? "true" : "false");
  // A file says nothing of rule h2o and of options that are off, as it did when there was nothing else.
  for (const auto& [name, value] : rule_facts(effective)) layout_.add_metadata(name, value);
  layout_.add("out", TensorType::f32, {n, heads, static_cast<std::uint64_t>(input_.v.width)});
  layout_.add("lse", TensorType::f32, {n, heads});
  layout_.add("colsum_intra", TensorType::f32, {heads, n});
  layout_.add("chunk_start", TensorType::i32, {chunks + 1});
  if (flags_.trace) {
    layout_.add("memory", TensorType::i32, {chunks, heads, memory});
    layout_.add("colsum_inter", TensorType::f32, {chunks, heads, memory});
  }
  if (flags_.trace && effective.select != Select::h2o) {
    BlockTrace::lay_out(layout_, input_.k.heads, effective, work_);
  }
  const bool narrow = effective.score_type == ScoreType::bf16;
  layout_.add("scores", narrow ? TensorType::bf16 : TensorType::f32, {heads, n});
  layout_.close();
}

AttendReport AttendRun::run() {
  check_memory_before_open();
  session_ = engine_.open(shape(), options());
  work_ = measure(steps_, session_->options());
  check_memory();
  lay_out();
  output_.reserve(layout_.file_bytes());
  out_.resize(static_cast<std::size_t>(work_.longest_call * input_.q.heads * input_.v.width));
  recorder_.emplace(session_->shape(), session_->options(), work_, flags_.trace);

  std::vector<std::string> warnings = session_->options().warnings;
  warnings.insert(warnings.end(), input_.warnings.begin(), input_.warnings.end());
  warn(warnings);
  {
    Progress progress(work_.pairs * static_cast<std::uint64_t>(flags_.repeat));
    for (int i = 0; i < flags_.repeat; ++i) run_once(i == 0, progress);
  }
  output_.commit();

  AttendReport report;
  report.engine = engine_.name();
  report.isa = engine_.isa();
  report.effective = session_->options();
  report.memory = session_->memory_bytes();
  report.tokens = input_.q.n;
  report.heads = input_.q.heads;
  report.heads_kv = input_.k.heads;
  report.d_head = input_.q.width;
  report.d_value = input_.v.width;
  report.q_type = input_.q.type;
  report.kv_type = input_.k.type;
  report.chunks = recorder_->chunks();
  report.pairs = recorder_->pairs();
  report.pairs_dense = pairs_of(input_.q.n, 0);
  report.seconds = seconds_;
  report.output = flags_.output;
  report.output_bytes = layout_.file_bytes();
  for (const NonFinite* check : {&q_check_, &k_check_, &v_check_}) {
    const std::string warning = check->warning();
    if (warning.empty()) continue;
    warn(warning);
    warnings.push_back(warning);
  }
  report.warnings = std::move(warnings);
  return report;
}

/// The first run writes the results; every run is timed. Only begin() to end() counts: looking for NaN, and writing
/// and giving back pages between the calls, does not.
void AttendRun::run_once(bool first, Progress& progress) {
  session_->reset();
  session_->set_observer([&](const ChunkRecord& record) {
    if (first) recorder_->record(record);
    progress.advance(pairs_of(record.chunk.end - record.chunk.begin, record.chunk.mode == ChunkMode::sparse
                                                                         ? record.memory_count
                                                                         : record.chunk.begin));
  });
  seconds_.push_back(0.0);
  for_each_call(steps_, session_->options(), [&](const Call& call) { perform(call, first); });
  session_->set_observer({});
  if (first) write_results();
}

void AttendRun::perform(const Call& call, bool first) {
  const std::int64_t end = call.base + call.step.n;
  if (first) {
    for (NonFinite* check : {&q_check_, &k_check_, &v_check_}) check->scan(call.base, end);
  }
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  session_->begin(call.step);
  session_->attend(0, input_.q.from(call.base), input_.k.from(call.base), input_.v.from(call.base),
                   MutableRows::token_major(out_.data(), DType::f32, input_.q.heads, input_.v.width));
  session_->end();
  seconds_.back() += std::chrono::duration<double>(Clock::now() - start).count();

  if (first) {
    const std::uint64_t bytes = static_cast<std::uint64_t>(call.step.n) * output_row_bytes();
    output_.write_at(layout_.offset("out") + static_cast<std::uint64_t>(call.base) * output_row_bytes(),
                     std::as_bytes(std::span(out_)).first(bytes));
  }
  if (flags_.repeat > 1) return;  // later runs read the rows again
  for (const InputTensor* tensor : {&input_.q, &input_.k, &input_.v}) {
    const std::uint64_t begin =
        tensor->file_offset + static_cast<std::uint64_t>(call.base) * tensor->row_bytes();
    runtime::release_pages(
        file_.bytes().subspan(begin, static_cast<std::uint64_t>(call.step.n) * tensor->row_bytes()));
  }
}

void AttendRun::write_results() {
  const std::string& header = layout_.header();
  output_.write_at(0, std::as_bytes(std::span(header)));
  recorder_->write(output_, layout_);
  const ScoreView scores = session_->scores(0);
  const std::uint64_t element = scores.type == ScoreType::bf16 ? sizeof(std::uint16_t) : sizeof(float);
  const std::uint64_t row = static_cast<std::uint64_t>(input_.q.n) * element;
  for (std::int64_t h = 0; h < input_.q.heads; ++h) {
    const auto* const from = static_cast<const std::byte*>(scores.data) +
                             static_cast<std::uint64_t>(h * scores.head_stride) * element;
    output_.write_at(layout_.offset("scores") + static_cast<std::uint64_t>(h) * row, {from, row});
  }
}

}  // namespace

ExitCode attend_command(const std::vector<std::string>& arguments) {
  const auto flags = parse_attend_flags(arguments);
  if (!flags) return ExitCode::done;
  const Engine& chosen = chosen_engine(flags->engine);
  install_signal_handlers(kCommand, flags->input);
  const runtime::MappedFile file(flags->input);
  if (flags->quiet) Progress::hide();
  AttendReport report;
  {
    AttendRun run(*flags, chosen, file);
    report = run.run();
  }
  if (flags->json) {
    print_out(json_text(report));
  } else if (!flags->quiet) {
    print_summary(summary_text(report), flags->output == kStandardOutput);
  }
  return ExitCode::done;
}

}  // namespace headwater::cli
