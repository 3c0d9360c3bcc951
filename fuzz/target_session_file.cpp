// libFuzzer target: load() of a saved session's file after any edits, or of any bytes (STATE-12). What is refused is refused
// in one line; what is accepted goes on as a session, and saved once more is accepted again.

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "fuzz/allocation_budget.hpp"
#include "fuzz/byte_source.hpp"
#include "headwater/headwater.hpp"

namespace {

using namespace headwater;
using fuzz::AllocationBudget;
using fuzz::ByteSource;
using Bytes = std::vector<std::uint8_t>;

constexpr std::int64_t kLengthBytes = 8;  // of the header, in front of it
constexpr const char* kFingerprint = "a model";
/// A session, a header and its parsed form; a number of the file must not drive more.
constexpr std::size_t kLoading = 8 << 20;

[[noreturn]] void wrong(const char* what, const std::string& detail) {
  std::fprintf(stderr, "%s: %s\n", what, detail.c_str());
  std::abort();
}

/// A file in memory, by its path.
class MemoryFile {
 public:
  MemoryFile() : number_(::memfd_create("session", 0)), path_("/proc/self/fd/" + std::to_string(number_)) {
    if (number_ < 0) wrong("memfd_create", std::strerror(errno));
  }
  ~MemoryFile() { ::close(number_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }
  void write(const Bytes& bytes) const {
    if (::ftruncate(number_, 0) != 0 ||
        ::pwrite(number_, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
      wrong("a file in memory", std::strerror(errno));
    }
  }

 private:
  int number_;
  std::string path_;
};

/// A folder for save(), which replaces files by their names.
const std::string& saved_path() {
  static const std::string path = [] {
    std::string folder = "/tmp/headwater-fuzz-XXXXXX";
    if (::mkdtemp(folder.data()) == nullptr) wrong("mkdtemp", std::strerror(errno));
    static std::string file;
    file = folder + "/session";
    std::atexit([] {
      ::unlink(file.c_str());
      ::rmdir(file.substr(0, file.rfind('/')).c_str());
    });
    return file;
  }();
  return path;
}

Bytes read_file(const std::string& path) {
  Bytes bytes;
  std::FILE* const file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) wrong("fopen", path);
  std::array<std::uint8_t, 4096> part;
  for (std::size_t n = 0; (n = std::fread(part.data(), 1, part.size(), file)) > 0;) {
    bytes.insert(bytes.end(), part.begin(), part.begin() + static_cast<std::ptrdiff_t>(n));
  }
  std::fclose(file);
  return bytes;
}

/// What is saved and asked for, by the lower bits of a byte.
struct Case {
  const Engine& engine;
  Shape shape;
  Options options;
};
constexpr unsigned kCases = 16;

Case case_of(unsigned which) {
  Case made{
      engine((which & 1) != 0 ? "reference" : "cpu-portable"),
      {.n_layer = 2, .n_head = 2, .n_head_kv = 1, .d_head = 2, .d_value = 3, .capacity = 80, .kv_type = {}},
      {}};
  made.shape.kv_type = (which & 4) != 0 ? DType::bf16 : DType::f32;
  made.options.batch = 32, made.options.chunk = 16, made.options.threads = 1;
  if ((which & 9) == 8) {
    made.options.kv_bits = 8;
    made.shape.d_head = 64, made.shape.d_value = 32;
  }
  if ((which & 9) == 9) {  // of the reference alone
    made.options.select = Select::sketches;
    made.options.query_block = 4, made.options.local = 3, made.options.heavy = 8, made.options.pinned = 1;
  } else if ((which & 2) != 0) {
    made.options.select = Select::blocks;
    made.options.key_block = 4, made.options.query_block = 4, made.options.local = 3, made.options.heavy = 8;
  } else {
    made.options.local = 2, made.options.heavy = 3, made.options.checkpoints = 1;
  }
  return made;
}

/// A step over rows that are the same for all tokens.
void run(Session& session, const Step& step) {
  const Shape& shape = session.shape();
  const auto row = [&](std::int64_t heads, std::int64_t width) {
    std::vector<float> values(static_cast<std::size_t>(heads * width));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = 0.25f * static_cast<float>(i % 5) - 0.5f;
    return values;
  };
  const std::vector<float> q = row(shape.n_head, shape.d_head), k = row(shape.n_head_kv, shape.d_head),
                           v = row(shape.n_head_kv, shape.d_value);
  std::vector<float> out(static_cast<std::size_t>(step.n * shape.n_head * shape.d_value));
  session.begin(step);
  for (std::int64_t layer = 0; layer < shape.n_layer; ++layer) {
    session.attend(layer, {q.data(), DType::f32, 0, shape.d_head}, {k.data(), DType::f32, 0, shape.d_head},
                   {v.data(), DType::f32, 0, shape.d_value},
                   MutableRows::token_major(out.data(), DType::f32, shape.n_head, shape.d_value));
  }
  session.end();
}

/// The file of a session that had a sparse turn and decoded a token.
const Bytes& saved(unsigned which) {
  static std::array<Bytes, kCases> files;
  Bytes& file = files[which];
  if (file.empty()) {
    const Case made = case_of(which);
    const std::unique_ptr<Session> session = made.engine.open(made.shape, made.options);
    run(*session, Step::prefill(37));
    run(*session, Step::decode(1));
    save(*session, saved_path(), kFingerprint);
    file = read_file(saved_path());
  }
  return file;
}

std::int64_t header_length(const Bytes& file) {
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), kLengthBytes);
  return static_cast<std::int64_t>(length);
}

