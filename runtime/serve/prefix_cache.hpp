#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "headwater/error.hpp"
#include "headwater/session.hpp"
#include "runtime/model/transformer.hpp"

namespace headwater::runtime {

/// The pages of rows that a session holds, by what the server did with it: pages that forks share are counted once.
class PageList {
 public:
  /// How many pages there are in all lists.
  using Count = std::shared_ptr<std::int64_t>;

  PageList(Count count, std::int64_t page) : count_(std::move(count)), page_(page) {}
  /// The session holds so many tokens: what it writes behind those of a fork lies in pages of its own.
  void grow(std::int64_t tokens);
  /// Those of a fork that keeps the first `tokens`.
  [[nodiscard]] PageList fork(std::int64_t tokens) const;

 private:
  struct Page {
    explicit Page(Count of) : count(std::move(of)) { ++*count; }
    Page(const Page&) = delete;
    Page& operator=(const Page&) = delete;
    ~Page() { --*count; }
    Count count;
  };
  Count count_;
  std::int64_t page_;
  std::int64_t tokens_ = 0;
  std::vector<std::shared_ptr<Page>> pages_;
};

/// How a session's rows came to be.
struct Origin {
  PromptRule rule;           ///< of its session
  bool sparse_turn = false;  ///< its first turn was sparse (STATE-3)
  /// So many of its first tokens have the bits that any prompt with these tokens, the same rule and `sparse_turn` gives them;
  /// whole chunks.
  std::int64_t exact_tokens = 0;
};

/// A session with what it holds.
struct Prefix {
  std::vector<std::int32_t> ids;
  std::unique_ptr<Session> session;
  PageList pages;
  Origin origin;
};

/// Sessions of earlier requests, for those that begin with the same tokens: in memory, the ones used last, and in files of a
/// directory, also after the program has ended. Used by one thread.
class PrefixCache {
 public:
  struct Options {
    std::int64_t page_bytes = 0;  ///< of a page of rows, all layers
    std::int64_t ram_bytes = 0;   ///< most of rows in memory, those of running requests among them
    std::string directory;        ///< empty: nothing is kept in files
    std::int64_t disk_bytes = 0;  ///< most of the files
    std::string fingerprint;      ///< of the model: printable ASCII, at most 900 bytes
  };

  /// Makes the directory where it is not there, takes it for this process alone, and reads what lies there. What is damaged or
  /// of another model is left out; damaged entries of this program are removed. Errors: invalid_argument, with the reason.
  PrefixCache(const Transformer& transformer, Options options);
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  /// A prompt that looks for a beginning.
  struct Wanted {
    std::span<const std::int32_t> ids;
    PromptRule rule;
    bool sparse_turn = false;
    std::int64_t prefill = 0;  ///< tokens before its dense tail
    std::int64_t chunk = 0;    ///< tokens of a chunk
    bool exact = false;        ///< only what has the bits of a cold run
  };
  /// How much of a prefix a prompt may use.
  struct Use {
    std::int64_t tokens = 0;
    bool exact = true;
  };
  [[nodiscard]] Use use_of(std::span<const std::int32_t> ids, const Origin& origin,
                           const Wanted& wanted) const;

  /// The best use of an entry.
  [[nodiscard]] Use find(const Wanted& wanted);
  /// A fork of an entry with so many tokens, from its file where it is not in memory, and which use that is; null where there is
  /// none, where the memory does not suffice, and where its file is damaged: then the entry is gone.
  [[nodiscard]] std::unique_ptr<Prefix> take(const Wanted& wanted, Use& use);
  /// A fork of any session, cut to what the prompt uses. Errors: those of Session::fork() and truncate().
  [[nodiscard]] static std::unique_ptr<Prefix> fork(Session& session, std::span<const std::int32_t> ids,
                                                    const PageList& pages, Origin origin, Use use);

  /// Keeps the session of a request that is done. Entries that it goes on from are no longer needed.
  void keep(Prefix prefix);
  /// Entries that were not used for the longest time leave the memory until its limit is kept.
  void trim();
  /// All entries into files, as far as their limit allows; of those that differ by less than 512 tokens one.
  void save_all();
  /// Writes the entry of these tokens, and remembers it by a name of letters, digits, '.', '_' and '-'. Its tokens; -1: there is
  /// no such entry, or it cannot be written.
  std::int64_t save_as(std::span<const std::int32_t> ids, const std::string& name);
  /// Brings what was saved by that name into memory. Its tokens; -1: there is nothing, or no longer.
  std::int64_t restore(const std::string& name);
  /// Drops the entry of these tokens, files too.
  void erase(std::span<const std::int32_t> ids);

  [[nodiscard]] const PageList::Count& pages() const { return pages_; }
  [[nodiscard]] std::int64_t page() const { return page_; }
  struct Facts {
    std::int64_t entries = 0;     ///< in memory or in files
    std::int64_t rows_bytes = 0;  ///< in memory, running requests among them
    std::int64_t files_bytes = 0;
    std::int64_t damaged = 0;  ///< files that could not be read
  };
  [[nodiscard]] Facts facts() const;
  /// What went wrong with files since the last call, a line each.
  [[nodiscard]] std::vector<std::string> take_warnings();

 private:
  struct Entry {
    std::vector<std::int32_t> ids;
    Origin origin;
    std::unique_ptr<Prefix> prefix;  // null: in its file only
    std::string name;                // of its files; empty: it has none
    std::int64_t file_bytes = 0;
    bool saved = false;      // by a name: its file goes only where the limit needs it
    std::uint64_t used = 0;  // counts up
  };
  using Place = std::list<Entry>::iterator;

  [[nodiscard]] Place with_ids(std::span<const std::int32_t> ids);
  /// Rule h2o (STATE-10), and models with recurrent layers: sessions can be used as they are only.
  [[nodiscard]] bool whole_only(const PromptRule& rule) const;
  [[nodiscard]] bool replaces(std::span<const std::int32_t> ids, const Origin& origin,
                              const Entry& other) const;
  /// Reads an entry's file into memory. Errors: those of Transformer::load_session().
  void load(Entry& entry);
  /// After an error of load(): the entry is gone, unless the memory did not suffice.
  void drop_damaged(Place entry, const Error& error);
  [[nodiscard]] Place best(const Wanted& wanted, Use& use);
  [[nodiscard]] std::string path(const std::string& name, const char* end) const;
  [[nodiscard]] std::string name_of(std::span<const std::byte> id_bytes, const PromptRule& rule) const;
  /// The name in a file that save_as() wrote; no entry's where there is none.
  [[nodiscard]] std::string entry_of(const std::string& file) const;
  [[nodiscard]] std::string fingerprint_of(const std::string& name) const;
  void read_directory();
  [[nodiscard]] bool read_entry(const std::string& name);
  /// Whether another file has nearly all of its tokens.
  [[nodiscard]] bool covered(const Entry& entry) const;
  void write(Entry& entry);
  void remove_files(Entry& entry);
  void trim_files(const Entry* kept);
  void warn(std::string line);

  const Transformer& transformer_;
  Options options_;
  std::int64_t page_;
  PageList::Count pages_;
  std::list<Entry> entries_;
  std::vector<std::string> warnings_;
  std::uint64_t clock_ = 0;
  std::int64_t damaged_ = 0;
  int lock_ = -1;  // the directory's
};

}  // namespace headwater::runtime
