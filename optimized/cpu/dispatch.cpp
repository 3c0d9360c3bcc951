#include "cpu/dispatch.hpp"

#include <algorithm>
#include <array>
#include <string_view>

namespace headwater::cpu {

namespace {

using detail::Feature;

// What the files of the kernels are built for. Every processor with AVX-512F and DQ has FMA and F16C.
constexpr std::array kAvx512 = {Feature::avx512f, Feature::avx512dq};
constexpr std::array kAvx512Vnni = {Feature::avx512f, Feature::avx512dq, Feature::avx512bw, Feature::avx512vl,
                                    Feature::avx512vnni};
constexpr std::array kAvx512Bf16 = {Feature::avx512f, Feature::avx512dq, Feature::avx512bw, Feature::avx512vl,
                                    Feature::avx512bf16};
constexpr std::array kAmx = {Feature::avx512f,    Feature::avx512dq, Feature::avx512bw, Feature::avx512vl,
                             Feature::avx512bf16, Feature::amx_tile, Feature::amx_bf16};
constexpr std::array kAmxInt8 = {Feature::amx_int8};

constexpr SketchChoice kAvx2Sketches[] = {{&avx2_sketches, {}}};
constexpr SketchChoice kAvx512Sketches[] = {{&avx512vnni_sketches, kAvx512Vnni}};
constexpr SketchChoice kAmxSketches[] = {{&amx_sketches, kAmxInt8}, {&avx512vnni_sketches, kAvx512Vnni}};
#ifdef HEADWATER_TESTING
constexpr SketchChoice kEmulatedSketches[] = {{&amx_emulated_sketches, {}}};
#endif

constexpr Variant kVariants[] = {
    {"cpu-portable",
     "plain C++ for every x86-64-v2 processor",
     &portable_kernels,
     nullptr,
     detail::kBaseline,
     {}},
    {"cpu-avx2", "float kernels in AVX2 with FMA", &avx2_kernels, nullptr, detail::kAvx2, kAvx2Sketches},
    {"cpu-avx512", "float kernels in AVX-512", &avx512_kernels, nullptr, kAvx512, kAvx512Sketches},
    {"cpu-avx512bf16", "BF16 rows by AVX512_BF16, others as cpu-avx512", &avx512_kernels, &avx512bf16_kernels,
     kAvx512Bf16, kAvx512Sketches},
    {"cpu-amx", "BF16 rows by AMX-BF16, others as cpu-avx512", &avx512_kernels, &amx_kernels, kAmx,
     kAmxSketches},
#ifdef HEADWATER_TESTING
    {"cpu-amx-emulated", "cpu-amx on a tile unit in software (test builds)", &avx512_kernels,
     &amx_emulated_kernels, kAvx512Bf16, kEmulatedSketches},
#endif
};

// Later rows win. Each is about BF16 rows where the engine has BF16 kernels, else about all rows: from AVX-512 on F32 and
// F16 rows are computed by the same kernels in every engine, and whether a call is one of BF16 rows is decided inside the
// session (CpuSession::run_layer). Head sizes have no column: rows are padded to 2 or 32 elements, and even a head of 8,
// three quarters of which AMX wastes, is four times as quick there as in F32.
constexpr Preference kPreferences[] = {
    {"cpu-portable", Vendor::any, 0, "all", "runs everywhere"},
    {"cpu-avx2", Vendor::any, 0, "all", "8 floats per FMA"},
    {"cpu-avx512", Vendor::any, 0, "all",
     "16 floats per FMA; no slower than AVX2 on any processor that has it"},
    {"cpu-avx512bf16", Vendor::amd, 25, "BF16",
     "vdpbf16ps does twice the multiply-adds of an FMA on Zen 4 (family 25) and Zen 5 (family 26); on Intel "
     "half of them"},
    {"cpu-amx", Vendor::any, 0, "BF16", "1024 BF16 flops per cycle against 64 in F32"},
};

const Variant* variant_named(std::string_view name) {
  for (const Variant& variant : kVariants) {
    if (name == variant.engine) return &variant;
  }
  return nullptr;
}

}  // namespace

std::span<const Variant> variants() { return kVariants; }

const SketchTable* Variant::sketches() const {
  const auto choice =
      std::find_if(sketch_choices.begin(), sketch_choices.end(),
                   [](const SketchChoice& some) { return detail::missing_feature(some.needs).empty(); });
  return choice == sketch_choices.end() ? nullptr : choice->table;
}

Processor this_processor() {
  Processor processor;
  const detail::CpuId id(0);
  if (id.ebx == signature_AMD_ebx && id.ecx == signature_AMD_ecx && id.edx == signature_AMD_edx) {
    processor.vendor = Vendor::amd;
  } else if (id.ebx == signature_INTEL_ebx && id.ecx == signature_INTEL_ecx &&
             id.edx == signature_INTEL_edx) {
    processor.vendor = Vendor::intel;
  }
  constexpr unsigned kExtended = 15;  // then the extended family counts, too
  const unsigned model = detail::CpuId(1).eax;
  const unsigned family = model >> 8 & 0xfu;
  processor.family = static_cast<int>(family == kExtended ? family + (model >> 20 & 0xffu) : family);
  for (const Variant& variant : kVariants) {
    if (variant.missing().empty()) processor.runs.push_back(variant.engine);
  }
  return processor;
}

const Preference& preference_for(const Processor& processor) {
  const Preference* best = &kPreferences[0];
  for (const Preference& row : kPreferences) {
    if (row.vendor != Vendor::any && row.vendor != processor.vendor) continue;
    if (processor.family < row.first_family) continue;
    if (std::find(processor.runs.begin(), processor.runs.end(), row.engine) != processor.runs.end())
      best = &row;
  }
  return *best;
}

const Preference& preference() {
  static const Preference& row = preference_for(this_processor());
  return row;
}

const Variant& preferred_variant() { return *variant_named(preference().engine); }

}  // namespace headwater::cpu
