#include "runtime/serve/prefix_cache.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "headwater/detail/option_table.hpp"
#include "headwater/error.hpp"
#include "headwater/state.hpp"
#include "headwater/testing/sabotage.hpp"
#include "runtime/support/fnv.hpp"

namespace headwater::runtime {
namespace {

namespace fs = std::filesystem;

/// Fewer tokens are not worth a fork.
constexpr std::int64_t kLeastUse = 64;

/// An entry of which some other file lacks fewer tokens gets none.
constexpr std::int64_t kLeastWritten = 512;

// An entry NAME has two files: NAME.rows, by headwater::save(), and NAME.ids, written after it, which makes it an entry.
constexpr const char* kRows = ".rows";
constexpr const char* kIds = ".ids";
// slot-NAME: the entry that was saved by this name.
constexpr const char* kSaved = "slot-";
constexpr std::size_t kNameLength = 16;  // of hexadecimal digits
constexpr std::array<char, 8> kMagic = {'H', 'W', 'P', 'R', 'E', 'F', '2', '\n'};

/// What a file of ids begins with; the ids follow, then FNV-1a of all before it.
struct IdsHead {
  std::array<char, 8> magic = kMagic;
  std::int64_t count = 0;
  std::int64_t exact_tokens = 0;
  std::int64_t memory = -1;  ///< of its rule; -1: the server's
  std::int32_t select = -1;  ///< the same
  std::int32_t dense = 0;
  std::int64_t sparse_turn = 0;

