// save() and load() of state.hpp: a session as a safetensors file.

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "headwater/detail/option_table.hpp"
#include "headwater/state.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater {

namespace {

using nlohmann::json;

constexpr std::uint64_t kLengthBytes = 8;  // of the header, in front of it
constexpr std::uint64_t kMostHeaderBytes = std::uint64_t{16} << 20;
constexpr std::uint64_t kDataAlignment = 64;
constexpr int kMostDepth = 3;  // brackets of a header inside each other
constexpr std::size_t kMostFingerprint = 1024;
constexpr const char* kVersion = "1";

/// Printable, on one line, not too long: what stands in a file is shown, not believed.
std::string in_quotes(std::string_view text) {
  constexpr std::size_t kShown = 80;
  std::string result = "'";
  for (const char c : text.substr(0, kShown)) result += c >= ' ' && c <= '~' ? c : '?';
  return result + (text.size() > kShown ? "...'" : "'");
}

[[noreturn]] void refuse(const std::string& message) { throw Error(ErrorCode::invalid_argument, message); }

class File {
 public:
  File(int number, std::string path) : path_(std::move(path)), number_(number) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (number_ >= 0) ::close(number_);
  }
  [[nodiscard]] int number() const { return number_; }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[noreturn]] void fail(const char* what, int error) const {
    throw Error(ErrorCode::internal, "file " + in_quotes(path_) + " " + what + ": " + std::strerror(error) +
                                         "; allowed: a file that can be");
  }
  void close() {
    if (::close(std::exchange(number_, -1)) != 0) fail("cannot be written", errno);
  }

  /// All bytes of the pieces from (`reads`: into them) a place of the file.
  void transfer(std::uint64_t offset, std::span<const StateArchive::Piece> pieces, bool reads) const {
    constexpr std::size_t kMostParts = 256;
    std::array<iovec, kMostParts> parts{};
    std::size_t done = 0;  // pieces, and bytes of the next one
    std::int64_t begin = 0;
    while (done < pieces.size()) {
      const std::size_t count = std::min(kMostParts, pieces.size() - done);
      for (std::size_t i = 0; i < count; ++i) {
        const std::int64_t skipped = i == 0 ? begin : 0;
        parts[i] = {static_cast<char*>(pieces[done + i].data) + skipped,
                    static_cast<std::size_t>(pieces[done + i].bytes - skipped)};
      }
      std::int64_t wanted = 0;
      for (std::size_t i = 0; i < count; ++i) wanted += static_cast<std::int64_t>(parts[i].iov_len);
      std::int64_t moved = 0;
      if (wanted > 0) {
        const auto at = static_cast<off_t>(offset);
        const auto number = static_cast<int>(count);
        moved = reads ? ::preadv(number_, parts.data(), number, at)
                      : ::pwritev(number_, parts.data(), number, at);
        if (moved < 0 && errno == EINTR) continue;
        if (moved < 0) fail(reads ? "cannot be read" : "cannot be written", errno);
        if (moved == 0) fail(reads ? "became shorter" : "cannot be written", reads ? EIO : ENOSPC);
      }
      offset += static_cast<std::uint64_t>(moved);
      moved += begin;
      begin = 0;
      const std::size_t stop = done + count;
      while (done < stop && moved >= pieces[done].bytes) moved -= pieces[done++].bytes;
      if (done < stop) begin = moved;
    }
  }

 private:
  std::string path_;
  int number_;
};

struct ElementInfo {
  const char* name;
  std::int64_t bytes;
};

ElementInfo info(StateArchive::Element type) {
  switch (type) {
    case StateArchive::Element::f32: return {"F32", 4};
    case StateArchive::Element::f16: return {"F16", 2};
    case StateArchive::Element::bf16: return {"BF16", 2};
    case StateArchive::Element::i32: return {"I32", 4};
    case StateArchive::Element::u8: return {"U8", 1};
  }
  throw Error(ErrorCode::internal, "a session names an unknown type of elements; allowed: f32 .. u8");
}
constexpr ElementInfo kNumbers{"I64", 8};

struct Tensor {
  std::string type;
  std::vector<std::int64_t> dims;
  std::uint64_t begin = 0;  // bytes of the data
  std::uint64_t end = 0;
};

