#include "conformance/waivers.hpp"

#include <fnmatch.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <utility>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "conformance/embedded.hpp"
#include "conformance/json_tree.hpp"
#include "conformance/text_file.hpp"
#include "headwater/error.hpp"

namespace headwater::conformance {
namespace {

constexpr std::size_t kLargestFile = std::size_t{1} << 20;
constexpr const char* kAllowed =
    R"({"waivers": [{"case": PATTERN, "engine": PATTERN, "reason": TEXT, "expires": "YYYY-MM-DD"}, ...]})";

bool matches(const std::string& pattern, const std::string& name) {
  return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

bool covers(const Waiver& waiver, const Result& result) {
  return matches(waiver.cases, result.test->name) && matches(waiver.engine, result.engine);
}

// A day that the calendar has, spelled with ten characters: two such texts compare like their days.
bool is_day(const std::string& text) {
  if (text.size() != 10 || text[4] != '-' || text[7] != '-') return false;
  for (const std::size_t digit : {0, 1, 2, 3, 5, 6, 8, 9}) {
    if (std::isdigit(static_cast<unsigned char>(text[digit])) == 0) return false;
  }
  const std::chrono::year_month_day day{
      std::chrono::year(std::stoi(text.substr(0, 4))),
      std::chrono::month(static_cast<unsigned>(std::stoi(text.substr(5, 2)))),
      std::chrono::day(static_cast<unsigned>(std::stoi(text.substr(8, 2))))};
  return day.ok();
}

class Reader {
 public:
  explicit Reader(std::string from) : from_(std::move(from)) {}

  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorCode::invalid_argument, fmt::format("{}: {}; allowed: {}", from_, what, kAllowed));
  }

  [[nodiscard]] Waiver waiver(const JsonTree& entry, std::size_t index) const {
    if (!entry.is(JsonTree::Kind::object)) refuse(fmt::format("waiver {} is no object", index));
    Waiver waiver;
    const std::vector<std::pair<const char*, std::string*>> fields{{"case", &waiver.cases},
                                                                   {"engine", &waiver.engine},
                                                                   {"reason", &waiver.reason},
                                                                   {"expires", &waiver.expires}};
    for (const auto& [key, value] : fields) {
      const JsonTree* found = entry.find(key);
      if (found == nullptr) refuse(fmt::format("waiver {} has no '{}'", index, key));
      if (!found->is(JsonTree::Kind::text)) refuse(fmt::format("'{}' of waiver {} is no text", key, index));
      *value = found->text;
      const bool printable = std::all_of(value->begin(), value->end(), [](char c) {
        const auto byte = static_cast<unsigned char>(c);
        return byte >= 0x20 && byte != 0x7f;
      });
      if (value->empty() || !printable) {
        refuse(fmt::format("'{}' of waiver {} is empty or more than one line", key, index));
      }
    }
    if (entry.keys.size() != fields.size()) {
      refuse(fmt::format("waiver {} has {} keys, not {}", index, entry.keys.size(), fields.size()));
    }
    if (!is_day(waiver.expires)) refuse(fmt::format("'expires' of waiver {} is no day", index));
    return waiver;
  }

 private:
  std::string from_;
};

}  // namespace

Waivers Waivers::built_in() { return parse(kWaiversJson, "the built-in waivers.json"); }

Waivers Waivers::load(const std::string& path) { return parse(read_text(path, kLargestFile), path); }

Waivers Waivers::parse(const std::string& text, const std::string& from) {
  const Reader reader(from);
  const JsonTree document = parse_json(text, from);
  const JsonTree* list = document.find("waivers");
  if (document.keys.size() != 1 || list == nullptr || !list->is(JsonTree::Kind::list)) {
    reader.refuse("not an object with the one list 'waivers'");
  }
  Waivers waivers;
  for (const JsonTree& entry : list->items) {
    waivers.list_.push_back(reader.waiver(entry, waivers.list_.size()));
  }
  return waivers;
}

std::vector<std::string> Waivers::apply(std::vector<Result>& results, const std::string& today) const {
  std::vector<std::string> problems;
  for (const Waiver& waiver : list_) {
    const auto complain = [&](const std::string& what) {
      problems.push_back(
          fmt::format("waiver of {} on {} {} ({})", waiver.cases, waiver.engine, what, waiver.reason));
    };
    if (waiver.expires < today) {
      complain("expired on " + waiver.expires);
      continue;
    }
    if (std::none_of(all_cases().begin(), all_cases().end(),
                     [&](const Case& test) { return matches(waiver.cases, test.name); })) {
      complain("is for no case that the kit has");
      continue;
    }
    bool in_scope = false;
    bool used = false;
    for (Result& result : results) {
      if (!covers(waiver, result)) continue;
      in_scope = true;
      // A failure that another waiver covers counts as a use of this one, too.
      used = used || is_failure(result.status) || result.status == Status::waived;
      if (!is_failure(result.status)) continue;
      result.status = Status::waived;
      result.waiver = fmt::format("{} (until {})", waiver.reason, waiver.expires);
    }
    if (in_scope && !used) complain("is unused: what it is for does not fail");
  }
  return problems;
}

std::string today() { return fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::chrono::system_clock::now())); }

}  // namespace headwater::conformance
