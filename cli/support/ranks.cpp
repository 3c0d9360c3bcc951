#include "cli/support/ranks.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <climits>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <utility>

#include "cli/support/failure.hpp"
#include "cli/support/interrupt.hpp"
#include "cli/support/model_flags.hpp"
#include "cli/support/progress.hpp"
#include "cli/support/streams.hpp"
#include "cli/support/text.hpp"
#include "headwater/engine.hpp"
#include "headwater/error.hpp"
#include "headwater/version.hpp"
#include "runtime/support/fnv.hpp"
#include "runtime/support/mapped_file.hpp"

namespace headwater::cli {
namespace {

std::unique_ptr<pipeline::Pipeline> joined;

std::string own_path() {
  std::array<char, PATH_MAX> path{};
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size() - 1);
  return {path.data(), static_cast<std::size_t>(std::max<ssize_t>(length, 0))};
}

/// Beside the program as it is built, or where it is installed.
std::string find_transport() {
  const std::filesystem::path folder = std::filesystem::path(own_path()).parent_path();
  for (const char* place : {"libheadwater-mpi.so", HEADWATER_MPI_INSTALLED}) {
    const std::filesystem::path path = folder / place;
    std::error_code error;
    if (std::filesystem::exists(path, error)) return path.string();
  }
  return {};
}

/// Arguments as one value: what is shown of them is cut, the hash is of all.
std::string arguments_fact(const std::vector<std::string>& arguments) {
  std::string text;
  std::string whole;
  for (const std::string& argument : arguments) {
    text += in_quotes(argument) + ' ';
    whole += argument + '\0';
  }
  const std::uint64_t hash = runtime::fnv1a(std::as_bytes(std::span(whole)));
  return fmt::format("{} (hash {:016x})", one_line(text, 200), hash);
}

std::string build_fact() {
  const runtime::MappedFile program(own_path());
  return fmt::format("{} with hash {:016x}", kVersion, runtime::fnv1a(program.bytes()));
}

/// Whether something can be read from standard input: a rank behind the first has none.
bool has_input() {
  int bytes = 0;
  return ::ioctl(STDIN_FILENO, FIONREAD, &bytes) == 0 && bytes > 0;
}

std::vector<std::int64_t> parse_shares(const std::string& text) {
  std::vector<std::int64_t> shares;
  for (std::size_t begin = 0;;) {
    const std::size_t comma = text.find(',', begin);
    shares.push_back(parse_integer("--layers", text.substr(begin, comma - begin), 1, kMaxCount));
    if (comma == std::string::npos || shares.size() > 4096) return shares;
    begin = comma + 1;
  }
}

}  // namespace

void RankFlags::declare(FlagSet& set) {
  set.value("--layers", "N,N...", "under mpirun: layers of each rank (by cost)",
            [this](const std::string& text) { layers = parse_shares(text); });
  set.real("--rank-timeout", 1.0, 86400.0,
           "under mpirun: seconds of silence after which a rank is given up, and all end (30)", timeout);
  set.check([this] {
    if (layers && ranks() == nullptr) {
      throw Failure(
          "--layers shares layers out among ranks, but there is one process; start several with mpirun -n P");
    }
  });
}

pipeline::Pipeline* ranks() { return joined.get(); }

bool serves() { return joined && !joined->first(); }