/// Of what a session hands over, which cannot be larger than its memory.
std::uint64_t byte_count(ElementInfo element, std::span<const std::int64_t> dims,
                         std::span<const StateArchive::Piece> pieces) {
  std::int64_t bytes = element.bytes;
  for (const std::int64_t dim : dims) bytes *= dim;
  std::int64_t sum = 0;
  for (const StateArchive::Piece& piece : pieces) sum += piece.bytes;
  if (sum != bytes) {
    throw Error(ErrorCode::internal, "pieces of an array have " + std::to_string(sum) +
                                         " bytes; allowed: those of its dimensions, " +
                                         std::to_string(bytes));
  }
  return static_cast<std::uint64_t>(bytes);
}

/// What all that write or read a session have in common: numbers are arrays of 64-bit integers.
class FileArchive : public StateArchive {
 public:
  void array(std::string_view name, Element type, std::span<const std::int64_t> dims,
             std::span<const Piece> pieces) final {
    tensor(name, info(type), dims, pieces);
  }

 protected:
  virtual void tensor(std::string_view name, ElementInfo element, std::span<const std::int64_t> dims,
                      std::span<const Piece> pieces) = 0;
  void whole(std::string_view name, std::vector<std::int64_t>& values) {
    const auto size = static_cast<std::int64_t>(values.size());
    const Piece piece{values.data(), size * kNumbers.bytes};
    tensor(name, kNumbers, std::span(&size, 1), std::span(&piece, 1));
  }
};

class Giver : public FileArchive {
 public:
  [[nodiscard]] bool loading() const final { return false; }
  void numbers(std::string_view name, std::vector<std::int64_t>& values, std::int64_t /*most*/) final {
    whole(name, values);
  }
};

/// First pass of save(): the header.
class Sizes final : public Giver {
 public:
  json header = json::object();
  std::uint64_t bytes = 0;

 private:
  void tensor(std::string_view name, ElementInfo element, std::span<const std::int64_t> dims,
              std::span<const Piece> pieces) override {
    const std::uint64_t begin = bytes;
    bytes += byte_count(element, dims, pieces);
    header[std::string(name)] = {{"dtype", element.name},
                                 {"shape", std::vector<std::int64_t>(dims.begin(), dims.end())},
                                 {"data_offsets", {begin, bytes}}};
  }
};

/// Second pass: the data.
class Writer final : public Giver {
 public:
  Writer(const File& file, std::uint64_t begin) : at(begin), file_(file) {}
  std::uint64_t at;

 private:
  void tensor(std::string_view /*name*/, ElementInfo element, std::span<const std::int64_t> dims,
              std::span<const Piece> pieces) override {
    file_.transfer(at, pieces, false);
    at += byte_count(element, dims, pieces);
  }
  const File& file_;
};

class Reader final : public FileArchive {
 public:
  Reader(const File& file, std::uint64_t data, std::map<std::string, Tensor, std::less<>> tensors)
      : file_(file), data_(data), tensors_(std::move(tensors)) {}

  [[nodiscard]] bool loading() const override { return true; }
  void numbers(std::string_view name, std::vector<std::int64_t>& values, std::int64_t most) override {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) missing(name);
    const Tensor& tensor = found->second;
    if (tensor.type != kNumbers.name || tensor.dims.size() != 1 || tensor.dims[0] > most) {
      refuse(std::string(name) + " is " + text(tensor.type, tensor.dims) + "; allowed: I64 [0 .. " +
             std::to_string(most) + "]");
    }
    // No more than the file has: its offsets were held against its length, its dimensions against the offsets.
    values.resize(static_cast<std::size_t>(tensor.dims[0]));
    whole(name, values);
  }
  void require_all_read() const {
    if (tensors_.empty()) return;
    refuse("tensor " + in_quotes(tensors_.begin()->first) +
           " is none of such a session; allowed: those it has");
  }

 private:
  [[noreturn]] static void missing(std::string_view name) {
    refuse("tensor " + in_quotes(name) + " is missing; allowed: a file that has all of the session");
  }
  static std::string text(std::string_view type, std::span<const std::int64_t> dims) {
    std::string result = in_quotes(type) + " [";
    for (std::size_t i = 0; i < dims.size(); ++i) {
      if (i > 0) result += ", ";
      result += std::to_string(dims[i]);
    }
    return result + "]";
  }
  void tensor(std::string_view name, ElementInfo element, std::span<const std::int64_t> dims,
              std::span<const Piece> pieces) override {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) missing(name);
    const Tensor& tensor = found->second;
    if (tensor.type != element.name || !std::ranges::equal(tensor.dims, dims)) {
      refuse("tensor " + in_quotes(name) + " is " + text(tensor.type, tensor.dims) +
             "; allowed: " + text(element.name, dims));
    }
    if (byte_count(element, dims, pieces) != tensor.end - tensor.begin) {
      refuse("tensor " + in_quotes(name) + " has " + std::to_string(tensor.end - tensor.begin) +
             " bytes; allowed: those of its shape");
    }
    file_.transfer(data_ + tensor.begin, pieces, true);
    tensors_.erase(found);
  }

  const File& file_;
  std::uint64_t data_;
  std::map<std::string, Tensor, std::less<>> tensors_;
};

