// STATE-12: a loaded session has the bits of the saved one and goes on like it; nothing in a file is believed.

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <utility>

#include "headwater/state.hpp"
#include "tests/api/conversation.hpp"
#include "tests/mocks/mock_session.hpp"

namespace {

/// Bytes that a call of preadv() or pwritev() moves at most. Linux moves 2 GiB less a page.
std::size_t most_moved = std::numeric_limits<std::size_t>::max();

class MovesAtMost {
 public:
  explicit MovesAtMost(std::size_t most) { most_moved = most; }
  ~MovesAtMost() { most_moved = std::numeric_limits<std::size_t>::max(); }
  MovesAtMost(const MovesAtMost&) = delete;
  MovesAtMost& operator=(const MovesAtMost&) = delete;
};

constexpr off_t kMostFile = 1 << 24;  // that grow by parts: who does not get on must end

/// Whether the ends of a part are moved alone: what lies between is a hole, of the file and of the memory. A call takes what
/// Linux takes at most.
bool ends_alone = false;
constexpr std::size_t kEnd = 4096;
constexpr std::size_t kMostOfLinux = 0x7FFFF000;

class MovesEndsAlone {
 public:
  MovesEndsAlone() { ends_alone = true; }
  ~MovesEndsAlone() { ends_alone = false; }
  MovesEndsAlone(const MovesEndsAlone&) = delete;
  MovesEndsAlone& operator=(const MovesEndsAlone&) = delete;
};

/// Calls that move bytes before one fails; below 0: none does.
int calls_that_work = -1;

class FailsAfter {
 public:
  explicit FailsAfter(int calls) { calls_that_work = calls; }
  ~FailsAfter() { calls_that_work = -1; }
  FailsAfter(const FailsAfter&) = delete;
  FailsAfter& operator=(const FailsAfter&) = delete;
};

template <class Move>
ssize_t moved_at_ends(const Move& move, const iovec* parts, int count, off_t at) {
  std::size_t moved = 0;
  for (int i = 0; i < count && moved < kMostOfLinux; ++i) {
    auto* const from = static_cast<char*>(parts[i].iov_base);
    const std::size_t size = std::min(parts[i].iov_len, kMostOfLinux - moved);
    const std::size_t first = std::min(size, kEnd);
    const std::size_t last = std::min(size - first, kEnd);
    const off_t place = at + static_cast<off_t>(moved);
    if (move(from, first, place) < 0) return -1;
    if (move(from + (size - last), last, place + static_cast<off_t>(size - last)) < 0) return -1;
    moved += size;
  }
  return static_cast<ssize_t>(moved);
}

template <class Move>
ssize_t moved_in_part(const Move& move, const iovec* parts, int count, off_t at) {
  if (ends_alone) return moved_at_ends(move, parts, count, at);
  if (calls_that_work >= 0 && --calls_that_work < 0) {
    calls_that_work = 0;
    errno = ENOSPC;
    return -1;
  }
  std::size_t moved = 0;
  if (most_moved < std::numeric_limits<std::size_t>::max() && at > kMostFile) {
    errno = EFBIG;
    return -1;
  }
  for (int i = 0; i < count && moved < most_moved; ++i) {
    const std::size_t size = std::min(parts[i].iov_len, most_moved - moved);
    const ssize_t result = move(parts[i].iov_base, size, at + static_cast<off_t>(moved));
    if (result < 0) return moved > 0 ? static_cast<ssize_t>(moved) : result;
    moved += static_cast<std::size_t>(result);
    if (static_cast<std::size_t>(result) < size) break;
  }
  return static_cast<ssize_t>(moved);
}

}  // namespace

// In the place of the C library's.
extern "C" ssize_t preadv(int file, const iovec* parts, int count, off_t at) {
  return moved_in_part([&](void* to, std::size_t n, off_t place) { return ::pread(file, to, n, place); },
                       parts, count, at);
}
extern "C" ssize_t pwritev(int file, const iovec* parts, int count, off_t at) {
  return moved_in_part([&](void* from, std::size_t n, off_t place) { return ::pwrite(file, from, n, place); },
                       parts, count, at);
}

namespace headwater::api_test {
namespace {

namespace fs = std::filesystem;

/// A folder of its own, gone afterwards.
class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "headwater-save-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
    path_ = name;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { fs::remove_all(path_); }
  [[nodiscard]] std::string file(const char* name = "session") const { return (path_ / name).string(); }
  [[nodiscard]] std::ptrdiff_t files() const {
    return std::distance(fs::directory_iterator(path_), fs::directory_iterator());
  }

