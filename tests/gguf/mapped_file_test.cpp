// A mapped file is the one that its path names, and only whole pages are given back.

#include "runtime/support/mapped_file.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace headwater::runtime::testing {
namespace {

TEST(MappedFile, IsTheFileOfItsPath) {
  const std::string path = FIXTURES "/types.gguf";
  struct stat status {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  MappedFile file(path);
  const std::byte* const data = file.bytes().data();
  const MappedFile moved(std::move(file));
  EXPECT_EQ(moved.path(), path);
  EXPECT_EQ(moved.bytes().data(), data);
  EXPECT_EQ(moved.bytes().size(), static_cast<std::size_t>(status.st_size));
  EXPECT_EQ(moved.device(), status.st_dev);
  EXPECT_EQ(moved.inode(), status.st_ino);
  EXPECT_EQ(std::memcmp(moved.bytes().data(), "GGUF", 4), 0);
}

// Pages of no file come back as zeros, which shows what was released.
TEST(MappedFile, ReleasesThePagesWhollyInside) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t all = 4 * page;
  void* const memory = ::mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* const bytes = static_cast<std::byte*>(memory);
  const std::pair<std::size_t, std::size_t> ranges[] = {
      {0, page},      {page, 2 * page}, {0, all},      {1, all - 1},         {page - 1, 2 * page},
      {1, page},      {5, 2 * page},    {0, page - 1}, {page, 2 * page - 1}, {page + 1, 3 * page},
      {3 * page, all}};
  for (const auto& [begin, end] : ranges) {
    std::fill_n(bytes, all, std::byte{1});
    release_pages({bytes + begin, end - begin});
    for (std::size_t at = 0; at < all; at += page) {
      const bool inside = begin <= at && at + page <= end;
      const auto released = std::count(bytes + at, bytes + at + page, std::byte{0});
      EXPECT_EQ(static_cast<std::size_t>(released), inside ? page : 0)
          << begin << " .. " << end << ", " << at;
    }
  }
  ::munmap(memory, all);
}

}  // namespace
}  // namespace headwater::runtime::testing
