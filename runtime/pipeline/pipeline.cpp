#include "runtime/pipeline/pipeline.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <numeric>
#include <string_view>
#include <type_traits>
#include <utility>

#include "headwater/error.hpp"

namespace headwater::pipeline {
namespace {

// Logits travel in pieces: a window's are larger than a message may be.
constexpr std::size_t kAnswerFloats = std::size_t{4} << 20;

double processor_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// A logit that is judged (runtime::judge) takes as long as so many multiplications of a layer: exponentials in double.
// Between what was measured with the bundled model beside products alone and beside whole layers (docs/machines.md).
constexpr double kJudgedLogit = 700;

/// Multiplications of one token with the matrices of each layer, and with the head, whose logits are judged.
std::pair<std::vector<double>, double> costs_of(const runtime::GgufFile& file, std::int64_t layers) {
  std::vector<double> costs(static_cast<std::size_t>(layers), 0.0);
  double head = 0;
  for (const runtime::Tensor& tensor : file.tensors()) {
    if (tensor.dims.size() != 2) continue;
    const double size = static_cast<double>(tensor.dims[0]) * static_cast<double>(tensor.dims[1]);
    if (const std::optional<std::int64_t> layer = runtime::layer_of_tensor(tensor.name)) {
      if (*layer >= 0 && *layer < layers) costs[static_cast<std::size_t>(*layer)] += size;
    } else {
      // Of the embedding's shape: the vocabulary is the second dimension.
      head = std::max(head, size + kJudgedLogit * static_cast<double>(tensor.dims[1]));
    }
  }
  return {std::move(costs), head};
}

runtime::Transformer& named(const std::map<std::int32_t, std::unique_ptr<runtime::Transformer>>& transformers,
                            std::int32_t number) {
  const auto found = transformers.find(number);
  if (found != transformers.end()) return *found->second;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("the rank before names transformer {}, which is not open", number));
}

template <typename Value>
Value number(const std::string& text) {
  Value value{};
  (void)std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

}  // namespace

/// What precedes the rows in a message from rank to rank. A multiple of 64 bytes, so that the rows behind it are aligned.
struct alignas(64) Pipeline::Head {
  enum class Kind : std::uint32_t { open, close, call, judge, report };
  Kind kind = Kind::call;
  std::int32_t transformer = 0;
  OpenCall open;
  runtime::PartCall call;
  std::array<std::int32_t, 2> judged{};  ///< judge: transformers, the first `transformers` of them
  std::int32_t transformers = 0;
};

bool started_with_others() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    const char* const size = std::getenv(name);
    if (size != nullptr) return std::strtol(size, nullptr, 10) > 1;
  }
  return std::getenv("PMIX_RANK") != nullptr;
}

int rank_of_environment() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"}) {
    const char* const rank = std::getenv(name);
    if (rank != nullptr) return static_cast<int>(std::strtol(rank, nullptr, 10));
  }
  return 0;
}

std::vector<std::int64_t> share_out(std::span<const double> costs, double head, int ranks) {
  // least[r][l]: the least possible work of the busiest of r ranks that hold the first l layers. The head stands at its end.
  const std::size_t n = costs.size();
  std::vector<double> before(n + 1, 0.0);
  std::partial_sum(costs.begin(), costs.end(), before.begin() + 1);
  const auto count = static_cast<std::size_t>(ranks);
  std::vector<std::vector<double>> least(count + 1, std::vector<double>(n + 1, HUGE_VAL));
  std::vector<std::vector<std::size_t>> cut(count + 1, std::vector<std::size_t>(n + 1, 0));
  least[0][0] = 0;
  for (std::size_t r = 1; r <= count; ++r) {
    for (std::size_t l = r; l <= n; ++l) {
      for (std::size_t from = r - 1; from < l; ++from) {
        const double own = before[l] - before[from] + (r == count ? head : 0.0);
        const double busiest = std::max(least[r - 1][from], own);
        // "<=": a later cut leaves more to the ranks before.
        if (busiest <= least[r][l]) {
          least[r][l] = busiest;
          cut[r][l] = from;
        }
      }
    }
  }
  std::vector<std::int64_t> shares(count);
  for (std::size_t r = count, l = n; r > 0; --r) {
    shares[r - 1] = static_cast<std::int64_t>(l - cut[r][l]);
    l = cut[r][l];
  }
  return shares;
}

