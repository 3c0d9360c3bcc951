#include "cli/support/cpu_features.hpp"

#include <array>
#include <charconv>
#include <fstream>
#include <set>
#include <sstream>

namespace headwater::cli {
namespace {

struct Feature {
  std::string_view kernel;  ///< in /proc/cpuinfo
  const char* name;         ///< here
};

constexpr std::array kFeatures = {
    Feature{"sse4_2", "sse4.2"},
    Feature{"popcnt", "popcnt"},
    Feature{"avx", "avx"},
    Feature{"f16c", "f16c"},
    Feature{"fma", "fma"},
    Feature{"avx2", "avx2"},
    Feature{"bmi2", "bmi2"},
    Feature{"avx_vnni", "avx_vnni"},
    Feature{"avx512f", "avx512f"},
    Feature{"avx512dq", "avx512dq"},
    Feature{"avx512cd", "avx512cd"},
    Feature{"avx512bw", "avx512bw"},
    Feature{"avx512vl", "avx512vl"},
    Feature{"avx512_vnni", "avx512_vnni"},
    Feature{"avx512_bf16", "avx512_bf16"},
    Feature{"avx512_fp16", "avx512_fp16"},
    Feature{"amx_tile", "amx_tile"},
    Feature{"amx_bf16", "amx_bf16"},
    Feature{"amx_int8", "amx_int8"},
    Feature{"amx_fp16", "amx_fp16"},
};

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t";
  const auto first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

int number(std::string_view text) {
  int value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && stop == text.data() + text.size() ? value : 0;
}

std::vector<std::string> known_features(std::string_view flags) {
  std::istringstream words{std::string(flags)};
  std::set<std::string, std::less<>> listed;
  for (std::string word; words >> word;) listed.insert(word);
  std::vector<std::string> names;
  for (const Feature& feature : kFeatures) {
    if (listed.contains(feature.kernel)) names.emplace_back(feature.name);
  }
  return names;
}

}  // namespace

CpuFeatures parse_cpu_info(std::string_view text) {
  CpuFeatures cpu;
  while (!text.empty()) {
    const auto feed = text.find('\n');
    const std::string_view line = text.substr(0, feed);
    if (trimmed(line).empty()) break;  // after the first processor
    const auto colon = line.find(':');
    if (colon != std::string_view::npos) {
      const std::string_view key = trimmed(line.substr(0, colon));
      const std::string_view value = trimmed(line.substr(colon + 1));
      if (key == "vendor_id") cpu.vendor = value;
      if (key == "model name") cpu.brand = value;
      if (key == "cpu family") cpu.family = number(value);
      if (key == "model") cpu.model = number(value);
      if (key == "flags") cpu.features = known_features(value);
    }
    text.remove_prefix(feed == std::string_view::npos ? text.size() : feed + 1);
  }
  return cpu;
}

CpuFeatures read_cpu_features() {
  std::ifstream file("/proc/cpuinfo");
  std::ostringstream text;
  text << file.rdbuf();
  return parse_cpu_info(text.str());
}

}  // namespace headwater::cli
