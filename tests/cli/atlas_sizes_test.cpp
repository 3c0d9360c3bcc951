// The atlas and the recorder at the sizes of long prompts: positions, gaps, sums and buffers beyond 2^8, 2^14, 2^16, 2^18
// and 2^32, against plain loops over the same trace.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>

#include "cli/commands/atlas/page.hpp"
#include "cli/commands/atlas/summary.hpp"
#include "cli/commands/attend/recorder.hpp"
#include "cli/support/output_layout.hpp"
#include "cli/support/safetensors.hpp"
#include "cli/support/steps.hpp"

namespace headwater::cli::testing {
namespace {

/// Chunks of `chunk` tokens, and a set of `memory` positions for each of them and each head: the newest `local` before it and
/// others, a quarter of which stays from set to set.
AtlasTrace made_trace(std::int64_t n, std::int64_t chunk, std::int64_t heads, std::int64_t memory,
                      std::int64_t local) {
  AtlasTrace trace;
  std::mt19937 random(1);
  trace.n = n;
  trace.memory = memory;
  trace.local = local;
  trace.heads_in_file = heads;
  for (std::int64_t t = 0; t < n; t += chunk) trace.chunk_start.push_back(t);
  trace.chunk_start.push_back(n);
  for (std::int64_t h = 0; h < heads; ++h) trace.head_numbers.push_back(h);
  for (std::int64_t i = 0; i < heads * n; ++i) {
    // BF16 holds it, and it differs between places that are a power of two apart.
    trace.scores.push_back(std::ldexp(static_cast<float>(i % 255 + 1), static_cast<int>(i / 255 % 61) - 30));
  }
  trace.set_start.push_back(0);
  std::vector<std::vector<std::int32_t>> before(static_cast<std::size_t>(heads));
  for (std::int64_t c = 0; c < trace.chunks(); ++c) {
    const std::int64_t begin = trace.begin(c);
    for (std::int64_t h = 0; h < heads; ++h) {
      std::set<std::int32_t> set;
      for (std::int64_t t = trace.local_begin(c); t < begin; ++t) set.insert(static_cast<std::int32_t>(t));
      auto& old = before[static_cast<std::size_t>(h)];
      for (std::size_t i = 0; i < old.size() / 4; ++i) set.insert(old[i]);
      while (begin > 0 && static_cast<std::int64_t>(set.size()) < std::min(memory, begin)) {
        const bool keep = !old.empty() && random() % 8 > 0;
        set.insert(keep ? old[random() % old.size()]
                        : static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(begin)));
      }
      old.assign(set.begin(), set.end());
      for (const std::int32_t position : set) {
        trace.positions.push_back(position);
        trace.colsum_inter.push_back(static_cast<float>(random() % 1000) * 0.125F);
      }
      trace.set_start.push_back(static_cast<std::int64_t>(trace.positions.size()));
    }
  }
  return trace;
}

std::vector<std::uint8_t> data_of(const std::string& page, const std::string& name) {
  const std::string mark = "id=\"data-" + name + "\">";
  const std::size_t begin = page.find(mark) + mark.size();
  const std::string text = page.substr(begin, page.find('<', begin) - begin);
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  int values[256];
  std::fill(std::begin(values), std::end(values), -1);
  for (std::size_t i = 0; i < digits.size(); ++i)
    values[static_cast<unsigned char>(digits[i])] = static_cast<int>(i);
  std::vector<std::uint8_t> bytes;
  unsigned group = 0;
  int bits = 0;
  for (const char c : text) {
    if (c == '=') break;
    group = group << 6 | static_cast<unsigned>(values[static_cast<unsigned char>(c)]);
    bits += 6;
    if (bits < 8) continue;
    bits -= 8;
    bytes.push_back(static_cast<std::uint8_t>(group >> bits));
  }
  return bytes;
}

// 300000 tokens: gaps of one, two and three bytes in a set, as the page's script unpacks them.
TEST(AtlasSizes, ThePageHoldsEveryPositionAndScore) {
  const AtlasTrace trace = made_trace(300000, 500, 3, 48, 4);
  const std::string page = atlas_page(trace, "title");
  const auto packed = data_of(page, "sets");
  std::size_t at = 0;
  std::int64_t longest = 0;
  const auto next = [&] {
    std::uint64_t value = 0;
    for (unsigned shift = 0;; shift += 7) {
      const std::uint8_t byte = packed.at(at++);
      value |= std::uint64_t{byte & 127U} << shift;
      if (byte < 128) return static_cast<std::int64_t>(value);
    }
  };
  for (std::int64_t c = 0; c < trace.chunks(); ++c) {
    for (std::int64_t h = 0; h < trace.heads(); ++h) {
      const auto set = trace.set(c, h);
      ASSERT_EQ(next(), static_cast<std::int64_t>(set.size()));
      std::int64_t before = -1;
      for (const std::int32_t position : set) {
        longest = std::max(longest, position - before - 1);
        before += next() + 1;
        ASSERT_EQ(before, position) << "chunk " << c << ", head " << h;
      }
    }
  }
  EXPECT_EQ(at, packed.size());
  EXPECT_GT(longest, 70000);
  // An eighth of an octave each: 255 is all of a query's attention.
  const auto weights = data_of(page, "weights");
  ASSERT_EQ(weights.size(), trace.colsum_inter.size());
  for (std::int64_t c = 0; c < trace.chunks(); ++c) {
    const auto queries = static_cast<double>(trace.end(c) - trace.begin(c));
    const auto set = [&](std::int64_t i) { return trace.set_start[static_cast<std::size_t>(i)]; };
    for (auto e = static_cast<std::size_t>(set(c * trace.heads()));
         e < static_cast<std::size_t>(set((c + 1) * trace.heads())); ++e) {
      const double share = static_cast<double>(trace.colsum_inter[e]) / queries;
      if (share == 0) {
        ASSERT_EQ(weights[e], 0) << e;
      } else {
        ASSERT_NEAR(weights[e], std::max(1.0, 255 + 8 * std::log2(share)), 0.5 + 1e-9) << e;
      }
    }
  }
  const auto scores = data_of(page, "scores");
  ASSERT_EQ(scores.size(), 2 * trace.scores.size());
  for (std::size_t i = 0; i < trace.scores.size(); ++i) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &trace.scores[i], sizeof bits);
    ASSERT_EQ(bits >> 16, scores[2 * i] | scores[2 * i + 1] << 8) << i;
  }
}

