// Pages, forks (STATE-11), rows of the caller (ROWS-1) and several sequences (SEQ-1): the bits of one session by itself.

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <thread>

#include "tests/api/conversation.hpp"

namespace headwater::api_test {
namespace {

using Bits = std::vector<unsigned char>;

/// What is left behind: outputs of the steps, then scores, sets and what else can be asked.
Bits bits_of(const Session& session, const std::vector<float>& out) {
  Bits all;
  append_bits(out.data(), std::ssize(out), all);
  Results contents;
  append_contents(session, contents);
  append_bits(contents.scores.data(), std::ssize(contents.scores), all);
  append_bits(contents.memory.data(), std::ssize(contents.memory), all);
  for (const Chunk& chunk : session.chunks()) append_bits(&chunk.begin, 1, all);
  const std::int64_t tokens = session.tokens();
  append_bits(&tokens, 1, all);
  return all;
}

/// The steps [first, last) of a conversation.
std::vector<float> run_some(const Conversation& talk, Session& session, std::size_t first, std::size_t last) {
  std::vector<float> out;
  for (std::size_t s = first; s < last; ++s) talk.run(session, Conversation::steps()[s], out);
  return out;
}

struct Kind {
  DType type;
  Select select;
  std::int64_t page;
};

const std::vector<Kind> kKinds{{DType::f32, Select::h2o, 256},
                               {DType::f32, Select::blocks, 4096},
                               {DType::bf16, Select::h2o, 4096},
                               {DType::bf16, Select::blocks, 256}};

Options options_of(const Kind& kind, int threads = 2) {
  Options options = conversation_options(kind.select, threads);
  options.page = kind.page;
  if (kind.select == Select::h2o) options.checkpoints = 2;
  return options;
}

class PagesOf : public EachEngine {};

TEST_P(PagesOf, STATE_6_BitsDoNotDependOnThePages) {
  for (const DType type : {DType::f32, DType::bf16}) {
    const Conversation talk(type);
    for (const Select select : {Select::h2o, Select::blocks}) {
      Options options = conversation_options(select, 3);
      if (select == Select::blocks) options.key_block = 5;  // blocks across the borders of pages
      const Bits wanted = talk.bits(engine(), options);
      for (const std::int64_t page : {256, 512, 768}) {
        options.page = page;
        EXPECT_EQ(talk.bits(engine(), options), wanted) << "page " << page;
      }
    }
  }
}
HEADWATER_EACH_ENGINE(PagesOf);

class ForkOf : public EachEngine {
 protected:
  void SetUp() override {
    if (!engine().claims().fork) GTEST_SKIP() << "the engine does not fork";
  }
};

// Forked after each step, the fork goes on with other rows, then with the same, then the parent does.
TEST_P(ForkOf, STATE_11_BothSidesGoOnAsIfTheOtherWereNotThere) {
  const std::size_t steps = Conversation::steps().size();
  for (const Kind& kind : kKinds) {
    const Conversation talk(kind.type);
    Conversation other(kind.type);
    other.set_rows(random_input(talk.shape, 1100, 99));
    const auto whole = engine().open(talk.shape, options_of(kind));
    const Bits wanted = bits_of(*whole, run_some(talk, *whole, 0, steps));
    for (std::size_t s = 0; s <= steps; ++s) {
      const auto parent = engine().open(talk.shape, options_of(kind));
      std::vector<float> before = run_some(talk, *parent, 0, s);
      const std::unique_ptr<Session> stranger = parent->fork();
      const std::unique_ptr<Session> twin = parent->fork()->fork();  // whose parent is closed at once
      EXPECT_EQ(bits_of(*twin, before), bits_of(*parent, before)) << "after " << s << " steps";
      (void)run_some(other, *stranger, s, steps);
      for (Session* one : {twin.get(), parent.get()}) {
        std::vector<float> out = before;
        const std::vector<float> rest = run_some(talk, *one, s, steps);
        out.insert(out.end(), rest.begin(), rest.end());
        EXPECT_EQ(bits_of(*one, out), wanted) << "after " << s << " steps";
      }
    }
  }
}

// More runs of rows, one for each layer and key/value head, than 64, and a fork inside of a group of rows.
TEST_P(ForkOf, STATE_11_SeventyTwoRuns) {
  const Shape shape{.n_layer = 9, .n_head = 8, .n_head_kv = 8, .d_head = 4, .d_value = 4, .capacity = 320};
  const LayerInput input = random_input(shape, 320, 5);
  const auto parent = engine().open(shape, small_options());
  (void)run_step(*parent, Step::prefill(300), input, 0);
  const std::unique_ptr<Session> fork = parent->fork();
  const auto alone = engine().open(shape, small_options());
  (void)run_step(*alone, Step::prefill(300), input, 0);
  const std::vector<float> wanted = run_step(*alone, Step::decode(20), input, 300);
  EXPECT_EQ(run_step(*fork, Step::decode(20), input, 300), wanted);
  EXPECT_EQ(run_step(*parent, Step::decode(20), input, 300), wanted);
}

// Aborted, truncated and reset on one side; the other does not see it.
TEST_P(ForkOf, STATE_11_WhatOneSideTakesBackStaysOnTheOther) {
  for (const Kind& kind : kKinds) {
    const Conversation talk(kind.type);
    Conversation other(kind.type);
    other.set_rows(random_input(talk.shape, 1100, 99));
    const auto whole = engine().open(talk.shape, options_of(kind));
    const Bits wanted = bits_of(*whole, run_some(talk, *whole, 0, 7));
    for (int what = 0; what < 4; ++what) {
      const auto parent = engine().open(talk.shape, options_of(kind));
      std::vector<float> out = run_some(talk, *parent, 0, 6);
      std::unique_ptr<Session> fork = parent->fork();
      Session& changed = what % 2 == 0 ? *parent : *fork;
      Session& kept = what % 2 == 0 ? *fork : *parent;
      if (what < 2) {
        changed.begin(Step::prefill(170));
        changed.abort();
        changed.truncate(changed.tokens() - 2);
        changed.truncate(0);
        (void)run_some(other, changed, 0, 3);
      } else {
        changed.reset();
        EXPECT_EQ(changed.memory(0).count, 0);
        const auto fresh = engine().open(talk.shape, options_of(kind));
        EXPECT_EQ(bits_of(changed, run_some(other, changed, 0, 4)),
                  bits_of(*fresh, run_some(other, *fresh, 0, 4)));
      }
      const std::vector<float> rest = run_some(talk, kept, 6, 7);
      out.insert(out.end(), rest.begin(), rest.end());
      EXPECT_EQ(bits_of(kept, out), wanted) << "case " << what;
    }
  }
}

// Forked at once, before anything was read of a session whose step was aborted.
TEST_P(ForkOf, STATE_11_AnAbortedStepIsNotTakenAlong) {
  const Conversation talk(DType::f32);
  for (const std::int64_t checkpoints : {0, 2}) {
    Options options = options_of(kKinds[0]);
    options.checkpoints = checkpoints;
    const auto whole = engine().open(talk.shape, options);
    const Bits wanted = bits_of(*whole, run_some(talk, *whole, 0, 7));
    const auto parent = engine().open(talk.shape, options);
    const std::vector<float> before = run_some(talk, *parent, 0, 6);
    const Step step = Conversation::steps()[6];
    std::vector<float> dropped(static_cast<std::size_t>(step.n * talk.shape.n_head * talk.shape.d_value));
    parent->begin(step);
    for (std::int64_t layer = 0; layer < talk.shape.n_layer; ++layer)
      talk.attend(*parent, layer, dropped.data());
    parent->abort();
    const auto fork = parent->fork();
    for (Session* session : {fork.get(), parent.get()}) {
      std::vector<float> out = before;
      const std::vector<float> rest = run_some(talk, *session, 6, 7);
      out.insert(out.end(), rest.begin(), rest.end());
      EXPECT_EQ(bits_of(*session, out), wanted) << checkpoints << " checkpoints";
    }
  }
}

TEST_P(ForkOf, STATE_11_CheckpointsAreTakenAlong) {
  const Conversation talk(DType::f32);
  Options options = options_of(kKinds[0]);
  for (const ScoreType scores : {ScoreType::bf16, ScoreType::f32}) {
    options.score_type = scores;
    const auto straight = engine().open(talk.shape, options);
    std::vector<float> out;
    talk.run(*straight, Step::prefill(160, 480), out);
    const Bits wanted = bits_of(*straight, out);
    const auto parent = engine().open(talk.shape, options);
    std::vector<float> ignored;
    talk.run(*parent, Step::prefill(160, 480), ignored);
    talk.run(*parent, Step::prefill(160), ignored);
    talk.run(*parent, Step::prefill(160), ignored);
    const auto fork = parent->fork();
    fork->truncate(160);
    EXPECT_EQ(bits_of(*fork, out), wanted);
    parent->truncate(160);
    EXPECT_EQ(bits_of(*parent, out), wanted);
  }
}

TEST_P(ForkOf, STATE_11_AnOpenStepIsRefusedAndStaysOpen) {
  const Conversation talk(DType::f32);
  const auto session = engine().open(talk.shape, options_of(kKinds[0]));
  session->begin(Step::prefill(20));
  expect_error([&] { (void)session->fork(); }, ErrorCode::wrong_state, {"fork()"});
  EXPECT_FALSE(session->failed());
  session->abort();
  EXPECT_EQ(session->fork()->tokens(), 0);
}

TEST_P(ForkOf, STATE_11_TwoThreadsGoOnAtOnce) {
  for (const Kind& kind : {kKinds[0], kKinds[3]}) {
    const Conversation talk(kind.type);
    const auto whole = engine().open(talk.shape, options_of(kind, 1));
    const Bits wanted = bits_of(*whole, run_some(talk, *whole, 0, 7));
    const auto parent = engine().open(talk.shape, options_of(kind, 1));
    const std::vector<float> before = run_some(talk, *parent, 0, 3);
    const auto fork = parent->fork();
    Bits got[2];
    const auto go_on = [&](Session& session, Bits& to) {
      std::vector<float> out = before;
      const std::vector<float> rest = run_some(talk, session, 3, 7);
      out.insert(out.end(), rest.begin(), rest.end());
      to = bits_of(session, out);
    };
    std::thread other([&] { go_on(*fork, got[1]); });
    go_on(*parent, got[0]);
    other.join();
    EXPECT_EQ(got[0], wanted);
    EXPECT_EQ(got[1], wanted);
  }
}
HEADWATER_EACH_ENGINE(ForkOf);

/// Rows of a conversation in the caller's memory: pages of `page_rows` in random order, head after head or token after token,
/// NaN everywhere else.
struct CallersRows {
  CallersRows(const Conversation& talk, std::int64_t tokens, std::int64_t page_rows, bool head_major,
              std::uint64_t seed, std::int64_t unused_pages = 3)
      : shape(talk.shape) {
    const std::int64_t heads = shape.n_head_kv;
    const auto element = static_cast<std::int64_t>(dtype_size(talk.type));
    view.rows = tokens;
    view.page_rows = page_rows;
    view.table_size = (tokens + page_rows - 1) / page_rows;
    view.pages = view.table_size + unused_pages;
    table.resize(static_cast<std::size_t>(view.pages));
    std::iota(table.begin(), table.end(), 0);
    std::mt19937_64 random(seed);
    std::shuffle(table.begin(), table.end(), random);
    const auto place = [&](const Bits& from, std::int64_t width, Bits& to, std::int64_t& row_stride,
                           std::int64_t& head_stride, std::int64_t& page_stride) {
      row_stride = head_major ? width : heads * (width + 1);
      head_stride = head_major ? page_rows * width + 3 : width + 1;
      page_stride = page_rows * heads * (width + 1) + 3 * heads;
      to.assign(static_cast<std::size_t>(view.pages * page_stride * element + 1), 0xff);  // NaN in both types
      for (std::int64_t token = 0; token < tokens; ++token) {
        for (std::int64_t head = 0; head < heads; ++head) {
          const std::int64_t at = table[static_cast<std::size_t>(token / page_rows)] * page_stride +
                                  token % page_rows * row_stride + head * head_stride;
          std::memcpy(to.data() + 1 + at * element, from.data() + (token * heads + head) * width * element,
                      static_cast<std::size_t>(width * element));
        }
      }
    };
    place(talk.k, shape.d_head, keys, view.key_row_stride, view.key_head_stride, view.key_page_stride);
    place(talk.v, shape.d_value, values, view.value_row_stride, view.value_head_stride,
          view.value_page_stride);
    view.keys = keys.data() + 1;  // no alignment
    view.values = values.data() + 1;
    view.table = table.data();
  }

