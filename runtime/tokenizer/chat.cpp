#include "runtime/tokenizer/chat.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "headwater/error.hpp"
#include "runtime/support/utf8.hpp"

namespace headwater::runtime {
namespace {

struct Markers {
  std::string_view name;
  std::string_view open;        ///< in front of the role
  std::string_view header_end;  ///< a token between role and text; empty: none
  std::string_view gap;         ///< text after the role (and header_end)
  std::string_view close;       ///< after the text
  std::string_view after;       ///< text after close
  bool trims;
  std::string_view bos;  ///< always in front; empty: as the file says
};

constexpr Markers kMarkers[] = {
    {"chatml", "<|im_start|>", "", "\n", "<|im_end|>", "\n", false, ""},
    {"llama3", "<|start_header_id|>", "<|end_header_id|>", "\n\n", "<|eot_id|>", "", true,
     "<|begin_of_text|>"},
};

const Markers& markers_of(ChatFormat format) { return kMarkers[static_cast<std::size_t>(format)]; }

// What Python's and Jinja's trim take away, in ASCII.
constexpr std::string_view kBlank = " \t\n\v\f\r";

std::string_view without_leading_blanks(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(kBlank), text.size()));
}

std::string_view without_trailing_blanks(std::string_view text) {
  return text.substr(0, text.find_last_not_of(kBlank) + 1);
}

class Writer {
 public:
  Writer(const Tokenizer& tokenizer, const Markers& markers) : tokenizer_(tokenizer), markers_(markers) {}

  void text(std::string_view text) {
    const std::vector<std::int32_t> more = tokenizer_.encode(text, false, false);
    ids_.insert(ids_.end(), more.begin(), more.end());
  }

  void marker(std::string_view text) {
    const std::optional<std::int32_t> id = tokenizer_.find_special(text);
    if (!id) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("chat format {}: the vocabulary has no token {}", markers_.name, quoted(text)));
    }
    ids_.push_back(*id);
  }

  void begin() {
    if (!markers_.bos.empty()) {
      marker(markers_.bos);
    } else if (tokenizer_.adds_bos()) {
      ids_.push_back(tokenizer_.bos());
    }
  }

  /// Role and text are one piece where no token stands between, so that words form across the gap as in training.
  void turn(std::string_view role, std::string_view content, std::string_view question = {}) {
    marker(markers_.open);
    std::string piece(role);
    if (!markers_.header_end.empty()) {
      text(piece);
      marker(markers_.header_end);
      piece.clear();
    }
    piece += markers_.gap;
    piece += content;
    text(piece);
    if (question.empty()) return;
    question_ = ids_.size();
    const std::vector<std::int32_t> more = tokenizer_.encode_more(question, false);
    ids_.insert(ids_.end(), more.begin(), more.end());
  }

  void end_turn() {
    marker(markers_.close);
    text(markers_.after);
  }

  [[nodiscard]] std::size_t question() const { return question_; }
  [[nodiscard]] std::vector<std::int32_t> take() { return std::move(ids_); }

 private:
  const Tokenizer& tokenizer_;
  const Markers& markers_;
  std::vector<std::int32_t> ids_;
  std::size_t question_ = 0;
};

}  // namespace

std::optional<ChatFormat> chat_format_named(std::string_view name) {
  for (const ChatFormat format : {ChatFormat::chatml, ChatFormat::llama3}) {
    if (markers_of(format).name == name) return format;
  }
  return std::nullopt;
}

std::optional<ChatFormat> chat_format_of(const Tokenizer& tokenizer) {
  for (const ChatFormat format : {ChatFormat::chatml, ChatFormat::llama3}) {
    const Markers& markers = markers_of(format);
    if (tokenizer.find_special(markers.open) && tokenizer.find_special(markers.close)) return format;
  }
  return std::nullopt;
}

std::string_view end_of_turn(ChatFormat format) { return markers_of(format).close; }

std::vector<std::int32_t> encode_chat(const Tokenizer& tokenizer, ChatFormat format,
                                      std::span<const ChatMessage> messages, bool first,
                                      std::size_t* question) {
  const Markers& markers = markers_of(format);
  Writer writer(tokenizer, markers);
  if (first) {
    writer.begin();
  } else {
    writer.text(markers.after);
  }
  for (const ChatMessage& message : messages) {
    if (message.role != "system" && message.role != "user" && message.role != "assistant") {
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("role {} is not known; allowed: system, user, assistant", quoted(message.role)));
    }
    std::string_view text = message.text;
    std::string_view follow_up = message.question;
    if (markers.trims) {
      text = without_leading_blanks(text);
      (follow_up.empty() ? text : follow_up) = without_trailing_blanks(follow_up.empty() ? text : follow_up);
    }
    writer.turn(message.role, text, follow_up);
    writer.end_turn();
  }
  writer.turn("assistant", "");
  if (question != nullptr) *question = writer.question();
  return writer.take();
}

}  // namespace headwater::runtime