template <class Number>
std::string text(Number value) {
  std::array<char, 64> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  return {digits.data(), end};
}

/// All that must be the same where a session is loaded (STATE-12), as texts.
std::map<std::string, std::string> metadata(const Session& session, std::string_view fingerprint) {
  const Shape& shape = session.shape();
  const EffectiveOptions& options = session.options();
  std::string dense_layers;
  for (const std::int64_t layer : options.dense_layers) {
    if (!dense_layers.empty()) dense_layers += ',';
    dense_layers += std::to_string(layer);
  }
  std::string layers;
  const auto own = [](const std::optional<double>& value) { return value ? text(*value) : std::string("-"); };
  for (std::size_t l = 0; l < options.layers.size(); ++l) {
    const LayerOptions& layer = options.layers[l];
    layers += std::to_string(layer.window);
    layers += ',';
    layers += own(layer.scale);
    layers += ',';
    layers += own(layer.softcap);
    layers += layer.sinks ? "," : ",-";
    for (const float sink : layer.sinks.value_or(std::vector<float>())) {
      layers += text(static_cast<double>(sink));
      layers += ' ';
    }
    const Shape sizes = options.shape_of(shape, static_cast<std::int64_t>(l));
    for (const auto& [name, width, of_shape] : {std::tuple{",key ", sizes.d_head, shape.d_head},
                                                std::tuple{",value ", sizes.d_value, shape.d_value}}) {
      if (width == of_shape || HEADWATER_SABOTAGE("bindings.file.widths_unchecked")) continue;
      layers += name;
      layers += std::to_string(width);
    }
    layers += ';';
  }
  const auto type = static_cast<int>(shape.kv_type);
  std::map<std::string, std::string> texts{
      {"fingerprint", std::string(fingerprint)},
      {"shape.n_layer", std::to_string(shape.n_layer)},
      {"shape.n_head", std::to_string(shape.n_head)},
      {"shape.n_head_kv", std::to_string(shape.n_head_kv)},
      {"shape.d_head", std::to_string(shape.d_head)},
      {"shape.d_value", std::to_string(shape.d_value)},
      {"shape.kv_type", type == 0   ? "F32"
                        : type == 1 ? "F16"
                                    : "BF16"},
      {"options.select", options.select == Select::h2o      ? "h2o"
                         : options.select == Select::blocks ? "blocks"
                                                            : "sketches"},
      {"options.dense_layers", dense_layers},
      {"options.layers", layers},
      {"options.scale", text(options.scale)},
      {"options.softcap", text(options.softcap)},
      {"options.score_type", options.score_type == ScoreType::bf16 ? "BF16" : "F32"},
      {"options.kv_owner", options.kv_owner == KvOwner::session ? "session" : "caller"}};
  detail::for_each_option([&](const auto& option) {
    if (option.part != detail::Part::store)
      texts["options." + std::string(option.name)] = text(options.*option.effective);
  });
  // Files of the other rules have no word of it, as when there was no other.
  if (options.select != Select::sketches) texts.erase("options.least_weight");
  if (options.kv_bits == 0) texts.erase("options.kv_bits");
  return texts;
}

void require_path(const std::string& path) {
  if (path.empty() || path.find('\0') != std::string::npos) {
    refuse("path is " + in_quotes(path) + "; allowed: the name of a file");
  }
}

void require_fingerprint(std::string_view text) {
  const bool printable = std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
  if (text.size() <= kMostFingerprint && printable) return;
  refuse("fingerprint is " + in_quotes(text) + " of " + std::to_string(text.size()) +
         " bytes; allowed: at most 1024 of printable ASCII");
}

