#include "conformance/session_files.hpp"

#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <stdexcept>
#include <system_error>

#include "headwater/state.hpp"

namespace headwater::conformance {

TemporaryFolder::TemporaryFolder()
    : path_((std::filesystem::temp_directory_path() / "headwater-XXXXXX").string()) {
  if (::mkdtemp(path_.data()) == nullptr) throw std::runtime_error("no temporary folder " + path_);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::int64_t TemporaryFolder::files() const {
  return std::distance(std::filesystem::directory_iterator(path_), {});
}

void save_session(const Engine& engine, Session& session, const std::string& path,
                  const std::string& fingerprint) {
  if (const auto* own = dynamic_cast<const EngineWithFiles*>(&engine)) {
    own->save(session, path, fingerprint);
  } else {
    save(session, path, fingerprint);
  }
}

std::unique_ptr<Session> load_session(const Engine& engine, const Shape& shape, const Options& options,
                                      const std::string& path, const std::string& fingerprint) {
  if (const auto* own = dynamic_cast<const EngineWithFiles*>(&engine)) {
    return own->load(shape, options, path, fingerprint);
  }
  return load(engine, shape, options, path, fingerprint);
}

}  // namespace headwater::conformance
