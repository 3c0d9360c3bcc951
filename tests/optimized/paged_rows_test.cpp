// Rows in pages: what is written stays, whoever forks, truncates and writes on.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "core/paged_rows.hpp"

namespace headwater::core {
namespace {

constexpr std::int64_t kRuns = 3;
constexpr std::int64_t kRowBytes = 8;

/// Rows beside what they must hold.
struct Checked {
  PagedRows rows;
  std::vector<std::uint64_t> values[kRuns];

  [[nodiscard]] std::int64_t size() const { return std::ssize(values[0]); }

  void write(std::int64_t n, std::uint64_t& next) {
    rows.reserve(size(), size() + n);
    for (std::int64_t run = 0; run < kRuns; ++run) rows.make_room(run, run + 1, size(), size() + n);
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t at = size();
      for (std::int64_t run = 0; run < kRuns; ++run) {
        std::memcpy(rows.row(run, at), &++next, kRowBytes);
        values[run].push_back(next);
      }
    }
  }

  void truncate(std::int64_t n) {
    for (auto& run : values) run.resize(static_cast<std::size_t>(n));
    if (n == 0) rows.clear();
  }

  void require_kept(const char* after) const {
    for (std::int64_t run = 0; run < kRuns; ++run) {
      std::int64_t left = 0;  // rows that still follow each other
      for (std::int64_t at = 0; at < size(); ++at) {
        std::uint64_t value = 0;
        std::memcpy(&value, rows.row(run, at), kRowBytes);
        ASSERT_EQ(value, values[run][static_cast<std::size_t>(at)])
            << after << ": run " << run << " row " << at;
        if (left > 0) {
          ASSERT_EQ(rows.row(run, at), rows.row(run, at - 1) + kRowBytes);
        } else {
          left = rows.together(at, size() - at);
          ASSERT_GE(left, 1);
        }
        --left;
      }
    }
  }
};

TEST(PagedRows, P1_1_RowsAreKeptOverForksAndTruncations) {
  for (const std::int64_t page : {256, 512, 4096}) {
    std::mt19937_64 random(static_cast<std::uint64_t>(page));
    const auto below = [&](std::int64_t n) {
      return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
    };
    constexpr std::int64_t kMost = 2611;
    std::vector<Checked> all;
    all.push_back({PagedRows(kRuns, kMost, kRowBytes, page, 32), {}});
    std::uint64_t next = 0;
    for (int round = 0; round < 300; ++round) {
      Checked& one = all[static_cast<std::size_t>(below(std::ssize(all)))];
      const char* what = "write";
      switch (below(6)) {
        case 0:
          if (all.size() < 6) {
            what = "fork";
            const std::int64_t n = one.size();
            all.push_back({one.rows.fork(n), {one.values[0], one.values[1], one.values[2]}});
            break;
          }
          what = "close";
          all.erase(all.begin() + below(std::ssize(all)));
          break;
        case 1:
          what = "truncate";
          one.truncate(below(one.size() + 1));
          break;
        case 2:
          what = "truncate by a few";
          one.truncate(std::max<std::int64_t>(0, one.size() - below(4)));
          break;
        default: one.write(std::min(kMost - one.size(), below(3) == 0 ? 1 + below(700) : 1 + below(3)), next);
      }
      for (const Checked& each : all) ASSERT_NO_FATAL_FAILURE(each.require_kept(what)) << "round " << round;
    }
  }
}

// The group that is begun, and no more, is copied; whole groups are shared.
TEST(PagedRows, P1_1_AForkSharesWholeGroups) {
  for (const std::int64_t size : {255, 256, 257, 511, 512, 513, 4096, 5000}) {
    std::uint64_t next = 0;
    Checked parent{PagedRows(kRuns, 9000, kRowBytes, 4096, 32), {}};
    parent.write(size, next);
    const unsigned char* first = parent.rows.row(1, 0);
    Checked child{parent.rows.fork(size), {parent.values[0], parent.values[1], parent.values[2]}};
    child.write(1, next);
    parent.write(1, next);
    const std::int64_t shared = size / 256 * 256;
    for (std::int64_t at = 0; at < size; ++at) {
      EXPECT_EQ(child.rows.row(1, at) == parent.rows.row(1, at), at < shared)
          << "row " << at << " of " << size;
    }
    if (shared > 0) {
      EXPECT_EQ(child.rows.row(1, 0), first);
    }
    child.require_kept("after both wrote");
    parent.require_kept("after both wrote");
  }
}

// Two sides of a fork in two threads; for the thread sanitizer.
TEST(PagedRows, P1_1_ForksWriteInTwoThreads) {
  std::uint64_t next = 0;
  Checked parent{PagedRows(kRuns, 2000, kRowBytes, 256, 32), {}};
  parent.write(700, next);
  Checked child{parent.rows.fork(700), {parent.values[0], parent.values[1], parent.values[2]}};
  const auto work = [](Checked& one, std::uint64_t from) {
    for (int i = 0; i < 50; ++i) one.write(7, from);
    one.require_kept("in a thread");
  };
  std::thread other([&] { work(child, 1u << 20); });
  work(parent, 1u << 21);
  other.join();
}

}  // namespace
}  // namespace headwater::core