  [[nodiscard]] bool sound() const {
    return magic == kMagic && exact_tokens >= 0 && exact_tokens <= count && memory >= -1 && select >= -1 &&
           select <= static_cast<std::int32_t>(Select::sketches);
  }
  [[nodiscard]] PromptRule rule() const {
    PromptRule rule;
    rule.dense = dense != 0;
    if (select >= 0) rule.select = static_cast<Select>(select);
    if (memory >= 0) rule.memory = memory;
    return rule;
  }
};

std::int64_t common_length(std::span<const std::int32_t> a, std::span<const std::int32_t> b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

bool begins_with(std::span<const std::int32_t> ids, std::span<const std::int32_t> begin) {
  return common_length(ids, begin) == std::ssize(begin);
}

/// What rows depend on beside the model: a file of other options is left alone like that of another model.
std::string options_text(const Transformer& transformer) {
  const EffectiveOptions& options = transformer.options();
  std::string text;
  const auto add = [&](const auto& option) { text += fmt::format("{} ", options.*option.effective); };
  detail::for_each_option(detail::Part::plan, add);
  text += fmt::format("{} ", static_cast<int>(options.select));
  detail::for_each_option(detail::Part::size, add);
  detail::for_each_option(detail::Part::exact, add);
  return text + fmt::format("{} {} {}", fmt::join(options.dense_layers, ","),
                            static_cast<int>(options.score_type),
                            static_cast<int>(transformer.session().shape().kv_type));
}

/// Whether a name in the directory can be one of ours: digits, then `.rows` or `.ids`, then what a temporary file has.
bool is_own(const std::string& name) {
  const std::size_t digits = name.find_first_not_of("0123456789abcdef");
  if (digits != kNameLength) return false;
  const std::string end = name.substr(digits);
  return end.starts_with(kRows) || end.starts_with(kIds);
}

}  // namespace

void PageList::grow(std::int64_t tokens) {
  if (tokens <= tokens_) return;
  // A page that is shared and not full is copied before it is written.
  const bool copied = tokens_ % page_ != 0 && pages_.back().use_count() > 1;
  if (copied && !HEADWATER_SABOTAGE("runtime.prefix.copied_page_not_counted"))
    pages_.back() = std::make_shared<Page>(count_);
  while (std::ssize(pages_) * page_ < tokens) pages_.push_back(std::make_shared<Page>(count_));
  tokens_ = tokens;
}

PageList PageList::fork(std::int64_t tokens) const {
  PageList other(count_, page_);
  const std::int64_t pages = std::min<std::int64_t>((tokens + page_ - 1) / page_, std::ssize(pages_));
  other.pages_.assign(pages_.begin(), pages_.begin() + pages);
  other.tokens_ = std::min(tokens, tokens_);
  return other;
}

PrefixCache::PrefixCache(const Transformer& transformer, Options options)
    : transformer_(transformer),
      options_(std::move(options)),
      page_(transformer.options().page),
      pages_(std::make_shared<std::int64_t>(0)) {
  const std::string text =
      HEADWATER_SABOTAGE("runtime.prefix.options_not_named") ? std::string() : options_text(transformer);
  options_.fingerprint += fmt::format(", options {:016x}", fnv1a(std::as_bytes(std::span(text))));
  if (!options_.directory.empty()) read_directory();
}

PrefixCache::~PrefixCache() {
  if (lock_ >= 0) ::close(lock_);
}

PrefixCache::Use PrefixCache::use_of(std::span<const std::int32_t> ids, const Origin& origin,
                                     const Wanted& wanted) const {
  if (origin.rule != wanted.rule || origin.sparse_turn != wanted.sparse_turn) return {};
  // The last token goes in anew: its logits are wanted.
  const auto most = std::ssize(wanted.ids) - 1;
  const std::int64_t common = std::min<std::int64_t>(common_length(ids, wanted.ids), most);
  if (whole_only(wanted.rule) && !HEADWATER_SABOTAGE("runtime.prefix.h2o_cut_inside")) {
    const bool whole = common == std::ssize(ids) && common >= kLeastUse && !wanted.exact;
    return whole ? Use{common, false} : Use{};
  }
  std::int64_t exact = std::min({common, origin.exact_tokens, wanted.prefill});
  if (!HEADWATER_SABOTAGE("runtime.prefix.exact_inside_a_chunk")) exact -= exact % wanted.chunk;
  if (wanted.exact || common < exact + kLeastUse) return {exact, true};
  return {common, false};
}

PrefixCache::Place PrefixCache::best(const Wanted& wanted, Use& use) {
  Place found = entries_.end();
  use = {};
  for (Place entry = entries_.begin(); entry != entries_.end(); ++entry) {
    const Use one = use_of(entry->ids, entry->origin, wanted);
    const bool equal = one.tokens == use.tokens && found != entries_.end();
    const bool exactness =
        one.exact != use.exact && !HEADWATER_SABOTAGE("runtime.prefix.exact_after_another");
    const bool sooner = exactness ? one.exact : equal && entry->prefix && !found->prefix;
    if (one.tokens > use.tokens || (equal && sooner)) {
      use = one;
      found = entry;
    }
  }
  return found;
}

PrefixCache::Use PrefixCache::find(const Wanted& wanted) {
  Use use;
  (void)best(wanted, use);
  return use;
}

std::unique_ptr<Prefix> PrefixCache::fork(Session& session, std::span<const std::int32_t> ids,
                                          const PageList& pages, Origin origin, Use use) {
  std::unique_ptr<Session> other = session.fork();
  if (use.tokens < other->tokens()) other->truncate(use.tokens);
  const auto kept = ids.first(static_cast<std::size_t>(use.tokens));
  origin.exact_tokens = std::min(origin.exact_tokens, use.tokens);
  return std::make_unique<Prefix>(
      Prefix{{kept.begin(), kept.end()}, std::move(other), pages.fork(use.tokens), origin});
}

void PrefixCache::load(Entry& entry) {
  if (entry.prefix) return;
  std::unique_ptr<Session> session =
      transformer_.load_session(path(entry.name, kRows), fingerprint_of(entry.name), entry.origin.rule);
  if (session->tokens() != std::ssize(entry.ids))
    throw Error(ErrorCode::invalid_argument, "its tokens are not as many as its rows");
  PageList pages(pages_, page_);
  pages.grow(session->tokens());
  entry.prefix =
      std::make_unique<Prefix>(Prefix{entry.ids, std::move(session), std::move(pages), entry.origin});
}

void PrefixCache::drop_damaged(Place entry, const Error& error) {
  if (error.code() == ErrorCode::out_of_memory) return;
  ++damaged_;
  warn(fmt::format("an entry of the cache cannot be read and is removed: {}", error.what()));
  remove_files(*entry);
  entries_.erase(entry);
}

std::unique_ptr<Prefix> PrefixCache::take(const Wanted& wanted, Use& use) {
  const Place entry = best(wanted, use);
  if (entry == entries_.end()) return nullptr;
  try {
    load(*entry);
    Prefix& whole = *entry->prefix;
    std::unique_ptr<Prefix> prefix = fork(*whole.session, whole.ids, whole.pages, whole.origin, use);
    entry->used = ++clock_;
    std::error_code error;
    if (!entry->name.empty())
      fs::last_write_time(path(entry->name, kIds), fs::file_time_type::clock::now(), error);
    return prefix;
  } catch (const Error& error) {
    drop_damaged(entry, error);
    return nullptr;
  }
}

/// Whether whoever can use the other entry can use one of these tokens as well.
bool PrefixCache::replaces(std::span<const std::int32_t> ids, const Origin& origin,
                           const Entry& other) const {
  return other.origin.rule == origin.rule && other.origin.sparse_turn == origin.sparse_turn &&
         other.origin.exact_tokens <= origin.exact_tokens && begins_with(ids, other.ids) &&
         (!whole_only(origin.rule) || other.ids.size() == ids.size());
}

bool PrefixCache::whole_only(const PromptRule& rule) const {
  const EffectiveOptions& options = transformer_.options();
  if (transformer_.model().config().recurrent_layers() > 0) return true;
  return options.sparse && !rule.dense && rule.select.value_or(options.select) == Select::h2o;
}

void PrefixCache::keep(Prefix prefix) {
  Entry kept;
  for (Place entry = entries_.begin(); entry != entries_.end();) {
    const bool within = replaces(prefix.ids, prefix.origin, *entry);
    if (within) entry->prefix.reset();
    // The file of the same tokens is that of the new entry; another one stays until the new entry has its own.
    const bool same = within && entry->ids.size() == prefix.ids.size() &&
                      entry->origin.exact_tokens == prefix.origin.exact_tokens;
    if (same && !entry->name.empty()) {
      kept.name = entry->name;
      kept.file_bytes = entry->file_bytes;
      kept.saved = entry->saved;
    }
    const bool gone = within && (same || entry->name.empty());
    entry = gone ? entries_.erase(entry) : std::next(entry);
  }
  Entry& entry = entries_.emplace_back(std::move(kept));
  entry.ids = prefix.ids;
  entry.origin = prefix.origin;
  entry.used = ++clock_;
  entry.prefix = std::make_unique<Prefix>(std::move(prefix));
  trim();
}

void PrefixCache::trim() {
  while (*pages_ * options_.page_bytes > options_.ram_bytes) {
    Place oldest = entries_.end();
    for (Place entry = entries_.begin(); entry != entries_.end(); ++entry) {
      if (entry->prefix && (oldest == entries_.end() || entry->used < oldest->used)) oldest = entry;
    }
    if (oldest == entries_.end()) return;
    if (!options_.directory.empty() && oldest->name.empty() && !covered(*oldest)) write(*oldest);
    oldest->prefix.reset();
    if (oldest->name.empty()) entries_.erase(oldest);
  }
}

void PrefixCache::save_all() {
  if (options_.directory.empty()) return;
  std::vector<Place> places;
  for (Place entry = entries_.begin(); entry != entries_.end(); ++entry) {
    if (entry->prefix && entry->name.empty()) places.push_back(entry);
  }
  // The newest last, since the oldest go where the limit is reached.
  std::sort(places.begin(), places.end(), [](Place a, Place b) { return a->used < b->used; });
  for (const Place entry : places) {
    if (!covered(*entry)) write(*entry);
  }
}

bool PrefixCache::covered(const Entry& entry) const {
  return std::any_of(entries_.begin(), entries_.end(), [&](const Entry& other) {
    return !other.name.empty() && other.origin.rule == entry.origin.rule &&
           other.origin.sparse_turn == entry.origin.sparse_turn && !whole_only(entry.origin.rule) &&
           other.origin.exact_tokens > entry.origin.exact_tokens - kLeastWritten &&
           common_length(other.ids, entry.ids) >=
               std::max(std::ssize(entry.ids) - kLeastWritten + 1, kLeastUse);
  });
}

PrefixCache::Place PrefixCache::with_ids(std::span<const std::int32_t> ids) {
  return std::find_if(entries_.begin(), entries_.end(),
                      [&](const Entry& entry) { return std::ranges::equal(entry.ids, ids); });
}

std::int64_t PrefixCache::save_as(std::span<const std::int32_t> ids, const std::string& name) {
  const Place entry = with_ids(ids);
  if (entry == entries_.end() || options_.directory.empty()) return -1;
  if (entry->name.empty()) write(*entry);
  if (entry->name.empty()) return -1;
  std::ofstream stream(path(kSaved + name, ""), std::ios::trunc);
  stream << entry->name;
  stream.close();
  entry->saved = true;
  return stream ? std::ssize(ids) : -1;
}

std::string PrefixCache::entry_of(const std::string& file) const {
  std::string name(kNameLength, ' ');
  std::ifstream stream(path(file, ""));
  return stream.read(name.data(), kNameLength) ? name : std::string(" ");
}

std::int64_t PrefixCache::restore(const std::string& name) {
  if (options_.directory.empty()) return -1;
  const std::string wanted = entry_of(kSaved + name);
  const Place entry =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& one) { return one.name == wanted; });
  if (entry == entries_.end()) return -1;
  try {
    load(*entry);
  } catch (const Error& error) {
    drop_damaged(entry, error);
    return -1;
  }
  entry->used = ++clock_;
  return std::ssize(entry->ids);
}

