#include "conformance/ratchet.hpp"

#include <cmath>
#include <cstdio>
#include <fstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "conformance/embedded.hpp"
#include "conformance/json_tree.hpp"
#include "conformance/text_file.hpp"
#include "headwater/error.hpp"

namespace headwater::conformance {
namespace {

// A run may be this much worse than the mark: what another libm, another compiler or another inlining moves.
constexpr double kSlack = 2.0;
// Marks below are results that were exact or nearly so; twice nothing would be nothing.
constexpr double kLeast = 1.0 / 64.0;
constexpr std::size_t kLargestFile = std::size_t{16} << 20;

std::string key(const Mark& mark) { return mark.stage + " " + mark.dtype; }

}  // namespace

Ratchet Ratchet::built_in() { return parse(kRatchetJson, "the built-in ratchet.json"); }

Ratchet Ratchet::load(const std::string& path) { return parse(read_text(path, kLargestFile), path); }

Ratchet Ratchet::parse(const std::string& text, const std::string& from) {
  const auto refuse = [&](const std::string& where) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: {}: not a table of marks; allowed: {{engine: {{case: {{stage: number}}}}}}",
                            from, where.empty() ? "the document" : where));
  };
  // Calls `each` with every key and item of an object.
  const auto for_each = [&](const JsonTree& tree, const std::string& where, const auto& each) {
    if (!tree.is(JsonTree::Kind::object)) refuse(where);
    for (std::size_t i = 0; i < tree.keys.size(); ++i) each(tree.keys[i], tree.items[i]);
  };
  Ratchet ratchet;
  for_each(parse_json(text, from), "", [&](const std::string& engine, const JsonTree& cases) {
    for_each(cases, engine, [&](const std::string& name, const JsonTree& marks) {
      for_each(marks, engine + " " + name, [&](const std::string& stage, const JsonTree& mark) {
        if (!mark.is(JsonTree::Kind::number) || !(mark.number >= 0.0))
          refuse(engine + " " + name + " " + stage);
        ratchet.marks_[engine][name][stage] = mark.number;
      });
    });
  });
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