TEST(AtlasSizes, PairsReadsAndLivesOfALongPrompt) {
  const AtlasTrace trace = made_trace(2000000, 50000, 2, 3000, 500);
  for (std::int64_t h = 0; h < trace.heads(); ++h) {
    PairCounts wanted;
    std::vector<std::int32_t> reads(static_cast<std::size_t>(trace.n));
    for (std::int64_t c = 0; c < trace.chunks(); ++c) {
      const auto queries = static_cast<std::uint64_t>(trace.end(c) - trace.begin(c));
      wanted.own += queries * (queries + 1) / 2;
      for (const std::int32_t position : trace.set(c, h)) {
        const bool is_local = position >= trace.begin(c) - trace.local;
        (is_local ? wanted.local : wanted.heavy) += queries;
        reads[static_cast<std::size_t>(position)] += is_local ? 0 : 1;
      }
    }
    const PairCounts pairs = count_pairs(trace, h);
    EXPECT_GT(wanted.heavy, std::uint64_t{1} << 32);
    EXPECT_EQ(pairs.own, wanted.own);
    EXPECT_EQ(pairs.local, wanted.local);
    EXPECT_EQ(pairs.heavy, wanted.heavy);
    EXPECT_EQ(pairs.dense, 0U);
    EXPECT_EQ(heavy_reads(trace, h), reads);
  }
}