 private:
  fs::path path_;
};

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

/// The file with another text of the same length in its header.
std::string edited(const std::string& file, const std::string& from, const std::string& to) {
  const std::size_t at = file.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  EXPECT_EQ(from.size(), to.size());
  std::string result = file;
  return result.replace(at, to.size(), to);
}

/// All that a session tells of itself, and its rows.
std::vector<unsigned char> contents(const Session& session) {
  std::vector<unsigned char> bits;
  const Shape& shape = session.shape();
  const std::int64_t tokens = session.tokens();
  for (const Chunk& chunk : session.chunks()) {  // which has padding
    const std::int64_t numbers[] = {chunk.begin, chunk.end, static_cast<std::int64_t>(chunk.mode)};
    append_bits(numbers, 3, bits);
  }
  for (std::int64_t layer = 0; layer < shape.n_layer; ++layer) {
    const ScoreView scores = session.scores(layer);
    const std::int64_t size = scores.type == ScoreType::bf16 ? 2 : 4;
    for (std::int64_t head = 0; head < shape.n_head; ++head) {
      append_bits(static_cast<const unsigned char*>(scores.data) + head * scores.head_stride * size,
                  tokens * size, bits);
    }
    const MemoryView sets = session.memory(layer);
    append_bits(&sets.count, 1, bits);
    for (std::int64_t head = 0; sets.count > 0 && head < shape.n_head; ++head) {
      append_bits(sets.data + head * sets.head_stride, sets.count, bits);
    }
    std::vector<float> row(static_cast<std::size_t>(std::max(shape.d_head, shape.d_value)));
    for (std::int64_t head = 0; head < shape.n_head_kv; ++head) {
      for (std::int64_t p = 0; p < tokens; ++p) {
        session.read_key(layer, head, p, row);
        append_bits(row.data(), shape.d_head, bits);
        session.read_value(layer, head, p, row);
        append_bits(row.data(), shape.d_value, bits);
      }
    }
  }
  return bits;
}

class Save : public EachEngine {
 protected:
  void SetUp() override {
    if (!engine().claims().save) GTEST_SKIP() << "this engine does not save";
  }
  [[nodiscard]] bool has_sketches() const {
    Options options = small_options();
    options.select = Select::sketches, options.query_block = 4;
    try {
      (void)engine().open(small_shape(1), options);
      return true;
    } catch (const Error&) {
      EXPECT_NE(engine().name(), "reference");
      return false;
    }
  }
  Folder folder;
};

struct Kind {
  const char* name;
  bool dense;
  Select select;
  ScoreType scores;
  std::vector<std::int64_t> dense_layers;
};

TEST_P(Save, LoadedSessionsGoOnLikeTheSavedOne) {
  const Kind kinds[] = {{"dense", true, Select::h2o, ScoreType::bf16, {}},
                        {"h2o", false, Select::h2o, ScoreType::bf16, {}},
                        {"h2o, F32", false, Select::h2o, ScoreType::f32, {1}},
                        {"blocks", false, Select::blocks, ScoreType::bf16, {}},
                        {"blocks, dense layer", false, Select::blocks, ScoreType::bf16, {0}},
                        {"sketches", false, Select::sketches, ScoreType::bf16, {}}};
  for (const Kind& kind : kinds) {
    if (kind.select == Select::sketches && !has_sketches()) continue;
    const DType types[] = {DType::f32, DType::f16, DType::bf16};
    for (std::size_t t = 0; t < std::size(types); ++t) {
      const DType type = types[t];
      SCOPED_TRACE(kind.name);
      SCOPED_TRACE(static_cast<int>(type));
      const Conversation talk(type);
      Options options = conversation_options(kind.select, 2);
      options.dense = kind.dense;
      options.score_type = kind.scores;
      options.dense_layers = kind.dense_layers;
      const std::vector<Step> steps = Conversation::steps();
      // Every place with one of the types.
      for (std::size_t before = t; before <= steps.size(); before += std::size(types)) {
        const auto saved = engine().open(talk.shape, options);
        std::vector<float> unused;
        for (std::size_t i = 0; i < before; ++i) talk.run(*saved, steps[i], unused);
        save(*saved, folder.file(), "model 7");
        Shape wider = talk.shape;  // the capacity is free
        wider.capacity += 100;
        const auto loaded = load(engine(), wider, options, folder.file(), "model 7");
        ASSERT_EQ(loaded->tokens(), saved->tokens());
        EXPECT_EQ(loaded->state(), saved->state());
        EXPECT_EQ(loaded->plan().size(), saved->plan().size());
        ASSERT_TRUE(contents(*loaded) == contents(*saved)) << "after step " << before;
        std::vector<float> expected, got;
        for (std::size_t i = before; i < steps.size(); ++i) {
          talk.run(*saved, steps[i], expected);
          talk.run(*loaded, steps[i], got);
        }
        ASSERT_EQ(got.size(), expected.size());
        EXPECT_TRUE(got.empty() || std::memcmp(got.data(), expected.data(), got.size() * 4) == 0);
        EXPECT_TRUE(contents(*loaded) == contents(*saved)) << "after step " << before << " and the rest";
      }
    }
  }
  EXPECT_EQ(folder.files(), 1);
}

// Forked inside of a page, and of a group of its rows, after few groups and after many.
TEST_P(Save, AForkIsSavedLikeASessionByItself) {
  if (!engine().claims().fork) GTEST_SKIP() << "the engine does not fork";
  const Shape shape = small_shape(3400);
  const LayerInput input = random_input(shape, shape.capacity, 3);
  for (const std::int64_t page : {256, 1024, 4096}) {
    for (const std::int64_t n : {700, 2900}) {
      Options options = small_options();
      options.page = page;
      const std::unique_ptr<Session> alone = engine().open(shape, options);
      const std::unique_ptr<Session> parent = engine().open(shape, options);
      for (Session* one : {alone.get(), parent.get()}) (void)run_step(*one, Step::prefill(n), input, 0);
      const std::unique_ptr<Session> fork = parent->fork();
      for (Session* one : {alone.get(), parent.get(), fork.get()}) {
        (void)run_step(*one, Step::decode(400), input, n);
        save(*one, folder.file());
        EXPECT_TRUE(contents(*load(engine(), shape, options, folder.file())) == contents(*alone))
            << page << ", " << n;
      }
    }
  }
}

class SaveSizes : public Save {
 protected:
  /// Attends all layers of a step, and takes it back.
  static void abort_step(Session& session, const Step& step, const LayerInput& input, std::int64_t first) {
    const Shape& shape = session.shape();
    std::vector<float> out(static_cast<std::size_t>(step.n * shape.n_head * shape.d_value));
    session.begin(step);
    for (std::int64_t layer = 0; layer < shape.n_layer; ++layer) {
      session.attend(layer, rows_from(input.q, first, shape.n_head, shape.d_head),
                     rows_from(input.k, first, shape.n_head_kv, shape.d_head),
                     rows_from(input.v, first, shape.n_head_kv, shape.d_value),
                     MutableRows::token_major(out.data(), DType::f32, shape.n_head, shape.d_value));
    }
    session.abort();
  }
};

TEST_P(SaveSizes, LengthsOnBothSidesOfPagesAndTruncatedOnes) {
  Shape shape = small_shape(9000);
  Options options = small_options();
  options.chunk = 128;
  options.batch = 2048;
  options.checkpoints = 2;
  for (const Select select : {Select::h2o, Select::blocks}) {
    options.select = select;
    options.heavy = 8;
    for (const std::int64_t n : {255, 256, 257, 4095, 4096, 4097, 8193}) {
      const auto saved = engine().open(shape, options);
      const LayerInput input = random_input(shape, shape.capacity, 5);
      (void)run_step(*saved, Step::prefill(n), input, 0);
      (void)run_step(*saved, Step::decode(3), input, n);
      saved->truncate(n + 1);
      abort_step(*saved, Step::prefill(600), input, n + 1);
      save(*saved, folder.file());  // before anybody has looked at what was taken back
      shape.capacity = n + 300;
      const auto loaded = load(engine(), shape, options, folder.file());
      shape.capacity = 9000;
      ASSERT_TRUE(contents(*loaded) == contents(*saved)) << n;
      if (select == Select::h2o) {
        expect_error([&] { loaded->truncate(n - 1); }, ErrorCode::invalid_argument, {"truncate"});
      }
      loaded->truncate(n);
      saved->truncate(n);
      // A later turn: sparse, longer than a chunk of the next plan.
      EXPECT_EQ(run_step(*loaded, Step::decode(2), input, n), run_step(*saved, Step::decode(2), input, n));
      EXPECT_EQ(run_step(*loaded, Step::prefill(200), input, n + 2),
                run_step(*saved, Step::prefill(200), input, n + 2));
      EXPECT_TRUE(contents(*loaded) == contents(*saved)) << n;
    }
  }
}

TEST_P(Save, LAYER_1_OtherOptionsOfLayersAreRefused) {
  const Shape shape = small_shape(64);
  Options options;
  options.layers.resize(2);
  options.layers[1].d_value = shape.d_value;  // nothing of its own
  save(*engine().open(shape, options), folder.file());
  EXPECT_NO_THROW((void)load(engine(), shape, options, folder.file()));
  const LayerOptions none;
  const std::vector<float> sinks{1, 2, 3, 4}, others{1, 2, 3, 5};
  const std::pair<LayerOptions, LayerOptions> pairs[] = {
      {none, {.window = 3}}, {none, {.scale = 0.25}}, {{.softcap = 5.0}, {.softcap = 7.0}},
      {none, {.d_head = 7}}, {none, {.d_value = 8}},  {{.sinks = sinks}, {.sinks = others}}};
  for (const auto& [saved, asked] : pairs) {
    options.layers[1] = saved;
    save(*engine().open(shape, options), folder.file());
    options.layers[1] = asked;
    expect_error([&] { (void)load(engine(), shape, options, folder.file()); }, ErrorCode::invalid_argument,
                 {"options.layers", "allowed"});
  }
}

// W is held against what is asked for, to its last bit; files of other rules, older ones among them, have no word of it.
TEST_P(Save, SKE_1_AnotherLeastWeightIsRefused) {
  if (!has_sketches()) GTEST_SKIP() << "the engine has no rule sketches";
  const Shape shape = small_shape(64);
  Options options = small_options();
  options.query_block = 4;
  save(*engine().open(shape, options), folder.file());
  EXPECT_EQ(bytes_of(folder.file()).find("least_weight"), std::string::npos);
  expect_error(
      [&] {
        options.select = Select::sketches;
        (void)load(engine(), shape, options, folder.file());
      },
      ErrorCode::invalid_argument, {"allowed"});
  save(*engine().open(shape, options), folder.file());
  EXPECT_NO_THROW((void)load(engine(), shape, options, folder.file()));
  options.least_weight = std::nextafter(options.least_weight, 1.0);
  expect_error([&] { (void)load(engine(), shape, options, folder.file()); }, ErrorCode::invalid_argument,
               {"options.least_weight", "'5e-04'", "allowed"});
}

// STATE-13: bytes that go on with the same bits; files of other rows, older ones among them, have no word of it.
TEST_P(Save, STATE_13_RowsIn8Bits) {
  if (!engine().claims().kv_bits) GTEST_SKIP() << "the engine has no rows in 8 bits";
  Shape shape = small_shape(64);
  shape.d_head = 32, shape.d_value = 64;
  Options options = small_options();
  const LayerInput input = random_input(shape, shape.capacity, 3);
  const auto loaded = [&] { return load(engine(), shape, options, folder.file()); };
  const auto plain = engine().open(shape, options);
  (void)run_step(*plain, Step::prefill(20), input, 0);
  save(*plain, folder.file());
  EXPECT_EQ(bytes_of(folder.file()).find("kv_bits"), std::string::npos);
  options.kv_bits = 8;
  expect_error([&] { (void)loaded(); }, ErrorCode::invalid_argument, {"options.kv_bits", "'8'", "allowed"});
  const auto saved = engine().open(shape, options);
  (void)run_step(*saved, Step::prefill(20), input, 0);
  save(*saved, folder.file());
  EXPECT_NE(bytes_of(folder.file()).find("\"U8\",\"shape\":[2,20,68]"), std::string::npos);
  const auto other = loaded();
  EXPECT_TRUE(contents(*other) == contents(*saved));
  EXPECT_EQ(run_step(*other, Step::decode(3), input, 20), run_step(*saved, Step::decode(3), input, 20));
  options.kv_bits = 0;
  expect_error([&] { (void)loaded(); }, ErrorCode::invalid_argument,
               {"options.kv_bits", "'8'", "'0'", "allowed"});
}

// As many chunks as decode steps of rows alone (DEC-2).
TEST_P(SaveSizes, SeventyThousandChunks) {
  constexpr std::int64_t kSteps = 70000;
  const Shape shape{
      .n_layer = 1, .n_head = 1, .n_head_kv = 1, .d_head = 2, .d_value = 1, .capacity = kSteps + 3};
  const auto saved = engine().open(shape, small_options());
  const LayerInput input = random_input(shape, kSteps + 3, 9);
  for (std::int64_t t = 0; t < kSteps; ++t) {
    saved->begin(Step::decode());
    saved->attend(0, {}, rows_from(input.k, t, 1, 2), rows_from(input.v, t, 1, 1), {});
    saved->end();
  }
  save(*saved, folder.file());
  const auto loaded = load(engine(), shape, small_options(), folder.file());
  EXPECT_EQ(loaded->chunks().size(), saved->chunks().size());
  EXPECT_TRUE(contents(*loaded) == contents(*saved));
  loaded->truncate(kSteps - 100);
  saved->truncate(kSteps - 100);
  EXPECT_EQ(run_step(*loaded, Step::decode(3), input, kSteps),
            run_step(*saved, Step::decode(3), input, kSteps));
}

// 600 heads are as many pieces of an array, of which one call takes 256 at most.
TEST_P(SaveSizes, ManyPiecesThatAreMovedInPart) {
  const Shape shape{.n_layer = 2, .n_head = 600, .n_head_kv = 600, .d_head = 4, .d_value = 3, .capacity = 40};
  const Options options = small_options();
  const auto saved = engine().open(shape, options);
  (void)run_step(*saved, Step::prefill(20), random_input(shape, 20, 8), 0);
  save(*saved, folder.file());
  const std::string whole = bytes_of(folder.file());
  for (const std::size_t most : {100, 239, 4096, 70000}) {
    const MovesAtMost limit(most);
    save(*saved, folder.file("parts"));
    const auto loaded = load(engine(), shape, options, folder.file());
    EXPECT_TRUE(bytes_of(folder.file("parts")) == whole) << most;
    EXPECT_TRUE(contents(*loaded) == contents(*saved)) << most;
  }
}

/// Zeros that take no memory until they are written.
class EmptyPages {
 public:
  explicit EmptyPages(std::size_t bytes) : bytes_(bytes) {
    void* const at =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at != MAP_FAILED) data_ = static_cast<char*>(at);
  }
  ~EmptyPages() {
    if (data_ != nullptr) (void)::munmap(data_, bytes_);
  }
  EmptyPages(const EmptyPages&) = delete;
  EmptyPages& operator=(const EmptyPages&) = delete;
  [[nodiscard]] char* data() const { return data_; }