void PrefixCache::erase(std::span<const std::int32_t> ids) {
  // Dense and sparse, there may be two.
  for (Place entry = with_ids(ids); entry != entries_.end(); entry = with_ids(ids)) {
    remove_files(*entry);
    entries_.erase(entry);
  }
}

PrefixCache::Facts PrefixCache::facts() const {
  Facts facts;
  facts.entries = std::ssize(entries_);
  facts.rows_bytes = *pages_ * options_.page_bytes;
  for (const Entry& entry : entries_) facts.files_bytes += entry.file_bytes;
  facts.damaged = damaged_;
  return facts;
}

std::vector<std::string> PrefixCache::take_warnings() { return std::exchange(warnings_, {}); }

void PrefixCache::warn(std::string line) {
  constexpr std::size_t kMost = 64;  // that nobody has taken
  if (warnings_.size() < kMost) warnings_.push_back(std::move(line));
}

std::string PrefixCache::path(const std::string& name, const char* end) const {
  return options_.directory + '/' + name + end;
}

std::string PrefixCache::fingerprint_of(const std::string& name) const {
  return options_.fingerprint + ", entry " + name;
}

/// Entries of another model and of another rule have other names.
std::string PrefixCache::name_of(std::span<const std::byte> id_bytes, const PromptRule& rule) const {
  const std::string of =
      fmt::format("{}, rule {} {} {}", options_.fingerprint, rule.dense,
                  rule.select ? static_cast<int>(*rule.select) : -1, rule.memory.value_or(-1));
  return fmt::format("{:016x}", fnv1a(id_bytes, fnv1a(std::as_bytes(std::span(of)))));
}

