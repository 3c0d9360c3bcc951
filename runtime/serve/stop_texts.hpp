#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headwater::runtime {

/// Ends an answer before the first of some texts that is complete, whatever pieces it comes in. What may be the beginning of one is
/// held back.
class StopTexts {
 public:
  explicit StopTexts(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  /// What of the answer so far, `more` its end, is certain and was not returned before.
  [[nodiscard]] std::string push(std::string_view more) {
    held_ += more;
    std::size_t at = std::string::npos;
    std::size_t end = std::string::npos;
    for (const std::string& stop : stops_) {
      const std::size_t begin = held_.find(stop);
      if (begin == std::string::npos || std::pair(begin + stop.size(), begin) >= std::pair(end, at)) continue;
      at = begin;
      end = begin + stop.size();
    }
    found_ = at != std::string::npos;
    std::string text = held_.substr(0, found_ ? at : held_.size() - longest_begin());
    held_.erase(0, found_ ? held_.size() : text.size());
    return text;
  }
  /// What was held back.
  [[nodiscard]] std::string finish() { return std::exchange(held_, {}); }
  /// Whether one of the texts came; nothing is pushed after it.
  [[nodiscard]] bool found() const { return found_; }

 private:
  /// Bytes at the end of what is held that a stop text begins with.
  [[nodiscard]] std::size_t longest_begin() const {
    std::size_t longest = 0;
    for (const std::string& stop : stops_) {
      for (std::size_t n = std::min(stop.size() - 1, held_.size()); n > longest; --n) {
        if (held_.ends_with(std::string_view(stop).substr(0, n))) longest = n;
      }
    }
    return longest;
  }

  std::vector<std::string> stops_;
  std::string held_;
  bool found_ = false;
};

}  // namespace headwater::runtime