 private:
  std::size_t bytes_;
  char* data_ = nullptr;
};

/// The state of a session of a million tokens: arrays in pieces of 2 GiB, in one piece beyond 4 GiB, and small ones behind
/// them. Nothing else of it works.
class LargeSession : public testing::NiceMock<mocks::MockSession> {
 public:
  static constexpr std::int64_t kHeads = 3, kTokens = std::int64_t{1} << 20, kWidth = 1024;
  static constexpr std::int64_t kPiece = kTokens * kWidth * 2;                  // 2 GiB
  static constexpr std::int64_t kWhole = std::int64_t{5} * kTokens * 1024 + 4;  // 5 GiB and a number
  static constexpr std::int64_t kSmall = 700;
  static constexpr std::int64_t kBytes = kHeads * kPiece + kWhole + kSmall * 4;

  explicit LargeSession(char* memory) : memory_(memory) {
    ON_CALL(*this, shape).WillByDefault(testing::ReturnRef(shape_));
    ON_CALL(*this, options).WillByDefault(testing::ReturnRef(options_));
  }
  void exchange_state(StateArchive& archive) override {
    archive.numbers("chunks", chunks, 100);
    std::vector<StateArchive::Piece> pieces;
    char* at = memory_;
    const auto give = [&](std::int64_t bytes) {
      pieces.push_back({at, bytes});
      at += bytes;
    };
    for (std::int64_t h = 0; h < kHeads; ++h) give(kPiece);
    archive.array("key.0", StateArchive::Element::f16, std::array{kHeads, kTokens, kWidth}, pieces);
    pieces.clear();
    give(kWhole);
    archive.array("value.0", StateArchive::Element::f32, std::array{kWhole / 4}, pieces);
    pieces.clear();
    give(kSmall * 4);
    archive.array("set.0", StateArchive::Element::i32, std::array{kSmall}, pieces);
  }
  std::vector<std::int64_t> chunks;