void PrefixCache::read_directory() {
  const auto refuse = [&](const char* what) {
    if (lock_ >= 0) ::close(lock_);
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the cache directory '{}' cannot be used: {}; allowed: a directory of one server "
                            "that can be written",
                            options_.directory, what));
  };
  std::error_code error;
  fs::create_directories(options_.directory, error);
  if (error) refuse(error.message().c_str());
  lock_ = ::open(path("lock", "").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (lock_ < 0) refuse(std::strerror(errno));
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) refuse("another server uses it");
  std::vector<std::pair<fs::file_time_type, std::string>> names;
  std::vector<std::string> others;
  std::vector<std::string> saved;
  for (fs::directory_iterator file(options_.directory, error), end; !error && file != end;
       file.increment(error)) {
    const std::string name = file->path().filename().string();
    if (name.starts_with(kSaved)) saved.push_back(entry_of(name));
    if (!is_own(name)) continue;
    if (name.ends_with(kIds) && name.size() == kNameLength + std::strlen(kIds)) {
      names.emplace_back(file->last_write_time(error), name.substr(0, kNameLength));
    } else {
      others.push_back(name);
    }
  }
  if (error) refuse(error.message().c_str());
  std::sort(names.begin(), names.end());
  for (const auto& [time, name] : names) {
    if (read_entry(name)) continue;
    ++damaged_;
    warn(fmt::format("the files of entry {} of the cache are damaged and are removed", name));
    Entry damaged;
    damaged.name = name;
    remove_files(damaged);
  }
  for (Entry& entry : entries_) {
    entry.saved = std::find(saved.begin(), saved.end(), entry.name) != saved.end();
  }
  // What a write left that did not come to its end.
  for (const std::string& name : others) {
    const std::string rows = name.substr(0, kNameLength) + kRows;
    const bool entry = name == rows && fs::exists(path(name.substr(0, kNameLength), kIds), error);
    if (!entry) fs::remove(path(name, ""), error);
  }
  trim_files(nullptr);
}