void Pipeline::share_out(const runtime::GgufFile& file, std::int64_t layers,
                         const std::optional<std::vector<std::int64_t>>& asked, bool judged) {
  const int ranks = node_.size();
  if (ranks > layers) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} ranks were started, but the model has {} layers; allowed: 1 .. {} ranks",
                            ranks, layers, layers));
  }
  if (asked) {
    const std::int64_t sum = std::accumulate(asked->begin(), asked->end(), std::int64_t{0});
    if (asked->size() != static_cast<std::size_t>(ranks) || sum != layers) {
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("--layers: {} are {} for {} ranks; allowed: one number for each of {} ranks, {} in all",
                      fmt::join(*asked, ","), sum, asked->size(), ranks, layers));
    }
    shares_ = *asked;
  } else {
    const auto [costs, head] = costs_of(file, layers);
    shares_ = pipeline::share_out(costs, judged ? head : 0.0, ranks);
  }
  const auto own = shares_.begin() + node_.rank();
  part_.first = std::accumulate(shares_.begin(), own, std::int64_t{0});
  part_.end = node_.rank() + 1 == ranks ? runtime::ModelPart::kAll : part_.first + *own;
}

// ---- between the ranks

class Pipeline::PartRelay final : public runtime::Relay {
 public:
  PartRelay(Pipeline& pipeline, std::int32_t transformer) : pipeline_(pipeline), transformer_(transformer) {}
  ~PartRelay() override {
    if (!pipeline_.first()) return;
    Head head;
    head.kind = Head::Kind::close;
    head.transformer = transformer_;
    pipeline_.tell(head);
  }
  void opened() override {
    pipeline_.node_.agree({{"transformer", fmt::format("{}", transformer_)}});
    pipeline_.processor_before_ = processor_seconds();
  }
  void pass(const runtime::PartCall& call, std::span<const float> rows) override {
    Head head;
    head.transformer = transformer_;
    head.call = call;
    pipeline_.tell(head, std::as_bytes(rows));
  }
  void answer(std::span<const float> logits) override {
    while (!logits.empty()) {
      const auto piece = logits.first(std::min(logits.size(), kAnswerFloats));
      pipeline_.node_.send(0, Node::Tag::answer, std::as_bytes(piece));
      logits = logits.subspan(piece.size());
    }
  }
  void collect(std::span<float> logits) override {
    while (!logits.empty()) {
      const std::size_t piece = std::min(logits.size(), kAnswerFloats);
      buffer_ = pipeline_.node_.receive(Node::Tag::answer, std::move(buffer_));
      if (buffer_.size() != piece * sizeof(float)) {
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("the last rank sent {} bytes of logits; allowed: {}", buffer_.size(),
                                piece * sizeof(float)));
      }
      std::memcpy(logits.data(), buffer_.data(), buffer_.size());
      logits = logits.subspan(piece);
    }
  }
  [[nodiscard]] std::int32_t transformer() const { return transformer_; }

 private:
  Pipeline& pipeline_;
  std::int32_t transformer_;
  Node::Bytes buffer_;
};

void Pipeline::tell(const Head& head, std::span<const std::byte> body) {
  static_assert(std::is_trivially_copyable_v<Head>);
  const int next = node_.rank() + 1;
  if (next == node_.size()) return;
  node_.send(next, Node::Tag::stream, std::as_bytes(std::span(&head, 1)), body);
}

runtime::FarJudge Pipeline::judge() {
  const auto ask = [this](std::span<runtime::Transformer* const> transformers,
                          std::span<const std::int32_t> next) {
    Head head;
    head.kind = Head::Kind::judge;
    for (const runtime::Transformer* const transformer : transformers) {
      head.judged.at(static_cast<std::size_t>(head.transformers++)) =
          static_cast<const PartRelay*>(transformer->relay())->transformer();
    }
    tell(head, std::as_bytes(next));
  };
  const auto answer = [this] {
    const Node::Bytes bytes = node_.receive(Node::Tag::answer);
    std::vector<runtime::Judgement> judgements(bytes.size() / sizeof(runtime::Judgement));
    std::memcpy(judgements.data(), bytes.data(), judgements.size() * sizeof(runtime::Judgement));
    return judgements;
  };
  return {ask, answer};
}

