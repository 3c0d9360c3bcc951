#include "cli/support/prompt.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

#include "cli/support/failure.hpp"
#include "cli/support/text.hpp"
#include "runtime/support/utf8.hpp"

namespace headwater::cli {
namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 30;

/// Closes what was opened.
class Descriptor {
 public:
  explicit Descriptor(int fd, bool owned) : fd_(fd), owned_(owned) {}
  ~Descriptor() {
    if (owned_ && fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int get() const { return fd_; }

 private:
  int fd_;
  bool owned_;
};

/// What editors and other systems put around a text.
std::string as_prompt(std::string text, LastLineEnd end) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text.starts_with(kByteOrderMark)) text.erase(0, kByteOrderMark.size());
  std::size_t length = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r' && i + 1 < text.size() && text[i + 1] == '\n') continue;
    text[length++] = text[i];
  }
  text.resize(length);
  if (end == LastLineEnd::dropped && text.ends_with('\n')) text.pop_back();
  return text;
}

}  // namespace

std::string read_text(const char* flag, const std::string& path, LastLineEnd end) {
  const bool standard = path == "-";
  const auto fail = [&](const std::string& what) {
    throw Failure(fmt::format("{}: {} {}", flag, standard ? "standard input" : in_quotes(path), what));
  };
  const Descriptor file(standard ? STDIN_FILENO : ::open(path.c_str(), O_RDONLY | O_CLOEXEC), !standard);
  if (file.get() < 0) fail(fmt::format("cannot be opened: {}", std::strerror(errno)));
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail(fmt::format("cannot be read: {}", std::strerror(errno)));
  if (S_ISDIR(status.st_mode)) fail("is a directory; allowed: a text file, or - for standard input");
  std::string text;
  std::string part(std::size_t{1} << 16, '\0');
  while (true) {
    const ssize_t got = ::read(file.get(), part.data(), part.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(fmt::format("cannot be read: {}", std::strerror(errno)));
    if (got == 0) return as_prompt(std::move(text), end);
    text.append(part, 0, static_cast<std::size_t>(got));
    if (text.size() > kMostBytes) fail(fmt::format("is larger than {} bytes", kMostBytes));
  }
}

std::string unescaped(std::string_view text) {
  constexpr std::string_view kLetters = "nrt'\"\\";
  constexpr std::string_view kMeanings = "\n\r\t'\"\\";
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::string_view rest = text.substr(i + 1);
    if (text[i] != '\\' || rest.empty()) {
      result += text[i];
      continue;
    }
    unsigned byte = 0;
    if (const auto letter = kLetters.find(rest[0]); letter != std::string_view::npos) {
      result += kMeanings[letter];
      i += 1;
    } else if (rest.size() >= 3 && rest[0] == 'x' &&
               std::from_chars(&rest[1], &rest[1] + 2, byte, 16).ptr == &rest[1] + 2) {
      result += static_cast<char>(byte);
      i += 3;
    } else {
      result += text[i];
    }
  }
  return result;
}

void check_text(std::string_view flag, std::string_view text, const runtime::Tokenizer& tokenizer,
                std::vector<std::string>& warnings) {
  if (const auto at = runtime::first_ill_formed_utf8(text)) {
    warnings.push_back(
        fmt::format("{}: byte {} is not UTF-8; it, and what else is not, is read as U+FFFD", flag, *at));
  }
  if (const auto at = tokenizer.first_without_token(text)) {
    warnings.push_back(
        fmt::format("{}: the character at byte {} has no token in the model's vocabulary; it, and what else "
                    "has none, is left out",
                    flag, *at));
  }
}

void check_bos(std::string_view flag, std::span<const std::int32_t> ids, const runtime::Tokenizer& tokenizer,
               std::vector<std::string>& warnings) {
  if (!tokenizer.adds_bos() || ids.size() < 2 || ids[0] != tokenizer.bos() || ids[1] != ids[0]) return;
  warnings.push_back(fmt::format(
      "{}: the text begins with {}, which the model puts in front of every text: it is there twice; "
      "--no-bos leaves out the model's",
      flag, in_quotes(tokenizer.piece(ids[0]))));
}

}  // namespace headwater::cli