/// Whether the files are whole; of an entry of another model nothing is believed, and it stays.
bool PrefixCache::read_entry(const std::string& name) {
  std::error_code error;
  const auto bytes = static_cast<std::int64_t>(fs::file_size(path(name, kIds), error));
  const auto rows_bytes = static_cast<std::int64_t>(error ? 0 : fs::file_size(path(name, kRows), error));
  constexpr std::int64_t kFixed = sizeof(IdsHead) + sizeof(std::uint64_t);
  const std::int64_t capacity = transformer_.session().shape().capacity;
  constexpr std::int64_t kId = sizeof(std::int32_t);
  if (error || bytes < kFixed || (bytes - kFixed) % kId != 0) return false;
  if ((bytes - kFixed) / kId > (std::int64_t{1} << 31)) return false;
  std::vector<char> all(static_cast<std::size_t>(bytes));
  std::ifstream stream(path(name, kIds), std::ios::binary);
  if (!stream.read(all.data(), bytes)) return false;
  IdsHead head;
  std::memcpy(&head, all.data(), sizeof head);
  std::uint64_t hash = 0;
  std::memcpy(&hash, all.data() + bytes - static_cast<std::int64_t>(sizeof hash), sizeof hash);
  const auto hashed = std::as_bytes(std::span(all)).first(all.size() - sizeof hash);
  if (!head.sound() || hash != fnv1a(hashed) || head.count != (bytes - kFixed) / kId) return false;
  const auto id_bytes = hashed.subspan(sizeof head);
  if (name_of(id_bytes, head.rule()) != name || head.count > capacity) return true;
  Entry& entry = entries_.emplace_back();
  entry.ids.resize(static_cast<std::size_t>(head.count));
  std::memcpy(entry.ids.data(), id_bytes.data(), id_bytes.size());
  entry.origin = {head.rule(), head.sparse_turn != 0, head.exact_tokens};
  entry.name = name;
  entry.file_bytes = bytes + rows_bytes;
  entry.used = ++clock_;
  return true;
}

