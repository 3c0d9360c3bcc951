#include "integrations/ggml/settings.hpp"

#include <charconv>

namespace headwater::ggml {
namespace {

/// Room for the newest tokens and as many others.
constexpr std::int64_t kLeastMemory = 2 * kLocal;
constexpr std::int64_t kMost = 1 << 20;

struct Field {
  std::string_view name;
  std::int64_t least, most;
  void (*set)(Settings&, std::int64_t);
};

constexpr Field kFields[] = {
    {"memory", kLeastMemory, kMost, [](Settings& s, std::int64_t v) { s.memory = v; }},
    {"pinned", 0, kMost, [](Settings& s, std::int64_t v) { s.pinned = v; }},
    {"chunk", 32, kMost, [](Settings& s, std::int64_t v) { s.chunk = v; }},
    {"dense_below", 0, INT32_MAX, [](Settings& s, std::int64_t v) { s.dense_below = v; }},
    {"dense_tail", 0, kMost, [](Settings& s, std::int64_t v) { s.dense_tail = v; }},
    {"every_tail", 0, 1, [](Settings& s, std::int64_t v) { s.every_tail = v != 0; }},
    {"dense", 0, 1, [](Settings& s, std::int64_t v) { s.dense = v != 0; }},
    {"threads", 0, 512, [](Settings& s, std::int64_t v) { s.threads = static_cast<int>(v); }},
    {"quiet", 0, 1, [](Settings& s, std::int64_t v) { s.quiet = v != 0; }},
};

/// The whole text as one number, or false.
template <class Number>
bool number_of(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

/// Null where the item was taken, else what is allowed.
std::string set(Settings& settings, std::string_view name, std::string_view value) {
  if (name == "least_weight") {
    double weight = 0;
    if (!number_of(value, weight) || !(weight >= 0 && weight < 1)) return "0 <= least_weight < 1";
    settings.least_weight = weight;
    return {};
  }
  std::string names;
  for (const Field& field : kFields) {
    names.append(field.name).append(", ");
    if (name != field.name) continue;
    std::int64_t number = 0;
    if (!number_of(value, number) || number < field.least || number > field.most) {
      return std::to_string(field.least) + " .. " + std::to_string(field.most);
    }
    field.set(settings, number);
    return {};
  }
  return names + "least_weight, each as name=value";
}

}  // namespace

bool parse_settings(std::string_view text, Settings& settings, std::string& why) {
  Settings read;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(item.size() < rest.size() ? item.size() + 1 : item.size());
    const std::size_t equals = item.find('=');
    const std::string_view value = equals == std::string_view::npos ? "" : item.substr(equals + 1);
    const std::string allowed = set(read, item.substr(0, equals), value);
    if (allowed.empty()) continue;
    why = "HEADWATER_GGML: '" + std::string(item.substr(0, 64)) + "'; allowed: " + allowed;
    for (char& c : why) c = c < ' ' || c > '~' ? '?' : c;  // one line, whatever the environment holds
    return false;
  }
  if (read.pinned > read.memory - kLocal) {
    why = "HEADWATER_GGML: pinned is " + std::to_string(read.pinned) + "; allowed: 0 .. memory - " +
          std::to_string(kLocal) + " = " + std::to_string(read.memory - kLocal);
    return false;
  }
  settings = read;
  return true;
}

}  // namespace headwater::ggml