 private:
  Shape shape_;
  EffectiveOptions options_;
  char* memory_;
};

/// One of so many empty arrays, with names of 10000 letters.
class ManyArrays : public LargeSession {
 public:
  explicit ManyArrays(int arrays) : LargeSession(nullptr), arrays_(arrays) {}
  void exchange_state(StateArchive& archive) override {
    for (int i = 0; i < arrays_; ++i) {
      archive.array(std::string(10000, 'x') + std::to_string(i), StateArchive::Element::f32,
                    std::array<std::int64_t, 1>{0}, {});
    }
  }

 private:
  int arrays_;
};

// A header of up to 16 MiB is written and read; a longer one is refused, and no file is left.
TEST(FileSizes, AHeaderOfSixteenMiB) {
  const Folder folder;
  constexpr int kArrays = 1600;
  testing::NiceMock<mocks::MockEngine> engine;
  ON_CALL(engine, open).WillByDefault([&](const Shape&, const Options&) {
    return std::make_unique<ManyArrays>(kArrays);
  });
  ManyArrays session(kArrays);
  save(session, folder.file());
  EXPECT_GT(fs::file_size(folder.file()), std::uintmax_t{15} << 20);
  EXPECT_NO_THROW((void)load(engine, {}, {}, folder.file()));
  ManyArrays large(1700);
  expect_error([&] { save(large, folder.file("large")); }, ErrorCode::unsupported, {"header", "16777216"});
  EXPECT_EQ(folder.files(), 1);
  std::string file = bytes_of(folder.file());
  const std::uint64_t length = (std::uint64_t{16} << 20) + 1;
  std::memcpy(file.data(), &length, sizeof length);
  file.resize(8 + length, ' ');
  write(folder.file(), file);
  expect_error([&] { (void)load(engine, {}, {}, folder.file()); }, ErrorCode::invalid_argument,
               {"header of 16777217 bytes; allowed: at most 16777216"});
}

