#include "conformance/verify.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <iostream>

#include <fmt/format.h>
#include <fmt/ostream.h>
#include <nlohmann/json.hpp>

#include "cli/support/text.hpp"
#include "conformance/attend_files.hpp"
#include "conformance/forced.hpp"
#include "conformance/formats.hpp"
#include "conformance/program.hpp"
#include "conformance/replay.hpp"
#include "conformance/text_file.hpp"
#include "conformance/worse.hpp"
#include "headwater/error.hpp"

namespace headwater::conformance {
namespace {

constexpr std::int64_t kRowsPerTask = 256;  // of a dense chunk: enough tasks for every thread

// Worst of one tensor.
struct Worst {
  double error = 0.0;
  double ratio = 0.0;
  double bounds = 0.0;
  double signals = 0.0;
  std::int64_t beyond = 0;  // elements with an error above their bound
  std::string first;

  void judge(double got, double wanted, double bound, double signal, const std::string& where) {
    const double difference = std::fabs(got - wanted);
    bounds += bound;
    signals += signal;
    if (!(difference <= bound)) {
      if (beyond++ == 0) {
        first = fmt::format("{}: {:.9g}, oracle {:.9g}, bound {:.3g}", where, got, wanted, bound);
      }
    }
    error = worse_of(error, difference);
    const double over = difference == 0.0 ? 0.0 : difference / bound;
    ratio = worse_of(ratio, over);
  }
  void join(const Worst& other) {
    if (beyond == 0) first = other.first;
    beyond += other.beyond;
    bounds += other.bounds;
    signals += other.signals;
    error = worse_of(error, other.error);
    ratio = worse_of(ratio, other.ratio);
  }
};

struct Verdicts {
  Worst out, lse, intra, inter;
  Worst block_votes, token_votes;  // rule `blocks`
  std::int64_t not_judged = 0;     // rows of a chunk and head whose inputs hold NaN or infinity