// More ages than a byte counts: how long each token lived, by looking it up in every later set.
TEST(AtlasSizes, LivesOf700Sets) {
  const AtlasTrace trace = made_trace(7000, 10, 1, 60, 20);
  std::vector<std::int64_t> at_risk;
  std::vector<std::int64_t> kept;
  for (std::int64_t c = 0; c < trace.chunks(); ++c) {
    for (std::int64_t token = trace.begin(c); token < trace.end(c); ++token) {
      for (std::int64_t r = c + 1; r < trace.chunks(); ++r) {
        const auto age = static_cast<std::size_t>(r - c - 1);
        at_risk.resize(std::max(at_risk.size(), age + 1));
        kept.resize(at_risk.size());
        ++at_risk[age];
        const auto set = trace.set(r, 0);
        if (!std::binary_search(set.begin(), set.end(), static_cast<std::int32_t>(token))) break;
        ++kept[age];
      }
    }
  }
  EXPECT_GT(at_risk.size(), 300U);
  const Survival lives = survival(trace, 0);
  EXPECT_EQ(lives.at_risk, at_risk);
  double share = 1;
  ASSERT_EQ(lives.share.size(), at_risk.size());
  for (std::size_t k = 0; k < at_risk.size(); ++k) {
    share *= static_cast<double>(kept[k]) / static_cast<double>(at_risk[k]);
    ASSERT_NEAR(lives.share[k], share, 1e-12) << k;
  }
}

class Folder {
 public:
  Folder() {
    path_ = std::filesystem::path(::testing::TempDir()) / ("headwater-atlas-" + std::to_string(::getpid()));
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] std::string path(const char* name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

// Nearly all of the file is a hole, which takes no disk.
TEST(OutputSizes, ATensorAfterFourGiBComesBack) {
  const Folder folder;
  const std::vector<float> first = {1, 2, 3};
  const std::vector<float> last = {4, 5, 6};
  OutputLayout layout;
  layout.add("q", TensorType::f32, {131072, 64, 128});
  layout.add("k", TensorType::f32, {3});
  layout.close();
  OutputFile file(folder.path("large"), nullptr);
  file.write_at(0, std::as_bytes(std::span(layout.header())));
  file.write_at(layout.offset("q"), std::as_bytes(std::span(first)));
  file.write_at(layout.offset("k"), std::as_bytes(std::span(last)));
  file.commit();
  const runtime::MappedFile mapped(folder.path("large"));
  ASSERT_EQ(mapped.bytes().size(), layout.file_bytes());
  const SafetensorsHeader header = parse_safetensors(mapped.bytes());
  const auto values = [&](const char* name) {
    std::vector<float> read(3);
    std::memcpy(read.data(), mapped.bytes().data() + header.tensors.at(name).begin, 12);
    return read;
  };
  EXPECT_EQ(values("q"), first);
  EXPECT_EQ(values("k"), last);
  EXPECT_GT(header.tensors.at("k").begin, std::uint64_t{1} << 32);
}

/// What `attend` writes of this trace, through its own recorder.
void write_trace(const AtlasTrace& trace, const std::string& path) {
  Work work;
  work.chunks = trace.chunks();
  for (std::int64_t c = 0; c < trace.chunks(); ++c)
    work.memory_entries += static_cast<std::int64_t>(trace.set(c, 0).size());
  const std::int64_t heads = trace.heads();
  Shape shape;
  shape.n_head = heads;
  shape.capacity = trace.n;
  EffectiveOptions effective;
  effective.local = trace.memory;
  Recorder recorder(shape, effective, work, true);
  std::vector<float> tokens;
  for (std::int64_t c = 0; c < trace.chunks(); ++c) {
    const std::int64_t length = trace.end(c) - trace.begin(c);
    ChunkRecord record;
    record.chunk = {trace.begin(c), trace.end(c), ChunkMode::sparse};
    record.memory_count = record.memory_stride = static_cast<std::int64_t>(trace.set(c, 0).size());
    // Sets of all heads lie one after the other in a trace as they do in a record.
    const auto first = static_cast<std::size_t>(trace.set_start[static_cast<std::size_t>(c * heads)]);
    record.memory = trace.positions.data() + first;
    record.colsum_inter = trace.colsum_inter.data() + first;
    record.row_stride = length;
    tokens.resize(static_cast<std::size_t>(heads * length));
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t t = 0; t < length; ++t) {
        tokens[static_cast<std::size_t>(h * length + t)] =
            static_cast<float>(h * trace.n + trace.begin(c) + t);
      }
    }
    record.lse = record.colsum_intra = tokens.data();
    recorder.record(record);
  }
  const auto size = [](std::int64_t value) { return static_cast<std::uint64_t>(value); };
  OutputLayout layout;
  layout.add_metadata("format", "headwater-attend-1");
  layout.add_metadata("local", std::to_string(trace.local));
  layout.add("lse", TensorType::f32, {size(trace.n), size(heads)});
  layout.add("colsum_intra", TensorType::f32, {size(heads), size(trace.n)});
  layout.add("chunk_start", TensorType::i32, {size(trace.chunks() + 1)});
  layout.add("memory", TensorType::i32, {size(trace.chunks()), size(heads), size(trace.memory)});
  layout.add("colsum_inter", TensorType::f32, {size(trace.chunks()), size(heads), size(trace.memory)});
  layout.add("scores", TensorType::bf16, {size(heads), size(trace.n)});
  layout.close();
  OutputFile file(path, nullptr);
  file.write_at(0, std::as_bytes(std::span(layout.header())));
  recorder.write(file, layout);
  std::vector<std::uint16_t> scores;
  for (const float score : trace.scores) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &score, sizeof bits);
    scores.push_back(static_cast<std::uint16_t>(bits >> 16));
  }
  file.write_at(layout.offset("scores"), std::as_bytes(std::span(scores)));
  file.commit();
}