// Fingerprints of every length and character: each is held against, and data begin on a boundary of 64 bytes behind it.
TEST(FileSizes, FingerprintsOfEveryLengthAndCharacter) {
  const Folder folder;
  testing::NiceMock<mocks::MockEngine> engine;
  ON_CALL(engine, open).WillByDefault([](const Shape&, const Options&) {
    return std::make_unique<ManyArrays>(2);
  });
  ManyArrays session(2);
  const auto check = [&](const std::string& fingerprint) {
    save(session, folder.file(), fingerprint);
    std::uint64_t length = 0;
    std::memcpy(&length, bytes_of(folder.file()).data(), sizeof length);
    EXPECT_EQ((length + sizeof length) % 64, 0U) << fingerprint.size();
    EXPECT_NO_THROW((void)load(engine, {}, {}, folder.file(), fingerprint));
    for (const std::string& other : {fingerprint + "!", fingerprint.substr(0, fingerprint.size() / 2)}) {
      if (other == fingerprint || other.size() > 1024) continue;
      EXPECT_THROW((void)load(engine, {}, {}, folder.file(), other), Error) << fingerprint.size();
    }
  };
  // All that may be left of 64 bytes.
  for (std::size_t length = 0; length < 70; ++length) check(std::string(length, 'f'));
  for (const std::size_t length : {255, 256, 257, 1023, 1024}) check(std::string(length, 'f'));
  for (int c = 0; c < 256; ++c) {
    const std::string one(1, static_cast<char>(c));
    if (c >= 0x20 && c <= 0x7E) {
      check(one);
    } else {
      EXPECT_THROW(save(session, folder.file(), one), Error) << c;
      EXPECT_THROW((void)load(engine, {}, {}, folder.file(), one), Error) << c;
    }
  }
}