  void join(const Verdicts& other) {
    out.join(other.out);
    lse.join(other.lse);
    intra.join(other.intra);
    inter.join(other.inter);
    block_votes.join(other.block_votes);
    token_votes.join(other.token_votes);
    not_judged += other.not_judged;
  }
};

// A chunk of one head, or some rows of it.
struct Task {
  std::size_t chunk = 0;
  std::int64_t head = 0;
  std::int64_t first = 0;  // rows of the chunk
  std::int64_t last = 0;
};

std::vector<Task> tasks_of(const AttendRun& run) {
  std::vector<Task> tasks;
  for (std::size_t c = 0; c < run.chunks.size(); ++c) {
    const ChunkTrace& chunk = run.chunks[c];
    // Column sums need all rows of a sparse chunk; the rows of the others are independent.
    const std::int64_t step = chunk.chunk.mode == ChunkMode::sparse ? chunk.length() : kRowsPerTask;
    for (std::int64_t head = 0; head < run.problem.shape.n_head; ++head) {
      for (std::int64_t first = 0; first < chunk.length(); first += step) {
        tasks.push_back({c, head, first, std::min(first + step, chunk.length())});
      }
    }
  }
  return tasks;
}

bool all_finite(const Tensor& tensor, std::int64_t first, std::int64_t last, std::int64_t head) {
  for (std::int64_t t = first; t < last; ++t) {
    const float* row = tensor.row(t, head);
    if (!std::all_of(row, row + tensor.width, [](float x) { return std::isfinite(x); })) return false;
  }
  return true;
}

// Rows of one head that read one set.
void judge_rows(const AttendRun& run, const StoredLayer& stored, const ChunkTrace& whole,
                const ChunkTrace& part, std::int64_t head, const std::vector<std::int64_t>& tokens,
                Verdicts& verdicts) {
  const Shape& shape = run.problem.shape;
  const HeadChunk input = head_chunk(run.problem, 0, part, head, tokens, true);
  if (!input.q.allFinite() || !input.keys.allFinite() || !input.values.allFinite()) {
    verdicts.not_judged += static_cast<std::int64_t>(tokens.size());
    return;
  }
  HeadTruth truth = eigen_oracle(input, run.arithmetic);
  use_reference_values(run.problem, stored, part, head, tokens, truth);
  const bool summed = part.chunk.mode == ChunkMode::sparse && part.query_blocks == 0;
  for (std::size_t r = 0; r < tokens.size(); ++r) {
    const auto i = static_cast<Eigen::Index>(r);
    const std::int64_t token = tokens[r];
    const auto at = static_cast<std::size_t>(token * shape.n_head + head);
    const std::string where = fmt::format("token {} head {}", token, head);
    for (std::int64_t x = 0; x < shape.d_value; ++x) {
      const double bound = truth.out_bound(i, x);
      const double rounding = unit_roundoff(DType::f32) * (std::fabs(truth.out(i, x)) + bound) + 0x1p-150;
      verdicts.out.judge(run.out[at * static_cast<std::size_t>(shape.d_value) + static_cast<std::size_t>(x)],
                         truth.out(i, x), bound + rounding, truth.out_size(i, x), where);
    }
    verdicts.lse.judge(run.lse[at], truth.lse[i], truth.lse_bound[i], 1.0, where);
    if (!summed) continue;
    verdicts.intra.judge(whole.colsum_intra[static_cast<std::size_t>(head * whole.length() + i)],
                         truth.intra[i], truth.intra_bound[i], truth.intra[i], where);
  }
  for (std::int64_t j = 0; summed && j < part.memory_count; ++j) {
    const auto at = static_cast<std::size_t>(head * part.memory_count + j);
    verdicts.inter.judge(
        part.colsum_inter[at], truth.inter[j], truth.inter_bound[j], truth.inter[j],
        fmt::format("chunk at {} head {} position {}", part.chunk.begin, head, part.memory[at]));
  }
}

// The votes of one key/value head of a chunk of query blocks.
void judge_votes(const AttendRun& run, const ChunkTrace& chunk, std::int64_t head_kv, Verdicts& verdicts) {
  const std::int64_t group = run.problem.shape.n_head / run.problem.shape.n_head_kv;
  const LayerInput& input = run.problem.layers[0];
  const bool voted = chunk.candidate_blocks > 0 || chunk.voted_tokens > 0;
  if (!voted || !all_finite(input.k, 0, chunk.chunk.begin, head_kv)) return;
  const VoteOracle oracle(run.votes, run.problem, 0, chunk, head_kv);
  for (std::int64_t b = 0; b < chunk.query_blocks; ++b) {
    const std::int64_t first = chunk.chunk.begin + b * chunk.query_block;
    const std::int64_t last = std::min(first + chunk.query_block, chunk.chunk.end);
    bool finite = true;
    for (std::int64_t h = head_kv * group; h < (head_kv + 1) * group; ++h) {
      finite = finite && all_finite(input.q, first, last, h);
    }
    if (!finite) continue;
    const SetVotes votes = oracle.votes(b);
    const std::int64_t set = head_kv * chunk.query_blocks + b;
    const auto judge = [&](Worst& worst, const VoteTruth& truth, const std::vector<float>& said,
                           std::int64_t width, bool logarithms) {
      for (Eigen::Index i = 0; i < truth.vote.size(); ++i) {
        const std::int64_t at = logarithms ? votes.searched[static_cast<std::size_t>(i)] : i;
        worst.judge(said[static_cast<std::size_t>(set * width + at)], truth.vote[i], truth.bound[i],
                    logarithms || chunk.candidate_blocks == 0 ? 1.0 : truth.vote[i],
                    fmt::format("query block at {} key/value head {} entry {}", first, head_kv, i));
      }
    };
    judge(verdicts.block_votes, votes.blocks, chunk.block_votes, chunk.candidate_blocks, true);
    judge(verdicts.token_votes, votes.of_tokens, chunk.token_votes, chunk.voted_tokens, false);
  }
}

void judge_task(const AttendRun& run, const StoredLayer& stored, const Task& task, Verdicts& verdicts) {
  const ChunkTrace& whole = run.chunks[task.chunk];
  if (whole.query_blocks > 0) {
    for (const std::vector<std::int64_t>& tokens : rows_by_set(whole)) {
      judge_rows(run, stored, whole, whole, task.head, tokens, verdicts);
    }
    const std::int64_t group = run.problem.shape.n_head / run.problem.shape.n_head_kv;
    if (task.head % group == 0) judge_votes(run, whole, task.head / group, verdicts);
    return;
  }
  ChunkTrace rows = whole;
  if (whole.chunk.mode != ChunkMode::sparse) {
    rows.chunk = {whole.chunk.begin + task.first, whole.chunk.begin + task.last, whole.chunk.mode};
  }
  judge_rows(run, stored, whole, rows, task.head, all_rows(rows), verdicts);
}

nlohmann::json worst_json(const Worst& worst) {
  return {{"max_error", worst.error}, {"max_error_over_bound", worst.ratio}, {"beyond_bound", worst.beyond}};
}

// What two output files differ by.
nlohmann::json difference_json(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0.0;
  double squares = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    largest = worse_of(largest, difference);
    squares += difference * difference;
  }
  return {{"max_difference", largest},
          {"rms_difference", std::sqrt(squares / static_cast<double>(std::max<std::size_t>(a.size(), 1)))}};
}

}  // namespace