/// A file under another name beside its target, gone unless it was given its own.
class Temporary {
 public:
  explicit Temporary(const std::string& path)
      : name_(path + ".XXXXXX"), file_(::mkostemp(name_.data(), O_CLOEXEC), path) {
    if (file_.number() < 0) file_.fail("cannot be created", errno);
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  ~Temporary() {
    if (!kept_) ::unlink(name_.c_str());
  }
  [[nodiscard]] const File& file() const { return file_; }
  void keep() {
    file_.close();
    if (::rename(name_.c_str(), file_.path().c_str()) != 0) file_.fail("cannot be replaced", errno);
    kept_ = true;
  }

 private:
  std::string name_;
  File file_;
  bool kept_ = false;
};

json parse(const std::string& text) {
  std::set<std::string> keys[kMostDepth];
  const auto event = [&](int depth, json::parse_event_t what, json& parsed) {
    const bool opens = what == json::parse_event_t::object_start || what == json::parse_event_t::array_start;
    if (opens && depth >= kMostDepth) refuse("header nests deeper than a session's; allowed: 3 levels");
    if (what == json::parse_event_t::object_start) keys[depth].clear();
    if (what == json::parse_event_t::key &&
        !keys[depth - 1].insert(parsed.get_ref<const std::string&>()).second) {
      refuse("header has " + in_quotes(parsed.get_ref<const std::string&>()) + " twice; allowed: once");
    }
    return true;
  };
  json header = json::parse(text, event, false);
  if (!header.is_object()) refuse("header is no JSON object; allowed: a file that save() wrote");
  return header;
}

std::vector<std::int64_t> whole_numbers(const json& tensor, const char* key, const std::string& name) {
  const auto found = tensor.find(key);
  if (found == tensor.end() || !found->is_array()) {
    refuse("tensor " + in_quotes(name) + " has no list " + key + "; allowed: whole numbers");
  }
  std::vector<std::int64_t> values;
  for (const json& value : *found) {
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > INT64_MAX) {
      refuse("tensor " + in_quotes(name) + ": " + key + " has what is no size; allowed: 0 .. 2^63 - 1");
    }
    values.push_back(value.get<std::int64_t>());
  }
  return values;
}

/// The tensors of a header, which cover `bytes` bytes of data without overlap or hole.
std::map<std::string, Tensor, std::less<>> tensors_of(const json& header, std::uint64_t bytes) {
  std::map<std::string, Tensor, std::less<>> tensors;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") continue;
    if (!value.is_object() || value.size() != 3 || !value.contains("dtype") || !value["dtype"].is_string()) {
      refuse("tensor " + in_quotes(name) + " is no tensor; allowed: dtype, shape and data_offsets");
    }
    const std::vector<std::int64_t> offsets = whole_numbers(value, "data_offsets", name);
    if (offsets.size() != 2 || offsets[0] > offsets[1] || static_cast<std::uint64_t>(offsets[1]) > bytes) {
      refuse("tensor " + in_quotes(name) + ": data_offsets are outside the file; allowed: two within " +
             std::to_string(bytes) + " bytes");
    }
    Tensor tensor{value["dtype"].get<std::string>(), whole_numbers(value, "shape", name),
                  static_cast<std::uint64_t>(offsets[0]), static_cast<std::uint64_t>(offsets[1])};
    if (tensor.type == kNumbers.name && tensor.dims.size() == 1 &&
        static_cast<std::uint64_t>(tensor.dims[0]) != (tensor.end - tensor.begin) / 8) {
      refuse("tensor " + in_quotes(name) + " has " + std::to_string(tensor.dims[0]) +
             " numbers; allowed: as many as its bytes hold");
    }
    ranges.emplace_back(tensor.begin, tensor.end);
    tensors.emplace(name, std::move(tensor));
  }
  std::ranges::sort(ranges);
  std::uint64_t covered = 0;
  for (const auto& [begin, end] : ranges) {
    if (begin != covered) {
      refuse("a tensor begins at byte " + std::to_string(begin) +
             " of the data; allowed: " + std::to_string(covered) + ", without overlap or hole");
    }
    covered = end;
  }
  if (covered != bytes) {
    refuse("data has " + std::to_string(bytes) + " bytes; allowed: those of the tensors, " +
           std::to_string(covered));
  }
  return tensors;
}

void require_text(const json& texts, const std::string& key, const std::string& asked) {
  const auto found = texts.find(key);
  if (found == texts.end() || !found->is_string()) refuse(key + " is missing; allowed: " + in_quotes(asked));
  const auto& stands = found->get_ref<const std::string&>();
  if (stands == asked || HEADWATER_SABOTAGE("bindings.load.options_believed")) return;
  refuse(key + " is " + in_quotes(stands) + " in the file; allowed: " + in_quotes(asked) +
         ", which was asked for");
}