TEST(FileSizes, ArraysBeyondFourGiB) {
  const Folder folder;
  const EmptyPages saved(LargeSession::kBytes), loaded(LargeSession::kBytes);
  if (saved.data() == nullptr || loaded.data() == nullptr) GTEST_SKIP() << "no 22 GiB of addresses";
  // Both ends of each piece.
  std::vector<std::int64_t> places;
  for (std::int64_t h = 0; h <= LargeSession::kHeads; ++h) places.push_back(h * LargeSession::kPiece);
  places.push_back(places.back() + LargeSession::kWhole);
  places.push_back(LargeSession::kBytes);
  char next = 1;
  for (const std::int64_t place : places) {
    for (std::int64_t at = std::max<std::int64_t>(0, place - 40);
         at < place + 40 && at < LargeSession::kBytes; ++at) {
      saved.data()[at] = next++;
    }
  }
  testing::NiceMock<mocks::MockEngine> engine;
  ON_CALL(engine, open).WillByDefault([&](const Shape&, const Options&) {
    return std::make_unique<LargeSession>(loaded.data());
  });
  LargeSession session(saved.data());
  session.chunks = {0, 1 << 20, -5, std::int64_t{1} << 40};
  const MovesEndsAlone holes;
  save(session, folder.file());
  EXPECT_GT(fs::file_size(folder.file()), static_cast<std::uintmax_t>(LargeSession::kBytes));
  const auto read = load(engine, {}, {}, folder.file());
  EXPECT_EQ(dynamic_cast<LargeSession&>(*read).chunks, session.chunks);
  for (const std::int64_t place : places) {
    for (std::int64_t at = std::max<std::int64_t>(0, place - 50);
         at < place + 50 && at < LargeSession::kBytes; ++at) {
      ASSERT_EQ(loaded.data()[at], saved.data()[at]) << at;
    }
  }
}

// 100 layers of 64 heads, each with a sink of its own, and widths, windows, fingerprint and dense layers in a header of
// 100 KB and more; arrays in more than 256 pieces.
TEST_P(SaveSizes, LAYER_1_AHeaderOfOptionsOfManyLayers) {
  const Shape shape{.n_layer = 100, .n_head = 64, .n_head_kv = 64, .d_head = 2, .d_value = 1, .capacity = 40};
  Options options = small_options();
  options.layers.resize(100);
  const std::vector<float> sinks = random_input(shape, 50, 4).q;
  for (std::size_t l = 0; l < options.layers.size(); ++l) {
    options.layers[l].sinks = std::vector<float>(sinks.begin() + 64 * static_cast<std::ptrdiff_t>(l),
                                                 sinks.begin() + 64 * static_cast<std::ptrdiff_t>(l + 1));
    if (l % 3 == 1) options.dense_layers.push_back(static_cast<std::int64_t>(l));
  }
  const auto saved = engine().open(shape, options);
  const LayerInput input = random_input(shape, shape.capacity, 6);
  (void)run_step(*saved, Step::prefill(30), input, 0);
  const std::string fingerprint(1024, 'x');
  save(*saved, folder.file(), fingerprint);
  const auto loaded = load(engine(), shape, options, folder.file(), fingerprint);
  EXPECT_TRUE(contents(*loaded) == contents(*saved));
  EXPECT_EQ(run_step(*loaded, Step::decode(3), input, 30), run_step(*saved, Step::decode(3), input, 30));
  // Each is held against what is asked for.
  options.layers[99].sinks->back() += 1;
  expect_error([&] { (void)load(engine(), shape, options, folder.file(), fingerprint); },
               ErrorCode::invalid_argument, {"options.layers", "allowed"});
  options.layers[99].sinks->back() = sinks.back();
  options.dense_layers.back() += 1;
  expect_error([&] { (void)load(engine(), shape, options, folder.file(), fingerprint); },
               ErrorCode::invalid_argument, {"options.dense_layers", "allowed"});
}

