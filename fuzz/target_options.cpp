// libFuzzer target: Shape and Options of any numbers. Both readings of CFG-1..4 (reference/, optimized/core) must agree
// on what is refused and on what is used; a refusal is one line that names a field; reading takes no memory that a
// number of the input could drive; and open() on what was accepted gives a session that is as large as it says, or
// out_of_memory.

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "core/config.hpp"
#include "fuzz/allocation_budget.hpp"
#include "fuzz/byte_source.hpp"
#include "headwater/headwater.hpp"
#include "reference/config.hpp"

namespace {

using namespace headwater;
using fuzz::AllocationBudget;
using fuzz::ByteSource;

constexpr std::int64_t kMostPosition = 2147483647;
constexpr std::int64_t kMostExtent = 65536;
/// Messages and warnings, whatever the numbers are.
constexpr std::size_t kReading = 64 << 10;
/// What a session of the fuzzer may take.
constexpr std::size_t kSession = 4 << 20;

[[noreturn]] void wrong(const char* what, const std::string& detail) {
  std::fprintf(stderr, "%s: %s\n", what, detail.c_str());
  std::abort();
}

/// Small numbers, numbers beside a limit, and any number.
std::int64_t number(ByteSource& source) {
  constexpr std::array<std::int64_t, 16> kEdges = {0,
                                                   -1,
                                                   1,
                                                   kMostExtent,
                                                   kMostExtent + 1,
                                                   kMostPosition - 1,
                                                   kMostPosition,
                                                   kMostPosition + 1,
                                                   std::int64_t{1} << 32,
                                                   (std::int64_t{1} << 32) + 1,
                                                   std::int64_t{1} << 62,
                                                   std::numeric_limits<std::int64_t>::max(),
                                                   std::numeric_limits<std::int64_t>::min(),
                                                   std::numeric_limits<std::int64_t>::min() + 1,
                                                   512,
                                                   513};
  const std::uint8_t kind = source.byte();
  if (kind < 192) return kind % 24;
  if (kind < 240) return kEdges[kind % kEdges.size()];
  return source.wide();
}

double real(ByteSource& source) {
  if (source.flag()) return static_cast<double>(source.range(-8, 100)) / 16.0;
  return std::bit_cast<double>(source.wide());
}

std::vector<float> per_head(ByteSource& source, std::int64_t n_head) {
  const std::uint8_t kind = source.byte();
  if (kind < 128) return {};
  const std::int64_t size = kind < 224 ? std::clamp<std::int64_t>(n_head, 0, 64) : source.range(0, 40);
  std::vector<float> values(static_cast<std::size_t>(size));
  for (float& value : values) {
    value = static_cast<float>(source.range(-8, 8)) / 4.0f;
    if (kind % 8 == 7) {
      const auto upper = static_cast<std::uint32_t>(source.byte());
      value = std::bit_cast<float>(upper << 24 | static_cast<std::uint32_t>(source.byte()) << 16);
    }
  }
  return values;
}

Shape draw_shape(ByteSource& source) {
  Shape shape;
  shape.n_layer = number(source);
  shape.n_head = number(source);
  shape.n_head_kv = source.flag() ? shape.n_head : number(source);
  shape.d_head = number(source);
  shape.d_value = number(source);
  shape.capacity = number(source);
  shape.kv_type = static_cast<DType>(source.byte() % 4);
  return shape;
}

Options draw_options(ByteSource& source, const Shape& shape) {
  Options options;
  options.batch = number(source);
  options.chunk = number(source);
  options.local = number(source);
  options.heavy = number(source);
  const std::uint8_t flags = source.byte();
  options.clamp = (flags & 1) != 0;
  options.dense = (flags & 6) == 6;
  if ((flags & 8) != 0) options.scale = real(source);
  if ((flags & 16) != 0) options.softcap = real(source);
  options.sinks = per_head(source, shape.n_head);
  options.alibi = per_head(source, shape.n_head);
  options.score_type = static_cast<ScoreType>(source.byte() % 5 == 4 ? source.byte() : flags >> 7);
  options.schedule = static_cast<Schedule>(source.byte() % 5 == 4 ? source.byte() : (flags >> 6) & 1);
  options.threads = static_cast<int>(std::clamp<std::int64_t>(number(source), -2147483648LL, kMostPosition));
  // Last, so that older inputs are what they were.
  const std::uint8_t bits = source.byte();
  options.kv_bits = bits % 4 == 1 ? 8 : bits % 4 == 3 ? number(source) : 0;
  if (source.flag()) options.kv_owner = KvOwner::caller;
  return options;
}

/// What one reading said: options, or a refusal.
struct Reading {
  std::optional<EffectiveOptions> effective;
  std::string refusal;
};

template <typename Resolve>
Reading read(const char* who, Resolve&& resolve) {
  Reading reading;
  const AllocationBudget budget(kReading);
  try {
    reading.effective = resolve();
  } catch (const Error& error) {
    reading.refusal = error.what();
    if (error.code() != ErrorCode::invalid_argument)
      wrong(who, "refused with another code: " + reading.refusal);
    if (reading.refusal.empty() || reading.refusal.find('\n') != std::string::npos) {
      wrong(who, "a refusal is not one line: " + reading.refusal);
    }
  } catch (const std::bad_alloc&) {
    wrong(who, "an allocation was driven by a number of the input");
  }
  return reading;
}

/// CFG-2..4 of what was accepted, from the text of the spec.
void check_effective(const Shape& shape, const Options& options, const EffectiveOptions& got) {
  const bool in_range = options.batch >= 1 && options.batch <= kMostPosition && options.chunk >= 1 &&
                        options.chunk <= kMostPosition && options.local >= 0 &&
                        options.local <= kMostPosition && options.heavy >= 0 &&
                        options.heavy <= kMostPosition && options.threads >= 0 && options.threads <= 512;
  if (!in_range) wrong("CFG-1", "a number out of range was accepted");
  const bool packed = options.kv_bits == 8;
  const bool groups =
      shape.d_head % 32 == 0 && shape.d_value % 32 == 0 && options.kv_owner == KvOwner::session;
  if (packed ? !groups : options.kv_bits != 0)
    wrong("STATE-13", "rows in 8 bits that cannot be were accepted");
  std::int64_t local = options.dense ? 0 : options.local;
  std::int64_t heavy = options.dense ? 0 : options.heavy;
  std::size_t warnings = 0;
  if (options.clamp && local + heavy >= options.chunk) {
    local = std::min(local, options.chunk - 1);
    heavy = std::min(heavy, options.chunk - 1 - local);
    if (!options.dense) ++warnings;
  }
  if (options.batch < options.chunk || options.batch % options.chunk != 0) ++warnings;
  const bool same = got.batch == std::max(options.batch, options.chunk) && got.chunk == options.chunk &&
                    got.local == local && got.heavy == heavy && got.sparse == (local + heavy > 0) &&
                    got.softcap == options.softcap && std::isfinite(got.scale) && got.threads >= 1 &&
                    got.score_type == options.score_type && got.schedule == options.schedule &&
                    got.kv_bits == options.kv_bits;
  if (!same) wrong("CFG-2..4", "the effective options are not what was asked for");
  if (got.warnings.size() != warnings)
    wrong("CFG-3, CFG-4", std::to_string(got.warnings.size()) + " warnings");
}

/// SCORE-1, MEM-4: the least that open() must have taken; in double, where nothing overflows. Rows are taken by begin().
double least_bytes(const Shape& shape, const EffectiveOptions& options) {
  const auto real = [](std::int64_t value) { return static_cast<double>(value); };
  const double tokens = real(shape.n_layer) * real(shape.n_head) * real(shape.capacity);
  const double sets =
      real(shape.n_layer) * real(shape.n_head) * real(std::min(options.memory(), shape.capacity));
  const double score = options.score_type == ScoreType::bf16 ? 2.0 : 4.0;
  return options.sparse ? score * tokens + 4.0 * sets : 0.0;
}

void open_session(const Shape& shape, const Options& options, const EffectiveOptions& effective) {
  const double least = least_bytes(shape, effective);
  const AllocationBudget budget(kSession);
  try {
    const std::unique_ptr<Session> session = engine("cpu-portable").open(shape, options);
    const MemoryBytes bytes = session->memory_bytes();
    if (least > static_cast<double>(kSession)) wrong("open()", "more memory than there is");
    if (static_cast<double>(bytes.total()) < least) wrong("memory_bytes()", "less than what is stored");
    if (bytes.kv < 0 || bytes.scores < 0 || bytes.memory_sets < 0 || bytes.workspace < 0)
      wrong("memory_bytes()", "< 0");
    if (session->tokens() != 0 || session->state() != SessionState::empty || !session->plan().empty()) {
      wrong("open()", "the session is not empty");
    }
    if (session->options().memory() != effective.memory()) wrong("open()", "other options than resolve()'s");
  } catch (const Error& error) {
    if (error.code() != ErrorCode::out_of_memory) wrong("open() of accepted options", error.what());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ByteSource source({data, size});
  const bool open = source.byte() % 8 == 0;
  Shape shape = draw_shape(source);
  const Options options = draw_options(source, shape);
  if (source.flag()) {  // widths of whole groups (STATE-13)
    shape.d_head = 32 * source.range(1, 4);
    shape.d_value = 32 * source.range(1, 4);
  }
  const Reading a = read("reference", [&] { return reference::resolve(shape, options); });
  const Reading b = read("core", [&] { return core::resolve(shape, options, 4); });
  // The reference also refuses sizes whose product overflows; the engines find that out when they take the memory.
  const bool overflow = a.refusal.find("2^63 - 1 bytes") != std::string::npos;
  if (!overflow && a.effective.has_value() != b.effective.has_value()) {
    wrong("CFG-1", "one refuses what the other takes: '" + a.refusal + "' and '" + b.refusal + "'");
  }
  if (a.effective) check_effective(shape, options, *a.effective);
  if (b.effective) check_effective(shape, options, *b.effective);
  if (a.effective && b.effective && a.effective->scale != b.effective->scale)
    wrong("LOGIT-1", "scales differ");
  // More threads take more time and find nothing more.
  if (b.effective && open && options.threads >= 1 && options.threads <= 2)
    open_session(shape, options, *b.effective);
  return 0;
}