void Pipeline::judge(const Head& head, std::span<const std::byte> next, const Transformers& transformers) {
  if (head.transformers < 1 || head.transformers > static_cast<std::int32_t>(head.judged.size())) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the rank before asks about {} transformers; allowed: 1 .. {}", head.transformers,
                            head.judged.size()));
  }
  std::vector<runtime::Transformer*> judged;
  judged.reserve(head.judged.size());
  for (std::int32_t i = 0; i < head.transformers; ++i)
    judged.push_back(&named(transformers, head.judged[static_cast<std::size_t>(i)]));
  const std::span<const std::int32_t> ids(reinterpret_cast<const std::int32_t*>(next.data()),
                                          next.size() / sizeof(std::int32_t));
  const std::vector<runtime::Judgement> judgements = runtime::judge(judged, ids);
  node_.send(0, Node::Tag::answer, std::as_bytes(std::span(judgements)));
}

std::shared_ptr<runtime::Relay> Pipeline::open(const OpenCall& call) {
  if (!first()) return std::make_shared<PartRelay>(*this, opening_);
  Head head;
  head.kind = Head::Kind::open;
  head.transformer = opened_;
  head.open = call;
  tell(head);
  return std::make_shared<PartRelay>(*this, opened_++);
}

void Pipeline::serve(const Open& open) {
  Transformers transformers;
  Node::Bytes bytes;
  for (;;) {
    bytes = node_.receive(Node::Tag::stream, std::move(bytes));
    Head head;
    if (bytes.size() < sizeof head || bytes.size() % sizeof(float) != 0) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("the rank before sent {} bytes; allowed: {} and rows of floats", bytes.size(),
                              sizeof head));
    }
    std::memcpy(&head, bytes.data(), sizeof head);
    const auto body = std::span<const std::byte>(bytes).subspan(sizeof head);
    switch (head.kind) {
      case Head::Kind::open:
        tell(head);  // so that all read their weights at the same time
        opening_ = head.transformer;
        transformers[head.transformer] = open(head.open);
        break;
      case Head::Kind::close:
        tell(head);
        transformers.erase(head.transformer);
        break;
      case Head::Kind::call:
        named(transformers, head.transformer)
            .repeat(head.call, {reinterpret_cast<const float*>(body.data()), body.size() / sizeof(float)});
        break;
      case Head::Kind::judge:
        tell(head, body);
        if (part_.end == runtime::ModelPart::kAll) judge(head, body, transformers);
        break;
      case Head::Kind::report:
        tell(head);
        (void)node_.gather(own_report());
        break;
    }
  }
}

Facts Pipeline::own_report() {
  rusage usage{};
  (void)::getrusage(RUSAGE_SELF, &usage);
  const Node::Traffic traffic = node_.traffic(Node::Tag::stream);
  const std::string own = node_.name(node_.rank());
  return {{"host", own.substr(own.rfind(' ') + 1)},
          {"first", fmt::format("{}", part_.first)},
          {"end", fmt::format("{}", part_.first + layers())},
          {"seconds", fmt::format("{}", processor_seconds() - processor_before_)},
          {"messages", fmt::format("{}", traffic.messages)},
          {"bytes", fmt::format("{}", traffic.bytes)},
          {"peak", fmt::format("{}", static_cast<std::uint64_t>(usage.ru_maxrss) * 1024)}};
}

std::vector<RankReport> Pipeline::reports() {
  Head head;
  head.kind = Head::Kind::report;
  tell(head);
  std::vector<RankReport> reports;
  for (const Facts& facts : node_.gather(own_report())) {
    std::map<std::string, std::string> values(facts.begin(), facts.end());
    reports.push_back({values["host"], number<std::int64_t>(values["first"]),
                       number<std::int64_t>(values["end"]), number<double>(values["seconds"]),
                       number<std::uint64_t>(values["messages"]), number<std::uint64_t>(values["bytes"]),
                       number<std::uint64_t>(values["peak"])});
  }
  return reports;
}

}  // namespace headwater::pipeline
