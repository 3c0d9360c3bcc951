// headwater-benchmarks: the suite of Google Benchmark. `--full` adds long contexts; everything else is Google
// Benchmark's own (--benchmark_filter=REGEX, --benchmark_format=json, --benchmark_list_tests).

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "bench/suite/suite.hpp"
#include "cli/support/streams.hpp"
#include "headwater/version.hpp"

int main(int argc, char** argv) {
  using namespace headwater;
  std::vector<char*> arguments(argv, argv + argc);
  const auto full = std::find_if(arguments.begin(), arguments.end(),
                                 [](const char* argument) { return std::strcmp(argument, "--full") == 0; });
  const bool wide = full != arguments.end();
  if (wide) arguments.erase(full);
  int count = static_cast<int>(arguments.size());
  arguments.push_back(nullptr);
  bench::register_kernels();
  bench::register_bf16_kernels();
  bench::register_chunks();
  bench::register_stages();
  bench::register_layers(wide);
  bench::register_decode(wide);
  bench::register_sessions();
#ifdef HEADWATER_HAS_RUNTIME
  bench::register_rows();
  bench::register_projections();
#endif
  benchmark::AddCustomContext("headwater", kVersion);
  benchmark::Initialize(&count, arguments.data());
  if (benchmark::ReportUnrecognizedArguments(count, arguments.data())) return 2;
  if (benchmark::RunSpecifiedBenchmarks() == 0) {
    cli::print_error(
        "headwater-benchmarks: the filter matches no benchmark; --benchmark_list_tests lists them\n");
    return 2;
  }
  benchmark::Shutdown();
  return 0;
}