int run_verify(const Request& request) {
  const auto start = std::chrono::steady_clock::now();
  const AttendRun run = read_attend_run(request.input, request.output);
  std::vector<float> other;
  if (!request.against.empty()) other = read_attend_outputs(request.against, run);

  std::string replay_failure;
  try {
    Replay replay(run.options, run.problem.shape.n_head, run.problem.shape.n_head_kv);
    for (std::size_t c = 0; c < run.chunks.size(); ++c) {
      if (run.options.dense_layer(0) && run.chunks[c].chunk.mode == ChunkMode::sparse) {
        throw Violation(fmt::format("chunk {} of a dense layer is sparse (STATE-7)", c));
      }
      replay.take(run.chunks[c], fmt::format("chunk {}", c));
    }
    replay.require_scores(run.scores, "final scores");
  } catch (const Violation& violation) {
    replay_failure = violation.what();
  }

  const std::vector<Task> tasks = tasks_of(run);
  const StoredLayer stored(run.problem, 0);
  Verdicts verdicts;
  std::exception_ptr failure;
#pragma omp parallel for schedule(dynamic) num_threads(request.settings.threads)
  for (std::size_t t = 0; t < tasks.size(); ++t) {
    Verdicts own;
    try {
      // Largest first: later rows see more keys.
      judge_task(run, stored, tasks[tasks.size() - 1 - t], own);
    } catch (...) {
#pragma omp critical(verify_join)
      failure = std::current_exception();
    }
#pragma omp critical(verify_join)
    verdicts.join(own);
  }
  if (failure) std::rethrow_exception(failure);

  const bool blocks = run.options.select != Select::h2o;
  std::vector<std::pair<const char*, const Worst*>> tensors{{"out", &verdicts.out}, {"lse", &verdicts.lse}};
  if (blocks) {
    tensors.insert(tensors.end(),
                   {{"block_votes", &verdicts.block_votes}, {"token_votes", &verdicts.token_votes}});
  } else {
    tensors.insert(tensors.end(), {{"colsum_intra", &verdicts.intra}, {"colsum_inter", &verdicts.inter}});
  }
  std::vector<std::string> problems;
  if (!replay_failure.empty()) problems.push_back("replay: " + replay_failure);
  bool mistrusted = false;
  nlohmann::json json_tensors;
  for (const auto& [name, worst] : tensors) {
    if (worst->beyond > 0) {
      problems.push_back(
          fmt::format("{}: {} elements beyond the bound, first {}", name, worst->beyond, worst->first));
    }
    mistrusted = mistrusted || (worst->bounds > 0.0 && worst->bounds >= worst->signals);
    json_tensors[name] = worst_json(*worst);
  }
  const Status status = !problems.empty() ? Status::fail : mistrusted ? Status::mistrusted : Status::pass;
  std::int64_t sets = 0;
  for (const ChunkTrace& chunk : run.chunks) {
    if (chunk.memory_count == 0) continue;
    sets += blocks ? chunk.query_blocks * run.problem.shape.n_head_kv : run.problem.shape.n_head;
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

  nlohmann::json report{
      {"status", status_name(status)},
      {"input", request.input},
      {"output", request.output},
      {"engine", run.engine},
      {"tokens", run.problem.tokens()},
      {"heads", run.problem.shape.n_head},
      {"chunks", run.chunks.size()},
      {"replay", {{"exact", replay_failure.empty()}, {"memory_sets", sets}, {"scores", run.scores.size()}}},
      {"tensors", json_tensors},
      {"max_abs_difference", verdicts.out.error},
      {"rows_not_judged", verdicts.not_judged},
      {"problems", problems},
      {"seconds", seconds}};
  if (!request.against.empty()) {
    nlohmann::json difference = difference_json(run.out, other);
    difference["file"] = request.against;
    report["against"] = difference;
  }

  std::ostream& human = request.json == "-" ? std::cerr : std::cout;
  fmt::print(human, "{} {}: {}, {}, {}; replay of {} and {} {}\n", status_name(status), request.output,
             cli::count_text(run.problem.tokens(), "token"),
             cli::count_text(run.problem.shape.n_head, "head"), cli::count_text(run.chunks.size(), "chunk"),
             cli::count_text(sets, "memory set"), cli::count_text(run.scores.size(), "score"),
             replay_failure.empty() ? "exact" : "FAILED");
  for (const auto& [name, worst] : tensors) {
    fmt::print(human, "  {:<13} largest error {:.3g}, worst error/bound {:.3g}\n", name, worst->error,
               worst->ratio);
  }
  if (verdicts.not_judged > 0) {
    fmt::print(human, "  SKIP {} rows whose chunk holds NaN or infinity (NUM-2)\n", verdicts.not_judged);
  }
  if (!request.against.empty()) {
    fmt::print(human, "  against {}: largest output difference {:.3g}, RMS {:.3g}\n", request.against,
               report["against"]["max_difference"].get<double>(),
               report["against"]["rms_difference"].get<double>());
  }
  for (const std::string& line : problems) fmt::print(human, "  {}\n", line);
  if (!request.json.empty()) {
    write_text(request.json, report.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  }
  return status == Status::pass ? kDone : kCheckFailed;
}

}  // namespace headwater::conformance