// Lists of the same digits are different lists.
TEST_P(SaveSizes, STATE_7_DenseLayersOfSeveralDigits) {
  const Shape shape{.n_layer = 16, .n_head = 1, .n_head_kv = 1, .d_head = 2, .d_value = 1, .capacity = 40};
  Options options = small_options();
  options.dense_layers = {1, 5};
  const auto saved = engine().open(shape, options);
  (void)run_step(*saved, Step::prefill(30), random_input(shape, 30, 6), 0);
  save(*saved, folder.file(), "");
  options.dense_layers = {15};
  expect_error([&] { (void)load(engine(), shape, options, folder.file(), ""); }, ErrorCode::invalid_argument,
               {"options.dense_layers", "allowed"});
}

/// A session of three sparse chunks, a decode step, and its file.
class SavedFile : public Save {
 protected:
  void SetUp() override {
    Save::SetUp();
    if (IsSkipped()) return;
    options.sinks = {0.5F, 1, 2, 3};
    session = engine().open(shape, options);
    const LayerInput input = random_input(shape, 40, 3);
    (void)run_step(*session, Step::prefill(20), input, 0);
    (void)run_step(*session, Step::decode(), input, 20);
    save(*session, folder.file(), "print");
    bytes = bytes_of(folder.file());
  }
  void refused(const std::string& file, const std::vector<std::string>& parts) {
    write(folder.file("bad"), file);
    expect_error([&] { (void)load(engine(), shape, options, folder.file("bad"), "print"); },
                 ErrorCode::invalid_argument, parts);
  }
  /// The byte where the data of a tensor begins.
  std::size_t data_of(const std::string& name) {
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), 8);
    const std::size_t at = bytes.find("\"" + name + "\"");
    const std::size_t offsets = bytes.find("\"data_offsets\":[", at);
    return 8 + length + std::stoull(bytes.substr(offsets + 16));
  }
  std::string with_number(const std::string& tensor, std::size_t index, std::int64_t value) {
    std::string file = bytes;
    std::memcpy(file.data() + data_of(tensor) + 8 * index, &value, 8);
    return file;
  }
  Shape shape = small_shape(64);
  Options options = small_options();
  std::unique_ptr<Session> session;
  std::string bytes;
};

TEST_P(SavedFile, CutAnywhereIsRefused) {
  EXPECT_NO_THROW((void)load(engine(), shape, options, folder.file(), "print"));
  for (std::size_t k = 0; k < bytes.size(); k += k < 64 ? 1 : 13) refused(bytes.substr(0, k), {"bad"});
  refused(bytes.substr(0, bytes.size() - 1), {"bad"});
  refused(bytes + "x", {"allowed"});
}

TEST_P(SavedFile, EditedHeadersAreRefused) {
  refused(edited(bytes, "\"version\":\"1\"", "\"version\":\"2\""), {"version", "'2'", "'1'"});
  refused(edited(bytes, "headwater-session", "headwater-zession"), {"format", "zession"});
  refused(edited(bytes, "\"key.0\"", "\"kex.0\""), {"key.0", "missing"});
  refused(edited(bytes, "\"key.0\"", "\"key.1\""), {"twice"});
  refused(edited(bytes, "\"dtype\":\"F32\"", "\"dtype\":\"F99\""), {"F99"});
  refused(edited(bytes, "\"shape\":[4,", "\"shape\":[5,"), {"allowed"});
  refused(edited(bytes, "\"data_offsets\":[", "\"data_offsets\":{"), {"allowed"});
  refused(std::string(8, '\xff') + bytes.substr(8), {"header"});
  std::string deep = bytes;
  deep.replace(8, 100, std::string(100, '['));
  refused(deep, {"nests"});
}

TEST_P(SavedFile, EditedNumbersAreRefused) {
  for (const std::int64_t wrong :
       {std::int64_t{-1}, std::int64_t{1} << 40, std::int64_t{6}, std::numeric_limits<std::int64_t>::min(),
        std::numeric_limits<std::int64_t>::max()}) {
    for (const std::size_t index : {0, 1, 2, 3, 4, 5, 8, 9, 10, 11}) {
      refused(with_number("chunks", index, wrong), {"allowed"});
    }
    for (const std::size_t index : {0, 1, 2, 3}) refused(with_number("steps", index, wrong), {"allowed"});
    for (const std::size_t index : {0, 1, 2, 3}) refused(with_number("sets", index, wrong), {"sets"});
    refused(with_number("sinks", 1, wrong), {"sinks"});
  }
  refused(with_number("steps", 2, 0), {"step", "one at least"});  // the first step would have no chunk
  // Sets hold 2 heavy entries, then 3 local ones.
  for (const std::size_t entry : {0, 1, 2, 4}) {
    for (const std::int32_t wrong : {-2, -1, 16, 1 << 30}) {
      std::string file = bytes;
      std::memcpy(file.data() + data_of("set.1") + 4 * entry, &wrong, 4);
      refused(file, {"set.1", "entry"});
    }
  }
}

