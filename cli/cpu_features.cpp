#include "cpu_features.hpp"

#if defined(__x86_64__)
#include <cpuid.h>

#include <array>
#include <cstdint>
#include <cstring>

namespace headwater::cli {
namespace {

// Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2A, "CPUID", and volume 1, 13.3 (XCR0).

struct Registers {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(unsigned leaf, unsigned subleaf = 0) {
  Registers r;
  // Leaves above the processor's highest leave the registers zero: nothing is there.
  if (__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx) == 0) return {};
  return r;
}

/// XCR0: which register files the system saves when it switches threads.
std::uint64_t saved_state() {
  constexpr unsigned kOsXsave = 1U << 27;
  if ((cpuid(1).ecx & kOsXsave) == 0) return 0;
  unsigned low = 0;
  unsigned high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<std::uint64_t>(high) << 32 | low;
}

constexpr std::uint64_t kNoState = 0;
constexpr std::uint64_t kYmm = 0x6;       // SSE and AVX state
constexpr std::uint64_t kZmm = 0xE6;      // also opmask and the halves of ZMM
constexpr std::uint64_t kTile = 0x60000;  // TILECFG and TILEDATA

enum class Register { eax, ebx, ecx, edx };

struct Feature {
  const char* name;
  unsigned leaf, subleaf;
  Register reg;
  int bit;
  std::uint64_t state;
};

constexpr std::array kFeatures = {
    Feature{"sse4.2", 1, 0, Register::ecx, 20, kNoState},
    Feature{"popcnt", 1, 0, Register::ecx, 23, kNoState},
    Feature{"avx", 1, 0, Register::ecx, 28, kYmm},
    Feature{"f16c", 1, 0, Register::ecx, 29, kYmm},
    Feature{"fma", 1, 0, Register::ecx, 12, kYmm},
    Feature{"avx2", 7, 0, Register::ebx, 5, kYmm},
    Feature{"bmi2", 7, 0, Register::ebx, 8, kNoState},
    Feature{"avx_vnni", 7, 1, Register::eax, 4, kYmm},
    Feature{"avx512f", 7, 0, Register::ebx, 16, kZmm},
    Feature{"avx512dq", 7, 0, Register::ebx, 17, kZmm},
    Feature{"avx512cd", 7, 0, Register::ebx, 28, kZmm},
    Feature{"avx512bw", 7, 0, Register::ebx, 30, kZmm},
    Feature{"avx512vl", 7, 0, Register::ebx, 31, kZmm},
    Feature{"avx512_vnni", 7, 0, Register::ecx, 11, kZmm},
    Feature{"avx512_bf16", 7, 1, Register::eax, 5, kZmm},
    Feature{"avx512_fp16", 7, 0, Register::edx, 23, kZmm},
    Feature{"amx_tile", 7, 0, Register::edx, 24, kTile},
    Feature{"amx_bf16", 7, 0, Register::edx, 22, kTile},
    Feature{"amx_int8", 7, 0, Register::edx, 25, kTile},
    Feature{"amx_fp16", 7, 1, Register::eax, 21, kTile},
};

unsigned select(const Registers& r, Register which) {
  switch (which) {
    case Register::eax: return r.eax;
    case Register::ebx: return r.ebx;
    case Register::ecx: return r.ecx;
    case Register::edx: return r.edx;
  }
  return 0;
}

void append(std::string& text, std::initializer_list<unsigned> words) {
  for (const unsigned word : words) {
    std::array<char, sizeof word> bytes{};
    std::memcpy(bytes.data(), &word, sizeof word);
    for (const char c : bytes) {
      if (c != '\0') text += c;
    }
  }
}

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(' ');
  if (first == std::string::npos) return {};
  return text.substr(first, text.find_last_not_of(' ') - first + 1);
}

}  // namespace

CpuFeatures read_cpu_features() {
  CpuFeatures cpu;
  const Registers zero = cpuid(0);
  append(cpu.vendor, {zero.ebx, zero.edx, zero.ecx});
  constexpr unsigned kBrand = 0x80000002;
  for (unsigned leaf = kBrand; leaf < kBrand + 3; ++leaf) {
    const Registers r = cpuid(leaf);
    append(cpu.brand, {r.eax, r.ebx, r.ecx, r.edx});
  }
  cpu.brand = trimmed(cpu.brand);

  const unsigned signature = cpuid(1).eax;
  const unsigned family = signature >> 8 & 0xF;
  cpu.family = static_cast<int>(family == 0xF ? family + (signature >> 20 & 0xFF) : family);
  const bool extended = family == 0x6 || family == 0xF;
  cpu.model = static_cast<int>((signature >> 4 & 0xF) | (extended ? signature >> 12 & 0xF0 : 0U));

  const std::uint64_t saved = saved_state();
  for (const Feature& feature : kFeatures) {
    const bool present = (select(cpuid(feature.leaf, feature.subleaf), feature.reg) >> feature.bit & 1U) != 0;
    if (present && (saved & feature.state) == feature.state) cpu.features.emplace_back(feature.name);
  }
  return cpu;
}

}  // namespace headwater::cli

#else

namespace headwater::cli {
CpuFeatures read_cpu_features() { return {}; }
}  // namespace headwater::cli

#endif