// Forty heads, 70000 tokens and 600000 entries of sets, through a file and back: several buffers of 2^18 entries.
TEST(AtlasSizes, AFileOfFortyHeadsComesBack) {
  const AtlasTrace trace = made_trace(70000, 500, 40, 108, 16);
  ASSERT_GT(trace.positions.size(), 2 * (std::size_t{1} << 18));
  const Folder folder;
  write_trace(trace, folder.path("out.safetensors"));
  const runtime::MappedFile file(folder.path("out.safetensors"));
  const AtlasTrace read = read_atlas_trace(file, {});
  EXPECT_EQ(read.n, trace.n);
  EXPECT_EQ(read.chunk_start, trace.chunk_start);
  EXPECT_EQ(read.head_numbers, trace.head_numbers);
  EXPECT_TRUE(read.positions == trace.positions);
  EXPECT_TRUE(read.colsum_inter == trace.colsum_inter);
  EXPECT_TRUE(read.set_start == trace.set_start);
  EXPECT_TRUE(read.scores == trace.scores);
  // A choice of heads is those heads.
  const AtlasTrace some = read_atlas_trace(file, {3, 33, 39});
  for (std::int64_t c = 0; c < trace.chunks(); ++c) {
    for (std::int64_t h = 0; h < 3; ++h) {
      const auto wanted = trace.set(c, some.head_numbers[static_cast<std::size_t>(h)]);
      const auto got = some.set(c, h);
      ASSERT_TRUE(std::equal(wanted.begin(), wanted.end(), got.begin(), got.end())) << c << ", " << h;
    }
  }
  // What a token and a head have each.
  const SafetensorsHeader header = parse_safetensors(file.bytes());
  const auto at = [&](const char* name, std::int64_t i) {
    float value = 0;
    std::memcpy(&value, file.bytes().data() + header.tensors.at(name).begin + 4 * i, sizeof value);
    return static_cast<std::int64_t>(value);
  };
  for (std::int64_t h = 0; h < trace.heads(); ++h) {
    for (std::int64_t t = 0; t < trace.n; t += 499) {
      ASSERT_EQ(at("lse", t * trace.heads() + h), h * trace.n + t);
      ASSERT_EQ(at("colsum_intra", h * trace.n + t), h * trace.n + t);
    }
  }
}

