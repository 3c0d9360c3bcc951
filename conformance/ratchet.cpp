#include "conformance/ratchet.hpp"

#include <cmath>
#include <cstdio>
#include <fstream>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "conformance/embedded.hpp"
#include "headwater/error.hpp"

namespace headwater::conformance {
namespace {

// A run may be this much worse than the mark: what another libm, another compiler or another inlining moves.
constexpr double kSlack = 2.0;
// Marks below are results that were exact or nearly so; twice nothing would be nothing.
constexpr double kLeast = 1.0 / 64.0;

std::string key(const Mark& mark) { return mark.stage + " " + mark.dtype; }

}  // namespace

Ratchet Ratchet::built_in() { return parse(kRatchetJson, "the built-in ratchet.json"); }

Ratchet Ratchet::load(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) throw Error(ErrorCode::invalid_argument, path + ": cannot be read; allowed: a ratchet.json");
  return parse(text.str(), path);
}

Ratchet Ratchet::parse(const std::string& text, const std::string& from) {
  Ratchet ratchet;
  try {
    nlohmann::json::parse(text).get_to(ratchet.marks_);
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::invalid_argument, from + ": not a table of marks: " + error.what());
  }
  return ratchet;
}

std::optional<std::string> Ratchet::judge(const std::string& engine, const std::string& name,
                                          const std::vector<Mark>& marks) const {
  for (const Mark& mark : marks) {
    const auto by_engine = marks_.find(engine);
    if (by_engine == marks_.end()) {
      return fmt::format(
          "ratchet: no marks for {}; record them with --update-ratchet conformance/ratchet.json", engine);
    }
    const auto by_case = by_engine->second.find(name);
    if (by_case == by_engine->second.end() || by_case->second.count(key(mark)) == 0) {
      return fmt::format(
          "ratchet: no mark for {} {}; record it with --update-ratchet conformance/ratchet.json", engine,
          key(mark));
    }
    const double recorded = by_case->second.at(key(mark));
    const double allowed = std::max(kSlack * recorded, kLeast);
    if (!(mark.ratio <= allowed)) {
      return fmt::format("ratchet: worst err/B of {} is {:.3g}, more than {} times the recorded {:.3g}",
                         key(mark), mark.ratio, kSlack, recorded);
    }
  }
  return std::nullopt;
}

void Ratchet::record(const std::string& engine, const std::string& name, const std::vector<Mark>& marks) {
  auto& entry = marks_[engine][name];
  entry.clear();
  for (const Mark& mark : marks) entry[key(mark)] = std::stod(fmt::format("{:.3g}", mark.ratio));
}

void Ratchet::save(const std::string& path) const {
  const std::string temporary = path + ".tmp";
  {
    std::ofstream file(temporary, std::ios::binary);
    file << nlohmann::json(marks_).dump(1) << "\n";
    file.close();
    if (!file) {
      std::remove(temporary.c_str());
      throw Error(ErrorCode::invalid_argument, temporary + ": cannot be written; allowed: a writable folder");
    }
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    std::remove(temporary.c_str());
    throw Error(ErrorCode::invalid_argument, path + ": cannot be replaced; allowed: a writable file");
  }
}

}  // namespace headwater::conformance