/// A number of the header becomes another one.
void replace_number(Bytes& file, ByteSource& source) {
  constexpr std::array<const char*, 10> kNumbers = {"0",
                                                    "1",
                                                    "-1",
                                                    "2147483648",
                                                    "1e3",
                                                    "0.5",
                                                    "4294967297",
                                                    "9223372036854775807",
                                                    "18446744073709551615",
                                                    "99999999999999999999"};
  const auto end = kLengthBytes + header_length(file);
  std::int64_t skipped = source.byte();
  for (std::int64_t at = kLengthBytes; at < end; ++at) {
    const auto digit = [&](std::int64_t i) {
      return i < end && file[static_cast<std::size_t>(i)] - '0' + 0U < 10;
    };
    if (!digit(at) || digit(at - 1) || --skipped >= 0) continue;
    std::int64_t last = at;
    while (digit(last)) ++last;
    const std::string number = kNumbers[source.byte() % kNumbers.size()];
    file.erase(file.begin() + at, file.begin() + last);
    file.insert(file.begin() + at, number.begin(), number.end());
    const auto length = static_cast<std::uint64_t>(end - kLengthBytes - (last - at) + std::ssize(number));
    std::memcpy(file.data(), &length, kLengthBytes);
    return;
  }
}

void edit(Bytes& file, ByteSource& source) {
  const std::uint8_t kind = source.byte() % 5;
  if (kind == 4 && std::ssize(file) > kLengthBytes &&
      header_length(file) <= std::ssize(file) - kLengthBytes && header_length(file) > 0) {
    return replace_number(file, source);
  }
  const std::size_t at = (source.byte() << 8U | source.byte()) % (file.size() + 1);
  const std::uint8_t value = source.byte();
  const auto place = file.begin() + static_cast<std::ptrdiff_t>(at);
  switch (kind) {
    case 0:
      if (at < file.size()) file[at] = value;
      break;
    case 1: file.erase(place, file.end()); break;
    case 2: file.insert(place, value); break;
    default: file.erase(place, place + std::min<std::ptrdiff_t>(value, file.end() - place)); break;
  }
}

void go_on(const Case& asked, Session& session) {
  if (session.tokens() < 0 || session.tokens() > asked.shape.capacity)
    wrong("load()", "tokens that cannot be");
  for (std::int64_t layer = 0; layer < asked.shape.n_layer; ++layer) {
    (void)session.scores(layer);
    const MemoryView memory = session.memory(layer);
    for (std::int64_t head = 0; memory.data != nullptr && head < asked.shape.n_head; ++head) {
      for (std::int64_t i = 0; i < memory.count; ++i) {
        const std::int32_t entry = memory.data[head * memory.head_stride + i];
        if (entry < 0 || entry >= session.tokens()) wrong("load()", "an entry that is no token");
      }
    }
  }
  const std::int64_t room = asked.shape.capacity - session.tokens();
  if (room > 0) run(session, Step::decode(1));
  if (room > 20) run(session, Step::prefill(20));
  save(session, saved_path(), kFingerprint);
  (void)load(asked.engine, asked.shape, asked.options, saved_path(), kFingerprint);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ByteSource source({data, size});
  const std::uint8_t kind = source.byte();
  const unsigned which = kind % kCases;
  Bytes file = saved(which);
  if (kind >= 192) {
    file.assign(data + 1, data + size);
  } else {
    for (int edits = 0; edits < 8 && !source.empty(); ++edits) edit(file, source);
  }
  static const MemoryFile stored;
  stored.write(file);
  const Case asked = case_of(which);
  std::unique_ptr<Session> session;
  try {
    const AllocationBudget budget(kLoading);
    session = load(asked.engine, asked.shape, asked.options, stored.path(), kFingerprint);
  } catch (const Error& error) {
    const std::string what = error.what();
    if (error.code() != ErrorCode::invalid_argument) wrong("refused with another code", what);
    if (what.empty() || what.find('\n') != std::string::npos) wrong("a refusal is not one line", what);
    if (size <= 1 && kind < 192) wrong("a file as it was saved is refused", what);
    return 0;
  }
  go_on(asked, *session);
  return 0;
}