void join_ranks(const std::string& command, const std::vector<std::string>& arguments) {
  if (!pipeline::started_with_others()) return;
  const bool leads = pipeline::rank_of_environment() == 0;
  if (!leads) mute_streams();
  const std::string library = find_transport();
  // A launcher ends all ranks soon after the first one has failed: rank 0 says why before that.
  const auto let_rank_0_speak = [leads] {
    if (!leads) std::this_thread::sleep_for(std::chrono::milliseconds(500));
  };
  if (library.empty()) {
    let_rank_0_speak();
    throw Failure(ExitCode::no_engine,
                  "several ranks were started, but this build has no MPI (HEADWATER_MPI); start one process");
  }
  pipeline::NodeOptions options;
  options.say = [command](const std::string& line) {
    // Of the node's thread, while the command's own may be writing.
    const std::string text = fmt::format("{}{}\n", progress_line_shown() ? kClearLine : "",
                                         one_line(fmt::format("{}: {}", command, line)));
    (void)write_all(STDERR_FILENO, text);
  };
  std::unique_ptr<pipeline::Pipeline> pipeline;
  try {
    pipeline = std::make_unique<pipeline::Pipeline>(library, std::move(options));
  } catch (const Error&) {
    let_rank_0_speak();
    throw;
  }
  if (pipeline->node().size() == 1) {
    (void)pipeline->node().finish(0);
    return;
  }
  if (!pipeline->first()) mute_streams();
  joined = std::move(pipeline);
  joined->node().agree({{"build", build_fact()}, {"command line", arguments_fact(arguments)}});
}

std::vector<std::string> settle_ranks(const RankFlags& flags, const ModelFlags& model,
                                      const runtime::GgufFile& file, std::int64_t layers) {
  // Signals are this process's own again: SIGINT is rank 0's, and what a launcher sends has a reason that the node says.
  pipeline::watch_terminate_signal();
  if (serves()) std::signal(SIGINT, SIG_IGN);
  joined->node().set_deadline(flags.timeout);
  joined->share_out(file, layers, flags.layers, flags.judges_every_token);
  const Engine& engine = headwater::engine(model.engine);
  joined->node().agree({
      {"model file", fmt::format("{} bytes, metadata and tensor table with hash {:016x}", file.file_bytes(),
                                 file.head_hash())},
      {"type of projections (--projections)", runtime::precision_name(model.precision)},
      {"type of the cache (--cache-type)", model.cache_name()},
      {"engine", std::string(engine.name())},
      {"standard input", flags.reads_input && serves() && has_input()
                             ? "something to read, which only rank 0 reads"
                             : "nothing for other ranks"},
  });
  std::vector<std::string> warnings;
  const pipeline::Facts own = {{"projections", runtime::product_isa()},
                               {"engine", std::string(engine.isa())}};
  const auto all = joined->node().gather(own);
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (all[r] == own) continue;
    warnings.push_back(
        fmt::format("{} computes with {} and {}, rank 0 with {} and {}: results are those of neither alone",
                    joined->node().name(static_cast<int>(r)), all[r][0].second, all[r][1].second,
                    own[0].second, own[1].second));
  }
  return warnings;
}

int end_ranks(int status) { return joined ? joined->node().finish(status) : status; }

void say_by_rank_0(const std::string& line, int status) { joined->node().fail(line, status); }

std::vector<pipeline::RankReport> rank_reports() {
  return joined ? joined->reports() : std::vector<pipeline::RankReport>{};
}

void add_ranks(nlohmann::ordered_json& json, const std::vector<pipeline::RankReport>& reports) {
  for (const pipeline::RankReport& one : reports) {
    json["ranks"].push_back({{"host", one.host},
                             {"layers", {one.first, one.end}},
                             {"processor_seconds", one.processor_seconds},
                             {"messages", one.messages},
                             {"bytes", one.bytes},
                             {"peak_bytes", one.peak_bytes}});
  }
}

std::string ranks_text(const std::vector<pipeline::RankReport>& reports) {
  std::string text;
  for (std::size_t r = 0; r < reports.size(); ++r) {
    const pipeline::RankReport& one = reports[r];
    text += fmt::format("rank {:<3} {}: layers {} .. {}, {:.3f} s of processor time, {} resident at most", r,
                        one_line(one.host), one.first, one.end - 1, one.processor_seconds,
                        bytes_text(one.peak_bytes));
    if (one.messages > 0)
      text += fmt::format(", {} in {} to the next one", bytes_text(one.bytes),
                          count_text(static_cast<std::int64_t>(one.messages), "message"));
    text += '\n';
  }
  return text;
}

}  // namespace headwater::cli
