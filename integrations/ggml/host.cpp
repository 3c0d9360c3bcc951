#include "integrations/ggml/host.hpp"

#include <dlfcn.h>

#include <cstdarg>
#include <cstdio>
#include <string_view>

namespace headwater::ggml {
namespace {

Host found;

/// "0.25" of "0.25.3-dev". Between two of these members may have come to the tables of functions, which have no number.
std::string_view minor_of(std::string_view version) {
  const std::size_t dot = version.find('.');
  if (dot == std::string_view::npos) return version;
  return version.substr(0, version.find_first_not_of("0123456789", dot + 1));
}

}  // namespace

void say(const char* format, ...) {
  char line[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  std::fprintf(stderr, "ggml-headwater: %s\n", line);  // one call, so that lines of other threads stay whole
}

const Host& host() { return found; }

const Host* find_host(const void* caller) {
  Host host;
  Dl_info place{};
  void* library = nullptr;
  if (dladdr(caller, &place) != 0 && place.dli_fname)
    library = dlopen(place.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  const auto look_up = [&](const char* name) {
    void* const own = library ? dlsym(library, name) : nullptr;
    return own ? own : dlsym(RTLD_DEFAULT, name);
  };
  const char* missing = nullptr;
#define X(name)                                                      \
  host.name = reinterpret_cast<decltype(host.name)>(look_up(#name)); \
  if (!host.name && !missing) missing = #name;
  HEADWATER_GGML_FUNCTIONS(X)
#undef X
  if (library) dlclose(library);  // it stays: it is running
  if (missing) {
    say("not used: the host has no function %s; allowed: a host with the shared library of ggml %s", missing,
        HEADWATER_GGML_VERSION);
    return nullptr;
  }
  const char* const version = host.ggml_version();
  if (!version || minor_of(version) != minor_of(HEADWATER_GGML_VERSION)) {
    say("not used: the host has ggml %s; allowed: %.*s, for which this file was built",
        version ? version : "(none)", static_cast<int>(minor_of(HEADWATER_GGML_VERSION).size()),
        HEADWATER_GGML_VERSION);
    return nullptr;
  }
  if (found.ggml_version && found.ggml_version != host.ggml_version) {
    say("not used: another copy of ggml in this process uses it; allowed: one copy");
    return nullptr;
  }
  found = host;
  return &found;
}

}  // namespace headwater::ggml