  Shape shape;
  std::vector<std::int32_t> table;
  Bits keys, values;
  StoredRows view;
};

Rows queries_of(const Conversation& talk, const Session& session) {
  const std::int64_t width = talk.shape.n_head * talk.shape.d_head;
  return Rows::token_major(
      talk.q.data() + static_cast<std::size_t>(session.tokens() * width) * dtype_size(talk.type), talk.type,
      talk.shape.n_head, talk.shape.d_head);
}

/// A step over rows of the caller, which lie elsewhere in each call.
void run_stored(const Conversation& talk, Session& session, const Step& step, std::int64_t page_rows,
                bool head_major, std::vector<float>& out, std::int64_t unused_pages = 3) {
  const std::int64_t size = step.n * talk.shape.n_head * talk.shape.d_value;
  session.begin(step);
  for (std::int64_t layer = 0; layer < talk.shape.n_layer; ++layer) {
    const CallersRows rows(talk, session.tokens() + step.n, page_rows, head_major,
                           static_cast<std::uint64_t>(session.tokens() + layer), unused_pages);
    const Bits keys = rows.keys;
    out.resize(out.size() + static_cast<std::size_t>(size));
    session.attend_stored(layer, queries_of(talk, session), rows.view,
                          MutableRows::token_major(out.data() + out.size() - size, DType::f32,
                                                   talk.shape.n_head, talk.shape.d_value));
    EXPECT_EQ(rows.keys, keys) << "rows of the caller were written";
  }
  session.end();
}

/// All steps over rows that lie where `rows` says; their outputs.
std::vector<float> run_over(const Conversation& talk, Session& session, StoredRows rows) {
  std::vector<float> out;
  for (const Step& step : Conversation::steps()) {
    session.begin(step);
    rows.rows = session.tokens() + step.n;
    for (std::int64_t layer = 0; layer < 2; ++layer) {
      const std::int64_t size = step.n * 6 * 12;
      out.resize(out.size() + static_cast<std::size_t>(size));
      session.attend_stored(layer, queries_of(talk, session), rows,
                            MutableRows::token_major(out.data() + out.size() - size, DType::f32, 6, 12));
    }
    session.end();
  }
  return out;
}

class StoredRowsOf : public EachEngine {
 protected:
  void SetUp() override {
    if (!engine().claims().stored_rows) GTEST_SKIP() << "the engine keeps the rows";
  }
};

TEST_P(StoredRowsOf, ROWS_1_BitsAreThoseOfASessionThatStoresThem) {
  for (const Kind& kind : kKinds) {
    const Conversation talk(kind.type);
    Options options = options_of(kind);
    const auto own = engine().open(talk.shape, options);
    const Bits wanted = bits_of(*own, run_some(talk, *own, 0, 7));
    options.kv_owner = KvOwner::caller;
    for (const std::int64_t page_rows : {1, 16, 300, 2000}) {
      for (const bool head_major : {false, true}) {
        const auto session = engine().open(talk.shape, options);
        std::vector<float> out;
        for (const Step& step : Conversation::steps())
          run_stored(talk, *session, step, page_rows, head_major, out);
        EXPECT_EQ(bits_of(*session, out), wanted)
            << "pages of " << page_rows << (head_major ? ", heads first" : "");
      }
    }
  }
}

TEST_P(StoredRowsOf, ROWS_1_MoreThan65536Pages) {
  const Kind& kind = kKinds[0];
  const Conversation talk(kind.type);
  Options options = options_of(kind);
  const auto own = engine().open(talk.shape, options);
  const std::vector<float> wanted = run_some(talk, *own, 0, 3);
  options.kv_owner = KvOwner::caller;
  const auto session = engine().open(talk.shape, options);
  std::vector<float> out;
  for (std::size_t s = 0; s < 3; ++s)
    run_stored(talk, *session, Conversation::steps()[s], 1, false, out, 140000);
  EXPECT_EQ(out, wanted);
}

TEST_P(StoredRowsOf, ROWS_1_OneTensorNeedsNoTable) {
  for (const DType type : {DType::f32, DType::bf16}) {
    const Conversation talk(type);
    Options options = conversation_options(Select::h2o, 2);
    const auto own = engine().open(talk.shape, options);
    const Bits wanted = bits_of(*own, run_some(talk, *own, 0, 7));
    options.kv_owner = KvOwner::caller;
    const auto session = engine().open(talk.shape, options);
    StoredRows rows;
    rows.keys = talk.k.data(), rows.values = talk.v.data();
    rows.key_row_stride = 2 * 16, rows.key_head_stride = 16;
    rows.value_row_stride = 2 * 12, rows.value_head_stride = 12;
    EXPECT_EQ(bits_of(*session, run_over(talk, *session, rows)), wanted);
  }
}

class FarRowsOf : public EachEngine {};

/// Addresses that take no memory before they are written; null where the system has not as many.
class Reserved {
 public:
  explicit Reserved(std::size_t bytes) : bytes_(bytes) {
    void* at =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    data_ = at == MAP_FAILED ? nullptr : static_cast<unsigned char*>(at);
  }
  Reserved(const Reserved&) = delete;
  Reserved& operator=(const Reserved&) = delete;
  ~Reserved() {
    if (data_) ::munmap(data_, bytes_);
  }
  [[nodiscard]] unsigned char* data() const { return data_; }