void PrefixCache::write(Entry& entry) {
  const auto id_bytes = std::as_bytes(std::span(entry.ids));
  IdsHead head;
  head.count = std::ssize(entry.ids);
  head.exact_tokens = entry.origin.exact_tokens;
  const PromptRule& rule = entry.origin.rule;
  head.dense = rule.dense ? 1 : 0;
  head.select = rule.select ? static_cast<std::int32_t>(*rule.select) : -1;
  head.memory = rule.memory.value_or(-1);
  head.sparse_turn = entry.origin.sparse_turn ? 1 : 0;
  const std::string name = name_of(id_bytes, rule);
  const std::string part = path(name, kIds) + ".part";
  // The files of this name are replaced, whosever they are.
  for (Place other = entries_.begin(); other != entries_.end();) {
    const bool same = &*other != &entry && other->name == name;
    if (same) {
      other->name.clear();
      other->file_bytes = 0;
    }
    other = same && !other->prefix ? entries_.erase(other) : std::next(other);
  }
  try {
    // Once its ids are gone an older entry of this name is none, whatever becomes of its rows.
    std::error_code error;
    fs::remove(path(name, kIds), error);
    save(*entry.prefix->session, path(name, kRows), fingerprint_of(name));
    if (HEADWATER_SABOTAGE("runtime.prefix.ids_of_no_rows")) fs::resize_file(path(name, kRows), 1000, error);
    const auto head_bytes = std::as_bytes(std::span(&head, 1));
    const std::uint64_t hash = fnv1a(id_bytes, fnv1a(head_bytes));
    std::ofstream stream(part, std::ios::binary | std::ios::trunc);
    fs::permissions(part, fs::perms::owner_read | fs::perms::owner_write,
                    error);  // as save() has it: it is text of users
    for (const auto bytes : {head_bytes, id_bytes, std::as_bytes(std::span(&hash, 1))}) {
      stream.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    }
    stream.close();
    if (!stream) throw Error(ErrorCode::internal, fmt::format("'{}' cannot be written", part));
    fs::rename(part, path(name, kIds), error);
    if (error) throw Error(ErrorCode::internal, fmt::format("'{}': {}", part, error.message()));
    entry.name = name;
    entry.file_bytes = static_cast<std::int64_t>(fs::file_size(path(name, kRows), error)) +
                       static_cast<std::int64_t>(sizeof head + id_bytes.size() + sizeof hash);
  } catch (const Error& failure) {
    warn(fmt::format("an entry of the cache cannot be written: {}", failure.what()));
    std::error_code error;
    for (const std::string& file : {part, path(name, kRows)}) fs::remove(file, error);
    return;
  }
  // Others do not go for one that cannot stay.
  if (entry.file_bytes > options_.disk_bytes &&
      !HEADWATER_SABOTAGE("runtime.prefix.all_go_for_a_large_one")) {
    remove_files(entry);
    return;
  }
  // Files of entries that this one goes on from.
  for (Place other = entries_.begin(); other != entries_.end();) {
    const bool within =
        &*other != &entry && !other->prefix && !other->saved && replaces(entry.ids, entry.origin, *other);
    if (within) remove_files(*other);
    other = within ? entries_.erase(other) : std::next(other);
  }
  trim_files(&entry);
}

void PrefixCache::remove_files(Entry& entry) {
  if (entry.name.empty()) return;
  std::error_code error;
  for (const char* end : {kIds, kRows}) fs::remove(path(entry.name, end), error);
  entry.name.clear();
  entry.file_bytes = 0;
}

/// The files that were not used for the longest time go; `kept` goes last.
void PrefixCache::trim_files(const Entry* kept) {
  while (facts().files_bytes > options_.disk_bytes) {
    Place oldest = entries_.end();
    for (Place entry = entries_.begin(); entry != entries_.end(); ++entry) {
      if (entry->name.empty()) continue;
      if (oldest == entries_.end() || &*oldest == kept || (&*entry != kept && entry->used < oldest->used)) {
        oldest = entry;
      }
    }
    if (oldest == entries_.end()) return;
    remove_files(*oldest);
    if (!oldest->prefix && &*oldest != kept) entries_.erase(oldest);
  }
}

}  // namespace headwater::runtime
