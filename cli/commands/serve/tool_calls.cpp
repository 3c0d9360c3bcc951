#include "cli/commands/serve/tool_calls.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace headwater::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kOpen = "<tool_call>";
constexpr std::string_view kClose = "</tool_call>";
constexpr std::string_view kBlank = " \t\r\n";

}  // namespace

std::string ToolReader::push(std::string_view more) {
  held_ += more;
  if (!began_) {
    // All of it may become a call.
    const std::size_t first = held_.find_first_not_of(kBlank);
    if (first == std::string::npos || held_[first] == '{' || held_[first] == '[') return {};
    began_ = true;
  }
  std::size_t certain = held_.find(kOpen);
  if (certain == std::string::npos) {
    certain = held_.size();
    for (std::size_t n = std::min(kOpen.size() - 1, held_.size()); n > 0; --n) {
      if (!held_.ends_with(kOpen.substr(0, n))) continue;
      certain -= n;
      break;
    }
  }
  std::string text = held_.substr(0, certain);
  held_.erase(0, certain);
  return text;
}

std::string ToolReader::finish() {
  std::string text;
  if (!began_ && read(held_)) return text;
  std::string_view rest = held_;
  while (!rest.empty()) {
    const std::size_t begin = std::min(rest.find(kOpen), rest.size());
    text += rest.substr(0, begin);
    rest.remove_prefix(begin);
    if (rest.empty()) break;
    // The end of a text may end a call, too.
    const std::size_t end = std::min(rest.find(kClose), rest.size());
    if (!read(rest.substr(kOpen.size(), end - kOpen.size()))) text += rest.substr(0, end + kClose.size());
    rest.remove_prefix(std::min(rest.size(), end + kClose.size()));
  }
  // Between calls there are line ends.
  if (!calls_.empty()) text.erase(text.find_last_not_of(kBlank) + 1);
  return text;
}

bool ToolReader::read(std::string_view text) {
  constexpr std::size_t kMostBytes = std::size_t{1} << 20U;
  constexpr std::size_t kMostCalls = 128;
  if (text.size() > kMostBytes) return false;
  Json json = Json::parse(text, nullptr, false);
  if (json.is_object()) json = Json::array({json});
  if (!json.is_array() || json.empty() || json.size() > kMostCalls) return false;
  std::vector<ToolCall> calls;
  for (const Json& one : json) {
    if (!one.is_object() || !one.contains("name") || !one["name"].is_string()) return false;
    const std::string name = one["name"].get<std::string>();
    const char* const key = one.contains("arguments") ? "arguments" : "parameters";
    const bool known = std::find(names_.begin(), names_.end(), name) != names_.end();
    if (!known || !one.contains(key) || !one[key].is_object()) return false;
    calls.push_back({name, one[key].dump(-1, ' ', false, Json::error_handler_t::replace)});
  }
  calls_.insert(calls_.end(), calls.begin(), calls.end());
  return true;
}

}  // namespace headwater::cli