// Sets of 800 query blocks of twenty key/value heads, of which the last ones of a chunk have fewer rows, with a decode step
// between two turns: through a file and back, and what is counted of them.
TEST(AtlasSizes, AFileOfRuleBlocksComesBack) {
  constexpr std::int64_t kHeads = 40, kKv = 20, kFirst = 59950, kTokens = 66451, kRows = 96;
  EffectiveOptions effective;
  effective.batch = 1 << 20, effective.chunk = 1000, effective.local = 50, effective.heavy = 256;
  effective.sparse = true;
  effective.select = Select::blocks;
  effective.key_block = 256, effective.query_block = kRows, effective.pool = 4, effective.refine = 2;
  const Work work = measure(parse_steps("p59950,d1,p6500"), effective);
  Shape shape;
  shape.n_head = kHeads;
  shape.n_head_kv = kKv;
  shape.capacity = kTokens;
  Recorder recorder(shape, effective, work, true);
  std::mt19937 random(3);
  struct Row {
    std::int64_t begin, end, chunk;
    bool dense;
    std::vector<std::vector<std::int32_t>> sets;  // of each key/value head
  };
  std::vector<Row> rows;
  std::vector<float> votes(static_cast<std::size_t>(kKv * 11 * (kTokens / 256 + 512)));
  const std::vector<float> tokens(static_cast<std::size_t>(kHeads * effective.chunk));
  for (std::int64_t begin = 0, end = 0; begin < kTokens; begin = end) {
    const bool decode = begin == kFirst;
    end = decode ? begin + 1 : std::min(begin + effective.chunk, begin < kFirst ? kFirst : kTokens);
    ChunkRecord record;
    record.chunk = {begin, end, decode ? ChunkMode::decode : ChunkMode::sparse};
    record.row_stride = end - begin;
    record.lse = record.colsum_intra = tokens.data();
    std::vector<std::int32_t> memory;
    if (decode) {
      rows.push_back({begin, end, begin, true, std::vector<std::vector<std::int32_t>>(kKv)});
    } else {
      record.memory_count = record.memory_stride = effective.memory_count(begin);
      record.query_blocks = effective.query_blocks(end - begin);
      record.candidate_blocks = effective.candidate_blocks(begin);
      record.voted_tokens = effective.voted_tokens(begin);
      const std::size_t first = rows.size();
      for (std::int64_t at = begin; at < end; at += kRows)
        rows.push_back({at, std::min(at + kRows, end), begin, false, {}});
      const std::int64_t local = effective.local_begin(begin);
      for (std::int64_t g = 0; g < kKv; ++g) {
        for (std::size_t b = first; b < rows.size(); ++b) {
          std::set<std::int32_t> set;
          for (std::int64_t t = local; t < begin; ++t) set.insert(static_cast<std::int32_t>(t));
          while (static_cast<std::int64_t>(set.size()) < record.memory_count) {
            set.insert(static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(local)));
          }
          rows[b].sets.emplace_back(set.begin(), set.end());
          memory.insert(memory.end(), set.begin(), set.end());
        }
      }
      record.memory = memory.data();
      record.block_votes = record.token_votes = votes.data();
    }
    recorder.record(record);
  }
  OutputLayout layout;
  layout.add_metadata("format", "headwater-attend-1");
  for (const auto& [key, value] : {std::pair{"select", "blocks"}, {"key_block", "256"}, {"local", "50"}}) {
    layout.add_metadata(key, value);
  }
  constexpr std::uint64_t kN = kTokens, kH = kHeads;
  layout.add("lse", TensorType::f32, {kN, kH});
  layout.add("colsum_intra", TensorType::f32, {kH, kN});
  layout.add("chunk_start", TensorType::i32, {static_cast<std::uint64_t>(work.chunks + 1)});
  BlockTrace::lay_out(layout, kKv, effective, work);
  layout.add("scores", TensorType::bf16, {kH, kN});
  layout.close();
  const Folder folder;
  {
    OutputFile file(folder.path("blocks"), nullptr);
    file.write_at(0, std::as_bytes(std::span(layout.header())));
    recorder.write(file, layout);
    const std::uint16_t zero = 0;
    file.write_at(layout.offset("scores") + 2 * (kN * kH - 1), std::as_bytes(std::span(&zero, 1)));
    file.commit();
  }
  const runtime::MappedFile file(folder.path("blocks"));
  for (const std::vector<std::int64_t>& heads : {std::vector<std::int64_t>{}, {0, 7, 19}}) {
    const AtlasTrace read = read_atlas_trace(file, heads);
    EXPECT_EQ(read.heads(), heads.empty() ? kKv : 3);
    EXPECT_EQ(read.heads_in_file, kKv);
    ASSERT_EQ(read.chunks(), static_cast<std::int64_t>(rows.size()));
    for (std::int64_t h = 0; h < read.heads(); ++h) {
      const auto head = static_cast<std::size_t>(read.head_numbers[static_cast<std::size_t>(h)]);
      PairCounts wanted;
      for (std::size_t r = 0; r < rows.size(); ++r) {
        const Row& row = rows[r];
        const auto c = static_cast<std::int64_t>(r);
        ASSERT_EQ(read.begin(c), row.begin);
        ASSERT_EQ(read.end(c), row.end);
        ASSERT_EQ(read.own_begin(c), row.chunk);
        ASSERT_EQ(read.dense(c, h), row.dense);
        // Whole key blocks stand before it.
        const std::int64_t local =
            std::min(row.chunk, (std::max<std::int64_t>(0, row.chunk - 50) + 255) / 256 * 256);
        ASSERT_EQ(read.local_begin(c), local);
        const auto set = read.set(c, h);
        ASSERT_TRUE(std::equal(set.begin(), set.end(), row.sets[head].begin(), row.sets[head].end()))
            << c << ", " << head;
        for (std::int64_t t = row.begin; t < row.end; ++t) {
          wanted.own += static_cast<std::uint64_t>(t - row.chunk + 1);
          if (row.dense) wanted.dense += static_cast<std::uint64_t>(row.chunk);
          for (const std::int32_t position : row.sets[head])
            ++(position >= local ? wanted.local : wanted.heavy);
        }
      }
      const PairCounts pairs = count_pairs(read, h);
      EXPECT_EQ(pairs.own, wanted.own);
      EXPECT_EQ(pairs.local, wanted.local);
      EXPECT_EQ(pairs.heavy, wanted.heavy);
      EXPECT_EQ(pairs.dense, wanted.dense);
    }
  }
}

// Scores of F32 keep all their bits, in the page too.
TEST(AtlasSizes, ScoresOfF32) {
  AtlasTrace trace = made_trace(70000, 700, 2, 16, 4);
  trace.narrow_scores = false;
  for (std::size_t i = 0; i < trace.scores.size(); ++i) trace.scores[i] += static_cast<float>(i) * 0x1p-16F;
  const auto scores = data_of(atlas_page(trace, "title"), "scores");
  ASSERT_EQ(scores.size(), 4 * trace.scores.size());
  EXPECT_EQ(std::memcmp(scores.data(), trace.scores.data(), scores.size()), 0);
}

}  // namespace
}  // namespace headwater::cli::testing
