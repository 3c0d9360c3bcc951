#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace headwater::conformance {

/// SplitMix64 (Steele, Lea, Flood, 2014): the same numbers on every machine, unlike <random>'s distributions.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t bits() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
  /// Integer in [low, high].
  std::int64_t integer(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(high - low + 1));
  }
  /// Uniform in [0, 1).
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  /// About normal with deviation 1 (sum of four uniforms), bounded by 3.5.
  double normal() { return (uniform() + uniform() + uniform() + uniform() - 2.0) * 1.7320508075688772; }
  bool chance(double probability) { return uniform() < probability; }

  template <class T>
  const T& pick(const std::vector<T>& from) {
    return from[static_cast<std::size_t>(integer(0, static_cast<std::int64_t>(from.size()) - 1))];
  }

 private:
  std::uint64_t state_;
};

/// Seed of a part: `seed` mixed with a name (FNV-1a), so that parts do not share their numbers.
inline std::uint64_t mix_seed(std::uint64_t seed, std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return Random(hash ^ seed).bits();
}

}  // namespace headwater::conformance