 private:
  std::size_t bytes_;
  unsigned char* data_;
};

// Rows of one call that lie so far apart that those of its last tokens begin beyond 2^31 elements.
TEST_P(FarRowsOf, BeyondTwoGibiElements) {
  constexpr std::int64_t kTokens = 40;
  constexpr std::int64_t kStride = std::int64_t{1} << 26;  // elements
  const Shape shape = small_shape(kTokens);
  const LayerInput input = random_input(shape, kTokens, 5);
  const auto near = engine().open(shape, small_options());
  const std::vector<float> wanted = run_step(*near, Step::prefill(kTokens), input, 0);
  const std::int64_t widths[] = {shape.d_head, shape.d_head, shape.d_value, shape.d_value};
  const std::int64_t heads[] = {shape.n_head, shape.n_head_kv, shape.n_head_kv, shape.n_head};
  const std::vector<float>* const rows[] = {&input.q, &input.k, &input.v};
  std::vector<std::unique_ptr<Reserved>> far;
  for (std::size_t i = 0; i < 4; ++i) {
    far.push_back(std::make_unique<Reserved>(kTokens * kStride * sizeof(float)));
    if (!far.back()->data()) GTEST_SKIP() << "no 40 GiB of addresses";
    const std::int64_t row = heads[i] * widths[i];
    for (std::int64_t t = 0; i < 3 && t < kTokens; ++t)
      std::copy_n(rows[i]->data() + t * row, row, reinterpret_cast<float*>(far[i]->data()) + t * kStride);
  }
  const auto session = engine().open(shape, small_options());
  session->begin(Step::prefill(kTokens));
  std::vector<float> out;
  for (std::int64_t layer = 0; layer < shape.n_layer; ++layer) {
    const auto view = [&](std::size_t i) { return Rows{far[i]->data(), DType::f32, kStride, widths[i]}; };
    session->attend(layer, view(0), view(1), view(2), {far[3]->data(), DType::f32, kStride, widths[3]});
    for (std::int64_t t = 0; t < kTokens; ++t) {
      const float* const row = reinterpret_cast<const float*>(far[3]->data()) + t * kStride;
      out.insert(out.end(), row, row + heads[3] * widths[3]);
    }
  }
  session->end();
  EXPECT_EQ(out, wanted);
}

HEADWATER_EACH_ENGINE(FarRowsOf);

// Pages of one pool for many sequences: more than 2^32 bytes lie between rows of one.
TEST_P(StoredRowsOf, ROWS_1_PagesFarApart) {
  constexpr std::int64_t kPageRows = 400;
  constexpr std::int64_t kStride = std::int64_t{1} << 29;  // elements
  constexpr std::array<std::int32_t, 3> kTable{3, 0, 2};
  const Conversation talk(DType::f32);
  Options options = conversation_options(Select::h2o, 2);
  const auto own = engine().open(talk.shape, options);
  const Bits wanted = bits_of(*own, run_some(talk, *own, 0, 7));
  const Reserved keys(4 * kStride * sizeof(float)), values(4 * kStride * sizeof(float));
  if (!keys.data() || !values.data()) GTEST_SKIP() << "no 16 GiB of addresses";
  const auto place = [&](const Bits& from, std::int64_t row_bytes, unsigned char* to) {
    for (std::int64_t token = 0; token < std::ssize(from) / row_bytes; ++token) {
      const auto page = static_cast<std::size_t>(token / kPageRows);
      std::memcpy(
          to + kTable.at(page) * kStride * std::int64_t{sizeof(float)} + token % kPageRows * row_bytes,
          from.data() + token * row_bytes, static_cast<std::size_t>(row_bytes));
    }
  };
  place(talk.k, 2 * 16 * 4, keys.data());
  place(talk.v, 2 * 12 * 4, values.data());
  StoredRows rows;
  rows.keys = keys.data(), rows.values = values.data();
  rows.key_row_stride = 2 * 16, rows.key_head_stride = 16;
  rows.value_row_stride = 2 * 12, rows.value_head_stride = 12;
  rows.table = kTable.data(), rows.table_size = std::ssize(kTable), rows.pages = 4;
  rows.page_rows = kPageRows, rows.key_page_stride = rows.value_page_stride = kStride;
  options.kv_owner = KvOwner::caller;
  const auto session = engine().open(talk.shape, options);
  EXPECT_EQ(bits_of(*session, run_over(talk, *session, rows)), wanted);
}

TEST_P(StoredRowsOf, ROWS_1_HostileRowsAreRefusedByName) {
  const Conversation talk(DType::f32);
  Options options = conversation_options(Select::h2o, 2);
  options.kv_owner = KvOwner::caller;
  const auto session = engine().open(talk.shape, options);
  std::vector<float> out(static_cast<std::size_t>(330 * 6 * 12));
  const MutableRows to = MutableRows::token_major(out.data(), DType::f32, 6, 12);
  session->begin(Step::prefill(330));
  CallersRows good(talk, 400, 16, false, 1);
  std::int64_t layer = 0;
  const auto refuse = [&](const auto& change, const std::string& field) {
    StoredRows rows = good.view;
    change(rows);
    expect_error([&] { session->attend_stored(layer, queries_of(talk, *session), rows, to); },
                 ErrorCode::invalid_argument, {field});
    EXPECT_FALSE(session->failed());
  };
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  refuse([](StoredRows& rows) { rows.keys = nullptr; }, "rows.keys");
  refuse([](StoredRows& rows) { rows.values = nullptr; }, "rows.values");
  for (const std::int64_t n : {std::int64_t{329}, std::int64_t{0}, -kMost - 1})
    refuse([&](StoredRows& rows) { rows.rows = n; }, "rows.rows");
  for (const std::int64_t n : {std::int64_t{20}, std::int64_t{0}, std::int64_t{-1}})
    refuse([&](StoredRows& rows) { rows.table_size = n; }, "rows.table_size");
  for (const std::int64_t n : {std::int64_t{0}, std::int64_t{-16}})
    refuse([&](StoredRows& rows) { rows.page_rows = n; }, "rows.page_rows");
  for (const std::int64_t n : {std::int64_t{0}, std::int64_t{-1}})
    refuse([&](StoredRows& rows) { rows.pages = n; }, "rows.pages");
  for (std::int64_t StoredRows::*stride :
       {&StoredRows::key_row_stride, &StoredRows::key_head_stride, &StoredRows::value_row_stride,
        &StoredRows::value_head_stride, &StoredRows::key_page_stride, &StoredRows::value_page_stride}) {
    for (const std::int64_t value : {kMost, -kMost - 1, kMost / 8})
      refuse([&](StoredRows& rows) { rows.*stride = value; }, "_stride");
  }
  const auto refuse_tables = [&](const std::vector<std::size_t>& places) {
    for (const std::size_t at : places) {
      const std::int32_t page = good.table[at];
      for (const std::int32_t wrong :
           {-1, static_cast<std::int32_t>(good.view.pages), good.table[at == 0 ? 1 : 0]}) {
        good.table[at] = wrong;
        for (int again = 0; again < 2; ++again) refuse([](StoredRows&) {}, "rows.table[");
      }
      good.table[at] = page;
    }
  };
  refuse_tables({0, 16, 20});
  const Rows rows = Rows::token_major(talk.k.data(), DType::f32, 2, 16);
  expect_error([&] { session->attend(0, queries_of(talk, *session), rows, rows, to); },
               ErrorCode::invalid_argument, {"attend_stored()"});
  session->attend_stored(0, queries_of(talk, *session), good.view, to);
  layer = 1;
  refuse_tables({0, 16, 20});  // what differs from a table that was taken is checked again
  for (; layer < talk.shape.n_layer; ++layer)
    session->attend_stored(layer, queries_of(talk, *session), good.view, to);
  session->end();
  session->begin(Step::decode(70));
  layer = 0;
  refuse_tables({24, 21, 20, 0});  // new entries first: a refusal forgets the table that was taken
  float row[16];
  expect_error([&] { session->read_key(0, 0, 0, row); }, ErrorCode::unsupported, {"rows"});
  expect_error([&] { session->read_value(0, 0, 0, row); }, ErrorCode::unsupported, {"rows"});

  const auto own = engine().open(talk.shape, conversation_options(Select::h2o, 2));
  own->begin(Step::prefill(330));
  expect_error([&] { own->attend_stored(0, queries_of(talk, *own), good.view, to); },
               ErrorCode::invalid_argument, {"attend()"});
}
HEADWATER_EACH_ENGINE(StoredRowsOf);

class TogetherOf : public StoredRowsOf {};

// Sessions at different places of the same conversation, of both rules, one of them over rows of the caller.
TEST_P(TogetherOf, SEQ_1_BitsAreThoseOfTheCallsOneByOne) {
  const Conversation talk(DType::f32);
  for (const std::size_t sessions : {std::size_t{1}, std::size_t{2}, std::size_t{9}}) {
    std::vector<std::unique_ptr<Session>> together, alone;
    std::vector<std::size_t> next;
    for (std::size_t i = 0; i < sessions; ++i) {
      Options options = options_of(kKinds[i % 2]);
      alone.push_back(engine().open(talk.shape, options));
      options.kv_owner = i % 4 == 3 ? KvOwner::caller : KvOwner::session;
      together.push_back(engine().open(talk.shape, options));
      next.push_back(i % 5);
      (void)run_some(talk, *alone[i], 0, next[i]);
      std::vector<float> ignored;
      for (std::size_t s = 0; s < next[i]; ++s) {
        const Step step = Conversation::steps()[s];
        if (options.kv_owner == KvOwner::caller) {
          run_stored(talk, *together[i], step, 16, false, ignored);
        } else {
          talk.run(*together[i], step, ignored);
        }
      }
    }
    for (int round = 0; round < 2; ++round) {
      std::vector<std::vector<float>> outs(sessions);
      std::vector<CallersRows> rows;
      rows.reserve(sessions);
      for (std::size_t i = 0; i < sessions; ++i) {
        const Step step = Conversation::steps()[next[i]];
        together[i]->begin(step);
        outs[i].resize(static_cast<std::size_t>(2 * step.n * 6 * 12));
        rows.emplace_back(talk, together[i]->tokens() + step.n, 16, false, 3);
      }
      for (std::int64_t layer = 0; layer < 2; ++layer) {
        std::vector<SequenceCall> calls;
        for (std::size_t i = 0; i < sessions; ++i) {
          Session& session = *together[i];
          SequenceCall call;
          call.session = &session;
          call.layer = layer;
          call.q = queries_of(talk, session);
          if (session.options().kv_owner == KvOwner::caller) {
            call.stored = &rows[i].view;
          } else {
            call.k = Rows::token_major(talk.k.data() + session.tokens() * 32 * 4, DType::f32, 2, 16);
            call.v = Rows::token_major(talk.v.data() + session.tokens() * 24 * 4, DType::f32, 2, 12);
          }
          call.out =
              MutableRows::token_major(outs[i].data() + layer * std::ssize(outs[i]) / 2, DType::f32, 6, 12);
          calls.push_back(call);
        }
        attend_together(calls);
      }
      for (std::size_t i = 0; i < sessions; ++i) {
        together[i]->end();
        const std::vector<float> wanted = run_some(talk, *alone[i], next[i], next[i] + 1);
        EXPECT_EQ(bits_of(*together[i], outs[i]), bits_of(*alone[i], wanted))
            << "session " << i << " of " << sessions;
        ++next[i];
      }
    }
  }
}

TEST_P(TogetherOf, SEQ_1_WhatIsRefusedLeavesAllAsTheyWere) {
  const Conversation talk(DType::f32);
  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<SequenceCall> good;
  std::vector<std::vector<float>> outs(300, std::vector<float>(20 * 6 * 12, 7.0f));
  for (std::size_t i = 0; i < outs.size(); ++i) {
    sessions.push_back(engine().open(talk.shape, conversation_options(Select::h2o, 1)));
    sessions[i]->begin(Step::prefill(20));
    SequenceCall call;
    call.session = sessions[i].get();
    call.q = queries_of(talk, *sessions[i]);
    call.k = Rows::token_major(talk.k.data(), DType::f32, 2, 16);
    call.v = Rows::token_major(talk.v.data(), DType::f32, 2, 12);
    call.out = MutableRows::token_major(outs[i].data(), DType::f32, 6, 12);
    good.push_back(call);
  }
  const auto refuse = [&](std::size_t at, const auto& change, ErrorCode code, const std::string& field) {
    std::vector<SequenceCall> calls = good;
    change(calls[at]);
    expect_error([&] { attend_together(calls); }, code, {"calls[" + std::to_string(at) + "]", field});
    for (std::size_t i = 0; i < sessions.size(); ++i) {
      EXPECT_FALSE(sessions[i]->failed());
      for (const float x : outs[i]) ASSERT_EQ(x, 7.0f) << "something was computed";
    }
  };
  for (const std::size_t at : {std::size_t{0}, std::size_t{7}, std::size_t{299}}) {
    refuse(
        at, [](SequenceCall& call) { call.session = nullptr; }, ErrorCode::invalid_argument, "session");
    refuse(
        at, [](SequenceCall& call) { call.layer = 2; }, ErrorCode::invalid_argument, "layer");
    refuse(
        at, [](SequenceCall& call) { call.layer = -1; }, ErrorCode::invalid_argument, "layer");
    refuse(
        at, [](SequenceCall& call) { call.q.data = nullptr; }, ErrorCode::invalid_argument, "q");
    refuse(
        at, [](SequenceCall& call) { call.v.type = static_cast<DType>(3); }, ErrorCode::invalid_argument,
        "v");
    refuse(
        at, [](SequenceCall& call) { call.out.data = nullptr; }, ErrorCode::invalid_argument, "out");
  }
  refuse(
      9, [&](SequenceCall& call) { call.session = sessions[2].get(); }, ErrorCode::invalid_argument,
      "calls[2]");
  refuse(
      290, [&](SequenceCall& call) { call.session = sessions[270].get(); }, ErrorCode::invalid_argument,
      "calls[270]");
  expect_error([&] { attend_together({}); }, ErrorCode::invalid_argument, {"calls"});
  sessions[10]->abort();
  refuse(
      10, [](SequenceCall&) {}, ErrorCode::wrong_state, "begin()");
  sessions[10]->begin(Step::prefill(20));
  attend_together(good);
  expect_error([&] { attend_together(good); }, ErrorCode::wrong_state, {"calls[0]", "layer 0"});
  for (const auto& session : sessions) EXPECT_FALSE(session->failed());
}
HEADWATER_EACH_ENGINE(TogetherOf);

}  // namespace
}  // namespace headwater::api_test
