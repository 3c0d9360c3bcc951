// Beginnings of prompts that are kept: how much of a request is taken from them, in memory and from files, and that the
// answer is the one without.

#include "runtime/serve/prefix_cache.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>

#include "tests/model/serving.hpp"

namespace headwater::runtime::testing {
namespace {

namespace fs = std::filesystem;

/// A folder of this test, gone with it.
struct Folder {
  Folder() { EXPECT_NE(::mkdtemp(path.data()), nullptr); }
  ~Folder() { fs::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string path = (fs::temp_directory_path() / "headwater-serve-XXXXXX").string();
};

std::vector<fs::path> files_of(const std::string& directory, const char* extension) {
  std::vector<fs::path> files;
  for (const auto& file : fs::directory_iterator(directory)) {
    if (file.path().extension() == extension) files.push_back(file.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::int64_t bytes_of(const std::string& directory) {
  std::uintmax_t bytes = 0;
  for (const char* extension : {".ids", ".rows"}) {
    for (const fs::path& file : files_of(directory, extension)) bytes += fs::file_size(file);
  }
  return static_cast<std::int64_t>(bytes);
}

/// A conversation so far, what was answered, and what comes next.
std::vector<std::int32_t> joined(std::vector<std::int32_t> ids, std::span<const std::int32_t> answer,
                                 std::span<const std::int32_t> more = {}) {
  ids.insert(ids.end(), answer.begin(), answer.end());
  ids.insert(ids.end(), more.begin(), more.end());
  return ids;
}

TEST(PageList, CountsWhatForksShareOnce) {
  const auto count = std::make_shared<std::int64_t>(0);
  {
    PageList one(count, 256);
    one.grow(1000);
    EXPECT_EQ(*count, 4);
    PageList whole = one.fork(1000);
    EXPECT_EQ(*count, 4);
    whole.grow(1001);  // its last page is copied
    EXPECT_EQ(*count, 5);
    PageList cut = one.fork(512);
    cut.grow(512);
    EXPECT_EQ(*count, 5);
    cut.grow(513);
    EXPECT_EQ(*count, 6);
    one.grow(1024);
    EXPECT_EQ(*count, 7 - 1);  // nobody shares its last page any more
    one.grow(5);               // nothing shrinks
    PageList none = one.fork(0);
    PageList more = one.fork(5000);
    EXPECT_EQ(*count, 6);
    none.grow(1);
    more.grow(1025);  // its last page was full: none is copied
    EXPECT_EQ(*count, 8);
    PageList first = one.fork(100);
    PageList second = first.fork(50);
    one = PageList(count, 256);
    whole = cut = none = more = one.fork(0);
    EXPECT_EQ(*count, 1);
    second.grow(300);  // 50 tokens of a shared page
    EXPECT_EQ(*count, 3);
  }
  EXPECT_EQ(*count, 0);
}

struct CacheCase {
  Select select;
  std::int64_t chunk;
  std::int64_t document;
  std::int64_t kv_bits = 0;
};

TEST(PrefixCache, AWarmAnswerIsAColdOneWhereOnlyWholeChunksAreUsed) {
  for (const auto& [select, chunk, document, kv_bits] :
       {CacheCase{Select::sketches, 32, 300}, CacheCase{Select::blocks, 32, 256},
        CacheCase{Select::sketches, 32, 255}, CacheCase{Select::sketches, 32, 300, 8}}) {
    const Serving setup{
        .select = select, .capacity = 4096, .chunk = chunk, .exact = true, .kv_bits = kv_bits};
    Bench plain(setup);
    Bench warm(setup);
    warm.ask(request(document_and(document, 1)));
    for (const std::int32_t question : {2, 1, 3}) {
      const Bench::Answer wanted = plain.ask(cold(request(document_and(document, question))));
      const Bench::Answer got = warm.ask(request(document_and(document, question)));
      EXPECT_EQ(got.facts.cached_tokens % chunk, 0);
      EXPECT_GE(got.facts.cached_tokens, document - chunk - 8);
      EXPECT_TRUE(got.facts.exact);
      EXPECT_EQ(got.ids, wanted.ids);
      EXPECT_EQ(got.logprobs, wanted.logprobs);
    }
  }
}

TEST(PrefixCache, AllThatIsTheSameIsUsed) {
  Bench bench({.chunk = 128});
  const Bench::Answer first = bench.ask(request(document_and(340, 1), 9));
  EXPECT_EQ(first.facts.cached_tokens, 0);
  EXPECT_TRUE(first.facts.exact);
  const Bench::Answer other = bench.ask(request(document_and(340, 2)));
  EXPECT_EQ(other.facts.cached_tokens, 340);
  EXPECT_FALSE(other.facts.exact);
  // The next turn goes on from the answer, whose last token was not stored.
  const std::vector<std::int32_t> turn = joined(document_and(340, 1), first.ids, all_of(7, 1));
  EXPECT_EQ(bench.ask(request(turn)).facts.cached_tokens, 350 + 8);
  // The same prompt again: its last token goes in anew.
  EXPECT_EQ(bench.ask(request(document_and(340, 2))).facts.cached_tokens, 349);
  CompletionRequest dense = request(document_and(340, 2));
  dense.rule.dense = true;
  EXPECT_EQ(bench.ask(dense).facts.cached_tokens, 0);
  EXPECT_EQ(bench.ask(dense).facts.cached_tokens, 349);
  EXPECT_EQ(bench.ask(cold(request(document_and(340, 2)))).facts.cached_tokens, 0);
  // Fewer than 64 tokens are no beginning.
  EXPECT_EQ(bench.ask(request(document_and(63, 2))).facts.cached_tokens, 0);
  EXPECT_EQ(bench.ask(request(document_and(64, 3))).facts.cached_tokens, 64);
}

// Prompts on each side of a page and of a chunk, with and without tails, dense, and dense as short ones are.
TEST(PrefixCache, ExactBitsAtEdges) {
  struct Case {
    Serving setup;
    std::vector<std::int64_t> documents;
    bool dense;
    std::optional<std::int64_t> tail;
  };
  const Serving small{.chunk = 32, .exact = true};
  const Serving real{.capacity = 4096, .chunk = 1024, .exact = true};
  const Serving partly{.chunk = 32, .exact = true, .dense_below = 230};
  for (const Case& one : {Case{small, {254, 255, 256, 287}, false, {}}, Case{small, {220, 286}, false, 0},
                          Case{small, {300}, false, 100}, Case{small, {255, 256}, true, {}},
                          Case{partly, {227, 228, 300}, false, {}}, Case{real, {2045, 3000}, false, {}}}) {
    Bench bench(one.setup);
    const std::int64_t chunk = one.setup.chunk;
    for (const std::int64_t document : one.documents) {
      for (const std::int32_t question : {1, 2}) {
        CompletionRequest asked = request(document_and(document, question), 2);
        asked.rule.dense = one.dense;
        asked.dense_tail = one.tail;
        const Bench::Answer wanted = bench.ask(cold(asked));
        const Bench::Answer got = bench.ask(asked);
        EXPECT_EQ(got.ids, wanted.ids) << document;
        EXPECT_EQ(got.logprobs, wanted.logprobs) << document;
        EXPECT_TRUE(got.facts.exact);
        EXPECT_EQ(got.facts.cached_tokens % chunk, 0);
        if (question == 2) {
          const std::int64_t prefill = document + 10 - (one.dense ? 0 : one.tail.value_or(8));
          EXPECT_EQ(got.facts.cached_tokens, std::min(document, prefill) / chunk * chunk) << document;
        }
      }
    }
    EXPECT_GT(bench.scheduler.facts().cached_tokens, 0);
  }
}

TEST(PrefixCache, GoesOnFromASlotThatWrites) {
  const Serving setup{.slots = 3, .chunk = 128};
  Bench bench(setup);
  Bench alone(setup);
  const auto first = bench.scheduler.submit(request(document_and(700, 1), 60));
  while (bench.scheduler.facts().decode_steps < 9) ASSERT_TRUE(bench.scheduler.run_step());
  const auto other = bench.scheduler.submit(request(document_and(700, 2), 20));
  const Bench::Answer wanted = alone.ask(request(document_and(700, 1), 60));
  // A fork of what is being written: prompt and answer so far.
  const std::vector<std::int32_t> turn =
      joined(document_and(700, 1), std::span(wanted.ids).first(5), all_of(3, 1));
  const auto next = bench.scheduler.submit(request(turn, 20));
  bench.work();
  const Bench::Answer got = Bench::answer_of(*first);
  EXPECT_EQ(got.ids, wanted.ids);
  EXPECT_EQ(got.logprobs, wanted.logprobs);
  const Bench::Answer from_chunks = Bench::answer_of(*other);
  EXPECT_EQ(from_chunks.facts.cached_tokens, 640);
  EXPECT_TRUE(from_chunks.facts.exact);
  EXPECT_EQ(from_chunks.logprobs, alone.ask(cold(request(document_and(700, 2), 20))).logprobs);
  EXPECT_EQ(Bench::answer_of(*next).facts.cached_tokens, 715);
}

TEST(PrefixCache, WhatACancelledPromptReadIsUsed) {
  Bench bench({.slots = 2, .exact = true});
  const auto reader = bench.scheduler.submit(request(document_and(640, 1)));
  const auto same = bench.scheduler.submit(request(document_and(640, 1)));
  bench.run_steps(10);
  EXPECT_EQ(bench.scheduler.facts().queued, 1) << "it waits for the one that reads";
  reader->cancel();
  bench.work();
  const Bench::Answer answer = Bench::answer_of(*same);
  EXPECT_EQ(answer.facts.cached_tokens, 320);
  EXPECT_EQ(answer.logprobs, bench.ask(cold(request(document_and(640, 1)))).logprobs);
  EXPECT_EQ(Bench::answer_of(*reader).end, End::cancel);
}

// Of entries that give as much, the exact one is taken, and what is said of it is so.
TEST(PrefixCache, AnExactBeginningComesBeforeAnother) {
  const Folder folder;
  const std::string& directory = folder.path;
  const Serving setup{.chunk = 128, .directory = directory};
  {
    Bench bench(setup);
    bench.ask(request(document_and(256, 1)));
    bench.cache.save_all();
  }
  Bench bench(setup);
  // Rows of other tokens stand for rows that have other bits.
  Conversation talk(bench.transformer, 0);
  talk.feed(std::vector<std::int32_t>(300, 17));
  PageList pages(bench.cache.pages(), 256);
  pages.grow(300);
  std::vector<std::int32_t> ids = some_ids(256);
  ids.resize(300, 9);
  bench.cache.keep(
      std::move(*PrefixCache::fork(bench.transformer.session(), ids, pages, {{}, true, 0}, {300, false})));
  talk.reset();
  const Bench::Answer got = bench.ask(request(document_and(256, 2)));
  EXPECT_EQ(got.facts.cached_tokens, 256);
  EXPECT_TRUE(got.facts.exact);
  EXPECT_EQ(got.logprobs, bench.ask(cold(request(document_and(256, 2)))).logprobs);
}

TEST(PrefixCache, OfTheReferenceEngine) {
  Bench bench({.capacity = 256, .exact = true, .engine = "reference"});
  const Bench::Answer wanted = bench.ask(cold(request(document_and(100, 2), 2)));
  bench.ask(request(document_and(100, 1), 1));
  const Bench::Answer got = bench.ask(request(document_and(100, 2), 2));
  EXPECT_EQ(got.facts.cached_tokens, 96);
  EXPECT_EQ(got.logprobs, wanted.logprobs);
}

TEST(PrefixCache, OfRuleH2oSessionsAreUsedWhole) {
  Bench bench({.select = Select::h2o});
  const Bench::Answer first = bench.ask(request(document_and(300, 1), 5));
  EXPECT_EQ(bench.ask(request(document_and(300, 2))).facts.cached_tokens, 0);
  EXPECT_EQ(bench.ask(request(joined(document_and(300, 1), first.ids))).facts.cached_tokens, 310 + 4);
}

TEST(PrefixCache, RequestsThatComeTogetherReadABeginningOnce) {
  Bench bench({.slots = 4});
  std::vector<std::shared_ptr<Completion>> jobs;
  for (std::int32_t question = 0; question < 4; ++question) {
    jobs.push_back(bench.scheduler.submit(request(document_and(640, question), 20)));
  }
  bench.work();
  const std::int64_t alone = 640 / 32 + 2;
  EXPECT_LE(bench.scheduler.facts().prefill_steps, alone + 3 * 2);
  for (const auto& job : jobs) EXPECT_EQ(Bench::answer_of(*job).end, End::length);
  // Four answers hold the document once: three pages, and what each has of its own.
  EXPECT_LE(bench.scheduler.facts().cache.rows_bytes, 3 + 4);
}

TEST(PrefixCache, LeavesTheMemoryByTheTimeOfUse) {
  Bench bench({.ram_pages = 4});
  bench.ask(request(document_and(300, 1)));  // two pages
  std::vector<std::int32_t> backwards = some_ids(310);
  std::reverse(backwards.begin(), backwards.end());
  bench.ask(request(backwards));
  EXPECT_EQ(bench.ask(request(document_and(300, 1), 1)).facts.cached_tokens, 288);
  bench.ask(request(all_of(9, 400)));
  EXPECT_LE(bench.scheduler.facts().cache.rows_bytes, 4);
  EXPECT_GT(bench.ask(request(document_and(300, 1), 1)).facts.cached_tokens, 0);
}

TEST(PrefixCache, ComesBackFromFiles) {
  const Folder folder;
  const std::string& directory = folder.path;
  const Serving setup{.chunk = 128, .directory = directory};
  Bench::Answer cold;
  {
    Bench bench(setup);
    cold = bench.ask(request(document_and(340, 1)));
    bench.ask(request(document_and(340, 2)));  // nearly the same: one file is enough
    EXPECT_THROW(Bench{setup}, Error);         // the directory is taken
    bench.cache.save_all();
  }
  std::ofstream(directory + "/notes.txt") << "mine";
  std::ofstream(directory + "/0123456789abcdef.rows.aBcDeF") << "what a killed server left";
  std::ofstream(directory + "/0123456789abcdef.rows") << "the same";
  {
    Serving other = setup;
    other.fingerprint = "another model";
    EXPECT_EQ(Bench(other).ask(request(document_and(340, 1))).facts.cached_tokens, 0);
  }
  EXPECT_TRUE(fs::exists(directory + "/notes.txt"));
  EXPECT_FALSE(fs::exists(directory + "/0123456789abcdef.rows.aBcDeF"));
  EXPECT_FALSE(fs::exists(directory + "/0123456789abcdef.rows"));
  {
    Bench bench(setup);
    const Bench::Answer warm = bench.ask(request(document_and(340, 1)));
    EXPECT_EQ(warm.facts.cached_tokens, 349);
    EXPECT_EQ(warm.ids, cold.ids);
  }
  Serving small = setup;
  small.disk_bytes = 1000;
  { Bench bench(small); }
  EXPECT_EQ(std::distance(fs::directory_iterator(directory), {}), 2);  // the lock and the notes
}

// Two entries, and what may have become of their files: the answer is the cold one, and what is damaged is gone.
TEST(PrefixCache, DamagedFilesGiveColdAnswers) {
  using Damage = std::function<void(const std::string& directory)>;
  const auto each = [](const char* extension, void (*damage)(const fs::path& file)) -> Damage {
    return [=](const std::string& directory) {
      for (const fs::path& file : files_of(directory, extension)) damage(file);
    };
  };
  const auto swapped = [](const char* extension) -> Damage {
    return [=](const std::string& directory) {
      const auto files = files_of(directory, extension);
      fs::rename(files[0], directory + "/swap");
      fs::rename(files[1], files[0]);
      fs::rename(directory + "/swap", files[1]);
    };
  };
  const auto remove = [](const fs::path& file) { fs::remove(file); };
  const auto put = [](const fs::path& path) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(100).put(77);
  };
  const struct {
    const char* what;
    Damage damage;
    std::int64_t damaged;  // entries that are found to be
  } cases[] = {
      {"ids swapped", swapped(".ids"), 0},
      {"rows swapped", swapped(".rows"), 2},
      {"rows missing", each(".rows", remove), 2},
      {"ids missing", each(".ids", remove), 0},
      {"an id of another value", each(".ids", put), 2},
      {"ids empty", each(".ids", [](const fs::path& file) { fs::resize_file(file, 0); }), 2},
      {"an id cut off", each(".ids", [](auto& file) { fs::resize_file(file, fs::file_size(file) - 4); }), 2},
      {"a byte of rows cut off",
       each(".rows", [](auto& file) { fs::resize_file(file, fs::file_size(file) - 1); }), 2},
      {"rows of one byte", each(".rows", [](const fs::path& file) { fs::resize_file(file, 1); }), 2},
      {"a folder",
       each(".rows", [](const fs::path& file) { fs::remove(file) && fs::create_directory(file); }), 2},
  };
  const std::vector<std::vector<std::int32_t>> prompts{document_and(560, 1), all_of(9, 560)};
  const Folder whole;
  Serving setup{.chunk = 128, .directory = whole.path, .exact = true};
  std::vector<Bench::Answer> wanted;
  {
    Bench bench(setup);
    for (const auto& prompt : prompts) wanted.push_back(bench.ask(request(prompt, 2)));
    bench.cache.save_all();
    EXPECT_EQ(files_of(whole.path, ".rows").size(), 2U);
    EXPECT_EQ(bench.cache.facts().files_bytes, bytes_of(whole.path));
  }
  for (const auto& one : cases) {
    SCOPED_TRACE(one.what);
    const Folder folder;
    setup.directory = folder.path;
    fs::copy(whole.path, setup.directory);
    one.damage(setup.directory);
    {
      Bench bench(setup);
      for (std::size_t i = 0; i < prompts.size(); ++i) {
        const Bench::Answer got = bench.ask(request(prompts[i], 2));
        EXPECT_EQ(got.facts.cached_tokens, 0);
        EXPECT_EQ(got.logprobs, wanted[i].logprobs);
      }
      EXPECT_EQ(bench.cache.facts().damaged, one.damaged);
      EXPECT_EQ(bench.cache.take_warnings().size(), static_cast<std::size_t>(one.damaged));
      bench.cache.save_all();
      EXPECT_EQ(bench.cache.take_warnings(), std::vector<std::string>());
      EXPECT_EQ(bench.cache.facts().files_bytes, bytes_of(setup.directory));
      EXPECT_EQ(files_of(setup.directory, ".rows").size(), 2U);
    }
    Bench bench(setup);
    EXPECT_EQ(bench.cache.facts().entries, 2);
  }
}

TEST(PrefixCache, RefusesDirectoriesThatItCannotUse) {
  const Folder folder;
  const std::string& directory = folder.path;
  std::ofstream(directory + "/file") << "no folder";
  fs::create_directory(directory + "/linked");
  fs::create_symlink(directory + "/file", directory + "/linked/lock");
  for (const char* name : {"/file", "/file/below", "/linked"}) {
    try {
      const Bench bench({.directory = directory + name});
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_THAT(error.what(), ::testing::HasSubstr(name));
    }
  }
  { const Bench made({.directory = directory + "/a/b"}); }
  EXPECT_TRUE(fs::exists(directory + "/a/b/lock"));
}

// What a server with other options left is not damaged, and is there again when the options are.
TEST(PrefixCache, OptionsOfASessionAreItsModel) {
  const Folder folder;
  const std::string& directory = folder.path;
  Serving setup{.chunk = 128, .directory = directory};
  {
    Bench bench(setup);
    bench.ask(request(document_and(300, 1)));
    bench.cache.save_all();
  }
  for (const Serving& other : {Serving{.select = Select::blocks, .chunk = 128, .directory = directory},
                               Serving{.chunk = 64, .directory = directory},
                               Serving{.chunk = 128, .directory = directory, .kv_bits = 8},
                               Serving{.capacity = 256, .chunk = 128, .directory = directory}}) {
    Bench bench(other);
    EXPECT_EQ(bench.ask(request(document_and(200, 1))).facts.cached_tokens, 0);
    EXPECT_EQ(bench.cache.facts().damaged, 0);
  }
  Bench bench(setup);
  EXPECT_EQ(bench.ask(request(document_and(300, 1))).facts.cached_tokens, 256);
}

TEST(PrefixCache, FilesHaveTheirLimit) {
  const Folder folder;
  const std::string& directory = folder.path;
  Serving setup{.chunk = 128, .directory = directory};
  std::int64_t one = 0;
  {
    Bench bench(setup);
    for (const std::int32_t id : {3, 4, 5}) {
      bench.ask(request(all_of(id, 600), 1));
      bench.cache.save_all();
    }
    one = bytes_of(directory) / 3;
  }
  { Bench(setup).ask(request(all_of(3, 600), 1)); }
  // Two have room; those that were used last stay.
  setup.disk_bytes = 2 * one + one / 2;
  Bench bench(setup);
  const auto known = [&](std::int32_t id, std::size_t n) {
    const std::vector<std::int32_t> ids = all_of(id, n);
    return bench.cache.find({ids, {}, true, std::ssize(ids) - 8, 128, false}).tokens;
  };
  EXPECT_EQ(known(3, 600), 599);
  EXPECT_EQ(known(4, 600), 0);
  EXPECT_EQ(known(5, 600), 599);
  // One that has no room alone takes none from others.
  bench.ask(request(all_of(6, 1900), 1));
  bench.cache.save_all();
  EXPECT_EQ(known(3, 600), 599);
  EXPECT_EQ(known(5, 600), 599);
  EXPECT_EQ(known(6, 1900), 1899) << "in memory";
  EXPECT_EQ(files_of(directory, ".rows").size(), 2U);
  EXPECT_EQ(bench.cache.facts().files_bytes, bytes_of(directory));
}

TEST(PrefixCache, ConversationsByName) {
  const Folder folder;
  const std::string& directory = folder.path;
  const Serving setup{.directory = directory};
  std::vector<std::int32_t> last;
  std::vector<std::int32_t> more;
  {
    Bench bench(setup);
    bench.ask(request(document_and(300, 1)));
    last.assign(bench.scheduler.last_of(0).begin(), bench.scheduler.last_of(0).end());
    EXPECT_EQ(std::ssize(last), 313);
    EXPECT_EQ(bench.cache.save_as(last, "chat-1.a_b"), 313);
    EXPECT_EQ(bench.cache.save_as(some_ids(313), "other"), -1);
    EXPECT_EQ(bench.cache.restore("other"), -1);
    // It goes on; what has a name keeps its file.
    bench.ask(request(joined(last, some_ids(700))));
    more.assign(bench.scheduler.last_of(0).begin(), bench.scheduler.last_of(0).end());
    bench.cache.save_all();
    EXPECT_EQ(files_of(directory, ".rows").size(), 2U);
  }
  Bench bench(setup);
  EXPECT_EQ(bench.cache.facts().rows_bytes, 0);
  EXPECT_EQ(bench.cache.restore("chat-1.a_b"), 313);
  EXPECT_EQ(bench.cache.facts().rows_bytes, 2);
  EXPECT_EQ(bench.ask(request(document_and(300, 1))).facts.cached_tokens, 288);
  // Dense, the same tokens are another entry; both go.
  CompletionRequest dense = request(document_and(300, 1));
  dense.sampling.logit_bias = {{last[310], 1000.0}};
  dense.rule.dense = true;
  dense.max_tokens = 1;
  bench.ask(dense);
  bench.cache.erase(last);
  EXPECT_EQ(bench.cache.restore("chat-1.a_b"), -1);
  bench.cache.erase(document_and(300, 1));
  bench.cache.erase(more);
  EXPECT_EQ(bench.cache.facts().entries, 0);
  EXPECT_EQ(bench.cache.facts().rows_bytes, 0);
  EXPECT_EQ(bytes_of(directory), 0);
}

// Prompts that share beginnings, asked in any order, by servers that come and go with little memory and few files: answers
// are cold ones, and the files are those that the cache counts.
TEST(PrefixCache, AnyOrderGivesColdAnswers) {
  std::vector<CompletionRequest> all;
  for (const std::int64_t n : {70, 127, 200, 600}) {
    for (const std::int32_t question : {1, 2}) {
      all.push_back(request(document_and(n, question), 2));
      // Of one document.
      all.back().rule.dense = n == 200 && question == 1;
      if (n == 200 && question == 2) all.back().rule = {.select = Select::blocks, .memory = 32};
      if (n == 600 && question == 2) all.back().rule = {.memory = 12};
    }
    all.push_back(request(all_of(static_cast<std::int32_t>(n), static_cast<std::size_t>(n)), 3));
  }
  for (const Select select : {Select::sketches, Select::h2o}) {
    SCOPED_TRACE(static_cast<int>(select));
    const Folder folder;
    const std::string& directory = folder.path;
    Serving setup{.select = select,
                  .slots = 2,
                  .chunk = 64,
                  .ram_pages = 5,
                  .directory = directory,
                  .exact = select != Select::h2o};
    Bench plain({.select = select, .chunk = 64});
    std::map<std::size_t, std::vector<float>> wanted;
    std::mt19937 random(static_cast<unsigned>(select) + 1);
    std::int64_t cached = 0;
    for (int life = 0; life < 3; ++life) {
      setup.disk_bytes = life == 2 ? 2'000'000 : std::int64_t{1} << 40;
      Bench bench(setup);
      for (int round = 0; round < 6; ++round) {
        const std::vector<std::size_t> chosen{random() % all.size(), random() % all.size()};
        std::vector<std::shared_ptr<Completion>> jobs;
        for (const std::size_t i : chosen) jobs.push_back(bench.scheduler.submit(all[i]));
        if (random() % 8 == 0) jobs[0]->cancel();
        bench.work();
        for (std::size_t i = 0; i < chosen.size(); ++i) {
          const Bench::Answer got = Bench::answer_of(*jobs[i]);
          if (got.end == End::cancel) continue;
          std::vector<float>& logprobs = wanted[chosen[i]];
          if (logprobs.empty()) logprobs = plain.ask(cold(all[chosen[i]])).logprobs;
          if (got.facts.exact) {
            EXPECT_EQ(got.logprobs, logprobs) << chosen[i];
          }
        }
        EXPECT_LE(bench.cache.facts().rows_bytes, 5);
        EXPECT_EQ(bench.cache.facts().files_bytes, bytes_of(directory));
        EXPECT_LE(bench.cache.facts().files_bytes, setup.disk_bytes);
      }
      if (life % 2 == 0) bench.cache.save_all();
      EXPECT_EQ(bench.cache.facts().damaged, 0);
      EXPECT_EQ(bench.cache.take_warnings(), std::vector<std::string>());
      EXPECT_EQ(bench.cache.facts().files_bytes, bytes_of(directory));
      cached += bench.scheduler.facts().cached_tokens;
    }
    if (select != Select::h2o) {
      EXPECT_GT(cached, 500);
    }
  }
}

}  // namespace
}  // namespace headwater::runtime::testing