/// Bytes of the header, which lies in the file.
std::uint64_t header_length(const File& file, std::uint64_t size) {
  std::uint64_t length = 0;
  if (size < kLengthBytes) refuse("has " + std::to_string(size) + " bytes; allowed: a safetensors file");
  const StateArchive::Piece piece{&length, kLengthBytes};
  file.transfer(0, std::span(&piece, 1), true);
  const std::uint64_t most = std::min(kMostHeaderBytes, size - kLengthBytes);
  if (length > most) {
    refuse("has a header of " + std::to_string(length) + " bytes; allowed: at most " + std::to_string(most));
  }
  return length;
}

std::unique_ptr<Session> read_session(const Engine& engine, const Shape& shape, const Options& options,
                                      const File& file, std::string_view fingerprint) {
  struct stat status {};
  if (::fstat(file.number(), &status) != 0) file.fail("cannot be read", errno);
  if (!S_ISREG(status.st_mode)) refuse("is no regular file; allowed: a file that save() wrote");
  const auto size = static_cast<std::uint64_t>(status.st_size);
  std::string text(header_length(file, size), '\0');
  const StateArchive::Piece piece{text.data(), static_cast<std::int64_t>(text.size())};
  file.transfer(kLengthBytes, std::span(&piece, 1), true);
  const json header = parse(text);
  const auto found = header.find("__metadata__");
  if (found == header.end() || !found->is_object()) {
    refuse("__metadata__ is missing; allowed: a file that save() wrote");
  }
  require_text(*found, "format", "headwater-session");
  require_text(*found, "version", kVersion);
  const std::uint64_t data = kLengthBytes + text.size();
  auto tensors = tensors_of(header, size - data);
  std::unique_ptr<Session> session = engine.open(shape, options);
  for (const auto& [key, asked] : metadata(*session, fingerprint)) require_text(*found, key, asked);
  if (session->options().kv_bits == 0 && found->contains("options.kv_bits"))
    require_text(*found, "options.kv_bits", "0");
  Reader reader(file, data, std::move(tensors));
  session->exchange_state(reader);
  reader.require_all_read();
  return session;
}

/// No exception but Error leaves.
template <class Body>
auto guarded(const Body& body) {
  try {
    return body();
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw Error(ErrorCode::out_of_memory,
                "no memory for a session's file; allowed: what the machine can hold");
  } catch (const std::exception& error) {
    throw Error(ErrorCode::internal, "session file: " + in_quotes(error.what()) + "; allowed: none such");
  }
}

}  // namespace

void save(Session& session, const std::string& path, std::string_view fingerprint) {
  guarded([&] {
    require_path(path);
    require_fingerprint(fingerprint);
    struct stat status {};
    if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
      refuse("path is " + in_quotes(path) + ", no regular file; allowed: a new name, or a file to replace");
    }
    Sizes sizes;
    session.exchange_state(sizes);
    json texts = metadata(session, fingerprint);
    texts["format"] = "headwater-session";
    texts["version"] = kVersion;
    sizes.header["__metadata__"] = std::move(texts);
    std::string text = sizes.header.dump();
    const std::uint64_t rest = (kLengthBytes + text.size()) % kDataAlignment;
    if (rest != 0) text.append(kDataAlignment - rest, ' ');
    std::uint64_t length = text.size();
    if (length > kMostHeaderBytes) {
      throw Error(ErrorCode::unsupported, "header has " + std::to_string(length) +
                                              " bytes; allowed: " + std::to_string(kMostHeaderBytes));
    }
    Temporary temporary(path);
    const StateArchive::Piece front[] = {{&length, kLengthBytes},
                                         {text.data(), static_cast<std::int64_t>(length)}};
    temporary.file().transfer(0, front, false);
    Writer writer(temporary.file(), kLengthBytes + length);
    session.exchange_state(writer);
    temporary.keep();
  });
}

std::unique_ptr<Session> load(const Engine& engine, const Shape& shape, const Options& options,
                              const std::string& path, std::string_view fingerprint) {
  return guarded([&] {
    require_path(path);
    require_fingerprint(fingerprint);
    // Does not wait for the other end of a FIFO.
    const File file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC), path);
    if (file.number() < 0) {
      if (errno == ENOENT || errno == ENOTDIR)
        refuse("file " + in_quotes(path) + " does not exist; allowed: one that does");
      file.fail("cannot be read", errno);
    }
    try {
      return read_session(engine, shape, options, file, fingerprint);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::invalid_argument) throw;
      throw Error(error.code(), "file " + in_quotes(path) + ": " + error.what());
    }
  });
}

}  // namespace headwater
