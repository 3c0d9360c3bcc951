#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/generate/teacher_forcing.hpp"
#include "runtime/gguf/gguf.hpp"
#include "runtime/model/model.hpp"
#include "runtime/model/relay.hpp"
#include "runtime/model/transformer.hpp"
#include "runtime/pipeline/node.hpp"

namespace headwater::pipeline {

/// Whether a launcher of MPI started this process (Open MPI, MPICH's Hydra, or PMIx as Slurm has it) with others, or may have.
[[nodiscard]] bool started_with_others();
/// The rank that the launcher's environment gives this process; 0 where it says none.
[[nodiscard]] int rank_of_environment();

/// How many layers each of `ranks` gets, in order, at least one each, so that the rank with the most work has the least:
/// `costs` of the layers, and of the output head, which is the last rank's. Among equals the first ranks get more.
/// Precondition: 1 <= ranks <= costs.size().
[[nodiscard]] std::vector<std::int64_t> share_out(std::span<const double> costs, double head, int ranks);

/// What a transformer is opened with, beside what all ranks know from the same arguments.
struct OpenCall {
  std::int64_t capacity = 0;
  std::int32_t slots = 1;
  bool dense = false;
};

/// What a rank did.
struct RankReport {
  std::string host;
  std::int64_t first = 0;  ///< layers [first, end)
  std::int64_t end = 0;
  double processor_seconds = 0;  ///< of all its threads, since its last transformer was opened
  std::uint64_t messages = 0;    ///< to the next rank
  std::uint64_t bytes = 0;
  std::uint64_t peak_bytes = 0;  ///< most memory that was resident
};

/// A model whose layers are shared out among the ranks of a job. Rank 0 has the first ones, reads, draws and writes; what its
/// transformers do goes from rank to rank, with the residual stream, and the others repeat it.
class Pipeline {
 public:
  /// `library`: libheadwater-mpi.so. Errors: those of Node.
  Pipeline(const std::string& library, NodeOptions options) : node_(library, std::move(options)) {}

  [[nodiscard]] Node& node() { return node_; }
  [[nodiscard]] bool first() const { return node_.rank() == 0; }

  /// Shares the layers out: as `asked` (by rank), or by cost; `judged`: the head works for every token, not for the last one of
  /// a prompt. Errors: invalid_argument for more ranks than layers, and where `asked` does not add up.
  void share_out(const runtime::GgufFile& file, std::int64_t layers,
                 const std::optional<std::vector<std::int64_t>>& asked, bool judged);
  [[nodiscard]] const runtime::ModelPart& part() const { return part_; }
  /// Layers of this rank.
  [[nodiscard]] std::int64_t layers() const { return shares_[static_cast<std::size_t>(node_.rank())]; }

  /// The relay of the next transformer; from rank 0 the others are told to open it, too.
  [[nodiscard]] std::shared_ptr<runtime::Relay> open(const OpenCall& call);

  /// On rank 0: judges on the last rank, where the logits stay. What it asks streams behind the steps.
  [[nodiscard]] runtime::FarJudge judge();

  using Open = std::function<std::unique_ptr<runtime::Transformer>(const OpenCall& call)>;
  /// On the other ranks: repeats what rank 0 does, until that ends the job, which ends the process.
  [[noreturn]] void serve(const Open& open);

  /// On rank 0: what every rank did.
  [[nodiscard]] std::vector<RankReport> reports();

 private:
  class PartRelay;
  struct Head;
  using Transformers = std::map<std::int32_t, std::unique_ptr<runtime::Transformer>>;
  void tell(const Head& head, std::span<const std::byte> body = {});
  /// On the last rank: what rank 0 asked.
  void judge(const Head& head, std::span<const std::byte> next, const Transformers& transformers);
  [[nodiscard]] Facts own_report();

  Node node_;
  std::vector<std::int64_t> shares_;
  runtime::ModelPart part_;
  std::int32_t opened_ = 0;   // rank 0: transformers so far
  std::int32_t opening_ = 0;  // elsewhere: the one that is being opened
  double processor_before_ = 0;
};

}  // namespace headwater::pipeline