TEST_P(SavedFile, OtherShapesOptionsAndFingerprints) {
  const auto differs = [&](const Shape& other, const Options& asked, const std::string& name) {
    expect_error([&] { (void)load(engine(), other, asked, folder.file(), "print"); },
                 ErrorCode::invalid_argument, {name, "allowed"});
  };
  const auto option = [&](auto member, auto value, const std::string& name) {
    Options asked = options;
    asked.*member = value;
    differs(shape, asked, name);
  };
  option(&Options::batch, 24, "options.batch");
  option(&Options::chunk, 7, "options.chunk");
  option(&Options::local, 2, "options.local");
  option(&Options::heavy, 3, "options.heavy");
  option(&Options::pinned, 1, "options.pinned");
  option(&Options::dense_below, 4, "options.dense_below");
  option(&Options::dense_layers, std::vector<std::int64_t>{1}, "options.dense_layers");
  option(&Options::scale, 0.25, "options.scale");
  option(&Options::softcap, 5.0, "options.softcap");
  option(&Options::score_type, ScoreType::f32, "options.score_type");
  option(&Options::sinks, std::vector<float>{}, "sinks");
  option(&Options::alibi, std::vector<float>(4, 0.5F), "alibi");
  Shape other = shape;
  other.n_layer = 3;
  differs(other, options, "shape.n_layer");
  other = shape;
  other.d_value = 7;
  differs(other, options, "shape.d_value");
  other = shape;
  other.kv_type = DType::bf16;
  differs(other, options, "shape.kv_type");
  other = shape;
  other.capacity = 20;
  differs(other, options, "20");
  expect_error([&] { (void)load(engine(), shape, options, folder.file(), "other"); },
               ErrorCode::invalid_argument, {"fingerprint", "'print'", "'other'"});
  // What results do not depend on may differ.
  Options asked = options;
  asked.threads = 1;
  asked.checkpoints = 3;
  EXPECT_NO_THROW((void)load(engine(), shape, asked, folder.file(), "print"));
}

// Whichever call fails, what stood under the name stays, nothing else is left over, and the session goes on.
TEST_P(SavedFile, WritingThatFailsHalfway) {
  int failed = 0;
  for (int calls = 0; failed == calls; ++calls) {
    const FailsAfter limit(calls);
    try {
      save(*session, folder.file(), "other");
    } catch (const Error& error) {
      ++failed;
      EXPECT_EQ(error.code(), ErrorCode::internal);
      EXPECT_THAT(error.what(), testing::HasSubstr("cannot be written"));
      EXPECT_TRUE(bytes_of(folder.file()) == bytes);
      EXPECT_EQ(folder.files(), 1);
      EXPECT_THROW((void)load(engine(), shape, options, folder.file(), "print"),
                   Error);  // reading fails, too
    }
  }
  EXPECT_GT(failed, 5);
  EXPECT_FALSE(bytes_of(folder.file()) == bytes);
  const auto loaded = load(engine(), shape, options, folder.file(), "other");
  EXPECT_TRUE(contents(*loaded) == contents(*session));
}

TEST_P(SavedFile, PathsAndStates) {
  const auto bad_load = [&](const std::string& path, const std::string& part) {
    expect_error([&] { (void)load(engine(), shape, options, path, "print"); }, ErrorCode::invalid_argument,
                 {part});
  };
  bad_load("", "path");
  bad_load(folder.file("none"), "does not exist");
  bad_load(folder.file(".."), "regular");
  ASSERT_EQ(::mkfifo(folder.file("fifo").c_str(), 0600), 0);
  bad_load(folder.file("fifo"), "regular");
  const std::ptrdiff_t files = folder.files();
  for (const char* name : {"fifo", ".."}) {
    expect_error([&] { save(*session, folder.file(name)); }, ErrorCode::invalid_argument, {"regular"});
  }
  expect_error([&] { save(*session, folder.file("no/file")); }, ErrorCode::internal, {"created"});
  expect_error([&] { save(*session, folder.file(), "a\nb"); }, ErrorCode::invalid_argument, {"fingerprint"});
  expect_error([&] { save(*session, folder.file(), std::string(1025, 'x')); }, ErrorCode::invalid_argument,
               {"1025"});
  session->begin(Step::decode());
  expect_error([&] { save(*session, folder.file()); }, ErrorCode::wrong_state, {"open"});
  EXPECT_FALSE(session->failed());
  session->abort();
  EXPECT_EQ(folder.files(), files);
  EXPECT_EQ(bytes_of(folder.file()), bytes);  // refused saves leave the old file
}

HEADWATER_EACH_ENGINE(Save);
HEADWATER_EACH_ENGINE(SaveSizes);
HEADWATER_EACH_ENGINE(SavedFile);

}  // namespace
}  // namespace headwater::api_test
