#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/support/flag_set.hpp"
#include "runtime/pipeline/pipeline.hpp"

namespace headwater::cli {

struct ModelFlags;

/// What a command that runs on several ranks asks for besides.
struct RankFlags {
  std::optional<std::vector<std::int64_t>> layers;  ///< of each rank; else by cost
  double timeout = 30;                              ///< seconds of silence of a rank
  bool judges_every_token = false;                  ///< the output head works for every token of a prompt
  bool reads_input = false;                         ///< standard input, which must be rank 0's

  void declare(FlagSet& set);
};

/// The first thing that a command does which can run on several ranks: where mpirun started this process with others, meets them
/// and compares builds and arguments. All ranks but the first then print nothing. Does nothing else where it was started
/// alone. Failure where this build has no MPI.
void join_ranks(const std::string& command, const std::vector<std::string>& arguments);
/// Null where the process was started alone, or join_ranks() was not called.
[[nodiscard]] pipeline::Pipeline* ranks();
/// Whether this is a rank behind the first, which serves and prints nothing.
[[nodiscard]] bool serves();

/// Shares the layers of a model out, and compares the file and what results depend on. Returns warnings. Only
/// where there are ranks.
[[nodiscard]] std::vector<std::string> settle_ranks(const RankFlags& flags, const ModelFlags& model,
                                                    const runtime::GgufFile& file, std::int64_t layers);

/// How main() ends: `status` on all ranks, without a word on those that serve.
[[nodiscard]] int end_ranks(int status);
/// On a rank behind the first: rank 0 says the line and ends the job. Does not return.
[[noreturn]] void say_by_rank_0(const std::string& line, int status);

/// What every rank did, by rank; empty where there is one process.
[[nodiscard]] std::vector<pipeline::RankReport> rank_reports();
/// As `ranks`, where there are several.
void add_ranks(nlohmann::ordered_json& json, const std::vector<pipeline::RankReport>& reports);
/// A line for each rank: layers, processor time, memory, bytes to the next one.
[[nodiscard]] std::string ranks_text(const std::vector<pipeline::RankReport>& reports);

}  // namespace headwater::cli
